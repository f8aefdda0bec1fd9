//! States that are in memory only while steps use them.

use crate::support::{Builder, Model, TestClock};
use neap_ir::op::{Activation, Binary};
use neap_ir::{DType, Layout, Op, TensorType};
use neap_plan::ExecutionPlan;
use neap_planner::{PlanOptions, Planner, Strategy};
use neap_runtime::Session;
use neap_sim::CostProfile;
use neap_store::{Fault, FaultScript, MemoryModel, MemorySource, VirtualClock};

const COLUMNS: usize = 500;
const STATES: usize = 4;

/// Each state gets what comes by added to it, and hands the sum on.
fn model(seed: u64) -> Model {
    let mut b = Builder::new(seed);
    let mut y = b.input("x", &[3, COLUMNS]);
    let states: Vec<_> = (0..STATES).map(|_| b.state(&[3, COLUMNS])).collect();
    for state in states {
        let ty = TensorType::new(DType::F32, &[3, COLUMNS]);
        let add = Op::Binary(Binary::Add);
        let sum = b.step(add, &[state, y], None, ty, Layout::Plain, Some(state));
        y = b.linear(sum, COLUMNS, Activation::None, None);
    }
    b.output(y);
    b.finish()
}

/// Where all states stream.
fn plan(model: &Model) -> ExecutionPlan {
    let options = PlanOptions {
        stream_states: true,
        ..PlanOptions::default()
    };
    let planner = Planner::with_options(&model.workload, options);
    let smallest = planner.smallest_feasible_bytes();
    let costs = CostProfile::default();
    let planned = planner.plan(smallest, Strategy::Preload, &costs).unwrap();
    let streaming = planned.plan.states.iter();
    let streaming = streaming.filter(|s| planned.plan.streaming_home(s.buffer).is_some());
    assert!(streaming.count() >= STATES - 1);
    planned.plan
}

/// With faults of the spill file.
fn open(model: &Model, plan: &ExecutionPlan, faults: FaultScript) -> Session<TestClock> {
    let (time, device) = (VirtualClock::new(), MemoryModel::default());
    let bytes = plan.spill_bytes() as usize;
    let spill = MemorySource::spill(bytes, device, time.clone(), faults).unwrap();
    let none = FaultScript::default();
    let source = MemorySource::new(model.file.clone(), device, time.clone(), none).unwrap();
    model.open_with(plan, time, source, Some(spill)).unwrap()
}

fn results(model: &Model, runs: usize) -> Vec<Vec<Vec<u8>>> {
    let plan = model.plan(u64::MAX, Strategy::Resident);
    let mut session = open(model, &plan, FaultScript::default());
    let results: Vec<_> = (0..runs)
        .map(|_| model.run(&mut session).unwrap())
        .collect();
    assert!(results.windows(2).all(|pair| pair[0] != pair[1]));
    results
}

fn states(session: &mut Session<TestClock>) -> Vec<Vec<u8>> {
    (0..STATES)
        .map(|i| {
            let mut bytes = Vec::new();
            session
                .read_state(i, &mut |piece| bytes.extend_from_slice(piece))
                .unwrap();
            bytes
        })
        .collect()
}

#[test]
fn runs_find_what_the_run_before_left() {
    let model = model(1);
    let expected = results(&model, 6);
    let mut session = open(&model, &plan(&model), FaultScript::default());
    for (run, expected) in expected.iter().enumerate() {
        assert!(model.run(&mut session).unwrap() == *expected, "run {run}");
        if run == 3 {
            session.rest();
        }
    }
}

#[test]
fn the_caller_reads_and_sets_them_between_runs() {
    let model = model(2);
    let expected = results(&model, 4);
    let mut session = open(&model, &plan(&model), FaultScript::default());
    assert!(states(&mut session).iter().flatten().all(|&b| b == 0));
    assert!(model.run(&mut session).unwrap() == expected[0]);
    let after_one = states(&mut session);
    assert!(model.run(&mut session).unwrap() == expected[1]);
    // Loads of the next run have begun: they must not bring what was there before.
    for (i, bytes) in after_one.iter().enumerate() {
        session.write_state(i, &bytes[..10]).unwrap();
        session.write_state_at(i, 10, &bytes[10..]).unwrap();
    }
    assert!(states(&mut session) == after_one);
    assert!(model.run(&mut session).unwrap() == expected[1]);
    session.clear_states();
    assert!(states(&mut session).iter().flatten().all(|&b| b == 0));
    assert!(model.run(&mut session).unwrap() == expected[0]);
    let bytes = after_one[0].len();
    assert!(session.write_state(0, &vec![0; bytes + 1]).is_err());
    assert!(session.write_state_at(0, bytes as u64, &[0]).is_err());
    assert!(session.write_state_at(0, u64::MAX, &[0]).is_err());
}

#[test]
fn whatever_fails_no_run_goes_on_from_half_a_state() {
    let model = model(3);
    let plan = plan(&model);
    let expected = results(&model, 5);
    let mut failed = 0;
    for at in 0..60 {
        let faults = FaultScript::at([(at, Fault::Error { errno: 5 })]);
        let mut session = open(&model, &plan, faults);
        let mut good = 0;
        for _ in 0..5 {
            match model.run(&mut session) {
                Ok(found) => {
                    assert!(found == expected[good], "operation {at}, run {good}");
                    good += 1;
                }
                Err(_) => {
                    failed += 1;
                    good = 0;
                    let lost = model.run(&mut session).unwrap_err();
                    assert!(lost.to_string().contains("lost"), "{lost}");
                    session.clear_states();
                }
            }
        }
    }
    assert!(failed > 30, "{failed}");
}
