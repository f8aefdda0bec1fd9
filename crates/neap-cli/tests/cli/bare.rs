//! Models that have shapes and no weights: planned and inspected as the ones with weights, never packed or run.

use super::support::Bench;
use serde_json::Value;
use std::fs;

/// Writes `bare.onnx` and takes away the sparse file beside it.
fn bare() -> Bench {
    let bench = Bench::new();
    bench
        .neap("zoo squeezenet1_1 --shapes-only -o bare.onnx")
        .ok();
    fs::remove_file(bench.path("bare.onnx.data")).unwrap();
    bench
}

fn names(bench: &Bench) -> Vec<String> {
    let names = fs::read_dir(bench.dir.path()).unwrap();
    names
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn they_are_planned_as_with_weights() {
    let bench = bare();
    let args = "--machine v100-pcie --threads 1 --quiet --format json";
    let plan = |model: &str, more: &str| bench.json(&format!("plan {model} {args} {more}"));
    let planned = plan("bare.onnx", "");
    assert_eq!(names(&bench), ["bare.onnx"], "nothing is written");
    bench.neap("zoo squeezenet1_1 -o whole.onnx").ok();
    let whole = plan("whole.onnx", "");
    let without_digest = |value: &Value| {
        let mut plan = value["plan"].clone();
        let taken = plan.as_object_mut().unwrap().remove("digest");
        assert!(taken.is_some(), "{plan}");
        plan
    };
    assert_eq!(without_digest(&planned), without_digest(&whole));
    for key in ["steps", "predicted_latency_ms", "kernels", "bands"] {
        assert_eq!(planned[key], whole[key], "{key}");
    }
    let tight = plan("bare.onnx", "--memory-budget 60%");
    assert!(tight["loaded_bytes_per_run"].as_u64() > Some(0), "{tight}");
    assert!(tight["predicted_latency_ms"].as_f64() > planned["predicted_latency_ms"].as_f64());
    let figure = |key: &str| {
        tight[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key}: {tight}"))
    };
    let bound = figure("compute_ms").max(figure("moving_ms"));
    assert_eq!(figure("bound_ms"), bound);
    assert!(figure("moving_ms") > 0.0 && bound <= figure("predicted_latency_ms"));
    let text = bench
        .neap("plan bare.onnx --device v100-pcie --threads 1 --memory-budget 60%")
        .ok();
    assert!(text.stdout.contains("bound       "), "{}", text.stdout);
    // Without a description of a device there are estimates.
    let here =
        bench.json("plan bare.onnx --memory-budget 80% --cache-dir cache --quiet --format json");
    assert_eq!(here["calibration"], "estimated");
    bench
        .neap("plan bare.onnx --machine v100-pcie --trace-events trace.json")
        .ok();
    bench
        .neap("plan bare.onnx --memory-budget 1MiB")
        .fails(3, &["smallest feasible budget"]);
}

#[test]
fn they_are_inspected_and_not_run() {
    let bench = bare();
    let facts = bench.json("inspect bare.onnx --quiet --format json");
    assert_eq!(facts["packed_path"], Value::Null);
    assert!(facts["packed_weight_bytes"].as_u64() > Some(4_000_000));
    let text = bench.neap("inspect bare.onnx").ok().stdout;
    assert!(text.contains("no weights to pack"), "{text}");
    bench.write(
        "task.toml",
        b"total = \"100MiB\"\nruns = 1\n[[model]]\npath = \"bare.onnx\"\n",
    );
    for args in [
        "run bare.onnx",
        "run bare.onnx --memory-budget 1MiB",
        "tasks task.toml",
        "bench bare.onnx --quiet",
        "pack bare.onnx -o out.neap",
        "profile bare.onnx --quiet",
        "plan bare.onnx --calibrate full",
    ] {
        bench
            .neap(args)
            .fails(2, &["bare.onnx has shapes and no weights"]);
    }
    assert_eq!(names(&bench).len(), 2, "{:?}", names(&bench));
}

/// Unrolled over time, with all cells of a layer computing with the same weights.
#[test]
fn weights_that_layers_share_count_once() {
    let bench = Bench::new();
    bench.neap("zoo rnn_8_8k --shapes-only -o m.onnx").ok();
    let facts = bench.json("inspect m.onnx --quiet --format json");
    let weight_bytes = facts["packed_weight_bytes"].as_u64();
    assert!(weight_bytes.is_some_and(|b| b > 16 << 30 && b < 17 << 30));
    let planned = bench.neap("plan m.onnx --memory-budget 17GiB").ok().stdout;
    assert!(planned.contains("resident  16.0 GiB"), "{planned}");
    assert!(planned.contains("in 0 loads"), "{planned}");
}
