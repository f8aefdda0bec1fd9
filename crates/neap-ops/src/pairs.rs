//! Layers that the model has in bfloat16, on processors that multiply it ([`crate::Kernel::Pairs`]).

use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::kernel::{FormFacts, Kernel, KernelFacts};
use crate::query::OperandForm;
use crate::{Context, OpError, PanelSlice, layer};
use neap_ir::panel::ConvForm;
use neap_ir::{Layout, Op};
use neap_kernels::conv::{ConvShape, conv_in_pairs, conv_pairs_scratch_bytes, takes_pairs};
use neap_kernels::linear::{LinearShape, linear_in_pairs, linear_pairs_scratch_bytes};
use neap_kernels::simd::Isa;

/// With fewer rows or pixels, bringing weights into pairs takes longer than it saves.
const LEAST_ROWS: usize = 28;

/// What is computed.
enum Layer {
    Linear(LinearShape),
    Conv(ConvShape),
}

impl Layer {
    /// `None` for operators that are not computed so.
    fn of(op: &Op, x: &[usize], y: &[usize]) -> Option<Layer> {
        match op {
            Op::PanelLinear(panel) if panel.in_bf16 && panel.epilogue.integers.is_none() => {
                let rows = x.iter().rev().skip(1).product();
                Some(Layer::Linear(LinearShape::dense(rows, panel.k, panel.n)))
            }
            Op::PanelConv(panel) if panel.in_bf16 && panel.epilogue.integers.is_none() => {
                let shape = layer::conv_shape(panel, x, y);
                let fits = panel.form == ConvForm::Blocked && takes_pairs(&shape);
                fits.then_some(Layer::Conv(shape))
            }
            _ => None,
        }
    }

    fn rows(&self) -> usize {
        match self {
            Layer::Linear(shape) => shape.m,
            Layer::Conv(shape) => shape.window.output.iter().product(),
        }
    }

    fn scratch_floats(&self) -> usize {
        let bytes = match self {
            Layer::Linear(shape) => linear_pairs_scratch_bytes(shape),
            Layer::Conv(shape) => conv_pairs_scratch_bytes(shape),
        };
        bytes / size_of::<f32>()
    }
}

/// What the kernel costs, beside the direct one; `None` where it does not compute this. Weights must be of bfloat16, without
/// scales.
pub(crate) fn facts(
    op: &Op,
    inputs: &[OperandForm],
    outputs: &[OperandForm],
    direct: &KernelFacts,
    isa: Isa,
) -> Option<KernelFacts> {
    let (Some(&Some((x, _))), Some(&Some((y, _)))) = (inputs.first(), outputs.first()) else {
        return None;
    };
    let layer = Layer::of(op, &x.shape, &y.shape)?;
    if !isa.has_pairs() || layer.rows() < LEAST_ROWS {
        return None;
    }
    let floats = layer.scratch_floats();
    // Pairs are written, and read again.
    let moved = (floats as u64).saturating_mul(2 * size_of::<f32>() as u64);
    Some(KernelFacts {
        kernel: Kernel::Pairs,
        flops: direct.flops,
        raw: FormFacts {
            workspace_bytes: scratch_bytes::<f32>(floats),
            weight_passes: 0,
            moved_slice_bytes: moved,
            ..direct.raw
        },
        prepared: None,
    })
}

pub(crate) fn compute(
    op: &Op,
    panels: Option<PanelSlice>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (isa, par) = (ctx.isa, ctx.par);
    let (layer, epilogue) = match (op, Layer::of(op, x.shape(), y.shape())) {
        (Op::PanelLinear(panel), Some(layer)) => (layer, &panel.epilogue),
        (Op::PanelConv(panel), Some(layer)) => (layer, &panel.epilogue),
        _ => return args.fail("cannot be computed by the chosen kernel"),
    };
    let layout = match layer {
        Layer::Linear(_) => Layout::Plain,
        Layer::Conv(_) => Layout::Blocked,
    };
    args.require(
        x.layout == layout && y.layout == layout,
        "operands have the wrong layout",
    )?;
    let (range, weights) = layer::weights(args, panels)?;
    let residual = layer::residual(args, epilogue, &y)?;
    let scratch = Scratch::new(args.op, ctx.workspace).take(layer.scratch_floats())?;
    let input = x.f32s();
    // SAFETY: the output does not overlap the input; the residual is read through it when it lies
    // there.
    let out = unsafe { y.f32s_mut() };
    match layer {
        Layer::Linear(shape) => linear_in_pairs(
            isa, par, &shape, range, weights, input, out, residual, scratch,
        ),
        Layer::Conv(shape) => conv_in_pairs(
            isa, par, &shape, range, weights, input, out, residual, scratch,
        ),
    }
    .named(args.op)
}
