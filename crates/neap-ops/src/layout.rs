//! Reorder between plain and channel-blocked tensors.

use crate::args::Args;
use crate::copy::copy_bytes;
use crate::error::Named;
use crate::{Context, OpError};
use neap_ir::Layout;
use neap_kernels::reorder::{blocked_to_plain, plain_to_blocked};

pub(crate) fn reorder(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    if x.layout == y.layout {
        // SAFETY: same shape, type and layout.
        unsafe { copy_bytes(ctx.par, x.as_ptr(), y.as_ptr(), y.len_bytes()) };
        return Ok(());
    }
    if y.is_at(&x) {
        // Where it changes nothing, the two may be the same memory.
        return Ok(());
    }
    let (batch, channels) = (x.shape()[0], x.shape()[1]);
    let positions: usize = x.shape()[2..].iter().product();
    // SAFETY: the output does not overlap the input.
    let out = unsafe { y.f32s_mut() };
    let (isa, par) = (ctx.isa, ctx.par);
    match y.layout {
        Layout::Blocked => plain_to_blocked(isa, par, batch, channels, positions, x.f32s(), out),
        Layout::Plain => blocked_to_plain(isa, par, batch, channels, positions, x.f32s(), out),
    }
    .named(args.op)
}
