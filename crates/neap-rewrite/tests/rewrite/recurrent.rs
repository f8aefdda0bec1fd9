//! Recurrent layers whose weights are stored in 8 bits.

use crate::build::Net;
use crate::lower::steps;
use neap_ir::op::{Direction, Op, Recurrent, RecurrentActivation, SliceRange};
use neap_ir::panel::PanelElement;
use neap_ir::recipe::PackedForm;
use neap_ir::{DType, Literal, ValueId};

const STEPS: usize = 3;
const INPUT: usize = 5;

fn layer(hidden: usize, gates: usize, directions: usize) -> Recurrent {
    use RecurrentActivation::{Sigmoid, Tanh};
    let each: &[RecurrentActivation] = match gates {
        4 => &[Sigmoid, Tanh, Tanh],
        3 => &[Sigmoid, Tanh],
        _ => &[Tanh],
    };
    Recurrent {
        hidden,
        direction: match directions {
            1 => Direction::Forward,
            _ => Direction::Bidirectional,
        },
        activations: each.repeat(directions),
        clip: None,
        couple_input_forget: false,
        batch_first: false,
        rounds_state: false,
        in_panels: false,
    }
}

fn bytes(net: &mut Net, dtype: DType, shape: &[usize]) -> ValueId {
    let count = shape.iter().product();
    let data: Vec<u8> = (0..count).map(|_| net.random.below(256) as u8).collect();
    let literal = Literal::from_bytes(dtype, shape, &data).expect("fits");
    net.graph.add_literal("steps", literal)
}

fn scales(net: &mut Net, count: usize) -> ValueId {
    let data: Vec<f32> = (0..count)
        .map(|_| 0.002 + 0.001 * net.random.float().abs())
        .collect();
    net.floats(&[count], &data)
}

/// Weights `[directions, outputs, k]` behind one DequantizeLinear: with a scale for all, for each direction, or for each output.
fn whole(net: &mut Net, shape: [usize; 3], axis: Option<usize>, dtype: DType) -> ValueId {
    let count = axis.map_or(1, |axis| shape[axis]);
    let (x, scale) = (bytes(net, dtype, &shape), scales(net, count));
    let zero = bytes(net, dtype, &[count]);
    let axis = axis.unwrap_or(1);
    net.op(Op::Dequantize { axis }, &[x, scale, zero])
}

/// Weights stored as `[directions, k, outputs]`, as onnxruntime's quantised LSTM has them: one direction after the other.
fn turned(net: &mut Net, [directions, outputs, k]: [usize; 3]) -> ValueId {
    let x = bytes(net, DType::I8, &[directions, k, outputs]);
    let parts: Vec<ValueId> = (0..directions)
        .map(|direction| {
            let range = |start: usize, len: usize| SliceRange {
                start,
                step: 1,
                len,
            };
            let ranges = vec![range(direction, 1), range(0, k), range(0, outputs)];
            let own = match directions {
                1 => x,
                _ => net.op(Op::Slice { ranges }, &[x]),
            };
            let scale = scales(net, outputs);
            let own = net.op(Op::Dequantize { axis: 2 }, &[own, scale]);
            net.transpose(own, &[0, 2, 1])
        })
        .collect();
    match parts[..] {
        [one] => one,
        _ => net.concat(0, &parts),
    }
}

fn op(gates: usize, recurrent: Recurrent) -> Op {
    match gates {
        4 => Op::Lstm(recurrent),
        3 => Op::Gru {
            recurrent,
            linear_before_reset: true,
        },
        _ => Op::Rnn(recurrent),
    }
}

/// Lowered, and compared with the graph as it was.
fn check(
    hidden: usize,
    gates: usize,
    directions: usize,
    weights: impl Fn(&mut Net, [usize; 3]) -> ValueId,
) -> bool {
    let mut net = Net::new();
    let x = net.input(&[STEPS, 2, INPUT]);
    let outputs = gates * hidden;
    let w = weights(&mut net, [directions, outputs, INPUT]);
    let r = weights(&mut net, [directions, outputs, hidden]);
    let b = net.weight(&[directions, 2 * outputs], 0.1);
    let y = net.op(op(gates, layer(hidden, gates, directions)), &[x, w, r, b]);
    net.output(y);
    let lowered = net.lower();
    let found = lowered
        .program
        .graph
        .nodes
        .iter()
        .any(|node| match &node.op {
            Op::Lstm(of) | Op::Gru { recurrent: of, .. } | Op::Rnn(of) => of.in_panels,
            _ => false,
        });
    let packed = &lowered.program.packed;
    let narrow = packed.iter().filter(|p| {
        matches!(&p.form, PackedForm::Panels { format, .. } if format.element == PanelElement::I8)
    });
    assert_eq!(narrow.count(), if found { 2 * directions } else { 0 });
    // Small weights of other layers are widened when the model is packed.
    assert!(
        !found || steps(&lowered).len() == 1,
        "{:?}",
        steps(&lowered)
    );
    found
}

#[test]
fn weights_of_recurrent_layers_stay_in_8_bits() {
    for directions in [1, 2] {
        for gates in [4, 3, 1] {
            for dtype in [DType::I8, DType::U8] {
                for axis in [None, Some(0), Some(1)] {
                    let weights = |net: &mut Net, shape| whole(net, shape, axis, dtype);
                    assert!(check(16, gates, directions, weights), "{gates} {axis:?}");
                }
            }
            assert!(check(32, gates, directions, turned), "{gates}, turned");
        }
    }
}

#[test]
fn others_are_widened() {
    // A hidden size that is no multiple of 16, scales along k, and weights of which one is not stored in 8 bits.
    let by_output = |net: &mut Net, shape| whole(net, shape, Some(1), DType::I8);
    assert!(!check(20, 4, 1, by_output));
    let by_k = |net: &mut Net, shape| whole(net, shape, Some(2), DType::I8);
    assert!(!check(16, 4, 1, by_k));
    let mixed = |net: &mut Net, shape: [usize; 3]| match shape[2] {
        INPUT => whole(net, shape, None, DType::I8),
        _ => net.weight(&shape, 0.2),
    };
    assert!(!check(16, 3, 1, mixed));
}
