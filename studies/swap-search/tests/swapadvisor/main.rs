//! The search's plans, checked by playing them, and the search as a whole.

mod execution;
mod placed;
mod support;
mod training;

use std::ops::ControlFlow;

use swap_search::{
    Allocation, Classes, Dataflow, DataflowError, DataflowSpec, Eviction, Generation, Infeasible,
    Memory, OpId, Operator, Parallel, Pools, Random, Rules, Scope, SearchOptions, Serial,
    SwapPlanner, SwapTask, Tensor, TensorId, TensorKind, play, random_order, search,
};

use support::{LINK, check, flow, random_flow, recurrent};

#[test]
fn plans_are_right_at_any_speed() {
    let mut planner = SwapPlanner::default();
    for seed in 0..60 {
        let flow = random_flow(seed, 40);
        let mut r = Random::new(seed, 1, 1);
        let order = random_order(&flow, &mut r);
        let least = Pools::new(&flow, 0, Classes::Monotonic).smallest_bytes();
        for factor in [1.0, 1.3, 2.0, 6.0] {
            let capacity = (least as f64 * factor) as u64;
            let pools = Pools::new(&flow, capacity, Classes::Monotonic);
            let memory = Memory::pools(&flow, &pools.random(&mut r).unwrap());
            let by_bytes = Memory::bytes(&flow, capacity, 4);
            for memory in [memory, by_bytes] {
                for eviction in [Eviction::Belady, Eviction::Lru] {
                    let rules = Rules {
                        eviction,
                        ..Rules::default()
                    };
                    let Some(plan) = planner.plan(&SwapTask {
                        flow: &flow,
                        order: &order,
                        memory: &memory,
                        device: &LINK,
                        rules: &rules,
                    }) else {
                        panic!("seed {seed}: no plan in {capacity} bytes");
                    };
                    for speed in 0..6 {
                        check(&flow, &memory, plan, seed * 100 + speed);
                    }
                    let outcome = play(&flow, plan, &LINK).unwrap();
                    assert!(outcome.total_ns >= flow.ideal_ns() as f64 - 1.0);
                }
            }
        }
    }
}

/// Figure 3 of the paper: three operators with a parameter each, four units of memory.
#[test]
fn the_papers_figure_3() {
    use TensorKind::{Activation, Output, Parameter};
    // W1 W2 W3 A1 A2 A3
    let f = flow(
        &[
            (1, Parameter),
            (1, Parameter),
            (1, Parameter),
            (1, Activation),
            (1, Activation),
            (1, Output),
        ],
        &[
            (10, &[0], &[3]),
            (10, &[1, 3], &[4]),
            (10, &[2, 3, 4], &[5]),
        ],
    );
    let memory = Memory::pools(
        &f,
        &Allocation {
            class_of_size: vec![0],
            objects: vec![4],
        },
    );
    let mut planner = SwapPlanner::default();
    let order = f.given_order();
    let rules = Rules {
        recency: 0.0,
        ..Rules::default()
    };
    let plan = planner
        .plan(&SwapTask {
            flow: &f,
            order: &order,
            memory: &memory,
            device: &LINK,
            rules: &rules,
        })
        .unwrap()
        .clone();
    check(&f, &memory, &plan, 0);
    let loads: Vec<u32> = plan.loads.iter().map(|l| l.tensor.0).collect();
    // At the end of a run A1, A2, A3 and one parameter are in memory: W3, which is the only one not loaded
    // again, unless it must make room at the start of the next.
    assert!(
        plan.stores.is_empty(),
        "parameters go without being written"
    );
    assert!(loads.contains(&0) && loads.contains(&1), "{loads:?}");
    for load in &plan.loads {
        let first_use = plan
            .stays
            .iter()
            .find(|s| s.tensor == load.tensor && s.load.is_some());
        assert!(load.after.computes <= first_use.unwrap().first_use);
    }
}

/// What stays in memory from one run to the next is not loaded again.
#[test]
fn parameters_stay_where_all_fit() {
    let flow = random_flow(3, 30);
    let memory = Memory::bytes(
        &flow,
        flow.total_bytes() + 64 * flow.tensors().len() as u64,
        64,
    );
    let mut planner = SwapPlanner::default();
    let plan = planner
        .plan(&SwapTask {
            flow: &flow,
            order: &flow.given_order(),
            memory: &memory,
            device: &LINK,
            rules: &Rules::default(),
        })
        .unwrap();
    let loaded: Vec<TensorId> = plan.loads.iter().map(|l| l.tensor).collect();
    assert_eq!(loaded, [TensorId(0)], "only the input is new in each run");
    assert!(plan.stores.is_empty());
}

/// The only parameter that could be kept from one run to the next goes and comes back within a run, maybe to
/// another place: then none is there at the start, and the plan must not count on one.
#[test]
fn a_run_begins_with_nothing_that_leaves_on_the_way() {
    use TensorKind::{Activation, Input, Output, Parameter};
    // p q | input a b output
    let f = flow(
        &[
            (100, Parameter),
            (100, Parameter),
            (1, Input),
            (1, Activation),
            (1, Activation),
            (1, Output),
        ],
        &[
            (10, &[0, 2], &[3]),
            (10, &[1, 3], &[4]),
            (10, &[0, 4], &[5]),
        ],
    );
    let pools = Allocation {
        class_of_size: vec![0, 1],
        objects: vec![2, 1],
    };
    let memories = [
        Memory::pools(&f, &pools),
        Memory::bytes(&f, 102, 1),
        Memory::places(&f, 102, 1),
    ];
    for memory in memories {
        let mut planner = SwapPlanner::default();
        let plan = planner
            .plan(&SwapTask {
                flow: &f,
                order: &f.given_order(),
                memory: &memory,
                device: &LINK,
                rules: &Rules::default(),
            })
            .unwrap();
        check(&f, &memory, plan, 1);
        let loaded: Vec<u32> = plan.loads.iter().map(|l| l.tensor.0).collect();
        assert!(plan.repeats(), "{plan:?}");
        assert_eq!(loaded.iter().filter(|&&t| t == 0).count(), 2, "{loaded:?}");
    }
}

/// Where the tensor used last is needed furthest away, taking it means waiting for it.
#[test]
fn the_recency_threshold_takes_an_older_one() {
    use TensorKind::{Input, Output, Parameter};
    // p (tensor 0) is used first and soon again; q (1) just before the pressure and much later again.
    let f = flow(
        &[
            (100, Parameter),
            (100, Parameter),
            (100, Parameter),
            (1, Input),
            (1, Output),
        ],
        &[
            (500, &[0, 3], &[4]),
            (150, &[1, 3], &[4]),
            (10, &[2, 3], &[4]),
            (500, &[0, 3], &[4]),
            (500, &[1, 3], &[4]),
        ],
    );
    let memory = Memory::bytes(&f, 202, 1);
    let victim = |recency: f64| {
        let mut planner = SwapPlanner::default();
        let rules = Rules {
            recency,
            ..Rules::default()
        };
        let plan = planner
            .plan(&SwapTask {
                flow: &f,
                order: &f.given_order(),
                memory: &memory,
                device: &LINK,
                rules: &rules,
            })
            .unwrap();
        check(&f, &memory, plan, 1);
        let third = plan.stays.iter().find(|s| s.tensor == TensorId(2)).unwrap();
        third.from.computes
    };
    assert_eq!(victim(0.0), 2, "q goes, after the operator just before");
    assert_eq!(victim(1.0), 1, "p goes, whose memory is free earlier");
}

fn options(seed: u64, generations: u32) -> SearchOptions {
    SearchOptions {
        seed,
        population: 48,
        generations,
        ..SearchOptions::default()
    }
}

/// Threads that take jobs from the back.
struct Threads(usize);

impl Parallel for Threads {
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.0 {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        if i >= count {
                            return;
                        }
                        job(count - 1 - i);
                    }
                });
            }
        });
    }
}

#[test]
fn the_search_gets_better_and_stays_feasible() {
    let flow = recurrent(4, 12, 1000);
    let mut seen: Vec<Generation> = Vec::new();
    let found = search(&flow, &LINK, 2600, &options(1, 60), &Serial, &mut |g| {
        seen.push(*g);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(flow.is_topological(&found.order));
    check(
        &flow,
        &Memory::pools(&flow, &found.allocation),
        &found.plan,
        5,
    );
    assert_eq!(seen.len(), 61);
    assert!(seen.windows(2).all(|w| w[1].best_ns <= w[0].best_ns));
    assert!(
        seen.iter()
            .all(|g| g.best_ns <= g.mean_ns && g.mean_ns <= g.worst_ns)
    );
    let (first, last) = (seen[0].best_ns, seen[60].best_ns);
    assert!(last < 0.9 * first, "{first} -> {last}");
    assert_eq!(found.outcome.total_ns, last);
    // What is not searched stays as it is.
    let alone = SearchOptions {
        scope: Scope::AllocationOnly,
        ..options(1, 20)
    };
    let other = search(&flow, &LINK, 2600, &alone, &Serial, &mut |_| {
        ControlFlow::Continue(())
    });
    assert_eq!(other.unwrap().order, flow.given_order());
    let first = search(&flow, &LINK, 2600, &options(1, 0), &Serial, &mut |_| {
        ControlFlow::Continue(())
    });
    let alone = SearchOptions {
        scope: Scope::ScheduleOnly,
        ..options(1, 20)
    };
    let other = search(&flow, &LINK, 2600, &alone, &Serial, &mut |_| {
        ControlFlow::Continue(())
    });
    assert_eq!(other.unwrap().allocation, first.unwrap().allocation);
}

#[test]
fn the_outcome_depends_on_the_seed_alone() {
    let flow = random_flow(11, 40);
    let least = Pools::new(&flow, 0, Classes::Monotonic).smallest_bytes();
    let run = |seed, parallel: &dyn Parallel| {
        let mut heard = Vec::new();
        let found = search(
            &flow,
            &LINK,
            least * 5 / 4,
            &options(seed, 12),
            parallel,
            &mut |g| {
                heard.push(*g);
                ControlFlow::Continue(())
            },
        );
        let found = found.unwrap();
        (found.order, found.allocation, heard)
    };
    let one = run(4, &Serial);
    assert_eq!(one, run(4, &Threads(3)));
    assert_eq!(one, run(4, &Threads(8)));
    assert_ne!(one.2, run(5, &Serial).2);
}

#[test]
fn a_search_ends_when_it_is_told() {
    let flow = random_flow(2, 20);
    let mut left = 3;
    let found = search(
        &flow,
        &LINK,
        u64::MAX >> 20,
        &options(0, 1000),
        &Serial,
        &mut |_| {
            left -= 1;
            match left {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        },
    );
    assert_eq!(found.unwrap().last.number, 2);
}

#[test]
fn too_little_memory_is_named() {
    let flow = random_flow(7, 20);
    let smallest_bytes = Pools::new(&flow, 0, Classes::Monotonic).smallest_bytes();
    let run = |bytes| {
        search(&flow, &LINK, bytes, &options(0, 1), &Serial, &mut |_| {
            ControlFlow::Continue(())
        })
        .map(|_| ())
    };
    assert_eq!(run(smallest_bytes - 1), Err(Infeasible { smallest_bytes }));
    assert_eq!(run(smallest_bytes), Ok(()));
}

#[test]
fn malformed_dataflows_are_refused() {
    let op = |reads: &[u32], writes: &[u32]| Operator {
        name: "x".into(),
        compute_ns: 1,
        reads: reads.iter().map(|&t| TensorId(t)).collect(),
        writes: writes.iter().map(|&t| TensorId(t)).collect(),
    };
    let tensor = |bytes| Tensor {
        bytes,
        kind: TensorKind::Activation,
    };
    let build = |operators: Vec<Operator>, tensors: Vec<Tensor>| {
        let name = "bad".into();
        Dataflow::new(DataflowSpec {
            name,
            operators,
            tensors,
        })
        .unwrap_err()
    };
    let error = build(vec![op(&[], &[3])], vec![tensor(1)]);
    assert!(matches!(
        error,
        DataflowError::NoTensor {
            tensor: 3,
            tensors: 1,
            ..
        }
    ));
    let error = build(vec![op(&[0], &[1])], vec![tensor(1), tensor(1)]);
    assert!(matches!(
        error,
        DataflowError::ReadTooEarly { tensor: 0, .. }
    ));
    let error = build(vec![op(&[0], &[0])], vec![tensor(1)]);
    assert!(matches!(
        error,
        DataflowError::ReadTooEarly { tensor: 0, .. }
    ));
    let error = build(vec![], vec![tensor(u64::MAX), tensor(u64::MAX)]);
    assert_eq!(error, DataflowError::TooLarge);
}

#[test]
fn orders_that_break_dependencies_are_seen() {
    let f = recurrent(2, 2, 1000);
    assert!(f.is_topological(&f.given_order()));
    let wrong = [1, 0, 2, 3].map(OpId);
    let double = [0, 0, 2, 3].map(OpId);
    assert!(!f.is_topological(&wrong) && !f.is_topological(&double));
    assert!(!f.is_topological(&f.given_order()[1..]));
    assert!(!f.is_topological(&[0, 1, 2, 9].map(OpId)));
}
