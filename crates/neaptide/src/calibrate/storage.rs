//! What storage gives: by size and number of requests, for a moment and for long; and how it reports.

use super::profile::{StoragePoint, StorageRates};
use super::quick::GROUP_BYTES;
use crate::error::Result;
use neap_store::{IoMode, LARGE_PAGE_BYTES, PROBE_MEMORY_BYTES, measure_bandwidth, probe};
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK: usize = neap_store::BLOCK;

/// Sizes and depths of the table.
const REQUEST_BYTES: [usize; 4] = [64 << 10, 256 << 10, 512 << 10, 1 << 20];
const DEPTHS: [usize; 3] = [1, 4, 8];

/// Read for one point of the table, several times.
const POINT_BYTES: u64 = 8 << 20;
const ROUNDS: usize = 3;

/// Read at a time while waiting for the rate to settle.
const CHUNK_BYTES: u64 = 64 << 20;

/// The rate of the second half of this time is the sustained one: storage that lends a higher rate for a
/// moment after rest has used that up by then.
const SETTLE: Duration = Duration::from_millis(700);

/// Measures for about a second, with at most `memory_bytes`.
pub(super) fn measure(packed: &Path, io: IoMode, memory_bytes: u64) -> Result<StorageRates> {
    let rate = |request_bytes: usize, depth: usize, bytes: u64| {
        measure_bandwidth(packed, io, request_bytes, depth, bytes)
    };
    let file_bytes = std::fs::metadata(packed).map_or(0, |m| m.len());
    let fits = |request_bytes: usize, depth: usize| {
        let taken_bytes = (request_bytes * depth).next_multiple_of(LARGE_PAGE_BYTES) as u64;
        taken_bytes <= memory_bytes && request_bytes as u64 <= file_bytes
    };
    let block = rate(BLOCK, 1, 64 * BLOCK as u64)?;
    // The largest requests that there is room for, several at once, until the rate holds.
    let sizes = REQUEST_BYTES.into_iter().rev().skip(1);
    let request_bytes = sizes.clone().find(|&r| fits(r, 8)).unwrap_or(BLOCK);
    let started = Instant::now();
    let mut chunks = Vec::new();
    while chunks.len() < 4 || started.elapsed() < SETTLE {
        chunks.push(rate(request_bytes, 8, CHUNK_BYTES)?.bytes_per_second());
    }
    let burst = chunks.iter().copied().fold(0.0, f64::max);
    // Harmonic: the time that equal amounts took.
    let tail = &chunks[chunks.len() / 2..];
    let sustained = tail.len() as f64 / tail.iter().map(|r| 1.0 / r).sum::<f64>();
    let mut points = Vec::new();
    for request_bytes in REQUEST_BYTES {
        for depth in DEPTHS {
            if fits(request_bytes, depth) {
                let mut rates = Vec::with_capacity(ROUNDS);
                for _ in 0..ROUNDS {
                    rates.push(rate(request_bytes, depth, POINT_BYTES)?.bytes_per_second());
                }
                points.push(StoragePoint {
                    request_bytes: request_bytes as u64,
                    depth: depth as u32,
                    bytes_per_second: median(&mut rates),
                });
            }
        }
    }
    let block_latency_ns = block.ns_per_read() as u64;
    let alone = points.iter().filter(|p| p.depth == 1);
    let mut latencies: Vec<f64> = alone
        .map(|p| {
            let bytes = p.request_bytes as f64;
            (bytes / p.bytes_per_second - bytes / sustained) * 1e9
        })
        .collect();
    let load_latency_ns = match latencies.is_empty() {
        true => block_latency_ns,
        false => median(&mut latencies).max(0.0) as u64,
    };
    Ok(StorageRates {
        sustained_bytes_per_second: sustained,
        burst_bytes_per_second: burst,
        block_latency_ns,
        load_bytes_per_second: sustained,
        load_latency_ns,
        group_bytes: group_bytes(packed, io, memory_bytes),
        points,
    })
}

/// In groups of how many bytes loads are handed over, if storage reports reads together; only io_uring hands
/// several over at once.
fn group_bytes(packed: &Path, io: IoMode, memory_bytes: u64) -> u64 {
    if matches!(io, IoMode::Pread | IoMode::Cached) || memory_bytes < PROBE_MEMORY_BYTES {
        return 0;
    }
    match probe(packed) {
        Ok(found) if found.reports_together => GROUP_BYTES,
        // What cannot be seen has no groups.
        _ => 0,
    }
}

/// Of a few; not empty.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
