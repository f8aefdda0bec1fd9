//! How trainings end: well, early, and badly.

use crate::support::*;
use neap_ir::update::Update;
use neap_train::{Batch, ModelOptions, Recipe, TrainError, train};
use std::fs;

#[test]
fn digits_are_learned_and_the_model_keeps_all_else() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let recipe = Recipe::new(&model, &model_options(32), false).unwrap();
    let data = digits(&recipe, 1600);
    let options = options(folder.path(), "trained", 3);
    let summary = train(
        &engine(&recipe, folder.path()),
        &data,
        &options,
        &mut Watcher::default(),
    );
    let epoch = summary.unwrap().epoch;
    let accuracy = epoch.validation_accuracy.unwrap();
    assert!(accuracy > 0.8, "{epoch:?}");
    assert!(epoch.train_loss > 0.0 && epoch.validation_loss.unwrap() < 1.0);

    let before = neap_onnx::open(&model, &open(&recipe)).unwrap();
    let after = neap_onnx::open(&options.output, &open(&recipe)).unwrap();
    assert_eq!(before.nodes.len(), after.nodes.len());
    // Same size: only values have changed.
    let (before, after) = (
        fs::read(&model).unwrap(),
        fs::read(&options.output).unwrap(),
    );
    assert_ne!(before, after);
    let page = fs::read_to_string(options.page.unwrap()).unwrap();
    assert_eq!(page.matches("<circle").count(), 6);

    // The trained model, run by itself, has the accuracy that was reported.
    let engine = engine(&recipe, folder.path());
    let mut session = engine.session(&options.output).unwrap();
    let validation = data.validation.unwrap();
    let mut right = 0;
    let mut batch = Batch::new(&recipe.sample, 32);
    let mut scores = vec![0; 32 * 10 * 4];
    let all: Vec<u32> = (0..validation.count() as u32).collect();
    for which in all.chunks(32) {
        batch.fill(&*validation, which, None).unwrap();
        session
            .run(&[batch.input.bytes()], &mut [&mut scores])
            .unwrap();
        let classes = batch.target.to_i64_vec().unwrap();
        let values: Vec<f32> = scores
            .as_chunks()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect();
        for (scores, class) in values.chunks(10).zip(classes).take(which.len()) {
            let best = (0..10).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
            right += usize::from(best == usize::try_from(class).ok());
        }
    }
    assert_eq!(right as f32 / all.len() as f32, accuracy);
}

fn open(recipe: &Recipe) -> neap_onnx::OpenOptions {
    neap_onnx::OpenOptions {
        shapes: recipe.shapes.clone(),
        ..neap_onnx::OpenOptions::default()
    }
}

#[test]
fn frozen_weights_stay_and_wrong_patterns_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let frozen = ModelOptions {
        freeze: vec!["hidden.*".into()],
        ..model_options(16)
    };
    let recipe = Recipe::new(&model, &frozen, false).unwrap();
    assert_eq!((recipe.trained.len(), recipe.frozen), (2, 2));
    assert_eq!(recipe.trained_elements, 128 * 10 + 10);
    let data = digits(&recipe, 64);
    let options = options(folder.path(), "t", 1);
    train(
        &engine(&recipe, folder.path()),
        &data,
        &options,
        &mut Watcher::default(),
    )
    .unwrap();
    let changed = |name: &str| {
        let of = |path: &std::path::Path| {
            let bytes = fs::read(path).unwrap();
            let at = bytes
                .windows(name.len())
                .rposition(|w| w == name.as_bytes());
            bytes[at.unwrap()..][..64].to_vec()
        };
        of(&model) != of(&options.output)
    };
    assert!(!changed("hidden.weight") && changed("scores.weight"));

    let wrong = ModelOptions {
        freeze: vec!["encoder.*".into()],
        ..model_options(16)
    };
    let refused = Recipe::new(&model, &wrong, false).unwrap_err().to_string();
    assert!(
        refused.contains("encoder.*") && refused.contains("hidden."),
        "{refused}"
    );
    let all = ModelOptions {
        freeze: vec!["*".into()],
        ..model_options(16)
    };
    assert!(Recipe::new(&model, &all, false).is_err());
}

#[test]
fn a_loss_that_is_no_number_ends_with_the_last_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let wild = ModelOptions {
        update: Update::Sgd {
            momentum: 0.9,
            nesterov: false,
            decay: 0.0,
        },
        ..model_options(16)
    };
    let recipe = Recipe::new(&model(folder.path()), &wild, false).unwrap();
    let data = digits(&recipe, 64);
    let mut options = options(folder.path(), "t", 50);
    options.checkpoint_every = Some(1);
    options.warm_up = 0;
    options.rate = 1e15;
    let engine = engine(&recipe, folder.path());
    let ended = train(&engine, &data, &options, &mut Watcher::default());
    let Err(TrainError::Diverged(text)) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(text.lines().count(), 1);
    assert!(text.contains("the last good checkpoint is"), "{text}");
    assert!(!options.output.exists());
    // It can be read, and is of a state from before.
    options.resume = true;
    let ended = train(&engine, &data, &options, &mut Watcher::default());
    assert!(matches!(ended, Err(TrainError::Diverged(_))), "{ended:?}");
}

#[test]
fn it_ends_early_and_keeps_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = Recipe::new(&model(folder.path()), &model_options(16), false).unwrap();
    // So few that they are learned by heart: validation gets worse.
    let data = digits(&recipe, 64);
    let mut options = options(folder.path(), "t", 200);
    options.rate = 5e-3;
    options.augments = false;
    options.patience = Some(3);
    options.keep_best = true;
    let mut watcher = Watcher::default();
    let summary = train(
        &engine(&recipe, folder.path()),
        &data,
        &options,
        &mut watcher,
    )
    .unwrap();
    assert!(watcher.stopped_early);
    let epochs = watcher.validations as u64;
    assert_eq!(summary.epoch.epoch + 3, epochs);
    assert!(epochs < 200);
    let page = fs::read_to_string(options.page.as_ref().unwrap()).unwrap();
    assert!(page.contains(&format!("{:.4}", summary.epoch.validation_loss.unwrap())));
    // The best epoch's weights are those of a training that ends there.
    let mut short = options.clone();
    short.epochs = summary.epoch.epoch;
    short.patience = None;
    short.keep_best = false;
    for (path, name) in [
        (&mut short.checkpoint, "s.checkpoint"),
        (&mut short.output, "s.onnx"),
    ] {
        *path = folder.path().join(name);
    }
    train(
        &engine(&recipe, folder.path()),
        &data,
        &short,
        &mut Watcher::default(),
    )
    .unwrap();
    assert!(fs::read(&short.output).unwrap() == fs::read(&options.output).unwrap());
}
