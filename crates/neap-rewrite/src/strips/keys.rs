//! Attentions whose keys and values come in strips, too.

use super::kinds::{Kind, Kinds};
use neap_ir::infer::AttentionDims;
use neap_ir::op::{AttentionAttrs, HeadLayout, Op};
use neap_ir::{DType, Graph, Node, ValueId};
use neap_kernels::attention::key_block;
use std::collections::BTreeMap;
use std::ops::Range;

/// Keys come in at most so many strips. Each strip of queries passes over all of them, so these are steps for each.
const MOST_STRIPS: usize = 16;

/// The operands of an attention that a walk over keys may take in strips.
pub(super) struct KeyWalk<'a> {
    pub attrs: &'a AttentionAttrs,
    pub dims: AttentionDims,
    /// Keys and values, each with the axis of its places.
    pub operands: [(ValueId, usize); 2],
    block: usize,
}

impl<'a> KeyWalk<'a> {
    pub fn of(graph: &Graph, node: &'a Node) -> Option<KeyWalk<'a>> {
        let Op::Attention(attrs) = &node.op else {
            return None;
        };
        let shape = |i: usize| node.input(i).map(|v| &graph.ty(v).shape[..]);
        let (k, v) = (node.input(1)?, node.input(2)?);
        let dims = AttentionDims::of(attrs, shape(0)?, shape(1)?, shape(2)?)?;
        let mut operands = node.present_inputs();
        let fits = !attrs.causal
            && !attrs.nan_is_zero
            && attrs.v != HeadLayout::HeadMajorTransposed
            && operands.all(|v| graph.ty(v).dtype == DType::F32);
        Some(KeyWalk {
            attrs,
            dims,
            operands: [
                (k, places(attrs.k, shape(1)?.len())?),
                (v, places(attrs.v, shape(2)?.len())?),
            ],
            block: key_block(dims.keys).filter(|_| fits)?,
        })
    }

    /// The keys of each strip: where those come in strips, and a walk may stop there. Empty where they do not.
    pub fn strips(&self, kinds: &Kinds) -> Vec<Range<usize>> {
        let [(k, axis), (v, values_axis)] = self.operands;
        let fits = kinds.axis(k) == Some(axis)
            && (!kinds.is_in_strips(v) || kinds.axis(v) == Some(values_axis));
        if !fits || !kinds.is_in_strips(k) {
            return Vec::new();
        }
        let end = self.dims.keys;
        let rounded = kinds
            .cuts(k)
            .iter()
            .map(|cut| cut.next_multiple_of(self.block).min(end));
        let mut cuts: Vec<usize> = rounded.collect();
        cuts.dedup();
        let strips = cuts.windows(2).map(|cut| cut[0]..cut[1]);
        strips.filter(|_| cuts.len() > 2).collect()
    }
}

/// The axis of keys.
fn places(layout: HeadLayout, rank: usize) -> Option<usize> {
    match (layout, rank) {
        (HeadLayout::RowMajor, 3 | 4) | (HeadLayout::HeadMajor, 3) => Some(1),
        (HeadLayout::RowMajor, 2) => Some(0),
        (HeadLayout::HeadMajor, 4) | (HeadLayout::HeadMajorTransposed, 3) => Some(2),
        (HeadLayout::HeadMajorTransposed, 4) => Some(3),
        _ => None,
    }
}

/// Keys and values that attentions walk over, and what these are other names of: after how many of them they may be cut.
pub(super) fn granules(graph: &Graph, producers: &[Option<usize>]) -> BTreeMap<ValueId, usize> {
    let mut found = BTreeMap::new();
    for node in &graph.nodes {
        let Some(walk) = KeyWalk::of(graph, node) else {
            continue;
        };
        let keys = walk.dims.keys;
        let granule = keys.div_ceil(walk.block).div_ceil(MOST_STRIPS) * walk.block;
        for (v, _) in walk.operands {
            let mut named = Some(v);
            while let Some(v) = named.filter(|&v| graph.ty(v).shape.contains(&keys)) {
                found.insert(v, granule);
                let before = producers[v.index()].map(|at| &graph.nodes[at]);
                named = before
                    .filter(|node| is_name(node))
                    .and_then(|node| node.input(0));
            }
        }
    }
    found
}

/// Whether a node only names places anew, so that nothing is computed again for each strip of queries.
pub(super) fn is_name(node: &Node) -> bool {
    matches!(node.op, Op::Reshape { .. })
}

/// Nodes that make nothing but queries, and their attentions: queries that come when keys and values are there need not be kept.
pub(super) fn of_queries(kinds: &Kinds) -> BTreeMap<usize, usize> {
    let uses = kinds.graph.use_counts();
    let mut found = BTreeMap::new();
    for (at, node) in kinds.graph.nodes.iter().enumerate() {
        let walks =
            KeyWalk::of(kinds.graph, node).is_some_and(|walk| !walk.strips(kinds).is_empty());
        let mut made = node.input(0).filter(|_| walks);
        while let Some(v) = made.filter(|v| uses[v.index()] == 1) {
            made = match kinds.producer(v) {
                Some((maker, Kind::Kept)) => {
                    found.insert(maker, at);
                    None
                }
                Some((name, Kind::Passing)) => {
                    let name = &kinds.graph.nodes[name];
                    name.input(0).filter(|_| is_name(name))
                }
                _ => None,
            };
        }
    }
    found
}
