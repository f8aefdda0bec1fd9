//! `If`: the branch that is taken where the condition is known; else both, each behind a guard, and a choice of results.
//!
//! ```text
//!   condition ─┬─► gate ─► then: nodes that are computed where it holds ──────┐
//!              ├─► gate ─► else: nodes that are computed where it does not ───┤
//!              └─────────────────────────────────────────────────► select ◄───┘
//! ```

use super::{Importer, MAX_NESTING, Scope};
use crate::builder::{At, Builder};
use crate::containers::Container;
use crate::error::{OnnxError, shown};
use crate::late::Axis;
use crate::node::{Ctx, Outputs};
use crate::ops::late::is_of_data;
use crate::proto::{AttributeValue, NodeProto};
use neap_ir::late::LateOp;
use neap_ir::{DType, ValueId};

impl Importer<'_> {
    pub(super) fn branch(
        &mut self,
        node: &NodeProto,
        at: At,
        inputs: Vec<Option<ValueId>>,
        scope: &Scope,
        depth: usize,
    ) -> Outputs {
        if depth >= MAX_NESTING {
            return Err(at.bad("branches are nested too deeply"));
        }
        let mut ctx = Ctx {
            builder: &mut self.builder,
            node,
            name: at.node,
            version: 0,
            inputs,
        };
        let condition = ctx.input(0)?;
        if ctx.ty(condition).elements() != 1 {
            return Err(ctx.bad("its condition must have one element"));
        }
        if is_decided_late(&mut ctx, condition)? {
            return self.both(node, at, condition, scope, depth);
        }
        let taken = ctx.known_i64(condition, "its condition")? != [0];
        self.one(node, at, taken, scope, depth)
    }

    /// A branch's results.
    fn one(
        &mut self,
        node: &NodeProto,
        at: At,
        is_then: bool,
        scope: &Scope,
        depth: usize,
    ) -> Outputs {
        let which = if is_then {
            "then_branch"
        } else {
            "else_branch"
        };
        let attribute = node.attributes.iter().find(|a| a.name == which);
        let Some(AttributeValue::Graph(graph)) = attribute.map(|a| &a.value) else {
            return Err(at.bad(format!("attribute '{which}' is missing")));
        };
        let mut inner = Scope::inside(scope);
        self.graph(graph, &mut inner, depth + 1)
            .map_err(|e| e.at(at))?;
        let outputs = graph.outputs.iter().map(|o| {
            inner
                .find(&o.name)
                .ok_or_else(|| at.bad(format!("nothing computes '{}'", shown(&o.name))))
        });
        outputs.collect()
    }

    /// The results of whichever branch is taken when the model runs.
    fn both(
        &mut self,
        node: &NodeProto,
        at: At,
        condition: ValueId,
        scope: &Scope,
        depth: usize,
    ) -> Outputs {
        let around = self.builder.guard;
        // Both gates before anything behind them: loads for the second branch start while the first is computed.
        let mut gates = Vec::new();
        for is_then in [true, false] {
            gates.push(self.builder.gate(at, condition, !is_then, around)?);
        }
        let mut given = Vec::new();
        for (gate, is_then) in gates.into_iter().zip([true, false]) {
            self.builder.guard = Some(gate);
            let outputs = self.one(node, at, is_then, scope, depth);
            self.builder.guard = around;
            given.push(outputs?);
        }
        if given[0].len() != given[1].len() {
            return Err(at.bad("its branches have different numbers of outputs"));
        }
        let pairs = given[0].iter().zip(&given[1]).enumerate();
        let selected = pairs.map(|(index, (&a, &b))| {
            let is_wanted = node.outputs.get(index).is_some_and(|name| !name.is_empty());
            match (a, b) {
                _ if !is_wanted => Ok(None),
                (Some(a), Some(b)) => self.builder.select(at, condition, a, b).map(Some),
                _ => Err(at.bad(format!("output {index} is left out"))),
            }
        });
        selected.collect()
    }
}

/// Whether a condition is computed from data; one that an input of the model gives is asked for.
pub(super) fn is_decided_late(c: &mut Ctx, condition: ValueId) -> Result<bool, OnnxError> {
    c.builder.check_tensors(c.at(), &[Some(condition)])?;
    let is_known = !c.builder.is_late(condition) && c.builder.known(condition)?.is_some();
    if is_known || !is_of_data(c, condition)? {
        return Ok(false);
    }
    match c.dtype(condition) {
        DType::Bool => Ok(true),
        other => Err(c.bad(format!("its condition is {other}"))),
    }
}

impl Builder {
    /// A guard: whether the condition holds, or does not with `not`, and what is `around` it does.
    pub(crate) fn gate(
        &mut self,
        at: At,
        condition: ValueId,
        not: bool,
        around: Option<ValueId>,
    ) -> Result<ValueId, OnnxError> {
        // A guard is there whether or not the one around it holds.
        let guard = self.guard.take();
        let inputs = [Some(condition), around];
        let inputs = &inputs[..1 + usize::from(around.is_some())];
        let results = vec![(DType::Bool, Vec::new())];
        let given = self.emit_late(at, LateOp::Gate { not }, inputs, results, &[true]);
        self.guard = guard;
        given?[0].ok_or_else(|| at.bad("it has no output"))
    }

    /// a where the condition holds, else b.
    ///
    /// # Errors
    /// Where no value can hold both.
    pub(crate) fn select(
        &mut self,
        at: At,
        condition: ValueId,
        a: ValueId,
        b: ValueId,
    ) -> Result<ValueId, OnnxError> {
        if a == b {
            return Ok(a);
        }
        let (first, second) = (self.containers.get(a), self.containers.get(b));
        match (first.cloned(), second.cloned()) {
            (None, None) => {}
            (Some(Container::Sequence(a)), Some(Container::Sequence(b))) if a.len() == b.len() => {
                let pairs = a.into_iter().zip(b);
                let chosen = pairs.map(|(a, b)| self.select(at, condition, a, b));
                let chosen = chosen.collect::<Result<Vec<_>, _>>()?;
                return Ok(self.container(Container::Sequence(chosen)));
            }
            _ => {
                let what = "a sequence or an optional whose contents the data decide";
                return Err(at.unsupported(what));
            }
        }
        let (first, second) = (self.ty(a), self.ty(b));
        if first.dtype != second.dtype || self.narrow(a) != self.narrow(b) {
            let (first, second) = (first.dtype, second.dtype);
            return Err(at.bad(format!("a result is {first} or {second}")));
        }
        if first.shape.len() != second.shape.len() {
            return Err(at.unsupported("a result whose number of axes the data decide"));
        }
        let dtype = first.dtype;
        let pairs = self.axes(a).into_iter().zip(self.axes(b));
        let axes: Vec<Axis> = pairs
            .map(|(a, b)| match a == b {
                true => a,
                false => self.late.fresh(a.most.max(b.most)),
            })
            .collect();
        let inputs = [Some(condition), Some(a), Some(b)];
        let given = self.emit_late(at, LateOp::Select, &inputs, vec![(dtype, axes)], &[true])?;
        let given = given[0].ok_or_else(|| at.bad("it has no output"))?;
        if let Some(narrow) = self.narrow(a) {
            self.set_narrow(given, narrow);
        }
        Ok(given)
    }
}
