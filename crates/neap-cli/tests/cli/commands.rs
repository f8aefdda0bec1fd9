//! Every command once, and the command line itself.

use super::onnx::{layers, relu};
use super::support::Bench;
use std::fs;

#[test]
fn help_and_version() {
    let bench = Bench::new();
    let help = bench.neap("--help").ok().stdout;
    for part in ["Examples:", "Exit codes:", "neap demo", "run", "inspect"] {
        assert!(help.contains(part), "{part}");
    }
    assert!(bench.neap("--version").ok().stdout.starts_with("neap "));
    let ran = bench.neap("");
    assert_eq!(ran.code, 2);
    assert!(ran.stdout.is_empty() && ran.stderr.contains("Usage"));
    for command in [
        "run", "pack", "plan", "bench", "inspect", "zoo", "layout", "profile", "demo",
    ] {
        assert!(
            !bench
                .neap(&format!("{command} --help"))
                .ok()
                .stdout
                .is_empty()
        );
    }
}

#[test]
fn wrong_command_lines_are_one_line() {
    let bench = Bench::with_model(&relu("x", &["2"], "y"));
    let cases = [
        ("fly", "fly"),
        ("run", "MODEL"),
        ("run m.onnx --memory-bugdet 3", "--memory-budget"),
        ("run m.onnx --memory-budget 12Q", "12Q"),
        ("run m.onnx --memory-budget -5", "-5"),
        ("run m.onnx --threads 0", "0"),
        ("run m.onnx --iterations 0", "0"),
        ("run m.onnx --strategy magic", "magic"),
        ("run m.onnx --strategy odswap", "'odswap' is gone"),
        (
            "train m.onnx --data d --strategy swapadvisor",
            "'swapadvisor' is gone",
        ),
        ("run m.onnx --io magic", "magic"),
        ("run m.onnx --shape x", "x"),
        ("plan m.onnx --format pdf", "pdf"),
        ("zoo no_such_network", "no_such_network"),
        ("zoo", "NAME"),
        ("zoo --list lenet", "--list"),
        ("bench", "MODEL"),
        (
            "run m.onnx --threads 1e3",
            "'1e3' is no number from 1 to 256",
        ),
        ("run m.onnx --threads -1", "'-1' is no number from 1 to 256"),
        ("run m.onnx --threads -1", "(see neap run --help)"),
        (
            "run m.onnx --memory-budget 12elephants",
            "25%, auto or none",
        ),
        ("run m.onnx --bound nosuch=3", "'nosuch'"),
        (
            "run m.onnx --bound y=3 --bound y=4",
            "--bound is given twice for 'y'",
        ),
        ("run m.onnx --no-spill --spill-dir .", "--spill-dir"),
        (
            "train m.onnx --data d -o o.onnx --lr -1",
            "'-1' is no number from 0",
        ),
        (
            "train m.onnx --data d -o o.onnx --lr nan",
            "'nan' is no number",
        ),
        (
            "train m.neap --data d -o o.onnx",
            "training begins with the .onnx",
        ),
        ("run m.onnx --budget-schedule 0s:1MiB", "at 0s"),
    ];
    for (args, part) in cases {
        let line = bench
            .neap(args)
            .fails(if part == "at 0s" { 3 } else { 2 }, &[part]);
        assert!(!line.contains("tip: to pass"), "{line}");
    }
}

#[test]
fn a_plan_as_text_json_and_page() {
    let bench = Bench::with_model(&layers());
    let text = bench.neap("plan m.onnx --memory-budget 80%").ok().stdout;
    assert!(text.contains("smallest feasible budget"), "{text}");
    let plan = bench.json("plan m.onnx --memory-budget 80% --format json");
    assert_eq!(plan["strategy"], "preload");
    assert!(!plan["plan"]["loads"].as_array().unwrap().is_empty());
    assert!(plan["planned_high_water_bytes"].as_u64() <= plan["memory_budget_bytes"].as_u64());
    bench.neap("plan m.onnx --memory-budget 80% -o p.html").ok();
    let page = fs::read_to_string(bench.path("p.html")).unwrap();
    assert!(page.contains("<html") && page.contains("</html>"));
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"));
    bench
        .neap("plan m.onnx --memory-budget 1MiB -o none.html")
        .fails(3, &["smallest"]);
    assert!(!bench.path("none.html").exists());
}

#[test]
fn inspecting() {
    let bench = Bench::with_model(&layers());
    let facts = bench.json("inspect m.onnx --threads 2 --format json");
    let number = |key: &str| facts[key].as_u64().unwrap();
    assert_eq!(facts["inputs"][0]["name"], "x");
    assert!(number("packed_weight_bytes") >= 12 << 20);
    assert!(number("lower_bound_bytes") <= number("smallest_feasible_bytes"));
    assert!(number("smallest_feasible_bytes") < number("unlimited_high_water_bytes"));
    assert_eq!(facts["largest_layers"].as_array().unwrap().len(), 3);
    let text = bench.neap("inspect m.onnx --graph").ok().stdout;
    assert!(
        text.contains("largest layers") && text.contains("out/put:0"),
        "{text}"
    );
}

#[test]
fn a_packed_model_gives_the_same_outputs() {
    let bench = Bench::with_model(&layers());
    bench.neap("pack m.onnx -o m.neap").ok();
    bench.neap("run m.onnx --output-dir a").ok();
    bench
        .neap("run m.neap --output-dir b --memory-budget 80%")
        .ok();
    let read = |folder: &str| fs::read(bench.path(folder).join("out_put_0.npy")).unwrap();
    assert_eq!(read("a"), read("b"));
}

#[test]
fn benches_in_every_format() {
    let bench = Bench::with_model(&layers());
    let args = "bench m.onnx --memory-budget none,80% --iterations 2 --threads 1 --quiet";
    let rows = bench.json(&format!("{args} --format json"));
    assert_eq!(rows.as_array().unwrap().len(), 2);
    assert!(rows[1]["loaded_bytes_per_run"].as_u64() > Some(0));
    let csv = bench.neap(&format!("{args} --format csv")).ok().stdout;
    assert_eq!(csv.lines().count(), 3);
    let md = bench.neap(&format!("{args} --format md")).ok().stdout;
    assert!(md.starts_with("| model"), "{md}");
    assert!(bench.neap(args).ok().stdout.contains("m.onnx"));
    // One row that cannot be measured does not cost the others.
    let ran =
        bench.neap("bench m.onnx --memory-budget 1MiB,none --iterations 1 --format json --quiet");
    assert_eq!(ran.code, 3);
    let rows: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(rows[0]["error"].as_str().unwrap().contains("smallest"));
    assert!(rows[1]["latency_ms"]["median"].as_f64() > Some(0.0));
}

#[test]
fn the_zoo() {
    let bench = Bench::new();
    let list = bench.neap("zoo --list").ok().stdout;
    assert!(list.contains("resnet152") && list.contains("gpt2"));
    let text = bench.neap("zoo squeezenet1_1 --external-data").ok().stdout;
    assert!(text.contains("squeezenet1_1.onnx"), "{text}");
    assert!(bench.path("squeezenet1_1.onnx.data").exists());
    let facts = bench.json("inspect squeezenet1_1.onnx --format json");
    assert_eq!(facts["outputs"][0]["shape"], serde_json::json!([1, 1000]));
}

/// Every strategy plans and runs, `auto` is as fast as the fastest of them, and a search is never slower than
/// what it starts from.
#[test]
fn strategies_are_compared() {
    let bench = Bench::with_model(&layers());
    let budget = "--memory-budget 80% --threads 1 --calibrate off --quiet";
    let predicted = |strategy: &str| {
        let search = "--search-time 0.2 --seed 3";
        let plan = bench.json(&format!(
            "plan m.onnx {budget} --strategy {strategy} {search} --format json"
        ));
        plan["predicted_latency_ms"].as_f64().unwrap()
    };
    let single = ["preload", "search"].map(predicted);
    assert!(single[1] <= single[0], "{single:?}");
    // What a search finds in its time depends on the machine.
    assert!(predicted("auto") <= single[0], "{single:?}");
    let read = |strategy: &str| {
        let run = format!("run m.onnx {budget} --strategy {strategy} --search-time 0.1");
        bench.neap(&format!("{run} --output-dir {strategy}")).ok();
        fs::read(bench.path(strategy).join("out_put_0.npy")).unwrap()
    };
    assert_eq!(read("search"), read("preload"));
    let refused = bench.neap("plan m.onnx --strategy search --search-time soon");
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("is no time"), "{}", refused.stderr);
}

#[test]
fn names_that_a_model_chose_do_no_harm() {
    let forged = "y\nneap: ok\x1b[31m";
    let bench = Bench::with_model(&relu("x", &["2"], forged));
    for args in ["run m.onnx", "inspect m.onnx", "pack m.onnx -o m.neap"] {
        let ran = bench.neap(args).ok();
        let text = ran.stdout + &ran.stderr;
        assert!(text.contains("y\\nneap: ok\\u{1b}[31m"), "{args}: {text}");
        assert!(
            !text.contains('\x1b') && !text.contains("\nneap: ok"),
            "{args}"
        );
    }
    let long = "y".repeat(400);
    bench.write("m.onnx", &relu("x", &["2"], &long));
    bench.neap("run m.onnx --output-dir out").ok();
    let files: Vec<_> = fs::read_dir(bench.path("out")).unwrap().flatten().collect();
    assert!(files.len() == 1 && files[0].file_name().len() < 255);
}
