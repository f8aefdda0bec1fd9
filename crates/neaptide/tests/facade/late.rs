//! Sizes that are known only when a model runs: planned for a bound, given as they are.

mod branches;
mod engine;
mod loops;
mod sounds;
mod stated;

use crate::onnx::{self, Attr, FLOAT, INT64, f32_tensor};
use neaptide::{Budget, Cache, DType, Error, Model, OpenOptions, RunOptions, Session};
use std::path::Path;

const BOXES: usize = 12;

fn open(model: &onnx::Model, folder: &Path, bounds: &[(&str, usize)]) -> Result<Model, Error> {
    let path = folder.join("model.onnx");
    std::fs::write(&path, model.bytes()).expect("written");
    let bounds = bounds.iter().map(|&(name, most)| (name.to_string(), most));
    let options = OpenOptions {
        cache: Cache::Folder(folder.to_path_buf()),
        size_bounds: bounds.collect(),
        ..OpenOptions::default()
    };
    Model::open(&path, &options, &mut |_| {})
}

/// Without a budget, and in the smallest arena.
fn sessions(model: &onnx::Model, bounds: &[(&str, usize)]) -> Vec<Session> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let session = |smallest: bool| {
        let opened = open(model, folder.path(), bounds).unwrap_or_else(|e| panic!("{e}"));
        let options = match smallest {
            true => self::smallest(&opened),
            false => two_threads(),
        };
        let plan = opened.plan(&options).expect("plans");
        opened.into_session(plan, &options).expect("opens")
    };
    vec![session(false), session(true)]
}

fn two_threads() -> RunOptions {
    RunOptions {
        threads: 2,
        ..RunOptions::default()
    }
}

/// Within the smallest budget of the engine.
fn smallest(opened: &Model) -> RunOptions {
    let mut options = two_threads();
    options.budget = Budget::Engine(0);
    let least = opened.bounds(&options).smallest;
    options.budget = Budget::Engine(least.total_bytes());
    options
}

fn bytes<T: bytemuck::Pod>(values: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// An output's actual shape and elements.
type Given = (Vec<usize>, Vec<f64>);

/// Each output's actual shape and elements as f64; the rest of its place must be untouched.
fn run(session: &mut Session, inputs: &[Vec<u8>]) -> Result<Vec<Given>, Error> {
    const UNTOUCHED: u8 = 0xa5;
    let given: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let outputs = session.outputs().iter();
    let mut places: Vec<Vec<u8>> = outputs.map(|o| vec![UNTOUCHED; o.len_bytes()]).collect();
    let mut slots: Vec<&mut [u8]> = places.iter_mut().map(Vec::as_mut_slice).collect();
    session.run(&given, &mut slots)?;
    let results = places.iter().enumerate().map(|(index, place)| {
        let ty = session.output_type(index);
        let (own, rest) = place.split_at(ty.len_bytes());
        assert!(rest.iter().all(|&b| b == UNTOUCHED), "output {index}");
        let values = match ty.dtype {
            DType::F32 => own
                .chunks(4)
                .map(bytemuck::pod_read_unaligned::<f32>)
                .map(f64::from)
                .collect(),
            DType::I64 => own
                .chunks(8)
                .map(bytemuck::pod_read_unaligned::<i64>)
                .map(|x| x as f64)
                .collect(),
            other => panic!("{other}"),
        };
        (ty.shape.clone(), values)
    });
    Ok(results.collect())
}

/// Rows of x with a positive first element: how many, twice each, their sums, and how they project.
fn filter() -> onnx::Model {
    onnx::Model::new(13)
        .input("x", FLOAT, &[6, 2])
        .constant(&f32_tensor("zero", &[], &[0.0]))
        .constant(&f32_tensor("two", &[], &[2.0]))
        .constant(&f32_tensor(
            "weight",
            &[2, 3],
            &[1.0, 0.0, 1.0, 0.0, 1.0, -1.0],
        ))
        .ints("first", &[0])
        .ints("one", &[1])
        .ints("last", &[-1])
        .ints("pair", &[2])
        .node(
            "Gather",
            &["x", "first"],
            &["column"],
            &[("axis", Attr::Int(1))],
        )
        .node("Squeeze", &["column", "one"], &["flat"], &[])
        .node("Greater", &["flat", "zero"], &["is_kept"], &[])
        .node("NonZero", &["is_kept"], &["places"], &[])
        .node("Squeeze", &["places", "first"], &["rows"], &[])
        .node("Gather", &["x", "rows"], &["kept"], &[])
        .node("Mul", &["kept", "two"], &["doubled"], &[])
        .node(
            "ReduceSum",
            &["kept", "one"],
            &["sums"],
            &[("keepdims", Attr::Int(0))],
        )
        .node("MatMul", &["kept", "weight"], &["projected"], &[])
        .node("Shape", &["kept"], &["size"], &[])
        .node("Gather", &["size", "first"], &["count"], &[])
        .node(
            "Concat",
            &["count", "pair", "last"],
            &["target"],
            &[("axis", Attr::Int(0))],
        )
        .node("Reshape", &["kept", "target"], &["deep"], &[])
        .node("ReduceSum", &["kept", "first"], &["total"], &[])
        .output("rows")
        .output("doubled")
        .output("sums")
        .output("projected")
        .output("count")
        .output("deep")
        .output("total")
}

#[test]
fn results_have_the_sizes_that_the_data_decide() {
    let rows: [[f32; 2]; 6] = [
        [1.0, 5.0],
        [-1.0, 2.0],
        [0.0, 3.0],
        [4.0, -6.0],
        [2.0, 0.5],
        [-2.0, 9.0],
    ];
    for mut session in sessions(&filter(), &[]) {
        // The same session, with other data in each run: three rows, all, none, one.
        for (offset, kept) in [
            (0.0, vec![0, 3, 4]),
            (9.0, vec![0, 1, 2, 3, 4, 5]),
            (-9.0, vec![]),
            (-3.5, vec![3]),
        ] {
            let shifted = rows.map(|[a, b]| [a + offset, b]);
            let results = run(&mut session, &[bytes(shifted.as_flattened())]);
            let own: Vec<[f64; 2]> = kept
                .iter()
                .map(|&i: &usize| shifted[i].map(f64::from))
                .collect();
            if own.is_empty() {
                // -1 stands for any size where there are no elements.
                let error = results.expect_err("no size fits").to_string();
                assert!(error.contains("the_Reshape"), "{error}");
                continue;
            }
            let n = own.len();
            let results = results.unwrap_or_else(|e| panic!("{e}"));
            let expected: [Given; 7] = [
                (vec![n], kept.iter().map(|&i| i as f64).collect()),
                (
                    vec![n, 2],
                    own.as_flattened().iter().map(|x| 2.0 * x).collect(),
                ),
                (vec![n], own.iter().map(|[a, b]| a + b).collect()),
                (
                    vec![n, 3],
                    own.iter().flat_map(|[a, b]| [*a, *b, a - b]).collect(),
                ),
                (vec![1], vec![n as f64]),
                (vec![n, 2, 1], own.as_flattened().to_vec()),
                (
                    vec![1, 2],
                    vec![
                        own.iter().map(|r| r[0]).sum(),
                        own.iter().map(|r| r[1]).sum(),
                    ],
                ),
            ];
            for ((name, found), expected) in session
                .outputs()
                .iter()
                .map(|o| &o.name)
                .zip(results)
                .zip(expected)
            {
                assert_eq!(found, expected, "{name}");
            }
        }
    }
}

#[test]
fn unique_and_compress_give_what_there_is() {
    let model = onnx::Model::new(13)
        .input("x", FLOAT, &[6])
        .constant(&f32_tensor("three", &[], &[3.0]))
        .node(
            "Unique",
            &["x"],
            &["values", "first", "inverse", "counts"],
            &[("sorted", Attr::Int(0))],
        )
        .node("Less", &["values", "three"], &["is_small"], &[])
        .node("Compress", &["values", "is_small"], &["small"], &[])
        .output("values")
        .output("first")
        .output("inverse")
        .output("counts")
        .output("small");
    for mut session in sessions(&model, &[]) {
        let results =
            run(&mut session, &[bytes(&[2.0f32, 7.0, 2.0, 1.0, 7.0, 2.0])]).expect("runs");
        let expected: [&[f64]; 5] = [
            &[2.0, 7.0, 1.0],
            &[0.0, 1.0, 3.0],
            &[0.0, 1.0, 0.0, 2.0, 1.0, 0.0],
            &[3.0, 2.0, 1.0],
            &[2.0, 1.0],
        ];
        for (found, expected) in results.iter().zip(expected) {
            assert_eq!(found.1, expected);
            assert_eq!(found.0, [expected.len()]);
        }
    }
}

/// Greedy suppression by the definition, box by box, without sorting.
fn suppressed(
    boxes: &[[f32; 4]],
    scores: &[f32],
    most: usize,
    overlap: f32,
    least: f32,
) -> Vec<usize> {
    let area = |b: &[f32; 4]| (b[2] - b[0]) * (b[3] - b[1]);
    let shared = |a: &[f32; 4], b: &[f32; 4]| {
        (a[2].min(b[2]) - a[0].max(b[0])).max(0.0) * (a[3].min(b[3]) - a[1].max(b[1])).max(0.0)
    };
    let mut left: Vec<usize> = (0..boxes.len()).filter(|&i| scores[i] > least).collect();
    let mut chosen = Vec::new();
    while chosen.len() < most && !left.is_empty() {
        let best = *left
            .iter()
            .reduce(|a, b| if scores[*b] > scores[*a] { b } else { a })
            .expect("some");
        chosen.push(best);
        left.retain(|&i| {
            let common = shared(&boxes[best], &boxes[i]);
            i != best && common / (area(&boxes[best]) + area(&boxes[i]) - common) <= overlap
        });
    }
    chosen
}

#[test]
fn a_detector_suppresses_boxes_inside() {
    let model = onnx::Model::new(13)
        .input("boxes", FLOAT, &[1, BOXES as i64, 4])
        .input("scores", FLOAT, &[1, 2, BOXES as i64])
        .ints("most", &[4])
        .ints("zero", &[0])
        .ints("one", &[1])
        .ints("column", &[2])
        .constant(&f32_tensor("overlap", &[1], &[0.3]))
        .constant(&f32_tensor("least", &[1], &[0.25]))
        .node(
            "NonMaxSuppression",
            &["boxes", "scores", "most", "overlap", "least"],
            &["chosen"],
            &[],
        )
        .node(
            "Gather",
            &["chosen", "column"],
            &["index"],
            &[("axis", Attr::Int(1))],
        )
        .node("Squeeze", &["index", "one"], &["index_flat"], &[])
        .node("Squeeze", &["boxes", "zero"], &["flat_boxes"], &[])
        .node("Gather", &["flat_boxes", "index_flat"], &["found"], &[])
        .output("chosen")
        .output("found");
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    let mut counts = std::collections::BTreeSet::new();
    for mut session in sessions(&model, &[]) {
        for round in 0..8 {
            let boxes: Vec<[f32; 4]> = (0..BOXES)
                .map(|_| {
                    let (y, x) = (next() * 4.0, next() * 4.0);
                    [y, x, y + 1.0 + next(), x + 1.0 + next()]
                })
                .collect();
            // Rounds of few scores above the least one, and of none, too.
            let scale = [1.0, 0.6, 0.35, 0.3, 1.0, 0.2, 0.4, 0.27][round];
            let scores: Vec<f32> = (0..2 * BOXES).map(|_| next() * scale).collect();
            let results =
                run(&mut session, &[bytes(boxes.as_flattened()), bytes(&scores)]).expect("runs");
            let mut expected = Vec::new();
            for (class, own) in scores.chunks(BOXES).enumerate() {
                let chosen = suppressed(&boxes, own, 4, 0.3, 0.25);
                expected.extend(chosen.into_iter().map(|i| [0.0, class as f64, i as f64]));
            }
            counts.insert(expected.len());
            assert_eq!(
                results[0],
                (vec![expected.len(), 3], expected.as_flattened().to_vec())
            );
            let found: Vec<f64> = expected
                .iter()
                .flat_map(|row| boxes[row[2] as usize].map(f64::from))
                .collect();
            assert_eq!(results[1], (vec![expected.len(), 4], found));
        }
    }
    assert!(counts.len() > 2 && counts.contains(&0), "{counts:?}");
}

/// The sum of many numbers says how long a range is: nothing in the model bounds it.
fn counter() -> onnx::Model {
    onnx::Model::new(13)
        .input("x", FLOAT, &[40])
        .constant(&onnx::i64_tensor("start", &[], &[0]))
        .constant(&onnx::i64_tensor("step", &[], &[1]))
        .constant(&f32_tensor("weight", &[40], &[1.0; 40]))
        .node("MatMul", &["x", "weight"], &["sum"], &[])
        .node(
            "Cast",
            &["sum"],
            &["limit"],
            &[("to", Attr::Int(INT64.into()))],
        )
        .node("Range", &["start", "limit", "step"], &["places"], &[])
        .output("places")
}

#[test]
fn a_size_that_nothing_bounds_is_asked_for_and_kept_to() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let error = open(&counter(), folder.path(), &[])
        .err()
        .expect("unbounded")
        .to_string();
    assert!(error.contains("its result 'places'"), "{error}");
    let x = |sum: f32| {
        let mut x = vec![0.0f32; 40];
        x[7] = sum;
        vec![bytes(&x)]
    };
    for mut session in sessions(&counter(), &[("places", 5)]) {
        assert_eq!(session.outputs()[0].ty.shape, [5]);
        let results = run(&mut session, &x(3.0)).expect("fits");
        assert_eq!(results[0], (vec![3], vec![0.0, 1.0, 2.0]));
        let error = run(&mut session, &x(6.0))
            .expect_err("too many")
            .to_string();
        assert!(
            error.contains("[6]") && error.contains("[5] at most"),
            "{error}"
        );
        // And the session goes on.
        let results = run(&mut session, &x(5.0)).expect("fits");
        assert_eq!(results[0].0, [5]);
    }
}

#[test]
fn what_cannot_follow_a_late_size_is_refused_by_name() {
    let model = onnx::Model::new(13)
        .input("x", FLOAT, &[1, 3, 8])
        .node("NonZero", &["x"], &["places"], &[])
        .node(
            "Cast",
            &["places"],
            &["numbers"],
            &[("to", Attr::Int(FLOAT.into()))],
        )
        .node("MeanVarianceNormalization", &["numbers"], &["y"], &[])
        .output("y");
    let folder = tempfile::tempdir().expect("temporary folder");
    let error = open(&model, folder.path(), &[])
        .err()
        .expect("refused")
        .to_string();
    assert!(
        error.contains("a size that is known only when running"),
        "{error}"
    );
}

#[test]
fn as_many_images_are_pooled_as_the_data_decide() {
    let window: [(&str, Attr); 3] = [
        ("kernel_shape", Attr::Ints(&[2, 2])),
        ("strides", Attr::Ints(&[2, 2])),
        ("ceil_mode", Attr::Int(1)),
    ];
    // One row: the window reaches beyond it.
    let model = onnx::Model::new(19)
        .input("x", FLOAT, &[3, 1, 1, 3])
        .input("is_kept", onnx::BOOL, &[3])
        .node(
            "Compress",
            &["x", "is_kept"],
            &["kept"],
            &[("axis", Attr::Int(0))],
        )
        .node("MaxPool", &["kept"], &["most"], &window)
        .node("AveragePool", &["kept"], &["mean"], &window)
        .output("most")
        .output("mean");
    let x = bytes(&[1.0f32, 2.0, 4.0, 0.0, 0.0, 0.0, 3.0, 5.0, 7.0]);
    for mut session in sessions(&model, &[]) {
        for (kept, most, mean) in [
            (
                [1u8, 0, 1],
                &[2.0, 4.0, 5.0, 7.0][..],
                &[1.5, 4.0, 4.0, 7.0][..],
            ),
            ([0, 0, 0], &[], &[]),
        ] {
            let results = run(&mut session, &[x.clone(), kept.to_vec()]).expect("runs");
            let shape = vec![most.len() / 2, 1, 1, 2];
            assert_eq!(results[0], (shape.clone(), most.to_vec()));
            assert_eq!(results[1], (shape, mean.to_vec()));
        }
    }
}
