//! What the server does, whichever way it is asked: answer requests, load and unload models.
//!
//! ```text
//!   HTTP ─┐                ┌─ catalogue   which models there are
//!         ├─► Core::infer ─┼─ pool        whether there is memory
//!   gRPC ─┘                └─ executor    runs, and answers
//! ```

mod models;
mod telling;

pub use models::Loaded;

use crate::buffer::Tensor;
use crate::catalogue::{Catalogue, Served, shown};
use crate::changes::Changes;
use crate::executor::{Done, Executor, Job};
use crate::files::Files;
use crate::fleet::Opening;
use crate::halves;
use crate::metrics::Metrics;
use crate::openai::Models;
use crate::options::{Limits, Options, Welcome};
use crate::pool::{Held, Pool};
use crate::queue::{Batching, Waiting};
use crate::refusal::{Refusal, Why};
use crate::repository::Repository;
use crate::token::Token;
use axum::http::HeaderMap;
use neaptide::TensorInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;
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
    pub language: Arc<Models>,
    pub repository: Repository,
    files: Files,
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
    /// One of them that cannot be loaded ends the server.
    is_strict: bool,
}

/// A tensor as a client sent it.
#[derive(Debug)]
pub struct Given {
    pub name: String,
    pub datatype: String,
    pub shape: Vec<u64>,
    pub data: Tensor,
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
        language: Models,
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
            language: Arc::new(language),
            repository,
            files: Files::default(),
            metrics: Metrics::default(),
            token: options.token.clone(),
            changes: Changes::default(),
            is_ending: opening.ending.clone(),
            opening,
            is_begun: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
            welcome: options.welcome.clone(),
            tells_access: options.tells_access,
            is_strict: options.is_strict,
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
            models::refused_change("cannot change the budget", error)
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
        let served = model.and_then(|name| self.catalogue.ready(name, None).ok());
        let key = served.as_ref().map(|served| &*served.key);
        let held = self.pool.take(key, bytes);
        held.ok_or_else(|| self.no_room(key, bytes))
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
        // While it is replaced, nothing new is taken.
        let open = model.gate.read().await;
        let model = &*self.current(model)?;
        let (inputs, rows) = arranged(model, given)?;
        let released = self.executor.release(&model.key, arrived)?;
        self.hold_more(&mut held, run_bytes(model, rows))?;
        let inputs = halves::widened(model, inputs);
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
            key: model.key.clone(),
            rows,
            batching: batching(model),
            arrived_ns: self.executor.time_ns(arrived),
            due_ns,
            released_ns: released.map(|released| released.at_ns),
            was_ended: false,
            job: Job {
                model: model.key.clone(),
                inputs,
                rows,
                shapes: model.engine_inputs.clone(),
                outputs: model.engine_outputs.clone(),
                takes_rows: model.takes_rows,
                arrived,
                reply,
                gone: interest.gone.clone(),
                held,
            },
        })?;
        drop(open);
        let answered = tokio::time::timeout(self.limits.answering, answer).await;
        interest.is_over = true;
        match answered {
            Ok(Ok(done)) => {
                model.note_fault(done.as_ref().err());
                let done = halves::rounded(model, done?);
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

    /// The model that has taken this one's place since the request began, if any has.
    fn current(&self, model: &Served) -> Result<Arc<Served>, Refusal> {
        let current = self.catalogue.ready(&model.name, None)?;
        let is_same = (current.inputs == model.inputs && current.outputs == model.outputs)
            && current.most_rows() == model.most_rows();
        match is_same {
            true => Ok(current),
            false => Err(Refusal::new(
                Why::NotReady,
                format!(
                    "the model '{}' was replaced by another meanwhile",
                    model.name
                ),
            )),
        }
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

/// What a request of so many rows takes to its answer beside its own tensors.
fn run_bytes(model: &Served, rows: usize) -> u64 {
    let bytes =
        |tensors: &[TensorInfo]| -> u64 { tensors.iter().map(|t| t.len_bytes() as u64).sum() };
    let outputs = bytes(&model.engine_outputs);
    // Inputs are copied where several run together.
    let copied = match model.most_rows() > 1 {
        true => bytes(&model.engine_inputs),
        false => 0,
    };
    let one = outputs + copied + halves::converted_bytes(model);
    one.saturating_mul(rows as u64)
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
