//! Every instruction set of this processor through everything: the right results, and the same bits under every budget.

use crate::build::{Net, Random};
use crate::nets::{difference, evaluate};
use neap_ir::op::{Activation, Op, Softmax};
use neap_ir::{Graph, Literal};
use neaptide::{Budget, Isa, Model, RunOptions};
use std::path::Path;

/// Convolutions of several kinds, each with 2 MiB of weights or more.
fn images() -> Graph {
    let mut net = Net::seeded(40);
    let x = net.input(&[1, 3, 12, 12]);
    let first = net.conv(x, 64, 3, 1);
    let first = net.relu(first);
    let wide = net.conv(first, 256, 3, 1);
    let wide = net.activation(Activation::HardSwish, wide);
    let depthwise = net.grouped_conv(wide, 256, 3, 1, 256);
    let same = net.conv(depthwise, 256, 3, 1);
    let sum = net.add(same, wide);
    let narrow = net.conv(sum, 40, 1, 2);
    net.output(narrow);
    net.graph
}

/// Products, softmax and a normalised sum: 6 MiB of weights.
fn sequence() -> Graph {
    let mut net = Net::seeded(41);
    let x = net.input(&[10, 256]);
    let wide = net.weight(&[256, 1024], 0.1);
    let narrow = net.weight(&[1024, 1024], 0.05);
    let back = net.weight(&[1024, 256], 0.05);
    let y = net.op(Op::MatMul, &[x, wide]);
    let y = net.activation(Activation::Gelu, y);
    let y = net.op(Op::MatMul, &[y, narrow]);
    let softmax = Op::Softmax {
        axis: 1,
        kind: Softmax::Softmax,
    };
    let y = net.op(softmax, &[y]);
    let y = net.op(Op::MatMul, &[y, back]);
    let y = net.add(y, x);
    net.output(y);
    net.graph
}

pub fn inputs_of(graph: &Graph) -> Vec<Literal> {
    let mut random = Random::new(9);
    let one = |&v| {
        let ty = graph.ty(v);
        let data: Vec<f32> = (0..ty.elements()).map(|_| random.float()).collect();
        Literal::from_f32(&ty.shape, &data)
    };
    graph.inputs.iter().map(one).collect()
}

/// Bytes of the outputs, and whether weights were read while steps ran.
pub fn run(path: &Path, options: &RunOptions, inputs: &[Literal]) -> (Vec<Vec<u8>>, bool) {
    let model =
        Model::open(path, &neaptide::OpenOptions::of_own_process(), &mut |_| {}).expect("opens");
    let plan = model.plan(options).expect("feasible");
    let streams = !plan.execution().loads.is_empty();
    let mut session = model.into_session(plan, options).expect("opens");
    let sizes = session.outputs().iter().map(|o| o.len_bytes());
    let mut outputs: Vec<Vec<u8>> = sizes.map(|n| vec![0u8; n]).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Literal::bytes).collect();
    // The second run's loads begin during the first.
    for _ in 0..2 {
        let mut places: Vec<&mut [u8]> = outputs.iter_mut().map(|o| &mut o[..]).collect();
        session.run(&inputs, &mut places).expect("runs");
    }
    (outputs, streams)
}

#[test]
fn right_results_and_the_same_bits_under_every_budget() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for graph in [images(), sequence()] {
        let inputs = inputs_of(&graph);
        let expected = evaluate(&graph, &inputs);
        let path = folder.path().join("model.neap");
        neaptide::pack_graph(graph, &path, &Default::default(), &mut |_| {}).expect("packs");
        for isa in Isa::available() {
            for exact in [true, false] {
                let options = RunOptions {
                    isa,
                    exact,
                    threads: 2,
                    ..RunOptions::default()
                };
                let (free, _) = run(&path, &options, &inputs);
                let model =
                    Model::open(&path, &neaptide::OpenOptions::of_own_process(), &mut |_| {})
                        .expect("opens");
                let smallest_bytes = model.bounds(&options).smallest_feasible_bytes();
                drop(model);
                let small = RunOptions {
                    budget: Budget::Bytes(smallest_bytes + (1 << 20)),
                    ..options
                };
                let (small, streams) = run(&path, &small, &inputs);
                assert!(streams, "{isa:?}: the budget is too large to test anything");
                assert!(
                    !exact || free == small,
                    "{isa:?}: other bits under a budget"
                );
                for found in [free, small] {
                    let off = difference(&expected, &found);
                    assert!(off <= 1e-4, "{isa:?}: off by {off} of the outputs' range");
                }
            }
        }
    }
}
