//! `neap doctor`: what this machine gives, what is missing, and what that means for a model.
//!
//! ```text
//!   finding    a label, what was found, and whether it is in order
//!   advice     what to do about a finding that is not
//! ```

use super::open;
use crate::args::{EngineArgs, OpenArgs};
use crate::budgets::slower::Slower;
use crate::cgroup::{self, Version, limits, supervise};
use crate::failure::{Outcome, bad};
use crate::interrupt;
use crate::printed::{Printed, TextOrJson};
use crate::progress::note;
use crate::report::ms;
use clap::Args;
use neaptide::{Budget, Bytes, IoMode, Isa, LatencyCurve, RunOptions, measure_bandwidth};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct DoctorArgs {
    /// Predict this model's times here as well, from its smallest budget to all of its memory
    model: Option<PathBuf>,
    #[command(flatten)]
    printed: Printed<TextOrJson>,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What is written to the drive, and read back.
const PROBE_BYTES: usize = 64 << 20;

/// Read in all, so that a short burst does not decide.
const READ_BYTES: u64 = 512 << 20;

/// As plans read: so large, so many at once.
const REQUEST_BYTES: usize = 512 << 10;
const DEPTH: usize = 8;

/// Budgets of a model, from its smallest to all of its memory.
const BUDGETS: usize = 8;

#[derive(Serialize)]
struct Finding {
    what: &'static str,
    found: String,
    /// What to do; `None` where all is in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn good(what: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            what,
            found: found.into(),
            advice: None,
        }
    }

    fn poor(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding {
            advice: Some(advice.into()),
            ..Finding::good(what, found)
        }
    }
}

pub fn run(args: &DoctorArgs, quiet: bool) -> Outcome {
    let _deferred = interrupt::defer();
    let folder = folder(args)?;
    let mut findings = vec![processor(), memory(), automatic(), enforcing()];
    if !quiet {
        note(&format!("reading from {}", folder.display()));
    }
    findings.extend(drive(&folder)?);
    interrupt::check()?;
    findings.push(cards());
    let curve = match &args.model {
        Some(path) => Some((path, curve(args, path, quiet)?)),
        None => None,
    };
    let printed = &args.printed;
    match printed.form() {
        TextOrJson::Text => printed.print(&text(&findings, curve.as_ref().map(|(p, c)| (*p, c)))),
        TextOrJson::Json => printed.print_json(&serde_json::json!({
            "findings": findings,
            "model": curve.as_ref().map(|(path, _)| path.display().to_string()),
            "predictions": curve.as_ref().map(|(_, curve)| &curve.points),
        })),
    }
}

/// Where packed models are kept, so from where weights are read.
fn folder(args: &DoctorArgs) -> Outcome<PathBuf> {
    let folder = match (&args.open.cache_dir, &args.model) {
        (Some(folder), _) => folder.clone(),
        // A model is packed beside itself.
        (None, Some(model)) => match model.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        },
        (None, None) => neaptide::Cache::Auto
            .folder()
            .ok_or_else(|| bad("there is no home directory: give --cache-dir"))?,
    };
    fs::create_dir_all(&folder)
        .map_err(|e| bad(format!("cannot create {}: {e}", folder.display())))?;
    Ok(folder)
}

fn processor() -> Finding {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == "model name")
        .map_or(std::env::consts::ARCH, |(_, value)| value.trim());
    let threads = RunOptions::default().threads;
    let s = if threads == 1 { "" } else { "s" };
    let isa = Isa::detect();
    let found = format!("{name}, {threads} thread{s}, {}", isa.name());
    match isa.name() {
        "portable" => Finding::poor(
            "processor",
            found,
            "without vector instructions that are known here, a model takes many times longer",
        ),
        _ => Finding::good("processor", found),
    }
}

fn memory() -> Finding {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = limits::free_bytes(&text).map_or("not told".into(), |b| Bytes(b).to_string());
    let all = neaptide::memory::machine_bytes().map_or("not told".into(), |b| Bytes(b).to_string());
    let limit = cgroup::find()
        .ok()
        .and_then(|found| limits::lowest_hard_bytes(&found));
    let limit = match limit {
        Some(bytes) => format!("the memory cgroup's limit is {}", Bytes(bytes)),
        None => "no limit of a memory cgroup".into(),
    };
    Finding::good("memory", format!("{all} at most, {free} free; {limit}"))
}

fn automatic() -> Finding {
    match limits::automatic() {
        Ok(bytes) => Finding::good(
            "budget",
            format!("--memory-budget auto is {}", Bytes(bytes)),
        ),
        Err(reason) => Finding::poor("budget", "--memory-budget auto is unknown", reason),
    }
}

fn enforcing() -> Finding {
    match supervise::possible() {
        Ok(()) => {
            let version = match cgroup::find().map(|found| found.version) {
                Ok(Version::V1) => "version 1",
                _ => "version 2",
            };
            Finding::good(
                "limits",
                format!("--enforce works: memory cgroups of {version} can be made"),
            )
        }
        Err(reason) => Finding::poor(
            "limits",
            format!("--enforce does not work: {reason}"),
            "run as root, or with a delegated group: systemd-run --user --scope -p Delegate=yes neap ...; \
             budgets hold without it, too, but nothing outside neap checks them",
        ),
    }
}

/// Writes a file into the folder, and reads it as weights are read.
fn drive(folder: &Path) -> Outcome<Vec<Finding>> {
    let probe = Probe::write(folder)?;
    let place = match file_system(folder) {
        Some(name) => format!("{} ({name})", folder.display()),
        None => folder.display().to_string(),
    };
    let rate = |io| {
        measure_bandwidth(&probe.path, io, REQUEST_BYTES, DEPTH, READ_BYTES)
            .map(|found| found.bytes_per_second() / 1e9)
    };
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&probe.path);
    let pread = rate(IoMode::Pread).map_err(bad)?;
    let uring = rate(IoMode::Uring);
    let best = uring.as_ref().map_or(pread, |uring| uring.max(pread));
    let is_memory = matches!(file_system(folder).as_deref(), Some("tmpfs" | "ramfs"));
    let drive = match direct {
        _ if is_memory => Finding::poor(
            "drive",
            format!("{place}: {best:.2} GB/s"),
            "what lies in this file system takes memory, beside the budget: keep packed models on a drive (--cache-dir)",
        ),
        Ok(_) => Finding::good(
            "drive",
            format!(
                "{place}: {best:.2} GB/s by direct I/O, {DEPTH} reads of {} at once",
                Bytes(REQUEST_BYTES as u64)
            ),
        ),
        Err(error) => Finding::poor(
            "drive",
            format!(
                "{place}: {best:.2} GB/s, through the page cache: direct I/O is refused ({error})"
            ),
            "keep packed models on a file system with direct I/O, such as ext4 or xfs (--cache-dir): page cache is memory, too",
        ),
    };
    let queue = match uring {
        Ok(_) => Finding::good("io_uring", "works"),
        Err(error) => Finding::poor(
            "io_uring",
            format!("does not work: {error}"),
            "threads read instead; containers often forbid io_uring (seccomp), and the kernel may (kernel.io_uring_disabled)",
        ),
    };
    Ok(vec![drive, queue])
}

/// A file of bytes that no drive can compress away; gone when this is dropped.
struct Probe {
    path: PathBuf,
}

impl Probe {
    fn write(folder: &Path) -> Outcome<Probe> {
        let path = folder.join(format!(".neap-doctor-{}", std::process::id()));
        let failed = |e: std::io::Error| bad(format!("cannot write {}: {e}", path.display()));
        let mut file = File::create(&path).map_err(failed)?;
        let probe = Probe { path: path.clone() };
        let mut block = vec![0u8; 1 << 20];
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..PROBE_BYTES / block.len() {
            for word in block.chunks_exact_mut(8) {
                // xorshift64
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            file.write_all(&block).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        Ok(probe)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // It may have been removed by somebody else.
        let _ = fs::remove_file(&self.path);
    }
}

/// The kind of file system that a folder is on, as the kernel calls it.
fn file_system(folder: &Path) -> Option<String> {
    let folder = fs::canonicalize(folder).ok()?;
    file_system_in(&fs::read_to_string("/proc/self/mountinfo").ok()?, &folder)
}

/// The last mount of the longest path is the one that is seen.
fn file_system_in(mounts: &str, folder: &Path) -> Option<String> {
    let kinds = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?;
        let kind = after.split(' ').next()?;
        folder.starts_with(point).then_some((point.len(), kind))
    });
    kinds
        .max_by_key(|(len, _)| *len)
        .map(|(_, kind)| kind.into())
}

/// Cards are found by what their drivers make: asking Vulkan would load the drivers into this process.
fn cards() -> Finding {
    let count = |folder: &str, begin: &str| {
        fs::read_dir(folder).map_or(0, |entries| {
            let names = entries.filter_map(|e| Some(e.ok()?.file_name()));
            names
                .filter(|name| {
                    let digits = name.to_str().and_then(|n| n.strip_prefix(begin));
                    digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
                })
                .count()
        })
    };
    let (render, nvidia) = (count("/dev/dri", "renderD"), count("/dev", "nvidia"));
    let built = if cfg!(feature = "vulkan") {
        "this neap has --device vulkan"
    } else {
        "this neap was built without --device vulkan (cargo build --release --features vulkan)"
    };
    Finding::good(
        "cards",
        format!("{render} of /dev/dri, {nvidia} of NVIDIA's driver; {built}"),
    )
}

fn curve(args: &DoctorArgs, path: &Path, quiet: bool) -> Outcome<LatencyCurve> {
    let model = open(path, &args.open.options()?, quiet)?;
    let options = RunOptions {
        reserve_bytes: model.inputs().iter().map(|i| i.len_bytes() as u64).sum(),
        ..args.engine.options(Budget::Unlimited)
    };
    Ok(model.latency_curve(&options, BUDGETS, &[])?)
}

fn text(findings: &[Finding], curve: Option<(&PathBuf, &LatencyCurve)>) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for finding in findings {
        let mark = if finding.advice.is_some() { '!' } else { ' ' };
        let _ = writeln!(text, "{mark} {:<10} {}", finding.what, finding.found);
        if let Some(advice) = &finding.advice {
            let _ = writeln!(text, "  {:<10} {advice}", "");
        }
    }
    if let Some((path, curve)) = curve {
        let name = path.file_name().unwrap_or_default().display();
        let _ = writeln!(text, "  {:<10} {name}, predicted:", "model");
        let near = Slower::A_TENTH.smallest(curve);
        let near = near.map(|(near, _)| near.budget_bytes);
        for point in &curve.points {
            let _ = writeln!(
                text,
                "  {:<10} within {:<12} {:>9.2} ms{}",
                "",
                Bytes(point.budget_bytes).to_string(),
                ms(point.latency_ns),
                match near == Some(point.budget_bytes) {
                    true =>
                        "    the smallest of these that is at most a tenth slower than the fastest",
                    false => "",
                }
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_is_that_of_the_nearest_mount() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/a rw\n\
            23 22 0:5 / /data rw,noatime shared:1 - xfs /dev/b rw\n\
            24 22 0:6 / /database rw - tmpfs none rw\n";
        let of = |folder: &str| file_system_in(mounts, Path::new(folder));
        assert_eq!(of("/data/models").as_deref(), Some("xfs"));
        assert_eq!(of("/database").as_deref(), Some("tmpfs"));
        assert_eq!(of("/home").as_deref(), Some("ext4"));
        assert_eq!(of("relative"), None);
    }
}
