//! Resize: every mode and coordinate transformation, any rank.
//!
//! Each axis gets a table of taps in the workspace; an output is the sum over the taps of all
//! axes. Channel-blocked images take the vectorised kernels.

mod axis;
mod backward;

pub(crate) use backward::{backward, backward_supported, backward_workspace_bytes};

use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::nd::{GRAIN, MAX_RANK, Ptr, Strides, split};
use crate::scalar::{Num, with_numeric};
use crate::window::{axes, spatial};
use crate::{Context, OpError};
use axis::{Axis, MAX_TAPS};
use neap_ir::graph::LANES;
use neap_ir::op::{CoordinateTransform, ResizeAttrs, ResizeMode};
use neap_ir::strips::ResizeStrip;
use neap_ir::{Layout, TensorType};
use neap_kernels::resize::{LinearAxis, bilinear, nearest};
use std::ops::Range;

pub(crate) fn supported(
    attrs: &ResizeAttrs,
    strip: Option<&ResizeStrip>,
    x: &TensorType,
) -> Result<(), String> {
    for (i, &given) in x.shape.iter().enumerate() {
        let axis = Axis::of_strip(attrs, strip, i, given);
        let size = axis.input;
        if size > u32::MAX as usize {
            return Err("for so long an axis".into());
        }
        if size > 0 && axis.taps() > MAX_TAPS {
            return Err("when shrinking so much".into());
        }
    }
    Ok(())
}

/// The two inputs that output `at` of an axis of that size is made of, and how much of each: of the nearest, or of the linear mode
/// without a wider filter.
pub fn resize_pair(attrs: &ResizeAttrs, axis: usize, input: usize, at: usize) -> [(u32, f64); 2] {
    let axis = Axis::of(attrs, axis, input);
    let taps = axis.taps().min(2);
    let (mut indices, mut weights) = ([0; 2], [0.0; 2]);
    axis.fill(at, &mut indices[..taps], &mut weights[..taps]);
    [
        (indices[0], weights[0]),
        (indices[taps - 1], if taps == 2 { weights[1] } else { 0.0 }),
    ]
}

/// The inputs of an axis of that size that these outputs are made of; `None` when shrinking so much that they are not supported.
pub fn resize_reach(
    attrs: &ResizeAttrs,
    axis: usize,
    input: usize,
    made: Range<usize>,
) -> Option<Range<usize>> {
    let axis = Axis::of(attrs, axis, input);
    let taps = axis.taps();
    if taps > MAX_TAPS {
        return None;
    }
    let (mut indices, mut weights) = (vec![0; taps], vec![0.0; taps]);
    let (mut first, mut end) = (usize::MAX, 0);
    for at in made {
        axis.fill(at, &mut indices, &mut weights);
        for &index in &indices {
            first = first.min(index as usize);
            end = end.max(index as usize + 1);
        }
    }
    Some(first.min(end)..end)
}

/// Whether the blocked kernels take it.
pub(crate) fn blocks(attrs: &ResizeAttrs, strip: Option<&ResizeStrip>, x: &[usize]) -> bool {
    let kernel = match attrs.mode {
        ResizeMode::Nearest => true,
        ResizeMode::Linear => !attrs.antialias,
        ResizeMode::Cubic => false,
    };
    kernel
        && attrs.coordinates != CoordinateTransform::TfCropAndResize
        && x.iter().all(|&d| d > 0)
        && strip.is_none_or(|strip| strip.axis >= 2)
        && (0..2).all(|i| Axis::of(attrs, i, x[i]).identity)
}

pub(crate) fn workspace_bytes(
    attrs: &ResizeAttrs,
    strip: Option<&ResizeStrip>,
    x: &TensorType,
    workers: usize,
) -> usize {
    let tables: usize = (0..x.shape.len())
        .filter(|&i| x.shape[i] > 0)
        .map(|i| {
            let axis = Axis::of_strip(attrs, strip, i, x.shape[i]);
            let entries = axis.len().saturating_mul(axis.taps());
            scratch_bytes::<u32>(entries.saturating_mul(2))
                + scratch_bytes::<f64>(entries)
                + scratch_bytes::<u8>(axis.len())
        })
        .sum();
    let row = attrs.output_shape.last().copied().unwrap_or(1);
    tables + scratch_bytes::<f64>(row * workers)
}

pub(crate) fn resize(attrs: &ResizeAttrs, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    some(attrs, None, args, ctx)
}

/// Some rows of the result.
pub(crate) fn strip(of: &ResizeStrip, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    some(&of.attrs, Some(of), args, ctx)
}

fn some(
    attrs: &ResizeAttrs,
    strip: Option<&ResizeStrip>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    if y.elements() == 0 {
        return Ok(());
    }
    if y.layout == Layout::Blocked {
        return blocked(attrs, strip, args, ctx);
    }
    with_numeric!(args.op, x.dtype(), T => plain::<T>(attrs, strip, args, ctx))
}

/// Taps of one axis.
#[derive(Clone, Copy)]
struct Table<'a> {
    taps: usize,
    indices: &'a [u32],
    weights: &'a [f64],
    /// 1 where an output lies inside.
    inside: &'a [u8],
}

impl<'a> Table<'a> {
    const EMPTY: Table<'a> = Table {
        taps: 1,
        indices: &[],
        weights: &[],
        inside: &[],
    };

    /// `given` inputs of the axis are there.
    fn of(
        axis: Axis,
        given: usize,
        args: &Args,
        scratch: &mut Scratch<'a>,
    ) -> Result<Table<'a>, OpError> {
        let taps = axis.taps();
        let indices = scratch.take::<u32>(axis.len() * taps)?;
        let weights = scratch.take::<f64>(axis.len() * taps)?;
        let inside = scratch.take::<u8>(axis.len())?;
        for at in 0..axis.len() {
            let range = at * taps..(at + 1) * taps;
            let (indices, weights) = (&mut indices[range.clone()], &mut weights[range]);
            match axis.fill_made(at, given, indices, weights) {
                Some(is_inside) => inside[at] = u8::from(is_inside),
                None => return args.fail("lacks rows of its input"),
            }
        }
        Ok(Table {
            taps,
            indices,
            weights,
            inside,
        })
    }

    fn entry(&self, at: usize, tap: usize) -> (usize, f64) {
        let at = at * self.taps + tap;
        (self.indices[at] as usize, self.weights[at])
    }
}

fn plain<T: Num>(
    attrs: &ResizeAttrs,
    strip: Option<&ResizeStrip>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let shape = y.shape();
    let Some((&line, lead)) = shape.split_last() else {
        // A scalar is only copied.
        return crate::movement::view::reshape(args, ctx);
    };
    let last = lead.len();
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let mut tables = [Table::EMPTY; MAX_RANK];
    for (i, &size) in x.shape().iter().enumerate() {
        let axis = Axis::of_strip(attrs, strip, i, size);
        tables[i] = Table::of(axis, size, args, &mut scratch)?;
    }
    let rows = scratch.take::<f64>(line * ctx.par.workers())?;
    let rows = Ptr(rows.as_mut_ptr());
    let own = Strides::row_major(x.shape(), 1);
    let inner = tables[last];
    let outer_taps: usize = tables[..last].iter().map(|t| t.taps).product();
    let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
    let lines = y.elements() / line;
    let per_task = GRAIN / (line * outer_taps * inner.taps).max(1);
    split(ctx.par, lines, per_task, &|range, worker| {
        // SAFETY: every worker has its own row of the scratch.
        let row = unsafe { rows.slice_mut(worker * line, line) };
        'lines: for unit in range {
            let mut at = [0; MAX_RANK];
            let mut rest = unit;
            for axis in (0..last).rev() {
                at[axis] = rest % lead[axis];
                rest /= lead[axis];
            }
            let inside = (0..last).all(|axis| tables[axis].inside[at[axis]] == 1);
            row.fill(0.0);
            for combination in 0..outer_taps {
                let (mut rest, mut base, mut weight) = (combination, 0, 1.0);
                for axis in (0..last).rev() {
                    let table = &tables[axis];
                    let (index, w) = table.entry(at[axis], rest % table.taps);
                    rest /= table.taps;
                    base += index * own[axis] as usize;
                    weight *= w;
                }
                // Nothing is added up: elements of any type are copied.
                if outer_taps * inner.taps == 1 {
                    for i in 0..line {
                        let value = match inside && inner.inside[i] == 1 {
                            // SAFETY: table indices are inside their axes.
                            true => unsafe { src.read(base + inner.entry(i, 0).0) },
                            false => T::from_f64(attrs.extrapolation.into()),
                        };
                        // SAFETY: lines of the output are disjoint.
                        unsafe { dst.write(unit * line + i, value) };
                    }
                    continue 'lines;
                }
                for (i, sum) in row.iter_mut().enumerate() {
                    for tap in 0..inner.taps {
                        let (index, w) = inner.entry(i, tap);
                        // SAFETY: table indices are inside their axes.
                        *sum += weight * w * unsafe { src.read(base + index) }.to_f64();
                    }
                }
            }
            for (i, &sum) in row.iter().enumerate() {
                let value = match inside && inner.inside[i] == 1 {
                    true if T::FLOAT => T::from_f64(sum),
                    // As images are shrunk elsewhere: the nearest. The other modes are those of models, which cut off.
                    true if attrs.antialias => T::from_f64(sum.round()),
                    true => T::from_f64(cut_off(sum)),
                    false => T::from_f64(attrs.extrapolation.into()),
                };
                // SAFETY: lines of the output are disjoint.
                unsafe { dst.write(unit * line + i, value) };
            }
        }
    });
    Ok(())
}

/// The integer towards zero. Weights are rounded, so what is as near to an integer as an `f32` can tell stands for it: without that
/// an image of one colour would not stay one.
fn cut_off(sum: f64) -> f64 {
    let nearest = sum.round_ties_even();
    let is_near = (sum - nearest).abs() <= nearest.abs() * f64::from(f32::EPSILON / 2.0);
    if is_near { nearest } else { sum.trunc() }
}

fn blocked(
    attrs: &ResizeAttrs,
    strip: Option<&ResizeStrip>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    args.require(
        blocks(attrs, strip, x.shape()),
        "takes plain tensors in this mode",
    )?;
    let planes = x.shape()[0] * x.shape()[1].div_ceil(LANES);
    let input = axes(spatial(x.shape()), 1);
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let mut tables = [Lines::HEIGHT_ONE; 2];
    for (i, &size) in x.shape()[2..].iter().rev().enumerate() {
        let axis = Axis::of_strip(attrs, strip, x.shape().len() - 1 - i, size);
        tables[1 - i] = Lines::of(axis, size, args, &mut scratch)?;
    }
    let [rows, cols] = tables;
    // SAFETY: the output does not overlap the input.
    let out = unsafe { y.f32s_mut() };
    match attrs.mode {
        ResizeMode::Nearest => {
            nearest(ctx.par, planes, input, rows.low, cols.low, x.f32s(), out).named(args.op)
        }
        _ => {
            let (rows, cols) = (rows.linear(), cols.linear());
            bilinear(ctx.isa, ctx.par, planes, input, rows, cols, x.f32s(), out).named(args.op)
        }
    }
}

/// Taps as the blocked kernels take them.
#[derive(Clone, Copy)]
struct Lines<'a> {
    low: &'a [u32],
    high: &'a [u32],
    weight: &'a [f32],
}

impl<'a> Lines<'a> {
    /// The height of 1-D tensors.
    const HEIGHT_ONE: Lines<'static> = Lines {
        low: &[0],
        high: &[0],
        weight: &[0.0],
    };

    fn of(
        axis: Axis,
        given: usize,
        args: &Args,
        scratch: &mut Scratch<'a>,
    ) -> Result<Lines<'a>, OpError> {
        let taps = axis.taps();
        let low = scratch.take::<u32>(axis.len())?;
        let high = scratch.take::<u32>(axis.len())?;
        let weight = scratch.take::<f32>(axis.len())?;
        let (mut indices, mut weights) = ([0; 2], [0.0; 2]);
        for at in 0..axis.len() {
            let filled = (&mut indices[..taps], &mut weights[..taps]);
            if axis.fill_made(at, given, filled.0, filled.1).is_none() {
                return args.fail("lacks rows of its input");
            }
            low[at] = indices[0];
            high[at] = indices[taps - 1];
            weight[at] = if taps == 2 { weights[1] as f32 } else { 0.0 };
        }
        Ok(Lines { low, high, weight })
    }

    fn linear(&self) -> LinearAxis<'a> {
        LinearAxis {
            low: self.low,
            high: self.high,
            weight: self.weight,
        }
    }
}
