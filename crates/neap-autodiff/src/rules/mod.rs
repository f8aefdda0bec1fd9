//! For each operator, how the derivatives of its operands follow from those of its results.

mod attention;
mod elementwise;
mod indexing;
mod movement;
mod norm;
mod product;
mod recurrent;
mod reduce;
mod resize;
mod window;

use crate::error::AutodiffError;
use crate::step::{Derivatives, Step};
use neap_ir::gradient::Saved;
use neap_ir::op::Softmax;
use neap_ir::{Op, ValueId};

/// Inputs that a derivative may go to. None of operators whose derivative is 0 wherever it exists.
pub(crate) fn differentiable_inputs<'a>(
    op: &Op,
    inputs: &'a [Option<ValueId>],
) -> impl Iterator<Item = ValueId> + 'a {
    let flat = match op {
        Op::Unary(unary) => Saved::of(*unary).is_none(),
        Op::Binary(binary) => binary.gives_bool(),
        Op::ArgReduce { .. } | Op::EyeLike { .. } => true,
        Op::Softmax { kind, .. } => *kind == Softmax::Hardmax,
        _ => false,
    };
    let count = if flat { 0 } else { inputs.len() };
    inputs[..count].iter().flatten().copied()
}

/// The derivatives of a node's inputs; those not wanted may be left out.
pub(crate) fn backward(step: &mut Step) -> Derivatives {
    let op = &step.node.op;
    match op {
        Op::Unary(unary) => elementwise::unary(*unary, step),
        Op::Binary(binary) => elementwise::binary(*binary, step),
        Op::Clip { low, high } => elementwise::clip(*low, *high, step),
        Op::Where => elementwise::select(step),
        Op::Cast { .. } => elementwise::cast(step),

        Op::MatMul => product::matmul(step),
        Op::Gemm {
            alpha,
            beta,
            trans_a,
            trans_b,
        } => product::gemm(*alpha, *beta, [*trans_a, *trans_b], step),
        Op::Einsum { equation } => product::einsum(equation, step),

        Op::Reduce { kind, axes, .. } => reduce::reduce(*kind, axes, step),
        Op::CumSum {
            axis,
            exclusive,
            reverse,
        } => reduce::cum_sum(*axis, *exclusive, *reverse, step),
        Op::TopK { axis, .. } => indexing::top_k(*axis, step),

        Op::Softmax { axis, kind } => norm::softmax(*axis, *kind, step),
        Op::LpNorm { axis, p } => norm::lp_norm(*axis, *p, step),
        Op::Lrn {
            alpha,
            beta,
            bias,
            size,
        } => norm::lrn([*alpha, *beta, *bias], *size, step),
        Op::LayerNorm { axis, epsilon } => norm::layer_norm(*axis, *epsilon, step),
        Op::RmsNorm { axis, epsilon } => norm::rms_norm(*axis, *epsilon, step),
        Op::BatchNorm { epsilon } => norm::batch_norm(*epsilon, step),
        Op::BatchNormTraining { epsilon } => norm::batch_norm_training(*epsilon, step),
        Op::InstanceNorm { epsilon } => norm::group_norm(None, *epsilon, false, step),
        Op::GroupNorm {
            groups,
            epsilon,
            per_group,
        } => norm::group_norm(Some(*groups), *epsilon, *per_group, step),

        Op::Conv(window, groups) => window::conv(window, *groups, step),
        Op::ConvTranspose { window, groups, .. } => window::conv_transpose(window, *groups, step),
        Op::Pool { kind, window, .. } => window::pool(*kind, window, step),
        Op::GlobalPool(kind) => window::global_pool(*kind, step),

        Op::Concat { axis } => movement::concat(*axis, step),
        Op::Split { axis, sizes } => movement::split(*axis, sizes, step),
        Op::Slice { ranges } => movement::slice(ranges, step),
        Op::Reshape { .. } => movement::reshape(step),
        Op::Transpose { perm } => movement::transpose(perm, step),
        Op::Expand { .. } => movement::expand(step),
        Op::Tile { repeats } => movement::tile(repeats, step),
        Op::Pad { mode, pads } => movement::pad(*mode, pads, step),
        Op::DepthToSpace {
            block,
            column_row_depth,
        } => movement::depth_to_space(*block, *column_row_depth, step),
        Op::SpaceToDepth { block } => movement::space_to_depth(*block, step),
        Op::Trilu { .. } | Op::ReverseSequence { .. } | Op::Dropout { .. } => {
            movement::itself(step)
        }

        Op::Resize(attrs) => resize::resize(attrs, step),

        Op::Attention(attrs) => attention::attention(attrs, step),
        Op::Lstm(_) | Op::Gru { .. } | Op::Rnn(_) => recurrent::recurrent(step),

        Op::Gather { axis } => indexing::gather(*axis, step),
        Op::GatherElements { axis } => indexing::gather_elements(*axis, step),
        Op::GatherNd { batch_dims } => indexing::gather_nd(*batch_dims, step),
        Op::ScatterElements { axis, reduction } => {
            indexing::scatter_elements(*axis, *reduction, step)
        }
        Op::ScatterNd { reduction } => indexing::scatter_nd(*reduction, step),
        _ => Err(unknown(step)),
    }
}

fn unknown(step: &Step) -> AutodiffError {
    step.fail("its derivative is not known".into())
}
