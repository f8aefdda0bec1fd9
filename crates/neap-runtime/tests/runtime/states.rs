//! Buffers that survive runs, and changes of budgets between them.

use crate::support::{Builder, Model, ReplacePlan, TestClock, options};
use neap_ir::Op;
use neap_ir::op::{Activation, Binary};
use neap_ir::{Layout, TensorType};
use neap_plan::ExecutionPlan;
use neap_planner::Strategy;
use neap_runtime::{BackingStore, Commons, RuntimeError, Session};
use neap_store::{Fault, FaultScript, MemoryModel, MemorySource, VirtualClock};

const COLUMNS: usize = 700;

/// `state += input`, and some layers of the sum: what a run gives depends on all before it.
fn summing_model(seed: u64) -> Model {
    let mut b = Builder::new(seed);
    let x = b.input("x", &[3, COLUMNS]);
    let sum = b.state(&[3, COLUMNS]);
    let ty = TensorType::new(neap_ir::DType::F32, &[3, COLUMNS]);
    let add = Op::Binary(Binary::Add);
    let sum = b.step(add, &[sum, x], None, ty, Layout::Plain, Some(sum));
    let mut y = sum;
    for _ in 0..4 {
        y = b.linear(y, 400, Activation::Relu, None);
        y = b.linear(y, COLUMNS, Activation::None, None);
    }
    b.output(y);
    b.finish()
}

fn file(plan: &ExecutionPlan, model: &Model, faults: FaultScript) -> Box<MemorySource> {
    let bytes = plan.state_bytes(&model.workload) as usize;
    let device = MemoryModel::default();
    Box::new(MemorySource::spill(bytes, device, VirtualClock::new(), faults).unwrap())
}

fn open(model: &Model, plan: &ExecutionPlan) -> Session<TestClock> {
    let faults = FaultScript::default;
    let mut session = model
        .open(plan, 2, MemoryModel::default(), faults())
        .unwrap();
    session.keep_states_in(file(plan, model, faults())).unwrap();
    session
}

fn plans(model: &Model) -> Vec<ExecutionPlan> {
    let (smallest, all) = (model.smallest_bytes(), model.unlimited_bytes());
    let budgets = [smallest, smallest + (all - smallest) / 3, all];
    let plans: Vec<_> = budgets
        .map(|budget| model.plan(budget, Strategy::Preload))
        .into();
    assert!(!plans[0].loads.is_empty() && plans[2].loads.is_empty());
    for plan in &plans {
        assert_eq!(plan.states.len(), 1);
    }
    plans
}

fn state_of(session: &mut Session<TestClock>) -> Vec<u8> {
    let mut bytes = Vec::new();
    session
        .read_state(0, &mut |piece| bytes.extend_from_slice(piece))
        .unwrap();
    bytes
}

/// Results of so many runs in one session that is left alone.
fn results(model: &Model, runs: usize) -> Vec<Vec<Vec<u8>>> {
    let plan = model.plan(u64::MAX, Strategy::Resident);
    let mut session = open(model, &plan);
    let results: Vec<_> = (0..runs)
        .map(|_| model.run(&mut session).unwrap())
        .collect();
    // Each run adds to what was there.
    assert!(results.windows(2).all(|pair| pair[0] != pair[1]));
    results
}

#[test]
fn a_state_survives_runs_under_every_budget() {
    let model = summing_model(1);
    let expected = results(&model, 6);
    for plan in plans(&model) {
        let mut session = open(&model, &plan);
        for expected in &expected {
            assert!(model.run(&mut session).unwrap() == *expected);
        }
        // What is in it is the sum of all inputs.
        let x: Vec<f32> = floats(&model.inputs[0]);
        let sums = floats(&state_of(&mut session));
        let mut sum = vec![0.0f32; x.len()];
        for _ in 0..expected.len() {
            sum.iter_mut().zip(&x).for_each(|(sum, x)| *sum += x);
        }
        assert_eq!(sums[..sum.len()], sum);
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

#[test]
fn a_state_survives_changes_of_budgets_and_rest() {
    let model = summing_model(2);
    let plans = plans(&model);
    let expected = results(&model, 13);
    let mut session = open(&model, &plans[2]);
    for (run, expected) in expected.iter().enumerate() {
        assert!(model.run(&mut session).unwrap() == *expected, "run {run}");
        match run % 4 {
            0 => drop(
                session
                    .replace_plan(plans[run % 3].clone(), &model.workload)
                    .unwrap(),
            ),
            1 => session.rest(),
            2 => {
                // Twice, without a run between them.
                let next = (run + 1) % 3;
                session
                    .replace_plan(plans[next].clone(), &model.workload)
                    .unwrap();
                session.rest();
                session
                    .replace_plan(plans[run % 3].clone(), &model.workload)
                    .unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn the_caller_reads_and_sets_states() {
    let model = summing_model(3);
    let plan = &plans(&model)[0];
    let expected = results(&model, 4);
    let mut session = open(&model, plan);
    assert_eq!(session.states().len(), 1);
    assert!(state_of(&mut session).iter().all(|&b| b == 0));
    assert!(model.run(&mut session).unwrap() == expected[0]);
    let after_one = state_of(&mut session);
    assert!(model.run(&mut session).unwrap() == expected[1]);
    // Back to where it was after the first run, also when it has been given back since.
    session.rest();
    session.write_state(0, &after_one).unwrap();
    assert!(model.run(&mut session).unwrap() == expected[1]);
    session.clear_states();
    assert!(model.run(&mut session).unwrap() == expected[0]);
    assert!(
        session
            .write_state(0, &vec![0; after_one.len() + 1])
            .is_err()
    );
    assert!(session.write_state(1, &[]).is_err());
}

#[test]
fn a_state_that_nobody_knows_any_more_is_an_error_and_not_a_guess() {
    let model = summing_model(4);
    let plan = &plans(&model)[0];
    let expected = results(&model, 2);
    let reason = |e: RuntimeError| e.to_string();
    // Without a file it runs, and its memory cannot be given back.
    let faults = FaultScript::default;
    let device = MemoryModel::default();
    let mut session = model.open(plan, 1, device, faults()).unwrap();
    assert!(model.run(&mut session).unwrap() == expected[0]);
    let refused = session.replace_plan(plan.clone(), &model.workload);
    assert!(reason(refused.map(drop).unwrap_err()).contains("no file"));
    assert!(model.run(&mut session).unwrap() == expected[1]);
    // One that is too small is refused.
    let small = MemorySource::spill(4096, device, VirtualClock::new(), faults()).unwrap();
    assert!(session.keep_states_in(Box::new(small)).is_err());
    // A read of weights fails: the run may have added its input, or not.
    let broken = FaultScript::at([(plan.loads.len() as u64 + 2, Fault::Error { errno: 5 })]);
    let mut session = model.open(plan, 1, device, broken).unwrap();
    session
        .keep_states_in(file(plan, &model, faults()))
        .unwrap();
    let failed = (0..4).find_map(|_| model.run(&mut session).err());
    assert!(failed.is_some(), "no run failed");
    assert!(reason(model.run(&mut session).unwrap_err()).contains("lost"));
    session.clear_states();
    assert!(model.run(&mut session).unwrap() == expected[0]);
    // The file is full when memory must be given back.
    let mut session = model.open(plan, 1, device, faults()).unwrap();
    let full = FaultScript::at([(0, Fault::Error { errno: 28 })]);
    session.keep_states_in(file(plan, &model, full)).unwrap();
    assert!(model.run(&mut session).unwrap() == expected[0]);
    // A change of plans does not happen then, and nothing is lost.
    assert!(session.replace_plan(plan.clone(), &model.workload).is_err());
    assert!(model.run(&mut session).unwrap() == expected[1]);
}

#[test]
fn plans_for_other_states_are_refused() {
    let model = summing_model(5);
    let plans = plans(&model);
    let mut session = open(&model, &plans[2]);
    model.run(&mut session).unwrap();
    let mut other = model.workload.clone();
    other.buffers[0].name = "another".into();
    let found = session.replace_plan(plans[1].clone(), &other).unwrap_err();
    assert!(found.to_string().contains("states differ"), "{found}");
    // Memory that others use in between keeps nothing.
    let time = VirtualClock::new();
    let source = MemorySource::new(
        model.file.clone(),
        MemoryModel::default(),
        time,
        FaultScript::default(),
    );
    let storage = BackingStore {
        source: Box::new(source.unwrap()),
        verifier: model.verifier(),
        spill: None,
    };
    let commons = Commons::new(1).unwrap();
    let (program, isa) = (model.program.clone(), options(1).isa);
    let found = Session::open_in(
        &commons,
        program,
        model.checked(&plans[2]).unwrap(),
        storage,
        isa,
    );
    assert!(found.is_err_and(|e| e.to_string().contains("shared")));
}
