//! Runs a session again and again while its budget changes, and keeps the figures.
//!
//! ```text
//!   until the end:  budget due? ─► limit up ─► set_budget ─► limit down      the limit: with --enforce
//!                   run ─► latency, memory ─► live view, trace
//! ```

use super::follow::{LimitWatch, PressureWatch};
use super::live::Live;
use super::peak::PeakMeter;
use super::sample::Sample;
use super::schedule::Schedule;
use super::trace::Trace;
use crate::cgroup::{Found, limits};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::meter::{Cost, Meter};
use crate::progress::note;
use crate::report::{Adapted, ms};
use neaptide::{Budget, Error, Session, memory};
use std::time::{Duration, Instant};

/// Where budgets come from.
pub enum Budgets {
    Fixed,
    Schedule(Schedule),
    Limit(LimitWatch),
    Pressure(PressureWatch),
}

/// When it is over: whichever comes first. With neither, when a signal asks for it.
pub struct End {
    pub runs: Option<u64>,
    pub after: Option<Duration>,
    /// Not before a run within the schedule's last budget, however long the runs before it took.
    pub with_last_budget: bool,
}

/// Latencies are kept of so many runs, the last ones.
const KEPT_RUNS: usize = 4096;

/// Adaptations are told one by one up to so many.
const TOLD_ADAPTATIONS: usize = 1024;

/// Memory is looked at no more often.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Figures of runs, in memory set aside before; where runs are too many, of the last ones.
pub struct Figures {
    pub first_ns: u64,
    pub latency_ns: Vec<u64>,
    pub stall_ns: Vec<u64>,
    pub loaded_bytes: Vec<u64>,
    pub adaptations: Vec<Adapted>,
    /// Of all measured runs, with what changes of the budget took between them.
    pub cost: Option<Cost>,
    most: usize,
    most_adaptations: usize,
    /// All measured runs, those whose figures are not kept included.
    pub runs: usize,
}

impl Figures {
    /// For so many measured runs, if that is known, and changes of the budget.
    pub fn new(runs: Option<u32>, adaptations: usize) -> Figures {
        let most = runs.map_or(KEPT_RUNS, |n| n as usize);
        Figures {
            first_ns: 0,
            latency_ns: Vec::with_capacity(most),
            stall_ns: Vec::with_capacity(most),
            loaded_bytes: Vec::with_capacity(most),
            adaptations: Vec::new(),
            cost: None,
            most,
            most_adaptations: adaptations.min(TOLD_ADAPTATIONS),
            runs: 0,
        }
    }

    /// Bytes that will be touched as figures come in.
    pub fn reserve_bytes(&self) -> u64 {
        let adapted = self.most_adaptations * size_of::<Adapted>();
        (3 * self.most * size_of::<u64>() + adapted) as u64
    }

    fn add(&mut self, latency_ns: u64, stall_ns: u64, loaded_bytes: u64) {
        let at = self.runs % self.most;
        for (list, value) in [
            (&mut self.latency_ns, latency_ns),
            (&mut self.stall_ns, stall_ns),
            (&mut self.loaded_bytes, loaded_bytes),
        ] {
            match list.get_mut(at) {
                Some(old) => *old = value,
                None => list.push(value),
            }
        }
        self.runs += 1;
    }
}

pub struct Repeat<'a> {
    pub session: &'a mut Session,
    pub budgets: Budgets,
    pub end: End,
    pub warmup: u64,
    /// The cgroup that this process is alone in, whose limit follows the budget.
    pub own: Option<Found>,
    pub peak: &'a mut PeakMeter,
    pub live: Option<Live>,
    pub trace: Option<Trace>,
    pub figures: &'a mut Figures,
}

/// How the last run ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Last {
    Whole,
    /// A signal ended it, and its outputs mean nothing.
    CutShort,
}

impl Repeat<'_> {
    /// Returns with the outputs of the last run in `outputs`; or fails where a signal came before any was measured.
    pub fn run(mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Outcome<Last> {
        let cancel = interrupt::token();
        let mut last = Last::Whole;
        let open_ended = self.end.runs.is_none() && self.end.after.is_none();
        let _deferred = open_ended.then(interrupt::defer);
        let adaptations = self.figures.most_adaptations;
        self.figures.adaptations.reserve_exact(adaptations);
        let began = Instant::now();
        let mut looked = None;
        let mut memory_bytes = 0;
        let mut run = 0;
        let mut meter = None;
        // What is measured is at least one run.
        while run <= self.warmup || !self.is_over(run, began.elapsed()) {
            // Before the first run, memory is there that nothing was read into yet: it would count as the process's own.
            let may_adapt = run > 0 || matches!(self.budgets, Budgets::Schedule(_));
            let adaptation_ms = match may_adapt {
                true => self.adapt_when_due(began.elapsed())?,
                false => 0.0,
            };
            if run == self.warmup {
                meter = Some(Meter::start());
            }
            let before = self.session.stats();
            let started = Instant::now();
            match self.session.run_unless(&cancel, inputs, outputs) {
                Err(Error::Cancelled) => {
                    last = Last::CutShort;
                    break;
                }
                ran => ran?,
            }
            let latency_ns = started.elapsed().as_nanos() as u64;
            let after = self.session.stats();
            let stall_ns = after.stall_ns - before.stall_ns;
            run += 1;
            if run == 1 {
                self.figures.first_ns = latency_ns;
            }
            if run > self.warmup {
                let loaded_bytes = after.loaded_bytes - before.loaded_bytes;
                self.figures.add(latency_ns, stall_ns, loaded_bytes);
            }
            if let Some(phase) = self.figures.adaptations.last_mut() {
                phase.runs += 1;
                phase.latency_ms_total += ms(latency_ns);
            }
            if self.live.is_none() && self.trace.is_none() {
                continue;
            }
            let now = began.elapsed();
            if adaptation_ms > 0.0 || looked.is_none_or(|then| now >= then + LOOK_EVERY) {
                memory_bytes = memory::counted_bytes(self.own.is_some());
                looked = Some(now);
            }
            let sample = Sample {
                time_s: now.as_secs_f64(),
                run,
                latency_ms: ms(latency_ns),
                stall_ms: ms(stall_ns),
                budget_bytes: self.session.budget_bytes(),
                memory_bytes,
                adaptation_ms,
            };
            if let Some(trace) = &mut self.trace {
                trace.add(&sample)?;
            }
            if let Some(live) = &mut self.live {
                live.add(&sample);
            }
        }
        self.figures.cost = meter.as_ref().map(Meter::stop);
        let peak_bytes = self.peak.take();
        if let Some(phase) = self.figures.adaptations.last_mut() {
            phase.peak_memory_bytes = peak_bytes;
        }
        if let Some(live) = self.live {
            live.finish();
        }
        self.trace.map_or(Ok(()), Trace::finish)?;
        if self.figures.runs == 0 {
            interrupt::check()?;
        }
        Ok(last)
    }

    fn is_over(&self, run: u64, now: Duration) -> bool {
        interrupt::noted().is_some()
            || (self.end.runs).is_some_and(|n| run >= n + self.warmup)
            || self.end.after.is_some_and(|t| now >= t) && !self.waits_for_last_budget()
    }

    fn waits_for_last_budget(&self) -> bool {
        matches!(&self.budgets, Budgets::Schedule(schedule)
            if self.end.with_last_budget && !schedule.is_given())
    }

    /// Milliseconds that it took; 0 when there was nothing to do.
    fn adapt_when_due(&mut self, now: Duration) -> Outcome<f64> {
        let followed = |bytes: u64| Some(Budget::Bytes(bytes));
        let budget = match &mut self.budgets {
            Budgets::Fixed => None,
            Budgets::Schedule(schedule) => schedule.due(now),
            Budgets::Limit(watch) => followed(watch.budget_bytes()),
            Budgets::Pressure(watch) => followed(watch.budget_bytes(now)),
        };
        let current = self.session.budget_bytes();
        match budget {
            None => Ok(0.0),
            Some(Budget::Bytes(bytes)) if current == Some(bytes) => Ok(0.0),
            Some(Budget::Unlimited) if current.is_none() => Ok(0.0),
            Some(budget) => self.adapt(budget, now),
        }
    }

    fn adapt(&mut self, budget: Budget, now: Duration) -> Outcome<f64> {
        let peak_bytes = self.peak.take();
        if let Some(phase) = self.figures.adaptations.last_mut() {
            phase.peak_memory_bytes = peak_bytes;
        }
        let is_growth = match (self.session.budget_bytes(), budget) {
            (Some(old), Budget::Bytes(new)) => new > old,
            _ => false,
        };
        if is_growth {
            self.move_limit(budget)?;
        }
        let done = match self.session.set_budget(budget) {
            Ok(done) => done,
            // The range that is followed was found when the process was smaller.
            Err(error @ Error::Infeasible { .. })
                if !matches!(self.budgets, Budgets::Schedule(_)) =>
            {
                note(&format!("{error}; the budget stays as it is"));
                self.budgets = Budgets::Fixed;
                return Ok(0.0);
            }
            Err(error) => return Err(error.into()),
        };
        if !is_growth {
            self.move_limit(budget)?;
        }
        let adapted = Adapted::new(now.as_secs_f64(), &done, self.peak.take());
        let total_ms = adapted.total_ms;
        if self.figures.adaptations.len() < self.figures.most_adaptations {
            self.figures.adaptations.push(adapted);
        }
        Ok(total_ms)
    }

    fn move_limit(&self, budget: Budget) -> Outcome {
        match (&self.own, budget) {
            (Some(own), Budget::Bytes(bytes)) => limits::set(own, bytes).map_err(Failure::Internal),
            _ => Ok(()),
        }
    }
}
