//! The arena: all memory that a session's activations, workspaces and weights live in.

use crate::mapping::{Addresses, Mapping};
use crate::placement::{Placement, RESIDENT_BASE};
use crate::residents::Residents;
use neap_plan::ByteRange;
use std::io;

/// Memory by offset: from 0 what each run overwrites, from [`RESIDENT_BASE`] resident weights.
///
/// It hands out addresses, not references: parts of it are written by the storage device while
/// others are read and written by kernels. Who holds an address vouches for the access; that the
/// parts in use at one time are disjoint is what [`neap_plan::validate`] proves of a plan.
#[derive(Debug)]
pub(crate) struct Arena {
    work: Mapping,
    pub(crate) residents: Residents,
}

/// Tells addresses in an arena, which must live, as it is, for as long as they are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaMap {
    work: Addresses,
    residents: Addresses,
}

impl ArenaMap {
    /// Address of `[offset, offset + bytes)`; `None` when that leaves the arena.
    pub(crate) fn at(self, offset: u64, bytes: u64) -> Option<*mut u8> {
        match offset.checked_sub(RESIDENT_BASE) {
            Some(file_offset) => self.residents.at(file_offset, bytes),
            None => self.work.at(offset, bytes),
        }
    }
}

impl Arena {
    /// Nothing is charged yet.
    pub(crate) fn new(placement: &Placement) -> io::Result<Arena> {
        Ok(Arena {
            work: Mapping::new(placement.work_bytes, placement.dense)?,
            residents: Residents::new(placement.span)?,
        })
    }

    /// Where it is, for whoever computes addresses while the arena itself is in use.
    pub(crate) fn map(&self) -> ArenaMap {
        ArenaMap {
            work: self.work.addresses(),
            residents: self.residents.addresses(),
        }
    }

    /// The most that is charged: work and resident weights.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.work.len_bytes() as u64 + self.residents.held_bytes()
    }

    /// Gives what runs overwrite back to the kernel; it comes again, zeroed, when it is touched.
    ///
    /// # Safety
    /// Nothing reads or writes the arena, the storage device included.
    pub(crate) unsafe fn discard_work(&mut self) -> io::Result<()> {
        // SAFETY: passed on.
        unsafe { self.work.discard() }
    }

    /// Goes over to another plan's needs: resident weights that it keeps stay where they are, the
    /// rest is the kernel's before anything new is charged. Says how many bytes of resident weights
    /// went. After an error the arena is as large as it was, but weights may be missing.
    ///
    /// # Safety
    /// Nothing reads or writes the arena, the storage device included.
    pub(crate) unsafe fn reshape(&mut self, placement: &Placement) -> io::Result<u64> {
        // What may fail comes first; none of it is charged before it is touched.
        let work = Mapping::new(placement.work_bytes, placement.dense)?;
        let residents = match self.residents.span() {
            span if span.holds(placement.span) => None,
            span => Some(Residents::new(ByteRange::new(
                span.begin.min(placement.span.begin),
                span.end.max(placement.span.end),
            ))?),
        };
        let released_bytes = match residents {
            // SAFETY: passed on.
            None => unsafe { self.residents.keep_only(&placement.resident) }?,
            Some(residents) => {
                let bytes = self.residents.held_bytes();
                self.residents = residents;
                bytes
            }
        };
        self.work = work;
        Ok(released_bytes)
    }
}
