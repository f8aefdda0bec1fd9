//! What is searched for, and for how long.

use anyhow::Result;
use neap_studies::{
    Classes, Dataflow, Found, Generation, Memory, OpId, Placed, PlacedOptions, Pools, Random,
    Rules, Scope, SearchOptions, Service, SwapPlanner, SwapTask, TensorKind, improve, latencies_ns,
    odswap, random_order, search,
};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use super::{LINK, Threads, network};

/// Threads for each search.
const THREADS: usize = 2;

/// How a search went over time.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Seconds since its start, and what was heard then.
    pub heard: Vec<(f64, Generation)>,
}

impl Progress {
    pub fn last(&self) -> Option<&Generation> {
        self.heard.last().map(|(_, g)| g)
    }

    /// When the best was within 2 % of what it was at the end.
    pub fn settled_s(&self) -> f64 {
        let end = self.last().map_or(0.0, |g| g.best_ns);
        let near = self.heard.iter().find(|(_, g)| g.best_ns <= end * 1.02);
        near.map_or(0.0, |(s, _)| *s)
    }

    /// The best at `seconds`.
    pub fn best_at(&self, seconds: f64) -> f64 {
        let before = self.heard.iter().take_while(|(s, _)| *s <= seconds);
        before
            .last()
            .or(self.heard.first())
            .map_or(0.0, |(_, g)| g.best_ns)
    }
}

/// What one search may do.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Operators scanned, over all genomes.
    pub operators: u64,
}

impl Effort {
    /// Genomes of a network of so many operators.
    pub fn genomes(self, flow: &Dataflow) -> u64 {
        self.operators / flow.operators().len().max(1) as u64
    }
}

/// Runs a search until it has timed so many genomes.
fn counted<T>(
    genomes: u64,
    run: impl FnOnce(&mut dyn FnMut(&Generation) -> ControlFlow<()>) -> T,
) -> (T, Progress) {
    let started = Instant::now();
    let mut progress = Progress::default();
    let found = run(&mut |generation| {
        progress
            .heard
            .push((started.elapsed().as_secs_f64(), *generation));
        if generation.timed >= genomes {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    (found, progress)
}

/// The paper's search; `None` where no pools fit.
pub fn pooled(
    flow: &Dataflow,
    bytes: u64,
    effort: Effort,
    options: &SearchOptions,
) -> Option<(Found, Progress)> {
    let (found, progress) = counted(effort.genomes(flow), |progress| {
        search(flow, &LINK, bytes, options, &Threads(THREADS), progress)
    });
    Some((found.ok()?, progress))
}

/// Ours, from what pools have found, if anything, or from heuristics alone.
pub fn placed(
    flow: &Dataflow,
    bytes: u64,
    effort: Effort,
    pooled: Option<&Found>,
) -> Option<(Placed, Progress)> {
    let (found, progress) = counted(effort.genomes(flow), |progress| {
        let options = PlacedOptions::default();
        improve(
            flow,
            &LINK,
            bytes,
            &options,
            pooled,
            &Threads(THREADS),
            progress,
        )
    });
    Some((found.ok()?, progress))
}

/// Both back ends with the same effort.
pub struct Both {
    pub pooled: Option<(Found, Progress)>,
    /// From heuristics alone.
    pub alone: Option<(Placed, Progress)>,
    /// From what pools have found.
    pub placed: Option<(Placed, Progress)>,
}

impl Both {
    fn search(flow: &Dataflow, bytes: u64, effort: Effort) -> Self {
        let pooled = pooled(flow, bytes, effort, &SearchOptions::default());
        let found = pooled.as_ref().map(|(found, _)| found);
        Self {
            alone: placed(flow, bytes, effort, None),
            placed: placed(flow, bytes, effort, found),
            pooled,
        }
    }

    pub fn pooled_ns(&self) -> Option<f64> {
        self.pooled.as_ref().map(|(f, _)| f.outcome.total_ns)
    }

    pub fn alone_ns(&self) -> Option<f64> {
        self.alone.as_ref().map(|(p, _)| p.outcome.total_ns)
    }

    pub fn placed_ns(&self) -> Option<f64> {
        self.placed.as_ref().map(|(p, _)| p.outcome.total_ns)
    }

    fn tell(&self, name: &str) {
        let s = |ns: Option<f64>| ns.map_or("N/A".into(), |ns| format!("{:.4} s", ns / 1e9));
        eprintln!(
            "{name}: pools {}, placed alone {}, placed {}",
            s(self.pooled_ns()),
            s(self.alone_ns()),
            s(self.placed_ns())
        );
    }
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

/// A network of the paper's Table 1.
pub struct NetworkRow {
    pub name: &'static str,
    pub paper: Option<PaperRow>,
    pub operators: usize,
    pub sizes: usize,
    pub activations_sizes: usize,
    pub parameter_bytes: u64,
    pub needed_bytes: u64,
    pub kept_bytes: u64,
    pub batch: u32,
}

/// Name, gigabytes, operators, sizes of memory.
type PaperRow = (&'static str, u32, u32, u32);

/// Networks, the paper's row for each, batch.
const NETWORKS: &[(&str, Option<PaperRow>, u32)] = &[
    ("resnet152", None, 64),
    ("wide_resnet152_w4", None, 64),
    (
        "wide_resnet152_w10",
        Some(("WResNet-152-10", 180, 882, 26)),
        64,
    ),
    ("inception_v4", None, 64),
    ("inception_v4_w4", Some(("Inception-4", 71, 830, 64)), 64),
    ("nasnet_a_large", None, 64),
    ("nasnet_a_large_r25", Some(("NasNet-25", 193, 5533, 65)), 64),
    ("rnn_8_8k", Some(("RNN-8-8K", 118, 8594, 7)), 256),
    ("brnn_4_8k", Some(("BRNN-4-8K", 99, 9034, 9)), 128),
];

pub fn networks(root: &Path) -> Result<Vec<NetworkRow>> {
    let row = |&(name, paper, batch): &(&'static str, _, u32)| {
        let flow = network(root, name, batch, false)?;
        let kept = network(root, name, batch, true)?;
        let mut sizes: Vec<u64> = flow
            .tensors()
            .iter()
            .filter(|t| t.kind != TensorKind::Parameter)
            .map(|t| t.bytes)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        Ok(NetworkRow {
            name,
            paper,
            operators: flow.operators().len(),
            sizes: flow.sizes().len(),
            activations_sizes: sizes.len(),
            parameter_bytes: flow.parameter_bytes(),
            needed_bytes: needed_bytes(&flow),
            kept_bytes: needed_bytes(&kept),
            batch,
        })
    };
    NETWORKS.iter().map(row).collect()
}

/// One cell of Table 2.
pub struct Cell {
    pub batch: u32,
    pub megabytes: u64,
    pub paper_s: Option<f64>,
    pub ideal_ns: f64,
    pub both: Both,
    pub odswap_ns: Option<f64>,
}

/// The paper's Table 2, in seconds; N/A where it could not run.
const TABLE_2: [(u64, [Option<f64>; 3]); 5] = [
    (64, [Some(0.024), None, None]),
    (128, [Some(0.022), Some(0.077), None]),
    (192, [Some(0.018), Some(0.044), None]),
    (512, [Some(0.017), Some(0.040), Some(0.238)]),
    (640, [Some(0.017), Some(0.040), Some(0.123)]),
];

pub fn table_2(root: &Path, effort: Effort) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for (column, batch) in [1, 16, 64].into_iter().enumerate() {
        let flow = network(root, "resnet152", batch, false)?;
        for (megabytes, paper) in TABLE_2 {
            let bytes = megabytes << 20;
            let cell = Cell {
                batch,
                megabytes,
                paper_s: paper[column],
                ideal_ns: flow.ideal_ns() as f64,
                both: Both::search(&flow, bytes, effort),
                odswap_ns: odswap(&flow, &LINK, bytes).map(|(_, o)| o.total_ns),
            };
            cell.both
                .tell(&format!("Table 2: batch {batch}, {megabytes} MB"));
            cells.push(cell);
        }
    }
    Ok(cells)
}

/// One line of Figure 8.
pub struct Curve {
    pub way: &'static str,
    pub models: usize,
    /// Samples a second, and the 99th percentile of latency.
    pub points: Vec<(f64, Option<f64>)>,
}

pub struct Figure8 {
    pub batch: u32,
    pub each_megabytes: u64,
    pub curves: Vec<Curve>,
}

/// Samples a second that are asked for.
const LOADS: [f64; 7] = [50.0, 100.0, 150.0, 200.0, 250.0, 300.0, 350.0];

pub fn figure_8(root: &Path, effort: Effort) -> Result<Figure8> {
    figure_8_at(root, effort, |_| LOADS.to_vec())
}

/// The same under loads (samples a second) that may depend on what one model alone can do.
pub fn figure_8_at(
    root: &Path,
    effort: Effort,
    loads: impl FnOnce(f64) -> Vec<f64>,
) -> Result<Figure8> {
    const BATCH: u32 = 16;
    const EACH_MEGABYTES: u64 = 192;
    const REQUESTS: usize = 100_000;
    let flow = network(root, "resnet152", BATCH, false)?;
    let ideal_ns = flow.ideal_ns() as f64;
    let loads = loads(f64::from(BATCH) * 1e9 / ideal_ns);
    let bytes = EACH_MEGABYTES << 20;
    let both = Both::search(&flow, bytes, effort);
    let switch_ns = LINK.transfer_ns(flow.parameter_bytes());
    let mut services = vec![("not shared", 1, ideal_ns, 0.0)];
    for models in [4, 16] {
        let swapped = [
            ("SwapAdvisor, pools", both.pooled_ns()),
            ("SwapAdvisor, placed", both.placed_ns()),
        ];
        for (way, ns) in swapped {
            services.extend(ns.map(|ns| (way, models, ns, 0.0)));
        }
        services.push(("time-shared", models, ideal_ns, switch_ns));
    }
    let curves = services
        .into_iter()
        .map(|(way, models, run_ns, switch_ns)| {
            let service = Service {
                models,
                run_ns,
                switch_ns,
            };
            let mean_ns = run_ns + switch_ns * (1.0 - 1.0 / models as f64);
            let point = |load: f64| {
                let arrivals = load / f64::from(BATCH);
                // Beyond what it can do, waiting has no end.
                let all = (arrivals * mean_ns / 1e9 < 0.99)
                    .then(|| latencies_ns(&service, arrivals, REQUESTS, 1));
                (load, all.map(|l| l[l.len() * 99 / 100]))
            };
            Curve {
                way,
                models,
                points: loads.iter().map(|&load| point(load)).collect(),
            }
        });
    Ok(Figure8 {
        batch: BATCH,
        each_megabytes: EACH_MEGABYTES,
        curves: curves.collect(),
    })
}

/// Searches over one of the paper's large networks.
pub struct Large {
    pub name: &'static str,
    pub batch: u32,
    pub operators: usize,
    pub capacity_bytes: u64,
    pub needed_bytes: u64,
    pub ideal_ns: f64,
    pub odswap_ns: Option<f64>,
    pub odswap_random_ns: Option<f64>,
    pub both: Both,
    /// In pools, and with places.
    pub genome_ms: [f64; 2],
    pub simulation_ms: f64,
    pub paper: &'static str,
}

/// The paper's networks with all activations kept, in the V100's 16 GB.
pub fn large(root: &Path, effort: Effort) -> Result<Vec<Large>> {
    const CAPACITY: u64 = 16 << 30;
    let cases = [
        ("wide_resnet152_w10", 32, "80 %, 95 %"),
        ("inception_v4_w4", 64, "53–99 % over all networks"),
        ("nasnet_a_large_r25", 16, "80 % (SwapAdvisor)"),
        ("rnn_8_8k", 256, "<1 %, 70–80 %"),
        ("brnn_4_8k", 128, "<1 %, 70–80 %"),
    ];
    let study = |(name, batch, paper): (&'static str, u32, &'static str)| {
        let flow = network(root, name, batch, true)?;
        let order = random_order(&flow, &mut Random::new(1, 0, 0));
        let (genome_ms, simulation_ms) = one_genome(&flow, &order, CAPACITY);
        let both = Both::search(&flow, CAPACITY, effort);
        both.tell(name);
        Ok(Large {
            name,
            batch,
            operators: flow.operators().len(),
            capacity_bytes: CAPACITY,
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
        for _ in 0..10 {
            let started = Instant::now();
            let plan = planner.plan(&SwapTask {
                flow,
                order,
                memory: &memory,
                device: &LINK,
                rules: &Rules::default(),
            });
            let planned = Instant::now();
            plan.and_then(|plan| neap_studies::play(flow, plan, &LINK));
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
    let variants = [
        ("both", base),
        (
            "schedule only",
            SearchOptions {
                scope: Scope::ScheduleOnly,
                ..base
            },
        ),
        (
            "allocation only",
            SearchOptions {
                scope: Scope::AllocationOnly,
                ..base
            },
        ),
        (
            "unrestricted classes",
            SearchOptions {
                classes: Classes::Unrestricted,
                ..base
            },
        ),
        (
            "the paper's softmax as it is",
            SearchOptions {
                temperature: 1.0,
                keeps_best: false,
                ..base
            },
        ),
    ];
    let mut all = Vec::new();
    for (network_name, batch) in [("inception_v4_w4", 64), ("rnn_8_8k", 256)] {
        let flow = network(root, network_name, batch, true)?;
        for (variant, options) in &variants {
            let found = pooled(&flow, 16 << 30, effort, options);
            let last = found.as_ref().and_then(|(_, p)| p.last().copied());
            eprintln!(
                "{network_name}, {variant}: {:?}",
                found.as_ref().map(|(f, _)| f.outcome.total_ns)
            );
            all.push(Ablation {
                network: network_name,
                variant,
                ideal_ns: flow.ideal_ns() as f64,
                best_ns: found.map(|(f, _)| f.outcome.total_ns),
                mean_ns: last.map_or(f64::NAN, |g| g.mean_ns),
                worst_ns: last.map_or(f64::NAN, |g| g.worst_ns),
            });
        }
    }
    Ok(all)
}
