//! Element-wise functions against their formulas in f64.

use neap_kernels::elementwise::{Binary, Operand, Unary, affine, binary, unary, unary_in_place};
use neap_kernels::epilogue::Activation;

use crate::support::{Random, Threads, affordable, assert_close, assert_same_bits, isas};

/// The error function by its series and continued fraction, in f64.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 3.0 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-18 {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let mut fraction = 0.0;
        for k in (1..60).rev() {
            fraction = f64::from(k) / 2.0 / (a + fraction);
        }
        1.0 - (-a * a).exp() / ((a + fraction) * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

fn formula(op: Unary, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let f = f64::from;
    match op {
        Unary::Identity => x,
        Unary::Relu => x.max(0.0),
        Unary::LeakyRelu { alpha } => {
            if x < 0.0 {
                f(alpha) * x
            } else {
                x
            }
        }
        Unary::Elu { alpha } => {
            if x < 0.0 {
                f(alpha) * x.exp_m1()
            } else {
                x
            }
        }
        Unary::Selu { alpha, gamma } => f(gamma) * if x < 0.0 { f(alpha) * x.exp_m1() } else { x },
        Unary::Celu { alpha } => x.max(0.0) + (f(alpha) * (x / f(alpha)).exp_m1()).min(0.0),
        Unary::ThresholdedRelu { alpha } => {
            if x > f(alpha) {
                x
            } else {
                0.0
            }
        }
        Unary::Shrink { bias, lambda } => {
            if x < -f(lambda) {
                x + f(bias)
            } else if x > f(lambda) {
                x - f(bias)
            } else {
                0.0
            }
        }
        Unary::Clip { low, high } => x.max(f(low)).min(f(high)),
        Unary::Sigmoid => sigmoid(x),
        Unary::Silu => x * sigmoid(x),
        Unary::Tanh => x.tanh(),
        Unary::Gelu => x / 2.0 * (1.0 + erf(x / 2f64.sqrt())),
        Unary::GeluTanh => {
            x / 2.0
                * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Unary::HardSigmoid { alpha, beta } => (f(alpha) * x + f(beta)).clamp(0.0, 1.0),
        Unary::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        Unary::Requantize {
            scale,
            zero,
            low,
            high,
            ..
        } => {
            let step = (x / f(scale)).round_ties_even() + f(zero);
            (step.clamp(f(low), f(high)) - f(zero)) * f(scale)
        }
        Unary::Mish => x * softplus(x).tanh(),
        Unary::Softplus => softplus(x),
        Unary::Softsign => x / (1.0 + x.abs()),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Abs => x.abs(),
        Unary::Neg => -x,
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Sign => {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x
            }
        }
        Unary::Erf => erf(x),
        Unary::Square => x * x,
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Asinh => x.asinh(),
        Unary::Acosh => x.acosh(),
        Unary::Atanh => x.atanh(),
    }
}

const EVERY: [Unary; 43] = [
    Unary::Identity,
    Unary::Relu,
    Unary::LeakyRelu { alpha: 0.01 },
    Unary::Elu { alpha: 1.5 },
    Unary::Selu {
        alpha: 1.673_263_2,
        gamma: 1.050_701,
    },
    Unary::Celu { alpha: 2.0 },
    Unary::ThresholdedRelu { alpha: 1.25 },
    Unary::Shrink {
        bias: 0.5,
        lambda: 1.5,
    },
    Unary::Clip {
        low: -1.0,
        high: 2.0,
    },
    Unary::Sigmoid,
    Unary::Silu,
    Unary::Tanh,
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::HardSigmoid {
        alpha: 0.2,
        beta: 0.5,
    },
    Unary::HardSwish,
    Unary::Mish,
    Unary::Softplus,
    Unary::Softsign,
    Unary::Exp,
    Unary::Log,
    Unary::Sqrt,
    Unary::Rsqrt,
    Unary::Abs,
    Unary::Neg,
    Unary::Floor,
    Unary::Ceil,
    Unary::Round,
    Unary::Reciprocal,
    Unary::Sign,
    Unary::Erf,
    Unary::Square,
    Unary::Sin,
    Unary::Cos,
    Unary::Tan,
    Unary::Asin,
    Unary::Acos,
    Unary::Atan,
    Unary::Sinh,
    Unary::Cosh,
    Unary::Asinh,
    Unary::Acosh,
    Unary::Atanh,
];

#[test]
fn unary_functions() {
    let mut random = Random::new(31);
    let mut x = random.vec(4000, -8.0, 8.0);
    x.extend(random.vec(200, -1.0, 1.0));
    x.extend(random.vec(200, -0.05, 0.05));
    x.extend([
        -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1.0, -1.0, 2.0, 30.0, -30.0, 85.0, -85.0, 1e-6, -1e-6,
    ]);
    for op in EVERY {
        let want: Vec<f64> = x.iter().map(|&x| formula(op, f64::from(x))).collect();
        // Where the result is tiny against its argument's rounding, an absolute error counts.
        let floor = match op {
            Unary::Identity | Unary::Exp | Unary::Sqrt | Unary::Abs | Unary::Reciprocal => 0.0,
            _ => 0.1,
        };
        for isa in isas() {
            let mut got = vec![f32::NAN; x.len()];
            unary(isa, &Threads(2), op, &x, &mut got).unwrap();
            assert_close(&got, &want, 3e-6, floor, &format!("{isa:?} {op:?}"));
        }
    }
}

#[test]
fn unary_special_values() {
    let x = [f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 200.0, -200.0];
    for op in EVERY {
        if matches!(
            op,
            Unary::Sin | Unary::Cos | Unary::Tan | Unary::Sinh | Unary::Cosh | Unary::Square
        ) {
            continue; // library functions of single elements, and a product
        }
        for isa in isas() {
            let mut got = [0.0; 6];
            unary(isa, &Threads(1), op, &x, &mut got).unwrap();
            for (&x, &got) in x.iter().zip(&got) {
                let want = formula(op, f64::from(x));
                let what = format!("{isa:?} {op:?}({x}) = {got}, want {want}");
                if want.is_nan() {
                    // The product of an infinity and a zero limit; either answer is a limit.
                    assert!(got.is_nan() || got == 0.0, "{what}");
                } else if want.abs() > f64::from(f32::MAX) {
                    assert!(f64::from(got) == f64::INFINITY.copysign(want), "{what}");
                } else if got.is_nan() {
                    let product = matches!(
                        op,
                        Unary::Silu
                            | Unary::Gelu
                            | Unary::GeluTanh
                            | Unary::Mish
                            | Unary::HardSwish
                            | Unary::Softsign
                    );
                    assert!(product && x.is_infinite(), "{what}");
                } else {
                    assert!(
                        (f64::from(got) - want).abs() <= 1e-5 * want.abs().max(1e-5),
                        "{what}"
                    );
                }
            }
            if !matches!(op, Unary::Clip { .. }) {
                let mut got = [0.0];
                unary(isa, &Threads(1), op, &[f32::NAN], &mut got).unwrap();
                let hides = matches!(op, Unary::Shrink { .. } | Unary::ThresholdedRelu { .. });
                assert!(got[0].is_nan() || hides, "{isa:?} {op:?}(NaN) = {}", got[0]);
            }
        }
    }
}

#[test]
fn lengths_and_workers() {
    let mut random = Random::new(32);
    for len in [0, 1, 15, 16, 17, 100, 4096, 16384, 16385, 50_001] {
        let x = random.vec(len, -3.0, 3.0);
        for isa in isas() {
            let mut whole = vec![f32::NAN; len];
            unary(isa, &Threads(1), Unary::Gelu, &x, &mut whole).unwrap();
            let mut in_place = x.clone();
            unary_in_place(isa, &Threads(3), Unary::Gelu, &mut in_place);
            assert_same_bits(&whole, &in_place, &format!("{isa:?} {len}"));
        }
    }
}

fn two(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::Pow => a.powf(b),
        Binary::Prelu => {
            if a < 0.0 {
                a * b
            } else {
                a
            }
        }
    }
}

fn value(operand: Operand<'_>, before: &[f32], row: usize, col: usize, cols: usize) -> f64 {
    f64::from(match operand {
        Operand::InPlace => before[row * cols + col],
        Operand::Full(x) => x[row * cols + col],
        Operand::Scalar(x) => x,
        Operand::Row(x) => x[col],
        Operand::Column(x) => x[row % x.len()],
        Operand::Lanes(x) => x[row % (x.len() / 16) * 16 + col % 16],
    })
}

#[test]
fn binary_functions_and_broadcasts() {
    let mut random = Random::new(33);
    for (rows, cols) in [
        (1, 1),
        (1, 40),
        (6, 16),
        (5, 48),
        (12, 112),
        (6, 3136),
        (7, 13),
        (300, 1),
        (2, 5000),
    ] {
        // Pairs of operands.
        if !affordable(36 * rows * cols) {
            continue;
        }
        let full = random.vec(rows * cols, 0.5, 2.0);
        let other = random.vec(rows * cols, -2.0, 2.0);
        let row = random.vec(cols, 0.5, 2.0);
        let column = random.vec(rows.div_ceil(2), 0.5, 2.0);
        let lanes = random.vec(rows.div_ceil(3) * 16, 0.5, 2.0);
        let mut operands = vec![
            Operand::InPlace,
            Operand::Full(&full),
            Operand::Scalar(1.75),
            Operand::Row(&row),
            Operand::Column(&column),
        ];
        if cols % 16 == 0 {
            operands.push(Operand::Lanes(&lanes));
        }
        let ops = [
            Binary::Add,
            Binary::Sub,
            Binary::Mul,
            Binary::Div,
            Binary::Min,
            Binary::Max,
            Binary::Pow,
            Binary::Prelu,
        ];
        for op in ops {
            for &a in &operands {
                for &b in &operands {
                    // Only one operand may be negative, and no power of it is wanted.
                    let before = if op == Binary::Pow { &full } else { &other };
                    let want: Vec<f64> = (0..rows * cols)
                        .map(|i| {
                            let of = |x| value(x, before, i / cols, i % cols, cols);
                            two(op, of(a), of(b))
                        })
                        .collect();
                    for isa in isas() {
                        let mut got = before.clone();
                        binary(
                            isa,
                            &Threads(2),
                            op,
                            rows,
                            cols,
                            a,
                            b,
                            &mut got,
                            Activation::None,
                        )
                        .unwrap();
                        assert_close(
                            &got,
                            &want,
                            1e-6,
                            1e-3,
                            &format!("{isa:?} {op:?} {rows} {cols}"),
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn powers_of_constants_and_negative_bases() {
    let x = Random::new(34).vec(100, -3.0, 3.0);
    for isa in isas() {
        for power in [0.0, 1.0, 2.0, 3.0, -2.0] {
            let want: Vec<f64> = x
                .iter()
                .map(|&x| f64::from(x).powf(f64::from(power)))
                .collect();
            let mut got = x.clone();
            let by = Operand::Scalar(power);
            binary(
                isa,
                &Threads(1),
                Binary::Pow,
                1,
                100,
                Operand::InPlace,
                by,
                &mut got,
                Activation::None,
            )
            .unwrap();
            assert_close(&got, &want, 1e-6, 0.0, &format!("{isa:?} {power}"));
        }
    }
}

#[test]
fn min_and_max_keep_nan() {
    let (a, b) = (
        [f32::NAN, 1.0, f32::NAN, 2.0],
        [1.0, f32::NAN, f32::NAN, 3.0],
    );
    for isa in isas() {
        for op in [Binary::Min, Binary::Max] {
            let mut got = [0.0; 4];
            binary(
                isa,
                &Threads(1),
                op,
                1,
                4,
                Operand::Full(&a),
                Operand::Full(&b),
                &mut got,
                Activation::None,
            )
            .unwrap();
            assert!(
                got[..3].iter().all(|x| x.is_nan()),
                "{isa:?} {op:?} {got:?}"
            );
            assert_eq!(got[3], if op == Binary::Min { 2.0 } else { 3.0 });
        }
    }
}

#[test]
fn scale_and_shift() {
    let mut random = Random::new(35);
    for (rows, cols) in [(8, 49 * 16), (3, 16), (40, 49), (1, 100_000)] {
        let x = random.vec(rows * cols, -2.0, 2.0);
        let (scale, shift) = (
            random.vec(rows * 16, -2.0, 2.0),
            random.vec(rows * 16, -2.0, 2.0),
        );
        let kinds: [fn(&[f32], usize) -> Operand<'_>; 2] = [
            |v, rows| Operand::Column(&v[..rows]),
            |v, _| Operand::Lanes(v),
        ];
        for kind in kinds {
            let (scale, shift) = (kind(&scale, rows), kind(&shift, rows));
            if cols % 16 != 0 && matches!(scale, Operand::Lanes(_)) {
                continue;
            }
            let want: Vec<f64> = (0..rows * cols)
                .map(|i| {
                    let of = |o| value(o, &x, i / cols, i % cols, cols);
                    (of(Operand::InPlace) * of(scale) + of(shift)).max(0.0)
                })
                .collect();
            for isa in isas() {
                let mut got = vec![f32::NAN; x.len()];
                let full = Operand::Full(&x);
                affine(
                    isa,
                    &Threads(2),
                    rows,
                    cols,
                    full,
                    scale,
                    shift,
                    &mut got,
                    Activation::Relu,
                )
                .unwrap();
                assert_close(&got, &want, 1e-6, 1.0, &format!("{isa:?} {rows} {cols}"));
                let mut in_place = x.clone();
                affine(
                    isa,
                    &Threads(1),
                    rows,
                    cols,
                    Operand::InPlace,
                    scale,
                    shift,
                    &mut in_place,
                    Activation::Relu,
                )
                .unwrap();
                assert_same_bits(&got, &in_place, "in place");
            }
        }
    }
}
