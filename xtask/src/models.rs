//! The models that tests and benchmarks run: the zoo, written once into `target/models`, and the
//! trained ones in `../shared/models` where they are at hand.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A model and an input for it.
pub struct Case {
    pub name: String,
    pub model: PathBuf,
    /// `NAME=FILE` arguments; empty for seeded random inputs.
    pub inputs: Vec<String>,
    /// Expected outputs from its origin, when they came with it: the `.npy` of the first output.
    pub expected: Option<PathBuf>,
}

/// Every zoo model that is written with its weights, in the order of the zoo's list.
pub fn zoo_names() -> Vec<&'static str> {
    let all = neap_zoo::list().iter();
    all.filter(|entry| !entry.shapes_only)
        .map(|entry| entry.name)
        .collect()
}

/// Writes a zoo model unless it is there already.
pub fn zoo_model(root: &Path, name: &str) -> Result<PathBuf> {
    zoo_model_as(root, name, name, &neap_zoo::Options::default())
}

/// As [`zoo_model`], with options, under a file name that tells them.
pub fn zoo_model_as(
    root: &Path,
    name: &str,
    file_stem: &str,
    options: &neap_zoo::Options,
) -> Result<PathBuf> {
    let folder = root.join("target/models");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{file_stem}.onnx"));
    if !path.exists() {
        eprintln!("writing {}", path.display());
        neap_zoo::write(name, &path, options, &mut |_, _| {})
            .with_context(|| format!("cannot write {name}"))?;
    }
    Ok(path)
}

/// A larger model leaves the drive once it was tested: all of them, and what is packed of them, are 8 GiB.
const KEPT_BYTES: u64 = 100 << 20;

/// A zoo model while it is tested. If it is large and was not there before, it goes afterwards, with what was packed of it.
pub struct Visitor {
    path: PathBuf,
    stays: bool,
}

impl Visitor {
    /// # Errors
    /// When the model cannot be written.
    pub fn new(root: &Path, name: &str) -> Result<Visitor> {
        let was_there = root.join(format!("target/models/{name}.onnx")).exists();
        let path = zoo_model(root, name)?;
        let is_small = std::fs::metadata(&path)?.len() <= KEPT_BYTES;
        Ok(Visitor {
            path,
            stays: was_there || is_small,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let (Some(folder), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return;
        };
        if self.stays {
            return;
        }
        let packed_of_it = format!("{}.", name.to_string_lossy());
        for entry in std::fs::read_dir(folder.join("packed"))
            .into_iter()
            .flatten()
        {
            let Ok(entry) = entry else { continue };
            if entry
                .file_name()
                .to_string_lossy()
                .starts_with(&packed_of_it)
            {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes what other benchmarks found by calibrating: plans count with estimates then, as a new user's do.
pub fn forget_calibration(root: &Path) -> Result<()> {
    match std::fs::remove_file(root.join("target/models/packed/calibration.bin")) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(()),
    }
}

/// The trained models with their real inputs; empty when they are not at hand.
pub fn trained(root: &Path) -> Result<Vec<Case>> {
    let folder = root.join("../shared/models");
    let Ok(text) = std::fs::read_to_string(folder.join("expected.json")) else {
        return Ok(Vec::new());
    };
    let table: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text)?;
    let mut cases = Vec::new();
    for (key, entry) in table {
        let (model, sample) = key.split_once('/').context("keys are MODEL/SAMPLE")?;
        let stem = folder.join(format!("{model}.{sample}"));
        let with = |suffix: &str| PathBuf::from(format!("{}{suffix}", stem.display()));
        let inputs = if let Some(name) = entry["input"].as_str() {
            vec![format!("{name}={}", with(".in.npy").display())]
        } else if let Some(names) = entry["inputs"].as_array() {
            let file = with(".in.npz");
            names
                .iter()
                .filter_map(|n| n.as_str())
                .map(|n| format!("{n}={}", file.display()))
                .collect()
        } else {
            bail!("{key} names no input");
        };
        cases.push(Case {
            name: key.replace('/', "_"),
            model: folder.join(format!("{model}.onnx")),
            inputs,
            expected: Some(with(".out.npy")),
        });
    }
    Ok(cases)
}

/// The Python with onnxruntime; `None`, with the reason on stderr, when it cannot be had.
pub fn python(root: &Path) -> Result<Option<PathBuf>> {
    let output = Command::new("sh")
        .arg(root.join("scripts/venv.sh"))
        .stderr(std::process::Stdio::inherit())
        .output()?;
    let path = String::from_utf8(output.stdout)?.trim().to_string();
    Ok((!path.is_empty()).then(|| PathBuf::from(path)))
}

/// The release binary, built when need be.
pub fn neap(root: &Path) -> Result<PathBuf> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--package", "neap-cli"])
        .current_dir(root)
        .status()?;
    if !status.success() {
        bail!("neap does not build");
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/neap"))
}
