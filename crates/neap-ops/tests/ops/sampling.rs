//! GridSample, RoiAlign and DeformConv beside naive ones.

use crate::support::*;
use neap_ir::op::Window;
use neap_ir::sampling::{GridMode, GridPadding, RoiAlign, Sampling};
use neap_ir::{Literal, Op};
use neap_ops::OpError;

/// An element of a padded line, found one step at a time.
fn place(mut i: i64, size: i64, padding: GridPadding, align: bool) -> Option<usize> {
    match padding {
        GridPadding::Zeros => {}
        GridPadding::Border => i = i.clamp(0, size - 1),
        GridPadding::Reflection if size == 1 => i = 0,
        GridPadding::Reflection => {
            while !(0..size).contains(&i) {
                let border = if align { 0 } else { 1 };
                i = if i < 0 {
                    -i - border
                } else {
                    2 * (size - 1) - i + border
                };
            }
        }
    }
    usize::try_from(i).ok().filter(|&i| i < size as usize)
}

/// The value at coordinates, axis by axis.
fn naive(
    x: &[f32],
    sizes: &[usize],
    at: &[f64],
    mode: GridMode,
    padding: GridPadding,
    align: bool,
) -> f64 {
    let Some((&size, rest)) = sizes.split_first() else {
        return f64::from(x[0]);
    };
    let inner: usize = rest.iter().product();
    let line = |i: i64| match place(i, size as i64, padding, align) {
        Some(i) => naive(
            &x[i * inner..(i + 1) * inner],
            rest,
            &at[1..],
            mode,
            padding,
            align,
        ),
        None => 0.0,
    };
    let low = at[0].floor();
    let t = at[0] - low;
    let low = low as i64;
    match mode {
        GridMode::Nearest => line(at[0].round_ties_even() as i64),
        GridMode::Linear => (1.0 - t) * line(low) + t * line(low + 1),
        GridMode::Cubic => {
            let weight = |d: f64| {
                let (d, a) = (d.abs(), -0.75);
                match d {
                    d if d <= 1.0 => (a + 2.0) * d.powi(3) - (a + 3.0) * d.powi(2) + 1.0,
                    d => a * (d.powi(3) - 5.0 * d.powi(2) + 8.0 * d - 4.0),
                }
            };
            let terms = (-1..3).map(|k| weight(t - k as f64) * line(low + k));
            terms.sum()
        }
    }
}

/// What reading beyond the borders means is the same for any mode: coordinates are brought inside first.
fn inside(x: f64, size: f64, padding: GridPadding, align: bool) -> f64 {
    let (low, high) = if align {
        (0.0, size - 1.0)
    } else {
        (-0.5, size - 0.5)
    };
    match padding {
        GridPadding::Zeros => x,
        _ if (low..=high).contains(&x) => x,
        GridPadding::Border => x.clamp(0.0, size - 1.0),
        GridPadding::Reflection if low == high => low,
        GridPadding::Reflection => {
            let mut x = x;
            while !(low..=high).contains(&x) {
                x = if x < low {
                    2.0 * low - x
                } else {
                    2.0 * high - x
                };
            }
            x
        }
    }
}

#[test]
fn grids_of_all_kinds() {
    let cases: [(usize, usize, &[usize], &[usize]); 6] = [
        (1, 1, &[5], &[7]),
        (2, 3, &[4, 5], &[3, 7]),
        (1, 2, &[1, 1], &[2, 2]),
        (1, 17, &[2, 9], &[1, 33]),
        (2, 1, &[3, 4, 2], &[2, 3, 4]),
        (1, 2, &[1, 6, 3], &[5, 1, 2]),
    ];
    for (n, c, spatial, out) in cases {
        let shape = [&[n, c], spatial].concat();
        let grid_shape = [&[n], out, &[spatial.len()]].concat();
        let x = noise(&shape, 1);
        let grid: Vec<f32> = (values(&noise(&grid_shape, 2)).iter())
            .map(|g| g * 2.5)
            .collect();
        let grid = f32s(&grid_shape, &grid);
        for mode in [GridMode::Nearest, GridMode::Linear, GridMode::Cubic] {
            if mode == GridMode::Cubic && spatial.len() != 2 {
                continue;
            }
            for padding in [
                GridPadding::Zeros,
                GridPadding::Border,
                GridPadding::Reflection,
            ] {
                for align_corners in [false, true] {
                    let op = Op::Sampling(Sampling::Grid {
                        mode,
                        padding,
                        align_corners,
                    });
                    let y = one(&op, &[&x, &grid]);
                    assert_eq!(y.shape(), [&[n, c], out].concat());
                    let plane: usize = spatial.iter().product();
                    let places: usize = out.iter().product();
                    let mut expected = Vec::new();
                    for unit in 0..n * c * places {
                        let (image, place) = (unit / (c * places), unit % places);
                        let rank = spatial.len();
                        let at: Vec<f64> = (0..rank)
                            .map(|axis| {
                                let index = ((image * places + place) + 1) * rank - 1 - axis;
                                let g = f64::from(values(&grid)[index]);
                                let size = spatial[axis] as f64;
                                let x = match align_corners {
                                    true => (g + 1.0) / 2.0 * (size - 1.0),
                                    false => ((g + 1.0) * size - 1.0) / 2.0,
                                };
                                let x = match mode {
                                    GridMode::Nearest => x.round_ties_even(),
                                    _ => x,
                                };
                                inside(x, size, padding, align_corners)
                            })
                            .collect();
                        let start = unit / places * plane;
                        let x = &values(&x)[start..start + plane];
                        let value = naive(x, spatial, &at, mode, padding, align_corners);
                        expected.push(value as f32);
                    }
                    assert_close(&y, &expected, 2e-4);
                }
            }
        }
    }
}

#[test]
fn places_that_are_no_numbers_stay_inside() {
    let x = noise(&[1, 1, 3, 3], 1);
    let wild = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30];
    let grid = f32s(&[1, 2, 1, 2], &wild);
    for padding in [
        GridPadding::Zeros,
        GridPadding::Border,
        GridPadding::Reflection,
    ] {
        for mode in [GridMode::Nearest, GridMode::Linear, GridMode::Cubic] {
            let op = Op::Sampling(Sampling::Grid {
                mode,
                padding,
                align_corners: false,
            });
            assert_eq!(one(&op, &[&x, &grid]).shape(), [1, 1, 2, 1]);
        }
    }
}

fn roi(largest: bool, samples: usize, half_pixel: bool) -> RoiAlign {
    RoiAlign {
        largest,
        output: [3, 2],
        samples,
        scale: 0.5,
        half_pixel,
    }
}

fn bilinear(x: &[f32], [h, w]: [usize; 2], y: f64, x_at: f64) -> [f64; 4] {
    if y < -1.0 || y > h as f64 || x_at < -1.0 || x_at > w as f64 {
        return [0.0; 4];
    }
    let (y, x_at) = (
        y.clamp(0.0, h as f64 - 1.0),
        x_at.clamp(0.0, w as f64 - 1.0),
    );
    let (y0, x0) = (y.floor() as usize, x_at.floor() as usize);
    let (ty, tx) = (y - y0 as f64, x_at - x0 as f64);
    let element = |i: usize, j: usize| f64::from(x[i.min(h - 1) * w + j.min(w - 1)]);
    [
        (1.0 - ty) * (1.0 - tx) * element(y0, x0),
        (1.0 - ty) * tx * element(y0, x0 + 1),
        ty * (1.0 - tx) * element(y0 + 1, x0),
        ty * tx * element(y0 + 1, x0 + 1),
    ]
}

#[test]
fn boxes_of_images() {
    let (h, w, channels) = (7, 5, 3);
    let x = noise(&[2, channels, h, w], 3);
    let boxes = [
        [0.0, 0.0, 9.0, 13.0],
        [2.0, 3.0, 4.5, 4.0],
        [-6.0, -2.0, 30.0, 11.0],
        [4.0, 4.0, 4.0, 4.0],
    ];
    let images = [1, 0, 1, 0];
    let flat: Vec<f32> = boxes.iter().flatten().copied().collect();
    for largest in [false, true] {
        for samples in [0, 1, 2, 3] {
            for half_pixel in [false, true] {
                let attrs = roi(largest, samples, half_pixel);
                let [rows, columns] = attrs.output;
                let op = Op::Sampling(Sampling::RoiAlign(attrs));
                let y = one(&op, &[&x, &f32s(&[4, 4], &flat), &i64s(&[4], &images)]);
                let mut expected = Vec::new();
                for (b, image) in boxes.iter().zip(images) {
                    let shift = if half_pixel { 0.5 } else { 0.0 };
                    let corner = |i: usize| f64::from(b[i]) * 0.5 - shift;
                    let least = if half_pixel { f64::MIN } else { 1.0 };
                    let width = (corner(2) - corner(0)).max(least) / columns as f64;
                    let height = (corner(3) - corner(1)).max(least) / rows as f64;
                    let count = |size: f64| match samples {
                        0 => size.ceil().max(0.0) as usize,
                        n => n,
                    };
                    let (down, across) = (count(height), count(width));
                    for c in 0..channels {
                        let start = (image as usize * channels + c) * h * w;
                        let plane = &values(&x)[start..start + h * w];
                        for cell in 0..rows * columns {
                            let (row, column) = (cell / columns, cell % columns);
                            let mut parts = Vec::new();
                            for i in 0..down * across {
                                let step = |at: usize, of: usize| (at as f64 + 0.5) / of as f64;
                                let y = corner(1) + (row as f64 + step(i / across, down)) * height;
                                let x =
                                    corner(0) + (column as f64 + step(i % across, across)) * width;
                                parts.extend(bilinear(plane, [h, w], y, x));
                            }
                            let value = match (largest, parts.is_empty()) {
                                (_, true) => 0.0,
                                (true, _) => parts.iter().copied().fold(f64::MIN, f64::max),
                                _ => parts.iter().sum::<f64>() / (down * across) as f64,
                            };
                            expected.push(value as f32);
                        }
                    }
                }
                assert_close(&y, &expected, 1e-4);
            }
        }
    }
}

#[test]
fn what_is_no_number_is_the_largest_of_a_box() {
    // Its one sample lies on an element. Nothing of an infinity is no number, either.
    for (at, wild) in [(5, f32::NAN), (6, f32::NEG_INFINITY)] {
        let mut x = [0.0; 16];
        x[at] = wild;
        let op = Op::Sampling(Sampling::RoiAlign(RoiAlign {
            scale: 1.0,
            output: [1, 1],
            ..roi(true, 1, false)
        }));
        let boxes = f32s(&[1, 4], &[0.0, 0.0, 2.0, 2.0]);
        let y = one(&op, &[&f32s(&[1, 1, 4, 4], &x), &boxes, &i64s(&[1], &[0])]);
        assert!(values(&y)[0].is_nan(), "{wild}");
    }
}

#[test]
fn boxes_that_are_none_are_refused() {
    let x = noise(&[2, 1, 4, 4], 3);
    let op = Op::Sampling(Sampling::RoiAlign(roi(false, 0, true)));
    for (corner, image) in [(4.0, 2), (4.0, -1), (f32::NAN, 0), (1e30, 0)] {
        let boxes = f32s(&[1, 4], &[0.0, 0.0, corner, 4.0]);
        let found = try_one(&op, &[&x, &boxes, &i64s(&[1], &[image])]);
        assert!(matches!(found, Err(OpError::BadData { .. })), "{found:?}");
    }
}

#[test]
fn the_largest_of_each_bin_of_a_box() {
    let (h, w, channels) = (9i64, 8i64, 3);
    let x = noise(&[2, channels, h as usize, w as usize], 4);
    let boxes: [[f32; 5]; 5] = [
        [0.0, 1.0, 1.0, 6.0, 7.0],
        [1.0, 0.0, 0.0, 3.0, 3.5],
        [0.0, -4.0, 2.0, 20.0, 30.0],
        [1.0, 7.0, 7.0, 2.0, 2.0],
        [0.0, 40.0, 40.0, 50.0, 50.0],
    ];
    let flat = boxes.concat();
    for (rows, columns) in [(1i64, 1i64), (2, 3), (7, 7)] {
        for scale in [1.0f32, 0.5] {
            let output = [rows as usize, columns as usize];
            let op = Op::Sampling(Sampling::MaxRoiPool { output, scale });
            let y = one(&op, &[&x, &f32s(&[5, 5], &flat)]);
            let mut expected = Vec::new();
            for b in &boxes {
                let corner = |i: usize| (b[i] * scale).round() as i64;
                // The first and the last element of a bin, with whole numbers.
                let bin = |at: i64, of: i64, start: i64, end: i64| {
                    let size = (end - start + 1).max(1);
                    let last = (at + 1) * size;
                    (start + at * size / of, start + (last + of - 1) / of)
                };
                for c in 0..channels {
                    let plane = (b[0] as usize * channels + c) * (h * w) as usize;
                    for cell in 0..rows * columns {
                        let (top, bottom) = bin(cell / columns, rows, corner(2), corner(4));
                        let (left, right) = bin(cell % columns, columns, corner(1), corner(3));
                        let inside = (top.max(0)..bottom.min(h)).flat_map(|i| {
                            (left.max(0)..right.min(w)).map(move |j| plane + (i * w + j) as usize)
                        });
                        let most = inside.map(|at| values(&x)[at]).reduce(f32::max);
                        expected.push(most.unwrap_or(0.0));
                    }
                }
            }
            assert_eq!(values(&y), expected, "{rows}x{columns} at {scale}");
        }
    }
    let op = Op::Sampling(Sampling::MaxRoiPool {
        output: [2, 2],
        scale: 1.0,
    });
    assert_eq!(one(&op, &[&x, &f32s(&[0, 5], &[])]).shape(), [0, 3, 2, 2]);
    for wrong in [[2.0, 0.0, 0.0, 1.0, 1.0], [0.0, f32::NAN, 0.0, 1.0, 1.0]] {
        let found = try_one(&op, &[&x, &f32s(&[1, 5], &wrong)]);
        assert!(matches!(found, Err(OpError::BadData { .. })), "{found:?}");
    }
}

struct Deformed {
    window: Window,
    groups: usize,
    offset_groups: usize,
    x: [usize; 4],
    w: [usize; 4],
}

fn deformed() -> Vec<Deformed> {
    let window = |k: [usize; 2], s: usize, d: usize, p: usize| Window {
        kernel: k.to_vec(),
        strides: vec![s; 2],
        dilations: vec![d; 2],
        pads_begin: vec![p; 2],
        pads_end: vec![p; 2],
    };
    vec![
        Deformed {
            window: window([2, 2], 1, 1, 0),
            groups: 1,
            offset_groups: 1,
            x: [1, 1, 3, 3],
            w: [1, 1, 2, 2],
        },
        Deformed {
            window: window([3, 3], 1, 1, 1),
            groups: 2,
            offset_groups: 2,
            x: [2, 4, 5, 9],
            w: [6, 2, 3, 3],
        },
        Deformed {
            window: window([3, 2], 2, 2, 2),
            groups: 1,
            offset_groups: 3,
            x: [1, 3, 8, 7],
            w: [5, 3, 3, 2],
        },
    ]
}

#[test]
fn without_offsets_it_is_a_convolution() {
    for case in deformed() {
        let conv = Op::Conv(case.window.clone(), case.groups);
        let (x, w) = (noise(&case.x, 1), noise(&case.w, 2));
        let bias = noise(&case.w[..1], 3);
        let expected = one(&conv, &[&x, &w, &bias]);
        let taps = case.offset_groups * case.w[2] * case.w[3];
        let out = &expected.shape()[2..];
        let offsets = [&[case.x[0], taps * 2], out].concat();
        let offsets = f32s(&offsets, &vec![0.0; offsets.iter().product()]);
        let op = Op::Sampling(Sampling::DeformConv {
            window: case.window,
            groups: case.groups,
            offset_groups: case.offset_groups,
        });
        let y = one(&op, &[&x, &w, &offsets, &bias]);
        assert_close(&y, values(&expected), 1e-4);
    }
}

#[test]
fn taps_are_read_where_their_offsets_say() {
    for case in deformed() {
        let Deformed {
            window,
            groups,
            offset_groups,
            ..
        } = case;
        let (x, w) = (noise(&case.x, 1), noise(&case.w, 2));
        let [n, channels, h, width] = case.x;
        let [filters, per_group, kh, kw] = case.w;
        let out: Vec<usize> = (0..2)
            .map(|i| {
                let reach = (window.kernel[i] - 1) * window.dilations[i] + 1;
                (case.x[i + 2] + 2 * window.pads_begin[i] - reach) / window.strides[i] + 1
            })
            .collect();
        let taps = kh * kw;
        let shape = [n, offset_groups * taps * 2, out[0], out[1]];
        let offsets: Vec<f32> = values(&noise(&shape, 4)).iter().map(|o| o * 3.0).collect();
        let mask = noise(&[n, offset_groups * taps, out[0], out[1]], 5);
        let mut expected = Vec::new();
        for unit in 0..n * filters * out[0] * out[1] {
            let (column, row) = (unit % out[1], unit / out[1] % out[0]);
            let (filter, image) = (
                unit / (out[0] * out[1]) % filters,
                unit / (out[0] * out[1] * filters),
            );
            let mut sum = 0.0;
            for c in 0..per_group {
                let channel = filter / (filters / groups) * per_group + c;
                let group = channel / (channels / offset_groups);
                for tap in 0..taps {
                    let at = |rows: usize, index: usize| {
                        ((image * rows + index) * out[0] + row) * out[1] + column
                    };
                    let entry = group * taps + tap;
                    let moved = |part: usize| {
                        f64::from(offsets[at(offset_groups * taps * 2, entry * 2 + part)])
                    };
                    let y = (row * window.strides[0] + tap / kw * window.dilations[0]) as f64
                        - window.pads_begin[0] as f64
                        + moved(0);
                    let x_at = (column * window.strides[1] + tap % kw * window.dilations[1]) as f64
                        - window.pads_begin[1] as f64
                        + moved(1);
                    let start = (image * channels + channel) * h * width;
                    let plane = &values(&x)[start..start + h * width];
                    let align = true;
                    let zeros = GridPadding::Zeros;
                    let linear = GridMode::Linear;
                    let value = naive(plane, &[h, width], &[y, x_at], linear, zeros, align);
                    let weight = values(&w)[(filter * per_group + c) * taps + tap];
                    let scale = values(&mask)[at(offset_groups * taps, entry)];
                    sum += value * f64::from(weight) * f64::from(scale);
                }
            }
            expected.push(sum as f32);
        }
        let op = Op::Sampling(Sampling::DeformConv {
            window,
            groups,
            offset_groups,
        });
        let offsets = f32s(&shape, &offsets);
        let inputs = [Some(&x), Some(&w), Some(&offsets), None, Some(&mask)];
        let y = neap_ops::evaluate(&op, &inputs).expect("computes");
        assert_close(&y[0], &expected, 1e-4);
    }
}

#[test]
fn integers_are_refused() {
    let (x, grid) = (i64s(&[1, 1, 1, 1], &[1]), f32s(&[1, 1, 1, 2], &[0.0, 0.0]));
    let op = Op::Sampling(Sampling::Grid {
        mode: GridMode::Linear,
        padding: GridPadding::Zeros,
        align_corners: false,
    });
    let refusal = try_one(&op, &[&x, &grid]).expect_err("no floats");
    assert!(refusal.to_string().contains("floating-point"), "{refusal}");
    let deep = Literal::from_f32(&[1, 1, 1, 1, 1, 1], &[0.0]);
    let grid = f32s(&[1, 1, 1, 1, 1, 4], &[0.0; 4]);
    let refusal = try_one(&op, &[&deep, &grid]).expect_err("too many axes");
    assert!(refusal.to_string().contains("rank 6"), "{refusal}");
}
