//! SwapNet's planner (Wang et al., "SwapNet: Efficient Swapping for DNN Inference on Edge AI Devices Beyond
//! the Memory Budget", Section 6): whole layers in blocks, two blocks in memory at a time.
//!
//! ```text
//!   address
//!     ▲ ┌──────────┬───────────┬──────────┬────────┐
//!     │ │          │ 2 ▒▒▒▓▓▓▓▓▓▓▓▓ │  4 ▒▒▒▓▓▓▓▓▓▓▓▓│   ▒ comes in   ▓ executes
//!     │ │ 1 ▓▓▓▓▓▓▓▓▓▓ │ 3 ▒▒▒▒▓▓▓▓▓▓▓▓▓ │ 1 ▒▒▒▒▒▒▒▒▒▒│   even blocks at the top, odd ones at the bottom
//!     │ ├──────────┴───────────┴──────────┴────────┤
//!     │ │ activations, workspaces                  │   as all planners here place them
//!     └─┴──────────────────────────────────────────┴─► time, cyclic
//! ```
//! A block executes when all of it is in memory, and gives its memory up when all of it is executed.

mod delay;
mod layers;
mod partition;
mod place;

pub use delay::{DelayModel, Objective, evaluate};
pub use layers::{Block, Layer, create_blocks};
pub use partition::{Partition, best, dynamic, exhaustive};

use neap_plan::{BLOCK_BYTES, ExecutionPlan, Workload};
use neap_sim::{CostProfile, Prediction, Simulator};

use layers::coarsened;
use neap_planner::parts::{BaseLayout, all_resident};
use neap_planner::{BaseLayouts, OtherStrategy, PlanOptions};

/// Blocks in memory at a time: m in the paper.
const PARALLEL_BLOCKS: u64 = 2;

/// Numbers of blocks to look at, from the paper's n on.
const BLOCK_COUNTS: usize = 4;

/// With more layers than this, those that are small beside the room are joined before cutting.
const MANY_LAYERS: usize = 96;
const SMALL_SHARE: u64 = 64;

/// The lookup table: for some numbers of blocks, the best partitions within the room, by both objectives.
/// `layers` are those that its points count.
#[derive(Clone, Debug, Default)]
pub struct LookupTable {
    pub layers: Vec<Layer>,
    pub rows: Vec<Partition>,
}

impl LookupTable {
    /// The partitions worth looking at when weights may take `room_bytes`.
    pub fn new(layers: Vec<Layer>, room_bytes: u64) -> Self {
        let coarse = (layers.len() > MANY_LAYERS)
            .then(|| coarsened(&layers, room_bytes / SMALL_SHARE))
            .filter(|coarse| two_fit_bytes(coarse) <= room_bytes);
        let layers = coarse.unwrap_or(layers);
        let all_bytes: u64 = layers.iter().map(|l| l.bytes).sum();
        let blocks = (PARALLEL_BLOCKS * all_bytes).div_ceil(room_bytes.max(1)) as usize;
        let mut rows = Vec::new();
        // All in one block, which is alone.
        if all_bytes <= room_bytes {
            rows.push(Partition {
                points: Vec::new(),
                most_bytes: all_bytes,
                delay_ns: evaluate(&create_blocks(&[], &layers), Objective::Latency),
            });
        }
        for objective in [Objective::Residual, Objective::Latency] {
            for row in partition::best(&layers, room_bytes, blocks, BLOCK_COUNTS, objective) {
                if rows.iter().all(|old| old.points != row.points) {
                    rows.push(row);
                }
            }
        }
        Self { layers, rows }
    }
}

/// The model information table of a workload whose activations lie as all planners here place them.
pub fn get_layers(w: &Workload, costs: &CostProfile) -> Vec<Layer> {
    let base_layouts = BaseLayouts::new(w, PlanOptions::default(), &Default::default());
    layers_of(w, &base_layouts.loose, costs)
}

fn layers_of(w: &Workload, base_layout: &BaseLayout, costs: &CostProfile) -> Vec<Layer> {
    layers::get_layers(w, base_layout, &DelayModel::of(costs), costs)
}

/// The least in which any two neighbouring layers fit together: no partition does with less.
fn two_fit_bytes(layers: &[Layer]) -> u64 {
    let pairs = layers.windows(2).map(|pair| pair[0].bytes + pair[1].bytes);
    let single = layers.iter().map(|l| l.bytes);
    pairs.chain(single).max().unwrap_or(0)
}

fn base_bytes(base_layout: &BaseLayout) -> u64 {
    base_layout.fixed_bytes.next_multiple_of(BLOCK_BYTES)
}

/// The strategy.
pub struct Blocks;

impl OtherStrategy for Blocks {
    fn name(&self) -> &'static str {
        "blocks"
    }

    /// For which there is a partition: every layer a block.
    fn smallest_bytes(&self, w: &Workload, base_layouts: &BaseLayouts) -> u64 {
        let layers = layers_of(w, &base_layouts.loose, &CostProfile::default());
        base_bytes(&base_layouts.loose).saturating_add(two_fit_bytes(&layers))
    }

    fn plan(
        &self,
        w: &Workload,
        base_layouts: &BaseLayouts,
        budget_bytes: u64,
        costs: &CostProfile,
    ) -> Option<(ExecutionPlan, Prediction)> {
        all_resident(
            w,
            base_layouts,
            budget_bytes,
            costs,
            &mut Simulator::default(),
        )
        .or_else(|| in_blocks(w, base_layouts, budget_bytes, costs))
    }
}

/// The plan of the best partition: of those with the least delay by the paper's objectives, the one that the
/// simulator finds fastest. `None` when two neighbouring layers do not fit.
fn in_blocks(
    w: &Workload,
    base_layouts: &BaseLayouts,
    budget_bytes: u64,
    costs: &CostProfile,
) -> Option<(ExecutionPlan, Prediction)> {
    let base_layout = &base_layouts.loose;
    let arena_bytes = budget_bytes / BLOCK_BYTES * BLOCK_BYTES;
    let room_bytes = arena_bytes.checked_sub(base_bytes(base_layout))?;
    let table = LookupTable::new(layers_of(w, base_layout, costs), room_bytes);
    let mut sim = Simulator::default();
    let plans = table.rows.iter().filter_map(|row| {
        let blocks = create_blocks(&row.points, &table.layers);
        place::plan(w, base_layouts, &blocks, row.most_bytes, costs, &mut sim)
    });
    plans.min_by_key(|(_, prediction)| prediction.latency_ns)
}
