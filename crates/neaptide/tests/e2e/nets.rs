//! Random networks, their inputs, and their results as the operators define them.

use crate::build::{Net, Random};
use crate::{images, sequences};
use neap_ir::op::{Activation, Binary, Op, Unary};
use neap_ir::{DType, Graph, Literal, ValueId};

pub struct RandomNet {
    pub net: Net,
    /// Index inputs lie in `-rows..rows`.
    pub rows: usize,
}

impl RandomNet {
    pub fn new(seed: u64) -> RandomNet {
        let mut made = RandomNet {
            net: Net::seeded(seed.wrapping_add(77)),
            rows: 1,
        };
        match seed % 3 {
            0 | 1 => images::build(&mut made.net),
            _ => sequences::build(&mut made),
        }
        made.net.graph.name = format!("random {seed}");
        made.net.graph.check().expect("random graphs are sound");
        made
    }

    pub fn inputs(&mut self) -> Vec<Literal> {
        let graph = &self.net.graph;
        let random = &mut self.net.random;
        let make = |v: &ValueId| {
            let ty = graph.ty(*v);
            if ty.dtype == DType::F32 {
                let data: Vec<f32> = (0..ty.elements()).map(|_| random.float()).collect();
                return Literal::from_f32(&ty.shape, &data);
            }
            let index = |random: &mut Random| random.below(2 * self.rows) as i64 - self.rows as i64;
            let data: Vec<i64> = (0..ty.elements()).map(|_| index(random)).collect();
            Literal::from_i64(&ty.shape, &data)
        };
        graph.inputs.iter().map(make).collect()
    }
}

/// Node by node, nothing fused.
pub fn evaluate(graph: &Graph, inputs: &[Literal]) -> Vec<Literal> {
    let mut data: Vec<Option<Literal>> = (0..graph.values.len())
        .map(|i| graph.literal(ValueId(i as u32)).cloned())
        .collect();
    for (&value, input) in graph.inputs.iter().zip(inputs) {
        data[value.index()] = Some(input.clone());
    }
    for node in &graph.nodes {
        let inputs: Vec<Option<&Literal>> = node
            .inputs
            .iter()
            .map(|v| v.map(|v| data[v.index()].as_ref().expect("computed before")))
            .collect();
        let results = neap_ops::evaluate_outputs(&node.op, &inputs, node.outputs.len())
            .unwrap_or_else(|e| panic!("{}: {e}", node.name));
        for (output, result) in node.outputs.iter().zip(results) {
            if let Some(output) = output {
                data[output.index()] = Some(result);
            }
        }
    }
    let of = |v: &ValueId| data[v.index()].clone().expect("computed");
    graph.outputs.iter().map(of).collect()
}

/// Largest difference, relative to the largest value of each output.
pub fn difference(expected: &[Literal], found: &[Vec<u8>]) -> f32 {
    let mut worst = 0f32;
    for (e, f) in expected.iter().zip(found) {
        let Some(e) = e.as_f32() else {
            worst = worst.max(if e.bytes() == &f[..] {
                0.0
            } else {
                f32::INFINITY
            });
            continue;
        };
        let range = e.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
        assert!(range.is_finite(), "the test's own values stay finite");
        for (e, f) in e.iter().zip(f.chunks_exact(4)) {
            let f = f32::from_le_bytes([f[0], f[1], f[2], f[3]]);
            let off = (e - f).abs() / range;
            worst = worst.max(if off.is_nan() { f32::INFINITY } else { off });
        }
    }
    worst
}

/// Numbers with about the variance that keeps a sum of `fan_in` products near 1.
pub fn scaled(net: &mut Net, shape: &[usize], fan_in: usize) -> ValueId {
    net.weight(shape, (3.0 / fan_in as f32).sqrt())
}

/// Element-wise functions in their ordinary and their fused names.
pub fn some_unary(net: &mut Net, x: ValueId) -> ValueId {
    let kinds = [
        Unary::Activation(Activation::Relu),
        Unary::Activation(Activation::Sigmoid),
        Unary::Activation(Activation::Silu),
        Unary::Activation(Activation::Gelu),
        Unary::Activation(Activation::HardSwish),
        Unary::Activation(Activation::LeakyRelu { alpha: 0.1 }),
        Unary::Tanh,
        Unary::Abs,
        Unary::Neg,
        Unary::Sin,
        Unary::Softplus,
        Unary::Elu { alpha: 0.7 },
        Unary::Identity,
    ];
    if net.random.chance(15) {
        let limits = Op::Clip {
            low: Some(0.0),
            high: Some(6.0),
        };
        return net.op(limits, &[x]);
    }
    let kind = *net.random.pick(&kinds);
    net.unary(kind, x)
}

/// With another value of the same type, a row or a scalar.
pub fn some_binary(net: &mut Net, x: ValueId, pool: &[ValueId], row: &[usize]) -> ValueId {
    let kind = *net
        .random
        .pick(&[Binary::Add, Binary::Sub, Binary::Mul, Binary::Max]);
    let other = match net.random.below(4) {
        0 => net.weight(row, 1.0),
        1 => net.scalar(0.7),
        _ => alike(net, x, pool),
    };
    if net.random.chance(50) {
        net.binary(kind, x, other)
    } else {
        net.binary(kind, other, x)
    }
}

/// A value of the type of `x`, perhaps `x` itself.
pub fn alike(net: &mut Net, x: ValueId, pool: &[ValueId]) -> ValueId {
    let same = |v: &ValueId| net.graph.ty(*v) == net.graph.ty(x);
    let mut found: Vec<ValueId> = pool.iter().copied().filter(same).collect();
    found.push(x);
    *net.random.pick(&found)
}

/// Some of the intermediates are outputs too.
pub fn outputs(net: &mut Net, pool: &[ValueId], last: ValueId) {
    net.output(last);
    for &v in pool {
        if v != last && net.random.chance(8) {
            net.output(v);
        }
    }
}
