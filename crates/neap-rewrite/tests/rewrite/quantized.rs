//! Quantised models: weights stay in 8 bits, and steps between layers need no tensors of their own.

use crate::build::{Net, square};
use crate::lower::{nodes, steps};
use neap_ir::op::{Activation, Binary, Op, Pool, Unary};
use neap_ir::panel::{PanelElement, PanelScales};
use neap_ir::recipe::PackedForm;
use neap_ir::{DType, Literal, ValueId};
use neap_rewrite::Lowered;

fn bytes(net: &mut Net, dtype: DType, shape: &[usize]) -> ValueId {
    let count = shape.iter().product();
    let data: Vec<u8> = (0..count).map(|_| net.random.below(256) as u8).collect();
    let literal = Literal::from_bytes(dtype, shape, &data).expect("fits");
    net.graph.add_literal("steps", literal)
}

fn byte(net: &mut Net, dtype: DType, step: u8) -> ValueId {
    let literal = Literal::from_bytes(dtype, &[], &[step]).expect("fits");
    net.graph.add_literal("zero", literal)
}

fn dequantize(net: &mut Net, axis: usize, inputs: &[ValueId]) -> ValueId {
    net.op(Op::Dequantize { axis }, inputs)
}

/// To 0.05-wide steps of unsigned bytes around 120, `between`, and back.
fn through_steps(
    net: &mut Net,
    x: ValueId,
    between: impl Fn(&mut Net, ValueId) -> ValueId,
) -> ValueId {
    let (scale, zero) = (net.scalar(0.05), byte(net, DType::U8, 120));
    let to = DType::U8;
    let q = net.op(Op::Quantize { axis: 0, to }, &[x, scale, zero]);
    let moved = between(net, q);
    dequantize(net, 0, &[moved, scale, zero])
}

fn elements(lowered: &Lowered) -> Vec<(PanelElement, PanelScales)> {
    let packed = lowered.program.packed.iter();
    packed
        .filter_map(|p| match p.form {
            PackedForm::Panels { format, .. } => Some((format.element, format.scales)),
            PackedForm::Raw => None,
        })
        .collect()
}

const EIGHT_BITS: (PanelElement, PanelScales) = (PanelElement::I8, PanelScales::PerChannelWithZero);

#[test]
fn dequantised_weights_stay_as_they_are_stored() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 6, 6]);
    let w = bytes(&mut net, DType::I8, &[20, 16, 3, 3]);
    let scales = net.weight(&[20], 0.01);
    let w = dequantize(&mut net, 0, &[w, scales]);
    let y = net.op(Op::Conv(square(3, 1), 1), &[x, w]);
    let y = net.batch_norm(y);
    let y = net.reshape(y, &[20, 36]);
    // One scale for all, behind a transpose.
    let w = bytes(&mut net, DType::U8, &[24, 36]);
    let (scale, zero) = (net.scalar(0.02), byte(&mut net, DType::U8, 99));
    let w = dequantize(&mut net, 0, &[w, scale, zero]);
    let w = net.transpose(w, &[1, 0]);
    let y = net.op(Op::MatMul, &[y, w]);
    net.output(y);
    let lowered = net.lower();
    assert_eq!(elements(&lowered), [EIGHT_BITS; 2]);
    assert!(!nodes(&lowered).contains(&"DequantizeLinear"));
}

#[test]
fn scales_along_sums_are_left_to_the_operator() {
    let mut net = Net::new();
    let x = net.input(&[4, 240]);
    let w = bytes(&mut net, DType::I8, &[240, 20]);
    let scales = net.weight(&[240], 0.01);
    let w = dequantize(&mut net, 0, &[w, scales]);
    let y = net.op(Op::MatMul, &[x, w]);
    net.output(y);
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["DequantizeLinear", "MatMul"]);
}

/// They are widened when the model is packed, and are weights of floats then.
#[test]
fn small_constants_that_no_layer_takes_in_8_bits_are_widened_once() {
    let mut net = Net::new();
    let x = net.input(&[4, 24]);
    let w = bytes(&mut net, DType::I8, &[24, 20]);
    let scales = net.weight(&[24], 0.01);
    let w = dequantize(&mut net, 0, &[w, scales]);
    let y = net.op(Op::MatMul, &[x, w]);
    let shift = bytes(&mut net, DType::U8, &[4, 20]);
    let scale = net.scalar(0.02);
    let shift = dequantize(&mut net, 0, &[shift, scale]);
    let y = net.mul(y, shift);
    net.output(y);
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["PanelLinear", "Mul"]);
    let floats = (PanelElement::F32, PanelScales::None);
    assert_eq!(elements(&lowered), [floats]);
}

#[test]
fn casts_times_scales_are_weights_too() {
    for zero in [None, Some(7.0)] {
        let mut net = Net::new();
        let x = net.input(&[4, 24]);
        let w = bytes(&mut net, DType::I8, &[24, 20]);
        let mut w = net.op(Op::Cast { to: DType::F32 }, &[w]);
        if let Some(zero) = zero {
            let zero = net.floats(&[20], &[zero; 20]);
            w = net.binary(Binary::Sub, w, zero);
        }
        let scales = net.weight(&[1, 20], 0.01);
        let w = net.mul(w, scales);
        let y = net.op(Op::MatMul, &[x, w]);
        net.output(y);
        let lowered = net.lower();
        assert_eq!(elements(&lowered), [EIGHT_BITS]);
        assert_eq!(steps(&lowered), ["PanelLinear"]);
    }
}

/// Rows of a table of bytes that have a scale each: no scale is multiplied with rows that nobody asks for.
#[test]
fn rows_are_gathered_before_they_are_scaled() {
    for (rows, gather) in [(60_000, "GatherRows"), (400, "Gather")] {
        for dequantizes in [false, true] {
            let mut net = Net::new();
            let table = bytes(&mut net, DType::I8, &[rows, 20]);
            let table = if dequantizes {
                let scales = net.weight(&[rows], 0.01);
                dequantize(&mut net, 0, &[table, scales])
            } else {
                let scales = net.weight(&[rows, 1], 0.01);
                let table = net.op(Op::Cast { to: DType::F32 }, &[table]);
                net.mul(table, scales)
            };
            let ty = neap_ir::TensorType::new(DType::I64, &[2, 3]);
            let ids = net.graph.add_value("ids", ty);
            net.graph.inputs.push(ids);
            let y = net.op(Op::Gather { axis: 0 }, &[table, ids]);
            net.output(y);
            assert_eq!(steps(&net.lower()), [gather, "Cast", "Gather", "Mul"]);
        }
    }
}

#[test]
fn steps_between_layers_are_an_activation() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 8, 8]);
    let y = net.conv(x, 16, 3, 1);
    let y = net.relu(y);
    let y = through_steps(&mut net, y, |net, q| {
        let kind = Pool::Max {
            column_major: false,
        };
        let pool = Op::Pool {
            kind,
            window: square(2, 2),
            output_spatial: vec![4, 4],
        };
        net.op(pool, &[q])
    });
    let y = net.conv(y, 32, 1, 1);
    net.output(y);
    let lowered = net.lower();
    let names = steps(&lowered);
    assert_eq!(
        names[1..4],
        ["PanelConv", "MaxPool", "PanelConv"],
        "{names:?}"
    );
    let conv = lowered
        .program
        .graph
        .nodes
        .iter()
        .find_map(|n| match &n.op {
            Op::PanelConv(conv) => Some(conv.epilogue.activation),
            _ => None,
        });
    // Relu keeps the steps from the zero point on.
    let expected = Activation::Requantize {
        scale: 0.05,
        zero: 120.0,
        low: 120.0,
        high: 255.0,
        nan: 0.0,
    };
    assert_eq!(conv, Some(expected));
}

#[test]
fn what_is_no_number_passes_a_clip_on_its_way_to_the_lowest_step() {
    for clip in [
        Unary::Activation(Activation::Relu),
        Unary::Activation(Activation::Clip {
            low: -1.0,
            high: 1.0,
        }),
    ] {
        let mut net = Net::new();
        let x = net.input(&[1, 16, 4, 4]);
        // Of numbers below zero there is none.
        let y = net.unary(Unary::Log, x);
        let y = net.unary(clip, y);
        let y = through_steps(&mut net, y, |_, q| q);
        net.output(y);
        let lowered = net.lower();
        assert_eq!(steps(&lowered), ["Log", "Requantize"]);
    }
}

#[test]
fn other_readers_of_steps_keep_them() {
    // Another scale behind, an output between, and a function of the steps.
    for case in 0..3 {
        let mut net = Net::new();
        let x = net.input(&[1, 16, 4, 4]);
        let (scale, zero) = (net.scalar(0.05), byte(&mut net, DType::U8, 120));
        let to = DType::U8;
        let q = net.op(Op::Quantize { axis: 0, to }, &[x, scale, zero]);
        let behind = if case == 0 { net.scalar(0.1) } else { scale };
        let y = dequantize(&mut net, 0, &[q, behind, zero]);
        if case == 1 {
            net.output(q);
        }
        if case == 2 {
            let other = net.op(Op::Cast { to: DType::F32 }, &[q]);
            net.output(other);
        }
        let y = net.unary(Unary::Abs, y);
        net.output(y);
        let lowered = net.lower();
        assert!(nodes(&lowered).contains(&"QuantizeLinear"), "case {case}");
    }
}

#[test]
fn sums_of_integers_are_not_cast_to_and_fro() {
    let mut net = Net::new();
    let x = net.input(&[4, 24]);
    let (scale, zero, one) = (
        net.scalar(0.05),
        byte(&mut net, DType::U8, 120),
        net.scalar(1.0),
    );
    let to = DType::U8;
    let q = net.op(Op::Quantize { axis: 0, to }, &[x, scale, zero]);
    let a = dequantize(&mut net, 0, &[q, one, zero]);
    let w = bytes(&mut net, DType::I8, &[24, 20]);
    let w = dequantize(&mut net, 0, &[w, one]);
    let y = net.op(Op::MatMul, &[a, w]);
    let y = net.op(Op::Cast { to: DType::I32 }, &[y]);
    let y = net.op(Op::Cast { to: DType::F32 }, &[y]);
    let y = net.mul(y, scale);
    net.output(y);
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["QuantizeLinear", "PanelLinear"]);
    assert_eq!(elements(&lowered), [EIGHT_BITS]);
}

#[test]
fn products_of_dynamic_steps_are_computed_in_integers_with_what_follows() {
    let mut net = Net::new();
    let x = net.input(&[4, 24]);
    // A scale that is known when running.
    let scale = net.input(&[]);
    let scale = net.unary(Unary::Abs, scale);
    let tiny = net.scalar(0.05);
    let scale = net.binary(Binary::Max, scale, tiny);
    let (zero, one) = (byte(&mut net, DType::U8, 120), net.scalar(1.0));
    let to = DType::U8;
    let q = net.op(Op::Quantize { axis: 0, to }, &[x, scale, zero]);
    let a = dequantize(&mut net, 0, &[q, one, zero]);
    let w = bytes(&mut net, DType::I8, &[24, 20]);
    let zeros = bytes(&mut net, DType::I8, &[20]);
    let ones = net.floats(&[20], &[1.0; 20]);
    let w = dequantize(&mut net, 1, &[w, ones, zeros]);
    let y = net.op(Op::MatMul, &[a, w]);
    let columns = net.weight(&[20], 0.01);
    let factor = net.mul(scale, columns);
    let y = net.mul(y, factor);
    let bias = net.weight(&[20], 1.0);
    let y = net.add(y, bias);
    let y = net.relu(y);
    net.output(y);
    let lowered = net.lower();
    let names = steps(&lowered);
    assert_eq!(names.last(), Some(&"PanelLinear"), "{names:?}");
    assert!(!names.contains(&"DequantizeLinear"), "{names:?}");
    assert!(
        !names.contains(&"Mul") && !names.contains(&"Add"),
        "{names:?}"
    );
    assert_eq!(in_integers(&lowered), 1);
}

/// As ConvInteger, its cast, its scale and its bias are written: one for each kind of convolution.
#[test]
fn convolutions_of_dynamic_steps_are_computed_in_integers_with_what_follows() {
    for (channels, groups) in [([3, 16], 1), ([16, 24], 1), ([16, 16], 16)] {
        let [c_in, c_out] = channels;
        let mut net = Net::new();
        let x = net.input(&[1, c_in, 6, 6]);
        let scale = net.input(&[]);
        let scale = net.unary(Unary::Abs, scale);
        let tiny = net.scalar(0.05);
        let scale = net.binary(Binary::Max, scale, tiny);
        let (zero, one) = (byte(&mut net, DType::U8, 120), net.scalar(1.0));
        let to = DType::U8;
        let q = net.op(Op::Quantize { axis: 0, to }, &[x, scale, zero]);
        let a = dequantize(&mut net, 0, &[q, one, zero]);
        let w = bytes(&mut net, DType::I8, &[c_out, c_in / groups, 3, 3]);
        let w = dequantize(&mut net, 0, &[w, one]);
        let y = net.op(Op::Conv(square(3, 1), groups), &[a, w]);
        let y = net.op(Op::Cast { to: DType::I32 }, &[y]);
        let y = net.op(Op::Cast { to: DType::F32 }, &[y]);
        let own = net.weight(&[1, c_out, 1, 1], 0.01);
        let factor = net.mul(scale, own);
        let y = net.mul(y, factor);
        let bias = net.weight(&[1, c_out, 1, 1], 1.0);
        let y = net.add(y, bias);
        let y = net.relu(y);
        net.output(y);
        let lowered = net.lower();
        let names = steps(&lowered);
        let layers = names.iter().filter(|name| name.starts_with("Panel"));
        assert_eq!(layers.count(), 1, "{names:?}");
        for gone in ["DequantizeLinear", "Mul", "Add", "Cast", "Relu"] {
            assert!(!names.contains(&gone), "{names:?}");
        }
        assert_eq!(in_integers(&lowered), 1, "{names:?}");
        assert_eq!(elements(&lowered), [EIGHT_BITS]);
    }
}

fn in_integers(lowered: &Lowered) -> usize {
    let nodes = lowered.program.graph.nodes.iter();
    nodes.filter(|node| node.op.is_in_integers()).count()
}

/// A convolution of 8-bit weights.
fn quantised_conv(net: &mut Net, x: ValueId, channels: [usize; 2], kernel: usize) -> ValueId {
    let w = bytes(net, DType::I8, &[channels[1], channels[0], kernel, kernel]);
    let scales = net.weight(&[channels[1]], 0.01);
    let w = dequantize(net, 0, &[w, scales]);
    net.op(Op::Conv(square(kernel, 1), 1), &[x, w])
}

#[test]
fn layers_between_steps_are_computed_in_integers_and_hand_on_bytes() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 6, 6]);
    let own = |_: &mut Net, q: ValueId| q;
    let x = through_steps(&mut net, x, own);
    // A block with a residual that is a layer itself, then one whose residual is the block's result.
    let a = quantised_conv(&mut net, x, [16, 24], 1);
    let a = net.relu(a);
    let a = through_steps(&mut net, a, own);
    let a = quantised_conv(&mut net, a, [24, 32], 1);
    let a = through_steps(&mut net, a, own);
    let side = quantised_conv(&mut net, x, [16, 32], 1);
    let side = through_steps(&mut net, side, own);
    let sum = net.add(a, side);
    let sum = net.relu(sum);
    let sum = through_steps(&mut net, sum, own);
    let b = quantised_conv(&mut net, sum, [32, 32], 1);
    let b = through_steps(&mut net, b, own);
    let y = net.add(b, sum);
    let y = net.relu(y);
    let y = through_steps(&mut net, y, own);
    // Readers in integers, directly and behind a pooling, and one in floats.
    let z = quantised_conv(&mut net, y, [32, 16], 1);
    net.output(z);
    let pooled = pool(&mut net, y, 3);
    let z = quantised_conv(&mut net, pooled, [32, 16], 1);
    net.output(z);
    let y = net.unary(Unary::Abs, y);
    net.output(y);
    let lowered = net.lower();
    let names = steps(&lowered);
    assert_eq!(in_integers(&lowered), 6, "{names:?}");
    assert!(!names.contains(&"Add"), "{names:?}");
    let count = |name: &str| names.iter().filter(|&&n| n == name).count();
    // Of the input; what is pooled are steps.
    assert_eq!(count("QuantizeLinear"), 1, "{names:?}");
    assert_eq!(count("DequantizeLinear"), 1, "{names:?}");
}

fn pool(net: &mut Net, x: ValueId, output: usize) -> ValueId {
    let kind = Pool::Max {
        column_major: false,
    };
    let pool = Op::Pool {
        kind,
        window: square(2, 2),
        output_spatial: vec![output; 2],
    };
    net.op(pool, &[x])
}

fn are_bytes(lowered: &Lowered, name: &str) -> bool {
    let graph = &lowered.program.graph;
    let mut made = graph.nodes.iter().filter(|node| node.op.name() == name);
    made.all(|node| graph.ty(node.outputs[0].expect("made")).dtype == DType::U8)
}

/// A first layer, rounded, before a pooling.
fn first_layer(net: &mut Net) -> ValueId {
    let x = net.input(&[1, 3, 12, 12]);
    let x = through_steps(net, x, |_, q| q);
    let y = quantised_conv(net, x, [3, 16], 5);
    net.relu(y)
}

#[test]
fn first_layers_and_poolings_hand_on_bytes() {
    let between = |net: &mut Net, y: ValueId| through_steps(net, y, |net, q| pool(net, q, 6));
    // As quantisers write it: the same steps before and behind.
    let around = |net: &mut Net, y: ValueId| {
        let y = through_steps(net, y, |_, q| q);
        let y = pool(net, y, 6);
        through_steps(net, y, |_, q| q)
    };
    type Pooling = fn(&mut Net, ValueId) -> ValueId;
    for pooling in [between as Pooling, around as Pooling] {
        let mut net = Net::new();
        let y = first_layer(&mut net);
        let y = pooling(&mut net, y);
        let z = quantised_conv(&mut net, y, [16, 32], 1);
        net.output(z);
        let lowered = net.lower();
        let names = steps(&lowered);
        let expected = ["QuantizeLinear", "PanelConv", "MaxPool", "PanelConv"];
        assert_eq!(names[..4], expected, "{names:?}");
        assert_eq!(in_integers(&lowered), 2);
        assert!(are_bytes(&lowered, "QuantizeLinear") && are_bytes(&lowered, "MaxPool"));
    }
}

#[test]
fn poolings_of_a_layers_steps_are_of_bytes_whoever_reads_them() {
    let mut net = Net::new();
    let y = first_layer(&mut net);
    let y = through_steps(&mut net, y, |_, q| q);
    let y = pool(&mut net, y, 6);
    let y = net.unary(Unary::Abs, y);
    net.output(y);
    let lowered = net.lower();
    let names = steps(&lowered);
    let expected = ["PanelConv", "MaxPool", "DequantizeLinear", "Abs"];
    assert_eq!(names[1..5], expected, "{names:?}");
    assert!(are_bytes(&lowered, "PanelConv") && are_bytes(&lowered, "MaxPool"));
}
