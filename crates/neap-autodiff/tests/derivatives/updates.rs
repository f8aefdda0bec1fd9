//! Optimisers' steps against their definitions, and dropout.

use crate::difference::{Random, check, compare, literal, noise, values};
use neap_ir::op::Generator;
use neap_ir::update::Update;
use neap_ir::{DType, Literal, Op};
use neap_ops::evaluate_outputs;

const COUNT: usize = 37;

/// Several steps with random gradients; `rule(w, g, moments, rate, t)` is the definition in f64.
fn steps(update: Update, rule: impl Fn(&mut f64, f64, &mut [f64; 2], f64, i32)) {
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-6)] {
        let mut random = Random(17);
        let mut expected = random.between(-1.0, 1.0, COUNT);
        let mut moments = vec![[0.0; 2]; COUNT];
        let mut state = vec![literal(dtype, &[COUNT], &expected)];
        for _ in 0..update.moments() {
            state.push(Literal::zeros(dtype, &[COUNT]));
        }
        for t in 1..=5 {
            let rate = 0.1 / f64::from(t);
            let gradient = random.between(-1.0, 1.0, COUNT);
            for i in 0..COUNT {
                rule(&mut expected[i], gradient[i], &mut moments[i], rate, t);
            }
            let gradient = literal(dtype, &[COUNT], &gradient);
            let rate = literal(dtype, &[], &[rate]);
            let step = Literal::from_i64(&[], &[t.into()]);
            let mut inputs = vec![Some(&state[0]), Some(&gradient), Some(&rate), Some(&step)];
            inputs.extend(state[1..].iter().map(Some));
            let outputs = 1 + update.moments();
            state = evaluate_outputs(&Op::Update(update), &inputs, outputs).expect("runs");
            let name = format!("{update:?} {dtype}");
            compare(&name, "parameter", &expected, &values(&state[0]), tolerance);
            for (k, found) in state[1..].iter().enumerate() {
                let kept: Vec<f64> = moments.iter().map(|m| m[k]).collect();
                compare(&name, "moment", &kept, &values(found), tolerance);
            }
        }
    }
}

/// Updates of parts, one after the other, have the bits of the whole update.
#[test]
fn parts() {
    let mut random = Random(3);
    let mut drawn = |count| literal(DType::F32, &[count], &random.between(0.1, 1.0, count));
    let (w, g, m, v) = (drawn(COUNT), drawn(COUNT), drawn(COUNT), drawn(COUNT));
    let rate = literal(DType::F32, &[], &[0.01]);
    let step = Literal::from_i64(&[], &[3]);
    let update = Update::AdamW {
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        decay: 0.1,
    };
    let run = |op: &Op, tensors: [&Literal; 4]| {
        let [w, g, m, v] = tensors.map(Some);
        let inputs = [w, g, Some(&rate), Some(&step), m, v];
        evaluate_outputs(op, &inputs, 3).expect("runs")
    };
    let whole = run(&Op::Update(update), [&w, &g, &m, &v]);
    let mut current = w;
    let mut moments = [Vec::new(), Vec::new()];
    for (start, length) in [(0, 5), (5, 31), (36, 1)] {
        let of = |all: &Literal| {
            let part = &all.bytes()[4 * start..][..4 * length];
            Literal::from_bytes(DType::F32, &[length], part).expect("whole numbers")
        };
        let part = [&of(&g), &of(&m), &of(&v)];
        let op = Op::UpdatePart { update, start };
        let results = run(&op, [&current, part[0], part[1], part[2]]);
        for (all, result) in moments.iter_mut().zip(&results[1..]) {
            all.extend_from_slice(result.bytes());
        }
        current = results.into_iter().next().expect("a parameter");
    }
    assert_eq!(current.bytes(), whole[0].bytes());
    assert_eq!(moments[0], whole[1].bytes());
    assert_eq!(moments[1], whole[2].bytes());
}

#[test]
fn sgd() {
    for (momentum, nesterov, decay) in [
        (0.0, false, 0.0),
        (0.0, false, 0.1),
        (0.9, false, 0.0),
        (0.9, true, 0.05),
    ] {
        let update = Update::Sgd {
            momentum,
            nesterov,
            decay,
        };
        steps(update, |w, g, m, rate, _| {
            let g = g + decay * *w;
            m[0] = momentum * m[0] + g;
            *w -= rate * if nesterov { g + momentum * m[0] } else { m[0] };
        });
    }
}

#[test]
fn adam_with_decoupled_decay() {
    for decay in [0.0, 0.01] {
        let update = Update::AdamW {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            decay,
        };
        steps(update, |w, g, m, rate, t| {
            *w -= rate * decay * *w;
            m[0] = 0.9 * m[0] + 0.1 * g;
            m[1] = 0.999 * m[1] + 0.001 * g * g;
            let first = m[0] / (1.0 - 0.9f64.powi(t));
            let second = m[1] / (1.0 - 0.999f64.powi(t));
            *w -= rate * first / (second.sqrt() + 1e-8);
        });
    }
}

#[test]
fn adagrad() {
    let update = Update::Adagrad {
        epsilon: 1e-6,
        rate_decay: 0.1,
        decay: 0.01,
    };
    steps(update, |w, g, m, rate, t| {
        let g = g + 0.01 * *w;
        m[0] += g * g;
        *w -= rate / (1.0 + 0.1 * f64::from(t - 1)) * g / (m[0].sqrt() + 1e-6);
    });
}

fn dropped(ratio: f32, stream: u64, seed: i64, count: usize) -> (Vec<f64>, Vec<u8>) {
    dropped_by(Generator::Counter { stream }, ratio, seed, count)
}

fn dropped_by(generator: Generator, ratio: f32, seed: i64, count: usize) -> (Vec<f64>, Vec<u8>) {
    let x = literal(DType::F32, &[count], &vec![1.0; count]);
    let seed = Literal::from_i64(&[], &[seed]);
    let op = Op::Dropout { ratio, generator };
    let results = evaluate_outputs(&op, &[Some(&x), Some(&seed)], 2).expect("runs");
    (values(&results[0]), results[1].bytes().to_vec())
}

#[test]
fn dropout_keeps_its_share_and_its_mean() {
    let generators = [Generator::Counter { stream: 0 }, Generator::Twister];
    let cases = [0.0, 0.25, 0.5, 0.9].map(|ratio| generators.map(|g| (ratio, g)));
    for (ratio, generator) in cases.into_iter().flatten() {
        let count = 40_003;
        let (y, kept) = dropped_by(generator, ratio, 5, count);
        let scale = f64::from(1.0 / (1.0 - ratio));
        for (y, kept) in y.iter().zip(&kept) {
            let expected = if *kept == 1 { scale } else { 0.0 };
            assert!((y - expected).abs() < 1e-6 * scale);
        }
        let share = kept.iter().map(|&k| f64::from(k)).sum::<f64>() / count as f64;
        let expected = f64::from(1.0 - ratio);
        // Five standard deviations.
        let allowed = 5.0 * (expected * (1.0 - expected) / count as f64).sqrt();
        assert!((share - expected).abs() <= allowed, "{share} of {expected}");
    }
}

#[test]
fn what_dropout_keeps_follows_from_seed_and_stream() {
    let masks: Vec<Vec<u8>> = [(0, 1), (0, 2), (1, 1)]
        .map(|(stream, seed)| dropped(0.5, stream, seed, 1000).1)
        .to_vec();
    assert_eq!(masks[0], dropped(0.5, 0, 1, 1000).1);
    // A shorter tensor sees the beginning.
    assert_eq!(masks[0][..99], dropped(0.5, 0, 1, 99).1);
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        let equal = masks[a]
            .iter()
            .zip(&masks[b])
            .filter(|(x, y)| x == y)
            .count();
        assert!((400..600).contains(&equal), "{equal} of 1000 are equal");
    }
}

#[test]
fn dropout_drops_the_same_on_the_way_back() {
    let seed = crate::difference::index(&[], &[9]);
    check(
        Op::Dropout {
            ratio: 0.4,
            generator: Generator::Counter { stream: 3 },
        },
        &[noise(&[5, 7]), seed],
    );
}
