//! What models do beside the letter of the standard, and onnxruntime takes.

use crate::support::*;
use neap_ir::Literal;

fn run(model: &Model, inputs: &[Literal]) -> Vec<Literal> {
    neap_ops::interpret(&model.graph(), inputs, &|_| None).expect("computes")
}

fn counted(shape: &[usize]) -> Literal {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (1..=count).map(|i| i as f32).collect();
    Literal::from_f32(shape, &values)
}

fn sizes(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&d| d as i64).collect()
}

#[test]
fn empty_parts_of_a_concatenation_may_have_any_other_sizes() {
    for (parts, axis, expected) in [
        (vec![vec![0, 0], vec![2, 3]], 0, vec![2, 3]),
        (vec![vec![2, 3], vec![0, 0]], 0, vec![2, 3]),
        (vec![vec![0, 4], vec![2, 3], vec![1, 3]], 0, vec![3, 3]),
        (vec![vec![2, 0, 3], vec![1, 4, 3]], 1, vec![1, 4, 3]),
        (vec![vec![0, 0], vec![2, 0]], 1, vec![0, 0]),
        (vec![vec![2, 0], vec![3, 0]], 0, vec![5, 0]),
    ] {
        let names: Vec<String> = (0..parts.len()).map(|i| format!("x{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let given = names.iter().zip(&parts);
        let model = given.fold(Model::new(13), |model, (name, shape)| {
            model.input(name, FLOAT, &sizes(shape))
        });
        let axis = [("axis", Attr::Int(axis))];
        let model = model.node("Concat", &names, &["y"], &axis).output("y");
        let inputs: Vec<Literal> = parts.iter().map(|shape| counted(shape)).collect();
        let full = inputs.iter().filter(|x| !x.shape().contains(&0));
        let elements: Vec<f32> = full
            .flat_map(|x| x.as_f32().expect("floats").to_vec())
            .collect();
        let y = &run(&model, &inputs)[0];
        assert_eq!(y.shape(), expected, "{parts:?}");
        assert_eq!(y.as_f32(), Some(&elements[..]), "{parts:?}");
    }
    let ranks = Model::new(13)
        .input("a", FLOAT, &[0])
        .input("b", FLOAT, &[2, 3])
        .node("Concat", &["a", "b"], &["y"], &[("axis", Attr::Int(0))])
        .output("y");
    assert!(ranks.error().contains("do not join"));
}

#[test]
fn an_empty_part_beside_rows_that_are_counted_when_running_is_not_left_out() {
    // If no row is kept the result has 2 + 3 columns, and 3 if one is: nobody knows before.
    let joined = |columns| {
        Model::new(13)
            .input("x", FLOAT, &[2, 3])
            .input("keep", BOOL, &[2])
            .input("empty", FLOAT, &[0, columns])
            .node(
                "Compress",
                &["x", "keep"],
                &["rows"],
                &[("axis", Attr::Int(0))],
            )
            .node(
                "Concat",
                &["empty", "rows"],
                &["y"],
                &[("axis", Attr::Int(1))],
            )
            .output("y")
    };
    assert!(joined(2).error().contains("an empty part"));
    joined(0).graph();
}

#[test]
fn a_pooling_with_same_padding_of_an_empty_axis_is_empty() {
    for op in ["MaxPool", "AveragePool", "LpPool"] {
        let model = Model::new(13)
            .input("x", FLOAT, &[1, 2, 0, 7])
            .node(
                op,
                &["x"],
                &["y"],
                &[
                    ("kernel_shape", Attr::Ints(&[3, 2])),
                    ("strides", Attr::Ints(&[1, 2])),
                    ("auto_pad", Attr::Str("SAME_UPPER")),
                ],
            )
            .output("y");
        let y = &run(&model, &[counted(&[1, 2, 0, 7])])[0];
        assert_eq!(y.shape(), [1, 2, 0, 4], "{op}");
    }
}

#[test]
fn a_pad_may_crop_beyond_the_end_of_an_axis_that_it_fills() {
    for (before, after, expected) in [
        (-5, 3, vec![9.0; 2]),
        (3, -5, vec![9.0; 2]),
        (-5, 5, vec![9.0; 4]),
        (-2, -2, vec![]),
        (-4, 1, vec![9.0]),
        (-3, 1, vec![4.0, 9.0]),
    ] {
        let model = Model::new(13)
            .input("x", FLOAT, &[4])
            .ints("pads", &[before, after])
            .constant(&f32_tensor("fill", &[], &[9.0]))
            .node("Pad", &["x", "pads", "fill"], &["y"], &[])
            .output("y");
        let y = &run(&model, &[counted(&[4])])[0];
        assert_eq!(y.as_f32(), Some(&expected[..]), "{before} {after}");
    }
    for (pads, mode) in [([-3, -3], "constant"), ([-5, 7], "edge")] {
        let model = Model::new(13)
            .input("x", FLOAT, &[4])
            .ints("pads", &pads)
            .node("Pad", &["x", "pads"], &["y"], &[("mode", Attr::Str(mode))])
            .output("y");
        assert!(model.error().contains("crops more than there is"));
    }
}

#[test]
fn a_slope_may_have_more_axes_than_what_it_bends() {
    for (x, slope) in [
        (vec![3], vec![2, 3]),
        (vec![2, 3], vec![4, 2, 3]),
        (vec![1, 3], vec![2, 3]),
        (vec![2, 1], vec![3]),
    ] {
        let model = |op: &str| {
            let model = Model::new(16).input("x", FLOAT, &sizes(&x));
            let model = model.input("slope", FLOAT, &sizes(&slope));
            model.node(op, &["x", "slope"], &["y"], &[]).output("y")
        };
        let negative = counted(&x)
            .as_f32()
            .expect("floats")
            .iter()
            .map(|v| -v)
            .collect::<Vec<_>>();
        let inputs = [Literal::from_f32(&x, &negative), counted(&slope)];
        assert_eq!(
            run(&model("PRelu"), &inputs),
            run(&model("Mul"), &inputs),
            "{x:?} {slope:?}"
        );
    }
}

#[test]
fn the_mask_of_a_dropout_that_drops_nothing_is_what_onnxruntime_gives() {
    for (opset, dtype, expected) in [(7, FLOAT, 0.0), (10, BOOL, 0.0), (12, BOOL, 1.0)] {
        let model = Model::new(opset)
            .input("x", FLOAT, &[2, 3])
            .node("Dropout", &["x"], &["y", "mask"], &[])
            .node(
                "Cast",
                &["mask"],
                &["numbers"],
                &[("to", Attr::Int(FLOAT.into()))],
            )
            .output("y")
            .output("mask")
            .output("numbers");
        let results = run(&model, &[counted(&[2, 3])]);
        assert_eq!(results[0], counted(&[2, 3]));
        assert_eq!(results[1].dtype() == neap_ir::DType::Bool, dtype == BOOL);
        assert_eq!(
            results[2].as_f32(),
            Some(&[expected; 6][..]),
            "opset {opset}"
        );
    }
}

#[test]
fn of_two_weights_of_one_name_the_last_counts() {
    let model = Model::new(13)
        .input("x", FLOAT, &[2])
        .constant(&f32_tensor("k", &[2], &[5.0, 5.0]))
        .constant(&f32_tensor("k", &[2], &[1.0, -1.0]))
        .node("Mul", &["x", "k"], &["y"], &[])
        .output("y");
    let y = &run(&model, &[counted(&[2])])[0];
    assert_eq!(y.as_f32(), Some(&[1.0, -2.0][..]));
}

/// `x` turned around behind so many branches inside each other.
fn branches(depth: usize) -> Model {
    let graph = |node: &Bytes, output: &str| {
        let name = Bytes::default().string(1, output);
        let g = Bytes::default().string(2, "branch").message(1, node);
        g.message(12, &name)
    };
    let mut inner = graph(&node("Neg", &["x"], &["y0"], &[]), "y0");
    for at in 1..depth {
        let output = format!("y{at}");
        let taken = graph(&node("Abs", &["x"], &["abs"], &[]), "abs");
        let both = [
            ("then_branch", Attr::Graph(taken)),
            ("else_branch", Attr::Graph(inner)),
        ];
        inner = graph(&node("If", &["no"], &[&output], &both), &output);
    }
    let taken = graph(&node("Abs", &["x"], &["abs"], &[]), "abs");
    let both = [
        ("then_branch", Attr::Graph(taken)),
        ("else_branch", Attr::Graph(inner)),
    ];
    Model::new(13)
        .input("x", FLOAT, &[2])
        .constant(&tensor("no", BOOL, &[], &[0]))
        .node("If", &["no"], &["y"], &both)
        .output("y")
}

#[test]
fn branches_are_nested_as_deeply_as_a_file_can_have_them_and_no_deeper() {
    for depth in [1, 17, 32] {
        let y = &run(&branches(depth), &[counted(&[2])])[0];
        assert_eq!(y.as_f32(), Some(&[-1.0, -2.0][..]), "{depth}");
    }
    for depth in [33, 200, 3000] {
        let error = branches(depth).error();
        assert!(error.contains("nested too deeply"), "{error}");
    }
}

#[test]
fn products_of_integers_with_computed_weights_are_exact() {
    let (channels, side) = (64i64, 3i64);
    let count = (channels * side * side) as usize;
    let model = Model::new(10)
        .input("x", UINT8, &[1, channels, side, side])
        .input("w", UINT8, &[1, channels, side, side])
        .node("ConvInteger", &["x", "w"], &["y"], &[])
        .output("y");
    let bytes =
        |seed: usize| -> Vec<u8> { (0..count).map(|i| 255 - (i * seed % 7) as u8).collect() };
    let (x, w) = (bytes(3), bytes(5));
    let sum: i64 = x
        .iter()
        .zip(&w)
        .map(|(&a, &b)| i64::from(a) * i64::from(b))
        .sum();
    // No f32 holds it.
    assert!(sum > 1 << 24 && sum % 2 == 1, "{sum}");
    let shape = [1, channels as usize, side as usize, side as usize];
    let literal =
        |bytes: &[u8]| Literal::from_bytes(neap_ir::DType::U8, &shape, bytes).expect("fits");
    let y = &run(&model, &[literal(&x), literal(&w)])[0];
    assert_eq!(y.to_i64_vec(), Some(vec![sum]));
}

#[test]
fn long_ranges_and_windows_are_computed_when_the_model_runs() {
    const LONG: usize = (1 << 20) + 5;
    let range = |dtype: i32, ends: [Bytes; 3]| {
        let model = ends
            .iter()
            .fold(Model::new(17), |model, end| model.constant(end));
        let model = model.node("Range", &["a", "b", "c"], &["all"], &[]);
        model
            .ints("last", &[LONG as i64 - 1, 0])
            .node("Gather", &["all", "last"], &["y"], &[])
            .output("y")
            .input("unused", dtype, &[1])
    };
    let longs = range(
        INT64,
        [
            i64_tensor("a", &[], &[7]),
            i64_tensor("b", &[], &[7 + 3 * LONG as i64]),
            i64_tensor("c", &[], &[3]),
        ],
    );
    let zero = Literal::from_i64(&[1], &[0]);
    let y = run(&longs, &[zero]);
    assert_eq!(y[0].to_i64_vec(), Some(vec![7 + 3 * (LONG as i64 - 1), 7]));
    let floats = range(
        FLOAT,
        [
            f32_tensor("a", &[], &[1.0]),
            f32_tensor("b", &[], &[1.0 + LONG as f32 / 2.0]),
            f32_tensor("c", &[], &[0.5]),
        ],
    );
    let y = run(&floats, &[Literal::from_f32(&[1], &[0.0])]);
    assert_eq!(
        y[0].as_f32(),
        Some(&[1.0 + (LONG - 1) as f32 / 2.0, 1.0][..])
    );

    let window = |size: usize| {
        let model = Model::new(17)
            .input("x", FLOAT, &[1])
            .constant(&i64_tensor("size", &[], &[size as i64]))
            .ints("places", &[0, 1, 777, size as i64 / 2, size as i64 - 1])
            .node("BlackmanWindow", &["size"], &["all"], &[])
            .node("Gather", &["all", "places"], &["some"], &[])
            .node("Mul", &["some", "x"], &["y"], &[])
            .output("y");
        run(&model, &[Literal::from_f32(&[1], &[1.0])]).remove(0)
    };
    for size in [1 << 20, LONG] {
        let at = |i: usize| {
            let angle = std::f64::consts::TAU * i as f64 / size as f64;
            (0.42 - 0.5 * angle.cos() + 0.08 * (2.0 * angle).cos()) as f32
        };
        let expected = [0, 1, 777, size / 2, size - 1].map(at);
        let window = window(size);
        let given = window.as_f32().expect("floats");
        assert!(
            given
                .iter()
                .zip(expected)
                .all(|(a, b)| (a - b).abs() < 1e-7),
            "{given:?}"
        );
    }
}
