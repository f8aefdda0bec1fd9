//! Rarely exported operators, which become others: beside their definitions.

use crate::support::*;
use neap_ir::{DType, Literal};

fn floats(model: &Model, inputs: &[Literal]) -> (Vec<usize>, Vec<f32>) {
    let graph = model.graph();
    let results = neap_ops::interpret(&graph, inputs, &|_| None).expect("computes");
    let values = results[0].as_f32().expect("floats").to_vec();
    (results[0].shape().to_vec(), values)
}

#[test]
fn blocks_are_added_where_they_overlap() {
    // Two channels, blocks of 2x3 with steps of 1x2, an image of 4x5 padded by one column before.
    let (channels, image, block, steps) = (2, [4, 5], [2, 3], [1, 2]);
    let counts = [3, 2];
    let windows = counts[0] * counts[1];
    let rows = channels * block[0] * block[1];
    let x: Vec<f32> = (0..rows * windows).map(|i| i as f32 - 20.0).collect();
    let mut expected = vec![0.0f32; channels * image[0] * image[1]];
    for channel in 0..channels {
        for (ky, kx) in (0..block[0]).flat_map(|y| (0..block[1]).map(move |x| (y, x))) {
            for (wy, wx) in (0..counts[0]).flat_map(|y| (0..counts[1]).map(move |x| (y, x))) {
                let (y, column) = (wy * steps[0] + ky, wx * steps[1] + kx);
                if (1..=image[1]).contains(&column) && y < image[0] {
                    let row = (channel * block[0] + ky) * block[1] + kx;
                    expected[(channel * image[0] + y) * image[1] + column - 1] +=
                        x[row * windows + wy * counts[1] + wx];
                }
            }
        }
    }
    let model = Model::new(18)
        .input("x", FLOAT, &[1, rows as i64, windows as i64])
        .ints("image", &[4, 5])
        .ints("block", &[2, 3])
        .node(
            "Col2Im",
            &["x", "image", "block"],
            &["y"],
            &[
                ("strides", Attr::Ints(&[1, 2])),
                ("pads", Attr::Ints(&[0, 1, 0, 0])),
            ],
        )
        .output("y");
    let x = Literal::from_f32(&[1, rows, windows], &x);
    assert_eq!(floats(&model, &[x]), (vec![1, channels, 4, 5], expected));
}

#[test]
fn a_grid_is_moved_by_theta() {
    for align in [0, 1] {
        let theta: [f32; 6] = [0.5, -1.0, 0.25, 2.0, 1.5, -0.75];
        let model = Model::new(20)
            .input("theta", FLOAT, &[1, 2, 3])
            .ints("size", &[1, 1, 3, 4])
            .node(
                "AffineGrid",
                &["theta", "size"],
                &["y"],
                &[("align_corners", Attr::Int(align))],
            )
            .output("y");
        let (shape, found) = floats(&model, &[Literal::from_f32(&[1, 2, 3], &theta)]);
        assert_eq!(shape, [1, 3, 4, 2]);
        let place = |at: usize, size: usize| match align {
            1 => 2.0 * at as f32 / (size - 1) as f32 - 1.0,
            _ => (2 * at + 1) as f32 / size as f32 - 1.0,
        };
        for (at, pair) in found.chunks(2).enumerate() {
            let (x, y) = (place(at % 4, 4), place(at / 4, 3));
            for (row, &value) in theta.chunks(3).zip(pair) {
                let expected = row[0] * x + row[1] * y + row[2];
                assert!((value - expected).abs() < 1e-5, "{value} for {expected}");
            }
        }
    }
}

#[test]
fn what_was_pooled_goes_back_to_its_place() {
    let model = |sizes: Option<&[i64]>| {
        let model =
            Model::new(11)
                .input("x", FLOAT, &[1, 1, 2, 2])
                .input("i", INT64, &[1, 1, 2, 2]);
        let model = match sizes {
            Some(sizes) => model.ints("sizes", sizes),
            None => model,
        };
        let inputs: &[&str] = match sizes {
            Some(_) => &["x", "i", "sizes"],
            None => &["x", "i"],
        };
        let attributes = [
            ("kernel_shape", Attr::Ints(&[2, 2])),
            ("strides", Attr::Ints(&[2, 2])),
        ];
        model
            .node("MaxUnpool", inputs, &["y"], &attributes)
            .output("y")
    };
    let x = Literal::from_f32(&[1, 1, 2, 2], &[5.0, 6.0, 7.0, 8.0]);
    let places = [5, 7, 13, 15];
    let i = Literal::from_i64(&[1, 1, 2, 2], &places);
    for (sizes, width) in [(None, 4), (Some(&[1, 1, 5, 5][..]), 5)] {
        let (shape, found) = floats(&model(sizes), &[x.clone(), i.clone()]);
        assert_eq!(shape, [1, 1, width, width]);
        let mut expected = vec![0.0; width * width];
        for (place, value) in places.iter().zip([5.0, 6.0, 7.0, 8.0]) {
            let place = *place as usize;
            expected[place / 4 * width + place % 4] = value;
        }
        assert_eq!(found, expected);
    }
}

#[test]
fn an_optional_that_is_a_tensor_is_there() {
    let has = |inputs: &[&str]| {
        let graph = Model::new(18)
            .input("x", FLOAT, &[2])
            .node("OptionalHasElement", inputs, &["y"], &[])
            .output("y")
            .graph();
        let x = Literal::from_f32(&[2], &[1.0, 2.0]);
        let results = neap_ops::interpret(&graph, &[x], &|_| None).expect("computes");
        assert_eq!(
            (results[0].dtype(), results[0].shape()),
            (DType::Bool, &[][..])
        );
        results[0].bytes()[0]
    };
    assert_eq!((has(&["x"]), has(&[]), has(&[""])), (1, 0, 0));
    let element = Model::new(18)
        .input("x", FLOAT, &[2])
        .node("OptionalGetElement", &["x"], &["y"], &[])
        .output("y");
    let x = Literal::from_f32(&[2], &[1.0, 2.0]);
    assert_eq!(floats(&element, &[x]), (vec![2], vec![1.0, 2.0]));
}
