//! What happened in runs, as a timeline.

use super::Session;
use crate::clock::Clock;
use neap_plan::Timeline;

impl<C: Clock> Session<C> {
    /// Records the next `runs` runs; memory for that is set aside now.
    pub fn record_timeline(&mut self, runs: usize) {
        let loads = self.lane.loads_per_run() as usize;
        let stores = self.lane.stores_per_run() as usize;
        // Loads of the run after the last may be seen to arrive too.
        let spans = runs
            .saturating_mul(self.executor.computes() + loads + stores)
            .saturating_add(2 * loads);
        self.recorder
            .start(spans, runs, (self.lane.window(), stores), self.lane.run());
    }

    /// What has been recorded so far.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.recorder.timeline()
    }

    /// Hands out what has been recorded, and records as many runs again.
    pub fn drain_timeline(&mut self, read: impl FnOnce(&Timeline)) {
        self.recorder.drain(read);
    }

    /// The time on the timeline's clock.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Ends recording.
    pub fn take_timeline(&mut self) -> Option<Timeline> {
        self.recorder.take()
    }
}
