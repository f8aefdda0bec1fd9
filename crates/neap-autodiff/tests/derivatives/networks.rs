//! Whole graphs: values with several readers, what is asked for and what is not, refusals.

use crate::difference::{
    Random, compare, derivatives, literal, loss, one, push, values, weighted_sum,
};
use neap_autodiff::{AutodiffError, differentiate};
use neap_ir::op::{Activation, Binary, Pool, Softmax, Unary, Window};
use neap_ir::{DType, Graph, Literal, Op, TensorType, ValueId};

/// A graph whose inputs hold seeded noise.
struct Net {
    graph: Graph,
    inputs: Vec<Literal>,
    random: Random,
}

impl Net {
    fn new() -> Net {
        Net {
            graph: Graph::default(),
            inputs: Vec::new(),
            random: Random(42),
        }
    }

    fn input(&mut self, shape: &[usize], scale: f64) -> ValueId {
        let id = self
            .graph
            .add_value("p", TensorType::new(DType::F64, shape));
        let data = self.random.between(-scale, scale, shape.iter().product());
        self.inputs.push(literal(DType::F64, shape, &data));
        self.graph.inputs.push(id);
        id
    }

    fn op(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        one(&mut self.graph, op, inputs)
    }

    /// Compares derivatives by all inputs with differences along random directions.
    fn check(mut self) {
        let by = self.graph.inputs.clone();
        let found = derivatives(&self.graph, &self.inputs, &by);
        for _ in 0..4 {
            let directions: Vec<Vec<f64>> = (0..by.len())
                .map(|i| self.random.between(-1.0, 1.0, self.inputs[i].elements()))
                .collect();
            let expected: f64 = {
                let step = 1e-6;
                let at = |by: f64| {
                    let moved: Vec<Literal> = self
                        .inputs
                        .iter()
                        .zip(&directions)
                        .map(|(x, d)| {
                            let data = values(x);
                            let data: Vec<f64> =
                                data.iter().zip(d).map(|(x, d)| x + by * d).collect();
                            literal(DType::F64, x.shape(), &data)
                        })
                        .collect();
                    loss(&self.graph, &moved)
                };
                (at(step) - at(-step)) / (2.0 * step)
            };
            let along: f64 = found
                .iter()
                .flatten()
                .zip(directions.iter().flatten())
                .map(|(g, d)| g * d)
                .sum();
            compare("network", "direction", &[expected], &[along], 1e-6);
        }
    }
}

fn same_padding(kernel: usize) -> Window {
    Window {
        kernel: vec![kernel; 2],
        strides: vec![1; 2],
        dilations: vec![1; 2],
        pads_begin: vec![kernel / 2; 2],
        pads_end: vec![kernel / 2; 2],
    }
}

#[test]
fn a_residual_convolution_network() {
    let mut net = Net::new();
    let x = net.input(&[3, 3, 6, 6], 1.0);
    let w1 = net.input(&[8, 3, 3, 3], 0.4);
    let w2 = net.input(&[8, 1, 3, 3], 0.4);
    let (scale, bias) = (net.input(&[8], 1.0), net.input(&[8], 1.0));
    let w3 = net.input(&[4, 8], 0.5);
    let relu = Op::Unary(Unary::Activation(Activation::Relu));
    let a = net.op(Op::Conv(same_padding(3), 1), &[x, w1]);
    let normal = Op::BatchNormTraining { epsilon: 1e-5 };
    let operands = [Some(a), Some(scale), Some(bias)];
    let a = push(&mut net.graph, normal, &operands, 3)[0];
    let a = net.op(relu.clone(), &[a]);
    let b = net.op(Op::Conv(same_padding(3), 8), &[a, w2]);
    let sum = net.op(Op::Binary(Binary::Add), &[a, b]);
    let sum = net.op(Op::Unary(Unary::Activation(Activation::Silu)), &[sum]);
    let pool = Pool::Average {
        count_include_pad: false,
    };
    let pooled = net.op(Op::GlobalPool(pool), &[sum]);
    let flat = net.op(Op::Reshape { shape: vec![3, 8] }, &[pooled]);
    let gemm = Op::Gemm {
        alpha: 1.0,
        beta: 1.0,
        trans_a: false,
        trans_b: true,
    };
    let scores = net.op(gemm, &[flat, w3]);
    let log = Op::Softmax {
        axis: 1,
        kind: Softmax::LogSoftmax,
    };
    let log = net.op(log, &[scores]);
    let labels = net
        .graph
        .add_literal("labels", Literal::from_i64(&[3, 1], &[2, 0, 3]));
    let picked = net.op(Op::GatherElements { axis: 1 }, &[log, labels]);
    let sum = weighted_sum(&mut net.graph, picked, 3);
    net.graph.outputs = vec![sum];
    net.check();
}

#[test]
fn a_transformer_block_with_shared_weights() {
    let mut net = Net::new();
    let table = net.input(&[7, 8], 1.0);
    let (scale, bias) = (net.input(&[8], 1.0), net.input(&[8], 1.0));
    let [wq, wk, wv] = [0; 3].map(|_| net.input(&[8, 8], 0.5));
    let tokens = Literal::from_i64(&[2, 5], &[1, 2, 6, 1, 0, 3, 3, 5, 0, 4]);
    let tokens = net.graph.add_literal("tokens", tokens);
    let x = net.op(Op::Gather { axis: 0 }, &[table, tokens]);
    let norm = Op::LayerNorm {
        axis: 2,
        epsilon: 1e-5,
    };
    let n = net.op(norm, &[x, scale, bias]);
    let heads = |net: &mut Net, w: ValueId| {
        let y = net.op(Op::MatMul, &[n, w]);
        let shape = vec![2, 5, 2, 4];
        let y = net.op(Op::Reshape { shape }, &[y]);
        let perm = vec![0, 2, 1, 3];
        net.op(Op::Transpose { perm }, &[y])
    };
    let (q, k, v) = (
        heads(&mut net, wq),
        heads(&mut net, wk),
        heads(&mut net, wv),
    );
    let perm = vec![0, 1, 3, 2];
    let k = net.op(Op::Transpose { perm }, &[k]);
    let scores = net.op(Op::MatMul, &[q, k]);
    let softmax = Op::Softmax {
        axis: 3,
        kind: Softmax::Softmax,
    };
    let shares = net.op(softmax, &[scores]);
    let mixed = net.op(Op::MatMul, &[shares, v]);
    let perm = vec![0, 2, 1, 3];
    let mixed = net.op(Op::Transpose { perm }, &[mixed]);
    let shape = vec![2, 5, 8];
    let mixed = net.op(Op::Reshape { shape }, &[mixed]);
    let y = net.op(Op::Binary(Binary::Add), &[x, mixed]);
    let y = net.op(Op::Unary(Unary::Activation(Activation::Gelu)), &[y]);
    // The table again, as a head of tied weights.
    let perm = vec![1, 0];
    let head = net.op(Op::Transpose { perm }, &[table]);
    let y = net.op(Op::MatMul, &[y, head]);
    let sum = weighted_sum(&mut net.graph, y, 3);
    net.graph.outputs = vec![sum];
    net.check();
}

#[test]
fn frozen_weights_cost_no_nodes() {
    let mut net = Net::new();
    let x = net.input(&[2, 3], 1.0);
    let w1 = net.input(&[3, 4], 1.0);
    let w2 = net.input(&[4, 5], 1.0);
    let h = net.op(Op::MatMul, &[x, w1]);
    let h = net.op(Op::Unary(Unary::Tanh), &[h]);
    let y = net.op(Op::MatMul, &[h, w2]);
    let sum = weighted_sum(&mut net.graph, y, 3);
    let forward = net.graph.nodes.len();
    let nodes = |by: &[ValueId]| {
        let (graph, _) = differentiate(net.graph.clone(), sum, by).expect("differentiable");
        graph.nodes.len() - forward
    };
    assert_eq!(nodes(&[]), 0);
    let (first, last) = (nodes(&[w1]), nodes(&[w2]));
    assert!(
        last < first,
        "{last} nodes by the last weight, {first} by the first"
    );
    assert!(nodes(&[w1, w2]) > first);
}

#[test]
fn what_the_loss_does_not_depend_on_has_no_derivative() {
    let mut net = Net::new();
    let x = net.input(&[2], 1.0);
    let unused = net.input(&[2], 1.0);
    let rounded = net.op(Op::Unary(Unary::Floor), &[unused]);
    let y = net.op(Op::Binary(Binary::Add), &[x, rounded]);
    let sum = weighted_sum(&mut net.graph, y, 3);
    let (_, found) = differentiate(net.graph, sum, &[x, unused]).expect("differentiable");
    assert!(found[0].is_some() && found[1].is_none());
}

#[test]
fn refusals_name_the_node() {
    let mut net = Net::new();
    let x = net.input(&[2, 3, 3], 1.0);
    let y = net.op(Op::Det, &[x]);
    let sum = weighted_sum(&mut net.graph, y, 3);
    let error = differentiate(net.graph.clone(), sum, &[x]).expect_err("no rule");
    assert!(matches!(error, AutodiffError::NoDerivative { .. }));
    assert_eq!(
        error.to_string(),
        "node 'Det_0' (Det): its derivative is not known"
    );
    let error = differentiate(net.graph, y, &[x]).expect_err("no scalar");
    assert!(
        error
            .to_string()
            .contains("must be one floating-point number"),
        "{error}"
    );
}
