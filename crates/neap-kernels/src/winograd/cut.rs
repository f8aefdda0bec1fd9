//! Into what pieces a call is cut, and what scratch they take.
//!
//! ```text
//!   few channels, many tiles:                      many channels, few tiles:
//!   a task is a block of tiles, all panels         the values of a block of tiles are shared;
//!   values stay in the worker's own cache          a task is a few panels times a chunk of tiles,
//!                                                  so that weights pass through one cache, once
//!
//!   block   │ group │ group │ group │              a group is the tiles of one micro-kernel call
//! ```
//! Nothing here changes a result, only how long it takes.

use super::product::{max_panels, max_tiles};
use super::{Tile, WeightForm, prepared_panel_floats};
use crate::conv::ConvShape;
use crate::simd::{Isa, LANES};
use crate::tile::Split;

/// Values of a worker's own block: a quarter of a second-level cache, beside products and weights.
const OWN_VALUES_BYTES: usize = 272 * 1024;

/// Values of a shared block: a part of the last-level cache. Half as much reads the weights of deep layers twice.
const SHARED_VALUES_BYTES: usize = 2176 * 1024;

/// The same where memory is ample: weights that arrive are transformed for each block.
const WIDE_VALUES_BYTES: usize = 3 * SHARED_VALUES_BYTES;

/// Products of a worker's chunk of tiles.
const PRODUCTS_BYTES: usize = 288 * 1024;

/// Weights that are transformed at a time as they arrive.
const WEIGHTS_BYTES: usize = 256 * 1024;

/// The same where memory is ample: products go out to memory and come back between two parts of the channels.
const WIDE_WEIGHTS_BYTES: usize = 8 * WEIGHTS_BYTES;

/// Weights of a whole layer that are transformed before the first product.
const WHOLE_WEIGHTS_BYTES: usize = 3 << 20;

/// Prepared weights beyond these come from memory, and would come again for each block of each worker.
const CACHED_WEIGHTS_BYTES: usize = 8 << 20;

pub(super) struct Cut {
    tile: Tile,
    c_in: usize,
    /// Tiles of an image, down and across.
    pub grid: [usize; 2],
    /// Most tiles of a group.
    pub group_tiles: usize,
    /// Most panels of a micro-kernel call.
    pub width: usize,
    /// Whether workers share the values.
    pub shared: bool,
    /// All tiles, in blocks whose values are in memory at a time.
    pub blocks: Split,
    /// Most groups of a task.
    pub chunk_groups: usize,
    /// Raw weights are all transformed before the first product.
    pub weights_first: bool,
    /// Raw weights are transformed by each task, `weight_blocks` channel blocks at a time.
    pub weights_arrive: bool,
    pub weight_blocks: usize,
    pub workers: usize,
}

impl Cut {
    /// `is_wide`: in larger pieces, for which memory is ample.
    pub fn new(
        isa: Isa,
        tile: Tile,
        form: WeightForm,
        is_wide: bool,
        shape: &ConvShape,
        workers: usize,
    ) -> Self {
        let (values_bytes, arriving_bytes) = match is_wide {
            true => (WIDE_VALUES_BYTES, WIDE_WEIGHTS_BYTES),
            false => (SHARED_VALUES_BYTES, WEIGHTS_BYTES),
        };
        let grid = [0, 1].map(|axis| shape.window.output[axis].div_ceil(tile.outputs()));
        let tiles = grid[0].saturating_mul(grid[1]).saturating_mul(shape.batch);
        let (group_tiles, width) = (max_tiles(isa), max_panels(isa));
        let channel_blocks = shape.c_in.div_ceil(LANES);
        let points = tile.points();
        let workers = workers.max(1);
        let float = size_of::<f32>();

        let tile_bytes = (points * channel_blocks.max(1) * LANES).saturating_mul(float);
        let whole_groups = |bytes: usize| bytes / tile_bytes / group_tiles;
        let own_groups = whole_groups(OWN_VALUES_BYTES);
        let weights_bytes = prepared_panel_floats(tile, shape.c_in)
            .saturating_mul(shape.panels())
            .saturating_mul(float);
        let enough_tasks = tiles / (group_tiles * own_groups.max(1)) >= 2 * workers;
        let own_weights_bytes = match form {
            WeightForm::Raw => WHOLE_WEIGHTS_BYTES,
            WeightForm::Prepared => CACHED_WEIGHTS_BYTES,
        };
        let shared = own_groups == 0 || !enough_tasks || weights_bytes > own_weights_bytes;
        let most = if shared {
            whole_groups(values_bytes).max(2)
        } else {
            own_groups
        };
        let blocks = Split::at_most(tiles, most * group_tiles);
        let product_bytes = (points + 1) * LANES * width * float;
        let chunk_groups = (PRODUCTS_BYTES / product_bytes / group_tiles).max(1);
        let block_tiles = blocks.range(0).len();
        Cut {
            tile,
            c_in: shape.c_in,
            grid,
            group_tiles,
            width,
            shared,
            blocks,
            chunk_groups: if shared {
                chunk_groups
            } else {
                block_tiles.div_ceil(group_tiles)
            },
            weights_first: form == WeightForm::Raw && !shared,
            weights_arrive: form == WeightForm::Raw && shared,
            weight_blocks: (arriving_bytes / (points * LANES * LANES * width * float))
                .clamp(1, channel_blocks.max(1)),
            workers,
        }
    }

    pub fn tiles(&self) -> usize {
        self.blocks.total
    }

    /// How often raw weights are transformed.
    pub fn weight_passes(&self) -> usize {
        if self.weights_arrive {
            let groups = self.blocks.range(0).len().div_ceil(self.group_tiles);
            self.blocks.parts * groups.div_ceil(self.chunk_groups)
        } else {
            1
        }
    }

    /// From point to point in the values of so many tiles. An odd number of cache lines, as the
    /// strides below: else all points of a tile would fall on the same few sets of the cache.
    pub fn values_point_floats(&self, tiles: usize) -> usize {
        let lines = tiles.saturating_mul(self.c_in.div_ceil(LANES));
        (lines | 1).saturating_mul(LANES)
    }

    /// Values of the largest block, and a float for each tile and channel block.
    pub fn values_floats(&self) -> usize {
        let tiles = self.blocks.range(0).len();
        let values = (self.tile.points()).saturating_mul(self.values_point_floats(tiles));
        let told = tiles.saturating_mul(self.c_in.div_ceil(LANES).max(1));
        values.saturating_add(told.next_multiple_of(LANES))
    }

    /// From panel to panel in the products: all points of a tile.
    pub fn product_floats(&self) -> usize {
        (self.tile.points() | 1) * LANES
    }

    /// Products of a task.
    pub fn products_floats(&self) -> usize {
        let tiles = self.blocks.range(0).len();
        let tiles = tiles.min(self.chunk_groups * self.group_tiles);
        tiles * self.width * self.product_floats()
    }

    /// From point to point in weights that are transformed as they arrive.
    pub fn weights_point_floats(&self) -> usize {
        ((self.weight_blocks * LANES) | 1) * LANES
    }

    pub fn weights_panel_floats(&self) -> usize {
        self.tile.points() * self.weights_point_floats()
    }

    /// Transformed weights that all workers share.
    pub fn first_weights_floats(&self, panels: usize) -> usize {
        if self.weights_first {
            prepared_panel_floats(self.tile, self.c_in).saturating_mul(panels)
        } else {
            0
        }
    }

    /// Scratch of each worker: values, products, weights.
    pub fn own_floats(&self) -> [usize; 3] {
        [
            if self.shared { 0 } else { self.values_floats() },
            self.products_floats(),
            if self.weights_arrive {
                self.width * self.weights_panel_floats()
            } else {
                0
            },
        ]
    }

    /// Values that all workers share.
    pub fn shared_values_floats(&self) -> usize {
        if self.shared { self.values_floats() } else { 0 }
    }

    /// Scratch of a call: what is shared, then each worker's own.
    pub fn workspace_floats(&self, panels: usize) -> usize {
        let own = self.own_floats().iter().sum::<usize>();
        let parts = [
            self.first_weights_floats(panels),
            self.shared_values_floats(),
            own.saturating_mul(self.workers),
        ];
        parts.iter().fold(0, |sum, &part| sum.saturating_add(part))
    }
}
