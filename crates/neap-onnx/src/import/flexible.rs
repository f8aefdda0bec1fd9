//! `FlexAttention`: an attention whose scores and weights graphs of the model change.

use super::{Importer, MAX_NESTING, Scope};
use crate::builder::At;
use crate::error::{OnnxError, shown};
use crate::node::{Ctx, Outputs};
use crate::ops::dot_attention::{self, Parts};
use crate::proto::{AttributeValue, NodeProto};
use neap_ir::{DType, ValueId};

impl Importer<'_> {
    pub(super) fn flexible_attention(
        &mut self,
        node: &NodeProto,
        at: At,
        inputs: &[Option<ValueId>],
        scope: &Scope,
        depth: usize,
    ) -> Outputs {
        if depth >= MAX_NESTING {
            return Err(at.bad("attributes are nested too deeply"));
        }
        self.builder.check_tensors(at, inputs)?;
        if inputs.iter().flatten().any(|&v| self.builder.is_late(v)) {
            return Err(at.unsupported("a size that is known only when running"));
        }
        let mut c = self.attention_ctx(node, at, inputs);
        let parts = Parts::of_heads(&c)?;
        let dtype = c.dtype(parts.q);
        let precision = match c.optional_int("softmax_precision")? {
            Some(number) => c.element_type(number)?,
            None if dtype == DType::F64 => DType::F64,
            None => DType::F32,
        };
        let scores = dot_attention::scores(&mut c, &parts)?;
        let scores = c.cast(scores, precision)?;
        let scores = self.changed(node, at, "score_mod", scores, scope, depth)?;
        let mut c = self.attention_ctx(node, at, inputs);
        let weights = dot_attention::softmax(&mut c, scores, precision)?;
        let weights = self.changed(node, at, "prob_mod", weights, scope, depth)?;
        let mut c = self.attention_ctx(node, at, inputs);
        let weights = c.cast(weights, dtype)?;
        let y = dot_attention::weighted(&mut c, &parts, weights)?;
        Ok(vec![Some(y)])
    }

    fn attention_ctx<'a>(
        &'a mut self,
        node: &'a NodeProto,
        at: At<'a>,
        inputs: &[Option<ValueId>],
    ) -> Ctx<'a> {
        Ctx {
            builder: &mut self.builder,
            node,
            name: at.node,
            version: 1,
            inputs: inputs.to_vec(),
        }
    }

    /// What the graph of an attribute makes of a value; the value itself where there is none.
    fn changed(
        &mut self,
        node: &NodeProto,
        at: At,
        attribute: &str,
        value: ValueId,
        scope: &Scope,
        depth: usize,
    ) -> Result<ValueId, OnnxError> {
        let found = node.attributes.iter().find(|a| a.name == attribute);
        let graph = match found.map(|a| &a.value) {
            None => return Ok(value),
            Some(AttributeValue::Graph(graph)) => graph,
            Some(_) => return Err(at.bad(format!("attribute '{attribute}' is no graph"))),
        };
        let ([input], [output]) = (&graph.inputs[..], &graph.outputs[..]) else {
            let what = "has not one input and one output";
            return Err(at.bad(format!("attribute '{attribute}' {what}")));
        };
        let mut inner = Scope::inside(scope);
        inner.names.insert(input.name.clone(), Some(value));
        self.graph(graph, &mut inner, depth + 1)
            .map_err(|e| e.at(at))?;
        let Some(Some(changed)) = inner.find(&output.name) else {
            return Err(at.bad(format!("nothing computes '{}'", shown(&output.name))));
        };
        self.builder.check_tensors(at, &[Some(changed)])?;
        if self.builder.is_late(changed) || self.builder.ty(changed) != self.builder.ty(value) {
            let what = "gives another shape or element type";
            return Err(at.bad(format!("attribute '{attribute}' {what}")));
        }
        Ok(changed)
    }
}
