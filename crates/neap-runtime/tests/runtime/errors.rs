//! What a session refuses: tensors that do not fit, plans and workloads that do not fit.

use crate::support::{Builder, Model, TestClock, mixed_model};
use neap_ir::{DType, TensorType};
use neap_plan::{BufferId, ExecutionPlan, Lane, LaneId, Lanes, Turn, Workload};
use neap_planner::Strategy;
use neap_runtime::{InputTensor, OutputTensor, RuntimeError, Session};
use neap_store::{FaultScript, MemoryModel};

fn open(model: &Model) -> Session<TestClock> {
    let plan = model.plan(model.smallest_bytes(), Strategy::Preload);
    model
        .open(&plan, 1, MemoryModel::default(), FaultScript::default())
        .unwrap()
}

/// The message of opening a changed plan or workload.
fn refusal(model: &Model, change: impl FnOnce(&mut ExecutionPlan, &mut Workload)) -> String {
    let mut model = model.clone();
    let mut plan = model.plan(model.smallest_bytes(), Strategy::Preload);
    change(&mut plan, &mut model.workload);
    let opened = model.open(&plan, 1, MemoryModel::default(), FaultScript::default());
    match opened {
        Ok(_) => panic!("it opens"),
        Err(RuntimeError::Store(e)) => panic!("found by storage only: {e}"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn tensors_must_fit() {
    let model = mixed_model(41);
    let mut session = open(&model);
    let graph = &model.program.graph;
    let types: Vec<_> = graph.inputs.iter().map(|&v| graph.ty(v).clone()).collect();
    let outs: Vec<_> = graph.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
    let mut results: Vec<Vec<u8>> = outs.iter().map(|t| vec![0; t.len_bytes()]).collect();
    let (a, b) = (&model.inputs[0], &model.inputs[1]);
    let good = |i: usize, bytes| InputTensor {
        ty: &types[i],
        bytes,
    };

    let float64 = TensorType::new(DType::F64, &types[1].shape);
    let square = TensorType::new(DType::F32, &[10, 50]);
    let mut shifted = vec![0u8; b.len() + 8];
    let start = shifted.as_ptr().align_offset(4) + 1;
    shifted[start..start + b.len()].copy_from_slice(b);
    let cases: Vec<(Vec<InputTensor>, &str)> = vec![
        (vec![good(0, a)], "2 inputs, 1 are given"),
        (
            vec![good(0, a), good(1, b), good(1, b)],
            "2 inputs, 3 are given",
        ),
        (
            vec![
                good(0, a),
                InputTensor {
                    ty: &float64,
                    bytes: b,
                },
            ],
            "input 'extra' is float32[5, 100], float64[5, 100] is given",
        ),
        (
            vec![
                good(0, a),
                InputTensor {
                    ty: &square,
                    bytes: b,
                },
            ],
            "input 'extra' is float32[5, 100], float32[10, 50] is given",
        ),
        (vec![good(0, a), good(1, &b[4..])], "1996 bytes"),
        (
            vec![good(0, a), good(1, &shifted[start..start + b.len()])],
            "not aligned",
        ),
    ];
    for (inputs, expected) in cases {
        let mut outputs: Vec<OutputTensor> = outs
            .iter()
            .zip(&mut results)
            .map(|(ty, bytes)| OutputTensor { ty, bytes })
            .collect();
        let error = session.run(&inputs, &mut outputs).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    let inputs = [good(0, a), good(1, b)];
    let (first, second) = results.split_at_mut(1);
    let mut outputs = [
        OutputTensor {
            ty: &outs[0],
            bytes: &mut first[0],
        },
        OutputTensor {
            ty: &outs[0],
            bytes: &mut second[0],
        },
    ];
    let error = session.run(&inputs, &mut outputs).unwrap_err().to_string();
    assert!(error.contains("output"), "{error}");
    let error = session
        .run(&inputs, &mut outputs[..1])
        .unwrap_err()
        .to_string();
    assert!(error.contains("2 outputs, 1 are given"), "{error}");

    assert_eq!(model.run(&mut session).unwrap(), model.expected());
}

#[test]
fn inputs_go_by_name() {
    let model = mixed_model(42);
    let mut session = open(&model);
    let expected = model.expected();
    let described: Vec<_> = session
        .inputs()
        .map(|(n, t)| (n.to_string(), t.clone()))
        .collect();
    let outs: Vec<_> = session.outputs().map(|(_, t)| t.clone()).collect();
    assert_eq!(described[0].0, "tokens");
    assert_eq!(described[1].1, TensorType::new(DType::F32, &[5, 100]));
    let tensor = |i: usize| InputTensor {
        ty: &described[i].1,
        bytes: &model.inputs[i],
    };
    let mut run = |named: &[(&str, InputTensor)]| {
        let mut results: Vec<Vec<u8>> = outs.iter().map(|t| vec![0; t.len_bytes()]).collect();
        let mut outputs: Vec<OutputTensor> = outs
            .iter()
            .zip(&mut results)
            .map(|(ty, bytes)| OutputTensor { ty, bytes })
            .collect();
        session
            .run_named(named, &mut outputs)
            .map_err(|e| e.to_string())?;
        Ok::<_, String>(results)
    };
    let (tokens, extra) = (("tokens", tensor(0)), ("extra", tensor(1)));
    assert_eq!(run(&[extra, tokens]).unwrap(), expected);
    assert_eq!(run(&[extra]).unwrap_err(), "input 'tokens' is missing");
    assert_eq!(
        run(&[extra, extra, tokens]).unwrap_err(),
        "input 'extra' is given twice"
    );
    assert_eq!(
        run(&[extra, ("token", tensor(0))]).unwrap_err(),
        "the model has no input 'token'; it has 'tokens', 'extra'"
    );
}

#[test]
fn plans_must_be_valid_and_fit() {
    let model = mixed_model(43);
    type Change = Box<dyn FnOnce(&mut ExecutionPlan, &mut Workload)>;
    let cases: Vec<(&str, Change)> = vec![
        ("digest", Box::new(|p, _| p.digest = "other".into())),
        (
            "digest",
            Box::new(|p, w| {
                p.digest = "other".into();
                w.digest = "other".into();
            }),
        ),
        (
            "exceeds its space",
            Box::new(|p, _| p.spaces[0].bytes -= 4096),
        ),
        (
            "invalid plan",
            Box::new(|p, _| p.loads[0].to.offset += 4096),
        ),
        (
            "other lanes",
            Box::new(|p, _| {
                let lanes = p.lanes.iter().map(|(_, lane)| lane.clone());
                let second = Lane {
                    name: "a second drive".into(),
                    ..lanes.clone().next().unwrap()
                };
                p.lanes = Lanes::from(lanes.chain([second]).collect::<Vec<_>>());
            }),
        ),
        ("invalid plan", Box::new(|p, _| p.computes.truncate(2))),
        (
            "invalid plan",
            Box::new(|p, _| {
                let streamed = p.computes.iter_mut().find(|c| c.weights.panels.is_some());
                streamed.unwrap().turn = Turn::of(LaneId::COMPUTE);
            }),
        ),
    ];
    for (expected, change) in cases {
        let error = refusal(&model, change);
        assert!(error.contains(expected), "{error}");
    }
}

/// A workload that does not describe the program could make a valid plan unsafe.
#[test]
fn workloads_must_describe_the_program() {
    let model = mixed_model(44);
    type Change = fn(&mut Workload);
    let cases: Vec<(&str, Change)> = vec![
        ("steps", |w| {
            w.steps.pop();
            w.buffers
                .iter_mut()
                .for_each(|b| b.live.end = b.live.end.min(w.steps.len() as u32));
        }),
        ("smaller or lives shorter", |w| w.buffers[1].bytes -= 4),
        ("smaller or lives shorter", |w| w.buffers[0].live.end -= 1),
        ("panels", |w| {
            w.steps[2].panels.as_mut().unwrap().file_offset += 4096
        }),
        ("panels", |w| {
            w.steps[2].panels.as_mut().unwrap().panel_bytes -= 64
        }),
        ("panels", |w| w.steps[2].panels = None),
        ("no extent holds", |w| w.steps[4].extents[0].bytes -= 4),
        ("no extent holds", |w| w.steps[4].extents.clear()),
        ("table", |w| w.steps[0].rows.as_mut().unwrap().bytes -= 4096),
        ("table", |w| w.steps[0].rows = None),
        ("one row takes", |w| {
            w.steps[0].rows.as_mut().unwrap().rows_workspace_bytes = 4096
        }),
    ];
    for (expected, change) in cases {
        let mut changed = model.clone();
        change(&mut changed.workload);
        // Steps use what lives; more would be no workload at all.
        let Workload { steps, buffers, .. } = &mut changed.workload;
        for (i, step) in steps.iter_mut().enumerate() {
            let lives = |b: &BufferId| buffers[b.index()].live.contains(i as u32);
            step.reads.retain(lives);
            step.writes.retain(lives);
        }
        let plan = changed.plan(changed.smallest_bytes(), Strategy::Preload);
        let opened = changed.open(&plan, 1, MemoryModel::default(), FaultScript::default());
        let error = opened.err().expect(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn workspace_must_suffice_for_the_threads() {
    let model = crate::support::image_model(45);
    let needs = model.workload.steps.iter().any(|s| s.workspace_bytes > 0);
    assert!(needs, "the first convolution takes scratch");
    let mut changed = model.clone();
    for step in &mut changed.workload.steps {
        step.workspace_bytes = 0;
    }
    let plan = changed.plan(changed.smallest_bytes(), Strategy::Preload);
    let opened = changed.open(&plan, 1, MemoryModel::default(), FaultScript::default());
    let error = opened.err().expect("refused").to_string();
    assert!(
        error.contains("bytes of workspace with 1 threads"),
        "{error}"
    );
}

#[test]
fn an_output_may_lie_only_where_its_operator_allows() {
    let mut b = Builder::new(46);
    let x = b.input("x", &[2, 32]);
    let h = b.linear(x, 32, neap_ir::op::Activation::None, None);
    // A linear layer reads all of its input for each output: it cannot work in place.
    let y = b.linear_onto(h, 32, h);
    b.output(y);
    let model = b.finish();
    let plan = model.plan(u64::MAX, Strategy::Resident);
    let opened = model.open(&plan, 1, MemoryModel::default(), FaultScript::default());
    let error = opened.err().expect("refused").to_string();
    assert!(error.contains("may not overwrite"), "{error}");
}

/// Errors found while computing leave the session usable.
#[test]
fn bad_data_is_an_error_of_one_run() {
    let mut b = Builder::new(47);
    let ty = TensorType::new(DType::I64, &[3]);
    let bytes = |x: [i64; 3]| x.map(i64::to_le_bytes).concat();
    let x = b.input_of("x", ty.clone(), bytes([7, 8, 9]));
    let divisor = b.input_of("divisor", ty, bytes([1, 0, 2]));
    let rows = b.input("rows", &[2, 40]);
    let weighted = b.linear(rows, 100, neap_ir::op::Activation::None, None);
    let y = b.binary(neap_ir::op::Binary::Div, x, divisor);
    b.output(y);
    b.output(weighted);
    let mut model = b.finish();
    let mut session = open(&model);
    for _ in 0..3 {
        let error = model.run(&mut session).unwrap_err();
        assert!(matches!(error, RuntimeError::Op { .. }), "{error}");
        assert!(error.to_string().contains("Div"), "{error}");
    }
    model.inputs[1] = bytes([1, 4, 2]);
    for _ in 0..2 {
        assert_eq!(model.run(&mut session).unwrap()[0], bytes([7, 2, 4]));
    }
    assert_eq!(session.stats().runs, 2);
}
