//! Classical models, spectra and sampling: attributes as the standard has them.

use crate::support::*;
use neap_ir::Literal;

const ML: &str = "ai.onnx.ml";

fn run(model: &Model, inputs: &[Literal]) -> Literal {
    let graph = model.graph();
    let results = neap_ops::interpret(&graph, inputs, &|_| None).expect("computes");
    results.into_iter().next().expect("a result")
}

/// Nodes 1 and 2 are sets; children come before parents in part.
fn ensemble(trues: &[i64], falses: &[i64]) -> Model {
    let nan = f32::NAN;
    let modes = tensor("modes", UINT8, &[3], &[6, 0, 6]);
    let members = f32_tensor("members", &[5], &[7.0, 3.0, nan, 2.0, nan]);
    let attributes = [
        ("nodes_featureids", Attr::Ints(&[1, 0, 0])),
        ("nodes_modes", Attr::Tensor(modes)),
        (
            "nodes_splits",
            Attr::Tensor(f32_tensor("s", &[3], &[0.0, 5.0, 0.0])),
        ),
        ("nodes_truenodeids", Attr::Ints(trues)),
        ("nodes_trueleafs", Attr::Ints(&[1, 0, 1])),
        ("nodes_falsenodeids", Attr::Ints(falses)),
        ("nodes_falseleafs", Attr::Ints(&[1, 0, 1])),
        ("leaf_targetids", Attr::Ints(&[0, 1, 0, 1])),
        (
            "leaf_weights",
            Attr::Tensor(f32_tensor("w", &[4], &[1.0, 2.0, 3.0, 4.0])),
        ),
        ("membership_values", Attr::Tensor(members)),
        ("tree_roots", Attr::Ints(&[1])),
        ("n_targets", Attr::Int(2)),
    ];
    let mut model = Model::new(21)
        .input("x", FLOAT, &[4, 2])
        .raw_node(&node_in(ML, "TreeEnsemble", &["x"], &["y"], &attributes))
        .output("y");
    let import = Bytes::default().string(1, ML).int(2, 5);
    model.rest = model.rest.message(8, &import);
    model
}

#[test]
fn trees_in_any_order_of_nodes() {
    // Node 1: x0 <= 5 to node 0 (x1 in {7, 3}: leaf 0 or 1), else node 2 (x0 in {2}: leaf 2 or 3).
    let model = ensemble(&[0, 0, 2], &[1, 2, 3]);
    let x = [5.0, 3.0, 5.0, 4.0, 6.0, 7.0, f32::NAN, 7.0];
    let y = run(&model, &[Literal::from_f32(&[4, 2], &x)]);
    let expected = [1.0, 0.0, 0.0, 2.0, 0.0, 4.0, 0.0, 4.0];
    assert_eq!(y.as_f32(), Some(&expected[..]));
}

#[test]
fn trees_that_are_none_are_refused() {
    for (trues, falses) in [
        ([0, 1, 2], [1, 2, 3]),
        ([0, 0, 2], [1, 9, 3]),
        ([9, 0, 2], [1, 2, 3]),
    ] {
        let error = ensemble(&trues, &falses).error();
        assert!(error.contains("no trees"), "{error}");
    }
}

#[test]
fn n_grams_as_listed() {
    let model = |counts: &[i64], places: &[i64]| {
        let attributes = [
            ("mode", Attr::Str("TFIDF")),
            ("min_gram_length", Attr::Int(1)),
            ("max_gram_length", Attr::Int(2)),
            ("max_skip_count", Attr::Int(1)),
            ("ngram_counts", Attr::Ints(counts)),
            ("ngram_indexes", Attr::Ints(places)),
            ("pool_int64s", Attr::Ints(&[4, 2, 2, 4, 4, 2])),
            ("weights", Attr::Floats(&[1.0, 10.0, 100.0, 1000.0])),
        ];
        Model::new(9)
            .input("x", INT64, &[4])
            .node("TfIdfVectorizer", &["x"], &["y"], &attributes)
            .output("y")
    };
    let x = Literal::from_i64(&[4], &[2, 4, 4, 2]);
    // Of 4 and 2 there are two each; 2 before 4 at distance 1 and 2, and so is 4 before 2.
    let y = run(&model(&[0, 2], &[3, 0, 1, 2]), &[x]);
    assert_eq!(y.as_f32(), Some(&[20.0, 200.0, 2000.0, 2.0][..]));
    for (counts, places) in [
        (&[0, 1][..], &[0, 1, 2, 3][..]),
        (&[0, 2], &[0, 1, 2]),
        (&[0, 9], &[0, 1, 2, 3]),
    ] {
        let error = model(counts, places).error();
        assert!(error.contains("do not fit"), "{error}");
    }
}

#[test]
fn a_filter_bank_is_made_while_reading() {
    let whole = |name: &str, value: i64| i64_tensor(name, &[], &[value]);
    let model = |upper: f32| {
        Model::new(17)
            .constant(&whole("bins", 4))
            .constant(&whole("length", 64))
            .constant(&whole("rate", 8192))
            .constant(&f32_tensor("low", &[], &[0.0]))
            .constant(&f32_tensor("high", &[], &[upper]))
            .input("x", FLOAT, &[1, 33])
            .node(
                "MelWeightMatrix",
                &["bins", "length", "rate", "low", "high"],
                &["bank"],
                &[],
            )
            .node("MatMul", &["x", "bank"], &["y"], &[])
            .output("y")
    };
    let graph = model(4096.0).graph();
    assert_eq!(operators(&graph), ["MatMul"]);
    assert_eq!(output_shape(&graph), [1, 4]);
    let error = model(9000.0).error();
    assert!(error.contains("beyond"), "{error}");
}

#[test]
fn signals_may_lack_the_axis_of_complex_numbers() {
    let graph = Model::new(17)
        .input("x", FLOAT, &[2, 20])
        .constant(&i64_tensor("step", &[], &[4]))
        .constant(&i64_tensor("frame", &[], &[8]))
        .node("STFT", &["x", "step", "", "frame"], &["y"], &[])
        .output("y")
        .graph();
    assert_eq!(output_shape(&graph), [2, 4, 5, 2]);
}
