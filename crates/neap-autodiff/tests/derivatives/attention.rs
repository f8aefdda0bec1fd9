//! Attention as one operator.

use crate::difference::{
    Operand, check, check_f32, derivatives, frozen, literal, noise, one, push,
};
use crate::difference::{Random, compare, weighted_sum};
use neap_ir::op::{AttentionAttrs, Binary, HeadLayout, Softmax};
use neap_ir::{DType, Graph, Literal, Op, TensorType};

fn attrs(heads: usize, kv_heads: usize, causal: bool, layout: HeadLayout) -> AttentionAttrs {
    AttentionAttrs {
        heads,
        kv_heads,
        scale: 0.6,
        causal,
        nan_is_zero: false,
        q: layout,
        k: layout,
        v: layout,
        out: layout,
    }
}

/// Which keys a query sees; each sees its first at least.
fn mask(shape: &[usize]) -> Operand {
    let keys = shape[shape.len() - 1];
    let bytes: Vec<u8> = (0..shape.iter().product())
        .map(|i: usize| u8::from(i.is_multiple_of(keys) || i % 3 != 1))
        .collect();
    Operand::Index(Literal::from_bytes(DType::Bool, shape, &bytes).expect("data fits the shape"))
}

#[test]
fn heads_of_any_number_and_layout() {
    // heads, heads of keys, queries, keys, depth, depth of values
    for [h, kv, queries, keys, d, dv] in [
        [1, 1, 3, 4, 3, 2],
        [2, 2, 4, 4, 2, 2],
        [4, 2, 3, 5, 2, 3],
        [3, 1, 5, 2, 9, 17],
    ] {
        for causal in [false, true] {
            let op = Op::Attention(attrs(h, kv, causal, HeadLayout::HeadMajor));
            let q = noise(&[2, h, queries, d]);
            let (k, v) = (noise(&[2, kv, keys, d]), noise(&[2, kv, keys, dv]));
            check(op, &[q, k, v]);
            let op = Op::Attention(attrs(h, kv, causal, HeadLayout::RowMajor));
            let q = noise(&[2, queries, h * d]);
            let (k, v) = (noise(&[2, keys, kv * d]), noise(&[2, keys, kv * dv]));
            check(op, &[q, k, v]);
        }
    }
    // Keys that are transposed already, and a result in rows.
    let op = AttentionAttrs {
        k: HeadLayout::HeadMajorTransposed,
        out: HeadLayout::RowMajor,
        ..attrs(2, 2, true, HeadLayout::HeadMajor)
    };
    let operands = [
        noise(&[2, 2, 4, 3]),
        noise(&[2, 2, 3, 5]),
        noise(&[2, 2, 5, 4]),
    ];
    check(Op::Attention(op), &operands);
}

#[test]
fn masks() {
    let [b, h, kv, queries, keys, d] = [2, 4, 2, 3, 5, 2];
    let operands = [
        noise(&[b, h, queries, d]),
        noise(&[b, kv, keys, d]),
        noise(&[b, kv, keys, d]),
    ];
    for causal in [false, true] {
        for shape in [
            &[b, h, queries, keys][..],
            &[b, 1, 1, keys],
            &[h, queries, keys],
            &[queries, 1],
            &[queries, keys],
        ] {
            let op = Op::Attention(attrs(h, kv, causal, HeadLayout::HeadMajor));
            let with = |mask: Operand| [&operands[..], &[mask]].concat();
            check(op.clone(), &with(noise(shape)));
            check(op.clone(), &with(frozen(shape)));
            check(op, &with(mask(shape)));
        }
    }
    // Each operand alone.
    let op = Op::Attention(attrs(h, kv, true, HeadLayout::HeadMajor));
    let still = [
        frozen(&[b, h, queries, d]),
        frozen(&[b, kv, keys, d]),
        frozen(&[b, kv, keys, d]),
        frozen(&[queries, keys]),
    ];
    for asked in 0..4 {
        let mut given = still.to_vec();
        given[asked] = match &operands.get(asked) {
            Some(operand) => (*operand).clone(),
            None => noise(&[queries, keys]),
        };
        check(op.clone(), &given);
    }
}

/// Queries, keys and values in one row are one operand three times: its derivative is the sum of three.
#[test]
fn packed_rows_like_the_formula_in_single_operators() {
    let [batch, rows, heads, depth] = [2, 4, 3, 2];
    let width = 3 * heads * depth;
    let shape = [batch, rows, width];
    let data = Random(11).between(-1.0, 1.0, shape.iter().product());
    let input = [literal(DType::F64, &shape, &data)];
    let begin = || {
        let mut graph = Graph::default();
        let x = graph.add_value("x", TensorType::new(DType::F64, &shape));
        graph.inputs = vec![x];
        (graph, x)
    };
    let end = |mut graph: Graph, y, x| {
        graph.outputs = vec![weighted_sum(&mut graph, y, 5)];
        derivatives(&graph, &input, &[x]).remove(0)
    };

    let (mut graph, x) = begin();
    let packed = |which: usize| HeadLayout::Packed {
        row: width,
        offset: which * heads * depth,
    };
    let op = AttentionAttrs {
        k: packed(1),
        v: packed(2),
        out: HeadLayout::RowMajor,
        ..attrs(heads, heads, false, packed(0))
    };
    let y = one(&mut graph, Op::Attention(op), &[x, x, x]);
    let found = end(graph, y, x);

    let (mut graph, x) = begin();
    let parts = Op::Split {
        axis: 2,
        sizes: vec![heads * depth; 3],
    };
    let parts = push(&mut graph, parts, &[Some(x)], 3);
    let head_major = |graph: &mut Graph, x, perm: [usize; 4]| {
        let shape = vec![batch, rows, heads, depth];
        let x = one(graph, Op::Reshape { shape }, &[x]);
        let perm = perm.to_vec();
        one(graph, Op::Transpose { perm }, &[x])
    };
    let q = head_major(&mut graph, parts[0], [0, 2, 1, 3]);
    let k = head_major(&mut graph, parts[1], [0, 2, 3, 1]);
    let v = head_major(&mut graph, parts[2], [0, 2, 1, 3]);
    let scores = one(&mut graph, Op::MatMul, &[q, k]);
    let scale = literal(DType::F64, &[], &[f64::from(0.6f32)]);
    let scale = graph.add_literal("scale", scale);
    let scores = one(&mut graph, Op::Binary(Binary::Mul), &[scores, scale]);
    let softmax = Op::Softmax {
        axis: 3,
        kind: Softmax::Softmax,
    };
    let weights = one(&mut graph, softmax, &[scores]);
    let y = one(&mut graph, Op::MatMul, &[weights, v]);
    let perm = vec![0, 2, 1, 3];
    let y = one(&mut graph, Op::Transpose { perm }, &[y]);
    let expected = end(graph, y, x);
    compare("Attention", "packed", &expected, &found, 1e-12);
}

#[test]
fn long_sequences() {
    let layout = HeadLayout::RowMajor;
    for causal in [false, true] {
        let op = Op::Attention(attrs(4, 2, causal, layout));
        let operands = [
            noise(&[2, 70, 4 * 24]),
            noise(&[2, 70, 2 * 24]),
            noise(&[2, 70, 2 * 24]),
        ];
        check_f32(op, &operands, 1);
    }
}
