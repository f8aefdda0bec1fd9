//! Models come, go, and take another's place.
//!
//! ```text
//!   reload   the old one runs ─────────────────────────────────────────┬─ its last requests ─► gone
//!            the new one is opened ─► measured, admitted in its place ─┴─ runs
//!                                                                      ^ no promised request waits or runs
//!   where both have no room and nothing is promised:   requests wait ─ the old one goes, the new one comes, in one change
//! ```
//! Both are there until the new one is known to be good, each under a key of its own, so a reload that fails
//! changes nothing, and a request is answered by the model that it was meant for.

use super::{Candidate, Executor, Shared, elsewhere, lock};
use crate::fleet::Opened;
use std::sync::Arc;
use std::time::Duration;

impl Executor {
    /// A key for one more model of that name.
    pub fn free_key(&self, name: &str) -> Arc<str> {
        self.shared.fleet.free_key(name).into()
    }

    /// Lets a model go when the requests for it that wait have run.
    ///
    /// # Errors
    /// As [`Fleet::remove`](crate::fleet::Fleet::remove).
    pub async fn remove(&self, key: &str) -> neaptide::Result<()> {
        let (shared, key) = (self.shared.clone(), key.to_string());
        elsewhere(move || {
            shared.wait_until_idle(&key);
            shared.forget(&key);
            shared.change(|fleet| fleet.remove(&key))
        })
        .await
    }

    /// Lets a model go and takes another in, in one change, when the requests for it that wait have run. Nothing may be promised.
    ///
    /// # Errors
    /// As [`Fleet::add`](crate::fleet::Fleet::add): the old one is there still.
    pub async fn replace(&self, old: &str, key: &str, opened: Opened) -> neaptide::Result<()> {
        let shared = self.shared.clone();
        let (old, key) = (old.to_string(), key.to_string());
        elsewhere(move || {
            shared.wait_until_idle(&old);
            shared.change(|fleet| fleet.replace(&old, &key, opened))?;
            shared.forget(&old);
            shared.begin_pace(&key);
            Ok(())
        })
        .await
    }

    /// The model takes the place of the one that it follows, unless promised requests wait or run now: `false` then.
    pub fn follow(&self, new: &Candidate) -> bool {
        let Some(old) = &new.follows else {
            return true;
        };
        let shared = &self.shared;
        let state = lock(&shared.state);
        if shared.admission.promises() {
            let running = state.0.running.as_deref();
            let is_promised = running.is_some_and(|model| shared.admission.is_promised(model));
            if is_promised || state.1.promised_ns() < u64::MAX {
                return false;
            }
        }
        let bytes = new.reserved_bytes();
        if !shared.pool.reserve_instead(old, &new.name, bytes) {
            return false;
        }
        shared.admission.follow(&new.name);
        shared.note_room();
        true
    }
}

impl Shared {
    pub(super) fn add(&self, key: &str, opened: Opened) -> neaptide::Result<()> {
        self.change(|fleet| fleet.add(key, opened))?;
        self.begin_pace(key);
        Ok(())
    }

    fn begin_pace(&self, key: &str) {
        let shares = self.fleet.shares();
        let predicted_ns = shares.get(key).map_or(0, |share| share.latency_ns);
        self.pace.begin(key, predicted_ns);
    }

    /// Until no request for the model waits or runs.
    fn wait_until_idle(&self, key: &str) {
        let mut state = lock(&self.state);
        loop {
            let is_running = state.0.running.as_deref() == Some(key);
            if !is_running && !state.1.has(|job| *job.model == *key) {
                return;
            }
            state = self.wait(state, Duration::from_secs(60));
        }
    }
}
