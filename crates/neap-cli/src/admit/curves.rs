//! A model's longest time by budget: what its planner predicts, and a margin.

use super::file::{Needs, Tasks};
use crate::args::EngineArgs;
use crate::failure::Outcome;
use crate::progress::note;
use neap_realtime::budgets::{Point, Streaming};
use neaptide::{Budget, LatencyCurve, OpenOptions, RunOptions};
use std::collections::BTreeMap;

/// Budgets on the curve of a model.
const CURVE_POINTS: usize = 16;

/// Every task's curve; empty for a file with a `[swap]` table.
///
/// Budgets are of whole processes, as for `neap run --task`: nothing is shared between models. A model's job runs to its end.
pub fn of(
    tasks: &Tasks,
    open: &OpenOptions,
    engine: &EngineArgs,
    quiet: bool,
) -> Outcome<Vec<Streaming>> {
    let mut known: BTreeMap<_, LatencyCurve> = BTreeMap::new();
    let mut curves = Vec::new();
    for task in &tasks.tasks {
        let pairs: Vec<(u64, u64)> = match &task.needs {
            Needs::Swapped { .. } => return Ok(Vec::new()),
            Needs::Curve(pairs) => pairs.clone(),
            Needs::Model(path) => {
                if !known.contains_key(path) {
                    let model = crate::commands::open_member(path, open, quiet)?;
                    let inputs = model.inputs().iter().map(|i| i.len_bytes() as u64).sum();
                    let options = RunOptions {
                        reserve_bytes: inputs,
                        ..engine.options(Budget::Unlimited)
                    };
                    if !quiet {
                        note(&format!("planning for {}", task.name));
                    }
                    let curve = model.latency_curve(&options, CURVE_POINTS, &[])?;
                    known.insert(path.clone(), curve);
                }
                let points = known[path].points.iter();
                points
                    .map(|p| (p.budget_bytes, with_margin(p.latency_ns, tasks.margin)))
                    .collect()
            }
        };
        let points = pairs.into_iter();
        curves.push(Streaming {
            period_ns: task.period_ns,
            deadline_ns: task.deadline_ns,
            points: points.map(|(bytes, ns)| task.point(bytes, ns)).collect(),
        });
    }
    charge_interruptions(tasks, &mut curves);
    Ok(curves)
}

fn with_margin(ns: u64, margin: f64) -> u64 {
    (ns as f64 * (1.0 + margin)).ceil().max(1.0) as u64
}

/// Every job may interrupt one other, of a longer deadline, and is charged with the dearest of them.
fn charge_interruptions(tasks: &Tasks, curves: &mut [Streaming]) {
    for (task, curve) in tasks.tasks.iter().zip(curves) {
        let longer = tasks.tasks.iter();
        let longer = longer.filter(|t| t.deadline_ns > task.deadline_ns);
        let resume_ns = longer.filter_map(|t| t.steps).map(|(_, resume)| resume);
        let resume_ns = resume_ns.max().unwrap_or(0);
        for Point { work_ns, .. } in &mut curve.points {
            *work_ns += resume_ns;
        }
    }
}
