//! Scalar functions that the standard library lacks.

/// The error function, to double precision.
pub(crate) fn erf(x: f64) -> f64 {
    let magnitude = x.abs();
    if magnitude.is_nan() {
        x
    } else if magnitude < 2.5 {
        // 2/sqrt(pi) exp(-x^2) * sum of 2^n x^(2n+1) / (2n+1)!!: all terms have one sign.
        let square = x * x;
        let (mut term, mut sum, mut n) = (x, x, 1.0);
        while term.abs() > 1e-18 * sum.abs() {
            term *= 2.0 * square / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-square).exp() * sum
    } else if magnitude < 6.0 {
        // The complement's continued fraction, from its tail.
        let mut fraction = magnitude;
        for n in (1..=60).rev() {
            fraction = magnitude + f64::from(n) / 2.0 / fraction;
        }
        let complement = (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI / 2.0 / fraction;
        (1.0 - complement).copysign(x)
    } else {
        1f64.copysign(x)
    }
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

/// `ln(1 + exp(x))` without overflow.
pub(crate) fn softplus(x: f64) -> f64 {
    if x > 0.0 {
        x + (-x).exp().ln_1p()
    } else {
        x.exp().ln_1p()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_double_precision() {
        // Values from tables of the function.
        let table = [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (2.6, 0.999_763_965_583_470_7),
            (3.0, 0.999_977_909_503_001_4),
            (7.0, 1.0),
        ];
        for (x, y) in table {
            assert!((erf(x) - y).abs() < 1e-14, "erf({x}) = {}", erf(x));
            assert!((erf(-x) + y).abs() < 1e-14);
        }
        assert!(erf(f64::NAN).is_nan());
    }

    #[test]
    fn sigmoid_and_softplus_do_not_overflow() {
        assert_eq!(sigmoid(-1000.0), 0.0);
        assert_eq!(sigmoid(1000.0), 1.0);
        assert_eq!(softplus(1000.0), 1000.0);
        assert_eq!(softplus(-1000.0), 0.0);
    }
}
