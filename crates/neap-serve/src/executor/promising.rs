//! Promises are made when models are loaded: memory is set aside for requests, runs are measured, and what cannot be served
//! beside promises goes.
//!
//! ```text
//!   models ─► plan that stays ─► memory for requests ─► runs, measured ─► admission ─► refused: they are let go
//! ```

use super::{Shared, guarded};
use crate::admission::{Measured, Promise};
use crate::fleet::Fleet;
use crate::measuring::Subject;
use neaptide::TensorInfo;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long a model that is loaded waits for memory of requests, and how often it looks.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// A model that is loaded, and may be promised its deadlines.
#[derive(Clone)]
pub struct Candidate {
    /// The model's key.
    pub name: String,
    /// The key of the model whose place it is to take.
    pub follows: Option<String>,
    pub promise: Option<Promise>,
    /// It is served already: one that is loaded now is refused rather than this.
    pub is_served: bool,
    pub urgency: f64,
    pub inputs: Arc<[TensorInfo]>,
    pub outputs: Arc<[TensorInfo]>,
    pub most_rows: usize,
}

impl Candidate {
    /// For its requests alone, where its deadlines are promised.
    pub fn reserved_bytes(&self) -> u64 {
        let at_once = self.promise.map_or(0, Promise::most_at_once);
        self.subject().request_bytes().saturating_mul(at_once)
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            name: &self.name,
            inputs: &self.inputs,
            outputs: &self.outputs,
            most_rows: self.most_rows,
        }
    }
}

/// What to say when requests have too little memory: `needed` for all of them together.
fn too_little_for_requests(bytes: u64, needed: u64) -> String {
    format!(
        "its requests need {} for themselves: give --request-memory {needed} or more",
        neaptide::Bytes(bytes)
    )
}

impl Shared {
    /// Whether a promised request is to run now.
    pub(super) fn is_promised(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let (promised_ns, began) = (self.promised_ns.clone(), self.began);
        move || {
            let at_ns = promised_ns.load(Relaxed);
            at_ns < u64::MAX && began.elapsed().as_nanos() as u64 >= at_ns
        }
    }

    pub(super) fn promise(&self, models: Vec<Candidate>) -> Vec<(String, String)> {
        let has_promise = models.iter().any(|m| m.promise.is_some());
        if !has_promise && !self.admission.promises() {
            return Vec::new();
        }
        let (served, new): (Vec<_>, Vec<_>) = models.iter().partition(|m| m.is_served);
        let names = |models: Vec<&Candidate>| models.into_iter().map(|m| m.name.clone()).collect();
        let (served, new): (Vec<String>, Vec<String>) = (names(served), names(new));
        let others = models.iter().filter(|m| m.promise.is_none());
        let others_bytes = others.map(|m| m.subject().request_bytes()).max();
        let mut refused = Vec::new();
        let mut measured = Vec::new();
        // What is measured must not change any more.
        for model in models.iter().filter(|m| m.promise.is_some()) {
            let pinned = self.fleet.pin(&model.name).map_err(|e| e.to_string());
            let others_bytes = others_bytes.unwrap_or(0);
            let reserved = pinned.and_then(|()| match &model.follows {
                None => self.reserve(model, others_bytes),
                // It gets the memory of the one that it follows.
                Some(old) => self.may_reserve(model, old, others_bytes),
            });
            if let Err(reason) = reserved {
                refused.push((model.name.clone(), reason));
            }
        }
        let shares = self.fleet.shares();
        for model in models {
            if refused.iter().any(|(name, _)| *name == model.name) {
                continue;
            }
            let Some(&share) = shares.get(&model.name) else {
                refused.push((model.name, "it is not loaded".into()));
                continue;
            };
            // It had the same share before.
            let known = self.admission.known(&model.name, share);
            let figures = match known {
                Some(known) => Ok(known),
                None => guarded(|| self.measured(&model)),
            };
            match figures.map(|figures| (share, figures)) {
                Ok(figures) => measured.push((model, figures)),
                Err(error) => {
                    let reason = format!("its runs cannot be measured: {error}");
                    refused.push((model.name, reason));
                }
            }
        }
        // Those without a promise first, then by urgency.
        measured.sort_by(|(a, _), (b, _)| {
            let order = a.promise.is_some().cmp(&b.promise.is_some());
            order.then(b.urgency.total_cmp(&a.urgency))
        });
        for (model, figures) in measured {
            let change_ns = self.fleet.ledger().longest_change_ns;
            let name = &model.name;
            let follows = model.follows.as_deref();
            let admitted = (self.admission).admit(name, model.promise, figures, change_ns, follows);
            if let Err(reason) = admitted {
                refused.push((model.name, reason));
            }
        }
        let (kept, mut refused): (Vec<_>, Vec<_>) =
            (refused.into_iter()).partition(|(name, _)| served.contains(name));
        if let Some((_, reason)) = kept.into_iter().next() {
            let others = new
                .into_iter()
                .filter(|new| refused.iter().all(|(r, _)| r != new));
            let others: Vec<String> = others.collect();
            refused.extend(others.into_iter().map(|new| (new, reason.clone())));
        }
        for (name, reason) in &mut refused {
            self.forget(name);
            if let Err(error) = self.change(|fleet| fleet.remove(name)) {
                *reason = format!("{reason}; {error}");
            }
        }
        self.note_room();
        refused
    }

    /// Changes which models there are. What is known of runs counts for the memory that each has.
    pub(super) fn change(
        &self,
        change: impl FnOnce(&Fleet) -> neaptide::Result<()>,
    ) -> neaptide::Result<()> {
        self.admission.doubt();
        let changed = guarded(|| change(&self.fleet));
        self.admission.note_shares(&self.fleet.shares());
        changed
    }

    /// Memory for requests of a promised model, whatever others ask.
    pub(super) fn reserve(&self, model: &Candidate, others_bytes: u64) -> Result<(), String> {
        let bytes = model.reserved_bytes();
        let reserved = self.pool.reserve(&model.name, bytes, others_bytes);
        reserved.map_err(|needed| too_little_for_requests(bytes, needed))?;
        let free = wait_until(|| self.pool.is_free().then_some(()));
        free.ok_or_else(|| "requests leave no memory for its own".into())
    }

    /// Whether there will be as much for it when the old one is gone.
    fn may_reserve(&self, model: &Candidate, old: &str, others_bytes: u64) -> Result<(), String> {
        let bytes = model.reserved_bytes();
        let fits = self.pool.may_reserve_instead(old, bytes, others_bytes);
        fits.map_err(|needed| too_little_for_requests(bytes, needed))
    }

    pub(super) fn measured(&self, model: &Candidate) -> neaptide::Result<Measured> {
        let subject = model.subject();
        let bytes = subject.bytes();
        let held = wait_until(|| self.pool.take(Some(subject.name), bytes));
        let _held =
            held.ok_or_else(|| neaptide::Error::Run("requests leave no memory for it".into()))?;
        let makes_way: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(self.is_promised());
        subject.measure(&self.fleet, &makes_way)
    }

    pub(super) fn note_room(&self) {
        let room_ns = self.admission.room_ns().unwrap_or(u64::MAX);
        self.room_ns.store(room_ns, Relaxed);
    }

    pub(super) fn forget(&self, name: &str) {
        self.admission.forget(name);
        self.pace.forget(name);
        self.pool.release(name);
        self.note_room();
    }
}

/// What `look` finds; `None` when that takes too long.
fn wait_until<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        match look() {
            None if began.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            found => return found,
        }
    }
}
