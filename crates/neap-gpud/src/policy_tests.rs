//! The policy beside programs that do what they are told, in time that is made up.

use super::*;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
/// Of copies, for a MiB.
const COPY_NS: u64 = 40_000;

#[derive(Clone, Copy, Debug)]
struct Kind {
    period_ms: u64,
    wcet_ms: u64,
    mib: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A job is released.
    Release(usize),
    /// A program says something when it is done with something.
    Done(usize, u64),
    Gone(usize, u64),
    Here(usize),
    Tick,
}

struct Actor {
    kind: Kind,
    id: Id,
    resident: u64,
    away: u64,
    /// Memory that it has not taken yet.
    needs: u64,
    began_ns: Option<u64>,
    /// Released while the last job was not done.
    late: u64,
    ins_since_job: u32,
    counter: u64,
    leaves: bool,
}

struct World {
    policy: Policy,
    actors: Vec<Actor>,
    events: BTreeMap<(u64, u64), Event>,
    now_ns: u64,
    sequence: u64,
    random: u64,
    memory: u64,
}

impl World {
    fn new(memory: u64, slice_ms: u64, kinds: &[Kind], seed: u64) -> World {
        let config = Config {
            memory_bytes: memory,
            quota_bytes: 0,
            slice_ns: slice_ms * MS,
            learn_jobs: 5,
            margin_percent: 20,
            costs: Costs {
                in_ns_per_mib: COPY_NS,
                out_ns_per_mib: COPY_NS,
                hold_ns: 3 * MS,
            },
            stop: false,
        };
        let mut world = World {
            policy: Policy::new(config),
            actors: Vec::new(),
            events: BTreeMap::new(),
            now_ns: 0,
            sequence: 0,
            random: seed,
            memory,
        };
        for (i, &kind) in kinds.iter().enumerate() {
            let hello = Hello {
                version: VERSION,
                card_bytes: memory,
                chunk_bytes: 2 * MIB,
                quota_bytes: kind.mib * MIB,
                period_ns: kind.period_ms * MS,
                wcet_ns: if kind.period_ms > 0 {
                    kind.wcet_ms * MS
                } else {
                    0
                },
                ..Hello::default()
            };
            let id = world.policy.join(&hello, i as u32, 0).unwrap();
            world.actors.push(Actor {
                kind,
                id,
                resident: 0,
                away: 0,
                needs: kind.mib * MIB,
                began_ns: None,
                late: 0,
                ins_since_job: 0,
                counter: 0,
                leaves: false,
            });
            let first_ns = world.below(20 * MS);
            world.at(first_ns, Event::Release(i));
        }
        world.policy.orders();
        world
    }

    fn below(&mut self, most: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.random >> 33) % most.max(1)
    }

    fn at(&mut self, ns: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((ns, self.sequence), event);
    }

    fn hear(&mut self, actor: usize, said: &Say) {
        self.policy.hear(self.actors[actor].id, said, self.now_ns);
        self.obey();
    }

    fn obey(&mut self) {
        loop {
            let orders = self.policy.orders();
            if orders.is_empty() {
                break;
            }
            for (id, order) in orders {
                let actor = self.actors.iter().position(|a| a.id == id).unwrap();
                self.follow(actor, &order);
            }
        }
        let on_card: u64 = self.actors.iter().map(|a| a.resident).sum();
        assert!(
            on_card <= self.memory,
            "{} MiB are on the card",
            on_card / MIB
        );
        let running = self.actors.iter().filter(|a| a.began_ns.is_some());
        assert!(running.count() <= 1, "two run at once");
    }

    fn follow(&mut self, i: usize, order: &Order) {
        let now = self.now_ns;
        match *order {
            Order::Go => {
                let actor = &self.actors[i];
                assert!(
                    actor.away == 0 && !actor.leaves,
                    "a job begins without its memory"
                );
                self.actors[i].began_ns = Some(now);
                match self.actors[i].needs {
                    0 => self.execute(i),
                    bytes => self.policy.hear(
                        self.actors[i].id,
                        &Say::Need {
                            bytes,
                            fixed: false,
                        },
                        now,
                    ),
                }
            }
            Order::Granted => {
                let bytes = std::mem::take(&mut self.actors[i].needs);
                self.actors[i].resident += bytes;
                self.execute(i);
            }
            Order::Out { bytes } => {
                assert_eq!(
                    self.actors[i].began_ns, None,
                    "memory of a job that runs leaves"
                );
                let bytes = bytes.next_multiple_of(2 * MIB).min(self.actors[i].resident);
                self.actors[i].leaves = true;
                let after = 1 + self.below(bytes / MIB * COPY_NS);
                self.at(now + after, Event::Gone(i, bytes));
            }
            Order::In => {
                let bytes = self.actors[i].away;
                self.actors[i].ins_since_job += 1;
                assert!(
                    self.actors[i].ins_since_job <= 1,
                    "memory comes twice for one job"
                );
                let after = 1 + self.below(bytes / MIB * COPY_NS);
                // Counted as soon as it may come.
                self.actors[i].resident += bytes;
                self.at(now + after, Event::Here(i));
            }
            Order::Yield => {
                let after = 1 + self.below(3 * MS - 1);
                let counter = self.actors[i].counter;
                self.at(now + after, Event::Done(i, counter));
            }
            _ => panic!("{order:?}"),
        }
    }

    fn execute(&mut self, i: usize) {
        let kind = self.actors[i].kind;
        let most = match kind.period_ms {
            // Without deadlines, until it must yield.
            0 => 500 * MS,
            _ => kind.wcet_ms * MS,
        };
        let ns = 1 + self.below(most);
        let counter = self.actors[i].counter;
        self.at(self.now_ns + ns, Event::Done(i, counter));
    }

    fn run(&mut self, until_ns: u64) {
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > until_ns {
                break;
            }
            self.now_ns = at;
            match event {
                Event::Release(i) => {
                    let kind = self.actors[i].kind;
                    if kind.period_ms > 0 {
                        let more = self.below(MS);
                        self.at(at + kind.period_ms * MS + more, Event::Release(i));
                    }
                    let state = self.policy.programs()[&self.actors[i].id].state;
                    match state {
                        State::Idle => self.hear(i, &Say::Want { is_job: true }),
                        _ => self.actors[i].late += 1,
                    }
                }
                Event::Done(i, counter) => {
                    if self.actors[i].counter != counter {
                        continue;
                    }
                    let actor = &mut self.actors[i];
                    let ran_ns = at - actor.began_ns.take().unwrap();
                    (actor.counter, actor.ins_since_job) = (actor.counter + 1, 0);
                    self.hear(i, &Say::Done { ran_ns });
                    if self.actors[i].kind.period_ms == 0 {
                        self.at(at + MS, Event::Release(i));
                    }
                }
                Event::Gone(i, bytes) => {
                    self.actors[i].resident -= bytes;
                    self.actors[i].away += bytes;
                    self.actors[i].leaves = false;
                    let ns = bytes / MIB * COPY_NS;
                    self.hear(
                        i,
                        &Say::Gone {
                            bytes,
                            saved: bytes,
                            ns,
                        },
                    );
                }
                Event::Here(i) => {
                    let bytes = std::mem::take(&mut self.actors[i].away);
                    let ns = bytes / MIB * COPY_NS;
                    self.hear(i, &Say::Here { bytes, ns });
                }
                Event::Tick => {
                    self.policy.tick(at);
                    self.obey();
                }
            }
            if let Some(wake_ns) = self.policy.wakes_ns() {
                self.at(wake_ns.max(at + 1), Event::Tick);
            }
        }
    }
}

/// Sets at the edge of what is admitted, beside programs without deadlines: nothing promised is late, memory never comes
/// twice for one job, and never more is on the card than there is.
#[test]
fn what_is_promised_is_kept() {
    let (mut promised, mut swapped) = (0, 0);
    for seed in 0..300 {
        let mut world = World::new(512 * MIB, 20, &[], seed);
        let count = 2 + world.below(4) as usize;
        let mut kinds = Vec::new();
        for _ in 0..count {
            kinds.push(Kind {
                period_ms: 60 + world.below(300),
                wcet_ms: 1 + world.below(15),
                mib: 2 * (10 + world.below(110)),
            });
        }
        for _ in 0..world.below(3) {
            kinds.push(Kind {
                period_ms: 0,
                wcet_ms: 0,
                mib: 2 * (10 + world.below(60)),
            });
        }
        let mut world = World::new(512 * MIB, 20, &kinds, seed);
        // What cannot be granted beside promises is another test's affair.
        let all = world
            .policy
            .programs()
            .values()
            .filter(|p| p.period_ns > 0)
            .all(Program::is_promised);
        let largest = kinds
            .iter()
            .filter(|k| k.period_ms == 0)
            .map(|k| k.mib)
            .max()
            .unwrap_or(0);
        let always: u64 = kinds
            .iter()
            .zip(world.policy.programs().values())
            .filter(|(k, _)| k.period_ms > 0)
            .map(|(k, p)| match p.promise {
                Promise::Kept { volume_bytes, .. } => k.mib - volume_bytes / MIB,
                _ => k.mib,
            })
            .sum();
        if !all || always + largest > 512 {
            continue;
        }
        world.run(4000 * MS);
        promised += 1;
        for (actor, program) in world.actors.iter().zip(world.policy.programs().values()) {
            assert_eq!(program.counts.misses, 0, "seed {seed}: {kinds:?}");
            assert!(
                program.counts.turns > 0,
                "seed {seed}: {:?} never ran",
                actor.kind
            );
            swapped += u64::from(program.counts.in_bytes > 0);
        }
    }
    assert!(
        promised > 30 && swapped > 30,
        "{promised} sets, {swapped} programs swapped"
    );
}

#[test]
fn programs_without_deadlines_take_turns() {
    let kind = Kind {
        period_ms: 0,
        wcet_ms: 0,
        mib: 300,
    };
    let mut world = World::new(512 * MIB, 20, &[kind; 4], 1);
    world.run(10_000 * MS);
    let turns: Vec<u64> = world
        .policy
        .programs()
        .values()
        .map(|p| p.counts.turns)
        .collect();
    let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
    assert!(*least > 20 && most - least <= 1, "{turns:?}");
}

#[test]
fn more_than_there_is_is_denied() {
    let mut policy = World::new(64 * MIB, 20, &[], 1).policy;
    let hello = Hello {
        version: VERSION,
        quota_bytes: 32 * MIB,
        chunk_bytes: 2 * MIB,
        ..Hello::default()
    };
    let id = policy.join(&hello, 1, 0).unwrap();
    let mut say = |said| {
        policy.hear(id, &said, 0);
        policy
            .orders()
            .into_iter()
            .map(|(_, order)| order)
            .collect::<Vec<_>>()
    };
    say(Say::Want { is_job: true });
    let need = |bytes| Say::Need {
        bytes,
        fixed: false,
    };
    assert_eq!(say(need(20 * MIB)), [Order::Granted]);
    assert_eq!(say(need(20 * MIB)), [Order::Denied]);
    assert_eq!(say(need(12 * MIB)), [Order::Granted]);
    say(Say::Gave {
        bytes: 32 * MIB,
        fixed: false,
    });
    assert_eq!(say(need(32 * MIB)), [Order::Granted]);
}

#[test]
fn memory_of_who_is_gone_is_free() {
    let mut policy = World::new(64 * MIB, 20, &[], 1).policy;
    let hello = Hello {
        version: VERSION,
        ..Hello::default()
    };
    let first = policy.join(&hello, 1, 0).unwrap();
    let second = policy.join(&hello, 2, 0).unwrap();
    let need = Say::Need {
        bytes: 40 * MIB,
        fixed: false,
    };
    policy.hear(first, &Say::Want { is_job: true }, 0);
    policy.hear(first, &need, 0);
    policy.hear(first, &Say::Done { ran_ns: 1 }, 0);
    policy.hear(second, &Say::Want { is_job: true }, 0);
    policy.orders();
    policy.hear(second, &need, 0);
    assert_eq!(policy.orders(), [(first, Order::Out { bytes: 16 * MIB })]);
    // It is killed in the middle of its copy.
    policy.leave(first, 1);
    assert_eq!(policy.orders(), [(second, Order::Granted)]);
}

/// A program that paces itself begins a job a moment early: that is the next period's job, and not late.
#[test]
fn a_job_before_its_time_is_the_next_periods() {
    let mut policy = World::new(64 * MIB, 20, &[], 1).policy;
    let hello = Hello {
        version: VERSION,
        quota_bytes: 8 * MIB,
        chunk_bytes: 2 * MIB,
        period_ns: 100 * MS,
        wcet_ns: 10 * MS,
        ..Hello::default()
    };
    let id = policy.join(&hello, 1, 0).unwrap();
    for job in 0..10 {
        let now = job * 99 * MS;
        policy.hear(id, &Say::Want { is_job: true }, now);
        policy.hear(id, &Say::Done { ran_ns: 5 * MS }, now + 5 * MS);
    }
    let counts = &policy.programs()[&id].counts;
    assert_eq!((counts.jobs, counts.misses, counts.overruns), (10, 0, 0));
}

/// What a program does before its first job is not measured for a promise.
#[test]
fn only_jobs_are_measured() {
    let mut policy = World::new(64 * MIB, 20, &[], 1).policy;
    let hello = Hello {
        version: VERSION,
        chunk_bytes: 2 * MIB,
        period_ns: 100 * MS,
        ..Hello::default()
    };
    let id = policy.join(&hello, 1, 0).unwrap();
    for turn in 0..40 {
        let is_job = turn >= 20;
        let ran_ns = if is_job { 5 * MS } else { 60 * MS };
        let now = turn * 100 * MS;
        policy.hear(id, &Say::Want { is_job }, now);
        policy.hear(id, &Say::Done { ran_ns }, now + ran_ns);
    }
    let promise = policy.programs()[&id].promise.clone();
    assert!(
        matches!(promise, Promise::Kept { wcet_ns, .. } if wcet_ns == 6 * MS),
        "{promise:?}"
    );
}
