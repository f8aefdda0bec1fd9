//! Backward operators of whole layers.

use crate::{check, x};
use neap_ir::gradient::Gradient;
use neap_ir::op::*;
use neap_ir::{DType, Literal};

#[test]
fn sequences_attention_and_resizes() {
    let recurrent = |activations: &[RecurrentActivation]| Recurrent {
        hidden: 18,
        direction: Direction::Bidirectional,
        activations: activations.repeat(2),
        clip: None,
        couple_input_forget: false,
        batch_first: false,
        rounds_state: false,
        in_panels: false,
    };
    let (sigmoid, tanh) = (RecurrentActivation::Sigmoid, RecurrentActivation::Tanh);
    let lengths: Vec<u8> = [5i32, 3, 0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let lengths = Literal::from_bytes(DType::I32, &[3], &lengths).unwrap();
    let state = x(&[2, 3, 18]);
    let of = |gates: usize| {
        let rows = gates * 18;
        let bias = x(&[2, 2 * rows]);
        let mut operands = vec![x(&[5, 3, 2 * rows]), x(&[2, rows, 18]), bias];
        operands.extend([lengths.clone(), state.clone(), state.clone(), x(&[2, 54])]);
        operands.extend([x(&[5, 2, 3, 18]), state.clone(), state.clone()]);
        operands
    };
    let lstm = Gradient::Lstm(recurrent(&[sigmoid, tanh, tanh]));
    check(Op::Gradient(lstm), &of(4), 6);
    for linear_before_reset in [false, true] {
        let gru = Gradient::Gru {
            recurrent: recurrent(&[sigmoid, tanh]),
            linear_before_reset,
        };
        check(Op::Gradient(gru), &of(3), 4);
    }
    let rnn = Gradient::Rnn(recurrent(&[tanh]));
    check(Op::Gradient(rnn), &of(1), 3);
    let attention = Gradient::Attention(AttentionAttrs {
        heads: 4,
        kv_heads: 2,
        scale: 0.5,
        causal: true,
        nan_is_zero: false,
        q: HeadLayout::RowMajor,
        k: HeadLayout::RowMajor,
        v: HeadLayout::RowMajor,
        out: HeadLayout::RowMajor,
    });
    let (queries, keys) = (x(&[2, 5, 12]), x(&[2, 7, 6]));
    let operands = [queries.clone(), keys.clone(), keys, x(&[5, 7]), queries];
    check(Op::Gradient(attention), &operands, 4);
    let resize = Gradient::Resize {
        attrs: ResizeAttrs {
            output_shape: vec![2, 9, 3],
            scales: vec![1.0, 2.25, 1.0],
            mode: ResizeMode::Cubic,
            coordinates: CoordinateTransform::HalfPixel,
            nearest: NearestMode::Floor,
            cubic_a: -0.75,
            exclude_outside: false,
            extrapolation: 0.0,
            antialias: false,
            roi: Vec::new(),
        },
        axis: 1,
        input: 4,
    };
    check(Op::Gradient(resize), &[x(&[2, 9, 3])], 1);
    check(Op::Gradient(Gradient::Product), &[x(&[4, 5]), x(&[4])], 1);
}
