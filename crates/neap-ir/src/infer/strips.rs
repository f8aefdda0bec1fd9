//! Operators on strips.

use super::{Inferred, Operands};
use crate::op::SpaceNorm;
use crate::strips::{PlacePool, ResizeStrip, Rows};
use crate::tensor::LANES;
use crate::{DType, TensorType};

pub(super) fn rows(rows: &Rows, o: &Operands) -> Inferred<TensorType> {
    some_rows(rows, 0, o)
}

/// Rows of the strips that the operands from `from` on are.
fn some_rows(rows: &Rows, from: usize, o: &Operands) -> Inferred<TensorType> {
    let first = o.get(from)?;
    o.require_axis(rows.axis, first.shape.len())?;
    let mut joined = 0usize;
    for i in from..o.inputs.len() {
        let strip = o.get(i)?;
        o.same_dtype(first, strip)?;
        let others = |ty: &TensorType| {
            let mut shape = ty.shape.clone();
            if let Some(own) = shape.get_mut(rows.axis) {
                *own = 0;
            }
            shape
        };
        o.require(
            others(first) == others(strip),
            "strips differ beside their rows",
        )?;
        joined = joined.saturating_add(strip.shape[rows.axis]);
    }
    let end = rows.start.checked_add(rows.len);
    o.require(
        end.is_some_and(|end| end <= joined),
        "rows lie outside the strips",
    )?;
    let mut ty = first.clone();
    ty.shape[rows.axis] = rows.len;
    Ok(ty)
}

pub(super) fn put(of: &Rows, o: &Operands) -> Inferred<TensorType> {
    let strip = o.get(0)?;
    o.require_axis(of.axis, strip.shape.len())?;
    let end = of.start.checked_add(strip.shape[of.axis]);
    let fits = end.is_some_and(|end| end <= of.len);
    o.require(fits, "its rows lie outside the whole")?;
    let mut whole = strip.clone();
    whole.shape[of.axis] = of.len;
    o.check_size(&whole.shape)?;
    let before = o.opt(1).is_none_or(|before| *before == whole);
    o.require(before, "takes the whole that it gives")?;
    Ok(whole)
}

pub(super) fn moments(o: &Operands) -> Inferred<TensorType> {
    let x = image(0, o)?;
    let ty = by_block(o, DType::F64, x.shape[0], x.shape[1], 2)?;
    if let Some(before) = o.opt(1) {
        o.require(*before == ty, "takes moments of as many channels")?;
    }
    Ok(ty)
}

pub(super) fn factors(norm: &SpaceNorm, o: &Operands) -> Inferred<TensorType> {
    let (moments, scale, bias) = (o.get(0)?, o.get(1)?, o.get(2)?);
    let &[images, ..] = &moments.shape[..] else {
        return o.fail("takes moments");
    };
    let &[channels] = &scale.shape[..] else {
        return o.fail("takes a scale for each channel");
    };
    let fits = scale.dtype == DType::F32 && bias == scale;
    o.require(fits, "takes float32 scales and biases")?;
    o.require(
        norm.groups > 0 && channels.is_multiple_of(norm.groups),
        "groups do not divide the channels",
    )?;
    let wanted = by_block(o, DType::F64, images, channels, 2)?;
    o.require(*moments == wanted, "takes moments of as many channels")?;
    by_block(o, DType::F32, images, channels, 3)
}

pub(super) fn normalise(rows: &Rows, o: &Operands) -> Inferred<TensorType> {
    let (factors, x) = (o.get(0)?, image(1, o)?);
    let wanted = by_block(o, DType::F32, x.shape[0], x.shape[1], 3)?;
    o.require(*factors == wanted, "takes factors of as many channels")?;
    o.require(rows.axis == 2, "takes rows of images")?;
    some_rows(rows, 1, o)
}

pub(super) fn fold(o: &Operands) -> Inferred<TensorType> {
    let x = image(0, o)?;
    let ty = by_block(o, DType::F64, x.shape[0], x.shape[1], 1)?;
    if let Some(before) = o.opt(1) {
        o.require(*before == ty, "takes results for as many channels")?;
    }
    Ok(ty)
}

pub(super) fn pool(of: &PlacePool, o: &Operands) -> Inferred<TensorType> {
    let &[images, channels, ref space @ ..] = &of.shape[..] else {
        return o.fail("gives images");
    };
    let fits = (1..=2).contains(&space.len()) && space.iter().all(|&size| size == 1);
    o.require(fits, "gives one place for each channel")?;
    let wanted = by_block(o, DType::F64, images, channels, 1)?;
    o.require(*o.get(0)? == wanted, "takes results for as many channels")?;
    Ok(TensorType::new(DType::F32, &of.shape))
}

pub(super) fn resize(of: &ResizeStrip, o: &Operands) -> Inferred<TensorType> {
    let x = o.get(0)?;
    let ResizeStrip { attrs, axis, .. } = of;
    o.require_axis(*axis, x.shape.len())?;
    let rows = x.shape[*axis];
    let last = of.input_start.checked_add(rows);
    o.require(
        rows > 0 && last.is_some_and(|last| last <= of.input_rows),
        "its input lies outside the whole",
    )?;
    let made = of.start.checked_add(of.len);
    let fits = attrs.output_shape.get(*axis).copied() >= made;
    o.require(made.is_some() && fits, "its rows lie outside the whole")?;
    let mut shape = super::movement::resize(o, attrs)?;
    shape[*axis] = of.len;
    Ok(TensorType::new(x.dtype, &shape))
}

/// Images whose places are gone through.
fn image<'a>(index: usize, o: &Operands<'a>) -> Inferred<&'a TensorType> {
    let x = o.get(index)?;
    let fits = x.dtype == DType::F32 && (3..=4).contains(&x.shape.len());
    o.require(fits, "takes float32 images")?;
    Ok(x)
}

fn by_block(
    o: &Operands,
    dtype: DType,
    images: usize,
    channels: usize,
    each: usize,
) -> Inferred<TensorType> {
    let shape = [images, channels.div_ceil(LANES), each, LANES];
    o.check_size(&shape)?;
    Ok(TensorType::new(dtype, &shape))
}
