//! Depthwise convolutions in integers against sums in `i64`, for every instruction set, number of threads and cut.

use crate::integers::{Case, Layer, bytes, check_finishes, convolved, cuts, with_scratch};
use crate::support::{Threads, affordable, isas};
use neap_kernels::conv::ConvShape;
use neap_kernels::depthwise::Depthwise;
use neap_kernels::integer::{
    Finish, Results, Steps, depthwise_scratch_bytes, integer_depthwise, takes_depthwise,
};
use neap_kernels::panel::{Format, Panels, pack_depthwise, panel_count};
use neap_kernels::parallel::Parallel;
use neap_kernels::simd::Isa;

const LANES: usize = 16;

const STEPS: Steps = Steps {
    scale: 0.02,
    zero: 141,
};

fn layer(channels: usize, kernel: [usize; 2], has_zeros: bool) -> Layer {
    Layer::new(
        channels,
        kernel[0] * kernel[1],
        has_zeros,
        &|w, affine, out| {
            pack_depthwise(channels, kernel, 0..panel_count(channels), w, affine, out).unwrap();
        },
    )
}

fn shape(s: &ConvShape) -> Depthwise {
    Depthwise {
        batch: s.batch,
        channels: s.c_out,
        window: s.window,
    }
}

fn check(s: &ConvShape) {
    if !affordable(s.multiply_adds()) {
        return;
    }
    let shape = shape(s);
    let layer = layer(shape.channels, s.window.kernel, false);
    let blocks = shape.channels.div_ceil(LANES);
    let [height, width] = s.window.input;
    // Nothing behind the last pixel.
    let input = bytes(s.batch * blocks * height * width * LANES, 5);
    let read = |[image, channel]: [usize; 2], [y, x]: [usize; 2]| {
        let block = image * blocks + channel / LANES;
        input[((block * height + y) * width + x) * LANES + channel % LANES]
    };
    let numbers = convolved(&layer, s, &read, STEPS);
    for isa in isas() {
        for threads in [1, 2] {
            let parallel = Threads(threads);
            let scratch = depthwise_scratch_bytes(&shape, parallel.workers());
            for cut in cuts(blocks) {
                let what = format!("{s:?} {} {threads} {cut:?}", isa.name());
                check_finishes(&numbers, &what, &mut |mut results, finish| {
                    for range in &cut {
                        let results = match &mut results {
                            Results::Floats(out) => Results::Floats(out),
                            Results::Steps(out) => Results::Steps(out),
                        };
                        let panels = layer.range(range);
                        let range = range.clone();
                        with_scratch(scratch, |scratch| {
                            integer_depthwise(
                                isa, &parallel, &shape, range, panels, &input, STEPS, results,
                                finish, scratch,
                            )
                        })
                        .unwrap();
                    }
                });
            }
        }
    }
}

#[test]
fn depthwise_layers_are_sums_in_wide_integers() {
    let case = |batch, channels, input, kernel, stride, pads| {
        let case = Case {
            batch,
            channels: [channels; 2],
            groups: channels,
            input,
            kernel,
            stride,
            dilation: 1,
            pads,
        };
        case.shape()
    };
    // Outputs of every width of a tile, and windows of one and of several quads.
    for width in 1..=17 {
        check(&case(1, 16, [3, width], [3, 3], 1, [1, 1]));
        check(&case(1, 20, [4, width + 2], [3, 3], 2, [1, 0]));
    }
    for case in [
        case(2, 40, [9, 8], [3, 3], 1, [1, 1]),
        case(1, 16, [7, 7], [5, 5], 1, [2, 2]),
        case(1, 33, [9, 11], [5, 5], 2, [2, 2]),
        case(1, 16, [9, 9], [7, 7], 1, [3, 3]),
        case(1, 16, [1, 1], [3, 3], 1, [1, 1]),
        case(1, 18, [2, 3], [3, 3], 1, [4, 4]),
        case(1, 16, [8, 8], [2, 2], 2, [0, 0]),
        case(1, 16, [6, 5], [1, 1], 1, [0, 0]),
        case(1, 16, [5, 13], [1, 4], 3, [0, 0]),
        // Several bands.
        case(1, 16, [120, 40], [3, 3], 1, [1, 1]),
        case(1, 16, [90, 61], [5, 3], 2, [1, 1]),
        case(1, 16, [3, 1900], [3, 3], 1, [1, 1]),
        // Each of two threads has rows of its own.
        case(2, 40, [31, 5], [3, 3], 1, [1, 1]),
    ] {
        check(&case);
    }
    // Rows that lie apart.
    let mut dilated = case(1, 17, [12, 9], [3, 3], 1, [2, 2]);
    dilated.window.dilations = [3, 1];
    dilated.window.output[0] -= 4;
    check(&dilated);
}

#[test]
fn wrong_sizes_are_refused() {
    assert!(takes_depthwise([3, 3], [1, 1], [1, 1]) && takes_depthwise([7, 7], [2, 2], [3, 1]));
    assert!(!takes_depthwise([3, 3], [1, 1], [1, 2]));
    assert!(!takes_depthwise([0, 3], [1, 1], [1, 1]) && !takes_depthwise([3, 3], [1, 0], [1, 1]));
    assert!(!takes_depthwise([99, 99], [1, 1], [1, 1]));
    let case = Case {
        batch: 1,
        channels: [32; 2],
        groups: 32,
        input: [6, 6],
        kernel: [3, 3],
        stride: 1,
        dilation: 1,
        pads: [1, 1],
    };
    let shape = shape(&case.shape());
    let (sound, zeros) = (layer(32, [3, 3], false), layer(32, [3, 3], true));
    let bytes = depthwise_scratch_bytes(&shape, 1);
    let run = |shape: &Depthwise, weights: Panels<'_>, range, input: usize, out, scratch: usize| {
        let (input, mut out) = (vec![7; input], vec![0.0; out]);
        let mut memory = vec![0; scratch];
        let (results, finish) = (Results::Floats(&mut out), Finish::default());
        let (isa, threads) = (Isa::detect(), &Threads(1));
        let memory = &mut memory;
        integer_depthwise(
            isa, threads, shape, range, weights, &input, STEPS, results, finish, memory,
        )
        .is_ok()
    };
    let elements = 2 * 36 * LANES;
    let panels = sound.range(&(0..2));
    assert!(run(&shape, panels, 0..2, elements, elements, bytes));
    assert!(!run(&shape, panels, 0..3, elements, elements, bytes));
    assert!(!run(&shape, panels, 0..2, elements - 1, elements, bytes));
    assert!(!run(&shape, panels, 0..2, elements, elements - 1, bytes));
    assert!(!run(&shape, panels, 0..2, elements, elements, bytes - 1));
    assert!(!run(
        &shape,
        sound.range(&(0..1)),
        0..2,
        elements,
        elements,
        bytes
    ));
    assert!(!run(
        &shape,
        zeros.range(&(0..2)),
        0..2,
        elements,
        elements,
        bytes
    ));
    let floats = vec![0f32; 4096];
    let words: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
    let floats = Panels::new(Format::F32, &words).unwrap();
    assert!(!run(&shape, floats, 0..2, elements, elements, bytes));
    let mut dilated = shape;
    dilated.window.dilations = [1, 2];
    assert!(!run(&dilated, panels, 0..2, elements, elements, bytes));
}
