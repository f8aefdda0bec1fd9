//! The micro-kernel: one tile of `P` panels times `R` positions over one chunk of k.

use super::pairs::Weights;
use crate::epilogue::Activation;
use crate::simd::{LANES, Simd, prefetch, prefetch_far};

/// Most positions of a tile, for any instruction set.
pub(crate) const MAX_ROWS: usize = 14;

/// What a tap outside the image reads.
pub(crate) static ZERO_RUN: ZeroRun = ZeroRun([0.0; LANES]);

/// Zeros in a cache line of their own.
#[repr(align(64))]
pub(crate) struct ZeroRun(pub(crate) [f32; LANES]);

/// Where one kernel tap reads, from the tile's corners on.
#[derive(Clone, Copy)]
pub(super) struct Tap {
    /// Which tap of the chunk it is: where its weights lie.
    pub index: usize,
    pub offset_bytes: usize,
    /// A bit for each position that reads input; the others are in the padding.
    pub inside: u32,
}

impl Tap {
    /// Where each position reads, `step` bytes further on.
    #[inline(always)]
    pub fn runs<const R: usize>(&self, tile: &Tile, step: usize) -> [*const f32; R] {
        let offset = self.offset_bytes.wrapping_add(step);
        let mut x = [std::ptr::null(); R];
        if self.inside == (1 << R) - 1 {
            for r in 0..R {
                x[r] = tile.corners[r].wrapping_byte_add(offset);
            }
        } else {
            for r in 0..R {
                let run = tile.corners[r].wrapping_byte_add(offset);
                let inside = self.inside >> r & 1 != 0;
                x[r] = if inside { run } else { ZERO_RUN.0.as_ptr() };
            }
        }
        x
    }
}

/// One call of the micro-kernel.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// First k of the chunk in the tile's first panel.
    pub weights: *const u8,
    /// Where the tile's first panel begins, with its bias.
    pub head: *const f32,
    /// From panel to panel, in weights and in heads.
    pub panel_bytes: usize,
    /// Input of each position that taps count from.
    pub corners: [*const f32; MAX_ROWS],
    pub taps: *const Tap,
    pub taps_len: usize,
    /// Channel blocks of the chunk.
    pub blocks: usize,
    /// From block to block in the weights of a panel.
    pub block_bytes: usize,
    /// k of a tap in one block, and in the last.
    pub block_len: usize,
    pub last_len: usize,
    /// From block to block in the input.
    pub block_step_bytes: usize,
    /// From the corners to the tile's first block.
    pub first_block_bytes: usize,
    pub output: *mut f32,
    /// What is added first: null, or memory laid out as the output.
    pub residual: *const f32,
    pub row_floats: usize,
    pub column_floats: usize,
    /// Valid lanes of the tile's last panel.
    pub last_lanes: usize,
    /// The first chunk starts from bias and residual, later ones from the output.
    pub is_first: bool,
    pub is_last: bool,
    /// Weights that a later chunk needs, in the tile's first panel: brought to the second-level
    /// cache meanwhile, this many k of every panel after each run. None where the count is zero.
    pub ahead: *const u8,
    pub ahead_per_run: usize,
    pub activation: Activation,
}

/// Runs a tile.
///
/// # Safety
/// `P` panels of weights and bias, every tap's runs for `R` positions, and `R × P` output (and
/// residual) vectors are memory the caller may use so.
#[inline(always)]
pub(super) unsafe fn micro<S: Simd, W: Weights<S>, const P: usize, const R: usize>(
    s: S,
    tile: &Tile,
) {
    let step_bytes = W::STEP_BYTES;
    // SAFETY: all pointers stay inside what the contract names.
    unsafe {
        let mut acc = start::<S, P, R>(s, tile);
        let mut ahead = tile.ahead;
        for block in 0..tile.blocks {
            let len = if block + 1 == tile.blocks {
                tile.last_len
            } else {
                tile.block_len
            };
            let step = tile.first_block_bytes + block * tile.block_step_bytes;
            let block_weights = tile.weights.add(block * tile.block_bytes);
            for t in 0..tile.taps_len {
                let tap = &*tile.taps.add(t);
                let x = tap.runs::<R>(tile, step);
                if block + 1 < tile.blocks {
                    for r in 0..R {
                        // The same run of the next block, which hardware does not foresee.
                        prefetch(x[r].wrapping_byte_add(tile.block_step_bytes));
                    }
                }
                let first = W::RUN_HEAD_BYTES + tap.index * len * step_bytes;
                let mut w = [block_weights.add(first); P];
                let mut heads = [tile.head; P];
                if W::RUN_HEAD_BYTES > 0 {
                    heads[0] = block_weights.cast();
                }
                for p in 1..P {
                    w[p] = w[p - 1].add(tile.panel_bytes);
                    heads[p] = heads[p - 1].byte_add(tile.panel_bytes);
                }
                run::<S, W, P, R>(s, &mut acc, &x, &w, &heads, len);
                for _ in 0..tile.ahead_per_run {
                    for p in 0..P {
                        prefetch_far(ahead.wrapping_add(p * tile.panel_bytes).cast());
                    }
                    ahead = ahead.wrapping_add(step_bytes);
                }
            }
        }
        finish::<S, P, R>(s, tile, &acc);
    }
}

/// The inner loop: `len` steps of k.
#[inline(always)]
unsafe fn run<S: Simd, W: Weights<S>, const P: usize, const R: usize>(
    s: S,
    acc: &mut [[S::V; P]; R],
    x: &[*const f32; R],
    w: &[*const u8; P],
    heads: &[*const f32; P],
    len: usize,
) {
    // SAFETY: the caller's runs and panels are `len` long.
    unsafe {
        let mut k = 0;
        while k + 4 <= len {
            step::<S, W, P, R>(s, acc, x, w, heads, k);
            step::<S, W, P, R>(s, acc, x, w, heads, k + 1);
            step::<S, W, P, R>(s, acc, x, w, heads, k + 2);
            step::<S, W, P, R>(s, acc, x, w, heads, k + 3);
            k += 4;
        }
        while k < len {
            step::<S, W, P, R>(s, acc, x, w, heads, k);
            k += 1;
        }
    }
}

#[inline(always)]
unsafe fn step<S: Simd, W: Weights<S>, const P: usize, const R: usize>(
    s: S,
    acc: &mut [[S::V; P]; R],
    x: &[*const f32; R],
    w: &[*const u8; P],
    heads: &[*const f32; P],
    k: usize,
) {
    // SAFETY: `k` is inside the caller's runs and panels.
    unsafe {
        let mut wv = [s.zero(); P];
        for p in 0..P {
            wv[p] = W::load(s, w[p].add(k * W::STEP_BYTES), heads[p]);
        }
        for r in 0..R {
            let xv = s.splat(*x[r].add(k));
            for p in 0..P {
                acc[r][p] = W::add(s, xv, wv[p], acc[r][p]);
            }
        }
    }
}

/// The sums a chunk starts from.
#[inline(always)]
pub(super) unsafe fn start<S: Simd, const P: usize, const R: usize>(
    s: S,
    tile: &Tile,
) -> [[S::V; P]; R] {
    let mut acc = [[s.zero(); P]; R];
    // SAFETY: the tile's outputs, residual and bias are the caller's promise.
    unsafe {
        let before = if tile.is_first {
            tile.residual
        } else {
            tile.output.cast_const()
        };
        if !before.is_null() {
            for r in 0..R {
                for p in 0..P {
                    let v = before.add(r * tile.row_floats + p * tile.column_floats);
                    acc[r][p] = if p + 1 == P && tile.last_lanes < LANES {
                        s.load_partial(v, tile.last_lanes)
                    } else {
                        s.load(v)
                    };
                }
            }
        }
        if tile.is_first {
            for p in 0..P {
                let bias = s.load(tile.head.byte_add(p * tile.panel_bytes));
                for r in 0..R {
                    acc[r][p] = s.add(bias, acc[r][p]);
                }
            }
        }
    }
    acc
}

/// Stores sums, finished ones through the activation.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd, const P: usize, const R: usize>(
    s: S,
    tile: &Tile,
    acc: &[[S::V; P]; R],
) {
    let mut acc = *acc;
    if tile.is_last {
        for r in 0..R {
            for p in 0..P {
                acc[r][p] = s.add(acc[r][p], s.zero());
            }
        }
        macro_rules! activate {
            ($f:expr) => {
                for r in 0..R {
                    for p in 0..P {
                        acc[r][p] = $f.apply_light(s, acc[r][p]);
                    }
                }
            };
        }
        match tile.activation {
            Activation::Relu => activate!(Activation::Relu),
            f @ Activation::Clip { .. } => activate!(f),
            f @ Activation::LeakyRelu { .. } => activate!(f),
            _ => {}
        }
    }
    for r in 0..R {
        for p in 0..P {
            // SAFETY: the tile's outputs are the caller's promise.
            unsafe {
                let to = tile
                    .output
                    .add(r * tile.row_floats + p * tile.column_floats);
                if p + 1 == P && tile.last_lanes < LANES {
                    s.store_partial(to, tile.last_lanes, acc[r][p]);
                } else {
                    s.store(to, acc[r][p]);
                }
            }
        }
    }
}
