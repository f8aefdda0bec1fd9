//! Operators of opsets 23 to 28, beside their definitions written out in plain loops.

mod attention;

use crate::support::*;
use neap_ir::{DType, Literal};

fn run(model: &Model, inputs: &[Literal]) -> Vec<Literal> {
    let graph = model.graph();
    neap_ops::interpret(&graph, inputs, &|_| None).expect("computes")
}

fn floats(literal: &Literal) -> &[f32] {
    literal.as_f32().expect("floats")
}

fn ramp(shape: &[usize], step: f32) -> Literal {
    let count = shape.iter().product::<usize>();
    let at = |i: usize| ((i * 37 % 101) as f32 - 50.0) * step;
    Literal::from_f32(shape, &(0..count).map(at).collect::<Vec<f32>>())
}

fn near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (i, (&a, &b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 1e-4 + 1e-4 * b.abs(), "{i}: {a} for {b}");
    }
}

#[test]
fn a_state_is_changed_place_by_place() {
    // One head of keys for two of queries.
    let (places, depth, value_depth) = (4, 3, 2);
    let q = ramp(&[1, places, 2 * depth], 0.02);
    let k = ramp(&[1, places, depth], 0.015);
    let v = ramp(&[1, places, value_depth], 0.03);
    let past = ramp(&[1, 1, depth, value_depth], 0.04);
    let decay = ramp(&[1, places, depth], 0.01);
    let rate = ramp(&[1, places, 1], 0.005);
    let cases = [
        ("linear", false, false),
        ("gated", true, false),
        ("delta", false, true),
        ("gated_delta", true, true),
    ];
    for (rule, gated, delta) in cases {
        let names = [
            "q",
            "k",
            "v",
            "s",
            if gated { "g" } else { "" },
            if delta { "b" } else { "" },
        ];
        let attributes = [
            ("q_num_heads", Attr::Int(2)),
            ("kv_num_heads", Attr::Int(1)),
            ("update_rule", Attr::Str(rule)),
        ];
        let mut model = Model::new(27)
            .input("q", FLOAT, &[1, 4, 6])
            .input("k", FLOAT, &[1, 4, 3])
            .input("v", FLOAT, &[1, 4, 2])
            .input("s", FLOAT, &[1, 1, 3, 2]);
        let mut inputs = vec![q.clone(), k.clone(), v.clone(), past.clone()];
        if gated {
            model = model.input("g", FLOAT, &[1, 4, 3]);
            inputs.push(decay.clone());
        }
        if delta {
            model = model.input("b", FLOAT, &[1, 4, 1]);
            inputs.push(rate.clone());
        }
        let model = model
            .node("LinearAttention", &names, &["y", "t"], &attributes)
            .output("y")
            .output("t");
        let found = run(&model, &inputs);
        let mut state = floats(&past).to_vec();
        let mut expected = Vec::new();
        for t in 0..places {
            let key = &floats(&k)[t * depth..][..depth];
            let mut value = floats(&v)[t * value_depth..][..value_depth].to_vec();
            for (i, held) in state.iter_mut().enumerate() {
                let by = floats(&decay)[t * depth + i / value_depth].exp();
                *held *= if gated { by } else { 1.0 };
            }
            for (m, value) in value.iter_mut().enumerate() {
                let held: f32 = (0..depth)
                    .map(|d| state[d * value_depth + m] * key[d])
                    .sum();
                *value = if delta {
                    floats(&rate)[t] * (*value - held)
                } else {
                    *value
                };
            }
            for (i, held) in state.iter_mut().enumerate() {
                *held += key[i / value_depth] * value[i % value_depth];
            }
            for h in 0..2 {
                let row = &floats(&q)[(t * 2 + h) * depth..][..depth];
                for m in 0..value_depth {
                    let sum: f32 = (0..depth)
                        .map(|d| row[d] * state[d * value_depth + m])
                        .sum();
                    expected.push(sum / (depth as f32).sqrt());
                }
            }
        }
        near(floats(&found[0]), &expected);
        near(floats(&found[1]), &state);
    }
}

#[test]
fn a_convolution_goes_on_where_it_ended() {
    // In two parts, the state of the first given to the second, as in one.
    let x = ramp(&[2, 3, 5], 0.05);
    let weights = ramp(&[3, 1, 3], 0.1);
    let model = |length: i64| {
        Model::new(27)
            .input("x", FLOAT, &[2, 3, length])
            .input("w", FLOAT, &[3, 1, 3])
            .input("s", FLOAT, &[2, 3, 2])
            .node(
                "CausalConvWithState",
                &["x", "w", "", "s"],
                &["y", "t"],
                &[],
            )
            .output("y")
            .output("t")
    };
    let columns = |x: &Literal, from: usize, to: usize| {
        let rows = floats(x).chunks(x.shape()[2]);
        let part: Vec<f32> = rows.flat_map(|row| row[from..to].to_vec()).collect();
        Literal::from_f32(&[2, 3, to - from], &part)
    };
    let nothing = Literal::from_f32(&[2, 3, 2], &[0.0; 12]);
    let whole = run(&model(5), &[x.clone(), weights.clone(), nothing.clone()]);
    let first = run(&model(1), &[columns(&x, 0, 1), weights.clone(), nothing]);
    let rest = [columns(&x, 1, 5), weights.clone(), first[1].clone()];
    let second = run(&model(4), &rest);
    assert_eq!(second[1], whole[1]);
    assert_eq!(first[0], columns(&whole[0], 0, 1));
    near(floats(&second[0]), floats(&columns(&whole[0], 1, 5)));
    let (x, w) = (floats(&x), floats(&weights));
    let expected = x[2] * w[2] + x[1] * w[1] + x[0] * w[0];
    near(&floats(&whole[0])[2..3], &[expected]);
    assert_eq!(floats(&whole[1])[..2], x[3..5]);
}

#[test]
fn rows_of_a_cache_are_written_where_each_is_told() {
    let model = |mode: &str| {
        Model::new(24)
            .input("c", FLOAT, &[2, 4, 2])
            .input("u", FLOAT, &[2, 2, 2])
            .input("at", INT64, &[2])
            .node(
                "TensorScatter",
                &["c", "u", "at"],
                &["y"],
                &[("mode", Attr::Str(mode))],
            )
            .output("y")
    };
    let cache = Literal::from_f32(&[2, 4, 2], &[0.0; 16]);
    let update: Vec<f32> = (1..=8).map(|i| i as f32).collect();
    let update = Literal::from_f32(&[2, 2, 2], &update);
    let at = |a: i64, b: i64| Literal::from_i64(&[2], &[a, b]);
    let found = run(
        &model("circular"),
        &[cache.clone(), update.clone(), at(3, 1)],
    );
    assert_eq!(
        floats(&found[0]),
        [
            3., 4., 0., 0., 0., 0., 1., 2., 0., 0., 5., 6., 7., 8., 0., 0.
        ]
    );
    // Past the end of a cache that is not circular.
    let graph = model("linear").graph();
    let inputs = [cache, update, at(3, 1)];
    assert!(neap_ops::interpret(&graph, &inputs, &|_| None).is_err());
}

#[test]
fn products_grow_along_an_axis() {
    let x = [2.0f32, -3.0, 5.0, 0.5, 7.0];
    for (exclusive, reverse) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let model = Model::new(26)
            .input("x", FLOAT, &[1, 5])
            .constant(&i64_tensor("axis", &[], &[-1]))
            .node(
                "CumProd",
                &["x", "axis"],
                &["y"],
                &[
                    ("exclusive", Attr::Int(exclusive)),
                    ("reverse", Attr::Int(reverse)),
                ],
            )
            .output("y");
        let found = run(&model, &[Literal::from_f32(&[1, 5], &x)]);
        let expected: Vec<f32> = (0..5)
            .map(|i| {
                let taken = |j: &usize| match (reverse, exclusive) {
                    (0, 0) => *j <= i,
                    (0, _) => *j < i,
                    (_, 0) => *j >= i,
                    _ => *j > i,
                };
                (0..5).filter(taken).map(|j| x[j]).product()
            })
            .collect();
        assert_eq!(floats(&found[0]), expected);
    }
}

#[test]
fn signed_integers_are_shifted_with_their_sign() {
    let values = [i32::MIN, -7, -1, 0, 1, 9, i32::MAX];
    let places = [-1, 0, 1, 31, 32, 40];
    let pairs: Vec<(i32, i32)> = values
        .iter()
        .flat_map(|&x| places.map(|n| (x, n)))
        .collect();
    let literal = |values: Vec<i32>| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Literal::from_bytes(DType::I32, &[values.len()], &bytes).expect("fits")
    };
    let inputs = [
        literal(pairs.iter().map(|p| p.0).collect()),
        literal(pairs.iter().map(|p| p.1).collect()),
    ];
    let count = pairs.len() as i64;
    let model = |opset: i64, direction: &str| {
        Model::new(opset)
            .input("x", INT32, &[count])
            .input("n", INT32, &[count])
            .node(
                "BitShift",
                &["x", "n"],
                &["y"],
                &[("direction", Attr::Str(direction))],
            )
            .output("y")
    };
    let beyond = |n: i32| !(0..32).contains(&n);
    let left = pairs
        .iter()
        .map(|&(x, n)| if beyond(n) { 0 } else { x << n });
    let right = pairs
        .iter()
        .map(|&(x, n)| x >> if beyond(n) { 31 } else { n });
    for (direction, expected) in [
        ("LEFT", left.collect::<Vec<_>>()),
        ("RIGHT", right.collect()),
    ] {
        let found = run(&model(28, direction), &inputs);
        assert_eq!(found[0], literal(expected), "{direction}");
    }
    let error = model(11, "LEFT").error();
    assert!(
        error.contains("unsigned integers before opset 28"),
        "{error}"
    );
}

#[test]
fn blocks_stay_behind_their_channel() {
    let x = ramp(&[1, 2, 4, 6], 1.0);
    let there = |mode: &str| {
        let attributes = [("blocksize", Attr::Int(2)), ("mode", Attr::Str(mode))];
        Model::new(28)
            .input("x", FLOAT, &[1, 2, 4, 6])
            .node("SpaceToDepth", &["x"], &["y"], &attributes)
            .node("DepthToSpace", &["y"], &["z"], &attributes)
            .output("y")
            .output("z")
    };
    for mode in ["DCR", "CRD"] {
        let found = run(&there(mode), std::slice::from_ref(&x));
        assert_eq!(found[1], x, "{mode}");
        let second = floats(&found[0])[6];
        // The second channel of the result: the next place of the block, or the next channel's first.
        let expected = if mode == "CRD" {
            floats(&x)[1]
        } else {
            floats(&x)[24]
        };
        assert_eq!(second, expected, "{mode}");
    }
}

#[test]
fn gates_of_any_steepness() {
    let (a, b) = (ramp(&[2, 5], 0.1), ramp(&[2, 5], 0.07));
    for alpha in [1.0, 1.7] {
        let model = Model::new(28)
            .input("a", FLOAT, &[2, 5])
            .input("b", FLOAT, &[2, 5])
            .node(
                "SwiGLU",
                &["a", "b"],
                &["y"],
                &[("alpha", Attr::Float(alpha))],
            )
            .output("y");
        let found = run(&model, &[a.clone(), b.clone()]);
        let pairs = floats(&a).iter().zip(floats(&b));
        let expected: Vec<f32> = pairs
            .map(|(a, b)| a / (1.0 + (-alpha * a).exp()) * b)
            .collect();
        near(floats(&found[0]), &expected);
    }
}

#[test]
fn two_bits_are_read_and_wrap() {
    let (uint2, int2) = (25, 26);
    for (kind, carrier, low) in [(uint2, DType::U8, 0), (int2, DType::I8, -2)] {
        let model = Model::new(25)
            .input("x", FLOAT, &[6])
            // 0, 1, 2, 3 and 1: from the lowest bits on.
            .constant(&tensor("c", kind, &[5], &[0b11_10_01_00, 0b01]))
            .node("Cast", &["x"], &["y"], &[("to", Attr::Int(kind.into()))])
            .node("Cast", &["c"], &["z"], &[("to", Attr::Int(INT64.into()))])
            .output("y")
            .output("z");
        let x = Literal::from_f32(&[6], &[-3.0, -2.0, -1.0, 1.5, 2.0, 3.0]);
        let found = run(&model, &[x]);
        let wrap = |x: i64| (x - low).rem_euclid(4) + low;
        assert_eq!(found[0].dtype(), carrier);
        let expected = [-3, -2, -1, 1, 2, 3].map(wrap);
        assert_eq!(found[0].to_i64_vec(), Some(expected.to_vec()));
        let expected = [0, 1, 2, 3, 1].map(wrap);
        assert_eq!(found[1].to_i64_vec(), Some(expected.to_vec()));
    }
}

#[test]
fn half_of_the_frequencies_gives_real_numbers() {
    let bins = 4;
    let x = ramp(&[1, bins, 2], 0.1);
    let model = |parts: i64, length: i64| {
        let attributes = [("inverse", Attr::Int(1)), ("onesided", Attr::Int(1))];
        Model::new(20)
            .input("x", FLOAT, &[1, 4, parts])
            .constant(&i64_tensor("n", &[], &[length]))
            .constant(&i64_tensor("axis", &[], &[1]))
            .node("DFT", &["x", "n", "axis"], &["y"], &attributes)
            .output("y")
    };
    // All frequencies of an even and of an odd length, some only, and some that are not given.
    for length in [6, 7, 1, 3, 4, 9] {
        let found = run(&model(2, length as i64), std::slice::from_ref(&x));
        assert_eq!(found[0].shape(), [1, length, 1]);
        let x = floats(&x);
        let frequency = |k: usize| match k <= length / 2 {
            true if k < bins => (x[2 * k], x[2 * k + 1]),
            false if length - k < bins => (x[2 * (length - k)], -x[2 * (length - k) + 1]),
            _ => (0.0, 0.0),
        };
        let expected: Vec<f32> = (0..length)
            .map(|n| {
                let term = |k: usize| {
                    let turn = std::f32::consts::TAU * (k * n % length) as f32 / length as f32;
                    let (re, im) = frequency(k);
                    re * turn.cos() - im * turn.sin()
                };
                (0..length).map(term).sum::<f32>() / length as f32
            })
            .collect();
        near(floats(&found[0]), &expected);
    }
    let error = model(1, 6).error();
    assert!(error.contains("not given as complex numbers"), "{error}");
}

#[test]
fn opsets_that_are_not_known_are_refused() {
    let model = |opset: i64| {
        Model::new(opset)
            .input("x", FLOAT, &[2])
            .node("Relu", &["x"], &["y"], &[])
            .output("y")
    };
    assert!(model(28).open().is_ok());
    let error = model(29).error();
    assert!(error.contains("1 to 28 are"), "{error}");
}

#[test]
fn bits_become_another_type_of_as_many() {
    let model = |input: i32, to: i64| {
        Model::new(26)
            .input("x", input, &[3])
            .node("BitCast", &["x"], &["y"], &[("to", Attr::Int(to))])
            .output("y")
    };
    let x = Literal::from_f32(&[3], &[1.0, -2.5, 3.75]);
    let graph = model(FLOAT, 6).graph();
    let y = neap_ops::interpret(&graph, std::slice::from_ref(&x), &|_| None).expect("computes");
    assert_eq!(
        y[0].to_i64_vec(),
        Some(vec![1_065_353_216, -1_071_644_672, 1_081_081_856])
    );
    let wide = model(FLOAT, 7).error();
    assert!(wide.contains("as many bytes"), "{wide}");
    for (input, to) in [(FLOAT16, 16), (FLOAT, 10), (UINT8, 22)] {
        let carried = model(input, to).error();
        assert!(carried.contains("half floats"), "{carried}");
    }
}
