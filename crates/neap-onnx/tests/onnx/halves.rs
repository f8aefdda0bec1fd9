//! Products that the model has in bfloat16 are marked, others are not.

use crate::support::{
    Attr, BFLOAT16, BOOL, Bytes, FLOAT, FLOAT16, INT64, Model, node, node_in, tensor,
};
use neap_ir::{Graph, Literal, Op};

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

/// What a model gives for these numbers.
fn computed(model: &Model, x: &[f32]) -> Vec<f32> {
    let x = Literal::from_f32(&[x.len()], x);
    let y = neap_ops::interpret(&model.graph(), &[x], &|_| None).expect("computes");
    y[0].as_f32().expect("floats").to_vec()
}

#[test]
fn casts_to_half_floats_round_between_layers() {
    let model = |count: i64| Model::new(22).input("x", FLOAT, &[count]).output("y");
    let x = [70000.0, 0.1, -1.0, 2049.0, f32::NEG_INFINITY];
    let there_and_back = |to: i32| {
        model(5)
            .node("Cast", &["x"], &["h"], &cast(to))
            .node("Cast", &["h"], &["y"], &cast(FLOAT))
    };
    let infinite = f32::INFINITY;
    assert_eq!(
        computed(&there_and_back(FLOAT16), &x),
        [infinite, 0.099975586, -1.0, 2048.0, -infinite]
    );
    assert_eq!(
        computed(&there_and_back(BFLOAT16), &x),
        [70144.0, 0.100097656, -1.0, 2048.0, -infinite]
    );
    // As another value is, also where it is an operand of a function, and of an integer.
    let import = Bytes::default().string(1, "").int(2, 22);
    let function = Bytes::default()
        .string(1, "Like")
        .string(4, "a")
        .string(4, "like")
        .string(5, "b")
        .message(7, &node("CastLike", &["a", "like"], &["b"], &[]))
        .message(9, &import)
        .string(10, "mine");
    let like = model(2)
        .constant(&tensor("half", FLOAT16, &[1], &0x3c00u16.to_le_bytes()))
        .node("Cast", &["x"], &["n"], &cast(INT64))
        .raw_node(&node_in("mine", "Like", &["n", "half"], &["h"], &[]))
        .node("Cast", &["h"], &["y"], &cast(FLOAT))
        .function(&function);
    assert_eq!(computed(&like, &[2049.0, 7.0]), [2048.0, 7.0]);
}

#[test]
fn casts_that_change_no_number_are_not_computed() {
    let operators = |kind: i32, to: i32, steps: usize| {
        let graph = Model::new(22)
            .input("x", kind, &[4])
            .node("Cast", &["x"], &["h"], &cast(to))
            .node("Relu", &["h"], &["y"], &[])
            .output("y")
            .graph();
        assert_eq!(graph.nodes.len(), 1 + steps, "{graph}");
    };
    operators(FLOAT16, FLOAT16, 0);
    operators(FLOAT16, FLOAT, 0);
    operators(BOOL, FLOAT16, 1);
    operators(FLOAT, FLOAT16, 2);
    operators(FLOAT16, BFLOAT16, 2);
    // Weights stay in the file.
    let graph = Model::new(22)
        .input("x", FLOAT16, &[30, 64])
        .constant(&weights("w", FLOAT))
        .node("Cast", &["w"], &["h"], &cast(FLOAT16))
        .node("MatMul", &["x", "h"], &["y"], &[])
        .output("y")
        .graph();
    assert_eq!(graph.nodes.len(), 1, "{graph}");
}
