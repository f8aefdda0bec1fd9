//! Random workloads under random budgets: every plan validates, keeps to its budget and its promises.

use crate::shapes::random::workload;
use neap_plan::{Verdict, Workload, validate};
use neap_planner::{PlanError, PlanOptions, Planned, Planner, Strategy};
use neap_sim::{CostProfile, predict};
use neap_testing::cases;
use proptest::prelude::*;
use proptest::strategy::Strategy as _;

fn checked(
    w: &Workload,
    planned: &Planned,
    budget: u64,
    costs: &CostProfile,
) -> Result<Verdict, TestCaseError> {
    let verdict = validate(w, &planned.plan).map_err(|e| TestCaseError::fail(e.to_string()))?;
    prop_assert!(planned.plan.memory_bytes() <= budget);
    prop_assert_eq!(verdict.high_water_bytes, planned.plan.memory_bytes());
    prop_assert!(verdict.lower_bound_bytes <= verdict.high_water_bytes);
    prop_assert_eq!(predict(w, &planned.plan, costs), planned.prediction);
    Ok(verdict)
}

fn costs() -> impl proptest::strategy::Strategy<Value = CostProfile> {
    (1u64..50, 0u64..200_000, 1u32..9, 0u64..20_000).prop_map(|(rate, latency, depth, overhead)| {
        CostProfile {
            storage_bytes_per_second: rate as f64 * 1e8,
            request_latency_ns: latency,
            queue_depth: depth,
            compute_overhead_ns: overhead,
            ..CostProfile::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(250), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_strategy_is_valid_at_every_budget(w in workload(24), costs in costs(), share in 0u64..=110) {
        let planner = Planner::new(&w);
        let (smallest, unlimited) = (planner.smallest_feasible_bytes(), planner.unlimited_high_water_bytes());
        prop_assert!(smallest <= unlimited);
        let budget = smallest + (unlimited - smallest) * share / 100;
        for strategy in Strategy::ALL {
            match planner.plan(budget, strategy, &costs) {
                Ok(planned) => {
                    let verdict = checked(&w, &planned, budget, &costs)?;
                    if strategy == Strategy::Resident {
                        prop_assert!(planned.plan.loads.is_empty() && verdict.loaded_bytes_per_run == 0);
                    }
                }
                Err(PlanError::Infeasible { smallest_bytes }) => {
                    prop_assert!(strategy != Strategy::Preload);
                    prop_assert_eq!(smallest_bytes, planner.smallest_bytes_of(strategy));
                    prop_assert!(budget < smallest_bytes && smallest_bytes <= unlimited);
                }
            }
        }
    }

    #[test]
    fn the_smallest_feasible_budget_is_one(w in workload(24), costs in costs()) {
        let planner = Planner::new(&w);
        for strategy in [Strategy::Preload, Strategy::Resident] {
            let smallest = planner.smallest_bytes_of(strategy);
            let planned = planner.plan(smallest, strategy, &costs).unwrap();
            checked(&w, &planned, smallest, &costs)?;
            if let Some(less) = smallest.checked_sub(1) {
                let refused = planner.plan(less, strategy, &costs).err();
                prop_assert_eq!(refused, Some(PlanError::Infeasible { smallest_bytes: smallest }));
            }
        }
    }

    #[test]
    fn more_memory_never_predicts_slower(w in workload(24), costs in costs(), mut shares in prop::collection::vec(0u64..=1000, 2..6)) {
        let planner = Planner::new(&w);
        let (smallest, unlimited) = (planner.smallest_feasible_bytes(), planner.unlimited_high_water_bytes());
        shares.sort_unstable();
        let mut before = u64::MAX;
        for share in shares {
            let budget = smallest + (unlimited - smallest) * share / 1000;
            let latency = planner.plan(budget, Strategy::Preload, &costs).unwrap().prediction.latency_ns;
            // The search is content within half a percent; slices round to nanoseconds.
            prop_assert!(latency <= before.saturating_add(before / 200 + 100), "{latency} after {before}");
            before = latency.min(before);
        }
    }

    #[test]
    fn what_is_left_out_is_left_out(w in workload(24), costs in costs(), share in 0u64..=110) {
        for (static_memory, cyclic) in [(false, true), (true, false), (false, false)] {
            let planner = Planner::with_options(&w, PlanOptions { static_memory, cyclic, ..PlanOptions::default() });
            let (smallest, unlimited) = (planner.smallest_feasible_bytes(), planner.unlimited_high_water_bytes());
            let budget = smallest + (unlimited - smallest) * share / 100;
            let planned = planner.plan(budget, Strategy::Preload, &costs).unwrap();
            checked(&w, &planned, budget, &costs)?;
            let plan = &planned.plan;
            // In less memory than that, activations are split for the spill file.
            let spills = budget < planner.smallest_bytes_of(Strategy::Search);
            prop_assert!(cyclic || spills || plan.loads.iter().all(|l| l.after().run_back == 0));
            if !static_memory && !spills {
                let ends = w.buffers.iter().zip(&plan.buffers);
                let ends = ends.filter(|(b, _)| b.bytes > 0 && !b.live.is_empty()).map(|(b, at)| at.offset + b.bytes);
                let activations_end = ends.max().unwrap_or(0);
                prop_assert!(plan.loads.iter().all(|l| l.to.offset >= activations_end));
            }
        }
    }
}

/// Numbers as a hostile file may hold them: refused, without overflow and without huge allocations.
#[test]
fn malformed_workloads_are_infeasible() {
    use neap_plan::{BufferSpec, PanelSpec, RowTable, StepRange, StepSpec};
    let step = |change: fn(&mut StepSpec)| {
        let mut step = StepSpec::default();
        change(&mut step);
        Workload {
            steps: vec![step],
            ..Workload::default()
        }
    };
    let buffer = |bytes: u64, align: u64, begin: u32, end: u32| {
        let live = StepRange::new(begin, end);
        let b = BufferSpec {
            name: String::default(),
            bytes,
            align,
            live,
            kept: false,
        };
        Workload {
            steps: vec![StepSpec::default()],
            buffers: vec![b],
            ..Workload::default()
        }
    };
    let panels = |panels: u32, panel_bytes: u64, granule: u32| {
        let p = PanelSpec {
            file_offset: 0,
            panel_bytes,
            panels,
            granule,
        };
        let s = StepSpec {
            panels: Some(p),
            ..StepSpec::default()
        };
        Workload {
            steps: vec![s],
            ..Workload::default()
        }
    };
    let hostile = [
        step(|s| s.workspace_bytes = u64::MAX),
        step(|s| {
            s.rows = Some(RowTable {
                file_offset: u64::MAX,
                bytes: 9,
                rows_workspace_bytes: 1,
            })
        }),
        buffer(u64::MAX, 64, 0, 1),
        buffer(1, 3, 0, 1),
        buffer(1, 64, 0, u32::MAX),
        panels(u32::MAX, 1, 1),
        panels(u32::MAX, u64::MAX, 1),
        panels(0, 64, 1),
        panels(4, 64, 0),
    ];
    for w in &hostile {
        let planner = Planner::new(w);
        assert_eq!(planner.smallest_feasible_bytes(), u64::MAX);
        for strategy in Strategy::ALL {
            let refused = planner
                .plan(u64::MAX, strategy, &CostProfile::default())
                .err();
            assert_eq!(
                refused,
                Some(PlanError::Infeasible {
                    smallest_bytes: u64::MAX
                }),
                "{w:?}"
            );
        }
    }
    // Odd numbers that are no harm: an endless computation.
    let slow = step(|s| (s.flops, s.touched_bytes) = (u64::MAX, u64::MAX));
    assert!(
        neap_planner::plan(&slow, u64::MAX, Strategy::Preload, &CostProfile::default()).is_ok()
    );
}
