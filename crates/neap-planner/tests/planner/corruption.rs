//! Valid plans, corrupted one way at a time: the validator catches every class of corruption.

use crate::shapes::random::workload;
use neap_plan::{
    AfterCompute, ExecutionPlan, LaneId, Place, SpaceId, Turn, Violation, Wait, Workload, validate,
};
use neap_planner::{Planner, Strategy};
use neap_sim::CostProfile;
use neap_testing::cases;
use proptest::strategy::{Strategy as _, ValueTree as _};

/// A plan in which some weights are streamed and some resident, when the workload allows it.
fn valid(w: &Workload, share: u64) -> ExecutionPlan {
    let planner = Planner::new(w);
    let (smallest, unlimited) = (
        planner.smallest_feasible_bytes(),
        planner.unlimited_high_water_bytes(),
    );
    let budget = smallest + (unlimited - smallest) * share / 100;
    planner
        .plan(budget, Strategy::Preload, &CostProfile::default())
        .unwrap()
        .plan
}

fn refused(w: &Workload, plan: &ExecutionPlan) -> Violation {
    validate(w, plan).expect_err("a corrupted plan passed")
}

/// Applies a corruption to every plan of a sample; it must apply to some, and be refused for each of those.
fn catches(
    name: &str,
    corrupt: impl Fn(&Workload, &mut ExecutionPlan) -> bool,
    expected: impl Fn(&Violation) -> bool,
) {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut applied, plans) = (0, u64::from(cases(120)));
    for i in 0..plans {
        let w = workload(16).new_tree(&mut runner).unwrap().current();
        let mut plan = valid(&w, i % 100);
        validate(&w, &plan).unwrap();
        if corrupt(&w, &mut plan) {
            applied += 1;
            let violation = refused(&w, &plan);
            assert!(expected(&violation), "{name}: {violation}");
        }
    }
    assert!(
        applied >= plans / 8,
        "{name}: applied to {applied} plans only"
    );
}

#[test]
fn another_workload() {
    catches(
        "digest",
        |_, p| {
            p.digest.push('x');
            true
        },
        |v| matches!(v, Violation::Digest { .. }),
    );
    catches(
        "a buffer lost",
        |_, p| p.buffers.pop().is_some(),
        |v| matches!(v, Violation::Count { .. }),
    );
    catches(
        "a workspace more",
        |_, p| {
            p.workspaces.push(Place::work(0));
            true
        },
        |v| matches!(v, Violation::Count { .. }),
    );
}

#[test]
fn coverage() {
    let coverage = |v: &Violation| matches!(v, Violation::Coverage { .. });
    catches(
        "a compute lost",
        |_, p| p.computes.pop().is_some(),
        coverage,
    );
    catches(
        "a compute twice",
        |_, p| {
            let c = p.computes[0].clone();
            p.computes.insert(0, c);
            true
        },
        coverage,
    );
    let swap = |_: &Workload, p: &mut ExecutionPlan| {
        let n = p.computes.len();
        n > 1 && {
            p.computes.swap(0, n - 1);
            true
        }
    };
    catches("computes out of order", swap, coverage);
    let skip = |_: &Workload, p: &mut ExecutionPlan| {
        let sliced = p.computes.iter_mut().find(|c| c.panels.len() > 1);
        sliced.map(|c| c.panels.begin += 1).is_some()
    };
    catches("a panel skipped", skip, coverage);
    let beyond = |_: &Workload, p: &mut ExecutionPlan| {
        let last = p.computes.iter_mut().rfind(|c| !c.panels.is_empty());
        last.map(|c| c.panels.end += 1).is_some()
    };
    catches("a panel too many", beyond, coverage);
    let forgotten = |_: &Workload, p: &mut ExecutionPlan| {
        p.computes
            .iter_mut()
            .find_map(|c| c.weights.panels.take())
            .is_some()
    };
    catches("no address for panels", forgotten, coverage);
}

#[test]
fn weights() {
    let missing = |v: &Violation| matches!(v, Violation::WeightMissing { .. });
    let moved = |_: &Workload, p: &mut ExecutionPlan| {
        p.computes
            .iter_mut()
            .find_map(|c| c.weights.panels.as_mut())
            .map(|at| at.offset += 1)
            .is_some()
    };
    catches("weights looked for one byte off", moved, missing);
    let early = |_: &Workload, p: &mut ExecutionPlan| {
        p.computes
            .iter_mut()
            .find(|c| c.needs() > 0)
            .map(|c| c.turn = Turn::of(LaneId::COMPUTE))
            .is_some()
    };
    catches("a compute that does not wait", early, missing);
    let shorter = |_: &Workload, p: &mut ExecutionPlan| {
        p.loads
            .iter_mut()
            .find(|l| l.bytes > 4096)
            .map(|l| l.bytes -= 4096)
            .is_some()
    };
    catches("a load cut short", shorter, |v| {
        missing(v) || matches!(v, Violation::UnusedLoad { .. })
    });
    let lost = |_: &Workload, p: &mut ExecutionPlan| p.resident.pop().is_some();
    catches("a resident range lost", lost, missing);
    let elsewhere = |_: &Workload, p: &mut ExecutionPlan| {
        p.loads.first_mut().map(|l| l.from.offset += 4096).is_some()
    };
    catches("another part of the file", elsewhere, |v| {
        missing(v) || matches!(v, Violation::UnusedLoad { .. })
    });
}

#[test]
fn dependencies() {
    let dependency = |v: &Violation| matches!(v, Violation::Wait { .. });
    let nowhere = |_: &Workload, p: &mut ExecutionPlan| {
        let load = p.loads.first_mut();
        load.map(|l| l.turn = l.turn.after(LaneId(3), 1)).is_some()
    };
    catches("a lane that there is not", nowhere, dependency);
    let own = |_: &Workload, p: &mut ExecutionPlan| {
        let load = p.loads.first_mut();
        load.map(|l| l.turn = l.turn.after(LaneId::LOAD, 1))
            .is_some()
    };
    catches("its own lane", own, dependency);
    let back = |_: &Workload, p: &mut ExecutionPlan| {
        let wait = Wait {
            lane: LaneId::LOAD,
            count: 1,
            run_back: 1,
        };
        let user = p.computes.iter_mut().find(|c| c.needs() > 0);
        user.map(|c| c.turn = c.turn.wait(wait)).is_some()
    };
    catches("a compute that waits for the run before", back, |v| {
        matches!(v, Violation::Wait { .. })
    });
    let whole = |_: &Workload, p: &mut ExecutionPlan| {
        let computes = p.computes.len() as u32;
        p.loads
            .first_mut()
            .map(|l| {
                l.turn = AfterCompute {
                    run_back: 1,
                    computes,
                }
                .load(0)
            })
            .is_some()
    };
    catches("all of the run before", whole, dependency);
    let never = |_: &Workload, p: &mut ExecutionPlan| {
        let computes = p.computes.len() as u32;
        p.loads
            .first_mut()
            .map(|l| {
                l.turn = AfterCompute {
                    run_back: 0,
                    computes,
                }
                .load(0)
            })
            .is_some()
    };
    let stuck = |v: &Violation| matches!(v, Violation::Deadlock { .. } | Violation::Wait { .. });
    catches("a load that waits for its user", never, stuck);
    let many = |_: &Workload, p: &mut ExecutionPlan| {
        let loads = p.loads.len() as u32;
        p.computes[0].turn = Turn::of(LaneId::COMPUTE).after(LaneId::LOAD, loads + 1);
        true
    };
    catches("more loads than there are", many, |v| {
        matches!(v, Violation::Wait { .. })
    });
    let unused = |_: &Workload, p: &mut ExecutionPlan| {
        let copy = p.loads.first().copied();
        copy.map(|l| {
            p.loads.push(neap_plan::Load {
                to: Place::work(p.spaces[SpaceId::WORK.index()].bytes),
                ..l
            })
        })
        .is_some()
            && {
                p.spaces[SpaceId::WORK.index()].bytes *= 2;
                true
            }
    };
    catches("a load for nobody", unused, |v| {
        matches!(v, Violation::UnusedLoad { .. })
    });
}

#[test]
fn memory() {
    let tight = |_: &Workload, p: &mut ExecutionPlan| {
        let work = &mut p.spaces[SpaceId::WORK.index()];
        work.bytes > 0 && {
            work.bytes = work.bytes.saturating_sub(4097);
            true
        }
    };
    let outside = |v: &Violation| matches!(v, Violation::OutsideSpace { .. });
    catches("a smaller arena", tight, outside);
    let huge = |_: &Workload, p: &mut ExecutionPlan| {
        p.loads
            .first_mut()
            .map(|l| l.bytes = u64::MAX / 4096 * 4096)
            .is_some()
    };
    catches("a load without end", huge, |v| {
        !matches!(v, Violation::Overlap { .. })
    });
    let crooked = |w: &Workload, p: &mut ExecutionPlan| {
        let aligned = w
            .buffers
            .iter()
            .position(|b| b.align > 1 && b.bytes > 0 && !b.live.is_empty());
        aligned.map(|i| p.buffers[i].offset += 1).is_some()
    };
    catches("a crooked buffer", crooked, |v| {
        matches!(
            v,
            Violation::Misaligned { .. } | Violation::OutsideSpace { .. }
        )
    });
    let on_top = |w: &Workload, p: &mut ExecutionPlan| {
        let used: Vec<usize> = (0..w.buffers.len())
            .filter(|&i| w.buffers[i].bytes > 0)
            .collect();
        let pair = used.iter().flat_map(|&i| used.iter().map(move |&j| (i, j)));
        let mut pair =
            pair.filter(|&(i, j)| i < j && w.buffers[i].live.overlaps(w.buffers[j].live));
        pair.next()
            .map(|(i, j)| {
                // Whole blocks, so that alignment cannot be what is wrong.
                p.spaces[SpaceId::WORK.index()].bytes += 1 << 30;
                (p.buffers[i], p.buffers[j]) = (Place::work(1 << 29), Place::work(1 << 29));
            })
            .is_some()
    };
    catches("two buffers in one place", on_top, |v| {
        matches!(v, Violation::Overlap { .. })
    });
}

#[test]
fn overwriting() {
    // A load that starts as early as can be, though its place is still in use.
    let rash = |_: &Workload, p: &mut ExecutionPlan| {
        let n = p.computes.len() as u32;
        let late = p
            .loads
            .iter_mut()
            .find(|l| l.after().run_back == 0 && l.after().computes > 0);
        late.map(|l| {
            l.turn = AfterCompute {
                run_back: 1,
                computes: 0,
            }
            .load(0)
        })
        .is_some()
            && n > 1
    };
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut caught, plans) = (0, u64::from(cases(300)));
    for i in 0..plans {
        let w = workload(16).new_tree(&mut runner).unwrap().current();
        let mut plan = valid(&w, i % 40);
        if rash(&w, &mut plan) {
            // Each start of the planner is the earliest possible at its address: any earlier collides.
            assert!(matches!(refused(&w, &plan), Violation::Overlap { .. }));
            caught += 1;
        }
    }
    assert!(caught >= plans / 15);
}

#[test]
fn every_start_is_the_earliest_possible_at_its_address() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut checked, plans) = (0, u64::from(cases(100)));
    for i in 0..plans {
        let w = workload(12).new_tree(&mut runner).unwrap().current();
        let plan = valid(&w, i % 40);
        let n = plan.computes.len() as u32;
        for load in 0..plan.loads.len() {
            let mut earlier = plan.clone();
            let after = match earlier.loads[load].after() {
                AfterCompute {
                    run_back: 0,
                    computes: 0,
                } => AfterCompute {
                    run_back: 1,
                    computes: n - 1,
                },
                AfterCompute { computes: 0, .. } => continue,
                AfterCompute { run_back, computes } => AfterCompute {
                    run_back,
                    computes: computes - 1,
                },
            };
            earlier.loads[load].turn = after.load(0);
            assert!(matches!(refused(&w, &earlier), Violation::Overlap { .. }));
            checked += 1;
        }
    }
    assert!(checked >= plans);
}
