//! Element-wise operators and reductions.

use crate::difference::{Operand, between, check, distinct, frozen, index, noise};
use neap_ir::op::{Activation, Binary, Reduce, Unary};
use neap_ir::{DType, Literal, Op};

#[test]
fn functions_of_one_element() {
    // Away from kinks: 0 for most, their limits for others.
    let wide = [(-2.5, -0.1), (0.1, 2.5)];
    let smooth = [
        Unary::Abs,
        Unary::Neg,
        Unary::Exp,
        Unary::Sin,
        Unary::Cos,
        Unary::Atan,
        Unary::Sinh,
        Unary::Cosh,
        Unary::Asinh,
        Unary::Erf,
        Unary::Tanh,
        Unary::Softplus,
        Unary::Softsign,
        Unary::Mish,
        Unary::Reciprocal,
        Unary::Identity,
        Unary::Elu { alpha: 0.7 },
        Unary::Selu {
            alpha: 1.7,
            gamma: 1.1,
        },
        Unary::Celu { alpha: 0.7 },
        Unary::Activation(Activation::None),
        Unary::Activation(Activation::Relu),
        Unary::Activation(Activation::LeakyRelu { alpha: 0.1 }),
        Unary::Activation(Activation::Sigmoid),
        Unary::Activation(Activation::Silu),
        Unary::Activation(Activation::Gelu),
        Unary::Activation(Activation::GeluTanh),
        Unary::Activation(Activation::Tanh),
        Unary::Activation(Activation::HardSwish),
        Unary::Activation(Activation::HardSigmoid {
            alpha: 0.1,
            beta: 0.5,
        }),
        Unary::Activation(Activation::Clip {
            low: -3.0,
            high: 3.0,
        }),
    ];
    for unary in smooth {
        for (low, high) in wide {
            check(Op::Unary(unary), &[between(&[3, 5], low, high)]);
        }
    }
    let narrow = [
        (Unary::Sqrt, 0.2, 2.0),
        (Unary::Log, 0.2, 2.0),
        (Unary::Tan, -1.2, 1.2),
        (Unary::Asin, -0.9, 0.9),
        (Unary::Acos, -0.9, 0.9),
        (Unary::Acosh, 1.2, 3.0),
        (Unary::Atanh, -0.9, 0.9),
        (Unary::ThresholdedRelu { alpha: 0.5 }, 0.6, 2.0),
        (Unary::ThresholdedRelu { alpha: 0.5 }, -1.0, 0.4),
        (
            Unary::Shrink {
                lambda: 0.5,
                bias: 0.1,
            },
            0.6,
            2.0,
        ),
        (
            Unary::Shrink {
                lambda: 0.5,
                bias: 0.1,
            },
            -0.4,
            0.4,
        ),
        (Unary::Activation(Activation::HardSwish), 3.1, 5.0),
        (Unary::Activation(Activation::HardSwish), -5.0, -3.1),
        (
            Unary::Activation(Activation::HardSigmoid {
                alpha: 0.2,
                beta: 0.5,
            }),
            2.6,
            4.0,
        ),
        (
            Unary::Activation(Activation::Clip {
                low: -0.5,
                high: 0.25,
            }),
            0.3,
            1.0,
        ),
        (
            Unary::Activation(Activation::Clip {
                low: -0.5,
                high: 0.25,
            }),
            -0.4,
            0.2,
        ),
    ];
    for (unary, low, high) in narrow {
        check(Op::Unary(unary), &[between(&[17], low, high)]);
    }
}

#[test]
fn clip_and_cast() {
    for (low, high) in [
        (Some(-0.5), Some(0.5)),
        (None, Some(0.3)),
        (Some(0.1), None),
        (None, None),
    ] {
        check(Op::Clip { low, high }, &[distinct(&[4, 5])]);
    }
    // To f32 and back, differences would see the rounding: the graph's own type only.
    check(Op::Cast { to: DType::F64 }, &[noise(&[3])]);
}

#[test]
fn binary_operators_undo_broadcasts() {
    let shapes: [(&[usize], &[usize]); 6] = [
        (&[2, 3], &[2, 3]),
        (&[2, 3], &[3]),
        (&[3], &[4, 2, 3]),
        (&[2, 1, 3], &[4, 1]),
        (&[], &[2, 2]),
        (&[1, 1], &[]),
    ];
    for (a, b) in shapes {
        for binary in [Binary::Add, Binary::Sub, Binary::Mul] {
            check(Op::Binary(binary), &[noise(a), noise(b)]);
        }
        check(Op::Binary(Binary::Div), &[noise(a), between(b, 0.5, 2.0)]);
        let positive = between(a, 0.5, 2.0);
        check(Op::Binary(Binary::Pow), &[positive, between(b, -2.0, 2.0)]);
        check(Op::Binary(Binary::Mul), &[noise(a), frozen(b)]);
        check(Op::Binary(Binary::Mul), &[frozen(a), noise(b)]);
    }
    for binary in [Binary::Min, Binary::Max] {
        check(
            Op::Binary(binary),
            &[between(&[2, 3], 0.0, 1.0), between(&[3], -1.0, 2.0)],
        );
    }
    let slope = || between(&[3, 1], 0.1, 0.4);
    check(
        Op::Binary(Binary::PRelu),
        &[between(&[2, 3, 2], -2.0, -0.1), slope()],
    );
    check(
        Op::Binary(Binary::PRelu),
        &[between(&[2, 3, 2], 0.1, 2.0), slope()],
    );
}

#[test]
fn powers_of_zero_have_finite_derivatives() {
    let given = |v: &[f64]| Operand::Given(vec![v.len()], v.to_vec());
    check(
        Op::Binary(Binary::Pow),
        &[given(&[0.0, 0.0, -1.5]), Operand::Index(exponents())],
    );
}

fn exponents() -> Literal {
    // Integers: the base's own type is not needed.
    Literal::from_i64(&[3], &[2, 3, 3])
}

#[test]
fn a_condition_parts_derivatives() {
    let condition = Literal::from_bytes(DType::Bool, &[2, 1], &[1, 0]).expect("fits");
    let condition = || Operand::Index(condition.clone());
    check(Op::Where, &[condition(), noise(&[2, 3]), noise(&[3])]);
    check(Op::Where, &[condition(), noise(&[1]), frozen(&[2, 3])]);
}

#[test]
fn reductions() {
    let axes: [&[usize]; 4] = [&[0], &[1, 2], &[0, 1, 2], &[]];
    for axes in axes {
        for keep_dims in [false, true] {
            for kind in [
                Reduce::Sum,
                Reduce::Mean,
                Reduce::SumSquare,
                Reduce::LogSumExp,
            ] {
                let axes = axes.to_vec();
                check(
                    Op::Reduce {
                        kind,
                        axes,
                        keep_dims,
                    },
                    &[noise(&[2, 3, 4])],
                );
            }
            for kind in [Reduce::L1, Reduce::L2, Reduce::LogSum] {
                let axes = axes.to_vec();
                check(
                    Op::Reduce {
                        kind,
                        axes,
                        keep_dims,
                    },
                    &[between(&[2, 3, 4], 0.2, 1.0)],
                );
            }
            for kind in [Reduce::Max, Reduce::Min] {
                let axes = axes.to_vec();
                check(
                    Op::Reduce {
                        kind,
                        axes,
                        keep_dims,
                    },
                    &[distinct(&[2, 3, 4])],
                );
            }
        }
    }
}

#[test]
fn remainders() {
    for fmod in [false, true] {
        let op = Op::Binary(Binary::Mod { fmod });
        let a = between(&[2, 3, 4], -5.0, 5.0);
        check(op.clone(), &[a.clone(), between(&[3, 1], 0.6, 1.4)]);
        check(op, &[a, between(&[4], -1.4, -0.6)]);
    }
}

#[test]
fn products_of_elements() {
    for axes in [&[0][..], &[1], &[2], &[0, 2], &[0, 1, 2]] {
        for keep_dims in [false, true] {
            let op = Op::Reduce {
                kind: Reduce::Prod,
                axes: axes.to_vec(),
                keep_dims,
            };
            check(op, &[noise(&[2, 3, 4])]);
        }
    }
    // No zero, one, two: a product without one of them is not a quotient.
    let rows = vec![2.0, -0.5, 1.5, 2.0, 0.0, 1.5, 0.0, -0.5, 0.0];
    let op = Op::Reduce {
        kind: Reduce::Prod,
        axes: vec![1],
        keep_dims: false,
    };
    check(op, &[Operand::Given(vec![3, 3], rows)]);
}

#[test]
fn running_sums_run_back() {
    for axis in [0, 1] {
        for exclusive in [false, true] {
            for reverse in [false, true] {
                check(
                    Op::CumSum {
                        axis,
                        exclusive,
                        reverse,
                    },
                    &[noise(&[3, 4])],
                );
            }
        }
    }
}

#[test]
fn the_largest_elements() {
    let op = Op::TopK {
        axis: 1,
        k: 2,
        largest: true,
        sorted: true,
    };
    crate::difference::check_outputs(op, &[distinct(&[3, 5])], 2);
}

#[test]
fn elements_by_index_add_up() {
    check(
        Op::Gather { axis: 0 },
        &[noise(&[4, 3]), index(&[2, 3], &[0, 3, 0, -1, 2, 0])],
    );
    check(
        Op::Gather { axis: 1 },
        &[noise(&[2, 4, 3]), index(&[3], &[1, 1, -4])],
    );
    check(
        Op::Gather { axis: 2 },
        &[noise(&[2, 3, 4]), index(&[], &[2])],
    );
    let places = index(&[2, 2], &[0, 1, -1, 0]);
    check(Op::GatherElements { axis: 1 }, &[noise(&[2, 3]), places]);
    let places = index(&[3, 2], &[0, 1, 1, -1, 0, 1]);
    check(Op::GatherNd { batch_dims: 0 }, &[noise(&[2, 3, 2]), places]);
    let places = index(&[2, 3, 1], &[0, 2, -1, 1, 1, 0]);
    check(Op::GatherNd { batch_dims: 1 }, &[noise(&[2, 3, 2]), places]);
    let places = index(&[2, 2, 2], &[0, 1, 2, 0, 1, -1, 1, 1]);
    let op = Op::GatherNd { batch_dims: 1 };
    check(op, &[noise(&[2, 3, 2, 2]), places]);
    let places = index(&[2, 3, 1], &[0, 2, -1, 1, 1, 0]);
    let op = Op::GatherNd { batch_dims: 2 };
    check(op, &[noise(&[2, 3, 4, 2]), places]);
}

#[test]
fn updates_by_index() {
    use neap_ir::op::ScatterReduction;
    for reduction in [ScatterReduction::None, ScatterReduction::Add] {
        let places = index(&[2, 2], &[0, 2, 1, 0]);
        let op = Op::ScatterElements { axis: 1, reduction };
        check(op, &[noise(&[2, 3]), places, noise(&[2, 2])]);
        let places = index(&[2, 1], &[2, 0]);
        let op = Op::ScatterNd { reduction };
        check(op, &[noise(&[4, 3]), places, noise(&[2, 3])]);
    }
}
