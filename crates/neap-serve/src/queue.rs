//! Which requests run next: the one whose deadline comes first, together with those that can share its run.
//!
//! ```text
//!   promised  by deadline, each from its release on, before all others; one at a time
//!   order     by deadline; those without one come after all that have one, in the order in which they came
//!   batch     the first, and others of the same model and shapes, up to the model's most rows
//!   waiting   where the batch is not full, the first waits for others until its window is over, unless another
//!             model has something to run
//! ```
//! Times are nanoseconds of any one clock. Nothing here looks at a clock.

use std::sync::Arc;

/// How requests for one model may run together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// Rows of one run, at most.
    pub most_rows: usize,
    /// For how long the first request of a batch waits for others.
    pub window_ns: u64,
}

/// A request that waits.
#[derive(Debug)]
pub struct Waiting<T> {
    /// Requests with equal keys can share a run: same model, same shapes but for rows.
    pub key: Arc<str>,
    pub rows: usize,
    pub batching: Batching,
    pub arrived_ns: u64,
    /// `u64::MAX` without a deadline.
    pub due_ns: u64,
    /// Of a request whose deadline is promised: it runs from now on, before all that are not.
    pub released_ns: Option<u64>,
    pub job: T,
}

/// What is to be done now.
#[derive(Debug)]
pub enum Next<T> {
    /// These run together; there is one at least.
    Run(Vec<Waiting<T>>),
    /// Look again at this time, or when something is added.
    Wait(u64),
    Empty,
}

/// At most so many requests that wait.
#[derive(Debug)]
pub struct Queue<T> {
    /// In the order in which they came.
    waiting: Vec<Waiting<T>>,
    capacity: usize,
}

impl<T> Queue<T> {
    pub fn new(capacity: usize) -> Queue<T> {
        Queue {
            waiting: Vec::new(),
            capacity,
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Promised requests have their place: how many wait is bounded by their periods.
    ///
    /// # Errors
    /// The request, when as many wait already as may.
    pub fn push(&mut self, request: Waiting<T>) -> Result<(), T> {
        if request.released_ns.is_none() && self.waiting.len() >= self.capacity {
            return Err(request.job);
        }
        self.waiting.push(request);
        Ok(())
    }

    /// Puts requests back whose run was ended early: before those that came after them.
    pub fn put_back(&mut self, requests: Vec<Waiting<T>>) {
        for request in requests {
            let at =
                (self.waiting).partition_point(|waiting| waiting.arrived_ns <= request.arrived_ns);
            self.waiting.insert(at, request);
        }
    }

    /// When the next promised request runs, at the earliest; `u64::MAX` when none waits.
    pub fn promised_ns(&self) -> u64 {
        let releases = self
            .waiting
            .iter()
            .filter_map(|waiting| waiting.released_ns);
        releases.min().unwrap_or(u64::MAX)
    }

    /// Takes what runs next.
    pub fn next(&mut self, now_ns: u64) -> Next<T> {
        let released = (0..self.waiting.len())
            .filter(|&i| self.waiting[i].released_ns.is_some_and(|at| at <= now_ns));
        if let Some(first) = released.min_by_key(|&i| self.waiting[i].due_ns) {
            return Next::Run(self.take(vec![first]));
        }
        // Stable, so that equal deadlines keep their order.
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        order.retain(|&index| self.waiting[index].released_ns.is_none());
        order.sort_by_key(|&index| self.waiting[index].due_ns);
        let mut again_ns = Some(self.promised_ns()).filter(|&at| at < u64::MAX);
        let mut seen: Vec<&str> = Vec::new();
        for &first in &order {
            let head = &self.waiting[first];
            if seen.contains(&&*head.key) {
                continue;
            }
            seen.push(&head.key);
            let batch = self.batch(first, &order);
            let rows: usize = batch.iter().map(|&i| self.waiting[i].rows).sum();
            // The oldest of a batch has waited longest.
            let oldest = batch.iter().map(|&i| self.waiting[i].arrived_ns).min();
            let until_ns = oldest.unwrap_or(0).saturating_add(head.batching.window_ns);
            if rows < head.batching.most_rows && now_ns < until_ns {
                again_ns = Some(again_ns.map_or(until_ns, |t| t.min(until_ns)));
                continue;
            }
            return Next::Run(self.take(batch));
        }
        again_ns.map_or(Next::Empty, Next::Wait)
    }

    /// Whether a request waits that is meant.
    pub fn has(&self, mut is_meant: impl FnMut(&T) -> bool) -> bool {
        self.waiting.iter().any(|waiting| is_meant(&waiting.job))
    }

    /// The request at `first`, and those that share its run.
    fn batch(&self, first: usize, order: &[usize]) -> Vec<usize> {
        let head = &self.waiting[first];
        let mut rows = head.rows;
        let mut batch = vec![first];
        let others = order.iter().copied().filter(|&i| i != first);
        for other in others.filter(|&i| self.waiting[i].key == head.key) {
            let more = self.waiting[other].rows;
            if rows + more <= head.batching.most_rows {
                rows += more;
                batch.push(other);
            }
        }
        batch
    }

    fn take(&mut self, mut indices: Vec<usize>) -> Vec<Waiting<T>> {
        let places = indices.clone();
        indices.sort_unstable();
        let mut taken: Vec<(usize, Waiting<T>)> = Vec::with_capacity(indices.len());
        for &index in indices.iter().rev() {
            taken.push((index, self.waiting.remove(index)));
        }
        let place = |index: usize| places.iter().position(|&i| i == index);
        taken.sort_by_key(|&(index, _)| place(index));
        taken.into_iter().map(|(_, job)| job).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEVER: u64 = u64::MAX;

    fn waiting(key: &str, job: u32, due_ns: u64, batching: (usize, u64)) -> Waiting<u32> {
        Waiting {
            key: key.into(),
            rows: 1,
            batching: Batching {
                most_rows: batching.0,
                window_ns: batching.1,
            },
            arrived_ns: u64::from(job),
            due_ns,
            released_ns: None,
            job,
        }
    }

    /// Jobs that run now, and when to look again.
    fn next(queue: &mut Queue<u32>, now_ns: u64) -> (Vec<u32>, Option<u64>) {
        match queue.next(now_ns) {
            Next::Run(requests) => (requests.iter().map(|r| r.job).collect(), None),
            Next::Wait(until_ns) => (Vec::new(), Some(until_ns)),
            Next::Empty => (Vec::new(), None),
        }
    }

    fn queue(requests: impl IntoIterator<Item = Waiting<u32>>) -> Queue<u32> {
        let mut queue = Queue::new(100);
        for request in requests {
            queue.push(request).unwrap();
        }
        queue
    }

    #[test]
    fn first_come_first_served_but_for_deadlines() {
        let mut queue = queue([
            waiting("a", 1, NEVER, (1, 0)),
            waiting("b", 2, NEVER, (1, 0)),
            waiting("c", 3, 900, (1, 0)),
            waiting("d", 4, 800, (1, 0)),
            waiting("a", 5, NEVER, (1, 0)),
        ]);
        for job in [4, 3, 1, 2, 5] {
            assert_eq!(next(&mut queue, 10), (vec![job], None));
        }
        assert_eq!(next(&mut queue, 10), (vec![], None));
    }

    #[test]
    fn a_full_queue_takes_no_more() {
        let mut queue = Queue::new(1);
        assert!(queue.push(waiting("a", 1, NEVER, (1, 0))).is_ok());
        assert_eq!(queue.push(waiting("a", 2, NEVER, (1, 0))), Err(2));
    }

    #[test]
    fn those_that_wait_run_together() {
        let one = |job| waiting("a", job, NEVER, (3, 0));
        let mut queue = queue([
            one(1),
            waiting("b", 2, NEVER, (3, 0)),
            one(3),
            one(4),
            one(5),
        ]);
        assert_eq!(next(&mut queue, 10), (vec![1, 3, 4], None));
        assert_eq!(next(&mut queue, 10), (vec![2], None));
        assert_eq!(next(&mut queue, 10), (vec![5], None));
    }

    #[test]
    fn a_request_of_many_rows_leaves_room_for_few() {
        let mut big = waiting("a", 1, NEVER, (4, 0));
        big.rows = 3;
        let mut bigger = waiting("a", 2, NEVER, (4, 0));
        bigger.rows = 2;
        let mut queue = queue([big, bigger, waiting("a", 3, NEVER, (4, 0))]);
        assert_eq!(next(&mut queue, 10), (vec![1, 3], None));
        assert_eq!(next(&mut queue, 10), (vec![2], None));
    }

    #[test]
    fn a_batch_is_waited_for_within_its_window() {
        let one = |job| waiting("a", job, NEVER, (2, 50));
        let mut queue = queue([one(1)]);
        assert_eq!(next(&mut queue, 20), (vec![], Some(51)));
        queue.push(waiting("b", 2, NEVER, (1, 0))).unwrap();
        // Others do not wait for it.
        assert_eq!(next(&mut queue, 20), (vec![2], None));
        queue.push(one(3)).unwrap();
        assert_eq!(next(&mut queue, 20), (vec![1, 3], None));
        queue.push(one(4)).unwrap();
        assert_eq!(next(&mut queue, 53), (vec![], Some(54)));
        assert_eq!(next(&mut queue, 54), (vec![4], None));
    }

    #[test]
    fn promised_requests_go_first_from_their_release_on() {
        let promised = |job, released_ns, due_ns| Waiting {
            released_ns: Some(released_ns),
            ..waiting("p", job, due_ns, (1, 0))
        };
        let mut queue = queue([
            waiting("a", 1, 5, (1, 0)),
            promised(2, 10, 90),
            promised(3, 10, 80),
            promised(4, 60, 70),
        ]);
        assert_eq!(queue.promised_ns(), 10);
        assert_eq!(next(&mut queue, 12), (vec![3], None));
        assert_eq!(next(&mut queue, 12), (vec![2], None));
        assert_eq!(next(&mut queue, 12), (vec![1], None));
        assert_eq!(next(&mut queue, 12), (vec![], Some(60)));
        assert_eq!(next(&mut queue, 60), (vec![4], None));
        assert_eq!(queue.promised_ns(), u64::MAX);
        // A full queue has room for them.
        let mut full = Queue::new(0);
        assert_eq!(full.push(waiting("a", 1, NEVER, (1, 0))), Err(1));
        assert_eq!(full.push(promised(2, 0, 9)), Ok(()));
    }

    #[test]
    fn what_was_put_back_keeps_its_place() {
        let one = |job| waiting("a", job, NEVER, (2, 0));
        let mut queue = queue([one(1), one(3), one(4)]);
        let Next::Run(first) = queue.next(10) else {
            panic!("nothing runs");
        };
        queue.push(one(6)).unwrap();
        queue.put_back(first);
        assert_eq!(next(&mut queue, 10), (vec![1, 3], None));
        assert_eq!(next(&mut queue, 10), (vec![4, 6], None));
    }

    proptest! {
        /// Every request runs once, none later than its window, in batches of one key that are never too large.
        #[test]
        fn everything_runs_once(
            requests in prop::collection::vec((0usize..3, 1usize..4, 0u64..5, any::<bool>()), 1..40)
        ) {
            let mut queue = Queue::new(100);
            for (job, &(key, rows, due, has_deadline)) in requests.iter().enumerate() {
                let request = Waiting {
                    key: ["a", "b", "c"][key].into(),
                    rows,
                    batching: Batching { most_rows: 4, window_ns: 7 },
                    arrived_ns: job as u64,
                    due_ns: if has_deadline { due } else { NEVER },
                    released_ns: None,
                    job,
                };
                queue.push(request).unwrap();
            }
            let mut ran = Vec::new();
            let mut now = 0;
            loop {
                match queue.next(now) {
                    Next::Run(batch) => {
                        let batch: Vec<usize> = batch.into_iter().map(|r| r.job).collect();
                        let rows: usize = batch.iter().map(|&j| requests[j].1).sum();
                        prop_assert!(rows <= 4);
                        prop_assert!(batch.iter().all(|&j| requests[j].0 == requests[batch[0]].0));
                        ran.extend(batch);
                    }
                    Next::Wait(until) => {
                        prop_assert!(until > now && until <= 40 + 7);
                        now = until;
                    }
                    Next::Empty => break,
                }
            }
            ran.sort_unstable();
            prop_assert_eq!(ran, (0..requests.len()).collect::<Vec<_>>());
        }
    }
}
