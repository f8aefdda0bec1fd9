//! Estimates in milliseconds: the rate of one product in cache, a short read of the packed file, and
//! experience for the rest.

use crate::options::RunOptions;
use neap_kernels::epilogue::Epilogue;
use neap_kernels::linear::{LinearShape, linear};
use neap_kernels::parallel::Serial;
use neap_kernels::simd::Isa;
use neap_runtime::DeviceRates;
use neap_sim::CostProfile;
use neap_store::{IoMode, measure_bandwidth, probe};
use std::path::Path;
use std::time::Instant;

/// Share of the rate of a small product that whole layers reach, with their borders and epilogues.
const LAYER_EFFICIENCY: f64 = 0.9;

/// Bytes per second that one core streams, about: activations of most layers lie in its caches. More cores share the bus.
const STREAM_BYTES_PER_SECOND: f64 = 24e9;

/// Reads where there is no io_uring.
const READ_BYTES: usize = 512 << 10;
const READS: usize = 4;
const PROBE_BYTES: u64 = 8 << 20;

/// What an estimate of latency is believed to be at least and at most.
const LEAST_LATENCY_NS: u64 = 20_000;
const MOST_LATENCY_NS: u64 = 1_000_000;

/// Share of the rate at rest that storage gives while steps compute.
const BUSY_EFFICIENCY: f64 = 0.82;

/// A thread that computes notices later than one that waits what has arrived: it looks between its tasks.
const NOTICE_NS: u64 = 50_000;

/// Loads handed over together where storage reports them together: the larger, the less its latency is
/// felt, and the longer the first of them waits for the last.
pub(super) const GROUP_BYTES: u64 = 4 << 20;

/// Takes a few milliseconds, and memory that is gone when it returns: a few hundred KiB, or
/// [`neap_store::PROBE_MEMORY_BYTES`] with `packed`, the file that weights would be read from.
pub(super) fn estimate(options: &RunOptions, packed: Option<(&Path, IoMode)>) -> CostProfile {
    let device = options.accelerator.as_ref().and_then(|a| a.rates());
    let mut costs = match device {
        Some(rates) => of_device(&rates),
        None => of_processor(options.threads as f64, options.isa),
    };
    // A file too short to measure is not worth an error: it is read in no time.
    if let Some((path, io)) = packed {
        storage(&mut costs, path, io);
    }
    costs
}

fn of_processor(threads: f64, isa: Isa) -> CostProfile {
    CostProfile {
        flops_per_second: flops_per_core(isa) * LAYER_EFFICIENCY * threads,
        memory_bytes_per_second: STREAM_BYTES_PER_SECOND * threads.sqrt(),
        ..CostProfile::default()
    }
}

fn of_device(rates: &DeviceRates) -> CostProfile {
    CostProfile {
        flops_per_second: rates.flops_per_second,
        memory_bytes_per_second: rates.memory_bytes_per_second,
        compute_overhead_ns: rates.job_overhead_ns,
        // A slice is one job more, and its threads wait for no others of the session's.
        slice_overhead_ns: 0,
        ..CostProfile::default()
    }
}

/// A file too short to measure is not worth an error: it is read in no time.
fn storage(costs: &mut CostProfile, path: &Path, io: IoMode) {
    let found = match io {
        IoMode::Auto | IoMode::Uring => probe(path).ok(),
        IoMode::Pread | IoMode::Cached => None,
    };
    if let Some(found) = found {
        costs.storage_bytes_per_second = found.bytes_per_second * BUSY_EFFICIENCY;
        costs.request_latency_ns =
            NOTICE_NS + found.latency_ns.clamp(LEAST_LATENCY_NS, MOST_LATENCY_NS);
        if found.reports_together {
            costs.group_bytes = GROUP_BYTES;
        }
    } else if let Ok(rate) = measure_bandwidth(path, io, READ_BYTES, READS, PROBE_BYTES) {
        costs.storage_bytes_per_second = rate.bytes_per_second() * BUSY_EFFICIENCY;
    }
}

/// Best of a few runs of a product that fits the second-level cache.
fn flops_per_core(isa: Isa) -> f64 {
    const M: usize = 48;
    const K: usize = 256;
    const N: usize = 128;
    let shape = LinearShape::dense(M, K, N);
    let panels = shape.panels();
    let weights = vec![0.5f32; panels * neap_kernels::panel::panel_floats(K)];
    let (a, mut out) = (vec![0.5f32; M * K], vec![0.0f32; M * N]);
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
