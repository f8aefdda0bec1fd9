//! Resident loads: where they lie nothing else does, and they come in the order in which computes wait for them.

use super::spaces::{aligned, check_file_range, inside};
use crate::{Area, BLOCK_BYTES, ExecutionPlan as Plan, ResidentLoad, SpaceKind, Violation};

pub(super) fn check_order(plan: &Plan) -> Result<(), Violation> {
    let mut before = 0;
    for (i, r) in plan.resident.iter().enumerate() {
        if r.first < before || r.first as usize >= plan.computes.len() {
            return Err(Violation::Resident {
                load: i,
                why: "it is read out of the order in which computes need it",
            });
        }
        before = r.first;
    }
    Ok(())
}

pub(super) fn check_places(plan: &Plan) -> Result<(), Violation> {
    for (i, r) in plan.resident.iter().enumerate() {
        check_load(plan, i, r)?;
    }
    let mut areas: Vec<(Area, usize)> = Vec::with_capacity(plan.resident.len());
    areas.extend(plan.resident.iter().map(ResidentLoad::area).zip(0..));
    areas.sort_unstable_by_key(|(area, _)| (area.space, area.range.begin));
    let overlap = areas.windows(2).find(|pair| pair[0].0.overlaps(pair[1].0));
    match overlap {
        None => Ok(()),
        Some(pair) => Err(Violation::Overlap {
            a: format!("resident load {}", pair[0].1),
            b: format!("resident load {}", pair[1].1),
            time: 0,
        }),
    }
}

fn check_load(plan: &Plan, index: usize, r: &ResidentLoad) -> Result<(), Violation> {
    let what = || format!("resident load {index}");
    check_file_range(plan, what, r.from, r.bytes)?;
    aligned(what, r.to, BLOCK_BYTES)?;
    inside(plan, what, r.to, r.bytes, SpaceKind::Resident)
}
