//! One node test through the product: open, plan, session, run; without a budget, and in the smallest arena. There
//! a second time with all inputs but the first as weights, which are packed, and read by the plan's slices. What a device
//! computes is compared with the processor's, too.

use super::Outcome;
use super::compare::{compare, compare_devices, floats};
use anyhow::{Context, Result, anyhow, bail};
use neaptide::{
    Accelerator, Budget, Cache, Calibration, DType, Error, Literal, Model, OpenOptions, Plan,
    RunOptions,
};
use serde::Deserialize;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

#[derive(Deserialize)]
struct Manifest {
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

type Tensors = BTreeMap<String, Literal>;

/// What computes instead of the processor; tests are judged by that, too.
type OnDevice<'a> = Option<&'a Arc<dyn Accelerator>>;

/// Runs the test in `folder`; its packed model goes to `scratch`.
pub(super) fn run(folder: &Path, scratch: &Path, device: OnDevice) -> Outcome {
    let (inputs, expected) = match read(folder) {
        Ok(tensors) => tensors,
        Err(reason) => return Outcome::Refused(format!("test data: {reason:#}")),
    };
    let options = OpenOptions {
        shape_hints: (inputs.iter())
            .map(|(name, literal)| (name.clone(), literal.shape().to_vec()))
            .collect(),
        value_hints: inputs.clone(),
        cache: Cache::Folder(scratch.to_path_buf()),
        ..OpenOptions::default()
    };
    let path = folder.join("model.onnx");
    // Sizes that data decide are known late; only where a model does not open so are its inputs' values looked at.
    let without = OpenOptions {
        value_hints: BTreeMap::new(),
        ..options.clone()
    };
    let late = Model::open(&path, &without, &mut |_| {});
    let (options, opened) = match late {
        Err(Error::Unbound { .. }) => {
            let opened = Model::open(&path, &options, &mut |_| {});
            (options, opened)
        }
        opened => (without, opened),
    };
    let first = match opened {
        Ok(model) => model,
        Err(error @ (Error::BadInput(_) | Error::Unsupported(_) | Error::Unbound { .. })) => {
            return Outcome::Refused(error.to_string());
        }
        Err(error) => return Outcome::Wrong(error.to_string()),
    };
    let steps = Cell::new(0);
    let run = |which: &str, model: Result<Model, Error>, smallest| {
        let done = model.map_err(anyhow::Error::from);
        let done = done.and_then(|model| {
            let here = device.map_or(Vec::new(), |device| device.computes(model.program()));
            let count = here.into_iter().filter(|here| *here).count();
            steps.set(steps.get() + count);
            run_model(model, smallest, (&inputs, &expected), device)
        });
        let done = done.and_then(|found| match device {
            Some(_) => {
                let model = Model::open(&path, &options, &mut |_| {})?;
                let processor = run_model(model, false, (&inputs, &expected), None)?;
                as_on_processor(&found, &processor)
            }
            None => Ok(()),
        });
        done.map_err(|error| Outcome::Wrong(format!("{which}: {error:#}")))
    };
    let weights = with_weights(&options, &first, &inputs);
    let all = || {
        run("without a budget", Ok(first), false)?;
        let again = Model::open(&path, &options, &mut |_| {});
        run("in the smallest arena", again, true)?;
        if let Some(options) = &weights {
            let model = Model::open(&path, options, &mut |_| {});
            run("with weights", model, true)?;
        }
        Ok(())
    };
    match all() {
        Ok(()) => Outcome::Passed {
            with_weights: weights.is_some(),
            steps_on_device: steps.get(),
        },
        Err(outcome) => outcome,
    }
}

/// Has all inputs bound but the first; `None` where there is no other.
fn with_weights(options: &OpenOptions, model: &Model, inputs: &Tensors) -> Option<OpenOptions> {
    let names = model.inputs().into_iter().skip(1).map(|info| info.name);
    let bindings: Tensors = names
        .filter_map(|name| Some((name.clone(), inputs.get(&name)?.clone())))
        .collect();
    (!bindings.is_empty()).then(|| OpenOptions {
        bindings,
        ..options.clone()
    })
}

fn run_model(
    model: Model,
    smallest: bool,
    (inputs, expected): (&Tensors, &Tensors),
    device: OnDevice,
) -> Result<Tensors> {
    let options = RunOptions {
        threads: 2,
        calibration: Calibration::Off,
        accelerator: device.cloned(),
        ..RunOptions::default()
    };
    let given: Vec<Vec<u8>> = (model.inputs().iter())
        .map(|info| {
            let literal = inputs.get(&info.name);
            let literal = literal.with_context(|| format!("the test has no '{}'", info.name))?;
            as_wanted(literal, info.ty.dtype)
        })
        .collect::<Result<_>>()?;
    let plan = match smallest {
        true => tightest(&model, &options)?,
        false => model.plan(&options)?,
    };
    let mut session = model.into_session(plan, &options)?;
    let mut results: Vec<Vec<u8>> = (session.outputs().iter())
        .map(|info| vec![0xa5; info.len_bytes()])
        .collect();
    let given: Vec<&[u8]> = given.iter().map(Vec::as_slice).collect();
    let mut slots: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
    session.run(&given, &mut slots)?;
    let mut found = Tensors::new();
    for (name, expected) in expected {
        let index = session.outputs().iter().position(|o| o.name == *name);
        let index = index.with_context(|| format!("there is no output '{name}'"))?;
        let ty = session.output_type(index);
        let bytes = results[index].get(..ty.len_bytes());
        let got = bytes.and_then(|bytes| Literal::from_bytes(ty.dtype, &ty.shape, bytes));
        let got = got.with_context(|| format!("output '{name}' is no {ty:?}"))?;
        if let Err(difference) = compare(&got, expected) {
            bail!("output '{name}': {difference}");
        }
        found.insert(name.clone(), got);
    }
    Ok(found)
}

fn as_on_processor(found: &Tensors, processor: &Tensors) -> Result<()> {
    for (name, got) in found {
        let differs = compare_devices(got, &processor[name]);
        differs.map_err(|what| anyhow!("output '{name}' on the processor: {what}"))?;
    }
    Ok(())
}

/// A plan whose arena is the smallest that can be planned. A budget that is named to users is wider, by more than
/// these models need: it has slack, and room for page tables, which a plan that needs none may use for its arena.
fn tightest(model: &Model, options: &RunOptions) -> Result<Plan> {
    let within = |bytes| RunOptions {
        budget: Budget::Engine(bytes),
        ..options.clone()
    };
    let smallest = model.bounds(&within(0)).smallest;
    let needed_bytes = smallest.total_bytes()
        - smallest.slack_bytes
        - smallest.packing_bytes
        - smallest.tables_bytes;
    let plan = model.plan(&within(needed_bytes))?;
    let arena_bytes = plan.execution().memory_bytes();
    if arena_bytes > smallest.arena_bytes {
        let smallest_bytes = smallest.arena_bytes;
        bail!("the arena of {arena_bytes} bytes is larger than the smallest of {smallest_bytes}");
    }
    Ok(plan)
}

/// Inputs and expected outputs by name.
fn read(folder: &Path) -> Result<(Tensors, Tensors)> {
    let manifest = std::fs::read(folder.join("manifest.json"))?;
    let manifest: Manifest = serde_json::from_slice(&manifest)?;
    if !manifest.supported {
        bail!("{}", manifest.reason.unwrap_or_default());
    }
    let tensors = |ports: &[Port]| -> Result<Tensors> {
        ports
            .iter()
            .map(|p| Ok((p.name.clone(), load(folder, p)?)))
            .collect()
    };
    Ok((tensors(&manifest.inputs)?, tensors(&manifest.outputs)?))
}

/// An `.npy` file in C order, as the exporter writes it: header, then the elements.
fn load(folder: &Path, port: &Port) -> Result<Literal> {
    let dtype = port.dtype.as_deref().context("no element type")?;
    let dtype = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
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

/// Half floats are taken as f32.
fn as_wanted(literal: &Literal, wanted: DType) -> Result<Vec<u8>> {
    if literal.dtype() == wanted {
        return Ok(literal.bytes().to_vec());
    }
    if !matches!(literal.dtype(), DType::F16 | DType::BF16) || wanted != DType::F32 {
        bail!("an input is {}, the model wants {wanted}", literal.dtype());
    }
    let values = floats(literal).into_iter();
    Ok(values.flat_map(|x| (x as f32).to_le_bytes()).collect())
}
