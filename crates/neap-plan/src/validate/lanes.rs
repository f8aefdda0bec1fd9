//! What waits for what: every wait well-formed, and none in a circle, for any number of lanes.
//!
//! The proof is an order. Each lane's next action is taken when all that it waits for of its own run has been taken, until
//! nothing more can be:
//!
//! ```text
//!   load     l0  l1            l2         taken: l0 l1 c0 s0 c1 l2 c2
//!   compute          c0    c1      c2     each stands behind all that it waits for, so whatever the
//!   store               s0                lanes do, the first of these that is not complete can go on
//! ```
//! What waits for the run before stands behind all of that run, when this order is repeated run after run. If
//! something is left, its lanes wait for each other.

use crate::{ExecutionPlan as Plan, LaneId, LaneKind, SpaceKind, Turn, Violation, Wait};

/// An action of the plan: what it is, and its index among those.
#[derive(Clone, Copy)]
struct Action {
    kind: LaneKind,
    index: usize,
    turn: Turn,
}

impl Action {
    fn name(self) -> String {
        let kind = match self.kind {
            LaneKind::Load => "load",
            LaneKind::Compute => "compute",
            LaneKind::Store => "store",
        };
        format!("{kind} {}", self.index)
    }
}

/// All actions, in lanes that can always make progress.
pub(super) fn check_lanes(plan: &Plan) -> Result<(), Violation> {
    if plan.lanes.len() > LaneId::MAX.index() + 1 {
        let why = "there are more lanes than can be waited for".into();
        return Err(Violation::Lanes(why));
    }
    let lanes = by_lane(plan)?;
    for &action in lanes.iter().flatten() {
        for wait in action.turn.waits() {
            check_wait(plan, &lanes, action, wait)?;
        }
        let waits = |mut lanes: Box<dyn Iterator<Item = Wait>>| lanes.any(|w| w.count > 0);
        let computes = action.turn.waits();
        let computes = computes.filter(|w| plan.lanes.kind(w.lane) == Some(LaneKind::Compute));
        if action.kind == LaneKind::Store && !waits(Box::new(computes)) {
            return Err(wrong(action, "it waits for no compute".into()));
        }
    }
    check_order(&lanes)
}

/// The compute lane, if there is one only: time and memory are counted in its computes.
pub(super) fn compute_lane(plan: &Plan) -> Result<LaneId, Violation> {
    plan.lanes.only(LaneKind::Compute).ok_or_else(|| {
        Violation::Lanes(
            "memory can be checked for one lane of computes, and no other number".into(),
        )
    })
}

/// By load, store or compute: how many of its lane come before it. A wait of more than that waits for it.
pub(super) fn ranks(plan: &Plan, turns: impl Iterator<Item = Turn>) -> Vec<u32> {
    let mut counts = vec![0; plan.lanes.len()];
    turns
        .map(|turn| {
            let count: &mut u32 = &mut counts[turn.lane.index()];
            *count += 1;
            *count - 1
        })
        .collect()
}

fn wrong(action: Action, why: String) -> Violation {
    Violation::Wait {
        action: action.name(),
        why,
    }
}

/// The actions of each lane, in order.
fn by_lane(plan: &Plan) -> Result<Vec<Vec<Action>>, Violation> {
    let mut lanes = vec![Vec::new(); plan.lanes.len()];
    let loads = plan.loads.iter().map(|l| (LaneKind::Load, l.turn));
    let computes = plan.computes.iter().map(|c| (LaneKind::Compute, c.turn));
    let stores = plan.stores.iter().map(|s| (LaneKind::Store, s.turn));
    let loads = loads.enumerate();
    for (index, (kind, turn)) in loads.chain(computes.enumerate()).chain(stores.enumerate()) {
        let action = Action { kind, index, turn };
        if plan.lanes.kind(turn.lane) != Some(kind) {
            let why = format!("lane {} is not for it", turn.lane.0);
            return Err(wrong(action, why));
        }
        lanes[turn.lane.index()].push(action);
    }
    Ok(lanes)
}

fn check_wait(
    plan: &Plan,
    lanes: &[Vec<Action>],
    action: Action,
    wait: Wait,
) -> Result<(), Violation> {
    let (lane, count) = (wait.lane.0, wait.count as usize);
    let Some(of_lane) = lanes.get(wait.lane.index()) else {
        return Err(wrong(
            action,
            format!("it waits for lane {lane}, which there is not"),
        ));
    };
    if wait.lane == action.turn.lane {
        return Err(wrong(action, "it waits for its own lane".into()));
    }
    let most = of_lane.len();
    let why = match wait.run_back {
        0 if count <= most => return Ok(()),
        0 => format!("it waits for {count} of {most} actions of lane {lane}"),
        _ if action.kind != LaneKind::Load => "it waits for the run before its own".into(),
        _ if plan.kind(plan.loads[action.index].from.space) == Some(SpaceKind::Spill) => {
            "it reads what its own run stores, and may start in the run before".into()
        }
        // All computes of the run before: that is to wait for the run itself, which protects its outputs, too.
        _ if count < most
            || count == most && plan.lanes.kind(wait.lane) != Some(LaneKind::Compute) =>
        {
            return Ok(());
        }
        _ => format!("it waits for {count} of {most} actions of lane {lane}, a run back"),
    };
    Err(wrong(action, why))
}

/// Takes actions in an order in which each stands behind what it waits for.
fn check_order(lanes: &[Vec<Action>]) -> Result<(), Violation> {
    let mut taken = vec![0usize; lanes.len()];
    let missing = |taken: &[usize], action: &Action| {
        let mut waits = action.turn.waits().filter(|wait| wait.run_back == 0);
        waits.find(|wait| taken[wait.lane.index()] < wait.count as usize)
    };
    loop {
        let mut is_stuck = true;
        for lane in 0..lanes.len() {
            while let Some(action) = lanes[lane].get(taken[lane])
                && missing(&taken, action).is_none()
            {
                taken[lane] += 1;
                is_stuck = false;
            }
        }
        if is_stuck {
            break;
        }
    }
    for (lane, actions) in lanes.iter().enumerate() {
        if let Some(action) = actions.get(taken[lane])
            && let Some(wait) = missing(&taken, action)
        {
            let next = lanes[wait.lane.index()][taken[wait.lane.index()]];
            return Err(Violation::Deadlock {
                action: action.name(),
                other: next.name(),
            });
        }
    }
    Ok(())
}
