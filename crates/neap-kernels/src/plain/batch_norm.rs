//! Normalisation by a batch's own statistics, forward and backward: a channel is one task's.
//!
//! Sums are of pieces of a run, in f32 and by lanes, which are added in f64. A variance is of differences from the mean.

use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::share::{Dst, Src};
use crate::simd::{Isa, LANES, Simd, simd_kernel};

/// Vectors that are summed at once, and floats of a piece.
const VECTORS: usize = 4;
const PIECE: usize = 1024;

/// `[images][channels][positions]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    pub images: usize,
    pub channels: usize,
    pub positions: usize,
}

impl Channels {
    fn elements(&self) -> Option<usize> {
        checked_product(&[self.images, self.channels, self.positions])
    }

    fn count(&self) -> f64 {
        (self.images * self.positions) as f64
    }

    fn runs(&self) -> Runs {
        Runs {
            count: self.images,
            stride: self.channels * self.positions,
            length: self.positions,
        }
    }
}

/// Where a channel's elements lie, from its first on.
#[derive(Clone, Copy)]
struct Runs {
    count: usize,
    stride: usize,
    length: usize,
}

/// What replaces statistics of each channel: mean and variance.
pub struct Statistics<'a> {
    pub mean: Option<&'a mut [f32]>,
    pub variance: Option<&'a mut [f32]>,
}

/// `y = (x - mean) / sqrt(variance + epsilon) * scale + bias`. Without `x` it is what `y` holds.
///
/// # Errors
/// Buffers that are too short; no elements.
pub fn batch_norm(
    isa: Isa,
    parallel: &dyn Parallel,
    of: &Channels,
    epsilon: f32,
    x: Option<&[f32]>,
    [scale, bias]: [&[f32]; 2],
    y: &mut [f32],
    statistics: Statistics<'_>,
) -> Result<(), KernelError> {
    let elements = of.elements();
    check_len("y", y.len(), elements)?;
    check_len("x", x.map_or(y.len(), <[f32]>::len), elements)?;
    check_len("scale", scale.len(), Some(of.channels))?;
    check_len("bias", bias.len(), Some(of.channels))?;
    let kept = [statistics.mean, statistics.variance];
    for kept in kept.iter().flatten() {
        check_len("statistics", kept.len(), Some(of.channels))?;
    }
    if elements == Some(0) {
        return Err(KernelError::Invalid("no elements to take statistics of"));
    }
    let y = Dst::new(y);
    let x = x.map_or(y.as_src(), Src::new);
    let kept = kept.map(|kept| kept.map(Dst::new));
    parallel.run(of.channels, &|channel, _| {
        // SAFETY: lengths were checked; a channel is one task's, and an element is written after it was read for the last time.
        unsafe {
            let (x, y) = (x.at(channel * of.positions), y.at(channel * of.positions));
            let [sum, _] = sums::<SUM>(isa, x, x, of.runs(), 0.0);
            let mean = sum / of.count();
            // Differences are from a number of 32 bits; what it is off is known.
            let centre = mean as f32;
            let off = mean - f64::from(centre);
            let [squares, _] = sums::<SQUARES>(isa, x, x, of.runs(), centre);
            let variance = (squares / of.count() - off * off).max(0.0);
            let variance = if squares.is_nan() { squares } else { variance };
            let factor = f64::from(scale[channel]) / (variance + f64::from(epsilon)).sqrt();
            let shift = f64::from(bias[channel]) - off * factor;
            let (factor, shift) = (factor as f32, shift as f32);
            combine(isa, [x, x], y, of.runs(), centre, [0.0, factor, shift]);
            for (kept, value) in kept.iter().zip([mean, variance]) {
                kept.inspect(|kept| *kept.at(channel) = value as f32);
            }
        }
    });
    Ok(())
}

/// Derivatives of [`batch_norm`]: by input, scale and bias, of those that are wanted.
pub struct Derivatives<'a> {
    pub dx: Option<&'a mut [f32]>,
    pub dscale: Option<&'a mut [f32]>,
    pub dbias: Option<&'a mut [f32]>,
}

/// With `n = (x - mean) / deviation`: `dscale = Σ dy n`, `dbias = Σ dy`,
/// `dx = scale / deviation (dy - mean(dy) - n mean(dy n))`. What `x` or `dy` lacks is what `dx` holds.
///
/// # Errors
/// Buffers that are too short.
pub fn batch_norm_backward(
    isa: Isa,
    parallel: &dyn Parallel,
    of: &Channels,
    epsilon: f32,
    [x, dy]: [Option<&[f32]>; 2],
    [scale, mean, variance]: [&[f32]; 3],
    derivatives: Derivatives<'_>,
) -> Result<(), KernelError> {
    let elements = of.elements();
    let Derivatives { dx, dscale, dbias } = derivatives;
    let in_place = dx.as_ref().map(|dx| dx.len());
    for given in [x, dy] {
        let Some(len) = given.map(<[f32]>::len).or(in_place) else {
            return Err(KernelError::Invalid("an operand is missing"));
        };
        check_len("x or dy", len, elements)?;
    }
    check_len("dx", in_place.unwrap_or(usize::MAX), elements)?;
    for values in [scale, mean, variance] {
        check_len("scale or statistics", values.len(), Some(of.channels))?;
    }
    for values in [&dscale, &dbias].into_iter().flatten() {
        check_len("dscale or dbias", values.len(), Some(of.channels))?;
    }
    let [dx, dscale, dbias] = [dx, dscale, dbias].map(|to| to.map(Dst::new));
    let operand = |given: Option<&[f32]>| given.map(Src::new).or(dx.map(Dst::as_src));
    let (Some(x), Some(dy)) = (operand(x), operand(dy)) else {
        return Ok(());
    };
    parallel.run(of.channels, &|channel, _| {
        // SAFETY: as in `batch_norm`.
        unsafe {
            let first = channel * of.positions;
            let (x, dy) = (x.at(first), dy.at(first));
            let centre = mean[channel];
            let inverse = 1.0 / (f64::from(variance[channel]) + f64::from(epsilon)).sqrt();
            let [sum, along] = sums::<PRODUCTS>(isa, x, dy, of.runs(), centre);
            let along = along * inverse;
            dscale.inspect(|to| *to.at(channel) = along as f32);
            dbias.inspect(|to| *to.at(channel) = sum as f32);
            if let Some(dx) = dx {
                let factor = f64::from(scale[channel]) * inverse;
                let slope = -factor * inverse * along / of.count();
                let shift = -factor * sum / of.count();
                let weights = [factor as f32, slope as f32, shift as f32];
                combine(isa, [dy, x], dx.at(first), of.runs(), centre, weights);
            }
        }
    });
    Ok(())
}

/// What is summed of each element: `[x, 0]`, `[(x - centre)², 0]`, `[dy, dy (x - centre)]`.
const SUM: u8 = 0;
const SQUARES: u8 = 1;
const PRODUCTS: u8 = 2;

unsafe fn sums<const OF: u8>(
    isa: Isa,
    x: *const f32,
    dy: *const f32,
    runs: Runs,
    centre: f32,
) -> [f64; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        match OF {
            SUM => sum(isa, x, dy, runs, centre),
            SQUARES => squares(isa, x, dy, runs, centre),
            _ => products(isa, x, dy, runs, centre),
        }
    }
}

simd_kernel! {
    /// # Safety
    /// Both are readable for the runs.
    unsafe fn sum(x: *const f32, dy: *const f32, runs: Runs, centre: f32) -> [f64; 2] = sums_of_x;
}

simd_kernel! {
    /// # Safety
    /// As [`sum`].
    unsafe fn squares(x: *const f32, dy: *const f32, runs: Runs, centre: f32) -> [f64; 2] = sums_of_squares;
}

simd_kernel! {
    /// # Safety
    /// As [`sum`].
    unsafe fn products(x: *const f32, dy: *const f32, runs: Runs, centre: f32) -> [f64; 2] = sums_of_products;
}

#[inline(always)]
unsafe fn sums_of_x<S: Simd>(
    s: S,
    x: *const f32,
    dy: *const f32,
    runs: Runs,
    centre: f32,
) -> [f64; 2] {
    // SAFETY: the caller's promise.
    unsafe { sums_generic::<S, SUM>(s, x, dy, runs, centre) }
}

#[inline(always)]
unsafe fn sums_of_squares<S: Simd>(
    s: S,
    x: *const f32,
    dy: *const f32,
    runs: Runs,
    centre: f32,
) -> [f64; 2] {
    // SAFETY: the caller's promise.
    unsafe { sums_generic::<S, SQUARES>(s, x, dy, runs, centre) }
}

#[inline(always)]
unsafe fn sums_of_products<S: Simd>(
    s: S,
    x: *const f32,
    dy: *const f32,
    runs: Runs,
    centre: f32,
) -> [f64; 2] {
    // SAFETY: the caller's promise.
    unsafe { sums_generic::<S, PRODUCTS>(s, x, dy, runs, centre) }
}

#[inline(always)]
unsafe fn sums_generic<S: Simd, const OF: u8>(
    s: S,
    x: *const f32,
    dy: *const f32,
    runs: Runs,
    centre: f32,
) -> [f64; 2] {
    let mut all = [0.0; 2];
    for run in 0..runs.count {
        let mut at = 0;
        while at < runs.length {
            let length = PIECE.min(runs.length - at);
            let first = run * runs.stride + at;
            // SAFETY: the caller's promise.
            let of_piece =
                unsafe { piece::<S, OF>(s, x.add(first), dy.add(first), length, centre) };
            all[0] += of_piece[0];
            all[1] += of_piece[1];
            at += length;
        }
    }
    all
}

#[inline(always)]
unsafe fn piece<S: Simd, const OF: u8>(
    s: S,
    x: *const f32,
    dy: *const f32,
    length: usize,
    centre: f32,
) -> [f64; 2] {
    let from = s.splat(centre);
    let (mut sums, mut along) = ([s.zero(); VECTORS], [s.zero(); VECTORS]);
    let mut at = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while at + VECTORS * LANES <= length {
            for i in 0..VECTORS {
                let place = at + i * LANES;
                term::<S, OF>(
                    s,
                    x.add(place),
                    dy.add(place),
                    from,
                    &mut sums[i],
                    &mut along[i],
                );
            }
            at += VECTORS * LANES;
        }
        while at + LANES <= length {
            term::<S, OF>(s, x.add(at), dy.add(at), from, &mut sums[0], &mut along[0]);
            at += LANES;
        }
        let (mut sum, mut other) = (0.0, 0.0);
        while at < length {
            let v = *x.add(at);
            match OF {
                SUM => sum += f64::from(v),
                SQUARES => sum += f64::from((v - centre) * (v - centre)),
                _ => {
                    sum += f64::from(*dy.add(at));
                    other += f64::from(*dy.add(at) * (v - centre));
                }
            }
            at += 1;
        }
        sum += all(s, sums);
        if OF == PRODUCTS {
            other += all(s, along);
        }
        [sum, other]
    }
}

#[inline(always)]
fn all<S: Simd>(s: S, v: [S::V; VECTORS]) -> f64 {
    f64::from(s.reduce_sum(s.add(s.add(v[0], v[1]), s.add(v[2], v[3]))))
}

#[inline(always)]
unsafe fn term<S: Simd, const OF: u8>(
    s: S,
    x: *const f32,
    dy: *const f32,
    centre: S::V,
    sum: &mut S::V,
    along: &mut S::V,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let v = s.load(x);
        match OF {
            SUM => *sum = s.add(*sum, v),
            SQUARES => {
                let v = s.sub(v, centre);
                *sum = s.fma(v, v, *sum);
            }
            _ => {
                let dy = s.load(dy);
                *sum = s.add(*sum, dy);
                *along = s.fma(dy, s.sub(v, centre), *along);
            }
        }
    }
}

simd_kernel! {
    /// `to = a[0] * from[0] + (a[1] * (from[1] - centre) + a[2])`, without the first product where both are one.
    ///
    /// # Safety
    /// All are accessible for the runs; `to` may be one of the others.
    unsafe fn combine(
        from: [*const f32; 2],
        to: *mut f32,
        runs: Runs,
        centre: f32,
        a: [f32; 3],
    ) = combine_generic;
}

#[inline(always)]
unsafe fn combine_generic<S: Simd>(
    s: S,
    from: [*const f32; 2],
    to: *mut f32,
    runs: Runs,
    centre: f32,
    a: [f32; 3],
) {
    let is_one = std::ptr::eq(from[0], from[1]);
    let (c, [a, b, shift]) = (s.splat(centre), a.map(|v| s.splat(v)));
    for run in 0..runs.count {
        let (x, dy) = (
            from[1].wrapping_add(run * runs.stride),
            from[0].wrapping_add(run * runs.stride),
        );
        let to = to.wrapping_add(run * runs.stride);
        let mut at = 0;
        // SAFETY: the caller's promise.
        unsafe {
            while at + LANES <= runs.length {
                let mut v = s.fma(b, s.sub(s.load(x.add(at)), c), shift);
                if !is_one {
                    v = s.fma(a, s.load(dy.add(at)), v);
                }
                s.store(to.add(at), v);
                at += LANES;
            }
            let rest = runs.length - at;
            if rest > 0 {
                let mut v = s.fma(b, s.sub(s.load_partial(x.add(at), rest), c), shift);
                if !is_one {
                    v = s.fma(a, s.load_partial(dy.add(at), rest), v);
                }
                s.store_partial(to.add(at), rest, v);
            }
        }
    }
}
