//! Runs an operator: picks the implementation for its operands.

use crate::args::Args;
use crate::elementwise::{binary, cast, float8, quantize, select, unary};
use crate::kernel::Kernel;
use crate::movement::{gather, join, make, pad, scatter, view};
use crate::norm::{channel, lines, space};
use crate::product::{det, einsum, inverse, matmul};
use crate::reduce::{arg, fold, steps, topk};
use crate::window::{conv, pool};
use crate::{Context, OpError, PanelSlice, TensorMut, TensorRef};
use crate::{
    attention, bands, gradient, layer, layout, learned, recurrent, resize, sampling, spectrum,
};
use neap_ir::Op;

/// Computes `outputs` from `inputs`. `panels` is given for `Panel*` operators and selects the
/// output channels that this call writes.
///
/// Operands must have the types that [`neap_ir::infer::output_types`] and [`crate::supported`]
/// accepted: shapes are not checked again.
///
/// # Errors
/// [`OpError`] where an operand is missing, the workspace is too small, or the operator cannot be computed.
pub fn execute(
    op: &Op,
    inputs: &[Option<TensorRef>],
    panels: Option<PanelSlice>,
    outputs: &[Option<TensorMut>],
    ctx: &mut Context,
) -> Result<(), OpError> {
    let args = &Args {
        op: op.name(),
        inputs,
        outputs,
    };
    if outputs.iter().flatten().all(|y| y.elements() == 0) {
        // There is nothing to compute.
        return Ok(());
    }
    match op {
        Op::Unary(unary) => unary::unary(*unary, args, ctx),
        Op::Binary(binary) => binary::binary(*binary, args, ctx),
        Op::Clip { low, high } => unary::clip(*low, *high, args, ctx),
        Op::Where => select::select(args, ctx),
        Op::Cast { .. } => cast::cast(args, ctx),
        Op::BitCast { .. } => view::reshape(args, ctx),
        Op::Quantize { axis, .. } => quantize::quantize(*axis, args, ctx),
        Op::Dequantize { axis } => quantize::dequantize(*axis, args, ctx),
        Op::DequantizeBlocks { axis, block, .. } => {
            quantize::dequantize_blocks(*axis, *block, args, ctx)
        }
        Op::Nibbles { signed, .. } => quantize::nibbles(*signed, args, ctx),
        Op::Float8s { kind } => float8::widen(*kind, args, ctx),
        Op::CoveringSteps => steps::covering_steps(args, ctx),
        Op::RoundToFloat8 { kind, saturate } => float8::round(*kind, *saturate, args, ctx),

        Op::MatMul => matmul::matmul(args, ctx),
        Op::Gemm {
            alpha,
            beta,
            trans_a,
            trans_b,
        } => matmul::gemm(*alpha, *beta, [*trans_a, *trans_b], args, ctx),
        Op::Einsum { equation } => einsum::einsum(equation, args, ctx),
        Op::Det => det::det(args, ctx),
        Op::Inverse => inverse::inverse(args, ctx),
        Op::Dft(dft) => spectrum::dft(dft, args, ctx),
        Op::Stft(stft) => spectrum::stft(stft, args, ctx),

        Op::Reduce { kind, axes, .. } => fold::reduce(*kind, axes, args, ctx),
        Op::ArgReduce {
            largest,
            axis,
            select_last,
            ..
        } => arg::arg_reduce(*largest, *axis, *select_last, args, ctx),
        Op::TopK {
            axis,
            k,
            largest,
            sorted,
        } => topk::top_k(*axis, *k, *largest, *sorted, args, ctx),
        Op::CumSum {
            axis,
            exclusive,
            reverse,
        } => make::cum_sum(*axis, *exclusive, *reverse, args, ctx),

        Op::Softmax { axis, kind } => lines::softmax(*axis, *kind, args, ctx),
        Op::LayerNorm { axis, epsilon } => lines::layer_norm(*axis, *epsilon, true, args, ctx),
        Op::RmsNorm { axis, epsilon } => lines::layer_norm(*axis, *epsilon, false, args, ctx),
        Op::LpNorm { axis, p } => lines::lp_norm(*axis, *p, args, ctx),
        Op::BatchNorm { epsilon } => channel::batch_norm(*epsilon, args, ctx),
        Op::InstanceNorm { epsilon } => {
            let channels = args.input(0)?.shape()[1];
            channel::group_norm(channels, *epsilon, false, args, ctx)
        }
        Op::GroupNorm {
            groups,
            epsilon,
            per_group,
        } => channel::group_norm(*groups, *epsilon, *per_group, args, ctx),
        Op::Lrn {
            alpha,
            beta,
            bias,
            size,
        } => channel::lrn((*alpha, *beta, *bias), *size, args, ctx),
        Op::ScaleShift { activation } => channel::scale_shift(*activation, args, ctx),
        Op::Moments => space::moments(args, ctx),
        Op::NormFactors(norm) => space::factors(norm, args),
        Op::Normalise { activation, rows } => space::normalise(*activation, rows, args, ctx),
        Op::FoldPlaces(of) => space::fold(*of, args, ctx),
        Op::PoolPlaces(of) => space::pool(of, args),

        Op::PutRows(rows) => join::put(rows, args, ctx),
        Op::Rows(rows) => join::rows(rows, args, ctx),
        Op::Concat { axis } => join::concat(*axis, args, ctx),
        Op::Split { axis, sizes } => join::split(*axis, sizes, args, ctx),
        Op::Slice { ranges } => view::slice(ranges, args, ctx),
        Op::Reshape { .. } => view::reshape(args, ctx),
        Op::Transpose { perm } => view::transpose(perm, args, ctx),
        Op::Expand { .. } => view::expand(args, ctx),
        Op::Tile { repeats } => view::tile(repeats, args, ctx),
        Op::Pad { mode, pads } => pad::pad(*mode, pads, args, ctx),
        Op::Gather { axis } => gather::gather(*axis, args, ctx),
        Op::GatherElements { axis } => gather::gather_elements(*axis, args, ctx),
        Op::GatherNd { batch_dims } => gather::gather_nd(*batch_dims, args, ctx),
        Op::ScatterElements { axis, reduction } => {
            scatter::scatter_elements(*axis, *reduction, args, ctx)
        }
        Op::ScatterNd { reduction } => scatter::scatter_nd(*reduction, args, ctx),
        Op::DepthToSpace {
            block,
            column_row_depth,
        } => view::depth_to_space(*block, *column_row_depth, args, ctx),
        Op::SpaceToDepth { block } => view::space_to_depth(*block, args, ctx),
        Op::OneHot { axis, depth } => make::one_hot(*axis, *depth, args, ctx),
        Op::Trilu { upper, diagonal } => view::trilu(*upper, *diagonal, args, ctx),
        Op::ReverseSequence {
            batch_axis,
            time_axis,
        } => make::reverse_sequence(*batch_axis, *time_axis, args, ctx),
        Op::EyeLike { diagonal, .. } => make::eye_like(*diagonal, args, ctx),
        Op::Conv(window, groups) => conv::conv(window, *groups, args, ctx),
        Op::ConvTranspose { window, groups, .. } => {
            conv::conv_transpose(window, *groups, args, ctx)
        }
        Op::Pool { kind, window, .. } => pool::pool(*kind, window, args, ctx),
        Op::GlobalPool(kind) => pool::global_pool(*kind, args, ctx),

        Op::BatchNormTraining { epsilon } => gradient::batch_norm_training(*epsilon, args, ctx),
        Op::Dropout { ratio, generator } => gradient::dropout(*ratio, *generator, args, ctx),
        Op::Update(update) => gradient::update(*update, 0, args, ctx),
        Op::UpdatePart { update, start } => gradient::update(*update, *start, args, ctx),
        Op::Gradient(backward) => gradient::gradient(backward, args, ctx),

        Op::PanelConv(panel) => layer::panel_conv(panel, panels, args, ctx),
        Op::PanelDepthwise(panel) => layer::panel_depthwise(panel, panels, args, ctx),
        Op::PanelLinear(panel) => layer::panel_linear(panel, panels, args, ctx),
        Op::Bands(chain) => bands::bands(chain, Kernel::Direct, args, ctx),
        Op::Resize(attrs) => resize::resize(attrs, args, ctx),
        Op::ResizeStrip(strip) => resize::strip(strip, args, ctx),
        Op::Sampling(of) => sampling::sampling(of, args, ctx),
        Op::TfIdf(of) => learned::tf_idf(of, args, ctx),
        Op::Trees(of) => learned::trees(of, args, ctx),
        Op::Lstm(_) | Op::Gru { .. } | Op::Rnn(_) => recurrent::recurrent(op, args, ctx),
        Op::Attention(attrs) => attention::attention(attrs, args, ctx),
        Op::AttendKeys(of) => attention::over_keys(of, args, ctx),
        Op::Late(_) => {
            args.fail("has results of sizes that are known late: run it by `execute_late`")
        }
        Op::Reorder => layout::reorder(args, ctx),
        Op::GatherRows { .. } => args.fail("is the executor's to run"),
    }
}
