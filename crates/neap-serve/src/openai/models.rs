//! The language models of a server: their shares of the budget, and how they are opened.

use super::fault::{Answered, Fault};
use super::worker::Worker;
use crate::catalogue::shown;
use crate::refusal::{Refusal, Why};
use neap_chat::{CacheType, Runner};
use neap_llm::Since;
use neaptide::{Bytes, Host, RunOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The language models that are served.
#[derive(Debug, Clone, PartialEq)]
pub struct Language {
    pub models: Vec<LanguageModel>,
    /// Positions that all texts of one model have together.
    pub context: usize,
    pub cache: CacheType,
    /// Answers of one model at once.
    pub most_answers: usize,
}

/// A model in a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanguageModel {
    pub name: String,
    pub path: PathBuf,
    /// Its part of the budget; without one it has an equal part of what is left for models.
    pub share_bytes: Option<u64>,
}

impl Default for Language {
    fn default() -> Language {
        Language {
            models: Vec::new(),
            context: 4096,
            cache: CacheType::default(),
            most_answers: 16,
        }
    }
}

/// The budget of all models, divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// Of each language model; `None` without a limit.
    pub language: Vec<Option<u64>>,
    /// Of all models of the folder.
    pub folder: Option<u64>,
}

impl Language {
    /// Divides what models have together.
    ///
    /// # Errors
    /// One line where the named shares are more.
    pub fn shares(&self, models_bytes: Option<u64>, has_folder: bool) -> Result<Shares, String> {
        let named = self.models.iter().map(|model| model.share_bytes);
        let Some(all) = models_bytes else {
            let language = named.collect();
            return Ok(Shares {
                language,
                folder: None,
            });
        };
        let sum: u64 = named.clone().flatten().fold(0, u64::saturating_add);
        let left = all.checked_sub(sum).ok_or_else(|| {
            let (sum, all) = (Bytes(sum), Bytes(all));
            format!(
                "the shares of language models are {sum}, and all models have {all} of the budget"
            )
        })?;
        let unnamed = named.clone().filter(Option::is_none).count() as u64;
        let part = left / (unnamed + u64::from(has_folder)).max(1);
        Ok(Shares {
            language: named.map(|share| share.or(Some(part))).collect(),
            folder: Some(left - unnamed * part),
        })
    }
}

/// All of them, by name.
pub struct Models {
    all: BTreeMap<String, Mutex<State>>,
    opening: Vec<(LanguageModel, Option<u64>)>,
    options: Language,
    run: RunOptions,
    host: Arc<dyn Host>,
}

enum State {
    Loading,
    Ready(Arc<Worker>),
    Refused(String),
}

impl Models {
    pub fn new(
        options: Language,
        shares: Vec<Option<u64>>,
        run: RunOptions,
        host: Arc<dyn Host>,
    ) -> Models {
        let names = options.models.iter().map(|model| model.name.clone());
        Models {
            all: names
                .map(|name| (name, Mutex::new(State::Loading)))
                .collect(),
            opening: options.models.iter().cloned().zip(shares).collect(),
            options,
            run,
            host,
        }
    }

    /// Opens every model, one after the other. Their names; and of those that cannot be served, why.
    pub async fn load(self: &Arc<Models>) -> (Vec<String>, Vec<(String, neap_chat::Error)>) {
        let (mut loaded, mut refused) = (Vec::new(), Vec::new());
        for at in 0..self.opening.len() {
            let its = self.clone();
            let opened = tokio::task::spawn_blocking(move || its.open(at)).await;
            let name = self.opening[at].0.name.clone();
            let state = match opened {
                Ok(Ok(worker)) => {
                    tracing::info!(model = name, context = worker.context, "loaded");
                    loaded.push(name.clone());
                    State::Ready(Arc::new(worker))
                }
                Ok(Err(error)) => {
                    tracing::warn!(model = name, reason = %error, "not loaded");
                    let state = State::Refused(error.to_string());
                    refused.push((name.clone(), error));
                    state
                }
                Err(_) => State::Refused("opening it ended with a panic".into()),
            };
            if let Some(of) = self.all.get(&name) {
                *of.lock().unwrap_or_else(PoisonError::into_inner) = state;
            }
        }
        (loaded, refused)
    }

    fn open(&self, at: usize) -> neap_chat::Result<Worker> {
        let (model, share) = &self.opening[at];
        let host = Since::now(self.host.clone());
        let options = neap_chat::Options {
            engine: neap_llm::Options {
                memory_budget: *share,
                context: self.options.context,
                cache: self.options.cache,
                threads: self.run.threads,
                io: self.run.io,
                host: Arc::new(host),
                ..neap_llm::Options::default()
            },
            most_requests: self.options.most_answers,
            ..neap_chat::Options::default()
        };
        let runner = Runner::open(&model.path, &options)?;
        let started = Worker::start(runner);
        started.map_err(|source| {
            let path = model.path.clone();
            neap_llm::Error::File { path, source }.into()
        })
    }

    /// The model that is asked.
    ///
    /// # Errors
    /// [`Why::NotFound`] for one that is none of these, [`Why::NotReady`] for one that is not loaded.
    pub fn find(&self, name: &str) -> Answered<Arc<Worker>> {
        let Some(state) = self.all.get(name) else {
            let message = format!("there is no language model {}", shown(name));
            let refusal = Refusal::new(Why::NotFound, message);
            return Err(Fault::about("model", refusal).coded("model_not_found"));
        };
        let not_ready = |what: &str| {
            let message = format!("the model '{name}' {what}");
            Err(Refusal::new(Why::NotReady, message).into())
        };
        match &*state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Loading => not_ready("is being loaded"),
            State::Refused(reason) => not_ready(&format!("is not served: {reason}")),
            State::Ready(worker) if worker.has_failed() => not_ready("ended with a defect"),
            State::Ready(worker) => Ok(worker.clone()),
        }
    }

    /// Every model that answers.
    pub fn ready(&self) -> impl Iterator<Item = (&str, Arc<Worker>)> {
        let names = self.all.keys();
        names.filter_map(|name| Some((name.as_str(), self.find(name).ok()?)))
    }

    /// What each of them takes of the memory, and may take.
    pub fn told(&self) -> Vec<Value> {
        let shares = self.opening.iter();
        let told = shares.map(|(model, share)| {
            let worker = self.find(&model.name).ok();
            json!({
                "name": model.name,
                "bytes": worker.map_or(0, |worker| worker.told().memory_bytes),
                "share_bytes": share,
            })
        });
        told.collect()
    }

    /// As [`Worker::close`], of all.
    pub fn close(&self, is_cut_off: bool) {
        for (_, worker) in self.ready() {
            worker.close(is_cut_off);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn language(shares: &[Option<u64>]) -> Language {
        let models = shares.iter().map(|&share_bytes| LanguageModel {
            name: "m".into(),
            path: PathBuf::new(),
            share_bytes,
        });
        Language {
            models: models.collect(),
            ..Language::default()
        }
    }

    #[test]
    fn what_is_not_named_is_divided_equally() {
        let shares = |given: &[Option<u64>], all, folder| language(given).shares(all, folder);
        let both = |language: &[u64], folder| {
            let language = language.iter().copied().map(Some).collect();
            let folder = Some(folder);
            Ok(Shares { language, folder })
        };
        assert_eq!(shares(&[], Some(100), true), both(&[], 100));
        assert_eq!(shares(&[None], Some(100), false), both(&[100], 0));
        assert_eq!(shares(&[None, None], Some(100), true), both(&[33, 33], 34));
        assert_eq!(
            shares(&[Some(40), None], Some(100), true),
            both(&[40, 30], 30)
        );
        assert_eq!(shares(&[Some(100)], Some(100), true), both(&[100], 0));
        let told = shares(&[Some(60), Some(60)], Some(100), true).unwrap_err();
        assert!(told.contains("120"), "{told}");
        let unlimited = shares(&[Some(7), None], None, true).unwrap();
        assert_eq!(
            (unlimited.language, unlimited.folder),
            (vec![Some(7), None], None)
        );
    }
}
