//! What one hidden unit computes in one step.

use crate::elementwise::math::{sigmoid, softplus};
use crate::elementwise::unary::clamp;
use crate::nd::Ptr;
use crate::scalar::Num;
use neap_ir::op::RecurrentActivation;

/// Parameters of one direction.
pub(super) struct Unit<'a, T, S> {
    pub hidden: usize,
    pub gates: usize,
    pub clip: Option<f64>,
    pub couple: bool,
    /// `[gates * hidden][hidden]`
    pub weights: Ptr<T>,
    /// `[2][gates * hidden]`: of the input and of the state.
    pub bias: Option<Ptr<T>>,
    /// `[3][hidden]`: input, output, forget.
    pub peepholes: Option<Ptr<T>>,
    pub activations: &'a [RecurrentActivation],
    pub _sum: std::marker::PhantomData<S>,
}

/// Partial sums of a product with the state.
const LANES: usize = 16;

impl<T: Num, S: Num> Unit<'_, T, S> {
    /// Product of the state with row `j` of a gate's recurrent weights.
    pub fn state<H: Num>(&self, gate: usize, j: usize, h: &[H]) -> f64 {
        // SAFETY: the weights have a row of `hidden` elements for each unit of each gate.
        let row = unsafe {
            self.weights
                .slice((gate * self.hidden + j) * self.hidden, self.hidden)
        };
        let mut sums = [S::ZERO; LANES];
        let (rows, row_tail) = row.as_chunks::<LANES>();
        let (states, state_tail) = h.as_chunks::<LANES>();
        for (w, h) in rows.iter().zip(states) {
            for lane in 0..LANES {
                sums[lane] = sums[lane].add(w[lane].convert::<S>().mul(h[lane].convert()));
            }
        }
        for (lane, (w, h)) in row_tail.iter().zip(state_tail).enumerate() {
            sums[lane] = sums[lane].add(w.convert::<S>().mul(h.convert()));
        }
        sums.iter().map(|s| s.to_f64()).sum()
    }

    /// Bias of the input (`part` 0) or the state (1).
    pub fn bias(&self, part: usize, gate: usize, j: usize) -> f64 {
        let at = (part * self.gates + gate) * self.hidden + j;
        // SAFETY: there are two biases for each unit of each gate.
        self.bias.map_or(0.0, |b| unsafe { b.read(at) }.to_f64())
    }

    pub fn peephole(&self, which: usize, j: usize) -> f64 {
        // SAFETY: there are three peepholes for each unit.
        self.peepholes
            .map_or(0.0, |p| unsafe { p.read(which * self.hidden + j) }.to_f64())
    }

    /// Everything that goes into a gate except peepholes.
    fn sum(&self, gate: usize, j: usize, x: &[S], h: &[S]) -> f64 {
        x[gate * self.hidden + j].to_f64()
            + self.state(gate, j, h)
            + self.bias(0, gate, j)
            + self.bias(1, gate, j)
    }

    fn activate(&self, which: usize, v: f64) -> f64 {
        apply(self.activations[which], self.clipped(v))
    }

    /// What goes into a gate; NaN stays NaN.
    pub fn clipped(&self, v: f64) -> f64 {
        match self.clip {
            Some(limit) => clamp(v, -limit.abs(), limit.abs()),
            None => v,
        }
    }

    /// What an LSTM shows of its cell, and its derivative. A cell is not clipped: `clip` is of what goes into gates.
    pub fn shown(&self, cell: f64) -> [f64; 2] {
        let activation = self.activations[2];
        [apply(activation, cell), slope(activation, cell)]
    }

    /// An activation of a clipped sum, and its derivative by the sum as it was before: 0 at the limits.
    pub fn with_slope(&self, which: usize, clipped: f64) -> [f64; 2] {
        let activation = self.activations[which];
        let inside = self.clip.is_none_or(|limit| clipped.abs() < limit.abs());
        let slope = if inside {
            slope(activation, clipped)
        } else {
            0.0
        };
        [apply(activation, clipped), slope]
    }
}

/// The new state and cell.
pub(super) fn lstm<T: Num, S: Num>(
    unit: &Unit<T, S>,
    x: &[S],
    h: &[S],
    cell: S,
    j: usize,
) -> (S, S) {
    let old = cell.to_f64();
    let input = unit.activate(0, unit.sum(0, j, x, h) + unit.peephole(0, j) * old);
    let forget = if unit.couple {
        1.0 - input
    } else {
        unit.activate(0, unit.sum(2, j, x, h) + unit.peephole(2, j) * old)
    };
    let candidate = unit.activate(1, unit.sum(3, j, x, h));
    let new = forget * old + input * candidate;
    let output = unit.activate(0, unit.sum(1, j, x, h) + unit.peephole(1, j) * new);
    let state = output * unit.shown(new)[0];
    (S::from_f64(state), S::from_f64(new))
}

/// Update and reset gates.
pub(super) fn gru_gates<T: Num, S: Num>(unit: &Unit<T, S>, x: &[S], h: &[S], j: usize) -> [S; 2] {
    [0, 1].map(|gate| S::from_f64(unit.activate(0, unit.sum(gate, j, x, h))))
}

pub(super) fn gru<T: Num, S: Num>(
    unit: &Unit<T, S>,
    x: &[S],
    h: &[S],
    reset: &[S],
    update: S,
    linear_before_reset: bool,
    j: usize,
) -> S {
    let state = if linear_before_reset {
        reset[j].to_f64() * (unit.state(2, j, h) + unit.bias(1, 2, j))
    } else {
        unit.reset_state(j, h, reset) + unit.bias(1, 2, j)
    };
    let sum = x[2 * unit.hidden + j].to_f64() + unit.bias(0, 2, j) + state;
    let candidate = unit.activate(1, sum);
    let z = update.to_f64();
    S::from_f64((1.0 - z) * candidate + z * h[j].to_f64())
}

pub(super) fn rnn<T: Num, S: Num>(unit: &Unit<T, S>, x: &[S], h: &[S], j: usize) -> S {
    S::from_f64(unit.activate(0, unit.sum(0, j, x, h)))
}

impl<T: Num, S: Num> Unit<'_, T, S> {
    /// Product of the reset state with row `j` of the third gate's weights.
    fn reset_state(&self, j: usize, h: &[S], reset: &[S]) -> f64 {
        // SAFETY: as in `state`.
        let row = unsafe {
            self.weights
                .slice((2 * self.hidden + j) * self.hidden, self.hidden)
        };
        let terms = row.iter().zip(h).zip(reset);
        terms
            .map(|((w, h), r)| w.convert::<S>().mul(h.mul(*r)).to_f64())
            .sum()
    }
}

fn apply(activation: RecurrentActivation, x: f64) -> f64 {
    match activation {
        RecurrentActivation::Sigmoid => sigmoid(x),
        RecurrentActivation::Tanh => x.tanh(),
        RecurrentActivation::Relu if x < 0.0 => 0.0,
        RecurrentActivation::Relu => x,
        RecurrentActivation::LeakyRelu(alpha) if x < 0.0 => f64::from(alpha) * x,
        RecurrentActivation::LeakyRelu(_) => x,
        RecurrentActivation::ThresholdedRelu(alpha) if x > f64::from(alpha) => x,
        RecurrentActivation::ThresholdedRelu(_) => 0.0,
        RecurrentActivation::Elu(alpha) if x < 0.0 => f64::from(alpha) * x.exp_m1(),
        RecurrentActivation::Elu(_) => x,
        RecurrentActivation::HardSigmoid(alpha, beta) => {
            (f64::from(alpha) * x + f64::from(beta)).clamp(0.0, 1.0)
        }
        RecurrentActivation::Softsign => x / (1.0 + x.abs()),
        RecurrentActivation::Softplus => softplus(x),
        RecurrentActivation::Affine(alpha, beta) => f64::from(alpha) * x + f64::from(beta),
        RecurrentActivation::ScaledTanh(alpha, beta) => {
            f64::from(alpha) * (f64::from(beta) * x).tanh()
        }
    }
}

/// The derivative of [`apply`]. At a kink it is that of the side which the operand's own case belongs to.
fn slope(activation: RecurrentActivation, x: f64) -> f64 {
    let y = apply(activation, x);
    match activation {
        RecurrentActivation::Sigmoid => y * (1.0 - y),
        RecurrentActivation::Tanh => 1.0 - y * y,
        RecurrentActivation::Relu => f64::from(u8::from(x > 0.0)),
        RecurrentActivation::LeakyRelu(alpha) if x < 0.0 => f64::from(alpha),
        RecurrentActivation::LeakyRelu(_) => 1.0,
        RecurrentActivation::ThresholdedRelu(alpha) => f64::from(u8::from(x > f64::from(alpha))),
        RecurrentActivation::Elu(alpha) if x < 0.0 => y + f64::from(alpha),
        RecurrentActivation::Elu(_) => 1.0,
        RecurrentActivation::HardSigmoid(alpha, _) if 0.0 < y && y < 1.0 => f64::from(alpha),
        RecurrentActivation::HardSigmoid(..) => 0.0,
        RecurrentActivation::Softsign => 1.0 / (1.0 + x.abs()).powi(2),
        RecurrentActivation::Softplus => sigmoid(x),
        RecurrentActivation::Affine(alpha, _) => f64::from(alpha),
        RecurrentActivation::ScaledTanh(alpha, beta) => {
            let tanh = (f64::from(beta) * x).tanh();
            f64::from(alpha) * f64::from(beta) * (1.0 - tanh * tanh)
        }
    }
}
