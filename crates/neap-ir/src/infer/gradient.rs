//! Types of backward operators.

use super::window::check_window;
use super::{AttentionDims, Inferred, Operands, Pads, conv_output_size, pool_output_size};
use crate::gradient::Gradient;
use crate::op::{AttentionAttrs, Recurrent, Window};
use crate::{DType, TensorType};

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
        Gradient::Lstm(recurrent) => recurrent_types(o, recurrent, 4),
        Gradient::Gru { recurrent, .. } => recurrent_types(o, recurrent, 3),
        Gradient::Rnn(recurrent) => recurrent_types(o, recurrent, 1),
        Gradient::Attention(attrs) => attention(o, attrs),
        Gradient::Resize { attrs, axis, input } => {
            let rank = x.shape.len();
            o.require_axis(*axis, rank)?;
            o.require(
                attrs.output_shape.len() == rank && attrs.scales.len() == rank,
                "has another rank than its resize",
            )?;
            o.require(
                attrs.output_shape[*axis] == x.shape[*axis] && *input > 0,
                "has another size than its resize",
            )?;
            let mut shape = x.shape.clone();
            shape[*axis] = *input;
            Ok(vec![TensorType::new(x.dtype, &shape)])
        }
        Gradient::Product => {
            o.require(x.shape.len() == 2, "takes rows")?;
            o.get(1)?;
            o.require_like(1, &x.shape[..1])?;
            Ok(vec![x.clone()])
        }
    }
}

fn attention(o: &Operands, attrs: &AttentionAttrs) -> Inferred<Vec<TensorType>> {
    let forward = Operands {
        op: o.op,
        inputs: &o.inputs[..o.inputs.len().min(4)],
        outputs: 1,
    };
    let y = super::attention::infer(attrs, &forward)?;
    o.require(!attrs.nan_is_zero, "has no derivative where NaN is zero")?;
    o.get(4)?;
    o.require_like(4, &y.shape)?;
    let (q, k, v) = (o.get(0)?, o.get(1)?, o.get(2)?);
    let Some(dims) = AttentionDims::of(attrs, &q.shape, &k.shape, &v.shape) else {
        return o.fail("operands do not fit");
    };
    let scores = [dims.batch, dims.heads, dims.queries, dims.keys];
    let scores = TensorType::new(q.dtype, &scores);
    let types = [q.clone(), k.clone(), v.clone(), scores];
    Ok(types[..o.outputs.min(4)].to_vec())
}

fn recurrent_types(o: &Operands, recurrent: &Recurrent, gates: usize) -> Inferred<Vec<TensorType>> {
    let projected = o.get(0)?;
    let &[first, second, width] = projected.shape.as_slice() else {
        return o.fail("takes an input of rank 3");
    };
    let sizes = super::compute::recurrent_sizes(o, recurrent, gates, [first, second])?;
    let (directions, h) = (sizes.directions, recurrent.hidden);
    o.require(
        !recurrent.rounds_state,
        "has no derivative of a rounded state",
    )?;
    o.require(
        width == o.mul(directions, sizes.rows)?,
        "takes projections of all gates",
    )?;
    o.get(1)?;
    o.require_like(1, &[directions, sizes.rows, h])?;
    o.require_like(2, &[directions, o.mul(2, sizes.rows)?])?;
    if let Some(lengths) = o.opt(3) {
        o.require(lengths.dtype == DType::I32, "takes int32 sequence lengths")?;
        o.require_shape(3, &[sizes.batch])?;
    }
    let peepholes = [directions, o.mul(3, h)?];
    o.require_like(4, &sizes.state)?;
    o.require_like(5, &sizes.state)?;
    o.require_like(6, &peepholes)?;
    o.require_like(7, &sizes.all)?;
    o.require_like(8, &sizes.state)?;
    o.require_like(9, &sizes.state)?;
    let of = |shape: &[usize]| TensorType::new(projected.dtype, shape);
    let kept = of(&[first, second, o.mul(directions, h)?]);
    let types = [
        projected.clone(),
        kept.clone(),
        of(&sizes.state),
        kept,
        of(&sizes.state),
        of(&peepholes),
    ];
    let most = match gates {
        4 => 6,
        3 => 4,
        _ => 3,
    };
    Ok(types[..o.outputs.min(most)].to_vec())
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
