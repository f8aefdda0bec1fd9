//! Results do not depend on budget, slicing, strategy, threads, or on how often a plan has run.

use crate::support::{
    Builder, Model, Random, ReplacePlan, image_model, mixed_model, random_model, within,
};
use neap_ir::op::Activation;
use neap_plan::{ByteRange, ExecutionPlan, LaneId, Timeline};
use neap_planner::{Planned, Planner, RefineOptions, Serial, Strategy};
use neap_runtime::{CancelToken, Clock, RuntimeError};
use neap_sim::CostProfile;
use neap_store::{FaultScript, MemoryModel};
use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};
use proptest::strategy::Strategy as _;
use std::ops::ControlFlow;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// A device that is slow enough for stalls.
fn slow() -> MemoryModel {
    MemoryModel {
        bytes_per_second: 200_000_000,
        latency_ns: 50_000,
        depth: 3,
        piece_bytes: 8192,
        max_loads: 1024,
    }
}

fn budgets(model: &Model) -> Vec<u64> {
    let (least, most) = (model.smallest_bytes(), model.unlimited_bytes());
    let mut budgets = vec![
        least,
        least + 4096,
        (2 * least + most) / 3,
        (least + most) / 2,
        most,
    ];
    budgets.retain(|b| *b >= least);
    budgets.dedup();
    budgets
}

fn same_under_all_budgets(model: &Model, runs: usize) {
    let expected = model.expected();
    for budget in budgets(model) {
        for strategy in [Strategy::Preload, Strategy::Search] {
            let plan = model.plan(budget, strategy);
            assert!(plan.memory_bytes() <= budget);
            for threads in [1, 2] {
                let mut session = model
                    .open(&plan, threads, slow(), FaultScript::default())
                    .unwrap();
                let mut first_stall_ns = 0;
                for run in 0..runs {
                    let found = model.run(&mut session).unwrap();
                    assert_eq!(found, expected, "{strategy:?} {budget} run {run}");
                    if run == 0 {
                        first_stall_ns = session.stats().stall_ns;
                    }
                }
                let stats = session.stats();
                assert_eq!(stats.runs, runs as u64);
                if plan.loads.is_empty() {
                    // Only for what stays from then on.
                    assert_eq!(stats.stall_ns, first_stall_ns);
                } else {
                    assert!(stats.loaded_bytes >= runs as u64 * plan.loaded_bytes_per_run());
                }
            }
        }
    }
}

#[test]
fn rows_and_slices_and_residuals() {
    within(LIMIT, || same_under_all_budgets(&mixed_model(1), 3));
}

#[test]
fn images() {
    within(LIMIT, || same_under_all_budgets(&image_model(2), 3));
}

#[test]
fn fifty_runs_in_a_row_with_changing_inputs() {
    within(LIMIT, || {
        let model = mixed_model(3);
        let resident = model.plan(u64::MAX, Strategy::Resident);
        let small = model.plan(model.smallest_bytes(), Strategy::Preload);
        let open = |plan| model.open(plan, 2, slow(), FaultScript::default()).unwrap();
        let (mut free, mut tight) = (open(&resident), open(&small));
        assert!(!small.loads.is_empty());
        free.settle().unwrap();
        let mut random = Random(99);
        for run in 0..50 {
            let mut inputs = model.inputs.clone();
            inputs[1] = crate::support::floats(&mut random, 500, 2.0);
            let expected = model.run_on(&mut free, &inputs).unwrap();
            assert_eq!(
                model.run_on(&mut tight, &inputs).unwrap(),
                expected,
                "run {run}"
            );
        }
        assert_eq!(free.stats().stall_ns, 0);
    });
}

/// Weights stay and go as a search says.
#[test]
fn searched_plans_give_the_same_bits() {
    within(LIMIT, || {
        let mut plans = 0;
        for model in [mixed_model(5), image_model(6)] {
            let expected = model.expected();
            for budget in budgets(&model) {
                let options = RefineOptions {
                    seed: 1,
                    generations: 4,
                };
                let planner = Planner::new(&model.workload);
                let costs = CostProfile::default();
                let go_on = &mut |_: &_| ControlFlow::Continue(());
                let found = planner.search(budget, &costs, &options, &Serial, go_on);
                let Ok(Planned { plan, .. }) = found else {
                    continue;
                };
                plans += u32::from(!plan.loads.is_empty());
                let mut session = model
                    .open(&plan, 2, slow(), FaultScript::default())
                    .unwrap();
                for run in 0..3 {
                    let found = model.run(&mut session).unwrap();
                    assert_eq!(found, expected, "{budget} run {run}");
                }
            }
        }
        assert!(plans >= 4, "{plans} plans that load");
    });
}

/// A linear layer against sums in f64, so that "the same everywhere" is also "right".
#[test]
fn a_linear_layer_is_right() {
    let mut b = Builder::new(4);
    let x = b.input("x", &[3, 37]);
    let y = b.linear(x, 21, Activation::Relu, None);
    b.output(y);
    let model = b.finish();
    let found = &model.expected()[0];
    let float = |bytes: &[u8], i: usize| {
        f64::from(f32::from_le_bytes(
            bytes[4 * i..4 * i + 4].try_into().unwrap(),
        ))
    };
    let packed = &model.program.packed[0];
    let weights = &model.file[packed.offset as usize..];
    let (x, panel) = (&model.inputs[0], (1 + 37) * 16);
    for row in 0..3 {
        for n in 0..21 {
            let at = |k: usize| n / 16 * panel + k * 16 + n % 16;
            let sum = (0..37).fold(float(weights, at(0)), |sum, k| {
                sum + float(x, row * 37 + k) * float(weights, at(1 + k))
            });
            let difference = float(found, row * 21 + n) - sum.max(0.0);
            assert!(
                difference.abs() < 1e-5,
                "[{row}, {n}] differs by {difference}"
            );
        }
    }
}

#[test]
fn rows_come_from_memory_or_storage() {
    let mut b = Builder::new(5);
    let indices = b.indices("indices", &[4, 9], 50);
    let rows = b.gather_rows(indices, 50, 700);
    b.output(rows);
    let mut model = b.finish();
    // Three windows of workspace for 36 indices: many batches.
    let mut found = Vec::new();
    for from_storage in [false, true] {
        let plan = if from_storage {
            model.plan(model.smallest_bytes(), Strategy::Preload)
        } else {
            model.plan(u64::MAX, Strategy::Resident)
        };
        assert_eq!(plan.computes[0].weights.table.is_none(), from_storage);
        let mut session = model
            .open(&plan, 1, slow(), FaultScript::default())
            .unwrap();
        found.push(model.run(&mut session).unwrap());
        assert_eq!(session.stats().loaded_bytes > 0, from_storage);
        for bad in [50i64, -51, i64::MIN, i64::MAX] {
            let good = std::mem::replace(
                &mut model.inputs[0],
                std::iter::repeat_n(bad.to_le_bytes(), 36)
                    .flatten()
                    .collect(),
            );
            let error = model.run(&mut session).unwrap_err().to_string();
            assert!(
                error.contains(&bad.to_string()) && error.contains("50 rows"),
                "{error}"
            );
            model.inputs[0] = good;
        }
        assert_eq!(
            model.run(&mut session).unwrap(),
            found[0],
            "usable afterwards"
        );
    }
    assert_eq!(found[0], found[1]);
    let table = &model.file[model.program.packed[0].offset as usize..];
    for (i, index) in model.inputs[0].chunks_exact(8).enumerate() {
        let index = i64::from_le_bytes(index.try_into().unwrap()).rem_euclid(50) as usize;
        assert_eq!(
            found[0][0][i * 2800..][..2800],
            table[index * 2800..][..2800]
        );
    }
}

#[test]
fn outputs_that_no_step_computes() {
    let mut b = Builder::new(6);
    let x = b.input("x", &[2, 3]);
    let constant = b.literal(neap_ir::Literal::from_f32(&[2], &[1.5, -2.0]));
    b.output(x);
    b.output(constant);
    let model = b.finish();
    let found = model.expected();
    assert_eq!(found[0], model.inputs[0]);
    assert_eq!(
        found[1],
        [1.5f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat()
    );
}

#[test]
fn another_plan_takes_over_between_runs() {
    within(LIMIT, || {
        let model = mixed_model(8);
        let expected = model.expected();
        let (least, most) = (model.smallest_bytes(), model.unlimited_bytes());
        let start = model.plan(most, Strategy::Preload);
        let mut session = model
            .open(&start, 2, slow(), FaultScript::default())
            .unwrap();
        assert_eq!(model.run(&mut session).unwrap(), expected);
        for budget in [least, (least + most) / 2, most, least] {
            let plan = model.plan(budget, Strategy::Preload);
            session.replace_plan(plan.clone(), &model.workload).unwrap();
            assert!(session.stats().arena_bytes <= budget.next_multiple_of(4096));
            assert_eq!(session.stats().resident_bytes, plan.resident_bytes());
            for _ in 0..3 {
                assert_eq!(model.run(&mut session).unwrap(), expected);
            }
            let mut wrong = plan;
            wrong.spaces[0].bytes = 0;
            session.replace_plan(wrong, &model.workload).unwrap_err();
            assert_eq!(
                model.run(&mut session).unwrap(),
                expected,
                "still the old plan"
            );
        }
    });
}

/// Budgets at random, up and down: the same bits, and of resident weights only what is new is read.
#[test]
fn plans_follow_each_other_without_reading_twice() {
    within(LIMIT, || {
        for (seed, model) in [
            (3, mixed_model(8)),
            (4, image_model(9)),
            (5, mixed_model(10)),
        ] {
            let mut random = Random(seed);
            let expected = model.expected();
            let (least, most) = (model.smallest_bytes(), model.unlimited_bytes());
            let mut plan = model.plan(least, Strategy::Preload);
            let mut session = model
                .open(&plan, 2, slow(), FaultScript::default())
                .unwrap();
            let (mut kept, mut read) = (0, 0);
            for turn in 0..20 {
                let budget = match turn % 5 {
                    0 => most,
                    3 => least,
                    _ => least + random.below((most - least) as usize + 1) as u64,
                };
                let before = std::mem::replace(&mut plan, model.plan(budget, Strategy::Preload));
                if random.below(2) == 0 {
                    session.rest();
                    assert_eq!(model.run(&mut session).unwrap(), expected);
                    session.rest();
                    session.wake();
                }
                let found = session.replace_plan(plan.clone(), &model.workload).unwrap();
                let was = |block: u64| {
                    let mut ranges = before.resident.iter();
                    ranges.any(|r| r.file_range().holds(ByteRange::at(block, 4096)))
                };
                let blocks = plan.resident.iter().flat_map(|r| {
                    let range = r.file_range();
                    (range.begin..range.end).step_by(4096)
                });
                let both = blocks.filter(|&block| was(block)).count() as u64 * 4096;
                assert_eq!(found.kept_bytes, both);
                assert_eq!(found.read_bytes, plan.resident_bytes() - both);
                assert_eq!(found.released_bytes, before.resident_bytes() - both);
                assert!(session.stats().arena_bytes <= plan.memory_bytes());
                kept += found.kept_bytes;
                read += found.read_bytes;
                for _ in 0..2 {
                    assert_eq!(model.run(&mut session).unwrap(), expected);
                }
            }
            assert!(kept > 0 && read > 0, "{kept} {read}");
        }
    });
}

#[test]
fn a_timeline_accounts_for_every_action() {
    within(LIMIT, || {
        let model = mixed_model(7);
        let plan = model.plan(model.smallest_bytes(), Strategy::Preload);
        let mut session = model
            .open(&plan, 1, slow(), FaultScript::default())
            .unwrap();
        model.run(&mut session).unwrap();
        session.record_timeline(3);
        let stalls_before = session.stats().stall_ns;
        for _ in 0..5 {
            model.run(&mut session).unwrap();
        }
        let stats = session.stats();
        let timeline: Timeline = session.take_timeline().unwrap();
        assert!(session.timeline().is_none());
        assert_eq!(timeline.runs.len(), 3);
        assert!(stats.stall_ns > stalls_before);
        for (run, timing) in timeline.runs.iter().enumerate() {
            let computes: Vec<_> = timeline.spans_of(LaneId::COMPUTE, run as u32).collect();
            assert_eq!(computes.len(), plan.computes.len());
            for (i, span) in computes.iter().enumerate() {
                assert_eq!(span.action as usize, i);
                assert!(span.ready_ns <= span.start_ns);
                // The first one reads its rows from storage, which takes virtual time.
                if i > 0 {
                    assert_eq!(span.end_ns - span.start_ns, 20_000);
                }
            }
            let waited: u64 = computes.iter().map(|s| s.start_ns - s.ready_ns).sum();
            let rows_ns = computes[0].end_ns - computes[0].start_ns - 20_000;
            assert!(rows_ns > 0);
            assert_eq!(timing.stall_ns, waited + rows_ns);
            let busy_ns = 20_000 * computes.len() as u64;
            assert_eq!(timing.latency_ns(), timing.stall_ns + busy_ns);
            if run > 0 {
                let loads = timeline.spans_of(LaneId::LOAD, run as u32).count();
                assert_eq!(loads, plan.loads.len());
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_graphs_under_random_budgets(
        seed in proptest::num::u64::ANY,
        layers in 1usize..14,
        rows in 1usize..7,
        share in (0u64..=1000).prop_map(|s| s as f64 / 1000.0),
        threads in 1usize..=3,
        preload in proptest::bool::ANY,
        depth in 1usize..9,
        group_bytes in proptest::sample::select(vec![0u64, 1, 4096, 64 << 10, 1 << 20]),
    ) {
        let found = within(LIMIT, move || {
            let model = random_model(seed, layers, rows);
            let strategy = if preload { Strategy::Preload } else { Strategy::Search };
            let (least, most) = (model.smallest_bytes_of(strategy), model.unlimited_bytes());
            let budget = least + (most.saturating_sub(least) as f64 * share * share) as u64;
            let plan = ExecutionPlan { group_bytes, ..model.plan(budget, strategy) };
            let device = MemoryModel { depth, max_loads: 1 + depth, ..slow() };
            let mut session = model.open(&plan, threads, device, FaultScript::default()).unwrap();
            let runs: Vec<_> = (0..3).map(|_| model.run(&mut session).unwrap()).collect();
            (model.expected(), runs)
        });
        for run in found.1 {
            prop_assert_eq!(&run, &found.0);
        }
    }
}

/// Cancels the run at one of its computes.
struct CancelClock {
    time: neap_store::VirtualClock,
    token: CancelToken,
    at: usize,
}

impl Clock for CancelClock {
    fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    fn passes(&mut self, compute: usize) -> bool {
        self.time.advance_ns(20_000);
        if compute == self.at {
            self.token.cancel();
        }
        false
    }
}

#[test]
fn a_run_can_be_cancelled_at_every_boundary() {
    within(LIMIT, || {
        for model in [mixed_model(21), image_model(22)] {
            let expected = model.expected();
            for budget in [model.smallest_bytes(), model.unlimited_bytes()] {
                let plan = model.plan(budget, Strategy::Preload);
                let computes = plan.computes.len();
                for at in 0..computes {
                    let token = CancelToken::new();
                    let time = neap_store::VirtualClock::new();
                    let clock = CancelClock {
                        time: time.clone(),
                        token: token.clone(),
                        at,
                    };
                    let mut session = model.open_at(&plan, time, clock).unwrap();
                    let ended = model.run_unless(&mut session, &token);
                    if at + 1 < computes {
                        assert!(matches!(ended, Err(RuntimeError::Cancelled)), "{at}");
                        assert_eq!(session.stats().runs, 0);
                    } else {
                        // There is no boundary after the last one.
                        assert_eq!(ended.unwrap(), expected);
                    }
                    for _ in 0..2 {
                        assert_eq!(model.run(&mut session).unwrap(), expected, "after {at}");
                    }
                }
            }
        }
    });
}
