//! Reductions, arg-extremes, TopK, softmax, products, normalisations.

use crate::support::*;
use neap_ir::op::{Binary, Reduce, Softmax, Unary};
use neap_ir::{DType, Literal, Op};
use neap_ops::evaluate;
use proptest::prelude::*;

fn reduce(kind: Reduce, axes: &[usize]) -> Op {
    Op::Reduce {
        kind,
        axes: axes.to_vec(),
        keep_dims: false,
    }
}

proptest! {
    #[test]
    fn sums_over_any_axes(shape in prop::collection::vec(1usize..20, 1..5), mask: u8) {
        let axes: Vec<usize> = (0..shape.len()).filter(|a| mask >> a & 1 == 1).collect();
        let x = noise(&shape, 9);
        let y = one(&reduce(Reduce::Sum, &axes), &[&x]);
        let mut expected = vec![0f64; y.elements()];
        for (flat, &v) in values(&x).iter().enumerate() {
            let (mut rest, mut to, mut step) = (flat, 0, 1);
            for axis in (0..shape.len()).rev() {
                if !axes.contains(&axis) {
                    to += rest % shape[axis] * step;
                    step *= shape[axis];
                }
                rest /= shape[axis];
            }
            expected[to] += f64::from(v);
        }
        let expected: Vec<f32> = expected.iter().map(|&v| v as f32).collect();
        assert_close(&y, &expected, 1e-6);
    }

    #[test]
    fn top_k_sorts(data in prop::collection::vec(-5i64..5, 1..40), k in 0usize..40, largest: bool) {
        let k = k % (data.len() + 1);
        let op = Op::TopK { axis: 0, k, largest, sorted: true };
        let found = evaluate(&op, &[Some(&i64s(&[data.len()], &data))]).expect("runs");
        let mut order: Vec<usize> = (0..data.len()).collect();
        order.sort_by_key(|&i| (if largest { -data[i] } else { data[i] }, i));
        let expected: Vec<i64> = order[..k].iter().map(|&i| i as i64).collect();
        prop_assert_eq!(ints(&found[1]), expected);
        let expected: Vec<i64> = order[..k].iter().map(|&i| data[i]).collect();
        prop_assert_eq!(ints(&found[0]), expected);
    }
}

#[test]
fn kinds() {
    let x = f32s(&[1, 3], &[1.0, -2.0, 3.0]);
    let run = |kind| values(&one(&reduce(kind, &[1]), &[&x]))[0];
    assert_eq!(run(Reduce::Sum), 2.0);
    assert_eq!(run(Reduce::Mean), 2.0 / 3.0);
    assert_eq!(run(Reduce::Max), 3.0);
    assert_eq!(run(Reduce::Min), -2.0);
    assert_eq!(run(Reduce::Prod), -6.0);
    assert_eq!(run(Reduce::L1), 6.0);
    assert_eq!(run(Reduce::L2), 14f32.sqrt());
    assert_eq!(run(Reduce::SumSquare), 14.0);
    assert_eq!(run(Reduce::LogSum), 2f32.ln());
    let expected = (1f32.exp() + (-2f32).exp() + 3f32.exp()).ln();
    assert!((run(Reduce::LogSumExp) - expected).abs() < 1e-6);
}

#[test]
fn empty_sets_have_neutral_results() {
    let x = Literal::zeros(DType::F32, &[2, 0]);
    let run = |kind| values(&one(&reduce(kind, &[1]), &[&x]))[0];
    assert_eq!(run(Reduce::Sum), 0.0);
    assert_eq!(run(Reduce::Prod), 1.0);
    assert_eq!(run(Reduce::Max), f32::NEG_INFINITY);
    assert_eq!(run(Reduce::Min), f32::INFINITY);
    assert_eq!(run(Reduce::LogSumExp), f32::NEG_INFINITY);
    assert!(run(Reduce::Mean).is_nan());
    let x = Literal::zeros(DType::I32, &[0]);
    assert_eq!(
        ints(&one(&reduce(Reduce::Max, &[0]), &[&x])),
        [i64::from(i32::MIN)]
    );
}

#[test]
fn log_sum_exp_does_not_overflow() {
    let x = f32s(&[3], &[1000.0, 1000.0, f32::NEG_INFINITY]);
    let y = one(&reduce(Reduce::LogSumExp, &[0]), &[&x]);
    assert_close(&y, &[1000.0 + 2f32.ln()], 1e-6);
}

#[test]
fn extremes_see_nan_and_large_integers() {
    let x = f32s(
        &[20],
        &(0..20)
            .map(|i| if i == 7 { f32::NAN } else { i as f32 })
            .collect::<Vec<_>>(),
    );
    assert!(values(&one(&reduce(Reduce::Max, &[0]), &[&x]))[0].is_nan());
    let big = [u64::MAX, 1, u64::MAX / 2 + 1];
    let bytes: Vec<u8> = big.iter().flat_map(|x| x.to_le_bytes()).collect();
    let x = Literal::from_bytes(DType::U64, &[3], &bytes).expect("fits");
    assert_eq!(
        one(&reduce(Reduce::Max, &[0]), &[&x]).bytes(),
        u64::MAX.to_le_bytes()
    );
    assert_eq!(
        one(&reduce(Reduce::Min, &[0]), &[&x]).bytes(),
        1u64.to_le_bytes()
    );
}

#[test]
fn arg_extremes_break_ties() {
    let x = f32s(&[2, 4], &[1.0, 3.0, 3.0, 0.0, -1.0, -1.0, 5.0, 5.0]);
    let run = |largest, select_last| {
        let op = Op::ArgReduce {
            largest,
            axis: 1,
            keep_dims: true,
            select_last,
        };
        ints(&one(&op, &[&x]))
    };
    assert_eq!(run(true, false), [1, 2]);
    assert_eq!(run(true, true), [2, 3]);
    assert_eq!(run(false, false), [3, 0]);
    assert_eq!(run(false, true), [3, 1]);
}

#[test]
fn softmax_over_any_axis() {
    let x = noise(&[3, 5, 4], 2);
    for axis in 0..3 {
        let y = one(
            &Op::Softmax {
                axis,
                kind: Softmax::Softmax,
            },
            &[&x],
        );
        let sums = one(&reduce(Reduce::Sum, &[axis]), &[&y]);
        assert_close(&sums, &vec![1.0; sums.elements()], 1e-6);
        let log = one(
            &Op::Softmax {
                axis,
                kind: Softmax::LogSoftmax,
            },
            &[&x],
        );
        let expected: Vec<f32> = values(&y).iter().map(|v| v.ln()).collect();
        assert_close(&log, &expected, 1e-5);
    }
    let huge = f32s(&[2], &[1e30, f32::NEG_INFINITY]);
    let y = one(
        &Op::Softmax {
            axis: 0,
            kind: Softmax::Softmax,
        },
        &[&huge],
    );
    assert_eq!(values(&y), [1.0, 0.0]);
    let x = f32s(&[4], &[1.0, 3.0, 3.0, 2.0]);
    let y = one(
        &Op::Softmax {
            axis: 0,
            kind: Softmax::Hardmax,
        },
        &[&x],
    );
    assert_eq!(values(&y), [0.0, 1.0, 0.0, 0.0]);
}

/// The operators that ONNX's definition of DynamicQuantizeLinear names, one after the other.
fn covering_steps_spelled_out(x: &Literal) -> [Literal; 2] {
    let axes: Vec<usize> = (0..x.shape().len()).collect();
    let scalar = |x: f32| Literal::from_f32(&[], &[x]);
    let binary = |op: Binary, a: &Literal, b: &Literal| one(&Op::Binary(op), &[a, b]);
    let low = one(&reduce(Reduce::Min, &axes), &[x]);
    let low = binary(Binary::Min, &low, &scalar(0.0));
    let high = one(&reduce(Reduce::Max, &axes), &[x]);
    let high = binary(Binary::Max, &high, &scalar(0.0));
    let scale = binary(
        Binary::Div,
        &binary(Binary::Sub, &high, &low),
        &scalar(255.0),
    );
    // Of zeros alone it is 1.
    let scale = match values(&scale) {
        [0.0] => scalar(1.0),
        _ => scale,
    };
    let offset = binary(
        Binary::Sub,
        &scalar(0.0),
        &binary(Binary::Div, &low, &scale),
    );
    let clip = Op::Clip {
        low: Some(0.0),
        high: Some(255.0),
    };
    let offset = one(&Op::Unary(Unary::Round), &[&one(&clip, &[&offset])]);
    let zero = one(&Op::Cast { to: DType::U8 }, &[&offset]);
    [scale, zero]
}

#[test]
fn covering_steps_are_those_of_the_definition() {
    let mut cases: Vec<Literal> = (1..40).map(|seed| noise(&[3, 7, 9], seed)).collect();
    cases.push(noise(&[64, 1111], 40));
    let specials = [
        vec![0.0; 5],
        vec![-0.0, 0.0],
        vec![3.5, 1.25],
        vec![-3.5, -1e-30],
        vec![f32::INFINITY, 1.0],
        vec![f32::NEG_INFINITY, 1.0],
        vec![f32::NAN, 1.0, -2.0],
        vec![1e-45, -1e-45],
        vec![f32::MAX, f32::MIN],
    ];
    cases.extend(specials.map(|x| Literal::from_f32(&[x.len()], &x)));
    for x in cases {
        let found = evaluate(&Op::CoveringSteps, &[Some(&x)]).expect("runs");
        let wanted = covering_steps_spelled_out(&x);
        for (found, wanted) in found.iter().zip(&wanted) {
            let nan = |l: &Literal| l.as_f32().is_some_and(|x| x[0].is_nan());
            let same = found.bytes() == wanted.bytes() || nan(found) && nan(wanted);
            assert!(same, "{found:?} instead of {wanted:?} for {:?}", x.as_f32());
        }
        assert_eq!(found.len(), 2);
    }
}
