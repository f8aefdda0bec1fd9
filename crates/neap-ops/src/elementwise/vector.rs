//! Binary operators on f32 through the vectorised kernels: which broadcasts they take.

use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::{Context, OpError, TensorMut, TensorRef};
use neap_ir::graph::LANES;
use neap_ir::op::Binary;
use neap_ir::{DType, Layout};
use neap_kernels::elementwise as kernels;
use neap_kernels::epilogue::Activation;

/// How an operand relates to the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    Full,
    Scalar,
    /// Axes `start..end` of the result; the operand is 1 along the others.
    Axes {
        start: usize,
        end: usize,
    },
}

fn spread(operand: &[usize], result: &[usize]) -> Option<Spread> {
    let lead = result.len().checked_sub(operand.len())?;
    let dim = |axis: usize| axis.checked_sub(lead).map_or(1, |i| operand[i]);
    if operand.iter().all(|&d| d == 1) {
        return Some(if result.iter().all(|&d| d == 1) {
            Spread::Full
        } else {
            Spread::Scalar
        });
    }
    // Axes where the result is 1 belong to any run.
    let start = (0..result.len()).find(|&i| dim(i) != 1)?;
    let end = (0..result.len()).rfind(|&i| dim(i) != 1)? + 1;
    if (start..end).any(|i| dim(i) != result[i]) {
        return None;
    }
    let outside = result[..start].iter().chain(&result[end..]);
    Some(if outside.into_iter().all(|&d| d == 1) {
        Spread::Full
    } else {
        Spread::Axes { start, end }
    })
}

fn kernel(binary: Binary) -> Option<kernels::Binary> {
    Some(match binary {
        Binary::Add => kernels::Binary::Add,
        Binary::Sub => kernels::Binary::Sub,
        Binary::Mul => kernels::Binary::Mul,
        Binary::Div => kernels::Binary::Div,
        Binary::Min => kernels::Binary::Min,
        Binary::Max => kernels::Binary::Max,
        Binary::Pow => kernels::Binary::Pow,
        Binary::PRelu => kernels::Binary::Prelu,
        _ => return None,
    })
}

/// The result seen as `[rows][cols]` so that both operands fit; `None` where the general loops
/// must serve.
fn view(a: Spread, b: Spread, shape: &[usize]) -> Option<(usize, usize)> {
    let cut = match (a, b) {
        (Spread::Axes { .. }, Spread::Axes { .. }) if a != b => return None,
        (Spread::Axes { start, end }, _) | (_, Spread::Axes { start, end }) => {
            if end == shape.len() { start } else { end }
        }
        _ => 0,
    };
    let rows = shape[..cut].iter().product();
    Some((rows, shape[cut..].iter().product()))
}

/// The whole of a plain call; `None` when the kernels do not take it.
pub(crate) fn plain(binary: Binary, args: &Args, ctx: &mut Context) -> Option<Result<(), OpError>> {
    let (a, b) = (args.opt_input(0)?, args.opt_input(1)?);
    let y = args.opt_output(0)?;
    let f32s = a.dtype() == DType::F32 && b.dtype() == DType::F32 && y.dtype() == DType::F32;
    let op = kernel(binary).filter(|_| f32s)?;
    let shape = y.shape();
    let (sa, sb) = (spread(a.shape(), shape)?, spread(b.shape(), shape)?);
    let (rows, cols) = view(sa, sb, shape)?;
    // SAFETY: the output overlaps an input only when it takes its place, and then is read itself.
    let out = unsafe { y.f32s_mut() };
    let [a, b] = [(a, sa), (b, sb)].map(|(tensor, spread)| match spread {
        Spread::Full if y.is_at(&tensor) => kernels::Operand::InPlace,
        Spread::Full => kernels::Operand::Full(tensor.f32s()),
        Spread::Scalar => kernels::Operand::Scalar(tensor.f32s().first().copied().unwrap_or(0.0)),
        Spread::Axes { end, .. } if end == shape.len() => kernels::Operand::Row(tensor.f32s()),
        Spread::Axes { .. } => kernels::Operand::Column(tensor.f32s()),
    });
    let activation = Activation::None;
    let result = kernels::binary(ctx.isa, ctx.par, op, rows, cols, a, b, out, activation);
    Some(result.named(args.op))
}

/// What a blocked result asks of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockedOperand {
    Full,
    Scalar,
    /// `[N or 1, C, 1, 1]`, blocked.
    Channels,
    /// `[C, 1, 1]` or other lower ranks, plain; padded to whole blocks in the workspace.
    PlainChannels,
}

impl BlockedOperand {
    pub fn of(operand: &[usize], result: &[usize]) -> Option<BlockedOperand> {
        match spread(operand, result)? {
            Spread::Full if operand.len() == result.len() => Some(BlockedOperand::Full),
            Spread::Scalar => Some(BlockedOperand::Scalar),
            Spread::Axes { .. } | Spread::Full => {
                let lead = result.len() - operand.len();
                let dim = |axis: usize| axis.checked_sub(lead).map_or(1, |i| operand[i]);
                let by_channel = dim(1) == result[1] && (2..result.len()).all(|i| dim(i) == 1);
                match (by_channel, lead) {
                    (true, 0) => Some(BlockedOperand::Channels),
                    (true, 1) => Some(BlockedOperand::PlainChannels),
                    _ => None,
                }
            }
        }
    }

    pub fn layout(self) -> Layout {
        match self {
            BlockedOperand::Full | BlockedOperand::Channels => Layout::Blocked,
            BlockedOperand::Scalar | BlockedOperand::PlainChannels => Layout::Plain,
        }
    }
}

/// Operands of a blocked result, when a kernel takes them and one covers the result.
pub(crate) fn blocked_operands(
    binary: Binary,
    a: &[usize],
    b: &[usize],
    result: &[usize],
) -> Option<[BlockedOperand; 2]> {
    kernel(binary)?;
    let pair = [
        BlockedOperand::of(a, result)?,
        BlockedOperand::of(b, result)?,
    ];
    pair.contains(&BlockedOperand::Full).then_some(pair)
}

/// Padded copies of plain per-channel operands.
pub(crate) fn workspace_bytes(channels: usize) -> usize {
    2 * scratch_bytes::<f32>(channels.next_multiple_of(LANES))
}

pub(crate) fn blocked(binary: Binary, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (a, b, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let shape = y.shape();
    let kinds = blocked_operands(binary, a.shape(), b.shape(), shape);
    let (Some(kinds), Some(op)) = (kinds, kernel(binary)) else {
        return args.fail("cannot broadcast blocked tensors so");
    };
    let rows = shape[0] * shape[1].div_ceil(LANES);
    let cols = shape[2..].iter().product::<usize>() * LANES;
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let a = lanes(kinds[0], &a, &y, args, &mut scratch)?;
    let b = lanes(kinds[1], &b, &y, args, &mut scratch)?;
    // SAFETY: the output overlaps an input only when it takes its place, and then is read itself.
    let out = unsafe { y.f32s_mut() };
    let activation = Activation::None;
    kernels::binary(ctx.isa, ctx.par, op, rows, cols, a, b, out, activation).named(args.op)
}

fn lanes<'a>(
    kind: BlockedOperand,
    tensor: &TensorRef<'a>,
    y: &TensorMut,
    args: &Args,
    scratch: &mut Scratch<'a>,
) -> Result<kernels::Operand<'a>, OpError> {
    args.require(
        kind == BlockedOperand::Scalar || tensor.layout == kind.layout(),
        "operands have the wrong layout",
    )?;
    Ok(match kind {
        BlockedOperand::Full if y.is_at(tensor) => kernels::Operand::InPlace,
        BlockedOperand::Full => kernels::Operand::Full(tensor.f32s()),
        BlockedOperand::Scalar => {
            kernels::Operand::Scalar(tensor.f32s().first().copied().unwrap_or(0.0))
        }
        BlockedOperand::Channels => kernels::Operand::Lanes(tensor.f32s()),
        BlockedOperand::PlainChannels => kernels::Operand::Lanes(padded(tensor.f32s(), scratch)?),
    })
}

/// A copy with whole blocks; 1 in the padding, which keeps quotients finite.
pub(crate) fn padded<'a>(
    values: &[f32],
    scratch: &mut Scratch<'a>,
) -> Result<&'a mut [f32], OpError> {
    let copy = scratch.take::<f32>(values.len().next_multiple_of(LANES))?;
    copy[..values.len()].copy_from_slice(values);
    copy[values.len()..].fill(1.0);
    Ok(copy)
}
