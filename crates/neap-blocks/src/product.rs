//! Products: checks, and which kernel computes what.

use crate::activations::Activations;
use crate::floats::{self, Bf16, F16, F32};
use crate::isa::Kind;
use crate::machine::{MOST_LANES, Machine, Portable};
use crate::output::Output;
use crate::tile::{self, Group, Rows, unpacked_bytes};
use crate::weights::{
    Form, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, QUADS,
    Weights,
};
use crate::{BlockType, Isa, SPAN};

/// Vectors are aligned to this in scratch.
const ALIGNMENT: usize = 64;
/// Spans that are unpacked at a time: whole blocks, few enough for the first cache.
const CHUNK: usize = 16;
/// Rows of no more bytes together stay in the first caches with those that follow. The processor does not foresee these, as rows are
/// short and many. Of longer rows it does.
const SHORT_BYTES: usize = 24 << 10;
/// The most bytes of an unpacked span.
const SPAN_BYTES: usize = 4 * MOST_LANES * (QUADS + 4);
/// The most bytes of a block for each span.
const PACKED_SPAN_BYTES: usize = 34;
/// The most bytes of sums of a row.
const SUMS_BYTES: usize = 4 * MOST_LANES;

/// What a call is about.
pub(crate) struct Job<'a, 'y> {
    pub(crate) k: usize,
    pub(crate) weights: &'a [u8],
    pub(crate) x: Activations<'a>,
    pub(crate) y: &'a mut Output<'y>,
    scratch: &'a mut [u8],
}

/// Bytes of scratch of a [`product`] of `rows` rows of activations, whatever the number of output rows.
#[must_use]
pub fn scratch_bytes(ty: BlockType, k: usize, rows: usize) -> usize {
    if matches!(ty, BlockType::F32 | BlockType::F16 | BlockType::Bf16) {
        return 0;
    }
    let chunk = CHUNK.min(k.div_ceil(SPAN));
    let copied = MOST_LANES * PACKED_SPAN_BYTES * chunk;
    rows * SUMS_BYTES + SPAN_BYTES * CHUNK + copied + ALIGNMENT - 1
}

/// `y[r][o]` = sum over k of `x[r][k]` · `weights[o][k]`, for each column `o` of `y`.
///
/// `weights` are the blocks of those output rows, one row after the other. The results' bits are those of the
/// [definition](crate#definition), which knows no instruction sets, and they do not depend on what else a call computes.
///
/// # Panics
/// Sizes do not fit together, `k` is no multiple of 32 and of a block's elements, or `scratch` is smaller than [`scratch_bytes`].
pub fn product(
    isa: Isa,
    ty: BlockType,
    k: usize,
    weights: &[u8],
    x: &Activations<'_>,
    y: &mut Output<'_>,
    scratch: &mut [u8],
) {
    assert_eq!(k, x.k, "rows of activations");
    assert_eq!(x.rows, y.rows(), "rows of results");
    assert_eq!(
        weights.len(),
        y.columns() * ty.row_bytes(k),
        "a row of weights for each column"
    );
    assert!(scratch.len() >= scratch_bytes(ty, k, x.rows), "scratch");
    if x.rows == 0 {
        return;
    }
    let job = &mut Job {
        k,
        weights,
        x: *x,
        y,
        scratch,
    };
    match isa.0 {
        Kind::Portable => portable::of(ty, job),
        // SAFETY: an `Isa` exists only where the processor has its instructions.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { avx2::of(ty, job) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512Vnni => unsafe { avx512::of(ty, job) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => unsafe { neon::of(ty, job) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Kind::NeonDot => unsafe { neon_dot::of(ty, job) },
    }
}

/// A module with the kernels of a machine, each a function compiled for its instructions.
macro_rules! kernels {
    ($name:ident, $machine:expr $(, $features:literal)?) => {
        mod $name {
            use super::*;

            $(#[target_feature(enable = $features)])?
            fn blocks<T: Weights>(job: &mut Job<'_, '_>) {
                drive::<_, T>($machine, job, few_rows::<T::Form>);
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn few_rows<F: Form>(group: &Group) {
                // SAFETY: the caller's promise.
                unsafe { tile::few_rows::<_, F>($machine, group) };
            }

            $(#[target_feature(enable = $features)])?
            fn floats<T: floats::Float>(job: &mut Job<'_, '_>) {
                floats::drive::<_, T>($machine, job);
            }

            $(#[target_feature(enable = $features)])?
            pub(super) fn of(ty: BlockType, job: &mut Job<'_, '_>) {
                match ty {
                    BlockType::F32 => floats::<F32>(job),
                    BlockType::F16 => floats::<F16>(job),
                    BlockType::Bf16 => floats::<Bf16>(job),
                    BlockType::Q8_0 => blocks::<Q8_0>(job),
                    BlockType::Q4_0 => blocks::<Q4_0>(job),
                    BlockType::Q4_1 => blocks::<Q4_1>(job),
                    BlockType::Q5_0 => blocks::<Q5_0>(job),
                    BlockType::Q5_1 => blocks::<Q5_1>(job),
                    BlockType::Q2K => blocks::<Q2K>(job),
                    BlockType::Q3K => blocks::<Q3K>(job),
                    BlockType::Q4K => blocks::<Q4K>(job),
                    BlockType::Q5K => blocks::<Q5K>(job),
                    BlockType::Q6K => blocks::<Q6K>(job),
                    BlockType::Iq4Nl => blocks::<Iq4Nl>(job),
                    BlockType::Iq4Xs => blocks::<Iq4Xs>(job),
                    BlockType::Mxfp4 => blocks::<Mxfp4>(job),
                }
            }
        }
    };
}

kernels!(portable, Portable);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, crate::machine::Avx2::new(), "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
kernels!(
    avx512,
    crate::machine::Avx512Vnni::new(),
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
);
#[cfg(target_arch = "aarch64")]
kernels!(neon, crate::machine::Neon::new(), "neon");
#[cfg(target_arch = "aarch64")]
kernels!(neon_dot, crate::machine::NeonDot::new(), "neon,dotprod");

/// As many output rows at a time as there are lanes. The last ones go over some of those before once more; of few rows
/// a copy is made, so that all lanes have something to read.
#[inline(always)]
fn drive<M: Machine, T: Weights>(m: M, job: &mut Job<'_, '_>, few_rows: unsafe fn(&Group)) {
    let (rows, columns, spans) = (job.x.rows, job.y.columns(), job.k / SPAN);
    let row_bytes = spans / T::SPANS * T::BLOCK_BYTES;
    let scratch = &mut *job.scratch;
    let aligned = scratch.as_ptr().align_offset(ALIGNMENT);
    let (sums, scratch) = scratch[aligned..].split_at_mut(rows * SUMS_BYTES);
    let (unpacked, copied) = scratch.split_at_mut(unpacked_bytes::<M, T::Form>() * CHUNK);
    let sums = sums.as_mut_ptr().cast::<f32>();
    let filled = columns.min(M::LANES);
    let is_whole = rows == 1 && filled == M::LANES;
    let at_once = if is_whole { spans } else { CHUNK };
    let is_short = is_whole && M::LANES * row_bytes <= SHORT_BYTES;
    for first in (0..columns).step_by(M::LANES) {
        let first = first.min(columns - filled);
        let weights = &job.weights[first * row_bytes..][..filled * row_bytes];
        // SAFETY: the floats of all rows are in this part of scratch, which is aligned.
        unsafe { sums.write_bytes(0, rows * M::LANES) };
        for chunk in (0..spans).step_by(at_once) {
            let bytes = |spans| spans / T::SPANS * T::BLOCK_BYTES;
            let at = weights[bytes(chunk)..].as_ptr();
            let mut tile = Rows {
                at,
                stride: row_bytes,
                spans: at_once.min(spans - chunk),
                next: is_short.then(|| at.wrapping_add(M::LANES * row_bytes)),
            };
            if filled < M::LANES {
                tile = copy::<T>(tile, filled, copied);
            }
            let x = job.x.spans[chunk..].as_ptr();
            // SAFETY: the rows of the tile have been sliced or copied; those of activations have as many spans, and
            // scratch has place for sums and spans.
            unsafe {
                if rows == 1 {
                    tile::one_row::<M, T>(m, tile, x, sums);
                    continue;
                }
                tile::unpack::<M, T>(m, tile, unpacked.as_mut_ptr());
                let groups = rows.div_ceil(M::ROWS);
                for group in 0..groups {
                    let [begin, end] = [group, group + 1].map(|group| rows * group / groups);
                    few_rows(&Group {
                        from: unpacked.as_ptr(),
                        spans: tile.spans,
                        x: x.add(begin * spans),
                        x_stride: spans,
                        rows: end - begin,
                        sums: sums.add(begin * M::LANES),
                    });
                }
            }
        }
        for row in 0..rows {
            // SAFETY: the sums of a row.
            let sums = unsafe { std::slice::from_raw_parts(sums.add(row * M::LANES), filled) };
            job.y.put(row, first, sums);
        }
    }
}

/// Some rows' blocks, one row after the other.
fn copy<T: Weights>(tile: Rows, rows: usize, to: &mut [u8]) -> Rows {
    let stride = tile.spans / T::SPANS * T::BLOCK_BYTES;
    for (row, to) in to.chunks_exact_mut(stride).take(rows).enumerate() {
        // SAFETY: the tile has so many bytes of each row.
        to.copy_from_slice(unsafe {
            std::slice::from_raw_parts(tile.at.add(row * tile.stride), stride)
        });
    }
    let at = to[..MOST_LANES * stride].as_ptr();
    Rows {
        at,
        stride,
        next: None,
        ..tile
    }
}
