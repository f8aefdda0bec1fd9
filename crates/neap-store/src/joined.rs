//! Several sources as one: the bytes of each behind those of the one before.

use crate::source::check_read;
use crate::{LoadTag, RangeRead, Source, StoreError};

/// Reads of one source each; a read over the end of one is refused.
pub(crate) struct Joined {
    parts: Vec<Part>,
}

struct Part {
    begin: u64,
    end: u64,
    source: Box<dyn Source>,
}

impl Joined {
    /// Of whole blocks and their sources.
    pub fn new(sources: Vec<(u64, Box<dyn Source>)>) -> Joined {
        let mut begin = 0;
        let parts = sources.into_iter().map(|(len_bytes, source)| {
            let end = begin + len_bytes;
            let part = Part { begin, end, source };
            begin = end;
            part
        });
        Joined {
            parts: parts.collect(),
        }
    }

    /// The source that has a range, and where it begins there.
    fn find(&mut self, read: &RangeRead) -> Result<(&mut Part, u64), StoreError> {
        check_read(read, self.parts.last().map_or(0, |part| part.end))?;
        let after = self
            .parts
            .partition_point(|part| part.begin <= read.file_offset);
        let part = &mut self.parts[after - 1];
        let at = read.file_offset - part.begin;
        check_read(
            &RangeRead {
                file_offset: at,
                ..*read
            },
            part.end - part.begin,
        )?;
        Ok((part, at))
    }
}

impl Source for Joined {
    unsafe fn submit(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        let read = RangeRead {
            file_offset,
            dst,
            len_bytes,
        };
        let (part, at) = self.find(&read)?;
        // SAFETY: the caller's to vouch for.
        unsafe { part.source.submit(tag, at, dst, len_bytes) }
    }

    fn flush(&mut self) {
        self.parts.iter_mut().for_each(|part| part.source.flush());
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        let mut has_reported = false;
        for part in &mut self.parts {
            part.source.poll(false, &mut |tag| {
                has_reported = true;
                done(tag);
            })?;
        }
        if !wait || has_reported {
            return Ok(());
        }
        // Loads come in the order of the files, so the first that has some reports first.
        let busy = self.parts.iter_mut().find(|p| p.source.in_flight() > 0);
        match busy {
            Some(part) => part.source.poll(true, done),
            None => Err(StoreError::NothingInFlight),
        }
    }

    fn in_flight(&self) -> usize {
        self.parts.iter().map(|part| part.source.in_flight()).sum()
    }

    unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        for read in reads {
            self.find(read)?;
        }
        for part in &mut self.parts {
            let mine = reads
                .iter()
                .filter(|read| (part.begin..part.end).contains(&read.file_offset));
            let mine: Vec<RangeRead> = mine
                .map(|read| RangeRead {
                    file_offset: read.file_offset - part.begin,
                    ..*read
                })
                .collect();
            // SAFETY: the caller's to vouch for.
            unsafe { part.source.read_ranges(&mine)? };
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        self.parts
            .first()
            .map_or("empty", |part| part.source.name())
    }
}
