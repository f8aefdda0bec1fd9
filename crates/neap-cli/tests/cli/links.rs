//! Models as a hub's cache has them, links to blobs; and data files of which a model uses a part.

use super::onnx::{FLOAT, Model};
use super::support::{Bench, f32_bytes, npy, read_f32};
use std::fs;
use std::os::unix::fs::{FileExt, symlink};

const SIDE: usize = 64;

/// One layer whose weights are `w.bin`.
fn external() -> Vec<u8> {
    let side = SIDE as u64;
    Model::default()
        .node("MatMul", &["x", "w"], &["y"])
        .external_weights("w", &[side, side], "w.bin")
        .input("x", FLOAT, &["1", "64"])
        .output("y", FLOAT, &["1", "64"])
        .finish()
}

/// Multiplies by `factor`.
fn weights(factor: f32) -> Vec<u8> {
    let mut matrix = vec![0.0; SIDE * SIDE];
    (0..SIDE).for_each(|i| matrix[i * SIDE + i] = factor);
    f32_bytes(&matrix)
}

/// Two revisions with one model and different weights, and a link to the second.
fn hub() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("blobs")).unwrap();
    bench.write("blobs/m", &external());
    for (revision, factor) in [("r1", 2.0), ("r2", 3.0)] {
        bench.write(&format!("blobs/{revision}"), &weights(factor));
        let folder = bench.path(&format!("snapshots/{revision}"));
        fs::create_dir_all(&folder).unwrap();
        symlink("../../blobs/m", folder.join("m.onnx")).unwrap();
        symlink(format!("../../blobs/{revision}"), folder.join("w.bin")).unwrap();
    }
    symlink("r2", bench.path("snapshots/main")).unwrap();
    bench.write("x.npy", &npy("<f4", "(1, 64)", &f32_bytes(&[1.0; SIDE])));
    bench
}

/// The first number of the output, and whether the model was packed for it.
fn output(bench: &Bench, model: &str, args: &str) -> (f32, bool) {
    let command = format!("run {model} --input x=x.npy --calibrate off --output-dir out {args}");
    let ran = bench.neap(&command).ok();
    let y = read_f32(&bench.path("out/y.npy"));
    (y[0], ran.stderr.contains("packing"))
}

#[test]
fn a_model_and_its_data_may_be_links_and_each_revision_has_its_own_data() {
    for args in ["", "--cache-dir cache"] {
        let bench = hub();
        for (revision, factor) in [("r1", 2.0), ("r2", 3.0)] {
            let model = format!("snapshots/{revision}/m.onnx");
            assert_eq!(output(&bench, &model, args), (factor, true));
        }
        for (revision, factor) in [("r1", 2.0), ("r2", 3.0), ("main", 3.0)] {
            let model = format!("snapshots/{revision}/m.onnx");
            assert_eq!(
                output(&bench, &model, args),
                (factor, false),
                "{revision} {args}"
            );
        }
        // The hub moves on: the same paths are links to other blobs.
        fs::remove_file(bench.path("snapshots/r1/w.bin")).unwrap();
        symlink("../../blobs/r2", bench.path("snapshots/r1/w.bin")).unwrap();
        assert_eq!(output(&bench, "snapshots/r1/m.onnx", args), (3.0, true));
        // A link to a link, and to a model with its data beside it.
        symlink("snapshots/r2/m.onnx", bench.path("latest.onnx")).unwrap();
        assert_eq!(output(&bench, "latest.onnx", args).0, 3.0);
        let packed = bench.neap("pack snapshots/main/m.onnx -o packed.neap");
        packed.ok();
        assert_eq!(output(&bench, "packed.neap", ""), (3.0, false));
    }
}

#[test]
fn data_that_leave_the_folder_of_a_model_that_is_no_link_are_refused() {
    let bench = hub();
    fs::create_dir(bench.path("plain")).unwrap();
    bench.write("plain/m.onnx", &external());
    symlink("../blobs/r1", bench.path("plain/w.bin")).unwrap();
    let ran = bench.neap("run plain/m.onnx --input x=x.npy");
    ran.fails(2, &["leaves the model's folder"]);
}

#[test]
fn of_a_file_with_data_only_what_tensors_use_is_part_of_the_model() {
    let bench = hub();
    bench.write("m.onnx", &external());
    let own = weights(2.0);
    let data = fs::File::create(bench.path("w.bin")).unwrap();
    // Sparse, and mostly another model's.
    data.set_len(64 << 30).unwrap();
    data.write_all_at(&own, 0).unwrap();
    assert_eq!(output(&bench, "m.onnx", ""), (2.0, true));
    data.write_all_at(b"other", 32 << 30).unwrap();
    assert_eq!(output(&bench, "m.onnx", ""), (2.0, false));
    data.write_all_at(&weights(3.0), 0).unwrap();
    assert_eq!(output(&bench, "m.onnx", ""), (3.0, true));
}

#[test]
fn an_array_of_one_element_is_taken_for_a_declared_scalar() {
    let model = Model::default()
        .node("Mul", &["x", "s"], &["y"])
        .input("x", FLOAT, &["1", "64"])
        .input("s", FLOAT, &[])
        .output("y", FLOAT, &["1", "64"])
        .finish();
    let bench = hub();
    bench.write("m.onnx", &model);
    for shape in ["()", "(1,)", "(1, 1)"] {
        bench.write("s.npy", &npy("<f4", shape, &f32_bytes(&[7.0])));
        assert_eq!(
            output(&bench, "m.onnx", "--input s=s.npy").0,
            7.0,
            "{shape}"
        );
    }
    bench.write("s.npy", &npy("<f4", "(2,)", &f32_bytes(&[7.0, 7.0])));
    let ran = bench.neap("run m.onnx --input x=x.npy --input s=s.npy");
    ran.fails(2, &["'s'", "scalar"]);
}
