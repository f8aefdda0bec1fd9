//! A strip of queries that passes over strips of keys and values.

use super::super::keys::{KeyWalk, is_name};
use super::super::part::{Part, Wanted};
use super::Emitter;
use neap_ir::strips::KeyStrip;
use neap_ir::{DType, Node, Op, TensorType, ValueId};
use std::ops::Range;

impl Emitter<'_> {
    /// Whether a node makes queries whose keys and values are not there yet.
    pub(super) fn waits(&self, at: usize) -> bool {
        let attention = self.queries.get(&at).map(|&at| &self.kinds.graph.nodes[at]);
        let mut keys = attention
            .into_iter()
            .flat_map(|node| node.inputs[1..3].iter().flatten());
        keys.any(|&v| !self.is_there(v, &self.kinds.rows(v)))
    }

    /// The strip of the attention `y` that is made of some of its queries.
    pub(super) fn attend(
        &mut self,
        node: &Node,
        walk: &KeyWalk,
        keys: Vec<Range<usize>>,
        (part, y, axis): (&Part, ValueId, usize),
    ) -> ValueId {
        let wanted = |i: usize| node.input(i).zip(part.wanted.get(i));
        let [q, mask] = [0, 3].map(|i| {
            wanted(i).map(|(v, wanted)| match wanted {
                Wanted::Whole => self.joined(v),
                Wanted::Rows(axis, rows) => self.rows(v, *axis, rows.clone()),
            })
        });
        let state = [walk.dims.batch, walk.dims.heads, 2, part.made.len()];
        let mut before = [None, None];
        for strip in keys {
            let [k, v] = walk
                .operands
                .map(|(v, axis)| Some(self.keys(v, axis, &strip)));
            let found = TensorType::new(DType::F32, &state);
            let made = [
                self.part_of(y, axis, part.made.len()),
                self.graph.add_value(node.name.clone(), found),
            ];
            let op = KeyStrip {
                attrs: walk.attrs.clone(),
                total: walk.dims.keys,
                start: strip.start,
            };
            self.graph.nodes.push(Node {
                name: node.name.clone(),
                op: Op::AttendKeys(Box::new(op)),
                inputs: vec![q, k, v, mask, before[0], before[1]],
                outputs: made.map(Some).to_vec(),
                panels: None,
            });
            before = made.map(Some);
        }
        before[0].unwrap_or(y)
    }

    /// Keys or values; the name of a strip that is kept does for all queries.
    fn keys(&mut self, v: ValueId, axis: usize, strip: &Range<usize>) -> ValueId {
        let key = (v, strip.start);
        if let Some(&named) = self.named.get(&key) {
            return named;
        }
        let first = self.graph.nodes.len();
        let made = self.rows(v, axis, strip.clone());
        if self.graph.nodes[first..].iter().all(is_name) {
            self.named.insert(key, made);
        }
        made
    }
}
