//! What the search is compared with (SwapAdvisor, Section 6.1).

use crate::dataflow::{Dataflow, TensorId, TensorKind};
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

/// Parameters never leave, as in TFLMS: of the others the one used longest ago goes, and comes back when the
/// operator `ahead` places before the one that wants it begins. `None` when that does not fit.
///
/// TFLMS adds swaps to a graph, whose loads wait for an operator near the one that wants them; how near is an option
/// (Le et al. 2018, *TFLMS: large model support in TensorFlow by graph rewriting*).
pub fn resident_parameters(
    flow: &Dataflow,
    device: &Device,
    capacity_bytes: u64,
    ahead: u32,
) -> Option<Outcome> {
    let capacity_bytes = capacity_bytes.checked_sub(flow.parameter_bytes())?;
    let mut spec = flow.spec().clone();
    // Parameters that are always there need no planning: what is planned for is the rest.
    let is_planned = |t: &TensorId| flow.tensors()[t.index()].kind != TensorKind::Parameter;
    for operator in &mut spec.operators {
        operator.reads.retain(is_planned);
        operator.writes.retain(is_planned);
    }
    let rest = Dataflow::new(spec).ok()?;
    let (mut plan, _) = odswap(&rest, device, capacity_bytes)?;
    let mut wanted_at = 0;
    for (index, load) in plan.loads.iter_mut().enumerate() {
        while plan.needs.get(wanted_at)?.loads as usize <= index {
            wanted_at += 1;
        }
        let soonest = (wanted_at as u32).saturating_sub(ahead);
        load.after.computes = load.after.computes.max(soonest);
    }
    play(&rest, &plan, device)
}
