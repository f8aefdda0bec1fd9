//! SwapNet's three applications: several models at once in one total of memory, beside direct inference and
//! what is left out in turn.
//!
//! ```text
//!   direct           every model wholly in memory             DInf of the paper
//!   curves           slices and residency, memory by curves   ours: the slowest model as fast as can be
//!   slowdown         the same                                 ours: the largest slowdown as small as can be
//!   swapnet          blocks, memory by Equation 1             the paper's
//!   equal            blocks, the same memory for all          w/o-pat-sch
//!   by channel       slices on demand, Equation 1             DCha
//! ```
//! Each application is measured in less than a minute, and its figures are kept in `target/swapnet`; the page is
//! made of all that are there.

mod measure;
mod report;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

#[derive(Args)]
pub struct SwapnetArgs {
    /// Only these applications; their figures are measured anew, those of others taken as they are.
    only: Vec<String>,
    /// Seconds that each configuration runs.
    #[arg(long, default_value_t = 2.5)]
    seconds: f64,
    /// Write docs/swapnet.md.
    #[arg(long)]
    write: bool,
}

/// An application: its task file, and what the paper says of it.
pub struct Application {
    pub name: &'static str,
    pub models: &'static [&'static str],
    /// Models' memory below direct inference's, per cent.
    pub paper_reduction: &'static str,
    /// Latency above direct inference's, milliseconds.
    pub paper_increase: &'static str,
    /// Totals to go to while it runs.
    pub schedule: &'static str,
}

pub const APPLICATIONS: [Application; 3] = [
    Application {
        name: "self-driving",
        models: &["yolov3", "fcn_resnet101", "vgg19", "resnet101"],
        paper_reduction: "56.9–82.8 %",
        paper_increase: "26–46 ms",
        schedule: "1s:750MiB,2s:700MiB,3s:843MiB",
    },
    Application {
        name: "road-side-unit",
        models: &["yolov3", "resnet101", "vgg19"],
        paper_reduction: "53.4–77.1 %",
        paper_increase: "14–47 ms",
        schedule: "1s:1000MiB,2s:900MiB,3s:1088MiB",
    },
    Application {
        name: "uav",
        models: &["yolov3", "resnet101"],
        paper_reduction: "64.4–74.6 %",
        paper_increase: "8–37 ms",
        schedule: "1s:280MiB,2s:240MiB,3s:325MiB",
    },
];

/// A way to run an application.
pub struct Way {
    pub name: &'static str,
    pub policy: &'static str,
    pub strategy: &'static str,
}

pub const WAYS: [Way; 6] = [
    Way {
        name: "direct",
        policy: "direct",
        strategy: "preload",
    },
    Way {
        name: "curves",
        policy: "curves",
        strategy: "preload",
    },
    Way {
        name: "slowdown",
        policy: "slowdown",
        strategy: "preload",
    },
    Way {
        name: "swapnet",
        policy: "paper",
        strategy: "blocks",
    },
    Way {
        name: "equal",
        policy: "equal",
        strategy: "blocks",
    },
    Way {
        name: "by channel",
        policy: "paper",
        strategy: "ondemand",
    },
];

/// Everything measured of one application.
#[derive(Serialize, Deserialize)]
pub struct Measured {
    pub name: String,
    /// Reports of `neap run --task`, by this program, or why there is none, in the order of [`WAYS`].
    pub ways: Vec<Result<Value, String>>,
    /// With a total that moves.
    pub moving: Value,
}

pub fn run(root: &Path, args: &SwapnetArgs) -> Result<()> {
    for name in &args.only {
        if APPLICATIONS.iter().all(|a| a.name != name) {
            let known: Vec<&str> = APPLICATIONS.iter().map(|a| a.name).collect();
            bail!("no application '{name}': {}", known.join(", "));
        }
    }
    let folder = root.join("target/swapnet");
    std::fs::create_dir_all(&folder)?;
    measure::calibrate(root)?;
    let mut all = Vec::new();
    for application in &APPLICATIONS {
        let kept = folder.join(format!("{}.json", application.name));
        let wanted = args.only.iter().any(|name| name == application.name);
        if wanted || (args.only.is_empty() && !args.write) || !kept.exists() {
            let measured = measure::application(root, application, args.seconds)
                .with_context(|| application.name)?;
            std::fs::write(&kept, serde_json::to_vec_pretty(&measured)?)?;
        }
        let text = std::fs::read(&kept)?;
        let measured: Measured = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not readable", kept.display()))?;
        all.push(measured);
    }
    let overheads = measure::overheads(root)?;
    let tables = report::tables(&all, &overheads);
    println!("{tables}");
    if args.write {
        let path = root.join("docs/swapnet.md");
        std::fs::write(&path, report::page(&tables, args.seconds)?)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
