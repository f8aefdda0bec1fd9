//! A training that was stopped and taken up has the bits of one that was not.

use crate::support::*;
use neap_train::{Recipe, Summary, TrainError, train};
use std::fs;
use std::path::Path;

fn recipe(folder: &Path) -> Recipe {
    Recipe::new(&model(folder), &model_options(16), false).unwrap()
}

/// Trains until step `stop_at` of each piece.
fn in_pieces(recipe: &Recipe, folder: &Path, name: &str, stops: &[u64]) -> Summary {
    let data = digits(recipe, 100);
    let engine = engine(recipe, folder);
    let mut options = options(folder, name, 3);
    for &stop_at in stops {
        let mut watcher = Watcher {
            stop_at,
            ..Watcher::default()
        };
        let ended = train(&engine, &data, &options, &mut watcher);
        assert!(matches!(ended, Err(TrainError::Interrupted)), "{ended:?}");
        assert_eq!(watcher.step, stop_at);
        options.resume = true;
    }
    train(&engine, &data, &options, &mut Watcher::default()).unwrap()
}

#[test]
fn bits_are_the_same_wherever_it_was_stopped() {
    let folder = tempfile::tempdir().unwrap();
    check_bits(&recipe(folder.path()), folder.path());
}

/// The same of adapters.
#[test]
fn bits_of_adapters_are_the_same_wherever_it_was_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = crate::lora::recipe(folder.path(), &[]).unwrap();
    check_bits(&recipe, folder.path());
}

fn check_bits(recipe: &Recipe, folder: &Path) {
    let whole = in_pieces(recipe, folder, "whole", &[]);
    assert_eq!(whole.steps, 18);
    let bytes = |name: &str, kind: &str| fs::read(folder.join(format!("{name}.{kind}"))).unwrap();
    for (name, stops) in [
        ("first", &[1][..]),
        ("middle", &[5, 11]),
        ("at an epoch's end", &[6]),
        ("last", &[18]),
    ] {
        assert_eq!(in_pieces(recipe, folder, name, stops), whole);
        for kind in ["onnx", "safetensors"] {
            assert!(bytes(name, kind) == bytes("whole", kind), "{name}: {kind}");
        }
        // Every step and epoch is logged once.
        let log = String::from_utf8(bytes(name, "jsonl")).unwrap();
        let mut steps = Vec::new();
        for line in log.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            if line.get("rate").is_some() {
                steps.push(line["step"].as_u64().unwrap());
            }
        }
        assert!(steps.into_iter().eq(1..=18), "{name}: {log}");
    }
}

#[test]
fn checkpoints_of_other_trainings_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(folder.path());
    let (data, engine) = (digits(&recipe, 64), engine(&recipe, folder.path()));
    let mut options = options(folder.path(), "t", 1);
    let again = |options: &neap_train::TrainOptions| {
        let ended = train(&engine, &data, options, &mut Watcher::default());
        ended.map_err(|e| e.to_string())
    };
    again(&options).unwrap();
    assert!(again(&options).unwrap_err().contains("--resume"));
    options.resume = true;
    options.seed = 6;
    let refused = again(&options).unwrap_err();
    assert!(refused.contains("--seed was 5, now it is 6"), "{refused}");
    options.seed = 5;
    options.epochs = 2;
    assert_eq!(again(&options).unwrap().steps, 8);
    // Fewer than there are.
    options.epochs = 1;
    let refused = again(&options).unwrap_err();
    assert!(refused.contains("--epochs 2 or more"), "{refused}");
    options.epochs = 3;

    // One bit of a parameter.
    let mut bytes = fs::read(&options.checkpoint).unwrap();
    let last = bytes.len() - 5;
    bytes[last] ^= 1;
    fs::write(&options.checkpoint, &bytes).unwrap();
    let damaged = again(&options).unwrap_err();
    assert!(damaged.contains("damaged"), "{damaged}");
    fs::write(&options.checkpoint, &bytes[..last]).unwrap();
    assert!(
        again(&options)
            .unwrap_err()
            .contains("no file of safetensors")
    );
}

/// A rate that is given is the rate from there on; one that is not is the checkpoint's.
#[test]
fn a_training_goes_on_with_another_rate_where_it_is_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(folder.path());
    let (data, engine) = (digits(&recipe, 64), engine(&recipe, folder.path()));
    let rates = |name: &str, rate_is_given: bool| -> Vec<f64> {
        let mut options = options(folder.path(), name, 1);
        options.warm_up = 0;
        train(&engine, &data, &options, &mut Watcher::default()).unwrap();
        (options.resume, options.rate, options.epochs) = (true, 1e-4, 2);
        options.rate_is_given = rate_is_given;
        train(&engine, &data, &options, &mut Watcher::default()).unwrap();
        let log = fs::read_to_string(options.log.unwrap()).unwrap();
        let lines = log
            .lines()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
        lines.filter_map(|line| line["rate"].as_f64()).collect()
    };
    assert_eq!(rates("given", true), [[2e-3; 4], [1e-4; 4]].concat());
    assert_eq!(rates("kept", false), [2e-3; 8]);
}

#[test]
fn an_earlier_training_is_written_over_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(folder.path());
    let (data, engine) = (digits(&recipe, 64), engine(&recipe, folder.path()));
    let mut options = options(folder.path(), "t", 1);
    let once = train(&engine, &data, &options, &mut Watcher::default()).unwrap();
    options.overwrite = true;
    let again = train(&engine, &data, &options, &mut Watcher::default()).unwrap();
    assert_eq!(once, again);
}

/// Nothing is trained where nothing could be written.
#[test]
fn places_that_cannot_be_written_are_found_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(folder.path());
    let (data, engine) = (digits(&recipe, 64), engine(&recipe, folder.path()));
    let nowhere = folder.path().join("nowhere");
    let places: [fn(&mut neap_train::TrainOptions, std::path::PathBuf); 4] = [
        |o, path| o.output = path,
        |o, path| o.checkpoint = path,
        |o, path| o.page = Some(path),
        |o, path| o.log = Some(path),
    ];
    for (number, place) in places.into_iter().enumerate() {
        let mut options = options(folder.path(), "t", 1);
        place(&mut options, nowhere.join("x.onnx"));
        let mut watcher = Watcher::default();
        let refused = train(&engine, &data, &options, &mut watcher);
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("no folder") && refused.contains("nowhere"),
            "{refused}"
        );
        assert_eq!(watcher.step, 0, "{number}");
    }
    assert!(!folder.path().join("t.checkpoint").exists());
}
