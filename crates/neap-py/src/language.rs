//! A language model that answers.
//!
//! ```text
//!   begin   a request, as JSON ─► Runner::submit ─► its number
//!   next    events that wait for it, or else │ lock released: passes over the weights until there is one │
//! ```
//! Answers that are read in turns are computed side by side: a pass is of all, and what comes for others waits for them.

use crate::failure::{self, invalid, raise};
use crate::interrupt::{Interrupt, LookTime};
use crate::options;
use neap_chat::{Event, Id, PenaltyOptions, Prompt, Reason, Refused, Request, Runner, Sampling};
use neap_llm::Since;
use neaptide::{Budget, Embedded};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// An open model.
#[pyclass(frozen, module = "neaptide._neaptide")]
pub struct LanguageModel {
    /// In another process than its own it must not be dropped: its threads are not there.
    state: ManuallyDrop<Mutex<State>>,
    /// Answers that nobody wants any more: whoever has the state next ends them.
    given_up: Mutex<Vec<u64>>,
    process: u32,
    look_time: LookTime,
}

struct State {
    runner: Runner,
    /// What happened to each answer that is not over, as far as nobody took it.
    events: BTreeMap<u64, (Id, VecDeque<Event>)>,
    next: u64,
}

/// A request, as the Python half says it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    prompt: Said,
    #[serde(default)]
    tools: Vec<Value>,
    thinking: Option<bool>,
    max_tokens: Option<usize>,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repeat_penalty: f32,
    frequency_penalty: f32,
    presence_penalty: f32,
    seed: u64,
    stop: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    Text(String),
    Tokens(Vec<u32>),
    Messages(Vec<Value>),
}

impl Asked {
    fn request(self) -> Request {
        let prompt = match self.prompt {
            Said::Text(text) => Prompt::Text(text),
            Said::Tokens(tokens) => Prompt::Tokens(tokens),
            Said::Messages(messages) => Prompt::Chat {
                messages,
                tools: self.tools,
                thinking: self.thinking,
            },
        };
        Request {
            sampling: Sampling {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                penalties: PenaltyOptions {
                    repeat: self.repeat_penalty,
                    frequency: self.frequency_penalty,
                    presence: self.presence_penalty,
                    ..PenaltyOptions::default()
                },
                seed: self.seed,
                logprobs: None,
            },
            max_tokens: self.max_tokens,
            stop: self.stop,
            ..Request::new(prompt)
        }
    }
}

#[pymethods]
impl LanguageModel {
    #[new]
    #[pyo3(signature = (path, *, memory_budget=None, context=2048, kv="f16", threads=0, parallel=8, draft=8))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        memory_budget: Option<&str>,
        context: usize,
        kv: &str,
        threads: usize,
        parallel: usize,
        draft: usize,
    ) -> PyResult<LanguageModel> {
        let budget = match options::parsed(py, memory_budget)? {
            Budget::Unlimited => None,
            Budget::Bytes(bytes) => Some(bytes),
            other => {
                let text = format!("memory_budget {other}: a language model takes a size");
                return Err(invalid(py, text));
            }
        };
        let cache = kv.parse();
        let mut engine = neap_llm::Options {
            memory_budget: budget,
            context,
            host: Arc::new(Since::now(Arc::new(Embedded))),
            cache: cache.map_err(|e: String| invalid(py, format!("kv: {e}")))?,
            ..neap_llm::Options::default()
        };
        if threads > 0 {
            engine.threads = threads;
        }
        let options = neap_chat::Options {
            engine,
            most_requests: parallel,
            most_draft: draft,
            ..neap_chat::Options::default()
        };
        let runner = py.detach(|| Runner::open(&path, &options));
        let state = State {
            runner: runner.map_err(|e| of_model(py, &e))?,
            events: BTreeMap::new(),
            next: 0,
        };
        Ok(LanguageModel {
            state: ManuallyDrop::new(Mutex::new(state)),
            given_up: Mutex::default(),
            process: std::process::id(),
            look_time: LookTime::default(),
        })
    }

    /// Takes a request, and gives the number of its answer.
    fn begin(&self, py: Python<'_>, request: &str) -> PyResult<u64> {
        let asked: Asked = serde_json::from_str(request).map_err(|e| invalid(py, e.to_string()))?;
        let mut state = self.lock(py)?;
        let state: &mut State = &mut state;
        let submitted = py.detach(|| state.runner.submit(asked.request()));
        let id = submitted.map_err(|refused| match refused {
            Refused::Failed(error) => of_model(py, &error),
            Refused::Full { .. } | Refused::Busy(_) => {
                raise(py, "RuntimeException", refused.to_string())
            }
            refused => invalid(py, refused.to_string()),
        })?;
        let number = state.next;
        state.next += 1;
        state.events.insert(number, (id, VecDeque::new()));
        Ok(number)
    }

    /// What happens next to an answer: `("text", text)`, `("reasoning", text)`, or at its end `("end", figures)`.
    /// `None` after the end. A signal whose handler raises ends the wait; the answer can go on then.
    fn next<'py>(
        &self,
        py: Python<'py>,
        number: u64,
    ) -> PyResult<Option<(&'static str, Bound<'py, PyAny>)>> {
        let interrupt = Interrupt::new(None, &self.look_time);
        loop {
            // Others read theirs between two passes.
            let mut state = self.lock(py)?;
            let state: &mut State = &mut state;
            let Some((_, waiting)) = state.events.get_mut(&number) else {
                return Ok(None);
            };
            if let Some(event) = waiting.pop_front() {
                let is_last = matches!(event, Event::Finished { .. });
                if is_last {
                    state.events.remove(&number);
                }
                return told(py, event).map(Some);
            }
            let stepped = py.detach(|| state.step(&interrupt));
            if let Err(error) = stepped {
                return Err(interrupt.raised().unwrap_or_else(|| of_model(py, &error)));
            }
        }
    }

    /// Gives an answer up that nobody wants any more. It never waits: the interpreter may call it from within a pass, when it
    /// collects garbage.
    fn give_up(&self, number: u64) {
        if self.process != std::process::id() {
            return;
        }
        let given_up = &mut *self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        given_up.push(number);
        if let Ok(mut state) = self.state.try_lock() {
            state.end(given_up);
        }
    }

    /// The tokens of a text, as a prompt has them.
    fn tokens(&self, py: Python<'_>, text: String) -> PyResult<Vec<u32>> {
        let state = self.lock(py)?;
        let tokens = state.runner.tokens(&Prompt::Text(text));
        let (tokens, _) = tokens.map_err(|refused| invalid(py, refused.to_string()))?;
        Ok(tokens)
    }

    /// Positions that prompts and answers have together, and whether there is a template for chats.
    fn about(&self, py: Python<'_>) -> PyResult<(usize, bool)> {
        let state = self.lock(py)?;
        Ok((state.runner.context(), state.runner.has_template()))
    }

    /// Where the memory goes, in bytes by part.
    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let ledger = self.lock(py)?.runner.ledger();
        let parts = PyDict::new(py);
        for (name, bytes) in [
            ("process_bytes", ledger.process_bytes),
            ("reserved_bytes", ledger.reserved_bytes),
            ("rows_bytes", ledger.rows_bytes),
            ("cache_bytes", ledger.cache_bytes),
            ("whole_cache_bytes", ledger.whole_cache_bytes),
            ("weights_bytes", ledger.weights_bytes),
            ("all_weights_bytes", ledger.all_weights_bytes),
            ("smallest_bytes", ledger.smallest_bytes),
        ] {
            parts.set_item(name, bytes)?;
        }
        Ok(parts)
    }
}

impl State {
    /// Ends answers that were given up.
    fn end(&mut self, given_up: &mut Vec<u64>) {
        for number in given_up.drain(..) {
            if let Some((id, _)) = self.events.remove(&number) {
                self.runner.cancel(id);
                self.runner.settle(&mut |_, _| {});
            }
        }
    }

    /// One pass, of all answers. Events of those that were given up go nowhere.
    fn step(&mut self, interrupt: &Interrupt) -> neap_chat::Result<()> {
        let events = &mut self.events;
        self.runner.step(interrupt.token(), &mut |id, event| {
            let mut all = events.values_mut();
            if let Some((_, waiting)) = all.find(|(its, _)| *its == id) {
                waiting.push_back(event);
            }
        })
    }
}

impl LanguageModel {
    /// Waits without the interpreter's lock, which the thread that has the model may need.
    ///
    /// # Errors
    /// In a process that was forked from the model's own.
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err(format!(
                "the language model was opened in process {} and cannot be used in its fork {}: open it in the process that asks it",
                self.process,
                std::process::id()
            )));
        }
        loop {
            match self.state.try_lock() {
                Ok(state) => return Ok(self.cleared(state)),
                Err(TryLockError::Poisoned(poisoned)) => {
                    return Ok(self.cleared(poisoned.into_inner()));
                }
                Err(TryLockError::WouldBlock) => py.check_signals()?,
            }
            // The guard stays with this thread: only the waiting is done without the lock.
            py.detach(|| drop(self.state.lock().unwrap_or_else(PoisonError::into_inner)));
        }
    }

    /// The state without answers that were given up.
    fn cleared<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let mut given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        state.end(&mut given_up);
        state
    }
}

impl Drop for LanguageModel {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: it is dropped once, here, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.state) };
        }
    }
}

fn told(py: Python<'_>, event: Event) -> PyResult<(&'static str, Bound<'_, PyAny>)> {
    let text = |text: String| text.into_pyobject(py).map(Bound::into_any);
    Ok(match event {
        Event::Text(piece) => ("text", text(piece)?),
        Event::Reasoning(piece) => ("reasoning", text(piece)?),
        Event::Finished { reason, usage } => {
            let figures = PyDict::new(py);
            let reason = match reason {
                Reason::Stop => "stop",
                Reason::Length => "length",
                Reason::Cancelled => "cancelled",
                Reason::Error(text) => return Err(raise(py, "RuntimeException", text)),
            };
            figures.set_item("finish_reason", reason)?;
            figures.set_item("prompt_tokens", usage.prompt_tokens)?;
            figures.set_item("cached_tokens", usage.cached_tokens)?;
            figures.set_item("completion_tokens", usage.completion_tokens)?;
            ("end", figures.into_any())
        }
        Event::Logprobs(_) => return Err(PyRuntimeError::new_err("nobody asked for these")),
    })
}

fn of_model(py: Python<'_>, error: &neap_chat::Error) -> PyErr {
    use neap_llm::Error;
    let text = error.to_string();
    let neap_chat::Error::Model(of) = error else {
        return raise(py, "Fail", text);
    };
    match of {
        Error::Budget {
            budget_bytes,
            smallest_bytes,
            ..
        } => failure::too_little(py, text, *budget_bytes, *smallest_bytes),
        Error::Unsupported(_) => raise(py, "NotImplemented", text),
        Error::File { .. } | Error::Gguf { .. } | Error::Model(_) => raise(py, "Fail", text),
        _ => raise(py, "RuntimeException", text),
    }
}
