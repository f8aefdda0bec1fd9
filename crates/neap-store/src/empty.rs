//! A source with nothing in it, for programs that read no packed file.

use crate::{LoadTag, RangeRead, Source, StoreError};

/// Refuses every read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EmptySource;

fn refused(file_offset: u64, len_bytes: usize) -> StoreError {
    StoreError::OutOfRange {
        offset: file_offset,
        len_bytes: len_bytes as u64,
        limit_bytes: 0,
    }
}

impl Source for EmptySource {
    unsafe fn submit(
        &mut self,
        _: LoadTag,
        file_offset: u64,
        _: *mut u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        Err(refused(file_offset, len_bytes))
    }

    fn poll(&mut self, wait: bool, _: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        match wait {
            true => Err(StoreError::NothingInFlight),
            false => Ok(()),
        }
    }

    fn in_flight(&self) -> usize {
        0
    }

    unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        let first = reads.first();
        first.map_or(Ok(()), |r| Err(refused(r.file_offset, r.len_bytes)))
    }

    fn name(&self) -> &'static str {
        "empty"
    }
}
