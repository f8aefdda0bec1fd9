//! Matrix products against a plain reference in f64, and the same bits however the work is cut.

use crate::support::{Scrambled, affordable, isas, numbers};
use neap_kernels::epilogue::{Activation, Epilogue, Residual};
use neap_kernels::linear::{LinearShape, MatMulShape, linear, matmul, matmul_scratch_bytes};
use neap_kernels::panel::{Affine, pack_rows, panel_floats};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::simd::{Isa, LANES};
use std::ops::Range;

/// `(m, k, n)`
const CASES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (1, 2048, 100),
    (1, 33, 1000),
    (2, 64, 64),
    (3, 17, 31),
    (5, 300, 49),
    (6, 16, 16),
    (7, 128, 80),
    (13, 129, 33),
    (14, 500, 15),
    (15, 1, 48),
    (50, 1100, 96),
    (197, 96, 130),
    (4, 0, 20),
];

/// Sum in f64 and sum of magnitudes of `a[row] . b[column]`.
fn dot(a: impl Iterator<Item = f32>, b: impl Iterator<Item = f32>) -> (f64, f64) {
    a.zip(b).fold((0.0, 0.0), |(sum, size), (a, b)| {
        let term = f64::from(a) * f64::from(b);
        (sum + term, size + term.abs())
    })
}

fn close(got: f32, want: f64, size: f64, k: usize) -> bool {
    (f64::from(got) - want).abs() <= 4e-7 * size * (k as f64).sqrt().max(4.0) + 1e-30
}

struct Layer {
    shape: LinearShape,
    a: Vec<f32>,
    weights: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
    panels: Vec<f32>,
}

fn layer(&(m, k, n): &(usize, usize, usize), gap: usize) -> Layer {
    let shape = LinearShape {
        m,
        k,
        n,
        a_stride: k + gap,
        out_stride: n + 2 * gap,
    };
    let weights = numbers(n * k, 1);
    let bias = numbers(n, 2);
    let mut panels = vec![f32::NAN; shape.panels() * panel_floats(k)];
    let affine = Affine {
        scale: None,
        bias: Some(&bias),
    };
    pack_rows(n, k, 0..shape.panels(), &weights, affine, &mut panels).unwrap();
    let a = numbers(m * shape.a_stride, 3);
    let residual = numbers(m * shape.out_stride, 4);
    Layer {
        shape,
        a,
        weights,
        bias,
        residual,
        panels,
    }
}

fn run_layer(
    l: &Layer,
    isa: Isa,
    parallel: &dyn Parallel,
    ranges: &[Range<usize>],
    activation: Activation,
    residual: u8,
) -> Vec<f32> {
    let mut out = if residual == 2 {
        l.residual.clone()
    } else {
        vec![-7.0; l.residual.len()]
    };
    let floats = panel_floats(l.shape.k);
    let residual = match residual {
        0 => Residual::None,
        1 => Residual::Separate(&l.residual),
        _ => Residual::InPlace,
    };
    for range in ranges {
        let w = &l.panels[range.start * floats..range.end * floats];
        let e = Epilogue {
            activation,
            residual,
        };
        linear(isa, parallel, &l.shape, range.clone(), w, &l.a, &mut out, e).unwrap();
    }
    out
}

#[test]
fn linear_layers_are_right_on_every_instruction_set() {
    for case in CASES.iter().filter(|(m, k, n)| affordable(m * k * n)) {
        for gap in [0, 3] {
            let l = layer(case, gap);
            let s = &l.shape;
            let all = 0..s.panels();
            for isa in isas() {
                for residual in [0, 1] {
                    let got = run_layer(
                        &l,
                        isa,
                        &Serial,
                        std::slice::from_ref(&all),
                        Activation::None,
                        residual,
                    );
                    for row in 0..s.m {
                        for column in 0..s.out_stride {
                            let at = row * s.out_stride + column;
                            if column >= s.n {
                                assert_eq!(got[at], -7.0, "{case:?} wrote past its columns");
                                continue;
                            }
                            let (sum, size) = dot(
                                l.a[row * s.a_stride..][..s.k].iter().copied(),
                                l.weights[column * s.k..][..s.k].iter().copied(),
                            );
                            let first = f64::from(l.bias[column])
                                + if residual == 1 {
                                    f64::from(l.residual[at])
                                } else {
                                    0.0
                                };
                            let (want, size) = (sum + first, size + first.abs());
                            assert!(
                                close(got[at], want, size, s.k),
                                "{} {case:?} {row} {column}: {} {want}",
                                isa.name(),
                                got[at]
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_same_bits_however_the_work_is_cut() {
    for case in CASES.iter().filter(|(m, k, n)| affordable(10 * m * k * n)) {
        let l = layer(case, 1);
        let panels = l.shape.panels();
        let whole: Vec<_> = std::iter::once(0..panels).collect();
        let single: Vec<_> = (0..panels).map(|p| p..p + 1).collect();
        let uneven: Vec<_> = [0..panels / 3, panels / 3..panels]
            .into_iter()
            .filter(|r| !r.is_empty())
            .collect();
        for isa in isas() {
            for activation in [Activation::Relu, Activation::Gelu] {
                // The gaps between the rows differ by residual: compare the columns only.
                let bits = |v: &[f32]| -> Vec<u32> {
                    let rows = v.chunks(l.shape.out_stride);
                    rows.flat_map(|row| row[..l.shape.n].iter().map(|x| x.to_bits()))
                        .collect()
                };
                let want = bits(&run_layer(&l, isa, &Serial, &whole, activation, 1));
                for workers in [1, 3] {
                    for ranges in [&whole, &single, &uneven] {
                        for residual in [1, 2] {
                            let got = run_layer(
                                &l,
                                isa,
                                &Scrambled(workers),
                                ranges,
                                activation,
                                residual,
                            );
                            assert_eq!(
                                bits(&got),
                                want,
                                "{} {case:?} {workers} {ranges:?}",
                                isa.name()
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_activations_are_right() {
    for &(m, k, n) in CASES {
        for (batch, shared_b, b_transposed) in [
            (1, false, false),
            (1, false, true),
            (3, true, false),
            (12, false, true),
            (4, false, false),
        ] {
            if !affordable(10 * batch * m * k * n) {
                continue;
            }
            let mut s = MatMulShape::dense(batch, m, k, n);
            s.alpha = 0.5;
            s.b_transposed = b_transposed;
            if b_transposed {
                s.b_stride = k;
            }
            if shared_b {
                s.b_batch_stride = 0;
            }
            let a = numbers(batch * m * k, 5);
            let b = numbers(if shared_b { k * n } else { batch * k * n }, 6);
            for isa in isas() {
                let mut first: Option<Vec<f32>> = None;
                for workers in [1, 3] {
                    let mut out = vec![f32::NAN; batch * m * n];
                    let mut scratch = vec![f32::NAN; matmul_scratch_bytes(&s, workers) / 4];
                    matmul(isa, &Scrambled(workers), &s, &a, &b, &mut out, &mut scratch).unwrap();
                    if let Some(first) = &first {
                        assert!(
                            out.iter()
                                .zip(first)
                                .all(|(a, b)| a.to_bits() == b.to_bits())
                        );
                        continue;
                    }
                    for i in 0..batch {
                        for row in 0..m {
                            for column in 0..n {
                                let b = &b[i * s.b_batch_stride..];
                                let column_of_b = (0..k).map(|k| {
                                    b[if b_transposed {
                                        column * s.b_stride + k
                                    } else {
                                        k * n + column
                                    }]
                                });
                                let a = a[(i * m + row) * k..][..k].iter().copied();
                                let (sum, size) = dot(a, column_of_b);
                                let got = out[(i * m + row) * n + column];
                                assert!(
                                    close(got, sum * 0.5, size, k),
                                    "{} {s:?} {row} {column}: {got} {sum}",
                                    isa.name()
                                );
                            }
                        }
                    }
                    first = Some(out);
                }
            }
        }
    }
}

/// A right-hand matrix of 29 MB is packed in groups of panels: the same bits as columns by themselves.
#[test]
fn large_products_go_in_groups_of_panels() {
    // More rows than are multiplied with the matrix as it lies.
    let (m, k, n) = (5, 60_000, 7 * LANES + 5);
    let (a, b) = (numbers(m * k, 5), numbers(k * n, 6));
    let product = |s: &MatMulShape, b: &[f32], workers: usize| {
        let mut out = vec![f32::NAN; m * s.n];
        let mut scratch = vec![f32::NAN; matmul_scratch_bytes(s, workers) / 4];
        let isa = Isa::detect();
        matmul(isa, &Scrambled(workers), s, &a, b, &mut out, &mut scratch).unwrap();
        out
    };
    for workers in [1, 6] {
        let whole = MatMulShape::dense(1, m, k, n);
        assert!(matmul_scratch_bytes(&whole, workers) < k * n * 4);
        let found = product(&whole, &b, workers);
        for column in (0..n).step_by(LANES) {
            let columns = LANES.min(n - column);
            let own = MatMulShape {
                b_stride: n,
                ..MatMulShape::dense(1, m, k, columns)
            };
            let by_itself = product(&own, &b[column..], 1);
            for row in 0..m {
                let bits = |row: &[f32]| row.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                let found = bits(&found[row * n + column..][..columns]);
                assert_eq!(found, bits(&by_itself[row * columns..][..columns]));
            }
        }
        let mut turned = vec![0.0; k * n];
        for (at, &value) in b.iter().enumerate() {
            turned[at % n * k + at / n] = value;
        }
        let turned_shape = MatMulShape {
            b_transposed: true,
            b_stride: k,
            ..whole
        };
        assert_eq!(product(&turned_shape, &turned, workers), found);
    }
}

#[test]
fn bad_calls_are_refused() {
    let l = layer(&(5, 40, 30), 0);
    let mut out = vec![0.0; 150];
    let (isa, e) = (Isa::detect(), Epilogue::default());
    let ok = linear(isa, &Serial, &l.shape, 0..2, &l.panels, &l.a, &mut out, e);
    assert_eq!(ok, Ok(()));
    assert!(linear(isa, &Serial, &l.shape, 0..3, &l.panels, &l.a, &mut out, e).is_err());
    assert!(
        linear(
            isa,
            &Serial,
            &l.shape,
            0..2,
            &l.panels[1..],
            &l.a,
            &mut out,
            e
        )
        .is_err()
    );
    assert!(
        linear(
            isa,
            &Serial,
            &l.shape,
            0..2,
            &l.panels,
            &l.a[1..],
            &mut out,
            e
        )
        .is_err()
    );
    assert!(
        linear(
            isa,
            &Serial,
            &l.shape,
            0..2,
            &l.panels,
            &l.a,
            &mut out[1..],
            e
        )
        .is_err()
    );
    let overlapping = LinearShape {
        out_stride: 29,
        ..l.shape
    };
    assert!(
        linear(
            isa,
            &Serial,
            &overlapping,
            0..2,
            &l.panels,
            &l.a,
            &mut out,
            e
        )
        .is_err()
    );
    let huge = LinearShape {
        k: usize::MAX,
        a_stride: usize::MAX,
        ..l.shape
    };
    assert!(linear(isa, &Serial, &huge, 0..2, &l.panels, &l.a, &mut out, e).is_err());
    let s = MatMulShape::dense(2, 5, 40, 30);
    let b = numbers(2 * 40 * 30, 1);
    assert!(matmul(isa, &Serial, &s, &l.a, &b, &mut out, &mut []).is_err());
}
