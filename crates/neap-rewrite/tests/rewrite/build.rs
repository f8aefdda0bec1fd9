//! Builds graphs node by node, with seeded weights.
#![allow(dead_code, reason = "tests of other crates use a part of it")]

use neap_ir::op::{Activation, Binary, Op, Unary, Window};
use neap_ir::{DType, Graph, Literal, Node, TensorType, ValueId, infer};

/// Reproducible numbers (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 20) % n as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// In -1..1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// A graph in the making.
pub struct Net {
    pub graph: Graph,
    pub random: Random,
}

impl Net {
    pub fn new() -> Net {
        Net::seeded(1)
    }

    pub fn seeded(seed: u64) -> Net {
        Net {
            graph: Graph::default(),
            random: Random::new(seed),
        }
    }

    pub fn shape(&self, v: ValueId) -> Vec<usize> {
        self.graph.ty(v).shape.clone()
    }

    fn fresh(&self, what: &str) -> String {
        format!("{what}{}", self.graph.values.len())
    }

    pub fn input(&mut self, shape: &[usize]) -> ValueId {
        let name = self.fresh("input");
        let ty = TensorType::new(DType::F32, shape);
        let id = self.graph.add_value(name, ty);
        self.graph.inputs.push(id);
        id
    }

    pub fn weight(&mut self, shape: &[usize], size: f32) -> ValueId {
        let count = shape.iter().product();
        let data: Vec<f32> = (0..count).map(|_| self.random.float() * size).collect();
        self.floats(shape, &data)
    }

    pub fn floats(&mut self, shape: &[usize], data: &[f32]) -> ValueId {
        let name = self.fresh("const");
        self.graph.add_literal(name, Literal::from_f32(shape, data))
    }

    pub fn scalar(&mut self, x: f32) -> ValueId {
        self.floats(&[], &[x])
    }

    pub fn integers(&mut self, shape: &[usize], data: &[i64]) -> ValueId {
        let name = self.fresh("index");
        self.graph.add_literal(name, Literal::from_i64(shape, data))
    }

    /// The first output of a new node.
    pub fn op(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        self.op_of(op, inputs, 1)[0]
    }

    pub fn op_of(&mut self, op: Op, inputs: &[ValueId], outputs: usize) -> Vec<ValueId> {
        let name = op.name();
        self.try_op(op, inputs, outputs)
            .unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Nothing is added when the operator cannot take these inputs.
    pub fn try_op(
        &mut self,
        op: Op,
        inputs: &[ValueId],
        outputs: usize,
    ) -> Result<Vec<ValueId>, String> {
        let name = format!("{}_{}", op.name(), self.graph.nodes.len());
        let types: Vec<_> = inputs
            .iter()
            .map(|&v| Some(self.graph.ty(v).clone()))
            .collect();
        let found = infer::output_types(&op, &types, outputs).map_err(|e| e.to_string())?;
        let outputs: Vec<ValueId> = found
            .into_iter()
            .map(|ty| {
                let name = self.fresh("v");
                self.graph.add_value(name, ty)
            })
            .collect();
        self.graph.nodes.push(Node {
            name,
            op,
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: outputs.iter().copied().map(Some).collect(),
            panels: None,
        });
        Ok(outputs)
    }

    pub fn binary(&mut self, kind: Binary, x: ValueId, y: ValueId) -> ValueId {
        self.op(Op::Binary(kind), &[x, y])
    }

    pub fn add(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.binary(Binary::Add, x, y)
    }

    pub fn mul(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.binary(Binary::Mul, x, y)
    }

    pub fn unary(&mut self, kind: Unary, x: ValueId) -> ValueId {
        self.op(Op::Unary(kind), &[x])
    }

    pub fn activation(&mut self, activation: Activation, x: ValueId) -> ValueId {
        self.unary(Unary::Activation(activation), x)
    }

    pub fn relu(&mut self, x: ValueId) -> ValueId {
        self.activation(Activation::Relu, x)
    }

    pub fn reshape(&mut self, x: ValueId, shape: &[usize]) -> ValueId {
        let shape = shape.to_vec();
        self.op(Op::Reshape { shape }, &[x])
    }

    pub fn transpose(&mut self, x: ValueId, perm: &[usize]) -> ValueId {
        let perm = perm.to_vec();
        self.op(Op::Transpose { perm }, &[x])
    }

    pub fn concat(&mut self, axis: usize, parts: &[ValueId]) -> ValueId {
        self.op(Op::Concat { axis }, parts)
    }

    pub fn split(&mut self, axis: usize, sizes: &[usize], x: ValueId) -> Vec<ValueId> {
        let op = Op::Split {
            axis,
            sizes: sizes.to_vec(),
        };
        self.op_of(op, &[x], sizes.len())
    }

    /// Square kernel, "same" padding when `stride` is 1; no bias.
    pub fn conv(&mut self, x: ValueId, c_out: usize, kernel: usize, stride: usize) -> ValueId {
        self.grouped_conv(x, c_out, kernel, stride, 1)
    }

    pub fn grouped_conv(
        &mut self,
        x: ValueId,
        c_out: usize,
        kernel: usize,
        stride: usize,
        groups: usize,
    ) -> ValueId {
        let c_in = self.shape(x)[1] / groups;
        let weight = self.weight(&[c_out, c_in, kernel, kernel], 0.3);
        let window = square(kernel, stride);
        self.op(Op::Conv(window, groups), &[x, weight])
    }

    pub fn batch_norm(&mut self, x: ValueId) -> ValueId {
        let c = self.shape(x)[1];
        let gamma: Vec<f32> = (0..c).map(|_| 1.0 + 0.5 * self.random.float()).collect();
        let var: Vec<f32> = (0..c).map(|_| 1.0 + 0.5 * self.random.float()).collect();
        let gamma = self.floats(&[c], &gamma);
        let beta = self.weight(&[c], 0.5);
        let mean = self.weight(&[c], 0.5);
        let var = self.floats(&[c], &var);
        let op = Op::BatchNorm { epsilon: 1e-5 };
        self.op(op, &[x, gamma, beta, mean, var])
    }

    pub fn output(&mut self, v: ValueId) {
        self.graph.outputs.push(v);
    }
}

pub fn square(kernel: usize, stride: usize) -> Window {
    let pad = if stride == 1 { kernel / 2 } else { 0 };
    Window {
        kernel: vec![kernel; 2],
        strides: vec![stride; 2],
        dilations: vec![1; 2],
        pads_begin: vec![pad; 2],
        pads_end: vec![pad; 2],
    }
}
