//! Which values the model has in bfloat16, though all floats are carried as f32; and which products have such operands only.

use super::Scope;
use crate::builder::Builder;
use crate::proto::{AttributeValue, NodeProto};
use neap_ir::{DType, Graph, Op, ValueId};

/// ONNX's number of the type.
pub(super) const BFLOAT16: i64 = 16;

impl Scope<'_> {
    pub(super) fn is_in_bf16(&self, name: &str) -> bool {
        let mut scope = Some(self);
        while let Some(s) = scope {
            if s.names.contains_key(name) {
                return s.in_bf16.contains(name);
            }
            scope = s.parent;
        }
        false
    }
}

/// What a node has in bfloat16.
pub(super) struct Halves {
    /// Its results, as far as they are floats.
    pub gives: bool,
    /// All its floats.
    takes_only: bool,
}

impl Halves {
    pub(super) fn of(
        node: &NodeProto,
        inputs: &[Option<ValueId>],
        scope: &Scope,
        builder: &Builder,
    ) -> Halves {
        let is_float = |value: &Option<ValueId>| {
            value.is_some_and(|value| builder.ty(value).dtype == DType::F32)
        };
        let named = node.inputs.iter().zip(inputs);
        let mut floats = named
            .filter(|(_, value)| is_float(value))
            .map(|(name, _)| scope.is_in_bf16(name));
        let first = floats.next().unwrap_or(false);
        let takes_only = first && floats.all(|is_half| is_half);
        let attribute = |name: &str| {
            let mut all = node.attributes.iter();
            all.find(|a| a.name == name).map(|a| &a.value)
        };
        let gives = match node.op_type.as_str() {
            "Cast" => matches!(attribute("to"), Some(AttributeValue::Int(BFLOAT16))),
            "CastLike" => (node.inputs.get(1)).is_some_and(|like| scope.is_in_bf16(like)),
            "BitCast" => false,
            "Constant" => matches!(
                attribute("value"),
                Some(AttributeValue::Tensor(tensor)) if tensor.data_type == BFLOAT16
            ),
            // Results have the type of the first float among the operands.
            _ => first,
        };
        Halves { gives, takes_only }
    }

    /// Marks the results of the products among the nodes from `first` on, which this node has become.
    pub(super) fn mark_products(&self, graph: &mut Graph, first: usize) {
        let made = graph.nodes.get(first..).unwrap_or_default();
        for node in made.iter().filter(|_| self.takes_only) {
            if let (Op::MatMul | Op::Gemm { .. } | Op::Conv(..), [Some(result), ..]) =
                (&node.op, &node.outputs[..])
            {
                graph.values[result.index()].in_bf16 = true;
            }
        }
    }
}
