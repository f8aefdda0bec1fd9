//! Measures the storage under a file, and the checksum: `store_speed FILE [MIB_PER_MEASUREMENT]`.
//!
//! Columns: the median of three rates, the time per read and the processor time spent per
//! gigabyte, which is what loading takes away from computing.

use neap_store::{
    AlignedBuf, BLOCK, Bandwidth, DirectFile, LoadTag, PreadConfig, PreadSource, Source,
    StoreError, UringConfig, UringSource, Verifier, measure_source_bandwidth,
};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().ok_or("which file?")?);
    let mib: u64 = arguments.next().map_or(Ok(256), |text| text.parse())?;
    println!("| source | request | depth | GB/s | us per read | CPU ms per GB |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (request, depth) in [
        (4 << 10, 1),
        (4 << 10, 32),
        (64 << 10, 8),
        (128 << 10, 16),
        (256 << 10, 8),
        (512 << 10, 1),
        (512 << 10, 4),
        (512 << 10, 16),
        (1 << 20, 8),
        (4 << 20, 4),
    ] {
        let total = (mib << 20).min(20_000 * request as u64);
        for name in ["uring", "pread"] {
            let mut runs = Vec::new();
            for _ in 0..3 {
                let (mut source, len_bytes) = open(&path, name, request, depth)?;
                let cpu = cpu_seconds();
                let rate =
                    measure_source_bandwidth(&mut *source, len_bytes, request, depth, total)?;
                runs.push((rate, cpu_seconds() - cpu));
            }
            runs.sort_by_key(|run| run.0.elapsed);
            print_row(name, request, depth, &runs[1].0, runs[1].1);
        }
    }
    large_loads(&path, mib << 20)?;
    checksum()?;
    Ok(())
}

fn open(
    path: &Path,
    name: &str,
    piece_bytes: usize,
    depth: usize,
) -> Result<(Box<dyn Source>, u64), StoreError> {
    let file = Arc::new(DirectFile::open(path)?);
    let len_bytes = file.len_bytes();
    let source: Box<dyn Source> = if name == "uring" {
        let config = UringConfig {
            depth,
            piece_bytes,
            ..UringConfig::default()
        };
        Box::new(UringSource::new(file, config)?)
    } else {
        let config = PreadConfig {
            workers: depth,
            piece_bytes,
            ..PreadConfig::default()
        };
        Box::new(PreadSource::new(file, config)?)
    };
    Ok((source, len_bytes))
}

/// Loads of 8 MiB cut into pieces, as a session makes them.
fn large_loads(path: &Path, total_bytes: u64) -> Result<(), StoreError> {
    const LOAD_BYTES: usize = 8 << 20;
    const SLOTS: usize = 4;
    for _ in 0..2 {
        let file = Arc::new(DirectFile::open(path)?);
        let loads_in_file = file.len_bytes() / LOAD_BYTES as u64;
        let loads = (total_bytes / LOAD_BYTES as u64).max(SLOTS as u64);
        if loads_in_file == 0 {
            return Ok(());
        }
        let mut arena = AlignedBuf::zeroed(SLOTS * LOAD_BYTES)?;
        arena.fill(1);
        let base = arena.as_mut_ptr();
        let mut source = UringSource::new(file, UringConfig::default())?;
        let start = Instant::now();
        let cpu = cpu_seconds();
        let mut submitted = 0;
        let mut idle: Vec<u64> = (0..SLOTS as u64).collect();
        while submitted < loads || source.in_flight() > 0 {
            while submitted < loads {
                let Some(slot) = idle.pop() else { break };
                let offset = submitted % loads_in_file * LOAD_BYTES as u64;
                let dst = base.wrapping_add(slot as usize * LOAD_BYTES);
                // SAFETY: each slot holds one load at a time.
                unsafe { source.submit(LoadTag(slot), offset, dst, LOAD_BYTES)? };
                submitted += 1;
            }
            source.poll(true, &mut |tag| idle.push(tag.0))?;
        }
        let rate = Bandwidth {
            bytes: loads * LOAD_BYTES as u64,
            elapsed: start.elapsed(),
            reads: loads,
        };
        print_row(
            "uring, 8 MiB loads",
            512 << 10,
            64,
            &rate,
            cpu_seconds() - cpu,
        );
    }
    Ok(())
}

fn checksum() -> Result<(), StoreError> {
    for mib in [1, 64] {
        let data = vec![0x5Au8; mib << 20];
        let mut best = f64::MAX;
        for _ in 0..10 {
            let mut verifier = Verifier::from_data(0, &data)?;
            let start = Instant::now();
            verifier.verify(0, black_box(&data))?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        let rate = data.len() as f64 / best / 1e9;
        println!("checksum of {} blocks: {rate:.2} GB/s", data.len() / BLOCK);
    }
    Ok(())
}

fn print_row(name: &str, request: usize, depth: usize, rate: &Bandwidth, cpu_seconds: f64) {
    println!(
        "| {name} | {} KiB | {depth} | {:.2} | {:.1} | {:.0} |",
        request >> 10,
        rate.bytes_per_second() / 1e9,
        rate.ns_per_read() / 1e3,
        cpu_seconds * 1e3 / (rate.bytes as f64 / 1e9)
    );
}

/// Processor time of all threads so far, the kernel's part included.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
