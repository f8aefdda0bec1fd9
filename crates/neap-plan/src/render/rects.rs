//! The rectangles of one run, address × computes, that the renderings draw.
//!
//! A picture has one axis of addresses: memory spaces one above the other, and of those that are charged in parts only
//! what is charged.

use crate::{
    Area, BufferId, ByteRange, ExecutionPlan, LaneId, Place, SpaceKind, Timeline, Workload, sets,
    whole_blocks,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Buffer,
    Workspace,
    Load,
    Resident,
    Prepared,
}

/// Times are in computes of the run at hand; a load that starts in the run before begins below zero.
#[derive(Clone, Copy, Debug)]
pub struct Rect {
    pub kind: Kind,
    /// Index of the buffer, step, load, part of resident memory or step with prepared panels.
    pub index: usize,
    /// In the picture.
    pub arena: ByteRange,
    pub begin: i64,
    pub end: i64,
    /// For a load, the first compute that uses it; else `begin`.
    pub used_from: i64,
}

/// First compute of each step, and one more entry: the number of computes.
pub fn first_computes(workload: &Workload, plan: &ExecutionPlan) -> Vec<usize> {
    let mut first = vec![plan.computes.len(); workload.steps.len() + 1];
    for (i, c) in plan.computes.iter().enumerate().rev() {
        first[c.step.index()] = i;
    }
    first
}

/// By load: first and last compute that use it. For a valid plan, every load of weights has some.
pub fn uses(workload: &Workload, plan: &ExecutionPlan) -> Vec<Option<(usize, usize)>> {
    let mut uses: Vec<Option<(usize, usize)>> = vec![None; plan.loads.len()];
    for (compute, load) in plan.uses(workload) {
        let first = uses[load].map_or(compute, |u| u.0);
        uses[load] = Some((first, compute));
    }
    uses
}

/// Where the parts of memory are in a picture.
struct Axis {
    /// What is charged, by place, and where it begins in the picture.
    parts: Vec<(Area, u64)>,
}

impl Axis {
    fn new(plan: &ExecutionPlan) -> Axis {
        let mut parts = Vec::new();
        let mut end = 0;
        for (id, space) in (0..).map(crate::SpaceId).zip(&plan.spaces) {
            let charged = match space.kind {
                SpaceKind::Work => vec![ByteRange::new(0, space.bytes)],
                SpaceKind::Resident => {
                    let resident = plan.resident.iter().filter(|r| r.to.space == id);
                    sets::set_of(resident.map(|r| r.area().range).collect())
                }
                SpaceKind::Spill | SpaceKind::Packed | SpaceKind::Host | SpaceKind::State => {
                    continue;
                }
            };
            for range in charged {
                parts.push((Area { space: id, range }, end));
                end += range.len();
            }
        }
        Axis { parts }
    }

    fn range(&self, at: Place, bytes: u64) -> ByteRange {
        let known = |(area, _): &&(Area, u64)| {
            area.space == at.space && (area.range.begin..=area.range.end).contains(&at.offset)
        };
        let part = self.parts.iter().rfind(known);
        let begin = part.map_or(0, |(area, begin)| begin + (at.offset - area.range.begin));
        ByteRange::at(begin, bytes)
    }
}

/// All rectangles of one run of a valid plan.
pub fn rects(workload: &Workload, plan: &ExecutionPlan) -> Vec<Rect> {
    let n = plan.computes.len() as i64;
    let first = first_computes(workload, plan);
    let axis = Axis::new(plan);
    let mut out = Vec::new();
    for (index, b) in workload.buffers.iter().enumerate() {
        if b.bytes > 0 && !b.live.is_empty() {
            stays(workload, plan, &first, &axis, index, &mut out);
        }
    }
    for (index, (step, &at)) in workload.steps.iter().zip(&plan.workspaces).enumerate() {
        let reads_rows = plan
            .computes
            .get(first[index])
            .is_some_and(|c| c.weights.table.is_none());
        let bytes = step.workspace_rect_bytes(reads_rows);
        if bytes > 0 {
            let (begin, end) = (first[index] as i64, first[index + 1] as i64);
            let arena = axis.range(at, bytes);
            out.push(Rect {
                kind: Kind::Workspace,
                index,
                arena,
                begin,
                end,
                used_from: begin,
            });
        }
    }
    for (index, (load, uses)) in plan.loads.iter().zip(uses(workload, plan)).enumerate() {
        let Some((first_use, last_use)) = uses else {
            continue;
        };
        let begin = i64::from(load.after().computes) - i64::from(load.after().run_back) * n;
        let (used_from, end) = (first_use as i64, last_use as i64 + 1);
        let arena = axis.range(load.to, load.bytes);
        out.push(Rect {
            kind: Kind::Load,
            index,
            arena,
            begin,
            end,
            used_from,
        });
    }
    let resident = |(area, _): &&(Area, u64)| plan.kind(area.space) == Some(SpaceKind::Resident);
    let resident = axis.parts.iter().filter(resident);
    let resident = resident.map(|&(area, begin)| ByteRange::at(begin, area.range.len()));
    for (index, arena) in sets::set_of(resident.collect()).into_iter().enumerate() {
        out.push(Rect {
            kind: Kind::Resident,
            index,
            arena,
            begin: 0,
            end: n,
            used_from: 0,
        });
    }
    for p in &plan.prepared {
        let index = p.step.index();
        let bytes = workload.steps[index].prepared_bytes();
        out.push(Rect {
            kind: Kind::Prepared,
            index,
            arena: axis.range(p.at, bytes),
            begin: 0,
            end: n,
            used_from: 0,
        });
    }
    out
}

/// The places of one buffer: the first until it leaves, then one for each return. `used_from` of a
/// return is the compute that waits for it; it may be on its way since `begin`.
fn stays(
    workload: &Workload,
    plan: &ExecutionPlan,
    first: &[usize],
    axis: &Axis,
    index: usize,
    out: &mut Vec<Rect>,
) {
    let spec = &workload.buffers[index];
    let id = BufferId(index as u32);
    let returns = plan.returns_of(id);
    let uses = |step: &usize| {
        let s = &workload.steps[*step];
        s.reads.contains(&id) || s.writes.contains(&id)
    };
    let is_stored = plan.stores.iter().any(|s| s.buffer == id);
    let bytes = if is_stored || !returns.is_empty() {
        whole_blocks(spec.bytes)
    } else {
        spec.bytes
    };
    for i in 0..=returns.len() {
        let from = match i {
            0 => spec.live.begin as usize,
            _ => returns[i - 1].step.index(),
        };
        let leaves = i < returns.len() || (spec.kept && is_stored);
        let until = returns.get(i).map_or(spec.live.end, |r| r.step.0) as usize;
        let end = if leaves {
            let last_use = (from..until).rev().find(uses);
            first[last_use.map_or(from, |step| step + 1)]
        } else {
            first[until]
        };
        let load = i
            .checked_sub(1)
            .map(|i| &plan.loads[returns[i].load as usize]);
        let at = load.map_or(plan.buffers[index], |l| l.to);
        let begin = load.map_or(first[from], |l| l.after().computes as usize);
        out.push(Rect {
            kind: Kind::Buffer,
            index,
            arena: axis.range(at, bytes),
            begin: begin as i64,
            end: end as i64,
            used_from: first[from] as i64,
        });
    }
}

/// When a lane was busy with those actions in the last run, in nanoseconds from the run's start, in order and apart: loads
/// in flight together share the storage, so each counts from the end of the one before. What happened in
/// the tail of the run before is shown in the tail of this one, as the cycle repeats.
pub fn busy(timeline: &Timeline, lane: LaneId, counts: impl Fn(usize) -> bool) -> Vec<(u64, u64)> {
    let Some(run) = timeline.last_run() else {
        return Vec::new();
    };
    let last = timeline.runs.len() as u32 - 1;
    let latency = run.latency_ns();
    let mut free_at = 0;
    let mut out = Vec::new();
    let spans = timeline.spans.iter();
    for s in spans.filter(|s| s.lane == lane && counts(s.action as usize)) {
        let begin = s.start_ns.max(free_at);
        free_at = free_at.max(s.end_ns);
        if s.run != last || begin >= s.end_ns {
            continue;
        }
        // Unsigned time from one run before the run's start.
        let shift = |ns: u64| (ns + latency).saturating_sub(run.start_ns);
        let (begin, end) = (shift(begin), shift(s.end_ns));
        out.extend([
            (begin.min(latency), end.min(latency)),
            (
                begin.max(latency) - latency,
                (end.max(latency) - latency).min(latency),
            ),
        ]);
    }
    out.retain(|(begin, end)| begin < end);
    out.sort_unstable();
    out
}
