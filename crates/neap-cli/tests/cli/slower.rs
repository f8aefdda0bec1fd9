//! `--slower`: the smallest budget that costs a share of the time at most.

use super::onnx::layers;
use super::support::{Bench, can_enforce};

#[test]
fn a_plan_is_within_the_share() {
    let bench = Bench::with_model(&layers());
    let plan = |options: &str| {
        // Built-in estimates are the same in every process.
        bench.json(&format!(
            "plan m.onnx --calibrate off --quiet --format json {options}"
        ))
    };
    let of = |plan: &serde_json::Value, key: &str| plan[key].as_f64().unwrap();
    let all = plan("");
    let least = of(&all, "smallest_feasible_bytes");
    let most = of(&all, "unlimited_high_water_bytes");
    let mut before = f64::INFINITY;
    for share in [0.0, 10.0, 100.0, 10_000.0] {
        let plan = plan(&format!("--slower {share}%"));
        let budget = of(&plan, "memory_budget_bytes");
        // What a process has of its own moves by some pages, and inputs are beside the model.
        let slack = f64::from(1 << 20);
        assert!(
            least <= budget + slack && budget <= most + slack,
            "{share}: {budget}"
        );
        assert!(budget <= before + slack, "{share}: {budget} after {before}");
        let longest = of(&all, "predicted_latency_ms") * (1.0 + share / 100.0);
        let predicted = of(&plan, "predicted_latency_ms");
        assert!(
            predicted <= longest * 1.01,
            "{share}: {predicted} of {longest}"
        );
        before = budget;
    }
    assert!(before < most, "any time at all gives less than all memory");
}

#[test]
fn a_run_takes_the_budget_that_it_chose() {
    let bench = Bench::with_model(&layers());
    let enforced = can_enforce(&bench).then_some("--enforce");
    for more in [Some(""), enforced].into_iter().flatten() {
        let ran = bench.neap(&format!("run m.onnx --slower 20% --json r.json {more}"));
        let said = ran.ok().stderr;
        let times = said.matches("the memory budget is").count();
        assert_eq!(times, 1, "{said}");
        let report = std::fs::read(bench.path("r.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        let [budget, peak] =
            ["memory_budget_bytes", "peak_memory_bytes"].map(|key| report[key].as_u64());
        assert!(budget.is_some() && peak <= budget, "{report}");
    }
}

#[test]
fn what_does_not_go_with_it() {
    let bench = Bench::with_model(&layers());
    for (args, says) in [
        (
            "run m.onnx --slower 10% --memory-budget 64MiB",
            "--memory-budget",
        ),
        ("run m.onnx --slower 10% --follow psi", "--follow"),
        ("tasks t.toml --slower 10%", "--slower"),
        (
            "plan m.onnx --slower 10% --memory-budget 64MiB",
            "--memory-budget",
        ),
        ("run m.onnx --slower 10", "such as 10%"),
        ("plan m.onnx --slower=-1%", "such as 10%"),
    ] {
        let ran = bench.neap(args);
        assert_eq!(ran.code, 2, "{args}: {}", ran.stderr);
        assert!(ran.stderr.contains(says), "{args}: {}", ran.stderr);
        assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{}", ran.stderr);
    }
}
