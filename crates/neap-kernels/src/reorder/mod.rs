//! Between layouts: plain `[N][C][H·W]` and channel-blocked `[N][C/16][H·W][16]`; and transposes.
//!
//! All sizes are in elements; `positions` is H·W (or whatever follows the channels). Blocked
//! destinations get zeros in the pad lanes of their last block. Sources and destinations must not
//! overlap. Every function refuses slices shorter than its sizes say.

mod transpose;

use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::share::{Chunks, Dst, Src};
use crate::simd::{Isa, Kind, LANES};

/// About how many elements one task moves.
const TASK_ELEMENTS: usize = 8 * 1024;

/// `[batch][channels][positions]` to `[batch][ceil(channels/16)][positions][16]`.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn plain_to_blocked(
    isa: Isa,
    par: &dyn Parallel,
    batch: usize,
    channels: usize,
    positions: usize,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let blocks = channels.div_ceil(LANES);
    check_len(
        "plain source",
        src.len(),
        checked_product(&[batch, channels, positions]),
    )?;
    check_len(
        "blocked destination",
        dst.len(),
        checked_product(&[batch, blocks, positions, LANES]),
    )?;
    if batch * channels * positions == 0 {
        return Ok(());
    }
    let (src, dst) = (Src::new(src), Dst::new(dst));
    let pieces = Chunks::new(positions.div_ceil(LANES), TASK_ELEMENTS / (LANES * LANES));
    par.run(batch * blocks * pieces.count(), &|task, _| {
        let (plane, piece) = (task / pieces.count(), task % pieces.count());
        let (image, block) = (plane / blocks, plane % blocks);
        let width = (channels - block * LANES).min(LANES);
        for tile in pieces.range(piece) {
            let p = tile * LANES;
            let count = (positions - p).min(LANES);
            // SAFETY: source rows `block*16..+width` at positions `p..p+count` and the matching
            // vectors of this plane are inside the lengths checked above; planes and pieces are disjoint.
            unsafe {
                let from = src.at((image * channels + block * LANES) * positions + p);
                let to = dst.at((plane * positions + p) * LANES);
                if width < LANES {
                    for c in 0..count {
                        for r in width..LANES {
                            *to.add(c * LANES + r) = 0.0;
                        }
                    }
                }
                transpose_tile(isa, from, positions, to, LANES, width, count);
            }
        }
    });
    Ok(())
}

/// `[batch][ceil(channels/16)][positions][16]` to `[batch][channels][positions]`.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn blocked_to_plain(
    isa: Isa,
    par: &dyn Parallel,
    batch: usize,
    channels: usize,
    positions: usize,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let blocks = channels.div_ceil(LANES);
    check_len(
        "blocked source",
        src.len(),
        checked_product(&[batch, blocks, positions, LANES]),
    )?;
    check_len(
        "plain destination",
        dst.len(),
        checked_product(&[batch, channels, positions]),
    )?;
    if batch * channels * positions == 0 {
        return Ok(());
    }
    let (src, dst) = (Src::new(src), Dst::new(dst));
    let pieces = Chunks::new(positions.div_ceil(LANES), TASK_ELEMENTS / (LANES * LANES));
    par.run(batch * blocks * pieces.count(), &|task, _| {
        let (plane, piece) = (task / pieces.count(), task % pieces.count());
        let (image, block) = (plane / blocks, plane % blocks);
        let width = (channels - block * LANES).min(LANES);
        for tile in pieces.range(piece) {
            let p = tile * LANES;
            let count = (positions - p).min(LANES);
            // SAFETY: as in `plain_to_blocked`, with the roles exchanged.
            unsafe {
                let from = src.at((plane * positions + p) * LANES);
                let to = dst.at((image * channels + block * LANES) * positions + p);
                transpose_tile(isa, from, LANES, to, positions, count, width);
            }
        }
    });
    Ok(())
}

/// `[batch][rows][cols]` to `[batch][cols][rows]`.
///
/// # Errors
/// Slices shorter than the sizes say.
pub fn transpose(
    isa: Isa,
    par: &dyn Parallel,
    batch: usize,
    rows: usize,
    cols: usize,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    check_len(
        "transpose source",
        src.len(),
        checked_product(&[batch, rows, cols]),
    )?;
    check_len(
        "transpose destination",
        dst.len(),
        checked_product(&[batch, rows, cols]),
    )?;
    let size = rows * cols;
    if batch * size == 0 {
        return Ok(());
    }
    let (src, dst) = (Src::new(src), Dst::new(dst));
    let (row_tiles, col_tiles) = (rows.div_ceil(LANES), cols.div_ceil(LANES));
    let pieces = Chunks::new(
        batch * col_tiles,
        TASK_ELEMENTS / (row_tiles * LANES * LANES),
    );
    par.run(pieces.count(), &|piece, _| {
        for tile in pieces.range(piece) {
            let (matrix, c) = (tile / col_tiles, tile % col_tiles * LANES);
            let width = (cols - c).min(LANES);
            for r in (0..rows).step_by(LANES) {
                // SAFETY: rows `r..` and columns `c..` cut off at the matrix's edges; tiles are disjoint.
                unsafe {
                    let from = src.at(matrix * size + r * cols + c);
                    let to = dst.at(matrix * size + c * rows + r);
                    transpose_tile(isa, from, cols, to, rows, (rows - r).min(LANES), width);
                }
            }
        }
    });
    Ok(())
}

/// Transposes a tile of `rows` × `cols`, both at most 16.
///
/// # Safety
/// `src` readable at `r * src_stride + c`, `dst` writable at `c * dst_stride + r`, for all `r < rows`
/// and `c < cols`.
#[inline]
pub(crate) unsafe fn transpose_tile(
    isa: Isa,
    src: *const f32,
    src_stride: usize,
    dst: *mut f32,
    dst_stride: usize,
    rows: usize,
    cols: usize,
) {
    // SAFETY: full tiles are 16x16 as the vector versions require, edges go element by element.
    unsafe {
        if rows == LANES && cols == LANES {
            match isa.kind() {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => return transpose::avx512(src, src_stride, dst, dst_stride),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2Fma => return transpose::avx(src, src_stride, dst, dst_stride),
                #[cfg(target_arch = "aarch64")]
                Kind::Neon => return transpose::neon(src, src_stride, dst, dst_stride),
                _ => {}
            }
        }
        transpose::scalar(src, src_stride, dst, dst_stride, rows, cols);
    }
}
