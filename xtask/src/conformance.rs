//! Runs the ONNX standard's node tests through the reader and the operators.
//!
//! A test passes, is unsupported (the model is refused with a reason), or is wrong (it runs and
//! gives something else, or panics). Wrong must not happen, and the committed list of passing tests
//! must not shrink.

use anyhow::{Context, Result, bail};
use neap_ir::{Const, DType, Graph, Literal, SourceFile, ValueId};
use neap_onnx::{OnnxError, OpenOptions};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// As the standard's own runner compares; integers and bools must be equal.
const RTOL: f64 = 1e-3;
const ATOL: f64 = 1e-7;
const PASSING: &str = "xtask/conformance-passing.txt";

/// Tests of this package whose expected data contradict the operator's definition; onnxruntime
/// gives what we give. They count as unsupported.
const FAULTY: [(&str, &str); 5] = [
    (
        "test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
        "the expected data count elements past the padding",
    ),
    ("test_qlinearmatmul_2D_int8_float16", WRAPS),
    ("test_qlinearmatmul_2D_int8_float32", WRAPS),
    ("test_qlinearmatmul_3D_int8_float16", WRAPS),
    ("test_qlinearmatmul_3D_int8_float32", WRAPS),
];
const WRAPS: &str = "the expected data wrap around where the definition saturates";

#[derive(Deserialize)]
struct Manifest {
    name: String,
    supported: bool,
    reason: Option<String>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

#[derive(Deserialize)]
struct Port {
    name: String,
    dtype: Option<String>,
    #[serde(default)]
    shape: Vec<usize>,
    file: Option<String>,
}

enum Outcome {
    Passed,
    Unsupported(String),
    Wrong(String),
}

/// Runs all tests in `folder`, or exports them first. `update` adds newly passing tests to the list.
pub fn run(root: &Path, folder: Option<&Path>, update: bool, only: Option<&str>) -> Result<()> {
    let folder = match folder {
        Some(folder) => folder.to_path_buf(),
        None => match export(root)? {
            Some(folder) => folder,
            None => return Ok(()),
        },
    };
    let mut outcomes = BTreeMap::new();
    let mut names: Vec<PathBuf> = std::fs::read_dir(&folder)
        .with_context(|| format!("cannot list {}", folder.display()))?
        .map(|e| e.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    names.sort();
    for test in names.iter().filter(|p| p.join("manifest.json").is_file()) {
        let manifest: Manifest =
            serde_json::from_slice(&std::fs::read(test.join("manifest.json"))?)?;
        if only.is_some_and(|o| !manifest.name.contains(o)) {
            continue;
        }
        let outcome = std::panic::catch_unwind(|| run_test(test, &manifest))
            .unwrap_or_else(|_| Outcome::Wrong("it panicked".into()));
        outcomes.insert(manifest.name, outcome);
    }
    report(root, &outcomes, update, only.is_some())
}

/// The tests from the Python package, exported once into `target/node-tests`.
fn export(root: &Path) -> Result<Option<PathBuf>> {
    let folder = root.join("target/node-tests");
    if folder.join("index.json").is_file() {
        return Ok(Some(folder));
    }
    let Some(python) = crate::models::python(root)? else {
        println!("conformance: SKIPPED, the onnx package cannot be had");
        return Ok(None);
    };
    let status = Command::new(python)
        .arg(root.join("scripts/export_node_tests.py"))
        .arg(&folder)
        .stdout(std::process::Stdio::null())
        .status()?;
    if !status.success() {
        bail!("the node tests cannot be exported");
    }
    Ok(Some(folder))
}

fn report(
    root: &Path,
    outcomes: &BTreeMap<String, Outcome>,
    update: bool,
    partial: bool,
) -> Result<()> {
    let mut passed = BTreeSet::new();
    let mut wrong = 0;
    let mut unsupported = 0;
    for (name, outcome) in outcomes {
        match outcome {
            Outcome::Passed => {
                passed.insert(name.as_str());
            }
            Outcome::Unsupported(reason) => {
                unsupported += 1;
                println!("unsupported {name}: {reason}");
            }
            Outcome::Wrong(reason) => {
                wrong += 1;
                println!("WRONG       {name}: {reason}");
            }
        }
    }
    println!(
        "conformance: {} passed, {unsupported} unsupported, {wrong} wrong, of {}",
        passed.len(),
        outcomes.len()
    );
    let path = root.join(PASSING);
    let listed = std::fs::read_to_string(&path).unwrap_or_default();
    let listed: BTreeSet<&str> = listed.lines().filter(|l| !l.is_empty()).collect();
    let lost: Vec<&str> = listed
        .iter()
        .copied()
        .filter(|n| !passed.contains(n) && (!partial || outcomes.contains_key(*n)))
        .collect();
    for name in &lost {
        println!("LOST        {name}");
    }
    if update {
        let all: Vec<&str> = listed.union(&passed).copied().collect();
        std::fs::write(&path, all.join("\n") + "\n")?;
    }
    if wrong > 0 || !lost.is_empty() {
        bail!(
            "{wrong} tests are wrong, {} that passed before do not",
            lost.len()
        );
    }
    Ok(())
}

fn run_test(folder: &Path, manifest: &Manifest) -> Outcome {
    if !manifest.supported {
        let reason = manifest.reason.clone().unwrap_or_default();
        return Outcome::Unsupported(format!("test data: {reason}"));
    }
    if let Some((_, why)) = FAULTY.iter().find(|(name, _)| *name == manifest.name) {
        return Outcome::Unsupported(format!("test data: {why}"));
    }
    let tensors = |ports: &[Port]| -> Result<BTreeMap<String, Literal>> {
        ports
            .iter()
            .map(|p| Ok((p.name.clone(), load(folder, p)?)))
            .collect()
    };
    let (inputs, expected) = match (tensors(&manifest.inputs), tensors(&manifest.outputs)) {
        (Ok(inputs), Ok(outputs)) => (inputs, outputs),
        (Err(e), _) | (_, Err(e)) => return Outcome::Unsupported(format!("test data: {e:#}")),
    };
    let graph = match open(folder, &inputs) {
        Ok(graph) => graph,
        Err(error) => return Outcome::Unsupported(error.to_string()),
    };
    let results = match interpret(&graph, &inputs) {
        Ok(results) => results,
        Err(error) => return Outcome::Unsupported(format!("{error:#}")),
    };
    for (name, expected) in &expected {
        let Some(got) = results.get(name) else {
            return Outcome::Wrong(format!("there is no output '{name}'"));
        };
        if let Err(difference) = compare(got, expected) {
            return Outcome::Wrong(format!("output '{name}': {difference}"));
        }
    }
    Outcome::Passed
}

/// Opens the model; inputs that decide shapes are bound when the reader asks for them.
fn open(folder: &Path, inputs: &BTreeMap<String, Literal>) -> Result<Graph, OnnxError> {
    let mut options = OpenOptions {
        widen_half: false,
        ..OpenOptions::default()
    };
    for (name, literal) in inputs {
        options
            .shapes
            .insert(name.clone(), literal.shape().to_vec());
    }
    loop {
        match neap_onnx::open(&folder.join("model.onnx"), &options) {
            Err(OnnxError::DynamicShape {
                node,
                op,
                what,
                inputs: deciding,
            }) => {
                let before = options.bindings.len();
                for name in &deciding {
                    if let Some(literal) = inputs.get(name) {
                        options.bindings.insert(name.clone(), literal.clone());
                    }
                }
                if options.bindings.len() == before {
                    return Err(OnnxError::DynamicShape {
                        node,
                        op,
                        what,
                        inputs: deciding,
                    });
                }
            }
            other => return other,
        }
    }
}

/// Node by node, every value kept.
fn interpret(
    graph: &Graph,
    inputs: &BTreeMap<String, Literal>,
) -> Result<BTreeMap<String, Literal>> {
    let mut values: Vec<Option<Literal>> = vec![None; graph.values.len()];
    for &id in &graph.inputs {
        let name = &graph.value(id).name;
        let literal = inputs
            .get(name)
            .with_context(|| format!("the test has no input '{name}'"))?;
        values[id.index()] = Some(literal.clone());
    }
    for (i, value) in graph.values.iter().enumerate() {
        if value.constant.is_some() {
            values[i] = Some(constant(graph, ValueId(i as u32))?);
        }
    }
    for node in &graph.nodes {
        let operands: Vec<Option<&Literal>> = node
            .inputs
            .iter()
            .map(|i| i.and_then(|i| values[i.index()].as_ref()))
            .collect();
        let results = neap_ops::evaluate_outputs(&node.op, &operands, node.outputs.len())
            .with_context(|| format!("node '{}'", node.name))?;
        for (output, result) in node.outputs.iter().zip(results) {
            if let Some(id) = output {
                if graph.ty(*id) != &result.ty() {
                    bail!("node '{}' gives another type than inferred", node.name);
                }
                values[id.index()] = Some(result);
            }
        }
    }
    let outputs = graph.outputs.iter().map(|&id| {
        let literal = values[id.index()].clone();
        let name = graph.value(id).name.clone();
        Ok((name, literal.context("an output was not computed")?))
    });
    outputs.collect()
}

fn constant(graph: &Graph, id: ValueId) -> Result<Literal> {
    match graph.constant(id) {
        Some(Const::Inline(literal)) => Ok(literal.clone()),
        Some(Const::Stored {
            range,
            stored_dtype,
        }) => {
            use std::os::unix::fs::FileExt;
            let SourceFile::At(path) = &graph.files[range.file.index()] else {
                bail!("a constant was never written")
            };
            let file = std::fs::File::open(path)?;
            let mut literal = Literal::zeros(*stored_dtype, &graph.ty(id).shape);
            file.read_exact_at(literal.bytes_mut(), range.offset)?;
            Ok(literal)
        }
        _ => bail!("a constant is packed"),
    }
}

/// An `.npy` file in C order, as the exporter writes it: header, then the elements.
fn load(folder: &Path, port: &Port) -> Result<Literal> {
    let dtype = port.dtype.as_deref().context("no element type")?;
    let dtype = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::Bool,
    ]
    .into_iter()
    .find(|d| d.name() == dtype)
    .with_context(|| format!("element type {dtype}"))?;
    let bytes = std::fs::read(folder.join(port.file.as_deref().context("no file")?))?;
    let data_bytes = port.shape.iter().product::<usize>() * dtype.size_bytes();
    let start = bytes
        .len()
        .checked_sub(data_bytes)
        .context("the file is too short")?;
    Literal::from_bytes(dtype, &port.shape, &bytes[start..]).context("the file does not fit")
}

fn compare(got: &Literal, expected: &Literal) -> Result<(), String> {
    if got.ty() != expected.ty() {
        return Err(format!(
            "{}{:?} instead of {}{:?}",
            got.dtype(),
            got.shape(),
            expected.dtype(),
            expected.shape()
        ));
    }
    if !got.dtype().is_float() {
        let size = got.dtype().size_bytes();
        let pairs = got.bytes().chunks(size).zip(expected.bytes().chunks(size));
        let differing = pairs.enumerate().find(|(_, (a, b))| a != b);
        return match differing {
            Some((i, (a, b))) => Err(format!("element {i} has bytes {a:?} instead of {b:?}")),
            None => Ok(()),
        };
    }
    let (got, expected) = (floats(got), floats(expected));
    for (i, (&a, &b)) in got.iter().zip(&expected).enumerate() {
        let close = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= ATOL + RTOL * b.abs();
        if !close {
            return Err(format!("element {i} is {a} instead of {b}"));
        }
    }
    Ok(())
}

fn floats(literal: &Literal) -> Vec<f64> {
    let bytes = literal.bytes();
    match literal.dtype() {
        DType::F64 => {
            let words = bytes.as_chunks::<8>().0.iter();
            words.map(|&b| f64::from_le_bytes(b)).collect()
        }
        DType::F16 => {
            let words = bytes.as_chunks::<2>().0.iter();
            words
                .map(|&b| half::f16::from_le_bytes(b).to_f64())
                .collect()
        }
        _ => {
            let words = bytes.as_chunks::<4>().0.iter();
            words.map(|&b| f32::from_le_bytes(b).into()).collect()
        }
    }
}
