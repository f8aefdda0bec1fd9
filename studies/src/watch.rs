//! What the machine itself does while something is measured: how long the drive and the processors let a small probe wait.
//!
//! ```text
//!   probe   ├ sleeps 20 ms ┤├ reads 4 KiB ┤├ sleeps 20 ms ┤├ reads 4 KiB ┤ …
//! ```
//! A deadline that is missed while the probe waits as long is missed by the machine.

use anyhow::Result;
use neap_store::{AlignedBuf, DirectFile};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(20);
const BLOCK_BYTES: u64 = 4096;

/// A read that takes longer is a slow one.
const SLOW: Duration = Duration::from_millis(100);

/// What the probe saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watched {
    pub reads: u64,
    pub slowest_read_ms: f64,
    /// Reads that took longer than [`SLOW`].
    pub slow_reads: u64,
    /// By how much the probe woke too late, at most.
    pub latest_wake_ms: f64,
}

pub struct Watch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Watched>>,
}

impl Watch {
    /// Reads blocks of `file`, one after the other and round again, past the page cache.
    ///
    /// # Errors
    /// Where the file cannot be opened so.
    pub fn start(file: &Path) -> Result<Watch> {
        let file = DirectFile::open(file)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = is_over.clone();
        let thread = std::thread::spawn(move || probe(&file, &seen));
        Ok(Watch { is_over, thread })
    }

    /// # Errors
    /// The probe's own.
    pub fn stop(self) -> Result<Watched> {
        self.is_over.store(true, Relaxed);
        let ended = self.thread.join();
        ended.map_err(|_| anyhow::anyhow!("the probe panicked"))?
    }
}

fn probe(file: &DirectFile, is_over: &AtomicBool) -> Result<Watched> {
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES as usize)?;
    let blocks = (file.len_bytes() / BLOCK_BYTES).max(1);
    let mut watched = Watched::default();
    while !is_over.load(Relaxed) {
        let asleep = Instant::now();
        std::thread::sleep(PAUSE);
        let late = asleep.elapsed().saturating_sub(PAUSE);
        watched.latest_wake_ms = watched.latest_wake_ms.max(late.as_secs_f64() * 1e3);
        // Far apart, so that no drive has read it ahead.
        let at = watched.reads.wrapping_mul(7919) % blocks * BLOCK_BYTES;
        let reading = Instant::now();
        file.read_exact_at(at, &mut block)?;
        let took = reading.elapsed();
        watched.reads += 1;
        watched.slow_reads += u64::from(took > SLOW);
        watched.slowest_read_ms = watched.slowest_read_ms.max(took.as_secs_f64() * 1e3);
    }
    Ok(watched)
}

impl Watched {
    /// One sentence or two for a page.
    pub fn told(&self) -> String {
        format!(
            "Meanwhile a probe of its own read 4 KiB every 20 ms, {} times: the slowest read took {:.0} ms, {} took longer than {} ms, and \
             it woke up to {:.0} ms late.",
            self.reads,
            self.slowest_read_ms,
            self.slow_reads,
            SLOW.as_millis(),
            self.latest_wake_ms,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_reads_until_it_is_stopped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1u8; 3 * BLOCK_BYTES as usize]).expect("written");
        let watch = Watch::start(&path).expect("started");
        std::thread::sleep(5 * PAUSE);
        let watched = watch.stop().expect("stopped");
        assert!(watched.reads > 0, "{watched:?}");
        assert!(watched.slowest_read_ms > 0.0, "{watched:?}");
        assert!(watched.told().contains(" times"), "{}", watched.told());
    }
}
