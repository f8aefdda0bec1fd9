//! Models of an engine in other shapes than those that they were loaded with: the bits of a session in these shapes, within
//! the same budget, whoever else runs.

use crate::onnx::{self, FLOAT, f32_tensor};
use neaptide::{
    Budget, Cache, Engine, EngineOptions, Error, LoadOptions, LoadedModel, Model, OpenOptions,
    RunOptions, RunRequest,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const WIDTH: usize = 128;

/// Rows of the largest batch.
const MOST: usize = 6;

/// Any number of rows; three products with large matrices.
fn write_model(path: &Path, seed: usize) {
    let matrix = |name: &str, rows: usize, columns: usize| {
        let wave = |i: usize| ((i * 7919 + seed * 31 + name.len()) % 1009) as f32 / 8000.0 - 0.06;
        let values: Vec<f32> = (0..rows * columns).map(wave).collect();
        f32_tensor(name, &[rows as i64, columns as i64], &values)
    };
    let model = onnx::Model::new(13)
        .open_input("x", FLOAT, &[Err("n"), Ok(WIDTH as i64)])
        .constant(&matrix("up", WIDTH, 8 * WIDTH))
        .constant(&matrix("across", 8 * WIDTH, 8 * WIDTH))
        .constant(&matrix("down", 8 * WIDTH, WIDTH))
        .node("MatMul", &["x", "up"], &["u"], &[])
        .node("Relu", &["u"], &["r"], &[])
        .node("MatMul", &["r", "across"], &["s"], &[])
        .node("Relu", &["s"], &["t"], &[])
        .node("MatMul", &["t", "down"], &["y"], &[])
        .output("y");
    std::fs::write(path, model.bytes()).expect("written");
}

fn rows(rows: usize) -> BTreeMap<String, Vec<usize>> {
    [("x".to_string(), vec![rows, WIDTH])].into()
}

fn input(rows: usize) -> Vec<u8> {
    let value = |i: usize| ((i * 37 + rows) % 101) as f32 * 0.01 - 0.3;
    (0..rows * WIDTH)
        .flat_map(|i| value(i).to_le_bytes())
        .collect()
}

/// A model and its outputs for up to [`MOST`] rows.
struct Example {
    path: PathBuf,
    open: OpenOptions,
    expected: Vec<Vec<u8>>,
}

impl Example {
    fn new(folder: &Path, seed: usize) -> Example {
        let path = folder.join(format!("{seed}.onnx"));
        write_model(&path, seed);
        let open = OpenOptions {
            shapes: rows(1),
            cache: Cache::Folder(folder.to_path_buf()),
            ..OpenOptions::default()
        };
        let expected = (1..=MOST).map(|n| {
            let open = OpenOptions {
                shapes: rows(n),
                ..open.clone()
            };
            let model = Model::open(&path, &open, &mut |_| {}).expect("opens");
            let options = options(Budget::Unlimited).run;
            let plan = model.plan(&options).expect("feasible");
            let mut session = model.into_session(plan, &options).expect("opens");
            let mut output = vec![0; session.outputs()[0].len_bytes()];
            session.run(&[&input(n)], &mut [&mut output]).expect("runs");
            output
        });
        Example {
            expected: expected.collect(),
            path,
            open,
        }
    }

    fn load(&self, engine: &Engine, name: &str, most: &[usize]) -> Result<LoadedModel, Error> {
        let options = LoadOptions {
            open: self.open.clone(),
            other_shapes: most.iter().map(|&n| rows(n)).collect(),
            ..LoadOptions::default()
        };
        engine.load(name, &self.path, &options, &mut |_| {})
    }

    fn run(&self, engine: &Engine, model: &LoadedModel, n: usize) -> Result<(), Error> {
        let request = RunRequest {
            shapes: Some(rows(n)),
            ..RunRequest::default()
        };
        let mut output = vec![0xEE; 4 * n * WIDTH];
        engine.run_as(&request, model, &[&input(n)], &mut [&mut output])?;
        assert!(output == self.expected[n - 1], "{n} rows: other bits");
        Ok(())
    }
}

fn options(budget: Budget) -> EngineOptions {
    let default = EngineOptions::default();
    EngineOptions {
        run: RunOptions {
            budget,
            threads: 2,
            exact: true,
            ..default.run
        },
        points: 6,
        overwrite: Some(0xFF),
        ..default
    }
}

fn smallest(engine: &Engine) -> u64 {
    match engine.set_budget(Budget::Engine(1)) {
        Err(Error::Infeasible { smallest_bytes, .. }) => smallest_bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_number_of_rows_under_every_budget() {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = [1, 2].map(|seed| Example::new(folder.path(), seed));
    let engine = Engine::new(options(Budget::Unlimited)).expect("starts");
    let names = ["a", "b"];
    let load = |(e, name): (&Example, &str)| e.load(&engine, name, &[MOST]).expect("loads");
    let models: Vec<LoadedModel> = examples.iter().zip(names).map(load).collect();
    let least = smallest(&engine);
    let most = engine.ledger().parts.total_bytes();
    assert!(most > least + (1 << 20), "{least} {most}");
    for budget in [least, least + (most - least) / 2, most + (1 << 20)] {
        engine.set_budget(Budget::Engine(budget)).expect("feasible");
        let ledger = engine.ledger();
        assert!(ledger.parts.total_bytes() <= budget, "{:?}", ledger.parts);
        for n in [1, MOST, 2, 2, 5, 1, 3, 4, MOST, 1] {
            for (example, model) in examples.iter().zip(&models) {
                example.run(&engine, model, n).expect("runs");
            }
            for status in engine.ledger().models {
                assert!(status.held_bytes <= status.resident_bytes, "{status:?}");
            }
        }
    }
    assert_eq!(engine.ledger().models[0].runs, 30);
}

#[test]
fn shapes_that_do_not_fit_are_refused_and_harm_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let example = Example::new(folder.path(), 1);
    let engine = Engine::new(options(Budget::Unlimited)).expect("starts");
    let model = example.load(&engine, "a", &[2]).expect("loads");
    let least = smallest(&engine);
    engine.set_budget(Budget::Engine(least)).expect("feasible");
    example.run(&engine, &model, 2).expect("runs");
    let many = RunRequest {
        shapes: Some(rows(50_000)),
        ..RunRequest::default()
    };
    let (x, mut y) = (vec![0; 50_000 * WIDTH * 4], vec![0; 50_000 * WIDTH * 4]);
    let refused = engine.run_as(&many, &model, &[&x], &mut [&mut y]);
    assert!(
        matches!(refused, Err(Error::Infeasible { .. })),
        "{refused:?}"
    );
    let other = RunRequest {
        shapes: Some([("x".to_string(), vec![1, WIDTH + 1])].into()),
        ..RunRequest::default()
    };
    let refused = engine.run_as(&other, &model, &[&x], &mut [&mut y]);
    assert!(matches!(refused, Err(Error::BadInput(_))), "{refused:?}");
    example.run(&engine, &model, 1).expect("runs");
    // One that was loaded for its own shapes alone takes no others.
    engine.set_budget(Budget::Unlimited).expect("feasible");
    let alone = example.load(&engine, "b", &[]).expect("loads");
    let refused = example.run(&engine, &alone, 2);
    assert!(matches!(refused, Err(Error::BadInput(_))), "{refused:?}");
    let wrong = LoadOptions {
        open: example.open.clone(),
        other_shapes: vec![[("z".to_string(), vec![1])].into()],
        ..LoadOptions::default()
    };
    let refused = engine.load("c", &example.path, &wrong, &mut |_| {});
    assert!(matches!(refused, Err(Error::BadInput(_))));
}

/// Runs in all shapes, another model that comes and goes, and changes of the budget, all at once.
#[test]
fn whoever_comes_and_goes_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = [1, 2].map(|seed| Example::new(folder.path(), seed));
    let engine = Engine::new(options(Budget::Unlimited)).expect("starts");
    let model = examples[0].load(&engine, "a", &[MOST]).expect("loads");
    let guest = examples[1].load(&engine, "b", &[MOST]).expect("loads");
    let least = smallest(&engine);
    engine.unload(&guest).expect("is loaded");
    let over = AtomicBool::new(false);
    let runs = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for runner in 0..2 {
            let (engine, model, over, runs) = (&engine, &model, &over, &runs);
            let example = &examples[0];
            scope.spawn(move || {
                for turn in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let n = 1 + (turn * 5 + runner) % MOST;
                    example.run(engine, model, n).expect("runs");
                    runs.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..8u64 {
            let budget = least + (round * 7 % 5) * (1 << 19);
            engine.set_budget(Budget::Engine(budget)).expect("feasible");
            let guest = examples[1].load(&engine, "b", &[MOST]).expect("loads");
            let total = engine.ledger().parts.total_bytes();
            assert!(total <= budget, "{total} of {budget}");
            examples[1].run(&engine, &guest, 3).expect("runs");
            engine.unload(&guest).expect("is loaded");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(runs.into_inner() > 8);
}
