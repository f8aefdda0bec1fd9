//! Pictures that a model is trained on, and those that it is run on.

use crate::onnx::{FLOAT, Model};
use crate::support::*;
use std::fs;

/// A picture of any proportions with a bright spot: large or small.
fn spot(number: u16, is_large: bool) -> Vec<u8> {
    let (width, height) = [(40, 90), (90, 40), (64, 64), (120, 30)][usize::from(number) % 4];
    let size = if is_large { 12 } else { 5 };
    let (x0, y0) = (width / 2 + number % 5, height / 2 - number % 4);
    neap_testing::png(width, height, |x, y| {
        let inside = x.abs_diff(x0) < size && y.abs_diff(y0) < size;
        let noise = ((x * 7 + y * 13 + number * 5) % 40) as u8;
        [if inside { 220 } else { noise }; 3]
    })
}

fn spots(bench: &Bench, folder: &str, numbers: std::ops::Range<u16>) {
    for (class, is_large) in [("large", true), ("small", false)] {
        let folder = bench.path(&format!("{folder}/{class}"));
        fs::create_dir_all(&folder).unwrap();
        for number in numbers.clone() {
            fs::write(folder.join(format!("{number}.png")), spot(number, is_large)).unwrap();
        }
    }
}

/// With `m.onnx`, of ten classes.
fn bench() -> Bench {
    let model = Model::default()
        .node("Flatten", &["image"], &["flat"])
        .node("MatMul", &["flat", "first"], &["a"])
        .node("Relu", &["a"], &["b"])
        .node("MatMul", &["b", "last"], &["y"])
        .weights("first", &[768, 24], 1)
        .weights("last", &[24, 10], 2)
        .input("image", FLOAT, &["n", "3", "16", "16"])
        .output("y", FLOAT, &["n", "10"])
        .finish();
    let bench = Bench::with_model(&model);
    spots(&bench, "data/train", 0..40);
    spots(&bench, "data/val", 40..70);
    bench
}

fn percent(text: &str, before: &str) -> String {
    let (_, after) = text.rsplit_once(before).unwrap();
    after.split_once(" %").unwrap().0.to_string()
}

/// How pictures are prepared is in the trained model: a run needs no options, and sees what the training saw.
#[test]
fn a_run_has_the_accuracy_that_the_training_said() {
    let bench = bench();
    for (number, options) in [
        "",
        "--resize stretch --mean 0.4 --std 0.3",
        "--resize letterbox --pad 0 --channel-order bgr --filter bicubic",
        "--resize crop --scale 0.01",
    ]
    .into_iter()
    .enumerate()
    {
        let train = format!(
            "train m.onnx --data data --classes 2 --batch 16 --epochs 3 --lr 2e-3 --threads 1 {options} -o t{number}.onnx"
        );
        let said = bench.neap(&train).ok();
        let trained = percent(&said.stdout, "accuracy ");
        let run = format!("run t{number}.onnx --shape image=1x3x16x16 --input data/val --exact");
        let ran = bench.neap(&run).ok();
        assert_eq!(
            percent(&ran.stdout, "accuracy    "),
            trained,
            "{options}: {}",
            ran.stdout
        );
        assert!(ran.stdout.contains("large (0)") || ran.stdout.contains("small (1)"));
        bench
            .neap(&format!(
                "pack t{number}.onnx -o t{number}.neap --shape image=1x3x16x16"
            ))
            .ok();
        let packed = bench
            .neap(&format!("run t{number}.neap --input data/val --exact"))
            .ok();
        assert_eq!(
            percent(&packed.stdout, "accuracy    "),
            trained,
            "{options}"
        );
    }
}

#[test]
fn a_model_is_given_the_classes_of_the_data() {
    let bench = bench();
    let ran = bench
        .neap("train m.onnx --data data --batch 16 --epochs 1 -o ten.onnx")
        .ok();
    assert!(ran.stderr.contains("--classes 2 would"), "{}", ran.stderr);
    let ran = bench
        .neap("train m.onnx --data data --classes 2 --batch 16 --epochs 1 -o two.onnx")
        .ok();
    assert!(
        ran.stderr.contains("2 classes instead of 10"),
        "{}",
        ran.stderr
    );
    let report = bench.json("run two.onnx --shape image=1x3x16x16 --json -");
    assert_eq!(report["outputs"][0]["shape"][1], 2);
    let labels: Vec<&str> = (report["outputs"][0]["top"].as_array().unwrap().iter())
        .map(|top| top["label"].as_str().unwrap())
        .collect();
    assert!(
        labels.contains(&"large") && labels.contains(&"small"),
        "{labels:?}"
    );
    spots(&bench, "data/train/more", 0..1);
    assert!(!bench.path("two.start.onnx").exists());
}

/// The budget counts what the largest picture takes, and nothing that could be.
#[test]
fn pictures_are_trained_in_a_small_budget() {
    let bench = bench();
    let train = "train m.onnx --data data --classes 2 --batch 16 --epochs 1 --threads 1 --overwrite -o t.onnx";
    bench.neap(&format!("{train} --memory-budget 40MiB")).ok();
    bench.write(
        "data/train/large/huge.png",
        &neap_testing::png(4000, 3000, |_, _| [0; 3]),
    );
    bench
        .neap(&format!("{train} --memory-budget 40MiB"))
        .fails(3, &["smallest feasible budget", "huge.png", "4000x3000"]);
}

#[test]
fn wrong_pictures_are_found_before_anything_is_trained() {
    let bench = bench();
    let train = "train m.onnx --data data --classes 2 --batch 16 --epochs 1 -o t.onnx";
    bench.write("data/val/small/cut.png", &spot(1, true)[..200]);
    bench.neap(train).fails(2, &["cut.png", "cut short"]);
    bench.write("data/val/small/cut.png", b"");
    bench.neap(train).fails(2, &["cut.png", "empty"]);
    fs::remove_file(bench.path("data/val/small/cut.png")).unwrap();
    bench
        .neap(&format!("{train} --page none/x.html"))
        .fails(2, &["none"]);
    bench
        .neap(&format!("{train} --state-dir none"))
        .fails(2, &["--state-dir none"]);
    bench
        .neap("train m.onnx --data data --classes 2 -o none/t.onnx")
        .fails(2, &["none"]);
    assert!(!bench.path("t.onnx.checkpoint").exists());
}
