//! Fourier transforms and determinants beside naive ones.

use crate::support::*;
use neap_ir::Op;
use neap_ir::spectrum::{Dft, Stft};
use std::f64::consts::TAU;

/// `sum of x[i] exp(∓2πi ik/n)`, term by term.
fn naive(x: &[[f64; 2]], inverse: bool) -> Vec<[f64; 2]> {
    let n = x.len();
    let sign = if inverse { 1.0 } else { -1.0 };
    let scale = if inverse { 1.0 / n as f64 } else { 1.0 };
    (0..n)
        .map(|k| {
            let terms = x.iter().enumerate().map(|(i, &[re, im])| {
                let angle = sign * TAU * (i * k % n) as f64 / n as f64;
                let (sin, cos) = angle.sin_cos();
                [re * cos - im * sin, re * sin + im * cos]
            });
            let sum = terms.fold([0.0; 2], |a, b| [a[0] + b[0], a[1] + b[1]]);
            [sum[0] * scale, sum[1] * scale]
        })
        .collect()
}

fn check(outer: usize, given: usize, inner: usize, parts: usize, dft: Dft) {
    let x = noise(&[outer, given, inner, parts], given as u64);
    let y = one(&Op::Dft(dft), &[&x]);
    let made = if dft.onesided {
        dft.length / 2 + 1
    } else {
        dft.length
    };
    assert_eq!(y.shape(), [outer, made, inner, 2]);
    let mut expected = vec![0.0; outer * made * inner * 2];
    for line in 0..outer * inner {
        let signal: Vec<[f64; 2]> = (0..dft.length)
            .map(|i| {
                let at = ((line / inner * given + i) * inner + line % inner) * parts;
                let part = |p: usize| f64::from(values(&x)[at + p]);
                match i < given {
                    true => [part(0), if parts == 2 { part(1) } else { 0.0 }],
                    false => [0.0; 2],
                }
            })
            .collect();
        for (i, value) in naive(&signal, dft.inverse)[..made].iter().enumerate() {
            let at = ((line / inner * made + i) * inner + line % inner) * 2;
            expected[at] = value[0] as f32;
            expected[at + 1] = value[1] as f32;
        }
    }
    assert_close(&y, &expected, 1e-4);
}

#[test]
fn any_length() {
    let lengths = (1..=40).chain([61, 62, 64, 74, 97, 100, 127, 128, 400, 509]);
    for length in lengths {
        for (parts, inverse, onesided) in [
            (1, false, false),
            (1, false, true),
            (2, false, false),
            (2, true, false),
            (1, true, false),
        ] {
            let dft = Dft {
                axis: 1,
                length,
                inverse,
                onesided,
            };
            check(1, length, 1, parts, dft);
        }
    }
}

#[test]
fn lines_are_cut_or_continued() {
    for (outer, given, inner, length) in [(2, 5, 3, 8), (3, 9, 2, 4), (1, 16, 5, 37), (2, 1, 1, 6)]
    {
        for parts in [1, 2] {
            let dft = Dft {
                axis: 1,
                length,
                inverse: false,
                onesided: parts == 1,
            };
            check(outer, given, inner, parts, dft);
        }
    }
}

#[test]
fn frames_of_a_signal() {
    for (length, frame, step, parts) in
        [(16, 16, 4, 1), (50, 7, 3, 1), (33, 8, 8, 2), (41, 37, 2, 1)]
    {
        for windowed in [false, true] {
            for onesided in [parts == 1, false] {
                let x = noise(&[2, length, parts], 5);
                let window = noise(&[frame], 6);
                let op = Op::Stft(Stft {
                    frame,
                    step,
                    onesided,
                });
                let inputs = [&x, &window];
                let y = one(&op, &inputs[..1 + usize::from(windowed)]);
                let frames = (length - frame) / step + 1;
                let made = if onesided { frame / 2 + 1 } else { frame };
                assert_eq!(y.shape(), [2, frames, made, 2]);
                let mut expected = Vec::new();
                for at in 0..2 * frames {
                    let signal: Vec<[f64; 2]> = (0..frame)
                        .map(|i| {
                            let start = at / frames * length + at % frames * step + i;
                            let w = if windowed { values(&window)[i] } else { 1.0 };
                            let part =
                                |p: usize| f64::from(w) * f64::from(values(&x)[start * parts + p]);
                            [part(0), if parts == 2 { part(1) } else { 0.0 }]
                        })
                        .collect();
                    for value in &naive(&signal, false)[..made] {
                        expected.extend([value[0] as f32, value[1] as f32]);
                    }
                }
                assert_close(&y, &expected, 1e-4);
            }
        }
    }
}

/// By the first row's cofactors.
fn cofactors(matrix: &[f32], size: usize) -> f64 {
    if size == 0 {
        return 1.0;
    }
    let terms = (0..size).map(|column| {
        let minor: Vec<f32> = (size..size * size)
            .filter(|i| i % size != column)
            .map(|i| matrix[i])
            .collect();
        let sign = if column % 2 == 0 { 1.0 } else { -1.0 };
        sign * f64::from(matrix[column]) * cofactors(&minor, size - 1)
    });
    terms.sum()
}

#[test]
fn determinants() {
    for size in 0..7 {
        let x = noise(&[3, 2, size, size], 9);
        let expected: Vec<f32> = (0..6)
            .map(|i| cofactors(&values(&x)[i * size * size..(i + 1) * size * size], size) as f32)
            .collect();
        let y = one(&Op::Det, &[&x]);
        assert_eq!(y.shape(), [3, 2]);
        assert_close(&y, &expected, 1e-5);
    }
    let singular = f32s(&[3, 3], &[0.0, 1.0, 2.0, 0.0, 3.0, 4.0, 0.0, 5.0, 6.0]);
    assert_eq!(values(&one(&Op::Det, &[&singular])), [0.0]);
    let swapped = f32s(&[2, 2], &[0.0, 1.0, 1.0, 0.0]);
    assert_eq!(values(&one(&Op::Det, &[&swapped])), [-1.0]);
}

#[test]
fn an_inverse_times_its_matrix_is_one_of_ones() {
    for size in 1..8 {
        let x = noise(&[3, 2, size, size], 9);
        let y = one(&Op::Inverse, &[&x]);
        assert_eq!(y.shape(), [3, 2, size, size]);
        let ones = (0..6 * size * size).map(|i| {
            let (row, column) = (i / size % size, i % size);
            f32::from(u8::from(row == column))
        });
        let ones: Vec<f32> = ones.collect();
        assert_close(&one(&Op::MatMul, &[&x, &y]), &ones, 1e-4);
    }
    let swapped = f32s(&[2, 2], &[0.0, 2.0, 4.0, 0.0]);
    let y = one(&Op::Inverse, &[&swapped]);
    assert_eq!(values(&y), [0.0, 0.25, 0.5, 0.0]);
    let singular = one(&Op::Inverse, &[&f32s(&[1, 1], &[0.0])]);
    assert!(!values(&singular)[0].is_finite());
    assert_eq!(
        one(&Op::Inverse, &[&noise(&[0, 3, 3], 1)]).shape(),
        [0, 3, 3]
    );
    let refusal = try_one(&Op::Inverse, &[&noise(&[2, 3], 1)]).expect_err("not square");
    assert!(refusal.to_string().contains("square"), "{refusal}");
}

#[test]
fn what_has_no_transform_is_refused() {
    let dft = |onesided| Dft {
        axis: 1,
        length: 4,
        inverse: false,
        onesided,
    };
    let complex = noise(&[1, 4, 2], 1);
    let refusal = try_one(&Op::Dft(dft(true)), &[&complex]).expect_err("complex numbers");
    assert!(refusal.to_string().contains("real numbers"), "{refusal}");
    let whole = i64s(&[1, 4, 1], &[0; 4]);
    let refusal = try_one(&Op::Dft(dft(false)), &[&whole]).expect_err("integers");
    assert!(refusal.to_string().contains("floating-point"), "{refusal}");
    let refusal = try_one(&Op::Det, &[&noise(&[2, 3], 1)]).expect_err("not square");
    assert!(refusal.to_string().contains("square"), "{refusal}");
}
