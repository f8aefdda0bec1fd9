//! The simulator says what the executor does: the real executor under virtual time, on a device as the cost
//! profile describes it, has the simulator's timeline to the nanosecond.
//!
//! What the executor's thread sees of a load is when it handed it over and when it looked next:
//!
//! ```text
//!   simulated   ready ├─ queue ─┤ start ├──────────┤ end
//!   executor          ├──────────────────────────────────┤ the next compute's begin, or at once in a stall
//! ```
//!
//! Beside a compute it looks again and again where loads go in groups: the clock stops within computes
//! then, whenever something happens on the link, and a group is seen when it is there.
//!
//! Of plans that store activations, hand-overs are compared, not when it looked: in a stall it waits for one
//! file and finds what the other has done meanwhile.

use crate::support::link::{LinkModel, ports};
use crate::support::{Model, Random, image_model, options, random_model, skip_model, within};
use neap_plan::{ExecutionPlan, LaneId, Span, Timeline};
use neap_planner::{PlanOptions, Planner, Strategy as Planning};
use neap_runtime::{BackingStore, Clock, Session};
use neap_sim::{CostProfile, simulate};
use neap_store::{Spill, VirtualClock};
use proptest::prelude::*;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const RUNS: u32 = 4;

/// Virtual time in which each compute takes what the cost profile says.
struct CostClock {
    time: VirtualClock,
    compute_ns: Vec<u64>,
    /// What to stop for while a compute goes on: when something happens next.
    stops: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    /// The end of the compute that goes on.
    end_ns: Option<u64>,
}

impl Clock for CostClock {
    fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    fn passes(&mut self, compute: usize) -> bool {
        let begin_ns = self.time.now_ns();
        let end_ns = *self
            .end_ns
            .get_or_insert(begin_ns + self.compute_ns[compute]);
        if let Some(stop_ns) = (self.stops)()
            && stop_ns < end_ns
        {
            self.time.advance_to_ns(stop_ns);
            return true;
        }
        self.time.advance_to_ns(end_ns);
        self.end_ns = None;
        false
    }
}

/// The link of a profile; its rates give whole nanoseconds per byte. Groups know no depth.
fn link(costs: &CostProfile, in_groups: bool) -> LinkModel {
    let ns_per_byte = |bytes_per_second: f64| (1e9 / bytes_per_second) as u64;
    LinkModel {
        load_ns_per_byte: ns_per_byte(costs.storage_bytes_per_second),
        store_ns_per_byte: ns_per_byte(costs.store_bytes_per_second),
        latency_ns: costs.request_latency_ns,
        depth: if in_groups {
            usize::MAX
        } else {
            costs.queue_depth as usize
        },
        reports_together: in_groups,
        is_shared: costs.both_ways_rate() < costs.storage_bytes_per_second + costs.store_rate(),
    }
}

fn executed(model: &Model, plan: &ExecutionPlan, costs: &CostProfile, threads: usize) -> Timeline {
    let time = VirtualClock::new();
    let in_groups = plan.group_bytes > 0;
    let link = link(costs, in_groups);
    let [weights, spill] = ports(link, &model.file, plan.spill_bytes(), time.clone());
    let computes = plan.computes.iter();
    let compute_ns = computes.map(|c| costs.compute_ns(&model.workload, c));
    let clock = CostClock {
        time,
        compute_ns: compute_ns.collect(),
        // Otherwise there is nothing to do before the compute's end.
        stops: if in_groups {
            Box::new(weights.next())
        } else {
            Box::new(|| None)
        },
        end_ns: None,
    };
    let mut session = Session::open_with_clock(
        model.program.clone(),
        model.checked(plan).unwrap(),
        BackingStore {
            source: Box::new(weights),
            verifier: model.verifier(),
            spill: (!plan.stores.is_empty()).then(|| Box::new(spill) as Box<dyn Spill>),
        },
        options(threads),
        clock,
    )
    .unwrap();
    // The simulator's first run finds resident weights in memory, and the first loads begin with it.
    session.settle().unwrap();
    session.rest();
    session.wake();
    session.record_timeline(RUNS as usize);
    for _ in 0..RUNS {
        model.run(&mut session).unwrap();
    }
    let mut timeline = session.take_timeline().unwrap();
    // Reading what is resident took time before.
    let opened_ns = timeline.runs[0].start_ns;
    for span in &mut timeline.spans {
        span.ready_ns -= opened_ns;
        span.start_ns -= opened_ns;
        span.end_ns -= opened_ns;
    }
    for run in &mut timeline.runs {
        run.start_ns -= opened_ns;
        run.end_ns -= opened_ns;
    }
    timeline
}

/// What of a simulation the executor's thread sees in its first [`RUNS`] runs.
fn seen(simulated: &Timeline, in_groups: bool) -> Timeline {
    let of = |lane| {
        simulated
            .spans
            .iter()
            .filter(move |s: &&Span| s.lane == lane)
    };
    let computes: Vec<Span> = of(LaneId::COMPUTE)
        .filter(|s| s.run < RUNS)
        .copied()
        .collect();
    let mut handed_over_ns = 0;
    let loads = of(LaneId::LOAD).filter_map(|load| {
        handed_over_ns = match in_groups {
            true => load.start_ns,
            false => load.ready_ns.max(handed_over_ns),
        };
        // Those are under way since the session was opened, before anything was recorded.
        if handed_over_ns == 0 {
            return None;
        }
        let looked_ns = if in_groups {
            // At its end, unless all computes that are compared are done by then.
            let last = computes.last()?;
            (load.end_ns < last.end_ns).then_some(load.end_ns)?
        } else {
            // The first look at or after its end: before a compute, or at any time while one waits.
            let next = computes.partition_point(|c| c.start_ns < load.end_ns);
            computes.get(next)?.ready_ns.max(load.end_ns)
        };
        Some(Span {
            ready_ns: handed_over_ns,
            start_ns: handed_over_ns,
            end_ns: looked_ns,
            ..*load
        })
    });
    let loads: Vec<Span> = loads.collect();
    let stores = of(LaneId::STORE)
        .filter(|s| s.run < RUNS)
        .map(|store| Span {
            start_ns: store.ready_ns,
            ..*store
        });
    let stores: Vec<Span> = stores.collect();
    Timeline {
        spans: computes.into_iter().chain(loads).chain(stores).collect(),
        runs: simulated.runs[..RUNS as usize].to_vec(),
    }
}

fn in_order(mut timeline: Timeline) -> Timeline {
    timeline.spans.sort_by_key(|s| {
        (
            s.lane == LaneId::LOAD,
            s.lane == LaneId::STORE,
            s.run,
            s.action,
        )
    });
    timeline
}

fn same_events(model: &Model, plan: &ExecutionPlan, costs: &CostProfile, threads: usize) -> usize {
    // One run more: its first loads may arrive in the last that is compared.
    let simulated = simulate(&model.workload, plan, costs, RUNS + 1);
    let (expected, found) = (
        in_order(seen(&simulated, plan.group_bytes > 0)),
        in_order(executed(model, plan, costs, threads)),
    );
    assert_eq!(found.runs, expected.runs);
    if plan.stores.is_empty() {
        assert_eq!(found.spans.len(), expected.spans.len());
        for (found, expected) in found.spans.iter().zip(&expected.spans) {
            assert_eq!(found, expected);
        }
        return plan.loads.len();
    }
    let handed_over = |timeline: &Timeline| -> Vec<Span> {
        let spans = timeline.spans.iter().filter(|s| s.run < RUNS);
        let times = spans.map(|span| match span.lane {
            LaneId::COMPUTE => *span,
            _ => Span { end_ns: 0, ..*span },
        });
        times.collect()
    };
    let (found, expected) = (handed_over(&found), handed_over(&expected));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
    plan.loads.len()
}

/// Plans of two lanes, or of three where the budget is too small for them.
fn planner(model: &Model, spill: bool) -> Planner<'_> {
    let options = PlanOptions {
        spill,
        ..PlanOptions::default()
    };
    Planner::with_options(&model.workload, options)
}

/// Random times of steps, and a device of a random speed.
fn random_costs(random: &mut Random, model: &Model) -> CostProfile {
    let mut rate = || 1e9 / [1.0, 2.0, 4.0, 5.0, 10.0][random.below(5)];
    let (loads, stores) = (rate(), rate());
    let both_ways = loads + stores;
    let both_ways = [both_ways, both_ways / 2.0][random.below(2)];
    let steps = model.workload.steps.iter();
    let scale = 1 + random.below(200_000);
    CostProfile {
        storage_bytes_per_second: loads,
        store_bytes_per_second: stores,
        both_ways_bytes_per_second: both_ways,
        request_latency_ns: random.below(200_000) as u64,
        queue_depth: 1 + random.below(9) as u32,
        compute_overhead_ns: random.below(20_000) as u64,
        slice_overhead_ns: random.below(20_000) as u64,
        load_handling_ns: 0,
        load_handling_ns_per_byte: 0.0,
        wake_ns: 0,
        step_ns: steps.map(|_| 1 + random.below(scale) as u64).collect(),
        ..CostProfile::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_executor_does_what_the_simulator_says(
        seed in any::<u64>(),
        layers in 1usize..16,
        share in (0u64..=1000).prop_map(|s| s as f64 / 1000.0),
        threads in 1usize..=2,
        preload in any::<bool>(),
        group_blocks in 0u64..16,
    ) {
        within(LIMIT, move || {
            let mut random = Random(seed | 1);
            let model = random_model(seed, layers, 3);
            let costs = CostProfile {
                // In half of the cases, none.
                group_bytes: group_blocks.saturating_sub(7) * 4096,
                ..random_costs(&mut random, &model)
            };
            let planner = planner(&model, false);
            let strategy = if preload { Planning::Preload } else { Planning::Search };
            let (least, most) = (planner.smallest_bytes_of(strategy), model.unlimited_bytes());
            let budget = least + ((most - least) as f64 * share * share) as u64;
            let planned = planner.plan(budget, strategy, &costs).unwrap();
            same_events(&model, &planned.plan, &costs, threads);
        });
    }
}

#[test]
fn images_under_every_budget() {
    images(11, 0);
}

#[test]
fn images_in_groups_under_every_budget() {
    images(12, 64 << 10);
}

fn images(seed: u64, group_bytes: u64) {
    within(LIMIT, move || {
        let model = image_model(seed);
        let mut random = Random(seed + 1);
        let planner = planner(&model, false);
        let mut loads = 0;
        for eighth in 0..=8 {
            for strategy in [Planning::Preload, Planning::Search] {
                let (least, most) = (planner.smallest_bytes_of(strategy), model.unlimited_bytes());
                let budget = least + (most - least) * eighth / 8;
                let costs = CostProfile {
                    group_bytes,
                    ..random_costs(&mut random, &model)
                };
                let planned = planner.plan(budget, strategy, &costs).unwrap();
                assert_eq!(planned.plan.group_bytes > 0, group_bytes > 0);
                loads += same_events(&model, &planned.plan, &costs, 2);
            }
        }
        assert!(loads > 50, "{loads} loads: too few to say anything");
    });
}

/// The plan of the smallest budget for which some activations leave memory.
fn stored(model: &Model, share: f64, costs: &CostProfile) -> Option<ExecutionPlan> {
    let (least, most) = [true, false]
        .map(|spill| planner(model, spill).smallest_feasible_bytes())
        .into();
    let budget = least + ((most - least) as f64 * share) as u64;
    let planned = planner(model, true).plan(budget, Planning::Preload, costs);
    let plan = planned.unwrap().plan;
    (!plan.stores.is_empty()).then_some(plan)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn so_it_does_when_activations_are_stored(
        seed in any::<u64>(),
        layers in 1usize..16,
        share in (0u64..1000).prop_map(|s| s as f64 / 1000.0),
        threads in 1usize..=2,
    ) {
        within(LIMIT, move || {
            let mut random = Random(seed | 1);
            // Rows enough for activations of whole blocks.
            let model = random_model(seed, layers, 64).keeping();
            let costs = random_costs(&mut random, &model);
            if let Some(plan) = stored(&model, share, &costs) {
                same_events(&model, &plan, &costs, threads);
            }
        });
    }
}

#[test]
fn activations_are_stored_in_every_budget_below_what_they_take() {
    within(LIMIT, || {
        let mut random = Random(13);
        let (mut stores, mut from_spill) = (0, 0);
        for (model, seed) in [
            skip_model(14),
            skip_model(15).keeping(),
            image_model(16).keeping(),
        ]
        .into_iter()
        .zip(0..)
        {
            for eighth in 0..8 {
                let costs = random_costs(&mut random, &model);
                if let Some(plan) = stored(&model, f64::from(eighth) / 8.0, &costs) {
                    same_events(&model, &plan, &costs, 1 + seed % 2);
                    stores += plan.stores.len();
                    from_spill += plan.returns.len();
                }
            }
        }
        assert!(
            stores > 30 && from_spill > 5,
            "{stores} {from_spill}: too few to say anything"
        );
    });
}
