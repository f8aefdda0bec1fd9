//! `neap tasks`: several models, one total of memory.

use super::onnx::{FLOAT, INT64, Model, layers, unrolled};
use super::support::{Bench, can_enforce};
use serde_json::Value;

/// Two models of `layers` and one copy more, in `total`.
fn task(bench: &Bench, total: u64, more: &str) {
    let text = format!(
        "total = '{total}'\n{more}\n[[model]]\npath = 'm.onnx'\nurgency = 3\ncpus = [0]\n\
         [[model]]\nname = 'other'\npath = 'm.onnx'\ncopies = 2\n"
    );
    bench.write("task.toml", text.as_bytes());
}

/// Smallest feasible and unlimited footprint, with a little room.
fn bounds(bench: &Bench) -> (u64, u64) {
    let facts = bench.json("inspect m.onnx --threads 1 --format json");
    let bytes = |key: &str| facts[key].as_u64().unwrap() + (2 << 20);
    (
        bytes("smallest_feasible_bytes"),
        bytes("unlimited_high_water_bytes"),
    )
}

fn bytes(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} in {value}"))
}

/// Budgets within the total, peaks within budgets.
fn check(report: &Value, total: u64) {
    let models = report["models"].as_array().unwrap();
    assert_eq!(models.len(), 3, "{report}");
    let budgets: u64 = models.iter().map(|m| bytes(m, "budget_bytes")).sum();
    assert_eq!(budgets, bytes(report, "budgets_bytes"));
    assert!(budgets <= total, "{report}");
    for model in models {
        assert!(
            bytes(model, "peak_memory_bytes") <= bytes(model, "budget_bytes"),
            "{model}"
        );
        assert!(
            bytes(model, "planned_high_water_bytes") <= bytes(model, "budget_bytes"),
            "{model}"
        );
        assert!(bytes(&model["latency_ms"], "runs") > 0, "{model}");
    }
    assert!(bytes(report, "peak_memory_bytes") <= total, "{report}");
}

#[test]
fn a_total_is_divided_and_kept() {
    let bench = Bench::with_model(&layers());
    let (least, most) = bounds(&bench);
    let total = least + least + most;
    task(&bench, total, "runs = 3\nwarmup = 1");
    let mut predicted = Vec::new();
    for policy in ["curves", "paper", "equal"] {
        let report = bench.json(&format!("tasks task.toml --allocate {policy} --json -"));
        check(&report, total);
        assert_eq!(report["allocate"], policy);
        let names: Vec<&str> = report["models"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["m", "other 1", "other 2"]);
        let largest = &report["largest_weighted_latency_ms"];
        let ms = |key: &str| {
            largest[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key} in {largest}"))
        };
        assert!(ms("measured") > 0.0);
        assert!(ms("predicted_curves") <= ms("predicted_paper"), "{largest}");
        assert!(ms("predicted_curves") <= ms("predicted_equal"), "{largest}");
        predicted.push(ms("predicted") - ms(&format!("predicted_{policy}")));
    }
    assert_eq!(predicted, [0.0; 3]);
    let report = bench.json("tasks task.toml --allocate slowdown --json -");
    check(&report, total);
    // Everything in memory, whatever the total.
    task(&bench, 1 << 20, "runs = 1\nallocate = 'direct'");
    let report = bench.json("tasks task.toml --json -");
    for model in report["models"].as_array().unwrap() {
        assert_eq!(bytes(model, "loaded_bytes_per_run"), 0, "{model}");
    }
    assert_eq!(bench.leftovers(), [] as [&str; 0]);
}

#[test]
fn the_kernel_holds_all_models_together() {
    let bench = Bench::with_model(&layers());
    if !can_enforce(&bench) {
        return;
    }
    let (least, most) = bounds(&bench);
    let (small, large) = (3 * least, 2 * least + most);
    let schedule = format!(
        "duration = '900ms'\nstrategy = 'preload'\ntotal_schedule = '300ms:{small},600ms:{large}'"
    );
    task(&bench, large, &schedule);
    let report = bench.json("tasks task.toml --enforce --json -");
    check(&report, large);
    assert!(
        report["peak_memory_source"]
            .as_str()
            .unwrap()
            .starts_with("cgroup")
    );
    let changes = report["adaptations"].as_array().unwrap();
    assert_eq!(changes.len(), 2, "{report}");
    for (change, total) in changes.iter().zip([small, large]) {
        assert_eq!(bytes(change, "total_bytes"), total);
        let budgets = change["budgets_bytes"].as_array().unwrap();
        let sum: u64 = budgets.iter().map(|b| b.as_u64().unwrap()).sum();
        assert!(sum <= total, "{change}");
        let ms = |key: &str| change[key].as_f64().unwrap();
        assert!(
            ms("adapting_ms") > 0.0 && ms("adapting_ms") <= ms("settled_ms") + 1.0,
            "{change}"
        );
    }
    // Memory was given up first, and taken afterwards.
    assert_eq!(changes[0]["growing_ms"], 0.0);
    assert_eq!(changes[1]["shrinking_ms"], 0.0);
    bench
        .neap("tasks task.toml --enforce --allocate direct")
        .fails(2, &["direct"]);
}

#[test]
fn a_task_names_its_strategy() {
    let bench = Bench::with_model(&layers());
    let (_, most) = bounds(&bench);
    let total = 3 * (most - (4 << 20));
    task(
        &bench,
        total,
        "runs = 2\nstrategy = 'preload'\nallocate = 'equal'",
    );
    let report = bench.json("tasks task.toml --json -");
    check(&report, total);
    for model in report["models"].as_array().unwrap() {
        assert_eq!(model["strategy"], "preload");
        assert!(bytes(model, "loaded_bytes_per_run") > 0, "{model}");
    }
}

/// Options of the command line are every member's.
#[test]
fn members_are_told_what_was_given() {
    let bench = Bench::with_model(&layers());
    let alone = bench.json("run m.onnx --threads 1 --exact --keep-activations --json -");
    task(&bench, 1 << 30, "runs = 1");
    let report = bench.json("tasks task.toml --exact --keep-activations --json -");
    for model in report["models"].as_array().unwrap() {
        let names = |of: &Value| -> Vec<Value> {
            let kept = of["activations"].as_array().unwrap();
            kept.iter().map(|k| k["name"].clone()).collect()
        };
        assert_eq!(names(model), names(&alone), "{model}");
    }
    assert_eq!(report["models"][0]["activations"], alone["activations"]);
    task(&bench, 1 << 30, "total_schedule = '1s:512MiB'");
    bench
        .neap("tasks task.toml --keep-activations")
        .fails(2, &["--keep-activations", "total_schedule"]);
    bench.neap("tasks task.toml --mean 1").fails(2, &["--mean"]);
}

#[test]
fn tasks_that_cannot_be() {
    let bench = Bench::with_model(&layers());
    task(&bench, 3 << 20, "");
    bench
        .neap("tasks task.toml")
        .fails(3, &["the total of 3 MiB", "together", "m ", "other 2 "]);
    task(&bench, 1 << 30, "total_schedule = '1s:4MiB'");
    bench
        .neap("tasks task.toml")
        .fails(3, &["the total of 4 MiB", "together"]);
    task(&bench, 1 << 30, "speed = 3");
    bench
        .neap("tasks task.toml")
        .fails(2, &["task.toml", "line 2", "speed"]);
    bench.write(
        "task.toml",
        b"total = '64MiB'\n[[model]]\npath = 'none.onnx'\n",
    );
    bench.neap("tasks task.toml").fails(2, &["none.onnx"]);
    bench.neap("tasks nowhere.toml").fails(2, &["nowhere.toml"]);
    bench
        .neap("tasks task.toml --shape x=1")
        .fails(2, &["--shape is for one model", "neap pack"]);
    bench
        .neap("tasks task.toml --threads 2")
        .fails(2, &["--threads is for one model", "task.toml"]);
    bench
        .neap("tasks task.toml --memory-budget 64MiB")
        .fails(2, &["--memory-budget"]);
    bench.neap("run").fails(2, &["MODEL"]);
    bench
        .neap("run m.onnx --allocate paper")
        .fails(2, &["--allocate"]);
}

/// Digest of the data of the one `.npy` file in a folder.
fn digest(bench: &Bench, folder: &str) -> String {
    let files = std::fs::read_dir(bench.path(folder)).unwrap();
    let files: Vec<_> = files.map(|f| f.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let file = std::fs::read(&files[0]).unwrap();
    let header = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    blake3::hash(&file[header..]).to_hex().to_string()
}

#[test]
fn models_of_one_process_take_turns_in_one_memory() {
    let bench = Bench::with_model(&layers());
    let expected: Vec<String> = (0..2)
        .map(|seed| {
            let folder = format!("out{seed}");
            bench
                .neap(&format!(
                    "run m.onnx --exact --seed {seed} --output-dir {folder}"
                ))
                .ok();
            digest(&bench, &folder)
        })
        .collect();
    assert_ne!(expected[0], expected[1]);
    let total = 48 << 20;
    let enforce = if can_enforce(&bench) { "--enforce" } else { "" };
    for more in [
        "runs = 3\nwarmup = 1".to_owned(),
        format!(
            "duration = '600ms'\ntotal_schedule = '200ms:{},400ms:{total}'",
            40 << 20
        ),
    ] {
        task(&bench, total, &more);
        let line = format!("tasks task.toml --one-process --exact {enforce} --json -");
        let report = bench.json(&line);
        assert!(bytes(&report, "peak_memory_bytes") <= total, "{report}");
        let ledger = &report["ledger"];
        assert!(bytes(&ledger["parts"], "total_bytes") <= total, "{ledger}");
        let models = report["models"].as_array().unwrap();
        let digests: Vec<&Value> = models.iter().map(|m| &m["outputs_blake3"]).collect();
        assert_eq!(
            digests,
            [&expected[0], &expected[0], &expected[1]],
            "{report}"
        );
        let works = ledger["models"].as_array().unwrap().iter();
        let works: Vec<u64> = works.map(|m| bytes(m, "work_bytes")).collect();
        assert_eq!(works.iter().max(), Some(&bytes(ledger, "shared_bytes")));
        for model in models {
            assert_eq!(model["is_steady"], true, "{model}");
            assert!(bytes(&model["latency_ms"], "runs") > 0, "{model}");
        }
        let changes = report["adaptations"].as_array().unwrap();
        assert_eq!(changes.len(), if more.contains("schedule") { 2 } else { 0 });
    }
    task(&bench, 1 << 20, "runs = 1\none_process = true");
    bench
        .neap("tasks task.toml")
        .fails(3, &["smallest feasible"]);
    bench
        .neap("tasks task.toml --allocate equal")
        .fails(2, &["one process", "curves"]);
    bench
        .neap("tasks task.toml --keep-activations")
        .fails(2, &["--keep-activations"]);
    bench
        .neap("run m.onnx --one-process")
        .fails(2, &["--one-process"]);
    assert_eq!(bench.leftovers(), [] as [&str; 0]);
}

/// The others are cancelled then, and that is not what is told.
#[test]
fn a_model_that_fails_in_one_process_says_why() {
    let bench = Bench::with_model(&layers());
    let table = Model::default()
        .node("Gather", &["w", "ids"], &["y"])
        .weights("w", &[4, 64], 1)
        .input("ids", INT64, &["64"])
        .output("y", FLOAT, &["64", "64"])
        .finish();
    // Random integers are from 0 to 99.
    bench.write("table.onnx", &table);
    let text = "total = '64MiB'\nruns = 1000000\none_process = true\n\
                [[model]]\npath = 'm.onnx'\n[[model]]\npath = 'table.onnx'\n";
    bench.write("task.toml", text.as_bytes());
    let told = bench.neap("tasks task.toml").fails(2, &["Gather"]);
    assert!(!told.contains("cancelled"), "{told}");
}

/// What thousands of nodes take while a model is opened beside another is part of the smallest total.
#[test]
fn many_nodes_in_one_process_fit_the_smallest_total_that_is_named() {
    let bench = Bench::with_model(&unrolled(1600));
    if !can_enforce(&bench) {
        return;
    }
    let run = |total: u64| {
        let text = format!("total = '{total}'\nruns = 2\n[[model]]\npath = 'm.onnx'\ncopies = 2\n");
        bench.write("task.toml", text.as_bytes());
        bench.neap("tasks task.toml --one-process --enforce --json -")
    };
    // Models are loaded one after the other, and the first that lacks room names what it needs. The first total is too little even for
    // the refusal.
    let mut smallest = 4 << 20;
    let ran = loop {
        let ran = run(smallest);
        if ran.code == 0 {
            break ran;
        }
        let line = ran.fails(3, &["smallest feasible budget"]);
        let (_, rest) = line.rsplit_once('(').unwrap();
        let named: u64 = rest.split_once(" bytes").unwrap().0.parse().unwrap();
        assert!(named > smallest, "{line}");
        smallest = named;
    };
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(bytes(&report, "peak_memory_bytes") <= smallest, "{report}");
}
