//! The four kinds of 8-bit floating point. Their numbers are carried as `f32`, which holds all of them exactly.

use serde::{Deserialize, Serialize};

/// ONNX's names; `FN` has no infinities, `UZ` no negative zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Float8 {
    E4M3Fn,
    E4M3FnUz,
    E5M2,
    E5M2FnUz,
}

impl Float8 {
    pub const ALL: [Float8; 4] = [
        Float8::E4M3Fn,
        Float8::E4M3FnUz,
        Float8::E5M2,
        Float8::E5M2FnUz,
    ];

    /// Lower-case name as ONNX's schemas write it.
    pub const fn name(self) -> &'static str {
        match self {
            Float8::E4M3Fn => "float8e4m3fn",
            Float8::E4M3FnUz => "float8e4m3fnuz",
            Float8::E5M2 => "float8e5m2",
            Float8::E5M2FnUz => "float8e5m2fnuz",
        }
    }

    /// Bits of the fraction, and what is subtracted from the exponent.
    const fn layout(self) -> (u32, i32) {
        match self {
            Float8::E4M3Fn => (3, 7),
            Float8::E4M3FnUz => (3, 8),
            Float8::E5M2 => (2, 15),
            Float8::E5M2FnUz => (2, 16),
        }
    }

    const fn has_negative_zero(self) -> bool {
        matches!(self, Float8::E4M3Fn | Float8::E5M2)
    }

    /// The largest number.
    pub const fn max(self) -> f32 {
        match self {
            Float8::E4M3Fn => 448.0,
            Float8::E4M3FnUz => 240.0,
            Float8::E5M2 | Float8::E5M2FnUz => 57344.0,
        }
    }

    /// What a code stands for.
    pub fn decode(self, code: u8) -> f32 {
        let (fraction_bits, bias) = self.layout();
        let (negative, magnitude) = (code & 0x80 != 0, code & 0x7f);
        let special = match self {
            Float8::E4M3Fn => (magnitude == 0x7f).then_some(f32::NAN),
            Float8::E5M2 if magnitude == 0x7c => Some(f32::INFINITY),
            Float8::E5M2 => (magnitude > 0x7c).then_some(f32::NAN),
            Float8::E4M3FnUz | Float8::E5M2FnUz => (code == 0x80).then_some(f32::NAN),
        };
        let fraction = i32::from(magnitude) & ((1 << fraction_bits) - 1);
        let exponent = i32::from(magnitude >> fraction_bits);
        let whole = match exponent {
            0 => fraction,
            _ => fraction | 1 << fraction_bits,
        };
        let step = power_of_two(exponent.max(1) - bias - fraction_bits as i32);
        let value = special.unwrap_or(whole as f32 * step);
        if negative { -value } else { value }
    }

    /// The nearest number, of two equally near the one with an even code. What is too large becomes the largest number where
    /// it saturates, else infinity or, where there is none, NaN.
    pub fn round(self, x: f32, saturate: bool) -> f32 {
        if x.is_nan() {
            return x;
        }
        let (fraction_bits, bias) = self.layout();
        let magnitude = x.abs();
        // Of numbers below the smallest normal one the exponent is the same.
        let exponent = (magnitude.to_bits() >> 23) as i32 - 127;
        let step = power_of_two(exponent.max(1 - bias) - fraction_bits as i32);
        let rounded = match magnitude.is_finite() {
            true => (magnitude / step).round_ties_even() * step,
            false => magnitude,
        };
        let rounded = if rounded <= self.max() {
            rounded
        } else if saturate {
            self.max()
        } else if self == Float8::E5M2 {
            f32::INFINITY
        } else {
            f32::NAN
        };
        if rounded == 0.0 && !self.has_negative_zero() {
            return 0.0;
        }
        rounded.copysign(x)
    }
}

/// Of exponents that `f32` has as normal numbers.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127).clamp(1, 254) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Among all numbers of the kind; the next code beyond the largest stands for what is too large.
    fn nearest(kind: Float8, x: f32, saturate: bool) -> f32 {
        let numbers = (0..0x80u8).map(|code| kind.decode(code));
        let numbers: Vec<f32> = numbers.filter(|x| x.is_finite()).collect();
        let last = numbers.len() - 1;
        let magnitude = f64::from(x.abs());
        let top = f64::from(numbers[last]);
        let beyond = top + (top - f64::from(numbers[last - 1]));
        let middle = (top + beyond) / 2.0;
        // The code beyond the largest is odd or even as its number says.
        let overflows = magnitude > middle || (magnitude == middle && last % 2 == 1);
        let value = if overflows && !saturate {
            match kind {
                Float8::E5M2 => f32::INFINITY,
                _ => f32::NAN,
            }
        } else if overflows {
            numbers[last]
        } else {
            let distance = |&code: &usize| (f64::from(numbers[code]) - magnitude).abs();
            let best = (0..=last).min_by(|a, b| {
                let by_distance = distance(a).total_cmp(&distance(b));
                by_distance.then((a % 2).cmp(&(b % 2)))
            });
            numbers[best.expect("numbers")]
        };
        let unsigned = matches!(kind, Float8::E4M3FnUz | Float8::E5M2FnUz) && value == 0.0;
        if x.is_sign_negative() && !unsigned {
            -value
        } else {
            value
        }
    }

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
    }

    fn half_float(bits: u16) -> f32 {
        let fraction = f32::from(bits & 0x3ff);
        let magnitude = match bits >> 10 & 31 {
            0 => fraction / (1 << 24) as f32,
            31 if fraction == 0.0 => f32::INFINITY,
            31 => f32::NAN,
            exponent => (1024.0 + fraction) * power_of_two(i32::from(exponent) - 25),
        };
        if bits >> 15 == 1 {
            -magnitude
        } else {
            magnitude
        }
    }

    #[test]
    fn all_half_floats_round_to_the_nearest() {
        for kind in Float8::ALL {
            for bits in 0..=u16::MAX {
                let x = half_float(bits);
                for saturate in [true, false] {
                    let found = kind.round(x, saturate);
                    let expected = if x.is_nan() {
                        f32::NAN
                    } else if x.is_infinite() {
                        nearest(kind, f32::MAX.copysign(x), saturate)
                    } else {
                        nearest(kind, x, saturate)
                    };
                    assert!(
                        same(found, expected),
                        "{}: {x} gives {found}, not {expected}",
                        kind.name()
                    );
                }
            }
        }
    }

    #[test]
    fn all_codes_round_to_themselves() {
        for kind in Float8::ALL {
            for code in 0..=u8::MAX {
                let x = kind.decode(code);
                assert!(same(kind.round(x, false), x), "{} {code}", kind.name());
            }
            let finite = (0..=u8::MAX).map(|c| kind.decode(c));
            let finite = finite.filter(|x| x.is_finite());
            assert_eq!(finite.fold(0.0, f32::max), kind.max(), "{}", kind.name());
        }
    }

    #[test]
    fn codes_of_the_definition() {
        for (kind, code, value) in [
            (Float8::E4M3Fn, 0x01, 0.001953125),
            (Float8::E4M3Fn, 0x38, 1.0),
            (Float8::E4M3Fn, 0xfe, -448.0),
            (Float8::E4M3FnUz, 0x40, 1.0),
            (Float8::E4M3FnUz, 0x7f, 240.0),
            (Float8::E5M2, 0x3c, 1.0),
            (Float8::E5M2, 0xfc, f32::NEG_INFINITY),
            (Float8::E5M2, 0x01, 1.0 / 65536.0),
            (Float8::E5M2FnUz, 0x40, 1.0),
            (Float8::E5M2FnUz, 0x01, 1.0 / 131072.0),
        ] {
            assert_eq!(kind.decode(code), value, "{} {code:#x}", kind.name());
        }
        assert!(Float8::E4M3Fn.decode(0xff).is_nan() && Float8::E5M2FnUz.decode(0x80).is_nan());
    }

    #[test]
    fn small_and_large_single_floats() {
        let tiny = f32::from_bits(1);
        assert_eq!(Float8::E5M2.round(tiny, true), 0.0);
        assert!(same(Float8::E5M2.round(-tiny, true), -0.0));
        assert!(same(Float8::E5M2FnUz.round(-tiny, true), 0.0));
        assert_eq!(Float8::E4M3Fn.round(f32::MAX, true), 448.0);
        assert!(Float8::E4M3Fn.round(f32::MAX, false).is_nan());
    }
}
