//! Models are loaded, loaded again, and unloaded; the index of all.
//!
//! A model that is loaded again is opened, measured and admitted beside the one that is served, and takes its place when it is
//! known to be good. Otherwise it is refused, and the old one stays.

use super::Core;
use crate::advice::advised;
use crate::catalogue::{Served, State, unknown};
use crate::executor::Candidate;
use crate::fleet::{Opened, served_name};
use crate::refusal::{Refusal, Why};
use crate::repository::Entry;
use crate::{RESERVE_BYTES, ServeError};
use neaptide::{Error, TensorInfo};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// For how long a new model waits for a moment without promised requests, and how often it looks for one.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(1);

/// What is served when the folder is loaded, and what is not, and why.
pub struct Loaded {
    pub models: Vec<String>,
    pub refused: Vec<(String, String)>,
}

impl Core {
    /// Loads every model of the folder, by name, and makes their promises; from then on requests are answered.
    ///
    /// # Errors
    /// The model that cannot be loaded, and why, where all must be. `None` when the server ends meanwhile.
    pub async fn load_all(&self) -> Result<Option<Loaded>, ServeError> {
        // Loads that clients want come after this.
        let _one = self.changes.turn().await;
        let entries = self.entries().await;
        let entries = entries.map_err(|refusal| ServeError::BadInput(refusal.message))?;
        let (mut models, mut refused) = (Vec::new(), Vec::new());
        for (name, entry) in entries {
            let result = self.load_entry(&name, &entry).await;
            if self.is_ending() {
                return Ok(None);
            }
            match result {
                Ok(()) => models.push(name),
                Err(error) if self.is_strict => return Err(ServeError::Model { name, error }),
                Err(error) => refused.push((name, error.to_string())),
            }
        }
        let unpromised = self.begin().await;
        models.retain(|name| !unpromised.iter().any(|(other, _)| other == name));
        refused.extend(unpromised);
        self.is_open.store(true, Relaxed);
        Ok(Some(Loaded { models, refused }))
    }

    /// Loads a model that is in the folder; again, where it is loaded.
    ///
    /// # Errors
    /// [`Why::NotFound`] for one that is not there, [`Why::Malformed`] for one that cannot be loaded, [`Why::Busy`]
    /// where its memory cannot be had. One that was loaded before is served still.
    pub async fn load(&self, name: &str) -> Result<(), Refusal> {
        let _one = self.changes.turn().await?;
        if self.is_ending() {
            return Err(Refusal::new(Why::NotReady, "the server ends"));
        }
        let entries = self.entries().await?;
        let entry = entries.get(name).ok_or_else(|| unknown(name))?;
        let loaded = self.load_entry(name, entry).await;
        loaded.map_err(|error| refused_change(&format!("cannot load '{name}'"), error))
    }

    /// Loads a model, or loads it again. On failure the old one stays; where there is none, the state says why.
    ///
    /// # Errors
    /// Those of opening it and of memory.
    pub async fn load_entry(&self, name: &str, entry: &Entry) -> neaptide::Result<()> {
        let began = Instant::now();
        let before = self.catalogue.all().remove(name);
        let loaded = match before {
            Some(State::Ready(old)) => self.load_again(&old, entry).await,
            _ => {
                self.catalogue.set(name, State::Loading);
                let loaded = self.load_first(name, entry).await;
                if let Err(error) = &loaded {
                    let reason = error.to_string();
                    self.catalogue.set(name, State::Unloaded(reason));
                }
                loaded
            }
        };
        let seconds = began.elapsed().as_secs_f64();
        let version = entry.version.as_str();
        self.metrics.loaded(name, loaded.is_ok());
        match &loaded {
            Ok(()) => tracing::info!(model = name, version, seconds, "loaded"),
            Err(error) => tracing::warn!(model = name, version, reason = %error, "not loaded"),
        }
        loaded
    }

    async fn load_first(&self, name: &str, entry: &Entry) -> neaptide::Result<()> {
        let (served, opened) = self.open(name, entry).await?;
        self.executor.add(&served.key, opened).await?;
        if self.is_begun.load(Relaxed) {
            self.promise(candidate(&served)).await?;
        }
        self.catalogue.set(name, State::Ready(Arc::new(served)));
        Ok(())
    }

    async fn load_again(&self, old: &Arc<Served>, entry: &Entry) -> neaptide::Result<()> {
        let (served, opened) = self.open(&old.name, entry).await?;
        match self.executor.add(&served.key, opened).await {
            Ok(()) => {}
            // One after the other, perhaps.
            Err(Error::Infeasible { .. })
                if !self.executor.promises() && served.settings.promise().is_none() =>
            {
                return self.replace(old, entry).await;
            }
            Err(error) => return Err(error),
        }
        let new = Candidate {
            follows: Some(old.key.to_string()),
            ..candidate(&served)
        };
        if self.is_begun.load(Relaxed) {
            self.promise(new.clone()).await?;
        }
        if !self.took_over(&new, old).await {
            let dropped = self.executor.remove(&new.name).await;
            self.measure_again().await;
            dropped?;
            let what = format!(
                "promised requests left no moment within {PATIENCE:?} in which it could take the old one's place"
            );
            return Err(Error::Machine(what));
        }
        let new = State::Ready(Arc::new(served));
        self.catalogue.set(&old.name, new);
        let removed = self.executor.remove(&old.key).await;
        self.measure_again().await;
        removed
    }

    /// Waits until the new model has the old one's place; requests go to it from then on.
    async fn took_over(&self, new: &Candidate, old: &Served) -> bool {
        let began = Instant::now();
        loop {
            if self.executor.follow(new) {
                return true;
            }
            if began.elapsed() > PATIENCE || !self.executor.is_there(&old.key) {
                return false;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Where both have no room: requests wait while the old one goes and the new one comes.
    async fn replace(&self, old: &Arc<Served>, entry: &Entry) -> neaptide::Result<()> {
        let (served, opened) = self.open(&old.name, entry).await?;
        let _closed = old.gate.write().await;
        self.executor.replace(&old.key, &served.key, opened).await?;
        let new = State::Ready(Arc::new(served));
        self.catalogue.set(&old.name, new);
        Ok(())
    }

    /// Opens a model, and packs it where need be. It takes hardly any memory yet.
    async fn open(&self, name: &str, entry: &Entry) -> neaptide::Result<(Served, Opened)> {
        let its = entry.clone();
        let settings = self.files.read(move || Ok(its.settings())).await;
        // The folder hangs, or cannot be read.
        let settings = settings.map_err(|refusal| Error::Machine(refusal.message))?;
        let settings = settings.map_err(Error::BadInput)?;
        let (opening, path) = (self.opening.clone(), entry.path.clone());
        let its = settings.clone();
        let room_bytes = self.room_to_open();
        let opened =
            tokio::task::spawn_blocking(move || opening.open(&path, &its, room_bytes)).await;
        let opened =
            opened.map_err(|_| Error::Defect("opening the model ended with a panic".into()))?;
        let opened = opened.map_err(|error| advised(error, entry.settings_path()))?;
        self.check_request_bytes(&opened.inputs, &opened.outputs)?;
        for remark in &opened.remarks {
            tracing::warn!(model = name, "{remark}");
        }
        let served = Served {
            name: name.into(),
            key: self.executor.free_key(name),
            version: entry.version.clone(),
            inputs: opened.declared_inputs.clone().into(),
            outputs: opened.declared_outputs.clone().into(),
            engine_inputs: opened.inputs.clone().into(),
            engine_outputs: opened.outputs.clone().into(),
            late_axes: opened.late_axes.clone(),
            takes_rows: opened.takes_rows,
            about: opened.about.clone(),
            settings,
            fault: Mutex::default(),
            gate: tokio::sync::RwLock::default(),
        };
        Ok((served, opened))
    }

    /// Memory for opening a model: at the start all that the process does not take yet, then the reserve and what no
    /// model has.
    fn room_to_open(&self) -> Option<u64> {
        let free_bytes = self.executor.free_bytes()?;
        let unused = self.budget_bytes()?.saturating_sub(self.process_bytes());
        match self.is_begun.load(Relaxed) {
            true => Some(RESERVE_BYTES.saturating_add(free_bytes)),
            false => Some(unused),
        }
    }

    /// Makes the promise of a model that is new, and measures others whose memory is another one now.
    ///
    /// # Errors
    /// Why it is not served. It is gone then.
    async fn promise(&self, new: Candidate) -> neaptide::Result<()> {
        let key = new.name.clone();
        let others = self.unpromised().into_iter();
        let others = others.map(|served| Candidate {
            is_served: true,
            ..candidate(&served)
        });
        let candidates = std::iter::once(new).chain(others).collect();
        let refused = self.executor.promise(candidates).await;
        self.let_go(&refused);
        match refused.into_iter().find(|(other, _)| *other == key) {
            None => Ok(()),
            Some((_, reason)) => {
                self.measure_again().await;
                Err(Error::BadInput(reason))
            }
        }
    }

    /// Every model of the folder is loaded: makes their promises, and from now on those of others as they are loaded. Says
    /// which models are not served, and why.
    async fn begin(&self) -> Vec<(String, String)> {
        let ready = self.served().map(|served| candidate(&served));
        let refused = self.executor.promise(ready.collect()).await;
        self.let_go(&refused);
        if !refused.is_empty() {
            self.measure_again().await;
        }
        self.is_begun.store(true, Relaxed);
        let refused = refused.into_iter();
        let named = refused.map(|(key, reason)| (served_name(&key).to_string(), reason));
        named.collect()
    }

    /// Models that are served without a promise.
    fn unpromised(&self) -> Vec<Arc<Served>> {
        self.served()
            .filter(|served| !self.executor.is_promised(&served.key))
            .collect()
    }

    /// A model is gone, or the budget is another one: measures those that have a share of memory now with which they were never measured. One whose
    /// steps are too long for promises with it goes, too.
    pub(super) async fn measure_again(&self) {
        // Each that goes changes the shares of the others.
        loop {
            let models = self.unpromised().into_iter();
            let unknown = models.filter(|served| !self.executor.is_known(&served.key));
            let unknown: Vec<Candidate> = unknown.map(|served| candidate(&served)).collect();
            if unknown.is_empty() {
                return;
            }
            let refused = self.executor.promise(unknown).await;
            self.let_go(&refused);
            if refused.is_empty() {
                return;
            }
        }
    }

    /// Models that are not there any more, by keys. What comes of one that is new is told elsewhere.
    fn let_go(&self, refused: &[(String, String)]) {
        for served in self.served() {
            let found = refused.iter().find(|(key, _)| **key == *served.key);
            if let Some((_, reason)) = found {
                let reason = reason.clone();
                tracing::warn!(model = %served.name, reason, "not served any more");
                self.catalogue.set(&served.name, State::Unloaded(reason));
            }
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
            return Err(Error::BadInput(format!(
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
        let key = match self.catalogue.all().get(name) {
            Some(State::Ready(served)) => served.key.clone(),
            Some(_) => return Ok(()),
            None if self.entries().await?.contains_key(name) => return Ok(()),
            None => return Err(unknown(name)),
        };
        self.catalogue.set(name, State::Unloading);
        let removed = self.executor.remove(&key).await;
        self.catalogue.set(name, State::Unloaded(String::new()));
        tracing::info!(model = name, "unloaded");
        self.measure_again().await;
        removed.map_err(|error| {
            let message = format!("after '{name}' was unloaded: {error}");
            Refusal::new(Why::Internal, message)
        })
    }

    /// Every model in the folder.
    ///
    /// # Errors
    /// [`Why::Internal`] when it cannot be read, [`Why::NotReady`] when that takes too long.
    pub async fn entries(&self) -> Result<BTreeMap<String, Entry>, Refusal> {
        let repository = self.repository.clone();
        self.files.read(move || repository.entries()).await
    }
}

pub(super) fn refused_change(what: &str, error: Error) -> Refusal {
    let message = format!("{what}: {error}");
    match error {
        Error::Infeasible { .. } => Refusal::busy(message, Duration::from_secs(1)),
        Error::Cancelled | Error::Defect(_) => Refusal::new(Why::Internal, message),
        Error::Machine(_) | Error::DamagedCache(_) | Error::Run(_) => {
            Refusal::new(Why::Machine, message)
        }
        _ => Refusal::malformed(message),
    }
}

fn candidate(model: &Served) -> Candidate {
    Candidate {
        name: model.key.to_string(),
        follows: None,
        promise: model.settings.promise(),
        is_served: false,
        urgency: model.settings.urgency,
        inputs: model.engine_inputs.clone(),
        outputs: model.engine_outputs.clone(),
        most_rows: model.most_rows(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_the_servers_side_prevents_is_not_the_clients_fault() {
        let status = |error: Error| refused_change("cannot load 'm'", error).why.status();
        for own in [
            Error::Machine("the folder of models does not answer".into()),
            Error::DamagedCache("a block is another".into()),
            Error::Run("requests leave no memory for it".into()),
            Error::Defect("a panic".into()),
            Error::Cancelled,
        ] {
            assert_eq!(status(own), 500);
        }
        assert_eq!(status(Error::BadInput("it holds no graph".into())), 400);
    }
}
