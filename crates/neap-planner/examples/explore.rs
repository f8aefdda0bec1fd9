//! Plans a workload and prints the plan; with a file name, draws it as a page. The workload is one shaped
//! like a real network, or any from a JSON file.
//!
//!     cargo run --release -p neap-planner --example explore -- resnet152 40 plan.html

#[path = "../tests/shapes/mod.rs"]
mod shapes;

use std::error::Error;

use neap_plan::{Workload, render, validate};
use neap_planner::{Planner, Strategy};
use neap_sim::{CostProfile, STEADY_RUNS, simulate};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, mib, page @ ..] = args.as_slice() else {
        return Err("usage: explore NETWORK|WORKLOAD.json MIB|table [PAGE.html]".into());
    };
    let w = workload(name)?;
    let costs = CostProfile::default();
    let planner = Planner::new(&w);
    if mib == "table" {
        return table(&w, &planner, &costs);
    }
    let budget_bytes = (mib.parse::<f64>()? * 1048576.0) as u64;
    let planned = planner.plan(budget_bytes, Strategy::Preload, &costs)?;
    let verdict = validate(&w, &planned.plan)?;
    let timeline = simulate(&w, &planned.plan, &costs, STEADY_RUNS);
    print!("{}", render::text(&w, &planned.plan, Some(&timeline)));
    if let [path, ..] = page {
        std::fs::write(
            path,
            render::html(name, &w, &planned.plan, &verdict, &timeline, None),
        )?;
    }
    Ok(())
}

fn workload(name: &str) -> Result<Workload, Box<dyn Error>> {
    if name.ends_with(".json") {
        return Ok(serde_json::from_slice(&std::fs::read(name)?)?);
    }
    let networks = shapes::all();
    let known: Vec<_> = networks.iter().map(|(n, _)| *n).collect();
    let found = networks.iter().find(|(n, _)| *n == name);
    Ok(found
        .ok_or_else(|| format!("unknown network {name}: {known:?}"))?
        .1
        .clone())
}

/// Budgets from the smallest to everything resident, a line each.
fn table(w: &Workload, planner: &Planner, costs: &CostProfile) -> Result<(), Box<dyn Error>> {
    let (smallest, unlimited) = (
        planner.smallest_feasible_bytes(),
        planner.unlimited_high_water_bytes(),
    );
    for percent in [0, 1, 3, 10, 25, 50, 75, 90, 100] {
        let budget = smallest + (unlimited - smallest) * percent / 100;
        let begin = std::time::Instant::now();
        let planned = planner.plan(budget, Strategy::Preload, costs)?;
        let took_ms = begin.elapsed().as_secs_f64() * 1e3;
        let verdict = validate(w, &planned.plan)?;
        let p = planned.prediction;
        println!(
            "{:>10} (bound {:>10}): {:>9}, stalls {:>9}, {:4} loads of {:>9}, resident {:>9}, {:4} computes, {took_ms:.1} ms",
            render::bytes_text(budget),
            render::bytes_text(verdict.lower_bound_bytes),
            render::ns_text(p.latency_ns),
            render::ns_text(p.stall_ns),
            planned.plan.loads.len(),
            render::bytes_text(verdict.loaded_bytes_per_run),
            render::bytes_text(verdict.resident_bytes),
            planned.plan.computes.len(),
        );
    }
    Ok(())
}
