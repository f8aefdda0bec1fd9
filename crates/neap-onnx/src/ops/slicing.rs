//! Operators that take parts: Slice, Split, CenterCropPad.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{PadMode, SliceRange};
use neap_ir::{Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "Slice" => one(slice(c)),
        "Split" => split(c),
        "CenterCropPad" => one(center_crop_pad(c)),
        _ => return None,
    })
}

fn slice(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let shape = c.shape(x);
    let starts = c.ints_or_input("starts", 1, 10)?;
    let ends = c.ints_or_input("ends", 2, 10)?;
    let axes = c.ints_or_input("axes", 3, 10)?;
    let steps = match c.optional(4) {
        Some(steps) => Some(c.known_i64(steps, "its steps")?),
        None => None,
    };
    let (Some(starts), Some(ends)) = (starts, ends) else {
        return Err(c.bad("its starts or ends are missing"));
    };
    let axes: Vec<usize> = match axes {
        Some(axes) => {
            let axes = axes.iter().map(|&a| c.axis(a, shape.len()));
            axes.collect::<Result<_, _>>()?
        }
        None => (0..starts.len()).collect(),
    };
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    let count = starts.len();
    if ends.len() != count || axes.len() != count || steps.len() != count || count > shape.len() {
        return Err(c.bad("its starts, ends, axes and steps do not match"));
    }
    let mut ranges: Vec<SliceRange> = shape.iter().map(|&d| whole(d)).collect();
    for i in 0..count {
        let size = shape[axes[i]] as i64;
        ranges[axes[i]] = SliceRange::of(starts[i], ends[i], steps[i], size)
            .ok_or_else(|| c.bad("one of its steps is zero"))?;
    }
    c.emit(Op::Slice { ranges }, &[x])
}

/// All of an axis.
pub(super) fn whole(size: usize) -> SliceRange {
    SliceRange {
        start: 0,
        step: 1,
        len: size,
    }
}

fn split(c: &mut Ctx) -> Outputs {
    let x = c.input(0)?;
    let shape = c.shape(x);
    let axis = c.axis(c.int("axis", 0)?, shape.len())?;
    let size = shape[axis];
    let outputs = c.node.outputs.len();
    let sizes = match c.ints_or_input("split", 1, 13)? {
        Some(sizes) => {
            let sizes = sizes.into_iter().map(|s| c.checked_size("a part", s));
            sizes.collect::<Result<Vec<_>, _>>()?
        }
        None => {
            let parts = match c.optional_int("num_outputs")? {
                Some(parts) => c.checked_size("num_outputs", parts)?,
                None => outputs,
            };
            if parts == 0 || parts > outputs.max(1) {
                return Err(c.bad(format!("it has {outputs} outputs, not {parts}")));
            }
            let part = size.div_ceil(parts);
            (0..parts)
                .map(|i| part.min(size.saturating_sub(i * part)))
                .collect()
        }
    };
    if sizes.len() != outputs {
        return Err(c.bad(format!(
            "it has {outputs} outputs, but {} parts",
            sizes.len()
        )));
    }
    let wanted: Vec<bool> = (0..outputs).map(|i| c.wants(i)).collect();
    c.emit_wanted(Op::Split { axis, sizes }, &[Some(x)], &wanted)
}

fn center_crop_pad(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, target) = (c.input(0)?, c.input(1)?);
    let shape = c.shape(x);
    let target = c.known_i64(target, "its shape")?;
    let axes: Vec<usize> = match c.ints("axes")? {
        Some(axes) => {
            let axes = axes.iter().map(|&a| c.axis(a, shape.len()));
            axes.collect::<Result<_, _>>()?
        }
        None => (0..shape.len()).collect(),
    };
    if axes.len() != target.len() {
        return Err(c.bad(format!(
            "it has {} axes, but {} sizes",
            axes.len(),
            target.len()
        )));
    }
    let mut ranges: Vec<SliceRange> = shape.iter().map(|&d| whole(d)).collect();
    let mut pads = vec![(0isize, 0isize); shape.len()];
    for (&axis, &size) in axes.iter().zip(&target) {
        let (from, to) = (shape[axis], c.checked_size("a size", size)?);
        if to < from {
            ranges[axis].start = (from - to) / 2;
            ranges[axis].len = to;
        } else {
            let before = (to - from) / 2;
            pads[axis] = (before as isize, (to - from - before) as isize);
        }
    }
    let cropped = c.emit(Op::Slice { ranges }, &[x])?;
    let mode = PadMode::Constant;
    c.emit(Op::Pad { mode, pads }, &[cropped])
}

/// Places `start .. start + len` along an axis.
pub(super) fn part(
    c: &mut Ctx,
    x: ValueId,
    axis: usize,
    start: usize,
    len: usize,
) -> Result<ValueId, OnnxError> {
    let mut ranges: Vec<SliceRange> = c.shape(x).iter().map(|&d| whole(d)).collect();
    ranges[axis] = SliceRange {
        start,
        step: 1,
        len,
    };
    c.emit(Op::Slice { ranges }, &[x])
}
