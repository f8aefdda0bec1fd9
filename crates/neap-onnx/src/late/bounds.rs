//! What the elements of a value can be, as the nodes say that compute it: `Min(n, 5)` is 5 at most, and so many truths are
//! as many as there are places. Looked for from a value that gives sizes, back through the nodes behind it.

use super::interval::Interval;
use crate::builder::Builder;
use crate::error::OnnxError;
use crate::node::to_f64_vec;
use neap_ir::late::LateOp;
use neap_ir::op::{Binary, Softmax, Unary};
use neap_ir::{Literal, Node, NodeId, Op, TensorType, ValueId};
use std::collections::HashMap;

/// Of values of more elements one interval is known for all.
pub(super) const MOST_ELEMENTS: usize = 64;
/// Larger constants are not looked at.
const MOST_CONSTANTS: usize = 1 << 16;
/// So many nodes are looked back through.
const MOST_NODES_BACK: usize = 64;

/// One interval for each element, or one for all.
#[derive(Debug, Clone)]
pub(super) struct Bounds(Vec<Interval>);

impl Bounds {
    pub fn all(each: Interval) -> Bounds {
        Bounds(vec![each])
    }

    pub fn each(elements: Vec<Interval>) -> Bounds {
        Bounds(elements)
    }

    pub fn at(&self, index: usize) -> Interval {
        match self.0[..] {
            [all] => all,
            _ => self.0.get(index).copied().unwrap_or(Interval::OPEN),
        }
    }

    /// Any of its elements.
    fn any(&self) -> Interval {
        let all = self.0.iter().copied().reduce(Interval::or);
        all.unwrap_or(Interval::exact(0.0))
    }
}

/// A look back through the graph.
pub(super) struct Search {
    producers: Vec<Option<NodeId>>,
    found: HashMap<ValueId, Bounds>,
}

impl Builder {
    /// What the elements of a value can be.
    pub(super) fn bounds(&mut self, value: ValueId) -> Result<Bounds, OnnxError> {
        let mut search = Search {
            producers: self.graph.producers(),
            found: HashMap::new(),
        };
        self.looked_for(value, &mut search, 0)
    }

    fn looked_for(
        &mut self,
        value: ValueId,
        search: &mut Search,
        back: usize,
    ) -> Result<Bounds, OnnxError> {
        if let Some(found) = search.found.get(&value) {
            return Ok(found.clone());
        }
        let found = match self.told(value)? {
            Some(told) => told,
            None => match search.producers[value.index()] {
                Some(node) if back < MOST_NODES_BACK => self.computed(value, node, search, back)?,
                _ => Bounds::all(Interval::of_type(self.ty(value).dtype)),
            },
        };
        search.found.insert(value, found.clone());
        Ok(found)
    }

    /// Of a constant, and what was noted.
    fn told(&mut self, value: ValueId) -> Result<Option<Bounds>, OnnxError> {
        if let Some(range) = self.late.ranges.get(&value) {
            return Ok(Some(range.bounds()));
        }
        if self.graph.constant(value).is_none() {
            return Ok(None);
        }
        let ty = self.ty(value).clone();
        let literal = match ty.elements() <= MOST_CONSTANTS {
            true => self.known(value)?,
            false => None,
        };
        let elements = literal.and_then(|literal| to_f64_vec(&literal));
        let Some(elements) = elements else {
            return Ok(Some(Bounds::all(Interval::of_type(ty.dtype))));
        };
        let exact = |x: f64| match x.is_nan() {
            true => Interval::OPEN,
            false => Interval::exact(x),
        };
        let each = Bounds::each(elements.into_iter().map(exact).collect());
        Ok(Some(match ty.elements() <= MOST_ELEMENTS {
            true => each,
            false => Bounds::all(each.any()),
        }))
    }

    fn computed(
        &mut self,
        value: ValueId,
        node: NodeId,
        search: &mut Search,
        back: usize,
    ) -> Result<Bounds, OnnxError> {
        let of_type = Bounds::all(Interval::of_type(self.ty(value).dtype));
        let node = &self.graph.nodes[node.index()];
        if !is_followed(&node.op) {
            return Ok(of_type);
        }
        let inputs = node.inputs.clone();
        let node = search.producers[value.index()];
        let mut given = Vec::with_capacity(inputs.len());
        for input in inputs {
            given.push(match input {
                Some(input) => Some(self.looked_for(input, search, back + 1)?),
                None => None,
            });
        }
        let node = node.map(|node| &self.graph.nodes[node.index()]);
        let found = node.and_then(|node| self.through(node, value, &given));
        Ok(match found {
            Some(found) => found,
            None => of_type,
        })
    }

    /// What a node makes of what its operands can be.
    fn through(&self, node: &Node, value: ValueId, given: &[Option<Bounds>]) -> Option<Bounds> {
        let output = node.outputs.iter().position(|o| *o == Some(value))?;
        let (op, inputs) = match &node.op {
            Op::Late(late) => match &late.op {
                LateOp::Over(op) => (op, late.operands(&node.inputs)),
                of => return self.through_late(of, late.operands(&node.inputs), output, given),
            },
            op => (op, &node.inputs[..]),
        };
        let given = &given[..inputs.len()];
        let dtype = self.ty(value).dtype;
        let any = |index: usize| given.get(index)?.as_ref().map(Bounds::any);
        let size = |index: usize, axis: usize| -> Option<f64> {
            Some(*self.ty((*inputs.get(index)?)?).shape.get(axis)? as f64)
        };
        let either = |from: usize, to: usize| Some(any(from)?.or(any(to)?));
        let all = |each: Interval| Some(Bounds::all(each.fit(dtype)));
        match op {
            Op::Unary(_) | Op::Binary(_) | Op::Clip { .. } | Op::Where | Op::Cast { .. } => {
                self.by_element(op, inputs, value, given)
            }
            Op::Reduce { kind, axes, .. } => {
                let x = (*inputs.first()?)?;
                let each = self.axes(x);
                let reduced = || axes.iter().map(|&axis| each[axis]);
                let most: f64 = reduced().map(|axis| axis.most as f64).product();
                let is_late = reduced().any(|axis| axis.symbol.is_some());
                all(any(0)?.reduced(*kind, most, is_late, dtype))
            }
            Op::ArgReduce { axis, .. } => all(places(size(0, *axis)?)),
            Op::TopK { axis, .. } if output == 1 => all(places(size(0, *axis)?)),
            Op::TopK { .. } => all(any(0)?),
            Op::CumSum { axis, .. } => {
                let sum = neap_ir::op::Reduce::Sum;
                all(any(0)?.reduced(sum, size(0, *axis)?, true, dtype))
            }
            Op::Softmax { kind, .. } if *kind != Softmax::LogSoftmax => {
                all(Interval::new(0.0, 1.0))
            }
            Op::EyeLike { .. } => all(Interval::new(0.0, 1.0)),
            Op::Trilu { .. } => all(any(0)?.or(Interval::exact(0.0))),
            Op::Pad { .. } => all(any(0)?.or(any(1).unwrap_or(Interval::exact(0.0)))),
            Op::OneHot { .. } => all(any(1)?),
            Op::ScatterElements { reduction, .. } | Op::ScatterNd { reduction } => {
                let is_put = *reduction == neap_ir::op::ScatterReduction::None;
                all(either(0, 2).filter(|_| is_put)?)
            }
            Op::GatherElements { .. } | Op::GatherNd { .. } => all(any(0)?),
            _ if moves(op) => self
                .moved(op, inputs, (output, node.outputs.len()), given)
                .or_else(|| {
                    let data = if matches!(op, Op::Concat { .. }) {
                        given.len()
                    } else {
                        1
                    };
                    let parts = given[..data].iter().flatten().map(Bounds::any);
                    Some(Bounds::all(parts.reduce(Interval::or)?))
                }),
            _ => None,
        }
    }

    fn through_late(
        &self,
        op: &LateOp,
        inputs: &[Option<ValueId>],
        output: usize,
        given: &[Option<Bounds>],
    ) -> Option<Bounds> {
        let any = |index: usize| given.get(index)?.as_ref().map(Bounds::any);
        let size = |axis: usize| -> Option<f64> {
            Some(*self.ty((*inputs.first()?)?).shape.get(axis)? as f64)
        };
        let longest = |index: usize| -> Option<f64> {
            let longest = self.ty((*inputs.get(index)?)?).shape.iter().max();
            Some(longest.copied().unwrap_or(1) as f64)
        };
        let count = |index: usize| -> Option<f64> {
            Some(self.ty((*inputs.get(index)?)?).elements() as f64)
        };
        Some(match op {
            LateOp::Select => {
                let (a, b) = (given.get(1)?.as_ref()?, given.get(2)?.as_ref()?);
                let elements = a.0.len().max(b.0.len());
                Bounds::each((0..elements).map(|i| a.at(i).or(b.at(i))).collect())
            }
            LateOp::Ended { .. } => given.get(1)?.clone()?,
            LateOp::Reshape { .. }
            | LateOp::Flatten { .. }
            | LateOp::Squeeze { .. }
            | LateOp::Unsqueeze { .. }
            | LateOp::Expand
            | LateOp::Slice { .. }
            | LateOp::Compress { .. }
            | LateOp::Tile => Bounds::all(any(0)?),
            LateOp::Pad { .. } => Bounds::all(any(0)?.or(any(2).unwrap_or(Interval::exact(0.0)))),
            LateOp::NonZero => Bounds::all(places(longest(0)?)),
            LateOp::NonMaxSuppression { .. } => Bounds::all(places(longest(0)?.max(longest(1)?))),
            LateOp::Unique { .. } if output == 0 => Bounds::all(any(0)?),
            LateOp::Unique { .. } => Bounds::all(Interval::new(0.0, count(0)?)),
            LateOp::TopK { axis, .. } if output == 1 => Bounds::all(places(size(*axis)?)),
            LateOp::TopK { .. } => Bounds::all(any(0)?),
            LateOp::OneHot { .. } => Bounds::all(any(2)?),
            LateOp::Fill => Bounds::all(any(1)?),
            LateOp::Range => {
                let (start, limit) = (any(0)?, any(1)?);
                Bounds::all(start.or(limit))
            }
            LateOp::Count => Bounds::all(Interval::new(0.0, inputs.len() as f64)),
            _ => return None,
        })
    }

    /// Operators that compute each element of their result from one of each operand.
    fn by_element(
        &self,
        op: &Op,
        inputs: &[Option<ValueId>],
        value: ValueId,
        given: &[Option<Bounds>],
    ) -> Option<Bounds> {
        let ty = self.ty(value);
        let is_known = !self.is_late(value) && ty.elements() <= MOST_ELEMENTS;
        let dtype = |index: usize| Some(self.ty((*inputs.get(index)?)?).dtype);
        let of = |index: usize, at: Option<usize>| -> Option<Interval> {
            let bounds = given.get(index)?.as_ref()?;
            let from = self.ty((*inputs.get(index)?)?);
            Some(match at {
                Some(at) => bounds.at(place_in(&from.shape, &ty.shape, at)),
                None => bounds.any(),
            })
        };
        let element = |at: Option<usize>| -> Option<Interval> {
            let x = of(0, at)?;
            Some(match op {
                Op::Unary(unary) => x.unary(unary).fit(ty.dtype),
                Op::Binary(binary) => {
                    let given = x.binary(*binary, of(1, at)?, dtype(0)?);
                    // PReLU and others that are not followed have whatever their type has.
                    given.fit(ty.dtype)
                }
                Op::Clip { low, high } => x.clip(*low, *high),
                Op::Cast { to } => x.cast(dtype(0)?, *to),
                Op::Where if x.low > 0.0 => of(1, at)?,
                Op::Where if x.high <= 0.0 => of(2, at)?,
                Op::Where => of(1, at)?.or(of(2, at)?),
                _ => return None,
            })
        };
        match is_known {
            true => {
                let each = (0..ty.elements()).map(|at| element(Some(at)));
                Some(Bounds::each(each.collect::<Option<_>>()?))
            }
            false => element(None).map(Bounds::all),
        }
    }

    /// Operators whose results are elements of their operands: computed of their numbers.
    fn moved(
        &self,
        op: &Op,
        inputs: &[Option<ValueId>],
        (output, outputs): (usize, usize),
        given: &[Option<Bounds>],
    ) -> Option<Bounds> {
        let mut elements = Vec::new();
        let mut operands = Vec::new();
        for (index, (input, bounds)) in inputs.iter().zip(given).enumerate() {
            let (value, bounds) = ((*input)?, bounds.as_ref()?);
            let ty: &TensorType = self.ty(value);
            let count = ty.elements();
            if self.is_late(value) || count > MOST_ELEMENTS {
                return None;
            }
            let is_place = index > 0 && matches!(op, Op::Gather { .. });
            let numbers: Option<Vec<i64>> = (0..count)
                .map(|at| {
                    let element = bounds.at(at);
                    if is_place {
                        return (element.low == element.high).then_some(element.low as i64);
                    }
                    elements.push(element);
                    Some(elements.len() as i64 - 1)
                })
                .collect();
            operands.push(Literal::from_i64(&ty.shape, &numbers?));
        }
        let operands: Vec<Option<&Literal>> = operands.iter().map(Some).collect();
        let results = neap_ops::evaluate_outputs(op, &operands, outputs).ok()?;
        let numbers = results.get(output)?.to_i64_vec()?;
        let element = |number: i64| elements.get(usize::try_from(number).ok()?).copied();
        let found: Option<Vec<Interval>> = numbers.into_iter().map(element).collect();
        found.filter(|f| f.len() <= MOST_ELEMENTS).map(Bounds::each)
    }
}

fn places(size: f64) -> Interval {
    Interval::new(0.0, (size - 1.0).max(0.0))
}

/// The element of an operand that is broadcast to a shape, for an element of that.
fn place_in(from: &[usize], to: &[usize], at: usize) -> usize {
    let (mut rest, mut place, mut stride) = (at, 0, 1);
    for (axis, &size) in to.iter().enumerate().rev() {
        let index = rest % size.max(1);
        rest /= size.max(1);
        if let Some(own) = (axis + from.len()).checked_sub(to.len()) {
            if from[own] != 1 {
                place += index * stride;
            }
            stride *= from[own];
        }
    }
    place
}

/// Whether it is worth to look further back.
fn is_followed(op: &Op) -> bool {
    match op {
        Op::Late(late) => match &late.op {
            LateOp::Over(op) => is_followed(op),
            LateOp::Repeat(_) => false,
            _ => true,
        },
        Op::Unary(op) => !matches!(op, Unary::Elu { .. } | Unary::Selu { .. }),
        Op::Binary(op) => !matches!(op, Binary::PRelu),
        Op::Clip { .. }
        | Op::Where
        | Op::Cast { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::TopK { .. }
        | Op::CumSum { .. }
        | Op::Softmax { .. }
        | Op::EyeLike { .. }
        | Op::Trilu { .. }
        | Op::Pad { .. }
        | Op::OneHot { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. }
        | Op::GatherElements { .. }
        | Op::GatherNd { .. } => true,
        op => moves(op),
    }
}

/// Operators whose results are elements of their first operand; of all, for a `Concat`.
fn moves(op: &Op) -> bool {
    matches!(
        op,
        Op::Concat { .. }
            | Op::Gather { .. }
            | Op::Reshape { .. }
            | Op::Slice { .. }
            | Op::Split { .. }
            | Op::Expand { .. }
            | Op::Tile { .. }
            | Op::Transpose { .. }
    )
}
