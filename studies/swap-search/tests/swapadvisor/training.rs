//! Steps of training as dataflows: every parameter is written once, after all that read it, and plans write it back.

use crate::support::{LINK, check};
use neap_sim::CostProfile;
use neap_zoo::{Batch, Options};
use swap_search::{
    Classes, Dataflow, Memory, OpId, Pools, Random, Rules, SwapPlanner, SwapTask, TensorKind,
    TrainingFlow, odswap, of_training, random_order, resident_parameters,
};

fn step_of(name: &str) -> TrainingFlow {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let options = Options {
        batch: Batch::Fixed(2),
        shapes_only: true,
        ..Options::default()
    };
    neap_zoo::write(name, &path, &options, &mut |_, _| {}).unwrap();
    let graph = neap_onnx::open(&path, &neap_onnx::OpenOptions::default()).unwrap();
    of_training(graph, &CostProfile::default()).unwrap()
}

/// Positions of the operators that read and of those that write each parameter.
fn uses(flow: &Dataflow) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut uses = vec![(Vec::new(), Vec::new()); flow.tensors().len()];
    for op in 0..flow.operators().len() as u32 {
        for touch in flow.touches(OpId(op)) {
            let (reads, writes) = &mut uses[touch.tensor.index()];
            match touch.writes {
                true => writes.push(op),
                false => reads.push(op),
            }
        }
    }
    uses
}

#[test]
fn every_parameter_is_updated_where_it_lies() {
    for (name, parameters) in [("mlp_28", 4), ("cnn_28", 8), ("resnet50", 161)] {
        let step = step_of(name);
        assert_eq!(step.updates, parameters, "{name}");
        let flow = &step.flow;
        let operators = step.forward + step.backward + step.updates;
        assert_eq!(flow.operators().len(), operators);
        let zoo = neap_zoo::find(name).unwrap();
        assert_eq!(flow.parameter_bytes(), 4 * zoo.parameters, "{name}");
        for (t, (reads, writes)) in uses(flow).iter().enumerate() {
            if flow.tensors()[t].kind == TensorKind::Parameter {
                assert_eq!(writes.len(), 1, "{name}: tensor {t}");
                assert!(!reads.is_empty() && reads.iter().all(|r| *r < writes[0]));
            }
        }
    }
}

/// Linear, ReLU, linear of 28 x 28 pictures, by hand: a picture's other shape is no operator, and each derivative
/// writes where it may.
#[test]
fn a_step_of_two_layers() {
    let step = step_of("mlp_28");
    assert_eq!(step.forward, 3);
    let flow = &step.flow;
    let of = |kind| {
        let all = flow.tensors().iter().filter(move |t| t.kind == kind);
        let mut sizes: Vec<u64> = all.map(|t| t.bytes).collect();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(
        of(TensorKind::Parameter),
        [10, 128, 1280, 128 * 784].map(|n| 4 * n)
    );
    // Pictures and their classes; the rate and the step's number are no tensors.
    assert_eq!(of(TensorKind::Input), [8 * 2, 4 * 2 * 784]);
    // The loss.
    assert_eq!(of(TensorKind::Output), [4]);
    // The hidden layer once (ReLU writes over it) and its derivative, in place again.
    let hidden = of(TensorKind::Activation);
    let hidden = hidden.iter().filter(|b| **b == 4 * 2 * 128).count();
    assert_eq!(hidden, 2);
}

#[test]
fn plans_of_training_are_right() {
    let mut planner = SwapPlanner::default();
    for name in ["cnn_28", "resnet50"] {
        let flow = step_of(name).flow;
        let mut r = Random::new(7, 1, 1);
        let least = Pools::new(&flow, 0, Classes::Monotonic).smallest_bytes();
        for (factor, order) in [
            (1.0, flow.given_order()),
            (1.5, random_order(&flow, &mut r)),
            (3.0, flow.given_order()),
        ] {
            let capacity = (least as f64 * factor) as u64;
            let pools = Pools::new(&flow, capacity, Classes::Monotonic);
            let memories = [
                Memory::pools(&flow, &pools.random(&mut r).unwrap()),
                Memory::bytes(&flow, capacity, 4),
                Memory::places(&flow, capacity.next_multiple_of(512) + (1 << 20), 512),
            ];
            for (seed, memory) in memories.iter().enumerate() {
                let plan = planner.plan(&SwapTask {
                    flow: &flow,
                    order: &order,
                    memory,
                    device: &LINK,
                    rules: &Rules::default(),
                });
                let plan = plan.unwrap_or_else(|| panic!("{name}: no plan in {capacity} bytes"));
                check(&flow, memory, plan, seed as u64);
            }
        }
    }
}

/// What an update wrote is in backing memory before the parameter is read again, or stays.
#[test]
fn updated_parameters_are_stored_where_they_do_not_stay() {
    let flow = step_of("resnet50").flow;
    let (plan, _) = odswap(&flow, &LINK, flow.largest_operator_bytes()).unwrap();
    for (t, tensor) in flow.tensors().iter().enumerate() {
        if tensor.kind != TensorKind::Parameter {
            continue;
        }
        let last = plan
            .stays
            .iter()
            .rfind(|s| s.tensor.index() == t && s.to > 0);
        let last = last.unwrap();
        assert!(last.initial || last.store.is_some(), "tensor {t}");
    }
    let stored = plan.stores.iter();
    let stored = stored.filter(|s| flow.tensors()[s.tensor.index()].kind == TensorKind::Parameter);
    assert!(stored.count() > 0, "so little memory holds not all of them");
}

#[test]
fn parameters_that_never_leave_take_their_memory() {
    let flow = step_of("resnet50").flow;
    let (parameters, largest) = (flow.parameter_bytes(), flow.largest_operator_bytes());
    assert!(resident_parameters(&flow, &LINK, parameters - 1, 4).is_none());
    let time = |capacity, ahead| {
        let outcome = resident_parameters(&flow, &LINK, capacity, ahead);
        outcome.unwrap().total_ns
    };
    let tight = parameters + largest;
    // Loads that begin sooner wait no longer; those that begin with the operator before overlap next to nothing.
    let times = [0, 1, 16, u32::MAX].map(|ahead| time(tight, ahead));
    assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");
    assert!(times[0] > times[3], "{times:?}");
    assert!(time(4 * flow.total_bytes(), 4) <= times[3]);
}
