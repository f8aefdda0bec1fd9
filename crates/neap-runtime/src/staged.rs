//! `Staged`: a file whose bytes go to, or come from, a device's own memory, through a ring of slots in the host's.
//!
//! ```text
//!   load    file ──read──► slot ──check──► slot ──copy──► device           a load is cut into pieces of a slot each
//!   store   file ◄─write── slot ◄───────── slot ◄──copy── device
//!   slot    free │ reading │ copying │ free │ copying │ writing │ free …
//! ```
//! Storage cannot write to a device's memory, and the host reads it slowly. So pieces are checked in their slots. A load is reported when all of its
//! pieces have been copied.
//! Parts of the packed file may have copies in the host's memory: they are read to there instead of to a slot, and stay.
//! Nothing is allocated after it is made, and nothing blocks but waiting.

mod copies;
mod spill;

use crate::own_memory::{Link, Transfer};
pub(crate) use copies::Copies;
use copies::{At, Presence};
use neap_plan::HostCopy;
use neap_store::{LoadTag, RangeRead, StoreError};
pub(crate) use spill::{Io, StagedSpill};
use std::io;

/// Slots of the packed file's ring: many enough that storage, checks and copies go on at once.
pub(crate) const SLOTS: usize = 8;
/// Of the spill file's.
pub(crate) const SPILL_SLOTS: usize = 4;
/// A copy of so much takes far longer than to start it.
const SLOT_BYTES: usize = 512 << 10;
/// Of a copy in the host's memory, which takes no slot's memory, so much is one piece: short ones do not fill a link.
const MOST_PIECE_BYTES: usize = 4 << 20;
/// So much is handed to the link together: what goes on after it waits for no more.
const MOST_GROUP_BYTES: u64 = 8 << 20;
/// For reads and copies that are waited for.
const ASIDE_BYTES: usize = 256 << 10;
/// Loads and stores that are on their way at once.
const MOST_MOVES: usize = 64;
/// Reads of one batch.
const MOST_READS: usize = 256;

pub(crate) struct Staged<S: Io + ?Sized> {
    // Goes first: it waits for reads and writes of slots, which are the link's.
    io: Box<S>,
    link: Box<dyn Link>,
    copies: Copies,
    /// Of loads that were reported, what came from copies that were there.
    copied_bytes: u64,
    slots: Box<[Slot]>,
    /// Behind the slots.
    aside: *mut u8,
    /// In the order in which they were submitted.
    moves: Vec<Move>,
    next_id: u64,
    /// Of the last copy.
    ticket: u64,
    /// What went wrong where it could not be told.
    failed: Option<StoreError>,
    /// Copies to be started; empty in between, kept for its memory, as the next is.
    transfers: Vec<Transfer>,
    /// Of each of those, the slot.
    listed: Vec<usize>,
    reads: Vec<RangeRead>,
}

// SAFETY: the addresses are of memory that its link has pinned, and of its owner's blocks; whoever has this value uses them.
unsafe impl<S: Io + ?Sized> Send for Staged<S> {}

/// A load or a store.
struct Move {
    id: u64,
    tag: LoadTag,
    file_offset: u64,
    /// In the device's memory.
    at: *mut u8,
    bytes: usize,
    /// In slots or through them.
    begun: usize,
    left: usize,
    is_store: bool,
    /// The copy of what is loaded, and what came from there.
    copy: Option<u32>,
    copied_bytes: u64,
}

struct Slot {
    at: *mut u8,
    state: State,
    piece: Piece,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// The file has it.
    File,
    /// Its copy will be started with others.
    Listed,
    Copying(u64),
}

/// What is in a slot.
#[derive(Clone, Copy, Default)]
struct Piece {
    id: u64,
    offset: usize,
    bytes: usize,
    is_store: bool,
    /// It is in a copy instead, and the slot is only taken.
    copied: Option<At>,
}

/// Checks a piece of the file: its offset, and its bytes.
pub(crate) type Check<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), StoreError>;

impl<S: Io + ?Sized> Staged<S> {
    /// # Errors
    /// Why the link pins no memory for so many slots.
    pub(crate) fn new(
        io: Box<S>,
        mut link: Box<dyn Link>,
        slots: usize,
    ) -> Result<Staged<S>, String> {
        let ring = link.pin(ring_bytes(slots))?;
        let at = |slot: usize| ring.start.wrapping_add(slot * SLOT_BYTES);
        let free = |slot| Slot {
            at: at(slot),
            state: State::Free,
            piece: Piece::default(),
        };
        Ok(Staged {
            io,
            link,
            copies: Copies::default(),
            copied_bytes: 0,
            slots: (0..slots).map(free).collect(),
            aside: at(slots),
            moves: Vec::with_capacity(MOST_MOVES),
            next_id: 0,
            ticket: 0,
            failed: None,
            transfers: Vec::with_capacity(slots),
            listed: Vec::with_capacity(slots),
            reads: Vec::with_capacity(MOST_READS),
        })
    }

    /// Makes room for a plan's copies, which takes all of their memory.
    ///
    /// # Errors
    /// Why the link pins no memory for them.
    pub(crate) fn keep(&mut self, copies: &[HostCopy], bytes: u64) -> Result<(), String> {
        if !copies.is_empty() {
            self.copies = Copies::new(copies, self.link.pin(bytes)?.start);
        }
        Ok(())
    }

    /// Bytes of loads that came from copies instead of the file, of those that were reported.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// The file may be another one now. Nothing is in flight.
    pub(crate) fn forget_copies(&mut self) {
        self.copies.forget();
    }

    pub(crate) fn name(&self) -> &'static str {
        self.io.name()
    }

    /// Loads and stores that were not reported.
    pub(crate) fn in_flight(&self) -> usize {
        self.moves.len()
    }

    /// Queues a load to `at`, or a store from there.
    ///
    /// # Safety
    /// As [`neap_store::Source::submit`] or [`neap_store::Spill::submit_write`], where `at` is in a block of the link's device.
    pub(crate) unsafe fn submit(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        at: *mut u8,
        bytes: usize,
        is_store: bool,
    ) -> Result<(), StoreError> {
        if self.moves.len() == MOST_MOVES {
            return Err(StoreError::TooManyLoads {
                capacity: MOST_MOVES,
            });
        }
        self.moves.push(Move {
            id: self.next_id,
            tag,
            file_offset,
            at,
            bytes,
            begun: 0,
            left: bytes,
            is_store,
            copy: self.copies.find(file_offset, bytes).filter(|_| !is_store),
            copied_bytes: 0,
        });
        self.next_id += 1;
        self.begin()
    }

    pub(crate) fn flush(&mut self) {
        self.io.flush();
        self.failed = self.start_copies().err();
    }

    /// As [`neap_store::Source::poll`]; `check` sees what was read before it is copied.
    pub(crate) fn poll(
        &mut self,
        wait: bool,
        check: Check,
        done: &mut dyn FnMut(LoadTag),
    ) -> Result<(), StoreError> {
        if wait && self.moves.is_empty() {
            return Err(StoreError::NothingInFlight);
        }
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let before = self.moves.len();
        self.receive(false, check, done)?;
        self.proceed(done)?;
        while wait && self.moves.len() == before {
            let copying = self.slots.iter().filter_map(|slot| match slot.state {
                State::Copying(ticket) => Some(ticket),
                _ => None,
            });
            match copying.min() {
                Some(ticket) => {
                    self.link.wait(ticket).map_err(broken)?;
                    self.receive(false, check, done)?;
                }
                // After an error that was told there may be nothing to wait for.
                None if self.io.in_flight() == 0 => return Err(StoreError::NothingInFlight),
                None => self.receive(true, check, done)?,
            }
            self.proceed(done)?;
        }
        Ok(())
    }

    /// Whatever can go on does.
    fn proceed(&mut self, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        self.start_copies()?;
        self.take_copied(done)?;
        self.begin()?;
        self.start_copies()?;
        self.io.flush();
        Ok(())
    }

    /// Puts pieces into free slots, in order.
    fn begin(&mut self) -> Result<(), StoreError> {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.state != State::Free {
                continue;
            }
            let Some(next) = self.moves.iter_mut().find(|m| m.begun < m.bytes) else {
                return Ok(());
            };
            let mut piece = Piece {
                id: next.id,
                offset: next.begun,
                bytes: SLOT_BYTES.min(next.bytes - next.begun),
                is_store: next.is_store,
                copied: None,
            };
            let copied = next.copy.map(|copy| Copies::piece(copy, piece.offset));
            let presence = copied.map(|at| (at, self.copies.presence(at)));
            if let Some((at, Presence::Here)) = presence {
                slot.state = State::Listed;
                piece.bytes = self.copies.here_bytes(at, MOST_PIECE_BYTES);
                next.copied_bytes += piece.bytes as u64;
                self.listed.push(index);
                self.transfers.push(Transfer {
                    from: self.copies.address(at),
                    to: next.at.wrapping_add(piece.offset),
                    bytes: piece.bytes as u64,
                });
            } else if next.is_store {
                slot.state = State::Listed;
                self.listed.push(index);
                self.transfers.push(Transfer {
                    from: next.at.wrapping_add(piece.offset),
                    to: slot.at,
                    bytes: piece.bytes as u64,
                });
            } else {
                let offset = next.file_offset + piece.offset as u64;
                let tag = LoadTag(index as u64);
                let absent = presence.filter(|(_, presence)| *presence == Presence::Absent);
                piece.copied = absent.map(|(at, _)| at);
                let to = absent.map_or(slot.at, |(at, _)| self.copies.address(at));
                // SAFETY: the slot is free, or the piece of the copy is absent; both are pinned for as long as the link lives,
                // which the file does not outlive.
                match unsafe { self.io.submit(tag, offset, to, piece.bytes) } {
                    Ok(()) => {
                        slot.state = State::File;
                        if let Some(at) = piece.copied {
                            self.copies.set(at, Presence::Coming);
                        }
                    }
                    Err(StoreError::TooManyLoads { .. }) if self.io.in_flight() > 0 => {
                        return Ok(());
                    }
                    Err(e) => return Err(e),
                }
            }
            slot.piece = piece;
            next.begun += piece.bytes;
        }
        Ok(())
    }

    /// Asks the file what has been read or written.
    fn receive(
        &mut self,
        wait: bool,
        check: Check,
        done: &mut dyn FnMut(LoadTag),
    ) -> Result<(), StoreError> {
        if self.io.in_flight() == 0 {
            return Ok(());
        }
        let mut written = 0u64;
        let mut checked = Ok(());
        let Self {
            io,
            slots,
            moves,
            transfers,
            listed,
            copies,
            ..
        } = self;
        let result = io.poll(wait, &mut |LoadTag(index)| {
            let slot = &mut slots[index as usize];
            if slot.piece.is_store {
                written |= 1 << index;
                return;
            }
            let Some(of) = moves.iter().find(|m| m.id == slot.piece.id) else {
                slot.state = State::Free;
                return;
            };
            let from = slot.piece.copied.map_or(slot.at, |at| copies.address(at));
            // SAFETY: the read is complete, and nothing else uses the slot or the piece of the copy.
            let bytes = unsafe { std::slice::from_raw_parts(from, slot.piece.bytes) };
            if checked.is_ok() {
                checked = check(of.file_offset + slot.piece.offset as u64, bytes);
            }
            if let (Some(at), Ok(())) = (slot.piece.copied, &checked) {
                copies.set(at, Presence::Here);
            }
            slot.state = State::Listed;
            listed.push(index as usize);
            transfers.push(Transfer {
                from,
                to: of.at.wrapping_add(slot.piece.offset),
                bytes: slot.piece.bytes as u64,
            });
        });
        for index in (0..self.slots.len()).filter(|index| written & 1 << index != 0) {
            self.free(index, done);
        }
        if let Err(StoreError::Read { tag: Some(tag), .. } | StoreError::Write { tag, .. }) =
            &result
            && let Some(slot) = self.slots.get_mut(tag.0 as usize)
        {
            slot.state = State::Free;
        }
        result.and(checked)
    }

    /// Starts the copies that are listed, in groups.
    fn start_copies(&mut self) -> Result<(), StoreError> {
        let mut first = 0;
        let mut started = Ok(());
        while first < self.transfers.len() && started.is_ok() {
            let mut bytes = 0;
            let fits = |transfer: &&Transfer| {
                bytes += transfer.bytes;
                bytes <= MOST_GROUP_BYTES
            };
            let count = self.transfers[first..].iter().take_while(fits).count();
            let group = first..first + count.max(1);
            // SAFETY: slots are left alone while they are copied, and the plan's memory as the caller promised.
            match unsafe { self.link.copy(&self.transfers[group.clone()]) } {
                Ok(ticket) => {
                    self.ticket = ticket;
                    for &index in &self.listed[group.clone()] {
                        self.slots[index].state = State::Copying(ticket);
                    }
                }
                Err(reason) => started = Err(broken(reason)),
            }
            first = group.end;
        }
        self.transfers.clear();
        self.listed.clear();
        started
    }

    /// Goes on with what has been copied.
    fn take_copied(&mut self, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        let is_copying = |slot: &Slot| matches!(slot.state, State::Copying(_));
        if !self.slots.iter().any(is_copying) {
            return Ok(());
        }
        let reached = self.link.reached().map_err(broken)?;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            match slot.state {
                State::Copying(ticket) if ticket <= reached => {}
                _ => continue,
            }
            if !slot.piece.is_store {
                self.free(index, done);
                continue;
            }
            let piece = slot.piece;
            let Some(of) = self.moves.iter().find(|m| m.id == piece.id) else {
                slot.state = State::Free;
                continue;
            };
            let offset = of.file_offset + piece.offset as u64;
            let tag = LoadTag(index as u64);
            // SAFETY: the copy is complete; the slot is left alone until the write is reported.
            match unsafe { self.io.write(tag, offset, slot.at, piece.bytes) } {
                Ok(()) => slot.state = State::File,
                // It stays copied, and is tried again.
                Err(StoreError::TooManyLoads { .. }) if self.io.in_flight() > 0 => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// A slot's piece has gone all its way.
    fn free(&mut self, index: usize, done: &mut dyn FnMut(LoadTag)) {
        let slot = &mut self.slots[index];
        slot.state = State::Free;
        let piece = slot.piece;
        let Some(at) = self.moves.iter().position(|m| m.id == piece.id) else {
            return;
        };
        let of = &mut self.moves[at];
        of.left -= piece.bytes;
        if of.left == 0 {
            let of = self.moves.remove(at);
            self.copied_bytes += of.copied_bytes;
            done(of.tag);
        }
    }

    /// Waits until nothing is in flight, and forgets it.
    pub(crate) fn drain(&mut self) -> Result<(), StoreError> {
        self.moves.clear();
        self.transfers.clear();
        self.listed.clear();
        self.failed = None;
        self.io.drain()?;
        self.link.wait(self.ticket).map_err(broken)?;
        for slot in &mut self.slots {
            slot.state = State::Free;
        }
        self.copies.stop();
        Ok(())
    }

    /// As [`neap_store::Source::read_ranges`], to memory that the host can write. The device sees it when jobs are submitted after this.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        let mut rest = reads;
        let mut skip = 0;
        while let Some(first) = rest.first() {
            // As many as fit aside, or a part of one.
            self.reads.clear();
            let mut used = 0;
            let take = ASIDE_BYTES.min(first.len_bytes - skip);
            let part = |offset: u64, used: usize, len_bytes| RangeRead {
                file_offset: offset,
                dst: self.aside.wrapping_add(used),
                len_bytes,
            };
            if take < first.len_bytes {
                let batch = [part(first.file_offset + skip as u64, 0, take)];
                // SAFETY: the memory aside is pinned, and used by this alone.
                unsafe { self.io.read_ranges(&batch)? };
                // SAFETY: the read is complete; the destination is the caller's, and not aside.
                unsafe {
                    let to = first.dst.wrapping_add(skip);
                    std::ptr::copy_nonoverlapping(self.aside, to, take);
                }
                skip += take;
                if skip == first.len_bytes {
                    rest = &rest[1..];
                    skip = 0;
                }
                continue;
            }
            let mut count = 0;
            for read in rest.iter().take(MOST_READS) {
                if used + read.len_bytes > ASIDE_BYTES {
                    break;
                }
                let one = part(read.file_offset, used, read.len_bytes);
                self.reads.push(one);
                used += read.len_bytes;
                count += 1;
            }
            // SAFETY: as above.
            unsafe { self.io.read_ranges(&self.reads)? };
            for (read, to) in self.reads.iter().zip(rest) {
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(read.dst, to.dst, read.len_bytes) };
            }
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Copies from the device's memory, and waits for it.
    ///
    /// # Safety
    /// `from` is so many bytes of a block of the link's device, which nothing writes.
    pub(crate) unsafe fn fetch(
        &mut self,
        from: *const u8,
        to: &mut [u8],
    ) -> Result<(), StoreError> {
        for (piece, to) in to.chunks_mut(ASIDE_BYTES).enumerate() {
            let transfer = Transfer {
                from: from.wrapping_add(piece * ASIDE_BYTES),
                to: self.aside,
                bytes: to.len() as u64,
            };
            // SAFETY: the memory aside is used by this alone, and waited for.
            self.ticket = unsafe { self.link.copy(&[transfer]) }.map_err(broken)?;
            self.link.wait(self.ticket).map_err(broken)?;
            // SAFETY: the copy is complete.
            to.copy_from_slice(unsafe { std::slice::from_raw_parts(self.aside, to.len()) });
        }
        Ok(())
    }
}

/// Memory of the host that a session in a device's memory pins, beside copies.
pub const STAGING_BYTES: u64 = ring_bytes(SLOTS) + ring_bytes(SPILL_SLOTS);

/// What a link pins for so many slots.
const fn ring_bytes(slots: usize) -> u64 {
    (slots * SLOT_BYTES + ASIDE_BYTES) as u64
}

fn broken(reason: String) -> StoreError {
    StoreError::Broken {
        source: io::Error::other(reason),
    }
}

#[cfg(test)]
mod tests;
