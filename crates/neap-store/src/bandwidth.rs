//! Measuring what the storage gives: for the planner's cost profile and for benchmarks.

use crate::{
    AlignedBuf, DirectFile, IoMode, LoadTag, PreadConfig, PreadSource, Source, StoreError,
    UringConfig, UringSource, is_whole_blocks,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory for requests is in whole pages of this size, where the kernel has any: storage reads into those as into
/// the arena of a session.
pub const LARGE_PAGE_BYTES: usize = 2 << 20;

/// What is smaller takes as much as it says: it shows latency.
const LEAST_LARGE_BYTES: usize = 64 << 10;

/// A measured rate.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    pub bytes: u64,
    pub elapsed: Duration,
    /// Reads that the bytes came in.
    pub reads: u64,
}

impl Bandwidth {
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Time per read; the latency of one when the depth was 1.
    pub fn ns_per_read(&self) -> f64 {
        self.elapsed.as_nanos() as f64 / (self.reads.max(1)) as f64
    }
}

/// Reads up to `total_bytes` of the file at `path` in requests of `request_bytes`, `depth` of
/// them at once, and tells the rate. Whole passes are made over files that are shorter. Takes memory for the
/// requests, from 64 KiB on in whole large pages of [`LARGE_PAGE_BYTES`].
///
/// # Errors
/// [`StoreError`] where the file cannot be opened or read, or the requests are not whole blocks.
pub fn measure_bandwidth(
    path: &Path,
    mode: IoMode,
    request_bytes: usize,
    depth: usize,
    total_bytes: u64,
) -> Result<Bandwidth, StoreError> {
    let file = Arc::new(DirectFile::open(path)?);
    let len_bytes = file.len_bytes();
    let uring = |file| {
        let config = UringConfig {
            depth,
            piece_bytes: request_bytes,
            ..UringConfig::default()
        };
        UringSource::new(file, config).map(|s| Box::new(s) as Box<dyn Source>)
    };
    let pread = |file| {
        let config = PreadConfig {
            workers: depth,
            piece_bytes: request_bytes,
            ..PreadConfig::default()
        };
        PreadSource::new(file, config).map(|s| Box::new(s) as Box<dyn Source>)
    };
    let mut source = match mode {
        IoMode::Uring => uring(file)?,
        IoMode::Pread | IoMode::Cached => pread(file)?,
        IoMode::Auto if file.is_direct() => uring(file.clone()).or_else(|_| pread(file))?,
        IoMode::Auto => pread(file)?,
    };
    measure_source_bandwidth(&mut *source, len_bytes, request_bytes, depth, total_bytes)
}

/// As [`measure_bandwidth`], over a source of a file of `file_len_bytes`. The source is idle.
///
/// # Errors
/// As [`measure_bandwidth`].
pub fn measure_source_bandwidth(
    source: &mut dyn Source,
    file_len_bytes: u64,
    request_bytes: usize,
    depth: usize,
    total_bytes: u64,
) -> Result<Bandwidth, StoreError> {
    let requests = total_bytes / request_bytes.max(1) as u64;
    let depth = depth.min(requests as usize);
    let reader = Reader::new(file_len_bytes, request_bytes, depth)?;
    reader.read(source, total_bytes).map(|(_, rate)| rate)
}

/// Memory to read into again and again, as the arena of a session.
///
/// ```text
///   mapped   │·····│▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│·······│
///                  ^ multiple of 2 MiB     touched, in large pages
/// ```
pub struct Reader {
    memory: AlignedBuf,
    /// Bytes of `memory` before what is touched.
    skipped_bytes: usize,
    depth: usize,
    request_bytes: usize,
    requests_in_file: u64,
}

impl Reader {
    /// For `depth` requests at once, in a file of `file_len_bytes`.
    ///
    /// # Errors
    /// [`StoreError::InvalidUse`] where requests are not whole blocks or do not fit the file, and where memory is
    /// short.
    pub fn new(
        file_len_bytes: u64,
        request_bytes: usize,
        depth: usize,
    ) -> Result<Reader, StoreError> {
        if request_bytes == 0 || !is_whole_blocks(request_bytes as u64) || depth == 0 {
            return Err(StoreError::InvalidUse {
                what: "requests to measure must be whole blocks, at least one at a time",
            });
        }
        let memory_bytes = request_bytes
            .checked_mul(depth)
            .ok_or(StoreError::InvalidUse {
                what: "the requests to measure do not fit in memory",
            })?;
        let is_large = memory_bytes >= LEAST_LARGE_BYTES;
        let spare_bytes = if is_large { LARGE_PAGE_BYTES } else { 0 };
        // At least so much that there can be a whole large page in it.
        let whole_bytes = match is_large {
            true => memory_bytes.checked_next_multiple_of(LARGE_PAGE_BYTES),
            false => Some(memory_bytes),
        };
        let mapped_bytes = whole_bytes.and_then(|b| b.checked_add(spare_bytes));
        let mut memory = AlignedBuf::zeroed(mapped_bytes.unwrap_or(usize::MAX))?;
        let mut skipped_bytes = 0;
        if is_large {
            memory.prefer_large_pages();
            skipped_bytes = memory.as_ptr().align_offset(LARGE_PAGE_BYTES);
        }
        // Pages are touched before any clock starts.
        memory[skipped_bytes..skipped_bytes + memory_bytes].fill(1);
        Ok(Reader {
            memory,
            skipped_bytes,
            depth,
            request_bytes,
            requests_in_file: file_len_bytes / request_bytes as u64,
        })
    }

    /// Reads `total_bytes`, in whole passes over a file that is shorter. The source is idle.
    ///
    /// # Errors
    /// [`StoreError`] of the first read that fails.
    pub fn read(
        mut self,
        source: &mut dyn Source,
        total_bytes: u64,
    ) -> Result<(Reader, Bandwidth), StoreError> {
        let requests = total_bytes / self.request_bytes as u64;
        if self.requests_in_file == 0 || requests == 0 || source.in_flight() != 0 {
            return Err(StoreError::InvalidUse {
                what: "the file and the amount to read must hold at least one request",
            });
        }
        let start = Instant::now();
        let outcome = run_requests(
            source,
            (
                self.memory.as_mut_ptr().wrapping_add(self.skipped_bytes),
                self.depth,
            ),
            self.request_bytes,
            self.requests_in_file,
            requests,
        );
        let elapsed = start.elapsed();
        if let Err(e) = source.drain() {
            // The kernel may still write to it.
            std::mem::forget(self.memory);
            return Err(e);
        }
        outcome?;
        let rate = Bandwidth {
            bytes: requests * self.request_bytes as u64,
            elapsed,
            reads: requests,
        };
        Ok((self, rate))
    }
}

/// Keeps so many slots of memory at `base` busy until all requests are done. After an error, some of them
/// may still be in flight.
fn run_requests(
    source: &mut dyn Source,
    (base, slots): (*mut u8, usize),
    request_bytes: usize,
    requests_in_file: u64,
    requests: u64,
) -> Result<(), StoreError> {
    let mut idle: Vec<u64> = (0..slots as u64).collect();
    let mut begun = 0;
    let mut completed = 0;
    while completed < requests {
        while begun < requests {
            let Some(slot) = idle.pop() else { break };
            let offset = begun % requests_in_file * request_bytes as u64;
            let dst = base.wrapping_add(slot as usize * request_bytes);
            // SAFETY: each slot has its own part of the caller's memory, is used again only after its
            // load was reported, and the caller drains the source before the memory goes.
            unsafe { source.submit(LoadTag(slot), offset, dst, request_bytes)? };
            begun += 1;
        }
        source.poll(true, &mut |tag| {
            idle.push(tag.0);
            completed += 1;
        })?;
    }
    Ok(())
}
