//! What only moves elements.

use super::{Call, blocked, is_at, strided_groups};
use crate::dispatch::{Dispatch, Span};
use crate::kernel::Kernel;
use crate::words::Words;
use neap_ir::Layout;

pub(super) fn reorder(call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = (call.floats(0)?, call.result()?);
    if x.layout == y.layout {
        return None;
    }
    if is_at(&y, &x) {
        // It changes nothing there.
        return Some(());
    }
    let [images, channels, ref positions @ ..] = *x.shape() else {
        return None;
    };
    let positions: usize = positions.iter().product();
    let to_blocked = blocked(y.layout);
    let sizes = [images, channels, positions, usize::from(to_blocked)];
    let dispatch = Dispatch {
        kernel: Kernel::Reorder,
        words: Words::new(&sizes.map(|n| n as u32)),
        groups: [strided_groups(y.len_bytes() / 4), 1, 1],
        reads: [Some(Span::of(&x)), None, None],
        writes: Span::of_mut(&y),
        mask: None,
    };
    call.push(dispatch, out)
}

pub(super) fn concat(axis: usize, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let y = call.outputs.first().copied().flatten()?;
    let whole = Axis::of(y.shape(), axis, y.layout, y.dtype().size_bytes())?;
    let mut start = 0;
    for index in 0..call.inputs.len() {
        let x = call.input(index)?;
        let part = Axis::of(x.shape(), axis, x.layout, y.dtype().size_bytes())?;
        let (own, there) = (Span::of(&x), whole.part(Span::of_mut(&y), start, &part)?);
        start += x.shape()[axis];
        (x.layout == y.layout).then_some(())?;
        if !std::ptr::eq(own.start, there.start) {
            call.push(whole.copy(&part, own, there, part.run, whole.run), out)?;
        }
    }
    Some(())
}

pub(super) fn split(
    axis: usize,
    sizes: &[usize],
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let x = call.input(0)?;
    let whole = Axis::of(x.shape(), axis, x.layout, x.dtype().size_bytes())?;
    let mut start = 0;
    for (index, size) in sizes.iter().enumerate() {
        let y = call.outputs.get(index).copied().flatten();
        let Some(y) = y else {
            start += size;
            continue;
        };
        let part = Axis::of(y.shape(), axis, y.layout, x.dtype().size_bytes())?;
        let (own, there) = (Span::of_mut(&y), whole.part(Span::of(&x), start, &part)?);
        start += size;
        (x.layout == y.layout).then_some(())?;
        if !std::ptr::eq(own.start, there.start) {
            call.push(whole.copy(&part, there, own, whole.run, part.run), out)?;
        }
    }
    Some(())
}

/// A tensor as runs along an axis, in words of 4 bytes.
struct Axis {
    outer: usize,
    /// Words of one place of the axis, and places of a unit: channel blocks hold 16.
    unit: usize,
    places: usize,
    run: usize,
}

impl Axis {
    fn of(shape: &[usize], axis: usize, layout: Layout, element_bytes: usize) -> Option<Axis> {
        let words = element_bytes
            .is_multiple_of(4)
            .then_some(element_bytes / 4)?;
        let outer = shape.get(..axis)?.iter().product();
        let inner: usize = shape.get(axis + 1..)?.iter().product();
        let (unit, places) = match layout {
            Layout::Plain => (inner * words, 1),
            Layout::Blocked if axis == 1 => (inner * 16, 16),
            Layout::Blocked => return None,
        };
        let run = shape[axis].div_ceil(places) * unit;
        (outer > 0 && run > 0).then_some(Axis {
            outer,
            unit,
            places,
            run,
        })
    }

    /// Where a part lies that begins at a place.
    fn part(&self, all: Span, start: usize, part: &Axis) -> Option<Span> {
        start.is_multiple_of(self.places).then_some(())?;
        let skip = start / self.places * self.unit;
        Some(Span {
            start: all.start.wrapping_add(skip * 4),
            bytes: (((self.outer - 1) * self.run + part.run) * 4) as u64,
        })
    }

    fn copy(&self, part: &Axis, x: Span, y: Span, x_stride: usize, y_stride: usize) -> Dispatch {
        let sizes = [self.outer, part.run, x_stride, y_stride];
        Dispatch {
            kernel: Kernel::Copy,
            words: Words::new(&sizes.map(|n| n as u32)),
            groups: [strided_groups(self.outer * part.run), 1, 1],
            reads: [Some(x), None, None],
            writes: y,
            mask: None,
        }
    }
}
