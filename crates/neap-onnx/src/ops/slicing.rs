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
        ranges[axes[i]] = range(starts[i], ends[i], steps[i], size)
            .ok_or_else(|| c.bad("one of its steps is zero"))?;
    }
    c.emit(Op::Slice { ranges }, &[x])
}

fn whole(size: usize) -> SliceRange {
    SliceRange {
        start: 0,
        step: 1,
        len: size,
    }
}

/// Python's slice: negative positions count from the end, those outside are clamped.
fn range(start: i64, end: i64, step: i64, size: i64) -> Option<SliceRange> {
    let from_front = |p: i64| if p < 0 { p.saturating_add(size) } else { p };
    let (start, end) = (from_front(start), from_front(end));
    let (start, len) = match step {
        0 => return None,
        1.. => {
            let start = start.clamp(0, size);
            let end = end.clamp(0, size);
            (
                start,
                (end - start).max(0).div_euclid(step) + i64::from((end - start).max(0) % step != 0),
            )
        }
        _ => {
            let start = start.clamp(-1, size - 1);
            let end = end.clamp(-1, size - 1);
            let back = step.checked_neg().unwrap_or(i64::MAX);
            let distance = (start - end).max(0);
            (start, distance / back + i64::from(distance % back != 0))
        }
    };
    Some(SliceRange {
        start: start.max(0) as usize,
        // A step longer than the axis takes one element, whatever it is exactly.
        step: step.clamp(-(1 << 40), 1 << 40) as isize,
        len: len as usize,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_pythons() {
        // start, end, step, size -> first, length
        for (start, end, step, size, first, len) in [
            (0, 10, 1, 10, 0, 10),
            (2, i64::MAX, 3, 10, 2, 3),
            (-3, -1, 1, 10, 7, 2),
            (5, 2, 1, 10, 5, 0),
            (20, 30, 1, 10, 10, 0),
            (-1, i64::MIN, -1, 10, 9, 10),
            (9, 0, -4, 10, 9, 3),
            (i64::MAX, -5, -1, 4, 3, 4),
            (0, 1, i64::MAX, 4, 0, 1),
            (3, i64::MIN, i64::MIN, 4, 3, 1),
            (0, 0, -1, 0, 0, 0),
        ] {
            let r = range(start, end, step, size).expect("step is not zero");
            assert_eq!(
                (r.start, r.len),
                (first, len),
                "[{start}:{end}:{step}] of {size}"
            );
        }
        assert!(range(0, 1, 0, 4).is_none());
    }
}
