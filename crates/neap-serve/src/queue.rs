//! Which requests run next: the one whose turn comes first, together with those that can share its run.
//!
//! ```text
//!   promised  by deadline, each from its release on, before all others; one at a time
//!   gaps      all others, and promised requests before their release if they keep nobody waiting
//!   order     in gaps by turn: the deadline, or a second after a request came and some times its run, if that is earlier.
//!             So short runs pass long ones, and nothing is passed for ever
//!   ended     a run that was ended early counts as come then, with all that wait for the same model: others that are
//!             shorter go first
//!   batch     the first, and others of the same model and shapes, up to the model's most rows
//!   waiting   where the batch is not full, the first waits for others until its window is over, unless another
//!             model has something to run
//! ```
//! Times are nanoseconds of any one clock. Nothing here looks at a clock.

use std::collections::BTreeMap;
use std::sync::Arc;

/// So long after it came a request goes before those that come then and have deadlines, however far away these are.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Those that come within so many times the length of a request's run go before it, if their own runs are next to nothing.
const AGEING: u64 = 8;

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
    /// Of a request whose deadline is promised: from then on it runs before all that are not.
    pub released_ns: Option<u64>,
    /// Its run was ended early: a promised one waits for its release then.
    pub was_ended: bool,
    pub job: T,
}

/// What is known of a request when the next one is chosen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outlook {
    /// How long its run is taken to be.
    pub run_ns: u64,
    /// It may begin before it is released.
    pub may_be_early: bool,
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
    /// When a run with that key was ended early, if none began since.
    ended_ns: BTreeMap<Arc<str>, u64>,
    capacity: usize,
}

impl<T> Queue<T> {
    pub fn new(capacity: usize) -> Queue<T> {
        Queue {
            waiting: Vec::new(),
            ended_ns: BTreeMap::new(),
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

    /// Puts requests back whose run was ended early.
    pub fn put_back(&mut self, requests: Vec<Waiting<T>>, now_ns: u64) {
        for mut request in requests {
            request.was_ended = true;
            self.ended_ns.insert(request.key.clone(), now_ns);
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
    pub fn next(&mut self, now_ns: u64, outlook: impl Fn(&T) -> Outlook) -> Next<T> {
        let released = (0..self.waiting.len())
            .filter(|&i| self.waiting[i].released_ns.is_some_and(|at| at <= now_ns));
        if let Some(first) = released.min_by_key(|&i| self.waiting[i].due_ns) {
            return Next::Run(self.take(vec![first]));
        }
        let order = self.order(outlook);
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

    /// Those that may run in a gap, in order.
    fn order(&self, outlook: impl Fn(&T) -> Outlook) -> Vec<usize> {
        let turns = self.waiting.iter().enumerate().filter_map(|(index, w)| {
            let outlook = outlook(&w.job);
            if w.released_ns.is_some() && (w.was_ended || !outlook.may_be_early) {
                return None;
            }
            let ended_ns = self.ended_ns.get(&w.key).copied().unwrap_or(0);
            let age_ns = PATIENCE_NS.saturating_add(outlook.run_ns.saturating_mul(AGEING));
            let turn_ns = w.arrived_ns.max(ended_ns).saturating_add(age_ns);
            // What comes first goes first where all else is equal.
            Some((turn_ns.min(w.due_ns), index))
        });
        let mut turns: Vec<(u64, usize)> = turns.collect();
        turns.sort_unstable();
        turns.into_iter().map(|(_, index)| index).collect()
    }

    /// Whether a request waits that is meant.
    pub fn has(&self, mut is_meant: impl FnMut(&T) -> bool) -> bool {
        self.waiting.iter().any(|waiting| is_meant(&waiting.job))
    }

    /// When the first that is meant came.
    #[cfg(test)]
    pub fn oldest_ns(&self, mut is_meant: impl FnMut(&T) -> bool) -> Option<u64> {
        let meant = self.waiting.iter().filter(|w| is_meant(&w.job));
        meant.map(|w| w.arrived_ns).min()
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
        for (_, request) in &taken {
            self.ended_ns.remove(&request.key);
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
            was_ended: false,
            job,
        }
    }

    fn unknown<T>(_: &T) -> Outlook {
        Outlook::default()
    }

    /// Jobs that run now, and when to look again.
    fn next(queue: &mut Queue<u32>, now_ns: u64) -> (Vec<u32>, Option<u64>) {
        match queue.next(now_ns, unknown) {
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
        let Next::Run(first) = queue.next(10, unknown) else {
            panic!("nothing runs");
        };
        queue.push(one(6)).unwrap();
        queue.put_back(first, 10);
        assert_eq!(next(&mut queue, 10), (vec![1, 3], None));
        assert_eq!(next(&mut queue, 10), (vec![4, 6], None));
    }

    /// What runs next when a run of job `j` takes `runs[j]`, and promised ones may be early.
    fn next_of(queue: &mut Queue<u32>, now_ns: u64, runs: &[u64]) -> Vec<Waiting<u32>> {
        let outlook = |&job: &u32| Outlook {
            run_ns: runs[job as usize],
            may_be_early: true,
        };
        match queue.next(now_ns, outlook) {
            Next::Run(requests) => requests,
            _ => Vec::new(),
        }
    }

    #[test]
    fn short_runs_pass_long_ones_for_a_while() {
        const MS: u64 = 1_000_000;
        let at = |key: &str, job: u32, arrived_ms: u64| Waiting {
            arrived_ns: arrived_ms * MS,
            ..waiting(key, job, NEVER, (1, 0))
        };
        let runs = [100 * MS, MS / 100, MS / 100, MS / 100];
        let mut queue = queue([at("long", 0, 0), at("short", 1, 1), at("short", 2, 799)]);
        let job = |requests: Vec<Waiting<u32>>| requests.first().map(|r| r.job);
        assert_eq!(job(next_of(&mut queue, 800 * MS, &runs)), Some(1));
        assert_eq!(job(next_of(&mut queue, 800 * MS, &runs)), Some(2));
        // One that comes later than eight times the long run does not pass it.
        queue.push(at("short", 3, 801)).unwrap();
        let long = next_of(&mut queue, 802 * MS, &runs);
        assert_eq!(long[0].job, 0);
        // It made way: it counts as come now, and the short one goes first.
        queue.put_back(long, 820 * MS);
        assert_eq!(job(next_of(&mut queue, 830 * MS, &runs)), Some(3));
        queue.push(at("short", 1, 1621)).unwrap();
        assert_eq!(job(next_of(&mut queue, 1700 * MS, &runs)), Some(0));
        assert_eq!(job(next_of(&mut queue, 1700 * MS, &runs)), Some(1));
    }

    #[test]
    fn what_has_no_deadline_is_not_passed_for_ever() {
        let mut queue = queue([waiting("a", 1, NEVER, (1, 0))]);
        for second in 0..3 {
            let now = second * PATIENCE_NS;
            let due = now + PATIENCE_NS / 2;
            queue.push(waiting("b", 2, due, (1, 0))).unwrap();
            let ran = next(&mut queue, now).0;
            assert_eq!(ran, vec![if second == 1 { 1 } else { 2 }], "{second}");
        }
    }

    #[test]
    fn promised_requests_run_in_gaps_once_before_their_release() {
        let promised = |job, released_ns, due_ns| Waiting {
            released_ns: Some(released_ns),
            ..waiting("p", job, due_ns, (1, 0))
        };
        let mut queue = queue([promised(1, 500, 900), promised(2, 1000, 1400)]);
        let runs = [1; 3];
        let early = next_of(&mut queue, 20, &runs);
        assert_eq!(early[0].job, 1);
        // It made way, and keeps its release and its deadline.
        queue.put_back(early, 30);
        assert_eq!(queue.promised_ns(), 500);
        assert_eq!(next_of(&mut queue, 40, &runs)[0].job, 2);
        assert!(next_of(&mut queue, 499, &runs).is_empty());
        assert_eq!(next_of(&mut queue, 500, &runs)[0].job, 1);
        // Those that would keep others waiting are not early.
        queue.push(promised(1, 500, 900)).unwrap();
        assert_eq!(next(&mut queue, 499), (vec![], Some(500)));
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
                    was_ended: false,
                    job,
                };
                queue.push(request).unwrap();
            }
            let mut ran = Vec::new();
            let mut now = 0;
            loop {
                match queue.next(now, unknown) {
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
