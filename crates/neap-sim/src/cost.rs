//! `CostProfile`: how long a step computes and how long a load takes on one machine.

use neap_plan::{Compute, ExecutionPlan, Load, PanelRange, StepId, StepSpec, Store, Workload};
use serde::{Deserialize, Serialize};

/// Measured or estimated costs. Rates are per second, all threads of the session together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostProfile {
    pub flops_per_second: f64,
    pub memory_bytes_per_second: f64,
    /// Fixed cost of starting one compute (dispatch, waking of workers).
    pub compute_overhead_ns: u64,
    pub storage_bytes_per_second: f64,
    /// Between the host's memory and a device's, for what plans keep in the host
    /// ([`ExecutionPlan::copies`](neap_plan::ExecutionPlan::copies)); 0 where plans keep nothing there.
    #[serde(default)]
    pub link_bytes_per_second: f64,
    /// Stores to the spill file alone; 0 where it was not measured: as fast as loads.
    #[serde(default)]
    pub store_bytes_per_second: f64,
    /// Loads and stores at once, both together; 0 where it was not measured: they share what the faster
    /// of them has alone.
    #[serde(default)]
    pub both_ways_bytes_per_second: f64,
    /// Time from submitting a request to its first byte.
    pub request_latency_ns: u64,
    /// Loads that may be in flight together; their latencies overlap, their bandwidth is shared.
    pub queue_depth: u32,
    /// For storage that reports no read before all are done that it has in hand: loads are handed over in
    /// groups of so many bytes, each of which arrives as a whole, whatever `queue_depth` says. 0: each load
    /// is handed over as soon as it may start, and arrives when it is done.
    #[serde(default)]
    pub group_bytes: u64,
    /// Panels computed outside a whole granule take this many times as long.
    pub ragged_slowdown: f64,
    /// A compute that is not its whole step takes this much more than its share: what it reads again,
    /// and the ends where threads wait for each other.
    pub slice_overhead_ns: u64,
    /// What a load takes from computing: handing it over, noting that it came, and the memory
    /// bandwidth and interrupts while it comes. Hidden while the computing side waits for loads anyway.
    pub load_handling_ns: u64,
    pub load_handling_ns_per_byte: f64,
    /// A compute begins no sooner than so long after its loads are there: the thread that waited for them
    /// wakes, and so do those that help it.
    #[serde(default)]
    pub wake_ns: u64,
    /// Measured time of each whole step, by `StepId`; used instead of the estimate where it is not zero.
    pub step_ns: Vec<u64>,
    /// What a slice of each step takes at least, by `StepId`; 0, or nothing, where it takes its share.
    #[serde(default)]
    pub least_slice_ns: Vec<u64>,
}

impl Default for CostProfile {
    /// A small machine with a modest NVMe drive, for use before calibration.
    fn default() -> Self {
        Self {
            flops_per_second: 100e9,
            memory_bytes_per_second: 10e9,
            compute_overhead_ns: 5_000,
            storage_bytes_per_second: 1.5e9,
            link_bytes_per_second: 0.0,
            store_bytes_per_second: 0.0,
            both_ways_bytes_per_second: 0.0,
            request_latency_ns: 100_000,
            queue_depth: 8,
            group_bytes: 0,
            ragged_slowdown: 1.3,
            slice_overhead_ns: 12_000,
            load_handling_ns: 5_000,
            load_handling_ns_per_byte: 0.025,
            wake_ns: 30_000,
            step_ns: Vec::new(),
            least_slice_ns: Vec::new(),
        }
    }
}

impl CostProfile {
    /// Every byte loaded takes 1 ns, every step its measured time, nothing else costs: for cases that
    /// are checked by hand.
    pub fn byte_per_ns(step_ns: Vec<u64>) -> Self {
        Self {
            flops_per_second: f64::INFINITY,
            memory_bytes_per_second: f64::INFINITY,
            compute_overhead_ns: 0,
            storage_bytes_per_second: 1e9,
            link_bytes_per_second: 0.0,
            store_bytes_per_second: 0.0,
            both_ways_bytes_per_second: 0.0,
            request_latency_ns: 0,
            queue_depth: 1,
            group_bytes: 0,
            ragged_slowdown: 1.0,
            slice_overhead_ns: 0,
            load_handling_ns: 0,
            load_handling_ns_per_byte: 0.0,
            wake_ns: 0,
            step_ns,
            least_slice_ns: Vec::new(),
        }
    }

    /// Time to move `bytes` from storage, without latency.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        to_ns(bytes as f64 / self.storage_bytes_per_second)
    }

    /// A load in bytes of storage: what comes from the host's memory counts as so many as storage would give in the
    /// time that the link takes. So both follow each other here, though storage may go on beside the link.
    pub fn moved_bytes(&self, plan: &ExecutionPlan, load: &Load) -> u64 {
        match plan.is_from_host(load) {
            true => self.by_link(load.bytes, self.storage_bytes_per_second),
            false => load.bytes,
        }
    }

    /// The same of a store.
    pub fn moved_back_bytes(&self, plan: &ExecutionPlan, store: &Store) -> u64 {
        match plan.spills_to_host {
            true => self.by_link(store.bytes, self.store_rate()),
            false => store.bytes,
        }
    }

    /// So many bytes over the link, as bytes of something slower.
    fn by_link(&self, bytes: u64, rate: f64) -> u64 {
        match self.link_bytes_per_second {
            link if link > rate => (bytes as f64 * rate / link).round() as u64,
            _ => bytes,
        }
    }

    /// Rate of stores alone.
    pub fn store_rate(&self) -> f64 {
        if self.store_bytes_per_second > 0.0 {
            self.store_bytes_per_second
        } else {
            self.storage_bytes_per_second
        }
    }

    /// Rate of loads and stores together while both move.
    pub fn both_ways_rate(&self) -> f64 {
        if self.both_ways_bytes_per_second > 0.0 {
            self.both_ways_bytes_per_second
        } else {
            self.storage_bytes_per_second.max(self.store_rate())
        }
    }

    /// Least time in which a run's loads and stores are moved: each way at its own rate, and both at what they have together.
    pub fn moving_ns(&self, plan: &ExecutionPlan) -> u64 {
        let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
        let loaded = sum(&mut plan.loads.iter().map(|l| self.moved_bytes(plan, l)));
        let stored = sum(&mut plan.stores.iter().map(|s| self.moved_back_bytes(plan, s)));
        let back_ns = to_ns(stored as f64 / self.store_rate());
        let both_ns = to_ns(loaded.saturating_add(stored) as f64 / self.both_ways_rate());
        self.transfer_ns(loaded).max(back_ns).max(both_ns)
    }

    /// What one load or store of so many bytes takes from computing.
    pub fn load_ns(&self, bytes: u64) -> u64 {
        self.load_handling_ns + (bytes as f64 * self.load_handling_ns_per_byte).round() as u64
    }

    /// Least that handling `bytes` takes from computing, in however few loads they come.
    pub fn handling_ns(&self, bytes: u64) -> u64 {
        to_ns(bytes as f64 * self.load_handling_ns_per_byte / 1e9)
    }

    /// Time of a whole step, without overhead.
    pub fn step_ns(&self, index: usize, step: &StepSpec) -> u64 {
        match self.step_ns.get(index) {
            Some(&measured) if measured > 0 => measured,
            _ => {
                let arithmetic = step.flops as f64 / self.flops_per_second;
                let memory = step.touched_bytes as f64 / self.memory_bytes_per_second;
                to_ns(arithmetic.max(memory))
            }
        }
    }

    /// Time of one compute of a plan.
    pub fn compute_ns(&self, workload: &Workload, compute: &Compute) -> u64 {
        let reads_rows = compute.weights.table.is_none();
        self.slice_ns(workload, compute.step, compute.panels, reads_rows)
    }

    /// Time of a slice of a step: its share of the step, overhead, and the reading of table rows when
    /// the step does that itself.
    pub fn slice_ns(
        &self,
        workload: &Workload,
        id: StepId,
        panels: PanelRange,
        reads_rows: bool,
    ) -> u64 {
        let step = &workload.steps[id.index()];
        let whole = self.step_ns(id.index(), step);
        let mut ns = self.compute_overhead_ns;
        if panels.begin > 0 {
            // The first slice's share is part of the step's own time.
            ns += to_ns(step.slice_touched_bytes as f64 / self.memory_bytes_per_second);
        }
        ns += match step.panels {
            None => whole,
            Some(p) => {
                let (granule, len) = (p.granule.max(1), panels.len());
                // The last slice of a step ends where the step ends: its tail is not ragged by choice.
                let ragged = if panels.end == p.panels {
                    0
                } else {
                    len % granule
                };
                let weighted = f64::from(len - ragged) + f64::from(ragged) * self.ragged_slowdown;
                if len != p.panels {
                    ns += self.slice_overhead_ns;
                }
                let least = self.least_slice_ns.get(id.index()).copied();
                let share = (whole as f64 * weighted / f64::from(p.panels.max(1))) as u64;
                share.max(least.unwrap_or(0).min(whole))
            }
        };
        if let (Some(rows), true) = (step.rows, reads_rows) {
            ns += self.request_latency_ns + self.transfer_ns(rows.rows_workspace_bytes);
        }
        ns
    }
}

/// Seconds to nanoseconds. No rate (0/0) is no time; and no action takes longer than [`LONGEST_NS`], so
/// that sums over any plan do not overflow, whatever the numbers were.
fn to_ns(seconds: f64) -> u64 {
    rounded_ns((seconds * 1e9).min(LONGEST_NS))
}

const LONGEST_NS: f64 = 1e12;

/// To the nearest; not `f64::round`, which is a call where the processor's own rounding may not be used.
pub(crate) fn rounded_ns(ns: f64) -> u64 {
    (ns + 0.5) as u64
}
