//! The executor: one thread interprets all lanes of a plan, with the pool's help in kernels.
//!
//! ```text
//!   for each compute:  note loads that have arrived, and computes that are complete
//!                      not all here that it needs?  start loads and stores, wait: a stall
//!                      submit the step, or its slice of panels; meanwhile start what may start
//! ```

mod operands;
mod outputs;

use crate::RuntimeError;
use crate::cancel::CancelToken;
use crate::clock::Clock;
use crate::device::{Device, Job, JobError, Meanwhile};
use crate::gates::Gates;
use crate::late::LateTypes;
use crate::load_lane::LoadLane;
use crate::prepared::Prepared;
use crate::recorder::Recorder;
use crate::resolve::{Step, Tables};
use crate::rows::{Gather, RowBatch};
use crate::tensors::{InputTensor, OutputTensor};
use neap_ir::{Program, TensorType};
use neap_ops::{OpError, TensorMut, TensorRef};
use neap_plan::Compute;
use operands::{Memory, fill, recycle_muts, recycle_refs};
use std::collections::VecDeque;
use std::sync::Arc;

/// What is computed: a program, by a plan.
pub(crate) struct Work {
    pub program: Arc<Program>,
    pub tables: Tables,
    pub computes: Box<[Compute]>,
    pub prepared: Prepared,
    pub gates: Gates,
}

impl Work {
    fn step_of(&self, compute: usize) -> &Step {
        &self.tables.steps[self.computes[compute].step.index()]
    }

    fn reads_rows(&self) -> bool {
        self.computes
            .iter()
            .any(|c| self.tables.steps[c.step.index()].rows.is_some() && c.weights.table.is_none())
    }
}

pub(crate) struct Executor {
    work: Work,
    device: Box<dyn Device>,
    /// The device knows where the memory is.
    is_attached: bool,
    /// Computes that the device has, oldest first.
    in_flight: VecDeque<Flight>,
    /// What one poll of the device reported.
    reported: Vec<(u64, Result<(), JobError>)>,
    /// Operand lists of the step being submitted; empty in between, kept for their memory.
    inputs: Vec<Option<TensorRef<'static>>>,
    outputs: Vec<Option<TensorMut<'static>>>,
    /// Where the run's caller wants results; empty in between, too.
    results: Vec<Option<TensorMut<'static>>>,
    batch: RowBatch,
    cancel: Option<CancelToken>,
    late: LateTypes,
}

/// A compute that the device has.
#[derive(Clone, Copy)]
struct Flight {
    index: usize,
    start_ns: u64,
}

/// What a run goes by, beside the executor itself.
struct Run<'a, 'b, C> {
    lane: &'a mut LoadLane,
    clock: &'a mut C,
    recorder: &'a mut Recorder,
    inputs: &'a [InputTensor<'b>],
    /// By output, the caller's memory, if the device can use it.
    results: &'a [Option<TensorMut<'b>>],
    /// Its number, counted from the last (re)start.
    number: u64,
    /// When the compute lane turned to the next compute.
    ready_ns: u64,
}

impl<C: Clock> Run<'_, '_, C> {
    /// Notes what has arrived, and starts what may start; but nothing of the next run, whose loads may come over
    /// outputs that are yet to be taken.
    fn proceed(&mut self) -> Result<(), RuntimeError> {
        self.lane.poll(self.clock, self.recorder)?;
        match self.lane.run() == self.number {
            true => self.lane.pump(self.clock, self.recorder),
            false => Ok(()),
        }
    }
}

impl Executor {
    pub(crate) fn new(work: Work, device: Box<dyn Device>) -> Executor {
        let most = device.most_in_flight().max(1);
        Executor {
            inputs: Vec::with_capacity(work.tables.max_inputs),
            outputs: Vec::with_capacity(work.tables.max_outputs),
            results: Vec::with_capacity(work.tables.outputs.len()),
            batch: match work.reads_rows() {
                true => RowBatch::new(),
                false => RowBatch::default(),
            },
            in_flight: VecDeque::with_capacity(most),
            reported: Vec::with_capacity(most),
            late: LateTypes::of(&work.program),
            work,
            device,
            is_attached: false,
            cancel: None,
        }
    }

    /// From now on runs end when this asks them to.
    pub(crate) fn obey(&mut self, cancel: Option<CancelToken>) {
        self.cancel = cancel;
    }

    /// Computes by another plan from now on, perhaps of another program.
    pub(crate) fn replace(&mut self, work: Work) {
        if work.reads_rows() && self.batch.is_empty() {
            self.batch = RowBatch::new();
        }
        self.inputs.reserve_exact(work.tables.max_inputs);
        self.outputs.reserve_exact(work.tables.max_outputs);
        self.results.reserve_exact(work.tables.outputs.len());
        self.late = LateTypes::of(&work.program);
        self.work = work;
    }

    /// Prepared panels are not in memory any more.
    pub(crate) fn forget_prepared(&mut self) {
        self.work.prepared.forget();
    }

    pub(crate) fn program(&self) -> &Arc<Program> {
        &self.work.program
    }

    pub(crate) fn device_name(&self) -> &'static str {
        self.device.name()
    }

    pub(crate) fn computes(&self) -> usize {
        self.work.computes.len()
    }

    /// One run. `inputs` and `outputs` fit the graph. After an error nothing is in flight on the device; where that
    /// cannot be had, the lane is broken.
    pub(crate) fn run(
        &mut self,
        lane: &mut LoadLane,
        clock: &mut impl Clock,
        recorder: &mut Recorder,
        inputs: &[InputTensor],
        outputs: &mut [OutputTensor],
    ) -> Result<(), RuntimeError> {
        lane.prepare();
        self.attach(lane)?;
        recorder.run_begins(clock.now_ns());
        let results = self.callers_memory(outputs);
        let mut run = Run {
            number: lane.run(),
            ready_ns: recorder.moment(clock),
            lane: &mut *lane,
            clock: &mut *clock,
            recorder: &mut *recorder,
            inputs,
            results: &results,
        };
        let computed = self.compute_all(&mut run);
        if computed.is_err() {
            self.in_flight.clear();
            if !self.device.drain() {
                run.lane.give_up();
            }
        }
        self.results = recycle_muts(results);
        computed?;
        self.copy_outputs(lane, inputs, outputs)?;
        if !lane.has_stored() {
            let begin_ns = clock.now_ns();
            lane.finish_stores(clock, recorder)?;
            recorder.stalled(clock.now_ns().saturating_sub(begin_ns));
        }
        recorder.run_ends(clock.now_ns());
        Ok(())
    }

    fn attach(&mut self, lane: &LoadLane) -> Result<(), RuntimeError> {
        if self.is_attached || !self.device.imports_memory() {
            return Ok(());
        }
        // SAFETY: the lane's arena stays as it is until it rests or is given another plan, before which the device is
        // detached; and the device is dropped before the lane.
        let attached = unsafe { self.device.attach(&lane.memory()) };
        attached.map_err(|reason| RuntimeError::Device {
            device: self.device.name(),
            reason,
        })?;
        self.is_attached = true;
        Ok(())
    }

    /// The memory is about to change.
    pub(crate) fn detach(&mut self) {
        if std::mem::take(&mut self.is_attached) {
            self.device.detach();
        }
    }

    fn compute_all<C: Clock>(&mut self, run: &mut Run<C>) -> Result<(), RuntimeError> {
        for index in 0..self.work.computes.len() {
            if self.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                return Err(RuntimeError::Cancelled);
            }
            self.note_complete(run, false)?;
            run.lane.poll(run.clock, run.recorder)?;
            self.wait_for(index, run)?;
            self.start(index, run)?;
        }
        self.finish(run)
    }

    /// Waits until the compute may start.
    fn wait_for<C: Clock>(&mut self, index: usize, run: &mut Run<C>) -> Result<(), RuntimeError> {
        let turn = self.work.computes[index].turn;
        if self.reads_rows(index) || self.is_late(index) {
            // The executor itself looks at the results of computes before, or at their sizes.
            self.finish(run)?;
        }
        while self.in_flight.len() >= self.device.most_in_flight().max(1) {
            self.note_complete(run, true)?;
            run.proceed()?;
        }
        let number = run.number * self.work.computes.len() as u64 + index as u64;
        // What it waits for may wait for computes that the device has.
        while !self.in_flight.is_empty() && !run.lane.has(number, turn) {
            run.lane.pump(run.clock, run.recorder)?;
            self.note_complete(run, true)?;
            run.lane.poll(run.clock, run.recorder)?;
        }
        if !run.lane.has(number, turn) {
            let begin_ns = run.clock.now_ns();
            run.lane.pump(run.clock, run.recorder)?;
            run.lane.wait_for(number, turn, run.clock, run.recorder)?;
            let waited_ns = run.clock.now_ns().saturating_sub(begin_ns);
            run.recorder.stalled(waited_ns);
        }
        Ok(())
    }

    /// Waits until the device has nothing more to do.
    fn finish<C: Clock>(&mut self, run: &mut Run<C>) -> Result<(), RuntimeError> {
        while !self.in_flight.is_empty() {
            self.note_complete(run, true)?;
            run.proceed()?;
        }
        Ok(())
    }

    /// Hands the compute to the device, or gathers rows.
    fn start<C: Clock>(&mut self, index: usize, run: &mut Run<C>) -> Result<(), RuntimeError> {
        let flight = Flight {
            index,
            start_ns: run.recorder.moment(run.clock),
        };
        if self.reads_rows(index) {
            run.lane.pump(run.clock, run.recorder)?;
            self.gather_rows(index, run)?;
            return self.computed_here(flight, run);
        }
        if self.is_late(index) {
            return self.run_late(flight, run);
        }
        self.submit(index, run, &mut [])?;
        self.in_flight.push_back(flight);
        self.poll_device(false)?;
        if !self.reported.is_empty() && self.in_flight.len() == 1 {
            // It was computed by this thread, which this much time has passed for.
            self.in_flight.pop_front();
            let (_, result) = self.reported.remove(0);
            self.ended(index, result)?;
            return self.computed_here(flight, run);
        }
        self.take_reported(run)?;
        run.proceed()
    }

    /// A compute whose results have sizes that the steps after it must know.
    fn run_late<C: Clock>(&mut self, flight: Flight, run: &mut Run<C>) -> Result<(), RuntimeError> {
        let step = self.work.computes[flight.index].step.index();
        let mut actual = self.late.lend(step);
        let submitted = self.submit(flight.index, run, &mut actual);
        if submitted.is_ok() {
            self.in_flight.push_back(flight);
        }
        // The types stay where they are until the device has written them.
        let ended = submitted.and_then(|()| self.finish(run));
        if ended.is_err() && !self.in_flight.is_empty() {
            self.in_flight.clear();
            if !self.device.drain() {
                run.lane.give_up();
                std::mem::forget(actual);
                return ended;
            }
        }
        self.late.give_back(step, actual);
        ended?;
        if let Some(gate) = self.work.gates.made_by(step)
            && !self.is_open(flight.index, run)?
        {
            run.lane.shut(gate, run.number);
        }
        run.proceed()
    }

    /// What a gate was found to be.
    fn is_open<C: Clock>(&self, index: usize, run: &Run<C>) -> Result<bool, RuntimeError> {
        let memory = Memory {
            program: &self.work.program,
            arena: &run.lane.map(),
            compute: &self.work.computes[index],
            inputs: run.inputs,
            results: run.results,
            late: &self.late,
        };
        let outputs = &self.work.step_of(index).outputs;
        let place = memory.read(&self.work.tables.operands[outputs.start as usize])?;
        // SAFETY: the place holds a bool, which the step has written, and nothing writes it until all that read it are
        // done.
        Ok(unsafe { place.read() } != 0)
    }

    /// This thread has computed it.
    fn computed_here<C: Clock>(
        &mut self,
        flight: Flight,
        run: &mut Run<C>,
    ) -> Result<(), RuntimeError> {
        while run.clock.passes(flight.index) {
            run.lane.proceed(run.clock, run.recorder)?;
        }
        self.complete(flight, run);
        Ok(())
    }

    fn complete<C: Clock>(&mut self, flight: Flight, run: &mut Run<C>) {
        let end_ns = run.recorder.moment(run.clock);
        let start_ns = flight.start_ns.max(run.ready_ns);
        let times_ns = [run.ready_ns, start_ns, end_ns];
        run.recorder.computed(run.number, flight.index, times_ns);
        run.ready_ns = end_ns;
        run.lane.compute_done();
    }

    /// Notes which computes the device has ended; with `wait`, at least one if it has any.
    fn note_complete<C: Clock>(
        &mut self,
        run: &mut Run<C>,
        wait: bool,
    ) -> Result<(), RuntimeError> {
        if self.in_flight.is_empty() {
            return Ok(());
        }
        self.poll_device(wait)?;
        self.take_reported(run)
    }

    fn poll_device(&mut self, wait: bool) -> Result<(), RuntimeError> {
        let reported = &mut self.reported;
        reported.clear();
        let most = reported.capacity();
        let mut lost = false;
        self.device.poll(wait, &mut |number, result| {
            // A device reports no more than it has; a list that grew would allocate.
            match reported.len() < most {
                true => reported.push((number, result)),
                false => lost = true,
            }
        });
        let expected = self.in_flight.iter().map(|flight| flight.index as u64);
        let as_expected = self.reported.iter().map(|(number, _)| *number);
        let in_order = as_expected.zip(expected).all(|(found, due)| found == due);
        if lost || !in_order || self.reported.len() > self.in_flight.len() {
            return Err(RuntimeError::Device {
                device: self.device.name(),
                reason: "it reports computes that it does not have, or out of order".into(),
            });
        }
        if wait && self.reported.is_empty() && !self.in_flight.is_empty() {
            return Err(RuntimeError::Device {
                device: self.device.name(),
                reason: "it was waited for and reports nothing".into(),
            });
        }
        Ok(())
    }

    fn take_reported<C: Clock>(&mut self, run: &mut Run<C>) -> Result<(), RuntimeError> {
        for at in 0..self.reported.len() {
            let result = std::mem::replace(&mut self.reported[at].1, Ok(()));
            let Some(flight) = self.in_flight.pop_front() else {
                break;
            };
            self.ended(flight.index, result)?;
            self.complete(flight, run);
        }
        self.reported.clear();
        Ok(())
    }

    /// A job has ended, well or with an error.
    fn ended(&mut self, index: usize, result: Result<(), JobError>) -> Result<(), RuntimeError> {
        let node = &self.work.program.graph.nodes[self.work.step_of(index).node.index()];
        let name = || node.name.clone();
        match result {
            Ok(()) => {
                self.work.prepared.made(index);
                Ok(())
            }
            Err(JobError::Op(OpError::Unwanted { .. })) => Err(RuntimeError::Cancelled),
            Err(JobError::Op(source)) => Err(RuntimeError::Op {
                node: name(),
                source,
            }),
            Err(JobError::Panicked(message)) => Err(RuntimeError::Panicked {
                node: name(),
                op: node.op.name(),
                message,
            }),
            Err(JobError::Device(reason)) => Err(RuntimeError::Device {
                device: self.device.name(),
                reason: format!("node '{}': {reason}", node.name),
            }),
        }
    }

    /// `actual` becomes the types of a late step's results.
    fn submit<C: Clock>(
        &mut self,
        index: usize,
        run: &mut Run<C>,
        actual: &mut [TensorType],
    ) -> Result<(), RuntimeError> {
        let compute = &self.work.computes[index];
        let step = self.work.step_of(index);
        let node = &self.work.program.graph.nodes[step.node.index()];
        let map = run.lane.map();
        let memory = Memory {
            program: &self.work.program,
            arena: &map,
            compute,
            inputs: run.inputs,
            results: run.results,
            late: &self.late,
        };
        let (workspace_at, workspace_bytes) = step.workspace;
        let workspace_start = memory.at(workspace_at, workspace_bytes)?;
        // SAFETY: the range lies in the arena, whose bytes are always initialised. The plan is
        // valid: while the step's computes run, its workspace overlaps nothing that is in use.
        let workspace =
            unsafe { std::slice::from_raw_parts_mut(workspace_start, workspace_bytes as usize) };

        let mut pumped = Ok(());
        let looks = run.lane.looks();
        let may_start = run.lane.may_start();
        let (lane, clock, recorder) = (&mut *run.lane, &*run.clock, &mut *run.recorder);
        let mut pump = || {
            if pumped.is_ok() {
                pumped = lane.proceed(clock, recorder);
            }
        };
        let meanwhile = Meanwhile {
            work: (may_start || looks).then_some(&mut pump as &mut (dyn FnMut() + Send)),
            repeats: looks,
            cancel: self.cancel.as_ref(),
        };

        let mut refs = recycle_refs(std::mem::take(&mut self.inputs));
        let mut muts = recycle_muts(std::mem::take(&mut self.outputs));
        let slot = self.work.prepared.slot(index);
        let filled = fill(&memory, &self.work.tables, step, &mut refs, &mut muts).and_then(|()| {
            let prepared = slot.map(|slot| memory.prepared(slot)).transpose()?;
            Ok((memory.panels(step)?, prepared))
        });
        let submitted = filled.map(|(panels, prepared)| {
            let job = Job {
                node,
                choice: step.choice,
                inputs: &refs,
                outputs: &muts,
                panels,
                prepared,
                workspace,
                actual,
            };
            // SAFETY: the job's memory lies in the arena, the caller's tensors or the program, which outlive the
            // run, and a run that fails drains the device. The plan is valid: nothing else uses the memory in that way
            // before the compute is complete, which it is for others when it was reported.
            unsafe { self.device.submit(index as u64, job, meanwhile) };
        });
        self.inputs = recycle_refs(refs);
        self.outputs = recycle_muts(muts);
        submitted.and(pumped)
    }

    fn is_late(&self, index: usize) -> bool {
        self.late.has_step(self.work.computes[index].step.index())
    }

    /// The actual type of an output with late axes, since the last run.
    pub(crate) fn actual_output(&self, index: usize) -> Option<&TensorType> {
        let output = self.work.program.graph.outputs.get(index)?;
        self.late.actual(*output)
    }

    /// Whether this thread computes it, reading rows of a table.
    fn reads_rows(&self, index: usize) -> bool {
        self.work.step_of(index).rows.is_some()
    }

    fn gather_rows<C: Clock>(
        &mut self,
        index: usize,
        run: &mut Run<C>,
    ) -> Result<(), RuntimeError> {
        let (lane, clock, recorder) = (&mut *run.lane, &*run.clock, &mut *run.recorder);
        let compute = &self.work.computes[index];
        let step = &self.work.tables.steps[compute.step.index()];
        let Some(rows) = step.rows else {
            return Ok(());
        };
        let node = &self.work.program.graph.nodes[step.node.index()];
        let map = lane.map();
        let memory = Memory {
            program: &self.work.program,
            arena: &map,
            compute,
            inputs: run.inputs,
            results: run.results,
            late: &self.late,
        };
        let indices = &self.work.tables.operands[step.inputs.start as usize];
        let output = &self.work.tables.operands[step.outputs.start as usize];
        let index_type = &self.work.program.graph.ty(indices.value);
        let gather = Gather {
            node: &node.name,
            table: rows.table,
            index_type: index_type.dtype,
            indices: memory.read(indices)?,
            count: index_type.elements(),
            output: memory.write(output)?,
        };
        if gather.count == 0 || rows.table.row_bytes == 0 {
            return Ok(());
        }
        let table_bytes = (rows.table.rows * rows.table.row_bytes) as u64;
        if let Some(at) = compute.weights.table {
            let table = memory.at(at, table_bytes)?;
            // SAFETY: operands were checked when the session opened to have the types that `Gather`
            // expects; the plan keeps their memory and the loaded table apart from all else.
            return unsafe { gather.copy_from_memory(table) };
        }
        let (at, bytes) = rows.window_space;
        let space = memory.at(at, bytes)?;
        let begin_ns = clock.now_ns();
        // SAFETY: as above, and the windows' space is part of the step's workspace, at a multiple of
        // a block by the plan's validity.
        unsafe { gather.copy_from_storage(lane, (space, bytes as usize), &mut self.batch)? };
        // Copying the rows is as nothing beside reading them.
        recorder.stalled(clock.now_ns().saturating_sub(begin_ns));
        Ok(())
    }
}
