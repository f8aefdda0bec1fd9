//! Plans a workload shaped like a real network and prints what the plan does with time.
#[path = "../tests/shapes/mod.rs"]
mod shapes;

use neap_plan::Lane;
use neap_planner::{Planner, Strategy};
use neap_sim::{CostProfile, simulate};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mib: f64 = args[2].parse().unwrap();
    let (_, w) = shapes::all()
        .into_iter()
        .find(|(n, _)| *n == args[1])
        .unwrap();
    let costs = CostProfile::default();
    let p = Planner::new(&w)
        .plan((mib * 1048576.0) as u64, Strategy::Preload, &costs)
        .unwrap();
    println!(
        "{:?} arena {} resident {}",
        p.prediction,
        p.plan.arena_bytes >> 20,
        p.plan.resident_bytes() >> 20
    );
    let t = simulate(&w, &p.plan, &costs, 3);
    let mut load = 0;
    for s in t.spans.iter().filter(|s| s.run == 2) {
        let ms = |ns: u64| (ns as f64 - t.runs[2].start_ns as f64) / 1e6;
        match s.lane {
            Lane::Load => {
                let l = &p.plan.loads[s.action as usize];
                println!(
                    "      load {:4} {:6.2} MiB at {:7.2} ready {:8.2} start {:8.2} end {:8.2}",
                    s.action,
                    l.bytes as f64 / 1048576.0,
                    l.offset as f64 / 1048576.0,
                    ms(s.ready_ns),
                    ms(s.start_ns),
                    ms(s.end_ns)
                );
                load += 1;
            }
            Lane::Compute => {
                let c = &p.plan.computes[s.action as usize];
                println!(
                    "{:4} {:10} {:4}..{:4} needs {:4} ready {:8.2} start {:8.2} end {:8.2} {}",
                    s.action,
                    w.steps[c.step.index()].name,
                    c.panels.begin,
                    c.panels.end,
                    c.needs,
                    ms(s.ready_ns),
                    ms(s.start_ns),
                    ms(s.end_ns),
                    if s.start_ns > s.ready_ns { "STALL" } else { "" }
                );
            }
        }
    }
    let _ = load;
}
