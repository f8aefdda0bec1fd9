//! Operators that move elements without computing: reshapes, transposes, concatenation, padding.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one, scalar};
use neap_ir::op::PadMode;
use neap_ir::{Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "Reshape" => one(reshape(c)),
        "Flatten" => one(flatten(c)),
        "Squeeze" => one(squeeze(c)),
        "Unsqueeze" => one(unsqueeze(c)),
        "Transpose" => one(transpose(c)),
        "Expand" => one(expand(c)),
        "Tile" => one(tile(c)),
        "Concat" => one(concat(c)),
        "Pad" => one(pad(c)),
        "DepthToSpace" => one(depth_to_space(c)),
        "SpaceToDepth" => one(space_to_depth(c)),
        "ReverseSequence" => one(reverse_sequence(c)),
        "Trilu" => one(trilu(c)),
        _ => return None,
    })
}

fn reshape(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let target = match c.optional(1) {
        Some(shape) => c.known_i64(shape, "its shape")?,
        None => c
            .ints("shape")?
            .ok_or_else(|| c.bad("its shape is missing"))?,
    };
    let allow_zero = c.flag("allowzero", false)?;
    let from = c.shape(x);
    let elements: usize = from.iter().product();
    let mut shape = Vec::with_capacity(target.len());
    let mut inferred = None;
    for (i, &size) in target.iter().enumerate() {
        shape.push(match size {
            0 if !allow_zero => *from
                .get(i)
                .ok_or_else(|| c.bad(format!("there is no dimension {i} to copy")))?,
            -1 if inferred.is_none() => {
                inferred = Some(i);
                1
            }
            -1 => return Err(c.bad("its shape has more than one -1")),
            size => c.checked_size("its shape's dimension", size)?,
        });
    }
    let known = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let known = known.ok_or_else(|| c.bad("its shape is impossibly large"))?;
    if let Some(i) = inferred {
        if known == 0 || !elements.is_multiple_of(known) {
            return Err(c.bad(format!("{elements} elements do not fit {target:?}")));
        }
        shape[i] = elements / known;
    } else if known != elements {
        return Err(c.bad(format!("{elements} elements do not fit {target:?}")));
    }
    c.reshape(x, &shape)
}

fn flatten(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let shape = c.shape(x);
    let axis = c.int("axis", 1)?;
    // The axis may also be one past the last.
    let axis = if axis == shape.len() as i64 {
        shape.len()
    } else {
        c.axis(axis, shape.len())?
    };
    let rows = shape[..axis].iter().product();
    let columns = shape[axis..].iter().product();
    c.reshape(x, &[rows, columns])
}

fn squeeze(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let shape = c.shape(x);
    let axes = match c.ints_or_input("axes", 1, 13)? {
        Some(axes) => c.axes(&axes, shape.len())?,
        None => (0..shape.len()).filter(|&i| shape[i] == 1).collect(),
    };
    if let Some(&axis) = axes.iter().find(|&&a| shape[a] != 1) {
        return Err(c.bad(format!("axis {axis} has size {}, not 1", shape[axis])));
    }
    let kept: Vec<usize> = (0..shape.len())
        .filter(|i| !axes.contains(i))
        .map(|i| shape[i])
        .collect();
    c.reshape(x, &kept)
}

fn unsqueeze(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let shape = c.shape(x);
    let axes = c
        .ints_or_input("axes", 1, 13)?
        .ok_or_else(|| c.bad("its axes are missing"))?;
    let rank = shape.len() + axes.len();
    let axes = c.axes(&axes, rank)?;
    let mut rest = shape.iter();
    let result: Vec<usize> = (0..rank)
        .map(|i| match axes.contains(&i) {
            true => 1,
            false => rest.next().copied().unwrap_or(1),
        })
        .collect();
    c.reshape(x, &result)
}

fn transpose(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let rank = c.rank(x);
    let perm = match c.ints("perm")? {
        Some(perm) => {
            let perm: Vec<usize> = perm
                .iter()
                .map(|&p| c.axis(p, rank))
                .collect::<Result<_, _>>()?;
            let all: Vec<i64> = perm.iter().map(|&p| p as i64).collect();
            if c.axes(&all, rank)?.len() != rank {
                return Err(c.bad(format!("perm {perm:?} does not name all {rank} axes")));
            }
            perm
        }
        None => (0..rank).rev().collect(),
    };
    c.emit(Op::Transpose { perm }, &[x])
}

fn expand(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, target) = (c.input(0)?, c.input(1)?);
    let target = c.known_i64(target, "its shape")?;
    let target: Vec<usize> = target
        .into_iter()
        .map(|d| c.checked_size("its shape's dimension", d))
        .collect::<Result<_, _>>()?;
    let from = c.shape(x);
    let rank = from.len().max(target.len());
    let at = |shape: &[usize], i: usize| {
        (i + shape.len())
            .checked_sub(rank)
            .map_or(1, |axis| shape[axis])
    };
    let mut shape = Vec::with_capacity(rank);
    for i in 0..rank {
        shape.push(match (at(&from, i), at(&target, i)) {
            (a, b) if a == b => a,
            (1, b) => b,
            (a, 1) => a,
            _ => return Err(c.bad(format!("{from:?} does not broadcast to {target:?}"))),
        });
    }
    c.expand(x, &shape)
}

fn tile(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, repeats) = (c.input(0)?, c.input(1)?);
    let repeats = c.known_i64(repeats, "its repeats")?;
    let repeats: Vec<usize> = repeats
        .into_iter()
        .map(|r| c.checked_size("its repeats", r))
        .collect::<Result<_, _>>()?;
    c.emit(Op::Tile { repeats }, &[x])
}

fn concat(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = c.variadic()?;
    let rank = c.rank(inputs[0]);
    let axis = c
        .optional_int("axis")?
        .ok_or_else(|| c.bad("attribute 'axis' is missing"))?;
    let axis = c.axis(axis, rank)?;
    let kept = without_empty(c, inputs.clone(), axis);
    // Where a part turns out to be as empty as another, both have their places in the result.
    let is_late = kept.iter().any(|&part| c.builder.is_late(part));
    let counts = |part: &ValueId| !kept.contains(part) && c.shape(*part)[axis] > 0;
    if is_late && inputs.iter().any(counts) {
        return Err(
            c.unsupported("an empty part beside one of a size that is known only when running")
        );
    }
    c.emit(Op::Concat { axis }, &kept)
}

/// Without the parts that are empty and have other sizes than the rest, as a list begins that grows.
pub(super) fn without_empty(c: &Ctx, mut parts: Vec<ValueId>, axis: usize) -> Vec<ValueId> {
    let is_empty = |&part: &ValueId| c.ty(part).elements() == 0;
    let Some(like) = parts.iter().copied().find(|part| !is_empty(part)) else {
        return parts;
    };
    let like = c.shape(like);
    let fits = |shape: Vec<usize>| {
        let pairs = shape.iter().zip(&like).enumerate();
        shape.len() != like.len() || pairs.into_iter().all(|(d, (a, b))| d == axis || a == b)
    };
    parts.retain(|part| !is_empty(part) || fits(c.shape(*part)));
    parts
}

fn pad(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let rank = c.rank(x);
    let mode = match c.string("mode", "constant")? {
        "constant" => PadMode::Constant,
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        _ => return Err(c.unsupported("this mode")),
    };
    let amounts = c
        .ints_or_input("pads", 1, 11)?
        .ok_or_else(|| c.bad("its pads are missing"))?;
    let axes = match c.optional(3) {
        Some(axes) => {
            let axes = c.known_i64(axes, "its axes")?;
            let axes = axes.iter().map(|&a| c.axis(a, rank));
            axes.collect::<Result<Vec<_>, _>>()?
        }
        None => (0..rank).collect(),
    };
    if amounts.len() != 2 * axes.len() {
        return Err(c.bad(format!(
            "{} pads are given for {} axes",
            amounts.len(),
            axes.len()
        )));
    }
    let mut pads = vec![(0isize, 0isize); rank];
    for (i, &axis) in axes.iter().enumerate() {
        let (before, after) = (amounts[i], amounts[i + axes.len()]);
        if before.abs().max(after.abs()) > 1 << 40 {
            return Err(c.bad("its pads are impossibly large"));
        }
        pads[axis] = (before as isize, after as isize);
    }
    let fill = if c.version < 11 {
        let value = c.float("value", 0.0)?;
        (value != 0.0).then(|| c.constant(scalar(c.dtype(x), value.into())))
    } else {
        c.optional(2)
    };
    let fill = match fill {
        Some(fill) if mode == PadMode::Constant => {
            if c.ty(fill).elements() != 1 {
                return Err(c.bad("its fill value must have one element"));
            }
            Some(c.reshape(fill, &[])?)
        }
        _ => None,
    };
    let mut inputs = vec![Some(x)];
    inputs.extend(fill.map(Some));
    c.emit_optional(Op::Pad { mode, pads }, &inputs)
}

fn block_size(c: &Ctx) -> Result<usize, OnnxError> {
    match c.size("blocksize", 0)? {
        0 => Err(c.bad("attribute 'blocksize' is missing")),
        block => Ok(block),
    }
}

fn depth_to_space(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let block = block_size(c)?;
    let column_row_depth = match c.string("mode", "DCR")? {
        "DCR" => false,
        "CRD" => true,
        _ => return Err(c.bad("attribute 'mode' is neither DCR nor CRD")),
    };
    let op = Op::DepthToSpace {
        block,
        column_row_depth,
    };
    c.emit(op, &[x])
}

fn space_to_depth(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let block = block_size(c)?;
    match c.string("mode", "DCR")? {
        "DCR" => c.emit(Op::SpaceToDepth { block }, &[x]),
        "CRD" => space_behind_depth(c, x, block),
        _ => Err(c.bad("attribute 'mode' is neither DCR nor CRD")),
    }
}

/// The places of a block next to each other for each channel. Since opset 28.
fn space_behind_depth(c: &mut Ctx, x: ValueId, block: usize) -> Result<ValueId, OnnxError> {
    let shape = c.shape(x);
    let [batch, channels, height, width] = match shape[..] {
        [n, ch, h, w] if h % block == 0 && w % block == 0 => [n, ch, h / block, w / block],
        _ => {
            let what = format!("blocks of {block} do not fit an input of shape {shape:?}");
            return Err(c.bad(what));
        }
    };
    let x = c.reshape(x, &[batch, channels, height, block, width, block])?;
    let perm = vec![0, 1, 3, 5, 2, 4];
    let x = c.emit(Op::Transpose { perm }, &[x])?;
    c.reshape(x, &[batch, channels * block * block, height, width])
}

fn reverse_sequence(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, lengths) = (c.input(0)?, c.input(1)?);
    let rank = c.rank(x);
    let op = Op::ReverseSequence {
        batch_axis: c.axis(c.int("batch_axis", 1)?, rank)?,
        time_axis: c.axis(c.int("time_axis", 0)?, rank)?,
    };
    c.emit(op, &[x, lengths])
}

fn trilu(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let op = Op::Trilu {
        upper: c.flag("upper", true)?,
        diagonal: c.known_scalar(1, "its diagonal")?.unwrap_or(0),
    };
    c.emit(op, &[x])
}
