//! A first impression of a storage, in milliseconds: its rate, its latency, and how it reports.
//!
//! ```text
//!   alone      ├── a ──┤
//!   followed   ├── a ──┼────── b ──────┤       b is handed over while a is on its way
//!                      ^               ^
//!              reported here,      or not before this: storage that reports no read before all are
//!              as one would think  done that it has in hand, as some virtual drives do
//! ```

use crate::{AlignedBuf, DirectFile, LoadTag, Source, StoreError, UringConfig, UringSource};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What is read at a time: `a` is one of these, `b` is three.
const REQUEST_BYTES: usize = 512 << 10;
const REQUESTS: usize = 4;

/// Rounds of both readings. The lower quartile of their times counts: what others read meanwhile is not the
/// storage's manner.
const ROUNDS: usize = 8;

/// Memory that [`probe`] takes for a moment: one huge page, which needs not begin where memory does.
pub const PROBE_MEMORY_BYTES: u64 = 3 << 20;

/// What a storage is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impression {
    pub bytes_per_second: f64,
    /// What one read takes beside moving its bytes.
    pub latency_ns: u64,
    /// A read is not reported before all are done that were handed over meanwhile.
    pub reports_together: bool,
}

/// Reads about 20 MiB of the file at `path` by io_uring. Files that are shorter than 2 MiB, or cannot be
/// read so, are an error.
///
/// # Errors
/// [`StoreError`] where the file is shorter than 2 MiB or cannot be read by io_uring.
pub fn probe(path: &Path) -> Result<Impression, StoreError> {
    let file = Arc::new(DirectFile::open(path)?);
    let stretches = file.len_bytes() / (REQUESTS * REQUEST_BYTES) as u64;
    if stretches == 0 {
        return Err(StoreError::InvalidUse {
            what: "the file is too short to tell how fast it is read",
        });
    }
    let config = UringConfig {
        piece_bytes: REQUEST_BYTES,
        ..UringConfig::default()
    };
    let mut source = UringSource::new(file, config)?;
    let mut memory = AlignedBuf::zeroed(REQUESTS * REQUEST_BYTES)?;
    // As the arena of a session. Pages are touched before the clock starts.
    memory.prefer_large_pages();
    memory.fill(1);
    let mut times = Times::default();
    for round in 0..ROUNDS as u64 {
        let offset = round % stretches * (REQUESTS * REQUEST_BYTES) as u64;
        if let Err(e) = times.take(&mut source, &mut memory, offset) {
            if source.drain().is_err() {
                // The kernel may still write to it.
                std::mem::forget(memory);
            }
            return Err(e);
        }
    }
    Ok(times.impression())
}

/// Nanoseconds from handing over `a`.
#[derive(Default)]
struct Times {
    alone: Vec<u64>,
    first: Vec<u64>,
    all: Vec<u64>,
}

impl Times {
    /// One round. After an error reads may be in flight.
    fn take(
        &mut self,
        source: &mut dyn Source,
        memory: &mut AlignedBuf,
        offset: u64,
    ) -> Result<(), StoreError> {
        let base = memory.as_mut_ptr();
        let submit = |source: &mut dyn Source, n: usize| {
            let at = n * REQUEST_BYTES;
            // SAFETY: each has its own part of `memory`, which the caller keeps until nothing is in
            // flight and in which nothing is read.
            unsafe {
                source.submit(
                    LoadTag(n as u64),
                    offset + at as u64,
                    base.wrapping_add(at),
                    REQUEST_BYTES,
                )
            }
        };
        let since = |start: Instant| start.elapsed().as_nanos() as u64;
        let start = Instant::now();
        submit(source, 0)?;
        source.poll(true, &mut |_| ())?;
        let alone = since(start);
        let start = Instant::now();
        submit(source, 0)?;
        source.flush();
        while since(start) < alone / 3 {
            std::hint::spin_loop();
        }
        for n in 1..REQUESTS {
            submit(source, n)?;
        }
        source.flush();
        let (mut first, mut reported) = (0, 0);
        while reported < REQUESTS {
            source.poll(true, &mut |tag| {
                reported += 1;
                if tag == LoadTag(0) {
                    first = since(start);
                }
            })?;
        }
        self.alone.push(alone);
        self.first.push(first);
        self.all.push(since(start));
        Ok(())
    }

    fn impression(mut self) -> Impression {
        let [alone, first, all] = [&mut self.alone, &mut self.first, &mut self.all].map(|times| {
            times.sort_unstable();
            times[times.len() / 4]
        });
        // The rest took this much longer: no latency in that.
        let rest_ns = all.saturating_sub(alone).max(1);
        let ns_per_byte = rest_ns as f64 / ((REQUESTS - 1) * REQUEST_BYTES) as f64;
        let moving_ns = (ns_per_byte * REQUEST_BYTES as f64) as u64;
        Impression {
            bytes_per_second: 1e9 / ns_per_byte,
            latency_ns: alone.saturating_sub(moving_ns),
            // Reported by itself, it would be there after a quarter of the time.
            reports_together: first as f64 > 0.75 * all as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn impression(alone: u64, first: u64, all: u64) -> Impression {
        let times = Times {
            alone: vec![alone, alone * 3, alone],
            first: vec![first; 3],
            all: vec![all; 3],
        };
        times.impression()
    }

    #[test]
    fn rate_and_latency_come_from_what_more_takes_longer() {
        let bytes = REQUEST_BYTES as u64;
        let found = impression(100_000 + bytes, 100_000 + bytes, 100_000 + 4 * bytes);
        assert_eq!(found.latency_ns, 100_000);
        assert!((found.bytes_per_second - 1e9).abs() < 1.0);
        assert!(!found.reports_together);
        assert!(impression(bytes, 4 * bytes, 4 * bytes).reports_together);
    }

    #[test]
    fn a_real_file_gives_an_impression_and_a_short_one_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![3u8; 5 << 20]).unwrap();
        // Where io_uring may not be used there is nothing to see.
        match probe(&path) {
            Ok(found) => {
                assert!(found.bytes_per_second > 1e6 && found.bytes_per_second.is_finite())
            }
            Err(e) => assert!(matches!(e, StoreError::File { .. }), "{e}"),
        }
        std::fs::write(&path, vec![3u8; 1 << 20]).unwrap();
        assert!(matches!(probe(&path), Err(StoreError::InvalidUse { .. })));
    }
}
