//! Slower storage than there is: loads are reported no earlier than a drive of a given rate would end them.
//!
//! ```text
//!   drive       ├ load 1 ┤├ load 2 ┤
//!   as slow as  ├───── load 1 ─────┤├───── load 2 ─────┤      one after the other, from when it was submitted
//!   reported                       ▲                   ▲
//! ```
//! There is no burst after rest, and no grain of time in which limits are counted, unlike in control groups.

use crate::{LoadTag, RangeRead, Source, Spill, StoreError};
use std::time::{Duration, Instant};

/// Any source, no faster than so many bytes per second.
pub struct ThrottledSource<S: Source + ?Sized = dyn Source> {
    inner: Box<S>,
    bytes_per_second: u64,
    /// When the slow drive is done with everything submitted.
    idle_at: Instant,
    pending: Vec<Pending>,
}

struct Pending {
    tag: LoadTag,
    due: Instant,
    has_arrived: bool,
}

/// Loads in flight for which there is room from the start.
const CAPACITY: usize = 4096;

impl<S: Source + ?Sized> ThrottledSource<S> {
    /// # Errors
    /// [`StoreError::InvalidUse`] for a rate of nothing.
    pub fn new(inner: Box<S>, bytes_per_second: u64) -> Result<ThrottledSource<S>, StoreError> {
        if bytes_per_second == 0 {
            return Err(StoreError::InvalidUse {
                what: "storage that gives nothing can be waited for in vain only",
            });
        }
        Ok(ThrottledSource {
            inner,
            bytes_per_second,
            idle_at: Instant::now(),
            pending: Vec::with_capacity(CAPACITY),
        })
    }

    /// When the slow drive would have read so many bytes more.
    fn book(&mut self, bytes: usize) -> Instant {
        let ns = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second);
        let took = Duration::from_nanos(ns.min(u128::from(u64::MAX)) as u64);
        self.idle_at = self.idle_at.max(Instant::now()) + took;
        self.idle_at
    }

    fn check_room(&self) -> Result<(), StoreError> {
        if self.pending.len() < self.pending.capacity() {
            return Ok(());
        }
        // It would have to allocate.
        Err(StoreError::TooManyLoads { capacity: CAPACITY })
    }

    /// What the inner source has taken is on its way.
    fn submitted(&mut self, tag: LoadTag, len_bytes: usize) {
        let due = self.book(len_bytes);
        self.pending.push(Pending {
            tag,
            due,
            has_arrived: false,
        });
    }

    /// Asks the inner source what has arrived.
    fn receive(&mut self, wait: bool) -> Result<(), StoreError> {
        let pending = &mut self.pending;
        let result = self.inner.poll(wait, &mut |tag| {
            // Tags may repeat; the earliest of them arrives first.
            if let Some(p) = pending.iter_mut().find(|p| p.tag == tag && !p.has_arrived) {
                p.has_arrived = true;
            }
        });
        if let Err(StoreError::Read { tag: Some(tag), .. } | StoreError::Write { tag, .. }) =
            &result
        {
            let failed = |p: &Pending| p.tag == *tag && !p.has_arrived;
            if let Some(at) = pending.iter().position(failed) {
                pending.remove(at);
            }
        }
        result
    }

    /// Passes on what has arrived and is due; whether there was any.
    fn report(&mut self, done: &mut dyn FnMut(LoadTag)) -> bool {
        let now = Instant::now();
        let before = self.pending.len();
        self.pending.retain(|p| {
            let is_over = p.has_arrived && p.due <= now;
            if is_over {
                done(p.tag);
            }
            !is_over
        });
        self.pending.len() < before
    }
}

impl<S: Source + ?Sized> Source for ThrottledSource<S> {
    unsafe fn submit(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        self.check_room()?;
        // SAFETY: as the caller promises: the load is reported no earlier than `inner` reports it.
        unsafe { self.inner.submit(tag, file_offset, dst, len_bytes)? };
        self.submitted(tag, len_bytes);
        Ok(())
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        if wait && self.pending.is_empty() {
            return Err(StoreError::NothingInFlight);
        }
        self.receive(false)?;
        while !self.report(done) && wait {
            let arrived = self.pending.iter().filter(|p| p.has_arrived);
            match arrived.map(|p| p.due).min() {
                Some(due) => {
                    // In steps, so that what else arrives makes room in the inner source.
                    let left = due.saturating_duration_since(Instant::now());
                    std::thread::sleep(left.min(Duration::from_millis(1)));
                    self.receive(false)?;
                }
                None => self.receive(true)?,
            }
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        let bytes = reads.iter().map(|r| r.len_bytes).sum();
        let due = self.book(bytes);
        // SAFETY: as the caller promises.
        unsafe { self.inner.read_ranges(reads)? };
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        Ok(())
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }
}

impl<S: Spill + ?Sized> Spill for ThrottledSource<S> {
    unsafe fn submit_write(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        src: *const u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        self.check_room()?;
        // SAFETY: as the caller promises: the store is reported no earlier than `inner` reports it.
        unsafe { self.inner.submit_write(tag, file_offset, src, len_bytes)? };
        self.submitted(tag, len_bytes);
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }
}
