//! The phase of a run in which reading holds it up: steps with many weights for what they compute, such as the fully
//! connected layers at the end of VGG-19.
//!
//! ```text
//!   load lane      ░░ ▤▤▤▤ ░░░░░░ ▤▤▤ ▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤      early layers compute much, and what is read beside them
//!   compute lane   █████████████████ █░░░░█░░░░█░░░░█░░░░█        finds room for little
//!                                    └─ phase ───────────┘
//! ```
//! When it begins, no more of its weights are in memory than the arena holds. The rest is read within it, however
//! long the load lane was idle before.

use std::ops::Range;

use neap_plan::{PanelRange, StepId, Workload};
use neap_sim::CostProfile;

/// Some steps in a row, and what is known of them and the others.
#[derive(Debug)]
pub struct Phase {
    /// Empty where no steps read for longer than they compute.
    pub steps: Range<usize>,
    /// What all steps take in one piece each: no plan computes for less.
    pub all_ns: u64,
    /// Of these, those outside of the phase.
    pub others_ns: u64,
    /// Activations that lie in memory when it begins.
    pub live_bytes: u64,
}

impl Phase {
    /// The steps that read longest beyond what they compute, with an arena of so many bytes.
    pub fn new(w: &Workload, costs: &CostProfile, arena_bytes: u64) -> Self {
        let whole = |step: usize| {
            let panels = w.steps[step].panels.map_or(PanelRange::NONE, |p| p.all());
            costs.slice_ns(w, StepId(step as u32), panels, false)
        };
        let steps_ns: Vec<u64> = (0..w.steps.len()).map(whole).collect();
        let all_ns = steps_ns.iter().sum();
        let live_bytes = live_before(w);
        let ahead_ns = |step: usize| {
            let ahead = arena_bytes.saturating_sub(live_bytes[step]);
            i128::from(costs.transfer_ns(ahead))
        };
        let mut steps = 0..0;
        let (mut most, mut begin, mut gain) = (0, 0, i128::MIN);
        for (step, spec) in w.steps.iter().enumerate() {
            // To begin here, or to go on.
            if gain < -ahead_ns(step) {
                (begin, gain) = (step, -ahead_ns(step));
            }
            let table_bytes = spec.rows.map_or(0, |r| r.bytes);
            let bytes = spec.weight_bytes().saturating_sub(table_bytes);
            gain += i128::from(costs.transfer_ns(bytes)) - i128::from(steps_ns[step]);
            if gain > most {
                (most, steps) = (gain, begin..step + 1);
            }
        }
        let own_ns: u64 = steps_ns[steps.clone()].iter().sum();
        Self {
            live_bytes: live_bytes.get(steps.start).copied().unwrap_or(0),
            steps,
            all_ns,
            others_ns: all_ns - own_ns,
        }
    }
}

/// By step: bytes of activations that lie in memory from the step before to this one.
fn live_before(w: &Workload) -> Vec<u64> {
    let mut live = vec![0u64; w.steps.len()];
    for buffer in &w.buffers {
        let steps = buffer.live.begin as usize + 1..buffer.live.end as usize;
        for bytes in live.get_mut(steps).into_iter().flatten() {
            *bytes = bytes.saturating_add(buffer.bytes);
        }
    }
    live
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use neap_plan::{BufferSpec, PanelSpec, StepRange, StepSpec};

    const KIB: u64 = 1024;

    /// Steps of so many KiB of weights each, and one buffer of 8 KiB between each two of them.
    pub fn chain(weights: &[u64]) -> Workload {
        let mut file_offset = 0;
        let steps = weights.iter().map(|kib| {
            let panels = PanelSpec {
                file_offset,
                panel_bytes: 4 * KIB,
                panels: (kib / 4) as u32,
                granule: 1,
            };
            file_offset += kib * KIB;
            StepSpec {
                panels: (*kib > 0).then_some(panels),
                ..StepSpec::default()
            }
        });
        let steps: Vec<StepSpec> = steps.collect();
        let buffers = (1..steps.len() as u32).map(|step| BufferSpec {
            name: String::new(),
            bytes: 8 * KIB,
            align: 64,
            live: StepRange::new(step - 1, step + 1),
            kept: false,
        });
        Workload {
            buffers: buffers.collect(),
            steps,
            ..Workload::default()
        }
    }

    #[test]
    fn holds_the_steps_that_read_for_longer_than_they_compute() {
        // A byte takes a nanosecond.
        let w = chain(&[4, 64, 400, 4, 400, 4]);
        let step_ns = [300, 300, 10, 30, 10, 300].map(|kib| kib * KIB);
        let costs = CostProfile::byte_per_ns(step_ns.to_vec());
        let phase = Phase::new(&w, &costs, 100 * KIB);
        assert_eq!(phase.steps, 2..5);
        assert_eq!(phase.live_bytes, 8 * KIB);
        assert_eq!(phase.all_ns, 950 * KIB);
        assert_eq!(phase.others_ns, 900 * KIB);
    }

    #[test]
    fn is_empty_where_all_that_it_reads_can_be_there_before() {
        let w = chain(&[4, 400, 4]);
        let costs = CostProfile::byte_per_ns(vec![300 * KIB, 100 * KIB, 300 * KIB]);
        assert_eq!(Phase::new(&w, &costs, 308 * KIB).steps, 0..0);
        assert_eq!(Phase::new(&w, &costs, 304 * KIB).steps, 1..2);
        assert_eq!(
            Phase::new(&Workload::default(), &costs, 1 << 20).steps,
            0..0
        );
    }
}
