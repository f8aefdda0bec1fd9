//! Opsets 1 to 6: read where they mean what later ones do, refused by name where not.

use crate::support::*;

fn two(opset: i64, op: &str, second: &[i64], attributes: &[(&str, Attr)]) -> Model {
    Model::new(opset)
        .input("a", FLOAT, &[2, 3, 4, 5])
        .input("b", FLOAT, second)
        .node(op, &["a", "b"], &["y"], attributes)
        .output("y")
}

#[test]
fn operators_that_did_not_change_are_read() {
    for opset in 1..=6 {
        let model = Model::new(opset).input("x", FLOAT, &[2, 3]);
        let model = model.node("Relu", &["x"], &["y"], &[]).output("y");
        assert_eq!(operators(&model.graph()), ["Relu"], "opset {opset}");
    }
}

#[test]
fn a_second_operand_is_aligned_where_axis_says() {
    let aligned = [("broadcast", Attr::Int(1)), ("axis", Attr::Int(1))];
    let graph = two(6, "Add", &[3, 4], &aligned).graph();
    assert_eq!(operators(&graph), ["Reshape", "Add"]);
    assert_eq!(output_shape(&graph), [2, 3, 4, 5]);
    let reshaped = graph.nodes[0].outputs[0].expect("an output");
    assert_eq!(graph.ty(reshaped).shape, [3, 4, 1]);
    // Without an axis the last ones are meant, as later.
    let trailing = [("broadcast", Attr::Int(1))];
    assert_eq!(
        operators(&two(6, "Mul", &[4, 5], &trailing).graph()),
        ["Mul"]
    );
}

#[test]
fn early_forms_that_mean_something_else_are_refused() {
    let unaligned = two(6, "Add", &[5], &[]);
    let past = [("broadcast", Attr::Int(1)), ("axis", Attr::Int(3))];
    let long = two(6, "Add", &[4, 5], &past);
    let training = Model::new(6)
        .input("x", FLOAT, &[2])
        .node("Dropout", &["x"], &["y"], &[])
        .output("y");
    let slope = two(6, "PRelu", &[3], &[]);
    for (model, expected) in [
        (unaligned, "shapes [2, 3, 4, 5] and [5] differ"),
        (long, "reaches past the first"),
        (training, "training mode"),
        (slope, "its form of opset 6, before opset 7,"),
    ] {
        let error = model.error();
        assert!(error.contains(expected), "{error}");
    }
}
