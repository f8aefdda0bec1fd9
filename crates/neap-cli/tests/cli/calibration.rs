//! `neap profile` and `--calibrate`: measured once, found again, never trusted blindly.

use super::onnx::layers;
use super::support::Bench;
use std::fs;

const PLAN: &str = "plan m.onnx --threads 1 --cache-dir cache --quiet --format json";

#[test]
fn a_profile_is_measured_kept_and_used() {
    let bench = Bench::with_model(&layers());
    assert_eq!(bench.json(PLAN)["calibration"], "estimated");
    let report = bench.json("profile m.onnx --threads 1 --cache-dir cache --format json --quiet");
    assert_eq!(report["machine"]["threads"], 1);
    assert!(report["measured_steps"].as_u64() > Some(0));
    assert!(report["compute"]["flops_per_second"].as_f64() > Some(1e6));
    assert!(report["storage"]["sustained_bytes_per_second"].as_f64() > Some(1e6));
    let points = report["models"][0]["points"].as_array().unwrap();
    assert!(!points.is_empty());
    for point in points {
        assert!(point["measured_latency_ns"].as_u64() > Some(0));
        assert!(point["predicted_latency_ns"].as_u64() > Some(0));
    }
    assert_eq!(bench.json(PLAN)["calibration"], "cached");
    // For one thread only, and not when it is not wanted.
    let plan = |more: &str| bench.json(&format!("{PLAN} {more}"))["calibration"].clone();
    let two = PLAN.replace("--threads 1", "--threads 2");
    assert_eq!(bench.json(&two)["calibration"], "estimated");
    assert_eq!(plan("--calibrate off"), "built_in");
    assert_eq!(plan("--calibrate full"), "measured");
    let text = bench
        .neap("profile m.onnx --threads 1 --cache-dir cache --quiet")
        .ok()
        .stdout;
    for part in ["machine", "storage", "no limit", "calibration.bin"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_damaged_profile_is_ignored_with_a_word() {
    let bench = Bench::with_model(&layers());
    fs::create_dir(bench.path("cache")).unwrap();
    bench.write(
        "cache/calibration.bin",
        b"NEAPCAL\x01 and then nothing that makes sense",
    );
    for command in [PLAN, "run m.onnx --cache-dir cache --quiet"] {
        let ran = bench.neap(command).ok();
        assert!(
            ran.stderr.contains("calibration.bin is ignored"),
            "{}",
            ran.stderr
        );
    }
    assert_eq!(bench.json(PLAN)["calibration"], "estimated");
}

#[test]
fn calibrating_stays_within_the_budget() {
    let bench = Bench::with_model(&layers());
    let budget = 24 << 20;
    let report = bench.json(&format!(
        "run m.onnx --memory-budget {budget} --calibrate full --cache-dir cache --quiet --json -"
    ));
    assert!(report["peak_memory_bytes"].as_u64() <= Some(budget));
    assert!(bench.path("cache/calibration.bin").exists());
}
