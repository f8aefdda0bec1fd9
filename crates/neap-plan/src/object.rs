//! Objects: what occupies memory, and what is known of each.
//!
//! ```text
//!   lifetime     run r                 run r + 1             another plan
//!   step         ├ws┤  ├ws┤            ├ws┤  ├ws┤                            workspaces
//!   steps         ├─ a ─┤ ├─ w1 ─┤      ├─ a ─┤ ├─ w1 ─┤                     activations, weights that a load brings
//!   plan         ├────────────────────────────────────┤                     prepared panels, resident weights
//!   session      ├──────────────────── s ─────────────┤ ··file·· ├── s ──►  states
//! ```
//! Weights can be had again from the packed file, which is their *home*. An activation that is stored has one in the spill
//! file, a state in either file. What has none is lost when its time is over.

use crate::{
    BLOCK_BYTES, BufferId, ExecutionPlan, Place, SpaceKind, StepId, StepRange, WORKSPACE_ALIGN,
    Workload, whole_blocks,
};

/// Which object of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectId {
    Buffer(BufferId),
    Workspace(StepId),
    /// What the load of that index brings: a slice of panels, extents, a table.
    Load(u32),
    /// What the resident load of that index brings.
    Resident(u32),
    /// A step's panels in the form that its kernel takes.
    Prepared(StepId),
}

/// How long an object is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// While these steps compute, in each run.
    Steps(StepRange),
    /// As long as the plan is in force; what follows may keep it.
    Plan,
    /// It survives runs and changes of plans.
    Session,
}

/// One object under a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub id: ObjectId,
    pub bytes: u64,
    /// A power of two.
    pub align: u64,
    /// Where it is first; an activation that returns may lie elsewhere then.
    pub at: Place,
    /// Where it can be had again from.
    pub home: Option<Place>,
    pub lifetime: Lifetime,
    /// Whether computes may write it. What may not be written is what its home holds.
    pub is_writable: bool,
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            ObjectId::Buffer(id) => write!(f, "buffer {}", id.0),
            ObjectId::Workspace(step) => write!(f, "the workspace of step {}", step.0),
            ObjectId::Load(load) => write!(f, "load {load}"),
            ObjectId::Resident(load) => write!(f, "resident load {load}"),
            ObjectId::Prepared(step) => write!(f, "the prepared panels of step {}", step.0),
        }
    }
}

/// All objects of a valid plan that take memory: buffers, workspaces, weights, prepared panels.
pub fn objects(workload: &Workload, plan: &ExecutionPlan) -> Vec<Object> {
    let mut out = buffers(workload, plan);
    let first_of = |step: usize| plan.computes.partition_point(|c| c.step.index() < step);
    for (step, (spec, &at)) in (0..).zip(workload.steps.iter().zip(&plan.workspaces)) {
        let reads_rows = plan.reads_rows(workload, first_of(step as usize));
        out.push(Object {
            id: ObjectId::Workspace(StepId(step)),
            bytes: spec.workspace_rect_bytes(reads_rows),
            align: spec.workspace_align(reads_rows),
            at,
            home: None,
            lifetime: Lifetime::Steps(StepRange::new(step, step + 1)),
            is_writable: true,
        });
    }
    out.extend(weights(workload, plan));
    out.extend(plan.prepared.iter().map(|p| Object {
        id: ObjectId::Prepared(p.step),
        bytes: workload.steps[p.step.index()].prepared_bytes(),
        align: WORKSPACE_ALIGN,
        at: p.at,
        home: None,
        lifetime: Lifetime::Plan,
        is_writable: true,
    }));
    out.retain(|object| object.bytes > 0);
    out
}

fn buffers(workload: &Workload, plan: &ExecutionPlan) -> Vec<Object> {
    let specs = (0..).zip(workload.buffers.iter().zip(&plan.buffers));
    let lives = specs.filter(|(_, (spec, _))| !spec.live.is_empty());
    let object = |(id, (spec, &at)): (u32, (&crate::BufferSpec, &Place))| {
        let id = BufferId(id);
        let store = plan.stores.iter().find(|s| s.buffer == id);
        let state = plan.states.iter().find(|s| s.buffer == id);
        let moves = store.is_some() || !plan.returns_of(id).is_empty();
        Object {
            id: ObjectId::Buffer(id),
            bytes: if moves {
                whole_blocks(spec.bytes)
            } else {
                spec.bytes
            },
            align: if moves { BLOCK_BYTES } else { spec.align },
            at,
            home: state.map(|s| s.home).or(store.map(|s| s.to)),
            lifetime: match state {
                Some(_) => Lifetime::Session,
                None => Lifetime::Steps(spec.live),
            },
            is_writable: true,
        }
    };
    lives.map(object).collect()
}

/// Weights that loads bring, and resident ones.
fn weights(workload: &Workload, plan: &ExecutionPlan) -> Vec<Object> {
    let mut used: Vec<Option<StepRange>> = vec![None; plan.loads.len()];
    let from_packed = |at: Place| plan.kind(at.space) == Some(SpaceKind::Packed);
    for (compute, load) in plan.uses(workload) {
        let step = plan.computes[compute].step.0;
        let live = used[load].get_or_insert(StepRange::new(step, step));
        live.end = live.end.max(step + 1);
    }
    let loads = (0..).zip(plan.loads.iter().zip(used));
    let loads = loads.filter(|(_, (load, _))| from_packed(load.from));
    let loads = loads.map(|(index, (load, used))| Object {
        id: ObjectId::Load(index),
        bytes: load.bytes,
        align: BLOCK_BYTES,
        at: load.to,
        home: Some(load.from),
        lifetime: Lifetime::Steps(used.unwrap_or(StepRange::new(0, 0))),
        is_writable: false,
    });
    let resident = (0..).zip(&plan.resident).map(|(index, load)| Object {
        id: ObjectId::Resident(index),
        bytes: load.bytes,
        align: BLOCK_BYTES,
        at: load.to,
        home: Some(load.from),
        lifetime: Lifetime::Plan,
        is_writable: false,
    });
    loads.chain(resident).collect()
}
