//! Whose turn it is, and whose memory is on the card: RT-Swap's policy, and turns for programs without deadlines.
//!
//! - One program runs at a time, with all of its memory on the card, until it is done.
//! - Promised jobs go first, by their deadlines. From the beginning of a swap-in to the end of that job nothing else is
//!   begun, so every job comes in at most once and goes out at most once (Section V-C, Property 1).
//! - While one runs, memory is fetched for the head of those that wait, and for nobody else.
//! - Memory is taken from programs without a promise first, from those whose turn is last; then from those whose next job
//!   is latest, and never more than was promised.
//! - Programs without a promise run when no promised job waits: in turn, each for a slice of time if others wait.
//!
//! It only computes: events come in with their time, orders come out.

use crate::admission::{self, Claim, Costs};
use crate::program::{Id, Program, Promise, State};
use neap_card::{Hello, Order, Say, VERSION};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Memory of the card that programs share; 0 for nine tenths of what the first program sees.
    pub memory_bytes: u64,
    /// The most for each program; 0 for no limit.
    pub quota_bytes: u64,
    /// How long a program without deadlines runs while others wait.
    pub slice_ns: u64,
    /// Jobs that are measured before a promise is given.
    pub learn_jobs: u32,
    /// A promise is for jobs so much longer than the longest measured, in per cent.
    pub margin_percent: u64,
    pub costs: Costs,
    /// What programs do when the scheduler is gone.
    pub stop: bool,
}

/// Memory that is being moved, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moving {
    id: Id,
    is_in: bool,
    bytes: u64,
}

pub struct Policy {
    config: Config,
    programs: BTreeMap<Id, Program>,
    running: Option<Id>,
    moving: Option<Moving>,
    /// A job whose swap-in has begun: nothing else begins before it.
    next: Option<Id>,
    orders: Vec<(Id, Order)>,
    latest: Id,
}

impl Policy {
    pub fn new(config: Config) -> Policy {
        Policy {
            config,
            programs: BTreeMap::new(),
            running: None,
            moving: None,
            next: None,
            orders: Vec::new(),
            latest: 0,
        }
    }

    pub fn programs(&self) -> &BTreeMap<Id, Program> {
        &self.programs
    }

    /// The memory that programs share; 0 before the first.
    pub fn memory_bytes(&self) -> u64 {
        self.config.memory_bytes
    }

    /// The orders since this was asked last.
    pub fn orders(&mut self) -> Vec<(Id, Order)> {
        std::mem::take(&mut self.orders)
    }

    /// A program comes.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn join(&mut self, hello: &Hello, pid: u32, now_ns: u64) -> Result<Id, String> {
        if hello.version != VERSION {
            return Err(format!(
                "the hook speaks version {}, the scheduler version {VERSION}",
                hello.version
            ));
        }
        if self.config.memory_bytes == 0 {
            self.config.memory_bytes = hello.card_bytes / 10 * 9;
        }
        if hello.wcet_ns > hello.deadline_ns.max(hello.period_ns) {
            return Err("its longest execution is longer than its deadline".into());
        }
        let quota_bytes = match (hello.quota_bytes, self.config.quota_bytes) {
            (0, limit) => limit,
            (own, 0) => own,
            (own, limit) => own.min(limit),
        };
        if quota_bytes > self.config.memory_bytes {
            return Err(format!(
                "{quota_bytes} bytes are asked for, and programs share {}",
                self.config.memory_bytes
            ));
        }
        self.latest += 1;
        let id = self.latest;
        let mut program = Program::new(hello, pid, quota_bytes);
        program.served_ns = now_ns;
        if hello.holds != 0 && self.running.is_none() {
            (program.state, program.turn_began_ns) = (State::Running, now_ns);
            self.running = Some(id);
        }
        let memory_bytes = match quota_bytes {
            0 => self.config.memory_bytes,
            own => own,
        };
        let stop = self.config.stop;
        self.orders
            .push((id, Order::Welcome { memory_bytes, stop }));
        self.programs.insert(id, program);
        if hello.wcet_ns > 0 && quota_bytes > 0 {
            self.promise(id, hello.wcet_ns);
        }
        Ok(id)
    }

    /// A program is gone, and its memory with it.
    pub fn leave(&mut self, id: Id, now_ns: u64) {
        self.programs.remove(&id);
        self.running = self.running.filter(|&r| r != id);
        self.next = self.next.filter(|&n| n != id);
        self.moving = self.moving.filter(|m| m.id != id);
        self.advance(now_ns);
    }

    /// A program says something.
    pub fn hear(&mut self, id: Id, said: &Say, now_ns: u64) {
        let Some(program) = self.programs.get_mut(&id) else {
            return;
        };
        match *said {
            Say::Hello(_) => {}
            Say::Want { .. } if program.state == State::Running => {
                self.orders.push((id, Order::Go));
            }
            Say::Want { is_job } => {
                program.ask(is_job, now_ns);
                self.learn(id);
            }
            Say::Done { ran_ns } => {
                program.finish(ran_ns, now_ns);
                self.running = self.running.filter(|&r| r != id);
            }
            Say::Need { bytes, fixed } => program.need = Some((bytes, fixed)),
            Say::Gave { bytes, fixed } => {
                let held = match fixed {
                    true => &mut program.fixed_bytes,
                    false => &mut program.resident_bytes,
                };
                *held = held.saturating_sub(bytes);
            }
            Say::Forgot { bytes } => {
                program.away_bytes = program.away_bytes.saturating_sub(bytes);
            }
            Say::Gone { bytes, saved, ns } => self.gone(id, bytes, saved, ns),
            Say::Here { bytes, ns } => self.here(id, bytes, ns),
        }
        self.advance(now_ns);
    }

    fn gone(&mut self, id: Id, bytes: u64, saved: u64, ns: u64) {
        let Some(program) = self.programs.get_mut(&id) else {
            return;
        };
        program.resident_bytes = program.resident_bytes.saturating_sub(bytes);
        program.away_bytes += saved;
        program.counts.out_bytes += saved;
        program.counts.out_ns += ns;
        if let Some(moving) = self.moving.take_if(|m| m.id == id && !m.is_in)
            && bytes < moving.bytes
        {
            program.stays_bytes = program.resident_bytes;
        }
        self.config.costs.out_ns_per_mib = measured(self.config.costs.out_ns_per_mib, saved, ns);
    }

    fn here(&mut self, id: Id, bytes: u64, ns: u64) {
        let Some(program) = self.programs.get_mut(&id) else {
            return;
        };
        program.resident_bytes += bytes;
        program.away_bytes = 0;
        program.counts.in_bytes += bytes;
        program.counts.in_ns += ns;
        self.moving.take_if(|m| m.id == id && m.is_in);
        self.config.costs.in_ns_per_mib = measured(self.config.costs.in_ns_per_mib, bytes, ns);
    }

    /// Time passes.
    pub fn tick(&mut self, now_ns: u64) {
        self.advance(now_ns);
    }

    /// When [`Policy::tick`] should be called, if nothing else happens.
    pub fn wakes_ns(&self) -> Option<u64> {
        let running = self.programs.get(&self.running?)?;
        let waits = self.programs.values().any(|p| p.state == State::Waiting);
        let can_yield = !running.is_promised() && running.told_ns.is_none();
        (waits && can_yield).then(|| running.turn_began_ns + self.config.slice_ns)
    }

    /// All of a program's memory that may leave is to leave, if it does not run.
    pub fn evict(&mut self, pid: u32) -> bool {
        let found = self.programs.iter().find(|(_, p)| p.pid == pid);
        let Some((&id, program)) = found else {
            return false;
        };
        let bytes = program.evictable_bytes();
        let is_busy = self.running == Some(id) || self.next == Some(id) || self.moving.is_some();
        if !is_busy && bytes > 0 {
            self.order_out(id, bytes);
        }
        !is_busy
    }

    fn order_out(&mut self, id: Id, bytes: u64) {
        self.moving = Some(Moving {
            id,
            is_in: false,
            bytes,
        });
        self.orders.push((id, Order::Out { bytes }));
    }

    /// Gives a promise to a program whose jobs were measured often enough, if it can be kept.
    fn learn(&mut self, id: Id) {
        let (jobs, margin) = (self.config.learn_jobs, self.config.margin_percent);
        let Some(program) = self.programs.get(&id) else {
            return;
        };
        let is_due = match program.promise {
            Promise::Learning => program.measured >= jobs,
            // The first jobs may have been slow, and others may have gone or need less.
            Promise::Refused => program.measured > 0 && program.measured % jobs.max(1) == 0,
            Promise::None | Promise::Kept { .. } => false,
        };
        if !is_due {
            return;
        }
        let wcet_ns = match program.wcet_ns {
            0 => {
                let latest = program.latest_ns.iter().take(jobs as usize);
                let longest_ns = latest.max().copied().unwrap_or(0);
                longest_ns + longest_ns / 100 * margin
            }
            given => given,
        };
        self.promise(id, wcet_ns);
    }

    /// Promises deadlines to a program, if all others' hold as well.
    fn promise(&mut self, id: Id, wcet_ns: u64) {
        let mut ids: Vec<Id> = self
            .programs
            .iter()
            .filter(|(_, p)| p.is_promised())
            .map(|(&i, _)| i)
            .collect();
        ids.push(id);
        let claims: Vec<Claim> = ids
            .iter()
            .map(|i| Claim::of(&self.programs[i], wcet_ns))
            .collect();
        let others = |p: &&Program| !p.is_promised();
        let fixed: u64 = self
            .programs
            .iter()
            .filter(|(i, p)| **i != id && others(p))
            .map(|(_, p)| p.fixed_bytes)
            .sum();
        let memory_bytes = self.config.memory_bytes.saturating_sub(fixed);
        let rest = self
            .programs
            .iter()
            .filter(|(i, p)| **i != id && !p.is_promised());
        // They must still fit when it is their turn.
        let rest_bytes = rest.map(|(_, p)| p.swappable_bytes()).max().unwrap_or(0);
        let admitted = admission::admit(&claims, rest_bytes, memory_bytes, &self.config.costs).ok();
        let Some(volumes) = admitted else {
            if let Some(program) = self.programs.get_mut(&id) {
                program.promise = Promise::Refused;
            }
            return;
        };
        for ((id, claim), volume_bytes) in ids.iter().zip(&claims).zip(volumes) {
            if let Some(program) = self.programs.get_mut(id) {
                program.promise = Promise::Kept {
                    wcet_ns: claim.wcet_ns,
                    volume_bytes,
                };
            }
        }
    }

    /// Memory of the card that nobody holds, and nobody was promised for a swap-in that goes on.
    fn free_bytes(&self) -> u64 {
        let held: u64 = self
            .programs
            .values()
            .map(|p| p.resident_bytes + p.fixed_bytes)
            .sum();
        let coming = self.moving.filter(|m| m.is_in).map_or(0, |m| m.bytes);
        self.config.memory_bytes.saturating_sub(held + coming)
    }

    /// Does what can be done now.
    fn advance(&mut self, now_ns: u64) {
        self.serve_need();
        match self.running {
            Some(running) => self.beside(running, now_ns),
            None => self.begin(now_ns),
        }
    }

    /// Memory for the program that runs.
    fn serve_need(&mut self) {
        let asking = self.programs.iter().find(|(_, p)| p.need.is_some());
        let Some((&id, program)) = asking else { return };
        let Some((bytes, fixed)) = program.need else {
            return;
        };
        let in_quota =
            program.quota_bytes == 0 || program.footprint_bytes() + bytes <= program.quota_bytes;
        // Beside what others must have at all times.
        let others = self.programs.iter().filter(|(i, _)| **i != id);
        let always: u64 = others.map(|(_, p)| p.always_bytes()).sum();
        let fits = program.footprint_bytes() + bytes + always <= self.config.memory_bytes;
        let answer = if !in_quota || !fits {
            Order::Denied
        } else if self.free_bytes() >= bytes {
            Order::Granted
        } else if self.moving.is_some() || self.make_room(bytes, &[id]) {
            return;
        } else {
            Order::Denied
        };
        let is_granted = answer == Order::Granted;
        self.orders.push((id, answer));
        if let Some(program) = self.programs.get_mut(&id) {
            program.need = None;
            match (is_granted, fixed) {
                (true, true) => program.fixed_bytes += bytes,
                (true, false) => program.resident_bytes += bytes,
                (false, _) => {}
            }
        }
    }

    /// Orders memory out, of others than these, so that so much is free. False where nobody has any to give.
    fn make_room(&mut self, bytes: u64, keep: &[Id]) -> bool {
        let missing = bytes.saturating_sub(self.free_bytes());
        let others = self.programs.iter().filter(|(id, p)| {
            !keep.contains(id)
                && self.next != Some(**id)
                && self.running != Some(**id)
                && p.evictable_bytes() > 0
        });
        let latest = others.max_by_key(|(_, p)| match p.is_promised() {
            true => (false, p.next_release_ns),
            false => (true, p.served_ns),
        });
        let Some((&victim, program)) = latest else {
            return false;
        };
        let bytes = missing.min(program.evictable_bytes());
        self.order_out(victim, bytes);
        true
    }

    /// Who waits, the first first.
    fn waiting(&self) -> Vec<Id> {
        let waiting = self
            .programs
            .iter()
            .filter(|(_, p)| p.state == State::Waiting);
        let mut waiting: Vec<_> = waiting.map(|(&id, p)| (p.rank(), id)).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, id)| id).collect()
    }

    /// While a program runs: it may have to yield, and the head's memory is fetched.
    fn beside(&mut self, running: Id, now_ns: u64) {
        let Some(&head) = self.waiting().first() else {
            return;
        };
        let head_is_promised = self.programs[&head].is_promised();
        let slice_ns = self.config.slice_ns;
        if let Some(program) = self.programs.get_mut(&running) {
            let is_over = now_ns >= program.turn_began_ns + slice_ns;
            let must = !program.is_promised() && (head_is_promised || is_over);
            if must && program.told_ns.is_none() {
                program.told_ns = Some(now_ns);
                self.orders.push((running, Order::Yield));
            }
        }
        let is_quiet = self.moving.is_none() && self.next.is_none();
        if is_quiet && self.programs[&head].away_bytes > 0 {
            self.fetch(head);
        }
    }

    /// Nothing runs: the job that was fetched begins, or the head, or the first whose memory can be there.
    fn begin(&mut self, now_ns: u64) {
        if let Some(next) = self.next {
            if self.programs[&next].away_bytes == 0 && self.moving.is_none_or(|m| m.id != next) {
                self.go(next, now_ns);
            }
            return;
        }
        for id in self.waiting() {
            if self.moving.is_some_and(|m| m.id == id) {
                return;
            }
            if self.programs[&id].away_bytes == 0 {
                return self.go(id, now_ns);
            }
            if self.moving.is_some() || self.fetch(id) {
                return;
            }
        }
    }

    /// Brings a program's memory back, or makes room for it first. False where there is none.
    fn fetch(&mut self, id: Id) -> bool {
        let bytes = self.programs[&id].away_bytes;
        if self.free_bytes() < bytes {
            return self.make_room(bytes, &[id]);
        }
        self.moving = Some(Moving {
            id,
            is_in: true,
            bytes,
        });
        self.next = Some(id);
        self.orders.push((id, Order::In));
        true
    }

    fn go(&mut self, id: Id, now_ns: u64) {
        self.next = None;
        self.running = Some(id);
        if let Some(program) = self.programs.get_mut(&id) {
            (program.state, program.turn_began_ns) = (State::Running, now_ns);
            program.counts.turns += 1;
            self.orders.push((id, Order::Go));
        }
        self.beside(id, now_ns);
    }
}

/// The time for a MiB: the longest measured, of moves that are large enough to tell.
fn measured(before: u64, bytes: u64, ns: u64) -> u64 {
    let mib = bytes >> 20;
    match mib >= 64 {
        true => before.max(ns / mib),
        false => before,
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
