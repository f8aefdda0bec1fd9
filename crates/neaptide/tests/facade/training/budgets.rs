//! Smaller budgets move more bytes and change none.

use super::models::{cnn, deep, tied};
use super::reference::{ADAMW, SGD, continued, interpreted, options, states, trainer};
use neap_ir::Graph;
use neaptide::{BatchNorm, Budget, Error, TrainOptions, TrainStrategy, Trainer, Update};

#[test]
fn every_budget_gives_the_same_bits() {
    let model = cnn();
    let options = TrainOptions {
        batch_norm: BatchNorm::Batch { momentum: 0.1 },
        ..options(2)
    };
    let expected = interpreted(&model, &options, ADAMW, &[], 3);
    let with = |bytes| TrainOptions {
        budget: Budget::Engine(bytes),
        ..options.clone()
    };
    let whole = trainer(&model, &with(1 << 40), ADAMW, &[]).unwrap();
    assert_eq!(whole.traffic_bytes(), (0, 0));
    let whole_bytes = whole.high_water_bytes();
    let smallest_bytes = smallest(&model, &options);
    assert!(smallest_bytes < whole_bytes);
    for share in 0..4 {
        let bytes = smallest_bytes + (whole_bytes - smallest_bytes) * share / 4;
        let mut trainer = trainer(&model, &with(bytes), ADAMW, &[]).unwrap();
        assert!(trainer.high_water_bytes() <= bytes);
        let moved = trainer.traffic_bytes();
        let is_moved = moved.0 > 0 && moved.1 > 0;
        assert!(
            is_moved || trainer.recomputes(),
            "how does it fit in {bytes}?"
        );
        let found = continued(&mut trainer, 0, 3);
        assert!(found == expected, "{bytes} bytes");
        let stats = trainer.stats();
        assert_eq!(stats.stored_bytes, 3 * moved.0);
    }
}

pub fn smallest(model: &Graph, options: &TrainOptions) -> u64 {
    smallest_of(model, options, ADAMW)
}

fn smallest_of(model: &Graph, options: &TrainOptions, update: Update) -> u64 {
    let options = TrainOptions {
        budget: Budget::Engine(1),
        ..options.clone()
    };
    match trainer(model, &options, update, &[]).map(|_| ()) {
        Err(Error::Infeasible { smallest_bytes, .. }) => smallest_bytes,
        other => panic!("no plan takes a byte: {other:?}"),
    }
}

fn states_bytes(trainer: &Trainer) -> usize {
    trainer.states().iter().map(|s| s.ty.len_bytes()).sum()
}

#[test]
fn cheap_activations_are_computed_again_where_there_is_no_room() {
    let model = cnn();
    let options = TrainOptions {
        batch_norm: BatchNorm::Batch { momentum: 0.1 },
        ..options(1)
    };
    let expected = interpreted(&model, &options, SGD, &[], 3);
    let whole = trainer(&model, &options, SGD, &[]).unwrap();
    assert!(!whole.recomputes());
    // A little less than everything.
    let mut trainer = trainer(
        &model,
        &TrainOptions {
            budget: Budget::Engine(whole.ledger().total_bytes() - (1 << 20)),
            strategy: TrainStrategy::Cheap,
            ..options
        },
        SGD,
        &[],
    )
    .unwrap();
    assert!(trainer.recomputes(), "{:?}", trainer.summary());
    assert!(continued(&mut trainer, 0, 3) == expected);
}

#[test]
fn parameters_and_moments_need_not_fit() {
    let model = deep();
    let expected = interpreted(&model, &options(1), ADAMW, &[], 4);
    let tight = TrainOptions {
        budget: Budget::Engine(smallest(&model, &options(2))),
        ..options(2)
    };
    let mut trainer = trainer(&model, &tight, ADAMW, &[]).unwrap();
    let memory_bytes = trainer.ledger().arena_bytes as usize;
    let states = states_bytes(&trainer);
    assert!(memory_bytes < states * 3 / 4, "{memory_bytes} of {states}");
    assert!(continued(&mut trainer, 0, 4) == expected);
}

#[test]
fn a_checkpoint_of_states_that_stream_goes_on_with_the_same_bits() {
    let model = deep();
    let expected = interpreted(&model, &options(1), ADAMW, &[], 5);
    let tight = TrainOptions {
        budget: Budget::Engine(smallest(&model, &options(1))),
        ..options(1)
    };
    let open = || trainer(&model, &tight, ADAMW, &[]).unwrap();
    let mut first = open();
    continued(&mut first, 0, 2);
    let kept = states(&mut first);
    // A trainer that has been elsewhere meanwhile.
    let mut second = open();
    continued(&mut second, 3, 2);
    second.clear();
    assert!(
        states(&mut second)
            .iter()
            .all(|(_, b)| b.iter().all(|&b| b == 0))
    );
    for (i, (_, bytes)) in kept.iter().enumerate() {
        // In odd pieces.
        for (n, piece) in bytes.chunks(50_003).enumerate() {
            second.write(i, n as u64 * 50_003, piece).unwrap();
        }
    }
    assert!(states(&mut second) == kept);
    second.set_steps(2);
    let found = continued(&mut second, 2, 3);
    assert_eq!(found.losses, expected.losses[2..]);
    assert!(found.states == expected.states);
}

/// A table that is looked up in and multiplied with is updated a range of rows after the other: parameter, gradient and both
/// moments whole would take four times its size.
#[test]
fn a_large_table_is_updated_in_pieces() {
    let model = tied();
    let table_bytes = 60_000 * 150 * 4;
    let expected = interpreted(&model, &options(1), ADAMW, &[], 3);
    let whole = trainer(&model, &options(2), ADAMW, &[]).unwrap();
    assert_eq!(whole.traffic_bytes(), (0, 0));
    let smallest_bytes = smallest(&model, &options(2));
    let sgd = smallest_of(&model, &options(2), SGD);
    assert!(sgd <= smallest_bytes, "{sgd}");
    for budget in [Budget::Unlimited, Budget::Engine(smallest_bytes)] {
        let options = TrainOptions {
            budget,
            ..options(2)
        };
        let mut trainer = trainer(&model, &options, ADAMW, &[]).unwrap();
        let arena_bytes = trainer.ledger().arena_bytes;
        let limit = if budget == Budget::Unlimited { 5 } else { 2 };
        assert!(
            arena_bytes < limit * table_bytes,
            "{arena_bytes} of {table_bytes}"
        );
        let found = continued(&mut trainer, 0, 3);
        assert_eq!(found.losses, expected.losses);
        for (found, expected) in found.states.iter().zip(&expected.states) {
            assert!(found == expected, "{} differs", found.0);
        }
        assert_eq!(found.states.len(), expected.states.len());
    }
}

#[test]
fn a_checkpoint_of_pieces_goes_on_with_the_same_bits() {
    let model = tied();
    let expected = interpreted(&model, &options(1), ADAMW, &[], 3);
    let mut first = trainer(&model, &options(2), ADAMW, &[]).unwrap();
    continued(&mut first, 0, 2);
    let kept = states(&mut first);
    let mut second = trainer(&model, &options(2), ADAMW, &[]).unwrap();
    for (i, (_, bytes)) in kept.iter().enumerate() {
        // Across the pieces' borders.
        for (n, piece) in bytes.chunks(5_000_003).enumerate() {
            second.write(i, n as u64 * 5_000_003, piece).unwrap();
        }
    }
    second.set_steps(2);
    let found = continued(&mut second, 2, 1);
    assert_eq!(found.losses, expected.losses[2..]);
    assert!(found.states == expected.states);
}
