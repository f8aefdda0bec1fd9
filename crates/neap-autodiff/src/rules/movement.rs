//! Data movement: derivatives move the way back.

use super::indexing::scatter_axis;
use crate::step::{Derivatives, Step};
use neap_ir::Op;
use neap_ir::op::{PadMode, Reduce, SliceRange};

pub(super) fn concat(axis: usize, step: &mut Step) -> Derivatives {
    let dy = step.dy()?;
    let mut start = 0;
    let mut derivatives = Vec::new();
    for index in 0..step.node.inputs.len() {
        let length = step.emit.shape(step.input(index)?)[axis];
        let part = if step.wants(index) {
            Some(step.emit.part(dy, axis, start, length)?)
        } else {
            None
        };
        derivatives.push(part);
        start += length;
    }
    Ok(derivatives)
}

pub(super) fn split(axis: usize, sizes: &[usize], step: &mut Step) -> Derivatives {
    let x = step.input(0)?;
    let (dtype, shape) = (step.emit.dtype(x), step.emit.shape(x));
    let mut parts = Vec::new();
    for (index, &size) in sizes.iter().enumerate() {
        let mut shape = shape.clone();
        shape[axis] = size;
        parts.push(match step.results.get(index).copied().flatten() {
            Some(part) => part,
            None => step.emit.zeros(dtype, &shape)?,
        });
    }
    let dx = match parts[..] {
        [only] => only,
        _ => step.emit.op(Op::Concat { axis }, &parts)?,
    };
    step.one(dx)
}

pub(super) fn slice(ranges: &[SliceRange], step: &mut Step) -> Derivatives {
    let (x, mut dx) = (step.input(0)?, step.dy()?);
    let shape = step.emit.shape(x);
    if shape.contains(&0) || ranges.iter().any(|range| range.len == 0) {
        let dx = step.emit.zeros(step.emit.dtype(x), &shape)?;
        return step.one(dx);
    }
    // Axes with steps are spread out one by one; what is left is padding.
    let mut pads = Vec::new();
    for (axis, range) in ranges.iter().enumerate() {
        if range.step == 1 || range.len == 1 {
            let before = range.start as isize;
            let after = shape[axis] - range.start - range.len;
            pads.push((before, after as isize));
            continue;
        }
        pads.push((0, 0));
        let places: Vec<i64> = (0..range.len)
            .map(|i| range.start as i64 + i as i64 * range.step as i64)
            .collect();
        let places = step.emit.indices(&[range.len], &places);
        dx = scatter_axis(step.emit, dx, places, axis, shape[axis])?;
    }
    if pads.iter().any(|&pad| pad != (0, 0)) {
        let mode = PadMode::Constant;
        dx = step.emit.op(Op::Pad { mode, pads }, &[dx])?;
    }
    step.one(dx)
}

pub(super) fn reshape(step: &mut Step) -> Derivatives {
    let (x, dy) = (step.input(0)?, step.dy()?);
    let shape = step.emit.shape(x);
    let dx = step.emit.reshape(dy, &shape)?;
    step.one(dx)
}

pub(super) fn transpose(perm: &[usize], step: &mut Step) -> Derivatives {
    let dy = step.dy()?;
    let mut back = vec![0; perm.len()];
    for (to, &from) in perm.iter().enumerate() {
        back[from] = to;
    }
    let dx = step.emit.transpose(dy, &back)?;
    step.one(dx)
}

pub(super) fn expand(step: &mut Step) -> Derivatives {
    let (x, dy) = (step.input(0)?, step.dy()?);
    let shape = step.emit.shape(x);
    let dx = step.emit.sum_to(dy, &shape)?;
    step.one(dx)
}

/// One axis at a time, so that ranks stay small.
pub(super) fn tile(repeats: &[usize], step: &mut Step) -> Derivatives {
    let (x, mut dx) = (step.input(0)?, step.dy()?);
    let shape = step.emit.shape(x);
    if repeats.contains(&0) {
        let dx = step.emit.zeros(step.emit.dtype(x), &shape)?;
        return step.one(dx);
    }
    for (axis, &repeat) in repeats.iter().enumerate() {
        if repeat == 1 {
            continue;
        }
        let now = step.emit.shape(dx);
        let before: usize = now[..axis].iter().product();
        let after: usize = now[axis + 1..].iter().product();
        let split = [before, repeat, shape[axis], after];
        let parts = step.emit.reshape(dx, &split)?;
        let sum = step.emit.reduce(Reduce::Sum, parts, &[1], false)?;
        let mut back = now;
        back[axis] = shape[axis];
        dx = step.emit.reshape(sum, &back)?;
    }
    step.one(dx)
}

pub(super) fn pad(mode: PadMode, pads: &[(isize, isize)], step: &mut Step) -> Derivatives {
    if step.wants(1) {
        return Err(step.fail("the derivative of its fill value is not known".into()));
    }
    let (x, mut dx) = (step.input(0)?, step.dy()?);
    let shape = step.emit.shape(x);
    if mode == PadMode::Constant {
        let pads: Vec<_> = pads
            .iter()
            .map(|&(before, after)| (-before, -after))
            .collect();
        let dx = step.emit.op(Op::Pad { mode, pads }, &[dx])?;
        return step.one(dx);
    }
    for (axis, &(before, after)) in pads.iter().enumerate() {
        if (before, after) == (0, 0) {
            continue;
        }
        if before < 0 || after < 0 {
            return Err(step.fail("its derivative with negative pads is not known".into()));
        }
        let size = shape[axis] as isize;
        let sources: Vec<i64> = (-before..size + after)
            .map(|at| source(mode, at, size) as i64)
            .collect();
        let sources = step.emit.indices(&[sources.len()], &sources);
        dx = scatter_axis(step.emit, dx, sources, axis, shape[axis])?;
    }
    step.one(dx)
}

/// The element that padding repeats at a place.
fn source(mode: PadMode, at: isize, size: isize) -> isize {
    match mode {
        PadMode::Wrap => at.rem_euclid(size),
        PadMode::Reflect if size > 1 => {
            let period = 2 * (size - 1);
            let at = at.rem_euclid(period);
            at.min(period - at)
        }
        _ => at.clamp(0, size - 1),
    }
}

pub(super) fn depth_to_space(block: usize, column_row_depth: bool, step: &mut Step) -> Derivatives {
    let (x, dy) = (step.input(0)?, step.dy()?);
    let dx = step.emit.op(Op::SpaceToDepth { block }, &[dy])?;
    if !column_row_depth {
        return step.one(dx);
    }
    // SpaceToDepth puts the block's place before the channel, this mode behind it.
    let shape = step.emit.shape(x);
    let [n, c, h, w] = shape[..] else {
        return Err(step.fail("its input has not four axes".into()));
    };
    let square = block * block;
    let parts = step.emit.reshape(dx, &[n, square, c / square, h * w])?;
    let parts = step.emit.transpose(parts, &[0, 2, 1, 3])?;
    let dx = step.emit.reshape(parts, &shape)?;
    step.one(dx)
}

pub(super) fn space_to_depth(block: usize, step: &mut Step) -> Derivatives {
    let dy = step.dy()?;
    let op = Op::DepthToSpace {
        block,
        column_row_depth: false,
    };
    let dx = step.emit.op(op, &[dy])?;
    step.one(dx)
}

/// Operators that do with the derivative what they do with the data: they are their own inverse, or keep elements in place.
pub(super) fn itself(step: &mut Step) -> Derivatives {
    let dy = step.dy()?;
    let mut inputs = vec![dy];
    for index in 1..step.node.inputs.len() {
        inputs.push(step.input(index)?);
    }
    let dx = step.emit.op(step.node.op.clone(), &inputs)?;
    step.one(dx)
}
