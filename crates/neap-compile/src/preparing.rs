//! Memory that a plan leaves over, where everything is resident already: panels are kept in the form that kernels
//! take too.
//!
//! ```text
//!   budget   │ activations, workspaces │ resident weights │ prepared panels │     more of them with more memory,
//!                                                                               those first that save most per byte
//! ```
//! Winograd's panels are two to four times as large prepared as stored, and are transformed as they are used
//! otherwise, again in each run. The stored ones stay: they are what a smaller budget goes back to. The
//! bits of the result are the same.

use crate::kernels;
use crate::operands::step_facts;
use crate::planning::Draft;
use crate::target::Target;
use crate::times::StepTimes;
use crate::workload::name_kernels;
use neap_plan::{BLOCK_BYTES, KernelId, StepSpec};
use neap_planner::Planned;
use neap_planner::placement::with_prepared_panels;
use neap_sim::CostProfile;

/// A step that would take its panels prepared.
struct Candidate {
    step: usize,
    spec: StepSpec,
    bytes: u64,
    /// What a run saves by it, and how long the step then takes.
    saved_ns: u64,
    ns: u64,
}

/// What panels are prepared for.
pub(crate) struct Preparing<'a> {
    pub target: Target,
    /// Of steps that were measured.
    pub times: &'a StepTimes,
}

impl Preparing<'_> {
    /// The same plan, with panels prepared in at most `spare_bytes` behind its arena; `None` where nothing is gained by
    /// that, or weights are loaded in each run.
    pub fn prepare(&self, old: &Draft, spare_bytes: u64) -> Option<Draft> {
        let plan = &old.planned.plan;
        if !plan.loads.is_empty() || !plan.stores.is_empty() {
            return None;
        }
        let mut candidates = self.candidates(old);
        candidates.sort_by(|a, b| {
            let by_saving =
                |a: &Candidate, b: &Candidate| u128::from(a.saved_ns) * u128::from(b.bytes);
            by_saving(b, a).cmp(&by_saving(a, b))
        });
        let mut costs = old.costs.clone();
        costs.step_ns.resize(old.workload.steps.len(), 0);
        let mut workload = old.workload.clone();
        let mut chosen = Vec::new();
        let mut room_bytes = spare_bytes;
        for candidate in candidates {
            // Not a smaller one instead: with more memory there is then never less prepared.
            let Some(left) = room_bytes.checked_sub(candidate.bytes) else {
                break;
            };
            room_bytes = left;
            costs.step_ns[candidate.step] = candidate.ns;
            workload.steps[candidate.step] = candidate.spec;
            chosen.push(candidate.step);
        }
        chosen.sort_unstable();
        name_kernels(&mut workload, &old.program);
        let plan = with_prepared_panels(plan, &workload, &chosen);
        let prediction = neap_sim::predict(&workload, &plan, &costs);
        let is_faster = prediction.latency_ns < old.planned.prediction.latency_ns;
        is_faster.then(|| Draft {
            program: old.program.clone(),
            workload,
            planned: Planned { plan, prediction },
            tables_bytes: old.tables_bytes,
            heap_bytes: old.heap_bytes,
            costs,
        })
    }

    fn candidates(&self, old: &Draft) -> Vec<Candidate> {
        let prepared = |step: usize, stored: &StepSpec| {
            let facts = step_facts(&old.program, step, self.target);
            kernels::prepared(stored, &facts)
        };
        let steps = old.workload.steps.iter().enumerate();
        steps
            .filter(|(_, stored)| stored.kernel != KernelId::DIRECT)
            .filter_map(|(step, stored)| {
                let spec = prepared(step, stored)?;
                let stored_ns = old.costs.step_ns(step, stored);
                let ns = self
                    .times
                    .of(&old.program, step, spec.kernel)
                    .unwrap_or_else(|| estimate_ns(&old.costs, stored_ns, [stored, &spec]));
                let saved_ns = stored_ns.checked_sub(ns).filter(|&saved| saved > 0)?;
                Some(Candidate {
                    step,
                    bytes: spec.prepared_bytes().next_multiple_of(BLOCK_BYTES),
                    spec,
                    saved_ns,
                    ns,
                })
            })
            .collect()
    }
}

/// What a step takes with prepared panels, by what it takes with stored ones and the operations of both.
fn estimate_ns(costs: &CostProfile, stored_ns: u64, [stored, prepared]: [&StepSpec; 2]) -> u64 {
    let memory_ns = prepared.touched_bytes as f64 / costs.memory_bytes_per_second * 1e9;
    let by_operations = stored_ns as f64 * prepared.flops as f64 / stored.flops.max(1) as f64;
    by_operations.max(memory_ns) as u64
}
