//! Which values the model has in half floats, though all floats are carried as f32. Products whose operands are all in bfloat16
//! are marked. What a node makes a half float of is rounded there; results of other operators are not.

use super::Scope;
use crate::builder::{At, Builder};
use crate::error::OnnxError;
use crate::proto::{AttributeValue, NodeProto};
use neap_ir::{Const, DType, Graph, Op, ValueId};

/// Of ONNX's number of a type; `None` for those that are no half floats.
pub(super) fn half(data_type: i64) -> Option<DType> {
    match data_type {
        10 => Some(DType::F16),
        16 => Some(DType::BF16),
        _ => None,
    }
}

impl Scope<'_> {
    /// What the model has a value in, where that is a half float.
    pub(super) fn half_of(&self, name: &str) -> Option<DType> {
        let mut scope = Some(self);
        while let Some(s) = scope {
            if s.names.contains_key(name) {
                return s.halves.get(name).copied();
            }
            scope = s.parent;
        }
        None
    }

    pub(super) fn set_half(&mut self, name: &str, half: Option<DType>) {
        if let Some(half) = half {
            self.halves.insert(name.to_string(), half);
        }
    }
}

/// What a node has in half floats.
pub(super) struct Halves {
    /// Its results, as far as they are floats.
    pub gives: Option<DType>,
    /// All its floats are in bfloat16.
    takes_bf16_only: bool,
    /// What its first operand, which is of another type, becomes.
    rounds_to: Option<DType>,
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
            .map(|(name, _)| scope.half_of(name));
        let first = floats.next().flatten();
        let is_bf16 = |half: Option<DType>| half == Some(DType::BF16);
        let takes_bf16_only = is_bf16(first) && floats.all(is_bf16);
        let attribute = |name: &str| {
            let mut all = node.attributes.iter();
            all.find(|a| a.name == name).map(|a| &a.value)
        };
        let gives = match node.op_type.as_str() {
            "Cast" => match attribute("to") {
                Some(&AttributeValue::Int(to)) => half(to),
                _ => None,
            },
            "CastLike" => node.inputs.get(1).and_then(|like| scope.half_of(like)),
            "BitCast" => None,
            "Constant" => match attribute("value") {
                Some(AttributeValue::Tensor(tensor)) => half(tensor.data_type),
                _ => None,
            },
            // Results have the type of the first float among the operands.
            _ => first,
        };
        let casts = matches!(node.op_type.as_str(), "Cast" | "CastLike");
        let own = node.inputs.first().and_then(|name| scope.half_of(name));
        // Types of one byte are held exactly.
        let is_wide = (inputs.first().copied().flatten())
            .is_some_and(|value| builder.ty(value).dtype.size_bytes() > 1);
        let rounds = casts && builder.widen && is_wide && gives != own;
        Halves {
            gives,
            takes_bf16_only,
            rounds_to: gives.filter(|_| rounds),
        }
    }

    /// The result of a cast as a half float holds it. Weights stay what they are in the file, so that layers stream them.
    pub(super) fn rounded(
        &self,
        builder: &mut Builder,
        at: At,
        value: ValueId,
    ) -> Result<ValueId, OnnxError> {
        let is_in_file = matches!(builder.graph.constant(value), Some(Const::Stored { .. }));
        let Some(to) = self.rounds_to.filter(|_| !is_in_file) else {
            return Ok(value);
        };
        let mut value = Some(value);
        for to in [to, DType::F32] {
            value = builder.emit(at, Op::Cast { to }, &[value], &[true])?[0];
        }
        value.ok_or_else(|| at.bad("its result is not there"))
    }

    /// Marks the results of the products among the nodes from `first` on, which this node has become.
    pub(super) fn mark_products(&self, graph: &mut Graph, first: usize) {
        let made = graph.nodes.get(first..).unwrap_or_default();
        for node in made.iter().filter(|_| self.takes_bf16_only) {
            if let (Op::MatMul | Op::Gemm { .. } | Op::Conv(..), [Some(result), ..]) =
                (&node.op, &node.outputs[..])
            {
                graph.values[result.index()].in_bf16 = true;
            }
        }
    }
}
