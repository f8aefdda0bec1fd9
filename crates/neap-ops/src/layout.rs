//! Reorder between plain and channel-blocked tensors.

use crate::args::Args;
use crate::copy::copy_bytes;
use crate::error::Named;
use crate::nd::{GRAIN, Ptr, split};
use crate::{Context, OpError, TensorMut, TensorRef};
use neap_ir::graph::LANES;
use neap_ir::{DType, Layout};
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
    if x.dtype() == DType::U8 {
        bytes(x, y, [batch, channels, positions], ctx);
        return Ok(());
    }
    // SAFETY: the output does not overlap the input.
    let out = unsafe { y.f32s_mut() };
    let (isa, par) = (ctx.isa, ctx.par);
    match y.layout {
        Layout::Blocked => plain_to_blocked(isa, par, batch, channels, positions, x.f32s(), out),
        Layout::Plain => blocked_to_plain(isa, par, batch, channels, positions, x.f32s(), out),
    }
    .named(args.op)
}

/// Steps, in vectors of 16 channels of one position.
fn bytes(x: TensorRef, y: TensorMut, [batch, channels, positions]: [usize; 3], ctx: &Context) {
    let blocks = channels.div_ceil(LANES);
    let (from, to) = (x.bytes(), Ptr::<u8>(y.as_ptr()));
    split(
        ctx.par,
        batch * blocks * positions,
        GRAIN / LANES,
        &|range, _| {
            for vector in range {
                let (block, position) = (vector / positions, vector % positions);
                let (image, first) = (block / blocks, block % blocks * LANES);
                for lane in 0..(channels - first).min(LANES) {
                    let plain = (image * channels + first + lane) * positions + position;
                    let blocked = vector * LANES + lane;
                    // SAFETY: vectors do not overlap, in either layout, and lie in both tensors.
                    unsafe {
                        match y.layout {
                            Layout::Blocked => to.slice_mut(blocked, 1)[0] = from[plain],
                            Layout::Plain => to.slice_mut(plain, 1)[0] = from[blocked],
                        }
                    }
                }
            }
        },
    );
}
