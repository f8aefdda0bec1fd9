//! A model that is bound again, from what was kept of its files.

use crate::support::*;
use neap_ir::{Const, FileRange, Graph};
use neap_onnx::{Bound, Elsewhere, Extract, OnnxError, OpenOptions, Skeleton};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Nothing was kept elsewhere.
struct Nothing;

impl Elsewhere for Nothing {
    fn read(&mut self, _: FileRange, _: &mut [u8]) -> std::io::Result<bool> {
        Ok(false)
    }
}

/// Free batch and length; a weight that stays unread, shape arithmetic, a table that is sliced to the length.
fn text_model() -> Model {
    let table: Vec<f32> = (0..64 * 96).map(|i| i as f32).collect();
    Model::new(13)
        .open_input("x", FLOAT, &[Err("batch"), Err("length"), Ok(96)])
        .constant(&f32_tensor("w", &[96, 96], &[0.5; 96 * 96]))
        .constant(&f32_tensor("positions", &[64, 96], &table))
        .constant(&f32_tensor("bias", &[96], &[0.25; 96]))
        .ints("zero", &[0])
        .ints("one", &[1])
        .ints("two", &[2])
        .node("Shape", &["x"], &["size"], &[])
        .node("Slice", &["size", "one", "two"], &["n"], &[])
        .node("Slice", &["positions", "zero", "n", "zero"], &["rows"], &[])
        .node("Add", &["x", "rows"], &["placed"], &[])
        .node("MatMul", &["placed", "w"], &["product"], &[])
        .node("Add", &["product", "bias"], &["y"], &[])
        .output("y")
}

fn options(batch: usize, length: usize) -> OpenOptions {
    let shapes = [("x".to_string(), vec![batch, length, 96])];
    OpenOptions {
        shapes: shapes.into(),
        ..OpenOptions::default()
    }
}

fn extract(path: &Path, bound: &Bound) -> Arc<Extract> {
    let file = File::open(path).expect("open");
    let mut bytes = Vec::new();
    for range in &bound.read {
        let start = bytes.len();
        bytes.resize(start + range.bytes as usize, 0);
        file.read_exact_at(&mut bytes[start..], range.offset)
            .expect("read");
    }
    let extract = Extract::new(bound.files.clone(), bound.read.clone(), bytes);
    Arc::new(extract.expect("well formed"))
}

fn bound_again(extract: &Arc<Extract>, options: &OpenOptions) -> Result<Bound, OnnxError> {
    Skeleton::from_extract(extract.clone(), Box::new(Nothing))?.bind(options)
}

fn assert_same(a: &Graph, b: &Graph) {
    let text = |graph: &Graph| format!("{graph:?}");
    assert_eq!(text(a), text(b));
}

#[test]
fn another_shape_is_bound_without_the_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, text_model().bytes()).expect("written");
    let open = |options: &OpenOptions| {
        let skeleton = Skeleton::open(&path).expect("opens");
        skeleton.bind(options).expect("binds")
    };
    let first = open(&options(1, 8));
    let extract = extract(&path, &first);
    let kept_bytes = extract.bytes().len();
    assert!(
        kept_bytes < 8 << 10,
        "the weights are no part of it: {kept_bytes}"
    );
    for (batch, length) in [(1, 8), (3, 5), (2, 64)] {
        let options = options(batch, length);
        let again = bound_again(&extract, &options).expect("binds");
        assert_same(&open(&options).graph, &again.graph);
        let stored = again.graph.consts.iter();
        let stored = stored.filter(|c| matches!(c, Const::Stored { .. }));
        assert_eq!(stored.count(), 2, "weight and table stay unread");
    }
    let wrong = bound_again(&extract, &options(1, 65)).err();
    let direct = Skeleton::open(&path).expect("opens").bind(&options(1, 65));
    let text = |e: Option<OnnxError>| e.map(|e| e.to_string());
    assert_eq!(text(wrong), text(direct.err()));
}

#[test]
fn shapes_are_known_before_anything_is_bound() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, text_model().bytes()).expect("written");
    let skeleton = Skeleton::open(&path).expect("opens");
    let shapes = skeleton.inputs().shapes(&options(2, 7)).expect("bound");
    assert_eq!(shapes["x"], [2, 7, 96]);
    let open = skeleton.inputs().shapes(&OpenOptions::default());
    assert!(matches!(open, Err(OnnxError::DynamicInput { .. })));
}

/// Weights small enough to be folded are read for it, and kept; what a fold of another shape needs beyond that is
/// an error that says so.
#[test]
fn what_was_not_kept_is_missed_by_name() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("model.onnx");
    let table = vec![1.0f32; 64 * 96];
    // Every second row: no view of the table, so it is folded, and read for that.
    let model = Model::new(13)
        .open_input("x", FLOAT, &[Err("n"), Ok(96)])
        .constant(&f32_tensor("table", &[64, 96], &table))
        .ints("zero", &[0])
        .ints("two", &[2])
        .node("Shape", &["x"], &["size"], &[])
        .node("Slice", &["size", "zero", "zero_to"], &["n"], &[])
        .ints("zero_to", &[1])
        .node("Mul", &["n", "two"], &["twice"], &[])
        .node(
            "Slice",
            &["table", "zero", "twice", "zero", "two"],
            &["rows"],
            &[],
        )
        .node("Add", &["x", "rows"], &["y"], &[])
        .output("y");
    std::fs::write(&path, model.bytes()).expect("written");
    let options = |n: usize| OpenOptions {
        shapes: [("x".to_string(), vec![n, 96])].into(),
        ..OpenOptions::default()
    };
    let first = Skeleton::open(&path).expect("opens").bind(&options(4));
    let first = first.expect("binds");
    let whole = extract(&path, &first);
    assert!(whole.bytes().len() > 64 * 96 * 4, "the table was read");
    bound_again(&whole, &options(9)).expect("binds");
    // The same without the table.
    let mut poorer = first;
    poorer.read.retain(|range| range.bytes < 64 * 96 * 4);
    let error = bound_again(&extract(&path, &poorer), &options(4)).err();
    let error = error.expect("missing").to_string();
    assert!(
        error.contains("model.onnx") && error.contains("not kept"),
        "{error}"
    );
}

#[test]
fn damaged_extracts_bind_or_give_one_line() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, text_model().bytes()).expect("written");
    let bound = Skeleton::open(&path).expect("opens").bind(&options(1, 8));
    let whole = extract(&path, &bound.expect("binds"));
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut failures = 0;
    for _ in 0..3000 {
        let mut bytes = whole.bytes().to_vec();
        let mut pieces = whole.pieces().to_vec();
        let at = (rng.next_u32() as usize) % bytes.len();
        bytes[at] = rng.next_u32() as u8;
        if rng.next_u32().is_multiple_of(8) && pieces.len() > 1 {
            let gone = 1 + (rng.next_u32() as usize) % (pieces.len() - 1);
            let start: u64 = pieces[..gone].iter().map(|p| p.bytes).sum();
            let piece = pieces.remove(gone);
            bytes.drain(start as usize..(start + piece.bytes) as usize);
        }
        let damaged = Extract::new(whole.files().to_vec(), pieces, bytes);
        let damaged = Arc::new(damaged.expect("still well formed"));
        match bound_again(&damaged, &options(1, 8)) {
            Ok(bound) => bound.graph.check().expect("well formed"),
            Err(error) => {
                let text = error.to_string();
                assert!(!text.contains('\n') && text.len() < 2000, "{text}");
                failures += 1;
            }
        }
    }
    assert!(failures > 300, "{failures}");
}
