//! Convolutions and matrix products.

use crate::error::OnnxError;
use crate::late::Axis;
use crate::node::{Ctx, Outputs, one};
use neap_ir::late::LateOp;
use neap_ir::op::Window;
use neap_ir::{Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "Conv" => one(conv(c)),
        "ConvTranspose" => one(conv_transpose(c)),
        "MatMul" => one(matmul(c)),
        "Gemm" => one(gemm(c)),
        "Einsum" => one(einsum(c)),
        _ => return None,
    })
}

/// `auto_pad`, or explicit pads.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Padding {
    Explicit,
    Valid,
    SameUpper,
    SameLower,
}

pub(super) fn padding(c: &Ctx) -> Result<Padding, OnnxError> {
    Ok(match c.string("auto_pad", "NOTSET")? {
        "NOTSET" | "" => Padding::Explicit,
        "VALID" => Padding::Valid,
        "SAME_UPPER" => Padding::SameUpper,
        "SAME_LOWER" => Padding::SameLower,
        _ => return Err(c.bad("attribute 'auto_pad' is unknown")),
    })
}

/// Kernel, strides, dilations and pads as given; `auto_pad` is still to be applied.
pub(super) fn window(c: &Ctx, kernel: &[usize]) -> Result<Window, OnnxError> {
    let axes = kernel.len();
    let list = |name: &str, default: usize, len: usize| {
        let values = c.sizes(name)?.unwrap_or_else(|| vec![default; len]);
        if values.len() != len {
            return Err(c.bad(format!(
                "attribute '{name}' has {} entries, not {len}",
                values.len()
            )));
        }
        // Larger makes no sense, and sums must not overflow.
        if values.iter().any(|&v| v > 1 << 30) {
            return Err(c.bad(format!("attribute '{name}' is out of range")));
        }
        Ok(values)
    };
    let strides = list("strides", 1, axes)?;
    let dilations = list("dilations", 1, axes)?;
    let pads = match padding(c)? {
        Padding::Explicit => list("pads", 0, 2 * axes)?,
        _ => vec![0; 2 * axes],
    };
    if kernel
        .iter()
        .chain(&strides)
        .chain(&dilations)
        .any(|&v| v == 0 || v > 1 << 30)
    {
        return Err(c.bad("a kernel size, stride or dilation is zero or too large"));
    }
    Ok(Window {
        kernel: kernel.to_vec(),
        strides,
        dilations,
        pads_begin: pads[..axes].to_vec(),
        pads_end: pads[axes..].to_vec(),
    })
}

/// Reach of the dilated kernel on one axis.
pub(super) fn extent(window: &Window, axis: usize) -> usize {
    (window.kernel[axis] - 1)
        .saturating_mul(window.dilations[axis])
        .saturating_add(1)
}

/// Pads that make `output = ceil(input / stride)`.
pub(super) fn apply_same(window: &mut Window, spatial: &[usize], upper: bool) {
    for (axis, &size) in spatial.iter().enumerate() {
        let out = size.div_ceil(window.strides[axis]);
        let reach = out
            .saturating_sub(1)
            .saturating_mul(window.strides[axis])
            .saturating_add(extent(window, axis));
        let total = reach.saturating_sub(size);
        let small = total / 2;
        let (begin, end) = if upper {
            (small, total - small)
        } else {
            (total - small, small)
        };
        window.pads_begin[axis] = begin;
        window.pads_end[axis] = end;
    }
}

/// Spatial sizes of x, and the kernel's sizes, which the attribute may repeat.
pub(super) fn kernel_of(
    c: &Ctx,
    x: ValueId,
    w: ValueId,
) -> Result<(Vec<usize>, Vec<usize>), OnnxError> {
    let shape = c.shape_of_rank(x, 3)?;
    let weights = c.shape_of_rank(w, 3)?;
    if weights.len() != shape.len() {
        return Err(c.bad(format!(
            "its input has shape {shape:?}, but its weights {weights:?}"
        )));
    }
    let kernel = weights[2..].to_vec();
    match c.sizes("kernel_shape")? {
        Some(given) if given != kernel => Err(c.bad(format!(
            "attribute 'kernel_shape' is {given:?}, but the weights are {weights:?}"
        ))),
        _ => Ok((shape[2..].to_vec(), kernel)),
    }
}

fn conv(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, w) = (c.input(0)?, c.input(1)?);
    let (spatial, kernel) = kernel_of(c, x, w)?;
    let mut window = window(c, &kernel)?;
    let is_late = c.builder.axes(x)[2..].iter().any(|a| a.symbol.is_some());
    match padding(c)? {
        Padding::SameUpper | Padding::SameLower if is_late => {
            return Err(c.unsupported("auto_pad for a size that is known only when running"));
        }
        Padding::SameUpper => apply_same(&mut window, &spatial, true),
        Padding::SameLower => apply_same(&mut window, &spatial, false),
        Padding::Explicit | Padding::Valid => {}
    }
    let groups = c.size("group", 1)?;
    let mut inputs = vec![Some(x), Some(w)];
    inputs.extend(c.optional(2).map(Some));
    c.emit_optional(Op::Conv(window, groups), &inputs)
}

fn conv_transpose(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, w) = (c.input(0)?, c.input(1)?);
    let (spatial, kernel) = kernel_of(c, x, w)?;
    let mut window = window(c, &kernel)?;
    let axes = spatial.len();
    let extra = c.sizes("output_padding")?.unwrap_or_else(|| vec![0; axes]);
    let output_shape = c.sizes("output_shape")?;
    // The attribute may also name batch and channels.
    let asked = output_shape.map(|s| s[s.len().saturating_sub(axes)..].to_vec());
    if extra.len() != axes || asked.as_ref().is_some_and(|s| s.len() != axes) {
        return Err(c.bad("output_padding or output_shape has the wrong length"));
    }
    let padding = padding(c)?;
    let mut output_spatial = Vec::with_capacity(axes);
    for axis in 0..axes {
        // One stride less than there are places, also where there are none.
        let full = spatial[axis]
            .checked_mul(window.strides[axis])
            .and_then(|n| n.checked_add(extra[axis]))
            .and_then(|n| n.checked_add(extent(&window, axis)))
            .filter(|&n| n < 1 << 40)
            .ok_or_else(|| c.bad("its output is impossibly large"))?
            .checked_sub(window.strides[axis])
            .ok_or_else(|| c.bad("its stride is larger than its output"))?;
        let same = matches!(padding, Padding::SameUpper | Padding::SameLower);
        let wish = match &asked {
            Some(sizes) => Some(sizes[axis]),
            // A kernel smaller than its stride reaches less far. onnxruntime does not pad for the rest.
            None if same => Some(full.min(spatial[axis].saturating_mul(window.strides[axis]))),
            None => None,
        };
        output_spatial.push(match wish {
            Some(out) => {
                let total = full.saturating_sub(out);
                let small = total / 2;
                let (begin, end) = if padding == Padding::SameUpper {
                    (small, total - small)
                } else {
                    (total - small, small)
                };
                window.pads_begin[axis] = begin;
                window.pads_end[axis] = end;
                out
            }
            None => full
                .checked_sub(window.pads_begin[axis] + window.pads_end[axis])
                .ok_or_else(|| c.bad("its pads are larger than its output"))?,
        });
    }
    let groups = c.size("group", 1)?;
    let mut inputs = vec![Some(x), Some(w)];
    inputs.extend(c.optional(2).map(Some));
    let mut of_x = c.builder.axes(x);
    if of_x[1..].iter().all(|axis| axis.symbol.is_none()) {
        let op = Op::ConvTranspose {
            window,
            groups,
            output_spatial,
        };
        return c.emit_optional(op, &inputs);
    }
    if asked.is_some() || padding != Padding::Explicit || of_x[1].symbol.is_some() {
        return Err(c.unsupported("a size that is known only when running"));
    }
    of_x[1] = Axis::known(c.shape(w)[1].saturating_mul(groups));
    for (axis, &most) in of_x[2..].iter_mut().zip(&output_spatial) {
        *axis = match axis.symbol {
            None => Axis::known(most),
            Some(_) => c.builder.late.fresh(most),
        };
    }
    let op = LateOp::ConvTranspose {
        window,
        groups,
        extra,
        output_spatial,
    };
    let dtype = c.dtype(x);
    c.emit_late(op, &inputs, dtype, of_x)
}

fn matmul(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = [c.input(0)?, c.input(1)?];
    c.emit(Op::MatMul, &inputs)
}

fn gemm(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let op = Op::Gemm {
        alpha: c.float("alpha", 1.0)?,
        beta: c.float("beta", 1.0)?,
        trans_a: c.flag("transA", false)?,
        trans_b: c.flag("transB", false)?,
    };
    let mut inputs = vec![Some(c.input(0)?), Some(c.input(1)?)];
    inputs.extend(c.optional(2).map(Some));
    c.emit_optional(op, &inputs)
}

fn einsum(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = c.variadic()?;
    let equation = c.string("equation", "")?.to_string();
    c.emit(Op::Einsum { equation }, &inputs)
}
