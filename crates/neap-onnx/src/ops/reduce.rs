//! Reductions, ArgMax, TopK, CumSum, CumProd.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Binary, PadMode, Reduce, Unary};
use neap_ir::{DType, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        // ReduceSum took its axes as an input five opsets before the others.
        "ReduceSum" => one(reduce(c, Reduce::Sum, 13)),
        "ReduceMean" => one(reduce(c, Reduce::Mean, 18)),
        "ReduceMax" => one(reduce(c, Reduce::Max, 18)),
        "ReduceMin" => one(reduce(c, Reduce::Min, 18)),
        "ReduceProd" => one(reduce(c, Reduce::Prod, 18)),
        "ReduceL1" => one(reduce(c, Reduce::L1, 18)),
        "ReduceL2" => one(reduce(c, Reduce::L2, 18)),
        "ReduceLogSum" => one(reduce(c, Reduce::LogSum, 18)),
        "ReduceLogSumExp" => one(reduce(c, Reduce::LogSumExp, 18)),
        "ReduceSumSquare" => one(reduce(c, Reduce::SumSquare, 18)),
        "ArgMax" => one(arg_reduce(c, true)),
        "ArgMin" => one(arg_reduce(c, false)),
        "TopK" => top_k(c),
        "CumSum" => one(cum_sum(c)),
        "CumProd" => one(cum_prod(c)),
        _ => return None,
    })
}

fn reduce(c: &mut Ctx, kind: Reduce, axes_input_since: i64) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let rank = c.rank(x);
    let keep_dims = c.flag("keepdims", true)?;
    let axes = match c.ints_or_input("axes", 1, axes_input_since)? {
        Some(axes) if !axes.is_empty() => c.axes(&axes, rank)?,
        _ if c.flag("noop_with_empty_axes", false)? => return reduce_nothing(c, kind, x),
        _ => (0..rank).collect(),
    };
    let op = Op::Reduce {
        kind,
        axes,
        keep_dims,
    };
    if c.dtype(x) == DType::Bool && matches!(kind, Reduce::Max | Reduce::Min) {
        let x = c.cast(x, DType::U8)?;
        let result = c.emit(op, &[x])?;
        return c.cast(result, DType::Bool);
    }
    c.emit(op, &[x])
}

/// Over no axes each element is reduced by itself.
fn reduce_nothing(c: &mut Ctx, kind: Reduce, x: ValueId) -> Result<ValueId, OnnxError> {
    match kind {
        Reduce::L1 | Reduce::L2 => c.unary(Unary::Abs, x),
        Reduce::SumSquare => c.binary(Binary::Mul, x, x),
        Reduce::LogSum if c.dtype(x).is_float() => c.unary(Unary::Log, x),
        Reduce::LogSum => {
            let op = Op::Reduce {
                kind,
                axes: Vec::new(),
                keep_dims: true,
            };
            c.emit(op, &[x])
        }
        Reduce::Sum
        | Reduce::Mean
        | Reduce::Max
        | Reduce::Min
        | Reduce::Prod
        | Reduce::LogSumExp => Ok(x),
    }
}

fn arg_reduce(c: &mut Ctx, largest: bool) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let op = Op::ArgReduce {
        largest,
        axis: c.axis(c.int("axis", 0)?, c.rank(x))?,
        keep_dims: c.flag("keepdims", true)?,
        select_last: c.flag("select_last_index", false)?,
    };
    c.emit(op, &[x])
}

fn top_k(c: &mut Ctx) -> Outputs {
    let x = c.input(0)?;
    let k = if c.version < 10 {
        c.optional_int("k")?
    } else {
        c.known_scalar(1, "its k")?
    };
    let k = k.ok_or_else(|| c.bad("its k is missing"))?;
    let op = Op::TopK {
        axis: c.axis(c.int("axis", -1)?, c.rank(x))?,
        k: c.checked_size("k", k)?,
        largest: c.flag("largest", true)?,
        sorted: c.flag("sorted", true)?,
    };
    let wanted = [c.wants(0), c.wants(1)];
    c.emit_wanted(op, &[Some(x)], &wanted)
}

/// The axis that the second operand of a cumulative operator names.
fn cumulative_axis(c: &mut Ctx, x: ValueId) -> Result<usize, OnnxError> {
    let axis = c
        .known_scalar(1, "its axis")?
        .ok_or_else(|| c.bad("its axis is missing"))?;
    c.axis(axis, c.rank(x))
}

fn cum_sum(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let op = Op::CumSum {
        axis: cumulative_axis(c, x)?,
        exclusive: c.flag("exclusive", false)?,
        reverse: c.flag("reverse", false)?,
    };
    c.emit(op, &[x])
}

/// By doubling: a place takes up the product that ends just before its own, which is twice as long each time.
fn cum_prod(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let axis = cumulative_axis(c, x)?;
    let reverse = c.flag("reverse", false)?;
    let length = c.shape(x)[axis];
    let one = c.scalar(c.dtype(x), 1.0)?;
    let moved = |c: &mut Ctx, x: ValueId, by: usize| {
        let by = by.min(length) as isize;
        let mut pads = vec![(0, 0); c.rank(x)];
        pads[axis] = if reverse { (-by, by) } else { (by, -by) };
        let mode = PadMode::Constant;
        c.emit(Op::Pad { mode, pads }, &[x, one])
    };
    let mut product = match c.flag("exclusive", false)? {
        true => moved(c, x, 1)?,
        false => x,
    };
    let mut reach = 1;
    while reach < length {
        let before = moved(c, product, reach)?;
        product = c.binary(Binary::Mul, product, before)?;
        reach *= 2;
    }
    Ok(product)
}
