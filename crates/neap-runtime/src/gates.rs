//! Branches that are not taken: loads for their steps alone need not begin.
//!
//! ```text
//!   computes   │ gate: no │ then │ then │ else │
//!   loads        ├ then ┤  (then)   ├ else ┤         begun before the gate said no; passed over; needed
//! ```
//! A load is passed over only where every step that may read what it brings is behind one gate. What it would have brought is
//! then read by nobody, as those steps are not computed.

use neap_ir::late::LateOp;
use neap_ir::{Op, Program, ValueId};
use neap_plan::{ByteRange, ExecutionPlan, Place, SpaceId, SpaceKind, Workload};
use std::collections::HashMap;

/// Of a load that others use, too.
const NONE: u32 = u32::MAX;

/// The steps that make gates, and which gate each makes.
#[derive(Default)]
pub(crate) struct Gates(HashMap<u32, u32>);

impl Gates {
    /// The gate that a step makes.
    pub(crate) fn made_by(&self, step: usize) -> Option<u32> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(step as u32)).copied()
    }
}

/// Loads behind gates, and which gates are shut.
#[derive(Default)]
pub(crate) struct GatedLoads {
    /// By load; empty where there are no gates.
    gates: Box<[u32]>,
    /// By gate, one more than the run in which it was last shut.
    shut: Box<[u64]>,
}

impl GatedLoads {
    /// The steps behind a gate are not computed in that run.
    pub(crate) fn shut(&mut self, gate: u32, run: u64) {
        if let Some(shut) = self.shut.get_mut(gate as usize) {
            *shut = run + 1;
        }
    }

    /// Whether a load of that run is for nobody.
    pub(crate) fn is_idle(&self, load: usize, run: u64) -> bool {
        let gate = self.gates.get(load).copied().unwrap_or(NONE);
        self.shut.get(gate as usize) == Some(&(run + 1))
    }

    /// Runs are counted from 0 again.
    pub(crate) fn restart(&mut self) {
        self.shut.fill(0);
    }
}

/// The gates of a program, and the loads of its plan behind them.
pub(crate) fn find(
    program: &Program,
    workload: &Workload,
    plan: &ExecutionPlan,
) -> (Gates, GatedLoads) {
    let mut gates: HashMap<ValueId, u32> = HashMap::new();
    let mut makers = HashMap::new();
    // Of each step, the gate that it is behind.
    let mut behind = Vec::new();
    for (step, node) in program.steps.iter().enumerate() {
        let node = &program.graph.nodes[node.index()];
        let Op::Late(late) = &node.op else {
            behind.push(NONE);
            continue;
        };
        if let (LateOp::Gate { .. }, Some(Some(output))) = (&late.op, node.outputs.first()) {
            let gate = gates.len() as u32;
            gates.insert(*output, gate);
            makers.insert(step as u32, gate);
        }
        let guard = late.guard(&node.inputs).copied().flatten();
        let guard = guard.and_then(|guard| gates.get(&guard));
        behind.push(guard.copied().unwrap_or(NONE));
    }
    if gates.is_empty() {
        return Default::default();
    }
    let loads = GatedLoads {
        gates: of_loads(&behind, workload, plan),
        shut: vec![0; gates.len()].into_boxed_slice(),
    };
    (Gates(makers), loads)
}

/// A weight that is wanted at a place of memory is brought by loads that bring its part of the file there.
fn key(at: Place, file_offset: u64) -> (SpaceId, u64) {
    (at.space, at.offset.wrapping_sub(file_offset))
}

/// Of each load, the gate that all its readers are behind.
fn of_loads(behind: &[u32], workload: &Workload, plan: &ExecutionPlan) -> Box<[u32]> {
    let mut brought: HashMap<(SpaceId, u64), Vec<usize>> = HashMap::new();
    for (index, load) in plan.loads.iter().enumerate() {
        if plan.kind(load.from.space) == Some(SpaceKind::Packed) {
            let key = key(load.to, load.from.offset);
            brought.entry(key).or_default().push(index);
        }
    }
    // `None` where nobody has been seen to read it yet.
    let mut found: Vec<Option<u32>> = vec![None; plan.loads.len()];
    for compute in &plan.computes {
        let gate = behind.get(compute.step.index()).copied().unwrap_or(NONE);
        let step = &workload.steps[compute.step.index()];
        let weights = &compute.weights;
        let panels = step.panels.map(|p| p.file_range(compute.panels));
        let extents = step.extents.iter().map(|e| e.file_range());
        let table = step.rows.map(|r| r.file_range());
        let wanted: Vec<(ByteRange, Place)> = (panels.into_iter().zip(weights.panels))
            .chain(extents.zip(weights.extents.iter().copied()))
            .chain(table.into_iter().zip(weights.table))
            .collect();
        for (range, at) in wanted {
            let loads = brought.get(&key(at, range.begin));
            for &load in loads.into_iter().flatten() {
                if !plan.loads[load].file_range().overlaps(range) {
                    continue;
                }
                let common = found[load].is_none_or(|other| other == gate);
                found[load] = Some(if common { gate } else { NONE });
            }
        }
    }
    found.into_iter().map(|gate| gate.unwrap_or(NONE)).collect()
}
