//! Sampling: distributions, slices, penalties, seeds.

use neap_tokenizer::sample::{PenaltyOptions, Row, Sampler, Sampling};
use proptest::prelude::*;

fn offer(row: &mut Row, logits: &[f32], slice: usize) {
    for (index, part) in logits.chunks(slice).enumerate() {
        row.offer((index * slice) as u32, part);
    }
}

fn draw(sampler: &mut Sampler, logits: &[f32]) -> u32 {
    let mut row = Row::default();
    sampler.begin(&mut row, &[]);
    offer(&mut row, logits, 3);
    sampler.choose(&mut row).unwrap().id
}

fn warm() -> Sampling {
    Sampling {
        temperature: 1.0,
        top_k: 0,
        seed: 7,
        ..Sampling::default()
    }
}

/// The probabilities of what may be drawn, by sorting and adding up.
fn probabilities(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    if sampling.top_k > 0 {
        ids.truncate(sampling.top_k);
    }
    let softmax = |ids: &[usize], temperature: f32| {
        let weights: Vec<f64> = ids
            .iter()
            .map(|id| f64::from(logits[*id] / temperature).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        weights
            .into_iter()
            .map(|weight| weight / total)
            .collect::<Vec<f64>>()
    };
    let shares = softmax(&ids, 1.0);
    let before = |at: usize| shares[..at].iter().sum::<f64>();
    let kept = (0..ids.len()).take_while(|at| {
        *at == 0
            || before(*at) < f64::from(sampling.top_p)
                && shares[*at] >= f64::from(sampling.min_p) * shares[0]
    });
    let kept = kept.count();
    let mut all = vec![0.0; logits.len()];
    for (id, share) in ids[..kept]
        .iter()
        .zip(softmax(&ids[..kept], sampling.temperature))
    {
        all[*id] = share;
    }
    all
}

#[test]
fn draws_are_distributed_as_the_options_say() {
    let logits = [1.0, 0.2, -0.5, 2.0, 1.9, -3.0, 0.0, 1.5];
    for sampling in [
        warm(),
        Sampling {
            temperature: 0.6,
            ..warm()
        },
        Sampling {
            temperature: 1.7,
            top_k: 5,
            ..warm()
        },
        Sampling {
            top_p: 0.8,
            ..warm()
        },
        Sampling {
            min_p: 0.3,
            temperature: 2.0,
            ..warm()
        },
        Sampling {
            top_k: 6,
            top_p: 0.95,
            min_p: 0.05,
            temperature: 0.8,
            ..warm()
        },
    ] {
        let expected = probabilities(&sampling, &logits);
        let mut sampler = Sampler::new(sampling.clone());
        let draws = 40_000;
        let mut counts = [0.0; 8];
        for _ in 0..draws {
            counts[draw(&mut sampler, &logits) as usize] += 1.0;
        }
        let squares = counts
            .iter()
            .zip(&expected)
            .map(|(count, share)| match *share {
                0.0 => {
                    if *count == 0.0 {
                        0.0
                    } else {
                        f64::INFINITY
                    }
                }
                share => (count - share * f64::from(draws)).powi(2) / (share * f64::from(draws)),
            });
        // Seven degrees of freedom: one of a thousand right samplers would be above it. The seed is fixed.
        let chi_square: f64 = squares.sum();
        assert!(
            chi_square < 24.3,
            "{sampling:?}: {chi_square}, {counts:?} for {expected:?}"
        );
    }
}

proptest! {
    #[test]
    fn the_most_likely_token_is_the_first_of_the_greatest(
        logits in prop::collection::vec(prop_oneof![-9.0f32..9.0, Just(3.0), Just(f32::NAN), Just(f32::NEG_INFINITY)], 0..200), slice in 1usize..50,
    ) {
        let mut sampler = Sampler::new(Sampling::default());
        let mut row = Row::default();
        sampler.begin(&mut row, &[]);
        offer(&mut row, &logits, slice);
        let most = logits.iter().copied().filter(|x| !x.is_nan()).fold(f32::NEG_INFINITY, f32::max);
        let expected = logits.iter().position(|x| *x == most && most > f32::NEG_INFINITY);
        prop_assert_eq!(sampler.choose(&mut row).map(|choice| choice.id as usize), expected);
    }

    #[test]
    fn slices_do_not_matter(
        logits in prop::collection::vec(-9.0f32..9.0, 1..300), slice in 1usize..60, top_k in 0usize..20, seed: u64,
        recent in prop::collection::vec(0u32..300, 0..20),
    ) {
        let sampling = Sampling {
            temperature: 0.9, top_k, top_p: 0.9, min_p: 0.01, seed, logprobs: Some(3),
            penalties: PenaltyOptions { repeat: 1.3, frequency: 0.2, presence: 0.1, last: 16 },
        };
        let choose = |slice: usize| {
            let mut sampler = Sampler::new(sampling.clone());
            recent.iter().for_each(|id| sampler.accept(*id));
            let mut row = Row::default();
            sampler.begin(&mut row, &[]);
            offer(&mut row, &logits, slice);
            sampler.choose(&mut row)
        };
        prop_assert_eq!(choose(slice), choose(logits.len()));
    }

    #[test]
    fn log_probabilities_are_those_of_all_tokens(logits in prop::collection::vec(-50.0f32..50.0, 1..100)) {
        let mut sampler = Sampler::new(Sampling { logprobs: Some(2), ..Sampling::default() });
        let mut row = Row::default();
        sampler.begin(&mut row, &[]);
        offer(&mut row, &logits, 7);
        let choice = sampler.choose(&mut row).unwrap();
        let most = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
        let total = most + logits.iter().map(|x| (f64::from(*x) - most).exp()).sum::<f64>().ln();
        let logprobs = choice.logprobs.unwrap();
        prop_assert!((logprobs.chosen - (most - total)).abs() < 1e-9);
        prop_assert_eq!(logprobs.likely.len(), logits.len().min(2));
        for (id, logprob) in logprobs.likely {
            prop_assert!((logprob - (f64::from(logits[id as usize]) - total)).abs() < 1e-9);
        }
    }
}

#[test]
fn tokens_that_were_there_are_less_likely() {
    let options = PenaltyOptions {
        repeat: 2.0,
        frequency: 0.5,
        presence: 0.25,
        last: 3,
    };
    let mut sampler = Sampler::new(Sampling {
        penalties: options,
        ..Sampling::default()
    });
    // The first one is forgotten.
    for id in [3, 0, 0, 1] {
        sampler.accept(id);
    }
    let logits = [4.0, -1.0, 0.74, -9.0];
    // 4 / 2 - 2 * 0.5 - 0.25 = 0.75, and -1 * 2 - 0.5 - 0.25.
    assert_eq!(draw(&mut sampler, &logits), 0);
    assert_eq!(draw(&mut sampler, &[4.0, -1.0, 0.76, -9.0]), 2);
    assert_eq!(draw(&mut sampler, &[-9.0, -1.0, -2.76, -9.0]), 1);
    assert_eq!(draw(&mut sampler, &[-9.0, -1.0, -2.74, -9.0]), 2);
    assert_eq!(draw(&mut sampler, &[-9.0, -9.0, -9.0, -8.9]), 3);
    // Drafted tokens count before they are accepted.
    let mut row = Row::default();
    sampler.begin(&mut row, &[2, 2]);
    row.offer(0, &[0.0, 0.0, 1.0, -1.0]);
    assert_eq!(sampler.choose(&mut row).unwrap().id, 0);
}

#[test]
fn tokens_that_are_not_allowed_are_not_chosen() {
    let mut sampler = Sampler::new(Sampling::default());
    let mut row = Row::default();
    sampler.begin(&mut row, &[]);
    row.offer_allowed(0, &[1.0, 3.0, 2.0], |id| id != 1);
    assert_eq!(sampler.choose(&mut row).unwrap().id, 2);
    sampler.begin(&mut row, &[]);
    row.offer_allowed(0, &[1.0, 3.0, 2.0], |_| false);
    assert_eq!(sampler.choose(&mut row), None);
}

#[test]
fn a_seed_gives_the_same_tokens_everywhere() {
    let logits: Vec<f32> = (0..1000u32)
        .map(|id| (id * 7919 % 1000) as f32 / 200.0)
        .collect();
    let mut sampler = Sampler::new(Sampling {
        temperature: 1.0,
        seed: 42,
        ..Sampling::default()
    });
    let drawn: Vec<u32> = (0..8).map(|_| draw(&mut sampler, &logits)).collect();
    // As computed in Python.
    assert_eq!(drawn, [309, 926, 531, 173, 642, 235, 889, 272]);
}
