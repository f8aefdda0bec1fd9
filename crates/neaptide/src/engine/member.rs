//! A model in an engine.

use super::bindings::{Bound, Others};
use super::candidates::Prospects;
use super::division::{Candidate, Claim};
use crate::error::{Error, Result};
use crate::model::TensorInfo;
use crate::options::RunOptions;
use crate::plans_ahead::Next;
use crate::rebind::total_bytes;
use crate::session::Session;
use crate::shapes::Shapes;
use neap_runtime::Stats;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A model that an engine runs; clones are of the same one.
#[derive(Clone)]
pub struct LoadedModel(pub(super) Arc<Member>);

pub(super) struct Member {
    pub name: String,
    pub weight: f64,
    pub least_bytes: u64,
    /// What a process takes while it opens the model.
    pub opening_bytes: u64,
    pub prospects: Prospects,
    /// The shapes that it was loaded with.
    pub home: Arc<Bound>,
    /// If it may run in others.
    pub others: Option<Others>,
    /// Only who has a turn looks into it; `None` once it is unloaded.
    pub seat: Mutex<Option<Seat>>,
    pub figures: Mutex<Figures>,
    /// It keeps the plan that it has, whatever comes and goes.
    pub is_pinned: AtomicBool,
}

/// A session, and the shapes that it is in.
pub(super) struct Seat {
    pub session: Session,
    pub bound: Arc<Bound>,
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
    /// As it was loaded under; messages and ledgers say it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// With the shapes that it was opened for; a run may have others.
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.0.home.inputs
    }

    /// For these inputs.
    pub fn outputs(&self) -> &[TensorInfo] {
        &self.0.home.outputs
    }
}

impl Seat {
    /// Goes over to the shapes of `bound`, by a plan for them.
    ///
    /// # Errors
    /// [`Error::Machine`] when that fails: it is as it was.
    pub fn go_over(&mut self, next: Next, bound: &Arc<Bound>) -> Result<()> {
        self.session.adopt_as(next, &bound.inputs, &bound.outputs)?;
        self.bound = bound.clone();
        Ok(())
    }
}

impl Member {
    pub fn claim(&self) -> Claim<'_> {
        let all = &*self.prospects.candidates;
        let share = self.share();
        let own = all.iter().position(|&candidate| candidate == share);
        let pinned = own.filter(|_| self.is_pinned.load(Relaxed));
        Claim {
            candidates: pinned.map_or(all, |at| &all[at..=at]),
            weight: self.weight,
            least_bytes: self.least_bytes,
        }
    }

    pub fn share(&self) -> Candidate {
        lock(&self.figures).share
    }

    /// Of the largest shapes that it is to run in.
    pub fn outputs_bytes(&self) -> u64 {
        let named = self.others.iter().flat_map(|others| &others.named);
        let all = named.chain([&self.home]);
        all.map(|bound| total_bytes(&bound.outputs))
            .max()
            .unwrap_or(0)
    }

    /// Heap for programs and plans of other shapes.
    pub fn others_bytes(&self) -> u64 {
        self.others.as_ref().map_or(0, |others| others.most_bytes)
    }

    /// The shapes that a run is in.
    ///
    /// # Errors
    /// [`Error::BadInput`] for shapes that it does not take.
    pub fn bound(&self, shapes: Option<&Shapes>, options: &RunOptions) -> Result<Arc<Bound>> {
        let Some(shapes) = shapes else {
            return Ok(self.home.clone());
        };
        let others = self.others.as_ref().ok_or_else(|| {
            Error::BadInput(format!(
                "the model '{}' was loaded for its own shapes",
                self.name
            ))
        })?;
        let bound = others.bound(shapes, &self.prospects.known, options)?;
        Ok(bound.unwrap_or_else(|| self.home.clone()))
    }

    /// Makes a plan for these shapes and the share of now, where there is none.
    ///
    /// # Errors
    /// [`Error::Infeasible`] when they need more than the share.
    pub fn prepare(&self, bound: &Bound, options: &RunOptions) -> Result<()> {
        // It stays in its own shapes.
        if self.others.is_none() {
            return Ok(());
        }
        let share = self.share();
        let rooms = self.prospects.candidates.iter().rev();
        let rooms = rooms
            .map(|c| c.room_bytes)
            .filter(|&room| room <= share.room_bytes);
        bound.prepare(options, share, rooms)
    }
}

/// A panic elsewhere leaves nothing half done that is behind these locks.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
