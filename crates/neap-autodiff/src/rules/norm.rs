//! Softmax and normalisations.

use crate::emit::{Emit, Made};
use crate::error::AutodiffError;
use crate::step::{Derivatives, Step};
use neap_ir::op::{Binary, Pool, Reduce, Softmax, Unary, Window};
use neap_ir::{Gradient, Op, ValueId};

pub(super) fn softmax(axis: usize, kind: Softmax, step: &mut Step) -> Derivatives {
    let (y, dy) = (step.output(0)?, step.dy()?);
    let log = kind == Softmax::LogSoftmax;
    let op = Op::Gradient(Gradient::Softmax { axis, log });
    let dx = step.emit.op(op, &[y, dy])?;
    step.one(dx)
}

/// With the norm n along the axis: `dx = (dy - s Σ y dy) / n`, where s is y for p = 2 and the sign of x for p = 1. Where n is 0
/// y does not follow x, and dx is 0.
pub(super) fn lp_norm(axis: usize, p: u32, step: &mut Step) -> Derivatives {
    let (x, y, dy) = (step.input(0)?, step.output(0)?, step.dy()?);
    let emit = &mut *step.emit;
    let kind = if p == 1 { Reduce::L1 } else { Reduce::L2 };
    let norm = emit.reduce(kind, x, &[axis], true)?;
    let products = emit.mul(y, dy)?;
    let along = emit.reduce(Reduce::Sum, products, &[axis], true)?;
    let slope = match p {
        1 => emit.unary(Unary::Sign, x)?,
        _ => y,
    };
    let part = emit.mul(slope, along)?;
    let rest = emit.binary(Binary::Sub, dy, part)?;
    let divisor = emit.nonzero(norm)?;
    let dx = emit.binary(Binary::Div, rest, divisor)?;
    let zero = emit.scalar(emit.dtype(x), 0.0)?;
    let vanishes = emit.binary(Binary::Equal, norm, zero)?;
    let dx = emit.op(Op::Where, &[vanishes, zero, dx])?;
    step.one(dx)
}

/// `y = x b^-beta` with `b = bias + alpha mean(x²)` over a window of channels, padded with zeros. So
/// `dx = dy b^-beta - 2 alpha beta x mean'(dy y / b)`, where the mean is over the channels whose windows one is in.
pub(super) fn lrn([alpha, beta, bias]: [f32; 3], size: usize, step: &mut Step) -> Derivatives {
    let (x, y, dy) = (step.input(0)?, step.output(0)?, step.dy()?);
    let emit = &mut *step.emit;
    let dtype = emit.dtype(x);
    let (before, after) = ((size - 1) / 2, size / 2);
    let square = emit.mul(x, x)?;
    let mean = channel_mean(emit, square, [before, after])?;
    let scaled = emit.scale(mean, alpha.into())?;
    let bias = emit.scalar(dtype, bias.into())?;
    let base = emit.add(scaled, bias)?;
    let exponent = emit.scalar(dtype, -f64::from(beta))?;
    let factor = emit.binary(Binary::Pow, base, exponent)?;
    let direct = emit.mul(dy, factor)?;
    let share = emit.binary(Binary::Div, y, base)?;
    let share = emit.mul(share, dy)?;
    let mean = channel_mean(emit, share, [after, before])?;
    let part = emit.mul(x, mean)?;
    let part = emit.scale(part, 2.0 * f64::from(alpha) * f64::from(beta))?;
    let dx = emit.binary(Binary::Sub, direct, part)?;
    step.one(dx)
}

/// Over so many channels before and after each.
fn channel_mean(emit: &mut Emit, x: ValueId, [before, after]: [usize; 2]) -> Made {
    let shape = emit.shape(x);
    let positions: usize = shape[2..].iter().product();
    let plane = emit.reshape(x, &[shape[0], 1, shape[1], positions])?;
    let window = Window {
        kernel: vec![before + after + 1, 1],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads_begin: vec![before, 0],
        pads_end: vec![after, 0],
    };
    let op = Op::Pool {
        kind: Pool::Average {
            count_include_pad: true,
        },
        window,
        output_spatial: vec![shape[1], positions],
    };
    let mean = emit.op(op, &[plane])?;
    emit.reshape(mean, &shape)
}

pub(super) fn layer_norm(axis: usize, epsilon: f32, step: &mut Step) -> Derivatives {
    refuse_statistics(step)?;
    let op = Op::Gradient(Gradient::LayerNorm { axis, epsilon });
    rows(op, axis, 3, step)
}

pub(super) fn rms_norm(axis: usize, epsilon: f32, step: &mut Step) -> Derivatives {
    let op = Op::Gradient(Gradient::RmsNorm { axis, epsilon });
    rows(op, axis, 2, step)
}

/// Mean and deviation as further results of a norm are for inspection.
fn refuse_statistics(step: &Step) -> Result<(), AutodiffError> {
    if step.results[1..].iter().any(Option::is_some) {
        return Err(step.fail("the loss depends on its statistics".into()));
    }
    Ok(())
}

fn rows(op: Op, axis: usize, outputs: usize, step: &mut Step) -> Derivatives {
    let (x, scale, dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let normalised = step.emit.shape(x)[axis..].to_vec();
    let whole = step.emit.expand(scale, &normalised)?;
    let wanted: Vec<bool> = (0..outputs).map(|i| step.wants(i)).collect();
    let mut derivatives = step.emit.outputs(op, &[x, whole, dy], &wanted)?;
    for (index, derivative) in derivatives.iter_mut().enumerate().skip(1) {
        if let Some(sum) = *derivative {
            let shape = step.emit.shape(step.input(index)?);
            *derivative = Some(step.emit.sum_to(sum, &shape)?);
        }
    }
    Ok(derivatives)
}

pub(super) fn batch_norm_training(epsilon: f32, step: &mut Step) -> Derivatives {
    refuse_statistics(step)?;
    let (x, scale, dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let (mean, variance) = (step.output(1)?, step.output(2)?);
    let wanted: Vec<bool> = (0..3).map(|i| step.wants(i)).collect();
    let op = Op::Gradient(Gradient::BatchNorm { epsilon });
    let operands = [x, scale, mean, variance, dy];
    step.emit.outputs(op, &operands, &wanted)
}

/// With given statistics: `y = (x - mean) r scale + bias`, where `r = 1 / sqrt(variance + epsilon)`.
pub(super) fn batch_norm(epsilon: f32, step: &mut Step) -> Derivatives {
    let (x, scale, dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let (mean, variance) = (step.input(3)?, step.input(4)?);
    let wants: Vec<bool> = (0..5).map(|i| step.wants(i)).collect();
    let emit = &mut *step.emit;
    let shape = emit.shape(x);
    let mut column = vec![1; shape.len() - 1];
    column[0] = shape[1];
    let axes: Vec<usize> = (0..shape.len()).filter(|&axis| axis != 1).collect();
    let small = emit.scalar(emit.dtype(x), epsilon.into())?;
    let raised = emit.add(variance, small)?;
    let deviation = emit.unary(Unary::Sqrt, raised)?;
    let r = emit.unary(Unary::Reciprocal, deviation)?;
    let factor = emit.mul(scale, r)?;

    let mut derivatives = vec![None; 5];
    if wants[0] {
        let factor = emit.reshape(factor, &column)?;
        derivatives[0] = Some(emit.mul(dy, factor)?);
    }
    if wants[2] || wants[3] {
        let sum = emit.reduce(Reduce::Sum, dy, &axes, false)?;
        derivatives[2] = Some(sum);
        if wants[3] {
            let part = emit.mul(sum, factor)?;
            derivatives[3] = Some(emit.unary(Unary::Neg, part)?);
        }
    }
    if wants[1] || wants[4] {
        let mean = emit.reshape(mean, &column)?;
        let centred = emit.binary(Binary::Sub, x, mean)?;
        let products = emit.mul(dy, centred)?;
        let along = emit.reduce(Reduce::Sum, products, &axes, false)?;
        let by_scale = emit.mul(along, r)?;
        derivatives[1] = Some(by_scale);
        if wants[4] {
            // d r / d variance = -r³ / 2
            let square = emit.mul(r, r)?;
            let part = emit.mul(by_scale, scale)?;
            let part = emit.mul(part, square)?;
            derivatives[4] = Some(emit.scale(part, -0.5)?);
        }
    }
    Ok(derivatives)
}

/// A layer norm of every image's groups, whose scale and bias are by channel (or group).
pub(super) fn group_norm(
    groups: Option<usize>,
    epsilon: f32,
    per_group: bool,
    step: &mut Step,
) -> Derivatives {
    let (x, scale, dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let wants: Vec<bool> = (0..3).map(|i| step.wants(i)).collect();
    let emit = &mut *step.emit;
    let shape = emit.shape(x);
    let channels = shape[1];
    let groups = groups.unwrap_or(channels);
    let rows = shape[0] * groups;
    let columns = shape[1..].iter().product::<usize>() / groups.max(1);
    // Parameters lie along an axis of their own; the rest of a row follows them.
    let units = if per_group { groups } else { channels };
    let split = [
        shape[0],
        units,
        shape[1..].iter().product::<usize>() / units.max(1),
    ];
    let flat = emit.reshape(x, &[rows, columns])?;
    let one = emit.scalar(emit.dtype(x), 1.0)?;
    let ones = emit.expand(one, &[columns])?;

    let mut derivatives = vec![None; 3];
    if wants[0] {
        let whole = emit.reshape(dy, &split)?;
        let scale = emit.reshape(scale, &[units, 1])?;
        let scaled = emit.mul(whole, scale)?;
        let scaled = emit.reshape(scaled, &[rows, columns])?;
        let op = Op::Gradient(Gradient::LayerNorm { axis: 1, epsilon });
        let dx = emit.op(op, &[flat, ones, scaled])?;
        derivatives[0] = Some(emit.reshape(dx, &shape)?);
    }
    if wants[1] {
        let normal = emit.op(Op::LayerNorm { axis: 1, epsilon }, &[flat, ones])?;
        let normal = emit.reshape(normal, &shape)?;
        let products = emit.mul(dy, normal)?;
        derivatives[1] = Some(by_unit(emit, products, &split)?);
    }
    if wants[2] {
        derivatives[2] = Some(by_unit(emit, dy, &split)?);
    }
    Ok(derivatives)
}

fn by_unit(emit: &mut Emit, x: ValueId, split: &[usize; 3]) -> Made {
    let x = emit.reshape(x, split)?;
    emit.reduce(Reduce::Sum, x, &[0, 2], false)
}
