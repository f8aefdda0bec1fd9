//! Sessions of one model with several budgets, in one process: each runs for a slot of time when it is its turn.

use super::rates::Moved;
use crate::worker::sample;
use anyhow::{Context, Result};
use neap_plan::{ExecutionPlan, LaneId, Timeline, Workload};
use neap_sim::CostProfile;
use neaptide::{Model, OpenOptions, Plan, RunOptions, Session};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, Instant};

/// Numbers of runs in a slot, whatever time it is meant to take.
const RUNS: RangeInclusive<u32> = 2..=60;

/// The first of a slot finds loads done that began long before, and is not counted.
const WARMUP_RUNS: usize = 1;

/// Where the next group follows within so long, its being handed over is part of what the one before takes.
const TURNAROUND_NS: u64 = 60_000;

/// A session, and what it runs.
pub struct Subject {
    pub budget_bytes: Option<u64>,
    pub workload: Workload,
    pub execution: ExecutionPlan,
    pub costs: CostProfile,
    pub planned_ms: f64,
    session: Session,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    run_time: Duration,
}

/// What was seen in one turn.
pub struct Slot {
    /// Sorted.
    pub latency_ms: Vec<f64>,
    /// Medians, by step.
    pub step_ns: Vec<u64>,
    /// Where loads are handed over in groups.
    pub groups: Vec<Moved>,
}

impl Slot {
    pub fn median_ms(&self) -> f64 {
        self.latency_ms[self.latency_ms.len() / 2]
    }

    /// What a run takes beside its steps, where it waits for nothing.
    pub fn between_ns(&self) -> u64 {
        let steps_ns: u64 = self.step_ns.iter().sum();
        ((self.median_ms() * 1e6) as u64).saturating_sub(steps_ns)
    }
}

impl Subject {
    pub fn open(
        model: &Path,
        open: &OpenOptions,
        plan: Plan,
        options: &RunOptions,
    ) -> Result<Subject> {
        let model = Model::open(model, open, &mut |_| {})?;
        let inputs = model.inputs().iter().map(|i| sample(&i.ty)).collect();
        let (workload, execution) = (plan.workload().clone(), plan.execution().clone());
        let (costs, prediction) = (plan.costs.clone(), plan.prediction);
        let budget_bytes = plan.budget_bytes;
        let session = model.into_session(plan, options)?;
        let outputs = session.outputs().iter().map(|o| vec![0; o.len_bytes()]);
        let mut subject = Subject {
            budget_bytes,
            workload,
            execution,
            costs,
            planned_ms: prediction.latency_ns as f64 / 1e6,
            inputs,
            outputs: outputs.collect(),
            session,
            run_time: Duration::MAX,
        };
        for _ in 0..WARMUP_RUNS + 1 {
            let started = Instant::now();
            subject.run()?;
            subject.run_time = subject.run_time.min(started.elapsed());
        }
        Ok(subject)
    }

    fn run(&mut self) -> Result<()> {
        let inputs: Vec<&[u8]> = self.inputs.iter().map(Vec::as_slice).collect();
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(Vec::as_mut_slice).collect();
        Ok(self.session.run(&inputs, &mut outputs)?)
    }

    /// Its turn, for about so long.
    pub fn slot(&mut self, time: Duration) -> Result<Slot> {
        for _ in 0..WARMUP_RUNS {
            self.run()?;
        }
        self.recorded(time, RUNS)
    }

    /// So many runs as fit into the time, within bounds, and one before them that is not counted.
    pub fn recorded(&mut self, time: Duration, bounds: RangeInclusive<u32>) -> Result<Slot> {
        let runs = time.as_nanos() / self.run_time.as_nanos().max(1);
        let runs = (runs as u32).clamp(*bounds.start(), *bounds.end()) as usize;
        // The first run of a recording lacks the loads that began before it.
        self.session.record_timeline(runs + 1);
        for _ in 0..=runs {
            self.run()?;
        }
        let timeline = self.session.timeline().context("no timeline")?;
        let mut latency_ms: Vec<f64> = (timeline.runs.iter().skip(1))
            .map(|run| run.latency_ns() as f64 / 1e6)
            .collect();
        latency_ms.sort_by(f64::total_cmp);
        Ok(Slot {
            latency_ms,
            step_ns: self.step_times(timeline),
            groups: self.groups(timeline),
        })
    }

    fn step_times(&self, timeline: &Timeline) -> Vec<u64> {
        let runs = timeline.runs.len();
        let mut times = vec![vec![0; runs]; self.workload.steps.len()];
        for span in timeline.spans.iter().filter(|s| s.lane == LaneId::COMPUTE) {
            let step = self.execution.computes[span.action as usize].step;
            times[step.index()][span.run as usize] += span.end_ns - span.start_ns;
        }
        times
            .iter_mut()
            .map(|of_runs| {
                let of_runs = &mut of_runs[1..];
                of_runs.sort_unstable();
                of_runs[of_runs.len() / 2]
            })
            .collect()
    }

    /// Loads that were on their way together: the next group is handed over when all of one are there.
    fn groups(&self, timeline: &Timeline) -> Vec<Moved> {
        if self.execution.group_bytes == 0 {
            return Vec::new();
        }
        let mut groups: Vec<(u64, u64, u64)> = Vec::new();
        let loads = timeline.spans.iter().filter(|s| s.lane == LaneId::LOAD);
        for load in loads.filter(|s| s.run > 0) {
            let bytes = self.execution.loads[load.action as usize].bytes;
            match groups.last_mut() {
                Some((_, end, sum)) if load.start_ns < *end => {
                    *end = load.end_ns.max(*end);
                    *sum += bytes;
                }
                _ => groups.push((load.start_ns, load.end_ns, bytes)),
            }
        }
        // The last one may lack loads that came after the recording.
        let pairs = groups.windows(2).map(|pair| (pair[0], pair[1].0));
        pairs
            .map(|((start, end, bytes), next)| {
                let follows = next <= end + TURNAROUND_NS;
                let ns = if follows { next - start } else { end - start };
                (bytes as f64, ns as f64)
            })
            .collect()
    }
}
