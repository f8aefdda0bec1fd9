//! Resize and Upsample with the output shape worked out.

use crate::error::OnnxError;
use crate::late::Axis;
use crate::node::{Ctx, Outputs, one};
use neap_ir::late::LateOp;
use neap_ir::op::{CoordinateTransform, NearestMode, ResizeAttrs, ResizeMode};
use neap_ir::{Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "Upsample" => one(upsample(c)),
        "Resize" => one(resize(c)),
        _ => return None,
    })
}

fn mode(c: &Ctx) -> Result<ResizeMode, OnnxError> {
    Ok(match c.string("mode", "nearest")? {
        "nearest" => ResizeMode::Nearest,
        "linear" | "bilinear" => ResizeMode::Linear,
        "cubic" => ResizeMode::Cubic,
        _ => return Err(c.bad("attribute 'mode' is unknown")),
    })
}

/// Sizes by their scales.
fn scaled(c: &Ctx, shape: &[usize], scales: &[f32]) -> Result<Vec<usize>, OnnxError> {
    if scales.len() != shape.len() {
        return Err(c.bad(format!(
            "{} scales are given for {} axes",
            scales.len(),
            shape.len()
        )));
    }
    let sizes = shape.iter().zip(scales).map(|(&size, &scale)| {
        let out = ResizeAttrs::scaled_size(size, scale);
        if scale > 0.0 && (0.0..1e12).contains(&out) {
            Ok(out as usize)
        } else {
            Err(c.bad(format!("scale {scale} is out of range")))
        }
    });
    sizes.collect()
}

fn upsample(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let scales = if c.version < 9 {
        c.floats("scales")?
            .ok_or_else(|| c.bad("attribute 'scales' is missing"))?
    } else {
        let scales = c.input(1)?;
        c.known_f32(scales, "its scales")?
    };
    asymmetric(c, x, scales, NearestMode::Floor)
}

/// Resize of opset 10. Its nearest element is the next lower one where it enlarges and the next
/// higher one where it shrinks; an axis at a time these are two ordinary resizes.
fn first_resize(c: &mut Ctx, x: ValueId, scales: Vec<f32>) -> Result<ValueId, OnnxError> {
    let larger: Vec<f32> = scales.iter().map(|s| s.max(1.0)).collect();
    let smaller: Vec<f32> = scales.iter().map(|s| s.min(1.0)).collect();
    let shrinks = smaller.iter().any(|&s| s < 1.0);
    if mode(c)? != ResizeMode::Nearest || !shrinks {
        return asymmetric(c, x, scales, NearestMode::Floor);
    }
    let enlarged = if larger.iter().any(|&s| s > 1.0) {
        asymmetric(c, x, larger, NearestMode::Floor)?
    } else {
        x
    };
    asymmetric(c, enlarged, smaller, NearestMode::Ceil)
}

/// Positions are `output / scale`.
fn asymmetric(
    c: &mut Ctx,
    x: ValueId,
    scales: Vec<f32>,
    nearest: NearestMode,
) -> Result<ValueId, OnnxError> {
    let shape = c.shape(x);
    let attrs = ResizeAttrs {
        output_shape: scaled(c, &shape, &scales)?,
        scales,
        mode: mode(c)?,
        coordinates: CoordinateTransform::Asymmetric,
        nearest,
        cubic_a: -0.75,
        exclude_outside: false,
        extrapolation: 0.0,
        antialias: false,
        roi: vec![(0.0, 1.0); shape.len()],
    };
    emit(c, attrs, x)
}

fn resize(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    if c.version < 11 {
        let scales = c.input(1)?;
        let scales = c.known_f32(scales, "its scales")?;
        return first_resize(c, x, scales);
    }
    let shape = c.shape(x);
    let axes: Vec<usize> = match c.ints("axes")? {
        Some(axes) => {
            let axes = axes.iter().map(|&a| c.axis(a, shape.len()));
            axes.collect::<Result<_, _>>()?
        }
        None => (0..shape.len()).collect(),
    };
    let given = |c: &mut Ctx, index: usize| match c.optional(index) {
        Some(v) if c.ty(v).elements() > 0 => Some(v),
        _ => None,
    };
    let (scales, sizes) = (given(c, 2), given(c, 3));
    let (output_shape, scales) = match (scales, sizes) {
        (Some(scales), None) => {
            let values = c.known_f32(scales, "its scales")?;
            if values.len() != axes.len() {
                return Err(c.bad("its scales do not fit its axes"));
            }
            let mut scales = vec![1.0; shape.len()];
            for (&axis, &value) in axes.iter().zip(&values) {
                scales[axis] = value;
            }
            (scaled(c, &shape, &scales)?, scales)
        }
        (None, Some(sizes)) => {
            let sizes = c.known_i64(sizes, "its sizes")?;
            sized(c, &shape, &axes, &sizes)?
        }
        _ => return Err(c.bad("exactly one of scales and sizes must be given")),
    };
    let coordinates = coordinates(c)?;
    let mut roi = vec![(0.0, 1.0); shape.len()];
    if coordinates == CoordinateTransform::TfCropAndResize {
        let bounds = c.input(1)?;
        let bounds = c.known_f32(bounds, "its region of interest")?;
        if bounds.len() != 2 * axes.len() {
            return Err(c.bad("its region of interest does not fit its axes"));
        }
        for (i, &axis) in axes.iter().enumerate() {
            roi[axis] = (bounds[i], bounds[i + axes.len()]);
        }
    }
    let nearest = match c.string("nearest_mode", "round_prefer_floor")? {
        "round_prefer_floor" => NearestMode::RoundPreferFloor,
        "round_prefer_ceil" => NearestMode::RoundPreferCeil,
        "floor" => NearestMode::Floor,
        "ceil" => NearestMode::Ceil,
        _ => return Err(c.bad("attribute 'nearest_mode' is unknown")),
    };
    let attrs = ResizeAttrs {
        output_shape,
        scales,
        mode: mode(c)?,
        coordinates,
        nearest,
        cubic_a: c.float("cubic_coeff_a", -0.75)?,
        exclude_outside: c.flag("exclude_outside", false)?,
        extrapolation: c.float("extrapolation_value", 0.0)?,
        antialias: c.flag("antialias", false)?,
        roi,
    };
    if sizes.is_some() && c.builder.is_late(x) {
        return Err(c.unsupported("sizes for an input of a size that is known only when running"));
    }
    emit(c, attrs, x)
}

/// Axes of sizes that are known only when running are scaled then.
fn emit(c: &mut Ctx, attrs: ResizeAttrs, x: ValueId) -> Result<ValueId, OnnxError> {
    if !c.builder.is_late(x) {
        return c.emit(Op::Resize(attrs), &[x]);
    }
    let of_x = c.builder.axes(x).into_iter();
    let scaled = attrs.output_shape.iter().zip(&attrs.scales);
    let axes: Vec<Axis> = (of_x.zip(scaled))
        .map(|(axis, (&most, &scale))| match axis.symbol {
            None => Axis::known(most),
            Some(_) if scale == 1.0 => axis,
            Some(_) => c.builder.late.fresh(most),
        })
        .collect();
    let dtype = c.dtype(x);
    c.emit_late(LateOp::Resize(attrs), &[Some(x)], dtype, axes)
}

/// Output shape and scales from wished sizes, which may be bounds that keep the aspect ratio.
fn sized(
    c: &Ctx,
    shape: &[usize],
    axes: &[usize],
    sizes: &[i64],
) -> Result<(Vec<usize>, Vec<f32>), OnnxError> {
    if sizes.len() != axes.len() {
        return Err(c.bad("its sizes do not fit its axes"));
    }
    let mut output = shape.to_vec();
    let mut scales = vec![1.0; shape.len()];
    // Nothing is read where either is empty.
    let ratio = |axis: usize, size: usize| match (size, shape[axis]) {
        (0, _) | (_, 0) => None,
        (size, own) => Some(size as f32 / own as f32),
    };
    let mut wished = Vec::with_capacity(sizes.len());
    for (&axis, &size) in axes.iter().zip(sizes) {
        wished.push((axis, c.checked_size("a size", size)?));
    }
    let ratios = wished.iter().filter_map(|&(axis, size)| ratio(axis, size));
    let common = match c.string("keep_aspect_ratio_policy", "stretch")? {
        "stretch" => None,
        "not_larger" => ratios.reduce(f32::min),
        "not_smaller" => ratios.reduce(f32::max),
        _ => return Err(c.bad("attribute 'keep_aspect_ratio_policy' is unknown")),
    };
    for (axis, size) in wished {
        match common {
            None => {
                output[axis] = size;
                scales[axis] = ratio(axis, size).unwrap_or(1.0);
            }
            Some(scale) => {
                // Half rounds up.
                output[axis] = (scale * shape[axis] as f32 + 0.5).floor() as usize;
                scales[axis] = scale;
            }
        }
    }
    Ok((output, scales))
}

fn coordinates(c: &Ctx) -> Result<CoordinateTransform, OnnxError> {
    let name = c.string("coordinate_transformation_mode", "half_pixel")?;
    Ok(match name {
        "half_pixel" => CoordinateTransform::HalfPixel,
        "half_pixel_symmetric" => CoordinateTransform::HalfPixelSymmetric,
        "pytorch_half_pixel" => CoordinateTransform::PytorchHalfPixel,
        "align_corners" => CoordinateTransform::AlignCorners,
        "asymmetric" => CoordinateTransform::Asymmetric,
        "tf_half_pixel_for_nn" => CoordinateTransform::TfHalfPixelForNn,
        "tf_crop_and_resize" => CoordinateTransform::TfCropAndResize,
        _ => return Err(c.bad("attribute 'coordinate_transformation_mode' is unknown")),
    })
}
