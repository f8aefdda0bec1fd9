//! Which models there are, as clients see them.

use crate::datatype;
use crate::refusal::{Refusal, Why};
use crate::settings::Settings;
use neaptide::TensorInfo;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A model that can be asked.
#[derive(Debug)]
pub struct Served {
    pub name: Arc<str>,
    /// The engine's name of it: there may be two models of a name for a while.
    pub key: Arc<str>,
    pub version: String,
    /// In the types that the model declares.
    pub inputs: Arc<[TensorInfo]>,
    pub outputs: Arc<[TensorInfo]>,
    /// The same as the engine has them: half floats are `f32` there.
    pub engine_inputs: Arc<[TensorInfo]>,
    pub engine_outputs: Arc<[TensorInfo]>,
    /// Of each output the axes whose sizes the data decide; `outputs` has the most that they can be.
    pub late_axes: Vec<Vec<bool>>,
    /// Requests may have several rows, and run together.
    pub takes_rows: bool,
    /// What the model says of its pictures and classes.
    pub about: Vec<(String, String)>,
    pub settings: Settings,
    /// Why its last run failed, where that was no fault of the request.
    pub fault: Mutex<Option<String>>,
    /// Closed while another takes its place at once: requests wait.
    pub gate: tokio::sync::RwLock<()>,
}

/// What became of a model.
#[derive(Debug, Clone)]
pub enum State {
    Loading,
    Ready(Arc<Served>),
    Unloading,
    /// And why, if not because a client wanted it.
    Unloaded(String),
}

/// The state of every model, by name.
#[derive(Debug, Default)]
pub struct Catalogue {
    models: Mutex<BTreeMap<String, State>>,
}

impl Served {
    /// Why it may not be able to answer: its last run failed by no fault of its request.
    pub fn fault(&self) -> Option<String> {
        lock(&self.fault).clone()
    }

    /// A run ended, with this refusal or well.
    pub fn note_fault(&self, refusal: Option<&Refusal>) {
        let mut fault = lock(&self.fault);
        match refusal {
            None => *fault = None,
            Some(refusal) if refusal.why == Why::Machine => {
                let before = fault.replace(refusal.message.clone());
                if before.is_none() {
                    tracing::error!(model = %self.name, reason = refusal.message, "a model's run failed");
                }
            }
            Some(_) => {}
        }
    }

    /// Rows of one run, at most.
    pub fn most_rows(&self) -> usize {
        match &self.settings.batch {
            Some(batch) if self.takes_rows => batch.most_rows,
            _ => 1,
        }
    }

    /// A shape as clients are told it: -1 where any number of rows will do.
    pub fn told_shape(&self, info: &TensorInfo) -> Vec<i64> {
        let mut shape: Vec<i64> = info.ty.shape.iter().map(|&d| d as i64).collect();
        if let Some(first) = shape.first_mut().filter(|_| self.takes_rows) {
            *first = -1;
        }
        shape
    }

    /// An output's shape as clients are told it: -1 also where the data decide the size.
    pub fn told_output_shape(&self, index: usize) -> Vec<i64> {
        let mut shape = self.told_shape(&self.outputs[index]);
        let late = self.late_axes.get(index).into_iter().flatten();
        for (size, _) in shape.iter_mut().zip(late).filter(|(_, late)| **late) {
            *size = -1;
        }
        shape
    }

    /// Whether a client's tensor is what the model takes as `info`: the number of its rows.
    ///
    /// # Errors
    /// [`Why::Malformed`] says what it should be.
    pub fn rows_of(&self, info: &TensorInfo, given: &str, shape: &[u64]) -> Result<usize, Refusal> {
        let wanted = datatype::name(info.ty.dtype);
        if given != wanted {
            return Err(Refusal::malformed(format!(
                "input '{}' is {wanted}, not {}",
                info.name,
                shown(given)
            )));
        }
        let expected: Vec<u64> = info.ty.shape.iter().map(|&d| d as u64).collect();
        // A declared scalar is its one element, with whatever axes.
        if expected.is_empty() && shape.iter().all(|&size| size == 1) {
            return Ok(1);
        }
        if !self.takes_rows {
            return match shape == expected {
                true => Ok(1),
                false => Err(self.other_shape(info, shape)),
            };
        }
        match shape.split_first() {
            Some((&rows, rest)) if rest == &expected[1..] && rows > 0 => {
                self.check_rows(&info.name, rows)
            }
            _ => Err(self.other_shape(info, shape)),
        }
    }

    /// # Errors
    /// [`Why::Malformed`] for more rows than a run may have.
    pub fn check_rows(&self, input: &str, rows: u64) -> Result<usize, Refusal> {
        let few = usize::try_from(rows).ok();
        few.filter(|&rows| rows <= self.most_rows()).ok_or_else(|| {
            Refusal::malformed(format!(
                "input {} has {rows} rows, and the model takes {} at most",
                shown(input),
                self.most_rows()
            ))
        })
    }

    fn other_shape(&self, info: &TensorInfo, shape: &[u64]) -> Refusal {
        Refusal::malformed(format!(
            "input '{}' has shape {:?}, not {shape:?}",
            info.name,
            self.told_shape(info)
        ))
    }
}

impl Catalogue {
    /// # Errors
    /// [`Why::NotFound`] for a name that is not known, [`Why::NotReady`] for a model that cannot be asked now.
    pub fn ready(&self, name: &str, version: Option<&str>) -> Result<Arc<Served>, Refusal> {
        match self.models().get(name) {
            None => Err(unknown(name)),
            Some(State::Ready(served)) => match version {
                Some(version) if version != served.version => Err(Refusal::new(
                    Why::NotFound,
                    format!(
                        "'{name}' has version {}, not {}",
                        served.version,
                        shown(version)
                    ),
                )),
                _ => Ok(served.clone()),
            },
            Some(state) => Err(Refusal::new(
                Why::NotReady,
                format!("the model '{name}' is {}", state.told()),
            )),
        }
    }

    pub fn set(&self, name: &str, state: State) {
        self.models().insert(name.into(), state);
    }

    /// Every model that was ever loaded, or tried to.
    pub fn all(&self) -> BTreeMap<String, State> {
        self.models().clone()
    }

    fn models(&self) -> MutexGuard<'_, BTreeMap<String, State>> {
        lock(&self.models)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn told(&self) -> String {
        match self {
            State::Loading => "being loaded".into(),
            State::Ready(_) => "ready".into(),
            State::Unloading => "being unloaded".into(),
            State::Unloaded(reason) if reason.is_empty() => "not loaded".into(),
            State::Unloaded(reason) => format!("not loaded: {reason}"),
        }
    }
}

pub fn unknown(name: &str) -> Refusal {
    Refusal::new(Why::NotFound, format!("there is no model {}", shown(name)))
}

/// What a client sent, short and on one line.
pub fn shown(text: &str) -> String {
    const MOST: usize = 64;
    let mut short: String = text.chars().take(MOST).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("'{}'", short.escape_debug())
}
