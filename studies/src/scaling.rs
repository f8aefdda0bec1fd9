//! How much faster two threads are than one, with no budget, beside what the machine gives at best.
//!
//! ```text
//!   one thread     | run |     |         |     ratio    = one / two
//!   two threads    |     | run |         |     at best  = 2 * one / together
//!   one and one    |     |     | run run |     two processes of a thread each: nothing waits for anything
//! ```
//! Two processors share caches, memory and perhaps more, so that two processes that have nothing to do with each
//! other also slow each other down: by more than `at best` no threads can scale.
//!
//! A model's figures are kept in `target/scaling`, so that a few can be measured at a time; the page is made of all that
//! are there.

use crate::kept::Kept;
use crate::models;
use crate::peer::{Peer, REST, median};
use crate::worker;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;

#[derive(Args)]
pub struct ScalingArgs {
    /// Only these zoo models are measured anew; figures of others are taken as they are.
    only: Vec<String>,
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    runs_per_round: u32,
    /// Write docs/scaling.md from the figures that are there.
    #[arg(long)]
    write: bool,
}

/// One model's latencies, in milliseconds.
#[derive(Serialize, Deserialize)]
struct Row {
    model: String,
    one_ms: f64,
    two_ms: f64,
    together_ms: f64,
    /// With one thread, and with two; twice as many of both processes together.
    runs: u32,
}

pub fn run(root: &Path, args: &ScalingArgs) -> Result<()> {
    let names = models::zoo_names();
    if let Some(name) = args.only.iter().find(|o| names.iter().all(|n| n != o)) {
        bail!("no such model: {name}; there are {}", names.join(", "));
    }
    let kept = Kept::of(root, "scaling")?;
    let mut rows: Vec<Row> = Vec::new();
    for name in names {
        let wanted = match args.only.is_empty() {
            true => !args.write,
            false => args.only.iter().any(|o| name == *o),
        };
        if wanted {
            let row = measure(root, name, args).with_context(|| name.to_string())?;
            eprintln!("{}", line(&row));
            kept.write(name, &row)?;
        }
        rows.extend(kept.read::<Row>(name)?);
    }
    let table = table(&rows);
    println!("{table}");
    if args.write {
        anyhow::ensure!(!rows.is_empty(), "nothing was measured here yet");
        let path = root.join("docs/scaling.md");
        std::fs::write(&path, document(&table, &rows)?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

fn measure(root: &Path, name: &str, args: &ScalingArgs) -> Result<Row> {
    let model = models::zoo_model(root, name)?;
    let cache = root.join("target/models/packed");
    let start = |threads| worker::start(&model, &cache, &["--threads", threads]);
    let (mut one, mut other, mut two) = (start("1")?, start("1")?, start("2")?);
    for peer in [&mut one, &mut other, &mut two] {
        peer.run(2)?;
    }
    let (mut alone, mut threads, mut together) = (Vec::new(), Vec::new(), Vec::new());
    let runs = args.runs_per_round as usize;
    for _ in 0..args.rounds {
        alone.extend(one.turn(runs)?);
        threads.extend(two.turn(runs)?);
        together.extend(both(&mut one, &mut other, runs)?);
    }
    Ok(Row {
        model: name.into(),
        runs: args.rounds * args.runs_per_round,
        one_ms: median(&alone),
        two_ms: median(&threads),
        together_ms: median(&together),
    })
}

/// A turn of both at once. The first run and the last are not counted: one of the two may be alone then.
fn both(a: &mut Peer, b: &mut Peer, times: usize) -> Result<Vec<f64>> {
    std::thread::sleep(REST);
    let (x, y) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| b.run(times + 2));
        (a.run(times + 2), beside.join())
    });
    let y = y.map_err(|_| anyhow::anyhow!("a thread panicked"))?;
    let inner = |all: Vec<f64>| all.into_iter().skip(1).take(times);
    Ok(inner(x?).chain(inner(y?)).collect())
}

fn line(row: &Row) -> String {
    let (ratio, best) = (row.one_ms / row.two_ms, 2.0 * row.one_ms / row.together_ms);
    format!(
        "| {} | {:.2} | {:.2} | **{ratio:.2}** | {best:.2} | {:.2} |",
        row.model,
        row.one_ms,
        row.two_ms,
        ratio / best,
    )
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| model | one thread ms | two threads ms | ratio | at best | ratio to best |\n\
         |---|--:|--:|--:|--:|--:|\n",
    );
    for row in rows {
        let _ = writeln!(text, "{}", line(row));
    }
    text
}

fn document(table: &str, rows: &[Row]) -> Result<String> {
    let machine = crate::setting::setting()?;
    let runs = rows.iter().map(|row| row.runs);
    let (least, most) = (runs.clone().min(), runs.max());
    let runs = match (least.unwrap_or(0), most.unwrap_or(0)) {
        (least, most) if least == most => format!("{most}"),
        (least, most) => format!("{least} to {most}"),
    };
    Ok(format!(
        "# Two threads\n\n\
         Made by `cargo study scaling`, and `--write`. No budget, everything resident; {machine}; medians of\n\
         {runs} runs, taken in turn. *At best*: twice the latency of one thread alone, divided by that of two processes of one\n\
         thread each that run at the same time and share nothing but the machine.\n\n{table}",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_near_threads_come_to_the_best() {
        let row = Row {
            model: "m".into(),
            one_ms: 20.0,
            two_ms: 12.5,
            together_ms: 25.0,
            runs: 24,
        };
        assert_eq!(line(&row), "| m | 20.00 | 12.50 | **1.60** | 1.60 | 1.00 |");
        let page = document("TABLE", &[row]).unwrap();
        assert!(
            page.contains("24 runs") && page.ends_with("TABLE"),
            "{page}"
        );
    }
}
