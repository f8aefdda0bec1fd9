//! Resize: coordinates, modes and corner cases worked out by hand.

use crate::support::*;
use neap_ir::op::{CoordinateTransform, NearestMode, ResizeAttrs, ResizeMode, Unary};
use neap_ir::{DType, Literal, Op};

fn attrs(
    input: &[usize],
    output: &[usize],
    mode: ResizeMode,
    coordinates: CoordinateTransform,
) -> ResizeAttrs {
    ResizeAttrs {
        output_shape: output.to_vec(),
        scales: input
            .iter()
            .zip(output)
            .map(|(&i, &o)| o as f32 / i as f32)
            .collect(),
        mode,
        coordinates,
        nearest: NearestMode::RoundPreferFloor,
        cubic_a: -0.75,
        exclude_outside: false,
        extrapolation: 0.0,
        antialias: false,
        roi: Vec::new(),
    }
}

fn line(input: &[f32], output: usize, edit: impl Fn(&mut ResizeAttrs)) -> Vec<f32> {
    let mut attrs = attrs(
        &[input.len()],
        &[output],
        ResizeMode::Linear,
        CoordinateTransform::HalfPixel,
    );
    edit(&mut attrs);
    values(&one(&Op::Resize(attrs), &[&f32s(&[input.len()], input)])).to_vec()
}

#[test]
fn coordinates() {
    let x = [0.0, 1.0, 2.0, 3.0];
    assert_eq!(line(&x, 2, |_| ()), [0.5, 2.5]);
    assert_eq!(
        line(&x, 2, |a| a.coordinates = CoordinateTransform::Asymmetric),
        [0.0, 2.0]
    );
    assert_eq!(
        line(&x, 2, |a| a.coordinates = CoordinateTransform::AlignCorners),
        [0.0, 3.0]
    );
    assert_eq!(
        line(&x, 7, |a| a.coordinates = CoordinateTransform::AlignCorners),
        [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    );
    assert_eq!(
        line(&x, 1, |a| a.coordinates =
            CoordinateTransform::PytorchHalfPixel),
        [0.0]
    );
    assert_eq!(
        line(&x, 8, |_| ()),
        [0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0]
    );
    let crop = line(&x, 3, |a| {
        a.coordinates = CoordinateTransform::TfCropAndResize;
        a.roi = vec![(0.5, 1.5)];
        a.extrapolation = 9.0;
    });
    // The width that counts is scale times input: 3 outputs, 1.5 apart.
    assert_eq!(crop, [1.5, 3.0, 9.0]);
}

#[test]
fn nearest_rounds_as_asked() {
    let x = [0.0, 1.0, 2.0, 3.0];
    let run = |nearest| {
        line(&x, 8, |a| {
            a.mode = ResizeMode::Nearest;
            a.coordinates = CoordinateTransform::Asymmetric;
            a.nearest = nearest;
        })
    };
    assert_eq!(
        run(NearestMode::Floor),
        [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    );
    assert_eq!(
        run(NearestMode::Ceil),
        [0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    );
    assert_eq!(
        run(NearestMode::RoundPreferFloor),
        [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    );
    assert_eq!(
        run(NearestMode::RoundPreferCeil),
        [0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    );
}

#[test]
fn exact_ratios_do_not_slip() {
    // 7/3 as f32 is a little less than 7/3: floor must still find the right element.
    let x: Vec<f32> = (0..3).map(|i| i as f32).collect();
    let y = line(&x, 7, |a| {
        a.mode = ResizeMode::Nearest;
        a.coordinates = CoordinateTransform::Asymmetric;
        a.nearest = NearestMode::Floor;
    });
    let expected: Vec<f32> = (0..7).map(|i| (i * 3 / 7) as f32).collect();
    assert_eq!(y, expected);
}

#[test]
fn a_place_beside_a_tie_goes_where_f32_puts_it() {
    // Where they were found beside onnxruntime: the place of the last output that is told is whole or half, but for a hair.
    let found = [
        (20, 12, CoordinateTransform::HalfPixel, NearestMode::Floor),
        (
            26,
            1,
            CoordinateTransform::TfHalfPixelForNn,
            NearestMode::Floor,
        ),
    ];
    let expected: [&[f32]; 2] = [&[0.0, 2.0, 3.0, 5.0, 6.0, 8.0], &[12.0]];
    for ((input, output, coordinates, nearest), expected) in found.into_iter().zip(expected) {
        let x: Vec<f32> = (0..input).map(|i| i as f32).collect();
        let y = line(&x, output, |a| {
            a.mode = ResizeMode::Nearest;
            a.coordinates = coordinates;
            a.nearest = nearest;
        });
        assert_eq!(&y[..expected.len()], expected, "{input} to {output}");
    }
}

#[test]
fn one_output_of_pytorch_is_the_first_input() {
    let x = [3.0, 1.0, 4.0, 1.0, 5.0];
    let run = |mode, antialias| {
        line(&x, 1, |a| {
            a.mode = mode;
            a.coordinates = CoordinateTransform::PytorchHalfPixel;
            a.antialias = antialias;
        })
    };
    for mode in [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic] {
        assert_eq!(run(mode, false), [3.0], "{mode:?}");
    }
    // The filter reaches 5 inputs to each side, and what it meets before the first is the first: (1 + 2) * 3 + 0.8 * 1 + ...
    let smooth = run(ResizeMode::Linear, true);
    assert!((smooth[0] - 13.6 / 5.0).abs() < 1e-5, "{smooth:?}");
}

#[test]
fn cubic_reproduces_lines_and_averages_when_antialiased() {
    let x: Vec<f32> = (0..10).map(|i| i as f32).collect();
    let y = line(&x, 20, |a| {
        a.mode = ResizeMode::Cubic;
        a.cubic_a = -0.5;
    });
    // Inside, a = -0.5 reproduces straight lines.
    for (i, v) in y.iter().enumerate().take(16).skip(4) {
        assert!((v - (i as f32 + 0.5) / 2.0 + 0.5).abs() < 1e-5, "{i}: {v}");
    }
    let alternating: Vec<f32> = (0..16).map(|i| (i % 2) as f32).collect();
    let y = line(&alternating, 4, |a| a.antialias = true);
    assert!(y.iter().all(|v| (v - 0.5).abs() < 0.1), "{y:?}");
    let y = line(&[1.0; 5], 9, |a| {
        a.mode = ResizeMode::Cubic;
        a.exclude_outside = true;
    });
    assert!(y.iter().all(|v| (v - 1.0).abs() < 1e-6));
}

#[test]
fn bilinear_is_linear_along_both_axes() {
    let a = attrs(
        &[1, 1, 2, 2],
        &[1, 1, 3, 3],
        ResizeMode::Linear,
        CoordinateTransform::AlignCorners,
    );
    let y = one(
        &Op::Resize(a),
        &[&f32s(&[1, 1, 2, 2], &[0.0, 2.0, 4.0, 6.0])],
    );
    assert_eq!(values(&y), [0.0, 1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0, 6.0]);
}

#[test]
fn hostile_scales_are_refused() {
    let mut a = attrs(
        &[4],
        &[2],
        ResizeMode::Cubic,
        CoordinateTransform::HalfPixel,
    );
    a.antialias = true;
    a.scales = vec![1e-30];
    assert!(try_one(&Op::Resize(a.clone()), &[&ramp(&[4])]).is_err());
    a.scales = vec![f32::NAN];
    assert!(try_one(&Op::Resize(a), &[&ramp(&[4])]).is_err());
}

#[test]
fn an_image_of_one_integer_stays_one() {
    let sizes = [[5, 6], [3, 7], [11, 13]];
    for mode in [ResizeMode::Linear, ResizeMode::Cubic, ResizeMode::Nearest] {
        for (antialias, to) in [
            (false, [7, 13]),
            (true, [7, 13]),
            (true, [2, 3]),
            (false, [9, 5]),
        ] {
            for size in sizes {
                for value in [1u8, 100, 255] {
                    let mut attrs = attrs(&size, &to, mode, CoordinateTransform::HalfPixel);
                    attrs.antialias = antialias && mode != ResizeMode::Nearest;
                    let x = u8s(&size, &vec![value; size[0] * size[1]]);
                    let signed = one(&Op::Cast { to: DType::I32 }, &[&x]);
                    let signed = one(&Op::Unary(Unary::Neg), &[&signed]);
                    let op = Op::Resize(attrs);
                    let is_same =
                        |x: &Literal, value: i64| ints(&one(&op, &[x])).iter().all(|&v| v == value);
                    assert!(is_same(&x, value.into()), "{op:?} of {value}");
                    assert!(is_same(&signed, -i64::from(value)), "{op:?} of -{value}");
                }
            }
        }
    }
}

/// As onnxruntime has them, along one axis: of several, it rounds between them.
#[test]
fn integers_are_rounded_where_an_image_is_smoothed_and_cut_off_elsewhere() {
    let values: Vec<u8> = (0..16).map(|i| (i * i * 37 % 201) as u8).collect();
    let x = u8s(&[16], &values);
    let as_floats = one(&Op::Cast { to: DType::F32 }, &[&x]);
    let mut rounded = 0;
    for mode in [ResizeMode::Linear, ResizeMode::Cubic] {
        for (antialias, to) in [(true, 7), (true, 5), (true, 23), (false, 7), (false, 23)] {
            let mut attrs = attrs(&[16], &[to], mode, CoordinateTransform::HalfPixel);
            attrs.antialias = antialias;
            let op = Op::Resize(attrs);
            let found = ints(&one(&op, &[&x]));
            let exact = one(&op, &[&as_floats]);
            for (found, exact) in found.iter().zip(self::values(&exact)) {
                let exact = f64::from(*exact).clamp(0.0, 255.0);
                let wanted = match antialias {
                    true => exact.round(),
                    false => exact.trunc(),
                };
                rounded += usize::from(exact.round() != exact.trunc());
                assert_eq!(*found, wanted as i64, "{op:?}: {exact}");
            }
        }
    }
    assert!(rounded > 10, "{rounded} results tell the two apart");
}

#[test]
fn the_nearest_integer_is_the_same_integer() {
    let large = [i64::MAX, i64::MIN + 1, (1 << 53) + 1];
    let attrs = attrs(
        &[3],
        &[6],
        ResizeMode::Nearest,
        CoordinateTransform::Asymmetric,
    );
    let y = one(&Op::Resize(attrs), &[&i64s(&[3], &large)]);
    assert!(ints(&y).iter().all(|v| large.contains(v)), "{y:?}");
}
