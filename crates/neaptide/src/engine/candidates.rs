//! Plans of one model for many sizes of memory, and their figures.

use super::division::Candidate;
use crate::calibrate::Known;
use crate::error::{Error, Result};
use crate::options::RunOptions;
use neap_compile::{Compiled, Kernels, Programs, Search, SearchError, tables_of};
use neap_plan::{SpaceKind, Workload};
use std::sync::Arc;

/// What is known of a model's plans before one is chosen.
#[derive(Clone)]
pub(super) struct Prospects {
    pub known: Arc<Known>,
    pub candidates: Arc<[Candidate]>,
}

/// Plans of one model.
pub(super) struct Planning<'a> {
    pub programs: &'a Programs,
    pub options: &'a RunOptions,
    pub known: &'a Known,
}

impl Planning<'_> {
    /// Figures of plans for `points` sizes of memory, from the smallest to that in which everything stays.
    ///
    /// # Errors
    /// [`Error::Defect`] when a planner contradicts itself.
    pub fn candidates(&self, points: usize) -> Result<Arc<[Candidate]>> {
        self.with_search(|search| {
            let (least, first) = smallest(search)?;
            let whole = search.whole_arena_bytes();
            let most = whole.saturating_add(tables_of(whole)).max(least);
            let ratio = most as f64 / least.max(1) as f64;
            let steps = points.saturating_sub(1).max(1);
            let mut found = vec![figures(least, &first)];
            for step in 1..=steps {
                let share = step as f64 / steps as f64;
                let room = match step == steps {
                    true => most,
                    false => (least as f64 * ratio.powf(share)) as u64,
                };
                match search.run(Some(room)) {
                    Ok(compiled) => found.push(figures(room, &compiled)),
                    Err(SearchError::Infeasible { .. }) => {}
                    Err(SearchError::Defect(what)) => return Err(Error::Defect(what)),
                }
            }
            Ok(found.into())
        })
    }

    /// The plan of a candidate again.
    ///
    /// # Errors
    /// [`Error::Defect`] when it is another one.
    pub fn plan(&self, candidate: &Candidate) -> Result<Compiled> {
        let found = self.with_search(|search| match search.run(Some(candidate.room_bytes)) {
            Ok(compiled) => Ok(compiled),
            Err(SearchError::Infeasible { .. }) => {
                Err(Error::Defect("there was a plan, and is none now".into()))
            }
            Err(SearchError::Defect(what)) => Err(Error::Defect(what)),
        })?;
        let same = figures(candidate.room_bytes, &found);
        if same.work_bytes > candidate.work_bytes || same.own_bytes > candidate.own_bytes {
            return Err(Error::Defect("a plan made again takes more memory".into()));
        }
        Ok(found)
    }

    /// Names what plans depend on but for weights: models of the same key have the same plans.
    ///
    /// # Errors
    /// [`Error::Defect`] when it cannot be written.
    pub fn key(&self) -> Result<blake3::Hash> {
        let compiling = self.options.compiling();
        let mut hasher = blake3::Hasher::new();
        for program in self.programs.of(compiling.bands()) {
            let workload = Workload {
                digest: String::new(),
                ..compiling.workload(program, Kernels::Direct)
            };
            let bytes = postcard::to_stdvec(&workload)
                .map_err(|e| Error::Defect(format!("a workload cannot be written: {e}")))?;
            hasher.update(&bytes);
        }
        Ok(hasher.finalize())
    }

    fn with_search<T>(&self, look: impl FnOnce(&Search) -> Result<T>) -> Result<T> {
        let compiling = self.options.compiling();
        look(&Search::new(neap_compile::Request {
            programs: self.programs,
            options: &compiling,
            costs: &self.known.costs,
            times: &self.known.times,
            refine: &self.options.search,
        }))
    }
}

/// The plan that takes least, and the room that it needs.
fn smallest(search: &Search) -> Result<(u64, Compiled)> {
    let mut room = 0;
    // A size that is named may leave out page tables.
    for _ in 0..4 {
        match search.run(Some(room)) {
            Ok(compiled) => return Ok((room, compiled)),
            Err(SearchError::Infeasible { smallest_bytes }) => {
                room = smallest_bytes
                    .saturating_add(tables_of(smallest_bytes))
                    .max(room + 1);
            }
            Err(SearchError::Defect(what)) => return Err(Error::Defect(what)),
        }
    }
    Err(Error::Defect("no smallest plan was found".into()))
}

fn figures(room_bytes: u64, compiled: &Compiled) -> Candidate {
    let work = compiled.execution.spaces.iter();
    let work = work.filter(|space| space.kind == SpaceKind::Work);
    let resident_bytes = compiled.execution.resident_bytes();
    Candidate {
        room_bytes,
        work_bytes: work.map(|space| space.bytes).sum(),
        own_bytes: resident_bytes.saturating_add(compiled.tables_bytes),
        latency_ns: compiled.prediction.latency_ns,
    }
}
