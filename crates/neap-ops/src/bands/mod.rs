//! Runs a chain of layers in row bands ([`neap_ir::bands`]).
//!
//! ```text
//!   for each band of the last layer's rows
//!     from the last layer to the first   how many rows are needed by now
//!     from the first layer to the last   compute those that are not there yet
//!     every layer but the last           move the rows that the next band needs to the top
//! ```
//! A band of a layer is an ordinary call of its kernel, on a few rows with padding where the image
//! ends and nowhere else, so its elements have the bits that they have without bands. Layers that are computed
//! by Winograd go on to the end of a tile: their tiles are those of the whole layer.
//!
//! ```text
//!   next layer   ├─ band ─┤├─ band ─┤
//!   this layer   ├─ tile ──┼── tile ──┼── tile ──┤     ahead of what is needed by up to a tile
//! ```

mod chain;
mod steps;

pub use chain::choose_heights;

use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::integer::depthwise_supported;
use crate::kernel::Kernel;
use crate::layer::{activation, conv_supported, stored};
use crate::nd::{GRAIN, Ptr, split};
use crate::{Context, OpError, TensorMut, TensorRef};
use chain::{Chain, Stage};
use neap_ir::bands::{BandLayer, Bands, MAX_LAYERS};
use neap_ir::op::Pool;
use neap_ir::panel::{ConvForm, Epilogue};
use neap_ir::{DType, Layout, TensorType};
use neap_kernels::conv::{
    conv_blocked_band, conv_first_layer_band, conv_first_layer_scratch_bytes,
    conv_narrow_groups_band,
};
use neap_kernels::depthwise::{Depthwise, depthwise_band};
use neap_kernels::epilogue::{self, Residual};
use neap_kernels::integer::{Added, Results};
use neap_kernels::panel::Panels;
use neap_kernels::parallel::Parallel;
use neap_kernels::planes::Planes;
use neap_kernels::pool::{self as kernels, average_pool_band, max_pool_band};
use neap_kernels::simd::Isa;
use neap_kernels::winograd::{self, WeightForm, Weights};
use std::ops::Range;

/// `kernel` is one of those that [`kernels`] names, or the direct one.
pub(crate) fn bands(
    bands: &Bands,
    kernel: Kernel,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let Some(chain) = Chain::of(bands, x.shape(), kernel) else {
        return args.fail("the chain does not fit its input");
    };
    args.require(
        y.layout == Layout::Blocked && (x.layout == Layout::Plain) == chain.plain,
        "operands have the wrong layout",
    )?;
    let mut weights = [LayerWeights::None; MAX_LAYERS];
    let mut inputs = 1..;
    let weighted = bands.layers.iter().zip(&mut weights);
    let weighted = weighted.filter(|(layer, _)| layer.has_weights());
    for ((_, slot), (format, input)) in weighted.zip(bands.formats.iter().zip(&mut inputs)) {
        *slot = LayerWeights::Panels(stored(args.op, *format, args.input(input)?.bytes())?);
    }
    let residual = match bands.residual_input() {
        Some(index) => Some(args.input(index)?),
        None => None,
    };
    if let Some(residual) = residual {
        let wanted = match bands.layers.last().and_then(BandLayer::integers) {
            Some(integers) if integers.residual_steps.is_some() => DType::U8,
            _ => DType::F32,
        };
        let fits = residual.layout == y.layout && residual.dtype() == wanted;
        args.require(fits, "the residual has the wrong layout")?;
    }
    let kernel_floats = kernel_floats(bands, &chain, ctx.par.workers(), ctx.isa);
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let lines = scratch.take::<f32>(chain.line_floats)?;
    let kernel_scratch = scratch.take::<f32>(kernel_floats)?;
    let mut prepared = scratch.take::<f32>(prepared_floats(&chain))?;
    let layers = bands.layers.iter().zip(chain.stages());
    for (slot, (layer, stage)) in weights.iter_mut().zip(layers) {
        if let (BandLayer::Conv(conv), Some(tile)) = (layer, stage.tile) {
            let (to, rest) = prepared.split_at_mut(stage.prepared_floats());
            let (panels, isa, par) = (stage.out_blocks(), ctx.isa, ctx.par);
            let LayerWeights::Panels(raw) = *slot else {
                return args.fail("a layer's weights are missing");
            };
            winograd::prepare_panels(isa, par, tile, conv.c_in, panels, raw, to).named(args.op)?;
            (*slot, prepared) = (LayerWeights::Prepared(to), rest);
        }
    }
    let mut run = Run {
        op: args.op,
        chain: &chain,
        layers: &bands.layers,
        weights,
        x,
        y,
        residual,
        lines,
        kernel_scratch,
        isa: ctx.isa,
        par: ctx.par,
        done: [0; MAX_LAYERS],
        base: [0; MAX_LAYERS],
    };
    for image in 0..chain.batch {
        run.image(image)?;
    }
    Ok(())
}

pub(crate) fn workspace_bytes(
    bands: &Bands,
    x: &[usize],
    kernel: Kernel,
    workers: usize,
    isa: Isa,
) -> usize {
    Chain::of(bands, x, kernel).map_or(0, |chain| {
        scratch_bytes::<f32>(chain.line_floats)
            + scratch_bytes::<f32>(kernel_floats(bands, &chain, workers, isa))
            + scratch_bytes::<f32>(prepared_floats(&chain))
    })
}

/// Rows of the last layer in a band, where a chain is computed with Winograd's help.
const WINOGRAD_ROWS: [u8; 5] = [2, 4, 8, 16, 32];

/// The kernels beside the direct one.
pub(crate) fn winograd_kernels(bands: &Bands, x: &[usize]) -> impl Iterator<Item = Kernel> {
    WINOGRAD_ROWS
        .into_iter()
        .map(|rows| Kernel::WinogradBands { rows })
        .filter(|&kernel| Chain::of(bands, x, kernel).is_some())
}

/// How each layer is computed, and how many calls of kernels that takes; `None` where `kernel` cannot compute the
/// chain.
pub fn layer_kernels(bands: &Bands, x: &[usize], kernel: Kernel) -> Option<(Vec<Kernel>, usize)> {
    let chain = Chain::of(bands, x, kernel)?;
    let of = |stage: &Stage| stage.tile.map_or(Kernel::Direct, Kernel::Winograd);
    let calls = chain.stages().len() * chain.bands() * chain.batch;
    Some((chain.stages().iter().map(of).collect(), calls))
}

/// Whether every layer has a kernel, given types that fit.
pub(crate) fn supported(bands: &Bands, x: &TensorType) -> bool {
    let Some(chain) = Chain::of(bands, &x.shape, Kernel::Direct) else {
        return false;
    };
    bands
        .layers
        .iter()
        .zip(chain.stages())
        .all(|(layer, stage)| {
            let shape = |channels: usize, [h, w]: [usize; 2]| [chain.batch, channels, h, w];
            let (x, y) = (
                shape(stage.c_in, stage.window.input),
                shape(stage.c_out, stage.window.output),
            );
            match layer {
                BandLayer::Conv(conv) => conv_supported(conv, &x, &y),
                BandLayer::Depthwise(depthwise) => depthwise_supported(depthwise, &x, &y),
                BandLayer::Pool { kind, .. } => crate::window::pool::blocks(*kind, 1),
            }
        })
}

/// Whether input 0 is a plain image.
pub(crate) fn is_plain(bands: &Bands) -> bool {
    bands.layers.first().is_some_and(chain::is_first_layer)
}

/// Whether the output may take the place of input 0, when they have the same type and layout.
pub(crate) fn may_overwrite_input(bands: &Bands, x: &TensorType) -> bool {
    Chain::of(bands, &x.shape, Kernel::Direct).is_some_and(|chain| chain.follows_input())
}

/// Operations of the layers' products by `kernel`; a multiply-add counts as two.
pub(crate) fn flops(bands: &Bands, x: &[usize], kernel: Kernel) -> u64 {
    let Some(chain) = Chain::of(bands, x, kernel) else {
        return 0;
    };
    let layers = bands.layers.iter().zip(chain.stages());
    layers.fold(0u64, |sum, (layer, stage)| {
        let each = match (layer, stage.tile) {
            (BandLayer::Conv(conv), Some(tile)) => {
                let shape = stage.conv_shape(conv, &(0..stage.window.output[0]));
                let products = winograd::multiply_adds(tile, &shape);
                return sum.saturating_add(products.saturating_mul(2 * chain.batch as u64));
            }
            (BandLayer::Conv(conv), None) => 2 * conv.k() as u64,
            (BandLayer::Depthwise(depthwise), _) => 2 * depthwise.k() as u64,
            (BandLayer::Pool { .. }, _) => stage.window.taps() as u64,
        };
        let results = [
            chain.batch,
            stage.c_out,
            stage.window.output[0],
            stage.window.output[1],
        ];
        let flops = results
            .iter()
            .fold(each, |n, &d| n.saturating_mul(d as u64));
        sum.saturating_add(flops)
    })
}

/// Bytes of the tensors between the layers, once written and once read.
pub(crate) fn inner_bytes(bands: &Bands, x: &[usize]) -> u64 {
    let Some(chain) = Chain::of(bands, x, Kernel::Direct) else {
        return 0;
    };
    let (_, inner) = chain.stages().split_last().unzip();
    inner.unwrap_or_default().iter().fold(0u64, |sum, stage| {
        let floats = [chain.batch, stage.out_blocks(), stage.window.output[0]];
        let row_bytes = 2 * 4 * stage.row_floats() as u64;
        let bytes = floats
            .iter()
            .fold(row_bytes, |n, &d| n.saturating_mul(d as u64));
        sum.saturating_add(bytes)
    })
}

/// Scratch of the layers' kernels, one of which runs at a time, in floats.
fn kernel_floats(bands: &Bands, chain: &Chain, workers: usize, isa: Isa) -> usize {
    let of = |(layer, stage): (&BandLayer, &Stage)| match (layer, stage.tile) {
        _ if stage.in_steps => steps::scratch_bytes(layer, stage, workers),
        (BandLayer::Conv(conv), Some(tile)) => {
            // Whether more tiles take less scratch is the kernel's affair.
            let (shape, form) = (
                |rows| stage.conv_shape(conv, &(0..rows)),
                WeightForm::Prepared,
            );
            let heights = (0..stage.most_rows).step_by(tile.outputs());
            let bytes = heights.map(|before| {
                let shape = shape(stage.most_rows.min(before + tile.outputs()));
                winograd::workspace_bytes(isa, tile, form, &shape, shape.panels(), workers)
            });
            bytes.max().unwrap_or(0)
        }
        (BandLayer::Conv(conv), None) if conv.form == ConvForm::FirstLayer => {
            let shape = stage.conv_shape(conv, &(0..stage.most_rows));
            conv_first_layer_scratch_bytes(&shape, workers)
        }
        _ => 0,
    };
    let bytes = bands.layers.iter().zip(chain.stages()).map(of);
    bytes.max().unwrap_or(0).div_ceil(size_of::<f32>())
}

/// The Winograd layers' weights, which are transformed once in each run.
fn prepared_floats(chain: &Chain) -> usize {
    chain.stages().iter().map(Stage::prepared_floats).sum()
}

/// The weights of a layer, which is computed by a direct kernel or by Winograd.
#[derive(Clone, Copy)]
enum LayerWeights<'c> {
    None,
    Panels(Panels<'c>),
    Prepared(&'c [f32]),
}

/// One call of the operator.
struct Run<'c, 'a> {
    op: &'static str,
    chain: &'c Chain,
    layers: &'c [BandLayer],
    weights: [LayerWeights<'c>; MAX_LAYERS],
    x: TensorRef<'a>,
    y: TensorMut<'a>,
    residual: Option<TensorRef<'a>>,
    lines: &'c mut [f32],
    kernel_scratch: &'c mut [f32],
    isa: Isa,
    par: &'c dyn Parallel,
    /// Rows of each stage that are computed, and the first that is still in its line buffer.
    done: [usize; MAX_LAYERS],
    base: [usize; MAX_LAYERS],
}

impl Run<'_, '_> {
    fn image(&mut self, image: usize) -> Result<(), OpError> {
        let chain = self.chain;
        let stages = chain.stages();
        let last = stages.len() - 1;
        self.done = [0; MAX_LAYERS];
        self.base = [0; MAX_LAYERS];
        while self.done[last] < stages[last].window.output[0] {
            let mut needed = self.done;
            needed[last] = chain.band_end(self.done[last]);
            for index in (0..last).rev() {
                let next = index + 1;
                if needed[next] > self.done[next] {
                    let bottom = stages[next].bottom(needed[next]);
                    needed[index] = stages[index].aligned(bottom).max(self.done[index]);
                }
            }
            for index in 0..=last {
                if needed[index] > self.done[index] {
                    self.stage(image, index, self.done[index]..needed[index])?;
                    self.done[index] = needed[index];
                }
            }
            for index in 0..last {
                self.keep(index);
            }
        }
        Ok(())
    }

    /// Moves the rows that the next band needs again to the top of the line buffer.
    fn keep(&mut self, index: usize) {
        let stage = &self.chain.stages()[index];
        let next = &self.chain.stages()[index + 1];
        let (base, done) = (self.base[index], self.done[index]);
        let is_over = self.done[index + 1] == next.window.output[0];
        let from = if is_over {
            done
        } else {
            next.top(self.done[index + 1]).clamp(base, done)
        };
        self.base[index] = from;
        let (count, skipped) = (
            (done - from) * stage.row_floats(),
            (from - base) * stage.row_floats(),
        );
        if count == 0 || skipped == 0 {
            return;
        }
        let (plane, blocks) = (stage.line_plane(), stage.out_blocks());
        let lines = Ptr(self.lines[stage.at..][..blocks * plane].as_mut_ptr());
        split(self.par, blocks, GRAIN / count, &|range, _| {
            for block in range {
                // SAFETY: each block's plane belongs to one task and is inside the line buffer.
                let plane = unsafe { lines.slice_mut(block * plane, plane) };
                plane.copy_within(skipped..skipped + count, 0);
            }
        });
    }

    /// Computes `rows` of a stage.
    fn stage(&mut self, image: usize, index: usize, rows: Range<usize>) -> Result<(), OpError> {
        let (chain, op) = (self.chain, self.op);
        let stages = chain.stages();
        let (stage, is_last) = (&stages[index], index + 1 == stages.len());
        let under = stage.top(rows.start)..stage.bottom(rows.end);
        let buffer_fits = (is_last || rows.end - self.base[index] <= stage.buffer_rows)
            && (index == 0 || under.start >= self.base[index - 1]);
        if !buffer_fits {
            return Err(OpError::operand(op, "line buffers are too small"));
        }
        if chain.in_steps {
            return self.stage_in_steps(image, index, rows, under);
        }
        let (before, own) = self.lines.split_at_mut(stage.at);
        let (input, in_plane) = if index == 0 {
            let (all, skipped, plane) = chain.input_of(image, under.start);
            (&self.x.f32s()[all][skipped..], plane)
        } else {
            let previous = &stages[index - 1];
            let lines = &before[previous.at..];
            let skipped = (under.start - self.base[index - 1]) * previous.row_floats();
            (&lines[skipped..], previous.line_plane())
        };
        let row = stage.row_floats();
        let mut residual = Residual::None;
        let (output, out_plane) = if is_last {
            let (range, plane) = stage.output_of(image, rows.start);
            residual = match &self.residual {
                None => Residual::None,
                Some(r) if self.y.is_at(r) => Residual::InPlace,
                Some(r) => Residual::Separate(&r.f32s()[range.clone()]),
            };
            // SAFETY: the output overlaps neither weights nor line buffers. Where it lies on the
            // input, this is not the first stage, so no view of that is alive.
            let out = unsafe { self.y.f32s_mut() };
            (&mut out[range], plane)
        } else {
            let skipped = (rows.start - self.base[index]) * row;
            let plane = stage.line_plane();
            (&mut own[skipped..stage.out_blocks() * plane], plane)
        };
        let call = Call {
            stage,
            rows,
            under,
            planes: Planes {
                input: in_plane,
                output: out_plane,
            },
            weights: self.weights[index],
            residual,
            isa: self.isa,
            par: self.par,
        };
        call.run(&self.layers[index], input, output, self.kernel_scratch, op)
    }

    /// [`Run::stage`] of a layer in integers.
    fn stage_in_steps(
        &mut self,
        image: usize,
        index: usize,
        rows: Range<usize>,
        under: Range<usize>,
    ) -> Result<(), OpError> {
        let (chain, op) = (self.chain, self.op);
        let stages = chain.stages();
        let (stage, is_last) = (&stages[index], index + 1 == stages.len());
        let (before, own) = self.lines.split_at_mut(stage.at);
        let (input, in_plane) = if index == 0 {
            let (all, skipped, plane) = chain.input_of(image, under.start);
            (&self.x.bytes()[all][skipped..], plane)
        } else {
            let previous = &stages[index - 1];
            let skipped = (under.start - self.base[index - 1]) * previous.row_floats();
            let lines = &before[previous.at + skipped..];
            (as_bytes(lines), previous.line_plane() * STEPS)
        };
        let integers = self.layers[index].integers();
        let size = integers.and_then(|integers| integers.residual_steps);
        let size = size.map(steps::steps_of);
        let mut residual = Added::None;
        let (output, out_plane) = if is_last {
            let (range, plane) = stage.output_of(image, rows.start);
            residual = match (&self.residual, size) {
                (None, _) => Added::None,
                (Some(r), size) if self.y.is_at(r) => Added::InPlace(size),
                (Some(r), Some(size)) => Added::Steps(&r.bytes()[range.clone()], size),
                (Some(r), None) => Added::Floats(&r.f32s()[range.clone()]),
            };
            // SAFETY: as in `stage`.
            let output = unsafe {
                match self.y.ty.dtype {
                    DType::U8 => Results::Steps(&mut self.y.bytes_mut()[range]),
                    _ => Results::Floats(&mut self.y.f32s_mut()[range]),
                }
            };
            (output, plane)
        } else {
            let skipped = (rows.start - self.base[index]) * stage.row_floats();
            let plane = stage.line_plane();
            let lines = &mut own[skipped..stage.out_blocks() * plane];
            (Results::Steps(as_bytes_mut(lines)), plane * STEPS)
        };
        let call = Call {
            stage,
            rows,
            under,
            planes: Planes {
                input: in_plane,
                output: out_plane,
            },
            weights: self.weights[index],
            residual: Residual::None,
            isa: self.isa,
            par: self.par,
        };
        let (layer, scratch) = (&self.layers[index], as_bytes_mut(self.kernel_scratch));
        call.run_in_steps(layer, input, output, residual, scratch, op)
    }
}

/// Steps in the place of a float.
const STEPS: usize = size_of::<f32>();

fn as_bytes(floats: &[f32]) -> &[u8] {
    // SAFETY: floats are bytes without gaps.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) }
}

fn as_bytes_mut(floats: &mut [f32]) -> &mut [u8] {
    // SAFETY: floats are bytes without gaps, and any bytes are floats.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), size_of_val(floats)) }
}

/// One call of a kernel.
struct Call<'c> {
    stage: &'c Stage,
    rows: Range<usize>,
    /// Input rows under them.
    under: Range<usize>,
    planes: Planes,
    weights: LayerWeights<'c>,
    residual: Residual<'c>,
    isa: Isa,
    par: &'c dyn Parallel,
}

impl Call<'_> {
    fn run(
        self,
        layer: &BandLayer,
        input: &[f32],
        output: &mut [f32],
        scratch: &mut [f32],
        op: &'static str,
    ) -> Result<(), OpError> {
        let (isa, par, planes) = (self.isa, self.par, self.planes);
        let weights = match self.weights {
            LayerWeights::Panels(panels) => panels,
            LayerWeights::Prepared(floats) => floats.into(),
            LayerWeights::None => (&[][..]).into(),
        };
        let epilogue = |epilogue: &Epilogue| epilogue::Epilogue {
            activation: activation(epilogue.activation),
            residual: self.residual,
        };
        let stage = self.stage;
        match layer {
            BandLayer::Conv(conv) => {
                let mut shape = stage.conv_shape(conv, &self.rows);
                shape.window.input[0] = self.under.len();
                let (panels, epilogue) = (0..shape.panels(), epilogue(&conv.epilogue));
                if let (Some(tile), LayerWeights::Prepared(floats)) = (stage.tile, self.weights) {
                    let weights = Weights::Prepared(floats);
                    return winograd::conv_winograd_band(
                        isa, par, tile, &shape, planes, panels, weights, input, output, epilogue,
                        scratch,
                    )
                    .named(op);
                }
                match conv.form {
                    ConvForm::Blocked => conv_blocked_band(
                        isa, par, &shape, planes, panels, weights, input, output, epilogue,
                    ),
                    ConvForm::NarrowGroups => conv_narrow_groups_band(
                        isa, par, &shape, planes, panels, weights, input, output, epilogue,
                    ),
                    ConvForm::FirstLayer => conv_first_layer_band(
                        isa, par, &shape, planes, panels, weights, input, output, epilogue, scratch,
                    ),
                }
            }
            BandLayer::Depthwise(depthwise) => {
                let shape = Depthwise {
                    batch: 1,
                    channels: depthwise.channels,
                    window: stage.band(self.under.len(), &self.rows),
                };
                let (panels, epilogue) = (0..stage.out_blocks(), epilogue(&depthwise.epilogue));
                depthwise_band(
                    isa, par, &shape, planes, panels, weights, input, output, epilogue,
                )
            }
            BandLayer::Pool { kind, .. } => {
                let mut window = stage.band(self.under.len(), &self.rows);
                window.pads_end[0] = stage.pad_below(self.under.end);
                let shape = kernels::Pool {
                    planes: stage.out_blocks(),
                    window,
                };
                match *kind {
                    Pool::Max { .. } => max_pool_band(isa, par, &shape, planes, input, output),
                    Pool::Average { count_include_pad } => average_pool_band(
                        isa,
                        par,
                        &shape,
                        planes,
                        count_include_pad,
                        input,
                        output,
                    ),
                    Pool::Lp { .. } => return Err(OpError::operand(op, "takes plain tensors")),
                }
            }
        }
        .named(op)
    }
}
