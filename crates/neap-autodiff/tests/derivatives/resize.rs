//! Resize: the transposed interpolation.

use crate::difference::{check, noise};
use neap_ir::Op;
use neap_ir::op::{CoordinateTransform, NearestMode, ResizeAttrs, ResizeMode};

const COORDINATES: [CoordinateTransform; 7] = [
    CoordinateTransform::HalfPixel,
    CoordinateTransform::HalfPixelSymmetric,
    CoordinateTransform::PytorchHalfPixel,
    CoordinateTransform::AlignCorners,
    CoordinateTransform::Asymmetric,
    CoordinateTransform::TfHalfPixelForNn,
    CoordinateTransform::TfCropAndResize,
];

fn attrs(input: &[usize], output: &[usize]) -> ResizeAttrs {
    let pairs = input.iter().zip(output);
    ResizeAttrs {
        output_shape: output.to_vec(),
        scales: pairs.map(|(&i, &o)| o as f32 / i as f32).collect(),
        mode: ResizeMode::Linear,
        coordinates: CoordinateTransform::HalfPixel,
        nearest: NearestMode::RoundPreferFloor,
        cubic_a: -0.75,
        exclude_outside: false,
        extrapolation: 0.5,
        antialias: false,
        // Partly outside.
        roi: input.iter().map(|_| (0.1, 1.3)).collect(),
    }
}

#[test]
fn every_mode_and_coordinate_transformation() {
    // Larger, smaller, one of each, and lines side by side that a run of lanes does not divide.
    let table = [
        (&[1, 2, 3, 4][..], &[1, 2, 6, 9][..]),
        (&[2, 1, 5, 7], &[2, 1, 3, 4]),
        (&[1, 2, 5, 3], &[1, 2, 2, 7]),
        (&[2, 5], &[3, 5]),
        (&[3, 19], &[5, 19]),
    ];
    for (input, output) in table {
        for coordinates in COORDINATES {
            for mode in [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic] {
                let attrs = ResizeAttrs {
                    mode,
                    coordinates,
                    ..attrs(input, output)
                };
                check(Op::Resize(attrs), &[noise(input)]);
            }
        }
    }
}

#[test]
fn other_filters_and_roundings() {
    let (input, output) = (&[1, 2, 8, 5], &[1, 2, 3, 9]);
    for mode in [ResizeMode::Linear, ResizeMode::Cubic] {
        for (antialias, exclude_outside) in [(true, false), (false, true), (true, true)] {
            let attrs = ResizeAttrs {
                mode,
                antialias,
                exclude_outside,
                cubic_a: -0.5,
                ..attrs(input, output)
            };
            check(Op::Resize(attrs), &[noise(input)]);
        }
    }
    for nearest in [
        NearestMode::RoundPreferCeil,
        NearestMode::Floor,
        NearestMode::Ceil,
    ] {
        let attrs = ResizeAttrs {
            mode: ResizeMode::Nearest,
            nearest,
            ..attrs(input, output)
        };
        check(Op::Resize(attrs), &[noise(input)]);
    }
    // Every axis stays.
    check(Op::Resize(attrs(input, input)), &[noise(input)]);
}
