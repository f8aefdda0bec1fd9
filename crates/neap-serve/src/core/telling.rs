//! What the server says of itself: whether it can be asked, its models, what became of requests.

use super::Core;
use crate::catalogue::{Served, State};
use crate::refusal::{Refusal, Why};
use crate::triton::AllStatistics;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A model as the repository's index tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    pub version: String,
    /// `READY`, `LOADING`, `UNLOADING`, `UNAVAILABLE`, or nothing for one that nobody asked for.
    pub state: &'static str,
    pub reason: String,
}

impl Core {
    /// Whether requests are taken: the models of the folder are loaded, and the server does not end.
    pub fn is_ready(&self) -> bool {
        !self.is_ending() && self.is_open.load(Relaxed)
    }

    /// # Errors
    /// [`Why::NotReady`] while the models of the folder are loaded, and when the server ends.
    pub fn check_ready(&self) -> Result<(), Refusal> {
        let what = match (self.is_ending(), self.is_open.load(Relaxed)) {
            (true, _) => "the server ends",
            (false, false) => "the models of the folder are being loaded",
            (false, true) => return Ok(()),
        };
        Err(Refusal::new(Why::NotReady, what))
    }

    /// A model that can be asked now, as far as anybody knows.
    ///
    /// # Errors
    /// As [`Catalogue::ready`]; [`Why::NotReady`] when the server is not, or the model's last run failed by no fault of its
    /// request.
    pub fn can_answer(&self, name: &str, version: Option<&str>) -> Result<(), Refusal> {
        let model = self.catalogue.ready(name, version)?;
        self.check_ready()?;
        match model.fault() {
            None => Ok(()),
            Some(reason) => Err(Refusal::new(Why::NotReady, reason)),
        }
    }

    /// What became of requests: of one model, or of all that are loaded.
    ///
    /// # Errors
    /// As [`Catalogue::ready`].
    pub fn statistics(
        &self,
        name: Option<&str>,
        version: Option<&str>,
    ) -> Result<AllStatistics, Refusal> {
        let models = match name {
            Some(name) => vec![self.catalogue.ready(name, version)?],
            None => self.served().collect(),
        };
        let all = models.iter().map(|model| self.metrics.statistics.of(model));
        Ok(AllStatistics {
            model_stats: all.collect(),
        })
    }

    /// Every model that can be asked.
    pub fn served(&self) -> impl Iterator<Item = Arc<Served>> {
        let models = self.catalogue.all().into_values();
        models.filter_map(|state| match state {
            State::Ready(served) => Some(served),
            _ => None,
        })
    }

    /// Counts a request that was refused.
    pub fn note_refusal(&self, name: &str, refusal: &Refusal) {
        let Ok(model) = self.catalogue.ready(name, None) else {
            self.metrics.refused("", refusal.why);
            return;
        };
        self.metrics.refused(&model.name, refusal.why);
        // What the client did wrong is no deadline of ours.
        let is_ours = matches!(
            refusal.why,
            Why::Busy { .. } | Why::TooLate | Why::Machine | Why::Internal
        );
        if is_ours && model.settings.deadline.is_some() {
            self.metrics.deadline(&model.name, false);
        }
    }

    /// Every model in the folder, and every one that was loaded from it.
    ///
    /// # Errors
    /// [`Why::Internal`] when the folder cannot be read.
    pub async fn index(&self) -> Result<Vec<Listed>, Refusal> {
        let entries = self.entries().await?;
        let states = self.catalogue.all();
        let mut names: Vec<&String> = entries.keys().chain(states.keys()).collect();
        names.sort();
        names.dedup();
        let listed = names.into_iter().map(|name| {
            let version = entries.get(name).map(|e| e.version.clone());
            let (state, reason) = match states.get(name) {
                None => ("", String::new()),
                Some(State::Ready(served)) => match served.fault() {
                    None => ("READY", String::new()),
                    Some(reason) => ("UNAVAILABLE", reason),
                },
                Some(State::Loading) => ("LOADING", String::new()),
                Some(State::Unloading) => ("UNLOADING", String::new()),
                Some(State::Unloaded(reason)) if reason.is_empty() => {
                    ("UNAVAILABLE", "unloaded".into())
                }
                Some(State::Unloaded(reason)) => ("UNAVAILABLE", reason.clone()),
            };
            Listed {
                name: name.clone(),
                version: version.unwrap_or_else(|| "1".into()),
                state,
                reason,
            }
        });
        Ok(listed.collect())
    }
}
