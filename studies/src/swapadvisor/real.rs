//! The search run for real: steps of training of networks of about a tenth of the paper's sizes, in a tenth of its memory. Writes
//! `docs/swapadvisor-real.md`.
//!
//! ```text
//!   no limit        | step |      |      | step |  ...     each a process of its own, with that hard limit
//!   auto            |      | step |      |      |
//!   swapadvisor     |      |      | step |      |
//! ```
//! Figures of a network are kept in `target/swapadvisor-real`, so that a few can be measured at a time.

use crate::kept::Kept;
use crate::torch::entrant::Entrant;
use crate::torch::figures::{End, Limit, Ran, Row, Who};
use crate::{accuracy, worker};
use anyhow::{Context, Result, bail, ensure};
use neaptide::{DType, TensorType, TrainStrategy};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use swap_search::SWAP_ADVISOR;

/// A tenth of the paper's 16 GB.
const LIMIT: Limit = Limit {
    percent: 10.0,
    bytes: (16 << 30) / 10 / 4096 * 4096,
};

/// A network with about a tenth of the paper's parameters or of its activations.
struct Case {
    name: &'static str,
    batch: u32,
    /// The paper's, with its batch.
    paper: &'static str,
}

const fn case(name: &'static str, batch: u32, paper: &'static str) -> Case {
    Case { name, batch, paper }
}

const CASES: [Case; 4] = [
    case("wide_resnet152_w3", 6, "WResNet-152-10, 64"),
    case("inception_v4", 16, "Inception-4, 64"),
    case("nasnet_a_large", 4, "NasNet-25, 64"),
    case("rnn_8_2592", 26, "RNN-8-8K, 256"),
];

/// With the limit. What runs without comes first.
const STRATEGIES: [TrainStrategy; 3] = [TrainStrategy::Auto, TrainStrategy::Swap, SWAP_ADVISOR];

/// What training one network gave.
#[derive(Serialize, Deserialize)]
struct Figures {
    name: String,
    batch: u32,
    paper: String,
    /// Measured steps of each process.
    rounds: u32,
    /// What else the machine did, as it was told.
    beside: Option<String>,
    /// With the name of the strategy that was asked for.
    rows: Vec<(String, Row)>,
}

pub fn run(
    root: &Path,
    only: &[String],
    rounds: u32,
    beside: Option<&str>,
    writes: bool,
) -> Result<()> {
    let known = CASES.map(|case| case.name);
    if let Some(name) = only.iter().find(|o| !known.contains(&o.as_str())) {
        bail!("no such network: {name}; there are {}", known.join(", "));
    }
    ensure!(
        accuracy::can_enforce(),
        "hard limits need the right to make memory cgroups"
    );
    let kept = Kept::of(root, "swapadvisor-real")?;
    let mut all: Vec<Figures> = Vec::new();
    for case in &CASES {
        if only.is_empty() || only.iter().any(|o| o == case.name) {
            let rows = measure(case, kept.folder(), rounds);
            let figures = Figures {
                name: case.name.into(),
                batch: case.batch,
                paper: case.paper.into(),
                rounds,
                beside: beside.map(Into::into),
                rows: rows.with_context(|| case.name.to_owned())?,
            };
            eprintln!("{}", table(std::slice::from_ref(&figures)));
            kept.write(case.name, &figures)?;
        }
        all.extend(kept.read::<Figures>(case.name)?);
    }
    let text = page(&all, &crate::setting::setting()?);
    if writes {
        std::fs::write(root.join("docs/swapadvisor-real.md"), text)?;
    } else {
        println!("{text}");
    }
    Ok(())
}

fn measure(case: &Case, folder: &Path, rounds: u32) -> Result<Vec<(String, Row)>> {
    let model = folder.join(format!("{}.onnx", case.name));
    let options = neap_zoo::Options {
        batch: neap_zoo::Batch::Fixed(case.batch),
        shapes_only: true,
        ..neap_zoo::Options::default()
    };
    neap_zoo::write(case.name, &model, &options, &mut |_, _| {})?;
    let [inputs, targets] = data(case, folder)?;
    let command = |strategy: TrainStrategy, limit: Option<Limit>| -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("train-worker").arg(&model).arg("--own-cgroup");
        command.arg("--inputs").arg(&inputs);
        command.arg("--targets").arg(&targets);
        command.arg("--state-dir").arg(folder);
        command.args(["--optimizer", "descent", "--rate", "0.001"]);
        command.args(["--strategy", strategy.name()]);
        if let Some(limit) = limit {
            command.args(["--budget", &limit.bytes.to_string()]);
        }
        Ok(command)
    };
    let ways = STRATEGIES.map(|strategy| (strategy, Some(LIMIT)));
    let ways = [(TrainStrategy::Keep, None)].into_iter().chain(ways);
    let mut rows = Vec::new();
    let mut first: Option<Vec<f64>> = None;
    // One after the other: together they would hold more memory than there is.
    for (strategy, limit) in ways {
        let mut entrant = Entrant::start(Who::Ours, limit, &command(strategy, limit)?)?;
        entrant.warm_up(1)?;
        for _ in 0..rounds {
            entrant.turn()?;
        }
        if let Some(losses) = entrant.losses() {
            let expected = first.get_or_insert_with(|| losses.to_vec());
            ensure!(losses == expected, "{strategy} changes losses");
        }
        rows.push((strategy.name().to_owned(), entrant.row()?));
    }
    Ok(rows)
}

/// Noise, and some class of the first thousand for each sample: files of raw bytes.
fn data(case: &Case, folder: &Path) -> Result<[PathBuf; 2]> {
    let entry = neap_zoo::find(case.name).context("the zoo has no such network")?;
    let batch = case.batch as usize;
    let mut shape = entry.input_shape.to_vec();
    shape[0] = batch;
    let write = |what: &str, ty: &TensorType| -> Result<PathBuf> {
        let path = folder.join(format!("{}.{what}", case.name));
        std::fs::write(&path, worker::sample(ty))?;
        Ok(path)
    };
    Ok([
        write("inputs", &TensorType::new(DType::F32, &shape))?,
        write("targets", &TensorType::new(DType::I64, &[batch]))?,
    ])
}

fn table(all: &[Figures]) -> String {
    let mut text = String::from(
        "| network, batch | the paper's | | peak MiB | s a step | share of no limit | predicted | stored MiB a step | loaded MiB a step | GFLOP again | ready in, s |\n\
         |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for figures in all {
        let free = figures.rows.first().and_then(|(_, row)| ran(row));
        for (at, (way, row)) in figures.rows.iter().enumerate() {
            let (name, paper) = match at {
                0 => (
                    format!("{}, {}", figures.name, figures.batch),
                    figures.paper.as_str(),
                ),
                _ => (String::new(), ""),
            };
            let way = match row.limit {
                None => "no limit".into(),
                Some(_) => format!("`{way}`"),
            };
            let _ = writeln!(text, "| {name} | {paper} | {way} |{}", line(row, free));
        }
    }
    text
}

fn ran(row: &Row) -> Option<&Ran> {
    match &row.end {
        End::Ran(ran) => Some(ran),
        _ => None,
    }
}

fn line(row: &Row, free: Option<&Ran>) -> String {
    let empty = " – | – | – | – | – | – |";
    let ran = match &row.end {
        End::Ran(ran) => ran,
        End::Killed => return format!(" killed | – |{empty}"),
        End::Refused { smallest_bytes } => {
            return format!(
                " refused, {:.0} would do | – |{empty}",
                mib(*smallest_bytes)
            );
        }
    };
    let share = |own: f64, whole: Option<f64>| {
        whole.map_or("–".into(), |whole| {
            format!("{:.0} %", 100.0 * whole / own)
        })
    };
    let predicted = |ran: &Ran| ran.plan.as_ref().map(|plan| plan.predicted_ms);
    let measured = share(ran.step_ms, free.map(|free| free.step_ms));
    let plan = ran
        .plan
        .as_ref()
        .map_or(" – | – | – | – | – |".into(), |plan| {
            format!(
                " {} | {:.0} | {:.0} | {:.1} | {:.1} |",
                share(plan.predicted_ms, free.and_then(predicted)),
                mib(plan.stored_bytes),
                mib(plan.loaded_bytes),
                plan.recomputed_flops as f64 / 1e9,
                plan.opened_s,
            )
        });
    format!(
        " {:.0} | {:.2} | **{measured}** |{plan}",
        mib(ran.peak_bytes),
        ran.step_ms / 1e3
    )
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn page(all: &[Figures], setting: &str) -> String {
    let mut page = format!(
        "# SwapAdvisor's search, run for real\n\n\
         [Simulated](swapadvisor.md), the search finds plans for the paper's GPU. Here plans of the same search train on a processor with two\n\
         threads, and what has no room goes to its drive. Networks are those of the paper with about a tenth of the parameters or of the\n\
         batch, and a tenth of the memory: {:.0} MiB for the process, as a hard limit without swap.\n\n{}\n",
        mib(LIMIT.bytes),
        table(all)
    );
    page += "\
        - *No limit*: `keep`, with everything in memory.\n\
        - `swapadvisor`: the paper's search over orders of steps and memory pools, which swaps what is used last of its size class. A quarter of the first\n\
        generation has the graph's own order. `swap` swaps by our planner, with an address for each tensor; `auto` computes some activations again, too\n\
        ([strategies](train.md#activations-that-do-not-fit)).\n\
        - *Share of no limit*: its time over this one's, measured. *Predicted* is the same of what the simulator says; it counts with a modest machine and\n\
        drive, not with this one.\n\
        - *Ready in*: opening the model, searching and planning, until the first step.\n\
        - Steps of stochastic gradient descent from weights of zeros, on noise. Losses have the same bits in all rows; the command ends with an error\n\
        where they have not.\n";
    let mut beside: Vec<&str> = all.iter().filter_map(|f| f.beside.as_deref()).collect();
    beside.dedup();
    for what in beside {
        let _ = writeln!(
            page,
            "- Measured beside other work: {what}. Times are upper bounds."
        );
    }
    let mut rounds: Vec<String> = all.iter().map(|f| f.rounds.to_string()).collect();
    rounds.dedup();
    let _ = write!(
        page,
        "\nTimes are medians of {} steps, after one that is not counted; processes ran one after the other.\n\
         Made by `cargo study swapadvisor --real --write` on {setting}.\n",
        rounds.join(", ")
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch::figures::Planned;

    fn row(limit: Option<Limit>, end: End) -> Row {
        Row {
            who: Who::Ours,
            limit,
            end,
        }
    }

    fn ran(step_ms: f64, predicted_ms: f64) -> End {
        End::Ran(Ran {
            peak_bytes: 100 << 20,
            step_ms,
            plan: Some(Planned {
                strategy: "swap".into(),
                stored_bytes: 3 << 20,
                loaded_bytes: 4 << 20,
                recomputed_flops: 0,
                predicted_ms,
                opened_s: 1.5,
            }),
        })
    }

    #[test]
    fn every_process_has_a_row_with_all_columns() {
        let refused = End::Refused {
            smallest_bytes: 20 << 20,
        };
        let rows = [
            ("keep", row(None, ran(1000.0, 500.0))),
            ("auto", row(Some(LIMIT), ran(2000.0, 625.0))),
            ("swap", row(Some(LIMIT), End::Killed)),
            ("swapadvisor", row(Some(LIMIT), refused)),
        ];
        let figures = Figures {
            name: "net".into(),
            batch: 4,
            paper: "Net, 64".into(),
            rounds: 2,
            beside: Some("a build".into()),
            rows: rows.map(|(way, row)| (way.to_owned(), row)).into(),
        };
        let table = table(std::slice::from_ref(&figures));
        let columns: Vec<usize> = table.lines().map(|l| l.matches('|').count()).collect();
        assert_eq!(columns, vec![columns[0]; 6], "{table}");
        for row in [
            "| net, 4 | Net, 64 | no limit | 100 | 1.00 | **100 %** | 100 % | 3 | 4 | 0.0 | 1.5 |",
            "|  |  | `auto` | 100 | 2.00 | **50 %** | 80 % | 3 | 4 | 0.0 | 1.5 |",
            "|  |  | `swap` | killed | – | – | – | – | – | – | – |",
            "|  |  | `swapadvisor` | refused, 20 would do | – | – | – | – | – | – | – |",
        ] {
            assert!(table.contains(row), "{row} is not in {table}");
        }
        assert!(page(&[figures], "a machine").contains("other work: a build"));
    }
}
