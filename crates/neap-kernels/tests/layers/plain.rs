//! Convolutions of plain tensors, forward and backward, against loops in f64.

use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::plain::{self, Shape};
use neap_kernels::simd::Isa;
use neap_kernels::window::Window;

use crate::support::{Threads, affordable, assert_close, assert_same_bits, isas, numbers};

/// `[batch, groups, c_in, c_out]` (of a group), input, kernel, strides, dilations, pads before and after.
type Row = (
    [usize; 4],
    [usize; 3],
    [usize; 3],
    [usize; 3],
    [usize; 3],
    [usize; 3],
    [usize; 3],
);

const ONE: [usize; 3] = [1; 3];
const NONE: [usize; 3] = [0; 3];

fn plane(size: usize) -> [usize; 3] {
    [1, size, size]
}

fn pad(size: usize) -> [usize; 3] {
    [0, size, size]
}

fn rows() -> Vec<Row> {
    vec![
        // 1x1: planes larger and smaller than a block, k larger than a chunk, channels that are no multiple of 16.
        ([2, 1, 24, 40], plane(23), ONE, ONE, ONE, NONE, NONE),
        ([3, 1, 5, 7], plane(7), ONE, ONE, ONE, NONE, NONE),
        ([1, 1, 600, 20], plane(5), ONE, ONE, ONE, NONE, NONE),
        ([2, 1, 1024, 70], plane(3), ONE, ONE, ONE, NONE, NONE),
        ([2, 1, 60, 520], plane(4), ONE, ONE, ONE, NONE, NONE),
        ([1, 1, 3, 2], [1, 1, 1], ONE, ONE, ONE, NONE, NONE),
        // 1x1 with strides, of which most inputs are read by no result.
        ([2, 1, 17, 33], plane(9), ONE, [1, 2, 2], ONE, NONE, NONE),
        ([1, 1, 8, 8], plane(30), ONE, [1, 3, 2], ONE, NONE, NONE),
        // 3x3: padded, with strides, dilated, and as first layers have it.
        (
            [2, 1, 16, 32],
            plane(14),
            plane(3),
            ONE,
            ONE,
            pad(1),
            pad(1),
        ),
        (
            [1, 1, 20, 19],
            plane(25),
            plane(3),
            ONE,
            ONE,
            pad(1),
            pad(1),
        ),
        (
            [3, 1, 9, 21],
            plane(15),
            plane(3),
            [1, 2, 2],
            ONE,
            pad(1),
            pad(1),
        ),
        (
            [2, 1, 7, 18],
            plane(16),
            plane(3),
            [1, 2, 2],
            ONE,
            pad(0),
            pad(1),
        ),
        ([2, 1, 64, 48], plane(7), plane(3), ONE, ONE, pad(1), pad(1)),
        (
            [1, 1, 6, 5],
            plane(13),
            plane(3),
            ONE,
            [1, 2, 2],
            pad(2),
            pad(2),
        ),
        (
            [1, 1, 6, 5],
            plane(13),
            plane(3),
            [1, 2, 2],
            [1, 2, 2],
            pad(2),
            pad(2),
        ),
        (
            [1, 1, 6, 5],
            plane(14),
            plane(3),
            [1, 2, 3],
            [1, 3, 2],
            pad(2),
            pad(3),
        ),
        (
            [2, 1, 3, 32],
            plane(31),
            plane(7),
            [1, 2, 2],
            ONE,
            pad(3),
            pad(3),
        ),
        ([1, 1, 512, 6], plane(16), ONE, ONE, ONE, NONE, NONE),
        // Strides longer than the kernel; a kernel as large as its input.
        (
            [1, 1, 4, 6],
            plane(11),
            plane(2),
            [1, 3, 3],
            ONE,
            NONE,
            NONE,
        ),
        ([2, 1, 12, 30], plane(6), plane(6), ONE, ONE, NONE, NONE),
        // One and three axes.
        (
            [2, 1, 10, 12],
            [1, 1, 50],
            [1, 1, 5],
            ONE,
            ONE,
            [0, 0, 2],
            [0, 0, 2],
        ),
        ([1, 1, 4, 6], [5, 6, 7], [3, 3, 3], [2, 1, 2], ONE, ONE, ONE),
        // Groups, and channels that are groups.
        ([2, 3, 8, 12], plane(9), plane(3), ONE, ONE, pad(1), pad(1)),
        (
            [1, 4, 4, 4],
            plane(28),
            plane(3),
            [1, 2, 2],
            ONE,
            pad(1),
            pad(1),
        ),
        ([2, 5, 1, 1], plane(14), plane(3), ONE, ONE, pad(1), pad(1)),
        ([3, 3, 1, 1], plane(7), plane(3), ONE, ONE, pad(1), pad(1)),
        (
            [2, 3, 1, 1],
            plane(57),
            plane(3),
            [1, 2, 2],
            ONE,
            pad(1),
            pad(1),
        ),
        (
            [2, 3, 1, 1],
            plane(28),
            plane(3),
            [1, 2, 2],
            ONE,
            pad(0),
            pad(1),
        ),
        (
            [1, 2, 1, 1],
            plane(19),
            plane(5),
            [1, 2, 1],
            [1, 1, 3],
            pad(4),
            pad(6),
        ),
        ([1, 2, 1, 1], plane(20), plane(9), ONE, ONE, pad(4), pad(4)),
        (
            [1, 2, 1, 1],
            plane(10),
            plane(2),
            [1, 3, 3],
            ONE,
            NONE,
            NONE,
        ),
        (
            [2, 2, 1, 1],
            [4, 5, 6],
            [3, 2, 3],
            [2, 1, 2],
            [1, 2, 1],
            ONE,
            ONE,
        ),
        (
            [1, 3, 1, 1],
            [1, 1, 40],
            [1, 1, 4],
            [1, 1, 2],
            ONE,
            [0, 0, 1],
            [0, 0, 2],
        ),
        ([1, 1, 1, 1], [1, 1, 1], [1, 3, 3], ONE, ONE, pad(1), pad(1)),
    ]
}

fn shape(row: &Row) -> Shape {
    let ([batch, groups, c_in, c_out], input, kernel, strides, dilations, before, after) = *row;
    let output = std::array::from_fn(|i| {
        (input[i] + before[i] + after[i] - (kernel[i] - 1) * dilations[i] - 1) / strides[i] + 1
    });
    Shape {
        batch,
        groups,
        c_in,
        c_out,
        window: Window {
            input,
            output,
            kernel,
            strides,
            dilations,
            pads_begin: before,
            pads_end: after,
        },
    }
}

/// Calls `f(x, w, y)` with the indices of every product of the convolution.
fn each_product(s: &Shape, mut f: impl FnMut(usize, usize, usize)) {
    let w = &s.window;
    let flat = |at: [usize; 3], sizes: [usize; 3]| (at[0] * sizes[1] + at[1]) * sizes[2] + at[2];
    let unflat = |i: usize, sizes: [usize; 3]| {
        [
            i / (sizes[1] * sizes[2]),
            i / sizes[2] % sizes[1],
            i % sizes[2],
        ]
    };
    let (inside, outside): (usize, usize) = (w.input.iter().product(), w.output.iter().product());
    for position in 0..outside {
        for tap in 0..w.taps() {
            let (at, k) = (unflat(position, w.output), unflat(tap, w.kernel));
            let from: [isize; 3] = std::array::from_fn(|i| {
                (at[i] * w.strides[i] + k[i] * w.dilations[i]) as isize - w.pads_begin[i] as isize
            });
            if (0..3).any(|i| from[i] < 0 || from[i] >= w.input[i] as isize) {
                continue;
            }
            let source = flat(from.map(|i| i as usize), w.input);
            for unit in 0..s.batch * s.groups {
                for o in 0..s.c_out {
                    for i in 0..s.c_in {
                        let weight =
                            ((unit % s.groups * s.c_out + o) * s.c_in + i) * w.taps() + tap;
                        f(
                            (unit * s.c_in + i) * inside + source,
                            weight,
                            (unit * s.c_out + o) * outside + position,
                        );
                    }
                }
            }
        }
    }
}

struct Case {
    shape: Shape,
    x: Vec<f32>,
    w: Vec<f32>,
    dy: Vec<f32>,
    biases: [Vec<f32>; 2],
}

impl Case {
    fn of(row: &Row) -> Case {
        let shape = shape(row);
        let (s, w) = (&shape, &shape.window);
        let all = s.batch * s.groups;
        Case {
            x: numbers(all * s.c_in * w.input.iter().product::<usize>(), 1),
            w: numbers(s.groups * s.c_out * s.c_in * w.taps(), 2),
            dy: numbers(all * s.c_out * w.output.iter().product::<usize>(), 3),
            biases: [
                numbers(s.groups * s.c_out, 4),
                numbers(s.groups * s.c_in, 5),
            ],
            shape,
        }
    }

    /// Results, derivatives by inputs and derivatives by weights; the first two with a bias.
    fn wanted(&self) -> [Vec<f64>; 3] {
        let s = &self.shape;
        let start = |bias: &[f32], len: usize| {
            let plane = len / (s.batch * bias.len());
            (0..len)
                .map(|i| f64::from(bias[i / plane % bias.len()]))
                .collect::<Vec<_>>()
        };
        let mut y = start(&self.biases[0], self.dy.len());
        let mut dx = start(&self.biases[1], self.x.len());
        let mut dw = vec![0.0; self.w.len()];
        each_product(s, |i, k, o| {
            let [x, w, v] = [self.x[i], self.w[k], self.dy[o]].map(f64::from);
            y[o] += x * w;
            dx[i] += v * w;
            dw[k] += x * v;
        });
        [y, dx, dw]
    }

    fn computed(&self, isa: Isa, parallel: &dyn Parallel, with_bias: bool) -> [Vec<f32>; 3] {
        let (s, workers) = (&self.shape, parallel.workers());
        // What was in results and scratch must not matter.
        let [mut y, mut dx, mut dw] =
            [&self.dy, &self.x, &self.w].map(|like| vec![f32::NAN; like.len()]);
        let scratch = |floats: usize| vec![f32::NAN; floats];
        let bias = |i: usize| with_bias.then_some(&self.biases[i][..]);
        let mut room = scratch(plain::forward_scratch_floats(s, workers));
        plain::forward(
            isa,
            parallel,
            s,
            &self.x,
            &self.w,
            bias(0),
            &mut y,
            &mut room,
        )
        .unwrap();
        let mut room = scratch(plain::by_input_scratch_floats(s, workers));
        plain::by_input(
            isa,
            parallel,
            s,
            &self.dy,
            &self.w,
            bias(1),
            &mut dx,
            &mut room,
        )
        .unwrap();
        let mut room = scratch(plain::by_weight_scratch_floats(s, workers));
        plain::by_weight(isa, parallel, s, &self.x, &self.dy, &mut dw, &mut room).unwrap();
        [y, dx, dw]
    }
}

#[test]
fn agree_with_loops_whatever_the_workers() {
    for row in rows() {
        let case = Case::of(&row);
        let products = case.dy.len() * case.shape.c_in * case.shape.window.taps();
        if !affordable(products) {
            continue;
        }
        let wanted = case.wanted();
        for isa in isas() {
            let got = case.computed(isa, &Serial, true);
            for (i, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                // Sums of so many terms between -1 and 1.
                let terms = [case.dy.len(), case.x.len(), case.w.len()][i];
                let floor = (products as f64 / terms.max(1) as f64).sqrt().max(1.0);
                assert_close(
                    got,
                    wanted,
                    2e-6,
                    floor,
                    &format!("{row:?} {} {i}", isa.name()),
                );
            }
            for workers in [2, 7] {
                let again = case.computed(isa, &Threads(workers), true);
                for (got, again) in got.iter().zip(&again) {
                    assert_same_bits(again, got, &format!("{row:?} {} {workers}", isa.name()));
                }
            }
        }
    }
}

#[test]
fn without_a_bias_sums_begin_at_zero() {
    for row in [rows()[0], rows()[1], rows()[8], rows()[24]] {
        let mut case = Case::of(&row);
        let got = case.computed(Isa::detect(), &Serial, false);
        case.biases.iter_mut().for_each(|bias| bias.fill(0.0));
        for (got, wanted) in got.iter().zip(&case.wanted()) {
            assert_close(got, wanted, 2e-6, 30.0, &format!("{row:?}"));
        }
    }
}

#[test]
fn slices_of_a_batch_have_the_bits_of_the_batch() {
    for row in [rows()[0], rows()[1], rows()[6], rows()[12], rows()[25]] {
        let whole = Case::of(&row);
        let [y, dx, _] = whole.computed(Isa::detect(), &Serial, true);
        let batch = whole.shape.batch;
        let part = |all: &[f32], image: usize| {
            let len = all.len() / batch;
            all[image * len..][..len].to_vec()
        };
        for image in 0..batch {
            let one = Case {
                shape: Shape {
                    batch: 1,
                    ..whole.shape
                },
                x: part(&whole.x, image),
                dy: part(&whole.dy, image),
                w: whole.w.clone(),
                biases: whole.biases.clone(),
            };
            let [y_of_one, dx_of_one, _] = one.computed(Isa::detect(), &Serial, true);
            assert_same_bits(&y_of_one, &part(&y, image), &format!("{row:?} {image}"));
            assert_same_bits(&dx_of_one, &part(&dx, image), &format!("{row:?} {image}"));
        }
    }
}

#[test]
fn buffers_that_are_too_short_are_refused() {
    let case = Case::of(&rows()[8]);
    let (s, isa) = (&case.shape, Isa::detect());
    let mut y = vec![0.0; case.dy.len()];
    let mut room = vec![0.0; plain::forward_scratch_floats(s, 1)];
    let short = room.len() - 1;
    let x = &case.x[1..];
    assert!(plain::forward(isa, &Serial, s, x, &case.w, None, &mut y, &mut room).is_err());
    let room = &mut room[..short];
    assert!(plain::forward(isa, &Serial, s, &case.x, &case.w, None, &mut y, room).is_err());
}

#[test]
fn the_most_scratch_is_enough_for_any_smaller_size() {
    for [groups, c_in, c_out] in [[1, 24, 40], [1, 64, 600], [2, 33, 17], [8, 1, 1]] {
        let of = |length: usize, stride: usize| {
            let (window, pads) = ([1, 1, 5], [0, 0, 2]);
            let sizes = [2, groups, c_in, c_out];
            Case::of(&(
                sizes,
                [1, 1, length],
                window,
                [1, 1, stride],
                ONE,
                pads,
                pads,
            ))
            .shape
        };
        for (workers, stride) in [(1, 1), (3, 1), (2, 3)] {
            let bound = of(700, stride);
            let forward = plain::most_forward_scratch_floats(&bound, workers);
            let by_input = plain::most_by_input_scratch_floats(&bound, workers);
            // Emulated machines count a part of them.
            let step = if affordable(1 << 20) { 1 } else { 41 };
            for length in (1..=700).step_by(step) {
                let actual = of(length, stride);
                assert!(
                    plain::forward_scratch_floats(&actual, workers) <= forward,
                    "{length}"
                );
                assert!(
                    plain::by_input_scratch_floats(&actual, workers) <= by_input,
                    "{length}"
                );
            }
        }
    }
}
