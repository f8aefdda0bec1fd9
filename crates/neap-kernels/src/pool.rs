//! Pooling over channel-blocked activations: `[planes][H][W][16]`, where a plane is one channel
//! block of one image (`planes = batch * ceil(channels/16)`).
//!
//! Lanes never mix, so pad lanes stay pad lanes. The caller has resolved automatic padding and
//! `ceil_mode` into the output size and the pads. Every function refuses slices shorter than
//! its sizes say; sources and destinations do not overlap.

use std::ops::Range;

use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::planes::{Planes, check_planes};
use crate::rows::{add_sums, take_largest};
use crate::share::{Chunks, Dst, Src};
use crate::simd::{Isa, LANES, Simd, simd_kernel};
use crate::window::{Axis, Window};

/// Sizes of a pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Batch × channel blocks.
    pub planes: usize,
    pub window: Window,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Max,
    Average { count_pad: bool },
}

/// Outputs computed side by side.
const TILE: usize = 8;

/// Vectors that one task reads, about.
const TASK_READS: usize = 8 * 1024;

/// Largest input under each window (padding never wins; an empty window gives -inf).
///
/// # Errors
/// Sizes that contradict each other or exceed the slices.
pub fn max_pool(
    isa: Isa,
    par: &dyn Parallel,
    pool: &Pool,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    max_pool_band(isa, par, pool, whole(pool), src, dst)
}

/// [`max_pool`] of a band of rows: planes as far apart as `planes` says, from the band's first row on.
///
/// # Errors
/// As [`max_pool`], and planes that overlap.
pub fn max_pool_band(
    isa: Isa,
    par: &dyn Parallel,
    pool: &Pool,
    planes: Planes,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    run(isa, par, pool, planes, Kind::Max, src, dst)
}

/// Mean under each window. With `count_pad` the divisor counts padding positions, though never
/// beyond `pads_end`; without, only real inputs (an empty window gives 0).
///
/// # Errors
/// Sizes that contradict each other or exceed the slices.
pub fn average_pool(
    isa: Isa,
    par: &dyn Parallel,
    pool: &Pool,
    count_pad: bool,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    average_pool_band(isa, par, pool, whole(pool), count_pad, src, dst)
}

/// [`average_pool`] of a band of rows, as [`max_pool_band`].
///
/// # Errors
/// As [`average_pool`], and planes that overlap.
pub fn average_pool_band(
    isa: Isa,
    par: &dyn Parallel,
    pool: &Pool,
    planes: Planes,
    count_pad: bool,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    run(
        isa,
        par,
        pool,
        planes,
        Kind::Average { count_pad },
        src,
        dst,
    )
}

/// Tensors just as high as the sizes say.
fn whole(pool: &Pool) -> Planes {
    let plane = |[h, w]: [usize; 2]| checked_product(&[h, w, LANES]).unwrap_or(usize::MAX);
    Planes {
        input: plane(pool.window.input),
        output: plane(pool.window.output),
    }
}

/// Mean over all positions, which are added in `f64` one after another: `[planes][positions][16]` to `[planes][16]`.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn global_average(
    isa: Isa,
    par: &dyn Parallel,
    planes: usize,
    positions: usize,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    global(isa, par, planes, positions, false, src, dst)
}

/// Maximum over all positions: `[planes][positions][16]` to `[planes][16]`.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn global_max(
    isa: Isa,
    par: &dyn Parallel,
    planes: usize,
    positions: usize,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    global(isa, par, planes, positions, true, src, dst)
}

fn run(
    isa: Isa,
    par: &dyn Parallel,
    pool: &Pool,
    planes: Planes,
    kind: Kind,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let [in_h, in_w] = pool.window.input;
    let [out_h, out_w] = pool.window.output;
    pool.window.axis(0).check()?;
    pool.window.axis(1).check()?;
    let (count, plane) = (Some(pool.planes), checked_product(&[in_h, in_w, LANES]));
    check_planes("pool source", src.len(), count, planes.input, plane)?;
    let plane = checked_product(&[out_h, out_w, LANES]);
    check_planes("pool destination", dst.len(), count, planes.output, plane)?;
    if pool.planes * out_h * out_w == 0 {
        return Ok(());
    }
    let (src, dst) = (Src::new(src), Dst::new(dst));
    let reads = out_w * pool.window.kernel[0] * pool.window.kernel[1];
    let rows = Chunks::new(pool.planes * out_h, (TASK_READS / reads).max(1));
    par.run(rows.count(), &|piece, _| {
        // SAFETY: lengths were checked; tasks write disjoint output rows.
        unsafe { pool_rows(isa, pool, planes, kind, src, dst, rows.range(piece)) };
    });
    Ok(())
}

simd_kernel! {
    /// Output rows `rows`, numbered through all planes.
    ///
    /// # Safety
    /// Both buffers as long as `pool` says; nobody else writes these rows.
    unsafe fn pool_rows(pool: &Pool, planes: Planes, kind: Kind, src: Src, dst: Dst, rows: Range<usize>) = pool_rows_generic;
}

#[inline(always)]
unsafe fn pool_rows_generic<S: Simd>(
    s: S,
    pool: &Pool,
    planes: Planes,
    kind: Kind,
    src: Src,
    dst: Dst,
    rows: Range<usize>,
) {
    let (vertical, horizontal) = (pool.window.axis(0), pool.window.axis(1));
    let [out_h, out_w] = pool.window.output;
    let interior = horizontal.interior();
    // Constant strides make the addresses of a tile's inputs offsets of one register.
    let stride = horizontal.stride;
    for row in rows {
        let (plane, y) = (row / out_h, row % out_h);
        let mut x = 0;
        while x < out_w {
            // A tile that would hang over the middle's end moves back, and computes some outputs again.
            let full = interior.contains(&x) && interior.len() >= TILE;
            let next = x + if full { TILE } else { 1 };
            if full {
                x = x.min(interior.end - TILE);
            }
            let (ky, kx) = (vertical.taps(y), horizontal.taps(x));
            let count = match kind {
                Kind::Max => 1,
                Kind::Average { count_pad: false } => ky.len() * kx.len(),
                Kind::Average { count_pad: true } => counted(pool, 0, y) * counted(pool, 1, x),
            };
            // SAFETY: `taps` keeps every read inside the plane; a full tile lies in the interior,
            // where all its outputs have the same taps and the same count.
            unsafe {
                let input = src.at(plane * planes.input);
                let output = dst.at(plane * planes.output + (y * out_w + x) * LANES);
                let window = Placed {
                    vertical,
                    horizontal,
                    y,
                    x,
                    ky,
                    kx,
                };
                match (kind, full, stride) {
                    (Kind::Max, true, 1) => max_tile::<S, TILE, 1>(s, &window, input, output),
                    (Kind::Max, true, 2) => max_tile::<S, TILE, 2>(s, &window, input, output),
                    (Kind::Max, true, _) => max_tile::<S, TILE, 0>(s, &window, input, output),
                    (Kind::Max, false, _) => max_tile::<S, 1, 0>(s, &window, input, output),
                    (_, true, 1) => average_tile::<S, TILE, 1>(s, &window, count, input, output),
                    (_, true, 2) => average_tile::<S, TILE, 2>(s, &window, count, input, output),
                    (_, true, _) => average_tile::<S, TILE, 0>(s, &window, count, input, output),
                    (_, false, _) => average_tile::<S, 1, 0>(s, &window, count, input, output),
                }
            }
            x = next.min(if full { interior.end } else { next });
        }
    }
}

/// Taps of output `o` along axis `i` that lie in the input or its padding.
fn counted(pool: &Pool, i: usize, o: usize) -> usize {
    let end = pool.window.input[i] + pool.window.pads_begin[i];
    let end = end.saturating_add(pool.window.pads_end[i]);
    end.saturating_sub(o * pool.window.strides[i])
        .div_ceil(pool.window.dilations[i])
        .min(pool.window.kernel[i])
}

/// The window of the first output of a tile.
struct Placed {
    vertical: Axis,
    horizontal: Axis,
    y: usize,
    x: usize,
    ky: Range<usize>,
    kx: Range<usize>,
}

/// # Safety
/// The window's taps of all `T` outputs from `x` on lie in the plane at `input`; `T` vectors fit at
/// `output`; `STRIDE` is the horizontal stride, or 0 where it is not known beforehand.
#[inline(always)]
unsafe fn max_tile<S: Simd, const T: usize, const STRIDE: usize>(
    s: S,
    w: &Placed,
    input: *const f32,
    output: *mut f32,
) {
    let stride = if STRIDE == 0 {
        w.horizontal.stride
    } else {
        STRIDE
    };
    let mut best = [s.splat(f32::NEG_INFINITY); T];
    for ky in w.ky.clone() {
        for kx in w.kx.clone() {
            let at = w.vertical.at(w.y, ky) * w.horizontal.input + w.horizontal.at(w.x, kx);
            for i in 0..T {
                // SAFETY: the caller vouches for the taps.
                let v = unsafe { s.load(input.add((at + i * stride) * LANES)) };
                best[i] = s.max(best[i], v);
            }
        }
    }
    for i in 0..T {
        // SAFETY: the caller vouches for the output.
        unsafe { s.store(output.add(i * LANES), best[i]) };
    }
}

/// # Safety
/// As [`max_tile`].
#[inline(always)]
unsafe fn average_tile<S: Simd, const T: usize, const STRIDE: usize>(
    s: S,
    w: &Placed,
    count: usize,
    input: *const f32,
    output: *mut f32,
) {
    let stride = if STRIDE == 0 {
        w.horizontal.stride
    } else {
        STRIDE
    };
    let mut sum = [s.zero(); T];
    for ky in w.ky.clone() {
        for kx in w.kx.clone() {
            let at = w.vertical.at(w.y, ky) * w.horizontal.input + w.horizontal.at(w.x, kx);
            for i in 0..T {
                // SAFETY: the caller vouches for the taps.
                let v = unsafe { s.load(input.add((at + i * stride) * LANES)) };
                sum[i] = s.add(sum[i], v);
            }
        }
    }
    let count = s.splat(count.max(1) as f32);
    for i in 0..T {
        // SAFETY: the caller vouches for the output.
        unsafe { s.store(output.add(i * LANES), s.div(sum[i], count)) };
    }
}

fn global(
    isa: Isa,
    par: &dyn Parallel,
    planes: usize,
    positions: usize,
    max: bool,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    check_len(
        "pool source",
        src.len(),
        checked_product(&[planes, positions, LANES]),
    )?;
    check_len(
        "pool destination",
        dst.len(),
        checked_product(&[planes, LANES]),
    )?;
    if planes == 0 {
        return Ok(());
    }
    let dst = Dst::new(dst);
    let pieces = Chunks::new(planes, (TASK_READS / 4 / positions.max(1)).max(1));
    par.run(pieces.count(), &|piece, _| {
        for plane in pieces.range(piece) {
            let values = &src[plane * positions * LANES..][..positions * LANES];
            let mut found = [0.0; LANES];
            if max {
                found.fill(f64::NEG_INFINITY);
                take_largest(isa, values, &mut found);
            } else {
                add_sums(isa, values, &mut found);
                found = found.map(|sum| sum / positions.max(1) as f64);
            }
            // SAFETY: lengths were checked; tasks write disjoint planes.
            unsafe {
                dst.at(plane * LANES)
                    .cast::<[f32; LANES]>()
                    .write(found.map(|v| v as f32))
            };
        }
    });
    Ok(())
}
