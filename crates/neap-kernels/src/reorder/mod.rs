//! Between layouts: plain `[N][C][H·W]`, channel-blocked `[N][C/16][H·W][16]` and rows `[N][H·W][C]`.
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

/// `[batch][ceil(channels/16)][positions][16]` to `[batch][positions][channels]`.
pub fn blocked_to_rows(
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
        "row destination",
        dst.len(),
        checked_product(&[batch, channels, positions]),
    )?;
    let (src, dst) = (Src::new(src), Dst::new(dst));
    over_vectors(par, batch, positions, channels, |image, block, range| {
        let width = (channels - block * LANES).min(LANES);
        for p in range {
            // SAFETY: vectors of one plane and parts of this image's rows, inside the lengths checked
            // above; tasks have their own positions.
            unsafe {
                let from = src.at(((image * blocks + block) * positions + p) * LANES);
                let to = dst.at((image * positions + p) * channels + block * LANES);
                copy_lanes(from, to, width);
            }
        }
    });
    Ok(())
}

/// `[batch][positions][channels]` to `[batch][ceil(channels/16)][positions][16]`.
pub fn rows_to_blocked(
    par: &dyn Parallel,
    batch: usize,
    channels: usize,
    positions: usize,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let blocks = channels.div_ceil(LANES);
    check_len(
        "row source",
        src.len(),
        checked_product(&[batch, channels, positions]),
    )?;
    check_len(
        "blocked destination",
        dst.len(),
        checked_product(&[batch, blocks, positions, LANES]),
    )?;
    let (src, dst) = (Src::new(src), Dst::new(dst));
    over_vectors(par, batch, positions, channels, |image, block, range| {
        let width = (channels - block * LANES).min(LANES);
        for p in range {
            // SAFETY: as in `blocked_to_rows`, with the roles exchanged; the whole vector is written.
            unsafe {
                let from = src.at((image * positions + p) * channels + block * LANES);
                let to = dst.at(((image * blocks + block) * positions + p) * LANES);
                copy_lanes(from, to, width);
                for lane in width..LANES {
                    *to.add(lane) = 0.0;
                }
            }
        }
    });
    Ok(())
}

/// `[batch][rows][cols]` to `[batch][cols][rows]`.
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

/// A range of channels between two blocked tensors with the same batch and positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelCopy {
    pub batch: usize,
    pub positions: usize,
    /// Channels to copy.
    pub channels: usize,
    pub src_channels: usize,
    pub src_start: usize,
    pub dst_channels: usize,
    pub dst_start: usize,
}

/// Copies `channels` channels from `src_start` to `dst_start`. Other channels of the destination
/// keep their values; pad lanes are neither read nor written unless both starts are multiples of
/// 16 (then whole vectors move). Fast in that case, lane by lane otherwise.
pub fn copy_channels(
    par: &dyn Parallel,
    copy: &ChannelCopy,
    src: &[f32],
    dst: &mut [f32],
) -> Result<(), KernelError> {
    let ChannelCopy {
        batch,
        positions,
        channels,
        src_channels,
        src_start,
        dst_channels,
        dst_start,
    } = *copy;
    let (src_blocks, dst_blocks) = (src_channels.div_ceil(LANES), dst_channels.div_ceil(LANES));
    if src_start
        .checked_add(channels)
        .is_none_or(|end| end > src_channels)
    {
        return Err(KernelError::Invalid("channel range beyond the source"));
    }
    if dst_start
        .checked_add(channels)
        .is_none_or(|end| end > dst_channels)
    {
        return Err(KernelError::Invalid("channel range beyond the destination"));
    }
    check_len(
        "blocked source",
        src.len(),
        checked_product(&[batch, src_blocks, positions, LANES]),
    )?;
    check_len(
        "blocked destination",
        dst.len(),
        checked_product(&[batch, dst_blocks, positions, LANES]),
    )?;
    if batch * channels * positions == 0 {
        return Ok(());
    }
    let (src, dst) = (Src::new(src), Dst::new(dst));
    let (first, last) = (dst_start / LANES, (dst_start + channels).div_ceil(LANES));
    let aligned = src_start.is_multiple_of(LANES) && dst_start.is_multiple_of(LANES);
    let pieces = Chunks::new(positions, TASK_ELEMENTS / LANES);
    let planes = last - first;
    par.run(batch * planes * pieces.count(), &|task, _| {
        let (plane, range) = (task / pieces.count(), pieces.range(task % pieces.count()));
        let (image, block) = (plane / planes, first + plane % planes);
        let dst_plane = (image * dst_blocks + block) * positions;
        // The channels of the copy that fall into this destination block.
        let low = (block * LANES).max(dst_start) - dst_start;
        let high = ((block + 1) * LANES).min(dst_start + channels) - dst_start;
        if aligned && (high - low == LANES || dst_start + high == dst_channels) {
            let src_plane = (image * src_blocks + (src_start + low) / LANES) * positions;
            // SAFETY: whole vectors of one plane on both sides, inside the lengths checked above.
            unsafe {
                let from = src.at((src_plane + range.start) * LANES);
                let to = dst.at((dst_plane + range.start) * LANES);
                std::ptr::copy_nonoverlapping(from, to, range.len() * LANES);
            }
            return;
        }
        for p in range {
            for channel in low..high {
                let (s, d) = (src_start + channel, dst_start + channel);
                let s_at = ((image * src_blocks + s / LANES) * positions + p) * LANES + s % LANES;
                let d_at = (dst_plane + p) * LANES + d % LANES;
                // SAFETY: both channels are inside their tensors; tasks write disjoint blocks and positions.
                unsafe { *dst.at(d_at) = *src.at(s_at) };
            }
        }
    });
    Ok(())
}

/// Calls `body` for every image, channel block and short range of positions: blocks in turn for
/// one range after another, so that both sides of a copy stay in the nearest cache.
fn over_vectors(
    par: &dyn Parallel,
    batch: usize,
    positions: usize,
    channels: usize,
    body: impl Fn(usize, usize, std::ops::Range<usize>) + Sync,
) {
    if batch * positions * channels == 0 {
        return;
    }
    const RANGE: usize = 8;
    let ranges = positions.div_ceil(RANGE);
    let pieces = Chunks::new(batch * ranges, TASK_ELEMENTS / (channels * RANGE));
    par.run(pieces.count(), &|piece, _| {
        for item in pieces.range(piece) {
            let (image, first) = (item / ranges, item % ranges * RANGE);
            for block in 0..channels.div_ceil(LANES) {
                body(image, block, first..(first + RANGE).min(positions));
            }
        }
    });
}

/// # Safety
/// `count <= 16` elements at both addresses, no overlap.
#[inline(always)]
unsafe fn copy_lanes(from: *const f32, to: *mut f32, count: usize) {
    // SAFETY: the caller vouches for `count` elements; a constant length compiles to vector moves.
    unsafe {
        if count == LANES {
            std::ptr::copy_nonoverlapping(from, to, LANES);
        } else {
            std::ptr::copy_nonoverlapping(from, to, count);
        }
    }
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
