//! Several models in one engine: the bits of each, whatever the others left in shared memory, whoever comes and goes.

use crate::graphs::{Layers, conv_chain};
use neaptide::{
    Budget, CancelToken, Engine, EngineOptions, Error, LoadOptions, LoadedModel, Model,
    OpenOptions, RunOptions, RunRequest,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A packed model, an input, and what comes of it.
struct Example {
    name: String,
    path: PathBuf,
    input: Vec<u8>,
    expected: Vec<u8>,
}

impl Example {
    fn new(folder: &Path, name: &str, layers: &Layers) -> Example {
        let path = folder.join(format!("{name}.neap"));
        let graph = conv_chain(layers);
        neaptide::pack_graph(graph, &path, &OpenOptions::default(), &mut |_| {}).expect("packs");
        let options = options(Budget::Unlimited).run;
        let model = Model::open(&path, &OpenOptions::default(), &mut |_| {}).expect("opens");
        let plan = model.plan(&options).expect("feasible");
        let mut session = model.into_session(plan, &options).expect("opens");
        let elements = session.inputs()[0].len_bytes() / 4;
        let input: Vec<u8> = (0..elements)
            .flat_map(|i| (((i * 37 + layers.seed) % 101) as f32 * 0.01).to_le_bytes())
            .collect();
        let mut expected = vec![0; session.outputs()[0].len_bytes()];
        session.run(&[&input], &mut [&mut expected]).expect("runs");
        assert!(
            expected.iter().any(|&byte| byte != 0),
            "it computes something"
        );
        Example {
            name: name.to_owned(),
            path,
            input,
            expected,
        }
    }

    /// Three of one shape with different weights, and one of another.
    fn all(folder: &Path) -> Vec<Example> {
        let twins = (0..3).map(|seed| Layers {
            channels: vec![16, 96, 128, 112, 64, 16],
            side: 12,
            seed,
            gain: 1e-2,
            last: None,
        });
        let other = Layers {
            channels: vec![16, 48, 160, 32],
            side: 20,
            seed: 9,
            gain: 1e-2,
            last: None,
        };
        let layers = twins.chain([other]);
        let named = layers.zip(["a", "b", "c", "d"]);
        named
            .map(|(l, name)| Example::new(folder, name, &l))
            .collect()
    }

    fn load(&self, engine: &Engine) -> Result<LoadedModel, Error> {
        engine.load(&self.name, &self.path, &LoadOptions::default(), &mut |_| {})
    }

    fn run(&self, engine: &Engine, model: &LoadedModel) -> Result<(), Error> {
        self.run_as(engine, model, &RunRequest::default())
    }

    fn run_as(&self, engine: &Engine, model: &LoadedModel, how: &RunRequest) -> Result<(), Error> {
        let mut output = vec![0xEE; self.expected.len()];
        engine.run_as(how, model, &[&self.input], &mut [&mut output])?;
        assert!(output == self.expected, "{} has other bits", self.name);
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

fn smallest_of(error: &Error) -> u64 {
    match error {
        Error::Infeasible { smallest_bytes, .. } => *smallest_bytes,
        other => panic!("{other}"),
    }
}

#[test]
fn the_same_bits_under_every_budget() {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = Example::all(folder.path());
    let engine = Engine::new(options(Budget::Unlimited)).expect("starts");
    let models: Vec<LoadedModel> = examples
        .iter()
        .map(|e| e.load(&engine).expect("loads"))
        .collect();
    let least = engine.set_budget(Budget::Engine(1)).expect_err("too small");
    let least = smallest_of(&least);
    assert_eq!(engine.ledger().budget_bytes, None);
    engine
        .set_budget(Budget::Engine(least))
        .expect("the smallest that is named");
    let most = {
        engine
            .set_budget(Budget::Engine(1 << 30))
            .expect("feasible");
        engine.ledger().parts.total_bytes()
    };
    assert!(most > least + (1 << 20), "{least} {most}");
    let budgets = (0..5).map(|i| least + (most - least) * i / 4);
    let mut slowest_ns = u64::MAX;
    for budget in budgets {
        engine.set_budget(Budget::Engine(budget)).expect("feasible");
        let ledger = engine.ledger();
        assert!(ledger.parts.total_bytes() <= budget, "{:?}", ledger.parts);
        let works = ledger.models.iter().map(|m| m.work_bytes);
        assert_eq!(works.max(), Some(ledger.shared_bytes));
        // More memory makes the slowest no slower.
        let now = ledger.models.iter().map(|m| m.predicted_latency_ns).max();
        assert!(now.is_some_and(|ns| ns <= slowest_ns));
        slowest_ns = now.expect("models");
        for turn in 0..3 {
            for at in 0..models.len() {
                let at = (at * 3 + turn) % models.len();
                examples[at].run(&engine, &models[at]).expect("runs");
            }
        }
        for status in engine.ledger().models {
            assert!(status.held_bytes <= status.resident_bytes, "{status:?}");
        }
    }
    let runs: u64 = engine.ledger().models.iter().map(|m| m.runs).sum();
    assert_eq!(runs, 5 * 3 * 4);
}

#[test]
fn a_model_more_is_refused_where_it_does_not_fit() {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = Example::all(folder.path());
    let engine = Engine::new(options(Budget::Unlimited)).expect("starts");
    for example in &examples {
        example.load(&engine).expect("loads");
    }
    let all = smallest_of(&engine.set_budget(Budget::Engine(1)).expect_err("too small"));
    // More than the slack that is named.
    let engine = Engine::new(options(Budget::Engine(all - (600 << 10)))).expect("starts");
    let first = examples[0].load(&engine).expect("loads");
    examples[1].load(&engine).expect("loads");
    examples[2].load(&engine).expect("loads");
    examples[0].run(&engine, &first).expect("runs");
    let before = engine.ledger();
    let refused = examples[3].load(&engine).expect_err("no room");
    assert_eq!(smallest_of(&refused), all);
    assert_eq!(engine.ledger(), before);
    assert!(engine.model("d").is_none());
    // Room comes with one that goes.
    engine.unload(&first).expect("is loaded");
    assert!(matches!(engine.unload(&first), Err(Error::BadInput(_))));
    assert!(matches!(
        examples[0].run(&engine, &first),
        Err(Error::BadInput(_))
    ));
    let last = examples[3].load(&engine).expect("loads");
    examples[3].run(&engine, &last).expect("runs");
    assert!(matches!(examples[3].load(&engine), Err(Error::BadInput(_))));
}

/// Together they need less than each for itself: work memory counts once.
#[test]
fn sharing_takes_less_than_the_sum() {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = Example::all(folder.path());
    let least_of = |examples: &[Example]| {
        let engine = Engine::new(options(Budget::Unlimited)).expect("starts");
        for example in examples {
            example.load(&engine).expect("loads");
        }
        let refused = engine.set_budget(Budget::Engine(1)).expect_err("too small");
        (smallest_of(&refused), engine)
    };
    let (together, engine) = least_of(&examples);
    let alone: u64 = examples.chunks(1).map(|one| least_of(one).0).sum();
    engine
        .set_budget(Budget::Engine(together))
        .expect("feasible");
    let shared = engine.ledger().shared_bytes;
    assert!(together + 2 * shared < alone, "{together} {shared} {alone}");
}

#[test]
fn weights_and_least_sizes_count() {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = Example::all(folder.path());
    let loaded = |second: &LoadOptions, budget| {
        let engine = Engine::new(options(budget)).expect("starts");
        examples[0].load(&engine).expect("loads");
        let second = engine.load("b", &examples[1].path, second, &mut |_| {});
        second.map(|_| engine)
    };
    let engine = loaded(&LoadOptions::default(), Budget::Unlimited).expect("loads");
    let most = engine.ledger().resident_bytes;
    let least = smallest_of(&engine.set_budget(Budget::Engine(1)).expect_err("too small"));
    let middle = Budget::Engine(least + most / 2);
    let urgent = LoadOptions {
        weight: 1000.0,
        ..LoadOptions::default()
    };
    let ledger = loaded(&urgent, middle).expect("loads").ledger();
    let latency = |at: usize| ledger.models[at].predicted_latency_ns;
    assert!(latency(1) < latency(0), "{ledger:?}");
    let all_of_it = LoadOptions {
        least_bytes: u64::MAX,
        ..LoadOptions::default()
    };
    let ledger = loaded(&all_of_it, middle).expect("loads").ledger();
    assert_eq!(ledger.models[1].resident_bytes, most / 2);
    assert!(loaded(&all_of_it, Budget::Engine(least)).is_err());
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let wrong = LoadOptions {
            weight,
            ..LoadOptions::default()
        };
        assert!(matches!(loaded(&wrong, middle), Err(Error::BadInput(_))));
    }
    assert!(matches!(
        engine.set_budget(Budget::Percent(50.0)),
        Err(Error::BadInput(_))
    ));
}

/// Runs, cancelled runs, loading, unloading and changes of the budget, all at once.
#[test]
fn whatever_happens_meanwhile_bits_are_right_and_the_budget_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = Example::all(folder.path());
    let engine = Engine::new(options(Budget::Unlimited)).expect("starts");
    let stay: Vec<LoadedModel> = examples[..3]
        .iter()
        .map(|e| e.load(&engine).expect("loads"))
        .collect();
    let least = {
        let guest = examples[3].load(&engine).expect("loads");
        let least = smallest_of(&engine.set_budget(Budget::Engine(1)).expect_err("too small"));
        engine.unload(&guest).expect("is loaded");
        least
    };
    let over = AtomicBool::new(false);
    let (done, cancelled) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (engine, examples, over, stay) = (&engine, &examples, &over, &stay);
        let (done, cancelled) = (&done, &cancelled);
        for runner in 0..3 {
            scope.spawn(move || {
                let mut turn = runner;
                while !over.load(Ordering::Relaxed) {
                    let at = turn % 3;
                    turn += 1;
                    let token = CancelToken::new();
                    let how = RunRequest {
                        rank: turn as u64 % 5,
                        cancel: (turn % 4 == 0).then(|| token.clone()),
                        shapes: None,
                    };
                    let ours = token.clone();
                    let stopper = std::thread::spawn(move || {
                        std::thread::sleep(std::time::Duration::from_micros(
                            turn as u64 * 97 % 4000,
                        ));
                        ours.cancel();
                    });
                    match examples[at].run_as(engine, &stay[at], &how) {
                        Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Cancelled) => cancelled.fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    };
                    stopper.join().expect("ends");
                }
            });
        }
        for round in 0..12u64 {
            let budget = least + (round * 7 % 5) * (1 << 20);
            engine.set_budget(Budget::Engine(budget)).expect("feasible");
            let guest = examples[3].load(engine).expect("loads");
            let total = engine.ledger().parts.total_bytes();
            assert!(total <= budget, "{total} of {budget}");
            examples[3].run(engine, &guest).expect("runs");
            engine.unload(&guest).expect("is loaded");
        }
        over.store(true, Ordering::Relaxed);
    });
    let (done, cancelled) = (done.into_inner(), cancelled.into_inner());
    assert!(done > 12, "{done} runs, {cancelled} cancelled");
    let told: u64 = engine.ledger().models.iter().map(|m| m.cancelled).sum();
    assert_eq!(told, cancelled as u64);
    for (example, model) in examples.iter().zip(&stay) {
        example.run(&engine, model).expect("runs");
    }
}

#[test]
fn a_request_that_is_no_longer_wanted_is_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = Example::all(folder.path());
    let engine = Engine::new(options(Budget::Unlimited)).expect("starts");
    let model = examples[0].load(&engine).expect("loads");
    let token = CancelToken::new();
    token.cancel();
    let how = RunRequest {
        cancel: Some(token),
        ..RunRequest::default()
    };
    let refused = examples[0].run_as(&engine, &model, &how);
    assert!(matches!(refused, Err(Error::Cancelled)));
    let short = engine.run(&model, &[&examples[0].input[4..]], &mut [&mut []]);
    assert!(matches!(short, Err(Error::BadInput(_))));
    examples[0].run(&engine, &model).expect("runs");
    engine.settle(&model).expect("reads");
    let status = engine.ledger().models.remove(0);
    assert_eq!((status.runs, status.cancelled, status.failed), (1, 1, 0));
}
