//! Softmax and normalisations against their formulas in f64.

use neap_kernels::epilogue::Activation;
use neap_kernels::planes::Planes;
use neap_kernels::rows::{
    FACTORS, Input, Lrn, Norm, Softmax, add_moments, group_norm, layer_norm, lp_norm, lrn_blocked,
    lrn_plain, normalise, rms_norm, softmax, softmax_axis,
};
use neap_kernels::simd::LANES;

use crate::support::{
    Random, Threads, assert_close, assert_same_bits, from_blocked, isas, to_blocked,
};

const ROWS: [(usize, usize); 9] = [
    (1, 1),
    (3, 7),
    (5, 16),
    (197, 197),
    (12, 128),
    (2, 1000),
    (1, 50_257),
    (700, 33),
    (4, 64),
];

fn softmax_reference(x: &[f32], log: bool) -> Vec<f64> {
    let top = x
        .iter()
        .fold(f64::NEG_INFINITY, |a, &b| a.max(f64::from(b)));
    let sum: f64 = x.iter().map(|&x| (f64::from(x) - top).exp()).sum();
    let value = |&x: &f32| {
        let d = f64::from(x) - top;
        if log { d - sum.ln() } else { d.exp() / sum }
    };
    x.iter().map(value).collect()
}

#[test]
fn softmax_of_rows() {
    let mut random = Random::new(41);
    for (rows, cols) in ROWS {
        let mut x = random.vec(rows * cols, -10.0, 10.0);
        if cols > 3 {
            x[2] = f32::NEG_INFINITY;
            x[cols - 1] = 80.0;
        }
        for (kind, log) in [(Softmax::Plain, false), (Softmax::Log, true)] {
            let want: Vec<f64> = x
                .chunks(cols)
                .flat_map(|row| softmax_reference(row, log))
                .collect();
            for isa in isas() {
                let what = format!("{isa:?} {kind:?} {rows} {cols}");
                let mut got = vec![f32::NAN; x.len()];
                softmax(
                    isa,
                    &Threads(2),
                    kind,
                    rows,
                    cols,
                    Input::From(&x),
                    &mut got,
                )
                .unwrap();
                assert_close(&got, &want, 3e-6, if log { 1.0 } else { 1e-3 }, &what);
                let mut in_place = x.clone();
                softmax(
                    isa,
                    &Threads(3),
                    kind,
                    rows,
                    cols,
                    Input::InPlace,
                    &mut in_place,
                )
                .unwrap();
                assert_same_bits(&got, &in_place, &what);
            }
        }
    }
}

#[test]
fn softmax_of_extreme_rows() {
    for isa in isas() {
        let mut huge = [1e30, -1e30, 1e30, 0.0];
        softmax(
            isa,
            &Threads(1),
            Softmax::Plain,
            1,
            4,
            Input::InPlace,
            &mut huge,
        )
        .unwrap();
        assert_eq!(huge, [0.5, 0.0, 0.5, 0.0]);
        let mut nothing = [f32::NEG_INFINITY; 3];
        softmax(
            isa,
            &Threads(1),
            Softmax::Plain,
            1,
            3,
            Input::InPlace,
            &mut nothing,
        )
        .unwrap();
        assert!(nothing.iter().all(|x| x.is_nan()), "{nothing:?}");
    }
}

#[test]
fn softmax_of_middle_axes() {
    let mut random = Random::new(42);
    for [outer, axis, inner] in [
        [1, 3, 5],
        [2, 10, 49],
        [3, 1, 16],
        [2, 21, 100],
        [4, 9, 1],
        [1, 2, 3000],
    ] {
        let x = random.vec(outer * axis * inner, -9.0, 9.0);
        for (kind, log) in [(Softmax::Plain, false), (Softmax::Log, true)] {
            let mut want = vec![0.0; x.len()];
            for o in 0..outer {
                for i in 0..inner {
                    let at = |k: usize| (o * axis + k) * inner + i;
                    let row: Vec<f32> = (0..axis).map(|k| x[at(k)]).collect();
                    for (k, value) in softmax_reference(&row, log).into_iter().enumerate() {
                        want[at(k)] = value;
                    }
                }
            }
            for isa in isas() {
                let what = format!("{isa:?} {kind:?} {outer} {axis} {inner}");
                let shape = [outer, axis, inner];
                let mut got = vec![f32::NAN; x.len()];
                softmax_axis(isa, &Threads(2), kind, shape, Input::From(&x), &mut got).unwrap();
                assert_close(&got, &want, 3e-6, if log { 1.0 } else { 1e-3 }, &what);
                let mut in_place = x.clone();
                softmax_axis(isa, &Threads(3), kind, shape, Input::InPlace, &mut in_place).unwrap();
                assert_same_bits(&got, &in_place, &what);
            }
        }
    }
}

/// Normalises one row; `centered` subtracts the mean.
fn normalised(x: &[f32], centered: bool, epsilon: f64) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = if centered {
        x.iter().map(|&x| f64::from(x)).sum::<f64>() / n
    } else {
        0.0
    };
    let variance = x
        .iter()
        .map(|&x| (f64::from(x) - mean).powi(2))
        .sum::<f64>()
        / n;
    x.iter()
        .map(|&x| (f64::from(x) - mean) / (variance + epsilon).sqrt())
        .collect()
}

#[test]
fn layer_and_rms() {
    let mut random = Random::new(43);
    for (rows, cols) in [
        (1, 1),
        (5, 7),
        (197, 768),
        (128, 768),
        (3, 16),
        (2, 5000),
        (40, 100),
    ] {
        let x = random.vec(rows * cols, 3.0, 7.0);
        let (scale, bias) = (random.vec(cols, 0.5, 2.0), random.vec(cols, -1.0, 1.0));
        for (with_scale, with_bias) in [(true, true), (true, false), (false, true), (false, false)]
        {
            let (scale, bias) = (
                with_scale.then_some(&scale[..]),
                with_bias.then_some(&bias[..]),
            );
            let want = |centered: bool| -> Vec<f64> {
                let rows = x
                    .chunks(cols)
                    .flat_map(|row| normalised(row, centered, 1e-5));
                let values = rows.enumerate().map(|(i, v)| {
                    let bias = if centered {
                        bias.map_or(0.0, |b| f64::from(b[i % cols]))
                    } else {
                        0.0
                    };
                    v * scale.map_or(1.0, |s| f64::from(s[i % cols])) + bias
                });
                values.collect()
            };
            for isa in isas() {
                let what = format!("{isa:?} {rows} {cols} {with_scale} {with_bias}");
                let mut got = vec![f32::NAN; x.len()];
                let from = Input::From(&x);
                layer_norm(
                    isa,
                    &Threads(2),
                    rows,
                    cols,
                    1e-5,
                    scale,
                    bias,
                    from,
                    &mut got,
                )
                .unwrap();
                assert_close(&got, &want(true), 1e-5, 1.0, &what);
                let mut other = x.clone();
                layer_norm(
                    isa,
                    &Threads(3),
                    rows,
                    cols,
                    1e-5,
                    scale,
                    bias,
                    Input::InPlace,
                    &mut other,
                )
                .unwrap();
                assert_same_bits(&got, &other, &what);
                rms_norm(isa, &Threads(2), rows, cols, 1e-5, scale, from, &mut got).unwrap();
                assert_close(&got, &want(false), 3e-6, 1.0, &what);
            }
        }
    }
}

#[test]
fn groups_and_instances() {
    let mut random = Random::new(44);
    let shapes = [
        ([1, 8, 49], 2),
        ([2, 6, 100], 3),
        ([1, 32, 1024], 32),
        ([3, 40, 25], 40),
        ([1, 4, 1], 1),
    ];
    for (shape @ [batch, channels, positions], groups) in shapes {
        let x = random.vec(batch * channels * positions, -1.0, 5.0);
        let (scale, bias) = (
            random.vec(channels, 0.5, 2.0),
            random.vec(channels, -1.0, 1.0),
        );
        let want: Vec<f64> = x
            .chunks(channels / groups * positions)
            .flat_map(|group| normalised(group, true, 1e-3))
            .enumerate()
            .map(|(i, v)| {
                let c = i / positions % channels;
                v * f64::from(scale[c]) + f64::from(bias[c])
            })
            .collect();
        for isa in isas() {
            let what = format!("{isa:?} {shape:?} {groups}");
            let mut got = vec![f32::NAN; x.len()];
            let factors = (Some(&scale[..]), Some(&bias[..]));
            let from = Input::From(&x);
            group_norm(
                isa,
                &Threads(2),
                shape,
                groups,
                1e-3,
                factors.0,
                factors.1,
                from,
                &mut got,
            )
            .unwrap();
            assert_close(&got, &want, 1e-5, 1.0, &what);
            let mut other = x.clone();
            group_norm(
                isa,
                &Threads(1),
                shape,
                groups,
                1e-3,
                factors.0,
                factors.1,
                Input::InPlace,
                &mut other,
            )
            .unwrap();
            assert_same_bits(&got, &other, &what);
            // Blocked: the same moments whether the places come at once or in two parts.
            let blocks = channels.div_ceil(LANES);
            let mut out = to_blocked(&x, batch, channels, positions, 2.0);
            let mut lanes = vec![0.0; batch * blocks * FACTORS * LANES];
            for (plane, lanes) in out
                .chunks_exact(positions * LANES)
                .zip(lanes.chunks_exact_mut(FACTORS * LANES))
            {
                let (mut whole, mut parts) = ([0.0; 32], [0.0; 32]);
                add_moments(isa, plane, &mut whole);
                let (first, second) = plane.split_at(positions / 3 * LANES);
                add_moments(isa, first, &mut parts);
                add_moments(isa, second, &mut parts);
                assert_eq!(whole.map(f64::to_bits), parts.map(f64::to_bits), "{what}");
                for lane in 0..LANES {
                    let column = plane
                        .iter()
                        .skip(lane)
                        .step_by(LANES)
                        .map(|&v| f64::from(v));
                    let sums = column.fold([0.0; 2], |[s, q], v| [s + v, q + v * v]);
                    assert_eq!([whole[lane], whole[LANES + lane]], sums, "{what}");
                    lanes[lane] = 0.25;
                    lanes[LANES + lane] = 1.5;
                    lanes[2 * LANES + lane] = -0.5;
                }
            }
            let source = out.clone();
            let shape = [batch, blocks, positions];
            let silu = Activation::Silu;
            let plane = positions * LANES;
            let planes = Planes {
                input: plane,
                output: plane,
            };
            normalise(
                isa,
                &Threads(2),
                shape,
                planes,
                &lanes,
                Input::InPlace,
                &mut out,
                silu,
            )
            .unwrap();
            // Some positions of each plane, into larger planes.
            let (first, some) = (positions / 3, positions - positions / 3);
            let planes = Planes {
                input: plane,
                output: plane + LANES,
            };
            let mut wide = vec![7.0; batch * blocks * planes.output];
            normalise(
                isa,
                &Threads(3),
                [batch, blocks, some],
                planes,
                &lanes,
                Input::From(&source[first * LANES..]),
                &mut wide,
                silu,
            )
            .unwrap();
            let whole = out.chunks_exact(plane);
            for (wide, whole) in wide.chunks_exact(planes.output).zip(whole) {
                let (made, rest) = wide.split_at(some * LANES);
                assert_same_bits(made, &whole[first * LANES..], &what);
                assert!(rest.iter().all(|&v| v == 7.0), "{what}");
            }
            let silu = |v: f64| v / (1.0 + (-v).exp());
            let want = source
                .iter()
                .map(|&v| silu((f64::from(v) - 0.25) * 1.5 - 0.5));
            assert_close(&out, &want.collect::<Vec<_>>(), 1e-5, 1.0, &what);
        }
    }
}

#[test]
fn unit_length() {
    let mut random = Random::new(45);
    for shape @ [outer, axis, inner] in [[1, 5, 1], [2, 512, 49], [3, 7, 20], [10, 128, 1]] {
        let mut x = random.vec(outer * axis * inner, -2.0, 2.0);
        for k in 0..axis {
            x[k * inner] = 0.0; // a zero row
        }
        for norm in [Norm::L1, Norm::L2] {
            let mut want = vec![0.0; x.len()];
            for o in 0..outer {
                for i in 0..inner {
                    let at = |k: usize| (o * axis + k) * inner + i;
                    let length: f64 = match norm {
                        Norm::L1 => (0..axis).map(|k| f64::from(x[at(k)]).abs()).sum(),
                        Norm::L2 => (0..axis)
                            .map(|k| f64::from(x[at(k)]).powi(2))
                            .sum::<f64>()
                            .sqrt(),
                    };
                    for k in 0..axis {
                        want[at(k)] = if length == 0.0 {
                            0.0
                        } else {
                            f64::from(x[at(k)]) / length
                        };
                    }
                }
            }
            for isa in isas() {
                let mut got = vec![f32::NAN; x.len()];
                lp_norm(isa, &Threads(2), norm, shape, Input::From(&x), &mut got).unwrap();
                assert_close(
                    &got,
                    &want,
                    3e-6,
                    1e-3,
                    &format!("{isa:?} {norm:?} {shape:?}"),
                );
            }
        }
    }
}

#[test]
fn local_response() {
    let mut random = Random::new(46);
    for shape @ [batch, channels, positions] in
        [[1, 5, 9], [2, 40, 49], [1, 64, 20], [1, 1, 1], [1, 17, 3]]
    {
        for (size, beta) in [(5, 0.75), (3, 0.75), (4, 1.0), (1, 0.5), (13, 0.6)] {
            let lrn = Lrn {
                size,
                alpha: 0.1,
                beta,
                bias: 1.5,
            };
            let x = random.vec(batch * channels * positions, -4.0, 4.0);
            let mut want = Vec::new();
            for row in 0..batch * channels {
                for p in 0..positions {
                    let c = row % channels;
                    let first = c.saturating_sub((size - 1) / 2);
                    let last = (c + size - 1 - (size - 1) / 2).min(channels - 1);
                    let value =
                        |c: usize| f64::from(x[(row / channels * channels + c) * positions + p]);
                    let sum: f64 = (first..=last).map(|c| value(c).powi(2)).sum();
                    let base = 1.5 + f64::from(0.1f32) / size as f64 * sum;
                    want.push(value(c) / base.powf(f64::from(beta)));
                }
            }
            for isa in isas() {
                let what = format!("{isa:?} {shape:?} {lrn:?}");
                let mut got = vec![f32::NAN; x.len()];
                lrn_plain(isa, &Threads(2), &lrn, shape, &x, &mut got).unwrap();
                assert_close(&got, &want, 3e-6, 0.1, &what);
                let blocked = to_blocked(&x, batch, channels, positions, 1e6);
                let mut out = vec![f32::NAN; blocked.len()];
                lrn_blocked(isa, &Threads(2), &lrn, shape, &blocked, &mut out).unwrap();
                assert_close(
                    &from_blocked(&out, batch, channels, positions),
                    &want,
                    3e-6,
                    0.1,
                    &what,
                );
            }
        }
    }
}

#[test]
fn extremes_are_those_of_a_loop() {
    for n in [1, 15, 16, 17, 63, 64, 100, 4096, 9001] {
        let mut x = Random::new(n as u64).vec(n, -3.0, 5.0);
        let low = x.iter().copied().fold(f32::INFINITY, f32::min);
        let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for isa in isas() {
            assert_eq!(neap_kernels::rows::extremes(isa, &x), Some([low, high]));
        }
        for odd in [f32::NAN, f32::INFINITY] {
            x[n - 1] = odd;
            for isa in isas() {
                assert_eq!(neap_kernels::rows::extremes(isa, &x), None);
            }
        }
    }
    assert_eq!(neap_kernels::rows::extremes(isas()[0], &[]), None);
}
