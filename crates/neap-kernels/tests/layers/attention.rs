//! Attention against its formula in f64.

use neap_kernels::attention::{
    Attention, KeyLayout, KeyStrip, Mask, Strides, attention, attention_scratch_bytes,
    attention_strip, attention_strip_scratch_bytes,
};
use neap_kernels::simd::Isa;

use crate::support::{Random, Threads, affordable, assert_close, assert_same_bits, isas};

struct Data {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mask: Vec<f32>,
    out_len: usize,
}

/// The plain shape: `[batch][head][row][dim]` everywhere.
fn plain(batch: usize, heads: [usize; 2], len: [usize; 2], dim: [usize; 2]) -> Attention<'static> {
    let strides = |heads: usize, rows: usize, cols: usize| Strides {
        batch: heads * rows * cols,
        head: rows * cols,
        row: cols,
    };
    Attention {
        batch,
        heads_q: heads[0],
        heads_kv: heads[1],
        q_len: len[0],
        kv_len: len[1],
        head_dim: dim[0],
        v_dim: dim[1],
        scale: 1.0 / (dim[0] as f32).sqrt(),
        softcap: 0.0,
        causal: None,
        nan_is_zero: false,
        mask: None,
        q: strides(heads[0], len[0], dim[0]),
        k: strides(heads[1], len[1], dim[0]),
        v: strides(heads[1], len[1], dim[1]),
        out: strides(heads[0], len[0], dim[1]),
        keys: KeyLayout::Rows,
    }
}

/// `[batch][row][head * dim]`, as projections leave them.
fn interleaved(mut a: Attention<'static>) -> Attention<'static> {
    let strides = |heads: usize, rows: usize, cols: usize| Strides {
        batch: rows * heads * cols,
        head: cols,
        row: heads * cols,
    };
    a.q = strides(a.heads_q, a.q_len, a.head_dim);
    a.k = strides(a.heads_kv, a.kv_len, a.head_dim);
    a.v = strides(a.heads_kv, a.kv_len, a.v_dim);
    a.out = strides(a.heads_q, a.q_len, a.v_dim);
    a
}

fn transposed(mut a: Attention<'static>) -> Attention<'static> {
    a.keys = KeyLayout::Transposed;
    a.k = Strides {
        batch: a.heads_kv * a.kv_len * a.head_dim,
        head: a.kv_len * a.head_dim,
        row: a.kv_len,
    };
    a
}

fn data(a: &Attention<'_>, mask_strides: Option<[usize; 4]>, seed: u64) -> Data {
    let mut random = Random::new(seed);
    let heads = a.batch * a.heads_q;
    let mask_len = mask_strides.map_or(0, |s| {
        (a.batch - 1) * s[0]
            + (a.heads_q - 1) * s[1]
            + (a.q_len - 1) * s[2]
            + (a.kv_len - 1) * s[3]
            + 1
    });
    let mut mask = random.vec(mask_len, -3.0, 3.0);
    for value in mask.iter_mut().step_by(5).skip(1) {
        *value = f32::NEG_INFINITY;
    }
    Data {
        q: random.vec(heads * a.q_len * a.head_dim, -2.0, 2.0),
        k: random.vec(a.batch * a.heads_kv * a.kv_len * a.head_dim, -2.0, 2.0),
        v: random.vec(a.batch * a.heads_kv * a.kv_len * a.v_dim, -2.0, 2.0),
        mask,
        out_len: heads * a.q_len * a.v_dim,
    }
}

fn reference(a: &Attention<'_>, d: &Data) -> Vec<f64> {
    let mut out = vec![0.0; d.out_len];
    let at = |s: Strides, b: usize, h: usize, r: usize| b * s.batch + h * s.head + r * s.row;
    for b in 0..a.batch {
        for h in 0..a.heads_q {
            let kv = h / (a.heads_q / a.heads_kv);
            for i in 0..a.q_len {
                let seen = a.causal.map_or(a.kv_len, |n| a.kv_len.min(i + n + 1));
                let scores: Vec<f64> = (0..seen)
                    .map(|j| {
                        let dot: f64 = (0..a.head_dim)
                            .map(|c| {
                                let key = match a.keys {
                                    KeyLayout::Rows => at(a.k, b, kv, j) + c,
                                    KeyLayout::Transposed => at(a.k, b, kv, c) + j,
                                };
                                f64::from(d.q[at(a.q, b, h, i) + c]) * f64::from(d.k[key])
                            })
                            .sum();
                        let mut x = dot * f64::from(a.scale);
                        if a.softcap != 0.0 {
                            let cap = f64::from(a.softcap);
                            x = cap * (x / cap).tanh();
                        }
                        if let Some(mask) = &a.mask {
                            let s = mask.strides;
                            x += f64::from(mask.values[b * s[0] + h * s[1] + i * s[2] + j * s[3]]);
                        }
                        x
                    })
                    .collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|x| (x - top).exp()).sum();
                let weight = |x: &f64| match (x - top).exp() / sum {
                    weight if a.nan_is_zero && weight.is_nan() => 0.0,
                    weight => weight,
                };
                for c in 0..a.v_dim {
                    out[at(a.out, b, h, i) + c] = scores
                        .iter()
                        .enumerate()
                        .map(|(j, x)| weight(x) * f64::from(d.v[at(a.v, b, kv, j) + c]))
                        .sum();
                }
            }
        }
    }
    out
}

fn run(isa: Isa, workers: usize, a: &Attention<'_>, d: &Data) -> Vec<f32> {
    let mut out = vec![f32::NAN; d.out_len];
    let mut scratch = vec![f32::NAN; attention_scratch_bytes(a, workers) / 4];
    attention(
        isa,
        &Threads(workers),
        a,
        &d.q,
        &d.k,
        &d.v,
        &mut out,
        &mut scratch,
    )
    .unwrap();
    out
}

fn compare(a: &Attention<'_>, d: &Data) {
    let want = reference(a, d);
    let name = format!("{:?}", Attention { mask: None, ..*a });
    for isa in isas() {
        let got = run(isa, 1, a, d);
        assert_close(&got, &want, 5e-6, 1.0, &format!("{isa:?} {name}"));
        assert_same_bits(&got, &run(isa, 3, a, d), &name);
    }
}

#[test]
fn shapes_and_layouts() {
    let shapes = [
        plain(1, [2, 2], [197, 197], [64, 64]),
        plain(2, [3, 3], [32, 32], [32, 32]),
        plain(1, [4, 2], [17, 50], [24, 40]),
        plain(1, [2, 1], [1, 100], [64, 64]),
        plain(1, [1, 1], [7, 1], [16, 16]),
        plain(1, [1, 1], [13, 15], [5, 3]),
        plain(2, [2, 2], [30, 1100], [16, 20]),
        plain(1, [1, 1], [130, 2000], [32, 16]),
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        for shape in [shape, interleaved(shape), transposed(shape)] {
            compare(&shape, &data(&shape, None, i as u64));
        }
    }
}

#[test]
fn causal() {
    for (i, (q_len, kv_len, before)) in [
        (128, 128, 0),
        (50, 60, 10),
        (20, 10, 0),
        (40, 1500, 1460),
        (1030, 1030, 0),
        (3, 700, 697),
    ]
    .into_iter()
    .enumerate()
    {
        // The references of the long ones take time.
        let dim = if q_len > 1000 { 8 } else { 64 };
        if !affordable(q_len * kv_len) {
            continue;
        }
        let mut shape = plain(1, [2, 1], [q_len, kv_len], [dim, dim]);
        shape.causal = Some(before);
        compare(&shape, &data(&shape, None, 50 + i as u64));
        let shape = transposed(shape);
        compare(&shape, &data(&shape, None, 60 + i as u64));
    }
}

#[test]
fn masks() {
    let shape = plain(2, [3, 3], [20, 37], [32, 24]);
    let (q, k) = (20, 37);
    for (i, strides) in [
        [3 * q * k, q * k, k, 1],
        [k, 0, 0, 1],
        [0, 0, k, 1],
        [0, 0, 1, q],
        [0, 1, 3, 0],
        [0, 0, 2 * k, 2],
    ]
    .into_iter()
    .enumerate()
    {
        for causal in [None, Some(17)] {
            let mut d = data(&shape, Some(strides), 70 + i as u64);
            if strides[3] == 0 {
                d.mask.iter_mut().for_each(|x| *x = x.max(-3.0)); // no row without keys
            }
            let mask = d.mask.clone();
            let mask = Some(Mask {
                values: &mask,
                strides,
            });
            compare(
                &Attention {
                    mask,
                    causal,
                    softcap: 0.0,
                    ..shape
                },
                &d,
            );
            compare(
                &Attention {
                    mask,
                    causal,
                    softcap: 2.5,
                    ..shape
                },
                &d,
            );
        }
    }
    let long = plain(1, [1, 1], [9, 1200], [16, 16]);
    let d = data(&long, Some([0, 0, 1200, 1]), 90);
    let mask = d.mask.clone();
    compare(
        &Attention {
            mask: Some(Mask {
                values: &mask,
                strides: [0, 0, 1200, 1],
            }),
            ..long
        },
        &d,
    );
}

/// Where the largest score is rounded by more than a power of e can be, its key still takes all.
#[test]
fn scores_of_any_size() {
    for (seed, size) in [(1, 1e2), (2, 1e4), (3, 1e6), (4, 1e9)] {
        for shape in [
            plain(1, [2, 2], [9, 9], [8, 8]),
            plain(1, [1, 1], [5, 1100], [16, 20]),
        ] {
            let mut d = data(&shape, None, seed);
            d.q.iter_mut().chain(&mut d.k).for_each(|x| *x *= size);
            let want = reference(&shape, &d);
            for isa in isas() {
                let got = run(isa, 1, &shape, &d);
                let near = |(got, want): (&f32, &f64)| (f64::from(*got) - want).abs() < 0.05;
                let all = got.iter().zip(&want).filter(|&pair| !near(pair)).count();
                // Two keys whose scores are equal but for rounding may share a row, or one of them may take all of it.
                assert!(
                    got.iter().all(|y| y.is_finite()) && all <= got.len() / 20,
                    "{isa:?} {size}: {all}"
                );
            }
        }
    }
}

#[test]
fn rows_without_keys_are_nan() {
    let shape = plain(1, [1, 1], [2, 5], [8, 8]);
    let d = data(&shape, None, 1);
    let mut values = [0.0; 10];
    values[..5].fill(f32::NEG_INFINITY);
    let masked = Attention {
        mask: Some(Mask {
            values: &values,
            strides: [0, 0, 5, 1],
        }),
        ..shape
    };
    for isa in isas() {
        let out = run(isa, 1, &masked, &d);
        assert!(
            out[..8].iter().all(|x| x.is_nan()) && out[8..].iter().all(|x| x.is_finite()),
            "{out:?}"
        );
    }
}

/// Queries that see no key, and what is no number among queries, keys and values.
#[test]
fn rows_of_nan_are_zeros_where_asked() {
    for (q_len, kv_len, v_dim) in [(7, 5, 8), (30, 64, 20), (14, 1200, 33)] {
        let shape = plain(1, [2, 1], [q_len, kv_len], [8, v_dim]);
        for case in 0..4 {
            let strides = [0, 0, kv_len, 1];
            let mut d = data(&shape, Some(strides), 300 + case);
            let mut values = d.mask.clone();
            values[..kv_len].fill(f32::NEG_INFINITY);
            values[(q_len - 1) * kv_len..].fill(f32::NEG_INFINITY);
            // A row of which only the last block has a key.
            values[2 * kv_len..3 * kv_len - 1].fill(f32::NEG_INFINITY);
            values[3 * kv_len - 1] = 0.5;
            d.q[8] = f32::NAN;
            match case {
                1 => d.q[3 * 8] = f32::INFINITY,
                2 => d.v[v_dim + 2] = f32::INFINITY,
                3 => d.k[8 * (kv_len - 1)] = f32::NAN,
                _ => {}
            }
            let mask = Some(Mask {
                values: &values,
                strides,
            });
            for shape in [shape, interleaved(shape)] {
                let guarded = Attention {
                    mask,
                    nan_is_zero: true,
                    ..shape
                };
                let want = reference(&guarded, &d);
                for isa in isas() {
                    let got = run(isa, 1, &guarded, &d);
                    let same = got.iter().zip(&want).all(|(&got, &want)| {
                        let got = f64::from(got);
                        got.is_nan() && want.is_nan() || got == want || (got - want).abs() <= 1e-5
                    });
                    assert!(same, "{isa:?} {q_len} {kv_len} {case}: {got:?} {want:?}");
                    assert_same_bits(&got, &run(isa, 3, &guarded, &d), "threads");
                }
            }
        }
    }
}

#[test]
fn bad_calls_are_refused() {
    let shape = plain(1, [2, 2], [4, 4], [8, 8]);
    let d = data(&shape, None, 1);
    let mut out = vec![0.0; d.out_len];
    let mut scratch = vec![0.0; attention_scratch_bytes(&shape, 1) / 4];
    let mut call = |a: &Attention<'_>, q: &[f32], scratch: &mut [f32]| {
        attention(isas()[0], &Threads(1), a, q, &d.k, &d.v, &mut out, scratch).is_err()
    };
    assert!(!call(&shape, &d.q, &mut scratch));
    assert!(call(&shape, &d.q[1..], &mut scratch));
    assert!(call(&shape, &d.q, &mut []));
    let overlapping = Attention {
        out: Strides {
            row: 7,
            ..shape.out
        },
        ..shape
    };
    assert!(call(&overlapping, &d.q, &mut scratch));
    assert!(call(
        &Attention {
            heads_kv: 3,
            ..shape
        },
        &d.q,
        &mut scratch
    ));
    assert!(call(&Attention { kv_len: 0, ..shape }, &d.q, &mut scratch));
    assert!(call(
        &Attention {
            q: Strides {
                batch: 0,
                head: usize::MAX,
                row: 8
            },
            ..shape
        },
        &d.q,
        &mut scratch
    ));
}

/// As [`run`], over strips of keys that end at these: each strip's keys, values and mask lie by themselves.
fn run_in_strips(isa: Isa, a: &Attention<'_>, d: &Data, ends: &[usize]) -> Vec<f32> {
    let mut out = vec![f32::NAN; d.out_len];
    let mut state = vec![f32::NAN; 2 * a.batch * a.heads_q * a.q_len];
    let mut start = 0;
    for &end in ends {
        let strip = KeyStrip {
            start,
            total: a.kv_len,
        };
        let kv_len = end - start;
        let mut own = Attention { kv_len, ..*a };
        // Of whole keys or values, some, where these are so many apart.
        let some = |all: &[f32], s: Strides, len: usize, within: &dyn Fn(usize) -> usize| {
            let mut made = vec![f32::NAN; len];
            let at =
                |s: Strides, b: usize, h: usize, r: usize| b * s.batch + h * s.head + r * s.row;
            let compact = |rows: usize, cols: usize| Strides {
                batch: a.heads_kv * rows * cols,
                head: rows * cols,
                row: cols,
            };
            let (rows, cols, first) = (within(0), within(1), within(2));
            let to = compact(rows, cols);
            for b in 0..a.batch {
                for h in 0..a.heads_kv {
                    for r in 0..rows {
                        let from = at(s, b, h, r) + first;
                        let to = at(to, b, h, r);
                        made[to..to + cols].copy_from_slice(&all[from..from + cols]);
                    }
                }
            }
            (made, to)
        };
        let heads = a.batch * a.heads_kv * kv_len;
        let k = match a.keys {
            KeyLayout::Rows => some(&d.k, a.k, heads * a.head_dim, &|i| {
                [kv_len, a.head_dim, start * a.k.row][i]
            }),
            KeyLayout::Transposed => some(&d.k, a.k, heads * a.head_dim, &|i| {
                [a.head_dim, kv_len, start][i]
            }),
        };
        let v = some(&d.v, a.v, heads * a.v_dim, &|i| {
            [kv_len, a.v_dim, start * a.v.row][i]
        });
        (own.k, own.v) = (k.1, v.1);
        own.mask = a.mask.map(|mask| Mask {
            values: &mask.values[start * mask.strides[3]..],
            ..mask
        });
        let bytes = attention_strip_scratch_bytes(&own, strip, 3);
        let mut scratch = vec![f32::NAN; bytes / 4];
        attention_strip(
            isa,
            &Threads(3),
            &own,
            strip,
            [&d.q, &k.0, &v.0],
            &mut out,
            &mut state,
            &mut scratch,
        )
        .unwrap();
        start = end;
    }
    assert_eq!(start, a.kv_len);
    out
}

#[test]
fn strips_of_keys_give_the_bits_of_all() {
    let shapes = [
        plain(1, [2, 2], [30, 1100], [16, 20]),
        plain(2, [4, 2], [13, 1537], [24, 40]),
        plain(1, [3, 1], [1, 2048], [5, 3]),
        plain(1, [1, 1], [130, 2050], [32, 16]),
        // Short ones are one block.
        plain(1, [2, 1], [17, 1000], [16, 8]),
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        for (j, shape) in [shape, interleaved(shape), transposed(shape)]
            .into_iter()
            .enumerate()
        {
            let (q, k) = (shape.q_len, shape.kv_len);
            for strides in [
                None,
                Some([0, 0, k, 1]),
                Some([0, q * k, 0, 1]),
                Some([0, 1, 3, 0]),
            ] {
                let d = data(&shape, strides, 400 + (3 * i + j) as u64);
                let mask = strides.map(|strides| Mask {
                    values: &d.mask,
                    strides,
                });
                let shape = Attention { mask, ..shape };
                let every = |keys: usize| (keys..k).step_by(keys).chain([k]);
                let mut cuts = vec![vec![k]];
                if k > 1024 {
                    cuts.extend([512, 1024].map(|keys| every(keys).collect()));
                    cuts.push(vec![1024, k]);
                }
                for isa in isas() {
                    let want = run(isa, 2, &shape, &d);
                    for cuts in &cuts {
                        let name = format!("{isa:?} {i} {j} {strides:?} {cuts:?}");
                        assert_same_bits(&run_in_strips(isa, &shape, &d, cuts), &want, &name);
                    }
                }
            }
        }
    }
}

#[test]
fn strips_that_cut_blocks_are_refused() {
    let d = data(&plain(1, [1, 1], [2, 2000], [8, 8]), None, 1);
    let call = |shape: Attention<'_>, strip: KeyStrip, state: usize| {
        let bytes = attention_strip_scratch_bytes(&shape, strip, 1);
        let (mut out, mut state) = (vec![0.0; d.out_len], vec![0.0; state]);
        let operands = [&d.q[..], &d.k, &d.v];
        let (out, state, scratch) = (&mut out, &mut state, &mut vec![0.0; bytes / 4]);
        attention_strip(
            isas()[0],
            &Threads(1),
            &shape,
            strip,
            operands,
            out,
            state,
            scratch,
        )
    };
    let of = |keys: usize| plain(1, [1, 1], [2, keys], [8, 8]);
    let strip = |start, total| KeyStrip { start, total };
    assert!(call(of(512), strip(512, 2000), 4).is_ok());
    assert!(call(of(464), strip(1536, 2000), 4).is_ok());
    assert!(call(of(512), strip(512, 2000), 3).is_err());
    assert!(call(of(500), strip(512, 2000), 4).is_err());
    assert!(call(of(512), strip(500, 2000), 4).is_err());
    assert!(call(of(512), strip(1536, 2000), 4).is_err());
    assert!(call(of(512), strip(usize::MAX, 2000), 4).is_err());
    assert!(call(of(512), strip(0, 1000), 4).is_err());
    let causal = Attention {
        causal: Some(0),
        ..of(512)
    };
    assert!(call(causal, strip(512, 2000), 4).is_err());
}
