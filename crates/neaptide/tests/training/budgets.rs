//! Smaller budgets move more bytes and change none.

use crate::models::cnn;
use crate::reference::{ADAMW, continued, interpreted, options, trainer};
use neaptide::{BatchNorm, Budget, Error, TrainOptions};

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
    let Err(Error::Infeasible { smallest_bytes, .. }) =
        trainer(&model, &with(1), ADAMW, &[]).map(|_| ())
    else {
        panic!("no plan takes a byte");
    };
    assert!(smallest_bytes < whole_bytes);
    for share in 0..4 {
        let bytes = smallest_bytes + (whole_bytes - smallest_bytes) * share / 4;
        let mut trainer = trainer(&model, &with(bytes), ADAMW, &[]).unwrap();
        assert!(trainer.high_water_bytes() <= bytes);
        let moved = trainer.traffic_bytes();
        assert!(moved.0 > 0 && moved.1 > 0, "nothing is moved at {bytes}");
        let found = continued(&mut trainer, 0, 3);
        assert!(found == expected, "{bytes} bytes");
        let stats = trainer.stats();
        assert_eq!(stats.stored_bytes, 3 * moved.0);
    }
}
