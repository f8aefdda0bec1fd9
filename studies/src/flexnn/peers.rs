//! The engines to compare with: onnxruntime, OpenVINO and ncnn, in f32 and with unlimited memory.

use crate::group::Group;
use crate::models;
use crate::peer::Peer;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub const ENGINES: [&str; 3] = ["onnxruntime", "openvino", "ncnn"];

/// Relative to the largest output: beyond this, an engine computes something else.
const MOST_DIFFERENCE: f64 = 1e-3;

/// The Python environments that the engines run in.
pub struct Engines {
    reference: PathBuf,
    /// `None` where it cannot be had.
    others: Option<PathBuf>,
}

impl Engines {
    pub fn new(root: &Path) -> Result<Engines> {
        let Some(reference) = models::python(root)? else {
            bail!("onnxruntime is not to be had here")
        };
        let output = Command::new("sh")
            .arg(root.join("scripts/peers.sh"))
            .stderr(Stdio::inherit())
            .output()?;
        let path = String::from_utf8(output.stdout)?.trim().to_string();
        let others = (!path.is_empty()).then(|| PathBuf::from(path));
        Ok(Engines { reference, others })
    }

    /// Starts an engine on a model, perhaps in a group; the inner `Err` says why it cannot do that.
    pub fn start(
        &self,
        root: &Path,
        engine: &str,
        model: &Path,
        group: Option<&Group>,
    ) -> Result<Result<Peer, String>> {
        let start = |command: &mut Command| match group {
            Some(group) => Peer::start(&mut group.around(command)),
            None => Peer::start(command),
        };
        if engine == "onnxruntime" {
            let mut command = Command::new(&self.reference);
            command.arg(root.join("scripts/ort_bench.py")).arg(model);
            return start(command.args(["--serve", "--threads", "2"])).map(Ok);
        }
        let Some(python) = &self.others else {
            return Ok(Err("not to be had here".into()));
        };
        let folder = root.join("target/flexnn");
        let reference = self.reference(root, model, &folder)?;
        let mut command = Command::new(python);
        command
            .arg(root.join("scripts/peer_bench.py"))
            .arg(engine)
            .arg(model)
            .arg("--work")
            .arg(&folder)
            .args(["--threads", "2"]);
        for key in ["inputs", "outputs"] {
            command
                .arg(format!("--{key}"))
                .args(files(&reference, key)?);
        }
        let peer = match start(&mut command) {
            Ok(peer) => peer,
            Err(e) => return Ok(Err(e.to_string())),
        };
        match peer.ready["difference"].as_f64() {
            Some(difference) if difference <= MOST_DIFFERENCE => Ok(Ok(peer)),
            Some(difference) => Ok(Err(format!("wrong outputs, {difference:.1e} apart"))),
            None => Ok(Err("it does not say whether its outputs are right".into())),
        }
    }

    /// Inputs, and what onnxruntime makes of them, as files; made once for a model.
    fn reference(&self, root: &Path, model: &Path, folder: &Path) -> Result<Value> {
        let stem = model.file_stem().context("a model has a name")?;
        let folder = folder.join(stem);
        let list = folder.join("reference.json");
        let modified = |path: &Path| fs::metadata(path).and_then(|m| m.modified());
        if !modified(&list).is_ok_and(|made| modified(model).is_ok_and(|m| m <= made)) {
            let output = Command::new(&self.reference)
                .arg(root.join("scripts/reference.py"))
                .arg(model)
                .arg("--seed-inputs")
                .arg(folder.join("inputs"))
                .arg("--output-dir")
                .arg(folder.join("outputs"))
                .stderr(Stdio::inherit())
                .output()?;
            if !output.status.success() {
                bail!("onnxruntime cannot run {}", model.display());
            }
            fs::write(&list, output.stdout)?;
        }
        Ok(serde_json::from_slice(&fs::read(&list)?)?)
    }
}

fn files(reference: &Value, key: &str) -> Result<Vec<String>> {
    let entries = reference[key].as_array().with_context(|| key.to_string())?;
    let file = |e: &Value| e["file"].as_str().map(str::to_string);
    Ok(entries.iter().filter_map(file).collect())
}
