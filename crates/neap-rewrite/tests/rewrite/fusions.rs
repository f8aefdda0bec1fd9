//! Which chains become one node, and which look alike but must not.

use crate::build::{Net, square};
use crate::lower::{nodes, steps};
use neap_ir::op::{Activation, Binary, Op, Reduce, Unary};
use neap_ir::panel::Epilogue;
use neap_ir::recipe::{PackedForm, Recipe};
use neap_ir::{DType, Literal, ValueId};
use neap_rewrite::Lowered;

fn epilogues(lowered: &Lowered) -> Vec<Epilogue> {
    let nodes = &lowered.program.graph.nodes;
    nodes
        .iter()
        .filter_map(|node| match &node.op {
            Op::PanelConv(conv) => Some(conv.epilogue),
            Op::PanelDepthwise(conv) => Some(conv.epilogue),
            Op::PanelLinear(linear) => Some(linear.epilogue),
            _ => None,
        })
        .collect()
}

fn with(activation: Activation, residual: bool) -> Epilogue {
    Epilogue {
        activation,
        residual,
        ..Epilogue::default()
    }
}

#[test]
fn convolution_takes_bn_and_activation() {
    let mut net = Net::new();
    let x = net.input(&[1, 3, 6, 6]);
    let y = net.conv(x, 16, 3, 1);
    let y = net.batch_norm(y);
    let y = net.relu(y);
    let y = net.conv(y, 20, 3, 2);
    net.output(y);
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["PanelConv", "PanelConv", "Reorder"]);
    let expected = [with(Activation::Relu, false), with(Activation::None, false)];
    assert_eq!(epilogues(&lowered), expected);
    let Recipe::Conv { affine, .. } = &lowered.recipes[0] else {
        panic!("{:?}", lowered.recipes[0]);
    };
    assert!(affine.scale.is_some() && affine.bias.is_some());
    let packed = &lowered.program.packed[1];
    // 20 output channels are two panels; 16 x 3 x 3 taps and the bias, 16 lanes of 4 bytes.
    assert_eq!(packed.bytes, 2 * 145 * 64);
    assert!(matches!(packed.form, PackedForm::Panels { panels: 2, .. }));
}

#[test]
fn bias_bn_and_clip_of_a_depthwise_convolution() {
    let mut net = Net::new();
    let x = net.input(&[1, 24, 5, 5]);
    let weight = net.weight(&[24, 1, 3, 3], 0.5);
    let bias = net.weight(&[24], 0.5);
    let window = crate::build::square(3, 1);
    let y = net.op(Op::Conv(window, 24), &[x, weight, bias]);
    let y = net.batch_norm(y);
    let clip = Op::Clip {
        low: Some(0.0),
        high: Some(6.0),
    };
    let y = net.op(clip, &[y]);
    net.output(y);
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["Reorder", "PanelDepthwise", "Reorder"]);
    let relu6 = Activation::Clip {
        low: 0.0,
        high: 6.0,
    };
    assert_eq!(epilogues(&lowered), [with(relu6, false)]);
}

/// A residual block whose identity branch is itself convolved, in both orders of computing.
#[test]
fn the_later_branch_absorbs_the_sum() {
    for shortcut_first in [false, true] {
        for sum_swapped in [false, true] {
            let mut net = Net::new();
            let x = net.input(&[1, 16, 4, 4]);
            let x = net.conv(x, 16, 1, 1);
            let branch = |net: &mut Net, kernel: usize| {
                let y = net.conv(x, 32, kernel, 1);
                net.batch_norm(y)
            };
            let (a, b) = if shortcut_first {
                let b = branch(&mut net, 1);
                (branch(&mut net, 3), b)
            } else {
                (branch(&mut net, 3), branch(&mut net, 1))
            };
            let sum = if sum_swapped {
                net.add(b, a)
            } else {
                net.add(a, b)
            };
            let y = net.relu(sum);
            net.output(y);
            let lowered = net.lower();
            assert_eq!(
                steps(&lowered),
                ["Reorder", "PanelConv", "PanelConv", "PanelConv", "Reorder"]
            );
            let none = with(Activation::None, false);
            let expected = [none, none, with(Activation::Relu, true)];
            assert_eq!(epilogues(&lowered), expected);
            // The sum is written over the branch that it adds.
            assert_eq!(lowered.program.buffers.len(), 4);
        }
    }
}

#[test]
fn an_identity_branch_is_added_too() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 4, 4]);
    let x = net.conv(x, 16, 1, 1);
    let y = net.conv(x, 16, 3, 1);
    let y = net.relu(y);
    let y = net.conv(y, 16, 3, 1);
    let y = net.add(x, y);
    let y = net.relu(y);
    net.output(y);
    let lowered = net.lower();
    let relu = Activation::Relu;
    let expected = [
        with(Activation::None, false),
        with(relu, false),
        with(relu, true),
    ];
    assert_eq!(epilogues(&lowered), expected);
}

#[test]
fn padding_joins_the_convolution_unless_it_is_not_zero() {
    for (fill, joined) in [(0.0, true), (1.0, false)] {
        let mut net = Net::new();
        let x = net.input(&[1, 3, 6, 6]);
        let fill = net.scalar(fill);
        let pads = vec![(0, 0), (0, 0), (1, 2), (0, 1)];
        let mode = neap_ir::op::PadMode::Constant;
        let x = net.op(Op::Pad { mode, pads }, &[x, fill]);
        let y = net.conv(x, 16, 3, 2);
        net.output(y);
        let lowered = net.lower();
        assert_eq!(steps(&lowered).contains(&"Pad"), !joined);
    }
}

/// Every intermediate of conv, bn, add, relu in turn is also read elsewhere, or a graph output.
#[test]
fn other_readers_of_an_intermediate_stop_the_fusion() {
    for kept in 0..3 {
        for as_output in [false, true] {
            let mut net = Net::new();
            let x = net.input(&[1, 16, 4, 4]);
            let other = net.input(&[1, 16, 4, 4]);
            let conv = net.conv(x, 16, 3, 1);
            let bn = net.batch_norm(conv);
            let sum = net.add(bn, other);
            let y = net.relu(sum);
            net.output(y);
            let intermediate = [conv, bn, sum][kept];
            if as_output {
                net.output(intermediate);
            } else {
                let extra = net.unary(Unary::Neg, intermediate);
                net.output(extra);
            }
            let lowered = net.lower();
            let found = epilogues(&lowered)[0];
            let what = format!("kept {kept}, output {as_output}");
            assert_eq!(found.residual, kept == 2, "{what}");
            assert_eq!(found.activation, Activation::None, "{what}");
        }
    }
}

#[test]
fn a_sum_with_itself_or_of_another_shape_is_no_residual() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 4, 4]);
    let y = net.conv(x, 16, 3, 1);
    let twice = net.add(y, y);
    let z = net.conv(twice, 16, 3, 1);
    let row = net.input(&[1, 16, 1, 1]);
    let sum = net.add(z, row);
    net.output(sum);
    let lowered = net.lower();
    assert!(epilogues(&lowered).iter().all(|e| !e.residual));
}

#[test]
fn matrix_products_take_bias_residual_and_activation() {
    for order in 0..2 {
        let mut net = Net::new();
        let x = net.input(&[2, 5, 24]);
        let w = net.weight(&[24, 40], 0.2);
        let bias = net.weight(&[40], 0.5);
        let y = net.op(Op::MatMul, &[x, w]);
        let y = if order == 0 {
            net.add(y, bias)
        } else {
            net.add(bias, y)
        };
        let other = net.input(&[2, 5, 40]);
        let y = net.add(other, y);
        let y = net.activation(Activation::Sigmoid, y);
        net.output(y);
        let lowered = net.lower();
        assert_eq!(steps(&lowered), ["PanelLinear"]);
        assert_eq!(epilogues(&lowered), [with(Activation::Sigmoid, true)]);
    }
}

#[test]
fn layers_that_share_weights_share_an_extent() {
    let mut net = Net::new();
    let x = net.input(&[3, 16]);
    let w = net.weight(&[16, 16], 0.3);
    let bias = net.weight(&[16], 0.5);
    let other = net.weight(&[16], 0.5);
    let mut y = x;
    for bias in [bias, bias, other] {
        y = net.op(Op::MatMul, &[y, w]);
        y = net.add(y, bias);
        y = net.activation(Activation::Sigmoid, y);
    }
    net.output(y);
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["PanelLinear"; 3]);
    let program = &lowered.program;
    let extents = program.steps.iter();
    let extents = extents.map(|s| program.graph.nodes[s.index()].panels.map(|id| id.0));
    assert_eq!(extents.collect::<Vec<_>>(), [Some(0), Some(0), Some(1)]);
    assert_eq!((lowered.recipes.len(), program.packed.len()), (2, 2));
}

#[test]
fn gemm_in_its_forms() {
    for trans_b in [false, true] {
        for peeled in [false, true] {
            let mut net = Net::new();
            let x = net.input(&[3, 10]);
            let shape = if trans_b != peeled {
                [18, 10]
            } else {
                [10, 18]
            };
            let mut w = net.weight(&shape, 0.3);
            if peeled {
                w = net.transpose(w, &[1, 0]);
            }
            let c = net.weight(&[1, 18], 0.5);
            let gemm = Op::Gemm {
                alpha: 0.5,
                beta: 2.0,
                trans_a: false,
                trans_b,
            };
            let y = net.op(gemm, &[x, w, c]);
            let y = net.relu(y);
            net.output(y);
            let lowered = net.lower();
            assert_eq!(steps(&lowered), ["PanelLinear"], "{trans_b} {peeled}");
        }
    }
}

#[test]
fn a_gemm_with_a_column_is_left_alone() {
    let mut net = Net::new();
    let x = net.input(&[3, 10]);
    let w = net.weight(&[10, 18], 0.3);
    let c = net.weight(&[3, 1], 0.5);
    let gemm = Op::Gemm {
        alpha: 1.0,
        beta: 1.0,
        trans_a: false,
        trans_b: false,
    };
    let y = net.op(gemm, &[x, w, c]);
    net.output(y);
    assert_eq!(steps(&net.lower()), ["Gemm"]);
}

#[test]
fn lonely_batch_norm_is_a_scale_and_shift() {
    let mut net = Net::new();
    let x = net.input(&[2, 5, 3, 3]);
    let y = net.relu(x);
    let y = net.batch_norm(y);
    let y = net.relu(y);
    net.output(y);
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["Relu", "ScaleShift"]);
}

fn gelu_erf(net: &mut Net, x: ValueId, root: f32, half_first: bool) -> ValueId {
    let root = net.scalar(root);
    let scaled = net.binary(Binary::Div, x, root);
    let erf = net.unary(Unary::Erf, scaled);
    let one = net.scalar(1.0);
    let half = net.scalar(0.5);
    let plus = net.add(erf, one);
    if half_first {
        let h = net.mul(x, half);
        net.mul(h, plus)
    } else {
        let product = net.mul(x, plus);
        net.mul(product, half)
    }
}

fn gelu_tanh(net: &mut Net, x: ValueId, factor: f32, as_power: bool) -> ValueId {
    let cube = if as_power {
        let three = net.scalar(3.0);
        net.binary(Binary::Pow, x, three)
    } else {
        let square = net.mul(x, x);
        net.mul(square, x)
    };
    let factor = net.scalar(factor);
    let term = net.mul(cube, factor);
    let inner = net.add(x, term);
    let root = net.scalar(0.797_884_6);
    let scaled = net.mul(inner, root);
    let tanh = net.unary(Unary::Tanh, scaled);
    let one = net.scalar(1.0);
    let plus = net.add(tanh, one);
    let half = net.scalar(0.5);
    let h = net.mul(x, half);
    net.mul(h, plus)
}

#[test]
fn both_gelus_and_their_fusion_with_a_product() {
    for form in 0..4 {
        let mut net = Net::new();
        let x = net.input(&[4, 12]);
        let w = net.weight(&[12, 20], 0.4);
        let b = net.weight(&[20], 0.5);
        let y = net.op(Op::MatMul, &[x, w]);
        let y = net.add(y, b);
        let (y, expected) = match form {
            0 | 1 => {
                let root = std::f32::consts::SQRT_2;
                (gelu_erf(&mut net, y, root, form == 0), Activation::Gelu)
            }
            _ => (
                gelu_tanh(&mut net, y, 0.044_715, form == 2),
                Activation::GeluTanh,
            ),
        };
        net.output(y);
        let lowered = net.lower();
        assert_eq!(steps(&lowered), ["PanelLinear"], "form {form}");
        assert_eq!(epilogues(&lowered), [with(expected, false)]);
    }
}

#[test]
fn almost_gelu_is_not_gelu() {
    let mut net = Net::new();
    let x = net.input(&[4, 12]);
    let y = gelu_erf(&mut net, x, 1.5, true);
    let z = gelu_tanh(&mut net, x, 0.05, true);
    net.output(y);
    net.output(z);
    let lowered = net.lower();
    assert!(!steps(&lowered).iter().any(|s| s.contains("Gelu")));
}

#[test]
fn a_gelu_whose_middle_is_an_output_still_gives_that_output() {
    let mut net = Net::new();
    let x = net.input(&[4, 12]);
    let y = gelu_erf(&mut net, x, std::f32::consts::SQRT_2, true);
    let middle = net.graph.nodes[1].outputs[0].expect("erf");
    net.output(y);
    net.output(middle);
    let lowered = net.lower();
    assert!(steps(&lowered).contains(&"Erf"));
}

#[test]
fn gates_become_activations() {
    let mut net = Net::new();
    let x = net.input(&[4, 12]);
    let gate = net.activation(Activation::Sigmoid, x);
    let silu = net.mul(gate, x);
    let hard = Activation::HardSigmoid {
        alpha: 1.0 / 6.0,
        beta: 0.5,
    };
    let gate = net.activation(hard, silu);
    let swish = net.mul(silu, gate);
    let three = net.scalar(3.0);
    let shifted = net.add(swish, three);
    let clip = Op::Clip {
        low: Some(0.0),
        high: Some(6.0),
    };
    let clipped = net.op(clip, &[shifted]);
    let product = net.mul(swish, clipped);
    let six = net.scalar(6.0);
    let y = net.binary(Binary::Div, product, six);
    net.output(y);
    let lowered = net.lower();
    let ops: Vec<_> = lowered.program.graph.nodes.iter().map(|n| &n.op).collect();
    let activation = |a| Op::Unary(Unary::Activation(a));
    assert_eq!(
        ops,
        [
            &activation(Activation::Silu),
            &activation(Activation::HardSwish),
            &activation(Activation::HardSwish)
        ]
    );
}

#[test]
fn other_gates_stay() {
    let mut net = Net::new();
    let x = net.input(&[4, 12]);
    let z = net.input(&[4, 12]);
    let gate = net.activation(Activation::Sigmoid, z);
    let other_input = net.mul(gate, x);
    let hard = Activation::HardSigmoid {
        alpha: 0.2,
        beta: 0.5,
    };
    let gate = net.activation(hard, x);
    let other_slope = net.mul(x, gate);
    net.output(other_input);
    net.output(other_slope);
    let lowered = net.lower();
    assert_eq!(steps(&lowered).iter().filter(|s| **s == "Mul").count(), 2);
}

fn layer_norm(net: &mut Net, x: ValueId, axis: usize, as_power: bool) -> ValueId {
    layer_norm_in(net, x, axis, as_power, DType::F32)
}

/// Its quotient is rounded to half floats, where those are asked for.
fn layer_norm_in(
    net: &mut Net,
    x: ValueId,
    axis: usize,
    as_power: bool,
    rounded_to: DType,
) -> ValueId {
    let mean = Op::Reduce {
        kind: Reduce::Mean,
        axes: vec![axis],
        keep_dims: true,
    };
    let width = *net.shape(x).last().expect("rank");
    let average = net.op(mean.clone(), &[x]);
    let d = net.binary(Binary::Sub, x, average);
    let square = if as_power {
        let two = net.scalar(2.0);
        net.binary(Binary::Pow, d, two)
    } else {
        net.mul(d, d)
    };
    let variance = net.op(mean, &[square]);
    let epsilon = net.scalar(1e-5);
    let sum = net.add(variance, epsilon);
    let deviation = net.unary(Unary::Sqrt, sum);
    let mut normal = net.binary(Binary::Div, d, deviation);
    if rounded_to != DType::F32 {
        for to in [rounded_to, DType::F32] {
            normal = net.op(Op::Cast { to }, &[normal]);
        }
    }
    let scale = net.weight(&[width], 1.0);
    let scaled = net.mul(scale, normal);
    let bias = net.weight(&[width], 1.0);
    net.add(scaled, bias)
}

#[test]
fn layer_norm_chains() {
    for as_power in [false, true] {
        let mut net = Net::new();
        let x = net.input(&[2, 3, 20]);
        let y = layer_norm(&mut net, x, 2, as_power);
        net.output(y);
        assert_eq!(steps(&net.lower()), ["LayerNormalization"]);
    }
    let mut net = Net::new();
    let x = net.input(&[2, 3, 20]);
    let y = layer_norm_in(&mut net, x, 2, false, DType::F16);
    net.output(y);
    assert_eq!(steps(&net.lower()), ["LayerNormalization"]);
    let mut net = Net::new();
    let x = net.input(&[2, 3, 20]);
    let y = layer_norm(&mut net, x, 1, true);
    net.output(y);
    assert!(!nodes(&net.lower()).contains(&"LayerNormalization"));
}

#[test]
fn transposes_merge_and_vanish() {
    let mut net = Net::new();
    let x = net.input(&[2, 3, 4]);
    let y = net.transpose(x, &[1, 2, 0]);
    let y = net.transpose(y, &[1, 0, 2]);
    let y = net.relu(y);
    let back = net.transpose(y, &[0, 2, 1]);
    let back = net.transpose(back, &[0, 2, 1]);
    let z = net.unary(Unary::Neg, back);
    net.output(z);
    assert_eq!(steps(&net.lower()), ["Transpose", "Relu", "Neg"]);
}

#[test]
fn large_tables_are_read_row_by_row() {
    for (rows, expected) in [(40_000, "GatherRows"), (400, "Gather")] {
        let mut net = Net::new();
        let table = net.weight(&[rows, 8], 1.0);
        let name = "ids".to_string();
        let ty = neap_ir::TensorType::new(neap_ir::DType::I64, &[2, 3]);
        let ids = net.graph.add_value(name, ty);
        net.graph.inputs.push(ids);
        let y = net.op(Op::Gather { axis: 0 }, &[table, ids]);
        net.output(y);
        assert_eq!(steps(&net.lower()), [expected]);
    }
}

#[test]
fn shapes_of_the_scalars_do_not_change_the_result_type() {
    // A scalar of higher rank makes the chain's result of higher rank than x.
    let mut net = Net::new();
    let x = net.input(&[4]);
    let gate = net.activation(Activation::Sigmoid, x);
    let one = net
        .graph
        .add_literal("one", Literal::from_f32(&[1, 1], &[1.0]));
    let gate = net.mul(gate, one);
    let y = net.mul(x, gate);
    let half = net
        .graph
        .add_literal("half", Literal::from_f32(&[1, 1, 1], &[0.5]));
    let h = net.mul(y, half);
    let root = net.scalar(std::f32::consts::SQRT_2);
    let scaled = net.binary(Binary::Div, y, root);
    let erf = net.unary(Unary::Erf, scaled);
    let one = net.scalar(1.0);
    let plus = net.add(erf, one);
    let z = net.mul(h, plus);
    net.output(z);
    net.lower();
}

/// Few channels take the kernel of first layers, except where rows of the window lie far apart.
#[test]
fn tall_dilated_windows_of_few_channels_are_blocked() {
    for (channels, dilation, plain) in [(12, 1, true), (12, 17, false), (4, 2, false), (3, 2, true)]
    {
        let mut net = Net::new();
        let x = net.input(&[1, channels, 40, 9]);
        let w = net.weight(&[5, channels, 3, 1], 0.1);
        let mut window = square(1, 1);
        (window.kernel[0], window.dilations[0]) = (3, dilation);
        let y = net.op(Op::Conv(window, 1), &[x, w]);
        net.output(y);
        let steps = steps(&net.lower());
        let expected: &[&str] = match plain {
            true => &["PanelConv", "Reorder"],
            false => &["Reorder", "PanelConv", "Reorder"],
        };
        assert_eq!(steps, expected, "{channels} channels, dilation {dilation}");
    }
}
