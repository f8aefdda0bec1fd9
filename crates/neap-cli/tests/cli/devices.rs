//! Plans for other devices, and traces of what is predicted and what happens.

use super::onnx::layers;
use super::support::Bench;
use serde_json::Value;
use std::fs;

#[test]
fn plans_for_devices_that_are_described() {
    let bench = Bench::with_model(&layers());
    let plan = |device: &str| {
        bench.json(&format!(
            "plan m.onnx --machine {device} --quiet --format json"
        ))
    };
    let (pi, gpu) = (plan("raspberry-pi-4"), plan("v100-pcie"));
    assert_eq!(pi["calibration"], "given");
    let latency = |plan: &Value| plan["predicted_latency_ms"].as_f64().unwrap();
    assert!(latency(&pi) > latency(&gpu), "{pi} {gpu}");
    bench.write(
        "d.toml",
        b"name = \"slow\"\n[compute]\nflops_per_second = 1e6\nmemory_bytes_per_second = 1e6\n\
          [link]\nload_bytes_per_second = 1e6\nlatency_us = 1\n",
    );
    assert!(latency(&plan("d.toml")) > latency(&pi));
    bench.write("bad.toml", b"name = 3");
    for (args, says) in [
        ("plan m.onnx --machine bad.toml", "line 1"),
        ("plan m.onnx --machine nowhere", "raspberry-pi-4"),
        ("plan m.onnx --machine phone --calibrate full", "--machine"),
        (
            "run m.onnx --trace-events t.json --budget-schedule 0s:64MiB",
            "--trace-events",
        ),
    ] {
        let ran = bench.neap(args);
        assert_eq!(ran.code, 2, "{args}");
        assert!(ran.stderr.contains(says), "{args}: {}", ran.stderr);
        assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{}", ran.stderr);
    }
}

#[test]
fn this_machine_is_described_as_others_are() {
    let bench = Bench::with_model(&layers());
    let text = bench
        .neap("profile m.onnx --threads 1 --cache-dir cache --format toml --quiet")
        .ok()
        .stdout;
    bench.write("here.toml", text.as_bytes());
    let plan = bench.json("plan m.onnx --machine here.toml --quiet --format json");
    assert_eq!(plan["calibration"], "given");
}

#[test]
fn traces_of_what_is_predicted_and_what_happens() {
    let bench = Bench::with_model(&layers());
    let events = |name: &str, category: &str| {
        let trace: Value = serde_json::from_slice(&fs::read(bench.path(name)).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().clone();
        let of = events.iter().filter(|e| e["cat"] == category);
        of.map(|e| e["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    bench
        .neap("plan m.onnx --trace-events predicted.json --quiet")
        .ok();
    bench
        .neap("run m.onnx --warmup 1 --iterations 2 --trace-events measured.json --quiet")
        .ok();
    assert_eq!(events("predicted.json", "run"), ["run 0", "run 1", "run 2"]);
    assert_eq!(events("measured.json", "run"), ["run 0", "run 1", "run 2"]);
    let predicted = events("predicted.json", "compute");
    assert!(!predicted.is_empty());
    assert_eq!(predicted, events("measured.json", "compute"));
    assert_eq!(bench.leftovers(), Vec::<String>::new());
}
