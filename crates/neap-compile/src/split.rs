//! Steps that a device could compute, and that the processor computes sooner.
//!
//! ```text
//!   device      c0 ─ c1 ┐              ┌ c4 ─ ...     a wait where the processor goes on: memory is shared, so nothing is copied
//!   processor           └ wait c2 ─ c3 ┘
//! ```
//! What each step takes on either is known; the choice is the one with the least sum, found step by step.

use neap_ir::Program;
use neap_plan::Workload;

/// How steps are divided between a device and the processor.
pub trait Divide: std::fmt::Debug + Send + Sync {
    /// By step of a program whose direct kernels need `direct`. It depends on nothing else, so it is the same under
    /// every budget.
    fn divide(&self, program: &Program, direct: &Workload) -> Divided;
}

/// The steps of a program, divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divided {
    /// Those that the device could compute, and does not.
    pub left: Vec<bool>,
    /// What each step takes where it is computed, beside what any compute takes.
    pub step_ns: Vec<u64>,
}

/// What one step takes, from one compute to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepCost {
    /// `None` where the device cannot compute it.
    pub device_ns: Option<u64>,
    pub processor_ns: u64,
}

/// Which steps the device computes, so that all together are fastest. After the last one everything is waited for.
/// Where both are equally fast, it is the device.
pub fn on_device(steps: &[StepCost], wait_ns: u64) -> Vec<bool> {
    const NEVER: u64 = u64::MAX / 4;
    // The least time to the end of each step by who computes it, and who computed the one before then.
    let mut least = [NEVER, 0];
    let mut before = Vec::with_capacity(steps.len());
    for step in steps {
        let [device, processor] = least;
        let waited = device.saturating_add(wait_ns);
        let from_processor = processor < device;
        let from_device = waited <= processor;
        least = [
            step.device_ns.map_or(NEVER, |ns| {
                device.min(processor).saturating_add(ns).min(NEVER)
            }),
            (waited.min(processor))
                .saturating_add(step.processor_ns)
                .min(NEVER),
        ];
        before.push([!from_processor, from_device]);
    }
    let [device, processor] = least;
    let mut is_here = device.saturating_add(wait_ns) <= processor;
    let mut here = vec![false; steps.len()];
    for (here, [for_device, for_processor]) in here.iter_mut().zip(before).rev() {
        *here = is_here;
        is_here = if is_here { for_device } else { for_processor };
    }
    here
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(device_ns: Option<u64>, processor_ns: u64) -> StepCost {
        StepCost {
            device_ns,
            processor_ns,
        }
    }

    fn sum_ns(steps: &[StepCost], here: &[bool], wait_ns: u64) -> Option<u64> {
        let mut sum = 0;
        let mut was_here = false;
        for (step, &here) in steps.iter().zip(here) {
            sum += match here {
                true => step.device_ns?,
                false => step.processor_ns + if was_here { wait_ns } else { 0 },
            };
            was_here = here;
        }
        Some(sum + if was_here { wait_ns } else { 0 })
    }

    /// Against every way to divide few steps.
    #[test]
    fn the_fastest_of_all_ways() {
        let mut state = 7u64;
        let mut below = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..2000 {
            let steps: Vec<StepCost> = (0..below(8))
                .map(|_| cost((below(4) > 0).then(|| below(20)), below(20)))
                .collect();
            let wait_ns = below(12);
            let ways = (0..1u32 << steps.len()).filter_map(|way| {
                let here: Vec<bool> = (0..steps.len()).map(|i| way & (1 << i) != 0).collect();
                sum_ns(&steps, &here, wait_ns)
            });
            let found = on_device(&steps, wait_ns);
            assert_eq!(
                sum_ns(&steps, &found, wait_ns),
                ways.min(),
                "{steps:?}, {wait_ns}: {found:?}"
            );
        }
    }

    #[test]
    fn a_step_that_is_little_faster_elsewhere_is_not_worth_the_wait() {
        let steps = [
            cost(Some(10), 30),
            cost(Some(10), 8),
            cost(Some(10), 30),
            cost(None, 5),
        ];
        assert_eq!(on_device(&steps, 5), [true, true, true, false]);
        assert_eq!(on_device(&steps, 0), [true, false, true, false]);
        assert_eq!(on_device(&steps, 100), [false; 4]);
        assert_eq!(on_device(&[], 1), [false; 0]);
    }
}
