//! The search's plans, checked by playing them with times of all kinds, and the search as a whole.

use std::ops::ControlFlow;

use neap_planner::search::{
    Allocation, Classes, Dataflow, DataflowError, DataflowSpec, Device, Eviction, Generation,
    Infeasible, Memory, OpId, Operator, Parallel, Pools, Random, Rules, Scope, SearchOptions,
    Serial, SwapPlan, SwapPlanner, Tensor, TensorId, TensorKind, play, random_order, search,
};

/// One byte a nanosecond each way.
const LINK: Device = Device {
    one_way_bytes_per_second: 1e9,
    both_ways_bytes_per_second: 2e9,
    transfer_latency_ns: 0,
};

fn flow(tensors: &[(u64, TensorKind)], operators: &[(u64, &[u32], &[u32])]) -> Dataflow {
    let ids = |list: &[u32]| list.iter().map(|&t| TensorId(t)).collect();
    let operators = operators.iter().map(|(ns, reads, writes)| Operator {
        name: String::new(),
        compute_ns: *ns,
        reads: ids(reads),
        writes: ids(writes),
    });
    let tensors = tensors.iter().map(|&(bytes, kind)| Tensor { bytes, kind });
    Dataflow::new(DataflowSpec {
        name: "by hand".into(),
        operators: operators.collect(),
        tensors: tensors.collect(),
    })
    .unwrap()
}

/// Branches and joins of random size; parameters, some of them shared and some changed in place.
fn random_flow(seed: u64, ops: u32) -> Dataflow {
    let mut r = Random::new(seed, 0, 0);
    let mut tensors = vec![(100, TensorKind::Input), (300, TensorKind::Parameter)];
    let mut made = vec![0u32];
    let mut operators = Vec::new();
    for i in 0..ops {
        let mut reads: Vec<u32> = (0..1 + r.below(2))
            .map(|_| {
                let recent = made.len().min(6);
                made[made.len() - 1 - r.below(recent)]
            })
            .collect();
        reads.dedup();
        let mut writes = Vec::new();
        if r.chance(0.8) {
            tensors.push((100 * (1 + r.below(5)) as u64, TensorKind::Parameter));
            reads.push(tensors.len() as u32 - 1);
        } else {
            reads.push(1);
            if r.chance(0.3) {
                writes.push(1);
            }
        }
        let kind = match i + 1 == ops || r.chance(0.05) {
            true => TensorKind::Output,
            false => TensorKind::Activation,
        };
        tensors.push((100 * (1 + r.below(5)) as u64, kind));
        writes.push(tensors.len() as u32 - 1);
        made.push(tensors.len() as u32 - 1);
        operators.push((10 + r.below(300) as u64, reads, writes));
    }
    let borrowed: Vec<(u64, &[u32], &[u32])> = operators
        .iter()
        .map(|(ns, r, w)| (*ns, &r[..], &w[..]))
        .collect();
    flow(&tensors, &borrowed)
}

/// Plays the lanes with random durations and watches memory: what is used is there, what is there has
/// room, in each class at every moment, and a run ends as it began.
fn check(flow: &Dataflow, memory: &Memory, plan: &SwapPlan, seed: u64) {
    let mut r = Random::new(seed, 9, 9);
    // Any lane may be the slow one.
    let speeds = [r.below(400), r.below(400), r.below(400)];
    let mut duration = |lane: usize| (1 + r.below(1 + speeds[lane])) as u64;
    let n = plan.order.len();
    let (mut compute_end, mut load_start, mut load_end, mut store_end) =
        (vec![0u64; 0], vec![], vec![0u64; 0], vec![0u64; 0]);
    let mut compute_start = Vec::new();
    // Lanes go round until nobody gets on.
    loop {
        let before = (compute_end.len(), load_end.len(), store_end.len());
        let done = |ends: &[u64], count: u32| match count as usize {
            0 => Some(0),
            count => ends.get(count - 1).copied(),
        };
        if let Some(needs) = plan.needs.get(compute_end.len())
            && let Some(loaded) = done(&load_end, needs.loads)
            && let Some(stored) = done(&store_end, needs.stores)
        {
            let start = loaded
                .max(stored)
                .max(compute_end.last().copied().unwrap_or(0));
            compute_start.push(start);
            compute_end.push(start + duration(0));
        }
        if let Some(load) = plan.loads.get(load_end.len())
            && let Some(computed) = done(&compute_end, load.after.computes)
            && let Some(stored) = done(&store_end, load.after.stores)
        {
            let start = computed
                .max(stored)
                .max(load_end.last().copied().unwrap_or(0));
            load_start.push(start);
            load_end.push(start + duration(1));
        }
        if let Some(store) = plan.stores.get(store_end.len())
            && let Some(computed) = done(&compute_end, store.after_computes)
        {
            let start = computed.max(store_end.last().copied().unwrap_or(0));
            store_end.push(start + duration(2));
        }
        if before == (compute_end.len(), load_end.len(), store_end.len()) {
            break;
        }
    }
    assert_eq!(compute_end.len(), n, "computing does not end");
    assert_eq!(load_end.len(), plan.loads.len(), "loading does not end");
    assert_eq!(store_end.len(), plan.stores.len(), "storing does not end");

    let kind = |t: TensorId| flow.tensors()[t.index()].kind;
    let end_of_run = u64::MAX;
    let mut changes: Vec<(u64, i64, usize)> = Vec::new();
    let mut stays_of = vec![Vec::new(); flow.tensors().len()];
    for stay in plan.stays.iter().filter(|s| s.to > 0) {
        let takes = memory.takes[flow.size_index(stay.tensor)] as i64;
        let class = usize::from(memory.class_of_size[flow.size_index(stay.tensor)]);
        let begin = match stay.load {
            Some(load) => {
                assert_eq!(plan.loads[load as usize].tensor, stay.tensor);
                load_start[load as usize]
            }
            None if stay.initial => 0,
            None => compute_start[stay.first_use as usize],
        };
        let kept = stay.to as usize == n
            && kind(stay.tensor) != TensorKind::Activation
            && kind(stay.tensor) != TensorKind::Input;
        let end = match stay.store {
            Some(store) => {
                assert_eq!(plan.stores[store as usize].tensor, stay.tensor);
                store_end[store as usize]
            }
            None if kept => end_of_run,
            None => compute_end[stay.to as usize - 1],
        };
        changes.push((begin, takes, class));
        changes.push((end, -takes, class));
        stays_of[stay.tensor.index()].push((stay, begin, end));
    }
    changes.sort_unstable();
    let mut used = vec![0i64; memory.room.len()];
    for (_, change, class) in changes {
        used[class] += change;
        assert!(
            used[class] <= memory.room[class] as i64,
            "class {class} is too full"
        );
    }
    for (position, &op) in plan.order.iter().enumerate() {
        for touch in flow.touches(op) {
            let stays = &stays_of[touch.tensor.index()];
            let has = |s: &&(&neap_planner::search::Stay, u64, u64)| {
                s.0.first_use as usize <= position && position < s.0.to as usize
            };
            let (stay, begin, end) = stays.iter().find(has).expect("it is in memory");
            assert!(*begin <= compute_start[position] && compute_end[position] <= *end);
            if let Some(load) = stay.load {
                assert!(load_end[load as usize] <= compute_start[position]);
            }
        }
    }
    for (t, stays) in stays_of.iter().enumerate() {
        let tensor = TensorId(t as u32);
        let written = |from: usize, to: usize| {
            plan.order[from..to].iter().any(|&op| {
                flow.touches(op)
                    .iter()
                    .any(|x| x.tensor == tensor && x.writes)
            })
        };
        for pair in stays.windows(2) {
            let ((old, ..), (new, begin, _)) = (&pair[0], &pair[1]);
            assert!(old.to <= new.first_use);
            let load = new.load.expect("it comes back by a load");
            assert!(load_start[load as usize] >= *begin);
            if written(old.first_use as usize, old.to as usize) {
                let store = old
                    .store
                    .expect("what was written is stored before it goes");
                assert!(store_end[store as usize] <= load_start[load as usize]);
            }
        }
        if let Some((first, ..)) = stays.first() {
            if first.initial {
                let (last, _, end) = stays.last().expect("there is one");
                assert_eq!(
                    (last.to as usize, *end),
                    (n, end_of_run),
                    "there at the end too"
                );
                assert_eq!(kind(tensor), TensorKind::Parameter);
            } else if matches!(kind(tensor), TensorKind::Parameter | TensorKind::Input) {
                assert!(first.load.is_some());
            } else {
                assert!(first.load.is_none(), "it is made");
            }
        }
    }
}

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
            let memory = Memory::pools(&pools.random(&mut r).unwrap());
            let by_bytes = Memory::bytes(&flow, capacity, 4);
            for memory in [memory, by_bytes] {
                for eviction in [Eviction::Belady, Eviction::Lru] {
                    let rules = Rules {
                        eviction,
                        ..Rules::default()
                    };
                    let Some(plan) = planner.plan(&flow, &order, &memory, &LINK, &rules) else {
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
    let memory = Memory::pools(&Allocation {
        class_of_size: vec![0],
        objects: vec![4],
    });
    let mut planner = SwapPlanner::default();
    let order = f.given_order();
    let rules = Rules {
        recency: 0.0,
        ..Rules::default()
    };
    let plan = planner
        .plan(&f, &order, &memory, &LINK, &rules)
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
        .plan(
            &flow,
            &flow.given_order(),
            &memory,
            &LINK,
            &Rules::default(),
        )
        .unwrap();
    let loaded: Vec<TensorId> = plan.loads.iter().map(|l| l.tensor).collect();
    assert_eq!(loaded, [TensorId(0)], "only the input is new in each run");
    assert!(plan.stores.is_empty());
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
            .plan(&f, &f.given_order(), &memory, &LINK, &rules)
            .unwrap();
        check(&f, &memory, plan, 1);
        let third = plan.stays.iter().find(|s| s.tensor == TensorId(2)).unwrap();
        third.from.computes
    };
    assert_eq!(victim(0.0), 2, "q goes, after the operator just before");
    assert_eq!(victim(1.0), 1, "p goes, whose memory is free earlier");
}

/// An unrolled recurrent network, given time step by time step: every operator wants the parameters of
/// another layer, while layer by layer each would be loaded once.
fn recurrent(layers: u32, steps: u32) -> Dataflow {
    let mut spec = DataflowSpec::default();
    let add = |bytes, kind, spec: &mut DataflowSpec| {
        spec.tensors.push(Tensor { bytes, kind });
        TensorId(spec.tensors.len() as u32 - 1)
    };
    let weights: Vec<TensorId> = (0..layers)
        .map(|_| add(1000, TensorKind::Parameter, &mut spec))
        .collect();
    let mut state: Vec<Option<TensorId>> = vec![None; layers as usize];
    for step in 0..steps {
        let mut x = add(10, TensorKind::Input, &mut spec);
        for layer in 0..layers as usize {
            let kind = match layer + 1 == layers as usize && step + 1 == steps {
                true => TensorKind::Output,
                false => TensorKind::Activation,
            };
            let h = add(10, kind, &mut spec);
            let mut reads = vec![x, weights[layer]];
            reads.extend(state[layer]);
            spec.operators.push(Operator {
                name: format!("{layer}.{step}"),
                compute_ns: 100,
                reads,
                writes: vec![h],
            });
            state[layer] = Some(h);
            x = h;
        }
    }
    Dataflow::new(spec).unwrap()
}

fn options(seed: u64, generations: u32) -> SearchOptions {
    SearchOptions {
        seed,
        population: 48,
        temperature: 0.05,
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
    let flow = recurrent(4, 12);
    let mut seen: Vec<Generation> = Vec::new();
    let found = search(&flow, &LINK, 2600, &options(1, 60), &Serial, &mut |g| {
        seen.push(*g);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(flow.is_topological(&found.order));
    check(&flow, &Memory::pools(&found.allocation), &found.plan, 5);
    assert_eq!(seen.len(), 61);
    assert!(seen.windows(2).all(|w| w[1].best_ns <= w[0].best_ns));
    assert!(
        seen.iter()
            .all(|g| g.best_ns <= g.mean_ns && g.mean_ns <= g.worst_ns)
    );
    let (first, last) = (seen[0].best_ns, seen[60].best_ns);
    assert!(last < 0.9 * first, "{first} -> {last}");
    assert_eq!(found.outcome.total_ns, last);
    // Both dimensions matter: neither alone gets there.
    for scope in [Scope::ScheduleOnly, Scope::AllocationOnly] {
        let alone = SearchOptions {
            scope,
            ..options(1, 60)
        };
        let other = search(&flow, &LINK, 2600, &alone, &Serial, &mut |_| {
            ControlFlow::Continue(())
        });
        assert!(other.unwrap().outcome.total_ns >= last, "{scope:?}");
    }
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
    let f = recurrent(2, 2);
    assert!(f.is_topological(&f.given_order()));
    let wrong = [1, 0, 2, 3].map(OpId);
    let double = [0, 0, 2, 3].map(OpId);
    assert!(!f.is_topological(&wrong) && !f.is_topological(&double));
    assert!(!f.is_topological(&f.given_order()[1..]));
    assert!(!f.is_topological(&[0, 1, 2, 9].map(OpId)));
}
