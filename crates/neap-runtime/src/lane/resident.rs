//! The load lane's part in resident weights: they share storage with the plan's loads until all are here.

use super::{LoadLane, address, loaded};
use crate::RuntimeError;
use crate::arena::Arena;
use crate::clock::Clock;
use crate::incoming::Incoming;
use crate::placement::ResidentUse;
use crate::recorder::Recorder;
use neap_plan::{ByteRange, Compute};
use neap_store::{LoadTag, Verifier};

impl LoadLane {
    /// After [`LoadLane::new`] or [`LoadLane::replace`]: from now on, resident weights that are not in memory
    /// come beside the runs of a plan with these computes. Says how many bytes those are.
    pub(crate) fn expect(&mut self, uses: &[ResidentUse], computes: &[Compute]) -> u64 {
        let missing = self.arena.residents().missing();
        self.incoming = Incoming::new(&missing, uses, computes, self.loads.len());
        self.incoming.bytes()
    }

    /// What has arrived belongs to the arena from now on, which takes it over to the next plan.
    pub(super) fn hold_residents(&mut self) {
        self.arena.hold(self.incoming.here());
        self.incoming.noted();
    }

    /// Waits until all resident weights are in memory, starting loads as they become possible.
    pub(crate) fn settle(
        &mut self,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        self.pump(clock, recorder)?;
        while !self.incoming.is_over() {
            if self.source.in_flight() > 0 {
                self.poll_source(true, clock, recorder)?;
            } else {
                self.poll_spill(true, clock, recorder)?;
            }
            self.pump(clock, recorder)?;
        }
        Ok(())
    }

    /// Whether those are here that the next compute uses.
    pub(super) fn has_residents(&self) -> bool {
        self.incoming.serves(self.done_computes)
    }

    /// Starts reading the next resident weights; false when there is no room for them just now.
    pub(super) fn submit_resident(&mut self, room: &mut u64) -> Result<bool, RuntimeError> {
        let Some((tag, file)) = self.incoming.next() else {
            return Ok(false);
        };
        let is_full = match self.group_bytes {
            0 => self.incoming.is_full(),
            _ => self.in_flight > 0 && file.len() > *room || self.incoming.is_crowded(),
        };
        if is_full {
            return Ok(false);
        }
        let dst = address(&self.arena, place_of(&self.arena, file)?, file.len())?;
        // SAFETY: the range is for these weights alone; no compute uses it before they are reported, and
        // nothing writes it afterwards. The arena outlives the source.
        let submitted = unsafe {
            self.source
                .submit(tag, file.begin, dst, file.len() as usize)
        };
        if !self.has_taken(submitted)? {
            return Ok(false);
        }
        *room = room.saturating_sub(file.len());
        self.incoming.sent();
        self.in_flight += 1;
        Ok(true)
    }
}

/// The read of that name has been reported.
pub(super) fn arrived(
    arena: &Arena,
    verifier: &mut Verifier,
    incoming: &mut Incoming,
    tag: LoadTag,
) -> Result<(), RuntimeError> {
    let file = incoming.range_of(tag);
    // SAFETY: the read is complete, and nothing overwrites resident weights.
    let bytes = unsafe { loaded(arena, place_of(arena, file)?, file.len())? };
    verifier.verify(file.begin, bytes)?;
    incoming.arrived(tag);
    Ok(())
}

/// Where a resident weight lies.
fn place_of(arena: &Arena, file: ByteRange) -> Result<u64, RuntimeError> {
    let place = arena.offset_of(file.begin);
    place.ok_or_else(|| RuntimeError::Mismatch {
        what: "plan",
        reason: format!("byte {} of the file is not resident", file.begin),
    })
}
