//! The product of a left-hand matrix and unfolded planes, a block of positions at a time.

use super::grid::Grid;
use crate::epilogue::Activation;
use crate::linear::{LinearShape, RawLinear};
use crate::panel::{Format, panel_floats};
use crate::parallel::{Parallel, Serial};
use crate::share::{Dst, Src};
use crate::simd::{Isa, LANES};
use std::ops::Range;

/// Positions of a block, at most.
const BLOCK: usize = 128;

/// Inner steps between two looks at the results, at most: so many times a block is a part of a second-level cache.
const DEPTH: usize = 512;

/// Floats of a block's results where they have to be put in places afterwards, unless the fewest positions are more.
const RESULT_FLOATS: usize = 128 * 1024;

/// From so many positions of a plane on, blocks end where planes do.
const LARGE_PLANE: usize = 512;

/// Rows that are copied at a time where their distance makes them contend for the same places of a cache.
const COPIED_ROWS: usize = 56;
const ALIAS: usize = 256;

/// The left-hand matrices: `[group][rows][k]`.
pub(super) struct Left {
    pub values: Src,
    pub stride: usize,
    pub group: usize,
}

pub(super) struct Job {
    pub grid: Grid,
    pub batch: usize,
    pub groups: usize,
    /// Of a group, of what is unfolded.
    pub channels: usize,
    pub x: Src,
    /// Which result channels of each group, of how many.
    pub rows: Range<usize>,
    pub all_rows: usize,
    pub left: Left,
    /// One for each result channel of all groups.
    pub bias: Option<Src>,
    pub out: Dst,
    /// [`job_floats`].
    pub scratch: Dst,
}

/// How positions are cut into blocks; follows from shapes alone.
#[derive(Clone, Copy)]
struct Blocks {
    /// Positions of a block.
    size: usize,
    /// Positions that are cut on their own: of a plane, or of all planes.
    run: usize,
    runs: usize,
    /// Whether results are computed where they belong.
    in_place: bool,
}

impl Blocks {
    fn of(rows: usize, grid: &Grid, batch: usize) -> Blocks {
        let plane = grid.positions();
        if plane >= LARGE_PLANE && grid.is_whole() {
            return Blocks {
                size: even(plane, BLOCK),
                run: plane,
                runs: batch,
                in_place: true,
            };
        }
        let run = plane.saturating_mul(batch);
        Blocks {
            size: even(run, most_of(rows)),
            run,
            runs: 1,
            in_place: false,
        }
    }

    fn per_run(&self) -> usize {
        self.run.div_ceil(self.size)
    }
}

/// Most positions of a block whose results lie in scratch.
fn most_of(rows: usize) -> usize {
    let most = RESULT_FLOATS / rows.max(1) / LANES * LANES;
    most.clamp(2 * LANES, BLOCK)
}

/// The length of parts that are about as long as each other, and no longer than `most`.
fn even(all: usize, most: usize) -> usize {
    let parts = all.div_ceil(most).max(1);
    all.div_ceil(parts).next_multiple_of(LANES).max(LANES)
}

/// Floats of each worker: panels, a row, copied rows, results.
fn parts(rows: usize, k: usize, block: usize, in_place: bool) -> [usize; 4] {
    let depth = k.min(DEPTH);
    let copied = match k.is_multiple_of(ALIAS) {
        true => rows.min(COPIED_ROWS) * (depth + LANES),
        false => 0,
    };
    let results = if in_place { 0 } else { rows * block };
    [
        panel_floats(depth) * (block / LANES),
        block,
        copied,
        results,
    ]
}

/// Scratch of a job.
pub(super) fn job_floats(
    rows: usize,
    channels: usize,
    grid: &Grid,
    batch: usize,
    workers: usize,
) -> usize {
    let blocks = Blocks::of(rows, grid, batch);
    let k = channels * grid.taps();
    let parts: usize = parts(rows, k, blocks.size, blocks.in_place).iter().sum();
    parts.saturating_mul(workers)
}

/// Scratch of a job over these positions or any fewer: fewer may be cut into larger blocks, or not be computed in place.
pub(super) fn most_job_floats(
    rows: usize,
    channels: usize,
    grid: &Grid,
    batch: usize,
    workers: usize,
) -> usize {
    let run = grid.positions().saturating_mul(batch);
    let block = run.clamp(1, BLOCK).next_multiple_of(LANES);
    let k = channels * grid.taps();
    let [panels, row, copied, _] = parts(rows, k, block, true);
    let results = rows * block.min(most_of(rows));
    (panels + row + copied + results).saturating_mul(workers)
}

/// A block of positions of some planes.
struct Block {
    group: usize,
    image: usize,
    first: usize,
    count: usize,
}

impl Job {
    /// # Safety
    /// All memory is as long as sizes say, and nobody else uses results and scratch.
    pub unsafe fn run(&self, isa: Isa, parallel: &dyn Parallel) {
        let blocks = Blocks::of(self.rows.len(), &self.grid, self.batch);
        if blocks.run == 0 || self.rows.is_empty() {
            return;
        }
        let k = self.channels * self.grid.taps();
        let parts = parts(self.rows.len(), k, blocks.size, blocks.in_place);
        let per_worker: usize = parts.iter().sum();
        let per_group = blocks.runs * blocks.per_run();
        parallel.run(self.groups * per_group, &|task, worker| {
            let at = task % per_group;
            let first = at % blocks.per_run() * blocks.size;
            let block = Block {
                group: task / per_group,
                image: at / blocks.per_run(),
                first,
                count: blocks.size.min(blocks.run - first),
            };
            // SAFETY: a worker has its own part of the scratch; blocks differ in what they write.
            unsafe {
                let scratch = self.scratch.at(worker * per_worker);
                match blocks.in_place {
                    true => self.in_place(isa, &block, scratch, &parts),
                    false => self.apart(isa, &block, scratch, &parts),
                }
            }
        });
    }

    /// Computes results where they belong.
    unsafe fn in_place(&self, isa: Isa, block: &Block, scratch: *mut f32, parts: &[usize; 4]) {
        let plane = self.grid.output();
        let first_plane =
            (block.image * self.groups + block.group) * self.all_rows + self.rows.start;
        // SAFETY: the block's positions are inside each of its planes.
        unsafe {
            let out = self.out.at(first_plane * plane + block.first);
            self.compute(isa, block, scratch, parts, out, plane);
        }
    }

    /// Computes results in the scratch and puts them in their places.
    unsafe fn apart(&self, isa: Isa, block: &Block, scratch: *mut f32, parts: &[usize; 4]) {
        let width = parts[1];
        let (positions, plane) = (self.grid.positions(), self.grid.output());
        let [_, y_line, x_line] = self.grid.lines;
        // SAFETY: results are the last part of the worker's scratch; places are inside planes.
        unsafe {
            let results = scratch.add(parts[0] + parts[1] + parts[2]);
            self.compute(isa, block, scratch, parts, results, width);
            for row in 0..self.rows.len() {
                let mut from = results.add(row * width).cast_const();
                each_image(block, positions, |image, first, count| {
                    let channel = (image * self.groups + block.group) * self.all_rows;
                    let to = self.out.at((channel + self.rows.start + row) * plane);
                    if self.grid.is_whole() {
                        to.add(first).copy_from_nonoverlapping(from, count);
                        from = from.add(count);
                        return;
                    }
                    self.grid.each_run(first, count, |z, y, x, run| {
                        let z = self.grid.lines[0].out_first + z * self.grid.lines[0].out_step;
                        let y = y_line.out_first + y * y_line.out_step;
                        let line = to.add((z * y_line.output + y) * x_line.output);
                        for i in 0..run {
                            *line.add(x_line.out_first + (x + i) * x_line.out_step) = *from.add(i);
                        }
                        from = from.add(run);
                    });
                });
            }
        }
    }

    unsafe fn compute(
        &self,
        isa: Isa,
        block: &Block,
        scratch: *mut f32,
        parts: &[usize; 4],
        out: *mut f32,
        out_stride: usize,
    ) {
        let k = self.channels * self.grid.taps();
        // SAFETY: the caller's memory; each row has so many results.
        unsafe {
            if self.bias.is_some() || k == 0 {
                for row in 0..self.rows.len() {
                    let channel = block.group * self.all_rows + self.rows.start + row;
                    let value = self.bias.map_or(0.0, |bias| *bias.at(channel));
                    std::slice::from_raw_parts_mut(out.add(row * out_stride), block.count)
                        .fill(value);
                }
            }
            for first in (0..k).step_by(DEPTH) {
                let steps = first..(first + DEPTH).min(k);
                self.unfold(block, steps.clone(), scratch, parts);
                let adds = self.bias.is_some() || first > 0;
                let copied = scratch.add(parts[0] + parts[1]);
                self.multiply(isa, block, steps, scratch, copied, out, out_stride, adds);
            }
        }
    }

    /// Panels of some steps of k: of 16 positions each.
    unsafe fn unfold(
        &self,
        block: &Block,
        steps: Range<usize>,
        scratch: *mut f32,
        parts: &[usize; 4],
    ) {
        let floats = panel_floats(steps.len());
        let panels = block.count.div_ceil(LANES);
        let (positions, plane, taps) = (self.grid.positions(), self.grid.input(), self.grid.taps());
        let identity = self.grid.is_identity();
        // SAFETY: panels and row are the first parts of the worker's scratch; planes are as long as the grid says.
        unsafe {
            let row = std::slice::from_raw_parts_mut(scratch.add(parts[0]), panels * LANES);
            row[block.count..].fill(0.0);
            for panel in 0..panels {
                std::slice::from_raw_parts_mut(scratch.add(panel * floats), LANES).fill(0.0);
            }
            for (at, step) in steps.enumerate() {
                let (channel, tap) = (step / taps, step % taps);
                let of_image = |image: usize| {
                    let first = (image * self.groups + block.group) * self.channels + channel;
                    std::slice::from_raw_parts(self.x.at(first * plane), plane)
                };
                let mut done = 0;
                each_image(block, positions, |image, first, count| {
                    let to = &mut row[done..done + count];
                    done += count;
                    match identity {
                        true => to.copy_from_slice(&of_image(image)[first..first + count]),
                        false => self.grid.unfold(of_image(image), tap, first, to),
                    }
                });
                let to = scratch.add((1 + at) * LANES);
                for (panel, values) in row.as_chunks::<LANES>().0.iter().enumerate() {
                    *to.add(panel * floats).cast::<[f32; LANES]>() = *values;
                }
            }
        }
    }

    unsafe fn multiply(
        &self,
        isa: Isa,
        block: &Block,
        steps: Range<usize>,
        panels: *const f32,
        copied: *mut f32,
        out: *mut f32,
        out_stride: usize,
        adds: bool,
    ) {
        let (rows, stride) = (self.rows.len(), self.left.stride);
        // SAFETY: the left-hand matrix has so many rows of k for each group; the rest is the caller's promise.
        unsafe {
            let left = self
                .left
                .values
                .at(block.group * self.left.group + steps.start);
            let call = |m: usize, left: *const f32, stride: usize, out: *mut f32| {
                RawLinear {
                    shape: LinearShape {
                        m,
                        k: steps.len(),
                        n: block.count,
                        a_stride: stride,
                        out_stride,
                    },
                    panels: 0..block.count.div_ceil(LANES),
                    weights: panels.cast(),
                    format: Format::F32,
                    a: left,
                    out,
                    residual: if adds { out } else { std::ptr::null() },
                    activation: Activation::None,
                    pairs_of: None,
                }
                .run(isa, &Serial);
            };
            if !stride.is_multiple_of(ALIAS) {
                return call(rows, left, stride, out);
            }
            let wide = steps.len() + LANES;
            for first in (0..rows).step_by(COPIED_ROWS) {
                let count = COPIED_ROWS.min(rows - first);
                for row in 0..count {
                    let from = left.add((first + row) * stride);
                    copied
                        .add(row * wide)
                        .copy_from_nonoverlapping(from, steps.len());
                }
                call(count, copied, wide, out.add(first * out_stride));
            }
        }
    }
}

/// Calls `f(image, first position, positions)` for the images of a block.
fn each_image(block: &Block, plane: usize, mut f: impl FnMut(usize, usize, usize)) {
    let (mut image, mut first) = (block.image + block.first / plane, block.first % plane);
    let mut rest = block.count;
    while rest > 0 {
        let count = rest.min(plane - first);
        f(image, first, count);
        rest -= count;
        (image, first) = (image + 1, 0);
    }
}
