//! The way in which the operating system pages: a process of onnxruntime, told what to run.

use super::clock::{Ran, Runs};
use super::tasks::THREADS;
use anyhow::{Context, Result};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub struct Pages {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// What it said when all models were open.
    pub ready: Value,
}

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
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().context("stdin")?;
        let stdout = BufReader::new(child.stdout.take().context("stdout")?);
        let mut pages = Pages {
            child,
            stdin,
            stdout,
            ready: Value::Null,
        };
        pages.ready = pages.answer()?;
        Ok(pages)
    }

    pub fn ask(&mut self, question: &str) -> Result<Value> {
        writeln!(self.stdin, "{question}")?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            anyhow::bail!("onnxruntime ended: {}", self.child.wait()?);
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// The first values of a task's outputs.
    pub fn outputs(&mut self, task: usize) -> Result<Vec<f32>> {
        let answer = self.ask(&format!("outputs {task}"))?;
        Ok(serde_json::from_value(answer)?)
    }
}

impl Runs for Pages {
    fn run(&mut self, task: usize, _: &[u64]) -> Result<Ran> {
        self.ask(&format!("run {task}"))?;
        Ok(Ran::default())
    }

    fn is_same(&mut self, task: usize) -> Result<bool> {
        let answer = self.ask(&format!("same {task}"))?;
        answer.as_bool().context("a yes or no")
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
