//! Before any limit: models as each way takes them, times, and what a process has beside models.

use super::Place;
use super::figures::Outcome;
use super::scheduling::Command;
use super::tasks::{Prepared, TASKS, Way};
use super::worker::{Heard, Spec, listen, script};
use crate::models::python;
use crate::peer::median;
use crate::worker::sample;
use anyhow::{Context, Result, bail};
use neaptide::{Budget, Cache, EngineOptions, Model, OpenOptions, RunOptions};
use std::path::{Path, PathBuf};

/// Files of the models.
pub struct Models {
    packed: Vec<PathBuf>,
    inputs: Vec<PathBuf>,
    whole_bytes: Vec<u64>,
    /// As onnxruntime maps them; or why there are none.
    mapped: Result<(PathBuf, Vec<PathBuf>), String>,
}

/// A plan for exactly what everything takes may be refused by a few pages.
const SLACK_BYTES: u64 = 512 << 10;

/// Beside models, where there is no onnxruntime to tell it.
const PROCESS_BYTES: u64 = 64 << 20;

/// Of what onnxruntime takes beside weights, for what it takes now and then.
const WAVER_BYTES: u64 = 8 << 20;

impl Models {
    /// One that the drive can be watched by.
    pub fn on_drive(&self) -> Option<&Path> {
        self.packed.last().map(PathBuf::as_path)
    }

    /// What a worker is told in any case.
    pub fn spec(&self, place: &Place, way: Way) -> Spec {
        let mapped = self.mapped.as_ref().ok();
        Spec {
            way,
            models: match way {
                Way::Pages => mapped.map(|(_, models)| models.clone()).unwrap_or_default(),
                Way::Ours | Way::Whole => self.packed.clone(),
            },
            inputs: self.inputs.clone(),
            whole_bytes: self.whole_bytes.clone(),
            deadlines_ns: vec![1_000_000_000; TASKS.len()],
            models_bytes: None,
            window_ns: None,
            python: mapped.map(|(python, _)| python.clone()),
            script: script(&place.root),
            began_ns: 0,
        }
    }
}

/// Writes and packs what is not there yet.
pub fn models(place: &Place) -> Result<Models> {
    let mut found = Models {
        packed: Vec::new(),
        inputs: Vec::new(),
        whole_bytes: Vec::new(),
        mapped: Err(String::new()),
    };
    let folder = place.kept.folder();
    let mut sources = Vec::new();
    for task in &TASKS {
        let source = folder.join(format!("{}.onnx", task.name));
        if !source.exists() {
            eprintln!("writing {}", source.display());
            let options = neap_zoo::Options {
                seed: task.seed,
                ..neap_zoo::Options::default()
            };
            neap_zoo::write(task.network, &source, &options, &mut |_, _| {})?;
        }
        let open = OpenOptions {
            cache: Cache::Folder(folder.to_path_buf()),
            ..OpenOptions::default()
        };
        let model = Model::open(&source, &open, &mut |_| {})?;
        let packed = model.packed_path().context("a model without weights")?;
        found.packed.push(packed.to_path_buf());
        let options = RunOptions {
            budget: Budget::Engine(u64::MAX / 4),
            threads: super::tasks::THREADS,
            prepared_weights: false,
            ..EngineOptions::default().run
        };
        let whole_bytes = model.bounds(&options).unlimited_high_water_bytes();
        found.whole_bytes.push(whole_bytes + SLACK_BYTES);
        let input = folder.join(format!("{}.input", task.name));
        std::fs::write(&input, sample(&model.inputs()[0].ty))?;
        found.inputs.push(input);
        sources.push(source);
    }
    found.mapped = mapped(place, &sources).map_err(|error| format!("{error:#}"));
    if let Err(why) = &found.mapped {
        eprintln!("no onnxruntime: {why}");
    }
    Ok(found)
}

/// Lets onnxruntime optimise each model once, so that its weights can be mapped as they are.
fn mapped(place: &Place, sources: &[PathBuf]) -> Result<(PathBuf, Vec<PathBuf>)> {
    let python = python(&place.root)?.context("onnxruntime is not to be had here")?;
    let mut models = Vec::new();
    for source in sources {
        let target = source.with_extension("mapped.onnx");
        if !data_of(&target).exists() {
            eprintln!("optimising {}", source.display());
            let status = std::process::Command::new(&python)
                .arg(script(&place.root))
                .arg("prepare")
                .args([source, &target])
                .status()?;
            anyhow::ensure!(status.success(), "optimising ended with {status}");
        }
        models.push(target);
    }
    Ok((python, models))
}

fn data_of(model: &Path) -> PathBuf {
    let mut name = model.as_os_str().to_owned();
    name.push(".data");
    PathBuf::from(name)
}

/// Times of each task without a limit, and what a process has beside models.
pub fn times(place: &Place, models: &Models, command: &Command) -> Result<Prepared> {
    eprintln!("times without a limit");
    let ours = alone(place, models, Way::Ours, command)?;
    let ort = match &models.mapped {
        Ok(_) => alone(place, models, Way::Pages, command),
        Err(why) => Err(anyhow::anyhow!("{why}")),
    };
    let mut prepared = Prepared {
        whole_bytes: models.whole_bytes.clone(),
        ours_ms: usual_ms(&ours),
        ort_ms: None,
        ort_mapped_bytes: 0,
        process_bytes: PROCESS_BYTES,
        ort_missing: None,
        place: crate::setting::place()?,
    };
    match ort {
        Ok(heard) => {
            let own_bytes = heard.start.as_ref().and_then(|start| start.beside_bytes);
            let own_bytes = own_bytes.context("onnxruntime did not tell its memory")?;
            prepared.ort_ms = Some(usual_ms(&heard));
            prepared.process_bytes = (own_bytes + WAVER_BYTES).div_ceil(1 << 20) << 20;
            if let Ok((_, mapped)) = &models.mapped {
                for model in mapped {
                    prepared.ort_mapped_bytes += std::fs::metadata(data_of(model))?.len();
                }
            }
        }
        Err(error) => prepared.ort_missing = Some(format!("{error:#}")),
    }
    Ok(prepared)
}

fn alone(place: &Place, models: &Models, way: Way, command: &Command) -> Result<Heard> {
    let name = format!("{}-alone", way.name());
    let heard = listen(place, command, None, models.spec(place, way), &name)?;
    match &heard.outcome {
        Outcome::Ended => Ok(heard),
        other => bail!("{name}: {other:?}"),
    }
}

/// The median, which other work on the machine moves least.
fn usual_ms(heard: &Heard) -> Vec<f64> {
    let of = |task: usize| {
        let own = heard.jobs.iter().filter(|done| done.task == task);
        let times: Vec<f64> = own.map(|done| done.ended_ns as f64 / 1e6).collect();
        median(&times)
    };
    (0..TASKS.len()).map(of).collect()
}
