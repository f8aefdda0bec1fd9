//! Convolutions against a plain reference in f64, and the same bits however the work is cut.

use crate::support::{Scrambled, affordable, isas, numbers};
use neap_kernels::conv::{
    ConvForm, ConvShape, conv_blocked, conv_first_layer, conv_first_layer_scratch_bytes,
    conv_narrow_groups, supports,
};
use neap_kernels::epilogue::{Activation, Epilogue, Residual};
use neap_kernels::panel::{Affine, KOrder, pack_conv, panel_floats};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::simd::{Isa, LANES};
use neap_kernels::window::Window;
use std::ops::Range;

/// `(form, batch, c_in, c_out, groups, input, output, kernel, strides, dilations, pads_begin)`
type Case = (
    ConvForm,
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
const CASES: &[Case] = {
    use ConvForm::*;
    &[
        // 1x1: maps of the late layers, channel tails, strides
        (Blocked, 1, 16, 16, 1, [1, 1], [1, 1], [1, 1], [1, 1], [1, 1], [0, 0]),
        (Blocked, 1, 64, 96, 1, [7, 7], [7, 7], [1, 1], [1, 1], [1, 1], [0, 0]),
        (Blocked, 1, 40, 24, 1, [14, 14], [14, 14], [1, 1], [1, 1], [1, 1], [0, 0]),
        (Blocked, 2, 19, 37, 1, [5, 6], [5, 6], [1, 1], [1, 1], [1, 1], [0, 0]),
        (Blocked, 1, 32, 80, 1, [9, 9], [5, 5], [1, 1], [2, 2], [1, 1], [0, 0]),
        (Blocked, 1, 2048, 48, 1, [2, 3], [2, 3], [1, 1], [1, 1], [1, 1], [0, 0]),
        // 3x3 and others: padding on every side, dilation, uneven kernels
        (Blocked, 1, 32, 64, 1, [7, 7], [7, 7], [3, 3], [1, 1], [1, 1], [1, 1]),
        (Blocked, 1, 512, 16, 1, [4, 4], [4, 4], [3, 3], [1, 1], [1, 1], [1, 1]),
        (Blocked, 2, 20, 33, 1, [14, 13], [7, 7], [3, 3], [2, 2], [1, 1], [1, 1]),
        (Blocked, 1, 17, 18, 1, [9, 11], [9, 11], [3, 3], [1, 1], [4, 4], [4, 4]),
        (Blocked, 1, 16, 16, 1, [6, 6], [6, 6], [3, 3], [1, 1], [12, 12], [12, 12]),
        (Blocked, 1, 24, 16, 1, [1, 40], [1, 38], [1, 5], [1, 1], [1, 1], [0, 1]),
        (Blocked, 1, 16, 24, 1, [17, 17], [17, 17], [1, 7], [1, 1], [1, 1], [0, 3]),
        (Blocked, 1, 16, 24, 1, [17, 17], [17, 17], [7, 1], [1, 1], [1, 1], [3, 0]),
        (Blocked, 1, 20, 16, 1, [12, 12], [12, 12], [7, 7], [1, 1], [1, 1], [3, 3]),
        (Blocked, 1, 3, 20, 1, [8, 8], [4, 4], [2, 2], [2, 2], [1, 1], [0, 0]),
        (Blocked, 1, 16, 16, 1, [3, 3], [6, 6], [3, 3], [1, 1], [1, 1], [3, 3]),
        (Blocked, 1, 64, 160, 1, [20, 20], [20, 20], [3, 3], [1, 1], [1, 1], [1, 1]),
        // wide groups
        (Blocked, 1, 64, 32, 2, [6, 6], [6, 6], [3, 3], [1, 1], [1, 1], [1, 1]),
        (Blocked, 2, 48, 144, 3, [5, 5], [3, 3], [3, 3], [2, 2], [1, 1], [1, 1]),
        // first layers
        (FirstLayer, 1, 3, 64, 1, [56, 56], [28, 28], [7, 7], [2, 2], [1, 1], [3, 3]),
        (FirstLayer, 2, 3, 32, 1, [31, 33], [16, 17], [3, 3], [2, 2], [1, 1], [1, 1]),
        (FirstLayer, 1, 1, 20, 1, [28, 28], [28, 28], [5, 5], [1, 1], [1, 1], [2, 2]),
        (FirstLayer, 1, 4, 16, 1, [20, 20], [20, 20], [3, 3], [1, 1], [2, 3], [2, 3]),
        (FirstLayer, 1, 15, 17, 1, [9, 9], [9, 9], [1, 1], [1, 1], [1, 1], [0, 0]),
        (FirstLayer, 1, 3, 48, 1, [32, 32], [2, 2], [16, 16], [16, 16], [1, 1], [0, 0]),
        (FirstLayer, 1, 3, 16, 1, [4, 4], [9, 8], [3, 3], [1, 1], [1, 1], [4, 3]),
        (FirstLayer, 1, 3, 16, 1, [224, 300], [224, 300], [3, 3], [1, 1], [1, 1], [1, 1]),
        // narrow groups
        (NarrowGroups, 1, 128, 128, 32, [14, 14], [14, 14], [3, 3], [1, 1], [1, 1], [1, 1]),
        (NarrowGroups, 2, 64, 64, 8, [9, 9], [5, 5], [3, 3], [2, 2], [1, 1], [1, 1]),
        (NarrowGroups, 1, 20, 20, 10, [7, 8], [7, 8], [3, 3], [1, 1], [2, 2], [2, 2]),
        (NarrowGroups, 1, 12, 12, 3, [6, 6], [6, 6], [1, 1], [1, 1], [1, 1], [0, 0]),
        (NarrowGroups, 1, 35, 35, 35, [8, 8], [8, 8], [3, 3], [1, 1], [1, 1], [1, 1]),
    ]
};

fn shape(case: &Case) -> (ConvForm, ConvShape) {
    let &(form, batch, c_in, c_out, groups, input, output, kernel, strides, dilations, pads) = case;
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
    (form, shape)
}

/// A layer with its data.
struct Layer {
    form: ConvForm,
    shape: ConvShape,
    weights: Vec<f32>,
    bias: Vec<f32>,
    /// Plain `[N][C][H][W]`.
    input: Vec<f32>,
    residual: Vec<f32>,
    panels: Vec<f32>,
    kernel_input: Vec<f32>,
}

fn to_blocked(plain: &[f32], batch: usize, channels: usize, pixels: usize) -> Vec<f32> {
    let blocks = channels.div_ceil(LANES);
    // Pad lanes must never be read as numbers that matter.
    let mut out = vec![1e30; batch * blocks * pixels * LANES];
    for n in 0..batch {
        for c in 0..channels {
            for p in 0..pixels {
                out[((n * blocks + c / LANES) * pixels + p) * LANES + c % LANES] =
                    plain[(n * channels + c) * pixels + p];
            }
        }
    }
    out
}

fn from_blocked(blocked: &[f32], batch: usize, channels: usize, pixels: usize) -> Vec<f32> {
    let blocks = channels.div_ceil(LANES);
    let mut out = vec![0.0; batch * channels * pixels];
    for n in 0..batch {
        for c in 0..channels {
            for p in 0..pixels {
                out[(n * channels + c) * pixels + p] =
                    blocked[((n * blocks + c / LANES) * pixels + p) * LANES + c % LANES];
            }
        }
    }
    out
}

fn layer(case: &Case) -> Layer {
    let (form, s) = shape(case);
    let weights = numbers(s.c_out * s.k(), 1);
    let bias = numbers(s.c_out, 2);
    let (in_pixels, out_pixels) = (
        s.window.input[0] * s.window.input[1],
        s.window.output[0] * s.window.output[1],
    );
    let input = numbers(s.batch * s.c_in * in_pixels, 3);
    let residual = numbers(s.batch * s.c_out * out_pixels, 4);
    let order = if form == ConvForm::Blocked {
        KOrder::Blocked
    } else {
        KOrder::Taps
    };
    let mut panels = vec![f32::NAN; s.panels() * panel_floats(s.k())];
    let affine = Affine {
        scale: None,
        bias: Some(&bias),
    };
    let c_in = s.c_in / s.groups;
    pack_conv(
        order,
        s.c_out,
        c_in,
        s.window.kernel,
        0..s.panels(),
        &weights,
        affine,
        &mut panels,
    )
    .unwrap();
    let kernel_input = if form == ConvForm::FirstLayer {
        input.clone()
    } else {
        to_blocked(&input, s.batch, s.c_in, in_pixels)
    };
    let residual = to_blocked(&residual, s.batch, s.c_out, out_pixels);
    Layer {
        form,
        shape: s,
        weights,
        bias,
        input,
        residual,
        panels,
        kernel_input,
    }
}

/// The sums before the activation, in f64, and the sum of their terms' magnitudes.
fn reference(l: &Layer, with_residual: bool) -> (Vec<f64>, Vec<f64>) {
    let s = &l.shape;
    let (width_in, width_out) = (s.c_in / s.groups, s.c_out / s.groups);
    let residual = from_blocked(
        &l.residual,
        s.batch,
        s.c_out,
        s.window.output[0] * s.window.output[1],
    );
    let (mut sums, mut sizes) = (Vec::new(), Vec::new());
    for n in 0..s.batch {
        for oc in 0..s.c_out {
            for oy in 0..s.window.output[0] {
                for ox in 0..s.window.output[1] {
                    let mut sum = f64::from(l.bias[oc]);
                    if with_residual {
                        sum += f64::from(residual[sums.len()]);
                    }
                    let mut size = sum.abs();
                    for c in 0..width_in {
                        for ky in 0..s.window.kernel[0] {
                            for kx in 0..s.window.kernel[1] {
                                let y = (oy * s.window.strides[0] + ky * s.window.dilations[0])
                                    .checked_sub(s.window.pads_begin[0]);
                                let x = (ox * s.window.strides[1] + kx * s.window.dilations[1])
                                    .checked_sub(s.window.pads_begin[1]);
                                let (Some(y), Some(x)) = (y, x) else { continue };
                                if y >= s.window.input[0] || x >= s.window.input[1] {
                                    continue;
                                }
                                let ic = oc / width_out * width_in + c;
                                let value = l.input[((n * s.c_in + ic) * s.window.input[0] + y)
                                    * s.window.input[1]
                                    + x];
                                let w = l.weights[((oc * width_in + c) * s.window.kernel[0] + ky)
                                    * s.window.kernel[1]
                                    + kx];
                                sum += f64::from(value) * f64::from(w);
                                size += (f64::from(value) * f64::from(w)).abs();
                            }
                        }
                    }
                    sums.push(sum);
                    sizes.push(size);
                }
            }
        }
    }
    (sums, sizes)
}

fn run(
    l: &Layer,
    isa: Isa,
    parallel: &dyn Parallel,
    ranges: &[Range<usize>],
    activation: Activation,
    residual: u8,
) -> Vec<f32> {
    let s = &l.shape;
    let mut out = if residual == 2 {
        l.residual.clone()
    } else {
        vec![f32::NAN; output_elements(s)]
    };
    let mut scratch = vec![f32::NAN; conv_first_layer_scratch_bytes(s, parallel.workers()) / 4];
    let epilogue = Epilogue {
        activation,
        residual: match residual {
            0 => Residual::None,
            1 => Residual::Separate(&l.residual),
            _ => Residual::InPlace,
        },
    };
    let floats = panel_floats(s.k());
    for range in ranges {
        let w = &l.panels[range.start * floats..range.end * floats];
        let (range, x) = (range.clone(), &l.kernel_input);
        match l.form {
            ConvForm::Blocked => conv_blocked(isa, parallel, s, range, w, x, &mut out, epilogue),
            ConvForm::NarrowGroups => {
                conv_narrow_groups(isa, parallel, s, range, w, x, &mut out, epilogue)
            }
            ConvForm::FirstLayer => conv_first_layer(
                isa,
                parallel,
                s,
                range,
                w,
                x,
                &mut out,
                epilogue,
                &mut scratch,
            ),
        }
        .unwrap();
    }
    out
}

#[test]
fn every_shape_is_right_on_every_instruction_set() {
    for case in CASES {
        let l = layer(case);
        let s = &l.shape;
        assert!(supports(l.form, s), "{case:?}");
        let pixels = s.window.output[0] * s.window.output[1];
        if !affordable(s.batch * s.c_out * pixels * s.k()) {
            continue;
        }
        for (residual, activation) in [(0, Activation::None), (1, Activation::Relu)] {
            let (want, size) = reference(&l, residual != 0);
            for isa in isas() {
                let all = 0..s.panels();
                let got = run(
                    &l,
                    isa,
                    &Serial,
                    std::slice::from_ref(&all),
                    activation,
                    residual,
                );
                let got = from_blocked(&got, s.batch, s.c_out, pixels);
                for (i, &got) in got.iter().enumerate() {
                    let want = if residual == 0 {
                        want[i]
                    } else {
                        want[i].max(0.0)
                    };
                    let error = (f64::from(got) - want).abs();
                    let bound = 4e-7 * size[i] * (s.k() as f64).sqrt().max(4.0);
                    assert!(
                        error <= bound,
                        "{} {case:?} [{i}]: {got}, want {want}",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[test]
fn the_same_bits_however_the_work_is_cut() {
    for case in CASES {
        let l = layer(case);
        let s = &l.shape;
        let panels = s.panels();
        if !affordable(10 * s.batch * s.c_out * s.window.output[0] * s.window.output[1] * s.k()) {
            continue;
        }
        let whole: Vec<_> = std::iter::once(0..panels).collect();
        let single: Vec<_> = (0..panels).map(|p| p..p + 1).collect();
        let uneven: Vec<_> = [0..panels / 3, panels / 3..panels]
            .into_iter()
            .filter(|r| !r.is_empty())
            .collect();
        for isa in isas() {
            let want = run(&l, isa, &Serial, &whole, Activation::Silu, 1);
            for workers in [1, 3] {
                for ranges in [&whole, &single, &uneven] {
                    for residual in [1, 2] {
                        let got = run(
                            &l,
                            isa,
                            &Scrambled(workers),
                            ranges,
                            Activation::Silu,
                            residual,
                        );
                        let same = got
                            .iter()
                            .zip(&want)
                            .all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(same, "{} {case:?} {workers} {ranges:?}", isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn bad_calls_are_refused() {
    let l = layer(&CASES[1]);
    let (isa, e) = (Isa::detect(), Epilogue::default());
    let (w, x) = (&l.panels[..], &l.kernel_input[..]);
    let mut out = vec![0.0; output_elements(&l.shape)];
    let n = l.shape.panels();
    let mut call = |s: ConvShape, range: Range<usize>, w: &[f32], x: &[f32], cut: usize| {
        let len = out.len() - cut;
        conv_blocked(isa, &Serial, &s, range, w, x, &mut out[..len], e)
    };
    assert_eq!(call(l.shape, 0..n, w, x, 0), Ok(()));
    assert!(call(l.shape, 0..n + 1, w, x, 0).is_err());
    assert!(call(l.shape, 0..n, &w[1..], x, 0).is_err());
    assert!(call(l.shape, 0..n, w, &x[1..], 0).is_err());
    assert!(call(l.shape, 0..n, w, x, 1).is_err());
    assert!(
        call(
            ConvShape {
                groups: 0,
                ..l.shape
            },
            0..n,
            w,
            x,
            0
        )
        .is_err()
    );
    assert!(
        call(
            ConvShape {
                groups: 3,
                ..l.shape
            },
            0..n,
            w,
            x,
            0
        )
        .is_err()
    );
    assert!(
        call(
            ConvShape {
                groups: 8,
                ..l.shape
            },
            0..1,
            w,
            x,
            0
        )
        .is_err()
    );
    assert!(
        call(
            ConvShape {
                window: Window {
                    strides: [0, 1],
                    ..l.shape.window
                },
                ..l.shape
            },
            0..n,
            w,
            x,
            0
        )
        .is_err()
    );
    assert!(
        call(
            ConvShape {
                window: Window {
                    kernel: [usize::MAX, 2],
                    ..l.shape.window
                },
                ..l.shape
            },
            0..n,
            w,
            x,
            0
        )
        .is_err()
    );
    assert!(
        call(
            ConvShape {
                window: Window {
                    input: [usize::MAX, 2],
                    ..l.shape.window
                },
                ..l.shape
            },
            0..n,
            w,
            x,
            0
        )
        .is_err()
    );
    let huge = ConvShape {
        window: Window {
            output: [1 << 40, 1 << 40],
            ..l.shape.window
        },
        ..l.shape
    };
    assert!(call(huge, 0..n, w, x, 0).is_err());
    assert!(!supports(ConvForm::NarrowGroups, &l.shape));
    assert!(!supports(ConvForm::FirstLayer, &l.shape));
}

fn output_elements(s: &ConvShape) -> usize {
    s.batch * s.panels() * s.window.output[0] * s.window.output[1] * LANES
}
