//! Products that the model has in bfloat16 are marked, others are not.

use crate::support::{Attr, BFLOAT16, Bytes, FLOAT, FLOAT16, Model, tensor};
use neap_ir::{Graph, Op};

/// Of each product, whether it is marked.
fn marks(graph: &Graph) -> Vec<bool> {
    let products = graph.nodes.iter().filter(|node| {
        let op = &node.op;
        matches!(op, Op::MatMul | Op::Gemm { .. } | Op::Conv(..))
    });
    let results = products.map(|node| node.outputs[0].expect("is used"));
    results.map(|value| graph.value(value).in_bf16).collect()
}

/// A square of large weights.
fn weights(name: &str, kind: i32) -> Bytes {
    let bytes = vec![0; 64 * 64 * if kind == FLOAT { 4 } else { 2 }];
    tensor(name, kind, &[64, 64], &bytes)
}

fn cast(to: i32) -> [(&'static str, Attr<'static>); 1] {
    [("to", Attr::Int(to.into()))]
}

#[test]
fn products_of_a_graph_in_bfloat16_are_marked() {
    let filter = tensor("f", BFLOAT16, &[32, 64, 1, 1], &[0; 32 * 64 * 2]);
    let graph = Model::new(22)
        .input("x", BFLOAT16, &[30, 64])
        .constant(&weights("a", BFLOAT16))
        .constant(&weights("b", BFLOAT16))
        .constant(&filter)
        .node("MatMul", &["x", "a"], &["h"], &[])
        .node("Relu", &["h"], &["r"], &[])
        .node(
            "Transpose",
            &["b"],
            &["t"],
            &[("perm", Attr::Ints(&[1, 0]))],
        )
        .node("Gemm", &["r", "t"], &["g"], &[])
        .node("Unsqueeze", &["g", "axes"], &["i"], &[])
        .ints("axes", &[0, 3])
        .node(
            "Transpose",
            &["i"],
            &["n"],
            &[("perm", Attr::Ints(&[0, 2, 1, 3]))],
        )
        .node("Conv", &["n", "f"], &["y"], &[])
        .output("y")
        .graph();
    assert_eq!(marks(&graph), [true; 3]);
}

#[test]
fn weights_in_bfloat16_of_a_graph_in_floats_are_not() {
    for kind in [BFLOAT16, FLOAT16] {
        let graph = Model::new(22)
            .input("x", FLOAT, &[30, 64])
            .constant(&weights("a", kind))
            .node("Cast", &["a"], &["w"], &cast(FLOAT))
            .node("MatMul", &["x", "w"], &["y"], &[])
            .output("y")
            .graph();
        assert_eq!(marks(&graph), [false]);
    }
    let graph = Model::new(22)
        .input("x", FLOAT16, &[30, 64])
        .constant(&weights("a", FLOAT16))
        .node("MatMul", &["x", "a"], &["y"], &[])
        .output("y")
        .graph();
    assert_eq!(marks(&graph), [false], "another type of 16 bits");
}

#[test]
fn casts_begin_and_end_what_is_in_bfloat16() {
    let graph = Model::new(22)
        .input("x", BFLOAT16, &[30, 64])
        .constant(&weights("a", BFLOAT16))
        .constant(&weights("b", FLOAT))
        .node("Cast", &["x"], &["wide"], &cast(FLOAT))
        .node("MatMul", &["wide", "b"], &["h"], &[])
        .node("CastLike", &["h", "x"], &["narrow"], &[])
        .node("MatMul", &["narrow", "a"], &["g"], &[])
        .node("Cast", &["g"], &["e"], &cast(FLOAT))
        .node("Cast", &["a"], &["w"], &cast(FLOAT))
        .node("MatMul", &["e", "w"], &["y"], &[])
        .output("y")
        .graph();
    assert_eq!(marks(&graph), [false, true, false]);
}
