//! Sizes of a chain of layers that runs in row bands, and how many rows its line buffers hold.

use crate::layer::Window2d;
use neap_ir::bands::{BandLayer, Bands, MAX_LAYERS};
use neap_ir::graph::LANES;
use neap_ir::infer::{Pads, conv_output_size};
use neap_ir::panel::ConvForm;

/// Tallest band that is tried: past that, more rows gain nothing.
const MAX_ROWS: usize = 64;

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
    /// Of all line buffers.
    pub line_floats: usize,
}

/// One layer; `[height, width]` in all pairs.
#[derive(Clone, Copy, Default)]
pub(super) struct Stage {
    pub c_in: usize,
    pub c_out: usize,
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    pub pads_begin: [usize; 2],
    pub pads_end: [usize; 2],
    /// Rows of its results that its line buffer holds; the last stage has none.
    pub buffer_rows: usize,
    /// Where the line buffer begins among all, in floats.
    pub at: usize,
}

impl Stage {
    fn of(layer: &BandLayer, c_in: usize, input: [usize; 2]) -> Option<Stage> {
        let window = layer.window();
        if window.kernel.len() != 2 {
            return None;
        }
        let w = Window2d::of(window);
        let along = |axis: usize| {
            let pads = Pads {
                begin: w.pads_begin[axis],
                end: w.pads_end[axis],
            };
            let (kernel, stride) = (w.kernel[axis], w.strides[axis]);
            conv_output_size(input[axis], kernel, stride, w.dilations[axis], pads)
        };
        let output = match layer {
            BandLayer::Pool { output_spatial, .. } => *output_spatial.first_chunk()?,
            _ => [along(0)?, along(1)?],
        };
        let stage = Stage {
            c_in,
            c_out: match layer {
                BandLayer::Conv(conv) => conv.c_out,
                _ => c_in,
            },
            input,
            output,
            kernel: w.kernel,
            strides: w.strides,
            dilations: w.dilations,
            pads_begin: w.pads_begin,
            pads_end: w.pads_end,
            buffer_rows: 0,
            at: 0,
        };
        // Every row of results has some row of inputs under it, and positions do not overflow.
        let reach = (w.kernel[0].checked_sub(1)?)
            .checked_mul(w.dilations[0])?
            .checked_add(1)?;
        let last_top = output[0].checked_sub(1)?.checked_mul(w.strides[0])?;
        let end = input[0].checked_add(w.pads_begin[0])?;
        let sound = w.strides[0] > 0
            && output[1] > 0
            && w.pads_begin[0] < reach
            && last_top < end
            && last_top.checked_add(reach)? <= isize::MAX as usize / 4
            && end.checked_add(w.pads_end[0])? <= isize::MAX as usize / 4;
        sound.then_some(stage)
    }

    /// Rows from the first to the last tap.
    fn reach(&self) -> usize {
        (self.kernel[0] - 1) * self.dilations[0] + 1
    }

    /// The first input row that results from row `row` on need.
    pub fn top(&self, row: usize) -> usize {
        let top = (row * self.strides[0]).saturating_sub(self.pads_begin[0]);
        top.min(self.input[0])
    }

    /// One past the last input row under the results before row `end`.
    pub fn bottom(&self, end: usize) -> usize {
        let bottom = (end.max(1) - 1) * self.strides[0] + self.reach();
        (bottom - self.pads_begin[0]).min(self.input[0])
    }

    /// Rows of padding above the first of the rows under results from `row` on.
    pub fn pad_above(&self, row: usize) -> usize {
        self.pads_begin[0].saturating_sub(row * self.strides[0])
    }

    /// Rows of padding after the input row before `end`, seen as if the rest were padding too: what
    /// an average that counts padding may count.
    pub fn pad_below(&self, end: usize) -> usize {
        self.input[0] + self.pads_end[0] - end
    }

    pub fn out_blocks(&self) -> usize {
        self.c_out.div_ceil(LANES)
    }

    /// Floats of a row of results.
    pub fn row_floats(&self) -> usize {
        self.output[1] * LANES
    }

    /// From channel block to channel block in the line buffer.
    pub fn line_plane(&self) -> usize {
        self.buffer_rows * self.row_floats()
    }
}

impl Chain {
    /// `None` for chains that cannot run so. `x` is the input's shape.
    pub fn of(bands: &Bands, x: &[usize]) -> Option<Chain> {
        let &[batch, channels, height, width] = x else {
            return None;
        };
        let mut chain = Chain {
            stages: [Stage::default(); MAX_LAYERS],
            len: bands.layers.len(),
            batch,
            first_rows: bands.first_rows,
            band_rows: bands.band_rows,
            plain: is_first_layer(bands.layers.first()?),
            line_floats: 0,
        };
        let (mut c_in, mut input) = (channels, [height, width]);
        for (index, layer) in bands.layers.iter().enumerate() {
            if index > 0 && is_first_layer(layer) {
                return None;
            }
            let stage = Stage::of(layer, c_in, input)?;
            *chain.stages.get_mut(index)? = stage;
            (c_in, input) = (stage.c_out, stage.output);
        }
        let rows = chain.stages().last()?.output[0];
        let fits =
            chain.first_rows > 0 && chain.first_rows <= chain.band_rows && chain.band_rows <= rows;
        (fits && chain.place_lines().is_some()).then_some(chain)
    }

    pub fn stages(&self) -> &[Stage] {
        &self.stages[..self.len]
    }

    /// Works out the line buffers: rows kept from band to band, and new ones.
    ///
    /// ```text
    ///   first band   (n − 1) · stride + reach − pad     rows under the next layer's first n
    ///   then         (n − 1) · stride + reach           under n more; kept ones included
    /// ```
    fn place_lines(&mut self) -> Option<()> {
        // New rows of the stage after the one at hand: in the first band, and in the others.
        let (mut first, mut step) = (self.first_rows, self.band_rows);
        let mut floats = 0usize;
        for index in (0..self.len - 1).rev() {
            let next = self.stages[index + 1];
            let stride = next.strides[0];
            let under = |rows: usize| (rows - 1).checked_mul(stride)?.checked_add(next.reach());
            first = under(first)? - next.pads_begin[0];
            let steady = under(step)?.max(step.checked_mul(stride)?);
            step = step.checked_mul(stride)?;
            let stage = &mut self.stages[index];
            stage.buffer_rows = first.max(steady).min(stage.output[0]);
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

    /// Most rows that the first stage computes at once.
    pub fn first_stage_rows(&self) -> usize {
        match self.stages() {
            [_] => self.band_rows,
            [first, ..] => first.buffer_rows,
            [] => 0,
        }
    }

    /// Rows of the last stage after which the band that begins at `row` ends.
    pub fn band_end(&self, row: usize) -> usize {
        let rows = if row == 0 {
            self.first_rows
        } else {
            self.band_rows
        };
        (row + rows).min(self.stages[self.len - 1].output[0])
    }

    /// Whether the last stage may write its rows where the input's lie: whatever row it writes, no
    /// later band reads there.
    pub fn follows_input(&self) -> bool {
        let [head, rest @ ..] = self.stages() else {
            return false;
        };
        let same = self
            .stages()
            .iter()
            .all(|s| s.strides[0] == 1 && s.input == head.input && s.output == head.input);
        // How far the first stage is ahead of the last, and how far it looks back.
        let ahead: usize = rest
            .iter()
            .map(|s| s.reach() - 1 - s.pads_begin[0].min(s.reach() - 1))
            .sum();
        !rest.is_empty() && same && ahead >= head.pads_begin[0]
    }
}

pub(super) fn is_first_layer(layer: &BandLayer) -> bool {
    matches!(layer, BandLayer::Conv(conv) if conv.form == ConvForm::FirstLayer)
}

/// Sets the heights of bands: the tallest whose line buffers take at most `target_bytes`, else one row.
/// False where the chain cannot run in bands.
pub fn choose_heights(bands: &mut Bands, x: &[usize], target_bytes: usize) -> bool {
    let mut trial = Bands {
        first_rows: 1,
        band_rows: 1,
        ..bands.clone()
    };
    let Some(lowest) = Chain::of(&trial, x) else {
        return false;
    };
    let rows = lowest.stages[lowest.len - 1].output[0];
    let (mut best, mut parts) = ((1, 1), rows.div_ceil(MAX_ROWS));
    while parts < rows {
        let band = rows.div_ceil(parts);
        // A first band that looks ahead no further than the others need not be all as tall.
        let heights = (1..=band).filter_map(|first| {
            (trial.first_rows, trial.band_rows) = (first, band);
            let chain = Chain::of(&trial, x)?;
            Some((chain.line_floats, std::cmp::Reverse(first)))
        });
        if let Some((floats, first)) = heights.min()
            && floats.saturating_mul(4) <= target_bytes
        {
            best = (first.0, band);
            break;
        }
        parts += 1;
    }
    (bands.first_rows, bands.band_rows) = best;
    true
}
