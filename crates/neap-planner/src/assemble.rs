//! From a played window to an [`ExecutionPlan`]: resident ranges, loads, computes with their weights' addresses.

use neap_plan::{
    BLOCK_BYTES, ByteRange, Compute, ExecutionPlan, Load, ResidentLoad, WeightsAt, Workload,
};

use crate::preload::residency::{Played, Window};
use crate::schedule::{Kind, Schedule};

/// Builds the plan; its arena ends where the last thing in it does.
pub fn assemble(
    strategy: &str,
    window: &Window,
    resident: &[bool],
    played: &Played,
) -> ExecutionPlan {
    let Window {
        w,
        ground,
        schedule,
        ..
    } = *window;
    let resident_loads = resident_ranges(
        schedule,
        resident,
        window.window_bytes.next_multiple_of(BLOCK_BYTES),
    );
    let mut plan = ExecutionPlan {
        strategy: strategy.to_owned(),
        digest: w.digest.clone(),
        arena_bytes: 0,
        buffers: ground.buffers.clone(),
        workspaces: ground.workspaces.clone(),
        resident: resident_loads,
        prepared: Vec::new(),
        loads: Vec::with_capacity(played.streamed.len()),
        group_bytes: played.group_bytes,
        computes: empty_computes(w, played),
        stores: Vec::new(),
        returns: Vec::new(),
    };
    for (s, &after) in played.streamed.iter().zip(&played.after) {
        let file = schedule.units[s.unit as usize].file;
        let offset = window.offsets[s.unit as usize];
        plan.loads.push(Load {
            file_offset: file.begin,
            bytes: file.len(),
            offset,
            after,
            ..Load::default()
        });
    }
    for want in &schedule.wants {
        let unit = want.unit as usize;
        let (from, at) = if resident[unit] {
            // Sorted by file offset, and some range holds every resident unit.
            let i = plan
                .resident
                .partition_point(|r| r.file_offset <= want.file.begin)
                - 1;
            (plan.resident[i].file_offset, plan.resident[i].offset)
        } else {
            (schedule.units[unit].file.begin, window.offsets[unit])
        };
        let offset = at + (want.file.begin - from);
        for c in played.merged_index[want.first as usize]..=played.merged_index[want.last as usize]
        {
            let weights = &mut plan.computes[c as usize].weights;
            match want.kind {
                // A merged compute's panels begin where its first slice's do.
                Kind::Panels => {
                    weights.panels.get_or_insert(offset);
                }
                Kind::Extent(i) => weights.extents[i as usize] = offset,
                Kind::Table => weights.table = Some(offset),
            }
        }
    }
    let ends = ground.fixed.iter().map(|f| f.arena.end);
    let ends = ends.chain(plan.loads.iter().map(|l| l.offset + l.bytes));
    let ends = ends.chain(plan.resident.iter().map(|r| r.offset + r.bytes));
    plan.arena_bytes = ends.max().unwrap_or(0).next_multiple_of(BLOCK_BYTES);
    plan
}

fn empty_computes(w: &Workload, played: &Played) -> Vec<Compute> {
    let slices = played.slices.iter().zip(&played.needs);
    slices
        .map(|(slice, &needs)| Compute {
            step: slice.id(),
            panels: slice.panels,
            weights: WeightsAt {
                panels: None,
                extents: vec![0; w.steps[slice.step as usize].extents.len()],
                table: None,
            },
            needs,
            stores: 0,
        })
        .collect()
}

/// Resident units in file order, touching ones joined, one after the other from `offset` up.
pub fn resident_ranges(
    schedule: &Schedule,
    resident: &[bool],
    mut offset: u64,
) -> Vec<ResidentLoad> {
    let units = schedule.units.iter().zip(resident);
    let mut files: Vec<ByteRange> = units.filter(|(_, r)| **r).map(|(u, _)| u.file).collect();
    files.sort_unstable_by_key(|f| (f.begin, f.end));
    let mut out: Vec<ResidentLoad> = Vec::new();
    for f in files {
        match out.last_mut() {
            Some(last) if f.begin <= last.file_offset + last.bytes => {
                let bytes = last.bytes.max(f.end - last.file_offset);
                offset += bytes - last.bytes;
                last.bytes = bytes;
            }
            _ => {
                out.push(ResidentLoad {
                    file_offset: f.begin,
                    bytes: f.len(),
                    offset,
                });
                offset += f.len();
            }
        }
    }
    out
}
