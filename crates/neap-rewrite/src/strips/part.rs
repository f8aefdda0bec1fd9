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
        Op::ConvTranspose { window, .. } => this.spread(window, x),
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
        } => this.reduced(axes, *keep_dims),
        Op::ArgReduce {
            axis: by,
            keep_dims,
            ..
        } => this.reduced(&[*by], *keep_dims),
        Op::CumSum { axis: by, .. } => this.same_rows().filter(|_| *by != axis),
        Op::Gather { axis: by } => {
            let chosen = node.input(1).map_or(0, |v| this.shape(v).len());
            match axis {
                _ if axis < *by => this.same_rows(),
                _ if axis < *by + chosen => None,
                _ => this.of_first(node.op.clone(), axis + 1 - chosen, this.made.clone()),
            }
        }
        Op::Split { axis: cut, .. } => this.same_rows().filter(|_| *cut != axis),
        Op::BatchNorm { .. } | Op::ScaleShift { .. } | Op::Lrn { .. } => {
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

    /// Of a transposed convolution: the rows whose taps lie on those that are made.
    fn spread(&self, window: &Window, x: &[usize]) -> Option<Part> {
        let Op::ConvTranspose {
            groups,
            output_spatial,
            ..
        } = &self.node.op
        else {
            return None;
        };
        let (window, rows) = rows_of_spread(window, *x.get(ROWS)?, &self.made)?;
        let mut output_spatial = output_spatial.clone();
        *output_spatial.first_mut()? = self.made.len();
        let op = Op::ConvTranspose {
            window,
            groups: *groups,
            output_spatial,
        };
        self.of_first(op, ROWS, rows).filter(|_| self.axis == ROWS)
    }

    /// Of an operator that makes one of all places along some axes.
    fn reduced(&self, axes: &[usize], keep_dims: bool) -> Option<Part> {
        let x = self.shape(self.node.input(0)?);
        let own = match keep_dims {
            true => Some(self.axis).filter(|axis| !axes.contains(axis)),
            false => (0..x.len())
                .filter(|axis| !axes.contains(axis))
                .nth(self.axis),
        };
        self.of_first(self.node.op.clone(), own?, self.made.clone())
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
                let (own, rows, all) = rows_of_pad(*mode, pads[axis], input_rows, made)?;
                let mut pads = pads.clone();
                pads[axis] = own;
                let mut part = self.of_first(Op::Pad { mode: *mode, pads }, axis, rows)?;
                part.made = all;
                Some(part)
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
                let step = usize::try_from(own.step).ok().filter(|&step| step > 0)?;
                let last = (made.end - 1).checked_mul(step)?;
                let rows = own.start + made.start * step..own.start + last + 1;
                (own.start, own.len) = (0, made.len());
                self.of_first(Op::Slice { ranges }, axis, rows)
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

/// The window of a transposed convolution that gives these results, and the rows that it spreads: none may lie before the first.
fn rows_of_spread(
    window: &Window,
    height: usize,
    made: &Range<usize>,
) -> Option<(Window, Range<usize>)> {
    let (stride, pad) = (*window.strides.first()?, window.pads_begin[0]);
    let reach = window.kernel[0].checked_sub(1)? * window.dilations[0] + 1;
    // In rows of the result before its padding is cut off.
    let (first, last) = (made.start + pad, made.end - 1 + pad);
    let lands = (first + 1).saturating_sub(reach).div_ceil(stride);
    let begin = lands.min(first / stride).min(height.checked_sub(1)?);
    let rows = begin..(last / stride + 1).clamp(begin + 1, height);
    let mut own = window.clone();
    own.pads_begin[0] = first - begin * stride;
    Some((own, rows))
}

/// Rows before and behind; negative ones are cut off.
type Pads = (isize, isize);

/// Pads, the rows that they are of, and the rows that these give: those that are to be made, and a few more where rows are reflected.
fn rows_of_pad(
    mode: PadMode,
    (before, after): Pads,
    height: usize,
    made: &Range<usize>,
) -> Option<(Pads, Range<usize>, Range<usize>)> {
    let height = height as isize;
    let place = |row: usize| (row as isize).saturating_sub(before);
    // In rows of what is padded.
    let (from, to) = (place(made.start), place(made.end));
    let within = (before.max(after) < height) && before.min(after) >= 0;
    let (first, end) = match mode {
        // Of rows that are nothing but padding, one that is cropped.
        PadMode::Constant => {
            let first = from.clamp(0, (height - 1).max(0));
            (first, to.clamp(0, height).max(first + 1))
        }
        _ if (before, after) == (0, 0) => (from, to),
        PadMode::Edge if within => {
            let (first, end) = (from.clamp(0, height - 1), to.clamp(1, height));
            // Rows that are all the first's, or the last's.
            let behind = (to - height).clamp(0, to - from - 1);
            let pads = (to - from - (end - first) - behind, behind);
            return Some((pads, first as usize..end as usize, made.clone()));
        }
        PadMode::Reflect if within => {
            let first = if to > height {
                from.min(2 * height - 1 - to)
            } else {
                from
            };
            let end = if from < 0 { to.max(1 - from) } else { to };
            let all = (first + before) as usize..(end + before) as usize;
            let rows = first.max(0) as usize..end.min(height) as usize;
            let pads = (rows.start as isize - first, end - rows.end as isize);
            return (!rows.is_empty()).then_some((pads, rows, all));
        }
        _ => return None,
    };
    let rows = first as usize..end as usize;
    (end <= height).then_some(((first - from, to - end), rows, made.clone()))
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

    /// Of every strip of a padded column, the column that its own rows and pads give is that of the whole.
    #[test]
    fn pads_of_rows() {
        let column = |mode, pads, rows: Range<usize>| -> Vec<f32> {
            let rows: Vec<f32> = rows.map(|row| row as f32 + 1.0).collect();
            let x = neap_ir::Literal::from_f32(&[rows.len()], &rows);
            let op = Op::Pad {
                mode,
                pads: vec![pads],
            };
            let found = neap_ops::evaluate(&op, &[Some(&x)]).unwrap();
            found[0].as_f32().unwrap().to_vec()
        };
        let modes = [PadMode::Constant, PadMode::Edge, PadMode::Reflect];
        for (mode, pads) in modes.into_iter().flat_map(|mode| {
            [(0, 0), (1, 0), (0, 3), (5, 6), (6, 2), (-2, 1)].map(|pads| (mode, pads))
        }) {
            let whole = column(mode, pads, 0..7);
            for start in 0..whole.len() {
                for end in start + 1..=whole.len() {
                    if let Some((own, rows, all)) = rows_of_pad(mode, pads, 7, &(start..end)) {
                        assert!(rows.end <= 7 && all.start <= start && end <= all.end);
                        let what = format!("{mode:?} {pads:?} {start}..{end}");
                        assert_eq!(column(mode, own, rows), whole[all], "{what}");
                    } else {
                        let is_cropped = mode != PadMode::Constant && pads.0 < 0;
                        assert!(is_cropped, "{mode:?} {pads:?} {start}..{end}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_transposed_windows() {
        for (kernel, stride, dilation, pad, extra) in [
            (2, 2, 1, 0, 0),
            (3, 2, 1, 1, 1),
            (4, 2, 1, 1, 0),
            (1, 3, 1, 0, 2),
            (5, 1, 2, 3, 0),
            (3, 3, 2, 2, 0),
        ] {
            let window = Window {
                kernel: vec![kernel],
                strides: vec![stride],
                dilations: vec![dilation],
                pads_begin: vec![pad],
                pads_end: vec![pad],
            };
            let height = 6;
            let reach = (kernel - 1) * dilation + 1;
            let made = (height - 1) * stride + reach + extra - 2 * pad;
            // Rows whose taps lie on a row of the result.
            let on = |window: &Window, row: usize, rows: usize| -> Vec<(usize, usize)> {
                let taps = (0..rows).flat_map(|x| (0..kernel).map(move |tap| (x, tap)));
                taps.filter(|(x, tap)| x * stride + tap * dilation == row + window.pads_begin[0])
                    .collect()
            };
            for start in 0..made {
                for end in start + 1..=made {
                    let (own, rows) = rows_of_spread(&window, height, &(start..end)).unwrap();
                    for row in start..end {
                        let found = on(&own, row - start, rows.len()).into_iter();
                        let found = found.map(|(x, tap)| (x + rows.start, tap));
                        let wanted = on(&window, row, height);
                        assert_eq!(found.collect::<Vec<_>>(), wanted, "{kernel} {start}..{end}");
                    }
                }
            }
        }
    }
}
