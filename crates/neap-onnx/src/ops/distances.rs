//! Windows and distances, as products and slices of what is there: CDist, UnfoldTensor, ExpandDims.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::op::{Binary, Reduce, Unary};
use neap_ir::{DType, Literal, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "CDist" => one(pair_distances(c)),
        "UnfoldTensor" => one(unfold(c)),
        "ExpandDims" => one(expand_dims(c)),
        _ => return None,
    })
}

/// Squared distances of each row of one matrix from each row of another, or their roots.
fn pair_distances(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (a, b) = (c.input(0)?, c.input(1)?);
    let takes_root = match c.string("metric", "sqeuclidean")? {
        "sqeuclidean" => false,
        "euclidean" => true,
        _ => return Err(c.unsupported("another metric than euclidean or sqeuclidean")),
    };
    if c.rank(a) != 2 || c.rank(b) != 2 {
        return Err(c.bad("its operands are no matrices"));
    }
    let dtype = c.dtype(a);
    let squared = squared_distances(c, a, b)?;
    let y = match takes_root {
        true => c.unary(Unary::Sqrt, squared)?,
        false => squared,
    };
    c.cast(y, dtype)
}

/// `|a|² - 2ab + |b|²` of rows, as float64, in which close rows keep their small distance.
pub(super) fn squared_distances(c: &mut Ctx, a: ValueId, b: ValueId) -> Result<ValueId, OnnxError> {
    let (a, b) = (c.cast(a, DType::F64)?, c.cast(b, DType::F64)?);
    let of_rows = |c: &mut Ctx, x: ValueId, keep_dims: bool| {
        let op = Op::Reduce {
            kind: Reduce::SumSquare,
            axes: vec![1],
            keep_dims,
        };
        c.emit(op, &[x])
    };
    let (of_a, of_b) = (of_rows(c, a, true)?, of_rows(c, b, false)?);
    let product = Op::Gemm {
        alpha: -2.0,
        beta: 1.0,
        trans_a: false,
        trans_b: true,
    };
    let crossed = c.emit(product, &[a, b])?;
    let sum = c.binary(Binary::Add, crossed, of_a)?;
    let sum = c.binary(Binary::Add, sum, of_b)?;
    let least = Op::Clip {
        low: Some(0.0),
        high: None,
    };
    c.emit(least, &[sum])
}

/// All windows of an axis, each along a new last axis.
fn unfold(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let shape = c.shape_of_rank(x, 1)?;
    let axis = c.axis(c.int("dim", -1)?, shape.len())?;
    let (size, step) = (c.size("size", 0)?, c.size("step", 1)?);
    let room = shape[axis]
        .checked_sub(size)
        .filter(|_| size > 0 && step > 0);
    let room = room.ok_or_else(|| c.bad("its windows do not fit its input"))?;
    let windows = room / step + 1;
    let places = (0..windows).flat_map(|w| (0..size).map(move |i| (w * step + i) as i64));
    let places: Vec<i64> = places.collect();
    let places = c.constant(Literal::from_i64(&[windows, size], &places));
    let picked = c.emit(Op::Gather { axis }, &[x, places])?;
    // The window's own axis goes last.
    let mut perm: Vec<usize> = (0..=shape.len()).filter(|&a| a != axis + 1).collect();
    perm.push(axis + 1);
    c.emit(Op::Transpose { perm }, &[picked])
}

fn expand_dims(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let mut shape = c.shape(x);
    let axis = c.known_scalar(1, "its axis")?;
    let axis = axis.ok_or_else(|| c.bad("its axis is missing"))?;
    shape.insert(c.axis(axis, shape.len() + 1)?, 1);
    c.reshape(x, &shape)
}
