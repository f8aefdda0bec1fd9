//! Which kernels can compute an operator, what each costs, and running with one of them.
//!
//! ```text
//!   kernels(op, …) ──► [Direct, Winograd(F2), …]     facts for a planner
//!   choose one, and whether its weights are stored as packed (raw) or prepared once
//!   prepare_panels(op, kernel, raw, prepared, …)      for weights that stay in memory
//!   execute_with(op, Choice { kernel, weights }, …)   the form of the weights does not change a bit
//! ```
//! [`crate::execute`] is [`execute_with`] the default choice: direct, weights as packed.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::query::Operand;
use crate::{Context, OpError, PanelSlice, TensorMut, TensorRef, bands, layer, query};
use neap_ir::panel::{ConvForm, PanelConv, panel_bytes, panel_count};
use neap_ir::{Layout, Op};
use neap_kernels::conv::ConvShape;
use neap_kernels::parallel::Parallel;
use neap_kernels::simd::Isa;
use neap_kernels::winograd::{self, Weights};
use neap_plan::KernelId;
use std::fmt;
use thiserror::Error;

pub use neap_kernels::winograd::{Tile, WeightForm};

/// How an operator is computed. Kernels of one operator differ in rounding only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kernel {
    #[default]
    Direct,
    /// 3x3 convolutions with fewer multiplications.
    Winograd(Tile),
    /// A chain in row bands whose 3x3 convolutions are computed by F(4×4, 3×3) where that pays, in bands of so
    /// many rows of its last layer, whatever the operator says.
    WinogradBands { rows: u8 },
}

/// What [`execute_with`] is told: the kernel, and the form in which the slice's weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Choice {
    pub kernel: Kernel,
    pub weights: WeightForm,
}

impl Kernel {
    /// For reports.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Kernel::Direct => "direct",
            Kernel::Winograd(Tile::F2) => "winograd_f2",
            Kernel::Winograd(Tile::F4) => "winograd_f4",
            Kernel::WinogradBands { .. } => "winograd_bands",
        }
    }
}

/// As plans name it: two for each kernel, with weights as packed and prepared.
impl From<Choice> for KernelId {
    fn from(choice: Choice) -> KernelId {
        let kernel = match choice.kernel {
            Kernel::Direct => 0,
            Kernel::Winograd(Tile::F2) => 1,
            Kernel::Winograd(Tile::F4) => 2,
            Kernel::WinogradBands { rows } => FIRST_BANDS + u16::from(rows),
        };
        KernelId(2 * kernel + u16::from(choice.weights == WeightForm::Prepared))
    }
}

/// The id of bands of no rows, without its weights' form.
const FIRST_BANDS: u16 = 3;

/// An id that names no kernel of this build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("there is no kernel {}", self.0.0)]
pub struct UnknownKernel(pub KernelId);

impl TryFrom<KernelId> for Choice {
    type Error = UnknownKernel;

    fn try_from(id: KernelId) -> Result<Choice, UnknownKernel> {
        let kernel = match id.0 / 2 {
            0 => Kernel::Direct,
            1 => Kernel::Winograd(Tile::F2),
            2 => Kernel::Winograd(Tile::F4),
            bands => Kernel::WinogradBands {
                rows: u8::try_from(bands - FIRST_BANDS).map_err(|_| UnknownKernel(id))?,
            },
        };
        let weights = match id.0 % 2 {
            0 => WeightForm::Raw,
            _ => WeightForm::Prepared,
        };
        Ok(Choice { kernel, weights })
    }
}

/// A name of its own for every choice.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kernel.label())?;
        if let Kernel::WinogradBands { rows } = self.kernel {
            write!(f, "_{rows}")?;
        }
        match self.weights {
            WeightForm::Raw => Ok(()),
            WeightForm::Prepared => f.write_str("_prepared"),
        }
    }
}

impl Default for Choice {
    fn default() -> Self {
        Choice {
            kernel: Kernel::Direct,
            weights: WeightForm::Raw,
        }
    }
}

/// A kernel that can compute a step, and what it costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFacts {
    pub kernel: Kernel,
    /// Floating-point operations of its products, the whole step; a multiply-add counts as two.
    pub flops: u64,
    /// With weights as packed.
    pub raw: FormFacts,
    /// With prepared weights, where the kernel has such a form.
    pub prepared: Option<FormFacts>,
}

/// What a kernel needs with weights of one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormFacts {
    /// Of one panel in this form.
    pub panel_bytes: usize,
    /// Workspace of a step is `workspace_bytes + panels * workspace_panel_bytes`, for the panels of its
    /// largest slice.
    pub workspace_bytes: usize,
    pub workspace_panel_bytes: usize,
    /// Bytes that pass through the caches beside inputs, weights and outputs: in the whole step, and again in
    /// each of its slices.
    pub moved_bytes: u64,
    pub moved_slice_bytes: u64,
}

impl FormFacts {
    /// Workspace of slices of at most that many panels.
    #[must_use]
    pub fn slice_workspace_bytes(&self, panels: usize) -> usize {
        panels
            .saturating_mul(self.workspace_panel_bytes)
            .saturating_add(self.workspace_bytes)
    }
}

impl KernelFacts {
    /// The facts of a form; `None` where the kernel does not have it.
    #[must_use]
    pub fn form(&self, form: WeightForm) -> Option<&FormFacts> {
        match form {
            WeightForm::Raw => Some(&self.raw),
            WeightForm::Prepared => self.prepared.as_ref(),
        }
    }
}

/// The kernels that can compute this, direct first. Operators without panels have only that one.
pub fn kernels(
    op: &Op,
    inputs: &[Operand],
    outputs: &[Operand],
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
            moved_bytes: 0,
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
    let (Op::PanelConv(panel), Some(&Some((x, _))), Some(&Some((y, _)))) =
        (op, inputs.first(), outputs.first())
    else {
        return all;
    };
    if let Some(shape) = winograd_shape(panel, &x.shape, &y.shape) {
        all.extend(Tile::ALL.map(|tile| winograd_facts(tile, &shape, workers, isa)));
    }
    all
}

/// The sizes of a layer that the Winograd kernels take.
fn winograd_shape(panel: &PanelConv, x: &[usize], y: &[usize]) -> Option<ConvShape> {
    let shape = layer::conv_shape(panel, x, y);
    (panel.form == ConvForm::Blocked && winograd::supports(&shape)).then_some(shape)
}

fn winograd_facts(tile: Tile, shape: &ConvShape, workers: usize, isa: Isa) -> KernelFacts {
    let all_panels = panel_count(shape.c_out);
    let vector_bytes = neap_ir::graph::LANES * size_of::<f32>();
    let tiles = [0, 1].map(|axis| shape.output[axis].div_ceil(tile.outputs()) as u64);
    let point_vectors = tiles
        .iter()
        .fold((shape.batch * tile.points()) as u64, |n, &t| {
            n.saturating_mul(t)
        });
    // Values are written and read, and so are products.
    let bytes =
        |vectors: u64, each: usize| vectors.saturating_mul(2 * (each * vector_bytes) as u64);
    let values = bytes(point_vectors, panel_count(shape.c_in));
    let products = bytes(point_vectors, all_panels);
    let prepared_panel_bytes = winograd::prepared_panel_floats(tile, shape.c_in) * 4;
    let facts = |form: WeightForm, panel_bytes: usize, moved_bytes: u64| {
        let workspace = |panels: usize| {
            let bytes = winograd::workspace_bytes(isa, tile, form, shape, panels, workers);
            scratch_bytes::<f32>(bytes / size_of::<f32>())
        };
        FormFacts {
            panel_bytes,
            workspace_bytes: workspace(0),
            workspace_panel_bytes: workspace(1).saturating_sub(workspace(0)),
            moved_bytes,
            moved_slice_bytes: values,
        }
    };
    let arriving = bytes(all_panels as u64, prepared_panel_bytes / vector_bytes);
    KernelFacts {
        kernel: Kernel::Winograd(tile),
        flops: winograd::multiply_adds(tile, shape).saturating_mul(2),
        raw: facts(
            WeightForm::Raw,
            panel_bytes(shape.k()),
            products.saturating_add(arriving),
        ),
        prepared: Some(facts(WeightForm::Prepared, prepared_panel_bytes, products)),
    }
}

/// Bytes of one prepared panel; `None` where the operator and kernel have no such form.
pub fn prepared_panel_bytes(op: &Op, kernel: Kernel) -> Option<usize> {
    match (op, kernel) {
        (Op::PanelConv(panel), Kernel::Winograd(tile)) => {
            Some(winograd::prepared_panel_floats(tile, panel.c_in) * size_of::<f32>())
        }
        _ => None,
    }
}

/// Brings whole panels from the packed form into the one in which the kernel takes them prepared.
pub fn prepare_panels(
    op: &Op,
    kernel: Kernel,
    panels: usize,
    raw: &[u8],
    prepared: &mut [u8],
    par: &dyn Parallel,
    isa: Isa,
) -> Result<(), OpError> {
    let (Op::PanelConv(panel), Kernel::Winograd(tile)) = (op, kernel) else {
        return Err(OpError::unsupported(op.name(), "with prepared weights"));
    };
    let (Ok(raw), Ok(prepared)) = (
        bytemuck::try_cast_slice(raw),
        bytemuck::try_cast_slice_mut(prepared),
    ) else {
        return Err(OpError::operand(op.name(), "weights are not aligned"));
    };
    winograd::prepare_panels(isa, par, tile, panel.c_in, panels, raw, prepared).named(op.name())
}

/// [`crate::execute`] with a chosen kernel, one of those that [`kernels`] names. `ctx.workspace` is
/// as large as the kernel's facts say.
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
    match (op, choice.kernel) {
        (_, Kernel::Direct) if choice.weights == WeightForm::Raw => {
            crate::execute(op, inputs, panels, outputs, ctx)
        }
        (Op::PanelConv(panel), Kernel::Winograd(tile)) => {
            panel_winograd(panel, tile, choice.weights, panels, args, ctx)
        }
        (Op::Bands(chain), Kernel::WinogradBands { .. }) if choice.weights == WeightForm::Raw => {
            bands::bands(chain, choice.kernel, args, ctx)
        }
        _ => args.fail("cannot be computed by the chosen kernel"),
    }
}

fn panel_winograd(
    panel: &PanelConv,
    tile: Tile,
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
    let Some(shape) = winograd_shape(panel, x.shape(), y.shape()) else {
        return args.fail("cannot be computed by the chosen kernel");
    };
    let (range, floats) = layer::weights(args, panels)?;
    let residual = layer::residual(args, &panel.epilogue, &y)?;
    let (isa, par) = (ctx.isa, ctx.par);
    let bytes = winograd::workspace_bytes(isa, tile, form, &shape, range.len(), par.workers());
    let scratch = Scratch::new(args.op, ctx.workspace).take(bytes / size_of::<f32>())?;
    let weights = match form {
        WeightForm::Raw => Weights::Raw(floats),
        WeightForm::Prepared => Weights::Prepared(floats),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_choice_has_an_id_and_a_name_of_its_own() {
        let bands = (0..=u8::MAX).map(|rows| Kernel::WinogradBands { rows });
        let kernels = [Kernel::Direct]
            .into_iter()
            .chain(Tile::ALL.map(Kernel::Winograd))
            .chain(bands);
        let (mut ids, mut names) = (BTreeSet::new(), BTreeSet::new());
        for kernel in kernels {
            for weights in [WeightForm::Raw, WeightForm::Prepared] {
                let choice = Choice { kernel, weights };
                let id = KernelId::from(choice);
                assert_eq!(Choice::try_from(id), Ok(choice));
                assert!(ids.insert(id), "{choice} shares its id");
                assert!(names.insert(choice.to_string()), "{choice} shares its name");
            }
        }
        assert_eq!(KernelId::from(Choice::default()), KernelId::DIRECT);
        // Ids are dense, and those behind the last name no kernel.
        let behind = KernelId(ids.len() as u16);
        assert_eq!(Choice::try_from(behind), Err(UnknownKernel(behind)));
        assert!(Choice::try_from(KernelId(u16::MAX)).is_err());
    }
}
