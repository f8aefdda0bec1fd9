//! `neap profile`: measures this machine once, so that plans count with what it can do.

use super::open;
use crate::args::{IoArg, OpenArgs};
use crate::device::describe;
use crate::failure::{Outcome, bad};
use crate::interrupt;
use crate::printed::Printed;
use crate::progress::{Progress, note};
use crate::report::ms;
use clap::{Args, ValueEnum};
use neaptide::{Bytes, CalibrationReport, MeasuredPoint, OpenOptions, RunOptions};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct ProfileArgs {
    /// Models to measure; their layers' times are kept [default: a network made on the spot, for rates]
    models: Vec<PathBuf>,
    /// Threads that compute [default: all processors]
    #[arg(long, value_name = "N", value_parser = crate::numbers::whole::<u16>(1..=256))]
    threads: Option<u16>,
    /// How weights are read from storage
    #[arg(long, value_name = "MODE", default_value = "auto")]
    io: IoArg,
    #[command(flatten)]
    printed: Printed<Format>,
    #[command(flatten)]
    open: OpenArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    /// A description of this machine, for `neap plan --machine`
    Toml,
}

/// Made when no model is given: convolutions of all common sizes, weights enough to read for a while.
const NETWORK: &str = "resnet50";

pub fn run(args: &ProfileArgs, quiet: bool) -> Outcome {
    let _deferred = interrupt::defer();
    let made = match args.models.is_empty() {
        true => Some(Made::create(args.open.cache_dir.as_deref(), quiet)?),
        false => None,
    };
    let made_model = made.as_ref().map(|m| m.model());
    let models = args.models.iter().chain(&made_model);
    let mut reports = Vec::new();
    for path in models {
        let report = measure(args, path, quiet)?;
        if let Some(remark) = &report.remark {
            note(remark);
        }
        let name = path.file_name().unwrap_or_default().display().to_string();
        reports.push((name, report));
    }
    drop(made);
    let printed = &args.printed;
    match printed.form() {
        Format::Text => printed.print(&text(&reports)),
        Format::Json => printed.print_json(&json(&reports)),
        Format::Toml => printed.print(
            &reports
                .last()
                .map_or_else(String::new, |(_, report)| describe(&report.profile)),
        ),
    }
}

fn measure(args: &ProfileArgs, path: &Path, quiet: bool) -> Outcome<CalibrationReport> {
    let model = open(path, &args.open.options()?, quiet)?;
    if !quiet {
        note(&format!("measuring {}", path.display()));
    }
    let default = RunOptions::default();
    let options = RunOptions {
        threads: args.threads.map_or(default.threads, usize::from),
        io: args.io.mode(),
        ..default
    };
    let report = model.calibrate_unless(&interrupt::token(), &options);
    interrupt::check()?;
    Ok(report?)
}

/// A network in a folder of its own, where packed models are kept; gone when this is dropped.
struct Made {
    folder: PathBuf,
}

impl Made {
    fn create(cache_dir: Option<&Path>, quiet: bool) -> Outcome<Made> {
        let parent = match cache_dir {
            Some(folder) => folder.to_path_buf(),
            None => neaptide::Cache::Auto
                .folder()
                .ok_or_else(|| bad("there is no home directory: give --cache-dir"))?,
        };
        let folder = parent.join(format!("profile-{}", std::process::id()));
        fs::create_dir_all(&folder)
            .map_err(|e| bad(format!("cannot create {}: {e}", folder.display())))?;
        let made = Made { folder };
        let onnx = made.folder.join(format!("{NETWORK}.onnx"));
        let mut progress = Progress::new(format!("making {NETWORK}"), quiet);
        let options = neap_zoo::Options::default();
        neap_zoo::write(NETWORK, &onnx, &options, &mut |done, total| {
            progress.at(done, total);
        })?;
        progress.finish();
        // Packed here and not among the user's models.
        let mut progress = Progress::new(format!("packing {NETWORK}"), quiet);
        let packed = made.model();
        neaptide::pack(&onnx, &packed, &OpenOptions::of_own_process(), &mut |p| {
            super::follow(&mut progress, p);
        })?;
        progress.finish();
        Ok(made)
    }

    fn model(&self) -> PathBuf {
        self.folder.join(format!("{NETWORK}.neap"))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            note(&format!("cannot remove {}: {error}", self.folder.display()));
        }
    }
}

fn text(reports: &[(String, CalibrationReport)]) -> String {
    let mut text = String::new();
    let Some((_, last)) = reports.last() else {
        return text;
    };
    let mut line = |label: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{label:<11} {value}");
    };
    let profile = &last.profile;
    let (compute, storage) = (&profile.compute, &profile.storage);
    let machine = &profile.machine;
    let s = if machine.threads == 1 { "" } else { "s" };
    line(
        "machine",
        format!(
            "{}, {}, {} thread{s}",
            machine.cpu, machine.isa, machine.threads
        ),
    );
    line(
        "computing",
        format!(
            "{:.0} GFLOP/s in layers that calculate, {:.1} GB/s in layers that move data",
            compute.flops_per_second / 1e9,
            compute.memory_bytes_per_second / 1e9
        ),
    );
    line(
        "overheads",
        format!(
            "{:.1} us a step, {:.1} us a slice, {:.1} us a load and {:.1} us per MiB loaded",
            compute.compute_overhead_ns as f64 / 1e3,
            compute.slice_overhead_ns as f64 / 1e3,
            compute.load_handling_ns as f64 / 1e3,
            compute.load_handling_ns_per_byte * 1048.576
        ),
    );
    line(
        "storage",
        format!(
            "{:.2} GB/s sustained, {:.2} at best, {:.0} us a block; loads of plans: {:.2} GB/s after {:.0} us{}",
            storage.sustained_bytes_per_second / 1e9,
            storage.burst_bytes_per_second / 1e9,
            storage.block_latency_ns as f64 / 1e3,
            storage.load_bytes_per_second / 1e9,
            storage.load_latency_ns as f64 / 1e3,
            match storage.group_bytes {
                0 => String::new(),
                bytes => format!(", in groups of {}", Bytes(bytes)),
            }
        ),
    );
    for depth in depths(last) {
        let points = storage.points.iter().filter(|p| p.depth == depth);
        let rates: Vec<String> = points
            .map(|p| format!("{} {:.2}", Bytes(p.request_bytes), p.bytes_per_second / 1e9))
            .collect();
        line("", format!("{depth} at once: {} GB/s", rates.join(", ")));
    }
    for (name, report) in reports {
        for (index, point) in report.points.iter().enumerate() {
            line(if index == 0 { name } else { "" }, point_text(point));
        }
    }
    line("kept", kept(last));
    text
}

fn depths(report: &CalibrationReport) -> Vec<u32> {
    let points = report.profile.storage.points.iter();
    let mut depths: Vec<u32> = points.map(|p| p.depth).collect();
    depths.sort_unstable();
    depths.dedup();
    depths
}

fn point_text(point: &MeasuredPoint) -> String {
    let budget = point
        .budget_bytes
        .map_or_else(|| "no limit".into(), |b| format!("within {}", Bytes(b)));
    let off = point.predicted_latency_ns as f64 / point.measured_latency_ns.max(1) as f64 - 1.0;
    format!(
        "{budget}: {:.2} ms measured, {:.2} ms predicted ({:+.1} %), {} loaded per run",
        ms(point.measured_latency_ns),
        ms(point.predicted_latency_ns),
        off * 100.0,
        Bytes(point.loaded_bytes_per_run)
    )
}

fn kept(report: &CalibrationReport) -> String {
    let steps = report.profile.step_count();
    match &report.file {
        Some(file) => format!("{steps} steps' times, in {}", file.display()),
        None => "nothing".into(),
    }
}

fn json(reports: &[(String, CalibrationReport)]) -> serde_json::Value {
    let last = reports.last().map(|(_, report)| report);
    let models = reports.iter().map(|(name, report)| {
        serde_json::json!({
            "model": name,
            "points": report.points,
        })
    });
    serde_json::json!({
        "machine": last.map(|r| &r.profile.machine),
        "compute": last.map(|r| &r.profile.compute),
        "storage": last.map(|r| &r.profile.storage),
        "measured_steps": last.map(|r| r.profile.step_count()),
        "file": last.and_then(|r| r.file.as_ref()),
        "models": models.collect::<Vec<_>>(),
    })
}
