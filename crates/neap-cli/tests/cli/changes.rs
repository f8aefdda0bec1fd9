//! Budgets that change while a model runs.

use super::onnx::layers;
use super::support::{Bench, can_enforce};
use serde_json::Value;
use std::fs;

/// Smallest feasible and unlimited footprint.
fn bounds(bench: &Bench) -> (u64, u64) {
    let facts = bench.json("inspect m.onnx --threads 2 --format json");
    let least = facts["smallest_feasible_bytes"].as_u64().unwrap();
    let most = facts["unlimited_high_water_bytes"].as_u64().unwrap();
    (least, most + (1 << 20))
}

/// Each change took memory within the larger budget, and the runs after it within the new one.
fn check_peaks(report: &Value, changes: usize) {
    let adaptations = report["adaptations"].as_array().unwrap();
    assert_eq!(adaptations.len(), changes, "{report}");
    for a in adaptations {
        let bytes = |key: &str| a[key].as_u64().unwrap_or_else(|| panic!("{key} in {a}"));
        let budget = bytes("budget_bytes");
        let before = bytes("budget_before_bytes");
        assert!(
            bytes("peak_while_adapting_bytes") <= budget.max(before),
            "{a}"
        );
        assert!(bytes("peak_memory_bytes") <= budget, "{a}");
        assert!(bytes("planned_high_water_bytes") <= budget, "{a}");
        assert!(bytes("runs") > 0, "{a}");
        assert!(a["planning_ms"].as_f64().unwrap() > 0.0, "{a}");
    }
}

#[test]
fn a_schedule_changes_the_budget_and_no_bits() {
    let bench = Bench::with_model(&layers());
    let (least, most) = bounds(&bench);
    bench
        .neap("run m.onnx --exact --threads 2 --output-dir free")
        .ok();
    let schedule = format!("0s:{most},400ms:{least},800ms:{most},1200ms:{least}");
    let ran = bench
        .neap(&format!(
            "run m.onnx --exact --threads 2 --output-dir out --budget-schedule {schedule} --live \
             --trace t.csv --json r.json"
        ))
        .ok();
    assert!(ran.stderr.contains("adapted in"), "{}", ran.stderr);
    let report: Value = serde_json::from_slice(&fs::read(bench.path("r.json")).unwrap()).unwrap();
    check_peaks(&report, 3);
    assert_eq!(report["memory_budget_bytes"], most);
    let kept = |i: usize, key: &str| report["adaptations"][i][key].as_u64().unwrap();
    assert!(kept(0, "released_bytes") > 0 && kept(0, "read_bytes") == 0);
    assert!(kept(1, "read_bytes") > 0);
    let read = |name: &str| fs::read(bench.path(name).join("out_put_0.npy")).unwrap();
    assert!(read("free") == read("out"), "other bits");
    let trace = fs::read_to_string(bench.path("t.csv")).unwrap();
    let runs = report["latency_ms"]["runs"].as_u64().unwrap();
    assert_eq!(trace.lines().count() as u64, runs + 1);
    assert!(trace.starts_with("time_s,run,latency_ms,"), "{trace}");
    let budgets = trace.lines().skip(1).map(|l| l.split(',').nth(4).unwrap());
    let mut budgets: Vec<&str> = budgets.collect();
    budgets.dedup();
    let (least, most) = (least.to_string(), most.to_string());
    assert_eq!(budgets, [&most, &least, &most, &least]);
    assert_eq!(bench.leftovers(), [] as [&str; 0]);
}

#[test]
fn the_kernels_limit_follows_the_schedule() {
    let bench = Bench::with_model(&layers());
    if !can_enforce(&bench) {
        return;
    }
    let (least, most) = bounds(&bench);
    let schedule = format!("0s:{most},400ms:{least},800ms:{most},1200ms:{least},1600ms:{most}");
    let report = bench.json(&format!(
        "run m.onnx --threads 2 --enforce --budget-schedule {schedule} --json -"
    ));
    assert_eq!(report["adaptations"].as_array().unwrap().len(), 4);
    if report["peak_memory_source"] == "cgroup_v1" {
        check_peaks(&report, 4);
    }
    bench
        .neap("run m.onnx --enforce --budget-schedule 0s:64MiB,1s:none")
        .fails(2, &["--budget-schedule", "none"]);
}

/// What `inspect` names has slack for the process that runs, which does not ask for slack again.
#[test]
fn a_budget_moves_to_the_smallest_that_inspect_names() {
    let bench = Bench::with_model(&layers());
    let (_, most) = bounds(&bench);
    for threads in [1, 2] {
        let facts = bench.json(&format!("inspect m.onnx --threads {threads} --format json"));
        let least = facts["smallest_feasible_bytes"].as_u64().unwrap();
        let run = format!("run m.onnx --exact --threads {threads} --json -");
        for options in [
            format!("--budget-schedule 0s:{least}"),
            // Over before the first run is.
            format!("--budget-schedule 0s:{most},1us:{least}"),
            format!("--budget-schedule 0s:{most},60ms:{least},120ms:{most},180ms:{least}"),
            format!("--iterations 500 --budget-schedule 0s:{least},20ms:{most},40ms:{least}"),
        ] {
            let report = bench.json(&format!("{run} {options}"));
            let peak = report["peak_memory_bytes"].as_u64().unwrap();
            assert!(peak <= most, "{options}: {peak}");
            let last = report["adaptations"].as_array().unwrap().last().cloned();
            let last = last.map_or(least, |a| a["budget_bytes"].as_u64().unwrap());
            assert_eq!(last, least, "{options}");
        }
    }
}

#[test]
fn schedules_that_cannot_be() {
    let bench = Bench::with_model(&layers());
    for bad in ["5s", "5s:", "1s:64M,1s:65M", "0s:64Q", "x:64M", "-1s:64M"] {
        bench
            .neap(&format!("run m.onnx --budget-schedule={bad}"))
            .fails(2, &["--budget-schedule"]);
    }
    bench
        .neap("run m.onnx --output-dir out --budget-schedule 0s:256MiB,50s:2MiB")
        .fails(3, &["at 50s", "2 MiB", "smallest feasible budget"]);
    assert!(!bench.path("out/out_put_0.npy").exists());
    for (options, part) in [
        ("--budget-schedule 0s:64M --follow psi", "--follow"),
        ("--min-budget 5M", "--follow"),
        (
            "--follow cgroup --memory-budget 64M --min-budget 65M",
            "--min-budget",
        ),
        ("--trace x.txt", ".csv or .json"),
        ("--duration=-1s", "duration"),
    ] {
        bench
            .neap(&format!("run m.onnx {options}"))
            .fails(2, &[part]);
    }
    bench
        .neap("run m.onnx --follow cgroup --memory-budget 2MiB --iterations 1")
        .fails(3, &["smallest feasible budget"]);
}

#[test]
fn following_runs_and_ends() {
    let bench = Bench::with_model(&layers());
    let (least, most) = bounds(&bench);
    for what in ["cgroup", "psi"] {
        let ran = bench.neap(&format!(
            "run m.onnx --threads 2 --follow {what} --memory-budget {most} --min-budget {least} \
             --duration 200ms --trace t.json --json r.json"
        ));
        if ran.code == 2 && ran.stderr.contains("--follow") {
            neap_testing::skip(ran.stderr.trim());
            continue;
        }
        ran.ok();
        let report = fs::read(bench.path("r.json")).unwrap();
        let report: Value = serde_json::from_slice(&report).unwrap();
        assert!(report["adaptations"].is_array());
        assert!(report["peak_memory_bytes"].as_u64().unwrap() <= most);
        let trace: Value =
            serde_json::from_slice(&fs::read(bench.path("t.json")).unwrap()).unwrap();
        let runs = report["latency_ms"]["runs"].as_u64().unwrap();
        assert_eq!(trace.as_array().unwrap().len() as u64, runs);
    }
}
