//! Graphs that tests make by hand.

use neap_ir::op::{Activation, Op, Unary, Window};
use neap_ir::{DType, Graph, Literal, Node, TensorType, ValueId, infer};

/// 3x3 convolutions, each with a ReLU.
pub struct Layers {
    /// Of the input, and of each convolution's output.
    pub channels: Vec<usize>,
    /// Height and width of all images.
    pub side: usize,
    /// Decides the weights.
    pub seed: usize,
    /// Weights are small whole numbers times this.
    pub gain: f32,
    /// After the last layer.
    pub last: Option<Unary>,
}

/// One image to one image.
pub fn conv_chain(layers: &Layers) -> Graph {
    let mut graph = Graph::default();
    let shape = [1, layers.channels[0], layers.side, layers.side];
    let x = graph.add_value("x", TensorType::new(DType::F32, &shape));
    graph.inputs.push(x);
    let window = Window {
        kernel: vec![3, 3],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads_begin: vec![1, 1],
        pads_end: vec![1, 1],
    };
    let mut y = x;
    for (layer, pair) in layers.channels.windows(2).enumerate() {
        let (c_in, c_out) = (pair[0], pair[1]);
        let data: Vec<f32> = (0..c_out * c_in * 9)
            .map(|i| (((i * 7 + layer + layers.seed * 5) % 13) as f32 - 5.0) * layers.gain)
            .collect();
        let w = Literal::from_f32(&[c_out, c_in, 3, 3], &data);
        let w = graph.add_literal(format!("w{layer}"), w);
        y = add(&mut graph, Op::Conv(window.clone(), 1), &[y, w]);
        let relu = Op::Unary(Unary::Activation(Activation::Relu));
        y = add(&mut graph, relu, &[y]);
    }
    if let Some(last) = layers.last {
        y = add(&mut graph, Op::Unary(last), &[y]);
    }
    graph.outputs.push(y);
    graph
}

fn add(graph: &mut Graph, op: Op, inputs: &[ValueId]) -> ValueId {
    let types: Vec<_> = inputs.iter().map(|&v| Some(graph.ty(v).clone())).collect();
    let ty = infer::output_types(&op, &types, 1).expect("fits").remove(0);
    let output = graph.add_value(format!("v{}", graph.values.len()), ty);
    graph.nodes.push(Node {
        name: format!("node {}", graph.nodes.len()),
        op,
        inputs: inputs.iter().copied().map(Some).collect(),
        outputs: vec![Some(output)],
        panels: None,
    });
    output
}
