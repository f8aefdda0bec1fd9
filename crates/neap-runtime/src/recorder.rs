//! Counts stalls always, and records a timeline when asked, in memory set aside beforehand.

use crate::clock::Clock;
use neap_plan::{LaneId, RunTiming, Span, Timeline};

/// A submission time that was not recorded.
const UNSEEN: u64 = u64::MAX;

/// What happened, as the executor's thread saw it.
///
/// A load that completes while a step computes is noticed when the step is done, so the end of its
/// span is at most one compute late.
#[derive(Default)]
pub(crate) struct Recorder {
    timeline: Option<Timeline>,
    /// When each load in flight was submitted, by number modulo the length.
    submitted_ns: Box<[u64]>,
    /// The same of stores.
    stores_ns: Box<[u64]>,
    /// Added to the load lane's count of runs to get the timeline's.
    run_offset: i64,
    stall_ns: u64,
    run: RunTiming,
    last_run: Option<RunTiming>,
    runs: u64,
}

impl Recorder {
    /// Records from now on until so many spans and runs are full. `lane_run` is the load lane's count,
    /// `window` the most loads that can be in flight.
    /// `stores` is how many stores a run has.
    pub(crate) fn start(
        &mut self,
        spans: usize,
        runs: usize,
        (window, stores): (usize, usize),
        lane_run: u64,
    ) {
        self.timeline = Some(Timeline::with_capacity(spans, runs));
        self.submitted_ns = vec![UNSEEN; window.next_power_of_two()].into_boxed_slice();
        self.stores_ns = vec![UNSEEN; stores].into_boxed_slice();
        self.run_offset = -(lane_run as i64);
    }

    /// The load lane counts from 0 again.
    pub(crate) fn lane_restarted(&mut self) {
        self.run_offset = self.timeline.as_ref().map_or(0, |t| t.runs.len() as i64);
        self.submitted_ns.fill(UNSEEN);
        self.stores_ns.fill(UNSEEN);
    }

    pub(crate) fn take(&mut self) -> Option<Timeline> {
        self.submitted_ns = Box::default();
        self.stores_ns = Box::default();
        self.timeline.take()
    }

    /// Hands out what has been recorded, and goes on: the run after the last of it is the first of what comes.
    pub(crate) fn drain(&mut self, read: impl FnOnce(&Timeline)) {
        if let Some(timeline) = &mut self.timeline {
            read(timeline);
            self.run_offset -= timeline.runs.len() as i64;
            timeline.spans.clear();
            timeline.runs.clear();
        }
    }

    pub(crate) fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }

    pub(crate) fn stall_ns(&self) -> u64 {
        self.stall_ns
    }

    pub(crate) fn runs(&self) -> u64 {
        self.runs
    }

    pub(crate) fn last_run(&self) -> Option<RunTiming> {
        self.last_run
    }

    pub(crate) fn load_submitted(&mut self, number: u64, clock: &impl Clock) {
        if self.timeline.is_some() {
            let at = number as usize & (self.submitted_ns.len() - 1);
            self.submitted_ns[at] = clock.now_ns();
        }
    }

    pub(crate) fn load_arrived(&mut self, number: u64, loads_per_run: u64, clock: &impl Clock) {
        let Some(timeline) = &mut self.timeline else {
            return;
        };
        let at = number as usize & (self.submitted_ns.len() - 1);
        let start_ns = std::mem::replace(&mut self.submitted_ns[at], UNSEEN);
        let run = (number / loads_per_run) as i64 + self.run_offset;
        // One that was in flight when recording began has no start to show.
        if start_ns != UNSEEN && run >= 0 {
            timeline.record(Span {
                lane: LaneId::LOAD,
                run: run as u32,
                action: (number % loads_per_run) as u32,
                ready_ns: start_ns,
                start_ns,
                end_ns: clock.now_ns(),
            });
        }
    }

    pub(crate) fn store_submitted(&mut self, number: u64, clock: &impl Clock) {
        let count = self.stores_ns.len() as u64;
        if let (true, Some(at)) = (self.timeline.is_some(), number.checked_rem(count)) {
            self.stores_ns[at as usize] = clock.now_ns();
        }
    }

    pub(crate) fn stored(&mut self, number: u64, stores_per_run: u64, clock: &impl Clock) {
        let Some(timeline) = &mut self.timeline else {
            return;
        };
        let action = (number % stores_per_run) as usize;
        let start = self.stores_ns.get_mut(action);
        let start_ns = start.map_or(UNSEEN, |at| std::mem::replace(at, UNSEEN));
        let run = (number / stores_per_run) as i64 + self.run_offset;
        if start_ns != UNSEEN && run >= 0 {
            timeline.record(Span {
                lane: LaneId::STORE,
                run: run as u32,
                action: action as u32,
                ready_ns: start_ns,
                start_ns,
                end_ns: clock.now_ns(),
            });
        }
    }

    pub(crate) fn run_begins(&mut self, now_ns: u64) {
        self.run = RunTiming {
            start_ns: now_ns,
            end_ns: now_ns,
            stall_ns: 0,
        };
    }

    pub(crate) fn stalled(&mut self, ns: u64) {
        self.stall_ns += ns;
        self.run.stall_ns += ns;
    }

    /// Records a compute between two moments that the caller takes with [`Recorder::moment`].
    pub(crate) fn computed(&mut self, run: u64, compute: usize, times_ns: [u64; 3]) {
        if let Some(timeline) = &mut self.timeline {
            let [ready_ns, start_ns, end_ns] = times_ns;
            timeline.record(Span {
                lane: LaneId::COMPUTE,
                run: (run as i64 + self.run_offset) as u32,
                action: compute as u32,
                ready_ns,
                start_ns,
                end_ns,
            });
        }
    }

    /// The time, when something is recorded; a clock read per compute is saved otherwise.
    pub(crate) fn moment(&self, clock: &impl Clock) -> u64 {
        if self.timeline.is_some() {
            clock.now_ns()
        } else {
            0
        }
    }

    pub(crate) fn run_ends(&mut self, now_ns: u64) {
        self.run.end_ns = now_ns;
        self.runs += 1;
        self.last_run = Some(self.run);
        if let Some(timeline) = &mut self.timeline
            && timeline.runs.len() < timeline.runs.capacity()
        {
            timeline.runs.push(self.run);
        }
    }
}
