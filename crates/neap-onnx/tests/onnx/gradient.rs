//! `Gradient` of `ai.onnx.preview.training`: the standard's own examples, other tensors in the places of those that are named,
//! derivatives of derivatives, and what is refused.

use crate::support::*;
use neap_ir::Literal;
use neap_ops::interpret;

const DOMAIN: &str = "ai.onnx.preview.training";

fn gradient(inputs: &[&str], outputs: &[&str], xs: &[&str], zs: &[&str], y: &str) -> Bytes {
    let mut attributes = vec![("xs", Attr::Strs(xs)), ("y", Attr::Str(y))];
    if !zs.is_empty() {
        attributes.push(("zs", Attr::Strs(zs)));
    }
    node_in(DOMAIN, "Gradient", inputs, outputs, &attributes)
}

/// `a` and `b` to `d = a (a + b)`.
fn product() -> Model {
    Model::new(12)
        .input("a", FLOAT, &[])
        .input("b", FLOAT, &[])
        .node("Add", &["a", "b"], &["c"], &[])
        .node("Mul", &["c", "a"], &["d"], &[])
}

fn one(value: f32) -> Literal {
    Literal::from_f32(&[], &[value])
}

fn run(model: &Model, inputs: &[Literal]) -> Vec<Vec<f32>> {
    let results = interpret(&model.graph(), inputs, &|_| None).expect("runs");
    let floats = |l: &Literal| l.as_f32().expect("f32").to_vec();
    results.iter().map(floats).collect()
}

#[test]
fn the_standards_examples() {
    let sum = Model::new(12)
        .input("a", FLOAT, &[])
        .input("b", FLOAT, &[])
        .node("Add", &["a", "b"], &["c"], &[])
        .raw_node(&gradient(&["a", "b"], &["da", "db"], &["a", "b"], &[], "c"))
        .output("c")
        .output("da")
        .output("db");
    assert_eq!(
        run(&sum, &[one(1.0), one(2.0)]),
        [vec![3.0], vec![1.0], vec![1.0]]
    );
    let product = product()
        .raw_node(&gradient(&["a", "b"], &["da", "db"], &["a", "b"], &[], "d"))
        .output("d")
        .output("da")
        .output("db");
    assert_eq!(
        run(&product, &[one(1.0), one(2.0)]),
        [vec![3.0], vec![4.0], vec![1.0]]
    );
}

/// Nobody else needs `d`, `b` is given another value, and `a` is a constant.
#[test]
fn inputs_may_be_other_tensors() {
    let with = |outputs: &[&str]| {
        let node = gradient(&["three", "other"], outputs, &["a"], &["b"], "d");
        product()
            .input("other", FLOAT, &[])
            .constant(&f32_tensor("three", &[], &[3.0]))
            .raw_node(&node)
    };
    // `b` is not differentiated by, so there is one output.
    let error = with(&["da", "db"]).output("da").error();
    assert!(error.contains("output 1"), "{error}");
    let model = with(&["da"]).output("da");
    let found = run(&model, &[one(1.0), one(2.0), one(10.0)]);
    assert_eq!(found, [vec![16.0]]);
    // The same tensor for both.
    let model = product()
        .raw_node(&gradient(&["b", "b"], &["", "db"], &["a", "b"], &[], "d"))
        .output("db");
    assert_eq!(run(&model, &[one(1.0), one(5.0)]), [vec![5.0]]);
}

/// A weight of the file is not folded away, and a name's own tensor may be an intermediate one.
#[test]
fn weights_and_intermediate_tensors() {
    let weights = [0.5, -1.0, 2.0, 0.25, 1.5, -0.75];
    let x = [1.0, 2.0, -1.0, 0.5, 0.0, 3.0];
    let model = Model::new(13)
        .input("x", FLOAT, &[2, 3])
        .constant(&f32_tensor("w", &[3, 2], &weights))
        .node("MatMul", &["x", "w"], &["h"], &[])
        .node("Mul", &["h", "h"], &["square"], &[])
        .node(
            "ReduceMean",
            &["square"],
            &["y"],
            &[("keepdims", Attr::Int(0))],
        )
        .raw_node(&gradient(&["w", "x"], &["dw"], &["w"], &["x"], "y"))
        .raw_node(&gradient(&["h"], &["dh"], &["h"], &[], "y"))
        .output("dw")
        .output("dh");
    let found = run(&model, &[Literal::from_f32(&[2, 3], &x)]);
    let loss = |w: &[f64]| -> f64 {
        let mut sum = 0.0;
        for row in x.chunks(3) {
            for column in 0..2 {
                let h: f64 = (0..3).map(|k| f64::from(row[k]) * w[k * 2 + column]).sum();
                sum += h * h / 4.0;
            }
        }
        sum
    };
    let wide: Vec<f64> = weights.iter().map(|&w| w.into()).collect();
    for (i, &derivative) in found[0].iter().enumerate() {
        let moved = |by: f64| {
            let mut w = wide.clone();
            w[i] += by;
            loss(&w)
        };
        let expected = (moved(1e-4) - moved(-1e-4)) / 2e-4;
        assert!((f64::from(derivative) - expected).abs() < 1e-5);
    }
    for (row, dh) in x.chunks(3).zip(found[1].chunks(2)) {
        for column in 0..2 {
            let h: f32 = (0..3).map(|k| row[k] * weights[k * 2 + column]).sum();
            assert!((dh[column] - h / 2.0).abs() < 1e-6);
        }
    }
}

fn cube() -> Model {
    Model::new(13)
        .input("a", FLOAT, &[])
        .node("Mul", &["a", "a"], &["square"], &[])
        .node("Mul", &["square", "a"], &["cube"], &[])
        .raw_node(&gradient(&["a"], &["first"], &["a"], &[], "cube"))
        .raw_node(&gradient(&["a"], &["second"], &["a"], &[], "first"))
        .raw_node(&gradient(&["a"], &["third"], &["a"], &[], "second"))
}

#[test]
fn derivatives_of_derivatives() {
    let model = cube().output("first").output("second").output("third");
    assert_eq!(
        run(&model, &[one(2.0)]),
        [vec![12.0], vec![12.0], vec![6.0]]
    );
    let error = cube()
        .raw_node(&gradient(&["a"], &["fourth"], &["a"], &[], "third"))
        .output("fourth")
        .error();
    assert!(error.contains("order 3"), "{error}");
}

#[test]
fn what_y_does_not_depend_on_has_zeros() {
    let model = product()
        .input("e", FLOAT, &[2])
        .raw_node(&gradient(
            &["a", "b", "e"],
            &["", "", "de"],
            &["a", "b", "e"],
            &[],
            "d",
        ))
        .output("de");
    let inputs = [one(1.0), one(2.0), Literal::from_f32(&[2], &[1.0, 1.0])];
    assert_eq!(run(&model, &inputs), [vec![0.0, 0.0]]);
}

#[test]
fn what_cannot_be_differentiated_is_named() {
    let refused = |node: &Bytes, parts: &[&str]| {
        let model = product()
            .input("many", FLOAT, &[2])
            .input("whole", INT64, &[])
            .node("Neg", &["many"], &["less"], &[])
            .node("Cast", &["whole"], &["float"], &[("to", Attr::Int(1))])
            .input("matrix", FLOAT, &[2, 2])
            .node("Det", &["matrix"], &["det"], &[]);
        let error = model.raw_node(node).output("out").error();
        let is_said = parts.iter().all(|p| error.contains(p));
        assert!(is_said && error.contains("the_Gradient"), "{error}");
    };
    let of = |inputs: &[&str], xs: &[&str], y: &str| gradient(inputs, &["out"], xs, &[], y);
    refused(
        &of(&["many"], &["many"], "less"),
        &["'less'", "not one floating-point"],
    );
    refused(&of(&["whole"], &["whole"], "float"), &["by 'whole'"]);
    refused(&of(&["a"], &["a", "b"], "d"), &["1 inputs for 2 names"]);
    refused(&of(&["a", "b"], &["a", "a"], "d"), &["'a' is named twice"]);
    refused(
        &of(&["a", "c"], &["a", "c"], "d"),
        &["'c' follows from others"],
    );
    refused(&of(&["a"], &["a"], "nothing"), &["'nothing'", "no node"]);
    refused(&of(&["a"], &[], "d"), &["'xs' is missing"]);
    refused(
        &of(&["matrix"], &["matrix"], "det"),
        &["the_Det", "not supported"],
    );
}

/// Inside a branch a path to what is outside of it could be overlooked.
#[test]
fn branches_are_refused() {
    let body = |node: &Bytes| {
        Bytes::default()
            .message(1, node)
            .string(2, "body")
            .message(12, &Bytes::default().string(1, "inner"))
    };
    let inside = gradient(&["a", "b"], &["inner"], &["a", "b"], &[], "d");
    let model = product()
        .constant(&tensor("yes", BOOL, &[], &[1]))
        .node(
            "If",
            &["yes"],
            &["out"],
            &[
                ("then_branch", Attr::Graph(body(&inside))),
                ("else_branch", Attr::Graph(body(&inside))),
            ],
        )
        .output("out");
    let error = model.error();
    assert!(error.contains("the model's own graph"), "{error}");
}
