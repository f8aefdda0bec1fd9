//! What a model declares, read without its nodes.

use crate::support::*;
use neap_ir::DType;
use neap_onnx::{DeclaredDim, OnnxError, signature};

#[test]
fn inputs_outputs_and_metadata_are_read_as_declared() {
    let mut model = Model::new(13)
        .open_input("x", FLOAT16, &[Err("batch"), Err(""), Ok(4)])
        .input("w", FLOAT, &[2])
        .constant(&f32_tensor("w", &[2], &[1.0, 2.0]))
        .input("text", 8, &[1])
        // It is passed over, be it supported or not.
        .node("NoSuchOperator", &["x"], &["y"], &[])
        .metadata("labels", "cat,dog")
        .metadata("stride", "32");
    let shape = [Err("batch"), Ok(1000)];
    model.graph = model.graph.message(12, &value_info("y", FLOAT, &shape));
    model.graph = model.graph.string(10, "of the graph");
    let rest = model.rest.string(2, "a maker").string(4, "org.example");
    model.rest = rest.int(5, 7).string(6, "of the model");

    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), model.bytes()).expect("written");
    let found = signature(file.path()).expect("read");

    // What has an initializer is no input.
    let names: Vec<&str> = found.inputs.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["x", "text"]);
    let x = &found.inputs[0];
    assert_eq!(
        (x.dtype, x.type_text.as_str()),
        (Some(DType::F16), "tensor(float16)")
    );
    let dims = [
        DeclaredDim::Named("batch".into()),
        DeclaredDim::Open,
        DeclaredDim::Fixed(4),
    ];
    assert_eq!(x.dims.as_deref(), Some(&dims[..]));
    let text = &found.inputs[1];
    assert_eq!(
        (text.dtype, text.type_text.as_str()),
        (None, "tensor(string)")
    );
    let y = &found.outputs[0];
    let dims = [DeclaredDim::Named("batch".into()), DeclaredDim::Fixed(1000)];
    assert_eq!((y.name.as_str(), y.dims.as_deref()), ("y", Some(&dims[..])));

    let about = found.about;
    assert_eq!(about.producer_name, "a maker");
    assert_eq!(about.domain, "org.example");
    assert_eq!(
        (about.version, about.description.as_str()),
        (7, "of the model")
    );
    assert_eq!(
        (about.graph_name.as_str(), about.graph_description.as_str()),
        ("test", "of the graph")
    );
    let metadata = [("labels", "cat,dog"), ("stride", "32")];
    assert_eq!(
        about.metadata,
        metadata.map(|(k, v)| (k.to_string(), v.to_string()))
    );
}

#[test]
fn what_is_no_model_is_told() {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), Model::new(13).rest.0).expect("written");
    let error = signature(file.path()).expect_err("no graph");
    assert!(matches!(error, OnnxError::Model { .. }), "{error}");
    std::fs::write(file.path(), [0xff; 64]).expect("written");
    let error = signature(file.path()).expect_err("no protobuf");
    assert!(matches!(error, OnnxError::Malformed { .. }), "{error}");
    let error = signature("/no/such/model.onnx".as_ref()).expect_err("no file");
    assert!(matches!(error, OnnxError::Open { .. }), "{error}");
}

/// The type of output `y`, which declares none.
fn undeclared(model: &Model) -> String {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), model.bytes()).expect("written");
    let found = signature(file.path()).expect("read");
    found.outputs[0].type_text.clone()
}

#[test]
fn an_output_that_declares_no_type_has_that_of_what_computes_it() {
    let square = tensor("w", FLOAT16, &[4, 4], &[0; 32]);
    let model = || {
        Model::new(17)
            .input("x", FLOAT16, &[4, 4])
            .input("f", FLOAT, &[4, 4])
            .constant(&square)
            .output("y")
    };
    let cast = |to: i32| [("to", Attr::Int(to.into()))];
    let gemm = model().node("Gemm", &["x", "w"], &["y"], &[]);
    assert_eq!(undeclared(&gemm), "tensor(float16)");
    let chosen = model().node("Equal", &["x", "w"], &["same"], &[]).node(
        "Where",
        &["same", "f", "f"],
        &["y"],
        &[],
    );
    assert_eq!(undeclared(&chosen), "tensor(float)");
    let narrowed = model().node("Cast", &["f"], &["y"], &cast(BFLOAT16));
    assert_eq!(undeclared(&narrowed), "tensor(bfloat16)");
    let like = model().node("CastLike", &["f", "x"], &["y"], &[]);
    assert_eq!(undeclared(&like), "tensor(float16)");
    let places = model().node("ArgMax", &["x"], &["y"], &[]);
    assert_eq!(undeclared(&places), "tensor(int64)");
    // Out of order, and within a branch.
    let branch = Bytes::default()
        .message(1, &node("Relu", &["h"], &["b"], &[]))
        .message(12, &Bytes::default().string(1, "b"));
    let inside = model()
        .input("c", BOOL, &[])
        .node(
            "If",
            &["c"],
            &["y"],
            &[
                ("then_branch", Attr::Graph(branch.clone())),
                ("else_branch", Attr::Graph(branch)),
            ],
        )
        .node("Abs", &["x"], &["h"], &[]);
    assert_eq!(undeclared(&inside), "tensor(float16)");
    let import = Bytes::default().string(1, "").int(2, 17);
    let function = Bytes::default()
        .string(1, "Twice")
        .string(4, "a")
        .string(5, "b")
        .message(7, &node("Add", &["a", "a"], &["b"], &[]))
        .message(9, &import)
        .string(10, "mine");
    let called = model()
        .raw_node(&node_in("mine", "Twice", &["x"], &["y"], &[]))
        .function(&function);
    assert_eq!(undeclared(&called), "tensor(float16)");
    let unknown = model().raw_node(&node_in("mine", "NoSuch", &["x"], &["y"], &[]));
    assert_eq!(undeclared(&unknown), "undefined");
}
