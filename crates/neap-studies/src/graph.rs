//! From a graph to a dataflow as frameworks have it: every operator by itself, nothing fused, each
//! initializer a parameter. Weights are not read, so that models of any size can be searched over.

use crate::dataflow::{
    Dataflow, DataflowError, DataflowSpec, Operator, Tensor, TensorId, TensorKind,
};
use neap_ir::{Graph, ValueId};
use neap_ops::OperandForm;
use neap_plan::StepSpec;
use neap_sim::CostProfile;

/// The dataflow of `graph`; operators take what `costs` says of their arithmetic and of the bytes they touch.
/// With `keeps_activations` every activation is wanted after the run, as a backward pass wants it.
///
/// Operators that may write over an input do so when nobody else reads it, as frameworks do.
///
/// # Errors
/// [`DataflowError`] where the graph's nodes are in no order that can be run.
pub fn of_graph(
    graph: &Graph,
    keeps_activations: bool,
    costs: &CostProfile,
) -> Result<Dataflow, DataflowError> {
    let uses = graph.use_counts();
    let mut spec = DataflowSpec {
        name: graph.name.clone(),
        ..DataflowSpec::default()
    };
    let mut tensor_of: Vec<Option<TensorId>> = vec![None; graph.values.len()];
    let add = |value: ValueId, kind: TensorKind, spec: &mut DataflowSpec| {
        spec.tensors.push(Tensor {
            bytes: graph.value(value).len_bytes() as u64,
            kind,
        });
        TensorId(spec.tensors.len() as u32 - 1)
    };
    for &input in &graph.inputs {
        tensor_of[input.index()] = Some(add(input, TensorKind::Input, &mut spec));
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let operands = |ids: &[Option<ValueId>]| -> Vec<OperandForm> {
            let one = |id: ValueId| (graph.ty(id), graph.value(id).layout);
            ids.iter().map(|id| id.map(one)).collect()
        };
        let (inputs, outputs) = (operands(&node.inputs), operands(&node.outputs));
        let mut reads = Vec::new();
        for input in node.present_inputs() {
            let tensor = *tensor_of[input.index()].get_or_insert_with(|| {
                // Neither an input nor made by a node before: a constant.
                add(input, TensorKind::Parameter, &mut spec)
            });
            reads.push(tensor);
        }
        let over = neap_ops::may_overwrite(&node.op, &inputs, &outputs);
        let over = over.into_iter().find_map(|i| {
            let value = node.input(i)?;
            let tensor = tensor_of[value.index()]?;
            let own = spec.tensors[tensor.index()].kind == TensorKind::Activation;
            (own && uses[value.index()] == 1).then_some(tensor)
        });
        let mut writes = Vec::new();
        for (i, output) in node.outputs.iter().enumerate() {
            let Some(output) = *output else { continue };
            let is_output = keeps_activations || graph.outputs.contains(&output);
            let kind = match is_output {
                true => TensorKind::Output,
                false => TensorKind::Activation,
            };
            let tensor = match over {
                Some(tensor) if i == 0 && !is_output => tensor,
                _ => add(output, kind, &mut spec),
            };
            tensor_of[output.index()] = Some(tensor);
            writes.push(tensor);
        }
        let bytes = |operands: &[OperandForm]| -> u64 {
            let each = operands.iter().flatten();
            each.map(|(ty, layout)| ty.layout_bytes(*layout) as u64)
                .sum()
        };
        let step = StepSpec {
            flops: neap_ops::flops(&node.op, &inputs, &outputs),
            touched_bytes: bytes(&inputs) + bytes(&outputs),
            ..StepSpec::default()
        };
        let compute_ns = costs.step_ns(index, &step) + costs.compute_overhead_ns;
        spec.operators.push(Operator {
            name: node.name.clone(),
            compute_ns,
            reads,
            writes,
        });
    }
    Dataflow::new(spec)
}
