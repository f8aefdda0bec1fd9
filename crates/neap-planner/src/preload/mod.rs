//! The preload planner: weights stream through a window of the arena, as early as space allows; what
//! memory is left keeps the weights resident whose loads are waited for longest.
//!
//! ```text
//!   budget  ┌──────────────────────────────┐
//!           │ resident weights             │   never overwritten
//!   window  ├──────────────────────────────┤
//!           │   ╱▤▤╱ ╱▤▤▤▤▤╱ ╱▤▤╱  ╱▤▤╱    │   slices, each loaded as early as its place is free
//!           │ activations, workspaces      │
//!         0 └──────────────────────────────┘ ► time, cyclic
//! ```
//!
//! How large the window is and how finely it is sliced is decided by playing candidates. The candidates
//! depend on the workload alone, each is the better the more memory lies above its window, and a larger
//! budget tries all that a smaller one does: more memory never predicts slower.

pub mod place;
pub mod residency;
mod skyline;

use neap_plan::{BLOCK_BYTES, ExecutionPlan, Workload};
use neap_sim::{CostProfile, Prediction, Simulator};

use crate::assemble::assemble;
use crate::ground::{Ground, Reserve, Tables, prefers_rows};
use crate::schedule::{Schedule, Slicing};
use place::addresses;
use residency::{Played, Window};

/// Slicings to try, from coarse to fine.
const SLICINGS: [Slicing; 4] = [
    Slicing {
        cap_bytes: 4 << 20,
        in_gap: 2,
        gather_bytes: 256 << 10,
    },
    Slicing {
        cap_bytes: 1 << 20,
        in_gap: 2,
        gather_bytes: 128 << 10,
    },
    Slicing {
        cap_bytes: 1 << 20,
        in_gap: 4,
        gather_bytes: 64 << 10,
    },
    Slicing {
        cap_bytes: 256 << 10,
        in_gap: 4,
        gather_bytes: 64 << 10,
    },
];

/// The best candidate so far.
struct Best {
    prediction: Prediction,
    plan: ExecutionPlan,
}

/// The grounds that plans of a workload stand on.
pub struct Grounds {
    /// Tightest: a plan exists in [`Ground::needed_bytes`].
    pub tight: Ground,
    /// Buffers and workspaces laid out by themselves.
    pub loose: Ground,
    /// The same with tables in memory, for workloads that have such.
    pub tables: Option<Ground>,
}

impl Grounds {
    pub fn new(w: &Workload) -> Self {
        let any_tables = w.steps.iter().any(prefers_rows);
        Self {
            tight: Ground::new(w, Tables::Rows, Reserve::SmallestSlices),
            loose: Ground::new(w, Tables::Rows, Reserve::Nothing),
            tables: any_tables.then(|| Ground::new(w, Tables::Resident, Reserve::Nothing)),
        }
    }

    /// The ground on which everything is resident.
    pub fn resident(&self) -> &Ground {
        self.tables.as_ref().unwrap_or(&self.loose)
    }

    pub fn smallest_bytes(&self) -> u64 {
        self.tight.needed_bytes.next_multiple_of(BLOCK_BYTES)
    }
}

/// The fastest plan found within `budget_bytes`, which is at least [`Grounds::smallest_bytes`].
pub fn plan(
    w: &Workload,
    grounds: &Grounds,
    budget_bytes: u64,
    costs: &CostProfile,
) -> Option<(ExecutionPlan, Prediction)> {
    let mut best: Option<Best> = None;
    let mut sim = Simulator::default();
    if let Some(all) = all_resident(w, grounds, budget_bytes, costs, &mut sim) {
        return Some(all);
    }
    for window_bytes in windows(grounds.smallest_bytes(), w.weight_bytes()) {
        if window_bytes > budget_bytes {
            break;
        }
        for ground in grounds
            .tables
            .iter()
            .chain([&grounds.loose, &grounds.tight])
        {
            for slicing in SLICINGS {
                candidate(
                    w,
                    ground,
                    window_bytes,
                    slicing,
                    budget_bytes,
                    costs,
                    &mut sim,
                    &mut best,
                );
            }
        }
    }
    best.map(|b| (b.plan, b.prediction))
}

/// Window sizes to try: the smallest that works, and ever coarser steps up from it.
fn windows(smallest_bytes: u64, weight_bytes: u64) -> impl Iterator<Item = u64> {
    let steps = std::iter::successors(Some(64u64 << 10), |s| s.checked_mul(2));
    let more = steps.take_while(move |&s| s < 2 * weight_bytes.max(1));
    std::iter::once(smallest_bytes).chain(more.map(move |s| smallest_bytes + s))
}

fn candidate(
    w: &Workload,
    ground: &Ground,
    window_bytes: u64,
    slicing: Slicing,
    budget_bytes: u64,
    costs: &CostProfile,
    sim: &mut Simulator,
    best: &mut Option<Best>,
) {
    if ground.needed_bytes > window_bytes {
        return;
    }
    let gathered = Schedule::new(w, ground, window_bytes, slicing)
        .and_then(|s| addresses(&s, ground, window_bytes, false).map(|a| (s, a)));
    let placed = gathered.or_else(|| {
        let s = Schedule::new(
            w,
            ground,
            window_bytes,
            Slicing {
                gather_bytes: 0,
                ..slicing
            },
        )?;
        addresses(&s, ground, window_bytes, false).map(|a| (s, a))
    });
    let Some((schedule, offsets)) = placed else {
        return;
    };
    let window = Window {
        w,
        ground,
        schedule: &schedule,
        offsets: &offsets,
        window_bytes,
    };
    let room_bytes = budget_bytes - window_bytes;
    let (unit_bytes, forced_bytes) = window.unit_bytes();
    if forced_bytes > room_bytes {
        return;
    }
    let loaded_at_least = (unit_bytes + forced_bytes).saturating_sub(room_bytes);
    if best
        .as_ref()
        .is_some_and(|b| costs.transfer_ns(loaded_at_least) >= b.prediction.latency_ns)
    {
        return;
    }
    let Some((resident, played)) = window.fill(room_bytes, costs, sim) else {
        return;
    };
    if best
        .as_ref()
        .is_none_or(|b| played.prediction.latency_ns < b.prediction.latency_ns)
    {
        let plan = assemble("preload", &window, &resident, &played);
        *best = Some(Best {
            prediction: played.prediction,
            plan,
        });
    }
}

/// Everything resident, if that fits: no loads, every step in one piece.
pub fn all_resident(
    w: &Workload,
    grounds: &Grounds,
    budget_bytes: u64,
    costs: &CostProfile,
    sim: &mut Simulator,
) -> Option<(ExecutionPlan, Prediction)> {
    let ground = grounds.resident();
    let schedule = Schedule::whole(w, ground);
    let offsets = vec![0; schedule.units.len()];
    let window = Window {
        w,
        ground,
        schedule: &schedule,
        offsets: &offsets,
        window_bytes: ground.fixed_bytes,
    };
    let resident = vec![true; schedule.units.len()];
    let played: Played = window.play(&resident, costs, sim);
    let plan = assemble("resident", &window, &resident, &played);
    (plan.arena_bytes <= budget_bytes).then_some((plan, played.prediction))
}
