//! From a model and a plan to a session that runs.

use crate::calibrate::Known;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::in_use::InUse;
use crate::ledger::Ledger;
use crate::model::{Model, TensorInfo};
use crate::options::RunOptions;
use crate::package::Package;
use crate::plan::Plan;
use crate::plans_ahead::{Next, PlansAhead};
use crate::rebind::{Recent, total_bytes};
use crate::spill;
use neap_compile::Programs;
use neap_ir::TensorType;
use neap_plan::Timeline;
use neap_runtime::{
    Accelerator, CancelToken, Commons, Cpu, Device, InputTensor, Monotonic, OutputTensor, Pool,
    RuntimeError,
};
use neap_store::{PackedFile, ThrottledSource};
use std::path::PathBuf;
use std::sync::Arc;

impl Model {
    /// Prepares to run, which begins to load what the plan keeps resident. Takes the model: its tables are
    /// now the session's.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a model without weights, or when files cannot be opened or read.
    pub fn into_session(self, plan: Plan, options: &RunOptions) -> Result<Session> {
        self.into_session_in(None, plan, options)
    }

    /// The same, with threads and work memory in common with others.
    pub(crate) fn into_session_in(
        mut self,
        commons: Option<&Commons>,
        plan: Plan,
        options: &RunOptions,
    ) -> Result<Session> {
        let in_force = options.keep_plan.then(|| Next::from(plan.clone()));
        let (packed, mut file, package) = self.take_packed()?;
        let packed = InUse::new(packed, &file);
        let mut source = file.open_source(options.io)?;
        if let Some(rate) = options.throttle_bytes_per_second {
            source = Box::new(ThrottledSource::new(source, rate)?);
        }
        let verifier = file.take_verifier()?;
        let inputs = self.inputs();
        let outputs = self.outputs();
        let (program, checked) = (plan.program, plan.checked);
        let settings = neap_runtime::Options {
            threads: options.threads,
            isa: options.isa,
        };
        // What planning took is not charged beside the arena.
        self.host.trim();
        let spill_folder = spill::folder(options, self.place());
        let file_bytes = match checked.plan().spills_to_host {
            true => 0,
            false => checked.verdict().spill_bytes,
        };
        let storage = neap_runtime::BackingStore {
            source,
            verifier,
            spill: spill::open(&spill_folder, file_bytes, options)?,
        };
        let inner = match (commons, &options.accelerator) {
            (Some(_), Some(_)) => {
                let what = "several models in one engine are computed by the processor only";
                return Err(Error::BadInput(what.into()));
            }
            (None, Some(accelerator)) => {
                let device = device(accelerator.as_ref(), options)?;
                let clock = Monotonic::default();
                neap_runtime::Session::open_on(device, program, checked, storage, settings, clock)
            }
            (None, None) => neap_runtime::Session::open(program, checked, storage, settings),
            (Some(commons), None) => {
                neap_runtime::Session::open_in(commons, program, checked, storage, options.isa)
            }
        };
        let inner = inner.map_err(|e| packed.told(e))?;
        self.host.trim();
        Ok(Session {
            inner,
            packed,
            standing: Standing {
                tensors_bytes: total_bytes(&inputs) + total_bytes(&outputs),
                file,
                package,
                recent: Recent::default(),
                programs: self.programs,
                options: options.clone(),
                in_force,
                spill_folder,
                known: plan.known,
                host: self.host,
                first_base: plan.ledger.with_arena(0, 0),
                ledger: plan.ledger,
                budget_bytes: plan.budget_bytes,
                plans_ahead: PlansAhead::default(),
            },
            inputs,
            outputs,
        })
    }
}

/// A model ready to run again and again inside its budget. Nothing is allocated while it runs but
/// the two short lists of tensors.
pub struct Session {
    pub(crate) inner: neap_runtime::Session,
    pub(crate) inputs: Vec<TensorInfo>,
    pub(crate) outputs: Vec<TensorInfo>,
    pub(crate) packed: InUse,
    pub(crate) standing: Standing,
}

/// What the plan in force was made from and for.
pub(crate) struct Standing {
    pub programs: Programs,
    pub options: RunOptions,
    /// The plan, under [`RunOptions::keep_plan`].
    pub in_force: Option<Next>,
    pub spill_folder: PathBuf,
    pub known: Known,
    pub host: Arc<dyn Host>,
    /// Without the arena, as the first plan took it.
    pub first_base: Ledger,
    /// Of the plan in force.
    pub ledger: Ledger,
    pub budget_bytes: Option<u64>,
    pub plans_ahead: PlansAhead,
    /// For other shapes: the packed file, what is known of it, and the shapes in use.
    pub file: PackedFile,
    pub package: Package,
    pub recent: Recent,
    /// The most that inputs and outputs took so far; `base_bytes` counts with them.
    pub tensors_bytes: u64,
}

impl Session {
    /// What [`Session::run`] takes, in this order.
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.inputs
    }

    /// What [`Session::run`] gives, in this order; of a size that the data decide the most that it can be
    /// ([`Session::output_type`]).
    pub fn outputs(&self) -> &[TensorInfo] {
        &self.outputs
    }

    /// Runs once. `inputs` and `outputs` are in the model's order, row-major little-endian bytes of
    /// exactly the tensors' sizes; inputs are read where they lie, and outputs computed where they lie. After an error
    /// nobody knows what is in them.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a wrong number or size of tensors, [`Error::Machine`] when reading
    /// weights fails or they are corrupted.
    pub fn run(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        self.run_as(None, inputs, outputs)
    }

    /// [`Session::run`], which ends at the boundary of a compute when `cancel` asks it to. The session can run again.
    ///
    /// # Errors
    /// As [`Session::run`], and [`Error::Cancelled`].
    pub fn run_unless(
        &mut self,
        cancel: &CancelToken,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<()> {
        self.run_as(Some(cancel), inputs, outputs)
    }

    fn run_as(
        &mut self,
        cancel: Option<&CancelToken>,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<()> {
        check_sizes("input", &self.inputs, inputs.iter().map(|b| b.len()))?;
        check_sizes("output", &self.outputs, outputs.iter().map(|b| b.len()))?;
        let inputs: Vec<InputTensor> = (self.inputs.iter().zip(inputs))
            .map(|(info, bytes)| InputTensor {
                ty: &info.ty,
                bytes,
            })
            .collect();
        let mut outputs: Vec<OutputTensor> = (self.outputs.iter().zip(outputs))
            .map(|(info, bytes)| OutputTensor {
                ty: &info.ty,
                bytes,
            })
            .collect();
        let run = match cancel {
            None => self.inner.run(&inputs, &mut outputs),
            Some(cancel) => self.inner.run_unless(cancel, &inputs, &mut outputs),
        };
        run.map_err(|e| self.packed.told(e))
    }

    /// An output's type after a run. Where the model gives a size only when it runs, [`Session::outputs`] has the most that
    /// there can be, and this what there is: the output is the beginning of the caller's memory.
    pub fn output_type(&self, index: usize) -> &TensorType {
        let actual = self.inner.actual_output(index);
        actual.unwrap_or(&self.outputs[index].ty)
    }

    /// [`Session::output_type`] of each output, where the data decide the size of one; else nothing.
    pub(crate) fn decided_outputs(&self) -> Vec<TensorType> {
        let outputs = 0..self.outputs.len();
        match outputs
            .clone()
            .any(|i| self.inner.actual_output(i).is_some())
        {
            true => outputs.map(|i| self.output_type(i).clone()).collect(),
            false => Vec::new(),
        }
    }

    /// Waits until all resident weights are in memory, which the first run after opening or after a change of
    /// the budget does by itself: it reads them as it needs them, and so takes longer.
    ///
    /// # Errors
    /// [`Error::Machine`] when they cannot be read or are corrupted; the next run, or this, tries again.
    pub fn settle(&mut self) -> Result<()> {
        self.inner.settle().map_err(|e| self.packed.told(e))
    }

    /// Name and bytes of each activation that is kept after a run, under
    /// [`RunOptions::keep_activations`].
    pub fn kept(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.inner.kept().iter().map(|k| (k.name.as_str(), k.bytes))
    }

    /// Hands the bytes that the last run left in a kept activation to `visit`, in order and in pieces: raw,
    /// in the layout in which the program holds them.
    ///
    /// # Errors
    /// [`Error::Run`] when no run has ended well since the session was opened or changed its budget, [`Error::Machine`] when
    /// the spill file cannot be read.
    pub fn read_kept(&mut self, index: usize, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        Ok(self.inner.read_kept(index, visit)?)
    }

    /// BLAKE3 digest of a kept activation, in hexadecimal; see [`Session::read_kept`].
    ///
    /// # Errors
    /// As [`Session::read_kept`].
    pub fn kept_digest(&mut self, index: usize) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        self.read_kept(index, &mut |piece| {
            hasher.update(piece);
        })?;
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Budget now in force, of the process or of the engine; `None` without a limit.
    pub fn budget_bytes(&self) -> Option<u64> {
        self.standing.budget_bytes
    }

    /// Planned peak of the whole process, or of the engine, under the plan in force.
    pub fn high_water_bytes(&self) -> u64 {
        self.standing.ledger.total_bytes()
    }

    /// Where that goes, part by part.
    pub fn ledger(&self) -> &Ledger {
        &self.standing.ledger
    }

    /// Counters since the session opened.
    pub fn stats(&self) -> neap_runtime::Stats {
        self.inner.stats()
    }

    /// Records what happens in the next `runs` runs.
    pub fn record_timeline(&mut self, runs: usize) {
        self.inner.record_timeline(runs);
    }

    /// Spans of the recorded runs, when recording was switched on.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.inner.timeline()
    }
}

/// With threads of the processor for what the device leaves to it.
fn device(accelerator: &dyn Accelerator, options: &RunOptions) -> Result<Box<dyn Device>> {
    let threads = options.threads.max(1);
    let pool = Pool::new(threads).map_err(|source| RuntimeError::Threads { threads, source })?;
    let cpu = Cpu::new(Arc::new(pool), options.isa);
    accelerator.device(cpu).map_err(Error::BadInput)
}

/// # Errors
/// [`Error::BadInput`] for a wrong number of tensors, and for one that has not its size.
pub(crate) fn check_sizes(
    what: &str,
    infos: &[TensorInfo],
    sizes: impl ExactSizeIterator<Item = usize>,
) -> Result<()> {
    if sizes.len() != infos.len() {
        return Err(Error::BadInput(format!(
            "the model has {} {what}s, {} were given",
            infos.len(),
            sizes.len()
        )));
    }
    for (info, size) in infos.iter().zip(sizes) {
        if size != info.len_bytes() {
            return Err(Error::BadInput(format!(
                "{what} '{}' is {} {} ({} bytes), {size} bytes were given",
                info.name,
                info.ty.dtype,
                crate::shapes::shape_text(&info.ty.shape),
                info.len_bytes()
            )));
        }
    }
    Ok(())
}
