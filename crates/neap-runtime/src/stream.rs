//! `WeightStream`: runs a plan whose computes are the caller's. It brings the weights of each; what is computed with them is
//! the caller's business.
//!
//! ```text
//!   WeightStream   load w0 │ load w1 │ load w2 │ …        ring and residents, as the plan says
//!   caller                 │ c0(w0)  │ c1(w1)  │ …        on this thread and the pool's
//! ```
//! Passes follow each other without a gap: the tail of one prefetches the head of the next. Everything that is in memory is
//! a place of the plan, which was proved safe when it came.

use crate::RuntimeError;
use crate::arena::{Arena, Needs};
use crate::caller_work::CallerWork;
use crate::cancel::CancelToken;
use crate::clock::{Clock, Monotonic};
use crate::load_lane::{Intake, LoadLane, address_in};
use crate::moves::{self, Moves};
use crate::pool::Pool;
use crate::recorder::Recorder;
use neap_kernels::parallel::Parallel;
use neap_plan::{
    Checked, Compute, Held, PanelRange, StepId, Transition, Verdict, Workload, validate_transition,
};
use neap_store::{RangeRead, Source, Verifier};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One compute of the plan, and its weights.
pub struct Part<'a> {
    /// Index among the computes of a pass.
    pub index: usize,
    pub step: StepId,
    pub panels: PanelRange,
    /// The panels as they lie in the file, one after the other; empty for a step without weights.
    pub weights: &'a [u8],
}

/// What a compute of the caller's gives: an error in one line ends the pass.
pub type Computed = Result<(), String>;

/// A plan's weights, brought again and again.
pub struct WeightStream<C: Clock = Monotonic> {
    lane: LoadLane,
    computes: Box<[Compute]>,
    /// Bytes of one panel, by step.
    panel_bytes: Box<[u64]>,
    pool: Arc<Pool>,
    recorder: Recorder,
    clock: C,
    verdict: Verdict,
}

impl WeightStream<Monotonic> {
    /// Gets everything ready, and starts the first pass's loads.
    ///
    /// # Errors
    /// [`RuntimeError`] where the plan asks for more than weights in panels, or memory cannot be had.
    pub fn open(
        plan: Checked,
        source: Box<dyn Source>,
        verifier: Verifier,
        pool: Arc<Pool>,
    ) -> Result<Self, RuntimeError> {
        WeightStream::open_with_clock(plan, source, verifier, pool, Monotonic::default())
    }
}

impl<C: Clock> WeightStream<C> {
    /// [`WeightStream::open`] with a clock of the caller's.
    ///
    /// # Errors
    /// As [`WeightStream::open`].
    pub fn open_with_clock(
        plan: Checked,
        source: Box<dyn Source>,
        verifier: Verifier,
        pool: Arc<Pool>,
        clock: C,
    ) -> Result<Self, RuntimeError> {
        check(&plan)?;
        let (workload, mut plan, verdict) = plan.into_parts();
        let needs = Needs::of(&plan);
        let bytes = needs.memory_bytes;
        let arena = Arena::new(needs).map_err(|source| RuntimeError::Arena { bytes, source })?;
        let moves = Moves::take(&mut plan);
        let mut lane = LoadLane::new(Intake::Straight(source), verifier, None, arena, moves);
        lane.expect(&plan.resident, &plan.computes);
        let mut stream = WeightStream {
            lane,
            computes: plan.computes.into_boxed_slice(),
            panel_bytes: panel_bytes(&workload),
            pool,
            recorder: Recorder::default(),
            clock,
            verdict,
        };
        stream.prefetch();
        Ok(stream)
    }

    /// One pass over the plan's computes, in order. `compute` is told each with its weights, and may use the [`Parallel`] it is
    /// given: meanwhile loads are started and noted.
    ///
    /// # Errors
    /// Of storage, of `compute` ([`RuntimeError::Device`] with its line), or [`RuntimeError::Cancelled`]. The next pass then begins anew.
    pub fn pass(
        &mut self,
        cancel: &CancelToken,
        compute: &mut dyn FnMut(Part<'_>, &dyn Parallel) -> Computed,
    ) -> Result<(), RuntimeError> {
        if self.lane.is_broken() {
            return Err(RuntimeError::Unusable);
        }
        self.lane.check_file()?;
        self.lane.prepare();
        self.recorder.run_begins(self.clock.now_ns());
        let passed = self.compute_all(cancel, compute);
        let passed = self.lane.check_file().and(passed);
        match passed {
            Ok(()) => {
                self.recorder.run_ends(self.clock.now_ns());
                self.prefetch();
            }
            Err(_) => self.restart(),
        }
        passed
    }

    fn compute_all(
        &mut self,
        cancel: &CancelToken,
        compute: &mut dyn FnMut(Part<'_>, &dyn Parallel) -> Computed,
    ) -> Result<(), RuntimeError> {
        let run = self.lane.run();
        for index in 0..self.computes.len() {
            if cancel.is_cancelled() {
                return Err(RuntimeError::Cancelled);
            }
            self.lane.poll(&self.clock, &mut self.recorder)?;
            self.wait_for(run, index)?;
            self.compute(index, compute)?;
            self.lane.compute_done();
        }
        Ok(())
    }

    fn wait_for(&mut self, run: u64, index: usize) -> Result<(), RuntimeError> {
        let turn = self.computes[index].turn;
        let number = run * self.computes.len() as u64 + index as u64;
        if self.lane.has(number, turn) {
            return Ok(());
        }
        let begin_ns = self.clock.now_ns();
        self.lane.pump(&self.clock, &mut self.recorder)?;
        let (clock, recorder) = (&self.clock, &mut self.recorder);
        self.lane.wait_for(number, turn, clock, recorder)?;
        let waited_ns = self.clock.now_ns().saturating_sub(begin_ns);
        self.recorder.stalled(waited_ns);
        Ok(())
    }

    fn compute(
        &mut self,
        index: usize,
        compute: &mut dyn FnMut(Part<'_>, &dyn Parallel) -> Computed,
    ) -> Result<(), RuntimeError> {
        let planned = &self.computes[index];
        let step = planned.step;
        let bytes = self.panel_bytes[step.index()] * u64::from(planned.panels.len());
        let weights = match planned.weights.panels {
            Some(at) => {
                let start = address_in(&self.lane.map(), at, bytes)?;
                // SAFETY: the range lies in the arena, whose bytes are always initialised. The plan is valid: the loads that
                // bring it are complete, and nothing writes it before this compute is done.
                unsafe { std::slice::from_raw_parts(start.cast_const(), bytes as usize) }
            }
            None => &[],
        };
        let part = Part {
            index,
            step,
            panels: planned.panels,
            weights,
        };
        let mut pumped = Ok(());
        let looks = self.lane.looks();
        let may_start = self.lane.may_start();
        let (lane, clock, recorder) = (&mut self.lane, &self.clock, &mut self.recorder);
        let mut pump = || {
            if pumped.is_ok() {
                pumped = lane.proceed(clock, recorder);
            }
        };
        let computed = {
            let work = (may_start || looks).then_some(&mut pump as &mut (dyn FnMut() + Send));
            let par = CallerWork::new(&self.pool, work, looks, None);
            let computed = catch_unwind(AssertUnwindSafe(|| compute(part, &par)));
            par.finish();
            computed
        };
        pumped?;
        let reason = match computed {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(reason)) => reason,
            Err(_) => "a computation panicked".to_owned(),
        };
        Err(RuntimeError::Device {
            device: "cpu",
            reason,
        })
    }

    /// Reads ranges of the file now, past the plan: rows of tables. Whole blocks.
    ///
    /// # Errors
    /// Of storage.
    ///
    /// # Safety
    /// As [`Source::read_ranges`], for every range.
    pub unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), RuntimeError> {
        // SAFETY: passed on.
        unsafe { self.lane.read_now(reads) }
    }

    /// What another plan may go on with: what is in memory of resident weights. Waits for loads in flight.
    ///
    /// # Errors
    /// [`RuntimeError::Unusable`] when storage has failed for good.
    pub fn held(&mut self) -> Result<Held, RuntimeError> {
        let held = self.lane.held();
        self.recorder.lane_restarted();
        held
    }

    /// Goes over to another plan between passes, for other room: of the same workload or of one with the same steps in other
    /// slices. `transition` says what stays in memory of what is [`WeightStream::held`], and is checked for that.
    ///
    /// # Errors
    /// Where plan or transition are not valid, or memory cannot be had: the old plan stays in force.
    pub fn replace(&mut self, plan: Checked, transition: &Transition) -> Result<(), RuntimeError> {
        check(&plan)?;
        let (workload, mut plan, verdict) = plan.into_parts();
        let held = self.held()?;
        validate_transition(&held, &plan, transition)?;
        let needs = Needs::of(&plan);
        let moves = Moves::take(&mut plan);
        self.lane.replace(needs, &transition.keeps, None, moves)?;
        self.lane.expect(&transition.reads, &plan.computes);
        self.computes = plan.computes.into_boxed_slice();
        self.panel_bytes = panel_bytes(&workload);
        self.verdict = verdict;
        self.prefetch();
        Ok(())
    }

    /// Waits until all resident weights are in memory.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn settle(&mut self) -> Result<(), RuntimeError> {
        self.lane.prepare();
        let settled = self.lane.settle(&self.clock, &mut self.recorder);
        if settled.is_err() {
            self.restart();
        }
        settled
    }

    /// Gives the memory of everything but resident weights back to the kernel until the next pass.
    pub fn rest(&mut self) {
        self.lane.rest();
        self.recorder.lane_restarted();
    }

    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Bytes read for computes since it opened, resident weights left out.
    pub fn loaded_bytes(&self) -> u64 {
        self.lane.loaded_bytes()
    }

    /// Time in which computing waited for loads since it opened.
    pub fn stall_ns(&self) -> u64 {
        self.recorder.stall_ns()
    }

    /// `uring`, `pread` or `memory`.
    pub fn source_name(&self) -> &'static str {
        self.lane.source_name()
    }

    fn prefetch(&mut self) {
        self.lane.prepare();
        if self.lane.pump(&self.clock, &mut self.recorder).is_err() {
            self.restart();
        }
    }

    fn restart(&mut self) {
        self.lane.stop();
        self.recorder.lane_restarted();
    }
}

/// A stream's plan has nothing but panels of weights.
fn check(checked: &Checked) -> Result<(), RuntimeError> {
    let (workload, plan) = (checked.workload(), checked.plan());
    moves::check_lanes(plan)?;
    let has_more = |step: &neap_plan::StepSpec| !step.extents.is_empty() || step.rows.is_some();
    let is_more = workload.steps.iter().any(has_more) || !workload.buffers.is_empty();
    if is_more || checked.verdict().spill_bytes > 0 || plan.host_bytes() > 0 {
        return Err(RuntimeError::Mismatch {
            what: "workload",
            reason: "a stream brings panels of weights, and nothing else".into(),
        });
    }
    Ok(())
}

fn panel_bytes(workload: &Workload) -> Box<[u64]> {
    let of = |step: &neap_plan::StepSpec| step.panels.map_or(0, |panels| panels.panel_bytes);
    workload.steps.iter().map(of).collect()
}
