//! Normalisation by a batch's statistics and gates, forward and backward, against their definitions in f64.

use neap_kernels::elementwise::{Gate, gate};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::plain::{Channels, Derivatives, Statistics, batch_norm, batch_norm_backward};
use neap_kernels::simd::Isa;

use crate::support::{Threads, assert_close, assert_same_bits, isas, numbers};

const EPSILON: f32 = 1e-3;

const SIZES: [[usize; 3]; 8] = [
    [1, 1, 1],
    [3, 5, 7],
    [2, 17, 49],
    [4, 3, 64],
    [2, 2, 1024],
    [1, 3, 3000],
    [16, 2, 100],
    [5, 4, 17],
];

struct Case {
    of: Channels,
    x: Vec<f32>,
    dy: Vec<f32>,
    scale: Vec<f32>,
    bias: Vec<f32>,
}

impl Case {
    /// Numbers whose mean is far from 0.
    fn of([images, channels, positions]: [usize; 3]) -> Case {
        let len = images * channels * positions;
        Case {
            of: Channels {
                images,
                channels,
                positions,
            },
            x: numbers(len, 1).iter().map(|v| 3.0 * v + 10.0).collect(),
            dy: numbers(len, 2),
            scale: numbers(channels, 3),
            bias: numbers(channels, 4),
        }
    }

    fn indices(&self, channel: usize) -> impl Iterator<Item = usize> + use<> {
        let of = self.of;
        (0..of.images).flat_map(move |image| {
            let first = (image * of.channels + channel) * of.positions;
            first..first + of.positions
        })
    }

    /// `y`, means, variances; `dx`, `dscale`, `dbias` by the rounded statistics, as the backward pass has them.
    fn wanted(&self) -> [Vec<f64>; 6] {
        let n = (self.of.images * self.of.positions) as f64;
        let (mut y, mut dx) = (vec![0.0; self.x.len()], vec![0.0; self.x.len()]);
        let mut of_channels: [Vec<f64>; 4] = Default::default();
        for channel in 0..self.of.channels {
            let x = |i: usize| f64::from(self.x[i]);
            let dy = |i: usize| f64::from(self.dy[i]);
            let scale = f64::from(self.scale[channel]);
            let all = || self.indices(channel);
            let mean = all().map(x).sum::<f64>() / n;
            let variance = all().map(|i| (x(i) - mean).powi(2)).sum::<f64>() / n;
            let deviation = (variance + f64::from(EPSILON)).sqrt();
            all().for_each(|i| {
                y[i] = (x(i) - mean) / deviation * scale + f64::from(self.bias[channel]);
            });
            let (kept, spread) = (f64::from(mean as f32), f64::from(variance as f32));
            let deviation = (spread + f64::from(EPSILON)).sqrt();
            let normal = |i: usize| (x(i) - kept) / deviation;
            let sum: f64 = all().map(dy).sum();
            let along: f64 = all().map(|i| dy(i) * normal(i)).sum();
            all().for_each(|i| {
                dx[i] = scale / deviation * (dy(i) - sum / n - normal(i) * along / n);
            });
            for (values, value) in of_channels.iter_mut().zip([mean, variance, along, sum]) {
                values.push(value);
            }
        }
        let [means, variances, along, sums] = of_channels;
        [y, means, variances, dx, along, sums]
    }

    fn computed(&self, isa: Isa, parallel: &dyn Parallel, in_place: bool) -> [Vec<f32>; 6] {
        let channels = self.of.channels;
        let empty = |len: usize| vec![f32::NAN; len];
        let (mut mean, mut variance) = (empty(channels), empty(channels));
        let mut y = if in_place {
            self.x.clone()
        } else {
            empty(self.x.len())
        };
        let x = (!in_place).then_some(&self.x[..]);
        let statistics = Statistics {
            mean: Some(&mut mean),
            variance: Some(&mut variance),
        };
        let parameters = [&self.scale[..], &self.bias[..]];
        batch_norm(
            isa, parallel, &self.of, EPSILON, x, parameters, &mut y, statistics,
        )
        .unwrap();
        let (mut dscale, mut dbias) = (empty(channels), empty(channels));
        let mut dx = if in_place {
            self.dy.clone()
        } else {
            empty(self.x.len())
        };
        let operands = [Some(&self.x[..]), (!in_place).then_some(&self.dy[..])];
        let parameters = [&self.scale[..], &mean[..], &variance[..]];
        let derivatives = Derivatives {
            dx: Some(&mut dx),
            dscale: Some(&mut dscale),
            dbias: Some(&mut dbias),
        };
        batch_norm_backward(
            isa,
            parallel,
            &self.of,
            EPSILON,
            operands,
            parameters,
            derivatives,
        )
        .unwrap();
        [y, mean, variance, dx, dscale, dbias]
    }
}

#[test]
fn normalisation_agrees_with_its_definition() {
    for sizes in SIZES {
        let case = Case::of(sizes);
        let wanted = case.wanted();
        // Of one element there is no spread: what is left of differences is divided by little.
        let n = (case.of.images * case.of.positions) as f64;
        for isa in isas() {
            let got = case.computed(isa, &Serial, false);
            for (i, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                let floor = if i >= 4 { n.sqrt().max(4.0) } else { 4.0 };
                assert_close(
                    got,
                    wanted,
                    2e-6,
                    floor,
                    &format!("{sizes:?} {} {i}", isa.name()),
                );
            }
            for (parallel, in_place) in [(1, true), (3, false), (3, true)] {
                let again = case.computed(isa, &Threads(parallel), in_place);
                for (got, again) in got.iter().zip(&again) {
                    assert_same_bits(again, got, &format!("{sizes:?} {}", isa.name()));
                }
            }
        }
    }
}

#[test]
fn nothing_to_normalise_is_refused() {
    let of = Channels {
        images: 0,
        channels: 2,
        positions: 3,
    };
    let none = Statistics {
        mean: None,
        variance: None,
    };
    let two = [1.0; 2];
    let refused = batch_norm(
        Isa::detect(),
        &Serial,
        &of,
        1e-5,
        None,
        [&two, &two],
        &mut [],
        none,
    );
    assert!(refused.is_err());
}

#[test]
fn gates_let_through_what_is_inside() {
    let inside = |of: Gate, y: f32| match of {
        Gate::Relu => y > 0.0,
        Gate::Clip { low, high } => low < y && y < high,
    };
    for len in [0, 1, 15, 16, 33, 40_000] {
        let dy = numbers(len, 1);
        let mut y: Vec<f32> = numbers(len, 2)
            .iter()
            .map(|v| (v * 4.0).round() / 2.0)
            .collect();
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0, 0.0, -0.0];
        y.iter_mut().zip(odd).for_each(|(y, odd)| *y = odd);
        for of in [
            Gate::Relu,
            Gate::Clip {
                low: -0.5,
                high: 1.0,
            },
        ] {
            let of_infinity = |y: f32| of == Gate::Relu && y == f32::NEG_INFINITY;
            for isa in isas() {
                let mut results = Vec::new();
                for (operands, mut dx) in [
                    ([Some(&y[..]), Some(&dy[..])], vec![f32::NAN; len]),
                    ([Some(&y[..]), None], dy.clone()),
                    ([None, Some(&dy[..])], y.clone()),
                ] {
                    gate(isa, &Threads(3), of, operands, &mut dx).unwrap();
                    results.push(dx);
                }
                for (i, got) in results[0].iter().enumerate() {
                    if y[i].is_nan() || of_infinity(y[i]) {
                        assert!(got.is_nan(), "{of:?} {} {}", isa.name(), y[i]);
                        continue;
                    }
                    let wanted = if inside(of, y[i]) { dy[i] } else { 0.0 };
                    assert_eq!(*got, wanted, "{of:?} {} {}", isa.name(), y[i]);
                }
                assert_same_bits(&results[1], &results[0], isa.name());
                assert_same_bits(&results[2], &results[0], isa.name());
            }
        }
    }
}
