//! Networks of the zoo under plans that swap planning made: the same bits as without a budget, and the search
//! keeps the best of all.

use neap_planner::search::Serial;
use neap_planner::{Planner, RefineOptions, Strategy};
use neaptide::{BandMode, CostProfile, Model, Plan, RunOptions};
use std::path::Path;

const OPTIONS: RefineOptions = RefineOptions {
    seed: 2,
    generations: 1,
};

fn options() -> RunOptions {
    RunOptions {
        threads: 2,
        exact: true,
        bands: BandMode::Off,
        costs: Some(CostProfile::default()),
        ..RunOptions::default()
    }
}

fn open(path: &Path) -> (Model, Plan) {
    let model = Model::open(path, &Default::default(), &mut |_| {}).expect("opens");
    let plan = model.plan(&options()).expect("there is memory enough");
    (model, plan)
}

/// Outputs of two runs, one after the other.
fn outputs(model: Model, plan: Plan) -> Vec<Vec<u8>> {
    let mut session = model.into_session(plan, &options()).expect("opens");
    let floats = (0..session.inputs()[0].len_bytes() / 4).map(|i| (i % 31) as f32 * 0.05 - 0.7);
    let input: Vec<u8> = floats.flat_map(f32::to_le_bytes).collect();
    let mut output = vec![0u8; session.outputs()[0].len_bytes()];
    let mut run = || {
        session.run(&[&input], &mut [&mut output]).expect("runs");
        output.clone()
    };
    vec![run(), run()]
}

#[test]
fn zoo_networks_give_the_same_bits_and_no_slower_plans() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["squeezenet1_1", "mobilenet_v2"] {
        let path = folder.path().join(format!("{name}.onnx"));
        neap_zoo::write(name, &path, &Default::default(), &mut |_, _| {}).expect("is written");
        let (model, plan) = open(&path);
        let (workload, costs) = (plan.workload.clone(), plan.costs.clone());
        let expected = outputs(model, plan);
        assert_eq!(expected[0], expected[1]);
        let planner = Planner::new(&workload);
        let (least, most) = (
            planner.smallest_bytes_of(Strategy::Search),
            planner.unlimited_high_water_bytes(),
        );
        for percent in [2, 20, 60] {
            let budget = least + (most - least) * percent / 100;
            let swapped = planner
                .swapped(budget, &costs, &OPTIONS, &Serial)
                .unwrap_or_else(|| panic!("{name}: no plan in {budget} bytes"));
            assert!(!swapped.plan.loads.is_empty() && swapped.plan.arena_bytes <= budget);
            let (model, mut plan) = open(&path);
            plan.verdict = neap_plan::validate(&workload, &swapped.plan).expect("is valid");
            plan.execution = swapped.plan;
            assert_eq!(outputs(model, plan), expected, "{name} in {budget} bytes");

            let go_on = &mut |_: &_| std::ops::ControlFlow::Continue(());
            let found = planner.search(budget, &costs, &OPTIONS, &Serial, go_on);
            let preloaded = planner.plan(budget, Strategy::Preload, &costs);
            let found_ns = found.expect("feasible").prediction.latency_ns;
            assert!(found_ns <= preloaded.expect("feasible").prediction.latency_ns);
            assert!(found_ns <= swapped.prediction.latency_ns);
        }
    }
}
