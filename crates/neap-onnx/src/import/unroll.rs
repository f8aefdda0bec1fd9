//! Loops whose number of passes is known when a model is read: their bodies, one after another.

use super::{Failure, Importer, MAX_NESTING, MAX_NODES, Scope};
use crate::builder::At;
use crate::error::{OnnxError, shown};
use crate::node::{Ctx, Outputs};
use crate::proto::{AttributeValue, GraphProto, NodeProto};
use neap_ir::op::SliceRange;
use neap_ir::{DType, Literal, Op, ValueId};

/// Nodes that one loop may become. More take more memory while a model is opened than small budgets have.
const MAX_UNROLLED: usize = 1_000;

/// A loop that is being unrolled.
struct Body<'a> {
    at: At<'a>,
    node: &'a NodeProto,
    graph: &'a GraphProto,
    /// Of the body's graph, as far as they are needed.
    order: Vec<usize>,
}

/// Along which axis results of all passes are put together, and whether the last comes first.
struct Joined {
    values: Vec<ValueId>,
    axis: i64,
    reversed: bool,
}

impl Importer<'_> {
    fn body<'a>(
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
    fn pass(
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

    fn ctx<'a>(&'a mut self, body: &Body<'a>, inputs: &[Option<ValueId>]) -> Ctx<'a> {
        Ctx {
            builder: &mut self.builder,
            node: body.node,
            name: body.at.node,
            version: 0,
            inputs: inputs.to_vec(),
        }
    }

    /// `Loop` whose trip count and conditions are known.
    pub(super) fn unroll_loop(
        &mut self,
        node: &NodeProto,
        at: At,
        inputs: &[Option<ValueId>],
        scope: &Scope,
        depth: usize,
    ) -> Outputs {
        let mut outer = Scope::inside(scope);
        let body = self.body(node, at, &mut outer, depth)?;
        let mut ctx = self.ctx(&body, inputs);
        let trips = ctx.known_scalar(0, "its trip count")?.unwrap_or(i64::MAX);
        let mut going = match ctx.optional(1) {
            Some(condition) => ctx.known(condition, "its condition")?.bytes() == [1],
            None => true,
        };
        let mut states = inputs.get(2..).unwrap_or_default().to_vec();
        let scans = node.outputs.len().max(states.len()) - states.len();
        let results = body.graph.outputs.len();
        if results < 1 + states.len() || results - 1 - states.len() < scans {
            return Err(at.bad("its body has another number of outputs"));
        }
        let mut scanned: Vec<Joined> = (0..results - 1 - states.len())
            .map(|_| Joined {
                values: Vec::new(),
                axis: 0,
                reversed: false,
            })
            .collect();
        let mut trip = 0;
        while going && trip < trips {
            if trip as usize * body.order.len().max(1) > MAX_UNROLLED {
                return Err(at.unsupported("so many passes"));
            }
            let builder = &mut self.builder;
            let mut given = vec![
                Some(builder.literal(Literal::from_i64(&[], &[trip]))),
                Some(builder.literal(boolean(true))),
            ];
            given.extend(&states);
            let made = self.pass(&body, &outer, &given, depth)?;
            let (condition, made) = made.split_first().ok_or_else(|| at.bad("no outputs"))?;
            let known = match condition {
                Some(condition) => self.builder.known(*condition)?,
                None => None,
            };
            let Some(known) = known else {
                return Err(at.unsupported("a condition that is known only when running"));
            };
            going = known.bytes() == [1];
            let (next, scans) = made.split_at(states.len());
            states = next.to_vec();
            for (scanned, &value) in scanned.iter_mut().zip(scans) {
                scanned.values.extend(value);
            }
            trip += 1;
        }
        let mut outputs = states;
        let mut ctx = self.ctx(&body, inputs);
        for scanned in scanned.iter().take(scans) {
            outputs.push(Some(joined(&mut ctx, scanned)?));
        }
        Ok(outputs)
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
        let each = |name: &str, count: usize| {
            let given = ctx.ints(name)?.unwrap_or_else(|| vec![0; count]);
            match given.len() == count {
                true => Ok(given),
                false => Err(at.bad(format!("attribute '{name}' has another length"))),
            }
        };
        let (axes, back) = (
            each("scan_input_axes", count)?,
            each("scan_input_directions", count)?,
        );
        let (to_axes, to_back) = (
            each("scan_output_axes", results - first)?,
            each("scan_output_directions", results - first)?,
        );
        let mut scanned: Vec<Joined> = (to_axes.into_iter().zip(to_back))
            .map(|(axis, back)| Joined {
                values: Vec::new(),
                axis,
                reversed: back != 0,
            })
            .collect();
        let mut sources = Vec::new();
        for (i, &axis) in axes.iter().enumerate() {
            let x = ctx.input(first + i)?;
            if ctx.builder.is_late(x) {
                return Err(at.unsupported("an input whose size is known only when running"));
            }
            sources.push((x, ctx.axis(axis, ctx.rank(x))?, back[i] != 0));
        }
        let lengths = sources.iter().map(|&(x, axis, _)| ctx.shape(x)[axis]);
        let lengths: Vec<usize> = lengths.collect();
        let length = lengths[0];
        if lengths.iter().any(|&other| other != length) {
            return Err(at.bad("its inputs have different lengths"));
        }
        if length.saturating_mul(body.order.len().max(1)) > MAX_UNROLLED {
            return Err(at.unsupported("so many passes"));
        }
        let mut states = inputs[..first].to_vec();
        for trip in 0..length {
            let mut given = states;
            let mut ctx = self.ctx(&body, inputs);
            for &(x, axis, back) in &sources {
                let place = if back { length - 1 - trip } else { trip };
                given.push(Some(taken(&mut ctx, x, axis, place)?));
            }
            let made = self.pass(&body, &outer, &given, depth)?;
            let (next, scans) = made.split_at(first);
            states = next.to_vec();
            for (scanned, &value) in scanned.iter_mut().zip(scans) {
                scanned.values.extend(value);
            }
        }
        let mut outputs = states;
        let mut ctx = self.ctx(&body, inputs);
        for (i, scanned) in scanned.iter().enumerate() {
            let wanted = ctx.wants(first + i);
            outputs.push(match wanted {
                true => Some(joined(&mut ctx, scanned)?),
                false => None,
            });
        }
        Ok(outputs)
    }
}

fn boolean(value: bool) -> Literal {
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

/// What all passes gave, along an axis of its own.
fn joined(c: &mut Ctx, scanned: &Joined) -> Result<ValueId, OnnxError> {
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
