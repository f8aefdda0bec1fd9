//! Adapters: the same results while one matrix is zero, those of the merged weights otherwise, and nothing else trained.

use crate::difference::{Random, literal, one, values};
use neap_autodiff::{
    Adapter, BatchNorm, Loss, Pass, Role, TrainingSpec, WeightForm, adaptable, add_adapters,
    training_step,
};
use neap_ir::op::{Activation, Binary, Unary, Window};
use neap_ir::update::Update;
use neap_ir::{Const, DType, FileId, FileRange, Graph, Literal, Op, TensorType, ValueId};
use neap_ops::interpret;

const SCALE: f32 = 0.75;
const RANK: usize = 2;

fn constant(graph: &mut Graph, random: &mut Random, name: &str, shape: &[usize]) -> ValueId {
    let data = random.between(-0.7, 0.7, shape.iter().product());
    graph.add_literal(name, literal(DType::F32, shape, &data))
}

/// A convolution with a stride, a product of three axes, and Gemms that transpose either operand.
fn network() -> Graph {
    let mut random = Random(31);
    let mut graph = Graph::default();
    let g = &mut graph;
    let x = g.add_value("x", TensorType::new(DType::F32, &[2, 3, 7, 6]));
    g.inputs = vec![x];
    let w = constant(g, &mut random, "conv.weight", &[4, 3, 3, 2]);
    let bias = constant(g, &mut random, "conv.bias", &[4]);
    let window = Window {
        kernel: vec![3, 2],
        strides: vec![2, 1],
        dilations: vec![1, 2],
        pads_begin: vec![1, 0],
        pads_end: vec![0, 1],
    };
    let y = one(g, Op::Conv(window, 1), &[x, w, bias]);
    let columns = *g.ty(y).shape.last().unwrap();
    let w = constant(g, &mut random, "product.weight", &[columns, 6]);
    let y = one(g, Op::MatMul, &[y, w]);
    let y = one(g, Op::Unary(Unary::Activation(Activation::Silu)), &[y]);
    let elements = g.ty(y).elements();
    let shape = vec![4, elements / 4];
    let y = one(g, Op::Reshape { shape }, &[y]);
    let gemm = |alpha, trans_a, trans_b| Op::Gemm {
        alpha,
        beta: 1.0,
        trans_a,
        trans_b,
    };
    let w = constant(g, &mut random, "turned.weight", &[8, elements / 4]);
    let y = one(g, gemm(0.5, false, true), &[y, w]);
    let w = constant(g, &mut random, "straight.weight", &[4, 5]);
    let bias = constant(g, &mut random, "straight.bias", &[5]);
    let y = one(g, gemm(1.5, true, false), &[y, w, bias]);
    g.outputs = vec![y];
    graph
}

fn adapted(graph: &Graph) -> (Graph, Vec<Adapter>) {
    let all: Vec<ValueId> = adaptable(graph).into_iter().map(|(v, _)| v).collect();
    add_adapters(graph.clone(), &all, RANK, SCALE).unwrap()
}

fn input() -> Literal {
    literal(
        DType::F32,
        &[2, 3, 7, 6],
        &Random(5).between(-1.0, 1.0, 2 * 3 * 7 * 6),
    )
}

fn zeros(ty: &TensorType) -> Literal {
    Literal::zeros(ty.dtype, &ty.shape)
}

#[test]
fn what_can_have_an_adapter() {
    let graph = network();
    let found: Vec<(&str, WeightForm)> = adaptable(&graph)
        .into_iter()
        .map(|(v, form)| (graph.value(v).name.as_str(), form))
        .collect();
    let expected = [
        ("conv.weight", WeightForm::Convolution),
        ("product.weight", WeightForm::InputsFirst),
        ("turned.weight", WeightForm::OutputsFirst),
        ("straight.weight", WeightForm::InputsFirst),
    ];
    assert_eq!(found, expected);

    // A table that is also looked up in would be another one there.
    let mut graph = Graph::default();
    let x = graph.add_value("x", TensorType::new(DType::F32, &[2, 6]));
    graph.inputs = vec![x];
    let mut random = Random(1);
    let table = constant(&mut graph, &mut random, "table", &[6, 4]);
    let y = one(&mut graph, Op::MatMul, &[x, table]);
    graph.outputs = vec![y];
    assert_eq!(adaptable(&graph), [(table, WeightForm::InputsFirst)]);
    let rows = graph.add_literal("rows", Literal::from_i64(&[2], &[1, 0]));
    let row = one(&mut graph, Op::Gather { axis: 0 }, &[table, rows]);
    graph.outputs.push(row);
    assert!(adaptable(&graph).is_empty());
    assert!(add_adapters(graph, &[table], 1, 1.0).is_err());
}

/// What is merged into a weight would be merged into all that its bytes are read as.
#[test]
fn a_weight_whose_bytes_are_read_otherwise_can_have_no_adapter() {
    let mut graph = Graph::default();
    let mut stored = |name: &str, offset: u64, shape: &[usize]| {
        let ty = TensorType::new(DType::F32, shape);
        let range = FileRange {
            file: FileId(0),
            offset,
            bytes: ty.len_bytes() as u64,
        };
        let data = Const::Stored {
            range,
            stored_dtype: DType::F32,
        };
        graph.add_const(name, ty, data)
    };
    let alone = stored("alone", 0, &[6, 6]);
    let whole = stored("whole", 144, &[6, 6]);
    let [first_row, last_row] = [144, 264].map(|offset| stored("row", offset, &[6]));
    let x = graph.add_value("x", TensorType::new(DType::F32, &[2, 6]));
    graph.inputs = vec![x];
    let y = one(&mut graph, Op::MatMul, &[x, alone]);
    let y = one(&mut graph, Op::MatMul, &[y, whole]);
    graph.outputs = vec![y];
    let both = [alone, whole].map(|v| (v, WeightForm::InputsFirst));
    assert_eq!(adaptable(&graph), both);
    for row in [first_row, last_row] {
        let mut graph = graph.clone();
        let sum = one(&mut graph, Op::Binary(Binary::Add), &[y, row]);
        graph.outputs = vec![sum];
        assert_eq!(adaptable(&graph), both[..1]);
    }
}

#[test]
fn the_first_results_have_the_bits_of_the_model() {
    let graph = network();
    let (with, adapters) = adapted(&graph);
    let mut random = Random(3);
    let drawn: Vec<(ValueId, Literal)> = (adapters.iter())
        .map(|a| {
            let ty = with.ty(a.down);
            let data = random.between(-1.0, 1.0, ty.elements());
            (a.down, literal(DType::F32, &ty.shape, &data))
        })
        .collect();
    let constant = |v: ValueId| {
        let found = drawn.iter().find(|(down, _)| *down == v);
        Some(found.map_or_else(|| zeros(with.ty(v)), |(_, data)| data.clone()))
    };
    let expected = interpret(&graph, &[input()], &|_| None).unwrap();
    let found = interpret(&with, &[input()], &constant).unwrap();
    assert_eq!(found[0].bytes(), expected[0].bytes());
}

#[test]
fn adapters_give_what_merged_weights_give() {
    let graph = network();
    let (with, adapters) = adapted(&graph);
    let mut random = Random(9);
    let mut drawn = Vec::new();
    let mut merged = graph.clone();
    for adapter in &adapters {
        let mut draw = |v: ValueId| {
            let ty = with.ty(v);
            let data = random.between(-0.5, 0.5, ty.elements());
            let data = literal(DType::F32, &ty.shape, &data);
            drawn.push((v, data.clone()));
            values(&data)
        };
        let (down, up) = (draw(adapter.down), draw(adapter.up));
        let ty = graph.ty(adapter.weight);
        let [inputs, outputs] = adapter.form.sides(&ty.shape);
        let mut weight = values(graph.literal(adapter.weight).unwrap());
        for output in 0..outputs {
            for input in 0..inputs {
                let sum: f64 = (0..RANK)
                    .map(|r| up[output * RANK + r] * down[r * inputs + input])
                    .sum();
                let place = match adapter.form {
                    WeightForm::InputsFirst => input * outputs + output,
                    _ => output * inputs + input,
                };
                weight[place] += f64::from(SCALE) * sum;
            }
        }
        let data = literal(DType::F32, &ty.shape, &weight);
        let name = merged.value(adapter.weight).name.clone();
        let other = merged.add_literal(name, data);
        for node in &mut merged.nodes {
            for operand in node.inputs.iter_mut().flatten() {
                if *operand == adapter.weight {
                    *operand = other;
                }
            }
        }
    }
    let constant = |v: ValueId| {
        let found = drawn.iter().find(|(id, _)| *id == v);
        found.map(|(_, data)| data.clone())
    };
    let run = |graph: &Graph| {
        let results = interpret(graph, &[input()], &constant).unwrap();
        values(&results[0])
    };
    let (found, expected, before) = (run(&with), run(&merged), run(&graph));
    let largest = |a: &[f64], b: &[f64]| {
        let pairs = a.iter().zip(b);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    let size = expected.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    assert!(largest(&found, &expected) < 1e-5 * size);
    assert!(largest(&found, &before) > 0.1 * size);
}

#[test]
fn only_adapters_have_gradients_and_moments() {
    let (with, adapters) = adapted(&network());
    let update = Update::AdamW {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        decay: 0.0,
    };
    let trained = adapters.iter().flat_map(|a| [a.down, a.up]);
    let spec = TrainingSpec {
        result: 0,
        loss: Loss::MeanSquare,
        trained: trained.map(|v| (v, update)).collect(),
        batch_norm: BatchNorm::Given,
        clip: None,
        pass: Pass::Whole,
        report_result: false,
    };
    let training = training_step(with.clone(), &spec).unwrap();
    let count = |role| training.state.iter().filter(|s| s.role == role).count();
    assert_eq!((count(Role::Parameter), count(Role::Moment)), (8, 16));
    assert!(training.state.iter().all(|s| s.name.contains("/lora_")));
    // No gradient is as large as a weight, and none is updated.
    let updates = (training.graph.nodes.iter()).filter(|n| matches!(n.op, Op::Update(_)));
    assert_eq!(updates.count(), 8);
    for adapter in &adapters {
        let shape = &with.ty(adapter.weight).shape;
        let made = training
            .graph
            .nodes
            .iter()
            .flat_map(|n| n.present_outputs());
        let mut of_weight = made.filter(|&v| training.graph.ty(v).shape == *shape);
        assert_eq!(of_weight.next(), None, "{shape:?}");
    }
}

#[test]
fn wrong_ranks_and_taken_names_are_refused() {
    let mut graph = network();
    let all: Vec<ValueId> = adaptable(&graph).into_iter().map(|(v, _)| v).collect();
    let refused = |graph: &Graph, rank| {
        let made = add_adapters(graph.clone(), &all, rank, 1.0);
        made.map(|_| ()).unwrap_err().to_string()
    };
    assert!(refused(&graph, 0).contains("rank 0"));
    let said = refused(&graph, 5);
    assert!(
        said.contains("rank 5") && said.contains("4 outputs"),
        "{said}"
    );
    graph.add_literal("turned.weight/lora_A", Literal::from_f32(&[1], &[0.0]));
    let said = refused(&graph, 1);
    assert!(said.contains("'turned.weight/lora_A' already"), "{said}");
}
