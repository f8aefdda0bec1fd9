//! `cargo study pages`: measures every page of figures anew, in one sitting on one machine.
//!
//! ```text
//!   minutes left ──► share of the usual rounds ──► one page ──► minutes left ──► …
//! ```
//! Each page is a benchmark with `--write`, run as a process of its own. A page that takes longer than it usually does
//! leaves fewer rounds to those that follow. One that fails is named at the end, and the others are measured all the same.

use anyhow::{Result, bail};
use clap::Args;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct PagesArgs {
    /// Only these pages
    only: Vec<String>,
    /// For how long; fewer minutes are fewer rounds
    #[arg(long, default_value_t = 90.0)]
    minutes: f64,
    /// Print the commands and run none
    #[arg(long)]
    dry_run: bool,
}

/// One page of docs/.
struct Page {
    name: &'static str,
    /// That all of its rounds take, about.
    minutes: f64,
    /// Commands that measure and write it, with a share of the usual rounds.
    commands: fn(f64) -> Vec<String>,
}

/// The quick ones first: what they take longer is shared by all that follow.
const PAGES: [Page; 16] = [
    Page {
        name: "kernels",
        minutes: 2.0,
        commands: |_| Vec::new(),
    },
    Page {
        name: "realtime",
        minutes: 3.0,
        commands: |share| match share < LEAST_WHOLE {
            true => vec!["rtswap --write".into()],
            false => vec!["rtswap --long --write".into()],
        },
    },
    Page {
        name: "engine",
        minutes: 5.0,
        commands: |share| vec![format!("engine --runs {} --write", rounds(3, share))],
    },
    Page {
        name: "scaling",
        minutes: 5.0,
        commands: |share| {
            let measure = format!("scaling --rounds {}", rounds(6, share));
            vec![measure, "scaling --write".into()]
        },
    },
    Page {
        name: "formats",
        minutes: 2.0,
        commands: |share| {
            let measure = format!("formats --rounds {}", rounds(6, share));
            vec![measure, "formats --write".into()]
        },
    },
    Page {
        name: "prediction",
        minutes: 7.0,
        commands: |share| vec![format!("prediction --rounds {} --write", rounds(20, share))],
    },
    Page {
        name: "benchmarks",
        minutes: 10.0,
        commands: |share| {
            let rounds = rounds(4, share);
            vec![format!(
                "networks --rounds {rounds} --runs-per-round 4 --write"
            )]
        },
    },
    Page {
        name: "swapnet",
        minutes: 4.0,
        commands: |share| {
            let measure = format!("swapnet --seconds {:.2}", seconds(2.5, share));
            vec![measure, "swapnet --write".into()]
        },
    },
    Page {
        name: "layering",
        minutes: 3.0,
        commands: |share| vec![format!("layering --rounds {} --write", rounds(3, share))],
    },
    Page {
        name: "swapadvisor",
        minutes: 12.0,
        commands: |share| vec![format!("swapadvisor --effort {} --write", rounds(4, share))],
    },
    Page {
        name: "strategies",
        minutes: 14.0,
        commands: |share| vec![format!("strategies --rounds {} --write", rounds(3, share))],
    },
    Page {
        name: "sharing",
        minutes: 10.0,
        commands: |share| {
            let measure = format!("sharing --seconds {:.2}", seconds(4.0, share));
            vec![measure, "sharing --write".into()]
        },
    },
    Page {
        name: "flexnn",
        minutes: 13.0,
        commands: |share| match share < LEAST_WHOLE {
            true => vec!["flexnn --quick --write".into()],
            false => vec![format!("flexnn --rounds {} --write", rounds(4, share))],
        },
    },
    Page {
        name: "realtime-runs",
        minutes: 14.0,
        commands: |share| {
            let measure = format!("runtime --anew --minutes {:.1}", minutes(12.0, share));
            vec![measure, "runtime --write".into()]
        },
    },
    Page {
        name: "serving-load",
        minutes: 11.0,
        // What is promised is promised for ten minutes of load, not for fewer.
        commands: |_| vec!["serve --minutes 10 --write".into()],
    },
    Page {
        name: "gpu-figures",
        minutes: 8.0,
        commands: |share| {
            let measure = format!("vulkan --rounds {}", rounds(3, share));
            vec![
                format!("{measure} squeezenet1_1 mobilenet_v2 resnet50"),
                format!("{measure} --papers"),
                "vulkan --write".into(),
            ]
        },
    },
];

/// Below this share of its rounds a page that takes long leaves out parts.
const LEAST_WHOLE: f64 = 0.4;

fn rounds(usual: usize, share: f64) -> usize {
    ((usual as f64 * share).round() as usize).clamp(1, usual)
}

fn minutes(usual: f64, share: f64) -> f64 {
    (usual * share).clamp(1.0, usual)
}

fn seconds(usual: f64, share: f64) -> f64 {
    (usual * share).clamp(0.5, usual)
}

pub fn run(root: &Path, args: &PagesArgs) -> Result<()> {
    if let Some(name) = args
        .only
        .iter()
        .find(|o| PAGES.iter().all(|p| p.name != *o))
    {
        let known: Vec<&str> = PAGES.iter().map(|p| p.name).collect();
        bail!("no page '{name}': {}", known.join(", "));
    }
    let wanted = |page: &&Page| args.only.is_empty() || args.only.iter().any(|o| o == page.name);
    let pages: Vec<&Page> = PAGES.iter().filter(wanted).collect();
    let started = Instant::now();
    let mut failed = Vec::new();
    for (i, page) in pages.iter().enumerate() {
        let left = args.minutes - started.elapsed().as_secs_f64() / 60.0;
        let share = share_of(left, &pages[i..]);
        eprintln!(
            "{}: {:.0} % of its rounds, {left:.1} minutes left",
            page.name,
            share * 100.0
        );
        let begun = Instant::now();
        if page.name == "kernels" {
            kernels(root, args.dry_run)?;
        }
        for command in (page.commands)(share) {
            if let Err(e) = bench(root, &command, args.dry_run) {
                eprintln!("{}: {e:#}", page.name);
                failed.push(page.name);
                break;
            }
        }
        eprintln!("{}: {}", page.name, shown(begun.elapsed()));
    }
    eprintln!("{} pages: {}", pages.len(), shown(started.elapsed()));
    if !failed.is_empty() {
        bail!("not measured: {}", failed.join(", "));
    }
    Ok(())
}

/// Of the usual rounds, so that these pages take no longer than `left` minutes.
fn share_of(left: f64, pages: &[&Page]) -> f64 {
    let usual: f64 = pages.iter().map(|p| p.minutes).sum();
    (left / usual).clamp(0.0, 1.0)
}

fn shown(time: Duration) -> String {
    format!("{:.1} minutes", time.as_secs_f64() / 60.0)
}

fn bench(root: &Path, command: &str, dry_run: bool) -> Result<()> {
    eprintln!("  cargo study {command}");
    if dry_run {
        return Ok(());
    }
    let status = Command::new(std::env::current_exe()?)
        .current_dir(root)
        .args(command.split_whitespace())
        .stdout(std::process::Stdio::null())
        .status()?;
    if !status.success() {
        bail!("cargo study {command} failed: {status}");
    }
    Ok(())
}

/// Kernels are measured by an example of their crate, which prints the page.
fn kernels(root: &Path, dry_run: bool) -> Result<()> {
    let arguments = "run --release -p neap-kernels --example kernel_bench -- --markdown";
    eprintln!("  cargo {arguments}");
    if dry_run {
        return Ok(());
    }
    let output = Command::new("cargo")
        .current_dir(root)
        .args(arguments.split(' '))
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("cargo {arguments} failed: {}", output.status);
    }
    let mut page = String::from_utf8(output.stdout)?;
    page += &format!("\nMeasured on {}.\n", crate::setting::setting()?);
    std::fs::write(root.join("docs/kernels.md"), page)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sitting_measures_every_page_whole() {
        let pages: Vec<&Page> = PAGES.iter().collect();
        assert!(share_of(90.0, &pages) >= 1.5 * LEAST_WHOLE);
    }

    #[test]
    fn fewer_minutes_are_fewer_rounds() {
        let pages: Vec<&Page> = PAGES.iter().collect();
        let usual: f64 = pages.iter().map(|p| p.minutes).sum();
        assert_eq!(share_of(2.0 * usual, &pages), 1.0);
        assert!((share_of(usual / 10.0, &pages) - 0.1).abs() < 1e-9);
        assert_eq!(share_of(-1.0, &pages), 0.0);
        assert_eq!((rounds(20, 0.1), rounds(4, 0.0), rounds(3, 1.0)), (2, 1, 3));
        assert_eq!((seconds(4.0, 0.5), seconds(2.5, 0.0)), (2.0, 0.5));
    }
}
