//! Softmax and normalisations.

use crate::difference::{between, check, frozen, noise};
use neap_ir::Op;
use neap_ir::op::Softmax;

#[test]
fn softmax_along_any_axis() {
    for kind in [Softmax::Softmax, Softmax::LogSoftmax] {
        for axis in 0..3 {
            check(
                Op::Softmax { axis, kind },
                &[between(&[2, 3, 4], -3.0, 3.0)],
            );
        }
        check(
            Op::Softmax { axis: 1, kind },
            &[between(&[5, 19], -3.0, 3.0)],
        );
    }
}

#[test]
fn lengths_of_lines() {
    for p in [1, 2] {
        for axis in 0..3 {
            check(Op::LpNorm { axis, p }, &[noise(&[2, 3, 4])]);
        }
        check(Op::LpNorm { axis: 0, p }, &[noise(&[19])]);
    }
}

/// At zeros the forward pass jumps, so nothing is compared with differences.
#[test]
fn a_line_of_zeros_has_no_length() {
    use crate::difference::{derivatives, literal, one, weighted_sum};
    use neap_ir::{DType, Graph, TensorType};
    for p in [1, 2] {
        let mut graph = Graph::default();
        let x = graph.add_value("x", TensorType::new(DType::F64, &[2, 2]));
        graph.inputs = vec![x];
        let y = one(&mut graph, Op::LpNorm { axis: 1, p }, &[x]);
        graph.outputs = vec![weighted_sum(&mut graph, y, 3)];
        let data = literal(DType::F64, &[2, 2], &[0.0, 0.0, 3.0, -4.0]);
        let found = derivatives(&graph, &[data], &[x]);
        assert_eq!(found[0][..2], [0.0, 0.0]);
        assert!(found[0][2..].iter().all(|v| v.is_finite() && *v != 0.0));
    }
}

#[test]
fn responses_of_neighbouring_channels() {
    for (shape, size) in [
        (&[2, 5, 3][..], 3),
        (&[1, 6, 2, 3], 4),
        (&[2, 3, 2, 2], 5),
        (&[1, 4, 2], 1),
        (&[1, 7, 2, 1, 2], 2),
    ] {
        let op = Op::Lrn {
            alpha: 0.6,
            beta: 0.75,
            bias: 1.5,
            size,
        };
        check(op, &[noise(shape)]);
    }
}

#[test]
fn layer_norms() {
    let epsilon = 1e-5;
    for (shape, axis) in [
        (&[4, 6][..], 1),
        (&[2, 3, 5], 2),
        (&[2, 3, 4], 1),
        (&[3, 4], 0),
    ] {
        let parameter = &shape[axis..];
        let operands = [noise(shape), noise(parameter), noise(parameter)];
        check(Op::LayerNorm { axis, epsilon }, &operands);
        check(Op::LayerNorm { axis, epsilon }, &operands[..2]);
        check(Op::RmsNorm { axis, epsilon }, &operands[..2]);
        // Any of them alone.
        check(
            Op::LayerNorm { axis, epsilon },
            &[noise(shape), frozen(parameter), frozen(parameter)],
        );
        check(
            Op::LayerNorm { axis, epsilon },
            &[frozen(shape), frozen(parameter), noise(parameter)],
        );
        check(
            Op::RmsNorm { axis, epsilon },
            &[frozen(shape), noise(parameter)],
        );
    }
    // A scale that broadcasts.
    check(
        Op::LayerNorm { axis: 1, epsilon },
        &[noise(&[2, 3, 4]), noise(&[4]), noise(&[3, 1])],
    );
}

#[test]
fn batch_norms() {
    let epsilon = 1e-3;
    for shape in [&[6, 3][..], &[3, 2, 5], &[2, 3, 3, 4], &[2, 2, 2, 2, 3]] {
        let c = &shape[1..2];
        let [x, scale, bias] = [noise(shape), noise(c), noise(c)];
        let (mean, variance) = (noise(c), between(c, 0.5, 2.0));
        let op = Op::BatchNorm { epsilon };
        check(
            op.clone(),
            &[x.clone(), scale.clone(), bias.clone(), mean, variance],
        );
        let given = [frozen(c), neap_frozen(c)];
        let [mean, variance] = given;
        check(op, &[x.clone(), scale.clone(), frozen(c), mean, variance]);
        training(shape, epsilon);
    }
}

fn neap_frozen(shape: &[usize]) -> crate::difference::Operand {
    crate::difference::Operand::Frozen(shape.to_vec(), 0.5, 2.0)
}

/// The loss depends on y only, statistics are there for the backward pass.
fn training(shape: &[usize], epsilon: f32) {
    use crate::difference::{derivatives, literal, loss, push, weighted_sum};
    use neap_ir::{DType, Graph, TensorType};
    let mut random = crate::difference::Random(5);
    let c = &shape[1..2];
    let run = |dtype: DType, data: &[Vec<f64>; 3]| {
        let mut graph = Graph::default();
        let mut inputs = Vec::new();
        let mut ids = Vec::new();
        for (shape, data) in [shape, c, c].into_iter().zip(data) {
            let id = graph.add_value("x", TensorType::new(dtype, shape));
            graph.inputs.push(id);
            ids.push(id);
            inputs.push(literal(dtype, shape, data));
        }
        let operands: Vec<_> = ids.iter().map(|&v| Some(v)).collect();
        let results = push(&mut graph, Op::BatchNormTraining { epsilon }, &operands, 3);
        let sum = weighted_sum(&mut graph, results[0], 3);
        graph.outputs = vec![sum];
        (graph, inputs, ids)
    };
    let count = shape.iter().product();
    let data = [count, c[0], c[0]].map(|n| {
        let data = random.between(-1.0, 1.0, n);
        data.into_iter()
            .map(|v| f64::from(v as f32))
            .collect::<Vec<f64>>()
    });
    let (graph, inputs, ids) = run(DType::F64, &data);
    let found = derivatives(&graph, &inputs, &ids);
    let step = 1e-5;
    for operand in 0..3 {
        let expected: Vec<f64> = (0..data[operand].len())
            .map(|i| {
                let at = |by: f64| {
                    let mut moved = data.clone();
                    moved[operand][i] += by;
                    let (graph, inputs, _) = run(DType::F64, &moved);
                    loss(&graph, &inputs)
                };
                (at(step) - at(-step)) / (2.0 * step)
            })
            .collect();
        crate::difference::compare(
            "BatchNormTraining",
            "difference",
            &expected,
            &found[operand],
            1e-6,
        );
    }
    let (graph, inputs, ids) = run(DType::F32, &data);
    let single = derivatives(&graph, &inputs, &ids);
    for (expected, found) in found.iter().zip(&single) {
        crate::difference::compare("BatchNormTraining", "f32", expected, found, 1e-4);
    }
}

#[test]
fn group_norms() {
    let epsilon = 1e-3;
    for shape in [&[2, 4, 5][..], &[3, 6, 2, 2]] {
        let c = &shape[1..2];
        check(
            Op::InstanceNorm { epsilon },
            &[noise(shape), noise(c), noise(c)],
        );
        for per_group in [false, true] {
            let units: &[usize] = if per_group { &[2] } else { c };
            let op = Op::GroupNorm {
                groups: 2,
                epsilon,
                per_group,
            };
            check(op, &[noise(shape), noise(units), noise(units)]);
        }
    }
}
