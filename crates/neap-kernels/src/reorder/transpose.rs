//! The 16×16 transpose that both directions of reordering are made of.
//!
//! `dst[c * dst_stride + r] = src[r * src_stride + c]` for `r, c < 16`. Plain to blocked reads rows
//! of one channel (stride H·W) and writes rows of one position (stride 16); the other direction
//! swaps the strides.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// # Safety
/// `src` must be readable at `r * src_stride + c` and `dst` writable at `c * dst_stride + r` for all
/// `r, c < 16`, without overlap, and the CPU must have AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn avx512(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
    // SAFETY: the caller vouches for every row read and written.
    unsafe {
        let mut row = [_mm512_setzero_ps(); 16];
        for (i, r) in row.iter_mut().enumerate() {
            *r = _mm512_loadu_ps(src.add(i * src_stride));
        }
        // Transpose 4x4 blocks inside each 128-bit lane, four rows at a time ...
        let mut quad = [_mm512_setzero_ps(); 16];
        for g in 0..4 {
            let ab_lo = _mm512_castps_pd(_mm512_unpacklo_ps(row[4 * g], row[4 * g + 1]));
            let ab_hi = _mm512_castps_pd(_mm512_unpackhi_ps(row[4 * g], row[4 * g + 1]));
            let cd_lo = _mm512_castps_pd(_mm512_unpacklo_ps(row[4 * g + 2], row[4 * g + 3]));
            let cd_hi = _mm512_castps_pd(_mm512_unpackhi_ps(row[4 * g + 2], row[4 * g + 3]));
            quad[4 * g] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_lo, cd_lo));
            quad[4 * g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_lo, cd_lo));
            quad[4 * g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab_hi, cd_hi));
            quad[4 * g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab_hi, cd_hi));
        }
        // ... then transpose the 4x4 matrix of lanes. quad[4g + j] lane k holds rows 4g.. of column 4k + j.
        for j in 0..4 {
            let lo01 = _mm512_shuffle_f32x4::<0x44>(quad[j], quad[4 + j]);
            let hi01 = _mm512_shuffle_f32x4::<0xee>(quad[j], quad[4 + j]);
            let lo23 = _mm512_shuffle_f32x4::<0x44>(quad[8 + j], quad[12 + j]);
            let hi23 = _mm512_shuffle_f32x4::<0xee>(quad[8 + j], quad[12 + j]);
            _mm512_storeu_ps(
                dst.add(j * dst_stride),
                _mm512_shuffle_f32x4::<0x88>(lo01, lo23),
            );
            _mm512_storeu_ps(
                dst.add((4 + j) * dst_stride),
                _mm512_shuffle_f32x4::<0xdd>(lo01, lo23),
            );
            _mm512_storeu_ps(
                dst.add((8 + j) * dst_stride),
                _mm512_shuffle_f32x4::<0x88>(hi01, hi23),
            );
            _mm512_storeu_ps(
                dst.add((12 + j) * dst_stride),
                _mm512_shuffle_f32x4::<0xdd>(hi01, hi23),
            );
        }
    }
}

/// # Safety
/// As [`avx512`], with AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
pub(super) unsafe fn avx(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
    for block_row in (0..16).step_by(8) {
        for block_col in (0..16).step_by(8) {
            // SAFETY: the 8x8 block lies inside the caller's 16x16 one.
            unsafe {
                let mut row = [_mm256_setzero_ps(); 8];
                for (i, r) in row.iter_mut().enumerate() {
                    *r = _mm256_loadu_ps(src.add((block_row + i) * src_stride + block_col));
                }
                let mut quad = [_mm256_setzero_ps(); 8];
                for g in 0..2 {
                    let ab_lo = _mm256_castps_pd(_mm256_unpacklo_ps(row[4 * g], row[4 * g + 1]));
                    let ab_hi = _mm256_castps_pd(_mm256_unpackhi_ps(row[4 * g], row[4 * g + 1]));
                    let cd_lo =
                        _mm256_castps_pd(_mm256_unpacklo_ps(row[4 * g + 2], row[4 * g + 3]));
                    let cd_hi =
                        _mm256_castps_pd(_mm256_unpackhi_ps(row[4 * g + 2], row[4 * g + 3]));
                    quad[4 * g] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_lo, cd_lo));
                    quad[4 * g + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_lo, cd_lo));
                    quad[4 * g + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab_hi, cd_hi));
                    quad[4 * g + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab_hi, cd_hi));
                }
                let out = dst.add(block_col * dst_stride + block_row);
                for j in 0..4 {
                    let low = _mm256_permute2f128_ps::<0x20>(quad[j], quad[4 + j]);
                    let high = _mm256_permute2f128_ps::<0x31>(quad[j], quad[4 + j]);
                    _mm256_storeu_ps(out.add(j * dst_stride), low);
                    _mm256_storeu_ps(out.add((4 + j) * dst_stride), high);
                }
            }
        }
    }
}

/// # Safety
/// As the others, on AArch64.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
pub(super) unsafe fn neon(src: *const f32, src_stride: usize, dst: *mut f32, dst_stride: usize) {
    use std::arch::aarch64::*;
    for block_row in (0..16).step_by(4) {
        for block_col in (0..16).step_by(4) {
            // SAFETY: the 4x4 block lies inside the caller's 16x16 one.
            unsafe {
                let from = src.add(block_row * src_stride + block_col);
                let to = dst.add(block_col * dst_stride + block_row);
                let a = vld1q_f32(from);
                let b = vld1q_f32(from.add(src_stride));
                let c = vld1q_f32(from.add(2 * src_stride));
                let d = vld1q_f32(from.add(3 * src_stride));
                let ab = vtrnq_f32(a, b);
                let cd = vtrnq_f32(c, d);
                vst1q_f32(to, vcombine_f32(vget_low_f32(ab.0), vget_low_f32(cd.0)));
                vst1q_f32(
                    to.add(dst_stride),
                    vcombine_f32(vget_low_f32(ab.1), vget_low_f32(cd.1)),
                );
                vst1q_f32(
                    to.add(2 * dst_stride),
                    vcombine_f32(vget_high_f32(ab.0), vget_high_f32(cd.0)),
                );
                vst1q_f32(
                    to.add(3 * dst_stride),
                    vcombine_f32(vget_high_f32(ab.1), vget_high_f32(cd.1)),
                );
            }
        }
    }
}

/// Any `rows` × `cols`: the edges, and machines without vectors.
///
/// # Safety
/// As the others, for `r < rows` and `c < cols`.
pub(super) unsafe fn scalar(
    src: *const f32,
    src_stride: usize,
    dst: *mut f32,
    dst_stride: usize,
    rows: usize,
    cols: usize,
) {
    for c in 0..cols {
        for r in 0..rows {
            // SAFETY: inside the caller's rows and columns.
            unsafe { *dst.add(c * dst_stride + r) = *src.add(r * src_stride + c) };
        }
    }
}
