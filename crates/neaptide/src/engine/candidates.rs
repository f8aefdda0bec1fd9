//! Plans of one model for many sizes of memory, and their figures.

use super::division::Candidate;
use crate::calibrate::Known;
use crate::error::{Error, Result};
use crate::options::RunOptions;
use neap_compile::{Compiled, Draft, Kernels, Programs, Search, SearchError, tables_of};
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

/// Figures of plans for `points` sizes of memory, from the smallest to that in which everything stays. Of several
/// bindings of one model, each can run within any of them; the latency is the first one's.
///
/// # Errors
/// [`Error::Defect`] when a planner contradicts itself.
pub(super) fn candidates(bindings: &[Planning], points: usize) -> Result<Arc<[Candidate]>> {
    let (mut least, mut most) = (0, 0);
    for binding in bindings {
        let (its_least, its_most) = binding.bounds()?;
        least = least.max(its_least);
        most = most.max(its_most);
    }
    let rooms = rooms(least, most.max(least), points);
    let mut all: Vec<Option<Candidate>> = Vec::new();
    for binding in bindings {
        let own = binding.with_search(|search| {
            let figures = rooms.iter().map(|&room| figures_of(search, room));
            figures.collect::<Result<Vec<_>>>()
        })?;
        all = match all.is_empty() {
            true => own,
            false => all.into_iter().zip(own).map(both).collect(),
        };
    }
    let found: Arc<[Candidate]> = all.into_iter().flatten().collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(Error::Defect("no smallest plan was found".into())),
    }
}

/// As many sizes, each the same factor larger than the one before.
fn rooms(least: u64, most: u64, points: usize) -> Vec<u64> {
    let ratio = most as f64 / least.max(1) as f64;
    let steps = points.saturating_sub(1).max(1);
    let room = |step: usize| match step {
        0 => least,
        _ if step == steps => most,
        _ => (least as f64 * ratio.powf(step as f64 / steps as f64)) as u64,
    };
    (0..=steps).map(room).collect()
}

/// What is enough for either of two bindings.
fn both((first, second): (Option<Candidate>, Option<Candidate>)) -> Option<Candidate> {
    let (first, second) = first.zip(second)?;
    Some(Candidate {
        work_bytes: first.work_bytes.max(second.work_bytes),
        own_bytes: first.own_bytes.max(second.own_bytes),
        ..first
    })
}

impl Planning<'_> {
    /// The least room that there is a plan for, and that in which everything stays.
    fn bounds(&self) -> Result<(u64, u64)> {
        self.with_search(|search| {
            let whole = search.whole_arena_bytes();
            let most = whole.saturating_add(tables_of(whole));
            Ok((smallest(search)?, most))
        })
    }

    /// The first of the plans for these rooms that takes no more than a share has; of none, the least room that there
    /// is a plan for.
    ///
    /// # Errors
    /// [`Error::Defect`] when a planner contradicts itself.
    pub fn within(
        &self,
        share: &Candidate,
        rooms: impl Iterator<Item = u64>,
    ) -> Result<std::result::Result<Compiled, u64>> {
        self.with_search(|search| {
            let least = smallest(search)?;
            for room in rooms.chain([least]) {
                match search.find(Some(room)) {
                    Ok(found) => {
                        let its = figures(room, &found);
                        if its.work_bytes <= share.work_bytes && its.own_bytes <= share.own_bytes {
                            return Ok(Ok(found.check().map_err(Error::bad_plan)?));
                        }
                    }
                    Err(SearchError::Infeasible { .. }) => {}
                    Err(SearchError::Defect(what)) => return Err(Error::Defect(what)),
                }
            }
            Ok(Err(least))
        })
    }

    /// The plan of a candidate again.
    ///
    /// # Errors
    /// [`Error::Defect`] when it is another one.
    pub fn plan(&self, candidate: &Candidate) -> Result<Compiled> {
        let found = self.with_search(|search| match search.find(Some(candidate.room_bytes)) {
            Ok(found) => Ok(found),
            Err(SearchError::Infeasible { .. }) => {
                Err(Error::Defect("there was a plan, and is none now".into()))
            }
            Err(SearchError::Defect(what)) => Err(Error::Defect(what)),
        })?;
        let same = figures(candidate.room_bytes, &found);
        if same.work_bytes > candidate.work_bytes || same.own_bytes > candidate.own_bytes {
            return Err(Error::Defect("a plan made again takes more memory".into()));
        }
        found.check().map_err(Error::bad_plan)
    }

    /// Hashes what plans depend on but for weights: models of the same hash have the same plans.
    ///
    /// # Errors
    /// [`Error::Defect`] when it cannot be written.
    pub fn key(&self, hasher: &mut blake3::Hasher) -> Result<()> {
        let compiling = self.options.compiling();
        for program in self.programs.of(compiling.bands()) {
            let workload = Workload {
                digest: String::new(),
                ..compiling.workload(program, Kernels::Direct)
            };
            let bytes = postcard::to_stdvec(&workload)
                .map_err(|e| Error::Defect(format!("a workload cannot be written: {e}")))?;
            hasher.update(&bytes);
        }
        Ok(())
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

/// The least room that there is a plan for.
fn smallest(search: &Search) -> Result<u64> {
    let mut room = 0;
    let in_strips = search.smallest_bytes();
    // A size that is named may leave out page tables.
    for _ in 0..4 {
        match search.find(Some(room)) {
            Ok(_) => return Ok(room),
            Err(SearchError::Infeasible { smallest_bytes }) => {
                let smallest_bytes = smallest_bytes.min(in_strips);
                room = smallest_bytes
                    .saturating_add(tables_of(smallest_bytes))
                    .max(room + 1);
            }
            Err(SearchError::Defect(what)) => return Err(Error::Defect(what)),
        }
    }
    Err(Error::Defect("no smallest plan was found".into()))
}

/// `None` where there is no plan for that room.
fn figures_of(search: &Search, room_bytes: u64) -> Result<Option<Candidate>> {
    match search.find(Some(room_bytes)) {
        Ok(found) => Ok(Some(figures(room_bytes, &found))),
        Err(SearchError::Infeasible { .. }) => Ok(None),
        Err(SearchError::Defect(what)) => Err(Error::Defect(what)),
    }
}

fn figures(room_bytes: u64, found: &Draft) -> Candidate {
    let plan = &found.planned.plan;
    let work = plan.spaces.iter();
    let work = work.filter(|space| space.kind == SpaceKind::Work);
    let resident_bytes = plan.resident_bytes();
    Candidate {
        room_bytes,
        work_bytes: work.map(|space| space.bytes).sum(),
        own_bytes: resident_bytes.saturating_add(found.tables_bytes + found.heap_bytes),
        latency_ns: found.planned.prediction.latency_ns,
    }
}
