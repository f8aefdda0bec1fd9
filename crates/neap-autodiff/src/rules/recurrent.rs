//! LSTM, GRU and RNN.
//!
//! ```text
//!   x ──► x W ──► LSTMGradient ◄── R, bias, initial states, dY …
//!                   │ ├► dh, dc, dpeepholes
//!                   │ └► h: the state that each step began with
//!                   └► dA: by each gate's sum of terms, for all steps
//!   dx = dA W     dW = dAᵀ x     dR = dAᵀ h     dbias = Σ dA
//! ```
//! Gates are computed again, not kept: the forward pass keeps nothing but its operands. What is a product over all steps is an
//! operator of its own, so it runs on the kernels of products, and its memory is planned.

use super::product::gemm_op;
use crate::emit::{Emit, Made};
use crate::error::AutodiffError;
use crate::step::{Derivatives, Step};
use neap_ir::op::{Recurrent, Reduce};
use neap_ir::{Gradient, Op, ValueId};

/// Positions of an LSTM's operands.
const X: usize = 0;
const W: usize = 1;
const R: usize = 2;
const BIAS: usize = 3;
const LENGTHS: usize = 4;
const H: usize = 5;
const C: usize = 6;
const PEEPHOLES: usize = 7;

pub(super) fn recurrent(step: &mut Step) -> Derivatives {
    let (op, gates) = operator(step)?;
    let (x, w, r) = (step.input(X)?, step.input(W)?, step.input(R)?);
    let wants: Vec<bool> = (0..8).map(|i| step.wants(i)).collect();
    let optional = |i: usize| step.node.input(i);
    let result = |i: usize| step.results.get(i).copied().flatten();
    let mut operands = vec![
        None,
        Some(r),
        optional(BIAS),
        optional(LENGTHS),
        optional(H),
    ];
    let is_lstm = matches!(op, Gradient::Lstm(_));
    let of_lstm = |operand: Option<ValueId>| operand.filter(|_| is_lstm);
    operands.extend([of_lstm(optional(C)), of_lstm(optional(PEEPHOLES))]);
    operands.extend([result(0), result(1), of_lstm(result(2))]);

    let emit = &mut *step.emit;
    let (x_shape, w_shape, r_shape) = (emit.shape(x), emit.shape(w), emit.shape(r));
    let sizes = Sizes {
        directions: w_shape[0],
        gates,
        hidden: r_shape[2],
        steps: x_shape[0] * x_shape[1],
    };
    let width = sizes.directions * gates * sizes.hidden;
    let flat_x = emit.reshape(x, &[sizes.steps, x_shape[2]])?;
    let flat_w = emit.reshape(w, &[width, x_shape[2]])?;
    let projected = emit.op(gemm_op(1.0, false, true), &[flat_x, flat_w])?;
    operands[0] = Some(emit.reshape(projected, &[x_shape[0], x_shape[1], width])?);

    let linear = matches!(
        op,
        Gradient::Gru {
            linear_before_reset: true,
            ..
        }
    );
    let wanted = [true, true, wants[H], true, wants[C], wants[PEEPHOLES]];
    let count = match op {
        Gradient::Lstm(_) => 6,
        Gradient::Gru { .. } => 4,
        _ => 3,
    };
    let made = emit.node(Op::Gradient(op), operands, &wanted[..count])?;
    let given = |i: usize| made.get(i).copied().flatten();
    let (Some(d), Some(states)) = (given(0), given(1)) else {
        return Err(AutodiffError::Request(
            "a backward pass without results".into(),
        ));
    };
    let d = emit.reshape(d, &[sizes.steps, width])?;
    let states = emit.reshape(states, &[sizes.steps, sizes.directions * sizes.hidden])?;
    let reset = match given(3).filter(|_| gates == GRU_GATES) {
        Some(v) => Some(emit.reshape(v, &[sizes.steps, sizes.directions * sizes.hidden])?),
        None => None,
    };
    let parts = Parts {
        d,
        states,
        reset,
        linear,
    };

    let mut derivatives = vec![None; 8];
    if wants[X] {
        let dx = emit.op(gemm_op(1.0, false, false), &[d, flat_w])?;
        derivatives[X] = Some(emit.reshape(dx, &x_shape)?);
    }
    if wants[W] {
        let dw = emit.op(gemm_op(1.0, true, false), &[d, flat_x])?;
        derivatives[W] = Some(emit.reshape(dw, &w_shape)?);
    }
    if wants[R] {
        let dr = parts.by_states(&sizes, emit)?;
        derivatives[R] = Some(emit.reshape(dr, &r_shape)?);
    }
    if wants[BIAS] {
        derivatives[BIAS] = Some(parts.by_bias(&sizes, emit)?);
    }
    (derivatives[H], derivatives[C]) = (given(2), given(4));
    derivatives[PEEPHOLES] = given(5);
    Ok(derivatives)
}

const GRU_GATES: usize = 3;

/// The backward operator and how many gates there are.
fn operator(step: &Step) -> Result<(Gradient, usize), AutodiffError> {
    let checked = |recurrent: &Recurrent| match recurrent.rounds_state {
        true => Err(step.fail("its state is rounded".into())),
        false => Ok(recurrent.clone()),
    };
    Ok(match &step.node.op {
        Op::Lstm(recurrent) => (Gradient::Lstm(checked(recurrent)?), 4),
        Op::Gru {
            recurrent,
            linear_before_reset,
        } => {
            let gradient = Gradient::Gru {
                recurrent: checked(recurrent)?,
                linear_before_reset: *linear_before_reset,
            };
            (gradient, GRU_GATES)
        }
        Op::Rnn(recurrent) => (Gradient::Rnn(checked(recurrent)?), 1),
        _ => return Err(step.fail("it is not recurrent".into())),
    })
}

struct Sizes {
    directions: usize,
    gates: usize,
    hidden: usize,
    /// Of all sequences.
    steps: usize,
}

/// What the backward operator gives, one row for each step.
struct Parts {
    d: ValueId,
    states: ValueId,
    /// A GRU's: what meets the third gate's weights.
    reset: Option<ValueId>,
    /// Whether that is a derivative, not a state.
    linear: bool,
}

impl Parts {
    /// Weights of the state.
    fn by_states(&self, sizes: &Sizes, emit: &mut Emit) -> Made {
        let (gates, hidden) = (sizes.gates, sizes.hidden);
        let product = gemm_op(1.0, true, false);
        let mut parts = Vec::new();
        for direction in 0..sizes.directions {
            let first = direction * gates * hidden;
            let state = columns(emit, self.states, direction * hidden, hidden)?;
            let Some(reset) = self.reset else {
                let d = columns(emit, self.d, first, gates * hidden)?;
                parts.push(emit.op(product.clone(), &[d, state])?);
                continue;
            };
            let d = columns(emit, self.d, first, 2 * hidden)?;
            parts.push(emit.op(product.clone(), &[d, state])?);
            let reset = columns(emit, reset, direction * hidden, hidden)?;
            let pair = if self.linear {
                [reset, state]
            } else {
                [columns(emit, self.d, first + 2 * hidden, hidden)?, reset]
            };
            parts.push(emit.op(product.clone(), &pair)?);
        }
        joined(emit, 0, &parts)
    }

    /// The bias of the input and that of the state, which differ for a GRU that is linear before its reset.
    fn by_bias(&self, sizes: &Sizes, emit: &mut Emit) -> Made {
        let (directions, hidden) = (sizes.directions, sizes.hidden);
        let sums = emit.reduce(Reduce::Sum, self.d, &[0], false)?;
        let sums = emit.reshape(sums, &[directions, sizes.gates * hidden])?;
        let of_state = match self.reset.filter(|_| self.linear) {
            Some(reset) => {
                let third = emit.reduce(Reduce::Sum, reset, &[0], false)?;
                let third = emit.reshape(third, &[directions, hidden])?;
                let others = emit.part(sums, 1, 0, 2 * hidden)?;
                joined(emit, 1, &[others, third])?
            }
            None => sums,
        };
        joined(emit, 1, &[sums, of_state])
    }
}

/// Some columns of a matrix; itself if they are all.
fn columns(emit: &mut Emit, x: ValueId, first: usize, count: usize) -> Made {
    if emit.shape(x)[1] == count {
        return Ok(x);
    }
    emit.part(x, 1, first, count)
}

fn joined(emit: &mut Emit, axis: usize, parts: &[ValueId]) -> Made {
    match parts {
        [one] => Ok(*one),
        _ => emit.op(Op::Concat { axis }, parts),
    }
}
