//! Runs a whole graph on literals, one node after the other: a reference for what plans compute.

use crate::{OpError, evaluate_wanted};
use neap_ir::{Graph, Literal, ValueId};

/// Gives the graph's outputs for `inputs` (in the graph's order). `constant` gives constants whose data are not in the graph.
/// Every value is dropped after its last reader.
///
/// # Errors
/// [`OpError`] where an input or constant is missing or has another type, or an operator cannot be computed.
pub fn interpret(
    graph: &Graph,
    inputs: &[Literal],
    constant: &dyn Fn(ValueId) -> Option<Literal>,
) -> Result<Vec<Literal>, OpError> {
    if inputs.len() != graph.inputs.len() {
        let (given, taken) = (inputs.len(), graph.inputs.len());
        return bad(format!("{given} inputs are given, it takes {taken}"));
    }
    let late = graph.late_values();
    let mut left = graph.use_counts();
    let mut values: Vec<Option<Literal>> = vec![None; graph.values.len()];
    for (&id, literal) in graph.inputs.iter().zip(inputs) {
        if *graph.ty(id) != literal.ty() {
            return bad(format!("input '{}' has another type", graph.value(id).name));
        }
        values[id.index()] = Some(literal.clone());
    }
    let fetch = |values: &mut Vec<Option<Literal>>, id: ValueId| {
        if values[id.index()].is_none() && graph.value(id).constant.is_some() {
            values[id.index()] = graph.literal(id).cloned().or_else(|| constant(id));
        }
        match &values[id.index()] {
            Some(literal) if literal.ty() == *graph.ty(id) => Ok(()),
            Some(literal) if late.get(&id).is_some_and(|b| b.admits(&literal.ty())) => Ok(()),
            _ => bad(format!("'{}' is not known", graph.value(id).name)),
        }
    };
    for node in &graph.nodes {
        for input in node.present_inputs() {
            fetch(&mut values, input)?;
        }
        let operands: Vec<Option<&Literal>> = node
            .inputs
            .iter()
            .map(|i| i.and_then(|v| values[v.index()].as_ref()))
            .collect();
        let wanted: Vec<bool> = node.outputs.iter().map(Option::is_some).collect();
        let results = evaluate_wanted(&node.op, &operands, &wanted)?;
        for (output, result) in node.outputs.iter().zip(results) {
            if let Some(output) = output
                && left[output.index()] > 0
            {
                values[output.index()] = result;
            }
        }
        for input in node.present_inputs() {
            left[input.index()] -= 1;
            if left[input.index()] == 0 {
                values[input.index()] = None;
            }
        }
    }
    let mut outputs = Vec::new();
    for &id in &graph.outputs {
        fetch(&mut values, id)?;
        outputs.extend(values[id.index()].clone());
    }
    Ok(outputs)
}

fn bad<T>(what: String) -> Result<T, OpError> {
    Err(OpError::operand("graph", what))
}
