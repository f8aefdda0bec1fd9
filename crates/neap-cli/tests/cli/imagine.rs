//! Pictures of a text, with a small seeded model of the zoo.

use super::support::{Bench, can_enforce};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// With `sd`.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.neap("zoo sd_tiny -o sd").ok();
    bench
}

const SMALL: &str = "imagine sd -p house --size 64x64 --steps 4 --quiet";

fn picture(bench: &Bench, more: &str) -> Vec<u8> {
    bench.neap(&format!("{SMALL} -o out.png {more}")).ok();
    fs::read(bench.path("out.png")).unwrap()
}

#[test]
fn a_picture_is_the_same_bits_within_any_budget() {
    let bench = bench();
    let whole = picture(&bench, "--exact --scheduler euler-a");
    let report = bench.json(&format!("{SMALL} -o out.png --exact --json -"));
    let peak = report["peak_memory_bytes"].as_u64().unwrap();
    assert_eq!(report["networks"][1]["network"], "unet");
    // The smallest that the refusal names.
    let told = bench.neap(&format!(
        "{SMALL} -o small.png --exact --memory-budget 1MiB"
    ));
    let told = told.fails(3, &["smallest feasible budget"]);
    assert!(!bench.path("small.png").exists());
    let bytes = told.split_once("bytes)").map_or("", |(before, _)| before);
    let smallest: u64 = (bytes.rsplit_once('(').unwrap_or_default().1.trim())
        .parse()
        .unwrap_or_else(|_| panic!("{told}"));
    assert!(smallest < peak, "{smallest} {peak}");
    let small = format!("--exact --scheduler euler-a --memory-budget {smallest}");
    assert_eq!(picture(&bench, &small), whole);
    assert_ne!(picture(&bench, "--exact --seed 1"), whole);
    assert_eq!(bench.leftovers(), Vec::<String>::new());
}

#[test]
fn several_pictures_are_those_of_their_seeds() {
    let bench = bench();
    bench
        .neap(&format!("{SMALL} -o a.png --images 2 --seed 4"))
        .ok();
    let second = picture(&bench, "--seed 5");
    assert_eq!(fs::read(bench.path("a-2.png")).unwrap(), second);
    assert_ne!(fs::read(bench.path("a-1.png")).unwrap(), second);
}

#[test]
fn the_kernel_can_enforce_the_budget() {
    let bench = bench();
    if can_enforce(&bench) {
        picture(&bench, "--memory-budget 64MiB --enforce");
    }
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let bench = bench();
    let fails = |more: &str, parts: &[&str]| {
        bench.neap(&format!("{SMALL} {more}")).fails(2, parts);
    };
    fails("-o o.png --scheduler heun", &["heun", "dpm++2m"]);
    fails(
        "-o o.png --image none.png --strength 1.5",
        &["1.5", "from 0 to 1"],
    );
    fails("-o o.png --image sd/none.png", &["sd/none.png"]);
    fails("-o none/o.png", &["none is no folder"]);
    fails("-o o.png --memory-budget 25%", &["write a size"]);
    fails("-o o.png --enforce", &["--memory-budget"]);
    let run = |args: &str| bench.neap(&format!("imagine sd -p x -o o.png {args}"));
    run("--size 60x64").fails(2, &["60", "multiple of 8"]);
    run("--size 72x64").fails(2, &["--size 72x64", "multiples of 16"]);
    run("--steps 0").fails(2, &["from 1 to"]);
    bench
        .neap("imagine none -p x -o o.png")
        .fails(2, &["none is no folder"]);
    bench.write("sd/scheduler/scheduler_config.json", b"{\"beta_start\": 2}");
    fails("-o o.png", &["scheduler_config.json", "beta_start"]);
    bench.write("sd/tokenizer/merges.txt", b"#version: 0.2\nx\n");
    fs::remove_file(bench.path("sd/vae_decoder/model.onnx")).unwrap();
    fails("-o o.png", &["vae_decoder/model.onnx", "missing"]);
    assert!(!bench.path("o.png").exists());
    bench.neap("zoo sd_tiny -o sd").fails(2, &["sd"]);
    bench
        .neap("zoo sd_tiny -o new --lm-head")
        .fails(2, &["--seed"]);
    assert!(!bench.path("new").exists());
    bench.neap("zoo resnet50 --half").fails(2, &["--half"]);
}

#[test]
fn networks_of_half_floats() {
    let bench = bench();
    bench.neap("zoo sd_tiny --half -o half").ok();
    let bytes = |folder: &str| {
        let path = bench.path(folder).join("unet/model.onnx");
        fs::metadata(path).unwrap().len()
    };
    assert!(bytes("half") * 3 < bytes("sd") * 2);
    let small = SMALL.replace(" sd ", " half ");
    bench.neap(&format!("{small} -o half.png")).ok();
    let picture = fs::read(bench.path("half.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG"));
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts")
}

/// The interpreter of the repository's Python environment, made on first use.
fn python() -> Option<PathBuf> {
    let made = Command::new("sh")
        .arg(scripts().join("venv.sh"))
        .stderr(Stdio::inherit())
        .output()
        .ok()?;
    let path = String::from_utf8(made.stdout).ok()?;
    (!path.trim().is_empty()).then(|| PathBuf::from(path.trim()))
}

/// The whole way from a text to pixels, beside onnxruntime and schedulers that were written apart.
#[test]
fn pictures_are_onnxruntime_s() {
    let Some(python) = python() else {
        return neap_testing::skip("onnxruntime cannot be had here");
    };
    let bench = bench();
    let photo = neap_testing::png(64, 64, |x, y| [4 * x as u8, 4 * y as u8, (x ^ y) as u8]);
    bench.write("photo.png", &photo);
    for options in [
        "--steps 4 --scheduler ddim",
        "--steps 5 --scheduler euler",
        "--steps 4 --scheduler euler-a --seed 7",
        "--steps 4 --scheduler dpm++2m --negative boat",
        "--steps 3 --scheduler lcm --guidance 1",
        "--steps 4 --scheduler pndm --guidance 3",
        "--steps 5 --scheduler ddim --image photo.png --strength 0.6",
    ] {
        let words = "--prompt house";
        bench
            .neap(&format!(
                "imagine sd {words} --size 64x64 {options} -o out.png"
            ))
            .ok();
        let output = Command::new(&python)
            .arg(scripts().join("imagine_reference.py"))
            .args(["sd", "out.png"])
            .args(words.split(' ').chain(options.split(' ')))
            .current_dir(bench.dir.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options}: {said}{log}");
    }
}
