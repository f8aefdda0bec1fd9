//! A session's output beside the standard's: as its own runner compares, and ±∞ and NaN exactly. And a device's beside the
//! processor's: within a part of the largest element.

use neaptide::{DType, Literal};

/// Of the standard's runner. Integers and bools must be equal.
const RTOL: f64 = 1e-3;
const ATOL: f64 = 1e-7;
/// Two steps of bfloat16, as the newer set's own runner has it: some of the expected data are cut off where they should be
/// rounded, and some are rounded after every step of an operator.
const BFLOAT16_RTOL: f64 = 1.0 / 64.0;
/// Of a device, as a part of the largest element.
const DEVICE_TOL: f64 = 1e-4;

/// What differs. Half floats are computed and returned as f32; they are compared as half floats.
pub(super) fn compare(got: &Literal, expected: &Literal) -> Result<(), String> {
    let rtol = match expected.dtype() {
        DType::BF16 => BFLOAT16_RTOL,
        _ => RTOL,
    };
    differs(got, expected, [ATOL, rtol])
}

/// What differs between a device's and the processor's.
pub(super) fn compare_devices(got: &Literal, processor: &Literal) -> Result<(), String> {
    let largest = match processor.dtype().is_float() {
        true => floats(processor).into_iter().filter(|x| x.is_finite()),
        false => return differs(got, processor, [0.0; 2]),
    };
    let largest = largest.fold(0.0f64, |most, x| most.max(x.abs()));
    differs(got, processor, [ATOL.max(DEVICE_TOL * largest), 0.0])
}

fn differs(got: &Literal, expected: &Literal, tolerance: [f64; 2]) -> Result<(), String> {
    let widened = matches!(expected.dtype(), DType::F16 | DType::BF16) && got.dtype() == DType::F32;
    if got.shape() != expected.shape() || (got.dtype() != expected.dtype() && !widened) {
        return Err(format!(
            "{}{:?} instead of {}{:?}",
            got.dtype(),
            got.shape(),
            expected.dtype(),
            expected.shape()
        ));
    }
    if !got.dtype().is_float() {
        let size = got.dtype().size_bytes();
        let pairs = got.bytes().chunks(size).zip(expected.bytes().chunks(size));
        let differing = pairs.enumerate().find(|(_, (a, b))| a != b);
        return match differing {
            Some((i, (a, b))) => Err(format!("element {i} has bytes {a:?} instead of {b:?}")),
            None => Ok(()),
        };
    }
    let mut found = floats(got);
    if widened {
        for x in &mut found {
            *x = match expected.dtype() {
                DType::F16 => half::f16::from_f64(*x).to_f64(),
                _ => half::bf16::from_f64(*x).to_f64(),
            };
        }
    }
    let pairs = found.into_iter().zip(floats(expected));
    match (pairs.enumerate()).find(|(_, (a, b))| !close(*a, *b, tolerance)) {
        Some((i, (a, b))) => Err(format!("element {i} is {a} instead of {b}")),
        None => Ok(()),
    }
}

fn close(got: f64, expected: f64, [atol, rtol]: [f64; 2]) -> bool {
    if got.is_finite() && expected.is_finite() {
        (got - expected).abs() <= atol + rtol * expected.abs()
    } else {
        got == expected || (got.is_nan() && expected.is_nan())
    }
}

/// Elements of a floating-point tensor.
pub(super) fn floats(literal: &Literal) -> Vec<f64> {
    let bytes = literal.bytes();
    match literal.dtype() {
        DType::F64 => {
            let words = bytes.as_chunks::<8>().0.iter();
            words.map(|&b| f64::from_le_bytes(b)).collect()
        }
        DType::F16 => {
            let words = bytes.as_chunks::<2>().0.iter();
            words
                .map(|&b| half::f16::from_le_bytes(b).to_f64())
                .collect()
        }
        DType::BF16 => {
            let words = bytes.as_chunks::<2>().0.iter();
            words
                .map(|&b| half::bf16::from_le_bytes(b).to_f64())
                .collect()
        }
        _ => {
            let words = bytes.as_chunks::<4>().0.iter();
            words.map(|&b| f32::from_le_bytes(b).into()).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(got: f32, expected: f32) -> bool {
        let literal = |x| Literal::from_f32(&[1], &[x]);
        compare(&literal(got), &literal(expected)).is_ok()
    }

    #[test]
    fn what_is_not_finite_must_be_equal() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert!(same(inf, inf) && same(-inf, -inf) && same(nan, nan));
        for (got, expected) in [
            (1.0, inf),
            (inf, 1.0),
            (-inf, inf),
            (nan, inf),
            (nan, 1.0),
            (1.0, nan),
            (f32::MAX, inf),
        ] {
            assert!(!same(got, expected), "{got} for {expected}");
        }
    }

    #[test]
    fn finite_values_may_differ_a_little() {
        assert!(same(1000.5, 1000.0) && !same(1002.0, 1000.0));
        assert!(!same(1e-6, 0.0));
    }

    #[test]
    fn a_device_is_within_a_part_of_the_largest() {
        let same = |got: [f32; 2], expected: [f32; 2]| {
            let [got, expected] = [got, expected].map(|x| Literal::from_f32(&[2], &x));
            compare_devices(&got, &expected).is_ok()
        };
        assert!(same([1000.09, 0.09], [1000.0, 0.0]));
        assert!(!same([1000.11, 0.0], [1000.0, 0.0]));
        assert!(!same([1000.0, f32::INFINITY], [1000.0, 0.0]));
    }
}
