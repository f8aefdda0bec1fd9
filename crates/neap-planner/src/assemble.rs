//! From a simulated window to an [`ExecutionPlan`]: resident weights, loads, computes with their weights' places.

use neap_plan::{
    BLOCK_BYTES, Compute, ExecutionPlan, LaneId, Lanes, Load, Place, Turn, WeightsAt, Workload,
};

use crate::placement::{Homes, resident_room_bytes, size_spaces};
use crate::preload::residency::{Simulated, Window};
use crate::schedule::{Kind, Schedule};

/// Builds the plan. Its memory is at most the window, and what is resident.
pub fn assemble(
    strategy: &str,
    window: &Window,
    resident: &[bool],
    simulated: &Simulated,
) -> ExecutionPlan {
    let Window {
        w,
        base_layout: base,
        schedule,
        ..
    } = *window;
    let homes = homes(w, schedule, resident);
    let mut plan = ExecutionPlan {
        strategy: strategy.to_owned(),
        digest: w.digest.clone(),
        spaces: Vec::new(),
        lanes: Lanes::default(),
        buffers: base.buffers.iter().map(|&at| Place::work(at)).collect(),
        workspaces: base.workspaces.iter().map(|&at| Place::work(at)).collect(),
        resident: Vec::new(),
        prepared: Vec::new(),
        loads: Vec::with_capacity(simulated.streamed.len()),
        group_bytes: simulated.group_bytes,
        computes: empty_computes(w, simulated),
        stores: Vec::new(),
        returns: Vec::new(),
        copies: Vec::new(),
        spills_to_host: false,
        states: Vec::new(),
    };
    for (s, &after) in simulated.streamed.iter().zip(&simulated.after) {
        let file = schedule.units[s.unit as usize].file;
        let offset = window.offsets[s.unit as usize];
        plan.loads.push(Load {
            from: Place::packed(file.begin),
            bytes: file.len(),
            to: Place::work(offset),
            turn: after.load(0),
        });
    }
    for want in &schedule.wants {
        let unit = want.unit as usize;
        let at = match resident[unit] {
            true => homes.of_byte(want.file.begin).unwrap_or_default(),
            false => {
                let skip_bytes = want.file.begin - schedule.units[unit].file.begin;
                Place::work(window.offsets[unit] + skip_bytes)
            }
        };
        for c in
            simulated.merged_index[want.first as usize]..=simulated.merged_index[want.last as usize]
        {
            let weights = &mut plan.computes[c as usize].weights;
            match want.kind {
                // A merged compute's panels begin where its first slice's do.
                Kind::Panels => {
                    weights.panels.get_or_insert(at);
                }
                Kind::Extent(i) => weights.extents[i as usize] = at,
                Kind::Table => weights.table = Some(at),
            }
        }
    }
    let resident_wants = schedule
        .wants
        .iter()
        .filter(|want| resident[want.unit as usize]);
    plan.resident = homes
        .loads(resident_wants.map(|want| (want.file, simulated.merged_index[want.first as usize])));
    let ends = base.fixed.iter().map(|f| f.arena.end);
    let end = ends
        .chain(plan.loads.iter().map(|l| l.area().range.end))
        .max();
    let window_bytes = match plan.resident.is_empty() {
        true => end.unwrap_or(0),
        false => window.window_bytes,
    };
    let limit_bytes = window_bytes.next_multiple_of(BLOCK_BYTES) + plan.resident_bytes();
    size_spaces(w, &mut plan, limit_bytes);
    plan
}

/// Where the resident units lie.
pub fn homes(w: &Workload, schedule: &Schedule, resident: &[bool]) -> Homes {
    let units = schedule.units.iter().zip(resident);
    let files = units.filter(|(_, r)| **r).map(|(u, _)| u.file);
    Homes::of(files.collect(), resident_room_bytes(w))
}

fn empty_computes(w: &Workload, simulated: &Simulated) -> Vec<Compute> {
    let slices = simulated.slices.iter().zip(&simulated.needs);
    slices
        .map(|(slice, &needs)| Compute {
            step: slice.id(),
            panels: slice.panels,
            weights: WeightsAt {
                panels: None,
                extents: vec![Place::default(); w.steps[slice.step as usize].extents.len()].into(),
                table: None,
            },
            turn: Turn::of(LaneId::COMPUTE).after(LaneId::LOAD, needs),
        })
        .collect()
}
