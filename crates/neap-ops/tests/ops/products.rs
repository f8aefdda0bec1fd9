//! MatMul, Gemm, Einsum, convolutions and pooling against naive sums in f64.

use crate::support::*;
use neap_ir::infer::{Pads, conv_output_size, conv_transpose_output_size, pool_output_size};
use neap_ir::op::{Pool, Window};
use neap_ir::{DType, Literal, Op};
use neap_ops::{evaluate, evaluate_outputs};
use proptest::prelude::*;

fn cast(x: &Literal, to: DType) -> Literal {
    one(&Op::Cast { to }, &[x])
}

/// The same operator in f64, which takes the plain loops, cast back.
fn in_f64(op: &Op, inputs: &[&Literal]) -> Vec<f32> {
    let wide: Vec<Literal> = inputs.iter().map(|x| cast(x, DType::F64)).collect();
    let wide: Vec<&Literal> = wide.iter().collect();
    values(&cast(&one(op, &wide), DType::F32)).to_vec()
}

#[test]
fn matmul_broadcasts_its_batches() {
    let table: [(&[usize], &[usize], &[usize]); 9] = [
        (&[3, 4], &[4, 5], &[3, 5]),
        (&[4], &[4, 5], &[5]),
        (&[3, 4], &[4], &[3]),
        (&[4], &[4], &[]),
        (&[2, 3, 4], &[4, 5], &[2, 3, 5]),
        (&[3, 4], &[2, 4, 5], &[2, 3, 5]),
        (&[2, 1, 3, 4], &[6, 4, 5], &[2, 6, 3, 5]),
        (&[2, 6, 1, 4], &[1, 6, 4, 1], &[2, 6, 1, 1]),
        (&[17, 33], &[33, 40], &[17, 40]),
    ];
    for (a, b, y) in table {
        let (a, b) = (noise(a, 1), noise(b, 2));
        let found = one(&Op::MatMul, &[&a, &b]);
        assert_eq!(found.shape(), y);
        assert_close(&found, &in_f64(&Op::MatMul, &[&a, &b]), 1e-5);
    }
    // The f64 loops against the definition.
    let (a, b) = (noise(&[2, 3, 4], 1), noise(&[4, 5], 2));
    let mut expected = Vec::new();
    for row in values(&a).chunks(4) {
        for j in 0..5 {
            expected.push(
                row.iter()
                    .zip(0..)
                    .map(|(v, k)| v * values(&b)[k * 5 + j])
                    .sum(),
            );
        }
    }
    assert_close(&one(&Op::MatMul, &[&a, &b]), &expected, 1e-5);
    let found = one(
        &Op::MatMul,
        &[&i64s(&[2, 2], &[1, 2, 3, 4]), &i64s(&[2], &[1, -1])],
    );
    assert_eq!(ints(&found), [-1, -1]);
    let empty = one(&Op::MatMul, &[&noise(&[2, 0], 1), &noise(&[0, 3], 1)]);
    assert_eq!(values(&empty), [0.0; 6]);
}

#[test]
fn gemm_transposes_and_adds() {
    for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
        for c in [
            None,
            Some(vec![]),
            Some(vec![5]),
            Some(vec![3, 1]),
            Some(vec![3, 5]),
        ] {
            let op = Op::Gemm {
                alpha: 0.5,
                beta: 2.0,
                trans_a,
                trans_b,
            };
            let a = noise(if trans_a { &[7, 3] } else { &[3, 7] }, 1);
            let b = noise(if trans_b { &[5, 7] } else { &[7, 5] }, 2);
            let c = c.map(|shape| noise(&shape, 3));
            let mut inputs = vec![&a, &b];
            inputs.extend(&c);
            let y = one(&op, &inputs);
            for i in 0..3 {
                for j in 0..5 {
                    let mut sum = 0f64;
                    for k in 0..7 {
                        let at = if trans_a { k * 3 + i } else { i * 7 + k };
                        let bt = if trans_b { j * 7 + k } else { k * 5 + j };
                        sum += f64::from(values(&a)[at]) * f64::from(values(&b)[bt]);
                    }
                    let add = c.as_ref().map_or(0.0, |c| match c.shape() {
                        [] => values(c)[0],
                        [5] => values(c)[j],
                        [_, 1] => values(c)[i],
                        _ => values(c)[i * 5 + j],
                    });
                    let expected = 0.5 * sum + 2.0 * f64::from(add);
                    assert!((f64::from(values(&y)[i * 5 + j]) - expected).abs() < 1e-5);
                }
            }
        }
    }
}

#[test]
fn einsum_equations() {
    let run = |equation: &str, inputs: &[&Literal]| {
        one(
            &Op::Einsum {
                equation: equation.into(),
            },
            inputs,
        )
    };
    let (a, b) = (noise(&[2, 3, 4], 1), noise(&[2, 4, 5], 2));
    let product = one(&Op::MatMul, &[&a, &b]);
    assert_close(&run("bij,bjk->bik", &[&a, &b]), values(&product), 1e-5);
    assert_close(&run("...ij, ...jk", &[&a, &b]), values(&product), 1e-5);
    assert_close(
        &run(
            "b...j,bj...->b...",
            &[&noise(&[2, 3], 1), &noise(&[2, 3], 2)],
        ),
        &{
            let (x, y) = (noise(&[2, 3], 1), noise(&[2, 3], 2));
            let (x, y) = (values(&x).to_vec(), values(&y).to_vec());
            (0..2)
                .map(|i| (0..3).map(|j| x[i * 3 + j] * y[i * 3 + j]).sum())
                .collect::<Vec<f32>>()
        },
        1e-5,
    );
    let m = ramp(&[3, 3]);
    assert_eq!(values(&run("ii->i", &[&m])), [0.0, 4.0, 8.0]);
    assert_eq!(values(&run("ii", &[&m])), [12.0]);
    assert_eq!(
        values(&run("ij->ji", &[&ramp(&[2, 2])])),
        [0.0, 2.0, 1.0, 3.0]
    );
    assert_eq!(values(&run("ij->", &[&ramp(&[2, 2])])), [6.0]);
    assert_eq!(
        values(&run("i,j->ij", &[&ramp(&[2]), &ramp(&[2])])),
        [0.0, 0.0, 0.0, 1.0]
    );
    let bad = Op::Einsum {
        equation: "ij,jk->iz".into(),
    };
    assert!(try_one(&bad, &[&ramp(&[2, 2]), &ramp(&[2, 2])]).is_err());
}

fn window(kernel: &[usize], strides: &[usize], dilations: &[usize], pads: &[usize]) -> Window {
    Window {
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        pads_begin: pads.to_vec(),
        pads_end: pads.to_vec(),
    }
}

/// A window of two axes that fits an input, or `None`.
fn fitted(raw: [usize; 8], input: [usize; 2]) -> Option<(Window, [usize; 2])> {
    let w = window(
        &raw[0..2],
        &raw[2..4],
        &raw[4..6],
        &[raw[6].min(raw[0] - 1), raw[7].min(raw[1] - 1)],
    );
    let size = |i: usize| {
        let pads = Pads {
            begin: w.pads_begin[i],
            end: w.pads_end[i],
        };
        conv_output_size(input[i], w.kernel[i], w.strides[i], w.dilations[i], pads)
    };
    Some((w.clone(), [size(0)?, size(1)?]))
}

fn raw_window() -> impl Strategy<Value = [usize; 8]> {
    (
        1usize..4,
        1usize..4,
        1usize..4,
        1usize..4,
        1usize..3,
        1usize..3,
        0usize..3,
        0usize..3,
    )
        .prop_map(|(a, b, c, d, e, f, g, h)| [a, b, c, d, e, f, g, h])
}

proptest! {
    #[test]
    fn conv(raw in raw_window(), h in 1usize..9, w in 1usize..9, groups in 1usize..4, n in 1usize..3) {
        let Some((window, [oh, ow])) = fitted(raw, [h, w]) else { return Ok(()); };
        let (ci, co) = (2 * groups, 3 * groups);
        let (x, k) = (noise(&[n, ci, h, w], 1), noise(&[co, 2, raw[0], raw[1]], 2));
        let bias = noise(&[co], 3);
        let y = one(&Op::Conv(window.clone(), groups), &[&x, &k, &bias]);
        let mut expected = Vec::new();
        for image in 0..n { for o in 0..co { for r in 0..oh { for c in 0..ow {
            let mut sum = f64::from(values(&bias)[o]);
            for i in 0..2 { for kr in 0..raw[0] { for kc in 0..raw[1] {
                let at = |o: usize, k: usize, axis: usize| (o * window.strides[axis] + k * window.dilations[axis]).checked_sub(window.pads_begin[axis]);
                if let (Some(y), Some(z)) = (at(r, kr, 0), at(c, kc, 1)) && y < h && z < w {
                    let v = values(&x)[((image * ci + o / 3 * 2 + i) * h + y) * w + z];
                    sum += f64::from(v) * f64::from(values(&k)[((o * 2 + i) * raw[0] + kr) * raw[1] + kc]);
                }
            }}}
            expected.push(sum as f32);
        }}}}
        assert_close(&y, &expected, 1e-5);
        assert_close(&y, &in_f64(&Op::Conv(window, groups), &[&x, &k, &bias]), 1e-5);
    }

    #[test]
    fn conv_transpose_scatters(raw in raw_window(), h in 1usize..6, w in 1usize..6, groups in 1usize..3) {
        let window = fitted(raw, [32, 32]).expect("fits").0;
        let size = |i: usize, input: usize| {
            let pads = Pads { begin: window.pads_begin[i], end: window.pads_end[i] };
            conv_transpose_output_size(input, window.kernel[i], window.strides[i], window.dilations[i], pads, 0)
        };
        let (Some(oh), Some(ow)) = (size(0, h), size(1, w)) else { return Ok(()); };
        prop_assume!(oh > 0 && ow > 0);
        let (ci, co) = (2 * groups, 3 * groups);
        let (x, k) = (noise(&[1, ci, h, w], 1), noise(&[ci, 3, raw[0], raw[1]], 2));
        let op = Op::ConvTranspose { window: window.clone(), groups, output_spatial: vec![oh, ow] };
        let y = one(&op, &[&x, &k]);
        let mut expected = vec![0f64; co * oh * ow];
        for i in 0..ci { for o in 0..3 { for r in 0..h { for c in 0..w { for kr in 0..raw[0] { for kc in 0..raw[1] {
            let at = |i: usize, k: usize, axis: usize| (i * window.strides[axis] + k * window.dilations[axis]).checked_sub(window.pads_begin[axis]);
            if let (Some(y), Some(z)) = (at(r, kr, 0), at(c, kc, 1)) && y < oh && z < ow {
                let v = f64::from(values(&x)[(i * h + r) * w + c]) * f64::from(values(&k)[((i * 3 + o) * raw[0] + kr) * raw[1] + kc]);
                expected[((i / 2 * 3 + o) * oh + y) * ow + z] += v;
            }
        }}}}}}
        let expected: Vec<f32> = expected.iter().map(|&v| v as f32).collect();
        assert_close(&y, &expected, 1e-5);
    }

    #[test]
    fn pools(raw in raw_window(), h in 1usize..9, w in 1usize..9, ceil: bool, count_include_pad: bool) {
        let Some((window, _)) = fitted(raw, [h, w]) else { return Ok(()); };
        let input = [h, w];
        let size = |i: usize| {
            let pads = Pads { begin: window.pads_begin[i], end: window.pads_end[i] };
            pool_output_size(input[i], window.kernel[i], window.strides[i], window.dilations[i], pads, ceil).expect("fits")
        };
        let (oh, ow) = (size(0), size(1));
        let x = noise(&[1, 2, h, w], 4);
        let pool = |kind| Op::Pool { kind, window: window.clone(), output_spatial: vec![oh, ow] };
        let max = pool(Pool::Max { column_major: false });
        let found = evaluate_outputs(&max, &[Some(&x)], 2).expect("runs");
        let average = one(&pool(Pool::Average { count_include_pad }), &[&x]);
        let lp = one(&pool(Pool::Lp { p: 2 }), &[&x]);
        let mut i = 0;
        for c in 0..2 { for r in 0..oh { for q in 0..ow {
            let (mut best, mut best_at, mut sum, mut square, mut count, mut padded) = (f32::NEG_INFINITY, 0, 0f64, 0f64, 0, 0);
            for kr in 0..raw[0] { for kc in 0..raw[1] {
                let y = (r * window.strides[0] + kr * window.dilations[0]) as isize - window.pads_begin[0] as isize;
                let z = (q * window.strides[1] + kc * window.dilations[1]) as isize - window.pads_begin[1] as isize;
                if y < (h + window.pads_end[0]) as isize && z < (w + window.pads_end[1]) as isize { padded += 1; }
                if y >= 0 && z >= 0 && y < h as isize && z < w as isize {
                    let at = (c * h + y as usize) * w + z as usize;
                    let v = values(&x)[at];
                    if v > best { (best, best_at) = (v, at); }
                    sum += f64::from(v);
                    square += f64::from(v) * f64::from(v);
                    count += 1;
                }
            }}
            prop_assume!(count > 0);
            assert_eq!(values(&found[0])[i], best);
            assert_eq!(ints(&found[1])[i], best_at as i64);
            let n = if count_include_pad { padded } else { count };
            assert!((f64::from(values(&average)[i]) - sum / f64::from(n)).abs() < 1e-5);
            assert!((f64::from(values(&lp)[i]) - square.sqrt()).abs() < 1e-5);
            i += 1;
        }}}
    }
}

#[test]
fn windows_of_one_and_three_axes() {
    let y = one(
        &Op::Conv(window(&[2], &[1], &[1], &[0]), 1),
        &[&ramp(&[1, 1, 4]), &f32s(&[1, 1, 2], &[1.0, 10.0])],
    );
    assert_eq!(values(&y), [10.0, 21.0, 32.0]);
    let w = window(&[2, 2, 2], &[1, 1, 1], &[1, 1, 1], &[0, 0, 0]);
    let y = one(
        &Op::Conv(w.clone(), 1),
        &[&ramp(&[1, 1, 2, 2, 3]), &f32s(&[1, 1, 2, 2, 2], &[1.0; 8])],
    );
    assert_eq!(values(&y), [40.0, 48.0]);
    let op = Op::Pool {
        kind: Pool::Max { column_major: true },
        window: w,
        output_spatial: vec![1, 1, 2],
    };
    let y = evaluate_outputs(&op, &[Some(&ramp(&[1, 1, 2, 2, 3]))], 2).expect("runs");
    assert_eq!(values(&y[0]), [10.0, 11.0]);
    assert_eq!(ints(&y[1]), [7, 11]);
}

#[test]
fn global_pools() {
    let x = ramp(&[1, 2, 2, 2]);
    let run = |kind| values(&one(&Op::GlobalPool(kind), &[&x])).to_vec();
    assert_eq!(
        run(Pool::Max {
            column_major: false
        }),
        [3.0, 7.0]
    );
    assert_eq!(
        run(Pool::Average {
            count_include_pad: false
        }),
        [1.5, 5.5]
    );
    assert_eq!(run(Pool::Lp { p: 1 }), [6.0, 22.0]);
}

#[test]
fn norms_agree_with_f64() {
    let x = noise(&[2, 6, 3, 5], 1);
    let (scale, bias) = (noise(&[6], 2), noise(&[6], 3));
    let (mean, variance) = (noise(&[6], 4), f32s(&[6], &[0.1, 0.5, 1.0, 2.0, 0.3, 0.7]));
    let wide = noise(&[3, 5], 5);
    let cases: Vec<(Op, Vec<&Literal>)> = vec![
        (
            Op::BatchNorm { epsilon: 1e-3 },
            vec![&x, &scale, &bias, &mean, &variance],
        ),
        (Op::InstanceNorm { epsilon: 1e-3 }, vec![&x, &scale, &bias]),
        (
            Op::GroupNorm {
                groups: 3,
                epsilon: 1e-3,
                per_group: false,
            },
            vec![&x, &scale, &bias],
        ),
        (
            Op::LayerNorm {
                axis: 2,
                epsilon: 1e-3,
            },
            vec![&x, &wide, &wide],
        ),
        (
            Op::LayerNorm {
                axis: 2,
                epsilon: 1e-3,
            },
            vec![&x, &wide],
        ),
        (
            Op::RmsNorm {
                axis: 2,
                epsilon: 1e-3,
            },
            vec![&x, &wide],
        ),
        (Op::LpNorm { axis: 1, p: 2 }, vec![&x]),
        (Op::LpNorm { axis: 3, p: 1 }, vec![&x]),
        (
            Op::Lrn {
                alpha: 0.5,
                beta: 0.75,
                bias: 1.0,
                size: 3,
            },
            vec![&x],
        ),
        (
            Op::Lrn {
                alpha: 0.5,
                beta: 0.75,
                bias: 1.0,
                size: 4,
            },
            vec![&x],
        ),
    ];
    for (op, inputs) in cases {
        assert_close(&one(&op, &inputs), &in_f64(&op, &inputs), 2e-5);
    }
    // One of each by hand.
    let y = one(
        &Op::LayerNorm {
            axis: 1,
            epsilon: 0.0,
        },
        &[&f32s(&[1, 2], &[1.0, 3.0]), &f32s(&[2], &[2.0, 2.0])],
    );
    assert_eq!(values(&y), [-2.0, 2.0]);
    let parts = evaluate_outputs(
        &Op::LayerNorm {
            axis: 1,
            epsilon: 0.0,
        },
        &[Some(&f32s(&[1, 2], &[1.0, 5.0])), Some(&f32s(&[1], &[1.0]))],
        3,
    )
    .expect("runs");
    assert_eq!(
        (values(&parts[1]), values(&parts[2])),
        (&[3.0][..], &[0.5][..])
    );
    let y = one(
        &Op::GroupNorm {
            groups: 1,
            epsilon: 0.0,
            per_group: true,
        },
        &[
            &f32s(&[1, 2, 1], &[1.0, 3.0]),
            &f32s(&[1], &[2.0]),
            &f32s(&[1], &[1.0]),
        ],
    );
    assert_eq!(values(&y), [-1.0, 3.0]);
    let y = one(
        &Op::Lrn {
            alpha: 2.0,
            beta: 1.0,
            bias: 1.0,
            size: 2,
        },
        &[&f32s(&[1, 2, 1, 1], &[1.0, 2.0])],
    );
    assert_close(&y, &[1.0 / 6.0, 0.4], 1e-6);
}

#[test]
fn half_precision_runs_everywhere() {
    for dtype in [DType::F16, DType::BF16] {
        let x = noise(&[1, 4, 5, 5], 1);
        let half = cast(&x, dtype);
        for op in [
            Op::GlobalPool(Pool::Average {
                count_include_pad: false,
            }),
            Op::Softmax {
                axis: 1,
                kind: neap_ir::op::Softmax::Softmax,
            },
            Op::Unary(neap_ir::op::Unary::Tanh),
        ] {
            let found = cast(&one(&op, &[&half]), DType::F32);
            assert_close(&found, values(&one(&op, &[&x])), 1e-2);
        }
    }
    assert!(evaluate(&Op::MatMul, &[Some(&ramp(&[2, 3])), Some(&ramp(&[2, 3]))]).is_err());
}

#[test]
fn einsum_of_two_agrees_with_its_definition() {
    let equations: [(&str, &[usize], &[usize]); 12] = [
        ("bhid,bhjd->bhij", &[2, 3, 5, 4], &[2, 3, 6, 4]),
        ("bhij,bhjd->bihd", &[2, 3, 5, 6], &[2, 3, 6, 4]),
        ("bij,jk->bki", &[2, 3, 4], &[4, 5]),
        ("ij,kj->", &[3, 4], &[5, 4]),
        ("ij,j->i", &[3, 4], &[4]),
        ("i,j->ji", &[3], &[4]),
        ("ii,ij->j", &[3, 3], &[3, 4]),
        ("aij,ajk->ki", &[2, 3, 4], &[2, 4, 5]),
        ("ij,ij->ij", &[3, 4], &[3, 4]),
        ("ij,ij->ij", &[1, 4], &[3, 1]),
        ("...ij,...jk->...ki", &[2, 1, 3, 4], &[5, 4, 6]),
        ("abc,cd->dab", &[2, 3, 1], &[1, 5]),
    ];
    for (equation, a, b) in equations {
        let op = Op::Einsum {
            equation: equation.into(),
        };
        let (a, b) = (noise(a, 1), noise(b, 2));
        // f64 takes the plain loops.
        assert_close(&one(&op, &[&a, &b]), &in_f64(&op, &[&a, &b]), 1e-5);
    }
}

#[test]
fn large_convolutions_are_cut_into_pieces() {
    // More positions and channels than one piece takes.
    let w = Window {
        pads_end: vec![1, 0],
        ..window(&[3, 3], &[1, 1], &[1, 1], &[1, 1])
    };
    let (x, k, bias) = (
        noise(&[2, 14, 90, 60], 1),
        noise(&[20, 7, 3, 3], 2),
        noise(&[20], 3),
    );
    let conv = Op::Conv(w, 2);
    assert_close(
        &one(&conv, &[&x, &k, &bias]),
        &in_f64(&conv, &[&x, &k, &bias]),
        1e-5,
    );
    let w = window(&[3, 2], &[2, 3], &[1, 1], &[1, 0]);
    let op = Op::ConvTranspose {
        window: w,
        groups: 2,
        output_spatial: vec![181, 200],
    };
    let k = noise(&[14, 15, 3, 2], 2);
    let bias = noise(&[30], 3);
    assert_close(
        &one(&op, &[&x, &k, &bias]),
        &in_f64(&op, &[&x, &k, &bias]),
        1e-5,
    );
}
