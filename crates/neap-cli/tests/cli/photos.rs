//! Photos as inputs: one, several, folders of them; and photos that are wrong.

use super::inputs::{fails, result};
use super::onnx::{FLOAT, Model, relu};
use super::support::{Bench, read_f32};

/// Two numbers for each photo: the means of its red and its blue.
fn colours() -> Bench {
    let model = Model::default()
        .node("GlobalAveragePool", &["image"], &["mean"])
        .node("Flatten", &["mean"], &["all"])
        .node("MatMul", &["all", "pick"], &["y"])
        .matrix("pick", &[3, 2], &[1., 0., 0., 0., 0., 1.])
        .input("image", FLOAT, &["1", "3", "4", "4"])
        .output("y", FLOAT, &["1", "2"])
        .finish();
    let bench = Bench::with_model(&model);
    for (folder, name, colour) in [
        ("blue", "a.png", [0, 0, 200]),
        ("red", "b.png", [200, 0, 0]),
        ("red", "c.png", [100, 0, 0]),
        ("red", "odd.png", [10, 0, 100]),
    ] {
        std::fs::create_dir_all(bench.path(&format!("photos/{folder}"))).unwrap();
        let file = format!("photos/{folder}/{name}");
        bench.write(&file, &neap_testing::png(9, 5, |_, _| colour));
    }
    bench.write("photos/red/notes.txt", b"none");
    bench
}

#[test]
fn a_folder_of_photos_is_run_and_judged_by_its_folders() {
    let bench = colours();
    bench.write("labels.txt", b"red\nblue\n");
    let run = "run m.onnx --input photos --labels labels.txt --output-dir out";
    let ran = bench.neap(run).ok();
    assert!(ran.stdout.contains("75.00 %: 3 of 4"), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("c.png: red (0) 0.3922"),
        "{}",
        ran.stdout
    );
    assert_eq!(read_f32(&bench.path("out/y.npy")).len(), 8);
    let report = bench.json("run m.onnx --input photos --labels labels.txt --json -");
    assert_eq!(report["photos"]["accuracy"]["right"], 3);
    assert_eq!(report["outputs"][0]["shape"][0], 4);
    // Without names, folders are classes in alphabetical order: blue would be the first.
    let report = bench.json("run m.onnx --input photos --json -");
    assert_eq!(report["photos"]["accuracy"]["right"], 1);
    bench
        .neap("run m.onnx --input photos --labels none.txt")
        .fails(2, &["none.txt"]);
}

#[test]
fn several_photos_are_one_batch_after_another() {
    let bench = colours();
    let both = "--input photos/red/b.png --input photos/blue/a.png";
    let report = bench.json(&format!("run m.onnx {both} --json -"));
    let tops = report["photos"]["photos"].as_array().unwrap();
    assert_eq!(tops[0]["top"][0]["index"], 0);
    assert_eq!(tops[1]["top"][0]["index"], 1);
    let one = bench.neap("run m.onnx --input photos/red/b.png").ok();
    assert!(one.stdout.contains("largest 0 0.7843"), "{}", one.stdout);
}

/// What pack is told of photos is in the packed model.
#[test]
fn a_packed_model_says_how_photos_are_prepared() {
    let bench = Bench::with_model(&relu("image", &["1", "3", "2", "2"], "y"));
    bench.write(
        "p.png",
        &neap_testing::png(6, 4, |x, _| [40 * x as u8, 51, 0]),
    );
    let options = "--mean 0.1,0,0 --std 0.5 --resize stretch --channel-order bgr";
    let wanted = result(&bench, &format!("--input p.png {options}"));
    bench.neap(&format!("pack m.onnx -o m.neap {options}")).ok();
    let run = |more: &str| {
        let args = format!("run m.neap --output-dir out --input p.png {more}");
        bench.neap(&args).ok();
        read_f32(&bench.path("out/y.npy"))
    };
    assert_eq!(run(""), wanted);
    // Options stand above it.
    assert_eq!(
        run("--std 0.25"),
        wanted.iter().map(|v| v * 2.0).collect::<Vec<_>>()
    );
    assert_ne!(result(&bench, "--input p.png"), wanted);
}

#[test]
fn photos_that_are_cut_short_or_too_large_are_refused() {
    let bench = Bench::with_model(&relu("image", &["1", "3", "8", "8"], "y"));
    let noise = |x: u16, y: u16| [(x * 31 + y * 17) as u8, (x ^ y) as u8, (x * 7) as u8];
    let whole = neap_testing::jpeg(400, 300, noise);
    bench.write("cut.jpg", &whole[..whole.len() / 3]);
    bench.write("empty.png", b"");
    fails(&bench, "--input cut.jpg", &["cut.jpg", "cut short"]);
    fails(&bench, "--input empty.png", &["empty.png", "empty"]);
    bench.write("large.png", &neap_testing::png(4000, 3000, |_, _| [7; 3]));
    bench
        .neap("run m.onnx --input large.png --memory-budget 16MiB")
        .fails(3, &["4000x3000", "large.png"]);
    // Nothing fits, with or without a photo.
    bench
        .neap("run m.onnx --input large.png --memory-budget 64")
        .fails(3, &["smallest feasible budget"]);
    bench.neap("run m.onnx --input large.png").ok();
}
