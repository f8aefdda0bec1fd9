//! How fast a spill file takes bytes and gives them back, and both at once; and how soon it gives back a few.

use crate::{AlignedBuf, BLOCK, IoMode, LoadTag, Spill, StoreError, open_spill};
use std::path::Path;
use std::time::{Duration, Instant};

const REQUEST_BYTES: usize = 1 << 20;
const REQUESTS: usize = 8;
const FILE_BYTES: u64 = 64 << 20;

/// Loads of one block, one after the other.
const SINGLES: u32 = 48;

/// No part takes longer: slow drives are asked for less.
const LONGEST: Duration = Duration::from_millis(400);

/// Memory that [`measure_spill`] takes for a moment.
pub const SPILL_PROBE_BYTES: u64 = (REQUESTS * REQUEST_BYTES) as u64 + (2 << 20);

/// Bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpillRates {
    pub loads: f64,
    pub stores: f64,
    /// Of loads and stores together, while both go on.
    pub both: f64,
    /// What a load of one block takes by itself, on average.
    pub latency: Duration,
}

#[derive(Clone, Copy)]
enum What {
    Loads,
    Stores,
    Both,
}

/// Writes and reads some hundreds of megabytes in a file in `folder` that has no name.
///
/// # Errors
/// As [`open_spill`], and of the first request that fails.
pub fn measure_spill(folder: &Path, mode: IoMode) -> Result<SpillRates, StoreError> {
    let mut file = open_spill(folder, FILE_BYTES, mode)?;
    let mut memory = AlignedBuf::zeroed(SPILL_PROBE_BYTES as usize)?;
    // As the arena of a session. Pages are touched before any clock starts.
    memory.prefer_large_pages();
    memory.fill(1);
    let found = rates(&mut *file, &mut memory);
    if found.is_err() && file.drain().is_err() {
        // The kernel may still write to it.
        std::mem::forget(memory);
    }
    found
}

fn rates(file: &mut dyn Spill, memory: &mut AlignedBuf) -> Result<SpillRates, StoreError> {
    // Space that was never written is slower.
    rate(file, memory, What::Stores)?;
    Ok(SpillRates {
        stores: rate(file, memory, What::Stores)?,
        loads: rate(file, memory, What::Loads)?,
        both: rate(file, memory, What::Both)?,
        latency: latency(file, memory)?,
    })
}

/// The mean and not the median: a plan has many small loads, and waits for the slow ones, too.
fn latency(file: &mut dyn Spill, memory: &mut AlignedBuf) -> Result<Duration, StoreError> {
    let started = Instant::now();
    let mut done = 0;
    while done < SINGLES && started.elapsed() < LONGEST {
        let offset =
            u64::from(done) * FILE_BYTES / u64::from(SINGLES) / BLOCK as u64 * BLOCK as u64;
        // SAFETY: nothing else is in flight, and the caller drains the file before the memory goes.
        unsafe { file.submit(LoadTag(0), offset, memory.as_mut_ptr(), BLOCK)? };
        file.flush();
        file.poll(true, &mut |_| ())?;
        done += 1;
    }
    Ok(started.elapsed() / done.max(1))
}

/// Moves as many bytes as the file has, or as time allows. After an error, some may be in flight.
fn rate(file: &mut dyn Spill, memory: &mut AlignedBuf, what: What) -> Result<f64, StoreError> {
    let base = memory.as_mut_ptr();
    let mut idle: Vec<u64> = (0..REQUESTS as u64).collect();
    let (mut begun, mut done) = (0, 0);
    let requests = FILE_BYTES / REQUEST_BYTES as u64;
    let started = Instant::now();
    loop {
        while begun < requests && started.elapsed() < LONGEST {
            let Some(slot) = idle.pop() else { break };
            let (offset, tag) = (begun * REQUEST_BYTES as u64, LoadTag(slot));
            let at = base.wrapping_add(slot as usize * REQUEST_BYTES);
            let stores = match what {
                What::Loads => false,
                What::Stores => true,
                What::Both => begun % 2 == 0,
            };
            // SAFETY: each slot has its own part of `memory`, is used again only after its request was reported, and the
            // caller drains the file before the memory goes.
            unsafe {
                match stores {
                    true => file.submit_write(tag, offset, at, REQUEST_BYTES)?,
                    false => file.submit(tag, offset, at, REQUEST_BYTES)?,
                }
            }
            begun += 1;
        }
        if file.in_flight() == 0 {
            break;
        }
        file.poll(true, &mut |tag| {
            idle.push(tag.0);
            done += 1;
        })?;
    }
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    Ok((done * REQUEST_BYTES) as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_gives_rates_and_none_an_error() {
        let folder = tempfile::tempdir_in(".").unwrap();
        let found = measure_spill(folder.path(), IoMode::Auto).unwrap();
        for rate in [found.loads, found.stores, found.both] {
            assert!(rate > 1e6 && rate.is_finite(), "{found:?}");
        }
        assert!(found.latency > Duration::ZERO, "{found:?}");
        let nowhere = folder.path().join("nowhere");
        assert!(matches!(
            measure_spill(&nowhere, IoMode::Auto),
            Err(StoreError::File { .. })
        ));
    }
}
