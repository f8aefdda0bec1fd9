//! Normalisations: mean and variance (layer, group, instance), root mean square, L1 and L2.
//!
//! Mean first, then the squares of the differences: two passes cost little and lose no digits.

use std::ops::Range;

use super::fold::{self, each};
use super::{Input, TASK_ELEMENTS};
use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::share::{Chunks, Dst, Src};
use crate::simd::{Isa, LANES, Simd, simd_kernel};

/// Which length [`lp_norm`] divides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norm {
    /// Sum of the magnitudes.
    L1,
    /// Root of the sum of the squares.
    L2,
}

/// `(x - mean) / sqrt(variance + epsilon) * scale + bias` along rows of `[rows][cols]`;
/// `scale` and `bias` have `cols` elements.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn layer_norm(
    isa: Isa,
    par: &dyn Parallel,
    rows: usize,
    cols: usize,
    epsilon: f32,
    scale: Option<&[f32]>,
    bias: Option<&[f32]>,
    src: Input<'_>,
    dst: &mut [f32],
) -> Result<(), KernelError> {
    over_rows(isa, par, true, rows, cols, epsilon, [scale, bias], src, dst)
}

/// `x / sqrt(mean of squares + epsilon) * scale` along rows of `[rows][cols]`.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn rms_norm(
    isa: Isa,
    par: &dyn Parallel,
    rows: usize,
    cols: usize,
    epsilon: f32,
    scale: Option<&[f32]>,
    src: Input<'_>,
    dst: &mut [f32],
) -> Result<(), KernelError> {
    over_rows(
        isa,
        par,
        false,
        rows,
        cols,
        epsilon,
        [scale, None],
        src,
        dst,
    )
}

fn over_rows(
    isa: Isa,
    par: &dyn Parallel,
    centered: bool,
    rows: usize,
    cols: usize,
    epsilon: f32,
    factors: [Option<&[f32]>; 2],
    src: Input<'_>,
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let needed = checked_product(&[rows, cols]);
    check_len("normalisation destination", dst.len(), needed)?;
    for factor in factors.into_iter().flatten() {
        check_len("normalisation scale or bias", factor.len(), Some(cols))?;
    }
    let dst = Dst::new(dst);
    let src = src.view(needed, dst)?;
    if rows * cols == 0 {
        return Ok(());
    }
    let factors = factors.map(|f| f.map(Src::new));
    let chunks = Chunks::new(rows, TASK_ELEMENTS / cols);
    par.run(chunks.count(), &|piece, _| {
        // SAFETY: lengths were checked; tasks have disjoint rows.
        unsafe {
            norm_rows(
                isa,
                centered,
                cols,
                epsilon,
                factors,
                src,
                dst,
                chunks.range(piece),
            )
        };
    });
    Ok(())
}

simd_kernel! {
    /// # Safety
    /// The rows lie inside both buffers, the factors have `cols` floats; nobody else writes the rows.
    unsafe fn norm_rows(
        centered: bool,
        cols: usize,
        epsilon: f32,
        factors: [Option<Src>; 2],
        src: Src,
        dst: Dst,
        rows: Range<usize>,
    ) = norm_rows_generic;
}

#[inline(always)]
unsafe fn norm_rows_generic<S: Simd>(
    s: S,
    centered: bool,
    cols: usize,
    epsilon: f32,
    factors: [Option<Src>; 2],
    src: Src,
    dst: Dst,
    rows: Range<usize>,
) {
    for row in rows {
        // SAFETY: the caller vouches for rows and factors.
        unsafe {
            let (from, to) = (src.at(row * cols), dst.at(row * cols));
            let mean = if centered {
                fold::sum(s, from, cols) / cols as f32
            } else {
                0.0
            };
            let variance = fold::sum_squares(s, from, cols, mean) / cols as f32;
            let (mean, factor) = (s.splat(mean), s.splat(1.0 / (variance + epsilon).sqrt()));
            match factors.map(|f| f.map(|f| f.at(0))) {
                [Some(scale), Some(bias)] => each!(s, from, to, cols, |x, i, left| {
                    let x = s.mul(s.sub(x, mean), factor);
                    s.fma(
                        x,
                        s.load_partial(scale.add(i), left),
                        s.load_partial(bias.add(i), left),
                    )
                }),
                [Some(scale), None] => each!(s, from, to, cols, |x, i, left| {
                    s.mul(
                        s.mul(s.sub(x, mean), factor),
                        s.load_partial(scale.add(i), left),
                    )
                }),
                [None, Some(bias)] => each!(s, from, to, cols, |x, i, left| {
                    s.fma(s.sub(x, mean), factor, s.load_partial(bias.add(i), left))
                }),
                [None, None] => each!(s, from, to, cols, |x, i, _left| s
                    .mul(s.sub(x, mean), factor)),
            }
        }
    }
}

/// Group normalisation of a plain `[batch][channels][positions]` tensor: mean and variance over
/// each of `groups` runs of channels, then `scale` and `bias` per channel (absent: 1 and 0).
/// Instance normalisation is `groups == channels`.
///
/// # Errors
/// Slices shorter than the sizes say, and groups that do not divide the channels.
pub fn group_norm(
    isa: Isa,
    par: &dyn Parallel,
    shape: [usize; 3],
    groups: usize,
    epsilon: f32,
    scale: Option<&[f32]>,
    bias: Option<&[f32]>,
    src: Input<'_>,
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let [batch, channels, positions] = shape;
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(KernelError::Invalid(
            "channels are no multiple of the groups",
        ));
    }
    let needed = checked_product(&[batch, channels, positions]);
    check_len("normalisation destination", dst.len(), needed)?;
    for factor in [scale, bias].into_iter().flatten() {
        check_len("normalisation scale or bias", factor.len(), Some(channels))?;
    }
    let dst = Dst::new(dst);
    let src = src.view(needed, dst)?;
    if batch * channels * positions == 0 {
        return Ok(());
    }
    let width = channels / groups;
    let chunks = Chunks::new(batch * groups, TASK_ELEMENTS / (width * positions));
    par.run(chunks.count(), &|piece, _| {
        for group in chunks.range(piece) {
            let channel = group % groups * width;
            let of = |values: Option<&[f32]>| values.map(|v| Src::new(&v[channel..]));
            // SAFETY: lengths were checked; tasks have disjoint groups.
            unsafe {
                let at = group * width * positions;
                let (from, to) = (src.at(at), dst.at(at));
                one_group(
                    isa,
                    width,
                    positions,
                    epsilon,
                    of(scale),
                    of(bias),
                    from,
                    to,
                );
            }
        }
    });
    Ok(())
}

simd_kernel! {
    /// # Safety
    /// `width * positions` floats at both addresses, `width` factors; nobody else writes there.
    unsafe fn one_group(
        width: usize,
        positions: usize,
        epsilon: f32,
        scale: Option<Src>,
        bias: Option<Src>,
        from: *const f32,
        to: *mut f32,
    ) = one_group_generic;
}

#[inline(always)]
unsafe fn one_group_generic<S: Simd>(
    s: S,
    width: usize,
    positions: usize,
    epsilon: f32,
    scale: Option<Src>,
    bias: Option<Src>,
    from: *const f32,
    to: *mut f32,
) {
    let len = width * positions;
    // SAFETY: the caller vouches for the group and its factors.
    unsafe {
        let mean = fold::sum(s, from, len) / len as f32;
        let variance = fold::sum_squares(s, from, len, mean) / len as f32;
        let factor = 1.0 / (variance + epsilon).sqrt();
        let mean = s.splat(mean);
        for c in 0..width {
            let scale = s.splat(factor * scale.map_or(1.0, |v| *v.at(c)));
            let bias = s.splat(bias.map_or(0.0, |v| *v.at(c)));
            let (from, to) = (from.add(c * positions), to.add(c * positions));
            each!(s, from, to, positions, |x, i, _left| s.fma(
                s.sub(x, mean),
                scale,
                bias
            ));
        }
    }
}

/// `x / |x|` along the middle axis of `[outer][axis][inner]`; a zero row stays zero.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn lp_norm(
    isa: Isa,
    par: &dyn Parallel,
    norm: Norm,
    shape: [usize; 3],
    src: Input<'_>,
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let [outer, axis, inner] = shape;
    let needed = checked_product(&[outer, axis, inner]);
    check_len("normalisation destination", dst.len(), needed)?;
    let dst = Dst::new(dst);
    let src = src.view(needed, dst)?;
    if outer * axis * inner == 0 {
        return Ok(());
    }
    let columns = inner.div_ceil(LANES);
    let chunks = Chunks::new(outer * columns, TASK_ELEMENTS / (axis * LANES));
    par.run(chunks.count(), &|piece, _| {
        // SAFETY: lengths were checked; tasks have disjoint columns.
        unsafe { lp_columns(isa, norm, axis, inner, src, dst, chunks.range(piece)) };
    });
    Ok(())
}

simd_kernel! {
    /// Columns of 16 neighbouring inner elements, numbered through all outer ones.
    ///
    /// # Safety
    /// The columns lie inside both buffers; nobody else writes them.
    unsafe fn lp_columns(norm: Norm, axis: usize, inner: usize, src: Src, dst: Dst, range: Range<usize>) = lp_columns_generic;
}

#[inline(always)]
unsafe fn lp_columns_generic<S: Simd>(
    s: S,
    norm: Norm,
    axis: usize,
    inner: usize,
    src: Src,
    dst: Dst,
    range: Range<usize>,
) {
    let columns = inner.div_ceil(LANES);
    for column in range {
        let i = column % columns * LANES;
        let lanes = (inner - i).min(LANES);
        let at = column / columns * axis * inner + i;
        // SAFETY: the caller vouches for the column; the last one is partial.
        unsafe {
            let (from, to) = (src.at(at), dst.at(at));
            let mut sum = s.zero();
            for k in 0..axis {
                let x = s.load_partial(from.add(k * inner), lanes);
                sum = match norm {
                    Norm::L1 => s.add(sum, s.abs(x)),
                    Norm::L2 => s.fma(x, x, sum),
                };
            }
            let length = if norm == Norm::L2 { s.sqrt(sum) } else { sum };
            let length = s.select(s.eq(length, s.zero()), s.splat(1.0), length);
            for k in 0..axis {
                let x = s.load_partial(from.add(k * inner), lanes);
                s.store_partial(to.add(k * inner), lanes, s.div(x, length));
            }
        }
    }
}
