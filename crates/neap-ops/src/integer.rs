//! Layers with panel weights that are computed in integers.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::layer::{activation, conv_form, conv_shape, depthwise_shape, weights};
use crate::{Context, OpError, PanelSlice, TensorMut};
use neap_ir::op::Activation;
use neap_ir::panel::{Epilogue, PanelConv, PanelDepthwise, PanelLinear};
use neap_ir::{DType, Layout};
use neap_kernels::conv::{ConvForm, ConvShape};
use neap_kernels::integer::{
    Added, Finish, Results, Rounding, Steps, conv_scratch_bytes, depthwise_scratch_bytes,
    first_layer_scratch_bytes, integer_conv, integer_depthwise, integer_first_layer,
    integer_linear, linear_scratch_bytes, takes_conv, takes_depthwise, takes_first_layer,
};
use neap_kernels::linear::LinearShape;

pub(crate) fn panel_conv(
    layer: &PanelConv,
    panels: Option<PanelSlice>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let form = conv_form(layer);
    let plain = form == ConvForm::FirstLayer;
    args.require(
        y.layout == Layout::Blocked && (x.layout == Layout::Plain) == plain,
        "operands have the wrong layout",
    )?;
    let shape = conv_shape(layer, x.shape(), y.shape());
    let (panels, weights) = weights(args, panels)?;
    let (finish, steps) = (finish(args, &layer.epilogue, &y)?, steps(args)?);
    let bytes = conv_bytes(form, &shape, ctx.par.workers());
    let scratch = Scratch::new(args.op, ctx.workspace).take(bytes)?;
    // SAFETY: the output does not overlap the input; the residual is read through it when it lies there.
    let out = unsafe { results(&y) };
    let (isa, par) = (ctx.isa, ctx.par);
    let run = match plain {
        true => integer_first_layer,
        false => integer_conv,
    };
    run(
        isa,
        par,
        &shape,
        panels,
        weights,
        x.bytes(),
        steps,
        out,
        finish,
        scratch,
    )
    .named(args.op)
}

fn conv_bytes(form: ConvForm, shape: &ConvShape, workers: usize) -> usize {
    match form {
        ConvForm::FirstLayer => first_layer_scratch_bytes(shape, workers),
        ConvForm::Blocked | ConvForm::NarrowGroups => conv_scratch_bytes(shape, workers),
    }
}

pub(crate) fn conv_workspace_bytes(form: ConvForm, shape: &ConvShape, workers: usize) -> usize {
    scratch_bytes::<u8>(conv_bytes(form, shape, workers))
}

pub(crate) fn conv_supported(form: ConvForm, shape: &ConvShape) -> bool {
    match form {
        ConvForm::FirstLayer => takes_first_layer(shape),
        ConvForm::Blocked => takes_conv(shape),
        ConvForm::NarrowGroups => false,
    }
}

pub(crate) fn panel_depthwise(
    layer: &PanelDepthwise,
    panels: Option<PanelSlice>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    args.require(
        x.layout == Layout::Blocked && y.layout == Layout::Blocked,
        "operands have the wrong layout",
    )?;
    let shape = depthwise_shape(layer, x.shape(), y.shape());
    let (panels, weights) = weights(args, panels)?;
    let (finish, steps) = (finish(args, &layer.epilogue, &y)?, steps(args)?);
    let bytes = depthwise_scratch_bytes(&shape, ctx.par.workers());
    let scratch = Scratch::new(args.op, ctx.workspace).take(bytes)?;
    // SAFETY: as in `panel_conv`.
    let out = unsafe { results(&y) };
    let (isa, par) = (ctx.isa, ctx.par);
    integer_depthwise(
        isa,
        par,
        &shape,
        panels,
        weights,
        x.bytes(),
        steps,
        out,
        finish,
        scratch,
    )
    .named(args.op)
}

pub(crate) fn depthwise_workspace_bytes(
    layer: &PanelDepthwise,
    x: &[usize],
    y: &[usize],
    workers: usize,
) -> usize {
    match layer.epilogue.integers {
        Some(_) => {
            let shape = depthwise_shape(layer, x, y);
            scratch_bytes::<u8>(depthwise_scratch_bytes(&shape, workers))
        }
        None => 0,
    }
}

pub(crate) fn depthwise_supported(layer: &PanelDepthwise, x: &[usize], y: &[usize]) -> bool {
    let window = depthwise_shape(layer, x, y).window;
    layer.epilogue.integers.is_none()
        || takes_depthwise(window.kernel, window.strides, window.dilations)
}

pub(crate) fn panel_linear(
    layer: &PanelLinear,
    panels: Option<PanelSlice>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    args.require(
        x.layout == Layout::Plain && y.layout == Layout::Plain,
        "operands have the wrong layout",
    )?;
    let shape = linear_shape(layer, x.shape());
    let (panels, weights) = weights(args, panels)?;
    let (finish, steps) = (finish(args, &layer.epilogue, &y)?, steps(args)?);
    let bytes = linear_scratch_bytes(&shape, ctx.par.workers());
    let scratch = Scratch::new(args.op, ctx.workspace).take(bytes)?;
    // SAFETY: as in `panel_conv`.
    let out = unsafe { results(&y) };
    let (isa, par) = (ctx.isa, ctx.par);
    integer_linear(
        isa,
        par,
        &shape,
        panels,
        weights,
        x.bytes(),
        steps,
        out,
        finish,
        scratch,
    )
    .named(args.op)
}

pub(crate) fn linear_workspace_bytes(layer: &PanelLinear, x: &[usize], workers: usize) -> usize {
    scratch_bytes::<u8>(linear_scratch_bytes(&linear_shape(layer, x), workers))
}

fn linear_shape(layer: &PanelLinear, x: &[usize]) -> LinearShape {
    let rows = x.iter().rev().skip(1).product();
    LinearShape::dense(rows, layer.k, layer.n)
}

/// Those of the input.
fn steps(args: &Args) -> Result<Steps, OpError> {
    let (scale, zero) = (args.input(2)?, args.input(3)?);
    let (Some(&scale), Some(&zero)) = (scale.f32s().first(), zero.bytes().first()) else {
        return args.fail("its input has no scale or zero point");
    };
    Ok(Steps { scale, zero })
}

/// # Safety
/// No one else uses the output's memory, except a residual that lies there.
unsafe fn results<'a>(y: &TensorMut<'a>) -> Results<'a> {
    // SAFETY: the caller's promise.
    unsafe {
        match y.ty.dtype {
            DType::U8 => Results::Steps(y.bytes_mut()),
            _ => Results::Floats(y.f32s_mut()),
        }
    }
}

fn finish<'a>(
    args: &Args<'_, 'a>,
    epilogue: &Epilogue,
    y: &TensorMut,
) -> Result<Finish<'a>, OpError> {
    let Some(integers) = epilogue.integers else {
        return args.fail("is not computed in integers");
    };
    let before = match integers.before_residual {
        Activation::Requantize {
            scale,
            zero,
            low,
            high,
            ..
        } => Some(Rounding {
            scale,
            zero,
            low,
            high,
        }),
        _ => None,
    };
    let mut added = Added::None;
    if epilogue.residual {
        let residual = args.input(1)?;
        let fits = residual.layout == y.layout && residual.dtype() == epilogue.residual_type();
        args.require(fits, "the residual has the wrong layout")?;
        let steps = integers.residual_steps.map(|steps| Steps {
            scale: steps.scale,
            zero: steps.zero,
        });
        added = match steps {
            steps if y.is_at(&residual) => Added::InPlace(steps),
            Some(steps) => Added::Steps(residual.bytes(), steps),
            None => Added::Floats(residual.f32s()),
        };
    }
    Ok(Finish {
        before,
        residual: added,
        activation: activation(epilogue.activation),
    })
}
