//! A process that trains within a budget of all of it. Alone in its process, which is what it measures.

use neaptide::{
    BatchNorm, Budget, Host, OpenOptions, OwnProcess, TensorType, TrainOptions, Trainer, Update,
};

const MIB: u64 = 1 << 20;

/// Reading, planning and checking hundreds of steps leave megabytes of heap that nobody uses. None of it may be charged beside what
/// steps fill, and what an estimate was wrong about is measured before.
#[test]
fn what_opening_took_is_gone_before_a_step_fills_the_budget() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let model = folder.path().join("m.onnx");
    let zoo = neap_zoo::Options {
        free_size: true,
        batch: neap_zoo::Batch::Fixed(8),
        ..neap_zoo::Options::default()
    };
    neap_zoo::write("mobilenet_v2", &model, &zoo, &mut |_, _| {}).unwrap();
    let mut open = OpenOptions::of_own_process();
    open.shapes.insert("input".into(), vec![8, 3, 64, 64]);
    let sgd = Update::Sgd {
        momentum: 0.9,
        nesterov: false,
        decay: 0.0,
    };
    let update_of = |_: &str, _: &TensorType| Some(sgd);
    let pixels = vec![0u8; 8 * 3 * 64 * 64 * 4];
    let classes = vec![0u8; 8 * 8];
    let budget = 45 * MIB;
    let options = TrainOptions {
        batch_norm: BatchNorm::Batch { momentum: 0.1 },
        budget: Budget::Bytes(budget),
        threads: 2,
        state_dir: Some(folder.path().into()),
        ..TrainOptions::default()
    };
    let mut trainer = Trainer::open(&model, &open, &options, &update_of).unwrap();
    assert!(trainer.ledger().total_bytes() <= budget);
    trainer.step(&[&pixels], &classes, 0.01).unwrap();
    let charged = OwnProcess::default().charged_bytes();
    let planned = trainer.ledger();
    assert!(
        charged <= budget,
        "{charged} bytes are charged of {budget}: {planned}"
    );
    // What was measured is a step at work: what was planned is in use. How much of the budget a plan takes is its own choice, as
    // it is the quickest by times that were measured.
    let total = planned.total_bytes();
    assert!(
        charged >= total / 100 * 90,
        "{charged} of {total}: {planned}"
    );
}
