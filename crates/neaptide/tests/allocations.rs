//! A run of the façade's session allocates its two short lists of tensors and nothing else.

mod graphs;

use graphs::Layers;
use neap_ir::Graph;
use neap_ir::op::Unary;
use neap_testing::{Counting, counted};
use neaptide::{Budget, IoMode, Model, RunOptions};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Convolutions and a tanh: 4 MB of weights.
fn graph() -> Graph {
    graphs::conv_chain(&Layers {
        channels: vec![32, 256, 256, 160],
        side: 12,
        seed: 0,
        gain: 1e-3,
        last: Some(Unary::Tanh),
    })
}

#[test]
fn a_run_allocates_two_lists() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.neap");
    neaptide::pack_graph(graph(), &path, &Default::default(), &mut |_| {}).expect("packs");
    let open = || {
        Model::open(&path, &neaptide::OpenOptions::of_own_process(), &mut |_| {}).expect("opens")
    };
    let unlimited = RunOptions {
        threads: 2,
        ..RunOptions::default()
    };
    let smallest = open().bounds(&unlimited).smallest_feasible_bytes();
    for budget in [Budget::Unlimited, Budget::Bytes(smallest + (1 << 20))] {
        for io in [IoMode::Uring, IoMode::Pread] {
            let options = RunOptions {
                budget,
                io,
                ..unlimited.clone()
            };
            let model = open();
            let plan = model.plan(&options).expect("feasible");
            let mut session = match model.into_session(plan, &options) {
                Ok(session) => session,
                Err(e) if io == IoMode::Uring => {
                    neap_testing::skip(format_args!("no io_uring here: {e}"));
                    continue;
                }
                Err(e) => panic!("{e}"),
            };
            let input = vec![0u8; session.inputs()[0].len_bytes()];
            let mut output = vec![0u8; session.outputs()[0].len_bytes()];
            session.run(&[&input], &mut [&mut output]).expect("runs");
            for _ in 0..3 {
                let counts = counted(|| {
                    session.run(&[&input], &mut [&mut output]).expect("runs");
                });
                assert_eq!((counts.taken, counts.released), (2, 2), "{budget} {io:?}");
            }
        }
    }
}
