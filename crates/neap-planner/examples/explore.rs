//! Plans a workload shaped like a real network and prints the plan; with a file name, draws it as a page.
//!
//!     cargo run --release -p neap-planner --example explore -- resnet152 40 plan.html

#[path = "../tests/shapes/mod.rs"]
mod shapes;

use std::error::Error;

use neap_plan::{render, validate};
use neap_planner::{Planner, Strategy};
use neap_sim::{CostProfile, STEADY_RUNS, simulate};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, mib, page @ ..] = args.as_slice() else {
        return Err("usage: explore NETWORK MIB [PAGE.html]".into());
    };
    let budget_bytes = (mib.parse::<f64>()? * 1048576.0) as u64;
    let networks = shapes::all();
    let known: Vec<_> = networks.iter().map(|(n, _)| *n).collect();
    let w = networks.iter().find(|(n, _)| n == name).map(|(_, w)| w);
    let w = w.ok_or_else(|| format!("unknown network {name}: {known:?}"))?;
    let costs = CostProfile::default();
    let planned = Planner::new(w).plan(budget_bytes, Strategy::Preload, &costs)?;
    let verdict = validate(w, &planned.plan)?;
    let timeline = simulate(w, &planned.plan, &costs, STEADY_RUNS);
    print!("{}", render::text(w, &planned.plan, Some(&timeline)));
    if let [path, ..] = page {
        std::fs::write(
            path,
            render::html(name, w, &planned.plan, &verdict, &timeline),
        )?;
    }
    Ok(())
}
