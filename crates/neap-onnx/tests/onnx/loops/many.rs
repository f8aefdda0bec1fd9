//! Loops of so many passes that they are one operator each, which holds the graph of a pass.

use super::{graph, run};
use crate::support::*;
use neap_ir::late::LateOp;
use neap_ir::{Graph, Literal, Op};

/// The bodies of its loops, by how many passes memory is planned for.
fn bodies(graph: &Graph) -> Vec<u64> {
    let of = |node: &neap_ir::Node| match &node.op {
        Op::Late(late) => match &late.op {
            LateOp::Repeat(of) => Some(of.most),
            _ => None,
        },
        _ => None,
    };
    graph.nodes.iter().filter_map(of).collect()
}

/// `y = y / 2 + i`; the third result says whether to go on: while `i < most`.
fn halving(trips: Option<i64>, most: i64) -> Model {
    let body = graph(
        &["i", "on", "y"],
        &["again", "next", "seen"],
        &[
            f32_tensor("half", &[], &[0.5]),
            i64_tensor("most", &[], &[most]),
        ],
        &[
            node("Mul", &["y", "half"], &["halved"], &[]),
            node("Cast", &["i"], &["step"], &[("to", Attr::Int(1))]),
            node("Add", &["halved", "step"], &["next"], &[]),
            node("Neg", &["next"], &["seen"], &[]),
            node("Less", &["i", "most"], &["again"], &[]),
        ],
    );
    let mut model = Model::new(13).input("x", FLOAT, &[2]);
    if let Some(trips) = trips {
        model = model.constant(&i64_tensor("trips", &[], &[trips]));
    }
    let first = if trips.is_some() { "trips" } else { "" };
    let attributes = [("body", Attr::Graph(body))];
    let model = model.node("Loop", &[first, "", "x"], &["y", "all"], &attributes);
    model.output("y").output("all")
}

#[test]
fn many_passes_end_by_count_or_condition() {
    for (trips, most, passes) in [
        (Some(5_000), i64::MAX, 5_000),
        (Some(9_000), 3_999, 4_000),
        (None, 2_999, 3_000),
    ] {
        let model = halving(trips, most);
        assert_eq!(bodies(&model.graph()), [passes as u64]);
        let mut y = [1.0f32, -1.0];
        let mut all = Vec::new();
        for i in 0..passes {
            y = y.map(|y| y * 0.5 + i as f32);
            all.extend(y.map(|y| -y));
        }
        let results = run(&model, &[Literal::from_f32(&[2], &[1.0, -1.0])]);
        assert_eq!(results[0].as_f32(), Some(&y[..]));
        assert_eq!(results[1].as_f32(), Some(&all[..]));
        assert_eq!(results[1].shape(), [passes, 2]);
    }
}

fn uneven(count: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 64.3;
    (0..count).map(value).collect()
}

/// Ten nodes whose results depend on the order of sums: with a weight, with the model's input, with what is carried.
fn rounding(trips: i64) -> Model {
    let body = graph(
        &["i", "on", "y", "z"],
        &["on", "next", "turned", "seen"],
        &[f32_tensor("w", &[5, 5], &uneven(25))],
        &[
            node("MatMul", &["y", "w"], &["product"], &[]),
            node("Add", &["product", "x"], &["sum"], &[]),
            node("Tanh", &["sum"], &["bent"], &[]),
            node("Softmax", &["z"], &["shares"], &[("axis", Attr::Int(1))]),
            node("Mul", &["bent", "shares"], &["part"], &[]),
            node("Sub", &["bent", "part"], &["next"], &[]),
            node("Exp", &["part"], &["grown"], &[]),
            node("Add", &["grown", "y"], &["turned"], &[]),
            node("Cast", &["i"], &["step"], &[("to", Attr::Int(1))]),
            node("Mul", &["turned", "step"], &["seen"], &[]),
        ],
    );
    Model::new(13)
        .input("x", FLOAT, &[3, 5])
        .constant(&i64_tensor("trips", &[], &[trips]))
        .node(
            "Loop",
            &["trips", "", "x", "x"],
            &["y", "z", "all"],
            &[("body", Attr::Graph(body))],
        )
        .output("all")
        .output("y")
        .output("z")
}

#[test]
fn one_operator_gives_the_bits_of_the_passes_written_out() {
    let x = Literal::from_f32(&[3, 5], &uneven(15));
    let (few, many) = (rounding(100), rounding(300));
    assert!(bodies(&few.graph()).is_empty());
    assert_eq!(bodies(&many.graph()), [300]);
    let written = run(&few, std::slice::from_ref(&x));
    let in_one = run(&many, &[x]);
    assert_eq!(in_one[0].shape(), [300, 3, 5]);
    let first = written[0].bytes();
    assert_eq!(&in_one[0].bytes()[..first.len()], first);
    // Each pass is something new, so equal bits say something.
    let values = in_one[0].as_f32().expect("float");
    assert!(values.iter().all(|v| v.is_finite()));
    assert_ne!(values[15..30], values[30..45]);
}

/// Fibonacci's numbers modulo 1000 by two states that change places, and how often; a third state stays.
#[test]
fn states_change_places_and_stay() {
    let body = graph(
        &["i", "on", "a", "b", "c"],
        &["on", "b", "next", "c", "b", "c"],
        &[f32_tensor("thousand", &[], &[1000.0])],
        &[
            node("Add", &["a", "b"], &["sum"], &[]),
            node(
                "Mod",
                &["sum", "thousand"],
                &["next"],
                &[("fmod", Attr::Int(1))],
            ),
        ],
    );
    let model = Model::new(13)
        .input("x", FLOAT, &[1])
        .constant(&i64_tensor("trips", &[], &[4_001]))
        .constant(&f32_tensor("one", &[1], &[1.0]))
        .node(
            "Loop",
            &["trips", "", "x", "one", "x"],
            &["a", "b", "c", "each", "same"],
            &[("body", Attr::Graph(body))],
        )
        .output("a")
        .output("b")
        .output("c")
        .output("each")
        .output("same");
    assert_eq!(bodies(&model.graph()), [4_001]);
    let (mut a, mut b) = (7.0f32, 1.0);
    let mut each = Vec::new();
    for _ in 0..4_001 {
        each.push(b);
        (a, b) = (b, (a + b) % 1000.0);
    }
    let results = run(&model, &[Literal::from_f32(&[1], &[7.0])]);
    let values = results.iter().map(|r| r.as_f32().expect("float"));
    let values: Vec<&[f32]> = values.collect();
    assert_eq!(values[..4], [&[a][..], &[b], &[7.0], &each]);
    assert_eq!(values[4], vec![7.0; 4_001]);
}

#[test]
fn a_long_scan_goes_along_its_axes() {
    // The sum of the columns so far, from the last one; results become columns, the last first.
    let body = graph(
        &["sum", "column", "row"],
        &["next", "seen", "both"],
        &[],
        &[
            node("Add", &["sum", "column"], &["next"], &[]),
            node("Neg", &["next"], &["seen"], &[]),
            node("Sub", &["column", "row"], &["both"], &[]),
        ],
    );
    const LONG: usize = 1_500;
    let attributes = [
        ("body", Attr::Graph(body)),
        ("num_scan_inputs", Attr::Int(2)),
        ("scan_input_axes", Attr::Ints(&[1, 0])),
        ("scan_input_directions", Attr::Ints(&[1, 0])),
        ("scan_output_axes", Attr::Ints(&[-1, 0])),
        ("scan_output_directions", Attr::Ints(&[1, 0])),
    ];
    let model = Model::new(13)
        .input("start", FLOAT, &[2])
        .input("x", FLOAT, &[2, LONG as i64])
        .input("rows", FLOAT, &[LONG as i64, 2])
        .node(
            "Scan",
            &["start", "x", "rows"],
            &["y", "all", "both"],
            &attributes,
        )
        .output("y")
        .output("all")
        .output("both");
    assert_eq!(bodies(&model.graph()), [LONG as u64]);
    let x = |row: usize, column: usize| ((row * 31 + column * 7) % 13) as f32 - 6.0;
    let given: Vec<f32> = (0..2 * LONG).map(|i| x(i / LONG, i % LONG)).collect();
    let rows: Vec<f32> = (0..2 * LONG).map(|i| (i % 17) as f32).collect();
    let mut sums = [10.0f32, 20.0];
    let mut all = vec![0.0; 2 * LONG];
    let mut both = Vec::new();
    for pass in 0..LONG {
        for row in 0..2 {
            let column = LONG - 1 - pass;
            sums[row] += x(row, column);
            all[row * LONG + column] = -sums[row];
            both.push(x(row, column) - rows[2 * pass + row]);
        }
    }
    let start = Literal::from_f32(&[2], &[10.0, 20.0]);
    let x = Literal::from_f32(&[2, LONG], &given);
    let rows = Literal::from_f32(&[LONG, 2], &rows);
    let results = run(&model, &[start, x, rows]);
    assert_eq!(results[0].as_f32(), Some(&sums[..]));
    assert_eq!(results[1].shape(), [2, LONG]);
    assert_eq!(results[1].as_f32(), Some(&all[..]));
    assert_eq!(results[2].shape(), [LONG, 2]);
    assert_eq!(results[2].as_f32(), Some(&both[..]));
}

#[test]
fn loops_within_long_loops_are_operators_too() {
    // Adds 1 to y 2,000 times, 2,000 times over; the inner loop also counts in what the outer carries.
    let inner = graph(
        &["j", "on", "z"],
        &["on", "more"],
        &[],
        &[node("Add", &["z", "one"], &["more"], &[])],
    );
    let outer = graph(
        &["i", "on", "y"],
        &["on", "next"],
        &[],
        &[node(
            "Loop",
            &["trips", "on", "y"],
            &["next"],
            &[("body", Attr::Graph(inner))],
        )],
    );
    let model = Model::new(13)
        .input("x", FLOAT, &[1])
        .constant(&i64_tensor("trips", &[], &[2_000]))
        .constant(&f32_tensor("one", &[], &[1.0]))
        .node(
            "Loop",
            &["trips", "", "x"],
            &["y"],
            &[("body", Attr::Graph(outer))],
        )
        .output("y");
    let graph = model.graph();
    assert_eq!(bodies(&graph), [2_000]);
    let within = graph.bodies();
    assert_eq!(within.len(), 2);
    assert_eq!(bodies(within[0]), [2_000]);
    let results = run(&model, &[Literal::from_f32(&[1], &[3.0])]);
    assert_eq!(results[0].as_f32(), Some(&[4_000_003.0][..]));
}

/// Appends the pass's number and the largest so far to a list, and adds its lengths up; ends at 900 elements where x is 1.
#[test]
fn a_state_grows_from_pass_to_pass() {
    let body = graph(
        &["i", "on", "list", "sum"],
        &["again", "longer", "more"],
        &[],
        &[
            node("Cast", &["i"], &["number"], &[("to", Attr::Int(1))]),
            node("Reshape", &["number", "all"], &["last"], &[]),
            node("ReduceMax", &["list"], &["so_far"], &[]),
            node(
                "Concat",
                &["list", "last", "so_far"],
                &["longer"],
                &[("axis", Attr::Int(0))],
            ),
            node("Shape", &["longer"], &["size"], &[]),
            node("Cast", &["size"], &["length"], &[("to", Attr::Int(1))]),
            node("Add", &["sum", "length"], &["more"], &[]),
            node("Mul", &["length", "x"], &["weighed"], &[]),
            node("Less", &["weighed", "limit"], &["again"], &[]),
        ],
    );
    let model = Model::new(13)
        .input("x", FLOAT, &[1])
        .constant(&i64_tensor("trips", &[], &[600]))
        .constant(&f32_tensor("first", &[1], &[0.0]))
        .constant(&f32_tensor("limit", &[1], &[900.0]))
        .ints("all", &[-1])
        .node(
            "Loop",
            &["trips", "", "first", "first"],
            &["list", "sum"],
            &[("body", Attr::Graph(body))],
        )
        .output("list")
        .output("sum");
    let opened = model.graph();
    assert_eq!(bodies(&opened), [600]);
    assert_eq!(output_shape(&opened), [1_201]);
    for (x, passes) in [(1.0, 450), (-1.0, 600), (1e6, 1)] {
        let (mut list, mut sum) = (vec![0.0f32], 0.0f32);
        for i in 0..passes {
            let so_far = list.iter().copied().fold(0.0, f32::max);
            list.extend([i as f32, so_far]);
            sum += list.len() as f32;
        }
        let results = run(&model, &[Literal::from_f32(&[1], &[x])]);
        assert_eq!(results[0].shape(), [2 * passes + 1]);
        assert_eq!(results[0].as_f32(), Some(&list[..]), "{x}");
        assert_eq!(results[1].as_f32(), Some(&[sum][..]), "{x}");
    }
}

#[test]
fn a_state_has_the_size_that_the_data_decide() {
    let body = graph(
        &["i", "on", "y"],
        &["on", "next"],
        &[f32_tensor("half", &[], &[0.5])],
        &[
            node("Mul", &["y", "half"], &["halved"], &[]),
            node("Add", &["halved", "kept"], &["next"], &[]),
        ],
    );
    let model = Model::new(13)
        .input("x", FLOAT, &[16])
        .constant(&i64_tensor("trips", &[], &[1_500]))
        .ints("first", &[0])
        .node("NonZero", &["x"], &["places"], &[])
        .node("Squeeze", &["places", "first"], &["rows"], &[])
        .node("Gather", &["x", "rows"], &["kept"], &[])
        .node(
            "Loop",
            &["trips", "", "kept"],
            &["y"],
            &[("body", Attr::Graph(body))],
        )
        .output("y");
    assert_eq!(bodies(&model.graph()), [1_500]);
    for count in [5, 0, 16] {
        let mut x = vec![0.0f32; 16];
        for (i, value) in x[..count].iter_mut().enumerate() {
            *value = 1.0 + i as f32;
        }
        let mut y = x[..count].to_vec();
        for _ in 0..1_500 {
            let next = y.iter().zip(&x).map(|(y, kept)| y * 0.5 + kept);
            y = next.collect();
        }
        let results = run(&model, &[Literal::from_f32(&[16], &x)]);
        assert_eq!(results[0].shape(), [count]);
        assert_eq!(results[0].as_f32(), Some(&y[..]));
    }
}

#[test]
fn what_is_made_of_weights_alone_is_made_before_the_loop() {
    const WIDE: usize = 80;
    let body = graph(
        &["i", "on", "y"],
        &["on", "next"],
        &[f32_tensor("w", &[WIDE as i64; 2], &uneven(WIDE * WIDE))],
        &[
            node("Transpose", &["w"], &["turned"], &[]),
            node("Neg", &["turned"], &["negative"], &[]),
            node("MatMul", &["y", "negative"], &["product"], &[]),
            node("Transpose", &["product"], &["column"], &[]),
            node("MatMul", &["negative", "column"], &["long"], &[]),
            node("Transpose", &["long"], &["row"], &[]),
            node("Tanh", &["row"], &["next"], &[]),
        ],
    );
    let graph = Model::new(13)
        .input("x", FLOAT, &[1, WIDE as i64])
        .constant(&i64_tensor("trips", &[], &[500]))
        .node(
            "Loop",
            &["trips", "", "x"],
            &["y"],
            &[("body", Attr::Graph(body))],
        )
        .output("y")
        .graph();
    assert_eq!(operators(&graph), ["Transpose", "Neg", "Loop"]);
    let body = graph.bodies()[0];
    // The number of the pass, what it carries, the weight, and that it goes on.
    assert_eq!(body.inputs.len(), 4, "{body}");
    let products = operators(body).into_iter().filter(|op| *op == "MatMul");
    assert_eq!(products.count(), 2);
}

#[test]
fn what_many_passes_cannot_be_is_refused() {
    let widening = graph(
        &["i", "on", "y"],
        &["on", "wide"],
        &[],
        &[node("Cast", &["y"], &["wide"], &[("to", Attr::Int(11))])],
    );
    let model = |body: Bytes, trips: i64| {
        Model::new(13)
            .input("x", FLOAT, &[2])
            .constant(&i64_tensor("trips", &[], &[trips]))
            .node(
                "Loop",
                &["trips", "", "x"],
                &["y"],
                &[("body", Attr::Graph(body))],
            )
            .output("y")
    };
    let widens = model(widening.clone(), 2_000).error();
    assert!(widens.contains("whose type changes"), "{widens}");
    // Fewer are written out.
    let few = model(widening, 8).graph();
    assert_eq!(few.ty(few.outputs[0]).dtype, neap_ir::DType::F64);
    // Without a count, and with a condition that never ends it.
    let endless = halving(None, i64::MAX).error();
    let limit = "so many passes (a loop may become 1000 nodes) is not supported";
    assert!(endless.contains(limit), "{endless}");
}
