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
use crate::{atomic, stdout};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
pub struct AdmitArgs {
    /// Tasks, their periods and deadlines, and the memory of all together; see docs/guide.md
    #[arg(value_name = "TASKS.toml")]
    file: PathBuf,
    /// Write a report instead of the table; '-' is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw what happens when all tasks begin at once: a FILE.svg, or a FILE.json for Perfetto
    #[arg(long, short, value_name = "FILE", value_parser = parse_picture)]
    output: Option<Picture>,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Clone, Debug)]
enum Picture {
    Svg(PathBuf),
    Trace(PathBuf),
}

pub fn run(args: &AdmitArgs, quiet: bool) -> Outcome {
    let given = file::read(&args.file)?;
    let known = curves::of(&given, &args.open.options()?, &args.engine, quiet)?;
    let judged = judge::judge(&given, &known)?;
    let report = report::Report::new(&args.file, &given, &judged);
    match &args.output {
        None => {}
        Some(Picture::Svg(path)) => {
            let svg = gantt::svg(&given, &judged);
            atomic::write(path, |file| file.write_all(svg.as_bytes()))?;
        }
        Some(Picture::Trace(path)) => {
            let text = stdout::json(&gantt::trace(&given, &judged))?;
            atomic::write(path, |file| writeln!(file, "{text}"))?;
        }
    }
    match &args.json {
        None => stdout::print(&report.text())?,
        Some(path) if path.as_os_str() == "-" => stdout::print_json(&report)?,
        Some(path) => {
            let text = stdout::json(&report)?;
            atomic::write(path, |file| writeln!(file, "{text}"))?;
        }
    }
    match judged.admitted {
        true => Ok(()),
        false => Err(Failure::Infeasible(report.refusal())),
    }
}

fn parse_picture(text: &str) -> Result<Picture, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|e| e.to_str()) {
        Some("svg") => Ok(Picture::Svg(path)),
        Some("json") => Ok(Picture::Trace(path)),
        _ => Err("write a file that ends in .svg or .json".into()),
    }
}
