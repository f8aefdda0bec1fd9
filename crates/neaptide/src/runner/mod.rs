//! Runs a model on tensors of whatever shapes come. For callers that learn shapes with their data, as other engines'
//! programs do.
//!
//! ```text
//!   ready(inputs)   same shapes and values as before ────────────────► outputs' types
//!                   other shapes ─► Session::bind ───────────────────►
//!                   first run; other values that decide shapes;
//!                   what was packed does not do ─► Model::open, plan ─►
//!   run(inputs, outputs)
//! ```

mod declared;
mod half;
mod opened;
mod profile;

pub use declared::{Tensor, declared_inputs};

use crate::budget::{Budget, Scope};
use crate::error::{Error, Result};
use crate::model::{self, Model, OpenOptions, TensorInfo};
use crate::options::RunOptions;
use crate::pack::Progress;
use crate::plan::Plan;
use crate::session::Session;
pub(crate) use declared::signature_of;
use declared::{is_fixed, shapes_of};
use neap_ir::Literal;
use neap_onnx::{Need, Signature};
use neap_runtime::CancelToken;
use opened::{Opened, Standing, of_engine};
use profile::Profile;
use std::path::{Path, PathBuf};

/// What decides shapes is small. Larger inputs are not looked at.
const MOST_VALUE_BYTES: usize = 64 << 10;

/// A model with the session of the shapes that came last.
///
/// Tensors are in the signature's order, in the element types that the model declares: half floats, too, which the
/// engine may compute as f32.
pub struct Runner {
    path: PathBuf,
    open: OpenOptions,
    /// The budget in it is the engine's.
    options: RunOptions,
    signature: Signature,
    opened: Option<Opened>,
    profile: Option<Profile>,
}

impl Runner {
    /// Opens a model. Where its inputs have fixed shapes it is ready to run; otherwise the first [`Runner::ready`] reads
    /// the rest, and packs it when there is no packed form.
    ///
    /// A budget of `options` is of the engine's own memory ([`Budget::Engine`]); a percentage is of what the engine
    /// takes with everything resident.
    ///
    /// # Errors
    /// As [`Model::open`] and [`Model::plan`].
    pub fn open(
        path: impl AsRef<Path>,
        open: &OpenOptions,
        options: &RunOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Runner> {
        let path = path.as_ref();
        let mut runner = Runner {
            path: path.to_path_buf(),
            open: open.clone(),
            options: options.clone(),
            signature: Signature::default(),
            opened: None,
            profile: None,
        };
        if model::is_packed(path)? {
            let model = Model::open(path, open, progress)?;
            runner.signature = signature_of(&model);
            runner.take(model, &[])?;
            return Ok(runner);
        }
        runner.signature = neap_onnx::signature(path)?;
        let mut inputs = runner.signature.inputs.iter();
        if inputs.all(|input| is_fixed(input) || open.shapes.contains_key(&input.name)) {
            match Model::open(path, open, progress) {
                Ok(model) => runner.take(model, &[])?,
                // It waits for the values.
                Err(Error::Unbound {
                    need: Need::Values { .. } | Need::Bound { .. },
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(runner)
    }

    /// What the model declares. Of a `.neap`, with outputs as far as they are sure.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The session in use; `None` before shapes are known.
    pub fn session(&self) -> Option<&Session> {
        self.opened.as_ref().map(Opened::session)
    }

    /// The same, to change it.
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        self.opened.as_mut().map(Opened::session_mut)
    }

    /// Runs within another budget of the engine from now on.
    ///
    /// # Errors
    /// As [`Session::set_budget`]; the old budget stays in force.
    pub fn set_budget(&mut self, budget: Budget) -> Result<()> {
        match &mut self.opened {
            Some(opened) if opened.scope() == Scope::Engine => {
                self.changed(|opened, _| opened.set_budget(budget))?;
            }
            // It was planned as if it had no limit. The next run opens the model anew.
            Some(opened) => {
                opened.plan(Some(budget))?;
                self.pause();
                self.opened = None;
            }
            None => {}
        }
        self.options.budget = budget;
        Ok(())
    }

    /// How the model would run within a budget of the engine, in the shapes that came last; without one, within the
    /// budget in force. `None` before shapes are known. Nothing is changed.
    ///
    /// # Errors
    /// As [`Model::plan`].
    pub fn plan(&self, budget: Option<Budget>) -> Result<Option<Plan>> {
        self.opened.as_ref().map(|o| o.plan(budget)).transpose()
    }

    /// Whether it can run on tensors of these shapes and values now.
    pub fn is_ready(&self, inputs: &[Tensor]) -> bool {
        let is_same = |opened: &Opened| opened.standing(inputs) == Standing::Same;
        self.opened.as_ref().is_some_and(is_same)
            && declared::check_types(&self.signature, inputs).is_ok()
    }

    /// What outputs a run gives that it is ready for, in the model's order.
    pub fn outputs(&self) -> &[TensorInfo] {
        self.opened.as_ref().map_or(&[], Opened::outputs)
    }

    /// Prepares to run on tensors of these shapes, and says what outputs they give, in the model's order.
    ///
    /// # Errors
    /// [`Error::BadInput`] for inputs that the model does not take; as [`Model::open`] and [`Model::plan`] for what must
    /// be opened or planned first.
    pub fn ready(
        &mut self,
        inputs: &[Tensor],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<&[TensorInfo]> {
        declared::check_types(&self.signature, inputs)?;
        let is_ready = match self.opened.as_ref().map(|opened| opened.standing(inputs)) {
            Some(Standing::Same) => true,
            Some(_) => self.changed(|opened, signature| opened.bind(signature, inputs))?,
            None => false,
        };
        if !is_ready {
            declared::check_shapes(&self.signature, inputs)?;
            self.reopen(inputs, progress)?;
        }
        match &self.opened {
            Some(opened) => Ok(opened.outputs()),
            None => Err(Error::Defect("an opened model is not there".into())),
        }
    }

    /// Runs once, on the inputs that it was made ready for. `outputs` are places for all outputs that
    /// [`Runner::ready`] named. A packed form in a cache that turns out to be damaged is made anew, once.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run(
        &mut self,
        inputs: &[Tensor],
        outputs: &mut [&mut [u8]],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        self.run_unless(&CancelToken::new(), inputs, outputs, progress)
    }

    /// [`Runner::run`], which ends at the boundary of a compute when `cancel` asks it to. It can run again.
    ///
    /// # Errors
    /// As [`Runner::run`], and [`Error::Cancelled`].
    pub fn run_unless(
        &mut self,
        cancel: &CancelToken,
        inputs: &[Tensor],
        outputs: &mut [&mut [u8]],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        match self.run_once(cancel, inputs, outputs) {
            Err(Error::DamagedCache(_)) => {
                self.reopen(inputs, progress)?;
                self.run_once(cancel, inputs, outputs)
            }
            ended => ended,
        }
    }

    fn run_once(
        &mut self,
        cancel: &CancelToken,
        inputs: &[Tensor],
        outputs: &mut [&mut [u8]],
    ) -> Result<()> {
        let Some(opened) = &mut self.opened else {
            return Err(Error::BadInput("the model is not ready to run".into()));
        };
        let ended = opened.run(cancel, inputs, outputs);
        if let Some(profile) = &mut self.profile {
            profile.after_run(opened.session_mut(), &self.path);
        }
        ended
    }

    /// Changes the session's plan, if there is one.
    fn changed<T: Default>(
        &mut self,
        change: impl FnOnce(&mut Opened, &Signature) -> Result<T>,
    ) -> Result<T> {
        self.pause();
        let changed = match &mut self.opened {
            Some(opened) => change(opened, &self.signature),
            None => Ok(T::default()),
        };
        self.record();
        changed
    }

    /// With these shapes, and with the values that shapes depend on.
    fn reopen(&mut self, inputs: &[Tensor], progress: &mut dyn FnMut(Progress)) -> Result<()> {
        // There is memory for one of them.
        self.pause();
        self.opened = None;
        let given = self.signature.inputs.iter().zip(inputs);
        let small = given.filter(|(_, tensor)| tensor.bytes.len() <= MOST_VALUE_BYTES);
        let values = small.filter_map(|(input, tensor)| {
            let value = Literal::from_bytes(tensor.dtype, tensor.shape, tensor.bytes)?;
            Some((input.name.clone(), value))
        });
        let options = OpenOptions {
            shapes: shapes_of(&self.signature, inputs),
            value_hints: values.collect(),
            ..self.open.clone()
        };
        let model = Model::open(&self.path, &options, progress)?;
        self.take(model, inputs)
    }

    /// Writes what runs from now on do to a file, as a list of trace events: a row for runs, one for computes, and one for
    /// each load and store that is under way at a time. Needs [`RunOptions::keep_plan`].
    ///
    /// # Errors
    /// [`Error::BadInput`] when the file cannot be made, or plans are not kept.
    pub fn profile(&mut self, path: &Path) -> Result<()> {
        if !self.options.keep_plan {
            let what = "a model is profiled when it was opened for it";
            return Err(Error::BadInput(what.into()));
        }
        self.end_profile()?;
        self.profile = Some(Profile::create(path)?);
        self.record();
        Ok(())
    }

    /// Ends [`Runner::profile`], and says where the file is; `None` when there is none.
    ///
    /// # Errors
    /// [`Error::BadInput`] when the file could not be written.
    pub fn end_profile(&mut self) -> Result<Option<PathBuf>> {
        self.pause();
        self.profile.take().map(Profile::finish).transpose()
    }

    /// Before another plan comes.
    fn pause(&mut self) {
        if let (Some(profile), Some(opened)) = (&mut self.profile, &mut self.opened) {
            profile.stop(opened.session_mut(), &self.path);
        }
    }

    /// When it is there, or the old one stays.
    fn record(&mut self) {
        if let (Some(profile), Some(opened)) = (&mut self.profile, &mut self.opened) {
            profile.start(opened.session_mut());
        }
    }

    /// Makes a session of the model; `inputs` are what it was opened for.
    fn take(&mut self, model: Model, inputs: &[Tensor]) -> Result<()> {
        let mut options = self.options.clone();
        options.budget = of_engine(options.budget, &model.programs, &options);
        let plan = model.plan(&options)?;
        let session = model.into_session(plan, &options)?;
        self.opened = Some(Opened::new(session, &self.signature, inputs)?);
        self.record();
        Ok(())
    }
}

impl Drop for Runner {
    /// A profile that nobody ended.
    fn drop(&mut self) {
        // Nobody is there to hear of an error.
        let _ = self.end_profile();
    }
}
