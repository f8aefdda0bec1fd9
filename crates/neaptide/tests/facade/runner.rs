//! A model that runs on tensors of whatever shapes come.

use crate::onnx::{self, FLOAT, FLOAT16, INT64, f32_tensor, value_info};
use neaptide::{Budget, Cache, Calibration, DType, Error, OpenOptions, RunOptions, Runner, Tensor};
use std::path::Path;

fn open(model: &onnx::Model, folder: &Path, budget: Budget) -> Runner {
    let path = folder.join("model.onnx");
    std::fs::write(&path, model.bytes()).expect("written");
    let open = OpenOptions {
        cache: Cache::Folder(folder.to_path_buf()),
        ..OpenOptions::default()
    };
    let options = RunOptions {
        budget,
        threads: 2,
        calibration: Calibration::Off,
        ..RunOptions::default()
    };
    Runner::open(path, &open, &options, &mut |_| {}).expect("opens")
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn ints(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn tensor<'a>(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> Tensor<'a> {
    Tensor {
        dtype,
        shape,
        bytes,
    }
}

/// Shape and bytes.
type Output = (Vec<usize>, Vec<u8>);

/// All outputs.
fn run(runner: &mut Runner, inputs: &[Tensor]) -> Result<Vec<Output>, Error> {
    let infos = runner.ready(inputs, &mut |_| {})?.to_vec();
    assert!(runner.is_ready(inputs));
    let mut outputs: Vec<Vec<u8>> = infos.iter().map(|i| vec![0xa5; i.len_bytes()]).collect();
    let mut places: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    runner.run(inputs, &mut places, &mut |_| {})?;
    let shapes = infos.into_iter().map(|info| info.ty.shape);
    Ok(shapes.zip(outputs).collect())
}

#[test]
fn shapes_come_with_each_run() {
    let mut model = onnx::Model::new(13)
        .open_input("x", FLOAT, &[Err("rows"), Ok(2)])
        .constant(&f32_tensor("w", &[2], &[2.0, 3.0]))
        .node("Mul", &["x", "w"], &["y"], &[]);
    model.graph = model
        .graph
        .message(12, &value_info("y", FLOAT, &[Err("rows"), Ok(2)]));
    let folder = tempfile::tempdir().expect("a folder");
    let mut runner = open(&model, folder.path(), Budget::Bytes(8 << 20));
    assert!(runner.session().is_none());
    for rows in [1usize, 3, 2, 3] {
        let x: Vec<f32> = (0..2 * rows).map(|i| i as f32).collect();
        let expected: Vec<f32> = x
            .iter()
            .enumerate()
            .map(|(i, v)| v * [2.0, 3.0][i % 2])
            .collect();
        let shape = [rows, 2];
        let got = run(&mut runner, &[tensor(DType::F32, &shape, &floats(&x))]).expect("runs");
        assert_eq!(got, [(shape.to_vec(), floats(&expected))]);
    }
    let session = runner.session().expect("open");
    assert_eq!(session.budget_bytes(), Some(8 << 20));

    // What does not fit is told, and changes nothing.
    for (dtype, shape, bytes) in [
        (DType::F32, vec![1, 3], 12),
        (DType::F32, vec![2], 8),
        (DType::F64, vec![1, 2], 16),
    ] {
        let bytes = vec![0; bytes];
        let refused = run(&mut runner, &[tensor(dtype, &shape, &bytes)]);
        assert!(matches!(refused, Err(Error::BadInput(_))), "{refused:?}");
    }
    assert!(matches!(run(&mut runner, &[]), Err(Error::BadInput(_))));
    let x = floats(&[1.0, 1.0]);
    let got = run(&mut runner, &[tensor(DType::F32, &[1, 2], &x)]).expect("runs");
    assert_eq!(got[0].1, floats(&[2.0, 3.0]));
}

#[test]
fn values_that_decide_shapes_come_with_each_run() {
    let model = onnx::Model::new(13)
        .input("x", FLOAT, &[6])
        .input("shape", INT64, &[2])
        .node("Reshape", &["x", "shape"], &["y"], &[])
        .output("y");
    let folder = tempfile::tempdir().expect("a folder");
    let mut runner = open(&model, folder.path(), Budget::Unlimited);
    let x = floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    for shape in [[2, 3], [6, 1], [2, 3], [3, 2]] {
        let values = ints(&shape);
        let inputs = [
            tensor(DType::F32, &[6], &x),
            tensor(DType::I64, &[2], &values),
        ];
        let got = run(&mut runner, &inputs).expect("runs");
        assert_eq!(got, [(shape.map(|d| d as usize).to_vec(), x.clone())]);
    }
}

#[test]
fn a_budget_that_is_too_small_leaves_the_old_one() {
    let model = onnx::Model::new(13)
        .input("x", FLOAT, &[2])
        .node("Relu", &["x"], &["y"], &[])
        .output("y");
    let x = floats(&[-1.0, 2.0]);
    for first in [Budget::Unlimited, Budget::Bytes(8 << 20)] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut runner = open(&model, folder.path(), first);
        let refused = runner.set_budget(Budget::Bytes(1 << 10));
        assert!(
            matches!(refused, Err(Error::Infeasible { .. })),
            "{refused:?}"
        );
        let got = run(&mut runner, &[tensor(DType::F32, &[2], &x)]).expect("runs");
        assert_eq!(got[0].1, floats(&[0.0, 2.0]));

        runner.set_budget(Budget::Bytes(4 << 20)).expect("set");
        let got = run(&mut runner, &[tensor(DType::F32, &[2], &x)]).expect("runs");
        assert_eq!(got[0].1, floats(&[0.0, 2.0]));
        let session = runner.session().expect("open");
        assert_eq!(session.budget_bytes(), Some(4 << 20));
    }
}

#[test]
fn half_floats_stay_half_floats_to_the_caller() {
    let mut model = onnx::Model::new(13)
        .open_input("x", FLOAT16, &[Err("n")])
        .node("Mul", &["x", "x"], &["y"], &[]);
    model.graph = model
        .graph
        .message(12, &value_info("y", FLOAT16, &[Err("n")]));
    let folder = tempfile::tempdir().expect("a folder");
    let mut runner = open(&model, folder.path(), Budget::Percent(100.0));
    for values in [vec![0.5f32, -3.0, 300.0], vec![0.1; 70]] {
        let halves: Vec<half::f16> = values.iter().map(|&v| half::f16::from_f32(v)).collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|h| h.to_le_bytes()).collect();
        let expected = halves
            .iter()
            .map(|h| half::f16::from_f32(h.to_f32() * h.to_f32()));
        let expected: Vec<u8> = expected.flat_map(|h| h.to_le_bytes()).collect();
        let shape = [values.len()];
        let got = run(&mut runner, &[tensor(DType::F16, &shape, &bytes)]).expect("runs");
        assert_eq!(got, [(shape.to_vec(), expected)]);
    }
}

#[test]
fn a_declared_scalar_is_given_with_any_axes_of_one_element() {
    let model = onnx::Model::new(13)
        .input("x", FLOAT, &[3])
        .input("s", FLOAT, &[])
        .node("Mul", &["x", "s"], &["y"], &[])
        .node("Neg", &["s"], &["t"], &[])
        .output("y")
        .output("t");
    let folder = tempfile::tempdir().expect("a folder");
    let mut runner = open(&model, folder.path(), Budget::Unlimited);
    let x = floats(&[1.0, 2.0, 3.0]);
    for (shape, factor) in [(&[][..], 2.0), (&[1], 3.0), (&[1, 1], 4.0), (&[], 5.0)] {
        let s = floats(&[factor]);
        let inputs = [tensor(DType::F32, &[3], &x), tensor(DType::F32, shape, &s)];
        let outputs = run(&mut runner, &inputs).expect("runs");
        let rows = if shape.len() == 2 {
            vec![1, 3]
        } else {
            vec![3]
        };
        assert_eq!(
            outputs[0],
            (rows, floats(&[factor, 2.0 * factor, 3.0 * factor]))
        );
        assert_eq!(outputs[1], (shape.to_vec(), floats(&[-factor])));
    }
    let s = floats(&[1.0, 1.0]);
    let inputs = [tensor(DType::F32, &[3], &x), tensor(DType::F32, &[2], &s)];
    let error = run(&mut runner, &inputs).expect_err("two").to_string();
    assert!(error.contains("'s'") && error.contains("scalar"), "{error}");
}

#[test]
fn values_at_hand_decide_sizes_that_nothing_bounds() {
    // More numbers than those that are taken for sizes at once.
    let model = onnx::Model::new(13)
        .input("style", FLOAT, &[64])
        .constant(&onnx::i64_tensor("start", &[], &[0]))
        .constant(&onnx::i64_tensor("step", &[], &[1]))
        .node(
            "ReduceSum",
            &["style"],
            &["sum"],
            &[("keepdims", onnx::Attr::Int(0))],
        )
        .node(
            "Cast",
            &["sum"],
            &["n"],
            &[("to", onnx::Attr::Int(INT64.into()))],
        )
        .node("Range", &["start", "n", "step"], &["y"], &[])
        .output("y");
    let folder = tempfile::tempdir().expect("a folder");
    let mut runner = open(&model, folder.path(), Budget::Unlimited);
    for length in [3usize, 7, 3] {
        let mut style = vec![0.0; 64];
        style[5] = length as f32;
        let style = floats(&style);
        let outputs = run(&mut runner, &[tensor(DType::F32, &[64], &style)]).expect("runs");
        let places: Vec<i64> = (0..length as i64).collect();
        assert_eq!(outputs, [(vec![length], ints(&places))]);
    }
}
