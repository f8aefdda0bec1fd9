//! Measures the storage under a file, and the checksum: `store_speed FILE [MIB_PER_MEASUREMENT]`.

use neap_store::{BLOCK, IoMode, Verifier, measure_bandwidth};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().ok_or("which file?")?);
    let mib: u64 = arguments.next().map_or(Ok(256), |text| text.parse())?;
    println!("| source | request | depth | GB/s | us per read |");
    println!("|---|---:|---:|---:|---:|");
    for (request, depth) in [
        (4 << 10, 1),
        (4 << 10, 32),
        (64 << 10, 8),
        (128 << 10, 16),
        (256 << 10, 8),
        (512 << 10, 1),
        (512 << 10, 4),
        (512 << 10, 16),
        (1 << 20, 2),
        (1 << 20, 8),
        (2 << 20, 4),
        (4 << 20, 4),
    ] {
        for mode in [IoMode::Uring, IoMode::Pread] {
            let total = (mib << 20).min(20_000 * request as u64);
            let mut rates = Vec::new();
            let mut latencies = Vec::new();
            for _ in 0..3 {
                let measured = measure_bandwidth(&path, mode, request, depth, total)?;
                rates.push(measured.bytes_per_second());
                latencies.push(measured.ns_per_read());
            }
            rates.sort_by(f64::total_cmp);
            latencies.sort_by(f64::total_cmp);
            println!(
                "| {mode:?} | {} KiB | {depth} | {:.2} | {:.1} |",
                request >> 10,
                rates[1] / 1e9,
                latencies[1] / 1e3
            );
        }
    }
    let data = vec![0x5Au8; 4096 * BLOCK];
    let mut best = f64::MAX;
    for _ in 0..10 {
        let mut verifier = Verifier::from_data(0, &data)?;
        let start = Instant::now();
        verifier.verify(0, black_box(&data))?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("checksum: {:.2} GB/s", data.len() as f64 / best / 1e9);
    Ok(())
}
