//! Losses: their values against their definitions, their derivatives against differences.

use crate::difference::{Random, compare, derivatives, literal, loss, values};
use neap_autodiff::{AutodiffError, Loss, add_loss};
use neap_ir::{DType, Graph, Literal, TensorType};

/// A graph of one loss.
fn graph_of(loss: Loss, shape: &[usize], dtype: DType, target: &Literal) -> Graph {
    let mut graph = Graph::default();
    let scores = graph.add_value("scores", TensorType::new(dtype, shape));
    graph.inputs = vec![scores];
    let target = graph.add_literal("target", target.clone());
    let (mut graph, loss) = add_loss(graph, loss, scores, target).expect("the target fits");
    graph.outputs = vec![loss];
    graph
}

/// Compares the value with `expected(scores)`, and derivatives with its differences.
fn check(kind: Loss, shape: &[usize], target: &Literal, expected: impl Fn(&[f64]) -> f64) {
    let data = Random(11).between(-2.0, 2.0, shape.iter().product());
    let data: Vec<f64> = data.into_iter().map(|v| f64::from(v as f32)).collect();
    let graph = graph_of(kind, shape, DType::F64, target);
    let inputs = [literal(DType::F64, shape, &data)];
    let name = format!("{kind:?}");
    compare(
        &name,
        "value",
        &[expected(&data)],
        &[loss(&graph, &inputs)],
        1e-12,
    );
    let found = derivatives(&graph, &inputs, &graph.inputs);
    let step = 1e-5;
    let differences: Vec<f64> = (0..data.len())
        .map(|i| {
            let at = |by: f64| {
                let mut moved = data.clone();
                moved[i] += by;
                expected(&moved)
            };
            (at(step) - at(-step)) / (2.0 * step)
        })
        .collect();
    compare(&name, "difference", &differences, &found[0], 1e-8);
    let to_f32 = |l: &Literal| match l.dtype() {
        DType::F64 => literal(DType::F32, l.shape(), &values(l)),
        _ => l.clone(),
    };
    let single = graph_of(kind, shape, DType::F32, &to_f32(target));
    let single = derivatives(
        &single,
        &[literal(DType::F32, shape, &data)],
        &single.inputs,
    );
    compare(&name, "f32", &found[0], &single[0], 1e-5);
}

/// By PyTorch's definition, positions outermost: `scores[outer][class][inner]`.
fn cross_entropy(
    scores: &[f64],
    [outer, classes, inner]: [usize; 3],
    targets: &[i64],
    smoothing: f64,
    ignore: Option<i64>,
) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for o in 0..outer {
        for i in 0..inner {
            let target = targets[o * inner + i];
            if Some(target) == ignore {
                continue;
            }
            let at = |c: usize| scores[(o * classes + c) * inner + i];
            let total: f64 = (0..classes).map(|c| at(c).exp()).sum();
            for c in 0..classes {
                let share = smoothing / classes as f64
                    + if c as i64 == target {
                        1.0 - smoothing
                    } else {
                        0.0
                    };
                sum -= share * (at(c) - total.ln());
            }
            count += 1.0;
        }
    }
    sum / count
}

/// Scores' shape, class axis, sizes before, along and behind it, targets' shape and targets.
type Positions = (
    &'static [usize],
    usize,
    [usize; 3],
    &'static [usize],
    &'static [i64],
);

#[test]
fn cross_entropy_by_definition() {
    let table: [Positions; 3] = [
        (&[4, 5], 1, [4, 5, 1], &[4], &[0, 4, 2, 2]),
        (
            &[2, 3, 2, 2],
            1,
            [2, 3, 4],
            &[2, 2, 2],
            &[0, 2, 1, 1, 2, 2, 0, 1],
        ),
        (&[2, 3, 4], 2, [6, 4, 1], &[2, 3], &[3, 0, 0, 1, 2, 3]),
    ];
    for (shape, class_axis, sizes, positions, targets) in table {
        for smoothing in [0.0f32, 0.1] {
            for ignore_index in [None, Some(2)] {
                let kind = Loss::CrossEntropy {
                    class_axis,
                    label_smoothing: smoothing,
                    ignore_index,
                };
                let target = Literal::from_i64(positions, targets);
                check(kind, shape, &target, |scores| {
                    cross_entropy(scores, sizes, targets, smoothing.into(), ignore_index)
                });
            }
        }
    }
}

#[test]
fn ignored_classes_may_be_out_of_range() {
    let kind = Loss::CrossEntropy {
        class_axis: 1,
        label_smoothing: 0.0,
        ignore_index: Some(-100),
    };
    let targets = [1, -100, 2];
    let target = Literal::from_i64(&[3], &targets);
    check(kind, &[3, 4], &target, |scores| {
        cross_entropy(scores, [3, 4, 1], &targets, 0.0, Some(-100))
    });
}

#[test]
fn losses_against_numbers() {
    let targets = Random(3).between(0.0, 1.0, 6);
    let target = literal(DType::F64, &[2, 3], &targets);
    let mean = |f: &dyn Fn(f64, f64) -> f64, x: &[f64]| {
        x.iter().zip(&targets).map(|(&x, &z)| f(x, z)).sum::<f64>() / 6.0
    };
    check(Loss::MeanSquare, &[2, 3], &target, |x| {
        mean(&|x, z| (x - z).powi(2), x)
    });
    check(Loss::MeanAbsolute, &[2, 3], &target, |x| {
        mean(&|x, z| (x - z).abs(), x)
    });
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    check(Loss::BinaryCrossEntropy, &[2, 3], &target, |x| {
        mean(
            &|x, z| -z * sigmoid(x).ln() - (1.0 - z) * sigmoid(-x).ln(),
            x,
        )
    });
}

#[test]
fn extreme_scores_have_finite_losses() {
    let target = literal(DType::F32, &[4], &[0.0, 1.0, 0.0, 1.0]);
    let graph = graph_of(Loss::BinaryCrossEntropy, &[4], DType::F32, &target);
    let inputs = [literal(DType::F32, &[4], &[200.0, -200.0, -200.0, 200.0])];
    assert!((loss(&graph, &inputs) - 100.0).abs() < 1e-3);
    let found = derivatives(&graph, &inputs, &graph.inputs);
    compare("BCE", "extremes", &[0.25, -0.25, 0.0, 0.0], &found[0], 1e-6);
}

#[test]
fn targets_must_fit() {
    let mut graph = Graph::default();
    let scores = graph.add_value("scores", TensorType::new(DType::F32, &[2, 3]));
    let target = graph.add_literal("target", Literal::from_i64(&[3], &[0, 1, 2]));
    graph.inputs = vec![scores];
    let kind = |class_axis| Loss::CrossEntropy {
        class_axis,
        label_smoothing: 0.0,
        ignore_index: None,
    };
    let error = |kind| add_loss(graph.clone(), kind, scores, target).expect_err("does not fit");
    assert!(matches!(error(kind(1)), AutodiffError::Request(_)));
    assert!(matches!(error(kind(2)), AutodiffError::Request(_)));
    assert!(matches!(error(Loss::MeanSquare), AutodiffError::Request(_)));
}
