//! Element by element, and rows of neighbouring elements.

use super::{Call, blocked, is_at, strided_groups};
use crate::dispatch::{Dispatch, Span};
use crate::kernel::Kernel;
use crate::words::{Words, activation};
use neap_ir::op::{Activation, Binary, Softmax, Unary};
use neap_ops::{TensorMut, TensorRef};

/// As `element.wgsl` numbers them.
const FULL: u32 = 0;
const SCALAR: u32 = 1;
const BY_IMAGE_AND_CHANNEL: u32 = 2;
const BY_CHANNEL: u32 = 3;
const IN_PLACE: u32 = 4;

pub(super) fn unary(unary: Unary, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let does = match unary {
        Unary::Activation(activation) => activation,
        Unary::Tanh => Activation::Tanh,
        Unary::Identity => Activation::None,
        _ => return None,
    };
    alone(does, call, out)
}

pub(super) fn clip(
    low: Option<f64>,
    high: Option<f64>,
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let does = Activation::Clip {
        low: low.map_or(f32::MIN, |v| v as f32),
        high: high.map_or(f32::MAX, |v| v as f32),
    };
    alone(does, call, out)
}

fn alone(does: Activation, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = (call.floats(0)?, call.result()?);
    let full = x.layout == y.layout && x.len_bytes() == y.len_bytes();
    let grid = Grid::of(&y, 1, 1);
    full.then_some(())?;
    grid.dispatch(0, does, [Some((x, FULL)), None, None], &y, call, out)
}

pub(super) fn binary(binary: Binary, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (a, b, y) = (call.floats(0)?, call.floats(1)?, call.result()?);
    let does = match binary {
        Binary::Add => 1,
        Binary::Sub => 2,
        Binary::Mul => 3,
        Binary::Div => 4,
        Binary::Min => 5,
        Binary::Max => 6,
        _ => return None,
    };
    let (a_form, a_grid) = form(&a, &y)?;
    let (b_form, b_grid) = form(&b, &y)?;
    let grid = match (a_grid, b_grid) {
        (None, None) => Grid::of(&y, 1, 1),
        (Some(grid), None) | (None, Some(grid)) => grid,
        (Some(a), Some(b)) => (a == b).then_some(a)?,
    };
    let operands = [Some((a, a_form)), Some((b, b_form)), None];
    grid.dispatch(does, Activation::None, operands, &y, call, out)
}

pub(super) fn scale_shift(does: Activation, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, scale, shift) = (call.floats(0)?, call.floats(1)?, call.floats(2)?);
    let y = call.result()?;
    let channels = *y.shape().get(1)?;
    let fits = x.layout == y.layout
        && x.len_bytes() == y.len_bytes()
        && scale.elements() == channels
        && shift.elements() == channels;
    fits.then_some(())?;
    let positions = y.shape()[2..].iter().product();
    let grid = Grid::of(&y, positions, channels);
    let operands = [
        Some((x, FULL)),
        Some((scale, BY_CHANNEL)),
        Some((shift, BY_CHANNEL)),
    ];
    grid.dispatch(7, does, operands, &y, call, out)
}

/// How elements of the result are grouped, for operands that have fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    plane: usize,
    lanes: usize,
    channels: usize,
}

impl Grid {
    /// `channels` runs of `inner` elements, again and again; of a blocked result its channels.
    fn of(y: &TensorMut, inner: usize, channels: usize) -> Grid {
        match blocked(y.layout) {
            true => Grid {
                plane: y.shape()[2..].iter().product::<usize>() * 16,
                lanes: 16,
                channels: y.shape()[1].next_multiple_of(16),
            },
            false => Grid {
                plane: inner.max(1),
                lanes: 1,
                channels: channels.max(1),
            },
        }
    }

    fn dispatch(
        &self,
        does: u32,
        last: Activation,
        operands: [Option<(TensorRef, u32)>; 3],
        y: &TensorMut,
        call: &Call,
        out: &mut Vec<Dispatch>,
    ) -> Option<()> {
        let elements = y.len_bytes() / 4;
        let mut reads = [None; 3];
        let mut forms = [FULL; 3];
        let mut ends = [1; 3];
        for (i, operand) in operands.iter().enumerate() {
            let Some((tensor, form)) = operand else {
                continue;
            };
            if tensor.elements() == 0 {
                return None;
            }
            ends[i] = tensor.len_bytes() / 4;
            (forms[i], reads[i]) = match *form == FULL && is_at(y, tensor) {
                true => (IN_PLACE, None),
                false => (*form, Some(Span::of(tensor))),
            };
        }
        let mut words = Words::new(&[
            elements as u32,
            does,
            forms[0],
            forms[1],
            self.plane as u32,
            self.lanes as u32,
            self.channels as u32,
            ends[0] as u32 - 1,
            ends[1] as u32 - 1,
        ]);
        activation(last)?;
        words.activation = last;
        let dispatch = Dispatch {
            kernel: Kernel::Element,
            words,
            groups: [strided_groups(elements), 1, 1],
            reads,
            writes: Span::of_mut(y),
        };
        call.push(dispatch, out)
    }
}

/// How an operand is found, and the grid that this needs.
fn form(operand: &TensorRef, y: &TensorMut) -> Option<(u32, Option<Grid>)> {
    let result = y.shape();
    let lead = result.len().checked_sub(operand.shape().len())?;
    let dim = |axis: usize| axis.checked_sub(lead).map_or(1, |i| operand.shape()[i]);
    let axes = 0..result.len();
    if operand.elements() == y.elements() && operand.layout == y.layout {
        return (axes.clone().all(|i| dim(i) == result[i])).then_some((FULL, None));
    }
    if operand.shape().iter().all(|&d| d == 1) && !blocked(operand.layout) {
        return Some((SCALAR, None));
    }
    if blocked(y.layout) {
        let by_channel = dim(1) == result[1] && (2..result.len()).all(|i| dim(i) == 1);
        let grid = Some(Grid::of(y, 1, 1));
        return match (by_channel, lead, blocked(operand.layout)) {
            (true, 0, true) if dim(0) == result[0] => Some((BY_IMAGE_AND_CHANNEL, grid)),
            (true, 0, true) | (true, 1, false) => Some((BY_CHANNEL, grid)),
            _ => None,
        };
    }
    if blocked(operand.layout) {
        return None;
    }
    // A run of axes, repeated.
    let start = axes.clone().find(|&i| dim(i) != 1)?;
    let end = axes.clone().rfind(|&i| dim(i) != 1)? + 1;
    let fits = (start..end).all(|i| dim(i) == result[i]);
    let inner = result[end..].iter().product();
    let run = result[start..end].iter().product();
    fits.then(|| (BY_CHANNEL, Some(Grid::of(y, inner, run))))
}

pub(super) fn softmax(
    axis: usize,
    kind: Softmax,
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let x = call.floats(0)?;
    let is_last = axis + 1 == x.shape().len();
    (kind == Softmax::Softmax && is_last).then_some(())?;
    rows(axis, 0, 0.0, call, out)
}

pub(super) fn norm(
    axis: usize,
    epsilon: f32,
    centred: bool,
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    rows(axis, if centred { 1 } else { 2 }, epsilon, call, out)
}

fn rows(axis: usize, kind: u32, epsilon: f32, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = (call.floats(0)?, call.result()?);
    if blocked(x.layout) || blocked(y.layout) {
        return None;
    }
    let k: usize = x.shape().get(axis..)?.iter().product();
    let rows: usize = x.shape()[..axis].iter().product();
    let (scale, shift) = match kind {
        0 => (None, None),
        _ => (Some(call.floats(1)?), call.input(2)),
    };
    let fits = |tensor: &TensorRef| tensor.elements() == k && tensor.dtype() == x.dtype();
    [&scale, &shift]
        .into_iter()
        .flatten()
        .all(fits)
        .then_some(())?;
    let in_place = is_at(&y, &x);
    let words = Words::new(&[
        rows as u32,
        k as u32,
        kind,
        u32::from(shift.is_some()),
        epsilon.to_bits(),
        u32::from(in_place),
    ]);
    let dispatch = Dispatch {
        kernel: Kernel::Rows,
        words,
        groups: [rows.min(32_768) as u32, 1, 1],
        reads: [
            (!in_place).then(|| Span::of(&x)),
            scale.as_ref().map(Span::of),
            shift.as_ref().map(Span::of),
        ],
        writes: Span::of_mut(&y),
    };
    call.push(dispatch, out)
}
