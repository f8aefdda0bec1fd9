//! Models in bfloat16: their layers are computed in it where the processor can, unless the same bits are asked for.

use crate::build::{Net, square};
use crate::formats::rounded;
use crate::instruction_sets::{inputs_of, run};
use neap_ir::op::{Activation, Op};
use neap_ir::{DType, Graph, Node};
use neap_kernels::simd::Isa;
use neaptide::{Model, OpenOptions, RunOptions, WeightFormats};
use std::path::Path;

/// Products of 70 rows, with a tail of k and of columns.
fn rows() -> Graph {
    let mut net = Net::seeded(60);
    let x = net.input(&[70, 256]);
    let wide = net.weight(&[256, 1001], 0.1);
    let narrow = net.weight(&[1001, 500], 0.05);
    let y = net.op(Op::MatMul, &[x, wide]);
    let y = net.activation(Activation::Gelu, y);
    let y = net.op(Op::MatMul, &[y, narrow]);
    net.output(y);
    net.graph
}

/// Convolutions of one and of more pixels.
fn pixels() -> Graph {
    let mut net = Net::seeded(61);
    let x = net.input(&[1, 170, 12, 12]);
    let y = net.conv(x, 256, 1, 1);
    let y = net.relu(y);
    let weight = net.weight(&[100, 256, 5, 5], 0.02);
    let y = net.op(Op::Conv(square(5, 1), 1), &[y, weight]);
    net.output(y);
    net.graph
}

fn is_product(node: &Node) -> bool {
    matches!(node.op, Op::MatMul | Op::Gemm { .. } | Op::Conv(..))
}

/// As the reader of a model marks its products.
fn marked(mut graph: Graph) -> Graph {
    for node in graph.nodes.iter().filter(|node| is_product(node)) {
        for result in node.present_outputs() {
            graph.values[result.index()].in_bf16 = true;
        }
    }
    graph
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (each, _) = bytes.as_chunks();
    each.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn layers_in_bf16(path: &Path, options: &RunOptions) -> usize {
    let open = OpenOptions::of_own_process();
    let model = Model::open(path, &open, &mut |_| {}).expect("opens");
    let plan = model.plan(options).expect("feasible");
    let planned = plan.kernels().get("bf16").copied().unwrap_or(0);
    let told = model.steps_in_bf16(options);
    if options.isa == Isa::detect() {
        assert_eq!(planned, told.into_iter().filter(|&is_so| is_so).count());
    }
    planned
}

#[test]
fn layers_are_computed_in_bfloat16_where_the_processor_can() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, graph) in [("rows", rows()), ("pixels", pixels())] {
        let inputs = inputs_of(&graph);
        let pack = |form: &str, graph: Graph, weights: WeightFormats| {
            let constants = folder.path().join(format!("{name}.{form}.bin"));
            let graph = rounded(graph, DType::BF16, DType::BF16, constants);
            let path = folder.path().join(format!("{name}.{form}.neap"));
            let options = OpenOptions {
                weights,
                ..OpenOptions::default()
            };
            neaptide::pack_graph(graph, &path, &options, &mut |_| {}).expect("packs");
            path
        };
        let halves = pack("halves", marked(graph.clone()), WeightFormats::Exact);
        let wide = pack("wide", graph.clone(), WeightFormats::Exact);
        let bytes = pack("bytes", marked(graph), WeightFormats::Int8);
        for isa in Isa::available() {
            let options = RunOptions {
                isa,
                threads: 2,
                bands: neaptide::BandMode::Off,
                ..RunOptions::default()
            };
            let exact = RunOptions {
                exact: true,
                ..options.clone()
            };
            let what = format!("{name} {isa:?}");
            let expected = if isa.has_pairs() { 2 } else { 0 };
            assert_eq!(layers_in_bf16(&halves, &options), expected, "{what}");
            assert_eq!(layers_in_bf16(&wide, &options), 0, "{what}: of floats");
            assert_eq!(
                layers_in_bf16(&bytes, &options),
                0,
                "{what}: weights of 8 bits"
            );
            assert_eq!(layers_in_bf16(&halves, &exact), 0, "{what}: exact");
            let (in_floats, _) = run(&wide, &exact, &inputs);
            let (same, _) = run(&halves, &exact, &inputs);
            assert_eq!(same, in_floats, "{what}: the same bits");
            let (found, _) = run(&halves, &options, &inputs);
            let (found, wanted) = (floats(&found[0]), floats(&in_floats[0]));
            let largest = wanted.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let errors = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs());
            let error = errors.fold(0.0f32, f32::max) / largest;
            // Each rounding is off by half a step in 256 at the most, and sums of many by less.
            assert!(error < 1.0 / 256.0, "{what}: {error}");
            let is_rounded = found != wanted;
            assert!(is_rounded || !isa.has_pairs(), "{what}: nothing is rounded");
        }
    }
}
