//! The discrete-event simulation: two lanes with the executor's rules; plans that store activations or name other
//! lanes are played by [`crate::lanes`].
//!
//! ```text
//!   load lane      in plan order; load j starts when its `after` holds, those before it have started,
//!                  and fewer than `queue_depth` loads are in flight; then latency, then its turn at the
//!                  storage's bandwidth. In groups: when the group before is complete, all loads that may
//!                  start by then; they are complete when the last of them is
//!   compute lane   in plan order; compute i starts when i−1 is done and the first `needs` loads of its
//!                  run are complete; the wait is its stall. Before it, the lane handles the loads
//!                  that no compute needed yet, which takes nothing when it would wait anyway:
//!                  start(i) = max( end(i−1) + handling, end of the loads it needs + waking )
//!                  A compute that reads rows itself waits, once it has begun, for the groups that are on their way
//! ```
//!
//! Completion times are all one needs: each action is visited once, in an order in which everything it
//! waits for is known (a valid plan has no cycle), so a run costs O(actions).

use std::collections::VecDeque;

use neap_plan::{Compute, ExecutionPlan, LaneId, Lanes, RunTiming, Span, Timeline, Workload};

use crate::cost::rounded_ns;
use crate::{CostProfile, lanes};

/// The storage side of a [`CostProfile`].
#[derive(Clone, Copy, Debug)]
pub struct LoadCost {
    pub latency_ns: u64,
    pub ns_per_byte: f64,
    pub queue_depth: usize,
    /// See [`CostProfile::group_bytes`].
    pub group_bytes: u64,
    /// What each load takes from the compute lane.
    pub handling_ns: u64,
    pub handling_ns_per_byte: f64,
    /// See [`CostProfile::wake_ns`].
    pub wake_ns: u64,
}

impl LoadCost {
    fn handling_ns(&self, bytes: u64) -> u64 {
        self.handling_ns + rounded_ns(bytes as f64 * self.handling_ns_per_byte)
    }
}

impl From<&CostProfile> for LoadCost {
    fn from(costs: &CostProfile) -> Self {
        Self {
            latency_ns: costs.request_latency_ns,
            ns_per_byte: 1e9 / costs.storage_bytes_per_second,
            queue_depth: costs.queue_depth.max(1) as usize,
            group_bytes: costs.group_bytes,
            handling_ns: costs.load_handling_ns,
            handling_ns_per_byte: costs.load_handling_ns_per_byte,
            wake_ns: costs.wake_ns,
        }
    }
}

/// A compute: its time, and what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub ns: u64,
    /// So many loads of its run.
    pub needs: u32,
    /// It reads rows of a table from storage itself.
    pub reads: bool,
}

/// The steady state that a plan settles in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    pub latency_ns: u64,
    pub stall_ns: u64,
    /// Sum of compute times. What is left of the latency is handling loads.
    pub compute_ns: u64,
}

/// Plays plans; keeps its memory from one to the next.
///
/// The plan is given as plain numbers, so that a planner can try thousands without building them:
/// `loads[j] = (bytes, run_back, computes)`.
#[derive(Default)]
pub struct Simulator {
    /// Completion of each load of the run at hand.
    load_done: Vec<u64>,
    /// End of each compute, of the run before and of the run at hand.
    before: Vec<u64>,
    now: Vec<u64>,
    /// Start and stall of each compute in the last run played.
    starts: Vec<u64>,
    stalls: Vec<u64>,
    runs: Vec<RunTiming>,
}

/// Carries the load lane's state from action to action and run to run.
struct LoadLane {
    cost: LoadCost,
    /// When the storage is free again.
    free_at: u64,
    /// When the last load started.
    started: u64,
    /// Completion of the last `queue_depth` loads, as a ring.
    in_flight: [u64; MAX_DEPTH],
    count: usize,
    /// Handed over in a group and not yet asked for: when each could start, and the group's start and end.
    group: VecDeque<(u64, u64, u64)>,
}

const MAX_DEPTH: usize = 64;

impl LoadLane {
    fn new(cost: LoadCost) -> Self {
        let cost = LoadCost {
            queue_depth: cost.queue_depth.clamp(1, MAX_DEPTH),
            ..cost
        };
        Self {
            cost,
            free_at: 0,
            started: 0,
            in_flight: [0; MAX_DEPTH],
            count: 0,
            group: VecDeque::new(),
        }
    }

    /// Starts the next load, eligible from `ready`; returns its start and completion.
    fn load(&mut self, ready: u64, bytes: u64) -> (u64, u64) {
        let slot = self.count % self.cost.queue_depth;
        let start = ready.max(self.started).max(self.in_flight[slot]);
        let first_byte = (start + self.cost.latency_ns).max(self.free_at);
        let done = first_byte + rounded_ns(bytes as f64 * self.cost.ns_per_byte);
        self.started = start;
        self.free_at = done;
        self.in_flight[slot] = done;
        self.count += 1;
        (start, done)
    }

    /// Starts a group with a load that is eligible from `ready`; `next` tells when one of those after it will
    /// be, if that is known, and its bytes.
    fn start_group(&mut self, ready: u64, bytes: u64, next: impl Fn(usize) -> Option<(u64, u64)>) {
        let first = self.group.len();
        let start = ready.max(self.free_at);
        let move_ns = |bytes: u64| rounded_ns(bytes as f64 * self.cost.ns_per_byte);
        let mut end = start + self.cost.latency_ns + move_ns(bytes);
        let mut room = self.cost.group_bytes.saturating_sub(bytes);
        self.group.push_back((ready, start, 0));
        while let Some((ready, bytes)) = next(self.group.len() - first - 1)
            && ready <= start
            && bytes <= room
        {
            room -= bytes;
            end += move_ns(bytes);
            self.group.push_back((ready, start, 0));
        }
        for load in self.group.range_mut(first..) {
            load.2 = end;
        }
        self.free_at = end;
    }
}

/// What is known when compute `computed` is looked at: the ends of those before it.
struct Known<'a> {
    loads: &'a [(u64, u32, u32)],
    now: &'a [u64],
    before: &'a [u64],
    computed: usize,
    run_start: u64,
    start_before: u64,
    /// The run at hand is the last one.
    is_last: bool,
}

impl Known<'_> {
    /// When a load may start, and its bytes. Indices go on into the next run. `None` if that is not known yet.
    fn ready(&self, index: usize) -> Option<(u64, u64)> {
        let is_next_run = index >= self.loads.len();
        if is_next_run && self.is_last || index >= 2 * self.loads.len() {
            return None;
        }
        let &(bytes, back, after) = self.loads.get(index % self.loads.len())?;
        let after = after as usize;
        let ready = match (back, is_next_run) {
            (0, true) => return None,
            (0, false) | (1, true) if after == 0 => self.run_start,
            (0, false) | (1, true) if after <= self.computed => self.now[after - 1],
            // Waits for a compute that is itself still to come.
            (0, false) | (1, true) => return None,
            _ if after == 0 => self.start_before,
            _ => self.before.get(after - 1).copied().unwrap_or(0),
        };
        Some((ready, bytes))
    }
}

impl Simulator {
    /// Plays `runs` runs back to back and hands every span to `span`. The last run is the prediction.
    ///
    /// A plan that cannot make progress (the validator refuses it) ends with a latency of `u64::MAX`.
    pub fn play(
        &mut self,
        cost: LoadCost,
        loads: &[(u64, u32, u32)],
        computes: &[Work],
        runs: u32,
        mut span: impl FnMut(Span),
    ) -> Prediction {
        let n = computes.len();
        let compute_ns = computes.iter().map(|c| c.ns).sum();
        let stuck = Prediction {
            latency_ns: u64::MAX,
            stall_ns: u64::MAX,
            compute_ns,
        };
        for v in [
            &mut self.before,
            &mut self.now,
            &mut self.starts,
            &mut self.stalls,
        ] {
            v.clear();
            v.resize(n, 0);
        }
        self.load_done.clear();
        self.load_done.resize(loads.len(), 0);
        let mut lane = LoadLane::new(cost);
        let mut clock = 0;
        let mut run_start = 0;
        self.runs.clear();
        for run in 0..runs {
            std::mem::swap(&mut self.before, &mut self.now);
            let start_before = std::mem::replace(&mut run_start, clock);
            let mut next_load = 0;
            let mut stall_ns = 0;
            for (i, &Work { ns, needs, reads }) in computes.iter().enumerate() {
                let ready_ns = clock;
                let known = Known {
                    loads,
                    now: &self.now,
                    before: &self.before,
                    computed: i,
                    run_start,
                    start_before,
                    is_last: run + 1 == runs,
                };
                // Everything that this compute waits for, and no more: later loads may depend on it.
                while next_load < needs as usize {
                    let known_load = (next_load < loads.len()).then(|| known.ready(next_load));
                    let Some((ready, bytes)) = known_load.flatten() else {
                        return stuck;
                    };
                    let (ready, start_ns, end_ns) = if cost.group_bytes == 0 {
                        let (start_ns, end_ns) = lane.load(ready, bytes);
                        (ready, start_ns, end_ns)
                    } else {
                        if lane.group.is_empty() {
                            // What ends after this compute begins is not known yet, and too late: that
                            // waits for this group.
                            lane.start_group(ready, bytes, |ahead| {
                                known.ready(next_load + 1 + ahead)
                            });
                        }
                        lane.group.pop_front().unwrap_or_default()
                    };
                    self.load_done[next_load] = end_ns;
                    clock += cost.handling_ns(bytes);
                    span(Span {
                        lane: LaneId::LOAD,
                        run,
                        action: next_load as u32,
                        ready_ns: ready,
                        start_ns,
                        end_ns,
                    });
                    next_load += 1;
                }
                let loaded = match needs {
                    0 => 0,
                    k => self.load_done[k as usize - 1] + cost.wake_ns,
                };
                let start_ns = clock.max(loaded);
                let mut end_ns = start_ns + ns;
                if reads && cost.group_bytes > 0 {
                    while let Some((ready, bytes)) = known.ready(next_load + lane.group.len())
                        && ready.max(lane.free_at) <= start_ns
                    {
                        let after = next_load + lane.group.len() + 1;
                        lane.start_group(ready, bytes, |ahead| known.ready(after + ahead));
                    }
                    end_ns = start_ns.max(lane.free_at) + ns;
                    lane.free_at = end_ns;
                }
                self.starts[i] = start_ns;
                self.stalls[i] = start_ns - clock;
                stall_ns += start_ns - clock;
                span(Span {
                    lane: LaneId::COMPUTE,
                    run,
                    action: i as u32,
                    ready_ns,
                    start_ns,
                    end_ns,
                });
                self.now[i] = end_ns;
                clock = end_ns;
            }
            self.runs.push(RunTiming {
                start_ns: run_start,
                end_ns: clock,
                stall_ns,
            });
        }
        let last = self.runs.last().copied().unwrap_or_default();
        Prediction {
            latency_ns: last.latency_ns(),
            stall_ns: last.stall_ns,
            compute_ns,
        }
    }

    /// Stall before each compute in the last run played.
    pub fn stalls(&self) -> &[u64] {
        &self.stalls
    }

    /// How long before the compute's start the load was complete, in the last run played.
    pub fn slack_ns(&self, load: usize, compute: usize) -> u64 {
        self.starts[compute].saturating_sub(self.load_done[load])
    }
}

/// Plays `runs` runs of a valid plan and keeps everything that happened.
pub fn simulate(
    workload: &Workload,
    plan: &ExecutionPlan,
    costs: &CostProfile,
    runs: u32,
) -> Timeline {
    let (loads, computes) = numbers(workload, plan, costs);
    let spans = (loads.len() + computes.len() + plan.stores.len()) * runs as usize;
    let mut timeline = Timeline::with_capacity(spans, runs as usize);
    if !is_simple(plan) {
        return lanes::simulate_lanes(workload, plan, &vec![costs; plan.lanes.len()], runs);
    }
    let mut simulator = Simulator::default();
    simulator.play(load_cost(plan, costs), &loads, &computes, runs, |span| {
        timeline.record(span);
    });
    timeline.runs.extend(simulator.runs);
    timeline
}

/// The steady state of a valid plan, without keeping spans.
pub fn predict(workload: &Workload, plan: &ExecutionPlan, costs: &CostProfile) -> Prediction {
    if !is_simple(plan) {
        let costs = vec![costs; plan.lanes.len()];
        return lanes::play(workload, plan, &costs, STEADY_RUNS, &mut |_| {}).0;
    }
    let (loads, computes) = numbers(workload, plan, costs);
    Simulator::default().play(
        load_cost(plan, costs),
        &loads,
        &computes,
        STEADY_RUNS,
        |_| {},
    )
}

/// One lane of loads and one of computes, which [`Simulator`] plays faster.
fn is_simple(plan: &ExecutionPlan) -> bool {
    plan.stores.is_empty() && plan.lanes == Lanes::default()
}

/// How loads are handed over is the plan's to say.
fn load_cost(plan: &ExecutionPlan, costs: &CostProfile) -> LoadCost {
    LoadCost {
        group_bytes: plan.group_bytes,
        ..LoadCost::from(costs)
    }
}

/// Runs until a cyclic plan has settled: the first fills the arena, the second shows the cycle.
pub const STEADY_RUNS: u32 = 3;

fn reads_rows(workload: &Workload, compute: &Compute) -> bool {
    workload.steps[compute.step.index()].rows.is_some() && compute.weights.table.is_none()
}

type Numbers = (Vec<(u64, u32, u32)>, Vec<Work>);

fn numbers(workload: &Workload, plan: &ExecutionPlan, costs: &CostProfile) -> Numbers {
    let loads = plan
        .loads
        .iter()
        .map(|l| {
            let bytes = costs.moved_bytes(plan, l);
            (bytes, l.after().run_back, l.after().computes)
        })
        .collect();
    let computes = plan
        .computes
        .iter()
        .map(|c| Work {
            ns: costs.compute_ns(workload, c),
            needs: c.needs(),
            reads: reads_rows(workload, c),
        })
        .collect();
    (loads, computes)
}
