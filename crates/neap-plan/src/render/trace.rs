//! A timeline as trace events, which Perfetto and `chrome://tracing` open.
//!
//! ```text
//!   runs      │        run 0         │        run 1         │
//!   compute   │ conv1 │ wait │ conv2 │ ...
//!   load      │ conv2 [0, 4) ────────────┤      loads at one time lie in several rows
//!   load 2        │ conv3 ───────────┤
//!   store     │ stem │
//! ```

use std::collections::HashMap;
use std::io;

use serde_json::{Value, json};

use crate::{ExecutionPlan, KernelId, LaneId, PanelRange, Span, Timeline, Workload};

/// Rows ("threads") of the trace. Loads and stores take as many as are under way at once.
const RUNS: u64 = 1;
const COMPUTE: u64 = 2;
const LOADS: u64 = 100;
const STORES: u64 = 10_000;

const PROCESS: u64 = 1;

/// A timeline of a plan, as a process of a trace.
pub struct TracePart<'a> {
    /// Parts with the same number are one process.
    pub process: u64,
    /// Its name.
    pub title: &'a str,
    pub workload: &'a Workload,
    pub plan: &'a ExecutionPlan,
    pub timeline: &'a Timeline,
    /// Number of the timeline's first run, and when its clock began.
    pub first_run: usize,
    pub began_ns: i64,
}

/// Writes a timeline of this plan as one JSON object, an event a line: times in microseconds, one complete event
/// (`"ph": "X"`), a nanosecond short, per run, compute, wait, load and store. `kernel` names
/// kernels. Spans that do not belong to the plan are left out.
///
/// # Errors
/// Those of `out`.
pub fn write_trace(
    out: &mut impl io::Write,
    title: &str,
    workload: &Workload,
    plan: &ExecutionPlan,
    timeline: &Timeline,
    kernel: impl Fn(KernelId) -> String,
) -> io::Result<()> {
    let part = TracePart {
        process: PROCESS,
        title,
        workload,
        plan,
        timeline,
        first_run: 0,
        began_ns: 0,
    };
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    write_trace_events(out, &part, true, kernel)?;
    writeln!(out, "\n]}}")
}

/// Writes the same events alone, with commas between them, for a list that the caller begins and ends; `is_first` says
/// whether they are its first.
///
/// # Errors
/// Those of `out`.
pub fn write_trace_events(
    out: &mut impl io::Write,
    part: &TracePart,
    is_first: bool,
    kernel: impl Fn(KernelId) -> String,
) -> io::Result<()> {
    let mut separator = if is_first { "\n" } else { ",\n" };
    let mut emit = |event: Value| {
        write!(out, "{separator}{event}")?;
        separator = ",\n";
        Ok::<(), io::Error>(())
    };
    events(part, &kernel, &mut emit)
}

fn events(
    part: &TracePart,
    kernel: &impl Fn(KernelId) -> String,
    emit: &mut impl FnMut(Value) -> io::Result<()>,
) -> io::Result<()> {
    let TracePart {
        workload,
        plan,
        timeline,
        first_run,
        ..
    } = *part;
    let what = What {
        workload,
        plan,
        first_user: first_users(plan),
    };
    emit(part.meta("process_name", 0, part.title))?;
    emit(part.meta("thread_name", RUNS, "runs"))?;
    emit(part.meta("thread_name", COMPUTE, "compute"))?;
    for (i, run) in timeline.runs.iter().enumerate() {
        let number = first_run + i;
        let args = json!({ "run": number, "latency_us": us(run.latency_ns()), "stall_us": us(run.stall_ns) });
        emit(part.complete(
            &format!("run {number}"),
            "run",
            RUNS,
            (run.start_ns, run.end_ns),
            args,
        ))?;
    }
    for span in of(timeline, LaneId::COMPUTE) {
        if let Some((name, mut args)) = what.compute(span, kernel) {
            args["run"] = json!(first_run + span.run as usize);
            if span.start_ns > span.ready_ns {
                let wait = json!({ "run": first_run + span.run as usize, "for": name });
                let times = (span.ready_ns, span.start_ns);
                emit(part.complete("wait", "stall", COMPUTE, times, wait))?;
            }
            emit(part.complete(
                &name,
                "compute",
                COMPUTE,
                (span.start_ns, span.end_ns),
                args,
            ))?;
        }
    }
    for (lane, first_row, label) in [
        (LaneId::LOAD, LOADS, "load"),
        (LaneId::STORE, STORES, "store"),
    ] {
        let mut rows = Rows::default();
        for span in of(timeline, lane) {
            let Some((name, mut args)) = what.moved(span) else {
                continue;
            };
            args["run"] = json!(first_run + span.run as usize);
            args["waited_us"] = json!(us(span.start_ns.saturating_sub(span.ready_ns)));
            let row = first_row + rows.take(span);
            emit(part.complete(&name, label, row, (span.start_ns, span.end_ns), args))?;
        }
        for row in 0..rows.free_at_ns.len() as u64 {
            let name = match row {
                0 => label.to_owned(),
                _ => format!("{label} {}", row + 1),
            };
            emit(part.meta("thread_name", first_row + row, &name))?;
        }
    }
    Ok(())
}

/// Spans of a lane by their start.
fn of(timeline: &Timeline, lane: LaneId) -> Vec<&Span> {
    let mut spans: Vec<&Span> = timeline.spans.iter().filter(|s| s.lane == lane).collect();
    spans.sort_by_key(|s| (s.start_ns, s.run, s.action));
    spans
}

/// Events of one row do not overlap.
#[derive(Default)]
struct Rows {
    free_at_ns: Vec<u64>,
}

impl Rows {
    fn take(&mut self, span: &Span) -> u64 {
        let free = self.free_at_ns.iter().position(|&at| at <= span.start_ns);
        let row = free.unwrap_or_else(|| {
            self.free_at_ns.push(0);
            self.free_at_ns.len() - 1
        });
        self.free_at_ns[row] = span.end_ns;
        row as u64
    }
}

/// Names and figures of the plan's actions.
struct What<'a> {
    workload: &'a Workload,
    plan: &'a ExecutionPlan,
    /// The compute for which each load must be there.
    first_user: HashMap<u32, usize>,
}

impl What<'_> {
    fn compute(
        &self,
        span: &Span,
        kernel: &impl Fn(KernelId) -> String,
    ) -> Option<(String, Value)> {
        let compute = self.plan.computes.get(span.action as usize)?;
        let step = self.workload.steps.get(compute.step.index())?;
        let args = json!({
            "step": compute.step.index(),
            "panels": [compute.panels.begin, compute.panels.end],
            "kernel": kernel(step.kernel),
            "bytes": step.touched_bytes,
            "flops": step.flops,
            "workspace_bytes": step.workspace_bytes,
            "needs_loads": compute.needs(),
        });
        Some((self.compute_name(span.action as usize)?, args))
    }

    fn compute_name(&self, index: usize) -> Option<String> {
        let compute = self.plan.computes.get(index)?;
        let step = self.workload.steps.get(compute.step.index())?;
        let range = compute.panels;
        let whole = step.panels.is_none_or(|p| range == p.all()) || range == PanelRange::NONE;
        Some(match whole {
            true => step.name.clone(),
            false => format!("{} [{}, {})", step.name, range.begin, range.end),
        })
    }

    fn moved(&self, span: &Span) -> Option<(String, Value)> {
        if span.lane == LaneId::STORE {
            let store = self.plan.stores.get(span.action as usize)?;
            let buffer = self.workload.buffers.get(store.buffer.index())?;
            let args = json!({ "bytes": store.bytes, "offset": store.from.offset, "spill_offset": store.to.offset });
            return Some((buffer.name.clone(), args));
        }
        let load = self.plan.loads.get(span.action as usize)?;
        let user = self.first_user.get(&span.action);
        let name = user.and_then(|&compute| self.compute_name(compute));
        let args = json!({ "bytes": load.bytes, "offset": load.to.offset, "file_offset": load.from.offset });
        Some((
            name.unwrap_or_else(|| format!("load {}", span.action)),
            args,
        ))
    }
}

fn first_users(plan: &ExecutionPlan) -> HashMap<u32, usize> {
    let mut next = 0;
    let mut users = HashMap::new();
    for (index, compute) in plan.computes.iter().enumerate() {
        for load in next..compute.needs() {
            users.insert(load, index);
        }
        next = next.max(compute.needs());
    }
    users
}

impl TracePart<'_> {
    fn meta(&self, name: &str, row: u64, value: &str) -> Value {
        json!({ "name": name, "ph": "M", "pid": self.process, "tid": row, "args": { "name": value } })
    }

    fn complete(
        &self,
        name: &str,
        category: &str,
        row: u64,
        times_ns: (u64, u64),
        args: Value,
    ) -> Value {
        let starts_ns = (times_ns.0 as i64 + self.began_ns).max(0) as u64;
        json!({
            "name": name,
            "cat": category,
            "ph": "X",
            "pid": self.process,
            "tid": row,
            "ts": us(starts_ns),
            // Viewers drop what overlaps another event of its row, and may cut the last nanosecond off when they
            // read a fraction: neighbours leave one between them.
            "dur": us(times_ns.1.saturating_sub(times_ns.0).saturating_sub(1)),
            "args": args,
        })
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}
