//! Cast between element types.

use crate::args::Args;
use crate::copy::copy_bytes;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Scalar, with_any};
use crate::{Context, OpError};

pub(crate) fn cast(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    if x.dtype() == y.dtype() {
        // SAFETY: same shape and type.
        unsafe { copy_bytes(ctx.par, x.as_ptr(), y.as_ptr(), y.len_bytes()) };
        return Ok(());
    }
    let count = y.elements();
    with_any!(x.dtype(), S => with_any!(y.dtype(), D => {
        let (from, to) = (Ptr::<S>::of(x.as_ptr()), Ptr::<D>(y.as_ptr().cast()));
        split(ctx.par, count, GRAIN, &|range, _| {
            for i in range {
                // SAFETY: both hold `count` elements and do not overlap.
                unsafe { to.write(i, from.read(i).convert::<D>()) };
            }
        });
    }));
    Ok(())
}
