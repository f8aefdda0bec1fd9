//! Resident weights on their way: what a plan keeps and is not in memory yet comes beside its first run.
//!
//! ```text
//!   computes            │ c0 │ c1 │ c2 │····│ c3 │ …       c3 waits for w3, and for nothing behind it
//!   first needed by       w0   w1   w1        w3   w9
//!   read in this order  ├ w0 ┤├ w1 ──┤├ w3 ──────┤├ w9 …
//! ```
//! So a session is ready as soon as its plan is, and a run never waits for weights that only a later layer uses.
//! When all are here nothing of this is left to do. Only figures; the bytes are the load lane's.

use neap_plan::{ByteRange, Compute, ResidentLoad};
use neap_store::LoadTag;

/// On their way at once, where loads are not handed over in groups: enough for any storage until the executor
/// looks next, and little enough that a load which a compute needs sooner does not wait long behind them.
const MOST_BYTES: u64 = 8 << 20;
pub(crate) const MOST_PIECES: usize = 64;

/// Tells these from the plan's loads, which are counted from 0.
const TAG: u64 = 1 << 63;

/// Of a load that no compute needs.
const NEVER: u32 = u32::MAX;

/// The resident weights that are still to come, with the loads of the plan that they share storage with.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// In the order in which they are needed.
    pieces: Vec<Piece>,
    /// The next to be handed over.
    next: usize,
    /// All before this one are here.
    prefix: usize,
    in_flight: usize,
    in_flight_bytes: u64,
    /// Of those that are here, what has not been taken note of elsewhere.
    here_bytes: u64,
    /// Of those that are here, how many may be of another state of the file than their checksums.
    unsure: usize,
    /// By load of the plan, the first compute that needs it.
    load_due: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    load: ResidentLoad,
    is_here: bool,
    is_sure: bool,
}

impl Incoming {
    /// `reads` are to come, in this order. `computes` and `loads` are the plan's.
    pub(crate) fn new(reads: &[ResidentLoad], computes: &[Compute], loads: usize) -> Incoming {
        if reads.is_empty() {
            return Incoming::default();
        }
        let pieces = reads.iter().map(|&load| Piece {
            load,
            is_here: false,
            is_sure: false,
        });
        Incoming {
            load_due: first_needs(computes, loads),
            pieces: pieces.collect(),
            ..Incoming::default()
        }
    }

    /// Whether all are here.
    pub(crate) fn is_over(&self) -> bool {
        self.prefix == self.pieces.len()
    }

    /// Whether all are here that the first `computes` computes and the one after them use.
    pub(crate) fn serves(&self, computes: u64) -> bool {
        let next = self.pieces.get(self.prefix);
        next.is_none_or(|p| u64::from(p.load.first) > computes)
    }

    /// Whether the next to be handed over is needed before that load of run `run`, if there is one; and may be,
    /// too.
    pub(crate) fn precedes(&self, load: Option<(u64, usize)>, computes: u64) -> bool {
        let Some(piece) = self.pieces.get(self.next) else {
            return false;
        };
        let load_due = load.map(|(run, load)| {
            run.saturating_mul(computes)
                .saturating_add(self.load_due[load].into())
        });
        load_due.is_none_or(|due| u64::from(piece.load.first) <= due)
    }

    /// Whether storage has all of them that it should have at once.
    pub(crate) fn is_full(&self) -> bool {
        self.is_crowded() || self.in_flight_bytes >= MOST_BYTES
    }

    /// Whether there are as many of them in flight as there may ever be.
    pub(crate) fn is_crowded(&self) -> bool {
        self.in_flight == MOST_PIECES
    }

    /// The next to be handed over, and by what name.
    pub(crate) fn next(&self) -> Option<(LoadTag, ResidentLoad)> {
        let piece = self.pieces.get(self.next)?;
        Some((LoadTag(TAG | self.next as u64), piece.load))
    }

    /// That one has been.
    pub(crate) fn sent(&mut self) {
        self.in_flight += 1;
        self.in_flight_bytes += self.pieces[self.next].load.bytes;
        self.next += 1;
        self.skip();
    }

    /// The read of that name.
    pub(crate) fn load_of(&self, LoadTag(tag): LoadTag) -> ResidentLoad {
        self.pieces[(tag & !TAG) as usize].load
    }

    /// It is there, whole and as it should be.
    pub(crate) fn arrived(&mut self, LoadTag(tag): LoadTag) {
        let piece = &mut self.pieces[(tag & !TAG) as usize];
        piece.is_here = true;
        self.unsure += 1;
        self.here_bytes += piece.load.bytes;
        self.in_flight -= 1;
        self.in_flight_bytes -= piece.load.bytes;
        while self.pieces.get(self.prefix).is_some_and(|p| p.is_here) {
            self.prefix += 1;
        }
    }

    /// Nothing is in flight any more, and the plan's first run is to come: what is not here is to be read
    /// again.
    pub(crate) fn restart(&mut self) {
        self.next = self.prefix;
        self.skip();
        self.in_flight = 0;
        self.in_flight_bytes = 0;
    }

    /// The file is as it was when those came that are here.
    pub(crate) fn confirm(&mut self) {
        if self.unsure > 0 {
            self.unsure = 0;
            for piece in &mut self.pieces {
                piece.is_sure = piece.is_here;
            }
        }
    }

    /// The file may have changed while those came that were not confirmed: they are to be read again.
    pub(crate) fn doubt(&mut self) {
        self.unsure = 0;
        for (index, piece) in self.pieces.iter_mut().enumerate() {
            if piece.is_here && !piece.is_sure {
                piece.is_here = false;
                self.here_bytes -= piece.load.bytes;
                self.prefix = self.prefix.min(index);
            }
        }
    }

    fn skip(&mut self) {
        while self.pieces.get(self.next).is_some_and(|p| p.is_here) {
            self.next += 1;
        }
    }

    /// Bytes of those that are here, and that have not been noted.
    pub(crate) fn here_bytes(&self) -> u64 {
        self.here_bytes
    }

    /// Those that are here are counted elsewhere from now on.
    pub(crate) fn noted(&mut self) {
        self.here_bytes = 0;
    }

    /// Those that are here.
    pub(crate) fn here(&self) -> impl Iterator<Item = ByteRange> {
        let here = self.pieces.iter().filter(|p| p.is_here);
        here.map(|p| p.load.file_range())
    }
}

/// Whether a read is of resident weights, not a load of the plan.
pub(crate) fn is_resident(LoadTag(tag): LoadTag) -> bool {
    tag & TAG != 0
}

/// By load, the first compute that needs it.
fn first_needs(computes: &[Compute], loads: usize) -> Vec<u32> {
    let mut due = Vec::with_capacity(loads);
    for (index, compute) in computes.iter().enumerate() {
        due.resize(
            due.len().max((compute.needs() as usize).min(loads)),
            index as u32,
        );
    }
    due.resize(loads, NEVER);
    due
}
