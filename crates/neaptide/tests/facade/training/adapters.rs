//! Adapters: the model's weights stay, and what is trained is small.

use super::models::{CLASSES, SIDE, batches, cnn, deep};
use super::reference::{ADAMW, continued, continued_on, options, states, trainer};
use neap_ir::{Const, FileId, FileRange, Graph, SourceFile};
use neaptide::{Adapters, Budget, Error, StateRole, TrainOptions, Trainer};
use std::path::Path;

const RANK: usize = 4;

fn with_adapters(weights: &[&str]) -> TrainOptions {
    TrainOptions {
        adapters: Some(Adapters {
            rank: RANK,
            alpha: 8.0,
            weights: weights.iter().map(|w| w.to_string()).collect(),
        }),
        ..options(2)
    }
}

/// The names of `deep`'s matrices.
fn deep_weights() -> Vec<String> {
    let layers = (0..12).map(|i| format!("layer{i}.weight"));
    let ends = ["first.weight", "scores.weight"].map(String::from);
    ends.into_iter().chain(layers).collect()
}

fn of_deep() -> TrainOptions {
    let weights = deep_weights();
    with_adapters(&weights.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A convolution and a matrix.
fn of_cnn() -> TrainOptions {
    with_adapters(&["point.weight", "scores.weight"])
}

fn open(model: &Graph, options: &TrainOptions) -> neaptide::Result<Trainer> {
    let update_of = |name: &str, _: &_| name.contains("/lora_").then_some(ADAMW);
    Trainer::of_graph(model.clone(), options, &update_of)
}

fn smallest_with_adapters(model: &Graph, options: &TrainOptions) -> u64 {
    let options = TrainOptions {
        budget: Budget::Engine(1),
        ..options.clone()
    };
    match open(model, &options).map(|_| ()) {
        Err(Error::Infeasible { smallest_bytes, .. }) => smallest_bytes,
        other => panic!("no plan takes a byte: {other:?}"),
    }
}

#[test]
fn only_adapters_are_states_that_change() {
    let adapted = open(&deep(), &of_deep()).unwrap();
    let of = |role| {
        let states = adapted.states().iter().filter(move |s| s.role == role);
        states.map(|s| (s.name.clone(), s.ty.elements()))
    };
    let inputs = 3 * SIDE * SIDE;
    let elements = RANK * (inputs + 160 + 12 * 2 * 160 + 160 + CLASSES);
    assert_eq!(of(StateRole::Parameter).count(), 2 * 14);
    let sum = |role| of(role).map(|(_, elements)| elements).sum::<usize>();
    assert_eq!(sum(StateRole::Parameter), elements);
    assert_eq!(sum(StateRole::Moment), 2 * elements);
    let mut changing = of(StateRole::Parameter).chain(of(StateRole::Moment));
    assert!(changing.all(|(name, _)| name.contains("/lora_")));
}

#[test]
fn the_first_loss_is_the_models() {
    for (model, options) in [(deep(), of_deep()), (cnn(), of_cnn())] {
        let frozen = TrainOptions {
            adapters: None,
            ..options.clone()
        };
        let mut whole = trainer(&model, &frozen, ADAMW, &[]).unwrap();
        let mut adapted = open(&model, &options).unwrap();
        let batch = batches(7, 1);
        let expected = continued_on(&mut whole, &batch).losses;
        assert_eq!(continued_on(&mut adapted, &batch).losses, expected);
    }
}

#[test]
fn the_loss_falls() {
    let mut adapted = open(&deep(), &of_deep()).unwrap();
    let batch = batches(7, 1);
    let (images, classes) = &batch[0];
    let mut step = || adapted.step(&[images.bytes()], classes.bytes(), 3e-3);
    let losses: Vec<f64> = (0..40).map(|_| step().unwrap()).collect();
    assert!(losses[39] < 0.9 * losses[0], "{losses:?}");
}

/// The same model with its weights in a file.
fn stored(mut model: Graph, path: &Path) -> Graph {
    let mut data = Vec::new();
    for constant in &mut model.consts {
        if let Const::Inline(literal) = constant {
            let range = FileRange {
                file: FileId(0),
                offset: data.len() as u64,
                bytes: literal.bytes().len() as u64,
            };
            data.extend_from_slice(literal.bytes());
            *constant = Const::Stored {
                range,
                stored_dtype: literal.dtype(),
            };
        }
    }
    std::fs::write(path, data).unwrap();
    model.files = vec![SourceFile::At(path.to_str().unwrap().into())];
    model
}

#[test]
fn weights_that_stream_give_the_same_bits() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let model = stored(deep(), file.path());
    let options = of_deep();
    let expected = continued(&mut open(&model, &options).unwrap(), 0, 3);
    let smallest_bytes = smallest_with_adapters(&model, &options);
    assert!(smallest_bytes < super::budgets::smallest(&model, &super::reference::options(2)));
    let tight = TrainOptions {
        budget: Budget::Engine(smallest_bytes),
        threads: 1,
        ..options.clone()
    };
    let mut adapted = open(&model, &tight).unwrap();
    assert!(adapted.high_water_bytes() <= smallest_bytes);
    // Weights are loaded in each step, and none is stored.
    let elements = |role| -> usize {
        let of = adapted.states().iter().filter(|s| s.role == role);
        of.map(|s| s.ty.elements()).sum()
    };
    let weights_bytes = 4 * elements(StateRole::Frozen) as u64;
    let learned_bytes = 4 * (elements(StateRole::Parameter) + elements(StateRole::Moment)) as u64;
    let (stored, loaded) = adapted.traffic_bytes();
    assert!(loaded > weights_bytes / 3, "{loaded} of {weights_bytes}");
    assert!(stored <= 2 * learned_bytes, "{stored} of {learned_bytes}");
    assert!(continued(&mut adapted, 0, 3) == expected);
}

#[test]
fn another_seed_begins_otherwise() {
    let begun = |seed| {
        let options = TrainOptions { seed, ..of_deep() };
        states(&mut open(&deep(), &options).unwrap())
    };
    assert!(begun(0) == begun(0));
    assert!(begun(0) != begun(1));
}

#[test]
fn wrong_adapters_are_refused() {
    let refused = |options: &TrainOptions| match open(&deep(), options).map(|_| ()) {
        Err(Error::BadInput(text)) => text,
        other => panic!("{other:?}"),
    };
    assert!(refused(&with_adapters(&["first.bias"])).contains("'first.bias'"));
    let mut options = with_adapters(&["scores.weight"]);
    for rank in [0, CLASSES + 1] {
        options.adapters.as_mut().unwrap().rank = rank;
        let said = refused(&options);
        assert!(said.contains(&format!("rank {rank}")), "{said}");
    }
}
