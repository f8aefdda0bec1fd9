//! `neap layout`: static offsets for buffers with fixed live ranges, from a table and into one.

use crate::budgets::schedule::parse_time;
use crate::failure::{Failure, Outcome, bad};
use crate::printed::{TextOrJson, put_json};
use crate::{atomic, interrupt, stdout};
use clap::Args;
use neap_planner::layout::{Effort, Request, Solved, check, csv, solve};
use neaptide::parse_bytes;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct LayoutArgs {
    /// Buffers in MiniMalloc's format: id,lower,upper,size[,alignment], live in lower..upper
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// Bytes that all buffers must fit in
    #[arg(long, value_name = "SIZE", required_unless_present = "minimize", value_parser = parse_bytes)]
    capacity: Option<u64>,
    /// Find the lowest layout, not just one within the capacity
    #[arg(long)]
    minimize: bool,
    /// The table to write: the same buffers with their offsets
    #[arg(long, short, value_name = "OUT.csv")]
    output: Option<PathBuf>,
    /// How long to search
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_timeout)]
    timeout: Duration,
    /// In which form to print what was found
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: TextOrJson,
    /// Write a report to this file instead of printing what was found; '-' is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    json: Option<PathBuf>,
}

/// What was found.
#[derive(Serialize)]
struct Report {
    file: String,
    buffers: usize,
    capacity_bytes: Option<u64>,
    height_bytes: u64,
    /// Most bytes live at once.
    lower_bound_bytes: u64,
    /// No layout is lower than this.
    proven_lower_bound_bytes: u64,
    over_lower_bound_percent: f64,
    optimal: bool,
    search_ms: f64,
    output: Option<String>,
}

pub fn run(args: &LayoutArgs) -> Outcome {
    let table = read(&args.file)?;
    let limit_bytes = args.capacity.unwrap_or(u64::MAX);
    let request = if args.minimize {
        Request::minimize(limit_bytes)
    } else {
        Request::fit(limit_bytes)
    };
    let started = Instant::now();
    let solved = {
        let _deferred = interrupt::defer();
        let mut stop = || interrupt::noted().is_some() || started.elapsed() >= args.timeout;
        solve(
            &table.blocks,
            request,
            &mut Effort::new(u64::MAX, &mut stop),
        )
    };
    let search_ms = started.elapsed().as_secs_f64() * 1e3;
    interrupt::check()?;
    let layout = match &solved.layout {
        Some(layout) if layout.high_water_bytes <= limit_bytes => layout,
        _ => return Err(Failure::Infeasible(why_not(&solved, args))),
    };
    check(&table.blocks, layout)
        .map_err(|fault| Failure::Internal(format!("the layout found is wrong: {fault}")))?;
    if let Some(path) = &args.output {
        let text = csv::write(&table, layout);
        atomic::write(path, |file| file.write_all(text.as_bytes()))?;
    }
    let (height, bound) = (layout.high_water_bytes, solved.lower_bound_bytes);
    let report = Report {
        file: args.file.display().to_string(),
        buffers: table.blocks.len(),
        capacity_bytes: args.capacity,
        height_bytes: height,
        lower_bound_bytes: bound,
        proven_lower_bound_bytes: solved.proven_bytes,
        over_lower_bound_percent: (height - bound) as f64 / bound.max(1) as f64 * 100.0,
        optimal: solved.is_optimal(),
        search_ms,
        output: args.output.as_ref().map(|p| p.display().to_string()),
    };
    match (&args.json, args.format) {
        (None, TextOrJson::Text) => stdout::print(&summary(&report)),
        (file, _) => put_json(file.as_deref(), &report),
    }
}

fn read(path: &Path) -> Outcome<csv::Table> {
    let bytes =
        std::fs::read(path).map_err(|e| bad(format!("cannot read {}: {e}", path.display())))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| bad(format!("{} is no text in UTF-8", path.display())))?;
    csv::read(&text).map_err(|e| bad(format!("{}, {e}", path.display())))
}

/// Proven not to exist, or just not found.
fn why_not(solved: &Solved, args: &LayoutArgs) -> String {
    let capacity = args.capacity.unwrap_or(u64::MAX);
    let (bound, proven) = (solved.lower_bound_bytes, solved.proven_bytes);
    if bound > capacity {
        return format!("no layout fits {capacity} bytes: {bound} are live at once");
    }
    if proven > capacity {
        return format!(
            "no layout fits {capacity} bytes: proven by exhaustive search, though no more than {bound} are live at once"
        );
    }
    let best = match &solved.layout {
        Some(layout) => format!("the lowest takes {}", layout.high_water_bytes),
        None => "not even a higher one".into(),
    };
    format!(
        "no layout within {capacity} bytes was found in {} s, which does not prove that there is none: {best}, the lower bound is {bound}",
        args.timeout.as_secs_f64()
    )
}

fn summary(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{label:<11} {value}");
    };
    line("buffers", report.buffers.to_string());
    if let Some(capacity) = report.capacity_bytes {
        line("capacity", format!("{capacity} bytes"));
    }
    line(
        "lower bound",
        format!("{} bytes live at once", report.lower_bound_bytes),
    );
    let optimal = if report.optimal {
        ", which is optimal"
    } else {
        ""
    };
    line(
        "found",
        format!(
            "{} bytes, {:.2} % over the lower bound{optimal}",
            report.height_bytes, report.over_lower_bound_percent
        ),
    );
    line("search", format!("{:.1} ms", report.search_ms));
    if let Some(path) = &report.output {
        line("written", path.clone());
    }
    text
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    (!time.is_zero())
        .then_some(time)
        .ok_or_else(|| "write a time above 0".into())
}
