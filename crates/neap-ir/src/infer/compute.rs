//! Products, reductions, normalisations and recurrent operators.

use super::{Inferred, Operands, broadcasts_to, einsum, is_numeric};
use crate::graph::LANES;
use crate::op::{Activation, Direction, Recurrent, Reduce};
use crate::panel::Epilogue;
use crate::{DType, Op, TensorType};

pub(super) fn infer(op: &Op, o: &Operands) -> Inferred<Vec<TensorType>> {
    let one = |ty: TensorType| Ok(vec![ty]);
    match op {
        Op::MatMul => one(matmul(o)?),
        Op::Gemm {
            trans_a, trans_b, ..
        } => one(gemm(o, *trans_a, *trans_b)?),
        Op::Einsum { equation } => one(einsum::infer(equation, o)?),
        Op::Reduce {
            kind,
            axes,
            keep_dims,
        } => {
            let x = o.get(0)?;
            let boolean = matches!(kind, Reduce::Max | Reduce::Min) && x.dtype == DType::Bool;
            o.require(boolean || is_numeric(x.dtype), "takes numbers")?;
            one(TensorType {
                dtype: x.dtype,
                shape: reduced(o, &x.shape, axes, *keep_dims)?,
            })
        }
        Op::ArgReduce {
            axis, keep_dims, ..
        } => {
            let x = o.get(0)?;
            o.require(is_numeric(x.dtype), "takes numbers")?;
            let shape = reduced(o, &x.shape, &[*axis], *keep_dims)?;
            o.require(
                x.shape[*axis] > 0 || shape.contains(&0),
                "cannot search an empty axis",
            )?;
            one(TensorType {
                dtype: DType::I64,
                shape,
            })
        }
        Op::TopK { axis, k, .. } => {
            let x = o.get(0)?;
            o.require(is_numeric(x.dtype), "takes numbers")?;
            o.require_axis(*axis, x.shape.len())?;
            if *k > x.shape[*axis] {
                return o.fail(format!("k = {k} exceeds the axis's {}", x.shape[*axis]));
            }
            let mut shape = x.shape.clone();
            shape[*axis] = *k;
            Ok(vec![
                TensorType::new(x.dtype, &shape),
                TensorType::new(DType::I64, &shape),
            ])
        }
        Op::CumSum { axis, .. } => {
            let x = o.get(0)?;
            o.require(is_numeric(x.dtype), "takes numbers")?;
            o.require_axis(*axis, x.shape.len())?;
            one(x.clone())
        }
        Op::Softmax { axis, .. } | Op::LpNorm { axis, .. } => {
            let x = o.get(0)?;
            o.require_float(x)?;
            o.require_axis(*axis, x.shape.len())?;
            if let Op::LpNorm { p, .. } = op {
                o.require(matches!(p, 1 | 2), "takes p = 1 or 2")?;
            }
            one(x.clone())
        }
        Op::BatchNorm { .. } => {
            let x = channels(o)?;
            let c = &x.shape[1..2];
            (1..5).try_for_each(|i| {
                o.get(i)?;
                o.require_like(i, c)
            })?;
            one(x.clone())
        }
        Op::LayerNorm { axis, .. } => layer_norm(o, *axis),
        Op::RmsNorm { axis, .. } => {
            let x = o.get(0)?;
            o.require_float(x)?;
            o.require_axis(*axis, x.shape.len())?;
            normal_parameter(o, 1, &x.shape[*axis..])?;
            one(x.clone())
        }
        Op::InstanceNorm { .. } => {
            let x = channels(o)?;
            (1..3).try_for_each(|i| {
                o.get(i)?;
                o.require_like(i, &x.shape[1..2])
            })?;
            one(x.clone())
        }
        Op::GroupNorm {
            groups, per_group, ..
        } => {
            let x = channels(o)?;
            o.require(
                *groups > 0 && x.shape[1].is_multiple_of(*groups),
                "groups do not divide the channels",
            )?;
            let n = if *per_group { *groups } else { x.shape[1] };
            (1..3).try_for_each(|i| {
                o.get(i)?;
                o.require_like(i, &[n])
            })?;
            one(x.clone())
        }
        Op::Lrn { size, .. } => {
            o.require(*size > 0, "needs a size above 0")?;
            one(channels(o)?.clone())
        }
        Op::ScaleShift { .. } => {
            let x = channels(o)?;
            o.require(x.dtype == DType::F32, "takes float32")?;
            (1..3).try_for_each(|i| {
                o.get(i)?;
                o.require_like(i, &x.shape[1..2])
            })?;
            one(x.clone())
        }
        Op::PanelLinear(linear) => {
            let x = o.get(0)?;
            panel_inputs(o, &linear.epilogue)?;
            o.require(
                x.shape.last() == Some(&linear.k),
                "the input's last axis is not k",
            )?;
            let mut shape = x.shape.clone();
            if let Some(last) = shape.last_mut() {
                *last = linear.n;
            }
            let ty = TensorType::new(linear.epilogue.output_type(), &shape);
            if linear.epilogue.residual {
                let residual = o.get(1)?;
                o.require(
                    residual.elements() == o.product(&shape)?,
                    "the residual has another size",
                )?;
            }
            one(ty)
        }
        Op::Lstm(recurrent) => recurrent_types(o, recurrent, 4, 3),
        Op::Gru { recurrent, .. } => recurrent_types(o, recurrent, 3, 2),
        Op::Rnn(recurrent) => recurrent_types(o, recurrent, 1, 2),
        _ => o.fail("is no computing operator"),
    }
}

/// y, and mean and variance as far as they are asked for.
pub(super) fn batch_norm_training(o: &Operands) -> Inferred<Vec<TensorType>> {
    let x = channels(o)?;
    (1..3).try_for_each(|i| {
        o.get(i)?;
        o.require_like(i, &x.shape[1..2])
    })?;
    let channels = TensorType::new(x.dtype, &x.shape[1..2]);
    let types = [x.clone(), channels.clone(), channels];
    Ok(types[..o.outputs.min(3)].to_vec())
}

fn channels<'a>(o: &Operands<'a>) -> Inferred<&'a TensorType> {
    let x = o.get(0)?;
    o.require_float(x)?;
    o.require(x.shape.len() >= 2, "takes an input of rank 2 or more")?;
    Ok(x)
}

fn matmul(o: &Operands) -> Inferred<TensorType> {
    let (a, b) = (o.get(0)?, o.get(1)?);
    o.same_dtype(a, b)?;
    o.require(is_numeric(a.dtype), "takes numbers")?;
    o.require(
        !a.shape.is_empty() && !b.shape.is_empty(),
        "takes no scalars",
    )?;
    let mismatch = || {
        o.fail(format!(
            "shapes {:?} and {:?} do not multiply",
            a.shape, b.shape
        ))
    };
    let (a_lead, m, k) = match a.shape.as_slice() {
        [k] => (&[][..], None, *k),
        [lead @ .., m, k] => (lead, Some(*m), *k),
        [] => return mismatch(),
    };
    let (b_lead, kb, n) = match b.shape.as_slice() {
        [k] => (&[][..], *k, None),
        [lead @ .., k, n] => (lead, *k, Some(*n)),
        [] => return mismatch(),
    };
    if k != kb {
        return mismatch();
    }
    let mut shape = o.broadcast(a_lead, b_lead)?;
    shape.extend(m);
    shape.extend(n);
    Ok(TensorType {
        dtype: a.dtype,
        shape,
    })
}

fn gemm(o: &Operands, trans_a: bool, trans_b: bool) -> Inferred<TensorType> {
    let (a, b) = (o.get(0)?, o.get(1)?);
    o.same_dtype(a, b)?;
    o.require(is_numeric(a.dtype), "takes numbers")?;
    let (&[a0, a1], &[b0, b1]) = (a.shape.as_slice(), b.shape.as_slice()) else {
        return o.fail("takes matrices");
    };
    let (m, k) = if trans_a { (a1, a0) } else { (a0, a1) };
    let (kb, n) = if trans_b { (b1, b0) } else { (b0, b1) };
    if k != kb {
        return o.fail(format!(
            "shapes {:?} and {:?} do not multiply",
            a.shape, b.shape
        ));
    }
    if let Some(c) = o.opt(2) {
        o.same_dtype(a, c)?;
        o.require(
            broadcasts_to(&c.shape, &[m, n]),
            "C does not broadcast to the result",
        )?;
    }
    Ok(TensorType::new(a.dtype, &[m, n]))
}

fn reduced(o: &Operands, shape: &[usize], axes: &[usize], keep: bool) -> Inferred<Vec<usize>> {
    for &axis in axes {
        o.require_axis(axis, shape.len())?;
    }
    Ok(shape
        .iter()
        .enumerate()
        .filter_map(|(i, &d)| match (axes.contains(&i), keep) {
            (false, _) => Some(d),
            (true, true) => Some(1),
            (true, false) => None,
        })
        .collect())
}

/// A scale or bias that broadcasts to the normalised axes.
fn normal_parameter(o: &Operands, index: usize, normalised: &[usize]) -> Inferred<()> {
    let p = o.get(index)?;
    o.same_dtype(o.get(0)?, p)?;
    o.require(
        broadcasts_to(&p.shape, normalised),
        "scale or bias does not broadcast to the normalised axes",
    )
}

fn layer_norm(o: &Operands, axis: usize) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require_float(x)?;
    o.require_axis(axis, x.shape.len())?;
    normal_parameter(o, 1, &x.shape[axis..])?;
    if o.opt(2).is_some() {
        normal_parameter(o, 2, &x.shape[axis..])?;
    }
    let mut types = vec![x.clone()];
    let mut shape = x.shape.clone();
    shape[axis..].fill(1);
    for _ in 1..o.outputs.min(3) {
        types.push(TensorType::new(DType::F32, &shape));
    }
    Ok(types)
}

/// X, W, R, B, sequence_lens, initial_h, initial_c, P.
fn recurrent_types(
    o: &Operands,
    recurrent: &Recurrent,
    gates: usize,
    max_outputs: usize,
) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require_float(x)?;
    let &[first, second, input] = x.shape.as_slice() else {
        return o.fail("takes an input of rank 3");
    };
    let sizes = recurrent_sizes(o, recurrent, gates, [first, second])?;
    let (directions, rows, h) = (sizes.directions, sizes.rows, recurrent.hidden);
    if recurrent.in_panels {
        o.require(
            x.dtype == DType::F32 && h.is_multiple_of(LANES),
            "takes no panels of this type or hidden size",
        )?;
        for at in &Recurrent::PANELS[..directions] {
            for (&at, k) in at.iter().zip([input, h]) {
                let panels = o.get(at)?;
                let fits = Recurrent::panel_type(rows, k).as_ref() == Some(panels);
                o.require(fits, "has panels of another layer")?;
            }
        }
    } else {
        o.get(1)?;
        o.get(2)?;
        o.require_like(1, &[directions, rows, input])?;
        o.require_like(2, &[directions, rows, h])?;
    }
    o.require_like(3, &[directions, o.mul(2, rows)?])?;
    if let Some(lengths) = o.opt(4) {
        o.require(lengths.dtype == DType::I32, "takes int32 sequence lengths")?;
        o.require_shape(4, &[sizes.batch])?;
    }
    o.require_like(5, &sizes.state)?;
    if gates == 4 {
        o.require_like(6, &sizes.state)?;
        o.require_like(7, &[directions, o.mul(3, h)?])?;
    }
    let mut types = vec![TensorType::new(x.dtype, &sizes.all)];
    for _ in 1..o.outputs.min(max_outputs) {
        types.push(TensorType::new(x.dtype, &sizes.state));
    }
    Ok(types)
}

/// Sizes of a recurrent operator and of its backward pass.
pub(super) struct RecurrentSizes {
    pub directions: usize,
    pub batch: usize,
    /// Of one direction's weights.
    pub rows: usize,
    /// Shape of the states of all steps.
    pub all: [usize; 4],
    /// Shape of an initial or final state.
    pub state: [usize; 3],
}

/// Sizes for an input whose first two axes are given.
pub(super) fn recurrent_sizes(
    o: &Operands,
    recurrent: &Recurrent,
    gates: usize,
    [first, second]: [usize; 2],
) -> Inferred<RecurrentSizes> {
    let (steps, batch) = if recurrent.batch_first {
        (second, first)
    } else {
        (first, second)
    };
    let h = recurrent.hidden;
    o.require(h > 0, "needs a hidden size above 0")?;
    let directions = match recurrent.direction {
        Direction::Bidirectional => 2,
        Direction::Forward | Direction::Reverse => 1,
    };
    let per_direction = match gates {
        4 => 3,
        3 => 2,
        _ => 1,
    };
    o.require(
        recurrent.activations.len() == directions * per_direction,
        "has the wrong number of activations",
    )?;
    let rows = o.mul(gates, h)?;
    let state = if recurrent.batch_first {
        [batch, directions, h]
    } else {
        [directions, batch, h]
    };
    let all = if recurrent.batch_first {
        [batch, steps, directions, h]
    } else {
        [steps, directions, batch, h]
    };
    Ok(RecurrentSizes {
        directions,
        batch,
        rows,
        all,
        state,
    })
}

/// Types of a panel layer's inputs, and steps that it can give.
pub(super) fn panel_inputs(o: &Operands, epilogue: &Epilogue) -> Inferred<()> {
    let has_type = |index: usize, dtype: DType| Ok(o.get(index)?.dtype == dtype);
    o.require(
        has_type(0, epilogue.input_type())?
            && (!epilogue.residual || has_type(1, epilogue.residual_type())?),
        "takes float32, or steps where it is computed in integers",
    )?;
    let Some(integers) = epilogue.integers else {
        return Ok(());
    };
    let one = |index: usize, dtype: DType| {
        let ty = o.get(index)?;
        Ok(ty.dtype == dtype && ty.elements() == 1)
    };
    o.require(
        one(2, DType::F32)? && one(3, DType::U8)?,
        "needs a scale and a zero point of its input",
    )?;
    let is_rounding = |activation: Activation| {
        let is_byte = |x: f32| (0.0..=255.0).contains(&x) && x.fract() == 0.0;
        matches!(activation, Activation::Requantize { zero, low, high, .. }
            if [zero, low, high].into_iter().all(is_byte))
    };
    let before = integers.before_residual;
    o.require(
        (matches!(before, Activation::None | Activation::Requantize { .. }))
            && (!integers.gives_steps || is_rounding(epilogue.activation)),
        "gives steps of no rounding to bytes",
    )
}
