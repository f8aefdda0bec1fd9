//! A run of the façade's session allocates its two short lists of tensors and nothing else.

use neap_ir::op::{Activation, Op, Unary, Window};
use neap_ir::{DType, Graph, Literal, Node, TensorType, ValueId, infer};
use neap_testing::{Counting, counted};
use neaptide::{Budget, IoMode, Model, RunOptions};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn add(graph: &mut Graph, op: Op, inputs: &[ValueId]) -> ValueId {
    let types: Vec<_> = inputs.iter().map(|&v| Some(graph.ty(v).clone())).collect();
    let ty = infer::output_types(&op, &types, 1).expect("fits").remove(0);
    let output = graph.add_value(format!("v{}", graph.values.len()), ty);
    graph.nodes.push(Node {
        name: format!("node {}", graph.nodes.len()),
        op,
        inputs: inputs.iter().copied().map(Some).collect(),
        outputs: vec![Some(output)],
        panels: None,
    });
    output
}

/// Convolutions, a pool, softmax: 4 MB of weights.
fn graph() -> Graph {
    let mut graph = Graph::default();
    let x = graph.add_value("x", TensorType::new(DType::F32, &[1, 32, 12, 12]));
    graph.inputs.push(x);
    let window = Window {
        kernel: vec![3, 3],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads_begin: vec![1, 1],
        pads_end: vec![1, 1],
    };
    let mut y = x;
    for (c_in, c_out) in [(32, 256), (256, 256), (256, 160)] {
        let data: Vec<f32> = (0..c_out * c_in * 9)
            .map(|i| (i % 7) as f32 * 1e-3)
            .collect();
        let shape = [c_out, c_in, 3, 3];
        let w = graph.add_literal(format!("w{c_out}"), Literal::from_f32(&shape, &data));
        y = add(&mut graph, Op::Conv(window.clone(), 1), &[y, w]);
        let relu = Op::Unary(Unary::Activation(Activation::Relu));
        y = add(&mut graph, relu, &[y]);
    }
    let y = add(&mut graph, Op::Unary(Unary::Tanh), &[y]);
    graph.outputs.push(y);
    graph
}

/// One test, since counting takes in whatever other tests would do meanwhile.
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
