//! The same steps by the interpreter, and by trainers.

use super::models::batches;
use neap_autodiff::{Pass, Start, TrainingSpec, parameters, training_step};
use neap_ir::{Const, Graph, Literal};
use neap_ops::interpret;
use neaptide::{Loss, TrainOptions, Trainer, Update};

pub const SGD: Update = Update::Sgd {
    momentum: 0.9,
    nesterov: false,
    decay: 1e-4,
};
pub const ADAMW: Update = Update::AdamW {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    decay: 0.01,
};
pub const RATE: f64 = 0.02;

/// Losses, and what is left of all states, by name.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub losses: Vec<f64>,
    pub states: Vec<(String, Vec<u8>)>,
}

fn is_trained(frozen: &[&str], name: &str) -> bool {
    !frozen.iter().any(|f| name.starts_with(f))
}

/// What the interpreter makes of so many steps.
pub fn interpreted(
    model: &Graph,
    options: &TrainOptions,
    update: Update,
    frozen: &[&str],
    steps: usize,
) -> Outcome {
    interpreted_on(model, options, update, frozen, batches(7, steps))
}

/// The same on given inputs and targets.
pub fn interpreted_on(
    model: &Graph,
    options: &TrainOptions,
    update: Update,
    frozen: &[&str],
    batches: Vec<(Literal, Literal)>,
) -> Outcome {
    let trained = parameters(model);
    let trained = (trained.into_iter())
        .filter(|&v| is_trained(frozen, &model.value(v).name))
        .map(|v| (v, update));
    let spec = TrainingSpec {
        result: 0,
        loss: options.loss,
        trained: trained.collect(),
        batch_norm: options.batch_norm,
        clip: options.clip,
        pass: Pass::Whole,
        report_result: false,
    };
    let training = training_step(model.clone(), &spec).unwrap();
    let mut states: Vec<Literal> = (training.state.iter())
        .map(|s| match &s.start {
            Start::Constant(Const::Inline(literal)) => literal.clone(),
            Start::Constant(_) => panic!("constants are inline here"),
            Start::Zeros => {
                let ty = training.graph.ty(s.input);
                Literal::zeros(ty.dtype, &ty.shape)
            }
        })
        .collect();
    let mut losses = Vec::new();
    for (number, (images, classes)) in (1..).zip(batches) {
        let mut inputs = vec![images, classes, Literal::from_f32(&[], &[RATE as f32])];
        inputs.push(Literal::from_i64(&[], &[number]));
        if training.seed.is_some() {
            // As a trainer draws it.
            let seed = neaptide::dropout_seed(options.seed, number as u64);
            inputs.push(Literal::from_i64(&[], &[seed]));
        }
        inputs.extend(states.iter().cloned());
        let results = interpret(&training.graph, &inputs, &|_| None).unwrap();
        losses.push(f64::from(results[0].as_f32().unwrap()[0]));
        let mut replaced = results.into_iter().skip(1);
        for (state, slot) in training.state.iter().zip(&mut states) {
            if state.output.is_some() {
                *slot = replaced.next().unwrap();
            }
        }
    }
    let names = training.state.iter().map(|s| s.name.clone());
    let states = states.iter().map(|s| s.bytes().to_vec());
    Outcome {
        losses,
        states: names.zip(states).collect(),
    }
}

pub fn trainer(
    model: &Graph,
    options: &TrainOptions,
    update: Update,
    frozen: &[&str],
) -> neaptide::Result<Trainer> {
    let update_of = |name: &str, _: &_| is_trained(frozen, name).then_some(update);
    Trainer::of_graph(model.clone(), options, &update_of)
}

/// What a trainer makes of so many steps from its `first` on.
pub fn continued(trainer: &mut Trainer, first: usize, steps: usize) -> Outcome {
    let all = batches(7, first + steps);
    continued_on(trainer, &all[first..])
}

/// The same on given inputs and targets.
pub fn continued_on(trainer: &mut Trainer, batches: &[(Literal, Literal)]) -> Outcome {
    let losses = (batches.iter())
        .map(|(images, classes)| {
            trainer
                .step(&[images.bytes()], classes.bytes(), RATE)
                .unwrap()
        })
        .collect();
    Outcome {
        losses,
        states: states(trainer),
    }
}

pub fn states(trainer: &mut Trainer) -> Vec<(String, Vec<u8>)> {
    let names: Vec<String> = trainer.states().iter().map(|s| s.name.clone()).collect();
    (names.into_iter().enumerate())
        .map(|(i, name)| {
            let mut bytes = Vec::new();
            trainer
                .read(i, &mut |piece| bytes.extend_from_slice(piece))
                .unwrap();
            (name, bytes)
        })
        .collect()
}

pub fn options(threads: usize) -> TrainOptions {
    TrainOptions {
        threads,
        loss: Loss::CrossEntropy {
            class_axis: 1,
            label_smoothing: 0.1,
            ignore_index: None,
        },
        state_dir: Some(std::env::temp_dir()),
        ..TrainOptions::default()
    }
}
