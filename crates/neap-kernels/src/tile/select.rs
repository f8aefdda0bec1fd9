//! The table of compiled micro-kernels: which tile shapes exist for an instruction set.

use super::grouped::micro_grouped;
use super::micro::{Tile, micro};
#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2Fma, Avx512};
use crate::simd::{Isa, Kind, Portable};

/// A micro-kernel of a given shape; see [`micro`] and [`micro_grouped`] for what they ask.
pub(super) type MicroKernel = unsafe fn(&Tile);

/// A family of micro-kernels.
#[derive(Clone, Copy)]
pub(super) enum Shapes {
    Dense(Isa),
    /// With the groups' width: 1, 2, 4 or 8.
    NarrowGroups(Isa, usize),
}

impl Shapes {
    /// Most panels of a tile.
    pub(super) fn max_panels(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Shapes::Dense(isa) if isa.kind() == Kind::Avx512 => 4,
            _ => 1,
        }
    }

    /// Most positions of a tile with that many panels: as many as the registers hold.
    pub(super) fn max_rows(self, panels: usize) -> usize {
        // Only AVX-512 has registers to choose with.
        let _ = panels;
        match self {
            Shapes::Dense(isa) => match isa.kind() {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => [12, 14, 8, 6][panels.clamp(1, 4) - 1],
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2Fma => 6,
                // Six would fit too, but compile to spills.
                #[cfg(target_arch = "aarch64")]
                Kind::Neon => 5,
                Kind::Portable => 2,
            },
            Shapes::NarrowGroups(isa, _) => match isa.kind() {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => 14,
                Kind::Portable => 1,
                #[allow(unreachable_patterns)]
                _ => 3,
            },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<const P: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Avx512, P, R>(Avx512::new(), tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512_grouped<const W: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro_grouped`'s contract.
    unsafe { micro_grouped::<Avx512, W, R>(Avx512::new(), tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const P: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Avx2Fma, P, R>(Avx2Fma::new(), tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2_grouped<const W: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro_grouped`'s contract.
    unsafe { micro_grouped::<Avx2Fma, W, R>(Avx2Fma::new(), tile) }
}

#[cfg(target_arch = "aarch64")]
unsafe fn neon<const P: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Neon, P, R>(Neon::new(), tile) }
}

#[cfg(target_arch = "aarch64")]
unsafe fn neon_grouped<const W: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro_grouped`'s contract.
    unsafe { micro_grouped::<Neon, W, R>(Neon::new(), tile) }
}

unsafe fn portable<const P: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Portable, P, R>(Portable, tile) }
}

unsafe fn portable_grouped<const W: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro_grouped`'s contract.
    unsafe { micro_grouped::<Portable, W, R>(Portable, tile) }
}

/// `shapes!(f, 4: 1 2 3)[r - 1]` is `f::<4, r>`.
macro_rules! shapes {
    ($f:ident, $p:literal: $($r:literal)*) => {{
        const KERNELS: &[MicroKernel] = &[$($f::<$p, $r> as MicroKernel),*];
        KERNELS
    }};
}

/// The micro-kernel for a tile of `panels` (at most `max_panels`) times `rows` (at most
/// `max_rows`). The processor has its instructions, as the [`Isa`] in `shapes` proves.
pub(super) fn kernel(shapes: Shapes, panels: usize, rows: usize) -> MicroKernel {
    // Only AVX-512 has registers to choose with.
    let _ = panels;
    let of_rows = match shapes {
        Shapes::Dense(isa) => match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => match panels {
                1 => shapes!(avx512, 1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                2 => shapes!(avx512, 2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                3 => shapes!(avx512, 3: 1 2 3 4 5 6 7 8),
                _ => shapes!(avx512, 4: 1 2 3 4 5 6),
            },
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Fma => shapes!(avx2, 1: 1 2 3 4 5 6),
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => shapes!(neon, 1: 1 2 3 4 5),
            Kind::Portable => shapes!(portable, 1: 1 2),
        },
        Shapes::NarrowGroups(isa, width) => match (isa.kind(), width) {
            #[cfg(target_arch = "x86_64")]
            (Kind::Avx512, 1) => shapes!(avx512_grouped, 1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
            #[cfg(target_arch = "x86_64")]
            (Kind::Avx512, 2) => shapes!(avx512_grouped, 2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
            #[cfg(target_arch = "x86_64")]
            (Kind::Avx512, 4) => shapes!(avx512_grouped, 4: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
            #[cfg(target_arch = "x86_64")]
            (Kind::Avx512, _) => shapes!(avx512_grouped, 8: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
            #[cfg(target_arch = "x86_64")]
            (Kind::Avx2Fma, 1) => shapes!(avx2_grouped, 1: 1 2 3),
            #[cfg(target_arch = "x86_64")]
            (Kind::Avx2Fma, 2) => shapes!(avx2_grouped, 2: 1 2 3),
            #[cfg(target_arch = "x86_64")]
            (Kind::Avx2Fma, 4) => shapes!(avx2_grouped, 4: 1 2 3),
            #[cfg(target_arch = "x86_64")]
            (Kind::Avx2Fma, _) => shapes!(avx2_grouped, 8: 1 2 3),
            #[cfg(target_arch = "aarch64")]
            (Kind::Neon, 1) => shapes!(neon_grouped, 1: 1 2 3),
            #[cfg(target_arch = "aarch64")]
            (Kind::Neon, 2) => shapes!(neon_grouped, 2: 1 2 3),
            #[cfg(target_arch = "aarch64")]
            (Kind::Neon, 4) => shapes!(neon_grouped, 4: 1 2 3),
            #[cfg(target_arch = "aarch64")]
            (Kind::Neon, _) => shapes!(neon_grouped, 8: 1 2 3),
            (Kind::Portable, 1) => shapes!(portable_grouped, 1: 1),
            (Kind::Portable, 2) => shapes!(portable_grouped, 2: 1),
            (Kind::Portable, 4) => shapes!(portable_grouped, 4: 1),
            (Kind::Portable, _) => shapes!(portable_grouped, 8: 1),
        },
    };
    of_rows[rows - 1]
}
