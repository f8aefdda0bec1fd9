//! Which values come in strips, how high these are, and which are not kept.

use super::keys::{granules, is_name};
use super::part::{Part, ROWS, Wanted, part};
use neap_ir::op::{Op, Pool, ResizeMode};
use neap_ir::strips::PlaceFold;
use neap_ir::{Const, DType, Graph, Layout, Node, PackedId, Program, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Rows of a strip come in so many, where there are more: kernels compute so many at once.
const ROWS_AT_ONCE: usize = 4;

/// Where a value may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cut {
    pub axis: usize,
    /// After each so many places along it: of tokens, those of a row of the image that they are of.
    granule: usize,
}

/// What becomes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// As it is.
    Whole,
    /// A node for each strip of its result.
    Kept,
    /// The same, and the strips of its result are joined: it is not long, but what it is made of comes in strips.
    Joined,
    /// Computed for each reader, of the rows that it reads.
    Passing,
    /// Moments of each strip of its input; otherwise as a passing one.
    Norm,
    /// What each strip of its input says of the whole, then its result, which is whole.
    Folded(PlaceFold),
}

pub(super) struct Kinds<'a> {
    pub graph: &'a Graph,
    pub kinds: Vec<Kind>,
    pub producers: Vec<Option<usize>>,
    /// By value; of those that come in strips.
    axes: Vec<Option<Cut>>,
    /// By number of places and granule: where strips begin, and the end of the last.
    cuts: BTreeMap<(usize, usize), Vec<usize>>,
    /// Of keys and values of attentions: the granule of their cuts.
    keys: BTreeMap<ValueId, usize>,
    /// By node: those that may compute while this one still does, strip by strip.
    pub followers: Vec<Vec<usize>>,
}

impl<'a> Kinds<'a> {
    /// `None` where nothing comes in strips.
    pub fn of(program: &'a Program, strip_bytes: u64) -> Option<Kinds<'a>> {
        let graph = &program.graph;
        let producers = graph.producers();
        let producers: Vec<_> = (producers.into_iter())
            .map(|p| p.map(|n| n.index()))
            .collect();
        let mut found = Kinds {
            graph,
            kinds: vec![Kind::Whole; graph.nodes.len()],
            keys: granules(graph, &producers),
            producers,
            axes: vec![None; graph.values.len()],
            cuts: BTreeMap::new(),
            followers: Vec::new(),
        };
        let long = |v: ValueId| graph.value(v).len_bytes() as u64 > strip_bytes;
        // Of a granule.
        let mut bytes: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for node in &graph.nodes {
            let cut = found.cut_of(node);
            for v in node.present_outputs() {
                let keys = found.keys.get(&v).copied();
                let places = |cut: Cut| graph.ty(v).shape[cut.axis];
                found.axes[v.index()] = cut.map(|cut| Cut {
                    granule: keys
                        .filter(|&keys| keys <= places(cut))
                        .unwrap_or(cut.granule),
                    ..cut
                });
                if let Some(key) = found.key(v).filter(|_| long(v)) {
                    let own = graph.value(v).len_bytes() / (key.0 / key.1);
                    let most = bytes.entry(key).or_default();
                    *most = (own as u64).max(*most);
                }
            }
        }
        let cuts = bytes.into_iter();
        found.cuts = cuts
            .map(|(key, bytes)| (key, cuts_of(key, strip_bytes / bytes.max(1))))
            .collect();
        let uses = graph.use_counts();
        for (at, node) in graph.nodes.iter().enumerate() {
            let is_long = node.present_outputs().all(long);
            let read = node.present_inputs().filter(|&v| found.is_in_strips(v));
            let strips = read.map(|v| found.cuts(v).len() - 1).max();
            if !is_long && strips.is_none() {
                continue;
            }
            // What is short has as many strips as what it is made of.
            let keys: Vec<_> = node
                .present_outputs()
                .filter_map(|v| found.key(v))
                .collect();
            for key in keys {
                let most = (key.0 / key.1).div_ceil(strips.unwrap_or(1));
                let cuts = found.cuts.entry(key);
                cuts.or_insert_with(|| cuts_of(key, most as u64));
            }
            found.kinds[at] = match found.kind(node, &uses) {
                Kind::Kept if !is_long => Kind::Joined,
                kind => kind,
            };
        }
        let any = found.kinds.iter().any(|kind| *kind != Kind::Whole);
        found.followers = found.followers(program);
        any.then_some(found)
    }

    /// Where the results of a node may be cut: as its operands are, or as images and tokens usually are.
    fn cut_of(&self, node: &Node) -> Option<Cut> {
        let y = node.outputs.first().copied().flatten()?;
        let rank = self.graph.ty(y).shape.len();
        let places = |axis: usize| self.graph.ty(y).shape[axis];
        if is_norm(self.graph, node) {
            let granule = 1;
            return Some(Cut {
                axis: ROWS,
                granule,
            });
        }
        let along = |axis: usize| part(self.graph, node, axis, 0..places(axis));
        for (index, v) in node.inputs.iter().enumerate() {
            let Some((v, cut)) = v.and_then(|v| Some((v, self.axes[v.index()]?))) else {
                continue;
            };
            let follows = |axis: &usize| {
                let part = along(*axis);
                part.is_some_and(
                    |part| matches!(part.wanted[index], Wanted::Rows(own, _) if own == cut.axis),
                )
            };
            if let Some(axis) = (0..rank).filter(|&axis| places(axis) > 1).find(follows) {
                let before = self.graph.ty(v).shape[cut.axis];
                let granule = match node.op {
                    // Axes are joined, or come apart again.
                    Op::Reshape { .. } if places(axis) > before => {
                        cut.granule * (places(axis) / before)
                    }
                    Op::Reshape { .. } if places(axis) < before => {
                        (cut.granule / (before / places(axis))).max(1)
                    }
                    _ => cut.granule,
                };
                let fits = places(axis).is_multiple_of(granule);
                return Some(Cut {
                    axis,
                    granule: if fits { granule } else { 1 },
                });
            }
        }
        let is_blocked = self.graph.value(y).layout == Layout::Blocked;
        let axis = match rank {
            4 => ROWS,
            3 if is_blocked => ROWS,
            3 => 1,
            2 => 0,
            _ => return None,
        };
        let cut = Cut { axis, granule: 1 };
        (places(axis) > 1 && along(axis).is_some()).then_some(cut)
    }

    /// Of a node whose results are long.
    fn kind(&self, node: &Node, uses: &[usize]) -> Kind {
        let Some(y) = node.outputs.first().copied().flatten() else {
            return Kind::Whole;
        };
        if is_norm(self.graph, node) {
            let x = node.input(0).filter(|&x| self.is_in_strips(x));
            return match x.is_none_or(|x| self.axis(x) == Some(ROWS)) {
                true => Kind::Norm,
                false => Kind::Whole,
            };
        }
        if let Some(fold) = place_fold(self.graph, node) {
            let x = node.input(0).filter(|&x| self.is_in_strips(x));
            return match x.is_some_and(|x| self.axis(x) == Some(ROWS)) {
                true => Kind::Folded(fold),
                false => Kind::Whole,
            };
        }
        if self.cuts(y).is_empty() {
            return Kind::Whole;
        }
        let strips = self.cuts(y).windows(2);
        let mut made = strips.map(|cut| self.part(node, cut[0]..cut[1]));
        if made.any(|part| part.is_none()) {
            return Kind::Whole;
        }
        let is_output = |v| self.graph.outputs.contains(&v);
        let sole = |v: ValueId| uses[v.index()] <= 1;
        let passes = match &node.op {
            Op::Concat { .. } | Op::Split { .. } | Op::Slice { .. } | Op::Reorder => true,
            // Padding is kept: a reader may want rows that are nothing else.
            Op::DepthToSpace { .. } | Op::SpaceToDepth { .. } => true,
            Op::Reshape { .. } | Op::Transpose { .. } => true,
            Op::Resize(attrs) => attrs.mode == ResizeMode::Nearest || sole(y),
            Op::Unary(_) | Op::Binary(_) | Op::Clip { .. } | Op::Cast { .. } | Op::Where => sole(y),
            Op::ScaleShift { .. } | Op::BatchNorm { .. } | Op::RoundToFloat8 { .. } => sole(y),
            Op::Quantize { .. } | Op::Dequantize { .. } => sole(y),
            Op::LayerNorm { .. } | Op::RmsNorm { .. } => sole(y),
            _ => false,
        };
        // Each strip of queries reads all keys and values.
        let is_read_often = self.keys.contains_key(&y) && !is_name(node) && node.outputs.len() == 1;
        let passes = passes && !is_read_often && !node.present_outputs().any(is_output);
        match (passes, node.outputs.len()) {
            (true, _) => Kind::Passing,
            (false, 1) => Kind::Kept,
            _ => Kind::Whole,
        }
    }

    /// Places `made` of the results of a node in strips, where its operands come in strips as it reads them.
    pub fn part(&self, node: &Node, made: Range<usize>) -> Option<Part> {
        let axis = self.axes[node.present_outputs().next()?.index()]?.axis;
        let part = part(self.graph, node, axis, made)?;
        let mut operands = node.inputs.iter().zip(&part.wanted);
        let fits = operands.all(|(v, wanted)| match (v, wanted) {
            (Some(v), Wanted::Rows(axis, _)) => {
                !self.is_in_strips(*v) || self.axis(*v) == Some(*axis)
            }
            (Some(_), Wanted::Whole) => true,
            (None, wanted) => *wanted == Wanted::Whole,
        });
        fits.then_some(part)
    }

    /// Where the strips of a value begin, and its end; empty where it comes whole.
    pub fn cuts(&self, v: ValueId) -> &[usize] {
        let cuts = self.key(v).and_then(|key| self.cuts.get(&key));
        cuts.map_or(&[], Vec::as_slice)
    }

    fn key(&self, v: ValueId) -> Option<(usize, usize)> {
        let cut = self.axes[v.index()]?;
        Some((self.graph.ty(v).shape[cut.axis], cut.granule))
    }

    /// The axis that a value is cut along.
    pub fn axis(&self, v: ValueId) -> Option<usize> {
        self.axes[v.index()].map(|cut| cut.axis)
    }

    /// Whether readers find strips, not a whole.
    pub fn is_in_strips(&self, v: ValueId) -> bool {
        matches!(
            self.producer(v),
            Some((_, Kind::Kept | Kind::Passing | Kind::Norm))
        )
    }

    /// The node that makes a value, and what becomes of it.
    pub fn producer(&self, v: ValueId) -> Option<(usize, Kind)> {
        let at = self.producers[v.index()]?;
        Some((at, self.kinds[at]))
    }

    /// All places of a value along the axis that it is cut along; none where it comes whole.
    pub fn rows(&self, v: ValueId) -> Range<usize> {
        0..self.axis(v).map_or(0, |axis| self.graph.ty(v).shape[axis])
    }

    /// Nodes in strips that read strips of another. One whose weights are larger than what it reads waits until that is complete:
    /// its weights would be read again for each strip.
    fn followers(&self, program: &Program) -> Vec<Vec<usize>> {
        let mut followers = vec![Vec::new(); self.kinds.len()];
        for (at, node) in self.graph.nodes.iter().enumerate() {
            if matches!(self.kinds[at], Kind::Whole | Kind::Passing) {
                continue;
            }
            let mut sources = BTreeSet::new();
            self.sources(at, &mut sources);
            for source in sources {
                let read = self.graph.nodes[source].present_outputs();
                let read: usize = read.map(|v| self.graph.value(v).len_bytes()).sum();
                if weight_bytes(program, node) <= read as u64 {
                    followers[source].push(at);
                }
            }
        }
        followers
    }

    /// Nodes whose strips a node reads, though they may not be complete.
    fn sources(&self, at: usize, found: &mut BTreeSet<usize>) {
        let node = &self.graph.nodes[at];
        let wanted = match self.kinds[at] {
            Kind::Norm | Kind::Folded(_) => vec![Wanted::Rows(ROWS, 0..1)],
            _ => {
                let y = node.present_outputs().next();
                let first = y.and_then(|y| self.cuts(y).get(..2));
                let part = first.and_then(|cut| self.part(node, cut[0]..cut[1]));
                part.map_or(Vec::new(), |part| part.wanted)
            }
        };
        for (v, wanted) in node.inputs.iter().zip(wanted) {
            let producer = (*v).and_then(|v| self.producer(v));
            match (wanted, producer) {
                (Wanted::Rows(..), Some((source, Kind::Kept))) => {
                    found.insert(source);
                }
                (Wanted::Rows(..), Some((source, Kind::Passing))) => self.sources(source, found),
                _ => {}
            }
        }
    }
}

/// Whether it normalises a blocked image over its places.
fn is_norm(graph: &Graph, node: &Node) -> bool {
    let y = node.outputs.first().copied().flatten();
    let is_blocked = y.is_some_and(|y| {
        graph.value(y).layout == Layout::Blocked && graph.ty(y).shape.len() > ROWS
    });
    is_blocked && matches!(node.op, Op::InstanceNorm { .. } | Op::GroupNorm { .. })
}

/// What has to be known of the places of an image for a pooling of them all.
fn place_fold(graph: &Graph, node: &Node) -> Option<PlaceFold> {
    let ty = graph.ty(node.input(0)?);
    let fold = match node.op {
        Op::GlobalPool(Pool::Average { .. }) => PlaceFold::Sum,
        Op::GlobalPool(Pool::Max { .. }) => PlaceFold::Largest,
        _ => return None,
    };
    let is_image = ty.dtype == DType::F32 && (3..=4).contains(&ty.shape.len());
    is_image.then_some(fold)
}

/// Strips of at most `most` granules, about as long as each other.
fn cuts_of((places, granule): (usize, usize), most: u64) -> Vec<usize> {
    let rows = places / granule;
    let most = (most.max(1).min(rows as u64)) as usize;
    if most == rows {
        return vec![0, places];
    }
    let even = rows.div_ceil(rows.div_ceil(most));
    let height = match most >= ROWS_AT_ONCE {
        true => (even.next_multiple_of(ROWS_AT_ONCE)).min(most - most % ROWS_AT_ONCE),
        false => even,
    };
    let begins = (0..rows).step_by(height).map(|row| row * granule);
    begins.chain([places]).collect()
}

fn weight_bytes(program: &Program, node: &Node) -> u64 {
    let of = |id: PackedId| program.packed.get(id.index()).map_or(0, |p| p.bytes);
    let constants = node
        .present_inputs()
        .filter_map(|v| match program.graph.constant(v) {
            Some(Const::Packed(id)) => Some(of(*id)),
            _ => None,
        });
    constants.sum::<u64>() + node.panels.map_or(0, of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_are_about_even_and_of_whole_tiles() {
        assert_eq!(cuts_of((10, 1), 3), [0, 3, 6, 9, 10]);
        assert_eq!(cuts_of((20, 1), 9), [0, 8, 16, 20]);
        assert_eq!(cuts_of((64, 1), 63), [0, 32, 64]);
        assert_eq!(cuts_of((7, 1), 100), [0, 7]);
        assert_eq!(cuts_of((5, 1), 0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(cuts_of((64, 8), 3), [0, 24, 48, 64]);
    }
}
