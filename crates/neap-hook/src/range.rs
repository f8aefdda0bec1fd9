//! The reserved range of addresses for the program's allocations, in chunks of one size that come and go.
//!
//! ```text
//!   addresses     | chunk | chunk | chunk | chunk | …      reserved once
//!   on the card       x       x               x            mapped while they are there
//!   on the host   |     stripe    |     stripe    |        pinned once; a chunk's place never changes
//! ```
//! Neighbours are copied and unmapped in one call.

use crate::arena::Arena;
use crate::card::{self, Address, Device, Handle, Properties};
use crate::real::Status;
use crate::settings::warn;
use std::ffi::c_void;
use std::time::Instant;

/// Host memory is pinned in pieces of about this size.
const STRIPE_BYTES: u64 = 256 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Chunk {
    Blank,
    Here(Handle),
    Away,
}

#[derive(Clone, Copy)]
enum Stripe {
    Unused,
    Pinned(*mut c_void),
    /// The host has no memory for it: its chunks stay on the card.
    Refused,
}

// SAFETY: pinned memory is the hook's alone, and only the card reads and writes it.
unsafe impl Send for Stripe {}

/// What left the card, or came back.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Moved {
    pub bytes: u64,
    /// Of these, what was copied.
    pub copied: u64,
    /// How long it took, without the pinning of host memory, which happens once.
    pub ns: u64,
}

pub struct Range {
    base: Address,
    bytes: u64,
    chunk_bytes: u64,
    pub arena: Arena,
    chunks: Vec<Chunk>,
    stripes: Vec<Stripe>,
    /// Where the next swap-out begins.
    cursor: usize,
}

type Run = std::ops::Range<usize>;

impl Range {
    /// Twice as many addresses as the card has memory: holes are many before they run out.
    pub fn reserve(device: &Device, chunk_bytes: u64) -> Result<Range, Status> {
        let total = card::total_bytes(device.ordinal)?;
        let bytes = (2 * total).next_multiple_of(chunk_bytes);
        Ok(Range {
            base: card::reserve(bytes)?,
            bytes,
            chunk_bytes,
            arena: Arena::new(bytes, chunk_bytes),
            chunks: vec![Chunk::Blank; (bytes / chunk_bytes) as usize],
            stripes: vec![Stripe::Unused; bytes.div_ceil(stripe_bytes(chunk_bytes)) as usize],
            cursor: 0,
        })
    }

    /// The offset of an address of this range.
    pub fn offset(&self, address: Address) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        (offset < self.bytes).then_some(offset)
    }

    pub fn address(&self, offset: u64) -> Address {
        self.base + offset
    }

    /// Room for an allocation, and its chunks that are not there yet.
    pub fn take(&mut self, bytes: u64) -> Option<(u64, Vec<usize>)> {
        let chunks = &self.chunks;
        let at = self.arena.take(bytes, |c| chunks[c] != Chunk::Blank)?;
        let (start, length) = self.arena.find(at)?;
        let touched = self.arena.chunks(start, length);
        Some((at, touched.filter(|&c| chunks[c] == Chunk::Blank).collect()))
    }

    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Puts memory behind blank chunks; all of them, or none.
    pub fn back(&mut self, device: &Device, chunks: &[usize]) -> Result<(), Status> {
        let (made, status) = self.create(device, chunks);
        if let Some(status) = status {
            self.drop_chunks(&made);
            return Err(status);
        }
        Ok(())
    }

    /// Pins host memory for these chunks before it is needed.
    pub fn pin(&mut self, chunks: &[usize]) {
        for &chunk in chunks {
            self.host_place(chunk);
        }
    }

    /// Creates and maps chunks, up to the first that fails.
    fn create(&mut self, device: &Device, chunks: &[usize]) -> (Vec<usize>, Option<Status>) {
        let properties = Properties::plain(device.ordinal);
        let mut made = Vec::new();
        let mut failed = None;
        for &chunk in chunks {
            let handle = match card::create(self.chunk_bytes, &properties) {
                Ok(handle) => handle,
                Err(status) => {
                    failed = Some(status);
                    break;
                }
            };
            if let Err(status) = card::map(self.place(chunk), self.chunk_bytes, 0, handle) {
                let _ = card::release(handle);
                failed = Some(status);
                break;
            }
            self.chunks[chunk] = Chunk::Here(handle);
            made.push(chunk);
        }
        for run in runs(&made) {
            let at = self.place(run.start);
            let bytes = self.chunk_bytes * run.len() as u64;
            if let Err(status) = card::set_access(at, bytes, &[card::own(device.ordinal)]) {
                failed = failed.or(Some(status));
            }
        }
        (made, failed)
    }

    /// Unmaps chunks that are there, each run in one call, and releases them.
    fn drop_chunks(&mut self, chunks: &[usize]) {
        for run in runs(chunks) {
            let bytes = self.chunk_bytes * run.len() as u64;
            if let Err(status) = card::unmap(self.place(run.start), bytes) {
                warn(&format!(
                    "memory cannot be unmapped: error {status} of the driver"
                ));
            }
            for chunk in run {
                if let Chunk::Here(handle) = self.chunks[chunk] {
                    let _ = card::release(handle);
                }
                self.chunks[chunk] = Chunk::Blank;
            }
        }
    }

    /// Forgets chunks in which nothing is allocated any more, but for so many that stay for the next allocation.
    /// Gives bytes that left the card, and bytes that were away.
    pub fn trim(&mut self, kept: usize) -> (u64, u64) {
        let unused = |r: &Range, c: usize| !r.arena.is_used(c);
        let all = 0..self.chunks.len();
        let away = all
            .clone()
            .filter(|&c| unused(self, c) && self.chunks[c] == Chunk::Away);
        let away: Vec<usize> = away.collect();
        for &chunk in &away {
            self.chunks[chunk] = Chunk::Blank;
        }
        let here = all.filter(|&c| unused(self, c) && matches!(self.chunks[c], Chunk::Here(_)));
        let here: Vec<usize> = here.skip(kept).collect();
        self.drop_chunks(&here);
        let bytes = |chunks: &[usize]| chunks.len() as u64 * self.chunk_bytes;
        (bytes(&here), bytes(&away))
    }

    /// Moves at least so many bytes to the host, as far as there are.
    pub fn swap_out(&mut self, device: &Device, wanted: u64) -> Result<Moved, Status> {
        let (dropped, _) = self.trim(0);
        let mut moved = Moved {
            bytes: dropped,
            ..Moved::default()
        };
        let mut chosen = Vec::new();
        let count = self.chunks.len();
        let mut last = self.cursor;
        for chunk in (self.cursor..count).chain(0..self.cursor) {
            if moved.bytes >= wanted {
                break;
            }
            if matches!(self.chunks[chunk], Chunk::Here(_)) && self.host_place(chunk).is_some() {
                chosen.push(chunk);
                moved.bytes += self.chunk_bytes;
                moved.copied += self.chunk_bytes;
                last = chunk + 1;
            }
        }
        self.cursor = last % count;
        chosen.sort_unstable();
        let started = Instant::now();
        for run in self.runs_on_host(&chosen) {
            let (host, bytes) = self.host_run(&run);
            card::copy_out(host, self.place(run.start), bytes, device.stream)?;
        }
        card::wait_for(device.stream)?;
        self.drop_chunks(&chosen);
        for &chunk in &chosen {
            self.chunks[chunk] = Chunk::Away;
        }
        moved.ns = started.elapsed().as_nanos() as u64;
        Ok(moved)
    }

    /// Brings back all that is away, as far as the card has memory. What came back, and what went wrong.
    pub fn swap_in(&mut self, device: &Device) -> (u64, Option<Status>) {
        let away = (0..self.chunks.len()).filter(|&c| self.chunks[c] == Chunk::Away);
        let away: Vec<usize> = away.collect();
        let (made, mut failed) = self.create(device, &away);
        let copied = || {
            for run in self.runs_on_host(&made) {
                let (host, bytes) = self.host_run(&run);
                card::copy_in(self.place(run.start), host, bytes, device.stream)?;
            }
            card::wait_for(device.stream)
        };
        if let Err(status) = copied() {
            failed = Some(status);
        }
        (made.len() as u64 * self.chunk_bytes, failed)
    }

    /// Where a chunk is.
    fn place(&self, chunk: usize) -> Address {
        self.base + chunk as u64 * self.chunk_bytes
    }

    /// The host's memory of a chunk, pinned when it is first asked for; `None` where there is none.
    fn host_place(&mut self, chunk: usize) -> Option<*mut c_void> {
        let (stripe, within) = self.stripe_of(chunk);
        if let Stripe::Unused = self.stripes[stripe] {
            self.stripes[stripe] = match card::host_memory(stripe_bytes(self.chunk_bytes)) {
                Ok(memory) => Stripe::Pinned(memory),
                Err(_) => {
                    warn(
                        "the host has no memory to swap to: a part of the program's memory stays on the card",
                    );
                    Stripe::Refused
                }
            };
        }
        match self.stripes[stripe] {
            Stripe::Pinned(memory) => Some(memory.wrapping_byte_add(within as usize)),
            _ => None,
        }
    }

    fn stripe_of(&self, chunk: usize) -> (usize, u64) {
        let offset = chunk as u64 * self.chunk_bytes;
        let stripe = stripe_bytes(self.chunk_bytes);
        ((offset / stripe) as usize, offset % stripe)
    }

    /// Runs of chunks whose places on the host are neighbours, too.
    fn runs_on_host(&self, chunks: &[usize]) -> Vec<Run> {
        let split = |run: Run| {
            let mut parts: Vec<Run> = Vec::new();
            for chunk in run {
                match parts.last_mut() {
                    Some(part) if self.stripe_of(part.start).0 == self.stripe_of(chunk).0 => {
                        part.end = chunk + 1;
                    }
                    _ => parts.push(chunk..chunk + 1),
                }
            }
            parts
        };
        runs(chunks).into_iter().flat_map(split).collect()
    }

    /// The host's memory of a run, which was pinned before, and its bytes.
    fn host_run(&self, run: &Run) -> (*mut c_void, u64) {
        let (stripe, within) = self.stripe_of(run.start);
        let memory = match self.stripes[stripe] {
            Stripe::Pinned(memory) => memory.wrapping_byte_add(within as usize),
            _ => unreachable!("only chunks with a place on the host leave the card"),
        };
        (memory, run.len() as u64 * self.chunk_bytes)
    }

    /// The context is gone: nothing is there any more. Its pinned memory went with it.
    pub fn clear(mut self) {
        let here = (0..self.chunks.len()).filter(|&c| matches!(self.chunks[c], Chunk::Here(_)));
        let here: Vec<usize> = here.collect();
        self.drop_chunks(&here);
        let _ = card::free_reserved(self.base, self.bytes);
    }
}

/// Whole chunks, so that none lies in two stripes.
fn stripe_bytes(chunk_bytes: u64) -> u64 {
    STRIPE_BYTES.next_multiple_of(chunk_bytes)
}

/// Neighbours together; `chunks` ascend.
fn runs(chunks: &[usize]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &chunk in chunks {
        match runs.last_mut() {
            Some(run) if run.end == chunk => run.end += 1,
            _ => runs.push(chunk..chunk + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn neighbours_move_together() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[1, 2, 3, 7, 9, 10]), [1..4, 7..8, 9..11]);
    }
}
