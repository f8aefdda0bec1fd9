//! `neap doctor`, and the budget that it names.

use super::onnx::layers;
use super::support::Bench;
use serde_json::Value;
use std::fs;

#[test]
fn what_this_machine_gives() {
    let bench = Bench::new();
    let told = bench.json("doctor --cache-dir cache --quiet --format json");
    let findings = told["findings"].as_array().unwrap();
    let found = |what: &str| {
        let finding = findings.iter().find(|f| f["what"] == what);
        finding.unwrap_or_else(|| panic!("{what}: {told}"))["found"]
            .as_str()
            .unwrap()
    };
    assert!(found("processor").contains(" thread"), "{told}");
    assert!(found("memory").contains("free"), "{told}");
    assert!(found("budget").contains("iB"), "{told}");
    assert!(found("drive").contains(" GB/s"), "{told}");
    for what in ["limits", "io_uring", "cards"] {
        assert!(!found(what).is_empty());
    }
    assert_eq!(told["model"], Value::Null);
    // The file that was read is gone.
    assert_eq!(fs::read_dir(bench.path("cache")).unwrap().count(), 0);

    let text = bench.neap("doctor --cache-dir cache --quiet").ok().stdout;
    assert_eq!(text.lines().filter(|l| l.contains(" GB/s")).count(), 1);
    assert!(!text.contains("predicted"), "{text}");
}

#[test]
fn what_a_model_needs_of_it() {
    let bench = Bench::with_model(&layers());
    let told = bench.json("doctor m.onnx --quiet --format json");
    assert_eq!(told["model"], "m.onnx");
    let points = told["predictions"].as_array().unwrap();
    let of = |key: &str| -> Vec<u64> { points.iter().map(|p| p[key].as_u64().unwrap()).collect() };
    let budgets = of("budget_bytes");
    assert!(budgets.len() >= 2 && budgets.is_sorted(), "{told}");
    assert!(of("latency_ns").iter().all(|&ns| ns > 0));
    let smallest = bench.json("inspect m.onnx --quiet --format json");
    // What this process has of its own moves by some pages.
    let named = smallest["smallest_feasible_bytes"].as_u64().unwrap();
    assert!(budgets[0].abs_diff(named) < 1 << 20, "{budgets:?} {named}");
    let text = bench.neap("doctor m.onnx --quiet").ok().stdout;
    assert!(text.contains("m.onnx, predicted:"), "{text}");
    let near = text.lines().filter(|l| l.contains("a tenth slower"));
    assert_eq!(near.count(), 1, "{text}");
}

#[test]
fn what_cannot_be_looked_at_is_one_line() {
    let bench = Bench::new();
    for (args, says) in [
        ("doctor --cache-dir /proc/none --quiet", "/proc/none"),
        ("doctor nothing.onnx --quiet", "nothing.onnx"),
        ("doctor --format yaml", "yaml"),
    ] {
        let ran = bench.neap(args);
        assert_eq!(ran.code, 2, "{args}: {}", ran.stderr);
        assert!(ran.stderr.contains(says), "{args}: {}", ran.stderr);
        assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{}", ran.stderr);
        assert!(ran.stdout.is_empty());
    }
}

#[test]
fn a_budget_that_the_machine_names() {
    let bench = Bench::with_model(&layers());
    bench
        .neap("run m.onnx --memory-budget auto --quiet --json r.json")
        .ok();
    let report: Value = serde_json::from_slice(&fs::read(bench.path("r.json")).unwrap()).unwrap();
    assert!(
        report["memory_budget_bytes"].as_u64().unwrap() > 0,
        "{report}"
    );
    let plan = bench.json("plan m.onnx --memory-budget auto --quiet --format json");
    assert!(plan["memory_budget_bytes"].as_u64().unwrap() > 0, "{plan}");
    let ran = bench.neap("run m.onnx --memory-budget car");
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("auto or none"), "{}", ran.stderr);
}
