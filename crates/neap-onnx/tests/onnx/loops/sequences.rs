//! Sequences and optionals that only pass tensors.

use super::{graph, run};
use crate::support::*;
use neap_ir::Literal;

fn x() -> Literal {
    Literal::from_f32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
}

fn model() -> Model {
    Model::new(18)
        .input("x", FLOAT, &[2, 3])
        .constant(&i64_tensor("zero", &[], &[0]))
        .constant(&i64_tensor("one", &[], &[1]))
        .constant(&i64_tensor("last", &[], &[-1]))
        .constant(&i64_tensor("two", &[], &[2]))
}

fn values(literal: &Literal) -> (Vec<usize>, Vec<f32>) {
    let values = literal.as_f32().expect("floats").to_vec();
    (literal.shape().to_vec(), values)
}

#[test]
fn elements_are_put_in_taken_out_and_counted() {
    let model = model()
        .node("Neg", &["x"], &["negative"], &[])
        .node("Exp", &["x"], &["large"], &[])
        .node("SequenceEmpty", &[], &["none"], &[])
        .node("SequenceInsert", &["none", "x"], &["a"], &[])
        .node("SequenceInsert", &["a", "negative"], &["b"], &[])
        .node("SequenceInsert", &["b", "large", "last"], &["c"], &[])
        // x, large, negative.
        .node("SequenceErase", &["c", "zero"], &["d"], &[])
        .node("Identity", &["d"], &["e"], &[])
        .node("SequenceAt", &["e", "last"], &["y"], &[])
        .node("SequenceLength", &["c"], &["three"], &[])
        .node("Cast", &["three"], &["count"], &[("to", Attr::Int(1))])
        .node("Add", &["y", "count"], &["z"], &[])
        .node("SequenceErase", &["c"], &["f"], &[])
        .node("SequenceConstruct", &["x", "negative"], &["pair"], &[])
        .node(
            "ConcatFromSequence",
            &["pair"],
            &["wide"],
            &[("axis", Attr::Int(-1))],
        )
        .node(
            "ConcatFromSequence",
            &["pair"],
            &["deep"],
            &[("axis", Attr::Int(1)), ("new_axis", Attr::Int(1))],
        )
        .node("SequenceLength", &["f"], &["two_left"], &[])
        .output("y")
        .output("z")
        .output("wide")
        .output("deep")
        .output("two_left");
    let results = run(&model, &[x()]);
    let minus = |from: f32| (1..=6).map(|v| from - v as f32).collect::<Vec<_>>();
    assert_eq!(values(&results[0]), (vec![2, 3], minus(0.0)));
    assert_eq!(values(&results[1]), (vec![2, 3], minus(3.0)));
    let wide = [
        1.0, 2.0, 3.0, -1.0, -2.0, -3.0, 4.0, 5.0, 6.0, -4.0, -5.0, -6.0,
    ];
    assert_eq!(values(&results[2]), (vec![2, 6], wide.to_vec()));
    assert_eq!(values(&results[3]), (vec![2, 2, 3], wide.to_vec()));
    assert_eq!(results[4].to_i64_vec(), Some(vec![2]));
}

#[test]
fn a_tensor_is_split_into_a_sequence() {
    let taken = |split: &str, axis: i64, keeps: i64, place: &str| {
        let inputs: &[&str] = if split.is_empty() {
            &["x"]
        } else {
            &["x", split]
        };
        let attributes = [("axis", Attr::Int(axis)), ("keepdims", Attr::Int(keeps))];
        let model = model()
            .ints("parts", &[1, 2])
            .node("SplitToSequence", inputs, &["all"], &attributes)
            .node("SequenceAt", &["all", place], &["y"], &[])
            .output("y");
        values(&run(&model, &[x()])[0])
    };
    assert_eq!(taken("", 1, 1, "one"), (vec![2, 1], vec![2.0, 5.0]));
    assert_eq!(taken("", 1, 0, "last"), (vec![2], vec![3.0, 6.0]));
    assert_eq!(taken("two", 1, 0, "one"), (vec![2, 1], vec![3.0, 6.0]));
    assert_eq!(
        taken("parts", -1, 1, "one"),
        (vec![2, 2], vec![2.0, 3.0, 5.0, 6.0])
    );
    let whole = taken("two", 0, 1, "zero");
    assert_eq!(whole, values(&x()));
}

#[test]
fn loops_and_maps_carry_sequences() {
    let body = graph(
        &["i", "on", "list", "y"],
        &["on", "longer", "next"],
        &[],
        &[
            node("Add", &["y", "y"], &["next"], &[]),
            node("SequenceInsert", &["list", "next"], &["longer"], &[]),
        ],
    );
    let each = graph(
        &["element", "other", "same"],
        &["sum"],
        &[],
        &[
            node("Add", &["element", "other"], &["pair"], &[]),
            node("Add", &["pair", "same"], &["sum"], &[]),
        ],
    );
    let model = model()
        .node("SequenceEmpty", &[], &["none"], &[])
        .node(
            "Loop",
            &["two", "", "none", "x"],
            &["list", "y"],
            &[("body", Attr::Graph(body))],
        )
        .node(
            "SequenceMap",
            &["list", "list", "x"],
            &["mapped"],
            &[("body", Attr::Graph(each))],
        )
        .node(
            "ConcatFromSequence",
            &["mapped"],
            &["all"],
            &[("axis", Attr::Int(0))],
        )
        .output("all")
        .output("y");
    let results = run(&model, &[x()]);
    // Twice and four times x; each twice, and x once more.
    let all = [5.0, 9.0].into_iter();
    let all = all.flat_map(|times| (1..=6).map(move |v| times * v as f32));
    assert_eq!(values(&results[0]), (vec![4, 3], all.collect()));
    let y = (1..=6).map(|v| 4.0 * v as f32).collect();
    assert_eq!(values(&results[1]), (vec![2, 3], y));
}

#[test]
fn an_optional_holds_a_tensor_or_nothing() {
    let taken = |branch: &str, value: &str| {
        let given = graph(&[], &[value], &[], &[]);
        (branch.to_string(), given)
    };
    let branches = [taken("then_branch", "y"), taken("else_branch", "x")];
    let attributes: Vec<(&str, Attr)> = branches
        .iter()
        .map(|(name, given)| (name.as_str(), Attr::Graph(given.clone())))
        .collect();
    let model = model()
        .node("Optional", &["x"], &["full"], &[])
        .node("Optional", &[], &["empty"], &[])
        .node("OptionalHasElement", &["full"], &["has"], &[])
        .node("OptionalHasElement", &["empty"], &["has_none"], &[])
        .node("OptionalGetElement", &["full"], &["held"], &[])
        .node("Neg", &["held"], &["y"], &[])
        .node("If", &["has"], &["negative"], &attributes)
        .node("If", &["has_none"], &["same"], &attributes)
        .output("negative")
        .output("same");
    let results = run(&model, &[x()]);
    let negative = (1..=6).map(|v| -(v as f32)).collect();
    assert_eq!(values(&results[0]), (vec![2, 3], negative));
    assert_eq!(values(&results[1]), values(&x()));
    let error = model.node("OptionalGetElement", &["empty"], &["no"], &[]);
    let error = error.output("no").error();
    assert!(error.contains("holds nothing"), "{error}");
}

#[test]
fn where_a_tensor_is_needed_a_sequence_is_refused() {
    let pair = || model().node("SequenceConstruct", &["x", "x"], &["pair"], &[]);
    let error = pair().output("pair").error();
    assert!(error.contains("'pair' is a sequence"), "{error}");
    for op in ["Neg", "Shape", "NonZero", "Size", "Cast"] {
        let node = pair().node(op, &["pair"], &["y"], &[("to", Attr::Int(1))]);
        let error = node.output("y").error();
        assert!(error.contains("a sequence as its operand"), "{op}: {error}");
    }
    for (op, inputs, part) in [
        ("SequenceAt", &["pair", "two"][..], "position 2 is outside"),
        ("SequenceAt", &["x", "zero"], "no sequence"),
        ("SequenceInsert", &["pair", "two"], "different types"),
        (
            "SequenceInsert",
            &["pair", "pair"],
            "a sequence as its operand",
        ),
    ] {
        let error = pair()
            .node(op, inputs, &["y"], &[])
            .node("Neg", &["y"], &["z"], &[]);
        let error = error.output("z").error();
        assert!(error.contains(part), "{op}: {error}");
    }
    let along = graph(&["row"], &["row"], &[], &[]);
    let attributes = [
        ("body", Attr::Graph(along)),
        ("num_scan_inputs", Attr::Int(1)),
    ];
    let scan = pair().node("Scan", &["pair"], &["y"], &attributes);
    let error = scan.output("y").error();
    assert!(error.contains("a sequence as its operand"), "{error}");
    let body = graph(
        &["i", "on"],
        &["on", "list"],
        &[],
        &[node("SequenceConstruct", &["x"], &["list"], &[])],
    );
    let repeat = model().node("Loop", &["two"], &["y"], &[("body", Attr::Graph(body))]);
    let error = repeat.output("y").error();
    assert!(error.contains("a sequence as its operand"), "{error}");
    let open = Model::new(18)
        .input("x", FLOAT, &[2, 3])
        .input("place", INT64, &[])
        .node("SequenceConstruct", &["x"], &["one"], &[])
        .node("SequenceAt", &["one", "place"], &["y"], &[])
        .output("y");
    let error = open.error();
    assert!(
        error.contains("'place'") && error.contains("its position"),
        "{error}"
    );
}
