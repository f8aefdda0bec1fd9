//! The bookkeeping that all sources share: loads and stores are cut into pieces, pieces come back whole,
//! short or failed, and a load or store is finished when its last piece is.
//!
//! Nothing here does I/O, and nothing allocates after construction.

use crate::{BLOCK, LoadTag, RangeRead, StoreError, is_whole_blocks};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;

/// Times that a piece is tried again without any progress before it counts as failed.
const MAX_RETRIES: u32 = 64;

/// A read, or a write, to be performed. Whoever holds it must hand it to [`LoadQueue::complete`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    owner: Owner,
    pub read: RangeRead,
    /// To the file: `read.dst` is only read from.
    pub is_write: bool,
    retries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Load(u32),
    Batch,
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    offset: u64,
    /// `None` for an unexpected end of the file, or a write that makes no progress.
    errno: Option<Errno>,
}

impl Failure {
    fn into_write_error(self, tag: LoadTag) -> StoreError {
        StoreError::Write {
            tag,
            offset: self.offset,
            source: match self.errno {
                Some(errno) => errno.into(),
                None => io::ErrorKind::WriteZero.into(),
            },
        }
    }

    fn into_error(self, tag: Option<LoadTag>) -> StoreError {
        StoreError::Read {
            tag,
            offset: self.offset,
            source: match self.errno {
                Some(errno) => errno.into(),
                None => io::ErrorKind::UnexpectedEof.into(),
            },
        }
    }
}

struct Load {
    tag: LoadTag,
    read: RangeRead,
    is_write: bool,
    /// Bytes handed out as pieces so far.
    issued_bytes: usize,
    pieces_out: u32,
    failure: Option<Failure>,
}

/// A batch borrows the caller's list by pointer; the call that owns it outlives the batch.
struct Batch {
    reads: *const RangeRead,
    len: usize,
    next: usize,
    pieces_out: usize,
    failure: Option<Failure>,
}

/// Loads from submission to report.
pub(crate) struct LoadQueue {
    loads: Box<[Option<Load>]>,
    free: Vec<u32>,
    /// Loads with bytes not yet handed out, oldest first.
    backlog: VecDeque<u32>,
    /// Loads complete or failed, to be reported.
    finished: VecDeque<u32>,
    batch: Option<Batch>,
    piece_bytes: usize,
    /// Where the file ends: a read that comes to it is complete.
    end: u64,
}

// SAFETY: the pointers within are destinations and the batch list, which the contracts of
// `Source` keep valid from whichever thread performs the reads.
unsafe impl Send for LoadQueue {}

impl LoadQueue {
    /// A queue of at most `max_loads` loads, cut into pieces of `piece_bytes`, a multiple of
    /// [`BLOCK`].
    ///
    /// # Errors
    /// [`StoreError::InvalidUse`] where a piece is not whole blocks, or no load may be queued.
    pub fn new(max_loads: usize, piece_bytes: usize) -> Result<LoadQueue, StoreError> {
        if max_loads == 0 || max_loads > u32::MAX as usize {
            return Err(StoreError::InvalidUse {
                what: "a source needs room for at least one load",
            });
        }
        // A single read call moves less than 2 GiB.
        if piece_bytes == 0 || !is_whole_blocks(piece_bytes as u64) || piece_bytes > 1 << 30 {
            return Err(StoreError::InvalidUse {
                what: "the size of reads must be a multiple of 4096, at most 1 GiB",
            });
        }
        Ok(LoadQueue {
            loads: (0..max_loads).map(|_| None).collect(),
            free: (0..max_loads as u32).rev().collect(),
            backlog: VecDeque::with_capacity(max_loads),
            finished: VecDeque::with_capacity(max_loads),
            batch: None,
            piece_bytes,
            end: u64::MAX,
        })
    }

    /// The file ends there, perhaps within a block: what a read of that block leaves of its memory stays as it was.
    pub fn ending_at(self, end: u64) -> LoadQueue {
        LoadQueue { end, ..self }
    }

    /// Loads pushed and not yet reported.
    pub fn in_flight(&self) -> usize {
        self.loads.len() - self.free.len()
    }

    pub fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Adds a load, checked by the caller.
    ///
    /// # Errors
    /// [`StoreError::TooManyLoads`] where the queue is full.
    pub fn push(&mut self, tag: LoadTag, read: RangeRead) -> Result<(), StoreError> {
        self.push_either(tag, read, false)
    }

    /// Adds a store from `read.dst`, checked by the caller.
    ///
    /// # Errors
    /// [`StoreError::TooManyLoads`] where the queue is full.
    pub fn push_write(&mut self, tag: LoadTag, write: RangeRead) -> Result<(), StoreError> {
        self.push_either(tag, write, true)
    }

    fn push_either(
        &mut self,
        tag: LoadTag,
        read: RangeRead,
        is_write: bool,
    ) -> Result<(), StoreError> {
        let index = self.free.pop().ok_or(StoreError::TooManyLoads {
            capacity: self.loads.len(),
        })?;
        self.loads[index as usize] = Some(Load {
            tag,
            read,
            is_write,
            issued_bytes: 0,
            pieces_out: 0,
            failure: None,
        });
        if read.len_bytes == 0 {
            self.finished.push_back(index);
        } else {
            self.backlog.push_back(index);
        }
        Ok(())
    }

    /// The next piece of a load to read, oldest load first.
    pub fn next_piece(&mut self) -> Option<Piece> {
        let &index = self.backlog.front()?;
        let load = self.loads[index as usize].as_mut()?;
        let len_bytes = self
            .piece_bytes
            .min(load.read.len_bytes - load.issued_bytes);
        let piece = Piece {
            owner: Owner::Load(index),
            read: advanced(&load.read, load.issued_bytes, len_bytes),
            is_write: load.is_write,
            retries: 0,
        };
        load.issued_bytes += len_bytes;
        load.pieces_out += 1;
        if load.issued_bytes == load.read.len_bytes {
            self.backlog.pop_front();
        }
        Some(piece)
    }

    /// Begins a batch. There is one at a time.
    ///
    /// # Safety
    ///
    /// `reads` stays valid until [`end_batch`](LoadQueue::end_batch) has returned `Some`.
    pub unsafe fn begin_batch(&mut self, reads: &[RangeRead]) {
        debug_assert!(self.batch.is_none());
        self.batch = Some(Batch {
            reads: reads.as_ptr(),
            len: reads.len(),
            next: 0,
            pieces_out: 0,
            failure: None,
        });
    }

    /// The next read of the batch.
    pub fn next_batch_piece(&mut self) -> Option<Piece> {
        let batch = self.batch.as_mut()?;
        while batch.next < batch.len {
            // SAFETY: `next` is within the list, which `begin_batch` demands to be valid.
            let read = unsafe { *batch.reads.add(batch.next) };
            batch.next += 1;
            if read.len_bytes > 0 {
                batch.pieces_out += 1;
                return Some(Piece {
                    owner: Owner::Batch,
                    read,
                    is_write: false,
                    retries: 0,
                });
            }
        }
        None
    }

    /// The result of the batch, once all of it is complete.
    pub fn end_batch(&mut self) -> Option<Result<(), StoreError>> {
        if !self.batch_complete() {
            return None;
        }
        let failure = self.batch.take()?.failure;
        Some(failure.map_or(Ok(()), |f| Err(f.into_error(None))))
    }

    /// Whether there is a batch and all of it is complete.
    pub fn batch_complete(&self) -> bool {
        let complete = |b: &Batch| b.next >= b.len && b.pieces_out == 0;
        self.batch.as_ref().is_some_and(complete)
    }

    /// Hands no more of the batch out; its list may go.
    pub fn cancel_batch(&mut self) {
        if let Some(batch) = &mut self.batch {
            batch.next = batch.len;
        }
    }

    /// Takes the result of a read: bytes read, or an error. Returns the piece that must be
    /// read in its place when it was short or interrupted.
    pub fn complete(&mut self, piece: Piece, result: Result<usize, Errno>) -> Option<Piece> {
        let mut again = piece;
        let failure = match result {
            Ok(0) => Some(None),
            Ok(read_bytes) if read_bytes >= piece.read.len_bytes => None,
            Ok(read_bytes) if piece.read.file_offset + read_bytes as u64 == self.end => None,
            Ok(read_bytes) => {
                // Direct reads go on from a whole block; the rest of one is read again.
                let whole = read_bytes - read_bytes % BLOCK;
                again.read = advanced(&piece.read, whole, piece.read.len_bytes - whole);
                again.retries = if whole > 0 { 0 } else { piece.retries + 1 };
                if again.retries <= MAX_RETRIES {
                    return Some(again);
                }
                Some(None)
            }
            Err(errno @ (Errno::INTR | Errno::AGAIN)) => {
                again.retries += 1;
                if again.retries <= MAX_RETRIES {
                    return Some(again);
                }
                Some(Some(errno))
            }
            Err(errno) => Some(Some(errno)),
        };
        let failure = failure.map(|errno| Failure {
            offset: piece.read.file_offset,
            errno,
        });
        match piece.owner {
            Owner::Load(index) => self.piece_of_load_done(index, failure),
            Owner::Batch => {
                if let Some(batch) = &mut self.batch {
                    batch.pieces_out -= 1;
                    if failure.is_some() {
                        batch.failure = batch.failure.or(failure);
                        batch.next = batch.len;
                    }
                }
            }
        }
        None
    }

    fn piece_of_load_done(&mut self, index: u32, failure: Option<Failure>) {
        let Some(load) = self.loads[index as usize].as_mut() else {
            return;
        };
        load.pieces_out -= 1;
        if failure.is_some() {
            load.failure = load.failure.or(failure);
            if load.issued_bytes < load.read.len_bytes {
                // What was not handed out yet never will be.
                load.issued_bytes = load.read.len_bytes;
                self.backlog.retain(|&i| i != index);
            }
        }
        if load.pieces_out == 0 && load.issued_bytes == load.read.len_bytes {
            self.finished.push_back(index);
        }
    }

    /// Reports finished loads, up to the first that failed.
    ///
    /// # Errors
    /// That of the first load that failed.
    pub fn report(&mut self, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        while let Some(load) = self.pop_finished() {
            match load.failure {
                None => done(load.tag),
                Some(f) if load.is_write => return Err(f.into_write_error(load.tag)),
                Some(f) => return Err(f.into_error(Some(load.tag))),
            }
        }
        Ok(())
    }

    fn pop_finished(&mut self) -> Option<Load> {
        let index = self.finished.pop_front()?;
        let load = self.loads[index as usize].take()?;
        self.free.push(index);
        Some(load)
    }
}

fn advanced(read: &RangeRead, by_bytes: usize, len_bytes: usize) -> RangeRead {
    RangeRead {
        file_offset: read.file_offset + by_bytes as u64,
        // Sound for any pointer; it stays within the destination, whose length is larger.
        dst: read.dst.wrapping_add(by_bytes),
        len_bytes,
    }
}
