//! A bound on what a schedule's plans take, whatever is resident and wherever the rest lies.
//!
//! ```text
//!   compute lane   every step once, and for each unit that is read: handling it, and what its slice takes more than its
//!                  share of the step
//!   load lane      the bytes that are read, and a latency for each group of them
//!   both           the compute lane outside of one phase, and the load lane within it ([`Phase`])
//! ```
//! Which units are read is what is cheapest: those stay that save most per byte, the last of them in part.

use std::cmp::Reverse;

use neap_plan::Workload;
use neap_sim::CostProfile;

use super::phase::Phase;
use super::residency::LARGER_GROUPS;
use crate::schedule::{Schedule, Unit};

/// A unit that is resident or read.
#[derive(Clone, Copy, Debug)]
struct Item {
    bytes: u64,
    /// What reading it takes from the compute lane.
    ns: u64,
    /// Of a step of the phase.
    in_phase: bool,
}

/// What is known of a schedule before it has addresses.
#[derive(Debug, Default)]
pub struct Bound {
    /// The most nanoseconds per byte first.
    items: Vec<Item>,
    /// Of units that must be resident.
    forced_bytes: u64,
    largest_bytes: u64,
    /// Of the items of the phase.
    phase_bytes: u64,
    slices: u64,
}

impl Bound {
    /// Becomes the bound of a schedule.
    pub fn renew(&mut self, w: &Workload, schedule: &Schedule, costs: &CostProfile, phase: &Phase) {
        self.items.clear();
        self.forced_bytes = 0;
        self.slices = schedule.slices.len() as u64;
        for (i, unit) in schedule.units.iter().enumerate() {
            let bytes = unit.file.len();
            if schedule.repeats(i) {
                // The same bytes count once.
            } else if unit.resident {
                self.forced_bytes += bytes;
            } else {
                let mut ns = costs.load_ns(bytes);
                if is_slice(schedule, unit) {
                    ns += excess_ns(w, schedule, unit, costs);
                }
                let step = schedule.slices[unit.first as usize].step as usize;
                let in_phase = phase.steps.contains(&step);
                self.items.push(Item {
                    bytes,
                    ns,
                    in_phase,
                });
            }
        }
        let largest = self.items.iter().map(|i| i.bytes).max();
        self.largest_bytes = largest.unwrap_or(0);
        let of_phase = self.items.iter().filter(|i| i.in_phase);
        self.phase_bytes = of_phase.map(|i| i.bytes).sum();
        self.items.sort_unstable_by_key(|i| {
            Reverse((u128::from(i.ns) << 32) / u128::from(i.bytes.max(1)))
        });
    }

    /// Least nanoseconds that a plan of the schedule takes in a window with `room_bytes` for resident units beside it;
    /// `u64::MAX` where those do not fit that must be resident.
    pub fn at_least_ns(
        &self,
        costs: &CostProfile,
        phase: &Phase,
        window_bytes: u64,
        room_bytes: u64,
    ) -> u64 {
        let Some(room_bytes) = room_bytes.checked_sub(self.forced_bytes) else {
            return u64::MAX;
        };
        let (read_bytes, read_ns) = self.read(room_bytes);
        // Shares of a step's time are rounded down.
        let computing_ns = (phase.all_ns + read_ns).saturating_sub(self.slices);
        let reading_ns = reading_ns(costs, read_bytes, self.largest_bytes);
        let both_ns = self.both_ns(costs, phase, window_bytes, room_bytes);
        computing_ns.max(reading_ns).max(both_ns)
    }

    /// Bytes that are read at least, and least that this takes from the compute lane.
    fn read(&self, mut room_bytes: u64) -> (u64, u64) {
        let (mut read_bytes, mut read_ns) = (0, 0);
        for item in &self.items {
            let left = item.left(&mut room_bytes);
            read_bytes += left;
            read_ns += item.ns_of(left);
        }
        (read_bytes, read_ns)
    }

    /// Computing outside of the phase, and reading what the phase needs and is not there when it begins.
    fn both_ns(
        &self,
        costs: &CostProfile,
        phase: &Phase,
        window_bytes: u64,
        mut room_bytes: u64,
    ) -> u64 {
        if phase.steps.is_empty() {
            return 0;
        }
        let mut phase_bytes = self.phase_bytes;
        let mut others_ns = 0;
        let mut is_settled = false;
        for item in self.items.iter().filter(|i| !i.in_phase) {
            // Memory goes to whichever saves more per byte: this item, or the phase's.
            if !is_settled && item.ns < costs.transfer_ns(item.bytes) {
                let resident = room_bytes.min(phase_bytes);
                phase_bytes -= resident;
                room_bytes -= resident;
                is_settled = true;
            }
            others_ns += item.ns_of(item.left(&mut room_bytes));
        }
        if !is_settled {
            phase_bytes -= room_bytes.min(phase_bytes);
        }
        let ahead = window_bytes.saturating_sub(phase.live_bytes);
        let bytes = phase_bytes.saturating_sub(ahead);
        let reading_ns = costs.transfer_ns(bytes);
        (phase.others_ns + others_ns + reading_ns).saturating_sub(self.slices)
    }
}

impl Item {
    /// Bytes that are read when it takes all that it can of the room.
    fn left(&self, room_bytes: &mut u64) -> u64 {
        let resident = self.bytes.min(*room_bytes);
        *room_bytes -= resident;
        self.bytes - resident
    }

    /// What reading so many of its bytes takes from the compute lane.
    fn ns_of(&self, bytes: u64) -> u64 {
        if bytes < self.bytes {
            (u128::from(self.ns) * u128::from(bytes) / u128::from(self.bytes)) as u64
        } else {
            self.ns
        }
    }
}

/// The load lane alone; no load is larger than `largest_bytes`.
fn reading_ns(costs: &CostProfile, bytes: u64, largest_bytes: u64) -> u64 {
    let larger = LARGER_GROUPS.iter().copied().max().unwrap_or(1);
    let group_bytes = costs.group_bytes.saturating_mul(larger);
    let latencies = match group_bytes {
        0 => 0,
        _ => bytes / group_bytes.max(largest_bytes),
    };
    costs.transfer_ns(bytes) + latencies.saturating_mul(costs.request_latency_ns)
}

/// Whether a unit brings one of several slices of a step.
fn is_slice(schedule: &Schedule, unit: &Unit) -> bool {
    // Weights that all slices want are there from the first to the last of them.
    let step = schedule.slices[unit.first as usize].step as usize;
    unit.first == unit.last && schedule.step_first[step] + 1 < schedule.step_first[step + 1]
}

/// What a slice that is read takes more than its share of the step.
fn excess_ns(w: &Workload, schedule: &Schedule, unit: &Unit, costs: &CostProfile) -> u64 {
    let slice = &schedule.slices[unit.first as usize];
    let index = slice.step as usize;
    let step = &w.steps[index];
    let panels = step.panels.map_or(1, |p| p.panels.max(1));
    let whole_ns = costs.step_ns(index, step);
    let share_ns = (whole_ns as f64 * f64::from(slice.panels.len()) / f64::from(panels)) as u64;
    let alone_ns = costs.slice_ns(w, slice.id(), slice.panels, false);
    // Of two slices of a step that are read, each ends by itself, and one begins by itself.
    let begins_ns = costs.compute_overhead_ns - costs.compute_overhead_ns / 2;
    alone_ns.saturating_sub(share_ns + begins_ns)
}

#[cfg(test)]
mod tests {
    use super::super::phase::tests::chain;
    use super::super::place::addresses;
    use super::super::residency::Window;
    use super::super::{BaseLayouts, THOROUGH, slicing};
    use super::*;
    use crate::layout::Layouts;
    use crate::options::PlanOptions;
    use neap_sim::Simulator;
    use proptest::prelude::*;

    const KIB: u64 = 1024;

    #[test]
    fn adds_up_computing_and_the_reading_after_it() {
        // Of 600 KiB at the end, 200 - 8 are there when the computing before is over.
        let w = chain(&[4, 4, 600]);
        let costs = CostProfile::byte_per_ns(vec![300 * KIB, 300 * KIB, KIB]);
        let phase = Phase::new(&w, &costs, 200 * KIB);
        let base_layouts = BaseLayouts::new(&w, PlanOptions::default(), &Layouts::default());
        let apart = slicing(u64::MAX, 1, 0);
        let schedule = Schedule::new(&w, &base_layouts.loose, u64::MAX / 2, apart, 3);
        let schedule = schedule.expect("three slices");
        let mut bound = Bound::default();
        bound.renew(&w, &schedule, &costs, &phase);
        let least_ns = |window, room| bound.at_least_ns(&costs, &phase, window * KIB, room * KIB);
        let slices = schedule.slices.len() as u64;
        assert_eq!(least_ns(200, 0), 600 * KIB + (600 - 192) * KIB - slices);
        // Resident weights are there as well.
        assert_eq!(least_ns(100, 100), least_ns(200, 0));
        assert_eq!(least_ns(200, 600), 601 * KIB - slices);
    }

    proptest! {
        #[test]
        fn no_plan_is_faster(
            steps in prop::collection::vec((0u64..60, 0u64..400), 1..12),
            spare in 0u64..200,
            room in 0u64..200,
            measured in any::<bool>(),
            group in 0u64..3,
        ) {
            let weights: Vec<u64> = steps.iter().map(|(panels, _)| panels * 4).collect();
            let w = chain(&weights);
            let step_ns: Vec<u64> = steps.iter().map(|(_, us)| 1 + us * 1000).collect();
            let costs = match measured {
                true => CostProfile { step_ns, group_bytes: group * 64 * KIB, ..CostProfile::default() },
                false => CostProfile::byte_per_ns(step_ns),
            };
            let base_layouts = BaseLayouts::new(&w, PlanOptions::default(), &Layouts::default());
            let window_bytes = base_layouts.smallest_bytes() + spare * 4 * KIB;
            let room_bytes = room * 4 * KIB;
            let phase = Phase::new(&w, &costs, window_bytes + room_bytes);
            let mut bound = Bound::default();
            for &slicing in THOROUGH {
                let base_layout = &base_layouts.loose;
                let schedule = Schedule::new(&w, base_layout, window_bytes, slicing, usize::MAX);
                let Some(schedule) = schedule else { continue };
                let Some(offsets) = addresses(&schedule, base_layout, window_bytes) else { continue };
                let window = Window {
                    w: &w,
                    base_layout,
                    schedule: &schedule,
                    offsets: &offsets,
                    window_bytes,
                    cyclic: true,
                };
                bound.renew(&w, &schedule, &costs, &phase);
                let least_ns = bound.at_least_ns(&costs, &phase, window_bytes, room_bytes);
                let found = window.fill(room_bytes, &costs, &mut Simulator::default());
                let Some((_, mut simulated)) = found else { continue };
                window.regroup(&mut simulated, &costs, &mut Simulator::default());
                prop_assert!(simulated.prediction.latency_ns >= least_ns, "{} < {least_ns}", simulated.prediction.latency_ns);
            }
        }
    }
}
