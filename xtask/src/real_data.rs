//! Trainings on real data, each under a hard limit of the kernel's: what `docs/train.md` says of them.
//!
//! Data and models are fetched from Debian and PyPI by the project's scripts, and kept in `target/real-data`.

use crate::check::check;
use crate::{accuracy, models, python};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A training, and the accuracy on data that it has not seen that it must reach.
struct Case {
    name: &'static str,
    model: &'static str,
    data: &'static str,
    options: &'static str,
    budget: &'static str,
    least_accuracy: f64,
}

const CASES: [Case; 3] = [
    Case {
        name: "fashion",
        model: "cnn.onnx",
        data: "fashion-mnist",
        options: "--epochs 2 --lr 1e-3 --mean 0.286 --std 0.353",
        budget: "64MiB",
        least_accuracy: 0.885,
    },
    Case {
        name: "reuters",
        model: "reuters.onnx",
        data: "reuters.npz",
        options: "--epochs 5 --lr 5e-3",
        budget: "24MiB",
        least_accuracy: 0.965,
    },
    Case {
        name: "mobilenet",
        model: "mobilenet.onnx",
        data: "fashion-mnist",
        options: "--epochs 1 --limit 3200 --batch 32 --micro-batch 16 --lr 1e-4 \
                  --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225",
        budget: "64MiB",
        least_accuracy: 0.78,
    },
];

/// # Errors
/// When data or models cannot be had, or a training ends otherwise than it should.
pub fn run(root: &Path) -> Result<()> {
    ensure!(
        accuracy::can_enforce(),
        "training under a hard limit needs the right to make memory cgroups"
    );
    let neap = models::neap(root)?;
    let folder = root.join("target/real-data");
    fs::create_dir_all(&folder)?;
    prepare(root, &neap, &folder)?;
    println!("| training | hard limit | peak MiB | steps | samples/s | accuracy |");
    println!("|---|--:|--:|--:|--:|--:|");
    for case in &CASES {
        let last = train(&neap, &folder, case).context(case.name)?;
        let number = |name: &str| last[name].as_f64().context(format!("no {name}"));
        let accuracy = number("validation_accuracy")?;
        println!(
            "| {} | {} | {:.1} | {} | {:.0} | {:.2} % |",
            case.name,
            case.budget,
            number("peak_bytes")? / f64::from(1 << 20),
            number("step")?,
            number("samples_per_second")?,
            100.0 * accuracy
        );
        let least = case.least_accuracy;
        ensure!(
            accuracy >= least,
            "{}: an accuracy of {accuracy}, at least {least} is wanted",
            case.name
        );
    }
    Ok(())
}

fn prepare(root: &Path, neap: &Path, folder: &Path) -> Result<()> {
    let tools = python::tools(root)?.context("no Python environment")?;
    let script = |name: &str| root.join("scripts").join(name);
    let mut fashion = Command::new("sh");
    fashion.arg(script("fashion_mnist.sh"));
    let fashion = fashion.arg(folder.join("fashion-mnist"));
    check(fashion, "fetching Fashion-MNIST")?;
    let mut zoo = Command::new(neap);
    zoo.args(["zoo", "cnn_28", "--quiet", "--batch", "dynamic", "-o"]);
    check(zoo.arg(folder.join("cnn.onnx")), "writing cnn_28")?;
    let examples = || {
        let mut python = Command::new(tools.join("bin/python"));
        python.arg(script("train_examples.py"));
        python
    };
    check(examples().arg("reuters").arg(folder), "fetching Reuters")?;
    let trained = root.join("../shared/models/mobilenet_v2_imagenet.onnx");
    let mut mobilenet = examples();
    mobilenet.arg("mobilenet").arg(trained).arg(folder);
    check(&mut mobilenet, "giving MobileNetV2 a new last layer")
}

/// Trains within the limit, and gives what the log says of the last epoch.
fn train(neap: &Path, folder: &Path, case: &Case) -> Result<Value> {
    let trained = folder.join(format!("{}.trained.onnx", case.name));
    let log = folder.join(format!("{}.jsonl", case.name));
    let checkpoint = folder.join(format!("{}.checkpoint", case.name));
    for old in [&log, &checkpoint] {
        if old.exists() {
            fs::remove_file(old)?;
        }
    }
    let mut command = Command::new(neap);
    command.arg("train").arg(folder.join(case.model));
    command.arg("--data").arg(folder.join(case.data));
    command.args(case.options.split_whitespace());
    command.args(["--quiet", "--enforce", "--memory-budget", case.budget]);
    command.arg("--checkpoint").arg(&checkpoint);
    command.arg("--log").arg(&log).arg("-o").arg(trained);
    check(&mut command, "neap train")?;
    let text = fs::read_to_string(&log)?;
    let last = text.lines().last().context("an empty log")?;
    Ok(serde_json::from_str(last)?)
}
