//! First layers in integers against sums in `i64`, and poolings of steps against plain loops, for every instruction set, number
//! of threads and cut.

use crate::integers::{Case, Layer, bytes, check_finishes, convolved, cuts, with_scratch};
use crate::support::{Threads, affordable, isas};
use neap_kernels::conv::ConvShape;
use neap_kernels::integer::{
    Finish, Results, Steps, first_layer_scratch_bytes, integer_first_layer, max_pool_of_steps,
    takes_first_layer,
};
use neap_kernels::panel::{KOrder, pack_conv};
use neap_kernels::parallel::Parallel;
use neap_kernels::pool::Pool;
use neap_kernels::window::Window;

const STEPS: Steps = Steps {
    scale: 0.02,
    zero: 141,
};

fn layer(s: &ConvShape, has_zeros: bool) -> Layer {
    Layer::new(s.c_out, s.k(), has_zeros, &|w, affine, out| {
        let (all, kernel) = (0..s.panels(), s.window.kernel);
        pack_conv(KOrder::Taps, s.c_out, s.c_in, kernel, all, w, affine, out).unwrap();
    })
}

fn cases() -> Vec<Case> {
    let case = |batch, channels, input, kernel, stride, dilation, pads| Case {
        batch,
        channels,
        groups: 1,
        input,
        kernel,
        stride,
        dilation,
        pads,
    };
    vec![
        case(1, [1, 16], [1, 1], [1, 1], 1, 1, [0, 0]),
        case(1, [3, 64], [14, 13], [7, 7], 2, 1, [3, 3]),
        case(2, [3, 40], [9, 8], [3, 3], 2, 1, [1, 0]),
        case(1, [4, 33], [6, 7], [2, 2], 1, 1, [0, 1]),
        case(1, [1, 112], [8, 11], [5, 5], 1, 1, [2, 2]),
        case(1, [3, 20], [9, 10], [3, 3], 1, 2, [2, 2]),
        case(2, [15, 16], [1, 12], [1, 4], 3, 1, [0, 2]),
        // Rows that no output needs, and a window larger than the image.
        case(1, [2, 16], [7, 7], [2, 2], 3, 1, [0, 0]),
        case(1, [3, 16], [2, 2], [5, 5], 1, 1, [2, 2]),
        // Copied in several tasks.
        case(1, [16, 16], [40, 64], [2, 3], 1, 1, [1, 1]),
    ]
}

#[test]
fn first_layers_are_sums_in_wide_integers() {
    for case in cases() {
        let s = case.shape();
        if !affordable(s.multiply_adds()) {
            continue;
        }
        assert!(takes_first_layer(&s), "{s:?}");
        let [height, width] = s.window.input;
        let input = bytes(s.batch * s.c_in * height * width, 5);
        let read = |[image, channel]: [usize; 2], [y, x]: [usize; 2]| {
            input[((image * s.c_in + channel) * height + y) * width + x]
        };
        for has_zeros in [false, true] {
            let layer = layer(&s, has_zeros);
            let numbers = convolved(&layer, &s, &read, STEPS);
            for isa in isas() {
                for threads in [1, 2] {
                    let parallel = Threads(threads);
                    let scratch = first_layer_scratch_bytes(&s, parallel.workers());
                    for cut in cuts(s.panels()) {
                        let what = format!("{s:?} {} {threads} {cut:?}", isa.name());
                        check_finishes(&numbers, &what, &mut |mut results, finish| {
                            for range in &cut {
                                let results = match &mut results {
                                    Results::Floats(out) => Results::Floats(out),
                                    Results::Steps(out) => Results::Steps(out),
                                };
                                with_scratch(scratch, |scratch| {
                                    integer_first_layer(
                                        isa,
                                        &parallel,
                                        &s,
                                        range.clone(),
                                        layer.range(range),
                                        &input,
                                        STEPS,
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
fn wrong_sizes_are_refused() {
    let s = Case {
        batch: 1,
        channels: [3, 32],
        groups: 1,
        input: [6, 6],
        kernel: [3, 3],
        stride: 1,
        dilation: 1,
        pads: [1, 1],
    }
    .shape();
    let layer = layer(&s, false);
    let enough = first_layer_scratch_bytes(&s, 1);
    let call = |input: usize, out: usize, scratch: usize| {
        let mut out = vec![0.0; out];
        let (input, results) = (vec![0; input], Results::Floats(&mut out));
        with_scratch(scratch, |scratch| {
            integer_first_layer(
                isas()[0],
                &Threads(1),
                &s,
                0..2,
                layer.range(&(0..2)),
                &input,
                STEPS,
                results,
                Finish::default(),
                scratch,
            )
        })
    };
    assert!(call(108, 36 * 32, enough).is_ok());
    assert!(call(107, 36 * 32, enough).is_err());
    assert!(call(108, 36 * 32 - 1, enough).is_err());
    assert!(call(108, 36 * 32, enough - 64).is_err());
    let groups = ConvShape {
        c_in: 4,
        groups: 2,
        ..s
    };
    assert!(!takes_first_layer(&groups));
    assert!(!takes_first_layer(&ConvShape { c_in: 17, ..s }));
}

/// Output size, kernel, strides, dilations and pads of a pooling of 9 by 12.
type Pooling = ([usize; 2], [usize; 2], [usize; 2], [usize; 2], [usize; 2]);

#[test]
fn the_largest_step_is_under_each_window() {
    let poolings: [Pooling; 5] = [
        ([5, 6], [3, 3], [2, 2], [1, 1], [1, 1]),
        ([4, 6], [2, 2], [2, 2], [1, 1], [0, 0]),
        ([9, 12], [5, 3], [1, 1], [1, 1], [2, 1]),
        ([9, 12], [3, 2], [1, 1], [2, 1], [2, 0]),
        // The last windows hang over the end.
        ([5, 4], [2, 3], [2, 3], [1, 1], [0, 0]),
    ];
    let (planes, input) = (3, [9, 12]);
    let src = bytes(planes * 9 * 12 * 16, 3);
    for (output, kernel, strides, dilations, pads) in poolings {
        let window = Window {
            input,
            output,
            kernel,
            strides,
            dilations,
            pads_begin: pads,
            pads_end: pads,
        };
        let mut want = Vec::new();
        for (plane, y, x) in (0..planes).flat_map(|plane| {
            (0..output[0]).flat_map(move |y| (0..output[1]).map(move |x| (plane, y, x)))
        }) {
            for lane in 0..16 {
                let mut best = 0;
                for (ky, kx) in (0..kernel[0]).flat_map(|ky| (0..kernel[1]).map(move |kx| (ky, kx)))
                {
                    let iy = (y * strides[0] + ky * dilations[0]).checked_sub(pads[0]);
                    let ix = (x * strides[1] + kx * dilations[1]).checked_sub(pads[1]);
                    if let (Some(iy @ 0..9), Some(ix @ 0..12)) = (iy, ix) {
                        best = best.max(src[((plane * 9 + iy) * 12 + ix) * 16 + lane]);
                    }
                }
                want.push(best);
            }
        }
        let pool = Pool { planes, window };
        for threads in [1, 3] {
            let mut found = vec![0; want.len()];
            max_pool_of_steps(&Threads(threads), &pool, &src, &mut found).unwrap();
            assert!(want == found, "{window:?}");
        }
        let short = &src[..src.len() - 1];
        assert!(max_pool_of_steps(&Threads(1), &pool, short, &mut want).is_err());
        let short = want.len() - 1;
        assert!(max_pool_of_steps(&Threads(1), &pool, &src, &mut want[..short]).is_err());
    }
}
