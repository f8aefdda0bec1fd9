//! Tiles of the input, weights and products, from and to their values at the points.

use super::Tile;
use super::points::{F2, F4, Points};
use crate::epilogue::{Activation, activate};
use crate::panel::format::{Format, Stored, by_format};
use crate::simd::{Isa, LANES, Simd, prefetch, simd_kernel};

/// Pixels outside the image count as zero: where the tiles of one plane lie.
#[derive(Clone, Copy)]
pub(super) struct Plane {
    /// Height and width.
    pub size: [usize; 2],
    /// Top left of the tile.
    pub corner: [isize; 2],
}

/// Transforms one tile of one channel block: `plane` is the block's first pixel; value `i` of the
/// tile goes to `to + i * point_floats`.
#[inline(always)]
unsafe fn input<S: Simd, T: Points<A, M>, const A: usize, const M: usize>(
    s: S,
    at: Plane,
    plane: *const f32,
    to: *mut f32,
    point_floats: usize,
) {
    let [height, width] = at.size;
    let [top, left] = at.corner;
    let mut rows = [[s.zero(); A]; A];
    let inside = |from: isize, size: usize| from >= 0 && from as usize + A <= size;
    // SAFETY: pixels are read where they lie inside the image; the values are the caller's promise.
    unsafe {
        if inside(top, height) && inside(left, width) {
            let corner = plane.add((top as usize * width + left as usize) * LANES);
            for j in 0..A {
                let mut column = [s.zero(); A];
                for i in 0..A {
                    column[i] = s.load(corner.add((i * width + j) * LANES));
                }
                let column = T::input(s, column);
                for i in 0..A {
                    rows[i][j] = column[i];
                }
            }
        } else {
            for j in 0..A {
                let mut column = [s.zero(); A];
                let x = left.wrapping_add_unsigned(j);
                for i in 0..A {
                    let y = top.wrapping_add_unsigned(i);
                    if (0..height as isize).contains(&y) && (0..width as isize).contains(&x) {
                        column[i] = s.load(plane.add((y as usize * width + x as usize) * LANES));
                    }
                }
                let column = T::input(s, column);
                for i in 0..A {
                    rows[i][j] = column[i];
                }
            }
        }
        for i in 0..A {
            let row = T::input(s, rows[i]);
            for j in 0..A {
                s.store(to.add((i * A + j) * point_floats), row[j]);
            }
        }
    }
}

/// Where the weights of some channels of a panel lie, and where their values at the points go.
#[derive(Clone, Copy)]
pub(super) struct PanelPart {
    pub format: Format,
    /// Where the panel begins.
    pub head: *const f32,
    /// First weight of the first channel block, taps in order.
    pub weights: *const u8,
    pub channels: usize,
    pub to: *mut f32,
    pub point_floats: usize,
}

/// Transforms the 3x3 weights of some channels, which begin with a channel block.
#[inline(always)]
unsafe fn weights<S: Simd, T: Points<A, M>, const A: usize, const M: usize>(s: S, part: PanelPart) {
    // SAFETY: the caller keeps the contract.
    by_format!(part.format, F => unsafe { weights_in::<S, F, T, A, M>(s, part) })
}

/// [`weights`] of a format.
#[inline(always)]
unsafe fn weights_in<S: Simd, F: Stored, T: Points<A, M>, const A: usize, const M: usize>(
    s: S,
    part: PanelPart,
) {
    let step_bytes = F::STEP_BYTES;
    let (mut from, mut to, mut left) = (part.weights, part.to, part.channels);
    // SAFETY: the panel holds 9 weights for each channel; the values are the caller's promise.
    unsafe {
        while left > 0 {
            let block_len = left.min(LANES);
            for c in 0..block_len {
                let mut rows = [[s.zero(); 3]; A];
                for i in 0..9 {
                    // The next block, of which hardware would see nine short streams.
                    prefetch(
                        from.wrapping_add((9 * (block_len + c) + i) * step_bytes)
                            .cast(),
                    );
                }
                for j in 0..3 {
                    let mut column = [s.zero(); 3];
                    for i in 0..3 {
                        let at = from.add(((i * 3 + j) * block_len + c) * step_bytes);
                        column[i] = F::load(s, at, part.head);
                    }
                    let column = T::weight(s, column);
                    for i in 0..A {
                        rows[i][j] = column[i];
                    }
                }
                for i in 0..A {
                    let row = T::weight(s, rows[i]);
                    for j in 0..A {
                        s.store(to.add((i * A + j) * part.point_floats), row[j]);
                    }
                }
                to = to.add(LANES);
            }
            from = from.add(9 * block_len * step_bytes);
            left -= block_len;
        }
    }
}

/// One tile of one panel: products to outputs.
#[derive(Clone, Copy)]
pub(super) struct OutputTile {
    /// Products at all points, `[point][16]`.
    pub products: *const f32,
    pub bias: *const f32,
    /// First pixel of the tile; its rows are `row_floats` apart.
    pub output: *mut f32,
    /// What is added first: null, or memory laid out as the output.
    pub residual: *const f32,
    pub row_floats: usize,
    /// Rows and columns that are in the image.
    pub size: [usize; 2],
    pub activation: Activation,
}

#[inline(always)]
unsafe fn output<S: Simd, T: Points<A, M>, const A: usize, const M: usize>(
    s: S,
    isa: Isa,
    tile: OutputTile,
) {
    let mut columns = [[s.zero(); A]; M];
    let [height, width] = [tile.size[0].min(M), tile.size[1].min(M)];
    // SAFETY: products, bias and the tile's pixels inside the image are the caller's promise.
    unsafe {
        for j in 0..A {
            let mut column = [s.zero(); A];
            for i in 0..A {
                column[i] = s.load(tile.products.add((i * A + j) * LANES));
            }
            let column = T::output(s, column);
            for i in 0..M {
                columns[i][j] = column[i];
            }
        }
        let bias = s.load(tile.bias);
        for i in 0..M {
            if i >= height {
                break;
            }
            let mut row = T::output(s, columns[i]);
            let at = i * tile.row_floats;
            for j in 0..M {
                let mut start = bias;
                if !tile.residual.is_null() && j < width {
                    start = s.add(bias, s.load(tile.residual.add(at + j * LANES)));
                }
                row[j] = s.add(row[j], start);
            }
            macro_rules! activated {
                ($f:expr) => {
                    for j in 0..M {
                        row[j] = $f.apply_light(s, row[j]);
                    }
                };
            }
            match tile.activation {
                Activation::Relu => activated!(Activation::Relu),
                f @ Activation::Clip { .. } => activated!(f),
                f @ Activation::LeakyRelu { .. } => activated!(f),
                _ => {}
            }
            for j in 0..M {
                if j < width {
                    s.store(tile.output.add(at + j * LANES), row[j]);
                }
            }
        }
        if !tile.activation.is_light() {
            activate(
                isa,
                tile.activation,
                tile.output,
                height,
                tile.row_floats,
                width * LANES,
            );
        }
    }
}

/// The three transforms of a tile size, compiled for every instruction set.
macro_rules! transforms {
    ($tile:ident, $a:literal, $m:literal, $module:ident) => {
        mod $module {
            use super::*;

            #[inline(always)]
            unsafe fn input_of<S: Simd>(
                s: S,
                at: Plane,
                plane: *const f32,
                to: *mut f32,
                point_floats: usize,
            ) {
                // SAFETY: the caller keeps the contract.
                unsafe { super::input::<S, $tile, $a, $m>(s, at, plane, to, point_floats) }
            }

            #[inline(always)]
            unsafe fn weights_of<S: Simd>(s: S, part: PanelPart) {
                // SAFETY: the caller keeps the contract.
                unsafe { super::weights::<S, $tile, $a, $m>(s, part) }
            }

            #[inline(always)]
            unsafe fn output_of<S: Simd>(s: S, isa: Isa, tile: OutputTile) {
                // SAFETY: the caller keeps the contract.
                unsafe { super::output::<S, $tile, $a, $m>(s, isa, tile) }
            }

            simd_kernel! {
                pub(super) unsafe fn input(at: Plane, plane: *const f32, to: *mut f32, point_floats: usize) = input_of;
            }
            simd_kernel! {
                pub(super) unsafe fn weights(part: PanelPart) = weights_of;
            }
            simd_kernel! {
                pub(super) unsafe fn output(same: Isa, tile: OutputTile) = output_of;
            }
        }
    };
}
transforms!(F2, 4, 2, f2);
transforms!(F4, 6, 4, f4);

/// Transforms one tile of one channel block: `plane` is the block's first pixel; value `i` of the
/// tile goes to `to + i * point_floats`.
///
/// # Safety
/// The plane is readable for its size, and the tile's values are memory the caller may write.
pub(super) unsafe fn transform_input(
    isa: Isa,
    tile: Tile,
    at: Plane,
    plane: *const f32,
    to: *mut f32,
    point_floats: usize,
) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match tile {
            Tile::F2 => f2::input(isa, at, plane, to, point_floats),
            Tile::F4 => f4::input(isa, at, plane, to, point_floats),
        }
    }
}

/// Transforms the 3x3 weights of some channels of a panel, which begin with a channel block.
///
/// # Safety
/// `part` names `9 * channels` readable vectors and, at every point, `channels` writable ones.
pub(super) unsafe fn transform_weights(isa: Isa, tile: Tile, part: PanelPart) {
    let isa = part.format.isa(isa);
    // SAFETY: the caller keeps the contract.
    unsafe {
        match tile {
            Tile::F2 => f2::weights(isa, part),
            Tile::F4 => f4::weights(isa, part),
        }
    }
}

/// Turns the products of one tile and panel into outputs.
///
/// # Safety
/// Products, bias and residual are readable and the tile's pixels writable, as [`OutputTile`] says.
pub(super) unsafe fn transform_output(isa: Isa, tile: Tile, at: OutputTile) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match tile {
            Tile::F2 => f2::output(isa, isa, at),
            Tile::F4 => f4::output(isa, isa, at),
        }
    }
}
