//! What is computed: every panel of every step once, in order, with its weights in memory by then.

use super::lanes::ranks;
use crate::{
    ByteRange, Compute, ExecutionPlan as Plan, PanelRange, Place, SpaceId, SpaceKind, StepSpec,
    Violation, Workload,
};

/// When each step computes: `times[s]` is the step's range of computes.
pub(super) struct StepTimes {
    /// First compute of each step, and one more entry: the number of computes.
    pub first: Vec<u64>,
    /// Whether the step reads table rows from storage.
    pub reads_rows: Vec<bool>,
}

/// Every panel of every step exactly once, in order, and every weight given an address.
pub(super) fn check_coverage(w: &Workload, plan: &Plan) -> Result<StepTimes, Violation> {
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

/// Byte `f` of the file goes to byte `f + delta` of the space: a weight that is wanted at a place lies in a load
/// with the same key as its own.
type Key = (SpaceId, u64);

fn key(at: Place, file_offset: u64) -> Key {
    (at.space, at.offset.wrapping_sub(file_offset))
}

/// What is brought of the file, by key and then by address.
struct Brought<T>(Vec<(Key, ByteRange, T)>);

impl<T: Copy> Brought<T> {
    fn new(items: impl Iterator<Item = (Place, ByteRange, T)>) -> Self {
        let mut items: Vec<_> = items
            .map(|(to, file, what)| (key(to, file.begin), file, what))
            .collect();
        // Those of one key and address stay in their order.
        items.sort_by_key(|&(key, file, _)| (key, file.begin));
        Brought(items)
    }

    fn of(&self, key: Key) -> &[(Key, ByteRange, T)] {
        let begin = self.0.partition_point(|&(k, ..)| k < key);
        let end = self.0.partition_point(|&(k, ..)| k <= key);
        &self.0[begin..end]
    }
}

/// Finds, for each weight that a compute wants, what brings it: a load that is complete by then, or resident loads that
/// the compute has waited for. Returns the last use of each load.
pub(super) fn check_weights(w: &Workload, plan: &Plan) -> Result<Vec<Option<usize>>, Violation> {
    let from_packed = |from: Place| plan.kind(from.space) == Some(SpaceKind::Packed);
    let loads = (0..).zip(&plan.loads).filter(|(_, l)| from_packed(l.from));
    let loads: Brought<usize> = Brought::new(loads.map(|(i, l)| (l.to, l.file_range(), i)));
    let resident = plan.resident.iter();
    let resident = Brought::new(resident.map(|r| (r.to, r.file_range(), r.first)));
    let ranks = ranks(plan, plan.loads.iter().map(|l| l.turn));
    let is_complete =
        |load: usize, c: &Compute| ranks[load] < c.turn.count(plan.loads[load].turn.lane);
    let mut last_use = vec![None; plan.loads.len()];
    for (compute, c) in plan.computes.iter().enumerate() {
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
        for (k, (wanted, at)) in panels.into_iter().chain(extents).chain(table).enumerate() {
            let key = key(at, wanted.begin);
            let missing = || Violation::WeightMissing {
                compute,
                what: format!("weight {k}"),
                at,
            };
            if plan.kind(at.space) == Some(SpaceKind::Resident) {
                if !holds_together(resident.of(key), wanted, compute) {
                    return Err(missing());
                }
                continue;
            }
            let found = loads.of(key).iter();
            let found = found.filter(|(_, file, load)| file.holds(wanted) && is_complete(*load, c));
            let load = found.map(|&(.., load)| load).max().ok_or_else(missing)?;
            last_use[load] = Some(compute);
        }
    }
    Ok(last_use)
}

/// Whether resident loads that the compute has waited for bring all of `wanted`, one beside the other.
fn holds_together(resident: &[(Key, ByteRange, u32)], wanted: ByteRange, compute: usize) -> bool {
    let first = resident.partition_point(|(_, file, _)| file.end <= wanted.begin);
    let mut here = wanted.begin;
    for (_, file, first) in &resident[first..] {
        if here >= wanted.end || file.begin > here || *first as usize > compute {
            break;
        }
        here = here.max(file.end);
    }
    here >= wanted.end
}
