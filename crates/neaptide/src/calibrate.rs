//! Costs of this machine: the compute rate from a millisecond of work, the rest estimated.

use neap_kernels::epilogue::Epilogue;
use neap_kernels::linear::{LinearShape, linear};
use neap_kernels::parallel::Serial;
use neap_kernels::simd::Isa;
use neap_sim::CostProfile;
use std::time::Instant;

/// Share of the rate of a small product that whole layers reach, with their borders and epilogues.
const LAYER_EFFICIENCY: f64 = 0.8;

/// Bytes per second that one core streams from memory, about; more cores share the bus.
const STREAM_BYTES_PER_SECOND: f64 = 12e9;

/// Takes a few milliseconds, and a few hundred KiB that are gone when it returns.
pub(crate) fn estimate(threads: usize) -> CostProfile {
    let threads = threads as f64;
    CostProfile {
        flops_per_second: flops_per_core() * LAYER_EFFICIENCY * threads,
        memory_bytes_per_second: STREAM_BYTES_PER_SECOND * threads.sqrt(),
        ..CostProfile::default()
    }
}

/// Best of a few runs of a product that fits the second-level cache.
fn flops_per_core() -> f64 {
    const M: usize = 48;
    const K: usize = 256;
    const N: usize = 128;
    let shape = LinearShape::dense(M, K, N);
    let panels = shape.panels();
    let weights = vec![0.5f32; panels * neap_kernels::panel::panel_floats(K)];
    let (a, mut out) = (vec![0.5f32; M * K], vec![0.0f32; M * N]);
    let isa = Isa::detect();
    let mut best = f64::MAX;
    for _ in 0..20 {
        let started = Instant::now();
        linear(
            isa,
            &Serial,
            &shape,
            0..panels,
            &weights,
            &a,
            &mut out,
            Epilogue::default(),
        )
        .expect("the shape is right");
        best = best.min(started.elapsed().as_secs_f64());
    }
    std::hint::black_box(&out);
    (2 * M * K * N) as f64 / best.max(1e-9)
}
