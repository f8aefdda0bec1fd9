//! Updates of large parameters, cut into ranges of rows: then a parameter's moments and gradient need never be in memory
//! whole.
//!
//! ```text
//!   whole    dy, x ──► g (147 MiB) ──► update w, m, v (147 MiB each)
//!   cut      dy, x ──► rows 0..r of g ──► update these rows of w, with moments of their own
//!            dy, x ──► rows r..2r of g ──► …
//! ```
//! Rows of a gradient are computed by themselves where the operators that make it allow: products, sums of gradients, and
//! rows added where they were looked up. Otherwise the gradient is made whole, and its rows are views of it. An update goes
//! element by element, and a row of a product does not depend on the others, so results are the same bits.
//!
//! A product with a large parameter's transpose reads the parameter instead.

use crate::emit::Emit;
use crate::error::AutodiffError;
use crate::training::drop_unused;
use neap_ir::op::{Binary, ScatterReduction};
use neap_ir::update::Update;
use neap_ir::{Graph, Node, NodeId, Op, State, TensorType, ValueId};
use std::collections::HashMap;
use std::ops::Range;

/// A step whose large updates are cut.
#[derive(Debug)]
pub struct Cut {
    pub graph: Graph,
    /// By state of the step as it was: those that hold its elements now, one after the other.
    pub states: Vec<Range<usize>>,
}

/// Cuts updates of states of `4 * piece_bytes` or more into pieces of about `piece_bytes` of the parameter.
///
/// # Errors
/// [`AutodiffError`] where the graph's types contradict each other.
pub fn cut_updates(mut graph: Graph, piece_bytes: usize) -> Result<Cut, AutodiffError> {
    let uses = graph.use_counts();
    let producers = graph.producers();
    let nodes = std::mem::take(&mut graph.nodes);
    let states = std::mem::take(&mut graph.states);
    let source = Source {
        is_state: (0..graph.values.len() as u32)
            .map(|v| states.iter().any(|s| s.value == ValueId(v)))
            .collect(),
        nodes: &nodes,
        producers,
        uses,
        piece_bytes: piece_bytes.max(1),
    };
    let mut emit = Emit {
        graph,
        prefix: String::new(),
    };
    // By state that is replaced otherwise now: by what, or the pieces that stand for it.
    let mut replaced: HashMap<ValueId, Vec<State>> = HashMap::new();
    for node in &nodes {
        match node.op {
            Op::Update(update) if source.is_cut(&emit, node) => {
                replaced.extend(source.cut(&mut emit, node, update)?);
            }
            _ => source.keep(&mut emit, node)?,
        }
    }
    let mut graph = emit.graph;
    let mut ranges = Vec::with_capacity(states.len());
    for state in states {
        let first = graph.states.len();
        match replaced.remove(&state.value) {
            Some(pieces) => graph.states.extend(pieces),
            None => graph.states.push(state),
        }
        ranges.push(first..graph.states.len());
    }
    drop_unused(&mut graph);
    graph.check()?;
    Ok(Cut {
        graph,
        states: ranges,
    })
}

/// The step as it was.
struct Source<'a> {
    nodes: &'a [Node],
    producers: Vec<Option<NodeId>>,
    uses: Vec<usize>,
    is_state: Vec<bool>,
    piece_bytes: usize,
}

impl Source<'_> {
    fn maker(&self, value: ValueId) -> Option<&Node> {
        let id = (*self.producers.get(value.index())?)?;
        Some(&self.nodes[id.index()])
    }

    fn is_large(&self, ty: &TensorType) -> bool {
        let rows = ty.shape.first().copied().unwrap_or(1);
        rows > 1 && ty.len_bytes() / 4 >= self.piece_bytes
    }

    /// Whether the update is of a large state, and only states take its results.
    fn is_cut(&self, emit: &Emit, node: &Node) -> bool {
        let (Some(w), Some(g)) = (node.input(0), node.input(1)) else {
            return false;
        };
        let kept = node.inputs[4..].iter().chain([&node.inputs[0]]);
        let mut kept = kept.flatten();
        self.is_large(emit.ty(w))
            && g != w
            && kept.all(|v| self.is_state[v.index()])
            && node.present_outputs().all(|v| self.uses[v.index()] == 0)
    }

    /// The node as it is, or with a large parameter in place of its transpose.
    fn keep(&self, emit: &mut Emit, node: &Node) -> Result<(), AutodiffError> {
        let mut node = node.clone();
        match &mut node.op {
            Op::Gemm {
                trans_a, trans_b, ..
            } => {
                for (index, trans) in [trans_a, trans_b].into_iter().enumerate() {
                    if let Some(whole) = self.turned(emit, node.inputs[index]) {
                        node.inputs[index] = Some(whole);
                        *trans = !*trans;
                    }
                }
            }
            Op::MatMul => {
                let whole = self.turned(emit, node.inputs[1]);
                if let (Some(a), Some(w)) = (node.input(0), whole)
                    && let [lead @ .., k] = &emit.shape(a)[..]
                    && !lead.is_empty()
                    && let Some(y) = node.outputs.first().copied().flatten()
                {
                    emit.prefix.clone_from(&node.name);
                    let rows = emit.reshape(a, &[lead.iter().product(), *k])?;
                    let product = Op::Gemm {
                        alpha: 1.0,
                        beta: 0.0,
                        trans_a: false,
                        trans_b: true,
                    };
                    let product = emit.op(product, &[rows, w])?;
                    node.op = Op::Reshape {
                        shape: emit.shape(y),
                    };
                    node.inputs = vec![Some(product)];
                }
            }
            _ => {}
        }
        emit.graph.nodes.push(node);
        Ok(())
    }

    /// The large state whose transpose the value is.
    fn turned(&self, emit: &Emit, value: Option<ValueId>) -> Option<ValueId> {
        let node = self.maker(value?)?;
        let state = node.input(0)?;
        let is_turned = matches!(&node.op, Op::Transpose { perm } if perm[..] == [1, 0]);
        let is_large = self.is_state[state.index()] && self.is_large(emit.ty(state));
        (is_turned && is_large).then_some(state)
    }

    /// The update in pieces, and what becomes of its states.
    fn cut(
        &self,
        emit: &mut Emit,
        node: &Node,
        update: Update,
    ) -> Result<Vec<(ValueId, Vec<State>)>, AutodiffError> {
        let operand = |i: usize| {
            let missing = || AutodiffError::Request(format!("{} lacks an operand", node.name));
            node.input(i).ok_or_else(missing)
        };
        let (w, g, rate, step) = (operand(0)?, operand(1)?, operand(2)?, operand(3)?);
        let ty = emit.ty(w).clone();
        let rows = ty.shape[0];
        let pieces = ty.len_bytes().div_ceil(self.piece_bytes).clamp(1, rows);
        let length = rows.div_ceil(pieces);
        let row_elements = ty.elements() / rows;
        emit.prefix.clone_from(&node.name);
        let mut current = w;
        let mut moments: Vec<(ValueId, Vec<State>)> = (0..update.moments())
            .map(|i| Ok((operand(4 + i)?, Vec::new())))
            .collect::<Result<_, AutodiffError>>()?;
        for start in (0..rows).step_by(length) {
            let part = Part {
                axis: 0,
                start,
                length: length.min(rows - start),
            };
            let gradient = match self.part(emit, g, part, w)? {
                Some(gradient) => gradient,
                None => emit.part(g, part.axis, part.start, part.length)?,
            };
            let mut operands = vec![current, gradient, rate, step];
            for (whole, pieces) in &mut moments {
                let name = format!("{}.part{}", emit.graph.value(*whole).name, pieces.len());
                let ty = emit.ty(gradient).clone();
                let value = emit.graph.add_value(name, ty);
                operands.push(value);
                pieces.push(State { value, next: None });
            }
            let op = Op::UpdatePart {
                update,
                start: start * row_elements,
            };
            let wanted = vec![true; 1 + update.moments()];
            let results = emit.outputs(op, &operands, &wanted)?;
            current = results[0].unwrap_or(current);
            for ((_, pieces), next) in moments.iter_mut().zip(&results[1..]) {
                if let Some(last) = pieces.last_mut() {
                    last.next = *next;
                }
            }
        }
        let parameter = State {
            value: w,
            next: Some(current),
        };
        moments.push((w, vec![parameter]));
        Ok(moments)
    }

    /// A part of a value, made of parts of what the whole was made of where that is possible. `None` where that would read
    /// `w`, which changes meanwhile.
    fn part(&self, emit: &mut Emit, value: ValueId, part: Part, w: ValueId) -> Found {
        if value == w {
            return Ok(None);
        }
        let whole = |emit: &mut Emit| {
            let found = emit.part(value, part.axis, part.start, part.length)?;
            Ok(Some(found))
        };
        let Some(node) = self.maker(value).filter(|_| self.uses[value.index()] == 1) else {
            return whole(emit);
        };
        if node.present_inputs().any(|v| v == w) {
            return whole(emit);
        }
        let shape = emit.shape(value);
        match (&node.op, &node.inputs[..]) {
            (Op::Binary(_) | Op::Clip { .. }, inputs) => {
                let mut operands = Vec::new();
                for &input in inputs.iter().flatten() {
                    let own = emit.shape(input);
                    if own == shape {
                        let Some(found) = self.part(emit, input, part, w)? else {
                            return Ok(None);
                        };
                        operands.push(found);
                    } else if own.iter().product::<usize>() == 1 && own.len() <= shape.len() {
                        operands.push(input);
                    } else {
                        return whole(emit);
                    }
                }
                Ok(Some(emit.op(node.op.clone(), &operands)?))
            }
            (
                &Op::Gemm {
                    trans_a, trans_b, ..
                },
                &[Some(a), Some(b)],
            ) => {
                let operands = match part.axis {
                    0 => {
                        let axis = usize::from(trans_a);
                        [emit.part(a, axis, part.start, part.length)?, b]
                    }
                    _ => {
                        let axis = usize::from(!trans_b);
                        [a, emit.part(b, axis, part.start, part.length)?]
                    }
                };
                Ok(Some(emit.op(node.op.clone(), &operands)?))
            }
            (Op::Transpose { perm }, &[Some(x)]) => {
                let axis = perm[part.axis];
                let found = self.part(emit, x, Part { axis, ..part }, w)?;
                found.map(|x| emit.transpose(x, perm)).transpose()
            }
            (Op::Reshape { .. }, &[Some(x)])
                if part.axis == 0 && emit.shape(x).first() == shape.first() =>
            {
                let mut to = shape.clone();
                to[0] = part.length;
                let found = self.part(emit, x, part, w)?;
                found.map(|x| emit.reshape(x, &to)).transpose()
            }
            (
                Op::ScatterNd {
                    reduction: ScatterReduction::Add,
                },
                &[Some(base), Some(places), Some(added)],
            ) if part.axis == 0
                && emit.shape(places).len() == 2
                && emit.shape(places)[1] == 1
                && self.maker(base).is_some_and(is_repeated) =>
            {
                Ok(Some(self.scattered(emit, base, places, added, part)?))
            }
            _ => whole(emit),
        }
    }

    /// Rows that were added to a tensor of one number: those of other parts go to a row that is not used.
    fn scattered(
        &self,
        emit: &mut Emit,
        base: ValueId,
        places: ValueId,
        added: ValueId,
        part: Part,
    ) -> Result<ValueId, AutodiffError> {
        let mut shape = emit.shape(base);
        let all = emit.indices(&[], &[shape[0] as i64]);
        let start = emit.indices(&[], &[part.start as i64]);
        let end = emit.indices(&[], &[part.length as i64]);
        let zero = emit.indices(&[], &[0]);
        let is_negative = emit.binary(Binary::Less, places, zero)?;
        let from_the_end = emit.add(places, all)?;
        let places = emit.op(Op::Where, &[is_negative, from_the_end, places])?;
        let places = emit.binary(Binary::Sub, places, start)?;
        let is_before = emit.binary(Binary::Less, places, zero)?;
        let places = emit.op(Op::Where, &[is_before, end, places])?;
        let places = emit.binary(Binary::Min, places, end)?;
        shape[0] = part.length + 1;
        let number = self.maker(base).and_then(|node| node.input(0));
        let number = number.ok_or_else(|| AutodiffError::Request("an empty expansion".into()))?;
        let base = emit.expand(number, &shape)?;
        let reduction = ScatterReduction::Add;
        let sums = emit.op(Op::ScatterNd { reduction }, &[base, places, added])?;
        emit.part(sums, 0, 0, part.length)
    }
}

type Found = Result<Option<ValueId>, AutodiffError>;

/// A range of an axis.
#[derive(Clone, Copy)]
struct Part {
    axis: usize,
    start: usize,
    length: usize,
}

/// Whether the node repeats a scalar.
fn is_repeated(node: &Node) -> bool {
    matches!(&node.op, Op::Expand { .. })
}
