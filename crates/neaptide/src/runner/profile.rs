//! What runs do, written as trace events while they go on: a list that Perfetto and `chrome://tracing` open, also when
//! its end is missing.
//!
//! ```text
//!   run ─► spans in memory set aside ─► full, or another plan comes ─► the file
//! ```
//! Each plan is a process of the trace, with its lanes as threads.

use crate::budget::Bytes;
use crate::error::{Error, Result};
use crate::request::RECORDED_BYTES;
use crate::session::Session;
use crate::shapes::shape_text;
use neap_ops::Choice;
use neap_plan::Span;
use neap_plan::render::{TracePart, write_trace_events};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Runs between two writes, at most.
const MOST_RUNS: usize = 1000;

/// A trace that is being written.
pub(super) struct Profile {
    path: PathBuf,
    file: BufWriter<File>,
    began: Instant,
    is_empty: bool,
    /// Plans so far, and their runs.
    plans: u64,
    runs: usize,
    /// Runs that are recorded before they are written; 0 while nothing is recorded.
    recorded_runs: usize,
    /// Of the file, which the end reports.
    failed: Option<io::Error>,
}

impl Profile {
    /// # Errors
    /// [`Error::BadInput`] when the file cannot be made.
    pub fn create(path: &Path) -> Result<Profile> {
        let created = File::create(path).map(BufWriter::new);
        let begun = created.and_then(|mut file| file.write_all(b"[").map(|()| file));
        let file = begun.map_err(|error| of_file(path, &error))?;
        Ok(Profile {
            path: path.to_path_buf(),
            file,
            began: Instant::now(),
            is_empty: true,
            plans: 0,
            runs: 0,
            recorded_runs: 0,
            failed: None,
        })
    }

    /// Begins to record under the plan in force.
    pub fn start(&mut self, session: &mut Session) {
        let Some(plan) = &session.standing.in_force else {
            return;
        };
        let plan = plan.checked.plan();
        let actions = plan.computes.len() + 3 * plan.loads.len() + plan.stores.len();
        let run_bytes = (actions * size_of::<Span>()).max(1);
        self.recorded_runs = (RECORDED_BYTES as usize / run_bytes).clamp(1, MOST_RUNS);
        self.plans += 1;
        session.inner.record_timeline(self.recorded_runs);
    }

    /// Writes what is recorded when there is no room for another run.
    pub fn after_run(&mut self, session: &mut Session, model: &Path) {
        let runs = session.inner.timeline().map_or(0, |t| t.runs.len());
        if self.recorded_runs > 0 && runs >= self.recorded_runs {
            self.write(session, model);
        }
    }

    /// Writes what is recorded, and records no more.
    pub fn stop(&mut self, session: &mut Session, model: &Path) {
        if self.recorded_runs > 0 {
            self.write(session, model);
            self.recorded_runs = 0;
            session.inner.take_timeline();
        }
    }

    fn write(&mut self, session: &mut Session, model: &Path) {
        let now_ns = session.inner.now_ns();
        let began_ns = self.began.elapsed().as_nanos() as i64 - now_ns as i64;
        let title = title(session, model);
        let Some(plan) = &session.standing.in_force else {
            return;
        };
        let mut written = Ok(());
        session.inner.drain_timeline(|timeline| {
            let part = TracePart {
                process: self.plans,
                title: &title,
                workload: plan.checked.workload(),
                plan: plan.checked.plan(),
                timeline,
                first_run: self.runs,
                began_ns,
            };
            self.runs += timeline.runs.len();
            written = write_trace_events(&mut self.file, &part, self.is_empty, |kernel| {
                let choice = Choice::try_from(kernel).unwrap_or_default();
                choice.kernel.label().to_owned()
            });
        });
        self.is_empty = false;
        if let (Err(error), None) = (written, &self.failed) {
            self.failed = Some(error);
        }
    }

    /// Says where the file is, which is whole now.
    ///
    /// # Errors
    /// [`Error::BadInput`] when it could not be written.
    pub fn finish(mut self) -> Result<PathBuf> {
        let written = match self.failed.take() {
            Some(error) => Err(error),
            None => (self.file.write_all(b"\n]\n")).and_then(|()| self.file.flush()),
        };
        written.map_err(|error| of_file(&self.path, &error))?;
        Ok(self.path)
    }
}

/// Such as `net.onnx within 6.0 MiB, x 1x3x224x224`.
fn title(session: &Session, model: &Path) -> String {
    let name = model.file_name().unwrap_or_default().display();
    let within = session.budget_bytes();
    let within = within.map_or_else(|| "unlimited memory".into(), |b| Bytes(b).to_string());
    let shapes = session.inputs().iter();
    let shapes = shapes.map(|i| format!(", {} {}", i.name, shape_text(&i.ty.shape)));
    format!("{name} within {within}{}", shapes.collect::<String>())
}

fn of_file(path: &Path, error: &io::Error) -> Error {
    Error::BadInput(format!("cannot write {}: {error}", path.display()))
}
