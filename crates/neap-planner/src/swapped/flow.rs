//! A schedule on its ground as a dataflow: slices are operators, units are parameters, and what lies still takes
//! its place when it comes.
//!
//! ```text
//!   ground            pieces, in whole blocks
//!   ┌────────┐        ┌────────┐
//!   │   a  ┌─┴──┐     │   1  ├────┐
//!   └──────┤ b  │     ├──────┤ 2  │    where a and b share a block, it is taken from the first step of the
//!          └────┘     └──────┴────┘    one to the last of the other
//! ```

use std::collections::HashMap;

use neap_plan::{BLOCK_BYTES, ByteRange, Workload};
use neap_sim::CostProfile;

use crate::ground::Ground;
use crate::schedule::Schedule;
use crate::search::{Dataflow, DataflowSpec, Memory, Operator, Tensor, TensorId, TensorKind};

/// Blocks that buffers and workspaces take, from the first compute to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    arena: ByteRange,
    first: u32,
    last: u32,
}

/// A dataflow of one or more runs. Its first tensors are the schedule's units.
pub struct SliceFlow {
    pub flow: Dataflow,
    pub memory: Memory,
}

impl SliceFlow {
    /// `laps` runs in an arena of `arena_bytes`. Units that are resident in every plan are left out.
    pub fn new(
        w: &Workload,
        ground: &Ground,
        schedule: &Schedule,
        costs: &CostProfile,
        arena_bytes: u64,
        laps: u32,
    ) -> Option<Self> {
        let n = schedule.slices.len();
        let mut spec = DataflowSpec::default();
        let units = schedule.units.iter();
        spec.tensors = units
            .map(|u| Tensor {
                bytes: u.file.len(),
                kind: TensorKind::Parameter,
            })
            .collect();
        let mut fixed: Vec<Option<u64>> = schedule.units.iter().map(|u| u.pinned).collect();
        for _ in 0..laps {
            spec.operators.extend(schedule.slices.iter().map(|slice| {
                let reads_rows = ground.reads_rows[slice.step as usize];
                Operator {
                    name: String::new(),
                    compute_ns: costs.slice_ns(w, slice.id(), slice.panels, reads_rows),
                    reads: Vec::new(),
                    writes: Vec::new(),
                }
            }));
        }
        let pieces = pieces(ground, &schedule.step_first);
        for lap in 0..laps as usize {
            let run = &mut spec.operators[lap * n..(lap + 1) * n];
            for (i, unit) in schedule.units.iter().enumerate() {
                if !unit.resident {
                    for op in &mut run[unit.first as usize..=unit.last as usize] {
                        op.reads.push(TensorId(i as u32));
                    }
                }
            }
            for piece in &pieces {
                let tensor = TensorId(spec.tensors.len() as u32);
                spec.tensors.push(Tensor {
                    bytes: piece.arena.len(),
                    kind: TensorKind::Activation,
                });
                fixed.push(Some(piece.arena.begin));
                run[piece.first as usize].writes.push(tensor);
                if piece.last > piece.first {
                    run[piece.last as usize].reads.push(tensor);
                }
            }
        }
        let flow = Dataflow::new(spec).ok()?;
        let arena_bytes = arena_bytes / BLOCK_BYTES * BLOCK_BYTES;
        let memory = Memory {
            fixed,
            ..Memory::places(&flow, arena_bytes, BLOCK_BYTES)
        };
        Some(Self { flow, memory })
    }
}

/// The ground in whole blocks, cut so that no two pieces share a block at any time.
fn pieces(ground: &Ground, step_first: &[u32]) -> Vec<Piece> {
    let mut rects: Vec<Piece> = Vec::with_capacity(ground.fixed.len());
    for f in &ground.fixed {
        let first = step_first[f.live.begin as usize];
        let end = step_first[f.live.end as usize];
        if end > first && !f.arena.is_empty() {
            rects.push(Piece {
                arena: f.arena.to_blocks(),
                first,
                last: end - 1,
            });
        }
    }
    let mut edges: Vec<u64> = rects
        .iter()
        .flat_map(|r| [r.arena.begin, r.arena.end])
        .collect();
    edges.sort_unstable();
    edges.dedup();
    rects.sort_by_key(|r| r.first);
    let mut out: Vec<Piece> = Vec::new();
    // By first and last compute, the piece that ends at the last edge.
    let mut open: HashMap<(u32, u32), usize> = HashMap::new();
    for between in edges.windows(2) {
        let (begin, end) = (between[0], between[1]);
        let mut lives: Vec<(u32, u32)> = Vec::new();
        for r in rects
            .iter()
            .filter(|r| r.arena.begin <= begin && end <= r.arena.end)
        {
            match lives.last_mut() {
                Some((_, last)) if r.first <= *last => *last = r.last.max(*last),
                _ => lives.push((r.first, r.last)),
            }
        }
        let mut next = HashMap::with_capacity(lives.len());
        for (first, last) in lives {
            let piece = match open.get(&(first, last)) {
                Some(&piece) => {
                    out[piece].arena.end = end;
                    piece
                }
                None => {
                    out.push(Piece {
                        arena: ByteRange::new(begin, end),
                        first,
                        last,
                    });
                    out.len() - 1
                }
            };
            next.insert((first, last), piece);
        }
        open = next;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::{Memory as GroundMemory, Reserve, Tables};
    use neap_plan::{BufferSpec, StepRange, StepSpec};

    /// Blocks of all pieces in a step are those of the ground, each once.
    #[test]
    fn pieces_cover_the_ground_once() {
        let mut random = crate::search::Random::new(1, 1, 1);
        for _ in 0..50 {
            let steps = 1 + random.below(12);
            let buffer = |random: &mut crate::search::Random| {
                let begin = random.below(steps) as u32;
                BufferSpec {
                    name: String::new(),
                    bytes: random.below(20_000) as u64,
                    align: 64,
                    live: StepRange::new(
                        begin,
                        (begin + 1 + random.below(steps) as u32).min(steps as u32),
                    ),
                    kept: false,
                }
            };
            let w = Workload {
                digest: String::new(),
                steps: vec![StepSpec::default(); steps],
                buffers: (0..20).map(|_| buffer(&mut random)).collect(),
                constants_bytes: 0,
            };
            let ground = Ground::new(
                &w,
                Tables::Rows,
                Reserve::Nothing,
                GroundMemory::Planned,
                &Default::default(),
            );
            let step_first: Vec<u32> = (0..=steps as u32).map(|s| 3 * s).collect();
            let pieces = pieces(&ground, &step_first);
            for compute in 0..3 * steps as u32 {
                let live = ground.fixed.iter().filter(|f| f.live.contains(compute / 3));
                let mut wanted: Vec<u64> = live
                    .flat_map(|f| {
                        let blocks = f.arena.to_blocks();
                        blocks.begin / BLOCK_BYTES..blocks.end / BLOCK_BYTES
                    })
                    .collect();
                wanted.sort_unstable();
                wanted.dedup();
                let there = pieces
                    .iter()
                    .filter(|p| p.first <= compute && compute <= p.last);
                let mut blocks: Vec<u64> = there
                    .flat_map(|p| p.arena.begin / BLOCK_BYTES..p.arena.end / BLOCK_BYTES)
                    .collect();
                blocks.sort_unstable();
                assert_eq!(blocks, wanted);
            }
        }
    }
}
