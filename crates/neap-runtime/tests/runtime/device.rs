//! A device that completes computes later, under the virtual clock: the same bits by the same executor.
//!
//! It touches no operand before a job's time is over, so whatever overwrites memory too early shows in the bits.

use crate::support::{
    Model, Random, ReplacePlan, TestClock, image_model, mixed_model, skip_model, within,
};
use neap_ir::Node;
use neap_kernels::parallel::Serial;
use neap_kernels::simd::Isa;
use neap_ops::{Choice, Context, PanelSlice, TensorMut, TensorRef};
use neap_plan::ExecutionPlan;
use neap_planner::Strategy;
use neap_runtime::{Device, Job, JobError, Meanwhile, PreparedSlice, RuntimeError, Session};
use neap_store::{FaultScript, MemoryModel, RandomFaults, StoreError, VirtualClock};
use std::collections::VecDeque;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// A job with its lists, for as long as the arena and the program live.
struct Queued {
    number: u64,
    node: Node,
    choice: Choice,
    inputs: Vec<Option<TensorRef<'static>>>,
    outputs: Vec<Option<TensorMut<'static>>>,
    panels: Option<PanelSlice<'static>>,
    prepared: Option<PreparedSlice<'static>>,
    workspace: &'static mut [u8],
    end_ns: u64,
}

/// Executes jobs when their time is over, one after the other.
struct Later {
    time: VirtualClock,
    depth: usize,
    queue: VecDeque<Queued>,
    random: Random,
    /// Numbers of the jobs, counted since it was made, that fail.
    failing: Vec<u64>,
    submitted: u64,
    most_queued: usize,
}

// SAFETY: it is used by one thread at a time, and what it points to belongs to a session that moves with it.
unsafe impl Send for Later {}

impl Later {
    fn execute(job: Queued) -> Result<(), JobError> {
        let mut panels = job.panels;
        if let (Some(prepared), Some(stored)) = (job.prepared, &mut panels) {
            assert!(prepared.is_made || !prepared.bytes.is_empty());
            let count = stored.range.len();
            if !prepared.is_made {
                neap_ops::prepare_panels(
                    &job.node.op,
                    job.choice.kernel,
                    count,
                    stored.format,
                    stored.bytes,
                    prepared.bytes,
                    &Serial,
                    Isa::detect(),
                )
                .map_err(JobError::Op)?;
            }
            stored.bytes = prepared.bytes;
        }
        let mut context = Context {
            par: &Serial,
            isa: Isa::detect(),
            workspace: job.workspace,
        };
        let (inputs, outputs) = (&job.inputs, &job.outputs);
        neap_ops::execute_with(
            &job.node.op,
            job.choice,
            inputs,
            panels,
            outputs,
            &mut context,
        )
        .map_err(JobError::Op)
    }
}

impl Device for Later {
    fn name(&self) -> &'static str {
        "later"
    }

    fn most_in_flight(&self) -> usize {
        self.depth
    }

    unsafe fn submit(&mut self, number: u64, job: Job<'_>, _: Meanwhile<'_>) {
        // SAFETY: only lifetimes change. The caller keeps what the job names until it is reported; its lists, which it
        // does not keep, are copied.
        let job = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        let begin_ns = self.queue.back().map_or(self.time.now_ns(), |q| q.end_ns);
        let ns = 1_000 + self.random.below(60_000) as u64;
        self.queue.push_back(Queued {
            number,
            node: job.node.clone(),
            choice: job.choice,
            inputs: job.inputs.to_vec(),
            outputs: job.outputs.to_vec(),
            panels: job.panels,
            prepared: job.prepared,
            workspace: job.workspace,
            end_ns: begin_ns.max(self.time.now_ns()) + ns,
        });
        self.submitted += 1;
        self.most_queued = self.most_queued.max(self.queue.len());
        assert!(self.queue.len() <= self.depth);
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), JobError>)) {
        if let (true, Some(first)) = (wait, self.queue.front()) {
            self.time.advance_to_ns(first.end_ns);
        }
        while let Some(job) = self
            .queue
            .pop_front_if(|job| job.end_ns <= self.time.now_ns())
        {
            let number = job.number;
            let ordinal = self.submitted - self.queue.len() as u64;
            let result = match self.failing.contains(&ordinal) {
                true => Err(JobError::Device("it was told to fail".into())),
                false => Later::execute(job),
            };
            done(number, result);
        }
    }

    fn drain(&mut self) -> bool {
        self.queue.clear();
        true
    }
}

fn storage_model() -> MemoryModel {
    MemoryModel {
        bytes_per_second: 500_000_000,
        latency_ns: 30_000,
        depth: 4,
        piece_bytes: 16 << 10,
        max_loads: 64,
    }
}

fn open(
    model: &Model,
    plan: &ExecutionPlan,
    depth: usize,
    failing: Vec<u64>,
    faults: FaultScript,
) -> Session<TestClock> {
    let time = VirtualClock::new();
    let device = Later {
        time: time.clone(),
        depth,
        queue: VecDeque::new(),
        random: Random(depth as u64 * 77 + 5),
        failing,
        submitted: 0,
        most_queued: 0,
    };
    model.open_on(plan, Box::new(device), storage_model(), faults, time)
}

fn plans(model: &Model) -> Vec<ExecutionPlan> {
    let (least, most) = (model.smallest_bytes(), model.unlimited_bytes());
    [least, u64::midpoint(least, most), most]
        .map(|budget| model.plan(budget, Strategy::Preload))
        .into()
}

#[test]
fn computes_that_complete_later_give_the_same_bits() {
    within(LIMIT, || {
        for model in [mixed_model(3), image_model(4), skip_model(5)] {
            let expected = model.expected();
            for plan in plans(&model) {
                for depth in [1, 2, 5] {
                    let mut session =
                        open(&model, &plan, depth, Vec::new(), FaultScript::default());
                    session.record_timeline(4);
                    for _ in 0..4 {
                        assert!(model.run(&mut session).expect("runs") == expected);
                    }
                    let timeline = session.take_timeline().expect("a timeline");
                    let computes = timeline.spans.iter();
                    let computes = computes.filter(|s| s.lane == neap_plan::LaneId::COMPUTE);
                    let mut end_ns = 0;
                    for span in computes {
                        assert!(end_ns <= span.start_ns && span.start_ns <= span.end_ns);
                        end_ns = span.end_ns;
                    }
                }
            }
        }
    });
}

#[test]
fn one_plan_follows_another_on_it() {
    within(LIMIT, || {
        let model = mixed_model(6);
        let expected = model.expected();
        let plans = plans(&model);
        let mut session = open(&model, &plans[2], 3, Vec::new(), FaultScript::default());
        for plan in plans.iter().chain(plans.iter().rev()) {
            session
                .replace_plan(plan.clone(), &model.workload)
                .expect("is replaced");
            for _ in 0..2 {
                assert!(model.run(&mut session).expect("runs") == expected);
            }
            session.rest();
        }
    });
}

/// A job that fails costs its run, whatever was queued behind it, and nothing else.
#[test]
fn a_job_that_fails_costs_its_run() {
    within(LIMIT, || {
        let model = image_model(7);
        let expected = model.expected();
        let plan = model.plan(model.smallest_bytes(), Strategy::Preload);
        let mut failures = 0;
        for at in 1..=3 * plan.computes.len() as u64 {
            for depth in [1, 4] {
                let failing = vec![at, at + 1];
                let mut session = open(&model, &plan, depth, failing, FaultScript::default());
                let mut good = 0;
                for _ in 0..6 {
                    match model.run(&mut session) {
                        Ok(found) => {
                            assert!(found == expected);
                            good += 1;
                        }
                        Err(RuntimeError::Device { device, reason }) => {
                            assert_eq!(device, "later");
                            assert!(reason.contains("told to fail"), "{reason}");
                            failures += 1;
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
                assert!(good >= 4, "{good} runs went well");
            }
        }
        assert!(failures > 0);
    });
}

/// Storage that fails while computes are in flight.
#[test]
fn storage_that_fails_meanwhile_costs_runs_only() {
    within(LIMIT, || {
        let (mut good, mut bad) = (0, 0);
        for seed in 1..20 {
            let model = if seed % 2 == 0 {
                mixed_model(seed)
            } else {
                skip_model(seed)
            };
            let expected = model.expected();
            let plan = model.plan(model.smallest_bytes(), Strategy::Preload);
            let faults = FaultScript::random(RandomFaults {
                seed,
                error_per_mille: 20,
                delay_per_mille: 100,
                max_delay_ns: 2_000_000,
                ..RandomFaults::default()
            });
            let mut session = open(&model, &plan, 3, Vec::new(), faults);
            for _ in 0..8 {
                match model.run(&mut session) {
                    Ok(found) => {
                        assert!(found == expected);
                        good += 1;
                    }
                    Err(RuntimeError::Store(
                        StoreError::Read { .. } | StoreError::Write { .. },
                    )) => {
                        bad += 1;
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        }
        assert!(good > 0 && bad > 0, "{good} {bad}");
    });
}
