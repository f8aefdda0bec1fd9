//! Loops of so many passes that their bodies are one step: within any budget, with sizes and branches that the data decide.

use super::branches::{graph, whole};
use super::{Given, bytes, open, run, sessions};
use crate::onnx::{self, Attr, Bytes, FLOAT, f32_tensor, i64_tensor, node};
use neaptide::{Budget, CancelToken, Error, RunOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A matrix that moves each element `by` places on, and turns its sign.
fn turning(wide: usize, by: usize) -> Vec<f32> {
    let mut matrix = vec![0.0; wide * wide];
    for from in 0..wide {
        matrix[from * wide + (from + by) % wide] = -1.0;
    }
    matrix
}

fn turned(y: &[f64], by: usize) -> Vec<f64> {
    let wide = y.len();
    (0..wide)
        .map(|to| -y[(to + wide - by % wide) % wide])
        .collect()
}

const WIDE: usize = 256;
const PASSES: usize = 5_000;

/// 5,000 products with one weight; of each the first element. The weight may be stored transposed.
fn of_one_weight(is_transposed: bool) -> onnx::Model {
    // Turning back is turning transposed.
    let by = if is_transposed { WIDE - 3 } else { 3 };
    let op = if is_transposed {
        "Transpose"
    } else {
        "Identity"
    };
    let body = graph(
        &["i", "on", "y"],
        &["on", "next", "first"],
        &[
            f32_tensor("weight", &[WIDE as i64, WIDE as i64], &turning(WIDE, by)),
            i64_tensor("place", &[1], &[0]),
        ],
        &[
            node(op, &["weight"], &["factor"], &[]),
            node("MatMul", &["y", "factor"], &["next"], &[]),
            node(
                "Gather",
                &["next", "place"],
                &["first"],
                &[("axis", Attr::Int(1))],
            ),
        ],
    );
    onnx::Model::new(13)
        .input("x", FLOAT, &[1, WIDE as i64])
        .constant(&i64_tensor("trips", &[], &[PASSES as i64]))
        .node(
            "Loop",
            &["trips", "", "x"],
            &["y", "all"],
            &[("body", Attr::Graph(body))],
        )
        .output("y")
        .output("all")
}

#[test]
fn a_long_loop_with_a_weight_runs_within_any_budget() {
    let models = [false, true].map(of_one_weight);
    let x = whole(3, WIDE);
    let mut y: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    let mut all = Vec::new();
    for _ in 0..PASSES {
        y = turned(&y, 3);
        all.push(y[0]);
    }
    let expected: [Given; 2] = [(vec![1, WIDE], y), (vec![PASSES, 1, 1], all)];
    for mut session in models.iter().flat_map(|model| sessions(model, &[])) {
        for _ in 0..2 {
            let results = run(&mut session, &[bytes(&x)]).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(results, expected);
        }
    }
}

#[test]
fn the_weight_of_a_loop_is_read_once_in_a_run_and_planned_for_once() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let opened = open(&of_one_weight(false), folder.path(), &[]).unwrap_or_else(|e| panic!("{e}"));
    let weight_bytes = (WIDE * WIDE * 4) as u64;
    assert!((weight_bytes..weight_bytes + 4096).contains(&opened.weight_bytes()));
    let options = RunOptions {
        budget: Budget::Engine(0),
        ..RunOptions::default()
    };
    let least = opened.bounds(&options).smallest.total_bytes();
    // Unrolled it would be thousands of steps, of 4 KiB of heap each.
    assert!(least < 4 << 20, "{least}");
    let options = RunOptions {
        budget: Budget::Engine(least),
        ..options
    };
    let plan = opened.plan(&options).expect("plans");
    let mut session = opened.into_session(plan, &options).expect("opens");
    let x = whole(3, WIDE);
    run(&mut session, &[bytes(&x)]).unwrap_or_else(|e| panic!("{e}"));
    let before = session.stats().loaded_bytes;
    for _ in 0..3 {
        run(&mut session, &[bytes(&x)]).unwrap_or_else(|e| panic!("{e}"));
    }
    let read = session.stats().loaded_bytes - before;
    assert!(read <= 3 * (weight_bytes + 4096), "{read}");
}

#[test]
fn a_long_loop_ends_when_nobody_wants_it() {
    for mut session in sessions(&of_one_weight(false), &[]) {
        let x = bytes(&whole(3, WIDE));
        let expected =
            run(&mut session, std::slice::from_ref(&x)).unwrap_or_else(|e| panic!("{e}"));
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        // There are far fewer computes.
        let token = CancelToken::new();
        let token = token.or_when(move || counter.fetch_add(1, Ordering::Relaxed) == 99);
        let (mut y, mut all) = (vec![0; WIDE * 4], vec![0; PASSES * 4]);
        let ended = session.run_unless(&token, &[&x], &mut [&mut y, &mut all]);
        assert!(matches!(ended, Err(Error::Cancelled)));
        assert_eq!(asked.load(Ordering::Relaxed), 100);
        let again = run(&mut session, &[x]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(again, expected);
    }
}

/// Adds 1 to zeros until they reach the sum of x, and collects the products of them with a weight.
fn counting(trips: Option<i64>, asks_first: bool) -> onnx::Model {
    let body = graph(
        &["i", "on", "y"],
        &["again", "next", "seen"],
        &[f32_tensor("weight", &[4, 3], &whole(2, 12))],
        &[
            node("Add", &["y", "one"], &["next"], &[]),
            node("MatMul", &["next", "weight"], &["seen"], &[]),
            node(
                "ReduceMax",
                &["next"],
                &["most"],
                &[("keepdims", Attr::Int(0))],
            ),
            node("Less", &["most", "sum"], &["again"], &[]),
        ],
    );
    let mut model = onnx::Model::new(13)
        .input("x", FLOAT, &[1, 16])
        .constant(&f32_tensor("one", &[], &[1.0]))
        .constant(&f32_tensor("nothing", &[], &[0.0]))
        .constant(&f32_tensor("zeros", &[1, 4], &[0.0; 4]))
        .raw_node(&node(
            "ReduceSum",
            &["x"],
            &["sum"],
            &[("keepdims", Attr::Int(0))],
        ))
        .node("Less", &["nothing", "sum"], &["begins"], &[]);
    if let Some(trips) = trips {
        model = model.constant(&i64_tensor("trips", &[], &[trips]));
    }
    let first = if trips.is_some() { "trips" } else { "" };
    let begins = if asks_first { "begins" } else { "" };
    model
        .node(
            "Loop",
            &[first, begins, "zeros"],
            &["y", "all"],
            &[("body", Attr::Graph(body))],
        )
        .node("Neg", &["all"], &["turned"], &[])
        .output("y")
        .output("turned")
}

fn of_sum(sum: f32) -> Vec<f32> {
    let mut x = vec![0.25f32; 16];
    x[3] = sum - 0.25 * 15.0;
    x
}

fn counted(passes: usize) -> [Given; 2] {
    let weight = whole(2, 12);
    let sums: Vec<f64> = (0..3)
        .map(|c| (0..4).map(|k| f64::from(weight[3 * k + c])).sum())
        .collect();
    let turned = (1..=passes).flat_map(|n| sums.iter().map(move |s| -s * n as f64));
    [
        (vec![1, 4], vec![passes as f64; 4]),
        (vec![passes, 1, 3], turned.collect()),
    ]
}

#[test]
fn a_long_loop_ends_when_the_data_say_so() {
    const MOST: usize = 4_000;
    for asks_first in [false, true] {
        for mut session in sessions(&counting(Some(MOST as i64), asks_first), &[]) {
            // The last of these would go on for longer, but for its count.
            for sum in [3.0f32, -2.0, 1500.0, 0.5, 4000.0, 5000.0] {
                let least = if asks_first { 0.0 } else { 1.0 };
                let passes = f32::max(sum.ceil(), least).min(MOST as f32) as usize;
                let results = run(&mut session, &[bytes(&of_sum(sum))]);
                let results = results.unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(results, counted(passes), "{sum}");
            }
        }
    }
}

#[test]
fn a_long_loop_that_goes_on_after_its_bound_is_an_error() {
    for mut session in sessions(&counting(None, true), &[("y", 2_000)]) {
        for sum in [2_000.0, -1.0] {
            let results = run(&mut session, &[bytes(&of_sum(sum))]);
            let results = results.unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(results, counted(sum.max(0.0) as usize), "{sum}");
        }
        let error = run(&mut session, &[bytes(&of_sum(2_001.0))]);
        let error = error.expect_err("one pass more").to_string();
        assert!(error.contains("goes on after 2000 passes"), "{error}");
    }
}

const LONG: usize = 2_000;
const DEEP: usize = 128;

/// For each number of x up to the first zero, y is turned by one matrix where that is positive, by another where it is not. With
/// `is_asked` only where the sum of x is positive.
fn branching(is_asked: bool) -> onnx::Model {
    let branch = |by: usize| {
        let weight = f32_tensor("matrix", &[DEEP as i64; 2], &turning(DEEP, by));
        let product = node("MatMul", &["y", "matrix"], &["product"], &[]);
        graph(&[], &["product"], &[weight], &[product])
    };
    let body = graph(
        &["i", "on", "y"],
        &["on", "next", "value"],
        &[],
        &[
            node("Gather", &["x", "i"], &["value"], &[]),
            node("Greater", &["value", "nothing"], &["is_positive"], &[]),
            node(
                "If",
                &["is_positive"],
                &["next"],
                &[
                    ("then_branch", Attr::Graph(branch(3))),
                    ("else_branch", Attr::Graph(branch(70))),
                ],
            ),
        ],
    );
    let looping = node(
        "Loop",
        &["count", "", "start"],
        &["last", "values"],
        &[("body", Attr::Graph(body))],
    );
    let model = onnx::Model::new(13)
        .input("x", FLOAT, &[LONG as i64])
        .input("start", FLOAT, &[1, DEEP as i64])
        .constant(&f32_tensor("nothing", &[], &[0.0]))
        .constant(&i64_tensor("second", &[], &[1]))
        .node("NonZero", &["x"], &["places"], &[])
        .node("Shape", &["places"], &["size"], &[])
        .node("Gather", &["size", "second"], &["count"], &[]);
    if !is_asked {
        return model.raw_node(&looping).output("last").output("values");
    }
    let sum = node("ReduceSum", &["x"], &["sum"], &[("keepdims", Attr::Int(0))]);
    let then = graph(&[], &["last", "values"], &[], &[looping]);
    let otherwise: Bytes = graph(
        &[],
        &["same", "x"],
        &[],
        &[node("Neg", &["start"], &["same"], &[])],
    );
    model
        .raw_node(&sum)
        .node("Greater", &["sum", "nothing"], &["holds"], &[])
        .node(
            "If",
            &["holds"],
            &["y", "given"],
            &[
                ("then_branch", Attr::Graph(then)),
                ("else_branch", Attr::Graph(otherwise)),
            ],
        )
        .output("y")
        .output("given")
}

#[test]
fn a_long_loop_goes_round_as_the_data_say_and_branches_within() {
    let start = whole(1, DEEP);
    for is_asked in [false, true] {
        for mut session in sessions(&branching(is_asked), &[]) {
            assert_eq!(session.outputs()[1].ty.shape, [LONG]);
            for count in [7, 0, LONG, 1, 1_234] {
                let mut x = vec![0.0f32; LONG];
                for (i, value) in x[..count].iter_mut().enumerate() {
                    *value = if i % 3 == 1 { -1.0 } else { 2.0 };
                }
                let mut y: Vec<f64> = start.iter().map(|&v| f64::from(v)).collect();
                for value in &x[..count] {
                    y = turned(&y, if *value > 0.0 { 3 } else { 70 });
                }
                let mut values: Vec<f64> = x[..count].iter().map(|&v| f64::from(v)).collect();
                if is_asked && count == 0 {
                    y = start.iter().map(|&v| -f64::from(v)).collect();
                    values = vec![0.0; LONG];
                }
                let expected: [Given; 2] = [(vec![1, DEEP], y), (vec![values.len()], values)];
                let results = run(&mut session, &[bytes(&x), bytes(&start)]);
                let results = results.unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(results, expected, "{count}");
            }
        }
    }
}
