//! Costs of this machine, estimated before anything was measured.

use neap_kernels::simd::Isa;
use neap_sim::CostProfile;

/// From the instruction set and thread count. Rates are what this project's kernels reach on
/// current server and laptop cores, not peaks.
pub(crate) fn estimate(threads: usize) -> CostProfile {
    let flops_per_core = match Isa::detect().name() {
        "avx512" => 120e9,
        "avx2" => 60e9,
        "neon" => 25e9,
        _ => 4e9,
    };
    CostProfile {
        flops_per_second: flops_per_core * threads as f64,
        memory_bytes_per_second: 12e9 * (threads as f64).sqrt(),
        ..CostProfile::default()
    }
}
