//! Element types of values that a model declares no type for, by what computes them.

use crate::order;
use crate::proto::{
    AttributeValue, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfo,
    ValueType,
};
use std::cell::Cell;
use std::collections::HashMap;

const FLOAT: i64 = 1;
const UINT8: i64 = 2;
const INT32: i64 = 6;
const INT64: i64 = 7;
const BOOL: i64 = 9;
/// Functions that call each other, and branches inside branches, end here.
const MAX_NESTING: usize = 32;
/// Functions multiply nodes; so many are looked at.
const MAX_NODES: usize = 1 << 20;

/// Gives outputs without an element type the one that their nodes give them, as far as that is known.
pub(crate) fn complete(model: &ModelProto, outputs: &mut [ValueInfo]) {
    let Some(graph) = &model.graph else { return };
    let functions = model.functions.iter();
    let functions = functions.map(|f| ((f.domain.as_str(), f.name.as_str()), f));
    let mut types = Types {
        functions: &functions.collect(),
        nodes_left: &Cell::new(MAX_NODES),
        depth: 0,
        of: HashMap::new(),
    };
    types.graph(graph);
    for output in outputs {
        let Some(&found) = types.of.get(&output.name) else {
            continue;
        };
        match &mut output.ty {
            ValueType::Tensor { elem_type, .. } if *elem_type == 0 => *elem_type = found,
            ty @ ValueType::Unknown => {
                *ty = ValueType::Tensor {
                    elem_type: found,
                    shape: None,
                }
            }
            _ => {}
        }
    }
}

/// Whether the element type is not declared.
pub(crate) fn is_open(value: &ValueInfo) -> bool {
    matches!(
        value.ty,
        ValueType::Unknown | ValueType::Tensor { elem_type: 0, .. }
    )
}

struct Types<'m> {
    functions: &'m HashMap<(&'m str, &'m str), &'m FunctionProto>,
    nodes_left: &'m Cell<usize>,
    depth: usize,
    /// ONNX's numbers, by name. A name of a sub-graph is not one of the graph around it.
    of: HashMap<String, i64>,
}

impl Types<'_> {
    fn graph(&mut self, graph: &GraphProto) {
        let dense = graph.initializers.iter();
        let sparse = graph.sparse_initializers.iter().map(|s| &s.values);
        for tensor in dense.chain(sparse) {
            self.of.insert(tensor.name.clone(), tensor.data_type);
        }
        for input in &graph.inputs {
            if let ValueType::Tensor { elem_type, .. } = input.ty
                && elem_type != 0
            {
                self.of.insert(input.name.clone(), elem_type);
            }
        }
        self.nodes(&graph.nodes, graph.outputs.iter().map(|o| o.name.as_str()));
    }

    fn nodes<'a>(&mut self, nodes: &'a [NodeProto], outputs: impl Iterator<Item = &'a str>) {
        for i in order::live_nodes(nodes, outputs).unwrap_or_default() {
            let Some(left) = self.nodes_left.get().checked_sub(1) else {
                return;
            };
            self.nodes_left.set(left);
            let node = &nodes[i];
            let results = self.results(node);
            for (name, result) in node.outputs.iter().zip(results) {
                if let Some(result) = result {
                    self.of.insert(name.clone(), result);
                }
            }
        }
    }

    fn operand(&self, node: &NodeProto, index: usize) -> Option<i64> {
        self.of.get(node.inputs.get(index)?).copied()
    }

    /// Of each of a node's results.
    fn results(&mut self, node: &NodeProto) -> Vec<Option<i64>> {
        let function = (node.domain.as_str(), node.op_type.as_str());
        if let Some(&function) = self.functions.get(&function) {
            return self.call(function, node);
        }
        let count = node.outputs.len();
        let is_standard = matches!(node.domain.as_str(), "" | "ai.onnx" | "com.microsoft");
        if !is_standard {
            return vec![None; count];
        }
        // What the body of a loop gives first is whether to go on.
        let inner = match node.op_type.as_str() {
            "If" => Some(("then_branch", 0)),
            "Loop" => Some(("body", 1)),
            "Scan" => Some(("body", 0)),
            _ => None,
        };
        if let Some((name, skipped)) = inner {
            return match attribute(node, name) {
                Some(AttributeValue::Graph(body)) => self.body(body, skipped, count),
                _ => vec![None; count],
            };
        }
        (0..count).map(|k| self.result(node, k)).collect()
    }

    fn body(&mut self, body: &GraphProto, skipped: usize, count: usize) -> Vec<Option<i64>> {
        if self.depth >= MAX_NESTING {
            return vec![None; count];
        }
        self.depth += 1;
        self.graph(body);
        self.depth -= 1;
        let outputs = body.outputs.iter().skip(skipped);
        outputs.map(|o| self.of.get(&o.name).copied()).collect()
    }

    fn call(&self, function: &FunctionProto, node: &NodeProto) -> Vec<Option<i64>> {
        let mut inside = Types {
            functions: self.functions,
            nodes_left: self.nodes_left,
            depth: self.depth + 1,
            of: HashMap::new(),
        };
        if inside.depth < MAX_NESTING {
            for (i, formal) in function.inputs.iter().enumerate() {
                if let Some(given) = self.operand(node, i) {
                    inside.of.insert(formal.clone(), given);
                }
            }
            inside.nodes(&function.nodes, function.outputs.iter().map(String::as_str));
        }
        let outputs = function.outputs.iter();
        outputs.map(|name| inside.of.get(name).copied()).collect()
    }

    /// Of result `k` of an operator.
    fn result(&self, node: &NodeProto, k: usize) -> Option<i64> {
        let of = |index| self.operand(node, index);
        match (node.op_type.as_str(), k) {
            ("Cast" | "BitCast", _) => number(node, "to"),
            ("CastLike" | "Where" | "DequantizeLinear", _) => of(1),
            ("OneHot", _) => of(2),
            ("Constant", _) => constant(node),
            ("ConstantOfShape", _) => match attribute(node, "value") {
                Some(AttributeValue::Tensor(tensor)) => Some(tensor.data_type),
                _ => Some(FLOAT),
            },
            ("RandomNormal" | "RandomUniform", _) => Some(number(node, "dtype").unwrap_or(FLOAT)),
            ("EyeLike" | "RandomNormalLike" | "RandomUniformLike" | "Bernoulli", _) => {
                number(node, "dtype").or(of(0))
            }
            ("Shape" | "Size" | "NonZero" | "ArgMax" | "ArgMin" | "NonMaxSuppression", _)
            | ("TopK" | "MaxPool" | "Unique", 1..) => Some(INT64),
            (
                "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "Not" | "And"
                | "Or" | "Xor" | "IsNaN" | "IsInf",
                _,
            )
            | ("Dropout", 1..) => Some(BOOL),
            ("MatMulInteger" | "ConvInteger", _) => Some(INT32),
            ("DynamicQuantizeLinear", 1) => Some(FLOAT),
            ("DynamicQuantizeLinear", _) => Some(UINT8),
            ("QuantizeLinear", _) => number(node, "output_dtype").or(of(2)).or(Some(UINT8)),
            (op, _) if op.starts_with("QLinear") || op.starts_with("Sequence") => None,
            _ => of(0),
        }
    }
}

fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeValue> {
    let found = node.attributes.iter().find(|a| a.name == name);
    found.map(|a| &a.value)
}

fn number(node: &NodeProto, name: &str) -> Option<i64> {
    match attribute(node, name) {
        Some(&AttributeValue::Int(number)) if number != 0 => Some(number),
        _ => None,
    }
}

fn constant(node: &NodeProto) -> Option<i64> {
    match &node.attributes.first()?.value {
        AttributeValue::Tensor(TensorProto { data_type, .. }) => Some(*data_type),
        AttributeValue::Float(_) | AttributeValue::Floats(_) => Some(FLOAT),
        AttributeValue::Int(_) | AttributeValue::Ints(_) => Some(INT64),
        AttributeValue::SparseTensor(tensor) => Some(tensor.values.data_type),
        _ => None,
    }
}
