//! Interprets a lowered program in simulated buffers and checks every sharing of memory on the way.
//!
//! Every value's data is first worked out on its own. Then the steps write into shared buffers, and
//! after each of them every value that is still to be read must lie there undamaged.

use crate::build::Random;
use neap_ir::bands::{BandLayer, Bands};
use neap_ir::graph::LANES;
use neap_ir::op::{Activation, Binary, Op, Recurrent, Unary};
use neap_ir::panel::{Epilogue, Integers};
use neap_ir::program::Storage;
use neap_ir::recipe::{Affine, Recipe};
use neap_ir::{Const, DType, Graph, Layout, Literal, Node, NodeId, Program, ValueId};
use neap_ops::{evaluate, evaluate_outputs};
use neap_rewrite::Lowered;

/// Runs graph and program on the same random inputs and compares. `program` is the lowered one, or
/// made from it.
pub fn compare(graph: &Graph, lowered: &Lowered, program: &Program, random: &mut Random) {
    program.check().expect("the program is sound");
    let inputs: Vec<Literal> = graph
        .inputs
        .iter()
        .map(|&v| random_input(graph, v, random))
        .collect();
    let expected = run_graph(graph, &inputs);
    let found = run_program(lowered, program, &inputs);
    assert_eq!(expected.len(), found.len());
    // A fused node leaves out what is rounded to 16 bits inside.
    let to_halves =
        |op: &Op| matches!(op, Op::Cast { to } if matches!(to, DType::F16 | DType::BF16));
    let share = match graph.nodes.iter().any(|node| to_halves(&node.op)) {
        true => 1e-2,
        false => 1e-4,
    };
    for (index, (e, f)) in expected.iter().zip(&found).enumerate() {
        assert_close(&format!("output {index}"), e, f, share);
    }
}

fn random_input(graph: &Graph, value: ValueId, random: &mut Random) -> Literal {
    let ty = graph.ty(value);
    match ty.dtype {
        DType::F32 => {
            let data: Vec<f32> = (0..ty.elements()).map(|_| random.float()).collect();
            Literal::from_f32(&ty.shape, &data)
        }
        DType::I64 => {
            let data: Vec<i64> = (0..ty.elements()).map(|_| random.below(4) as i64).collect();
            Literal::from_i64(&ty.shape, &data)
        }
        other => panic!("no random input of type {other}"),
    }
}

fn assert_close(what: &str, expected: &Literal, found: &Literal, share: f32) {
    assert_eq!(expected.ty(), found.ty(), "{what}");
    let (Some(e), Some(f)) = (expected.as_f32(), found.as_f32()) else {
        assert_eq!(expected.bytes(), found.bytes(), "{what}");
        return;
    };
    let finite = e.iter().filter(|x| x.is_finite());
    let range = finite.fold(1e-3f32, |m, x| m.max(x.abs()));
    for (i, (e, f)) in e.iter().zip(f).enumerate() {
        let close = if e.is_finite() && f.is_finite() {
            (e - f).abs() <= share * range
        } else {
            e == f || e.is_nan() && f.is_nan()
        };
        assert!(close, "{what}[{i}]: {e} expected, {f} found");
    }
}

/// Evaluates node by node as the graph says.
pub fn run_graph(graph: &Graph, inputs: &[Literal]) -> Vec<Literal> {
    let mut data = known(graph, inputs, &|_| None);
    for node in &graph.nodes {
        let results = evaluate_node(node, &data);
        store(node, results, &mut data);
    }
    outputs(graph, &data)
}

fn outputs(graph: &Graph, data: &[Option<Literal>]) -> Vec<Literal> {
    let of = |v: &ValueId| data[v.index()].clone().expect("outputs are computed");
    graph.outputs.iter().map(of).collect()
}

/// Inputs and constants.
fn known(
    graph: &Graph,
    inputs: &[Literal],
    packed: &dyn Fn(ValueId) -> Option<Literal>,
) -> Vec<Option<Literal>> {
    let mut data: Vec<Option<Literal>> = (0..graph.values.len())
        .map(|i| {
            let value = ValueId(i as u32);
            graph.literal(value).cloned().or_else(|| packed(value))
        })
        .collect();
    for (&value, input) in graph.inputs.iter().zip(inputs) {
        data[value.index()] = Some(input.clone());
    }
    data
}

fn store(node: &Node, results: Vec<Literal>, data: &mut [Option<Literal>]) {
    for (output, result) in node.outputs.iter().zip(results) {
        if let Some(output) = output {
            data[output.index()] = Some(result);
        }
    }
}

fn evaluate_node(node: &Node, data: &[Option<Literal>]) -> Vec<Literal> {
    let inputs: Vec<Option<&Literal>> = node
        .inputs
        .iter()
        .map(|v| v.map(|v| data[v.index()].as_ref().expect("computed before")))
        .collect();
    evaluate_outputs(&node.op, &inputs, node.outputs.len())
        .unwrap_or_else(|e| panic!("{}: {e}", node.name))
}

fn one(op: Op, inputs: &[&Literal]) -> Literal {
    let inputs: Vec<_> = inputs.iter().map(|&l| Some(l)).collect();
    evaluate(&op, &inputs)
        .unwrap_or_else(|e| panic!("{}: {e}", op.name()))
        .remove(0)
}

pub fn run_program(lowered: &Lowered, program: &Program, inputs: &[Literal]) -> Vec<Literal> {
    let graph = &program.graph;
    let packed = |value: ValueId| match graph.constant(value) {
        Some(Const::Packed(id)) => match &lowered.recipes[id.index()] {
            Recipe::Raw { constant, .. } => lowered.source.literal(*constant).cloned(),
            recipe @ Recipe::Matrix { .. } => Some(panels(lowered, recipe)),
            _ => None,
        },
        _ => None,
    };
    let mut data = known(graph, inputs, &packed);
    for node in &graph.nodes {
        let results = match reference(lowered, graph, node, &data) {
            Some(result) => vec![result],
            None => evaluate_node(node, &data),
        };
        store(node, results, &mut data);
    }
    check_memory(program, &data);
    outputs(graph, &data)
}

/// Operators that only the rewriter makes, by their definition.
fn reference(
    lowered: &Lowered,
    graph: &Graph,
    node: &Node,
    data: &[Option<Literal>],
) -> Option<Literal> {
    if let Op::Bands(bands) = &node.op {
        return Some(chain(lowered, graph, node, bands, data));
    }
    let of = |index: usize| {
        let value = node.input(index)?;
        data[value.index()].as_ref()
    };
    let recipe = node.panels.map(|id| &lowered.recipes[id.index()]);
    let constant = |v: &ValueId| lowered.source.literal(*v).expect("constants are inline");
    let in_integers = node.op.is_in_integers();
    let x = &match of(0)? {
        x if in_integers => one(Op::Dequantize { axis: 0 }, &[x, of(2)?, of(3)?]),
        x => x.clone(),
    };
    let (result, epilogue) = match (&node.op, recipe) {
        (Op::Reorder, _) => return Some(x.clone()),
        (Op::GatherRows { table, .. }, _) => {
            let Recipe::Raw { constant: rows, .. } = &lowered.recipes[table.index()] else {
                panic!("rows come from a raw extent");
            };
            return Some(one(Op::Gather { axis: 0 }, &[constant(rows), x]));
        }
        (Op::PanelConv(conv), Some(Recipe::Conv { weight, affine, .. })) => {
            let w = &centred(constant(weight), affine, 0);
            let y = convolve(x, w, &conv.window, conv.groups, affine);
            (y, conv.epilogue)
        }
        (Op::PanelDepthwise(conv), Some(Recipe::Depthwise { weight, affine, .. })) => {
            let w = &centred(constant(weight), affine, 0);
            let y = convolve(x, w, &conv.window, conv.channels, affine);
            (y, conv.epilogue)
        }
        (
            Op::PanelLinear(linear),
            Some(Recipe::Matrix {
                weight,
                transposed,
                affine,
                ..
            }),
        ) => {
            let mut w = centred(constant(weight), affine, usize::from(!transposed));
            if *transposed {
                w = one(Op::Transpose { perm: vec![1, 0] }, &[&w]);
            }
            (linear_layer(x, &w, affine), linear.epilogue)
        }
        _ => return None,
    };
    Some(match epilogue.integers {
        Some(integers) => finish_integers(result, epilogue, integers, of(1)),
        None => finish(result, epilogue, of(1)),
    })
}

/// The layers of a chain one after another.
fn chain(
    lowered: &Lowered,
    graph: &Graph,
    node: &Node,
    bands: &Bands,
    data: &[Option<Literal>],
) -> Literal {
    let of = |index: usize| data[node.input(index).expect("there").index()].as_ref();
    let mut y = of(0).expect("computed before").clone();
    let mut weights = (1..).map(|index| {
        let constant = graph.constant(node.input(index).expect("there"));
        let Some(Const::Packed(id)) = constant else {
            panic!("weights are packed");
        };
        &lowered.recipes[id.index()]
    });
    let constant = |v: &ValueId| lowered.source.literal(*v).expect("constants are inline");
    for layer in &bands.layers {
        let recipe = layer.has_weights().then(|| weights.next().expect("there"));
        let (result, epilogue) = match (layer, recipe) {
            (BandLayer::Conv(conv), Some(Recipe::Conv { weight, affine, .. })) => (
                convolve(
                    &y,
                    &centred(constant(weight), affine, 0),
                    &conv.window,
                    conv.groups,
                    affine,
                ),
                conv.epilogue,
            ),
            (BandLayer::Depthwise(conv), Some(Recipe::Depthwise { weight, affine, .. })) => (
                convolve(
                    &y,
                    &centred(constant(weight), affine, 0),
                    &conv.window,
                    conv.channels,
                    affine,
                ),
                conv.epilogue,
            ),
            (BandLayer::Pool { .. }, None) => {
                y = one(layer.op(), &[&y]);
                continue;
            }
            _ => panic!("a layer and its recipe do not fit"),
        };
        let residual = epilogue.residual.then(|| {
            let index = bands.residual_input().expect("the last layer's");
            of(index).expect("computed before")
        });
        y = finish(result, epilogue, residual);
    }
    y
}

/// Weights as `f32`, less the zero points of their output channels, which lie along `axis`.
fn centred(weights: &Literal, affine: &Affine, axis: usize) -> Literal {
    let Some(zero) = &affine.zero else {
        return weights.clone();
    };
    let inner: usize = weights.shape()[axis + 1..].iter().product();
    let steps = weights.to_i64_vec().expect("integers");
    let data: Vec<f32> = (steps.iter().enumerate())
        .map(|(i, &step)| step as f32 - zero[i / inner % zero.len()])
        .collect();
    Literal::from_f32(weights.shape(), &data)
}

fn convolve(
    x: &Literal,
    w: &Literal,
    window: &neap_ir::op::Window,
    groups: usize,
    affine: &Affine,
) -> Literal {
    let as_2d = |l: &Literal| match *l.shape() {
        [n, c, width] => l.clone().reshaped(&[n, c, 1, width]),
        _ => l.clone(),
    };
    let y = one(Op::Conv(window.clone(), groups), &[&as_2d(x), &as_2d(w)]);
    let y = match *y.shape() {
        [n, c, 1, width] if x.shape().len() == 3 => y.reshaped(&[n, c, width]),
        _ => y,
    };
    let channels = y.shape()[1];
    let mut shape = vec![1; y.shape().len()];
    shape[1] = channels;
    per_channel(y, &shape, affine)
}

fn linear_layer(x: &Literal, w: &Literal, affine: &Affine) -> Literal {
    let y = one(Op::MatMul, &[x, w]);
    let n = w.shape()[1];
    per_channel(y, &[n], affine)
}

fn per_channel(mut y: Literal, shape: &[usize], affine: &Affine) -> Literal {
    for (kind, values) in [(Binary::Mul, &affine.scale), (Binary::Add, &affine.bias)] {
        if let Some(values) = values {
            y = one(Op::Binary(kind), &[&y, &Literal::from_f32(shape, values)]);
        }
    }
    y
}

/// A result of a layer in integers, in floats until it is stored.
fn finish_integers(
    mut y: Literal,
    mut epilogue: Epilogue,
    integers: Integers,
    residual: Option<&Literal>,
) -> Literal {
    let steps_of = |scale: f32, zero: u8| {
        let zero = Literal::from_bytes(DType::U8, &[], &[zero]).expect("one byte");
        [Literal::from_f32(&[], &[scale]), zero]
    };
    if integers.before_residual != Activation::None {
        let rounding = Op::Unary(Unary::Activation(integers.before_residual));
        y = one(rounding, &[&y]);
    }
    let residual = residual.map(|residual| match integers.residual_steps {
        Some(size) => {
            let [scale, zero] = steps_of(size.scale, size.zero);
            one(Op::Dequantize { axis: 0 }, &[residual, &scale, &zero])
        }
        None => residual.clone(),
    });
    epilogue.integers = None;
    y = finish(y, epilogue, residual.as_ref());
    if !integers.gives_steps {
        return y;
    }
    let Activation::Requantize { scale, zero, .. } = epilogue.activation else {
        panic!("steps of a rounding");
    };
    let [scale, zero] = steps_of(scale, zero as u8);
    let to = DType::U8;
    one(Op::Quantize { axis: 0, to }, &[&y, &scale, &zero])
}

fn finish(mut y: Literal, epilogue: Epilogue, residual: Option<&Literal>) -> Literal {
    assert_eq!(epilogue.residual, residual.is_some());
    if let Some(residual) = residual {
        y = one(Op::Binary(Binary::Add), &[&y, residual]);
    }
    match epilogue.activation {
        Activation::None => y,
        activation => one(Op::Unary(Unary::Activation(activation)), &[&y]),
    }
}

/// Lets each step write its results where they belong and looks at every value still needed.
fn check_memory(program: &Program, data: &[Option<Literal>]) {
    let graph = &program.graph;
    let mut memory: Vec<Vec<u8>> = program
        .buffers
        .iter()
        .map(|b| vec![0xff; b.bytes as usize])
        .collect();
    let last = last_readers(graph);
    let mut defined: Vec<ValueId> = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let step = program.steps.iter().position(|s| *s == NodeId(at as u32));
        if let Some(step) = step {
            for (index, buffer) in program.buffers.iter().enumerate() {
                if !buffer.live.contains(&(step as u32)) {
                    // Other buffers lie there now.
                    memory[index].fill(0xff);
                }
            }
            for input in node.present_inputs() {
                assert_there(program, &memory, input, data, &node.name);
            }
            check_overlaps(program, node);
            for output in node.present_outputs() {
                // What is in place already is not copied, nor is its padding.
                if !(moves_only(node) && is_there(program, &memory, output, data)) {
                    write(program, &mut memory, output, data);
                }
            }
        }
        defined.extend(node.present_outputs());
        for &value in &defined {
            if last[value.index()] > at || node.present_outputs().any(|o| o == value) {
                assert_there(program, &memory, value, data, &node.name);
            }
        }
    }
    for &output in &graph.outputs {
        assert_there(program, &memory, output, data, "the end");
    }
}

fn last_readers(graph: &Graph) -> Vec<usize> {
    let mut last = vec![0; graph.values.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        for input in node.present_inputs() {
            last[input.index()] = at;
        }
    }
    for output in &graph.outputs {
        last[output.index()] = graph.nodes.len();
    }
    last
}

fn write(program: &Program, memory: &mut [Vec<u8>], value: ValueId, data: &[Option<Literal>]) {
    let Storage::Buffer {
        buffer,
        offset_bytes,
    } = program.storage[value.index()]
    else {
        panic!("results are in buffers");
    };
    let literal = data[value.index()].as_ref().expect("computed");
    let place = &mut memory[buffer as usize][offset_bytes as usize..];
    let size = literal.dtype().size_bytes();
    // Padding lanes get garbage.
    place[..program.graph.value(value).len_bytes()].fill(0xee);
    for (i, element) in literal.bytes().chunks_exact(size).enumerate() {
        let at = position(program, value, i) * size;
        place[at..at + size].copy_from_slice(element);
    }
}

fn assert_there(
    program: &Program,
    memory: &[Vec<u8>],
    value: ValueId,
    data: &[Option<Literal>],
    when: &str,
) {
    let name = &program.graph.value(value).name;
    assert!(
        is_there(program, memory, value, data),
        "'{name}' is damaged at {when}"
    );
}

fn is_there(
    program: &Program,
    memory: &[Vec<u8>],
    value: ValueId,
    data: &[Option<Literal>],
) -> bool {
    let Storage::Buffer {
        buffer,
        offset_bytes,
    } = program.storage[value.index()]
    else {
        return true;
    };
    let literal = data[value.index()].as_ref().expect("computed");
    let place = &memory[buffer as usize][offset_bytes as usize..];
    let size = literal.dtype().size_bytes();
    let elements = literal.bytes().chunks_exact(size).enumerate();
    let mut found = elements.map(|(i, element)| {
        let at = position(program, value, i) * size;
        &place[at..at + size] == element
    });
    found.all(|same| same)
}

fn moves_only(node: &Node) -> bool {
    matches!(
        node.op,
        Op::Concat { .. } | Op::Split { .. } | Op::Slice { .. } | Op::Reshape { .. }
    )
}

/// Where element `i` lies, in elements.
fn position(program: &Program, value: ValueId, i: usize) -> usize {
    let value = program.graph.value(value);
    if value.layout == Layout::Plain {
        return i;
    }
    let shape = &value.ty.shape;
    let spatial: usize = shape[2..].iter().product();
    let (n, c, s) = (i / spatial / shape[1], i / spatial % shape[1], i % spatial);
    let blocks = shape[1].div_ceil(LANES);
    ((n * blocks + c / LANES) * spatial + s) * LANES + c % LANES
}

/// A step may write over an input only where its operator allows that.
fn check_overlaps(program: &Program, node: &Node) {
    let graph = &program.graph;
    let range = |v: ValueId| match program.storage[v.index()] {
        Storage::Buffer {
            buffer,
            offset_bytes,
        } => Some((
            buffer,
            offset_bytes,
            offset_bytes + graph.value(v).len_bytes() as u64,
        )),
        _ => None,
    };
    let moves = moves_only(node);
    let operand = |v: &Option<ValueId>| v.map(|v| (graph.ty(v), graph.value(v).layout));
    let inputs: Vec<_> = node.inputs.iter().map(operand).collect();
    let outputs: Vec<_> = node.outputs.iter().map(operand).collect();
    let allowed = neap_ops::may_overwrite(&node.op, &inputs, &outputs);
    for output in node.present_outputs() {
        let o = range(output).expect("results are in buffers");
        for (index, input) in node.inputs.iter().enumerate() {
            let Some(i) = input.and_then(range) else {
                continue;
            };
            let overlap = i.0 == o.0 && i.1 < o.2 && o.1 < i.2;
            assert!(
                !overlap || moves || i == o && allowed.contains(&index),
                "{} writes over its input {index}",
                node.name
            );
        }
    }
}

/// A matrix of 8 bits in panels, as a recurrent layer reads it.
fn panels(lowered: &Lowered, recipe: &Recipe) -> Literal {
    let Recipe::Matrix {
        weight,
        k,
        n,
        transposed,
        affine,
    } = recipe
    else {
        unreachable!("only matrices are asked for");
    };
    let steps = lowered
        .source
        .literal(*weight)
        .expect("constants are inline");
    let steps = steps.to_i64_vec().expect("integers");
    // Unsigned bytes are stored as signed ones, and so are their zero points.
    let shift = if lowered.source.ty(*weight).dtype == DType::U8 {
        128
    } else {
        0
    };
    let of = |values: &Option<Vec<f32>>, o: usize| values.as_ref().expect("given")[o];
    let mut bytes = Vec::new();
    for first in (0..*n).step_by(LANES) {
        let outputs = || first..first + LANES;
        let scales = outputs().map(|o| of(&affine.scale, o));
        let zeros = outputs().map(|o| of(&affine.zero, o) - shift as f32);
        let head = [0.0; LANES].into_iter().chain(scales).chain(zeros);
        bytes.extend(head.flat_map(f32::to_le_bytes));
        for at in 0..*k {
            let step = |o: usize| match transposed {
                true => steps[o * k + at],
                false => steps[at * n + o],
            };
            bytes.extend(outputs().map(|o| (step(o) - shift) as i8 as u8));
        }
    }
    let ty = Recurrent::panel_type(*n, *k).expect("fits");
    Literal::from_bytes(ty.dtype, &ty.shape, &bytes).expect("fits")
}
