//! From a plan of the split workload to one that stores and returns.
//!
//! ```text
//!   steps       │ 3 writes b │ 4 reads b │ 5 │ 6 │ 7 reads b │
//!   stays         ├─────── part 0 ─────┤           ├ part 1 ┤       as planned
//!   store                     ├── b ──┤                            as soon as it is written for the last time
//!   load                                  ├ b ┤                    when what lay there before is done
//! ```
//! Whatever comes over memory that a store still reads waits for that store.

use neap_plan::{
    AfterCompute, Area, BufferId, ExecutionPlan, LaneId, Load, Place, Return, State, StepId,
    StepRange, Store, Turn, Workload,
};

use crate::placement::size_spaces;

use super::split::{Split, Stay, uses};

/// Something in the arena, in computes of one run.
struct Rect {
    area: Area,
    begin: i64,
    end: i64,
    opens: Opens,
}

/// What begins with a rectangle, and must wait for what is stored from its memory.
#[derive(Clone, Copy)]
enum Opens {
    /// It is computed into.
    Compute,
    /// A load of weights, by its place among those.
    Weights(usize),
    /// A load from the spill file, by its place among those.
    Spill(usize),
}

/// A return, and when its load may start.
struct Back {
    stay: usize,
    begin: u32,
}

pub fn merge(w: &Workload, split: &Split, mut plan: ExecutionPlan) -> ExecutionPlan {
    let n = plan.computes.len();
    let mut first = vec![n as u32; w.steps.len() + 1];
    for (i, c) in plan.computes.iter().enumerate().rev() {
        first[c.step.index()] = i as u32;
    }
    let place = |stay: &Stay| {
        let bytes = split.workload.buffers[stay.part as usize].bytes;
        plan.buffers[stay.part as usize].area(bytes)
    };
    let homes = Homes::of(w, split);
    let stores = stores(w, split, &first, &homes, place);
    let mut rects = rects(split, &plan, &first);
    let backs = returns(split, &first, &mut rects, place);

    // Stores that each load and compute must wait for.
    let mut weights_wait = vec![0u32; plan.loads.len()];
    let mut spill_wait = vec![0u32; backs.len()];
    let mut computes_wait = vec![0u32; n];
    for (store, (s, used_until)) in stores.iter().enumerate() {
        let until = i64::from(*used_until);
        for r in rects.iter().filter(|r| r.area.overlaps(s.area())) {
            let wait = match r.opens {
                Opens::Compute if r.begin >= until => computes_wait.get_mut(r.begin as usize),
                // Loads of the next run, that begin in this one.
                Opens::Weights(load) if r.begin < 0 && r.begin + n as i64 >= until => {
                    weights_wait.get_mut(load)
                }
                Opens::Weights(load) if r.begin >= until => weights_wait.get_mut(load),
                Opens::Spill(back) if r.begin >= until => spill_wait.get_mut(back),
                _ => None,
            };
            if let Some(wait) = wait {
                *wait = (*wait).max(store as u32 + 1);
            }
        }
    }

    // One lane for both kinds of loads, in the order in which they are needed.
    let mut needed_at = vec![n as u32; plan.loads.len()];
    let mut known = 0;
    for (i, c) in plan.computes.iter().enumerate() {
        let needs = c.needs() as usize;
        for at in &mut needed_at[known.min(needs)..needs] {
            *at = i as u32;
        }
        known = known.max(needs);
    }
    let mut lane: Vec<(u32, bool, usize)> = (0..plan.loads.len())
        .map(|i| (needed_at[i], false, i))
        .collect();
    lane.extend(backs.iter().enumerate().map(|(i, back)| {
        let step = returned_at(&split.stays[back.stay]);
        (first[step as usize], true, i)
    }));
    lane.sort();
    let mut loads = Vec::with_capacity(lane.len());
    let mut returns = Vec::with_capacity(backs.len());
    for (index, &(_, is_back, i)) in lane.iter().enumerate() {
        if !is_back {
            loads.push(Load {
                turn: plan.loads[i].after().load(weights_wait[i]),
                ..plan.loads[i]
            });
            continue;
        }
        let stay = &split.stays[backs[i].stay];
        let area = place(stay);
        // The last store of the buffer before it went; a state may be as the run before left it.
        let left = stay.after.and_then(|absence| absence.last_use);
        let source = left.and_then(|left| {
            stores.iter().rposition(|(s, used_until)| {
                s.buffer.0 == stay.buffer && *used_until <= first[left as usize + 1]
            })
        });
        let stored = source.map_or(0, |source| source as u32 + 1);
        loads.push(Load {
            from: Place::spill(homes.of_buffer(stay.buffer)),
            bytes: area.range.len(),
            to: Place::new(area.space, area.range.begin),
            turn: AfterCompute {
                run_back: 0,
                computes: backs[i].begin,
            }
            .load(spill_wait[i].max(stored)),
        });
        returns.push(Return {
            buffer: BufferId(stay.buffer),
            step: StepId(returned_at(stay)),
            load: index as u32,
        });
    }
    let mut needs = 0;
    for (i, c) in plan.computes.iter_mut().enumerate() {
        while lane.get(needs).is_some_and(|l| l.0 as usize <= i) {
            needs += 1;
        }
        c.turn = Turn::of(LaneId::COMPUTE)
            .after(LaneId::LOAD, needs as u32)
            .after(LaneId::STORE, computes_wait[i]);
    }
    returns.sort_by_key(|r| (r.buffer, r.step));
    plan.loads = loads;
    plan.returns = returns;
    plan.stores = stores.into_iter().map(|(store, _)| store).collect();
    plan.buffers.truncate(w.buffers.len());
    plan.digest.clone_from(&w.digest);
    plan.states = homes.states(w, split);
    let limit_bytes = plan.memory_bytes();
    size_spaces(w, &mut plan, limit_bytes);
    plan
}

fn returned_at(stay: &Stay) -> u32 {
    stay.after.and_then(|absence| absence.next_use).unwrap_or(0)
}

/// Where each buffer that is ever away lies in the spill file.
struct Homes(Vec<Option<u64>>);

impl Homes {
    fn of(w: &Workload, split: &Split) -> Homes {
        let mut end = 0;
        let mut offsets = vec![None; w.buffers.len()];
        for stay in &split.stays {
            offsets[stay.buffer as usize].get_or_insert_with(|| {
                let offset = end;
                end += split.workload.buffers[stay.part as usize].bytes;
                offset
            });
        }
        Homes(offsets)
    }

    fn of_buffer(&self, buffer: u32) -> u64 {
        self.0[buffer as usize].unwrap_or(0)
    }

    /// The states that stream.
    fn states(&self, w: &Workload, split: &Split) -> Vec<State> {
        let streams = w.states.iter();
        let streams = streams.filter(|&b| split.stays.iter().any(|s| s.buffer == b.0));
        let home = |&buffer: &BufferId| State {
            buffer,
            home: Place::spill(self.of_buffer(buffer.0)),
        };
        streams.map(home).collect()
    }
}

/// One store for each stay in which its buffer is written and behind which it is away, as early as it can
/// be, in that order; and when the buffer is used for the last time in that stay.
fn stores(
    w: &Workload,
    split: &Split,
    first: &[u32],
    homes: &Homes,
    place: impl Fn(&Stay) -> Area,
) -> Vec<(Store, u32)> {
    let uses = uses(w);
    let mut out = Vec::new();
    for stay in &split.stays {
        let Some(last_use) = stay.before.and_then(|absence| absence.last_use) else {
            continue;
        };
        let from = stay.after.map_or(0, |_| returned_at(stay));
        let mut written = uses[stay.buffer as usize]
            .iter()
            .filter(|(step, writes)| *writes && (from..=last_use).contains(step));
        let Some(&(step, _)) = written.next_back() else {
            continue;
        };
        let area = place(stay);
        let bytes = area.range.len();
        let store = Store {
            buffer: BufferId(stay.buffer),
            from: Place::new(area.space, area.range.begin),
            bytes,
            to: Place::spill(homes.of_buffer(stay.buffer)),
            turn: Turn::of(LaneId::STORE).after(LaneId::COMPUTE, first[step as usize + 1]),
        };
        out.push((store, first[last_use as usize + 1]));
    }
    out.sort_by_key(|(s, used_until)| (s.after(), *used_until, s.buffer));
    out
}

/// What the split plan puts into the arena, but for resident weights, which nothing meets. Those that
/// return come later.
fn rects(split: &Split, plan: &ExecutionPlan, first: &[u32]) -> Vec<Rect> {
    let n = plan.computes.len() as i64;
    let mut used: Vec<Option<StepRange>> =
        (split.workload.buffers.iter().map(|b| Some(b.live))).collect();
    for stay in &split.stays {
        used[stay.part as usize] = stay.after.is_none().then_some(stay.used);
    }
    let mut rects = Vec::new();
    let buffers = split.workload.buffers.iter().zip(&plan.buffers);
    for ((b, at), used) in buffers.zip(used) {
        if let Some(used) = used.filter(|used| b.bytes > 0 && !used.is_empty()) {
            rects.push(Rect {
                area: at.area(b.bytes),
                begin: i64::from(first[used.begin as usize]),
                end: i64::from(first[used.end as usize]),
                opens: Opens::Compute,
            });
        }
    }
    for (s, (step, at)) in split
        .workload
        .steps
        .iter()
        .zip(&plan.workspaces)
        .enumerate()
    {
        let reads_rows = plan.reads_rows(&split.workload, first[s] as usize);
        let bytes = step.workspace_rect_bytes(reads_rows);
        if bytes > 0 {
            rects.push(Rect {
                area: at.area(bytes),
                begin: i64::from(first[s]),
                end: i64::from(first[s + 1]),
                opens: Opens::Compute,
            });
        }
    }
    let mut last_use = vec![0i64; plan.loads.len()];
    for (i, c) in plan.computes.iter().enumerate() {
        let step = &split.workload.steps[c.step.index()];
        let panels = step
            .panels
            .map(|p| p.file_range(c.panels))
            .zip(c.weights.panels);
        let extents = step.extents.iter().map(|e| e.file_range());
        let extents = extents.zip(c.weights.extents.iter().copied());
        let table = step.rows.map(|r| r.file_range()).zip(c.weights.table);
        for (wanted, at) in panels.into_iter().chain(extents).chain(table) {
            let brings = |l: &Load| {
                l.file_range().holds(wanted)
                    && l.to.space == at.space
                    && l.to.offset.wrapping_sub(l.from.offset)
                        == at.offset.wrapping_sub(wanted.begin)
            };
            if let Some(load) = plan.loads[..c.needs() as usize].iter().rposition(brings) {
                last_use[load] = i as i64 + 1;
            }
        }
    }
    for (i, l) in plan.loads.iter().enumerate() {
        rects.push(Rect {
            area: l.area(),
            begin: i64::from(l.after().computes) - i64::from(l.after().run_back) * n,
            end: last_use[i],
            opens: Opens::Weights(i),
        });
    }
    rects
}

/// Stays that begin with a return, each from when all that lay there before is done.
fn returns(
    split: &Split,
    first: &[u32],
    rects: &mut Vec<Rect>,
    place: impl Fn(&Stay) -> Area,
) -> Vec<Back> {
    let mut order: Vec<usize> = (0..split.stays.len()).collect();
    order.retain(|&s| split.stays[s].after.is_some());
    order.sort_by_key(|&s| returned_at(&split.stays[s]));
    let mut backs = Vec::with_capacity(order.len());
    for stay in order {
        let s = &split.stays[stay];
        let area = place(s);
        let needed_at = i64::from(first[returned_at(s) as usize]);
        let before = rects
            .iter()
            .filter(|r| r.begin < needed_at && r.area.overlaps(area));
        let begin = before.map(|r| r.end).max().unwrap_or(0).clamp(0, needed_at);
        rects.push(Rect {
            area,
            begin,
            end: i64::from(first[s.used.end as usize]),
            opens: Opens::Spill(backs.len()),
        });
        backs.push(Back {
            stay,
            begin: begin as u32,
        });
    }
    backs
}
