//! What is one strided copy of words: transposes, slices, repeats, rearranged blocks, constant padding.

use super::{Call, blocked, strided_groups};
use crate::dispatch::{Dispatch, Span};
use crate::kernel::Kernel;
use crate::words::Words;
use neap_ir::op::{PadMode, SliceRange};
use neap_ir::{Layout, TensorType};
use neap_ops::{TensorMut, TensorRef};

/// Axes that `move.wgsl` takes.
const MOST_AXES: usize = 6;

/// Axes with the steps of two operands, the outermost first. Neighbours that are one axis in both are joined.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Axes {
    len: usize,
    has_too_many: bool,
    axes: [(usize, isize, isize); MOST_AXES],
}

impl Axes {
    pub(super) fn push(&mut self, size: usize, x_step: isize, y_step: isize) {
        if size == 1 {
            return;
        }
        let (x_all, y_all) = (size as isize * x_step, size as isize * y_step);
        if let Some(last) = self.len.checked_sub(1)
            && (self.axes[last].1, self.axes[last].2) == (x_all, y_all)
        {
            self.axes[last] = (self.axes[last].0 * size, x_step, y_step);
            return;
        }
        self.has_too_many |= self.len == MOST_AXES;
        if !self.has_too_many {
            self.axes[self.len] = (size, x_step, y_step);
            self.len += 1;
        }
    }

    /// As exactly so many, with those of one place in front; `None` where there are more.
    pub(super) fn padded<const N: usize>(&self) -> Option<[(usize, isize, isize); N]> {
        let lead = N.checked_sub(self.len)?;
        let own = |i: usize| i.checked_sub(lead).map_or((1, 0, 0), |i| self.axes[i]);
        (!self.has_too_many).then(|| std::array::from_fn(own))
    }

    fn dispatch(
        &self,
        x: Option<Part>,
        y: Part,
        call: &Call,
        out: &mut Vec<Dispatch>,
    ) -> Option<()> {
        let axes = self.padded::<MOST_AXES>()?;
        let total: usize = axes.iter().map(|(size, ..)| size).product();
        // Two vectors of four for each, of which six are used.
        let wide = |of: fn(&(usize, isize, isize)) -> u32| -> [u32; 8] {
            std::array::from_fn(|i| axes.get(i).map_or(0, of))
        };
        let head = [
            u32::try_from(total).ok()?,
            x.map_or(0, |x| x.first as u32),
            y.first as u32,
            u32::from(x.is_none()),
        ];
        let steps = [
            wide(|axis| axis.0 as u32),
            wide(|axis| axis.1 as i32 as u32),
            wide(|axis| axis.2 as i32 as u32),
        ];
        let mut words = [0; 28];
        let all = head.iter().chain(steps.iter().flatten());
        words.iter_mut().zip(all).for_each(|(word, &w)| *word = w);
        let dispatch = Dispatch {
            kernel: Kernel::Move,
            words: Words::new(&words),
            groups: [strided_groups(total), 1, 1],
            reads: [x.map(|x| x.all), None, None],
            writes: y.all,
            mask: None,
        };
        call.push(dispatch, out)
    }
}

/// An operand, and its word at which a copy begins.
#[derive(Debug, Clone, Copy)]
struct Part {
    all: Span,
    first: usize,
}

fn is_of_words(ty: &TensorType) -> bool {
    ty.dtype.size_bytes() == 4
}

/// Words from each place of an axis to the next.
fn steps(shape: &[usize]) -> impl Fn(usize) -> isize {
    move |axis| shape[axis + 1..].iter().product::<usize>() as isize
}

/// Plain operands of a type whose elements are words.
fn plain<'a>(call: &Call<'a>) -> Option<(TensorRef<'a>, TensorMut<'a>)> {
    let (x, y) = (call.input(0)?, call.outputs.first().copied().flatten()?);
    let is_plain = x.layout == Layout::Plain && y.layout == Layout::Plain;
    (is_plain && y.elements() > 0 && is_of_words(y.ty)).then_some((x, y))
}

/// From `first` of x on to all of y.
fn whole(axes: &Axes, first: usize, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = (call.input(0)?, call.outputs.first().copied().flatten()?);
    let part = |all, first| Part { all, first };
    axes.dispatch(
        Some(part(Span::of(&x), first)),
        part(Span::of_mut(&y), 0),
        call,
        out,
    )
}

pub(super) fn reshape(call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = (call.input(0)?, call.outputs.first().copied().flatten()?);
    if x.layout == y.layout && super::is_at(&y, &x) {
        return Some(());
    }
    let (_, y) = plain(call)?;
    let mut axes = Axes::default();
    axes.push(y.elements(), 1, 1);
    whole(&axes, 0, call, out)
}

pub(super) fn transpose(perm: &[usize], call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = plain(call)?;
    let (from, to) = (steps(x.shape()), steps(y.shape()));
    let mut axes = Axes::default();
    for (axis, &origin) in perm.iter().enumerate() {
        axes.push(y.shape()[axis], from(origin), to(axis));
    }
    whole(&axes, 0, call, out)
}

pub(super) fn expand(call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = plain(call)?;
    let (from, to) = (steps(x.shape()), steps(y.shape()));
    let lead = y.shape().len().checked_sub(x.shape().len())?;
    let mut axes = Axes::default();
    for (axis, &size) in y.shape().iter().enumerate() {
        let own = axis.checked_sub(lead).filter(|&i| x.shape()[i] != 1);
        axes.push(size, own.map_or(0, &from), to(axis));
    }
    whole(&axes, 0, call, out)
}

pub(super) fn tile(repeats: &[usize], call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = plain(call)?;
    let (from, to) = (steps(x.shape()), steps(y.shape()));
    let mut axes = Axes::default();
    for (axis, &size) in x.shape().iter().enumerate() {
        axes.push(*repeats.get(axis)?, 0, to(axis) * size as isize);
        axes.push(size, from(axis), to(axis));
    }
    whole(&axes, 0, call, out)
}

/// `[n, c, h, w]` with `c`, or `h` and `w`, in parts, in another order.
pub(super) fn rearrange(
    parts: [usize; 6],
    order: [usize; 6],
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    plain(call)?;
    let from = steps(&parts);
    let sizes = order.map(|axis| parts[axis]);
    let to = steps(&sizes);
    let mut axes = Axes::default();
    for (place, &axis) in order.iter().enumerate() {
        axes.push(sizes[place], from(axis), to(place));
    }
    whole(&axes, 0, call, out)
}

pub(super) fn depth_to_space(
    block: usize,
    column_row_depth: bool,
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let &[n, c, h, w] = call.input(0)?.shape() else {
        return None;
    };
    let depth = c / (block * block);
    match column_row_depth {
        true => rearrange(
            [n, depth, block, block, h, w],
            [0, 1, 4, 2, 5, 3],
            call,
            out,
        ),
        false => rearrange(
            [n, block, block, depth, h, w],
            [0, 3, 4, 1, 5, 2],
            call,
            out,
        ),
    }
}

pub(super) fn space_to_depth(block: usize, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let &[n, c, h, w] = call.input(0)?.shape() else {
        return None;
    };
    rearrange(
        [n, c, h / block, block, w / block, block],
        [0, 3, 5, 1, 2, 4],
        call,
        out,
    )
}

pub(super) fn slice(ranges: &[SliceRange], call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = (call.input(0)?, call.outputs.first().copied().flatten()?);
    is_of_words(y.ty).then_some(())?;
    let mut axes = Axes::default();
    let mut first = 0;
    if blocked(y.layout) {
        // Whole blocks of channels, of all images.
        let channels = ranges.get(1)?;
        let plane = x.shape().get(2..)?.iter().product::<usize>() * 16;
        let blocks = |channels: usize| channels.div_ceil(16) * plane;
        let is_whole = ranges
            .iter()
            .zip(x.shape())
            .enumerate()
            .all(|(axis, (range, &size))| {
                axis == 1 || range.start == 0 && range.len == size && (range.step == 1 || size == 1)
            });
        let fits = is_whole && ranges.len() == x.shape().len();
        (fits && blocked(x.layout) && channels.step == 1 && channels.start.is_multiple_of(16))
            .then_some(())?;
        first = channels.start / 16 * plane;
        let (from, to) = (blocks(x.shape()[1]), blocks(channels.len));
        axes.push(x.shape()[0], from as isize, to as isize);
        axes.push(to, 1, 1);
    } else {
        let (x, y) = plain(call)?;
        let (from, to) = (steps(x.shape()), steps(y.shape()));
        for (axis, range) in ranges.iter().enumerate() {
            first += range.start * from(axis) as usize;
            axes.push(range.len, from(axis) * range.step, to(axis));
        }
    }
    if std::ptr::eq(x.as_ptr().wrapping_add(first * 4), y.as_ptr()) {
        // The part was made where it is.
        return Some(());
    }
    whole(&axes, first, call, out)
}

pub(super) fn pad(
    mode: PadMode,
    pads: &[(isize, isize)],
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let (x, y) = plain(call)?;
    (mode == PadMode::Constant).then_some(())?;
    let (from, to) = (steps(x.shape()), steps(y.shape()));
    let (mut fill, mut copy) = (Axes::default(), Axes::default());
    let (mut x_first, mut y_first) = (0, 0);
    let mut is_empty = false;
    for (axis, &(before, after)) in pads.iter().enumerate() {
        let size = *x.shape().get(axis)? as isize;
        let kept = usize::try_from(size + before.min(0) + after.min(0)).ok()?;
        x_first += before.min(0).unsigned_abs() * from(axis) as usize;
        y_first += before.max(0).unsigned_abs() * to(axis) as usize;
        copy.push(kept, from(axis), to(axis));
        is_empty |= kept == 0;
    }
    fill.push(y.elements(), 0, 1);
    let target = |first| Part {
        all: Span::of_mut(&y),
        first,
    };
    let value = call.input(1).map(|value| Part {
        all: Span::of(&value),
        first: 0,
    });
    fill.dispatch(value, target(0), call, out)?;
    match is_empty {
        true => Some(()),
        false => {
            let source = Part {
                all: Span::of(&x),
                first: x_first,
            };
            copy.dispatch(Some(source), target(y_first), call, out)
        }
    }
}
