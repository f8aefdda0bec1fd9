//! Planners that only studies compare with, of the parts that the product's planner is made of.
//!
//! - `blocks`: whole layers in blocks, two at a time (SwapNet).
//! - `ondemand`: a step's weights are loaded when the step before is done.
//! - `odswap`: whole layers in order, each into the memory that was used longest ago, as early as that is free.
#![forbid(unsafe_code)]

pub mod blocks;
mod in_turn;

use neap_planner::Strategy;

pub const BLOCKS: Strategy = Strategy::Other(&blocks::Blocks);
pub const ON_DEMAND: Strategy = Strategy::Other(&in_turn::OnDemand);
pub const OD_SWAP: Strategy = Strategy::Other(&in_turn::OdSwap);

/// All of them.
pub const ALL: [Strategy; 3] = [BLOCKS, ON_DEMAND, OD_SWAP];

/// One of these, or one that is built in.
///
/// # Errors
/// When there is none of this name.
pub fn by_name(name: &str) -> Result<Strategy, String> {
    let found = ALL.into_iter().find(|strategy| strategy.name() == name);
    found.map_or_else(|| name.parse(), Ok)
}
