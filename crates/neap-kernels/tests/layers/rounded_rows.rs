//! Rows rounded to steps of 8 bits times weights in blocks: the bits of the definition, on every instruction set.

use crate::blocks::{Layer, formats};
use crate::support::{Scrambled, Threads, affordable, isas, numbers};
use neap_kernels::epilogue::{Activation, Epilogue, Residual};
use neap_kernels::integer::{rounded_linear, rounded_scratch_bytes, takes_blocks};
use neap_kernels::linear::LinearShape;
use neap_kernels::panel::{Bits, BlockFormat, Format, Panels, panel_count};
use neap_kernels::parallel::Parallel;
use neap_kernels::simd::{Isa, LANES};
use std::ops::Range;

/// Scratch that begins at a multiple of 64.
fn with_scratch<R>(bytes: usize, call: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut scratch = vec![0xa5; bytes + 64];
    let skip = scratch.as_ptr().align_offset(64);
    call(&mut scratch[skip..][..bytes])
}

/// Rows of numbers of which some blocks are large, small, or nothing.
fn rows(m: usize, k: usize) -> Vec<f32> {
    let mut a = numbers(m * k, 5);
    for (i, x) in a.iter_mut().enumerate() {
        *x *= [1.0, 40.0, 0.001, 0.0, 1e-39][i / 16 % 5];
    }
    a
}

/// Scale and steps of a block of a row.
fn rounded(block: &[f32]) -> (f32, Vec<i32>) {
    let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = largest / 127.0;
    if scale < f32::MIN_POSITIVE {
        return (0.0, vec![0; block.len()]);
    }
    let inverse = 1.0 / scale;
    let steps = block.iter().map(|x| (x * inverse).round_ties_even() as i32);
    (scale, steps.collect())
}

/// By the definition: sums of whole numbers, and a float for each block.
fn naive(layer: &Layer, row: &[f32], channel: usize, added: f32) -> f32 {
    let (len, count) = (layer.format.len, layer.k.div_ceil(layer.format.len));
    let mut sum = layer.bias[channel] + added;
    for (block, numbers) in row.chunks(len).enumerate() {
        let (scale, steps) = rounded(numbers);
        let place = channel * count + block;
        let weights = &layer.steps[channel * layer.k + block * len..][..numbers.len()];
        let zero = i32::from(layer.zeros[place]);
        let products = steps.iter().zip(weights);
        let whole: i32 = products.map(|(x, &w)| x * (i32::from(w) - zero)).sum();
        sum += whole as f32 * (layer.scales[place] * scale);
    }
    sum
}

#[test]
fn sums_have_the_bits_of_the_definition() {
    for (at, format) in formats().enumerate() {
        for m in 1..=17 {
            let k = [7, 16, 33, 129, 300, 515, 1100][(m + at) % 7];
            let n = [5, 16, 33, 50, 150][(m + at) % 5];
            if !affordable(m * k * n) {
                continue;
            }
            let zero = match (format.bits, m % 2) {
                (_, 0) => None,
                (Bits::Four, _) => Some(8),
                (Bits::Eight, _) => Some(0),
            };
            let layer = Layer::with_zeros(format, n, k, zero);
            check(&layer, m, n);
        }
    }
}

#[test]
fn many_rows_are_shared_out() {
    for (bits, m, k, n) in [(Bits::Four, 130, 66, 40), (Bits::Eight, 101, 35, 17)] {
        let format = BlockFormat {
            bits,
            has_half_scales: true,
            len: 32,
        };
        check(&Layer::with_zeros(format, n, k, None), m, n);
    }
}

fn check(layer: &Layer, m: usize, n: usize) {
    let (format, k) = (layer.format, layer.k);
    let shape = LinearShape::dense(m, k, n);
    let (a, residual) = (rows(m, k), numbers(m * n, 6));
    let all = 0..panel_count(n);
    let last = all.end - 1..all.end;
    let of = |isa: Isa, threads: &dyn Parallel, range: &Range<usize>, epilogue: Epilogue<'_>| {
        let mut out = vec![0.0; m * n];
        if let Residual::InPlace = epilogue.residual {
            out.copy_from_slice(&residual);
        }
        let bytes = rounded_scratch_bytes(&shape, format.len, threads.workers());
        with_scratch(bytes, |scratch| {
            let panels = layer.panels(range);
            let range = range.clone();
            rounded_linear(
                isa, threads, &shape, range, panels, &a, &mut out, epilogue, scratch,
            )
            .unwrap();
        });
        out
    };
    let with = |residual| Epilogue {
        activation: Activation::Relu,
        residual,
    };
    for isa in isas() {
        let calls = [
            of(isa, &Threads(2), &all, with(Residual::Separate(&residual))),
            of(isa, &Scrambled(1), &all, with(Residual::InPlace)),
            of(isa, &Scrambled(3), &last, with(Residual::InPlace)),
        ];
        for (call, found) in calls.iter().enumerate() {
            for (i, &x) in found.iter().enumerate() {
                let (row, channel) = (i / n, i % n);
                let what = format!("{format:?} {isa:?} {m} {k} {n} call {call}, {row} {channel}");
                if call == 2 && channel < last.start * LANES {
                    assert_eq!(x.to_bits(), residual[i].to_bits(), "{what}");
                    continue;
                }
                let want = naive(layer, &a[row * k..][..k], channel, residual[i]).max(0.0);
                assert_eq!(x.to_bits(), want.to_bits(), "{what}: {x} {want}");
            }
        }
    }
}

#[test]
fn other_activations_follow_the_sums() {
    let format = BlockFormat {
        bits: Bits::Four,
        has_half_scales: false,
        len: 16,
    };
    let (m, k, n) = (9, 50, 41);
    let layer = Layer::with_zeros(format, n, k, None);
    let shape = LinearShape::dense(m, k, n);
    let a = rows(m, k);
    for isa in isas() {
        let mut out = vec![0.0; m * n];
        let bytes = rounded_scratch_bytes(&shape, format.len, 2);
        let epilogue = Epilogue {
            activation: Activation::Sigmoid,
            residual: Residual::None,
        };
        with_scratch(bytes, |scratch| {
            let all = 0..panel_count(n);
            let panels = layer.panels(&all);
            let threads = &Threads(2);
            rounded_linear(
                isa, threads, &shape, all, panels, &a, &mut out, epilogue, scratch,
            )
            .unwrap();
        });
        for (i, &x) in out.iter().enumerate() {
            let sum = f64::from(naive(&layer, &a[i / n * k..][..k], i % n, 0.0));
            let want = 1.0 / (1.0 + (-sum).exp());
            assert!(
                (f64::from(x) - want).abs() < 1e-6,
                "{isa:?} {i}: {x} {want}"
            );
        }
    }
}

#[test]
fn what_is_no_number_makes_no_number() {
    let format = BlockFormat {
        bits: Bits::Four,
        has_half_scales: false,
        len: 32,
    };
    let (m, k, n) = (3, 70, 20);
    let layer = Layer::with_zeros(format, n, k, None);
    let shape = LinearShape::dense(m, k, n);
    for (isa, bad) in isas()
        .into_iter()
        .flat_map(|isa| [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|bad| (isa, bad)))
    {
        let mut a = rows(m, k);
        a[k + 40] = bad;
        let mut out = vec![0.0; m * n];
        let bytes = rounded_scratch_bytes(&shape, format.len, 1);
        with_scratch(bytes, |scratch| {
            let (panels, threads) = (layer.panels(&(0..2)), &Threads(1));
            let epilogue = Epilogue::default();
            rounded_linear(
                isa,
                threads,
                &shape,
                0..2,
                panels,
                &a,
                &mut out,
                epilogue,
                scratch,
            )
            .unwrap();
        });
        for (i, x) in out.iter().enumerate() {
            assert_eq!(x.is_nan(), i / n == 1, "{isa:?} {bad} {i}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let format = BlockFormat {
        bits: Bits::Four,
        has_half_scales: true,
        len: 32,
    };
    let (m, k, n) = (8, 64, 20);
    let layer = Layer::with_zeros(format, n, k, None);
    let shape = LinearShape::dense(m, k, n);
    let bytes = rounded_scratch_bytes(&shape, format.len, 1);
    let run = |panels: Panels<'_>, a_len: usize, out_len: usize, less: usize, skip: usize| {
        let (a, mut out) = (vec![0.5; a_len], vec![0.0; out_len]);
        with_scratch(bytes + skip, |scratch| {
            let scratch = &mut scratch[skip..][..bytes - less];
            let (isa, e) = (Isa::detect(), Epilogue::default());
            let threads = &Threads(1);
            rounded_linear(isa, threads, &shape, 0..2, panels, &a, &mut out, e, scratch).is_ok()
        })
    };
    let panels = layer.panels(&(0..2));
    assert!(run(panels, m * k, m * n, 0, 0));
    assert!(!run(panels, m * k - 1, m * n, 0, 0));
    assert!(!run(panels, m * k, m * n - 1, 0, 0));
    assert!(!run(panels, m * k, m * n, 1, 0));
    assert!(!run(panels, m * k, m * n, 0, 4));
    assert!(!run(layer.panels(&(0..1)), m * k, m * n, 0, 0));
    let floats = Panels::new(Format::F32, &layer.blocks).unwrap();
    assert!(!run(floats, m * k, m * n, 0, 0));
    let short = BlockFormat { len: 8, ..format };
    let short = Panels::new(Format::Blocks(short), &layer.blocks).unwrap();
    assert!(!run(short, m * k, m * n, 0, 0));
    assert!(takes_blocks(16) && takes_blocks(256));
    assert!(!takes_blocks(0) && !takes_blocks(24) && !takes_blocks(512));
}
