//! Budgets: refused, kept, enforced; outputs never depend on them.

use super::onnx::{layers, relu, unrolled};
use super::support::{Bench, NEAP, can_enforce};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn smallest(bench: &Bench) -> u64 {
    let facts = bench.json("inspect m.onnx --threads 2 --format json");
    facts["smallest_feasible_bytes"].as_u64().unwrap()
}

#[test]
fn a_report_has_exactly_the_agreed_keys() {
    let bench = Bench::with_model(&layers());
    bench
        .neap("run m.onnx --memory-budget none --threads 1 --warmup 1 --iterations 4 --output-dir out --json r.json")
        .ok();
    let report: Value = serde_json::from_slice(&fs::read(bench.path("r.json")).unwrap()).unwrap();
    let keys = |value: &Value| -> Vec<String> {
        let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    assert_eq!(
        keys(&report),
        [
            "arena_bytes",
            "bands",
            "base_overhead_bytes",
            "energy_mj_per_run",
            "graph_digest",
            "kernels",
            "latency_ms",
            "ledger",
            "loaded_bytes_per_run",
            "lower_bound_bytes",
            "memory_budget_bytes",
            "model",
            "outputs",
            "packed_in_memory",
            "peak_memory_bytes",
            "peak_memory_source",
            "planned_high_water_bytes",
            "predicted_latency_ms",
            "processor_ms_per_run",
            "random_inputs",
            "resident_weight_bytes",
            "stall_ms",
            "stored_bytes_per_run",
            "strategy",
            "threads",
        ]
    );
    assert_eq!(
        keys(&report["latency_ms"]),
        ["first", "max", "median", "min", "p95", "runs"]
    );
    assert_eq!(report["latency_ms"]["runs"], 4);
    assert_eq!(report["memory_budget_bytes"], Value::Null);
    assert_eq!(report["peak_memory_source"], "vm_hwm");
    assert_eq!(report["loaded_bytes_per_run"], 0);
    let output = &report["outputs"][0];
    assert_eq!(output["name"], "out/put:0");
    assert_eq!(output["dtype"], "float32");
    assert_eq!(output["shape"], serde_json::json!([4, 1024]));
    assert_eq!(output["file"], "out/out_put_0.npy");
    assert!(bench.path("out/out_put_0.npy").exists());
}

#[test]
fn a_budget_that_cannot_be_met_names_one_that_can() {
    let bench = Bench::with_model(&layers());
    let line = bench
        .neap("run m.onnx --threads 2 --memory-budget 2MiB --output-dir out")
        .fails(3, &["2 MiB", "smallest feasible budget"]);
    let named: u64 = line
        .rsplit_once('(')
        .and_then(|(_, rest)| rest.split_once(" bytes"))
        .unwrap()
        .0
        .parse()
        .unwrap();
    let report = bench.json(&format!(
        "run m.onnx --threads 2 --memory-budget {named} --json -"
    ));
    assert!(report["peak_memory_bytes"].as_u64().unwrap() <= named);
    assert_eq!(report["memory_budget_bytes"], named);
    assert!(report["loaded_bytes_per_run"].as_u64().unwrap() > 8 << 20);
}

#[test]
fn outputs_are_the_same_bits_under_any_budget_and_strategy() {
    let bench = Bench::with_model(&layers());
    let smallest = smallest(&bench);
    let run = |folder: &str, options: &str| {
        bench
            .neap(&format!(
                "run m.onnx --threads 2 --exact --output-dir {folder} {options}"
            ))
            .ok();
        fs::read(bench.path(folder).join("out_put_0.npy")).unwrap()
    };
    let free = run("free", "");
    assert_eq!(run("small", &format!("--memory-budget {smallest}")), free);
    assert_eq!(run("share", "--memory-budget 80% --iterations 3"), free);
    assert_eq!(
        run(
            "demand",
            "--memory-budget 80% --strategy search --search-time 0.1 --io pread"
        ),
        free
    );
    assert_ne!(run("other", "--seed 1"), free);
    bench
        .neap("run m.onnx --memory-budget 60% --strategy resident")
        .fails(3, &["cannot be met"]);
}

#[test]
fn the_kernel_enforces_the_smallest_budget() {
    let bench = Bench::with_model(&layers());
    if !can_enforce(&bench) {
        return;
    }
    let smallest = smallest(&bench);
    let report = bench.json(&format!(
        "run m.onnx --threads 2 --memory-budget {smallest} --enforce --iterations 20 --json -"
    ));
    let source = report["peak_memory_source"].as_str().unwrap();
    assert!(source.starts_with("cgroup_v"), "{source}");
    assert!(report["peak_memory_bytes"].as_u64().unwrap() <= smallest);
    // A share is of the unlimited footprint, as the supervisor counts it.
    let report = bench.json("run m.onnx --threads 2 --memory-budget 80% --enforce --json -");
    assert!(report["memory_budget_bytes"].as_u64().unwrap() > smallest);
    // Too small even for the refusal: the supervisor gives it.
    for budget in ["64K", "3MiB"] {
        bench
            .neap(&format!("run m.onnx --memory-budget {budget} --enforce"))
            .fails(3, &["smallest feasible budget"]);
    }
    let text = bench
        .neap("run m.onnx --memory-budget 64MiB --enforce --quiet")
        .ok()
        .stdout;
    assert!(text.contains("enforced by the kernel"), "{text}");
}

/// Nearly nothing but nodes: what they take while the model is read, packed and planned is part of the smallest budget.
#[test]
fn thousands_of_nodes_are_part_of_the_smallest_budget() {
    let bench = Bench::with_model(&unrolled(1600));
    if !can_enforce(&bench) {
        return;
    }
    let run = |budget: u64, cache: &str| {
        bench.neap(&format!(
            "run m.onnx --threads 2 --memory-budget {budget} --enforce --cache-dir {cache} --json -"
        ))
    };
    let smallest = smallest(&bench);
    for cache in ["fresh", "fresh"] {
        let report: Value = serde_json::from_str(&run(smallest, cache).ok().stdout).unwrap();
        let peak = report["peak_memory_bytes"].as_u64().unwrap();
        assert!(peak <= smallest, "{peak} of {smallest}");
    }
    // Not even packing fits: it is refused, and not killed.
    run(7 << 20, "other").fails(3, &["cannot be met", "smallest feasible budget"]);
    run(7 << 20, "other").fails(3, &["cannot be met", "smallest feasible budget"]);
}

/// What packing leaves of the process, about 130 KiB, is not counted with the run: the next run would not have it.
#[test]
fn the_first_run_needs_no_larger_budget_than_the_next() {
    let bench = Bench::with_model(&layers());
    if !can_enforce(&bench) {
        return;
    }
    bench.neap("zoo mobilenet_v2 -o m.onnx").ok();
    let own_bytes = || {
        let report = bench.json(
            "run m.onnx --threads 2 --memory-budget 64MiB --enforce --cache-dir fresh --json -",
        );
        report["ledger"]["process_bytes"].as_u64().unwrap()
    };
    let [first, next] = [own_bytes(), own_bytes()];
    assert!(first <= next + (64 << 10), "{first} and then {next}");
    assert_eq!(bench.leftovers(), [] as [&str; 0]);
}

/// A program that may lie anywhere has its tables of pointers written when it starts, and every budget pays for them.
#[test]
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
fn the_program_lies_where_it_was_linked() {
    const FIXED_ADDRESS: [u8; 2] = [2, 0];
    let program = fs::read(NEAP).unwrap();
    assert_eq!(program[..4], *b"\x7fELF");
    assert_eq!(program[16..18], FIXED_ADDRESS, "the type of the ELF file");
}

/// Also the smallest model there is, and as a copy of the program: what the page cache holds of a file that was just copied lies in larger pieces than
/// what a linker left, and the kernel maps more of them at a touch.
#[test]
fn packing_obeys_the_budget_too() {
    for model in [layers(), relu("x", &["4"], "y")] {
        packing_obeys_the_budget(&model);
    }
}

fn packing_obeys_the_budget(model: &[u8]) {
    let bench = Bench::with_model(model);
    let smallest = smallest(&bench);
    fs::copy(NEAP, bench.path("neap")).unwrap();
    for program in [PathBuf::from(NEAP), bench.path("neap")] {
        let output = Command::new(&program)
            .args(["run", "m.onnx", "--threads", "2", "--json", "-"])
            .args(["--cache-dir", "fresh"])
            .args(["--memory-budget", &smallest.to_string()])
            .current_dir(bench.dir.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let peak = report["peak_memory_bytes"].as_u64().unwrap();
        assert!(peak <= smallest, "{}: {peak}", program.display());
        fs::remove_dir_all(bench.path("fresh")).unwrap();
    }
}

#[test]
fn enforcing_needs_a_limit() {
    let bench = Bench::with_model(&layers());
    bench
        .neap("run m.onnx --enforce")
        .fails(2, &["--memory-budget"]);
}

/// Whoever sets the supervisor's mark by hand is not believed.
#[test]
fn a_forged_mark_is_no_limit() {
    let bench = Bench::with_model(&layers());
    if !can_enforce(&bench) {
        return;
    }
    let output = bench
        .command("run m.onnx --memory-budget 64MiB --enforce --json -")
        .env("NEAPTIDE_HARD_LIMIT_BYTES", "1")
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["memory_budget_bytes"], 64 << 20);
}

#[test]
fn row_bands_lower_the_smallest_budget() {
    // Most arena bytes within the smallest budget; without row bands the first activations alone take
    // 5.7 and 24.5 MiB.
    for (network, most_bytes) in [("mobilenet_v2", 7 << 19), ("vgg19", 9 << 20)] {
        let bench = Bench::new();
        bench.neap(&format!("zoo {network} -o m.onnx")).ok();
        bench.neap("pack m.onnx -o m.neap").ok();
        fs::remove_file(bench.path("m.onnx")).unwrap();
        let budget = |bands: &str| {
            let facts = bench.json(&format!(
                "inspect m.neap --threads 2 --bands {bands} --format json"
            ));
            facts["smallest_feasible_bytes"].as_u64().unwrap()
        };
        let (with, without) = (budget("on"), budget("off"));
        assert!(with + (2 << 20) < without, "{network}: {with}, {without}");
        let report = bench.json(&format!(
            "run m.neap --threads 2 --exact --bands on --memory-budget {with} --output-dir small --json -"
        ));
        assert!(report["bands"]["chains"].as_u64().unwrap() > 0, "{report}");
        assert!(
            report["arena_bytes"].as_u64().unwrap() <= most_bytes,
            "{report}"
        );
        assert!(
            report["peak_memory_bytes"].as_u64().unwrap() <= with,
            "{report}"
        );
        let report =
            bench.json("run m.neap --threads 1 --exact --bands off --output-dir large --json -");
        assert_eq!(report["bands"]["chains"], 0);
        let output = |folder: &str| fs::read(bench.path(folder).join("output.npy")).unwrap();
        assert!(output("small") == output("large"), "{network}: other bits");
        bench
            .neap(&format!(
                "run m.neap --threads 2 --bands off --memory-budget {with}"
            ))
            .fails(3, &["smallest feasible budget"]);
    }
}

#[test]
fn kernels_are_chosen_or_kept() {
    let bench = Bench::new();
    bench.neap("zoo resnet50 -o m.onnx").ok();
    bench.neap("pack m.onnx -o m.neap").ok();
    fs::remove_file(bench.path("m.onnx")).unwrap();
    let run = |folder: &str, options: &str| {
        let report = bench.json(&format!(
            "run m.neap --threads 2 --output-dir {folder} {options} --json -"
        ));
        let bytes = fs::read(bench.path(folder).join("output.npy")).unwrap();
        (report["kernels"].clone(), bytes)
    };
    let (fast, fast_bytes) = run("fast", "");
    let (exact, exact_bytes) = run("exact", "--exact");
    let (tight, tight_bytes) = run("tight", "--exact --memory-budget 16MiB");
    assert!(fast["winograd_f4"].as_u64().unwrap() > 4, "{fast}");
    assert!(exact.get("winograd_f4").is_none(), "{exact}");
    assert_eq!(exact, tight);
    assert!(exact_bytes == tight_bytes, "other bits");
    // Rounding only: 1000 scores behind the same header.
    let floats = |bytes: &[u8]| -> Vec<f32> {
        let data = &bytes[bytes.len() - 4000..];
        let chunks = data.as_chunks::<4>().0;
        chunks.iter().map(|c| f32::from_le_bytes(*c)).collect()
    };
    let (a, b) = (floats(&fast_bytes), floats(&exact_bytes));
    let range = b.iter().fold(0f32, |m, x| m.max(x.abs()));
    for (a, b) in a.iter().zip(&b) {
        assert!((a - b).abs() <= 1e-4 * range, "{a} and {b}");
    }
}

#[test]
fn one_option_says_the_budget() {
    let bench = Bench::with_model(&layers());
    bench
        .neap("run m.onnx --budget-schedule 0s:12MiB --memory-budget 8MiB")
        .fails(2, &["--budget-schedule", "--memory-budget"]);
}

#[test]
fn a_smallest_budget_above_what_a_small_model_uses_is_no_error() {
    let bench = Bench::with_model(&layers());
    bench
        .neap("run m.onnx --follow psi --min-budget 4GiB --iterations 1")
        .ok();
    bench
        .neap("run m.onnx --follow psi --min-budget 4GiB --memory-budget 1GiB --iterations 1")
        .fails(2, &["--min-budget is above --memory-budget"]);
}

/// Room for packing is told as what it is.
#[test]
fn a_small_models_named_budget_says_why_it_is_no_smaller() {
    let bench = Bench::with_model(&layers());
    let facts = bench.json("inspect m.onnx --format json");
    let smallest = &facts["smallest_ledger"];
    assert!(smallest["packing_bytes"].as_u64().unwrap() > 0, "{facts}");
    assert!(
        smallest["slack_bytes"].as_u64().unwrap() < 1 << 20,
        "{facts}"
    );
    bench.write("m.onnx", &relu("x", &["2"], "y"));
    let text = bench.neap("plan m.onnx").ok().stdout;
    let possible = text.lines().find(|l| l.starts_with("possible")).unwrap();
    assert!(possible.contains("everything resident"), "{possible}");
    assert!(!possible.contains("from 6 MiB"), "{possible}");
}
