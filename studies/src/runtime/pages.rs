//! The way in which the operating system pages: a process of onnxruntime, told what to run.

use super::clock::{Ran, Runs};
use super::tasks::THREADS;
use crate::peer::Peer;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

pub struct Pages(Peer);

impl Pages {
    /// Opens models, each with the bytes of its input.
    pub fn start(
        python: &Path,
        script: &Path,
        models: &[impl AsRef<Path>],
        inputs: &[impl AsRef<Path>],
    ) -> Result<Pages> {
        let mut command = Command::new(python);
        command.arg(script).arg("serve").arg(THREADS.to_string());
        for (model, input) in models.iter().zip(inputs) {
            command.args([model.as_ref(), input.as_ref()]);
        }
        Ok(Pages(Peer::start(&mut command)?))
    }

    /// What the process takes with all models open, where it said so.
    pub fn own_bytes(&self) -> Option<u64> {
        self.0.ready["own_bytes"].as_u64()
    }

    /// Of the process so far.
    pub fn major_faults(&mut self) -> Result<Option<u64>> {
        Ok(self.0.ask("stats")?["major_faults"].as_u64())
    }

    /// The first values of a task's outputs.
    pub fn outputs(&mut self, task: usize) -> Result<Vec<f32>> {
        let answer = self.0.ask(&format!("outputs {task}"))?;
        Ok(serde_json::from_value(answer)?)
    }
}

impl Runs for Pages {
    fn run(&mut self, task: usize, _: &[u64]) -> Result<Ran> {
        self.0.ask(&format!("run {task}"))?;
        Ok(Ran::default())
    }

    fn is_same(&mut self, task: usize) -> Result<bool> {
        let answer = self.0.ask(&format!("same {task}"))?;
        answer.as_bool().context("a yes or no")
    }
}
