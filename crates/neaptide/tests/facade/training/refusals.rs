//! What cannot be trained is refused, in words that say why.

use super::models::{batches, mlp};
use super::reference::{RATE, SGD, options, trainer};
use neaptide::{Budget, Error, TrainOptions};

#[test]
fn a_wrong_class_changes_nothing() {
    let mut trainer = trainer(&mlp(), &options(1), SGD, &[]).unwrap();
    let (images, classes) = &batches(7, 1)[0];
    let mut wrong = classes.bytes().to_vec();
    wrong[8..16].copy_from_slice(&9i64.to_le_bytes());
    let refused = trainer.step(&[images.bytes()], &wrong, RATE).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "target 1 is class 9, the model has classes 0 to 4"
    );
    assert_eq!(trainer.steps(), 0);
    assert!(
        trainer
            .step(&[images.bytes()], classes.bytes(), RATE)
            .is_ok()
    );
    let short = &classes.bytes()[8..];
    assert!(trainer.step(&[images.bytes()], short, RATE).is_err());
    assert!(trainer.step(&[], classes.bytes(), RATE).is_err());
}

#[test]
fn nothing_to_train_is_an_error() {
    let refused = trainer(&mlp(), &options(1), SGD, &[""]).map(|_| ());
    assert!(matches!(refused, Err(Error::BadInput(_))));
}

#[test]
fn a_state_takes_what_it_has_room_for() {
    let mut trainer = trainer(&mlp(), &options(1), SGD, &[]).unwrap();
    assert!(trainer.write(0, 1, &[0; 4]).is_ok());
    let bytes = trainer.states()[0].ty.len_bytes();
    assert!(trainer.write(0, 0, &vec![0; bytes + 1]).is_err());
    assert!(trainer.write(99, 0, &[]).is_err());
    assert!(trainer.read(99, &mut |_| {}).is_err());
}

#[test]
fn a_budget_that_is_too_small_names_the_smallest() {
    let with = |bytes| TrainOptions {
        budget: Budget::Engine(bytes),
        ..options(1)
    };
    let Err(Error::Infeasible { smallest_bytes, .. }) =
        trainer(&mlp(), &with(100_000), SGD, &[]).map(|_| ())
    else {
        panic!("no plan takes 100 kB");
    };
    let trainer = trainer(&mlp(), &with(smallest_bytes), SGD, &[]).unwrap();
    assert!(trainer.high_water_bytes() <= smallest_bytes);
}
