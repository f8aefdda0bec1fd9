//! `Device`: what executes computes. The executor submits them in order and asks which are complete.
//!
//! ```text
//!   executor   submit c0 │ submit c1 │ loads … │ poll: c0 │ submit c2 │ …
//!   device                ├──── c0 ────────────┤├──── c1 ────┤├── c2 …          one after the other
//! ```
//! A plan's actions wait for computes that are complete, whoever executes them: so one executor serves a device that
//! computes on the caller's thread and is done when it returns, such as the processor, and one that goes on by itself.

use crate::caller_work::CallerWork;
use crate::cancel::CancelToken;
use crate::own_memory::{OwnMemory, OwnMemoryFigures};
use crate::pool::Pool;
use neap_ir::{Node, Op, Program, TensorType};
use neap_kernels::simd::Isa;
use neap_ops::{Choice, Context, OpError, PanelSlice, ScratchKernel, TensorMut, TensorRef};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One compute: a step, or a slice of it, and where its operands are.
pub struct Job<'a> {
    pub node: &'a Node,
    pub choice: Choice,
    pub inputs: &'a [Option<TensorRef<'a>>],
    pub outputs: &'a [Option<TensorMut<'a>>],
    /// The slice, and its weights as they are stored.
    pub panels: Option<PanelSlice<'a>>,
    /// For a kernel that takes its panels prepared: where those of the slice are, or will be.
    pub prepared: Option<PreparedSlice<'a>>,
    pub workspace: &'a mut [u8],
    /// Of an operator with late results, by output: becomes their actual types, before the job is reported.
    pub actual: &'a mut [TensorType],
}

/// Panels in the form that a kernel takes.
pub struct PreparedSlice<'a> {
    pub bytes: &'a mut [u8],
    /// They are there. If not, the job makes them of the stored ones first.
    pub is_made: bool,
}

/// What the caller does while a job is computed, such as handing over loads.
pub struct Meanwhile<'a> {
    pub work: Option<&'a mut (dyn FnMut() + Send)>,
    /// It is to be done again and again.
    pub repeats: bool,
    /// Asks for the run to end. A job that takes long may end with [`OpError::Unwanted`] then.
    pub cancel: Option<&'a CancelToken>,
}

/// Why a job failed.
#[derive(Debug)]
pub enum JobError {
    /// What it computes has no result.
    Op(OpError),
    /// A defect in an operator.
    Panicked(String),
    /// The device could not execute it.
    Device(String),
}

/// Memory of the process, in whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRange {
    pub start: *mut u8,
    pub bytes: u64,
}

/// Executes jobs, one after the other in the order in which they are submitted.
pub trait Device: Send {
    fn name(&self) -> &'static str;

    /// Most jobs that may be submitted and not reported; at least 1.
    fn most_in_flight(&self) -> usize;

    /// Starts a job, or queues it behind those before. A device that computes on the calling thread does `meanwhile`
    /// beside it, at least once; another leaves it alone.
    ///
    /// # Safety
    /// The memory that the job names stays mapped, and is neither written nor (where the job writes) read by anything
    /// else, until the device reports the job, or is drained.
    unsafe fn submit(&mut self, number: u64, job: Job<'_>, meanwhile: Meanwhile<'_>);

    /// Tells `done` which jobs have ended since the last call, and how, in order. With `wait`, and jobs in flight,
    /// blocks until there is one.
    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), JobError>));

    /// Waits until nothing is in flight and forgets the results; false if the device cannot tell, so that memory must
    /// be left alone for good.
    fn drain(&mut self) -> bool;

    /// Whether it must be told where memory is.
    fn imports_memory(&self) -> bool {
        false
    }

    /// Where the plan's memory is, of which jobs' operands are parts, but for callers' tensors and literals. Called before the
    /// first job, and again after [`Device::detach`], for a device that [`Device::imports_memory`].
    ///
    /// # Errors
    /// Why the device cannot see it.
    ///
    /// # Safety
    /// The ranges stay mapped as they are until the device is detached or dropped.
    unsafe fn attach(&mut self, memory: &[MemoryRange]) -> Result<(), String> {
        let _ = memory;
        Ok(())
    }

    /// With nothing in flight: the memory is about to change, and the device must not hold it any more.
    fn detach(&mut self) {}

    /// Where the plan's memory is to be, if it is to be the device's own. Then it is told of that, too, by
    /// [`Device::attach`].
    fn own_memory(&mut self) -> Option<&mut dyn OwnMemory> {
        None
    }
}

/// What computing costs on a device, as measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceRates {
    pub flops_per_second: f64,
    pub memory_bytes_per_second: f64,
    /// Of a job that computes next to nothing, one after the other.
    pub job_overhead_ns: u64,
    /// From submitting such a job to knowing that it is complete, beside that: what the processor waits that computes the next step.
    pub wait_ns: u64,
    /// For a device with memory of its own.
    pub link: Option<LinkRates>,
}

/// What moving bytes between the host's memory and a device's costs, each way alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkRates {
    pub to_device_bytes_per_second: f64,
    pub to_host_bytes_per_second: f64,
    /// Of a copy of next to nothing, until it is known to be complete.
    pub latency_ns: u64,
}

/// Makes devices for sessions.
pub trait Accelerator: std::fmt::Debug + Send + Sync {
    /// Which device it is. What is measured on one holds for no other.
    fn name(&self) -> String;

    /// Which steps of a program it computes; the processor computes the others.
    fn computes(&self, program: &Program) -> Vec<bool>;

    /// What computing on it costs, if it was measured.
    fn rates(&self) -> Option<DeviceRates> {
        None
    }

    /// What each step of a program takes, beside [`DeviceRates::job_overhead_ns`], as far as it tells; 0, or nothing, where that
    /// follows from rates.
    fn step_ns(&self, program: &Program) -> Vec<u64> {
        let _ = program;
        Vec::new()
    }

    /// What a slice of each step takes at least, as far as it tells: a device with many units takes as long for few panels as for some more.
    fn least_slice_ns(&self, program: &Program) -> Vec<u64> {
        let _ = program;
        Vec::new()
    }

    /// By step, the kernel with scratch that it is to use, whose scratch a plan then gives it. It follows from the program and the
    /// device alone, so it is the same under every budget. Nothing means none.
    fn with_scratch(&self, program: &Program) -> Vec<Option<ScratchKernel>> {
        let _ = program;
        Vec::new()
    }

    /// Figures of its own memory, if plans' memory is there: then a plan's budget is the device's. `None` for one that
    /// computes in the host's.
    fn own_memory(&self) -> Option<OwnMemoryFigures> {
        None
    }

    /// A device for one session; `cpu` computes what it cannot. What it takes of the process's memory it has taken before, so
    /// that a plan made before this counts with it.
    ///
    /// # Errors
    /// Why there is none, in one line.
    fn device(&self, cpu: Cpu) -> Result<Box<dyn Device>, String>;
}

/// The processor: this thread, with a pool of others.
pub struct Cpu {
    pool: Arc<Pool>,
    isa: Isa,
    ended: Option<(u64, Result<(), JobError>)>,
}

impl Cpu {
    pub fn new(pool: Arc<Pool>, isa: Isa) -> Cpu {
        Cpu {
            pool,
            isa,
            ended: None,
        }
    }
}

impl Device for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn most_in_flight(&self) -> usize {
        1
    }

    unsafe fn submit(&mut self, number: u64, job: Job<'_>, meanwhile: Meanwhile<'_>) {
        let Meanwhile {
            mut work,
            repeats,
            cancel,
        } = meanwhile;
        let is_some = work.is_some();
        let mut once = || work.iter_mut().for_each(|work| work());
        let once = is_some.then_some(&mut once as &mut (dyn FnMut() + Send));
        let par = CallerWork::new(&self.pool, once, repeats, cancel);
        let isa = self.isa;
        let run = || execute(job, &par, isa);
        let result = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => result.map_err(JobError::Op),
            Err(payload) => Err(JobError::Panicked(panic_message(&*payload))),
        };
        par.finish();
        self.ended = Some((number, result));
    }

    fn poll(&mut self, _wait: bool, done: &mut dyn FnMut(u64, Result<(), JobError>)) {
        if let Some((number, result)) = self.ended.take() {
            done(number, result);
        }
    }

    fn drain(&mut self) -> bool {
        self.ended = None;
        true
    }
}

/// Computes a job on this thread and `par`'s.
fn execute(job: Job, par: &CallerWork, isa: Isa) -> Result<(), OpError> {
    let Job {
        node,
        choice,
        inputs,
        outputs,
        mut panels,
        prepared,
        workspace,
        actual,
    } = job;
    if let (Some(prepared), Some(stored)) = (prepared, &mut panels) {
        if !prepared.is_made {
            neap_ops::prepare_panels(
                &node.op,
                choice.kernel,
                stored.range.len(),
                stored.format,
                stored.bytes,
                prepared.bytes,
                par,
                isa,
            )?;
        }
        stored.bytes = prepared.bytes;
    }
    let mut context = Context {
        par,
        isa,
        workspace,
    };
    if let Op::Late(late) = &node.op {
        return neap_ops::execute_late(late, inputs, outputs, actual, &mut context);
    }
    neap_ops::execute_with(&node.op, choice, inputs, panels, outputs, &mut context)
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_string())
}
