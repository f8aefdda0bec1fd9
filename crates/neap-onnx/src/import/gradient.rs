//! `Gradient` of `ai.onnx.preview.training`: the nodes between the tensors that it names are lowered once more, with its inputs
//! in their places, and their backward pass behind them.
//!
//! ```text
//!   xs, zs ──► nodes ──► y                     the graph that is named
//!   inputs ──► the same nodes ──► y'           lowered again: inputs may be other tensors, or constants
//!                └─► dy'/dx' ──► outputs       neap_autodiff::differentiate
//! ```
//! A derivative is made of ordinary operators, so it can be differentiated again.

use super::{Importer, Scope};
use crate::builder::At;
use crate::error::{OnnxError, shown};
use crate::node::Outputs;
use crate::order;
use crate::proto::{AttributeValue, NodeProto};
use neap_autodiff::{AutodiffError, differentiate};
use neap_ir::{Literal, Op, ValueId};
use std::collections::HashSet;

/// Derivatives of derivatives end here: each takes some times as many nodes as the one before.
const MAX_ORDER: usize = 3;
/// Each looks at all nodes of the model. Real ones have one, or one for each part of them.
const MAX_GRADIENTS: usize = 256;

/// What a node's attributes say.
struct Request<'a> {
    /// Those that `y` is differentiated by, and then the others that it is a function of.
    names: Vec<&'a str>,
    /// How many of them `y` is differentiated by.
    variables: usize,
    y: &'a str,
}

impl<'a> Request<'a> {
    fn of(node: &'a NodeProto, at: At) -> Result<Request<'a>, OnnxError> {
        let text = |bytes: &'a [u8], attribute: &str| {
            let text = std::str::from_utf8(bytes).ok().filter(|t| !t.is_empty());
            text.ok_or_else(|| at.bad(format!("attribute '{attribute}' names nothing")))
        };
        let attribute = |name: &str| {
            let found = node.attributes.iter().find(|a| a.name == name);
            found.map(|a| &a.value)
        };
        let list = |name: &'static str| match attribute(name) {
            Some(AttributeValue::Strings(list)) => list.iter().map(|t| text(t, name)).collect(),
            None | Some(AttributeValue::None) => Ok(Vec::new()),
            Some(_) => Err(at.bad(format!("attribute '{name}' has the wrong type"))),
        };
        let mut names: Vec<&str> = list("xs")?;
        let variables = names.len();
        if variables == 0 {
            return Err(at.bad("attribute 'xs' is missing"));
        }
        names.extend(list("zs")?);
        let y = match attribute("y") {
            Some(AttributeValue::String(y)) => text(y, "y")?,
            _ => return Err(at.bad("attribute 'y' is missing")),
        };
        Ok(Request {
            names,
            variables,
            y,
        })
    }
}

impl Importer<'_> {
    /// Derivatives of one number by each of `xs`.
    pub(super) fn gradient(
        &mut self,
        node: &NodeProto,
        at: At,
        inputs: &[Option<ValueId>],
        scope: &Scope,
        depth: usize,
    ) -> Outputs {
        if self.orders >= MAX_ORDER {
            return Err(at.unsupported(format!("a derivative of more than order {MAX_ORDER}")));
        }
        self.gradients += 1;
        if self.gradients > MAX_GRADIENTS {
            return Err(at.unsupported(format!("more than {MAX_GRADIENTS} derivatives")));
        }
        let request = Request::of(node, at)?;
        let count = request.names.len();
        if inputs.len() != count {
            return Err(at.bad(format!(
                "it has {} inputs for {count} names in 'xs' and 'zs'",
                inputs.len()
            )));
        }
        self.builder.check_tensors(at, inputs)?;
        // Nodes of the function alone, as the backward pass is made of all that there are.
        let before = std::mem::take(&mut self.builder.graph.nodes);
        let first = self.builder.graph.values.len();
        self.orders += 1;
        let (variables, y) = self.function(&request, at, inputs, scope, depth)?;
        self.orders -= 1;
        let graph = std::mem::take(&mut self.builder.graph);
        let (mut graph, found) = differentiate(graph, y, &variables).map_err(|e| refusal(at, e))?;
        let own = std::mem::replace(&mut graph.nodes, before);
        graph.nodes.extend(own);
        for value in &mut graph.values[first..] {
            value.name = format!("{}/{}", at.node, value.name);
        }
        self.builder.graph = graph;
        let mut outputs = Vec::new();
        for (i, (derivative, &x)) in found.into_iter().zip(&variables).enumerate() {
            let is_wanted = node.outputs.get(i).is_some_and(|name| !name.is_empty());
            outputs.push(match derivative {
                None if is_wanted => Some(self.zeros_as(at, x)?),
                derivative => derivative,
            });
        }
        Ok(outputs)
    }

    /// Lowers the function once more: gives what it is differentiated by, and its result.
    fn function(
        &mut self,
        request: &Request,
        at: At,
        inputs: &[Option<ValueId>],
        scope: &Scope,
        depth: usize,
    ) -> Result<(Vec<ValueId>, ValueId), OnnxError> {
        let mut inner = Scope {
            nodes: scope.nodes,
            ..Scope::inside(scope)
        };
        let mut variables = Vec::new();
        for (i, (&name, input)) in request.names.iter().zip(inputs).enumerate() {
            let value = input.ok_or_else(|| at.bad(format!("input {i} is missing")))?;
            let mut value = value;
            if i < request.variables {
                let is_float = self.builder.ty(value).dtype.is_float();
                if self.builder.is_late(value) || self.builder.narrow(value).is_some() || !is_float
                {
                    return Err(at.unsupported(format!("a derivative by '{}'", shown(name))));
                }
                // No constant, so that nothing that depends on it is folded, and nobody else's.
                value = self.copy(value).map_err(|e| at.bad(e))?;
                variables.push(value);
            }
            if inner.names.insert(name.to_string(), Some(value)).is_some() {
                return Err(at.bad(format!("'{}' is named twice", shown(name))));
            }
        }
        self.lower_again(request, at, &mut inner, depth)?;
        let y = inner.find(request.y).flatten();
        let y = y.ok_or_else(|| at.bad(format!("nothing computes '{}'", shown(request.y))))?;
        self.builder.check_tensors(at, &[Some(y)])?;
        let ty = self.builder.ty(y);
        if self.builder.is_late(y) || ty.elements() != 1 || !ty.dtype.is_float() {
            return Err(at.unsupported(format!(
                "the derivative of '{}', which is {}{:?} and not one floating-point number,",
                shown(request.y),
                ty.dtype,
                ty.shape
            )));
        }
        Ok((variables, y))
    }

    /// Nodes between the named tensors and `y`; what does not depend on them is there already.
    fn lower_again(
        &mut self,
        request: &Request,
        at: At,
        inner: &mut Scope,
        depth: usize,
    ) -> Result<(), OnnxError> {
        let nodes = inner.nodes;
        let makes_y = |n: &NodeProto| n.outputs.iter().any(|o| o == request.y);
        if !request.names.contains(&request.y) && !nodes.iter().any(makes_y) {
            return Err(at.unsupported(format!(
                "the derivative of '{}', which no node of the model's own graph computes,",
                shown(request.y)
            )));
        }
        let outputs = std::iter::once(request.y);
        let order = order::live_nodes(nodes, outputs).map_err(|e| at.bad(e))?;
        let mut dependent: HashSet<&str> = request.names.iter().copied().collect();
        for node in order.into_iter().map(|i| &nodes[i]) {
            let mut reads = HashSet::new();
            order::used_names(node, &mut reads);
            if reads.is_disjoint(&dependent) {
                continue;
            }
            let mut made = node.outputs.iter().map(String::as_str);
            if let Some(name) = made.find(|name| request.names.contains(name)) {
                return Err(at.bad(format!(
                    "'{}' follows from others that it names",
                    shown(name)
                )));
            }
            self.node(node, inner, depth + 1).map_err(|e| e.at(at))?;
            let made = node.outputs.iter().filter(|name| !name.is_empty());
            dependent.extend(made.map(String::as_str));
        }
        Ok(())
    }

    fn zeros_as(&mut self, at: At, x: ValueId) -> Result<ValueId, OnnxError> {
        let ty = self.builder.ty(x).clone();
        let zero = self.builder.literal(Literal::zeros(ty.dtype, &[]));
        let op = Op::Expand { shape: ty.shape };
        let zeros = self.builder.emit(at, op, &[Some(zero)], &[true])?;
        zeros[0].ok_or_else(|| at.bad("it has no result"))
    }
}

fn refusal(at: At, error: AutodiffError) -> OnnxError {
    match error {
        AutodiffError::NoDerivative { .. } => at.unsupported(format!("{error}; so this")),
        error => at.bad(error.to_string()),
    }
}
