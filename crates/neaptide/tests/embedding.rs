//! The engine in a program with other work: what is the program's stays as it is, and budgets can be the engine's own.

mod graphs;

use graphs::Layers;
use neap_ir::Graph;
use neaptide::{Budget, Error, Model, OpenOptions, RunOptions, Scope, Session, memory};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the bytes that are allocated and not yet released.
struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live_bytes() -> u64 {
    LIVE_BYTES.load(Ordering::Relaxed) as u64
}

/// Convolutions: 30 MB of weights.
fn graph() -> Graph {
    graphs::conv_chain(&Layers {
        channels: vec![16, 272, 512, 480, 512, 368, 16],
        side: 10,
        seed: 0,
        gain: 1e-3,
        last: None,
    })
}

/// Anonymous pages of the process and all its page tables.
fn own_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let of = |key: &str| -> u64 {
        let line = status.lines().find_map(|l| l.strip_prefix(key));
        let number = line.expect("there").trim().trim_end_matches("kB").trim();
        number.parse::<u64>().expect("a number") * 1024
    };
    of("RssAnon:") + of("VmPTE:")
}

/// Address range and rights of every mapping of the program or a library.
fn file_mappings() -> Vec<String> {
    let table = fs::read_to_string("/proc/self/maps").expect("Linux");
    let of_files = table.lines().filter(|line| line.contains(" /"));
    of_files.map(str::to_owned).collect()
}

/// Resident bytes of mapped files.
fn mapped_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|l| l.strip_prefix("RssFile:"));
    let number = line.expect("there").trim().trim_end_matches("kB").trim();
    number.parse::<u64>().expect("a number") * 1024
}

/// Small blocks that were all released but for the last, so that the allocator holds free pages.
fn freed_heap() -> Box<[u8; 512]> {
    let mut blocks: Vec<Box<[u8; 512]>> = (0..64 << 10).map(|_| Box::new([1; 512])).collect();
    blocks.pop().expect("many")
}

fn run(session: &mut Session) {
    let input = vec![0u8; session.inputs()[0].len_bytes()];
    let mut output = vec![0u8; session.outputs()[0].len_bytes()];
    for _ in 0..2 {
        session.run(&[&input], &mut [&mut output]).expect("runs");
    }
}

fn options(budget: Budget) -> RunOptions {
    RunOptions {
        threads: 2,
        budget,
        ..RunOptions::default()
    }
}

fn session(path: &Path, open: &OpenOptions, budget: Budget) -> Session {
    let model = Model::open(path, open, &mut |_| {}).expect("opens");
    let plan = model.plan(&options(budget)).expect("feasible");
    model.into_session(plan, &options(budget)).expect("opens")
}

/// One test, since the process is what is looked at.
#[test]
fn a_program_that_embeds_the_engine() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.neap");
    neaptide::pack_graph(graph(), &path, &Default::default(), &mut |_| {}).expect("packs");
    the_engines_heap_is_accounted_for(folder.path());
    an_engine_budget_is_the_engines_alone(&path);
    nothing_of_the_program_is_touched(&path);
}

/// Neither mappings of libraries nor free pages of the allocator, unless the host is asked for it.
fn nothing_of_the_program_is_touched(path: &Path) {
    // Whatever the engine needs for the first time has been loaded.
    run(&mut session(
        path,
        &OpenOptions::default(),
        Budget::Unlimited,
    ));
    let keep = freed_heap();
    let (mappings, mapped, own) = (file_mappings(), mapped_bytes(), own_bytes());
    let mut embedded = session(path, &OpenOptions::default(), Budget::Bytes(1 << 30));
    run(&mut embedded);
    embedded.set_budget(Budget::Unlimited).expect("feasible");
    run(&mut embedded);
    drop(embedded);
    assert_eq!(file_mappings(), mappings);
    assert!(mapped_bytes() >= mapped, "{} of {mapped}", mapped_bytes());
    assert!(own_bytes() + (1 << 20) >= own, "{} of {own}", own_bytes());
    // A host that says so has both.
    run(&mut session(
        path,
        &OpenOptions::of_own_process(),
        Budget::Unlimited,
    ));
    assert!(file_mappings().len() > mappings.len() + 8);
    assert!(own_bytes() + (16 << 20) < own, "{} of {own}", own_bytes());
    drop(keep);
}

/// Whatever else the process holds.
fn an_engine_budget_is_the_engines_alone(path: &Path) {
    let open = OpenOptions::default();
    // Packed pages, threads and tables that stay.
    run(&mut session(path, &open, Budget::Unlimited));
    let ballast = std::hint::black_box(vec![1u8; 96 << 20]);
    let model = Model::open(path, &open, &mut |_| {}).expect("opens");
    let bounds = model.bounds(&options(Budget::Engine(1)));
    let (least, most) = (bounds.smallest.total_bytes(), bounds.whole.total_bytes());
    assert_eq!(bounds.smallest.scope, Scope::Engine);
    assert!(
        most > least + (16 << 20) && most < ballast.len() as u64,
        "{least} {most}"
    );
    drop(model);
    memory::trim_heap();
    let before = own_bytes();
    let taken = || {
        // What planning left in the allocator is the program's to trim.
        memory::trim_heap();
        own_bytes().saturating_sub(before)
    };
    let mut session = session(path, &open, Budget::Engine(least));
    run(&mut session);
    assert!(
        taken() <= least,
        "{} of {least}: {}",
        taken(),
        session.ledger()
    );
    assert!(session.stats().loaded_bytes > 0);
    for budget in [most, u64::midpoint(least, most), least] {
        let done = session
            .set_budget(Budget::Engine(budget))
            .expect("feasible");
        assert_eq!(done.budget_bytes, Some(budget));
        let ledger = *session.ledger();
        assert_eq!(ledger.scope, Scope::Engine);
        assert_eq!(ledger.total_bytes(), done.high_water_bytes);
        assert!(ledger.total_bytes() <= budget);
        run(&mut session);
        assert!(taken() <= budget, "{} of {budget}: {ledger}", taken());
    }
    let refused = session.set_budget(Budget::Engine(1 << 20));
    let Err(Error::Infeasible {
        parts,
        smallest_bytes,
        ..
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(
        (parts.scope, parts.total_bytes()),
        (Scope::Engine, smallest_bytes)
    );
    assert!(smallest_bytes <= least, "{smallest_bytes} {least}");
    session
        .set_budget(Budget::Engine(smallest_bytes))
        .expect("was named");
    run(&mut session);
    // Of the whole process, the ballast counts.
    let refused = session.set_budget(Budget::Bytes(least));
    let Err(Error::Infeasible { parts, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(parts.scope, Scope::Process);
    assert!(parts.process_bytes > ballast.len() as u64);
}

/// What [`Budget::Engine`] counts for the heap is what models and sessions allocate, or somewhat more.
fn the_engines_heap_is_accounted_for(folder: &Path) {
    for name in ["squeezenet1_1", "densenet121", "nasnet_a_large", "gpt2"] {
        let path = folder.join(format!("{name}.onnx"));
        let shapes = neap_zoo::Options {
            shapes_only: true,
            ..Default::default()
        };
        neap_zoo::write(name, &path, &shapes, &mut |_, _| {}).expect("is written");
        let before = live_bytes();
        let model = Model::open(&path, &OpenOptions::default(), &mut |_| {}).expect("opens");
        let taken = live_bytes() - before;
        let counted = model
            .bounds(&options(Budget::Engine(1)))
            .whole
            .process_bytes;
        eprintln!(
            "{name}: {taken} of {counted}, {} steps",
            model.program().steps.len()
        );
        assert!(taken <= counted, "{name}: {taken} of {counted}");
        assert!(counted < 8 * taken, "{name}: {taken} of {counted}");
    }
}
