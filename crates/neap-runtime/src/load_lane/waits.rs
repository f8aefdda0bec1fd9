//! What an action waits for: whether it holds, and waiting until it does.

use super::LoadLane;
use crate::RuntimeError;
use crate::clock::Clock;
use crate::moves::Progress;
use crate::recorder::Recorder;
use neap_plan::{LaneId, Turn, Wait};

impl LoadLane {
    /// How far loads and computes are.
    pub(super) fn progress(&self) -> Progress {
        Progress {
            computes_done: self.done_computes,
            computes: self.computes,
            loads_arrived: self.prefix,
            loads: self.loads.len() as u64,
        }
    }

    fn holds(&self, wait: Wait, run: u64) -> bool {
        match (wait.lane, run.checked_sub(wait.run_back.into())) {
            (LaneId::STORE, Some(run)) => self.spill.has(run, wait.count),
            _ => self.progress().holds(wait, run),
        }
    }

    /// Whether the next load may start, as far as the plan goes.
    pub(super) fn may_load(&self) -> bool {
        let count = self.loads.len() as u64;
        let is_full = self.submitted - self.prefix >= self.arrived.window();
        if count == 0 || is_full || !self.arena.has_work() {
            return false;
        }
        let turn = self.loads[(self.submitted % count) as usize].turn;
        let run = self.submitted / count;
        self.progress().has_begun(turn, run) && turn.waits().all(|wait| self.holds(wait, run))
    }

    /// Whether what an action of the current run with that turn waits for holds, and the resident weights of the
    /// compute of that number, counted from the last (re)start, are here.
    pub(crate) fn has(&self, compute: u64, turn: Turn) -> bool {
        let run = self.run();
        turn.waits().all(|wait| self.holds(wait, run)) && self.has_residents(compute)
    }

    /// Whether all stores of the runs before are complete.
    pub(crate) fn has_stored(&self) -> bool {
        self.spill.has(self.run(), 0)
    }

    /// Waits for what [`LoadLane::has`] asks, starting others as they become possible.
    pub(crate) fn wait_for(
        &mut self,
        compute: u64,
        turn: Turn,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        while !self.has(compute, turn) {
            // With nothing in flight this fails instead of waiting for ever.
            if self.waits_for_spill(compute, turn) {
                self.poll_spill(true, clock, recorder)?;
                self.poll_source(false, clock, recorder)?;
            } else {
                self.poll_source(true, clock, recorder)?;
                self.poll_spill(false, clock, recorder)?;
            }
            // What may start when all is there starts beside the compute, which need not wait for that.
            if !self.has(compute, turn) {
                self.pump(clock, recorder)?;
            }
        }
        Ok(())
    }

    /// Whether what is missing next is the spill file's to do: a load that reads it, a store that a load
    /// waits for, or a store that is itself waited for.
    fn waits_for_spill(&self, compute: u64, turn: Turn) -> bool {
        if !self.has_residents(compute) && self.source.in_flight() > 0 {
            return false;
        }
        let count = self.loads.len() as u64;
        let loads = turn.wait_for(LaneId::LOAD);
        if count == 0 || loads.is_none_or(|wait| self.holds(wait, self.run())) {
            return true;
        }
        let load = &self.loads[(self.prefix % count) as usize];
        let stores = load.turn.wait_for(LaneId::STORE);
        let is_stored = stores.is_none_or(|wait| self.holds(wait, self.prefix / count));
        self.is_spill(load.from) || !is_stored
    }

    /// At the end of a run: waits for all of its stores, starting no loads.
    pub(crate) fn finish_stores(
        &mut self,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        while !self.has_stored() {
            let progress = self.progress();
            self.spill.pump(&self.arena, progress, clock, recorder)?;
            self.poll_spill(true, clock, recorder)?;
        }
        Ok(())
    }
}
