//! Depthwise convolution against seven loops in f64.

use neap_kernels::depthwise::{Depthwise, depthwise};
use neap_kernels::epilogue::{Activation, Epilogue, Residual};
use neap_kernels::parallel::Serial;
use neap_kernels::window::Window;

use crate::support::{
    Random, Threads, assert_close, assert_same_bits, from_blocked, isas, to_blocked,
};

struct Case {
    shape: Depthwise,
    input: Vec<f32>,
    weights: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
    panels: Vec<f32>,
}

/// `[batch, channels, in_h, in_w, kernel, stride, dilation, pads_begin, pad_end]`, square but for the input.
fn case(sizes: [usize; 9], seed: u64) -> Case {
    let [
        batch,
        channels,
        in_h,
        in_w,
        kernel,
        stride,
        dilation,
        pad,
        pad_end,
    ] = sizes;
    let out = |input: usize| (input + pad + pad_end - ((kernel - 1) * dilation + 1)) / stride + 1;
    let shape = Depthwise {
        batch,
        channels,
        window: Window {
            input: [in_h, in_w],
            output: [out(in_h), out(in_w)],
            kernel: [kernel; 2],
            strides: [stride; 2],
            dilations: [dilation; 2],
            pads_begin: [pad; 2],
            pads_end: [0; 2],
        },
    };
    rectangular(shape, seed)
}

fn rectangular(shape: Depthwise, seed: u64) -> Case {
    let mut random = Random::new(seed);
    let taps = shape.window.kernel[0] * shape.window.kernel[1];
    let (batch, channels) = (shape.batch, shape.channels);
    let input = random.vec(
        batch * channels * shape.window.input[0] * shape.window.input[1],
        -1.0,
        1.0,
    );
    let weights = random.vec(channels * taps, -1.0, 1.0);
    let bias = random.vec(channels, -1.0, 1.0);
    let residual = random.vec(
        batch * channels * shape.window.output[0] * shape.window.output[1],
        -1.0,
        1.0,
    );
    let mut panels = vec![0.0; channels.div_ceil(16) * shape.panel_floats()];
    for c in 0..channels {
        let panel = &mut panels[c / 16 * shape.panel_floats()..][..shape.panel_floats()];
        panel[c % 16] = bias[c];
        for tap in 0..taps {
            panel[(1 + tap) * 16 + c % 16] = weights[c * taps + tap];
        }
    }
    Case {
        shape,
        input,
        weights,
        bias,
        residual,
        panels,
    }
}

/// Plain `[batch][channels][out_h][out_w]`.
fn reference(case: &Case, residual: bool, activation: impl Fn(f64) -> f64) -> Vec<f64> {
    let s = &case.shape;
    let mut out = Vec::new();
    for plane in 0..s.batch * s.channels {
        let c = plane % s.channels;
        for y in 0..s.window.output[0] {
            for x in 0..s.window.output[1] {
                let mut sum = f64::from(case.bias[c]);
                if residual {
                    sum += f64::from(case.residual[out.len()]);
                }
                for ky in 0..s.window.kernel[0] {
                    for kx in 0..s.window.kernel[1] {
                        let iy = (y * s.window.strides[0] + ky * s.window.dilations[0]) as isize
                            - s.window.pads_begin[0] as isize;
                        let ix = (x * s.window.strides[1] + kx * s.window.dilations[1]) as isize
                            - s.window.pads_begin[1] as isize;
                        if iy < 0
                            || ix < 0
                            || iy as usize >= s.window.input[0]
                            || ix as usize >= s.window.input[1]
                        {
                            continue;
                        }
                        let at = (plane * s.window.input[0] + iy as usize) * s.window.input[1]
                            + ix as usize;
                        let w =
                            case.weights[(c * s.window.kernel[0] + ky) * s.window.kernel[1] + kx];
                        sum += f64::from(case.input[at]) * f64::from(w);
                    }
                }
                out.push(activation(sum));
            }
        }
    }
    out
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        [1, 32, 20, 20, 3, 1, 1, 1, 1],
        [1, 96, 20, 20, 3, 2, 1, 1, 1],
        [1, 40, 7, 7, 3, 1, 1, 1, 1],
        [2, 17, 7, 9, 3, 1, 1, 1, 1],
        [1, 24, 15, 15, 5, 1, 1, 2, 2],
        [1, 24, 15, 14, 5, 2, 1, 2, 2],
        [1, 16, 14, 14, 5, 2, 1, 1, 2],
        [1, 3, 30, 41, 3, 1, 1, 1, 1],
        [1, 16, 12, 13, 3, 1, 2, 2, 2],
        [3, 5, 9, 9, 7, 1, 1, 3, 3],
        [1, 16, 2, 2, 3, 1, 1, 1, 1],
        [1, 16, 1, 1, 3, 1, 1, 1, 1],
        [1, 16, 5, 64, 1, 1, 1, 0, 0],
        [1, 16, 9, 40, 3, 3, 1, 0, 0],
        [1, 16, 4, 4, 3, 1, 1, 5, 5],
        [1, 20, 112, 112, 3, 1, 1, 1, 1],
    ]
    .into_iter()
    .enumerate()
    .map(|(i, sizes)| case(sizes, i as u64))
    .collect();
    for (i, (input, output, kernel, strides, dilations, pads_begin)) in [
        ([1, 50], [1, 50], [1, 5], [1, 1], [1, 1], [0, 2]),
        ([10, 30], [5, 15], [3, 4], [2, 2], [1, 1], [1, 1]),
        ([33, 8], [11, 8], [4, 2], [3, 1], [2, 1], [2, 0]),
    ]
    .into_iter()
    .enumerate()
    {
        let shape = Depthwise {
            batch: 2,
            channels: 33,
            window: Window {
                input,
                output,
                kernel,
                strides,
                dilations,
                pads_begin,
                pads_end: [0; 2],
            },
        };
        cases.push(rectangular(shape, 100 + i as u64));
    }
    cases
}

fn run(
    case: &Case,
    isa: neap_kernels::simd::Isa,
    workers: usize,
    residual: usize,
    activation: Activation,
) -> Vec<f32> {
    let s = &case.shape;
    let in_hw = s.window.input[0] * s.window.input[1];
    let out_hw = s.window.output[0] * s.window.output[1];
    let input = to_blocked(&case.input, s.batch, s.channels, in_hw, 3.25);
    let other = to_blocked(&case.residual, s.batch, s.channels, out_hw, 1.5);
    let mut out = if residual == 2 {
        other.clone()
    } else {
        vec![f32::NAN; other.len()]
    };
    let residual = match residual {
        0 => Residual::None,
        1 => Residual::Separate(&other),
        _ => Residual::InPlace,
    };
    let epilogue = Epilogue {
        activation,
        residual,
    };
    let blocks = s.channels.div_ceil(16);
    depthwise(
        isa,
        &Threads(workers),
        s,
        0..blocks,
        &case.panels,
        &input,
        &mut out,
        epilogue,
    )
    .unwrap();
    from_blocked(&out, s.batch, s.channels, out_hw)
}

#[test]
fn shapes() {
    for case in cases() {
        let want = reference(&case, false, |x| x);
        for isa in isas() {
            let got = run(&case, isa, 2, 0, Activation::None);
            assert_close(&got, &want, 2e-6, 1.0, &format!("{isa:?} {:?}", case.shape));
        }
    }
}

#[test]
fn residuals_and_activations() {
    let case = case([2, 40, 9, 30, 3, 1, 1, 1, 1], 7);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for isa in isas() {
        for residual in 0..3 {
            let name = format!("{isa:?} residual {residual}");
            let close = |activation, f: &dyn Fn(f64) -> f64| {
                let got = run(&case, isa, 2, residual, activation);
                assert_close(&got, &reference(&case, residual > 0, f), 3e-6, 1.0, &name);
            };
            close(Activation::Relu, &|x| x.max(0.0));
            close(
                Activation::Clip {
                    low: -0.5,
                    high: 0.75,
                },
                &|x| x.clamp(-0.5, 0.75),
            );
            close(Activation::LeakyRelu { alpha: 0.1 }, &|x| {
                if x < 0.0 { 0.1 * x } else { x }
            });
            close(Activation::Silu, &|x| x * sigmoid(x));
            close(Activation::HardSwish, &|x| {
                x * (x / 6.0 + 0.5).clamp(0.0, 1.0)
            });
        }
    }
}

#[test]
fn same_bits_however_it_is_cut() {
    for case in cases() {
        let s = &case.shape;
        let (in_hw, out_hw) = (
            s.window.input[0] * s.window.input[1],
            s.window.output[0] * s.window.output[1],
        );
        let input = to_blocked(&case.input, s.batch, s.channels, in_hw, 3.25);
        for isa in isas() {
            let what = format!("{isa:?} {s:?}");
            let whole = run(&case, isa, 1, 0, Activation::Silu);
            assert_same_bits(&whole, &run(&case, isa, 3, 0, Activation::Silu), &what);
            let blocks = s.channels.div_ceil(16);
            let mut out = vec![f32::NAN; s.batch * blocks * out_hw * 16];
            for panel in 0..blocks {
                let weights = &case.panels[panel * s.panel_floats()..][..s.panel_floats()];
                let epilogue = Epilogue {
                    activation: Activation::Silu,
                    residual: Residual::None,
                };
                depthwise(
                    isa,
                    &Serial,
                    s,
                    panel..panel + 1,
                    weights,
                    &input,
                    &mut out,
                    epilogue,
                )
                .unwrap();
            }
            assert_same_bits(
                &whole,
                &from_blocked(&out, s.batch, s.channels, out_hw),
                &what,
            );
        }
    }
}
