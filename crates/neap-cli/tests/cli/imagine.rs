//! Pictures of a text, with a small seeded model of the zoo.

use super::support::{Bench, can_enforce};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// With `sd`.
fn bench() -> Bench {
    bench_of("sd_tiny")
}

fn bench_of(family: &str) -> Bench {
    let bench = Bench::new();
    bench.neap(&format!("zoo {family} -o sd")).ok();
    bench
}

const SMALL: &str = "imagine sd -p house --size 64x64 --steps 4 --quiet";

fn picture(bench: &Bench, more: &str) -> Vec<u8> {
    bench.neap(&format!("{SMALL} -o out.png {more}")).ok();
    fs::read(bench.path("out.png")).unwrap()
}

/// The smallest budget that a refusal names.
fn smallest(bench: &Bench, command: &str) -> u64 {
    let told = bench.neap(&format!("{command} --memory-budget 1MiB"));
    let told = told.fails(3, &["smallest feasible budget"]);
    let bytes = told.split_once("bytes)").map_or("", |(before, _)| before);
    (bytes.rsplit_once('(').unwrap_or_default().1.trim())
        .parse()
        .unwrap_or_else(|_| panic!("{told}"))
}

#[test]
fn a_picture_is_the_same_bits_within_any_budget() {
    for family in ["sd_tiny", "sdxl_tiny"] {
        let bench = bench_of(family);
        let whole = picture(&bench, "--exact --scheduler euler-a");
        let report = bench.json(&format!("{SMALL} -o out.png --exact --json -"));
        let peak = report["peak_memory_bytes"].as_u64().unwrap();
        let networks = report["networks"].as_array().unwrap();
        assert!(networks.iter().any(|network| network["network"] == "unet"));
        let smallest = smallest(&bench, &format!("{SMALL} -o small.png --exact"));
        assert!(!bench.path("small.png").exists());
        assert!(smallest < peak, "{smallest} {peak}");
        let small = format!("--exact --scheduler euler-a --memory-budget {smallest}");
        assert_eq!(picture(&bench, &small), whole);
        assert_ne!(picture(&bench, "--exact --seed 1"), whole);
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    }
}

#[test]
fn several_pictures_are_those_of_their_seeds() {
    let bench = bench();
    let small = "imagine sd -p house --size 128x128 --steps 2 --scheduler euler-a --exact --quiet";
    let several = |more: &str| {
        let command = format!("{small} --images 6 --seed 4 -o a.png --json - {more}");
        let report = bench.json(&command);
        let networks = report["networks"].as_array().unwrap().clone();
        let unets = networks.iter().filter(|ran| ran["network"] == "unet");
        let runs = unets.map(|ran| ran["runs"].as_u64().unwrap()).sum::<u64>();
        let pictures = (1..=6).map(|n| fs::read(bench.path(&format!("a-{n}.png"))).unwrap());
        (runs, pictures.collect::<Vec<_>>())
    };
    let alone = |more: &str| {
        let each = (4..10).map(|seed| {
            let command = format!("{small} --seed {seed} -o one.png {more}");
            bench.neap(&command).ok();
            fs::read(bench.path("one.png")).unwrap()
        });
        each.collect::<Vec<_>>()
    };
    let wanted = alone("");
    assert_ne!(wanted[0], wanted[1]);
    // Each step reads the weights once.
    assert_eq!(several(""), (2, wanted.clone()));
    // Not all of them fit together.
    let smallest = smallest(&bench, &format!("{small} --images 6 -o a.png"));
    let (runs, pictures) = several(&format!("--memory-budget {smallest}"));
    assert!(runs > 2 && runs.is_multiple_of(2), "{runs}");
    assert_eq!(pictures, wanted);
    assert_eq!(several("--guidance 1"), (2, alone("--guidance 1")));
}

#[test]
fn folders_of_sdxl_that_lack_something_are_refused() {
    let bench = bench_of("sdxl_tiny");
    let fails = |parts: &[&str]| {
        bench.neap(&format!("{SMALL} -o o.png")).fails(2, parts);
    };
    fs::rename(bench.path("sd/tokenizer_2"), bench.path("tokenizer")).unwrap();
    fails(&["tokenizer_2/vocab.json"]);
    fs::rename(bench.path("tokenizer"), bench.path("sd/tokenizer_2")).unwrap();
    let second = bench.path("sd/text_encoder_2/model.onnx");
    fs::copy(bench.path("sd/text_encoder/model.onnx"), &second).unwrap();
    fails(&["text_embeds"]);
    fs::remove_file(&second).unwrap();
    fails(&["text_encoder_2/model.onnx", "missing", "SDXL"]);
    bench.neap("zoo sd_tiny -o one").ok();
    let first = bench.path("sd/text_encoder");
    fs::remove_dir_all(&first).unwrap();
    fs::rename(bench.path("one/text_encoder"), &first).unwrap();
    fs::copy(first.join("model.onnx"), &second).unwrap();
    fails(&["hidden_states.0"]);
    assert!(!bench.path("o.png").exists());
}

/// An empty negative prompt is zeros, unless the folder says otherwise.
#[test]
fn what_should_not_be_shown_may_be_zeros() {
    let bench = bench_of("sdxl_tiny");
    let zeros = picture(&bench, "--exact");
    let path = bench.path("sd/model_index.json");
    let index = fs::read_to_string(&path).unwrap();
    let setting = "\"force_zeros_for_empty_prompt\": true";
    assert!(index.contains(setting));
    fs::write(&path, index.replace("prompt\": true", "prompt\": false")).unwrap();
    assert_ne!(picture(&bench, "--exact"), zeros);
    fs::remove_file(&path).unwrap();
    assert_eq!(picture(&bench, "--exact"), zeros);
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
    pictures_are_like_onnxruntime_s(
        "sd_tiny",
        &[
            "--steps 4 --scheduler ddim",
            "--steps 5 --scheduler euler",
            "--steps 4 --scheduler euler-a --seed 7",
            "--steps 4 --scheduler dpm++2m --negative boat",
            "--steps 3 --scheduler lcm --guidance 1",
            "--steps 4 --scheduler pndm --guidance 3",
            "--steps 5 --scheduler ddim --image photo.png --strength 0.6",
        ],
    );
}

/// The same with SDXL.
#[test]
fn pictures_of_sdxl_are_onnxruntime_s() {
    pictures_are_like_onnxruntime_s(
        "sdxl_tiny",
        &[
            "--steps 4 --scheduler euler",
            "--steps 4 --scheduler dpm++2m --negative boat",
            "--steps 4 --scheduler ddim --guidance 1",
            "--steps 5 --scheduler euler --image photo.png --strength 0.6",
        ],
    );
}

fn pictures_are_like_onnxruntime_s(family: &str, all: &[&str]) {
    let Some(python) = python() else {
        return neap_testing::skip("onnxruntime cannot be had here");
    };
    let bench = bench_of(family);
    let photo = neap_testing::png(64, 64, |x, y| [4 * x as u8, 4 * y as u8, (x ^ y) as u8]);
    bench.write("photo.png", &photo);
    for options in all {
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

/// A network of the zoo that `imagine` does not run.
#[test]
fn a_transformer_over_latents_is_onnxruntime_s() {
    let Some(python) = python() else {
        return neap_testing::skip("onnxruntime cannot be had here");
    };
    let bench = Bench::new();
    bench.neap("zoo pixart_tiny -o px").ok();
    bench
        .neap("imagine px -p house -o o.png")
        .fails(2, &["text_encoder/model.onnx", "missing"]);
    let model = "px/transformer/model.onnx";
    let script = |name: &str, args: &str| {
        let output = Command::new(&python)
            .arg(scripts().join(name))
            .args(args.split(' '))
            .current_dir(bench.dir.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}{log}");
    };
    script(
        "reference.py",
        &format!("{model} --seed-inputs in --output-dir wanted"),
    );
    let names = [
        "hidden_states",
        "encoder_hidden_states",
        "timestep",
        "encoder_attention_mask",
    ];
    let inputs = names.map(|name| format!("--input {name}=in/{name}.npy"));
    let inputs = inputs.join(" ");
    bench
        .neap(&format!("run {model} {inputs} --output-dir ours --quiet"))
        .ok();
    script("compare.py", "ours wanted");
}
