//! Everything in work memory as rectangles, address × time, and that no two of them overlap.

use super::computes::StepTimes;
use super::spaces::{aligned, check_file_range, inside};
use super::stays::Stay;
use crate::{
    AfterCompute, Area, BLOCK_BYTES, BufferId, ExecutionPlan as Plan, LaneId, Place, SpaceId,
    SpaceKind, StepId, Violation, WORKSPACE_ALIGN, Workload,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;

/// What occupies memory.
#[derive(Clone, Copy)]
enum Object {
    Buffer(BufferId),
    Workspace(StepId),
    /// What the load of that index brings.
    Load(u32),
    /// A step's panels in the form that its kernel takes.
    Prepared(StepId),
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Object::Buffer(id) => write!(f, "buffer {}", id.0),
            Object::Workspace(step) => write!(f, "the workspace of step {}", step.0),
            Object::Load(load) => write!(f, "load {load}"),
            Object::Prepared(step) => write!(f, "the prepared panels of step {}", step.0),
        }
    }
}

fn name(of: Object, run: u64) -> String {
    match of {
        Object::Prepared(_) => of.to_string(),
        _ => format!("{of} of run {run}"),
    }
}

pub(super) struct Rect {
    owner: Object,
    run: u64,
    area: Area,
    begin: u64,
    /// No step uses it from then on; until `end` a store may still read it.
    used_until: u64,
    end: u64,
    /// The load that fills it, and the store that holds it, both of this run.
    opened_by: Option<u32>,
    held_by: Option<u32>,
}

const RUNS: u64 = 3;

/// All rectangles of [`RUNS`] consecutive runs, each inside its space and aligned.
pub(super) fn rectangles(
    w: &Workload,
    plan: &Plan,
    (times, compute_lane): (&StepTimes, LaneId),
    stays: &[Stay],
    last_use: &[Option<usize>],
) -> Result<Vec<Rect>, Violation> {
    let n = plan.computes.len() as u64;
    let items = stays.len() + w.steps.len() + plan.loads.len();
    let mut rects = Vec::with_capacity(items * RUNS as usize + plan.prepared.len());
    // Times are relative to run 1, where a load's start in the run before is not negative.
    for stay in stays {
        let owner = Object::Buffer(BufferId(stay.buffer as u32));
        let rect = Rect {
            owner,
            run: 0,
            area: in_work(plan, owner, stay.at, stay.bytes, stay.align)?,
            begin: n + stay.begin,
            used_until: n + stay.used_until,
            end: n + stay.end,
            opened_by: stay.opened_by,
            held_by: stay.held_by,
        };
        rects.extend((0..RUNS).map(|run| rect.in_run(run, n)));
    }
    for (i, (s, &at)) in w.steps.iter().zip(&plan.workspaces).enumerate() {
        let bytes = s.workspace_rect_bytes(times.reads_rows[i]);
        if bytes > 0 {
            let owner = Object::Workspace(StepId(i as u32));
            let area = in_work(
                plan,
                owner,
                at,
                bytes,
                s.workspace_align(times.reads_rows[i]),
            )?;
            let rect = Rect::plain(owner, area, n + times.first[i], n + times.first[i + 1]);
            rects.extend((0..RUNS).map(|run| rect.in_run(run, n)));
        }
    }
    for (i, l) in plan.loads.iter().enumerate() {
        if plan.kind(l.from.space) == Some(SpaceKind::Spill) {
            // The stay that it opens is its rectangle.
            continue;
        }
        check_file_range(plan, || format!("load {i}"), l.from, l.bytes)?;
        let Some(last) = last_use[i] else {
            return Err(Violation::UnusedLoad { load: i });
        };
        let area = in_work(plan, Object::Load(i as u32), l.to, l.bytes, BLOCK_BYTES)?;
        let rect = Rect {
            opened_by: Some(i as u32),
            ..Rect::plain(
                Object::Load(i as u32),
                area,
                AfterCompute::of(l.turn, compute_lane).time(1, n),
                n + last as u64 + 1,
            )
        };
        rects.extend((0..RUNS).map(|run| rect.in_run(run, n)));
    }
    for p in &plan.prepared {
        let owner = Object::Prepared(p.step);
        let bytes = w.steps[p.step.index()].prepared_bytes();
        let area = in_work(plan, owner, p.at, bytes, WORKSPACE_ALIGN)?;
        rects.push(Rect::plain(owner, area, 0, (RUNS + 1) * n.max(1)));
    }
    Ok(rects)
}

impl Rect {
    fn plain(owner: Object, area: Area, begin: u64, end: u64) -> Rect {
        Rect {
            owner,
            run: 0,
            area,
            begin,
            used_until: end,
            end,
            opened_by: None,
            held_by: None,
        }
    }

    fn in_run(&self, run: u64, n: u64) -> Rect {
        Rect {
            run,
            begin: self.begin + run * n,
            used_until: self.used_until + run * n,
            end: self.end + run * n,
            ..*self
        }
    }
}

fn in_work(
    plan: &Plan,
    owner: Object,
    at: Place,
    bytes: u64,
    align: u64,
) -> Result<Area, Violation> {
    let what = || name(owner, 0);
    aligned(what, at, align)?;
    inside(plan, what, at, bytes, SpaceKind::Work)?;
    Ok(at.area(bytes))
}

/// Whether `next`, which comes while a store may still read `held`, waits for that store by itself.
fn waits_for_store(plan: &Plan, held: &Rect, next: &Rect) -> bool {
    let (Some(store), Some(load)) = (held.held_by, next.opened_by) else {
        return false;
    };
    let stored_in = plan.stores[store as usize].turn.lane;
    let of_lane = plan.stores.iter().map(|s| s.turn.lane);
    let rank = of_lane.take(store as usize).filter(|l| *l == stored_in);
    let Some(wait) = plan.loads[load as usize].turn.wait_for(stored_in) else {
        return false;
    };
    held.used_until <= next.begin
        && held.run + u64::from(wait.run_back) == next.run
        && wait.count as usize > rank.count()
}

/// Sweeps time; every rectangle that begins is compared with what is live where it lies. Returns the most bytes live at once.
pub(super) fn check_overlaps(plan: &Plan, rects: &[Rect]) -> Result<u64, Violation> {
    let mut by_begin: Vec<(u64, usize)> = (0..).zip(rects).map(|(i, r)| (r.begin, i)).collect();
    by_begin.sort_unstable();
    let mut live = Live::default();
    let mut most_live = 0u64;
    for (_, index) in by_begin {
        let r = &rects[index];
        if r.begin >= r.end {
            let Some(load) = r.opened_by else { continue };
            return Err(Violation::Dependency {
                load: load as usize,
                why: "it may start only after its last use".into(),
            });
        }
        live.advance(rects, r.begin);
        if let Some(other) = live.meets(plan, r) {
            let (a, b) = (name(other.owner, other.run), name(r.owner, r.run));
            return Err(Violation::Overlap {
                a,
                b,
                time: r.begin,
            });
        }
        live.add(rects, index);
        most_live = most_live.max(live.used_bytes);
    }
    Ok(most_live)
}

/// What is live at one moment.
#[derive(Default)]
struct Live<'a> {
    /// By space and address: rectangles of which no two overlap, so that a new one can only meet its neighbour.
    apart: BTreeMap<(SpaceId, u64), &'a Rect>,
    /// Those that a store reads to their end. What waits for that store may overlap them.
    stored: Vec<&'a Rect>,
    /// By end.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    /// By last use, with their bytes.
    used: BinaryHeap<Reverse<(u64, u64)>>,
    used_bytes: u64,
}

impl<'a> Live<'a> {
    /// Forgets what has ended by then.
    fn advance(&mut self, rects: &[Rect], time: u64) {
        while let Some(&Reverse((end, index))) = self.ends.peek()
            && end <= time
        {
            let area = rects[index].area;
            self.apart.remove(&(area.space, area.range.begin));
            self.ends.pop();
        }
        self.stored.retain(|other| other.end > time);
        while let Some(&Reverse((until, bytes))) = self.used.peek()
            && until <= time
        {
            self.used_bytes -= bytes;
            self.used.pop();
        }
    }

    fn meets(&self, plan: &Plan, r: &Rect) -> Option<&'a Rect> {
        let Area { space, range } = r.area;
        let below = self.apart.range((space, 0)..(space, range.end));
        let neighbour = below.map(|(_, &other)| other).next_back();
        let neighbour = neighbour.filter(|other| other.area.overlaps(r.area));
        let stored = || {
            let mut all = self.stored.iter().copied();
            all.find(|other| other.area.overlaps(r.area) && !waits_for_store(plan, other, r))
        };
        neighbour.or_else(stored)
    }

    fn add(&mut self, rects: &'a [Rect], index: usize) {
        let r = &rects[index];
        let bytes = r.area.range.len();
        if r.held_by.is_some() {
            self.stored.push(r);
        } else if bytes > 0 {
            let key = (r.area.space, r.area.range.begin);
            self.apart.insert(key, r);
            self.ends.push(Reverse((r.end, index)));
        }
        if r.used_until > r.begin {
            self.used_bytes += bytes;
            self.used.push(Reverse((r.used_until, bytes)));
        }
    }
}
