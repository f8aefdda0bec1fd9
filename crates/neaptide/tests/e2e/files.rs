//! Packed files of other builds, and sources that are written over.

use super::hostile_onnx::support::{FLOAT, Model as Onnx, f32_tensor};
use neap_store::{BLOCK, PackWriter, PackedFile};
use neaptide::{Budget, Cache, Error, Model, OpenOptions, RunOptions};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const INPUTS: usize = 64;
const OUTPUTS: usize = 320;

/// A product with weights that are too many to stay in the skeleton, for any number of rows.
fn model(gain: f32) -> Vec<u8> {
    let weights = (0..INPUTS * OUTPUTS).map(|i| ((i * 31 % 97) as f32 - 48.0) * gain);
    let weights: Vec<f32> = weights.collect();
    let shape = [INPUTS as i64, OUTPUTS as i64];
    Onnx::new(13)
        .open_input("x", FLOAT, &[Err("rows"), Ok(INPUTS as i64)])
        .constant(&f32_tensor("w", &shape, &weights))
        .node("MatMul", &["x", "w"], &["product"], &[])
        .node("Relu", &["product"], &["y"], &[])
        .output("y")
        .bytes()
}

fn options(folder: &Path, rows: usize) -> OpenOptions {
    OpenOptions {
        shapes: [("x".to_string(), vec![rows, INPUTS])].into(),
        cache: Cache::Folder(folder.join("cache")),
        ..OpenOptions::default()
    }
}

fn result(model: Model) -> Vec<u8> {
    let options = RunOptions {
        budget: Budget::Unlimited,
        threads: 2,
        exact: true,
        ..RunOptions::default()
    };
    let plan = model.plan(&options).expect("planned");
    let mut session = model.into_session(plan, &options).expect("a session");
    let count = session.inputs()[0].ty.elements();
    let x: Vec<u8> = (0..count)
        .flat_map(|i| ((i % 17) as f32 - 8.0).to_le_bytes())
        .collect();
    let mut y = vec![0; session.outputs()[0].len_bytes()];
    session.run(&[&x], &mut [&mut y]).expect("run");
    y
}

/// Writes a packed file again with another table of contents, checksums and all.
fn write_with(toc: &[u8], from: &Path, to: &Path) {
    let range = PackedFile::open(from).expect("opens").data_range();
    let bytes = fs::read(from).expect("readable");
    let mut writer = PackWriter::create(to).expect("created");
    let data = &bytes[range.start as usize..range.end as usize];
    writer.append(data).expect("written");
    writer.align(BLOCK as u64).expect("written");
    writer.finish(toc).expect("written");
}

/// Bytes of the table of contents that hold the version of programs, and that of everything else.
const PROGRAMS: usize = 0;
const WEIGHTS: usize = 4;

#[test]
fn programs_of_another_build_are_made_anew_over_the_weights_as_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    fs::write(path("m.onnx"), model(0.01)).expect("written");
    let open =
        |name: &str, rows| Model::open(path(name), &options(folder.path(), rows), &mut |_| {});
    neaptide::pack(
        &path("m.onnx"),
        &path("m.neap"),
        &options(folder.path(), 3),
        &mut |_| {},
    )
    .expect("packed");
    let expected: BTreeMap<usize, Vec<u8>> = [3, 5]
        .map(|rows| (rows, result(open("m.neap", rows).expect("opened"))))
        .into();
    assert!(expected[&3].iter().any(|&byte| byte != 0));

    let toc = PackedFile::open(&path("m.neap"))
        .expect("opens")
        .toc()
        .to_vec();
    let mut other = toc.clone();
    other[PROGRAMS] ^= 1;
    // Another build may encode its programs in another way.
    let half = other.len() / 2;
    other[half..].fill(0xff);
    write_with(&other, &path("m.neap"), &path("other.neap"));
    for (rows, expected) in &expected {
        let model = open("other.neap", *rows).expect("opened");
        assert!(
            model.remarks()[0].contains("another version"),
            "{:?}",
            model.remarks()
        );
        assert!(result(model) == *expected, "{rows} rows: other bits");
    }

    let mut refused = toc;
    refused[WEIGHTS] ^= 1;
    write_with(&refused, &path("m.neap"), &path("refused.neap"));
    let error = open("refused.neap", 3).err().expect("refused").to_string();
    assert!(
        error.contains("refused.neap") && error.contains("pack it again"),
        "{error}"
    );
}

#[test]
fn a_graph_from_memory_has_the_programs_of_its_build_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let graph = crate::nets::RandomNet::new(1).net.graph;
    let (path, other) = (
        folder.path().join("g.neap"),
        folder.path().join("other.neap"),
    );
    neaptide::pack_graph(graph, &path, &OpenOptions::default(), &mut |_| {}).expect("packed");
    let mut toc = PackedFile::open(&path).expect("opens").toc().to_vec();
    toc[PROGRAMS] ^= 1;
    write_with(&toc, &path, &other);
    let error = Model::open(&other, &OpenOptions::default(), &mut |_| {})
        .err()
        .expect("refused");
    assert!(
        matches!(&error, Error::BadInput(reason) if reason.contains("pack it again")),
        "{error}"
    );
}

/// The file keeps its name, inode, length and time of modification; a session that is open has the weights that were packed.
#[test]
fn a_source_that_is_written_over_is_packed_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.onnx");
    let (first, second) = (model(0.01), model(0.02));
    assert_eq!(first.len(), second.len());
    fs::write(&path, &first).expect("written");
    let open = || Model::open(&path, &options(folder.path(), 3), &mut |_| {}).expect("opened");
    let (before, held) = (result(open()), open());
    let modified = fs::metadata(&path)
        .and_then(|m| m.modified())
        .expect("a time");
    let overwrite = |bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("opened");
        file.write_all_at(bytes, 0).expect("written over");
        file.set_modified(modified).expect("set back");
    };
    overwrite(&second);
    let after = result(open());
    assert!(before != after, "the old weights");
    let doubled = |bytes: &[u8]| -> Vec<f32> {
        let numbers = bytes.as_chunks::<4>().0;
        numbers.iter().map(|&b| f32::from_le_bytes(b)).collect()
    };
    for (a, b) in doubled(&before).iter().zip(doubled(&after)) {
        assert!(
            (2.0 * a - b).abs() <= 1e-4 * b.abs().max(1.0),
            "{a} and {b}"
        );
    }
    // A model that was open has a packed file of its own content still.
    assert!(
        result(held) == before,
        "weights of two contents in one model"
    );
    overwrite(&first);
    assert!(result(open()) == before, "other bits than at first");
}
