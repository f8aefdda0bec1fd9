//! `Session`: a program, its plan, the memory and the threads to run it again and again.

mod between;
mod kept;
mod memory;
mod recording;
mod states;

use crate::RuntimeError;
use crate::cancel::CancelToken;
use crate::clock::{Clock, Monotonic};
use crate::commons::{Commons, SharedWork};
use crate::device::{Cpu, Device};
use crate::execute::{Executor, Work};
use crate::fit::check_spill_room;
use crate::gates;
use crate::load_lane::LoadLane;
use crate::moves::{self, Moves};
use crate::pool::Pool;
use crate::prepared::Prepared;
use crate::recorder::Recorder;
use crate::resolve::Tables;
use crate::tensors::{self, InputTensor, OutputTensor};
pub use between::Replaced;
pub use kept::Kept;
use kept::kept_of;
use memory::Memory;
use neap_ir::{Program, TensorType};
use neap_kernels::parallel::Parallel;
use neap_kernels::simd::Isa;
use neap_plan::{Checked, RunTiming, Verdict};
use neap_store::{Source, Spill, StoreError, Verifier};
pub use states::StateInfo;
use states::States;
use std::sync::Arc;

/// How a session computes. The default is one thread and the best instruction set there is.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Workers, the calling thread included; at least 1.
    pub threads: usize,
    pub isa: Isa,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            threads: 1,
            isa: Isa::detect(),
        }
    }
}

/// Where a session's bytes come from, and where they go meanwhile.
pub struct BackingStore {
    /// Reads the packed file that the program describes.
    pub source: Box<dyn Source>,
    /// Holds its checksums.
    pub verifier: Verifier,
    /// For plans that store activations: at least [`ExecutionPlan::spill_bytes`] large. Where states stream it is new, so
    /// that it reads as zeros.
    pub spill: Option<Box<dyn Spill>>,
}

/// Figures since the session opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Runs that ended well.
    pub runs: u64,
    /// Time in which computing waited for loads.
    pub stall_ns: u64,
    /// Bytes read from storage for computes, table rows included, resident weights not.
    pub loaded_bytes: u64,
    /// Bytes moved for computes to a device's memory from what the host's keeps.
    pub copied_bytes: u64,
    /// Bytes of activations written to the spill file.
    pub stored_bytes: u64,
    /// Read once, beside the first run of a plan.
    pub resident_bytes: u64,
    pub arena_bytes: u64,
    /// The last run that ended well.
    pub last_run: Option<RunTiming>,
}

/// A model ready to run.
///
/// ```text
///   open   check everything ─► map the arena ─► start threads ─► start the first run's loads,
///                                                                resident weights among them
///   run    check tensors ─► compute … compute ─► outputs ─► start the next run's loads
///                           (loads start and arrive in between)
/// ```
/// One that is opened with [`Session::open_in`] has work memory during runs only: no loads of the next run are started.
///
/// Resident weights come beside the first run, in the order in which it needs them; [`Session::settle`] waits
/// for all of them.
/// Nothing is allocated on the heap by a run that succeeds. After an error, everything in flight has
/// been waited for and the next run starts like the first, unless storage failed for good.
pub struct Session<C: Clock = Monotonic> {
    // Dropped first, with the device: it has nothing in flight between runs, unless storage or it failed for good.
    executor: Executor,
    // Waits for its file, before the memory goes.
    states: States,
    // Waits for the loads in flight.
    lane: LoadLane,
    threads: usize,
    isa: Isa,
    recorder: Recorder,
    clock: C,
    verdict: Verdict,
    kept: Vec<Kept>,
    /// A run has left kept activations, which nothing has touched since.
    has_kept: bool,
    /// Work memory is shared with others, and outlives the lane.
    shared: Option<SharedWork>,
}

impl Session<Monotonic> {
    /// Checks that `plan` is for `program` and gets everything ready for runs.
    ///
    /// # Errors
    /// [`RuntimeError`] where plan, program and packed file do not belong together, or memory, threads or storage
    /// cannot be had.
    pub fn open(
        program: Arc<Program>,
        plan: Checked,
        storage: BackingStore,
        options: Options,
    ) -> Result<Session, RuntimeError> {
        let clock = Monotonic::default();
        Session::open_with_clock(program, plan, storage, options, clock)
    }

    /// [`Session::open`] with threads and work memory in common with other sessions, which may be opened, run and closed
    /// on any threads: runs take turns. Nothing is read before the first run, and nothing between runs but
    /// by [`Session::settle`]. Kept activations cannot be read, as others overwrite them.
    ///
    /// # Errors
    /// As [`Session::open`], but for threads. A run fails where [`SharedWork::bytes`] is less than its plan needs.
    pub fn open_in(
        commons: &Commons,
        program: Arc<Program>,
        plan: Checked,
        storage: BackingStore,
        isa: Isa,
    ) -> Result<Session, RuntimeError> {
        let device = Box::new(Cpu::new(commons.pool.clone(), isa));
        let threads = commons.pool.workers();
        let options = Options { threads, isa };
        let clock = Monotonic::default();
        let shared = Some(commons.work.clone());
        Session::open_as(device, shared, program, plan, storage, options, clock)
    }
}

impl<C: Clock> Session<C> {
    /// [`Session::open`] with a clock of the caller's.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub fn open_with_clock(
        program: Arc<Program>,
        plan: Checked,
        storage: BackingStore,
        options: Options,
        clock: C,
    ) -> Result<Session<C>, RuntimeError> {
        let threads = options.threads.max(1);
        let pool =
            Pool::new(threads).map_err(|source| RuntimeError::Threads { threads, source })?;
        let device = Box::new(Cpu::new(Arc::new(pool), options.isa));
        Session::open_on(device, program, plan, storage, options, clock)
    }

    /// [`Session::open_with_clock`] on a device of the caller's, whose kernels are those of `options`.
    ///
    /// # Errors
    /// As [`Session::open`], but for threads.
    pub fn open_on(
        device: Box<dyn Device>,
        program: Arc<Program>,
        plan: Checked,
        storage: BackingStore,
        options: Options,
        clock: C,
    ) -> Result<Session<C>, RuntimeError> {
        let mut session = Session::open_as(device, None, program, plan, storage, options, clock)?;
        session.prefetch();
        Ok(session)
    }

    fn open_as(
        mut device: Box<dyn Device>,
        shared: Option<SharedWork>,
        program: Arc<Program>,
        plan: Checked,
        storage: BackingStore,
        options: Options,
        clock: C,
    ) -> Result<Session<C>, RuntimeError> {
        program.check()?;
        let (workload, mut plan, verdict) = plan.into_parts();
        moves::check_lanes(&plan)?;
        let room_bytes = memory::spill_room_bytes(&plan, &storage);
        check_spill_room(&verdict, room_bytes)?;
        let threads = options.threads.max(1);
        let tables = Tables::new(&program, &workload, &plan, threads, options.isa)?;
        let kept = kept_of(&workload, &plan);
        let states = States::of(&workload, &plan);
        if shared.is_some() && !states.is_empty() {
            return Err(RuntimeError::Mismatch {
                what: "plan",
                reason: "work memory that is shared keeps no states".into(),
            });
        }
        let (gates, gated) = gates::find(&program, &workload, &plan);
        let memory = Memory::of(&mut *device, shared.is_some(), &plan, &states, storage)?;
        let moves = Moves::take(&mut plan);
        let Memory {
            arena,
            source,
            verifier,
            spill,
        } = memory;
        let mut lane = LoadLane::new(source, verifier, spill, arena, moves);
        lane.expect(&plan.resident, &plan.computes);
        lane.gate(gated);
        let work = Work {
            program,
            tables,
            prepared: Prepared::new(&workload, &plan),
            computes: plan.computes.into_boxed_slice(),
            gates,
        };
        Ok(Session {
            executor: Executor::new(work, device),
            states,
            lane,
            threads,
            isa: options.isa,
            recorder: Recorder::default(),
            clock,
            verdict,
            kept,
            has_kept: false,
            shared,
        })
    }

    /// Runs the model once. `inputs` and `outputs` are in the graph's order; inputs are read where
    /// they lie, and outputs computed where they lie, if the device can.
    ///
    /// # Errors
    /// [`RuntimeError`] where inputs or outputs do not fit the model, or loading or computing fails;
    /// [`StoreError::Changed`] where somebody wrote to the packed file meanwhile, and the same run again may end well.
    pub fn run(
        &mut self,
        inputs: &[InputTensor],
        outputs: &mut [OutputTensor],
    ) -> Result<(), RuntimeError> {
        tensors::check_inputs(&self.executor.program().graph, inputs)?;
        tensors::check_outputs(&self.executor.program().graph, outputs)?;
        if self.lane.is_broken() {
            return Err(RuntimeError::Unusable);
        }
        if let Some(bytes) = self.lane.borrowed_bytes() {
            return self.run_in_shared(bytes, inputs, outputs);
        }
        self.bring_states()?;
        self.states.begin_run();
        let result = self.execute(inputs, outputs);
        if result.is_err() {
            self.states.lose();
        }
        self.has_kept = result.is_ok() && !self.kept.is_empty();
        match result {
            // Loads of the next run would come where kept activations are.
            Ok(()) if self.has_kept => {}
            Ok(()) => self.prefetch(),
            Err(_) => self.restart(),
        }
        result
    }

    /// [`Session::run`], which ends at the boundary of a compute when `cancel` asks it to.
    ///
    /// # Errors
    /// As [`Session::run`], and [`RuntimeError::Cancelled`].
    pub fn run_unless(
        &mut self,
        cancel: &CancelToken,
        inputs: &[InputTensor],
        outputs: &mut [OutputTensor],
    ) -> Result<(), RuntimeError> {
        self.executor.obey(Some(cancel.clone()));
        let result = self.run(inputs, outputs);
        self.executor.obey(None);
        result
    }

    fn execute(
        &mut self,
        inputs: &[InputTensor],
        outputs: &mut [OutputTensor],
    ) -> Result<(), RuntimeError> {
        self.forget_stale()?;
        let result = self.executor.run(
            &mut self.lane,
            &mut self.clock,
            &mut self.recorder,
            inputs,
            outputs,
        );
        // Where the file changed meanwhile, that is why other things failed.
        self.check_file().and(result)
    }

    /// A run in work memory that others use before and after it.
    fn run_in_shared(
        &mut self,
        bytes: u64,
        inputs: &[InputTensor],
        outputs: &mut [OutputTensor],
    ) -> Result<(), RuntimeError> {
        let shared = self.shared.clone().ok_or(RuntimeError::Unusable)?;
        let lease = shared.lease(bytes)?;
        self.lane.enter(lease.addresses());
        self.executor.forget_prepared();
        let result = self.execute(inputs, outputs);
        if result.is_err() {
            self.restart();
        }
        if self.lane.leave() {
            self.recorder.lane_restarted();
        }
        if self.lane.is_broken() {
            lease.give_up();
        }
        result
    }

    /// Looks whether somebody wrote to the packed file since the last look. What was read since then is forgotten if
    /// it may be wrong, and this is an error.
    fn check_file(&mut self) -> Result<(), RuntimeError> {
        let stands = self.lane.check_file();
        if stands.is_err() {
            self.executor.forget_prepared();
            self.recorder.lane_restarted();
        }
        stands
    }

    /// As [`Session::check_file`], before anything was computed with what was read.
    fn forget_stale(&mut self) -> Result<(), RuntimeError> {
        match self.check_file() {
            Err(RuntimeError::Store(StoreError::Changed { .. })) => Ok(()),
            checked => checked,
        }
    }

    /// [`Session::run`] with inputs in any order, by name.
    ///
    /// # Errors
    /// As [`Session::run`], and for names that the model does not have.
    pub fn run_named(
        &mut self,
        inputs: &[(&str, InputTensor)],
        outputs: &mut [OutputTensor],
    ) -> Result<(), RuntimeError> {
        let ordered = tensors::order_by_name(&self.executor.program().graph, inputs)?;
        self.run(&ordered, outputs)
    }

    /// What an output is after a run: `None` where its type is the graph's. One with a size that is known late fills only
    /// the beginning of the caller's memory.
    pub fn actual_output(&self, index: usize) -> Option<&TensorType> {
        self.executor.actual_output(index)
    }

    /// Starts loads of the next run. An error is left to the run that needs them.
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

    pub fn program(&self) -> &Arc<Program> {
        self.executor.program()
    }

    /// Name and type of each input, in order.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = (&str, &TensorType)> {
        let graph = &self.program().graph;
        let describe = |&v| (graph.value(v).name.as_str(), graph.ty(v));
        graph.inputs.iter().map(describe)
    }

    /// Name and type of each output, in order.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = (&str, &TensorType)> {
        let graph = &self.program().graph;
        let describe = |&v| (graph.value(v).name.as_str(), graph.ty(v));
        graph.outputs.iter().map(describe)
    }

    pub fn stats(&self) -> Stats {
        Stats {
            runs: self.recorder.runs(),
            stall_ns: self.recorder.stall_ns(),
            loaded_bytes: self.lane.loaded_bytes(),
            copied_bytes: self.lane.copied_bytes(),
            stored_bytes: self.lane.stored_bytes(),
            resident_bytes: self.verdict.resident_bytes,
            arena_bytes: self.lane.arena_bytes(),
            last_run: self.recorder.last_run(),
        }
    }

    /// Bytes of resident weights that are in memory.
    pub fn held_bytes(&self) -> u64 {
        self.lane.held_bytes()
    }

    /// What the kernel charges for resident weights. Until the first run has read all of them that is more than
    /// [`Session::held_bytes`]: pages are there before loads have arrived in them.
    pub fn residents_bytes(&self) -> u64 {
        self.lane.residents_bytes()
    }

    /// What the plan was found to use.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Size of the spill file; 0 without one.
    pub fn spill_room_bytes(&self) -> u64 {
        self.lane.spill_room_bytes()
    }

    /// What computes: `cpu`.
    pub fn device_name(&self) -> &'static str {
        self.executor.device_name()
    }

    /// `uring`, `pread` or `memory`.
    pub fn source_name(&self) -> &'static str {
        self.lane.source_name()
    }

    /// Bytes that checksums take until all weights have been checked.
    pub fn verifier_bytes(&self) -> usize {
        self.lane.verifier_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_may_move_between_threads() {
        fn movable<T: Send>() {}
        movable::<Session>();
    }
}
