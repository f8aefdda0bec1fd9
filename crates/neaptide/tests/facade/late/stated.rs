//! Sizes that the model itself bounds, and shapes of which only a part is of the data.

use super::{bytes, open, run, sessions};
use crate::onnx::{self, Attr, FLOAT, INT64, f32_tensor, i64_tensor};

const TO_INT: (&str, Attr) = ("to", Attr::Int(INT64 as i64));
const TO_FLOAT: (&str, Attr) = ("to", Attr::Int(FLOAT as i64));
const KEPT: (&str, Attr) = ("keepdims", Attr::Int(1));
const GONE: (&str, Attr) = ("keepdims", Attr::Int(0));

/// Sixteen numbers, of which six are positive, and constants of various values.
fn data() -> onnx::Model {
    let number = |name: &str, value: i64| i64_tensor(name, &[], &[value]);
    let mut model = onnx::Model::new(17).input("d", FLOAT, &[16]);
    for (name, value) in [("0", 0), ("1", 1), ("-1", -1), ("4", 4), ("9", 9)] {
        model = model.constant(&number(name, value));
        model = model.constant(&f32_tensor(&format!("{name}f"), &[], &[value as f32]));
    }
    model
}

fn numbers() -> Vec<u8> {
    let mut d = [-0.5f32; 16];
    for (at, value) in [
        (1, 2.0),
        (3, 1.0),
        (6, 0.25),
        (9, 3.5),
        (12, 0.5),
        (15, 1.25),
    ] {
        d[at] = value;
    }
    bytes(&d)
}

/// How long a range is, by these nodes from `d` to `n`: at most `most`, and here `length`.
fn is_as_long(name: &str, model: onnx::Model, most: usize, length: usize) {
    let model = model
        .node("Range", &["0", "n", "1"], &["y"], &[])
        .output("y");
    for mut session in sessions(&model, &[]) {
        assert_eq!(session.outputs()[0].ty.shape, [most], "{name}");
        let results = run(&mut session, &[numbers()]).unwrap_or_else(|e| panic!("{name}: {e}"));
        let places: Vec<f64> = (0..length).map(|i| i as f64).collect();
        assert_eq!(results[0], (vec![length], places), "{name}");
    }
}

#[test]
fn lengths_that_the_model_cuts_off_need_no_bound() {
    // 3.5 at most, and 9 - 10 * 0.5 + 8.5 in all.
    let sum = || data().node("ReduceSum", &["d"], &["sum"], &[GONE]);
    let whole = || sum().node("Cast", &["sum"], &["whole"], &[TO_INT]);
    is_as_long(
        "Min",
        whole().node("Min", &["whole", "9"], &["n"], &[]),
        9,
        3,
    );
    is_as_long(
        "Clip",
        whole().node("Clip", &["whole", "0", "4"], &["n"], &[]),
        4,
        3,
    );
    let floats = sum().node("Clip", &["sum", "0f", "4f"], &["cut"], &[]);
    let floats = floats.node("Ceil", &["cut"], &["up"], &[]);
    is_as_long(
        "Ceil",
        floats.node("Cast", &["up"], &["n"], &[TO_INT]),
        4,
        4,
    );
    is_as_long(
        "Mod",
        whole().node("Mod", &["whole", "9"], &["n"], &[]),
        8,
        3,
    );
    let chosen = sum().node("Greater", &["sum", "4f"], &["more"], &[]);
    is_as_long(
        "Where",
        chosen.node("Where", &["more", "9", "4"], &["n"], &[]),
        9,
        4,
    );
    let share = sum().node("Sigmoid", &["sum"], &["share"], &[]);
    let share = share.node("Mul", &["share", "9f"], &["part"], &[]);
    let share = share.node("Floor", &["part"], &["down"], &[]);
    is_as_long(
        "Sigmoid",
        share.node("Cast", &["down"], &["n"], &[TO_INT]),
        9,
        8,
    );
}

#[test]
fn counts_and_places_are_bounded_by_what_is_counted() {
    let truths = || data().node("Greater", &["d", "0f"], &["is_more"], &[]);
    for to in [TO_INT, TO_FLOAT] {
        let count = truths().node("Cast", &["is_more"], &["each"], &[to]);
        let count = count.node("ReduceSum", &["each"], &["sum"], &[GONE]);
        is_as_long(
            "count",
            count.node("Cast", &["sum"], &["n"], &[TO_INT]),
            16,
            6,
        );
    }
    let place = || data().node("ArgMax", &["d"], &["place"], &[GONE]);
    is_as_long(
        "ArgMax",
        place().node("Identity", &["place"], &["n"], &[]),
        15,
        9,
    );
    let third = place().node("Div", &["place", "4"], &["quarter"], &[]);
    let third = third.node("Add", &["quarter", "4"], &["n"], &[]);
    is_as_long("Div, Add", third, 7, 6);
    let rest = place().node("Sub", &["9", "place"], &["rest"], &[]);
    is_as_long("Sub", rest.node("Max", &["rest", "4"], &["n"], &[]), 9, 4);
    let last = truths().node("NonZero", &["is_more"], &["places"], &[]);
    let last = last.node("ReduceMax", &["places"], &["n"], &[GONE]);
    is_as_long("NonZero", last, 15, 15);
    let size = truths().node("NonZero", &["is_more"], &["places"], &[]);
    is_as_long("Size", size.node("Size", &["places"], &["n"], &[]), 16, 6);
    let each = data().node("Clip", &["d", "0f", "4f"], &["cut"], &[]);
    let each =
        each.node("Ceil", &["cut"], &["up"], &[])
            .node("Cast", &["up"], &["each"], &[TO_INT]);
    let last = each.node("CumSum", &["each", "0"], &["ends"], &[]);
    let last = last.node("Gather", &["ends", "-1"], &["n"], &[]);
    // 2, 1, 1, 4, 1 and 2.
    is_as_long("CumSum", last, 64, 11);
}

#[test]
fn only_the_part_of_a_shape_that_the_data_decide_is_bounded_by_the_users_word() {
    let norm = |model: onnx::Model| {
        let model = model.constant(&f32_tensor("scale", &[4], &[1.0; 4]));
        model
            .node("LayerNormalization", &["c", "scale"], &["y"], &[])
            .output("y")
            .output("c")
    };
    let rows = || {
        let model = data().node("ReduceSum", &["d"], &["sum"], &[KEPT]);
        let model = model.node("Cast", &["sum"], &["n"], &[TO_INT]);
        let model = model
            .ints("four", &[4])
            .ints("ones", &[1])
            .ints("none", &[0, 0])
            .ints("zero", &[0]);
        model.constant(&f32_tensor(
            "x",
            &[2, 4],
            &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0],
        ))
    };
    let along = ("axis", Attr::Int(0));
    let shape = |parts: &[&str]| rows().node("Concat", parts, &["shape"], &[along_of(&along)]);
    let of = |op: &str, inputs: &[&str], parts: &[&str]| {
        norm(shape(parts).node(op, inputs, &["c"], &[]))
    };
    for (name, model, most, rows) in [
        (
            "ConstantOfShape",
            of("ConstantOfShape", &["shape"], &["n", "four"]),
            5,
            3,
        ),
        ("Tile", of("Tile", &["x", "shape"], &["n", "ones"]), 10, 6),
        (
            "Pad",
            of("Pad", &["x", "shape"], &["none", "n", "zero"]),
            7,
            5,
        ),
        (
            "Slice",
            of("Slice", &["x", "none", "shape"], &["n", "four"]),
            2,
            2,
        ),
    ] {
        for mut session in sessions(&model, &[("c", 5)]) {
            assert_eq!(session.outputs()[1].ty.shape, [most, 4], "{name}");
            let results = run(&mut session, &[numbers()]).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(results[0].0, [rows, 4], "{name}");
        }
    }
}

fn along_of(axis: &(&'static str, Attr<'static>)) -> (&'static str, Attr<'static>) {
    match axis.1 {
        Attr::Int(value) => (axis.0, Attr::Int(value)),
        _ => unreachable!("an axis is a number"),
    }
}

#[test]
fn a_softmax_of_old_opsets_goes_over_all_axes_from_one_on_of_rows_that_the_data_count() {
    for (axis, row) in [(2, 2usize), (1, 4)] {
        let model = onnx::Model::new(11)
            .input("x", FLOAT, &[2, 3])
            .node("NonZero", &["x"], &["places"], &[])
            .node("Transpose", &["places"], &["rows"], &[])
            .node("Cast", &["rows"], &["numbers"], &[TO_FLOAT])
            .node(
                "Unsqueeze",
                &["numbers"],
                &["deep"],
                &[("axes", Attr::Ints(&[1]))],
            )
            .node(
                "Concat",
                &["deep", "deep"],
                &["both"],
                &[("axis", Attr::Int(1))],
            )
            .node("Softmax", &["both"], &["y"], &[("axis", Attr::Int(axis))])
            .output("y");
        for mut session in sessions(&model, &[]) {
            let x = bytes(&[1.0f32, 0.0, 1.0, 0.0, 1.0, 1.0]);
            let (shape, y) = run(&mut session, &[x])
                .unwrap_or_else(|e| panic!("{e}"))
                .remove(0);
            assert_eq!(shape, [4, 2, 2]);
            let sums = y.chunks(row).map(|row| row.iter().sum::<f64>());
            assert!(sums.clone().all(|sum| (sum - 1.0).abs() < 1e-6), "{y:?}");
        }
    }
}

#[test]
fn a_bound_that_the_user_gives_may_be_less_than_the_models() {
    let model = data()
        .node("ReduceSum", &["d"], &["sum"], &[GONE])
        .node("Cast", &["sum"], &["whole"], &[TO_INT])
        .node("Min", &["whole", "9"], &["n"], &[])
        .node("Range", &["0", "n", "1"], &["y"], &[])
        .output("y");
    let folder = tempfile::tempdir().expect("temporary folder");
    let opened = open(&model, folder.path(), &[("y", 5)]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(opened.outputs()[0].ty.shape, [5]);
    let opened = open(&model, folder.path(), &[("y", 50)]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(opened.outputs()[0].ty.shape, [9]);
}
