//! Recurrent operators of `f32`, which compute in vectors, against the same operators of `f64`, which do not.

use crate::support::*;
use neap_ir::op::{Direction, Recurrent, RecurrentActivation};
use neap_ir::{DType, Layout, Literal, Op, TensorType};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::simd::Isa;
use neap_ops::{Context, TensorMut, TensorRef, execute, workspace_bytes};
use neap_testing::together;
use std::sync::atomic::{AtomicUsize, Ordering};

pub const SIGMOID: RecurrentActivation = RecurrentActivation::Sigmoid;
pub const TANH: RecurrentActivation = RecurrentActivation::Tanh;

/// Sizes of a layer, and what its sequences are like.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub steps: usize,
    pub batch: usize,
    pub input: usize,
    pub hidden: usize,
    pub direction: Direction,
    pub batch_first: bool,
    /// One length for each sequence, shorter ones first.
    pub lengths: bool,
}

const CASES: [Case; 6] = {
    let small = Case {
        steps: 3,
        batch: 1,
        input: 2,
        hidden: 5,
        direction: Direction::Forward,
        batch_first: false,
        lengths: false,
    };
    [
        small,
        // Sequences end at different steps, in both directions.
        Case {
            batch: 3,
            hidden: 21,
            direction: Direction::Bidirectional,
            lengths: true,
            ..small
        },
        Case {
            batch: 2,
            batch_first: true,
            direction: Direction::Reverse,
            ..small
        },
        // Steps that are cut into tasks, whose last is shorter.
        Case {
            steps: 2,
            input: 33,
            hidden: 300,
            direction: Direction::Bidirectional,
            ..small
        },
        // Inputs of more rows than are multiplied without panels.
        Case {
            steps: 20,
            batch: 3,
            hidden: 18,
            direction: Direction::Bidirectional,
            ..small
        },
        Case { steps: 0, ..small },
    ]
};

/// What a cell may have beside.
#[derive(Debug, Clone, Copy)]
pub struct Extras {
    pub peepholes: bool,
    pub clip: Option<f32>,
    pub couple: bool,
    pub rounds: bool,
}

pub const PLAIN: Extras = Extras {
    peepholes: false,
    clip: None,
    couple: false,
    rounds: false,
};

/// Threads that take tasks in any order.
pub struct Threads(pub usize);

impl Parallel for Threads {
    fn workers(&self) -> usize {
        self.0
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        let next = AtomicUsize::new(0);
        together(self.0, &|worker| {
            while let task = next.fetch_add(1, Ordering::Relaxed)
                && task < tasks
            {
                body(task, worker);
            }
        });
    }
}

pub fn attributes(case: &Case, activations: &[RecurrentActivation], extras: &Extras) -> Recurrent {
    let directions = directions(case);
    Recurrent {
        hidden: case.hidden,
        direction: case.direction,
        activations: activations.repeat(directions),
        clip: extras.clip,
        couple_input_forget: extras.couple,
        batch_first: case.batch_first,
        rounds_state: extras.rounds,
        in_panels: false,
    }
}

pub fn directions(case: &Case) -> usize {
    match case.direction {
        Direction::Bidirectional => 2,
        Direction::Forward | Direction::Reverse => 1,
    }
}

/// Operands of a layer, in `f32`. Weights are small enough that long sums stay inside the activations' bends.
pub fn operands(case: &Case, gates: usize, cells: bool, extras: &Extras) -> Vec<Option<Literal>> {
    let (d, n, rows) = (directions(case), case.hidden, gates * case.hidden);
    let scaled = |shape: &[usize], seed: u64, by: usize| {
        let data: Vec<f32> = values(&noise(shape, seed)).to_vec();
        let by = (by as f32).sqrt().recip();
        f32s(shape, &data.iter().map(|v| v * by).collect::<Vec<_>>())
    };
    let x = match case.batch_first {
        true => [case.batch, case.steps, case.input],
        false => [case.steps, case.batch, case.input],
    };
    let state = match case.batch_first {
        true => [case.batch, d, n],
        false => [d, case.batch, n],
    };
    let lengths: Vec<i32> = (0..case.batch)
        .map(|at| (case.steps + at).saturating_sub(case.batch - 1) as i32)
        .collect();
    vec![
        Some(noise(&x, 1)),
        Some(scaled(&[d, rows, case.input], 2, case.input)),
        Some(scaled(&[d, rows, n], 3, n)),
        Some(noise(&[d, 2 * rows], 4)),
        case.lengths.then(|| i32s(&[case.batch], &lengths)),
        Some(noise(&state, 5)),
        cells.then(|| noise(&state, 6)),
        (cells && extras.peepholes).then(|| noise(&[d, 3 * n], 7)),
    ]
}

fn widened(literal: &Literal) -> Literal {
    let Some(data) = literal.as_f32() else {
        return literal.clone();
    };
    let bytes: Vec<u8> = data
        .iter()
        .flat_map(|v| f64::from(*v).to_le_bytes())
        .collect();
    Literal::from_bytes(DType::F64, literal.shape(), &bytes).unwrap()
}

/// All outputs of an operator, as `f64`.
pub fn run(
    op: &Op,
    operands: &[Option<Literal>],
    case: &Case,
    cells: bool,
    isa: Isa,
    par: &dyn Parallel,
) -> Vec<Vec<f64>> {
    let types: Vec<Option<TensorType>> = (operands.iter())
        .map(|l| l.as_ref().map(|l| TensorType::new(l.dtype(), l.shape())))
        .collect();
    let refs: Vec<Option<TensorRef>> = (operands.iter().zip(&types))
        .map(|(l, ty)| TensorRef::from_bytes(ty.as_ref()?, l.as_ref()?.bytes()))
        .collect();
    let dtype = types[0].as_ref().unwrap().dtype;
    let (d, n) = (directions(case), case.hidden);
    let (y, state) = match case.batch_first {
        true => (vec![case.batch, case.steps, d, n], [case.batch, d, n]),
        false => (vec![case.steps, d, case.batch, n], [d, case.batch, n]),
    };
    let mut shapes = vec![y, state.to_vec()];
    shapes.extend(cells.then(|| state.to_vec()));
    let outputs: Vec<TensorType> = shapes.iter().map(|s| TensorType::new(dtype, s)).collect();
    let mut results: Vec<Literal> = outputs
        .iter()
        .map(|ty| Literal::zeros(ty.dtype, &ty.shape))
        .collect();
    let muts: Vec<Option<TensorMut>> = (results.iter_mut().zip(&outputs))
        .map(|(l, ty)| TensorMut::from_bytes(ty, l.bytes_mut()))
        .collect();
    let plain = |ty| (ty, Layout::Plain);
    let input_types: Vec<_> = types.iter().map(|ty| ty.as_ref().map(plain)).collect();
    let output_types: Vec<_> = outputs.iter().map(|ty| Some(plain(ty))).collect();
    let bytes = workspace_bytes(op, &input_types, &output_types, par.workers(), isa);
    let mut workspace = vec![0xa5; bytes];
    let mut ctx = Context {
        par,
        isa,
        workspace: &mut workspace,
    };
    execute(op, &refs, None, &muts, &mut ctx).expect("runs");
    results.iter().map(floats).collect()
}

fn floats(literal: &Literal) -> Vec<f64> {
    match literal.as_f32() {
        Some(data) => data.iter().map(|v| f64::from(*v)).collect(),
        None => (literal.bytes().as_chunks::<8>().0.iter())
            .map(|bytes| f64::from_le_bytes(*bytes))
            .collect(),
    }
}

/// `f32` on all instruction sets is near `f64`, and has the same bits with any number of threads.
fn check(op: &Op, gates: usize, cells: bool, case: &Case, extras: &Extras, tolerance: f64) {
    let narrow = operands(case, gates, cells, extras);
    let wide: Vec<Option<Literal>> = narrow.iter().map(|l| l.as_ref().map(widened)).collect();
    let expected = run(op, &wide, case, cells, Isa::detect(), &Serial);
    for isa in Isa::available() {
        let found = run(op, &narrow, case, cells, isa, &Serial);
        for (a, b) in found.iter().flatten().zip(expected.iter().flatten()) {
            let near = (a - b).abs() <= tolerance * b.abs().max(1.0);
            assert!(
                near,
                "{} {case:?} {extras:?}: {a} where {b} is expected",
                isa.name()
            );
        }
        for threads in [2, 3] {
            let again = run(op, &narrow, case, cells, isa, &Threads(threads));
            assert!(found == again, "{} {case:?}: {threads} threads", isa.name());
        }
    }
}

#[test]
fn lstm_in_vectors() {
    let extras = [
        PLAIN,
        Extras {
            peepholes: true,
            ..PLAIN
        },
        Extras {
            clip: Some(0.4),
            ..PLAIN
        },
        Extras {
            couple: true,
            peepholes: true,
            ..PLAIN
        },
    ];
    for case in &CASES {
        for extras in &extras {
            let op = Op::Lstm(attributes(case, &[SIGMOID, TANH, TANH], extras));
            check(&op, 4, true, case, extras, 2e-6);
        }
    }
}

#[test]
fn lstm_in_vectors_sees_its_state_in_steps_of_bytes() {
    let extras = Extras {
        rounds: true,
        ..PLAIN
    };
    for case in &CASES {
        let op = Op::Lstm(attributes(case, &[SIGMOID, TANH, TANH], &extras));
        // A value between two steps may go to either.
        check(&op, 4, true, case, &extras, 2e-2);
    }
}

#[test]
fn gru_in_vectors() {
    for case in &CASES {
        for linear_before_reset in [false, true] {
            let extras = Extras {
                clip: Some(1.5),
                ..PLAIN
            };
            for extras in [PLAIN, extras] {
                let op = Op::Gru {
                    recurrent: attributes(case, &[SIGMOID, TANH], &extras),
                    linear_before_reset,
                };
                check(&op, 3, false, case, &extras, 2e-6);
            }
        }
    }
}

#[test]
fn rnn_in_vectors_with_every_activation() {
    use RecurrentActivation::*;
    let all = [
        Sigmoid,
        Tanh,
        Relu,
        LeakyRelu(0.1),
        ThresholdedRelu(0.3),
        Elu(0.5),
        HardSigmoid(0.2, 0.5),
        Softsign,
        Softplus,
        // These two have no vectors.
        Affine(0.5, 0.1),
        ScaledTanh(1.1, 0.7),
    ];
    for activation in all {
        // A threshold makes two values of one; sums that lie on it do not occur in these sizes.
        for case in &CASES[..3] {
            let op = Op::Rnn(attributes(case, &[activation], &PLAIN));
            check(&op, 1, false, case, &PLAIN, 5e-6);
        }
    }
}

#[test]
fn a_clip_bounds_what_goes_into_gates_and_not_the_cell() {
    let lstm = Recurrent {
        hidden: 1,
        direction: Direction::Forward,
        activations: vec![SIGMOID, TANH, TANH],
        clip: Some(0.1),
        couple_input_forget: false,
        batch_first: false,
        rounds_state: false,
        in_panels: false,
    };
    // All gates are half open, so half of the cell is left.
    let (x, weights, cell) = (
        f32s(&[1, 1, 1], &[0.0]),
        f32s(&[1, 4, 1], &[0.0; 4]),
        f32s(&[1, 1, 1], &[5.0]),
    );
    for wide in [false, true] {
        let of = |l: &Literal| if wide { widened(l) } else { l.clone() };
        let [x, weights, cell] = [of(&x), of(&weights), of(&cell)];
        let inputs = [
            Some(&x),
            Some(&weights),
            Some(&weights),
            None,
            None,
            None,
            Some(&cell),
        ];
        let y = neap_ops::evaluate(&Op::Lstm(lstm.clone()), &inputs).expect("runs");
        let y = one(&Op::Cast { to: DType::F32 }, &[&y[0]]);
        assert_close(&y, &[0.5 * 2.5f32.tanh()], 1e-6);
    }
}
