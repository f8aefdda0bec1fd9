//! Models without a budget, on machines that have too little memory for them.

use crate::onnx::{self, FLOAT, f32_tensor, i64_tensor};
use neaptide::{
    Budget, Cache, Calibration, Engine, EngineOptions, Error, Host, LoadOptions, Model,
    OpenOptions, RunOptions,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A process on a machine with so many bytes.
#[derive(Debug)]
struct Machine(u64);

impl Host for Machine {
    fn charged_bytes(&self) -> u64 {
        4 << 20
    }

    fn machine_bytes(&self) -> Option<u64> {
        Some(self.0)
    }
}

fn opened(path: &Path, folder: &Path, machine_bytes: u64) -> neaptide::Result<Model> {
    let options = OpenOptions {
        cache: Cache::Folder(folder.to_path_buf()),
        host: Arc::new(Machine(machine_bytes)),
        ..OpenOptions::default()
    };
    Model::open(path, &options, &mut |_| {})
}

fn options() -> RunOptions {
    RunOptions {
        threads: 1,
        calibration: Calibration::Off,
        ..RunOptions::default()
    }
}

/// Layers one after the other, each with weights of 1 MiB.
fn layers(folder: &Path, count: usize) -> PathBuf {
    const WIDTH: usize = 512;
    let mut model = onnx::Model::new(13).input("v0", FLOAT, &[1, WIDTH as i64]);
    for i in 0..count {
        let data: Vec<f32> = (0..WIDTH * WIDTH)
            .map(|j| ((i + j) % 7) as f32 * 1e-3)
            .collect();
        let (weights, from, to) = (format!("w{i}"), format!("v{i}"), format!("v{}", i + 1));
        model = model
            .constant(&f32_tensor(&weights, &[WIDTH as i64, WIDTH as i64], &data))
            .node("MatMul", &[&from, &weights], &[&to], &[]);
    }
    let path = folder.join("layers.onnx");
    std::fs::write(&path, model.output(&format!("v{count}")).bytes()).expect("written");
    path
}

/// A row repeated so often, and added up.
fn repeated(folder: &Path, rows: i64) -> PathBuf {
    let model = onnx::Model::new(13)
        .input("x", FLOAT, &[1, 4])
        .constant(&i64_tensor("n", &[2], &[rows, 1]))
        .node("Tile", &["x", "n"], &["t"], &[])
        .node("ReduceSum", &["t"], &["y"], &[])
        .output("y");
    let path = folder.join(format!("{rows}.onnx"));
    std::fs::write(&path, model.bytes()).expect("written");
    path
}

#[test]
fn what_no_machine_has_is_refused_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    for rows in [1 << 36, 1 << 39] {
        let path = repeated(folder.path(), rows);
        let model = Model::open(&path, &OpenOptions::default(), &mut |_| {});
        let refused = model.and_then(|model| model.plan(&options()));
        match refused {
            Err(
                error @ Error::Infeasible {
                    of_machine: true, ..
                },
            ) => assert!(
                error.to_string().contains("does not fit in the memory"),
                "{error}"
            ),
            other => panic!("{rows}: {:?}", other.map(|plan| plan.ledger)),
        }
    }
}

#[test]
fn a_machine_that_is_too_small_for_all_of_a_model_is_its_budget() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = layers(folder.path(), 12);
    let large = opened(&path, folder.path(), 1 << 40).expect("opens");
    assert_eq!(large.plan(&options()).expect("fits").budget_bytes, None);
    let smallest = large.bounds(&options()).smallest_feasible_bytes();
    let small = opened(&path, folder.path(), smallest).expect("opens");
    let plan = small.plan(&options()).expect("feasible");
    assert_eq!(plan.budget_bytes, Some(smallest));
    assert!(plan.ledger.total_bytes() <= smallest, "{}", plan.ledger);
    let tiny = opened(&path, folder.path(), 9 << 19).expect("opens");
    let refused = tiny.plan(&options()).map(|plan| plan.ledger);
    let is_refused = matches!(refused, Err(Error::Infeasible { of_machine: true, budget_bytes, .. }) if budget_bytes == 9 << 19);
    assert!(is_refused, "{refused:?}");
}

#[test]
fn a_budget_beyond_the_machine_is_the_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = layers(folder.path(), 12);
    let large = opened(&path, folder.path(), 1 << 40).expect("opens");
    let smallest = large.bounds(&options()).smallest_feasible_bytes();
    let small = opened(&path, folder.path(), smallest).expect("opens");
    let beyond = RunOptions {
        budget: Budget::Bytes(1 << 36),
        ..options()
    };
    let plan = small.plan(&beyond).expect("feasible");
    assert!(plan.ledger.total_bytes() <= smallest, "{}", plan.ledger);
    let tiny = opened(&path, folder.path(), 9 << 19).expect("opens");
    let refused = tiny.plan(&beyond).map(|plan| plan.ledger);
    assert!(
        matches!(refused, Err(Error::Infeasible { budget_bytes, .. }) if budget_bytes == 9 << 19),
        "{refused:?}"
    );
}

#[test]
fn what_needs_no_arena_needs_a_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = onnx::Model::new(13)
        .input("x", FLOAT, &[0, 4])
        .node("Neg", &["x"], &["y"], &[])
        .output("y");
    let path = folder.path().join("empty.onnx");
    std::fs::write(&path, model.bytes()).expect("written");
    let model = opened(&path, folder.path(), 1 << 40).expect("opens");
    let within = |bytes: u64| {
        let budget = Budget::Bytes(bytes);
        model.plan(&RunOptions {
            budget,
            ..options()
        })
    };
    let Err(Error::Infeasible { smallest_bytes, .. }) = within(1) else {
        panic!("one byte is enough");
    };
    within(smallest_bytes).expect("the smallest that is named");
}

#[test]
fn an_engine_without_a_budget_has_the_machines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = layers(folder.path(), 3);
    let load = |machine_bytes: u64| {
        let engine = Engine::new(EngineOptions {
            run: options(),
            host: Arc::new(Machine(machine_bytes)),
            points: 3,
            ..EngineOptions::default()
        });
        let load = LoadOptions::default();
        engine
            .expect("starts")
            .load("layers", &path, &load, &mut |_| {})
            .map(|_| ())
    };
    load(1 << 40).expect("fits");
    let refused = load(1 << 16);
    assert!(
        matches!(
            refused,
            Err(Error::Infeasible {
                of_machine: true,
                ..
            })
        ),
        "{refused:?}"
    );
}
