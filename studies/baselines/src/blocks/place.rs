//! From blocks to an execution plan: the loads of each block, their addresses, and when they may start.

use neap_plan::{BLOCK_BYTES, ByteRange, ExecutionPlan, Workload};
use neap_sim::{CostProfile, Prediction, Simulator};

use super::layers::Block;
use neap_planner::BaseLayouts;
use neap_planner::parts::{Schedule, Unit, Want, Window, assemble};

/// Weights that lie together in the file are read together up to this size; larger ones come in one load.
const LOAD_BYTES: u64 = 4 << 20;

/// Two neighbouring blocks never take more than `most_bytes` above the base layout.
pub fn plan(
    w: &Workload,
    base_layouts: &BaseLayouts,
    blocks: &[Block],
    most_bytes: u64,
    costs: &CostProfile,
    sim: &mut Simulator,
) -> Option<(ExecutionPlan, Prediction)> {
    let base_layout = &base_layouts.loose;
    let mut schedule = Schedule::whole(w, base_layout);
    let mut wants = std::mem::take(&mut schedule.wants);
    schedule.units.clear();
    let base = super::base_bytes(base_layout);
    let mut offsets = Vec::new();
    let mut from = 0;
    let begins = begins(blocks, most_bytes);
    for (block, begin) in blocks.iter().zip(begins) {
        let first = schedule.step_first[block.steps.start as usize];
        let end = schedule.step_first[block.steps.end as usize];
        let count = wants[from..].iter().take_while(|w| w.first < end).count();
        let mut at = base + begin;
        for file in gather(&mut wants[from..from + count], schedule.units.len() as u32) {
            schedule.units.push(Unit {
                file,
                first,
                last: end - 1,
                pinned: None,
                fallback: None,
                resident: false,
                stays_at: None,
            });
            offsets.push(at);
            at += file.len();
        }
        from += count;
    }
    schedule.wants = wants;
    let window = Window {
        w,
        base_layout,
        schedule: &schedule,
        offsets: &offsets,
        window_bytes: base + most_bytes,
        cyclic: base_layouts.options.cyclic,
    };
    let resident = vec![false; schedule.units.len()];
    let simulated = window.simulate(&resident, costs, sim);
    let plan = assemble("blocks", &window, &resident, &simulated);
    (plan.memory_bytes() <= base + most_bytes).then_some((plan, simulated.prediction))
}

/// Where each block begins above the base layout: in turn at the bottom and at the top. The last of an odd number
/// meets the first of the next run at the bottom; where there is room it lies between that and its
/// predecessor.
fn begins(blocks: &[Block], most_bytes: u64) -> Vec<u64> {
    let mut begins: Vec<u64> = blocks
        .iter()
        .enumerate()
        .map(|(i, block)| {
            if i % 2 == 0 {
                0
            } else {
                most_bytes - block.bytes
            }
        })
        .collect();
    if let ([first, .., before, last], true) = (blocks, blocks.len() % 2 == 1)
        && first.bytes + last.bytes + before.bytes <= most_bytes
        && let Some(begin) = begins.last_mut()
    {
        *begin = first.bytes;
    }
    begins
}

/// The file ranges of a block's loads, in order of first use; `wants` are told which load brings them,
/// counted from `first_unit`.
fn gather(wants: &mut [Want], first_unit: u32) -> Vec<ByteRange> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|&i| (wants[i].file.begin, wants[i].file.end));
    // In file order: what touches is joined. `None` for the load of the last range.
    let mut joined: Vec<(ByteRange, u32)> = Vec::new();
    let mut load_of = vec![0; wants.len()];
    for i in order {
        let (file, first) = (wants[i].file.to_blocks(), wants[i].first);
        let touches = |last: &ByteRange| {
            let end = last.end.max(file.end);
            // What shares a storage block belongs together, however large.
            file.begin < last.end || file.begin == last.end && end - last.begin <= LOAD_BYTES
        };
        match joined.last_mut() {
            Some((last, used)) if touches(last) => {
                last.end = last.end.max(file.end);
                *used = (*used).min(first);
            }
            _ => joined.push((file, first)),
        }
        load_of[i] = joined.len() - 1;
    }
    let mut by_use: Vec<usize> = (0..joined.len()).collect();
    by_use.sort_by_key(|&load| joined[load].1);
    let mut place = vec![0; joined.len()];
    for (at, &load) in by_use.iter().enumerate() {
        place[load] = at as u32;
    }
    for (want, load) in wants.iter_mut().zip(load_of) {
        want.unit = first_unit + place[load];
    }
    by_use.iter().map(|&load| joined[load].0).collect()
}

const _: () = assert!(LOAD_BYTES.is_multiple_of(BLOCK_BYTES));
