//! What all commands have in common: where results go, and in which form; what is told beside them; names that options had before.

use super::onnx::{layers, relu};
use super::support::{Bench, f32_bytes, read_f32};
use serde_json::Value;
use std::fs;

fn json_of(bench: &Bench, file: &str) -> Value {
    serde_json::from_slice(&fs::read(bench.path(file)).unwrap()).unwrap()
}

#[test]
fn a_file_gets_the_form_that_its_name_ends_in() {
    let bench = Bench::with_model(&layers());
    let row = "bench m.onnx --iterations 1 --warmup 0";
    for (command, file) in [
        ("inspect m.onnx", "facts.json"),
        ("plan m.onnx", "plan.json"),
        ("run m.onnx", "run.json"),
        ("doctor --cache-dir cache", "doctor.json"),
        (row, "rows.json"),
    ] {
        let ran = bench.neap(&format!("{command} -o {file} -q")).ok();
        assert_eq!(ran.stdout, "", "{command}");
        let printed = bench.json(&format!("{command} --format json -q"));
        let written = json_of(&bench, file);
        assert_eq!(written.is_array(), printed.is_array(), "{command}");
        if let (Some(a), Some(b)) = (written.as_object(), printed.as_object()) {
            assert!(a.keys().eq(b.keys()), "{command}");
        }
    }
    bench.neap(&format!("{row} -q -o rows.csv")).ok();
    let rows = fs::read_to_string(bench.path("rows.csv")).unwrap();
    assert!(rows.starts_with("model,budget,") && rows.lines().count() == 2);
    bench.neap(&format!("{row} --format md -o rows.txt")).ok();
    let rows = fs::read_to_string(bench.path("rows.txt")).unwrap();
    assert!(rows.starts_with("| model"), "{rows}");
    let text = bench.neap("inspect m.onnx -o -").ok().stdout;
    assert!(text.contains("largest layers"), "{text}");
    bench
        .neap("run m.onnx --json r.json --format json")
        .fails(2, &["--json", "--format"]);
    bench
        .neap("inspect m.onnx --format csv")
        .fails(2, &["csv", "json"]);
}

#[test]
fn reports_of_costs_are_of_what_ran() {
    let bench = Bench::with_model(&layers());
    let report = bench.json("run m.onnx --threads 1 --iterations 5 --format json -q");
    let spent = report["processor_ms_per_run"].as_f64().unwrap();
    let longest = report["latency_ms"]["max"].as_f64().unwrap();
    // One thread computes, and one reads.
    assert!(spent > 0.0 && spent < 2.5 * longest, "{report}");
    assert!(
        report["energy_mj_per_run"].is_null() || report["energy_mj_per_run"].as_f64() > Some(0.0)
    );
    let rows = bench.json("bench m.onnx --threads 1 --iterations 2 --format json -q");
    assert!(
        rows[0]["processor_ms_per_run"].as_f64() > Some(0.0),
        "{rows}"
    );
}

#[test]
fn a_run_without_a_word_takes_what_can_be_spared() {
    let bench = Bench::with_model(&layers());
    let text = bench.neap("run m.onnx").ok().stdout;
    assert!(text.contains("which can be spared here"), "{text}");
    // What is told of the smallest budget holds.
    let told = text.split("--memory-budget ").nth(1).unwrap();
    let budget = told.split(';').next().unwrap();
    let within = bench
        .neap(&format!("run m.onnx --memory-budget {budget}"))
        .ok();
    assert!(!within.stdout.contains("spared"), "{}", within.stdout);
    let report = bench.json("run m.onnx --format json -q");
    assert!(
        report["memory_budget_bytes"].as_u64() > Some(1 << 20),
        "{report}"
    );
    let report = bench.json("run m.onnx --memory-budget none --format json -q");
    assert!(report["memory_budget_bytes"].is_null(), "{report}");
    let without = bench.neap("run m.onnx --enforce");
    without.fails(2, &["--enforce needs a limit"]);
}

#[test]
fn details_are_told_on_standard_error() {
    let bench = Bench::with_model(&layers());
    for command in [
        "run m.onnx",
        "inspect m.onnx",
        "plan m.onnx",
        "profile m.onnx --cache-dir c",
    ] {
        let quiet = bench.neap(&format!("{command} -q")).ok();
        let ran = bench.neap(&format!("-v {command} --format json")).ok();
        assert!(
            ran.stderr.contains(" s  opening m.onnx"),
            "{command}: {}",
            ran.stderr
        );
        assert!(
            ran.stderr.contains("steps, weights in "),
            "{command}: {}",
            ran.stderr
        );
        assert!(
            serde_json::from_str::<Value>(&ran.stdout).is_ok(),
            "{command}"
        );
        assert!(!quiet.stderr.contains("opening"), "{command}");
    }
    let ran = bench.neap("run m.onnx --verbose -o r.json").ok();
    for part in ["planned in ", "the session is open", "writing r.json"] {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    let ran = bench.neap("bench m.onnx --iterations 1 -v").ok();
    assert!(
        ran.stderr.contains("starting neap run m.onnx"),
        "{}",
        ran.stderr
    );
    bench
        .neap("run m.onnx -q -v")
        .fails(2, &["--quiet", "--verbose"]);
}

#[test]
fn options_that_moved_still_work_and_say_where_to() {
    let bench = Bench::with_model(&layers());
    let ran = bench.neap("inspect m.onnx -o json").ok();
    assert!(serde_json::from_str::<Value>(&ran.stdout).is_ok());
    assert!(
        ran.stderr.contains("-o json is now: --format json"),
        "{}",
        ran.stderr
    );
    assert!(!bench.path("json").exists());
    let ran = bench.neap("plan m.onnx --device phone --seed 3 -q").ok();
    assert_eq!(ran.stderr, "");
    let task = "total = '1GiB'\nruns = 1\n[[model]]\npath = 'm.onnx'\nthreads = 1\n";
    bench.write("t.toml", task.as_bytes());
    let ran = bench.neap("run --task t.toml").ok();
    assert!(
        ran.stderr.contains("is now: neap tasks t.toml"),
        "{}",
        ran.stderr
    );
    bench
        .neap("run --task t.toml --mean 1 -q")
        .fails(2, &["--mean", "neap tasks --help"]);
}

/// 16 bits, one channel.
fn wav(samples: &[i16]) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    file.extend(16_000u32.to_le_bytes());
    file.extend(32_000u32.to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}

#[test]
fn sound_is_an_input() {
    let samples = [16384, -16384, 8192];
    let bench = Bench::with_model(&relu("x", &["batch", "samples"], "y"));
    bench.write("s.wav", &wav(&samples));
    for input in ["s.wav", "x=s.wav"] {
        let ran = bench
            .neap(&format!("run m.onnx --input {input} --output-dir out"))
            .ok();
        assert!(
            ran.stderr.contains("16000 samples a second"),
            "{}",
            ran.stderr
        );
        assert!(ran.stdout.contains("float32 1x3"), "{}", ran.stdout);
        assert_eq!(read_f32(&bench.path("out/y.npy")), [0.5, 0.0, 0.25]);
    }
    bench.write("m.onnx", &relu("x", &["1", "2"], "y"));
    bench
        .neap("run m.onnx --input s.wav")
        .fails(2, &["'x'", "s.wav", "has 3 samples, 1x2 has 2"]);
    bench.write("s.npy", &f32_bytes(&[0.0]));
    bench.write("s.wav", &wav(&samples)[..40]);
    bench
        .neap("run m.onnx --input s.wav")
        .fails(2, &["s.wav", "no whole .wav"]);
}
