//! Loops and scans, as their passes; sequences, which they often carry.

mod many;
mod sequences;

use crate::support::*;
use neap_ir::Literal;

fn graph(inputs: &[&str], outputs: &[&str], initializers: &[Bytes], nodes: &[Bytes]) -> Bytes {
    let named = |name: &&str| Bytes::default().string(1, name);
    let mut g = Bytes::default().string(2, "body");
    for node in nodes {
        g = g.message(1, node);
    }
    for tensor in initializers {
        g = g.message(5, tensor);
    }
    for input in inputs {
        g = g.message(11, &named(input));
    }
    for output in outputs {
        g = g.message(12, &named(output));
    }
    g
}

/// `y = y * w + i`; the third result says whether to go on: while `i < most`.
fn body(most: i64) -> Bytes {
    graph(
        &["i", "on", "y"],
        &["again", "next", "seen"],
        &[
            f32_tensor("w", &[], &[2.0]),
            i64_tensor("most", &[], &[most]),
        ],
        &[
            node("Mul", &["y", "w"], &["scaled"], &[]),
            node("Cast", &["i"], &["step"], &[("to", Attr::Int(1))]),
            node("Add", &["scaled", "step"], &["next"], &[]),
            node("Identity", &["next"], &["seen"], &[]),
            node("Less", &["i", "most"], &["again"], &[]),
        ],
    )
}

fn loop_model(trips: Option<i64>, most: i64) -> Model {
    let mut model = Model::new(13).input("x", FLOAT, &[2]);
    if let Some(trips) = trips {
        model = model.constant(&i64_tensor("trips", &[], &[trips]));
    }
    let first = if trips.is_some() { "trips" } else { "" };
    let attributes = [("body", Attr::Graph(body(most)))];
    let model = model.node("Loop", &[first, "", "x"], &["y", "all"], &attributes);
    model.output("y").output("all")
}

fn run(model: &Model, inputs: &[Literal]) -> Vec<Literal> {
    neap_ops::interpret(&model.graph(), inputs, &|_| None).expect("computes")
}

#[test]
fn a_loop_ends_by_its_count_or_its_condition() {
    for (trips, most, passes) in [(Some(3), 100, 3), (Some(100), 4, 5), (None, 2, 3)] {
        let mut y = [1.0f32, -1.0];
        let mut all = Vec::new();
        for i in 0..passes {
            y = y.map(|y| y * 2.0 + i as f32);
            all.extend(y);
        }
        let x = Literal::from_f32(&[2], &[1.0, -1.0]);
        let results = run(&loop_model(trips, most), &[x]);
        assert_eq!(results[0].as_f32(), Some(&y[..]));
        assert_eq!(results[1].as_f32(), Some(&all[..]));
        assert_eq!(results[1].shape(), [passes, 2]);
    }
}

#[test]
fn loops_without_passes_collect_nothing_of_the_size_that_a_pass_would_give() {
    let x = Literal::from_f32(&[2], &[1.0, 2.0]);
    for trips in [0, -3] {
        let results = run(&loop_model(Some(trips), 9), std::slice::from_ref(&x));
        assert_eq!(results[0], x);
        assert_eq!(results[1].shape(), [0, 2]);
    }
}

#[test]
fn loops_without_a_count_are_refused() {
    let open = Model::new(13)
        .input("x", FLOAT, &[2])
        .input("trips", INT64, &[])
        .node(
            "Loop",
            &["trips", "", "x"],
            &["y"],
            &[("body", Attr::Graph(body(5)))],
        )
        .output("y");
    let error = open.error();
    assert!(
        error.contains("'trips'") && error.contains("trip count"),
        "{error}"
    );
}

#[test]
fn a_condition_of_computed_values_ends_a_loop() {
    // Negates y while it is positive.
    let body = graph(
        &["i", "on", "y"],
        &["again", "next", "seen"],
        &[f32_tensor("zero", &[], &[0.0])],
        &[
            node("Neg", &["y"], &["next"], &[]),
            node("Identity", &["next"], &["seen"], &[]),
            node(
                "ReduceMax",
                &["next"],
                &["largest"],
                &[("keepdims", Attr::Int(0))],
            ),
            node("Greater", &["largest", "zero"], &["again"], &[]),
        ],
    );
    let model = Model::new(13)
        .input("x", FLOAT, &[2])
        .ints("trips", &[4])
        .node(
            "Loop",
            &["trips", "", "x"],
            &["y", "all"],
            &[("body", Attr::Graph(body))],
        )
        .output("y")
        .output("all");
    for (x, passes) in [([-3.0f32, -1.0], 2), ([3.0, 1.0], 1), ([-1.0, 1.0], 4)] {
        let results = run(&model, &[Literal::from_f32(&[2], &x)]);
        let after = |pass: usize| x.map(|x| if pass.is_multiple_of(2) { -x } else { x });
        let all: Vec<f32> = (0..passes).flat_map(after).collect();
        assert_eq!(results[0].as_f32(), Some(&after(passes - 1)[..]));
        assert_eq!(results[1].as_f32(), Some(&all[..]));
        assert_eq!(results[1].shape(), [passes, 2]);
    }
}

#[test]
fn loops_within_loops_end() {
    let mut inner = graph(&["i", "on", "y"], &["on", "y"], &[], &[]);
    for _ in 0..3 {
        inner = graph(
            &["i", "on", "y"],
            &["on", "z"],
            &[i64_tensor("many", &[], &[1_000])],
            &[node(
                "Loop",
                &["many", "on", "y"],
                &["z"],
                &[("body", Attr::Graph(inner))],
            )],
        );
    }
    let error = Model::new(13)
        .input("x", FLOAT, &[2])
        .ints("many", &[1_000])
        .node(
            "Loop",
            &["many", "", "x"],
            &["y"],
            &[("body", Attr::Graph(inner))],
        )
        .output("y")
        .error();
    assert!(
        error.contains("too many nodes") || error.contains("too much memory"),
        "{error}"
    );
}

#[test]
fn a_scan_goes_along_its_axes() {
    // The sum of the columns so far, from the last one; results become columns, the last first.
    let body = graph(
        &["sum", "column"],
        &["next", "seen"],
        &[],
        &[
            node("Add", &["sum", "column"], &["next"], &[]),
            node("Neg", &["next"], &["seen"], &[]),
        ],
    );
    let model = |axis: i64| {
        let attributes = [
            ("body", Attr::Graph(body.clone())),
            ("num_scan_inputs", Attr::Int(1)),
            ("scan_input_axes", Attr::Ints(&[axis])),
            ("scan_input_directions", Attr::Ints(&[1])),
            ("scan_output_axes", Attr::Ints(&[axis])),
            ("scan_output_directions", Attr::Ints(&[1])),
        ];
        Model::new(13)
            .input("start", FLOAT, &[2])
            .input("x", FLOAT, &[2, 3])
            .node("Scan", &["start", "x"], &["y", "all"], &attributes)
            .output("y")
            .output("all")
    };
    let start = Literal::from_f32(&[2], &[10.0, 20.0]);
    let x = Literal::from_f32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    for axis in [1, -1] {
        let results = run(&model(axis), &[start.clone(), x.clone()]);
        assert_eq!(results[0].as_f32(), Some(&[16.0, 35.0][..]));
        let all = [-16.0, -15.0, -13.0, -35.0, -31.0, -26.0];
        assert_eq!(results[1].as_f32(), Some(&all[..]));
        assert_eq!(results[1].shape(), [2, 3]);
    }
    let error = model(2).error();
    assert!(error.contains("axis 2"), "{error}");
}

#[test]
fn a_scan_of_opset_8_goes_along_each_sequence_of_a_batch() {
    let body = graph(
        &["sum", "element"],
        &["next", "seen"],
        &[],
        &[
            node("Add", &["sum", "element"], &["next"], &[]),
            node("Neg", &["next"], &["seen"], &[]),
        ],
    );
    let model = |first: &str| {
        let attributes = [
            ("body", Attr::Graph(body.clone())),
            ("num_scan_inputs", Attr::Int(1)),
            ("directions", Attr::Ints(&[1])),
        ];
        Model::new(8)
            .input("start", FLOAT, &[2, 1])
            .input("x", FLOAT, &[2, 3, 1])
            .ints("lengths", &[3, 2])
            .node("Scan", &[first, "start", "x"], &["y", "all"], &attributes)
            .output("y")
            .output("all")
    };
    let start = Literal::from_f32(&[2, 1], &[10.0, 20.0]);
    let x = Literal::from_f32(&[2, 3, 1], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let results = run(&model(""), &[start, x]);
    assert_eq!(results[0].as_f32(), Some(&[16.0, 35.0][..]));
    assert_eq!(results[0].shape(), [2, 1]);
    let all = [-13.0, -15.0, -16.0, -26.0, -31.0, -35.0];
    assert_eq!(results[1].as_f32(), Some(&all[..]));
    assert_eq!(results[1].shape(), [2, 3, 1]);
    let error = model("lengths").error();
    assert!(error.contains("lengths of sequences"), "{error}");
}
