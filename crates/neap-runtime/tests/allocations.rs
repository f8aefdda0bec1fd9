//! A run allocates nothing, whichever way weights come.

mod support;

use neap_plan::ExecutionPlan;
use neap_planner::Strategy;
use neap_runtime::{Clock, InputTensor, OutputTensor, Session, Storage};
use neap_store::{
    FaultScript, IoMode, MemoryModel, PackWriter, PackedFile, StoreError, open_spill,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::{Model, image_model, mixed_model, skip_model};

struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if COUNTING.load(Ordering::SeqCst) {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts in all threads while three runs go on; the caller's lists are made before.
fn allocations_of_runs<C: Clock>(model: &Model, session: &mut Session<C>) -> usize {
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
    ALLOCATIONS.store(0, Ordering::SeqCst);
    COUNTING.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        session.run(&inputs, &mut outputs).unwrap();
    }
    COUNTING.store(false, Ordering::SeqCst);
    ALLOCATIONS.load(Ordering::SeqCst)
}

/// A way to read the model's file, and to store activations; `None`, said aloud, where it cannot be had.
fn storage(folder: &Path, file: &Path, plan: &ExecutionPlan, mode: IoMode) -> Option<Storage> {
    let mut file = PackedFile::open(file).unwrap();
    let verifier = file.take_verifier().unwrap();
    let source = match file.open_source(mode) {
        Err(e) if mode == IoMode::Uring => {
            eprintln!("SKIPPED: no io_uring here: {e}");
            return None;
        }
        opened => opened.unwrap(),
    };
    let spill = match plan.spill_bytes() {
        0 => None,
        bytes => match open_spill(folder, bytes, mode) {
            Err(e @ StoreError::NoSpill { .. }) => {
                eprintln!("SKIPPED: {e}");
                return None;
            }
            opened => Some(opened.unwrap()),
        },
    };
    Some(Storage {
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
            assert_eq!(allocations_of_runs(&model, &mut virtual_session), 0);
            for mode in [IoMode::Uring, IoMode::Pread] {
                let Some(storage) = storage(folder.path(), &path, &plan, mode) else {
                    continue;
                };
                let mut session = model.open_storage(&plan, 2, storage).unwrap();
                // Threads that read allocate as they start, which may be at any time, but once.
                let tries = if mode == IoMode::Pread { 100 } else { 1 };
                let quiet = (0..tries).any(|_| allocations_of_runs(&model, &mut session) == 0);
                assert!(quiet, "{name} {mode:?}");
                assert_eq!(model.run(&mut session).unwrap(), expected);
                let stored = session.stats().stored_bytes;
                assert_eq!(stored > 0, spills, "{name} {mode:?}");
            }
        }
    }
}
