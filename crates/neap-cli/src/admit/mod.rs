//! `neap admit TASKS.toml`: whether models that run again and again meet their deadlines in the memory there is.
//!
//! ```text
//!   TASKS.toml ─► file      tasks in plain numbers, or with models
//!                 curves    a model's longest time by budget
//!                 judge     neap-realtime: budgets and admission together, or the paper's swapping
//!                 report    tables, JSON;  gantt: a picture, a trace
//! ```

mod curves;
mod file;
mod gantt;
mod judge;
mod report;

use crate::args::{EngineArgs, OpenArgs};
use crate::failure::{Failure, Outcome};
use crate::printed::{TextOrJson, put_json};
use crate::{atomic, stdout};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
pub struct AdmitArgs {
    /// Tasks, their periods and deadlines, and the memory of all together; see docs/guide.md
    #[arg(value_name = "TASKS.toml")]
    file: PathBuf,
    /// Draw what happens when all tasks begin at once
    #[arg(long, short, value_name = "FILE.svg", value_parser = parse_picture)]
    output: Option<PathBuf>,
    /// The same as trace events for Perfetto
    #[arg(long, value_name = "FILE.json")]
    trace_events: Option<PathBuf>,
    /// In which form to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: TextOrJson,
    /// Write a report to this file instead of printing the answer; '-' is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    json: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

pub fn run(args: &AdmitArgs, quiet: bool) -> Outcome {
    let given = file::read(&args.file)?;
    let known = curves::of(&given, &args.open.options()?, &args.engine, quiet)?;
    let judged = judge::judge(&given, &known)?;
    let report = report::Report::new(&args.file, &given, &judged);
    if let Some(path) = &args.output {
        let svg = gantt::svg(&given, &judged);
        atomic::write(path, |file| file.write_all(svg.as_bytes()))?;
    }
    if let Some(path) = &args.trace_events {
        put_json(Some(path), &gantt::trace(&given, &judged))?;
    }
    match (&args.json, args.format) {
        (None, TextOrJson::Text) => stdout::print(&report.text())?,
        (file, _) => put_json(file.as_deref(), &report)?,
    }
    match judged.admitted {
        true => Ok(()),
        false => Err(Failure::Infeasible(report.refusal())),
    }
}

fn parse_picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|e| e.to_str()) {
        Some("svg") => Ok(path),
        _ => Err("write a file that ends in .svg".into()),
    }
}
