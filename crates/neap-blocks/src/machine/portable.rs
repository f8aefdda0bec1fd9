//! Lanes as arrays, for processors that are not known here.

use super::{Machine, TO_LOW, four};

/// Needs no instructions in particular.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const LANES: usize = 4;

type V = [u32; LANES];
type F = [f32; LANES];

#[inline(always)]
fn each<T: Copy, U: Copy + Default>(a: [T; LANES], f: impl Fn(T) -> U) -> [U; LANES] {
    let mut out = [U::default(); LANES];
    for (out, a) in out.iter_mut().zip(a) {
        *out = f(a);
    }
    out
}

#[inline(always)]
fn both<T: Copy + Default>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> T) -> [T; LANES] {
    let mut out = a;
    for (out, b) in out.iter_mut().zip(b) {
        *out = f(*out, b);
    }
    out
}

/// A half-precision float; every one is an `f32`.
#[inline(never)]
fn half(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff);
    let magnitude = match rest {
        // Infinite, or no number.
        0x7c00.. => 0x7f80_0000 | rest << 13,
        0x0400.. => (rest << 13) + ((127 - 15) << 23),
        // Units of 2^-24.
        _ => (rest as f32 * f32::from_bits((127 - 24) << 23)).to_bits(),
    };
    f32::from_bits(sign | magnitude)
}

/// Sums of four products each. Here and below it is small code that counts: there is a copy of it for each type.
#[inline(never)]
fn products(w: V, x: i32) -> [i32; LANES] {
    let x = x.to_ne_bytes();
    each(w, |w| {
        let products = w.to_le_bytes().into_iter().zip(x);
        // Unsigned weights are below 128.
        let product = |(w, x): (u8, u8)| i32::from(w.cast_signed()) * i32::from(x.cast_signed());
        products.map(product).sum()
    })
}

#[inline(never)]
fn looked_up(bytes: V, table: &[i8; 16]) -> V {
    each(bytes, |v| {
        let entry = |byte: u8| table[usize::from(byte & 15)].cast_unsigned();
        u32::from_le_bytes(v.to_le_bytes().map(entry))
    })
}

impl Machine for Portable {
    type V = V;
    type F = F;
    type Sums = [[i32; LANES]; 2];

    const LANES: usize = LANES;
    const ROWS: usize = 2;
    const SIGNED_ZERO_BITS: u32 = 0;

    #[inline(always)]
    unsafe fn columns(self, at: *const u8, stride: usize) -> [V; 4] {
        let mut columns = [[0; LANES]; 4];
        for (c, column) in columns.iter_mut().enumerate() {
            // SAFETY: bytes among the first 16 of each row.
            *column = unsafe { self.column(at.add(4 * c), stride) };
        }
        columns
    }

    #[inline(always)]
    unsafe fn column(self, at: *const u8, stride: usize) -> V {
        let mut column = [0; LANES];
        for (lane, v) in column.iter_mut().enumerate() {
            // SAFETY: the first bytes of a row.
            let bytes = unsafe { at.add(lane * stride).cast::<[u8; 4]>().read() };
            *v = u32::from_le_bytes(bytes);
        }
        column
    }

    #[inline(always)]
    fn splat(self, x: i32) -> V {
        [x.cast_unsigned(); LANES]
    }

    #[inline(always)]
    fn and(self, a: V, b: V) -> V {
        both(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, a: V, b: V) -> V {
        both(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        both(a, b, u32::wrapping_add)
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        both(a, b, u32::wrapping_sub)
    }

    #[inline(always)]
    fn shl(self, a: V, bits: u32) -> V {
        each(a, |a| a << bits)
    }

    #[inline(always)]
    fn shr(self, a: V, bits: u32) -> V {
        each(a, |a| a >> bits)
    }

    #[inline(always)]
    fn sar(self, a: V, bits: u32) -> V {
        each(a, |a| (a.cast_signed() >> bits).cast_unsigned())
    }

    #[inline(always)]
    fn look_up(self, bytes: V, table: &[i8; 16]) -> V {
        looked_up(bytes, table)
    }

    #[inline(always)]
    fn bits_as_16(self, v: V, quad: usize) -> V {
        each(v, |v| {
            let four = v >> (4 * quad) & 15;
            // Bit i to bit 8 i.
            ((four * 0x0020_4081) & 0x0101_0101) << 4
        })
    }

    #[inline(always)]
    fn signed(self, v: V) -> V {
        v
    }

    #[inline(always)]
    fn splat_float(self, x: f32) -> F {
        [x; LANES]
    }

    #[inline(always)]
    fn number(self, v: V) -> F {
        each(v, |v| v.cast_signed() as f32)
    }

    #[inline(always)]
    fn half(self, v: V) -> F {
        each(v, |v| half(v as u16))
    }

    #[inline(always)]
    fn float(self, v: V) -> F {
        each(v, f32::from_bits)
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        both(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        let mut out = c;
        for (i, out) in out.iter_mut().enumerate() {
            *out = a[i].mul_add(b[i], *out);
        }
        out
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<F>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> F {
        // SAFETY: the caller's promise.
        let bytes = unsafe { p.cast::<[[u8; 2]; LANES]>().read() };
        each(bytes, |b| half(u16::from_le_bytes(b)))
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> F {
        // SAFETY: the caller's promise.
        let bytes = unsafe { p.cast::<[[u8; 2]; LANES]>().read() };
        each(bytes, |b| {
            f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)
        })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: F) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<F>().write_unaligned(v) };
    }

    #[inline(always)]
    fn run(_: i32) -> usize {
        8
    }

    #[inline(always)]
    fn none(self) -> Self::Sums {
        [[0; LANES]; 2]
    }

    #[inline(always)]
    unsafe fn dot(self, mut sums: Self::Sums, w: V, x: *const i8, _: bool) -> Self::Sums {
        // SAFETY: the caller's promise.
        let planes = unsafe { [four(x), four(x.add(TO_LOW))] };
        for (sums, x) in sums.iter_mut().zip(planes) {
            *sums = both(*sums, products(w, x), i32::wrapping_add);
        }
        sums
    }

    #[inline(always)]
    fn total(self, [high, low]: Self::Sums) -> V {
        let mut total = [0; LANES];
        for (i, total) in total.iter_mut().enumerate() {
            *total = (128 * high[i] + low[i]).cast_unsigned();
        }
        total
    }
}
