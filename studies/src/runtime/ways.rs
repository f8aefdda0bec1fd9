//! The two ways that are our engine: one engine for all models, and whole models by RT-Swap's policy.

use super::clock::{Ran, Runs};
use super::figures::Start;
use super::tasks::{TASKS, THREADS};
use super::worker::Spec;
use crate::worker::sample;
use anyhow::{Context, Result, bail};
use neap_realtime::demand::{self, Verdict, Work};
use neap_realtime::{SwapCost, System, Task, theorem, volumes};
use neaptide::{
    Budget, Engine, EngineOptions, LoadOptions, LoadedModel, Model, OpenOptions, OwnProcess,
    RunOptions, Session, TensorInfo,
};
use std::sync::Arc;
use std::time::Instant;

/// Jobs are taken to be so much longer than the longest that was measured: as `neap serve` does.
const MARGIN: f64 = 0.5;

/// Runs of each task before the first release.
const MEASURED: usize = 4;

/// The paper's chunk of 32 MB for models of gigabytes, in proportion.
const CHUNK_BYTES: u64 = 1 << 20;

/// Memory of a caller, and what the first run gave.
struct Tensors {
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    first: Option<blake3::Hash>,
}

impl Tensors {
    fn of(inputs: &[TensorInfo], outputs: &[TensorInfo]) -> Tensors {
        Tensors {
            inputs: inputs.iter().map(|info| sample(&info.ty)).collect(),
            outputs: outputs
                .iter()
                .map(|info| vec![0; info.len_bytes()])
                .collect(),
            first: None,
        }
    }

    fn with<T>(&mut self, run: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> T) -> T {
        let inputs: Vec<&[u8]> = self.inputs.iter().map(Vec::as_slice).collect();
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(Vec::as_mut_slice).collect();
        run(&inputs, &mut outputs)
    }

    fn is_same(&mut self) -> bool {
        let mut hasher = blake3::Hasher::new();
        for output in &self.outputs {
            hasher.update(output);
        }
        let digest = hasher.finalize();
        *self.first.get_or_insert(digest) == digest
    }

    fn values(&self) -> Vec<f32> {
        let bytes = self.outputs.first().map_or(&[][..], Vec::as_slice);
        let values = bytes.chunks_exact(4).take(1000);
        values
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }
}

/// A way that also tells its outputs.
pub trait Tells: Runs {
    fn outputs(&mut self, task: usize) -> Result<Vec<f32>>;
}

pub struct Ours {
    engine: Engine,
    models: Vec<LoadedModel>,
    tensors: Vec<Tensors>,
}

impl Ours {
    /// Loads all models, reads what stays in memory, measures, and asks whether all deadlines hold.
    pub fn start(spec: &Spec) -> Result<(Ours, Start)> {
        let engine = Engine::new(EngineOptions {
            run: RunOptions {
                budget: spec.models_bytes.map_or(Budget::Unlimited, Budget::Engine),
                threads: THREADS,
                ..EngineOptions::default().run
            },
            host: Arc::new(OwnProcess::default()),
            ..EngineOptions::default()
        })?;
        let mut models = Vec::new();
        for ((task, path), &deadline_ns) in TASKS.iter().zip(&spec.models).zip(&spec.deadlines_ns) {
            let options = LoadOptions {
                // The largest part of a deadline that a job takes is to be as small as can be.
                weight: 1e9 / deadline_ns as f64,
                ..LoadOptions::default()
            };
            models.push(engine.load(task.name, path, &options, &mut |_| {})?);
        }
        let tensors = models.iter().map(|m| Tensors::of(m.inputs(), m.outputs()));
        let mut ours = Ours {
            tensors: tensors.collect(),
            models,
            engine,
        };
        for model in &ours.models {
            ours.engine.settle(model)?;
        }
        let started_ms = spec.running_ms();
        let longest_ns = longest(&mut ours)?;
        let ledger = ours.engine.ledger();
        let held: u64 = ledger.models.iter().map(|m| m.held_bytes).sum();
        let charged = neaptide::memory::counted_bytes(false);
        let mut start = Start {
            start_ms: started_ms,
            beside_bytes: charged.checked_sub(held + ledger.shared_bytes),
            ..Start::default()
        };
        let asked = Instant::now();
        let work: Vec<Work> = (longest_ns.iter().zip(&spec.deadlines_ns))
            .map(|(&work_ns, &deadline_ns)| Work {
                period_ns: deadline_ns,
                deadline_ns,
                work_ns,
                hold_ns: work_ns,
                tail_ns: work_ns,
            })
            .collect();
        start.admission = Some(told(demand::check(&work)));
        start.admission_us = Some(asked.elapsed().as_secs_f64() * 1e6);
        start.counted_ms = longest_ns.iter().map(|&ns| ns as f64 / 1e6).collect();
        Ok((ours, start))
    }
}

/// The longest of some runs of each task, with the margin.
fn longest(runs: &mut dyn Runs) -> Result<Vec<u64>> {
    let mut longest = vec![0u64; TASKS.len()];
    for round in 0..=MEASURED {
        for (task, longest) in longest.iter_mut().enumerate() {
            let began = Instant::now();
            runs.run(task, &vec![0; TASKS.len()])?;
            let took = began.elapsed().as_nanos() as u64;
            // The first touches memory for the first time.
            if round > 0 {
                *longest = took.max(*longest);
            }
        }
    }
    Ok(longest.into_iter().map(with_margin).collect())
}

fn with_margin(ns: u64) -> u64 {
    (ns as f64 * (1.0 + MARGIN)).ceil() as u64
}

fn told(verdict: Verdict) -> String {
    match verdict {
        Verdict::Admitted => "admitted".into(),
        Verdict::Overloaded => "refused: more work than time".into(),
        Verdict::Misses { interval_ns, .. } => {
            format!(
                "refused: a deadline may be missed within {:.0} ms",
                interval_ns as f64 / 1e6
            )
        }
        Verdict::Undecided => "refused: too near to full use".into(),
    }
}

impl Runs for Ours {
    fn run(&mut self, task: usize, _: &[u64]) -> Result<Ran> {
        let (engine, model) = (&self.engine, &self.models[task]);
        let report =
            self.tensors[task].with(|inputs, outputs| engine.run(model, inputs, outputs))?;
        Ok(Ran {
            swap_ns: 0,
            drive_ns: report.stall_ns,
            // Nobody else runs: what the engine takes to give the turn.
            choosing_ns: report.waited_ns,
        })
    }

    fn is_same(&mut self, task: usize) -> Result<bool> {
        Ok(self.tensors[task].is_same())
    }
}

impl Tells for Ours {
    fn outputs(&mut self, task: usize) -> Result<Vec<f32>> {
        Ok(self.tensors[task].values())
    }
}

/// One model of [`Whole`].
struct Seat {
    session: Session,
    /// With everything in memory.
    whole_bytes: u64,
    /// When it has given up its volume.
    least_bytes: u64,
    in_force_bytes: u64,
    tensors: Tensors,
}

/// A model is in memory as a whole before it runs; where room is lacking, the one whose next job comes last gives up its
/// volume, then the next.
pub struct Whole {
    seats: Vec<Seat>,
    models_bytes: u64,
}

impl Whole {
    /// Opens all models with as little as they need, measures what swapping takes, and chooses volumes.
    pub fn start(spec: &Spec) -> Result<(Whole, Start)> {
        let models_bytes = spec.models_bytes.context("whole models need a budget")?;
        let seats = (spec.models.iter().zip(&spec.whole_bytes)).map(|(path, &whole_bytes)| {
            let open = OpenOptions::of_own_process();
            let model = Model::open(path, &open, &mut |_| {})?;
            let bounds = model.bounds(&options(Budget::Engine(whole_bytes)));
            let least_bytes = bounds.smallest_feasible_bytes().min(whole_bytes);
            let options = options(Budget::Engine(least_bytes));
            let plan = model.plan(&options)?;
            let session = model.into_session(plan, &options)?;
            Ok(Seat {
                tensors: Tensors::of(session.inputs(), session.outputs()),
                session,
                whole_bytes,
                least_bytes,
                in_force_bytes: least_bytes,
            })
        });
        let mut whole = Whole {
            seats: seats.collect::<Result<_>>()?,
            models_bytes,
        };
        let mut start = Start::default();
        let measured = whole.measure()?;
        whole.choose(spec, &measured, &mut start)?;
        for seat in &mut whole.seats {
            seat.session.settle()?;
        }
        start.start_ms = spec.running_ms();
        Ok((whole, start))
    }

    /// Every model alone in memory as a whole, one after the other.
    fn measure(&mut self) -> Result<Vec<Measured>> {
        let mut all = Vec::new();
        for seat in &mut self.seats {
            let mut measured = Measured::default();
            // The first time is planned; the second is as it will be.
            seat.session
                .prepare(&[seat.whole_bytes, seat.least_bytes], PLANS_BYTES)?;
            for _ in 0..2 {
                let began = Instant::now();
                let adapted = seat.session.set_budget(Budget::Engine(seat.whole_bytes))?;
                seat.session.settle()?;
                measured.in_ns = began.elapsed().as_nanos() as u64;
                measured.in_bytes = adapted.read_bytes.max(1);
                for _ in 0..MEASURED {
                    let began = Instant::now();
                    seat.execute()?;
                    measured.run_ns = measured.run_ns.max(began.elapsed().as_nanos() as u64);
                }
                let began = Instant::now();
                seat.session.set_budget(Budget::Engine(seat.least_bytes))?;
                measured.out_ns = began.elapsed().as_nanos() as u64;
            }
            all.push(measured);
        }
        Ok(all)
    }

    /// The paper's volumes, or ours where its test admits none; everything where neither does.
    fn choose(&mut self, spec: &Spec, measured: &[Measured], start: &mut Start) -> Result<()> {
        let asked = Instant::now();
        let per_chunk = |ns: fn(&Measured) -> u64| {
            let each = measured.iter().map(|m| {
                let chunks = m.in_bytes as f64 / CHUNK_BYTES as f64;
                (ns(m) as f64 / chunks.max(1.0) * (1.0 + MARGIN)).ceil() as u64
            });
            each.max().unwrap_or(0)
        };
        let tasks = self.seats.iter().zip(measured).zip(&spec.deadlines_ns);
        let system = System {
            memory_bytes: self.models_bytes,
            cost: SwapCost {
                chunk_bytes: CHUNK_BYTES,
                in_ns: per_chunk(|m| m.in_ns),
                out_ns: per_chunk(|m| m.out_ns),
            },
            tasks: tasks
                .map(|((seat, measured), &period_ns)| Task {
                    wcet_ns: with_margin(measured.run_ns),
                    period_ns,
                    deadline_ns: period_ns,
                    footprint_bytes: seat.whole_bytes,
                    swappable_bytes: seat.whole_bytes - seat.least_bytes,
                })
                .collect(),
        };
        system.check()?;
        let (chunks, admission) = match volumes::smallest_for_chunk(&system) {
            Some(chunks) => {
                debug_assert!(theorem::admits(&system, &chunks));
                (chunks, "admitted by Theorem 1".to_owned())
            }
            None => match volumes::by_demand(&system) {
                Some(chunks) => (chunks, "admitted by processor demand".to_owned()),
                None => {
                    let all = (0..self.seats.len()).map(|task| system.swappable_chunks(task));
                    let all: Vec<u64> = all.collect();
                    let verdict = demand::check(&demand::of_swapping(&system, &all));
                    (all, told(verdict))
                }
            },
        };
        start.admission = Some(admission);
        start.admission_us = Some(asked.elapsed().as_secs_f64() * 1e6);
        start.counted_ms = system
            .tasks
            .iter()
            .map(|t| t.wcet_ns as f64 / 1e6)
            .collect();
        for (seat, &chunks) in self.seats.iter_mut().zip(&chunks) {
            let volume_bytes = chunks * CHUNK_BYTES;
            start.volumes_bytes.push(volume_bytes);
            seat.least_bytes = seat.least_bytes.max(seat.whole_bytes - volume_bytes);
            seat.session
                .prepare(&[seat.whole_bytes, seat.least_bytes], PLANS_BYTES)?;
            seat.session.set_budget(Budget::Engine(seat.least_bytes))?;
            seat.in_force_bytes = seat.least_bytes;
        }
        Ok(())
    }

    /// Who gives up memory for `task`; `None` where there is room.
    fn victim(&self, task: usize, next_ns: &[u64]) -> Result<Option<usize>> {
        let others = self.seats.iter().enumerate().filter(|(at, _)| *at != task);
        let taken: u64 = others.clone().map(|(_, seat)| seat.in_force_bytes).sum();
        if taken + self.seats[task].whole_bytes <= self.models_bytes {
            return Ok(None);
        }
        let can = others.filter(|(_, seat)| seat.in_force_bytes > seat.least_bytes);
        match can.max_by_key(|(at, _)| next_ns[*at]) {
            Some((at, _)) => Ok(Some(at)),
            None => bail!("{} does not fit beside what others keep", TASKS[task].name),
        }
    }
}

/// What two plans of a model take.
const PLANS_BYTES: u64 = 64 << 20;

/// What swapping and running one model took, at most.
#[derive(Default)]
struct Measured {
    in_ns: u64,
    in_bytes: u64,
    out_ns: u64,
    run_ns: u64,
}

fn options(budget: Budget) -> RunOptions {
    RunOptions {
        budget,
        threads: THREADS,
        // As an engine of several models: the same kernels in both ways.
        prepared_weights: false,
        ..EngineOptions::default().run
    }
}

impl Seat {
    fn execute(&mut self) -> Result<()> {
        let session = &mut self.session;
        Ok(self
            .tensors
            .with(|inputs, outputs| session.run(inputs, outputs))?)
    }
}

impl Runs for Whole {
    fn run(&mut self, task: usize, next_ns: &[u64]) -> Result<Ran> {
        let began = Instant::now();
        let mut choosing_ns = 0;
        loop {
            let chosen = Instant::now();
            let victim = self.victim(task, next_ns)?;
            choosing_ns += chosen.elapsed().as_nanos() as u64;
            let Some(victim) = victim else {
                break;
            };
            let seat = &mut self.seats[victim];
            seat.session.set_budget(Budget::Engine(seat.least_bytes))?;
            seat.in_force_bytes = seat.least_bytes;
        }
        let seat = &mut self.seats[task];
        let reading = Instant::now();
        if seat.in_force_bytes < seat.whole_bytes {
            seat.session.set_budget(Budget::Engine(seat.whole_bytes))?;
            seat.in_force_bytes = seat.whole_bytes;
        }
        seat.session.settle()?;
        let drive_ns = reading.elapsed().as_nanos() as u64;
        let swap_ns = began.elapsed().as_nanos() as u64 - choosing_ns;
        seat.execute()?;
        Ok(Ran {
            swap_ns,
            drive_ns,
            choosing_ns,
        })
    }

    fn is_same(&mut self, task: usize) -> Result<bool> {
        Ok(self.seats[task].tensors.is_same())
    }
}

impl Tells for Whole {
    fn outputs(&mut self, task: usize) -> Result<Vec<f32>> {
        Ok(self.seats[task].tensors.values())
    }
}
