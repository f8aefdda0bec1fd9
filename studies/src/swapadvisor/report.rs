//! What was found, as `docs/swapadvisor.md`.

use super::LINK;
use super::studies::{Cell, Figure8, Progress};
use super::training::{Ablation, Large, NetworkRow, Resident};
use crate::chart;
use std::fmt::Write;

/// Writing to a string cannot fail.
macro_rules! line {
    ($text:expr, $($rest:tt)*) => {{ let _ = writeln!($text, $($rest)*); }};
}

fn gb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e9)
}

fn seconds(ns: Option<f64>) -> String {
    ns.map_or("N/A".into(), |ns| match ns / 1e9 {
        s if s < 1.0 => format!("{s:.4} s"),
        s => format!("{s:.2} s"),
    })
}

fn percent(ideal_ns: f64, ns: Option<f64>) -> String {
    ns.map_or("N/A".into(), |ns| format!("{:.1} %", 100.0 * ideal_ns / ns))
}

pub fn head(text: &mut String, millions: u64) {
    line!(
        text,
        "# SwapAdvisor's search\n\n\
         `cargo study swapadvisor --write` makes this page. Everything on it is simulated on the paper's\n\
         device: a V100 with 12 GB/s one way and 20 GB/s both ways over PCIe. Operators take the longer of their\n\
         arithmetic at 20 TFLOP/s and their bytes at 900 GB/s, and 29.5 µs each; this is fitted to the paper's own\n\
         times of ResNet-152 without swapping (Table 2). Networks are those of the zoo, written with\n\
         `--shapes-only`; no weight is ever read. Training is a step of stochastic gradient descent as the engine\n\
         would train: forward pass, loss, derivatives, and an update of each parameter where it lies. Searches over\n\
         inference scan {millions} million operators each ({} genomes of ResNet-152), those over training a quarter of that\n\
         ({} genomes of WResNet-152-10; for RNNs and NasNet-25 that is the first population alone), on two threads (the\n\
         paper: 30 minutes on 72 cores). The load of the machine changes seconds of search, and nothing else here.\n\n\
         - *pools*: the paper's search: schedule, size classes and counts, Belady within a class. A population\n\
         \x20 of 144, P = 10 %; survivors are drawn by the paper's softmax over a temperature of 0.05, and the best\n\
         \x20 always survives (*What each dimension is worth* has what the softmax does as printed).\n\
         - *placed*: without size classes. Planning the swaps of a genome gives every tensor an address; what lies\n\
         \x20 where a tensor is to go is sent away together, where that is cheapest. Small steps beside crossover,\n\
         \x20 from heuristic schedules and from what pools have found, with as many genomes again (over training\n\
         \x20 an eighth of them, and at least 64: they take longer); *alone* is from heuristics only.\n\
         - *ODSwap*: least recently used goes; loads as early as the first run's decisions allow, in memory that\n\
         \x20 does not fragment.\n\
         - *ideal*: memory without end.\n\n\
         Training can run plans that pools find: `cargo study swapadvisor --real`. Inference does not search so: its `--strategy search` varies\n\
         windows, slicings and resident weights instead (`plan-semantics.md`,\n\
         *Search*). Both halves of a genome were tried in it. Plans from swap planning were predicted faster at 3 of 272 points and by\n\
         more than 1 % at one; a second order of steps was predicted up to 2.7 % faster for two networks, which no measurement could tell\n\
         from noise.\n",
        millions * 1_000_000 / 515,
        millions * 250_000 / 1663
    );
}

pub fn networks(text: &mut String, rows: &[NetworkRow]) {
    line!(
        text,
        "## Networks (Table 1)\n\n\
         Operators of a step: of the network, of its loss and derivatives, and updates of parameters. *Needs* is the most\n\
         memory that is in use at once when nothing ever has to leave and dead tensors' memory is used again; *all tensors*\n\
         is without using memory again.\n\n\
         | network | batch | operators | sizes | parameters | needs | all tensors | the paper's network | memory | operators | sizes |\n\
         |---|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|"
    );
    for r in rows {
        let (name, paper_gb, operators, sizes) = r.paper;
        let [forward, backward, updates] = r.operators;
        line!(
            text,
            "| {} | {} | {forward} + {backward} + {updates} = {} | {} | {} GB | {} GB | {} GB | {name} | {paper_gb} GB | {operators} | {sizes} |",
            r.name,
            r.batch,
            forward + backward + updates,
            r.sizes,
            gb(r.parameter_bytes),
            gb(r.needed_bytes),
            gb(r.total_bytes),
        );
    }
    line!(text, "{NETWORKS_NOTE}");
}

pub fn table_2(text: &mut String, cells: &[Cell]) {
    line!(
        text,
        "\n## ResNet-152, inference (Table 2)\n\n\
         N/A: some operator's tensors do not fit. The paper prints three decimals.\n\n\
         | batch | memory | the paper | pools | placed alone | placed | ODSwap | ideal |\n|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    for c in cells {
        line!(
            text,
            "| {} | {} MB | {} | {} | {} | {} | {} | {} |",
            c.batch,
            c.megabytes,
            c.paper_s.map_or("N/A".into(), |s| format!("{s:.3} s")),
            seconds(c.both.pooled_ns()),
            seconds(c.both.alone_ns()),
            seconds(c.both.placed_ns()),
            seconds(c.odswap_ns),
            seconds(Some(c.ideal_ns))
        );
    }
}

pub fn figure_8(text: &mut String, f: &Figure8) {
    line!(
        text,
        "\n## Several models on one device (Figure 8)\n\n\
         99th percentile of latency, by samples a second: ResNet-152, batches of {} that arrive as a Poisson\n\
         process, each for a model drawn at random, first come first served. With SwapAdvisor each model has {} MB\n\
         of its own (the paper does not print how much it gives). Time-shared, one model at a time has all it needs, and its\n\
         parameters are loaded when it is not the one that ran before. `–`: more than it can serve. The paper:\n\
         below 400 samples a second SwapAdvisor is at most twice as slow as not shared, time-sharing 8 times with\n\
         16 models at 300.\n",
        f.batch,
        f.each_megabytes
    );
    let loads: Vec<String> = f
        .curves
        .first()
        .map(|c| c.points.iter().map(|(load, _)| format!("{load}")).collect())
        .unwrap_or_default();
    line!(
        text,
        "| | {} |\n|---|{}",
        loads.join(" | "),
        "--:|".repeat(loads.len())
    );
    for c in &f.curves {
        let points: Vec<String> = c
            .points
            .iter()
            .map(|(_, ns)| ns.map_or("–".into(), |ns| format!("{:.0} ms", ns / 1e6)))
            .collect();
        let plural = if c.models == 1 { "" } else { "s" };
        line!(
            text,
            "| {}, {} model{plural} | {} |",
            c.way,
            c.models,
            points.join(" | ")
        );
    }
}

pub fn large(text: &mut String, rows: &[Large]) {
    line!(
        text,
        "\n## Training in 16 GB (Figure 6)\n\n\
         Throughput as a share of ideal. *Random order*: ODSwap with operators in a random topological order, which is what the\n\
         paper says of MXNet's. The paper's figures are those that its text gives.\n\n\
         | network | batch | operators | needs | ideal | ODSwap, graph's order | ODSwap, random order | the paper's ODSwap | pools | the paper's search | placed | best heuristic, unsearched |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    for r in rows {
        let share = |ns| percent(r.ideal_ns, ns);
        line!(
            text,
            "| {} | {} | {} | {} GB | {} | {} | {} | {} | {} | {} | {} | {} |",
            r.name,
            r.batch,
            r.operators,
            gb(r.needed_bytes),
            seconds(Some(r.ideal_ns)),
            share(r.odswap_ns),
            share(r.odswap_random_ns),
            r.paper[0],
            share(r.both.pooled_ns()),
            r.paper[1],
            share(r.both.placed_ns()),
            share(r.both.placed.as_ref().map(|(p, _)| p.heuristic_ns)),
        );
    }
    line!(
        text,
        "\n| network | batch | loaded, placed | stored, placed | of a step, the link takes at least |\n|---|--:|--:|--:|--:|"
    );
    for r in rows {
        if let Some((p, _)) = &r.both.placed {
            let o = p.outcome;
            let most = o.loaded_bytes.max(o.stored_bytes) as f64;
            let both_ways = (o.loaded_bytes + o.stored_bytes) as f64;
            let link_s = (most / LINK.one_way_bytes_per_second)
                .max(both_ways / LINK.both_ways_bytes_per_second);
            line!(
                text,
                "| {} | {} | {} GB | {} GB | {link_s:.2} s of {} |",
                r.name,
                r.batch,
                gb(o.loaded_bytes),
                gb(o.stored_bytes),
                seconds(Some(o.total_ns))
            );
        }
    }
    line!(text, "{LARGE_NOTE}");
    searches(text, rows);
}

/// How long searches took.
fn searches(text: &mut String, rows: &[Large]) {
    line!(
        text,
        "\n### Convergence on two threads (Figure 9)\n\n\
         ![Share of ideal by seconds of search](swapadvisor-search.svg)\n\n\
         Best time of a step found after so many seconds; *settled* is when it came within 2 % of the last. *Genome* is what\n\
         planning the swaps of one genome (a random schedule) and playing it takes; *play* the simulation alone. What is found\n\
         depends on the number of genomes only; seconds depend on the machine and on what else it does.\n\n\
         | network | batch | back end | genomes | 1 s | 5 s | 15 s | 30 s | end | settled | took | mean, worst at the end | genome | play |\n\
         |---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    for r in rows {
        for (back_end, progress) in back_ends(r).into_iter().enumerate() {
            let Some((progress, last)) = progress.and_then(|p| Some((p, p.last()?))) else {
                continue;
            };
            let at = |s| seconds(Some(progress.best_at(s)));
            let took = progress.heard.last().map_or(0.0, |(s, _)| *s);
            line!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {:.1} s | {took:.0} s | {}, {} | {:.1} ms | {:.2} ms |",
                r.name,
                r.batch,
                BACK_ENDS[back_end],
                last.timed,
                at(1.0),
                at(5.0),
                at(15.0),
                at(30.0),
                seconds(Some(last.best_ns)),
                progress.settled_s(),
                seconds(Some(last.mean_ns)),
                seconds(Some(last.worst_ns)),
                r.genome_ms[back_end],
                r.simulation_ms
            );
        }
    }
}

const BACK_ENDS: [&str; 2] = ["pools", "placed"];

fn back_ends(row: &Large) -> [Option<&Progress>; 2] {
    let both = &row.both;
    let pooled = both.pooled.as_ref().map(|(_, p)| p);
    [pooled, both.placed.as_ref().map(|(_, p)| p)]
}

/// Share of ideal by seconds of search, of each network at its largest batch, as SVG.
pub fn convergence(rows: &[Large]) -> String {
    let is_largest = |r: &&Large| !rows.iter().any(|o| o.name == r.name && o.batch > r.batch);
    let names: Vec<(String, &Large, &Progress)> = rows
        .iter()
        .filter(is_largest)
        .flat_map(|r| {
            let each = back_ends(r).into_iter().zip(BACK_ENDS);
            each.filter_map(move |(p, back_end)| Some((format!("{}, {back_end}", r.name), r, p?)))
        })
        .collect();
    let lines = names.iter().map(|(name, r, progress)| chart::Line {
        name,
        points: (progress.heard.iter())
            .map(|(s, g)| (*s, 100.0 * r.ideal_ns / g.best_ns))
            .collect(),
    });
    let lines: Vec<chart::Line> = lines.collect();
    chart::lines("seconds of search", "share of ideal, %", &lines)
}

pub fn figure_7(text: &mut String, rows: &[Resident]) {
    let Some(first) = rows.first() else { return };
    let ahead: Vec<String> = (first.resident_ns.iter())
        .map(|(ahead, _)| format!("resident parameters, {ahead} ahead"))
        .collect();
    line!(
        text,
        "\n## Where parameters stay (Figure 7)\n\n\
         WResNet-152-4 in 16 GB. *Resident parameters* is like TFLMS: parameters never leave; of activations the one used\n\
         longest ago goes, and its load begins as many operators before the one that wants it. The networks of Figure 6 with\n\
         more than 16 GB of parameters cannot run that way. The paper: SwapAdvisor at least 3 times as fast as TFLMS, ODSwap at\n\
         least 2 times. Throughput as a share of ideal.\n\n\
         | batch | ideal | {} | ODSwap | pools | placed | placed is faster than the best with resident parameters |\n|--:|--:|{}--:|--:|--:|--:|",
        ahead.join(" | "),
        "--:|".repeat(ahead.len())
    );
    for r in rows {
        let share = |ns| percent(r.ideal_ns, ns);
        let resident: Vec<String> = r.resident_ns.iter().map(|(_, ns)| share(*ns)).collect();
        let best = (r.resident_ns.iter()).filter_map(|(_, ns)| *ns);
        let best = best.min_by(f64::total_cmp);
        let times = best
            .zip(r.both.placed_ns())
            .map_or("N/A".into(), |(a, b)| format!("{:.1} times", a / b));
        line!(
            text,
            "| {} | {} | {} | {} | {} | {} | {times} |",
            r.batch,
            seconds(Some(r.ideal_ns)),
            resident.join(" | "),
            share(r.odswap_ns),
            share(r.both.pooled_ns()),
            share(r.both.placed_ns()),
        );
    }
    line!(text, "{RESIDENT_NOTE}");
}

pub fn ablations(text: &mut String, rows: &[Ablation]) {
    line!(
        text,
        "\n## What each dimension is worth (Figures 9 and 10)\n\n\
         Training, pools, 16 GB; share of ideal throughput. *Allocation only* keeps one order of operators: the graph's, or a\n\
         random one as MXNet's.\n\n\
         | network | searched | best | mean at the end | worst at the end |\n|---|---|--:|--:|--:|"
    );
    for r in rows {
        let share = |ns: Option<f64>| percent(r.ideal_ns, ns);
        line!(
            text,
            "| {} | {} | {} | {} | {} |",
            r.network,
            r.variant,
            share(r.best_ns),
            share(Some(r.mean_ns)),
            share(Some(r.worst_ns))
        );
    }
    line!(text, "{ABLATIONS_NOTE}");
}

const NETWORKS_NOTE: &str = "
Counts differ: ours has an operator for each derivative and for each update, where a framework's layer has one backward
operator for all of its derivatives. The paper does not say how many time steps its recurrent networks have; ours have as many as give about
its number of operators. Ours need less memory: ReLU and sums write over what they read, memory of dead tensors is used again,
and convolutions have no scratch space. For recurrent networks the difference is larger than that explains; the paper does not
say what its figure counts. Tensor sizes are about as many.";

const LARGE_NOTE: &str = "
Why the paper's own methods get other figures here:

- *The ideal is faster.* 20 TFLOP/s fit the paper's ResNet-152, whose 3x3 convolutions run as Winograd; the V100's own peak is 15.7.
  The faster an operator, the less of a transfer it hides. The paper's search reaches 95 % on a network that needs 180 GB,
  so its ideal hides far more transfers than this one.
- *ODSwap is stronger.* Its memory does not fragment, and its loads start as early as they can.
- *Orders.* The zoo's recurrent networks are written layer by layer, which suits swapping; in a random order ODSwap takes
  several times as long for RNN-8-8K.
- *The search is shorter.* Pools start from random orders, as the paper's do, and this effort is a small part of 30 minutes on 72 cores.
  For networks of thousands of operators it is the first population: 144 random genomes.";

const RESIDENT_NOTE: &str = "
The paper's factor is not reproduced. Parameters of WResNet-152-4 take a fifth of the memory, and leaving them there costs about
a tenth of the throughput. This baseline is kinder than TFLMS: its memory does not fragment, it swaps only what it must, and all else is equal, where the paper compares
TensorFlow with MXNet.";

const ABLATIONS_NOTE: &str = "
The paper: without searching schedules RNN-8-8K has 7 % of the throughput of the full search, and Inception-4 has 93 %. Here, too, the
order decides for RNN-8-8K: in the graph's own, layer by layer, pools alone come near the ideal, and in random ones nothing does. For
Inception-4 no dimension is worth much.";
