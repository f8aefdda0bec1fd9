//! Loops of many passes: the body is read once, and becomes a graph inside one operator.
//!
//! ```text
//!   nodes of the model    … │ nodes of one pass, over stand-ins for its number and its states │
//!                           └► taken out again: a graph of its own, whose inputs are the stand-ins
//!                              and every value from outside that its nodes read
//! ```

use super::unroll::{Body, MAX_UNROLLED, boolean, too_long};
use super::{Importer, Scope};
use crate::builder::{At, Builder, COUNTED_NODES};
use crate::cleanup;
use crate::error::OnnxError;
use crate::late::{Axis, Range};
use crate::node::Outputs;
use neap_ir::late::{LateOp, Repeat};
use neap_ir::op::Binary;
use neap_ir::{DType, Graph, Literal, Node, Op, TensorType, ValueId};
use std::collections::{HashMap, HashSet};

/// Where the data decide how many passes there are, a most above this says as little as none.
pub(super) const MOST_OPEN: i64 = 1 << 20;

/// A loop, and what is known of it before its body is read.
#[derive(Clone, Copy)]
pub(super) struct Loop<'a> {
    /// As many passes as memory is planned for. `None` where neither a count nor the data end it: it is counted.
    pub most: Option<i64>,
    /// How often it goes round.
    pub count: ValueId,
    /// Whether it goes round at all, where that is known only when running.
    pub condition: Option<ValueId>,
    /// The user says so.
    pub is_said: bool,
    /// It goes round `most` times, unless its body ends it before.
    pub is_counted: bool,
    pub states: &'a [Option<ValueId>],
    /// What a body takes and gives.
    pub form: Form<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    /// Number of the pass, condition, states; condition, states, results.
    Loop,
    /// States, a place of each of these; states, results.
    Scan(&'a [Source]),
}

/// What a scan goes along.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub value: ValueId,
    pub axis: usize,
    pub from_end: bool,
}

/// One pass as it was read: values of the model's graph, of nodes that are taken out of it.
pub(super) struct Pass {
    pub nodes: Vec<Node>,
    pub number: ValueId,
    pub states: Vec<ValueId>,
    /// Whether there is another.
    pub condition: ValueId,
    /// The states after it.
    pub next: Vec<ValueId>,
    pub collected: Vec<ValueId>,
}

/// How passes change the sizes of states.
#[derive(Default)]
struct Growth {
    /// Of each state, what a pass may find.
    axes: Vec<Vec<Axis>>,
    /// Of each axis that changes, by how many at the most.
    by: Vec<Vec<Option<usize>>>,
}

impl Importer<'_> {
    /// The last states, and what all passes gave, along a first axis.
    pub(super) fn by_body(
        &mut self,
        body: &Body,
        outer: &Scope,
        of: &Loop,
        depth: usize,
    ) -> Outputs {
        let at = body.at;
        let around = self.builder.guard;
        let mut pass = self.one_pass(body, outer, of, None, depth)?;
        let growth = self.builder.growth(of, &pass);
        if let Some(growth) = &growth {
            pass = self.one_pass(body, outer, of, Some(growth), depth)?;
        }
        let builder = &mut self.builder;
        let last = builder.last_states(at, &pass, growth.as_ref())?;
        if around.is_none() {
            builder.put_before(&mut pass);
        }

        let (most, is_exact) = builder.passes(body, of, &pass)?;
        let passes = match is_exact {
            true => Axis::known(most),
            false => builder.late.fresh(most),
        };
        let states = pass.states.iter().copied().zip(last);
        let collected = pass.collected.iter().map(|&v| {
            let axes = builder.axes(v).into_iter();
            (v, std::iter::once(passes).chain(axes).collect())
        });
        let given: Vec<(ValueId, Vec<Axis>)> = states.chain(collected).collect();
        let types = given
            .iter()
            .map(|(v, axes)| (builder.ty(*v).dtype, axes.clone()));
        let types = types.collect();

        let condition = of.condition;
        let condition = condition.unwrap_or_else(|| builder.literal(boolean(true)));
        let mut operands = vec![Some(of.count), Some(condition)];
        operands.extend(of.states);
        let (graph, shared) = builder.taken_out(at, pass);
        operands.extend(shared.into_iter().map(Some));
        let op = LateOp::Repeat(Box::new(Repeat {
            most: most as u64,
            states: of.states.len(),
            body: graph,
        }));
        let names = &body.node.outputs;
        let is_wanted = |index: usize| names.get(index).is_some_and(|name| !name.is_empty());
        let wanted: Vec<bool> = (0..given.len()).map(is_wanted).collect();
        let results = builder.emit_late(at, op, &operands, types, &wanted)?;
        for (result, (value, _)) in results.iter().zip(&given) {
            if let (Some(result), Some(narrow)) = (*result, builder.narrow(*value)) {
                builder.set_narrow(result, narrow);
            }
        }
        Ok(results)
    }

    /// What is collected of no pass: of the sizes that one would give, which is read to know them.
    pub(super) fn of_no_pass(
        &mut self,
        body: &Body,
        outer: &Scope,
        of: &Loop,
        depth: usize,
    ) -> Result<Vec<Literal>, OnnxError> {
        let of = Loop {
            most: Some(1),
            ..*of
        };
        let pass = self.one_pass(body, outer, &of, None, depth)?;
        let types = pass.collected.iter().map(|&value| self.builder.ty(value));
        let empty = types.map(|ty| {
            let shape: Vec<usize> = std::iter::once(0).chain(ty.shape.iter().copied()).collect();
            Literal::zeros(ty.dtype, &shape)
        });
        Ok(empty.collect())
    }

    /// The nodes of a pass are none of the model's graph afterwards.
    fn one_pass(
        &mut self,
        body: &Body,
        outer: &Scope,
        of: &Loop,
        growth: Option<&Growth>,
        depth: usize,
    ) -> Result<Pass, OnnxError> {
        let around = self.builder.guard.take();
        let begin = self.builder.graph.nodes.len();
        let pass = self.read_pass(body, outer, of, growth, depth);
        self.builder.guard = around;
        let nodes = self.builder.graph.nodes.split_off(begin);
        Ok(Pass { nodes, ..pass? })
    }

    fn read_pass(
        &mut self,
        body: &Body,
        outer: &Scope,
        of: &Loop,
        growth: Option<&Growth>,
        depth: usize,
    ) -> Result<Pass, OnnxError> {
        let most = of.most.unwrap_or(COUNTED_NODES as i64);
        let at = body.at;
        let builder = &mut self.builder;
        let number = builder.stand_in(TensorType::new(DType::I64, &[]));
        let range = Range {
            low: vec![0],
            high: vec![most - 1],
            symbols: vec![None],
        };
        builder.note_range(number, range);
        let mut states = Vec::with_capacity(of.states.len());
        builder.check_tensors(at, of.states)?;
        for (index, first) in of.states.iter().enumerate() {
            let first = first.ok_or_else(|| at.bad("a value that it carries is left out"))?;
            let grown = growth.map(|growth| growth.axes[index].clone());
            let axes = grown.unwrap_or_else(|| builder.axes(first));
            states.push(builder.stand_in_for(first, &axes));
        }
        let carried = states.iter().copied().map(Some);
        let mut given = Vec::new();
        match of.form {
            Form::Loop => {
                given.push(Some(number));
                given.push(Some(builder.literal(boolean(true))));
                given.extend(carried);
            }
            Form::Scan(sources) => {
                given.extend(carried);
                for source in sources {
                    given.push(builder.place_of(at, *source, number, most)?);
                }
            }
        }
        let made = self.pass(body, outer, &given, depth)?;
        let builder = &mut self.builder;
        builder.check_tensors(at, &made)?;
        let made: Option<Vec<ValueId>> = made.into_iter().collect();
        let mut made = made.ok_or_else(|| at.bad("its body leaves a result out"))?;
        let condition = match of.form {
            Form::Loop if made.is_empty() => return Err(at.bad("no outputs")),
            Form::Loop => made.remove(0),
            Form::Scan(_) => builder.literal(boolean(true)),
        };
        if made.len() < states.len() {
            return Err(at.bad("its body has another number of outputs"));
        }
        let mut collected = made.split_off(states.len());
        let results = body.node.outputs.len();
        collected.truncate(results.saturating_sub(states.len()));
        Ok(Pass {
            nodes: Vec::new(),
            number,
            states,
            condition,
            next: made,
            collected,
        })
    }
}

impl Builder {
    /// A value that each pass has another of.
    fn stand_in(&mut self, ty: TensorType) -> ValueId {
        let value = self.graph.add_value("", ty);
        self.graph.values[value.index()].name = format!("carried_{}", value.0);
        self.stand_ins.insert(value);
        value
    }

    /// One that is like the first, of these sizes.
    fn stand_in_for(&mut self, first: ValueId, axes: &[Axis]) -> ValueId {
        let value = self.stand_in(TensorType {
            dtype: self.ty(first).dtype,
            shape: axes.iter().map(|axis| axis.most).collect(),
        });
        self.set_axes(value, axes);
        if let Some(narrow) = self.narrow(first) {
            self.set_narrow(value, narrow);
        }
        value
    }

    /// What a pass takes of a scanned value.
    fn place_of(
        &mut self,
        at: At,
        source: Source,
        number: ValueId,
        count: i64,
    ) -> Result<Option<ValueId>, OnnxError> {
        let mut place = Some(number);
        if source.from_end {
            let last = self.literal(Literal::from_i64(&[], &[count - 1]));
            let sub = Op::Binary(Binary::Sub);
            place = self.emit(at, sub, &[Some(last), place], &[true])?[0];
        }
        let gather = Op::Gather { axis: source.axis };
        Ok(self.emit(at, gather, &[Some(source.value), place], &[true])?[0])
    }

    /// The most passes that there are, and whether there are always so many.
    fn passes(&mut self, body: &Body, of: &Loop, pass: &Pass) -> Result<(usize, bool), OnnxError> {
        let at = body.at;
        let is_few =
            |passes: i64| (passes as usize).saturating_mul(body.order.len().max(1)) <= MAX_UNROLLED;
        let goes_on = self.known(pass.condition)?;
        let goes_on = goes_on.is_some_and(|known| known.bytes() == [1]);
        let counted = match of.is_counted && !goes_on {
            true => self.counted(at, pass, of.states)?,
            false => None,
        };
        let (most, is_exact) = match (of.most, counted) {
            // Those are written out, as what they compute may be known.
            (_, Some(counted)) if is_few(counted) => return Err(too_long(at)),
            (Some(most), Some(counted)) => (most.min(counted), true),
            (None, Some(counted)) => (counted, true),
            (Some(most), None) => {
                let is_exact = of.is_counted && goes_on;
                if !is_exact && !of.is_said && most > MOST_OPEN {
                    return Err(too_long(at));
                }
                (most, is_exact)
            }
            (None, None) => return Err(too_long(at)),
        };
        let most = usize::try_from(most).map_err(|_| at.bad("it has no passes"))?;
        Ok((most, is_exact))
    }

    /// Sizes of states that passes change, if any are: each pass by as much as the first does. Then passes find all sizes up to those
    /// before the last pass.
    fn growth(&mut self, of: &Loop, pass: &Pass) -> Option<Growth> {
        let before_last = usize::try_from(of.most? - 1).ok()?;
        let mut growth = Growth::default();
        let mut is_any = false;
        for (&state, &next) in pass.states.iter().zip(&pass.next) {
            let (from, to) = (self.axes(state), self.axes(next));
            if from.len() != to.len() {
                return None;
            }
            let mut axes = Vec::new();
            let mut by = Vec::new();
            for (a, b) in from.into_iter().zip(to) {
                if a == b {
                    axes.push(a);
                    by.push(None);
                    continue;
                }
                is_any = true;
                let more = b.most.saturating_sub(a.most);
                let most = more.checked_mul(before_last)?.checked_add(a.most)?;
                axes.push(self.late.fresh(most));
                by.push(Some(more));
            }
            growth.axes.push(axes);
            growth.by.push(by);
        }
        is_any.then_some(growth)
    }

    /// The sizes of states after the last pass. They keep their types, or grow as they were said to; what is collected has one
    /// size.
    fn last_states(
        &mut self,
        at: At,
        pass: &Pass,
        growth: Option<&Growth>,
    ) -> Result<Vec<Vec<Axis>>, OnnxError> {
        let ty = self.ty(pass.condition);
        if ty.elements() != 1 || ty.dtype != DType::Bool || self.is_late(pass.condition) {
            return Err(at.bad("its condition must be one bool"));
        }
        if pass.collected.iter().any(|&v| self.is_late(v)) {
            let what = "a result of each pass whose size is known only when running";
            return Err(at.unsupported(what));
        }
        let mut last = Vec::with_capacity(pass.states.len());
        for (index, (&state, &next)) in pass.states.iter().zip(&pass.next).enumerate() {
            let (from, to) = (self.axes(state), self.axes(next));
            let is_alike = self.ty(state).dtype == self.ty(next).dtype
                && self.narrow(state) == self.narrow(next)
                && from.len() == to.len();
            let mut axes = Vec::with_capacity(from.len());
            for (axis, (a, b)) in from.into_iter().zip(to).enumerate() {
                let by = growth.and_then(|growth| growth.by[index][axis]);
                axes.push(match by {
                    Some(by) if b.most <= a.most.saturating_add(by) => {
                        Some(self.late.fresh(a.most.max(b.most)))
                    }
                    _ => Some(a).filter(|a| *a == b),
                });
            }
            let axes: Option<Vec<Axis>> = axes.into_iter().collect();
            let axes = axes.filter(|_| is_alike).ok_or_else(|| {
                let what = "a value that it carries whose type changes, or whose size changes by more each time,";
                at.unsupported(format!(
                    "{what} in so many passes (more than {MAX_UNROLLED} nodes in all),"
                ))
            })?;
            last.push(axes);
        }
        Ok(last)
    }

    /// What is made of constants alone, and too large to be folded, is made before the loop: of weights that are transposed or
    /// dequantised, each pass would make the same again.
    fn put_before(&mut self, pass: &mut Pass) {
        let mut made: HashSet<ValueId> = HashSet::new();
        for node in std::mem::take(&mut pass.nodes) {
            let is_same = |v: ValueId| made.contains(&v) || self.graph.constant(v).is_some();
            let has_inputs = node.present_inputs().next().is_some();
            if has_inputs && node.present_inputs().all(is_same) {
                made.extend(node.present_outputs());
                self.graph.nodes.push(node);
            } else {
                pass.nodes.push(node);
            }
        }
    }

    /// The graph of a pass, and the values from outside that are its inputs behind number and states.
    pub(super) fn taken_out(&self, at: At, pass: Pass) -> (Graph, Vec<ValueId>) {
        let results = pass.nodes.iter().flat_map(Node::present_outputs);
        let inner: HashSet<ValueId> = results.collect();
        let mut graph = Graph {
            name: at.node.to_string(),
            ..Graph::default()
        };
        let mut known: HashMap<ValueId, ValueId> = HashMap::new();
        let mut shared = Vec::new();
        let mut local = |graph: &mut Graph, value: ValueId| {
            *known.entry(value).or_insert_with(|| {
                let of = self.graph.value(value);
                let id = graph.add_value(of.name.clone(), of.ty.clone());
                if !inner.contains(&value) {
                    graph.inputs.push(id);
                    shared.push(value);
                }
                id
            })
        };
        for &own in std::iter::once(&pass.number).chain(&pass.states) {
            local(&mut graph, own);
        }
        for mut node in pass.nodes {
            let ids = node.inputs.iter_mut().chain(&mut node.outputs);
            ids.flatten().for_each(|id| *id = local(&mut graph, *id));
            graph.nodes.push(node);
        }
        let given = std::iter::once(&pass.condition).chain(&pass.next);
        for &value in given.chain(&pass.collected) {
            let id = local(&mut graph, value);
            graph.outputs.push(id);
        }
        let mut graph = cleanup::run(graph);
        // What only nodes read that nobody needs is not shared.
        let reads = graph.nodes.iter().flat_map(Node::present_inputs);
        let needed: HashSet<ValueId> = reads.chain(graph.outputs.iter().copied()).collect();
        let own = 1 + pass.states.len();
        let is_kept = |index: usize, id: ValueId| index < own || needed.contains(&id);
        let inputs = std::mem::take(&mut graph.inputs).into_iter().zip(shared);
        let inputs = inputs.enumerate().filter(|(i, (id, _))| is_kept(*i, *id));
        let (inputs, mut shared): (Vec<_>, Vec<_>) = inputs.map(|(_, pair)| pair).unzip();
        graph.inputs = inputs;
        shared.drain(..own);
        (graph, shared)
    }
}
