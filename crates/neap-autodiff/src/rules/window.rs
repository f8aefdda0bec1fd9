//! Convolutions and poolings.

use crate::emit::{Emit, Made};
use crate::error::AutodiffError;
use crate::step::{Derivatives, Step};
use neap_ir::op::{Binary, Pool, Reduce, Unary, Window};
use neap_ir::{Gradient, Op, ValueId};

/// The input's derivative is the transposed convolution of the result's with the same weights (Dumoulin & Visin, *A guide
/// to convolution arithmetic for deep learning*, section 4).
pub(super) fn conv(window: &Window, groups: usize, step: &mut Step) -> Derivatives {
    let (x, w, dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let mut derivatives = vec![None; 3];
    if step.wants(0) {
        let op = Op::ConvTranspose {
            window: window.clone(),
            groups,
            output_spatial: step.emit.shape(x)[2..].to_vec(),
        };
        derivatives[0] = Some(step.emit.op(op, &[dy, w])?);
    }
    if step.wants(1) {
        let window = window.clone();
        let op = Op::Gradient(Gradient::ConvWeight { window, groups });
        derivatives[1] = Some(step.emit.op(op, &[x, dy])?);
    }
    bias(&mut derivatives, dy, step)?;
    Ok(derivatives)
}

/// Input and result change roles.
pub(super) fn conv_transpose(window: &Window, groups: usize, step: &mut Step) -> Derivatives {
    let (x, w, dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let (x_shape, dy_shape) = (step.emit.shape(x), step.emit.shape(dy));
    // As much padding at the end as makes the window stop x times.
    let mut window = window.clone();
    for axis in 0..window.kernel.len() {
        let extent = (window.kernel[axis] - 1) * window.dilations[axis] + 1;
        let reach = (x_shape[axis + 2].max(1) - 1) * window.strides[axis] + extent;
        let there = dy_shape[axis + 2] + window.pads_begin[axis];
        window.pads_end[axis] = reach.saturating_sub(there);
        if there > reach && there - reach >= window.strides[axis] {
            return Err(step.fail("its result is larger than its window reaches".into()));
        }
    }
    let mut derivatives = vec![None; 3];
    if step.wants(0) {
        let op = Op::Conv(window.clone(), groups);
        derivatives[0] = Some(step.emit.op(op, &[dy, w])?);
    }
    if step.wants(1) {
        let op = Op::Gradient(Gradient::ConvWeight { window, groups });
        derivatives[1] = Some(step.emit.op(op, &[dy, x])?);
    }
    bias(&mut derivatives, dy, step)?;
    Ok(derivatives)
}

fn bias(
    derivatives: &mut [Option<ValueId>],
    dy: ValueId,
    step: &mut Step,
) -> Result<(), AutodiffError> {
    if step.wants(2) {
        let rank = step.emit.shape(dy).len();
        let axes: Vec<usize> = (0..rank).filter(|&axis| axis != 1).collect();
        derivatives[2] = Some(step.emit.reduce(Reduce::Sum, dy, &axes, false)?);
    }
    Ok(())
}

pub(super) fn pool(kind: Pool, window: &Window, step: &mut Step) -> Derivatives {
    let (x, dy) = (step.input(0)?, step.dy()?);
    let window = window.clone();
    let dx = match kind {
        Pool::Max { .. } => {
            let op = Op::Gradient(Gradient::MaxPool { window });
            step.emit.op(op, &[x, dy])?
        }
        Pool::Average { count_include_pad } => {
            let op = Op::Gradient(Gradient::AveragePool {
                window,
                count_include_pad,
                input_spatial: step.emit.shape(x)[2..].to_vec(),
            });
            step.emit.op(op, &[dy])?
        }
        Pool::Lp { p } => {
            // Each result's derivative goes to all elements of its window: a transposed convolution with ones.
            let share = norm_share(p, step)?;
            let emit = &mut *step.emit;
            let shape = emit.shape(x);
            let one = emit.scalar(emit.dtype(x), 1.0)?;
            let mut kernel = vec![shape[1], 1];
            kernel.extend(&window.kernel);
            let ones = emit.expand(one, &kernel)?;
            let op = Op::ConvTranspose {
                window,
                groups: shape[1],
                output_spatial: shape[2..].to_vec(),
            };
            let spread = emit.op(op, &[share, ones])?;
            by_element(emit, p, x, spread)?
        }
    };
    step.one(dx)
}

/// `dy y^(1 - p)`, and 0 where the norm y is.
fn norm_share(p: u32, step: &mut Step) -> Made {
    let (y, dy) = (step.output(0)?, step.dy()?);
    let emit = &mut *step.emit;
    let divisor = emit.nonzero(y)?;
    let exponent = emit.scalar(emit.dtype(y), 1.0 - f64::from(p))?;
    let factor = emit.binary(Binary::Pow, divisor, exponent)?;
    emit.mul(dy, factor)
}

/// What a norm's derivative has of each element: `share |x|^(p - 1) sign(x)`, which is 0 where x is.
fn by_element(emit: &mut Emit, p: u32, x: ValueId, share: ValueId) -> Made {
    let sign = emit.unary(Unary::Sign, x)?;
    let size = emit.unary(Unary::Abs, x)?;
    let exponent = emit.scalar(emit.dtype(x), f64::from(p) - 1.0)?;
    let power = emit.binary(Binary::Pow, size, exponent)?;
    let slope = emit.mul(sign, power)?;
    emit.mul(slope, share)
}

pub(super) fn global_pool(kind: Pool, step: &mut Step) -> Derivatives {
    let (x, dy) = (step.input(0)?, step.dy()?);
    let shape = step.emit.shape(x);
    let dx = match kind {
        Pool::Average { .. } => {
            let count: usize = shape[2..].iter().product();
            let each = step.emit.scale(dy, 1.0 / count as f64)?;
            step.emit.expand(each, &shape)?
        }
        Pool::Max { .. } => {
            // Over all spatial axes as one window; folded into one axis, as there may be more than a window has.
            let count: usize = shape[2..].iter().product();
            let window = Window {
                kernel: vec![count],
                strides: vec![1],
                dilations: vec![1],
                pads_begin: vec![0],
                pads_end: vec![0],
            };
            let flat = step.emit.reshape(x, &[shape[0], shape[1], count])?;
            let dy = step.emit.reshape(dy, &[shape[0], shape[1], 1])?;
            let op = Op::Gradient(Gradient::MaxPool { window });
            let dx = step.emit.op(op, &[flat, dy])?;
            step.emit.reshape(dx, &shape)?
        }
        Pool::Lp { p } => {
            let share = norm_share(p, step)?;
            by_element(step.emit, p, x, share)?
        }
    };
    step.one(dx)
}
