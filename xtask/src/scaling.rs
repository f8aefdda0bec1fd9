//! How much faster two threads are than one, with no budget, beside what the machine gives at best.
//!
//! ```text
//!   one thread     | run |     |         |     ratio    = one / two
//!   two threads    |     | run |         |     at best  = 2 * one / together
//!   one and one    |     |     | run run |     two processes of a thread each: nothing waits for anything
//! ```
//! Two processors share caches, memory and perhaps more, so that two processes that have nothing to do with each
//! other also slow each other down: by more than `at best` no threads can scale.

use crate::bench::machine;
use crate::models;
use crate::peer::{Peer, REST, median};
use crate::worker;
use anyhow::{Context, Result};
use clap::Args;
use std::fmt::Write as _;
use std::path::Path;

#[derive(Args)]
pub struct ScalingArgs {
    /// Only these zoo models.
    only: Vec<String>,
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    #[arg(long, default_value_t = 4)]
    runs_per_round: usize,
    /// Write docs/scaling.md.
    #[arg(long)]
    write: bool,
}

/// One model's latencies, in milliseconds.
struct Row {
    model: &'static str,
    one_ms: f64,
    two_ms: f64,
    together_ms: f64,
}

pub fn run(root: &Path, args: &ScalingArgs) -> Result<()> {
    let mut rows = Vec::new();
    for name in models::zoo_names() {
        if args.only.is_empty() || args.only.iter().any(|o| name == *o) {
            let row = measure(root, name, args).with_context(|| name.to_string())?;
            eprintln!("{}", line(&row));
            rows.push(row);
        }
    }
    let table = table(&rows);
    println!("{table}");
    if args.write {
        let path = root.join("docs/scaling.md");
        std::fs::write(&path, document(&table, args)?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

fn measure(root: &Path, name: &'static str, args: &ScalingArgs) -> Result<Row> {
    let model = models::zoo_model(root, name)?;
    let cache = root.join("target/models/packed");
    let start = |threads| worker::start(&model, &cache, &["--threads", threads]);
    let (mut one, mut other, mut two) = (start("1")?, start("1")?, start("2")?);
    for peer in [&mut one, &mut other, &mut two] {
        peer.run(2)?;
    }
    let (mut alone, mut threads, mut together) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        alone.extend(one.turn(args.runs_per_round)?);
        threads.extend(two.turn(args.runs_per_round)?);
        together.extend(both(&mut one, &mut other, args.runs_per_round)?);
    }
    Ok(Row {
        model: name,
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

fn document(table: &str, args: &ScalingArgs) -> Result<String> {
    let machine = machine()?;
    Ok(format!(
        "# Two threads\n\n\
         Made by `cargo xtask bench scaling --write`. No budget, everything resident; {machine}; medians of {} runs,\n\
         taken in turn ({} rounds of {}). *At best*: twice the latency of one thread alone, divided by that of two\n\
         processes of one thread each that run at the same time and share nothing but the machine.\n\n{table}",
        args.rounds * args.runs_per_round,
        args.rounds,
        args.runs_per_round,
    ))
}
