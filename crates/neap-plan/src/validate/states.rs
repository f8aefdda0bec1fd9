//! States: buffers that survive runs. Each has a home in a file, and nobody else is there. One whose home is in a state file
//! is in memory from the beginning of each run to its end; one whose home is in the spill file comes and goes, which
//! [`super::stays`] proves.

use super::spaces::{aligned, inside};
use crate::{
    Area, BLOCK_BYTES, BufferId, ExecutionPlan as Plan, SpaceKind, State, Violation, Workload,
};

/// Every state has one home, and no other buffer has.
pub(super) fn check_states(w: &Workload, plan: &Plan) -> Result<(), Violation> {
    let wrong = |buffer: BufferId, why| {
        Err(Violation::State {
            buffer: buffer.0,
            why,
        })
    };
    let mut listed = plan.states.iter().map(|s| s.buffer);
    for &buffer in &w.states {
        if listed.next() != Some(buffer) {
            return wrong(buffer, "it has no home, or they are out of order");
        }
    }
    if let Some(buffer) = listed.next() {
        return wrong(buffer, "it has a home and is no state");
    }
    for state in &plan.states {
        let what = || format!("the home of buffer {}", state.buffer.0);
        aligned(what, state.home, BLOCK_BYTES)?;
        let streams = plan.streaming_home(state.buffer).is_some();
        let kind = match streams {
            true => SpaceKind::Spill,
            false => SpaceKind::State,
        };
        inside(plan, what, state.home, bytes_of(w, state), kind)?;
        let mut stores = plan.stores.iter().filter(|s| s.buffer == state.buffer);
        match streams {
            true if stores.any(|s| s.to != state.home) => {
                return wrong(state.buffer, "it is stored elsewhere than in its home");
            }
            true => {}
            false if stores.next().is_some() || !plan.returns_of(state.buffer).is_empty() => {
                return wrong(state.buffer, "it leaves memory during a run");
            }
            false => {}
        }
    }
    let streaming = plan.states.iter();
    let streaming = streaming.filter(|s| plan.streaming_home(s.buffer).is_some());
    for state in streaming {
        let home = state.home.area(bytes_of(w, state));
        let mut others = plan.stores.iter().filter(|s| s.buffer != state.buffer);
        if others.any(|s| s.to.area(s.bytes).overlaps(home)) {
            return wrong(state.buffer, "something else is stored in its home");
        }
    }
    let mut homes: Vec<(Area, BufferId)> = Vec::with_capacity(plan.states.len());
    homes.extend(
        plan.states
            .iter()
            .map(|s| (s.home.area(bytes_of(w, s)), s.buffer)),
    );
    homes.sort_unstable_by_key(|(area, _)| (area.space, area.range.begin));
    match homes.windows(2).find(|pair| pair[0].0.overlaps(pair[1].0)) {
        Some(pair) => wrong(pair[1].1, "its home overlaps another"),
        None => Ok(()),
    }
}

fn bytes_of(w: &Workload, state: &State) -> u64 {
    w.buffers[state.buffer.index()].bytes
}
