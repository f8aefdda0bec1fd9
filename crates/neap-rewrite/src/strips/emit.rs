//! The nodes of strips, in an order in which what is read is mostly read at once.
//!
//! Of the nodes that may compute the deepest does, as soon as the rows are there that it reads: so strips go through chains of
//! layers one after another, and little is alive between the layers.

mod attend;

use super::keys::{KeyWalk, of_queries};
use super::kinds::{Kind, Kinds};
use super::part::{ROWS, Wanted};
use neap_ir::graph::LANES;
use neap_ir::op::{Activation, Op, SpaceNorm, Unary};
use neap_ir::strips::{PlaceFold, PlacePool, Rows};
use neap_ir::{DType, Graph, Layout, Node, Program, TensorType, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(super) fn emit(program: &Program, kinds: &Kinds) -> Graph {
    let mut graph = program.graph.clone();
    graph.nodes.clear();
    let count = kinds.kinds.len();
    let mut emitter = Emitter {
        kinds,
        graph,
        done: vec![0; count],
        strips: BTreeMap::new(),
        found: BTreeMap::new(),
        joined: BTreeMap::new(),
        memo: BTreeMap::new(),
        put: BTreeMap::new(),
        queries: of_queries(kinds),
        named: BTreeMap::new(),
    };
    for front in emitter.fronts() {
        let reach = emitter.reach(front);
        emitter.prepare(&reach);
        while !emitter.is_complete(front) {
            let deepest = reach
                .iter()
                .rev()
                .copied()
                .find(|&at| emitter.may_go_on(at));
            emitter.go_on(deepest.unwrap_or(front));
        }
    }
    emitter.graph
}

struct Emitter<'a> {
    kinds: &'a Kinds<'a>,
    graph: Graph,
    /// By node of the old graph: how much of it there is, in strips.
    done: Vec<usize>,
    strips: BTreeMap<ValueId, Vec<ValueId>>,
    /// By node that sums strips up: what the strips so far say; of a norm, then its factors.
    found: BTreeMap<usize, ValueId>,
    /// Values in strips that somebody reads whole.
    joined: BTreeMap<ValueId, ValueId>,
    /// Rows that are there already, for the node that is made now.
    memo: BTreeMap<(ValueId, usize, usize), ValueId>,
    /// Results whose strips are put into their places, so far.
    put: BTreeMap<ValueId, ValueId>,
    /// Nodes that make queries, and the attentions of these.
    queries: BTreeMap<usize, usize>,
    /// Strips of keys and values by another name, by what they are of and their first place.
    named: BTreeMap<(ValueId, usize), ValueId>,
}

impl<'a> Emitter<'a> {
    fn old(&self) -> &'a Graph {
        self.kinds.graph
    }

    fn node(&self, at: usize) -> &'a Node {
        &self.kinds.graph.nodes[at]
    }

    /// All nodes, in the order in which they are completed.
    fn fronts(&self) -> Vec<usize> {
        let makers = |of: usize| self.queries.iter().filter(move |(_, at)| **at == of);
        let nodes = 0..self.kinds.kinds.len();
        let nodes = nodes.filter(|at| !self.queries.contains_key(at));
        nodes
            .flat_map(|at| makers(at).map(|(&maker, _)| maker).chain([at]))
            .collect()
    }

    /// How much there is of a node when it is complete.
    fn whole(&self, at: usize) -> usize {
        let strips = |v: Option<ValueId>| v.map_or(0, |v| self.kinds.cuts(v).len() - 1);
        match self.kinds.kinds[at] {
            Kind::Whole => 1,
            Kind::Passing => 0,
            Kind::Kept | Kind::Joined => strips(self.node(at).outputs[0]),
            // Its factors, or its result.
            Kind::Norm => strips(self.node(at).outputs[0]) + 1,
            Kind::Folded(_) => strips(self.node(at).input(0)) + 1,
        }
    }

    fn is_complete(&self, at: usize) -> bool {
        self.done[at] == self.whole(at)
    }

    /// What may compute before `front` is complete, and `front`.
    fn reach(&self, front: usize) -> BTreeSet<usize> {
        let mut found = BTreeSet::from([front]);
        let mut next = vec![front];
        while let Some(at) = next.pop() {
            let more = self.kinds.followers[at].iter();
            next.extend(more.filter(|&&at| found.insert(at)));
        }
        found
    }

    /// Makes what the nodes want whole, where that waits for none of them.
    fn prepare(&mut self, reach: &BTreeSet<usize>) {
        for &at in reach {
            let inputs: Vec<ValueId> = self.inputs_behind(at);
            for v in inputs {
                self.hoist(v);
            }
        }
    }

    /// What a node reads, itself or through passing nodes.
    fn inputs_behind(&self, at: usize) -> Vec<ValueId> {
        let mut found = Vec::new();
        for v in self.node(at).present_inputs() {
            match self.kinds.producer(v) {
                Some((before, Kind::Passing | Kind::Norm)) => {
                    found.extend(self.inputs_behind(before));
                }
                _ => found.push(v),
            }
        }
        found
    }

    /// Makes a whole value, if all that it is made of is whole or complete.
    fn hoist(&mut self, v: ValueId) -> bool {
        let Some((at, kind)) = self.kinds.producer(v) else {
            return true;
        };
        match kind {
            _ if self.is_complete(at) && kind != Kind::Passing => true,
            Kind::Whole => {
                let inputs: Vec<ValueId> = self.node(at).present_inputs().collect();
                let ready = inputs.into_iter().all(|v| self.hoist(v));
                if ready {
                    self.go_on(at);
                }
                ready
            }
            _ => false,
        }
    }

    /// Whether the next strip of a node may be made.
    fn may_go_on(&self, at: usize) -> bool {
        if self.is_complete(at) || self.waits(at) {
            return false;
        }
        let node = self.node(at);
        match self.kinds.kinds[at] {
            Kind::Whole => node
                .present_inputs()
                .all(|v| self.is_there(v, &self.kinds.rows(v))),
            Kind::Passing => false,
            Kind::Norm if self.done[at] + 1 == self.whole(at) => node.inputs[1..]
                .iter()
                .flatten()
                .all(|&v| self.is_there(v, &(0..0))),
            Kind::Norm => node
                .input(0)
                .zip(node.outputs[0])
                .is_some_and(|(x, y)| self.is_there(x, &self.next(at, y))),
            Kind::Folded(_) if self.done[at] + 1 == self.whole(at) => true,
            Kind::Folded(_) => node
                .input(0)
                .is_some_and(|x| self.is_there(x, &self.next(at, x))),
            Kind::Kept | Kind::Joined => {
                let y = node.outputs[0];
                y.is_some_and(|y| self.reads_are_there(at, self.next(at, y)))
            }
        }
    }

    /// The next strip of a node, of those of one of its values.
    fn next(&self, at: usize, v: ValueId) -> Range<usize> {
        let cuts = self.kinds.cuts(v);
        cuts[self.done[at]]..cuts[self.done[at] + 1]
    }

    fn reads_are_there(&self, at: usize, made: Range<usize>) -> bool {
        let node = self.node(at);
        self.kinds.part(node, made).is_some_and(|part| {
            let mut reads = node.inputs.iter().zip(&part.wanted);
            reads.all(|(v, wanted)| match (v, wanted) {
                (None, _) => true,
                (Some(v), Wanted::Whole) => self.is_there(*v, &self.kinds.rows(*v)),
                (Some(v), Wanted::Rows(_, rows)) => self.is_there(*v, rows),
            })
        })
    }

    /// Whether these rows of a value can be read.
    fn is_there(&self, v: ValueId, rows: &Range<usize>) -> bool {
        let Some((at, kind)) = self.kinds.producer(v) else {
            return true;
        };
        match kind {
            Kind::Whole | Kind::Joined | Kind::Folded(_) => self.is_complete(at),
            Kind::Kept => self.kinds.cuts(v)[self.done[at]] >= rows.end,
            Kind::Passing => self.reads_are_there(at, rows.clone()),
            Kind::Norm => {
                let x = self.node(at).input(0);
                self.is_complete(at) && x.is_some_and(|x| self.is_there(x, rows))
            }
        }
    }

    /// Makes the next strip of a node.
    fn go_on(&mut self, at: usize) {
        self.memo.clear();
        let kinds = self.kinds;
        let node = &kinds.graph.nodes[at];
        match kinds.kinds[at] {
            Kind::Whole => {
                let inputs = node.inputs.iter();
                let inputs = inputs.map(|v| v.map(|v| self.joined(v))).collect();
                self.graph.nodes.push(Node {
                    inputs,
                    ..node.clone()
                });
            }
            Kind::Passing => {}
            Kind::Kept | Kind::Joined => {
                if let Some(y) = node.outputs[0] {
                    let made = self.next(at, y);
                    let strip = self.rows_of(at, y, made.clone());
                    self.strips.entry(y).or_default().push(strip);
                    if self.is_scattered(at, y) {
                        self.put(y, strip, made);
                    }
                }
            }
            Kind::Norm => self.go_on_with_norm(at),
            Kind::Folded(fold) => self.go_on_with_fold(at, fold),
        }
        self.done[at] += 1;
        let is_output = |v: &Option<ValueId>| v.is_some_and(|v| kinds.graph.outputs.contains(&v));
        let is_joined = match kinds.kinds[at] {
            Kind::Joined => true,
            Kind::Kept => node.outputs.iter().any(is_output),
            _ => false,
        };
        if is_joined && self.is_complete(at) {
            self.join_strips(node.outputs[0]);
        }
    }

    /// Whether the strips of a value are put into a result of the program that they are no pieces of.
    fn is_scattered(&self, at: usize, y: ValueId) -> bool {
        let before = self
            .kinds
            .axis(y)
            .map(|axis| &self.old().ty(y).shape[..axis]);
        let is_piece = before.is_some_and(|before| before.iter().all(|&places| places == 1));
        let is_plain = self.old().value(y).layout == Layout::Plain;
        let is_output = self.old().outputs.contains(&y);
        self.kinds.kinds[at] == Kind::Kept && is_output && is_plain && !is_piece
    }

    /// Puts a strip into its place in a result of the program.
    fn put(&mut self, y: ValueId, strip: ValueId, made: Range<usize>) {
        let Some(axis) = self.kinds.axis(y) else {
            return;
        };
        let rows = self.kinds.rows(y).len();
        let before = self.put.get(&y).copied();
        let whole = match made.end == rows {
            true => y,
            false => self.part_of(y, axis, rows),
        };
        let op = Op::PutRows(Rows {
            axis,
            start: made.start,
            len: rows,
        });
        let name = self.old().value(y).name.clone();
        let inputs = [Some(strip)].into_iter().chain(before.map(Some));
        self.push(&name, op, inputs.collect(), whole);
        self.put.insert(y, whole);
    }

    fn go_on_with_norm(&mut self, at: usize) {
        let node = self.node(at).clone();
        let (Some(x), Some(y)) = (node.input(0), node.outputs[0]) else {
            return;
        };
        let (images, channels) = (self.old().ty(x).shape[0], self.old().ty(x).shape[1]);
        let by_block =
            |dtype, each| TensorType::new(dtype, &[images, channels.div_ceil(LANES), each, LANES]);
        let before = self.found.get(&at).copied();
        let (op, inputs, ty) = if self.done[at] + 1 == self.whole(at) {
            let (groups, epsilon) = match node.op {
                Op::GroupNorm {
                    groups, epsilon, ..
                } => (groups, epsilon),
                Op::InstanceNorm { epsilon } => (channels, epsilon),
                _ => return,
            };
            let norm = SpaceNorm {
                groups,
                positions: self.old().ty(x).shape[2..].iter().product(),
                epsilon,
            };
            let inputs = vec![before, node.inputs[1], node.inputs[2]];
            (Op::NormFactors(norm), inputs, by_block(DType::F32, 3))
        } else {
            let strip = self.rows(x, ROWS, self.next(at, y));
            let inputs = [Some(strip)].into_iter().chain(before.map(Some));
            (Op::Moments, inputs.collect(), by_block(DType::F64, 2))
        };
        let y = self.graph.add_value(node.name.clone(), ty);
        self.push(&node.name, op, inputs, y);
        self.found.insert(at, y);
    }

    fn go_on_with_fold(&mut self, at: usize, fold: PlaceFold) {
        let node = self.node(at).clone();
        let (Some(x), Some(y)) = (node.input(0), node.outputs[0]) else {
            return;
        };
        let before = self.found.get(&at).copied();
        if self.done[at] + 1 == self.whole(at) {
            let pool = PlacePool {
                fold,
                positions: self.old().ty(x).shape[2..].iter().product(),
                shape: self.old().ty(y).shape.clone(),
            };
            self.push(&node.name, Op::PoolPlaces(Box::new(pool)), vec![before], y);
            return;
        }
        let shape = &self.old().ty(x).shape;
        let shape = [shape[0], shape[1].div_ceil(LANES), 1, LANES];
        let strip = self.rows(x, ROWS, self.next(at, x));
        let inputs = [Some(strip)].into_iter().chain(before.map(Some));
        let ty = TensorType::new(DType::F64, &shape);
        let made = self.graph.add_value(node.name.clone(), ty);
        self.push(&node.name, Op::FoldPlaces(fold), inputs.collect(), made);
        self.found.insert(at, made);
    }

    fn push(&mut self, name: &str, op: Op, inputs: Vec<Option<ValueId>>, y: ValueId) {
        self.graph.nodes.push(Node {
            name: name.to_owned(),
            op,
            inputs,
            outputs: vec![Some(y)],
            panels: None,
        });
    }

    /// A value as its readers of the old graph take it.
    fn joined(&mut self, v: ValueId) -> ValueId {
        if let Some(&joined) = self.joined.get(&v) {
            return joined;
        }
        let joined = match (self.kinds.producer(v), self.kinds.axis(v)) {
            (Some((_, Kind::Kept | Kind::Passing | Kind::Norm)), Some(axis)) => {
                self.rows(v, axis, self.kinds.rows(v))
            }
            _ => v,
        };
        self.joined.insert(v, joined);
        joined
    }

    /// Makes a value of the old graph of its strips.
    fn join_strips(&mut self, y: Option<ValueId>) {
        let Some((y, axis)) = y.and_then(|y| Some((y, self.kinds.axis(y)?))) else {
            return;
        };
        if !self.put.contains_key(&y) {
            let strips = self.strips[&y].clone();
            self.join(&strips, axis, 0..self.kinds.rows(y).len(), y);
        }
        self.joined.insert(y, y);
    }

    /// Rows of a value, which are there or can be made.
    fn rows(&mut self, v: ValueId, axis: usize, rows: Range<usize>) -> ValueId {
        let key = (v, rows.start, rows.end);
        if let Some(&found) = self.memo.get(&key) {
            return found;
        }
        let made = match self.kinds.producer(v) {
            Some((at, Kind::Passing | Kind::Norm)) => self.rows_of(at, v, rows),
            _ => {
                let (strips, held) = self.strips_of(v, axis, &rows);
                self.cut(v, &strips, axis, held, rows)
            }
        };
        self.memo.insert(key, made);
        made
    }

    /// What holds these rows of a value that is kept or whole, and the rows that it holds.
    fn strips_of(
        &self,
        v: ValueId,
        axis: usize,
        rows: &Range<usize>,
    ) -> (Vec<ValueId>, Range<usize>) {
        if !matches!(self.kinds.producer(v), Some((_, Kind::Kept))) {
            return (vec![v], 0..self.old().ty(v).shape[axis]);
        }
        let cuts = self.kinds.cuts(v);
        let first = cuts.partition_point(|&cut| cut <= rows.start) - 1;
        let last = cuts.partition_point(|&cut| cut < rows.end);
        let strips = self.strips[&v][first..last].to_vec();
        (strips, cuts[first]..cuts[last])
    }

    /// These rows of strips that hold `held`.
    fn cut(
        &mut self,
        v: ValueId,
        strips: &[ValueId],
        axis: usize,
        held: Range<usize>,
        rows: Range<usize>,
    ) -> ValueId {
        if let ([strip], true) = (strips, held == rows) {
            return *strip;
        }
        let y = self.part_of(v, axis, rows.len());
        self.join(
            strips,
            axis,
            rows.start - held.start..rows.end - held.start,
            y,
        );
        y
    }

    /// Makes `y` of these rows of strips.
    fn join(&mut self, strips: &[ValueId], axis: usize, rows: Range<usize>, y: ValueId) {
        let held = |v: &ValueId| self.graph.ty(*v).shape[axis];
        let all = rows == (0..strips.iter().map(held).sum());
        let op = match all && self.graph.value(y).layout == Layout::Plain {
            // Strips may be made in their places.
            true => Op::Concat { axis },
            false => Op::Rows(Rows {
                axis,
                start: rows.start,
                len: rows.len(),
            }),
        };
        let name = self.graph.value(y).name.clone();
        let strips = strips.iter().map(|&v| Some(v)).collect();
        self.push(&name, op, strips, y);
    }

    /// A new value for so many rows of another.
    fn part_of(&mut self, v: ValueId, axis: usize, rows: usize) -> ValueId {
        let mut value = self.old().value(v).clone();
        value.ty.shape[axis] = rows;
        value.constant = None;
        let id = ValueId(self.graph.values.len() as u32);
        self.graph.values.push(value);
        id
    }

    /// Makes rows of a result.
    fn rows_of(&mut self, at: usize, y: ValueId, rows: Range<usize>) -> ValueId {
        let kinds = self.kinds;
        let node = &kinds.graph.nodes[at];
        if let (Op::Unary(Unary::Activation(activation)), Some(x)) = (&node.op, node.input(0))
            && let Some((norm, Kind::Norm)) = kinds.producer(x)
        {
            return self.normalised(norm, y, rows, *activation);
        }
        if kinds.kinds[at] == Kind::Norm {
            return self.normalised(at, y, rows, Activation::None);
        }
        let part = kinds.part(node, rows.clone());
        let part = part.expect("rows of this node were made before it was chosen");
        let axis = kinds.axis(y).unwrap_or(ROWS);
        if let Some(walk) = KeyWalk::of(kinds.graph, node) {
            let keys = walk.strips(kinds);
            if !keys.is_empty() {
                let made = self.attend(node, &walk, keys, (&part, y, axis));
                return self.cut(y, &[made], axis, part.made, rows);
            }
        }
        let inputs = node.inputs.iter().zip(part.wanted);
        let inputs = inputs
            .map(|(v, wanted)| {
                v.map(|v| match wanted {
                    Wanted::Whole => self.joined(v),
                    Wanted::Rows(axis, rows) => self.rows(v, axis, rows),
                })
            })
            .collect();
        let made = self.part_of(y, axis, part.made.len());
        let outputs = node.outputs.iter().map(|v| (*v == Some(y)).then_some(made));
        self.graph.nodes.push(Node {
            name: node.name.clone(),
            op: part.op,
            inputs,
            outputs: outputs.collect(),
            panels: node.panels,
        });
        self.cut(y, &[made], axis, part.made, rows)
    }

    /// Rows of a norm's result.
    fn normalised(
        &mut self,
        norm: usize,
        y: ValueId,
        rows: Range<usize>,
        activation: Activation,
    ) -> ValueId {
        let node = self.node(norm).clone();
        let factors = self.found.get(&norm).copied();
        let made = self.part_of(y, ROWS, rows.len());
        let (strips, held) = match node.input(0) {
            Some(x) => self.sources_of(x, &rows),
            None => (Vec::new(), rows.clone()),
        };
        let op = Op::Normalise {
            activation,
            rows: Rows {
                axis: ROWS,
                start: rows.start - held.start,
                len: rows.len(),
            },
        };
        let inputs = [factors].into_iter().chain(strips.into_iter().map(Some));
        self.push(&node.name, op, inputs.collect(), made);
        made
    }

    /// As [`Emitter::strips_of`], of any value: what is not kept is made.
    fn sources_of(&mut self, v: ValueId, rows: &Range<usize>) -> (Vec<ValueId>, Range<usize>) {
        match self.kinds.producer(v) {
            Some((_, Kind::Passing | Kind::Norm)) => {
                (vec![self.rows(v, ROWS, rows.clone())], rows.clone())
            }
            _ => self.strips_of(v, ROWS, rows),
        }
    }
}
