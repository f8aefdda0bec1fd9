//! Concat and Split, plain or channel-blocked.

use crate::args::Args;
use crate::copy::copy_strided;
use crate::nd::Strides;
use crate::{Context, OpError, TensorMut, TensorRef};
use neap_ir::Layout;
use neap_ir::graph::LANES;
use neap_ir::strips::Rows;

pub(crate) fn concat(axis: usize, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let y = args.output(0)?;
    let mut start = 0;
    for i in 0..args.inputs.len() {
        let x = args.input(i)?;
        // It may have other sizes.
        if x.elements() == 0 {
            continue;
        }
        let part = Part::of(axis, start, x.shape(), y.shape(), y.layout, args)?;
        // SAFETY: the part's range of the axis is inside the whole.
        unsafe {
            let to = y.as_ptr().add(part.offset);
            part.copy(x.as_ptr(), &part.own, to, &part.within, ctx);
        }
        start += x.shape()[axis];
    }
    Ok(())
}

pub(crate) fn split(
    axis: usize,
    sizes: &[usize],
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let x = args.input(0)?;
    let mut start = 0;
    for (i, size) in sizes.iter().enumerate() {
        if let Some(y) = args.opt_output(i) {
            let part = Part::of(axis, start, y.shape(), x.shape(), x.layout, args)?;
            // SAFETY: as above.
            unsafe {
                let from = x.as_ptr().add(part.offset);
                part.copy(from, &part.within, y.as_ptr(), &part.own, ctx);
            }
        }
        start += size;
    }
    Ok(())
}

/// Rows of a strip that are rows of a result.
pub(crate) struct Stretch<'a> {
    pub strip: TensorRef<'a>,
    /// Where they begin, in the strip and in the result.
    pub from: usize,
    pub to: usize,
    pub len: usize,
}

/// Calls `each` with what every strip has of these rows; the inputs from `first` on are the strips.
pub(crate) fn stretches(
    of: &Rows,
    first: usize,
    args: &Args,
    mut each: impl FnMut(Stretch) -> Result<(), OpError>,
) -> Result<(), OpError> {
    let (mut begin, last) = (0, of.start + of.len);
    for i in first..args.inputs.len() {
        let strip = args.input(i)?;
        let end = begin + strip.shape()[of.axis];
        let (from, to) = (begin.max(of.start), end.min(last));
        if from < to {
            each(Stretch {
                strip,
                from: from - begin,
                to: from - of.start,
                len: to - from,
            })?;
        }
        begin = end;
    }
    Ok(())
}

/// Rows of a tensor that comes in strips.
pub(crate) fn rows(of: &Rows, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let y = args.output(0)?;
    let width = y.dtype().size_bytes();
    // Rows of all that lies before the axis, and elements of a row.
    let (outer, inner) = match y.layout {
        Layout::Plain => (
            y.shape()[..of.axis].iter().product::<usize>(),
            y.shape()[of.axis + 1..].iter().product::<usize>(),
        ),
        Layout::Blocked => {
            args.require(of.axis == 2, "takes rows of blocked images")?;
            let inner: usize = y.shape()[3..].iter().product();
            (y.shape()[0] * y.shape()[1].div_ceil(LANES), inner * LANES)
        }
    };
    let stride = |rows: usize| {
        let mut strides = Strides::empty();
        strides.push((rows * inner * width) as isize);
        strides.push(width as isize);
        strides
    };
    stretches(of, 0, args, |own| {
        let dims = [outer, own.len * inner];
        // SAFETY: both ranges of rows are inside their tensors, which do not overlap.
        unsafe {
            let source = own.strip.as_ptr().add(own.from * inner * width);
            let target = y.as_ptr().add(own.to * inner * width);
            let (strides, within) = (stride(own.strip.shape()[of.axis]), stride(of.len));
            copy_strided(ctx.par, width, &dims, source, &strides, target, &within);
        }
        Ok(())
    })
}

/// Puts a strip's rows into the whole, in place or in a copy.
pub(crate) fn put(of: &Rows, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (strip, y) = (args.input(0)?, args.output(0)?);
    if let Some(before) = args.opt_input(1)
        && !y.is_at(&before)
    {
        // SAFETY: the output overlaps no input that is not in its place.
        unsafe { y.bytes_mut() }.copy_from_slice(before.bytes());
    }
    let part = Part::of(of.axis, of.start, strip.shape(), y.shape(), y.layout, args)?;
    // SAFETY: the strip's rows are inside the whole.
    unsafe {
        let to = y.as_ptr().add(part.offset);
        part.copy(strip.as_ptr(), &part.own, to, &part.within, ctx);
    }
    Ok(())
}

/// A range of channels of a blocked tensor.
pub(crate) fn slice_channels(
    start: usize,
    x: TensorRef,
    y: TensorMut,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let part = Part::of(1, start, y.shape(), x.shape(), Layout::Blocked, args)?;
    // SAFETY: as above.
    unsafe {
        let from = x.as_ptr().add(part.offset);
        part.copy(from, &part.within, y.as_ptr(), &part.own, ctx);
    }
    Ok(())
}

/// One part of a joined axis: `[outer][part][inner]` of `[outer][whole][inner]`.
struct Part {
    dims: [usize; 2],
    own: Strides,
    within: Strides,
    offset: usize,
    width: usize,
}

impl Part {
    fn of(
        axis: usize,
        start: usize,
        part: &[usize],
        whole: &[usize],
        layout: Layout,
        args: &Args,
    ) -> Result<Part, OpError> {
        let width = args.input(0)?.dtype().size_bytes();
        let outer: usize = whole[..axis].iter().product();
        let inner: usize = whole[axis + 1..].iter().product();
        let (part, whole, start, unit) = match layout {
            Layout::Plain => (part[axis], whole[axis], start, inner),
            Layout::Blocked => {
                args.require(
                    axis == 1 && start.is_multiple_of(LANES),
                    "joins blocked tensors only at channel blocks",
                )?;
                (
                    part[axis].div_ceil(LANES),
                    whole[axis].div_ceil(LANES),
                    start / LANES,
                    inner * LANES,
                )
            }
        };
        let run = part * unit;
        let row = |elements: usize| {
            let mut strides = Strides::empty();
            strides.push((elements * width) as isize);
            strides.push(width as isize);
            strides
        };
        Ok(Part {
            dims: [outer, run],
            own: row(run),
            within: row(whole * unit),
            offset: start * unit * width,
            width,
        })
    }

    /// # Safety
    /// Both views are inside their tensors.
    unsafe fn copy(
        &self,
        from: *const u8,
        from_strides: &Strides,
        to: *mut u8,
        to_strides: &Strides,
        ctx: &mut Context,
    ) {
        if std::ptr::eq(from, to) {
            return; // the part was made in its place
        }
        // SAFETY: as the caller vouches.
        unsafe {
            copy_strided(
                ctx.par,
                self.width,
                &self.dims,
                from,
                from_strides,
                to,
                to_strides,
            );
        }
    }
}
