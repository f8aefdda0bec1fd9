//! Layers with panel weights.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::window::{over, spatial};
use crate::{Context, OpError, PanelSlice, TensorMut, integer};
use neap_ir::op::Activation;
use neap_ir::panel::{
    ConvForm, Epilogue, PanelConv, PanelDepthwise, PanelElement, PanelFormat, PanelLinear,
    PanelScales,
};
use neap_ir::{DType, Layout};
use neap_kernels::conv::{self, ConvShape, conv_blocked, conv_first_layer, conv_narrow_groups};
use neap_kernels::depthwise::{Depthwise, depthwise};
use neap_kernels::epilogue::{self, Residual};
use neap_kernels::integer::{rounded_linear, rounded_scratch_bytes, takes_blocks};
use neap_kernels::linear::{LinearShape, linear};
use neap_kernels::panel::{Bits, BlockFormat, Format, Panels};

pub(crate) fn panel_conv(
    layer: &PanelConv,
    panels: Option<PanelSlice>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    if layer.epilogue.integers.is_some() {
        return integer::panel_conv(layer, panels, args, ctx);
    }
    let (x, y) = (args.input(0)?, args.output(0)?);
    let plain = layer.form == ConvForm::FirstLayer;
    args.require(
        y.layout == Layout::Blocked && (x.layout == Layout::Plain) == plain,
        "operands have the wrong layout",
    )?;
    let shape = conv_shape(layer, x.shape(), y.shape());
    let (panels, weights) = weights(args, panels)?;
    let residual = residual(args, &layer.epilogue, &y)?;
    // SAFETY: the output does not overlap the input; the residual is read through it when it lies
    // there.
    let out = unsafe { y.f32s_mut() };
    let (isa, par, input) = (ctx.isa, ctx.par, x.f32s());
    match layer.form {
        ConvForm::Blocked => conv_blocked(isa, par, &shape, panels, weights, input, out, residual),
        ConvForm::NarrowGroups => {
            conv_narrow_groups(isa, par, &shape, panels, weights, input, out, residual)
        }
        ConvForm::FirstLayer => {
            let floats = conv::conv_first_layer_scratch_bytes(&shape, par.workers()).div_ceil(4);
            let scratch = Scratch::new(args.op, ctx.workspace).take(floats)?;
            conv_first_layer(
                isa, par, &shape, panels, weights, input, out, residual, scratch,
            )
        }
    }
    .named(args.op)
}

pub(crate) fn conv_workspace_bytes(
    layer: &PanelConv,
    x: &[usize],
    y: &[usize],
    workers: usize,
) -> usize {
    match layer.form {
        _ if layer.epilogue.integers.is_some() => {
            let shape = conv_shape(layer, x, y);
            integer::conv_workspace_bytes(conv_form(layer), &shape, workers)
        }
        ConvForm::FirstLayer => {
            let shape = conv_shape(layer, x, y);
            let bytes = conv::conv_first_layer_scratch_bytes(&shape, workers);
            scratch_bytes::<f32>(bytes.div_ceil(4))
        }
        _ => 0,
    }
}

pub(crate) fn conv_supported(layer: &PanelConv, x: &[usize], y: &[usize]) -> bool {
    let (form, shape) = (conv_form(layer), conv_shape(layer, x, y));
    match layer.epilogue.integers {
        Some(_) => integer::conv_supported(form, &shape),
        None => conv::supports(form, &shape),
    }
}

pub(crate) fn conv_form(layer: &PanelConv) -> conv::ConvForm {
    match layer.form {
        ConvForm::Blocked => conv::ConvForm::Blocked,
        ConvForm::FirstLayer => conv::ConvForm::FirstLayer,
        ConvForm::NarrowGroups => conv::ConvForm::NarrowGroups,
    }
}

pub(crate) fn conv_shape(layer: &PanelConv, x: &[usize], y: &[usize]) -> ConvShape {
    ConvShape {
        batch: x[0],
        c_in: layer.c_in,
        c_out: layer.c_out,
        groups: layer.groups,
        window: over(&layer.window, spatial(x), spatial(y)),
    }
}

pub(crate) fn depthwise_shape(layer: &PanelDepthwise, x: &[usize], y: &[usize]) -> Depthwise {
    Depthwise {
        batch: x[0],
        channels: layer.channels,
        window: over(&layer.window, spatial(x), spatial(y)),
    }
}

pub(crate) fn panel_depthwise(
    layer: &PanelDepthwise,
    panels: Option<PanelSlice>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    if layer.epilogue.integers.is_some() {
        return integer::panel_depthwise(layer, panels, args, ctx);
    }
    let (x, y) = (args.input(0)?, args.output(0)?);
    args.require(
        x.layout == Layout::Blocked && y.layout == Layout::Blocked,
        "operands have the wrong layout",
    )?;
    let shape = depthwise_shape(layer, x.shape(), y.shape());
    let (panels, weights) = weights(args, panels)?;
    let residual = residual(args, &layer.epilogue, &y)?;
    // SAFETY: as in `panel_conv`.
    let out = unsafe { y.f32s_mut() };
    depthwise(
        ctx.isa,
        ctx.par,
        &shape,
        panels,
        weights,
        x.f32s(),
        out,
        residual,
    )
    .named(args.op)
}

pub(crate) fn panel_linear(
    layer: &PanelLinear,
    panels: Option<PanelSlice>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    if layer.epilogue.integers.is_some() {
        return integer::panel_linear(layer, panels, args, ctx);
    }
    let (x, y) = (args.input(0)?, args.output(0)?);
    args.require(
        x.layout == Layout::Plain && y.layout == Layout::Plain,
        "operands have the wrong layout",
    )?;
    let rows: usize = x.shape().iter().rev().skip(1).product();
    let shape = LinearShape::dense(rows, layer.k, layer.n);
    let (panels, weights) = weights(args, panels)?;
    let residual = residual(args, &layer.epilogue, &y)?;
    // SAFETY: as in `panel_conv`.
    let out = unsafe { y.f32s_mut() };
    if let Some(len) = rounded_blocks(layer)
        && matches!(weights.format(), Format::Blocks(blocks) if blocks.len == len)
    {
        let bytes = rounded_scratch_bytes(&shape, len, ctx.par.workers());
        let scratch = Scratch::new(args.op, ctx.workspace).take(bytes)?;
        return rounded_linear(
            ctx.isa,
            ctx.par,
            &shape,
            panels,
            weights,
            x.f32s(),
            out,
            residual,
            scratch,
        )
        .named(args.op);
    }
    linear(
        ctx.isa,
        ctx.par,
        &shape,
        panels,
        weights,
        x.f32s(),
        out,
        residual,
    )
    .named(args.op)
}

/// k of the blocks in which rows are rounded, where panels are in such blocks.
pub(crate) fn rounded_blocks(layer: &PanelLinear) -> Option<usize> {
    layer.rounds.filter(|&len| takes_blocks(len))
}

pub(crate) fn linear_workspace_bytes(layer: &PanelLinear, x: &[usize], workers: usize) -> usize {
    if layer.epilogue.integers.is_some() {
        return integer::linear_workspace_bytes(layer, x, workers);
    }
    let Some(len) = rounded_blocks(layer) else {
        return 0;
    };
    let rows = x.iter().rev().skip(1).product();
    let shape = LinearShape::dense(rows, layer.k, layer.n);
    scratch_bytes::<u8>(rounded_scratch_bytes(&shape, len, workers))
}

/// A call's panel range, and those panels as packed.
pub(crate) fn weights<'a>(
    args: &Args,
    panels: Option<PanelSlice<'a>>,
) -> Result<(std::ops::Range<usize>, Panels<'a>), OpError> {
    let Some(panels) = panels else {
        return args.fail("weights are missing");
    };
    let packed = stored(args.op, panels.format, panels.bytes)?;
    Ok((panels.range, packed))
}

/// Panels as packed, as kernels take them.
pub(crate) fn stored<'a>(
    op: &'static str,
    format: PanelFormat,
    bytes: &'a [u8],
) -> Result<Panels<'a>, OpError> {
    use PanelElement::{BF16, Coded, F16, F32, I4, I8};
    let format = match (format.element, format.scales) {
        (F32, PanelScales::None) => Format::F32,
        (Coded { others }, PanelScales::None) => Format::Coded { others },
        (F16, PanelScales::None) => Format::F16,
        (F16, PanelScales::PerChannel) => Format::F16Scaled,
        (BF16, PanelScales::None) => Format::Bf16,
        (BF16, PanelScales::PerChannel) => Format::Bf16Scaled,
        (I8, PanelScales::PerChannelWithZero) => Format::I8,
        (I4 | I8, PanelScales::Blocks { len, half }) => Format::Blocks(BlockFormat {
            bits: if format.element == I4 {
                Bits::Four
            } else {
                Bits::Eight
            },
            has_half_scales: half,
            len: len.into(),
        }),
        _ => return Err(OpError::operand(op, "weights are in no known format")),
    };
    Panels::new(format, bytes).named(op)
}

pub(crate) fn residual<'a>(
    args: &Args<'_, 'a>,
    epilogue: &Epilogue,
    y: &TensorMut,
) -> Result<epilogue::Epilogue<'a>, OpError> {
    let residual = if epilogue.residual {
        let residual = args.input(1)?;
        let fits = residual.layout == y.layout && residual.dtype() == DType::F32;
        args.require(fits, "the residual has the wrong layout")?;
        if y.is_at(&residual) {
            Residual::InPlace
        } else {
            Residual::Separate(residual.f32s())
        }
    } else {
        Residual::None
    };
    Ok(epilogue::Epilogue {
        activation: activation(epilogue.activation),
        residual,
    })
}

pub(crate) fn activation(activation: Activation) -> epilogue::Activation {
    use epilogue::Activation as Kernel;
    match activation {
        Activation::None => Kernel::None,
        Activation::Relu => Kernel::Relu,
        Activation::Clip { low, high } => Kernel::Clip { low, high },
        Activation::LeakyRelu { alpha } => Kernel::LeakyRelu { alpha },
        Activation::Sigmoid => Kernel::Sigmoid,
        Activation::Silu => Kernel::Silu,
        Activation::Gelu => Kernel::Gelu,
        Activation::GeluTanh => Kernel::GeluTanh,
        Activation::HardSigmoid { alpha, beta } => Kernel::HardSigmoid { alpha, beta },
        Activation::HardSwish => Kernel::HardSwish,
        Activation::Requantize {
            scale,
            zero,
            low,
            high,
            nan,
        } => Kernel::Requantize {
            scale,
            zero,
            low,
            high,
            nan,
        },
        Activation::Tanh => Kernel::Tanh,
    }
}
