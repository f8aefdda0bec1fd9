//! TopK: the largest or smallest k along an axis, ties to the lower index.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::nd::{Ptr, split};
use crate::scalar::{Num, with_numeric};
use crate::{Context, OpError};
use std::cmp::Ordering;

/// One index per element of a line and worker.
pub(crate) fn workspace_bytes(length: usize, workers: usize) -> usize {
    scratch_bytes::<u32>(length * workers)
}

pub(crate) fn top_k(
    axis: usize,
    k: usize,
    largest: bool,
    sorted: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let x = args.input(0)?;
    let (values, indices) = (args.opt_output(0), args.opt_output(1));
    let length = x.shape()[axis];
    let inner: usize = x.shape()[axis + 1..].iter().product();
    let lines = x.shape()[..axis].iter().product::<usize>() * inner;
    if k == 0 || lines == 0 {
        return Ok(());
    }
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let orders = scratch.take::<u32>(length * ctx.par.workers())?;
    let orders = Ptr(orders.as_mut_ptr());
    let indices = indices.map(|t| Ptr::<i64>(t.as_ptr().cast()));
    with_numeric!(args.op, x.dtype(), T => {
        let src = Ptr::<T>::of(x.as_ptr());
        let values = values.map(|t| Ptr::<T>(t.as_ptr().cast()));
        split(ctx.par, lines, 1, &|range, worker| {
            // SAFETY: every worker has its own piece of the scratch.
            let order = unsafe { orders.slice_mut(worker * length, length) };
            for line in range {
                let base = line / inner * length * inner + line % inner;
                let out = line / inner * k * inner + line % inner;
                // SAFETY: the line is inside the input.
                let at = |i: u32| unsafe { src.read(base + i as usize * inner) };
                let by_value = |i: u32, j: u32| match largest {
                    true => compare(at(j), at(i)),
                    false => compare(at(i), at(j)),
                };
                for (i, o) in order.iter_mut().enumerate() {
                    *o = i as u32;
                }
                let top = first(order, k, sorted, &by_value);
                for (rank, &i) in top.iter().enumerate() {
                    // SAFETY: results of a line belong to one task.
                    unsafe {
                        if let Some(values) = values {
                            values.write(out + rank * inner, at(i));
                        }
                        if let Some(indices) = indices {
                            indices.write(out + rank * inner, i64::from(i));
                        }
                    }
                }
            }
        });
        Ok(())
    })
}

/// The first `k` by value, ties to the lower index: in that order, or by index. One function for all types of elements:
/// sorting is much code.
fn first<'a>(
    order: &'a mut [u32],
    k: usize,
    sorted: bool,
    by_value: &dyn Fn(u32, u32) -> Ordering,
) -> &'a mut [u32] {
    let before = |&i: &u32, &j: &u32| by_value(i, j).then(i.cmp(&j));
    if k < order.len() {
        order.select_nth_unstable_by(k - 1, before);
    }
    let top = &mut order[..k];
    match sorted {
        true => top.sort_unstable_by(before),
        false => top.sort_unstable(),
    }
    top
}

/// NaN counts as the largest.
fn compare<T: Num>(a: T, b: T) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| Num::is_nan(a).cmp(&Num::is_nan(b)))
}
