//! `neap demo`: ResNet-152 from the zoo, with unlimited memory and under a hard 40 MiB, side by side. On a device ResNet-50.

use crate::args::EngineArgs;
use crate::carried;
use crate::cgroup::supervise;
use crate::child::{self, Figures};
use crate::compute::Compute;
use crate::failure::{Failure, Outcome, bad};
use crate::interrupt;
use crate::progress::{Progress, note};
use crate::stdout;
use clap::{ArgMatches, Args};
use comfy_table::{CellAlignment, Table, presets};
use neap_zoo::Options;
use neaptide::Bytes;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct DemoArgs {
    /// Where the model and results go, about 500 MB [default: a new folder in the user's cache]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the model and results
    #[arg(long)]
    keep: bool,
    /// Measured runs per budget
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = crate::numbers::whole::<u32>(1..=10_000))]
    iterations: u32,
    /// Compute on a device, with ResNet-50 and a hard 64 MiB, of which its driver takes a part: vulkan, vulkan:N, auto or auto:N
    #[arg(long, value_name = "DEVICE")]
    device: Option<Compute>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What is run, and the budget.
const ON_PROCESSOR: (&str, &str) = ("resnet152", "40MiB");
const ON_DEVICE: (&str, &str) = ("resnet50", "64MiB");
const WARMUP: &str = "2";

/// `given` holds the options as they were written.
pub fn run(args: &DemoArgs, given: &ArgMatches, quiet: bool) -> Outcome {
    let _deferred = interrupt::defer();
    let (network, budget) = match args.device {
        None => ON_PROCESSOR,
        Some(_) => ON_DEVICE,
    };
    let folder = Folder::create(args)?;
    let model = folder.path.join(format!("{network}.onnx"));
    let mut progress = Progress::new(format!("making {network}"), quiet);
    let written = neap_zoo::write(network, &model, &Options::default(), &mut |done, total| {
        progress.at(done, total)
    })?;
    progress.finish();

    let enforce = match supervise::possible() {
        Ok(()) => true,
        Err(reason) => {
            note(&format!(
                "no rights for a memory cgroup here ({reason}): the budget is kept, but not enforced by the kernel"
            ));
            false
        }
    };
    let measure = |budget: &str, enforce: bool| -> Outcome<Figures> {
        if !quiet {
            note(&match budget {
                "none" => "running with unlimited memory".to_string(),
                budget => format!("running within {budget}"),
            });
        }
        let results = folder.path.join(format!("outputs-{budget}"));
        let mut list: Vec<OsString> = vec![model.clone().into()];
        let mut option = |name: &str, value: OsString| list.extend([name.into(), value]);
        option("--memory-budget", budget.into());
        option("--warmup", WARMUP.into());
        option("--iterations", args.iterations.to_string().into());
        option("--cache-dir", folder.path.clone().into());
        option("--output-dir", results.into());
        list.extend(carried::words::<EngineArgs>(given));
        list.extend((args.device).map(|device| format!("--device={device}").into()));
        // Bits are compared.
        list.extend((!args.engine.exact).then(|| "--exact".into()));
        list.extend(enforce.then(|| "--enforce".into()));
        list.extend(quiet.then(|| "--quiet".into()));
        child::run(&list, false)?.map_err(|ended| ended.failure)
    };
    let free = measure("none", false)?;
    let tight = measure(budget, enforce)?;
    let same = outputs_equal(&free, &tight)?;
    interrupt::check()?;
    stdout::print(&format!(
        "{network}, {} of weights, {} threads, medians of {} runs\n{}\n",
        Bytes(written.weight_bytes),
        args.engine.threads(),
        args.iterations,
        table(&free, &tight, enforce, same)
    ))?;
    if args.keep {
        note(&format!("kept in {}", folder.path.display()));
    }
    if !same {
        return Err(Failure::Internal(
            "the outputs differ between the two runs".into(),
        ));
    }
    Ok(())
}

fn table(free: &Figures, tight: &Figures, enforced: bool, same: bool) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["", "unlimited memory", "memory budget"]);
    let budget = tight.memory_budget_bytes.map_or(String::new(), |b| {
        let how = if enforced { "hard limit" } else { "planned" };
        format!("{} ({how})", Bytes(b))
    });
    let peak = |f: &Figures| {
        let source = match f.peak_memory_source.as_str() {
            "cgroup_v1" | "cgroup_v2" => "kernel, cgroup",
            _ => "kernel, VmHWM",
        };
        format!("{} ({source})", Bytes(f.peak_memory_bytes))
    };
    let latency = |f: &Figures| format!("{:.1} ms", f.latency_ms.median);
    let stall = |f: &Figures| format!("{:.1} ms", f.stall_ms);
    let loaded = |f: &Figures| Bytes(f.loaded_bytes_per_run).to_string();
    let outputs = if same { "bit-identical" } else { "DIFFERENT" };
    table.add_row(["budget", "none", &budget]);
    table.add_row(["peak memory", &peak(free), &peak(tight)]);
    table.add_row(["latency", &latency(free), &latency(tight)]);
    table.add_row(["waiting for weights", &stall(free), &stall(tight)]);
    table.add_row(["read from storage per run", &loaded(free), &loaded(tight)]);
    table.add_row(["outputs", "", outputs]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Whether all files of the two runs hold the same bytes.
fn outputs_equal(a: &Figures, b: &Figures) -> Outcome<bool> {
    let read = |file: &Option<String>| {
        let file = file
            .as_ref()
            .ok_or_else(|| Failure::Internal("an output was not written".into()))?;
        fs::read(file).map_err(|e| bad(format!("cannot read {file}: {e}")))
    };
    if a.outputs.is_empty() || a.outputs.len() != b.outputs.len() {
        return Ok(false);
    }
    for (x, y) in a.outputs.iter().zip(&b.outputs) {
        if read(&x.file)? != read(&y.file)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The demo's folder; its contents go when this is dropped, unless they are to be kept.
struct Folder {
    path: PathBuf,
    /// It was not there before.
    made: bool,
    keep: bool,
}

impl Folder {
    fn create(args: &DemoArgs) -> Outcome<Folder> {
        let path = match &args.dir {
            Some(dir) => dir.clone(),
            None => user_cache()
                .unwrap_or_else(std::env::temp_dir)
                .join(format!("neaptide-demo-{}", std::process::id())),
        };
        let made = !path.exists();
        fs::create_dir_all(&path)
            .map_err(|e| bad(format!("cannot create {}: {e}", path.display())))?;
        if !made && fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(bad(format!("{} is not empty", path.display())));
        }
        Ok(Folder {
            path,
            made,
            keep: args.keep,
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let result = if self.made {
            fs::remove_dir_all(&self.path)
        } else {
            empty(&self.path)
        };
        if let Err(error) = result {
            note(&format!("cannot remove {}: {error}", self.path.display()));
        }
    }
}

/// Removes what is in a folder that was empty when the demo began.
fn empty(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            fs::remove_dir_all(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The system's folder for temporary files is often memory, where reading from storage shows nothing.
fn user_cache() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    named.filter(|p| p.is_absolute()).or_else(|| {
        std::env::var_os("HOME")
            .filter(|home| !home.is_empty())
            .map(|home| PathBuf::from(home).join(".cache"))
    })
}
