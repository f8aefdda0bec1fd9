//! Bounds that a user gives are for results of nodes: any other name is a mistake.

use crate::OpenOptions;
use crate::error::{OnnxError, shown};
use crate::proto::{AttributeValue, ModelProto, NodeProto};
use std::collections::HashSet;

/// # Errors
/// A bound for a name that no node of the model, its branches, loops and functions has as a result.
pub(super) fn check(model: &ModelProto, options: &OpenOptions) -> Result<(), OnnxError> {
    let names = options.size_bounds.keys().map(String::as_str);
    match unknown(model, names.collect()).into_iter().min() {
        Some(name) => Err(OnnxError::NoSuchResult { name: shown(name) }),
        None => Ok(()),
    }
}

/// Of these names those that no node of the model has as a result.
pub(crate) fn unknown<'a>(model: &ModelProto, names: HashSet<&'a str>) -> HashSet<&'a str> {
    let mut unknown = names;
    let graph = model.graph.iter().map(|graph| &graph.nodes);
    let functions = model.functions.iter().map(|function| &function.nodes);
    // Graphs inside of nodes wait here; a file nests them only so deep, but need not be trusted.
    let mut waiting: Vec<&[NodeProto]> = graph.chain(functions).map(Vec::as_slice).collect();
    while let Some(nodes) = waiting.pop() {
        if unknown.is_empty() {
            break;
        }
        for node in nodes {
            for output in &node.outputs {
                unknown.remove(output.as_str());
            }
            for attribute in &node.attributes {
                if let AttributeValue::Graph(graph) = &attribute.value {
                    waiting.push(&graph.nodes);
                }
            }
        }
    }
    unknown
}
