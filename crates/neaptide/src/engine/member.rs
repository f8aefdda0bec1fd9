//! A model in an engine.

use super::candidates::Prospects;
use super::division::{Candidate, Claim};
use crate::model::TensorInfo;
use crate::session::Session;
use neap_compile::Programs;
use neap_runtime::Stats;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A model that an engine runs; clones are of the same one.
#[derive(Clone)]
pub struct LoadedModel(pub(super) Arc<Member>);

pub(super) struct Member {
    pub name: String,
    pub inputs: Vec<TensorInfo>,
    pub outputs: Vec<TensorInfo>,
    pub weight: f64,
    pub least_bytes: u64,
    pub programs: Programs,
    pub prospects: Prospects,
    /// Only who has a turn looks into it; `None` once it is unloaded.
    pub session: Mutex<Option<Session>>,
    pub figures: Mutex<Figures>,
}

/// What is told of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    /// The plan in force.
    pub share: Candidate,
    /// Of resident weights, what is in memory.
    pub held_bytes: u64,
    pub stats: Stats,
    pub cancelled: u64,
    pub failed: u64,
}

impl fmt::Debug for LoadedModel {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("LoadedModel").field(&self.0.name).finish()
    }
}

impl LoadedModel {
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub fn inputs(&self) -> &[TensorInfo] {
        &self.0.inputs
    }

    pub fn outputs(&self) -> &[TensorInfo] {
        &self.0.outputs
    }
}

impl Member {
    pub fn claim(&self) -> Claim<'_> {
        Claim {
            candidates: &self.prospects.candidates,
            weight: self.weight,
            least_bytes: self.least_bytes,
        }
    }

    pub fn share(&self) -> Candidate {
        lock(&self.figures).share
    }

    pub fn outputs_bytes(&self) -> u64 {
        self.outputs.iter().map(|t| t.len_bytes() as u64).sum()
    }
}

/// A panic elsewhere leaves nothing half done that is behind these locks.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
