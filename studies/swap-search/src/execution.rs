//! From a swap plan to an execution plan, which says the same in the words of the engine.
//!
//! ```text
//!   stay      ─► place of a buffer or workspace; of a later stay, the place that its load fills
//!   swap-in   ─► load from the spill file      waits for the same operators and stores
//!   swap-out  ─► store to it                   waits for the same operators
//!   parameter ─► state: in memory for good where it is there from the beginning, else it streams
//! ```
//! A plan of the engine must show in its waits why it is safe; swap plans leave some of them to what other waits imply.

use crate::dataflow::TensorKind;
use crate::swap::{Stay, SwapPlan};
use crate::workload::{Holder, StepFlow};
use neap_plan::{
    AfterCompute, BLOCK_BYTES, BufferId, Compute, ExecutionPlan, LaneId, Load, PanelRange, Place,
    Return, Space, State, StepId, Store, Turn, WeightsAt, Workload, whole_blocks,
};
use neap_planner::placement::size_spaces;

/// The plan of `workload`, which is the workload that `steps` was made of with its steps in the order of `swaps`. At most
/// `limit_bytes` of memory are rounded up to whole large pages.
///
/// `None` where a parameter that is there from the beginning leaves, or steps have weights from a file.
pub fn execution(
    workload: &Workload,
    steps: &StepFlow,
    swaps: &SwapPlan,
    limit_bytes: u64,
) -> Option<ExecutionPlan> {
    let has_weights =
        |s: &neap_plan::StepSpec| s.panels.is_some() || !s.extents.is_empty() || s.rows.is_some();
    if workload.steps.iter().any(has_weights) {
        return None;
    }
    let stays = Stays::of(steps, swaps);
    let (homes, states) = stays.homes(workload)?;
    let mut plan = ExecutionPlan {
        strategy: "swapadvisor".into(),
        digest: workload.digest.clone(),
        // Which kinds they are of is asked before their sizes are known.
        spaces: Space::of_host(0, 0, 0, 0),
        computes: computes(swaps),
        states,
        ..ExecutionPlan::default()
    };
    stays.place(workload, &mut plan);
    let stays = stays.by_tensor.iter().flatten();
    let mut loads = vec![Load::default(); swaps.loads.len()];
    let mut stores = vec![None; swaps.stores.len()];
    for stay in stays {
        let Holder::Buffer(buffer) = steps.holders[stay.tensor.index()] else {
            continue;
        };
        let at = Place::work(stay.offset);
        let home = homes[buffer.index()].map(Place::spill);
        let bytes = whole_blocks(workload.buffers[buffer.index()].bytes);
        if let Some(load) = stay.load {
            let after = swaps.loads[load as usize].after;
            loads[load as usize] = Load {
                from: home?,
                bytes,
                to: at,
                turn: AfterCompute {
                    run_back: 0,
                    computes: after.computes,
                }
                .load(after.stores),
            };
            plan.returns.push(Return {
                buffer,
                step: StepId(stay.first_use),
                load,
            });
        }
        if let Some(store) = stay.store {
            let after = swaps.stores[store as usize].after_computes;
            stores[store as usize] = Some(Store {
                buffer,
                from: at,
                bytes,
                to: home?,
                turn: Turn::of(LaneId::STORE).after(LaneId::COMPUTE, after),
            });
        }
    }
    plan.returns.sort_by_key(|r| (r.buffer, r.step));
    plan.loads = loads;
    plan.stores = stores.into_iter().collect::<Option<_>>()?;
    // What is stored for the next run only may go in any order: what is ready first.
    let waited = most_waited(swaps).min(plan.stores.len());
    plan.stores[waited..].sort_by_key(|s| (s.after(), s.buffer));
    size_spaces(workload, &mut plan, limit_bytes);
    Some(plan)
}

/// So many stores something waits for.
fn most_waited(swaps: &SwapPlan) -> usize {
    let of_loads = swaps.loads.iter().map(|l| l.after.stores);
    let of_computes = swaps.needs.iter().map(|n| n.stores);
    of_loads.chain(of_computes).max().unwrap_or(0) as usize
}

/// A compute that waits for a load has waited for the stores that the load waited for.
fn computes(swaps: &SwapPlan) -> Vec<Compute> {
    let mut stores = 0;
    let mut known = 0;
    let mut computes = Vec::with_capacity(swaps.needs.len());
    for (step, needs) in (0..).zip(&swaps.needs) {
        stores = stores.max(needs.stores);
        while known < needs.loads {
            stores = stores.max(swaps.loads[known as usize].after.stores);
            known += 1;
        }
        computes.push(Compute {
            step: StepId(step),
            panels: PanelRange::NONE,
            weights: WeightsAt::default(),
            turn: Turn::of(LaneId::COMPUTE)
                .after(LaneId::LOAD, known)
                .after(LaneId::STORE, stores),
        });
    }
    computes
}

/// When and where tensors are in memory.
struct Stays<'a> {
    steps: &'a StepFlow,
    /// In the order of time.
    by_tensor: Vec<Vec<Stay>>,
    /// By step as they were given: where it comes.
    position: Vec<u32>,
    end_bytes: u64,
}

impl<'a> Stays<'a> {
    fn of(steps: &'a StepFlow, swaps: &SwapPlan) -> Stays<'a> {
        let mut by_tensor = vec![Vec::new(); steps.holders.len()];
        // One that ends before it begins was given up.
        for stay in swaps.stays.iter().filter(|s| s.to > 0) {
            by_tensor[stay.tensor.index()].push(*stay);
        }
        let mut position = vec![0; swaps.order.len()];
        for (at, op) in (0..).zip(&swaps.order) {
            position[op.index()] = at;
        }
        Stays {
            steps,
            by_tensor,
            position,
            end_bytes: swaps.high_water_bytes(&steps.flow),
        }
    }

    /// Where each buffer that ever leaves lies in the spill file, and the states that stream.
    fn homes(&self, workload: &Workload) -> Option<(Vec<Option<u64>>, Vec<State>)> {
        let mut homes = vec![None; workload.buffers.len()];
        let mut states = Vec::new();
        let mut end = 0;
        for (stays, holder) in self.by_tensor.iter().zip(&self.steps.holders) {
            let Holder::Buffer(buffer) = *holder else {
                continue;
            };
            let is_state = workload.states.binary_search(&buffer).is_ok();
            let mut initial = stays.iter().filter(|s| s.initial);
            let stays_always = initial.clone().next().is_some();
            let leaves = initial.any(|s| (s.to as usize) < self.position.len());
            if stays_always && (stays.len() > 1 || leaves) {
                return None;
            }
            let moves = stays.iter().any(|s| s.load.is_some() || s.store.is_some());
            if !moves || stays_always {
                continue;
            }
            homes[buffer.index()] = Some(end);
            if is_state {
                let home = Place::spill(end);
                states.push(State { buffer, home });
            }
            end += whole_blocks(workload.buffers[buffer.index()].bytes);
        }
        Some((homes, states))
    }

    /// First places of buffers, and those of workspaces; what is apart lies above all others.
    fn place(&self, workload: &Workload, plan: &mut ExecutionPlan) {
        plan.buffers = vec![Place::work(0); workload.buffers.len()];
        plan.workspaces = vec![Place::work(0); workload.steps.len()];
        let mut end = self.end_bytes.next_multiple_of(BLOCK_BYTES);
        let tensors = self.steps.flow.tensors().iter();
        for ((stays, holder), tensor) in self.by_tensor.iter().zip(&self.steps.holders).zip(tensors)
        {
            let offset = match stays.first() {
                Some(stay) => stay.offset,
                None if tensor.kind == TensorKind::Apart => {
                    end += tensor.bytes;
                    end - tensor.bytes
                }
                None => continue,
            };
            match *holder {
                Holder::Buffer(BufferId(buffer)) => {
                    plan.buffers[buffer as usize] = Place::work(offset);
                }
                Holder::Workspace(step) => {
                    let at = self.position[step as usize] as usize;
                    plan.workspaces[at] = Place::work(offset);
                }
            }
        }
    }
}
