//! Attention whose weights are zeros where they would be NaN, against the operators it is made of.

use crate::support::*;
use neap_ir::op::{AttentionAttrs, Binary, HeadLayout, Op, Softmax, Unary};
use neap_ir::{DType, Literal};

const HEADS: usize = 2;
const QUERIES: usize = 6;
const KEYS: usize = 9;
const DEPTH: usize = 5;

/// `where(isnan(p), 0, p) v` with `p = softmax(0.5 q kT + mask)`, one operator after the other.
fn apart(q: &Literal, k_transposed: &Literal, v: &Literal, mask: &Literal) -> Literal {
    let scores = one(&Op::MatMul, &[q, k_transposed]);
    let scores = one(&Op::Binary(Binary::Mul), &[&scores, &f32s(&[], &[0.5])]);
    let scores = one(&Op::Binary(Binary::Add), &[&scores, mask]);
    let softmax = Op::Softmax {
        axis: 3,
        kind: Softmax::Softmax,
    };
    let p = one(&softmax, &[&scores]);
    let is_nan = one(&Op::Unary(Unary::IsNan), &[&p]);
    let p = one(&Op::Where, &[&is_nan, &f32s(&[], &[0.0]), &p]);
    one(&Op::MatMul, &[&p, v])
}

fn assert_same(fused: &Literal, apart: &Literal, what: &str) {
    for (at, (&a, &b)) in values(fused).iter().zip(values(apart)).enumerate() {
        let same = a.is_nan() && b.is_nan() || a == b || (a - b).abs() <= 1e-5;
        assert!(same, "{what}: element {at} is {a} instead of {b}");
    }
}

#[test]
fn guarded_attention_is_what_its_operators_are() {
    let attrs = |k| AttentionAttrs {
        heads: HEADS,
        kv_heads: HEADS,
        scale: 0.5,
        causal: false,
        nan_is_zero: true,
        q: HeadLayout::HeadMajor,
        k,
        v: HeadLayout::HeadMajor,
        out: HeadLayout::HeadMajor,
    };
    let perm = vec![0, 1, 3, 2];
    let places = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for case in 0..3 * places.len() + 1 {
        let mut of = [
            values(&noise(&[HEADS * QUERIES * DEPTH], 1)).to_vec(),
            values(&noise(&[HEADS * KEYS * DEPTH], 2)).to_vec(),
            values(&noise(&[HEADS * KEYS * DEPTH], 3)).to_vec(),
        ];
        if let Some(case) = case.checked_sub(1) {
            of[case / places.len()][3 * DEPTH + 1] = places[case % places.len()];
        }
        let q = f32s(&[1, HEADS, QUERIES, DEPTH], &of[0]);
        let k = f32s(&[1, HEADS, KEYS, DEPTH], &of[1]);
        let v = f32s(&[1, HEADS, KEYS, DEPTH], &of[2]);
        let k_transposed = one(&Op::Transpose { perm: perm.clone() }, &[&k]);
        // Whole rows, single keys, and nothing are hidden.
        let seen: Vec<bool> = (0..QUERIES * KEYS)
            .map(|i| i / KEYS != 2 && i / KEYS != QUERIES - 1 && i % 5 != 3)
            .collect();
        let added: Vec<f32> = seen
            .iter()
            .map(|&seen| if seen { 0.0 } else { f32::NEG_INFINITY })
            .collect();
        let mask = f32s(&[QUERIES, KEYS], &added);
        let seen = bools(&[QUERIES, KEYS], &seen);
        let expected = apart(&q, &k_transposed, &v, &mask);
        for (layout, k) in [
            (HeadLayout::HeadMajor, &k),
            (HeadLayout::HeadMajorTransposed, &k_transposed),
        ] {
            let op = Op::Attention(attrs(layout));
            assert_same(&one(&op, &[&q, k, &v, &mask]), &expected, "tiles");
            // Hidden by bytes, one query at a time: the same where what is hidden is a number.
            if case == 0 {
                assert_same(&one(&op, &[&q, k, &v, &seen]), &expected, "plain");
            }
        }
    }
}

#[test]
fn rows_of_doubles_are_zeros_too() {
    let attrs = AttentionAttrs {
        heads: 1,
        kv_heads: 1,
        scale: 1.0,
        causal: false,
        nan_is_zero: true,
        q: HeadLayout::HeadMajor,
        k: HeadLayout::HeadMajor,
        v: HeadLayout::HeadMajor,
        out: HeadLayout::HeadMajor,
    };
    let doubles = |shape: &[usize], x: &[f32]| {
        let to = Op::Cast { to: DType::F64 };
        one(&to, &[&f32s(shape, x)])
    };
    let q = doubles(&[1, 1, 2, 1], &[f32::NAN, 1.0]);
    let k = doubles(&[1, 1, 2, 1], &[0.0, 0.0]);
    let v = doubles(&[1, 1, 2, 2], &[1.0, f32::INFINITY, 3.0, 4.0]);
    let y = one(&Op::Attention(attrs), &[&q, &k, &v]);
    let y = one(&Op::Cast { to: DType::F32 }, &[&y]);
    assert!(
        matches!(values(&y), [a, b, c, d] if *a == 0.0 && b.is_nan() && *c == 2.0 && d.is_infinite())
    );
}
