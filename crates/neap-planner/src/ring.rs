//! A chain of weights that is passed again and again: a ring for what streams, residents spread evenly over the pass.
//!
//! ```text
//!   slices     │ s0 │ s1 │ s2 │ s3 │ s4 │ s5 │ s6 │ s7 │      of all steps, in order
//!   resident        │ s1 │         │ s4 │         │ s7 │      as many as there is room for, at even distances
//!   ring       │ s0 │ s2 │ s3 │    load s5 when s0 is done, s6 when s2 is done, …
//! ```
//! For workloads without activations, such as a language model's pass over its matrices. What the drive has to bring before a
//! compute is then the same share of each stretch of the pass, so a small ring hides all of it: the pass takes the longer of
//! computing and reading. Residents in one piece would leave the drive idle while they are used.

use crate::PlanError;
use neap_plan::{
    AfterCompute, BLOCK_BYTES, ByteRange, Compute, ExecutionPlan, LaneId, Lanes, Load, PanelRange,
    Place, ResidentLoad, Space, StepId, Turn, Wait, WeightsAt, Workload,
};
use neap_sim::{CostProfile, predict};

/// Sizes that are tried: of a slice, and of the ring in slices.
const SLICE_BYTES: [u64; 4] = [64 << 10, 256 << 10, 512 << 10, 1 << 20];
const RING_SLICES: [u64; 3] = [3, 8, 24];

/// A run of panels of one step.
#[derive(Clone, Copy)]
struct Slice {
    step: StepId,
    panels: PanelRange,
    file: ByteRange,
    is_resident: bool,
}

impl Slice {
    fn blocks(&self) -> ByteRange {
        let begin = self.file.begin / BLOCK_BYTES * BLOCK_BYTES;
        ByteRange::new(begin, self.file.end.next_multiple_of(BLOCK_BYTES))
    }
}

/// The plan in at most `room_bytes` that is predicted to be the fastest.
///
/// # Errors
/// [`PlanError::Infeasible`] with the smallest room for which there is one.
pub fn ring(
    w: &Workload,
    room_bytes: u64,
    costs: &CostProfile,
) -> Result<ExecutionPlan, PlanError> {
    let whole = slices_of(w, u64::MAX, true);
    let resident = all_resident(w, whole);
    if resident.memory_bytes() <= room_bytes {
        return Ok(resident);
    }
    let mut best: Option<(u64, ExecutionPlan)> = None;
    for slice_bytes in SLICE_BYTES {
        for ring_slices in RING_SLICES {
            let Some(mut plan) = streamed(w, room_bytes, slice_bytes, ring_slices) else {
                continue;
            };
            if costs.group_bytes > 0 {
                // While one group comes, the next may be handed over, and a third be computed with.
                plan.group_bytes = (plan.spaces[0].bytes / 3).max(slice_bytes.min(1 << 20));
            }
            let ns = predict(w, &plan, costs).latency_ns;
            if best.as_ref().is_none_or(|(least, _)| ns < *least) {
                best = Some((ns, plan));
            }
        }
    }
    best.map(|(_, plan)| plan).ok_or(PlanError::Infeasible {
        smallest_bytes: smallest_ring_bytes(w),
    })
}

/// The smallest room for which [`ring`] has a plan.
pub fn smallest_ring_bytes(w: &Workload) -> u64 {
    let largest = slices_of(w, 0, false)
        .iter()
        .map(|s| s.blocks().len())
        .max()
        .unwrap_or(0);
    resident_ring_bytes(w).min(least_slices(largest))
}

/// The room in which nothing streams: with more, [`ring`] plans the same.
pub fn resident_ring_bytes(w: &Workload) -> u64 {
    all_resident(w, slices_of(w, u64::MAX, true)).memory_bytes()
}

/// A ring of two of the largest slices, each at any place of its blocks.
fn least_slices(largest: u64) -> u64 {
    2 * largest
}

fn all_resident(w: &Workload, slices: Vec<Slice>) -> ExecutionPlan {
    assemble(w, &slices, 0).unwrap_or_default()
}

fn streamed(
    w: &Workload,
    room_bytes: u64,
    slice_bytes: u64,
    ring_slices: u64,
) -> Option<ExecutionPlan> {
    let mut slices = slices_of(w, slice_bytes, false);
    let largest = slices.iter().map(|s| s.blocks().len()).max()?;
    // A ring that leaves no room is worse than a smaller one.
    let ring_bytes = (largest * ring_slices)
        .min(room_bytes / 2)
        .max(least_slices(largest))
        / BLOCK_BYTES
        * BLOCK_BYTES;
    let resident_room = room_bytes.checked_sub(ring_bytes)?;
    spread(&mut slices, resident_room);
    let slices = joined(&slices);
    assemble(w, &slices, ring_bytes)
}

/// The steps in slices of at most that many bytes, but one panel at least.
fn slices_of(w: &Workload, slice_bytes: u64, is_resident: bool) -> Vec<Slice> {
    let mut slices = Vec::new();
    for (index, step) in (0..).zip(&w.steps) {
        let step_id = StepId(index);
        let Some(spec) = step.panels else {
            let file = ByteRange::new(0, 0);
            slices.push(Slice {
                step: step_id,
                panels: PanelRange::NONE,
                file,
                is_resident: true,
            });
            continue;
        };
        let most = u32::try_from(slice_bytes / spec.panel_bytes.max(1)).unwrap_or(u32::MAX);
        let granule = spec.granule.max(1);
        let most = match most >= granule {
            true => most / granule * granule,
            false => most.max(1),
        };
        // Slices of about the same size, so that none is a remainder.
        let count = spec.panels.div_ceil(most).max(1);
        let even = spec
            .panels
            .div_ceil(count)
            .next_multiple_of(granule)
            .min(most.max(1));
        let mut begin = 0;
        while begin < spec.panels {
            let end = begin.saturating_add(even.max(1)).min(spec.panels);
            let panels = PanelRange::new(begin, end);
            slices.push(Slice {
                step: step_id,
                panels,
                file: spec.file_range(panels),
                is_resident,
            });
            begin = end;
        }
    }
    slices
}

/// Makes slices resident at even distances, as many as there is room for.
fn spread(slices: &mut [Slice], room_bytes: u64) {
    let bytes = |s: &Slice| s.blocks().len();
    let all: u64 = slices.iter().map(bytes).sum();
    let (mut passed, mut kept) = (0u64, 0u64);
    for slice in slices.iter_mut().filter(|s| !s.file.is_empty()) {
        passed += bytes(slice);
        let due = (u128::from(room_bytes) * u128::from(passed) / u128::from(all.max(1))) as u64;
        if kept + bytes(slice) <= due.min(room_bytes) {
            kept += bytes(slice);
            slice.is_resident = true;
        }
    }
}

/// Neighbours of one step that are resident are one compute.
fn joined(slices: &[Slice]) -> Vec<Slice> {
    let mut joined: Vec<Slice> = Vec::with_capacity(slices.len());
    for slice in slices {
        if let Some(last) = joined.last_mut()
            && last.is_resident
            && slice.is_resident
            && last.step == slice.step
            && !slice.file.is_empty()
        {
            last.panels = PanelRange::new(last.panels.begin, slice.panels.end);
            last.file.end = slice.file.end;
            continue;
        }
        joined.push(*slice);
    }
    joined
}

/// `None` where a slice does not fit into the ring.
fn assemble(w: &Workload, slices: &[Slice], ring_bytes: u64) -> Option<ExecutionPlan> {
    let homes = homes_of(slices);
    let (streamed, places): (Vec<usize>, Vec<u64>) = ring_places(slices, ring_bytes)?;
    let count = slices.len() as u32;
    let loads = (0..streamed.len()).map(|i| {
        let blocks = slices[streamed[i]].blocks();
        let before = last_use_before(slices, &streamed, &places, i);
        let after = match before {
            (compute, run_back) if run_back == 1 && compute + 1 == count => AfterCompute::START,
            (compute, run_back) => AfterCompute {
                run_back,
                computes: compute + 1,
            },
        };
        Load {
            from: Place::packed(blocks.begin),
            bytes: blocks.len(),
            to: Place::work(places[i]),
            turn: after.load(0),
        }
    });
    let loads: Vec<Load> = loads.collect();
    let mut arrived = 0;
    let computes = slices.iter().enumerate().map(|(index, slice)| {
        let skip = slice.file.begin - slice.blocks().begin;
        let mut turn = Turn::of(LaneId::COMPUTE);
        let at = match streamed.get(arrived) {
            Some(&next) if next == index => {
                arrived += 1;
                Place::work(places[arrived - 1] + skip)
            }
            _ => homes.place_of(slice.file.begin),
        };
        if arrived > 0 {
            turn = turn.wait(Wait {
                lane: LaneId::LOAD,
                count: arrived as u32,
                run_back: 0,
            });
        }
        Compute {
            step: slice.step,
            panels: slice.panels,
            weights: WeightsAt {
                panels: (!slice.file.is_empty()).then_some(at),
                ..WeightsAt::default()
            },
            turn,
        }
    });
    let computes: Vec<Compute> = computes.collect();
    let packed_end = slices.iter().map(|s| s.blocks().end).max().unwrap_or(0);
    Some(ExecutionPlan {
        strategy: "ring".to_owned(),
        digest: w.digest.clone(),
        spaces: Space::of_host(ring_bytes, homes.bytes, packed_end, 0),
        lanes: Lanes::default(),
        workspaces: vec![Place::work(0); w.steps.len()],
        resident: homes.loads,
        loads,
        computes,
        ..ExecutionPlan::default()
    })
}

/// Which slices stream, and where in the ring each lies: one behind the other, from the beginning again where the end is near.
fn ring_places(slices: &[Slice], ring_bytes: u64) -> Option<(Vec<usize>, Vec<u64>)> {
    let (mut streamed, mut places) = (Vec::new(), Vec::new());
    let mut next = 0;
    for (index, slice) in slices.iter().enumerate() {
        if slice.is_resident {
            continue;
        }
        let bytes = slice.blocks().len();
        if bytes > ring_bytes {
            return None;
        }
        if next + bytes > ring_bytes {
            next = 0;
        }
        streamed.push(index);
        places.push(next);
        next += bytes;
    }
    Some((streamed, places))
}

/// The last compute before load `i` that uses memory which the load fills, and whether it is of the run before.
fn last_use_before(slices: &[Slice], streamed: &[usize], places: &[u64], i: usize) -> (u32, u32) {
    let range = |j: usize| ByteRange::at(places[j], slices[streamed[j]].blocks().len());
    let mine = range(i);
    let is_same = |&j: &usize| range(j).overlaps(mine);
    let here = (0..i).rev().find(is_same);
    let before = || (i..streamed.len()).rev().find(is_same).unwrap_or(i);
    match here {
        Some(j) => (streamed[j] as u32, 0),
        None => (streamed[before()] as u32, 1),
    }
}

/// Where resident blocks lie: each stretch of the file in one piece, in order of the file.
struct Homes {
    /// Stretches of the file, and where each lies.
    stretches: Vec<(ByteRange, u64)>,
    loads: Vec<ResidentLoad>,
    bytes: u64,
}

impl Homes {
    fn place_of(&self, file_offset: u64) -> Place {
        let after = self
            .stretches
            .partition_point(|(file, _)| file.begin <= file_offset);
        let found = after.checked_sub(1).map(|i| &self.stretches[i]);
        found.map_or_else(Place::default, |(file, at)| {
            Place::resident(at + file_offset - file.begin)
        })
    }
}

fn homes_of(slices: &[Slice]) -> Homes {
    let resident = |(_, s): &(u32, &Slice)| s.is_resident && !s.file.is_empty();
    let mut parts: Vec<(ByteRange, u32)> = (0..)
        .zip(slices)
        .filter(resident)
        .map(|(index, slice)| (slice.blocks(), index))
        .collect();
    parts.sort_unstable_by_key(|(blocks, index)| (blocks.begin, *index));
    let mut homes = Homes {
        stretches: Vec::new(),
        loads: Vec::with_capacity(parts.len()),
        bytes: 0,
    };
    for (blocks, first) in parts {
        match homes.stretches.last_mut() {
            // A block that two slices share is read once, for whoever needs it first.
            Some((file, _)) if blocks.begin <= file.end => {
                if let Some(last) = homes.loads.last_mut()
                    && blocks.begin < file.end
                    && first < last.first
                {
                    last.first = first;
                }
                let begin = file.end;
                file.end = file.end.max(blocks.end);
                homes.push(ByteRange::new(begin, begin.max(blocks.end)), first);
            }
            _ => {
                homes.stretches.push((blocks, homes.bytes));
                homes.push(blocks, first);
            }
        }
    }
    homes.loads.sort_by_key(|load| load.first);
    homes
}

impl Homes {
    fn push(&mut self, blocks: ByteRange, first: u32) {
        if blocks.is_empty() {
            return;
        }
        self.loads.push(ResidentLoad {
            from: Place::packed(blocks.begin),
            bytes: blocks.len(),
            to: Place::resident(self.bytes),
            first,
        });
        self.bytes += blocks.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_plan::{PanelSpec, StepSpec, validate};

    fn workload(panels: &[(u64, u32)]) -> Workload {
        let mut at = 777;
        let steps = panels.iter().map(|&(panel_bytes, panels)| {
            let spec = PanelSpec {
                file_offset: at,
                panel_bytes,
                panels,
                granule: 1,
            };
            at += panel_bytes * u64::from(panels) + 32;
            StepSpec {
                panels: (panels > 0).then_some(spec),
                flops: panel_bytes * u64::from(panels),
                ..StepSpec::default()
            }
        });
        Workload {
            digest: "chain".into(),
            steps: steps.collect(),
            ..Workload::default()
        }
    }

    #[test]
    fn plans_are_valid_and_within_their_room() {
        let costs = CostProfile::default();
        let chains = [
            workload(&[(5000, 40), (777, 300), (0, 0), (70_000, 9), (4096, 100)]),
            workload(&[(100, 1)]),
            workload(&[(3 << 20, 3), (100, 7), (3 << 20, 2)]),
            workload(&vec![(64 << 10, 32); 20]),
        ];
        for w in &chains {
            let least = smallest_ring_bytes(w);
            assert!(least == 0 || ring(w, least - 1, &costs).is_err());
            let all = w.weight_bytes() + 2 * BLOCK_BYTES * w.steps.len() as u64;
            for room in [
                least,
                least * 5 / 4,
                all / 4,
                all / 2,
                all * 3 / 4,
                all,
                2 * all,
            ] {
                if room < least {
                    continue;
                }
                let plan = ring(w, room, &costs).expect("feasible");
                let verdict = validate(w, &plan).expect("valid");
                assert!(
                    verdict.high_water_bytes <= room,
                    "{} of {room}",
                    verdict.high_water_bytes
                );
            }
            let plan = ring(w, 2 * all, &costs).expect("feasible");
            assert!(plan.loads.is_empty());
        }
    }

    #[test]
    fn residents_are_spread_evenly() {
        let w = workload(&vec![(64 << 10, 32); 64]);
        let all = w.weight_bytes();
        let plan = ring(&w, all * 6 / 10, &CostProfile::default()).expect("feasible");
        let missing = all * 4 / 10;
        assert!(plan.loaded_bytes_per_run() < missing * 115 / 100);
        // In each quarter of the pass about a quarter of what streams.
        let begin = w.steps[0].panels.map_or(0, |p| p.file_offset);
        for quarter in 0..4 {
            let range = ByteRange::at(begin + quarter * all / 4, all / 4);
            let of = plan.loads.iter().filter(|l| l.file_range().overlaps(range));
            let bytes: u64 = of.map(|l| l.bytes).sum();
            let share = bytes as f64 / plan.loaded_bytes_per_run() as f64;
            assert!((0.2..0.3).contains(&share), "{share}");
        }
    }
}
