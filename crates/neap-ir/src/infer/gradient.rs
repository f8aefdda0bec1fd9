//! Types of backward operators.

use super::window::check_window;
use super::{Inferred, Operands, Pads, conv_output_size, pool_output_size};
use crate::TensorType;
use crate::gradient::Gradient;
use crate::op::Window;

pub(super) fn infer(gradient: &Gradient, o: &Operands) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require_float(x)?;
    let like_x = |index: usize| {
        o.get(index)?;
        o.require_like(index, &x.shape)
    };
    match gradient {
        Gradient::Unary { .. } | Gradient::Clip { .. } => {
            like_x(1)?;
            Ok(vec![x.clone()])
        }
        Gradient::Softmax { axis, .. } => {
            o.require_axis(*axis, x.shape.len())?;
            like_x(1)?;
            Ok(vec![x.clone()])
        }
        Gradient::LayerNorm { axis, .. } => {
            like_x(2)?;
            rows(o, *axis, 3)
        }
        Gradient::RmsNorm { axis, .. } => {
            like_x(2)?;
            rows(o, *axis, 2)
        }
        Gradient::BatchNorm { .. } => {
            o.require(x.shape.len() >= 2, "takes an input of rank 2 or more")?;
            let channels = &x.shape[1..2];
            (1..4).try_for_each(|i| {
                o.get(i)?;
                o.require_like(i, channels)
            })?;
            like_x(4)?;
            let channels = TensorType::new(x.dtype, channels);
            let types = [x.clone(), channels.clone(), channels];
            Ok(types[..o.outputs.min(3)].to_vec())
        }
        Gradient::ConvWeight { window, groups } => conv_weight(o, window, *groups),
        Gradient::MaxPool { window } => {
            let dy = o.get(1)?;
            o.same_dtype(x, dy)?;
            pooled(o, window, &x.shape, &dy.shape)?;
            Ok(vec![x.clone()])
        }
        Gradient::AveragePool {
            window,
            input_spatial,
            ..
        } => {
            o.require(x.shape.len() >= 3, "takes an input of rank 3 or more")?;
            let mut shape = x.shape[..2].to_vec();
            shape.extend(input_spatial);
            pooled(o, window, &shape, &x.shape)?;
            Ok(vec![TensorType::new(x.dtype, &shape)])
        }
    }
}

/// Of a normalisation over the axes `axis..` with a scale (and a bias) of their shape.
fn rows(o: &Operands, axis: usize, outputs: usize) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require_axis(axis, x.shape.len())?;
    o.get(1)?;
    o.require_like(1, &x.shape[axis..])?;
    let parameter = TensorType::new(x.dtype, &x.shape[axis..]);
    let types = [x.clone(), parameter.clone(), parameter];
    Ok(types[..o.outputs.min(outputs)].to_vec())
}

fn conv_weight(o: &Operands, window: &Window, groups: usize) -> Inferred<Vec<TensorType>> {
    let (x, dy) = (o.get(0)?, o.get(1)?);
    o.same_dtype(x, dy)?;
    let fits = x.shape.len() >= 3
        && dy.shape.len() == x.shape.len()
        && dy.shape[0] == x.shape[0]
        && groups > 0
        && x.shape[1].is_multiple_of(groups)
        && dy.shape[1].is_multiple_of(groups);
    if !fits {
        return o.fail(format!(
            "shapes {:?} and {:?} are no input and result in {groups} groups",
            x.shape, dy.shape
        ));
    }
    check_window(o, window, x.shape.len() - 2)?;
    for i in 0..window.kernel.len() {
        let size = conv_output_size(
            x.shape[i + 2],
            window.kernel[i],
            window.strides[i],
            window.dilations[i],
            pads(window, i),
        );
        o.require(
            size.is_some_and(|size| dy.shape[i + 2] <= size),
            "the result is larger than its convolution's",
        )?;
    }
    let mut shape = vec![dy.shape[1], x.shape[1] / groups];
    shape.extend(&window.kernel);
    Ok(vec![TensorType::new(x.dtype, &shape)])
}

/// Checks that a pooling of `x` may have given `y`.
fn pooled(o: &Operands, window: &Window, x: &[usize], y: &[usize]) -> Inferred<()> {
    let fits = x.len() >= 3 && y.len() == x.len() && y[..2] == x[..2];
    if !fits {
        return o.fail(format!("shape {y:?} is not of pooled {x:?}"));
    }
    check_window(o, window, x.len() - 2)?;
    for i in 0..window.kernel.len() {
        let size = pool_output_size(
            x[i + 2],
            window.kernel[i],
            window.strides[i],
            window.dilations[i],
            pads(window, i),
            true,
        );
        o.require(
            size.is_some_and(|size| y[i + 2] <= size.max(1)),
            "the result is larger than its pooling's",
        )?;
    }
    Ok(())
}

fn pads(window: &Window, axis: usize) -> Pads {
    Pads {
        begin: window.pads_begin[axis],
        end: window.pads_end[axis],
    }
}
