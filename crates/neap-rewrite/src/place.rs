//! Which values share memory.
//!
//! Every value belongs to a *class*: a buffer-to-be in which it has a byte offset. Classes merge
//! when a node can do without moving data:
//!
//! ```text
//! view      reshape, contiguous slice/split, trivial reorder    output = part of input's bytes
//! concat    contiguous concat                                   inputs = parts of output's bytes
//! in place  element-wise, residual sums                         output overwrites a dead input
//! state     a parameter and what replaces it                    output overwrites a state
//! ```
//! Two values may share a byte if both hold the same element there (a view and what it is a view
//! of), or if they are never alive together. Every merge checks that for all pairs of values, and is
//! dropped (the node then copies) when it fails.

use crate::content::Contents;
use crate::members::{Member, Members};
use neap_ir::graph::LANES;
use neap_ir::op::{Op, Unary};
use neap_ir::program::{Buffer, Storage};
use neap_ir::{Const, Graph, Layout, Node, NodeId, Program, State, TensorType, ValueId};
use neap_ops::OperandForm;

pub(crate) fn run(graph: Graph, digest: String) -> Program {
    let mut classes = Classes::new(&graph);
    for state in &graph.states {
        update_in_place(&graph, state, &mut classes);
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        if !share_views(&graph, node, &mut classes) {
            share_in_place(&graph, node, at, &mut classes);
        }
    }
    let elided: Vec<bool> = graph
        .nodes
        .iter()
        .map(|node| only_renames(&graph, node, &mut classes))
        .collect();
    finish(graph, digest, classes, &elided)
}

/// Operands of a node as the operator queries want them.
pub(crate) fn operands<'a>(graph: &'a Graph, ids: &[Option<ValueId>]) -> Vec<OperandForm<'a>> {
    let operand = |v: ValueId| (graph.ty(v), graph.value(v).layout);
    ids.iter().map(|id| id.map(operand)).collect()
}

/// A piece of a node's result that is also a piece of an input: `inner` lies `offset` bytes into `outer`.
pub(crate) struct View {
    pub inner: ValueId,
    pub outer: ValueId,
    /// Bytes.
    pub offset: usize,
}

/// The views that would make the node a mere renaming; `None` for nodes that compute.
pub(crate) fn views(graph: &Graph, node: &Node) -> Option<Vec<View>> {
    let value = |v: ValueId| graph.value(v);
    let input = node.input(0);
    let output = node.outputs.first().copied().flatten();
    match &node.op {
        Op::Reshape { .. } | Op::Unary(Unary::Identity) => {
            let (input, output) = (input?, output?);
            let plain =
                value(input).layout == Layout::Plain && value(output).layout == Layout::Plain;
            let same =
                value(input).layout == value(output).layout && value(input).ty == value(output).ty;
            (plain || same).then(|| {
                vec![View {
                    inner: output,
                    outer: input,
                    offset: 0,
                }]
            })
        }
        Op::Reorder => {
            let (input, output) = (input?, output?);
            let shape = &value(input).ty.shape;
            let flat = shape[2..].iter().product::<usize>() == 1;
            let full = shape[1].is_multiple_of(LANES);
            let cut = shape[0] == 1 && value(input).layout == Layout::Blocked;
            (flat && (full || cut)).then(|| {
                vec![View {
                    inner: output,
                    outer: input,
                    offset: 0,
                }]
            })
        }
        Op::Concat { axis } => {
            let output = output?;
            let mut at = 0;
            let mut found = Vec::new();
            for &input in &node.inputs {
                let input = input?;
                let offset = part_offset(value(output).layout, &value(output).ty, *axis, at)?;
                found.push(View {
                    inner: input,
                    outer: output,
                    offset,
                });
                at += value(input).ty.shape[*axis];
            }
            Some(found)
        }
        Op::Split { axis, sizes } => {
            let input = input?;
            let mut at = 0;
            let mut found = Vec::new();
            for (output, size) in node.outputs.iter().zip(sizes) {
                let offset = part_offset(value(input).layout, &value(input).ty, *axis, at)?;
                if let Some(output) = *output {
                    found.push(View {
                        inner: output,
                        outer: input,
                        offset,
                    });
                }
                at += size;
            }
            Some(found)
        }
        Op::Slice { ranges } => {
            let (input, output) = (input?, output?);
            let shape = &value(input).ty.shape;
            let mut cut = ranges
                .iter()
                .zip(shape)
                .enumerate()
                .filter(|(_, (r, d))| r.start != 0 || r.len != **d || r.step != 1);
            let offset = match (cut.next(), cut.next()) {
                (None, _) => 0,
                (Some((axis, (range, _))), None) if range.step == 1 => {
                    part_offset(value(input).layout, &value(input).ty, axis, range.start)?
                }
                _ => return None,
            };
            Some(vec![View {
                inner: output,
                outer: input,
                offset,
            }])
        }
        _ => None,
    }
}

/// Byte offset of index `at` along `axis`, when everything from there on is contiguous.
fn part_offset(layout: Layout, ty: &TensorType, axis: usize, at: usize) -> Option<usize> {
    if ty.shape[..axis].iter().any(|&d| d != 1) {
        return None;
    }
    let inner: usize = ty.shape[axis + 1..].iter().product();
    match layout {
        Layout::Plain => Some(at * inner * ty.dtype.size_bytes()),
        Layout::Blocked => (axis == 1 && at.is_multiple_of(LANES)).then_some(at * inner * 4),
    }
}

fn share_views(graph: &Graph, node: &Node, classes: &mut Classes) -> bool {
    let Some(found) = views(graph, node) else {
        return false;
    };
    // A blocked part that is padded in its last block would spill into its neighbour.
    for view in &found {
        if classes.fits(view) {
            classes.merge(view.inner, view.outer, view.offset as i64, Merge::SameData);
        }
    }
    true
}

fn share_in_place(graph: &Graph, node: &Node, at: usize, classes: &mut Classes) {
    let inputs = operands(graph, &node.inputs);
    let outputs = operands(graph, &node.outputs);
    let Some(output) = node.outputs.first().copied().flatten() else {
        return;
    };
    let candidates = neap_ops::may_overwrite(&node.op, &inputs, &outputs);
    for &candidate in &candidates {
        let Some(input) = node.input(candidate) else {
            continue;
        };
        let is_as_large = graph.value(input).len_bytes() == graph.value(output).len_bytes();
        if !is_as_large || !classes.placeable[input.index()] {
            continue;
        }
        // Another operand in the same bytes must be one that is read where it is overwritten.
        let torn = (0..node.inputs.len()).any(|other| {
            node.input(other).is_some_and(|v| {
                other != candidate
                    && classes.overlap(v, input)
                    && !(candidates.contains(&other) && classes.holds(v, input, 0))
            })
        });
        if !torn && classes.merge(output, input, 0, Merge::Overwrite { at }) {
            return;
        }
    }
}

/// What replaces a state is computed where it lies, if that is possible: nothing reads the state later, and what
/// computes its successor may overwrite it. A parameter that is updated part by part has a successor for each part.
fn update_in_place(graph: &Graph, state: &State, classes: &mut Classes) {
    let Some(next) = state.next else { return };
    let before = |next: ValueId| {
        let node = &graph.nodes[classes.def[next.index()]];
        let is_whole = node.outputs.first() == Some(&Some(next));
        let before = node.input(0).filter(|v| classes.is_made[v.index()]);
        before.filter(|_| is_whole && matches!(node.op, Op::UpdatePart { .. }))
    };
    let successors: Vec<ValueId> = std::iter::successors(Some(next), |&v| before(v)).collect();
    let mut current = state.value;
    for next in successors.into_iter().rev() {
        succeed(graph, current, next, classes);
        current = next;
    }
}

/// Lets `next` take the place of `current`, if it may.
fn succeed(graph: &Graph, current: ValueId, next: ValueId, classes: &mut Classes) {
    let at = classes.def[next.index()];
    let reads = |n: &Node| n.present_inputs().any(|v| v == current);
    let may_overwrite = |node: &Node| {
        let inputs = operands(graph, &node.inputs);
        let outputs = operands(graph, &node.outputs);
        let index = node.outputs.iter().position(|v| *v == Some(next));
        let own = |i: &usize| node.input(*i) == Some(current);
        index.is_some_and(|index| {
            let allowed = neap_ops::may_be_overwritten_by(&node.op, index, &inputs, &outputs);
            let read = (0..node.inputs.len()).filter(own);
            read.into_iter().all(|i| allowed.contains(&i))
        })
    };
    let node = &graph.nodes[at];
    if views(graph, node).is_none() && (!reads(node) || may_overwrite(node)) {
        classes.merge(next, current, 0, Merge::Overwrite { at });
    }
}

/// Every view of the node came about, so nothing is left to do.
fn only_renames(graph: &Graph, node: &Node, classes: &mut Classes) -> bool {
    views(graph, node).is_some_and(|found| {
        found
            .iter()
            .all(|view| classes.holds(view.inner, view.outer, view.offset as i64))
    })
}

enum Merge {
    SameData,
    /// The output of the node at `at` takes over the memory of an input.
    Overwrite {
        at: usize,
    },
}

struct Classes {
    class: Vec<usize>,
    offset: Vec<i64>,
    members: Vec<Members>,
    contents: Contents,
    bytes: Vec<i64>,
    def: Vec<usize>,
    last: Vec<usize>,
    /// Inputs and constants live elsewhere.
    placeable: Vec<bool>,
    /// Nodes give it.
    is_made: Vec<bool>,
    /// By class: the state whose memory it is, which has exactly as many bytes.
    state: Vec<Option<usize>>,
    is_state: Vec<bool>,
}

impl Classes {
    fn new(graph: &Graph) -> Classes {
        let count = graph.values.len();
        let mut placeable = vec![false; count];
        let mut def = vec![0; count];
        let mut last = vec![0; count];
        for (at, node) in graph.nodes.iter().enumerate() {
            for output in node.present_outputs() {
                placeable[output.index()] = true;
                def[output.index()] = at;
                last[output.index()] = at;
            }
            for input in node.present_inputs() {
                last[input.index()] = at;
            }
        }
        for output in &graph.outputs {
            last[output.index()] = graph.nodes.len();
        }
        let is_made = placeable.clone();
        let bytes: Vec<i64> = graph.values.iter().map(|v| v.len_bytes() as i64).collect();
        let mut is_state = vec![false; count];
        for state in &graph.states {
            let value = state.value.index();
            (placeable[value], is_state[value]) = (true, true);
            // What the next run finds.
            last[state.next.map_or(value, ValueId::index)] = graph.nodes.len();
        }
        Classes {
            state: (0..count).map(|v| is_state[v].then_some(v)).collect(),
            is_state,
            is_made,
            class: (0..count).collect(),
            offset: vec![0; count],
            members: (0..count)
                .map(|i| {
                    Members::of(Member {
                        value: ValueId(i as u32),
                        offset: 0,
                        bytes: bytes[i],
                        last: last[i],
                    })
                })
                .collect(),
            contents: Contents::of(graph),
            bytes,
            def,
            last,
            placeable,
        }
    }

    fn overlap(&self, a: ValueId, b: ValueId) -> bool {
        let (a, b) = (a.index(), b.index());
        self.class[a] == self.class[b]
            && self.offset[a] < self.offset[b] + self.bytes[b]
            && self.offset[b] < self.offset[a] + self.bytes[a]
    }

    fn fits(&self, view: &View) -> bool {
        view.offset as i64 + self.bytes[view.inner.index()] <= self.bytes[view.outer.index()]
    }

    fn holds(&self, inner: ValueId, outer: ValueId, offset: i64) -> bool {
        let (i, o) = (inner.index(), outer.index());
        self.class[i] == self.class[o]
            && self.offset[i] == self.offset[o] + offset
            && self.placeable[i]
            && self.placeable[o]
    }

    /// Puts `inner` at `offset` bytes into `outer`; false when that would clash.
    fn merge(&mut self, inner: ValueId, outer: ValueId, offset: i64, kind: Merge) -> bool {
        let (i, o) = (inner.index(), outer.index());
        if !self.placeable[i] || !self.placeable[o] {
            return false;
        }
        let (moving, staying) = (self.class[i], self.class[o]);
        let shift = self.offset[o] + offset - self.offset[i];
        if moving == staying {
            // Overwriting needs the liveness check below, which a shared class has not passed.
            return shift == 0 && matches!(kind, Merge::SameData);
        }
        if !self.keeps_states_apart(moving, staying, shift) {
            return false;
        }
        for a in self.members[moving].iter() {
            let begin = a.offset + shift;
            let near =
                self.members[staying].near(begin, begin + a.bytes, self.def[a.value.index()]);
            if near.into_iter().any(|b| self.clash(a, b, shift, i, &kind)) {
                return false;
            }
        }
        self.state[staying] = self.state[staying].or(self.state[moving]);
        let moved = std::mem::take(&mut self.members[moving]);
        for &member in moved.iter() {
            let member = Member {
                offset: member.offset + shift,
                ..member
            };
            self.class[member.value.index()] = staying;
            self.offset[member.value.index()] = member.offset;
            self.members[staying].push(member);
        }
        true
    }

    /// Whether at most one class is a state's, and all members of the other lie within that state.
    fn keeps_states_apart(&self, moving: usize, staying: usize, shift: i64) -> bool {
        let (state, other, to_state) = match (self.state[moving], self.state[staying]) {
            (None, None) => return true,
            (Some(_), Some(_)) => return false,
            (Some(state), None) => (state, staying, -shift),
            (None, Some(state)) => (state, moving, shift),
        };
        let begin = self.offset[state];
        let end = begin + self.bytes[state];
        self.members[other].iter().all(|m| {
            let at = m.offset + to_state;
            begin <= at && at + m.bytes <= end
        })
    }

    /// Whether `a`, moved by `shift`, and `b` would destroy each other.
    fn clash(&self, a: &Member, b: &Member, shift: i64, inner: usize, kind: &Merge) -> bool {
        let (va, vb) = (a.value.index(), b.value.index());
        let start_a = a.offset + shift;
        let begin = start_a.max(b.offset);
        let end = (start_a + a.bytes).min(b.offset + b.bytes);
        if begin >= end
            || self
                .contents
                .agree((va, begin - start_a), (vb, begin - b.offset), end - begin)
        {
            return false;
        }
        if let Merge::Overwrite { at } = *kind
            && va == inner
            && (self.def[vb] < at || self.is_state[vb])
            && self.last[vb] <= at
        {
            // It ends in the very node that writes the output, and is read where it is overwritten.
            return false;
        }
        self.def[va] <= self.last[vb] && self.def[vb] <= self.last[va]
    }
}

/// Numbers the classes as buffers and the remaining nodes as steps.
fn finish(graph: Graph, digest: String, classes: Classes, elided: &[bool]) -> Program {
    let mut first_step_from = Vec::with_capacity(graph.nodes.len() + 1);
    let mut steps = Vec::new();
    for (at, &elided) in elided.iter().enumerate() {
        first_step_from.push(steps.len() as u32);
        if !elided {
            steps.push(NodeId(at as u32));
        }
    }
    first_step_from.push(steps.len() as u32);
    let end_of = |at: usize| first_step_from[(at + 1).min(graph.nodes.len())];

    let mut storage = vec![Storage::None; graph.values.len()];
    let mut buffers = Vec::new();
    for members in &classes.members {
        let used: Vec<&Member> = members
            .iter()
            .filter(|m| classes.placeable[m.value.index()])
            .collect();
        let Some(base) = used.iter().map(|m| m.offset).min() else {
            continue;
        };
        let end = |m: &&Member| m.offset + m.bytes;
        let bytes = used.iter().map(end).max().expect("class has members") - base;
        let start = used
            .iter()
            .map(|m| first_step_from[classes.def[m.value.index()]])
            .min();
        let last = used
            .iter()
            .map(|m| end_of(classes.last[m.value.index()]))
            .max();
        let (mut start, mut last) = (
            start.expect("class has members"),
            last.expect("class has members"),
        );
        if used.iter().any(|m| classes.is_state[m.value.index()]) {
            (start, last) = (0, steps.len() as u32);
        }
        for member in &used {
            storage[member.value.index()] = Storage::Buffer {
                buffer: buffers.len() as u32,
                offset_bytes: (member.offset - base) as u64,
            };
        }
        buffers.push(Buffer {
            bytes: bytes as u64,
            live: start..last.max(start + 1),
        });
    }
    for (i, value) in graph.values.iter().enumerate() {
        match value.constant.map(|c| &graph.consts[c.index()]) {
            Some(Const::Inline(_)) => storage[i] = Storage::Inline,
            Some(Const::Packed(_)) => storage[i] = Storage::Packed,
            _ => {}
        }
    }
    for (n, input) in graph.inputs.iter().enumerate() {
        storage[input.index()] = Storage::Input(n as u32);
    }
    Program {
        graph,
        steps,
        packed: Vec::new(),
        storage,
        buffers,
        digest,
    }
}
