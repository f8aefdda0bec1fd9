//! Tiles of the input, weights and products, from and to their values at the points; and a tile's outputs without those.

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
/// tile goes to `to + i * point_floats`. Gives the magnitude of what the first `channels` lanes are at the points that tell.
#[inline(always)]
unsafe fn input<S: Simd, T: Points<A, M>, const A: usize, const M: usize>(
    s: S,
    at: Plane,
    plane: *const f32,
    to: *mut f32,
    point_floats: usize,
    channels: usize,
) -> f32 {
    let [height, width] = at.size;
    let [top, left] = at.corner;
    let mut rows = [[s.zero(); A]; A];
    let mut told = s.zero();
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
                if T::tells(i, j) {
                    told = s.add(told, s.abs(row[j]));
                }
            }
        }
    }
    s.reduce_sum(first_lanes(s, told, channels))
}

/// The first lanes, and zeros.
#[inline(always)]
fn first_lanes<S: Simd>(s: S, v: S::V, lanes: usize) -> S::V {
    const NUMBERS: [f32; LANES] = [
        0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
    ];
    let is_first = s.lt(s.from_array(NUMBERS), s.splat(lanes as f32));
    s.select(is_first, v, s.zero())
}

/// The input of a tile: planes of some channel blocks, one after another.
#[derive(Clone, Copy)]
pub(super) struct InputTile {
    pub at: Plane,
    /// First pixel of the first channel block.
    pub first: *const f32,
    pub plane_floats: usize,
    pub channels: usize,
}

impl InputTile {
    /// Where a pixel of the tile lies, if it is inside the image.
    #[inline(always)]
    fn pixel(&self, i: usize, j: usize) -> Option<*const f32> {
        let [height, width] = self.at.size;
        let (y, x) = (
            self.at.corner[0].wrapping_add_unsigned(i),
            self.at.corner[1].wrapping_add_unsigned(j),
        );
        let inside = (0..height as isize).contains(&y) && (0..width as isize).contains(&x);
        inside.then(|| {
            let at = y as usize * width + x as usize;
            self.first.wrapping_add(at * LANES)
        })
    }
}

/// Whether a tile holds a number that its transform would spread to outputs that do not see it: one that is not finite, or
/// so large that what rounding leaves of it is seen beside what an output is made of. `size` is of the tile's outputs.
#[inline(always)]
unsafe fn spreads<S: Simd, const A: usize, const M: usize>(
    s: S,
    tile: InputTile,
    size: [usize; 2],
) -> bool {
    const RATIO: f32 = 1024.0;
    let infinite = s.splat(f32::INFINITY);
    let mut most = [[0.0f32; A]; A];
    let mut of_all = 0.0f32;
    for i in 0..A {
        for j in 0..A {
            let Some(pixel) = tile.pixel(i, j) else {
                continue;
            };
            let mut own = s.zero();
            for block in 0..tile.channels.div_ceil(LANES) {
                // SAFETY: the planes hold the pixel.
                let v = s.abs(unsafe { s.load(pixel.add(block * tile.plane_floats)) });
                // What is no number counts as infinite.
                let v = s.select(s.lt(v, infinite), v, infinite);
                own = s.max(own, first_lanes(s, v, tile.channels - block * LANES));
            }
            most[i][j] = s.reduce_max(own);
            of_all = of_all.max(most[i][j]);
        }
    }
    let mut least = f32::INFINITY;
    for i in 0..size[0].min(M) {
        for j in 0..size[1].min(M) {
            let rows = &most[i..i + 3];
            let seen = rows.iter().flat_map(|row| &row[j..j + 3]);
            least = least.min(seen.fold(0.0, |a, &b| a.max(b)));
        }
    }
    of_all == f32::INFINITY || least * RATIO < of_all
}

/// Taps that were turned back, where what rounding made of zeros is zeros again: an infinity times one is no number.
#[inline(always)]
fn without_traces<S: Simd>(s: S, mut taps: [[S::V; 3]; 3]) -> [[S::V; 3]; 3] {
    const TRACE: f32 = 1.0 / (1 << 20) as f32;
    let mut most = s.zero();
    for tap in taps.as_flattened() {
        most = s.max(most, s.abs(*tap));
    }
    let trace = s.mul(most, s.splat(TRACE));
    for tap in taps.as_flattened_mut() {
        *tap = s.select(s.lt(s.abs(*tap), trace), s.zero(), *tap);
    }
    taps
}

/// Adds what some channels give to the outputs of a tile, `[output][16]`, without values at the points. `weights` are those
/// at the first point; they are turned back into taps, so that both forms of weights give the same bits.
#[inline(always)]
unsafe fn direct<S: Simd, T: Points<A, M>, const A: usize, const M: usize>(
    s: S,
    tile: InputTile,
    weights: *const f32,
    point_floats: usize,
    sums: *mut f32,
) {
    for channel in 0..tile.channels {
        // SAFETY: the planes hold the pixels, the panel these channels at every point, and the sums all outputs.
        unsafe {
            let at = weights.add(channel * LANES);
            let mut rows = [[s.zero(); A]; 3];
            for j in 0..A {
                let mut column = [s.zero(); A];
                for i in 0..A {
                    column[i] = s.load(at.add((i * A + j) * point_floats));
                }
                let column = T::taps(s, column);
                for i in 0..3 {
                    rows[i][j] = column[i];
                }
            }
            let taps = [
                T::taps(s, rows[0]),
                T::taps(s, rows[1]),
                T::taps(s, rows[2]),
            ];
            let taps = without_traces(s, taps);
            let offset = channel / LANES * tile.plane_floats + channel % LANES;
            for output in 0..M * M {
                let to = sums.add(output * LANES);
                let mut sum = s.load(to);
                for tap in 0..9 {
                    let (i, j) = (output / M + tap / 3, output % M + tap % 3);
                    if let Some(pixel) = tile.pixel(i, j) {
                        let x = s.splat(*pixel.add(offset));
                        sum = s.fma(x, taps[tap / 3][tap % 3], sum);
                    }
                }
                s.store(to, sum);
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
    /// Products at all points, `[point][16]`; or the sums of [`direct`].
    pub products: *const f32,
    pub is_direct: bool,
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
            if tile.is_direct {
                break;
            }
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
            let mut row = [s.zero(); M];
            if tile.is_direct {
                for j in 0..M {
                    row[j] = s.load(tile.products.add((i * M + j) * LANES));
                }
            } else {
                row = T::output(s, columns[i]);
            }
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

/// The transforms of a tile size, and what goes without them, compiled for every instruction set.
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
                channels: usize,
            ) -> f32 {
                // SAFETY: the caller keeps the contract.
                unsafe { super::input::<S, $tile, $a, $m>(s, at, plane, to, point_floats, channels) }
            }

            #[inline(always)]
            unsafe fn spreads_of<S: Simd>(s: S, tile: InputTile, size: [usize; 2]) -> bool {
                // SAFETY: the caller keeps the contract.
                unsafe { super::spreads::<S, $a, $m>(s, tile, size) }
            }

            #[inline(always)]
            unsafe fn direct_of<S: Simd>(
                s: S,
                tile: InputTile,
                weights: *const f32,
                point_floats: usize,
                sums: *mut f32,
            ) {
                // SAFETY: the caller keeps the contract.
                unsafe { super::direct::<S, $tile, $a, $m>(s, tile, weights, point_floats, sums) }
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
                pub(super) unsafe fn input(at: Plane, plane: *const f32, to: *mut f32, point_floats: usize, channels: usize) -> f32 = input_of;
            }
            simd_kernel! {
                pub(super) unsafe fn spreads(tile: InputTile, size: [usize; 2]) -> bool = spreads_of;
            }
            simd_kernel! {
                pub(super) unsafe fn direct(tile: InputTile, weights: *const f32, point_floats: usize, sums: *mut f32) = direct_of;
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
/// tile goes to `to + i * point_floats`. What it gives is below [`TOO_MUCH`] unless the tile may [`spread`](spreads_input)
/// one of the first `channels` lanes.
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
    channels: usize,
) -> f32 {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match tile {
            Tile::F2 => f2::input(isa, at, plane, to, point_floats, channels),
            Tile::F4 => f4::input(isa, at, plane, to, point_floats, channels),
        }
    }
}

/// From here on a tile is looked at more closely.
pub(super) const TOO_MUCH: f32 = (1 << 17) as f32;

/// From here on a value at some point, or its product with a weight, may overflow.
pub(super) const OVERFLOWS: f32 = 1e30;

/// Whether the transform of a tile would spread some of its numbers to outputs that do not see them; `size` is of the
/// outputs that are in the image.
///
/// # Safety
/// The planes are readable for their size.
pub(super) unsafe fn spreads_input(
    isa: Isa,
    tile: Tile,
    input: InputTile,
    size: [usize; 2],
) -> bool {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match tile {
            Tile::F2 => f2::spreads(isa, input, size),
            Tile::F4 => f4::spreads(isa, input, size),
        }
    }
}

/// Adds what channels of one panel give to the outputs of a tile, `[output][16]`, without its transform.
///
/// # Safety
/// As [`spreads_input`]; `weights` are those of as many channels at the first point, and the sums are memory the caller may
/// write.
pub(super) unsafe fn add_directly(
    isa: Isa,
    tile: Tile,
    input: InputTile,
    weights: *const f32,
    point_floats: usize,
    sums: *mut f32,
) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match tile {
            Tile::F2 => f2::direct(isa, input, weights, point_floats, sums),
            Tile::F4 => f4::direct(isa, input, weights, point_floats, sums),
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
