//! A model that learns from numpy's arrays, step by step.

use crate::arrays::Array;
use crate::failure::{Stage, invalid, of_engine, of_onnx};
use crate::options::parsed;
use half::{bf16, f16};
use neaptide::{
    BatchNorm, Budget, Clip, DType, Initializer, Loss, MicroBatch, OpenOptions, ReplaceError,
    Replaceable, StateRole, TensorInfo, TensorType, TrainOptions, Update,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// The share that batches have in a normalisation's statistics, as PyTorch's.
const MOMENTUM: f32 = 0.1;

/// A model with its loss and its optimiser, ready for batches of one size.
#[pyclass(frozen, module = "neaptide._neaptide")]
pub struct Trainer {
    /// In another process than its own it must not be dropped: its threads are not there.
    inner: ManuallyDrop<Mutex<neaptide::Trainer>>,
    process: u32,
    path: PathBuf,
    /// Parameters that are written back.
    learned: BTreeSet<String>,
}

/// How parameters are moved.
struct Optimizer<'a> {
    name: &'a str,
    momentum: f64,
    weight_decay: Option<f64>,
}

impl Optimizer<'_> {
    /// Biases and scales have no decay: it would pull them to zero.
    fn update(&self, ty: &TensorType) -> Option<Update> {
        let default = if self.name == "adamw" { 0.01 } else { 0.0 };
        let decay = match ty.shape.len() {
            0 | 1 => 0.0,
            _ => self.weight_decay.unwrap_or(default),
        };
        match self.name {
            "adamw" => Some(Update::AdamW {
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                decay,
            }),
            "sgd" => Some(Update::Sgd {
                momentum: self.momentum,
                nesterov: false,
                decay,
            }),
            "adagrad" => Some(Update::Adagrad {
                epsilon: 1e-10,
                rate_decay: 0.0,
                decay,
            }),
            _ => None,
        }
    }
}

#[pymethods]
impl Trainer {
    #[new]
    #[pyo3(signature = (path, *, shapes, loss, class_axis, label_smoothing, optimizer, momentum, weight_decay, freeze, batch_norm, clip_norm, micro_batch, seed, memory_budget, threads, state_dir))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        shapes: BTreeMap<String, Vec<usize>>,
        loss: &str,
        class_axis: usize,
        label_smoothing: f32,
        optimizer: &str,
        momentum: f64,
        weight_decay: Option<f64>,
        freeze: Vec<String>,
        batch_norm: bool,
        clip_norm: Option<f32>,
        micro_batch: Option<usize>,
        seed: u64,
        memory_budget: Option<&str>,
        threads: usize,
        state_dir: Option<PathBuf>,
    ) -> PyResult<Trainer> {
        let mut options = TrainOptions {
            loss: loss_of(py, loss, class_axis, label_smoothing)?,
            batch_norm: match batch_norm {
                true => BatchNorm::Batch { momentum: MOMENTUM },
                false => BatchNorm::Given,
            },
            clip: clip_norm.map(Clip::Norm),
            micro_batch: micro_batch.map_or(MicroBatch::Whole, MicroBatch::Samples),
            seed,
            // The program around it has memory of its own.
            budget: match parsed(py, memory_budget)? {
                Budget::Bytes(bytes) => Budget::Engine(bytes),
                Budget::Percent(_) => {
                    let what = "memory_budget: a training takes a size or none";
                    return Err(invalid(py, what.into()));
                }
                budget => budget,
            },
            state_dir,
            ..TrainOptions::default()
        };
        if threads > 0 {
            options.threads = threads;
        }
        let optimizer = Optimizer {
            name: optimizer,
            momentum,
            weight_decay,
        };
        // What cannot be written back is not trained.
        let file = Replaceable::open(&path).map_err(|e| of_onnx(py, e))?;
        let named: BTreeSet<String> = file.initializers().map(|i| i.name.clone()).collect();
        if let Some(pattern) = (freeze.iter()).find(|p| !named.iter().any(|name| matches(p, name)))
        {
            return Err(invalid(
                py,
                format!("freeze: '{pattern}' names no parameter"),
            ));
        }
        let update_of = |name: &str, ty: &TensorType| {
            let is_frozen = freeze.iter().any(|pattern| matches(pattern, name));
            let is_trained = named.contains(name) && !is_frozen;
            is_trained.then(|| optimizer.update(ty)).flatten()
        };
        let open = OpenOptions {
            shapes,
            ..OpenOptions::default()
        };
        let trainer = py.detach(|| neaptide::Trainer::open(&path, &open, &options, &update_of));
        let trainer = trainer.map_err(|e| of_engine(py, e, Stage::Opening))?;
        let learned = (trainer.states().iter())
            .filter(|s| matches!(s.role, StateRole::Parameter | StateRole::RunningStatistic))
            .filter(|s| named.contains(&s.name));
        Ok(Trainer {
            learned: learned.map(|s| s.name.clone()).collect(),
            inner: ManuallyDrop::new(Mutex::new(trainer)),
            process: std::process::id(),
            path,
        })
    }

    /// Takes a step at a learning rate, and gives the loss before it.
    fn step(
        &self,
        py: Python<'_>,
        inputs: Vec<Bound<'_, PyAny>>,
        target: &Bound<'_, PyAny>,
        rate: f64,
    ) -> PyResult<f64> {
        let mut trainer = self.lock(py)?;
        let infos = trainer.inputs().to_vec();
        if infos.len() != inputs.len() {
            let (has, given) = (infos.len(), inputs.len());
            let what = format!("the model has {has} inputs, {given} were given");
            return Err(invalid(py, what));
        }
        let arrays = infos.iter().zip(&inputs);
        let arrays = arrays.map(|(info, value)| taken(py, info, value));
        let arrays = arrays.collect::<PyResult<Vec<Array>>>()?;
        let target = taken(py, trainer.target(), target)?;
        // SAFETY: the arrays live until the step has ended; they are the caller's, who must not write them meanwhile.
        let (bytes, target) = unsafe {
            let bytes: Vec<&[u8]> = arrays.iter().map(|a| a.tensor().bytes).collect();
            (bytes, target.tensor().bytes)
        };
        let trainer: &mut neaptide::Trainer = &mut trainer;
        let loss = py.detach(|| trainer.step(&bytes, target, rate));
        loss.map_err(|e| of_engine(py, e, Stage::Running))
    }

    /// What is planned: the peak in bytes, and the number of parameters that learn.
    fn about<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let trainer = self.lock(py)?;
        let about = PyDict::new(py);
        about.set_item("planned_bytes", trainer.high_water_bytes())?;
        about.set_item("budget_bytes", trainer.budget_bytes())?;
        let parameters = trainer.states().iter();
        let parameters = parameters.filter(|s| s.role == StateRole::Parameter);
        let elements: usize = parameters.map(|s| s.ty.elements()).sum();
        about.set_item("parameters", elements)?;
        about.set_item("steps", trainer.steps())?;
        Ok(about)
    }

    /// Writes the model with what was learned; everything else in it stays as it is.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let mut trainer = self.lock(py)?;
        let trainer: &mut neaptide::Trainer = &mut trainer;
        py.detach(|| self.write(trainer, &path))
            .map_err(|e| invalid(py, format!("cannot write {}: {e}", path.display())))
    }
}

impl Trainer {
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, neaptide::Trainer>> {
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err(
                "this trainer was opened in another process: open one in this process",
            ));
        }
        match self.inner.try_lock() {
            Ok(inner) => Ok(inner),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(invalid(py, "another thread trains with it".into()))
            }
        }
    }

    /// Beside the file first: what has the name is whole.
    fn write(&self, trainer: &mut neaptide::Trainer, path: &Path) -> Result<(), ReplaceError> {
        let mut source = Replaceable::open(&self.path)?;
        let states = trainer.states().iter().enumerate();
        let states: BTreeMap<String, (usize, DType)> = states
            .filter(|(_, s)| self.learned.contains(&s.name))
            .map(|(number, s)| (s.name.clone(), (number, s.ty.dtype)))
            .collect();
        let mut value = |wanted: &Initializer| {
            let (number, dtype) = states[&wanted.name];
            let mut bytes = Vec::new();
            let read = trainer.read(number, &mut |piece| bytes.extend_from_slice(piece));
            read.map_err(io::Error::other)?;
            Ok(narrowed(bytes, dtype, wanted.ty.dtype))
        };
        let mut partial = path.as_os_str().to_os_string();
        partial.push(format!(".{}.partial", std::process::id()));
        let written = File::create(&partial).map_err(ReplaceError::from);
        let written = written.and_then(|file| {
            let mut out = BufWriter::new(file);
            source.write(&|name| self.learned.contains(name), &mut value, &mut out)?;
            out.flush()?;
            out.get_ref().sync_data()?;
            Ok(fs::rename(&partial, path)?)
        });
        if written.is_err() {
            // The error that is told is the first one.
            let _ = fs::remove_file(&partial);
        }
        written
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: it is dropped once, here, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

/// An array of this type and shape.
fn taken<'py>(
    py: Python<'py>,
    info: &TensorInfo,
    value: &Bound<'py, PyAny>,
) -> PyResult<Array<'py>> {
    let name = PyString::new(py, &info.name);
    let array = Array::input(&name, value, Some(info.ty.dtype))?;
    // SAFETY: only its type and shape are looked at.
    let found = unsafe { array.tensor() };
    if found.dtype == info.ty.dtype && found.shape == info.ty.shape {
        return Ok(array);
    }
    let (wanted, given) = (&info.ty, neaptide::shape_text(found.shape));
    Err(invalid(
        py,
        format!(
            "'{}' is {} {}, {} {given} was given",
            info.name,
            wanted.dtype,
            neaptide::shape_text(&wanted.shape),
            found.dtype
        ),
    ))
}

fn loss_of(py: Python<'_>, name: &str, class_axis: usize, label_smoothing: f32) -> PyResult<Loss> {
    match name {
        "cross-entropy" => Ok(Loss::CrossEntropy {
            class_axis,
            label_smoothing,
            ignore_index: None,
        }),
        "mean-square" => Ok(Loss::MeanSquare),
        "mean-absolute" => Ok(Loss::MeanAbsolute),
        "binary-cross-entropy" => Ok(Loss::BinaryCrossEntropy),
        _ => Err(invalid(py, format!("there is no loss '{name}'"))),
    }
}

/// Half floats are trained as float32.
fn narrowed(bytes: Vec<u8>, computed: DType, stored: DType) -> Vec<u8> {
    let floats = || bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b));
    match (computed, stored) {
        (DType::F32, DType::F16) => floats()
            .flat_map(|v| f16::from_f32(v).to_le_bytes())
            .collect(),
        (DType::F32, DType::BF16) => floats()
            .flat_map(|v| bf16::from_f32(v).to_le_bytes())
            .collect(),
        _ => bytes,
    }
}

/// Whether a name is as a pattern says, in which `*` is anything.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(first) else {
        return false;
    };
    let starts = name.char_indices().map(|(at, _)| at);
    starts
        .chain([name.len()])
        .any(|at| matches(rest, &name[at..]))
}
