//! Copies in the host's memory: each of other blocks, and in a place of its own.

use super::spaces::{aligned, check_file_range, inside};
use crate::{BLOCK_BYTES, ExecutionPlan as Plan, HostCopy, SpaceKind, Violation};

pub(super) fn check_copies(plan: &Plan) -> Result<(), Violation> {
    for (i, copy) in plan.copies.iter().enumerate() {
        let what = || format!("host copy {i}");
        check_file_range(plan, what, copy.from, copy.bytes)?;
        aligned(what, copy.to, BLOCK_BYTES)?;
        inside(plan, what, copy.to, copy.bytes, SpaceKind::Host)?;
    }
    let key = |copy: &HostCopy| (copy.from.offset, copy.bytes);
    let mut pairs = plan.copies.windows(2);
    if let Some(pair) = pairs.find(|pair| key(&pair[0]) >= key(&pair[1])) {
        return Err(Violation::Copy {
            offset: pair[1].from.offset,
            why: "it is listed twice, or out of order",
        });
    }
    let areas = plan.copies.iter().map(|copy| copy.to.area(copy.bytes));
    let mut areas: Vec<_> = areas.collect();
    areas.sort_unstable_by_key(|area| (area.space, area.range.begin));
    match areas.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
        None => Ok(()),
        Some(pair) => Err(Violation::Overlap {
            a: format!("the host copy at offset {}", pair[0].range.begin),
            b: format!("the one at offset {}", pair[1].range.begin),
            time: 0,
        }),
    }
}
