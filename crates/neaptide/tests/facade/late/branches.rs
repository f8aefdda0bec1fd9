//! Branches and loops that the data decide: what is not taken is not computed, and results have the sizes of what is.

use super::{Given, bytes, open, run, sessions, smallest};
use crate::onnx::{self, Attr, BOOL, Bytes, FLOAT, f32_tensor, i64_tensor, node};
use neap_ir::Op;
use neap_ir::late::LateOp;
use neap_plan::{ByteRange, LaneId, Load, StepId};
use neaptide::Plan;

const WIDE: usize = 300;

/// A branch or a body: inputs, outputs, initializers, nodes.
pub(super) fn graph(
    inputs: &[&str],
    outputs: &[&str],
    initializers: &[Bytes],
    nodes: &[Bytes],
) -> Bytes {
    let named = |name: &&str| Bytes::default().string(1, name);
    let mut g = Bytes::default().string(2, "body");
    for node in nodes {
        g = g.message(1, node);
    }
    for tensor in initializers {
        g = g.message(5, tensor);
    }
    for input in inputs {
        g = g.message(11, &named(input));
    }
    for output in outputs {
        g = g.message(12, &named(output));
    }
    g
}

/// Small whole numbers, so that sums are exact in any order.
pub(super) fn whole(seed: usize, count: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 7 + seed * 13) % 11) as f32 - 5.0;
    (0..count).map(value).collect()
}

fn product(x: &[f32], w: &[f32], columns: usize) -> Vec<f64> {
    let k = w.len() / columns;
    let rows = x.chunks(k);
    let element = |row: &[f32], column: usize| -> f64 {
        let terms = row.iter().enumerate();
        terms
            .map(|(i, &x)| f64::from(x) * f64::from(w[i * columns + column]))
            .sum()
    };
    rows.flat_map(|row| (0..columns).map(move |c| element(row, c)))
        .collect()
}

fn sum_of_x() -> [Bytes; 1] {
    [node(
        "ReduceSum",
        &["x"],
        &["sum"],
        &[("keepdims", Attr::Int(0))],
    )]
}

/// Four rows times a weight where the sum of x is positive, twice the rows where the first element is, too. Else two rows times
/// another weight, plus the row of a table that the sum names, which is no row of it where the sum is positive.
fn branching() -> onnx::Model {
    let greater = |a: &str| node("Greater", &[a, "nothing"], &["holds"], &[]);
    let twice = graph(
        &[],
        &["both"],
        &[],
        &[node(
            "Concat",
            &["product", "product"],
            &["both"],
            &[("axis", Attr::Int(0))],
        )],
    );
    let once = graph(
        &[],
        &["one"],
        &[],
        &[node("Abs", &["product"], &["one"], &[])],
    );
    let then = graph(
        &[],
        &["found"],
        &[
            f32_tensor("weight", &[16, WIDE as i64], &whole(1, 16 * WIDE)),
            i64_tensor("place", &[1], &[0]),
        ],
        &[
            node("MatMul", &["x", "weight"], &["product"], &[]),
            node("Reshape", &["x", "all"], &["flat"], &[]),
            node("Gather", &["flat", "place"], &["first"], &[]),
            node("Greater", &["first", "nothing"], &["is_twice"], &[]),
            node(
                "If",
                &["is_twice"],
                &["found"],
                &[
                    ("then_branch", Attr::Graph(twice)),
                    ("else_branch", Attr::Graph(once)),
                ],
            ),
        ],
    );
    let otherwise = graph(
        &[],
        &["other"],
        &[
            f32_tensor("weight", &[16, WIDE as i64], &whole(2, 16 * WIDE)),
            f32_tensor("table", &[8, WIDE as i64], &whole(3, 8 * WIDE)),
        ],
        &[
            node("Slice", &["x", "zero", "two", "zero"], &["rows"], &[]),
            node("MatMul", &["rows", "weight"], &["product"], &[]),
            node("Cast", &["sum"], &["index"], &[("to", Attr::Int(7))]),
            node("Gather", &["table", "index"], &["row"], &[]),
            node("Add", &["product", "row"], &["other"], &[]),
        ],
    );
    let [sum] = sum_of_x();
    onnx::Model::new(13)
        .input("x", FLOAT, &[4, 16])
        .constant(&f32_tensor("nothing", &[], &[0.0]))
        .ints("all", &[-1])
        .ints("zero", &[0])
        .ints("two", &[2])
        .raw_node(&sum)
        .raw_node(&greater("sum"))
        .node(
            "If",
            &["holds"],
            &["y"],
            &[
                ("then_branch", Attr::Graph(then)),
                ("else_branch", Attr::Graph(otherwise)),
            ],
        )
        .node("Neg", &["y"], &["z"], &[])
        .node(
            "ReduceSum",
            &["z"],
            &["total"],
            &[("keepdims", Attr::Int(0))],
        )
        .output("y")
        .output("z")
        .output("total")
}

#[test]
fn the_branch_that_the_data_take_is_computed_alone() {
    let rows = |x: &[f32], seed: usize| product(x, &whole(seed, 16 * WIDE), WIDE);
    for mut session in sessions(&branching(), &[]) {
        assert_eq!(session.outputs()[0].ty.shape, [8, WIDE]);
        // In turn, so that nothing of the run before is taken for a result.
        for (first, sum) in [
            (3.0, 90.0),
            (-1.0, -3.0),
            (-2.0, 40.0),
            (1.0, -8.0),
            (5.0, 7.0),
        ] {
            let mut x: Vec<f32> = whole(5, 64);
            x[0] = first;
            x[63] = 0.0;
            x[63] = sum - x.iter().sum::<f32>();
            let expected: Given = match (sum > 0.0, first > 0.0) {
                (true, true) => (vec![8, WIDE], rows(&x, 1).repeat(2)),
                (true, false) => {
                    let once = rows(&x, 1).into_iter().map(f64::abs);
                    (vec![4, WIDE], once.collect())
                }
                (false, _) => {
                    let table = whole(3, 8 * WIDE);
                    let row = &table[(8.0 + sum) as usize * WIDE..][..WIDE];
                    let row = row.iter().cycle().map(|&v| f64::from(v));
                    let sums = rows(&x[..32], 2).into_iter().zip(row);
                    (vec![2, WIDE], sums.map(|(a, b)| a + b).collect())
                }
            };
            let results = run(&mut session, &[bytes(&x)]).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(results[0], expected, "{first} {sum}");
            let negated: Vec<f64> = expected.1.iter().map(|v| -v).collect();
            assert_eq!(results[2].1, [negated.iter().sum::<f64>()]);
            assert_eq!(results[1], (expected.0, negated));
        }
    }
}

const WEIGHT_BYTES: u64 = 16 * 4096 * 4;

/// The sum of three products of x, other ones in each branch.
fn of_many_weights() -> onnx::Model {
    let branch = |seeds: [usize; 3]| {
        let names = seeds.map(|seed| format!("weight{seed}"));
        let made = seeds.map(|seed| format!("product{seed}"));
        let weights = names.iter().zip(seeds);
        let weights =
            weights.map(|(name, seed)| f32_tensor(name, &[16, 4096], &whole(seed, 16 * 4096)));
        let products = names.iter().zip(&made);
        let mut nodes: Vec<Bytes> = products
            .map(|(name, made)| node("MatMul", &["x", name], &[made], &[]))
            .collect();
        let made: Vec<&str> = made.iter().map(String::as_str).collect();
        nodes.push(node("Sum", &made, &["given"], &[]));
        graph(&[], &["given"], &weights.collect::<Vec<_>>(), &nodes)
    };
    let [sum] = sum_of_x();
    onnx::Model::new(13)
        .input("x", FLOAT, &[1, 16])
        .constant(&f32_tensor("nothing", &[], &[0.0]))
        .raw_node(&sum)
        .node("Greater", &["sum", "nothing"], &["holds"], &[])
        .node(
            "If",
            &["holds"],
            &["y"],
            &[
                ("then_branch", Attr::Graph(branch([1, 2, 3]))),
                ("else_branch", Attr::Graph(branch([4, 5, 6]))),
            ],
        )
        .output("y")
}

/// Loads of a plan that bring weights of some seeds.
fn loads_of(plan: &Plan, seeds: [usize; 3]) -> Vec<usize> {
    let names = seeds.map(|seed| format!("weight{seed}"));
    let packed = plan.program.packed.iter();
    let extents: Vec<ByteRange> = packed
        .filter(|packed| names.iter().any(|name| packed.name.ends_with(name)))
        .map(|packed| ByteRange::at(packed.offset, packed.bytes))
        .collect();
    assert_eq!(extents.len(), seeds.len());
    let is_theirs = |range: &ByteRange| extents.iter().any(|extent| extent.overlaps(*range));
    let bytes = |ranges: Vec<ByteRange>| -> u64 {
        let theirs = ranges.iter().filter(|range| is_theirs(range));
        theirs.map(|range| range.end - range.begin).sum()
    };
    // What a run does not load stays in memory from run to run: no weight is missing.
    let loads = &plan.execution().loads;
    let loaded = bytes(loads.iter().map(Load::file_range).collect());
    let resident = plan.execution().resident.iter();
    let stays = bytes(
        resident
            .map(|r| ByteRange::at(r.from.offset, r.bytes))
            .collect(),
    );
    assert_eq!(loaded + stays, seeds.len() as u64 * WEIGHT_BYTES);
    assert!(loaded > 0, "a branch that is never loaded shows nothing");
    let theirs = (loads.iter().enumerate()).filter(|(_, load)| is_theirs(&load.file_range()));
    theirs.map(|(index, _)| index).collect()
}

/// The first load that cannot begin before all gates are computed; those behind it in the lane cannot either.
fn first_behind_gates(plan: &Plan) -> usize {
    let is_gate = |step: StepId| {
        let node = plan.program.steps[step.index()];
        let op = &plan.program.graph.nodes[node.index()].op;
        matches!(op, Op::Late(late) if matches!(late.op, LateOp::Gate { .. }))
    };
    let computes = &plan.execution().computes;
    let last = computes.iter().rposition(|compute| is_gate(compute.step));
    let last = last.expect("an If has gates");
    let waits_for_gates = |load: &Load| {
        let mut waits = load.turn.waits();
        waits.any(|w| w.lane == LaneId::COMPUTE && w.run_back == 0 && w.count as usize > last)
    };
    let loads = &plan.execution().loads;
    loads
        .iter()
        .position(waits_for_gates)
        .unwrap_or(loads.len())
}

/// Each run reads what the plan loads for the branch that is taken: weights that stay in memory have no load. Of the other
/// branch it reads no more than what may begin before the condition is known.
#[test]
fn weights_of_the_other_branch_are_read_as_far_as_they_were_prefetched() {
    const RUNS: usize = 4;
    let folder = tempfile::tempdir().expect("temporary folder");
    let opened = open(&of_many_weights(), folder.path(), &[]).unwrap_or_else(|e| panic!("{e}"));
    let options = smallest(&opened);
    let plan = opened.plan(&options).expect("plans");
    let branches = [[1, 2, 3], [4, 5, 6]].map(|seeds| (seeds, loads_of(&plan, seeds)));
    let prefetched = first_behind_gates(&plan);
    let mut session = opened.into_session(plan, &options).expect("opens");
    for (taken, sum) in [(0, 3.0), (1, -2.0)] {
        let x = of_sum(sum);
        let (seeds, own) = &branches[taken];
        let (_, others) = &branches[1 - taken];
        let mut expected = vec![0.0; 4096];
        for &seed in seeds {
            let product = product(&x, &whole(seed, 16 * 4096), 4096);
            expected.iter_mut().zip(product).for_each(|(e, p)| *e += p);
        }
        // Of the first of these runs some was read before recording began.
        session.record_timeline(RUNS + 1);
        for _ in 0..=RUNS {
            let results = run(&mut session, &[bytes(&x)]).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(results[0], (vec![1, 4096], expected.clone()));
        }
        let timeline = session.timeline().expect("recorded");
        for run in 1..=RUNS as u32 {
            let spans = timeline.spans_of(LaneId::LOAD, run);
            let read: Vec<usize> = spans.map(|span| span.action as usize).collect();
            let of = |loads: &[usize]| -> Vec<usize> {
                let read = read.iter().filter(|load| loads.contains(load));
                read.copied().collect()
            };
            assert_eq!(of(own), *own, "what is taken is read, once and in order");
            assert!(of(others).iter().all(|&load| load < prefetched), "{read:?}");
        }
    }
    // The branch that comes last is on its way to nobody where it is not taken.
    let (_, last) = &branches[1];
    assert!(last.iter().any(|&load| load >= prefetched));
}

/// Halves y until its sum is at most 1, at most `trips` times; with `asks_first`, not even once where it is.
fn halving(trips: Option<i64>, asks_first: bool) -> onnx::Model {
    let body = graph(
        &["i", "on", "y"],
        &["again", "next", "seen"],
        &[f32_tensor("half", &[1, 16], &[0.5; 16])],
        &[
            node("Mul", &["y", "half"], &["next"], &[]),
            node("Cast", &["i"], &["pass"], &[("to", Attr::Int(1))]),
            node("Add", &["next", "pass"], &["seen"], &[]),
            node(
                "ReduceSum",
                &["next"],
                &["left"],
                &[("keepdims", Attr::Int(0))],
            ),
            node("Greater", &["left", "one"], &["again"], &[]),
        ],
    );
    let [sum] = sum_of_x();
    let mut model = onnx::Model::new(13)
        .input("x", FLOAT, &[1, 16])
        .constant(&f32_tensor("one", &[], &[1.0]))
        .raw_node(&sum)
        .node("Greater", &["sum", "one"], &["begins"], &[]);
    if let Some(trips) = trips {
        model = model.constant(&i64_tensor("trips", &[], &[trips]));
    }
    let first = if trips.is_some() { "trips" } else { "" };
    let begins = if asks_first { "begins" } else { "" };
    model
        .node(
            "Loop",
            &[first, begins, "x"],
            &["y", "all"],
            &[("body", Attr::Graph(body))],
        )
        .output("y")
        .output("all")
}

fn halved(x: &[f32], trips: usize, asks_first: bool) -> [Given; 2] {
    let mut y: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    let mut all = Vec::new();
    let mut passes = 0;
    let mut goes_on = !asks_first || y.iter().sum::<f64>() > 1.0;
    while goes_on && passes < trips {
        y.iter_mut().for_each(|v| *v *= 0.5);
        all.extend(y.iter().map(|v| v + passes as f64));
        goes_on = y.iter().sum::<f64>() > 1.0;
        passes += 1;
    }
    [(vec![1, 16], y), (vec![passes, 1, 16], all)]
}

fn of_sum(sum: f32) -> Vec<f32> {
    let mut x = vec![0.25f32; 16];
    x[3] = sum - 0.25 * 15.0;
    x
}

#[test]
fn a_loop_ends_when_the_data_say_so() {
    for asks_first in [false, true] {
        for mut session in sessions(&halving(Some(5), asks_first), &[]) {
            for sum in [3.0, 100.0, 0.5, 16.0] {
                let x = of_sum(sum);
                let results = run(&mut session, &[bytes(&x)]).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(results, halved(&x, 5, asks_first), "{sum}");
            }
        }
    }
}

#[test]
fn a_loop_that_nothing_bounds_is_asked_about_and_cut() {
    let model = halving(None, true);
    let folder = tempfile::tempdir().expect("temporary folder");
    let error = open(&model, folder.path(), &[])
        .err()
        .expect("endless")
        .to_string();
    assert!(error.contains("the bound of 'y'"), "{error}");
    for mut session in sessions(&model, &[("y", 3)]) {
        for sum in [7.75, 0.25, 2.0] {
            let x = of_sum(sum);
            let results = run(&mut session, &[bytes(&x)]).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(results, halved(&x, 3, true), "{sum}");
        }
        let error = run(&mut session, &[bytes(&of_sum(8.5))]);
        let error = error.expect_err("one pass more").to_string();
        assert!(error.contains("goes on after 3 passes"), "{error}");
    }
}

/// For each element that is not zero its number is appended, and the row of a table that is streamed.
fn appending() -> onnx::Model {
    let body = graph(
        &["i", "on", "list"],
        &["on", "longer", "row"],
        &[f32_tensor(
            "table",
            &[16, WIDE as i64],
            &whole(4, 16 * WIDE),
        )],
        &[
            node("Cast", &["i"], &["number"], &[("to", Attr::Int(1))]),
            node("Reshape", &["number", "all"], &["last"], &[]),
            node(
                "Concat",
                &["list", "last"],
                &["longer"],
                &[("axis", Attr::Int(0))],
            ),
            node("Gather", &["x", "i"], &["value"], &[]),
            node("Gather", &["table", "i"], &["own"], &[]),
            node("Mul", &["own", "value"], &["row"], &[]),
        ],
    );
    onnx::Model::new(13)
        .input("x", FLOAT, &[16])
        .constant(&f32_tensor("list", &[1], &[-1.0]))
        .constant(&i64_tensor("second", &[], &[1]))
        .ints("all", &[-1])
        .node("NonZero", &["x"], &["places"], &[])
        .node("Shape", &["places"], &["size"], &[])
        .node("Gather", &["size", "second"], &["count"], &[])
        .node(
            "Loop",
            &["count", "", "list"],
            &["longest", "rows"],
            &[("body", Attr::Graph(body))],
        )
        .output("longest")
        .output("rows")
}

#[test]
fn a_loop_goes_round_as_often_as_the_data_say() {
    let table = whole(4, 16 * WIDE);
    for mut session in sessions(&appending(), &[]) {
        assert_eq!(session.outputs()[0].ty.shape, [17]);
        for count in [4, 0, 16, 1] {
            let mut x = vec![0.0f32; 16];
            x[16 - count..].fill(2.0);
            let numbers = (-1..count as i64).map(|i| i as f64).collect();
            let rows = (0..count * WIDE).map(|i| f64::from(table[i]) * f64::from(x[i / WIDE]));
            let expected: [Given; 2] = [
                (vec![count + 1], numbers),
                (vec![count, WIDE], rows.collect()),
            ];
            let results = run(&mut session, &[bytes(&x)]).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(results, expected, "{count}");
        }
    }
}

#[test]
fn what_the_data_cannot_decide_is_refused_by_name() {
    let branch = |op: &str, inputs: &[&str]| {
        graph(&[], &["given"], &[], &[node(op, inputs, &["given"], &[])])
    };
    let model = |then: Bytes, otherwise: Bytes| {
        let [sum] = sum_of_x();
        onnx::Model::new(13)
            .input("x", FLOAT, &[4, 16])
            .constant(&f32_tensor("nothing", &[], &[0.0]))
            .ints("flat", &[-1])
            .raw_node(&sum)
            .node("Greater", &["sum", "nothing"], &["holds"], &[])
            .node(
                "If",
                &["holds"],
                &["y"],
                &[
                    ("then_branch", Attr::Graph(then)),
                    ("else_branch", Attr::Graph(otherwise)),
                ],
            )
            .output("y")
    };
    for (then, otherwise, part) in [
        (
            branch("Abs", &["x"]),
            branch("Reshape", &["x", "flat"]),
            "number of axes",
        ),
        (
            branch("Abs", &["x"]),
            branch("Greater", &["x", "nothing"]),
            "float32 or bool",
        ),
        (
            branch("Abs", &["x"]),
            branch("SequenceConstruct", &["x"]),
            "a sequence",
        ),
    ] {
        let folder = tempfile::tempdir().expect("temporary folder");
        let error = open(&model(then, otherwise), folder.path(), &[]);
        let error = error.err().expect("refused").to_string();
        assert!(error.contains(part) && error.contains("the_If"), "{error}");
    }
    // A condition that an input gives is asked for: such a model knows all its sizes.
    let asked = onnx::Model::new(13)
        .input("x", FLOAT, &[4, 16])
        .input("holds", BOOL, &[])
        .node(
            "If",
            &["holds"],
            &["y"],
            &[
                ("then_branch", Attr::Graph(branch("Abs", &["x"]))),
                ("else_branch", Attr::Graph(branch("Neg", &["x"]))),
            ],
        )
        .output("y");
    let folder = tempfile::tempdir().expect("temporary folder");
    let error = open(&asked, folder.path(), &[])
        .err()
        .expect("asked")
        .to_string();
    assert!(error.contains("the value of input 'holds'"), "{error}");
}
