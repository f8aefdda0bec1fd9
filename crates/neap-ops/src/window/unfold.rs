//! f32 convolutions of unpacked weights as matrix products, a bounded piece of the unfolded image
//! at a time.
//!
//! ```text
//! Conv            W [c_out][c_in·taps]  ×  unfolded [c_in·taps][some positions]  =  those positions
//! ConvTranspose   Xᵀ [some positions][c_in]  ×  W [c_in][some c_out·taps]        -> added where they land
//! ```
//! Pieces follow from the shape alone, so results do not depend on the number of workers.

use super::taps::Taps;
use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::nd::{GRAIN, Ptr, split};
use crate::{Context, OpError};
use neap_ir::graph::LANES;
use neap_kernels::linear::{MatMulShape, matmul, matmul_scratch_bytes};
use neap_kernels::parallel::Parallel;
use neap_kernels::reorder::transpose;

/// Floats that a piece may take, unless the smallest useful one is larger.
const PIECE_FLOATS: usize = 256 * 1024;

/// Columns of a transposed convolution's product that are worth packing.
const COLUMNS: usize = 64;

/// Sizes of a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    /// Channels in and out.
    pub input: usize,
    pub output: usize,
    pub taps: usize,
    /// Positions that the products run over.
    pub positions: usize,
}

impl Group {
    /// Whether there is enough in a group for products to pay.
    pub fn pays(&self) -> bool {
        self.output >= 4 && self.input * self.taps >= 8 && self.positions > 0
    }

    /// The product of one piece of a convolution.
    fn forward(&self) -> MatMulShape {
        let k = self.input * self.taps;
        let piece = (PIECE_FLOATS / k / LANES * LANES).clamp(LANES, 4096);
        MatMulShape::dense(1, self.output, k, piece.min(self.positions))
    }

    pub fn forward_bytes(&self, workers: usize) -> usize {
        let shape = self.forward();
        let packed = matmul_scratch_bytes(&shape, workers);
        scratch_bytes::<f32>(packed.div_ceil(4)) + scratch_bytes::<f32>(shape.k * shape.n)
    }

    /// The product of one piece of a transposed convolution.
    fn backward(&self) -> MatMulShape {
        let channels = (COLUMNS / self.taps).clamp(1, self.output);
        let columns = channels * self.taps;
        let positions = (PIECE_FLOATS / columns).clamp(LANES, 1 << 16);
        MatMulShape::dense(1, positions.min(self.positions), self.input, columns)
    }

    pub fn backward_bytes(&self, workers: usize) -> usize {
        let shape = self.backward();
        let packed = matmul_scratch_bytes(&shape, workers);
        scratch_bytes::<f32>(packed.div_ceil(4))
            + scratch_bytes::<f32>(shape.m * shape.n)
            + scratch_bytes::<f32>(self.input * self.positions)
    }
}

pub(super) fn conv(
    taps: &Taps,
    group: &Group,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, w, y) = (
        args.input(0)?.f32s(),
        args.input(1)?.f32s(),
        args.output(0)?,
    );
    let (c_out, positions) = (y.shape()[1], group.positions);
    let groups = c_out / group.output;
    let whole = group.forward();
    let (par, isa) = (ctx.par, ctx.isa);
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let packed = scratch.take::<f32>(matmul_scratch_bytes(&whole, par.workers()).div_ceil(4))?;
    let unfolded = scratch.take::<f32>(whole.k * whole.n)?;
    // SAFETY: the output overlaps no input.
    let out = unsafe { y.f32s_mut() };
    for unit in 0..y.shape()[0] * groups {
        let image = &x[unit * group.input * taps.in_positions()..];
        let weights = &w[unit % groups * group.output * whole.k..];
        for first in (0..positions).step_by(whole.n) {
            let n = whole.n.min(positions - first);
            unfold(taps, image, first..first + n, group.input, unfolded, par);
            let shape = MatMulShape {
                n,
                b_stride: n,
                out_stride: positions,
                ..whole
            };
            let to = &mut out[unit * group.output * positions + first..];
            matmul(isa, par, &shape, weights, unfolded, to, packed).named(args.op)?;
        }
    }
    if let Some(bias) = args.opt_input(2) {
        let bias = bias.f32s();
        let planes = Ptr(out.as_mut_ptr());
        split(
            par,
            out.len() / positions,
            GRAIN / positions,
            &|range, _| {
                for plane in range {
                    // SAFETY: planes are disjoint parts of the output.
                    let plane_values = unsafe { planes.slice_mut(plane * positions, positions) };
                    plane_values
                        .iter_mut()
                        .for_each(|v| *v += bias[plane % c_out]);
                }
            },
        );
    }
    Ok(())
}

/// Rows of the unfolded image: for every channel and tap, the input under `range`'s positions.
pub(super) fn unfold(
    taps: &Taps,
    image: &[f32],
    range: std::ops::Range<usize>,
    channels: usize,
    unfolded: &mut [f32],
    par: &dyn Parallel,
) {
    let n = range.len();
    let rows = Ptr(unfolded.as_mut_ptr());
    let plane = taps.in_positions();
    split(par, channels * taps.taps(), GRAIN / n, &|units, _| {
        for unit in units {
            let (channel, tap) = (unit / taps.taps(), unit % taps.taps());
            // SAFETY: each row belongs to one task and is inside the scratch.
            let row = unsafe { rows.slice_mut(unit * n, n) };
            unfold_row(
                taps,
                &image[channel * plane..][..plane],
                tap,
                range.start,
                row,
            );
        }
    });
}

fn unfold_row(taps: &Taps, image: &[f32], tap: usize, first: usize, row: &mut [f32]) {
    let [_, kernel_h, kernel_w] = taps.window.kernel;
    let (d, k, c) = (
        tap / (kernel_h * kernel_w),
        tap / kernel_w % kernel_h,
        tap % kernel_w,
    );
    let mut done = 0;
    while done < row.len() {
        let [z, r, col] = taps.position(first + done);
        let run = (taps.window.output[2] - col).min(row.len() - done);
        let part = &mut row[done..done + run];
        done += run;
        let (Some(z), Some(r)) = (taps.source(0, z, d), taps.source(1, r, k)) else {
            part.fill(0.0);
            continue;
        };
        let line =
            &image[(z * taps.window.input[1] + r) * taps.window.input[2]..][..taps.window.input[2]];
        for (i, v) in part.iter_mut().enumerate() {
            *v = taps.source(2, col + i, c).map_or(0.0, |x| line[x]);
        }
    }
}

/// `taps` are seen from the output: its `input` is the operator's output.
pub(super) fn conv_transpose(
    taps: &Taps,
    group: &Group,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, w, y) = (
        args.input(0)?.f32s(),
        args.input(1)?.f32s(),
        args.output(0)?,
    );
    let (c_out, plane) = (y.shape()[1], taps.in_positions());
    let groups = c_out / group.output;
    let whole = group.backward();
    let (par, isa) = (ctx.par, ctx.isa);
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let packed = scratch.take::<f32>(matmul_scratch_bytes(&whole, par.workers()).div_ceil(4))?;
    let products = scratch.take::<f32>(whole.m * whole.n)?;
    let turned = scratch.take::<f32>(group.input * group.positions)?;
    // SAFETY: the output overlaps no input.
    let out = unsafe { y.f32s_mut() };
    let bias = args.opt_input(2);
    for (channel, values) in out.chunks_exact_mut(plane).enumerate() {
        values.fill(bias.map_or(0.0, |b| b.f32s()[channel % c_out]));
    }
    let per_weight = group.output * group.taps;
    let channels = whole.n / group.taps;
    for unit in 0..y.shape()[0] * groups {
        let size = group.input * group.positions;
        let image = &x[unit * size..][..size];
        transpose(isa, par, 1, group.input, group.positions, image, turned).named(args.op)?;
        let weights = &w[unit % groups * group.input * per_weight..];
        for channel in (0..group.output).step_by(channels) {
            let count = channels.min(group.output - channel);
            for first in (0..group.positions).step_by(whole.m) {
                let shape = MatMulShape {
                    m: whole.m.min(group.positions - first),
                    n: count * group.taps,
                    b_stride: per_weight,
                    out_stride: count * group.taps,
                    ..whole
                };
                let a = &turned[first * group.input..];
                let b = &weights[channel * group.taps..];
                matmul(isa, par, &shape, a, b, products, packed).named(args.op)?;
                let to = &mut out[(unit * group.output + channel) * plane..][..count * plane];
                land(taps, products, shape.n, first..first + shape.m, to, par);
            }
        }
    }
    Ok(())
}

/// Adds the products of some positions to the output channels `out`, where their taps land.
fn land(
    taps: &Taps,
    products: &[f32],
    columns: usize,
    positions: std::ops::Range<usize>,
    out: &mut [f32],
    par: &dyn Parallel,
) {
    let plane = taps.in_positions();
    let channels = out.len() / plane;
    let planes = Ptr(out.as_mut_ptr());
    split(par, channels, 1, &|range, _| {
        for channel in range {
            // SAFETY: each channel belongs to one task.
            let values = unsafe { planes.slice_mut(channel * plane, plane) };
            for (row, position) in positions.clone().enumerate() {
                let terms = &products[row * columns + channel * taps.taps()..][..taps.taps()];
                taps.each(taps.position(position), |tap, to| values[to] += terms[tap]);
            }
        }
    });
}
