//! Hostile and broken files: one clear line, exit code 2, nothing left behind.

use super::onnx::{FLOAT, Model, layers, relu};
use super::support::Bench;
use std::fs;

#[test]
fn broken_models() {
    let good = relu("x", &["2", "3"], "y");
    let bench = Bench::new();
    bench.write("empty.onnx", b"");
    bench.write("text.onnx", b"this is no model, but a sentence");
    bench.write("cut.onnx", &good[..good.len() / 2]);
    bench.write("empty.neap", b"");
    bench.write("text.neap", &[b'x'; 10_000]);
    fs::create_dir(bench.path("folder.onnx")).unwrap();
    for model in [
        "empty.onnx",
        "text.onnx",
        "cut.onnx",
        "empty.neap",
        "text.neap",
        "folder.onnx",
        "absent.onnx",
        "absent.neap",
    ] {
        for command in ["run", "inspect", "plan"] {
            bench.neap(&format!("{command} {model}")).fails(2, &[]);
        }
    }
    bench.neap("pack cut.onnx -o out.neap").fails(2, &[]);
    assert!(!bench.path("out.neap").exists());
    assert_eq!(bench.leftovers(), [""; 0]);
}

#[test]
fn files_of_other_formats_are_named() {
    let bench = Bench::new();
    for (magic, named) in [
        (b"PK\x03\x04\0\0\0\0".as_slice(), "torch.onnx.export"),
        (b"\x80\x02\x8a\x0a\0\0\0\0", "a pickle"),
        (b"\x89HDF\r\n\x1a\n", "Keras"),
        (b"\x1c\0\0\0TFL3\0\0", "TensorFlow Lite"),
    ] {
        bench.write("m.onnx", magic);
        bench
            .neap("run m.onnx")
            .fails(2, &["'m.onnx' is not an ONNX model", named]);
    }
}

#[test]
fn an_unsupported_operator_is_named_with_its_node() {
    let model = Model::default()
        .node("FlyToTheMoon", &["x"], &["y"])
        .input("x", FLOAT, &["2"])
        .output("y", FLOAT, &["2"])
        .finish();
    let bench = Bench::with_model(&model);
    bench
        .neap("run m.onnx")
        .fails(2, &["FlyToTheMoon", "FlyToTheMoon_node"]);
}

#[test]
fn mutated_models_end_well_or_with_a_line() {
    let good = relu("x", &["2", "3"], "y");
    let bench = Bench::new();
    for at in (0..good.len()).step_by(3) {
        let mut bytes = good.clone();
        bytes[at] ^= 0x55;
        bench.write("m.onnx", &bytes);
        let ran = bench.neap("run m.onnx --cache-dir cache --quiet");
        if ran.code != 0 {
            ran.fails(2, &[]);
        }
    }
}

#[test]
fn every_corrupted_part_of_a_packed_model_is_found() {
    let bench = Bench::with_model(&layers());
    bench.neap("pack m.onnx -o good.neap").ok();
    let good = fs::read(bench.path("good.neap")).unwrap();
    for part in 0..40 {
        let at = part * (good.len() - 1) / 39;
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bench.write("bad.neap", &bytes);
        let ran = bench.neap("run bad.neap --threads 1 --output-dir out");
        assert_eq!(ran.code, 2, "byte {at} of {}: {}", good.len(), ran.stdout);
        ran.fails(2, &[]);
        assert!(!bench.path("out/out_put_0.npy").exists());
    }
    bench.write("cut.neap", &good[..good.len() - 4096]);
    bench.neap("run cut.neap").fails(2, &["cut.neap"]);
    bench.neap("run good.neap").ok();
}

#[test]
fn a_damaged_cache_is_made_again() {
    let bench = Bench::with_model(&layers());
    bench.neap("run m.onnx --cache-dir cache").ok();
    let entry = fs::read_dir(bench.path("cache")).unwrap().next().unwrap();
    fs::write(entry.unwrap().path(), b"damaged").unwrap();
    bench.neap("run m.onnx --cache-dir cache").ok();
}

#[test]
fn places_that_cannot_be_written() {
    let bench = Bench::with_model(&relu("x", &["2"], "y"));
    bench.write("file", b"");
    let cases = [
        ("run m.onnx --output-dir file/out", "file/out"),
        ("run m.onnx --json no/such/r.json", "r.json"),
        ("run m.onnx --json .", "folder"),
        ("run m.onnx --cache-dir file/cache", "file/cache"),
        ("pack m.onnx -o no/such/m.neap", "m.neap"),
        ("pack m.onnx -o m.onnx", ".neap"),
        ("plan m.onnx -o no/such/p.html", "p.html"),
        ("zoo squeezenet1_1 -o no/such/m.onnx", "m.onnx"),
    ];
    for (args, part) in cases {
        bench.neap(args).fails(2, &[part]);
    }
    if std::path::Path::new("/dev/full").exists() {
        bench
            .command("run m.onnx")
            .stdout(
                fs::OpenOptions::new()
                    .write(true)
                    .open("/dev/full")
                    .unwrap(),
            )
            .output()
            .map(|o| assert_eq!(o.status.code(), Some(2)))
            .unwrap();
    }
    assert_eq!(bench.leftovers(), [""; 0]);
}

#[test]
fn a_packed_model_takes_every_shape_that_its_model_takes() {
    let bench = Bench::with_model(&relu("x", &["n", "3"], "y"));
    bench.neap("pack m.onnx -o m.neap --shape x=2x3").ok();
    let before = fs::read(bench.path("m.neap")).unwrap();
    for arguments in ["", " --shape x=2x3", " --shape x=4x3", " --shape x=1x3"] {
        bench.neap(&format!("run m.neap{arguments}")).ok();
    }
    assert!(fs::read(bench.path("m.neap")).unwrap() == before);
    bench
        .neap("run m.neap --shape x=4x5")
        .fails(2, &["m.neap", "4x5", "nx3"]);
    bench.neap("run m.neap --shape z=4x3").fails(2, &["'z'"]);

    let fixed = Bench::with_model(&relu("x", &["2", "3"], "y"));
    fixed.neap("pack m.onnx -o m.neap").ok();
    fixed
        .neap("run m.neap --shape x=4x3")
        .fails(2, &["m.neap", "4x3", "2x3"]);
}
