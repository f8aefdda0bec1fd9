//! Which dispatches compute a job: what each operator means to the kernels.

mod element;
mod fold;
mod gather;
mod layer;
mod mixed;
mod movement;
mod product;
mod resize;
mod strided;
mod winograd;

pub(crate) use winograd::Gain;

use crate::dispatch::{Dispatch, Panels, Span};
use crate::kernel::Kernels;
use crate::limits::Limits;
use crate::tiles::Way;
use neap_ir::op::Unary;
use neap_ir::{DType, Layout, Op};
use neap_ops::{Choice, TensorMut, TensorRef};
use std::cell::RefCell;

/// A job, as far as dispatches follow from it.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    pub op: &'a Op,
    pub inputs: &'a [Option<TensorRef<'a>>],
    pub outputs: &'a [Option<TensorMut<'a>>],
    pub panels: Option<Panels>,
    /// Memory of the job's own, for kernels that are chosen with it.
    pub scratch: Option<Span>,
    pub limits: &'a Limits,
    /// Those that there are.
    pub kernels: Kernels,
    pub way: Way,
    /// Room for a table that a dispatch reads, until the call's dispatches are queued.
    pub table: &'a RefCell<Vec<u32>>,
}

/// Lists the dispatches that compute a job, one after the other; `None`, and no meaning of the list, where the processor
/// must. None of them are needed where results are in their place already.
pub(crate) fn dispatches(call: &Call, choice: Choice, out: &mut Vec<Dispatch>) -> Option<()> {
    out.clear();
    match (choice, call.op) {
        (Choice::DEVICE_WINOGRAD, Op::PanelConv(conv)) => winograd::conv(conv, call, out)?,
        _ if choice == Choice::default() => listed(call, out)?,
        _ => return None,
    }
    out.iter()
        .all(|one| call.kernels.has(one.kernel))
        .then_some(())
}

/// What a job gains by scratch of at most so many bytes, if it does.
pub(crate) fn gain(call: &Call, room_bytes: u64) -> Option<Gain> {
    match call.op {
        Op::PanelConv(conv) => winograd::gain(conv, call, room_bytes),
        _ => None,
    }
}

/// What a convolution takes, about, by its direct kernel; 0 for others.
pub(crate) fn convolution_ns(call: &Call) -> u64 {
    match call.op {
        Op::PanelConv(conv) => winograd::direct_ns(conv, call),
        _ => 0,
    }
}

/// By kernels without scratch, whether or not there are such.
fn listed(call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    match call.op {
        Op::PanelConv(conv) => layer::conv(conv, call, out),
        Op::PanelDepthwise(depthwise) => layer::depthwise(depthwise, call, out),
        Op::PanelLinear(linear) => layer::linear(linear, call, out),
        Op::Pool { kind, window, .. } => layer::pool(*kind, Some(window), call, out),
        Op::GlobalPool(kind) => layer::pool(*kind, None, call, out),
        Op::Cast { to } => mixed::cast(*to, call, out),
        Op::Where => mixed::select(call, out),
        Op::Unary(Unary::Not) => mixed::not(call, out),
        Op::Unary(unary) => element::unary(*unary, call, out),
        Op::Clip { low, high } => element::clip(*low, *high, call, out),
        Op::Binary(binary) => {
            element::binary(*binary, call, out).or_else(|| mixed::told(*binary, call, out))
        }
        Op::ScaleShift { activation } => element::scale_shift(*activation, call, out),
        Op::Softmax { axis, kind } => element::softmax(*axis, *kind, call, out),
        Op::LayerNorm { axis, epsilon } => element::norm(*axis, *epsilon, true, call, out),
        Op::RmsNorm { axis, epsilon } => element::norm(*axis, *epsilon, false, call, out),
        Op::InstanceNorm { epsilon } => element::instance_norm(*epsilon, call, out),
        Op::GroupNorm {
            groups,
            epsilon,
            per_group,
        } => element::group_norm(*groups, *epsilon, *per_group, call, out),
        Op::Reduce { kind, axes, .. } => fold::reduce(*kind, axes, call, out),
        Op::MatMul => product::matmul(call, out),
        Op::Gemm {
            alpha,
            beta,
            trans_a,
            trans_b,
        } => product::gemm([*alpha, *beta], [*trans_a, *trans_b], call, out),
        Op::Attention(attrs) => product::attention(attrs, call, out),
        Op::Resize(attrs) => resize::resize(attrs, call, out),
        Op::Reshape { .. } => strided::reshape(call, out),
        Op::Transpose { perm } => strided::transpose(perm, call, out),
        Op::Slice { ranges } => strided::slice(ranges, call, out),
        Op::Expand { .. } => strided::expand(call, out),
        Op::Tile { repeats } => strided::tile(repeats, call, out),
        Op::Pad { mode, pads } => strided::pad(*mode, pads, call, out),
        Op::DepthToSpace {
            block,
            column_row_depth,
        } => strided::depth_to_space(*block, *column_row_depth, call, out),
        Op::SpaceToDepth { block } => strided::space_to_depth(*block, call, out),
        Op::Reorder => movement::reorder(call, out),
        Op::Gather { axis } => gather::gather(*axis, call, out),
        Op::Concat { axis } => movement::concat(*axis, call, out),
        Op::Split { axis, sizes } => movement::split(*axis, sizes, call, out),
        _ => None,
    }
}

impl<'a> Call<'a> {
    fn input(&self, index: usize) -> Option<TensorRef<'a>> {
        self.inputs.get(index).copied().flatten()
    }

    /// An input of floats.
    fn floats(&self, index: usize) -> Option<TensorRef<'a>> {
        self.input(index).filter(|t| t.dtype() == DType::F32)
    }

    /// The only output, of floats.
    fn result(&self) -> Option<TensorMut<'a>> {
        let more = self.outputs.iter().skip(1).flatten().count();
        let first = self.outputs.first().copied().flatten();
        first.filter(|t| more == 0 && t.dtype() == DType::F32)
    }

    fn push(&self, dispatch: Dispatch, out: &mut Vec<Dispatch>) -> Option<()> {
        dispatch.fits(self.limits).then(|| out.push(dispatch))
    }
}

fn is_at(output: &TensorMut, input: &TensorRef) -> bool {
    std::ptr::eq(output.as_ptr().cast_const(), input.as_ptr())
}

/// Shaders see words only. Tensors of bytes lie anywhere where they are parts of others.
fn is_whole(tensor: &TensorRef) -> bool {
    is_in_words(tensor.len_bytes(), tensor.as_ptr())
}

fn is_in_words(bytes: usize, start: *const u8) -> bool {
    bytes.is_multiple_of(4) && start.addr().is_multiple_of(4)
}

fn blocked(tensor: Layout) -> bool {
    tensor == Layout::Blocked
}

/// A residual, and how the kernels are told of it.
fn residual(call: &Call, wanted: bool, y: &TensorMut) -> Option<(Option<Span>, u32)> {
    if !wanted {
        return Some((None, 0));
    }
    let residual = call.floats(1)?;
    let fits = residual.layout == y.layout && residual.len_bytes() == y.len_bytes();
    fits.then(|| match is_at(y, &residual) {
        true => (None, 2),
        false => (Some(Span::of(&residual)), 1),
    })
}

/// Groups of 64 for so many invocations, no more than kernels with a loop need.
fn strided_groups(invocations: usize) -> u32 {
    invocations.div_ceil(64).min(32_768) as u32
}
