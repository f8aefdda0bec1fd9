//! Who runs next: one at a time, those that wait in the order of their ranks.
//!
//! ```text
//!   waiting   change │ rank 3, asked first │ rank 3, asked second │ rank 7 …
//!   now       one of them, to its end
//! ```

use super::member::lock;
use neap_runtime::CancelToken;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// How often one that waits looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct Turns {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    is_taken: bool,
    next_number: u64,
    waiting: Vec<Place>,
}

/// Ordered: the least goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Changes of plans are short, and go before runs.
    is_run: bool,
    rank: u64,
    number: u64,
}

/// Nobody else has a turn until this is dropped.
pub(super) struct Turn<'a>(&'a Turns);

/// It was cancelled while it waited.
#[derive(Debug)]
pub(super) struct Cancelled;

impl Turns {
    /// Waits for the turn of a run.
    ///
    /// # Errors
    /// [`Cancelled`] when `cancel` asked for that first.
    pub fn of_run(&self, rank: u64, cancel: Option<&CancelToken>) -> Result<Turn<'_>, Cancelled> {
        self.take(true, rank, cancel)
    }

    /// Waits for the turn of a change of plans, which waits for one run at most.
    pub fn of_change(&self) -> Turn<'_> {
        match self.take(false, 0, None) {
            Ok(turn) => turn,
            Err(Cancelled) => unreachable!("nobody can cancel it"),
        }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        lock(&self.queue).waiting.len()
    }

    fn take(
        &self,
        is_run: bool,
        rank: u64,
        cancel: Option<&CancelToken>,
    ) -> Result<Turn<'_>, Cancelled> {
        let mut queue = lock(&self.queue);
        let place = Place {
            is_run,
            rank,
            number: queue.next_number,
        };
        queue.next_number += 1;
        queue.waiting.push(place);
        loop {
            if cancel.is_some_and(CancelToken::is_cancelled) {
                queue.waiting.retain(|&other| other != place);
                // It may have been the one that all wait for.
                self.changed.notify_all();
                return Err(Cancelled);
            }
            if !queue.is_taken && queue.waiting.iter().min() == Some(&place) {
                queue.waiting.retain(|&other| other != place);
                queue.is_taken = true;
                return Ok(Turn(self));
            }
            queue = match cancel {
                None => self.changed.wait(queue).unwrap_or_else(|e| e.into_inner()),
                Some(_) => {
                    let woken = self.changed.wait_timeout(queue, LOOK);
                    woken.unwrap_or_else(|e| e.into_inner()).0
                }
            };
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.queue).is_taken = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Instant;

    fn wait_for(turns: &Turns, waiting: usize) {
        let started = Instant::now();
        while turns.waiting() != waiting {
            assert!(started.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    }

    #[test]
    fn changes_first_then_by_rank_then_by_arrival() {
        let turns = Turns::default();
        let (ended, order) = mpsc::channel();
        std::thread::scope(|scope| {
            let first = turns.of_change();
            let asked = [
                Some((5, 'a')),
                Some((2, 'b')),
                None,
                Some((5, 'c')),
                Some((2, 'd')),
            ];
            for (index, asked) in asked.into_iter().enumerate() {
                let (turns, ended) = (&turns, ended.clone());
                scope.spawn(move || {
                    let (turn, name) = match asked {
                        Some((rank, name)) => (turns.of_run(rank, None), name),
                        None => (Ok(turns.of_change()), '!'),
                    };
                    let turn = turn.expect("nobody cancels it");
                    ended.send(name).expect("is received");
                    drop(turn);
                });
                wait_for(turns, index + 1);
            }
            drop(first);
        });
        drop(ended);
        assert_eq!(order.iter().collect::<String>(), "!bdac");
    }

    #[test]
    fn one_that_is_cancelled_lets_others_go() {
        let turns = Turns::default();
        let token = CancelToken::new();
        std::thread::scope(|scope| {
            let first = turns.of_change();
            let cancelled = scope.spawn(|| turns.of_run(1, Some(&token)).is_err());
            wait_for(&turns, 1);
            let other = scope.spawn(|| turns.of_run(2, None).is_ok());
            wait_for(&turns, 2);
            token.cancel();
            assert!(cancelled.join().expect("ends"));
            drop(first);
            assert!(other.join().expect("ends"));
        });
        assert!(turns.of_run(0, Some(&token)).is_err());
        assert!(turns.of_run(0, None).is_ok());
    }
}
