//! Loops as the passes of their bodies, one after another.

use super::passes::{Form, Loop, Source};
use super::{Failure, Importer, MAX_NESTING, MAX_NODES, Scope};
use crate::builder::At;
use crate::containers::Container;
use crate::error::{OnnxError, shown};
use crate::node::{Ctx, Outputs};
use crate::proto::{AttributeValue, GraphProto, NodeProto};
use neap_ir::op::SliceRange;
use neap_ir::{DType, Literal, Op, ValueId};

/// Nodes that one loop may become. More take more memory while a model is opened than small budgets have.
pub(super) const MAX_UNROLLED: usize = 1_000;

/// The refusal of a loop that would become more.
pub(super) fn too_long(at: At) -> OnnxError {
    at.unsupported(format!(
        "so many passes (a loop may become {MAX_UNROLLED} nodes)"
    ))
}

/// A loop that is being unrolled.
pub(super) struct Body<'a> {
    pub(super) at: At<'a>,
    pub(super) node: &'a NodeProto,
    pub(super) graph: &'a GraphProto,
    /// Of the body's graph, as far as they are needed.
    pub(super) order: Vec<usize>,
}

/// Along which axis results of all passes are put together, and whether the last comes first.
pub(super) struct Joined {
    pub(super) values: Vec<ValueId>,
    pub(super) axis: i64,
    pub(super) reversed: bool,
}

/// How a scan goes: an axis for each input and each result, and whether from its end.
struct Along {
    /// The first scanned input, and the first scanned result; what is before is carried from pass to pass.
    first: usize,
    from: Vec<(i64, bool)>,
    to: Vec<(i64, bool)>,
}

impl Importer<'_> {
    pub(super) fn body<'a>(
        &mut self,
        node: &'a NodeProto,
        at: At<'a>,
        scope: &mut Scope,
        depth: usize,
    ) -> Result<Body<'a>, OnnxError> {
        if depth >= MAX_NESTING {
            return Err(at.bad("loops are nested too deeply"));
        }
        let attribute = node.attributes.iter().find(|a| a.name == "body");
        let Some(AttributeValue::Graph(graph)) = attribute.map(|a| &a.value) else {
            return Err(at.bad("attribute 'body' is missing"));
        };
        let order = self.initializers(graph, scope).map_err(|e| e.at(at))?;
        Ok(Body {
            at,
            node,
            graph,
            order,
        })
    }

    /// One pass, with these inputs of the body.
    pub(super) fn pass(
        &mut self,
        body: &Body,
        outer: &Scope,
        inputs: &[Option<ValueId>],
        depth: usize,
    ) -> Outputs {
        let at = body.at;
        self.lowered += 1;
        if self.lowered > MAX_NODES {
            return Err(at.bad("the model has too many nodes"));
        }
        self.builder.check_memory().map_err(|e| at.bad(e))?;
        if body.graph.inputs.len() != inputs.len() {
            return Err(at.bad("its body has another number of inputs"));
        }
        let mut scope = Scope::inside(outer);
        for (formal, &actual) in body.graph.inputs.iter().zip(inputs) {
            scope.names.insert(formal.name.clone(), actual);
        }
        for &i in &body.order {
            self.node(&body.graph.nodes[i], &mut scope, depth + 1)
                .map_err(|e: Failure| e.at(at))?;
        }
        let outputs = body.graph.outputs.iter().map(|o| {
            scope
                .find(&o.name)
                .ok_or_else(|| at.bad(format!("nothing computes '{}'", shown(&o.name))))
        });
        outputs.collect()
    }

    pub(super) fn ctx<'a>(&'a mut self, body: &Body<'a>, inputs: &[Option<ValueId>]) -> Ctx<'a> {
        Ctx {
            builder: &mut self.builder,
            node: body.node,
            name: body.at.node,
            version: 0,
            inputs: inputs.to_vec(),
        }
    }

    /// `Scan` since opset 9: as many passes as its inputs are long.
    pub(super) fn unroll_scan(
        &mut self,
        node: &NodeProto,
        at: At,
        inputs: &[Option<ValueId>],
        scope: &Scope,
        depth: usize,
    ) -> Outputs {
        let mut outer = Scope::inside(scope);
        let body = self.body(node, at, &mut outer, depth)?;
        let ctx = self.ctx(&body, inputs);
        let count = ctx.size("num_scan_inputs", 0)?;
        let first = inputs.len().checked_sub(count).filter(|_| count > 0);
        let first = first.ok_or_else(|| at.bad("its num_scan_inputs does not fit its inputs"))?;
        let results = body.graph.outputs.len();
        if results < first {
            return Err(at.bad("its body has another number of outputs"));
        }
        let along = Along {
            first,
            from: directed(&ctx, count, "scan_input_axes", "scan_input_directions")?,
            to: directed(
                &ctx,
                results - first,
                "scan_output_axes",
                "scan_output_directions",
            )?,
        };
        self.scan(&body, &outer, inputs, &along, depth)
    }

    /// `Scan` of opset 8, by each element of a batch. Lengths of its own for each are not given.
    pub(super) fn unroll_batched_scan(
        &mut self,
        node: &NodeProto,
        at: At,
        inputs: &[Option<ValueId>],
        scope: &Scope,
        depth: usize,
    ) -> Outputs {
        let mut outer = Scope::inside(scope);
        let body = self.body(node, at, &mut outer, depth)?;
        let Some((None, inputs)) = inputs.split_first() else {
            return Err(at.unsupported("lengths of sequences as its operand"));
        };
        let ctx = self.ctx(&body, inputs);
        let count = ctx.size("num_scan_inputs", 0)?;
        let first = inputs.len().checked_sub(count).filter(|_| count > 0);
        let first = first.ok_or_else(|| at.bad("its num_scan_inputs does not fit its inputs"))?;
        let results = body.graph.outputs.len();
        if results < first {
            return Err(at.bad("its body has another number of outputs"));
        }
        let along = Along {
            first,
            from: directed(&ctx, count, "", "directions")?,
            to: vec![(0, false); results - first],
        };
        let x = ctx.input(first)?;
        let batch = ctx.shape_of_rank(x, 2)?[0];
        if batch.saturating_mul(body.order.len().max(1)) > MAX_UNROLLED {
            return Err(too_long(at));
        }
        let mut all = vec![Vec::new(); results];
        for place in 0..batch {
            let mut given = Vec::new();
            for index in 0..inputs.len() {
                let mut ctx = self.ctx(&body, inputs);
                let x = ctx.input(index)?;
                ctx.builder.check_tensors(at, &[Some(x)])?;
                if ctx.builder.is_late(x) || ctx.shape_of_rank(x, 1)?[0] != batch {
                    return Err(at.bad("its inputs have different batches"));
                }
                given.push(Some(taken(&mut ctx, x, 0, place)?));
            }
            let made = self.scan(&body, &outer, &given, &along, depth)?;
            for (all, value) in all.iter_mut().zip(made) {
                all.extend(value);
            }
        }
        let mut ctx = self.ctx(&body, inputs);
        let outputs = all.into_iter().enumerate().map(|(index, values)| {
            let scanned = Joined {
                values,
                axis: 0,
                reversed: false,
            };
            let wanted = ctx.wants(index);
            wanted.then(|| joined(&mut ctx, &scanned)).transpose()
        });
        outputs.collect()
    }

    /// A pass for each place of the scanned inputs.
    fn scan(
        &mut self,
        body: &Body,
        outer: &Scope,
        inputs: &[Option<ValueId>],
        along: &Along,
        depth: usize,
    ) -> Outputs {
        let (at, first) = (body.at, along.first);
        let ctx = self.ctx(body, inputs);
        let mut sources = Vec::new();
        for (i, &(axis, back)) in along.from.iter().enumerate() {
            let x = ctx.input(first + i)?;
            ctx.builder.check_tensors(at, &[Some(x)])?;
            if ctx.builder.is_late(x) {
                return Err(at.unsupported("an input whose size is known only when running"));
            }
            sources.push(Source {
                value: x,
                axis: ctx.axis(axis, ctx.rank(x))?,
                from_end: back,
            });
        }
        let lengths = sources.iter().map(|s| ctx.shape(s.value)[s.axis]);
        let lengths: Vec<usize> = lengths.collect();
        let length = lengths[0];
        if lengths.iter().any(|&other| other != length) {
            return Err(at.bad("its inputs have different lengths"));
        }
        if length == 0 {
            return self.scan_of_nothing(body, outer, &inputs[..first], &sources, along, depth);
        }
        if length.saturating_mul(body.order.len().max(1)) > MAX_UNROLLED {
            return self.scan_in_one(body, outer, &inputs[..first], &sources, along, depth);
        }
        let mut scanned = vec![Vec::new(); along.to.len()];
        let mut states = inputs[..first].to_vec();
        for trip in 0..length {
            let mut given = states;
            let mut ctx = self.ctx(body, inputs);
            for source in &sources {
                let place = if source.from_end {
                    length - 1 - trip
                } else {
                    trip
                };
                given.push(Some(taken(&mut ctx, source.value, source.axis, place)?));
            }
            let made = self.pass(body, outer, &given, depth)?;
            let (next, scans) = made.split_at(first);
            states = next.to_vec();
            for (scanned, &value) in scanned.iter_mut().zip(scans) {
                scanned.extend(value);
            }
        }
        let mut outputs = states;
        let mut ctx = self.ctx(body, inputs);
        for (i, (values, &(axis, reversed))) in scanned.into_iter().zip(&along.to).enumerate() {
            let scanned = Joined {
                values,
                axis,
                reversed,
            };
            let wanted = ctx.wants(first + i);
            outputs.push(match wanted {
                true => Some(joined(&mut ctx, &scanned)?),
                false => None,
            });
        }
        Ok(outputs)
    }

    /// The first states, and nothing along an axis of each result.
    fn scan_of_nothing(
        &mut self,
        body: &Body,
        outer: &Scope,
        states: &[Option<ValueId>],
        sources: &[Source],
        along: &Along,
        depth: usize,
    ) -> Outputs {
        let of = Loop {
            most: Some(0),
            count: self.builder.literal(Literal::from_i64(&[], &[0])),
            condition: None,
            is_said: false,
            is_counted: true,
            states,
            form: Form::Scan(sources),
        };
        let collected = self.of_no_pass(body, outer, &of, depth)?;
        let mut outputs = states.to_vec();
        for (collected, &(axis, _)) in collected.into_iter().zip(&along.to) {
            let ctx = self.ctx(body, states);
            let mut shape = collected.shape()[1..].to_vec();
            let axis = ctx.axis(axis, shape.len() + 1)?;
            shape.insert(axis, 0);
            outputs.push(Some(self.builder.literal(collected.reshaped(&shape))));
        }
        Ok(outputs)
    }

    /// The scan as one operator.
    fn scan_in_one(
        &mut self,
        body: &Body,
        outer: &Scope,
        states: &[Option<ValueId>],
        sources: &[Source],
        along: &Along,
        depth: usize,
    ) -> Outputs {
        let length = sources
            .first()
            .map(|s| self.builder.ty(s.value).shape[s.axis]);
        let most = length.unwrap_or(0) as i64;
        let of = Loop {
            most: Some(most),
            count: self.builder.literal(Literal::from_i64(&[], &[most])),
            condition: None,
            is_said: false,
            is_counted: true,
            states,
            form: Form::Scan(sources),
        };
        let mut outputs = self.by_body(body, outer, &of, depth)?;
        let mut ctx = self.ctx(body, states);
        for (collected, &(axis, reversed)) in outputs[along.first..].iter_mut().zip(&along.to) {
            if let Some(collected) = collected {
                *collected = laid_along(&mut ctx, *collected, axis, reversed)?;
            }
        }
        Ok(outputs)
    }

    /// `SequenceMap`: a pass for each element.
    pub(super) fn map_sequence(
        &mut self,
        node: &NodeProto,
        at: At,
        inputs: &[Option<ValueId>],
        scope: &Scope,
        depth: usize,
    ) -> Outputs {
        let mut outer = Scope::inside(scope);
        let body = self.body(node, at, &mut outer, depth)?;
        let first = self.ctx(&body, inputs).input(0)?;
        let Some(Container::Sequence(elements)) = self.builder.containers.get(first) else {
            return Err(at.bad("its first input is no sequence"));
        };
        let length = elements.len();
        if length.saturating_mul(body.order.len().max(1)) > MAX_UNROLLED {
            return Err(too_long(at));
        }
        let mut results = vec![Vec::new(); body.graph.outputs.len()];
        for place in 0..length {
            let mut given = Vec::with_capacity(inputs.len());
            for &input in inputs {
                let container = input.and_then(|v| self.builder.containers.get(v));
                given.push(match container {
                    Some(Container::Sequence(elements)) => {
                        let element = elements.get(place).copied();
                        Some(
                            element
                                .ok_or_else(|| at.bad("its sequences have different lengths"))?,
                        )
                    }
                    _ => input,
                });
            }
            let made = self.pass(&body, &outer, &given, depth)?;
            self.builder.check_tensors(at, &made)?;
            for (result, value) in results.iter_mut().zip(made) {
                result.push(value.ok_or_else(|| at.bad("its body leaves a result out"))?);
            }
        }
        let sequences = results.into_iter().map(Container::Sequence);
        Ok(sequences
            .map(|sequence| Some(self.builder.container(sequence)))
            .collect())
    }
}

/// An axis and a direction for each, of two attributes that may be left out.
fn directed(
    c: &Ctx,
    count: usize,
    axes: &str,
    directions: &str,
) -> Result<Vec<(i64, bool)>, OnnxError> {
    let axes_of_each = c.ints(axes)?.unwrap_or_else(|| vec![0; count]);
    let back = c.flags(directions)?.unwrap_or_else(|| vec![false; count]);
    for (name, given) in [(axes, axes_of_each.len()), (directions, back.len())] {
        if given != count {
            return Err(c.bad(format!("attribute '{name}' has another length")));
        }
    }
    Ok(axes_of_each.into_iter().zip(back).collect())
}

pub(super) fn boolean(value: bool) -> Literal {
    let mut literal = Literal::zeros(DType::Bool, &[]);
    literal.bytes_mut()[0] = value.into();
    literal
}

/// The tensor at a place of an axis.
fn taken(c: &mut Ctx, x: ValueId, axis: usize, place: usize) -> Result<ValueId, OnnxError> {
    let mut shape = c.shape(x);
    let range = |(i, &len): (usize, &usize)| SliceRange {
        start: if i == axis { place } else { 0 },
        step: 1,
        len: if i == axis { 1 } else { len },
    };
    let ranges = shape.iter().enumerate().map(range).collect();
    let part = c.emit(Op::Slice { ranges }, &[x])?;
    shape.remove(axis);
    c.reshape(part, &shape)
}

/// What all passes gave along a first axis, along this one.
fn laid_along(c: &mut Ctx, x: ValueId, axis: i64, reversed: bool) -> Result<ValueId, OnnxError> {
    let axis = c.axis(axis, c.rank(x))?;
    let shape = c.shape(x);
    let mut x = x;
    if reversed {
        let whole = |&len: &usize| SliceRange {
            start: 0,
            step: 1,
            len,
        };
        let mut ranges: Vec<SliceRange> = shape.iter().map(whole).collect();
        ranges[0].start = shape[0].saturating_sub(1);
        ranges[0].step = -1;
        x = c.emit(Op::Slice { ranges }, &[x])?;
    }
    if axis == 0 {
        return Ok(x);
    }
    let mut perm: Vec<usize> = (1..shape.len()).collect();
    perm.insert(axis, 0);
    c.emit(Op::Transpose { perm }, &[x])
}

/// What all passes gave, along an axis of its own.
pub(super) fn joined(c: &mut Ctx, scanned: &Joined) -> Result<ValueId, OnnxError> {
    let Some(&first) = scanned.values.first() else {
        return Err(c.unsupported("no passes: the shape of its results is not known"));
    };
    let axis = c.axis(scanned.axis, c.rank(first) + 1)?;
    let mut parts = Vec::with_capacity(scanned.values.len());
    for &value in &scanned.values {
        let mut shape = c.shape(value);
        if axis > shape.len() {
            return Err(c.bad("its passes give tensors of different ranks"));
        }
        shape.insert(axis, 1);
        parts.push(c.reshape(value, &shape)?);
    }
    if scanned.reversed {
        parts.reverse();
    }
    c.emit(Op::Concat { axis }, &parts)
}
