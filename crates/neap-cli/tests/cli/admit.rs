//! `neap admit`: verdicts, what is advised, pictures.

use super::onnx::layers;
use super::support::Bench;
use serde_json::Value;

const CURVES: &str = "\
    [[task]]\nname = 'camera'\ncurve = [['20MiB', '50ms'], ['60MiB', '20ms']]\nperiod = '100ms'\n\
    [[task]]\nname = 'radar & co'\nmemory = '10MiB'\nwcet = '10ms'\nperiod = '60ms'\n";

fn judged(bench: &Bench, text: &str, code: i32) -> Value {
    bench.write("tasks.toml", text.as_bytes());
    let ran = bench.neap("admit tasks.toml --json -");
    assert_eq!(ran.code, code, "{}{}", ran.stdout, ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn budgets_are_chosen_so_that_deadlines_hold() {
    let bench = Bench::new();
    // 50 of 100 and 10 of 60 ms; the radar waits for a camera's job, 50 - and 10 are just 60.
    let report = judged(&bench, &format!("memory = '40MiB'\n{CURVES}"), 0);
    assert_eq!(report["admitted"], true);
    assert_eq!(report["tasks"][0]["memory_bytes"], 20 << 20);
    assert_eq!(report["tasks"][1]["response_bound_ms"], 60.0);
    // More memory goes where it gives slack.
    let report = judged(&bench, &format!("memory = '70MiB'\n{CURVES}"), 0);
    assert_eq!(report["tasks"][0]["memory_bytes"], 60 << 20);
    assert_eq!(report["slack"], 2.0);
    let ran = bench.neap("admit tasks.toml -o gantt.svg").ok();
    for part in ["admitted", "camera", "2.000 times", "30.000 ms"] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let svg = std::fs::read_to_string(bench.path("gantt.svg")).unwrap();
    assert!(svg.contains("radar &amp; co") && svg.ends_with("</svg>\n"));
    bench
        .neap("admit tasks.toml --trace-events trace.json -q")
        .ok();
    let trace = std::fs::read(bench.path("trace.json")).unwrap();
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    // Both begin at once; the radar's deadline is earlier. Two names, then what is done.
    let first = &trace["traceEvents"][2];
    assert_eq!(
        (&first["tid"], &first["dur"]),
        (&1.into(), &10_000.0.into())
    );
}

#[test]
fn what_is_advised_is_enough() {
    let bench = Bench::new();
    let tight = CURVES.replace("60ms", "50ms");
    let report = judged(&bench, &format!("memory = '40MiB'\n{tight}"), 3);
    let changes = report["changes"].as_array().unwrap();
    let find = |what: &str| changes.iter().find(|c| c["change"] == what).unwrap();
    assert_eq!(find("memory")["memory_bytes"], 70 << 20);
    judged(&bench, &format!("memory = '70MiB'\n{tight}"), 0);
    // 50 ms of the camera and 10 of its own need a period of 60, which is 20 % more.
    assert_eq!(find("all_periods")["percent"], 120);
    let radar = changes
        .iter()
        .find(|c| c["change"] == "period" && c["task"] == "radar & co");
    assert_eq!(radar.unwrap()["period_ms"], 60.0);
    assert!(changes.iter().any(|c| c["change"] == "without"));
    let ran = bench.neap("admit tasks.toml");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    // Steps of 20 ms are held up less.
    let steps = tight.replace("period = '100ms'", "period = '100ms'\nstep = '20ms'");
    let report = judged(&bench, &format!("memory = '40MiB'\n{steps}"), 0);
    assert_eq!(report["tasks"][0]["memory_bytes"], 20 << 20);
}

#[test]
fn swapping_is_admitted_as_the_paper_does_it() {
    let bench = Bench::new();
    let task = "[[task]]\nmemory = '100MiB'\nswappable = '50MiB'\nwcet = '10ms'\n";
    let tasks = format!(
        "swap = {{ chunk = '10MiB', in = '2ms', out = '1ms' }}\n{task}period = '300ms'\n{task}period = '300ms'\n\
         {task}period = '400ms'\n"
    );
    let report = judged(&bench, &format!("memory = '250MiB'\n{tasks}"), 0);
    assert_eq!(report["method"], "theorem");
    // 50 are too many, and what the largest keeps others must give: 80 in chunks of 10, 30 at most each.
    assert_eq!(report["swapped_bytes"], 80 << 20);
    bench.neap("admit tasks.toml -o gantt.svg").ok();
    // Half of each must stay.
    let report = judged(&bench, &format!("memory = '190MiB'\n{tasks}"), 3);
    assert_eq!(report["changes"][0]["memory_bytes"], 200 << 20);
    let ran = bench.neap("admit tasks.toml -o gantt.svg");
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("not every task fits"), "{}", ran.stderr);
}

#[test]
fn models_bring_their_curves() {
    let bench = Bench::with_model(&layers());
    let task = |period: &str| {
        format!("memory = '1GiB'\n[[task]]\nmodel = 'm.onnx'\nperiod = '{period}'\n")
    };
    let report = judged(&bench, &task("100s"), 0);
    assert_eq!(report["margin"], 0.25);
    let bytes = report["tasks"][0]["memory_bytes"].as_u64().unwrap();
    assert!(bytes > 0 && bytes <= 1 << 30, "{report}");
    // No model is that fast.
    let report = judged(&bench, &task("0.00001ms"), 3);
    assert!(report["reason"].as_str().unwrap().contains('%'), "{report}");
    let report = judged(&bench, &task("100s").replace("1GiB", "1MiB"), 3);
    let needed = report["changes"][0]["memory_bytes"].as_u64().unwrap();
    let enough = task("100s").replace("1GiB", &needed.to_string());
    judged(&bench, &enough, 0);
}

#[test]
fn mistakes_end_with_2_and_a_line() {
    let bench = Bench::new();
    bench.write("tasks.toml", b"memory = '1MiB'\nspeed = 3\n");
    for (args, part) in [
        ("admit tasks.toml", "line 2, speed"),
        ("admit none.toml", "cannot read none.toml"),
        ("admit tasks.toml -o gantt.png", ".svg"),
    ] {
        let ran = bench.neap(args);
        assert_eq!(ran.code, 2, "{args}");
        assert!(ran.stderr.contains(part), "{args}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
    bench.write(
        "tasks.toml",
        b"memory = '1MiB'\n[[task]]\nmodel = 'none.onnx'\nperiod = '1s'\n",
    );
    assert_eq!(bench.neap("admit tasks.toml").code, 2);
}
