//! Rarely exported operators, as others that do the same: AffineGrid, Col2Im, MaxUnpool, optionals that are tensors.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one, scalar};
use neap_ir::op::{PadMode, ScatterReduction, Window};
use neap_ir::{DType, Literal, Op, ValueId};

/// Numbers that are made while reading; more than any real grid or block.
const MAX_MADE: usize = 1 << 22;

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "AffineGrid" => one(affine_grid(c)),
        "Col2Im" => one(col2im(c)),
        "MaxUnpool" => one(max_unpool(c)),
        _ => return None,
    })
}

/// A sampling grid: coordinates of each place of the result, last axis first, through `theta`.
fn affine_grid(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (theta, size) = (c.input(0)?, c.input(1)?);
    let sizes = c.known_i64(size, "its size")?;
    let sizes = sizes.iter().map(|&s| c.checked_size("a size", s));
    let sizes = sizes.collect::<Result<Vec<usize>, _>>()?;
    let align_corners = c.flag("align_corners", false)?;
    let [batch, _, spatial @ ..] = &sizes[..] else {
        return Err(c.bad("its size has fewer than two axes"));
    };
    let axes = spatial.len();
    if !(2..=3).contains(&axes) || c.shape(theta) != [*batch, axes, axes + 1] {
        return Err(c.bad("its theta does not fit its size"));
    }
    if c.dtype(theta) != DType::F32 {
        return Err(c.unsupported("an element type besides float32"));
    }
    let places = spatial.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let places = places
        .filter(|n| n.saturating_mul(axes + 1) <= MAX_MADE)
        .ok_or_else(|| c.unsupported("a grid this large"))?;
    let coordinate = |size: usize, at: usize| match align_corners {
        true => -1.0 + 2.0 * at as f64 / (size.max(2) - 1) as f64,
        false => -1.0 + (2.0 * at as f64 + 1.0) / size as f64,
    };
    let mut grid = Vec::with_capacity(places * (axes + 1));
    for place in 0..places {
        let mut rest = place;
        for &size in spatial.iter().rev() {
            grid.push(coordinate(size, rest % size) as f32);
            rest /= size;
        }
        grid.push(1.0);
    }
    let grid = c.constant(Literal::from_f32(&[places, axes + 1], &grid));
    let perm = vec![0, 2, 1];
    let turned = c.emit(Op::Transpose { perm }, &[theta])?;
    let moved = c.emit(Op::MatMul, &[grid, turned])?;
    let mut shape = vec![*batch];
    shape.extend(spatial);
    shape.push(axes);
    c.reshape(moved, &shape)
}

/// Blocks added up where they overlap: a transposed convolution of which each weight passes one element of a block on.
fn col2im(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let mut sizes = |index: usize, what: &str| {
        let value = c.input(index)?;
        let values = c.known_i64(value, what)?.into_iter();
        let values = values.map(|v| c.checked_size(what, v));
        values.collect::<Result<Vec<usize>, OnnxError>>()
    };
    let (image, block) = (sizes(1, "its image_shape")?, sizes(2, "its block_shape")?);
    let shape = c.shape(x);
    let axes = block.len();
    let taps = block.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let taps = taps.filter(|&n| n > 0).unwrap_or(usize::MAX);
    let &[batch, rows, windows] = &shape[..] else {
        return Err(c.bad("its input has not three axes"));
    };
    if image.len() != axes || axes == 0 || !rows.is_multiple_of(taps) {
        return Err(c.bad(format!("blocks {block:?} do not fit its input {shape:?}")));
    }
    let window: Window = super::conv::window(c, &block)?;
    let mut counts = Vec::new();
    for (axis, &size) in image.iter().enumerate() {
        let padded = size + window.pads_begin[axis] + window.pads_end[axis];
        let steps = padded.checked_sub(super::conv::extent(&window, axis));
        let steps = steps.ok_or_else(|| c.bad("a block is larger than the image"))?;
        counts.push(steps / window.strides[axis] + 1);
    }
    if counts.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) != Some(windows) {
        return Err(c.bad(format!("an image of {image:?} has not {windows} blocks")));
    }
    if rows.saturating_mul(taps) > MAX_MADE {
        return Err(c.unsupported("blocks this large"));
    }
    let mut weights = vec![0.0; rows * taps];
    for row in 0..rows {
        weights[row * taps + row % taps] = 1.0;
    }
    let mut weight_shape = vec![rows, 1];
    weight_shape.extend(&block);
    let weights = c.constant(Literal::from_f32(&weight_shape, &weights));
    let mut given = vec![batch, rows];
    given.extend(counts);
    let x = c.reshape(x, &given)?;
    let op = Op::ConvTranspose {
        window,
        groups: rows / taps,
        output_spatial: image,
    };
    c.emit(op, &[x, weights])
}

/// Each element where the pooling found it; the rest is zero.
fn max_unpool(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, indices) = (c.input(0)?, c.input(1)?);
    let shape = c.shape_of_rank(x, 3)?;
    let kernel = c
        .sizes("kernel_shape")?
        .filter(|k| k.len() == shape.len() - 2)
        .ok_or_else(|| c.bad("its kernel_shape does not fit its input"))?;
    let window = super::conv::window(c, &kernel)?;
    let mut pooled = shape[..2].to_vec();
    for (axis, &size) in shape[2..].iter().enumerate() {
        let reach = size.saturating_sub(1).saturating_mul(window.strides[axis]) + kernel[axis];
        let size = reach.checked_sub(window.pads_begin[axis] + window.pads_end[axis]);
        pooled.push(size.ok_or_else(|| c.bad("its pads are larger than its output"))?);
    }
    let whole = pooled.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let whole = whole.ok_or_else(|| c.bad("its output is impossibly large"))?;
    let count = c.ty(x).elements();
    let zero = scalar(c.dtype(x), 0.0);
    let zeros = c.filled(zero, &[whole])?;
    let (flat, places) = (c.reshape(x, &[count])?, c.reshape(indices, &[count])?);
    let op = Op::ScatterElements {
        axis: 0,
        reduction: ScatterReduction::None,
    };
    let scattered = c.emit(op, &[zeros, places, flat])?;
    let y = c.reshape(scattered, &pooled)?;
    let Some(asked) = c.optional(2) else {
        return Ok(y);
    };
    let asked = c.known_i64(asked, "its output_shape")?;
    if asked.len() != pooled.len() {
        return Err(c.bad("its output_shape has other axes"));
    }
    let more = asked.iter().zip(&pooled).map(|(&a, &p)| {
        let a = c.checked_size("a size", a)?;
        Ok((0, a as isize - p as isize))
    });
    let pads = more.collect::<Result<Vec<(isize, isize)>, OnnxError>>()?;
    let mode = PadMode::Constant;
    c.emit(Op::Pad { mode, pads }, &[y])
}
