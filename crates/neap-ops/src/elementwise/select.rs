//! Where.

use crate::args::Args;
use crate::nd::{Nd, Ptr, Strides};
use crate::scalar::with_width;
use crate::{Context, OpError};

pub(crate) fn select(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (condition, a, b) = (args.input(0)?, args.input(1)?, args.input(2)?);
    let y = args.output(0)?;
    let width = y.dtype().size_bytes();
    let nd = Nd::new(
        y.shape(),
        [
            &Strides::row_major(y.shape(), width),
            &Strides::broadcast(condition.shape(), y.shape(), 1),
            &Strides::broadcast(a.shape(), y.shape(), width),
            &Strides::broadcast(b.shape(), y.shape(), width),
        ],
    );
    let [_, sc, sa, sb] = nd.inner();
    let (pc, pa, pb, py) = (
        Ptr::<u8>::of(condition.as_ptr()),
        Ptr::<u8>::of(a.as_ptr()),
        Ptr::<u8>::of(b.as_ptr()),
        Ptr(y.as_ptr()),
    );
    with_width!(width, T => nd.runs(ctx.par, &|[oy, oc, oa, ob], n| {
        // SAFETY: the loop nest stays inside the operands, whose shapes were checked; an element
        // is read before its place is written.
        unsafe {
            let out = py.get().offset(oy).cast::<T>();
            let (c, a, b) = (pc.get().offset(oc), pa.get().offset(oa), pb.get().offset(ob));
            for i in 0..n {
                let k = i as isize;
                let source = if *c.offset(k * sc) != 0 {
                    a.offset(k * sa)
                } else {
                    b.offset(k * sb)
                };
                *out.add(i) = *source.cast::<T>();
            }
        }
    }));
    Ok(())
}
