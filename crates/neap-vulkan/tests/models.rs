//! Whole networks: within 1e-4 of the processor, the same bits under every budget, and nothing that validation says.

mod networks;

use neap_vulkan::{Limits, Options, Vulkan};
use neaptide::{Accelerator, Budget, CostProfile, Model, RunOptions, Sharing};
use networks::{Bench, SMALL, TURN, opened, shared, vulkan};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// On the device with everything resident, in the middle, and in the smallest memory.
fn check(bench: &Bench, vulkan: &Arc<Vulkan>) {
    let accelerator: Arc<dyn Accelerator> = vulkan.clone();
    let options = RunOptions {
        threads: 2,
        accelerator: Some(accelerator.clone()),
        ..RunOptions::default()
    };
    check_with(bench, vulkan, &options);
}

/// The same with these options.
fn check_with(bench: &Bench, vulkan: &Arc<Vulkan>, options: &RunOptions) {
    let on_device = |budget| RunOptions {
        budget,
        ..options.clone()
    };
    let on_cpu = RunOptions {
        exact: true,
        threads: 2,
        ..RunOptions::default()
    };
    let run = |options: &RunOptions| bench.run(options, 2).0;
    let expected = run(&on_cpu);
    let found = run(&on_device(Budget::Unlimited));
    assert_eq!(expected.len(), found.len());
    for (expected, found) in expected.iter().zip(&found) {
        agree(expected, found, &bench.model);
    }
    let bounds = bench.opened().bounds(&on_device(Budget::Engine(1)));
    let (least, most) = (
        bounds.smallest_feasible_bytes(),
        bounds.unlimited_high_water_bytes(),
    );
    for bytes in [least, (least + most) / 2] {
        let again = run(&on_device(Budget::Engine(bytes)));
        assert!(again == found, "other bits within {bytes} bytes");
    }
    assert_eq!(vulkan.gpu().messages(), Vec::<String>::new());
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
    let Some(vulkan) = vulkan(false, limits) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in names {
        check(&Bench::of_zoo(name, folder.path()), &vulkan);
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
    let (Some(vulkan), Some(model)) = (vulkan(false, None), shared("minilm_l6_v2.onnx")) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = Bench::of_tokens(model, folder.path());
    // Rows of the packed file.
    let expected = BTreeSet::from(["GatherRows"]);
    assert_eq!(left(&bench.opened(), &vulkan), expected);
    check(&bench, &vulkan);
}

/// In these sizes they take seconds. `NEAP_WHOLE_ZOO=1` asks for all others that have weights, too; `NEAP_WHOLE_ZOO=NAME,NAME`
/// for these alone.
#[test]
fn networks_of_the_zoo() {
    const IMAGE: &[usize] = &[1, 3, 64, 64];
    let quick: [(&str, &[usize]); 8] = [
        ("squeezenet1_1", &[]),
        ("mobilenet_v2", &[]),
        ("resnet50", IMAGE),
        ("resnext50", IMAGE),
        ("densenet121", IMAGE),
        ("inception_v3", &[1, 3, 96, 96]),
        ("mlp_28", &[]),
        ("cnn_28", &[]),
    ];
    let smaller: [(&str, &[usize]); 2] = [("resnet101", IMAGE), ("resnet152", IMAGE)];
    let all = neap_zoo::list().iter().filter(|entry| !entry.shapes_only);
    let others = all.map(|entry| entry.name);
    let others = others.filter(|name| quick.iter().all(|(quick, _)| quick != name));
    let mut wanted = quick.to_vec();
    if let Ok(asked) = std::env::var("NEAP_WHOLE_ZOO") {
        wanted.extend(others.map(|name| {
            let smaller = smaller.iter().find(|(other, _)| *other == name);
            *smaller.unwrap_or(&(name, &[]))
        }));
        if asked != "1" {
            let names: Vec<&str> = asked.split(',').collect();
            wanted.retain(|(name, _)| names.contains(name));
            assert_eq!(wanted.len(), names.len(), "not all of {names:?} are there");
        }
    }
    let _turn = TURN.lock();
    let Some(vulkan) = vulkan(false, None) else {
        return;
    };
    for (name, shape) in wanted {
        let folder = tempfile::tempdir().expect("a temporary folder");
        check(&Bench::of_size(name, shape, folder.path()), &vulkan);
    }
}

/// Some steps on the device and some on the processor: the same under every budget.
#[test]
fn steps_are_shared_with_the_processor() {
    let _turn = TURN.lock();
    let Some(vulkan) = vulkan(false, None) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["squeezenet1_1", "mobilenet_v2"] {
        let bench = Bench::of_zoo(name, folder.path());
        // A processor that is about as fast as the device, whatever that is.
        let rates = (0..32).map(|i| 1e9 * 1.5f64.powi(i));
        let mut mixed = 0;
        for rate in rates {
            if mixed == 2 {
                break;
            }
            let mut options = RunOptions {
                threads: 2,
                accelerator: Some(vulkan.clone()),
                costs: Some(CostProfile {
                    flops_per_second: rate,
                    memory_bytes_per_second: rate / 2.0,
                    ..CostProfile::default()
                }),
                ..RunOptions::default()
            };
            let model = bench.opened();
            options.sharing = Some(Sharing::new(&model, &options).expect("shared"));
            let plan = model.plan(&options).expect("feasible");
            let here = plan.on_device.expect("there is a device");
            let count = here.iter().filter(|here| **here).count();
            if count > 0 && count < here.len() {
                mixed += 1;
                check_with(&bench, &vulkan, &options);
            }
        }
        assert!(mixed > 0, "{name}: never both");
    }
}

#[test]
fn what_is_shared_is_in_the_hosts_memory() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = Bench::of_zoo("mlp_28", folder.path()).opened();
    let options = RunOptions::default();
    assert!(Sharing::new(&model, &options).is_err());
    let Some(vulkan) = vulkan(true, None) else {
        return;
    };
    let options = RunOptions {
        accelerator: Some(vulkan),
        ..options
    };
    let refused = Sharing::new(&model, &options).expect_err("its own memory");
    assert!(refused.to_string().contains("host's memory"), "{refused}");
}

/// Only its kernels are made. Steps of another network that need more are the processor's, and right.
#[test]
fn a_device_for_one_network() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [own, other] =
        ["squeezenet1_1", "mobilenet_v2"].map(|name| Bench::of_zoo(name, folder.path()));
    let options = Options {
        validate: true,
        program: Some(own.opened().program().clone()),
        ..Options::default()
    };
    let Some(vulkan) = opened(&options) else {
        return;
    };
    assert_eq!(left(&own.opened(), &vulkan), BTreeSet::new());
    check(&own, &vulkan);
    let mut left = left(&other.opened(), &vulkan);
    // Where those that add something have kernels of their own.
    left.remove("PanelConv");
    assert_eq!(left, BTreeSet::from(["PanelDepthwise", "PanelLinear"]));
    check(&other, &vulkan);
}

/// By tiles in the memory of workgroups, as on cards: slices of layers have the bits of whole ones.
#[test]
fn networks_by_the_kernels_of_cards() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, shape) in [
        ("squeezenet1_1", &[1usize, 3, 96, 96][..]),
        ("resnext50", &[1, 3, 64, 64]),
        ("cnn_28", &[]),
    ] {
        let bench = Bench::of_size(name, shape, folder.path());
        let program = bench.opened().program().clone();
        let options = Options {
            validate: true,
            no_lanes: true,
            program: Some(program.clone()),
            ..Options::default()
        };
        let Some(vulkan) = opened(&options) else {
            return;
        };
        let (all, least) = (vulkan.step_ns(&program), vulkan.least_slice_ns(&program));
        assert_eq!([all.len(), least.len()], [program.steps.len(); 2]);
        // As many of its own dispatches were timed as there was time for.
        assert!(all.iter().any(|&ns| ns > 0), "{name}: nothing was timed");
        check(&bench, &vulkan);
    }
}

#[test]
fn a_network_on_a_small_device() {
    of_zoo(&["squeezenet1_1"], Some(SMALL));
}

#[test]
fn trained_networks() {
    let names = [
        "mobilenet_v2_imagenet.onnx",
        "efficientnet_lite0.onnx",
        "FastestDet.onnx",
    ];
    let _turn = TURN.lock();
    let Some(vulkan) = vulkan(false, None) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    for model in names.into_iter().filter_map(shared) {
        check(&Bench::new(model, folder.path()), &vulkan);
    }
}
