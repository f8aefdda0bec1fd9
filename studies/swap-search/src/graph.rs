//! From a graph to a dataflow as frameworks have it: every operator by itself, nothing fused, each
//! initializer a parameter. Weights are not read, so that models of any size can be searched over.

use crate::dataflow::{
    Dataflow, DataflowError, DataflowSpec, Operator, Tensor, TensorId, TensorKind,
};
use neap_ir::{Graph, Node, Op, ValueId};
use neap_ops::OperandForm;
use neap_plan::StepSpec;
use neap_sim::CostProfile;

/// The dataflow of `graph`; operators take what `costs` says of their arithmetic and of the bytes they touch.
///
/// Operators that may write over an input do so when nobody else reads it, as frameworks do.
///
/// # Errors
/// [`DataflowError`] where the graph's nodes are in no order that can be run.
pub fn of_graph(graph: &Graph, costs: &CostProfile) -> Result<Dataflow, DataflowError> {
    let form = Form {
        replaces: &[],
        is_training: false,
    };
    flow_of(graph, &form, costs)
}

/// What becomes of a graph's values.
pub(crate) struct Form<'a> {
    /// Inputs that are kept from run to run, and the outputs that replace each where it lies.
    pub replaces: &'a [(ValueId, Option<ValueId>)],
    /// Single numbers are part of the operators that read them, and another shape of a tensor is the tensor
    /// itself: neither is a tensor or an operator of its own.
    pub is_training: bool,
}

impl Form<'_> {
    fn is_view(&self, node: &Node) -> bool {
        self.is_training && matches!(node.op, Op::Reshape { .. })
    }

    fn is_number(&self, graph: &Graph, value: ValueId) -> bool {
        self.is_training
            && graph.ty(value).elements() <= 1
            && (graph.value(value).constant.is_some() || graph.inputs.contains(&value))
    }
}

/// By value, how many nodes read it or another shape of it, or want it after the run.
fn readers(graph: &Graph, form: &Form) -> Vec<usize> {
    let mut counts = graph.use_counts();
    // A view's readers read what it is a view of; the view itself reads nothing.
    for node in graph.nodes.iter().rev().filter(|n| form.is_view(n)) {
        if let (Some(x), Some(y)) = (node.input(0), node.present_outputs().next()) {
            counts[x.index()] = counts[x.index()] + counts[y.index()] - 1;
        }
    }
    let mut known = counts.clone();
    for node in graph.nodes.iter().filter(|n| form.is_view(n)) {
        if let (Some(x), Some(y)) = (node.input(0), node.present_outputs().next()) {
            known[y.index()] = known[x.index()];
        }
    }
    known
}

pub(crate) fn flow_of(
    graph: &Graph,
    form: &Form,
    costs: &CostProfile,
) -> Result<Dataflow, DataflowError> {
    let uses = readers(graph, form);
    let is_number: Vec<bool> = (0..graph.values.len() as u32)
        .map(|v| form.is_number(graph, ValueId(v)))
        .collect();
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
    let mut replaced: Vec<Option<TensorId>> = vec![None; graph.values.len()];
    for &(state, by) in form.replaces {
        let tensor = add(state, TensorKind::Parameter, &mut spec);
        tensor_of[state.index()] = Some(tensor);
        if let Some(by) = by {
            replaced[by.index()] = Some(tensor);
        }
    }
    for &input in graph.inputs.iter().filter(|v| !is_number[v.index()]) {
        if tensor_of[input.index()].is_none() {
            tensor_of[input.index()] = Some(add(input, TensorKind::Input, &mut spec));
        }
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        if form.is_view(node)
            && let (Some(x), Some(y)) = (node.input(0), node.present_outputs().next())
            && let Some(tensor) = tensor_of[x.index()]
        {
            tensor_of[y.index()] = Some(tensor);
            continue;
        }
        let operands = |ids: &[Option<ValueId>]| -> Vec<OperandForm> {
            let one = |id: ValueId| (graph.ty(id), graph.value(id).layout);
            ids.iter().map(|id| id.map(one)).collect()
        };
        let (inputs, outputs) = (operands(&node.inputs), operands(&node.outputs));
        let mut reads = Vec::new();
        for input in node.present_inputs().filter(|v| !is_number[v.index()]) {
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
            let is_output = graph.outputs.contains(&output);
            let kind = match is_output {
                true => TensorKind::Output,
                false => TensorKind::Activation,
            };
            let tensor = match (replaced[output.index()], over) {
                (Some(state), _) => state,
                (None, Some(tensor)) if i == 0 && !is_output => tensor,
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
