//! Copies between strided views: the work horse of data movement.

use crate::nd::{GRAIN, Nd, Ptr, Strides, split};
use crate::scalar::with_width;
use neap_kernels::parallel::Parallel;

/// Side of the square that a transposing copy moves at once: a cache line of 4-byte elements.
const TILE: usize = 16;

/// Copies `dims` elements of `width` bytes; strides are in bytes.
///
/// # Safety
/// Every element of both views lies in memory the caller vouches for, the views do not overlap
/// (except by being the very same elements), and pointers are aligned to `width`.
pub(crate) unsafe fn copy_strided(
    par: &dyn Parallel,
    width: usize,
    dims: &[usize],
    src: *const u8,
    src_strides: &Strides,
    dst: *mut u8,
    dst_strides: &Strides,
) {
    let nd = Nd::new(dims, [src_strides, dst_strides]);
    let unit = width as isize;
    let (src, dst) = (Ptr::<u8>::of(src), Ptr(dst));
    let [s, d] = nd.inner();
    if s == unit && d == unit {
        nd.runs(par, &|[from, to], n| {
            // SAFETY: the caller vouches for every element of the views.
            unsafe {
                std::ptr::copy(src.get().offset(from), dst.get().offset(to), n * width);
            }
        });
        return;
    }
    if d == unit && s != 0 {
        let wide =
            (0..nd.rank - 1).find(|&axis| nd.strides[0][axis] == unit && nd.dims[axis] >= TILE / 2);
        if let Some(axis) = wide {
            // SAFETY: as the caller vouches.
            with_width!(width, T => unsafe { transpose::<T>(par, &nd, axis, src, dst) });
            return;
        }
    }
    with_width!(width, T => nd.runs(par, &|[from, to], n| {
        // SAFETY: the caller vouches for every element of the views.
        unsafe {
            let mut from = src.get().offset(from).cast::<T>();
            let mut to = dst.get().offset(to).cast::<T>();
            for _ in 0..n {
                *to = *from;
                from = from.wrapping_byte_offset(s);
                to = to.wrapping_byte_offset(d);
            }
        }
    }));
}

/// The destination's innermost axis is contiguous, and so is the source's axis `axis`.
///
/// # Safety
/// As [`copy_strided`].
unsafe fn transpose<T: Copy>(
    par: &dyn Parallel,
    nd: &Nd<2>,
    axis: usize,
    src: Ptr<u8>,
    dst: Ptr<u8>,
) {
    let total = nd.total();
    if total == 0 {
        return;
    }
    let last = nd.rank - 1;
    let (cols, rows) = (nd.dims[axis], nd.dims[last]);
    let (src_row, dst_col) = (nd.strides[0][last], nd.strides[1][axis]);
    let strips = cols.div_ceil(TILE);
    let outer = total / (cols * rows);
    let width = size_of::<T>();
    split(par, outer * strips, GRAIN / (TILE * rows), &|range, _| {
        for unit in range {
            let (mut rest, strip) = (unit / strips, unit % strips);
            let (mut from, mut to) = (0isize, 0isize);
            for a in (0..last).rev().filter(|&a| a != axis) {
                let index = (rest % nd.dims[a]) as isize;
                rest /= nd.dims[a];
                from += index * nd.strides[0][a];
                to += index * nd.strides[1][a];
            }
            let first = strip * TILE;
            let count = TILE.min(cols - first);
            from += (first * width) as isize;
            to += first as isize * dst_col;
            for row in (0..rows).step_by(TILE) {
                let height = TILE.min(rows - row);
                // SAFETY: columns `first..first+count` and rows `row..row+height` are inside.
                unsafe {
                    let tile = src.get().offset(from + row as isize * src_row);
                    let out = dst.get().offset(to + (row * width) as isize);
                    for c in 0..count {
                        let column = tile.add(c * width);
                        let line = out.offset(c as isize * dst_col).cast::<T>();
                        for r in 0..height {
                            *line.add(r) = *column.offset(r as isize * src_row).cast::<T>();
                        }
                    }
                }
            }
        }
    });
}

/// Copies `bytes` bytes, in pieces when they are many.
///
/// # Safety
/// Both ranges are valid; they do not overlap unless they are equal.
pub(crate) unsafe fn copy_bytes(par: &dyn Parallel, src: *const u8, dst: *mut u8, bytes: usize) {
    if std::ptr::eq(src, dst) {
        return;
    }
    // SAFETY: as the caller vouches.
    unsafe {
        let one = Strides::row_major(&[bytes], 1);
        copy_strided(par, 1, &[bytes], src, &one, dst, &one);
    }
}

/// Sets `count` elements of `width` bytes to the one at `value`.
///
/// # Safety
/// `dst` holds `count` aligned elements, `value` one.
pub(crate) unsafe fn fill(
    par: &dyn Parallel,
    width: usize,
    count: usize,
    value: *const u8,
    dst: *mut u8,
) {
    with_width!(width, T => {
        // SAFETY: the caller vouches for both.
        let value = unsafe { *value.cast::<T>() };
        let dst = Ptr::<T>(dst.cast());
        split(par, count, GRAIN, &|range, _| {
            // SAFETY: ranges of tasks are disjoint and inside `count`.
            unsafe { dst.slice_mut(range.start, range.len()).fill(value) };
        });
    });
}
