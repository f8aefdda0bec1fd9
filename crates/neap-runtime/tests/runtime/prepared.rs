//! Panels that are kept in the form that kernels take: made once for each slice, the same bits, and made anew
//! where their memory was given back.

use crate::support::{MAX_WORKERS, Model, ReplacePlan, image_model};
use neap_ops::{Choice, Kernel, Tile, WeightForm};
use neap_plan::{ExecutionPlan, KernelId, StepSpec, validate};
use neap_planner::Strategy;
use neap_runtime::RuntimeError;
use neap_store::{FaultScript, MemoryModel};

/// The model with every layer that can be on Winograd kernels; how many those are.
fn with_winograd(mut model: Model, weights: WeightForm) -> (Model, usize) {
    let graph = &model.program.graph;
    let isa = crate::support::options(1).isa;
    let mut count = 0;
    for (id, spec) in model.program.steps.iter().zip(&mut model.workload.steps) {
        let node = &graph.nodes[id.index()];
        let describe = |v: &Option<_>| v.map(|v| (graph.ty(v), graph.value(v).layout));
        let inputs: Vec<_> = node.inputs.iter().map(describe).collect();
        let outputs: Vec<_> = node.outputs.iter().map(describe).collect();
        let kernel = Kernel::Winograd(Tile::F4);
        let facts = neap_ops::kernels(&node.op, &inputs, &outputs, MAX_WORKERS, isa);
        let Some(facts) = facts.iter().find(|f| f.kernel == kernel) else {
            continue;
        };
        let panels = spec.panels.expect("a convolution has panels").panels as usize;
        let form = facts.form(weights).expect("both forms");
        spec.kernel = Choice { kernel, weights }.into();
        spec.workspace_bytes = form.slice_workspace_bytes(panels) as u64;
        spec.prepared_panel_bytes = match weights {
            WeightForm::Raw => 0,
            WeightForm::Prepared => form.panel_bytes as u64,
        };
        count += 1;
    }
    (model, count)
}

/// A plan with places for prepared panels behind everything else.
fn plan(model: &Model, budget_bytes: u64) -> ExecutionPlan {
    let plan = model.plan(budget_bytes, Strategy::Preload);
    let specs = model.workload.steps.iter().enumerate();
    let takes = specs.filter(|(_, spec)| spec.prepared_bytes() > 0);
    let steps: Vec<usize> = takes.map(|(step, _)| step).collect();
    let plan = neap_planner::placement::with_prepared_panels(&plan, &model.workload, &steps);
    validate(&model.workload, &plan).expect("valid");
    plan
}

#[test]
fn the_same_bits_run_after_run_and_plan_after_plan() {
    let (stored, count) = with_winograd(image_model(31), WeightForm::Raw);
    assert_eq!(count, 1, "layers");
    let expected = stored.expected();
    let (prepared, _) = with_winograd(image_model(31), WeightForm::Prepared);
    let (least, most) = (prepared.smallest_bytes(), prepared.unlimited_bytes());
    let is_sliced = |plan: &ExecutionPlan| plan.computes.len() > prepared.workload.steps.len();
    let budgets = [least, u64::midpoint(least, most), most];
    assert!(is_sliced(&plan(&prepared, least)), "slices are tried too");
    for threads in [1, 2] {
        let first = plan(&prepared, budgets[0]);
        let mut session = prepared
            .open(
                &first,
                threads,
                MemoryModel::default(),
                FaultScript::default(),
            )
            .expect("opens");
        for budget in budgets.into_iter().chain(budgets.into_iter().rev()) {
            let next = plan(&prepared, budget);
            session
                .replace_plan(next.clone(), &prepared.workload)
                .expect("is replaced");
            assert!(session.stats().arena_bytes <= next.memory_bytes());
            for _ in 0..3 {
                assert_eq!(prepared.run(&mut session).expect("runs"), expected);
            }
            // Their memory comes back as zeros.
            session.rest();
            for _ in 0..2 {
                assert_eq!(prepared.run(&mut session).expect("runs"), expected);
            }
        }
        // Back to stored panels, in less memory.
        let less = stored.plan(stored.unlimited_bytes(), Strategy::Preload);
        session
            .replace_plan(less, &stored.workload)
            .expect("is replaced");
        assert_eq!(stored.run(&mut session).expect("runs"), expected);
    }
}

fn as_packed(step: &mut StepSpec) {
    let choice = Choice::try_from(step.kernel).expect("a kernel");
    let weights = WeightForm::Raw;
    step.kernel = Choice { weights, ..choice }.into();
}

fn directly(step: &mut StepSpec) {
    let choice = Choice::try_from(step.kernel).expect("a kernel");
    let kernel = Kernel::Direct;
    step.kernel = Choice { kernel, ..choice }.into();
}

#[test]
fn sizes_that_are_not_the_kernels_are_refused() {
    let (model, _) = with_winograd(image_model(31), WeightForm::Prepared);
    let wrong = |change: fn(&mut StepSpec)| {
        let (mut model, _) = with_winograd(image_model(31), WeightForm::Prepared);
        let specs = model.workload.steps.iter_mut();
        specs
            .filter(|s| s.kernel != KernelId::DIRECT)
            .for_each(change);
        let plan = plan(&model, u64::MAX);
        let session = model.open(&plan, 1, MemoryModel::default(), FaultScript::default());
        match session.map(|_| ()) {
            Err(RuntimeError::Mismatch { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    assert!(wrong(|s| s.prepared_panel_bytes -= 64).contains("a prepared panel is"));
    assert!(wrong(|s| s.prepared_panel_bytes += 64).contains("a prepared panel is"));
    // Stored panels, with a place for prepared ones, and the other way round.
    assert!(wrong(as_packed).contains("a prepared panel is 0 bytes"));
    assert!(wrong(|s| s.prepared_panel_bytes = 0).contains("0 are planned"));
    assert!(wrong(directly).contains("takes no prepared panels"));
    assert!(plan(&model, u64::MAX).prepared.len() == 1);
}
