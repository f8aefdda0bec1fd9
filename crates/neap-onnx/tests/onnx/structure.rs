//! Branches, functions, node order and nesting.

use crate::support::*;
use neap_onnx::OpenOptions;

fn branch(op: &str, output: &str) -> Bytes {
    let info = Bytes::default().string(1, output);
    Bytes::default()
        .message(1, &node(op, &["x"], &[output], &[]))
        .message(12, &info)
}

fn if_model(condition: Option<bool>) -> Model {
    let branches = [
        ("then_branch", Attr::Graph(branch("Relu", "a"))),
        ("else_branch", Attr::Graph(branch("Abs", "b"))),
    ];
    let model = Model::new(13).input("x", FLOAT, &[2]);
    let model = match condition {
        Some(value) => model.constant(&tensor("c", BOOL, &[], &[value.into()])),
        None => model.input("c", BOOL, &[]),
    };
    model.node("If", &["c"], &["y"], &branches).output("y")
}

#[test]
fn a_known_condition_picks_its_branch() {
    assert_eq!(operators(&if_model(Some(true)).graph()), ["Relu"]);
    assert_eq!(operators(&if_model(Some(false)).graph()), ["Abs"]);
    let error = if_model(None).error();
    assert!(error.contains("the_If") && error.contains("'c'"), "{error}");
}

/// `Scale(x) = x * factor`, the factor an attribute with a default.
fn scale_function() -> Bytes {
    let value = ("value_float", Attr::Reference("factor", 1));
    let import = Bytes::default().string(1, "").int(2, 13);
    Bytes::default()
        .string(1, "Scale")
        .string(4, "x")
        .string(5, "y")
        .message(7, &node("Constant", &[], &["f"], &[value]))
        .message(7, &node("Mul", &["x", "f"], &["y"], &[]))
        .message(9, &import)
        .string(10, "mine")
        .message(11, &attribute("factor", &Attr::Float(3.0)))
}

#[test]
fn functions_are_inlined_with_their_attributes() {
    let model = Model::new(13)
        .input("x", FLOAT, &[2])
        .raw_node(&node_in("mine", "Scale", &["x"], &["z"], &[]))
        .raw_node(&node_in(
            "mine",
            "Scale",
            &["z"],
            &["y"],
            &[("factor", Attr::Float(5.0))],
        ))
        .output("y")
        .function(&scale_function());
    let graph = model.graph();
    assert_eq!(operators(&graph), ["Mul", "Mul"]);
    let factors: Vec<f32> = graph
        .nodes
        .iter()
        .map(|n| graph.literal(n.input(1).expect("factor")).expect("inline"))
        .map(|l| l.as_f32().expect("float")[0])
        .collect();
    assert_eq!(factors, [3.0, 5.0]);
}

#[test]
fn a_function_that_calls_itself_is_refused() {
    let import = Bytes::default().string(1, "").int(2, 13);
    let call = node_in("mine", "Loop", &["x"], &["y"], &[]);
    let function = Bytes::default()
        .string(1, "Loop")
        .string(4, "x")
        .string(5, "y")
        .message(7, &call)
        .message(9, &import)
        .string(10, "mine");
    let error = Model::new(13)
        .input("x", FLOAT, &[2])
        .raw_node(&call)
        .output("y")
        .function(&function)
        .error();
    assert!(error.contains("too deeply"), "{error}");
}

#[test]
fn nodes_in_the_wrong_order_are_sorted() {
    let graph = Model::new(13)
        .input("x", FLOAT, &[2])
        .node("Abs", &["a"], &["y"], &[])
        .node("Relu", &["x"], &["a"], &[])
        .output("y")
        .graph();
    assert_eq!(operators(&graph), ["Relu", "Abs"]);
}

#[test]
fn deep_nesting_is_refused() {
    let mut graph = branch("Relu", "y");
    for _ in 0..40 {
        let inner = ("then_branch", Attr::Graph(graph));
        graph = Bytes::default().message(1, &node("If", &["c"], &["y"], &[inner]));
    }
    let mut model = Model::new(13).input("x", FLOAT, &[2]);
    model.graph.0.extend(graph.0);
    let error = model.output("y").error();
    assert!(error.contains("nested too deeply"), "{error}");
}

#[test]
fn dynamic_dimensions_are_bound_everywhere() {
    let model = Model::new(13)
        .open_input("x", FLOAT, &[Err("batch"), Ok(3)])
        .open_input("z", FLOAT, &[Err("batch"), Ok(1)])
        .node("Add", &["x", "z"], &["y"], &[])
        .output("y");
    let error = model.error();
    assert_eq!(
        error,
        "input 'x' (batchx3) has dynamic dimension 'batch' (axis 0): give its shape"
    );
    let mut options = OpenOptions::default();
    options.shapes.insert("x".into(), vec![5, 3]);
    let graph = model.open_with(&options).expect("bound");
    assert_eq!(output_shape(&graph), [5, 3]);
    assert_eq!(graph.ty(graph.inputs[1]).shape, [5, 1]);
}

#[test]
fn dimensions_without_a_name_need_not_be_equal() {
    for anonymous in ["?", "None", "-1", "unknown", ""] {
        let model = Model::new(13)
            .open_input("x", FLOAT, &[Err(anonymous), Ok(3), Err(anonymous)])
            .open_input("z", FLOAT, &[Err(anonymous)])
            .node("Add", &["x", "z"], &["y"], &[])
            .output("y");
        let mut options = OpenOptions::default();
        options.shapes.insert("x".into(), vec![2, 3, 7]);
        // That of the other input is not known from this one.
        let error = model.open_with(&options).expect_err("open").to_string();
        assert_eq!(
            error,
            "input 'z' (?) has dynamic dimension '?' (axis 0): give its shape"
        );
        options.shapes.insert("z".into(), vec![1]);
        let graph = model.open_with(&options).expect("bound");
        assert_eq!(output_shape(&graph), [2, 3, 7]);
    }
}

#[test]
fn initializers_among_the_inputs_are_no_inputs() {
    let graph = Model::new(13)
        .input("x", FLOAT, &[2])
        .input("w", FLOAT, &[2])
        .constant(&f32_tensor("w", &[2], &[1.0, 2.0]))
        .node("Add", &["x", "w"], &["y"], &[])
        .output("y")
        .graph();
    assert_eq!(graph.inputs.len(), 1);
}
