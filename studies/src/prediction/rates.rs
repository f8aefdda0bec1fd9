//! What the same seconds show of the machine: times of steps in a session that loads nothing, rate and latency
//! of storage in the loads themselves.

use super::slots::{Slot, Subject};
use neap_plan::{KernelId, StepSpec, Workload};
use neap_sim::CostProfile;
use std::collections::HashMap;

/// Groups of loads that took more than so many times what they should were held up by something else.
const HELD_UP: f64 = 1.6;

/// As much as this share of all groups counts what is believed of latency: groups of one size do not tell it
/// from the rate.
const BELIEF: f64 = 0.05;

/// Fewer groups tell nothing.
pub const LEAST_GROUPS: usize = 16;

/// A group of loads: bytes, and nanoseconds from handing it over to seeing that all of it is there, or to handing over the
/// next.
pub type Moved = (f64, f64);

/// A point's costs, with storage as `moved` shows it and steps as fast as in `resident`.
pub fn costs_now(
    subject: &Subject,
    (resident, resident_slots): (&Subject, &[&Slot]),
    moved: &[Moved],
) -> CostProfile {
    let mut costs = subject.costs.clone();
    if let Some((ns_per_byte, latency_ns)) = transfer(moved, costs.request_latency_ns as f64) {
        costs.storage_bytes_per_second = 1e9 / ns_per_byte;
        costs.request_latency_ns = latency_ns as u64;
    }
    costs.step_ns = step_times(subject, (resident, resident_slots));
    // What passes between two steps is not in their times.
    let between = resident_slots
        .iter()
        .map(|slot| slot.between_ns())
        .sum::<u64>();
    let steps = resident.workload.steps.len() * resident_slots.len();
    costs.compute_overhead_ns += between / steps.max(1) as u64;
    costs
}

/// Steps that the resident session computes in the same way take as long as there; what others are believed to
/// take is scaled as those are.
fn step_times(subject: &Subject, (resident, slots): (&Subject, &[&Slot])) -> Vec<u64> {
    let overhead_ns = subject.costs.compute_overhead_ns;
    let steps = resident.workload.steps.iter().enumerate();
    let seen: HashMap<_, u64> = steps
        .map(|(i, step)| {
            let sum: u64 = slots.iter().map(|slot| slot.step_ns[i]).sum();
            let mean = sum / slots.len().max(1) as u64;
            (kind(step), mean.saturating_sub(overhead_ns).max(1))
        })
        .collect();
    let believed = |workload: &Workload, costs: &CostProfile| -> Vec<u64> {
        let steps = workload.steps.iter().enumerate();
        steps.map(|(i, step)| costs.step_ns(i, step)).collect()
    };
    let ours = believed(&subject.workload, &subject.costs);
    let (mut now, mut before) = (0, 0);
    for (step, believed_ns) in subject.workload.steps.iter().zip(&ours) {
        if let Some(ns) = seen.get(&kind(step)) {
            now += ns;
            before += believed_ns;
        }
    }
    let scale = if before > 0 {
        now as f64 / before as f64
    } else {
        1.0
    };
    let steps = subject.workload.steps.iter().zip(&ours);
    steps
        .map(|(step, believed_ns)| {
            let scaled = (*believed_ns as f64 * scale) as u64;
            seen.get(&kind(step)).copied().unwrap_or(scaled).max(1)
        })
        .collect()
}

/// Steps of equal kind take equal times.
fn kind(step: &StepSpec) -> (&str, KernelId, u64, u64) {
    (
        &step.name,
        step.kernel,
        step.flops,
        step.prepared_panel_bytes,
    )
}

/// Nanoseconds to a byte and to a group with the least squares of relative errors.
fn transfer(groups: &[Moved], believed_latency_ns: f64) -> Option<(f64, f64)> {
    let mut found: Option<(f64, f64)> = None;
    for _ in 0..3 {
        let fits = |&&(bytes, ns): &&Moved| {
            found.is_none_or(|(per_byte, latency)| ns <= HELD_UP * (latency + bytes * per_byte))
        };
        let kept: Vec<&Moved> = groups.iter().filter(|g| g.1 > 0.0).filter(fits).collect();
        if kept.len() < LEAST_GROUPS {
            return found;
        }
        let belief = BELIEF * kept.len() as f64 / believed_latency_ns.max(1.0).powi(2);
        let (mut a11, mut a12, mut a22) = (belief, 0.0, 0.0);
        let (mut b1, mut b2) = (belief * believed_latency_ns, 0.0);
        for (bytes, ns) in kept {
            let weight = 1.0 / (ns * ns);
            a11 += weight;
            a12 += weight * bytes;
            a22 += weight * bytes * bytes;
            b1 += weight * ns;
            b2 += weight * bytes * ns;
        }
        let determinant = a11 * a22 - a12 * a12;
        let latency = ((b1 * a22 - b2 * a12) / determinant).max(0.0);
        let per_byte = (b2 - a12 * latency) / a22;
        if !(determinant > 0.0 && per_byte > 0.0 && per_byte.is_finite()) {
            return found;
        }
        found = Some((per_byte, latency));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_latency_of_groups_are_found_whatever_holds_some_up() {
        let groups: Vec<Moved> = (0..100)
            .map(|i| {
                let bytes = f64::from(i % 9 + 1) * 5e5;
                let ns = 80e3 + bytes / 2.5;
                (bytes, if i % 20 == 3 { ns * 5.0 } else { ns })
            })
            .collect();
        let (per_byte, latency) = transfer(&groups, 90e3).unwrap();
        assert!((per_byte * 2.5 - 1.0).abs() < 0.02, "{per_byte}");
        // Large groups leave latency to what is believed of it.
        assert!((79e3..91e3).contains(&latency), "{latency}");
        assert!(transfer(&groups[..8], 90e3).is_none());
    }
}
