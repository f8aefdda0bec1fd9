//! `neap train` within hard limits: what the budget names is never more than the kernel allows.

use crate::onnx::{FLOAT, Model};
use crate::support::*;
use crate::training::data;

const MIB: u64 = 1 << 20;

fn train(bench: &Bench, batch: u32, options: &str, budget: u64) -> Ran {
    bench.neap(&format!(
        "train m.onnx --data data --batch {batch} --epochs 1 --limit 200 --validation 0 --threads 2 --lr 0.001 \
         {options} -o t{budget}.onnx --memory-budget {budget} --enforce"
    ))
}

/// The smallest budget that a refusal names.
fn smallest(bench: &Bench, batch: u32, options: &str) -> u64 {
    let line = train(bench, batch, options, 3 * MIB).fails(3, &["smallest feasible budget"]);
    let (_, rest) = line.rsplit_once('(').unwrap();
    rest.split_once(" bytes").unwrap().0.parse().unwrap()
}

/// A checkpoint is written while all that steps use is in memory: neither a whole tensor nor pages of its file have room beside.
#[test]
fn a_checkpoint_needs_no_room_for_its_tensors() {
    let model = Model::default()
        .node("Flatten", &["x"], &["flat"])
        .node("MatMul", &["flat", "first"], &["a"])
        .node("Relu", &["a"], &["b"])
        .node("MatMul", &["b", "last"], &["y"])
        .weights("first", &[784, 5000], 1)
        .weights("last", &[5000, 10], 2)
        .input("x", FLOAT, &["n", "1", "28", "28"])
        .output("y", FLOAT, &["n", "10"])
        .finish();
    let bench = Bench::with_model(&model);
    if !can_enforce(&bench) {
        return;
    }
    data(&bench);
    let options = "--optimizer sgd --checkpoint-every 1";
    let least = smallest(&bench, 100, options);
    for budget in [least, least + 5 * MIB] {
        train(&bench, 100, options, budget).ok();
        let bytes = std::fs::metadata(bench.path(&format!("t{budget}.onnx.checkpoint")))
            .unwrap()
            .len();
        assert!(bytes > 2 * 784 * 5000 * 4, "{bytes}");
    }
}

/// Scores of many classes are a large result, which is judged after each step.
#[test]
fn results_of_steps_are_judged_where_they_lie() {
    let model = Model::default()
        .node("Flatten", &["x"], &["flat"])
        .node("MatMul", &["flat", "first"], &["a"])
        .node("MatMul", &["a", "last"], &["y"])
        .weights("first", &[784, 4], 1)
        .weights("last", &[4, 60_000], 2)
        .input("x", FLOAT, &["n", "1", "28", "28"])
        .output("y", FLOAT, &["n", "60000"])
        .finish();
    let bench = Bench::with_model(&model);
    if !can_enforce(&bench) {
        return;
    }
    data(&bench);
    let least = smallest(&bench, 100, "");
    assert!(least > 3 * 100 * 60_000 * 4, "{least}");
    train(&bench, 100, "", least).ok();
}
