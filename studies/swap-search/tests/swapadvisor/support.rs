//! Dataflows to search over, and the check of a plan by playing it with times of all kinds.

use swap_search::{
    Dataflow, DataflowSpec, Device, Memory, Operator, Random, Stay, SwapPlan, Tensor, TensorId,
    TensorKind,
};

/// One byte a nanosecond each way.
pub const LINK: Device = Device {
    one_way_bytes_per_second: 1e9,
    both_ways_bytes_per_second: 2e9,
    transfer_latency_ns: 0,
};

pub fn flow(tensors: &[(u64, TensorKind)], operators: &[(u64, &[u32], &[u32])]) -> Dataflow {
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
pub fn random_flow(seed: u64, ops: u32) -> Dataflow {
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
/// room, in each class at every moment, and a run ends as it began. When each stay began and ended.
pub fn check(flow: &Dataflow, memory: &Memory, plan: &SwapPlan, seed: u64) -> Vec<(u64, u64)> {
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
    let mut times = vec![(0, 0); plan.stays.len()];
    let mut stays_of = vec![Vec::new(); flow.tensors().len()];
    for (i, stay) in plan.stays.iter().enumerate().filter(|(_, s)| s.to > 0) {
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
        times[i] = (begin, end);
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
            let has = |s: &&(&Stay, u64, u64)| {
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
    times
}

/// An unrolled recurrent network, given time step by time step: every operator wants the parameters of
/// another layer, while layer by layer each would be loaded once.
pub fn recurrent(layers: u32, steps: u32, weight_bytes: u64) -> Dataflow {
    let mut spec = DataflowSpec::default();
    let add = |bytes, kind, spec: &mut DataflowSpec| {
        spec.tensors.push(Tensor { bytes, kind });
        TensorId(spec.tensors.len() as u32 - 1)
    };
    let weights: Vec<TensorId> = (0..layers)
        .map(|_| add(weight_bytes, TensorKind::Parameter, &mut spec))
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
