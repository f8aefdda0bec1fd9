//! The memory that requests may take together: bodies, tensors, answers.
//!
//! Whoever needs bytes takes them first, and gives them back by dropping what it [`Held`]. Nobody waits: where there is
//! not enough, the request is refused at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// So many bytes, and how many are taken.
#[derive(Debug)]
pub struct Pool {
    limit_bytes: u64,
    used_bytes: AtomicU64,
    most_bytes: AtomicU64,
}

/// Bytes of a [`Pool`] until this is dropped.
#[derive(Debug)]
pub struct Held {
    pool: Arc<Pool>,
    bytes: u64,
}

impl Pool {
    pub fn new(limit_bytes: u64) -> Arc<Pool> {
        Arc::new(Pool {
            limit_bytes,
            used_bytes: AtomicU64::new(0),
            most_bytes: AtomicU64::new(0),
        })
    }

    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// The most that was ever taken at once.
    pub fn most_bytes(&self) -> u64 {
        self.most_bytes.load(Relaxed)
    }

    /// `None` when not so many are left.
    pub fn take(self: &Arc<Pool>, bytes: u64) -> Option<Held> {
        let mut held = Held {
            pool: self.clone(),
            bytes: 0,
        };
        held.grow(bytes).then_some(held)
    }
}

impl Held {
    /// Takes more; `false`, and nothing taken, when not so many are left.
    pub fn grow(&mut self, more_bytes: u64) -> bool {
        let pool = &self.pool;
        let grown = pool.used_bytes.fetch_update(Relaxed, Relaxed, |used| {
            used.checked_add(more_bytes)
                .filter(|&sum| sum <= pool.limit_bytes)
        });
        let Ok(before) = grown else {
            return false;
        };
        pool.most_bytes.fetch_max(before + more_bytes, Relaxed);
        self.bytes += more_bytes;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pool.used_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is() {
        let pool = Pool::new(100);
        let mut first = pool.take(60).unwrap();
        assert!(pool.take(41).is_none());
        let second = pool.take(40).unwrap();
        assert!(!first.grow(1));
        drop(second);
        assert!(first.grow(40));
        assert!(!first.grow(u64::MAX));
        assert_eq!((pool.used_bytes(), pool.most_bytes()), (100, 100));
        drop(first);
        assert_eq!((pool.used_bytes(), pool.most_bytes()), (0, 100));
    }
}
