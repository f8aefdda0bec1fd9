//! Files that are no models that run.

use crate::made::ALL;
use neap_llm::{Engine, Error, Model, Options};
use neap_testing::GgufWriter;
use std::path::PathBuf;

fn open(bytes: &[u8]) -> Error {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).expect("a temporary folder");
    Model::open(&path).expect_err("it is refused")
}

#[test]
fn what_does_not_run_is_named() {
    let unknown = open(&GgufWriter::new("mamba", 1).finish()).to_string();
    assert!(
        unknown.contains("'mamba'") && unknown.contains("qwen3"),
        "{unknown}"
    );
    assert!(matches!(
        open(&GgufWriter::new("llama", 1).finish()),
        Error::Model(_)
    ));
    assert!(matches!(open(b"no model"), Error::Gguf { .. }));
    let missing = Model::open("/no/such/file".as_ref());
    assert!(matches!(missing, Err(Error::Store(_))));
}

#[test]
fn every_damage_is_an_error() {
    let bytes = ALL[0].bytes();
    // Cut short, and names and sizes changed one byte at a time.
    for len in (0..bytes.len()).step_by(997) {
        open(&bytes[..len]);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    for at in 0..4000 {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&path, &damaged).expect("a temporary folder");
        // Some damage is another model; none is a panic.
        let _ = Model::open(&path);
    }
}

#[test]
fn a_budget_that_is_too_small_says_what_is_enough() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = ALL[0].file(&folder);
    let options = Options {
        memory_budget: Some(1 << 20),
        ..Options::default()
    };
    let refused = Engine::open(&path, &options).err().expect("it is refused");
    assert!(matches!(refused, Error::Budget { budget_bytes, .. } if budget_bytes == 1 << 20));
    assert!(refused.to_string().contains("1.0 MiB"), "{refused}");
}

#[test]
fn a_file_that_is_written_to_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = ALL[0].file(&folder);
    let mut engine = Engine::open(&path, &Options::default()).expect("it opens");
    crate::right::logits(&mut engine, &[1, 2, 3]);
    let mut bytes = ALL[0].bytes();
    let end = bytes.len() - 1;
    bytes[end] ^= 1;
    bytes.push(0);
    std::fs::write(&path, bytes).expect("a temporary folder");
    let mut sequence = engine.begin();
    let mut batch = [neap_llm::Tokens {
        sequence: &mut sequence,
        tokens: &[1],
        wanted: 1,
    }];
    let after = engine.forward(&mut batch, &Default::default(), &mut |_, _, _, _| {});
    assert!(matches!(after, Err(Error::Runtime(_))), "{after:?}");
}

#[test]
fn what_is_named_as_enough_is_enough_and_no_chunk_asks_for_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = ALL[0].file(&folder);
    let options = |memory_budget, chunk| Options {
        memory_budget,
        chunk,
        context: 4096,
        host: std::sync::Arc::new(crate::bits::Process),
        ..Options::default()
    };
    let least = Engine::open(&path, &options(None, 4)).expect("it opens");
    let smallest = least.ledger().smallest_bytes;
    for chunk in [4, 64, 512] {
        let opened = Engine::open(&path, &options(Some(smallest), chunk));
        assert!(opened.is_ok(), "{chunk}: {:?}", opened.err());
        let refused = Engine::open(&path, &options(Some(smallest - 1), chunk)).err();
        assert!(
            matches!(refused, Some(Error::Budget { smallest_bytes, .. }) if smallest_bytes == smallest)
        );
    }
}

/// A model in three files.
fn parts(folder: &tempfile::TempDir) -> Vec<PathBuf> {
    let parts = (1..).zip(ALL[0].writer().split(3)).map(|(number, bytes)| {
        let path = folder.path().join(format!("m-{number:05}-of-00003.gguf"));
        std::fs::write(&path, bytes).expect("a temporary folder");
        path
    });
    parts.collect()
}

#[test]
fn a_model_in_several_files_is_the_same_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = crate::made::tokens(&ALL[0], 90);
    let whole = ALL[0].file(&folder);
    let mut engine = Engine::open(&whole, &Options::default()).expect("it opens");
    let right = crate::right::logits(&mut engine, &tokens);
    let paths = parts(&folder);
    for path in &paths {
        for more in [0, 1 << 16, 1 << 24] {
            for io in [neap_store::IoMode::Auto, neap_store::IoMode::Pread] {
                let options = Options {
                    host: std::sync::Arc::new(crate::bits::Process),
                    io,
                    ..Options::default()
                };
                let engine = Engine::open(path, &options).expect("it opens");
                let budget = engine.ledger().smallest_bytes + more;
                let options = Options {
                    memory_budget: Some(budget),
                    ..options
                };
                let mut engine = Engine::open(path, &options).expect("it opens");
                assert!(crate::right::logits(&mut engine, &tokens) == right);
            }
        }
    }
    // What is written to any of them is noticed.
    let mut engine = Engine::open(&paths[0], &Options::default()).expect("it opens");
    let mut last = std::fs::read(&paths[2]).expect("it is there");
    last.push(0);
    std::fs::write(&paths[2], last).expect("a temporary folder");
    let mut sequence = engine.begin();
    let mut batch = [neap_llm::Tokens {
        sequence: &mut sequence,
        tokens: &[1],
        wanted: 1,
    }];
    let after = engine.forward(&mut batch, &Default::default(), &mut |_, _, _, _| {});
    assert!(matches!(after, Err(Error::Runtime(_))), "{after:?}");
}

#[test]
fn a_part_that_is_missing_or_another_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = parts(&folder);
    std::fs::copy(&paths[0], &paths[2]).expect("a temporary folder");
    let another = Model::open(&paths[0]).expect_err("refused").to_string();
    assert!(another.contains("m-00003-of-00003.gguf"), "{another}");
    assert!(another.contains("part 3 of 3"), "{another}");
    std::fs::remove_file(&paths[2]).expect("it is there");
    let missing = Model::open(&paths[0]).expect_err("refused").to_string();
    assert!(missing.contains("m-00003-of-00003.gguf"), "{missing}");
    assert!(!missing.contains('\n'));
    let renamed = folder.path().join("model.gguf");
    std::fs::rename(&paths[0], &renamed).expect("a temporary folder");
    let named = Model::open(&renamed).expect_err("refused").to_string();
    assert!(named.contains("00001-of-00003"), "{named}");
}
