//! Sliding windows: convolution and pooling output sizes, automatic padding.

use super::compute::panel_inputs;
use super::{Inferred, Operands};
use crate::op::{Pool, Window};
use crate::panel::{ConvForm, Epilogue};
use crate::{DType, Op, TensorType};

/// ONNX's `auto_pad`, except `NOTSET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoPad {
    Valid,
    /// Output is `ceil(input / stride)`; the odd pad goes to the end.
    SameUpper,
    /// The same, with the odd pad at the beginning.
    SameLower,
}

/// Explicit padding of one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pads {
    pub begin: usize,
    pub end: usize,
}

/// Output size of a convolution along one axis; `None` where the kernel does not fit the padded
/// input or numbers overflow.
pub fn conv_output_size(
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pads: Pads,
) -> Option<usize> {
    let room = room(input, kernel, dilation, pads)?;
    (room.checked_div(stride)?).checked_add(1)
}

/// Output size of a pooling along one axis. With `ceil_mode`, a last window may reach beyond the padded input by less
/// than its stride, and so may the only one; one that would start beyond the input and its leading pad is left out.
pub fn pool_output_size(
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pads: Pads,
    ceil_mode: bool,
) -> Option<usize> {
    if !ceil_mode {
        return conv_output_size(input, kernel, stride, dilation, pads);
    }
    let padded = input.checked_add(pads.begin)?.checked_add(pads.end)?;
    let room =
        (padded.checked_add(stride.checked_sub(1)?)?).checked_sub(extent(kernel, dilation)?)?;
    let windows = (room / stride).checked_add(1)?;
    let last_start = (windows - 1).checked_mul(stride)?;
    let beyond = last_start >= input.checked_add(pads.begin)?;
    Some(windows - usize::from(beyond))
}

/// Output size of a transposed convolution along one axis.
pub fn conv_transpose_output_size(
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pads: Pads,
    output_padding: usize,
) -> Option<usize> {
    let spread = input.checked_sub(1)?.checked_mul(stride)?;
    spread
        .checked_add(extent(kernel, dilation)?)?
        .checked_add(output_padding)?
        .checked_sub(pads.begin.checked_add(pads.end)?)
}

/// Explicit pads of one axis of a convolution or pooling.
pub fn resolve_pads(
    auto_pad: AutoPad,
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
) -> Option<Pads> {
    if auto_pad == AutoPad::Valid {
        return Some(Pads::default());
    }
    if stride == 0 {
        return None;
    }
    let output = input.div_ceil(stride);
    let needed = output
        .saturating_sub(1)
        .checked_mul(stride)?
        .checked_add(extent(kernel, dilation)?)?;
    Some(shared(auto_pad, needed.saturating_sub(input)))
}

/// Explicit pads of one axis of a transposed convolution whose output size is asked for
/// (`output_shape`, or `input * stride` for the SAME modes). With `auto_pad` absent ONNX puts the
/// odd pad at the end as `SAME_UPPER` does not: see the operator's specification.
pub fn resolve_transposed_pads(
    auto_pad: Option<AutoPad>,
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    output_padding: usize,
    output: usize,
) -> Option<Pads> {
    let full = input
        .checked_sub(1)?
        .checked_mul(stride)?
        .checked_add(output_padding)?
        .checked_add(extent(kernel, dilation)?)?;
    let total = full.saturating_sub(output);
    Some(match auto_pad {
        Some(AutoPad::SameUpper) => shared(AutoPad::SameUpper, total),
        _ => shared(AutoPad::SameLower, total),
    })
}

fn shared(auto_pad: AutoPad, total: usize) -> Pads {
    let small = total / 2;
    match auto_pad {
        AutoPad::SameLower => Pads {
            begin: total - small,
            end: small,
        },
        _ => Pads {
            begin: small,
            end: total - small,
        },
    }
}

/// Elements from the first to the last tap.
fn extent(kernel: usize, dilation: usize) -> Option<usize> {
    kernel.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)
}

/// How far the window can move.
fn room(input: usize, kernel: usize, dilation: usize, pads: Pads) -> Option<usize> {
    input
        .checked_add(pads.begin)?
        .checked_add(pads.end)?
        .checked_sub(extent(kernel, dilation)?)
}

pub(super) fn infer(op: &Op, o: &Operands) -> Inferred<Vec<TensorType>> {
    match op {
        Op::Conv(window, groups) => conv(o, window, *groups),
        Op::ConvTranspose {
            window,
            groups,
            output_spatial,
        } => conv_transpose(o, window, *groups, output_spatial),
        Op::Pool {
            kind,
            window,
            output_spatial,
        } => pool(o, *kind, window, output_spatial),
        Op::GlobalPool(_) => {
            let x = o.get(0)?;
            o.require(x.shape.len() >= 2, "takes an input of rank 2 or more")?;
            let mut shape = x.shape.clone();
            shape[2..].fill(1);
            o.require_float(x)?;
            Ok(vec![TensorType {
                dtype: x.dtype,
                shape,
            }])
        }
        Op::PanelConv(conv) => {
            let fits = conv.groups > 0
                && conv.c_in.is_multiple_of(conv.groups)
                && conv.c_out.is_multiple_of(conv.groups);
            o.require(fits, "groups do not divide the channels")?;
            let takes_steps = conv.form != ConvForm::NarrowGroups;
            o.require(
                takes_steps || conv.epilogue.integers.is_none(),
                "is not computed in integers",
            )?;
            panel(o, &conv.window, conv.c_in, conv.c_out, &conv.epilogue)
        }
        Op::PanelDepthwise(depthwise) => panel(
            o,
            &depthwise.window,
            depthwise.channels,
            depthwise.channels,
            &depthwise.epilogue,
        ),
        _ => o.fail("is no windowed operator"),
    }
}

pub(super) fn check_window(o: &Operands, window: &Window, spatial: usize) -> Inferred<()> {
    let lengths = [
        window.kernel.len(),
        window.strides.len(),
        window.dilations.len(),
        window.pads_begin.len(),
        window.pads_end.len(),
    ];
    if lengths.iter().any(|&n| n != spatial) {
        return o.fail(format!(
            "window attributes do not have the input's {spatial} spatial axes"
        ));
    }
    let all = [&window.kernel, &window.strides, &window.dilations];
    o.require(
        all.iter().all(|v| v.iter().all(|&x| x > 0)),
        "kernel, strides and dilations must be positive",
    )
}

fn conv_sizes(o: &Operands, window: &Window, spatial: &[usize]) -> Inferred<Vec<usize>> {
    check_window(o, window, spatial.len())?;
    (0..spatial.len())
        .map(|i| {
            let pads = Pads {
                begin: window.pads_begin[i],
                end: window.pads_end[i],
            };
            match conv_output_size(
                spatial[i],
                window.kernel[i],
                window.strides[i],
                window.dilations[i],
                pads,
            ) {
                Some(size) => Ok(size),
                None => o.fail(format!(
                    "kernel {:?} does not fit input {spatial:?} with its padding",
                    window.kernel
                )),
            }
        })
        .collect()
}

fn conv(o: &Operands, window: &Window, groups: usize) -> Inferred<Vec<TensorType>> {
    let (x, w) = (o.get(0)?, o.get(1)?);
    o.require_float(x)?;
    o.same_dtype(x, w)?;
    o.require(
        x.shape.len() >= 3 && w.shape.len() == x.shape.len(),
        "takes input and weight of the same rank, 3 or more",
    )?;
    let fits = groups > 0
        && o.mul(w.shape[1], groups)? == x.shape[1]
        && w.shape[0].is_multiple_of(groups)
        && w.shape[2..] == window.kernel[..];
    if !fits {
        return o.fail(format!(
            "weight {:?} does not fit input {:?}, {groups} groups and kernel {:?}",
            w.shape, x.shape, window.kernel
        ));
    }
    o.require_like(2, &w.shape[..1])?;
    let mut shape = vec![x.shape[0], w.shape[0]];
    shape.extend(conv_sizes(o, window, &x.shape[2..])?);
    Ok(vec![TensorType {
        dtype: x.dtype,
        shape,
    }])
}

fn conv_transpose(
    o: &Operands,
    window: &Window,
    groups: usize,
    output_spatial: &[usize],
) -> Inferred<Vec<TensorType>> {
    let (x, w) = (o.get(0)?, o.get(1)?);
    o.require_float(x)?;
    o.same_dtype(x, w)?;
    o.require(
        x.shape.len() >= 3 && w.shape.len() == x.shape.len(),
        "takes input and weight of the same rank, 3 or more",
    )?;
    check_window(o, window, x.shape.len() - 2)?;
    let fits = groups > 0
        && w.shape[0] == x.shape[1]
        && x.shape[1].is_multiple_of(groups)
        && w.shape[2..] == window.kernel[..]
        && output_spatial.len() == x.shape.len() - 2;
    if !fits {
        return o.fail(format!(
            "weight {:?} does not fit input {:?}, {groups} groups and kernel {:?}",
            w.shape, x.shape, window.kernel
        ));
    }
    for i in 0..output_spatial.len() {
        // Positions are computed as `input * stride + tap * dilation`, which must not overflow.
        let reach = conv_transpose_output_size(
            x.shape[i + 2].max(1),
            window.kernel[i],
            window.strides[i],
            window.dilations[i],
            Pads::default(),
            window.pads_begin[i],
        );
        o.require(
            reach.is_some_and(|r| r <= isize::MAX as usize / 2),
            "sizes overflow",
        )?;
    }
    let channels = o.mul(w.shape[1], groups)?;
    o.require_like(2, &[channels])?;
    let mut shape = vec![x.shape[0], channels];
    shape.extend(output_spatial);
    Ok(vec![TensorType {
        dtype: x.dtype,
        shape,
    }])
}

fn pool(
    o: &Operands,
    kind: Pool,
    window: &Window,
    output_spatial: &[usize],
) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require(x.shape.len() >= 3, "takes an input of rank 3 or more")?;
    let spatial = &x.shape[2..];
    check_window(o, window, spatial.len())?;
    match kind {
        Pool::Max { .. } => o.require(x.dtype != DType::Bool, "takes numbers")?,
        _ => o.require_float(x)?,
    }
    if let Pool::Lp { p } = kind {
        o.require(p > 0, "needs p above 0")?;
    }
    o.require(
        output_spatial.len() == spatial.len(),
        "output size has the wrong rank",
    )?;
    for i in 0..spatial.len() {
        let pads = Pads {
            begin: window.pads_begin[i],
            end: window.pads_end[i],
        };
        // Padding may only be as large as a window, or some windows would see nothing.
        let size = pool_output_size(
            spatial[i],
            window.kernel[i],
            window.strides[i],
            window.dilations[i],
            pads,
            true,
        );
        if size.is_none_or(|size| output_spatial[i] > size.max(1)) {
            return o.fail(format!(
                "kernel {:?} does not give {output_spatial:?} from {spatial:?} with its padding",
                window.kernel
            ));
        }
    }
    let mut shape = x.shape[..2].to_vec();
    shape.extend(output_spatial);
    let mut types = vec![TensorType {
        dtype: x.dtype,
        shape,
    }];
    if o.outputs == 2 && matches!(kind, Pool::Max { .. }) {
        types.push(TensorType::new(DType::I64, &types[0].shape));
    }
    Ok(types)
}

fn panel(
    o: &Operands,
    window: &Window,
    c_in: usize,
    c_out: usize,
    epilogue: &Epilogue,
) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    panel_inputs(o, epilogue)?;
    o.require(
        (3..=4).contains(&x.shape.len()) && x.shape[1] == c_in,
        "takes an input of rank 3 or 4 with its channels",
    )?;
    let spatial = &x.shape[2..];
    let sizes = if spatial.len() == 1 && window.kernel.len() == 2 {
        // A 1-D convolution seen as height 1.
        let sizes = conv_sizes(o, window, &[1, spatial[0]])?;
        o.require(sizes[0] == 1, "a rank 3 input has height 1")?;
        sizes[1..].to_vec()
    } else {
        conv_sizes(o, window, spatial)?
    };
    let mut shape = vec![x.shape[0], c_out];
    shape.extend(sizes);
    let ty = TensorType::new(epilogue.output_type(), &shape);
    if epilogue.residual {
        o.get(1)?;
        o.require_shape(1, &ty.shape)?;
    }
    Ok(vec![ty])
}
