//! A discrete-event simulation of the policies, in whole nanoseconds.
//!
//! ```text
//!   copy engine       | out v | in y |        | out … |       one operation at a time, never interrupted
//!   processor         |  x executes  |  y executes  |         x: resident;  y: fetched beside x
//!   queue, by deadline   y, z           z
//! ```
//! - Jobs wait in one queue by deadline. Its head is executed when the processor is free and the head's memory is there.
//! - Only for the head, and also while another job executes, what is missing is fetched: first victims' memory goes, the
//!   victim with the latest next release first; then the head's comes. From the beginning of its swap-in to the end of its
//!   execution nothing else is begun on the processor, and nothing is fetched until it executes (RT-Swap, Section V-C).
//! - With steps, a job that executes gives way at the end of each step to a job with an earlier deadline, and takes its resume
//!   time longer when it goes on.

use crate::random::Random;
use crate::task::System;

/// One task as it is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    pub period_ns: u64,
    pub deadline_ns: u64,
    pub wcet_ns: u64,
    /// The longest part of the execution that is not interrupted; the whole of it where nothing ever is.
    pub step_ns: u64,
    /// What an interruption adds to the execution.
    pub resume_ns: u64,
    /// Chunks that may leave memory between jobs.
    pub volume_chunks: u64,
}

/// What is simulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scene {
    pub actors: Vec<Actor>,
    /// Memory for all volumes together.
    pub shared_chunks: u64,
    pub in_ns: u64,
    pub out_ns: u64,
    /// How many fetched jobs may wait for the processor at a time. The policy's proof needs 1; more shows why.
    pub ahead: usize,
}

impl Scene {
    /// A system under the paper's policy with these volumes, which must fit ([`System::volumes_fit`]).
    pub fn of_swapping(system: &System, volumes: &[u64]) -> Scene {
        let fixed: u64 = (0..system.tasks.len())
            .map(|i| system.footprint_chunks(i) - volumes[i])
            .sum();
        let actors = system.tasks.iter().zip(volumes).map(|(t, &v)| Actor {
            period_ns: t.period_ns,
            deadline_ns: t.deadline_ns,
            wcet_ns: t.wcet_ns,
            step_ns: t.wcet_ns,
            resume_ns: 0,
            volume_chunks: v,
        });
        Scene {
            actors: actors.collect(),
            shared_chunks: system.memory_chunks() - fixed,
            in_ns: system.cost.in_ns,
            out_ns: system.cost.out_ns,
            ahead: 1,
        }
    }

    /// Tasks that need nothing but the processor.
    pub fn of_actors(actors: Vec<Actor>) -> Scene {
        Scene {
            actors,
            shared_chunks: 0,
            in_ns: 0,
            out_ns: 0,
            ahead: 1,
        }
    }
}

/// What is left open by the model: the adversary's choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices {
    /// First releases.
    pub phases_ns: Vec<u64>,
    /// Resident chunks at the beginning; together at most what is shared.
    pub resident_chunks: Vec<u64>,
    /// Of jobs with the same deadline the one with the smaller rank goes first.
    pub ranks: Vec<usize>,
    /// Jobs take between this many per cent of their longest time and all of it.
    pub execution_percent: u64,
    /// Transfers take between this many per cent of their longest time and all of it.
    pub transfer_percent: u64,
    /// Releases are up to so many per cent of a period later than they could be, each time.
    pub sporadic_percent: u64,
    /// No job is released from here on.
    pub until_ns: u64,
    pub seed: u64,
}

impl Choices {
    /// All at once, all times longest, everything that fits resident.
    pub fn synchronous(scene: &Scene, until_ns: u64) -> Choices {
        let mut free = scene.shared_chunks;
        let resident = scene.actors.iter().map(|a| {
            let chunks = a.volume_chunks.min(free);
            free -= chunks;
            chunks
        });
        Choices {
            resident_chunks: resident.collect(),
            phases_ns: vec![0; scene.actors.len()],
            ranks: (0..scene.actors.len()).collect(),
            execution_percent: 100,
            transfer_percent: 100,
            sporadic_percent: 0,
            until_ns,
            seed: 0,
        }
    }
}

/// A lane of the Gantt picture, and what is done on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Execute,
    SwapIn,
    SwapOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub doing: Doing,
    pub task: usize,
    pub start_ns: u64,
    pub end_ns: u64,
}

/// A job that was late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    pub task: usize,
    pub release_ns: u64,
    pub completion_ns: u64,
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub jobs: u64,
    pub misses: u64,
    pub first_miss: Option<Miss>,
    /// Longest from release to completion, by task.
    pub response_ns: Vec<u64>,
    /// The least time that was left to any deadline; 0 when one was missed.
    pub least_slack_ns: u64,
    pub moved_chunks: u64,
}

#[derive(Clone, Copy)]
struct Job {
    task: usize,
    release_ns: u64,
    deadline_ns: u64,
    left_ns: u64,
}

#[derive(Clone, Copy)]
enum Copying {
    In,
    Out { chunks: u64 },
}

struct Engine<'a> {
    scene: &'a Scene,
    choices: &'a Choices,
    random: Random,
    now_ns: u64,
    next_release_ns: Vec<u64>,
    queue: Vec<Job>,
    executing: Option<(Job, u64, u64)>,
    /// Fetched or being fetched, in the order in which they will execute.
    committed: Vec<Job>,
    /// How many of `committed` are in memory.
    ready: usize,
    copying: Option<(Copying, usize, u64, u64)>,
    resident: Vec<u64>,
    free: u64,
    outcome: Outcome,
    /// Spans are recorded while there is room.
    spans: Vec<Span>,
    most_spans: usize,
}

/// Plays the choices through.
pub fn simulate(scene: &Scene, choices: &Choices) -> Outcome {
    simulate_with_spans(scene, choices, 0).0
}

/// [`simulate`], and the first so many spans.
pub fn simulate_with_spans(
    scene: &Scene,
    choices: &Choices,
    most_spans: usize,
) -> (Outcome, Vec<Span>) {
    let count = scene.actors.len();
    let resident: u64 = choices.resident_chunks.iter().sum();
    let mut engine = Engine {
        scene,
        choices,
        random: Random::new(choices.seed, 1),
        now_ns: 0,
        next_release_ns: choices.phases_ns.clone(),
        queue: Vec::with_capacity(4 * count),
        executing: None,
        committed: Vec::with_capacity(scene.ahead),
        ready: 0,
        copying: None,
        resident: choices.resident_chunks.clone(),
        free: scene.shared_chunks - resident,
        outcome: Outcome {
            response_ns: vec![0; count],
            least_slack_ns: u64::MAX,
            ..Outcome::default()
        },
        spans: Vec::new(),
        most_spans,
    };
    while engine.step() {}
    (engine.outcome, engine.spans)
}

impl Engine<'_> {
    /// Goes to the next instant at which something happens.
    fn step(&mut self) -> bool {
        let release = self.next_release_ns.iter().copied().min();
        let release = release.filter(|&at| at < self.choices.until_ns);
        let computed = self.executing.map(|(_, _, end)| end);
        let copied = self.copying.map(|(_, _, _, end)| end);
        let Some(next) = [release, computed, copied].into_iter().flatten().min() else {
            return false;
        };
        self.now_ns = next;
        // Everything that happens at an instant is known before anything is decided.
        if copied == Some(next) {
            self.end_copy();
        }
        if release == Some(next) {
            self.release();
        }
        if computed == Some(next) {
            self.end_step();
        }
        self.decide();
        true
    }

    fn release(&mut self) {
        for task in 0..self.next_release_ns.len() {
            if self.next_release_ns[task] != self.now_ns {
                continue;
            }
            let actor = self.scene.actors[task];
            let left_ns = drawn(
                &mut self.random,
                actor.wcet_ns,
                self.choices.execution_percent,
            );
            self.queue.push(Job {
                task,
                release_ns: self.now_ns,
                deadline_ns: self.now_ns + actor.deadline_ns,
                left_ns: left_ns.max(1),
            });
            let late = match self.choices.sporadic_percent {
                0 => 0,
                percent => self.random.below(actor.period_ns / 100 * percent + 1),
            };
            self.next_release_ns[task] += actor.period_ns + late;
        }
    }

    fn end_copy(&mut self) {
        let Some((copying, task, start_ns, end_ns)) = self.copying.take() else {
            return;
        };
        let doing = match copying {
            Copying::In => {
                self.resident[task] = self.scene.actors[task].volume_chunks;
                self.ready += 1;
                Doing::SwapIn
            }
            Copying::Out { chunks } => {
                self.free += chunks;
                Doing::SwapOut
            }
        };
        self.record(doing, task, start_ns, end_ns);
    }

    fn end_step(&mut self) {
        let Some((mut job, start_ns, end_ns)) = self.executing.take() else {
            return;
        };
        self.record(Doing::Execute, job.task, start_ns, end_ns);
        job.left_ns -= end_ns - start_ns;
        if job.left_ns > 0 {
            // Those that are released at this instant are in the queue already.
            let waits = self.head().map(|head| self.key(&self.queue[head]));
            if waits.is_some_and(|head| head < self.key(&job)) {
                job.left_ns += self.scene.actors[job.task].resume_ns;
                self.queue.push(job);
            } else {
                self.execute(job);
            }
            return;
        }
        let outcome = &mut self.outcome;
        outcome.jobs += 1;
        let response_ns = self.now_ns - job.release_ns;
        let longest = &mut outcome.response_ns[job.task];
        *longest = (*longest).max(response_ns);
        outcome.least_slack_ns = outcome
            .least_slack_ns
            .min(job.deadline_ns.saturating_sub(self.now_ns));
        if self.now_ns > job.deadline_ns {
            outcome.misses += 1;
            outcome.first_miss.get_or_insert(Miss {
                task: job.task,
                release_ns: job.release_ns,
                completion_ns: self.now_ns,
            });
        }
    }

    /// Jobs are done in ascending order of this.
    fn key(&self, job: &Job) -> (u64, usize, u64) {
        (
            job.deadline_ns,
            self.choices.ranks[job.task],
            job.release_ns,
        )
    }

    /// The earliest deadline in the queue.
    fn head(&self) -> Option<usize> {
        let jobs = self.queue.iter().enumerate();
        jobs.min_by_key(|(_, j)| self.key(j)).map(|(i, _)| i)
    }

    fn missing(&self, task: usize) -> u64 {
        self.scene.actors[task].volume_chunks - self.resident[task]
    }

    fn decide(&mut self) {
        if self.executing.is_none() && self.ready > 0 {
            let job = self.committed.remove(0);
            self.ready -= 1;
            self.execute(job);
        }
        if self.executing.is_none()
            && self.committed.is_empty()
            && let Some(head) = self.head()
            && self.missing(self.queue[head].task) == 0
        {
            let job = self.queue.swap_remove(head);
            self.execute(job);
        }
        if self.copying.is_none()
            && self.committed.len() < self.scene.ahead
            && let Some(head) = self.head()
            && self.missing(self.queue[head].task) > 0
        {
            self.fetch(head);
        }
    }

    fn execute(&mut self, job: Job) {
        let end_ns = self.now_ns + job.left_ns.min(self.scene.actors[job.task].step_ns);
        self.executing = Some((job, self.now_ns, end_ns));
    }

    /// The next operation towards the head's memory, if there is one now.
    fn fetch(&mut self, head: usize) {
        let task = self.queue[head].task;
        let missing = self.missing(task);
        if missing <= self.free {
            self.free -= missing;
            let job = self.queue.swap_remove(head);
            self.committed.push(job);
            self.copy(Copying::In, task, missing * self.scene.in_ns);
            return;
        }
        let busy = self.executing.map(|(job, _, _)| job.task);
        let victims = (0..self.resident.len()).filter(|&v| {
            let is_used = Some(v) == busy || self.committed.iter().any(|j| j.task == v);
            v != task && !is_used && self.resident[v] > 0
        });
        let victim = victims.max_by_key(|&v| (self.next_release_ns[v], self.choices.ranks[v]));
        if let Some(victim) = victim {
            let chunks = (missing - self.free).min(self.resident[victim]);
            self.resident[victim] -= chunks;
            let out_ns = chunks * self.scene.out_ns;
            self.copy(Copying::Out { chunks }, victim, out_ns);
        }
    }

    fn copy(&mut self, copying: Copying, task: usize, longest_ns: u64) {
        let ns = drawn(&mut self.random, longest_ns, self.choices.transfer_percent);
        self.outcome.moved_chunks += match copying {
            Copying::In => self.missing(task),
            Copying::Out { chunks } => chunks,
        };
        self.copying = Some((copying, task, self.now_ns, self.now_ns + ns));
    }

    fn record(&mut self, doing: Doing, task: usize, start_ns: u64, end_ns: u64) {
        if self.spans.len() < self.most_spans && end_ns > start_ns {
            self.spans.push(Span {
                doing,
                task,
                start_ns,
                end_ns,
            });
        }
    }
}

/// Between so many per cent of the longest time and all of it.
fn drawn(random: &mut Random, longest_ns: u64, percent: u64) -> u64 {
    match percent {
        100 => longest_ns,
        _ => {
            let least = (u128::from(longest_ns) * u128::from(percent) / 100) as u64;
            random.between(least, longest_ns)
        }
    }
}
