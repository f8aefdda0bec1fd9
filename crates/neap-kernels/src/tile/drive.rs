//! How a product is cut: tasks of positions times panels, chunks of k that stay in cache, tiles.

use super::micro::{MAX_ROWS, Tap, Tile, ZERO_RUN};
use super::select::{Shapes, kernel};
use crate::epilogue::{Activation, activate};
use crate::parallel::Parallel;
use crate::simd::{Isa, LANES};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Weights of a tile's chunk: half of a small second-level cache.
const CHUNK_BYTES: usize = 256 * 1024;

/// Taps that a tile's table holds; larger kernels run in chunks of taps.
const TABLE_TAPS: usize = 32;

/// Positions of a task: enough to pay for bringing the weights into cache, few enough that
/// their inputs stay there while the panels pass.
const TASK_POSITIONS: usize = 256;

/// Tasks that every worker should get where the shape allows, for balance.
const TASKS_PER_WORKER: usize = 4;

/// Where the inputs of a tile are found.
pub(crate) trait Inputs: Sync {
    /// Describes taps `taps` for `rows` positions from `position` on, of image `image`, at
    /// channel block 0.
    fn fill(
        &self,
        image: usize,
        position: usize,
        rows: usize,
        taps: Range<usize>,
        writer: &mut TapWriter<'_>,
    );
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
    /// Those of its own group of `width` channels; panel p reads the inputs `panel_bytes * p` on.
    NarrowGroups { width: usize, panel_bytes: usize },
}

/// A product to compute.
pub(crate) struct Product {
    pub form: Form,
    /// Bias of the first panel of the range.
    pub weights: *const f32,
    /// Panels of the range, and whether its last is the layer's last.
    pub panels: usize,
    pub ends_layer: bool,
    pub images: usize,
    pub positions: usize,
    pub reduction: Reduction,
    /// `output` is where the first panel of the range begins.
    pub destination: Destination,
    pub activation: Activation,
}

// SAFETY: tasks read shared memory and write disjoint parts of the output; whoever builds a
// `Product` vouches for the pointers (see `run`).
unsafe impl Sync for Product {}

/// Collects the taps of a tile that touch the image.
pub(crate) struct TapWriter<'a> {
    table: &'a mut [MaybeUninit<Tap>; TABLE_TAPS],
    len: usize,
    /// Offset of the chunk's first channel block.
    first_block_bytes: usize,
    chunk_first_tap: usize,
    touched: bool,
}

impl TapWriter<'_> {
    /// Starts tap `index`, outside the image for all positions so far.
    #[inline]
    pub(crate) fn begin(&mut self, index: usize) {
        let entry = Tap {
            index: index - self.chunk_first_tap,
            base: [ZERO_RUN.0.as_ptr(); MAX_ROWS],
            moves: [0; MAX_ROWS],
        };
        self.table[self.len].write(entry);
        self.touched = false;
    }

    /// Position `row` of the tile reads at `run`, which points to channel block 0.
    #[inline]
    pub(crate) fn inside(&mut self, row: usize, run: *const f32) {
        // SAFETY: `begin` has written this entry.
        let entry = unsafe { self.table[self.len].assume_init_mut() };
        entry.base[row] = run.wrapping_byte_add(self.first_block_bytes);
        entry.moves[row] = usize::MAX;
        self.touched = true;
    }

    /// Keeps the tap unless it is outside for the whole tile.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.len += usize::from(self.touched);
    }
}

/// Consecutive chunks of nearly equal length.
#[derive(Clone, Copy)]
struct Split {
    total: usize,
    parts: usize,
}

impl Split {
    /// As few parts as keep each at most `most` long.
    fn at_most(total: usize, most: usize) -> Self {
        Split {
            total,
            parts: total.div_ceil(most.max(1)).max(1),
        }
    }

    fn range(self, part: usize) -> Range<usize> {
        let (base, extra) = (self.total / self.parts, self.total % self.parts);
        let start = part * base + part.min(extra);
        start..start + base + usize::from(part < extra)
    }
}

/// A part of k: some blocks with all their taps, or some taps of one block.
struct Chunk {
    blocks: Range<usize>,
    taps: Range<usize>,
}

/// How k is cut.
#[derive(Clone, Copy)]
struct Chunks {
    blocks: Split,
    taps: Split,
}

impl Chunks {
    fn new(r: &Reduction, panels: usize) -> Self {
        let blocks = r.channels.div_ceil(r.block_len);
        let k_most = CHUNK_BYTES / (panels * LANES * size_of::<f32>());
        let block_k = r.taps * r.block_len;
        if r.taps <= TABLE_TAPS && (block_k <= k_most || r.taps == 1) {
            let taps = Split {
                total: r.taps,
                parts: 1,
            };
            return Chunks {
                blocks: Split::at_most(blocks, k_most / block_k),
                taps,
            };
        }
        let taps_most = (k_most / r.block_len).clamp(1, TABLE_TAPS);
        Chunks {
            blocks: Split {
                total: blocks,
                parts: blocks,
            },
            taps: Split::at_most(r.taps, taps_most),
        }
    }

    fn count(&self) -> usize {
        self.blocks.parts * self.taps.parts
    }

    fn get(&self, i: usize) -> Chunk {
        Chunk {
            blocks: self.blocks.range(i / self.taps.parts),
            taps: self.taps.range(i % self.taps.parts),
        }
    }
}

/// Computes the product.
///
/// # Safety
/// For every panel of the range its weights, for every position its input runs (as `inputs` gives
/// them, for all blocks) and its outputs are memory the caller may use so, the outputs of
/// different positions and panels do not overlap, and no one else uses the outputs meanwhile.
pub(crate) unsafe fn run(
    isa: Isa,
    parallel: &dyn Parallel,
    product: &Product,
    inputs: &dyn Inputs,
) {
    if product.panels == 0 || product.positions == 0 || product.images == 0 {
        return;
    }
    let shapes = match product.form {
        Form::Dense => Shapes::Dense(isa),
        Form::NarrowGroups { width, .. } => Shapes::NarrowGroups(isa, width),
    };
    let groups = Split::at_most(product.panels, shapes.max_panels());
    let blocks = position_blocks(shapes, parallel.workers(), product, groups.parts);
    let tasks = product.images * blocks.parts * groups.parts;
    parallel.run(tasks, &|task, _worker| {
        let image = task / (blocks.parts * groups.parts);
        let block = task / groups.parts % blocks.parts;
        let group = groups.range(task % groups.parts);
        // SAFETY: tasks differ in image, positions or panels, so they write disjoint outputs.
        unsafe {
            run_task(
                isa,
                shapes,
                product,
                inputs,
                image,
                blocks.range(block),
                group,
            )
        };
    });
}

fn position_blocks(shapes: Shapes, workers: usize, product: &Product, groups: usize) -> Split {
    let rows = shapes.max_rows(product.panels.min(shapes.max_panels()));
    let by_size = product.positions.div_ceil(TASK_POSITIONS);
    let by_workers = if workers > 1 {
        (workers * TASKS_PER_WORKER).div_ceil(groups * product.images)
    } else {
        1
    };
    // A task smaller than a few tiles costs more than balance gains.
    let most = (product.positions / (rows * 2)).max(1);
    Split {
        total: product.positions,
        parts: by_size.max(by_workers.min(most)),
    }
}

/// All of k for some positions and at most a tile's width of panels.
///
/// # Safety
/// As [`run`].
unsafe fn run_task(
    isa: Isa,
    shapes: Shapes,
    product: &Product,
    inputs: &dyn Inputs,
    image: usize,
    positions: Range<usize>,
    panels: Range<usize>,
) {
    let r = &product.reduction;
    let d = &product.destination;
    let panel_floats = (1 + r.taps * r.channels) * LANES;
    let rows = Split::at_most(positions.len(), shapes.max_rows(panels.len()));
    let chunks = Chunks::new(r, panels.len());
    let all_blocks = r.channels.div_ceil(r.block_len);
    let len_of = |block: usize| {
        if block + 1 == all_blocks {
            r.channels - block * r.block_len
        } else {
            r.block_len
        }
    };
    let ends_layer = product.ends_layer && panels.end == product.panels;
    let last_lanes = if ends_layer { d.last_lanes } else { LANES };
    let heavy = !product.activation.is_light();
    let inputs_from = match product.form {
        Form::Dense => 0,
        Form::NarrowGroups { panel_bytes, .. } => panels.start * panel_bytes,
    };
    let mut table = [const { MaybeUninit::<Tap>::uninit() }; TABLE_TAPS];

    for c in 0..chunks.count() {
        let chunk = chunks.get(c);
        let k = chunk.blocks.start * r.block_len * r.taps
            + chunk.taps.start * len_of(chunk.blocks.start);
        let is_last = c + 1 == chunks.count();
        for t in 0..rows.parts {
            let tile_rows = rows.range(t);
            let position = positions.start + tile_rows.start;
            let mut writer = TapWriter {
                table: &mut table,
                len: 0,
                first_block_bytes: inputs_from + chunk.blocks.start * r.block_step_bytes,
                chunk_first_tap: chunk.taps.start,
                touched: false,
            };
            inputs.fill(
                image,
                position,
                tile_rows.len(),
                chunk.taps.clone(),
                &mut writer,
            );
            let taps_len = writer.len;
            let offset =
                image * d.image_floats + position * d.row_floats + panels.start * d.column_floats;
            // SAFETY: offsets of a panel of the range and of a position are inside what `run`'s
            // contract names; the micro-kernel is one this processor has.
            unsafe {
                let first_panel = product.weights.add(panels.start * panel_floats);
                let residual = if d.residual.is_null() {
                    d.residual
                } else {
                    d.residual.add(offset)
                };
                let output = d.output.add(offset);
                let tile = Tile {
                    weights: first_panel.add((1 + k) * LANES),
                    bias: first_panel,
                    panel_floats,
                    taps: table.as_ptr().cast(),
                    taps_len,
                    taps_total: chunk.taps.len(),
                    blocks: chunk.blocks.len(),
                    block_len: r.block_len,
                    // Without any k there is no last block.
                    last_len: chunk.blocks.end.checked_sub(1).map_or(0, len_of),
                    block_step_bytes: r.block_step_bytes,
                    output,
                    residual,
                    row_floats: d.row_floats,
                    column_floats: d.column_floats,
                    last_lanes,
                    is_first: c == 0,
                    is_last,
                    activation: product.activation,
                };
                kernel(shapes, panels.len(), tile_rows.len())(&tile);
                if is_last && heavy {
                    let f = product.activation;
                    for p in 0..panels.len() {
                        let lanes = if p + 1 == panels.len() {
                            last_lanes
                        } else {
                            LANES
                        };
                        let column = output.add(p * d.column_floats);
                        activate(isa, f, column, tile_rows.len(), d.row_floats, lanes);
                    }
                }
            }
        }
    }
}
