//! Optimisers of `ai.onnx.preview.training`, against the standard's definitions.

use crate::support::*;
use neap_ir::Literal;
use neap_ops::interpret;

const DOMAIN: &str = "ai.onnx.preview.training";
const X: [[f32; 2]; 2] = [[1.2, 2.8], [-0.5, 0.25]];
const G: [[f32; 2]; 2] = [[-0.94, -2.5], [0.3, 0.1]];
const KEPT: [[[f32; 2]; 2]; 2] = [[[1.7, 3.6], [0.1, 0.3]], [[0.1, 0.2], [0.5, 0.0]]];
const RATE: f32 = 0.1;

/// Runs the operator over two tensors: gives for each what replaces it, and what is kept of each kind.
fn run(op: &str, kinds: usize, attributes: &[(&str, Attr)], count: i64) -> Vec<[[f32; 2]; 2]> {
    let named = |kind: &str| [format!("{kind}0"), format!("{kind}1")];
    let mut groups = vec![named("x"), named("g")];
    groups.extend((0..kinds).map(|k| named(&format!("kept{k}_"))));
    let inputs: Vec<String> = ["r", "t"]
        .map(String::from)
        .into_iter()
        .chain(groups.concat())
        .collect();
    let replaced = groups.iter().enumerate().filter(|(i, _)| *i != 1);
    let outputs: Vec<String> = replaced
        .flat_map(|(_, names)| names)
        .map(|name| format!("{name}_new"))
        .collect();
    let names = |list: &'_ [String]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
    let (in_names, out_names) = (names(&inputs), names(&outputs));
    let in_names: Vec<&str> = in_names.iter().map(String::as_str).collect();
    let out_names: Vec<&str> = out_names.iter().map(String::as_str).collect();
    let mut model = Model::new(17).input("r", FLOAT, &[]).input("t", INT64, &[]);
    for name in &inputs[2..] {
        model = model.input(name, FLOAT, &[2]);
    }
    model = model.raw_node(&node_in(DOMAIN, op, &in_names, &out_names, attributes));
    for name in &outputs {
        model = model.output(name);
    }
    let mut values = vec![
        Literal::from_f32(&[], &[RATE]),
        Literal::from_i64(&[], &[count]),
    ];
    for data in [&[X, G][..], &KEPT[..kinds]].concat().concat() {
        values.push(Literal::from_f32(&[2], &data));
    }
    let results = interpret(&model.graph(), &values, &|_| None).expect("runs");
    let pair = |l: &Literal| -> [f32; 2] { l.as_f32().expect("f32").try_into().expect("two") };
    results
        .chunks(2)
        .map(|two| [pair(&two[0]), pair(&two[1])])
        .collect()
}

/// Compares with a definition for one element: `(x, g, kept) -> (x, kept)`.
fn check(
    op: &str,
    kinds: usize,
    attributes: &[(&str, Attr)],
    count: i64,
    rule: impl Fn(f64, f64, [f64; 2]) -> (f64, [f64; 2]),
) {
    let found = run(op, kinds, attributes, count);
    for tensor in 0..2 {
        for i in 0..2 {
            let kept = [0, 1].map(|k| f64::from(KEPT[k][tensor][i]));
            let (x, kept) = rule(X[tensor][i].into(), G[tensor][i].into(), kept);
            let expected = [x, kept[0], kept[1]];
            for (k, expected) in expected[..1 + kinds].iter().enumerate() {
                let found = f64::from(found[k][tensor][i]);
                let error = (found - expected).abs();
                let what = format!("{op} after {count}: result {k} of {tensor}, element {i}");
                assert!(
                    error <= 1e-5 * expected.abs().max(1.0),
                    "{what}: {found} for {expected}"
                );
            }
        }
    }
}

#[test]
fn adagrad() {
    let attributes = [
        ("norm_coefficient", Attr::Float(0.001)),
        ("epsilon", Attr::Float(1e-5)),
        ("decay_factor", Attr::Float(0.1)),
    ];
    for count in [0, 3] {
        check("Adagrad", 1, &attributes, count, |x, g, kept| {
            let rate = 0.1 / (1.0 + count as f64 * 0.1);
            let g = 0.001 * x + g;
            let sum = kept[0] + g * g;
            (x - rate * g / (sum.sqrt() + 1e-5), [sum, 0.0])
        });
    }
}

#[test]
fn momentum() {
    for (mode, nesterov) in [("standard", false), ("nesterov", true)] {
        let attributes = [
            ("norm_coefficient", Attr::Float(0.01)),
            ("alpha", Attr::Float(0.95)),
            ("beta", Attr::Float(0.85)),
            ("mode", Attr::Str(mode)),
        ];
        for count in [0, 3] {
            check("Momentum", 1, &attributes, count, |x, g, kept| {
                let g = 0.01 * x + g;
                let beta = if count > 0 { 0.85 } else { 1.0 };
                let velocity = 0.95 * kept[0] + beta * g;
                let step = if nesterov {
                    g + 0.95 * velocity
                } else {
                    velocity
                };
                (x - 0.1 * step, [velocity, 0.0])
            });
        }
    }
}

#[test]
fn adam() {
    let attributes = [
        ("norm_coefficient", Attr::Float(0.001)),
        ("norm_coefficient_post", Attr::Float(0.01)),
        ("alpha", Attr::Float(0.95)),
        ("beta", Attr::Float(0.85)),
        ("epsilon", Attr::Float(1e-2)),
    ];
    for count in [0, 3] {
        check("Adam", 2, &attributes, count, |x, g, kept| {
            let g = 0.001 * x + g;
            let first = 0.95 * kept[0] + 0.05 * g;
            let second = 0.85 * kept[1] + 0.15 * g * g;
            let count = count as i32;
            let rate = if count > 0 {
                0.1 * (1.0 - 0.85f64.powi(count)).sqrt() / (1.0 - 0.95f64.powi(count))
            } else {
                0.1
            };
            let x = x - rate * first / (second.sqrt() + 1e-2);
            ((1.0 - 0.01) * x, [first, second])
        });
    }
}

#[test]
fn wrong_operands_are_refused() {
    let attributes = [("alpha", Attr::Float(0.9)), ("beta", Attr::Float(0.9))];
    let model = |inputs: &[&str], mode: &str| {
        let mut model = Model::new(17).input("r", FLOAT, &[]).input("t", INT64, &[]);
        model = model.input("x", FLOAT, &[2]).input("g", FLOAT, &[3]);
        let mut attributes = attributes
            .iter()
            .map(|(n, a)| match a {
                Attr::Float(v) => (*n, Attr::Float(*v)),
                _ => (*n, Attr::Int(0)),
            })
            .collect::<Vec<_>>();
        attributes.push(("mode", Attr::Str(mode)));
        model
            .raw_node(&node_in(
                DOMAIN,
                "Momentum",
                inputs,
                &["y", "v"],
                &attributes,
            ))
            .output("y")
    };
    assert!(
        model(&["r", "t", "x", "g"], "standard")
            .error()
            .contains("it has 4 inputs")
    );
    let error = model(&["r", "t", "x", "g", "x"], "standard").error();
    assert!(error.contains("another type"), "{error}");
    let error = model(&["r", "t", "x", "x", "x"], "backwards").error();
    assert!(error.contains("'mode' is unknown"), "{error}");
}

/// Two dropouts in training mode, and what they keep of two thousand ones.
fn dropped(attributes: &[(&str, Attr)]) -> [Vec<f32>; 2] {
    let node = |y: &str| node("Dropout", &["x", "ratio", "training"], &[y], attributes);
    let model = Model::new(13)
        .input("x", FLOAT, &[2000])
        .constant(&f32_tensor("ratio", &[], &[0.75]))
        .constant(&tensor("training", BOOL, &[], &[1]))
        .raw_node(&node("y"))
        .raw_node(&node("z"))
        .output("y")
        .output("z");
    let ones = Literal::from_f32(&[2000], &[1.0; 2000]);
    let results = interpret(&model.graph(), &[ones], &|_| None).expect("runs");
    [0, 1].map(|i| results[i].as_f32().expect("f32").to_vec())
}

#[test]
fn dropout_in_training_mode() {
    let [seeded, again] = dropped(&[("seed", Attr::Int(0))]);
    // numpy's `RandomState(0).uniform(size=2000) >= 0.75` begins so.
    let begins = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 4.0, 0.0, 4.0, 0.0];
    assert_eq!(seeded[..12], begins);
    assert_eq!(seeded, again);
    let [one, other] = dropped(&[]);
    assert_ne!(one, other);
    for y in [seeded, one, other] {
        let kept = y.iter().filter(|&&v| v == 4.0).count();
        assert!(y.iter().all(|&v| v == 0.0 || v == 4.0) && (400..600).contains(&kept));
    }
}

#[test]
fn dropouts_that_make_no_sense_are_refused() {
    let with = |ratio: f32, seed: i64| {
        let attributes = [("seed", Attr::Int(seed))];
        Model::new(13)
            .input("x", FLOAT, &[4])
            .constant(&f32_tensor("ratio", &[], &[ratio]))
            .constant(&tensor("training", BOOL, &[], &[1]))
            .node("Dropout", &["x", "ratio", "training"], &["y"], &attributes)
            .output("y")
    };
    for (ratio, seed, expected) in [
        (1.0, 0, "its ratio must be"),
        (-0.5, 0, "its ratio must be"),
        (f32::NAN, 0, "its ratio must be"),
        (0.5, -1, "the seed -1"),
        (0.5, 1 << 32, "the seed 4294967296"),
    ] {
        let error = with(ratio, seed).error();
        assert!(error.contains(expected), "{error}");
    }
}
