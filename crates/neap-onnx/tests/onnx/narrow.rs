//! 4-bit integers, floats of 4 and 8 bits and powers of two as types of inputs, results and constants.

use crate::support::*;
use neap_ir::{DType, Float8, Literal};

const FLOAT8: [(i32, Float8); 4] = [
    (17, Float8::E4M3Fn),
    (18, Float8::E4M3FnUz),
    (19, Float8::E5M2),
    (20, Float8::E5M2FnUz),
];
const UINT4: i32 = 21;
const INT4: i32 = 22;
const FLOAT4: i32 = 23;
const POWER: i32 = 24;

fn run(model: &Model, inputs: &[Literal]) -> Literal {
    let graph = model.graph();
    let results = neap_ops::interpret(&graph, inputs, &|_| None).expect("computes");
    results.into_iter().next().expect("a result")
}

fn numbers() -> Literal {
    let x = [
        0.3,
        -0.0,
        1e-7,
        17.0,
        -1000.0,
        1e6,
        f32::INFINITY,
        -3.5,
        2.5,
    ];
    Literal::from_f32(&[9], &x)
}

#[test]
fn casts_round_and_saturate_as_asked() {
    for (kind, float8) in FLOAT8 {
        for saturate in [0, 1] {
            let attributes = [
                ("to", Attr::Int(kind.into())),
                ("saturate", Attr::Int(saturate)),
            ];
            let model = Model::new(19)
                .input("x", FLOAT, &[9])
                .node("Cast", &["x"], &["y"], &attributes)
                .output("y");
            let x = numbers();
            let y = run(&model, std::slice::from_ref(&x));
            let pairs = x
                .as_f32()
                .expect("f32")
                .iter()
                .zip(y.as_f32().expect("f32"));
            for (&x, &y) in pairs {
                let expected = float8.round(x, saturate == 1);
                assert!(
                    y.to_bits() == expected.to_bits() || (y.is_nan() && expected.is_nan()),
                    "{}: {x} gives {y}, not {expected}",
                    float8.name()
                );
            }
        }
    }
}

#[test]
fn types_follow_what_they_are_like() {
    // Of a narrow constant through a Reshape; and not of what was cast to a wide type.
    let model = |through: &str| {
        Model::new(21)
            .input("x", FLOAT, &[9])
            .constant(&tensor("narrow", 17, &[1], &[0x38]))
            .ints("shape", &[1, 1])
            .node("Reshape", &["narrow", "shape"], &["moved"], &[])
            .node("Cast", &["narrow"], &["wide"], &[("to", Attr::Int(1))])
            .node("CastLike", &["x", through], &["y"], &[])
            .output("y")
    };
    let x = numbers();
    let narrow = run(&model("moved"), std::slice::from_ref(&x));
    let rounded = x.as_f32().expect("f32").iter();
    let rounded: Vec<f32> = rounded.map(|&x| Float8::E4M3Fn.round(x, true)).collect();
    assert_eq!(narrow.as_f32(), Some(&rounded[..]));
    assert_eq!(run(&model("wide"), std::slice::from_ref(&x)), x);
}

#[test]
fn four_bits_saturate_from_floats_and_wrap_from_integers() {
    let cast = |from: i32, to: i32, x: &Literal| {
        let model = Model::new(21)
            .input("x", from, &[x.elements() as i64])
            .node("Cast", &["x"], &["y"], &[("to", Attr::Int(to.into()))])
            .output("y");
        let y = run(&model, std::slice::from_ref(x));
        let carrier = if to == INT4 { DType::I8 } else { DType::U8 };
        assert_eq!(y.dtype(), carrier);
        y.to_i64_vec().expect("integers")
    };
    let x = Literal::from_f32(&[6], &[-9.5, -7.9, 3.9, 7.0, 15.2, f32::INFINITY]);
    assert_eq!(cast(FLOAT, INT4, &x), [-8, -7, 3, 7, 7, 7]);
    assert_eq!(cast(FLOAT, UINT4, &x), [0, 0, 3, 7, 15, 15]);
    let x: Vec<i64> = (-40..40).collect();
    let signed: Vec<i64> = x.iter().map(|x| (x + 8).rem_euclid(16) - 8).collect();
    let unsigned: Vec<i64> = x.iter().map(|x| x.rem_euclid(16)).collect();
    let x = Literal::from_i64(&[80], &x);
    assert_eq!(cast(INT64, INT4, &x), signed);
    assert_eq!(cast(INT64, UINT4, &x), unsigned);
}

#[test]
fn steps_of_four_bits_and_of_floats() {
    let x = Literal::from_f32(&[5], &[0.0, 2.5, -30.0, 9.0, 40.0]);
    let quantized = |zero: &Bytes| {
        let model = Model::new(21)
            .input("x", FLOAT, &[5])
            .constant(&f32_tensor("scale", &[], &[2.0]))
            .constant(zero)
            .node("QuantizeLinear", &["x", "scale", "zero"], &["y"], &[]);
        let back = model
            .clone()
            .node("DequantizeLinear", &["y", "scale", "zero"], &["z"], &[]);
        let y = run(&model.output("y"), std::slice::from_ref(&x));
        (y, run(&back.output("z"), std::slice::from_ref(&x)))
    };
    // Of 4 bits, the zero point is 1; ties go to even.
    let (y, z) = quantized(&tensor("zero", INT4, &[], &[1]));
    assert_eq!(y.to_i64_vec(), Some(vec![1, 2, -8, 5, 7]));
    assert_eq!(z.as_f32(), Some(&[0.0, 2.0, -18.0, 8.0, 12.0][..]));
    for (kind, float8) in FLOAT8 {
        let (y, z) = quantized(&tensor("zero", kind, &[], &[0]));
        let steps: Vec<f32> = (x.as_f32().expect("f32").iter())
            .map(|x| float8.round(x / 2.0, true))
            .collect();
        let back: Vec<f32> = steps.iter().map(|s| s * 2.0).collect();
        assert_eq!(
            (y.as_f32(), z.as_f32()),
            (Some(&steps[..]), Some(&back[..]))
        );
    }
}

#[test]
fn other_operators_do_not_see_types_they_lack() {
    let error = Model::new(21)
        .input("x", 27, &[2])
        .node("Identity", &["x"], &["y"], &[])
        .output("y")
        .error();
    assert!(error.contains("float6e2m3"), "{error}");
}

/// Of all of them the nearest, of two as near the one whose last bit is zero.
fn nearest_of_four_bits(x: f32) -> f32 {
    let all = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let order = |&code: &usize| ((all[code] - x.abs().min(6.0)).abs(), code % 2);
    let nearest = (0..8).min_by(|a, b| order(a).partial_cmp(&order(b)).expect("numbers"));
    all[nearest.expect("one of eight")].copysign(x)
}

#[test]
fn floats_of_four_bits_are_rounded_and_read() {
    let mut x: Vec<f32> = (-60..=60).map(|i| i as f32 * 0.125).collect();
    x.extend([f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-30, -1e30]);
    let expected: Vec<f32> = x.iter().map(|&x| nearest_of_four_bits(x)).collect();
    let count = x.len() as i64;
    let model = Model::new(23)
        .input("x", FLOAT, &[count])
        .node("Cast", &["x"], &["y"], &[("to", Attr::Int(FLOAT4.into()))])
        .output("y");
    let y = run(&model, &[Literal::from_f32(&[x.len()], &x)]);
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    assert_eq!(bits(y.as_f32().expect("f32")), bits(&expected));
    // The first is in the lower half of its byte. 1.5 and -6, then 0.5 and -0.
    let zero = tensor("zero", FLOAT4, &[], &[0]);
    let model = Model::new(23)
        .constant(&tensor("c", FLOAT4, &[4], &[0xf3, 0x81]))
        .constant(&f32_tensor("scale", &[], &[2.0]))
        .constant(&zero)
        .node("DequantizeLinear", &["c", "scale"], &["y"], &[])
        .output("y");
    let y = run(&model, &[]);
    assert_eq!(
        bits(y.as_f32().expect("f32")),
        bits(&[3.0, -12.0, 1.0, -0.0])
    );
    let model = Model::new(23)
        .input("x", FLOAT, &[3])
        .constant(&f32_tensor("scale", &[], &[2.0]))
        .constant(&zero)
        .node("QuantizeLinear", &["x", "scale", "zero"], &["y"], &[])
        .output("y");
    let y = run(&model, &[Literal::from_f32(&[3], &[2.5, -30.0, 9.0])]);
    assert_eq!(y.as_f32(), Some(&[1.0, -6.0, 4.0][..]));
}

#[test]
fn powers_of_two_are_rounded_and_read() {
    let mut x = vec![0.0f32, -1.0, f32::INFINITY, f32::MAX, 1e-45, 3e-39];
    for exponent in [-127, -126, -70, -64, -1, 0, 1, 5, 63, 64, 100, 126, 127] {
        let power = 2f64.powi(exponent);
        x.extend([1.0, 1.25, 1.5, 1.75].map(|part| (power * part) as f32));
    }
    let least = 2f64.powi(-127);
    for mode in ["up", "nearest", "down"] {
        let model = Model::new(24)
            .input("x", FLOAT, &[x.len() as i64])
            .node(
                "Cast",
                &["x"],
                &["y"],
                &[
                    ("to", Attr::Int(POWER.into())),
                    ("round_mode", Attr::Str(mode)),
                ],
            )
            .output("y");
        let y = run(&model, &[Literal::from_f32(&[x.len()], &x)]);
        for (&x, &y) in x.iter().zip(y.as_f32().expect("f32")) {
            let limited = f64::from(x).clamp(least, 2f64.powi(127));
            let mut power = least;
            while power * 2.0 <= limited {
                power *= 2.0;
            }
            let is_next = match mode {
                "up" => limited > power,
                "nearest" => limited >= power * 1.5,
                _ => false,
            };
            let expected = if is_next { power * 2.0 } else { power };
            assert_eq!(f64::from(y), expected, "{mode}: {x}");
        }
    }
    // Steps of four bits with a scale of its own for each two, as microscaling formats have them.
    let model = Model::new(24)
        .constant(&tensor("c", FLOAT4, &[2, 2], &[0x27, 0x6d]))
        .constant(&tensor("scale", POWER, &[2, 1], &[0, 128]))
        .node(
            "DequantizeLinear",
            &["c", "scale"],
            &["y"],
            &[("block_size", Attr::Int(2))],
        )
        .output("y");
    let y = run(&model, &[]);
    let tiny = least as f32;
    assert_eq!(y.as_f32(), Some(&[6.0 * tiny, tiny, -6.0, 8.0][..]));
}
