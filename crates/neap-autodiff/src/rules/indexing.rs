//! Elements picked by index: derivatives are added back where elements came from.

use crate::emit::{Emit, Made};
use crate::step::{Derivatives, Step};
use neap_ir::op::ScatterReduction;
use neap_ir::{DType, Op, ValueId};

/// Adds slices of `x` along `axis` into zeros of `size` there, at `places` (rank 1, as many as slices).
pub(super) fn scatter_axis(
    emit: &mut Emit,
    x: ValueId,
    places: ValueId,
    axis: usize,
    size: usize,
) -> Made {
    let shape = emit.shape(x);
    // ScatterND takes the axis first.
    let mut perm: Vec<usize> = (0..shape.len()).collect();
    perm[..=axis].rotate_right(1);
    let first = emit.transpose(x, &perm)?;
    let mut to = emit.shape(first);
    to[0] = size;
    let zeros = emit.zeros(emit.dtype(x), &to)?;
    let count = shape[axis];
    let places = emit.reshape(places, &[count, 1])?;
    let reduction = ScatterReduction::Add;
    let sums = emit.op(Op::ScatterNd { reduction }, &[zeros, places, first])?;
    let mut back: Vec<usize> = (0..shape.len()).collect();
    back[..=axis].rotate_left(1);
    emit.transpose(sums, &back)
}

pub(super) fn gather(axis: usize, step: &mut Step) -> Derivatives {
    let (data, indices, dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let emit = &mut *step.emit;
    let shape = emit.shape(data);
    let count = emit.ty(indices).elements();
    let places = emit.reshape(indices, &[count])?;
    let mut flat = shape.clone();
    flat[axis] = count;
    let dy = emit.reshape(dy, &flat)?;
    let dx = scatter_axis(emit, dy, places, axis, shape[axis])?;
    Ok(vec![Some(dx), None])
}

pub(super) fn gather_elements(axis: usize, step: &mut Step) -> Derivatives {
    let (data, indices, dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let dx = add_elements(step.emit, data, indices, dy, axis)?;
    Ok(vec![Some(dx), None])
}

/// Zeros like `data` with `dy` added at the indices along an axis.
fn add_elements(
    emit: &mut Emit,
    data: ValueId,
    indices: ValueId,
    dy: ValueId,
    axis: usize,
) -> Made {
    let shape = emit.shape(data);
    let zeros = emit.zeros(emit.dtype(data), &shape)?;
    let reduction = ScatterReduction::Add;
    emit.op(
        Op::ScatterElements { axis, reduction },
        &[zeros, indices, dy],
    )
}

/// The indices of the largest elements are the second result.
pub(super) fn top_k(axis: usize, step: &mut Step) -> Derivatives {
    let (x, indices, dy) = (step.input(0)?, step.output(1)?, step.dy()?);
    let dx = add_elements(step.emit, x, indices, dy, axis)?;
    step.one(dx)
}

/// Batch axes become one, whose place is a first index.
pub(super) fn gather_nd(batch_dims: usize, step: &mut Step) -> Derivatives {
    let (data, mut indices, mut dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let emit = &mut *step.emit;
    let shape = emit.shape(data);
    let mut flat = shape.clone();
    if batch_dims > 0 {
        let batch: usize = shape[..batch_dims].iter().product();
        let rest = &shape[batch_dims..];
        flat = [&[batch], rest].concat();
        let places = emit.shape(indices);
        let count: usize = places[batch_dims..places.len() - 1].iter().product();
        let width = places[places.len() - 1];
        indices = emit.op(Op::Cast { to: DType::I64 }, &[indices])?;
        indices = emit.reshape(indices, &[batch, count, width])?;
        let own: Vec<i64> = (0..batch as i64).collect();
        let own = emit.indices(&[batch, 1, 1], &own);
        let own = emit.expand(own, &[batch, count, 1])?;
        indices = emit.op(Op::Concat { axis: 2 }, &[own, indices])?;
        dy = emit.reshape(dy, &[&[batch, count], &rest[width..]].concat())?;
    }
    let zeros = emit.zeros(emit.dtype(data), &flat)?;
    let reduction = ScatterReduction::Add;
    let dx = emit.op(Op::ScatterNd { reduction }, &[zeros, indices, dy])?;
    let dx = emit.reshape(dx, &shape)?;
    Ok(vec![Some(dx), None])
}

/// Data that is overwritten gets no derivative, updates get that of their places. With equal indices only one
/// update is kept, and the order is not said: such indices have no derivative that could be relied on.
pub(super) fn scatter_elements(
    axis: usize,
    reduction: ScatterReduction,
    step: &mut Step,
) -> Derivatives {
    let (indices, dy) = (step.input(1)?, step.dy()?);
    let updates = Op::GatherElements { axis };
    let mask = Op::ScatterElements {
        axis,
        reduction: ScatterReduction::None,
    };
    scattered(indices, dy, reduction, updates, mask, step)
}

pub(super) fn scatter_nd(reduction: ScatterReduction, step: &mut Step) -> Derivatives {
    let (indices, dy) = (step.input(1)?, step.dy()?);
    let updates = Op::GatherNd { batch_dims: 0 };
    let mask = Op::ScatterNd {
        reduction: ScatterReduction::None,
    };
    scattered(indices, dy, reduction, updates, mask, step)
}

fn scattered(
    indices: ValueId,
    dy: ValueId,
    reduction: ScatterReduction,
    gather: Op,
    scatter: Op,
    step: &mut Step,
) -> Derivatives {
    let mut derivatives = vec![None; 3];
    if step.wants(0) {
        derivatives[0] = Some(match reduction {
            ScatterReduction::Add => dy,
            ScatterReduction::None => {
                let updates = step.input(2)?;
                let shape = step.emit.shape(updates);
                let zeros = step.emit.zeros(step.emit.dtype(dy), &shape)?;
                step.emit.op(scatter, &[dy, indices, zeros])?
            }
            _ => return Err(step.fail("its derivative is not known".into())),
        });
    }
    if step.wants(2) {
        if !matches!(reduction, ScatterReduction::Add | ScatterReduction::None) {
            return Err(step.fail("its derivative is not known".into()));
        }
        derivatives[2] = Some(step.emit.op(gather, &[dy, indices])?);
    }
    Ok(derivatives)
}
