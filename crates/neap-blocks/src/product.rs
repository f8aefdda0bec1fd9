//! Products: checks, and which kernel computes what.

use crate::activations::{Activations, Span};
use crate::floats::{self, Bf16, F16, F32};
use crate::isa::Kind;
use crate::machine::{MOST_LANES, Machine, Portable};
use crate::output::Output;
use crate::tile::{self, Rows};
use crate::weights::{
    Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, QUADS, Weights,
};
use crate::{BlockType, Isa, SPAN};
use std::ops::Range;

/// Vectors are aligned to this in scratch.
const ALIGNMENT: usize = 64;
/// The fewest rows of activations of any machine that need unpacked blocks.
const FEW: usize = 2;
/// The most floats of any type for each span.
const MOST_FLOATS: usize = 4;

/// What a call is about.
pub(crate) struct Job<'a, 'y> {
    pub(crate) k: usize,
    pub(crate) weights: &'a [u8],
    pub(crate) x: Activations<'a>,
    pub(crate) y: &'a mut Output<'y>,
    scratch: &'a mut [u8],
}

/// Bytes of scratch of a [`product`], whatever the number of output rows.
///
/// # Panics
/// `k` is no multiple of a block's elements.
#[must_use]
pub fn scratch_bytes(ty: BlockType, k: usize, rows: usize) -> usize {
    if matches!(ty, BlockType::F32 | BlockType::F16 | BlockType::Bf16) {
        return 0;
    }
    let copied = MOST_LANES * ty.row_bytes(k);
    let unpacked = match rows > FEW {
        true => MOST_LANES * 4 * (QUADS + MOST_FLOATS) * (k / SPAN),
        false => 0,
    };
    copied + unpacked + ALIGNMENT - 1
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
                drive::<_, T>($machine, job);
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

/// As many output rows at a time as there are lanes. The last ones go over some of those before once more, or a copy of
/// few rows is made first, so that all lanes have something to read.
#[inline(always)]
fn drive<M: Machine, T: Weights>(m: M, job: &mut Job<'_, '_>) {
    let (rows, columns, spans) = (job.x.rows, job.y.columns(), job.k / SPAN);
    let stride = spans / T::SPANS * T::BLOCK_BYTES;
    let scratch = std::mem::take(&mut job.scratch);
    let aligned = scratch.as_ptr().align_offset(ALIGNMENT);
    let (unpacked, copied) = scratch[aligned..].split_at_mut(match rows > M::ROWS {
        true => tile::unpacked_bytes::<M, T>() * spans,
        false => 0,
    });
    let mut blocks = job.weights;
    if columns < M::LANES {
        copied[..blocks.len()].copy_from_slice(blocks);
        blocks = &copied[..M::LANES * stride];
    }
    for first in (0..columns).step_by(M::LANES) {
        let first = first.min(columns.saturating_sub(M::LANES));
        let blocks = &blocks[first * stride..][..M::LANES * stride];
        let tile = Rows {
            at: blocks.as_ptr(),
            stride,
            spans,
        };
        // SAFETY: the rows have been sliced; scratch has place for their spans and is aligned.
        unsafe {
            if rows <= M::ROWS {
                some::<M, T>(m, job, tile, None, 0..rows, first);
                continue;
            }
            tile::unpack::<M, T>(m, tile, unpacked.as_mut_ptr());
            let groups = rows.div_ceil(M::ROWS);
            for group in 0..groups {
                let part = rows * group / groups..rows * (group + 1) / groups;
                some::<M, T>(m, job, tile, Some(unpacked.as_ptr()), part, first);
            }
        }
    }
}

/// The rows `rows` of activations, [`Machine::ROWS`] at most, with the lanes that begin at `column`.
///
/// # Safety
/// The tile may be read, as may what was unpacked of it, if it was.
#[inline(always)]
unsafe fn some<M: Machine, T: Weights>(
    m: M,
    job: &mut Job<'_, '_>,
    tile: Rows,
    unpacked: Option<*const u8>,
    rows: Range<usize>,
    column: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match rows.len() {
            0 => {}
            1 => few::<M, T, 1>(m, job, tile, unpacked, rows, column),
            2 => few::<M, T, 2>(m, job, tile, unpacked, rows, column),
            3 if M::ROWS >= 3 => few::<M, T, 3>(m, job, tile, unpacked, rows, column),
            4 if M::ROWS >= 4 => few::<M, T, 4>(m, job, tile, unpacked, rows, column),
            5 | 6 if M::ROWS >= 6 => few::<M, T, 6>(m, job, tile, unpacked, rows, column),
            _ if M::ROWS >= 8 => few::<M, T, 8>(m, job, tile, unpacked, rows, column),
            _ => unreachable!("no more rows than a machine takes"),
        }
    }
}

/// As [`some`], in registers for `R` rows; the last one stands for those that lack.
///
/// # Safety
/// As [`some`].
#[inline(always)]
unsafe fn few<M: Machine, T: Weights, const R: usize>(
    m: M,
    job: &mut Job<'_, '_>,
    tile: Rows,
    unpacked: Option<*const u8>,
    rows: Range<usize>,
    column: usize,
) {
    let mut x = [std::ptr::null::<Span>(); R];
    for (r, x) in x.iter_mut().enumerate() {
        *x = job.x.row((rows.start + r).min(rows.end - 1)).as_ptr();
    }
    // SAFETY: the caller's promise; rows of activations have as many spans as those of weights.
    let sums = unsafe {
        match unpacked {
            None => tile::from_blocks::<M, T, R>(m, tile, x),
            Some(from) => tile::from_scratch::<M, T, R>(m, from, tile.spans, x),
        }
    };
    let columns = job.y.columns().min(M::LANES);
    for (row, sums) in rows.zip(sums) {
        let mut lanes = [0.0; MOST_LANES];
        // SAFETY: no machine has more lanes.
        unsafe { m.store(lanes.as_mut_ptr(), sums) };
        job.y.put(row, column, &lanes[..columns]);
    }
}
