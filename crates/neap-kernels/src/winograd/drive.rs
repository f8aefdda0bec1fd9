//! Runs a call: hands out its tasks, and walks each through panels, points and groups.

use super::cut::Cut;
use super::product::{Step, kernel};
use super::transform::{
    InputTile, OVERFLOWS, OutputTile, PanelPart, Plane, TOO_MUCH, add_directly, spreads_input,
    transform_input, transform_output, transform_weights,
};
use super::weights::{Ahead, PartWeights, Source, prepare};
use super::{Tile, prepared_panel_floats};
use crate::conv::ConvShape;
use crate::epilogue::Activation;
use crate::parallel::Parallel;
use crate::planes::Planes;
use crate::simd::{Isa, LANES, prefetch};
use crate::tile::Split;
use std::ops::Range;

/// Pieces that every worker should get of work that comes in small units, for balance.
pub(super) const TASKS_PER_WORKER: usize = 4;

/// A call whose sizes have been checked.
pub(super) struct Call {
    pub isa: Isa,
    pub tile: Tile,
    pub shape: ConvShape,
    pub planes: Planes,
    pub cut: Cut,
    pub panels: usize,
    pub source: Source,
    pub input: *const f32,
    /// Where the first panel's channels begin; the residual is null or laid out like it.
    pub output: *mut f32,
    pub residual: *const f32,
    pub activation: Activation,
    pub workspace: *mut f32,
}

// SAFETY: tasks read shared memory and write disjoint parts of output and workspace; whoever builds
// a `Call` vouches for the pointers (see `Call::run`).
unsafe impl Sync for Call {}

/// Some tiles whose values are in memory, in groups.
#[derive(Clone, Copy)]
struct Block {
    first_tile: usize,
    groups: Split,
    values: *mut f32,
    point_floats: usize,
    /// What the transform of each tile told of a channel block, `[channel block][tile]`; then, in the place of the first,
    /// whether the tile is computed without it.
    told: *mut f32,
}

// SAFETY: only says where the values lie; tasks write disjoint parts of them.
unsafe impl Sync for Block {}

impl Block {
    /// First value of a group at a point, from channel block `block` on.
    fn group(&self, group: usize, channel_blocks: usize, point: usize, block: usize) -> *mut f32 {
        let tiles = self.groups.range(group);
        let vectors = tiles.start * channel_blocks + block * tiles.len();
        self.values
            .wrapping_add(point * self.point_floats + vectors * LANES)
    }

    /// Whether a tile is computed without its values.
    ///
    /// # Safety
    /// [`Call::settle`] has said so.
    unsafe fn is_direct(&self, tile: usize) -> bool {
        // SAFETY: there is a float for each tile.
        unsafe { *self.told.add(tile) != 0.0 }
    }
}

impl Call {
    /// # Safety
    /// Input, output, residual, weights and workspace have the lengths that shape, cut and panel count
    /// ask for; nobody else uses the output's channels or the workspace meanwhile.
    pub unsafe fn run(mut self, parallel: &dyn Parallel) {
        let c_in = self.shape.c_in;
        let values = self.cut.first_weights_floats(self.panels);
        let own = values + self.cut.shared_values_floats();
        let own_each = self.cut.own_floats().iter().sum::<usize>();
        if let (true, Source::Raw(raw)) = (self.cut.weights_first, self.source) {
            // SAFETY: the workspace begins with room for the prepared panels.
            unsafe {
                prepare(
                    self.isa,
                    parallel,
                    self.tile,
                    c_in,
                    self.panels,
                    raw,
                    self.workspace,
                );
            }
            self.source = Source::Prepared(self.workspace);
        }
        let call = &self;
        let columns = Split::at_most(call.panels, call.cut.width);
        let worker_floats = |worker: usize| call.workspace.wrapping_add(own + worker * own_each);

        if !call.cut.shared {
            parallel.run(call.cut.blocks.parts, &|task, worker| {
                let scratch = worker_floats(worker);
                let block = call.block(task, scratch);
                let scratch = scratch.wrapping_add(call.cut.own_floats()[0]);
                let units = 0..call.units(&block);
                // SAFETY: the scratch is this worker's; tasks differ in tiles, so in outputs.
                unsafe {
                    call.fill(&block, units);
                    call.settle(&block);
                    for column in 0..columns.parts {
                        let groups = 0..block.groups.parts;
                        call.multiply(&block, groups, columns.range(column), scratch);
                    }
                }
            });
            return;
        }
        for b in 0..call.cut.blocks.parts {
            let block = call.block(b, call.workspace.wrapping_add(values));
            let units = call.units(&block);
            let fills = Split {
                total: units,
                parts: units.min(parallel.workers() * TASKS_PER_WORKER),
            };
            parallel.run(fills.parts, &|task, _| {
                let block = &block;
                // SAFETY: tasks differ in units, so in values.
                unsafe { call.fill(block, fills.range(task)) };
            });
            // SAFETY: all values are filled, and no task runs.
            unsafe { call.settle(&block) };
            let groups = block.groups.parts;
            let mut chunks = Split::at_most(groups, call.cut.chunk_groups);
            let fair = (2 * parallel.workers()).div_ceil(columns.parts);
            chunks.parts = chunks.parts.max(fair.min(groups));
            parallel.run(columns.parts * chunks.parts, &|task, worker| {
                let block = &block;
                let panels = columns.range(task / chunks.parts);
                let groups = chunks.range(task % chunks.parts);
                // SAFETY: the scratch is this worker's; tasks differ in panels or tiles.
                unsafe { call.multiply(block, groups, panels, worker_floats(worker)) };
            });
        }
    }

    fn block(&self, index: usize, values: *mut f32) -> Block {
        let tiles = self.cut.blocks.range(index);
        let point_floats = self.cut.values_point_floats(tiles.len());
        Block {
            first_tile: tiles.start,
            groups: Split::at_most(tiles.len(), self.cut.group_tiles),
            values,
            point_floats,
            told: values.wrapping_add(self.tile.points() * point_floats),
        }
    }

    fn channel_blocks(&self) -> usize {
        self.shape.c_in.div_ceil(LANES)
    }

    /// The panel that the worker likely computes after these.
    fn next_panel(&self, panels: &Range<usize>) -> usize {
        let ahead = if self.cut.shared { self.cut.workers } else { 1 };
        (panels.start + ahead * self.cut.width) % self.panels
    }

    /// Pieces that a block's values are computed in: groups times channel blocks.
    fn units(&self, block: &Block) -> usize {
        block.groups.parts * self.channel_blocks()
    }

    /// Image and top left output pixel of a tile.
    fn place(&self, tile: usize) -> (usize, [usize; 2]) {
        let [down, across] = self.cut.grid;
        let m = self.tile.outputs();
        let (image, in_image) = (tile / (down * across), tile % (down * across));
        (image, [in_image / across * m, in_image % across * m])
    }

    /// Where a tile of a block lies in the input: of an image, and of all its planes.
    fn input_tile(&self, block: &Block, tile: usize) -> InputTile {
        let s = &self.shape;
        let (image, pixel) = self.place(block.first_tile + tile);
        let planes = image * self.channel_blocks() * self.planes.input;
        InputTile {
            at: Plane {
                size: s.window.input,
                corner: [0, 1]
                    .map(|axis| pixel[axis] as isize - s.window.pads_begin[axis] as isize),
            },
            first: self.input.wrapping_add(planes),
            plane_floats: self.planes.input,
            channels: s.c_in,
        }
    }

    /// Rows and columns of a tile's outputs that are in the image.
    fn size(&self, block: &Block, tile: usize) -> [usize; 2] {
        let (_, pixel) = self.place(block.first_tile + tile);
        [0, 1].map(|axis| (self.tile.outputs()).min(self.shape.window.output[axis] - pixel[axis]))
    }

    /// Finds the tiles of a block that are computed without their values.
    ///
    /// # Safety
    /// As [`Call::run`]; all units are filled, and the block is nobody else's.
    unsafe fn settle(&self, block: &Block) {
        for tile in 0..block.groups.total {
            let told = (0..self.channel_blocks()).fold(0.0f32, |most, channel_block| {
                // SAFETY: there is a float for each tile and channel block.
                let told = unsafe { *block.told.add(channel_block * block.groups.total + tile) };
                if told > most || told.is_nan() {
                    told
                } else {
                    most
                }
            });
            // What is no number, or may overflow at a point, spreads for certain.
            let is_direct = told.is_nan()
                || told >= OVERFLOWS
                || told >= TOO_MUCH && {
                    let (input, size) = (self.input_tile(block, tile), self.size(block, tile));
                    // SAFETY: the tile is one of the call's.
                    unsafe { spreads_input(self.isa, self.tile, input, size) }
                };
            // SAFETY: there is a float for each tile.
            unsafe { *block.told.add(tile) = f32::from(u8::from(is_direct)) };
        }
    }

    /// Computes values of a block.
    ///
    /// # Safety
    /// As [`Call::run`]; the block's values are nobody else's for these units.
    unsafe fn fill(&self, block: &Block, units: Range<usize>) {
        let channel_blocks = self.channel_blocks();
        for unit in units {
            let (channel_block, group) = (unit / block.groups.parts, unit % block.groups.parts);
            let tiles = block.groups.range(group);
            let to = block.group(group, channel_blocks, 0, channel_block);
            let channels = (self.shape.c_in - channel_block * LANES).min(LANES);
            for (r, tile) in tiles.enumerate() {
                let InputTile { at, first, .. } = self.input_tile(block, tile);
                let plane = first.wrapping_add(channel_block * self.planes.input);
                self.foresee(at, plane);
                // SAFETY: the plane is one of the input's; the values are the block's.
                unsafe {
                    let told = transform_input(
                        self.isa,
                        self.tile,
                        at,
                        plane,
                        to.add(r * LANES),
                        block.point_floats,
                        channels,
                    );
                    *block.told.add(channel_block * block.groups.total + tile) = told;
                }
            }
        }
    }

    /// Brings the pixels into cache that a tile further right adds: too short a stream for hardware to
    /// follow.
    fn foresee(&self, at: Plane, plane: *const f32) {
        const TILES_AHEAD: usize = 2;
        let m = self.tile.outputs();
        let first = at.corner[1].wrapping_add_unsigned(TILES_AHEAD * m + 2);
        for i in 0..m + 2 {
            let row = at.corner[0]
                .wrapping_add_unsigned(i)
                .wrapping_mul(at.size[1] as isize);
            for j in 0..m {
                let pixel = row.wrapping_add(first).wrapping_add_unsigned(j);
                prefetch(plane.wrapping_offset(pixel.wrapping_mul(LANES as isize)));
            }
        }
    }

    /// Computes the outputs of some groups and panels (at most `width`). `scratch` is for products and
    /// arriving weights.
    ///
    /// # Safety
    /// As [`Call::run`]; scratch and outputs are nobody else's.
    unsafe fn multiply(
        &self,
        block: &Block,
        groups: Range<usize>,
        panels: Range<usize>,
        scratch: *mut f32,
    ) {
        let channel_blocks = self.channel_blocks();
        let most = match self.source {
            Source::Raw(_) => self.cut.weight_blocks,
            Source::Prepared(_) => channel_blocks.max(1),
        };
        // Without any channel one empty part still clears the products.
        let parts = Split::at_most(channel_blocks, most);
        let arriving = scratch.wrapping_add(self.cut.products_floats());
        for part in 0..parts.parts {
            let part = parts.range(part);
            // SAFETY: the scratch holds products and arriving weights, as `Cut` sized it.
            unsafe {
                let weights = self.weights(&panels, &part, arriving);
                self.products(block, &groups, panels.len(), &part, &weights, scratch);
            }
        }
        // SAFETY: the block is settled.
        let is_direct = |tile: usize| unsafe { block.is_direct(tile) };
        if self.tiles(block, &groups).any(is_direct) {
            // SAFETY: as above; the products of such tiles are nothing.
            unsafe { self.sums(block, &groups, &panels, parts, scratch) };
        }
        // SAFETY: the products are complete.
        unsafe { self.outputs(block, &groups, &panels, scratch) };
    }

    /// The tiles of some groups.
    fn tiles(&self, block: &Block, groups: &Range<usize>) -> Range<usize> {
        block.groups.range(groups.start).start..block.groups.range(groups.end - 1).end
    }

    /// Sums of the tiles that are computed without their values, in the place of their products. Weights come once more.
    ///
    /// # Safety
    /// As [`Call::multiply`].
    unsafe fn sums(
        &self,
        block: &Block,
        groups: &Range<usize>,
        panels: &Range<usize>,
        parts: Split,
        scratch: *mut f32,
    ) {
        let (m, product_floats) = (self.tile.outputs(), self.cut.product_floats());
        let arriving = scratch.wrapping_add(self.cut.products_floats());
        for part in (0..parts.parts).map(|part| parts.range(part)) {
            // SAFETY: the scratch holds arriving weights and the sums, which are no more than the products.
            unsafe {
                let weights = self.weights(panels, &part, arriving);
                for (t, tile) in self.tiles(block, groups).enumerate() {
                    if !block.is_direct(tile) {
                        continue;
                    }
                    let mut input = self.input_tile(block, tile);
                    input.first = input.first.wrapping_add(part.start * input.plane_floats);
                    input.channels = (part.end * LANES).min(self.shape.c_in) - part.start * LANES;
                    for p in 0..panels.len() {
                        let sums = scratch.add((t * panels.len() + p) * product_floats);
                        if part.start == 0 {
                            std::slice::from_raw_parts_mut(sums, m * m * LANES).fill(0.0);
                        }
                        let first = weights.first.wrapping_add(p * weights.panel_floats);
                        let step = weights.point_floats;
                        add_directly(self.isa, self.tile, input, first, step, sums);
                    }
                }
            }
        }
    }

    /// The weights of some panels and channel blocks at the points.
    ///
    /// # Safety
    /// As [`Call::multiply`].
    unsafe fn weights(
        &self,
        panels: &Range<usize>,
        part: &Range<usize>,
        arriving: *mut f32,
    ) -> PartWeights {
        let c_in = self.shape.c_in;
        let first = part.start * LANES;
        match self.source {
            Source::Prepared(all) => {
                let panel_floats = prepared_panel_floats(self.tile, c_in);
                let first_of =
                    |panel: usize| all.wrapping_add(panel * panel_floats + (1 + first) * LANES);
                PartWeights {
                    first: first_of(panels.start),
                    panel_floats,
                    point_floats: c_in * LANES,
                    ahead: Ahead::NextPoint {
                        last: first_of(self.next_panel(panels)),
                    },
                }
            }
            Source::Raw(all) => {
                let panel_floats = self.cut.weights_panel_floats();
                for (i, panel) in panels.clone().enumerate() {
                    // SAFETY: the panel is one of the call's, with these channels.
                    unsafe {
                        let part = PanelPart {
                            format: all.format,
                            head: all.head(panel, c_in),
                            weights: all.channel(panel, c_in, first),
                            channels: (part.end * LANES).min(c_in) - first,
                            to: arriving.add(i * panel_floats),
                            point_floats: self.cut.weights_point_floats(),
                        };
                        transform_weights(self.isa, self.tile, part);
                    }
                }
                let ends = part.end == self.channel_blocks();
                let (panel, channel) = if ends {
                    (self.next_panel(panels), 0)
                } else {
                    (panels.start, part.end * LANES)
                };
                PartWeights {
                    first: arriving,
                    panel_floats,
                    point_floats: self.cut.weights_point_floats(),
                    ahead: Ahead::NextPart {
                        first: all.channel(panel, c_in, channel).cast(),
                        panel_floats: all.head(1, c_in).addr().wrapping_sub(all.first.addr())
                            / size_of::<f32>(),
                    },
                }
            }
        }
    }

    /// Adds a part of the channels to the products, at every point.
    ///
    /// # Safety
    /// As [`Call::multiply`], and `weights` are those of the part.
    unsafe fn products(
        &self,
        block: &Block,
        groups: &Range<usize>,
        panels: usize,
        part: &Range<usize>,
        weights: &PartWeights,
        products: *mut f32,
    ) {
        let channel_blocks = self.channel_blocks();
        let product_floats = self.cut.product_floats();
        let tile_floats = panels * product_floats;
        let first_tile = block.groups.range(groups.start).start;
        let channels = (part.end * LANES).min(self.shape.c_in) - part.start * LANES;
        for point in 0..self.tile.points() {
            let at_point = weights.first.wrapping_add(point * weights.point_floats);
            for group in groups.clone() {
                let tiles = block.groups.range(group);
                let turn = point * groups.len() + group - groups.start;
                let (ahead, ahead_panel_floats, ahead_per_block) =
                    weights.ahead(turn, groups.len(), self.tile.points(), part.len());
                let to = (tiles.start - first_tile) * tile_floats + point * LANES;
                let step = Step {
                    values: block.group(group, channel_blocks, point, part.start),
                    weights: at_point,
                    panel_floats: weights.panel_floats,
                    blocks: part.len(),
                    last_len: channels - part.len().saturating_sub(1) * LANES,
                    products: products.wrapping_add(to),
                    tile_floats,
                    product_floats,
                    goes_on: part.start > 0,
                    ahead,
                    ahead_panel_floats,
                    ahead_per_block,
                };
                // SAFETY: values, weights and products of these tiles, panels and channels are in
                // memory; the micro-kernel is one this processor has.
                unsafe { kernel(self.isa, panels, tiles.len())(&step) };
            }
        }
    }

    /// Turns the products of some groups and panels into outputs.
    ///
    /// # Safety
    /// As [`Call::multiply`].
    unsafe fn outputs(
        &self,
        block: &Block,
        groups: &Range<usize>,
        panels: &Range<usize>,
        products: *const f32,
    ) {
        let s = &self.shape;
        let m = self.tile.outputs();
        let plane_floats = self.planes.output;
        let product_floats = self.cut.product_floats();
        let tiles = self.tiles(block, groups);
        let head = |panel: usize| match self.source {
            Source::Raw(all) => all.head(panel, s.c_in),
            Source::Prepared(all) => {
                all.wrapping_add(panel * prepared_panel_floats(self.tile, s.c_in))
            }
        };
        for (p, panel) in panels.clone().enumerate() {
            for (t, tile) in tiles.clone().enumerate() {
                let (image, [y, x]) = self.place(block.first_tile + tile);
                let plane = (image * s.panels() + panel) * plane_floats;
                let pixel = plane + (y * s.window.output[1] + x) * LANES;
                let next = self.output.wrapping_add(pixel + m * LANES);
                for i in 0..m {
                    for j in 0..m {
                        // Pixels of the next tile, so that its stores find their lines in cache.
                        prefetch(next.wrapping_add((i * s.window.output[1] + j) * LANES));
                    }
                }
                // SAFETY: tile and panel are among this task's; the pixel is in the image.
                unsafe {
                    let at = OutputTile {
                        products: products.add((t * panels.len() + p) * product_floats),
                        is_direct: block.is_direct(tile),
                        bias: head(panel),
                        output: self.output.add(pixel),
                        residual: if self.residual.is_null() {
                            self.residual
                        } else {
                            self.residual.add(pixel)
                        },
                        row_floats: s.window.output[1] * LANES,
                        size: self.size(block, tile),
                        activation: self.activation,
                    };
                    transform_output(self.isa, self.tile, at);
                }
            }
        }
    }
}
