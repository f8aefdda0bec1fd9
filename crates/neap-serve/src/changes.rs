//! Loads, unloads and changes of the budget: one at a time, in the order in which they came.
//!
//! ```text
//!   load a ─► load b ─► budget ─► unload a        one more than may wait: refused
//!   ^ now     ^ wait in this order
//! ```

use crate::refusal::Refusal;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// How many may wait: each holds a connection and next to no memory.
pub const MOST_WAITING: usize = 16;

/// When it may be worth asking again: a change takes about so long.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Changes {
    /// Whose turn it is; those that wait get it in order.
    one: Mutex<()>,
    waiting: AtomicUsize,
}

/// Counts one that waits, also one whose client goes away meanwhile.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Changes {
    /// Waits for its turn, which ends when the result is dropped.
    ///
    /// # Errors
    /// [`Why::Busy`](crate::refusal::Why::Busy) when as many wait as may.
    pub async fn turn(&self) -> Result<MutexGuard<'_, ()>, Refusal> {
        if let Ok(turn) = self.one.try_lock() {
            return Ok(turn);
        }
        let place = Place(&self.waiting);
        if self.waiting.fetch_add(1, Relaxed) >= MOST_WAITING {
            drop(place);
            let message = format!("{MOST_WAITING} changes of the models wait already");
            return Err(Refusal::busy(message, RETRY_AFTER));
        }
        let turn = self.one.lock().await;
        drop(place);
        Ok(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};

    fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
        future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn those_that_wait_go_in_order() {
        let changes = Changes::default();
        let order = Rc::new(RefCell::new(Vec::new()));
        let change = |name: char| {
            let (changes, order) = (&changes, order.clone());
            async move {
                let turn = changes.turn().await.expect("there is room");
                order.borrow_mut().push(name);
                turn
            }
        };
        let (mut a, mut b, mut c) = (pin!(change('a')), pin!(change('b')), pin!(change('c')));
        let Poll::Ready(first) = poll(&mut a) else {
            panic!("nobody is before it")
        };
        assert!(poll(&mut b).is_pending());
        assert!(poll(&mut c).is_pending());
        drop(first);
        assert!(poll(&mut c).is_pending(), "it is the other's turn");
        let Poll::Ready(second) = poll(&mut b) else {
            panic!("its turn has come")
        };
        drop(second);
        assert!(poll(&mut c).is_ready());
        assert_eq!(*order.borrow(), ['a', 'b', 'c']);
    }

    #[test]
    fn only_a_full_queue_refuses_and_one_that_leaves_makes_room() {
        let changes = Changes::default();
        let mut now = Box::pin(changes.turn());
        let held = poll(&mut now.as_mut());
        let mut waiting: Vec<_> = (0..MOST_WAITING)
            .map(|_| Box::pin(changes.turn()))
            .collect();
        for one in &mut waiting {
            assert!(poll(&mut one.as_mut()).is_pending());
        }
        for _ in 0..2 {
            let mut more = Box::pin(changes.turn());
            let Poll::Ready(Err(refusal)) = poll(&mut more.as_mut()) else {
                panic!("the queue is full")
            };
            assert!(refusal.message.contains("16 changes"), "{refusal:?}");
        }
        // Its client is gone.
        drop(waiting.remove(3));
        let mut late = Box::pin(changes.turn());
        assert!(poll(&mut late.as_mut()).is_pending());
        drop(held);
        for mut one in waiting {
            assert!(matches!(poll(&mut one.as_mut()), Poll::Ready(Ok(_))));
        }
        assert!(matches!(poll(&mut late.as_mut()), Poll::Ready(Ok(_))));
    }
}
