//! What blocks of few bits mean, as floats: the reference that kernels are measured against.
//!
//! Products are rounded to `f32` one after the other, scale first, as ggml's own reference does.

use crate::{Error, Kind, Result};
use half::{bf16, f16};

/// Writes the elements that whole blocks stand for.
///
/// # Errors
/// [`Error::NotComputed`] for types whose blocks are not known here.
///
/// # Panics
/// `bytes` are not the blocks of `out.len()` elements.
pub fn dequantize(kind: Kind, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    assert_eq!(
        kind.bytes_of(out.len() as u64),
        Some(bytes.len() as u64),
        "the blocks of these elements"
    );
    let block: fn(&[u8], &mut [f32]) = match kind {
        Kind::F32 => |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        Kind::F16 => |b, y| y[0] = half_at(b, 0),
        Kind::Bf16 => |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        Kind::Q4_0 => q4_0,
        Kind::Q4_1 => q4_1,
        Kind::Q5_0 => q5_0,
        Kind::Q5_1 => q5_1,
        Kind::Q8_0 => q8_0,
        Kind::Q2K => q2_k,
        Kind::Q3K => q3_k,
        Kind::Q4K => q4_k,
        Kind::Q5K => q5_k,
        Kind::Q6K => q6_k,
        Kind::Iq4Nl => iq4_nl,
        Kind::Iq4Xs => iq4_xs,
        Kind::Mxfp4 => mxfp4,
        other => return Err(Error::NotComputed(other)),
    };
    let blocks = bytes.chunks_exact(kind.block_bytes() as usize);
    for (b, y) in blocks.zip(out.chunks_exact_mut(kind.block_elements() as usize)) {
        block(b, y);
    }
    Ok(())
}

fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// Calls `put` with the place and value of each nibble: low ones are the first half, high ones the second.
fn nibbles(bytes: &[u8], mut put: impl FnMut(usize, u8)) {
    for (i, byte) in bytes.iter().enumerate() {
        put(i, byte & 15);
        put(i + bytes.len(), byte >> 4);
    }
}

fn q4_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    nibbles(&b[2..], |i, q| y[i] = (f32::from(q) - 8.0) * d);
}

fn q4_1(b: &[u8], y: &mut [f32]) {
    let (d, least) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[4..], |i, q| y[i] = f32::from(q) * d + least);
}

/// The fifth bits of a block's elements, in their order.
fn fifth(bits: &[u8], i: usize) -> u8 {
    (bits[i / 8] >> (i % 8) & 1) << 4
}

fn q5_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    nibbles(&b[6..], |i, q| {
        y[i] = (f32::from(q | fifth(&b[2..6], i)) - 16.0) * d
    });
}

fn q5_1(b: &[u8], y: &mut [f32]) {
    let (d, least) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[8..], |i, q| {
        y[i] = f32::from(q | fifth(&b[4..8], i)) * d + least
    });
}

fn q8_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for (y, q) in y.iter_mut().zip(&b[2..]) {
        *y = f32::from(q.cast_signed()) * d;
    }
}

/// 16 scales and 16 minima of 4 bits; elements of 2 bits, four groups of 32 in the same bytes.
fn q2_k(b: &[u8], y: &mut [f32]) {
    let (scales, quants) = (&b[..16], &b[16..80]);
    let (d, least) = (half_at(b, 80), half_at(b, 82));
    for (i, y) in y.iter_mut().enumerate() {
        let scale = scales[i / 16];
        let q = quants[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        *y = d * f32::from(scale & 15) * f32::from(q) - least * f32::from(scale >> 4);
    }
}

/// 16 scales of 6 bits: four low bits in nibbles, two high bits in the last four bytes. A third bit of each element in `high`.
fn q3_k(b: &[u8], y: &mut [f32]) {
    let (high, quants, scales) = (&b[..32], &b[32..96], &b[96..108]);
    let d = half_at(b, 108);
    for (i, y) in y.iter_mut().enumerate() {
        let group = i / 16;
        let low = scales[group % 8] >> (group / 8 * 4) & 15;
        let top = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = f32::from(low | top << 4) - 32.0;
        let q = quants[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        let has_high = high[i % 32] >> (i / 32) & 1 != 0;
        let q = f32::from(q) - if has_high { 0.0 } else { 4.0 };
        *y = d * scale * q;
    }
}

/// Scale and minimum of a group of 32, of 6 bits each, eight of both in 12 bytes.
fn scale_and_least(s: &[u8], group: usize) -> (f32, f32) {
    let (scale, least) = match group {
        0..4 => (s[group] & 63, s[group + 4] & 63),
        _ => (
            s[group + 4] & 15 | s[group - 4] >> 6 << 4,
            s[group + 4] >> 4 | s[group] >> 6 << 4,
        ),
    };
    (scale.into(), least.into())
}

fn q4_k(b: &[u8], y: &mut [f32]) {
    let (d, least) = (half_at(b, 0), half_at(b, 2));
    let (scales, quants) = (&b[4..16], &b[16..]);
    for (i, y) in y.iter_mut().enumerate() {
        let (scale, low) = scale_and_least(scales, i / 32);
        let q = quants[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        *y = d * scale * f32::from(q) - least * low;
    }
}

fn q5_k(b: &[u8], y: &mut [f32]) {
    let (d, least) = (half_at(b, 0), half_at(b, 2));
    let (scales, high, quants) = (&b[4..16], &b[16..48], &b[48..]);
    for (i, y) in y.iter_mut().enumerate() {
        let (scale, low) = scale_and_least(scales, i / 32);
        let q = quants[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
        let q = q | (high[i % 32] >> (i / 32) & 1) << 4;
        *y = d * scale * f32::from(q) - least * low;
    }
}

fn q6_k(b: &[u8], y: &mut [f32]) {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = half_at(b, 208);
    for (i, y) in y.iter_mut().enumerate() {
        let half = i / 128;
        let nibble = low[half * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        let top = high[half * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        let q = f32::from(nibble | top << 4) - 32.0;
        *y = d * f32::from(scales[i / 16].cast_signed()) * q;
    }
}

/// What the 16 codes of IQ4 stand for, before the scale.
const IQ4: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

fn iq4_nl(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    nibbles(&b[2..], |i, q| y[i] = d * f32::from(IQ4[usize::from(q)]));
}

fn iq4_xs(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    let high = u16::from_le_bytes([b[2], b[3]]);
    for (group, y) in y.chunks_exact_mut(32).enumerate() {
        let low = b[4 + group / 2] >> (group % 2 * 4) & 15;
        let top = (high >> (2 * group) & 3) as u8;
        let scale = d * (f32::from(low | top << 4) - 32.0);
        let quants = &b[8 + 16 * group..][..16];
        nibbles(quants, |i, q| y[i] = scale * f32::from(IQ4[usize::from(q)]));
    }
}

/// Twice what the 16 codes of a float of 4 bits stand for.
const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn mxfp4(b: &[u8], y: &mut [f32]) {
    // Half of the scale, a power of two; the least two are subnormal.
    let bits = match b[0] {
        e @ 0..2 => 0x0020_0000 << e,
        e => u32::from(e - 1) << 23,
    };
    let d = f32::from_bits(bits);
    nibbles(&b[1..], |i, q| y[i] = f32::from(FP4[usize::from(q)]) * d);
}
