//! Steps in another order than the model's: chosen when a model is packed, and by searches. One test, as budgets count
//! what the process takes.

#[path = "../../neap-rewrite/tests/rewrite/build.rs"]
mod build;

use build::Net;
use neap_ir::Graph;
use neap_ir::op::Op;
use neaptide::{
    BandMode, Budget, Calibration, CostProfile, Model, Plan, RunOptions, SearchEffort, Strategy,
    StrategyChoice,
};

/// Pairs of branches that begin large and end small, given one layer of both at a time; then many weights.
/// `stem_channels`: of a layer before them, which may be the highest.
fn branches(stem_channels: usize) -> Graph {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 160, 160]);
    let stem = net.conv(x, stem_channels, 1, 1);
    let mut y = net.conv(stem, 16, 1, 2);
    for _ in 0..6 {
        let [a, b] = [y; 2].map(|y| net.conv(y, 96, 1, 1));
        let [a, b] = [a, b].map(|x| net.conv(x, 16, 1, 1));
        y = net.add(a, b);
    }
    let y = net.conv(y, 16, 1, 4);
    let elements = net.shape(y).iter().product();
    let flat = net.reshape(y, &[1, elements]);
    let weights = net.weight(&[elements, 500], 0.05);
    let z = net.op(Op::MatMul, &[flat, weights]);
    net.output(z);
    net.graph
}

fn packed(graph: Graph, folder: &tempfile::TempDir) -> Model {
    let path = folder.path().join("model.neap");
    neaptide::pack_graph(graph, &path, &mut |_| {}).expect("packs");
    Model::open(&path, &Default::default(), &mut |_| {}).expect("opens")
}

fn options(strategy: Strategy) -> RunOptions {
    RunOptions {
        threads: 2,
        strategy: strategy.into(),
        search: SearchEffort {
            seconds: 1e6,
            generations: 2,
            ..SearchEffort::default()
        },
        calibration: Calibration::Off,
        costs: Some(CostProfile::default()),
        bands: BandMode::Off,
        exact: true,
        ..RunOptions::default()
    }
}

fn is_reordered(digest: &str) -> bool {
    digest.ends_with("-reordered")
}

fn bits(model: Model, plan: Plan, options: &RunOptions) -> Vec<u8> {
    let mut session = model.into_session(plan, options).expect("opens");
    let input: Vec<u8> = (0..session.inputs()[0].len_bytes() / 4)
        .flat_map(|i| ((i % 97) as f32 / 97.0 - 0.5).to_le_bytes())
        .collect();
    let mut output = vec![0; session.outputs()[0].len_bytes()];
    session.run(&[&input], &mut [&mut output]).expect("runs");
    output
}

#[test]
fn orders_are_found_when_packing_and_searching() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert!(is_reordered(packed(branches(16), &folder).digest()));
    // Here the stem is the highest, and needs what it needs; the order found leaves room for weights to
    // come during the branches.
    let open = || packed(branches(64), &folder);
    let model = open();
    assert!(!is_reordered(model.digest()));
    let smallest_bytes = model
        .bounds(&options(Strategy::Search))
        .smallest_feasible_bytes;
    let tight = RunOptions {
        budget: Budget::Bytes(smallest_bytes + (1 << 20)),
        ..options(Strategy::Search)
    };
    let strategies = [Strategy::Preload, Strategy::Search].map(StrategyChoice::Only);
    let plans = model.plans(&tight, &strategies).expect("plans");
    let mut plans = plans.into_iter().map(|plan| plan.expect("feasible"));
    let (given, found) = (plans.next().expect("two"), plans.next().expect("two"));
    assert!(!is_reordered(&given.workload.digest));
    assert!(is_reordered(&found.workload.digest));
    assert!(found.prediction.latency_ns < given.prediction.latency_ns);
    assert_eq!(
        bits(open(), given, &tight),
        bits(model, found, &tight),
        "other bits in another order"
    );
}
