//! Convolutions in which each channel is a group: a plane is correlated with its taps.
//!
//! A plane is copied to the scratch with zeros around it, one copy for each phase of the strides, so that what a tap reads
//! lies without gaps for all positions. Rows of results are as far apart as those of the copies; what lies between them is
//! computed and left.

use super::grid::{Grid, Line};
use super::{AXES, Shape};
use crate::parallel::Parallel;
use crate::share::{Dst, Src};
use crate::simd::{Isa, LANES, Simd, simd_kernel};
use crate::window::Axis;

/// Floats that a run of vectors may read and write beyond its end.
const SLACK: usize = 4 * LANES;

/// Taps of a call of the kernels below; larger windows take several.
const TAPS: usize = 64;

/// A plane in the scratch: sizes of a phase.
#[derive(Clone, Copy)]
struct Copies {
    sizes: [usize; AXES],
    phases: [usize; AXES],
}

impl Copies {
    /// Of inputs, for results of a window that slides over them.
    fn forward(shape: &Shape) -> Copies {
        let axis = |axis: usize| shape.window.axis(axis);
        Copies {
            sizes: std::array::from_fn(|i| {
                let a = axis(i);
                a.output + (a.kernel - 1) * a.dilation / a.stride
            }),
            phases: std::array::from_fn(|i| {
                let a = axis(i);
                a.stride.min((a.kernel - 1) * a.dilation + 1)
            }),
        }
    }

    fn phase_floats(&self) -> usize {
        self.sizes.iter().product()
    }

    fn floats(&self) -> usize {
        self.phase_floats() * self.phases.iter().product::<usize>() + SLACK
    }

    /// How far results reach from the first, if there are any.
    fn reach(&self, results: [usize; AXES]) -> usize {
        if results.contains(&0) {
            return 0;
        }
        ((results[0] - 1) * self.sizes[1] + results[1] - 1) * self.sizes[2] + results[2]
    }

    /// What makes the copies of inputs.
    fn of_inputs(&self, shape: &Shape) -> Grid {
        self.grid(|axis, size, phases| {
            let axis = shape.window.axis(axis);
            (axis.input, axis.stride, -(axis.pad as isize), size, phases)
        })
    }

    fn grid(
        &self,
        of: impl Fn(usize, usize, usize) -> (usize, usize, isize, usize, usize),
    ) -> Grid {
        let lines = std::array::from_fn::<_, AXES, _>(|axis| {
            let (input, step, offset, positions, taps) =
                of(axis, self.sizes[axis], self.phases[axis]);
            Line {
                input,
                positions,
                step,
                taps,
                offset,
                offset_step: 1,
                first_tap: 0,
                tap_step: 1,
                output: positions,
                out_first: 0,
                out_step: 1,
            }
        });
        Grid { lines }
    }

    /// Where the copies hold what a tap of the window reads of the first position.
    fn tap(&self, shape: &Shape, flat: usize) -> usize {
        let [_, kernel_h, kernel_w] = shape.window.kernel;
        let at = [
            flat / (kernel_h * kernel_w),
            flat / kernel_w % kernel_h,
            flat % kernel_w,
        ];
        let reach = |axis: usize| at[axis] * shape.window.dilations[axis];
        let phase = |axis: usize| reach(axis) % shape.window.strides[axis];
        let skip = |axis: usize| reach(axis) / shape.window.strides[axis];
        let copy = (phase(0) * self.phases[1] + phase(1)) * self.phases[2] + phase(2);
        let within = (skip(0) * self.sizes[1] + skip(1)) * self.sizes[2] + skip(2);
        copy * self.phase_floats() + within
    }

    /// # Safety
    /// The scratch has [`Copies::floats`], the plane as many as the grid says.
    unsafe fn fill(&self, grid: &Grid, plane: *const f32, to: *mut f32) {
        let floats = self.phase_floats();
        // SAFETY: the caller's promise.
        unsafe {
            let plane = std::slice::from_raw_parts(plane, grid.input());
            let to = std::slice::from_raw_parts_mut(to, self.floats());
            let (copies, slack) = to.split_at_mut(self.floats() - SLACK);
            slack.fill(0.0);
            for (phase, to) in copies.chunks_exact_mut(floats.max(1)).enumerate() {
                grid.unfold(plane, phase, 0, to);
            }
        }
    }
}

/// Of results' derivatives, for the derivative by inputs: the copy, and what it holds first along each axis.
fn copies_of_results(shape: &Shape) -> (Copies, [isize; AXES]) {
    let mut copies = Copies {
        sizes: [0; AXES],
        phases: [1; AXES],
    };
    let mut firsts = [0; AXES];
    for axis in 0..AXES {
        let of = shape.window.axis(axis);
        let (mut first, mut end) = (0, 0);
        for line in (0..of.stride).map(|phase| Line::backward(&of, phase)) {
            for tap in 0..line.taps {
                first = first.min(line.shift(tap));
                end = end.max(line.shift(tap) + line.positions as isize);
            }
            end = end.max(line.positions as isize);
        }
        (firsts[axis], copies.sizes[axis]) = (first, (end - first) as usize);
    }
    (copies, firsts)
}

fn longest(lengths: impl Iterator<Item = usize>) -> usize {
    lengths.max().unwrap_or(0) + SLACK
}

pub(super) fn forward_floats(shape: &Shape) -> usize {
    let copies = Copies::forward(shape);
    copies.floats() + copies.reach(shape.window.output) + SLACK
}

pub(super) fn by_input_floats(shape: &Shape) -> usize {
    let (copies, _) = copies_of_results(shape);
    copies.floats() + longest(phases(shape).map(|grid| copies.reach(sizes(&grid))))
}

pub(super) fn by_weight_floats(shape: &Shape) -> usize {
    let copies = Copies::forward(shape);
    copies.floats() + copies.phase_floats() + SLACK
}

fn sizes(grid: &Grid) -> [usize; AXES] {
    grid.lines.map(|line| line.positions)
}

fn phases(shape: &Shape) -> impl Iterator<Item = Grid> {
    let axes: [Axis; AXES] = std::array::from_fn(|axis| shape.window.axis(axis));
    let [a, b, c] = shape.window.strides;
    (0..a * b * c).map(move |flat| {
        let phase = [flat / (b * c), flat / c % b, flat % c];
        Grid {
            lines: std::array::from_fn(|axis| Line::backward(&axes[axis], phase[axis])),
        }
    })
}

pub(super) fn forward(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Shape,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let copies = Copies::forward(shape);
    let (grid, per_worker) = (copies.of_inputs(shape), forward_floats(shape));
    let (taps, length) = (shape.window.taps(), copies.reach(shape.window.output));
    let results = Grid {
        lines: std::array::from_fn(|axis| Line::forward(&shape.window.axis(axis))),
    };
    let (x, y, scratch) = (Src::new(x), Dst::new(y), Dst::new(scratch));
    parallel.run(shape.batch * shape.groups, &|plane, worker| {
        let channel = plane % shape.groups;
        let weights = &w[channel * taps..][..taps];
        // SAFETY: a worker has its own part of the scratch, a task its own plane of results.
        unsafe {
            let copy = scratch.at(worker * per_worker);
            let out = copy.add(copies.floats());
            copies.fill(&grid, x.at(plane * shape.inside()), copy);
            let start = bias.map_or(0.0, |bias| bias[channel]);
            let places = |tap: usize| (copies.tap(shape, tap), weights[tap]);
            correlate_all(isa, taps, places, copy, start, out, length);
            put(&results, &copies, out, y.at(plane * shape.outside()));
        }
    });
}

pub(super) fn by_input(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Shape,
    dy: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    dx: &mut [f32],
    scratch: &mut [f32],
) {
    let (copies, firsts) = copies_of_results(shape);
    let per_worker = by_input_floats(shape);
    let grid = copies
        .grid(|axis, size, phases| (shape.window.output[axis], 1, firsts[axis], size, phases));
    let all_taps = shape.window.taps();
    let (dy, dx, scratch) = (Src::new(dy), Dst::new(dx), Dst::new(scratch));
    parallel.run(shape.batch * shape.groups, &|plane, worker| {
        let channel = plane % shape.groups;
        let weights = &w[channel * all_taps..][..all_taps];
        // SAFETY: a worker has its own part of the scratch, a task its own plane of results.
        unsafe {
            let copy = scratch.at(worker * per_worker);
            let out = copy.add(copies.floats());
            copies.fill(&grid, dy.at(plane * shape.outside()), copy);
            let start = bias.map_or(0.0, |bias| bias[channel]);
            for phase in phases(shape) {
                let place = |flat: usize| {
                    let at = phase.tap(flat);
                    let skip =
                        |axis: usize| (phase.lines[axis].shift(at[axis]) - firsts[axis]) as usize;
                    let within = (skip(0) * copies.sizes[1] + skip(1)) * copies.sizes[2] + skip(2);
                    (
                        within,
                        weights[phase.kernel_tap(flat, &shape.window.kernel)],
                    )
                };
                let length = copies.reach(sizes(&phase));
                correlate_all(isa, phase.taps(), place, copy, start, out, length);
                put(&phase, &copies, out, dx.at(plane * shape.inside()));
            }
        }
    });
}

/// Sums over all images are one task's; those of an image are of 16 parts, and added in f64.
pub(super) fn by_weight(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Shape,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    scratch: &mut [f32],
) {
    let copies = Copies::forward(shape);
    let (grid, per_worker) = (copies.of_inputs(shape), by_weight_floats(shape));
    // Results' derivatives as far apart as the copies' rows, with zeros between them.
    let spread = Copies {
        phases: [1; AXES],
        ..copies
    };
    let spread_grid =
        spread.grid(|axis, size, phases| (shape.window.output[axis], 1, 0, size, phases));
    let (taps, length) = (shape.window.taps(), copies.reach(shape.window.output));
    let (x, dy, dw, scratch) = (Src::new(x), Src::new(dy), Dst::new(dw), Dst::new(scratch));
    parallel.run(shape.groups, &|channel, worker| {
        // SAFETY: a worker has its own part of the scratch, a task the weights of its channel.
        unsafe {
            let copy = scratch.at(worker * per_worker);
            let results = copy.add(copies.floats());
            for first in (0..taps).step_by(TAPS) {
                let count = TAPS.min(taps - first);
                let mut places = [0; TAPS];
                (0..count).for_each(|tap| places[tap] = copies.tap(shape, first + tap));
                let mut sums = [0.0; TAPS];
                for image in 0..shape.batch {
                    let plane = image * shape.groups + channel;
                    copies.fill(&grid, x.at(plane * shape.inside()), copy);
                    spread.fill(&spread_grid, dy.at(plane * shape.outside()), results);
                    let (places, sums) = (&places[..count], &mut sums[..count]);
                    products(isa, places, copy, results, length, sums);
                }
                for (tap, sum) in sums[..count].iter().enumerate() {
                    *dw.at(channel * taps + first + tap) = *sum as f32;
                }
            }
        }
    });
}

/// Puts results whose rows are as far apart as the copies' where they belong.
///
/// # Safety
/// There are as many results, and places, as the grid says.
unsafe fn put(grid: &Grid, copies: &Copies, results: *const f32, to: *mut f32) {
    let [z_line, y_line, x_line] = grid.lines;
    grid.each_run(0, grid.positions(), |z, y, x, run| {
        // SAFETY: the caller's promise.
        unsafe {
            let from = results.add((z * copies.sizes[1] + y) * copies.sizes[2] + x);
            let (z, y) = (
                z_line.out_first + z * z_line.out_step,
                y_line.out_first + y * y_line.out_step,
            );
            let line = to.add((z * y_line.output + y) * x_line.output + x_line.out_first);
            if x_line.out_step == 1 {
                line.add(x).copy_from_nonoverlapping(from, run);
                return;
            }
            for i in 0..run {
                *line.add((x + i) * x_line.out_step) = *from.add(i);
            }
        }
    });
}

/// `out[i] = start + Σ weight · copy[place + i]`, in the order of taps.
///
/// # Safety
/// As [`correlate`].
unsafe fn correlate_all(
    isa: Isa,
    taps: usize,
    place: impl Fn(usize) -> (usize, f32),
    copy: *const f32,
    start: f32,
    out: *mut f32,
    length: usize,
) {
    for first in (0..taps.max(1)).step_by(TAPS) {
        let count = TAPS.min(taps - first);
        let mut places = [(0, 0.0); TAPS];
        (0..count).for_each(|tap| places[tap] = place(first + tap));
        // SAFETY: the caller's promise.
        unsafe { correlate(isa, &places[..count], copy, start, first > 0, out, length) };
    }
}

simd_kernel! {
    /// # Safety
    /// `length` and [`SLACK`] more floats can be read from each place on, and written.
    unsafe fn correlate(
        taps: &[(usize, f32)],
        copy: *const f32,
        start: f32,
        adds: bool,
        out: *mut f32,
        length: usize,
    ) = correlate_generic;
}

#[inline(always)]
unsafe fn correlate_generic<S: Simd>(
    s: S,
    taps: &[(usize, f32)],
    copy: *const f32,
    start: f32,
    adds: bool,
    out: *mut f32,
    length: usize,
) {
    const VECTORS: usize = 4;
    let mut at = 0;
    while at < length {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [s.splat(start); VECTORS];
            if adds {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = s.load(out.add(at + i * LANES));
                }
            }
            for &(place, weight) in taps {
                let (from, weight) = (copy.add(place + at), s.splat(weight));
                for i in 0..VECTORS {
                    sums[i] = s.fma(weight, s.load(from.add(i * LANES)), sums[i]);
                }
            }
            for (i, sum) in sums.iter().enumerate() {
                s.store(out.add(at + i * LANES), *sum);
            }
        }
        at += VECTORS * LANES;
    }
}

simd_kernel! {
    /// Adds to each sum that of `results[i] · copy[place + i]`.
    ///
    /// # Safety
    /// As [`correlate`]; results are zero beyond `length`.
    unsafe fn products(
        places: &[usize],
        copy: *const f32,
        results: *const f32,
        length: usize,
        sums: &mut [f64],
    ) = products_generic;
}

#[inline(always)]
unsafe fn products_generic<S: Simd>(
    s: S,
    places: &[usize],
    copy: *const f32,
    results: *const f32,
    length: usize,
    sums: &mut [f64],
) {
    let mut done = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while places.len() - done >= 9 {
            some::<S, 9>(s, &places[done..], copy, results, length, &mut sums[done..]);
            done += 9;
        }
        while places.len() - done >= 3 {
            some::<S, 3>(s, &places[done..], copy, results, length, &mut sums[done..]);
            done += 3;
        }
        while places.len() > done {
            some::<S, 1>(s, &places[done..], copy, results, length, &mut sums[done..]);
            done += 1;
        }
    }
}

/// Steps of vectors whose sums are added in f32.
const STEPS: usize = 64;

#[inline(always)]
unsafe fn some<S: Simd, const N: usize>(
    s: S,
    places: &[usize],
    copy: *const f32,
    results: *const f32,
    length: usize,
    sums: &mut [f64],
) {
    let mut at = 0;
    while at < length {
        let end = (at + STEPS * LANES).min(length);
        let mut parts = [s.zero(); N];
        while at < end {
            // SAFETY: the caller's promise.
            unsafe {
                let v = s.load(results.add(at));
                for n in 0..N {
                    parts[n] = s.fma(v, s.load(copy.add(places[n] + at)), parts[n]);
                }
            }
            at += LANES;
        }
        for n in 0..N {
            sums[n] += f64::from(s.reduce_sum(parts[n]));
        }
    }
}
