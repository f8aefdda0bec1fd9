//! SwapAdvisor's search (Huang et al., ASPLOS 2020): a genetic algorithm over orders of steps and memory pools, with swaps by
//! furthest next use. What it finds is a program with its steps in that order, and a plan with the pools' addresses.

use crate::{Classes, Device, Pools, SearchOptions, execution, of_workload, search};
use neap_ir::program::Storage;
use neap_ir::{Program, ValueId};
use neap_plan::BufferId;
use neap_planner::{Generation, Planned, Serial};
use neap_rewrite::with_steps_in_order;
use neap_sim::{CostProfile, predict};
use neaptide::{OtherTrainStrategy, PlannedStep, StepToPlan, TrainStrategy};
use std::ops::ControlFlow;

/// The strategy of training that this search is: it takes seconds.
pub const SWAP_ADVISOR: TrainStrategy = TrainStrategy::Other(&SwapAdvisor);

struct SwapAdvisor;

/// N_p of the paper.
const POPULATION: usize = 144;

/// A quarter of the first generation has steps in the graph's own order; the paper's orders are all random.
const GIVEN_ORDERS: usize = POPULATION / 4;

/// Steps that the search scans, genome after genome: a few seconds on one processor.
const EFFORT: u64 = 3_000_000;

/// However small a network is.
const MOST_GENERATIONS: u64 = 30;
const FEWEST_GENERATIONS: u64 = 4;

impl OtherTrainStrategy for SwapAdvisor {
    fn name(&self) -> &'static str {
        "swapadvisor"
    }

    /// Genomes of a population and of its children, and what a scan knows.
    fn heap_bytes(&self, operators: usize) -> u64 {
        /// An order in each genome; in the scan its tensors, their uses, and the plan.
        const OPERATOR_BYTES: usize = 2 * POPULATION * size_of::<u32>() + 1024;
        (operators * OPERATOR_BYTES) as u64
    }

    /// The fastest plan that the search finds; where there is none, the smallest memory that its pools take.
    fn plan(&self, step: &StepToPlan) -> Result<Result<PlannedStep, u64>, String> {
        let steps = of_workload(step.workload, &outputs(step.program), step.costs);
        let steps = steps.map_err(|e| e.to_string())?;
        let apart_bytes = steps.apart_bytes();
        let smallest_bytes = Pools::new(&steps.flow, 0, Classes::Monotonic).smallest_bytes();
        let smallest_bytes = smallest_bytes.saturating_add(apart_bytes);
        if step.room_bytes < smallest_bytes {
            return Ok(Err(smallest_bytes));
        }
        let generations = EFFORT / (POPULATION * steps.flow.operators().len().max(1)) as u64;
        let options = SearchOptions {
            population: POPULATION,
            given_orders: GIVEN_ORDERS,
            generations: generations.clamp(FEWEST_GENERATIONS, MOST_GENERATIONS) as u32,
            ..SearchOptions::default()
        };
        let mut go_on = |_: &Generation| ControlFlow::Continue(());
        let (device, room) = (device(step.costs), step.room_bytes - apart_bytes);
        let found = search(&steps.flow, &device, room, &options, &Serial, &mut go_on);
        let found = found.map_err(|e| e.to_string())?;
        let order: Vec<u32> = found.order.iter().map(|op| op.0).collect();
        let program = with_steps_in_order(step.program, &order).map_err(|e| e.to_string())?;
        let workload = (step.workload_of)(&program);
        let plan = execution(&workload, &steps, &found.plan, step.room_bytes)
            .ok_or("a plan that cannot be run")?;
        let prediction = predict(&workload, &plan, step.costs);
        Ok(Ok(PlannedStep {
            program,
            workload,
            planned: Planned { plan, prediction },
        }))
    }
}

/// The drive as the paper has a link.
fn device(costs: &CostProfile) -> Device {
    let one_way_bytes_per_second = costs.storage_bytes_per_second;
    let both_ways = costs.both_ways_bytes_per_second;
    Device {
        one_way_bytes_per_second,
        // Where it was not measured, loads and stores share what one way carries.
        both_ways_bytes_per_second: match both_ways > 0.0 {
            true => both_ways,
            false => one_way_bytes_per_second,
        },
        transfer_latency_ns: costs.request_latency_ns,
    }
}

/// The buffers that hold results of a run.
fn outputs(program: &Program) -> Vec<BufferId> {
    let buffer = |v: &ValueId| match program.storage[v.index()] {
        Storage::Buffer { buffer, .. } => Some(BufferId(buffer)),
        _ => None,
    };
    program.graph.outputs.iter().filter_map(buffer).collect()
}
