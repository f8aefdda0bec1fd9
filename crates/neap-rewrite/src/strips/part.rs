//! Some rows of a node's results as a node of its own: its operator, and the rows of each operand that it reads.
//!
//! Rows are places along any axis: those of an image, or tokens.

use neap_ir::op::{AttentionAttrs, HeadLayout, Op, PadMode, Pool, Window};
use neap_ir::strips::ResizeStrip;
use neap_ir::{Graph, Node, ValueId};
use std::ops::Range;

/// How much of an operand a part of a node reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Whole,
    /// Places along an axis.
    Rows(usize, Range<usize>),
}

/// What makes some rows of a node's results.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub op: Op,
    /// By input.
    pub wanted: Vec<Wanted>,
    /// The rows that are made: those asked for, or a few more.
    pub made: Range<usize>,
}

/// The axis of rows in images.
pub(super) const ROWS: usize = 2;

/// Places `made` along `axis` of a node's results; `None` where they are not computed for themselves.
pub(super) fn part(graph: &Graph, node: &Node, axis: usize, made: Range<usize>) -> Option<Part> {
    let this = Request {
        graph,
        node,
        axis,
        made,
    };
    let y = this.shape(node.outputs.first().copied().flatten()?);
    let x = node.input(0).map(|v| this.shape(v))?;
    if axis >= y.len() || this.made.is_empty() {
        return None;
    }
    match &node.op {
        Op::PanelConv(_) | Op::PanelDepthwise(_) | Op::Conv(..) | Op::Pool { .. } => {
            this.windowed(x)
        }
        Op::Resize(_) | Op::DepthToSpace { .. } | Op::SpaceToDepth { .. } | Op::Pad { .. } => {
            this.moved(x)
        }
        Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. } => this.renamed(x, y),
        Op::PanelLinear(linear) => {
            let part = this.same_rows().filter(|_| axis + 1 < x.len())?;
            this.with_residual(part, linear.epilogue.residual)
        }
        Op::MatMul => this.product(x.len().min(y.len()), y),
        Op::Gemm { trans_a: false, .. } if axis == 0 => {
            let bias = node.input(2).map(|v| this.shape(v));
            let mut part = this.same_rows()?;
            if bias.is_some_and(|bias| bias.len() == 2 && bias[0] != 1) {
                part.wanted[2] = this.rows();
            }
            Some(part)
        }
        Op::Attention(attrs) => this.attention(attrs),
        Op::Binary(_) | Op::Where => this.broadcast(y, 0),
        Op::Concat { axis: joined } if *joined != axis => {
            let wanted = vec![this.rows(); node.inputs.len()];
            this.part(node.op.clone(), wanted)
        }
        Op::Quantize { axis: by, .. } | Op::Dequantize { axis: by } => {
            let one = node.inputs[1..].iter().flatten();
            let one = one.into_iter().all(|&v| graph.ty(v).elements() == 1);
            this.same_rows().filter(|_| one || *by != axis)
        }
        Op::Softmax { axis: by, .. } | Op::LpNorm { axis: by, .. } => {
            this.same_rows().filter(|_| *by != axis)
        }
        Op::LayerNorm { axis: from, .. } | Op::RmsNorm { axis: from, .. } => this
            .same_rows()
            .filter(|_| *from > axis && node.outputs.len() == 1),
        Op::Reduce {
            axes, keep_dims, ..
        } => this
            .same_rows()
            .filter(|_| *keep_dims && !axes.contains(&axis)),
        Op::Split { axis: cut, .. } => this.same_rows().filter(|_| *cut != axis),
        Op::BatchNorm { .. } | Op::ScaleShift { .. } | Op::Lrn { .. } | Op::Normalise { .. } => {
            this.same_rows().filter(|_| axis != 1)
        }
        Op::Unary(_) | Op::Clip { .. } | Op::Cast { .. } | Op::RoundToFloat8 { .. } => {
            this.same_rows()
        }
        Op::Reorder => this.same_rows(),
        _ => None,
    }
}

struct Request<'a> {
    graph: &'a Graph,
    node: &'a Node,
    axis: usize,
    made: Range<usize>,
}

impl<'a> Request<'a> {
    fn shape(&self, v: ValueId) -> &'a [usize] {
        &self.graph.ty(v).shape
    }

    /// The same rows of an operand of the same shape.
    fn rows(&self) -> Wanted {
        Wanted::Rows(self.axis, self.made.clone())
    }

    fn part(&self, op: Op, wanted: Vec<Wanted>) -> Option<Part> {
        Some(Part {
            op,
            wanted,
            made: self.made.clone(),
        })
    }

    /// Rows of the first operand, and the others whole.
    fn of_first(&self, op: Op, axis: usize, rows: Range<usize>) -> Option<Part> {
        let mut wanted = vec![Wanted::Whole; self.node.inputs.len()];
        *wanted.first_mut()? = Wanted::Rows(axis, rows);
        self.part(op, wanted)
    }

    fn same_rows(&self) -> Option<Part> {
        self.of_first(self.node.op.clone(), self.axis, self.made.clone())
    }

    /// A layer adds rows of its residual to the same rows of its result.
    fn with_residual(&self, mut part: Part, residual: bool) -> Option<Part> {
        if residual {
            *part.wanted.get_mut(1)? = self.rows();
        }
        Some(part)
    }

    fn windowed(&self, x: &[usize]) -> Option<Part> {
        if self.axis != ROWS {
            return None;
        }
        let height = *x.get(ROWS)?;
        let axes = x.len() - ROWS;
        let cut = |window: &Window| rows_of_window(window, axes, height, &self.made);
        match &self.node.op {
            Op::PanelConv(conv) => {
                let (window, rows) = cut(&conv.window)?;
                let residual = conv.epilogue.residual;
                let conv = neap_ir::panel::PanelConv {
                    window,
                    ..conv.clone()
                };
                self.with_residual(self.of_first(Op::PanelConv(conv), ROWS, rows)?, residual)
            }
            Op::PanelDepthwise(depthwise) => {
                let (window, rows) = cut(&depthwise.window)?;
                let residual = depthwise.epilogue.residual;
                let depthwise = neap_ir::panel::PanelDepthwise {
                    window,
                    ..depthwise.clone()
                };
                let op = Op::PanelDepthwise(depthwise);
                self.with_residual(self.of_first(op, ROWS, rows)?, residual)
            }
            Op::Conv(window, groups) => {
                let (window, rows) = cut(window)?;
                self.of_first(Op::Conv(window, *groups), ROWS, rows)
            }
            Op::Pool {
                kind,
                window,
                output_spatial,
            } if self.node.outputs.len() == 1 => {
                let (mut own, rows) = cut(window)?;
                if matches!(kind, Pool::Average { .. }) {
                    // Rounded-up sizes reach beyond the padding, which is not averaged.
                    let rows = own.pads_end.len().checked_sub(axes)?;
                    own.pads_end[rows] = own.pads_end[rows].min(window.pads_end[rows]);
                }
                let mut output_spatial = output_spatial.clone();
                *output_spatial.first_mut()? = self.made.len();
                let op = Op::Pool {
                    kind: *kind,
                    window: own,
                    output_spatial,
                };
                self.of_first(op, ROWS, rows)
            }
            _ => None,
        }
    }

    /// Operators that move rows of images.
    fn moved(&self, x: &[usize]) -> Option<Part> {
        let (axis, made) = (self.axis, &self.made);
        let input_rows = *x.get(axis)?;
        match &self.node.op {
            Op::Resize(attrs) => {
                let rows = neap_ops::resize_reach(attrs, axis, input_rows, made.clone())?;
                let strip = ResizeStrip {
                    attrs: attrs.clone(),
                    axis,
                    input_rows,
                    input_start: rows.start,
                    start: made.start,
                    len: made.len(),
                };
                self.of_first(Op::ResizeStrip(Box::new(strip)), axis, rows)
            }
            Op::DepthToSpace { block, .. } if axis == ROWS => {
                let rows = made.start / block..made.end.div_ceil(*block);
                let whole_blocks = rows.start * block..rows.end * block;
                let mut part = self.of_first(self.node.op.clone(), axis, rows)?;
                part.made = whole_blocks;
                Some(part)
            }
            Op::SpaceToDepth { block } if axis == ROWS => {
                let rows = made.start * block..made.end * block;
                self.of_first(self.node.op.clone(), axis, rows)
            }
            Op::Pad { mode, pads } => {
                let (before, after) = pads[axis];
                let height = input_rows as isize;
                let place = |row: usize| (row as isize).saturating_sub(before);
                let (from, to) = (place(made.start), place(made.end));
                let rows = from.clamp(0, height)..to.clamp(0, height);
                let mut pads = pads.clone();
                pads[axis] = (rows.start - from, to - rows.end);
                let fits = *mode == PadMode::Constant || (before, after) == (0, 0);
                let rows = rows.start as usize..rows.end as usize;
                let fits = fits && !rows.is_empty();
                let op = Op::Pad { mode: *mode, pads };
                self.of_first(op, axis, rows).filter(|_| fits)
            }
            _ => None,
        }
    }

    /// Operators that only name axes anew, or take a part.
    fn renamed(&self, x: &[usize], y: &[usize]) -> Option<Part> {
        let (axis, made) = (self.axis, &self.made);
        match &self.node.op {
            Op::Transpose { perm } => self.of_first(self.node.op.clone(), perm[axis], made.clone()),
            Op::Slice { ranges } => {
                let mut ranges = ranges.clone();
                let own = &mut ranges[axis];
                let rows = own.start + made.start..own.start + made.end;
                (own.start, own.len) = (0, made.len());
                let fits = own.step == 1;
                self.of_first(Op::Slice { ranges }, axis, rows)
                    .filter(|_| fits)
            }
            Op::Reshape { .. } => {
                let lead: usize = y[..axis].iter().product();
                let leads = |&at: &usize| x[at] > 1 && x[..at].iter().product::<usize>() == lead;
                let from = (0..x.len()).find(leads)?;
                let elements =
                    |shape: &[usize], axis: usize| -> usize { shape[axis + 1..].iter().product() };
                let (own, other) = (elements(y, axis), elements(x, from));
                let (rows, all) = if own > 0 && other.is_multiple_of(own) {
                    let each = other / own;
                    let rows = made.start / each..made.end.div_ceil(each);
                    let all = rows.start * each..rows.end * each;
                    (rows, all)
                } else if other > 0 && own.is_multiple_of(other) {
                    let each = own / other;
                    (made.start * each..made.end * each, made.clone())
                } else {
                    return None;
                };
                let mut shape = y.to_vec();
                shape[axis] = all.len();
                let mut part = self.of_first(Op::Reshape { shape }, from, rows)?;
                part.made = all;
                Some(part)
            }
            _ => None,
        }
    }

    /// Rows of the left operand with all of the right one; or matrices of a batch.
    fn product(&self, left: usize, y: &[usize]) -> Option<Part> {
        match y.len().checked_sub(self.axis + 1)? {
            0 => None,
            1 if left < 2 => None,
            1 => self.same_or_lined_up(y),
            _ => self.broadcast(y, 2),
        }
    }

    fn same_or_lined_up(&self, y: &[usize]) -> Option<Part> {
        let x = self.shape(self.node.input(0)?);
        let axis = x.len().checked_sub(y.len() - self.axis)?;
        self.of_first(self.node.op.clone(), axis, self.made.clone())
    }

    /// Operands line up from the right; `apart` of their last axes do not, and differ.
    fn broadcast(&self, y: &[usize], apart: usize) -> Option<Part> {
        if self.axis + apart >= y.len() || y[self.axis] == 1 {
            return None;
        }
        let wanted = self.node.inputs.iter().map(|v| {
            let operand = (*v).map_or(&[][..], |v| self.shape(v));
            let own = (self.axis + operand.len()).checked_sub(y.len());
            match own.filter(|&own| operand.get(own).is_some_and(|&d| d != 1)) {
                Some(own) => Wanted::Rows(own, self.made.clone()),
                None => Wanted::Whole,
            }
        });
        self.part(self.node.op.clone(), wanted.collect())
    }

    /// Some queries with all keys.
    fn attention(&self, attrs: &AttentionAttrs) -> Option<Part> {
        let queries = |layout: HeadLayout, shape: &[usize]| match (layout, shape.len()) {
            (HeadLayout::RowMajor, 3 | 4) | (HeadLayout::HeadMajor, 3) => Some(1),
            (HeadLayout::RowMajor, 2) => Some(0),
            (HeadLayout::HeadMajor, 4) => Some(2),
            _ => None,
        };
        let node = self.node;
        let y = self.shape(node.outputs[0]?);
        let q = queries(attrs.q, self.shape(node.input(0)?))?;
        if attrs.causal || queries(attrs.out, y)? != self.axis || node.outputs.len() > 1 {
            return None;
        }
        let mut part = self.of_first(node.op.clone(), q, self.made.clone())?;
        if let Some(mask) = node.input(3) {
            let mask = self.shape(mask);
            let own = mask.len().checked_sub(2);
            if let Some(own) = own.filter(|&own| mask[own] != 1) {
                part.wanted[3] = Wanted::Rows(own, self.made.clone());
            }
        }
        Some(part)
    }
}

/// The window over the rows that these results need, and those rows. Of images with one axis, a window may have a height of 1
/// before it.
fn rows_of_window(
    window: &Window,
    axes: usize,
    height: usize,
    made: &Range<usize>,
) -> Option<(Window, Range<usize>)> {
    let at = window.kernel.len().checked_sub(axes)?;
    let (stride, pad) = (window.strides[at], window.pads_begin[at]);
    let reach = window.kernel[at].checked_sub(1)? * window.dilations[at] + 1;
    // In rows of the padded input.
    let (first, end) = (made.start * stride, (made.end - 1) * stride + reach);
    let rows = first.saturating_sub(pad).min(height)..end.saturating_sub(pad).min(height);
    let mut own = window.clone();
    own.pads_begin[at] = pad.saturating_sub(first);
    own.pads_end[at] = end.saturating_sub(pad + height);
    (!rows.is_empty()).then_some((own, rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_rows() {
        let window = Window {
            kernel: vec![3, 3],
            strides: vec![2, 2],
            dilations: vec![1, 1],
            pads_begin: vec![1, 1],
            pads_end: vec![1, 1],
        };
        let of = |made| {
            let (own, rows) = rows_of_window(&window, 2, 8, &made).unwrap();
            (rows, own.pads_begin[0], own.pads_end[0])
        };
        assert_eq!(of(0..4), (0..8, 1, 0));
        assert_eq!(of(0..1), (0..2, 1, 0));
        assert_eq!(of(1..3), (1..6, 0, 0));
        assert_eq!(of(3..4), (5..8, 0, 0));
    }
}
