//! The derivative by weights: a block of weights is one task's, over all images.

use super::grid::{Grid, Line};
use super::{AXES, Shape};
use crate::epilogue::Activation;
use crate::linear::{LinearShape, RawLinear};
use crate::panel::{Format, panel_floats};
use crate::parallel::{Parallel, Serial};
use crate::reorder::transpose_tile;
use crate::share::{Dst, Src};
use crate::simd::{Isa, LANES};
use std::ops::Range;

/// Columns of a block, at most; and positions between two looks at its sums.
const COLUMNS: usize = 128;
const DEPTH: usize = 512;

/// Positions after which a block's sums are added to the result: sums of sums lose less.
const SUMMED: usize = 2048;

/// Tasks for each worker that are wished for, and how small a block they are worth.
const TASKS: usize = 3;
const GOOD_BLOCK: [usize; 2] = [192, 96];
const SMALL_BLOCK: [usize; 2] = [56, 32];

/// Most rows of a block.
const ROWS: usize = 512;

/// Rows whose distance is a multiple of this contend for the same places of a cache; so many are copied at a time.
const ALIAS: usize = 256;
const COPIED_ROWS: usize = 56;

fn grid(shape: &Shape) -> Grid {
    Grid {
        lines: std::array::from_fn::<_, AXES, _>(|axis| Line::forward(&shape.window.axis(axis))),
    }
}

/// Sizes of blocks: rows and columns. No sum depends on them.
fn block(shape: &Shape, workers: usize) -> [usize; 2] {
    let columns = shape.c_in * shape.window.taps();
    let mut parts = [shape.c_out.div_ceil(ROWS), columns.div_ceil(COLUMNS)];
    let size = |parts: [usize; 2]| {
        [
            shape.c_out.div_ceil(parts[0].max(1)).max(1),
            (columns.div_ceil(parts[1].max(1)).max(1)).next_multiple_of(LANES),
        ]
    };
    for (tasks, least) in [(TASKS * workers, GOOD_BLOCK), (workers, SMALL_BLOCK)] {
        while parts[0] * parts[1] * shape.groups < tasks {
            let [rows, columns] = size(parts);
            if rows >= 2 * least[0] {
                parts[0] *= 2;
            } else if columns >= 2 * least[1] {
                parts[1] *= 2;
            } else {
                break;
            }
        }
    }
    size(parts)
}

/// Floats of each worker: panels, unfolded rows, copied rows, sums.
fn parts(shape: &Shape, [rows, columns]: [usize; 2]) -> [usize; 4] {
    let depth = shape.outside().min(DEPTH);
    let copied = match shape.outside().is_multiple_of(ALIAS) {
        true => rows.min(COPIED_ROWS) * (depth + LANES),
        false => 0,
    };
    let unfolded = LANES * depth.next_multiple_of(LANES);
    [
        panel_floats(depth) * (columns / LANES),
        unfolded,
        copied,
        rows * columns,
    ]
}

pub(super) fn floats(shape: &Shape, workers: usize) -> usize {
    let parts: usize = parts(shape, block(shape, workers)).iter().sum();
    parts.saturating_mul(workers)
}

pub(super) fn run(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Shape,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    scratch: &mut [f32],
) {
    let size = block(shape, parallel.workers());
    let columns = shape.c_in * shape.window.taps();
    let parts = parts(shape, size);
    let per_worker: usize = parts.iter().sum();
    let (row_blocks, column_blocks) = (shape.c_out.div_ceil(size[0]), columns.div_ceil(size[1]));
    let (scratch, call) = (
        Dst::new(scratch),
        Call {
            isa,
            shape,
            grid: grid(shape),
            x: Src::new(x),
            dy: Src::new(dy),
            dw: Dst::new(dw),
            parts,
        },
    );
    parallel.run(
        shape.groups * row_blocks * column_blocks,
        &|task, worker| {
            let (group, at) = (
                task / (row_blocks * column_blocks),
                task % (row_blocks * column_blocks),
            );
            let (row, column) = (at / column_blocks * size[0], at % column_blocks * size[1]);
            let block = Block {
                group,
                rows: row..(row + size[0]).min(shape.c_out),
                columns: column..(column + size[1]).min(columns),
            };
            // SAFETY: blocks are disjoint parts of the weights, and a worker has its own part of the scratch.
            unsafe { call.block(&block, scratch.at(worker * per_worker)) };
        },
    );
}

struct Block {
    group: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

struct Call<'a> {
    isa: Isa,
    shape: &'a Shape,
    grid: Grid,
    x: Src,
    dy: Src,
    dw: Dst,
    parts: [usize; 4],
}

impl Call<'_> {
    /// # Safety
    /// All memory is as long as sizes say; nobody else uses the block's weights and the scratch.
    unsafe fn block(&self, block: &Block, scratch: *mut f32) {
        let positions = self.shape.outside();
        let [panels, unfolded, copied, _] = self.parts;
        let width = block.columns.len().next_multiple_of(LANES);
        // SAFETY: the caller's promise.
        unsafe {
            let sums = scratch.add(panels + unfolded + copied);
            let (mut summed, mut is_first) = (0, true);
            for image in 0..self.shape.batch {
                for first in (0..positions).step_by(DEPTH) {
                    let range = first..(first + DEPTH).min(positions);
                    self.unfold(block, image, range.clone(), scratch);
                    let copied = scratch.add(panels + unfolded);
                    self.multiply(
                        block,
                        image,
                        range.clone(),
                        scratch,
                        copied,
                        sums,
                        summed > 0,
                    );
                    summed += range.len();
                    if summed >= SUMMED {
                        self.add(block, sums, width, is_first);
                        (summed, is_first) = (0, false);
                    }
                }
            }
            if summed > 0 || is_first {
                if summed == 0 {
                    std::slice::from_raw_parts_mut(sums, block.rows.len() * width).fill(0.0);
                }
                self.add(block, sums, width, is_first);
            }
        }
    }

    /// Panels of 16 columns over some positions of an image.
    unsafe fn unfold(&self, block: &Block, image: usize, range: Range<usize>, scratch: *mut f32) {
        let (plane, taps) = (self.grid.input(), self.grid.taps());
        let floats = panel_floats(range.len());
        let stride = range.len().next_multiple_of(LANES);
        let first_plane = (image * self.shape.groups + block.group) * self.shape.c_in;
        let identity = self.grid.is_identity();
        // SAFETY: planes are as long as the grid says; panels and unfolded rows are the first parts of the scratch.
        unsafe {
            let unfolded = scratch.add(self.parts[0]);
            for (panel, column) in block.columns.clone().step_by(LANES).enumerate() {
                let lanes = LANES.min(block.columns.end - column);
                let to = scratch.add(panel * floats);
                let head = if lanes < LANES { floats } else { LANES };
                std::slice::from_raw_parts_mut(to, head).fill(0.0);
                let (from, from_stride) = match identity {
                    true => (
                        self.x.at((first_plane + column) * plane + range.start),
                        plane,
                    ),
                    false => {
                        for lane in 0..lanes {
                            let (channel, tap) = ((column + lane) / taps, (column + lane) % taps);
                            let from = self.x.at((first_plane + channel) * plane);
                            let from = std::slice::from_raw_parts(from, plane);
                            let row = unfolded.add(lane * stride);
                            let row = std::slice::from_raw_parts_mut(row, range.len());
                            self.grid.unfold(from, tap, range.start, row);
                        }
                        (unfolded.cast_const(), stride)
                    }
                };
                for at in (0..range.len()).step_by(LANES) {
                    let columns = LANES.min(range.len() - at);
                    let to = to.add((1 + at) * LANES);
                    transpose_tile(
                        self.isa,
                        from.add(at),
                        from_stride,
                        to,
                        LANES,
                        lanes,
                        columns,
                    );
                }
            }
        }
    }

    unsafe fn multiply(
        &self,
        block: &Block,
        image: usize,
        range: Range<usize>,
        panels: *const f32,
        copied: *mut f32,
        sums: *mut f32,
        adds: bool,
    ) {
        let stride = self.shape.outside();
        let width = block.columns.len().next_multiple_of(LANES);
        let first = (image * self.shape.groups + block.group) * self.shape.c_out + block.rows.start;
        // SAFETY: rows are planes of the results' derivatives; the rest is the caller's promise.
        unsafe {
            let left = self.dy.at(first * stride + range.start);
            let call = |m: usize, left: *const f32, stride: usize, out: *mut f32| {
                RawLinear {
                    shape: LinearShape {
                        m,
                        k: range.len(),
                        n: width,
                        a_stride: stride,
                        out_stride: width,
                    },
                    panels: 0..width / LANES,
                    weights: panels.cast(),
                    format: Format::F32,
                    a: left,
                    out,
                    residual: if adds { out } else { std::ptr::null() },
                    activation: Activation::None,
                    pairs_of: None,
                }
                .run(self.isa, &Serial);
            };
            let rows = block.rows.len();
            if !stride.is_multiple_of(ALIAS) {
                return call(rows, left, stride, sums);
            }
            let wide = range.len() + LANES;
            for first in (0..rows).step_by(COPIED_ROWS) {
                let count = COPIED_ROWS.min(rows - first);
                for row in 0..count {
                    let from = left.add((first + row) * stride);
                    copied
                        .add(row * wide)
                        .copy_from_nonoverlapping(from, range.len());
                }
                call(count, copied, wide, sums.add(first * width));
            }
        }
    }

    /// Adds sums to the weights' derivatives, or stores them.
    unsafe fn add(&self, block: &Block, sums: *const f32, width: usize, is_first: bool) {
        let columns = self.shape.c_in * self.grid.taps();
        let count = block.columns.len();
        for row in 0..block.rows.len() {
            let weights = (block.group * self.shape.c_out + block.rows.start + row) * columns;
            // SAFETY: the block's part of a row of weights; the rest is the caller's promise.
            let (to, from) = unsafe {
                (
                    std::slice::from_raw_parts_mut(
                        self.dw.at(weights + block.columns.start),
                        count,
                    ),
                    std::slice::from_raw_parts(sums.add(row * width), count),
                )
            };
            match is_first {
                true => to.copy_from_slice(from),
                false => to.iter_mut().zip(from).for_each(|(to, v)| *to += v),
            }
        }
    }
}
