//! Inputs from every kind of file, and what is wrong with them.

use super::onnx::{FLOAT, INT64, Model, relu};
use super::support::{Bench, Ran, f32_bytes, npy, read_f32};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;

fn small() -> Bench {
    let bench = Bench::with_model(&relu("x", &["2", "3"], "y"));
    let data = f32_bytes(&[1., -2., 3., -4., 5., -6.]);
    bench.write("x.npy", &npy("<f4", "(2, 3)", &data));
    bench.write("x.bin", &data);
    bench
}

pub fn result(bench: &Bench, args: &str) -> Vec<f32> {
    bench
        .neap(&format!("run m.onnx --output-dir out {args}"))
        .ok();
    read_f32(&bench.path("out/y.npy"))
}

pub fn fails(bench: &Bench, args: &str, parts: &[&str]) {
    let ran: Ran = bench.neap(&format!("run m.onnx --output-dir out {args}"));
    ran.fails(2, parts);
    assert!(!bench.path("out/y.npy").exists());
}

#[test]
fn arrays_and_raw_bytes() {
    let bench = small();
    let expected = [1., 0., 3., 0., 5., 0.];
    assert_eq!(result(&bench, "--input x=x.npy"), expected);
    assert_eq!(result(&bench, "--input x.npy"), expected);
    assert_eq!(result(&bench, "--input x=x.bin"), expected);
}

#[test]
fn wrong_files() {
    let bench = small();
    let six = f32_bytes(&[0.; 6]);
    bench.write("shape.npy", &npy("<f4", "(3, 2)", &six));
    bench.write(
        "double.npy",
        &npy("<f8", "(2, 3)", &[six.clone(), six.clone()].concat()),
    );
    bench.write("short.npy", &npy("<f4", "(2, 3)", &six[4..]));
    bench.write("short.bin", &six[4..]);
    bench.write("junk.npy", b"junk");
    bench.write("junk.npz", b"junk");
    bench.write("junk.jpg", b"junk");
    fails(
        &bench,
        "--input x=shape.npy",
        &["'x'", "shape.npy", "3x2", "2x3"],
    );
    fails(&bench, "--input x=double.npy", &["float64", "float32"]);
    fails(&bench, "--input x=short.npy", &["shorter"]);
    fails(&bench, "--input x=short.bin", &["20 bytes", "24"]);
    fails(&bench, "--input x=junk.npy", &["no .npy"]);
    fails(&bench, "--input x=junk.npz", &["no .npz"]);
    fails(&bench, "--input x=junk.jpg", &["'x'"]);
    fails(&bench, "--input x=x.npy --input x=x.bin", &["twice"]);
    fails(&bench, "--input z=x.npy", &["no input 'z'", "'x'"]);
    fails(
        &bench,
        "--input x=absent.npy",
        &["absent.npy", "No such file"],
    );
    fails(&bench, "--input x=m.onnx", &["ending"]);
    std::fs::create_dir(bench.path("bare")).unwrap();
    fails(&bench, "--input x=bare", &["no photos"]);
    fails(&bench, "--input x=1,2", &["2 numbers"]);
}

/// `y` is `x`, reshaped as the input `shape` says.
fn reshape() -> Bench {
    let bench = Bench::with_model(
        &Model::default()
            .node("Reshape", &["x", "shape"], &["r"])
            .node("Relu", &["r"], &["y"])
            .input("x", FLOAT, &["2", "3"])
            .input("shape", INT64, &["2"])
            .output("y", FLOAT, &["rows", "columns"])
            .finish(),
    );
    let data = f32_bytes(&[1., -2., 3., -4., 5., -6.]);
    bench.write("x.npy", &npy("<f4", "(2, 3)", &data));
    let shape = |values: [i64; 2]| values.map(i64::to_le_bytes).concat();
    bench.write("tall.npy", &npy("<i8", "(2,)", &shape([6, 1])));
    bench.write("wide.npy", &npy("<i8", "(2,)", &shape([1, -1])));
    let narrow = [3i32, 2].map(i32::to_le_bytes).concat();
    bench.write("narrow.npy", &npy("<i4", "(2,)", &narrow));
    bench
}

#[test]
fn inputs_that_decide_shapes_are_bound_from_the_data() {
    let bench = reshape();
    for (file, shape) in [("tall", "(6, 1)"), ("wide", "(1, 6)"), ("narrow", "(3, 2)")] {
        // Each value has a packed form of its own: the second run finds it.
        for _ in 0..2 {
            bench
                .neap(&format!(
                    "run m.onnx --output-dir out --input x=x.npy --input shape={file}.npy"
                ))
                .ok();
            let written = std::fs::read(bench.path("out/y.npy")).unwrap();
            let header = String::from_utf8_lossy(&written[..128]).into_owned();
            assert!(header.contains(shape), "{header}");
            assert_eq!(read_f32(&bench.path("out/y.npy")), [1., 0., 3., 0., 5., 0.]);
        }
    }
}

#[test]
fn inputs_that_decide_shapes_must_be_given() {
    let bench = reshape();
    fails(
        &bench,
        "--input x=x.npy",
        &["Reshape", "'shape'", "--bind shape=FILE.npy"],
    );
    fails(
        &bench,
        "--input x=x.npy --input shape=x.npy",
        &["'shape'", "2x3"],
    );
    bench.neap("inspect m.onnx").fails(2, &["--bind shape"]);
    bench.neap("inspect m.onnx --bind shape=tall.npy").ok();
    bench
        .neap("inspect m.onnx --bind shape=absent.npy")
        .fails(2, &["--bind shape", "absent.npy"]);
    bench
        .neap("inspect m.onnx --bind size=tall.npy")
        .fails(2, &["no such input", "'shape'"]);
}

#[test]
fn a_packed_model_keeps_its_bound_values() {
    let bench = reshape();
    bench
        .neap("pack m.onnx -o m.neap --bind shape=tall.npy")
        .ok();
    for args in ["", "--input shape=tall.npy", "--bind shape=tall.npy"] {
        bench
            .neap(&format!("run m.neap --input x=x.npy {args}"))
            .ok();
    }
    bench.neap("run m.neap --input x.npy").ok();
    bench
        .neap("run m.neap --input x=x.npy --input shape=wide.npy")
        .fails(2, &["'shape'", "another value"]);
    bench
        .neap("run m.neap --input x=x.npy --bind shape=wide.npy")
        .ok();
}

#[test]
fn two_inputs_from_one_archive() {
    let bench = Bench::with_model(
        &Model::default()
            .node("Add", &["a", "b"], &["y"])
            .input("a", FLOAT, &["2"])
            .input("b", FLOAT, &["2"])
            .output("y", FLOAT, &["2"])
            .finish(),
    );
    let array = |values: &[f32]| npy("<f4", "(2,)", &f32_bytes(values));
    let archive = |names: &[&str], method| {
        let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (i, name) in names.iter().enumerate() {
            let options = zip::write::SimpleFileOptions::default().compression_method(method);
            zip.start_file(format!("{name}.npy"), options).unwrap();
            zip.write_all(&array(&[10. * i as f32, 1.])).unwrap();
        }
        zip.finish().unwrap().into_inner()
    };
    bench.write(
        "stored.npz",
        &archive(&["b", "a"], zip::CompressionMethod::Stored),
    );
    bench.write(
        "deflated.npz",
        &archive(&["b", "a"], zip::CompressionMethod::Deflated),
    );
    bench.write(
        "other.npz",
        &archive(&["a", "c"], zip::CompressionMethod::Stored),
    );
    bench.write("a.npy", &array(&[1., 2.]));
    assert_eq!(result(&bench, "--input stored.npz"), [10., 2.]);
    assert_eq!(result(&bench, "--input deflated.npz"), [10., 2.]);
    assert_eq!(
        result(&bench, "--input a=stored.npz --input b=a.npy"),
        [11., 3.]
    );
    std::fs::remove_dir_all(bench.path("out")).unwrap();
    fails(&bench, "--input other.npz", &["'c'"]);
    fails(&bench, "--input b=other.npz", &["'b'", "a, c"]);
    fails(&bench, "--input a.npy", &["NAME=", "'a', 'b'"]);
}

#[test]
fn integers_widen_with_a_remark() {
    let bench = Bench::with_model(
        &Model::default()
            .node("Add", &["x", "x"], &["y"])
            .input("x", INT64, &["2"])
            .output("y", INT64, &["2"])
            .finish(),
    );
    let data: Vec<u8> = [3i32, -4].iter().flat_map(|v| v.to_le_bytes()).collect();
    bench.write("x.npy", &npy("<i4", "(2,)", &data));
    let ran = bench
        .neap("run m.onnx --input x=x.npy --output-dir out")
        .ok();
    assert!(ran.stderr.contains("widened"), "{}", ran.stderr);
    let bytes = std::fs::read(bench.path("out/y.npy")).unwrap();
    let expected: Vec<u8> = [6i64, -8].iter().flat_map(|v| v.to_le_bytes()).collect();
    assert!(bytes.ends_with(&expected));
}

#[test]
fn photos() {
    let bench = Bench::with_model(&relu("image", &["1", "3", "2", "2"], "y"));
    bench.write("p.png", &neap_testing::png(6, 4, |_, _| [255, 51, 0]));
    let plain = result(&bench, "--input image=p.png");
    assert_eq!(plain[0], 1.0);
    assert!((plain[4] - 0.2).abs() < 1e-6);
    let bgr = result(
        &bench,
        "--input p.png --channel-order bgr --scale 1 --mean -1,0,0",
    );
    assert_eq!((bgr[0], bgr[4], bgr[8]), (1.0, 51.0, 255.0));
    std::fs::remove_dir_all(bench.path("out")).unwrap();
    fails(&bench, "--input p.png --std 0", &["--std"]);
    fails(&bench, "--input p.png --mean 1,2", &["--mean"]);
}

#[test]
fn numbers_are_given_as_they_are_written() {
    let bench = Bench::with_model(
        &Model::default()
            .node("Mul", &["x", "factor"], &["y"])
            .input("x", FLOAT, &["2"])
            .input("factor", FLOAT, &[])
            .output("y", FLOAT, &["2"])
            .finish(),
    );
    assert_eq!(
        result(&bench, "--input x=1,2.5 --input factor=-2"),
        [-2., -5.]
    );
}

/// Before a large model is packed.
#[test]
fn names_that_the_model_has_not_are_found_before_packing() {
    let bench = small();
    let refused = bench.neap("run m.onnx --input image=x.npy");
    refused.fails(2, &["no input 'image'", "'x'"]);
    let packed = std::fs::read_dir(bench.dir.path()).unwrap();
    let packed = packed.filter(|e| {
        e.as_ref()
            .unwrap()
            .path()
            .extension()
            .is_some_and(|e| e == "neap")
    });
    assert_eq!(packed.count(), 0);
}

#[test]
fn options_for_photos_go_with_photos() {
    let bench = small();
    for option in [
        "--mean 0.5",
        "--std 2",
        "--scale 1",
        "--layout nhwc",
        "--resize crop",
        "--filter bicubic",
        "--pad 0",
        "--channel-order rgb",
    ] {
        let name = option.split(' ').next().unwrap();
        for inputs in ["", "--input x=x.npy"] {
            fails(&bench, &format!("{inputs} {option}"), &[name, "photo"]);
        }
    }
    bench
        .neap("pack m.onnx -o m.neap --input x=x.npy")
        .fails(2, &["--input", "--weights"]);
    assert!(!bench.path("m.neap").exists());
}

#[test]
fn files_of_any_name() {
    let bench = small();
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let file = OsStr::from_bytes(b"x\xff=.npy");
    std::fs::write(
        bench.dir.path().join(file),
        npy("<f4", "(2, 3)", &f32_bytes(&values)),
    )
    .unwrap();
    for named in [true, false] {
        let mut given = OsString::from(if named { "x=" } else { "" });
        given.push(file);
        let mut command = bench.command("run m.onnx --output-dir out --input");
        let ran = command.arg(given).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(read_f32(&bench.path("out/y.npy")), values);
    }
    let page = OsStr::from_bytes(b"plan\xff.html");
    let mut command = bench.command("plan m.onnx -o");
    let ran = command.arg(page).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert!(bench.dir.path().join(page).exists());
}

#[test]
fn open_dimensions_come_from_options_or_data() {
    let bench = Bench::with_model(&relu("x", &["batch", "3"], "y"));
    bench.write(
        "x.npy",
        &npy("<f4", "(2, 3)", &f32_bytes(&[1., 2., 3., -1., -2., -3.])),
    );
    assert_eq!(result(&bench, "--input x=x.npy"), [1., 2., 3., 0., 0., 0.]);
    // And again, now from the cache.
    assert_eq!(result(&bench, "--input x=x.npy"), [1., 2., 3., 0., 0., 0.]);
    assert_eq!(result(&bench, "--shape x=5x3").len(), 15);
    std::fs::remove_dir_all(bench.path("out")).unwrap();
    fails(&bench, "--shape x=5x3 --input x=x.npy", &["2x3", "5x3"]);
    fails(&bench, "--shape z=5x3 --shape x=1x3", &["z"]);
    fails(&bench, "--shape x=5xa", &["'a'"]);
}

/// Lines on standard error that speak of a batch that was taken.
fn said_of_batches(ran: &Ran) -> usize {
    let lines = ran.stderr.lines();
    lines
        .filter(|line| line.contains("is open, and taken as 1"))
        .count()
}

#[test]
fn an_open_batch_is_one_in_every_command_which_says_so_in_one_line() {
    let bench = Bench::with_model(&relu("x", &["batch", "3"], "y"));
    bench.write(
        "t.toml",
        b"total = '128MiB'\nruns = 1\n[[model]]\npath = 'm.onnx'\n",
    );
    for command in [
        "run m.onnx",
        "run m.onnx",
        "inspect m.onnx",
        "plan m.onnx",
        "bench m.onnx --iterations 1 --memory-budget none",
        "pack m.onnx -o m.neap",
        "tasks t.toml",
        "tasks t.toml --one-process",
    ] {
        let ran = bench.neap(command).ok();
        assert_eq!(said_of_batches(&ran), 1, "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("input 'x'"), "{}", ran.stderr);
    }
    let ran = bench.neap("run m.onnx --shape x=2x3").ok();
    assert_eq!(said_of_batches(&ran), 0, "{}", ran.stderr);
}

/// Both inputs have one batch; the first is as many pictures as the second has rows.
#[test]
fn a_file_for_one_input_says_the_batch_of_the_others() {
    let bench = Bench::with_model(
        &Model::default()
            .node("Add", &["a", "b"], &["y"])
            .input("a", FLOAT, &["batch", "3"])
            .input("b", FLOAT, &["batch", "1"])
            .output("y", FLOAT, &["batch", "3"])
            .finish(),
    );
    bench.write("a.npy", &npy("<f4", "(2, 3)", &f32_bytes(&[1.; 6])));
    bench.write("b.bin", &f32_bytes(&[1., 2.]));
    let args = "--input a=a.npy --input b=b.bin";
    assert_eq!(result(&bench, args), [2., 2., 2., 3., 3., 3.]);
}

#[test]
fn a_file_without_a_name_says_the_shape_of_the_only_input() {
    let bench = Bench::with_model(&relu("x", &["batch", "rows"], "y"));
    let values = f32_bytes(&[1., 2., 3., -1., -2., -3.]);
    bench.write("v=1.npy", &npy("<f4", "(2, 3)", &values));
    for name in ["", "x="] {
        let ran = bench.neap(&format!(
            "run m.onnx --output-dir out --input {name}v=1.npy"
        ));
        let ran = ran.ok();
        assert_eq!(said_of_batches(&ran), 0, "{}", ran.stderr);
        assert_eq!(read_f32(&bench.path("out/y.npy")), [1., 2., 3., 0., 0., 0.]);
    }
}

#[test]
fn a_question_for_a_shape_has_an_answer_that_works() {
    // One pixel would not do.
    let bench = Bench::with_model(
        &Model::default()
            .node("Reshape", &["x", "rows"], &["r"])
            .node("Relu", &["r"], &["y"])
            .integers("rows", &[1, 3, 32, -1])
            .input("x", FLOAT, &["batch", "3", "height", "width"])
            .output("y", FLOAT, &["1", "3", "32", "columns"])
            .finish(),
    );
    let said = bench.neap("run m.onnx").fails(2, &["'height'", "axis 2"]);
    let (_, answer) = said.split_once("(--shape ").expect("an answer");
    let answer = answer.trim_end_matches(')');
    bench.neap(&format!("run m.onnx --shape {answer}")).ok();
    // A photo of a size that the model does not take is a question, too.
    bench.write("p.png", &neap_testing::png(5, 7, |_, _| [9; 3]));
    let said = bench.neap("run m.onnx --input p.png");
    said.fails(2, &["1x3x7x5", &format!("--shape {answer}")]);
}

#[test]
fn a_photo_says_the_open_dimensions_of_its_input() {
    for (dims, elements) in [
        (["batch", "3", "8", "8"], 192),
        (["batch", "3", "height", "width"], 72),
        (["batch", "3", "8", "width"], 3 * 8 * 12),
        (["batch", "height", "width", "3"], 72),
    ] {
        let bench = Bench::with_model(&relu("x", &dims, "y"));
        bench.write("p.png", &neap_testing::png(6, 4, |_, _| [255, 0, 0]));
        for name in ["", "x="] {
            assert_eq!(
                result(&bench, &format!("--input {name}p.png")).len(),
                elements
            );
        }
    }
}

#[test]
fn random_inputs_follow_the_seed() {
    let bench = small();
    let first = result(&bench, "--seed 7");
    assert_eq!(result(&bench, "--seed 7"), first);
    assert_ne!(result(&bench, "--seed 8"), first);
    assert!(first.iter().all(|v| v.is_finite()));
}

#[test]
fn some_inputs_and_not_the_others() {
    let bench = Bench::with_model(
        &Model::default()
            .node("Add", &["a", "b"], &["y"])
            .input("a", FLOAT, &["2", "3"])
            .input("b", FLOAT, &["2", "3"])
            .output("y", FLOAT, &["2", "3"])
            .finish(),
    );
    bench.write("a.npy", &npy("<f4", "(2, 3)", &f32_bytes(&[1.; 6])));
    let missing = ["no values for b", "--input b=FILE"];
    fails(&bench, "--quiet --input a=a.npy", &missing);
    result(&bench, "--input a=a.npy --input b=a.npy");
    let report = bench.json("run m.onnx --json -");
    assert_eq!(report["random_inputs"].as_array().unwrap().len(), 2);
}

/// A tensor of 4 TiB: nothing has so much memory, and asking for it is no crash.
#[test]
fn a_tensor_that_no_machine_holds() {
    let bench = Bench::with_model(&relu("x", &["1048576", "1048576"], "y"));
    bench
        .neap("run m.onnx --memory-budget none")
        .fails(2, &["'x'", "4096 GiB"]);
    bench
        .neap("run m.onnx")
        .fails(3, &["the smallest feasible"]);
    let report = bench.neap("bench m.onnx --iterations 1");
    assert_ne!(report.code, 0);
    assert!(report.stderr.contains("4096 GiB"), "{}", report.stderr);
}

/// Making the input would take more than the budget, so the refusal comes first.
#[test]
fn an_input_larger_than_the_budget_is_not_made() {
    let bench = Bench::with_model(&relu("x", &["1024", "1024", "256"], "y"));
    let mut command = bench.command("run m.onnx --memory-budget 100MiB");
    // SAFETY: a call that is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit {
                rlim_cur: 600 << 20,
                rlim_max: 600 << 20,
            };
            match libc::setrlimit(libc::RLIMIT_DATA, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("smallest feasible budget"), "{stderr}");
}
