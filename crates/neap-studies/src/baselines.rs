//! What the search is compared with (SwapAdvisor, Section 6.1).

use crate::dataflow::Dataflow;
use crate::device::Device;
use crate::lanes::{Outcome, play};
use crate::swap::{Eviction, Memory, Rules, SwapPlan, SwapPlanner, SwapTask};

/// ODSwap: operators in the given order. What was used longest ago goes when there is no room; from the second
/// run on, loads are started as early as the first run's decisions allow. Its allocator does not
/// fragment, which is more than a real one can do.
///
/// `None` when some operator does not fit.
pub fn odswap(
    flow: &Dataflow,
    device: &Device,
    capacity_bytes: u64,
) -> Option<(SwapPlan, Outcome)> {
    let mut planner = SwapPlanner::default();
    let rules = Rules {
        eviction: Eviction::Lru,
        ..Rules::default()
    };
    let memory = Memory::bytes(flow, capacity_bytes, 1);
    let outcome = {
        let plan = planner.plan(&SwapTask {
            flow,
            order: &flow.given_order(),
            memory: &memory,
            device,
            rules: &rules,
        })?;
        play(flow, plan, device)?
    };
    Some((planner.take_plan(), outcome))
}
