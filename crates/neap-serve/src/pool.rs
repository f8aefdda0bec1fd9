//! The memory that requests may take together: bodies, tensors, answers.
//!
//! ```text
//!   all requests     │ a promised model's │ another's │          common           │
//!                      its requests only                any request, theirs too
//! ```
//! Whoever needs bytes takes them first, and gives them back by dropping what it [`Held`]. Nobody waits: where there is
//! not enough, the request is refused at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many bytes, and how many are taken.
#[derive(Debug)]
pub struct Pool {
    limit_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the common part.
    used_bytes: u64,
    /// Of all parts together, ever.
    most_bytes: u64,
    parts: BTreeMap<String, Part>,
    next_number: u64,
}

/// Bytes that only requests of one model may take.
#[derive(Debug)]
struct Part {
    /// Tells it from one that the same model had before.
    number: u64,
    bytes: u64,
    used_bytes: u64,
}

/// Bytes of a [`Pool`] until this is dropped.
#[derive(Debug)]
pub struct Held {
    pool: Arc<Pool>,
    /// For requests of which model, if that was said.
    model: Option<String>,
    /// Of which part, and how much of it.
    own: Option<(u64, u64)>,
    common_bytes: u64,
}

impl State {
    fn parts_bytes(&self) -> u64 {
        self.parts.values().map(|part| part.bytes).sum()
    }

    fn begin_part(&mut self, model: &str, bytes: u64) {
        let part = Part {
            number: self.next_number,
            bytes,
            used_bytes: 0,
        };
        self.next_number += 1;
        self.parts.insert(model.into(), part);
    }

    fn end_part(&mut self, model: &str) {
        if let Some(part) = self.parts.remove(model) {
            self.used_bytes += part.used_bytes;
        }
    }

    fn used_bytes(&self) -> u64 {
        let parts = self.parts.values().map(|part| part.used_bytes);
        self.used_bytes + parts.sum::<u64>()
    }
}

impl Pool {
    pub fn new(limit_bytes: u64) -> Arc<Pool> {
        Arc::new(Pool {
            limit_bytes,
            state: Mutex::default(),
        })
    }

    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }

    /// The most that was ever taken at once.
    pub fn most_bytes(&self) -> u64 {
        self.state().most_bytes
    }

    /// What promised models have for their requests alone.
    pub fn promised_bytes(&self) -> u64 {
        self.state().parts_bytes()
    }

    /// What requests of a model can have when there are no others.
    pub fn most_for(&self, model: Option<&str>) -> u64 {
        let state = self.state();
        let own = model.and_then(|model| state.parts.get(model));
        let common = self.limit_bytes - state.parts_bytes();
        common + own.map_or(0, |part| part.bytes)
    }

    /// `None` when not so many are left, for requests of that model if one is said.
    pub fn take(self: &Arc<Pool>, model: Option<&str>, bytes: u64) -> Option<Held> {
        let mut held = Held {
            pool: self.clone(),
            model: model.map(str::to_string),
            own: None,
            common_bytes: 0,
        };
        held.grow(bytes).then_some(held)
    }

    /// From now on so many are for requests of that model only. Until [`Pool::is_free`] the common part may be in use still.
    ///
    /// # Errors
    /// How many all requests together would have to have, so that `common_bytes` are left for all; the model has none then.
    pub fn reserve(&self, model: &str, bytes: u64, common_bytes: u64) -> Result<(), u64> {
        self.release(model);
        let mut state = self.state();
        self.check_room(&state, 0, bytes, common_bytes)?;
        state.begin_part(model, bytes);
        Ok(())
    }

    /// Whether so many could be reserved if another model had none.
    ///
    /// # Errors
    /// As [`Pool::reserve`].
    pub fn may_reserve_instead(&self, old: &str, bytes: u64, common_bytes: u64) -> Result<(), u64> {
        let state = self.state();
        let old_bytes = state.parts.get(old).map_or(0, |part| part.bytes);
        self.check_room(&state, old_bytes, bytes, common_bytes)
    }

    /// What is reserved for `old` is everybody's, and so many are for `new`; `false`, and all is as it was, while so many
    /// are not free.
    pub fn reserve_instead(&self, old: &str, new: &str, bytes: u64) -> bool {
        let mut state = self.state();
        let old_bytes = state.parts.get(old).map_or(0, |part| part.bytes);
        let left = state.parts_bytes() - old_bytes;
        let used = state.used_bytes + state.parts.get(old).map_or(0, |part| part.used_bytes);
        if left.saturating_add(used).saturating_add(bytes) > self.limit_bytes {
            return false;
        }
        state.end_part(old);
        if bytes > 0 {
            state.begin_part(new, bytes);
        }
        true
    }

    fn check_room(&self, state: &State, less: u64, bytes: u64, common: u64) -> Result<(), u64> {
        let parts = state.parts_bytes() - less;
        let needed = parts.saturating_add(bytes).saturating_add(common);
        match needed > self.limit_bytes {
            true => Err(needed),
            false => Ok(()),
        }
    }

    /// Whether no request has memory any more that was reserved since.
    pub fn is_free(&self) -> bool {
        let state = self.state();
        state.used_bytes + state.parts_bytes() <= self.limit_bytes
    }

    /// What the model had for itself is everybody's.
    pub fn release(&self, model: &str) {
        self.state().end_part(model);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Takes more, the model's own first; `false`, and nothing taken, when not so many are left.
    pub fn grow(&mut self, more_bytes: u64) -> bool {
        let mut state = self.pool.state();
        let room = self.pool.limit_bytes.saturating_sub(state.parts_bytes());
        let free_bytes = room.saturating_sub(state.used_bytes);
        let part = self.model.as_ref().and_then(|m| state.parts.get_mut(m));
        // One that came after this was begun is of no use to it.
        let part = part.filter(|part| self.own.is_none_or(|(number, _)| number == part.number));
        let own_bytes = part.as_ref().map_or(0, |part| {
            more_bytes.min(part.bytes.saturating_sub(part.used_bytes))
        });
        let common_bytes = more_bytes - own_bytes;
        if common_bytes > free_bytes {
            return false;
        }
        if let Some(part) = part {
            part.used_bytes += own_bytes;
            let (_, before) = self.own.unwrap_or((part.number, 0));
            self.own = Some((part.number, before + own_bytes));
        }
        state.used_bytes += common_bytes;
        self.common_bytes += common_bytes;
        state.most_bytes = state.most_bytes.max(state.used_bytes());
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.used_bytes -= self.common_bytes;
        if let Some((number, bytes)) = self.own {
            let mut parts = state.parts.values_mut();
            match parts.find(|part| part.number == number) {
                Some(part) => part.used_bytes -= bytes,
                None => state.used_bytes -= bytes,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is() {
        let pool = Pool::new(100);
        let mut first = pool.take(None, 60).unwrap();
        assert!(pool.take(None, 41).is_none());
        let second = pool.take(Some("a"), 40).unwrap();
        assert!(!first.grow(1));
        drop(second);
        assert!(first.grow(40));
        assert!(!first.grow(u64::MAX));
        assert_eq!((pool.used_bytes(), pool.most_bytes()), (100, 100));
        drop(first);
        assert_eq!((pool.used_bytes(), pool.most_bytes()), (0, 100));
    }

    #[test]
    fn what_is_reserved_is_there_when_all_else_is_taken() {
        let pool = Pool::new(100);
        let greedy = pool.take(None, 90).unwrap();
        assert_eq!(pool.reserve("p", 70, 40), Err(110), "too little for all");
        assert_eq!(pool.reserve("p", 30, 40), Ok(()));
        assert!(!pool.is_free());
        assert!(pool.take(None, 1).is_none());
        drop(greedy);
        assert!(pool.is_free());
        let others = pool.take(None, 70).unwrap();
        assert!(pool.take(None, 1).is_none() && pool.take(Some("q"), 1).is_none());
        let mut its = pool.take(Some("p"), 20).unwrap();
        assert!(its.grow(10));
        assert!(!its.grow(1) && pool.take(Some("p"), 1).is_none());
        assert_eq!((pool.used_bytes(), pool.promised_bytes()), (100, 30));
        drop(others);
        // The model may take what is everybody's, too.
        assert!(its.grow(70));
        assert_eq!(
            (pool.most_for(Some("p")), pool.most_for(Some("q"))),
            (100, 70)
        );
        drop(its);
        assert_eq!((pool.used_bytes(), pool.most_bytes()), (0, 100));
    }

    #[test]
    fn a_promise_that_ends_leaves_nothing_behind() {
        let pool = Pool::new(100);
        assert_eq!(pool.reserve("p", 50, 0), Ok(()));
        let mut before = pool.take(Some("p"), 40).unwrap();
        pool.release("p");
        assert_eq!((pool.used_bytes(), pool.promised_bytes()), (40, 0));
        assert_eq!(pool.reserve("p", 30, 0), Ok(()));
        assert!(pool.take(None, 31).is_none());
        // Not of the new part.
        assert!(before.grow(30) && !before.grow(1));
        let after = pool.take(Some("p"), 30).unwrap();
        assert_eq!(pool.used_bytes(), 100);
        drop(before);
        assert_eq!(pool.used_bytes(), 30);
        drop(after);
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn one_model_gets_what_another_had() {
        let pool = Pool::new(100);
        assert_eq!(pool.reserve("p", 50, 30), Ok(()));
        assert_eq!(pool.may_reserve_instead("p", 71, 30), Err(101));
        assert_eq!(pool.may_reserve_instead("p", 70, 30), Ok(()));
        let its = pool.take(Some("p"), 20).unwrap();
        let common = pool.take(None, 11).unwrap();
        assert!(!pool.reserve_instead("p", "q", 70), "31 are in use");
        assert_eq!(pool.promised_bytes(), 50);
        drop(common);
        assert!(pool.reserve_instead("p", "q", 70));
        assert!(pool.take(Some("p"), 11).is_none());
        let all = pool.take(Some("q"), 80).unwrap();
        assert_eq!((pool.used_bytes(), pool.promised_bytes()), (100, 70));
        drop((its, all));
        assert_eq!(pool.used_bytes(), 0);
    }
}
