//! Layers in integers against sums in `i64`, for every instruction set, number of threads and cut.

use crate::support::{Threads, affordable, isas};
use neap_kernels::conv::ConvShape;
use neap_kernels::epilogue::Activation;
use neap_kernels::integer::{
    Added, Finish, Results, Rounding, Steps, conv_scratch_bytes, integer_conv, integer_linear,
    linear_scratch_bytes,
};
use neap_kernels::linear::LinearShape;
use neap_kernels::panel::{
    Affine, Format, KOrder, Panels, Scales, narrow, pack_conv, pack_rows, panel_count, panel_floats,
};
use neap_kernels::parallel::Parallel;
use neap_kernels::window::Window;
use std::ops::Range;

const LANES: usize = 16;

pub fn bytes(n: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 11) as u8
    };
    (0..n).map(|_| next()).collect()
}

fn floats(n: usize, seed: u32) -> Vec<f32> {
    let of = |x: u8| (f32::from(x) - 128.0) / 128.0;
    bytes(n, seed).into_iter().map(of).collect()
}

/// Weights of `n` channels with `k` steps, as given and as packed.
pub struct Layer {
    k: usize,
    weights: Vec<i8>,
    bias: Vec<f32>,
    scale: Vec<f32>,
    zero: Vec<f32>,
    panels: Vec<u8>,
}

pub type PackRows<'p> = &'p dyn Fn(&[f32], Affine<'_>, &mut [f32]);

impl Layer {
    pub fn new(n: usize, k: usize, has_zeros: bool, pack: PackRows<'_>) -> Self {
        let weights: Vec<i8> = bytes(n * k, 7).into_iter().map(|b| b as i8).collect();
        let bias = floats(n, 8);
        let scale: Vec<f32> = floats(n, 9)
            .iter()
            .map(|x| x.abs() * 0.01 + 0.001)
            .collect();
        let zero: Vec<f32> = match has_zeros {
            true => bytes(n, 10).iter().map(|&b| f32::from(b as i8)).collect(),
            false => vec![0.0; n],
        };
        let wide: Vec<f32> = weights.iter().map(|&w| f32::from(w)).collect();
        let affine = Affine {
            scale: None,
            bias: Some(&bias),
        };
        let mut unscaled = vec![f32::NAN; panel_count(n) * panel_floats(k)];
        pack(&wide, affine, &mut unscaled);
        let scales = Scales {
            scale: Some(&scale),
            zero: Some(&zero),
        };
        let mut panels = vec![0xff; panel_count(n) * Format::I8.panel_bytes(k).unwrap()];
        let all = 0..panel_count(n);
        narrow(Format::I8, n, k, all, &unscaled, scales, &mut panels).unwrap();
        Layer {
            k,
            weights,
            bias,
            scale,
            zero,
            panels,
        }
    }

    pub fn range(&self, range: &Range<usize>) -> Panels<'_> {
        let each = Format::I8.panel_bytes(self.k).unwrap();
        Panels::new(
            Format::I8,
            &self.panels[range.start * each..range.end * each],
        )
        .unwrap()
    }

    /// The sum that channel `c` makes of the k activations, each less their zero point, as a number.
    pub fn number(&self, c: usize, centred: &[i64], scale: f32) -> f32 {
        let weights = &self.weights[c * self.k..][..self.k];
        let zero = self.zero[c] as i64;
        let products = weights.iter().zip(centred);
        let sum: i64 = products.map(|(&w, x)| (i64::from(w) - zero) * x).sum();
        assert!(i32::try_from(sum).is_ok());
        (sum as i32 as f32) * (self.scale[c] * scale) + self.bias[c]
    }
}

const ROUNDING: Rounding = Rounding {
    scale: 0.11,
    zero: 121.0,
    low: 3.0,
    high: 250.0,
};

const LAST: Rounding = Rounding {
    scale: 0.23,
    zero: 7.0,
    low: 7.0,
    high: 255.0,
};

/// All steps of a byte.
const ALL: Rounding = Rounding {
    scale: 0.19,
    zero: 133.0,
    low: 0.0,
    high: 255.0,
};

const ADDED: Steps = Steps {
    scale: 0.03,
    zero: 100,
};

/// What is no number becomes the lowest step.
fn step(r: Rounding, x: f32) -> f32 {
    ((x * (1.0 / r.scale)).round_ties_even() + r.zero)
        .max(r.low)
        .min(r.high)
}

fn rounded(r: Rounding, x: f32) -> f32 {
    (step(r, x) - r.zero) * r.scale
}

fn requantize(r: Rounding) -> Activation {
    Activation::Requantize {
        scale: r.scale,
        zero: r.zero,
        low: r.low,
        high: r.high,
        nan: r.low,
    }
}

/// Every way of finishing: computes into `out` (floats or bytes) and compares with `numbers`, which holds NaN where nothing is
/// written.
pub fn check_finishes(numbers: &[f32], what: &str, run: &mut dyn FnMut(Results<'_>, Finish<'_>)) {
    let n = numbers.len();
    let same = |out: &[f32], expected: &dyn Fn(usize, f32) -> f32, how: &str| {
        for (i, (&out, &number)) in out.iter().zip(numbers).enumerate() {
            if number.is_nan() {
                continue;
            }
            let expected = expected(i, number);
            assert_eq!(
                out.to_bits(),
                expected.to_bits(),
                "{what} {how} at {i}: {out} {expected}"
            );
        }
    };
    let added = floats(n, 20);
    let added_steps = bytes(n, 21);
    let of_step = |s: u8| (f32::from(s) - f32::from(ADDED.zero)) * ADDED.scale;

    let mut out = vec![f32::NAN; n];
    run(Results::Floats(&mut out), Finish::default());
    same(&out, &|_, x| x, "plain");

    let relu = Finish {
        residual: Added::Floats(&added),
        activation: Activation::Relu,
        ..Finish::default()
    };
    run(Results::Floats(&mut out), relu);
    same(&out, &|i, x| (x + added[i]).max(0.0), "residual and relu");

    out.copy_from_slice(&added);
    let in_place = Finish {
        residual: Added::InPlace(None),
        ..Finish::default()
    };
    run(Results::Floats(&mut out), in_place);
    same(&out, &|i, x| x + added[i], "residual in place");

    let mixed = Finish {
        before: Some(ROUNDING),
        residual: Added::Steps(&added_steps, ADDED),
        activation: Activation::None,
    };
    run(Results::Floats(&mut out), mixed);
    let sum = |i: usize, x: f32| rounded(ROUNDING, x) + of_step(added_steps[i]);
    same(&out, &sum, "residual of steps");

    let mut steps = vec![0; n];
    let to_steps = Finish {
        before: Some(ROUNDING),
        residual: Added::Steps(&added_steps, ADDED),
        activation: requantize(LAST),
    };
    run(Results::Steps(&mut steps), to_steps);
    let widened: Vec<f32> = steps.iter().map(|&s| f32::from(s)).collect();
    same(&widened, &|i, x| step(LAST, sum(i, x)), "steps");

    steps.copy_from_slice(&added_steps);
    let in_place = Finish {
        residual: Added::InPlace(Some(ADDED)),
        activation: requantize(LAST),
        ..Finish::default()
    };
    run(Results::Steps(&mut steps), in_place);
    let widened: Vec<f32> = steps.iter().map(|&s| f32::from(s)).collect();
    let last = |i: usize, x: f32| step(LAST, x + of_step(added_steps[i]));
    same(&widened, &last, "steps in place");

    // Steps of a plain sum, and of what is no number or outside all integers.
    run(
        Results::Steps(&mut steps),
        Finish {
            activation: requantize(ALL),
            ..Finish::default()
        },
    );
    let widened: Vec<f32> = steps.iter().map(|&s| f32::from(s)).collect();
    same(&widened, &|_, x| step(ALL, x), "steps of sums");
    let far = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        3e9,
        -3e9,
        1e30,
        -1e30,
        0.5,
        -0.5,
    ];
    let added: Vec<f32> = (0..n).map(|i| far[i % far.len()]).collect();
    for before in [None, Some(ROUNDING)] {
        let far = Finish {
            before,
            residual: Added::Floats(&added),
            activation: requantize(LAST),
        };
        run(Results::Steps(&mut steps), far);
        let widened: Vec<f32> = steps.iter().map(|&s| f32::from(s)).collect();
        let own = |x: f32| before.map_or(x, |r| rounded(r, x));
        same(&widened, &|i, x| step(LAST, own(x) + added[i]), "far");
    }
}

/// Scratch that begins at a multiple of 64.
pub fn with_scratch<R>(len: usize, body: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut memory = vec![0xa5; len + 64];
    let skip = memory.as_ptr().align_offset(64);
    body(&mut memory[skip..skip + len])
}

/// Whole, and cut in the middle.
pub fn cuts(panels: usize) -> Vec<Vec<Range<usize>>> {
    let middle = panels / 2;
    vec![vec![0..panels], vec![0..middle, middle..panels]]
}

#[test]
fn linear_is_the_sum_in_wide_integers() {
    for (m, k, n) in [
        (1, 1, 1),
        (1, 4, 16),
        (1, 37, 50),
        (2, 64, 33),
        (5, 7, 16),
        (11, 130, 31),
        (12, 16, 48),
        (3, 19, 130),
        (4, 72, 64),
        (6, 18, 112),
        (25, 33, 100),
        (13, 21, 17),
        (49, 66, 40),
        (120, 5, 64),
        (1, 2048, 40),
    ] {
        // Each with several threads, cuts and ways to finish.
        if !affordable(4 * m * k * n) {
            continue;
        }
        for has_zeros in [false, true] {
            let layer = Layer::new(n, k, has_zeros, &|w, affine, out| {
                pack_rows(n, k, 0..panel_count(n), w, affine, out).unwrap();
            });
            let a = bytes(m * k, 3);
            let steps = Steps {
                scale: 0.017,
                zero: 113,
            };
            let shape = LinearShape::dense(m, k, n);
            let mut numbers = Vec::new();
            for row in a.chunks(k) {
                let centred: Vec<i64> = row.iter().map(|&x| i64::from(x) - 113).collect();
                numbers.extend((0..n).map(|c| layer.number(c, &centred, steps.scale)));
            }
            for isa in isas() {
                for threads in [1, 3] {
                    let parallel = Threads(threads);
                    for cut in cuts(shape.panels()) {
                        let what = format!("{m}x{k}x{n} {} {threads} {cut:?}", isa.name());
                        let scratch = linear_scratch_bytes(&shape, parallel.workers());
                        check_finishes(&numbers, &what, &mut |mut results, finish| {
                            for range in &cut {
                                let results = match &mut results {
                                    Results::Floats(out) => Results::Floats(out),
                                    Results::Steps(out) => Results::Steps(out),
                                };
                                with_scratch(scratch, |scratch| {
                                    integer_linear(
                                        isa,
                                        &parallel,
                                        &shape,
                                        range.clone(),
                                        layer.range(range),
                                        &a,
                                        steps,
                                        results,
                                        finish,
                                        scratch,
                                    )
                                })
                                .unwrap();
                            }
                        });
                    }
                }
            }
        }
    }
}

/// A convolution: channels, groups, and along both axes input, kernel, stride, dilation and padding before and after.
pub struct Case {
    pub batch: usize,
    pub channels: [usize; 2],
    pub groups: usize,
    pub input: [usize; 2],
    pub kernel: [usize; 2],
    pub stride: usize,
    pub dilation: usize,
    pub pads: [usize; 2],
}

impl Case {
    pub fn shape(&self) -> ConvShape {
        let output = |axis: usize| {
            let reach = (self.kernel[axis] - 1) * self.dilation + 1;
            (self.input[axis] + self.pads[0] + self.pads[1] - reach) / self.stride + 1
        };
        ConvShape {
            batch: self.batch,
            c_in: self.channels[0],
            c_out: self.channels[1],
            groups: self.groups,
            window: Window {
                input: self.input,
                output: [output(0), output(1)],
                kernel: self.kernel,
                strides: [self.stride; 2],
                dilations: [self.dilation; 2],
                pads_begin: [self.pads[0]; 2],
                pads_end: [self.pads[1]; 2],
            },
        }
    }
}

/// The step of a channel of an image at a row and a column.
pub type Read<'r> = &'r dyn Fn([usize; 2], [usize; 2]) -> u8;

/// The numbers of a blocked output; NaN in lanes past the channels.
pub fn convolved(layer: &Layer, s: &ConvShape, input: Read<'_>, steps: Steps) -> Vec<f32> {
    let w = &s.window;
    let (in_width, out_width) = (s.c_in / s.groups, s.c_out / s.groups);
    let mut numbers = vec![f32::NAN; s.batch * s.panels() * w.output[0] * w.output[1] * LANES];
    for image in 0..s.batch {
        for c in 0..s.c_out {
            for y in 0..w.output[0] {
                for x in 0..w.output[1] {
                    // k as weights are given: channel, row, column.
                    let mut centred = Vec::new();
                    for channel in 0..in_width {
                        let channel = c / out_width * in_width + channel;
                        for tap in 0..w.taps() {
                            let at = |axis: usize, o: usize, t: usize| {
                                (o * w.strides[axis] + t * w.dilations[axis])
                                    .checked_sub(w.pads_begin[axis])
                                    .filter(|&i| i < w.input[axis])
                            };
                            let iy = at(0, y, tap / w.kernel[1]);
                            let ix = at(1, x, tap % w.kernel[1]);
                            centred.push(match (iy, ix) {
                                (Some(iy), Some(ix)) => {
                                    let step = input([image, channel], [iy, ix]);
                                    i64::from(step) - i64::from(steps.zero)
                                }
                                _ => 0,
                            });
                        }
                    }
                    let block = image * s.panels() + c / LANES;
                    let pixel = (block * w.output[0] + y) * w.output[1] + x;
                    numbers[pixel * LANES + c % LANES] = layer.number(c, &centred, steps.scale);
                }
            }
        }
    }
    numbers
}

#[test]
fn convolutions_are_sums_in_wide_integers() {
    let case = |batch, channels, groups, input, kernel, stride, dilation, pads| Case {
        batch,
        channels,
        groups,
        input,
        kernel,
        stride,
        dilation,
        pads,
    };
    let cases = [
        case(1, [16, 16], 1, [1, 1], [1, 1], 1, 1, [0, 0]),
        case(1, [64, 40], 1, [7, 7], [1, 1], 1, 1, [0, 0]),
        case(2, [19, 33], 1, [5, 6], [3, 3], 1, 1, [1, 1]),
        case(1, [32, 48], 1, [9, 8], [3, 3], 2, 1, [1, 0]),
        case(1, [18, 16], 1, [6, 13], [1, 5], 1, 2, [4, 4]),
        case(2, [64, 96], 2, [6, 5], [3, 3], 1, 1, [1, 1]),
        case(1, [48, 16], 1, [14, 14], [2, 2], 2, 1, [0, 0]),
        case(1, [96, 144], 3, [4, 4], [1, 1], 1, 1, [0, 0]),
        case(1, [33, 70], 1, [2, 2], [3, 3], 1, 1, [1, 1]),
        case(1, [16, 112], 1, [7, 5], [3, 3], 1, 1, [1, 1]),
        // Each of two threads has rows of its own.
        case(1, [16, 70], 1, [23, 22], [1, 1], 1, 1, [0, 0]),
        case(2, [20, 33], 1, [17, 15], [3, 3], 1, 1, [1, 1]),
    ];
    for case in cases {
        let s = case.shape();
        if !affordable(s.multiply_adds()) {
            continue;
        }
        for has_zeros in [false, true] {
            if has_zeros && s.groups > 1 {
                continue;
            }
            let layer = Layer::new(s.c_out, s.k(), has_zeros, &|w, affine, out| {
                let order = KOrder::Blocked;
                let all = 0..s.panels();
                let per_group = s.c_in / s.groups;
                pack_conv(
                    order,
                    s.c_out,
                    per_group,
                    s.window.kernel,
                    all,
                    w,
                    affine,
                    out,
                )
                .unwrap();
            });
            let pixels = s.window.input[0] * s.window.input[1];
            let input = bytes(s.batch * s.c_in.div_ceil(LANES) * pixels * LANES, 5);
            let steps = Steps {
                scale: 0.02,
                zero: 141,
            };
            let blocks = s.c_in.div_ceil(LANES);
            let [height, width] = s.window.input;
            let read = |[image, channel]: [usize; 2], [y, x]: [usize; 2]| {
                let block = image * blocks + channel / LANES;
                input[((block * height + y) * width + x) * LANES + channel % LANES]
            };
            let numbers = convolved(&layer, &s, &read, steps);
            for isa in isas() {
                for threads in [1, 2] {
                    let parallel = Threads(threads);
                    let scratch = conv_scratch_bytes(&s, parallel.workers());
                    for cut in cuts(s.panels()) {
                        let what = format!("{s:?} {} {threads} {cut:?}", isa.name());
                        check_finishes(&numbers, &what, &mut |mut results, finish| {
                            for range in &cut {
                                let results = match &mut results {
                                    Results::Floats(out) => Results::Floats(out),
                                    Results::Steps(out) => Results::Steps(out),
                                };
                                with_scratch(scratch, |scratch| {
                                    integer_conv(
                                        isa,
                                        &parallel,
                                        &s,
                                        range.clone(),
                                        layer.range(range),
                                        &input,
                                        steps,
                                        results,
                                        finish,
                                        scratch,
                                    )
                                })
                                .unwrap();
                            }
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_computed_is_refused() {
    let shape = LinearShape::dense(2, 8, 16);
    let layer = Layer::new(16, 8, false, &|w, affine, out| {
        pack_rows(16, 8, 0..1, w, affine, out).unwrap();
    });
    let steps = Steps {
        scale: 1.0,
        zero: 0,
    };
    let isa = isas()[0];
    let scratch = linear_scratch_bytes(&shape, 1);
    let call = |a: &[u8], out: Results<'_>, finish: Finish<'_>, scratch: usize| {
        with_scratch(scratch, |scratch| {
            let panels = layer.range(&(0..1));
            let parallel = Threads(1);
            integer_linear(
                isa,
                &parallel,
                &shape,
                0..1,
                panels,
                a,
                steps,
                out,
                finish,
                scratch,
            )
        })
    };
    let mut out = [0.0; 32];
    let mut bytes = [0; 32];
    let plain = Finish::default();
    assert!(call(&[0; 16], Results::Floats(&mut out), plain, scratch).is_ok());
    assert!(call(&[0; 15], Results::Floats(&mut out), plain, scratch).is_err());
    assert!(call(&[0; 16], Results::Floats(&mut out[..31]), plain, scratch).is_err());
    assert!(call(&[0; 16], Results::Floats(&mut out), plain, 64).is_err());
    // Steps of what is not rounded, or rounded to more than bytes.
    assert!(call(&[0; 16], Results::Steps(&mut bytes), plain, scratch).is_err());
    let wide = Finish {
        activation: Activation::Requantize {
            scale: 1.0,
            zero: 0.0,
            low: -1.0,
            high: 255.0,
            nan: -1.0,
        },
        ..plain
    };
    assert!(call(&[0; 16], Results::Steps(&mut bytes), wide, scratch).is_err());
    let between = Finish {
        activation: Activation::Requantize {
            scale: 1.0,
            zero: 0.5,
            low: 0.0,
            high: 255.0,
            nan: 0.0,
        },
        ..plain
    };
    assert!(call(&[0; 16], Results::Steps(&mut bytes), between, scratch).is_err());
}
