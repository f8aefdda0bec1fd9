//! Recurrent layers with weights in panels of 8 bits, against the same layers with these weights as floats.

use crate::recurrent::{Case, Extras, PLAIN, SIGMOID, TANH, Threads};
use crate::recurrent::{attributes, directions, operands, run};
use crate::support::*;
use neap_ir::op::{Direction, Recurrent, RecurrentActivation};
use neap_ir::{Literal, Op};
use neap_kernels::panel::{Affine, Format, Scales, narrow, pack_rows, panel_floats};
use neap_kernels::parallel::Serial;
use neap_kernels::simd::Isa;

const CASES: [Case; 5] = {
    let small = Case {
        steps: 4,
        batch: 1,
        input: 7,
        hidden: 16,
        direction: Direction::Forward,
        batch_first: false,
        lengths: false,
    };
    [
        small,
        // More sequences than are multiplied in integers, ending at different steps.
        Case {
            batch: 6,
            hidden: 48,
            direction: Direction::Bidirectional,
            lengths: true,
            ..small
        },
        Case {
            batch: 3,
            input: 1,
            hidden: 32,
            batch_first: true,
            direction: Direction::Reverse,
            ..small
        },
        // Steps that are cut into tasks.
        Case {
            steps: 3,
            input: 33,
            hidden: 304,
            direction: Direction::Bidirectional,
            ..small
        },
        Case { steps: 0, ..small },
    ]
};

/// A direction's matrix on steps: panels, and the floats that they stand for.
fn stored(weights: &[f32], outputs: usize, k: usize, seed: usize) -> (Literal, Vec<f32>) {
    let scale: Vec<f32> = (0..outputs)
        .map(|o| 0.004 + 0.0001 * ((o + seed) % 7) as f32)
        .collect();
    let zero: Vec<f32> = (0..outputs)
        .map(|o| ((o + seed) % 5) as f32 - 2.0)
        .collect();
    let step = |at: usize| {
        let o = at / k;
        // No negative zero, which bytes do not have.
        ((weights[at] / scale[o]).round() + zero[o]).clamp(-128.0, 127.0) + 0.0
    };
    let steps: Vec<f32> = (0..outputs * k).map(step).collect();
    let floats = (0..outputs * k).map(|at| (steps[at] - zero[at / k]) * scale[at / k]);
    let count = outputs / 16;
    let mut wide = vec![0.0; count * panel_floats(k)];
    pack_rows(outputs, k, 0..count, &steps, Affine::default(), &mut wide).expect("packs");
    let mut bytes = vec![0; count * Format::I8.panel_bytes(k).expect("fits")];
    let scales = Scales {
        scale: Some(&scale),
        zero: Some(&zero),
    };
    narrow(Format::I8, outputs, k, 0..count, &wide, scales, &mut bytes).expect("narrows");
    let ty = Recurrent::panel_type(outputs, k).expect("fits");
    (u8s(&ty.shape, &bytes), floats.collect())
}

/// Operands with panels, and with the floats that they stand for.
fn both(case: &Case, gates: usize, cells: bool, extras: &Extras) -> [Vec<Option<Literal>>; 2] {
    let mut wide = operands(case, gates, cells, extras);
    let mut narrow = wide.clone();
    narrow.resize(10, None);
    let outputs = gates * case.hidden;
    for (at, k) in [(1, case.input), (2, case.hidden)] {
        let mut all = Vec::new();
        let weights = values(wide[at].as_ref().unwrap()).to_vec();
        for direction in 0..directions(case) {
            let own = &weights[direction * outputs * k..][..outputs * k];
            let (panels, floats) = stored(own, outputs, k, at + direction);
            narrow[Recurrent::PANELS[direction][at - 1]] = Some(panels);
            all.extend(floats);
        }
        wide[at] = Some(f32s(&[directions(case), outputs, k], &all));
    }
    [narrow, wide]
}

fn in_panels(op: &Op) -> Op {
    let mut op = op.clone();
    match &mut op {
        Op::Lstm(of) | Op::Gru { recurrent: of, .. } | Op::Rnn(of) => of.in_panels = true,
        _ => unreachable!(),
    }
    op
}

fn check(op: &Op, gates: usize, cells: bool, case: &Case, extras: &Extras, tolerance: f64) {
    let [narrow, wide] = both(case, gates, cells, extras);
    assert!(neap_ops::takes_panels(op));
    let expected = run(op, &wide, case, cells, Isa::detect(), &Serial);
    let op = in_panels(op);
    let first = run(&op, &narrow, case, cells, Isa::detect(), &Serial);
    for isa in Isa::available() {
        let found = run(&op, &narrow, case, cells, isa, &Serial);
        for (a, b) in found.iter().flatten().zip(expected.iter().flatten()) {
            let near = (a - b).abs() <= tolerance * b.abs().max(1.0);
            assert!(near, "{} {case:?}: {a} where {b} is expected", isa.name());
        }
        // Portable Rust rounds a product before it adds it.
        assert!(
            found == first || isa.name() == "portable",
            "{} {case:?}",
            isa.name()
        );
        for threads in [2, 3] {
            let again = run(&op, &narrow, case, cells, isa, &Threads(threads));
            assert!(found == again, "{} {case:?}: {threads} threads", isa.name());
        }
    }
}

#[test]
fn lstm_with_panels() {
    let extras = Extras {
        couple: true,
        peepholes: true,
        clip: Some(0.9),
        ..PLAIN
    };
    for case in &CASES {
        for extras in [PLAIN, extras] {
            let op = Op::Lstm(attributes(case, &[SIGMOID, TANH, TANH], &extras));
            check(&op, 4, true, case, &extras, 1e-5);
        }
    }
}

#[test]
fn lstm_with_panels_and_a_rounded_state() {
    let extras = Extras {
        rounds: true,
        ..PLAIN
    };
    for case in &CASES {
        let op = Op::Lstm(attributes(case, &[SIGMOID, TANH, TANH], &extras));
        // A value between two steps may go to either.
        check(&op, 4, true, case, &extras, 5e-3);
    }
}

#[test]
fn gru_and_rnn_with_panels() {
    for case in &CASES {
        for linear_before_reset in [false, true] {
            let op = Op::Gru {
                recurrent: attributes(case, &[SIGMOID, TANH], &PLAIN),
                linear_before_reset,
            };
            check(&op, 3, false, case, &PLAIN, 1e-5);
        }
        let op = Op::Rnn(attributes(case, &[TANH], &PLAIN));
        check(&op, 1, false, case, &PLAIN, 1e-5);
    }
}

#[test]
fn a_state_that_is_no_number_stays_none() {
    let case = Case {
        batch: 2,
        ..CASES[0]
    };
    let extras = Extras {
        rounds: true,
        ..PLAIN
    };
    let op = Op::Lstm(attributes(&case, &[SIGMOID, TANH, TANH], &extras));
    let [mut narrow, _] = both(&case, 4, true, &extras);
    let mut state = vec![0.25; 2 * case.hidden];
    state[3] = f32::NAN;
    narrow[5] = Some(f32s(&[1, 2, case.hidden], &state));
    let found = run(
        &in_panels(&op),
        &narrow,
        &case,
        true,
        Isa::detect(),
        &Serial,
    );
    let (first, second) = found[1].split_at(case.hidden);
    assert!(first.iter().all(|x| x.is_nan()) && second.iter().all(|x| x.is_finite()));
}

#[test]
fn other_sizes_and_activations_have_no_panels() {
    let odd = Case {
        hidden: 20,
        ..CASES[0]
    };
    assert!(!neap_ops::takes_panels(&Op::Rnn(attributes(
        &odd,
        &[TANH],
        &PLAIN
    ))));
    let affine = RecurrentActivation::Affine(0.5, 0.1);
    let op = Op::Rnn(attributes(&CASES[0], &[affine], &PLAIN));
    assert!(!neap_ops::takes_panels(&op));
    let [narrow, _] = both(&CASES[0], 1, false, &PLAIN);
    let inputs: Vec<Option<&Literal>> = narrow.iter().map(Option::as_ref).collect();
    assert!(neap_ops::evaluate_outputs(&in_panels(&op), &inputs, 1).is_err());
}
