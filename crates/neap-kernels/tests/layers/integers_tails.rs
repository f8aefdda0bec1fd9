//! Layers in integers of every length of k, number of rows and number of panels up to some, against sums in `i64`.

use crate::integers::{Case, Layer, bytes, check_finishes, convolved, with_scratch};
use crate::support::{Threads, affordable, isas};
use neap_kernels::conv::ConvShape;
use neap_kernels::integer::{
    Finish, Results, Steps, conv_scratch_bytes, integer_conv, integer_linear, linear_scratch_bytes,
};
use neap_kernels::linear::LinearShape;
use neap_kernels::panel::{KOrder, pack_conv, pack_rows, panel_count};
use neap_kernels::parallel::Parallel;
use neap_kernels::simd::Isa;

const STEPS: Steps = Steps {
    scale: 0.017,
    zero: 113,
};

/// Not every processor multiplies tiles, and not every system lets it.
fn tell_what_is_absent() {
    if cfg!(target_arch = "x86_64") && Isa::by_name("amx").is_none() {
        neap_testing::absent("no AMX here: its products were not tried");
    }
}

#[track_caller]
fn assert_same(out: &[f32], numbers: &[f32], what: &str) {
    for (i, (out, number)) in out.iter().zip(numbers).enumerate() {
        let same = number.is_nan() || out.to_bits() == number.to_bits();
        assert!(same, "{what} at {i}: {out} {number}");
    }
}

/// There are so many more cases here than elsewhere; emulated machines take the smallest.
const MANY: usize = 8;

fn check_linear([m, k, n]: [usize; 3], has_zeros: bool) {
    if !affordable(MANY * m * k * n) {
        return;
    }
    let layer = Layer::new(n, k, has_zeros, &|w, affine, out| {
        pack_rows(n, k, 0..panel_count(n), w, affine, out).unwrap();
    });
    let shape = LinearShape {
        a_stride: k + 5,
        ..LinearShape::dense(m, k, n)
    };
    // Nothing lies behind the last row.
    let a = bytes((m - 1) * shape.a_stride + k, 3);
    let mut numbers = Vec::new();
    for row in 0..m {
        let row = &a[row * shape.a_stride..][..k];
        let centred: Vec<i64> = row.iter().map(|&x| i64::from(x) - 113).collect();
        numbers.extend((0..n).map(|c| layer.number(c, &centred, STEPS.scale)));
    }
    let all = 0..shape.panels();
    for isa in isas() {
        for threads in [1, 2] {
            let parallel = Threads(threads);
            let mut out = vec![f32::NAN; m * n];
            let scratch = linear_scratch_bytes(&shape, parallel.workers());
            with_scratch(scratch, |scratch| {
                let (weights, results) = (layer.range(&all), Results::Floats(&mut out));
                let (all, finish) = (all.clone(), Finish::default());
                integer_linear(
                    isa, &parallel, &shape, all, weights, &a, STEPS, results, finish, scratch,
                )
            })
            .unwrap();
            let what = format!("{m}x{k}x{n} {} {threads}", isa.name());
            assert_same(&out, &numbers, &what);
        }
    }
}

#[test]
fn products_of_any_length_are_right() {
    tell_what_is_absent();
    for k in 1..=130 {
        let (rows, panels) = (1 + k * 7 % 40, 1 + k % 9);
        check_linear([rows, k, panels * 16 - k % 16], k % 2 == 0);
    }
    for k in [191, 192, 193, 256, 700] {
        check_linear([21, k, 70], k % 2 == 0);
    }
}

#[test]
fn products_of_any_number_of_rows_and_panels_are_right() {
    for rows in 1..=40 {
        check_linear([rows, 66 + rows, 48], false);
    }
    for panels in 1..=9 {
        check_linear([17, 128, panels * 16], panels % 2 == 0);
    }
    // Several tasks of several tiles.
    check_linear([150, 64, 144], false);
}

fn check_conv(case: &Case, has_zeros: bool) {
    let s: ConvShape = case.shape();
    let [height, width] = s.window.output;
    if !affordable(MANY * s.batch * height * width * s.c_out * s.k()) {
        return;
    }
    let layer = Layer::new(s.c_out, s.k(), has_zeros, &|w, affine, out| {
        let (all, width, kernel) = (0..s.panels(), s.c_in / s.groups, s.window.kernel);
        pack_conv(KOrder::Blocked, s.c_out, width, kernel, all, w, affine, out).unwrap();
    });
    let (blocks, [height, width]) = (s.c_in.div_ceil(16), s.window.input);
    // Lanes past the channels hold anything.
    let input = bytes(s.batch * blocks * height * width * 16, 5);
    let read = |[image, channel]: [usize; 2], [y, x]: [usize; 2]| {
        let block = image * blocks + channel / 16;
        input[((block * height + y) * width + x) * 16 + channel % 16]
    };
    let numbers = convolved(&layer, &s, &read, STEPS);
    let all = 0..s.panels();
    for isa in isas() {
        for threads in [1, 2] {
            let parallel = Threads(threads);
            let mut out = vec![f32::NAN; numbers.len()];
            with_scratch(conv_scratch_bytes(&s, parallel.workers()), |scratch| {
                let (weights, results) = (layer.range(&all), Results::Floats(&mut out));
                let (all, finish) = (all.clone(), Finish::default());
                integer_conv(
                    isa, &parallel, &s, all, weights, &input, STEPS, results, finish, scratch,
                )
            })
            .unwrap();
            let what = format!("{s:?} {} {threads}", isa.name());
            assert_same(&out, &numbers, &what);
        }
    }
}

#[test]
fn convolutions_of_any_channels_are_right() {
    let case = |channels, input, kernel, stride, dilation, pads| Case {
        batch: 1,
        channels,
        groups: 1,
        input,
        kernel,
        stride,
        dilation,
        pads,
    };
    for c_in in 1..=70 {
        // Along borders of all kinds, and where no tap is outside.
        let (kernel, pads) = ([[3, 3], [1, 1], [1, 3], [2, 2]])
            .into_iter()
            .zip([[1, 1], [0, 0], [0, 2], [0, 0]])
            .nth(c_in % 4)
            .unwrap();
        let channels = [c_in, 16 * (1 + c_in % 5) - c_in % 3];
        let (stride, dilation) = (1 + c_in / 4 % 2, 1 + c_in / 8 % 2);
        let small = case(channels, [5, 6], kernel, stride, dilation, pads);
        check_conv(&small, c_in % 3 == 0);
    }
    // Wide enough for tiles without a border.
    check_conv(&case([48, 64], [4, 40], [3, 3], 1, 1, [1, 1]), false);
    check_conv(&case([35, 32], [4, 40], [3, 3], 1, 1, [1, 1]), true);
    let groups = Case {
        batch: 2,
        groups: 3,
        ..case([96, 144], [6, 7], [3, 3], 1, 1, [1, 1])
    };
    check_conv(&groups, false);
}

/// Results of a tile are made while others are added up: tiles of every height, and everything that becomes of their sums.
#[test]
fn results_of_any_number_of_pixels_and_panels_are_right() {
    for pixels in 1..=28 {
        let panels = 1 + pixels % 5;
        let case = Case {
            batch: 1,
            channels: [[16, 70, 33][pixels % 3], 16 * panels],
            groups: 1,
            input: [1 + pixels % 2, pixels],
            kernel: [1, [1, 3][pixels / 3 % 2]],
            stride: 1,
            dilation: 1,
            pads: [0, 0],
        };
        if case.input[1] < case.kernel[1] {
            continue;
        }
        let s = case.shape();
        // Each is finished in many ways.
        if !affordable(MANY * s.multiply_adds()) {
            continue;
        }
        let layer = Layer::new(s.c_out, s.k(), false, &|w, affine, out| {
            let (all, kernel) = (0..s.panels(), s.window.kernel);
            pack_conv(
                KOrder::Blocked,
                s.c_out,
                s.c_in,
                kernel,
                all,
                w,
                affine,
                out,
            )
            .unwrap();
        });
        let (blocks, [height, width]) = (s.c_in.div_ceil(16), s.window.input);
        let input = bytes(blocks * height * width * 16, 5);
        let read = |[_, channel]: [usize; 2], [y, x]: [usize; 2]| {
            input[((channel / 16 * height + y) * width + x) * 16 + channel % 16]
        };
        let numbers = convolved(&layer, &s, &read, STEPS);
        for isa in isas() {
            let what = format!("{s:?} {}", isa.name());
            check_finishes(&numbers, &what, &mut |results, finish| {
                let (all, weights, one) =
                    (0..s.panels(), layer.range(&(0..s.panels())), Threads(1));
                with_scratch(conv_scratch_bytes(&s, 1), |scratch| {
                    integer_conv(
                        isa, &one, &s, all, weights, &input, STEPS, results, finish, scratch,
                    )
                })
                .unwrap();
            });
        }
    }
}
