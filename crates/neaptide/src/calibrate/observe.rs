//! Runs a plan a few times and tells its steps apart: how long each computed, and what was being loaded
//! meanwhile.

use crate::error::Result;
use crate::model::Model;
use crate::options::RunOptions;
use crate::plan::Plan;
use crate::session::Session;
use neap_ir::{DType, TensorType};
use neap_plan::{ExecutionPlan, LaneId, Span, StepId, Timeline};
use neap_runtime::CancelToken;
use std::time::{Duration, Instant};

/// Runs before the measured ones.
const WARMUP: Duration = Duration::from_millis(150);
const LEAST_WARMUP_RUNS: usize = 2;

/// Measured for about so long, within these numbers of runs.
const MEASURE: Duration = Duration::from_millis(800);
const RUNS: std::ops::RangeInclusive<usize> = 5..=150;

/// Where the next group follows within so long, its being handed over is part of what the one before takes.
const TURNAROUND_NS: u64 = 60_000;

/// Spans recorded at a time.
const RECORD_BYTES: usize = 256 << 10;

/// One step in the runs of one plan. Times are medians over runs, the rest are means.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepSeen {
    pub computes: u32,
    pub ns: u64,
    pub loads_started: f64,
    /// Bytes that came while it computed.
    pub loaded_bytes: f64,
}

/// The runs of one plan.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub steps: Vec<StepSeen>,
    /// Medians per run.
    pub latency_ns: u64,
    pub stall_ns: u64,
    /// Between computes, without stalls: noting what has arrived.
    pub between_ns: u64,
    pub loads: u32,
    pub loaded_bytes: u64,
    /// The rate of storage while it had anything to do, over all runs.
    pub busy_bytes_per_second: f64,
    /// Loads that were handed over together, where the plan does that, over all runs.
    pub groups: Vec<Moved>,
}

/// Bytes, and the time from handing them over to seeing that all of them are there; or to handing over
/// the next, where that follows at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Moved {
    pub bytes: u64,
    pub ns: u64,
}

/// What each run is given.
pub(super) struct Given<'a> {
    /// In the model's order: small numbers that every operator takes.
    inputs: Vec<Vec<u8>>,
    /// Ends it early.
    cancel: &'a CancelToken,
}

impl<'a> Given<'a> {
    pub(super) fn to(model: &Model, cancel: &'a CancelToken) -> Given<'a> {
        Given {
            inputs: model.inputs().iter().map(|i| sample(&i.ty)).collect(),
            cancel,
        }
    }
}

/// Opens a session for the plan and runs it.
pub(super) fn observe(
    model: Model,
    plan: Plan,
    options: &RunOptions,
    given: &Given,
) -> Result<Seen> {
    let execution = plan.execution().clone();
    let steps = plan.workload().steps.len();
    let mut session = model.into_session(plan, options)?;
    let mut runner = Runner::new(&mut session, given);
    let started = Instant::now();
    let mut run_ns = u64::MAX;
    let mut runs = 0;
    while runs < LEAST_WARMUP_RUNS || started.elapsed() < WARMUP {
        run_ns = run_ns.min(runner.run()?);
        runs += 1;
    }
    let wanted = (MEASURE.as_nanos() as u64 / run_ns.max(1)) as usize;
    let wanted = wanted.clamp(*RUNS.start(), *RUNS.end());
    let spans = (execution.computes.len() + execution.loads.len()).max(1);
    let batch = (RECORD_BYTES / (spans * size_of::<Span>())).clamp(2, wanted.max(2));
    let mut collected = Collected::new(&execution, steps, wanted + batch);
    while collected.runs() < wanted {
        runner.session.record_timeline(batch);
        for _ in 0..batch {
            runner.run()?;
        }
        if let Some(timeline) = runner.session.timeline() {
            collected.add(&execution, timeline);
        }
    }
    Ok(collected.finish())
}

/// A session with its inputs and outputs.
struct Runner<'a> {
    session: &'a mut Session,
    inputs: Vec<&'a [u8]>,
    cancel: &'a CancelToken,
    outputs: Vec<Vec<u8>>,
}

impl<'a> Runner<'a> {
    fn new(session: &'a mut Session, given: &'a Given) -> Runner<'a> {
        let outputs = session.outputs().iter().map(|o| vec![0; o.len_bytes()]);
        Runner {
            outputs: outputs.collect(),
            inputs: given.inputs.iter().map(Vec::as_slice).collect(),
            cancel: given.cancel,
            session,
        }
    }

    fn run(&mut self) -> Result<u64> {
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(Vec::as_mut_slice).collect();
        let started = Instant::now();
        (self.session).run_unless(self.cancel, &self.inputs, &mut outputs)?;
        Ok(started.elapsed().as_nanos() as u64)
    }
}

/// Samples of all runs.
struct Collected {
    seen: Seen,
    /// By step, its time in each run.
    step_ns: Vec<Vec<u64>>,
    latency_ns: Vec<u64>,
    stall_ns: Vec<u64>,
    between_ns: Vec<u64>,
    busy_ns: u64,
    busy_bytes: u64,
}

impl Collected {
    fn new(plan: &ExecutionPlan, steps: usize, runs: usize) -> Collected {
        let mut seen = Seen {
            steps: vec![StepSeen::default(); steps],
            loads: plan.loads.len() as u32,
            loaded_bytes: plan.loads.iter().map(|l| l.bytes).sum(),
            ..Seen::default()
        };
        for compute in &plan.computes {
            seen.steps[compute.step.index()].computes += 1;
        }
        let samples = || Vec::with_capacity(runs);
        Collected {
            seen,
            step_ns: (0..steps).map(|_| samples()).collect(),
            latency_ns: samples(),
            stall_ns: samples(),
            between_ns: samples(),
            busy_ns: 0,
            busy_bytes: 0,
        }
    }

    fn runs(&self) -> usize {
        self.latency_ns.len()
    }

    /// All runs of a recording but the first, whose first loads began before it.
    fn add(&mut self, plan: &ExecutionPlan, timeline: &Timeline) {
        let of = |span: &Span| plan.computes.get(span.action as usize).map(|c| c.step);
        let computes: Vec<&Span> = timeline
            .spans
            .iter()
            .filter(|s| s.lane == LaneId::COMPUTE && s.run > 0)
            .collect();
        for (run, timing) in timeline.runs.iter().enumerate().skip(1) {
            let spans = computes.iter().filter(|s| s.run as usize == run);
            let mut sums = vec![0u64; self.step_ns.len()];
            let mut waited_ns = 0;
            for span in spans {
                waited_ns += span.start_ns - span.ready_ns;
                if let Some(step) = of(span) {
                    sums[step.index()] += span.end_ns - span.start_ns;
                }
            }
            for (samples, sum) in self.step_ns.iter_mut().zip(sums) {
                samples.push(sum);
            }
            self.latency_ns.push(timing.latency_ns());
            self.stall_ns.push(timing.stall_ns);
            self.between_ns
                .push(waited_ns.saturating_sub(timing.stall_ns));
        }
        let Some(begin_ns) = computes.first().map(|s| s.start_ns) else {
            return;
        };
        let mut busy_until_ns = begin_ns;
        let mut group: Option<(u64, Moved)> = None;
        for load in timeline.spans.iter().filter(|s| s.lane == LaneId::LOAD) {
            let Some(bytes) = plan.loads.get(load.action as usize).map(|l| l.bytes) else {
                continue;
            };
            if load.end_ns <= begin_ns || load.start_ns < begin_ns {
                continue;
            }
            self.busy_bytes += bytes;
            self.busy_ns += load.end_ns.saturating_sub(busy_until_ns.max(load.start_ns));
            if plan.group_bytes > 0 {
                // The next one is handed over when all of this are there.
                let (begun_ns, moved) = match group {
                    Some((begun_ns, moved)) if load.start_ns < begun_ns + moved.ns => {
                        (begun_ns, moved)
                    }
                    before => {
                        self.seen.groups.extend(before.map(|(begun_ns, moved)| {
                            let until_next_ns = load.start_ns - begun_ns;
                            let follows = until_next_ns <= moved.ns + TURNAROUND_NS;
                            let ns = if follows { until_next_ns } else { moved.ns };
                            Moved { ns, ..moved }
                        }));
                        (load.start_ns, Moved { bytes: 0, ns: 0 })
                    }
                };
                let moved = Moved {
                    bytes: moved.bytes + bytes,
                    ns: moved.ns.max(load.end_ns.saturating_sub(begun_ns)),
                };
                group = Some((begun_ns, moved));
            }
            busy_until_ns = busy_until_ns.max(load.end_ns);
            self.overlap(&computes, load, bytes, of);
        }
        // The last one may still lack loads that come after the recording.
    }

    /// Which computes ran while the load came.
    fn overlap(
        &mut self,
        computes: &[&Span],
        load: &Span,
        bytes: u64,
        step_of: impl Fn(&Span) -> Option<StepId>,
    ) {
        let first = computes.partition_point(|c| c.end_ns <= load.start_ns);
        let lasted = (load.end_ns - load.start_ns).max(1) as f64;
        for compute in &computes[first..] {
            if compute.start_ns >= load.end_ns {
                break;
            }
            let Some(step) = step_of(compute) else {
                continue;
            };
            let seen = &mut self.seen.steps[step.index()];
            let both = compute.end_ns.min(load.end_ns) - compute.start_ns.max(load.start_ns);
            seen.loaded_bytes += bytes as f64 * both as f64 / lasted;
            seen.loads_started += f64::from(compute.start_ns <= load.start_ns);
        }
    }

    fn finish(mut self) -> Seen {
        let runs = self.runs().max(1) as f64;
        let mut seen = self.seen;
        for (step, samples) in seen.steps.iter_mut().zip(&mut self.step_ns) {
            step.ns = median(samples);
            step.loads_started /= runs;
            step.loaded_bytes /= runs;
        }
        seen.latency_ns = median(&mut self.latency_ns);
        seen.stall_ns = median(&mut self.stall_ns);
        seen.between_ns = median(&mut self.between_ns);
        if self.busy_ns > 0 {
            seen.busy_bytes_per_second = self.busy_bytes as f64 * 1e9 / self.busy_ns as f64;
        }
        seen
    }
}

fn median(samples: &mut [u64]) -> u64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or(0)
}

/// Values between 0 and 1 where they are f32; elsewhere zeros, which are also indices of everything.
fn sample(ty: &TensorType) -> Vec<u8> {
    if ty.dtype != DType::F32 {
        return vec![0; ty.len_bytes()];
    }
    let mut state = 1u32;
    let values = (0..ty.elements()).flat_map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / 16_777_216.0).to_le_bytes()
    });
    let mut bytes = Vec::with_capacity(ty.len_bytes());
    bytes.extend(values);
    bytes
}
