//! The engine: runs models, one at a time, in memory that they share.

use super::bindings::Bound;
use super::candidates::Prospects;
use super::member::{Figures, LoadedModel, Member, lock};
use super::options::{EngineOptions, RunRequest};
use super::report::{EngineLedger, ModelStatus, RunReport};
use super::turns::{Cancelled, Turns};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::ledger::Ledger;
use crate::session::{Session, check_sizes};
use neap_ir::TensorType;
use neap_planner::layout::Layouts;
use neap_runtime::Commons;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Any number of models in one process, within one budget, on the same threads.
///
/// It can be used from several threads at once: runs take turns, by [`RunRequest::rank`]. [`Engine::load`],
/// [`Engine::unload`] and [`Engine::set_budget`] do their work on the caller's thread beside the runs. Only when all is
/// planned do they take a turn, to change who has how much memory.
///
/// ```no_run
/// use neaptide::{Budget, Engine, EngineOptions, LoadOptions, RunOptions};
///
/// let engine = Engine::new(EngineOptions {
///     run: RunOptions { budget: Budget::Engine(64 << 20), ..EngineOptions::default().run },
///     ..EngineOptions::default()
/// })?;
/// let cats = engine.load("cats", "cats.onnx", &LoadOptions::default(), &mut |_| {})?;
/// let dogs = engine.load("dogs", "dogs.onnx", &LoadOptions::default(), &mut |_| {})?;
/// for model in [cats, dogs] {
///     let image = vec![0u8; model.inputs()[0].len_bytes()];
///     let mut scores = vec![0u8; model.outputs()[0].len_bytes()];
///     engine.run(&model, &[&image], &mut [&mut scores])?;
/// }
/// # Ok::<(), neaptide::Error>(())
/// ```
pub struct Engine {
    pub(super) options: EngineOptions,
    pub(super) commons: Commons,
    pub(super) turns: Turns,
    pub(super) standing: Mutex<Standing>,
    /// Held by who changes which models there are, or their memory.
    pub(super) changes: Mutex<Known>,
}

/// What is in force.
pub(super) struct Standing {
    pub budget: Budget,
    /// Without arenas.
    pub base: Ledger,
    pub work_bytes: u64,
    /// For which runs waited.
    pub longest_change_ns: u64,
    pub members: BTreeMap<String, Arc<Member>>,
}

/// Prospects of models that were loaded, and layouts of their activations, by what their plans depend on.
#[derive(Default)]
pub(super) struct Known(pub BTreeMap<[u8; 32], (Prospects, Arc<Layouts>)>);

impl Engine {
    /// An engine without models.
    ///
    /// # Errors
    /// [`Error::BadInput`] for options that are of single models only; [`Error::Machine`] when threads cannot be started.
    pub fn new(options: EngineOptions) -> Result<Engine> {
        let options = options.checked()?;
        Ok(Engine {
            commons: Commons::new(options.run.threads)?,
            turns: Turns::default(),
            standing: Mutex::new(Standing {
                budget: options.run.budget,
                base: Ledger {
                    scope: options.run.budget.scope(),
                    ..Ledger::default()
                },
                work_bytes: 0,
                longest_change_ns: 0,
                members: BTreeMap::new(),
            }),
            changes: Mutex::default(),
            options,
        })
    }

    /// Runs a model once, when its turn comes. `inputs` and `outputs` are in the model's order, row-major little-endian
    /// bytes of exactly the tensors' sizes; inputs are read where they lie. Where the data decide an output's size, its place
    /// is as large as it can be, and [`RunReport::outputs`] says what it was.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a model that is not loaded, and a wrong number or size of tensors; [`Error::Machine`] when
    /// reading weights fails or they are corrupted. The model can run again.
    pub fn run(
        &self,
        model: &LoadedModel,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<RunReport> {
        self.run_as(&RunRequest::default(), model, inputs, outputs)
    }

    /// [`Engine::run`] in another order, in other shapes, or one that may be cancelled.
    ///
    /// # Errors
    /// As [`Engine::run`], and [`Error::Cancelled`]; [`Error::Infeasible`] for other shapes that need more memory than the
    /// model has.
    pub fn run_as(
        &self,
        request: &RunRequest,
        model: &LoadedModel,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<RunReport> {
        let member = &*model.0;
        let bound = member.bound(request.shapes.as_ref(), &self.options.run)?;
        check_sizes("input", &bound.inputs, inputs.iter().map(|b| b.len()))?;
        check_sizes("output", &bound.outputs, outputs.iter().map(|b| b.len()))?;
        let cancel = request.cancel.as_ref();
        self.in_turn(request, member, &bound, |session| {
            match cancel {
                None => session.run(inputs, outputs)?,
                Some(cancel) => session.run_unless(cancel, inputs, outputs)?,
            }
            Ok(session.decided_outputs())
        })
    }

    /// Reads the model's resident weights now, which its first run would do by itself.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn settle(&self, model: &LoadedModel) -> Result<RunReport> {
        let member = &*model.0;
        self.in_turn(&RunRequest::default(), member, &member.home, |session| {
            session.settle().map(|()| Vec::new())
        })
    }

    fn in_turn(
        &self,
        request: &RunRequest,
        member: &Member,
        bound: &Arc<Bound>,
        run: impl FnOnce(&mut Session) -> Result<Vec<TensorType>>,
    ) -> Result<RunReport> {
        let asked = Instant::now();
        // Planning is no reason for others to wait. It is done again if memory is divided anew meanwhile.
        let (_turn, next) = loop {
            member.prepare(bound, &self.options.run)?;
            let turn = self.turns.of_run(request.rank, request.cancel.as_ref());
            let turn = turn.map_err(|Cancelled| {
                lock(&member.figures).cancelled += 1;
                Error::Cancelled
            })?;
            let seat = lock(&member.seat);
            let seat = seat.as_ref().ok_or_else(|| not_loaded(&member.name))?;
            if Arc::ptr_eq(&seat.bound, bound) {
                break (turn, None);
            }
            if let Some(next) = bound.planned(member.share()) {
                break (turn, Some(next));
            }
        };
        let began = Instant::now();
        let mut seat = lock(&member.seat);
        let seat = seat.as_mut().ok_or_else(|| not_loaded(&member.name))?;
        if let Some(byte) = self.options.overwrite {
            self.commons.work.overwrite(byte)?;
        }
        let gone_over = next.map_or(Ok(()), |next| seat.go_over(next, bound));
        let stalled_ns = seat.session.stats().stall_ns;
        let result = gone_over.and_then(|()| run(&mut seat.session));
        lock(&member.figures).note(&seat.session, result.as_ref().err());
        Ok(RunReport {
            outputs: result?,
            waited_ns: (began - asked).as_nanos() as u64,
            ran_ns: began.elapsed().as_nanos() as u64,
            stall_ns: seat.session.stats().stall_ns.saturating_sub(stalled_ns),
        })
    }

    /// The loaded model of that name.
    pub fn model(&self, name: &str) -> Option<LoadedModel> {
        let standing = lock(&self.standing);
        standing.members.get(name).cloned().map(LoadedModel)
    }

    /// All loaded models, by name.
    pub fn models(&self) -> Vec<LoadedModel> {
        let standing = lock(&self.standing);
        standing
            .members
            .values()
            .cloned()
            .map(LoadedModel)
            .collect()
    }

    /// How many runs wait for their turn.
    pub fn waiting(&self) -> usize {
        self.turns.waiting()
    }

    /// Where the budget goes.
    pub fn ledger(&self) -> EngineLedger {
        let standing = lock(&self.standing);
        let models: Vec<ModelStatus> = standing.members.values().map(|m| status(m)).collect();
        let resident_bytes = models.iter().map(|m| m.resident_bytes).sum();
        let base = standing.base;
        EngineLedger {
            parts: base.with_arena(base.tables_bytes, standing.work_bytes + resident_bytes),
            budget_bytes: budget_bytes(standing.budget),
            shared_bytes: standing.work_bytes,
            resident_bytes,
            longest_change_ns: standing.longest_change_ns,
            models,
        }
    }
}

impl Figures {
    fn note(&mut self, session: &Session, error: Option<&Error>) {
        self.held_bytes = session.inner.held_bytes();
        self.stats = session.stats();
        match error {
            None => {}
            Some(Error::Cancelled) => self.cancelled += 1,
            Some(_) => self.failed += 1,
        }
    }
}

/// `None` without a limit.
pub(super) fn budget_bytes(budget: Budget) -> Option<u64> {
    // There are no percentages here.
    budget.bytes(|| u64::MAX)
}

pub(super) fn not_loaded(name: &str) -> Error {
    Error::BadInput(format!("the model '{name}' is not loaded"))
}

fn status(member: &Member) -> ModelStatus {
    let figures = *lock(&member.figures);
    ModelStatus {
        name: member.name.clone(),
        weight: member.weight,
        resident_bytes: figures.share.own_bytes,
        held_bytes: figures.held_bytes,
        work_bytes: figures.share.work_bytes,
        predicted_latency_ns: figures.share.latency_ns,
        runs: figures.stats.runs,
        cancelled: figures.cancelled,
        failed: figures.failed,
        stall_ns: figures.stats.stall_ns,
        loaded_bytes: figures.stats.loaded_bytes,
    }
}
