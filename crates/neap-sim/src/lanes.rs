//! Any number of lanes, event by event: lanes of computes, and lanes that move bytes over links that they may share.
//!
//! ```text
//!   load    ├── l0 ──┤├─────── l1 ───────┤           slower while s0 moves too, if the link cannot carry
//!   store            ├─────── s0 ───────┤            both at their full rates
//!   compute ├ c0 ┤░░░├─ c1 ─┤├ c2 ┤░░░░░░├ c3 ┤
//! ```
//! Lanes go in order, as in [`crate::Simulator`], but how long a transfer takes depends on what else moves
//! meanwhile. So events are played in the order in which they happen: each either completes something or
//! lets something start. A run of a plan with one lane of loads and one of computes is the same here and there.
//!
//! The thread that computes is also the one that notices a store to be complete and hands over the loads that
//! waited for it: before each compute, and while it waits itself, when the file that it waits for has
//! moved something. That is how the executor of the default lanes goes about it; with others every completion is noticed
//! at once.

mod transfers;

use neap_plan::{
    Compute, ExecutionPlan, LaneId, LaneKind, Lanes, Load, RunTiming, SpaceKind, Span, Timeline,
    Turn, Wait, Workload,
};

use crate::{CostProfile, Prediction};
use transfers::{Computes, Transfers};

/// Plays `runs` runs of a plan with any lanes, whose waits are in order, and keeps everything that happened.
///
/// `costs` are what each lane goes by, by [`LaneId`]: those of the processor or device for a lane of computes, those of
/// the link and of what is behind it for one that moves bytes. Lanes that share a link share its bandwidth:
/// those that move the same way equally, those that move both ways as
/// [`CostProfile::both_ways_rate`] says. A run's stall is the sum over the lanes of computes of the time in which they
/// wait, also for each other.
///
/// # Panics
/// If there are fewer costs than lanes.
pub fn simulate_lanes(
    workload: &Workload,
    plan: &ExecutionPlan,
    costs: &[&CostProfile],
    runs: u32,
) -> Timeline {
    let actions = plan.loads.len() + plan.computes.len() + plan.stores.len();
    let mut timeline = Timeline::with_capacity(actions * runs as usize, runs as usize);
    let mut record = |span| timeline.record(span);
    let (_, runs) = play(workload, plan, costs, runs, &mut record);
    timeline.runs.extend(runs);
    timeline
}

/// Plays `runs` runs of a valid plan back to back and hands every span to `span`.
///
/// A plan that cannot make progress ends with a latency of `u64::MAX`.
pub(crate) fn play(
    workload: &Workload,
    plan: &ExecutionPlan,
    costs: &[&CostProfile],
    runs: u32,
    span: &mut dyn FnMut(Span),
) -> (Prediction, Vec<RunTiming>) {
    let mut world = World::new(workload, plan, costs);
    let compute_ns = world.computes.iter().flat_map(|lane| &lane.ns).sum();
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
        compute_ns,
    };
    (prediction, world.timings)
}

/// Where a lane is: in [`World::moves`] or in [`World::computes`].
#[derive(Clone, Copy)]
enum At {
    Moves(usize),
    Computes(usize),
}

struct World<'a> {
    plan: &'a ExecutionPlan,
    /// What is complete is noticed at once.
    always_looks: bool,
    /// By lane.
    at: Vec<At>,
    /// Stores first: where both could start, they do first.
    moves: Vec<Transfers<'a>>,
    computes: Vec<Computes<'a>>,
    now: u64,
    run: RunTiming,
    run_begins: [u64; 2],
    timings: Vec<RunTiming>,
}

impl<'a> World<'a> {
    fn new(workload: &Workload, plan: &'a ExecutionPlan, costs: &[&'a CostProfile]) -> Self {
        let of_lane = |id: LaneId, kind| -> Vec<u32> {
            let mine = |turns: &mut dyn Iterator<Item = Turn>| {
                let mine = (0..).zip(turns).filter(|(_, turn)| turn.lane == id);
                mine.map(|(index, _)| index).collect()
            };
            match kind {
                LaneKind::Load => mine(&mut plan.loads.iter().map(|l| l.turn)),
                LaneKind::Compute => mine(&mut plan.computes.iter().map(|c| c.turn)),
                LaneKind::Store => mine(&mut plan.stores.iter().map(|s| s.turn)),
            }
        };
        let mut at = vec![At::Moves(0); plan.lanes.len()];
        let (mut moves, mut computes) = (Vec::new(), Vec::new());
        for kind in [LaneKind::Store, LaneKind::Load, LaneKind::Compute] {
            for (id, lane) in plan.lanes.iter().filter(|(_, lane)| lane.kind == kind) {
                let (actions, costs) = (of_lane(id, kind), costs[id.index()]);
                if kind == LaneKind::Compute {
                    let ns = |&c: &u32| costs.compute_ns(workload, &plan.computes[c as usize]);
                    let ns = actions.iter().map(ns).collect();
                    at[id.index()] = At::Computes(computes.len());
                    computes.push(Computes::new(id, actions, ns, costs));
                } else {
                    at[id.index()] = At::Moves(moves.len());
                    let is_grouped = plan.group_bytes > 0;
                    moves.push(Transfers::new((id, lane), actions, costs, is_grouped));
                }
            }
        }
        World {
            always_looks: plan.lanes != Lanes::default(),
            plan,
            at,
            moves,
            computes,
            now: 0,
            run: RunTiming::default(),
            run_begins: [0; 2],
            timings: Vec::new(),
        }
    }

    /// The run that computes are done for.
    fn run(&self) -> u64 {
        self.timings.len() as u64
    }

    /// Since when a wait of an action of that run has held; `None` if it does not.
    fn held_since(&self, wait: Wait, run: u64) -> Option<u64> {
        let Some(run) = run.checked_sub(wait.run_back.into()) else {
            return Some(0);
        };
        let count = u64::from(wait.count);
        if run > self.run() {
            return None;
        }
        match self.at[wait.lane.index()] {
            At::Moves(lane) => {
                let lane = &self.moves[lane];
                let holds = lane.known() >= run * lane.per_run() + count;
                holds.then(|| lane.known_at(run, count))
            }
            At::Computes(_) if count == 0 => Some(self.run_begins[(run % 2) as usize]),
            At::Computes(lane) => {
                let lane = &self.computes[lane];
                let holds = lane.done >= run * lane.n() + count;
                holds.then(|| lane.done_at(run, count))
            }
        }
    }

    /// Since when an action of that run might have started, but for its lane; `None` if it may not.
    fn ready_since(&self, turn: Turn, run: u64) -> Option<u64> {
        let mut since = 0;
        if let Some(begun) = run.checked_sub(turn.run_back().into()) {
            if begun > self.run() {
                return None;
            }
            since = self.run_begins[(begun % 2) as usize];
        }
        for wait in turn.waits() {
            since = since.max(self.held_since(wait, run)?);
        }
        Some(since)
    }

    /// Whether the stores that a load of that run waits for are complete, as far as is known.
    fn admits(&self, load: &Load, run: u64) -> bool {
        let is_store = |wait: &Wait| self.plan.lanes.kind(wait.lane) == Some(LaneKind::Store);
        let mut waits = load.turn.waits().filter(is_store);
        waits.all(|wait| self.held_since(wait, run).is_some())
    }

    /// Waits of a compute for lanes of loads: the lane's place, and how many over all runs.
    fn loads_of(&self, compute: &Compute) -> impl Iterator<Item = (usize, u64)> {
        compute.turn.waits().filter_map(|wait| {
            let At::Moves(lane) = self.at[wait.lane.index()] else {
                return None;
            };
            let moves = &self.moves[lane];
            let number = self.run() * moves.per_run() + u64::from(wait.count);
            (moves.kind == LaneKind::Load).then_some((lane, number))
        })
    }

    /// Which file the next compute waits for: that of activations, or that of weights.
    fn waits_for_spill(&self, compute: &Compute) -> bool {
        let missing = self.loads_of(compute);
        let mut missing = missing.filter(|&(lane, number)| self.moves[lane].complete < number);
        let next = missing.next().and_then(|(lane, _)| {
            let moves = &self.moves[lane];
            moves.action(moves.complete)
        });
        next.is_none_or(|(run, load)| {
            let load = &self.plan.loads[load];
            reads_spill(self.plan, load) || !self.admits(load, run)
        })
    }

    /// The thread that computes looks what is complete.
    fn look(&mut self) {
        for lane in &mut self.moves {
            lane.look(self.now);
        }
    }

    /// Everything that may start now, until nothing more may.
    fn start_what_can(&mut self, runs: u32, span: &mut dyn FnMut(Span)) {
        loop {
            let mut any = false;
            for lane in 0..self.moves.len() {
                any |= match self.moves[lane].kind {
                    LaneKind::Store => self.start_stores(lane),
                    _ => self.start_loads(lane, runs),
                };
            }
            for lane in 0..self.computes.len() {
                any |= self.start_compute(lane, span);
            }
            any |= self.end_run(runs);
            if !any || self.run() == u64::from(runs) {
                return;
            }
        }
    }

    /// When the loads that it waits for have been there for long enough, of those that are complete.
    fn awake_ns(&self, lane: &Computes, compute: &Compute) -> u64 {
        let there = self.loads_of(compute).filter_map(|(moves, number)| {
            let moves = &self.moves[moves];
            let in_run = number - self.run() * moves.per_run();
            let is_there = in_run > 0 && moves.complete >= number;
            is_there.then(|| moves.known_at(self.run(), in_run) + lane.costs.wake_ns)
        });
        there.max().unwrap_or(0)
    }

    fn start_stores(&mut self, lane: usize) -> bool {
        let mut any = false;
        while let Some((run, index)) = self.moves[lane].action(self.moves[lane].started)
            && self.moves[lane].has_room()
        {
            let store = &self.plan.stores[index];
            let Some(ready_ns) = self.ready_since(store.turn, run) else {
                break;
            };
            let bytes = self.moves[lane].costs.moved_back_bytes(self.plan, store);
            self.moves[lane].start(self.now, ready_ns, bytes);
            any = true;
        }
        any
    }

    fn start_loads(&mut self, lane: usize, runs: u32) -> bool {
        let mut any = false;
        let mut room = self.plan.group_bytes;
        if self.moves[lane].is_grouped && !self.moves[lane].in_flight.is_empty() {
            return false;
        }
        while let Some((run, index)) = self.moves[lane].action(self.moves[lane].started)
            && (self.moves[lane].is_grouped || self.moves[lane].has_room())
        {
            let load = &self.plan.loads[index];
            if self.moves[lane].is_grouped && any && load.bytes > room {
                break;
            }
            room = room.saturating_sub(load.bytes);
            let Some(ready_ns) = self.ready_since(load.turn, run) else {
                break;
            };
            if run >= u64::from(runs) {
                break;
            }
            let bytes = self.moves[lane].costs.moved_bytes(self.plan, load);
            self.moves[lane].start(self.now, ready_ns, bytes);
            any = true;
        }
        any
    }

    /// What is handled before a compute takes of its lane: loads that nobody needed yet, and stores that follow the
    /// compute before it.
    fn pay(&mut self, lane: usize, at: usize) {
        let plan = self.plan;
        let compute = &plan.computes[self.computes[lane].actions[at] as usize];
        let costs = self.computes[lane].costs;
        let wanted: Vec<_> = self.loads_of(compute).collect();
        let mut ns = 0;
        for (moves, number) in wanted {
            let first = self.run() * self.moves[moves].per_run();
            let moves = &mut self.moves[moves];
            let from = moves.handled.max(first);
            for load in (from..number).filter_map(|number| moves.action(number)) {
                ns += costs.load_ns(plan.loads[load.1].bytes);
            }
            moves.handled = from.max(number);
        }
        let here = self.computes[lane].lane;
        let stores = plan.stores.iter();
        let stores = stores.filter(|s| s.turn.count(here) as usize == at && at > 0);
        ns += stores.map(|s| costs.load_ns(s.bytes)).sum::<u64>();
        self.computes[lane].free_ns += ns;
        self.computes[lane].is_paid = true;
    }

    fn start_compute(&mut self, lane: usize, span: &mut dyn FnMut(Span)) -> bool {
        let run = self.run();
        let Some(at) = self.computes[lane].next(run) else {
            return false;
        };
        if !self.computes[lane].is_paid {
            self.pay(lane, at);
        }
        let this = &self.computes[lane];
        let action = this.actions[at];
        let compute = &self.plan.computes[action as usize];
        if self.ready_since(compute.turn, run).is_none()
            || self.now < this.free_ns.max(self.awake_ns(this, compute))
        {
            return false;
        }
        let this = &mut self.computes[lane];
        self.run.stall_ns += self.now - this.free_ns;
        let end_ns = self.now + this.ns[at];
        span(Span {
            lane: this.lane,
            run: run as u32,
            action,
            ready_ns: this.ready_ns,
            start_ns: self.now,
            end_ns,
        });
        this.computing = Some(end_ns);
        true
    }

    /// A run is over when its computes are done and its stores complete.
    fn end_run(&mut self, runs: u32) -> bool {
        let next = self.run() + 1;
        let computed = self.computes.iter().all(|c| c.done >= next * c.n());
        let mut stores = self.moves.iter().filter(|m| m.kind == LaneKind::Store);
        if self.run() >= u64::from(runs)
            || !computed
            || !stores.all(|s| s.complete >= next * s.per_run())
        {
            return false;
        }
        self.run.end_ns = self.now;
        for lane in self.computes.iter_mut() {
            if lane.n() > 0 {
                self.run.stall_ns += self.now.saturating_sub(lane.free_ns);
            }
            lane.ready_ns = self.now;
            lane.free_ns = self.now;
        }
        self.timings.push(self.run);
        self.run = RunTiming {
            start_ns: self.now,
            end_ns: self.now,
            stall_ns: 0,
        };
        self.run_begins[(next % 2) as usize] = self.now;
        self.look();
        true
    }

    /// How fast a lane moves now, as a share of its full rate.
    fn rate(&self, lane: usize) -> f64 {
        let this = &self.moves[lane];
        let others = self.moves.iter().filter(|m| m.link == this.link);
        let (mut same_way, mut other_way) = (0u32, 0u32);
        for other in others.filter(|m| m.is_moving(self.now)) {
            match other.kind == this.kind {
                true => same_way += 1,
                false => other_way += 1,
            }
        }
        let is_shared = other_way > 0 && same_way > 0;
        let share = if is_shared { this.both_ways } else { 1.0 };
        share / f64::from(same_way.max(1))
    }

    /// Goes on to the next thing that happens; false if nothing will.
    fn advance(&mut self, span: &mut dyn FnMut(Span)) -> bool {
        let (now, run) = (self.now, self.run());
        let rates: Vec<f64> = (0..self.moves.len()).map(|lane| self.rate(lane)).collect();
        let mut next = None;
        let mut happens = |at: Option<u64>| next = next.into_iter().chain(at).min();
        // What waits: when its lane is free, and for which file.
        let mut waiting = Vec::with_capacity(self.computes.len());
        for lane in &self.computes {
            happens(lane.computing);
            let Some(at) = lane.next(run) else { continue };
            let compute = &self.plan.computes[lane.actions[at] as usize];
            happens(Some(lane.free_ns).filter(|&free_ns| lane.is_paid && free_ns > now));
            happens(Some(self.awake_ns(lane, compute)).filter(|&awake_ns| awake_ns > now));
            waiting.push((lane.free_ns, self.waits_for_spill(compute)));
        }
        for (lane, &rate) in self.moves.iter().zip(&rates) {
            happens(lane.next_event(now, rate));
        }
        let Some(next) = next else {
            return false;
        };
        let mut looks = waiting.iter().any(|&(free_ns, _)| free_ns == next);
        self.now = next;
        // Loads before stores, where both are complete.
        for (lane, rate) in self.moves.iter_mut().zip(rates).rev() {
            lane.pass(now, (next - now) as f64 * rate);
            while lane.take_moved(next) {
                let load = lane
                    .action(lane.complete)
                    .filter(|_| lane.kind == LaneKind::Load);
                let is_spill =
                    load.is_none_or(|(_, load)| reads_spill(self.plan, &self.plan.loads[load]));
                if !lane.is_grouped || lane.in_flight.is_empty() {
                    looks |= waiting.iter().any(|&(_, for_spill)| for_spill == is_spill);
                    lane.arrive(next, span);
                }
            }
        }
        let mut ended = None;
        for lane in &mut self.computes {
            if lane.computing == Some(next) {
                lane.end(next);
                // After the last one it looks when the next run begins.
                let more = !lane.done.is_multiple_of(lane.n());
                ended = Some(ended.unwrap_or(false) || more);
            }
        }
        if ended.unwrap_or(looks) || self.always_looks {
            self.look();
        }
        true
    }
}

fn reads_spill(plan: &ExecutionPlan, load: &Load) -> bool {
    plan.kind(load.from.space) == Some(SpaceKind::Spill)
}
