//! The caller's tensors: inputs that a run reads in place, outputs that it fills.

use crate::RuntimeError;
use neap_ir::{Graph, Layout, TensorType, ValueId};

/// A tensor to run on: row-major little-endian elements in memory of the caller's, which is used
/// where it lies. Aligned to its element size.
#[derive(Debug, Clone, Copy)]
pub struct InputTensor<'a> {
    pub ty: &'a TensorType,
    pub bytes: &'a [u8],
}

/// Memory for a result, row-major and little-endian. Computes use it as their own; after a run that failed nobody knows what
/// is in it.
#[derive(Debug)]
pub struct OutputTensor<'a> {
    pub ty: &'a TensorType,
    pub bytes: &'a mut [u8],
}

/// Puts named inputs in the order of the graph's.
pub(crate) fn order_by_name<'a>(
    graph: &Graph,
    named: &[(&str, InputTensor<'a>)],
) -> Result<Vec<InputTensor<'a>>, RuntimeError> {
    let mut slots: Vec<Option<InputTensor<'a>>> = vec![None; graph.inputs.len()];
    for &(name, tensor) in named {
        let index = graph
            .inputs
            .iter()
            .position(|&v| graph.value(v).name == name);
        let Some(index) = index else {
            let known: Vec<_> = graph
                .inputs
                .iter()
                .map(|&v| format!("'{}'", graph.value(v).name))
                .collect();
            return Err(RuntimeError::NoSuchInput {
                name: name.to_string(),
                known: if known.is_empty() {
                    "none".to_string()
                } else {
                    known.join(", ")
                },
            });
        };
        if slots[index].replace(tensor).is_some() {
            return Err(RuntimeError::DuplicateInput {
                name: name.to_string(),
            });
        }
    }
    slots
        .into_iter()
        .zip(&graph.inputs)
        .map(|(slot, &v)| {
            slot.ok_or_else(|| RuntimeError::MissingInput {
                name: graph.value(v).name.clone(),
            })
        })
        .collect()
}

pub(crate) fn check_inputs(graph: &Graph, inputs: &[InputTensor]) -> Result<(), RuntimeError> {
    check_count("inputs", graph.inputs.len(), inputs.len())?;
    for (&value, input) in graph.inputs.iter().zip(inputs) {
        check(graph, "input", value, input.ty, input.bytes)?;
    }
    Ok(())
}

pub(crate) fn check_outputs(graph: &Graph, outputs: &[OutputTensor]) -> Result<(), RuntimeError> {
    check_count("outputs", graph.outputs.len(), outputs.len())?;
    for (&value, output) in graph.outputs.iter().zip(outputs) {
        check(graph, "output", value, output.ty, output.bytes)?;
    }
    Ok(())
}

fn check_count(what: &'static str, expected: usize, found: usize) -> Result<(), RuntimeError> {
    if expected == found {
        return Ok(());
    }
    Err(RuntimeError::Count {
        what,
        expected,
        found,
    })
}

fn check(
    graph: &Graph,
    what: &'static str,
    value: ValueId,
    ty: &TensorType,
    bytes: &[u8],
) -> Result<(), RuntimeError> {
    let value = graph.value(value);
    if value.ty != *ty {
        return Err(RuntimeError::TensorType {
            what,
            name: value.name.clone(),
            expected: value.ty.clone(),
            found: ty.clone(),
        });
    }
    let memory = |reason: String| {
        Err(RuntimeError::TensorMemory {
            what,
            name: value.name.clone(),
            reason,
        })
    };
    debug_assert_eq!(value.layout, Layout::Plain);
    if bytes.len() != ty.len_bytes() {
        return memory(format!(
            "{} bytes are given where its shape has {}",
            bytes.len(),
            ty.len_bytes()
        ));
    }
    let size_bytes = ty.dtype.size_bytes();
    // An empty slice may point anywhere.
    if !bytes.is_empty() && !bytes.as_ptr().addr().is_multiple_of(size_bytes) {
        return memory(format!(
            "its memory is not aligned to its {size_bytes}-byte elements"
        ));
    }
    Ok(())
}
