//! Batches that are seen in parts.

use super::models::Random;
use super::reference::{ADAMW, options};
use neaptide::{
    Budget, Error, MicroBatch, OpenOptions, TensorType, TrainOptions, TrainStrategy, Trainer,
};
use std::path::Path;

const BATCH: usize = 64;
const STEPS: usize = 3;

fn open(folder: &Path, options: &TrainOptions) -> neaptide::Result<Trainer> {
    let path = folder.join("cnn.onnx");
    if !path.exists() {
        let zoo = neap_zoo::Options {
            batch: neap_zoo::Batch::Dynamic,
            ..neap_zoo::Options::default()
        };
        neap_zoo::write("cnn_28", &path, &zoo, &mut |_, _| {}).unwrap();
    }
    let mut open = OpenOptions::default();
    open.shapes.insert("input".into(), vec![BATCH, 1, 28, 28]);
    let options = TrainOptions {
        keep_result: true,
        state_dir: Some(folder.into()),
        ..options.clone()
    };
    Trainer::open(path, &open, &options, &|_: &str, _: &TensorType| {
        Some(ADAMW)
    })
}

/// Losses, and the results of the last step.
fn steps(trainer: &mut Trainer) -> (Vec<f64>, Vec<f32>) {
    let mut random = Random(5);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let images = random.floats(trainer.inputs()[0].ty.elements());
        let images: Vec<u8> = images.iter().flat_map(|v| v.to_le_bytes()).collect();
        let classes = (0..BATCH as i64).flat_map(|i| (i * 3 % 10).to_le_bytes());
        let classes: Vec<u8> = classes.collect();
        losses.push(trainer.step(&[&images], &classes, 1e-3).unwrap());
    }
    let number = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    (losses, trainer.result().chunks(4).map(number).collect())
}

fn by(micro_batch: MicroBatch, budget: Budget) -> TrainOptions {
    TrainOptions {
        micro_batch,
        budget,
        ..options(2)
    }
}

fn smallest(folder: &Path, micro_batch: MicroBatch) -> (u64, Option<usize>) {
    match open(folder, &by(micro_batch, Budget::Engine(1))).map(|_| ()) {
        Err(Error::Infeasible {
            smallest_bytes,
            micro_batch,
            ..
        }) => (smallest_bytes, micro_batch),
        other => panic!("no plan takes a byte: {other:?}"),
    }
}

#[test]
fn parts_learn_what_the_batch_does() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut whole = open(folder, &by(MicroBatch::Whole, Budget::Unlimited)).unwrap();
    let (losses, results) = steps(&mut whole);
    assert_ne!(losses[0], losses[STEPS - 1]);
    for samples in [32, 8] {
        let micro_batch = MicroBatch::Samples(samples);
        let mut parts = open(folder, &by(micro_batch, Budget::Unlimited)).unwrap();
        assert_eq!(parts.parts(), BATCH / samples);
        assert_eq!(parts.states(), whole.states());
        let found = steps(&mut parts);
        // The mean of the parts' losses and gradients is the batch's but for rounding.
        for (found, expected) in found.0.iter().zip(&losses) {
            assert!(
                (found - expected).abs() < 1e-3 * expected,
                "{found} {expected}"
            );
        }
        assert_eq!(found.1.len(), results.len());
        for (found, expected) in found.1.iter().zip(&results) {
            assert!((found - expected).abs() < 0.02, "{found} {expected}");
        }
        let (smallest_bytes, _) = smallest(folder, micro_batch);
        let tight = by(micro_batch, Budget::Engine(smallest_bytes));
        let again = steps(&mut open(folder, &tight).unwrap());
        assert!(again == found, "other bits at {smallest_bytes}");
    }
}

#[test]
fn fewer_samples_at_a_time_take_less_memory() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (of_whole, _) = smallest(folder, MicroBatch::Whole);
    let (of_any, samples) = smallest(folder, MicroBatch::Auto);
    let samples = samples.expect("the refusal says how");
    assert!(of_any < of_whole, "{of_any} {of_whole}");
    let at = |bytes| open(folder, &by(MicroBatch::Auto, Budget::Engine(bytes))).unwrap();
    // Where the batch fits whole, it is seen whole.
    let tightest = at(of_any);
    assert!((2..=BATCH / samples).contains(&tightest.parts()));
    assert!(tightest.high_water_bytes() <= of_any);
    assert_eq!(at(of_whole).parts(), 1);
}

#[test]
fn parts_learn_the_same_by_every_strategy() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let micro_batch = MicroBatch::Samples(16);
    let by = |strategy, bytes| TrainOptions {
        strategy,
        ..by(micro_batch, Budget::Engine(bytes))
    };
    let mut whole = open(folder, &by(TrainStrategy::Keep, 1 << 40)).unwrap();
    let whole_bytes = whole.high_water_bytes();
    let expected = steps(&mut whole);
    let mut again = 0;
    for strategy in TrainStrategy::ALL {
        let smallest_bytes = match open(folder, &by(strategy, 1)).map(|_| ()) {
            Err(Error::Infeasible { smallest_bytes, .. }) => smallest_bytes,
            other => panic!("no plan takes a byte: {other:?}"),
        };
        for bytes in [smallest_bytes, (smallest_bytes + whole_bytes) / 2] {
            let mut trainer = open(folder, &by(strategy, bytes.max(smallest_bytes))).unwrap();
            assert_eq!(trainer.parts(), BATCH / 16);
            let found = steps(&mut trainer);
            assert!(found == expected, "{strategy} in {bytes}");
            again += u64::from(trainer.recomputes());
        }
    }
    assert!(again > 0);
}

#[test]
fn what_is_no_part_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for samples in [0, 3, 128] {
        let options = by(MicroBatch::Samples(samples), Budget::Unlimited);
        match open(folder.path(), &options).map(|_| ()) {
            Err(Error::BadInput(line)) => assert!(line.contains("parts"), "{line}"),
            other => panic!("{samples}: {other:?}"),
        }
    }
}
