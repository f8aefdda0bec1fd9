//! What was found, as `docs/swapadvisor.md`.

use super::studies::{Ablation, Cell, Figure8, Large, NetworkRow};
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
         `cargo xtask bench swapadvisor --write` makes this page. Everything on it is simulated on the paper's\n\
         device: a V100 with 12 GB/s one way and 20 GB/s both ways over PCIe. Operators take the longer of their\n\
         arithmetic at 20 TFLOP/s and their bytes at 900 GB/s, and 29.5 µs each; this is fitted to the paper's own\n\
         times of ResNet-152 without swapping (Table 2). Networks are those of the zoo, written with\n\
         `--shapes-only`; no weight is ever read. Each search scans {millions} million operators ({} genomes of\n\
         ResNet-152, {} of RNN-8-8K), on two threads (the paper: 30 minutes on 72 cores).\n\n\
         - *pools*: the paper's search: schedule, size classes and counts, Belady within a class. A population\n\
         \x20 of 144, P = 10 %; survivors are drawn by the paper's softmax over a temperature of 0.05, and the best\n\
         \x20 always survives (the last table has what the softmax does as printed).\n\
         - *placed*: without size classes. Planning the swaps of a genome gives every tensor an address; what lies\n\
         \x20 where a tensor is to go is sent away together, where that is cheapest. Small steps beside crossover,\n\
         \x20 from heuristic schedules and from what pools have found, with as many genomes again; *alone* is\n\
         \x20 from heuristics only.\n\
         - *ODSwap*: least recently used goes; loads as early as the first run's decisions allow, in memory that\n\
         \x20 does not fragment.\n\
         - *ideal*: memory without end.\n\n\
         No engine uses this search: `--strategy search` varies windows, slicings and resident weights instead (`plan-semantics.md`,\n\
         *Search*). Both halves of a genome were tried in it. Plans from swap planning were predicted faster at 3 of 272 points and by\n\
         more than 1 % at one; a second order of steps was predicted up to 2.7 % faster for two networks, which no measurement could tell\n\
         from noise.\n",
        millions * 1_000_000 / 515,
        millions * 1_000_000 / 8570
    );
}

pub fn networks(text: &mut String, rows: &[NetworkRow]) {
    line!(
        text,
        "## Networks (Table 1)\n\n\
         The paper counts a training step, which also has operators and tensors of the backward pass; ours are\n\
         forward passes. RNN steps are chosen to have as many operators.\n\n\
         | network | batch | operators | tensor sizes | of activations | parameters | needs | all activations kept | the paper's network | memory | operators | sizes |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|"
    );
    for r in rows {
        let paper = r.paper.map_or("| | | |".into(), |(name, gb, ops, sizes)| {
            format!("| {name} | {gb} GB | {ops} | {sizes} |")
        });
        line!(
            text,
            "| {} | {} | {} | {} | {} | {} GB | {} GB | {} GB {paper}",
            r.name,
            r.batch,
            r.operators,
            r.sizes,
            r.activations_sizes,
            gb(r.parameter_bytes),
            gb(r.needed_bytes),
            gb(r.kept_bytes)
        );
    }
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
        "\n## Large networks in 16 GB (Figure 6)\n\n\
         The forward pass with all activations kept, as a training step needs them: what leaves is written to host\n\
         memory. Throughput as a share of ideal. The paper's figures (ODSwap, SwapAdvisor) are for whole training\n\
         steps, at the largest batch it shows; they say what kind of network is hard, not what ours should reach.\n\n\
         | network | batch | operators | needs | ideal | ODSwap, given order | ODSwap, random order | pools | placed alone | placed | best heuristic, unsearched | the paper |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"
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
            share(r.both.pooled_ns()),
            share(r.both.alone_ns()),
            share(r.both.placed_ns()),
            share(r.both.placed.as_ref().map(|(p, _)| p.heuristic_ns)),
            r.paper
        );
    }
    if let Some(r) = rows.first() {
        line!(text, "\nMemory: {} GB for each.", gb(r.capacity_bytes));
    }
    line!(
        text,
        "\n### Convergence on two threads (Figure 9)\n\n\
         Best time found after so many seconds; *settled* is when it came within 2 % of the last. *Genome* is what\n\
         planning the swaps of one genome (a random schedule) and playing it takes; *play* the simulation alone.\n\n\
         | network | back end | genomes | 1 s | 5 s | 15 s | 30 s | end | settled | mean, worst at the end | genome | play |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    for r in rows {
        let ends = [
            ("pools", r.both.pooled.as_ref().map(|(_, p)| p), 0),
            ("placed alone", r.both.alone.as_ref().map(|(_, p)| p), 1),
            ("placed", r.both.placed.as_ref().map(|(_, p)| p), 1),
        ];
        for (name, progress, back_end) in ends {
            let Some((progress, last)) = progress.and_then(|p| Some((p, p.last()?))) else {
                continue;
            };
            let at = |s| seconds(Some(progress.best_at(s)));
            line!(
                text,
                "| {} | {name} | {} | {} | {} | {} | {} | {} | {:.1} s | {}, {} | {:.1} ms | {:.2} ms |",
                r.name,
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
    for r in rows {
        if let Some((p, _)) = &r.both.placed {
            line!(
                text,
                "\n{}, placed: {} GB loaded and {} GB stored in a run.",
                r.name,
                gb(p.outcome.loaded_bytes),
                gb(p.outcome.stored_bytes)
            );
        }
    }
}

pub fn ablations(text: &mut String, rows: &[Ablation]) {
    line!(
        text,
        "\n## What each dimension is worth (Figures 9 and 10)\n\n\
         Pools, 16 GB, all activations kept; share of ideal throughput. *Allocation only* runs operators in the order in\n\
         which the zoo gives them, which is no random one; the paper's is MXNet's.\n\n\
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
}
