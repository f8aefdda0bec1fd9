//! Backward passes, dropout and updates.

use super::compute::{attention, window};
use super::{Case, check};
use neap_ir::gradient::Saved;
use neap_ir::op::{Activation, Generator, Unary};
use neap_ir::update::Update;
use neap_ir::{DType, Gradient, Literal, Op};

#[test]
fn derivatives_of_rows() {
    check("of functions", 100, |d| {
        let shape = d.shape(2);
        let unary = Unary::Activation(d.pick(&[Activation::Gelu, Activation::Silu]));
        let saved = Saved::of(unary).expect("has a derivative");
        let op = match d.flag() {
            true => Gradient::Unary { unary, saved },
            false => Gradient::Softmax {
                axis: d.below(2),
                log: d.flag(),
            },
        };
        Case::of(Op::Gradient(op), vec![d.floats(&shape), d.floats(&shape)])
    });
    check("of norms", 200, |d| {
        let (shape, axis, epsilon) = (d.shape(3), d.below(3), 1e-5);
        let [x, dy] = [(); 2].map(|()| d.floats(&shape));
        let scale = d.floats(&shape[axis..]);
        let [of_channel, mean, variance] = [(); 3].map(|()| d.floats(&shape[1..2]));
        match d.below(3) {
            0 => Case::of(
                Op::Gradient(Gradient::LayerNorm { axis, epsilon }),
                vec![x, scale, dy],
            )
            .giving(3),
            1 => Case::of(
                Op::Gradient(Gradient::RmsNorm { axis, epsilon }),
                vec![x, scale, dy],
            )
            .giving(2),
            _ => {
                let inputs = vec![x, of_channel, mean, variance, dy];
                Case::of(Op::Gradient(Gradient::BatchNorm { epsilon }), inputs).giving(3)
            }
        }
    });
    check("of products", 50, |d| {
        let shape = d.shape(2);
        Case::of(
            Op::Gradient(Gradient::Product),
            vec![d.floats(&shape), d.floats(&shape[..1])],
        )
    });
    check("of attention", 200, |d| {
        let (attrs, mut inputs) = attention(d);
        let types: Vec<_> = inputs.iter().map(|l| Some(l.ty())).collect();
        let op = Op::Attention(attrs.clone());
        let y = neap_ir::infer::output_types(&op, &types, 1).expect("operands fit");
        let mask = (inputs.len() == 4).then(|| inputs.remove(3));
        let mut inputs: Vec<Option<Literal>> = inputs.into_iter().map(Some).collect();
        inputs.extend([mask, Some(d.floats(&y[0].shape))]);
        Case {
            op: Op::Gradient(Gradient::Attention(attrs)),
            inputs,
            outputs: 3,
            of_nothing: None,
        }
    });
}

#[test]
fn derivatives_of_windows() {
    check("of windows", 300, |d| {
        let window = window(d, 2, 1);
        let mut x = d.shape(2);
        x.extend([d.pick(&[4, 6]), d.pick(&[5, 7])]);
        let size = |i: usize| {
            let room = x[i + 2] + window.pads_begin[i] + window.pads_end[i];
            let extent = (window.kernel[i] - 1) * window.dilations[i] + 1;
            room.checked_sub(extent)
                .map_or(0, |room| room / window.strides[i] + 1)
        };
        let spatial = [size(0), size(1)];
        let pooled = [x[0], x[1], spatial[0], spatial[1]];
        match d.below(3) {
            0 => {
                let dy = [x[0], d.size(), spatial[0], spatial[1]];
                let op = Gradient::ConvWeight { window, groups: 1 };
                Case::of(Op::Gradient(op), vec![d.floats(&x), d.floats(&dy)]).of_nothing(0.0)
            }
            1 => Case::of(
                Op::Gradient(Gradient::MaxPool { window }),
                vec![d.floats(&x), d.floats(&pooled)],
            ),
            _ => {
                let op = Gradient::AveragePool {
                    window,
                    count_include_pad: d.flag(),
                    input_spatial: x[2..].to_vec(),
                };
                Case::of(Op::Gradient(op), vec![d.floats(&pooled)])
            }
        }
    });
}

#[test]
fn updates_and_dropout() {
    check("dropout", 50, |d| {
        let shape = d.shape(2);
        let op = Op::Dropout {
            ratio: 0.5,
            generator: d.pick(&[Generator::Counter { stream: 1 }, Generator::Twister]),
        };
        Case::of(op, vec![d.floats(&shape), Literal::from_i64(&[], &[7])]).giving(2)
    });
    check("update", 100, |d| {
        let shape = d.shape(2);
        let update = d.pick(&[
            Update::Sgd {
                momentum: 0.9,
                nesterov: true,
                decay: 0.0,
            },
            Update::AdamW {
                beta1: 0.9,
                beta2: 0.99,
                epsilon: 1e-8,
                decay: 0.1,
            },
        ]);
        let mut inputs = vec![d.floats(&shape), d.floats(&shape)];
        inputs.extend([d.tensor(DType::F32, &[]), Literal::from_i64(&[], &[3])]);
        (0..update.moments()).for_each(|_| inputs.push(d.floats(&shape)));
        let outputs = 1 + update.moments();
        Case::of(Op::Update(update), inputs).giving(outputs)
    });
}
