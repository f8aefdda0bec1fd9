//! `Attention` of opsets 23 to 25, and `FlexAttention`.

use super::{floats, near, ramp, run};
use crate::support::*;
use neap_ir::{DType, Literal};

/// `[B, H, S, D]` by the definition; `added(b, h, i, j)` goes on top of the score. Rows without a key are zero.
fn attention(
    [q, k, v]: [&Literal; 3],
    cap: f32,
    added: impl Fn(usize, usize, usize, usize) -> f32,
) -> Vec<f32> {
    let &[batch, heads, queries, depth] = q.shape() else {
        panic!("four axes")
    };
    let &[_, kv_heads, keys, value_depth] = v.shape() else {
        panic!("four axes")
    };
    let (q, k, v) = (floats(q), floats(k), floats(v));
    let mut y = Vec::new();
    for (b, h, i) in (0..batch * heads * queries)
        .map(|u| (u / (heads * queries), u / queries % heads, u % queries))
    {
        let own = b * kv_heads + h / (heads / kv_heads);
        let row = &q[((b * heads + h) * queries + i) * depth..][..depth];
        let scores: Vec<f32> = (0..keys)
            .map(|j| {
                let key = &k[(own * keys + j) * depth..][..depth];
                let score: f32 = row.iter().zip(key).map(|(a, b)| a * b).sum();
                let score = score / (depth as f32).sqrt();
                let score = if cap > 0.0 {
                    cap * (score / cap).tanh()
                } else {
                    score
                };
                score + added(b, h, i, j)
            })
            .collect();
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f32 = weights.iter().sum();
        for d in 0..value_depth {
            let at = |j: usize| v[(own * keys + j) * value_depth + d];
            let total: f32 = (0..keys).map(|j| weights[j] * at(j)).sum();
            y.push(if most == f32::NEG_INFINITY {
                0.0
            } else {
                total / sum
            });
        }
    }
    y
}

fn forbidden(is_forbidden: bool) -> f32 {
    if is_forbidden { f32::NEG_INFINITY } else { 0.0 }
}

fn four(name: &str, shape: [usize; 4]) -> (String, [i64; 4], Literal) {
    let step = 0.01 + name.len() as f32 * 0.003;
    (name.into(), shape.map(|d| d as i64), ramp(&shape, step))
}

#[test]
fn a_window_and_lengths_leave_keys_out() {
    // Two heads of queries for each of keys; the second of the batch has fewer keys than queries.
    let [q, k, v] = [
        four("q", [2, 4, 3, 8]),
        four("k", [2, 2, 6, 8]),
        four("v", [2, 2, 6, 5]),
    ];
    let lengths = [5i64, 2];
    for (causal, left, right) in [(1, 2, -1), (0, 1, 1), (1, -1, -1), (0, -1, -1)] {
        let attributes = [
            ("is_causal", Attr::Int(causal)),
            ("left_window_size", Attr::Int(left)),
            ("right_window_size", Attr::Int(right)),
        ];
        let mut model = Model::new(25);
        for (name, dims, _) in [&q, &k, &v] {
            model = model.input(name, FLOAT, dims);
        }
        let names = ["q", "k", "v", "", "", "", "n"];
        let model = model
            .input("n", INT64, &[2])
            .node("Attention", &names, &["y"], &attributes)
            .output("y");
        let inputs = [
            q.2.clone(),
            k.2.clone(),
            v.2.clone(),
            Literal::from_i64(&[2], &lengths),
        ];
        let found = run(&model, &inputs);
        let expected = attention([&q.2, &k.2, &v.2], 0.0, |b, _, i, j| {
            let back = lengths[b] - 3 + i as i64 - j as i64;
            forbidden(
                j as i64 >= lengths[b]
                    || (causal == 1 && back < 0)
                    || (left >= 0 && back > left)
                    || (right >= 0 && -back > right),
            )
        });
        near(floats(&found[0]), &expected);
    }
}

#[test]
fn scores_are_given_as_asked_and_past_keys_come_first() {
    let (queries, before, new) = (3, 4, 3);
    let mask: Vec<f32> = (0..queries * (before + new))
        .map(|i| i as f32 * 0.05)
        .collect();
    let rows = |name: &str, rows: usize| {
        let shape = [1, rows, 2 * 4];
        ramp(&shape, 0.01 + name.len() as f32 * 0.002)
    };
    let (q, k, v) = (rows("q", queries), rows("kk", new), rows("vvv", new));
    let (past_k, past_v) = (
        ramp(&[1, 2, before, 4], 0.02),
        ramp(&[1, 2, before, 4], 0.03),
    );
    let heads_first = |x: &Literal| {
        let (rows, x) = (x.shape()[1], floats(x));
        let at = |i: usize| x[(i / 4 % rows) * 8 + i / (4 * rows) * 4 + i % 4];
        Literal::from_f32(
            &[1, 2, rows, 4],
            &(0..2 * rows * 4).map(at).collect::<Vec<_>>(),
        )
    };
    let behind = |past: &Literal, new: &Literal| {
        let (past, new) = (floats(past), floats(&heads_first(new)).to_vec());
        let mut all = Vec::new();
        for head in 0..2 {
            all.extend(&past[head * before * 4..][..before * 4]);
            all.extend(&new[head * 3 * 4..][..3 * 4]);
        }
        Literal::from_f32(&[1, 2, before + 3, 4], &all)
    };
    let model = |mode: i64| {
        let names = ["q", "k", "v", "m", "pk", "pv"];
        let attributes = [
            ("q_num_heads", Attr::Int(2)),
            ("kv_num_heads", Attr::Int(2)),
            ("is_causal", Attr::Int(1)),
            ("softcap", Attr::Float(0.7)),
            ("qk_matmul_output_mode", Attr::Int(mode)),
        ];
        Model::new(24)
            .input("q", FLOAT, &[1, 3, 8])
            .input("k", FLOAT, &[1, 3, 8])
            .input("v", FLOAT, &[1, 3, 8])
            .input("m", FLOAT, &[3, 7])
            .input("pk", FLOAT, &[1, 2, 4, 4])
            .input("pv", FLOAT, &[1, 2, 4, 4])
            .node("Attention", &names, &["y", "nk", "nv", "s"], &attributes)
            .output("y")
            .output("nk")
            .output("nv")
            .output("s")
    };
    let inputs = [
        q.clone(),
        k.clone(),
        v.clone(),
        Literal::from_f32(&[3, 7], &mask),
        past_k.clone(),
        past_v.clone(),
    ];
    let (all_k, all_v) = (behind(&past_k, &k), behind(&past_v, &v));
    let own = heads_first(&q);
    let added = |_, _, i: usize, j: usize| mask[i * 7 + j] + forbidden(j > before + i);
    let expected = attention([&own, &all_k, &all_v], 0.7, added);
    let mut by_mode = Vec::new();
    for mode in 0..4 {
        let found = run(&model(mode), &inputs);
        let y = heads_first(&found[0]);
        near(floats(&y), &expected);
        assert_eq!((&found[1], &found[2]), (&all_k, &all_v));
        assert_eq!(found[3].shape(), [1, 2, 3, 7]);
        by_mode.push(floats(&found[3]).to_vec());
    }
    for (at, &raw) in by_mode[0].iter().enumerate() {
        let (i, j) = (at / 7 % 3, at % 7);
        let capped = 0.7 * (raw / 0.7).tanh();
        near(&[by_mode[1][at]], &[capped]);
        let biased = capped + added(0, 0, i, j);
        assert!(by_mode[2][at] == biased || (by_mode[2][at] - biased).abs() < 1e-5);
    }
    for row in by_mode[3].chunks(7) {
        near(&[row.iter().sum()], &[1.0]);
    }
}

#[test]
fn rows_without_a_key_are_zero() {
    let shape = [1, 2, 3, 4];
    let x = ramp(&shape, 0.02);
    let dims = shape.map(|d| d as i64);
    // The first row sees nothing: the mask leaves it a key that comes later.
    let mask = [0u8, 1, 1, 1, 1, 0, 1, 0, 1];
    for opset in [23, 24] {
        let model = Model::new(opset)
            .input("x", FLOAT, &dims)
            .input("m", BOOL, &[3, 3])
            .node(
                "Attention",
                &["x", "x", "x", "m"],
                &["y"],
                &[("is_causal", Attr::Int(1))],
            )
            .output("y");
        let given = Literal::from_bytes(DType::Bool, &[3, 3], &mask).expect("fits");
        let found = run(&model, &[x.clone(), given]);
        let expected = attention([&x, &x, &x], 0.0, |_, _, i, j| {
            forbidden(j > i || mask[i * 3 + j] == 0)
        });
        assert!(expected[..4].iter().all(|&y| y == 0.0));
        near(floats(&found[0]), &expected);
    }
}

#[test]
fn masks_that_may_mean_two_things_are_refused() {
    let model = |opset: i64, mask: &[i64]| {
        Model::new(opset)
            .input("x", FLOAT, &[1, 2, 3, 4])
            .input("m", FLOAT, mask)
            .node("Attention", &["x", "x", "x", "m"], &["y"], &[])
            .output("y")
    };
    let error = model(24, &[3, 1]).error();
    assert!(error.contains("a mask for one of several keys"), "{error}");
    assert!(model(23, &[3, 1]).open().is_ok());
    let error = model(23, &[3, 2]).error();
    assert!(error.contains("does not fit scores"), "{error}");
}

#[test]
fn graphs_of_the_model_change_scores_and_weights() {
    let (q, k, v) = (
        ramp(&[1, 2, 3, 4], 0.02),
        ramp(&[1, 2, 5, 4], 0.03),
        ramp(&[1, 2, 5, 4], 0.01),
    );
    let graph = |op: &str, name: &str| {
        let dims: Vec<Dim> = [1, 2, 3, 5].map(Ok).to_vec();
        Bytes::default()
            .message(1, &node(op, &[name], &["changed"], &[]))
            .string(2, name)
            .message(11, &value_info(name, FLOAT, &dims))
            .message(12, &value_info("changed", FLOAT, &dims))
    };
    let preview = Bytes::default().string(1, "ai.onnx.preview").int(2, 1);
    let attributes = [
        ("score_mod", Attr::Graph(graph("Tanh", "s"))),
        ("prob_mod", Attr::Graph(graph("Sqrt", "p"))),
    ];
    let mut model = Model::new(26)
        .input("q", FLOAT, &[1, 2, 3, 4])
        .input("k", FLOAT, &[1, 2, 5, 4])
        .input("v", FLOAT, &[1, 2, 5, 4]);
    model.rest = model.rest.message(8, &preview);
    let inner = node_in(
        "ai.onnx.preview",
        "FlexAttention",
        &["q", "k", "v"],
        &["y"],
        &attributes,
    );
    let found = run(
        &model.raw_node(&inner).output("y"),
        &[q.clone(), k.clone(), v.clone()],
    );
    let (q, k, v) = (floats(&q), floats(&k), floats(&v));
    let mut expected = Vec::new();
    for (h, i) in (0..6).map(|u| (u / 3, u % 3)) {
        let score = |j: usize| -> f32 {
            let pairs = q[(h * 3 + i) * 4..].iter().zip(&k[(h * 5 + j) * 4..]);
            let sum: f32 = pairs.take(4).map(|(a, b)| a * b).sum();
            (sum / 2.0).tanh().exp()
        };
        let weights: Vec<f32> = (0..5).map(score).collect();
        let sum: f32 = weights.iter().sum();
        for d in 0..4 {
            let at = |j: usize| (weights[j] / sum).sqrt() * v[(h * 5 + j) * 4 + d];
            expected.push((0..5).map(at).sum::<f32>());
        }
    }
    near(floats(&found[0]), &expected);
}
