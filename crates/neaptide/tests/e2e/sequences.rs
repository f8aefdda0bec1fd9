//! Random networks over sequences: embeddings, linear layers, norms, attention.

use crate::build::Net;
use crate::nets::{RandomNet, alike, outputs, scaled, some_binary, some_unary};
use neap_ir::op::{Activation, Binary, Op, Reduce, SliceRange, Softmax, Unary};
use neap_ir::{DType, Literal, TensorType, ValueId};

pub fn build(made: &mut RandomNet) {
    let net = &mut made.net;
    let batch = 1 + net.random.below(2);
    let length = 3 + net.random.below(9);
    let width = *net.random.pick(&[8, 16, 24, 40]);
    let mut x = if net.random.chance(60) {
        made.rows = if net.random.chance(50) {
            // A table beyond the limit is read row by row.
            (1 << 20) / (4 * width) + 3
        } else {
            40
        };
        embedding(net, batch, length, width, made.rows)
    } else {
        net.input(&[batch, length, width])
    };
    let mut pool = vec![x];
    for _ in 0..2 + net.random.below(7) {
        let kind = net.random.below(12);
        x = some_layer(net, x, &pool, kind);
        pool.push(x);
    }
    if net.random.chance(50) {
        x = head(net, x);
    }
    if net.graph.inputs.contains(&x) || pool[0] == x {
        x = some_unary(net, x);
    }
    let inner: Vec<ValueId> = pool
        .into_iter()
        .filter(|v| !net.graph.inputs.contains(v))
        .collect();
    outputs(net, &inner, x);
}

fn embedding(net: &mut Net, batch: usize, length: usize, width: usize, rows: usize) -> ValueId {
    let table = net.weight(&[rows, width], 1.0);
    let ty = TensorType::new(DType::I64, &[batch, length]);
    let ids = net.graph.add_value("ids", ty);
    net.graph.inputs.push(ids);
    let x = net.op(Op::Gather { axis: 0 }, &[table, ids]);
    let positions = net.weight(&[length, width], 0.5);
    net.add(x, positions)
}

fn some_layer(net: &mut Net, x: ValueId, pool: &[ValueId], kind: usize) -> ValueId {
    let shape = net.shape(x);
    let width = shape[2];
    match kind {
        0..=2 => {
            let y = if net.random.chance(50) {
                norm(net, x)
            } else {
                x
            };
            let y = attention(net, y);
            let y = linear(net, y, width);
            net.add(x, y)
        }
        3..=5 => {
            let y = norm(net, x);
            let inner = *net.random.pick(&[24, 64, 150]);
            let y = linear(net, y, inner);
            let y = gelu(net, y);
            let y = linear(net, y, width);
            net.add(y, x)
        }
        6 => some_unary(net, x),
        7 => some_binary(net, x, pool, &[width]),
        8 => {
            let token = net.weight(&[shape[0], 1, width], 1.0);
            let longer = net.concat(1, &[token, x]);
            let ranges = [shape[0], shape[1], width].map(|len| SliceRange {
                start: 0,
                step: 1,
                len,
            });
            let ranges = ranges.to_vec();
            net.op(Op::Slice { ranges }, &[longer])
        }
        9 => {
            let y = net.transpose(x, &[0, 2, 1]);
            let y = some_unary(net, y);
            net.transpose(y, &[0, 2, 1])
        }
        10 => {
            let op = Op::Softmax {
                axis: 1 + net.random.below(2),
                kind: Softmax::Softmax,
            };
            let p = net.op(op, &[x]);
            let other = alike(net, x, pool);
            net.mul(p, other)
        }
        _ => {
            let parts = net.split(2, &[width / 2, width - width / 2], x);
            net.concat(2, &[parts[1], parts[0]])
        }
    }
}

fn linear(net: &mut Net, x: ValueId, n: usize) -> ValueId {
    let k = *net.shape(x).last().expect("rank");
    let w = if net.random.chance(30) {
        let w = scaled(net, &[n, k], k);
        net.transpose(w, &[1, 0])
    } else {
        scaled(net, &[k, n], k)
    };
    let y = net.op(Op::MatMul, &[x, w]);
    if net.random.chance(20) {
        return y;
    }
    let bias = net.weight(&[n], 0.3);
    if net.random.chance(50) {
        net.add(y, bias)
    } else {
        net.add(bias, y)
    }
}

fn norm(net: &mut Net, x: ValueId) -> ValueId {
    let width = *net.shape(x).last().expect("rank");
    let scale = net.weight(&[width], 1.0);
    let bias = net.weight(&[width], 0.3);
    // A large epsilon: the inputs of a random network may hardly vary.
    let epsilon = 1e-2;
    if net.random.chance(50) {
        return net.op(Op::LayerNorm { axis: 2, epsilon }, &[x, scale, bias]);
    }
    let mean = Op::Reduce {
        kind: Reduce::Mean,
        axes: vec![2],
        keep_dims: true,
    };
    let average = net.op(mean.clone(), &[x]);
    let d = net.binary(Binary::Sub, x, average);
    let two = net.scalar(2.0);
    let square = net.binary(Binary::Pow, d, two);
    let variance = net.op(mean, &[square]);
    let epsilon = net.scalar(epsilon);
    let sum = net.add(variance, epsilon);
    let root = net.unary(Unary::Sqrt, sum);
    let y = net.binary(Binary::Div, d, root);
    let y = net.mul(y, scale);
    net.add(y, bias)
}

fn gelu(net: &mut Net, x: ValueId) -> ValueId {
    if net.random.chance(30) {
        return net.activation(Activation::GeluTanh, x);
    }
    let root = net.scalar(std::f32::consts::SQRT_2);
    let scaled = net.binary(Binary::Div, x, root);
    let erf = net.unary(Unary::Erf, scaled);
    let one = net.scalar(1.0);
    let plus = net.add(erf, one);
    let half = net.scalar(0.5);
    let h = net.mul(x, half);
    net.mul(h, plus)
}

/// Self-attention in one of the exporters' styles.
fn attention(net: &mut Net, x: ValueId) -> ValueId {
    let [b, s, width] = net.shape(x)[..] else {
        return x;
    };
    let heads = *net.random.pick(&[1, 2, 4]);
    let d = width / heads;
    let whole = linear(net, x, 3 * width);
    let (q, kt, v) = if net.random.chance(50) {
        let five = net.reshape(whole, &[b, s, 3, heads, d]);
        let moved = net.transpose(five, &[2, 0, 3, 1, 4]);
        let mut take = |which: i64| {
            let index = net.integers(&[], &[which]);
            net.op(Op::Gather { axis: 0 }, &[moved, index])
        };
        let (q, k, v) = (take(0), take(1), take(2));
        (q, net.transpose(k, &[0, 1, 3, 2]), v)
    } else {
        let parts = net.split(2, &[width; 3], whole);
        let split: Vec<ValueId> = parts
            .iter()
            .map(|&part| net.reshape(part, &[b, s, heads, d]))
            .collect();
        (
            net.transpose(split[0], &[0, 2, 1, 3]),
            net.transpose(split[1], &[0, 2, 3, 1]),
            net.transpose(split[2], &[0, 2, 1, 3]),
        )
    };
    let scores = net.op(Op::MatMul, &[q, kt]);
    let root = net.scalar((d as f32).sqrt());
    let mut scores = net.binary(Binary::Div, scores, root);
    match net.random.below(3) {
        0 => {
            let mut keep = Literal::zeros(DType::Bool, &[1, 1, s, s]);
            for (i, k) in keep.bytes_mut().iter_mut().enumerate() {
                *k = u8::from(i % s <= i / s);
            }
            let keep = net.graph.add_literal("triangle", keep);
            let fill = net.scalar(f32::MIN);
            scores = net.op(Op::Where, &[keep, scores, fill]);
        }
        1 => {
            let mask = net.weight(&[b, 1, 1, s], 3.0);
            scores = net.add(scores, mask);
        }
        _ => {}
    }
    let softmax = Op::Softmax {
        axis: 3,
        kind: Softmax::Softmax,
    };
    let p = net.op(softmax, &[scores]);
    let y = net.op(Op::MatMul, &[p, v]);
    let y = net.transpose(y, &[0, 2, 1, 3]);
    net.reshape(y, &[b, s, width])
}

fn head(net: &mut Net, x: ValueId) -> ValueId {
    let width = *net.shape(x).last().expect("rank");
    let y = if net.random.chance(50) {
        let index = net.integers(&[], &[-1]);
        net.op(Op::Gather { axis: 1 }, &[x, index])
    } else {
        let mean = Op::Reduce {
            kind: Reduce::Mean,
            axes: vec![1],
            keep_dims: false,
        };
        net.op(mean, &[x])
    };
    let weight = scaled(net, &[width, 33], width);
    let gemm = Op::Gemm {
        alpha: 0.5,
        beta: 1.0,
        trans_a: false,
        trans_b: false,
    };
    net.op(gemm, &[y, weight])
}
