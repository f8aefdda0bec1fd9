//! SwapAdvisor's search (Huang et al., ASPLOS 2020): a genetic algorithm over orders of steps and memory pools, with swaps by
//! furthest next use. What it finds is a program with its steps in that order, and a plan with the pools' addresses.

use crate::error::{Error, Result};
use neap_ir::program::Storage;
use neap_ir::{Program, ValueId};
use neap_plan::{BufferId, Workload};
use neap_planner::{Generation, Planned};
use neap_rewrite::with_steps_in_order;
use neap_sim::{CostProfile, predict};
use neap_studies::{Classes, Device, Pools, SearchOptions, Serial, execution, of_workload, search};
use std::ops::ControlFlow;

/// N_p of the paper.
const POPULATION: usize = 144;

/// A quarter of the first generation has steps in the graph's own order; the paper's orders are all random.
const GIVEN_ORDERS: usize = POPULATION / 4;

/// Steps that the search scans, genome after genome: a few seconds on one processor.
const EFFORT: u64 = 3_000_000;

/// However small a network is.
const MOST_GENERATIONS: u64 = 30;
const FEWEST_GENERATIONS: u64 = 4;

/// What the search found.
pub(super) struct Pooled {
    pub program: Program,
    pub workload: Workload,
    pub planned: Planned,
}

/// The fastest plan that the search finds for a program in `room_bytes`; where there is none, the smallest memory that its pools
/// take. `workload_of` says what a program's steps need.
pub(super) fn searched(
    program: &Program,
    workload: &Workload,
    room_bytes: u64,
    costs: &CostProfile,
    workload_of: &dyn Fn(&Program) -> Workload,
) -> Result<std::result::Result<Pooled, u64>> {
    let defect = |what: String| Error::Defect(format!("the search over pools: {what}"));
    let steps = of_workload(workload, &outputs(program), costs);
    let steps = steps.map_err(|e| defect(e.to_string()))?;
    let apart_bytes = steps.apart_bytes();
    let smallest_bytes = Pools::new(&steps.flow, 0, Classes::Monotonic).smallest_bytes();
    let smallest_bytes = smallest_bytes.saturating_add(apart_bytes);
    if room_bytes < smallest_bytes {
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
    let room = room_bytes - apart_bytes;
    let device = device(costs);
    let found = search(&steps.flow, &device, room, &options, &Serial, &mut go_on)
        .map_err(|e| defect(e.to_string()))?;
    let order: Vec<u32> = found.order.iter().map(|op| op.0).collect();
    let program = with_steps_in_order(program, &order).map_err(|e| defect(e.to_string()))?;
    let workload = workload_of(&program);
    let plan = execution(&workload, &steps, &found.plan, room_bytes)
        .ok_or_else(|| defect("a plan that cannot be run".into()))?;
    let prediction = predict(&workload, &plan, costs);
    Ok(Ok(Pooled {
        program,
        workload,
        planned: Planned { plan, prediction },
    }))
}

/// Heap that the search takes: genomes of a population and of its children, and what a scan knows.
pub(super) fn heap_bytes(steps: usize) -> u64 {
    /// An order in each genome; in the scan its tensors, their uses, and the plan.
    const STEP_BYTES: usize = 2 * POPULATION * size_of::<u32>() + 1024;
    (steps * STEP_BYTES) as u64
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
