//! What the lanes need of a plan, and how far they are in it.

use crate::RuntimeError;
use neap_plan::{ExecutionPlan, LaneId, Lanes, Load, SpaceKind, Store, Turn, Wait};

/// What the lanes need of a plan.
pub(crate) struct Moves {
    /// By space.
    pub kinds: Box<[SpaceKind]>,
    pub loads: Box<[Load]>,
    pub stores: Vec<Store>,
    /// See [`ExecutionPlan::group_bytes`].
    pub group_bytes: u64,
    /// How many computes a run has.
    pub computes: u64,
}

impl Moves {
    /// Whether some loads are from the spill file.
    pub(crate) fn reads_spill(&self) -> bool {
        let kind = |load: &Load| self.kinds.get(load.from.space.index());
        let mut loads = self.loads.iter();
        loads.any(|load| kind(load) == Some(&SpaceKind::Spill))
    }

    /// Takes loads and stores from the plan, which is valid.
    pub(crate) fn take(plan: &mut ExecutionPlan) -> Moves {
        Moves {
            kinds: plan.spaces.iter().map(|space| space.kind).collect(),
            loads: std::mem::take(&mut plan.loads).into_boxed_slice(),
            stores: std::mem::take(&mut plan.stores),
            group_bytes: plan.group_bytes,
            computes: plan.computes.len() as u64,
        }
    }
}

/// Whether this runtime has the plan's lanes: the default ones. Waits among those it follows all.
pub(crate) fn check_lanes(plan: &ExecutionPlan) -> Result<(), RuntimeError> {
    match plan.lanes == Lanes::default() {
        true => Ok(()),
        false => Err(RuntimeError::Mismatch {
            what: "plan",
            reason: "it is for other lanes than one of loads, one of computes and one of stores"
                .into(),
        }),
    }
}

/// How far loads and computes are, counted from the last (re)start.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    /// Outputs of their runs taken.
    pub computes_done: u64,
    /// In a run.
    pub computes: u64,
    /// Without a gap.
    pub loads_arrived: u64,
    /// In a run.
    pub loads: u64,
}

impl Progress {
    /// Whether a wait of an action of that run for loads or computes holds.
    pub(crate) fn holds(&self, wait: Wait, run: u64) -> bool {
        let Some(run) = run.checked_sub(wait.run_back.into()) else {
            return true;
        };
        let (done, per_run) = match wait.lane {
            LaneId::LOAD => (self.loads_arrived, self.loads),
            LaneId::COMPUTE => (self.computes_done, self.computes),
            _ => return false,
        };
        run * per_run + u64::from(wait.count) <= done
    }

    /// Whether the run has begun that an action of that run with that turn waits for at least.
    pub(crate) fn has_begun(&self, turn: Turn, run: u64) -> bool {
        run.saturating_sub(turn.run_back().into()) * self.computes <= self.computes_done
    }
}
