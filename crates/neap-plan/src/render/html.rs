//! A plan as one self-contained page: memory map, lanes, resident weights, table of steps.
//!
//! This file gathers the numbers; `page.html` draws them.

use serde_json::{Value, json};

use super::rects::{Kind, busy, first_computes, rects};
use crate::{ExecutionPlan, LaneId, Place, SpaceKind, Timeline, Verdict, Workload};

/// Renders a valid plan. `verdict` is the validator's, `timeline` the simulator's or the executor's; its
/// last run is shown. Of a plan for a device, `on_device` says by step whether that computes it: then device and processor have
/// lanes of their own, and so have copies from what the host keeps.
pub fn html(
    title: &str,
    workload: &Workload,
    plan: &ExecutionPlan,
    verdict: &Verdict,
    timeline: &Timeline,
    on_device: Option<&[bool]>,
) -> String {
    let mut data = data(title, workload, plan, verdict, timeline);
    data["on_device"] = json!(on_device);
    let data = data.to_string();
    // Inside a script element, "</" would end it; JSON may escape the slash.
    let data = data.replace("</", "<\\/").replace("<!--", "<\\u0021--");
    let page = include_str!("page.html");
    page.replace("__TITLE__", &escape(title))
        .replace("__DATA__", &data)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn data(
    title: &str,
    w: &Workload,
    plan: &ExecutionPlan,
    verdict: &Verdict,
    timeline: &Timeline,
) -> Value {
    let run = timeline.last_run().copied().unwrap_or_default();
    let last = (timeline.runs.len() as u32).saturating_sub(1);
    let relative = |ns: u64| ns as i64 - run.start_ns as i64;
    let mut computes: Vec<Value> = Vec::with_capacity(plan.computes.len());
    let mut stall_of_step = vec![0u64; w.steps.len()];
    let mut time_of_step = vec![0u64; w.steps.len()];
    for s in timeline.spans_of(LaneId::COMPUTE, last) {
        let Some(c) = plan.computes.get(s.action as usize) else {
            continue;
        };
        stall_of_step[c.step.index()] += s.start_ns - s.ready_ns;
        time_of_step[c.step.index()] += s.end_ns - s.start_ns;
        let times = [s.ready_ns, s.start_ns, s.end_ns].map(relative);
        computes.push(json!([
            c.step.0,
            c.panels.begin,
            c.panels.end,
            times[0],
            times[1],
            times[2]
        ]));
    }
    let mut load_times = vec![(0i64, 0i64); plan.loads.len()];
    for s in timeline.spans_of(LaneId::LOAD, last) {
        if let Some(times) = load_times.get_mut(s.action as usize) {
            *times = (relative(s.start_ns), relative(s.end_ns));
        }
    }
    let is_copy = |load: usize| plan.loads.get(load).is_some_and(|l| plan.is_from_host(l));
    let rects = rects(w, plan);
    let mut loaded_of_step = vec![0u64; w.steps.len()];
    let mut loads_of_step = vec![0u32; w.steps.len()];
    let drawn: Vec<Value> = rects
        .iter()
        .map(|r| {
            let arena = [r.arena.begin, r.arena.end];
            match r.kind {
                Kind::Buffer => json!(["b", arena, r.begin, r.end, w.buffers[r.index].name]),
                Kind::Workspace => json!(["w", arena, r.begin, r.end, r.index]),
                Kind::Resident | Kind::Prepared => json!(["r", arena, r.begin, r.end]),
                Kind::Load => {
                    let step = plan.computes[r.used_from as usize].step.index();
                    loaded_of_step[step] += plan.loads[r.index].bytes;
                    loads_of_step[step] += 1;
                    let (start, end) = load_times[r.index];
                    json!([
                        "l",
                        arena,
                        r.begin,
                        r.end,
                        step,
                        r.used_from,
                        start,
                        end,
                        r.index
                    ])
                }
            }
        })
        .collect();
    let first = first_computes(w, plan);
    let steps: Vec<Value> = w
        .steps
        .iter()
        .enumerate()
        .map(|(i, step)| {
            json!({
                "name": step.name,
                "weights": step.weight_bytes(),
                "resident": resident_bytes(w, plan, first[i]..first[i + 1]),
                "loaded": loaded_of_step[i],
                "loads": loads_of_step[i],
                "slices": first[i + 1] - first[i],
                "workspace": step.workspace_bytes,
                "flops": step.flops,
                "ns": time_of_step[i],
                "stall": stall_of_step[i],
            })
        })
        .collect();
    json!({
        "title": title,
        "digest": plan.digest,
        "strategy": plan.strategy,
        "arena": plan.memory_bytes(),
        "high_water": verdict.high_water_bytes,
        "lower_bound": verdict.lower_bound_bytes,
        "resident": verdict.resident_bytes,
        "loaded": verdict.loaded_bytes_per_run,
        "constants": w.constants_bytes,
        "weights": w.weight_bytes(),
        "latency": run.latency_ns(),
        "stall": run.stall_ns,
        "steps": steps,
        "computes": computes,
        "rects": drawn,
        "stored": verdict.stored_bytes_per_run,
        "load_busy": busy(timeline, LaneId::LOAD, |load| !is_copy(load)),
        "copy_busy": busy(timeline, LaneId::LOAD, is_copy),
        "store_busy": busy(timeline, LaneId::STORE, |_| true),
    })
}

/// Bytes of weights that these computes find in resident ranges.
fn resident_bytes(w: &Workload, plan: &ExecutionPlan, computes: std::ops::Range<usize>) -> u64 {
    let is_resident = |at: Place| plan.kind(at.space) == Some(SpaceKind::Resident);
    let mut bytes = 0;
    for (i, c) in plan.computes[computes].iter().enumerate() {
        let step = &w.steps[c.step.index()];
        if let (Some(p), Some(at)) = (step.panels, c.weights.panels)
            && is_resident(at)
        {
            bytes += p.file_range(c.panels).len();
        }
        // Weights needed whole are the same for every slice.
        if i == 0 {
            let extents = step.extents.iter().zip(&c.weights.extents);
            bytes += extents
                .filter(|(_, at)| is_resident(**at))
                .map(|(e, _)| e.bytes)
                .sum::<u64>();
            if let (Some(rows), Some(at)) = (step.rows, c.weights.table)
                && is_resident(at)
            {
                bytes += rows.bytes;
            }
        }
    }
    bytes
}
