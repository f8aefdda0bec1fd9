//! A run allocates nothing, whichever way weights come.

mod support;

use neap_planner::Strategy;
use neap_runtime::{Clock, InputTensor, OutputTensor, Session};
use neap_store::{FaultScript, IoMode, MemoryModel, PackWriter, PackedFile};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::{Model, image_model, mixed_model};

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

/// One test, since counting takes in whatever other tests would do meanwhile.
#[test]
fn runs_allocate_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for (name, model) in [("mixed", mixed_model(21)), ("image", image_model(22))] {
        let path = folder.path().join(name);
        let mut writer = PackWriter::create(&path).unwrap();
        writer.append(&model.file[neap_store::BLOCK..]).unwrap();
        writer.finish(b"none").unwrap();
        let expected = model.expected();
        for budget in [model.smallest_bytes(), model.unlimited_bytes()] {
            let plan = model.plan(budget, Strategy::Preload);
            let mut virtual_session = model
                .open(&plan, 2, MemoryModel::default(), FaultScript::default())
                .unwrap();
            assert_eq!(allocations_of_runs(&model, &mut virtual_session), 0);
            for mode in [IoMode::Uring, IoMode::Pread] {
                let mut file = PackedFile::open(&path).unwrap();
                let verifier = file.take_verifier().unwrap();
                let source = match file.open_source(mode) {
                    Ok(source) => source,
                    Err(e) if mode == IoMode::Uring => {
                        eprintln!("SKIPPED: no io_uring here: {e}");
                        continue;
                    }
                    Err(e) => panic!("{e}"),
                };
                let mut session = model.open_source(&plan, 2, source, verifier).unwrap();
                // Threads that read allocate as they start, which may be at any time, but once.
                let tries = if mode == IoMode::Pread { 100 } else { 1 };
                let quiet = (0..tries).any(|_| allocations_of_runs(&model, &mut session) == 0);
                assert!(quiet, "{mode:?}");
                assert_eq!(model.run(&mut session).unwrap(), expected);
            }
        }
    }
}
