//! A model that runs on numpy's arrays.
//!
//! ```text
//!   run   arrays ─► tensors │ lock released: the session's own lock, what must be opened or bound │ places for outputs
//!                           │ lock released: the run                                              │ arrays
//! ```
//! One run at a time: other threads wait, and Python goes on meanwhile.

use crate::arrays::Array;
use crate::failure::{self, Stage, invalid};
use crate::interrupt::{Cancel, Interrupt, LookTime};
use crate::listener::Listener;
use crate::options::{self, Options, options};
use crate::signature::in_python;
use neaptide::{DType, Ledger, Plan, Runner, TensorInfo};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySlice, PyString, PyTuple};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Name and shape of an output.
type NamedShape = (String, Vec<usize>);

/// Runs that are predicted for a picture: the last is in the steady state.
const DRAWN_RUNS: u32 = 3;

/// An open model.
#[pyclass(frozen, module = "neaptide._neaptide")]
pub struct Session {
    /// In another process than its own it must not be dropped: its threads are not there.
    runner: ManuallyDrop<Mutex<Runner>>,
    process: u32,
    inputs: Vec<(Py<PyString>, Option<DType>)>,
    outputs: Vec<Py<PyString>>,
    progress: Option<Py<PyAny>>,
    look_time: LookTime,
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (path, *, memory_budget=None, threads=0, cache_dir=None, exact=false, shapes=None, bounds=None, weights=None, progress=None, profile=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        memory_budget: Option<&str>,
        threads: usize,
        cache_dir: Option<PathBuf>,
        exact: bool,
        shapes: Option<BTreeMap<String, Vec<usize>>>,
        bounds: Option<BTreeMap<String, usize>>,
        weights: Option<&str>,
        progress: Option<Py<PyAny>>,
        profile: Option<PathBuf>,
    ) -> PyResult<Session> {
        let shapes = shapes.unwrap_or_default();
        let Options { open, mut run } = options(
            py,
            memory_budget,
            threads,
            cache_dir,
            exact,
            shapes,
            bounds.unwrap_or_default(),
            weights,
        )?;
        run.keep_plan = profile.is_some();
        let mut listener = Listener::new(progress.as_ref());
        let opened = py.detach(|| Runner::open(&path, &open, &run, &mut |p| listener.hear(p)));
        listener.end()?;
        let mut runner = opened.map_err(|e| failure::of_engine(py, e, Stage::Opening))?;
        if let Some(path) = profile {
            let begun = runner.profile(&path);
            begun.map_err(|e| failure::of_engine(py, e, Stage::Opening))?;
        }
        let signature = runner.signature();
        let name = |name: &str| PyString::new(py, name).unbind();
        let inputs = signature.inputs.iter().map(|i| (name(&i.name), i.dtype));
        Ok(Session {
            inputs: inputs.collect(),
            outputs: signature.outputs.iter().map(|o| name(&o.name)).collect(),
            runner: ManuallyDrop::new(Mutex::new(runner)),
            process: std::process::id(),
            progress,
            look_time: LookTime::default(),
        })
    }

    /// Inputs, outputs and metadata as the model declares them.
    fn signature<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let runner = self.lock(py)?;
        in_python(py, runner.signature())
    }

    /// Name and shape of each output for the shapes that ran last; `None` before they are known.
    fn bound_outputs(&self, py: Python<'_>) -> PyResult<Option<Vec<NamedShape>>> {
        let runner = self.lock(py)?;
        let session = runner.session();
        Ok(session.map(|session| {
            let outputs = session.outputs().iter();
            outputs
                .map(|o| (o.name.clone(), o.ty.shape.clone()))
                .collect()
        }))
    }

    /// Where the planned peak goes, in bytes by part; `None` before shapes are known.
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let found = {
            let mut runner = self.lock(py)?;
            let runner: &mut Runner = &mut runner;
            let own = runner.session().map(|s| (*s.ledger(), s.budget_bytes()));
            match own {
                // Without a limit the whole process was counted: the engine's own part is what the same plan takes within one.
                Some((ledger, None)) => {
                    let plan = py.detach(move || runner.plan(None));
                    let of_engine = plan.ok().flatten().map(|plan| plan.ledger);
                    Some((of_engine.unwrap_or(ledger), None))
                }
                own => own,
            }
        };
        found
            .map(|(ledger, budget_bytes)| shown(py, &ledger, budget_bytes))
            .transpose()
    }

    /// How it would run within another budget, or within its own: the figures of the plan, and the page that draws it;
    /// `None` before shapes are known.
    #[pyo3(signature = (title, memory_budget=None))]
    fn plan<'py>(
        &self,
        py: Python<'py>,
        title: &str,
        memory_budget: Option<&str>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let budget = memory_budget.map(|text| options::parsed(py, Some(text)));
        let budget = budget.transpose()?;
        let mut runner = self.lock(py)?;
        let runner: &mut Runner = &mut runner;
        let plan = py.detach(move || runner.plan(budget));
        let plan = plan.map_err(|e| failure::of_engine(py, e, Stage::Running))?;
        plan.map(|plan| drawn(py, title, &plan)).transpose()
    }

    /// Ends the profile, and says which file it is; `None` when there is none.
    fn end_profile(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        let mut runner = self.lock(py)?;
        let runner: &mut Runner = &mut runner;
        let ended = py.detach(|| runner.end_profile());
        ended.map_err(|e| failure::of_engine(py, e, Stage::Opening))
    }

    /// Runs within another budget from now on.
    #[pyo3(signature = (memory_budget))]
    fn set_budget(&self, py: Python<'_>, memory_budget: Option<&str>) -> PyResult<()> {
        let budget = options::parsed(py, memory_budget)?;
        let mut runner = self.lock(py)?;
        let runner: &mut Runner = &mut runner;
        let set = py.detach(|| runner.set_budget(budget));
        set.map_err(|e| failure::of_engine(py, e, Stage::Running))
    }

    /// Runs the model. `names` are the outputs that are wanted, all where there are none; `feed` has an array for each
    /// input; `places`, if given, has an array or `None` for each output of the model, in its order. `cancel` ends it early, and so
    /// does a signal whose handler raises.
    #[pyo3(signature = (names, feed, places=None, cancel=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        names: Option<Vec<Bound<'py, PyString>>>,
        feed: &Bound<'py, PyDict>,
        places: Option<Vec<Option<Bound<'py, PyAny>>>>,
        cancel: Option<Bound<'py, Cancel>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let interrupt = Interrupt::new(cancel.as_ref().map(Bound::get), &self.look_time);
        let wanted = self.wanted(py, names)?;
        let inputs = self.fed(py, feed)?;
        // SAFETY: the arrays live until the function ends. They are the caller's, who must not write them while they
        // run, as with every engine. Places of outputs that overlap with them are refused below.
        let tensors: Vec<_> = inputs.iter().map(|i| unsafe { i.tensor() }).collect();

        let mut listener = Listener::new(self.progress.as_ref());
        let mut runner = self.lock(py)?;
        let runner: &mut Runner = &mut runner;
        if !runner.is_ready(&tensors) {
            let ready = py.detach(|| runner.ready(&tensors, &mut |p| listener.hear(p)).map(drop));
            ready.map_err(|e| failure::of_engine(py, e, Stage::Running))?;
        }
        let places_were_given = places
            .as_ref()
            .is_some_and(|p| p.iter().any(Option::is_some));
        let outputs = places_for(py, runner.outputs(), places)?;
        if let Some((index, _)) = outputs.iter().enumerate().find(|(index, place)| {
            let others = inputs.iter().chain(&outputs[..*index]);
            others.into_iter().any(|other| place.overlaps(other))
        }) {
            let name = &runner.outputs()[index].name;
            let what =
                format!("the place of output '{name}' overlaps with another tensor of the run");
            return Err(invalid(py, what));
        }
        {
            // SAFETY: the arrays are new, or the caller's, who must not use them meanwhile; they overlap with nothing.
            let mut bytes: Vec<&mut [u8]> = outputs
                .iter()
                .map(|place| unsafe { place.bytes_mut() })
                .collect();
            let cancel = interrupt.token();
            let run = py.detach(|| {
                runner.run_unless(cancel, &tensors, &mut bytes, &mut |p| listener.hear(p))
            });
            run.map_err(|e| match interrupt.raised() {
                Some(raised) => raised,
                None => failure::of_engine(py, e, Stage::Running),
            })?;
        }
        listener.end()?;
        let mut arrays: Vec<_> = outputs.into_iter().map(Array::into_any).collect();
        for (index, array) in arrays.iter_mut().enumerate().filter(|_| !places_were_given) {
            let actual = runner
                .session()
                .map(|s| (s.output_type(index), &s.outputs()[index].ty));
            if let Some((actual, _)) = actual.filter(|(actual, most)| actual != most) {
                *array = beginning(array, &actual.shape)?;
            }
        }
        match wanted {
            None => PyList::new(py, arrays),
            Some(indices) => PyList::new(py, indices.into_iter().map(|index| &arrays[index])),
        }
    }
}

impl Session {
    /// Waits without the interpreter's lock, which the thread that has the session may need.
    ///
    /// # Errors
    /// In a process that was forked from the session's own.
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Runner>> {
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err(format!(
                "the session was opened in process {} and cannot be used in its fork {}: open it in the process that runs it",
                self.process,
                std::process::id()
            )));
        }
        match self.runner.try_lock() {
            Ok(runner) => return Ok(runner),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        // The guard stays with this thread: only the waiting is done without the lock.
        loop {
            py.detach(|| drop(self.runner.lock().unwrap_or_else(PoisonError::into_inner)));
            match self.runner.try_lock() {
                Ok(runner) => return Ok(runner),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => py.check_signals()?,
            }
        }
    }

    /// Indices of the outputs with these names; `None` for all.
    fn wanted(
        &self,
        py: Python<'_>,
        names: Option<Vec<Bound<'_, PyString>>>,
    ) -> PyResult<Option<Vec<usize>>> {
        let Some(names) = names.filter(|names| !names.is_empty()) else {
            return Ok(None);
        };
        let index = |name: &Bound<'_, PyString>| {
            for (index, known) in self.outputs.iter().enumerate() {
                if known.bind(py).as_any().eq(name)? {
                    return Ok(index);
                }
            }
            Err(invalid(py, format!("Invalid output name: {name}")))
        };
        names.iter().map(index).collect::<PyResult<_>>().map(Some)
    }

    /// An array for each input, in the model's order.
    fn fed<'py>(&self, py: Python<'py>, feed: &Bound<'py, PyDict>) -> PyResult<Vec<Array<'py>>> {
        let mut arrays = Vec::with_capacity(self.inputs.len());
        for (name, dtype) in &self.inputs {
            match feed.get_item(name)? {
                Some(value) => arrays.push(Array::input(name.bind(py), &value, *dtype)?),
                None => return Err(self.missing(py, feed)),
            }
        }
        if feed.len() > arrays.len() {
            for name in feed.keys() {
                let mut known = self.inputs.iter();
                if !known.any(|(known, _)| known.bind(py).as_any().eq(&name).unwrap_or(false)) {
                    return Err(invalid(py, format!("Invalid input name: {name}")));
                }
            }
        }
        Ok(arrays)
    }

    fn missing(&self, py: Python<'_>, feed: &Bound<'_, PyDict>) -> PyErr {
        let absent = |name: &Bound<'_, PyString>| !feed.contains(name).unwrap_or(false);
        let names = self.inputs.iter().map(|(name, _)| name.bind(py));
        let missing: Vec<String> = names
            .filter(|n| absent(n))
            .map(|n| format!("'{n}'"))
            .collect();
        PyValueError::new_err(format!(
            "Required inputs ([{}]) are missing from input feed ({}).",
            missing.join(", "),
            feed.keys()
        ))
    }
}

/// Arrays that outputs are written to: those given, new ones for the rest.
fn places_for<'py>(
    py: Python<'py>,
    infos: &[TensorInfo],
    places: Option<Vec<Option<Bound<'py, PyAny>>>>,
) -> PyResult<Vec<Array<'py>>> {
    let Some(places) = places else {
        return infos.iter().map(|info| Array::empty(py, info)).collect();
    };
    if places.len() != infos.len() {
        let (has, given) = (infos.len(), places.len());
        return Err(invalid(
            py,
            format!("the model has {has} outputs, {given} places were given"),
        ));
    }
    let all = infos.iter().zip(&places);
    all.map(|(info, place)| match place {
        Some(place) => Array::place(info, place),
        None => Array::empty(py, info),
    })
    .collect()
}

/// An array's first elements, in another shape: of an output whose size is known only when the model runs.
fn beginning<'py>(array: &Bound<'py, PyAny>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    let count: usize = shape.iter().product();
    let flat = array.call_method1("reshape", (-1,))?;
    let part = flat.get_item(PySlice::new(py, 0, count as isize, 1))?;
    let part = part.call_method1("reshape", (PyTuple::new(py, shape)?,))?;
    part.call_method0("copy")
}

fn shown<'py>(
    py: Python<'py>,
    ledger: &Ledger,
    budget_bytes: Option<u64>,
) -> PyResult<Bound<'py, PyDict>> {
    let parts = PyDict::new(py);
    parts.set_item("budget_bytes", budget_bytes)?;
    parts.set_item("total_bytes", ledger.total_bytes())?;
    for (name, bytes) in ledger.parts() {
        parts.set_item(format!("{name}_bytes"), bytes)?;
    }
    Ok(parts)
}

fn drawn<'py>(py: Python<'py>, title: &str, plan: &Plan) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    let page = py.detach(|| plan.page(title, &plan.simulate(DRAWN_RUNS)));
    figures.set_item("page", page)?;
    figures.set_item("memory", shown(py, &plan.ledger, plan.budget_bytes)?)?;
    figures.set_item("latency_ms", plan.prediction.latency_ns as f64 / 1e6)?;
    figures.set_item("stall_ms", plan.prediction.stall_ns as f64 / 1e6)?;
    figures.set_item("resident_bytes", plan.verdict().resident_bytes)?;
    figures.set_item("loaded_bytes_per_run", plan.verdict().loaded_bytes_per_run)?;
    Ok(figures)
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: it is dropped once, here, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.runner) };
        }
    }
}
