//! Whole networks: within 1e-4 of the processor, the same bits under every budget, and nothing that validation says.

use neap_ir::DType;
use neap_vulkan::{Limits, Options, Vulkan};
use neaptide::{Accelerator, Budget, Model, OpenOptions, RunOptions};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// One at a time: each has the processor's threads, and drivers theirs.
static TURN: Mutex<()> = Mutex::new(());

fn vulkan(limits: Option<Limits>) -> Option<Arc<Vulkan>> {
    let options = Options {
        validate: true,
        limits,
        ..Options::default()
    };
    match Vulkan::open(&options) {
        Ok(vulkan) => Some(Arc::new(vulkan)),
        Err(e) => {
            neap_testing::skip(e.to_string());
            None
        }
    }
}

fn shared(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/models");
    let path = folder.join(name);
    if !path.exists() {
        neap_testing::absent(format!("{name} is not in ../shared/models"));
    }
    path.exists().then_some(path)
}

/// Made in `folder`.
fn zoo(name: &str, folder: &Path) -> PathBuf {
    let path = folder.join(format!("{name}.onnx"));
    neap_zoo::write(name, &path, &Default::default(), &mut |_, _| {}).expect("written");
    path
}

struct Bench {
    model: PathBuf,
    open: OpenOptions,
}

impl Bench {
    fn new(model: &Path, folder: &Path) -> Bench {
        Bench {
            model: model.to_path_buf(),
            open: OpenOptions {
                cache: neaptide::Cache::Folder(folder.to_path_buf()),
                ..OpenOptions::default()
            },
        }
    }

    fn opened(&self) -> Model {
        Model::open(&self.model, &self.open, &mut |_| {}).expect("opens")
    }

    /// The outputs of two runs, which are equal.
    fn run(&self, options: &RunOptions) -> Vec<Vec<u8>> {
        let model = self.opened();
        let plan = model.plan(options).expect("feasible");
        let mut session = model.into_session(plan, options).expect("opens");
        let inputs: Vec<Vec<u8>> = (session.inputs().iter())
            .map(|input| {
                if input.ty.dtype == DType::I64 {
                    // Tokens, or a mask.
                    let numbers = (0..input.len_bytes() as i64 / 8).map(|i| 1 - i % 2);
                    return numbers.flat_map(i64::to_le_bytes).collect();
                }
                let floats = (0..input.len_bytes() / 4).map(|i| (i % 113) as f32 * 0.02 - 1.0);
                floats.flat_map(f32::to_le_bytes).collect()
            })
            .collect();
        let given: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut all = Vec::new();
        for _ in 0..2 {
            let lens: Vec<usize> = session.outputs().iter().map(|o| o.len_bytes()).collect();
            let mut outputs: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; len]).collect();
            let mut slots: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            session.run(&given, &mut slots).expect("runs");
            all.push(outputs);
        }
        assert_eq!(all[0], all[1], "the second run differs");
        all.remove(0)
    }

    /// On the device with everything resident, in the middle, and in the smallest memory.
    fn check(&self, vulkan: &Arc<Vulkan>) {
        let accelerator: Arc<dyn Accelerator> = vulkan.clone();
        let on_device = |budget| RunOptions {
            budget,
            threads: 2,
            accelerator: Some(accelerator.clone()),
            ..RunOptions::default()
        };
        let on_cpu = RunOptions {
            exact: true,
            threads: 2,
            ..RunOptions::default()
        };
        let expected = self.run(&on_cpu);
        let found = self.run(&on_device(Budget::Unlimited));
        assert_eq!(expected.len(), found.len());
        for (expected, found) in expected.iter().zip(&found) {
            agree(expected, found, &self.model);
        }
        let bounds = self.opened().bounds(&on_device(Budget::Engine(1)));
        let (least, most) = (
            bounds.smallest_feasible_bytes(),
            bounds.unlimited_high_water_bytes(),
        );
        for bytes in [least, (least + most) / 2] {
            let again = self.run(&on_device(Budget::Engine(bytes)));
            assert!(again == found, "other bits within {bytes} bytes");
        }
        assert_eq!(vulkan.gpu().messages(), Vec::<String>::new());
    }
}

fn agree(expected: &[u8], found: &[u8], model: &Path) {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        let words = bytes.chunks_exact(4);
        words
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    };
    let (expected, found) = (floats(expected), floats(found));
    assert_eq!(expected.len(), found.len());
    let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(scale > 0.0, "{}: nothing but zeros", model.display());
    for (e, f) in expected.iter().zip(&found) {
        let off = (e - f).abs() / scale;
        assert!(off <= 1e-4, "{}: {f}, not {e}", model.display());
    }
}

fn of_zoo(names: &[&str], limits: Option<Limits>) {
    let _turn = TURN.lock();
    let Some(vulkan) = vulkan(limits) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in names {
        let model = zoo(name, folder.path());
        Bench::new(&model, folder.path()).check(&vulkan);
    }
}

/// Steps that the processor computes, by operator.
fn left(model: &Model, vulkan: &Vulkan) -> BTreeSet<&'static str> {
    let program = model.program();
    let here = vulkan.computes(program);
    let steps = program.steps.iter().zip(here).filter(|(_, here)| !here);
    steps
        .map(|(step, _)| program.graph.nodes[step.index()].op.name())
        .collect()
}

#[test]
fn a_trained_transformer() {
    let _turn = TURN.lock();
    let (Some(vulkan), Some(model)) = (vulkan(None), shared("minilm_l6_v2.onnx")) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut bench = Bench::new(&model, folder.path());
    for name in ["input_ids", "attention_mask", "token_type_ids"] {
        bench.open.shapes.insert(name.into(), vec![1, 32]);
    }
    // Rows of tables.
    let expected = ["Gather", "GatherRows"];
    assert_eq!(left(&bench.opened(), &vulkan), BTreeSet::from(expected));
    bench.check(&vulkan);
}

#[test]
fn networks_of_the_zoo() {
    of_zoo(&["squeezenet1_1", "mobilenet_v2"], None);
}

#[test]
fn a_network_on_a_small_device() {
    let small = Limits {
        allocation_bytes: 8 << 20,
        binding_bytes: 1 << 20,
        binding_align: 256,
        import_align: 4096,
        groups: [65_535; 3],
    };
    of_zoo(&["squeezenet1_1"], Some(small));
}

#[test]
fn trained_networks() {
    let names = [
        "mobilenet_v2_imagenet.onnx",
        "efficientnet_lite0.onnx",
        "FastestDet.onnx",
    ];
    let _turn = TURN.lock();
    let Some(vulkan) = vulkan(None) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    for model in names.into_iter().filter_map(shared) {
        Bench::new(&model, folder.path()).check(&vulkan);
    }
}
