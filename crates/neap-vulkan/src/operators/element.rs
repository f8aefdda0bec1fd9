//! Element by element, and rows of neighbouring elements.

use super::{Call, blocked, is_at, strided_groups};
use crate::dispatch::{Dispatch, Span};
use crate::kernel::Kernel;
use crate::tiles::Way;
use crate::words::{Words, activation, is_bounded};
use neap_ir::op::{Activation, Binary, Softmax, Unary};
use neap_ops::{TensorMut, TensorRef};

/// As `element.wgsl` numbers them.
const FULL: u32 = 0;
const SCALAR: u32 = 1;
const BY_IMAGE_AND_CHANNEL: u32 = 2;
const BY_CHANNEL: u32 = 3;
const IN_PLACE: u32 = 4;
/// From here on, what it does is a curve.
const FIRST_CURVE: u32 = 16;

pub(super) fn unary(unary: Unary, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let does = match unary {
        Unary::Activation(activation) => activation,
        Unary::Tanh => Activation::Tanh,
        Unary::Identity => Activation::None,
        _ => return curve(unary, call, out),
    };
    alone(does, call, out)
}

/// Those that are no activations.
fn curve(unary: Unary, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let does = match unary {
        Unary::Sqrt => 16,
        Unary::Exp => 17,
        Unary::Log => 18,
        Unary::Neg => 19,
        Unary::Abs => 20,
        Unary::Reciprocal => 21,
        Unary::Erf => 22,
        Unary::Softplus => 23,
        Unary::Floor => 24,
        Unary::Ceil => 25,
        Unary::Round => 26,
        Unary::Sign => 27,
        Unary::Sin => 28,
        Unary::Cos => 29,
        Unary::Softsign => 30,
        Unary::Mish => 31,
        _ => return None,
    };
    each(does, Activation::None, call, out)
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

fn alone(last: Activation, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    each(0, last, call, out)
}

fn each(does: u32, last: Activation, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = (call.floats(0)?, call.result()?);
    let full = x.layout == y.layout && x.len_bytes() == y.len_bytes();
    let grid = Grid::of(&y, 1, 1);
    full.then_some(())?;
    grid.dispatch(does, last, [Some((x, FULL)), None, None], &y, call, out)
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
        let mut kernel = Kernel::Element;
        for (i, operand) in operands.iter().enumerate() {
            let Some((tensor, form)) = operand else {
                continue;
            };
            if tensor.elements() == 0 {
                return None;
            }
            ends[i] = tensor.len_bytes() / 4;
            if ![FULL, SCALAR].contains(form) {
                kernel = Kernel::ElementSpread;
            }
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
        if does >= FIRST_CURVE || !is_bounded(last) {
            kernel = kernel.of_more();
        }
        let dispatch = Dispatch {
            kernel,
            words,
            groups: [strided_groups(elements), 1, 1],
            reads,
            writes: Span::of_mut(y),
            mask: None,
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
    let kind = match kind {
        Softmax::Softmax => 0,
        Softmax::LogSoftmax => 3,
        Softmax::Hardmax => return None,
    };
    let (&k, inner) = x.shape().get(axis..)?.split_first()?;
    let rows = Rows {
        step: inner.iter().product(),
        ..Rows::of(x.elements().checked_div(k)?, k, kind)
    };
    (!blocked(x.layout)).then_some(())?;
    rows.dispatch(call, out)
}

pub(super) fn norm(
    axis: usize,
    epsilon: f32,
    centred: bool,
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let x = call.floats(0)?;
    let k: usize = x.shape().get(axis..)?.iter().product();
    let rows = Rows {
        epsilon,
        scales: k,
        ..Rows::of(x.elements().checked_div(k)?, k, if centred { 1 } else { 2 })
    };
    (!blocked(x.layout)).then_some(())?;
    rows.dispatch(call, out)
}

pub(super) fn instance_norm(epsilon: f32, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let x = call.floats(0)?;
    let &[images, channels, ref positions @ ..] = x.shape() else {
        return None;
    };
    if !blocked(x.layout) {
        return group_norm(channels, epsilon, false, call, out);
    }
    // Each lane of a block is a row; those past the last channel take its scale, and are never read.
    let lanes = channels.next_multiple_of(16);
    let k = positions.iter().product();
    let rows = Rows {
        epsilon,
        step: 16,
        scales: channels,
        scale_period: lanes,
        scale_width: 1,
        scale_inner: k,
        ..Rows::of(images * lanes, k, 1)
    };
    rows.dispatch(call, out)
}

pub(super) fn group_norm(
    groups: usize,
    epsilon: f32,
    per_group: bool,
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let x = call.floats(0)?;
    let &[images, channels, ref positions @ ..] = x.shape() else {
        return None;
    };
    let width = channels.checked_div(groups)?;
    let positions: usize = positions.iter().product();
    let k = width * positions;
    let rows = Rows {
        epsilon,
        scales: if per_group { groups } else { channels },
        scale_period: groups,
        scale_width: if per_group { 1 } else { width },
        scale_inner: if per_group { k } else { positions },
        ..Rows::of(images * groups, k, 1)
    };
    let rows = match blocked(x.layout) {
        true if per_group => return None,
        true => Rows {
            places: positions,
            blocks: channels.div_ceil(16),
            ..rows
        },
        false => rows,
    };
    rows.dispatch(call, out)
}

/// What `rows.wgsl` is told.
struct Rows {
    rows: usize,
    k: usize,
    kind: u32,
    epsilon: f32,
    step: usize,
    /// Of a norm, how many scales there are, and how an element finds its own.
    scales: usize,
    scale_period: usize,
    scale_width: usize,
    scale_inner: usize,
    /// Of groups of channels of a blocked image: its places and its blocks.
    places: usize,
    blocks: usize,
}

impl Rows {
    /// Rows of neighbouring elements, with a scale for each of a row.
    fn of(rows: usize, k: usize, kind: u32) -> Rows {
        Rows {
            rows,
            k,
            kind,
            epsilon: 0.0,
            step: 1,
            scales: 0,
            scale_period: 1,
            scale_width: 0,
            scale_inner: 1,
            places: 0,
            blocks: 0,
        }
    }

    fn dispatch(&self, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
        let (x, y) = (call.floats(0)?, call.result()?);
        (x.layout == y.layout && self.k > 0 && self.step > 0).then_some(())?;
        let (scale, shift) = match self.scales {
            0 => (None, None),
            _ => (Some(call.floats(1)?), call.input(2)),
        };
        let fits = |tensor: &TensorRef| {
            tensor.elements() == self.scales
                && tensor.dtype() == x.dtype()
                && !blocked(tensor.layout)
        };
        let mut operands = [&scale, &shift].into_iter().flatten();
        operands.all(fits).then_some(())?;
        let in_place = is_at(&y, &x);
        let words = Words::new(&[
            self.rows as u32,
            self.k as u32,
            self.kind,
            u32::from(shift.is_some()),
            self.epsilon.to_bits(),
            u32::from(in_place),
            self.step as u32,
            self.scale_period as u32,
            self.scale_width as u32,
            self.scale_inner.max(1) as u32,
            self.scales.saturating_sub(1) as u32,
            self.places as u32,
            self.blocks as u32,
        ]);
        let dispatch = Dispatch {
            kernel: match call.way == Way::Lanes {
                true => Kernel::RowsLanes,
                false => Kernel::Rows,
            },
            words,
            groups: [self.rows.min(32_768) as u32, 1, 1],
            reads: [
                (!in_place).then(|| Span::of(&x)),
                scale.as_ref().map(Span::of),
                shift.as_ref().map(Span::of),
            ],
            writes: Span::of_mut(&y),
            mask: None,
        };
        call.push(dispatch, out)
    }
}
