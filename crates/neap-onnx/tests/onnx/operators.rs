//! What ONNX nodes become: attributes resolved, opset differences gone, wrong models refused.

use crate::support::*;
use neap_ir::op::{NearestMode, Pool, SliceRange, Window};
use neap_ir::{DType, Op};

fn conv_window(auto_pad: &str, strides: &[i64], size: i64) -> Window {
    let graph = Model::new(13)
        .input("x", FLOAT, &[1, 2, size, size])
        .constant(&f32_tensor("w", &[4, 2, 3, 3], &[0.5; 72]))
        .node(
            "Conv",
            &["x", "w"],
            &["y"],
            &[
                ("auto_pad", Attr::Str(auto_pad)),
                ("strides", Attr::Ints(strides)),
            ],
        )
        .output("y")
        .graph();
    match only_op(&graph) {
        Op::Conv(window, 1) => window.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn auto_pad_becomes_pads() {
    for (auto_pad, strides, size, begin, end) in [
        ("SAME_UPPER", [1, 1], 5, [1, 1], [1, 1]),
        ("SAME_UPPER", [2, 2], 6, [0, 0], [1, 1]),
        ("SAME_LOWER", [2, 2], 6, [1, 1], [0, 0]),
        ("SAME_UPPER", [3, 3], 5, [0, 0], [1, 1]),
        ("VALID", [1, 1], 5, [0, 0], [0, 0]),
        ("NOTSET", [1, 1], 5, [0, 0], [0, 0]),
    ] {
        let window = conv_window(auto_pad, &strides, size);
        assert_eq!(window.pads_begin, begin, "{auto_pad} {strides:?} {size}");
        assert_eq!(window.pads_end, end, "{auto_pad} {strides:?} {size}");
        assert_eq!(window.kernel, [3, 3]);
        assert_eq!(window.dilations, [1, 1]);
    }
}

#[test]
fn ceil_mode_becomes_an_output_size() {
    for (size, kernel, stride, pads, ceil, expected) in [
        (7, 2, 2, 0, 1, 4),
        (7, 2, 2, 0, 0, 3),
        (4, 1, 2, 0, 1, 2),
        // The last window would start in the padding, so there is none.
        (2, 1, 2, 0, 1, 1),
        (4, 3, 3, 1, 1, 2),
        // The only window is larger than the input by less than the stride.
        (1, 2, 2, 0, 1, 1),
        (3, 5, 4, 0, 1, 1),
    ] {
        let graph = Model::new(13)
            .input("x", FLOAT, &[1, 1, size])
            .node(
                "MaxPool",
                &["x"],
                &["y"],
                &[
                    ("kernel_shape", Attr::Ints(&[kernel])),
                    ("strides", Attr::Ints(&[stride])),
                    ("pads", Attr::Ints(&[pads, pads])),
                    ("ceil_mode", Attr::Int(ceil)),
                ],
            )
            .output("y")
            .graph();
        match only_op(&graph) {
            Op::Pool {
                kind: Pool::Max { .. },
                output_spatial,
                ..
            } => assert_eq!(
                output_spatial,
                &[expected],
                "{size} {kernel} {stride} {pads}"
            ),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn reshape_resolves_zeros_and_minus_one() {
    for (target, expected) in [
        (&[0, -1][..], Ok(&[2usize, 12][..])),
        (&[-1], Ok(&[24])),
        (&[4, 0, -1], Ok(&[4, 3, 2])),
        (&[5, -1], Err("do not fit")),
        (&[-1, -1], Err("more than one -1")),
        (&[2, 3, 4, 0], Err("no dimension 3")),
        (&[i64::MAX, i64::MAX], Err("out of range")),
        (&[-2, 12], Err("out of range")),
    ] {
        let model = Model::new(13)
            .input("x", FLOAT, &[2, 3, 4])
            .ints("shape", target)
            .node("Reshape", &["x", "shape"], &["y"], &[])
            .output("y");
        match expected {
            Ok(shape) => assert_eq!(output_shape(&model.graph()), shape, "{target:?}"),
            Err(reason) => {
                let error = model.error();
                assert!(error.contains(reason), "{target:?}: {error}");
                assert!(error.contains("the_Reshape"), "{error}");
            }
        }
    }
}

#[test]
fn slices_are_attributes_or_inputs_and_clamp() {
    let old = Model::new(9)
        .input("x", FLOAT, &[4, 10])
        .node(
            "Slice",
            &["x"],
            &["y"],
            &[
                ("starts", Attr::Ints(&[-3])),
                ("ends", Attr::Ints(&[i64::MAX])),
                ("axes", Attr::Ints(&[1])),
            ],
        )
        .output("y");
    let new = Model::new(13)
        .input("x", FLOAT, &[4, 10])
        .ints("s", &[-3])
        .ints("e", &[i64::MAX])
        .ints("a", &[-1])
        .node("Slice", &["x", "s", "e", "a"], &["y"], &[])
        .output("y");
    for model in [old, new] {
        let graph = model.graph();
        let Op::Slice { ranges } = only_op(&graph) else {
            panic!("{graph}");
        };
        let expected = SliceRange {
            start: 7,
            step: 1,
            len: 3,
        };
        assert_eq!(ranges[1], expected);
        assert_eq!(ranges[0].len, 4);
    }
}

#[test]
fn softmax_before_opset_13_takes_axes_together() {
    let model = |opset| {
        Model::new(opset)
            .input("x", FLOAT, &[2, 3, 4])
            .node("Softmax", &["x"], &["y"], &[("axis", Attr::Int(1))])
            .output("y")
            .graph()
    };
    assert_eq!(operators(&model(11)), ["Reshape", "Softmax", "Reshape"]);
    assert_eq!(operators(&model(13)), ["Softmax"]);
    assert_eq!(output_shape(&model(11)), [2, 3, 4]);
}

#[test]
fn clip_limits_may_be_attributes_inputs_or_computed() {
    let attributes = Model::new(7)
        .input("x", FLOAT, &[2])
        .node("Clip", &["x"], &["y"], &[("max", Attr::Float(6.0))])
        .output("y")
        .graph();
    let inputs = Model::new(13)
        .input("x", FLOAT, &[2])
        .constant(&f32_tensor("high", &[], &[6.0]))
        .node("Clip", &["x", "", "high"], &["y"], &[])
        .output("y")
        .graph();
    for graph in [attributes, inputs] {
        assert_eq!(
            only_op(&graph),
            &Op::Clip {
                low: None,
                high: Some(6.0)
            }
        );
    }
    let computed = Model::new(13)
        .input("x", FLOAT, &[2])
        .input("low", FLOAT, &[])
        .node("Clip", &["x", "low"], &["y"], &[])
        .output("y")
        .graph();
    assert_eq!(operators(&computed), ["Max"]);
}

#[test]
fn axes_of_reductions_move_from_attribute_to_input() {
    for (opset, as_input) in [(11, false), (13, true)] {
        let model = Model::new(opset)
            .input("x", FLOAT, &[2, 3, 4])
            .ints("axes", &[-1, 0]);
        let model = if as_input {
            model.node(
                "ReduceSum",
                &["x", "axes"],
                &["y"],
                &[("keepdims", Attr::Int(0))],
            )
        } else {
            let axes = ("axes", Attr::Ints(&[-1, 0]));
            model.node(
                "ReduceSum",
                &["x"],
                &["y"],
                &[axes, ("keepdims", Attr::Int(0))],
            )
        };
        assert_eq!(output_shape(&model.output("y").graph()), [3]);
    }
}

#[test]
fn variadic_operators_become_chains() {
    let graph = Model::new(13)
        .input("a", FLOAT, &[2])
        .input("b", FLOAT, &[2])
        .input("c", FLOAT, &[1])
        .node("Mean", &["a", "b", "c"], &["y"], &[])
        .output("y")
        .graph();
    assert_eq!(operators(&graph), ["Add", "Add", "Div"]);
}

#[test]
fn splits_divide_evenly_unless_told() {
    for (size, outputs, expected) in [(7usize, 3usize, vec![3, 3, 1]), (6, 2, vec![3, 3])] {
        let names: Vec<String> = (0..outputs).map(|i| format!("y{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let parts = ("num_outputs", Attr::Int(outputs as i64));
        let mut model = Model::new(18).input("x", FLOAT, &[size as i64]).node(
            "Split",
            &["x"],
            &names,
            &[parts],
        );
        for name in &names {
            model = model.output(name);
        }
        let graph = model.graph();
        let Op::Split { axis: 0, sizes } = only_op(&graph) else {
            panic!("{graph}");
        };
        assert_eq!(sizes, &expected);
    }
}

#[test]
fn wrong_nodes_are_refused_with_their_names() {
    let x = || Model::new(13).input("x", FLOAT, &[2, 3]);
    let y = |m: Model| m.output("y").error();
    for (error, parts) in [
        (
            y(x().node("Frobnicate", &["x"], &["y"], &[])),
            &["the_Frobnicate", "not supported"][..],
        ),
        (
            y(x().raw_node(&node_in(
                "ai.onnx.ml",
                "DictVectorizer",
                &["x"],
                &["y"],
                &[],
            ))),
            &["ai.onnx.ml.DictVectorizer", "not supported"],
        ),
        (
            y(x().node("Add", &["x"], &["y"], &[])),
            &["the_Add", "input 1 is missing"],
        ),
        (
            y(x().node("Add", &["x", "nothing"], &["y"], &[])),
            &["the_Add", "'nothing'"],
        ),
        (
            y(x().node("Softmax", &["x"], &["y"], &[("axis", Attr::Int(2))])),
            &["the_Softmax", "axis 2"],
        ),
        (
            y(x().node(
                "Transpose",
                &["x"],
                &["y"],
                &[("perm", Attr::Ints(&[0, 0]))],
            )),
            &["the_Transpose", "twice"],
        ),
        (
            y(x().node("Concat", &["x"], &["y"], &[("axis", Attr::Str("one"))])),
            &["the_Concat", "'axis' has the wrong type"],
        ),
        (
            y(x().node("MatMul", &["x", "x"], &["y"], &[])),
            &["the_MatMul"],
        ),
        (
            y(x().node("Relu", &["x"], &["z"], &[])),
            &["nothing computes output 'y'"],
        ),
        (
            y(x()
                .node("Relu", &["x"], &["y"], &[])
                .node("Relu", &["x"], &["y"], &[])),
            &["'y' is computed twice"],
        ),
        (
            y(x()
                .node("Add", &["x", "b"], &["a"], &[])
                .node("Add", &["x", "a"], &["b"], &[])
                .node("Relu", &["a"], &["y"], &[])),
            &["circle"],
        ),
        (
            y(x()
                .constant(&f32_tensor("w", &[1], &[1.0]))
                .node("Relu", &["w"], &["x"], &[])
                .node("Abs", &["x"], &["y"], &[])),
            &["defined twice"],
        ),
        (y(Model::new(0).input("x", FLOAT, &[2])), &["opset 0"]),
        (y(Model::new(29).input("x", FLOAT, &[2])), &["opset 29"]),
        (x().error(), &["no outputs"]),
    ] {
        for part in parts {
            assert!(error.contains(part), "'{part}' is not in: {error}");
        }
    }
}

#[test]
fn unsupported_nodes_that_nothing_needs_do_not_matter() {
    let graph = Model::new(13)
        .input("x", FLOAT, &[2])
        .node("Frobnicate", &["x"], &["unused"], &[])
        .node("Relu", &["x"], &["y"], &[])
        .output("y")
        .graph();
    assert_eq!(operators(&graph), ["Relu"]);
}

#[test]
fn half_floats_widen_unless_told_not_to() {
    let model = Model::new(13)
        .input("x", FLOAT16, &[1])
        .constant(&tensor("c", FLOAT16, &[1], &0x3c00u16.to_le_bytes()))
        .node("Add", &["x", "c"], &["h"], &[])
        .node("Cast", &["h"], &["y"], &[("to", Attr::Int(FLOAT.into()))])
        .output("y");
    let graph = model.graph();
    assert_eq!(operators(&graph), ["Add"]);
    assert_eq!(graph.ty(graph.inputs[0]).dtype, DType::F32);
    let options = neap_onnx::OpenOptions {
        widen_half: false,
        ..Default::default()
    };
    let graph = model.open_with(&options).expect("opens");
    assert_eq!(operators(&graph), ["Add", "Cast"]);
    assert_eq!(graph.ty(graph.inputs[0]).dtype, DType::F16);
}

#[test]
fn ambiguous_padding_is_refused() {
    let strided = |op: &str, extra: &str| {
        let model = Model::new(13).input("x", FLOAT, &[1, 2, 6, 5]);
        let strides = ("strides", Attr::Ints(&[3, 1]));
        let pad = ("auto_pad", Attr::Str("SAME_UPPER"));
        let model = if op == "MaxPool" {
            let kernel = ("kernel_shape", Attr::Ints(&[1, 1]));
            model.node(op, &["x"], &["y"], &[kernel, strides, pad])
        } else {
            let model = model.constant(&f32_tensor("w", &[2, 2, 1, 1], &[1.0; 4]));
            model.node(op, &["x", "w"], &["y"], &[strides, pad])
        };
        let error = model.output("y").error();
        assert!(error.contains(extra), "{error}");
    };
    strided("MaxPool", "window smaller than its stride");
}

#[test]
fn a_transposed_convolution_reaches_as_far_as_its_kernel_where_same_would_be_more() {
    for (kernel, stride, rows) in [(2, 3, 11), (1, 4, 13), (3, 3, 12), (4, 2, 8)] {
        for pad in ["SAME_UPPER", "SAME_LOWER"] {
            let (strides, weights) = ([stride], vec![1.0; kernel]);
            let graph = Model::new(13)
                .input("x", FLOAT, &[1, 1, 4])
                .constant(&f32_tensor("w", &[1, 1, kernel as i64], &weights))
                .node(
                    "ConvTranspose",
                    &["x", "w"],
                    &["y"],
                    &[
                        ("strides", Attr::Ints(&strides)),
                        ("auto_pad", Attr::Str(pad)),
                    ],
                )
                .output("y")
                .graph();
            assert_eq!(output_shape(&graph), [1, 1, rows], "{kernel} {stride}");
        }
    }
}

#[test]
fn the_first_resize_rounds_up_where_it_shrinks() {
    let graph = Model::new(10)
        .input("x", FLOAT, &[1, 1, 4, 4])
        .constant(&f32_tensor("s", &[4], &[1.0, 1.0, 2.0, 0.5]))
        .node("Resize", &["x", "s"], &["y"], &[])
        .output("y")
        .graph();
    let modes: Vec<NearestMode> = graph
        .nodes
        .iter()
        .map(|n| match &n.op {
            Op::Resize(attrs) => attrs.nearest,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(modes, [NearestMode::Floor, NearestMode::Ceil]);
    assert_eq!(output_shape(&graph), [1, 1, 8, 2]);
}

#[test]
fn an_empty_batch_is_resized_by_sizes_too() {
    for (shape, sizes) in [([0, 1, 2, 2], [0, 1, 4, 4]), ([1, 0, 2, 2], [1, 0, 3, 5])] {
        let graph = Model::new(13)
            .input("x", FLOAT, &shape)
            .constant(&i64_tensor("s", &[4], &sizes))
            .node("Resize", &["x", "", "", "s"], &["y"], &[])
            .output("y")
            .graph();
        assert_eq!(output_shape(&graph), sizes.map(|size| size as usize));
    }
}

#[test]
fn logarithms_of_integers_are_reduced_over_no_axes() {
    let graph = Model::new(18)
        .input("x", INT32, &[2, 3])
        .node(
            "ReduceLogSum",
            &["x"],
            &["y"],
            &[("noop_with_empty_axes", Attr::Int(1))],
        )
        .output("y")
        .graph();
    assert!(matches!(only_op(&graph), Op::Reduce { axes, .. } if axes.is_empty()));
    assert_eq!(output_shape(&graph), [2, 3]);
}

#[test]
fn a_transposed_convolution_of_nothing_is_one_stride_smaller_than_that_of_one_place() {
    let sized = |places: i64, stride: i64| {
        let attributes = [
            ("strides", Attr::Ints(&[stride])),
            ("dilations", Attr::Ints(&[2])),
        ];
        Model::new(13)
            .input("x", FLOAT, &[1, 1, places])
            .constant(&f32_tensor("w", &[1, 1, 2], &[1.0, 2.0]))
            .node("ConvTranspose", &["x", "w"], &["y"], &attributes)
            .output("y")
    };
    for (places, stride, expected) in [(2, 1, 4), (1, 1, 3), (0, 1, 2), (1, 3, 3), (0, 3, 0)] {
        let graph = sized(places, stride).graph();
        assert_eq!(output_shape(&graph), [1, 1, expected], "{places}, {stride}");
    }
    let error = sized(0, 4).error();
    assert!(error.contains("its stride is larger"), "{error}");
}
