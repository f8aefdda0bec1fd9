//! Damaged ONNX files through everything: opening, packing, planning, running.

use crate::build::Random;
use neaptide::{Budget, Cache, Error, Model, OpenOptions, RunOptions, Work};
use std::path::Path;

#[path = "../../../neap-onnx/tests/support/mod.rs"]
pub mod support;

use support::{Attr, FLOAT, INT64, f32_tensor};

const MUTATIONS: u64 = 3000;

/// Convolutions, a residual, pooling, a reshape, a linear layer, a gather.
fn model() -> Vec<u8> {
    support::Model::new(17)
        .input("x", FLOAT, &[1, 3, 6, 6])
        .input("ids", INT64, &[2])
        .constant(&f32_tensor("w1", &[16, 3, 3, 3], &[0.1; 432]))
        .constant(&f32_tensor("w2", &[16, 16, 1, 1], &[0.05; 256]))
        .constant(&f32_tensor("b", &[16], &[0.5; 16]))
        .constant(&f32_tensor("m", &[16, 10], &[0.2; 160]))
        .constant(&f32_tensor("table", &[5, 10], &[0.3; 50]))
        .ints("shape", &[1, -1])
        .node(
            "Conv",
            &["x", "w1", "b"],
            &["c1"],
            &[("pads", Attr::Ints(&[1, 1, 1, 1]))],
        )
        .node("Relu", &["c1"], &["r1"], &[])
        .node("Conv", &["r1", "w2"], &["c2"], &[])
        .node("Add", &["c2", "r1"], &["s"], &[])
        .node(
            "MaxPool",
            &["s"],
            &["p"],
            &[
                ("kernel_shape", Attr::Ints(&[2, 2])),
                ("strides", Attr::Ints(&[2, 2])),
            ],
        )
        .node("GlobalAveragePool", &["p"], &["g"], &[])
        .node("Reshape", &["g", "shape"], &["f"], &[])
        .node("MatMul", &["f", "m"], &["y"], &[])
        .node("Gather", &["table", "ids"], &["rows"], &[])
        .node("Add", &["y", "rows"], &["z"], &[])
        .node("Softmax", &["z"], &["out"], &[("axis", Attr::Int(-1))])
        .output("out")
        .bytes()
}

/// Runs with zeros, if the model is not large.
fn open_and_run(path: &Path, cache: &Path) -> Result<(), Error> {
    let open = OpenOptions {
        cache: Cache::Folder(cache.to_path_buf()),
        ..OpenOptions::of_own_process()
    };
    let model = Model::open(path, &open, &mut |_| {})?;
    let options = RunOptions {
        budget: Budget::Bytes(1 << 30),
        threads: 1,
        ..RunOptions::default()
    };
    let plan = model.plan(&options)?;
    let mut session = model.into_session(plan, &options)?;
    let zeros = |infos: &[neaptide::TensorInfo]| -> Vec<Vec<u8>> {
        infos.iter().map(|i| vec![0; i.len_bytes()]).collect()
    };
    let (inputs, mut outputs) = (zeros(session.inputs()), zeros(session.outputs()));
    let inputs: Vec<&[u8]> = inputs.iter().map(|i| &i[..]).collect();
    let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(|o| &mut o[..]).collect();
    session.run(&inputs, &mut outputs)
}

#[test]
fn mutated_models_run_or_fail_cleanly() {
    let folder = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary folder");
    let path = folder.path().join("model.onnx");
    let original = model();
    let cache = folder.path().join("cache");
    let mut random = Random::new(3 + neap_testing::seed());
    std::fs::write(&path, &original).expect("written");
    open_and_run(&path, &cache).expect("runs undamaged");
    let mut ran = 0;
    for n in 0..MUTATIONS {
        let mut bytes = original.clone();
        for _ in 0..=random.below(2) {
            let at = random.below(bytes.len());
            match random.below(5) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = random.next() as u8,
                2 => bytes[at] = [0, 1, 2, 0x7f, 0x80, 0xff][random.below(6)],
                3 => {
                    bytes.remove(at);
                }
                _ => bytes.insert(at, random.next() as u8),
            }
        }
        std::fs::write(&path, &bytes).expect("written");
        let outcome = std::panic::catch_unwind(|| open_and_run(&path, &cache));
        match outcome {
            Ok(Ok(())) => ran += 1,
            Ok(Err(error)) => {
                let text = error.to_string();
                assert!(!text.contains('\n') && !text.contains("panicked"), "{text}");
            }
            Err(payload) => {
                eprintln!("the failing mutation is {n}");
                std::panic::resume_unwind(payload);
            }
        }
        // Nothing half-written stays, and what was packed need not.
        for entry in std::fs::read_dir(&cache).expect("the cache folder") {
            let path = entry.expect("an entry").path();
            assert_eq!(path.extension().and_then(|e| e.to_str()), Some("neap"));
            std::fs::remove_file(path).expect("removed");
        }
    }
    assert!(ran > 300, "mutations reach the end: {ran}");
}

#[test]
fn a_model_that_changes_while_it_is_packed_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, cache) = (folder.path().join("m.onnx"), folder.path().join("cache"));
    std::fs::write(&path, model()).expect("written");
    let open = OpenOptions {
        cache: Cache::Folder(cache.clone()),
        ..OpenOptions::default()
    };
    let names = || {
        let entries = std::fs::read_dir(&cache).expect("readable");
        entries.flatten().map(|e| e.file_name()).collect::<Vec<_>>()
    };
    let rewrite = || std::fs::write(&path, model()).expect("written");
    let replace = || {
        std::fs::write(folder.path().join("new"), model()).expect("written");
        std::fs::rename(folder.path().join("new"), &path).expect("renamed");
    };
    for change in [&rewrite as &dyn Fn(), &replace] {
        for work in [Work::Packing, Work::Hashing] {
            let mut pending = Some(change);
            let result = Model::open(&path, &open, &mut |p| {
                if p.work == work
                    && let Some(change) = pending.take()
                {
                    change();
                }
            });
            let error = result.err().expect("refused").to_string();
            assert!(error.contains("changed while"), "{error}");
            assert!(error.contains("m.onnx"), "{error}");
            assert_eq!(names(), [""; 0]);
        }
    }
    Model::open(&path, &open, &mut |_| {}).expect("packed when it is left alone");
    assert_eq!(names().len(), 1);
}
