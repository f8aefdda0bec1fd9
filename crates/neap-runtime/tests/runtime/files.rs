//! Real files through io_uring and pread: the same bits, and sessions that go with loads in flight.

use crate::support::{Model, image_model, mixed_model, within};
use neap_planner::Strategy;
use neap_store::{IoMode, PackWriter, PackedFile, Source, Verifier};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn pack(model: &Model, folder: &Path) -> PathBuf {
    let path = folder.join("model.neap");
    let mut writer = PackWriter::create(&path).unwrap();
    writer.append(&model.file[neap_store::BLOCK..]).unwrap();
    writer.finish(b"none").unwrap();
    path
}

fn open(path: &Path, mode: IoMode) -> Option<(Box<dyn Source>, Verifier)> {
    let mut file = PackedFile::open(path).unwrap();
    let verifier = file.take_verifier().unwrap();
    match file.open_source(mode) {
        Ok(source) => Some((source, verifier)),
        Err(e) if mode == IoMode::Uring => {
            neap_testing::skip(format_args!("no io_uring here: {e}"));
            None
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn the_same_bits_from_any_source() {
    within(LIMIT, || {
        let folder = tempfile::tempdir().unwrap();
        for model in [mixed_model(31), image_model(32)] {
            let path = pack(&model, folder.path());
            let expected = model.expected();
            for budget in [model.smallest_bytes(), model.unlimited_bytes()] {
                let plan = model.plan(budget, Strategy::Preload);
                for mode in [IoMode::Auto, IoMode::Uring, IoMode::Pread] {
                    let Some((source, verifier)) = open(&path, mode) else {
                        continue;
                    };
                    let mut session = model.open_source(&plan, 2, source, verifier).unwrap();
                    for _ in 0..20 {
                        assert_eq!(model.run(&mut session).unwrap(), expected);
                    }
                }
            }
        }
    });
}

#[test]
fn sessions_may_go_with_loads_in_flight() {
    within(LIMIT, || {
        let folder = tempfile::tempdir().unwrap();
        let model = mixed_model(33);
        let path = pack(&model, folder.path());
        let expected = model.expected();
        let plan = model.plan(model.smallest_bytes(), Strategy::Preload);
        for mode in [IoMode::Uring, IoMode::Pread] {
            for runs in 0..30 {
                let Some((source, verifier)) = open(&path, mode) else {
                    continue;
                };
                // Opening starts the first run's loads, and each run those of the next.
                let mut session = model.open_source(&plan, 1, source, verifier).unwrap();
                for _ in 0..runs % 3 {
                    assert_eq!(model.run(&mut session).unwrap(), expected);
                }
            }
        }
    });
}

#[test]
fn a_corrupted_file_is_an_error() {
    within(LIMIT, || {
        let folder = tempfile::tempdir().unwrap();
        let model = mixed_model(34);
        let path = pack(&model, folder.path());
        let mut bytes = std::fs::read(&path).unwrap();
        // A byte of the second linear layer's weights.
        let at = model.program.packed[2].offset as usize + 1000;
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let plan = model.plan(model.smallest_bytes(), Strategy::Preload);
        let (source, verifier) = open(&path, IoMode::Auto).unwrap();
        let error = match model.open_source(&plan, 1, source, verifier) {
            Err(e) => e,
            Ok(mut session) => model.run(&mut session).unwrap_err(),
        };
        let offset = (at / 4096 * 4096).to_string();
        assert!(error.to_string().contains(&offset), "{error}");
    });
}
