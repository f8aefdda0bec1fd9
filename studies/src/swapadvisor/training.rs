//! The paper's training: its networks' steps with less memory than they need, and what each dimension of the search is
//! worth there.

use anyhow::{Context, Result};
use std::path::Path;
use std::time::Instant;
use swap_search::{
    Classes, Dataflow, Memory, OpId, Pools, Random, Rules, Scope, SearchOptions, SwapPlanner,
    SwapTask, TrainingFlow, odswap, random_order, resident_parameters,
};

use super::studies::{Both, Effort, pooled};
use super::{LINK, opened, v100};

/// The V100's memory.
pub const CAPACITY: u64 = 16 << 30;

/// A step of training of a zoo network.
fn training(root: &Path, name: &str, batch: u32) -> Result<TrainingFlow> {
    let graph = opened(root, name, batch)?;
    swap_search::of_training(graph, &v100()).with_context(|| name.to_owned())
}

/// Bytes in use at once when nothing ever has to leave.
fn needed_bytes(flow: &Dataflow) -> u64 {
    let memory = Memory::bytes(flow, u64::MAX >> 8, 1);
    let mut planner = SwapPlanner::default();
    let order = flow.given_order();
    let Some(plan) = planner.plan(&SwapTask {
        flow,
        order: &order,
        memory: &memory,
        device: &LINK,
        rules: &Rules::default(),
    }) else {
        return u64::MAX;
    };
    let mut change = vec![0i64; order.len() + 1];
    for stay in plan.stays.iter().filter(|s| s.to > 0) {
        let bytes = flow.tensors()[stay.tensor.index()].bytes as i64;
        let begin = if stay.initial {
            0
        } else {
            stay.first_use as usize
        };
        change[begin] += bytes;
        change[stay.to as usize] -= bytes;
    }
    let mut live = 0;
    let most = change.iter().map(|c| {
        live += c;
        live
    });
    most.max().unwrap_or(0) as u64
}

/// The paper's row of Table 1: name, gigabytes, operators, sizes of memory.
type PaperRow = (&'static str, u32, u32, u32);

/// A network of Table 1.
pub struct NetworkRow {
    pub name: &'static str,
    pub batch: u32,
    pub paper: PaperRow,
    /// Of the network, of its backward pass, and updates.
    pub operators: [usize; 3],
    pub sizes: usize,
    pub parameter_bytes: u64,
    pub needed_bytes: u64,
    pub total_bytes: u64,
}

const NETWORKS: [(&str, u32, PaperRow); 5] = [
    ("wide_resnet152_w10", 64, ("WResNet-152-10", 180, 882, 26)),
    ("inception_v4_w4", 64, ("Inception-4", 71, 830, 64)),
    ("nasnet_a_large_r25", 64, ("NasNet-25", 193, 5533, 65)),
    ("rnn_8_8k", 256, ("RNN-8-8K", 118, 8594, 7)),
    ("brnn_4_8k", 128, ("BRNN-4-8K", 99, 9034, 9)),
];

pub fn networks(root: &Path) -> Result<Vec<NetworkRow>> {
    let row = |&(name, batch, paper): &(&'static str, u32, PaperRow)| {
        let step = training(root, name, batch)?;
        Ok(NetworkRow {
            name,
            batch,
            paper,
            operators: [step.forward, step.backward, step.updates],
            sizes: step.flow.sizes().len(),
            parameter_bytes: step.flow.parameter_bytes(),
            needed_bytes: needed_bytes(&step.flow),
            total_bytes: step.flow.total_bytes(),
        })
    };
    NETWORKS.iter().map(row).collect()
}

/// Searches over the training of one of the paper's large networks.
pub struct Large {
    pub name: &'static str,
    pub batch: u32,
    pub operators: usize,
    pub needed_bytes: u64,
    pub ideal_ns: f64,
    pub odswap_ns: Option<f64>,
    pub odswap_random_ns: Option<f64>,
    pub both: Both,
    /// In pools, and with places.
    pub genome_ms: [f64; 2],
    pub simulation_ms: f64,
    /// Of ODSwap and of the search.
    pub paper: [&'static str; 2],
}

/// Figure 6.
pub fn large(root: &Path, effort: Effort) -> Result<Vec<Large>> {
    let cases = [
        ("wide_resnet152_w10", 64, ["80 %", "95 %"]),
        ("inception_v4_w4", 16, ["–", "80 %"]),
        ("inception_v4_w4", 64, ["–", "≤ 65 %"]),
        ("nasnet_a_large_r25", 16, ["–", "80 %"]),
        ("nasnet_a_large_r25", 64, ["–", "53 %"]),
        ("rnn_8_8k", 256, ["< 1 %", "70–80 %"]),
        ("brnn_4_8k", 128, ["< 1 %", "70–80 %"]),
    ];
    let study = |(name, batch, paper): (&'static str, u32, [&'static str; 2])| {
        let flow = training(root, name, batch)?.flow;
        let order = random_order(&flow, &mut Random::new(1, 0, 0));
        let (genome_ms, simulation_ms) = one_genome(&flow, &order, CAPACITY);
        let both = Both::of_training(&flow, CAPACITY, effort);
        both.tell(&format!("Figure 6: {name}, batch {batch}"));
        Ok(Large {
            name,
            batch,
            operators: flow.operators().len(),
            needed_bytes: needed_bytes(&flow),
            ideal_ns: flow.ideal_ns() as f64,
            odswap_ns: odswap(&flow, &LINK, CAPACITY).map(|(_, o)| o.total_ns),
            odswap_random_ns: odswap(&reordered(&flow, &order)?, &LINK, CAPACITY)
                .map(|(_, o)| o.total_ns),
            both,
            genome_ms,
            simulation_ms,
            paper,
        })
    };
    cases.into_iter().map(study).collect()
}

/// Where parameters always stay.
pub struct Resident {
    pub batch: u32,
    pub ideal_ns: f64,
    pub odswap_ns: Option<f64>,
    pub both: Both,
    /// By how many operators before its use a load begins.
    pub resident_ns: Vec<(u32, Option<f64>)>,
}

/// How far ahead loads of [`Resident`] begin.
const AHEAD: [u32; 3] = [1, 4, 16];

/// Figure 7: WResNet-152-4 beside a baseline like TFLMS.
pub fn figure_7(root: &Path, effort: Effort) -> Result<Vec<Resident>> {
    let study = |batch: u32| {
        let flow = training(root, "wide_resnet152_w4", batch)?.flow;
        let both = Both::of_training(&flow, CAPACITY, effort);
        both.tell(&format!("Figure 7: batch {batch}"));
        let resident = |ahead| resident_parameters(&flow, &LINK, CAPACITY, ahead);
        Ok(Resident {
            batch,
            ideal_ns: flow.ideal_ns() as f64,
            odswap_ns: odswap(&flow, &LINK, CAPACITY).map(|(_, o)| o.total_ns),
            both,
            resident_ns: AHEAD
                .map(|ahead| (ahead, resident(ahead).map(|o| o.total_ns)))
                .to_vec(),
        })
    };
    [16, 32, 64].into_iter().map(study).collect()
}

/// The same dataflow, given in another order.
fn reordered(flow: &Dataflow, order: &[OpId]) -> Result<Dataflow> {
    let mut spec = flow.spec().clone();
    spec.operators = order
        .iter()
        .map(|op| flow.operators()[op.index()].clone())
        .collect();
    Ok(Dataflow::new(spec)?)
}

/// Milliseconds to plan and play one schedule in pools and with places, and to play it.
fn one_genome(flow: &Dataflow, order: &[OpId], capacity_bytes: u64) -> ([f64; 2], f64) {
    let pools = Pools::new(flow, capacity_bytes, Classes::Monotonic);
    let Some(allocation) = pools.random(&mut Random::new(1, 1, 1)) else {
        return ([f64::NAN; 2], f64::NAN);
    };
    let memories = [
        Memory::pools(flow, &allocation),
        Memory::places(flow, capacity_bytes, 512),
    ];
    let mut play_ms = f64::INFINITY;
    let each = memories.map(|memory| {
        let mut planner = SwapPlanner::default();
        let mut best_ms = f64::INFINITY;
        for _ in 0..3 {
            let started = Instant::now();
            let plan = planner.plan(&SwapTask {
                flow,
                order,
                memory: &memory,
                device: &LINK,
                rules: &Rules::default(),
            });
            let planned = Instant::now();
            plan.and_then(|plan| swap_search::play(flow, plan, &LINK));
            let ms = |from: Instant| from.elapsed().as_secs_f64() * 1e3;
            best_ms = best_ms.min(ms(started));
            play_ms = play_ms.min(ms(planned));
        }
        best_ms
    });
    (each, play_ms)
}

/// What each dimension of the search is worth (Figures 9 and 10).
pub struct Ablation {
    pub network: &'static str,
    pub variant: &'static str,
    pub ideal_ns: f64,
    pub best_ns: Option<f64>,
    pub mean_ns: f64,
    pub worst_ns: f64,
}

pub fn ablations(root: &Path, effort: Effort) -> Result<Vec<Ablation>> {
    let base = SearchOptions::default();
    let allocation = SearchOptions {
        scope: Scope::AllocationOnly,
        ..base
    };
    let schedule = SearchOptions {
        scope: Scope::ScheduleOnly,
        ..base
    };
    let unrestricted = SearchOptions {
        classes: Classes::Unrestricted,
        ..base
    };
    let as_printed = SearchOptions {
        temperature: 1.0,
        keeps_best: false,
        ..base
    };
    // What is searched, with what, and whether the operators are first put into a random order.
    let variants = [
        ("both", base, false),
        ("schedule only", schedule, false),
        ("allocation only, the graph's order", allocation, false),
        ("allocation only, a random order", allocation, true),
        ("unrestricted classes", unrestricted, false),
        ("the paper's softmax as it is", as_printed, false),
    ];
    let mut all = Vec::new();
    for (name, batch) in [("inception_v4_w4", 64), ("rnn_8_8k", 256)] {
        let flow = training(root, name, batch)?.flow;
        let shuffled = reordered(&flow, &random_order(&flow, &mut Random::new(1, 0, 0)))?;
        for (variant, options, is_shuffled) in &variants {
            let flow = if *is_shuffled { &shuffled } else { &flow };
            let found = pooled(flow, CAPACITY, effort, options);
            let last = found.as_ref().and_then(|(_, p)| p.last().copied());
            let best_ns = found.map(|(f, _)| f.outcome.total_ns);
            eprintln!("{name}, {variant}: {best_ns:?}");
            all.push(Ablation {
                network: name,
                variant,
                ideal_ns: flow.ideal_ns() as f64,
                best_ns,
                mean_ns: last.map_or(f64::NAN, |g| g.mean_ns),
                worst_ns: last.map_or(f64::NAN, |g| g.worst_ns),
            });
        }
    }
    Ok(all)
}
