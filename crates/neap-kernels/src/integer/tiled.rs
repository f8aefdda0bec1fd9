//! Tiled of sums, and results of one that are made beside the products of the next: what an instruction set does of its own.

use super::beside::{Beside, Piece};
use super::dot::{Dot, MAX_PANELS};
use super::finish::Head;
use super::tile::{Reads, add_tile};
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2Fma;
#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
use crate::simd::Portable;

pub(super) trait Tiled: Dot {
    /// Makes results of a panel and goes on to the next, where [`Dot::BESIDE`].
    ///
    /// # Safety
    /// The piece's sums, head, rows of results and residual are there.
    #[inline(always)]
    unsafe fn piece(self, _: &mut Piece) {}
    /// Calls [`add_tile`]; where many layers share it, in a function of its own.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn tile<const P: usize, const R: usize>(
        self,
        reads: &mut Reads<'_>,
        quads: *const u8,
        heads: &[Head; MAX_PANELS],
        sums: *mut i32,
        _: &mut Beside<'_>,
    ) {
        // SAFETY: the caller's promise.
        unsafe { add_tile::<Self, P, R>(self, reads, quads, heads, sums) }
    }
}

impl Tiled for Portable {}

#[cfg(target_arch = "aarch64")]
impl Tiled for Neon {}

#[cfg(target_arch = "x86_64")]
impl Tiled for Avx2Fma {}
