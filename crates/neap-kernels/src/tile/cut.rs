//! Into what pieces a product is cut: tiles of panels, blocks of positions, chunks of k.
//!
//! Nothing here changes a result, only how long it takes.

use super::drive::{Form, Product, Reduction};
use super::select::Shapes;
use super::taps::TABLE_TAPS;
use crate::simd::LANES;
use std::ops::Range;

/// Weights of a tile's chunk: half of a small second-level cache.
const CHUNK_BYTES: usize = 256 * 1024;

/// Weights of a whole layer that a task may pass for every tile, so that the tile's taps are
/// looked up once: they must stay in the second-level cache beside inputs and outputs.
const SMALL_LAYER_BYTES: usize = 160 * 1024;

/// Positions of a task: enough to pay for bringing the weights into cache, few enough that
/// their inputs stay there while the panels pass.
const TASK_POSITIONS: usize = 256;

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
    /// All columns in one task, tile by tile, rather than a task for each.
    pub together: bool,
    /// The positions in tiles, all as tall as they can be.
    pub rows: Split,
    /// The tiles in blocks.
    pub blocks: Split,
}

impl Tasks {
    pub fn new(product: &Product, shapes: Shapes, workers: usize) -> Self {
        let columns = Columns::new(product, shapes, workers);
        let r = &product.reduction;
        let bytes = product.panels * (1 + r.taps * r.channels) * LANES * size_of::<f32>();
        let together = bytes <= SMALL_LAYER_BYTES && Chunks::new(r, columns.width()).count() == 1;
        let bands = if together { 1 } else { columns.count() };
        let rows = shapes.max_rows(columns.width());
        let by_size = product.positions.div_ceil(TASK_POSITIONS);
        let by_workers = if workers > 1 {
            (workers * TASKS_PER_WORKER).div_ceil(bands * product.images)
        } else {
            1
        };
        // A task of less than a few tiles costs more than balance gains.
        let most = (product.positions / (rows * 2)).max(1);
        let mut parts = by_size.max(by_workers.min(most));
        if !(parts * bands * product.images).is_multiple_of(workers.max(1)) {
            parts = parts.next_multiple_of(workers).min(most.max(parts));
        }
        // Blocks of whole tiles: a block's last would be a low one otherwise.
        let rows = Split::at_most(product.positions, rows);
        let blocks = Split {
            total: rows.parts,
            parts: parts.min(rows.parts),
        };
        // Too few positions to go round: cut by columns after all.
        let together = together && blocks.parts * product.images >= workers;
        Tasks {
            columns,
            together,
            rows,
            blocks,
        }
    }

    /// Pieces of the columns: one with all, or one for each.
    pub fn bands(&self) -> usize {
        if self.together {
            1
        } else {
            self.columns.count()
        }
    }

    /// Columns of a band.
    pub fn band(&self, i: usize) -> Range<usize> {
        if self.together {
            0..self.columns.count()
        } else {
            i..i + 1
        }
    }
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
    /// Chunks whose weights stay in cache in a tile of `panels` panels.
    pub fn new(r: &Reduction, panels: usize) -> Self {
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

    pub fn count(&self) -> usize {
        self.blocks.parts * self.taps.parts
    }

    pub fn get(&self, i: usize) -> Chunk {
        Chunk {
            blocks: self.blocks.range(i / self.taps.parts),
            taps: self.taps.range(i % self.taps.parts),
        }
    }
}
