//! Depthwise convolution of blocked steps: one filter for each channel, 16 channels side by side.
//!
//! ```text
//!   a band of one block of the input, padded with zero points ─► sums of some outputs of a row ─► results
//!   | pixel | pixel | pixel | pixel |     four pixels of a row are multiplied at once with four taps of a row of the window,
//!   |  w 0  |  w 1  |  w 2  |   0   |     for an output
//!   |   0   |  w 0  |  w 1  |  w 2  |     and, where the stride is 1, for the next one
//! ```

use super::dot::{Dot, QUAD};
use super::drive::Kernel;
use super::finish::{Finisher, Head, Summed, Target};
use super::lanes::Lanes;
use super::{Finish, Results, Steps};
use crate::depthwise::{Depthwise, cut_rows};
use crate::error::{KernelError, check_len, checked_product};
use crate::panel::{Format, Panels};
use crate::parallel::Parallel;
use crate::planes::{Planes, check_planes, planes_elements};
use crate::simd::{Isa, LANES, Portable};
use crate::window::Window;
use std::ops::Range;

/// Bytes of a band of input, if one row of the output does not need more.
const BAND_BYTES: usize = 24 * 1024;

/// Most quads of weights of a panel, for an output and the next one.
const MOST_QUADS: usize = 64;

/// Most bytes of a quad, for any instruction set.
const QUAD_ROOM: usize = 2 * QUAD * LANES;

/// Outputs of a tile.
const TILE: usize = 8;

/// How the input is read.
#[derive(Clone, Copy)]
struct Band {
    /// Outputs that share pixels: two side by side with a stride of 1, else one.
    together: usize,
    /// Quads of a row of the window.
    quads: usize,
    /// Pixels of a padded row.
    width: usize,
    /// Rows of the output of a whole band.
    rows: usize,
    bytes: usize,
}

impl Band {
    /// `None` for sizes that overflow.
    fn of(w: &Window) -> Option<Band> {
        if w.kernel.contains(&0) || w.strides.contains(&0) {
            return None;
        }
        let together = if w.strides[1] == 1 { 2 } else { 1 };
        let quads = (w.kernel[1].checked_add(together - 1)?).div_ceil(QUAD);
        let outputs = w.output[1].max(1).checked_next_multiple_of(together)?;
        let width = (outputs - together)
            .checked_mul(w.strides[1])?
            .checked_add(quads * QUAD)?;
        let row_bytes = width.checked_mul(LANES)?;
        let reach = (w.kernel[0].checked_sub(1)?).checked_mul(w.dilations[0])?;
        let fitting = (BAND_BYTES / row_bytes).saturating_sub(reach + 1) / w.strides[0].max(1) + 1;
        let rows = fitting.min(w.output[0].max(1));
        let height = (rows - 1)
            .checked_mul(w.strides[0])?
            .checked_add(reach + 1)?;
        Some(Band {
            together,
            quads,
            width,
            rows,
            bytes: height.checked_mul(row_bytes)?,
        })
    }
}

/// Whether [`integer_depthwise`] takes a window, whatever it slides over.
#[must_use]
pub fn takes_depthwise(kernel: [usize; 2], strides: [usize; 2], dilations: [usize; 2]) -> bool {
    let window = Window {
        kernel,
        strides,
        dilations,
        ..Window::default()
    };
    let Some(band) = Band::of(&window).filter(|_| dilations[1] == 1) else {
        return false;
    };
    let quads = checked_product(&[kernel[0], band.quads, band.together]);
    quads.is_some_and(|quads| quads <= MOST_QUADS)
}

/// Bytes of scratch of [`integer_depthwise`], aligned to 64.
#[must_use]
pub fn depthwise_scratch_bytes(shape: &Depthwise, workers: usize) -> usize {
    let each = Band::of(&shape.window).and_then(|band| band.bytes.checked_next_multiple_of(64));
    each.and_then(|bytes| bytes.checked_mul(workers))
        .unwrap_or(usize::MAX)
}

/// As [`crate::depthwise::depthwise`], of blocked steps. What lies outside the input is zero.
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers, other formats, what [`takes_depthwise`] refuses, and zero points of
/// weights.
pub fn integer_depthwise(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Depthwise,
    panels: Range<usize>,
    weights: Panels<'_>,
    input: &[u8],
    steps: Steps,
    results: Results<'_>,
    finish: Finish<'_>,
    scratch: &mut [u8],
) -> Result<(), KernelError> {
    let plane = |size: [usize; 2]| plane(size).unwrap_or(usize::MAX);
    let planes = Planes {
        input: plane(shape.window.input),
        output: plane(shape.window.output),
    };
    integer_depthwise_band(
        isa, parallel, shape, planes, panels, weights, input, steps, results, finish, scratch,
    )
}

fn plane([height, width]: [usize; 2]) -> Option<usize> {
    checked_product(&[height, width, LANES])
}

/// [`integer_depthwise`] of some rows of taller tensors, whose planes lie so many elements apart.
///
/// # Errors
/// As [`integer_depthwise`], and planes that overlap.
pub fn integer_depthwise_band(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &Depthwise,
    planes: Planes,
    panels: Range<usize>,
    weights: Panels<'_>,
    input: &[u8],
    steps: Steps,
    mut results: Results<'_>,
    finish: Finish<'_>,
    scratch: &mut [u8],
) -> Result<(), KernelError> {
    let w = &shape.window;
    let blocks = shape.channels.div_ceil(LANES);
    let band = match Band::of(w) {
        Some(band)
            if takes_depthwise(w.kernel, w.strides, w.dilations)
                && weights.format() == Format::I8 =>
        {
            band
        }
        _ => return Err(KernelError::Unsupported("integers of this format or size")),
    };
    w.axis(0).check()?;
    w.axis(1).check()?;
    if panels.start > panels.end || panels.end > blocks {
        return Err(KernelError::Invalid("panels outside the channels"));
    }
    weights.check(Some(w.taps()), panels.len())?;
    let count = checked_product(&[shape.batch, blocks]);
    check_planes("input", input.len(), count, planes.input, plane(w.input))?;
    let out_plane = plane(w.output).unwrap_or(usize::MAX);
    let elements = planes_elements(count, planes.output, out_plane)?;
    let target = results.target(&finish, elements, LANES, planes.output)?;
    let worker_bytes = depthwise_scratch_bytes(shape, 1);
    let needed = depthwise_scratch_bytes(shape, parallel.workers());
    check_len("scratch", scratch.len(), Some(needed))?;
    if shape.batch == 0 || panels.is_empty() || out_plane == 0 {
        return Ok(());
    }
    let call = Call {
        window: *w,
        band,
        steps,
        weights: weights.as_ptr(),
        panel_bytes: Format::I8.panel_bytes(w.taps()).unwrap_or(0),
        target,
        scratch: scratch.as_mut_ptr(),
        worker_bytes,
    };
    // SAFETY: the panels were checked.
    if (0..panels.len()).any(|panel| unsafe { call.head(panel, 2) } != [0.0; LANES]) {
        return Err(KernelError::Unsupported("zero points of weights in groups"));
    }
    let input = crate::share::Src::new(input);
    let rows = cut_rows(w.output[0], band.rows, parallel.workers());
    let count = shape.batch * panels.len();
    parallel.run(rows.parts * count, &|task, worker| {
        // Rows first: each worker has rows of its own then, as in the layers before and behind.
        let (piece, plane) = (task / count, task % count);
        let (image, panel) = (plane / panels.len(), plane % panels.len());
        let block = image * blocks + panels.start + panel;
        // SAFETY: lengths were checked; tasks differ in block or rows, and have their worker's scratch.
        unsafe {
            let part = Part {
                panel,
                input: input.at(block * planes.input),
                rows: rows.range(piece),
                out: block * planes.output,
                worker,
            };
            compute(isa, &call, &part);
        }
    });
    Ok(())
}

/// What tasks share.
struct Call {
    window: Window,
    band: Band,
    steps: Steps,
    weights: *const u8,
    panel_bytes: usize,
    target: Target,
    scratch: *mut u8,
    worker_bytes: usize,
}

// SAFETY: tasks read shared memory and write disjoint results and scratch.
unsafe impl Sync for Call {}

/// Some rows of one block of one image.
struct Part {
    panel: usize,
    /// The block's.
    input: *const u8,
    rows: Range<usize>,
    /// Where the block's results begin, in elements.
    out: usize,
    worker: usize,
}

/// A panel's weights in order: for each row of the window its quads, for an output and the next.
#[repr(align(64))]
struct Weights([u8; MOST_QUADS * QUAD_ROOM]);

impl Call {
    /// The `index`-th vector of a panel's head: bias, scales, zero points.
    ///
    /// # Safety
    /// The panel is in the range.
    unsafe fn head(&self, panel: usize, index: usize) -> [f32; LANES] {
        let at = self.weights.wrapping_add(panel * self.panel_bytes);
        // SAFETY: panels were checked, and begin with three vectors.
        unsafe { at.cast::<[f32; LANES]>().add(index).read_unaligned() }
    }

    /// # Safety
    /// The panel is in the range.
    unsafe fn tap(&self, panel: usize, tap: usize) -> [i8; LANES] {
        let at = panel * self.panel_bytes + Format::I8.head_bytes() + tap * LANES;
        // SAFETY: panels were checked.
        unsafe { self.weights.add(at).cast::<[i8; LANES]>().read_unaligned() }
    }

    /// What makes numbers of a panel's sums.
    ///
    /// # Safety
    /// The panel is in the range.
    unsafe fn make_head(&self, panel: usize) -> Head {
        // SAFETY: the caller's promise.
        let [bias, mut scale] = unsafe { [0, 1].map(|i| self.head(panel, i)) };
        let mut columns = [0i32; LANES];
        for tap in 0..self.window.taps() {
            // SAFETY: the caller's promise.
            let weights = unsafe { self.tap(panel, tap) };
            for (sum, w) in columns.iter_mut().zip(weights) {
                *sum += i32::from(w);
            }
        }
        scale.iter_mut().for_each(|s| *s *= self.steps.scale);
        let own = i32::from(self.steps.zero);
        Head {
            bias,
            scale,
            start: columns.map(|sum| sum.wrapping_mul(own).wrapping_neg()),
            ..Head::NONE
        }
    }

    /// Brings a panel's weights into order.
    ///
    /// # Safety
    /// The panel is in the range.
    #[inline(always)]
    unsafe fn order<D: Lanes>(&self, d: D, panel: usize, to: &mut Weights) {
        let (kernel, band) = (self.window.kernel, &self.band);
        let mut places = to.0.chunks_exact_mut(D::QUAD_BYTES);
        for ky in 0..kernel[0] {
            for (quad, shift) in
                (0..band.quads).flat_map(|q| (0..band.together).map(move |s| (q, s)))
            {
                let mut taps = [[0i8; LANES]; QUAD];
                for (j, tap) in taps.iter_mut().enumerate() {
                    let kx = (quad * QUAD + j).checked_sub(shift);
                    if let Some(kx) = kx.filter(|&kx| kx < kernel[1]) {
                        // SAFETY: the caller's promise.
                        *tap = unsafe { self.tap(panel, ky * kernel[1] + kx) };
                    }
                }
                if let Some(place) = places.next() {
                    // SAFETY: 64 bytes, and a quad's.
                    unsafe { d.order(taps.as_ptr().cast(), place.as_mut_ptr()) };
                }
            }
        }
    }

    /// Copies the rows that a part reads, with zero points around them. Returns where they begin.
    ///
    /// # Safety
    /// As [`compute`].
    unsafe fn fill(&self, part: &Part) -> *const u8 {
        let (w, band) = (&self.window, &self.band);
        let begin = self.scratch.wrapping_add(part.worker * self.worker_bytes);
        let row_bytes = band.width * LANES;
        let [height, width] = w.input;
        let left = w.pads_begin[1].min(band.width);
        let inside = width.min(band.width - left);
        let reach = (w.kernel[0] - 1) * w.dilations[0] + 1;
        for i in 0..(part.rows.len() - 1) * w.strides[0] + reach {
            let y = (part.rows.start * w.strides[0] + i).checked_sub(w.pads_begin[0]);
            // SAFETY: the worker's scratch has these rows, and the input the pixels inside.
            unsafe {
                let to = begin.add(i * row_bytes);
                let Some(y) = y.filter(|&y| y < height) else {
                    to.write_bytes(self.steps.zero, row_bytes);
                    continue;
                };
                to.write_bytes(self.steps.zero, left * LANES);
                let from = part.input.add(y * width * LANES);
                std::ptr::copy_nonoverlapping(from, to.add(left * LANES), inside * LANES);
                let done = (left + inside) * LANES;
                to.add(done).write_bytes(self.steps.zero, row_bytes - done);
            }
        }
        begin
    }
}

/// # Safety
/// The part's input and results are memory that the call may use so; no one else writes its results and scratch.
unsafe fn compute(isa: Isa, call: &Call, part: &Part) {
    // SAFETY: the caller's promise; the processor has the instructions.
    unsafe {
        match Kernel::of(isa) {
            Kernel::Portable => compute_with(Portable, call, part),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => {
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn run(call: &Call, part: &Part) {
                    // SAFETY: as the function around.
                    unsafe { compute_with(crate::simd::Avx2Fma::new(), call, part) }
                }
                run(call, part);
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Vnni | Kernel::Amx => {
                #[target_feature(
                    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
                )]
                unsafe fn run(call: &Call, part: &Part) {
                    // SAFETY: as the function around.
                    unsafe { compute_with(crate::simd::Avx512::new(), call, part) }
                }
                run(call, part);
            }
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => compute_with(crate::simd::Neon::new(), call, part),
        }
    }
}

/// The sums of a tile.
#[repr(align(64))]
struct Sums([i32; TILE * LANES]);

/// # Safety
/// As [`compute`].
#[inline(always)]
unsafe fn compute_with<D: Lanes>(d: D, call: &Call, part: &Part) {
    let (w, band) = (&call.window, &call.band);
    let mut weights = Weights([0; MOST_QUADS * QUAD_ROOM]);
    // SAFETY: the caller's promise.
    let (head, pixels) = unsafe {
        call.order(d, part.panel, &mut weights);
        (call.make_head(part.panel), call.fill(part))
    };
    let finisher = Finisher::new(&call.target);
    let mut sums = Sums([0; TILE * LANES]);
    for (row, y) in part.rows.clone().enumerate() {
        let pixels = pixels.wrapping_add(row * w.strides[0] * band.width * LANES);
        let mut x = 0;
        while x < w.output[1] {
            let left = w.output[1] - x;
            let tile = Reads {
                pixels: pixels.wrapping_add(x * w.strides[1] * LANES),
                weights: weights.0.as_ptr(),
                row_bytes: w.dilations[0] * band.width * LANES,
                rows: w.kernel[0],
                quads: band.quads,
                step: band.together * w.strides[1] * LANES,
            };
            let to = sums.0.as_mut_ptr();
            // SAFETY: the band has the pixels of as many outputs, of which the last may be one more than there are.
            let rows = unsafe {
                match (band.together, left) {
                    (2, 8..) => tile.sum::<D, 4, 2>(d, &head, to),
                    (2, 4..) => tile.sum::<D, 2, 2>(d, &head, to),
                    (2, _) => tile.sum::<D, 1, 2>(d, &head, to),
                    (_, 8..) => tile.sum::<D, 8, 1>(d, &head, to),
                    (_, 4..) => tile.sum::<D, 4, 1>(d, &head, to),
                    (_, 2..) => tile.sum::<D, 2, 1>(d, &head, to),
                    _ => tile.sum::<D, 1, 1>(d, &head, to),
                }
            }
            .min(left);
            let summed = Summed {
                sums: to,
                row_sums: std::ptr::null(),
                rows,
                panels: 1,
                first: part.out + (y * w.output[1] + x) * LANES,
            };
            // SAFETY: the part's results.
            unsafe { finisher.finish(d, std::slice::from_ref(&head), 0, summed, LANES) };
            x += rows;
        }
    }
}

/// Where a tile reads.
struct Reads {
    /// Its first output's first pixel.
    pixels: *const u8,
    weights: *const u8,
    /// From row to row of the window.
    row_bytes: usize,
    rows: usize,
    quads: usize,
    /// From unit to unit, a unit being outputs that share pixels.
    step: usize,
}

impl Reads {
    /// Sums of `U` units of `T` outputs each; returns how many outputs.
    ///
    /// # Safety
    /// Pixels, weights and sums are there.
    #[inline(always)]
    unsafe fn sum<D: Lanes, const U: usize, const T: usize>(
        &self,
        d: D,
        head: &Head,
        sums: *mut i32,
    ) -> usize {
        // SAFETY: a head has 16 integers.
        let start = unsafe { d.load_sums(head.start.as_ptr()) };
        let mut acc = [[start; T]; U];
        let mut weights = self.weights;
        for row in 0..self.rows {
            let pixels = self.pixels.wrapping_add(row * self.row_bytes);
            for quad in 0..self.quads {
                // SAFETY: the caller's promise.
                unsafe {
                    let mut w = [d.load_quad(weights); T];
                    for (t, w) in w.iter_mut().enumerate().skip(1) {
                        *w = d.load_quad(weights.add(t * D::QUAD_BYTES));
                    }
                    for (u, acc) in acc.iter_mut().enumerate() {
                        let x = d.pixels(pixels.add(quad * QUAD * LANES + u * self.step));
                        for t in 0..T {
                            acc[t] = d.dot_lanes(acc[t], x, w[t]);
                        }
                    }
                    weights = weights.add(T * D::QUAD_BYTES);
                }
            }
        }
        for (i, acc) in acc.as_flattened().iter().enumerate() {
            // SAFETY: the caller has so many there.
            unsafe { d.store_sums(sums.add(i * LANES), *acc) };
        }
        U * T
    }
}

const fn fits<D: Dot>() -> bool {
    D::QUAD_BYTES <= QUAD_ROOM
}

const _: () = {
    assert!(fits::<Portable>());
    #[cfg(target_arch = "x86_64")]
    assert!(fits::<crate::simd::Avx512>() && fits::<crate::simd::Avx2Fma>());
    #[cfg(target_arch = "aarch64")]
    assert!(fits::<crate::simd::Neon>());
};
