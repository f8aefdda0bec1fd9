//! What models of speech compute once the data have decided how long the sound is, beside the same layers over sizes that are known.

use super::{bytes, run, sessions};
use crate::onnx::{self, Attr, FLOAT, UINT8, f32_tensor, tensor};

/// Features of each row, and channels between the layers.
const WIDTH: usize = 4;
const HIDDEN: usize = 3;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 37 + seed * 101) % 41) as f32 / 20.0 - 1.0;
    (0..count).map(number).collect()
}

fn weights(name: &str, dims: &[usize], seed: usize) -> onnx::Bytes {
    let sizes: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    f32_tensor(name, &sizes, &numbers(dims.iter().product(), seed))
}

/// Layers over `kept`, `[n, WIDTH]`.
fn layers(model: onnx::Model) -> onnx::Model {
    let gates = 4 * HIDDEN;
    let steps: Vec<u8> = (0..WIDTH * WIDTH * 3)
        .map(|i| (i * 53 % 256) as u8)
        .collect();
    model
        .ints("batch", &[0])
        .ints("middle", &[1])
        .ints("halves", &[2, 2])
        .ints("frame_step", &[3])
        .constant(&f32_tensor("twice", &[3], &[1.0, 1.0, 2.0]))
        .constant(&tensor(
            "steps",
            UINT8,
            &[WIDTH as i64, WIDTH as i64, 3],
            &steps,
        ))
        .constant(&tensor("step_zero", UINT8, &[], &[120]))
        .constant(&weights("lstm_w", &[1, gates, WIDTH], 1))
        .constant(&weights("lstm_r", &[1, gates, HIDDEN], 2))
        .constant(&weights("norm_scale", &[WIDTH], 3))
        .constant(&weights("norm_shift", &[WIDTH], 4))
        .constant(&weights("up", &[WIDTH, 1, 4], 5))
        .constant(&weights("window", &[6], 6))
        .node(
            "LayerNormalization",
            &["kept", "norm_scale", "norm_shift"],
            &["normal"],
            &[],
        )
        .node("Unsqueeze", &["normal", "middle"], &["rows"], &[])
        .node(
            "LSTM",
            &["rows", "lstm_w", "lstm_r"],
            &["states"],
            &[("hidden_size", Attr::Int(HIDDEN as i64))],
        )
        .node(
            "Transpose",
            &["rows"],
            &["channels"],
            &[("perm", Attr::Ints(&[1, 2, 0]))],
        )
        .node(
            "Split",
            &["channels", "halves"],
            &["low", "high"],
            &[("axis", Attr::Int(1))],
        )
        .node(
            "Resize",
            &["channels", "", "twice"],
            &["longer"],
            &[
                ("mode", Attr::Str("nearest")),
                ("coordinate_transformation_mode", Attr::Str("asymmetric")),
                ("nearest_mode", Attr::Str("floor")),
            ],
        )
        .node(
            "DynamicQuantizeLinear",
            &["longer"],
            &["quantized", "scale", "zero"],
            &[],
        )
        .node(
            "ConvInteger",
            &["quantized", "steps", "zero", "step_zero"],
            &["sums"],
            &[("pads", Attr::Ints(&[1, 1]))],
        )
        .node("Cast", &["sums"], &["products"], &[("to", Attr::Int(1))])
        .node("Mul", &["products", "scale"], &["convolved"], &[])
        .node(
            "ConvTranspose",
            &["convolved", "up"],
            &["sound"],
            &[("strides", Attr::Ints(&[2])), ("pads", Attr::Ints(&[1, 1]))],
        )
        .node("Squeeze", &["sound", "middle"], &["line"], &[])
        .node(
            "STFT",
            &["line", "frame_step", "window"],
            &["spectrum"],
            &[],
        )
        .output("normal")
        .output("states")
        .output("high")
        .output("convolved")
        .output("sound")
        .output("spectrum")
}

/// Rows of x with a positive first element go on.
fn of_late_size(rows: usize) -> onnx::Model {
    let model = onnx::Model::new(17)
        .input("x", FLOAT, &[rows as i64, WIDTH as i64])
        .constant(&f32_tensor("nothing", &[], &[0.0]))
        .ints("first", &[0])
        .ints("one", &[1])
        .node(
            "Gather",
            &["x", "first"],
            &["column"],
            &[("axis", Attr::Int(1))],
        )
        .node("Squeeze", &["column", "one"], &["flat"], &[])
        .node("Greater", &["flat", "nothing"], &["is_kept"], &[])
        .node("NonZero", &["is_kept"], &["places"], &[])
        .node("Squeeze", &["places", "first"], &["which"], &[])
        .node("Gather", &["x", "which"], &["kept"], &[]);
    layers(model)
}

#[test]
fn layers_over_late_sizes_compute_what_they_do_over_known_ones() {
    const ROWS: usize = 9;
    let all = numbers(ROWS * WIDTH, 7);
    for mut session in sessions(&of_late_size(ROWS), &[]) {
        for count in [ROWS, 5, 2, 7] {
            // The first rows stay.
            let mut x = all.clone();
            for (i, row) in x.chunks_mut(WIDTH).enumerate() {
                row[0] = if i < count { 0.5 } else { -0.5 };
            }
            let known = onnx::Model::new(17).input("kept", FLOAT, &[count as i64, WIDTH as i64]);
            let kept = bytes(&x[..count * WIDTH]);
            let expected = run(&mut sessions(&layers(known), &[])[0], &[kept]).expect("runs");
            let found = run(&mut session, &[bytes(&x)]).expect("runs");
            for (output, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.0, expected.0, "output {output} of {count} rows");
                let most = expected.1.iter().fold(1.0f64, |m, v| m.max(v.abs()));
                for (a, b) in found.1.iter().zip(&expected.1) {
                    assert!(
                        (a - b).abs() <= 1e-5 * most,
                        "output {output} of {count} rows: {a} is not {b}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_would_need_sizes_beforehand_is_refused() {
    let late = |model: onnx::Model| {
        model
            .input("x", FLOAT, &[6])
            .constant(&f32_tensor("nothing", &[], &[0.0]))
            .node("Greater", &["x", "nothing"], &["is_kept"], &[])
            .node("Compress", &["x", "is_kept"], &["kept"], &[])
    };
    let norm = late(onnx::Model::new(17))
        .constant(&f32_tensor("scale", &[], &[1.0]))
        .node("LayerNormalization", &["kept", "scale"], &["y"], &[])
        .output("y");
    let split = late(onnx::Model::new(17))
        .ints("parts", &[3, 3])
        .node("Split", &["kept", "parts"], &["y", "z"], &[])
        .output("y");
    for model in [norm, split] {
        let error = model.error();
        assert!(error.contains("known only when running"), "{error}");
    }
}
