//! What planning asks about operators before they run.

use crate::OpError;
use crate::elementwise::binary;
use crate::elementwise::unary;
use crate::nd::MAX_RANK;
use crate::product::einsum;
use crate::reduce::topk;
use neap_ir::op::{Binary, ScatterReduction, Unary};
use neap_ir::{DType, Layout, Op, TensorType};
use neap_kernels::simd::Isa;

/// An operand's type and layout; `None` where an optional one is left out.
pub type Operand<'a> = Option<(&'a TensorType, Layout)>;

/// Bytes of scratch that [`crate::execute`] needs for these operands with that many workers.
pub fn workspace_bytes(
    op: &Op,
    inputs: &[Operand],
    outputs: &[Operand],
    workers: usize,
    isa: Isa,
) -> usize {
    let _ = (outputs, isa);
    let Some(&Some((x, _))) = inputs.first() else {
        return 0;
    };
    match op {
        Op::TopK { axis, .. } => topk::workspace_bytes(x.shape[*axis], workers),
        _ => 0,
    }
}

/// Whether [`crate::execute`] can compute this; an error says what it cannot.
pub fn supported(op: &Op, inputs: &[Operand], outputs: &[Operand]) -> Result<(), OpError> {
    let unsupported = |what: String| Err(OpError::unsupported(op.name(), what));
    for (ty, _) in inputs.iter().chain(outputs).flatten() {
        if ty.shape.len() > MAX_RANK {
            return unsupported(format!("for rank {}", ty.shape.len()));
        }
    }
    let Some(&Some((x, _))) = inputs.first() else {
        return unsupported("without its first input".into());
    };
    match op {
        Op::Unary(unary) if !unary::supports(*unary, x.dtype) => {
            unsupported(format!("for {}", x.dtype))
        }
        Op::Binary(binary) => {
            let other = inputs.get(1).copied().flatten().map_or(x, |(ty, _)| ty);
            binary::choose(*binary, op.name(), x.dtype, other.dtype).map(|_| ())
        }
        Op::Einsum { equation } => {
            let shapes: Vec<&[usize]> = inputs
                .iter()
                .flatten()
                .map(|(ty, _)| ty.shape.as_slice())
                .collect();
            match einsum::Loops::of(equation, &shapes) {
                Some(_) => Ok(()),
                None => unsupported("with so many letters or inputs".into()),
            }
        }
        Op::ScatterElements { reduction, .. } | Op::ScatterNd { reduction }
            if *reduction != ScatterReduction::None && x.dtype == DType::Bool =>
        {
            unsupported("with a reduction for bool".into())
        }
        Op::ReverseSequence {
            batch_axis,
            time_axis,
        } if *batch_axis.max(time_axis) != 1 => unsupported("beyond the first two axes".into()),
        Op::TopK { axis, .. } if x.shape[*axis] > u32::MAX as usize => {
            unsupported("for so long an axis".into())
        }
        Op::Conv(..)
        | Op::ConvTranspose { .. }
        | Op::Pool { .. }
        | Op::GlobalPool(_)
        | Op::Resize(_)
        | Op::Lstm(_)
        | Op::Gru { .. }
        | Op::Rnn(_)
        | Op::Attention(_)
        | Op::PanelConv(_)
        | Op::PanelDepthwise(_)
        | Op::PanelLinear(_)
        | Op::Reorder
        | Op::GatherRows { .. } => unsupported("yet".into()),
        _ => Ok(()),
    }
}

/// Inputs whose memory output 0 may take over, by position.
pub fn may_overwrite(op: &Op, inputs: &[Operand], outputs: &[Operand]) -> Vec<usize> {
    let Some(&Some((y, layout))) = outputs.first() else {
        return Vec::new();
    };
    let same = |index: &usize| {
        let input = inputs.get(*index).copied().flatten();
        input.is_some_and(|(ty, own)| {
            own == layout && ty.shape == y.shape && ty.dtype.size_bytes() == y.dtype.size_bytes()
        })
    };
    let candidates = match op {
        Op::Unary(_) | Op::Clip { .. } | Op::CumSum { .. } | Op::ScaleShift { .. } => 0..1,
        Op::Softmax { .. } | Op::LpNorm { .. } | Op::BatchNorm { .. } => 0..1,
        Op::LayerNorm { .. } | Op::RmsNorm { .. } => 0..1,
        Op::InstanceNorm { .. } | Op::GroupNorm { .. } => 0..1,
        Op::ScatterElements { .. } | Op::ScatterNd { .. } | Op::Trilu { .. } => 0..1,
        Op::Binary(_) => 0..2,
        Op::Where => 1..3,
        Op::PanelConv(_) | Op::PanelDepthwise(_) | Op::PanelLinear(_) => 1..2,
        _ => 0..0,
    };
    candidates.filter(same).collect()
}

/// Whether the operator can give output 0 channel-blocked, and which layout each input must then
/// have.
pub fn blocked_inputs(
    op: &Op,
    inputs: &[Option<&TensorType>],
    outputs: &[Option<&TensorType>],
) -> Option<Vec<Layout>> {
    let y = outputs.first().copied().flatten()?;
    let blockable = |ty: &TensorType| (3..=4).contains(&ty.shape.len()) && ty.dtype == DType::F32;
    if !blockable(y) {
        return None;
    }
    match op {
        Op::Unary(unary) if !matches!(unary, Unary::IsNan | Unary::IsInf { .. }) => {
            Some(vec![Layout::Blocked])
        }
        Op::Clip { .. } => Some(vec![Layout::Blocked]),
        Op::Binary(binary) if *binary != Binary::Pow => {
            let same = inputs.iter().all(|i| i.is_some_and(|ty| ty == y));
            same.then(|| vec![Layout::Blocked; inputs.len()])
        }
        _ => None,
    }
}

/// Floating-point operations, about; a multiply-add counts as two.
pub fn flops(op: &Op, inputs: &[Operand], outputs: &[Operand]) -> u64 {
    let elements = |operand: Option<&Operand>| -> u64 {
        operand
            .copied()
            .flatten()
            .map_or(0, |(ty, _)| ty.elements() as u64)
    };
    let (x, y) = (elements(inputs.first()), elements(outputs.first()));
    let shape = |index: usize| -> &[usize] {
        let operand = inputs.get(index).copied().flatten();
        operand.map_or(&[], |(ty, _)| &ty.shape)
    };
    let taps = |w: &neap_ir::op::Window| w.kernel.iter().product::<usize>() as u64;
    match op {
        Op::Conv(..) => 2 * y * shape(1)[1..].iter().product::<usize>() as u64,
        Op::ConvTranspose { .. } => 2 * x * shape(1)[1..].iter().product::<usize>() as u64,
        Op::PanelConv(conv) => 2 * y * conv.k() as u64,
        Op::PanelDepthwise(depthwise) => 2 * y * depthwise.k() as u64,
        Op::PanelLinear(linear) => 2 * y * linear.k as u64,
        Op::MatMul => 2 * y * shape(0).last().map_or(0, |&k| k as u64),
        Op::Gemm { trans_a, .. } => {
            2 * y * shape(0).get(usize::from(!trans_a)).map_or(0, |&k| k as u64)
        }
        Op::Einsum { .. } => 2 * x.max(elements(inputs.get(1))).max(y) * 8,
        Op::Pool { window, .. } => y * taps(window),
        Op::Softmax { .. } => 8 * y,
        Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::InstanceNorm { .. } => 6 * y,
        Op::GroupNorm { .. } | Op::Lrn { .. } => 8 * y,
        Op::Attention(attrs) => match (shape(0), shape(1), shape(2)) {
            (q, k, v) => neap_ir::infer::AttentionDims::of(attrs, q, k, v).map_or(0, |d| {
                let scores = (d.batch * d.heads * d.queries * d.keys) as u64;
                2 * scores * (d.depth + d.value_depth + 4) as u64
            }),
        },
        Op::Lstm(_) | Op::Gru { .. } | Op::Rnn(_) => {
            let steps: usize = shape(0).iter().take(2).product();
            2 * steps as u64 * (elements(inputs.get(1)) + elements(inputs.get(2)))
        }
        Op::Reduce { .. } | Op::ArgReduce { .. } | Op::GlobalPool(_) => x,
        Op::Concat { .. } | Op::Split { .. } | Op::Slice { .. } | Op::Reshape { .. } => 0,
        Op::Reorder | Op::Transpose { .. } | Op::Expand { .. } | Op::Gather { .. } => 0,
        _ => y,
    }
}
