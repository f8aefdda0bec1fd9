//! How the integer program that chooses what is computed again is asked.

use neap_planner::recompute::{Chosen, Limits, Tape, cheapest};
use neap_sim::CostProfile;

/// It is asked so often at most.
pub(super) const ROUNDS: usize = 3;

/// Memory that a plan leaves unused is no reason to ask again, up to this share.
const CLOSE: f64 = 0.02;

/// The program's choice within `target_bytes`.
pub(super) fn choice(
    tape: &Tape,
    target_bytes: u64,
    costs: &CostProfile,
    swaps: bool,
) -> Option<Chosen> {
    let limits = Limits {
        swaps,
        ..Limits::default()
    };
    cheapest(tape, target_bytes, costs, limits)
}

/// What the program is to take first: the room less what the step as it is loses to fragmentation in its `whole_bytes`.
pub(super) fn first_target(tape: &Tape, room_bytes: u64, whole_bytes: u64) -> u64 {
    let live = tape.nodes.iter().map(|n| n.live_bytes).max().unwrap_or(0);
    let lost = whole_bytes.saturating_sub(live + tape.states_bytes);
    room_bytes.saturating_sub(lost)
}

/// What it is to take next, when a choice to be made within `target_bytes` takes `whole_bytes` in truth; `None` when that is
/// close to the room. A choice that swaps fits anyway.
pub(super) fn next_target(
    target_bytes: u64,
    room_bytes: u64,
    whole_bytes: u64,
    swaps: bool,
) -> Option<u64> {
    let off = whole_bytes.abs_diff(room_bytes) as f64;
    let is_close = whole_bytes <= room_bytes && off <= CLOSE * room_bytes as f64;
    if is_close || swaps {
        return None;
    }
    Some((target_bytes + room_bytes).saturating_sub(whole_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_follow_what_plans_take() {
        // 100 of the step's 1000 bytes are fragmentation.
        let tape = Tape {
            nodes: [500, 700].map(node).to_vec(),
            states_bytes: 200,
            ..Tape::default()
        };
        assert_eq!(first_target(&tape, 800, 1000), 700);
        assert_eq!(next_target(700, 800, 850, false), Some(650));
        assert_eq!(next_target(700, 800, 600, false), Some(900));
        assert_eq!(next_target(700, 800, 790, false), None);
        assert_eq!(next_target(700, 800, 850, true), None);
    }

    fn node(live_bytes: u64) -> neap_planner::recompute::TapeNode {
        neap_planner::recompute::TapeNode {
            live_bytes,
            ..Default::default()
        }
    }
}
