//! Pad: constant, reflect, edge, wrap; negative pads crop.

use crate::args::Args;
use crate::copy::{copy_strided, fill};
use crate::nd::{GRAIN, MAX_RANK, Ptr, Strides, split};
use crate::scalar::with_width;
use crate::{Context, OpError};
use neap_ir::op::PadMode;

pub(crate) fn pad(
    mode: PadMode,
    pads: &[(isize, isize)],
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    if y.elements() == 0 {
        return Ok(());
    }
    let axes = Axes::of(x.shape(), pads);
    if mode == PadMode::Constant {
        return constant(&axes, args, ctx);
    }
    let rank = x.shape().len();
    let shape = y.shape();
    let width = y.dtype().size_bytes();
    let own = Strides::row_major(x.shape(), 1);
    let (lead, line) = match shape.split_last() {
        Some((&line, lead)) => (lead, line),
        None => (&[][..], 1),
    };
    let lines = y.elements() / line;
    with_width!(width, T => {
        let (src, dst) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        split(ctx.par, lines, GRAIN / line, &|range, _| {
            for unit in range {
                let (mut rest, mut base) = (unit, 0);
                for axis in (0..lead.len()).rev() {
                    let index = axes.source(mode, axis, rest % lead[axis]);
                    rest /= lead[axis];
                    base += index * own[axis] as usize;
                }
                for i in 0..line {
                    let index = if rank == 0 { 0 } else { axes.source(mode, rank - 1, i) };
                    // SAFETY: mapped indices are inside the input; lines are disjoint.
                    unsafe { dst.write(unit * line + i, src.read(base + index)) };
                }
            }
        });
    });
    Ok(())
}

/// How output positions of each axis map to input positions.
struct Axes {
    /// Elements added in front.
    before: [usize; MAX_RANK],
    /// Elements cropped in front.
    skip: [usize; MAX_RANK],
    /// Elements kept of the input.
    kept: [usize; MAX_RANK],
}

impl Axes {
    fn of(shape: &[usize], pads: &[(isize, isize)]) -> Axes {
        let mut axes = Axes {
            before: [0; MAX_RANK],
            skip: [0; MAX_RANK],
            kept: [1; MAX_RANK],
        };
        for (axis, (&dim, &(before, after))) in shape.iter().zip(pads).enumerate() {
            axes.before[axis] = before.max(0) as usize;
            axes.skip[axis] = before.min(0).unsigned_abs();
            let cropped = axes.skip[axis].saturating_add(after.min(0).unsigned_abs());
            axes.kept[axis] = dim.saturating_sub(cropped);
        }
        axes
    }

    fn source(&self, mode: PadMode, axis: usize, at: usize) -> usize {
        let kept = self.kept[axis] as isize;
        let p = at as isize - self.before[axis] as isize;
        let inside = match mode {
            PadMode::Wrap => p.rem_euclid(kept),
            PadMode::Reflect if kept > 1 => {
                let folded = p.rem_euclid(2 * (kept - 1));
                folded.min(2 * (kept - 1) - folded)
            }
            _ => p.clamp(0, kept - 1),
        };
        self.skip[axis] + inside as usize
    }
}

fn constant(axes: &Axes, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let width = y.dtype().size_bytes();
    let zero = 0u64;
    let value = match args.opt_input(1) {
        Some(fill) => fill.as_ptr(),
        None => (&raw const zero).cast(),
    };
    let rank = x.shape().len();
    let from = Strides::row_major(x.shape(), width);
    let to = Strides::row_major(y.shape(), width);
    let (mut skipped, mut added) = (0isize, 0isize);
    for axis in 0..rank {
        skipped += axes.skip[axis] as isize * from[axis];
        added += axes.before[axis] as isize * to[axis];
    }
    let kept = &axes.kept[..rank];
    // SAFETY: the kept part lies inside both tensors at these offsets.
    unsafe {
        if kept != y.shape() {
            fill(ctx.par, width, y.elements(), value, y.as_ptr());
        }
        if kept.iter().all(|&d| d > 0) {
            let source = x.as_ptr().offset(skipped);
            let target = y.as_ptr().offset(added);
            copy_strided(ctx.par, width, kept, source, &from, target, &to);
        }
    }
    Ok(())
}
