//! Networks whose activations take more than their parameters.

use super::models::{BATCH, CLASSES, Layers, SIDE};
use neap_ir::op::{Activation, Softmax, Unary};
use neap_ir::{Graph, Op};

/// So many convolutions in a row.
pub fn chain(layers: usize) -> Graph {
    let mut net = Layers::new(5).conv("stem", 12, 1, 1).relu();
    for i in 1..layers {
        net = net.conv(&format!("conv{i}"), 12, 1, 1).relu();
    }
    net.averaged().linear("scores", CLASSES).done()
}

/// Blocks whose results are added to their operands, with normalisations.
pub fn residual() -> Graph {
    let mut net = Layers::new(6).conv("stem", 16, 1, 1).norm("stem.bn").relu();
    for i in 0..3 {
        let skip = net.here();
        net = net
            .conv(&format!("block{i}.a"), 16, 1, 1)
            .norm(&format!("block{i}.a.bn"))
            .relu()
            .conv(&format!("block{i}.b"), 16, 1, 1)
            .norm(&format!("block{i}.b.bn"))
            .plus(skip)
            .relu();
    }
    net.averaged().dropout().linear("scores", CLASSES).done()
}

const TOKENS: usize = 27;
const WIDTH: usize = 3 * SIDE * SIDE / TOKENS;

/// Two blocks of attention and of two layers each.
pub fn transformer() -> Graph {
    let mut net = Layers::new(7).push(
        Op::Reshape {
            shape: vec![BATCH, TOKENS, WIDTH],
        },
        &[],
    );
    for i in 0..2 {
        let before = net.here();
        net = norm(net, &format!("block{i}.norm1"));
        net = product(net, &format!("block{i}.qkv"), WIDTH, 3 * WIDTH);
        let (split, parts) = net.split(2, 3);
        let [q, k, v] = parts[..] else {
            unreachable!("three parts")
        };
        net = split.from(k);
        net = net.push(
            Op::Transpose {
                perm: vec![0, 2, 1],
            },
            &[],
        );
        let k = net.here();
        let softmax = Op::Softmax {
            axis: 2,
            kind: Softmax::Softmax,
        };
        net = net.from(q).push(Op::MatMul, &[k]).push(softmax, &[]);
        net = net.push(Op::MatMul, &[v]);
        net = product(net, &format!("block{i}.o"), WIDTH, WIDTH).plus(before);
        let before = net.here();
        net = norm(net, &format!("block{i}.norm2"));
        net = product(net, &format!("block{i}.up"), WIDTH, 2 * WIDTH);
        net = net.push(Op::Unary(Unary::Activation(Activation::Relu)), &[]);
        net = product(net, &format!("block{i}.down"), 2 * WIDTH, WIDTH).plus(before);
    }
    net.flat().linear("scores", CLASSES).done()
}

fn product(mut net: Layers, name: &str, inputs: usize, outputs: usize) -> Layers {
    let span = 1.0 / (inputs as f32).sqrt();
    let w = net.constant(&format!("{name}.weight"), &[inputs, outputs], 0.0, span);
    net.push(Op::MatMul, &[w])
}

fn norm(mut net: Layers, name: &str) -> Layers {
    let scale = net.constant(&format!("{name}.scale"), &[WIDTH], 1.0, 0.1);
    let bias = net.constant(&format!("{name}.bias"), &[WIDTH], 0.0, 0.1);
    let op = Op::LayerNorm {
        axis: 2,
        epsilon: 1e-5,
    };
    net.push(op, &[scale, bias])
}
