//! Plans in a device's own memory: the bits of plans in the host's, under any pair of budgets, and nothing that validation says.

use neap_vulkan::{Limits, Options, Vulkan};
use neaptide::{Accelerator, Budget, Error, Ledger, Model, OpenOptions, Plan, RunOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// One at a time: each has the processor's threads, and drivers theirs.
static TURN: Mutex<()> = Mutex::new(());

const SMALL: Limits = Limits {
    allocation_bytes: 8 << 20,
    binding_bytes: 1 << 20,
    binding_align: 256,
    import_align: 4096,
    groups: [65_535; 3],
};

fn vulkan(own_memory: bool, limits: Option<Limits>) -> Option<Arc<Vulkan>> {
    let options = Options {
        validate: true,
        own_memory,
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

/// A model and where its packed form is.
struct Bench {
    model: PathBuf,
    open: OpenOptions,
}

impl Bench {
    fn of_zoo(name: &str, folder: &Path) -> Bench {
        let model = folder.join(format!("{name}.onnx"));
        neap_zoo::write(name, &model, &Default::default(), &mut |_, _| {}).expect("written");
        Bench {
            model,
            open: OpenOptions {
                cache: neaptide::Cache::Folder(folder.to_path_buf()),
                ..OpenOptions::default()
            },
        }
    }

    fn opened(&self) -> Model {
        Model::open(&self.model, &self.open, &mut |_| {}).expect("opens")
    }

    /// The outputs of three runs, which are equal, and the session's figures.
    fn run(&self, options: &RunOptions) -> Ran {
        let model = self.opened();
        let plan = model.plan(options).expect("feasible");
        let kept = plan.clone();
        let mut session = model.into_session(plan, options).expect("opens");
        let inputs: Vec<Vec<u8>> = (session.inputs().iter())
            .map(|input| {
                let floats = (0..input.len_bytes() / 4).map(|i| (i % 113) as f32 * 0.02 - 1.0);
                floats.flat_map(f32::to_le_bytes).collect()
            })
            .collect();
        let given: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut all = Vec::new();
        for _ in 0..3 {
            let lens: Vec<usize> = session.outputs().iter().map(|o| o.len_bytes()).collect();
            let mut outputs: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; len]).collect();
            let mut slots: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            session.run(&given, &mut slots).expect("runs");
            all.push(outputs);
        }
        assert_eq!(all[0], all[1], "the second run differs");
        assert_eq!(all[0], all[2], "the third run differs");
        Ran {
            outputs: all.remove(0),
            stats: session.stats(),
            plan: kept,
        }
    }

    /// The smallest pair that a refusal names.
    fn least(&self, options: &RunOptions) -> Ledger {
        let options = RunOptions {
            device_budget_bytes: Some(1),
            ..options.clone()
        };
        match self.opened().plan(&options) {
            Err(error @ Error::Infeasible { .. }) => {
                let text = error.to_string();
                assert!(
                    text.contains("smallest feasible pair") && !text.contains('\n'),
                    "{text}"
                );
                let Error::Infeasible { parts, .. } = error else {
                    unreachable!("matched above");
                };
                *parts
            }
            other => panic!("{:?}", other.map(|plan| plan.ledger)),
        }
    }
}

struct Ran {
    outputs: Vec<Vec<u8>>,
    stats: neap_runtime::Stats,
    plan: Plan,
}

fn on(vulkan: &Arc<Vulkan>) -> RunOptions {
    let accelerator: Arc<dyn Accelerator> = vulkan.clone();
    RunOptions {
        budget: Budget::Unlimited,
        threads: 2,
        accelerator: Some(accelerator),
        ..RunOptions::default()
    }
}

/// The same bits everywhere; what each budget promises is kept.
fn check(name: &str, limits: Option<Limits>) {
    let _turn = TURN.lock();
    let (Some(host), Some(own)) = (vulkan(false, limits), vulkan(true, limits)) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = Bench::of_zoo(name, folder.path());
    let expected = bench.run(&on(&host)).outputs;

    let whole = bench.run(&on(&own));
    assert!(
        whole.outputs == expected,
        "other bits with everything resident"
    );
    let most_bytes = whole.plan.ledger.device.expect("a device").total_bytes();
    assert_eq!(whole.plan.ledger.arena_bytes, 0);

    let least = bench.least(&on(&own));
    let least_bytes = least.device.expect("a device").total_bytes();
    let engine = RunOptions {
        budget: Budget::Engine(1),
        ..on(&own)
    };
    let host_bytes = bench.least(&engine).total_bytes();
    let weights_bytes = bench.opened().weight_bytes();
    for device_bytes in [least_bytes, (least_bytes + most_bytes) / 2] {
        for more_bytes in [0, weights_bytes / 3, 2 * weights_bytes] {
            let options = RunOptions {
                budget: Budget::Engine(host_bytes + more_bytes),
                device_budget_bytes: Some(device_bytes),
                ..on(&own)
            };
            let ran = bench.run(&options);
            let pair = format!("{device_bytes} bytes of the device, {more_bytes} more of the host");
            assert!(ran.outputs == expected, "other bits within {pair}");
            let ledger = &ran.plan.ledger;
            assert!(
                ledger.device.expect("a device").total_bytes() <= device_bytes,
                "{pair}"
            );
            assert!(ledger.total_bytes() <= host_bytes + more_bytes, "{pair}");
            // A named size has slack, which may be left.
            assert!(ledger.copies_bytes <= more_bytes + (1 << 20), "{pair}");
            let copied = ran.plan.execution.loaded_from_copies_per_run();
            // The first run reads what it copies; loads of the fourth may have begun.
            assert!(
                ran.stats.copied_bytes >= 2 * copied,
                "{pair}: {:?}",
                ran.stats
            );
            assert!(copied > 0 || more_bytes == 0, "{pair}");
            if more_bytes > weights_bytes {
                assert_eq!(
                    copied,
                    ran.plan.execution.loaded_bytes_per_run() - spilled(&ran.plan)
                );
            }
        }
    }
    let peak_bytes = own.own_memory().expect("its own").peak_bytes;
    assert!(
        (least_bytes..=most_bytes + 4096).contains(&peak_bytes),
        "{peak_bytes}"
    );
    assert_eq!(own.gpu().messages(), Vec::<String>::new());
    assert_eq!(host.gpu().messages(), Vec::<String>::new());
}

/// Activations that leave the device come back as they were, from the spill file and from the host's memory.
#[test]
fn stored_activations() {
    let _turn = TURN.lock();
    let (Some(host), Some(own)) = (vulkan(false, None), vulkan(true, None)) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = Bench::of_zoo("squeezenet1_1", folder.path());
    let keeping = |vulkan: &Arc<Vulkan>| RunOptions {
        keep_activations: true,
        budget: Budget::Engine(1),
        ..on(vulkan)
    };
    let kept = |options: &RunOptions| {
        let model = bench.opened();
        let plan = model.plan(options).expect("feasible");
        let is_in_host = plan.execution.spills_to_host;
        let mut session = model.into_session(plan, options).expect("opens");
        let input = vec![0x3e; session.inputs()[0].len_bytes()];
        let mut output = vec![0; session.outputs()[0].len_bytes()];
        for _ in 0..2 {
            session.run(&[&input], &mut [&mut output]).expect("runs");
        }
        let count = session.kept().len();
        let digests = (0..count).map(|i| session.kept_digest(i).expect("read"));
        let digests: Vec<String> = digests.collect();
        (output, digests, session.stats().stored_bytes, is_in_host)
    };
    let unlimited = RunOptions {
        budget: Budget::Unlimited,
        ..keeping(&host)
    };
    let (output, digests, ..) = kept(&unlimited);
    assert!(digests.len() > 10);
    let least = bench.least(&keeping(&own));
    let device_budget_bytes = Some(least.device.expect("a device").total_bytes());
    for (more_bytes, expected_in_host) in [(0, false), (64 << 20, true)] {
        let options = RunOptions {
            budget: Budget::Engine(least.total_bytes() + more_bytes),
            device_budget_bytes,
            ..keeping(&own)
        };
        let (found, again, stored_bytes, is_in_host) = kept(&options);
        assert!(
            found == output && again == digests,
            "{more_bytes} more: other bits"
        );
        assert!(stored_bytes > 0, "nothing left the device");
        assert_eq!(is_in_host, expected_in_host);
    }
    assert_eq!(own.gpu().messages(), Vec::<String>::new());
}

/// What a run loads from the spill file.
fn spilled(plan: &Plan) -> u64 {
    let plan = &plan.execution;
    let is_back =
        |l: &&neap_plan::Load| plan.kind(l.from.space) == Some(neap_plan::SpaceKind::Spill);
    plan.loads.iter().filter(is_back).map(|l| l.bytes).sum()
}

#[test]
fn squeezenet() {
    check("squeezenet1_1", None);
}

#[test]
fn mobilenet() {
    check("mobilenet_v2", None);
}

#[test]
fn a_small_device() {
    check("squeezenet1_1", Some(SMALL));
}

/// One line, and the session goes on.
#[test]
fn what_a_device_budget_does_not_do_is_refused() {
    let _turn = TURN.lock();
    let Some(own) = vulkan(true, None) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = Bench::of_zoo("squeezenet1_1", folder.path());
    let options = on(&own);
    let model = bench.opened();
    let plan = model.plan(&options).expect("feasible");
    let mut session = model.into_session(plan, &options).expect("opens");
    let input = vec![0; session.inputs()[0].len_bytes()];
    let mut outputs = [
        vec![0; session.outputs()[0].len_bytes()],
        vec![0; session.outputs()[0].len_bytes()],
    ];
    let [before, after] = &mut outputs;
    session.run(&[&input], &mut [before]).expect("runs");
    let refused = session
        .set_budget(Budget::Bytes(1 << 30))
        .expect_err("refused");
    assert!(refused.to_string().contains("for one plan"), "{refused}");
    session.run(&[&input], &mut [after]).expect("runs again");
    assert!(outputs[0] == outputs[1]);
    assert_eq!(own.gpu().messages(), Vec::<String>::new());
}

/// Steps that the processor computes find their operands in the device's memory.
#[test]
fn a_transformer_with_steps_on_the_processor() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/models");
    let model = shared.join("minilm_l6_v2.onnx");
    if !model.exists() {
        return neap_testing::absent("minilm_l6_v2.onnx is not in ../shared/models".to_string());
    }
    let _turn = TURN.lock();
    let (Some(host), Some(own)) = (vulkan(false, None), vulkan(true, None)) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut open = OpenOptions {
        cache: neaptide::Cache::Folder(folder.path().to_path_buf()),
        ..OpenOptions::default()
    };
    for name in ["input_ids", "attention_mask", "token_type_ids"] {
        open.shapes.insert(name.into(), vec![1, 32]);
    }
    let bench = Bench { model, open };
    let run = |options: &RunOptions| {
        let model = bench.opened();
        let plan = model.plan(options).expect("feasible");
        let mut session = model.into_session(plan, options).expect("opens");
        let numbers = |n: usize| {
            (0..n as i64)
                .flat_map(|i| (1 - i % 2).to_le_bytes())
                .collect()
        };
        let inputs: Vec<Vec<u8>> = (session.inputs().iter())
            .map(|input| numbers(input.len_bytes() / 8))
            .collect();
        let given: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let lens: Vec<usize> = session.outputs().iter().map(|o| o.len_bytes()).collect();
        let mut outputs: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; len]).collect();
        let mut slots: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        session.run(&given, &mut slots).expect("runs");
        session.run(&given, &mut slots).expect("runs");
        outputs
    };
    let expected = run(&on(&host));
    let least = bench.least(&on(&own)).device.expect("a device");
    for device_budget_bytes in [None, Some(least.total_bytes()), Some(16 << 20)] {
        let found = run(&RunOptions {
            device_budget_bytes,
            ..on(&own)
        });
        assert!(
            found == expected,
            "other bits within {device_budget_bytes:?}"
        );
    }
    assert_eq!(own.gpu().messages(), Vec::<String>::new());
}
