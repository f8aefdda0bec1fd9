//! Which kernels can compute an operator, what each costs there, and running with one of them.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::kernel::{Choice, FormFacts, Kernel, KernelFacts, Tile, WeightForm};
use crate::query::OperandForm;
use crate::{Context, OpError, PanelSlice, TensorMut, TensorRef, bands, layer, pairs, query};
use neap_ir::panel::{ConvForm, PanelConv, PanelFormat, panel_bytes, panel_count};
use neap_ir::{Layout, Op};
use neap_kernels::conv::ConvShape;
use neap_kernels::parallel::Parallel;
use neap_kernels::simd::Isa;
use neap_kernels::winograd::{self, Weights};

/// The kernels that can compute this, direct first. Operators without panels have only that one.
pub fn kernels(
    op: &Op,
    inputs: &[OperandForm],
    outputs: &[OperandForm],
    workers: usize,
    isa: Isa,
) -> Vec<KernelFacts> {
    let direct = KernelFacts {
        kernel: Kernel::Direct,
        flops: query::flops(op, inputs, outputs),
        raw: FormFacts {
            panel_bytes: match op {
                Op::PanelConv(layer) => panel_bytes(layer.k()),
                Op::PanelDepthwise(layer) => panel_bytes(layer.k()),
                Op::PanelLinear(layer) => panel_bytes(layer.k),
                _ => 0,
            },
            workspace_bytes: query::workspace_bytes(op, inputs, outputs, workers, isa),
            workspace_panel_bytes: 0,
            weight_passes: 0,
            moved_slice_bytes: 0,
        },
        prepared: None,
    };
    let mut all = vec![direct.clone()];
    if let (Op::Bands(chain), Some(&Some((x, _)))) = (op, inputs.first()) {
        let facts = |kernel| KernelFacts {
            kernel,
            flops: bands::flops(chain, &x.shape, kernel),
            raw: FormFacts {
                workspace_bytes: bands::workspace_bytes(chain, &x.shape, kernel, workers, isa),
                ..direct.raw
            },
            prepared: None,
        };
        all.extend(bands::winograd_kernels(chain, &x.shape).map(facts));
    }
    all.extend(pairs::facts(op, inputs, outputs, &direct, isa));
    let (Op::PanelConv(panel), Some(&Some((x, _))), Some(&Some((y, _)))) =
        (op, inputs.first(), outputs.first())
    else {
        return all;
    };
    if let Some(shape) = winograd_shape(panel, &x.shape, &y.shape) {
        let by = |kernel| winograd_facts(kernel, &shape, workers, isa);
        all.extend(Tile::ALL.map(Kernel::Winograd).into_iter().filter_map(by));
        all.extend(by(Kernel::WideWinograd));
    }
    all
}

/// The sizes of a layer that the Winograd kernels take.
fn winograd_shape(panel: &PanelConv, x: &[usize], y: &[usize]) -> Option<ConvShape> {
    let shape = layer::conv_shape(panel, x, y);
    let in_floats = panel.epilogue.integers.is_none();
    (in_floats && panel.form == ConvForm::Blocked && winograd::supports(&shape)).then_some(shape)
}

/// `None` for a wide kernel where there is nothing to gain by it.
fn winograd_facts(
    kernel: Kernel,
    shape: &ConvShape,
    workers: usize,
    isa: Isa,
) -> Option<KernelFacts> {
    let (tile, is_wide) = (kernel.tile()?, kernel == Kernel::WideWinograd);
    let passes = |is_wide| winograd::weight_passes(isa, tile, is_wide, shape, workers) as u64;
    if is_wide && passes(true) >= passes(false) {
        return None;
    }
    let vector_bytes = neap_ir::graph::LANES * size_of::<f32>();
    let tiles = [0, 1].map(|axis| shape.window.output[axis].div_ceil(tile.outputs()) as u64);
    let point_vectors = tiles
        .iter()
        .fold((shape.batch * tile.points()) as u64, |n, &t| {
            n.saturating_mul(t)
        });
    // Values are written and read.
    let values_bytes = (2 * panel_count(shape.c_in) * vector_bytes) as u64;
    let facts = |form: WeightForm, panel_bytes: usize, weight_passes: u64| {
        let workspace = |panels: usize| {
            let floats = winograd_floats(kernel, form, shape, panels, workers, isa);
            scratch_bytes::<f32>(floats)
        };
        FormFacts {
            panel_bytes,
            workspace_bytes: workspace(0),
            workspace_panel_bytes: workspace(1).saturating_sub(workspace(0)),
            weight_passes,
            moved_slice_bytes: point_vectors.saturating_mul(values_bytes),
        }
    };
    let prepared_panel_bytes = winograd::prepared_panel_floats(tile, shape.c_in) * 4;
    Some(KernelFacts {
        kernel,
        flops: winograd::multiply_adds(tile, shape).saturating_mul(2),
        raw: facts(WeightForm::Raw, panel_bytes(shape.k()), passes(is_wide)),
        prepared: Some(facts(WeightForm::Prepared, prepared_panel_bytes, 0)),
    })
}

/// Scratch of a call for so many panels.
fn winograd_floats(
    kernel: Kernel,
    form: WeightForm,
    shape: &ConvShape,
    panels: usize,
    workers: usize,
    isa: Isa,
) -> usize {
    let bytes = match (kernel, form) {
        (Kernel::WideWinograd, WeightForm::Raw) => {
            winograd::wide_workspace_bytes(isa, Tile::F4, shape, panels, workers)
        }
        _ => kernel.tile().map_or(0, |tile| {
            winograd::workspace_bytes(isa, tile, form, shape, panels, workers)
        }),
    };
    bytes / size_of::<f32>()
}

/// Bytes of one prepared panel; `None` where the operator and kernel have no such form.
pub fn prepared_panel_bytes(op: &Op, kernel: Kernel) -> Option<usize> {
    match (op, kernel.tile()) {
        (Op::PanelConv(panel), Some(tile)) => {
            Some(winograd::prepared_panel_floats(tile, panel.c_in) * size_of::<f32>())
        }
        _ => None,
    }
}

/// Brings whole panels from the packed form into the one in which the kernel takes them prepared.
///
/// # Errors
/// [`OpError`] where the kernel has no prepared form, or memory is too short or not aligned.
pub fn prepare_panels(
    op: &Op,
    kernel: Kernel,
    panels: usize,
    format: PanelFormat,
    raw: &[u8],
    prepared: &mut [u8],
    par: &dyn Parallel,
    isa: Isa,
) -> Result<(), OpError> {
    let (Op::PanelConv(panel), Some(tile)) = (op, kernel.tile()) else {
        return Err(OpError::unsupported(op.name(), "with prepared weights"));
    };
    let raw = layer::stored(op.name(), format, raw)?;
    let Ok(prepared) = bytemuck::try_cast_slice_mut(prepared) else {
        return Err(OpError::operand(op.name(), "weights are not aligned"));
    };
    winograd::prepare_panels(isa, par, tile, panel.c_in, panels, raw, prepared).named(op.name())
}

/// [`crate::execute`] with a chosen kernel, one of those that [`kernels`] names. `ctx.workspace` is
/// as large as the kernel's facts say.
///
/// # Errors
/// [`OpError`] where operands, workspace or kernel are not those that were planned.
pub fn execute_with(
    op: &Op,
    choice: Choice,
    inputs: &[Option<TensorRef>],
    panels: Option<PanelSlice>,
    outputs: &[Option<TensorMut>],
    ctx: &mut Context,
) -> Result<(), OpError> {
    let args = &Args {
        op: op.name(),
        inputs,
        outputs,
    };
    let is_empty = outputs.iter().flatten().all(|y| y.elements() == 0);
    match (op, choice.kernel) {
        _ if is_empty || choice.is_direct() => crate::execute(op, inputs, panels, outputs, ctx),
        (Op::PanelConv(panel), kernel) if kernel.tile().is_some() => {
            panel_winograd(panel, kernel, choice.weights, panels, args, ctx)
        }
        (Op::Bands(chain), Kernel::WinogradBands { .. }) if choice.weights == WeightForm::Raw => {
            bands::bands(chain, choice.kernel, args, ctx)
        }
        (_, Kernel::Pairs) if choice.weights == WeightForm::Raw => {
            pairs::compute(op, panels, args, ctx)
        }
        _ => args.fail("cannot be computed by the chosen kernel"),
    }
}

fn panel_winograd(
    panel: &PanelConv,
    kernel: Kernel,
    form: WeightForm,
    panels: Option<PanelSlice>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    args.require(
        y.layout == Layout::Blocked && x.layout == Layout::Blocked,
        "operands have the wrong layout",
    )?;
    let shape = winograd_shape(panel, x.shape(), y.shape());
    let (Some(shape), Some(tile)) = (shape, kernel.tile()) else {
        return args.fail("cannot be computed by the chosen kernel");
    };
    let Some(panels) = panels else {
        return args.fail("weights are missing");
    };
    let range = panels.range.clone();
    let residual = layer::residual(args, &panel.epilogue, &y)?;
    let (isa, par) = (ctx.isa, ctx.par);
    let workers = par.workers();
    let floats = winograd_floats(kernel, form, &shape, range.len(), workers, isa);
    let scratch = Scratch::new(args.op, ctx.workspace).take(floats)?;
    let weights = match form {
        WeightForm::Raw => Weights::Raw(layer::weights(args, Some(panels))?.1),
        WeightForm::Prepared => match bytemuck::try_cast_slice(panels.bytes) {
            Ok(floats) => Weights::Prepared(floats),
            Err(_) => return args.fail("weights are not aligned"),
        },
    };
    // SAFETY: the output does not overlap the input; the residual is read through it when it lies
    // there.
    let out = unsafe { y.f32s_mut() };
    let input = x.f32s();
    winograd::conv_winograd(
        isa, par, tile, &shape, range, weights, input, out, residual, scratch,
    )
    .named(args.op)
}
