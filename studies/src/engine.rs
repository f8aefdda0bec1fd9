//! Many models of one network in one process and one hard limit of memory, beside a process for each.
//!
//! ```text
//!   write and pack each (its own weights) ─► reference: `neap run` alone, no limit ─► `neap run --task --one-process --enforce`
//!                                                                                    the same bits? peak as the kernel counts it
//! ```
//! `--write` writes docs/engine.md.

use crate::{models, setting};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
pub struct EngineArgs {
    /// Network of the zoo
    #[arg(long, default_value = "resnet152")]
    network: String,
    /// So many of it, each with weights of its own
    #[arg(long, default_value_t = 16)]
    models: usize,
    /// Hard limit of the one process, in MiB
    #[arg(long, default_value_t = 256)]
    total: u64,
    /// Measured runs of each model
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Write docs/engine.md
    #[arg(long)]
    write: bool,
}

const THREADS: usize = 2;

struct Place {
    neap: PathBuf,
    folder: PathBuf,
}

pub fn run(root: &Path, args: &EngineArgs) -> Result<()> {
    let place = Place {
        neap: models::neap(root)?,
        folder: root.join("target/engine"),
    };
    std::fs::create_dir_all(&place.folder)?;
    let mut names = Vec::new();
    for seed in 0..args.models {
        names.push(place.packed(&args.network, seed)?);
    }
    let least = names.iter().map(|name| place.smallest_bytes(name));
    let least = least.sum::<Result<u64>>()?;
    let expected = names
        .iter()
        .enumerate()
        .map(|(at, name)| place.alone(name, at));
    let expected = expected.collect::<Result<Vec<String>>>()?;
    let distinct: std::collections::BTreeSet<&String> = expected.iter().collect();
    ensure!(
        distinct.len() == expected.len(),
        "models of different weights gave the same outputs"
    );
    let report = place.together(args, &names)?;
    let models = report["models"].as_array().context("models")?;
    for ((model, name), expected) in models.iter().zip(&names).zip(&expected) {
        ensure!(
            model["is_steady"] == true,
            "{name}: bits differ from run to run"
        );
        ensure!(
            model["outputs_blake3"] == expected.as_str(),
            "{name}: other bits than alone"
        );
    }
    ensure!(
        models.len() == names.len(),
        "a model is missing in the report"
    );
    let page = page(args, least, &report)?;
    println!("{page}");
    if args.write {
        let path = root.join("docs/engine.md");
        std::fs::write(&path, page)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.neap"))
    }

    /// Writes and packs a model unless it is there; its source goes again.
    fn packed(&self, network: &str, seed: usize) -> Result<String> {
        let name = format!("{network}-{seed}");
        if self.path(&name).exists() {
            return Ok(name);
        }
        eprintln!("packing {name}");
        let source = self.folder.join(format!("{name}.onnx"));
        let options = neap_zoo::Options {
            seed: 1 + seed as u64,
            ..neap_zoo::Options::default()
        };
        neap_zoo::write(network, &source, &options, &mut |_, _| {})?;
        let mut pack = Command::new(&self.neap);
        pack.arg("--quiet").arg("pack").arg(&source);
        let packed = said(pack.arg("--output").arg(self.path(&name)));
        std::fs::remove_file(&source)?;
        packed?;
        Ok(name)
    }

    /// The smallest budget of a process of its own.
    fn smallest_bytes(&self, name: &str) -> Result<u64> {
        let mut inspect = Command::new(&self.neap);
        inspect.arg("inspect").arg(self.path(name));
        inspect
            .arg(format!("--threads={THREADS}"))
            .args(["-o", "json"]);
        let facts: Value = serde_json::from_str(&said(&mut inspect)?)?;
        let bytes = facts["smallest_feasible_bytes"].as_u64();
        bytes.context("smallest_feasible_bytes")
    }

    /// Digest of a model's outputs in a process of its own, without a limit.
    fn alone(&self, name: &str, seed: usize) -> Result<String> {
        let outputs = self.folder.join("outputs");
        let mut run = Command::new(&self.neap);
        run.arg("--quiet").arg("run").arg(self.path(name));
        run.arg("--exact").arg(format!("--threads={THREADS}"));
        run.arg(format!("--seed={seed}")).arg("--output-dir");
        run.arg(&outputs).args(["--json", "-"]);
        let report: Value = serde_json::from_str(&said(&mut run)?)?;
        let mut hasher = blake3::Hasher::new();
        for output in report["outputs"].as_array().context("outputs")? {
            let file = output["file"].as_str().context("a file")?;
            hasher.update(npy_data(&std::fs::read(file)?)?);
        }
        std::fs::remove_dir_all(&outputs)?;
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// The report of all of them in one process and its hard limit.
    fn together(&self, args: &EngineArgs, names: &[String]) -> Result<Value> {
        let mut task = format!(
            "total = '{}MiB'\nruns = {}\nwarmup = 1\none_process = true\n",
            args.total, args.runs
        );
        for (seed, name) in names.iter().enumerate() {
            let path = self.path(name);
            write!(
                task,
                "[[model]]\nname = '{name}'\npath = '{}'\nthreads = {THREADS}\nseed = {seed}\n",
                path.display()
            )?;
        }
        let file = self.folder.join("task.toml");
        std::fs::write(&file, task)?;
        let mut run = Command::new(&self.neap);
        run.args(["--quiet", "run", "--exact", "--enforce", "--json", "-"]);
        Ok(serde_json::from_str(&said(run.arg("--task").arg(&file))?)?)
    }
}

/// What a command writes, if it ends well.
fn said(command: &mut Command) -> Result<String> {
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{command:?} ended with {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// What follows the header of a version 1 file.
fn npy_data(file: &[u8]) -> Result<&[u8]> {
    let length = file.get(8..10).context("no .npy file")?;
    let header = 10 + usize::from(u16::from_le_bytes([length[0], length[1]]));
    file.get(header..).context("a .npy file that is cut short")
}

fn page(args: &EngineArgs, least: u64, report: &Value) -> Result<String> {
    let number = |path: &str| {
        let value = report.pointer(path).and_then(Value::as_u64);
        value.with_context(|| format!("{path} is missing"))
    };
    let ledger = &report["ledger"]["parts"];
    let models = report["models"].as_array().context("models")?;
    let median = |of: &str| {
        let values = models.iter().map(|m| m.pointer(of).and_then(Value::as_f64));
        let mut values = values.collect::<Option<Vec<f64>>>().context("figures")?;
        values.sort_unstable_by(f64::total_cmp);
        Ok::<f64, anyhow::Error>(values[values.len() / 2])
    };
    let source = report["peak_memory_source"].as_str().unwrap_or("unknown");
    let mut text = format!(
        "# Many models in one process\n\n\
         `neap run --task FILE --one-process` and `neaptide::Engine` run models in turns, in one work memory: activations, workspaces \
         and weights in flight are dead between runs. Memory is the sum of resident weights and the largest work memory. Below is what \
         that saves.\n\n\
         Made by `cargo study engine --write` ({}): {} models of {} with different weights in one engine, on {THREADS} \
         threads, with {} MiB as hard limit of its cgroup. Each model has a thread that runs it {} times after a warm-up, so all \
         are asked for at once and wait for their turns. The outputs of each have the bits that the model gives alone in a \
         process without a limit.\n\n| | MiB |\n|---|--:|\n",
        setting::setting()?,
        args.models,
        args.network,
        args.total,
        args.runs,
    );
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let rows = [
        ("hard limit".to_owned(), number("/total_bytes")?),
        (
            format!("peak of the process as the kernel counts it ({source})"),
            number("/peak_memory_bytes")?,
        ),
        (
            "planned: work memory that all share".to_owned(),
            number("/ledger/shared_bytes")?,
        ),
        (
            "planned: resident weights of all".to_owned(),
            number("/ledger/resident_bytes")?,
        ),
        (
            "planned: program, threads, heaps of all models and sessions".to_owned(),
            ledger["process_bytes"].as_u64().context("a ledger")?,
        ),
        (
            format!("smallest budgets of {} processes together", args.models),
            least,
        ),
    ];
    for (what, bytes) in rows {
        writeln!(text, "| {what} | {:.1} |", mib(bytes))?;
    }
    writeln!(
        text,
        "\nLoading all took {:.1} s. A run took {:.0} ms (median of the models' medians), after waiting {:.0} ms for its turn. \
         Times are of a machine with other work; sizes do not depend on it.",
        report["loading_ms"].as_f64().context("loading_ms")? / 1e3,
        median("/latency_ms/median")?,
        median("/waited_ms")?,
    )?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_follow_the_header() {
        let mut file = b"\x93NUMPY\x01\x00\x04\x00abcd".to_vec();
        file.extend([1, 2, 3]);
        assert_eq!(npy_data(&file).expect("whole"), [1, 2, 3]);
        assert!(npy_data(&file[..9]).is_err());
        assert!(npy_data(&file[..11]).is_err());
    }
}
