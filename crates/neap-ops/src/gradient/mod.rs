//! Operators of training: backward passes, updates, dropout. All take plain tensors.
//!
//! Any float type is computed in f64, and f32 weights of convolutions in matrix products. Sums over rows or images
//! are added by one task each, so that results do not depend on the number of workers.

mod attention;
mod channel;
mod dropout;
mod elementwise;
mod pool;
mod rows;
mod update;

pub(crate) use channel::batch_norm_training;
pub(crate) use dropout::dropout;
pub(crate) use update::update;

use crate::args::{Args, scratch_bytes};
use crate::window::weight_gradient;
use crate::{Context, OpError, recurrent, resize};
use neap_ir::infer::AttentionDims;
use neap_ir::{Gradient, TensorType};

pub(crate) fn gradient(gradient: &Gradient, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    match gradient {
        Gradient::Unary { unary, saved } => elementwise::unary(*unary, *saved, args, ctx),
        Gradient::Clip { low, high } => elementwise::clip(*low, *high, args, ctx),
        Gradient::Softmax { axis, log } => rows::softmax(*axis, *log, args, ctx),
        Gradient::LayerNorm { axis, epsilon } => rows::norm(*axis, *epsilon, true, args, ctx),
        Gradient::RmsNorm { axis, epsilon } => rows::norm(*axis, *epsilon, false, args, ctx),
        Gradient::BatchNorm { epsilon } => channel::batch_norm(*epsilon, args, ctx),
        Gradient::ConvWeight { window, groups } => {
            weight_gradient::conv_weight(window, *groups, args, ctx)
        }
        Gradient::MaxPool { window } => pool::max(window, args, ctx),
        Gradient::AveragePool {
            window,
            count_include_pad,
            ..
        } => pool::average(window, *count_include_pad, args, ctx),
        Gradient::Lstm(_) | Gradient::Gru { .. } | Gradient::Rnn(_) => {
            recurrent::backward(gradient, args, ctx)
        }
        Gradient::Attention(attrs) => attention::attention(attrs, args, ctx),
        Gradient::Resize { attrs, axis, input } => {
            resize::backward(attrs, *axis, *input, args, ctx)
        }
        Gradient::Product => rows::product(args, ctx),
    }
}

/// Scratch for operands of these shapes, of which `x` is the first.
pub(crate) fn workspace_bytes<'a>(
    gradient: &Gradient,
    x: &TensorType,
    shape: &dyn Fn(usize) -> &'a [usize],
    workers: usize,
) -> usize {
    match gradient {
        Gradient::LayerNorm { axis, .. } | Gradient::RmsNorm { axis, .. } => {
            let rows: usize = x.shape[..*axis].iter().product();
            scratch_bytes::<f64>(rows.saturating_mul(rows::STATISTICS))
        }
        Gradient::ConvWeight { window, groups } => {
            weight_gradient::workspace_bytes(window, *groups, x, shape(1), workers)
        }
        Gradient::Lstm(_) | Gradient::Gru { .. } | Gradient::Rnn(_) => {
            recurrent::backward_workspace_bytes(gradient, x)
        }
        Gradient::Attention(attrs) => AttentionDims::of(attrs, shape(0), shape(1), shape(2))
            .map_or(0, |dims| attention::workspace_bytes(&dims, workers)),
        Gradient::Resize { attrs, axis, input } => {
            resize::backward_workspace_bytes(attrs, *axis, *input, workers)
        }
        _ => 0,
    }
}

/// Says for which types there is no implementation.
pub(crate) fn supported(gradient: &Gradient, x: &TensorType) -> Result<(), String> {
    match gradient {
        Gradient::ConvWeight { window, .. }
        | Gradient::MaxPool { window }
        | Gradient::AveragePool { window, .. }
            if window.kernel.len() > crate::window::MAX_SPATIAL =>
        {
            Err(format!("for rank {}", x.shape.len()))
        }
        Gradient::Resize { attrs, axis, input } => resize::backward_supported(attrs, *axis, *input),
        _ => Ok(()),
    }
}
