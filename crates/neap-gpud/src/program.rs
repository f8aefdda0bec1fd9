//! A program that shares the card, as the scheduler knows it.

use neap_card::Hello;
use std::collections::VecDeque;

/// Names a program as long as it is connected.
pub type Id = u64;

/// What is promised to a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It has no deadlines.
    None,
    /// Its jobs are measured.
    Learning,
    /// Its deadlines hold if no job runs for longer than `wcet_ns`. At most `volume_bytes` of its memory leave the card.
    Kept { wcet_ns: u64, volume_bytes: u64 },
    /// Its deadlines cannot be promised beside the others.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    Waiting,
    Running,
}

/// What it counted so far.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Turns on the card.
    pub turns: u64,
    /// Jobs whose period has begun.
    pub jobs: u64,
    pub misses: u64,
    /// Jobs that ran longer than they may.
    pub overruns: u64,
    /// From release to completion, at worst.
    pub worst_response_ns: u64,
    pub ran_ns: u64,
    pub out_bytes: u64,
    pub in_bytes: u64,
    pub out_ns: u64,
    pub in_ns: u64,
    /// From being told to yield to the end of its work, at worst.
    pub worst_hold_ns: u64,
}

#[derive(Clone, Debug)]
pub struct Program {
    pub name: String,
    pub pid: u32,
    pub chunk_bytes: u64,
    /// The most it may have; 0 for all there is.
    pub quota_bytes: u64,
    /// 0 for a program without deadlines.
    pub period_ns: u64,
    pub deadline_ns: u64,
    /// As it was given; 0 where it is to be measured.
    pub wcet_ns: u64,
    pub promise: Promise,
    pub resident_bytes: u64,
    pub away_bytes: u64,
    pub fixed_bytes: u64,
    /// Memory that did not leave when it was told to: its host has no room.
    pub stays_bytes: u64,
    pub state: State,
    /// Of the job that waits or runs, or ran last.
    pub released_ns: u64,
    pub due_ns: u64,
    pub next_release_ns: u64,
    pub ran_in_period_ns: u64,
    pub turn_began_ns: u64,
    pub served_ns: u64,
    /// When it was told to yield.
    pub told_ns: Option<u64>,
    /// Memory that it waits for, and whether that can never leave.
    pub need: Option<(u64, bool)>,
    /// The latest jobs, as measured, and how many were.
    pub latest_ns: VecDeque<u64>,
    pub measured: u32,
    /// It says itself where jobs begin.
    pub says_jobs: bool,
    pub counts: Counts,
}

impl Program {
    pub fn new(hello: &Hello, pid: u32, quota_bytes: u64) -> Program {
        let deadline_ns = match hello.deadline_ns {
            0 => hello.period_ns,
            given => given,
        };
        Program {
            name: hello.name.clone(),
            pid,
            chunk_bytes: hello.chunk_bytes.max(1),
            quota_bytes,
            period_ns: hello.period_ns,
            deadline_ns,
            wcet_ns: hello.wcet_ns,
            promise: match hello.period_ns {
                0 => Promise::None,
                _ => Promise::Learning,
            },
            resident_bytes: hello.resident_bytes,
            away_bytes: hello.away_bytes,
            fixed_bytes: hello.fixed_bytes,
            stays_bytes: 0,
            state: State::Idle,
            released_ns: 0,
            due_ns: 0,
            next_release_ns: 0,
            ran_in_period_ns: 0,
            turn_began_ns: 0,
            served_ns: 0,
            told_ns: None,
            need: None,
            latest_ns: VecDeque::new(),
            measured: 0,
            says_jobs: false,
            counts: Counts::default(),
        }
    }

    /// All that it allocated, wherever it is, but for what can never leave.
    pub fn swappable_bytes(&self) -> u64 {
        self.resident_bytes + self.away_bytes
    }

    pub fn footprint_bytes(&self) -> u64 {
        self.swappable_bytes() + self.fixed_bytes
    }

    /// What must be on the card at all times.
    pub fn always_bytes(&self) -> u64 {
        match self.promise {
            Promise::Kept { volume_bytes, .. } => {
                self.fixed_bytes + self.swappable_bytes().saturating_sub(volume_bytes)
            }
            _ => self.fixed_bytes,
        }
    }

    /// What may leave the card now.
    pub fn evictable_bytes(&self) -> u64 {
        let there = self.resident_bytes.saturating_sub(self.stays_bytes);
        match self.promise {
            Promise::Kept { volume_bytes, .. } => {
                there.min(volume_bytes.saturating_sub(self.away_bytes))
            }
            _ => there,
        }
    }

    pub fn is_promised(&self) -> bool {
        matches!(self.promise, Promise::Kept { .. })
    }

    /// Who goes first: promised deadlines by when they are due, then who waits longest for a turn.
    pub fn rank(&self) -> (bool, u64) {
        match self.is_promised() {
            true => (false, self.due_ns),
            false => (true, self.served_ns),
        }
    }

    /// It asks for the card: for a new job, or for the rest of one whose period has not ended where the program does not
    /// say which.
    pub fn ask(&mut self, is_job: bool, now_ns: u64) {
        self.state = State::Waiting;
        if self.period_ns == 0 {
            self.released_ns = now_ns;
            return;
        }
        if is_job && !self.says_jobs {
            // What it did before it began jobs says nothing about them.
            self.says_jobs = true;
            (self.ran_in_period_ns, self.measured) = (0, 0);
            self.latest_ns.clear();
            if self.wcet_ns == 0 {
                self.promise = Promise::Learning;
            }
        }
        let allowed_ns = match self.promise {
            Promise::Kept { wcet_ns, .. } => wcet_ns,
            _ => u64::MAX,
        };
        let is_rest = now_ns < self.next_release_ns && self.ran_in_period_ns < allowed_ns;
        if is_rest && !is_job && self.counts.jobs > 0 {
            return;
        }
        self.end_period();
        // A job before its time is one of the next period.
        let release_ns = now_ns.max(self.next_release_ns);
        self.released_ns = release_ns;
        self.due_ns = release_ns + self.deadline_ns;
        self.next_release_ns = release_ns + self.period_ns;
        self.counts.jobs += 1;
    }

    /// The job of the last period is over.
    fn end_period(&mut self) {
        let ran_ns = std::mem::take(&mut self.ran_in_period_ns);
        if ran_ns > 0 {
            self.measured += 1;
            self.latest_ns.push_front(ran_ns);
            self.latest_ns.truncate(MOST_MEASURED);
        }
    }

    /// Nothing of it runs any more.
    pub fn finish(&mut self, ran_ns: u64, now_ns: u64) {
        self.state = State::Idle;
        self.served_ns = now_ns;
        self.ran_in_period_ns += ran_ns;
        self.counts.ran_ns += ran_ns;
        if let Some(told_ns) = self.told_ns.take() {
            let hold_ns = now_ns.saturating_sub(told_ns);
            self.counts.worst_hold_ns = self.counts.worst_hold_ns.max(hold_ns);
        }
        let Promise::Kept { wcet_ns, .. } = self.promise else {
            return;
        };
        let response_ns = now_ns.saturating_sub(self.released_ns);
        self.counts.worst_response_ns = self.counts.worst_response_ns.max(response_ns);
        self.counts.misses += u64::from(now_ns > self.due_ns);
        self.counts.overruns += u64::from(self.ran_in_period_ns > wcet_ns);
    }
}

/// As many jobs are remembered: the first ones compile, load and choose.
const MOST_MEASURED: usize = 1000;
