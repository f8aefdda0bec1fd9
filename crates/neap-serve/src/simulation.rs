//! Random models and clients under virtual time: what the executor does with queue, admission and gaps, without models.
//!
//! Whatever is admitted is simulated with runs as long as they may be. No promised request may be late, wherever others run in
//! gaps: requests without a promise, and promised ones before their release.

use crate::admission::{Admission, Measured, Promise, Share};
use crate::queue::{Batching, Next, Outlook, Queue, Waiting};
use crate::way::InGap;
use neap_realtime::Random;
use std::sync::Arc;
use std::time::Duration;

const MS: u64 = 1_000_000;

/// What admission adds to each measured time for handing over; here runs and steps are really longer by that.
const HAND_OVER_NS: u64 = MS;

#[derive(Debug, Clone)]
struct Actor {
    name: Arc<str>,
    promise: Option<Promise>,
    measured: Measured,
    /// Its clients ask so often on average, and are so much too early or too late.
    every_ns: u64,
    jitter_ns: u64,
    next_ns: u64,
}

#[derive(Debug, Default)]
struct Seen {
    met: u64,
    early: u64,
    ended: u64,
    others: u64,
    /// Runs in gaps that went on beside a promised request.
    went_on: u64,
    refused: u64,
}

struct Simulation {
    actors: Vec<Actor>,
    admission: Admission,
    room_ns: u64,
    queue: Queue<usize>,
    random: Random,
    now_ns: u64,
    seen: Seen,
}

impl Simulation {
    /// `None` for a set that is not admitted.
    fn new(actors: Vec<Actor>, seed: u64) -> Option<Simulation> {
        let admission = Admission::new(0.0);
        for actor in &actors {
            let figures = (Share::default(), actor.measured);
            let admitted = admission.admit(&actor.name, actor.promise, figures, 0, None);
            admitted.ok()?;
        }
        Some(Simulation {
            actors,
            room_ns: admission.room_ns().unwrap_or(u64::MAX),
            admission,
            queue: Queue::new(16),
            random: Random::new(seed, 1),
            now_ns: 0,
            seen: Seen::default(),
        })
    }

    /// All requests that come until now.
    fn arrive(&mut self) {
        for index in 0..self.actors.len() {
            while self.actors[index].next_ns <= self.now_ns {
                let actor = &mut self.actors[index];
                let at_ns = actor.next_ns;
                let late_ns = self.random.below(2 * actor.jitter_ns + 1);
                actor.next_ns += (actor.every_ns + late_ns)
                    .saturating_sub(actor.jitter_ns)
                    .max(1);
                let released = match self.admission.release(&actor.name, at_ns) {
                    Some(Err(_)) => {
                        self.seen.refused += 1;
                        continue;
                    }
                    Some(Ok(released)) => Some(released),
                    None => None,
                };
                // A full queue refuses what has no promise.
                let _ = self.queue.push(Waiting {
                    key: actor.name.clone(),
                    rows: 1,
                    batching: Batching {
                        most_rows: 1,
                        window_ns: 0,
                    },
                    arrived_ns: at_ns,
                    due_ns: released.map_or(u64::MAX, |released| released.due_ns),
                    released_ns: released.map(|released| released.at_ns),
                    was_ended: false,
                    job: index,
                });
            }
        }
    }

    /// One run, or the time until there is something to run.
    fn step(&mut self) {
        self.arrive();
        let (admission, actors, room_ns) = (&self.admission, &self.actors, self.room_ns);
        let next = self.queue.next(self.now_ns, |&job| Outlook {
            run_ns: actors[job].measured.run_ns,
            may_be_early: admission.may_be_early(&actors[job].name, room_ns),
        });
        let coming = self.actors.iter().map(|actor| actor.next_ns).min();
        let coming_ns = coming.unwrap_or(u64::MAX);
        match next {
            Next::Run(mut requests) => self.run(requests.remove(0)),
            Next::Wait(until_ns) => self.now_ns = until_ns.min(coming_ns),
            Next::Empty => self.now_ns = coming_ns,
        }
    }

    fn run(&mut self, request: Waiting<usize>) {
        let actor = self.actors[request.job].clone();
        let began_ns = self.now_ns;
        let run_ns = actor.measured.run_ns + HAND_OVER_NS;
        let step_ns = actor.measured.step_ns + HAND_OVER_NS;
        let is_due = request.released_ns.is_some_and(|at| at <= began_ns);
        let in_gap = (!is_due).then(|| InGap {
            began_ns,
            bound_ns: self.admission.bound_of_run_ns(&actor.name),
            released_ns: request.released_ns,
        });
        let mut left_ns = run_ns;
        // Its first step may be a short one.
        let mut step = self.random.between(1, step_ns);
        while left_ns > step {
            self.now_ns += step;
            left_ns -= step;
            step = step_ns;
            self.arrive();
            let promised_ns = self.queue.promised_ns();
            if let Some(run) = in_gap
                && run.makes_way(self.now_ns, promised_ns, self.room_ns)
            {
                self.seen.ended += 1;
                self.queue.put_back(vec![request], self.now_ns);
                return;
            }
            if in_gap.is_some() && promised_ns <= self.now_ns {
                self.seen.went_on += 1;
            }
        }
        self.now_ns += left_ns;
        match request.released_ns {
            None => self.seen.others += 1,
            Some(at_ns) => {
                let late = self.now_ns.saturating_sub(request.due_ns);
                let all = &self.actors;
                assert_eq!(late, 0, "{} at {} of {all:#?}", actor.name, self.now_ns);
                self.seen.met += 1;
                self.seen.early += u64::from(began_ns < at_ns);
                if self.now_ns < at_ns {
                    self.admission.done_early(&actor.name, at_ns);
                }
            }
        }
    }
}

fn actor(random: &mut Random, index: usize, is_promised: bool) -> Actor {
    let run = random.between(1, if is_promised { 30 } else { 120 });
    let step_ns = random.between(1, run.min(12)) * MS;
    let period = random.between(20, 200);
    let deadline = random.between(run + 1, 2 * period.max(run + 1));
    let promise = is_promised.then(|| Promise {
        period: Duration::from_millis(period),
        deadline: Duration::from_millis(deadline),
    });
    let every_ns = match is_promised {
        true => period * MS,
        false => random.between(1, 60) * MS,
    };
    Actor {
        name: format!("{}{index}", if is_promised { "promised" } else { "other" }).into(),
        promise,
        measured: Measured {
            run_ns: run * MS,
            step_ns,
        },
        every_ns,
        jitter_ns: match random.below(3) {
            0 => 0,
            1 => every_ns / 10,
            _ => every_ns,
        },
        next_ns: random.below(period * MS),
    }
}

#[test]
fn no_promised_request_is_late_whatever_runs_in_gaps() {
    let mut random = Random::new(11, 0);
    let mut all = Seen::default();
    let mut sets = 0;
    for seed in 0..1500 {
        let promised = 1 + random.index(3);
        let others = random.index(3);
        let actors: Vec<Actor> = (0..promised + others)
            .map(|index| actor(&mut random, index, index < promised))
            .collect();
        let Some(mut simulation) = Simulation::new(actors, seed) else {
            continue;
        };
        sets += 1;
        for _ in 0..400 {
            simulation.step();
        }
        let seen = simulation.seen;
        all.met += seen.met;
        all.early += seen.early;
        all.ended += seen.ended;
        all.others += seen.others;
        all.went_on += seen.went_on;
        all.refused += seen.refused;
    }
    let counts = [all.met, all.early, all.ended, all.others, all.went_on];
    assert!(sets > 150, "{sets} sets");
    assert!(counts.iter().all(|&count| count > 1000), "{all:?}");
    assert!(all.refused > 0, "{all:?}");
}

/// A client that is strictly periodic but for one request, alone: the others are answered at once.
#[test]
fn one_late_request_makes_no_other_wait() {
    let period = Duration::from_millis(400);
    let admission = Admission::new(0.5);
    let measured = Measured {
        run_ns: 20 * MS,
        step_ns: 2 * MS,
    };
    let promise = Some(Promise {
        period,
        deadline: period,
    });
    let figures = (Share::default(), measured);
    admission.admit("a", promise, figures, 0, None).unwrap();
    let room_ns = admission.room_ns().unwrap();
    let mut queue = Queue::new(4);
    let mut busy_until_ns = 0;
    for number in 0..60u64 {
        let late_ns = if number == 10 { 360 * MS } else { 0 };
        let arrived_ns = (1 + number) * 400 * MS + late_ns;
        let released = admission.release("a", arrived_ns).unwrap().unwrap();
        let pushed = queue.push(Waiting {
            key: "a".into(),
            rows: 1,
            batching: Batching {
                most_rows: 1,
                window_ns: 0,
            },
            arrived_ns,
            due_ns: released.due_ns,
            released_ns: Some(released.at_ns),
            was_ended: false,
            job: number,
        });
        pushed.unwrap();
        let now_ns = arrived_ns.max(busy_until_ns);
        let next = queue.next(now_ns, |_| Outlook {
            run_ns: 20 * MS,
            may_be_early: admission.may_be_early("a", room_ns),
        });
        let Next::Run(requests) = next else {
            panic!("request {number} waits");
        };
        assert_eq!(requests[0].job, number);
        busy_until_ns = now_ns + 20 * MS;
        if busy_until_ns < released.at_ns {
            admission.done_early("a", released.at_ns);
        }
        if number >= 12 {
            assert_eq!(
                released.at_ns, arrived_ns,
                "request {number} is early still"
            );
        }
    }
}

/// Long runs, for which no gap is long enough, beside a promise that takes a fifth of the time, and short ones: all come to
/// their end.
#[test]
fn runs_without_a_promise_are_not_starved() {
    let other = |name: &str, run: u64, every: u64| Actor {
        name: name.into(),
        promise: None,
        measured: Measured {
            run_ns: run,
            step_ns: run.min(2 * MS),
        },
        every_ns: every,
        jitter_ns: 0,
        next_ns: 0,
    };
    let period = Duration::from_millis(120);
    let promised = Actor {
        promise: Some(Promise {
            period,
            deadline: period,
        }),
        ..other("promised", 24 * MS, 120 * MS)
    };
    let actors = vec![
        promised,
        other("long", 99 * MS, 150 * MS),
        other("short", MS / 100, 500 * MS),
    ];
    let mut simulation = Simulation::new(actors, 1).expect("it is admitted");
    while simulation.now_ns < 45_000 * MS {
        let waiting_since = simulation.queue.oldest_ns(|&job| job == 2);
        let waits_ns = waiting_since.map_or(0, |at| simulation.now_ns.saturating_sub(at));
        assert!(waits_ns < 300 * MS, "a short run waits for {waits_ns} ns");
        simulation.step();
    }
    // 300 long ones and 90 short ones came.
    let seen = simulation.seen;
    assert!(seen.others > 380, "{seen:?}");
}
