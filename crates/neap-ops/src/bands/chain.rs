//! Sizes of a chain of layers that runs in row bands, and how many rows its line buffers hold.

use crate::kernel::Kernel;
use crate::window::over;
use neap_ir::bands::{BandLayer, Bands, MAX_LAYERS};
use neap_ir::graph::LANES;
use neap_ir::infer::{Pads, conv_output_size};
use neap_ir::panel::{ConvForm, PanelConv};
use neap_kernels::conv::ConvShape;
use neap_kernels::window::Window;
use neap_kernels::winograd::{self, Tile};
use std::cmp::Reverse;
use std::ops::Range;

/// Tallest band that is tried: past that, more rows gain nothing.
const MAX_ROWS: usize = 64;

/// Tallest band of an inner layer, in tiles, that Winograd kernels are given.
const MAX_TILE_ROWS: usize = 256;

/// Fewer input channels than this are mostly transforms.
const LEAST_WINOGRAD_CHANNELS: usize = 32;

/// The tiles of Winograd layers in bands.
const TILE: Tile = Tile::F4;

/// A chain at certain sizes.
#[derive(Clone, Copy)]
pub(super) struct Chain {
    stages: [Stage; MAX_LAYERS],
    len: usize,
    pub batch: usize,
    pub first_rows: usize,
    pub band_rows: usize,
    /// Whether the input is plain, not channel-blocked.
    pub plain: bool,
    /// Whether the layers are computed in integers, and inner tensors are bytes.
    pub in_steps: bool,
    /// Of all line buffers.
    pub line_floats: usize,
}

/// One layer.
#[derive(Clone, Copy, Default)]
pub(super) struct Stage {
    pub c_in: usize,
    pub c_out: usize,
    pub window: Window,
    /// Rows of its results that its line buffer holds; the last stage has none.
    pub buffer_rows: usize,
    /// Where the line buffer begins among all, in floats.
    pub at: usize,
    /// Most rows that are computed at once.
    pub most_rows: usize,
    /// Set where the layer is computed by Winograd: its rows come in whole tiles, which are those of the
    /// whole layer.
    pub tile: Option<Tile>,
    /// Whether it is computed in integers.
    pub in_steps: bool,
}

impl Stage {
    fn of(layer: &BandLayer, c_in: usize, input: [usize; 2]) -> Option<Stage> {
        if layer.window().kernel.len() != 2 {
            return None;
        }
        let mut w: Window = over(layer.window(), &input, &[]);
        let along = |axis: usize| {
            let pads = Pads {
                begin: w.pads_begin[axis],
                end: w.pads_end[axis],
            };
            let (kernel, stride) = (w.kernel[axis], w.strides[axis]);
            conv_output_size(input[axis], kernel, stride, w.dilations[axis], pads)
        };
        w.output = match layer {
            BandLayer::Pool { output_spatial, .. } => *output_spatial.first_chunk()?,
            _ => [along(0)?, along(1)?],
        };
        let stage = Stage {
            c_in,
            c_out: match layer {
                BandLayer::Conv(conv) => conv.c_out,
                _ => c_in,
            },
            window: w,
            buffer_rows: 0,
            at: 0,
            most_rows: 0,
            tile: None,
            in_steps: layer.integers().is_some(),
        };
        // Every row of results has some row of inputs under it, and positions do not overflow.
        let reach = (w.kernel[0].checked_sub(1)?)
            .checked_mul(w.dilations[0])?
            .checked_add(1)?;
        let last_top = w.output[0].checked_sub(1)?.checked_mul(w.strides[0])?;
        let end = w.input[0].checked_add(w.pads_begin[0])?;
        let sound = w.strides[0] > 0
            && w.output[1] > 0
            && w.pads_begin[0] < reach
            && last_top < end
            && last_top.checked_add(reach)? <= isize::MAX as usize / 4
            && end.checked_add(w.pads_end[0])? <= isize::MAX as usize / 4;
        sound.then_some(stage)
    }

    /// Rows from the first to the last tap.
    fn reach(&self) -> usize {
        (self.window.kernel[0] - 1) * self.window.dilations[0] + 1
    }

    /// The first input row that results from row `row` on need.
    pub fn top(&self, row: usize) -> usize {
        let top = (row * self.window.strides[0]).saturating_sub(self.window.pads_begin[0]);
        top.min(self.window.input[0])
    }

    /// One past the last input row under the results before row `end`.
    pub fn bottom(&self, end: usize) -> usize {
        let bottom = (end.max(1) - 1) * self.window.strides[0] + self.reach();
        (bottom - self.window.pads_begin[0]).min(self.window.input[0])
    }

    /// Rows of padding above the first of the rows under results from `row` on.
    pub fn pad_above(&self, row: usize) -> usize {
        self.window.pads_begin[0].saturating_sub(row * self.window.strides[0])
    }

    /// Rows of padding after the input row before `end`, seen as if the rest were padding too: what
    /// an average that counts padding may count.
    pub fn pad_below(&self, end: usize) -> usize {
        self.window.input[0] + self.window.pads_end[0] - end
    }

    /// The end of whole tiles that hold rows before `end`.
    pub fn aligned(&self, end: usize) -> usize {
        end.next_multiple_of(self.tile_rows())
            .min(self.window.output[0])
    }

    /// Of its transformed weights; 0 where they are not.
    pub fn prepared_floats(&self) -> usize {
        self.tile.map_or(0, |tile| {
            winograd::prepared_panel_floats(tile, self.c_in).saturating_mul(self.out_blocks())
        })
    }

    fn tile_rows(&self) -> usize {
        self.tile.map_or(1, Tile::outputs)
    }

    /// A band of rows of a convolution; the input is as high as the whole.
    pub fn conv_shape(&self, conv: &PanelConv, rows: &Range<usize>) -> ConvShape {
        ConvShape {
            batch: 1,
            c_in: conv.c_in,
            c_out: conv.c_out,
            groups: conv.groups,
            window: self.band(self.window.input[0], rows),
        }
    }

    /// The window of a band of rows, over an input of so many rows.
    pub fn band(&self, input_rows: usize, rows: &Range<usize>) -> Window {
        let w = &self.window;
        Window {
            input: [input_rows, w.input[1]],
            output: [rows.len(), w.output[1]],
            pads_begin: [self.pad_above(rows.start), w.pads_begin[1]],
            ..*w
        }
    }

    /// The tiles by which Winograd computes the layer, if it is expected to be faster than the direct kernel.
    fn winograd_tile(&self, layer: &BandLayer) -> Option<Tile> {
        let BandLayer::Conv(conv) = layer else {
            return None;
        };
        let shape = self.conv_shape(conv, &(0..self.window.output[0]));
        let product = |sizes: [usize; 3]| sizes.iter().map(|&n| n as u128).product::<u128>();
        let [tall, wide] = self.window.output.map(|n| n.div_ceil(TILE.outputs()));
        let winograd_products = product([TILE.points(), tall, wide]);
        let direct_products = product([9, self.window.output[0], self.window.output[1]]);
        let pays = conv.form == ConvForm::Blocked
            && conv.epilogue.integers.is_none()
            && conv.c_in >= LEAST_WINOGRAD_CHANNELS
            && conv.c_out >= LANES
            && winograd::supports(&shape)
            && winograd_products <= direct_products / 2;
        pays.then_some(TILE)
    }

    pub fn out_blocks(&self) -> usize {
        self.c_out.div_ceil(LANES)
    }

    /// Floats of a row of results in a line buffer; bytes lie in the place of fewer.
    pub fn row_floats(&self) -> usize {
        match self.in_steps {
            true => self.window.output[1] * LANES / size_of::<f32>(),
            false => self.window.output[1] * LANES,
        }
    }

    /// Elements of the last stage's output from row `row` of an image on, and from channel block to channel block.
    pub fn output_of(&self, image: usize, row: usize) -> (Range<usize>, usize) {
        let row_elements = self.window.output[1] * LANES;
        let plane = self.window.output[0] * row_elements;
        let image_elements = self.out_blocks() * plane;
        let begin = image * image_elements;
        (begin + row * row_elements..begin + image_elements, plane)
    }

    /// From channel block to channel block in the line buffer.
    pub fn line_plane(&self) -> usize {
        self.buffer_rows * self.row_floats()
    }
}

impl Chain {
    /// The chain as `kernel` computes it; `None` for chains that cannot run so. `x` is the input's shape.
    pub fn of(bands: &Bands, x: &[usize], kernel: Kernel) -> Option<Chain> {
        let direct = Chain::direct(bands, x)?;
        match kernel {
            Kernel::Direct | Kernel::OnProcessor => {
                direct.in_bands(bands.first_rows, bands.band_rows)
            }
            Kernel::WinogradBands { rows } => direct.with_winograd(bands, usize::from(rows)),
            Kernel::Winograd(_) | Kernel::WideWinograd | Kernel::DeviceWinograd | Kernel::Pairs => {
                None
            }
        }
    }

    /// All layers by their direct kernels, heights not set yet.
    fn direct(bands: &Bands, x: &[usize]) -> Option<Chain> {
        let &[batch, channels, height, width] = x else {
            return None;
        };
        let mut chain = Chain {
            stages: [Stage::default(); MAX_LAYERS],
            len: bands.layers.len(),
            batch,
            first_rows: 0,
            band_rows: 0,
            plain: is_first_layer(bands.layers.first()?),
            in_steps: bands.is_in_integers(),
            line_floats: 0,
        };
        let (mut c_in, mut input) = (channels, [height, width]);
        for (index, layer) in bands.layers.iter().enumerate() {
            if index > 0 && is_first_layer(layer) {
                return None;
            }
            let stage = Stage::of(layer, c_in, input)?;
            if stage.in_steps != chain.in_steps || chain.in_steps && chain.plain {
                return None;
            }
            *chain.stages.get_mut(index)? = stage;
            (c_in, input) = (stage.c_out, stage.window.output);
        }
        Some(chain)
    }

    /// The chain in bands of these heights.
    fn in_bands(mut self, first_rows: usize, band_rows: usize) -> Option<Chain> {
        (self.first_rows, self.band_rows) = (first_rows, band_rows);
        let fits = first_rows > 0 && first_rows <= band_rows && band_rows <= self.rows();
        (fits && self.place_lines().is_some()).then_some(self)
    }

    /// Those layers by Winograd for which it pays; `None` where there are none, or the whole is one band.
    fn with_winograd(mut self, bands: &Bands, rows: usize) -> Option<Chain> {
        for (stage, layer) in self.stages.iter_mut().zip(&bands.layers) {
            stage.tile = stage.winograd_tile(layer);
        }
        let used = self.stages().iter().any(|stage| stage.tile.is_some());
        if !used || rows >= self.rows() {
            return None;
        }
        let chain = self.with_best_start(rows)?;
        let is_low = |s: &Stage| s.most_rows.div_ceil(s.tile_rows()) <= MAX_TILE_ROWS;
        chain.stages().iter().all(is_low).then_some(chain)
    }

    /// A first band that looks ahead no further than the others need not be all as tall.
    fn with_best_start(self, band_rows: usize) -> Option<Chain> {
        let heights = (1..=band_rows).filter_map(|first| self.in_bands(first, band_rows));
        heights.min_by_key(|chain| (chain.line_floats, Reverse(chain.first_rows)))
    }

    /// Of the last layer.
    fn rows(&self) -> usize {
        self.stages()
            .last()
            .map_or(0, |stage| stage.window.output[0])
    }

    pub fn stages(&self) -> &[Stage] {
        &self.stages[..self.len]
    }

    /// Elements of the input that are an image's, those of them before row `row`, and from plane to plane.
    pub fn input_of(&self, image: usize, row: usize) -> (Range<usize>, usize, usize) {
        let first = &self.stages[0];
        let (planes, lanes) = match self.plain {
            true => (first.c_in, 1),
            false => (first.c_in.div_ceil(LANES), LANES),
        };
        let row_elements = first.window.input[1] * lanes;
        let plane = first.window.input[0] * row_elements;
        let all = image * planes * plane..(image + 1) * planes * plane;
        (all, row * row_elements, plane)
    }

    /// Works out the line buffers: rows kept from band to band, and new ones.
    ///
    /// ```text
    ///   first band   (n − 1) · stride + reach − pad     rows under the next layer's first n
    ///   then         (n − 1) · stride + reach           under n more; kept ones included
    ///   tiles        and up to the end of the last row's tile
    /// ```
    fn place_lines(&mut self) -> Option<()> {
        // New rows of the stage after the one at hand: in the first band, and in the others at most.
        let last = self.stages.get_mut(self.len.checked_sub(1)?)?;
        let mut first = last.aligned(self.first_rows);
        let mut step = self.band_rows.checked_next_multiple_of(last.tile_rows())?;
        last.most_rows = first.max(step).min(last.window.output[0]);
        // Whether all bands end equally far before the end of a tile.
        let mut even = true;
        let mut floats = 0usize;
        for index in (0..self.len - 1).rev() {
            let next = self.stages[index + 1];
            let stage = &mut self.stages[index];
            let (stride, tile_rows) = (next.window.strides[0], stage.tile_rows());
            let under = |rows: usize| (rows - 1).checked_mul(stride)?.checked_add(next.reach());
            let needed = under(first)? - next.window.pads_begin[0];
            let kept = under(step)?;
            step = step.checked_mul(stride)?;
            even &= step.is_multiple_of(tile_rows);
            first = needed.checked_next_multiple_of(tile_rows)?;
            let ahead = if even { first - needed } else { tile_rows - 1 };
            step = step.checked_next_multiple_of(tile_rows)?;
            let steady = kept.checked_add(ahead)?.max(step);
            stage.buffer_rows = first.max(steady).min(stage.window.output[0]);
            stage.most_rows = first.max(step).min(stage.window.output[0]);
            let plane = stage.buffer_rows.checked_mul(stage.row_floats())?;
            floats = floats.checked_add(plane.checked_mul(stage.out_blocks())?)?;
        }
        let mut at = 0;
        for index in 0..self.len {
            let stage = &mut self.stages[index];
            stage.at = at;
            at += stage.line_plane() * stage.out_blocks();
        }
        self.line_floats = floats;
        (floats <= isize::MAX as usize / 64).then_some(())
    }

    /// Rows of the last stage after which the band that begins at `row` ends.
    pub fn band_end(&self, row: usize) -> usize {
        let rows = if row == 0 {
            self.first_rows
        } else {
            self.band_rows
        };
        self.stages[self.len - 1].aligned(row + rows)
    }

    /// Bands of the last stage.
    pub fn bands(&self) -> usize {
        let end = self.band_end(0);
        let step = self.band_end(end) - end;
        1 + (self.rows() - end).div_ceil(step.max(1))
    }

    /// Whether the last stage may write its rows where the input's lie: whatever row it writes, no
    /// later band reads there.
    pub fn follows_input(&self) -> bool {
        let [head, rest @ ..] = self.stages() else {
            return false;
        };
        let same = self.stages().iter().all(|s| {
            s.window.strides[0] == 1
                && s.window.input == head.window.input
                && s.window.output == head.window.input
        });
        // How far the first stage is ahead of the last, and how far it looks back.
        let ahead: usize = rest
            .iter()
            .map(|s| s.reach() - 1 - s.window.pads_begin[0].min(s.reach() - 1))
            .sum();
        !rest.is_empty() && same && ahead >= head.window.pads_begin[0]
    }
}

pub(super) fn is_first_layer(layer: &BandLayer) -> bool {
    matches!(layer, BandLayer::Conv(conv) if conv.form == ConvForm::FirstLayer)
}

/// Sets the heights of bands: the tallest whose line buffers take at most `target_bytes`, else one row.
/// False where the chain cannot run in bands.
pub fn choose_heights(bands: &mut Bands, x: &[usize], target_bytes: usize) -> bool {
    let Some(chain) = Chain::direct(bands, x) else {
        return false;
    };
    if chain.in_bands(1, 1).is_none() {
        return false;
    }
    let rows = chain.rows();
    let (mut best, mut parts) = ((1, 1), rows.div_ceil(MAX_ROWS));
    while parts < rows {
        let band = rows.div_ceil(parts);
        if let Some(found) = chain.with_best_start(band)
            && found.line_floats.saturating_mul(4) <= target_bytes
        {
            best = (found.first_rows, band);
            break;
        }
        parts += 1;
    }
    (bands.first_rows, bands.band_rows) = best;
    true
}
