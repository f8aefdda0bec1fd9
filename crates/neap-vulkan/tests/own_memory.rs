//! Plans in a device's own memory: the bits of plans in the host's, under any pair of budgets, and nothing that validation says.

mod networks;

use neap_vulkan::{Limits, Options, Vulkan};
use neaptide::{Accelerator, Budget, Error, Ledger, Plan, RunOptions};
use networks::{Bench, SMALL, TURN, opened, shared, vulkan};
use std::sync::Arc;

/// The outputs of three runs, and figures of the session.
fn ran(bench: &Bench, options: &RunOptions) -> Ran {
    let (outputs, plan, session) = bench.run(options, 3);
    Ran {
        outputs,
        stats: session.stats(),
        plan,
    }
}

/// The smallest pair that a refusal names.
fn least(bench: &Bench, options: &RunOptions) -> Ledger {
    let options = RunOptions {
        device_budget_bytes: Some(1),
        ..options.clone()
    };
    match bench.opened().plan(&options) {
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
    check_on(name, &|own_memory| vulkan(own_memory, limits));
}

/// On a device with its own memory or not.
fn check_on(name: &str, device: &dyn Fn(bool) -> Option<Arc<Vulkan>>) {
    let _turn = TURN.lock();
    let (Some(host), Some(own)) = (device(false), device(true)) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = Bench::of_zoo(name, folder.path());
    let expected = ran(&bench, &on(&host)).outputs;

    let whole = ran(&bench, &on(&own));
    assert!(
        whole.outputs == expected,
        "other bits with everything resident"
    );
    let most_bytes = whole.plan.ledger.device.expect("a device").total_bytes();
    assert_eq!(whole.plan.ledger.arena_bytes, 0);

    let smallest = least(&bench, &on(&own));
    let least_bytes = smallest.device.expect("a device").total_bytes();
    let engine = RunOptions {
        budget: Budget::Engine(1),
        ..on(&own)
    };
    let host_bytes = least(&bench, &engine).total_bytes();
    let weights_bytes = bench.opened().weight_bytes();
    for device_bytes in [least_bytes, (least_bytes + most_bytes) / 2] {
        for more_bytes in [0, weights_bytes / 3, 2 * weights_bytes] {
            let options = RunOptions {
                budget: Budget::Engine(host_bytes + more_bytes),
                device_budget_bytes: Some(device_bytes),
                ..on(&own)
            };
            let ran = ran(&bench, &options);
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
            let copied = ran.plan.execution().loaded_from_copies_per_run();
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
                    ran.plan.execution().loaded_bytes_per_run() - spilled(&ran.plan)
                );
            }
        }
    }
    let figures = own.own_memory().expect("its own");
    let peak_bytes = figures.reserve_bytes + figures.peak_bytes;
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
        let is_in_host = plan.execution().spills_to_host;
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
    let smallest = least(&bench, &keeping(&own));
    let device_budget_bytes = Some(smallest.device.expect("a device").total_bytes());
    for (more_bytes, expected_in_host) in [(0, false), (64 << 20, true)] {
        let options = RunOptions {
            budget: Budget::Engine(smallest.total_bytes() + more_bytes),
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
    let plan = plan.execution();
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

/// By tiles in the memory of workgroups, with copies of callers' tensors.
#[test]
fn with_the_kernels_of_cards() {
    let device = |own_memory| {
        opened(&Options {
            validate: true,
            no_lanes: true,
            own_memory,
            ..Options::default()
        })
    };
    check_on("cnn_28", &device);
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
    let _turn = TURN.lock();
    let Some(model) = shared("minilm_l6_v2.onnx") else {
        return;
    };
    let (Some(host), Some(own)) = (vulkan(false, None), vulkan(true, None)) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = Bench::of_tokens(model, folder.path());
    let run = |options: &RunOptions| bench.run(options, 2).0;
    let expected = run(&on(&host));
    let smallest = least(&bench, &on(&own)).device.expect("a device");
    for device_budget_bytes in [None, Some(smallest.total_bytes()), Some(16 << 20)] {
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
