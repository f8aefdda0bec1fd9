//! Widening of `f32` in 28 bits: most exponents of a panel are among few, so four bits tell which.
//!
//! ```text
//!   panel   [bias 16][table: 16 exponents, zeros to 64 bytes][others: 16 f32 each][k][56 bytes]
//!   of a k  [low 16 bits of each lane's significand][sign and its high 7 bits, a byte each][codes, two in a byte]
//! ```
//! Codes 0 to 14 stand for exponents of the table. A weight with code 15 is among the others, whole: where, its 23 bits of
//! significand say. So every `f32` can be held: zeros, subnormal numbers, infinities and NaN, with their bits. Lanes stand in an
//! order that suits AVX2 ([`place`]).

use super::LANES;

/// Bytes of 16 weights.
pub(crate) const STEP_BYTES: usize = 56;
/// Where the bytes with signs and the codes begin in them.
pub(crate) const SIGNS: usize = 32;
pub(crate) const CODES: usize = 48;
/// Where the table and the others begin in a panel.
pub(crate) const TABLE: usize = LANES * 4;
pub(crate) const OTHERS: usize = 2 * LANES * 4;
/// The code of a weight that is among the others.
pub(crate) const OTHER: u8 = 15;

/// Where lane `i` stands. Interleaving the halves of each 128 bits brings the first 8 lanes into one register.
pub(crate) const fn place(lane: usize) -> usize {
    lane % 4 + lane / 8 * 4 + lane / 4 % 2 * 8
}

/// Puts the weights of other exponents where the codes ask for them.
///
/// Wherever the significand of a damaged panel points, nothing outside it is read.
///
/// # Safety
/// `at` is a k of the panel that begins at `head`.
#[cold]
#[inline(never)]
pub(crate) unsafe fn put_others(lanes: &mut [f32; LANES], at: *const u8, head: *const f32) {
    let others = (at.addr() - head.addr() - OTHERS) / 4;
    for (lane, x) in lanes.iter_mut().enumerate() {
        let place = place(lane);
        // SAFETY: the codes are part of the k, and the others stand between the panel's table and its first k.
        unsafe {
            let pair = *at.add(CODES + place % 8);
            if pair >> (place / 8 * 4) & 15 == OTHER {
                let index = (x.to_bits() & 0x007f_ffff) as usize;
                let from = head
                    .byte_add(OTHERS)
                    .add(index.min(others.saturating_sub(1)));
                *x = from.read_unaligned();
            }
        }
    }
}

/// One k without vectors.
///
/// # Safety
/// As [`put_others`].
#[inline(always)]
pub(crate) unsafe fn widen(at: *const u8, head: *const f32) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    let mut any = false;
    for (lane, x) in lanes.iter_mut().enumerate() {
        let place = place(lane);
        // SAFETY: the parts of the k, and of the table.
        unsafe {
            let low = at.add(2 * place).cast::<[u8; 2]>().read();
            let high = *at.add(SIGNS + place);
            let code = *at.add(CODES + place % 8) >> (place / 8 * 4) & 15;
            let exponent = *head.cast::<u8>().add(TABLE + usize::from(code));
            let bits = u32::from(u16::from_le_bytes(low))
                | u32::from(high & 0x7f) << 16
                | u32::from(high & 0x80) << 24
                | u32::from(exponent) << 23;
            *x = f32::from_bits(bits);
            any |= code == OTHER;
        }
    }
    if any {
        // SAFETY: the caller's promise.
        unsafe { put_others(&mut lanes, at, head) };
    }
    lanes
}
