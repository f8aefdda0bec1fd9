//! What is searched for, and for how long; and the paper's inference.

use anyhow::Result;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;
use swap_search::{
    Dataflow, Found, Generation, Placed, PlacedOptions, SearchOptions, Service, improve,
    latencies_ns, odswap, search,
};

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
    /// Of searches over training, whose graphs are larger and whose genomes take longer.
    pub fn of_training(self) -> Self {
        Self {
            operators: self.operators / 4,
        }
    }

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
    genomes: u64,
    pooled: Option<&Found>,
) -> Option<(Placed, Progress)> {
    let (found, progress) = counted(genomes, |progress| {
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
    pub fn search(flow: &Dataflow, bytes: u64, effort: Effort) -> Self {
        let pooled = pooled(flow, bytes, effort, &SearchOptions::default());
        let found = pooled.as_ref().map(|(found, _)| found);
        let genomes = effort.genomes(flow);
        Self {
            alone: placed(flow, bytes, genomes, None),
            placed: placed(flow, bytes, genomes, found),
            pooled,
        }
    }

    /// Over training: an eighth as many genomes with places, which take so much longer, and none from heuristics alone.
    pub fn of_training(flow: &Dataflow, bytes: u64, effort: Effort) -> Self {
        const LEAST: u64 = 64;
        let pooled = pooled(flow, bytes, effort, &SearchOptions::default());
        let found = pooled.as_ref().map(|(found, _)| found);
        let genomes = (effort.genomes(flow) / 8).max(LEAST);
        Self {
            alone: None,
            placed: placed(flow, bytes, genomes, found),
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

    pub fn tell(&self, name: &str) {
        let s = |ns: Option<f64>| ns.map_or("N/A".into(), |ns| format!("{:.4} s", ns / 1e9));
        eprintln!(
            "{name}: pools {}, placed alone {}, placed {}",
            s(self.pooled_ns()),
            s(self.alone_ns()),
            s(self.placed_ns())
        );
    }
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
        let flow = network(root, "resnet152", batch)?;
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
    let flow = network(root, "resnet152", BATCH)?;
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
