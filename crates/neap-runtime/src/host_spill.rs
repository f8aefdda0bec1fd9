//! `HostSpill`: activations that leave a device's memory for the host's, where others go to a file.

use crate::own_memory::{Link, Transfer};
use neap_store::{LoadTag, RangeRead, Source, Spill, StoreError};
use std::collections::VecDeque;
use std::io;

/// On their way at once.
const MOST_MOVES: usize = 64;

pub(crate) struct HostSpill {
    link: Box<dyn Link>,
    /// In memory that the link has pinned.
    start: *mut u8,
    bytes: u64,
    /// By the ticket of their copy, 0 of those that are listed only; in order.
    moves: VecDeque<(LoadTag, u64)>,
    /// To be started all in one go.
    listed: Vec<Transfer>,
}

// SAFETY: the address is of memory that its link has pinned, which nobody else uses.
unsafe impl Send for HostSpill {}

impl HostSpill {
    /// # Errors
    /// Why the link pins not so much memory.
    pub(crate) fn new(mut link: Box<dyn Link>, bytes: u64) -> Result<HostSpill, String> {
        Ok(HostSpill {
            start: link.pin(bytes)?.start,
            link,
            bytes,
            moves: VecDeque::with_capacity(MOST_MOVES),
            listed: Vec::with_capacity(MOST_MOVES),
        })
    }

    /// Where bytes of the "file" are.
    fn at(&self, offset: u64, len_bytes: usize) -> Result<*mut u8, StoreError> {
        match offset.checked_add(len_bytes as u64) {
            Some(end) if end <= self.bytes => Ok(self.start.wrapping_add(offset as usize)),
            _ => Err(StoreError::OutOfRange {
                offset,
                len_bytes: len_bytes as u64,
                limit_bytes: self.bytes,
            }),
        }
    }

    fn list(&mut self, tag: LoadTag, transfer: Transfer) -> Result<(), StoreError> {
        if self.moves.len() == MOST_MOVES {
            return Err(StoreError::TooManyLoads {
                capacity: MOST_MOVES,
            });
        }
        self.listed.push(transfer);
        self.moves.push_back((tag, 0));
        Ok(())
    }

    fn start(&mut self) -> Result<(), StoreError> {
        if self.listed.is_empty() {
            return Ok(());
        }
        // SAFETY: whoever listed them promised it.
        let ticket = unsafe { self.link.copy(&self.listed) };
        self.listed.clear();
        let ticket = ticket.map_err(broken)?;
        let listed = self.moves.iter_mut().filter(|(_, ticket)| *ticket == 0);
        listed.for_each(|(_, of)| *of = ticket);
        Ok(())
    }
}

fn broken(reason: String) -> StoreError {
    StoreError::Broken {
        source: io::Error::other(reason),
    }
}

impl Source for HostSpill {
    unsafe fn submit(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        let from = self.at(file_offset, len_bytes)?.cast_const();
        self.list(
            tag,
            Transfer {
                from,
                to: dst,
                bytes: len_bytes as u64,
            },
        )
    }

    fn flush(&mut self) {
        // Where this fails, polling fails, too.
        let _ = self.start();
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        self.start()?;
        let Some(&(_, first)) = self.moves.front() else {
            return match wait {
                true => Err(StoreError::NothingInFlight),
                false => Ok(()),
            };
        };
        if first == 0 {
            return Err(broken("a copy was not started".into()));
        }
        let mut reached = self.link.reached().map_err(broken)?;
        if wait && reached < first {
            self.link.wait(first).map_err(broken)?;
            reached = first;
        }
        while let Some(&(tag, ticket)) = self.moves.front()
            && ticket <= reached
        {
            self.moves.pop_front();
            done(tag);
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.moves.len()
    }

    /// To the host's memory: what was stored is read for others than steps.
    unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        for read in reads {
            let from = self.at(read.file_offset, read.len_bytes)?;
            // SAFETY: the range lies in the pinned memory, where nothing is in flight; the destination is the caller's.
            unsafe { std::ptr::copy_nonoverlapping(from, read.dst, read.len_bytes) };
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        "host"
    }
}

impl Spill for HostSpill {
    unsafe fn submit_write(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        src: *const u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        let to = self.at(file_offset, len_bytes)?;
        self.list(
            tag,
            Transfer {
                from: src,
                to,
                bytes: len_bytes as u64,
            },
        )
    }

    fn len_bytes(&self) -> u64 {
        self.bytes
    }
}
