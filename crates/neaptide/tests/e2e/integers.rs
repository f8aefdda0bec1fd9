//! Layers between roundings to 8-bit steps: the same bits on every instruction set, with any number of threads and in
//! every budget.

use crate::build::{Net, square};
use crate::formats::{packed, quantized, smallest_budget, with_constants_read};
use crate::instruction_sets::{inputs_of, run};
use crate::nets::{difference, evaluate};
use crate::sessions::add_other;
use neap_ir::op::{Activation, Op, Pool};
use neap_ir::{DType, Graph, Literal, ValueId};
use neap_kernels::simd::Isa;
use neaptide::{BandMode, Budget, Model, OpenOptions, RunOptions, WeightFormats};
use std::path::Path;

/// To steps of a size and back.
fn through_steps(net: &mut Net, x: ValueId, scale: f32, zero: u8) -> ValueId {
    let scale = Literal::from_f32(&[], &[scale]);
    let scale = net.graph.add_literal("scale", scale);
    let zero = Literal::from_bytes(DType::U8, &[], &[zero]).expect("one byte");
    let zero = net.graph.add_literal("zero", zero);
    let to = DType::U8;
    let steps = net.op(Op::Quantize { axis: 0, to }, &[x, scale, zero]);
    net.op(Op::Dequantize { axis: 0 }, &[steps, scale, zero])
}

/// Blocks with residuals, of which one has a layer of its own, a depthwise layer and a product.
fn blocks() -> Graph {
    let mut net = Net::seeded(60);
    let x = net.input(&[1, 3, 36, 36]);
    let x = through_steps(&mut net, x, 0.03, 126);
    let x = net.conv(x, 40, 3, 2);
    let x = net.relu(x);
    let x = through_steps(&mut net, x, 0.02, 0);
    let kind = Pool::Max {
        column_major: false,
    };
    let pool = Op::Pool {
        kind,
        window: square(2, 2),
        output_spatial: vec![9, 9],
    };
    let x = net.op(pool, &[x]);
    let a = net.conv(x, 128, 3, 1);
    let a = net.relu(a);
    let a = through_steps(&mut net, a, 0.03, 3);
    let a = net.conv(a, 160, 1, 1);
    let a = through_steps(&mut net, a, 0.02, 128);
    let side = net.conv(x, 160, 1, 1);
    let side = through_steps(&mut net, side, 0.025, 120);
    let sum = net.add(a, side);
    let sum = net.relu(sum);
    let sum = through_steps(&mut net, sum, 0.03, 0);
    let filtered = net.grouped_conv(sum, 160, 3, 1, 160);
    let filtered = net.relu(filtered);
    let filtered = through_steps(&mut net, filtered, 0.02, 0);
    let b = net.grouped_conv(filtered, 160, 3, 1, 2);
    let b = through_steps(&mut net, b, 0.02, 128);
    let b = net.add(b, sum);
    let b = net.activation(Activation::HardSwish, b);
    let b = through_steps(&mut net, b, 0.03, 10);
    let y = net.reshape(b, &[81, 160]);
    let weight = net.weight(&[160, 70], 0.1);
    let y = net.op(Op::MatMul, &[y, weight]);
    let y = net.activation(Activation::Relu, y);
    net.output(y);
    net.graph
}

/// Layers of each chain in integers.
fn layers_of_chains(path: &Path, open: &OpenOptions) -> Vec<usize> {
    let model = Model::open(path, open, &mut |_| {}).expect("opens");
    let nodes = &model.banded().expect("has row bands").graph.nodes;
    let chains = nodes.iter().filter_map(|node| match &node.op {
        Op::Bands(bands) if bands.is_in_integers() => Some(bands.layers.len()),
        _ => None,
    });
    chains.collect()
}

/// Blocks that widen few channels, filter each and narrow them again; one of them adds its input.
fn inverted_blocks() -> Graph {
    let mut net = Net::seeded(61);
    let x = net.input(&[1, 16, 24, 24]);
    let mut x = through_steps(&mut net, x, 0.03, 126);
    for (stride, channels) in [(1, 16), (2, 24)] {
        let a = net.conv(x, 160, 1, 1);
        let a = net.relu(a);
        let a = through_steps(&mut net, a, 0.02, 0);
        let a = net.grouped_conv(a, 160, 3, stride, 160);
        let a = net.relu(a);
        let a = through_steps(&mut net, a, 0.02, 0);
        let a = net.conv(a, channels, 1, 1);
        let a = through_steps(&mut net, a, 0.02, 128);
        x = match stride {
            1 => net.add(a, x),
            _ => a,
        };
        x = through_steps(&mut net, x, 0.03, 120);
    }
    net.output(x);
    net.graph
}

#[test]
fn layers_in_integers_have_the_same_bits_everywhere() {
    same_bits_everywhere(blocks(), None);
}

#[test]
fn chains_in_integers_have_the_same_bits_in_row_bands() {
    same_bits_everywhere(inverted_blocks(), Some(3));
}

/// `layers` are in one chain at least, where row bands are added.
fn same_bits_everywhere(graph: Graph, layers: Option<usize>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let graph = quantized(graph, folder.path().join("steps.bin"));
    graph.check().expect("sound");
    let inputs = inputs_of(&graph);
    let want = evaluate(&with_constants_read(graph.clone()), &inputs);
    let path = packed(&graph, folder.path().join("m.neap"), WeightFormats::Exact);
    let open = OpenOptions::of_own_process();
    let model = Model::open(&path, &open, &mut |_| {}).expect("opens");
    let nodes = model.program().graph.nodes.iter();
    let own = nodes.filter(|node| node.op.is_in_integers());
    let names: Vec<&str> = own.map(|node| node.op.name()).collect();
    assert!(names.len() >= 6, "{names:?} in integers");
    assert!(names.contains(&"PanelDepthwise"), "{names:?} in integers");
    drop(model);
    let in_bands = folder.path().join("bands.neap");
    std::fs::copy(&path, &in_bands).expect("copied");
    add_other(&in_bands, None);
    if let Some(least) = layers {
        let chains = layers_of_chains(&in_bands, &open);
        assert!(chains.iter().any(|&count| count >= least), "{chains:?}");
    }
    let mut bits: Option<Vec<Vec<u8>>> = None;
    for isa in Isa::available() {
        for threads in [1, 2] {
            let options = RunOptions {
                isa,
                threads,
                exact: true,
                ..RunOptions::default()
            };
            // Of the engine alone: other tests change what the process takes.
            let engine = |bytes: u64| RunOptions {
                budget: Budget::Engine(bytes),
                ..options.clone()
            };
            let small = engine(smallest_budget(&path, &engine(1 << 30)) + (1 << 16));
            let bands = RunOptions {
                bands: BandMode::On,
                ..options.clone()
            };
            let files = [(&options, &path), (&small, &path), (&bands, &in_bands)];
            for (options, path) in files {
                let (found, _) = run(path, options, &inputs);
                // A number in the middle between two steps may go to the other one.
                let off = difference(&want, &found);
                assert!(off <= 0.1, "{isa:?}: off by {off} of the outputs' range");
                // Hard swish is in floats, which portable code rounds otherwise.
                if isa.name() != "portable" {
                    let same = bits.get_or_insert_with(|| found.clone()) == &found;
                    assert!(same, "{isa:?}: other bits with {threads} threads");
                }
            }
        }
    }
}
