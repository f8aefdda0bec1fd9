//! The table of compiled micro-kernels: which tile shapes exist for an instruction set.

use super::grouped::micro_grouped;
use super::micro::{Tile, micro};
use super::pairs::InPairs;
use super::widen::most_k;
#[cfg(target_arch = "x86_64")]
use crate::panel::format::by_block_format;
use crate::panel::format::{F32, Format, Stored, by_any_format};
#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2Fma, Avx512};
use crate::simd::{Isa, Kind, LANES, Portable};

/// Weights of a tile's chunk: half of a small second-level cache.
const CHUNK_BYTES: usize = 256 * 1024;

/// A micro-kernel of a given shape; see [`micro`] and [`micro_grouped`] for what they ask.
pub(super) type MicroKernel = unsafe fn(&Tile);

/// A family of micro-kernels.
#[derive(Clone, Copy)]
pub(super) enum Shapes {
    /// On weights of `f32`.
    Dense(Isa),
    /// The same on weights that a task has widened.
    Widened(Isa),
    /// On weights that a task has brought into pairs: what is called k here are two k.
    Pairs(Isa),
    /// One position at a time, on weights as they are stored.
    Row(Isa, Format),
    /// Groups 1, 2, 4 or 8 wide. Their weights are few, so they are widened where they are not `f32`.
    NarrowGroups {
        isa: Isa,
        width: usize,
        widened: bool,
    },
}

impl Shapes {
    /// Whether a task widens its weights first, or brings them into pairs.
    pub(super) fn is_widened(self) -> bool {
        match self {
            Shapes::Widened(_) | Shapes::Pairs(_) => true,
            Shapes::NarrowGroups { widened, .. } => widened,
            _ => false,
        }
    }

    /// Most panels of a tile.
    pub(super) fn max_panels(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Shapes::Dense(isa) if isa.kind() == Kind::Avx512 => 4,
            #[cfg(target_arch = "x86_64")]
            Shapes::Widened(isa) | Shapes::Pairs(isa) if isa.kind() == Kind::Avx512 => 2,
            // A sum waits for the one before.
            #[cfg(target_arch = "x86_64")]
            Shapes::Row(isa, Format::Blocks(_)) if isa.kind() == Kind::Avx512 => 4,
            _ => 1,
        }
    }

    /// Most k of a chunk whose weights stay in cache in a tile of `panels` panels.
    pub(super) fn chunk_k(self, panels: usize) -> usize {
        match self {
            _ if self.is_widened() => most_k(panels),
            // Hardly anybody uses them again.
            Shapes::Row(..) => usize::MAX,
            _ => CHUNK_BYTES / (panels * LANES * size_of::<f32>()),
        }
    }

    /// Most positions of a tile with that many panels: as many as the registers hold.
    pub(super) fn max_rows(self, panels: usize) -> usize {
        // Only AVX-512 has registers to choose with.
        let _ = panels;
        match self {
            Shapes::Dense(isa) | Shapes::Widened(isa) | Shapes::Pairs(isa) => match isa.kind() {
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => [12, 14, 8, 6][panels.clamp(1, 4) - 1],
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2Fma => 6,
                // Six would fit too, but compile to spills.
                #[cfg(target_arch = "aarch64")]
                Kind::Neon => 5,
                Kind::Portable => 2,
            },
            Shapes::Row(..) => 1,
            Shapes::NarrowGroups { isa, .. } => match isa.kind() {
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<const P: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Avx512, F32, P, R>(Avx512::new(), tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn avx512_pairs<const P: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Avx512, InPairs, P, R>(Avx512::new(), tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512_grouped<const W: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro_grouped`'s contract.
    unsafe { micro_grouped::<Avx512, W, R>(Avx512::new(), tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512_row<F: Stored, const P: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Avx512, F, P, 1>(Avx512::new(), tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<const P: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Avx2Fma, F32, P, R>(Avx2Fma::new(), tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2_row<F: Stored>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Avx2Fma, F, 1, 1>(Avx2Fma::new(), tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2_grouped<const W: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro_grouped`'s contract.
    unsafe { micro_grouped::<Avx2Fma, W, R>(Avx2Fma::new(), tile) }
}

#[cfg(target_arch = "aarch64")]
unsafe fn neon<const P: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Neon, F32, P, R>(Neon::new(), tile) }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,bf16")]
unsafe fn neon_pairs<const P: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Neon, InPairs, P, R>(Neon::new(), tile) }
}

#[cfg(target_arch = "aarch64")]
unsafe fn neon_row<F: Stored>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Neon, F, 1, 1>(Neon::new(), tile) }
}

#[cfg(target_arch = "aarch64")]
unsafe fn neon_grouped<const W: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro_grouped`'s contract.
    unsafe { micro_grouped::<Neon, W, R>(Neon::new(), tile) }
}

unsafe fn portable<const P: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Portable, F32, P, R>(Portable, tile) }
}

unsafe fn portable_row<F: Stored>(tile: &Tile) {
    // SAFETY: the caller keeps `micro`'s contract.
    unsafe { micro::<Portable, F, 1, 1>(Portable, tile) }
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

/// The micro-kernel for a tile of `panels` (at most `max_panels`) times `rows` (at most `max_rows`). The processor has its
/// instructions, as the [`Isa`] in `shapes` proves.
pub(super) fn kernel(shapes: Shapes, panels: usize, rows: usize) -> MicroKernel {
    // Only AVX-512 has registers to choose with.
    let _ = panels;
    let of_rows = match shapes {
        Shapes::Row(isa, format) => return row(isa, format, panels),
        Shapes::Dense(isa) | Shapes::Widened(isa) => match isa.kind() {
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
        Shapes::Pairs(isa) => match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => match panels {
                1 => shapes!(avx512_pairs, 1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                _ => shapes!(avx512_pairs, 2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
            },
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => shapes!(neon_pairs, 1: 1 2 3 4 5),
            #[allow(unreachable_patterns)]
            _ => unreachable!("pairs without instructions for them"),
        },
        Shapes::NarrowGroups { isa, width, .. } => match isa.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => match width {
                1 => shapes!(avx512_grouped, 1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                2 => shapes!(avx512_grouped, 2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                4 => shapes!(avx512_grouped, 4: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                _ => shapes!(avx512_grouped, 8: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
            },
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Fma => match width {
                1 => shapes!(avx2_grouped, 1: 1 2 3),
                2 => shapes!(avx2_grouped, 2: 1 2 3),
                4 => shapes!(avx2_grouped, 4: 1 2 3),
                _ => shapes!(avx2_grouped, 8: 1 2 3),
            },
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => match width {
                1 => shapes!(neon_grouped, 1: 1 2 3),
                2 => shapes!(neon_grouped, 2: 1 2 3),
                4 => shapes!(neon_grouped, 4: 1 2 3),
                _ => shapes!(neon_grouped, 8: 1 2 3),
            },
            Kind::Portable => match width {
                1 => shapes!(portable_grouped, 1: 1),
                2 => shapes!(portable_grouped, 2: 1),
                4 => shapes!(portable_grouped, 4: 1),
                _ => shapes!(portable_grouped, 8: 1),
            },
        },
    };
    of_rows[rows - 1]
}

/// The micro-kernel of one position, with weights of a format whose kernels the instruction set has ([`Format::isa`]).
fn row(isa: Isa, format: Format, panels: usize) -> MicroKernel {
    let _ = panels;
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => match format {
            Format::Blocks(blocks) => by_block_format!(blocks, F => match panels {
                1 => avx512_row::<F, 1>,
                2 => avx512_row::<F, 2>,
                3 => avx512_row::<F, 3>,
                _ => avx512_row::<F, 4>,
            }),
            _ => unreachable!("{format:?} has no kernels with AVX-512"),
        },
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2Fma => by_any_format!(format, F => avx2_row::<F>),
        #[cfg(target_arch = "aarch64")]
        Kind::Neon => by_any_format!(format, F => neon_row::<F>),
        Kind::Portable => by_any_format!(format, F => portable_row::<F>),
    }
}
