//! Plans for a device with memory of its own: nothing of it may lie idle, and the host's memory is a tier between
//! storage and the device.
//!
//! ```text
//!   storage   │ w0 │ w1 │ w2 │ w3 │ w4 │ w5 │
//!   host      │    · w1 ·    · w3 ·    · w5 │       as much as the host's budget leaves: of a cycle any part is worth
//!   device    ◄─s0─ ◄─h1─ ◄─s2─ ◄─h3─ …             the same, but storage should not be idle for long
//! ```

use crate::placement::Homes;
use neap_plan::sets::set_of;
use neap_plan::{
    BLOCK_BYTES, ByteRange, ExecutionPlan, Home, HostCopy, Load, Place, Space, SpaceId, SpaceKind,
    Workload,
};
use neap_sim::{CostProfile, predict};
use std::collections::BTreeSet;

/// The same plan with its resident weights one after the other: a device's memory is taken from end to end.
pub fn with_packed_residents(plan: &ExecutionPlan) -> ExecutionPlan {
    let mut plan = plan.clone();
    let old = Home::all_of(&plan.resident);
    let files = old.iter().map(|home| home.file).collect();
    // Without room for gaps there are none.
    let new = Homes::of(set_of(files), 0);
    let file_of = |at: Place| {
        let home = old.iter().find(|home| {
            let area = home.area();
            area.space == at.space && area.range.begin <= at.offset && at.offset < area.range.end
        })?;
        Some(home.file.begin + (at.offset - home.area().range.begin))
    };
    let moved = |at: Place| file_of(at).and_then(|file| new.of_byte(file)).unwrap_or(at);
    for load in &mut plan.resident {
        load.to = moved(load.to);
    }
    for compute in &mut plan.computes {
        let weights = &mut compute.weights;
        for at in weights.panels.iter_mut().chain(&mut weights.table) {
            *at = moved(*at);
        }
        for at in &mut weights.extents {
            *at = moved(*at);
        }
    }
    let resident = plan
        .spaces
        .iter_mut()
        .filter(|s| s.kind == SpaceKind::Resident);
    for space in resident {
        space.bytes = new.bytes();
    }
    plan
}

/// The same plan with copies of what its loads bring, in at most `host_bytes` of the host's memory: those predicted fastest.
pub fn with_copies(
    workload: &Workload,
    plan: &ExecutionPlan,
    costs: &CostProfile,
    host_bytes: u64,
) -> ExecutionPlan {
    let ranges = ranges(plan);
    let all_bytes: u64 = ranges.iter().map(|range| range.len()).sum();
    let choices = match all_bytes <= host_bytes {
        true => vec![ranges],
        false => vec![
            first(&ranges, host_bytes),
            spread(&ranges, all_bytes, host_bytes),
        ],
    };
    let plans = choices.into_iter().map(|chosen| copying(plan, chosen));
    let best = plans.min_by_key(|plan| predict(workload, plan, costs).latency_ns);
    best.unwrap_or_else(|| plan.clone())
}

/// What loads bring from the packed file, each range once, in the order in which it is first loaded.
fn ranges(plan: &ExecutionPlan) -> Vec<ByteRange> {
    let is_packed = |at: Place| plan.kind(at.space) == Some(SpaceKind::Packed);
    let loads = plan.loads.iter().filter(|load| is_packed(load.from));
    let mut known = BTreeSet::new();
    let is_new = |range: &ByteRange| known.insert((range.begin, range.end));
    loads.map(Load::file_range).filter(is_new).collect()
}

/// From the beginning of the cycle on.
fn first(ranges: &[ByteRange], host_bytes: u64) -> Vec<ByteRange> {
    let mut left = host_bytes;
    let fits = |range: &&ByteRange| {
        let fits = range.len() <= left;
        left -= if fits { range.len() } else { 0 };
        fits
    };
    ranges.iter().filter(fits).copied().collect()
}

/// So that storage has its share all the time.
fn spread(ranges: &[ByteRange], all_bytes: u64, host_bytes: u64) -> Vec<ByteRange> {
    let share = host_bytes as f64 / all_bytes.max(1) as f64;
    let (mut passed, mut taken) = (0u64, 0u64);
    let mut chosen = Vec::with_capacity(ranges.len());
    for range in ranges {
        passed += range.len();
        let is_due =
            (taken + range.len()) as f64 <= passed as f64 * share + range.len() as f64 / 2.0;
        if is_due && taken + range.len() <= host_bytes {
            taken += range.len();
            chosen.push(*range);
        }
    }
    chosen
}

fn copying(plan: &ExecutionPlan, mut chosen: Vec<ByteRange>) -> ExecutionPlan {
    let mut plan = plan.clone();
    if chosen.is_empty() {
        return plan;
    }
    chosen.sort_unstable_by_key(|range| (range.begin, range.end));
    let space = SpaceId(plan.spaces.len() as u8);
    let packed = (0..).map(SpaceId).zip(&plan.spaces);
    let packed = packed
        .filter(|(_, s)| s.kind == SpaceKind::Packed)
        .map(|(id, _)| id);
    let packed = packed.last().unwrap_or(SpaceId::PACKED);
    let mut end = 0;
    for range in chosen {
        plan.copies.push(HostCopy {
            from: Place::new(packed, range.begin),
            bytes: range.len(),
            to: Place::new(space, end),
        });
        end += range.len();
    }
    plan.spaces.push(Space {
        name: "host".into(),
        kind: SpaceKind::Host,
        bytes: end,
        align: BLOCK_BYTES,
    });
    plan
}
