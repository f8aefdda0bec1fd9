//! The independent validator: proves that a plan computes the whole workload with the right weights in
//! memory, whatever the speed of the lanes. Shares no code with any planner; every plan passes it before it runs.
//!
//! It unrolls the cycle. Time is counted in computes: compute `i` of run `r` occupies `[r·n + i, r·n + i + 1)`.
//! Everything in the arena is a rectangle, address × time, and two rectangles may not overlap:
//!
//! ```text
//!   buffer      first compute of its first step  →  last compute of its last step
//!   workspace   first → last compute of its step
//!   load        its `after` → the last compute that uses it      (it may be in flight from `after` on)
//!   resident    always
//! ```
//!
//! A load lives less than two runs, so three consecutive runs show every meeting of two rectangles.

use std::collections::HashMap;

use thiserror::Error;

use crate::{
    BLOCK_BYTES, ByteRange, Compute, ExecutionPlan, ExecutionPlan as Plan, PanelRange, StepSpec,
    Workload,
};

/// What a valid plan uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// One past the highest arena byte that anything uses.
    pub high_water_bytes: u64,
    /// Most bytes live at any one time: no layout of the same live ranges can do with fewer.
    pub lower_bound_bytes: u64,
    pub loaded_bytes_per_run: u64,
    pub resident_bytes: u64,
}

/// The first thing found wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    #[error("the plan is for digest {plan:?}, the workload is {workload:?}")]
    Digest { plan: String, workload: String },
    #[error("malformed workload: {0}")]
    Workload(String),
    #[error("{what}: the plan lists {got}, the workload has {want}")]
    Count {
        what: &'static str,
        got: usize,
        want: usize,
    },
    #[error("{what} at offset {offset} is not aligned to {align}")]
    Misaligned {
        what: String,
        offset: u64,
        align: u64,
    },
    #[error("{what} at offset {offset} with {bytes} bytes exceeds the arena of {arena_bytes}")]
    OutsideArena {
        what: String,
        offset: u64,
        bytes: u64,
        arena_bytes: u64,
    },
    #[error("compute {compute}: {why}")]
    Coverage { compute: usize, why: String },
    #[error("compute {compute}: no load that is complete by then puts {what} at offset {offset}")]
    WeightMissing {
        compute: usize,
        what: String,
        offset: u64,
    },
    #[error("load {load}: {why}")]
    Dependency { load: usize, why: String },
    #[error("load {load} is used by no compute")]
    UnusedLoad { load: usize },
    #[error(
        "load {load} can never start: it waits for compute {compute}, which needs {needs} loads"
    )]
    Deadlock {
        load: usize,
        compute: usize,
        needs: u32,
    },
    #[error("compute {compute} needs {needs} of {loads} loads")]
    Needs {
        compute: usize,
        needs: u32,
        loads: usize,
    },
    #[error("{a} and {b} overlap in memory at time {time}")]
    Overlap { a: String, b: String, time: u64 },
}

/// Checks everything that [`crate::ExecutionPlan`] promises; see the module for what that is.
pub fn validate(workload: &Workload, plan: &ExecutionPlan) -> Result<Verdict, Violation> {
    check_workload(workload)?;
    check_shape(workload, plan)?;
    let times = check_coverage(workload, plan)?;
    let last_use = check_weights(workload, plan)?;
    check_dependencies(plan)?;
    let rects = rectangles(workload, plan, &times, &last_use)?;
    let (high_water_bytes, lower_bound_bytes) = check_overlaps(plan, rects)?;
    Ok(Verdict {
        high_water_bytes,
        lower_bound_bytes,
        loaded_bytes_per_run: plan.loaded_bytes_per_run(),
        resident_bytes: plan.resident_bytes(),
    })
}

/// Whether a workload's numbers make sense. Planners and `validate` may then use them without fear of
/// overflow or of allocating what no real network needs, also when they come from a hostile file.
pub fn check_workload(w: &Workload) -> Result<(), Violation> {
    const LIMIT: u64 = 1 << 44;
    const MOST_ITEMS: usize = 1 << 17;
    const MOST_PANELS: u64 = 1 << 20;
    let bad = |why: String| Err(Violation::Workload(why));
    let fits = |offset: u64, bytes: u64| offset < LIMIT && bytes < LIMIT;
    let extents: usize = w.steps.iter().map(|s| s.extents.len()).sum();
    if w.steps.len().max(w.buffers.len()).max(extents) > MOST_ITEMS {
        return bad("too many steps, buffers or extents".into());
    }
    let panels = |s: &StepSpec| s.panels.map_or(0, |p| u64::from(p.panels));
    if w.steps.iter().map(panels).sum::<u64>() > MOST_PANELS {
        return bad("too many panels".into());
    }
    for (i, s) in w.steps.iter().enumerate() {
        if let Some(p) = s.panels {
            if p.panels == 0 || p.panel_bytes == 0 || p.granule == 0 {
                return bad(format!("step {i} has panels of no size"));
            }
            let whole = p.panel_bytes.checked_mul(u64::from(p.panels));
            if !whole.is_some_and(|bytes| fits(p.file_offset, bytes)) {
                return bad(format!("the panels of step {i} end past any file"));
            }
        }
        let table = s.rows.iter().map(|r| (r.file_offset, r.bytes));
        for (offset, bytes) in s
            .extents
            .iter()
            .map(|e| (e.file_offset, e.bytes))
            .chain(table)
        {
            if bytes == 0 || !fits(offset, bytes) {
                return bad(format!(
                    "step {i} has an extent of {bytes} bytes at {offset}"
                ));
            }
        }
        let rows_bytes = s.rows.map_or(0, |r| r.rows_workspace_bytes);
        if !fits(rows_bytes, s.workspace_bytes) {
            return bad(format!("the workspace of step {i} is too large"));
        }
    }
    for (i, b) in w.buffers.iter().enumerate() {
        if !b.align.is_power_of_two() || b.align > BLOCK_BYTES || b.bytes >= LIMIT {
            return bad(format!(
                "buffer {i} has {} bytes aligned to {}",
                b.bytes, b.align
            ));
        }
        if b.live.end as usize > w.steps.len() || b.live.begin > b.live.end {
            return bad(format!(
                "buffer {i} lives in steps {}..{}",
                b.live.begin, b.live.end
            ));
        }
    }
    Ok(())
}

fn check_shape(w: &Workload, plan: &Plan) -> Result<(), Violation> {
    if plan.digest != w.digest {
        return Err(Violation::Digest {
            plan: plan.digest.clone(),
            workload: w.digest.clone(),
        });
    }
    let counts = [
        ("buffers", plan.buffers.len(), w.buffers.len()),
        ("workspaces", plan.workspaces.len(), w.steps.len()),
    ];
    for (what, got, want) in counts {
        if got != want {
            return Err(Violation::Count { what, got, want });
        }
    }
    Ok(())
}

/// When each step computes: `times[s]` is the step's range of computes.
struct StepTimes {
    /// First compute of each step, and one more entry: the number of computes.
    first: Vec<u64>,
    /// Whether the step reads table rows from storage.
    reads_rows: Vec<bool>,
}

/// Every panel of every step exactly once, in order, and every weight given an address.
fn check_coverage(w: &Workload, plan: &Plan) -> Result<StepTimes, Violation> {
    let n = plan.computes.len();
    let bad = |compute: usize, why: String| Err(Violation::Coverage { compute, why });
    let mut first = Vec::with_capacity(w.steps.len() + 1);
    let mut reads_rows = Vec::with_capacity(w.steps.len());
    let mut at = 0;
    for (s, step) in w.steps.iter().enumerate() {
        first.push(at as u64);
        let want = step.panels.map_or(PanelRange::NONE, |p| p.all());
        let mut done = want.begin;
        let begin = at;
        loop {
            let Some(c) = plan.computes.get(at) else {
                return bad(at, format!("step {s} is not computed to its end"));
            };
            if c.step.index() != s {
                return bad(at, format!("step {} where step {s} is due", c.step.0));
            }
            check_weight_list(at, step, c)?;
            if c.weights.table.is_some() != plan.computes[begin].weights.table.is_some() {
                return bad(
                    at,
                    "slices of one step disagree on where its table is".into(),
                );
            }
            let advances = c.panels.end > c.panels.begin || want.is_empty();
            if c.panels.begin != done || !advances || c.panels.end > want.end {
                return bad(
                    at,
                    format!(
                        "panels {}..{} where {done} is due",
                        c.panels.begin, c.panels.end
                    ),
                );
            }
            done = c.panels.end;
            at += 1;
            if done == want.end {
                break;
            }
        }
        reads_rows.push(step.rows.is_some() && plan.computes[begin].weights.table.is_none());
    }
    if at != n {
        return bad(at, "computes after the last step".into());
    }
    first.push(n as u64);
    Ok(StepTimes { first, reads_rows })
}

fn check_weight_list(compute: usize, step: &StepSpec, c: &Compute) -> Result<(), Violation> {
    let listed = (c.weights.panels.is_some(), c.weights.extents.len());
    if listed != (step.panels.is_some(), step.extents.len()) {
        return Err(Violation::Coverage {
            compute,
            why: "its list of weights does not fit its step".into(),
        });
    }
    if c.weights.table.is_some() && step.rows.is_none() {
        return Err(Violation::Coverage {
            compute,
            why: "it places a table that its step does not have".into(),
        });
    }
    Ok(())
}

/// Finds, for each weight that a compute wants, the load that brings it. Returns the last use of each load.
fn check_weights(w: &Workload, plan: &Plan) -> Result<Vec<Option<usize>>, Violation> {
    // A load puts file byte f at arena byte f + delta; a wanted range lies in a load of the same delta.
    let mut by_delta: HashMap<u64, Vec<(ByteRange, Option<usize>)>> = HashMap::new();
    for r in &plan.resident {
        by_delta
            .entry(r.offset.wrapping_sub(r.file_offset))
            .or_default()
            .push((r.file_range(), None));
    }
    for (i, l) in plan.loads.iter().enumerate() {
        by_delta
            .entry(l.offset.wrapping_sub(l.file_offset))
            .or_default()
            .push((l.file_range(), Some(i)));
    }
    let mut last_use = vec![None; plan.loads.len()];
    for (compute, c) in plan.computes.iter().enumerate() {
        if c.needs as usize > plan.loads.len() {
            return Err(Violation::Needs {
                compute,
                needs: c.needs,
                loads: plan.loads.len(),
            });
        }
        let step = &w.steps[c.step.index()];
        let panels = step
            .panels
            .map(|p| p.file_range(c.panels))
            .zip(c.weights.panels);
        let extents = step
            .extents
            .iter()
            .map(|e| e.file_range())
            .zip(c.weights.extents.iter().copied());
        let table = step.rows.map(|r| r.file_range()).zip(c.weights.table);
        for (k, (wanted, offset)) in panels.into_iter().chain(extents).chain(table).enumerate() {
            let found = by_delta
                .get(&offset.wrapping_sub(wanted.begin))
                .and_then(|loads| {
                    let complete = |load: Option<usize>| load.is_none_or(|l| l < c.needs as usize);
                    loads
                        .iter()
                        .rev()
                        .find(|(range, load)| range.holds(wanted) && complete(*load))
                });
            match found {
                None => {
                    return Err(Violation::WeightMissing {
                        compute,
                        what: format!("weight {k}"),
                        offset,
                    });
                }
                Some((_, Some(load))) => last_use[*load] = Some(compute),
                Some((_, None)) => {}
            }
        }
    }
    Ok(last_use)
}

/// Loads in a form that can always make progress: in lane order, none waits for a compute that needs it.
fn check_dependencies(plan: &Plan) -> Result<(), Violation> {
    let n = plan.computes.len();
    // need_up_to[c] = most loads needed by any of the first c computes.
    let mut need_up_to = vec![(0u32, 0usize); n + 1];
    for (i, c) in plan.computes.iter().enumerate() {
        need_up_to[i + 1] = need_up_to[i].max((c.needs, i));
    }
    for (load, l) in plan.loads.iter().enumerate() {
        let why = match (l.after.run_back, l.after.computes as usize) {
            (0, c) if c <= n => {
                let (needs, compute) = need_up_to[c];
                if needs as usize > load {
                    return Err(Violation::Deadlock {
                        load,
                        compute,
                        needs,
                    });
                }
                continue;
            }
            (1, c) if c < n => continue,
            (0 | 1, c) => format!("it waits for {c} of {n} computes"),
            (back, _) => format!("it waits for a run {back} back"),
        };
        return Err(Violation::Dependency { load, why });
    }
    Ok(())
}

/// What a rectangle is, for messages.
#[derive(Clone, Copy)]
enum Owner {
    Buffer(usize),
    Workspace(usize),
    Load(usize),
    Resident(usize),
}

impl Owner {
    fn name(self, run: u64) -> String {
        match self {
            Owner::Buffer(i) => format!("buffer {i} of run {run}"),
            Owner::Workspace(i) => format!("the workspace of step {i} of run {run}"),
            Owner::Load(i) => format!("load {i} of run {run}"),
            Owner::Resident(i) => format!("resident load {i}"),
        }
    }
}

struct Rect {
    owner: Owner,
    run: u64,
    arena: ByteRange,
    begin: u64,
    end: u64,
}

const RUNS: u64 = 3;

/// All rectangles of [`RUNS`] consecutive runs, each inside the arena and aligned.
fn rectangles(
    w: &Workload,
    plan: &Plan,
    times: &StepTimes,
    last_use: &[Option<usize>],
) -> Result<Vec<Rect>, Violation> {
    let n = plan.computes.len() as u64;
    let mut rects =
        Vec::with_capacity((w.buffers.len() + w.steps.len() + plan.loads.len()) * RUNS as usize);
    let mut add =
        |owner: Owner, offset: u64, bytes: u64, align: u64, live: (u64, u64), cyclic: bool| {
            if !offset.is_multiple_of(align) {
                return Err(Violation::Misaligned {
                    what: owner.name(0),
                    offset,
                    align,
                });
            }
            if offset
                .checked_add(bytes)
                .is_none_or(|end| end > plan.arena_bytes)
            {
                let what = owner.name(0);
                return Err(Violation::OutsideArena {
                    what,
                    offset,
                    bytes,
                    arena_bytes: plan.arena_bytes,
                });
            }
            let arena = ByteRange::at(offset, bytes);
            for run in 0..if cyclic { RUNS } else { 1 } {
                // Times are relative to run 1, where a load's start in the run before is not negative.
                let (begin, end) = if cyclic {
                    (live.0 + run * n, live.1 + run * n)
                } else {
                    live
                };
                rects.push(Rect {
                    owner,
                    run,
                    arena,
                    begin,
                    end,
                });
            }
            Ok(())
        };
    for (i, (b, &offset)) in w.buffers.iter().zip(&plan.buffers).enumerate() {
        if b.bytes > 0 && !b.live.is_empty() {
            let live = (
                n + times.first[b.live.begin as usize],
                n + times.first[b.live.end as usize],
            );
            add(Owner::Buffer(i), offset, b.bytes, b.align, live, true)?;
        }
    }
    for (i, (s, &offset)) in w.steps.iter().zip(&plan.workspaces).enumerate() {
        let bytes = s.workspace_rect_bytes(times.reads_rows[i]);
        if bytes > 0 {
            let live = (n + times.first[i], n + times.first[i + 1]);
            add(
                Owner::Workspace(i),
                offset,
                bytes,
                s.workspace_align(times.reads_rows[i]),
                live,
                true,
            )?;
        }
    }
    for (i, l) in plan.loads.iter().enumerate() {
        check_blocks(format!("load {i}"), l.file_offset, l.bytes)?;
        let Some(last) = last_use[i] else {
            return Err(Violation::UnusedLoad { load: i });
        };
        let live = (l.after.time(1, n), n + last as u64 + 1);
        add(Owner::Load(i), l.offset, l.bytes, BLOCK_BYTES, live, true)?;
    }
    for (i, r) in plan.resident.iter().enumerate() {
        check_blocks(format!("resident load {i}"), r.file_offset, r.bytes)?;
        add(
            Owner::Resident(i),
            r.offset,
            r.bytes,
            BLOCK_BYTES,
            (0, (RUNS + 1) * n.max(1)),
            false,
        )?;
    }
    Ok(rects)
}

fn check_blocks(what: String, file_offset: u64, bytes: u64) -> Result<(), Violation> {
    if !file_offset.is_multiple_of(BLOCK_BYTES) || !bytes.is_multiple_of(BLOCK_BYTES) || bytes == 0
    {
        let offset = if file_offset.is_multiple_of(BLOCK_BYTES) {
            bytes
        } else {
            file_offset
        };
        return Err(Violation::Misaligned {
            what: format!("the file range of {what}"),
            offset,
            align: BLOCK_BYTES,
        });
    }
    Ok(())
}

/// Sweeps time; every rectangle that begins is compared with all that are live. Returns the high-water
/// mark and the most bytes live at once.
fn check_overlaps(plan: &Plan, mut rects: Vec<Rect>) -> Result<(u64, u64), Violation> {
    rects.sort_by_key(|r| r.begin);
    let mut live: Vec<&Rect> = Vec::new();
    let mut high_water = 0;
    let mut most_live = 0u64;
    for r in &rects {
        if r.begin >= r.end {
            let Owner::Load(load) = r.owner else { continue };
            return Err(Violation::Dependency {
                load,
                why: "it may start only after its last use".into(),
            });
        }
        live.retain(|other| other.end > r.begin);
        if let Some(other) = live.iter().find(|other| other.arena.overlaps(r.arena)) {
            let (a, b) = (other.owner.name(other.run), r.owner.name(r.run));
            return Err(Violation::Overlap {
                a,
                b,
                time: r.begin,
            });
        }
        live.push(r);
        high_water = high_water.max(r.arena.end);
        most_live = most_live.max(live.iter().map(|r| r.arena.len()).sum());
    }
    debug_assert!(high_water <= plan.arena_bytes);
    Ok((high_water, most_live))
}
