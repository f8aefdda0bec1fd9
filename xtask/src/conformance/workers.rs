//! Worker processes that run tests: one that crashes costs one test, and each has its memory to itself.

use super::{Outcome, node_test};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

/// Runs the tests on all processors.
pub(super) fn run_all(
    root: &Path,
    folder: &Path,
    names: Vec<String>,
) -> Result<BTreeMap<String, Outcome>> {
    let scratch = root.join("target/conformance");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(names.into_iter());
    let next = || queue.lock().expect("no worker panics").next();
    let parts = std::thread::scope(|scope| {
        let part = |index: usize| {
            let scratch = scratch.join(index.to_string());
            scope.spawn(move || run_part(folder, &scratch, next))
        };
        let threads: Vec<_> = (0..processors).map(part).collect();
        let results = threads.into_iter().map(|t| t.join().expect("no panic"));
        results.collect::<Result<Vec<_>>>()
    })?;
    Ok(parts.into_iter().flatten().collect())
}

fn run_part(
    folder: &Path,
    scratch: &Path,
    next: impl Fn() -> Option<String>,
) -> Result<Vec<(String, Outcome)>> {
    let mut outcomes = Vec::new();
    let mut worker = None;
    while let Some(name) = next() {
        let mut alive = match worker.take() {
            Some(alive) => alive,
            None => Worker::start(folder, scratch)?,
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
    fn start(folder: &Path, scratch: &Path) -> Result<Worker> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("conformance-worker")
            .args([folder, scratch])
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

/// What a worker process does: a test's name on each line of stdin, its outcome on stdout.
pub fn serve(folder: &Path, scratch: &Path) -> Result<()> {
    for name in std::io::stdin().lines() {
        let name = name?;
        let _ = std::fs::remove_dir_all(scratch);
        std::fs::create_dir_all(scratch)?;
        let outcome = std::panic::catch_unwind(|| node_test::run(&folder.join(&name), scratch))
            .unwrap_or_else(|_| Outcome::Wrong("it panicked".into()));
        println!("{}", serde_json::to_string(&outcome)?);
    }
    Ok(())
}
