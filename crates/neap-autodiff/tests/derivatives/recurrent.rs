//! LSTM, GRU and RNN.

use crate::difference::{Operand, check_f32, check_wanted, frozen, noise};
use neap_ir::op::{Direction, Recurrent, RecurrentActivation as A};
use neap_ir::{DType, Literal, Op};

const LSTM: [A; 3] = [A::Sigmoid, A::Tanh, A::Tanh];
const GRU: [A; 2] = [A::Sigmoid, A::Tanh];
const DIRECTIONS: [Direction; 3] = [
    Direction::Forward,
    Direction::Reverse,
    Direction::Bidirectional,
];

/// Sizes of a case: steps, sequences, elements of an input and of a state.
type Sizes = [usize; 4];

fn attributes(hidden: usize, direction: Direction, activations: &[A]) -> Recurrent {
    Recurrent {
        hidden,
        direction,
        activations: activations.repeat(count(direction)),
        clip: None,
        couple_input_forget: false,
        batch_first: false,
        rounds_state: false,
        in_panels: false,
    }
}

fn count(direction: Direction) -> usize {
    match direction {
        Direction::Bidirectional => 2,
        _ => 1,
    }
}

fn lengths(data: &[i32]) -> Operand {
    let bytes: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    let literal = Literal::from_bytes(DType::I32, &[data.len()], &bytes);
    Operand::Index(literal.expect("data fits the shape"))
}

/// X, W, R, B, lengths and initial h; c and peepholes where there are four gates.
fn operands(of: &Recurrent, gates: usize, sizes: Sizes, ends: Option<&[i32]>) -> Vec<Operand> {
    let [steps, batch, input, hidden] = sizes;
    let directions = count(of.direction);
    let (x, state) = if of.batch_first {
        ([batch, steps, input], [batch, directions, hidden])
    } else {
        ([steps, batch, input], [directions, batch, hidden])
    };
    let mut operands = vec![
        noise(&x),
        noise(&[directions, gates * hidden, input]),
        noise(&[directions, gates * hidden, hidden]),
        noise(&[directions, 2 * gates * hidden]),
        ends.map_or(Operand::Absent, lengths),
        noise(&state),
    ];
    if gates == 4 {
        operands.extend([noise(&state), noise(&[directions, 3 * hidden])]);
    }
    operands
}

fn gru(recurrent: &Recurrent, linear_before_reset: bool) -> Op {
    Op::Gru {
        recurrent: recurrent.clone(),
        linear_before_reset,
    }
}

#[test]
fn in_every_direction_and_layout() {
    let sizes = [3, 2, 3, 4];
    for direction in DIRECTIONS {
        for batch_first in [false, true] {
            let of = |activations| Recurrent {
                batch_first,
                ..attributes(sizes[3], direction, activations)
            };
            let (lstm, rest, one) = (of(&LSTM), of(&GRU), of(&[A::Tanh]));
            let given = operands(&lstm, 4, sizes, None);
            check_wanted(Op::Lstm(lstm), &given, &[true; 3]);
            for linear in [false, true] {
                let given = operands(&rest, 3, sizes, None);
                check_wanted(gru(&rest, linear), &given, &[true; 2]);
            }
            let given = operands(&one, 1, sizes, None);
            check_wanted(Op::Rnn(one), &given, &[true; 2]);
        }
    }
}

#[test]
fn sequences_of_different_lengths() {
    let sizes = [4, 4, 2, 3];
    let ends = [4, 0, 2, 1];
    for direction in DIRECTIONS {
        for batch_first in [false, true] {
            let of = |activations| Recurrent {
                batch_first,
                ..attributes(sizes[3], direction, activations)
            };
            let (lstm, rest, one) = (of(&LSTM), of(&GRU), of(&[A::Tanh]));
            let given = operands(&lstm, 4, sizes, Some(&ends));
            check_wanted(Op::Lstm(lstm), &given, &[true; 3]);
            for linear in [false, true] {
                let given = operands(&rest, 3, sizes, Some(&ends));
                check_wanted(gru(&rest, linear), &given, &[true; 2]);
            }
            let given = operands(&one, 1, sizes, Some(&ends));
            check_wanted(Op::Rnn(one), &given, &[true; 2]);
        }
    }
}

/// A loss that depends on some results only; the others are left out of the forward pass.
#[test]
fn any_results() {
    let sizes = [3, 2, 2, 3];
    let lstm = attributes(3, Direction::Bidirectional, &LSTM);
    for wanted in [
        [true, false, false],
        [false, true, false],
        [false, false, true],
        [true, false, true],
        [false, true, true],
    ] {
        let given = operands(&lstm, 4, sizes, None);
        check_wanted(Op::Lstm(lstm.clone()), &given, &wanted);
    }
    let rest = attributes(3, Direction::Reverse, &GRU);
    for wanted in [&[true][..], &[true, false], &[false, true]] {
        let given = operands(&rest, 3, sizes, None);
        check_wanted(gru(&rest, true), &given, wanted);
        check_wanted(gru(&rest, false), &given, wanted);
    }
}

#[test]
fn operands_left_out_or_frozen() {
    let sizes = [3, 2, 2, 3];
    let lstm = attributes(3, Direction::Bidirectional, &LSTM);
    let all = operands(&lstm, 4, sizes, None);
    // Neither bias, nor states, nor peepholes.
    check_wanted(Op::Lstm(lstm.clone()), &all[..3], &[true; 3]);
    let mut some = all.clone();
    some[5] = Operand::Absent;
    check_wanted(Op::Lstm(lstm.clone()), &some[..7], &[true; 3]);
    some[3] = Operand::Absent;
    some[6] = Operand::Absent;
    check_wanted(Op::Lstm(lstm.clone()), &some, &[true; 3]);
    // Each of them alone.
    for asked in [0, 1, 2, 3, 5, 6, 7] {
        let mut given: Vec<Operand> = all.iter().map(still).collect();
        given[asked] = all[asked].clone();
        check_wanted(Op::Lstm(lstm.clone()), &given, &[true; 3]);
    }
    let rest = attributes(3, Direction::Bidirectional, &GRU);
    let all = operands(&rest, 3, sizes, None);
    for linear in [false, true] {
        check_wanted(gru(&rest, linear), &all[..3], &[true; 2]);
        for asked in [0, 1, 2, 3, 5] {
            let mut given: Vec<Operand> = all.iter().map(still).collect();
            given[asked] = all[asked].clone();
            check_wanted(gru(&rest, linear), &given, &[true; 2]);
        }
    }
}

fn still(operand: &Operand) -> Operand {
    match operand {
        Operand::Float(shape, ..) => frozen(shape),
        other => other.clone(),
    }
}

#[test]
fn clipped_and_coupled() {
    let sizes = [4, 2, 3, 3];
    let plain = attributes(3, Direction::Bidirectional, &LSTM);
    for (clip, couple_input_forget) in [(Some(0.7), false), (None, true), (Some(0.9), true)] {
        let of = Recurrent {
            clip,
            couple_input_forget,
            ..plain.clone()
        };
        let given = operands(&of, 4, sizes, None);
        check_wanted(Op::Lstm(of), &given, &[true; 3]);
    }
    let of = Recurrent {
        clip: Some(0.6),
        ..attributes(3, Direction::Forward, &GRU)
    };
    for linear in [false, true] {
        let given = operands(&of, 3, sizes, None);
        check_wanted(gru(&of, linear), &given, &[true; 2]);
    }
    let of = Recurrent {
        clip: Some(0.6),
        ..attributes(3, Direction::Forward, &[A::Tanh])
    };
    let given = operands(&of, 1, sizes, None);
    check_wanted(Op::Rnn(of), &given, &[true; 2]);
}

#[test]
fn every_activation() {
    for activation in [
        A::Sigmoid,
        A::Tanh,
        A::Relu,
        A::LeakyRelu(0.1),
        A::Elu(0.7),
        A::HardSigmoid(0.2, 0.5),
        A::Softsign,
        A::Softplus,
        A::Affine(0.6, 0.1),
        A::ScaledTanh(0.8, 0.6),
    ] {
        let sizes = [3, 2, 3, 4];
        let of = attributes(4, Direction::Forward, &[activation]);
        let given = operands(&of, 1, sizes, None);
        check_wanted(Op::Rnn(of), &given, &[true; 2]);
    }
    // A jump in the forward pass: no element is near it in these steps.
    let of = attributes(4, Direction::Forward, &[A::ThresholdedRelu(0.3)]);
    let given = operands(&of, 1, [2, 2, 3, 4], None);
    check_wanted(Op::Rnn(of), &given, &[true; 2]);
    // Other functions than usual in each of the places.
    let of = Recurrent {
        activations: vec![
            A::HardSigmoid(0.2, 0.5),
            A::Softsign,
            A::ScaledTanh(0.8, 0.6),
            A::Sigmoid,
            A::Elu(0.5),
            A::Softplus,
        ],
        ..attributes(3, Direction::Bidirectional, &LSTM)
    };
    let given = operands(&of, 4, [3, 2, 2, 3], None);
    check_wanted(Op::Lstm(of), &given, &[true; 3]);
}

/// States wider than the runs of elements that sums are made of, with a rest; long sequences.
#[test]
fn wide_states() {
    for sizes in [[2, 1, 5, 19], [1, 2, 1, 33], [12, 1, 2, 3]] {
        let lstm = attributes(sizes[3], Direction::Forward, &LSTM);
        let given = operands(&lstm, 4, sizes, None);
        check_wanted(Op::Lstm(lstm), &given, &[true; 3]);
        let rest = attributes(sizes[3], Direction::Reverse, &GRU);
        for linear in [false, true] {
            let given = operands(&rest, 3, sizes, None);
            check_wanted(gru(&rest, linear), &given, &[true; 2]);
        }
    }
    let sizes = [40, 3, 24, 65];
    let lstm = attributes(sizes[3], Direction::Bidirectional, &LSTM);
    // Smaller weights, as large ones make sequences chaotic.
    let mut given = operands(&lstm, 4, sizes, Some(&[40, 7, 33]));
    for at in [1, 2] {
        if let Operand::Float(_, low, high) = &mut given[at] {
            (*low, *high) = (-0.1, 0.1);
        }
    }
    check_f32(Op::Lstm(lstm), &given, 3);
}

/// As many sequences and steps as it takes for f32 to multiply all sequences of a step at once, in every form; f64 never does.
#[test]
fn many_rows() {
    // Steps, sequences, elements of an input and of a state: runs of 16 with and without a rest, one element, one sequence.
    for (at, sizes) in [
        [5, 4, 3, 17],
        [4, 6, 2, 16],
        [16, 1, 2, 5],
        [3, 7, 4, 33],
        [8, 3, 2, 1],
    ]
    .into_iter()
    .enumerate()
    {
        let ends: Vec<i32> = (0..sizes[1])
            .map(|i| ((i * 2 + 1) % (sizes[0] + 1)) as i32)
            .collect();
        for direction in DIRECTIONS {
            let of = |activations| Recurrent {
                batch_first: at % 2 == 1,
                ..attributes(sizes[3], direction, activations)
            };
            for ends in [None, Some(&ends[..])] {
                let lstm = of(&LSTM);
                let given = operands(&lstm, 4, sizes, ends);
                check_f32(Op::Lstm(lstm), &given, 3);
                let rest = of(&GRU);
                for linear in [false, true] {
                    let given = operands(&rest, 3, sizes, ends);
                    check_f32(gru(&rest, linear), &given, 2);
                }
                let one = of(&[A::Tanh]);
                let given = operands(&one, 1, sizes, ends);
                check_f32(Op::Rnn(one), &given, 2);
            }
        }
    }
    // One whole comparison with differences, too.
    let sizes = [4, 4, 2, 5];
    let lstm = attributes(sizes[3], Direction::Bidirectional, &LSTM);
    let given = operands(&lstm, 4, sizes, Some(&[4, 1, 3, 0]));
    check_wanted(Op::Lstm(lstm), &given, &[true; 3]);
}
