//! What the server does, whichever way it is asked: answer requests, load and unload models.
//!
//! ```text
//!   HTTP ─┐                ┌─ catalogue   which models there are
//!         ├─► Core::infer ─┼─ pool        whether there is memory
//!   gRPC ─┘                └─ executor    runs, and answers
//! ```

mod telling;

use crate::ServeError;
use crate::advice::advised;
use crate::buffer::Tensor;
use crate::catalogue::{Catalogue, Served, State, shown, unknown};
use crate::changes::Changes;
use crate::executor::{Candidate, Done, Executor, Job};
use crate::fleet::Opening;
use crate::metrics::Metrics;
use crate::options::{Limits, Options, Welcome};
use crate::pool::{Held, Pool};
use crate::queue::{Batching, Waiting};
use crate::refusal::{Refusal, Why};
use crate::repository::{Entry, Repository};
use crate::token::Token;
use axum::http::HeaderMap;
use neaptide::TensorInfo;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Everything that requests share.
pub struct Core {
    /// Of the whole process; `None` without a limit. It is never more than this.
    most_budget_bytes: Option<u64>,
    /// What is in force.
    budget_bytes: AtomicU64,
    own_cgroup: bool,
    pub limits: Limits,
    pub pool: Arc<Pool>,
    pub catalogue: Catalogue,
    pub executor: Executor,
    pub repository: Repository,
    pub opening: Opening,
    pub metrics: Metrics,
    /// Whoever does not show it is refused.
    token: Option<Token>,
    /// One model is loaded or unloaded at a time.
    changes: Changes,
    is_ending: Arc<AtomicBool>,
    /// The models of the folder are loaded.
    is_begun: AtomicBool,
    /// So are their promises: requests are answered.
    is_open: AtomicBool,
    pub welcome: Welcome,
    /// A line of the log for each request.
    pub tells_access: bool,
}

/// A tensor as a client sent it.
#[derive(Debug)]
pub struct Given {
    pub name: String,
    pub datatype: String,
    pub shape: Vec<u64>,
    pub data: Tensor,
}

/// What is served when the folder is loaded, and what is not, and why.
pub struct Loaded {
    pub models: Vec<String>,
    pub refused: Vec<(String, String)>,
}

/// Whoever waits for an answer; when it is dropped, as with a connection that ends, nobody does.
struct Interest<'a> {
    gone: Arc<AtomicBool>,
    is_over: bool,
    metrics: &'a Metrics,
}

impl Drop for Interest<'_> {
    fn drop(&mut self) {
        self.gone.store(true, Relaxed);
        if !self.is_over {
            self.metrics.clients_gone.inc();
            tracing::info!("the client is gone before its answer was made");
        }
    }
}

impl Core {
    pub fn new(
        options: &Options,
        pool: Arc<Pool>,
        executor: Executor,
        repository: Repository,
        opening: Opening,
    ) -> Core {
        Core {
            most_budget_bytes: options.budget_bytes,
            budget_bytes: AtomicU64::new(options.budget_bytes.unwrap_or(0)),
            own_cgroup: options.own_cgroup,
            limits: options.limits.clone(),
            pool,
            catalogue: Catalogue::default(),
            executor,
            repository,
            metrics: Metrics::default(),
            token: options.token.clone(),
            changes: Changes::default(),
            is_ending: opening.ending.clone(),
            opening,
            is_begun: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            welcome: options.welcome.clone(),
            tells_access: options.tells_access,
        }
    }

    /// # Errors
    /// [`Why::Unknown`] for a request that does not show the token, where there is one.
    pub fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        self.token
            .as_ref()
            .map_or(Ok(()), |token| token.check(headers))
    }

    /// Of the whole process; `None` without a limit.
    pub fn budget_bytes(&self) -> Option<u64> {
        let in_force = self.budget_bytes.load(Relaxed);
        self.most_budget_bytes.map(|_| in_force)
    }

    /// Runs within less memory than the server began with, or again with as much. What models give up is the kernel's when
    /// this returns.
    ///
    /// # Errors
    /// [`Why::Malformed`] for more than there was, [`Why::Busy`] for less than the models need.
    pub async fn set_budget(&self, bytes: u64) -> Result<(), Refusal> {
        let Some(most) = self.most_budget_bytes else {
            return Err(Refusal::malformed("the server has no budget"));
        };
        if bytes > most {
            let message = format!("the server began with a budget of {most} bytes");
            return Err(Refusal::malformed(message));
        }
        let _one = self.changes.turn().await?;
        let changed = self.executor.set_budget(bytes).await;
        changed.map_err(|error| {
            tracing::warn!(bytes, reason = %error, "the budget stays");
            refused_change("cannot change the budget", error)
        })?;
        let before = self.budget_bytes.swap(bytes, Relaxed);
        tracing::info!(bytes, before, "the budget changed");
        self.measure_again().await;
        Ok(())
    }

    /// What the kernel charges now.
    pub fn process_bytes(&self) -> u64 {
        neaptide::memory::counted_bytes(self.own_cgroup)
    }

    /// The most that it ever charged.
    pub fn process_most_bytes(&self) -> u64 {
        neaptide::memory::peak(self.own_cgroup).bytes
    }

    /// Loads every model of the folder, by name, and makes their promises; from then on requests are answered.
    ///
    /// # Errors
    /// The model that cannot be loaded, and why. `None` when the server ends meanwhile.
    pub async fn load_all(&self) -> Result<Option<Loaded>, ServeError> {
        // Loads that clients want come after this.
        let _one = self.changes.turn().await;
        let entries = self.repository.entries().map_err(ServeError::BadInput)?;
        let mut models = Vec::new();
        for (name, entry) in entries {
            let result = self.load_entry(&name, &entry).await;
            if self.is_ending() {
                return Ok(None);
            }
            result.map_err(|error| ServeError::Model {
                name: name.clone(),
                error,
            })?;
            models.push(name);
        }
        let refused = self.begin().await;
        models.retain(|name| !refused.iter().any(|(other, _)| other == name));
        self.is_open.store(true, Relaxed);
        Ok(Some(Loaded { models, refused }))
    }

    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Relaxed)
    }

    /// No new requests from now on.
    pub fn end(&self) {
        self.is_ending.store(true, Relaxed);
    }

    /// Memory for a request, of that model if it is known.
    ///
    /// # Errors
    /// [`Why::TooLarge`] when so much will never be there, [`Why::Busy`] when it is not there now.
    pub fn hold(&self, model: Option<&str>, bytes: u64) -> Result<Held, Refusal> {
        let held = self.pool.take(model, bytes);
        held.ok_or_else(|| self.no_room(model, bytes))
    }

    /// As [`Core::hold`], more for the same request.
    ///
    /// # Errors
    /// As [`Core::hold`].
    pub fn hold_more(&self, held: &mut Held, bytes: u64) -> Result<(), Refusal> {
        match held.grow(bytes) {
            true => Ok(()),
            false => Err(self.no_room(held.model(), bytes)),
        }
    }

    fn no_room(&self, model: Option<&str>, bytes: u64) -> Refusal {
        let limit = self.pool.most_for(model);
        if bytes > limit {
            return Refusal::new(
                Why::TooLarge,
                format!("it takes {bytes} bytes, and all requests together may take {limit}"),
            );
        }
        Refusal::busy(
            format!("requests take the {limit} bytes that they may"),
            self.executor.retry_after(self.executor.waiting()),
        )
    }

    /// Runs a model for a client. `held` is the memory of the given tensors.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn infer(
        &self,
        model: &Served,
        given: Vec<Given>,
        mut held: Held,
    ) -> Result<Done, Refusal> {
        let arrived = Instant::now();
        let (inputs, rows) = arranged(model, given)?;
        let released = self.executor.release(&model.name, arrived)?;
        let input_bytes: u64 = inputs.iter().map(|t| t.bytes().len() as u64).sum();
        let output_bytes: u64 = model.outputs.iter().map(|t| t.len_bytes() as u64).sum();
        // Inputs are copied where several run together.
        let copied_bytes = if model.most_rows() > 1 {
            input_bytes
        } else {
            0
        };
        self.hold_more(&mut held, output_bytes * rows as u64 + copied_bytes)?;
        let (reply, answer) = oneshot::channel();
        let mut interest = Interest {
            gone: Arc::default(),
            is_over: false,
            metrics: &self.metrics,
        };
        let due_ns = match (released, model.settings.deadline) {
            (Some(released), _) => released.due_ns,
            (None, Some(after)) => self.executor.time_ns(arrived + after),
            (None, None) => u64::MAX,
        };
        self.executor.submit(Waiting {
            key: model.name.clone(),
            rows,
            batching: batching(model),
            arrived_ns: self.executor.time_ns(arrived),
            due_ns,
            released_ns: released.map(|released| released.at_ns),
            job: Job {
                model: model.name.clone(),
                inputs,
                rows,
                shapes: model.inputs.clone(),
                outputs: model.outputs.clone(),
                takes_rows: model.takes_rows,
                arrived,
                reply,
                gone: interest.gone.clone(),
                held,
            },
        })?;
        let answered = tokio::time::timeout(self.limits.answering, answer).await;
        interest.is_over = true;
        match answered {
            Ok(Ok(done)) => {
                model.note_fault(done.as_ref().err());
                let done = done?;
                let latency = arrived.elapsed();
                self.metrics.answered(&model.name, &done, rows, latency);
                if model.settings.deadline.is_some() {
                    let now_ns = self.executor.time_ns(Instant::now());
                    self.metrics.deadline(&model.name, now_ns <= due_ns);
                    if now_ns > due_ns {
                        let late_ms = (now_ns - due_ns) as f64 / 1e6;
                        tracing::warn!(model = %model.name, late_ms, "a deadline was missed");
                    }
                }
                Ok(done)
            }
            Ok(Err(_)) => Err(Refusal::new(Why::Internal, "the request was lost")),
            Err(_) => Err(Refusal::new(
                Why::TooLate,
                format!("no answer within {:?}", self.limits.answering),
            )),
        }
    }

    /// Loads a model that is in the folder; again, where it is loaded.
    ///
    /// # Errors
    /// [`Why::NotFound`] for one that is not there, [`Why::Malformed`] for one that cannot be loaded, [`Why::Busy`]
    /// where its memory cannot be had.
    pub async fn load(&self, name: &str) -> Result<(), Refusal> {
        let _one = self.changes.turn().await?;
        if self.is_ending() {
            return Err(Refusal::new(Why::NotReady, "the server ends"));
        }
        let entries = self.entries()?;
        let entry = entries.get(name).ok_or_else(|| unknown(name))?;
        let loaded = self.load_entry(name, entry).await;
        loaded.map_err(|error| refused_change(&format!("cannot load '{name}'"), error))
    }

    /// Loads a model. On failure it is unloaded, and its state says why.
    ///
    /// # Errors
    /// Those of opening it and of memory.
    pub async fn load_entry(&self, name: &str, entry: &Entry) -> neaptide::Result<()> {
        let began = Instant::now();
        let was_loaded = matches!(self.catalogue.all().get(name), Some(State::Ready(_)));
        let result = self.open_and_add(name, entry, was_loaded).await;
        let seconds = began.elapsed().as_secs_f64();
        let version = entry.version.as_str();
        self.metrics.loaded(name, result.is_ok());
        match &result {
            Ok(()) => tracing::info!(model = name, version, seconds, "loaded"),
            Err(error) => tracing::warn!(model = name, version, reason = %error, "not loaded"),
        }
        if let Err(error) = &result {
            // One that was loaded before, and is whole, stays.
            let is_there = matches!(self.catalogue.all().get(name), Some(State::Ready(_)));
            if !is_there {
                self.catalogue.set(name, State::Unloaded(error.to_string()));
            }
        }
        result
    }

    async fn open_and_add(
        &self,
        name: &str,
        entry: &Entry,
        was_loaded: bool,
    ) -> neaptide::Result<()> {
        let settings = entry.settings().map_err(neaptide::Error::BadInput)?;
        if !was_loaded {
            self.catalogue.set(name, State::Loading);
        }
        let (opening, path) = (self.opening.clone(), entry.path.clone());
        let its = settings.clone();
        let opened = tokio::task::spawn_blocking(move || opening.open(&path, &its)).await;
        let opened = opened
            .map_err(|_| neaptide::Error::Defect("opening the model ended with a panic".into()))?;
        let opened = opened.map_err(|error| advised(error, entry.settings_path()))?;
        self.check_request_bytes(&opened.inputs, &opened.outputs)?;
        let served = Served {
            name: name.into(),
            version: entry.version.clone(),
            inputs: opened.inputs.clone().into(),
            outputs: opened.outputs.clone().into(),
            late_axes: opened.late_axes.clone(),
            takes_rows: opened.takes_rows,
            about: opened.about.clone(),
            settings,
            fault: Mutex::default(),
        };
        if was_loaded {
            self.catalogue.set(name, State::Loading);
            self.executor.remove(name).await?;
        }
        self.executor.add(name, opened).await?;
        if self.is_begun.load(Relaxed) {
            let candidates = self.candidates(&served);
            let refused = self.executor.promise(candidates).await;
            self.let_go(&refused, name);
            if let Some((_, reason)) = refused.into_iter().find(|(other, _)| other == name) {
                self.measure_again().await;
                return Err(neaptide::Error::BadInput(reason));
            }
        }
        self.catalogue.set(name, State::Ready(Arc::new(served)));
        Ok(())
    }

    /// Every model of the folder is loaded: makes their promises, and from now on those of others as they are loaded. Says
    /// which models are not served, and why.
    async fn begin(&self) -> Vec<(String, String)> {
        self.is_begun.store(true, Relaxed);
        let ready = self.served().map(|served| candidate(&served));
        let refused = self.executor.promise(ready.collect()).await;
        self.let_go(&refused, "");
        if !refused.is_empty() {
            self.measure_again().await;
        }
        refused
    }

    /// A model that is new, and those without a promise, whose share of memory may be another one now.
    fn candidates(&self, new: &Served) -> Vec<Candidate> {
        let others = self.unpromised().into_iter();
        let others = others.filter(|served| served.name != new.name);
        let others = others.map(|served| Candidate {
            is_served: true,
            ..candidate(&served)
        });
        std::iter::once(candidate(new)).chain(others).collect()
    }

    /// Models that are served without a promise.
    fn unpromised(&self) -> Vec<Arc<Served>> {
        self.served()
            .filter(|served| !self.executor.is_promised(&served.name))
            .collect()
    }

    /// A model is gone, or the budget is another one: measures those that have a share of memory now with which they were never measured. One whose
    /// steps are too long for promises with it goes, too.
    async fn measure_again(&self) {
        // Each that goes changes the shares of the others.
        loop {
            let models = self.unpromised().into_iter();
            let unknown = models.filter(|served| !self.executor.is_known(&served.name));
            let unknown: Vec<Candidate> = unknown.map(|served| candidate(&served)).collect();
            if unknown.is_empty() {
                return;
            }
            let refused = self.executor.promise(unknown).await;
            self.let_go(&refused, "");
            if refused.is_empty() {
                return;
            }
        }
    }

    /// Models that are not there any more; the state of the `new` one is told elsewhere.
    fn let_go(&self, refused: &[(String, String)], new: &str) {
        for (name, reason) in refused.iter().filter(|(name, _)| name != new) {
            tracing::warn!(model = %name, reason = %reason, "not served any more");
            self.catalogue.set(name, State::Unloaded(reason.clone()));
        }
    }

    /// A model whose every request would be refused is a mistake.
    fn check_request_bytes(
        &self,
        inputs: &[TensorInfo],
        outputs: &[TensorInfo],
    ) -> neaptide::Result<()> {
        let tensors = inputs.iter().chain(outputs);
        let needed: u64 = tensors.map(|t| t.len_bytes() as u64).sum();
        let limit = self.pool.most_for(None);
        if needed > limit {
            let promised = self.pool.promised_bytes();
            return Err(neaptide::Error::BadInput(format!(
                "one request takes {needed} bytes, and all together may take {limit}: give \
                 --request-memory {} or more",
                neaptide::Bytes(needed + promised)
            )));
        }
        Ok(())
    }

    /// Unloads a model when the requests for it that wait have run.
    ///
    /// # Errors
    /// [`Why::NotFound`] for one that is not loaded, [`Why::Busy`] when too many changes wait.
    pub async fn unload(&self, name: &str) -> Result<(), Refusal> {
        let _one = self.changes.turn().await?;
        match self.catalogue.all().get(name) {
            Some(State::Ready(_)) => {}
            Some(_) => return Ok(()),
            None if self.entries()?.contains_key(name) => return Ok(()),
            None => return Err(unknown(name)),
        }
        self.catalogue.set(name, State::Unloading);
        let removed = self.executor.remove(name).await;
        self.catalogue.set(name, State::Unloaded(String::new()));
        tracing::info!(model = name, "unloaded");
        self.measure_again().await;
        removed.map_err(|error| {
            Refusal::new(
                Why::Internal,
                format!("after '{name}' was unloaded: {error}"),
            )
        })
    }

    fn entries(&self) -> Result<BTreeMap<String, Entry>, Refusal> {
        let entries = self.repository.entries();
        entries.map_err(|reason| Refusal::new(Why::Internal, reason))
    }
}

fn refused_change(what: &str, error: neaptide::Error) -> Refusal {
    let message = format!("{what}: {error}");
    match error {
        neaptide::Error::Infeasible { .. } => Refusal::busy(message, Duration::from_secs(1)),
        neaptide::Error::Defect(_) => Refusal::new(Why::Internal, message),
        neaptide::Error::Machine(_) => Refusal::new(Why::Machine, message),
        _ => Refusal::malformed(message),
    }
}

fn candidate(model: &Served) -> Candidate {
    Candidate {
        name: model.name.to_string(),
        promise: model.settings.promise(),
        is_served: false,
        urgency: model.settings.urgency,
        inputs: model.inputs.clone(),
        outputs: model.outputs.clone(),
        most_rows: model.most_rows(),
    }
}

fn batching(model: &Served) -> Batching {
    match model.settings.batch {
        Some(batch) if model.takes_rows => Batching {
            most_rows: batch.most_rows,
            window_ns: batch.wait.as_nanos() as u64,
        },
        _ => Batching {
            most_rows: 1,
            window_ns: 0,
        },
    }
}

/// The given tensors in the model's order, and the number of their rows.
fn arranged(model: &Served, given: Vec<Given>) -> Result<(Vec<Tensor>, usize), Refusal> {
    let mut places: Vec<Option<Tensor>> = vec![None; model.inputs.len()];
    let mut rows = None;
    for tensor in given {
        let Some(at) = model.inputs.iter().position(|i| i.name == tensor.name) else {
            let names: Vec<&str> = model.inputs.iter().map(|i| i.name.as_str()).collect();
            return Err(Refusal::malformed(format!(
                "the model has no input {}; it has '{}'",
                shown(&tensor.name),
                names.join("', '")
            )));
        };
        let info = &model.inputs[at];
        let its_rows = model.rows_of(info, &tensor.datatype, &tensor.shape)?;
        if *rows.get_or_insert(its_rows) != its_rows {
            return Err(Refusal::malformed(
                "the inputs differ in their numbers of rows",
            ));
        }
        let expected_bytes = info.len_bytes() * its_rows;
        if tensor.data.bytes().len() != expected_bytes {
            return Err(Refusal::malformed(format!(
                "input '{}' has {} bytes of data, and its shape {expected_bytes}",
                info.name,
                tensor.data.bytes().len()
            )));
        }
        if places[at].replace(tensor.data).is_some() {
            return Err(Refusal::malformed(format!(
                "input '{}' is given twice",
                info.name
            )));
        }
    }
    let missing = places.iter().position(Option::is_none);
    if let Some(at) = missing {
        return Err(Refusal::malformed(format!(
            "input '{}' is missing",
            model.inputs[at].name
        )));
    }
    Ok((places.into_iter().flatten().collect(), rows.unwrap_or(1)))
}
