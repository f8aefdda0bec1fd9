//! One model of a task, in a process of its own that does what the task says.

use super::message::{Done, Opened, Order, Said};
use crate::args::{EngineArgs, OpenArgs};
use crate::budgets::schedule::parse_time;
use crate::failure::{Failure, Outcome, bad};
use crate::input::{self, ImageOptions};
use crate::report::{Adapted, Kept, Latency, median_ms, ms};
use clap::Args;
use neaptide::{Budget, Error, Model, RunOptions, Session, memory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{getpriority_process, setpriority_process};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct MemberArgs {
    model: PathBuf,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    #[arg(long)]
    runs: Option<u32>,
    #[arg(long, value_parser = parse_time)]
    duration: Option<Duration>,
    #[arg(long, default_value_t = 0)]
    warmup: u32,
    #[arg(long, value_parser = parse_time)]
    period: Option<Duration>,
    /// The budget will change: plan for those of the curve beforehand.
    #[arg(long)]
    prepare: bool,
}

/// Budgets on the curve of predicted latency.
const CURVE_POINTS: usize = 16;

/// For plans that are made beforehand.
const PREPARED_BYTES: u64 = 1 << 20;

/// Latencies are kept of so many runs, the last ones.
const KEPT_RUNS: usize = 8192;

pub fn run(args: &MemberArgs) -> Outcome {
    pin(&args.cpus)?;
    let model = crate::commands::open_again(&args.model, &args.open.options()?)?;
    memory::trim_heap();
    let inputs = input::load(
        &model,
        &input::Settings {
            given: &[],
            image: &ImageOptions::default(),
            seed: args.seed,
            decode_limit_bytes: None,
        },
    )?;
    let kept = args.runs.map_or(KEPT_RUNS, |n| n as usize).min(KEPT_RUNS);
    let prepared_bytes = if args.prepare { PREPARED_BYTES } else { 0 };
    let options = RunOptions {
        reserve_bytes: (2 * kept * size_of::<u64>()) as u64 + prepared_bytes,
        ..args.engine.options(Budget::Unlimited)
    };
    let mut orders = Orders::new();
    let mut points: Vec<u64> = Vec::new();
    let (budget_bytes, opened, mut session) = loop {
        let mut curve = |count, more: &[u64]| -> Outcome {
            let curve = model.latency_curve(&options, count, more)?;
            points.extend(curve.points.iter().map(|p| p.budget_bytes));
            say(&Said::Curve(curve))
        };
        match orders.next()? {
            Order::Curve => curve(CURVE_POINTS, &[])?,
            Order::Points(budgets) => curve(2, &budgets)?,
            Order::Open(bytes) => {
                break open(model, bytes, &options).map(|(o, s)| (bytes, o, s))?;
            }
            Order::End => return Ok(()),
            order => return Err(Failure::Internal(format!("'{order}' comes too early"))),
        }
    };
    debug_assert_eq!(budget_bytes, opened.budget_bytes);
    if args.prepare {
        // Budgets are mostly points of the curve; those next to this one come first.
        points.sort_unstable();
        points.dedup();
        points.sort_by_key(|&bytes| bytes.abs_diff(budget_bytes));
        session.prepare(&points, PREPARED_BYTES)?;
    }
    let given: Vec<&[u8]> = inputs.tensors.iter().map(Vec::as_slice).collect();
    Member {
        args,
        outputs: session
            .outputs()
            .iter()
            .map(|o| vec![0; o.len_bytes()])
            .collect(),
        session,
        inputs: given,
        latency_ns: Vec::with_capacity(kept),
        stall_ns: Vec::with_capacity(kept),
    }
    .work(&mut orders, opened)
}

fn open(model: Model, budget_bytes: u64, options: &RunOptions) -> Outcome<(Opened, Session)> {
    let options = RunOptions {
        budget: Budget::Bytes(budget_bytes),
        ..options.clone()
    };
    let plan = model.plan(&options)?;
    let opened = Opened {
        strategy: plan.execution().strategy.clone(),
        budget_bytes,
        planned_high_water_bytes: plan.high_water_bytes(),
        base_overhead_bytes: plan.base_overhead_bytes(),
        ledger: plan.ledger,
        resident_weight_bytes: plan.verdict().resident_bytes,
        loaded_bytes_per_run: plan.verdict().loaded_bytes_per_run,
        predicted_latency_ms: ms(plan.prediction.latency_ns),
    };
    Ok((opened, model.into_session(plan, &options)?))
}

struct Member<'a> {
    args: &'a MemberArgs,
    session: Session,
    inputs: Vec<&'a [u8]>,
    outputs: Vec<Vec<u8>>,
    latency_ns: Vec<u64>,
    stall_ns: Vec<u64>,
}

impl Member<'_> {
    fn work(mut self, orders: &mut Orders, opened: Opened) -> Outcome {
        let mut first_ns = 0;
        for _ in 0..self.args.warmup {
            let ns = self.once()?;
            first_ns = if first_ns == 0 { ns } else { first_ns };
        }
        say(&Said::Opened(Box::new(opened)))?;
        let began = loop {
            match orders.next()? {
                Order::Go => break Instant::now(),
                Order::End => return Ok(()),
                order => self.obey(&order, 0.0)?,
            }
        };
        let mut count = 0u64;
        let mut ended = false;
        while !ended && !self.is_over(count, began.elapsed()) {
            let stalled_ns = self.session.stats().stall_ns;
            let released = Instant::now();
            let ns = self.once()?;
            first_ns = if first_ns == 0 { ns } else { first_ns };
            let stall_ns = self.session.stats().stall_ns - stalled_ns;
            note(&mut self.latency_ns, count, ns);
            note(&mut self.stall_ns, count, stall_ns);
            count += 1;
            // The next run is not due yet; orders are.
            loop {
                let rest = self.args.period.unwrap_or_default();
                match orders.within(rest.saturating_sub(released.elapsed()))? {
                    None => break,
                    Some(Order::End) => ended = true,
                    Some(order) => self.obey(&order, began.elapsed().as_secs_f64())?,
                }
            }
        }
        say(&Said::Done(Box::new(Done {
            latency_ms: Latency::of(first_ns, &mut self.latency_ns),
            stall_ms: median_ms(&mut self.stall_ns),
            activations: match self.args.engine.keep_activations {
                true => Some(Kept::all(&mut self.session)?),
                false => None,
            },
            peak_memory_bytes: memory::peak(false).bytes,
        })))
    }

    fn once(&mut self) -> Outcome<u64> {
        let mut slots: Vec<&mut [u8]> = self.outputs.iter_mut().map(Vec::as_mut_slice).collect();
        let started = Instant::now();
        self.session.run(&self.inputs, &mut slots)?;
        Ok(started.elapsed().as_nanos() as u64)
    }

    fn is_over(&self, count: u64, now: Duration) -> bool {
        let enough = self.args.runs.is_some_and(|runs| count >= runs.into());
        let long = self.args.duration.is_some_and(|duration| now >= duration);
        // What is measured is at least one run.
        count > 0 && (enough || long)
    }

    fn obey(&mut self, order: &Order, at_s: f64) -> Outcome {
        let Order::Budget(bytes) = order else {
            return Err(Failure::Internal(format!("'{order}' comes too late")));
        };
        let first = Foremost::new();
        let done = self.session.set_budget(Budget::Bytes(*bytes));
        drop(first);
        match done {
            Ok(done) => {
                say(&Said::Adapted(Box::new(Adapted::new(at_s, &done, None))))?;
                self.session.prefetch();
                Ok(())
            }
            Err(Error::Infeasible { smallest_bytes, .. }) => say(&Said::Refused(smallest_bytes)),
            Err(error) => Err(error.into()),
        }
    }
}

/// While it lives, this thread goes before those of other models on its processors: they wait for its memory, or
/// it for a share of time. Without the right to that it changes nothing.
struct Foremost(Option<i32>);

impl Foremost {
    const MOST: i32 = -20;

    fn new() -> Foremost {
        let before = getpriority_process(None).ok();
        Foremost(before.filter(|_| setpriority_process(None, Foremost::MOST).is_ok()))
    }
}

impl Drop for Foremost {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // To go down is allowed.
            let _ = setpriority_process(None, before);
        }
    }
}

/// Of too many, the last ones.
fn note(list: &mut Vec<u64>, count: u64, value: u64) {
    if list.len() < list.capacity() {
        list.push(value);
    } else {
        let at = (count % list.len().max(1) as u64) as usize;
        list[at] = value;
    }
}

/// This process and the threads that it will start run on these processors only.
fn pin(cpus: &[usize]) -> Outcome {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus {
        if cpu >= rustix::thread::CpuSet::MAX_CPU {
            return Err(bad(format!("there is no processor {cpu}")));
        }
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|e| bad(format!("cannot run on processors {cpus:?}: {e}")))
}

fn say(said: &Said) -> Outcome {
    let line = serde_json::to_string(said)
        .map_err(|e| Failure::Internal(format!("cannot write JSON: {e}")))?;
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    // Without a task there is nothing to do.
    written.map_err(|_| Failure::ClosedPipe)
}

/// Orders as they come on standard input.
struct Orders {
    /// Read, but not yet a whole line.
    pending: Vec<u8>,
}

impl Orders {
    fn new() -> Orders {
        Orders {
            pending: Vec::with_capacity(256),
        }
    }

    /// The next order, however long that takes.
    fn next(&mut self) -> Outcome<Order> {
        loop {
            if let Some(order) = self.within(Duration::from_secs(3600))? {
                return Ok(order);
            }
        }
    }

    /// The next order, if it comes within that time.
    fn within(&mut self, time: Duration) -> Outcome<Option<Order>> {
        let until = Instant::now() + time;
        loop {
            if let Some(end) = self.pending.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                let order = line.trim().parse().map_err(Failure::Internal)?;
                return Ok(Some(order));
            }
            let rest = until.saturating_duration_since(Instant::now());
            let wait = Timespec {
                tv_sec: rest.as_secs() as i64,
                tv_nsec: rest.subsec_nanos().into(),
            };
            let stdin = std::io::stdin();
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut fds, Some(&wait)) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(Failure::Internal(format!("cannot wait for orders: {e}"))),
            }
            let mut bytes = [0; 256];
            // Not through the buffer of `Stdin`, of which `poll` knows nothing.
            match rustix::io::read(&stdin, &mut bytes) {
                Ok(0) => return Err(Failure::ClosedPipe),
                Ok(n) => self.pending.extend_from_slice(&bytes[..n]),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Failure::Internal(format!("cannot read orders: {e}"))),
            }
        }
    }
}
