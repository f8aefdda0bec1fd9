//! Operators that are one strided copy: slices, transposes, repeats, block rearrangements.

use crate::args::Args;
use crate::copy::{copy_bytes, copy_strided};
use crate::nd::{GRAIN, Ptr, Strides, split};
use crate::{Context, OpError};
use neap_ir::Layout;
use neap_ir::graph::LANES;
use neap_ir::op::SliceRange;

pub(crate) fn reshape(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    // SAFETY: both hold the same number of elements of as many bytes.
    unsafe { copy_bytes(ctx.par, x.as_ptr(), y.as_ptr(), y.len_bytes()) };
    Ok(())
}

pub(crate) fn slice(ranges: &[SliceRange], args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    if y.elements() == 0 {
        return Ok(());
    }
    if y.layout == Layout::Blocked {
        let Some(start) = channel_slice(ranges, x.shape()) else {
            return args.fail("slices blocked tensors only at channel blocks");
        };
        return super::join::slice_channels(start, x, y, args, ctx);
    }
    let width = y.dtype().size_bytes();
    let own = Strides::row_major(x.shape(), width);
    let mut steps = Strides::empty();
    let mut start = 0isize;
    for (axis, range) in ranges.iter().enumerate() {
        start += range.start as isize * own[axis];
        steps.push(own[axis] * range.step);
    }
    // SAFETY: ranges were checked to lie inside their axes.
    unsafe {
        let from = x.as_ptr().offset(start);
        if std::ptr::eq(from, y.as_ptr()) {
            return Ok(()); // the part was made where it is
        }
        let to = Strides::row_major(y.shape(), width);
        copy_strided(ctx.par, width, y.shape(), from, &steps, y.as_ptr(), &to);
    }
    Ok(())
}

/// Where a slice that only takes channels starts, when that is a block.
pub(crate) fn channel_slice(ranges: &[SliceRange], shape: &[usize]) -> Option<usize> {
    let whole = |axis: usize| {
        let range = &ranges[axis];
        range.start == 0 && range.len == shape[axis] && (range.step == 1 || range.len == 1)
    };
    let channels = ranges.get(1)?;
    let fits = channels.step == 1
        && channels.start.is_multiple_of(LANES)
        && (0..ranges.len()).all(|axis| axis == 1 || whole(axis));
    fits.then_some(channels.start)
}

pub(crate) fn transpose(perm: &[usize], args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let width = y.dtype().size_bytes();
    let own = Strides::row_major(x.shape(), width);
    let mut steps = Strides::empty();
    for &axis in perm {
        steps.push(own[axis]);
    }
    let to = Strides::row_major(y.shape(), width);
    // SAFETY: the permuted view covers the input exactly.
    unsafe {
        copy_strided(
            ctx.par,
            width,
            y.shape(),
            x.as_ptr(),
            &steps,
            y.as_ptr(),
            &to,
        )
    };
    Ok(())
}

pub(crate) fn expand(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let width = y.dtype().size_bytes();
    let steps = Strides::broadcast(x.shape(), y.shape(), width);
    let to = Strides::row_major(y.shape(), width);
    // SAFETY: the broadcast view stays inside the input.
    unsafe {
        copy_strided(
            ctx.par,
            width,
            y.shape(),
            x.as_ptr(),
            &steps,
            y.as_ptr(),
            &to,
        )
    };
    Ok(())
}

pub(crate) fn tile(repeats: &[usize], args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let width = y.dtype().size_bytes();
    let own = Strides::row_major(x.shape(), width);
    let whole = Strides::row_major(y.shape(), width);
    let mut dims = [1usize; 2 * crate::nd::MAX_RANK];
    let (mut from, mut to) = (Strides::empty(), Strides::empty());
    for (axis, &dim) in x.shape().iter().enumerate() {
        dims[2 * axis] = repeats[axis];
        dims[2 * axis + 1] = dim;
        from.push(0);
        from.push(own[axis]);
        to.push(whole[axis] * dim as isize);
        to.push(whole[axis]);
    }
    let dims = &dims[..2 * x.shape().len()];
    // SAFETY: each repeat of each axis lies inside the output.
    unsafe { copy_strided(ctx.par, width, dims, x.as_ptr(), &from, y.as_ptr(), &to) };
    Ok(())
}

/// `[n, c, h, w]` to `[n, c/b², h·b, w·b]`.
pub(crate) fn depth_to_space(
    block: usize,
    column_row_depth: bool,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let &[n, c, h, w] = x.shape() else {
        return args.fail("takes an input of rank 4");
    };
    let (b, depth) = (block, c / (block * block));
    let width = y.dtype().size_bytes();
    // The channel axis split in three; which of them is the depth differs between the modes.
    let parts = if column_row_depth {
        [n, depth, b, b, h, w]
    } else {
        [n, b, b, depth, h, w]
    };
    let own = Strides::row_major(&parts, width);
    let order = if column_row_depth {
        [0, 1, 4, 2, 5, 3]
    } else {
        [0, 3, 4, 1, 5, 2]
    };
    permuted(&parts, &own, &order, args, ctx)
}

/// `[n, c, h, w]` to `[n, b²·c, h/b, w/b]`.
pub(crate) fn space_to_depth(block: usize, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let x = args.input(0)?;
    let &[n, c, h, w] = x.shape() else {
        return args.fail("takes an input of rank 4");
    };
    let parts = [n, c, h / block, block, w / block, block];
    let own = Strides::row_major(&parts, x.dtype().size_bytes());
    permuted(&parts, &own, &[0, 3, 5, 1, 2, 4], args, ctx)
}

fn permuted(
    parts: &[usize; 6],
    own: &Strides,
    order: &[usize; 6],
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let width = y.dtype().size_bytes();
    let dims = order.map(|axis| parts[axis]);
    let mut from = Strides::empty();
    for &axis in order {
        from.push(own[axis]);
    }
    let to = Strides::row_major(&dims, width);
    // SAFETY: the permuted view covers the input exactly, and `dims` the output.
    unsafe { copy_strided(ctx.par, width, &dims, x.as_ptr(), &from, y.as_ptr(), &to) };
    Ok(())
}

/// Upper or lower triangle of every matrix; the rest is zero.
pub(crate) fn trilu(
    upper: bool,
    diagonal: i64,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let &[.., rows, cols] = x.shape() else {
        return args.fail("takes an input of rank 2 or more");
    };
    let width = y.dtype().size_bytes();
    let lines = y.elements().checked_div(cols).unwrap_or(0);
    let (src, dst) = (Ptr::<u8>::of(x.as_ptr()), Ptr(y.as_ptr()));
    split(ctx.par, lines, GRAIN / cols.max(1), &|range, _| {
        for line in range {
            let row = (line % rows) as i128;
            let edge = row + i128::from(diagonal) + i128::from(!upper);
            let edge = edge.clamp(0, cols as i128) as usize;
            let kept = if upper { edge..cols } else { 0..edge };
            let (start, end) = (kept.start * width, kept.end * width);
            // SAFETY: the line is inside both tensors.
            unsafe {
                let from = src.get().add(line * cols * width);
                let to = dst.get().add(line * cols * width);
                std::ptr::copy(from.add(start), to.add(start), end - start);
                std::ptr::write_bytes(to, 0, start);
                std::ptr::write_bytes(to.add(end), 0, cols * width - end);
            }
        }
    });
    Ok(())
}
