//! ScatterElements and ScatterND: a copy of the data, then updates in order on one worker.

use super::gather::tuple;
use crate::args::Args;
use crate::copy::copy_bytes;
use crate::index::Indices;
use crate::nd::{Nd, Ptr, Strides};
use crate::scalar::{Num, with_numeric, with_width};
use crate::{Context, OpError};
use neap_ir::op::ScatterReduction;
use neap_kernels::parallel::Serial;
use std::sync::atomic::{AtomicBool, Ordering};

/// Combines one element of the output with one update.
type Combine = unsafe fn(to: *mut u8, from: *const u8, count: usize);

pub(crate) fn scatter_elements(
    axis: usize,
    reduction: ScatterReduction,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, indices, updates) = (args.input(0)?, args.input(1)?, args.input(2)?);
    let y = args.output(0)?;
    let combine = choose(reduction, args)?;
    // SAFETY: same shape and type.
    unsafe { copy_bytes(ctx.par, x.as_ptr(), y.as_ptr(), y.len_bytes()) };
    let width = y.dtype().size_bytes();
    let own = Strides::row_major(x.shape(), width);
    let mut base = Strides::empty();
    for a in 0..x.shape().len() {
        base.push(if a == axis { 0 } else { own[a] });
    }
    let shape = indices.shape();
    let nd = Nd::new(shape, [&Strides::row_major(shape, 1), &base]);
    let [_, base_step] = nd.inner();
    let (size, step) = (x.shape()[axis], own[axis]);
    let indices = Indices::of(&indices);
    let (src, dst) = (Ptr::<u8>::of(updates.as_ptr()), Ptr(y.as_ptr()));
    let missed = AtomicBool::new(false);
    nd.runs(&Serial, &|[flat, base], n| {
        for i in 0..n {
            let at = flat as usize + i;
            // SAFETY: index and update exist; the position is inside its axis and the base inside
            // the other axes; all on one worker.
            unsafe {
                let Some(position) = indices.position(at, size) else {
                    missed.store(true, Ordering::Relaxed);
                    continue;
                };
                let to = base + i as isize * base_step + position as isize * step;
                combine(dst.get().offset(to), src.get().add(at * width), 1);
            }
        }
    });
    finish(missed, args)
}

pub(crate) fn scatter_nd(
    reduction: ScatterReduction,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, indices, updates) = (args.input(0)?, args.input(1)?, args.input(2)?);
    let y = args.output(0)?;
    let combine = choose(reduction, args)?;
    // SAFETY: same shape and type.
    unsafe { copy_bytes(ctx.par, x.as_ptr(), y.as_ptr(), y.len_bytes()) };
    let Some((&depth, lead)) = indices.shape().split_last() else {
        return args.fail("takes indices of rank 1 or more");
    };
    let width = y.dtype().size_bytes();
    let count: usize = lead.iter().product();
    let inner: usize = x.shape()[depth..].iter().product();
    let indices = Indices::of(&indices);
    let missed = AtomicBool::new(false);
    for unit in 0..count {
        // SAFETY: the tuple exists, its positions are inside their axes.
        unsafe {
            let Some(position) = tuple(&indices, unit * depth, &x.shape()[..depth]) else {
                missed.store(true, Ordering::Relaxed);
                continue;
            };
            let to = y.as_ptr().add(position * inner * width);
            combine(to, updates.as_ptr().add(unit * inner * width), inner);
        }
    }
    finish(missed, args)
}

fn choose(reduction: ScatterReduction, args: &Args) -> Result<Combine, OpError> {
    let dtype = args.output(0)?.dtype();
    if reduction == ScatterReduction::None {
        return Ok(with_width!(dtype.size_bytes(), T => overwrite::<T> as Combine));
    }
    with_numeric!(args.op, dtype, T => Ok(match reduction {
        ScatterReduction::Add => combine::<T, Add> as Combine,
        ScatterReduction::Mul => combine::<T, Mul>,
        ScatterReduction::Max => combine::<T, Max>,
        ScatterReduction::Min => combine::<T, Min>,
        ScatterReduction::None => overwrite::<T>,
    }))
}

trait Merge<T> {
    fn merge(a: T, b: T) -> T;
}

macro_rules! merges {
    ($($name:ident $method:ident;)*) => {$(
        struct $name;
        impl<T: Num> Merge<T> for $name {
            fn merge(a: T, b: T) -> T { a.$method(b) }
        }
    )*};
}

merges! {
    Add add;
    Mul mul;
    Max max_nan;
    Min min_nan;
}

unsafe fn overwrite<T: Copy>(to: *mut u8, from: *const u8, count: usize) {
    // SAFETY: the caller vouches for `count` aligned elements at both.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<T>(), to.cast::<T>(), count) };
}

unsafe fn combine<T: Num, M: Merge<T>>(to: *mut u8, from: *const u8, count: usize) {
    let (to, from) = (to.cast::<T>(), from.cast::<T>());
    for i in 0..count {
        // SAFETY: the caller vouches for `count` aligned elements at both.
        unsafe { *to.add(i) = M::merge(*to.add(i), *from.add(i)) };
    }
}

fn finish(missed: AtomicBool, args: &Args) -> Result<(), OpError> {
    if missed.into_inner() {
        return Err(OpError::index_out_of_range(args.op));
    }
    Ok(())
}
