//! What storage gives a benchmark's runs: as many bytes as they load, in the engine's own requests.
//!
//! A drive may give more for a moment after rest than it does for long. A bound by what it gives in a short
//! burst is one that no plan can reach; so the same rest comes before, and the same first part is not counted.

use crate::peer::REST;
use anyhow::{Result, bail};
use neap_store::{
    DirectFile, Source, ThrottledSource, UringConfig, UringSource, measure_source_bandwidth,
};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// Less does not tell a rate.
const LEAST_BYTES: u64 = 32 << 20;

/// The rate, in bytes per second, at which `runs` runs of a turn could load after the first; `throttle` as
/// the engine's.
pub fn turn(packed: &Path, throttle: Option<u64>, bytes_per_run: u64, runs: usize) -> Result<f64> {
    let file = Arc::new(DirectFile::open(packed)?);
    let file_bytes = file.len_bytes();
    let config = UringConfig::default();
    // Whole requests, of which even a small file holds one.
    let request_bytes = config.piece_bytes.min((file_bytes / 4096 * 4096) as usize);
    let mut source: Box<dyn Source> = Box::new(UringSource::new(file, config)?);
    if let Some(rate) = throttle {
        source = Box::new(ThrottledSource::new(source, rate)?);
    }
    let least = LEAST_BYTES / (runs as u64 + 1);
    let per_run = bytes_per_run.max(least).max(request_bytes as u64);
    std::thread::sleep(REST);
    let mut read = |bytes: u64| {
        measure_source_bandwidth(&mut *source, file_bytes, request_bytes, config.depth, bytes)
    };
    read(per_run)?;
    Ok(read(per_run * runs as u64)?.bytes_per_second())
}

/// Answers `read BYTES_PER_RUN RUNS`.
pub fn reader(packed: &Path, throttle: Option<u64>) -> Result<()> {
    println!("{}", json!({ "ready": true }));
    for line in std::io::stdin().lines() {
        let line = line?;
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["read", bytes, runs] => {
                let rate = turn(packed, throttle, bytes.parse()?, runs.parse()?)?;
                println!("{}", json!({ "bytes_per_second": rate }));
            }
            ["quit"] => break,
            _ => bail!("unknown command: {line}"),
        }
    }
    Ok(())
}
