//! The load lane's part in resident weights: they share storage with the plan's loads until all are here.

use super::{LoadLane, address_in, loaded};
use crate::RuntimeError;
use crate::arena::Arena;
use crate::clock::Clock;
use crate::incoming::Incoming;
use crate::recorder::Recorder;
use neap_plan::{Compute, ResidentLoad};
use neap_store::{LoadTag, Verifier};

impl LoadLane {
    /// After [`LoadLane::new`] or [`LoadLane::replace`]: from now on these resident weights come beside the runs of a
    /// plan with these computes.
    pub(crate) fn expect(&mut self, reads: &[ResidentLoad], computes: &[Compute]) {
        self.incoming = Incoming::new(reads, computes, self.loads.len());
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

    /// Looks whether somebody wrote to the packed file since the last look. After an error nothing is in flight any
    /// more, and what came since then is forgotten, resident weights included.
    pub(crate) fn check_file(&mut self) -> Result<(), RuntimeError> {
        let stands = self.verifier.check_file();
        match stands {
            Ok(()) => self.incoming.confirm(),
            Err(_) => {
                self.incoming.doubt();
                self.stop();
                self.source.forget_copies();
            }
        }
        Ok(stands?)
    }

    /// Whether those are here that the compute of that number uses, and those before it.
    pub(super) fn has_residents(&self, compute: u64) -> bool {
        self.incoming.serves(compute)
    }

    /// Starts reading the next resident weights; false when there is no room for them just now.
    pub(super) fn submit_resident(&mut self, room: &mut u64) -> Result<bool, RuntimeError> {
        let Some((tag, load)) = self.incoming.next() else {
            return Ok(false);
        };
        let is_full = match self.group_bytes {
            0 => self.incoming.is_full(),
            _ => self.in_flight > 0 && load.bytes > *room || self.incoming.is_crowded(),
        };
        if is_full {
            return Ok(false);
        }
        let dst = address_in(self.arena.map(), load.to, load.bytes)?;
        // SAFETY: the range is for these weights alone; no compute uses it before they are reported, and
        // nothing writes it afterwards. The arena outlives the source.
        let submitted = unsafe {
            self.source
                .submit(tag, load.from.offset, dst, load.bytes as usize)
        };
        if !self.has_taken(submitted)? {
            return Ok(false);
        }
        *room = room.saturating_sub(load.bytes);
        self.incoming.sent();
        self.in_flight += 1;
        Ok(true)
    }
}

/// The read of that name has been reported: whether it is as it should be.
pub(super) fn check(
    arena: &Arena,
    verifier: &mut Verifier,
    incoming: &Incoming,
    tag: LoadTag,
) -> Result<(), RuntimeError> {
    let load = incoming.load_of(tag);
    // SAFETY: the read is complete, and nothing overwrites resident weights.
    let bytes = unsafe { loaded(arena, load.to, load.bytes)? };
    Ok(verifier.verify(load.from.offset, bytes)?)
}
