//! ArgMax and ArgMin.

use crate::args::Args;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Num, with_numeric};
use crate::{Context, OpError};

/// Ties go to the first index, or the last when asked; NaN is the extreme of either kind.
pub(crate) fn arg_reduce(
    largest: bool,
    axis: usize,
    select_last: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let length = x.shape()[axis];
    let inner: usize = x.shape()[axis + 1..].iter().product();
    let dst = Ptr::<i64>(y.as_ptr().cast());
    with_numeric!(args.op, x.dtype(), T => {
        let src = Ptr::<T>::of(x.as_ptr());
        split(ctx.par, y.elements(), GRAIN / length.max(1), &|range, _| {
            for result in range {
                let base = result / inner * length * inner + result % inner;
                // SAFETY: the line is inside the input, which is not empty along the axis.
                let (mut best, mut best_at) = (unsafe { src.read(base) }, 0);
                for i in 1..length {
                    // SAFETY: as above.
                    let v = unsafe { src.read(base + i * inner) };
                    let beats = if Num::is_nan(best) {
                        select_last && Num::is_nan(v)
                    } else {
                        let better = if largest { v > best } else { v < best };
                        better || Num::is_nan(v) || (select_last && v == best)
                    };
                    if beats {
                        (best, best_at) = (v, i);
                    }
                }
                // SAFETY: each result belongs to one task.
                unsafe { dst.write(result, best_at as i64) };
            }
        });
        Ok(())
    })
}
