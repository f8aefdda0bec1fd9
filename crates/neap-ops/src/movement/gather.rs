//! Gather, GatherElements, GatherND.

use crate::args::Args;
use crate::index::Indices;
use crate::nd::{GRAIN, Nd, Ptr, Strides, split};
use crate::scalar::with_width;
use crate::{Context, OpError};
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) fn gather(axis: usize, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, indices, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let width = y.dtype().size_bytes();
    let size = x.shape()[axis];
    let outer: usize = x.shape()[..axis].iter().product();
    let inner: usize = x.shape()[axis + 1..].iter().product();
    let count = indices.elements();
    let (src, dst) = (Ptr::<u8>::of(x.as_ptr()), Ptr(y.as_ptr()));
    let indices = Indices::of(&indices);
    let run = inner * width;
    let missed = AtomicBool::new(false);
    let per_task = GRAIN / inner.max(1);
    with_width!(width, T => split(ctx.par, outer * count, per_task, &|range, _| {
        for unit in range {
            let (o, i) = (unit / count, unit % count);
            // SAFETY: index `i` exists; its position was checked; the run is inside both tensors.
            unsafe {
                let Some(position) = indices.position(i, size) else {
                    missed.store(true, Ordering::Relaxed);
                    continue;
                };
                let from = src.get().add((o * size + position) * run);
                let to = dst.get().add(unit * run);
                if inner == 1 {
                    *to.cast::<T>() = *from.cast::<T>();
                } else {
                    std::ptr::copy_nonoverlapping(from, to, run);
                }
            }
        }
    }));
    in_range(missed, args)
}

pub(crate) fn gather_elements(axis: usize, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, indices, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let width = y.dtype().size_bytes();
    let own = Strides::row_major(x.shape(), 1);
    let mut base = Strides::empty();
    for a in 0..x.shape().len() {
        base.push(if a == axis { 0 } else { own[a] });
    }
    let nd = Nd::new(y.shape(), [&Strides::row_major(y.shape(), 1), &base]);
    let [_, base_step] = nd.inner();
    let (size, step) = (x.shape()[axis], own[axis]);
    let indices = Indices::of(&indices);
    let missed = AtomicBool::new(false);
    with_width!(width, T => {
        let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        nd.runs(ctx.par, &|[out, base], n| {
            for i in 0..n {
                let at = out as usize + i;
                // SAFETY: the index exists; the position is inside its axis, the rest of the base
                // inside the other axes, which the data covers.
                unsafe {
                    let Some(position) = indices.position(at, size) else {
                        missed.store(true, Ordering::Relaxed);
                        continue;
                    };
                    let from = base + i as isize * base_step + position as isize * step;
                    dst.write(at, src.read(from as usize));
                }
            }
        });
    });
    in_range(missed, args)
}

pub(crate) fn gather_nd(batch_dims: usize, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, indices, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let width = y.dtype().size_bytes();
    let Some((&depth, lead)) = indices.shape().split_last() else {
        return args.fail("takes indices of rank 1 or more");
    };
    let batch: usize = lead[..batch_dims].iter().product();
    let per_batch: usize = lead[batch_dims..].iter().product();
    let indexed = &x.shape()[batch_dims..batch_dims + depth];
    let inner: usize = x.shape()[batch_dims + depth..].iter().product();
    let matrix = indexed.iter().product::<usize>() * inner;
    let run = inner * width;
    let indices = Indices::of(&indices);
    let (src, dst) = (Ptr::<u8>::of(x.as_ptr()), Ptr(y.as_ptr()));
    let missed = AtomicBool::new(false);
    split(
        ctx.par,
        batch * per_batch,
        GRAIN / inner.max(1),
        &|range, _| {
            for unit in range {
                // SAFETY: the tuple exists, its positions are inside their axes.
                unsafe {
                    let Some(position) = tuple(&indices, unit * depth, indexed) else {
                        missed.store(true, Ordering::Relaxed);
                        continue;
                    };
                    let from = unit / per_batch * matrix + position * inner;
                    std::ptr::copy_nonoverlapping(
                        src.get().add(from * width),
                        dst.get().add(unit * run),
                        run,
                    );
                }
            }
        },
    );
    in_range(missed, args)
}

/// Row-major position that an index tuple names in `dims`.
///
/// # Safety
/// `at..at + dims.len()` is inside the indices.
pub(super) unsafe fn tuple(indices: &Indices, at: usize, dims: &[usize]) -> Option<usize> {
    let mut position = 0;
    for (i, &dim) in dims.iter().enumerate() {
        // SAFETY: as the caller vouches.
        position = position * dim + unsafe { indices.position(at + i, dim) }?;
    }
    Some(position)
}

fn in_range(missed: AtomicBool, args: &Args) -> Result<(), OpError> {
    if missed.into_inner() {
        return Err(OpError::index_out_of_range(args.op));
    }
    Ok(())
}
