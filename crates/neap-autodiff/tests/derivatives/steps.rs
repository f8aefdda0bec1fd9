//! Steps of training: what is updated by what, parts of batches, clipping, statistics.

use crate::difference::{Random, compare, derivatives, literal, one, values};
use neap_autodiff::{
    BatchNorm, Clip, Loss, Pass, Role, Start, Training, TrainingSpec, add_loss, parameters,
    training_step,
};
use neap_ir::op::{Activation, Generator, Pool, Unary, Window};
use neap_ir::update::Update;
use neap_ir::{Const, DType, FileId, FileRange, Graph, Literal, Op, TensorType, ValueId};
use neap_ops::interpret;

const IMAGES: usize = 8;
const CLASSES: usize = 3;

/// A small classifier in f64: convolution, batch norm (or dropout), ReLU, mean, linear layer.
fn classifier(images: usize, middle: Middle) -> Graph {
    let mut random = Random(23);
    let mut graph = Graph::default();
    let mut constant = |graph: &mut Graph, name: &str, shape: &[usize], low: f64, high: f64| {
        let data = random.between(low, high, shape.iter().product());
        graph.add_literal(name, literal(DType::F64, shape, &data))
    };
    let x = graph.add_value("x", TensorType::new(DType::F64, &[images, 2, 5, 5]));
    graph.inputs = vec![x];
    let w = constant(&mut graph, "conv.weight", &[4, 2, 3, 3], -0.5, 0.5);
    let window = Window {
        kernel: vec![3; 2],
        strides: vec![1; 2],
        dilations: vec![1; 2],
        pads_begin: vec![1; 2],
        pads_end: vec![1; 2],
    };
    let mut y = one(&mut graph, Op::Conv(window, 1), &[x, w]);
    match middle {
        Middle::Nothing => {}
        Middle::BatchNorm => {
            let scale = constant(&mut graph, "bn.scale", &[4], 0.5, 1.5);
            let bias = constant(&mut graph, "bn.bias", &[4], -0.5, 0.5);
            let mean = constant(&mut graph, "bn.mean", &[4], -0.5, 0.5);
            let variance = constant(&mut graph, "bn.variance", &[4], 0.5, 1.5);
            let op = Op::BatchNorm { epsilon: 1e-5 };
            y = one(&mut graph, op, &[y, scale, bias, mean, variance]);
        }
        Middle::Dropout => {
            let seed = graph.add_literal("seed", Literal::from_i64(&[], &[0]));
            let op = Op::Dropout {
                ratio: 0.5,
                generator: Generator::Counter { stream: 1 },
            };
            y = one(&mut graph, op, &[y, seed]);
        }
    }
    let relu = Op::Unary(Unary::Activation(Activation::Relu));
    y = one(&mut graph, relu, &[y]);
    let average = Pool::Average {
        count_include_pad: false,
    };
    y = one(&mut graph, Op::GlobalPool(average), &[y]);
    let shape = vec![images, 4];
    y = one(&mut graph, Op::Reshape { shape }, &[y]);
    let w = constant(&mut graph, "fc.weight", &[CLASSES, 4], -0.5, 0.5);
    let b = constant(&mut graph, "fc.bias", &[CLASSES], -0.1, 0.1);
    let gemm = Op::Gemm {
        alpha: 1.0,
        beta: 1.0,
        trans_a: false,
        trans_b: true,
    };
    y = one(&mut graph, gemm, &[y, w, b]);
    graph.outputs = vec![y];
    graph
}

#[derive(Clone, Copy)]
enum Middle {
    Nothing,
    BatchNorm,
    Dropout,
}

const PLAIN: Update = Update::Sgd {
    momentum: 0.0,
    nesterov: false,
    decay: 0.0,
};

fn spec(graph: &Graph, update: Update) -> TrainingSpec {
    TrainingSpec {
        result: 0,
        loss: Loss::CrossEntropy {
            class_axis: 1,
            label_smoothing: 0.0,
            ignore_index: None,
        },
        trained: parameters(graph).into_iter().map(|v| (v, update)).collect(),
        batch_norm: BatchNorm::Batch { momentum: 0.1 },
        clip: None,
        pass: Pass::Whole,
        report_result: false,
    }
}

fn starts(training: &Training) -> Vec<Literal> {
    let start = |state: &neap_autodiff::State| match &state.start {
        Start::Constant(Const::Inline(literal)) => literal.clone(),
        Start::Constant(_) => panic!("constants are inline here"),
        Start::Zeros => {
            let ty = training.graph.ty(state.input);
            Literal::zeros(ty.dtype, &ty.shape)
        }
    };
    training.state.iter().map(start).collect()
}

/// Runs a step: gives the loss, and puts what changed into `state`.
fn run(
    training: &Training,
    batch: [Literal; 2],
    rate: f64,
    step: i64,
    state: &mut [Literal],
) -> f64 {
    let [x, target] = batch;
    let mut inputs = vec![x, target, literal(DType::F64, &[], &[rate])];
    inputs.push(Literal::from_i64(&[], &[step]));
    if training.seed.is_some() {
        inputs.push(Literal::from_i64(&[], &[1000 + step]));
    }
    inputs.extend(state.iter().cloned());
    let results = interpret(&training.graph, &inputs, &|_| None).expect("the step runs");
    let mut results = results.into_iter();
    let loss = values(&results.next().expect("a loss"))[0];
    for (kept, slot) in training.state.iter().zip(state) {
        if kept.output.is_some() {
            *slot = results
                .next()
                .expect("a result for each state that changes");
        }
    }
    loss
}

/// Images whose brightest channel and side say the class.
fn batch(images: std::ops::Range<usize>) -> [Literal; 2] {
    let count = images.len();
    let (mut data, mut classes) = (Vec::new(), Vec::new());
    for image in images {
        let class = image % CLASSES;
        let noise = Random(500 + image as u64).between(-0.3, 0.3, 50);
        let signal = |i: usize| match class {
            0 => f64::from(u8::from(i < 25)),
            1 => f64::from(u8::from(i >= 25)),
            _ => -0.5,
        };
        data.extend(noise.iter().enumerate().map(|(i, v)| v + signal(i)));
        classes.push(class as i64);
    }
    [
        literal(DType::F64, &[count, 2, 5, 5], &data),
        Literal::from_i64(&[count], &classes),
    ]
}

#[test]
fn a_step_moves_parameters_against_their_gradients() {
    let graph = classifier(IMAGES, Middle::Nothing);
    let spec = spec(&graph, PLAIN);
    let training = training_step(graph.clone(), &spec).expect("trains");
    training.graph.check_types().expect("types are inferred");
    let before = starts(&training);
    let mut after = before.clone();
    let [x, classes] = batch(0..IMAGES);
    run(&training, [x.clone(), classes.clone()], 0.5, 1, &mut after);

    let mut plain = graph;
    let by: Vec<ValueId> = spec.trained.iter().map(|&(v, _)| v).collect();
    let target = plain.add_literal("target", classes);
    let (mut plain, loss) =
        add_loss(plain.clone(), spec.loss, plain.outputs[0], target).expect("fits");
    plain.outputs = vec![loss];
    let gradients = derivatives(&plain, &[x], &by);
    for (i, gradient) in gradients.iter().enumerate() {
        let old = values(&before[i]);
        let moved: Vec<f64> = old.iter().zip(gradient).map(|(w, g)| w - 0.5 * g).collect();
        compare(
            &training.state[i].name,
            "moved",
            &moved,
            &values(&after[i]),
            1e-12,
        );
        assert!(gradient.iter().any(|g| g.abs() > 1e-4), "it moves at all");
    }
}

#[test]
fn losses_fall() {
    let updates = [
        (
            Update::Sgd {
                momentum: 0.9,
                nesterov: true,
                decay: 1e-4,
            },
            0.3,
        ),
        (
            Update::AdamW {
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                decay: 0.01,
            },
            0.03,
        ),
        (
            Update::Adagrad {
                epsilon: 1e-10,
                rate_decay: 0.0,
                decay: 0.0,
            },
            0.2,
        ),
    ];
    for middle in [Middle::Nothing, Middle::BatchNorm, Middle::Dropout] {
        for (update, rate) in updates {
            let graph = classifier(IMAGES, middle);
            let training = training_step(graph.clone(), &spec(&graph, update)).expect("trains");
            let mut state = starts(&training);
            let losses: Vec<f64> = (1..=40)
                .map(|step| run(&training, batch(0..IMAGES), rate, step, &mut state))
                .collect();
            let (first, last) = (losses[0], losses[losses.len() - 1]);
            assert!(last < 0.5 * first, "{update:?}: from {first} to {last}");
        }
    }
}

/// A model's own seed would drop the same elements in every step.
#[test]
fn each_step_drops_others() {
    let mut graph = classifier(IMAGES, Middle::Dropout);
    for node in &mut graph.nodes {
        if let Op::Dropout { generator, .. } = &mut node.op {
            *generator = Generator::Twister;
        }
    }
    let training = training_step(graph.clone(), &spec(&graph, PLAIN)).expect("trains");
    assert!(training.seed.is_some());
    let start = starts(&training);
    let losses: Vec<f64> = (1..=3)
        .map(|step| run(&training, batch(0..IMAGES), 0.0, step, &mut start.clone()))
        .collect();
    assert!(
        losses[0] != losses[1] && losses[1] != losses[2],
        "{losses:?}"
    );
}

#[test]
fn parts_of_a_batch_add_up_to_it() {
    let update = Update::AdamW {
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        decay: 0.1,
    };
    let whole_graph = classifier(IMAGES, Middle::Nothing);
    let whole = training_step(whole_graph.clone(), &spec(&whole_graph, update)).expect("trains");
    let mut expected = starts(&whole);
    run(&whole, batch(0..IMAGES), 0.1, 1, &mut expected);

    let graph = classifier(IMAGES / 2, Middle::Nothing);
    let mut of_part = spec(&graph, update);
    of_part.pass = Pass::Accumulate;
    let first = training_step(graph.clone(), &of_part).expect("trains");
    of_part.pass = Pass::Finish { parts: 2 };
    let last = training_step(graph, &of_part).expect("trains");
    let mut sums = starts(&first);
    run(&first, batch(0..IMAGES / 2), 0.1, 1, &mut sums);
    let mut state = starts(&last);
    for (kept, slot) in last.state.iter().zip(&mut state) {
        if kept.role == Role::Sum {
            let named = first.state.iter().position(|s| s.name == kept.name);
            *slot = sums[named.expect("both have the sum")].clone();
        }
    }
    run(&last, batch(IMAGES / 2..IMAGES), 0.1, 1, &mut state);
    for (kept, expected) in whole.state.iter().zip(&expected) {
        let named = last.state.iter().position(|s| s.name == kept.name);
        let found = &state[named.expect("both have it")];
        compare(&kept.name, "parts", &values(expected), &values(found), 1e-9);
    }
}

#[test]
fn gradients_are_clipped() {
    let graph = classifier(IMAGES, Middle::Nothing);
    let moved = |clip: Option<Clip>| -> Vec<Vec<f64>> {
        let mut spec = spec(&graph, PLAIN);
        spec.clip = clip;
        let training = training_step(graph.clone(), &spec).expect("trains");
        let before = starts(&training);
        let mut after = before.clone();
        run(&training, batch(0..IMAGES), 1.0, 1, &mut after);
        let pairs = before.iter().zip(&after);
        pairs
            .map(|(b, a)| {
                let (b, a) = (values(b), values(a));
                b.iter().zip(&a).map(|(b, a)| b - a).collect()
            })
            .collect()
    };
    let free = moved(None);
    let norm = free.iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
    let limit = (norm / 3.0) as f32;
    let factor = f64::from(limit) / (norm + 1e-6);
    for (free, clipped) in free.iter().zip(moved(Some(Clip::Norm(limit)))) {
        let expected: Vec<f64> = free.iter().map(|g| g * factor).collect();
        compare("Clip::Norm", "gradient", &expected, &clipped, 1e-9);
    }
    // A bound that is not reached changes nothing.
    for (free, clipped) in free.iter().zip(moved(Some(Clip::Norm(2.0 * norm as f32)))) {
        compare("Clip::Norm", "not reached", free, &clipped, 1e-12);
    }
    let limit = 0.01f32;
    for (free, clipped) in free.iter().zip(moved(Some(Clip::Value(limit)))) {
        let limit = f64::from(limit);
        let expected: Vec<f64> = free.iter().map(|g| g.clamp(-limit, limit)).collect();
        compare("Clip::Value", "gradient", &expected, &clipped, 1e-12);
    }
}

#[test]
fn statistics_move_towards_the_batch_s() {
    let graph = classifier(IMAGES, Middle::BatchNorm);
    let training = training_step(graph.clone(), &spec(&graph, PLAIN)).expect("trains");
    let before = starts(&training);
    let mut after = before.clone();
    let [x, classes] = batch(0..IMAGES);
    run(&training, [x.clone(), classes], 0.1, 1, &mut after);
    // What the convolution gives, from the model's own graph.
    let mut conv = graph;
    conv.outputs = vec![conv.nodes[0].outputs[0].expect("a result")];
    let y = values(&interpret(&conv, &[x], &|_| None).expect("runs")[0]);
    let count = IMAGES * 25;
    for (i, state) in training.state.iter().enumerate() {
        if state.role != Role::RunningStatistic {
            continue;
        }
        let old = values(&before[i]);
        let expected: Vec<f64> = (0..4)
            .map(|c| {
                let of_channel = |k: usize| y[(k / 25 * 4 + c) * 25 + k % 25];
                let mean = (0..count).map(of_channel).sum::<f64>() / count as f64;
                let squares = (0..count)
                    .map(|k| (of_channel(k) - mean).powi(2))
                    .sum::<f64>();
                let batch = if state.name == "bn.mean" {
                    mean
                } else {
                    squares / (count - 1) as f64
                };
                let momentum = f64::from(0.1f32);
                (1.0 - momentum) * old[c] + momentum * batch
            })
            .collect();
        compare(
            &state.name,
            "statistic",
            &expected,
            &values(&after[i]),
            1e-12,
        );
    }
    let moved = training
        .state
        .iter()
        .filter(|s| s.role == Role::RunningStatistic);
    assert_eq!(moved.count(), 2);
}

#[test]
fn frozen_parameters_stay_constants() {
    let graph = classifier(IMAGES, Middle::BatchNorm);
    let all = spec(&graph, PLAIN);
    let whole = training_step(graph.clone(), &all).expect("trains");
    let mut head = all.clone();
    head.batch_norm = BatchNorm::Given;
    head.trained
        .retain(|&(v, _)| graph.value(v).name.starts_with("fc"));
    let training = training_step(graph.clone(), &head).expect("trains");
    assert_eq!(training.state.len(), 2);
    // Loss, gradients of a linear layer, two updates; nothing of the convolution.
    let backward = |t: &Training, what: &str| t.graph.nodes.iter().any(|n| n.op.name() == what);
    assert!(backward(&whole, "ConvWeightGradient"));
    assert!(!backward(&training, "ConvWeightGradient"));
    assert!(training.graph.nodes.len() < whole.graph.nodes.len() - 4);
}

#[test]
fn updates_come_as_soon_as_gradients_are_whole() {
    let graph = classifier(IMAGES, Middle::Nothing);
    let training = training_step(graph.clone(), &spec(&graph, PLAIN)).expect("trains");
    let place = |name: &str| {
        let is_it = |n: &neap_ir::Node| n.name.starts_with(name);
        training
            .graph
            .nodes
            .iter()
            .position(is_it)
            .expect("is there")
    };
    // The last layer is updated before the first one's gradient is begun.
    assert!(place("update/fc.weight") < place("backward/Conv_0"));
}

#[test]
fn data_of_two_constants_are_not_trained() {
    let mut graph = Graph::default();
    let x = graph.add_value("x", TensorType::new(DType::F32, &[2, 3]));
    graph.inputs = vec![x];
    let mut stored = |name: &str, offset: u64| {
        let range = FileRange {
            file: FileId(0),
            offset,
            bytes: 36,
        };
        let data = Const::Stored {
            range,
            stored_dtype: DType::F32,
        };
        graph.add_const(name, TensorType::new(DType::F32, &[3, 3]), data)
    };
    let (a, b, c) = (stored("a", 0), stored("b", 32), stored("c", 68));
    let mut y = x;
    for w in [a, b, c] {
        y = one(&mut graph, Op::MatMul, &[y, w]);
    }
    graph.outputs = vec![y];
    let with = |trained: &[ValueId]| {
        let spec = TrainingSpec {
            loss: Loss::MeanSquare,
            trained: trained.iter().map(|&v| (v, PLAIN)).collect(),
            ..spec(&graph, PLAIN)
        };
        training_step(graph.clone(), &spec).map_err(|e| e.to_string())
    };
    let error = with(&[b]).expect_err("shared");
    assert_eq!(
        error,
        "'a' and 'b' share their data: training one would part them"
    );
    assert!(with(&[c]).is_ok());
    assert_eq!(with(&[c, c]).expect_err("twice"), "'c' is listed twice");
    assert_eq!(with(&[x]).expect_err("an input"), "'x' is no constant");
}
