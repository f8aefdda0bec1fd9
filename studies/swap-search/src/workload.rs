//! From a workload to a dataflow: what is searched over are the very buffers that will lie in memory.
//!
//! ```text
//!   step      ─► operator
//!   state     ─► parameter      in its home between runs, or in memory for good
//!   buffer    ─► activation
//!   workspace ─► activation that one operator makes and nobody reads
//!   output    ─► apart          in memory of its own, as it is taken when the run is over
//! ```
//! Every tensor takes whole blocks, so that any of them may be stored.

use crate::dataflow::{
    Dataflow, DataflowError, DataflowSpec, Operator, Tensor, TensorId, TensorKind,
};
use neap_plan::{BufferId, Workload, whole_blocks};
use neap_sim::CostProfile;

/// What a tensor of a [`StepFlow`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Buffer(BufferId),
    /// Of the step with that number in the order in which steps were given.
    Workspace(u32),
}

/// A workload as a dataflow.
#[derive(Clone, Debug)]
pub struct StepFlow {
    pub flow: Dataflow,
    /// By tensor.
    pub(crate) holders: Vec<Holder>,
}

/// The dataflow of a workload without weights from a file, such as a step of training. `outputs` are the buffers of its results.
///
/// # Errors
/// [`DataflowError`] where a step reads what nothing has written.
pub fn of_workload(
    workload: &Workload,
    outputs: &[BufferId],
    costs: &CostProfile,
) -> Result<StepFlow, DataflowError> {
    let mut is_used = vec![false; workload.buffers.len()];
    for step in &workload.steps {
        let buffers = step.reads.iter().chain(&step.writes);
        buffers.for_each(|b| is_used[b.index()] = true);
    }
    let mut spec = DataflowSpec::default();
    let mut holders = Vec::new();
    let mut tensor_of = vec![None; workload.buffers.len()];
    let mut add = |bytes: u64, kind, holder, spec: &mut DataflowSpec| {
        let bytes = whole_blocks(bytes);
        spec.tensors.push(Tensor { bytes, kind });
        holders.push(holder);
        TensorId(spec.tensors.len() as u32 - 1)
    };
    for (id, buffer) in (0..).map(BufferId).zip(&workload.buffers) {
        if buffer.bytes == 0 || buffer.live.is_empty() {
            continue;
        }
        // One that no step lists is in use throughout.
        let is_apart = outputs.contains(&id) || !is_used[id.index()];
        let kind = match (is_apart, workload.states.binary_search(&id)) {
            (true, _) => TensorKind::Apart,
            (false, Ok(_)) => TensorKind::Parameter,
            (false, Err(_)) => TensorKind::Activation,
        };
        let tensor = add(buffer.bytes, kind, Holder::Buffer(id), &mut spec);
        tensor_of[id.index()] = Some(tensor);
    }
    for (at, step) in workload.steps.iter().enumerate() {
        let tensors = |buffers: &[BufferId]| -> Vec<TensorId> {
            let known = buffers.iter().filter_map(|b| tensor_of[b.index()]);
            known.collect()
        };
        let mut writes = tensors(&step.writes);
        if step.workspace_bytes > 0 {
            let holder = Holder::Workspace(at as u32);
            let kind = TensorKind::Activation;
            writes.push(add(step.workspace_bytes, kind, holder, &mut spec));
        }
        spec.operators.push(Operator {
            name: step.name.clone(),
            compute_ns: costs.step_ns(at, step) + costs.compute_overhead_ns,
            reads: tensors(&step.reads),
            writes,
        });
    }
    Ok(StepFlow {
        flow: Dataflow::new(spec)?,
        holders,
    })
}

impl StepFlow {
    /// Memory of what takes no part in the search.
    pub fn apart_bytes(&self) -> u64 {
        let tensors = self.flow.tensors().iter();
        let apart = tensors.filter(|t| t.kind == TensorKind::Apart);
        apart.map(|t| t.bytes).sum()
    }
}
