//! Models come and go, and the budget changes.
//!
//! ```text
//!   caller's thread   open ─► candidates ─► division ─► plans │ a turn │
//!   runs              … run, run, run, run, run, run, run …   │        │ run …
//!                                                             ^ those that give memory up, work memory, those that get some
//! ```
//! Nothing is read in a change: each model reads what its new plan adds beside its next run.

use super::bindings::{Bound, Lowered, Others};
use super::candidates::{Planning, Prospects, candidates};
use super::core::{Engine, Known, Standing, budget_bytes, not_loaded};
use super::division::{Candidate, Claim, Division, TooLittle, divide};
use super::member::{Figures, LoadedModel, Member, Seat, lock};
use super::options::{LoadOptions, check_budget};
use crate::budget::{Budget, Scope};
use crate::calibrate;
use crate::error::{Error, Result};
use crate::ledger::{self, Ledger, Reserve};
use crate::model::{Model, OpenOptions};
use crate::pack::Progress;
use crate::plan::Plan;
use crate::plans_ahead::Next;
use crate::request;
use crate::session::Session;
use neap_compile::Compiled;
use neap_runtime::Stats;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Without a limit there is more than anything needs.
const ENDLESS_BYTES: u64 = u64::MAX / 4;

/// What is divided: models that are loaded, and perhaps one that is to be.
struct Parties {
    members: Vec<Arc<Member>>,
    entrant: Option<Arc<Member>>,
    /// Not among the members: it goes as the entrant comes.
    leaving: Option<Arc<Member>>,
}

impl Parties {
    fn all(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.iter().chain(&self.entrant)
    }
}

/// A member and the plan that it goes over to.
struct Move {
    member: Arc<Member>,
    share: Candidate,
    next: Next,
}

/// All that is to be in force.
struct Change {
    budget: Budget,
    base: Ledger,
    work_bytes: u64,
    moves: Vec<Move>,
    leaving: Option<Arc<Member>>,
    entering: Option<(Arc<Member>, Candidate, Session)>,
}

impl Engine {
    /// Loads a model under a name, and divides the memory among all. Packs an `.onnx` first where no packed form of it is
    /// cached, of which `progress` hears. Nothing of its weights is read before its first run, or [`Engine::settle`].
    ///
    /// # Errors
    /// [`Error::BadInput`] for a name that is taken, and as [`Model::open`]; [`Error::Infeasible`] when the budget is too
    /// small for one more: then all is as it was. See [`Engine::set_budget`] for the rest.
    pub fn load(
        &self,
        name: &str,
        path: impl AsRef<Path>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<LoadedModel> {
        let open = OpenOptions {
            host: self.options.host.clone(),
            ..options.open.clone()
        };
        self.check_name(name)?;
        let model = Model::open(path, &open, progress)?;
        self.load_opened(name, model, options)
    }

    /// [`Engine::load`] of a model that is open; [`LoadOptions::open`] is not looked at.
    ///
    /// # Errors
    /// As [`Engine::load`]; [`Error::BadInput`] for [`LoadOptions::other_shapes`] that the model does not take.
    pub fn load_opened(
        &self,
        name: &str,
        model: Model,
        options: &LoadOptions,
    ) -> Result<LoadedModel> {
        self.load_beside(name, model, options, None)
    }

    /// [`Engine::load_opened`] of a model that takes the place of another in one change, whose name it may have: the
    /// memory is divided without the old one, which runs until the new one is there.
    ///
    /// # Errors
    /// As [`Engine::load_opened`]: then the old one stays. [`Error::BadInput`] when that is not loaded.
    pub fn load_opened_instead(
        &self,
        old: &LoadedModel,
        name: &str,
        model: Model,
        options: &LoadOptions,
    ) -> Result<LoadedModel> {
        self.load_beside(name, model, options, Some(&old.0))
    }

    fn load_beside(
        &self,
        name: &str,
        mut model: Model,
        options: &LoadOptions,
        leaving: Option<&Arc<Member>>,
    ) -> Result<LoadedModel> {
        let mut known = lock(&self.changes);
        if let Some(old) = leaving {
            self.check_loaded(old)?;
        }
        if leaving.is_none_or(|old| old.name != name) {
            self.check_name(name)?;
        }
        check_weight(options.weight)?;
        model.check_weights()?;
        let mut others = None;
        let mut lowered = Vec::new();
        if !options.other_shapes.is_empty() {
            let its = others.insert(Others::new(&model)?);
            for shapes in &options.other_shapes {
                lowered.extend(its.lowered(shapes)?);
            }
        }
        let prospects = self.prospects(&mut known, &mut model, &lowered)?;
        if let Some(others) = &mut others {
            others.name(lowered, &prospects.known, &self.options.run);
        }
        let least = prospects.candidates[0];
        let member = Arc::new(Member {
            name: name.to_owned(),
            weight: options.weight,
            least_bytes: options.least_bytes,
            opening_bytes: model.opening_bytes(),
            home: Arc::new(Bound::new(model.programs.clone(), prospects.known.clone())),
            others,
            prospects,
            seat: Mutex::new(None),
            figures: Mutex::new(Figures {
                share: least,
                held_bytes: 0,
                stats: Stats::default(),
                cancelled: 0,
                failed: 0,
            }),
            is_pinned: AtomicBool::new(false),
        });
        let budget = lock(&self.standing).budget;
        self.divide(budget, Some((member.clone(), model)), leaving)?;
        Ok(LoadedModel(member))
    }

    /// From now on the model keeps the memory and the plan that it has, whatever comes and goes: a model more, or a
    /// smaller budget, is refused where there is too little beside it. Its runs go on taking as long as they do.
    ///
    /// # Errors
    /// [`Error::BadInput`] when it is not loaded.
    pub fn pin(&self, model: &LoadedModel) -> Result<()> {
        let _known = lock(&self.changes);
        self.check_loaded(&model.0)?;
        model.0.is_pinned.store(true, Relaxed);
        Ok(())
    }

    fn check_loaded(&self, member: &Arc<Member>) -> Result<()> {
        match self.model(&member.name) {
            Some(loaded) if Arc::ptr_eq(&loaded.0, member) => Ok(()),
            _ => Err(not_loaded(&member.name)),
        }
    }

    fn check_name(&self, name: &str) -> Result<()> {
        match self.model(name) {
            None => Ok(()),
            Some(_) => Err(Error::BadInput(format!(
                "a model '{name}' is already loaded"
            ))),
        }
    }

    /// Unloads a model when no run has its turn, and divides its memory among the others. Runs of it that wait fail.
    ///
    /// # Errors
    /// [`Error::BadInput`] when it is not loaded. See [`Engine::set_budget`] for the rest: it is unloaded all the same.
    pub fn unload(&self, model: &LoadedModel) -> Result<()> {
        let _known = lock(&self.changes);
        self.take_out(&model.0)?;
        let budget = lock(&self.standing).budget;
        self.divide(budget, None, None)
    }

    /// Divides another budget among the models. When this returns, memory above it has been given back.
    ///
    /// # Errors
    /// [`Error::Infeasible`] when it is too small for the models that are loaded, and [`Error::BadInput`] for a percentage:
    /// then all is as it was. [`Error::Machine`] when a model could not go over to its new plan: that model is unloaded, so
    /// that the budget is kept.
    pub fn set_budget(&self, budget: Budget) -> Result<()> {
        check_budget(budget)?;
        let _known = lock(&self.changes);
        self.divide(budget, None, None)
    }

    /// What a model can do with how much memory; the same for models that differ in weights only. `others` are for other
    /// shapes that it is to run in.
    fn prospects(
        &self,
        known: &mut Known,
        model: &mut Model,
        others: &[Lowered],
    ) -> Result<Prospects> {
        let options = &self.options.run;
        let nothing = calibrate::Known::default();
        let mut hasher = blake3::Hasher::new();
        let programs = others.iter().map(|(_, programs)| programs);
        for programs in std::iter::once(&model.programs).chain(programs) {
            let planning = Planning {
                programs,
                options,
                known: &nothing,
            };
            planning.key(&mut hasher)?;
        }
        let key = *hasher.finalize().as_bytes();
        if let Some((prospects, layouts)) = known.0.get(&key) {
            model.programs.layouts = layouts.clone();
            return Ok(prospects.clone());
        }
        let costs = Arc::new(calibrate::known(model, options)?);
        let others: Vec<Bound> = others
            .iter()
            .map(|(_, programs)| Bound::other(programs.clone(), &costs, options))
            .collect();
        let home = Planning {
            programs: &model.programs,
            options,
            known: &costs,
        };
        let all = others.iter().map(|bound| bound.planning(options));
        let all: Vec<Planning> = std::iter::once(home).chain(all).collect();
        let candidates = candidates(&all, self.options.points)?;
        drop(all);
        let prospects = Prospects {
            candidates,
            known: costs,
        };
        let layouts = model.programs.layouts.clone();
        known.0.insert(key, (prospects.clone(), layouts));
        self.options.host.trim_heap();
        Ok(prospects)
    }

    /// Divides `budget` among those that are loaded, but for one that leaves, and an entrant, and puts that in force.
    fn divide(
        &self,
        budget: Budget,
        entrant: Option<(Arc<Member>, Model)>,
        leaving: Option<&Arc<Member>>,
    ) -> Result<()> {
        let members: Vec<Arc<Member>> = lock(&self.standing).members.values().cloned().collect();
        let stays = |member: &Arc<Member>| leaving.is_none_or(|old| !Arc::ptr_eq(old, member));
        let parties = Parties {
            members: members.into_iter().filter(stays).collect(),
            entrant: entrant.as_ref().map(|(member, _)| member.clone()),
            leaving: leaving.cloned(),
        };
        let base = self.base(budget, &parties)?;
        let machine_bytes = self.options.host.machine_bytes();
        let division = divided(budget, machine_bytes, &base, &parties)?;
        let mut shares = division.shares.iter();
        let mut moves = Vec::new();
        for (member, &share) in parties.members.iter().zip(&mut shares) {
            if member.share() != share {
                moves.push(self.move_to(member, share)?);
            }
        }
        let entering = match entrant.zip(shares.next()) {
            Some(((member, model), &share)) => {
                let session = self.open(&member, model, &share)?;
                Some((member, share, session))
            }
            None => None,
        };
        // What planning took is not charged beside arenas.
        self.options.host.trim_heap();
        let change = Change {
            budget,
            base,
            work_bytes: division.work_bytes,
            moves,
            leaving: parties.leaving,
            entering,
        };
        self.put_in_force(change)
    }

    fn move_to(&self, member: &Arc<Member>, share: Candidate) -> Result<Move> {
        let compiled = member.home.planning(&self.options.run).plan(&share)?;
        Ok(Move {
            member: member.clone(),
            share,
            next: Next::from(self.plan_of(member, compiled)),
        })
    }

    fn open(&self, member: &Member, model: Model, share: &Candidate) -> Result<Session> {
        let compiled = member.home.planning(&self.options.run).plan(share)?;
        let plan = self.plan_of(member, compiled);
        model.into_session_in(Some(&self.commons), plan, &self.options.run)
    }

    fn plan_of(&self, member: &Member, compiled: Compiled) -> Plan {
        Plan {
            program: compiled.program,
            checked: compiled.plan,
            prediction: compiled.prediction,
            budget_bytes: None,
            ledger: Ledger::default(),
            costs: compiled.costs,
            on_device: None,
            known: (*member.prospects.known).clone(),
            planning_ns: 0,
        }
    }

    /// The only part that runs wait for.
    fn put_in_force(&self, change: Change) -> Result<()> {
        let Change {
            budget,
            base,
            work_bytes,
            mut moves,
            leaving,
            entering,
        } = change;
        // Memory is given up before any is taken.
        moves.sort_by_key(|m| {
            i128::from(m.share.own_bytes) - i128::from(m.member.share().own_bytes)
        });
        let turn = self.turns.of_change();
        let began = Instant::now();
        let mut failed = None;
        if let Some(old) = leaving {
            lock(&self.standing).members.remove(&old.name);
            *lock(&old.seat) = None;
        }
        for Move {
            member,
            share,
            next,
        } in moves
        {
            let mut seat = lock(&member.seat);
            let adopted = seat.as_mut().map(|seat| seat.go_over(next, &member.home));
            match adopted {
                Some(Ok(())) => lock(&member.figures).share = share,
                // It would keep memory that is others' now.
                Some(Err(error)) => {
                    *seat = None;
                    lock(&self.standing).members.remove(&member.name);
                    failed = Some(gone(&member.name, &error));
                }
                None => {}
            }
        }
        self.commons.work.resize(work_bytes)?;
        let mut standing = lock(&self.standing);
        if let Some((member, share, session)) = entering {
            lock(&member.figures).share = share;
            *lock(&member.seat) = Some(Seat {
                session,
                bound: member.home.clone(),
            });
            standing.members.insert(member.name.clone(), member);
        }
        *standing = Standing {
            budget,
            base,
            work_bytes,
            longest_change_ns: (standing.longest_change_ns).max(began.elapsed().as_nanos() as u64),
            members: std::mem::take(&mut standing.members),
        };
        drop(standing);
        drop(turn);
        self.options.host.trim_heap();
        failed.map_or(Ok(()), Err)
    }

    /// Unloads a model, whose memory is the kernel's then.
    fn take_out(&self, member: &Arc<Member>) -> Result<()> {
        let mut standing = lock(&self.standing);
        let loaded = standing.members.get(&member.name);
        if !loaded.is_some_and(|loaded| Arc::ptr_eq(loaded, member)) {
            return Err(not_loaded(&member.name));
        }
        standing.members.remove(&member.name);
        drop(standing);
        let turn = self.turns.of_change();
        let seat = lock(&member.seat).take();
        drop(seat);
        drop(turn);
        Ok(())
    }

    /// What is taken without arenas.
    fn base(&self, budget: Budget, parties: &Parties) -> Result<Ledger> {
        let options = &self.options;
        let scope = budget.scope();
        let outputs = parties.all().map(|m| m.outputs_bytes());
        let others = parties.all().map(|m| m.others_bytes());
        let steps = parties.all().map(|m| request::most_steps(&m.home.programs));
        // Each of them was opened beside the others, or may be again.
        let opening = parties.all().map(|m| m.opening_bytes);
        let opening = opening.max().map_or(0, ledger::opening_beside_bytes);
        let loading_bytes = match budget {
            Budget::Bytes(_) => options.loading_bytes.max(opening),
            _ => 0,
        };
        let reserve = Reserve {
            threads: options.run.threads,
            // They are planned one after another.
            steps: steps.max().unwrap_or(0),
            outputs_bytes: outputs.sum(),
            keeps_activations: false,
            caller_bytes: (options.run.reserve_bytes)
                .saturating_add(loading_bytes)
                .saturating_add(others.sum()),
        };
        let (process_bytes, unopened) = match scope {
            Scope::Process => (self.charged_bytes(parties)?, 0),
            Scope::Engine => {
                let heaps = parties
                    .all()
                    .map(|m| ledger::engine_heap_bytes(&m.home.programs));
                let others = parties.all().count().saturating_sub(1);
                (heaps.sum(), others as u64)
            }
        };
        Ok(Ledger::of_several(scope, process_bytes, &reserve, unopened))
    }

    /// What the process is charged without arenas. Takes a turn, so that the work memory can be given back.
    fn charged_bytes(&self, parties: &Parties) -> Result<u64> {
        let _turn = self.turns.of_change();
        self.commons.work.discard()?;
        self.options.host.trim();
        let loaded = parties.members.iter().chain(&parties.leaving);
        let residents = loaded.map(|member| {
            let seat = lock(&member.seat);
            seat.as_ref()
                .map_or(0, |s| s.session.inner.residents_bytes())
        });
        let residents: u64 = residents.sum();
        Ok(self.options.host.charged_bytes().saturating_sub(residents))
    }
}

/// # Errors
/// [`Error::Infeasible`] names the smallest budget.
fn divided(
    budget: Budget,
    machine_bytes: Option<u64>,
    base: &Ledger,
    parties: &Parties,
) -> Result<Division> {
    let claims: Vec<Claim> = parties.all().map(|m| m.claim()).collect();
    let most_bytes = budget_bytes(budget).into_iter().chain(machine_bytes).min();
    let room_bytes = most_bytes.map_or(ENDLESS_BYTES, |bytes| {
        bytes.saturating_sub(base.total_bytes())
    });
    let is_too_small = most_bytes.is_some_and(|bytes| bytes < base.total_bytes());
    let found = divide(&claims, room_bytes);
    match found {
        Ok(division) if !is_too_small || claims.is_empty() => Ok(division),
        found => {
            let least_bytes = match found {
                Err(TooLittle { least_bytes }) => least_bytes,
                Ok(division) => division.bytes(),
            };
            let smallest = base.with_arena(0, least_bytes).named(0);
            let error = Error::infeasible(most_bytes.unwrap_or(u64::MAX), smallest);
            Err(match budget {
                Budget::Unlimited => error.without_budget(),
                _ => error,
            })
        }
    }
}

fn check_weight(weight: f64) -> Result<()> {
    match weight > 0.0 && weight.is_finite() {
        true => Ok(()),
        false => Err(Error::BadInput(format!(
            "a model's weight is a number above zero, not {weight}"
        ))),
    }
}

fn gone(name: &str, error: &Error) -> Error {
    Error::Machine(format!(
        "the model '{name}' is unloaded: it could not go over to its new plan: {error}"
    ))
}
