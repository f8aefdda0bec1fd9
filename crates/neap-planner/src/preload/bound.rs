//! A bound on what a schedule's plans take, whatever is resident and wherever the rest lies.
//!
//! ```text
//!   compute lane   every step once, and for each unit that is read: handling it, and the ends of its slice
//!   load lane      the bytes that are read, and a latency for each group of them
//! ```
//! Which units are read is what is cheapest: those stay that save most per byte, the last of them in part.

use std::cmp::Reverse;

use neap_sim::CostProfile;

use super::residency::LARGER_GROUPS;
use crate::schedule::{Schedule, Unit};

/// A unit that is resident or read.
#[derive(Clone, Copy, Debug)]
struct Item {
    bytes: u64,
    /// What reading it takes from the compute lane.
    ns: u64,
}

/// What is known of a schedule before it has addresses.
#[derive(Debug, Default)]
pub struct Bound {
    /// The most nanoseconds per byte first.
    items: Vec<Item>,
    /// Of units that must be resident.
    forced_bytes: u64,
    largest_bytes: u64,
    slices: u64,
}

impl Bound {
    /// Becomes the bound of a schedule.
    pub fn renew(&mut self, schedule: &Schedule, costs: &CostProfile) {
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
                    // Of two slices of a step that are read, each ends by itself, and one begins by itself.
                    ns += costs.slice_overhead_ns + costs.compute_overhead_ns / 2;
                }
                self.items.push(Item { bytes, ns });
            }
        }
        let largest = self.items.iter().map(|i| i.bytes).max();
        self.largest_bytes = largest.unwrap_or(0);
        self.items.sort_unstable_by_key(|i| {
            Reverse((u128::from(i.ns) << 32) / u128::from(i.bytes.max(1)))
        });
    }

    /// Least nanoseconds that a plan of the schedule takes with `room_bytes` for resident units, when all steps
    /// in one piece take `steps_ns`; `u64::MAX` where those do not fit that must be resident.
    pub fn at_least_ns(&self, costs: &CostProfile, steps_ns: u64, room_bytes: u64) -> u64 {
        let Some(mut room_bytes) = room_bytes.checked_sub(self.forced_bytes) else {
            return u64::MAX;
        };
        let (mut read_bytes, mut read_ns) = (0, 0);
        for item in &self.items {
            let left = item.bytes - room_bytes.min(item.bytes);
            room_bytes -= item.bytes - left;
            read_bytes += left;
            read_ns += if left < item.bytes {
                (u128::from(item.ns) * u128::from(left) / u128::from(item.bytes)) as u64
            } else {
                item.ns
            };
        }
        // Shares of a step's time are rounded down.
        let computing_ns = (steps_ns + read_ns).saturating_sub(self.slices);
        computing_ns.max(reading_ns(costs, read_bytes, self.largest_bytes))
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
