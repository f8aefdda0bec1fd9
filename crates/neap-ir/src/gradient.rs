//! Operators of backward passes, where operators of forward passes are not exact or need far more memory.
//!
//! Written `dy` is the derivative of the loss with respect to a forward operator's result, `dx` that with
//! respect to its operand. Every operator computes `dx` from `dy` and what it names of the forward pass.

use crate::op::{Activation, AttentionAttrs, Recurrent, ResizeAttrs, Unary, Window};
use serde::{Deserialize, Serialize};

/// A backward operator. Inputs and outputs are listed in order; a left-out output is not computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Gradient {
    /// x or y as `saved` says, dy → dx.
    Unary { unary: Unary, saved: Saved },
    /// y, dy → dx: dy where `low < y < high`, else 0.
    Clip { low: Option<f64>, high: Option<f64> },
    /// y, dy → dx; y is the logarithm's where `log`.
    Softmax { axis: usize, log: bool },
    /// x, scale, dy → dx, dscale, dbias. Scale has the shape of the axes `axis..`.
    LayerNorm { axis: usize, epsilon: f32 },
    /// x, scale, dy → dx, dscale. Scale has the shape of the axes `axis..`.
    RmsNorm { axis: usize, epsilon: f32 },
    /// x, scale, mean, variance, dy → dx, dscale, dbias: of normalisation by the batch's own mean and
    /// (biased) variance, all `[C]` ([`crate::Op::BatchNormTraining`]).
    BatchNorm { epsilon: f32 },
    /// x `[N,C,spatial...]`, dy `[N,M,spatial...]` → dw `[M,C/groups,kernel...]`, of a convolution.
    ConvWeight { window: Window, groups: usize },
    /// x, dy → dx: each dy goes to the first largest element of its window.
    MaxPool { window: Window },
    /// dy → dx.
    AveragePool {
        window: Window,
        count_include_pad: bool,
        input_spatial: Vec<usize>,
    },
    /// projected, r, bias, lengths, initial h, initial c, peepholes, dY, dY_h, dY_c → dprojected, h, dh, c, dc, dpeepholes.
    /// Only projected and r are always there; results from dh on may be left out, but not c.
    ///
    /// `projected` is x times w, of all directions: `[T,N,D*4*H]`, or `[N,T,..]` as x is. `dprojected` is the derivative by
    /// that, so by each gate's sum of terms. `h` is the state that each step began with, `c` the cell that it ended with:
    /// `[T,N,D*H]`. All are zero past a sequence's end. Derivatives of weights are products of these over all steps.
    Lstm(Recurrent),
    /// The same without cells and peepholes: operands are at the same places, those left out. Results are dprojected, h, dh, reset.
    /// `reset` `[T,N,D*H]` meets the third gate's rows of r: with `linear_before_reset` it is the derivative by their product
    /// with h, otherwise the state after its reset.
    Gru {
        recurrent: Recurrent,
        linear_before_reset: bool,
    },
    /// As a GRU's, without `reset`.
    Rnn(Recurrent),
    /// q, k, v, optional mask, dy → dq, dk, dv, and the derivative by all scores `[B,H,Q,K]`, which a mask's is a sum of.
    /// Operands have the forward operator's layouts, derivatives those of what they belong to; columns of a packed row that are
    /// another operand's are 0.
    Attention(AttentionAttrs),
    /// dy → dx, of a resize along one axis, which had so many elements before.
    Resize {
        attrs: ResizeAttrs,
        axis: usize,
        input: usize,
    },
    /// x `[rows,n]`, dy `[rows]` → dx, of each row's product.
    Product,
}

/// What of the forward pass a derivative is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Saved {
    Operand,
    /// Often needed later anyway, and the operand's memory may hold it.
    Result,
}

impl Gradient {
    pub fn name(&self) -> &'static str {
        match self {
            Gradient::Unary { .. } => "UnaryGradient",
            Gradient::Clip { .. } => "ClipGradient",
            Gradient::Softmax { .. } => "SoftmaxGradient",
            Gradient::LayerNorm { .. } => "LayerNormalizationGradient",
            Gradient::RmsNorm { .. } => "RMSNormalizationGradient",
            Gradient::BatchNorm { .. } => "BatchNormalizationGradient",
            Gradient::ConvWeight { .. } => "ConvWeightGradient",
            Gradient::MaxPool { .. } => "MaxPoolGradient",
            Gradient::AveragePool { .. } => "AveragePoolGradient",
            Gradient::Lstm(_) => "LSTMGradient",
            Gradient::Gru { .. } => "GRUGradient",
            Gradient::Rnn(_) => "RNNGradient",
            Gradient::Attention(_) => "AttentionGradient",
            Gradient::Resize { .. } => "ResizeGradient",
            Gradient::Product => "ProductGradient",
        }
    }
}

impl Saved {
    /// What [`Gradient::Unary`] needs of a function: its result where that says as much as its operand. `None` for
    /// functions whose derivative is 0 wherever it exists, or that give no floating-point numbers.
    pub fn of(unary: Unary) -> Option<Saved> {
        Some(match unary {
            Unary::Floor | Unary::Ceil | Unary::Round | Unary::Sign => return None,
            Unary::Not | Unary::BitwiseNot | Unary::IsNan | Unary::IsInf { .. } => return None,
            Unary::Sqrt | Unary::Reciprocal | Unary::Exp | Unary::Tan | Unary::Tanh => {
                Saved::Result
            }
            Unary::Neg | Unary::Identity => Saved::Result,
            Unary::Activation(
                Activation::None
                | Activation::Relu
                | Activation::Clip { .. }
                | Activation::Sigmoid
                | Activation::HardSigmoid { .. }
                | Activation::Tanh,
            ) => Saved::Result,
            _ => Saved::Operand,
        })
    }
}
