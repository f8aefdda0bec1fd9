//! The programs of a packed model: the plain one, and where it needs less memory, one with row bands
//! over the same weights. Checks of what is read back.

use crate::error::ProgramError;
use crate::operands::operands;
use neap_ir::{Graph, Op, Program, ValueId};
use neap_plan::{BLOCK_BYTES, Workload};
use neap_planner::layout::Layouts;
use neap_planner::{PlanOptions, Planner};
use neap_rewrite::{BandLimits, OrderLimits};
use serde::Serialize;
use std::ops::Range;
use std::sync::Arc;

/// In which order a packed model's steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StepOrder {
    /// That of the model file, or one that needs less memory by enough to be worth it.
    #[default]
    LeastMemory,
    /// That of the model file.
    Given,
}

/// Whether chains of layers with large activations run in row bands, and large images in strips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BandMode {
    /// Where that is predicted to be faster under the budget, or nothing else fits into it.
    #[default]
    Auto,
    Off,
    /// Row bands wherever the packed model has them, and no strips.
    On,
}

/// Row bands of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct BandCount {
    pub chains: usize,
    pub layers: usize,
    /// Parts of layers that run in strips instead.
    pub strips: usize,
}

/// What a packed file describes.
#[derive(Clone)]
pub struct Programs {
    /// In an order that is not the model file's where that lowers the highest step.
    pub plain: Arc<Program>,
    /// Over the same weights.
    pub banded: Option<Arc<Program>>,
    /// Layouts of their activations, for plans to come.
    pub layouts: Arc<Layouts>,
}

impl Programs {
    /// Of a program whose weights have their offsets, in the order of the model file.
    pub fn new(given: Program, order: StepOrder) -> Programs {
        let banded = neap_rewrite::with_bands(&given, &BandLimits::default());
        // Each in an order of its own, as row bands are where memory was highest.
        let ordered = |program: Program| {
            let found = match order {
                StepOrder::LeastMemory => {
                    neap_rewrite::with_less_memory(&program, &OrderLimits::default())
                }
                StepOrder::Given => None,
            };
            Arc::new(found.unwrap_or(program))
        };
        Programs {
            plain: ordered(given),
            banded: banded.map(ordered),
            layouts: Arc::default(),
        }
    }

    /// Those that may run, the preferred first.
    pub fn of(&self, mode: BandMode) -> impl Iterator<Item = &Arc<Program>> {
        let plain = mode != BandMode::On || self.banded.is_none();
        let banded = self.banded.iter().filter(move |_| mode != BandMode::Off);
        plain.then_some(&self.plain).into_iter().chain(banded)
    }

    /// A planner for a workload of one of the programs.
    pub fn planner<'a>(&self, workload: &'a Workload, options: PlanOptions) -> Planner<'a> {
        Planner::knowing(workload, options, self.layouts.clone())
    }

    /// Of programs that were read from a file whose weights lie in `data`: those that this makes of a graph, or
    /// forgeries.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub fn checked(
        plain: Program,
        banded: Option<Program>,
        data: Range<u64>,
    ) -> Result<Programs, String> {
        check(&plain, &data)?;
        if let Some(banded) = &banded {
            check(banded, &data)?;
            if !same_border(&plain.graph, &banded.graph) || plain.digest == banded.digest {
                return Err("its two programs do not belong together".into());
            }
        }
        Ok(Programs {
            plain: Arc::new(plain),
            banded: banded.map(Arc::new),
            layouts: Arc::default(),
        })
    }
}

/// Every program passes here before it is planned or run, as it is made and as it is read.
///
/// # Errors
/// What is wrong with the program, in words.
fn check(program: &Program, data: &Range<u64>) -> Result<(), String> {
    program.check().map_err(|e| e.to_string())?;
    for packed in &program.packed {
        let end = packed.offset.checked_add(packed.bytes);
        if packed.offset < data.start
            || !packed.offset.is_multiple_of(BLOCK_BYTES)
            || end.is_none_or(|end| end > data.end)
        {
            let name = packed.name.escape_debug();
            return Err(format!("weights of '{name}' lie outside the file"));
        }
    }
    check_supported(program).map_err(|e| e.to_string())
}

/// Unsupported operators are found before anything is packed or run, and named with their node.
///
/// # Errors
/// [`ProgramError`] names the node that cannot be computed.
pub(crate) fn check_supported(program: &Program) -> Result<(), ProgramError> {
    for &step in &program.steps {
        let node = &program.graph.nodes[step.index()];
        let inputs = operands(program, &node.inputs);
        let outputs = operands(program, &node.outputs);
        if matches!(node.op, Op::GatherRows { .. }) {
            continue;
        }
        neap_ops::supported(&node.op, &inputs, &outputs)
            .map_err(|e| ProgramError(format!("node '{}': {e}", node.name)))?;
    }
    Ok(())
}

/// Whether both take and give the same tensors.
fn same_border(a: &Graph, b: &Graph) -> bool {
    let same = |a_ids: &[ValueId], b_ids: &[ValueId]| {
        a_ids.len() == b_ids.len()
            && a_ids.iter().zip(b_ids).all(|(&i, &j)| {
                let (a, b) = (a.value(i), b.value(j));
                a.name == b.name && a.ty == b.ty
            })
    };
    same(&a.inputs, &b.inputs) && same(&a.outputs, &b.outputs)
}

/// Row bands of a program.
pub fn count_bands(program: &Program) -> BandCount {
    let mut count = BandCount::default();
    for node in &program.graph.nodes {
        if let Op::Bands(bands) = &node.op {
            count.chains += 1;
            count.layers += bands.layers.len();
        }
    }
    // Layers of a program in strips are computed again and again.
    let nodes = &program.graph.nodes;
    if is_in_strips(program) {
        count.strips = nodes.iter().filter(|node| node.panels.is_some()).count();
    }
    count
}

/// Whether a program is in strips.
pub(crate) fn is_in_strips(program: &Program) -> bool {
    program.graph.nodes.iter().any(|node| {
        matches!(
            node.op,
            Op::Rows(_) | Op::PutRows(_) | Op::Moments | Op::FoldPlaces(_) | Op::AttendKeys(_)
        )
    })
}
