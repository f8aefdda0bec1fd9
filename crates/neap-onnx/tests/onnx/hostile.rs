//! Damaged models: every mutation opens or gives one clear line; nothing panics or takes much.

use crate::support::*;
use neap_onnx::{OpenOptions, open};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A model with something of everything: weights, shape arithmetic, a branch, a function.
fn rich_model() -> Vec<u8> {
    let info = Bytes::default().string(1, "b");
    let branch = Bytes::default()
        .message(1, &node("Abs", &["r"], &["b"], &[]))
        .message(12, &info);
    let import = Bytes::default().string(1, "").int(2, 13);
    let function = Bytes::default()
        .string(1, "Twice")
        .string(4, "x")
        .string(5, "y")
        .message(7, &node("Add", &["x", "x"], &["y"], &[]))
        .message(9, &import)
        .string(10, "mine");
    Model::new(13)
        .input("x", FLOAT, &[1, 2, 8, 8])
        .constant(&f32_tensor("w", &[4, 2, 3, 3], &[0.25; 72]))
        .constant(&f32_tensor("m", &[16, 3], &[0.5; 48]))
        .constant(&tensor("c", BOOL, &[], &[1]))
        .ints("shape", &[0, 4, -1, 16])
        .ints("s", &[0])
        .ints("e", &[2])
        .node(
            "Conv",
            &["x", "w"],
            &["conv"],
            &[
                ("pads", Attr::Ints(&[1, 1, 1, 1])),
                ("strides", Attr::Ints(&[2, 1])),
            ],
        )
        .node("Reshape", &["conv", "shape"], &["r"], &[])
        .node(
            "If",
            &["c"],
            &["i"],
            &[
                ("then_branch", Attr::Graph(branch.clone())),
                ("else_branch", Attr::Graph(branch)),
            ],
        )
        .node("Slice", &["i", "s", "e"], &["sl"], &[])
        .node("MatMul", &["sl", "m"], &["mm"], &[])
        .node("Softmax", &["mm"], &["soft"], &[("axis", Attr::Int(-1))])
        .raw_node(&node_in("mine", "Twice", &["soft"], &["t"], &[]))
        .node("Shape", &["t"], &["size"], &[])
        .node("ConstantOfShape", &["size"], &["zeros"], &[])
        .node("Add", &["t", "zeros"], &["y"], &[])
        .output("y")
        .function(&function)
        .bytes()
}

/// A folder in memory where there is one: thousands of files are written.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("temporary folder")
}

fn check(path: &std::path::Path, bytes: &[u8]) -> bool {
    std::fs::write(path, bytes).expect("written");
    match open(path, &OpenOptions::default()) {
        Ok(graph) => {
            graph.check().expect("well formed");
            true
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n') && text.len() < 2000, "{text}");
            false
        }
    }
}

#[test]
fn mutated_bytes_never_panic() {
    let original = rich_model();
    let folder = scratch();
    let path = folder.path().join("model.onnx");
    assert!(check(&path, &original), "the model itself is valid");
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut below = |n: usize| (rng.next_u64() % n as u64) as usize;
    let mut opened = 0;
    for _ in 0..20_000 {
        let mut bytes = original.clone();
        for _ in 0..=below(3) {
            let at = below(bytes.len());
            match below(6) {
                0 => bytes[at] ^= 1 << below(8),
                1 => bytes[at] = below(256) as u8,
                2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][below(5)],
                3 => {
                    bytes.remove(at);
                }
                4 => bytes.insert(at, below(256) as u8),
                // A huge varint where something else was.
                _ => {
                    let end = (at + 10).min(bytes.len());
                    bytes[at..end].fill(0xff);
                }
            }
        }
        opened += usize::from(check(&path, &bytes));
    }
    assert!(opened > 500, "mutations reach past the parser: {opened}");
}

#[test]
fn truncated_models_are_errors() {
    let original = rich_model();
    let folder = scratch();
    let path = folder.path().join("model.onnx");
    for len in 0..original.len() - 1 {
        // A cut between two top-level fields leaves a valid, smaller message.
        check(&path, &original[..len]);
    }
    assert!(!check(&path, b""));
    assert!(!check(&path, b"not a model at all"));
}

#[test]
fn small_files_cannot_ask_for_much() {
    // Results of a few bytes each that would take terabytes.
    for (op, inputs) in [("ConstantOfShape", &["d"][..]), ("Expand", &["x", "d"])] {
        let model = Model::new(13)
            .input("x", FLOAT, &[1])
            .ints("d", &[1 << 20, 1 << 20, 1 << 20])
            .node(op, inputs, &["z"], &[])
            .node("Add", &["z", "x"], &["y"], &[])
            .output("y");
        let error = model.error();
        assert!(error.contains("impossibly large"), "{error}");
    }
    // Many results that are each small: forty bytes of file for sixteen KiB of memory.
    let mut many = Model::new(13).ints("d", &[2048]);
    let mut parts = Vec::new();
    let value = || ("value", Attr::Tensor(i64_tensor("", &[1], &[1])));
    for i in 0..9000 {
        parts.push(format!("p{i}"));
        many = many.node("ConstantOfShape", &["d"], &[&parts[i]], &[value()]);
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let many = many.node("Sum", &parts, &["y"], &[]).output("y");
    let error = many.error();
    assert!(error.contains("too much memory"), "{error}");
    let range = Model::new(13)
        .constant(&i64_tensor("a", &[], &[0]))
        .constant(&i64_tensor("b", &[], &[i64::MAX]))
        .constant(&i64_tensor("c", &[], &[1]))
        .node("Range", &["a", "b", "c"], &["y"], &[])
        .output("y");
    assert!(range.error().contains("out of range"));
}

#[test]
fn a_flag_that_is_neither_0_nor_1_is_refused() {
    let with = |op: &str, inputs: &[&str], name: &str, value: i64| {
        Model::new(19)
            .input("x", FLOAT, &[4, 4])
            .ints("zero", &[0])
            .node(op, inputs, &["y"], &[(name, Attr::Int(value))])
            .output("y")
    };
    for (op, inputs, name) in [
        ("ReduceSum", &["x", "zero"][..], "keepdims"),
        ("ArgMax", &["x"], "select_last_index"),
        ("CumSum", &["x", "zero"], "exclusive"),
        ("Gemm", &["x", "x"], "transB"),
        ("Trilu", &["x"], "upper"),
        ("Mod", &["x", "x"], "fmod"),
    ] {
        with(op, inputs, name, 1).graph();
        for value in [3, 2, -1, i64::MIN] {
            let error = with(op, inputs, name, value).error();
            let why = format!("attribute '{name}' is {value}, neither 0 nor 1");
            assert!(error.contains(&why), "{error}");
        }
    }
    let body = Bytes::default()
        .message(1, &node("Identity", &["v"], &["r"], &[]))
        .message(11, &value_info("v", FLOAT, &[Ok(4)]))
        .message(12, &Bytes::default().string(1, "r"));
    let scan = |direction: i64| {
        let attributes = [
            ("num_scan_inputs", Attr::Int(1)),
            ("body", Attr::Graph(body.clone())),
            ("scan_input_directions", Attr::Ints(&[direction])),
        ];
        let model = Model::new(19).input("x", FLOAT, &[3, 4]);
        model.node("Scan", &["x"], &["y"], &attributes).output("y")
    };
    scan(1).graph();
    let error = scan(3).error();
    assert!(
        error.contains("'scan_input_directions' is 3, neither 0 nor 1"),
        "{error}"
    );
}
