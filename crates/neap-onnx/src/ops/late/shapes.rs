//! Shapes from computed sizes, and of operands of late sizes.

use super::{Lowered, axis_of, bounded, is_known, is_of_data, one, shape_of, target};
use crate::error::OnnxError;
use crate::late::Axis;
use crate::node::Ctx;
use neap_ir::late::LateOp;
use neap_ir::op::{PadMode, Softmax};
use neap_ir::{Op, ValueId};

pub(super) fn reshape(c: &mut Ctx) -> Lowered {
    let (x, Some(shape)) = (c.input(0)?, c.optional(1)) else {
        return Ok(None);
    };
    if !c.builder.is_late(x) && (is_known(c, shape)? || !is_of_data(c, shape)?) {
        return Ok(None);
    }
    let Some(range) = target(c, shape)? else {
        return Ok(None);
    };
    let allow_zero = c.flag("allowzero", false)?;
    let from = c.builder.axes(x);
    let mut axes = Vec::new();
    let mut open = None;
    for index in 0..range.len() {
        axes.push(match range.known(index) {
            Some(-1) if open.is_none() => {
                open = Some(index);
                Axis::known(1)
            }
            Some(0) if !allow_zero => *from
                .get(index)
                .ok_or_else(|| c.bad(format!("there is no dimension {index} to copy")))?,
            _ => axis_of(c, &range, index)?,
        });
    }
    if let Some(index) = open {
        axes[index] = remaining(c, &from, &axes, index)?;
    }
    let dtype = c.dtype(x);
    one(c, LateOp::Reshape { allow_zero }, &[x, shape], dtype, axes)
}

/// The axis that takes what the others leave. Late axes that both shapes have cancel out.
fn remaining(c: &mut Ctx, from: &[Axis], to: &[Axis], open: usize) -> Result<Axis, OnnxError> {
    let mut rest: Vec<Axis> = from.to_vec();
    let mut known = 1usize;
    for (_, axis) in to.iter().enumerate().filter(|(i, _)| *i != open) {
        let same = |a: &Axis| a.symbol.is_some() && a.symbol == axis.symbol;
        match (rest.iter().position(same), axis.symbol) {
            (Some(at), _) => drop(rest.remove(at)),
            (None, None) => known = known.saturating_mul(axis.most.max(1)),
            // It has one element at least, or there are none at all.
            (None, Some(_)) => {}
        }
    }
    let late: Vec<Axis> = rest
        .iter()
        .copied()
        .filter(|a| a.symbol.is_some())
        .collect();
    let cancelled = to.iter().filter(|a| a.symbol.is_some()).count() == from.len() - rest.len();
    let most = bounded(c, &rest)? / known;
    Ok(match late[..] {
        [] if cancelled => Axis::known(most),
        [axis]
            if cancelled
                && axis.most == most
                && bounded(c, &rest)? == axis.most.saturating_mul(known) =>
        {
            axis
        }
        _ => c.builder.late.fresh(most),
    })
}

pub(super) fn flatten(c: &mut Ctx) -> Lowered {
    let x = c.input(0)?;
    if !c.builder.is_late(x) {
        return Ok(None);
    }
    let axes = c.builder.axes(x);
    let axis = match c.int("axis", 1)? {
        axis if axis == axes.len() as i64 => axes.len(),
        axis => c.axis(axis, axes.len())?,
    };
    flattened(c, x, axis)
}

fn flattened(c: &mut Ctx, x: ValueId, axis: usize) -> Lowered {
    let axes = c.builder.axes(x);
    let mut given = Vec::new();
    for part in [&axes[..axis], &axes[axis..]] {
        let most = bounded(c, part)?;
        let late: Vec<&Axis> = part.iter().filter(|a| a.symbol.is_some()).collect();
        given.push(match late[..] {
            [] => Axis::known(most),
            [axis] if axis.most == most => *axis,
            _ => c.builder.late.fresh(most),
        });
    }
    let dtype = c.dtype(x);
    one(c, LateOp::Flatten { axis }, &[x], dtype, given)
}

/// `Softmax` and its kin before opset 13: over all axes from one on, as if they were one.
pub(super) fn flat_softmax(c: &mut Ctx, kind: Softmax) -> Lowered {
    let x = c.input(0)?;
    let axes = c.builder.axes(x);
    if !c.builder.is_late(x) || c.version >= 13 {
        return Ok(None);
    }
    let axis = match c.int("axis", 1)? {
        axis if axis == axes.len() as i64 => axes.len(),
        axis => c.axis(axis, axes.len())?,
    };
    if axis + 1 == axes.len() {
        return Ok(None);
    }
    let only = |c: &Ctx, given: Option<Vec<Option<ValueId>>>| {
        let first = given.and_then(|given| given.into_iter().flatten().next());
        first.ok_or_else(|| c.bad("it has no output"))
    };
    let shape = shape_of(c, x, 0..axes.len())?;
    let shape = only(c, shape)?;
    let flat = flattened(c, x, axis)?;
    let flat = only(c, flat)?;
    let result = c.emit(Op::Softmax { axis: 1, kind }, &[flat])?;
    let dtype = c.dtype(x);
    let op = LateOp::Reshape { allow_zero: true };
    one(c, op, &[result, shape], dtype, axes)
}

pub(super) fn squeeze(c: &mut Ctx) -> Lowered {
    let x = c.input(0)?;
    if !c.builder.is_late(x) {
        return Ok(None);
    }
    let axes = c.builder.axes(x);
    let Some(gone) = c.ints_or_input("axes", 1, 13)? else {
        return Err(c.unsupported(
            "taking away axes that are not named, of sizes known only when running,",
        ));
    };
    let gone = c.axes(&gone, axes.len())?;
    if let Some(&axis) = gone
        .iter()
        .find(|&&a| axes[a].symbol.is_none() && axes[a].most != 1)
    {
        return Err(c.bad(format!("axis {axis} has size {}, not 1", axes[axis].most)));
    }
    let kept = axes.iter().enumerate().filter(|(i, _)| !gone.contains(i));
    let kept = kept.map(|(_, &axis)| axis).collect();
    let dtype = c.dtype(x);
    one(c, LateOp::Squeeze { axes: gone }, &[x], dtype, kept)
}

pub(super) fn unsqueeze(c: &mut Ctx) -> Lowered {
    let x = c.input(0)?;
    if !c.builder.is_late(x) {
        return Ok(None);
    }
    let from = c.builder.axes(x);
    let new = c
        .ints_or_input("axes", 1, 13)?
        .ok_or_else(|| c.bad("its axes are missing"))?;
    let rank = from.len() + new.len();
    let new = c.axes(&new, rank)?;
    let mut rest = from.into_iter();
    let axis = |i: usize| match new.contains(&i) {
        true => Axis::known(1),
        false => rest.next().unwrap_or(Axis::known(1)),
    };
    let given = (0..rank).map(axis).collect();
    let dtype = c.dtype(x);
    one(c, LateOp::Unsqueeze { axes: new }, &[x], dtype, given)
}

pub(super) fn expand(c: &mut Ctx) -> Lowered {
    let (x, shape) = (c.input(0)?, c.input(1)?);
    if !c.builder.is_late(x) && (is_known(c, shape)? || !is_of_data(c, shape)?) {
        return Ok(None);
    }
    let Some(range) = target(c, shape)? else {
        return Ok(None);
    };
    let from = c.builder.axes(x);
    let rank = from.len().max(range.len());
    let mut axes = Vec::new();
    for i in 0..rank {
        let own = (i + from.len()).checked_sub(rank).map(|i| from[i]);
        let asked = match (i + range.len()).checked_sub(rank) {
            Some(i) => Some(axis_of(c, &range, i)?),
            None => None,
        };
        axes.push(match (own, asked) {
            (Some(axis), None) | (None, Some(axis)) => axis,
            (Some(a), Some(b)) if a == b => a,
            (Some(one), Some(other)) | (Some(other), Some(one)) if one == Axis::known(1) => other,
            (Some(a), Some(b)) if a.symbol.is_none() && b.symbol.is_none() => {
                return Err(c.bad(format!("size {} does not broadcast to {}", a.most, b.most)));
            }
            // The late one is 1, or equal.
            (Some(a), Some(b)) if a.symbol.is_none() || b.symbol.is_none() => {
                Axis::known(if a.symbol.is_none() { a.most } else { b.most })
            }
            (Some(a), Some(b)) => c.builder.late.fresh(a.most.max(b.most)),
            (None, None) => Axis::known(1),
        });
    }
    let dtype = c.dtype(x);
    one(c, LateOp::Expand, &[x, shape], dtype, axes)
}

pub(super) fn tile(c: &mut Ctx) -> Lowered {
    let (x, repeats) = (c.input(0)?, c.input(1)?);
    if !c.builder.is_late(x) && (is_known(c, repeats)? || !is_of_data(c, repeats)?) {
        return Ok(None);
    }
    let Some(range) = target(c, repeats)? else {
        return Ok(None);
    };
    let mut axes = c.builder.axes(x);
    if axes.len() != range.len() {
        return Err(c.bad("it has repeats for other axes"));
    }
    for (i, axis) in axes.iter_mut().enumerate() {
        let times = axis_of(c, &range, i)?;
        *axis = match (*axis, times) {
            (own, times) if times == Axis::known(1) => own,
            (own, times) if own == Axis::known(1) => times,
            (own, times) => {
                let most = own.most.checked_mul(times.most);
                let most = most.ok_or_else(|| c.bad("it may be impossibly large"))?;
                match own.symbol.or(times.symbol) {
                    None => Axis::known(most),
                    Some(_) => c.builder.late.fresh(most),
                }
            }
        };
    }
    let dtype = c.dtype(x);
    one(c, LateOp::Tile, &[x, repeats], dtype, axes)
}

pub(super) fn pad(c: &mut Ctx) -> Lowered {
    let x = c.input(0)?;
    let pads = match (c.version < 11, c.ints("pads")?) {
        (true, Some(pads)) => c.constant(neap_ir::Literal::from_i64(&[pads.len()], &pads)),
        (true, None) => return Ok(None),
        (false, _) => c.input(1)?,
    };
    if !c.builder.is_late(x) && (is_known(c, pads)? || !is_of_data(c, pads)?) {
        return Ok(None);
    }
    let Some(range) = target(c, pads)? else {
        return Ok(None);
    };
    let mode = match c.string("mode", "constant")? {
        "constant" => PadMode::Constant,
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        _ => return Err(c.unsupported("this mode")),
    };
    let from = c.builder.axes(x);
    let axes: Vec<usize> = match c.optional(3) {
        Some(axes) => {
            let axes = c.known_i64(axes, "its axes")?;
            let axes = axes.iter().map(|&a| c.axis(a, from.len()));
            axes.collect::<Result<_, _>>()?
        }
        None => (0..from.len()).collect(),
    };
    if range.len() != 2 * axes.len() {
        return Err(c.bad("it has pads for other axes"));
    }
    let mut given = from;
    for (i, &axis) in axes.iter().enumerate() {
        let ends = [i, i + axes.len()];
        let more: i64 = ends
            .iter()
            .map(|&at| range.high[at])
            .fold(0, i64::saturating_add);
        let most = (given[axis].most as i64).saturating_add(more).max(0);
        let most = c.checked_size("a size", most)?;
        let is_known = ends.iter().all(|&at| range.known(at).is_some());
        given[axis] = match (is_known, given[axis].symbol) {
            (true, None) => Axis::known(most),
            (true, Some(_)) if more == 0 && ends.iter().all(|&at| range.high[at] == 0) => {
                given[axis]
            }
            _ => c.builder.late.fresh(most),
        };
    }
    let fill = match c.version < 11 {
        true => {
            let value = c.float("value", 0.0)?;
            Some(c.constant(crate::node::scalar(c.dtype(x), value.into())))
        }
        false => c.optional(2),
    };
    let mut inputs = vec![x, pads];
    if let Some(fill) = fill.filter(|_| mode == PadMode::Constant) {
        if c.ty(fill).elements() != 1 {
            return Err(c.bad("its fill value must have one element"));
        }
        inputs.push(c.reshape(fill, &[])?);
    }
    let dtype = c.dtype(x);
    one(c, LateOp::Pad { mode, axes }, &inputs, dtype, given)
}
