//! `Copies`: parts of the packed file that the host's memory keeps, and which pieces of them are there.

use super::SLOT_BYTES;
use neap_plan::HostCopy;

/// In order of the file.
#[derive(Default)]
pub(crate) struct Copies(Vec<Copied>);

struct Copied {
    file_offset: u64,
    bytes: usize,
    /// In memory that the link has pinned.
    at: *mut u8,
    /// Of a slot's size, but for the last.
    pieces: Box<[Presence]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Absent,
    /// It is read to its place.
    Coming,
    Here,
}

/// A piece of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    copy: u32,
    piece: u32,
}

impl Copies {
    /// Those of a valid plan; `start` is where their space begins.
    pub(crate) fn new(copies: &[HostCopy], start: *mut u8) -> Copies {
        let copied = copies.iter().map(|copy| Copied {
            file_offset: copy.from.offset,
            bytes: copy.bytes as usize,
            at: start.wrapping_add(copy.to.offset as usize),
            pieces: vec![Presence::Absent; (copy.bytes as usize).div_ceil(SLOT_BYTES)].into(),
        });
        Copies(copied.collect())
    }

    /// The copy of just this range of the file.
    pub(super) fn find(&self, file_offset: u64, bytes: usize) -> Option<u32> {
        let key = |copied: &Copied| (copied.file_offset, copied.bytes);
        let found = self.0.binary_search_by_key(&(file_offset, bytes), key);
        Some(found.ok()? as u32)
    }

    /// The piece that begins `offset` bytes behind the copy's first, a multiple of a slot.
    pub(super) fn piece(copy: u32, offset: usize) -> At {
        At {
            copy,
            piece: (offset / SLOT_BYTES) as u32,
        }
    }

    pub(super) fn presence(&self, at: At) -> Presence {
        self.0[at.copy as usize].pieces[at.piece as usize]
    }

    pub(super) fn set(&mut self, at: At, presence: Presence) {
        self.0[at.copy as usize].pieces[at.piece as usize] = presence;
    }

    /// How many bytes are there from this piece on, at most so many.
    pub(super) fn here_bytes(&self, at: At, most: usize) -> usize {
        let copied = &self.0[at.copy as usize];
        let from = at.piece as usize;
        let pieces = copied.pieces[from..].iter().take(most / SLOT_BYTES);
        let here = pieces.take_while(|piece| **piece == Presence::Here).count();
        (here * SLOT_BYTES).min(copied.bytes - from * SLOT_BYTES)
    }

    /// Where it begins.
    pub(super) fn address(&self, at: At) -> *mut u8 {
        let copied = &self.0[at.copy as usize];
        copied.at.wrapping_add(at.piece as usize * SLOT_BYTES)
    }

    /// What is on its way will not come.
    pub(super) fn stop(&mut self) {
        let pieces = self.0.iter_mut().flat_map(|copied| &mut copied.pieces);
        for piece in pieces.filter(|piece| **piece == Presence::Coming) {
            *piece = Presence::Absent;
        }
    }

    /// The file may be another one now; nothing is on its way.
    pub(super) fn forget(&mut self) {
        let pieces = self.0.iter_mut().flat_map(|copied| &mut copied.pieces);
        pieces.for_each(|piece| *piece = Presence::Absent);
    }
}
