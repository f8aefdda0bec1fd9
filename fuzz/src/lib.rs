//! Coverage-guided fuzzing: what the targets share. `cargo xtask fuzz` builds and runs them.
//!
//! ```text
//!   onnx     the bytes of an .onnx model                       opened, packed, planned, run
//!   packed   the table of a .neap, checksums made right        opened, planned, run
//!   plan     changes to a plan or a workload that were right   validated; what is accepted is simulated, executed
//! ```
//! Seeds are made here, by code, so that no corpus need be kept for a run to be worth something.
#![forbid(unsafe_code)]

#[path = "../../crates/neap-rewrite/tests/rewrite/build.rs"]
pub mod build;
#[path = "../../crates/neaptide/tests/e2e/images.rs"]
pub mod images;
#[path = "../../crates/neaptide/tests/e2e/nets.rs"]
pub mod nets;
#[path = "../../crates/neap-onnx/tests/support/mod.rs"]
pub mod onnx_writer;
#[path = "../../crates/neaptide/tests/e2e/sequences.rs"]
pub mod sequences;

pub mod models;
pub mod plans;
pub mod twist;

use neaptide::{Budget, CostProfile, Error, IoMode, Model, RunOptions};
use std::path::{Path, PathBuf};

/// A run of more operations than this would only take time.
const MOST_FLOPS: u64 = 200_000_000;

/// Weights and activations of a model that is run.
const MOST_BYTES: u64 = 256 << 20;

/// Set to a folder, a target writes its seeds there and ends.
const SEEDS: &str = "NEAP_FUZZ_SEEDS";

/// Writes the seeds if that was asked for.
///
/// # Panics
/// Where they cannot be written.
pub fn offer_seeds(make: impl FnOnce() -> Vec<Vec<u8>>) {
    let Some(folder) = std::env::var_os(SEEDS) else {
        return;
    };
    let folder = PathBuf::from(folder);
    std::fs::create_dir_all(&folder).expect("the folder of the seeds");
    for (n, seed) in make().iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{n:02}")), seed).expect("a seed is written");
    }
    std::process::exit(0);
}

/// Names a folder for files of a moment, which is removed by who set it.
const SCRATCH: &str = "NEAP_FUZZ_SCRATCH";

/// A folder for the life of the process; without [`SCRATCH`] one in memory, which stays.
///
/// # Panics
/// Where there is none.
pub fn scratch() -> PathBuf {
    let made = match std::env::var_os(SCRATCH) {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()),
    };
    made.expect("a temporary folder").keep()
}

/// Plans, and runs on zeros if that is no great work.
///
/// # Errors
/// Those of a user's run.
///
/// # Panics
/// When the error is the engine's fault, or no single line.
pub fn run(model: Model) -> Result<(), Error> {
    let options = RunOptions {
        budget: Budget::Bytes(MOST_BYTES),
        threads: 1,
        io: IoMode::Pread,
        costs: Some(CostProfile::default()),
        ..RunOptions::default()
    };
    let plan = model.plan(&options)?;
    let flops = plan.workload.steps.iter().map(|s| s.flops);
    if flops.fold(0, u64::saturating_add) > MOST_FLOPS {
        return Ok(());
    }
    let mut session = model.into_session(plan, &options)?;
    let zeros = |infos: &[neaptide::TensorInfo]| -> Vec<Vec<u8>> {
        infos.iter().map(|i| vec![0; i.len_bytes()]).collect()
    };
    let (inputs, mut outputs) = (zeros(session.inputs()), zeros(session.outputs()));
    let inputs: Vec<&[u8]> = inputs.iter().map(|i| &i[..]).collect();
    let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(|o| &mut o[..]).collect();
    session.run(&inputs, &mut outputs)
}

/// # Panics
/// When an outcome is none that a user may see.
pub fn check(outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        let text = error.to_string();
        assert!(!matches!(error, Error::Defect(_)), "a defect: {text}");
        assert!(!text.contains('\n') && !text.contains("panicked"), "{text}");
    }
}

/// Opens what lies at `path`, and runs it.
///
/// # Errors
/// Those of a user's run.
pub fn open_and_run(path: &Path, cache: &Path) -> Result<(), Error> {
    let open = neaptide::OpenOptions {
        cache: neaptide::Cache::Folder(cache.to_path_buf()),
        ..Default::default()
    };
    run(Model::open(path, &open, &mut |_| {})?)
}
