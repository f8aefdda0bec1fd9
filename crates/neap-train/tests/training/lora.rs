//! Adapters: what is trained, what is written, and what it takes.

use crate::support::*;
use neap_train::{Batch, Engine, LoraOptions, ModelOptions, Recipe, TrainError, train};
use neaptide::{Budget, StateRole};
use std::fs;
use std::path::Path;

const RANK: usize = 4;

fn options_with(rank: usize, targets: &[&str]) -> ModelOptions {
    ModelOptions {
        lora: Some(LoraOptions {
            rank,
            alpha: Some(8.0),
            targets: targets.iter().map(|t| t.to_string()).collect(),
        }),
        ..model_options(16)
    }
}

/// `mlp_28` with adapters for such weights.
pub fn recipe(folder: &Path, targets: &[&str]) -> neap_train::Result<Recipe> {
    Recipe::new(&model(folder), &options_with(RANK, targets), false)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks().0.iter();
    words.map(|&b| f32::from_le_bytes(b)).collect()
}

#[test]
fn digits_are_learned_and_the_written_model_gives_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(folder.path(), &[]).unwrap();
    assert_eq!((recipe.trained.len(), recipe.frozen), (4, 4));
    assert_eq!(
        recipe.trained_elements,
        (RANK * (784 + 128 + 128 + 10)) as u64
    );
    let data = digits(&recipe, 800);
    let engine = engine(&recipe, folder.path());
    let mut options = options(folder.path(), "adapted", 3);
    options.rate = 1e-2;
    let epoch = train(&engine, &data, &options, &mut Watcher::default())
        .unwrap()
        .epoch;
    assert!(epoch.validation_accuracy.unwrap() > 0.5, "{epoch:?}");

    // The checkpoint's adapters beside the model, and the model that they were added to.
    let mut trainer = engine.trainer().unwrap();
    for index in 0..trainer.states().len() {
        let state = trainer.states()[index].clone();
        if state.role == StateRole::Parameter {
            let bytes = tensor(&options.checkpoint, &state.name);
            trainer.write(index, 0, &bytes).unwrap();
        }
    }
    let validation = data.validation.unwrap();
    let mut batch = Batch::new(&recipe.sample, 16);
    let which: Vec<u32> = (0..16).collect();
    batch.fill(&*validation, &which, None).unwrap();
    trainer
        .step(&[batch.input.bytes()], batch.target.bytes(), 0.0)
        .unwrap();
    let adapted = floats(trainer.result());
    let results = |path: &Path| {
        let mut scores = vec![0; 16 * 10 * 4];
        let mut session = engine.session(path).unwrap();
        session
            .run(&[batch.input.bytes()], &mut [&mut scores])
            .unwrap();
        floats(&scores)
    };
    let (merged, before) = (results(&options.output), results(recipe.model()));
    let largest = |a: &[f32], b: &[f32]| {
        let pairs = a.iter().zip(b);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    let size = merged.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
    assert!(largest(&adapted, &merged) <= 1e-5 * size, "{size}");
    assert!(largest(&adapted, &before) > 0.1 * size);

    // All but the weights is as it was.
    let of = |path: &Path| fs::read(path).unwrap();
    // What it says of its pictures and classes is new, and nothing else.
    let more = of(&options.output).len() - of(recipe.model()).len();
    assert!((1..1000).contains(&more), "{more}");
    assert_ne!(of(&options.output), of(recipe.model()));
}

/// A tensor of a file of safetensors, found by its header.
fn tensor(path: &Path, name: &str) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let offsets = &header[name]["data_offsets"];
    let at = |i: usize| offsets[i].as_u64().unwrap() as usize;
    data[at(0)..at(1)].to_vec()
}

#[test]
fn adapters_alone_are_written_by_their_usual_names() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(folder.path(), &["hidden.*"]).unwrap();
    assert_eq!(recipe.trained.len(), 2);
    let data = digits(&recipe, 64);
    let mut options = options(folder.path(), "t", 2);
    options.keep_best = true;
    let engine = engine(&recipe, folder.path());
    train(&engine, &data, &options, &mut Watcher::default()).unwrap();
    let written = options.output.with_extension("safetensors");
    let bytes = fs::read(&written).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let header = &rest[..u64::from_le_bytes(*length) as usize];
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let mut names: Vec<&str> = header.as_object().unwrap().keys().map(|k| &**k).collect();
    names.sort_unstable();
    let layer = "base_model.model.hidden";
    let (down, up) = (
        format!("{layer}.lora_A.weight"),
        format!("{layer}.lora_B.weight"),
    );
    assert_eq!(names, ["__metadata__", &down, &up]);
    assert_eq!(header[&down]["shape"], serde_json::json!([RANK, 784]));
    assert_eq!(header[&up]["shape"], serde_json::json!([128, RANK]));
    let learned = floats(&tensor(&written, &up));
    assert!(learned.iter().any(|v| *v != 0.0));
}

/// Bytes of the smallest budget of a recipe's trainer.
fn smallest(engine: &Engine) -> u64 {
    let engine = Engine {
        budget: Budget::Engine(1),
        ..engine.clone()
    };
    match engine.trainer().map(|_| ()) {
        Err(TrainError::Infeasible(said)) => {
            let (_, after) = said.split_once('(').unwrap();
            let (bytes, _) = after.split_once(" bytes").unwrap();
            bytes.replace(',', "").parse().unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_adapters_are_trained_and_the_smallest_budget_is_lower() {
    let folder = tempfile::tempdir().unwrap();
    let adapted = recipe(folder.path(), &[]).unwrap();
    let whole = Recipe::new(adapted.model(), &model_options(16), false).unwrap();
    let (of_adapted, of_whole) = (
        engine(&adapted, folder.path()),
        engine(&whole, folder.path()),
    );
    let matrix_bytes = 784 * 128 * 4;
    let least = smallest(&of_adapted);
    let least_of_whole = smallest(&of_whole);
    assert!(
        least + matrix_bytes < least_of_whole,
        "{least}, {least_of_whole}"
    );

    let trainer = of_adapted.trainer().unwrap();
    let elements = |role| -> usize {
        let of = trainer.states().iter().filter(|s| s.role == role);
        of.map(|s| s.ty.elements()).sum()
    };
    let own = RANK * (784 + 128 + 128 + 10);
    assert_eq!(elements(StateRole::Parameter), own);
    assert_eq!(elements(StateRole::Moment), 2 * own);
    assert!(elements(StateRole::Frozen) >= 784 * 128);
}

#[test]
fn what_cannot_be_adapted_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let refused = |options: &ModelOptions, parts: &[&str]| {
        let said = Recipe::new(&model, options, false).unwrap_err().to_string();
        assert_eq!(said.lines().count(), 1);
        assert!(parts.iter().all(|p| said.contains(p)), "{said}");
    };
    refused(&options_with(0, &[]), &["--lora is a rank"]);
    refused(&options_with(11, &[]), &["rank 11", "10 outputs"]);
    refused(
        &options_with(4, &["encoder*"]),
        &["--lora-targets encoder*", "hidden.weight"],
    );
    let mut none = options_with(4, &[]);
    none.lora.as_mut().unwrap().alpha = Some(0.0);
    refused(&none, &["--lora-alpha"]);
    // Rank 11 where only the larger matrix gets one.
    Recipe::new(&model, &options_with(11, &["hidden*"]), false).unwrap();
}
