//! Layers of bfloat16 on one core: weights widened to floats, and rows rounded to pairs.
//!
//! `cargo run --release -p neap-kernels --example pairs_bench` prints the least times of many runs, which take turns, in
//! microseconds and GFLOP/s.

use neap_kernels::conv::{ConvShape, conv_blocked, conv_in_pairs, conv_pairs_scratch_bytes};
use neap_kernels::epilogue::Epilogue;
use neap_kernels::linear::{LinearShape, linear, linear_in_pairs, linear_pairs_scratch_bytes};
use neap_kernels::panel::{Format, Panels};
use neap_kernels::parallel::Serial;
use neap_kernels::simd::{Isa, LANES};
use neap_kernels::window::Window;
use std::time::Instant;

/// `(rows, k, n)`: of vit-b/16, GPT-2 and others.
const MATRICES: &[(usize, usize, usize)] = &[
    (28, 768, 768),
    (64, 768, 3072),
    (128, 768, 2304),
    (197, 768, 768),
    (197, 768, 3072),
    (197, 3072, 768),
    (512, 1024, 1024),
];

/// `(channels in, out, pixels each way, window)`: of ResNet-50.
const CONVOLUTIONS: &[(usize, usize, usize, usize)] = &[
    (64, 64, 56, 1),
    (256, 64, 56, 1),
    (256, 1024, 14, 1),
    (2048, 512, 7, 1),
    (64, 64, 56, 3),
    (128, 128, 28, 3),
    (512, 512, 7, 3),
];

fn halves(panels: usize, k: usize) -> Vec<f32> {
    // Any bits but those of huge numbers.
    let bytes = panels * Format::Bf16.panel_bytes(k).unwrap_or(0);
    (0..bytes / 4)
        .map(|i| f32::from_bits(0x3c00_3b80 ^ ((i as u32 * 7919) & 0x8040_80ff)))
        .collect()
}

fn panels(floats: &[f32]) -> Panels<'_> {
    // SAFETY: floats are bytes, four each.
    let bytes =
        unsafe { std::slice::from_raw_parts(floats.as_ptr().cast::<u8>(), size_of_val(floats)) };
    Panels::new(Format::Bf16, bytes).expect("aligned")
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0)
        .collect()
}

/// Least times of both.
fn compare(name: &str, multiply_adds: usize, mut floats: impl FnMut(), mut pairs: impl FnMut()) {
    let mut least = [f64::MAX; 2];
    let start = Instant::now();
    while start.elapsed().as_millis() < 600 {
        for (least, run) in least
            .iter_mut()
            .zip([&mut floats as &mut dyn FnMut(), &mut pairs])
        {
            let once = Instant::now();
            run();
            *least = least.min(once.elapsed().as_secs_f64());
        }
    }
    let rate = least.map(|seconds| 2e-9 * multiply_adds as f64 / seconds);
    println!(
        "{name:28} {:9.1} us {:6.1} GFLOP/s   {:9.1} us {:6.1} GFLOP/s   x {:.2}",
        least[0] * 1e6,
        rate[0],
        least[1] * 1e6,
        rate[1],
        least[0] / least[1]
    );
}

fn main() {
    let isa = Isa::detect();
    if !isa.has_pairs() {
        println!("no instructions of {} multiply bfloat16", isa.name());
        return;
    }
    let epilogue = Epilogue::default();
    for &(m, k, n) in MATRICES {
        let shape = LinearShape::dense(m, k, n);
        let all = 0..n.div_ceil(LANES);
        let bytes = halves(all.end, k);
        let weights = panels(&bytes);
        let a = numbers(m * k);
        let (mut one, mut other) = (vec![0.0; m * n], vec![0.0; m * n]);
        let mut scratch = vec![0.0; linear_pairs_scratch_bytes(&shape) / 4];
        compare(
            &format!("{m} x {k} x {n}"),
            m * k * n,
            || {
                let all = all.clone();
                linear(isa, &Serial, &shape, all, weights, &a, &mut one, epilogue).expect("fits");
            },
            || {
                let (all, out) = (all.clone(), &mut other);
                linear_in_pairs(
                    isa,
                    &Serial,
                    &shape,
                    all,
                    weights,
                    &a,
                    out,
                    epilogue,
                    &mut scratch,
                )
                .expect("fits");
            },
        );
    }
    for &(c_in, c_out, side, window) in CONVOLUTIONS {
        let shape = ConvShape {
            batch: 1,
            c_in,
            c_out,
            groups: 1,
            window: Window {
                input: [side; 2],
                output: [side; 2],
                kernel: [window; 2],
                strides: [1; 2],
                dilations: [1; 2],
                pads_begin: [window / 2; 2],
                pads_end: [window / 2; 2],
            },
        };
        let all = 0..shape.panels();
        let bytes = halves(all.end, shape.k());
        let weights = panels(&bytes);
        let x = numbers(c_in * side * side);
        let size = all.end * LANES * side * side;
        let (mut one, mut other) = (vec![0.0; size], vec![0.0; size]);
        let mut scratch = vec![0.0; conv_pairs_scratch_bytes(&shape) / 4];
        compare(
            &format!("{c_in} -> {c_out}, {side}, {window}x{window}"),
            shape.multiply_adds(),
            || {
                let (all, out) = (all.clone(), &mut one);
                conv_blocked(isa, &Serial, &shape, all, weights, &x, out, epilogue).expect("fits");
            },
            || {
                let (all, out) = (all.clone(), &mut other);
                conv_in_pairs(
                    isa,
                    &Serial,
                    &shape,
                    all,
                    weights,
                    &x,
                    out,
                    epilogue,
                    &mut scratch,
                )
                .expect("fits");
            },
        );
    }
}
