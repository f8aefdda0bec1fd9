//! `neap pack --weights`: fewer bits, and what that changes.

use super::onnx;
use super::support::Bench;
use std::fs;

#[test]
fn fewer_bits_are_smaller_and_say_what_they_change() {
    let bench = Bench::with_model(&onnx::layers());
    bench.neap("pack m.onnx -o exact.neap").ok();
    let mut file = fs::metadata(bench.path("exact.neap")).unwrap().len();
    let smallest = |name: &str| {
        let facts = bench.json(&format!("inspect {name} --quiet --format json"));
        let layer = facts["largest_layers"][0]["stored"]
            .as_str()
            .unwrap()
            .to_string();
        (facts["smallest_feasible_bytes"].as_u64().unwrap(), layer)
    };
    let (of_exact, stored) = smallest("exact.neap");
    assert_eq!(stored, "float32");
    for (weights, stored) in [("f16", "float16"), ("int8", "int8"), ("int4", "int4")] {
        let name = format!("{weights}.neap");
        let ran = bench.neap(&format!("pack m.onnx -o {name} --weights {weights}"));
        let text = ran.ok().stdout;
        assert!(text.contains("weights rounded in 3 layers"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let layers = lines.iter().filter(|l| l.contains(&format!("  {stored} ")));
        assert_eq!(layers.count(), 3, "{text}");
        let at = lines
            .iter()
            .position(|l| l.starts_with("outputs;"))
            .unwrap();
        let change: f64 = lines[at + 1]
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(change > 0.0 && change < 0.3, "{text}");
        let now = fs::metadata(bench.path(&name)).unwrap().len();
        assert!(now * 10 < file * 7, "{weights}: {now} of {file}");
        file = now;
        let (least, found) = smallest(&name);
        assert_eq!(found, stored);
        assert!(least <= of_exact, "{weights}: {least} of {of_exact}");
        bench.neap(&format!("run {name} --memory-budget 80%")).ok();
    }
    let names = fs::read_dir(bench.dir.path()).unwrap();
    let left = names.filter(|e| {
        let name = e.as_ref().unwrap().file_name();
        name.to_string_lossy().contains("exact.neap") && name != "exact.neap"
    });
    assert_eq!(left.count(), 0, "what was packed to compare is left");
}
