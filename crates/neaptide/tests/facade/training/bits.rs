//! A trainer and the interpreter agree in every bit.

use super::models::{cnn, mlp};
use super::reference::{ADAMW, Outcome, SGD, continued, interpreted, options, states, trainer};
use neap_ir::Graph;
use neaptide::{BatchNorm, Clip, StateRole, TrainOptions, Update};

const STEPS: usize = 4;

fn check(model: &Graph, options: &TrainOptions, update: Update, frozen: &[&str]) -> Outcome {
    let expected = interpreted(model, options, update, frozen, STEPS);
    let all_differ = expected.losses.windows(2).all(|pair| pair[0] != pair[1]);
    assert!(all_differ, "the steps did nothing");
    for threads in [1, 3] {
        let options = TrainOptions {
            threads,
            ..options.clone()
        };
        let mut trainer = trainer(model, &options, update, frozen).unwrap();
        let mut found = continued(&mut trainer, 0, STEPS);
        // The interpreter has no states for what is frozen.
        let names: Vec<&String> = expected.states.iter().map(|(name, _)| name).collect();
        found.states.retain(|(name, _)| names.contains(&name));
        assert_eq!(found.losses, expected.losses, "{threads} threads");
        for (found, expected) in found.states.iter().zip(&expected.states) {
            assert!(found == expected, "{} differs, {threads} threads", found.0);
        }
        assert_eq!(found.states.len(), expected.states.len());
    }
    expected
}

#[test]
fn an_mlp_by_each_optimiser() {
    let adagrad = Update::Adagrad {
        epsilon: 1e-10,
        rate_decay: 0.1,
        decay: 0.0,
    };
    let plain = Update::Sgd {
        momentum: 0.0,
        nesterov: false,
        decay: 0.0,
    };
    for update in [SGD, plain, ADAMW, adagrad] {
        check(&mlp(), &options(1), update, &[]);
    }
}

#[test]
fn a_cnn_with_running_statistics_and_dropout() {
    let options = TrainOptions {
        batch_norm: BatchNorm::Batch { momentum: 0.1 },
        seed: 5,
        ..options(1)
    };
    let outcome = check(&cnn(), &options, SGD, &[]);
    assert!(
        outcome
            .states
            .iter()
            .any(|(name, _)| name == "stem.bn.mean")
    );
}

#[test]
fn frozen_layers_stay_and_clipped_gradients_are_clipped() {
    let options = TrainOptions {
        clip: Some(Clip::Norm(0.5)),
        ..options(1)
    };
    check(&cnn(), &options, ADAMW, &["stem", "depthwise"]);
    let options = TrainOptions {
        clip: Some(Clip::Value(0.01)),
        ..options
    };
    check(&mlp(), &options, SGD, &["first"]);
}

#[test]
fn a_trainer_goes_on_from_what_another_left() {
    let model = cnn();
    let options = TrainOptions {
        batch_norm: BatchNorm::Batch { momentum: 0.1 },
        ..options(2)
    };
    let expected = interpreted(&model, &options, ADAMW, &[], STEPS);
    let mut first = trainer(&model, &options, ADAMW, &[]).unwrap();
    continued(&mut first, 0, 2);
    let kept = states(&mut first);
    let mut second = trainer(&model, &options, ADAMW, &[]).unwrap();
    for (i, (_, bytes)) in kept.iter().enumerate() {
        let (a, b) = bytes.split_at(bytes.len() / 2);
        second.write(i, 0, a).unwrap();
        second.write(i, a.len() as u64, b).unwrap();
    }
    second.set_steps(first.steps());
    let found = continued(&mut second, 2, STEPS - 2);
    assert_eq!(found.losses, expected.losses[2..]);
    assert!(found.states == expected.states);
}

#[test]
fn the_result_is_at_hand_before_the_update() {
    let options = TrainOptions {
        keep_result: true,
        ..options(1)
    };
    let model = mlp();
    let mut trainer = trainer(&model, &options, SGD, &[]).unwrap();
    let (images, classes) = &super::models::batches(7, 1)[0];
    trainer
        .step(&[images.bytes()], classes.bytes(), 0.1)
        .unwrap();
    let expected = neap_ops::interpret(&model, std::slice::from_ref(images), &|_| None).unwrap();
    assert_eq!(trainer.result(), expected[0].bytes());
}

#[test]
fn states_say_what_they_are() {
    let trainer = trainer(&cnn(), &options(1), ADAMW, &["stem"]).unwrap();
    let role = |name: &str| {
        let found = trainer.states().iter().find(|s| s.name == name);
        found.map(|s| s.role)
    };
    assert_eq!(role("scores.weight"), Some(StateRole::Parameter));
    assert_eq!(role("scores.weight/moment1"), Some(StateRole::Moment));
    // Small constants are part of the program.
    assert_eq!(role("stem.weight"), None);
}
