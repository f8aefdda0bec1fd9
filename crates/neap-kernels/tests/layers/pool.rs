//! Pooling against plain loops in f64.

use neap_kernels::parallel::Serial;
use neap_kernels::pool::{Pool, average_pool, global_average, global_max, max_pool};
use neap_kernels::rows::{add_sums, take_largest};
use neap_kernels::window::Window;

use crate::support::{Random, Threads, assert_close, assert_same_bits, isas};

/// Mean or maximum per lane, with the padding counted or not.
fn reference(p: &Pool, src: &[f32], max: bool, count_pad: bool) -> Vec<f64> {
    let mut out = Vec::new();
    for plane in 0..p.planes {
        for y in 0..p.window.output[0] {
            for x in 0..p.window.output[1] {
                for lane in 0..16 {
                    let (mut sum, mut best, mut real, mut padded) = (0.0, f64::NEG_INFINITY, 0, 0);
                    for ky in 0..p.window.kernel[0] {
                        for kx in 0..p.window.kernel[1] {
                            // Coordinates in the padded input.
                            let py = y * p.window.strides[0] + ky * p.window.dilations[0];
                            let px = x * p.window.strides[1] + kx * p.window.dilations[1];
                            if py
                                < p.window.input[0] + p.window.pads_begin[0] + p.window.pads_end[0]
                                && px
                                    < p.window.input[1]
                                        + p.window.pads_begin[1]
                                        + p.window.pads_end[1]
                            {
                                padded += 1;
                            }
                            if py < p.window.pads_begin[0] || px < p.window.pads_begin[1] {
                                continue;
                            }
                            let (iy, ix) =
                                (py - p.window.pads_begin[0], px - p.window.pads_begin[1]);
                            if iy < p.window.input[0] && ix < p.window.input[1] {
                                let v = f64::from(
                                    src[((plane * p.window.input[0] + iy) * p.window.input[1]
                                        + ix)
                                        * 16
                                        + lane],
                                );
                                sum += v;
                                best = best.max(v);
                                real += 1;
                            }
                        }
                    }
                    let count = if count_pad { padded } else { real };
                    out.push(if max {
                        best
                    } else {
                        sum / f64::from(count.max(1))
                    });
                }
            }
        }
    }
    out
}

fn pools() -> Vec<Pool> {
    let square = |planes, input, output, k, s, d, begin, end| Pool {
        planes,
        window: Window {
            input: [input; 2],
            output: [output; 2],
            kernel: [k; 2],
            strides: [s; 2],
            dilations: [d; 2],
            pads_begin: [begin; 2],
            pads_end: [end; 2],
        },
    };
    vec![
        square(4, 112, 56, 3, 2, 1, 1, 1),
        square(2, 35, 35, 3, 1, 1, 1, 1),
        square(3, 14, 7, 2, 2, 1, 0, 0),
        // ceil_mode: the last window hangs over the end
        square(2, 13, 7, 3, 2, 1, 0, 0),
        square(1, 13, 7, 2, 2, 1, 0, 0),
        square(1, 13, 7, 3, 2, 1, 1, 1),
        square(1, 20, 16, 3, 1, 2, 0, 0),
        square(2, 13, 13, 5, 1, 1, 2, 2),
        square(2, 7, 1, 7, 7, 1, 0, 0),
        square(1, 3, 5, 3, 1, 1, 2, 2),
        Pool {
            planes: 3,
            window: Window {
                input: [1, 70],
                output: [1, 34],
                kernel: [1, 4],
                strides: [1, 2],
                dilations: [1, 1],
                pads_begin: [0, 0],
                pads_end: [0, 0],
            },
        },
        Pool {
            planes: 1,
            window: Window {
                input: [9, 40],
                output: [10, 20],
                kernel: [2, 3],
                strides: [1, 2],
                dilations: [1, 1],
                pads_begin: [1, 0],
                pads_end: [1, 1],
            },
        },
    ]
}

#[test]
fn windows() {
    let mut random = Random::new(11);
    for pool in pools() {
        let src = random.vec(
            pool.planes * pool.window.input[0] * pool.window.input[1] * 16,
            -1.0,
            1.0,
        );
        let len = pool.planes * pool.window.output[0] * pool.window.output[1] * 16;
        for isa in isas() {
            let what = format!("{isa:?} {pool:?}");
            let (mut got, mut again) = (vec![f32::NAN; len], vec![f32::NAN; len]);
            max_pool(isa, &Threads(2), &pool, &src, &mut got).unwrap();
            assert_close(&got, &reference(&pool, &src, true, false), 0.0, 1.0, &what);
            for count_pad in [false, true] {
                average_pool(isa, &Threads(3), &pool, count_pad, &src, &mut got).unwrap();
                let want = reference(&pool, &src, false, count_pad);
                assert_close(&got, &want, 1e-6, 1.0, &what);
                average_pool(isa, &Serial, &pool, count_pad, &src, &mut again).unwrap();
                assert_same_bits(&got, &again, &what);
            }
        }
    }
}

#[test]
fn whole_planes() {
    let mut random = Random::new(12);
    for (planes, positions) in [(1, 1), (3, 49), (130, 49), (5, 64), (2, 3), (7, 3137)] {
        let src = random.vec(planes * positions * 16, -1.0, 1.0);
        let pool = Pool {
            planes,
            window: Window {
                input: [1, positions],
                output: [1, 1],
                kernel: [1, positions],
                strides: [1, 1],
                dilations: [1, 1],
                pads_begin: [0, 0],
                pads_end: [0, 0],
            },
        };
        for isa in isas() {
            let what = format!("{isa:?} {planes} {positions}");
            let (mut got, mut again) = (vec![f32::NAN; planes * 16], vec![f32::NAN; planes * 16]);
            global_average(isa, &Threads(3), planes, positions, &src, &mut got).unwrap();
            assert_close(
                &got,
                &reference(&pool, &src, false, false),
                1e-6,
                1.0,
                &what,
            );
            global_average(isa, &Serial, planes, positions, &src, &mut again).unwrap();
            assert_same_bits(&got, &again, &what);
            global_max(isa, &Threads(3), planes, positions, &src, &mut got).unwrap();
            assert_close(&got, &reference(&pool, &src, true, false), 0.0, 1.0, &what);
            // The same bits where the places come in two parts.
            let plane = &src[..positions * 16];
            let (first, second) = plane.split_at(positions / 3 * 16);
            for take in [add_sums, take_largest] {
                let (mut whole, mut parts) = ([-0.5; 16], [-0.5; 16]);
                take(isa, plane, &mut whole);
                take(isa, first, &mut parts);
                take(isa, second, &mut parts);
                assert_eq!(whole.map(f64::to_bits), parts.map(f64::to_bits), "{what}");
            }
        }
    }
}
