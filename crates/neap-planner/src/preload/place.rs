//! Addresses for streamed units, and the earliest moments at which their loads may start.
//!
//! Two passes, both forward in time over a [`Skyline`]:
//!
//! 1. `addresses`: unit by unit in order of use, the place that has been free since earliest. A step
//!    whose units do not all find one takes its fallback: places known to be free while it computes.
//! 2. `starts`: with addresses fixed, each load may start when everything that lay there before is done.
//!    The cycle is unrolled twice and the second lap counts, so heads are prefetched in the tail of the
//!    run before. Fewer streamed units mean earlier starts, never later ones.

use neap_plan::{AfterCompute, ByteRange};

use super::skyline::Skyline;
use crate::base_layout::BaseLayout;
use crate::schedule::{Schedule, Unit};

/// A fixed rectangle in computes, over two laps.
#[derive(Clone, Copy)]
struct Wall {
    arena: ByteRange,
    begin: u32,
    end: u32,
}

/// Where the steps of a schedule begin, in computes: `step_first` of the schedule, or of one in which
/// slices were merged.
fn walls(base_layout: &BaseLayout, step_first: &[u32]) -> Vec<Wall> {
    let n = step_first[step_first.len() - 1];
    let lap = |k: u32| {
        base_layout.fixed.iter().map(move |f| Wall {
            arena: f.arena,
            begin: k * n + step_first[f.live.begin as usize],
            end: k * n + step_first[f.live.end as usize],
        })
    };
    // Sorted, since `BaseLayout::fixed` is by begin.
    lap(0).chain(lap(1)).collect()
}

/// The same with weights that stay for part of a run: nothing else may lie there meanwhile.
fn walls_and_stays(base_layout: &BaseLayout, step_first: &[u32]) -> Vec<Wall> {
    let mut walls = walls(base_layout, step_first);
    if !base_layout.stays.is_empty() {
        let n = step_first[step_first.len() - 1];
        for lap in [0, n] {
            walls.extend(base_layout.stays.iter().map(|stay| Wall {
                arena: stay.rectangle().arena,
                begin: lap + step_first[stay.live.begin as usize],
                end: lap + step_first[stay.live.end as usize],
            }));
        }
        walls.sort_by_key(|wall| wall.begin);
    }
    walls
}

/// Paints the walls as time goes on.
struct Front<'a> {
    skyline: Skyline,
    walls: std::iter::Peekable<std::slice::Iter<'a, Wall>>,
}

impl<'a> Front<'a> {
    fn new(arena_bytes: u64, walls: &'a [Wall]) -> Self {
        Self {
            skyline: Skyline::new(arena_bytes),
            walls: walls.iter().peekable(),
        }
    }

    /// Paints every wall that begins before `time`.
    fn advance(&mut self, time: u32) {
        while let Some(w) = self.walls.next_if(|w| w.begin < time) {
            self.skyline.paint(w.arena.begin, w.arena.end, w.end);
        }
    }
}

/// Pass 1. `None` if some step fits neither way (its gathered units are too large together).
pub fn addresses(
    schedule: &Schedule,
    base_layout: &BaseLayout,
    arena_bytes: u64,
) -> Option<Vec<u64>> {
    let mut offsets = Vec::new();
    addresses_in(&mut offsets, schedule, base_layout, arena_bytes).then_some(offsets)
}

/// [`addresses`] in the memory of others; false where there are none.
pub fn addresses_in(
    offsets: &mut Vec<u64>,
    schedule: &Schedule,
    base_layout: &BaseLayout,
    arena_bytes: u64,
) -> bool {
    offsets.clear();
    offsets.resize(schedule.units.len(), 0);
    fill_in(offsets, schedule, base_layout, arena_bytes).is_some()
}

fn fill_in(
    offsets: &mut [u64],
    schedule: &Schedule,
    base_layout: &BaseLayout,
    arena_bytes: u64,
) -> Option<()> {
    let n = schedule.slices.len() as u32;
    let walls = walls_and_stays(base_layout, &schedule.step_first);
    let mut front = Front::new(arena_bytes, &walls);
    let mut backup = Skyline::new(arena_bytes);
    // The load lane goes in order of use: no load starts before the one placed last does.
    let mut last_start = 0;
    // The first lap only shows the second one what the tail of a run leaves behind.
    for lap in 0..2 {
        let tail = schedule
            .units
            .partition_point(|u| step_of(schedule, u) < schedule.steps() / 4 * 3);
        let mut i = if lap == 0 { tail } else { 0 };
        while i < schedule.units.len() {
            let step = step_of(schedule, &schedule.units[i]);
            let step_end = schedule.step_first[step + 1];
            let of_step = schedule.units[i..]
                .iter()
                .take_while(|u| u.first < step_end)
                .count();
            let range = i..i + of_step;
            // Gathered units live on in later steps; what lies still there counts too.
            let end = schedule.units[range.clone()]
                .iter()
                .filter(|u| u.stays_at.is_none())
                .map(|u| u.last + 1)
                .max()
                .unwrap_or(0)
                .max(step_end);
            front.advance(lap * n + end);
            front.skyline.forget(last_start);
            // Without fallbacks the second attempt would be the first.
            let has_fallback = schedule.units[range.clone()]
                .iter()
                .any(|u| u.fallback.is_some() && !u.resident);
            if has_fallback {
                backup.copy_from(&front.skyline);
            }
            let mut place = |use_fallback: bool, skyline: &mut Skyline| {
                place_step(
                    schedule,
                    range.clone(),
                    lap * n,
                    use_fallback,
                    skyline,
                    offsets,
                )
            };
            let mut start = place(false, &mut front.skyline);
            if start.is_none() && has_fallback {
                front.skyline.copy_from(&backup);
                start = place(true, &mut front.skyline);
            }
            last_start = last_start.max(start?);
            i += of_step;
        }
    }
    Some(())
}

fn step_of(schedule: &Schedule, unit: &Unit) -> usize {
    schedule.slices[unit.first as usize].step as usize
}

/// Places the units of one step; the latest of their starts, or `None` if one finds no place.
fn place_step(
    schedule: &Schedule,
    range: std::ops::Range<usize>,
    lap_start: u32,
    use_fallback: bool,
    skyline: &mut Skyline,
    offsets: &mut [u64],
) -> Option<u32> {
    let mut start = 0;
    for i in range {
        let unit = &schedule.units[i];
        if unit.resident {
            continue;
        }
        if let Some(offset) = unit.stays_at {
            offsets[i] = offset;
            continue;
        }
        let (needed_at, done_at) = (lap_start + unit.first, lap_start + unit.last + 1);
        let bytes = unit.file.len();
        let given = unit.pinned.or(unit.fallback.filter(|_| use_fallback));
        let place = match given {
            Some(offset) => {
                let since = skyline.free_since(offset, offset + bytes);
                (since <= needed_at).then_some((offset, since))
            }
            None => skyline.earliest(bytes, needed_at),
        };
        let (offset, since) = place?;
        start = start.max(since);
        skyline.paint(offset, offset + bytes, done_at);
        offsets[i] = offset;
    }
    Some(start)
}

/// Compute times of the units that are streamed, in order of use.
#[derive(Clone, Copy, Debug)]
pub struct Streamed {
    pub unit: u32,
    pub first: u32,
    pub last: u32,
}

/// Pass 2: for each streamed unit, when its load may start; unless `cyclic`, not before its run does.
pub fn starts(
    schedule: &Schedule,
    base_layout: &BaseLayout,
    arena_bytes: u64,
    offsets: &[u64],
    streamed: &[Streamed],
    step_first: &[u32],
    cyclic: bool,
) -> Vec<AfterCompute> {
    let n = step_first[step_first.len() - 1];
    let walls = walls(base_layout, step_first);
    let mut front = Front::new(arena_bytes, &walls);
    let mut after = Vec::with_capacity(streamed.len());
    for lap in 0..2 {
        for s in streamed {
            let (needed_at, done_at) = (lap * n + s.first, lap * n + s.last + 1);
            let stays = schedule.units[s.unit as usize].stays_at.is_some();
            // What comes while it stays lies elsewhere, by the base layout.
            front.advance(if stays { needed_at + 1 } else { done_at });
            let offset = offsets[s.unit as usize];
            let end = offset + schedule.units[s.unit as usize].file.len();
            if lap == 1 {
                let since = front.skyline.free_since(offset, end);
                debug_assert!(since <= needed_at, "unit {} is placed on something", s.unit);
                after.push(match since.checked_sub(n) {
                    Some(computes) => AfterCompute {
                        run_back: 0,
                        computes,
                    },
                    None if cyclic => AfterCompute {
                        run_back: 1,
                        computes: since,
                    },
                    None => AfterCompute::START,
                });
            }
            front.skyline.paint(offset, end, done_at);
        }
    }
    after
}
