//! Operators on elements one by one.

use super::{Case, check};
use neap_ir::op::{Activation, Binary, Unary};
use neap_ir::{DType, Float8, Op};

#[test]
fn functions_of_one_element() {
    const FUNCTIONS: [Unary; 14] = [
        Unary::Abs,
        Unary::Neg,
        Unary::Round,
        Unary::Sign,
        Unary::Exp,
        Unary::Erf,
        Unary::Softplus,
        Unary::Mish,
        Unary::Elu { alpha: 1.0 },
        Unary::ThresholdedRelu { alpha: 1.0 },
        Unary::Activation(Activation::Relu),
        Unary::Activation(Activation::Gelu),
        Unary::IsNan,
        Unary::Identity,
    ];
    check("unary", 200, |d| {
        let rank = d.below(4);
        let (shape, dtype) = (d.shape(rank), d.pick(&[DType::F32, DType::F64, DType::F16]));
        Case::of(Op::Unary(d.pick(&FUNCTIONS)), vec![d.tensor(dtype, &shape)])
    });
    check("clip", 50, |d| {
        let (shape, dtype) = (d.shape(2), d.pick(&[DType::F32, DType::I32]));
        let op = Op::Clip {
            low: Some(-1.0),
            high: Some(1.0),
        };
        Case::of(op, vec![d.tensor(dtype, &shape)])
    });
    check("cast", 100, |d| {
        let types = [
            DType::F32,
            DType::F16,
            DType::I8,
            DType::I64,
            DType::U8,
            DType::Bool,
        ];
        let (shape, from) = (d.shape(2), d.pick(&types));
        Case::of(
            Op::Cast { to: d.pick(&types) },
            vec![d.tensor(from, &shape)],
        )
    });
    check("bit cast", 30, |d| {
        let shape = d.shape(2);
        Case::of(Op::BitCast { to: DType::I32 }, vec![d.floats(&shape)])
    });
}

/// Shapes that broadcast.
fn two_shapes(d: &mut super::Draw) -> [Vec<usize>; 2] {
    let whole = d.shape(3);
    let part = |d: &mut super::Draw| {
        let from = d.below(3);
        let sizes = whole[from..].iter();
        sizes
            .map(|&size| if d.below(3) == 0 { 1 } else { size })
            .collect()
    };
    [part(d), part(d)]
}

#[test]
fn functions_of_several_elements() {
    const FUNCTIONS: [Binary; 9] = [
        Binary::Add,
        Binary::Mul,
        Binary::Div,
        Binary::Pow,
        Binary::Mod { fmod: true },
        Binary::Min,
        Binary::Less,
        Binary::Equal,
        Binary::PRelu,
    ];
    check("binary", 300, |d| {
        let [a, b] = two_shapes(d);
        let dtype = d.pick(&[DType::F32, DType::F32, DType::F16, DType::I64]);
        Case::of(
            Op::Binary(d.pick(&FUNCTIONS)),
            vec![d.tensor(dtype, &a), d.tensor(dtype, &b)],
        )
    });
    check("where", 100, |d| {
        let ([a, b], [c, _]) = (two_shapes(d), two_shapes(d));
        let c = if d.flag() { a.clone() } else { c };
        Case::of(
            Op::Where,
            vec![d.tensor(DType::Bool, &c), d.floats(&a), d.floats(&b)],
        )
    });
}

#[test]
fn steps_and_numbers() {
    check("quantize", 100, |d| {
        let (shape, axis) = (d.shape(3), d.below(3));
        let to = d.pick(&[DType::I8, DType::U8, DType::I16]);
        let parameters = if d.flag() { vec![] } else { vec![shape[axis]] };
        let inputs = vec![
            d.floats(&shape),
            d.floats(&parameters),
            d.tensor(to, &parameters),
        ];
        Case::of(Op::Quantize { axis, to }, inputs)
    });
    check("dequantize", 100, |d| {
        let (shape, axis) = (d.shape(3), d.below(3));
        let from = d.pick(&[DType::I8, DType::U8, DType::I32]);
        let parameters = if d.flag() { vec![] } else { vec![shape[axis]] };
        let inputs = vec![
            d.tensor(from, &shape),
            d.floats(&parameters),
            d.tensor(from, &parameters),
        ];
        Case::of(Op::Dequantize { axis }, inputs)
    });
    check("dequantize in blocks", 100, |d| {
        let (shape, axis) = (d.shape(3), d.below(3));
        let mut blocks = shape.clone();
        blocks[axis] = blocks[axis].div_ceil(4);
        let op = Op::DequantizeBlocks {
            axis,
            block: 4,
            rounds_other: false,
        };
        Case::of(
            op,
            vec![
                d.tensor(DType::I8, &shape),
                d.floats(&blocks),
                d.tensor(DType::I8, &blocks),
            ],
        )
    });
    check("nibbles", 50, |d| {
        let shape = d.shape(2);
        let bytes = shape.iter().product::<usize>().div_ceil(2);
        let op = Op::Nibbles {
            shape,
            signed: d.flag(),
        };
        Case::of(op, vec![d.tensor(DType::U8, &[bytes])])
    });
    check("numbers of 8 bits", 50, |d| {
        let shape = d.shape(2);
        match d.flag() {
            true => Case::of(
                Op::Float8s {
                    kind: Float8::E4M3Fn,
                },
                vec![d.tensor(DType::U8, &shape)],
            ),
            false => {
                let op = Op::RoundToFloat8 {
                    kind: Float8::E5M2,
                    saturate: true,
                };
                Case::of(op, vec![d.floats(&shape)])
            }
        }
    });
    check("covering steps", 50, |d| {
        let rank = d.below(4);
        let shape = d.shape(rank);
        Case::of(Op::CoveringSteps, vec![d.floats(&shape)])
            .giving(2)
            .of_nothing(1.0)
    });
}
