//! Unary, binary, Where, Cast, Clip: IEEE and numpy semantics.

use crate::support::*;
use neap_ir::op::{Activation, Binary, Reduce, Unary};
use neap_ir::{DType, Literal, Op};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn unary(op: Unary, x: &[f32]) -> Vec<f32> {
    values(&one(&Op::Unary(op), &[&f32s(&[x.len()], x)])).to_vec()
}

fn binary(op: Binary, a: &[f32], b: &[f32]) -> Vec<f32> {
    let (a, b) = (f32s(&[a.len()], a), f32s(&[b.len()], b));
    values(&one(&Op::Binary(op), &[&a, &b])).to_vec()
}

#[test]
fn rounding_and_signs() {
    assert_eq!(
        unary(Unary::Round, &[0.5, 1.5, 2.5, -0.5, -1.5, 2.6]),
        [0.0, 2.0, 2.0, 0.0, -2.0, 3.0]
    );
    assert_eq!(unary(Unary::Sign, &[-3.0, 0.0, 7.0]), [-1.0, 0.0, 1.0]);
    assert!(unary(Unary::Sign, &[NAN])[0].is_nan());
    assert_eq!(unary(Unary::Reciprocal, &[0.0, -2.0]), [INF, -0.5]);
    assert_eq!(unary(Unary::Abs, &[-0.0, -INF]), [0.0, INF]);
    assert!(unary(Unary::Sqrt, &[-1.0])[0].is_nan());
}

#[test]
fn activations() {
    let x = [-3.0, -1.0, 0.0, 0.5, 4.0];
    let relu = unary(Unary::Activation(Activation::Relu), &x);
    assert_eq!(relu, [0.0, 0.0, 0.0, 0.5, 4.0]);
    type Case = (Unary, fn(f64) -> f64);
    let table: [Case; 5] = [
        (Unary::Activation(Activation::Sigmoid), |x| {
            1.0 / (1.0 + (-x).exp())
        }),
        (Unary::Softplus, |x| (1.0 + x.exp()).ln()),
        (Unary::Elu { alpha: 2.0 }, |x| {
            if x < 0.0 { 2.0 * (x.exp() - 1.0) } else { x }
        }),
        (Unary::Mish, |x| x * (1.0 + x.exp()).ln().tanh()),
        (Unary::Activation(Activation::HardSwish), |x| {
            x * (x / 6.0 + 0.5).clamp(0.0, 1.0)
        }),
    ];
    for (op, reference) in table {
        for (found, &x) in unary(op, &x).iter().zip(&x) {
            let expected = reference(f64::from(x)) as f32;
            assert!(
                (found - expected).abs() < 1e-5,
                "{op:?}({x}) = {found}, not {expected}"
            );
        }
    }
}

#[test]
fn extremes_propagate_nan() {
    for op in [Binary::Min, Binary::Max] {
        let y = binary(op, &[NAN, 1.0, 2.0], &[1.0, NAN, 3.0]);
        assert!(y[0].is_nan() && y[1].is_nan());
        assert_eq!(y[2], if op == Binary::Min { 2.0 } else { 3.0 });
    }
}

#[test]
fn modulo_takes_the_right_sign() {
    let (a, b) = ([-4.0, 7.0, 5.0, 4.0, -7.0], [2.0, -3.0, 8.0, -2.0, 3.0]);
    assert_eq!(
        binary(Binary::Mod { fmod: true }, &a, &b),
        [0.0, 1.0, 5.0, 0.0, -1.0]
    );
    let (a, b) = (i64s(&[4], &[-4, 7, 5, -7]), i64s(&[4], &[3, -3, 8, 3]));
    let floor = one(&Op::Binary(Binary::Mod { fmod: false }), &[&a, &b]);
    assert_eq!(ints(&floor), [2, -2, 5, 2]);
    let trunc = one(&Op::Binary(Binary::Mod { fmod: true }), &[&a, &b]);
    assert_eq!(ints(&trunc), [-1, 1, 5, -1]);
}

#[test]
fn integers_divide_truncating_and_never_by_zero() {
    let a = i32s(&[3], &[-7, 7, i32::MIN]);
    let y = one(&Op::Binary(Binary::Div), &[&a, &i32s(&[3], &[2, -2, -1])]);
    assert_eq!(ints(&y), [-3, -3, i64::from(i32::MIN)]);
    for op in [
        Binary::Div,
        Binary::Mod { fmod: false },
        Binary::Mod { fmod: true },
    ] {
        assert!(try_one(&Op::Binary(op), &[&a, &i32s(&[1], &[0])]).is_err());
    }
}

#[test]
fn broadcasts_in_every_direction() {
    let add = Op::Binary(Binary::Add);
    let y = one(
        &add,
        &[&ramp(&[2, 1, 3]), &f32s(&[4, 1], &[0.0, 10.0, 20.0, 30.0])],
    );
    assert_eq!(y.shape(), [2, 4, 3]);
    for i in 0..2 {
        for j in 0..4 {
            for k in 0..3 {
                let expected = (i * 3 + k) as f32 + 10.0 * j as f32;
                assert_eq!(values(&y)[(i * 4 + j) * 3 + k], expected);
            }
        }
    }
    assert!(try_one(&add, &[&ramp(&[2, 3]), &ramp(&[2, 4])]).is_err());
    assert_eq!(one(&add, &[&ramp(&[0, 3]), &ramp(&[3])]).elements(), 0);
}

#[test]
fn shifts_past_the_width_give_zero() {
    let (a, b) = (u8s(&[3], &[16, 4, 255]), u8s(&[3], &[1, 9, 7]));
    let left = one(&Op::Binary(Binary::ShiftLeft), &[&a, &b]);
    assert_eq!(ints(&left), [32, 0, 128]);
    let right = one(&Op::Binary(Binary::ShiftRight), &[&a, &b]);
    assert_eq!(ints(&right), [8, 0, 1]);
}

#[test]
fn powers_keep_the_base_type() {
    let pow = Op::Binary(Binary::Pow);
    let y = one(&pow, &[&i64s(&[3], &[2, -3, 5]), &i64s(&[3], &[10, 3, 0])]);
    assert_eq!(ints(&y), [1024, -27, 1]);
    let y = one(&pow, &[&i64s(&[2], &[4, 9]), &f32s(&[1], &[0.5])]);
    assert_eq!((y.dtype(), ints(&y)), (DType::I64, vec![2, 3]));
    assert_eq!(
        values(&one(&pow, &[&f32s(&[1], &[2.0]), &i64s(&[1], &[-1])])),
        [0.5]
    );
}

#[test]
fn casts_saturate_and_wrap() {
    let x = f32s(&[5], &[1.9, -1.9, NAN, 1e20, -1e20]);
    let y = one(&Op::Cast { to: DType::I32 }, &[&x]);
    assert_eq!(
        ints(&y),
        [1, -1, 0, i64::from(i32::MAX), i64::from(i32::MIN)]
    );
    let y = one(
        &Op::Cast { to: DType::Bool },
        &[&f32s(&[3], &[0.0, -0.5, NAN])],
    );
    assert_eq!(y.bytes(), [0, 1, 1]);
    let y = one(&Op::Cast { to: DType::U8 }, &[&i64s(&[2], &[-1, 300])]);
    assert_eq!(y.bytes(), [255, 44]);
    let half = one(
        &Op::Cast { to: DType::F16 },
        &[&f32s(&[2], &[1.0, 65520.0])],
    );
    let back = one(&Op::Cast { to: DType::F32 }, &[&half]);
    assert_eq!(values(&back), [1.0, INF]);
    let half = one(
        &Op::Cast { to: DType::BF16 },
        &[&f32s(&[1], &[1.0 + 1.0 / 256.0])],
    );
    assert_eq!(values(&one(&Op::Cast { to: DType::F32 }, &[&half])), [1.0]);
}

#[test]
fn bits_are_cast_as_they_are() {
    let x = f32s(&[2, 2], &[1.0, -2.5, NAN, -0.0]);
    for to in [DType::I32, DType::U32, DType::F32] {
        let y = one(&Op::BitCast { to }, &[&x]);
        assert_eq!((y.dtype(), y.shape()), (to, x.shape()));
        assert_eq!(y.bytes(), x.bytes());
        assert_eq!(
            one(&Op::BitCast { to: DType::F32 }, &[&y]).bytes(),
            x.bytes()
        );
    }
    let c = bools(&[2], &[true, false]);
    assert_eq!(one(&Op::BitCast { to: DType::U8 }, &[&c]).bytes(), [1, 0]);
    for to in [DType::I16, DType::F64, DType::Bool] {
        assert!(neap_ops::evaluate(&Op::BitCast { to }, &[Some(&x)]).is_err());
    }
    let bytes = one(&Op::BitCast { to: DType::U8 }, &[&c]);
    let back = Op::BitCast { to: DType::Bool };
    assert!(neap_ops::evaluate(&back, &[Some(&bytes)]).is_err());
}

#[test]
fn where_broadcasts_its_condition() {
    let c = bools(&[2, 1], &[true, false]);
    let y = one(
        &Op::Where,
        &[&c, &f32s(&[2], &[1.0, 2.0]), &f32s(&[1], &[9.0])],
    );
    assert_eq!(values(&y), [1.0, 2.0, 9.0, 9.0]);
}

#[test]
fn clip_orders_its_limits_as_numpy() {
    let clip = |low, high| Op::Clip { low, high };
    let x = f32s(&[4], &[-2.0, 0.5, 7.0, NAN]);
    let y = one(&clip(Some(0.0), Some(1.0)), &[&x]);
    assert_eq!(values(&y)[..3], [0.0, 0.5, 1.0]);
    assert!(values(&y)[3].is_nan());
    let y = one(&clip(Some(2.0), Some(1.0)), &[&f32s(&[1], &[0.0])]);
    assert_eq!(values(&y), [1.0]);
    let y = one(&clip(Some(-1e30), None), &[&i64s(&[1], &[i64::MIN])]);
    assert_eq!(ints(&y), [i64::MIN]);
}

#[test]
fn not_a_number_and_infinite() {
    let x = f32s(&[4], &[NAN, INF, -INF, 1.0]);
    assert_eq!(one(&Op::Unary(Unary::IsNan), &[&x]).bytes(), [1, 0, 0, 0]);
    let only_negative = Unary::IsInf {
        positive: false,
        negative: true,
    };
    assert_eq!(one(&Op::Unary(only_negative), &[&x]).bytes(), [0, 0, 1, 0]);
}

fn u64s(data: &[u64]) -> Literal {
    let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    Literal::from_bytes(DType::U64, &[data.len()], &bytes).expect("data fits the shape")
}

#[test]
fn unsigned_numbers_beyond_the_signed_ones_stay_positive() {
    let first = 1u64 << 63;
    let x = u64s(&[
        first - 1,
        first,
        first + 1,
        first + 1023,
        first + 1025,
        u64::MAX,
    ]);
    for to in [DType::F32, DType::F64, DType::BF16] {
        let y = one(&Op::Cast { to }, &[&x]);
        let y = one(&Op::Cast { to: DType::F32 }, &[&y]);
        let (low, high) = (9.2e18..9.3e18, 1.8e19..1.9e19);
        let [rest @ .., most] = values(&y) else {
            panic!("{y:?}");
        };
        assert!(
            rest.iter().all(|v| low.contains(v)) && high.contains(most),
            "{to}: {y:?}"
        );
    }
    for (kind, expected) in [
        (Reduce::Mean, first + 1),
        (Reduce::Max, first + 4),
        (Reduce::Min, first),
        (Reduce::L1, 6),
    ] {
        let op = Op::Reduce {
            kind,
            axes: vec![0],
            keep_dims: true,
        };
        // Sums wrap, but not those that a mean is taken of, which is cut off.
        let y = one(&op, &[&u64s(&[first, first + 2, first + 4, first])]);
        let y = u64::from_le_bytes(y.bytes().try_into().expect("one element"));
        assert_eq!(y, expected, "{kind:?}");
    }
}

#[test]
fn what_is_no_number_is_not_above_a_threshold_and_becomes_the_lowest_step() {
    let x = f32s(&[4], &[NAN, INF, -INF, 0.25]);
    let above = Unary::ThresholdedRelu { alpha: 0.5 };
    let doubles = one(&Op::Cast { to: DType::F64 }, &[&x]);
    for x in [&x, &doubles] {
        let y = one(&Op::Unary(above), &[x]);
        assert_eq!(
            values(&one(&Op::Cast { to: DType::F32 }, &[&y])),
            [0.0, INF, 0.0, 0.0]
        );
    }
    let (scale, zero) = (f32s(&[], &[0.5]), u8s(&[], &[20]));
    let to = DType::U8;
    let steps = one(&Op::Quantize { axis: 0, to }, &[&x, &scale, &zero]);
    assert_eq!(ints(&steps), [0, 255, 0, 20]);
    let apart = one(&Op::Dequantize { axis: 0 }, &[&steps, &scale, &zero]);
    let rounding = Activation::Requantize {
        scale: 0.5,
        zero: 20.0,
        low: 0.0,
        high: 255.0,
        nan: 0.0,
    };
    let fused = one(&Op::Unary(Unary::Activation(rounding)), &[&x]);
    assert_eq!(values(&fused), values(&apart));
    assert_eq!(values(&fused)[0], -10.0);
    // Behind a Relu, which leaves it what it is.
    let rectified = Activation::Requantize {
        scale: 0.5,
        zero: 20.0,
        low: 20.0,
        high: 255.0,
        nan: 0.0,
    };
    let fused = Op::Unary(Unary::Activation(rectified));
    for x in [&x, &doubles] {
        let y = one(&fused, &[x]);
        let y = one(&Op::Cast { to: DType::F32 }, &[&y]);
        assert_eq!(values(&y), [-10.0, 117.5, 0.0, 0.0]);
    }
}
