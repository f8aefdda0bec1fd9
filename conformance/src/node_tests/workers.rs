//! Worker processes that run tests: one that crashes costs one test, and each has its memory to itself.

use super::{Device, Outcome, node_test};
use anyhow::{Context, Result};
use neap_vulkan::Vulkan;
use neaptide::Accelerator;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

/// Runs the tests on all processors.
pub(super) fn run_all(
    root: &Path,
    folder: &Path,
    device: Option<Device>,
    names: Vec<String>,
) -> Result<BTreeMap<String, Outcome>> {
    let scratch = root.join("target/conformance");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(names.into_iter());
    let next = || queue.lock().expect("no worker panics").next();
    let parts = std::thread::scope(|scope| {
        let part = |index: usize| {
            let scratch = scratch.join(index.to_string());
            scope.spawn(move || run_part(folder, device, &scratch, next))
        };
        let threads: Vec<_> = (0..processors).map(part).collect();
        let results = threads.into_iter().map(|t| t.join().expect("no panic"));
        results.collect::<Result<Vec<_>>>()
    })?;
    Ok(parts.into_iter().flatten().collect())
}

fn run_part(
    folder: &Path,
    device: Option<Device>,
    scratch: &Path,
    next: impl Fn() -> Option<String>,
) -> Result<Vec<(String, Outcome)>> {
    let mut outcomes = Vec::new();
    let mut worker = None;
    while let Some(name) = next() {
        let mut alive = match worker.take() {
            Some(alive) => alive,
            None => Worker::start(folder, device, scratch)?,
        };
        let outcome = match alive.run(&name) {
            Ok(outcome) => {
                worker = Some(alive);
                outcome
            }
            Err(_) => {
                let status = alive.child.wait()?;
                Outcome::Wrong(format!("the process ended: {status}"))
            }
        };
        outcomes.push((name, outcome));
    }
    Ok(outcomes)
}

struct Worker {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    fn start(folder: &Path, device: Option<Device>, scratch: &Path) -> Result<Worker> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .args([folder, scratch])
            .args(device.map(|Device::Vulkan| "--vulkan"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Worker {
            orders: child.stdin.take().context("no stdin")?,
            answers: BufReader::new(child.stdout.take().context("no stdout")?),
            child,
        })
    }

    fn run(&mut self, name: &str) -> Result<Outcome> {
        writeln!(self.orders, "{name}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// What a worker process does: a test's name on each line of stdin, its outcome on stdout. All tests share one device.
pub fn serve(folder: &Path, scratch: &Path, on_vulkan: bool) -> Result<()> {
    let device = match on_vulkan {
        true => Some(validated()?),
        false => None,
    };
    let accelerator = device.clone().map(|vulkan| vulkan as Arc<dyn Accelerator>);
    let mut told = 0;
    for name in std::io::stdin().lines() {
        let name = name?;
        let _ = std::fs::remove_dir_all(scratch);
        std::fs::create_dir_all(scratch)?;
        let run = || node_test::run(&folder.join(&name), scratch, accelerator.as_ref());
        let mut outcome = std::panic::catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|_| Outcome::Wrong("it panicked".into()));
        let messages = device.as_ref().map(|device| device.gpu().messages());
        let messages = messages.unwrap_or_default();
        if messages.len() > told {
            let new = messages[told..].join("; ");
            outcome = Outcome::Wrong(format!("validation says: {new}"));
            told = messages.len();
        }
        println!("{}", serde_json::to_string(&outcome)?);
    }
    Ok(())
}

/// With every kernel, and with the validation layer.
fn validated() -> Result<Arc<Vulkan>> {
    let options = neap_vulkan::Options {
        validate: true,
        ..neap_vulkan::Options::default()
    };
    Ok(Arc::new(Vulkan::open(&options)?))
}
