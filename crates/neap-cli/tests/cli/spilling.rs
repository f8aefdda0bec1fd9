//! Activations that leave memory for a file: the options, the reports, and what is said when it cannot be.

use super::onnx::{FLOAT, Model};
use super::support::Bench;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

/// A wide result that is wanted again at the end, with a wider one in between.
///
/// ```text
///   x ─► skip, 2 MiB ─► narrow ─► wide, 8 MiB ─► narrow ─► + ─► out
///             └────────────────────────────────────────────┘
/// ```
fn skip() -> Vec<u8> {
    Model::default()
        .node("MatMul", &["x", "w0"], &["a"])
        .node("Relu", &["a"], &["skip"])
        .node("MatMul", &["skip", "w1"], &["b"])
        .node("MatMul", &["b", "w2"], &["c"])
        .node("Relu", &["c"], &["wide"])
        .node("MatMul", &["wide", "w3"], &["d"])
        .node("MatMul", &["d", "w4"], &["e"])
        .node("Add", &["e", "skip"], &["sum"])
        .node("MatMul", &["sum", "w5"], &["out"])
        .weights("w0", &[64, 1024], 1)
        .weights("w1", &[1024, 64], 2)
        .weights("w2", &[64, 4096], 3)
        .weights("w3", &[4096, 64], 4)
        .weights("w4", &[64, 1024], 5)
        .weights("w5", &[1024, 64], 6)
        .input("x", FLOAT, &["512", "64"])
        .output("out", FLOAT, &["512", "64"])
        .finish()
}

/// The smallest budget that a refusal names.
fn named(bench: &Bench, options: &str) -> u64 {
    let line = bench
        .neap(&format!("run m.onnx {options} --memory-budget 1MiB"))
        .fails(3, &["smallest feasible budget"]);
    let (_, rest) = line.rsplit_once('(').unwrap();
    rest.split_once(" bytes").unwrap().0.parse().unwrap()
}

fn bytes(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap()
}

#[test]
fn a_budget_below_the_activations_is_met_by_storing_some() {
    let bench = Bench::with_model(&skip());
    fs::create_dir(bench.path("spill")).unwrap();
    let options = "--threads 2 --exact --bands off";
    let (least, in_memory) = (
        named(&bench, options),
        named(&bench, &format!("{options} --no-spill")),
    );
    assert!(least + (1 << 20) < in_memory, "{least} {in_memory}");
    let run = |folder: &str, more: &str| {
        let report = bench.json(&format!(
            "run m.onnx {options} {more} --iterations 3 --output-dir {folder} --json -"
        ));
        let output = fs::read(bench.path(folder).join("out.npy")).unwrap();
        (report, output)
    };
    let (free, expected) = run("free", "");
    assert_eq!(bytes(&free, "stored_bytes_per_run"), 0);
    assert!(free.get("activations").is_none(), "{free}");
    for (folder, more) in [
        ("beside", "--io auto"),
        ("there", "--spill-dir spill"),
        ("threads", "--spill-dir spill --io pread"),
    ] {
        let (report, output) = run(folder, &format!("--memory-budget {least} {more}"));
        assert!(output == expected, "{more}: other bits");
        // Skip, whole.
        assert_eq!(bytes(&report, "stored_bytes_per_run"), 2 << 20, "{report}");
        assert!(bytes(&report, "peak_memory_bytes") <= least, "{report}");
    }
    let left = fs::read_dir(bench.path("spill")).unwrap().count();
    assert_eq!((left, bench.leftovers().len()), (0, 0));
    // The plan says the same; without a file to store in, another budget is the smallest.
    let plan = bench.json(&format!(
        "plan m.onnx {options} --memory-budget {least} --format json"
    ));
    assert_eq!(bytes(&plan, "stored_bytes_per_run"), 2 << 20, "{plan}");
    bench
        .neap(&format!(
            "run m.onnx {options} --no-spill --memory-budget {least}"
        ))
        .fails(3, &["smallest feasible budget"]);
    let (report, output) = run("held", &format!("--no-spill --memory-budget {in_memory}"));
    assert!(output == expected, "in memory: other bits");
    assert_eq!(bytes(&report, "stored_bytes_per_run"), 0);
    assert!(bytes(&report, "peak_memory_bytes") <= in_memory, "{report}");
}

#[test]
fn kept_activations_have_the_same_digests_under_any_budget() {
    let bench = Bench::with_model(&skip());
    let options = "--threads 2 --exact --keep-activations";
    let least = named(&bench, options);
    let run = |more: &str| bench.json(&format!("run m.onnx {options} {more} --json -"));
    let free = run("");
    let kept = free["activations"].as_array().unwrap();
    let total: u64 = kept.iter().map(|a| bytes(a, "bytes")).sum();
    // All but the output; what is computed in place of something is one buffer with it.
    let names: Vec<&str> = kept.iter().map(|a| a["name"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names.contains(&"wide")), (4, true), "{free}");
    assert!(total >= (2 + 8) << 20, "{free}");
    let digests: BTreeSet<&str> = kept.iter().map(|a| a["digest"].as_str().unwrap()).collect();
    assert_eq!(digests.len(), kept.len(), "{free}");
    assert_eq!(bytes(&free, "stored_bytes_per_run"), 0);
    for more in ["", "--iterations 3"] {
        let small = run(&format!("--memory-budget {least} {more}"));
        assert!(bytes(&small, "stored_bytes_per_run") > 0, "{small}");
        assert!(bytes(&small, "peak_memory_bytes") <= least, "{small}");
        assert_eq!(small["activations"], free["activations"]);
    }
    assert_ne!(run("--seed 1")["activations"], free["activations"]);
    let in_memory = named(&bench, &format!("{options} --no-spill"));
    assert!(least + (1 << 20) < in_memory, "{least} {in_memory}");
    bench
        .neap(&format!("run m.onnx {options} --budget-schedule 0s:64MiB"))
        .fails(2, &["--keep-activations is for one budget"]);
}

#[test]
fn a_folder_that_cannot_take_the_file_is_named() {
    let bench = Bench::with_model(&skip());
    let least = named(&bench, "--threads 2 --bands off");
    bench.write("a-file", b"");
    let fails = |folder: &str, parts: &[&str]| {
        bench
            .neap(&format!(
                "run m.onnx --threads 2 --bands off --memory-budget {least} --spill-dir {folder}"
            ))
            .fails(2, parts)
    };
    fails("nowhere", &["nowhere", "No such file or directory"]);
    fails("a-file", &["a-file", "Not a directory"]);
    // Not even root may write there.
    fails("/proc/self", &["/proc/self"]);
    if std::path::Path::new("/dev/shm").exists() {
        fails("/dev/shm", &["/dev/shm", "it lies in memory"]);
    }
    // What needs no file does not ask for it.
    bench
        .neap("run m.onnx --threads 2 --spill-dir nowhere")
        .ok();
}
