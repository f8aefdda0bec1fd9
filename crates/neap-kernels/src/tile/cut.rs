//! Into what pieces a product is cut: tiles of panels, blocks of positions, chunks of k.
//!
//! Nothing here changes a result, only how long it takes.

use super::drive::{Form, Product, Reduction};
use super::select::Shapes;
use super::taps::TABLE_TAPS;
use crate::simd::LANES;
use std::ops::Range;

/// Weights that a task may pass for every tile, so that the tile's taps are looked up once for all
/// their panels: they must stay in the second-level cache beside inputs and outputs.
const SHARED_TAPS_BYTES: usize = 160 * 1024;

/// Positions of a task: enough to pay for bringing the weights into cache, few enough that
/// their inputs stay there while the panels pass.
const TASK_POSITIONS: usize = 256;

/// From so many tiles for each worker on, it does not matter that one may get one more.
const EVEN_TILES: usize = 32;

/// Tasks that every worker should get where the shape allows, for balance.
const TASKS_PER_WORKER: usize = 4;

/// Consecutive pieces of nearly equal length.
#[derive(Clone, Copy)]
pub(crate) struct Split {
    pub total: usize,
    pub parts: usize,
}

impl Split {
    /// As few parts as keep each at most `most` long.
    pub fn at_most(total: usize, most: usize) -> Self {
        Split {
            total,
            parts: total.div_ceil(most.max(1)).max(1),
        }
    }

    pub fn range(self, part: usize) -> Range<usize> {
        let (base, extra) = (self.total / self.parts, self.total % self.parts);
        let start = part * base + part.min(extra);
        start..start + base + usize::from(part < extra)
    }
}

/// The panels of a range, in columns one tile wide.
#[derive(Clone, Copy)]
pub(super) enum Columns {
    Balanced(Split),
    /// Columns end at multiples of `width`, so that none has panels of two groups.
    Aligned {
        first_panel: usize,
        panels: usize,
        width: usize,
    },
}

impl Columns {
    pub fn new(product: &Product, shapes: Shapes, workers: usize) -> Self {
        let most = shapes.max_panels();
        match product.form {
            Form::Dense => {
                let mut split = Split::at_most(product.panels, most);
                // Too few positions to give every worker some: narrower columns.
                if product.images * product.positions < 2 * shapes.max_rows(most) * workers {
                    split.parts = split.parts.max(workers.min(product.panels));
                }
                Columns::Balanced(split)
            }
            Form::Groups {
                panels,
                first_panel,
                ..
            } => {
                let divides = |width: &usize| panels.is_multiple_of(*width);
                let width = (1..=most).rev().find(divides).unwrap_or(1);
                Columns::Aligned {
                    first_panel,
                    panels: product.panels,
                    width,
                }
            }
        }
    }

    pub fn count(self) -> usize {
        match self {
            Columns::Balanced(split) => split.parts,
            Columns::Aligned {
                first_panel,
                panels,
                width,
            } => (first_panel + panels).div_ceil(width) - first_panel / width,
        }
    }

    /// Panels of column `i`, counted from the range's first.
    pub fn panels(self, i: usize) -> Range<usize> {
        match self {
            Columns::Balanced(split) => split.range(i),
            Columns::Aligned {
                first_panel,
                panels,
                width,
            } => {
                let start = (first_panel / width + i) * width;
                start.saturating_sub(first_panel)
                    ..(start + width).min(first_panel + panels) - first_panel
            }
        }
    }

    /// Panels of the widest column.
    pub fn width(self) -> usize {
        match self {
            Columns::Balanced(split) => split.range(0).len(),
            Columns::Aligned { width, panels, .. } => width.min(panels),
        }
    }
}

/// The tasks of a product: images, then blocks of positions, then columns or bands of them.
#[derive(Clone, Copy)]
pub(super) struct Tasks {
    pub columns: Columns,
    /// The columns in bands: a task has all of a band, tile by tile.
    bands: Split,
    /// The positions in tiles, all as tall as they can be.
    pub rows: Split,
    /// The tiles in blocks.
    pub blocks: Split,
}

impl Tasks {
    pub fn new(product: &Product, shapes: Shapes, workers: usize) -> Self {
        let workers = workers.max(1);
        let wide = Columns::new(product, shapes, 1);
        if let Some(tasks) = Tasks::of_wide_bands(product, shapes, workers, wide) {
            return tasks;
        }
        let columns = Columns::new(product, shapes, workers);
        let count = columns.count();
        let (rows, blocks) = positions(product, shapes, workers, columns.width(), count);
        Tasks {
            columns,
            bands: Split::at_most(count, 1),
            rows,
            blocks,
        }
    }

    /// Every task has all columns: where the weights are few, and positions are enough for all workers.
    /// Of groups, which have few panels to a column and many taps to look up, as many as are few weights.
    fn of_wide_bands(
        product: &Product,
        shapes: Shapes,
        workers: usize,
        columns: Columns,
    ) -> Option<Self> {
        let r = &product.reduction;
        // A task widens one column.
        if shapes.is_widened() || Chunks::new(r, shapes.chunk_k(columns.width())).count() != 1 {
            return None;
        }
        let bytes = product.panels * (1 + r.taps * r.channels) * LANES * size_of::<f32>();
        let bands = bytes.div_ceil(SHARED_TAPS_BYTES);
        if bands > 1 && (product.form == Form::Dense || bands > columns.count() / 2) {
            return None;
        }
        let (rows, blocks) = positions(product, shapes, workers, columns.width(), bands);
        let enough = blocks.parts * product.images * bands >= workers;
        enough.then_some(Tasks {
            columns,
            bands: Split {
                total: columns.count(),
                parts: bands,
            },
            rows,
            blocks,
        })
    }

    /// Bands of columns.
    pub fn bands(&self) -> usize {
        self.bands.parts
    }

    /// Columns of a band.
    pub fn band(&self, i: usize) -> Range<usize> {
        self.bands.range(i)
    }
}

/// The positions in tiles, and the tiles in blocks, where `bands` tasks share each block.
fn positions(
    product: &Product,
    shapes: Shapes,
    workers: usize,
    width: usize,
    bands: usize,
) -> (Split, Split) {
    let tasks = product.images * bands;
    // So many tasks for each block come out even whatever the number of blocks.
    let even = tasks.is_multiple_of(workers);
    let most_rows = shapes.max_rows(width);
    let mut rows = Split::at_most(product.positions, most_rows);
    if tasks < workers && rows.parts < EVEN_TILES * workers {
        // As many tiles for one worker as for another, if they are not much lower for it.
        let parts = rows.parts.next_multiple_of(workers);
        if parts * most_rows.div_ceil(2) <= product.positions {
            rows.parts = parts;
        }
    }
    let by_size = product.positions.div_ceil(TASK_POSITIONS);
    let by_workers = if workers > 1 {
        (workers * TASKS_PER_WORKER).div_ceil(tasks)
    } else {
        1
    };
    // A task of less than a few tiles costs more than balance gains.
    let most = rows.parts / 2;
    let mut parts = by_size.max(by_workers.min(most));
    if !even {
        let up = parts.next_multiple_of(workers);
        parts = if up <= most {
            up
        } else {
            (parts / workers * workers).max(workers)
        };
    }
    let blocks = Split {
        total: rows.parts,
        parts: parts.clamp(1, rows.parts),
    };
    (rows, blocks)
}

/// A part of k: some channel blocks with all their taps, or some taps of one block.
pub(super) struct Chunk {
    pub blocks: Range<usize>,
    pub taps: Range<usize>,
}

/// How k is cut.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    blocks: Split,
    taps: Split,
}

impl Chunks {
    /// Chunks of so many k where that is possible.
    pub fn new(r: &Reduction, k_most: usize) -> Self {
        let blocks = r.channels.div_ceil(r.block_len);
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

    pub fn count(&self) -> usize {
        self.blocks.parts * self.taps.parts
    }

    /// Most k of any of them.
    pub fn longest(&self, r: &Reduction) -> usize {
        // The first parts of a split are the longest.
        self.blocks.range(0).len() * self.taps.range(0).len() * r.block_len
    }

    pub fn get(&self, i: usize) -> Chunk {
        Chunk {
            blocks: self.blocks.range(i / self.taps.parts),
            taps: self.taps.range(i % self.taps.parts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Activation;
    use crate::simd::Isa;
    use crate::tile::drive::Destination;

    fn tasks(positions: usize, panels: usize, k: usize, workers: usize) -> Tasks {
        let product = Product {
            form: Form::Dense,
            weights: std::ptr::null(),
            format: crate::panel::format::Format::F32,
            panels,
            ends_layer: false,
            images: 1,
            positions,
            reduction: Reduction {
                taps: 1,
                channels: k,
                block_len: LANES,
                block_step_bytes: 0,
            },
            destination: Destination {
                output: std::ptr::null_mut(),
                residual: std::ptr::null(),
                image_floats: 0,
                row_floats: 0,
                column_floats: 0,
                last_lanes: LANES,
            },
            activation: Activation::None,
            pairs_of: None,
        };
        Tasks::new(&product, Shapes::Dense(Isa::detect()), workers)
    }

    /// Tiles that the workers compute when each takes the next task as soon as it is done.
    fn tiles_each(tasks: &Tasks, workers: usize) -> Vec<usize> {
        let mut done = vec![0; workers];
        for task in 0..tasks.blocks.parts * tasks.bands() {
            let block = tasks.blocks.range(task / tasks.bands());
            let least = (0..workers).min_by_key(|&w| done[w]).unwrap();
            done[least] += block.len() * tasks.band(task % tasks.bands()).len();
        }
        done
    }

    #[test]
    fn small_layers_come_out_even() {
        for positions in [49, 64, 169, 196, 289, 784] {
            for workers in [2, 4] {
                if positions / workers < 16 {
                    continue;
                }
                let tasks = tasks(positions, 2, 1024, workers);
                assert_eq!(tasks.bands(), 1, "{positions} positions");
                let each = tiles_each(&tasks, workers);
                let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
                assert!(
                    most - least <= least / EVEN_TILES,
                    "{positions} positions: {each:?}"
                );
            }
        }
    }

    #[test]
    fn every_tile_and_panel_is_in_one_task() {
        for (positions, panels, k) in [
            (1, 1, 16),
            (1, 63, 512),
            (49, 2, 1152),
            (50, 10, 160),
            (3136, 9, 24),
        ] {
            for workers in [1, 2, 3, 8] {
                let tasks = tasks(positions, panels, k, workers);
                let mut count = vec![0; positions * panels];
                for block in 0..tasks.blocks.parts {
                    for tile in tasks.blocks.range(block) {
                        for column in (0..tasks.bands()).flat_map(|b| tasks.band(b)) {
                            for panel in tasks.columns.panels(column) {
                                for position in tasks.rows.range(tile) {
                                    count[position * panels + panel] += 1;
                                }
                            }
                        }
                    }
                }
                assert!(
                    count.iter().all(|&c| c == 1),
                    "{positions} {panels} {k} {workers}"
                );
            }
        }
    }
}
