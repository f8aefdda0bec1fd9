//! Whole networks in sessions.

use neap_ir::DType;
use neap_vulkan::{Limits, Options, Vulkan};
use neaptide::{Cache, Model, OpenOptions, Plan, RunOptions, Session};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// One at a time: each has the processor's threads, and drivers theirs.
pub static TURN: Mutex<()> = Mutex::new(());

/// As if the device were small.
pub const SMALL: Limits = Limits {
    allocation_bytes: 8 << 20,
    binding_bytes: 1 << 20,
    binding_align: 256,
    import_align: 4096,
    groups: [65_535; 3],
};

/// With validation; without a device here, the test is skipped.
pub fn vulkan(own_memory: bool, limits: Option<Limits>) -> Option<Arc<Vulkan>> {
    opened(&Options {
        validate: true,
        own_memory,
        limits,
        ..Options::default()
    })
}

/// As the options say.
pub fn opened(options: &Options) -> Option<Arc<Vulkan>> {
    match Vulkan::open(options) {
        Ok(vulkan) => Some(Arc::new(vulkan)),
        Err(e) => {
            neap_testing::skip(e.to_string());
            None
        }
    }
}

/// A trained model, if it is here.
pub fn shared(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/models");
    let path = folder.join(name);
    if !path.exists() {
        neap_testing::absent(format!("{name} is not in ../shared/models"));
    }
    path.exists().then_some(path)
}

/// A model, and where its packed form is.
pub struct Bench {
    pub model: PathBuf,
    open: OpenOptions,
}

impl Bench {
    pub fn new(model: PathBuf, folder: &Path) -> Bench {
        Bench {
            model,
            open: OpenOptions {
                cache: Cache::Folder(folder.to_path_buf()),
                ..OpenOptions::default()
            },
        }
    }

    /// A network that is made in `folder`.
    pub fn of_zoo(name: &str, folder: &Path) -> Bench {
        Bench::of_size(name, &[], folder)
    }

    /// The same for an input of that shape, if one is given.
    pub fn of_size(name: &str, shape: &[usize], folder: &Path) -> Bench {
        let model = folder.join(format!("{name}.onnx"));
        let options = neap_zoo::Options {
            free_size: !shape.is_empty(),
            ..neap_zoo::Options::default()
        };
        neap_zoo::write(name, &model, &options, &mut |_, _| {}).expect("written");
        let mut bench = Bench::new(model, folder);
        if !shape.is_empty() {
            bench.open.shapes.insert("input".into(), shape.to_vec());
        }
        bench
    }

    /// A transformer, for one sequence of 32 tokens.
    pub fn of_tokens(model: PathBuf, folder: &Path) -> Bench {
        let mut bench = Bench::new(model, folder);
        for name in ["input_ids", "attention_mask", "token_type_ids"] {
            bench.open.shapes.insert(name.into(), vec![1, 32]);
        }
        bench
    }

    pub fn opened(&self) -> Model {
        Model::open(&self.model, &self.open, &mut |_| {}).expect("opens")
    }

    /// The outputs of so many runs, which are equal; the plan, and the session after them.
    pub fn run(&self, options: &RunOptions, runs: usize) -> (Vec<Vec<u8>>, Plan, Session) {
        let model = self.opened();
        let plan = model.plan(options).expect("feasible");
        let mut session = model.into_session(plan.clone(), options).expect("opens");
        let inputs: Vec<Vec<u8>> = (session.inputs().iter())
            .map(|input| sample(input.ty.dtype, input.len_bytes()))
            .collect();
        let given: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let lens: Vec<usize> = session.outputs().iter().map(|o| o.len_bytes()).collect();
        let mut first = None;
        for run in 0..runs {
            let mut outputs: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; len]).collect();
            let mut slots: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            session.run(&given, &mut slots).expect("runs");
            let first = first.get_or_insert_with(|| outputs.clone());
            assert!(*first == outputs, "run {run} differs");
        }
        (first.unwrap_or_default(), plan, session)
    }
}

/// Tokens, or a mask; numbers between -1 and 1.26 elsewhere.
fn sample(dtype: DType, bytes: usize) -> Vec<u8> {
    if dtype == DType::I64 {
        let numbers = (0..bytes as i64 / 8).map(|i| 1 - i % 2);
        return numbers.flat_map(i64::to_le_bytes).collect();
    }
    let floats = (0..bytes / 4).map(|i| (i % 113) as f32 * 0.02 - 1.0);
    floats.flat_map(f32::to_le_bytes).collect()
}
