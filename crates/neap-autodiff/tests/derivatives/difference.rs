//! Checks the derivatives of one operator: in f64 against central differences of its forward pass, in f32 against f64.
//!
//! The loss is a sum of all results with fixed random factors, so that no error cancels.

use neap_autodiff::differentiate;
use neap_ir::op::{Binary, Reduce};
use neap_ir::{DType, Graph, Literal, Node, Op, TensorType, ValueId, infer};
use neap_ops::interpret;

/// Half the distance of a central difference: its error is about the square of this, and rounding 1e-16 over it.
const STEP: f64 = 1e-5;
const DIFFERENCE_TOLERANCE: f64 = 2e-7;
const F32_TOLERANCE: f64 = 1e-4;

#[derive(Clone)]
pub enum Operand {
    /// Random, in the range, differentiated by.
    Float(Vec<usize>, f64, f64),
    /// Given, differentiated by.
    Given(Vec<usize>, Vec<f64>),
    /// Random, in the range, of no interest.
    Frozen(Vec<usize>, f64, f64),
    Index(Literal),
    /// Left out.
    Absent,
}

pub fn noise(shape: &[usize]) -> Operand {
    Operand::Float(shape.to_vec(), -1.0, 1.0)
}

pub fn between(shape: &[usize], low: f64, high: f64) -> Operand {
    Operand::Float(shape.to_vec(), low, high)
}

pub fn frozen(shape: &[usize]) -> Operand {
    Operand::Frozen(shape.to_vec(), -1.0, 1.0)
}

pub fn index(shape: &[usize], data: &[i64]) -> Operand {
    Operand::Index(Literal::from_i64(shape, data))
}

/// All of different sizes in -1..1, at least `2 / elements` apart: no difference quotient crosses a tie.
pub fn distinct(shape: &[usize]) -> Operand {
    let count: usize = shape.iter().product();
    let mut places: Vec<usize> = (0..count).collect();
    let mut random = Random(7);
    for i in (1..count).rev() {
        places.swap(i, (random.unit() * (i + 1) as f64) as usize);
    }
    let spread = |p: usize| (2.0 * p as f64 + 1.0) / count as f64 - 1.0;
    Operand::Given(shape.to_vec(), places.into_iter().map(spread).collect())
}

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    /// In 0..1.
    pub fn unit(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn between(&mut self, low: f64, high: f64, count: usize) -> Vec<f64> {
        (0..count)
            .map(|_| low + (high - low) * self.unit())
            .collect()
    }
}

pub fn literal(dtype: DType, shape: &[usize], data: &[f64]) -> Literal {
    let bytes: Vec<u8> = match dtype {
        DType::F32 => data
            .iter()
            .flat_map(|&v| (v as f32).to_le_bytes())
            .collect(),
        _ => data.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    Literal::from_bytes(dtype, shape, &bytes).expect("data fits the shape")
}

pub fn values(literal: &Literal) -> Vec<f64> {
    let bytes = literal.bytes();
    match literal.dtype() {
        DType::F32 => {
            let words = bytes.as_chunks::<4>().0.iter();
            words.map(|&b| f32::from_le_bytes(b).into()).collect()
        }
        DType::F64 => {
            let words = bytes.as_chunks::<8>().0.iter();
            words.map(|&b| f64::from_le_bytes(b)).collect()
        }
        other => panic!("no floats: {other}"),
    }
}

/// Appends a node with so many results to a graph.
pub fn push(graph: &mut Graph, op: Op, inputs: &[Option<ValueId>], outputs: usize) -> Vec<ValueId> {
    let types: Vec<_> = inputs
        .iter()
        .map(|i| i.map(|v| graph.ty(v).clone()))
        .collect();
    let types = infer::output_types(&op, &types, outputs).expect("operands fit");
    let name = format!("{}_{}", op.name(), graph.nodes.len());
    let outputs: Vec<ValueId> = types
        .into_iter()
        .enumerate()
        .map(|(i, ty)| graph.add_value(format!("{name}.{i}"), ty))
        .collect();
    graph.nodes.push(Node {
        name,
        op,
        inputs: inputs.to_vec(),
        outputs: outputs.iter().map(|&v| Some(v)).collect(),
        panels: None,
    });
    outputs
}

/// Appends a node with one result.
pub fn one(graph: &mut Graph, op: Op, inputs: &[ValueId]) -> ValueId {
    let inputs: Vec<_> = inputs.iter().map(|&v| Some(v)).collect();
    push(graph, op, &inputs, 1)[0]
}

/// The sum of all elements of `x` with random factors.
pub fn weighted_sum(graph: &mut Graph, x: ValueId, seed: u64) -> ValueId {
    let ty = graph.ty(x).clone();
    let factors = Random(seed).between(0.5, 1.5, ty.elements());
    let factors = graph.add_literal("factors", literal(ty.dtype, &ty.shape, &factors));
    let products = one(graph, Op::Binary(Binary::Mul), &[x, factors]);
    let op = Op::Reduce {
        kind: Reduce::Sum,
        axes: (0..ty.shape.len()).collect(),
        keep_dims: false,
    };
    one(graph, op, &[products])
}

/// A graph of one operator with its loss as output, and what its derivatives are asked by.
struct Checked {
    graph: Graph,
    inputs: Vec<Literal>,
    by: Vec<ValueId>,
}

fn build(op: &Op, operands: &[Operand], wanted: &[bool], dtype: DType) -> Checked {
    let mut graph = Graph::default();
    let (mut inputs, mut by, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for (i, operand) in operands.iter().enumerate() {
        let mut random = Random(0x9E37_79B9 + i as u64 * 0x0101_0101);
        let (shape, data, asked) = match operand {
            Operand::Float(shape, low, high) => {
                let count = shape.iter().product();
                (shape, random.between(*low, *high, count), true)
            }
            Operand::Frozen(shape, low, high) => {
                let count = shape.iter().product();
                (shape, random.between(*low, *high, count), false)
            }
            Operand::Given(shape, data) => (shape, data.clone(), true),
            Operand::Index(literal) => {
                ids.push(Some(graph.add_literal("index", literal.clone())));
                continue;
            }
            Operand::Absent => {
                ids.push(None);
                continue;
            }
        };
        // Rounded in both, so that f32 and f64 see the same numbers.
        let data: Vec<f64> = data.iter().map(|&v| f64::from(v as f32)).collect();
        let id = graph.add_value(format!("x{i}"), TensorType::new(dtype, shape));
        graph.inputs.push(id);
        inputs.push(literal(dtype, shape, &data));
        ids.push(Some(id));
        if asked {
            by.push(id);
        }
    }
    let results = push(&mut graph, op.clone(), &ids, wanted.len());
    if let Some(node) = graph.nodes.last_mut() {
        let left_out = node.outputs.iter_mut().zip(wanted).filter(|(_, w)| !**w);
        left_out.for_each(|(output, _)| *output = None);
    }
    let mut loss = None;
    for (i, &result) in results.iter().enumerate() {
        if !wanted[i] || !graph.ty(result).dtype.is_float() {
            continue;
        }
        let part = weighted_sum(&mut graph, result, 99 + i as u64);
        loss = Some(match loss {
            Some(sum) => one(&mut graph, Op::Binary(Binary::Add), &[sum, part]),
            None => part,
        });
    }
    graph.outputs = vec![loss.expect("the operator gives a float")];
    Checked { graph, inputs, by }
}

/// Derivatives of the graph's only output by some values.
pub fn derivatives(graph: &Graph, inputs: &[Literal], by: &[ValueId]) -> Vec<Vec<f64>> {
    let loss = graph.outputs[0];
    let (mut backward, found) =
        differentiate(graph.clone(), loss, by).unwrap_or_else(|e| panic!("{e}"));
    backward.outputs = found
        .iter()
        .map(|d| d.expect("the loss depends on it"))
        .collect();
    backward.check().expect("the graph is well formed");
    backward.check_types().expect("types are inferred");
    let results = interpret(&backward, inputs, &|_| None).unwrap_or_else(|e| panic!("{e}"));
    results.iter().map(values).collect()
}

pub fn loss(graph: &Graph, inputs: &[Literal]) -> f64 {
    let results = interpret(graph, inputs, &|_| None).unwrap_or_else(|e| panic!("{e}"));
    values(&results[0])[0]
}

/// An operator with one result.
pub fn check(op: Op, operands: &[Operand]) {
    check_outputs(op, operands, 1);
}

pub fn check_outputs(op: Op, operands: &[Operand], outputs: usize) {
    check_wanted(op, operands, &vec![true; outputs]);
}

/// An operator with some of its results.
pub fn check_wanted(op: Op, operands: &[Operand], wanted: &[bool]) {
    let name = format!("{op:?}");
    let exact = build(&op, operands, wanted, DType::F64);
    let found = derivatives(&exact.graph, &exact.inputs, &exact.by);
    for (id, found) in exact.by.iter().zip(&found) {
        let input = exact
            .graph
            .inputs
            .iter()
            .position(|v| v == id)
            .expect("is an input");
        let expected = differences(&exact.graph, &exact.inputs, input);
        compare(
            &name,
            &format!("difference of x{input}"),
            &expected,
            found,
            DIFFERENCE_TOLERANCE,
        );
    }
    check_f32_wanted(op, operands, wanted);
}

/// f32 against f64 only: for sizes where differences would take too long.
pub fn check_f32(op: Op, operands: &[Operand], outputs: usize) {
    check_f32_wanted(op, operands, &vec![true; outputs]);
}

fn check_f32_wanted(op: Op, operands: &[Operand], wanted: &[bool]) {
    let name = format!("{op:?}");
    let exact = build(&op, operands, wanted, DType::F64);
    let single = build(&op, operands, wanted, DType::F32);
    let expected = derivatives(&exact.graph, &exact.inputs, &exact.by);
    let found = derivatives(&single.graph, &single.inputs, &single.by);
    for (i, (expected, found)) in expected.iter().zip(&found).enumerate() {
        compare(
            &name,
            &format!("f32 of operand {i}"),
            expected,
            found,
            F32_TOLERANCE,
        );
    }
}

/// Central differences by every element of an input.
fn differences(graph: &Graph, inputs: &[Literal], input: usize) -> Vec<f64> {
    let base = values(&inputs[input]);
    let shape = inputs[input].shape().to_vec();
    let mut moved = inputs.to_vec();
    let mut at = |i: usize, by: f64| {
        let mut data = base.clone();
        data[i] += by;
        moved[input] = literal(DType::F64, &shape, &data);
        loss(graph, &moved)
    };
    (0..base.len())
        .map(|i| (at(i, STEP) - at(i, -STEP)) / (2.0 * STEP))
        .collect()
}

/// Every element within `tolerance` of the largest magnitude (1 at least).
pub fn compare(op: &str, what: &str, expected: &[f64], found: &[f64], tolerance: f64) {
    assert_eq!(expected.len(), found.len(), "{op}: {what}");
    let largest = expected.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (e, f)) in expected.iter().zip(found).enumerate() {
        let error = (e - f).abs();
        assert!(
            error <= tolerance * largest,
            "{op}: {what}: element {i} is {f}, expected {e}"
        );
    }
}
