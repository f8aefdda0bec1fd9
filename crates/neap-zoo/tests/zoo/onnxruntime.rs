//! Every network of the zoo runs in onnxruntime and behaves like a trained one.
//!
//! Skipped, saying so, where the Python environment cannot be had.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use neap_zoo::{Batch, Options, ZooEntry, list, write};

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts")
}

/// The interpreter of the repository's Python environment, made on first use.
fn python() -> Option<PathBuf> {
    let made = Command::new("sh")
        .arg(scripts().join("venv.sh"))
        .stderr(Stdio::inherit())
        .output()
        .ok()?;
    let path = String::from_utf8(made.stdout).ok()?;
    (!path.trim().is_empty()).then(|| PathBuf::from(path.trim()))
}

fn check(python: &Path, entry: &ZooEntry, options: &Options) {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join(format!("{}.onnx", entry.name));
    write(entry.name, &model, options, &mut |_, _| {}).unwrap();
    let output = Command::new(python)
        .arg(scripts().join("zoo_check.py"))
        .arg(&model)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {report}{log}", entry.name);
}

/// Of each family at least one; the larger ones take a minute or two to write and to run.
const SMALL: [&str; 8] = [
    "squeezenet1_1",
    "mobilenet_v2",
    "densenet121",
    "resnet50",
    "resnext50",
    "inception_v3",
    "mlp_28",
    "cnn_28",
];

#[test]
fn small_networks_behave() {
    networks_behave(|name| SMALL.contains(&name));
}

#[test]
#[ignore = "minutes: cargo xtask nightly"]
fn large_networks_behave() {
    networks_behave(|name| !SMALL.contains(&name));
}

fn networks_behave(wanted: fn(&str) -> bool) {
    let Some(python) = python() else {
        return neap_testing::skip("onnxruntime cannot be had here");
    };
    let entries = list();
    let entries: Vec<_> = (entries.iter())
        .filter(|e| !e.shapes_only && wanted(e.name))
        .collect();
    assert!(entries.len() > 5, "{} networks", entries.len());
    for entry in entries {
        check(&python, entry, &Options::default());
    }
}

#[test]
fn dynamic_batch_and_external_data_are_understood() {
    let Some(python) = python() else {
        return neap_testing::skip("onnxruntime cannot be had here");
    };
    let options = Options {
        batch: Batch::Dynamic,
        external_data: true,
        ..Options::default()
    };
    for entry in list()
        .iter()
        .filter(|e| ["squeezenet1_1", "vit_b_16", "gpt2", "yolov3"].contains(&e.name))
    {
        check(&python, entry, &options);
    }
}

#[test]
fn the_scripts_pass_their_own_tests() {
    let Some(python) = python() else {
        return neap_testing::skip("there is no Python environment here");
    };
    let output = Command::new(python)
        .args(["-m", "unittest", "test_scripts"])
        .current_dir(scripts())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
}
