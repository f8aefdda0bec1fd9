//! A run allocates nothing, whichever way weights come.

mod support;

use neap_plan::ExecutionPlan;
use neap_planner::Strategy;
use neap_runtime::{BackingStore, Clock, InputTensor, OutputTensor, Session};
use neap_store::{
    FaultScript, IoMode, MemoryModel, PackWriter, PackedFile, StoreError, open_spill,
};
use neap_testing::{Allocations, Counting, counted};
use std::path::Path;
use support::{Model, image_model, mixed_model, skip_model};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts in all threads while three runs go on; the caller's lists are made before.
fn allocations_of_runs<C: Clock>(model: &Model, session: &mut Session<C>) -> Allocations {
    let graph = &model.program.graph;
    let inputs: Vec<InputTensor> = graph
        .inputs
        .iter()
        .zip(&model.inputs)
        .map(|(&v, bytes)| InputTensor {
            ty: graph.ty(v),
            bytes,
        })
        .collect();
    let mut results: Vec<Vec<u8>> = graph
        .outputs
        .iter()
        .map(|&v| vec![0; graph.ty(v).len_bytes()])
        .collect();
    let mut outputs: Vec<OutputTensor> = graph
        .outputs
        .iter()
        .zip(&mut results)
        .map(|(&v, bytes)| OutputTensor {
            ty: graph.ty(v),
            bytes,
        })
        .collect();
    counted(|| {
        for _ in 0..3 {
            session.run(&inputs, &mut outputs).unwrap();
        }
    })
}

/// A way to read the model's file, and to store activations; `None`, said aloud, where it cannot be had.
fn storage(folder: &Path, file: &Path, plan: &ExecutionPlan, mode: IoMode) -> Option<BackingStore> {
    let mut file = PackedFile::open(file).unwrap();
    let verifier = file.take_verifier().unwrap();
    let source = match file.open_source(mode) {
        Err(e) if mode == IoMode::Uring => {
            neap_testing::skip(format_args!("no io_uring here: {e}"));
            return None;
        }
        opened => opened.unwrap(),
    };
    let spill = match plan.spill_bytes() {
        0 => None,
        bytes => match open_spill(folder, bytes, mode) {
            Err(e @ StoreError::NoSpill { .. }) => {
                neap_testing::skip(e);
                return None;
            }
            opened => Some(opened.unwrap()),
        },
    };
    Some(BackingStore {
        source,
        verifier,
        spill,
    })
}

/// One test, since counting takes in whatever other tests would do meanwhile.
#[test]
fn runs_allocate_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let models = [
        ("mixed", mixed_model(21)),
        ("image", image_model(22)),
        ("spilled", skip_model(23)),
        ("kept", mixed_model(24).keeping()),
    ];
    for (name, model) in models {
        let path = folder.path().join(name);
        let mut writer = PackWriter::create(&path).unwrap();
        writer.append(&model.file[neap_store::BLOCK..]).unwrap();
        writer.finish(b"none").unwrap();
        let expected = model.expected();
        for budget in [model.smallest_bytes(), model.unlimited_bytes()] {
            let plan = model.plan(budget, Strategy::Preload);
            let spills = budget == model.smallest_bytes() && ["spilled", "kept"].contains(&name);
            assert_eq!(plan.stores.is_empty(), !spills, "{name}");
            let mut virtual_session = model
                .open(&plan, 2, MemoryModel::default(), FaultScript::default())
                .unwrap();
            let allocated = allocations_of_runs(&model, &mut virtual_session);
            assert_eq!(allocated, Allocations::NONE, "{name}");
            for mode in [IoMode::Uring, IoMode::Pread] {
                let Some(storage) = storage(folder.path(), &path, &plan, mode) else {
                    continue;
                };
                let mut session = model.open_storage(&plan, 2, storage).unwrap();
                let allocated = allocations_of_runs(&model, &mut session);
                assert_eq!(allocated, Allocations::NONE, "{name} {mode:?}");
                assert_eq!(model.run(&mut session).unwrap(), expected);
                let stored = session.stats().stored_bytes;
                assert_eq!(stored > 0, spills, "{name} {mode:?}");
            }
        }
    }
}
