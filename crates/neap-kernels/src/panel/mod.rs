//! The panel weight format, and packing into it.
//!
//! ```text
//! panel p = output channels 16p .. 16p+16:   [bias 16][k = 0: 16 weights][k = 1: 16 weights] ...
//! ```
//! Weights may be stored in fewer bits: see [`Format`] and [`narrow`].
//!
//! All `f32` panels of a layer have [`panel_floats`]`(k)` floats; output channels past the last are
//! zero, and a layer without bias has zeros there. The order of k depends on the kernel:
//!
//! | packed by | read by | k order |
//! |---|---|---|
//! | [`pack_conv`] [`KOrder::Blocked`] | `conv_blocked` | `[channel block][kh][kw][channel in block]`, the last block shorter |
//! | [`pack_conv`] [`KOrder::Taps`] | `conv_first_layer`, `conv_narrow_groups` | `[kh][kw][channel in group]` |
//! | [`pack_depthwise`] | `depthwise` | `[kh][kw]` |
//! | [`pack_rows`] | `linear`, from `[n][k]` | k |
//! | [`pack_band`] | `linear`, from `[k][n]`, some rows at a time | k |
//!
//! A packer gets a panel range and only the source of that range, so that a layer larger than
//! memory can be packed piece by piece: rows `16 * panels.start .. min(c_out, 16 * panels.end)` of
//! a weight whose first axis is the output channel, or (for `[k][n]`) all columns of some rows.
//! An [`Affine`] (folded BatchNorm) scales output channels and gives the bias.

mod blocks;
mod coded;
pub(crate) mod format;
mod narrow;

pub use blocks::{BlockSteps, pack_block_panel};
pub use coded::others_of;
pub use format::{Bits, BlockFormat, Format, Panels};
pub use narrow::{Scales, holds, narrow, to_bf16, to_f16, to_i8};

use crate::error::{KernelError, check_len, checked_product};
use crate::simd::{Isa, LANES};
use std::ops::Range;

/// Floats of a panel with `k` inner steps, bias included.
#[must_use]
pub const fn panel_floats(k: usize) -> usize {
    (1 + k) * LANES
}

/// Panels for so many output channels.
#[must_use]
pub const fn panel_count(c_out: usize) -> usize {
    c_out.div_ceil(LANES)
}

/// Fewest panels with which a kernel call runs at full speed, two threads included; a single
/// panel is as correct and, on AVX-512, about a quarter slower.
#[must_use]
pub fn preferred_panels(isa: Isa) -> usize {
    crate::tile::max_panels(isa).min(2)
}

/// What a layer's weights are multiplied with, and its bias: one value for each of the *layer's*
/// output channels, whatever the range. `None` is 1 and 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Affine<'a> {
    pub scale: Option<&'a [f32]>,
    pub bias: Option<&'a [f32]>,
}

/// Order of k in the panels of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KOrder {
    /// `[channel block][kh][kw][channel in block]`
    Blocked,
    /// `[kh][kw][channel in group]`
    Taps,
}

/// The output channels of a panel range.
#[must_use]
pub fn channels_of(panels: &Range<usize>, c_out: usize) -> Range<usize> {
    (panels.start * LANES).min(c_out)..(panels.end * LANES).min(c_out)
}

/// Packs a convolution's weights `[c_out][c_in/groups][kh][kw]`.
///
/// `source` begins at the first output channel of the range; `out` receives the range's panels.
///
/// # Errors
/// A range outside the layer, or buffers too short.
pub fn pack_conv(
    order: KOrder,
    c_out: usize,
    c_in_per_group: usize,
    kernel: [usize; 2],
    panels: Range<usize>,
    source: &[f32],
    affine: Affine<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let taps = checked_product(&kernel).ok_or(KernelError::Invalid("a size overflows"))?;
    let k = checked_product(&[c_in_per_group, taps]);
    let k = k.ok_or(KernelError::Invalid("a size overflows"))?;
    // Where the weight of (input channel, tap) goes.
    let place = |c: usize, tap: usize| match order {
        KOrder::Taps => tap * c_in_per_group + c,
        KOrder::Blocked => {
            let block = c / LANES;
            let block_len = (c_in_per_group - block * LANES).min(LANES);
            block * LANES * taps + tap * block_len + c % LANES
        }
    };
    pack_channels(
        c_out,
        k,
        panels,
        source,
        affine,
        out,
        |row, lane, scale, to| {
            for (c, of_channel) in row.chunks_exact(taps.max(1)).enumerate() {
                for (tap, &w) in of_channel.iter().enumerate() {
                    to[place(c, tap) * LANES + lane] = w * scale;
                }
            }
        },
    )
}

/// Packs a depthwise convolution's weights `[channels][1][kh][kw]`; otherwise as [`pack_conv`].
///
/// # Errors
/// A range outside the layer, or buffers too short.
pub fn pack_depthwise(
    channels: usize,
    kernel: [usize; 2],
    panels: Range<usize>,
    source: &[f32],
    affine: Affine<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    pack_conv(
        KOrder::Taps,
        channels,
        1,
        kernel,
        panels,
        source,
        affine,
        out,
    )
}

/// Packs a matrix `[n][k]` (each row the weights of one output), as Gemm with `transB` has it.
///
/// `source` begins at the first row of the range; `out` receives the range's panels.
///
/// # Errors
/// A range outside the layer, or buffers too short.
pub fn pack_rows(
    n: usize,
    k: usize,
    panels: Range<usize>,
    source: &[f32],
    affine: Affine<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    pack_channels(n, k, panels, source, affine, out, |row, lane, scale, to| {
        for (to, &w) in to.chunks_exact_mut(LANES).zip(row) {
            to[lane] = w * scale;
        }
    })
}

/// Packs some rows of a matrix `[k][n]`, as MatMul has it: rows `rows` of the source.
///
/// `band` holds those rows whole, `[rows][n]`. The call also writes the bias when `rows` begins
/// at 0; after calls for all of `0..k` the panels are complete.
///
/// # Errors
/// Ranges outside the matrix, or buffers too short.
pub fn pack_band(
    n: usize,
    k: usize,
    panels: Range<usize>,
    rows: Range<usize>,
    band: &[f32],
    affine: Affine<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    check_range(n, k, &panels, affine, out)?;
    if rows.start > rows.end || rows.end > k {
        return Err(KernelError::Invalid("rows outside the matrix"));
    }
    check_len("band", band.len(), checked_product(&[rows.len(), n]))?;
    for (panel, to) in panels.clone().zip(out.chunks_exact_mut(panel_floats(k))) {
        let channels = channels_of(&(panel..panel + 1), n);
        if rows.start == 0 {
            write_bias(&channels, affine, to);
        }
        for (i, row) in rows.clone().enumerate() {
            let to = &mut to[(1 + row) * LANES..][..LANES];
            let from = &band[i * n..][channels.clone()];
            to[from.len()..].fill(0.0);
            match affine.scale {
                None => to[..from.len()].copy_from_slice(from),
                Some(scale) => {
                    for ((to, w), scale) in to.iter_mut().zip(from).zip(&scale[channels.clone()]) {
                        *to = w * scale;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Packs a layer whose source has one row of k weights for each output channel; `put(row, lane,
/// scale, k part of the panel)` places a row.
fn pack_channels(
    c_out: usize,
    k: usize,
    panels: Range<usize>,
    source: &[f32],
    affine: Affine<'_>,
    out: &mut [f32],
    put: impl Fn(&[f32], usize, f32, &mut [f32]),
) -> Result<(), KernelError> {
    check_range(c_out, k, &panels, affine, out)?;
    let first = channels_of(&panels, c_out).start;
    let rows = channels_of(&panels, c_out).len();
    check_len("source", source.len(), checked_product(&[rows, k]))?;
    for (panel, to) in panels.clone().zip(out.chunks_exact_mut(panel_floats(k))) {
        let channels = channels_of(&(panel..panel + 1), c_out);
        write_bias(&channels, affine, to);
        let to = &mut to[LANES..];
        if channels.len() < LANES {
            to.fill(0.0);
        }
        for (lane, channel) in channels.enumerate() {
            let row = &source[(channel - first) * k..][..k];
            put(row, lane, affine.scale.map_or(1.0, |s| s[channel]), to);
        }
    }
    Ok(())
}

fn write_bias(channels: &Range<usize>, affine: Affine<'_>, panel: &mut [f32]) {
    panel[..LANES].fill(0.0);
    if let Some(bias) = affine.bias {
        panel[..channels.len()].copy_from_slice(&bias[channels.clone()]);
    }
}

fn check_range(
    c_out: usize,
    k: usize,
    panels: &Range<usize>,
    affine: Affine<'_>,
    out: &[f32],
) -> Result<(), KernelError> {
    if panels.start > panels.end || panels.end > panel_count(c_out) {
        return Err(KernelError::Invalid("panel range outside the layer"));
    }
    let rows = k.checked_add(1);
    check_len(
        "panels",
        out.len(),
        rows.and_then(|rows| checked_product(&[rows, LANES, panels.len()])),
    )?;
    for values in [affine.scale, affine.bias].into_iter().flatten() {
        check_len("scale or bias", values.len(), Some(c_out))?;
    }
    Ok(())
}
