//! Depthwise 2-D convolution, channel-blocked: every channel has its own kernel, 16 at a time.
//!
//! Input `[batch][blocks][in_h][in_w][16]`, output `[batch][blocks][out_h][out_w][16]`, weights
//! as panels `[bias 16][tap][16]`, taps row by row. A call computes the panels it is given; the
//! other channel blocks of the output are left alone. Per output element: bias (plus residual),
//! then one fused multiply-add per tap inside the image in tap order, then the activation,
//! however the work is cut.
//!
//! The plane falls into a middle, where every tap is inside the image, and borders. Either is
//! computed in tiles: a run of outputs along a row or down a column with the same taps, each
//! output one accumulator register.

use std::ops::Range;

use crate::elementwise::unary_run;
use crate::epilogue::{Activation, Epilogue, Residual};
use crate::error::{KernelError, checked_product};
use crate::panel::format::{Stored, by_format};
use crate::panel::{Format, Panels};
use crate::parallel::Parallel;
use crate::planes::{Planes, check_planes};
use crate::share::{Chunks, Dst, Src};
use crate::simd::{Isa, LANES, Simd, simd_kernel};
use crate::tile::Split;
use crate::window::Window;

/// Sizes of a depthwise convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depthwise {
    pub batch: usize,
    /// Real channels; there are `ceil(channels / 16)` blocks and panels.
    pub channels: usize,
    pub window: Window,
}

impl Depthwise {
    /// Floats in one `f32` panel.
    #[must_use]
    pub fn panel_floats(&self) -> usize {
        (1 + self.window.taps()) * LANES
    }

    fn blocks(&self) -> usize {
        self.channels.div_ceil(LANES)
    }
}

/// Most taps of panels that are not `f32`: a task widens a panel first, on its stack.
pub const NARROW_TAPS: usize = 64;

/// Tap-vectors that one task multiplies, about.
const TASK_TAPS: usize = 8 * 1024;

/// Computes the channel blocks `panels` of the output from those of the input.
///
/// `weights` holds exactly these panels. The output is the whole tensor.
///
/// # Errors
/// When a slice is shorter than the sizes say or the panel range lies outside the channels.
pub fn depthwise<'a>(
    isa: Isa,
    par: &dyn Parallel,
    shape: &Depthwise,
    panels: Range<usize>,
    weights: impl Into<Panels<'a>>,
    input: &[f32],
    output: &mut [f32],
    epilogue: Epilogue<'_>,
) -> Result<(), KernelError> {
    let plane = |[h, w]: [usize; 2]| checked_product(&[h, w, LANES]).unwrap_or(usize::MAX);
    let planes = Planes {
        input: plane(shape.window.input),
        output: plane(shape.window.output),
    };
    depthwise_band(
        isa, par, shape, planes, panels, weights, input, output, epilogue,
    )
}

/// [`depthwise`] of a band of rows: input, output and residual have planes as far apart as `planes`
/// says, and begin at the band's first row.
///
/// # Errors
/// As [`depthwise`], and planes that overlap.
pub fn depthwise_band<'a>(
    isa: Isa,
    par: &dyn Parallel,
    shape: &Depthwise,
    planes: Planes,
    panels: Range<usize>,
    weights: impl Into<Panels<'a>>,
    input: &[f32],
    output: &mut [f32],
    epilogue: Epilogue<'_>,
) -> Result<(), KernelError> {
    let blocks = shape.blocks();
    let [in_h, in_w] = shape.window.input;
    let [out_h, out_w] = shape.window.output;
    let all_planes = shape.batch.checked_mul(blocks);
    let in_plane = checked_product(&[in_h, in_w, LANES]);
    let out_plane = checked_product(&[out_h, out_w, LANES]);
    shape.window.axis(0).check()?;
    shape.window.axis(1).check()?;
    if panels.start > panels.end || panels.end > blocks {
        return Err(KernelError::Invalid("panels outside the channels"));
    }
    let weights: Panels = weights.into();
    let taps = shape.window.taps();
    weights.check(Some(taps), panels.len())?;
    let format = weights.format();
    if format != Format::F32 && taps > NARROW_TAPS {
        return Err(KernelError::Unsupported(
            "depthwise convolution with more than 64 taps and weights that are not f32",
        ));
    }
    let panel_bytes = format.head_bytes() + taps * format.step_bytes();
    check_planes(
        "depthwise input",
        input.len(),
        all_planes,
        planes.input,
        in_plane,
    )?;
    check_planes(
        "depthwise output",
        output.len(),
        all_planes,
        planes.output,
        out_plane,
    )?;
    let (weights, input, output) = (
        Src::new(weights.floats()),
        Src::new(input),
        Dst::new(output),
    );
    let residual = match epilogue.residual {
        Residual::None => None,
        Residual::Separate(r) => {
            check_planes(
                "depthwise residual",
                r.len(),
                all_planes,
                planes.output,
                out_plane,
            )?;
            Some(Src::new(r))
        }
        Residual::InPlace => Some(output.as_src()),
    };
    if shape.batch * panels.len() * out_h * out_w == 0 {
        return Ok(());
    }
    let pieces = cut_rows(out_h, TASK_TAPS / (out_w * taps), par.workers());
    // Small planes come several to a task.
    let each = TASK_TAPS / (pieces.range(0).len() * out_w * taps);
    let units = Chunks::new(shape.batch * panels.len(), each);
    // Rows first: each worker has rows of its own then, as in the layers before and behind.
    par.run(pieces.parts * units.count(), &|task, _| {
        let rows = pieces.range(task / units.count());
        for plane in units.range(task % units.count()) {
            let (image, panel) = (plane / panels.len(), plane % panels.len());
            let block = image * blocks + panels.start + panel;
            // SAFETY: lengths were checked above; every task writes its own rows of its own planes.
            unsafe {
                let job = Job {
                    shape,
                    panel: weights.at(panel * panel_bytes / size_of::<f32>()),
                    format,
                    input: input.at(block * planes.input),
                    output: output.at(block * planes.output),
                    residual: residual.map(|r| r.at(block * planes.output)),
                };
                plane_rows(
                    format.isa(isa),
                    &job,
                    epilogue.activation,
                    rows.start,
                    rows.end,
                );
                if !fused(epilogue.activation) {
                    // The rows just written are still in the nearest cache.
                    let at = job.output.add(rows.start * out_w * LANES);
                    unary_run(
                        isa,
                        epilogue.activation.into(),
                        at,
                        at,
                        rows.len() * out_w * LANES,
                    );
                }
            }
        }
    });
    Ok(())
}

/// Fewer rows of a task cost more than it gains that a worker has rows of its own.
const OWN_ROWS: usize = 14;

/// A plane's rows in parts of about so many or fewer, as many for each worker as for another where they are not too few.
pub(crate) fn cut_rows(rows: usize, about: usize, workers: usize) -> Split {
    let mut split = Split::at_most(rows, about);
    let even = split.parts.next_multiple_of(workers);
    if even * OWN_ROWS <= rows {
        split.parts = even;
    }
    split
}

/// Whether the activation is one that tiles apply themselves.
fn fused(activation: Activation) -> bool {
    matches!(
        activation,
        Activation::None | Activation::Relu | Activation::Clip { .. }
    )
}

/// Writes a panel as `f32`, without scales.
///
/// # Safety
/// The panel has `taps` taps, and `to` holds one vector more.
#[inline(always)]
unsafe fn widen<S: Simd>(s: S, format: Format, panel: *const f32, taps: usize, to: &mut [f32]) {
    let weights = panel.wrapping_byte_add(format.head_bytes()).cast::<u8>();
    // SAFETY: bias and taps lie in the panel; `to` has room for them.
    unsafe {
        s.store(to.as_mut_ptr(), s.load(panel));
        for tap in 0..taps {
            let at = weights.add(tap * format.step_bytes());
            let w = by_format!(format, F => F::load(s, at, panel));
            s.store(to.as_mut_ptr().add((1 + tap) * LANES), w);
        }
    }
}

/// One channel block of one image.
#[derive(Clone, Copy)]
struct Job<'a> {
    shape: &'a Depthwise,
    panel: *const f32,
    format: Format,
    input: *const f32,
    output: *mut f32,
    residual: Option<*const f32>,
}

/// Outputs that share their taps: `count` of them, the first at (`y`, `x`), the next ones to the
/// right or below.
struct Run {
    y: usize,
    x: usize,
    count: usize,
    down: bool,
    ky: Range<usize>,
    kx: Range<usize>,
}

simd_kernel! {
    /// Output rows `first..end` of one plane.
    ///
    /// # Safety
    /// The job's pointers cover the planes and the panel; nobody else writes these rows.
    unsafe fn plane_rows(job: &Job<'_>, activation: Activation, first: usize, end: usize) = plane_rows_generic;
}

#[inline(always)]
unsafe fn plane_rows_generic<S: Simd>(
    s: S,
    job: &Job<'_>,
    activation: Activation,
    first: usize,
    end: usize,
) {
    let mut widened = [0.0; (1 + NARROW_TAPS) * LANES];
    let job = &match job.format {
        Format::F32 => *job,
        format => {
            // SAFETY: the panel has these taps, and there are no more than the array holds.
            unsafe { widen(s, format, job.panel, job.shape.window.taps(), &mut widened) };
            Job {
                panel: widened.as_ptr(),
                ..*job
            }
        }
    };
    let (vertical, horizontal) = (job.shape.window.axis(0), job.shape.window.axis(1));
    let out_w = job.shape.window.output[1];
    let (low, high) = match activation {
        Activation::Relu => (0.0, f32::INFINITY),
        Activation::Clip { low, high } => (low, high),
        _ => (f32::NEG_INFINITY, f32::INFINITY),
    };
    let limits = (s.splat(low), s.splat(high));
    let middle = horizontal.interior();
    let middle_rows = vertical.interior();
    let middle_rows = middle_rows.start.clamp(first, end)..middle_rows.end.clamp(first, end);

    // First the middle columns, a run along each row; then each border column, runs down it.
    let (mut x, mut y) = (middle.start, first);
    let mut down = middle.is_empty();
    if down {
        x = 0;
    }
    while x < out_w {
        let count = match (down, middle_rows.contains(&y)) {
            (false, _) => middle.len(),
            (true, true) => middle_rows.end - y,
            (true, false) => 1,
        };
        let run = Run {
            y,
            x,
            count,
            down,
            ky: vertical.taps(y),
            kx: horizontal.taps(x),
        };
        // SAFETY: `Axis::taps` keeps every read inside the plane, and the run stays inside rows
        // `first..end`, which are this task's.
        unsafe { run_tiles(s, job, &run, limits) };
        y += if down { count } else { 1 };
        if y == end {
            y = first;
            x = if down { x + 1 } else { 0 };
            down = true;
            if middle.contains(&x) {
                x = middle.end;
            }
        }
    }
}

/// Cuts a run into tiles of about equal length.
///
/// # Safety
/// All taps of the run lie in the input plane, all its outputs in the output plane.
#[inline(always)]
unsafe fn run_tiles<S: Simd>(s: S, job: &Job<'_>, run: &Run, limits: (S::V, S::V)) {
    // SAFETY: the caller vouches for the run. Constant steps make the addresses of a tile's inputs
    // offsets of one register.
    unsafe {
        match (run.down, job.shape.window.strides[1]) {
            (false, 1) => row_tiles::<S, 1>(s, job, run, limits),
            (false, 2) => row_tiles::<S, 2>(s, job, run, limits),
            _ => other_tiles(s, job, run, limits),
        }
    }
}

/// A run along a row with a stride of `STRIDE`.
///
/// # Safety
/// As [`run_tiles`].
#[inline(always)]
unsafe fn row_tiles<S: Simd, const STRIDE: usize>(
    s: S,
    job: &Job<'_>,
    run: &Run,
    limits: (S::V, S::V),
) {
    let widest = if S::VECTOR_REGISTERS >= 32 { 14 } else { 6 };
    let tiles = run.count.div_ceil(widest);
    let (size, longer) = if tiles == 1 {
        (run.count, 0)
    } else {
        (run.count / tiles, run.count % tiles)
    };
    let mut done = 0;
    for tile in 0..tiles {
        let count = size + usize::from(tile < longer);
        // SAFETY: the tile is part of the run.
        unsafe {
            match count {
                1 => tile_of::<S, 1, STRIDE>(s, job, run, done, limits),
                2 => tile_of::<S, 2, STRIDE>(s, job, run, done, limits),
                3 => tile_of::<S, 3, STRIDE>(s, job, run, done, limits),
                4 => tile_of::<S, 4, STRIDE>(s, job, run, done, limits),
                5 => tile_of::<S, 5, STRIDE>(s, job, run, done, limits),
                6 => tile_of::<S, 6, STRIDE>(s, job, run, done, limits),
                _ if S::VECTOR_REGISTERS < 32 => unreachable!("tiles are at most 6 long"),
                7 => tile_of::<S, 7, STRIDE>(s, job, run, done, limits),
                8 => tile_of::<S, 8, STRIDE>(s, job, run, done, limits),
                9 => tile_of::<S, 9, STRIDE>(s, job, run, done, limits),
                10 => tile_of::<S, 10, STRIDE>(s, job, run, done, limits),
                11 => tile_of::<S, 11, STRIDE>(s, job, run, done, limits),
                12 => tile_of::<S, 12, STRIDE>(s, job, run, done, limits),
                13 => tile_of::<S, 13, STRIDE>(s, job, run, done, limits),
                _ => tile_of::<S, 14, STRIDE>(s, job, run, done, limits),
            }
        }
        done += count;
    }
}

/// A run down a column, or with an unusual stride.
///
/// # Safety
/// As [`run_tiles`].
#[inline(always)]
unsafe fn other_tiles<S: Simd>(s: S, job: &Job<'_>, run: &Run, limits: (S::V, S::V)) {
    let mut done = 0;
    while done < run.count {
        // SAFETY: the tile is part of the run.
        unsafe {
            done += match run.count - done {
                5.. => {
                    tile_of::<S, 5, 0>(s, job, run, done, limits);
                    5
                }
                3.. => {
                    tile_of::<S, 3, 0>(s, job, run, done, limits);
                    3
                }
                _ => {
                    tile_of::<S, 1, 0>(s, job, run, done, limits);
                    1
                }
            };
        }
    }
}

/// Outputs `done..done + T` of the run; `STRIDE` is 0 where it is not known beforehand.
///
/// # Safety
/// As [`run_tiles`].
#[inline(always)]
unsafe fn tile_of<S: Simd, const T: usize, const STRIDE: usize>(
    s: S,
    job: &Job<'_>,
    run: &Run,
    done: usize,
    limits: (S::V, S::V),
) {
    let shape = job.shape;
    let (in_w, out_w) = (shape.window.input[1], shape.window.output[1]);
    let (y, x) = if STRIDE == 0 && run.down {
        (run.y + done, run.x)
    } else {
        (run.y, run.x + done)
    };
    let (in_step, out_step) = match STRIDE {
        0 if run.down => (shape.window.strides[0] * in_w * LANES, out_w * LANES),
        0 => (shape.window.strides[1] * LANES, LANES),
        stride => (stride * LANES, LANES),
    };
    let out_at = (y * out_w + x) * LANES;
    // SAFETY: the caller vouches for taps and outputs; the panel holds the bias and all taps.
    unsafe {
        let mut sum = [s.load(job.panel); T];
        if let Some(residual) = job.residual {
            for i in 0..T {
                sum[i] = s.add(sum[i], s.load(residual.add(out_at + i * out_step)));
            }
        }
        let tap_step = shape.window.dilations[1] * LANES;
        // Where no tap lies on the input there is no address either.
        let taps_y = if run.kx.is_empty() {
            0..0
        } else {
            run.ky.clone()
        };
        for ky in taps_y {
            let col = x * shape.window.strides[1] + run.kx.start * shape.window.dilations[1]
                - shape.window.pads_begin[1];
            let row = y * shape.window.strides[0] + ky * shape.window.dilations[0]
                - shape.window.pads_begin[0];
            let mut input = job.input.add((row * in_w + col) * LANES);
            let mut weight = job
                .panel
                .add((1 + ky * shape.window.kernel[1] + run.kx.start) * LANES);
            for _ in run.kx.clone() {
                let w = s.load(weight);
                for i in 0..T {
                    sum[i] = s.fma(w, s.load(input.add(i * in_step)), sum[i]);
                }
                input = input.wrapping_add(tap_step);
                weight = weight.wrapping_add(LANES);
            }
        }
        for i in 0..T {
            s.store(
                job.output.add(out_at + i * out_step),
                s.clamp(sum[i], limits.0, limits.1),
            );
        }
    }
}
