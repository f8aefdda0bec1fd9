//! Rows rounded to bfloat16 times weights of it: the bits that the instructions are documented to give on x86-64, and within the
//! rounding of their sums elsewhere.

use crate::support::{Scrambled, Threads, affordable, numbers, to_blocked};
use neap_kernels::conv::{
    ConvShape, conv_blocked, conv_in_pairs, conv_pairs_scratch_bytes, takes_pairs,
};
use neap_kernels::epilogue::{Activation, Epilogue, Residual};
use neap_kernels::linear::{LinearShape, linear_in_pairs, linear_pairs_scratch_bytes};
use neap_kernels::panel::{
    Affine, Format, KOrder, Panels, Scales, narrow, pack_conv, pack_rows, panel_count, panel_floats,
};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::simd::{Isa, LANES};
use neap_kernels::window::Window;
use std::ops::Range;

fn with_pairs() -> Vec<Isa> {
    let found: Vec<Isa> = Isa::available().filter(|isa| isa.has_pairs()).collect();
    if found.is_empty() {
        neap_testing::absent("no instructions multiply bfloat16");
    }
    found
}

/// To the nearest, ties to even; subnormal numbers are zeros.
fn rounded(x: f32) -> f32 {
    let bits = flushed(x).to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { x * 0.0 } else { x }
}

/// Weights of bfloat16, some of which are subnormal and some zeros.
fn weights(count: usize) -> Vec<f32> {
    let mut all = numbers(count, 1);
    for (i, x) in all.iter_mut().enumerate() {
        *x *= [1.0, 1.0, 1e-3, 1e-39, 0.0, 1.0, 1e-20][i % 7];
        *x = f32::from_bits(x.to_bits() & 0xffff_0000);
    }
    all
}

/// Rows of numbers of all sizes: also products and sums of subnormal size.
fn rows(count: usize) -> Vec<f32> {
    let mut all = numbers(count, 3);
    for (i, x) in all.iter_mut().enumerate() {
        *x *= [1.0, 30.0, 1e-3, 1e-39, 1e-18][i % 5];
    }
    all
}

fn halves(c_out: usize, k: usize, pack: impl FnOnce(&mut [f32])) -> Vec<u8> {
    let panels = panel_count(c_out);
    let mut floats = vec![f32::NAN; panels * panel_floats(k)];
    pack(&mut floats);
    let mut bytes = vec![0xff; panels * Format::Bf16.panel_bytes(k).unwrap()];
    let scales = Scales::default();
    narrow(
        Format::Bf16,
        c_out,
        k,
        0..panels,
        &floats,
        scales,
        &mut bytes,
    )
    .unwrap();
    bytes
}

fn panels<'a>(bytes: &'a [u8], k: usize, range: &Range<usize>) -> Panels<'a> {
    let each = Format::Bf16.panel_bytes(k).unwrap();
    Panels::new(Format::Bf16, &bytes[range.start * each..range.end * each]).unwrap()
}

/// `bias + residual`, then a fused multiply-add for each k; and the sum of magnitudes.
fn naive(row: &[f32], weights: &[f32], start: f32) -> (f32, f32) {
    let (mut sum, mut size) = (start, start.abs());
    for (&x, &w) in row.iter().zip(weights) {
        let (x, w) = (rounded(x), flushed(w));
        sum = flushed(x.mul_add(w, flushed(sum)));
        size += (x * w).abs();
    }
    (sum + 0.0, size)
}

fn assert_right(isa: Isa, found: f32, (want, size): (f32, f32), k: usize, what: &str) {
    if isa.name() == "neon" {
        // Each sum is rounded to odd, off by less than a unit in its last place.
        let most = size * (k + 2) as f32 * f32::EPSILON + 1e-36 * (k + 1) as f32;
        assert!((found - want).abs() <= most, "{what}: {found} {want}");
    } else {
        assert_eq!(found.to_bits(), want.to_bits(), "{what}: {found} {want}");
    }
}

/// `(m, k, n)`
const CASES: &[(usize, usize, usize)] = &[
    (1, 1, 1),
    (1, 2, 16),
    (2, 3, 17),
    (3, 31, 31),
    (5, 32, 33),
    (9, 33, 100),
    (13, 63, 16),
    (14, 64, 32),
    (15, 129, 48),
    (28, 383, 40),
    (29, 384, 64),
    (31, 385, 33),
    (40, 769, 20),
    (50, 1101, 96),
    (197, 96, 130),
    (600, 40, 50),
    (4, 0, 20),
];

#[test]
fn rows_have_the_bits_of_the_definition() {
    for isa in with_pairs() {
        for &(m, k, n) in CASES.iter().filter(|(m, k, n)| affordable(m * k * n)) {
            for gap in [0, 3] {
                check_linear(isa, m, k, n, gap);
            }
        }
    }
}

fn check_linear(isa: Isa, m: usize, k: usize, n: usize, gap: usize) {
    let shape = LinearShape {
        m,
        k,
        n,
        a_stride: k + gap,
        out_stride: n + 2 * gap,
    };
    let (weights, bias) = (weights(n * k), numbers(n, 2));
    let bytes = halves(n, k, |to| {
        let affine = Affine {
            scale: None,
            bias: Some(&bias),
        };
        pack_rows(n, k, 0..shape.panels(), &weights, affine, to).unwrap();
    });
    let a = rows(m * shape.a_stride);
    let residual = numbers(m * shape.out_stride, 6);
    let all = 0..shape.panels();
    let last = all.end - 1..all.end;
    let of = |threads: &dyn Parallel, range: &Range<usize>, added: u8, activation| {
        let mut out = match added {
            2 => residual.clone(),
            _ => vec![-7.0; residual.len()],
        };
        let epilogue = Epilogue {
            activation,
            residual: match added {
                0 => Residual::None,
                1 => Residual::Separate(&residual),
                _ => Residual::InPlace,
            },
        };
        let mut scratch = vec![f32::NAN; linear_pairs_scratch_bytes(&shape) / 4];
        let w = panels(&bytes, k, range);
        let range = range.clone();
        linear_in_pairs(
            isa,
            threads,
            &shape,
            range,
            w,
            &a,
            &mut out,
            epilogue,
            &mut scratch,
        )
        .unwrap();
        out
    };
    let calls = [
        (of(&Serial, &all, 0, Activation::None), 0, false),
        (of(&Threads(2), &all, 1, Activation::Relu), 1, true),
        (of(&Scrambled(3), &all, 2, Activation::None), 1, false),
        (of(&Serial, &last, 2, Activation::Relu), 1, true),
    ];
    for (call, (found, added, relu)) in calls.iter().enumerate() {
        for (at, &x) in found.iter().enumerate() {
            let (row, channel) = (at / shape.out_stride, at % shape.out_stride);
            let what = format!("{isa:?} {m} {k} {n} call {call}, {row} {channel}");
            if channel >= n || call == 3 && channel < last.start * LANES {
                let before = if call >= 2 { residual[at] } else { -7.0 };
                assert_eq!(x, before, "{what}: written");
                continue;
            }
            let added = if *added == 0 { 0.0 } else { residual[at] };
            let row = &a[row * shape.a_stride..][..k];
            let start = bias[channel] + added;
            let mut want = naive(row, &weights[channel * k..][..k], start);
            if *relu {
                want.0 = want.0.max(0.0);
            }
            assert_right(isa, x, want, k, &what);
        }
    }
}

#[test]
fn an_infinity_or_no_number_stays_so() {
    for isa in with_pairs() {
        let shape = LinearShape::dense(30, 40, 16);
        let ones = vec![1.0; 16 * 40];
        let bytes = halves(16, 40, |to| {
            pack_rows(16, 40, 0..1, &ones, Affine::default(), to).unwrap();
        });
        let mut a = vec![1.0; 30 * 40];
        (a[5], a[40 + 6]) = (f32::INFINITY, f32::NAN);
        // Rounds to an infinity, as the type has no larger numbers.
        a[80] = f32::MAX;
        let mut out = vec![0.0; 30 * 16];
        let mut scratch = vec![0.0; linear_pairs_scratch_bytes(&shape) / 4];
        let (w, epilogue) = (panels(&bytes, 40, &(0..1)), Epilogue::default());
        linear_in_pairs(
            isa,
            &Serial,
            &shape,
            0..1,
            w,
            &a,
            &mut out,
            epilogue,
            &mut scratch,
        )
        .unwrap();
        assert_eq!(
            (out[0], out[32], out[48]),
            (f32::INFINITY, f32::INFINITY, 40.0)
        );
        assert!(out[16].is_nan());
    }
}

/// `(batch, c_in, c_out, groups, input, output, kernel, strides, dilations, pads_begin)`
type Case = (
    usize,
    usize,
    usize,
    usize,
    [usize; 2],
    [usize; 2],
    [usize; 2],
    [usize; 2],
    [usize; 2],
    [usize; 2],
);

#[rustfmt::skip]
const CONVOLUTIONS: &[Case] = &[
    (1, 16, 16, 1, [1, 1], [1, 1], [1, 1], [1, 1], [1, 1], [0, 0]),
    (1, 64, 96, 1, [7, 7], [7, 7], [1, 1], [1, 1], [1, 1], [0, 0]),
    (1, 40, 24, 1, [14, 14], [14, 14], [1, 1], [1, 1], [1, 1], [0, 0]),
    (2, 18, 37, 1, [5, 6], [5, 6], [1, 1], [1, 1], [1, 1], [0, 0]),
    (1, 32, 80, 1, [9, 9], [5, 5], [1, 1], [2, 2], [1, 1], [0, 0]),
    (1, 2048, 48, 1, [2, 3], [2, 3], [1, 1], [1, 1], [1, 1], [0, 0]),
    (1, 32, 64, 1, [7, 7], [7, 7], [3, 3], [1, 1], [1, 1], [1, 1]),
    (2, 22, 33, 1, [14, 13], [7, 7], [3, 3], [2, 2], [1, 1], [1, 1]),
    (1, 30, 18, 1, [9, 11], [9, 11], [3, 3], [1, 1], [4, 4], [4, 4]),
    (1, 16, 16, 1, [6, 6], [6, 6], [3, 3], [1, 1], [12, 12], [12, 12]),
    (1, 20, 16, 1, [12, 12], [12, 12], [7, 7], [1, 1], [1, 1], [3, 3]),
    (1, 64, 160, 1, [20, 20], [20, 20], [3, 3], [1, 1], [1, 1], [1, 1]),
    (1, 64, 32, 2, [6, 6], [6, 6], [3, 3], [1, 1], [1, 1], [1, 1]),
    (2, 48, 144, 3, [5, 5], [3, 3], [3, 3], [2, 2], [1, 1], [1, 1]),
];

/// Where nothing is subnormal, sums have the bits of `f32` on numbers of bfloat16.
#[test]
fn convolutions_have_the_bits_of_floats() {
    for isa in with_pairs() {
        for case in CONVOLUTIONS {
            check_conv(isa, case);
        }
    }
}

fn check_conv(isa: Isa, case: &Case) {
    let &(batch, c_in, c_out, groups, input, output, kernel, strides, dilations, pads) = case;
    let shape = ConvShape {
        batch,
        c_in,
        c_out,
        groups,
        window: Window {
            input,
            output,
            kernel,
            strides,
            dilations,
            pads_begin: pads,
            pads_end: [0; 2],
        },
    };
    assert!(takes_pairs(&shape), "{case:?}");
    if !affordable(shape.multiply_adds()) {
        return;
    }
    let k = shape.k();
    let weights: Vec<f32> = numbers(c_out * k, 1).into_iter().map(rounded).collect();
    let bias = numbers(c_out, 2);
    let mut wide = vec![f32::NAN; shape.panels() * panel_floats(k)];
    let pack = |to: &mut [f32]| {
        let affine = Affine {
            scale: None,
            bias: Some(&bias),
        };
        let (order, all) = (KOrder::Blocked, 0..shape.panels());
        pack_conv(
            order,
            c_out,
            c_in / groups,
            kernel,
            all,
            &weights,
            affine,
            to,
        )
        .unwrap();
    };
    pack(&mut wide);
    let bytes = halves(c_out, k, pack);
    let pixels = input[0] * input[1];
    // Pad lanes must never be read as numbers that matter.
    let plain = numbers(batch * c_in * pixels, 3);
    let blocked = to_blocked(&plain, batch, c_in, pixels, 1e30);
    let exact: Vec<f32> = blocked.iter().map(|&x| rounded(x)).collect();
    let sizes: Vec<f32> = exact.iter().map(|x| x.abs()).collect();
    let count = batch * shape.panels() * output[0] * output[1] * LANES;
    let residual = numbers(count, 4);
    let epilogue = |residual| Epilogue {
        activation: Activation::Relu,
        residual,
    };
    let (mut want, mut size) = (residual.clone(), vec![0.0; count]);
    let all = 0..shape.panels();
    let added = epilogue(Residual::InPlace);
    conv_blocked(
        isa,
        &Serial,
        &shape,
        all.clone(),
        &wide,
        &exact,
        &mut want,
        added,
    )
    .unwrap();
    let magnitudes: Vec<f32> = wide.iter().map(|w| w.abs()).collect();
    let none = Epilogue::default();
    conv_blocked(
        isa,
        &Serial,
        &shape,
        all.clone(),
        &magnitudes,
        &sizes,
        &mut size,
        none,
    )
    .unwrap();
    let last = all.end - 1..all.end;
    for (threads, range) in [
        (&Serial as &dyn Parallel, &all),
        (&Threads(2), &all),
        (&Scrambled(3), &last),
    ] {
        let mut out = residual.clone();
        let mut scratch = vec![f32::NAN; conv_pairs_scratch_bytes(&shape) / 4];
        let (w, added) = (panels(&bytes, k, range), epilogue(Residual::InPlace));
        let these = range.clone();
        conv_in_pairs(
            isa,
            threads,
            &shape,
            these,
            w,
            &blocked,
            &mut out,
            added,
            &mut scratch,
        )
        .unwrap();
        for (at, &x) in out.iter().enumerate() {
            let panel = at / (output[0] * output[1] * LANES) % shape.panels();
            let what = format!("{isa:?} {case:?} {range:?} {at}");
            if !range.contains(&panel) {
                assert_eq!(x, residual[at], "{what}: written");
            } else if panel * LANES + at % LANES < c_out {
                assert_right(isa, x, (want[at], size[at] + 1.0), k, &what);
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let shape = LinearShape::dense(3, 8, 16);
    let bytes = halves(16, 8, |to| {
        pack_rows(16, 8, 0..1, &[1.0; 128], Affine::default(), to).unwrap();
    });
    let wide = vec![0.0; panel_floats(8)];
    let (a, mut out) = (vec![1.0; 24], vec![0.0; 48]);
    let mut call = |isa, weights, floats: usize| {
        let (mut scratch, epilogue) = (vec![0.0; floats], Epilogue::default());
        linear_in_pairs(
            isa,
            &Serial,
            &shape,
            0..1,
            weights,
            &a,
            &mut out,
            epilogue,
            &mut scratch,
        )
        .is_ok()
    };
    for isa in Isa::available() {
        let w = panels(&bytes, 8, &(0..1));
        assert_eq!(call(isa, w, 12), isa.has_pairs());
        assert!(!call(isa, w, 11), "scratch is too short");
        assert!(!call(isa, (&wide).into(), 12), "weights are floats");
    }
}
