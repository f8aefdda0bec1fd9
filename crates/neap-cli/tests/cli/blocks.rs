//! `--strategy blocks`: whole layers, two blocks in memory at a time.

use super::onnx::layers;
use super::support::Bench;
use std::fs;

#[test]
fn blocks_keep_the_budget_and_the_bits() {
    let bench = Bench::with_model(&layers());
    bench
        .neap("run m.onnx --exact --threads 2 --output-dir free")
        .ok();
    let refused = bench
        .neap("run m.onnx --threads 2 --strategy blocks --memory-budget 2MiB")
        .fails(3, &["smallest feasible budget"]);
    let smallest: u64 = refused
        .rsplit_once('(')
        .and_then(|(_, rest)| rest.split_once(" bytes)"))
        .and_then(|(bytes, _)| bytes.parse().ok())
        .unwrap_or_else(|| panic!("{refused}"));
    // What is named is feasible, in a process of its own.
    let report = bench.json(&format!(
        "run m.onnx --exact --threads 2 --strategy blocks --memory-budget {smallest} \
         --iterations 3 --output-dir out --json -"
    ));
    assert_eq!(report["strategy"], "blocks");
    assert_eq!(report["resident_weight_bytes"], 0);
    assert!(report["loaded_bytes_per_run"].as_u64().unwrap() > 0);
    assert!(report["peak_memory_bytes"].as_u64().unwrap() <= smallest);
    let read = |name: &str| fs::read(bench.path(name).join("out_put_0.npy")).unwrap();
    assert!(read("free") == read("out"), "other bits");
    // Slices of layers need less than whole ones.
    let facts = bench.json("inspect m.onnx --threads 2 -o json");
    assert!(facts["smallest_feasible_bytes"].as_u64().unwrap() < smallest);
    let plan = bench.json(&format!(
        "plan m.onnx --threads 2 --strategy blocks --memory-budget {smallest} -o json"
    ));
    assert_eq!(plan["strategy"], "blocks");
}
