//! Strategies differ in memory and time, and in no bit.

use super::models::cnn;
use super::networks::{chain, residual, transformer};
use super::reference::{ADAMW, SGD, continued, interpreted, options, trainer};
use neap_ir::Graph;
use neaptide::{BatchNorm, Budget, Error, StepSummary, TrainOptions, TrainStrategy, Update};

const STEPS: usize = 2;

fn with(strategy: TrainStrategy, budget: Budget) -> TrainOptions {
    TrainOptions {
        strategy,
        budget,
        batch_norm: BatchNorm::Batch { momentum: 0.1 },
        ..options(2)
    }
}

fn smallest(model: &Graph, strategy: TrainStrategy, update: Update) -> u64 {
    match trainer(model, &with(strategy, Budget::Engine(1)), update, &[]).map(|_| ()) {
        Err(Error::Infeasible { smallest_bytes, .. }) => smallest_bytes,
        other => panic!("no plan takes a byte: {other:?}"),
    }
}

fn summary(model: &Graph, strategy: TrainStrategy, bytes: u64) -> Option<StepSummary> {
    match trainer(model, &with(strategy, Budget::Engine(bytes)), SGD, &[]) {
        Ok(trainer) => Some(*trainer.summary()),
        Err(Error::Infeasible { .. }) => None,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn every_strategy_and_budget_gives_the_same_bits() {
    for (model, update) in [(cnn(), SGD), (residual(), ADAMW), (transformer(), ADAMW)] {
        let unlimited = with(TrainStrategy::Keep, Budget::Unlimited);
        let expected = interpreted(&model, &unlimited, update, &[], STEPS);
        assert_ne!(expected.losses[0], expected.losses[1]);
        let keeps = smallest(&model, TrainStrategy::Keep, update);
        let mut again = 0;
        for strategy in TrainStrategy::ALL {
            let least = smallest(&model, strategy, update);
            assert!(least <= keeps, "{strategy}: {least} of {keeps}");
            for share in 0..3 {
                let bytes = least + (keeps - least) * share / 3;
                let options = with(strategy, Budget::Engine(bytes));
                let mut trainer = trainer(&model, &options, update, &[]).unwrap();
                assert!(trainer.high_water_bytes() <= bytes);
                let summary = *trainer.summary();
                assert!(strategy == TrainStrategy::Auto || summary.strategy == strategy);
                let found = continued(&mut trainer, 0, STEPS);
                assert!(found == expected, "{strategy} in {bytes}: {summary:?}");
                assert_eq!(
                    trainer.stats().stored_bytes,
                    STEPS as u64 * summary.stored_bytes
                );
                again += u64::from(summary.recomputed_steps > 0);
            }
        }
        assert!(again >= 6, "hardly anything was computed again: {again}");
    }
}

#[test]
fn a_strategy_does_what_its_name_says() {
    let model = residual();
    let keeps = smallest(&model, TrainStrategy::Keep, SGD);
    let of = |strategy, bytes| summary(&model, strategy, bytes).unwrap();
    let moved = |s: &StepSummary| s.stored_bytes + s.loaded_bytes;
    let less = keeps * 9 / 10;
    let keep = of(TrainStrategy::Keep, keeps);
    assert_eq!((moved(&keep), keep.recomputed_flops), (0, 0));
    assert!(summary(&model, TrainStrategy::Keep, less).is_none());
    let swap = of(TrainStrategy::Swap, less);
    assert!(moved(&swap) > 0 && swap.recomputed_flops == 0, "{swap:?}");
    let cheap = of(TrainStrategy::Cheap, less);
    assert!(cheap.recomputed_flops > 0, "{cheap:?}");
    let sqrt = of(TrainStrategy::Sqrt, less);
    assert!(moved(&sqrt) == 0 && sqrt.recomputed_flops > cheap.recomputed_flops);
    // Where everything fits there is nothing to choose.
    let auto = of(TrainStrategy::Auto, keeps);
    assert_eq!(auto.strategy, TrainStrategy::Keep);
    assert_eq!(auto.predicted_ns, keep.predicted_ns);
}

/// The square root of 24 layers is about 5: five borders and a segment of five.
#[test]
fn segments_lower_the_smallest_budget_without_swapping() {
    let model = chain(24);
    let keeps = smallest(&model, TrainStrategy::Keep, SGD);
    let sqrt = smallest(&model, TrainStrategy::Sqrt, SGD);
    assert!(sqrt < keeps * 7 / 10, "{sqrt} of {keeps}");
    let options = with(TrainStrategy::Sqrt, Budget::Engine(sqrt));
    let mut trainer = trainer(&model, &options, SGD, &[]).unwrap();
    assert_eq!(trainer.traffic_bytes(), (0, 0));
    let expected = interpreted(&model, &options, SGD, &[], STEPS);
    assert!(continued(&mut trainer, 0, STEPS) == expected);
}

#[test]
fn what_chooses_is_never_predicted_to_be_slower() {
    use TrainStrategy::{Auto, Cheap, Keep, Optimal, Sqrt, Swap};
    let mut gains = 0;
    for model in [cnn(), residual(), chain(12), transformer()] {
        let keeps = smallest(&model, Keep, SGD);
        let least = smallest(&model, Auto, SGD);
        for share in 0..=4 {
            let bytes = least + (keeps - least) * share / 4;
            let ns = |strategy| summary(&model, strategy, bytes).map(|s| s.predicted_ns);
            let auto = ns(Auto).unwrap();
            let others = [Keep, Swap, Cheap, Sqrt].map(ns);
            let best = others.into_iter().flatten().min();
            assert!(auto <= best.unwrap_or(u64::MAX), "{auto} of {others:?}");
            if let Some(optimal) = ns(Optimal) {
                for other in [Keep, Swap, Sqrt].into_iter().filter_map(ns) {
                    assert!(optimal <= other, "{optimal} of {other}");
                }
                assert!(auto <= optimal);
            }
            gains += u64::from(best.is_some_and(|best| auto < best));
        }
    }
    assert!(gains > 0, "the integer program never found anything better");
}

#[test]
fn a_refusal_names_the_smallest_budget_of_its_strategy() {
    let model = residual();
    for strategy in TrainStrategy::ALL {
        let least = smallest(&model, strategy, SGD);
        assert!(summary(&model, strategy, least).is_some(), "{strategy}");
        // Named sizes have some slack.
        assert!(summary(&model, strategy, least / 2).is_none(), "{strategy}");
    }
    assert_eq!("sqrt".parse(), Ok(TrainStrategy::Sqrt));
    let unknown = "root".parse::<TrainStrategy>().unwrap_err();
    assert!(unknown.contains("auto, keep, swap"), "{unknown}");
}
