//! Runs a product: hands out its tasks, and walks each through chunks of k and tiles.

use super::cut::{Chunk, Chunks, Columns, Split, Tasks};
use super::micro::Tile;
use super::pairs::{Halves, pair_up};
use super::select::{Shapes, kernel};
use super::taps::{Table, TapWriter};
use super::widen::{Narrow, Wide, most_k, widen};
use crate::epilogue::{Activation, activate};
use crate::panel::format::Format;
use crate::parallel::Parallel;
use crate::simd::{Isa, LANES};
use std::ops::Range;

/// From so many tiles on, each brings a part of the next weights into cache. With fewer that
/// would be bursts, and the hardware follows a plain stream well enough.
const LOOK_AHEAD_TILES: usize = 4;

/// From so many positions on, weights are widened once for all of them, so that a format needs kernels of one position only.
const WIDENED_POSITIONS: usize = 2;

/// Bytes of a widened k, and of a bias.
const WIDE_STEP: usize = LANES * size_of::<f32>();

/// Where the inputs of a tile are found.
pub(crate) trait Inputs: Sync {
    /// Gives the writer the taps `taps` of the tile whose positions begin at `position` of image
    /// `image`.
    fn fill(&self, image: usize, position: usize, taps: Range<usize>, writer: &mut TapWriter<'_>);
}

/// The order of k inside a panel: `[channel block][tap][channel in block]`.
#[derive(Clone, Copy)]
pub(crate) struct Reduction {
    pub taps: usize,
    /// k of one tap over all blocks.
    pub channels: usize,
    /// k of one tap in one block (at most 16 where taps may lie outside the image).
    pub block_len: usize,
    /// From block to block in the input.
    pub block_step_bytes: usize,
}

/// Where results go, in floats: image, position (row) and panel (column) strides.
#[derive(Clone, Copy)]
pub(crate) struct Destination {
    pub output: *mut f32,
    /// Added first: null, or memory with the same strides as the output.
    pub residual: *const f32,
    pub image_floats: usize,
    pub row_floats: usize,
    pub column_floats: usize,
    /// Lanes of the last of all panels that are written.
    pub last_lanes: usize,
}

/// Which inputs an output channel sums over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// All of them.
    Dense,
    /// Those of its group. Panel p of the layer reads inputs from
    /// `step_bytes * (p / panels)` on.
    Groups {
        /// Panels of a group; 1 where several groups share a panel.
        panels: usize,
        step_bytes: usize,
        /// The range's first panel.
        first_panel: usize,
        /// Channels of a group where several share a panel.
        narrow: Option<usize>,
    },
}

/// A product to compute.
pub(crate) struct Product {
    pub form: Form,
    /// Where the first panel of the range begins.
    pub weights: *const u8,
    pub format: Format,
    /// Panels of the range, and whether its last is the layer's last.
    pub panels: usize,
    pub ends_layer: bool,
    pub images: usize,
    pub positions: usize,
    pub reduction: Reduction,
    /// `output` is where the first panel of the range begins.
    pub destination: Destination,
    pub activation: Activation,
    /// Inputs are pairs of bfloat16, as [`round_pairs`](super::round_pairs) makes them, and so become weights, which are `Format::Bf16`. What the
    /// reduction and [`Inputs`] count as one k, four bytes, are two of the so many k of a panel; a tap has an even number, unless
    /// it is the only one. The instruction set has pairs, and groups are not narrow.
    pub pairs_of: Option<usize>,
}

// SAFETY: tasks read shared memory and write disjoint parts of the output; whoever builds a
// `Product` vouches for the pointers (see `run`).
unsafe impl Sync for Product {}

/// Computes the product.
///
/// # Safety
/// For every panel of the range its weights, for every position its input runs (as `inputs` gives
/// them, for all blocks and groups) and its outputs are memory the caller may use so, the outputs
/// of different positions and panels do not overlap, and no one else uses the outputs meanwhile.
pub(crate) unsafe fn run(
    isa: Isa,
    parallel: &dyn Parallel,
    product: &Product,
    inputs: &dyn Inputs,
) {
    if product.panels == 0 || product.positions == 0 || product.images == 0 {
        return;
    }
    let shapes = shapes(isa, product);
    let tasks = Tasks::new(product, shapes, parallel.workers());
    let (blocks, bands) = (tasks.blocks, tasks.bands());
    parallel.run(product.images * blocks.parts * bands, &|task, _worker| {
        // Likely the worker's next panels.
        let next_band = tasks.band((task + parallel.workers()) % bands);
        let work = Task {
            isa,
            shapes,
            product,
            inputs,
            image: task / (blocks.parts * bands),
            rows: tasks.rows,
            tiles: blocks.range(task / bands % blocks.parts),
            columns: tasks.columns,
            band: tasks.band(task % bands),
            next_panel: tasks.columns.panels(next_band.start).start,
        };
        // SAFETY: tasks differ in image, positions or panels, so they write disjoint outputs.
        unsafe { work.run() };
    });
}

fn shapes(isa: Isa, product: &Product) -> Shapes {
    let (format, r) = (product.format, &product.reduction);
    if product.pairs_of.is_some() {
        return Shapes::Pairs(isa);
    }
    if let Form::Groups {
        narrow: Some(width),
        ..
    } = product.form
    {
        let widened = format != Format::F32;
        return Shapes::NarrowGroups {
            isa,
            width,
            widened,
        };
    }
    if format == Format::F32 {
        return Shapes::Dense(isa);
    }
    let widened = Shapes::Widened(isa);
    let panels = widened.max_panels();
    let fits = Chunks::new(r, widened.chunk_k(panels)).longest(r) <= most_k(panels);
    if product.positions >= WIDENED_POSITIONS && fits {
        return widened;
    }
    match format {
        Format::Blocks(_) if product.form == Form::Dense => Shapes::Row(isa, format),
        _ => Shapes::Row(format.isa(isa), format),
    }
}

/// All of k for some positions and some columns.
struct Task<'a> {
    isa: Isa,
    shapes: Shapes,
    product: &'a Product,
    inputs: &'a dyn Inputs,
    image: usize,
    /// All positions, in tiles, and which of those are this task's.
    rows: Split,
    tiles: Range<usize>,
    columns: Columns,
    band: Range<usize>,
    /// Whose weights to bring into cache at the end.
    next_panel: usize,
}

/// A chunk of k, where it lies, and what follows it.
struct Pass {
    chunk: Chunk,
    /// First k of the chunk, in every panel.
    k: usize,
    last_len: usize,
    is_first: bool,
    is_last: bool,
    /// First weights needed afterwards, and how many k of each panel a tile brings after each run.
    ahead: *const u8,
    ahead_per_run: usize,
    /// The task's only column, widened: its first panel with its bias, and bytes from panel to panel.
    wide: Option<(*const u8, usize)>,
}

impl Task<'_> {
    /// # Safety
    /// As [`run`], for this task's positions and panels.
    unsafe fn run(&self) {
        if self.shapes.is_widened() {
            let mut wide = Wide::NONE;
            // SAFETY: the caller's promise.
            return unsafe { self.run_chunks(Some(&mut wide)) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.run_chunks(None) };
    }

    /// # Safety
    /// As [`run`], for this task's positions and panels.
    unsafe fn run_chunks(&self, mut wide: Option<&mut Wide>) {
        let r = &self.product.reduction;
        let chunks = Chunks::new(r, self.shapes.chunk_k(self.columns.width()));
        let mut table = Table::new();
        for c in 0..chunks.count() {
            let mut pass = self.pass(chunks.get(c), c == 0, c + 1 == chunks.count());
            if let Some(wide) = &mut wide {
                // SAFETY: the chunk is no longer than fits, as was asked before; the rest is the caller's promise.
                pass.wide = Some(unsafe { self.widened(&pass, wide) });
                pass.ahead_per_run = 0;
            }
            for (t, tile) in self.tiles.clone().enumerate() {
                let rows = self.rows.range(tile);
                let position = rows.start;
                let mut writer = table.writer(rows.len(), pass.chunk.taps.start);
                self.inputs
                    .fill(self.image, position, pass.chunk.taps.clone(), &mut writer);
                let taps_len = writer.len();
                for column in self.band.clone() {
                    let panels = self.columns.panels(column);
                    // SAFETY: the table holds this tile's taps; the rest is the caller's promise.
                    unsafe { self.tile(&pass, t, position, rows.len(), panels, &table, taps_len) };
                }
            }
        }
    }

    /// Places a chunk.
    fn pass(&self, chunk: Chunk, is_first: bool, is_last: bool) -> Pass {
        let r = &self.product.reduction;
        let all_blocks = r.channels.div_ceil(r.block_len);
        let len_of = |block: usize| {
            if block + 1 == all_blocks {
                r.channels - block * r.block_len
            } else {
                r.block_len
            }
        };
        let k = chunk.blocks.start * r.block_len * r.taps
            + chunk.taps.start * len_of(chunk.blocks.start);
        let this_panel = self.columns.panels(self.band.start).start;
        let (next_panel, next_k) = if is_last {
            (self.next_panel, 0)
        } else {
            (
                this_panel,
                k + chunk.blocks.len() * chunk.taps.len() * r.block_len,
            )
        };
        let worth_it =
            self.tiles.len() >= LOOK_AHEAD_TILES && (!is_last || next_panel != this_panel);
        Pass {
            k,
            // Without any k there is no last block.
            last_len: chunk.blocks.end.checked_sub(1).map_or(0, len_of),
            is_first,
            is_last,
            ahead: self
                .product
                .weights
                .wrapping_add(next_panel * self.panel_bytes() + self.k_bytes(next_k)),
            ahead_per_run: if worth_it {
                r.block_len.div_ceil(self.tiles.len())
            } else {
                0
            },
            chunk,
            wide: None,
        }
    }

    /// Widens the chunk's weights of the task's column.
    ///
    /// # Safety
    /// As [`run`], and the chunk fits.
    unsafe fn widened(&self, pass: &Pass, wide: &mut Wide) -> (*const u8, usize) {
        let r = &self.product.reduction;
        let panels = self.columns.panels(self.band.start);
        let (blocks, taps) = (pass.chunk.blocks.len(), pass.chunk.taps.len());
        let first = self
            .product
            .weights
            .wrapping_add(panels.start * self.panel_bytes());
        let k = (blocks.saturating_sub(1) * r.block_len + pass.last_len) * taps;
        if let Some(of) = self.product.pairs_of {
            let halves = Halves {
                head: first,
                weights: first.wrapping_add(self.k_bytes(2 * pass.k)),
                panels: panels.len(),
                panel_bytes: self.panel_bytes(),
                k: (2 * k).min(of - 2 * pass.k),
            };
            // SAFETY: the caller's promise.
            unsafe { pair_up(self.isa, halves, wide) };
            return (std::ptr::from_ref(wide).cast(), halves.paired_panel_bytes());
        }
        let narrow = Narrow {
            format: self.product.format,
            head: first,
            weights: first.wrapping_add(self.k_bytes(pass.k)),
            panels: panels.len(),
            panel_bytes: self.panel_bytes(),
            k,
            block_len: r.block_len,
        };
        // SAFETY: the caller's promise.
        unsafe { widen(self.product.format.isa(self.isa), narrow, wide) };
        (std::ptr::from_ref(wide).cast(), narrow.wide_panel_bytes())
    }

    fn panel_bytes(&self) -> usize {
        let r = &self.product.reduction;
        self.k_bytes(self.product.pairs_of.unwrap_or(r.taps * r.channels))
    }

    /// Bytes of a panel before the weights of a k; before the block of a k with which one begins.
    fn k_bytes(&self, k: usize) -> usize {
        // What there is was checked to have a size.
        self.product.format.panel_bytes(k).unwrap_or(0)
    }

    /// Bytes from the inputs of channel block 0 of the layer to those of a panel's group.
    fn group_bytes(&self, panel: usize) -> usize {
        match self.product.form {
            Form::Dense => 0,
            Form::Groups {
                panels,
                step_bytes,
                first_panel,
                ..
            } => (first_panel + panel) / panels * step_bytes,
        }
    }

    /// One tile: number `t` of the task, `rows` positions from `position` on.
    ///
    /// # Safety
    /// As [`run`], and `table` holds the tile's taps.
    unsafe fn tile(
        &self,
        pass: &Pass,
        t: usize,
        position: usize,
        rows: usize,
        panels: Range<usize>,
        table: &Table,
        taps_len: usize,
    ) {
        let (r, d) = (&self.product.reduction, &self.product.destination);
        let panel_bytes = self.panel_bytes();
        let ends_layer = self.product.ends_layer && panels.end == self.product.panels;
        let last_lanes = if ends_layer { d.last_lanes } else { LANES };
        let offset =
            self.image * d.image_floats + position * d.row_floats + panels.start * d.column_floats;
        let brought = t * pass.ahead_per_run;
        let runs = pass.chunk.blocks.len() * pass.chunk.taps.len();
        // SAFETY: offsets of a panel of the range and of a position are inside what `run`'s
        // contract names; the micro-kernel is one this processor has.
        unsafe {
            let first_panel = self.product.weights.add(panels.start * panel_bytes);
            let residual = if d.residual.is_null() {
                d.residual
            } else {
                d.residual.add(offset)
            };
            let output = d.output.add(offset);
            let format = self.product.format;
            let (first_panel, panel_bytes, skipped, run_head, step) = match pass.wide {
                Some((wide, bytes)) => (wide, bytes, WIDE_STEP, 0, WIDE_STEP),
                None => (
                    first_panel,
                    panel_bytes,
                    self.k_bytes(pass.k),
                    format.run_head_bytes(),
                    format.step_bytes(),
                ),
            };
            let tile = Tile {
                weights: first_panel.add(skipped),
                head: first_panel.cast(),
                panel_bytes,
                corners: table.corners,
                taps: table.taps(),
                taps_len,
                blocks: pass.chunk.blocks.len(),
                block_bytes: run_head + r.block_len * pass.chunk.taps.len() * step,
                block_len: r.block_len,
                last_len: pass.last_len,
                block_step_bytes: r.block_step_bytes,
                first_block_bytes: self.group_bytes(panels.start)
                    + pass.chunk.blocks.start * r.block_step_bytes,
                output,
                residual,
                row_floats: d.row_floats,
                column_floats: d.column_floats,
                last_lanes,
                is_first: pass.is_first,
                is_last: pass.is_last,
                ahead: pass
                    .ahead
                    .wrapping_add(brought * runs * format.step_bytes()),
                ahead_per_run: if brought < r.block_len {
                    pass.ahead_per_run
                } else {
                    0
                },
                activation: self.product.activation,
            };
            kernel(self.shapes, panels.len(), rows)(&tile);
            if pass.is_last && !self.product.activation.is_light() {
                for p in 0..panels.len() {
                    let lanes = if p + 1 == panels.len() {
                        last_lanes
                    } else {
                        LANES
                    };
                    let column = output.add(p * d.column_floats);
                    activate(
                        self.isa,
                        self.product.activation,
                        column,
                        rows,
                        d.row_floats,
                        lanes,
                    );
                }
            }
        }
    }
}
