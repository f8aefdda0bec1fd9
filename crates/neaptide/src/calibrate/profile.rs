//! What is known of a machine: rates, storage, and times of steps. Plain data, checked when it is read.

use neap_compile::StepTimes;
use neap_sim::CostProfile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Steps kept for one machine; a hundred networks have fewer.
pub(super) const MOST_STEPS: usize = 8192;

/// No step and no latency is longer: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// No group is larger: its last byte would be waited for by the first.
const MOST_GROUP_BYTES: u64 = 1 << 30;

/// What a profile holds for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name and stepping of the processor.
    pub cpu: String,
    /// Instruction set that kernels use.
    pub isa: String,
    pub threads: u32,
    /// Device number of the file system with the packed model.
    pub device: u64,
}

/// Rates of computing, and what slices and loads take from it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ComputeRates {
    pub flops_per_second: f64,
    pub memory_bytes_per_second: f64,
    /// Of every compute.
    pub compute_overhead_ns: u64,
    /// Of every compute that is not its whole step, beside that.
    pub slice_overhead_ns: u64,
    pub load_handling_ns: u64,
    pub load_handling_ns_per_byte: f64,
}

/// Rates of storage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StorageRates {
    /// The rate that holds over gigabytes.
    pub sustained_bytes_per_second: f64,
    /// The best rate over a short time; devices lend it after rest.
    pub burst_bytes_per_second: f64,
    /// Time of one block.
    pub block_latency_ns: u64,
    /// What plans count with: rate and latency of the loads of a running plan. They begin as the
    /// sustained rate, and what a request takes above it when it is alone.
    pub load_bytes_per_second: f64,
    pub load_latency_ns: u64,
    /// No read is reported before all are done that storage has in hand: loads are handed over in groups of
    /// so many bytes then; 0 elsewhere.
    pub group_bytes: u64,
    pub points: Vec<StoragePoint>,
}

/// The rate at one size and number of requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StoragePoint {
    pub request_bytes: u64,
    pub depth: u32,
    pub bytes_per_second: f64,
}

/// Everything measured on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    pub machine: Machine,
    pub compute: ComputeRates,
    pub storage: StorageRates,
    pub(super) steps: BTreeMap<u64, u64>,
}

impl Profile {
    /// Steps whose times are known.
    pub fn step_count(&self) -> usize {
        self.steps.len()
    }

    /// As the simulator takes it; times of steps come with a program.
    pub(super) fn costs(&self) -> CostProfile {
        CostProfile {
            flops_per_second: self.compute.flops_per_second,
            memory_bytes_per_second: self.compute.memory_bytes_per_second,
            compute_overhead_ns: self.compute.compute_overhead_ns,
            slice_overhead_ns: self.compute.slice_overhead_ns,
            load_handling_ns: self.compute.load_handling_ns,
            load_handling_ns_per_byte: self.compute.load_handling_ns_per_byte,
            storage_bytes_per_second: self.storage.load_bytes_per_second,
            request_latency_ns: self.storage.load_latency_ns,
            group_bytes: self.storage.group_bytes,
            ..CostProfile::default()
        }
    }

    pub(super) fn times(self) -> StepTimes {
        StepTimes(self.steps.into())
    }

    /// Whether all numbers are such as a machine could have.
    pub(super) fn is_sane(&self) -> bool {
        let rate = |r: f64| (1e3..1e18).contains(&r);
        let time = |ns: u64| ns <= LONGEST_NS;
        let (c, s) = (&self.compute, &self.storage);
        rate(c.flops_per_second)
            && rate(c.memory_bytes_per_second)
            && rate(s.sustained_bytes_per_second)
            && rate(s.burst_bytes_per_second)
            && rate(s.load_bytes_per_second)
            && s.group_bytes <= MOST_GROUP_BYTES
            && s.points.len() <= 256
            && s.points.iter().all(|p| rate(p.bytes_per_second))
            && (0.0..1e6).contains(&c.load_handling_ns_per_byte)
            && [
                c.compute_overhead_ns,
                c.slice_overhead_ns,
                c.load_handling_ns,
                s.block_latency_ns,
                s.load_latency_ns,
            ]
            .into_iter()
            .all(time)
            && self.machine.cpu.len() <= 512
            && self.machine.isa.len() <= 64
            && self.steps.len() <= MOST_STEPS
            && self.steps.values().all(|&ns| ns > 0 && time(ns))
    }
}
