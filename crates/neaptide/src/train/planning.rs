//! From a step and a budget to a plan.

use crate::budget::{Budget, Scope};
use crate::error::{Error, Result};
use crate::host::Host;
use crate::ledger::{Ledger, Reserve, training_heap_bytes, training_planned_bytes};
use crate::train::step::{Step, cheap_of};
use crate::train::strategy::{StepSummary, TrainStrategy};
use crate::train::tape::StepTape;
use crate::train::{OtherTrainStrategy, StepCosts, StepToPlan, TrainOptions, optimal};
use neap_compile::{Kernels, Target, tables_of, workload};
use neap_ir::{Program, ValueId};
use neap_plan::{Checked, Workload, check_workload};
use neap_planner::recompute::segments;
use neap_planner::{PlanError, PlanOptions, Planned, Planner, Strategy};

/// A plan that is valid for its program's workload.
pub(super) struct StepPlan {
    pub summary: StepSummary,
    /// `None`: the step's own.
    pub program: Option<Program>,
    pub plan: Checked,
    pub ledger: Ledger,
    pub budget_bytes: Option<u64>,
}

impl StepPlan {
    /// Once nothing is left of planning but this and `program`: how much more than its `budget` the process would take. What was
    /// estimated of it before there was a plan is measured now. A percentage is of a process that was never measured.
    pub fn measure(&mut self, program: &Program, budget: Budget, host: &dyn Host) -> u64 {
        host.trim();
        let Budget::Bytes(budget_bytes) = budget else {
            return 0;
        };
        let process_bytes = host.charged_bytes();
        self.ledger = self.ledger.planned(process_bytes, program.steps.len());
        self.summary.high_water_bytes = self.ledger.total_bytes();
        self.summary.high_water_bytes.saturating_sub(budget_bytes)
    }
}

/// Plans by the strategy and for the budget of `options`. Where a strategy leaves a choice, the plan that is predicted to take
/// the least time by `costs` is taken: they decide between plans, and no plan's results depend on them. `more_bytes` of a process were not foreseen when it was planned before.
pub(super) fn plan(
    step: &Step,
    options: &TrainOptions,
    host: &dyn Host,
    more_bytes: u64,
    costs: &StepCosts,
) -> Result<StepPlan> {
    let planning = Planning::new(step, options, host, more_bytes, costs)?;
    let found = planning.candidates(options.strategy)?;
    let smallest = found.smallest;
    let best = found.best.ok_or_else(|| {
        let budget_bytes = planning.budget_bytes.unwrap_or(u64::MAX);
        match smallest {
            Some(ledger) if options.budget == Budget::Unlimited => {
                Error::infeasible(budget_bytes, ledger).without_budget()
            }
            Some(ledger) => Error::infeasible(budget_bytes, ledger),
            None => Error::Defect("no strategy was tried".into()),
        }
    })?;
    let checked = Checked::new(best.workload, best.planned.plan).map_err(Error::bad_plan)?;
    let flops = |w: &Workload| w.steps.iter().map(|s| s.flops).sum::<u64>();
    let (workload, execution) = (checked.workload(), checked.plan());
    let program = best.program.as_ref().unwrap_or(&step.program);
    let ledger = planning.with_arena(program, checked.verdict().high_water_bytes);
    Ok(StepPlan {
        summary: StepSummary {
            strategy: best.strategy,
            high_water_bytes: ledger.total_bytes(),
            predicted_ns: best.planned.prediction.latency_ns,
            cost_source: costs.source(),
            stored_bytes: execution.stored_bytes_per_run(),
            loaded_bytes: execution.loaded_bytes_per_run(),
            recomputed_steps: (workload.steps.len()).saturating_sub(planning.kept.steps.len()),
            recomputed_flops: flops(workload).saturating_sub(flops(&planning.kept)),
            is_proven: best.is_proven,
        },
        ledger,
        program: best.program,
        plan: checked,
        budget_bytes: planning.budget_bytes,
    })
}

/// A thorough planner tries how weights would best be sliced, and here are none.
const SWAPPING: PlanOptions = PlanOptions {
    effort: neap_planner::Effort::Quick,
    static_memory: true,
    cyclic: true,
    spill: true,
    stream_states: true,
};

/// Nothing leaves memory.
const STAYING: PlanOptions = PlanOptions {
    spill: false,
    stream_states: false,
    ..SWAPPING
};

/// A program with the best plan for it.
struct Candidate {
    strategy: TrainStrategy,
    /// `None`: the step's own.
    program: Option<Program>,
    workload: Workload,
    planned: Planned,
    is_proven: bool,
}

/// What was tried so far.
#[derive(Default)]
struct Found {
    best: Option<Candidate>,
    /// Of those that have no plan within the budget.
    smallest: Option<Ledger>,
}

impl Found {
    fn best_ns(&self) -> u64 {
        let best = self.best.as_ref();
        best.map_or(u64::MAX, |b| b.planned.prediction.latency_ns)
    }
}

pub(super) struct Planning<'a> {
    step: &'a Step,
    options: &'a TrainOptions,
    /// Heap of the process around; `None` where the engine's own is counted.
    process_bytes: Option<u64>,
    pub costs: &'a StepCosts,
    /// Of the step as it is.
    kept: Workload,
    /// Memory in which all of that stays.
    pub whole_bytes: u64,
    budget_bytes: Option<u64>,
}

impl<'a> Planning<'a> {
    fn new(
        step: &'a Step,
        options: &'a TrainOptions,
        host: &dyn Host,
        more_bytes: u64,
        costs: &'a StepCosts,
    ) -> Result<Planning<'a>> {
        let process_bytes = match (options.budget.scope(), options.budget) {
            (Scope::Process, Budget::Bytes(_)) => {
                host.trim();
                Some(host.charged_bytes() + more_bytes)
            }
            // The same in every process.
            _ => None,
        };
        let mut planning = Planning {
            step,
            options,
            process_bytes,
            costs,
            kept: Workload::default(),
            whole_bytes: 0,
            budget_bytes: None,
        };
        planning.kept = planning.workload(&step.program);
        check_workload(&planning.kept)
            .map_err(|reason| Error::BadInput(format!("the step cannot be planned: {reason}")))?;
        let planner = Planner::with_options(&planning.kept, STAYING);
        let whole_bytes = planner.unlimited_high_water_bytes();
        drop(planner);
        planning.whole_bytes = whole_bytes;
        let whole = || {
            planning
                .with_arena(&step.program, whole_bytes)
                .total_bytes()
        };
        let budget_bytes = options.budget.bytes(whole);
        // Without a budget everything stays in memory, where the machine has so much.
        let of_machine = host.machine_bytes().filter(|&bytes| whole() > bytes);
        planning.budget_bytes = budget_bytes.or(of_machine);
        Ok(planning)
    }

    pub fn workload(&self, program: &Program) -> Workload {
        let target = Target {
            threads: self.options.threads,
            isa: self.options.isa,
        };
        workload(program, target, Kernels::Direct)
    }

    fn with_arena(&self, program: &Program, bytes: u64) -> Ledger {
        self.base(program).with_arena(tables_of(bytes), bytes)
    }

    /// What is taken beside the arena.
    fn base(&self, program: &Program) -> Ledger {
        let scope = self.options.budget.scope();
        let graph = &program.graph;
        let outputs = graph.outputs.iter();
        let reserve = Reserve {
            threads: self.options.threads,
            steps: 0,
            outputs_bytes: outputs.map(|&v| graph.value(v).len_bytes() as u64).sum(),
            keeps_activations: false,
            caller_bytes: self.options.reserve_bytes,
        };
        let heap_bytes = training_heap_bytes(program);
        let process_bytes = match self.process_bytes {
            // It holds the step's own program now.
            Some(bytes) => {
                bytes + heap_bytes.saturating_sub(training_heap_bytes(&self.step.program))
            }
            None => heap_bytes,
        };
        let mut base = Ledger::before_arena(scope, process_bytes, &reserve);
        // An engine's heap counts it already; a process's was measured before there was a plan.
        if scope == Scope::Process {
            base.fixed_bytes += training_planned_bytes(program);
        }
        base
    }

    /// What a process takes before the arena is there.
    fn opening_bytes(&self) -> u64 {
        let strategy = self.options.strategy;
        let searched_bytes = match strategy {
            TrainStrategy::Other(other) => other.heap_bytes(self.step.program.steps.len()),
            _ => 0,
        };
        self.step.opening_bytes(strategy.programs()) + searched_bytes
    }

    /// Memory for the arena; `None` without a limit.
    fn room_bytes(&self, program: &Program) -> Option<u64> {
        let bytes = self.budget_bytes?;
        if self.options.budget.scope() == Scope::Process && bytes < self.opening_bytes() {
            return Some(0);
        }
        let room = bytes.saturating_sub(self.base(program).total_bytes());
        Some(room - tables_of(room).min(room))
    }

    /// All that the strategy leaves to choose from.
    fn candidates(&self, strategy: TrainStrategy) -> Result<Found> {
        use TrainStrategy::{Auto, Cheap, Keep, Optimal, Other, Sqrt, Swap};
        let mut found = Found::default();
        let room = self.room_bytes(&self.step.program);
        let fits = room.is_none_or(|room| room >= self.whole_bytes);
        if strategy == Keep || fits && matches!(strategy, Auto | Swap | Optimal | Other(_)) {
            let named = if strategy == Auto { Keep } else { strategy };
            self.attempt(&mut found, named, None, STAYING)?;
            return Ok(found);
        }
        if let Other(other) = strategy {
            self.attempt_other(&mut found, other)?;
            return Ok(found);
        }
        let named = |other| if strategy == Auto { other } else { strategy };
        if matches!(strategy, Auto | Swap | Optimal) {
            self.attempt(&mut found, named(Swap), None, SWAPPING)?;
        }
        if strategy == Swap {
            return Ok(found);
        }
        let part = self.step.one_part()?;
        let program = part.as_ref().unwrap_or(&self.step.program);
        let cheap = cheap_of(program);
        if matches!(strategy, Auto | Cheap) {
            self.attempt(&mut found, named(Cheap), Some(&cheap), SWAPPING)?;
        }
        if strategy == Cheap {
            return Ok(found);
        }
        let kept = part.as_ref().map(|part| self.workload(part));
        let kept = kept.as_ref().unwrap_or(&self.kept);
        let mut tape = StepTape::of(program, kept, &self.costs.of(program, kept), &cheap);
        let by_root = tape.values(&segments(&tape.tape));
        let means = if strategy == Sqrt { STAYING } else { SWAPPING };
        self.attempt(&mut found, named(Sqrt), Some(&by_root), means)?;
        if strategy != Sqrt && found.best.is_some() {
            // A part updates nothing, so it has no moments.
            if part.is_some() {
                tape.tape.states_bytes += self.step.moments_bytes();
            }
            self.attempt_optimal(&mut found, named(Optimal), &tape)?;
        }
        Ok(found)
    }

    /// The plan of a planner from elsewhere.
    fn attempt_other(
        &self,
        found: &mut Found,
        other: &'static dyn OtherTrainStrategy,
    ) -> Result<()> {
        let program = &self.step.program;
        let planned = other.plan(&StepToPlan {
            program,
            workload: &self.kept,
            room_bytes: self.room_bytes(program).unwrap_or(u64::MAX),
            costs: self.costs.rates(),
            workload_of: &|program| self.workload(program),
        });
        let defect = |what| Error::Defect(format!("{}: {what}", other.name()));
        match planned.map_err(defect)? {
            Ok(step) => {
                found.best = Some(Candidate {
                    strategy: TrainStrategy::Other(other),
                    program: Some(step.program),
                    workload: step.workload,
                    planned: step.planned,
                    is_proven: false,
                });
            }
            Err(smallest_bytes) => {
                // Where everything fits, nothing is searched.
                let ledger = self.with_arena(program, smallest_bytes.min(self.whole_bytes));
                found.smallest = Some(ledger.named(self.opening_bytes()));
            }
        }
        Ok(())
    }

    /// The integer program's choices, without and with swapping.
    fn attempt_optimal(
        &self,
        found: &mut Found,
        strategy: TrainStrategy,
        tape: &StepTape,
    ) -> Result<()> {
        for swaps in [false, true] {
            self.attempt_choice(found, strategy, tape, swaps)?;
        }
        Ok(())
    }

    /// The program's memory knows nothing of fragmentation, so that it is asked again when the planner's says otherwise.
    fn attempt_choice(
        &self,
        found: &mut Found,
        strategy: TrainStrategy,
        tape: &StepTape,
        swaps: bool,
    ) -> Result<()> {
        let Some(room_bytes) = self.room_bytes(&self.step.program) else {
            return Ok(());
        };
        let mut target_bytes = optimal::first_target(&tape.tape, room_bytes, self.whole_bytes);
        let mut before = None;
        for _ in 0..optimal::ROUNDS {
            let chosen = optimal::choice(&tape.tape, target_bytes, self.costs.rates(), swaps);
            let Some(chosen) = chosen.filter(|c| before.as_ref() != Some(&c.dropped)) else {
                break;
            };
            let dropped = tape.values(&chosen.dropped);
            let best_ns = found.best_ns();
            let whole_bytes = self.attempt(found, strategy, Some(&dropped), SWAPPING)?;
            if let Some(best) = &mut found.best
                && best.planned.prediction.latency_ns < best_ns
            {
                best.is_proven = chosen.is_proven;
            }
            let moves = chosen.swapped_bytes > 0;
            let Some(next) = optimal::next_target(target_bytes, room_bytes, whole_bytes, moves)
            else {
                break;
            };
            target_bytes = next;
            before = Some(chosen.dropped);
        }
        Ok(())
    }

    /// Plans the step with these values computed again, and keeps the plan if it is predicted to be the fastest. Gives the memory
    /// in which nothing would have to leave.
    fn attempt(
        &self,
        found: &mut Found,
        strategy: TrainStrategy,
        dropped: Option<&[ValueId]>,
        means: PlanOptions,
    ) -> Result<u64> {
        let other = dropped.map(|d| self.step.recomputing(d)).transpose()?;
        let program = other.as_ref().unwrap_or(&self.step.program);
        let workload = self.workload(program);
        let planner = Planner::with_options(&workload, means);
        let whole_bytes = planner.unlimited_high_water_bytes();
        let room_bytes = self.room_bytes(program).unwrap_or(u64::MAX);
        let how = match room_bytes >= whole_bytes || !means.spill {
            true => Strategy::Resident,
            false => Strategy::Preload,
        };
        let costs = self.costs.of(program, &workload);
        let planned = planner.plan_below(room_bytes, how, &costs, found.best_ns());
        drop(planner);
        match planned {
            Ok(None) => {}
            Ok(Some(planned)) => {
                found.best = Some(Candidate {
                    strategy,
                    program: other,
                    workload,
                    planned,
                    is_proven: false,
                });
            }
            Err(PlanError::Infeasible { smallest_bytes }) => {
                let ledger = self.with_arena(program, smallest_bytes);
                let ledger = ledger.named(self.opening_bytes());
                let is_less = |l: &Ledger| ledger.total_bytes() < l.total_bytes();
                if found.smallest.as_ref().is_none_or(is_less) {
                    found.smallest = Some(ledger);
                }
            }
        }
        Ok(whole_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Embedded;
    use crate::train::step::step_of;
    use neap_autodiff::{BatchNorm, Loss};
    use neap_ir::op::{Activation, Binary, Unary};
    use neap_ir::update::Update;
    use neap_ir::{DType, Graph, Literal, Node, Op, TensorType, infer};

    const BATCH: usize = 512;

    fn push(graph: &mut Graph, op: Op, inputs: &[ValueId]) -> ValueId {
        let types: Vec<_> = inputs.iter().map(|&v| Some(graph.ty(v).clone())).collect();
        let ty = infer::output_types(&op, &types, 1).unwrap().remove(0);
        let name = format!("n{}", graph.nodes.len());
        let y = graph.add_value(name.clone(), ty);
        graph.nodes.push(Node {
            name,
            op,
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(y)],
            panels: None,
        });
        y
    }

    /// Products with matrices that widen and narrow, each with a function behind it.
    fn chain() -> Graph {
        let mut graph = Graph::default();
        let widths = [8, 96, 24, 64, 8];
        let x = graph.add_value("x", TensorType::new(DType::F32, &[BATCH, widths[0]]));
        graph.inputs = vec![x];
        let mut y = x;
        for (i, pair) in widths.windows(2).enumerate() {
            let data: Vec<f32> = (0..pair[0] * pair[1])
                .map(|k| ((k * 7 % 13) as f32 - 6.0) * 0.01)
                .collect();
            let w = Literal::from_f32(&[pair[0], pair[1]], &data);
            let w = graph.add_literal(format!("w{i}"), w);
            y = push(&mut graph, Op::MatMul, &[y, w]);
            if i < 3 {
                let square = Op::Binary(Binary::Mul);
                y = match i {
                    1 => push(&mut graph, square, &[y, y]),
                    _ => push(
                        &mut graph,
                        Op::Unary(Unary::Activation(Activation::Silu)),
                        &[y],
                    ),
                };
            }
        }
        graph.outputs = vec![y];
        graph
    }

    /// Every set of values, made again and planned in memory, beside what the integer program finds.
    #[test]
    fn no_choice_that_stays_in_memory_is_faster() {
        let options = |budget| TrainOptions {
            loss: Loss::CrossEntropy {
                class_axis: 1,
                label_smoothing: 0.0,
                ignore_index: None,
            },
            batch_norm: BatchNorm::Given,
            budget,
            strategy: TrainStrategy::Optimal,
            threads: 1,
            ..TrainOptions::default()
        };
        let sgd = Update::Sgd {
            momentum: 0.0,
            nesterov: false,
            decay: 0.0,
        };
        // Of the engine as below: a process takes more beside its arena.
        let unlimited = options(Budget::Engine(1 << 30));
        let step = step_of(chain(), 1, &unlimited, &|_, _| Some(sgd)).unwrap();
        let costs = StepCosts::default();
        let planning = Planning::new(&step, &unlimited, &Embedded, 0, &costs).unwrap();
        let cheap = cheap_of(&step.program);
        let tape = StepTape::of(&step.program, &planning.kept, costs.rates(), &cheap);
        let is_large = |v: &usize| tape.tape.values[*v].bytes >= 32 << 10;
        let large: Vec<usize> = (0..tape.tape.values.len()).filter(is_large).collect();
        assert!((6..=9).contains(&large.len()), "{large:?}");
        let mut all: Vec<(u64, u64)> = Vec::new();
        for set in 0..1usize << large.len() {
            let chosen = large.iter().enumerate();
            let chosen = chosen.filter(|(i, _)| set >> i & 1 == 1).map(|(_, &v)| v);
            let chosen: Vec<usize> = chosen.collect();
            let dropped = tape.values(&chosen);
            let mut found = Found::default();
            let what = (TrainStrategy::Sqrt, Some(&dropped[..]));
            planning
                .attempt(&mut found, what.0, what.1, STAYING)
                .unwrap();
            let best = found.best.unwrap();
            let verdict = neap_plan::validate(&best.workload, &best.planned.plan).unwrap();
            let program = best.program.as_ref().unwrap();
            let bytes = planning
                .with_arena(program, verdict.high_water_bytes)
                .total_bytes();
            all.push((best.planned.prediction.latency_ns, bytes));
        }
        let whole = all[0].1;
        let least = all.iter().map(|&(_, bytes)| bytes).min().unwrap();
        assert!(least < whole * 9 / 10, "{least} of {whole}");
        let mut again = 0;
        for share in 0..=6 {
            let bytes = least + (whole - least) * share / 6;
            let within = all.iter().filter(|&&(_, b)| b <= bytes);
            let best = within.map(|&(ns, _)| ns).min().unwrap();
            let options = options(Budget::Engine(bytes));
            let found = plan(&step, &options, &Embedded, 0, &costs).unwrap().summary;
            assert!(found.predicted_ns <= best, "{found:?}, {best} in {bytes}");
            again += u64::from(found.recomputed_steps > 0);
        }
        assert!(again > 1, "{again}");
    }
}
