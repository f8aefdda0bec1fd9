//! Operators that move elements without computing on them, and those that make index-like tensors.

use super::{Inferred, Operands, is_int};
use crate::op::{PadMode, ResizeAttrs};
use crate::{DType, Op, TensorType};

pub(super) fn infer(op: &Op, o: &Operands) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    let dims = x.shape.as_slice();
    let shape = match op {
        Op::Concat { axis } => concat(o, *axis)?,
        Op::Split { axis, sizes } => return split(o, *axis, sizes),
        Op::Slice { ranges } => {
            o.require(ranges.len() == dims.len(), "has one range per axis")?;
            for (range, &dim) in ranges.iter().zip(dims) {
                if range.len == 0 {
                    continue;
                }
                let last = (range.len as i128 - 1) * range.step as i128 + range.start as i128;
                let inside = range.start < dim && (0..dim as i128).contains(&last);
                o.require(inside, "a range lies outside its axis")?;
            }
            ranges.iter().map(|r| r.len).collect()
        }
        Op::Reshape { shape } => {
            if o.product(shape)? != x.elements() {
                return o.fail(format!("cannot reshape {dims:?} to {shape:?}"));
            }
            shape.clone()
        }
        Op::Transpose { perm } => {
            let mut seen = vec![false; dims.len()];
            let valid = perm.len() == dims.len()
                && perm
                    .iter()
                    .all(|&p| p < dims.len() && !std::mem::replace(&mut seen[p], true));
            o.require(valid, "perm is no permutation of the axes")?;
            perm.iter().map(|&p| dims[p]).collect()
        }
        Op::Expand { shape } => o.broadcast(dims, shape)?,
        Op::Tile { repeats } => {
            o.require(repeats.len() == dims.len(), "has one repeat per axis")?;
            let mut shape = Vec::new();
            for (&d, &r) in dims.iter().zip(repeats) {
                shape.push(o.mul(d, r)?);
            }
            shape
        }
        Op::Pad { mode, pads } => pad(o, *mode, pads)?,
        Op::Gather { axis } => {
            let indices = o.get(1)?;
            o.require_axis(*axis, dims.len())?;
            require_indices(o, indices)?;
            let mut shape = dims[..*axis].to_vec();
            shape.extend(&indices.shape);
            shape.extend(&dims[axis + 1..]);
            shape
        }
        Op::GatherElements { axis } => {
            let indices = o.get(1)?;
            require_elements(o, *axis, indices)?;
            indices.shape.clone()
        }
        Op::GatherNd { batch_dims } => gather_nd(o, *batch_dims)?,
        Op::ScatterElements { axis, .. } => {
            let indices = o.get(1)?;
            require_elements(o, *axis, indices)?;
            o.get(2)?;
            o.require_like(2, &indices.shape)?;
            dims.to_vec()
        }
        Op::ScatterNd { .. } => {
            let indices = o.get(1)?;
            require_indices(o, indices)?;
            let Some((&depth, lead)) = indices.shape.split_last() else {
                return o.fail("takes indices of rank 1 or more");
            };
            o.require(depth <= dims.len(), "indexes more axes than there are")?;
            let mut updates = lead.to_vec();
            updates.extend(&dims[depth..]);
            o.get(2)?;
            o.require_like(2, &updates)?;
            dims.to_vec()
        }
        Op::DepthToSpace { block, .. } => {
            let &[n, c, h, w] = dims else {
                return o.fail("takes an input of rank 4");
            };
            let square = o.mul(*block, *block)?;
            o.require(
                square > 0 && c.is_multiple_of(square),
                "the block does not divide the channels",
            )?;
            vec![n, c / square, o.mul(h, *block)?, o.mul(w, *block)?]
        }
        Op::SpaceToDepth { block } => {
            let &[n, c, h, w] = dims else {
                return o.fail("takes an input of rank 4");
            };
            let fits = *block > 0 && h.is_multiple_of(*block) && w.is_multiple_of(*block);
            o.require(fits, "the block does not divide the image")?;
            let square = o.mul(*block, *block)?;
            vec![n, o.mul(c, square)?, h / block, w / block]
        }
        Op::Resize(attrs) => resize(o, attrs)?,
        Op::OneHot { axis, depth } => {
            let values = o.get(1)?;
            o.require(values.shape == [2], "takes values [off, on]")?;
            o.require(x.dtype != DType::Bool, "takes numeric indices")?;
            o.require_axis(*axis, dims.len() + 1)?;
            let mut shape = dims.to_vec();
            shape.insert(*axis, *depth);
            return Ok(vec![TensorType {
                dtype: values.dtype,
                shape,
            }]);
        }
        Op::Trilu { .. } => {
            o.require(dims.len() >= 2, "takes an input of rank 2 or more")?;
            dims.to_vec()
        }
        Op::ReverseSequence {
            batch_axis,
            time_axis,
        } => {
            o.require_axis(*batch_axis, dims.len())?;
            o.require_axis(*time_axis, dims.len())?;
            o.require(batch_axis != time_axis, "batch and time axes are the same")?;
            require_indices(o, o.get(1)?)?;
            o.require_shape(1, &[dims[*batch_axis]])?;
            dims.to_vec()
        }
        Op::EyeLike { dtype, .. } => {
            o.require(dims.len() == 2, "takes a matrix")?;
            return Ok(vec![TensorType::new(*dtype, dims)]);
        }
        Op::Reorder => {
            let fits = (3..=4).contains(&dims.len()) && matches!(x.dtype, DType::F32 | DType::U8);
            o.require(fits, "takes float32 or bytes of rank 3 or 4")?;
            dims.to_vec()
        }
        Op::GatherRows {
            row_elements,
            stored,
            ..
        } => {
            require_indices(o, x)?;
            let mut shape = dims.to_vec();
            shape.push(*row_elements);
            return Ok(vec![TensorType {
                dtype: if stored.is_float() {
                    DType::F32
                } else {
                    *stored
                },
                shape,
            }]);
        }
        _ => return o.fail("moves no data"),
    };
    Ok(vec![TensorType {
        dtype: x.dtype,
        shape,
    }])
}

fn require_indices(o: &Operands, indices: &TensorType) -> Inferred<()> {
    o.require(is_int(indices.dtype), "takes integer indices")
}

fn require_elements(o: &Operands, axis: usize, indices: &TensorType) -> Inferred<()> {
    let x = o.get(0)?;
    require_indices(o, indices)?;
    o.require_axis(axis, x.shape.len())?;
    let fits = indices.shape.len() == x.shape.len()
        && (0..x.shape.len()).all(|i| i == axis || indices.shape[i] <= x.shape[i]);
    if fits {
        return Ok(());
    }
    o.fail(format!(
        "indices {:?} do not fit data {:?}",
        indices.shape, x.shape
    ))
}

fn concat(o: &Operands, axis: usize) -> Inferred<Vec<usize>> {
    let first = o.get(0)?;
    o.require_axis(axis, first.shape.len())?;
    let parts = (0..o.inputs.len()).map(|i| o.get(i));
    let parts = parts.collect::<Inferred<Vec<_>>>()?;
    let mut full = parts.iter().copied().filter(|part| part.elements() > 0);
    let like = full.next().unwrap_or(first);
    let mut shape = like.shape.clone();
    shape[axis] = 0;
    for part in parts {
        o.same_dtype(first, part)?;
        let has_rank = part.shape.len() == shape.len();
        let fits = has_rank && (0..shape.len()).all(|d| d == axis || part.shape[d] == shape[d]);
        // As a list begins that grows: empty, whatever its other sizes.
        if has_rank && !fits && part.elements() == 0 {
            continue;
        }
        if !fits {
            return o.fail(format!(
                "parts {:?} and {:?} do not join along axis {axis}",
                like.shape, part.shape
            ));
        }
        match shape[axis].checked_add(part.shape[axis]) {
            Some(sum) => shape[axis] = sum,
            None => return o.fail("sizes overflow"),
        }
    }
    Ok(shape)
}

fn split(o: &Operands, axis: usize, sizes: &[usize]) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require_axis(axis, x.shape.len())?;
    let total = sizes.iter().try_fold(0usize, |n, &s| n.checked_add(s));
    if total != Some(x.shape[axis]) {
        return o.fail(format!(
            "sizes {sizes:?} do not add up to the axis's {}",
            x.shape[axis]
        ));
    }
    Ok(sizes
        .iter()
        .map(|&size| {
            let mut shape = x.shape.clone();
            shape[axis] = size;
            TensorType {
                dtype: x.dtype,
                shape,
            }
        })
        .collect())
}

fn pad(o: &Operands, mode: PadMode, pads: &[(isize, isize)]) -> Inferred<Vec<usize>> {
    let x = o.get(0)?;
    o.require(pads.len() == x.shape.len(), "has one pair of pads per axis")?;
    if let Some(fill) = o.opt(1) {
        o.same_dtype(x, fill)?;
        o.require(fill.elements() == 1, "takes a scalar fill value")?;
    }
    let mut shape = Vec::new();
    for (&dim, &(before, after)) in x.shape.iter().zip(pads) {
        let cropped = i128::from(before.min(0) as i64) + i128::from(after.min(0) as i64);
        let kept = dim as i128 + cropped;
        let grown = kept + i128::from(before.max(0) as i64) + i128::from(after.max(0) as i64);
        // What is left of an axis that is cropped from beyond its end is filled.
        let is_left = mode == PadMode::Constant && grown >= 0;
        o.require(kept >= 0 || is_left, "crops more than there is")?;
        o.require(
            kept > 0 || grown == 0 || mode == PadMode::Constant,
            "has nothing to repeat in an empty axis",
        )?;
        match usize::try_from(grown) {
            Ok(size) => shape.push(size),
            Err(_) => return o.fail("sizes overflow"),
        }
    }
    Ok(shape)
}

fn gather_nd(o: &Operands, batch_dims: usize) -> Inferred<Vec<usize>> {
    let (x, indices) = (o.get(0)?, o.get(1)?);
    require_indices(o, indices)?;
    let Some((&depth, lead)) = indices.shape.split_last() else {
        return o.fail("takes indices of rank 1 or more");
    };
    let fits = batch_dims <= lead.len()
        && batch_dims
            .checked_add(depth)
            .is_some_and(|n| n <= x.shape.len())
        && x.shape[..batch_dims] == lead[..batch_dims];
    if !fits {
        return o.fail(format!(
            "indices {:?} do not fit data {:?} with {batch_dims} batch axes",
            indices.shape, x.shape
        ));
    }
    let mut shape = lead.to_vec();
    shape.extend(&x.shape[batch_dims + depth..]);
    Ok(shape)
}

pub(super) fn resize(o: &Operands, attrs: &ResizeAttrs) -> Inferred<Vec<usize>> {
    let x = o.get(0)?;
    let rank = x.shape.len();
    o.require(
        attrs.output_shape.len() == rank && attrs.scales.len() == rank,
        "has one size and scale per axis",
    )?;
    o.require(
        attrs.roi.is_empty() || attrs.roi.len() == rank,
        "has one region of interest per axis",
    )?;
    o.require(
        attrs.scales.iter().all(|s| s.is_finite() && *s > 0.0),
        "scales must be positive",
    )?;
    o.require(
        x.elements() > 0 || attrs.output_shape.contains(&0),
        "cannot resize an empty input",
    )?;
    o.require(x.dtype != DType::Bool, "takes numbers")?;
    Ok(attrs.output_shape.clone())
}
