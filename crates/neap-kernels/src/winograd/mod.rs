//! 3x3 convolution with fewer multiplications: tiles of the input and the weights are transformed,
//! multiplied point by point, and transformed back (Winograd).
//!
//! ```text
//!   input tile A×A ──► values [point][channel]  ─┐
//!                                                ├─► products [point][output channel] ──► output tile M×M
//!   3×3 weights    ──► weights [point][channel] ─┘         one matrix product a point
//! ```
//! The kernel takes what [`crate::conv::conv_blocked`] takes, for stride 1, dilation 1 and one group,
//! and differs from it in rounding only (see [`Tile`]). Weights come in two forms that give the same bits:
//!
//! | form | panel | for |
//! |---|---|---|
//! | [`Weights::Raw`] | as stored: `[bias 16][k][16]` or in another [`Format`](crate::panel::Format), k order of `conv_blocked` | weights that stream: transformed as they arrive |
//! | [`Weights::Prepared`] | `[bias 16][point][k][16]`, made by [`prepare_panels`] | weights that stay in memory |
//!
//! Order of a sum: at each point one fused multiply-add for each channel in order; the transform
//! back; then `+ (bias + residual)`; then the activation. Where a tile lies in the output depends on
//! the shape alone, so no cut of the work shows in the result.
//!
//! A tile with a NaN, an infinity, or a number that is a thousand times what one of its outputs sees is not transformed: that
//! would spread it over the tile. Its outputs are plain sums, by channel and tap, of weights that are turned back into taps.
//!
//! A band of rows has the bits of the whole layer if its tiles are the layer's: it begins a multiple of
//! [`Tile::outputs`] rows from the top, and ends at another or at the bottom.

mod cut; // into what pieces a call is cut
mod drive; // runs the pieces
mod points; // the tile sizes, in one dimension
mod product; // the micro-kernel
mod transform; // tiles in two dimensions
mod weights; // stored, or at the points

use crate::conv::ConvShape;
use crate::epilogue::{Epilogue, Residual};
use crate::error::{KernelError, check_len, checked_product};
use crate::panel::Panels;
use crate::parallel::Parallel;
use crate::planes::Planes;
use crate::simd::{Isa, LANES};
use cut::Cut;
use drive::Call;
use std::ops::Range;
use weights::Source;

/// How many outputs are computed together: `F2` is F(2×2, 3×3), and so on.
///
/// Larger tiles multiply less, and round more: the worst error, as a share of the output's range, of a layer
/// with 512 channels is about 1e-6 and 3e-6. The tests hold each to a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tile {
    F2,
    F4,
}

impl Tile {
    pub const ALL: [Tile; 2] = [Tile::F2, Tile::F4];

    /// Outputs of a tile along an axis.
    #[must_use]
    pub const fn outputs(self) -> usize {
        match self {
            Tile::F2 => 2,
            Tile::F4 => 4,
        }
    }

    /// Products that a tile takes for each pair of input and output channel.
    #[must_use]
    pub const fn points(self) -> usize {
        (self.outputs() + 2) * (self.outputs() + 2)
    }
}

/// The panels of a call, contiguous.
#[derive(Debug, Clone, Copy)]
pub enum Weights<'a> {
    Raw(Panels<'a>),
    Prepared(&'a [f32]),
}

/// Which of the two [`Weights`] forms a call will get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightForm {
    Raw,
    Prepared,
}

/// True where [`conv_winograd`] takes the shape.
#[must_use]
pub fn supports(shape: &ConvShape) -> bool {
    check_shape(shape).is_ok()
}

/// Floats of a prepared panel, bias included.
#[must_use]
pub const fn prepared_panel_floats(tile: Tile, c_in: usize) -> usize {
    (1 + tile.points() * c_in) * LANES
}

/// Products of a whole layer, each a multiply-add; tiles that stick out of the image count whole.
#[must_use]
pub fn multiply_adds(tile: Tile, shape: &ConvShape) -> u64 {
    let tiles = |axis: usize| shape.window.output[axis].div_ceil(tile.outputs());
    [
        shape.batch,
        tiles(0),
        tiles(1),
        tile.points(),
        shape.c_in,
        shape.c_out,
    ]
    .into_iter()
    .fold(1u64, |product, n| product.saturating_mul(n as u64))
}

/// Bytes of scratch that [`conv_winograd`] needs for calls with at most `panels` panels. No less for
/// more panels or workers.
#[must_use]
pub fn workspace_bytes(
    isa: Isa,
    tile: Tile,
    form: WeightForm,
    shape: &ConvShape,
    panels: usize,
    workers: usize,
) -> usize {
    cut_workspace_bytes(isa, tile, form, false, shape, panels, workers)
}

/// Bytes of scratch with which [`conv_winograd`] transforms raw weights less often: as many as [`workspace_bytes`], or more.
#[must_use]
pub fn wide_workspace_bytes(
    isa: Isa,
    tile: Tile,
    shape: &ConvShape,
    panels: usize,
    workers: usize,
) -> usize {
    let of =
        |is_wide| cut_workspace_bytes(isa, tile, WeightForm::Raw, is_wide, shape, panels, workers);
    of(true).max(of(false))
}

/// How often a call transforms its raw weights, with scratch of [`wide_workspace_bytes`] or without.
#[must_use]
pub fn weight_passes(
    isa: Isa,
    tile: Tile,
    is_wide: bool,
    shape: &ConvShape,
    workers: usize,
) -> usize {
    match check_shape(shape) {
        Ok(()) => Cut::new(isa, tile, WeightForm::Raw, is_wide, shape, workers).weight_passes(),
        Err(_) => 0,
    }
}

fn cut_workspace_bytes(
    isa: Isa,
    tile: Tile,
    form: WeightForm,
    is_wide: bool,
    shape: &ConvShape,
    panels: usize,
    workers: usize,
) -> usize {
    if check_shape(shape).is_err() {
        return 0;
    }
    Cut::new(isa, tile, form, is_wide, shape, workers)
        .workspace_floats(panels)
        .saturating_mul(size_of::<f32>())
}

/// Transforms whole panels: from the stored form to `[bias 16][point][k][16]`.
///
/// # Errors
/// Buffers too short for `panels` panels.
pub fn prepare_panels<'a>(
    isa: Isa,
    parallel: &dyn Parallel,
    tile: Tile,
    c_in: usize,
    panels: usize,
    raw: impl Into<Panels<'a>>,
    prepared: &mut [f32],
) -> Result<(), KernelError> {
    let raw: Panels = raw.into();
    raw.check(c_in.checked_mul(9), panels)?;
    let needed = panel_elements(tile.points(), c_in, panels);
    check_len("prepared panels", prepared.len(), needed)?;
    let to = prepared.as_mut_ptr();
    // SAFETY: both hold that many panels, and the borrows keep them apart.
    unsafe { weights::prepare(isa, parallel, tile, c_in, panels, raw.into(), to) };
    Ok(())
}

/// `output[panels] = activation(conv(input, weights) + bias + residual)` for a 3x3 kernel with
/// stride 1, dilation 1 and one group; any padding.
///
/// * `input`: blocked `[batch][ceil(c_in/16)][height][width][16]`
/// * `output`, residual: blocked, the whole layer's; only the range's channels are touched
/// * `workspace`: at least [`workspace_bytes`] for this many panels, better [`wide_workspace_bytes`]; contents are not kept
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers; other convolutions.
pub fn conv_winograd(
    isa: Isa,
    parallel: &dyn Parallel,
    tile: Tile,
    shape: &ConvShape,
    panels: Range<usize>,
    weights: Weights<'_>,
    input: &[f32],
    output: &mut [f32],
    epilogue: Epilogue<'_>,
    workspace: &mut [f32],
) -> Result<(), KernelError> {
    let planes = shape.whole_planes();
    conv_winograd_band(
        isa, parallel, tile, shape, planes, panels, weights, input, output, epilogue, workspace,
    )
}

/// [`conv_winograd`] of a band of rows: input, output and residual have planes as far apart as `planes`
/// says, and begin at the band's first row.
///
/// # Errors
/// As [`conv_winograd`], and planes that overlap.
pub fn conv_winograd_band(
    isa: Isa,
    parallel: &dyn Parallel,
    tile: Tile,
    shape: &ConvShape,
    planes: Planes,
    panels: Range<usize>,
    weights: Weights<'_>,
    input: &[f32],
    output: &mut [f32],
    epilogue: Epilogue<'_>,
    workspace: &mut [f32],
) -> Result<(), KernelError> {
    check_shape(shape)?;
    if panels.start > panels.end || panels.end > shape.panels() {
        return Err(KernelError::Invalid("panel range outside the layer"));
    }
    let (form, source) = match weights {
        Weights::Raw(raw) => {
            raw.check(shape.c_in.checked_mul(9), panels.len())?;
            (WeightForm::Raw, Source::Raw(raw.into()))
        }
        Weights::Prepared(prepared) => {
            let needed = panel_elements(tile.points(), shape.c_in, panels.len());
            check_len("weights", prepared.len(), needed)?;
            (WeightForm::Prepared, Source::Prepared(prepared.as_ptr()))
        }
    };
    shape.check_blocked_input(&planes, input)?;
    shape.check_blocked_output(&planes, output, &epilogue)?;
    let cut = |is_wide| Cut::new(isa, tile, form, is_wide, shape, parallel.workers());
    let wide = cut(form == WeightForm::Raw);
    let cut = match wide.workspace_floats(panels.len()) <= workspace.len() {
        true => wide,
        false => cut(false),
    };
    let floats = cut.workspace_floats(panels.len());
    check_len("workspace", workspace.len(), Some(floats))?;
    if panels.is_empty() || cut.tiles() == 0 {
        return Ok(());
    }

    let column = panels.start * planes.output;
    let out = output.as_mut_ptr().wrapping_add(column);
    let call = Call {
        isa,
        tile,
        shape: *shape,
        planes,
        cut,
        panels: panels.len(),
        source,
        input: input.as_ptr(),
        output: out,
        residual: match epilogue.residual {
            Residual::None => std::ptr::null(),
            Residual::Separate(residual) => residual.as_ptr().wrapping_add(column),
            Residual::InPlace => out.cast_const(),
        },
        activation: epilogue.activation,
        workspace: workspace.as_mut_ptr(),
    };
    // SAFETY: all lengths were checked against the shape and the cut.
    unsafe { call.run(parallel) };
    Ok(())
}

fn panel_elements(k_per_channel: usize, c_in: usize, panels: usize) -> Option<usize> {
    let k = k_per_channel.checked_mul(c_in)?.checked_add(1)?;
    checked_product(&[k, LANES, panels])
}

fn check_shape(s: &ConvShape) -> Result<(), KernelError> {
    if s.window.kernel != [3, 3]
        || s.window.strides != [1, 1]
        || s.window.dilations != [1, 1]
        || s.groups != 1
    {
        return Err(KernelError::Unsupported(
            "Winograd convolution of another kernel than 3x3 with stride, dilation and groups of 1",
        ));
    }
    // Coordinates are signed and may lie a tile outside; sizes are multiplied by points and bytes.
    const MOST: usize = isize::MAX as usize >> 16;
    let sizes = [
        s.window.input,
        s.window.output,
        s.window.pads_begin,
        [s.c_in, s.c_out],
    ];
    if sizes.as_flattened().iter().any(|&n| n > MOST) {
        return Err(KernelError::Invalid("a size overflows"));
    }
    Ok(())
}
