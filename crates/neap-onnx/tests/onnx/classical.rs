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

/// `x0 <= 1` leads to a leaf, the others to `x1 > 2` and its leaves; the third node is listed before the second.
fn older(op: &str, outputs: &[&str], extra: &[(&str, Attr)]) -> Model {
    let mut attributes = vec![
        ("nodes_treeids", Attr::Ints(&[7; 5])),
        ("nodes_nodeids", Attr::Ints(&[0, 2, 1, 3, 4])),
        ("nodes_featureids", Attr::Ints(&[0, 1, 0, 0, 0])),
        (
            "nodes_modes",
            Attr::Strs(&["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF"]),
        ),
        ("nodes_values", Attr::Floats(&[1.0, 2.0, 0.0, 0.0, 0.0])),
        ("nodes_truenodeids", Attr::Ints(&[1, 3, 0, 0, 0])),
        ("nodes_falsenodeids", Attr::Ints(&[2, 4, 0, 0, 0])),
    ];
    for (name, value) in extra {
        attributes.push((
            name,
            match value {
                Attr::Ints(v) => Attr::Ints(v),
                Attr::Floats(v) => Attr::Floats(v),
                Attr::Strs(v) => Attr::Strs(v),
                Attr::Int(v) => Attr::Int(*v),
                Attr::Str(v) => Attr::Str(v),
                _ => unreachable!("not used"),
            },
        ));
    }
    let node = node_in(ML, op, &["x"], outputs, &attributes);
    let mut model = Model::new(21).input("x", FLOAT, &[3, 2]).raw_node(&node);
    for output in outputs.iter().filter(|name| !name.is_empty()) {
        model = model.output(output);
    }
    let import = Bytes::default().string(1, ML).int(2, 3);
    model.rest = model.rest.message(8, &import);
    model
}

fn rows() -> Literal {
    Literal::from_f32(&[3, 2], &[0.5, 9.0, 4.0, 3.0, 4.0, 1.0])
}

#[test]
fn a_leaf_says_something_about_several_targets() {
    let said = |more: &[(&str, Attr)]| {
        let mut extra = vec![
            ("target_treeids", Attr::Ints(&[7; 4])),
            ("target_nodeids", Attr::Ints(&[1, 3, 3, 4])),
            ("target_ids", Attr::Ints(&[0, 0, 1, 1])),
            ("target_weights", Attr::Floats(&[1.0, 2.0, 3.0, -4.0])),
            ("n_targets", Attr::Int(2)),
        ];
        extra.extend(more.iter().map(|(name, value)| match value {
            Attr::Floats(v) => (*name, Attr::Floats(v)),
            Attr::Str(v) => (*name, Attr::Str(v)),
            _ => unreachable!("not used"),
        }));
        let model = older("TreeEnsembleRegressor", &["y"], &extra);
        let y = run(&model, &[rows()]);
        y.as_f32().expect("floats").to_vec()
    };
    assert_eq!(said(&[]), [1.0, 0.0, 2.0, 3.0, 0.0, -4.0]);
    // A target that nothing is said about is zero, not the largest number.
    let least = said(&[("aggregate_function", Attr::Str("MIN"))]);
    assert_eq!(least, [1.0, 0.0, 2.0, 3.0, 0.0, -4.0]);
    let based = said(&[("base_values", Attr::Floats(&[0.5, 10.0]))]);
    assert_eq!(based, [1.5, 10.0, 2.5, 13.0, 0.5, 6.0]);
}

/// A classifier of two classes with one score.
fn two_classes(outputs: &[&str], labels: (&'static str, Attr)) -> Model {
    let extra = [
        ("class_treeids", Attr::Ints(&[7; 3])),
        ("class_nodeids", Attr::Ints(&[1, 3, 4])),
        ("class_ids", Attr::Ints(&[0; 3])),
        ("class_weights", Attr::Floats(&[0.25, 0.75, 0.5])),
        labels,
    ];
    older("TreeEnsembleClassifier", outputs, &extra)
}

#[test]
fn one_score_decides_between_two_classes() {
    let numbers = || ("classlabels_int64s", Attr::Ints(&[4, 9]));
    let model = two_classes(&["label", "scores"], numbers());
    let graph = model.graph();
    let results = neap_ops::interpret(&graph, &[rows()], &|_| None).expect("computes");
    assert_eq!(results[0].to_i64_vec(), Some(vec![4, 9, 4]));
    let shares = [0.75, 0.25, 0.25, 0.75, 0.5, 0.5];
    assert_eq!(results[1].as_f32(), Some(&shares[..]));
}

#[test]
fn labels_that_are_strings_are_refused_but_their_scores_are_not() {
    let names = || ("classlabels_strings", Attr::Strs(&["a", "b"]));
    let error = two_classes(&["label", "scores"], names()).error();
    assert!(error.contains("labels that are strings"), "{error}");
    let scores = run(&two_classes(&["", "scores"], names()), &[rows()]);
    assert_eq!(scores.shape(), [3, 2]);
}

#[test]
fn a_list_of_dictionaries_names_its_remedy() {
    let node = node_in(ML, "ZipMap", &["x"], &["y"], &[]);
    let error = Model::new(21)
        .input("x", FLOAT, &[3, 2])
        .raw_node(&node)
        .output("y")
        .error();
    assert!(error.contains("zipmap=False"), "{error}");
}

#[test]
fn older_trees_that_are_none_are_refused() {
    let wrong: [(&str, Attr, &str); 4] = [
        ("target_nodeids", Attr::Ints(&[1, 3, 9]), "do not fit"),
        ("target_ids", Attr::Ints(&[0, 0, 2]), "do not fit"),
        ("target_weights", Attr::Floats(&[1.0]), "do not fit"),
        ("n_targets", Attr::Int(1 << 50), "out of range"),
    ];
    for (name, value, reason) in wrong {
        let mut extra = vec![
            ("target_treeids", Attr::Ints(&[7; 3])),
            ("target_nodeids", Attr::Ints(&[1, 3, 4])),
            ("target_ids", Attr::Ints(&[0; 3])),
            ("target_weights", Attr::Floats(&[1.0, 2.0, 3.0])),
        ];
        extra.retain(|(other, _)| *other != name);
        extra.push((name, value));
        let error = older("TreeEnsembleRegressor", &["y"], &extra).error();
        assert!(error.contains(reason), "{name}: {error}");
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
