//! Constants: byte ranges, folding, external data, shapes that depend on values.

use crate::support::*;
use neap_ir::{Const, DType, FileId, FileRange, Literal, Op, SourceFile};
use neap_onnx::{OpenOptions, open};

/// A weight above the inline limit.
fn big_weight(name: &str) -> Bytes {
    let raw: Vec<u8> = (0..8192u32)
        .flat_map(|i| (i as f32).to_le_bytes())
        .collect();
    tensor(name, FLOAT, &[64, 128], &raw)
}

fn weight_of(graph: &neap_ir::Graph) -> (FileRange, DType) {
    let weight = graph.nodes[0].input(1).expect("a weight");
    match graph.constant(weight) {
        Some(Const::Stored {
            range,
            stored_dtype,
        }) => (*range, *stored_dtype),
        other => panic!("{other:?}"),
    }
}

#[test]
fn big_initializers_stay_in_the_file() {
    let model = Model::new(13)
        .input("x", FLOAT, &[1, 64])
        .constant(&big_weight("w"))
        .node("MatMul", &["x", "w"], &["y"], &[])
        .output("y");
    let (range, dtype) = weight_of(&model.graph());
    assert_eq!((range.bytes, dtype), (8192 * 4, DType::F32));
    let bytes = model.bytes();
    let at = range.offset as usize;
    assert_eq!(bytes[at + 4..at + 8], 1f32.to_le_bytes());
    assert_eq!(bytes[at + 8191 * 4..][..4], 8191f32.to_le_bytes());
}

#[test]
fn packed_float_data_is_a_range_too() {
    let floats: Vec<u8> = (0..8192u32)
        .flat_map(|i| (i as f32).to_le_bytes())
        .collect();
    let model = Model::new(13)
        .input("x", FLOAT, &[1, 64])
        .constant(&tensor_head("w", FLOAT, &[64, 128]).bytes(4, &floats))
        .node("MatMul", &["x", "w"], &["y"], &[])
        .output("y");
    let (range, _) = weight_of(&model.graph());
    assert_eq!(
        model.bytes()[range.offset as usize + 4..][..4],
        1f32.to_le_bytes()
    );
}

#[test]
fn typed_fields_decode() {
    // int64_data packed, bool in int32_data, float_data unpacked.
    let mut packed = Bytes::default();
    for v in [-1i64, 3] {
        packed.raw_varint(v as u64);
    }
    let graph = Model::new(13)
        .constant(&tensor_head("i", INT64, &[2]).bytes(7, &packed.0))
        .constant(&tensor_head("b", BOOL, &[2]).int(5, 1).int(5, 0))
        .constant(&tensor_head("f", FLOAT, &[2]).float(4, 1.5).float(4, -2.0))
        .node("Identity", &["i"], &["io"], &[])
        .node("Identity", &["b"], &["bo"], &[])
        .node("Identity", &["f"], &["fo"], &[])
        .output("io")
        .output("bo")
        .output("fo")
        .graph();
    let source = |output: usize| {
        let node = graph.nodes[output].input(0).expect("copied from");
        graph.literal(node).expect("inline").clone()
    };
    assert_eq!(source(0), Literal::from_i64(&[2], &[-1, 3]));
    assert_eq!(source(1).bytes(), [1, 0]);
    assert_eq!(source(2), Literal::from_f32(&[2], &[1.5, -2.0]));
}

#[test]
fn data_that_do_not_fit_their_shape_are_refused() {
    let with = |t: Bytes| {
        Model::new(13)
            .constant(&t)
            .node("Abs", &["w"], &["y"], &[])
            .output("y")
            .error()
    };
    for (tensor, reason) in [
        (
            tensor("w", FLOAT, &[3], &[0; 8]),
            "holds 8 bytes, but its shape needs 12",
        ),
        (tensor("w", FLOAT, &[-3], &[0; 8]), "negative dimension"),
        (tensor("w", FLOAT, &[i64::MAX, 8], &[]), "impossibly large"),
        (tensor("w", 99, &[1], &[0; 4]), "element type 99 is unknown"),
        (tensor("w", 8, &[1], &[0; 4]), "string is not supported"),
        (
            tensor_head("w", FLOAT, &[3]).float(4, 1.0),
            "do not have 3 elements",
        ),
        (tensor_head("w", FLOAT, &[1 << 40]), "do not have"),
    ] {
        let error = with(tensor);
        assert!(error.contains("'w'") && error.contains(reason), "{error}");
    }
}

/// What PyTorch writes for `x.view(x.size(0), -1)` and friends.
#[test]
fn shape_arithmetic_folds_away() {
    let graph = Model::new(13)
        .input("x", FLOAT, &[2, 3, 4])
        .ints("zero", &[0])
        .ints("axes", &[0])
        .ints("minus_one", &[-1])
        .constant(&i64_tensor("index", &[], &[0]))
        .node("Shape", &["x"], &["shape"], &[])
        .node("Gather", &["shape", "index"], &["n"], &[])
        .node("Unsqueeze", &["n", "axes"], &["n1"], &[])
        .node(
            "Concat",
            &["n1", "minus_one"],
            &["target"],
            &[("axis", Attr::Int(0))],
        )
        .node("Reshape", &["x", "target"], &["y"], &[])
        .output("y")
        .graph();
    assert_eq!(only_op(&graph), &Op::Reshape { shape: vec![2, 12] });
    assert!(graph.consts.is_empty(), "nothing is left of the arithmetic");
}

#[test]
fn views_of_big_weights_are_ranges() {
    let model = Model::new(13)
        .input("x", FLOAT, &[1, 64])
        .constant(&big_weight("w"))
        .ints("parts", &[32, 32])
        .ints("shape", &[64, 64])
        .node("Identity", &["w"], &["same"], &[])
        .node("Split", &["same", "parts"], &["a", "b"], &[])
        .node("Reshape", &["b", "shape"], &["m"], &[])
        .node("MatMul", &["x", "m"], &["y"], &[])
        .output("y");
    let graph = model.graph();
    assert_eq!(operators(&graph), ["MatMul"]);
    let (range, _) = weight_of(&graph);
    assert_eq!(range.bytes, 4096 * 4);
    let first = &model.bytes()[range.offset as usize..][..4];
    assert_eq!(first, 4096f32.to_le_bytes());
}

#[test]
fn rows_of_a_big_table_that_follow_each_other_are_a_range() {
    let model = |rows: &[i64]| {
        let count = rows.len() as i64;
        Model::new(13)
            .input("x", FLOAT, &[1, count])
            .constant(&big_weight("w"))
            .ints("rows", rows)
            .node("Gather", &["w", "rows"], &["part"], &[])
            .node("MatMul", &["x", "part"], &["y"], &[])
            .output("y")
    };
    let run: Vec<i64> = (3..43).collect();
    let found = model(&run);
    let graph = found.graph();
    assert_eq!(operators(&graph), ["MatMul"]);
    let (range, _) = weight_of(&graph);
    assert_eq!(range.bytes, 40 * 128 * 4);
    let first = &found.bytes()[range.offset as usize..][..4];
    assert_eq!(first, (3.0 * 128.0f32).to_le_bytes());
    // Others are looked up.
    let jumps: Vec<i64> = (0..40).map(|i| i * 37 % 64).collect();
    let graph = model(&jumps).graph();
    let part = graph.literal(graph.nodes[0].inputs[1].expect("a weight"));
    assert_eq!(
        part.expect("folded").as_f32().expect("floats")[128],
        37.0 * 128.0
    );
    let past: Vec<i64> = (30..70).collect();
    // Past the end there is nothing: that is no range, and the run says so.
    assert_eq!(operators(&model(&past).graph()), ["Gather", "MatMul"]);
    let negative: Vec<i64> = (-40..0).collect();
    let graph = model(&negative).graph();
    let part = graph.literal(graph.nodes[0].inputs[1].expect("a weight"));
    assert_eq!(
        part.expect("folded").as_f32().expect("floats")[0],
        24.0 * 128.0
    );
}

#[test]
fn transposes_of_big_weights_are_left_to_the_packer() {
    let graph = Model::new(13)
        .input("x", FLOAT, &[1, 128])
        .constant(&big_weight("w"))
        .node("Transpose", &["w"], &["t"], &[])
        .node("MatMul", &["x", "t"], &["y"], &[])
        .output("y")
        .graph();
    assert_eq!(operators(&graph), ["Transpose", "MatMul"]);
}

/// Layers take weights in 8 bits as they are, however few; others read what they stand for.
#[test]
fn small_weights_in_8_bits_are_left_to_layers() {
    const INT8: i32 = 3;
    let bytes: Vec<u8> = (0..=255).collect();
    let graph = Model::new(13)
        .input("x", FLOAT, &[8, 16])
        .constant(&tensor("w", INT8, &[16, 16], &bytes))
        .constant(&tensor("few", INT8, &[4, 4], &bytes[..16]))
        .constant(&tensor("row", INT8, &[32], &bytes[..32]))
        .constant(&f32_tensor("scale", &[], &[0.5]))
        .ints("columns", &[16, 2])
        .node("DequantizeLinear", &["w", "scale"], &["wide"], &[])
        .node("DequantizeLinear", &["few", "scale"], &["sizes"], &[])
        .node("DequantizeLinear", &["row", "scale"], &["long"], &[])
        .node("MatMul", &["x", "wide"], &["y"], &[])
        .node("Reshape", &["long", "columns"], &["shift"], &[])
        .node("MatMul", &["y", "shift"], &["z"], &[])
        .node("Neg", &["sizes"], &["signs"], &[])
        .node("Abs", &["wide"], &["positive"], &[])
        .node("MatMul", &["x", "positive"], &["sum"], &[])
        .output("z")
        .output("signs")
        .output("sum")
        .graph();
    let products = graph.nodes.iter().filter(|node| node.op == Op::MatMul);
    let weights: Vec<_> = products.filter_map(|node| node.input(1)).collect();
    let maker = |value| {
        let mut makers = graph.nodes.iter();
        makers.find(|node| node.outputs == [Some(value)])
    };
    let dequantize = maker(weights[0]).expect("made by a node");
    assert!(matches!(dequantize.op, Op::Dequantize { .. }));
    let steps = dequantize.input(0).and_then(|steps| graph.literal(steps));
    assert_eq!(steps.expect("known").dtype(), DType::I8);
    for &known in &weights[1..] {
        assert!(graph.literal(known).is_some());
    }
    let positive = graph.literal(weights[2]).and_then(Literal::as_f32);
    assert_eq!(positive.expect("floats")[255], 0.5);
}

/// What is computed of a few numbers is known all the same: they may be sizes.
#[test]
fn parameters_stay_whole_for_who_trains_them() {
    let bias: Vec<f32> = (0..128).map(|i| i as f32).collect();
    let model = Model::new(13)
        .input("x", FLOAT, &[1, 64])
        .constant(&big_weight("w"))
        .constant(&f32_tensor("bias", &[128], &bias))
        .constant(&f32_tensor("repeats", &[2], &[3.0, 1.0]))
        .ints("halves", &[64, 64])
        .ints("rows", &(0..32).collect::<Vec<i64>>())
        .ints("shape", &[64, 64])
        .node("Split", &["bias", "halves"], &["b0", "b1"], &[])
        .node("Add", &["x", "b1"], &["shifted"], &[])
        .node("Gather", &["w", "rows"], &["part"], &[])
        .node("Reshape", &["part", "shape"], &["m"], &[])
        .node("MatMul", &["shifted", "m"], &["y"], &[])
        .node("Cast", &["repeats"], &["sizes"], &[("to", Attr::Int(7))])
        .node("Tile", &["y", "sizes"], &["z"], &[])
        .output("z");
    assert_eq!(operators(&model.graph()), ["Add", "MatMul", "Tile"]);
    let options = OpenOptions {
        keep_parameters: true,
        ..OpenOptions::default()
    };
    let graph = model.open_with(&options).expect("a graph");
    assert_eq!(
        operators(&graph),
        ["Split", "Add", "Gather", "Reshape", "MatMul", "Tile"]
    );
    let whole = |node: usize, name: &str, shape: &[usize]| {
        let value = graph.nodes[node].input(0).expect("a parameter");
        assert!(graph.constant(value).is_some());
        assert_eq!(graph.value(value).name, name);
        assert_eq!(graph.ty(value).shape, shape);
    };
    whole(0, "bias", &[128]);
    whole(2, "w", &[64, 128]);
}

#[test]
fn a_shape_from_an_input_asks_for_that_input() {
    let model = Model::new(13)
        .input("x", FLOAT, &[6])
        .input("target", INT64, &[2])
        .node("Reshape", &["x", "target"], &["y"], &[])
        .output("y");
    let error = model.error();
    assert!(
        error.contains("the_Reshape") && error.contains("'target'"),
        "{error}"
    );
    let mut options = OpenOptions::default();
    options
        .bindings
        .insert("target".into(), Literal::from_i64(&[2], &[3, 2]));
    let graph = model.open_with(&options).expect("bound");
    assert_eq!(output_shape(&graph), [3, 2]);
    assert_eq!(graph.inputs.len(), 1);
    options
        .bindings
        .insert("target".into(), Literal::from_f32(&[2], &[3.0, 2.0]));
    let error = model
        .open_with(&options)
        .expect_err("wrong type")
        .to_string();
    assert!(error.contains("float32"), "{error}");
}

#[test]
fn outputs_are_values_of_their_own() {
    // Two outputs of one value, an output that is an input, one that is a constant.
    let graph = Model::new(13)
        .input("x", FLOAT, &[2])
        .ints("c", &[7])
        .node("Relu", &["x"], &["y"], &[])
        .node("Identity", &["y"], &["z"], &[])
        .node("Identity", &["x"], &["same"], &[])
        .output("y")
        .output("z")
        .output("same")
        .output("c")
        .graph();
    let names: Vec<&str> = graph
        .outputs
        .iter()
        .map(|&o| graph.value(o).name.as_str())
        .collect();
    assert_eq!(names, ["y", "z", "same", "c"]);
    assert_eq!(graph.value(graph.inputs[0]).name, "x");
    let mut distinct = graph.outputs.clone();
    distinct.dedup();
    assert_eq!(distinct.len(), 4);
}

/// The file beside the model is not looked for where the model says that it was never written.
#[test]
fn absent_weights_have_shapes_and_read_as_zeros() {
    let small = external_of("b", &[1, 128], "no/such/file", &[("offset", "65536")]);
    let model = |value: &str| {
        Model::new(13)
            .input("x", FLOAT, &[1, 64])
            .constant(&external("../no/such/file", &[]))
            .constant(&small)
            .node("MatMul", &["x", "w"], &["y"], &[])
            .node("Add", &["y", "b"], &["z"], &[])
            .output("z")
            .metadata("neaptide.weights", value)
    };
    assert!(model("present").open().is_err());
    let graph = model("absent").graph();
    let files = &graph.files;
    assert_eq!(files[1..], [SourceFile::Absent, SourceFile::Absent]);
    let (range, _) = weight_of(&graph);
    assert_eq!((range.file, range.bytes), (FileId(1), 64 * 128 * 4));
    let held = graph.consts.iter().find_map(|c| match c {
        Const::Inline(literal) => literal.as_f32(),
        _ => None,
    });
    assert_eq!(held, Some(&[0.0; 128][..]));
}

fn external(location: &str, extra: &[(&str, &str)]) -> Bytes {
    external_of("w", &[64, 128], location, extra)
}

fn external_of(name: &str, dims: &[i64], location: &str, extra: &[(&str, &str)]) -> Bytes {
    let entry = |t: Bytes, key: &str, value: &str| {
        t.message(13, &Bytes::default().string(1, key).string(2, value))
    };
    let t = tensor_head(name, FLOAT, dims).int(14, 1);
    let t = entry(t, "location", location);
    extra.iter().fold(t, |t, (k, v)| entry(t, k, v))
}

#[test]
fn external_data_are_ranges_of_their_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let model = folder.path().join("model.onnx");
    let write = |tensor: Bytes| {
        let bytes = Model::new(13)
            .input("x", FLOAT, &[1, 64])
            .constant(&tensor)
            .node("MatMul", &["x", "w"], &["y"], &[])
            .output("y")
            .bytes();
        std::fs::write(&model, bytes).expect("written");
        open(&model, &OpenOptions::default())
    };
    std::fs::create_dir(folder.path().join("sub")).expect("folder");
    std::fs::write(folder.path().join("sub/w.bin"), vec![0u8; 8192 * 4 + 4096]).expect("data");
    let graph = write(external(
        "sub/w.bin",
        &[("offset", "4096"), ("length", "32768")],
    ))
    .expect("valid");
    let (range, _) = weight_of(&graph);
    assert_eq!((range.file, range.offset), (FileId(1), 4096));
    assert!(
        matches!(&graph.files[1], SourceFile::At(path) if path.ends_with("sub/w.bin")),
        "{:?}",
        graph.files
    );

    std::os::unix::fs::symlink("/etc/hostname", folder.path().join("link")).expect("link");
    for (tensor, reason) in [
        (external("../w.bin", &[]), "leaves the model's folder"),
        (
            external("sub/../../w.bin", &[]),
            "leaves the model's folder",
        ),
        (external("/etc/hostname", &[]), "leaves the model's folder"),
        (external("link", &[]), "leaves the model's folder"),
        (external("", &[]), "leaves the model's folder"),
        (external("missing.bin", &[]), "cannot be opened"),
        (external("sub", &[]), "not a regular file"),
        (external("sub/w.bin", &[("offset", "8192")]), "too short"),
        (
            external("sub/w.bin", &[("offset", "18446744073709551615")]),
            "too short",
        ),
        (external("sub/w.bin", &[("offset", "many")]), "not a number"),
        (
            external("sub/w.bin", &[("length", "12")]),
            "its shape needs 32768",
        ),
    ] {
        let error = write(tensor).expect_err("refused").to_string();
        assert!(error.contains(reason) && error.contains("'w'"), "{error}");
    }
}
