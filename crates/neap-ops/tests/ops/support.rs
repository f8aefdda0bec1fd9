//! Short ways to make literals and run one operator.

use neap_ir::{DType, Literal, Op};
use neap_ops::{OpError, evaluate};

pub fn f32s(shape: &[usize], data: &[f32]) -> Literal {
    Literal::from_f32(shape, data)
}

pub fn i64s(shape: &[usize], data: &[i64]) -> Literal {
    Literal::from_i64(shape, data)
}

pub fn i32s(shape: &[usize], data: &[i32]) -> Literal {
    let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    Literal::from_bytes(DType::I32, shape, &bytes).expect("data fits the shape")
}

pub fn u8s(shape: &[usize], data: &[u8]) -> Literal {
    Literal::from_bytes(DType::U8, shape, data).expect("data fits the shape")
}

pub fn bools(shape: &[usize], data: &[bool]) -> Literal {
    let bytes: Vec<u8> = data.iter().map(|&b| u8::from(b)).collect();
    Literal::from_bytes(DType::Bool, shape, &bytes).expect("data fits the shape")
}

/// The only result of an operator.
pub fn one(op: &Op, inputs: &[&Literal]) -> Literal {
    try_one(op, inputs).unwrap_or_else(|e| panic!("{} failed: {e}", op.name()))
}

pub fn try_one(op: &Op, inputs: &[&Literal]) -> Result<Literal, OpError> {
    let inputs: Vec<Option<&Literal>> = inputs.iter().map(|&l| Some(l)).collect();
    evaluate(op, &inputs).map(|mut results| results.swap_remove(0))
}

/// Counts up from 0.
pub fn ramp(shape: &[usize]) -> Literal {
    let data: Vec<f32> = (0..shape.iter().product::<usize>())
        .map(|i| i as f32)
        .collect();
    Literal::from_f32(shape, &data)
}

/// Seeded values in -1..1 that have no pattern.
pub fn noise(shape: &[usize], seed: u64) -> Literal {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let data: Vec<f32> = (0..shape.iter().product::<usize>())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect();
    Literal::from_f32(shape, &data)
}

pub fn values(literal: &Literal) -> &[f32] {
    literal.as_f32().expect("f32")
}

pub fn ints(literal: &Literal) -> Vec<i64> {
    literal.to_i64_vec().expect("integers")
}

#[track_caller]
pub fn assert_close(found: &Literal, expected: &[f32], tolerance: f32) {
    let found = values(found);
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let near = if a.is_finite() && b.is_finite() {
            (a - b).abs() <= tolerance * b.abs().max(1.0)
        } else {
            a == b || (a.is_nan() && b.is_nan())
        };
        assert!(near, "element {i}: {a} where {b} is expected");
    }
}
