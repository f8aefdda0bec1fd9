//! Numbers of 8 bits, which are carried as `f32`.

use crate::args::Args;
use crate::nd::{GRAIN, Ptr, split};
use crate::{Context, OpError};
use neap_ir::Float8;

pub(crate) fn widen(kind: Float8, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let mut numbers = [0.0; 256];
    for (code, number) in (0..=u8::MAX).zip(&mut numbers) {
        *number = kind.decode(code);
    }
    let (from, to) = (Ptr::<u8>::of(x.as_ptr()), Ptr::<f32>(y.as_ptr().cast()));
    split(ctx.par, y.elements(), GRAIN, &|range, _| {
        for at in range {
            // SAFETY: both tensors have as many elements, and do not overlap.
            unsafe { to.write(at, numbers[from.read(at) as usize]) };
        }
    });
    Ok(())
}

pub(crate) fn round(
    kind: Float8,
    saturate: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (from, to) = (Ptr::<f32>::of(x.as_ptr()), Ptr::<f32>(y.as_ptr().cast()));
    split(ctx.par, y.elements(), GRAIN, &|range, _| {
        for at in range {
            // SAFETY: both tensors have as many elements; where they are one, each is read before it is written.
            unsafe { to.write(at, kind.round(from.read(at), saturate)) };
        }
    });
    Ok(())
}
