//! Three lanes, for plans that store activations: loads and stores share the link to storage.
//!
//! ```text
//!   load    ├── l0 ──┤├─────── l1 ───────┤           slower while s0 moves too, if the link cannot carry
//!   store            ├─────── s0 ───────┤            both at their full rates
//!   compute ├ c0 ┤░░░├─ c1 ─┤├ c2 ┤░░░░░░├ c3 ┤
//! ```
//! Lanes go in order, as in [`crate::Simulator`], but how long a transfer takes depends on what else moves
//! meanwhile. So events are played in the order in which they happen: each either completes something or
//! lets something start. A run of a plan without stores is the same here and there.
//!
//! The thread that computes is also the one that notices a store to be complete and hands over the loads that
//! waited for it: before each compute, and while it waits itself, when the file that it waits for has
//! moved something.

use std::collections::VecDeque;

use neap_plan::{ExecutionPlan, Lane, Load, RunTiming, SpaceKind, Span, Workload};

use crate::{CostProfile, Prediction};

/// Plays `runs` runs of a valid plan back to back and hands every span to `span`.
///
/// A plan that cannot make progress ends with a latency of `u64::MAX`.
pub(crate) fn play(
    workload: &Workload,
    plan: &ExecutionPlan,
    costs: &CostProfile,
    runs: u32,
    span: &mut dyn FnMut(Span),
) -> (Prediction, Vec<RunTiming>) {
    let compute_ns: Vec<u64> = plan
        .computes
        .iter()
        .map(|c| costs.compute_ns(workload, c))
        .collect();
    let total_ns = compute_ns.iter().sum();
    let mut world = World::new(plan, costs, compute_ns);
    while world.timings.len() < runs as usize {
        world.start_what_can(runs, span);
        if world.timings.len() == runs as usize || !world.advance(span) {
            break;
        }
    }
    let settled = world.timings.len() == runs as usize;
    let last = world.timings.last().filter(|_| settled);
    let prediction = Prediction {
        latency_ns: last.map_or(if runs == 0 { 0 } else { u64::MAX }, RunTiming::latency_ns),
        stall_ns: last.map_or(if runs == 0 { 0 } else { u64::MAX }, |run| run.stall_ns),
        compute_ns: total_ns,
    };
    (prediction, world.timings)
}

/// Loads on their way, or stores.
struct Direction {
    lane: Lane,
    ns_per_byte: f64,
    /// Started and not complete, oldest first; the oldest one moves when its latency is over.
    in_flight: VecDeque<Transfer>,
    /// In groups, what has moved waits for the rest of its group.
    is_grouped: bool,
    moved: Vec<Transfer>,
    /// Counted over all runs.
    started: u64,
    complete: u64,
    per_run: u64,
    /// When those of the last two runs and of the next one were.
    complete_ns: Vec<u64>,
}

struct Transfer {
    /// When the dependency held, and when it was started.
    ready_ns: u64,
    start_ns: u64,
    first_byte_ns: u64,
    /// What is left to move, in nanoseconds at the full rate.
    left: f64,
}

struct World<'a> {
    plan: &'a ExecutionPlan,
    costs: &'a CostProfile,
    compute_ns: Vec<u64>,
    now: u64,
    loads: Direction,
    stores: Direction,
    /// Stores that were noticed to be complete, and when those of the last two runs were.
    noticed: u64,
    noticed_ns: Vec<u64>,
    /// Rate of either direction while both move, as a share of its full one.
    both_ways: f64,
    /// Computes done, over all runs, and when those of the last two runs were.
    done: u64,
    ends: Vec<u64>,
    /// What computes now: when it ends.
    computing: Option<u64>,
    /// When the compute lane turned to the next compute, and when it has handled what came before it.
    ready_ns: u64,
    free_ns: u64,
    /// Loads whose handling the compute lane has paid for.
    handled: u64,
    /// The next compute's handling is part of `free_ns`.
    is_paid: bool,
    run: RunTiming,
    run_begins: [u64; 2],
    timings: Vec<RunTiming>,
}

impl Direction {
    fn new(lane: Lane, ns_per_byte: f64, per_run: usize, is_grouped: bool) -> Direction {
        Direction {
            lane,
            ns_per_byte,
            in_flight: VecDeque::new(),
            is_grouped,
            moved: Vec::new(),
            started: 0,
            complete: 0,
            per_run: per_run as u64,
            complete_ns: vec![0; 3 * per_run],
        }
    }

    fn start(&mut self, now: u64, ready_ns: u64, latency_ns: u64, bytes: u64) {
        self.in_flight.push_back(Transfer {
            ready_ns,
            start_ns: now,
            first_byte_ns: now + latency_ns,
            left: (bytes as f64 * self.ns_per_byte).round(),
        });
        self.started += 1;
    }

    /// What moves at a time.
    fn moving(&mut self, now: u64) -> Option<&mut Transfer> {
        self.in_flight
            .front_mut()
            .filter(|t| t.first_byte_ns <= now)
    }

    /// When something happens next at this rate, if nothing else changes.
    fn next_event(&mut self, now: u64, rate: f64) -> Option<u64> {
        let head = self.in_flight.front()?;
        Some(match head.first_byte_ns {
            later if later > now => later,
            _ => now + (head.left / rate).ceil() as u64,
        })
    }

    /// What has moved is complete.
    fn arrive(&mut self, now: u64, span: &mut dyn FnMut(Span)) {
        for t in self.moved.drain(..) {
            let (number, count) = (self.complete, self.per_run);
            span(Span {
                lane: self.lane,
                run: (number / count) as u32,
                action: (number % count) as u32,
                ready_ns: t.ready_ns,
                start_ns: t.start_ns,
                end_ns: now,
            });
            let at = number % self.complete_ns.len() as u64;
            self.complete_ns[at as usize] = now;
            self.complete += 1;
        }
    }
}

impl<'a> World<'a> {
    fn new(plan: &'a ExecutionPlan, costs: &'a CostProfile, compute_ns: Vec<u64>) -> Self {
        let load_rate = costs.storage_bytes_per_second;
        let store_rate = costs.store_rate();
        let both = costs.both_ways_rate() / (load_rate + store_rate);
        let rate = |bytes_per_second: f64| 1e9 / bytes_per_second;
        World {
            loads: Direction::new(
                Lane::Load,
                rate(load_rate),
                plan.loads.len(),
                plan.group_bytes > 0,
            ),
            stores: Direction::new(Lane::Store, rate(store_rate), plan.stores.len(), false),
            noticed: 0,
            noticed_ns: vec![0; 2 * plan.stores.len()],
            both_ways: if both.is_finite() {
                both.clamp(1e-6, 1.0)
            } else {
                1.0
            },
            now: 0,
            done: 0,
            ends: vec![0; 2 * plan.computes.len()],
            computing: None,
            ready_ns: 0,
            free_ns: 0,
            handled: 0,
            is_paid: false,
            run: RunTiming::default(),
            run_begins: [0; 2],
            timings: Vec::new(),
            compute_ns,
            plan,
            costs,
        }
    }

    fn n(&self) -> u64 {
        self.compute_ns.len() as u64
    }

    /// The run that computes are done for.
    fn run(&self) -> u64 {
        self.timings.len() as u64
    }

    /// When the first `computes` computes of a run were done; for none, when it began.
    fn done_at(&self, run: u64, computes: u64) -> u64 {
        match computes {
            0 => self.run_begins[(run % 2) as usize],
            _ => self.ends[((run * self.n() + computes - 1) as usize) % self.ends.len()],
        }
    }

    /// When the first `stores` stores of a run were noticed to be complete, 0 for none; they are.
    fn noticed_at(&self, run: u64, stores: u64) -> u64 {
        match (run * self.stores.per_run + stores).checked_sub(1) {
            Some(number) if stores > 0 => self.noticed_ns[number as usize % self.noticed_ns.len()],
            _ => 0,
        }
    }

    /// The thread that computes looks what is complete.
    fn look(&mut self) {
        while self.noticed < self.stores.complete {
            let at = self.noticed as usize % self.noticed_ns.len();
            self.noticed_ns[at] = self.now;
            self.noticed += 1;
        }
    }

    /// Whether the stores that a load of that run waits for are complete, as far as is known.
    fn admits(&self, load: &Load, run: u64) -> bool {
        match run.checked_sub(load.after.run_back.into()) {
            Some(run) => run * self.stores.per_run + u64::from(load.stores) <= self.noticed,
            None => true,
        }
    }

    /// Which file the next compute waits for: that of activations, or that of weights.
    fn waits_for_spill(&self, needs: u32) -> bool {
        let wanted = self.run() * self.loads.per_run + u64::from(needs);
        if self.loads.complete >= wanted || self.loads.per_run == 0 {
            return true;
        }
        let load = &self.plan.loads[(self.loads.complete % self.loads.per_run) as usize];
        reads_spill(self.plan, load) || !self.admits(load, self.loads.complete / self.loads.per_run)
    }

    /// Everything that may start now, until nothing more may.
    fn start_what_can(&mut self, runs: u32, span: &mut dyn FnMut(Span)) {
        loop {
            let mut any = self.start_stores();
            any |= self.start_loads(runs);
            any |= self.start_compute(span);
            any |= self.end_run(runs);
            if !any || self.run() == u64::from(runs) {
                return;
            }
        }
    }

    /// When the first `needs` loads of the run have been there for long enough, of those that are complete.
    fn awake_ns(&self, needs: u32) -> u64 {
        let number = self.run() * self.loads.per_run + u64::from(needs);
        if needs == 0 || self.loads.complete < number {
            return 0;
        }
        let times = &self.loads.complete_ns;
        times[((number - 1) % times.len() as u64) as usize] + self.costs.wake_ns
    }

    fn depth(&self) -> usize {
        self.costs.queue_depth.max(1) as usize
    }

    fn start_stores(&mut self) -> bool {
        let mut any = false;
        while let Some(index) = self.stores.started.checked_rem(self.stores.per_run)
            && self.stores.in_flight.len() < self.depth()
        {
            let store = &self.plan.stores[index as usize];
            let run = self.stores.started / self.stores.per_run;
            if run > self.run() || run * self.n() + u64::from(store.after) > self.done {
                break;
            }
            let ready = self.done_at(run, store.after.into());
            let latency = self.costs.request_latency_ns;
            self.stores.start(self.now, ready, latency, store.bytes);
            any = true;
        }
        any
    }

    fn start_loads(&mut self, runs: u32) -> bool {
        let mut any = false;
        let mut room = self.plan.group_bytes;
        if self.loads.is_grouped && !self.loads.in_flight.is_empty() {
            return false;
        }
        while let Some(index) = self.loads.started.checked_rem(self.loads.per_run)
            && (self.loads.is_grouped || self.loads.in_flight.len() < self.depth())
        {
            let load = &self.plan.loads[index as usize];
            if self.loads.is_grouped && any && load.bytes > room {
                break;
            }
            room = room.saturating_sub(load.bytes);
            let run = self.loads.started / self.loads.per_run;
            let of_run = run.checked_sub(load.after.run_back.into());
            let computes = u64::from(load.after.computes);
            let mut ready = 0;
            if let Some(of_run) = of_run {
                if of_run > self.run()
                    || of_run * self.n() + computes > self.done
                    || !self.admits(load, run)
                {
                    break;
                }
                ready = self.done_at(of_run, computes);
                ready = ready.max(self.noticed_at(of_run, load.stores.into()));
            }
            if run >= u64::from(runs) {
                break;
            }
            let latency = self.costs.request_latency_ns;
            self.loads.start(self.now, ready, latency, load.bytes);
            any = true;
        }
        any
    }

    fn start_compute(&mut self, span: &mut dyn FnMut(Span)) -> bool {
        let at = (self.done - self.run() * self.n()) as usize;
        if self.computing.is_some() || at >= self.compute_ns.len() {
            return false;
        }
        let c = &self.plan.computes[at];
        if !self.is_paid {
            let first = self.run() * self.loads.per_run;
            let handled = self.handled.saturating_sub(first) as usize;
            let loads = self.plan.loads.get(handled..c.needs as usize);
            let loads = loads.unwrap_or_default().iter().map(|l| l.bytes);
            let stores = self.plan.stores.iter();
            let stores = stores.filter(|s| s.after as usize == at && at > 0);
            let moved = loads.chain(stores.map(|s| s.bytes));
            self.free_ns += moved.map(|bytes| self.costs.load_ns(bytes)).sum::<u64>();
            self.handled = self.handled.max(first + u64::from(c.needs));
            self.is_paid = true;
        }
        let loaded = self.loads.complete >= self.run() * self.loads.per_run + u64::from(c.needs);
        let stored = self.noticed >= self.run() * self.stores.per_run + u64::from(c.stores);
        if !loaded || !stored || self.now < self.free_ns.max(self.awake_ns(c.needs)) {
            return false;
        }
        let start_ns = self.now;
        self.run.stall_ns += start_ns - self.free_ns;
        let end_ns = start_ns + self.compute_ns[at];
        span(Span {
            lane: Lane::Compute,
            run: self.run() as u32,
            action: at as u32,
            ready_ns: self.ready_ns,
            start_ns,
            end_ns,
        });
        self.computing = Some(end_ns);
        true
    }

    /// A run is over when its computes are done and its stores complete.
    fn end_run(&mut self, runs: u32) -> bool {
        let next = self.run() + 1;
        if self.run() >= u64::from(runs)
            || self.done < next * self.n()
            || self.stores.complete < next * self.stores.per_run
        {
            return false;
        }
        self.run.end_ns = self.now;
        self.run.stall_ns += self.now.saturating_sub(self.free_ns);
        self.timings.push(self.run);
        self.run = RunTiming {
            start_ns: self.now,
            end_ns: self.now,
            stall_ns: 0,
        };
        self.run_begins[(next % 2) as usize] = self.now;
        self.ready_ns = self.now;
        self.free_ns = self.now;
        self.look();
        true
    }

    /// Goes on to the next thing that happens; false if nothing will.
    fn advance(&mut self, span: &mut dyn FnMut(Span)) -> bool {
        let now = self.now;
        let both = self.loads.moving(now).is_some() && self.stores.moving(now).is_some();
        let rate = if both { self.both_ways } else { 1.0 };
        let at = (self.done - self.run() * self.n()) as usize;
        let next = self.plan.computes.get(at);
        let awake_ns = next.map(|compute| self.awake_ns(compute.needs));
        let pays = self.is_paid && self.computing.is_none() && self.free_ns > now;
        let events = [
            self.computing,
            (pays && at < self.compute_ns.len()).then_some(self.free_ns),
            awake_ns.filter(|&awake_ns| self.computing.is_none() && awake_ns > now),
            self.loads.next_event(now, rate),
            self.stores.next_event(now, rate),
        ];
        let Some(next) = events.into_iter().flatten().min() else {
            return false;
        };
        let passed = (next - now) as f64 * rate;
        let waits_for_spill = match self.plan.computes.get(at) {
            Some(compute) if self.computing.is_none() => Some(self.waits_for_spill(compute.needs)),
            _ => None,
        };
        let mut looks = waits_for_spill.is_some() && next == self.free_ns;
        self.now = next;
        for direction in [&mut self.loads, &mut self.stores] {
            if let Some(t) = direction.moving(now) {
                t.left -= passed;
            }
            while let Some(t) = direction.moving(next)
                && t.left <= 1e-6
            {
                let (number, count) = (direction.complete, direction.per_run);
                let is_spill = direction.lane == Lane::Store
                    || reads_spill(self.plan, &self.plan.loads[(number % count) as usize]);
                direction.moved.extend(direction.in_flight.pop_front());
                if !direction.is_grouped || direction.in_flight.is_empty() {
                    looks |= waits_for_spill == Some(is_spill);
                    direction.arrive(next, span);
                }
            }
        }
        if self.computing == Some(next) {
            self.computing = None;
            let at = self.done as usize % self.ends.len();
            self.ends[at] = next;
            self.done += 1;
            self.ready_ns = next;
            self.free_ns = next;
            self.is_paid = false;
            // After the last one it looks when the next run begins.
            looks = !self.done.is_multiple_of(self.n());
        }
        if looks {
            self.look();
        }
        true
    }
}

fn reads_spill(plan: &ExecutionPlan, load: &Load) -> bool {
    plan.kind(load.from.space) == Some(SpaceKind::Spill)
}
