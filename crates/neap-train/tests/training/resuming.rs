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
    options.rate = 1e-3;
    let refused = again(&options).unwrap_err();
    assert!(refused.contains("--lr 0.002, this is 0.001"), "{refused}");
    options.rate = 2e-3;
    options.epochs = 2;
    assert_eq!(again(&options).unwrap().steps, 8);

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
