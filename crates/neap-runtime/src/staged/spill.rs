//! The file behind a ring: the packed one, which is only read, or the spill file.

use super::{SPILL_SLOTS, Staged};
use crate::own_memory::Link;
use neap_store::{LoadTag, RangeRead, Source, Spill, StoreError};

/// What reads, and maybe writes.
pub(crate) trait Io: Source {
    /// # Safety
    /// As [`Spill::submit_write`].
    unsafe fn write(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        src: *const u8,
        len_bytes: usize,
    ) -> Result<(), StoreError>;
}

impl Io for dyn Source {
    unsafe fn write(
        &mut self,
        _: LoadTag,
        _: u64,
        _: *const u8,
        _: usize,
    ) -> Result<(), StoreError> {
        Err(StoreError::InvalidUse {
            what: "the packed file is not written",
        })
    }
}

impl Io for dyn Spill {
    unsafe fn write(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        src: *const u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        // SAFETY: passed on.
        unsafe { self.submit_write(tag, file_offset, src, len_bytes) }
    }
}

/// The spill file of a session whose memory is a device's.
pub(crate) struct StagedSpill(Staged<dyn Spill>);

impl StagedSpill {
    /// # Errors
    /// As [`Staged::new`].
    pub(crate) fn new(spill: Box<dyn Spill>, link: Box<dyn Link>) -> Result<StagedSpill, String> {
        Staged::new(spill, link, SPILL_SLOTS).map(StagedSpill)
    }
}

impl Source for StagedSpill {
    unsafe fn submit(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        // SAFETY: passed on.
        unsafe { self.0.submit(tag, file_offset, dst, len_bytes, false) }
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        self.0.poll(wait, &mut |_, _| Ok(()), done)
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    /// To the host's memory: what was stored is read for others than steps.
    unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        // SAFETY: passed on.
        unsafe { self.0.io.read_ranges(reads) }
    }

    fn drain(&mut self) -> Result<(), StoreError> {
        self.0.drain()
    }

    fn name(&self) -> &'static str {
        self.0.name()
    }
}

impl Spill for StagedSpill {
    unsafe fn submit_write(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        src: *const u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        // SAFETY: passed on.
        unsafe { (self.0).submit(tag, file_offset, src.cast_mut(), len_bytes, true) }
    }

    fn len_bytes(&self) -> u64 {
        self.0.io.len_bytes()
    }
}
