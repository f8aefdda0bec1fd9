//! As many elements as computed values say.

use super::{Lowered, axis_of, is_known, is_of_data, one, target};
use crate::error::OnnxError;
use crate::late::{Axis, Range};
use crate::node::Ctx;
use neap_ir::late::LateOp;
use neap_ir::{DType, ValueId};

pub(super) fn slice(c: &mut Ctx) -> Lowered {
    let x = c.input(0)?;
    let from = c.builder.axes(x);
    let operands = match c.version < 10 {
        true => {
            let (Some(starts), Some(ends)) = (c.ints("starts")?, c.ints("ends")?) else {
                return Ok(None);
            };
            let literal = |v: &[i64]| neap_ir::Literal::from_i64(&[v.len()], v);
            let (starts, ends) = (literal(&starts), literal(&ends));
            [c.constant(starts), c.constant(ends)]
        }
        false => [c.input(1)?, c.input(2)?],
    };
    let steps = c.optional(4);
    let mut is_late = c.builder.is_late(x);
    for value in operands.into_iter().chain(steps) {
        is_late |= !is_known(c, value)? && is_of_data(c, value)?;
    }
    if !is_late {
        return Ok(None);
    }
    let count = c.ty(operands[0]).elements();
    let axes: Vec<usize> = match c.ints_or_input("axes", 3, 10)? {
        Some(axes) => {
            let axes = axes.iter().map(|&a| c.axis(a, from.len()));
            axes.collect::<Result<_, _>>()?
        }
        None => (0..count).collect(),
    };
    if axes.len() != count || count > from.len() {
        return Err(c.bad("its starts, ends and axes do not match"));
    }
    let ranges = [c.builder.range(operands[0])?, c.builder.range(operands[1])?];
    let steps_range = match steps {
        Some(steps) => c.builder.range(steps)?,
        None => None,
    };
    let mut given = from.clone();
    for (i, &axis) in axes.iter().enumerate() {
        let known = |r: &Option<Range>| r.as_ref().and_then(|r| r.known(i));
        let step = match steps {
            Some(_) => known(&steps_range),
            None => Some(1),
        };
        let own = from[axis];
        given[axis] = match (known(&ranges[0]), known(&ranges[1]), step) {
            (Some(0), Some(end), Some(1)) if end >= own.most as i64 => own,
            (Some(start), Some(end), Some(step)) if own.symbol.is_none() => {
                let part = neap_ir::op::SliceRange::of(start, end, step, own.most as i64);
                Axis::known(part.ok_or_else(|| c.bad("one of its steps is zero"))?.len)
            }
            (start, _, step) => {
                let end = match &ranges[1] {
                    // From the front, and so not more than that many.
                    Some(end) if end.low[i] >= 0 && step == Some(1) => end.high[i],
                    _ => i64::MAX,
                };
                let longest = end.saturating_sub(start.unwrap_or(0).max(0)).max(0);
                let most = usize::try_from(longest).unwrap_or(usize::MAX);
                c.builder.late.fresh(own.most.min(most))
            }
        };
    }
    let mut inputs = vec![x, operands[0], operands[1]];
    inputs.extend(steps);
    let dtype = c.dtype(x);
    one(c, LateOp::Slice { axes }, &inputs, dtype, given)
}

pub(super) fn range(c: &mut Ctx) -> Lowered {
    let operands = [c.input(0)?, c.input(1)?, c.input(2)?];
    let mut is_late = false;
    for value in operands {
        is_late |= !is_known(c, value)? && is_of_data(c, value)?;
    }
    if !is_late {
        return Ok(None);
    }
    let name = c.node.outputs.first().map(String::as_str).unwrap_or("");
    let told = c.builder.late.bounds.get(name).copied();
    let dtype = c.dtype(operands[0]);
    let axis = match (most_places(c, operands)?, told) {
        (Some(axis), None) => axis,
        (Some(axis), Some(most)) if axis.symbol.is_some() || axis.most <= most => axis,
        (_, Some(most)) => Axis::known(most),
        (None, None) => {
            let decides = operands
                .into_iter()
                .max_by_key(|&v| c.builder.roots(v).len());
            return Err(c.unbounded(name, decides.unwrap_or(operands[1])));
        }
    };
    let axis = match axis.symbol {
        Some(_) => axis,
        None => c.builder.late.fresh(axis.most),
    };
    one(c, LateOp::Range, &operands, dtype, vec![axis])
}

/// The most elements of a range, as far as its operands are bounded; with the symbol of its limit, where it counts to that.
fn most_places(
    c: &mut Ctx,
    [start, limit, delta]: [ValueId; 3],
) -> Result<Option<Axis>, OnnxError> {
    if let (Some(start), Some(limit), Some(delta)) = (
        c.builder.range(start)?,
        c.builder.range(limit)?,
        c.builder.range(delta)?,
    ) && let (Some(0), Some(1), Some(symbol)) =
        (start.known(0), delta.known(0), limit.symbols[0])
    {
        let most = c.checked_size("its length", limit.high[0])?;
        return Ok(Some(Axis {
            most,
            symbol: Some(symbol),
        }));
    }
    let is_float = c.dtype(start).is_float();
    let (start, limit) = (c.builder.ends(start)?, c.builder.ends(limit)?);
    let longest = match c.builder.ends(delta)? {
        (low, _) if low > 0.0 => (limit.1 - start.0) / low,
        (_, high) if high < 0.0 => (limit.0 - start.1) / high,
        _ => f64::INFINITY,
    };
    // The quotient of floats is rounded.
    let most = longest.max(0.0).ceil() + f64::from(u8::from(is_float && longest > 0.0));
    let is_bounded = most < f64::from(i32::MAX);
    Ok(is_bounded.then(|| Axis::known(most as usize)))
}

pub(super) fn fill(c: &mut Ctx) -> Lowered {
    let shape = c.input(0)?;
    if is_known(c, shape)? || !is_of_data(c, shape)? {
        return Ok(None);
    }
    let Some(range) = target(c, shape)? else {
        return Ok(None);
    };
    let value = crate::ops::generate::fill_value(c)?;
    let dtype = value.dtype();
    let value = c.constant(value.reshaped(&[]));
    let axes = (0..range.len()).map(|i| axis_of(c, &range, i));
    let axes = axes.collect::<Result<Vec<_>, _>>()?;
    one(c, LateOp::Fill, &[shape, value], dtype, axes)
}

pub(super) fn top_k(c: &mut Ctx) -> Lowered {
    let x = c.input(0)?;
    let k = match (c.version < 10, c.optional_int("k")?) {
        (true, Some(k)) => c.constant(neap_ir::Literal::from_i64(&[1], &[k])),
        (true, None) => return Ok(None),
        (false, _) => c.input(1)?,
    };
    if !c.builder.is_late(x) && (is_known(c, k)? || !is_of_data(c, k)?) {
        return Ok(None);
    }
    let mut axes = c.builder.axes(x);
    let axis = c.axis(c.int("axis", -1)?, axes.len())?;
    let range = c.builder.range(k)?.filter(|r| r.len() == 1);
    axes[axis] = match range {
        Some(range) if range.known(0).is_some() => axis_of(c, &range, 0)?,
        Some(range) => {
            let most = usize::try_from(range.high[0])
                .unwrap_or(0)
                .min(axes[axis].most);
            match range.symbols[0] {
                Some(symbol) if range.high[0] == most as i64 => Axis {
                    most,
                    symbol: Some(symbol),
                },
                _ => c.builder.late.fresh(most),
            }
        }
        None => c.builder.late.fresh(axes[axis].most),
    };
    let op = LateOp::TopK {
        axis,
        largest: c.flag("largest", true)?,
        sorted: c.flag("sorted", true)?,
    };
    let results = vec![(c.dtype(x), axes.clone()), (DType::I64, axes)];
    let wanted = [c.wants(0), c.wants(1)];
    let at = c.at();
    c.builder
        .emit_late(at, op, &[Some(x), Some(k)], results, &wanted)
        .map(Some)
}

pub(super) fn one_hot(c: &mut Ctx) -> Lowered {
    let (indices, depth, values) = (c.input(0)?, c.input(1)?, c.input(2)?);
    if !c.builder.is_late(indices) && (is_known(c, depth)? || !is_of_data(c, depth)?) {
        return Ok(None);
    }
    let Some(range) = target(c, depth)? else {
        return Ok(None);
    };
    let axis = c.axis(c.int("axis", -1)?, c.rank(indices) + 1)?;
    let indices = match c.dtype(indices).is_float() {
        true => c.cast(indices, DType::I64)?,
        false => indices,
    };
    let mut axes = c.builder.axes(indices);
    axes.insert(axis, axis_of(c, &range, 0)?);
    let dtype = c.dtype(values);
    one(
        c,
        LateOp::OneHot { axis },
        &[indices, depth, values],
        dtype,
        axes,
    )
}
