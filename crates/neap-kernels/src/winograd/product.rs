//! The micro-kernel: at one point, a group of tiles times a few panels.
//!
//! ```text
//!   values of a group   [channel block][tile][16]     read as scalars, tile by tile
//!   weights             [k][16], one run a panel       read as vectors
//!   products            [tile][panel][point][16]       written, or added to
//! ```

#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
use crate::simd::Portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2Fma, Avx512};
use crate::simd::{Isa, Kind, LANES, Simd, prefetch_far};

/// One call of the micro-kernel.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// The group's values at this point, of the first channel block wanted.
    pub values: *const f32,
    /// First k wanted at this point, in the first panel.
    pub weights: *const f32,
    pub panel_floats: usize,
    /// Channel blocks, and channels of the last.
    pub blocks: usize,
    pub last_len: usize,
    /// Products of the first tile and panel at this point.
    pub products: *mut f32,
    /// From tile to tile and from panel to panel in the products.
    pub tile_floats: usize,
    pub product_floats: usize,
    /// The products hold sums over channels before these.
    pub goes_on: bool,
    /// Weights of the first panel that are needed later: brought to the second-level cache
    /// meanwhile, this many vectors of every panel for each channel block.
    pub ahead: *const f32,
    pub ahead_panel_floats: usize,
    pub ahead_per_block: usize,
}

/// A compiled micro-kernel; see [`micro`] for what it asks.
pub(super) type MicroKernel = unsafe fn(&Step);

/// Most panels of a call.
pub(super) fn max_panels(isa: Isa) -> usize {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => 2,
        _ => 1,
    }
}

/// Most tiles of a group, whatever the panels: as many as the registers hold.
pub(super) fn max_tiles(isa: Isa) -> usize {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => 14,
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2Fma => 6,
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => 5,
        Kind::Portable => 2,
    }
}

/// Adds, for `R` tiles and `P` panels, the products of the channels in order.
///
/// # Safety
/// `P` panels of weights, the group's values and the products of `R` tiles and `P` panels are
/// memory that the caller may use so.
#[inline(always)]
unsafe fn micro<S: Simd, const P: usize, const R: usize>(s: S, step: &Step) {
    let mut acc = [[s.zero(); P]; R];
    // SAFETY: all pointers stay inside what the contract names.
    unsafe {
        if step.goes_on {
            for r in 0..R {
                for p in 0..P {
                    let at = r * step.tile_floats + p * step.product_floats;
                    acc[r][p] = s.load(step.products.add(at));
                }
            }
        }
        let (mut x, mut w, mut ahead) = (step.values, step.weights, step.ahead);
        for block in 0..step.blocks {
            let len = if block + 1 == step.blocks {
                step.last_len
            } else {
                LANES
            };
            for _ in 0..step.ahead_per_block {
                for p in 0..P {
                    prefetch_far(ahead.wrapping_add(p * step.ahead_panel_floats));
                }
                ahead = ahead.wrapping_add(LANES);
            }
            let mut k = 0;
            while k + 4 <= len {
                channel::<S, P, R>(s, &mut acc, x.add(k), w, step.panel_floats);
                channel::<S, P, R>(s, &mut acc, x.add(k + 1), w.add(LANES), step.panel_floats);
                channel::<S, P, R>(
                    s,
                    &mut acc,
                    x.add(k + 2),
                    w.add(2 * LANES),
                    step.panel_floats,
                );
                channel::<S, P, R>(
                    s,
                    &mut acc,
                    x.add(k + 3),
                    w.add(3 * LANES),
                    step.panel_floats,
                );
                w = w.add(4 * LANES);
                k += 4;
            }
            while k < len {
                channel::<S, P, R>(s, &mut acc, x.add(k), w, step.panel_floats);
                w = w.add(LANES);
                k += 1;
            }
            x = x.add(R * LANES);
        }
        for r in 0..R {
            for p in 0..P {
                let at = r * step.tile_floats + p * step.product_floats;
                s.store(step.products.add(at), acc[r][p]);
            }
        }
    }
}

#[inline(always)]
unsafe fn channel<S: Simd, const P: usize, const R: usize>(
    s: S,
    acc: &mut [[S::V; P]; R],
    x: *const f32,
    w: *const f32,
    panel_floats: usize,
) {
    // SAFETY: the caller's values and panels hold this channel.
    unsafe {
        let mut wv = [s.zero(); P];
        for p in 0..P {
            wv[p] = s.load(w.add(p * panel_floats));
        }
        for r in 0..R {
            let xv = s.splat(*x.add(r * LANES));
            for p in 0..P {
                acc[r][p] = s.fma(xv, wv[p], acc[r][p]);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<const P: usize, const R: usize>(step: &Step) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Avx512, P, R>(Avx512::new(), step) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<const P: usize, const R: usize>(step: &Step) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Avx2Fma, P, R>(Avx2Fma::new(), step) }
}

#[cfg(target_arch = "aarch64")]
unsafe fn neon<const P: usize, const R: usize>(step: &Step) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Neon, P, R>(Neon::new(), step) }
}

unsafe fn portable<const P: usize, const R: usize>(step: &Step) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Portable, P, R>(Portable, step) }
}

/// `shapes!(f, 2: 1 2 3)[r - 1]` is `f::<2, r>`.
macro_rules! shapes {
    ($f:ident, $p:literal: $($r:literal)*) => {{
        const KERNELS: &[MicroKernel] = &[$($f::<$p, $r> as MicroKernel),*];
        KERNELS
    }};
}

/// The micro-kernel for `panels` (at most [`max_panels`]) and `tiles` (at most [`max_tiles`]). The
/// processor has its instructions, as the [`Isa`] proves.
pub(super) fn kernel(isa: Isa, panels: usize, tiles: usize) -> MicroKernel {
    // Only AVX-512 has registers to choose with.
    let _ = panels;
    let of_tiles = match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 if panels == 1 => shapes!(avx512, 1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => shapes!(avx512, 2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2Fma => shapes!(avx2, 1: 1 2 3 4 5 6),
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => shapes!(neon, 1: 1 2 3 4 5),
        Kind::Portable => shapes!(portable, 1: 1 2),
    };
    of_tiles[tiles - 1]
}
