//! Inputs whose values decide shapes, and models without weights.

use super::hostile_onnx::support::{Attr, FLOAT, INT64, Model as Onnx};
use neaptide::{Budget, Cache, Literal, Model, OpenOptions, RunOptions};
use std::path::{Path, PathBuf};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn written(folder: &Path, model: Onnx) -> PathBuf {
    let path = folder.join("m.onnx");
    std::fs::write(&path, model.bytes()).expect("written");
    path
}

/// With values of all data at hand.
fn options(folder: &Path, values: &[(&str, Literal)]) -> OpenOptions {
    OpenOptions {
        value_hints: (values.iter())
            .map(|(name, value)| (name.to_string(), value.clone()))
            .collect(),
        cache: Cache::Folder(folder.join("cache")),
        ..OpenOptions::default()
    }
}

fn open(path: &Path, options: &OpenOptions) -> neaptide::Result<Model> {
    Model::open(path, options, &mut |_| {})
}

/// The first output, without a budget and under the smallest; both are the same bits.
fn run(path: &Path, open_options: &OpenOptions, inputs: &[&[u8]]) -> Vec<u8> {
    let mut found: Option<Vec<u8>> = None;
    for smallest in [false, true] {
        let model = open(path, open_options).expect("opened");
        let mut options = RunOptions {
            threads: 2,
            ..RunOptions::default()
        };
        if smallest {
            options.budget = Budget::Bytes(model.bounds(&options).smallest_feasible_bytes());
        }
        let plan = model.plan(&options).expect("planned");
        let mut session = model.into_session(plan, &options).expect("a session");
        let mut result = vec![0xff; session.outputs()[0].len_bytes()];
        session.run(inputs, &mut [&mut result]).expect("run");
        assert_eq!(*found.get_or_insert_with(|| result.clone()), result);
    }
    found.expect("two runs")
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn only_values_that_decide_shapes_are_bound() {
    let folder = folder();
    let path = written(
        folder.path(),
        Onnx::new(17)
            .input("x", FLOAT, &[2, 3])
            .input("shift", FLOAT, &[1])
            .input("shape", INT64, &[2])
            .node("Reshape", &["x", "shape"], &["r"], &[])
            .node("Add", &["r", "shift"], &["y"], &[])
            .output("y"),
    );
    let data = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let with_shape = |shape: [i64; 2]| {
        let values = [
            ("x", Literal::from_f32(&[2, 3], &data)),
            ("shift", Literal::from_f32(&[1], &[10.0])),
            ("shape", Literal::from_i64(&[2], &shape)),
        ];
        options(folder.path(), &values)
    };
    for shape in [[3, 2], [6, 1]] {
        let options = with_shape(shape);
        let model = open(&path, &options).expect("opened");
        let names: Vec<String> = model.inputs().into_iter().map(|i| i.name).collect();
        assert_eq!(names, ["x", "shift"]);
        let bound = model.bound();
        assert_eq!(bound.len(), 1);
        assert_eq!(bound[0].name, "shape");
        assert_eq!(bound[0].value, Literal::from_i64(&[2], &shape));
        assert_eq!(model.outputs()[0].ty.shape, shape.map(|d| d as usize));
        let found = run(&path, &options, &[&bytes(&data), &bytes(&[10.0])]);
        assert_eq!(found, bytes(&data.map(|x| x + 10.0)));
    }
    let error = open(&path, &options(folder.path(), &[])).err();
    let error = error.expect("the shape is open").to_string();
    assert!(error.contains("the value of input 'shape'"), "{error}");
}

#[test]
fn a_packed_model_takes_other_bound_values() {
    let folder = folder();
    let path = written(
        folder.path(),
        Onnx::new(17)
            .input("x", FLOAT, &[2, 3])
            .input("shape", INT64, &[1])
            .node("Reshape", &["x", "shape"], &["y"], &[])
            .output("y"),
    );
    let bound = |value: i64| {
        let mut options = options(folder.path(), &[]);
        let value = Literal::from_i64(&[1], &[value]);
        options.bindings.insert("shape".into(), value);
        options
    };
    let packed = folder.path().join("m.neap");
    neaptide::pack(&path, &packed, &bound(6), &mut |_| {}).expect("packed");
    let before = std::fs::read(&packed).expect("readable");
    for value in [6, -1] {
        let model = open(&packed, &bound(value)).expect("opened");
        assert_eq!(model.bound()[0].value, Literal::from_i64(&[1], &[value]));
        assert_eq!(model.outputs()[0].ty.shape, [6]);
    }
    let error = open(&packed, &bound(5)).err().expect("six elements");
    assert!(error.to_string().contains("m.neap"), "{error}");
    assert!(std::fs::read(&packed).expect("readable") == before);
}

#[test]
fn tensors_without_elements_may_lie_anywhere() {
    let folder = folder();
    let path = written(
        folder.path(),
        Onnx::new(17)
            .input("none", FLOAT, &[0, 3])
            .input("x", FLOAT, &[1, 3])
            .node("Relu", &["none"], &["also_none"], &[])
            .node(
                "Concat",
                &["also_none", "x"],
                &["y"],
                &[("axis", Attr::Int(0))],
            )
            .output("y"),
    );
    let x = bytes(&[1.0, 2.0, 3.0]);
    // Its pointer is aligned to bytes only.
    let nothing: &[u8] = &Vec::new();
    let found = run(&path, &options(folder.path(), &[]), &[nothing, &x]);
    assert_eq!(found, x);

    let path = written(
        folder.path(),
        Onnx::new(17)
            .input("none", FLOAT, &[0, 3])
            .node("Relu", &["none"], &["y"], &[])
            .output("y"),
    );
    let found = run(&path, &options(folder.path(), &[]), &[nothing]);
    assert!(found.is_empty());
}
