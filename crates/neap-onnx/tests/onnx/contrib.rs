//! onnxruntime's own operators: what is refused says why, and layers with activations become layers. Values are compared with
//! onnxruntime's in the Python package's tests.

use crate::support::*;
use neap_ir::Literal;
use neap_ir::op::Unary;
use neap_ir::{DType, Op};

const MICROSOFT: &str = "com.microsoft";

fn model(op: &str, inputs: &[&str], outputs: &[&str], attributes: &[(&str, Attr)]) -> Model {
    let mut model = Model::new(21).raw_node(&node_in(MICROSOFT, op, inputs, outputs, attributes));
    for output in outputs {
        model = model.output(output);
    }
    model
}

#[test]
fn a_layer_with_any_activation_of_onnxruntimes() {
    for (name, expected) in [
        ("Elu", Unary::Elu { alpha: 0.5 }),
        ("ThresholdedRelu", Unary::ThresholdedRelu { alpha: 0.5 }),
        ("Softplus", Unary::Softplus),
        (
            "Selu",
            Unary::Selu {
                alpha: 0.5,
                gamma: 2.0,
            },
        ),
    ] {
        let attributes = [
            ("activation", Attr::Str(name)),
            ("activation_alpha", Attr::Float(0.5)),
            ("activation_gamma", Attr::Float(2.0)),
            ("transB", Attr::Int(1)),
        ];
        let graph = model("FusedGemm", &["x", "w"], &["y"], &attributes)
            .input("x", FLOAT, &[2, 3])
            .input("w", FLOAT, &[4, 3])
            .graph();
        assert_eq!(operators(&graph)[0], "Gemm");
        assert_eq!(graph.nodes[1].op, Op::Unary(expected));
    }
    let unknown = model(
        "FusedGemm",
        &["x", "w"],
        &["y"],
        &[("activation", Attr::Str("Mystery"))],
    );
    let error = unknown
        .input("x", FLOAT, &[2, 3])
        .input("w", FLOAT, &[3, 4])
        .error();
    assert!(error.contains("the activation 'Mystery'"), "{error}");
}

#[test]
fn a_model_in_one_machines_blocks_names_its_remedy() {
    let node = node_in("com.microsoft.nchwc", "Conv", &["x", "x"], &["y"], &[]);
    let error = Model::new(21)
        .input("x", FLOAT, &[1, 16, 4, 4])
        .raw_node(&node)
        .output("y")
        .error();
    assert!(error.contains("ORT_ENABLE_EXTENDED"), "{error}");
}

#[test]
fn weights_in_another_order_are_refused_and_in_their_own_are_not() {
    let of = |order: [i64; 4]| {
        let attributes = [
            ("K", Attr::Int(4)),
            ("N", Attr::Int(1)),
            ("bits", Attr::Int(8)),
            ("block_size", Attr::Int(2)),
        ];
        model(
            "MatMulNBits",
            &["x", "w", "s", "", "order"],
            &["y"],
            &attributes,
        )
        .input("x", FLOAT, &[1, 4])
        .constant(&tensor("w", UINT8, &[1, 2, 2], &[129, 130, 127, 128]))
        .constant(&f32_tensor("s", &[2], &[1.0, 0.5]))
        .constant(&i64_tensor("order", &[4], &order))
    };
    let graph = of([0, 0, 1, 1]).graph();
    let x = Literal::from_f32(&[1, 4], &[1.0, 1.0, 1.0, 1.0]);
    let y = neap_ops::interpret(&graph, &[x], &|_| None).expect("computes");
    assert_eq!(y[0].as_f32(), Some(&[2.5][..]));
    let error = of([0, 1, 0, 1]).error();
    assert!(error.contains("g_idx"), "{error}");
}

/// Of one head of two features, `queries` rows, and a cache of `past` rows.
fn attention(past: i64, queries: i64, lengths: &[i64], attributes: &[(&str, Attr)]) -> Model {
    let batch = lengths.len() as i64;
    let last: Vec<i64> = lengths.iter().map(|length| length - 1).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut all = vec![("num_heads", Attr::Int(1)), ("kv_num_heads", Attr::Int(1))];
    all.extend(attributes.iter().map(|(name, value)| match value {
        Attr::Int(v) => (*name, Attr::Int(*v)),
        Attr::Float(v) => (*name, Attr::Float(*v)),
        _ => unreachable!("not used"),
    }));
    let inputs = ["q", "q", "q", "pk", "pv", "last", "total"];
    model("GroupQueryAttention", &inputs, &["y", "nk", "nv"], &all)
        .input("q", FLOAT, &[batch, queries, 2])
        .input("pk", FLOAT, &[batch, 1, past, 2])
        .input("pv", FLOAT, &[batch, 1, past, 2])
        .ints("last", &last)
        .ints("total", &[longest])
}

#[test]
fn new_rows_go_where_their_sequence_ends() {
    let graph = attention(4, 1, &[3, 2], &[]).graph();
    let q = Literal::from_f32(&[2, 1, 2], &[9.0; 4]);
    let numbers: Vec<f32> = (1..=16u8).map(f32::from).collect();
    let past = Literal::from_f32(&[2, 1, 4, 2], &numbers);
    let inputs = [q, past.clone(), past];
    let results = neap_ops::interpret(&graph, &inputs, &|_| None).expect("computes");
    let expected = [
        1.0, 2.0, 3.0, 4.0, 9.0, 9.0, 0.0, 0.0, // of three
        9.0, 10.0, 9.0, 9.0, 0.0, 0.0, 0.0, 0.0, // of two
    ];
    assert_eq!(results[1].as_f32(), Some(&expected[..]));
    assert_eq!(results[2].as_f32(), Some(&expected[..]));
}

#[test]
fn a_window_of_one_key_gives_each_rows_own_value() {
    for extra in [
        &[("local_window_size", Attr::Int(1))][..],
        &[
            ("local_window_size", Attr::Int(1)),
            ("softcap", Attr::Float(3.0)),
        ],
    ] {
        let graph = attention(0, 3, &[3], extra).graph();
        let rows = [1.0, -2.0, 5.0, 0.5, 0.25, 7.0];
        let q = Literal::from_f32(&[1, 3, 2], &rows);
        let none = Literal::zeros(DType::F32, &[1, 1, 0, 2]);
        let inputs = [q, none.clone(), none];
        let results = neap_ops::interpret(&graph, &inputs, &|_| None).expect("computes");
        assert_eq!(results[0].as_f32(), Some(&rows[..]));
    }
}

#[test]
fn caches_that_are_not_supported_say_so() {
    for (attribute, reason) in [
        (
            ("sliding_window_cache", Attr::Int(1)),
            "as long as a window",
        ),
        (("qk_output", Attr::Int(1)), "output of scores"),
    ] {
        let error = attention(4, 1, &[5], &[attribute]).error();
        assert!(error.contains(reason), "{error}");
    }
    let error = attention(4, 1, &[9], &[]).error();
    assert!(error.contains("do not fit its cache"), "{error}");
}
