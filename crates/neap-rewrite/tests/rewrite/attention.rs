//! Attention as exporters write it.

use crate::build::Net;
use crate::lower::steps;
use neap_ir::op::{Binary, HeadLayout, Op, Softmax, Unary};
use neap_ir::{DType, Literal, ValueId};
use neap_rewrite::Lowered;

const B: usize = 2;
const S: usize = 5;
const H: usize = 3;
const D: usize = 8;

fn attention(lowered: &Lowered) -> Option<neap_ir::op::AttentionAttrs> {
    let nodes = &lowered.program.graph.nodes;
    nodes.iter().find_map(|n| match &n.op {
        Op::Attention(attrs) => Some(attrs.clone()),
        _ => None,
    })
}

fn softmax(net: &mut Net, scores: ValueId) -> ValueId {
    let op = Op::Softmax {
        axis: 3,
        kind: Softmax::Softmax,
    };
    net.op(op, &[scores])
}

fn lower_triangle(net: &mut Net, side: usize, causal: bool) -> ValueId {
    let mut literal = Literal::zeros(DType::Bool, &[1, 1, side, side]);
    for (i, keep) in literal.bytes_mut().iter_mut().enumerate() {
        *keep = u8::from(i % side <= i / side || !causal && i == 1);
    }
    net.graph.add_literal("triangle", literal)
}

/// `[B,S,3*H*D]` to q, k, v `[B,H,S,D]` as vision transformers do.
fn gathered(net: &mut Net, whole: ValueId) -> [ValueId; 3] {
    let five = net.reshape(whole, &[B, S, 3, H, D]);
    let moved = net.transpose(five, &[2, 0, 3, 1, 4]);
    [0, 1, -1].map(|which| {
        let index = net.integers(&[], &[which]);
        net.op(Op::Gather { axis: 0 }, &[moved, index])
    })
}

#[test]
fn vision_transformer() {
    let mut net = Net::new();
    let whole = net.input(&[B, S, 3 * H * D]);
    let [q, k, v] = gathered(&mut net, whole);
    let kt = net.transpose(k, &[0, 1, 3, 2]);
    let scores = net.op(Op::MatMul, &[q, kt]);
    let scale = net.scalar(0.35);
    let scores = net.mul(scores, scale);
    let p = softmax(&mut net, scores);
    let y = net.op(Op::MatMul, &[p, v]);
    let y = net.transpose(y, &[0, 2, 1, 3]);
    let y = net.reshape(y, &[B, S, H * D]);
    net.output(y);
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["Attention"]);
    let attrs = attention(&lowered).expect("fused");
    let packed = |part: usize| HeadLayout::Packed {
        row: 3 * H * D,
        offset: part * H * D,
    };
    assert_eq!(
        [attrs.q, attrs.k, attrs.v],
        [packed(0), packed(1), packed(2)]
    );
    assert_eq!(attrs.out, HeadLayout::RowMajor);
    assert!(!attrs.causal && (attrs.scale - 0.35).abs() < 1e-6);
}

/// As exporters of half floats write it: softmax in f32, its result rounded for the product.
#[test]
fn a_softmax_that_is_rounded_for_the_product_is_fused_all_the_same() {
    for (half, reads) in [(DType::F16, 1), (DType::BF16, 1), (DType::F16, 2)] {
        let mut net = Net::new();
        let whole = net.input(&[B, S, 3 * H * D]);
        let [q, k, v] = gathered(&mut net, whole);
        let kt = net.transpose(k, &[0, 1, 3, 2]);
        let scores = net.op(Op::MatMul, &[q, kt]);
        let p = softmax(&mut net, scores);
        let rounded = net.op(Op::Cast { to: half }, &[p]);
        let wide = net.op(Op::Cast { to: DType::F32 }, &[rounded]);
        let y = net.op(Op::MatMul, &[wide, v]);
        net.output(y);
        if reads == 2 {
            net.output(rounded);
        }
        let fused = attention(&net.lower()).is_some();
        assert_eq!(fused, reads == 1, "{half:?}, read {reads} times");
    }
}

/// GPT-2: one projection split in three, heads split off, a triangle chosen by `Where`.
fn decoder(net: &mut Net, fill: f32, causal: bool) {
    let whole = net.input(&[B, S, 3 * H * D]);
    let parts = net.split(2, &[H * D; 3], whole);
    let heads: Vec<ValueId> = parts
        .iter()
        .map(|&part| net.reshape(part, &[B, S, H, D]))
        .collect();
    let q = net.transpose(heads[0], &[0, 2, 1, 3]);
    let kt = net.transpose(heads[1], &[0, 2, 3, 1]);
    let v = net.transpose(heads[2], &[0, 2, 1, 3]);
    let scores = net.op(Op::MatMul, &[q, kt]);
    let root = net.scalar((D as f32).sqrt());
    let scores = net.binary(Binary::Div, scores, root);
    let keep = lower_triangle(net, S, causal);
    let fill = net.scalar(fill);
    let scores = net.op(Op::Where, &[keep, scores, fill]);
    let p = softmax(net, scores);
    let y = net.op(Op::MatMul, &[p, v]);
    let y = net.transpose(y, &[0, 2, 1, 3]);
    let y = net.reshape(y, &[B, S, H * D]);
    net.output(y);
}

#[test]
fn decoder_with_a_causal_mask() {
    let mut net = Net::new();
    decoder(&mut net, f32::MIN, true);
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["Attention"]);
    let attrs = attention(&lowered).expect("fused");
    assert!(attrs.causal);
    let offset = |layout| match layout {
        HeadLayout::Packed { offset, .. } => offset / (H * D),
        other => panic!("{other:?}"),
    };
    assert_eq!([attrs.q, attrs.k, attrs.v].map(offset), [0, 1, 2]);
}

#[test]
fn other_masks_and_weak_fills_are_not_causal() {
    for (fill, causal) in [(f32::MIN, false), (-1.0, true)] {
        let mut net = Net::new();
        decoder(&mut net, fill, causal);
        let lowered = net.lower();
        assert!(attention(&lowered).is_none());
        assert!(steps(&lowered).contains(&"Where"));
    }
}

/// BERT: the mask is computed from an input and added.
#[test]
fn encoder_with_an_additive_mask() {
    let mut net = Net::new();
    let rows = [0, 1, 2].map(|_| net.input(&[B, S, H * D]));
    let mask = net.input(&[B, 1, 1, S]);
    let one = net.scalar(1.0);
    let off = net.binary(Binary::Sub, one, mask);
    let much = net.scalar(-1e4);
    let mask = net.mul(off, much);
    let [q, k, v] = rows.map(|x| net.reshape(x, &[B, S, H, D]));
    let q = net.transpose(q, &[0, 2, 1, 3]);
    let kt = net.transpose(k, &[0, 2, 3, 1]);
    let v = net.transpose(v, &[0, 2, 1, 3]);
    let scores = net.op(Op::MatMul, &[q, kt]);
    let root = net.scalar((D as f32).sqrt());
    let scores = net.binary(Binary::Div, scores, root);
    let scores = net.add(scores, mask);
    let p = softmax(&mut net, scores);
    let y = net.op(Op::MatMul, &[p, v]);
    let y = net.transpose(y, &[0, 2, 1, 3]);
    let y = net.reshape(y, &[B, S, H * D]);
    net.output(y);
    let lowered = net.lower();
    let attrs = attention(&lowered).expect("fused");
    assert_eq!([attrs.q, attrs.k, attrs.v], [HeadLayout::RowMajor; 3]);
    assert!(!attrs.causal);
    assert_eq!(steps(&lowered).last(), Some(&"Attention"));
    let nodes = &lowered.program.graph.nodes;
    let fused = nodes.iter().find(|n| matches!(n.op, Op::Attention(_)));
    assert_eq!(fused.expect("found").inputs.len(), 4);
}

#[test]
fn keys_and_queries_scaled_apart() {
    let mut net = Net::new();
    let q = net.input(&[B, H, S, D]);
    let k = net.input(&[B, H, D, S]);
    let v = net.input(&[B, H, S, D]);
    let scale = net.scalar(0.6);
    let q = net.mul(q, scale);
    let k = net.mul(scale, k);
    let scores = net.op(Op::MatMul, &[q, k]);
    let p = softmax(&mut net, scores);
    let y = net.op(Op::MatMul, &[p, v]);
    net.output(y);
    let lowered = net.lower();
    let attrs = attention(&lowered).expect("fused");
    assert!((attrs.scale - 0.36).abs() < 1e-6);
    assert_eq!(attrs.k, HeadLayout::HeadMajorTransposed);
    assert_eq!(attrs.out, HeadLayout::HeadMajor);
}

/// What looks like attention but is not: another axis, probabilities that are read again, and so on.
#[test]
fn lookalikes_are_left_alone() {
    for variant in 0..3 {
        let mut net = Net::new();
        let q = net.input(&[B, H, S, D]);
        let k = net.input(&[B, H, D, S]);
        let v = net.input(&[B, H, S, D]);
        let scores = net.op(Op::MatMul, &[q, k]);
        let axis = if variant == 0 { 2 } else { 3 };
        let kind = if variant == 1 {
            Softmax::LogSoftmax
        } else {
            Softmax::Softmax
        };
        let p = net.op(Op::Softmax { axis, kind }, &[scores]);
        let y = net.op(Op::MatMul, &[p, v]);
        net.output(y);
        if variant == 2 {
            net.output(p);
        }
        assert!(attention(&net.lower()).is_none(), "variant {variant}");
    }
}

/// Keys transposed as a list of matrices, and zeros where a query sees no key, as newer exporters write both.
fn guarded(variant: usize) -> Net {
    let mut net = Net::new();
    let rows = [0, 1, 2].map(|_| net.input(&[B, S, H * D]));
    let mask = net.input(&[B, 1, S, S]);
    let [q, k, v] = rows.map(|x| net.reshape(x, &[B, S, H, D]));
    let [q, k, v] = [q, k, v].map(|x| net.transpose(x, &[0, 2, 1, 3]));
    let list = net.reshape(k, &[B * H, S, D]);
    let turned = net.transpose(list, &[0, 2, 1]);
    let kt = net.reshape(turned, &[B, H, D, S]);
    let root = net.scalar(0.6);
    let (q, kt) = (net.mul(q, root), net.mul(kt, root));
    let scores = net.op(Op::MatMul, &[q, kt]);
    let scores = net.add(scores, mask);
    let p = softmax(&mut net, scores);
    let is_nan = net.unary(Unary::IsNan, p);
    let zero = net.scalar(if variant == 1 { 0.5 } else { 0.0 });
    let kept = match variant {
        2 => net.op(Op::Where, &[is_nan, p, zero]),
        _ => net.op(Op::Where, &[is_nan, zero, p]),
    };
    let y = net.op(Op::MatMul, &[kept, v]);
    let y = net.transpose(y, &[0, 2, 1, 3]);
    let y = net.reshape(y, &[B, S, H * D]);
    net.output(y);
    match variant {
        3 => net.output(p),
        4 => net.output(kept),
        5 => net.output(is_nan),
        _ => {}
    }
    net
}

#[test]
fn a_guard_against_nan_becomes_a_part_of_it() {
    let lowered = guarded(0).lower();
    // Inputs of the graph are reshaped; nothing is transposed.
    let computes = |name: &&&str| **name != "Reshape";
    let steps = steps(&lowered);
    assert_eq!(
        steps.iter().filter(computes).collect::<Vec<_>>(),
        [&"Attention"]
    );
    let attrs = attention(&lowered).expect("fused");
    assert!(attrs.nan_is_zero && (attrs.scale - 0.36).abs() < 1e-6);
    let layouts = [attrs.q, attrs.k, attrs.v, attrs.out];
    assert_eq!(layouts, [HeadLayout::RowMajor; 4]);
    for variant in 1..6 {
        let lowered = guarded(variant).lower();
        assert!(attention(&lowered).is_none(), "variant {variant}");
    }
}

/// A mask that enlarges the scores' shape must not be taken for one that only masks.
#[test]
fn a_mask_of_a_larger_batch_is_not_absorbed() {
    let mut net = Net::new();
    let q = net.input(&[1, H, S, D]);
    let k = net.input(&[1, H, D, S]);
    let v = net.input(&[1, H, S, D]);
    let mask = net.input(&[B, 1, S, S]);
    let scores = net.op(Op::MatMul, &[q, k]);
    let scores = net.add(scores, mask);
    let p = softmax(&mut net, scores);
    let y = net.op(Op::MatMul, &[p, v]);
    net.output(y);
    assert!(attention(&net.lower()).is_none());
}
