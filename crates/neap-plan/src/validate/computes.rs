//! What is computed: every panel of every step once, in order, with its weights in memory by then.

use crate::{
    ByteRange, Compute, ExecutionPlan as Plan, LoadFrom, PanelRange, StepSpec, Violation, Workload,
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

/// Finds, for each weight that a compute wants, the load that brings it. Returns the last use of each load.
pub(super) fn check_weights(w: &Workload, plan: &Plan) -> Result<Vec<Option<usize>>, Violation> {
    // A load puts file byte f at arena byte f + delta; a wanted range lies in a load of the same delta.
    let delta = |at: u64, file_offset: u64| at.wrapping_sub(file_offset);
    let residents = plan.resident.iter();
    let mut by_delta: Vec<(u64, ByteRange, Option<usize>)> = residents
        .map(|r| (delta(r.offset, r.file_offset), r.file_range(), None))
        .collect();
    let loads = plan.loads.iter().enumerate();
    let loads = loads.filter(|(_, l)| l.from == LoadFrom::Weights);
    by_delta.extend(loads.map(|(i, l)| (delta(l.offset, l.file_offset), l.file_range(), Some(i))));
    // Those of one delta stay in their order.
    by_delta.sort_by_key(|&(delta, ..)| delta);
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
            let delta = delta(offset, wanted.begin);
            let begin = by_delta.partition_point(|&(d, ..)| d < delta);
            let end = by_delta.partition_point(|&(d, ..)| d <= delta);
            let complete = |load: Option<usize>| load.is_none_or(|l| l < c.needs as usize);
            let found = by_delta[begin..end]
                .iter()
                .rev()
                .find(|(_, range, load)| range.holds(wanted) && complete(*load));
            match found {
                None => {
                    return Err(Violation::WeightMissing {
                        compute,
                        what: format!("weight {k}"),
                        offset,
                    });
                }
                Some((.., Some(load))) => last_use[*load] = Some(compute),
                Some((.., None)) => {}
            }
        }
    }
    Ok(last_use)
}
