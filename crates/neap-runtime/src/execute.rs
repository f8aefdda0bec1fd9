//! The executor: one thread interprets all lanes of a plan, with the pool's help in kernels.
//!
//! ```text
//!   for each compute:  note loads that have arrived
//!                      not all here that it needs?  start loads and stores, wait: a stall
//!                      compute the step, or its slice of panels; meanwhile start what may start
//! ```

use crate::RuntimeError;
use crate::arena::ArenaMap;
use crate::beside::Beside;
use crate::clock::Clock;
use crate::lane::{LoadLane, address_in};
use crate::pool::Pool;
use crate::prepared::{Prepared, Slot};
use crate::recorder::Recorder;
use crate::resolve::{Operand, Place, Step, Tables};
use crate::rows::{Gather, RowBatch};
use crate::tensors::{InputTensor, OutputTensor};
use neap_ir::{Program, ValueId};
use neap_kernels::simd::Isa;
use neap_ops::{Context, PanelSlice, TensorMut, TensorRef};
use neap_plan::Compute;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub(crate) struct Executor {
    program: Arc<Program>,
    tables: Tables,
    computes: Box<[Compute]>,
    prepared: Prepared,
    pool: Pool,
    isa: Isa,
    /// Operand lists of the step being computed; empty in between, kept for their memory.
    inputs: Vec<Option<TensorRef<'static>>>,
    outputs: Vec<Option<TensorMut<'static>>>,
    batch: RowBatch,
}

impl Executor {
    pub(crate) fn new(
        program: Arc<Program>,
        tables: Tables,
        (computes, prepared): (Vec<Compute>, Prepared),
        pool: Pool,
        isa: Isa,
    ) -> Executor {
        let reads_rows = reads_rows(&tables, &computes);
        Executor {
            inputs: Vec::with_capacity(tables.max_inputs),
            outputs: Vec::with_capacity(tables.max_outputs),
            batch: if reads_rows {
                RowBatch::new()
            } else {
                RowBatch::default()
            },
            program,
            tables,
            computes: computes.into_boxed_slice(),
            prepared,
            pool,
            isa,
        }
    }

    /// Computes by another plan from now on, perhaps of another program.
    pub(crate) fn replace(
        &mut self,
        program: Arc<Program>,
        tables: Tables,
        (computes, prepared): (Vec<Compute>, Prepared),
    ) {
        if reads_rows(&tables, &computes) && self.batch.is_empty() {
            self.batch = RowBatch::new();
        }
        self.inputs.reserve_exact(tables.max_inputs);
        self.outputs.reserve_exact(tables.max_outputs);
        self.program = program;
        self.tables = tables;
        self.computes = computes.into_boxed_slice();
        self.prepared = prepared;
    }

    /// Prepared panels are not in memory any more.
    pub(crate) fn forget_prepared(&mut self) {
        self.prepared.forget();
    }

    pub(crate) fn program(&self) -> &Arc<Program> {
        &self.program
    }

    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn computes(&self) -> usize {
        self.computes.len()
    }

    /// One run. `inputs` and `outputs` fit the graph.
    pub(crate) fn run(
        &mut self,
        lane: &mut LoadLane,
        clock: &mut impl Clock,
        recorder: &mut Recorder,
        inputs: &[InputTensor],
        outputs: &mut [OutputTensor],
    ) -> Result<(), RuntimeError> {
        lane.prepare();
        recorder.run_begins(clock.now_ns());
        let run = lane.run();
        let mut ready_ns = recorder.moment(clock);
        for index in 0..self.computes.len() {
            lane.poll(clock, recorder)?;
            let Compute { needs, stores, .. } = self.computes[index];
            if !lane.has(needs, stores) {
                let begin_ns = clock.now_ns();
                lane.pump(clock, recorder)?;
                lane.wait_for((needs, stores), clock, recorder)?;
                recorder.stalled(clock.now_ns().saturating_sub(begin_ns));
            }
            let start_ns = recorder.moment(clock);
            self.compute(index, lane, inputs, clock, recorder)?;
            while clock.passes(index) {
                lane.proceed(clock, recorder)?;
            }
            let end_ns = recorder.moment(clock);
            recorder.computed(run, index, [ready_ns, start_ns, end_ns]);
            ready_ns = end_ns;
            lane.compute_done();
        }
        self.copy_outputs(lane, inputs, outputs)?;
        if !lane.has(0, 0) {
            let begin_ns = clock.now_ns();
            lane.finish_stores(clock, recorder)?;
            recorder.stalled(clock.now_ns().saturating_sub(begin_ns));
        }
        recorder.run_ends(clock.now_ns());
        Ok(())
    }

    fn compute(
        &mut self,
        index: usize,
        lane: &mut LoadLane,
        inputs: &[InputTensor],
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        let compute = &self.computes[index];
        let step = &self.tables.steps[compute.step.index()];
        if step.rows.is_some() {
            lane.pump(clock, recorder)?;
            return self.gather_rows(index, lane, inputs, clock, recorder);
        }
        let node = &self.program.graph.nodes[step.node.index()];
        let memory = Memory {
            program: &self.program,
            arena: lane.map(),
            compute,
            inputs,
        };
        let (workspace_offset, workspace_bytes) = step.workspace;
        let workspace_start = memory.arena(workspace_offset, workspace_bytes)?;
        // SAFETY: the range lies in the arena, whose bytes are always initialised. The plan is
        // valid: while the step's computes run, its workspace overlaps nothing that is in use.
        let workspace =
            unsafe { std::slice::from_raw_parts_mut(workspace_start, workspace_bytes as usize) };

        let mut pumped = Ok(());
        let looks = lane.is_grouped();
        let may_start = lane.may_start();
        let mut pump = || {
            if pumped.is_ok() {
                pumped = lane.proceed(clock, recorder);
            }
        };
        let pump = (may_start || looks).then_some(&mut pump as &mut (dyn FnMut() + Send));
        let par = Beside::new(&self.pool, pump, looks);

        let mut refs = recycle_refs(std::mem::take(&mut self.inputs));
        let mut muts = recycle_muts(std::mem::take(&mut self.outputs));
        let result = fill(&memory, &self.tables, step, &mut refs, &mut muts).and_then(|()| {
            let mut panels = memory.panels(step)?;
            let slot = self.prepared.slot(index);
            let mut prepared = slot.map(|slot| memory.prepared(slot)).transpose()?;
            let mut context = Context {
                par: &par,
                isa: self.isa,
                workspace,
            };
            let run = || {
                if let (Some(slot), Some(prepared), Some(stored)) =
                    (slot, prepared.take(), &mut panels)
                {
                    let (op, choice) = (&node.op, step.choice);
                    if !slot.is_made {
                        let count = stored.range.len();
                        neap_ops::prepare_panels(
                            op,
                            choice.kernel,
                            count,
                            stored.bytes,
                            prepared,
                            &par,
                            self.isa,
                        )?;
                    }
                    stored.bytes = prepared;
                }
                neap_ops::execute_with(&node.op, step.choice, &refs, panels, &muts, &mut context)
            };
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(())) => {
                    self.prepared.made(index);
                    Ok(())
                }
                Ok(Err(source)) => Err(RuntimeError::Op {
                    node: node.name.clone(),
                    source,
                }),
                Err(payload) => Err(RuntimeError::Panicked {
                    node: node.name.clone(),
                    op: node.op.name(),
                    message: panic_message(&*payload),
                }),
            }
        });
        par.finish();
        self.inputs = recycle_refs(refs);
        self.outputs = recycle_muts(muts);
        result.and(pumped)
    }

    fn gather_rows(
        &mut self,
        index: usize,
        lane: &mut LoadLane,
        inputs: &[InputTensor],
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        let compute = &self.computes[index];
        let step = &self.tables.steps[compute.step.index()];
        let Some(rows) = step.rows else {
            return Ok(());
        };
        let node = &self.program.graph.nodes[step.node.index()];
        let memory = Memory {
            program: &self.program,
            arena: lane.map(),
            compute,
            inputs,
        };
        let indices = &self.tables.operands[step.inputs.start as usize];
        let output = &self.tables.operands[step.outputs.start as usize];
        let index_type = &self.program.graph.ty(indices.value);
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
        if let Some(offset) = compute.weights.table {
            let table = memory.arena(offset, table_bytes)?;
            // SAFETY: operands were checked when the session opened to have the types that `Gather`
            // expects; the plan keeps their memory and the loaded table apart from all else.
            return unsafe { gather.copy_from_memory(table) };
        }
        let (offset, bytes) = rows.window_space;
        let space = memory.arena(offset, bytes)?;
        let begin_ns = clock.now_ns();
        // SAFETY: as above, and the windows' space is part of the step's workspace, at a multiple of
        // a block by the plan's validity.
        unsafe { gather.copy_from_storage(lane, (space, bytes as usize), &mut self.batch)? };
        // Copying the rows is as nothing beside reading them.
        recorder.stalled(clock.now_ns().saturating_sub(begin_ns));
        Ok(())
    }

    /// Results from where they are to the caller's memory, before anything may overwrite them.
    fn copy_outputs(
        &self,
        lane: &LoadLane,
        inputs: &[InputTensor],
        outputs: &mut [OutputTensor],
    ) -> Result<(), RuntimeError> {
        let graph = &self.program.graph;
        for ((output, &place), &value) in outputs
            .iter_mut()
            .zip(&self.tables.outputs)
            .zip(&graph.outputs)
        {
            let from = match place {
                Place::Arena(offset) => {
                    let len_bytes = output.bytes.len();
                    let start = address_in(lane.map(), offset, len_bytes as u64)?;
                    // SAFETY: the range lies in the arena, and outputs live until they are taken: no
                    // compute is running, and loads that may overwrite them start after this.
                    unsafe { std::slice::from_raw_parts(start, len_bytes) }
                }
                Place::Input(index) => inputs[index as usize].bytes,
                Place::Inline(value) => literal(&self.program, value)?,
                Place::Absent | Place::Extent { .. } => return Err(lost(&self.program, value)),
            };
            output.bytes.copy_from_slice(from);
        }
        Ok(())
    }
}

fn reads_rows(tables: &Tables, computes: &[Compute]) -> bool {
    computes
        .iter()
        .any(|c| tables.steps[c.step.index()].rows.is_some() && c.weights.table.is_none())
}

/// What a compute's places mean just now.
struct Memory<'a> {
    program: &'a Program,
    arena: ArenaMap,
    compute: &'a Compute,
    inputs: &'a [InputTensor<'a>],
}

impl<'a> Memory<'a> {
    fn arena(&self, offset: u64, bytes: u64) -> Result<*mut u8, RuntimeError> {
        address_in(self.arena, offset, bytes)
    }

    /// Address of an operand that is there, in full.
    fn read(&self, operand: &Operand) -> Result<*const u8, RuntimeError> {
        let bytes = self.program.graph.value(operand.value).len_bytes() as u64;
        Ok(match operand.place {
            Place::Arena(offset) => self.arena(offset, bytes)?,
            // The caller's pointer to nothing need not be aligned; operators' must be.
            Place::Input(_) if bytes == 0 => std::ptr::dangling::<u64>().cast(),
            Place::Input(index) => self.inputs[index as usize].bytes.as_ptr(),
            Place::Inline(value) => literal(self.program, value)?.as_ptr(),
            Place::Extent { index, skip_bytes } => {
                let offset = self.compute.weights.extents[index as usize];
                self.arena(offset.saturating_add(skip_bytes), bytes)?
            }
            Place::Absent => return Err(lost(self.program, operand.value)),
        })
    }

    /// Address of a result; those are always in the arena.
    fn write(&self, operand: &Operand) -> Result<*mut u8, RuntimeError> {
        let bytes = self.program.graph.value(operand.value).len_bytes() as u64;
        match operand.place {
            Place::Arena(offset) => self.arena(offset, bytes),
            _ => Err(lost(self.program, operand.value)),
        }
    }

    fn panels(&self, step: &Step) -> Result<Option<PanelSlice<'a>>, RuntimeError> {
        let Some(offset) = self.compute.weights.panels else {
            return Ok(None);
        };
        let range = self.compute.panels;
        let bytes = u64::from(range.len()) * step.panel_bytes;
        let start = self.arena(offset, bytes)?;
        // SAFETY: the range lies in the arena. The loads that the compute needs have arrived, and the
        // plan is valid: they hold these panels, and nothing overwrites them before the compute ends.
        let bytes = unsafe { std::slice::from_raw_parts(start, bytes as usize) };
        Ok(Some(PanelSlice {
            range: range.begin as usize..range.end as usize,
            bytes,
        }))
    }

    /// Where the compute's panels are, or will be, in the form that its kernel takes.
    fn prepared(&self, slot: Slot) -> Result<&'a mut [u8], RuntimeError> {
        let start = self.arena(slot.offset, slot.bytes)?;
        // SAFETY: the range lies in the arena, whose bytes are always initialised. The plan is valid: nothing
        // but this compute uses it.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, slot.bytes as usize) })
    }
}

/// Lists a step's operands for its operator.
fn fill<'a>(
    memory: &Memory<'a>,
    tables: &Tables,
    step: &Step,
    refs: &mut Vec<Option<TensorRef<'a>>>,
    muts: &mut Vec<Option<TensorMut<'a>>>,
) -> Result<(), RuntimeError> {
    let graph = &memory.program.graph;
    for operand in &tables.operands[step.inputs.start as usize..step.inputs.end as usize] {
        refs.push(if let Place::Absent = operand.place {
            None
        } else {
            let value = graph.value(operand.value);
            let start = memory.read(operand)?;
            // SAFETY: `read` gives memory of the value's size, and alignment was checked when the
            // session opened (for the caller's memory, when the run began). The plan is valid: while
            // the step runs, only its own outputs may lie there, and only as its operator allows.
            Some(unsafe { TensorRef::new(&value.ty, value.layout, start) })
        });
    }
    for operand in &tables.operands[step.outputs.start as usize..step.outputs.end as usize] {
        muts.push(if let Place::Absent = operand.place {
            None
        } else {
            let value = graph.value(operand.value);
            let start = memory.write(operand)?;
            // SAFETY: as above; outputs were checked not to overlap each other.
            Some(unsafe { TensorMut::new(&value.ty, value.layout, start) })
        });
    }
    Ok(())
}

/// The memory of a list, emptied, for a list of another lifetime.
fn recycle_refs<'a>(mut list: Vec<Option<TensorRef<'_>>>) -> Vec<Option<TensorRef<'a>>> {
    list.clear();
    let mut list = std::mem::ManuallyDrop::new(list);
    // SAFETY: the allocation is a vector's of the same element but for its lifetime, which has no
    // part in size or alignment; there are no elements.
    unsafe { Vec::from_raw_parts(list.as_mut_ptr().cast(), 0, list.capacity()) }
}

/// As [`recycle_refs`].
fn recycle_muts<'a>(mut list: Vec<Option<TensorMut<'_>>>) -> Vec<Option<TensorMut<'a>>> {
    list.clear();
    let mut list = std::mem::ManuallyDrop::new(list);
    // SAFETY: as in `recycle_refs`.
    unsafe { Vec::from_raw_parts(list.as_mut_ptr().cast(), 0, list.capacity()) }
}

fn literal(program: &Program, value: ValueId) -> Result<&[u8], RuntimeError> {
    let literal = program.graph.literal(value);
    literal
        .map(|l| l.bytes())
        .ok_or_else(|| lost(program, value))
}

fn lost(program: &Program, value: ValueId) -> RuntimeError {
    RuntimeError::Mismatch {
        what: "program",
        reason: format!("'{}' is nowhere in memory", program.graph.value(value).name),
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_string())
}
