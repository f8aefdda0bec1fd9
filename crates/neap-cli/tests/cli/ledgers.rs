//! Every budget is added up in the open, and its sum holds; a percentage is one number of bytes.

use super::onnx::layers;
use super::support::{Bench, can_enforce};
use serde_json::Value;

fn number(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} in {value}"))
}

/// The sum of all parts, which is the total that stands beside them.
fn sum(ledger: &Value) -> u64 {
    let parts = ledger.as_object().unwrap().iter();
    let parts = parts.filter(|(key, _)| key.ends_with("_bytes") && *key != "total_bytes");
    let sum = parts.map(|(_, bytes)| bytes.as_u64().unwrap()).sum();
    assert_eq!(number(ledger, "total_bytes"), sum, "{ledger}");
    sum
}

/// Bytes of a size as people read it.
fn size(text: &str) -> f64 {
    let (value, unit) = text.split_once(' ').unwrap();
    let unit = ["B", "KiB", "MiB", "GiB"].iter().position(|u| *u == unit);
    value.parse::<f64>().unwrap() * 1024f64.powi(unit.unwrap() as i32)
}

#[test]
fn parts_add_up_in_every_report() {
    let bench = Bench::with_model(&layers());
    let facts = bench.json("inspect m.onnx --threads 2 --format json");
    let smallest = number(&facts, "smallest_feasible_bytes");
    assert_eq!(sum(&facts["smallest_ledger"]), smallest);
    assert_eq!(
        sum(&facts["unlimited_ledger"]),
        number(&facts, "unlimited_high_water_bytes")
    );
    for budget in ["none".to_string(), "60%".into(), smallest.to_string()] {
        let run = format!("m.onnx --threads 2 --memory-budget {budget}");
        for report in [
            bench.json(&format!("run {run} --json -")),
            bench.json(&format!("plan {run} --format json")),
        ] {
            let total = sum(&report["ledger"]);
            assert_eq!(total, number(&report, "planned_high_water_bytes"));
            if let Some(budget) = report["memory_budget_bytes"].as_u64() {
                assert!(total <= budget, "{report}");
            }
        }
    }
    let text = bench.neap("inspect m.onnx --threads 2").ok().stdout;
    assert!(
        text.contains(" = process ") && text.contains(" + slack "),
        "{text}"
    );
    let text = bench.neap("plan m.onnx --threads 2").ok().stdout;
    assert!(text.contains(" planned = process "), "{text}");
}

/// One line, with the parts of the smallest budget.
#[test]
fn a_refusal_adds_up_what_it_names() {
    let bench = Bench::with_model(&layers());
    bench.write(
        "task.toml",
        b"total = '3MiB'\n[[model]]\npath = 'm.onnx'\ncopies = 2\n",
    );
    let mut refusals = vec![
        "run m.onnx --threads 2 --memory-budget 2MiB",
        "plan m.onnx --threads 2 --memory-budget 2MiB",
        "run m.onnx --threads 2 --budget-schedule 0s:2MiB,1s:64MiB",
        "run m.onnx --threads 2 --follow cgroup --memory-budget 2MiB",
        "tasks task.toml",
    ];
    if can_enforce(&bench) {
        refusals.push("run m.onnx --threads 2 --memory-budget 64K --enforce");
    }
    for refusal in refusals {
        let line = bench.neap(refusal).fails(3, &["process ", " + arena "]);
        let named = line
            .rsplit_once('(')
            .and_then(|(_, rest)| rest.split_once(" bytes"));
        let named: f64 = named.unwrap().0.parse().unwrap();
        let parts = line.rsplit_once("process ").unwrap().1;
        let parts: f64 = parts
            .split(" + ")
            .map(|part| size(part.trim_start_matches(|c: char| c.is_ascii_lowercase() || c == ' ')))
            .sum();
        // Each part is rounded to a hundredth of its unit.
        assert!(
            (parts - named).abs() < 64.0 * 1024.0,
            "{line}: {parts} {named}"
        );
    }
}

#[test]
fn the_sum_holds_as_the_kernel_counts() {
    let bench = Bench::with_model(&layers());
    if !can_enforce(&bench) {
        return;
    }
    bench.neap("pack m.onnx -o m.neap").ok();
    let facts = bench.json("inspect m.neap --threads 2 --format json");
    let smallest = number(&facts, "smallest_feasible_bytes");
    let whole = number(&facts, "unlimited_high_water_bytes");
    for budget in [smallest, smallest.midpoint(whole), whole, 2 * whole] {
        let report = bench.json(&format!(
            "run m.neap --threads 2 --memory-budget {budget} --enforce --iterations 20 --json -"
        ));
        let source = report["peak_memory_source"].as_str().unwrap();
        assert!(source.starts_with("cgroup_v"), "{source}");
        let total = sum(&report["ledger"]);
        assert!(
            number(&report, "peak_memory_bytes") <= total.max(6 << 20),
            "{report}"
        );
    }
}

#[test]
fn a_percentage_is_the_same_bytes_everywhere() {
    let bench = Bench::with_model(&layers());
    let facts = bench.json("inspect m.onnx --threads 2 --format json");
    let whole = number(&facts, "unlimited_high_water_bytes");
    let expected = whole * 3 / 4;
    let budget = |report: &Value| number(report, "memory_budget_bytes");
    let run = "run m.onnx --threads 2 --json -";
    for more in [
        "--memory-budget 75%",
        "--memory-budget 75% --iterations 2000",
        "--memory-budget 75% --strategy search --search-time 0.1",
        "--budget-schedule 0s:75% --duration 20ms",
    ] {
        assert_eq!(
            budget(&bench.json(&format!("{run} {more}"))),
            expected,
            "{more}"
        );
    }
    let all = bench.json(&format!("{run} --memory-budget 100%"));
    assert_eq!(budget(&all), whole);
    assert_eq!(number(&all, "loaded_bytes_per_run"), 0);
    let follow = bench.neap(&format!(
        "{run} --memory-budget 75% --follow psi --duration 20ms"
    ));
    if follow.code == 0 {
        let report: Value = serde_json::from_str(&follow.stdout).unwrap();
        assert_eq!(budget(&report), expected);
    }
    let plan = bench.json("plan m.onnx --threads 2 --memory-budget 75% --format json");
    assert_eq!(budget(&plan), expected);
    let rows =
        bench.json("bench m.onnx --threads 2 --memory-budget 75% --iterations 2 --format json");
    assert_eq!(budget(&rows[0]), expected);
    // In a task, by the curve that it divides its total by.
    bench.write(
        "task.toml",
        b"total = '1GiB'\n[[model]]\npath = 'm.onnx'\nthreads = 2\n",
    );
    let report = bench.json("tasks task.toml --json -");
    assert_eq!(number(&report["models"][0], "unlimited_bytes"), whole);
    if !can_enforce(&bench) {
        return;
    }
    for more in [
        "--memory-budget 75%",
        "--budget-schedule 0s:75%,30ms:100% --duration 60ms",
    ] {
        let report = bench.json(&format!("{run} {more} --enforce"));
        let first = match report["adaptations"].as_array() {
            Some(changes) => number(&changes[0], "budget_before_bytes"),
            None => budget(&report),
        };
        assert_eq!(first, expected, "{more}");
    }
}
