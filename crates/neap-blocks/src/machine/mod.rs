//! Vectors of an instruction set: a lane for each of some output rows.
//!
//! A [`Machine`] is a token whose methods are inlined into functions compiled for its instructions, so all of them, and all that
//! call them, are `#[inline(always)]`.

use crate::SPAN;

mod portable;
pub(crate) use portable::Portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) use {avx2::Avx2, avx512::Avx512Vnni};

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{Neon, NeonDot};

/// The most lanes of any machine.
pub(crate) const MOST_LANES: usize = 16;

/// From a byte of the upper plane to that of the lower one.
pub(crate) const TO_LOW: usize = SPAN;

/// Vectors of [`Machine::LANES`] lanes: of 32 bits, which may be four bytes, and of floats.
pub(crate) trait Machine: Copy {
    /// 32 bits, or four bytes.
    type V: Copy;
    /// Floats.
    type F: Copy;
    /// Products of both planes on their way to a sum.
    type Sums: Copy;

    /// Output rows side by side.
    const LANES: usize;
    /// Rows of activations whose sums stay in registers.
    const ROWS: usize;
    /// Signed weights are put as unsigned ones, this power of two above, where products take no others.
    const SIGNED_ZERO_BITS: u32;

    /// The first 16 bytes of each row, `stride` bytes apart: four of each in a vector.
    ///
    /// # Safety
    /// All those bytes may be read.
    unsafe fn columns(self, at: *const u8, stride: usize) -> [Self::V; 4];
    /// The first of [`Machine::columns`].
    ///
    /// # Safety
    /// As there: all 16 bytes.
    unsafe fn column(self, at: *const u8, stride: usize) -> Self::V;

    fn splat(self, x: i32) -> Self::V;
    fn and(self, a: Self::V, b: Self::V) -> Self::V;
    fn or(self, a: Self::V, b: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// Of 32 bits.
    fn shl(self, a: Self::V, bits: u32) -> Self::V;
    /// Of 32 bits, zeros from above.
    fn shr(self, a: Self::V, bits: u32) -> Self::V;
    /// Of 32 bits, signs from above.
    fn sar(self, a: Self::V, bits: u32) -> Self::V;
    /// Each byte's entry; bytes are below 16.
    fn look_up(self, bytes: Self::V, table: &[i8; 16]) -> Self::V;
    /// 16 in the bytes whose bit is set, of the four bits from `4 * quad` on of each lane.
    fn bits_as_16(self, v: Self::V, quad: usize) -> Self::V;
    /// Signed bytes as products take them: [`Machine::SIGNED_ZERO_BITS`].
    fn signed(self, v: Self::V) -> Self::V;

    fn splat_float(self, x: f32) -> Self::F;
    /// Integers, rounded.
    fn number(self, v: Self::V) -> Self::F;
    /// The half-precision floats in the low halves.
    fn half(self, v: Self::V) -> Self::F;
    /// Floats by their bits.
    fn float(self, v: Self::V) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    /// # Safety
    /// As many floats as there are lanes may be read.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// # Safety
    /// So many numbers of two bytes may be read.
    unsafe fn load_f16(self, p: *const u8) -> Self::F;
    /// # Safety
    /// So many numbers of two bytes may be read.
    unsafe fn load_bf16(self, p: *const u8) -> Self::F;
    /// # Safety
    /// As many floats as there are lanes may be written.
    unsafe fn store(self, p: *mut f32, v: Self::F);

    /// How many products with weights of at most `most` may be added before [`Machine::total`].
    fn run(most: i32) -> usize;
    fn none(self) -> Self::Sums;
    /// Adds the products of each lane's four weights with four activations, of both planes.
    ///
    /// # Safety
    /// Four bytes may be read at `x` and [`TO_LOW`] bytes further.
    unsafe fn dot(self, sums: Self::Sums, w: Self::V, x: *const i8, signed: bool) -> Self::Sums;
    /// Sums of whole activations.
    fn total(self, sums: Self::Sums) -> Self::V;

    /// The same byte in all places.
    #[inline(always)]
    fn bytes(self, byte: u8) -> Self::V {
        self.splat(i32::from_ne_bytes([byte; 4]))
    }

    /// A byte of each lane.
    #[inline(always)]
    fn byte(self, v: Self::V, which: u32) -> Self::V {
        self.and(self.shr(v, 8 * which), self.splat(255))
    }
}

/// The four bytes at `x`, as one number.
///
/// # Safety
/// They may be read.
#[inline(always)]
unsafe fn four(x: *const i8) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { x.cast::<i32>().read_unaligned() }
}
