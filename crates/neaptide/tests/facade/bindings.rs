//! One packed file serves every binding of a model's symbolic dimensions.

use crate::onnx::{self, INT64, f32_tensor};
use neap_store::{PackWriter, PackedFile};
use neap_zoo::Options as ZooOptions;
use neaptide::{Budget, Cache, Error, Model, OpenOptions, RunOptions, Session};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const WIDTH: usize = 96;
const POSITIONS: usize = 80;
const WORDS: usize = 300;

fn numbers(count: usize, scale: f32) -> Vec<f32> {
    let wave = |i: usize| ((i * 7919 + 13) % 1009) as f32 / 1009.0 - 0.5;
    (0..count).map(|i| wave(i) * scale).collect()
}

/// Free batch and length: embeddings, positions, two layers, and a table of which other lengths use other parts.
fn text_model(path: &Path) {
    let matrix = |name: &str, rows: usize, columns: usize| {
        let scale = 2.0 / (rows as f32).sqrt();
        f32_tensor(
            name,
            &[rows as i64, columns as i64],
            &numbers(rows * columns, scale),
        )
    };
    let model = onnx::Model::new(13)
        .open_input("ids", INT64, &[Err("batch"), Err("length")])
        .constant(&matrix("words", WORDS, WIDTH))
        .constant(&matrix("positions", POSITIONS, WIDTH))
        .constant(&matrix("up", WIDTH, 4 * WIDTH))
        .constant(&matrix("down", 4 * WIDTH, WIDTH))
        .constant(&f32_tensor("bias", &[WIDTH as i64], &numbers(WIDTH, 0.1)))
        .ints("zero", &[0])
        .ints("one", &[1])
        .ints("all", &(0..POSITIONS as i64).collect::<Vec<_>>())
        .node("Gather", &["words", "ids"], &["embedded"], &[])
        .node("Shape", &["ids"], &["size"], &[])
        .node("Gather", &["size", "one"], &["n"], &[])
        .node("Slice", &["all", "zero", "n"], &["places"], &[])
        .node("Gather", &["positions", "places"], &["rows"], &[])
        .node("Add", &["embedded", "rows"], &["x"], &[])
        .node("MatMul", &["x", "up"], &["u"], &[])
        .node("Relu", &["u"], &["r"], &[])
        .node("MatMul", &["r", "down"], &["d"], &[])
        .node("Add", &["d", "bias"], &["y"], &[])
        .output("y");
    std::fs::write(path, model.bytes()).expect("written");
}

fn shapes(name: &str, shape: &[usize]) -> BTreeMap<String, Vec<usize>> {
    [(name.to_string(), shape.to_vec())].into()
}

fn open(path: &Path, shapes: &BTreeMap<String, Vec<usize>>, cache: &Path) -> Result<Model, Error> {
    let options = OpenOptions {
        shapes: shapes.clone(),
        cache: Cache::Folder(cache.to_path_buf()),
        ..OpenOptions::default()
    };
    Model::open(path, &options, &mut |_| {})
}

fn run_options(budget: Budget) -> RunOptions {
    RunOptions {
        budget,
        threads: 2,
        exact: true,
        ..RunOptions::default()
    }
}

fn session(model: Model, budget: Budget) -> Session {
    let options = run_options(budget);
    let plan = model.plan(&options).expect("plans");
    model.into_session(plan, &options).expect("opens")
}

/// Of any type: small whole numbers are fine as token ids and as pixels.
fn input(session: &Session) -> Vec<u8> {
    let info = &session.inputs()[0];
    let count = info.ty.elements();
    match info.ty.dtype {
        neaptide::DType::I64 => (0..count)
            .flat_map(|i| ((i * 31 % WORDS) as i64).to_le_bytes())
            .collect(),
        _ => numbers(count, 2.0)
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect(),
    }
}

fn run(session: &mut Session) -> Vec<u8> {
    try_run(session).expect("runs")
}

fn try_run(session: &mut Session) -> Result<Vec<u8>, Error> {
    let input = input(session);
    let mut output = vec![0; session.outputs()[0].len_bytes()];
    session.run(&[&input], &mut [&mut output])?;
    Ok(output)
}

fn result(model: Model) -> Vec<u8> {
    run(&mut session(model, Budget::Unlimited))
}

fn packed_files(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).expect("a folder");
    let paths = files.map(|f| f.expect("an entry").path());
    paths
        .filter(|p| p.extension().is_some_and(|e| e == "neap"))
        .collect()
}

/// Bytes of the weights that a packed file has room for.
fn data_bytes(path: &Path) -> u64 {
    let range = PackedFile::open(path).expect("opens").data_range();
    range.end - range.start
}

/// The results of a model that was packed with exactly these shapes.
fn packed_alone(onnx: &Path, shapes: &BTreeMap<String, Vec<usize>>) -> Vec<u8> {
    let cache = tempfile::tempdir().expect("a folder");
    result(open(onnx, shapes, cache.path()).expect("opens"))
}

#[test]
fn every_length_of_a_text_runs_on_the_same_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let onnx = folder.path().join("text.onnx");
    text_model(&onnx);
    // First short, so that longer ones need more of the table of positions than the first did; then the other way.
    for first in [4, POSITIONS] {
        let cache = tempfile::tempdir().expect("a folder");
        let model = open(&onnx, &shapes("ids", &[1, first]), cache.path()).expect("opens");
        drop(model);
        let [packed] = &packed_files(cache.path())[..] else {
            panic!("one packed file");
        };
        let before = std::fs::read(packed).expect("readable");
        let weights_bytes = 4 * (WIDTH * (WORDS + POSITIONS + 8 * WIDTH + 1)) as u64;
        // Panels have a row of biases each, extents end at blocks, and the skeleton is there.
        let most_bytes = weights_bytes + weights_bytes / 20 + 6 * 4096 + 32768;
        assert!(data_bytes(packed) < most_bytes, "nothing is there twice");
        for length in [1, 2, 8, 43, 64, POSITIONS] {
            let wanted = shapes("ids", &[2, length]);
            let expected = packed_alone(&onnx, &wanted);
            let again = open(&onnx, &wanted, cache.path()).expect("opens");
            assert_eq!(again.packed_path(), Some(packed.as_path()));
            assert!(
                result(again) == expected,
                "{length} tokens through the cache"
            );
            let named = open(packed, &wanted, cache.path()).expect("opens");
            assert!(
                result(named) == expected,
                "{length} tokens of the packed file"
            );
        }
        assert!(std::fs::read(packed).expect("readable") == before);
        assert_eq!(packed_files(cache.path()).len(), 1);
        let long = open(packed, &shapes("ids", &[1, POSITIONS + 1]), cache.path());
        let text = long.err().expect("there are no more positions").to_string();
        assert!(!text.contains('\n'), "{text}");
    }
}

#[test]
fn images_of_every_size_run_on_the_same_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let onnx = mobilenet(folder.path());
    let cache = tempfile::tempdir().expect("a folder");
    let mut model = open(&onnx, &size(64, 64), cache.path()).expect("opens");
    let extents = |model: &Model| -> Vec<(u64, u64)> {
        let packed = model.program().packed.iter();
        packed.map(|p| (p.offset, p.bytes)).collect()
    };
    let first = extents(&model);
    for (height, width) in [(32, 96), (96, 64), (64, 64)] {
        model.bind(&size(height, width)).expect("binds");
        assert_eq!(model.inputs()[0].ty.shape, [1, 3, height, width]);
        assert_eq!(extents(&model), first);
        let expected = packed_alone(&onnx, &size(height, width));
        let again = open(&onnx, &size(height, width), cache.path()).expect("opens");
        assert!(result(again) == expected);
    }
    let wrong = model.bind(&size(0, 64)).err().or_else(|| {
        let text = model
            .bind(&shapes("image", &[1]))
            .expect_err("no such input");
        Some(text)
    });
    assert!(wrong.is_some());
    let channels = model.bind(&shapes("input", &[1, 4, 64, 64]));
    let text = channels.expect_err("three channels").to_string();
    assert!(text.contains("does not fit the model's"), "{text}");
    // As it was.
    assert_eq!(extents(&model), first);
    assert_eq!(packed_files(cache.path()).len(), 1);
}

fn mobilenet(folder: &Path) -> PathBuf {
    let onnx = folder.join("net.onnx");
    let options = ZooOptions {
        free_size: true,
        ..ZooOptions::default()
    };
    neap_zoo::write("mobilenet_v2", &onnx, &options, &mut |_, _| {}).expect("written");
    onnx
}

fn size(height: usize, width: usize) -> BTreeMap<String, Vec<usize>> {
    shapes("input", &[1, 3, height, width])
}

#[test]
fn a_session_goes_over_to_other_sizes_and_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let onnx = mobilenet(folder.path());
    let sizes = [size(64, 64), size(96, 128), size(32, 160)];
    let expected: Vec<Vec<u8>> = sizes.iter().map(|size| packed_alone(&onnx, size)).collect();
    let largest = open(&onnx, &sizes[1], folder.path()).expect("opens");
    let bounds = largest.bounds(&run_options(Budget::Unlimited));
    drop(largest);
    // Enough for the largest and for what tests beside this one take; far from everything.
    let tight = bounds.smallest_feasible_bytes() + (4 << 20);
    for budget in [Budget::Bytes(tight), Budget::Unlimited] {
        let model = open(&onnx, &sizes[0], folder.path()).expect("opens");
        let mut session = session(model, budget);
        assert!(run(&mut session) == expected[0]);
        for (turn, at) in [1, 2, 0, 1, 2, 0, 0].into_iter().enumerate() {
            let change = session.bind(&sizes[at]).expect("goes over");
            assert_eq!(session.inputs()[0].ty.shape, sizes[at]["input"]);
            assert!(run(&mut session) == expected[at], "turn {turn}");
            assert!(run(&mut session) == expected[at], "turn {turn} again");
            if let Budget::Bytes(bytes) = budget {
                assert!(change.high_water_bytes <= bytes);
            } else {
                // All plans of the last few bindings are there from the second round on.
                assert_eq!(change.was_kept, turn >= 3, "turn {turn}");
                assert_eq!((change.released_bytes, change.read_bytes), (0, 0));
            }
        }
        let refused = session.bind(&shapes("input", &[1, 5, 64, 64]));
        assert!(matches!(refused, Err(Error::BadInput(_))));
        session.bind(&sizes[0]).expect("as it was");
        assert!(run(&mut session) == expected[0], "after a refusal");
    }
}

#[test]
fn a_session_that_cannot_go_over_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let onnx = mobilenet(folder.path());
    let model = open(&onnx, &size(64, 64), folder.path()).expect("opens");
    let bounds = model.bounds(&run_options(Budget::Unlimited));
    let budget = bounds.smallest_feasible_bytes() + (3 << 20);
    let mut session = session(model, Budget::Bytes(budget));
    let before = run(&mut session);
    // Its first activations alone are larger than the budget.
    let refused = session.bind(&size(2048, 2048));
    assert!(matches!(refused, Err(Error::Infeasible { .. })));
    assert_eq!(session.inputs()[0].ty.shape, [1, 3, 64, 64]);
    assert!(run(&mut session) == before);
}

/// Damage that checksums do not show, in the table of weights and in the skeleton: refused, or run without harm.
#[test]
fn forged_skeletons_and_tables_do_no_harm() {
    // In memory where possible: hundreds of files are written and made durable.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.expect("a folder");
    let onnx = folder.path().join("text.onnx");
    text_model(&onnx);
    let cache = tempfile::tempdir().expect("a folder");
    drop(open(&onnx, &shapes("ids", &[1, 4]), cache.path()).expect("opens"));
    let packed = packed_files(cache.path()).remove(0);
    let file = PackedFile::open(&packed).expect("opens");
    let toc = file.toc().to_vec();
    let range = file.data_range();
    let bytes = std::fs::read(&packed).expect("readable");
    let data = bytes[range.start as usize..range.end as usize].to_vec();
    // The skeleton is the last thing in the data region: its pieces have the names of nodes.
    let find = |what: &[u8]| data.windows(what.len()).position(|w| w == what);
    let first_name = find(b"embedded").expect("a skeleton");
    let skeleton = first_name / 4096 * 4096;
    let forged = folder.path().join("forged.neap");
    let write = |toc: &[u8], data: &[u8]| {
        let mut writer = PackWriter::create(&forged).expect("created");
        writer.append(data).expect("written");
        writer.finish(toc).expect("written");
    };
    let attempt = |length: usize| -> Result<(), Error> {
        let model = open(&forged, &shapes("ids", &[2, length]), folder.path())?;
        let options = run_options(Budget::Bytes(1 << 30));
        let plan = model.plan(&options)?;
        let mut session = model.into_session(plan, &options)?;
        try_run(&mut session).map(|_| ())
    };
    write(&toc, &data);
    attempt(43).expect("as it was");
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let mut below = |limit: usize| (random.next_u64() % limit as u64) as usize;
    // What all bindings share comes first in the table of contents.
    let shared = toc.len() / 3;
    let (mut ran, mut refused) = (0, 0);
    for _ in 0..400 {
        let (mut toc, mut data) = (toc.clone(), data.clone());
        for _ in 0..=below(2) {
            let (place, at) = match below(2) {
                0 => {
                    let at = 8 + below(shared);
                    (&mut toc, at)
                }
                _ => {
                    let at = skeleton + below(data.len() - skeleton);
                    (&mut data, at)
                }
            };
            place[at] = match below(4) {
                0 => place[at] ^ (1 << below(8)),
                1 => place[at].wrapping_add(1),
                2 => [0, 1, 0x7f, 0x80, 0xff][below(5)],
                _ => below(256) as u8,
            };
        }
        write(&toc, &data);
        match attempt(43) {
            Ok(()) => ran += 1,
            Err(error) => {
                let text = error.to_string();
                assert!(!text.contains('\n') && !text.contains("panicked"), "{text}");
                refused += 1;
            }
        }
    }
    assert!(ran > 20 && refused > 80, "{ran} ran, {refused} refused");
}
