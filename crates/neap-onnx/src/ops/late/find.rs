//! Results whose sizes the data decide.

use super::{Lowered, bounded, is_known, one};
use crate::late::Axis;
use crate::node::{Ctx, Outputs};
use neap_ir::DType;
use neap_ir::late::LateOp;

pub(super) fn non_zero(c: &mut Ctx) -> Lowered {
    let x = c.input(0)?;
    if is_known(c, x)? {
        return Ok(None);
    }
    let axes = c.builder.axes(x);
    let most = bounded(c, &axes)?;
    let count = c.builder.late.fresh(most);
    let rank = Axis::known(axes.len().max(1));
    one(c, LateOp::NonZero, &[x], DType::I64, vec![rank, count])
}

pub(super) fn compress(c: &mut Ctx) -> Lowered {
    let (x, condition) = (c.input(0)?, c.input(1)?);
    if is_known(c, condition)? && !c.builder.is_late(x) {
        return Ok(None);
    }
    let (axes, axis) = match c.optional_int("axis")? {
        Some(axis) => (c.builder.axes(x), Some(c.axis(axis, c.rank(x))?)),
        None => {
            let most = bounded(c, &c.builder.axes(x))?;
            (vec![Axis::known(most)], None)
        }
    };
    let mut given = axes;
    let along = &mut given[axis.unwrap_or(0)];
    let most = along.most.min(c.ty(condition).elements());
    *along = c.builder.late.fresh(most);
    let dtype = c.dtype(x);
    one(c, LateOp::Compress { axis }, &[x, condition], dtype, given)
}

pub(super) fn unique(c: &mut Ctx) -> Lowered {
    let sorted = c.flag("sorted", true)?;
    let axis = c.optional_int("axis")?;
    let wanted = [0, 1, 2, 3].map(|i| c.wants(i));
    unique_of(c, axis, sorted, wanted).map(Some)
}

/// onnxruntime's own: in the order of the input, with no places of the first of each.
pub(in crate::ops) fn unique_in_order(c: &mut Ctx) -> Outputs {
    let wanted = [c.wants(0), false, c.wants(1), c.wants(2)];
    let mut outputs = unique_of(c, None, false, wanted)?;
    if outputs.len() > 1 {
        outputs.remove(1);
    }
    Ok(outputs)
}

fn unique_of(c: &mut Ctx, axis: Option<i64>, sorted: bool, wanted: [bool; 4]) -> Outputs {
    let x = c.input(0)?;
    let axes = c.builder.axes(x);
    let (axis, mut given) = match axis {
        Some(axis) => (Some(c.axis(axis, axes.len())?), axes.clone()),
        None => (None, vec![Axis::known(bounded(c, &axes)?)]),
    };
    let along = axis.unwrap_or(0);
    let parts = match axis {
        Some(axis) => axes[axis],
        None if axes.iter().all(|a| a.symbol.is_none()) => given[0],
        None => c.builder.late.fresh(given[0].most),
    };
    let count = c.builder.late.fresh(parts.most);
    given[along] = count;
    let results = vec![
        (c.dtype(x), given),
        (DType::I64, vec![count]),
        (DType::I64, vec![parts]),
        (DType::I64, vec![count]),
    ];
    let at = c.at();
    let op = LateOp::Unique { axis, sorted };
    c.builder.emit_late(at, op, &[Some(x)], results, &wanted)
}

pub(super) fn non_max_suppression(c: &mut Ctx) -> Lowered {
    let (boxes, scores) = (c.input(0)?, c.input(1)?);
    let (b, s) = (c.builder.axes(boxes), c.builder.axes(scores));
    if b.len() != 3 || s.len() != 3 {
        return Err(c.bad("its boxes or scores have not three axes"));
    }
    let mut each = b[1].most.min(s[2].most);
    match c.optional(2) {
        None => each = 0,
        Some(most) => {
            if let Some(range) = c.builder.range(most)?.filter(|r| r.len() == 1) {
                each = each.min(usize::try_from(range.high[0]).unwrap_or(0));
            }
        }
    }
    let most = [s[0].most, s[1].most, each]
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d));
    let most = most.ok_or_else(|| c.bad("it may be impossibly large"))?;
    let count = c.builder.late.fresh(most);
    let op = LateOp::NonMaxSuppression {
        center_point_box: c.flag("center_point_box", false)?,
    };
    let inputs = c.inputs.clone();
    let results = vec![(DType::I64, vec![count, Axis::known(3)])];
    let at = c.at();
    c.builder
        .emit_late(at, op, &inputs, results, &[true])
        .map(Some)
}
