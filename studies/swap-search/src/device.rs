//! `Device`: how fast tensors move between fast and backing memory.

use serde::{Deserialize, Serialize};

/// A link that carries both ways at once, but not at twice the speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// While nothing moves the other way.
    pub one_way_bytes_per_second: f64,
    /// Both ways together, while something moves each way.
    pub both_ways_bytes_per_second: f64,
    /// Before the first byte of each transfer.
    pub transfer_latency_ns: u64,
}

impl Device {
    /// NVIDIA V100 on PCIe 3.0 ×16 as SwapAdvisor measured it (Section 6.1): 12 GB/s one way, 20 GB/s both
    /// ways. 10 µs to start a copy is the usual cost of an asynchronous copy with its event.
    pub const V100: Device = Device {
        one_way_bytes_per_second: 12e9,
        both_ways_bytes_per_second: 20e9,
        transfer_latency_ns: 10_000,
    };

    /// Time of one transfer by itself.
    pub fn transfer_ns(&self, bytes: u64) -> f64 {
        self.transfer_latency_ns as f64 + bytes as f64 / self.one_way_bytes_per_second * 1e9
    }
}
