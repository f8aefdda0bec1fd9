//! What planning asks about operators before they run.

use crate::elementwise::{binary, unary, vector};
use crate::kernel::Kernel;
use crate::movement::view::channel_slice;
use crate::nd::MAX_RANK;
use crate::norm::space;
use crate::product::matmul::Product;
use crate::product::{contraction, det, einsum, inverse, packed};
use crate::reduce::topk;
use crate::window::{conv, pool};
use crate::{
    OpError, attention, bands, gradient, integer, late, layer, recurrent, resize, sampling,
    spectrum,
};
use neap_ir::graph::LANES;
use neap_ir::infer::{AttentionDims, Einsum};
use neap_ir::op::{AttentionAttrs, LateOp, Recurrent, ScatterReduction};
use neap_ir::panel::ConvForm;
use neap_ir::{DType, Gradient, Layout, Op, TensorType};
use neap_kernels::simd::Isa;

/// An operand's type and layout; `None` where an optional one is left out.
pub type OperandForm<'a> = Option<(&'a TensorType, Layout)>;

/// Bytes of scratch that [`crate::execute`] needs for these operands with that many workers.
pub fn workspace_bytes(
    op: &Op,
    inputs: &[OperandForm],
    outputs: &[OperandForm],
    workers: usize,
    isa: Isa,
) -> usize {
    if let Op::Late(of) = op {
        return late::workspace_bytes(of, inputs, outputs, workers, isa);
    }
    let first = outputs.iter().flatten().next();
    let (Some(&Some((x, _))), Some(&(y, layout))) = (inputs.first(), first) else {
        return 0;
    };
    let shape = |index: usize| -> &[usize] {
        let operand = inputs.get(index).copied().flatten();
        operand.map_or(&[], |(ty, _)| &ty.shape)
    };
    match op {
        Op::Binary(_) if layout == Layout::Blocked => vector::workspace_bytes(y.shape[1]),
        Op::ScaleShift { .. } if layout == Layout::Blocked => vector::workspace_bytes(y.shape[1]),
        Op::Conv(window, groups) => conv::workspace_bytes(window, *groups, false, x, y, workers),
        Op::ConvTranspose { window, groups, .. } => {
            conv::workspace_bytes(window, *groups, true, x, y, workers)
        }
        Op::PanelConv(panel) => layer::conv_workspace_bytes(panel, &x.shape, &y.shape, workers),
        Op::PanelDepthwise(panel) => {
            integer::depthwise_workspace_bytes(panel, &x.shape, &y.shape, workers)
        }
        Op::PanelLinear(panel) => layer::linear_workspace_bytes(panel, &x.shape, workers),
        Op::Bands(chain) => bands::workspace_bytes(chain, &x.shape, Kernel::Direct, workers, isa),
        Op::MatMul if y.dtype == DType::F32 => Product::of(shape(0), shape(1))
            .map_or(0, |product| packed::workspace_bytes(&product, workers)),
        Op::Einsum { equation } if einsum::as_product(inputs.len(), y.dtype) => {
            einsum::Loops::of(equation, &[shape(0), shape(1)])
                .map_or(0, |loops| contraction::workspace_bytes(&loops, workers))
        }
        Op::Gemm {
            trans_a, trans_b, ..
        } if y.dtype == DType::F32 => Product::gemm(shape(0), shape(1), *trans_a, *trans_b)
            .map_or(0, |product| packed::workspace_bytes(&product, workers)),
        Op::BatchNorm { .. } => vector::workspace_bytes(y.shape[1]),
        Op::InstanceNorm { .. } | Op::GroupNorm { .. } if layout == Layout::Blocked => {
            space::workspace_bytes(&x.shape)
        }
        Op::Resize(attrs) => resize::workspace_bytes(attrs, None, x, workers),
        Op::ResizeStrip(of) => resize::workspace_bytes(&of.attrs, Some(of), x, workers),
        Op::Lstm(_) | Op::Gru { .. } | Op::Rnn(_) => recurrent::workspace_bytes(op, x, workers),
        Op::Attention(attrs) => AttentionDims::of(attrs, shape(0), shape(1), shape(2))
            .map_or(0, |dims| {
                attention::workspace_bytes(attrs, &dims, x, workers)
            }),
        Op::AttendKeys(of) => AttentionDims::of(&of.attrs, shape(0), shape(1), shape(2))
            .map_or(0, |dims| {
                attention::strip_workspace_bytes(of, &dims, workers)
            }),
        Op::Gradient(backward) => gradient::workspace_bytes(backward, x, &shape, workers),
        Op::TopK { axis, .. } => topk::workspace_bytes(x.shape[*axis], workers),
        Op::Sampling(of) => sampling::workspace_bytes(of, x, workers),
        Op::Det => det::workspace_bytes(x, workers),
        Op::Inverse => inverse::workspace_bytes(x, workers),
        Op::Dft(dft) => spectrum::workspace_bytes(dft.length, workers),
        Op::Stft(stft) => spectrum::workspace_bytes(stft.frame, workers),
        _ => 0,
    }
}

/// Whether [`crate::execute`] can compute this; an error says what it cannot.
///
/// # Errors
/// [`OpError`] says what cannot be computed.
pub fn supported(op: &Op, inputs: &[OperandForm], outputs: &[OperandForm]) -> Result<(), OpError> {
    let unsupported = |what: String| Err(OpError::unsupported(op.name(), what));
    for (ty, _) in inputs.iter().chain(outputs).flatten() {
        if ty.shape.len() > MAX_RANK {
            return unsupported(format!("for rank {}", ty.shape.len()));
        }
    }
    let Some(&Some((x, _))) = inputs.first() else {
        return unsupported("without its first input".into());
    };
    if let Op::Late(of) = op {
        return late::supported(of, inputs, outputs);
    }
    check_layouts(op, inputs, outputs)?;
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
        Op::Conv(..) | Op::ConvTranspose { .. } => conv::supported(x).or_else(unsupported),
        Op::Pool { kind, .. } => pool::supported(*kind, x).or_else(unsupported),
        Op::PanelConv(panel) => {
            let y = outputs.first().copied().flatten().map_or(x, |(ty, _)| ty);
            if layer::conv_supported(panel, &x.shape, &y.shape) {
                Ok(())
            } else {
                unsupported("by the panel kernels in this shape".into())
            }
        }
        Op::PanelDepthwise(panel) => {
            let y = outputs.first().copied().flatten().map_or(x, |(ty, _)| ty);
            if integer::depthwise_supported(panel, &x.shape, &y.shape) {
                Ok(())
            } else {
                unsupported("in integers with such a window".into())
            }
        }
        Op::Bands(chain) if !bands::supported(chain, x) => {
            unsupported("in this shape or by its kernels".into())
        }
        Op::GatherRows { .. } => unsupported("here: the executor reads its rows".into()),
        Op::Gradient(backward) => gradient::supported(backward, x).or_else(unsupported),
        Op::Resize(attrs) => resize::supported(attrs, None, x).or_else(unsupported),
        Op::ResizeStrip(of) => resize::supported(&of.attrs, Some(of), x).or_else(unsupported),
        Op::Sampling(of) => sampling::supported(of, x).or_else(unsupported),
        Op::AttendKeys(of) if !attention::strip_supported(of, inputs) => {
            unsupported("of such an attention".into())
        }
        Op::Dft(neap_ir::spectrum::Dft { length, .. })
        | Op::Stft(neap_ir::spectrum::Stft { frame: length, .. })
            if *length > spectrum::MAX_LENGTH =>
        {
            unsupported("for so long a transform".into())
        }
        _ => Ok(()),
    }
}

/// Blocked operands only where the operator takes them so.
fn check_layouts(op: &Op, inputs: &[OperandForm], outputs: &[OperandForm]) -> Result<(), OpError> {
    let is_blocked = |operand: &(&TensorType, Layout)| operand.1 == Layout::Blocked;
    let any = inputs.iter().chain(outputs).flatten().any(is_blocked);
    let needed = matches!(op, Op::PanelConv(_) | Op::PanelDepthwise(_) | Op::Bands(_));
    let reads_both = matches!(op, Op::Reorder | Op::Moments | Op::FoldPlaces(_));
    if reads_both || !(any || needed) {
        return Ok(());
    }
    let ins: Vec<_> = inputs.iter().map(|i| i.map(|(ty, _)| ty)).collect();
    let outs: Vec<_> = outputs.iter().map(|o| o.map(|(ty, _)| ty)).collect();
    let fits = blocked_inputs(op, &ins, &outs).is_some_and(|layouts| {
        let mut pairs = inputs.iter().zip(&layouts);
        outputs.iter().flatten().all(is_blocked)
            && pairs.all(|(input, layout)| input.is_none_or(|(_, own)| own == *layout))
    });
    if fits {
        return Ok(());
    }
    Err(OpError::unsupported(op.name(), "in this mix of layouts"))
}

/// Inputs whose memory the output at `index` may take over, by position.
pub fn may_be_overwritten_by(
    op: &Op,
    index: usize,
    inputs: &[OperandForm],
    outputs: &[OperandForm],
) -> Vec<usize> {
    match (op, index) {
        (_, 0) => may_overwrite(op, inputs, outputs),
        // A moment takes its own place.
        (Op::Update(_) | Op::UpdatePart { .. }, moment) => {
            let own = MOMENTS_FROM + moment - 1;
            (inputs.get(own) == outputs.get(moment))
                .then_some(own)
                .into_iter()
                .collect()
        }
        _ => Vec::new(),
    }
}

/// The first moment among the inputs of [`Op::Update`].
const MOMENTS_FROM: usize = 4;

/// Inputs whose memory output 0 may take over, by position.
pub fn may_overwrite(op: &Op, inputs: &[OperandForm], outputs: &[OperandForm]) -> Vec<usize> {
    let Some(&Some((y, layout))) = outputs.first() else {
        return Vec::new();
    };
    let same = |index: &usize| {
        let input = inputs.get(*index).copied().flatten();
        input.is_some_and(|(ty, own)| {
            own == layout && ty.shape == y.shape && ty.dtype.size_bytes() == y.dtype.size_bytes()
        })
    };
    if let Op::Bands(chain) = op {
        let x = inputs.first().copied().flatten();
        let follows = x.is_some_and(|(ty, _)| bands::may_overwrite_input(chain, ty));
        let candidates = follows.then_some(0).into_iter();
        let candidates = candidates.chain(chain.residual_input());
        return candidates.filter(same).collect();
    }
    // Each channel's sums are complete before anything of it is written.
    if let Op::Gradient(Gradient::BatchNorm { .. }) = op {
        return [0, 4].into_iter().filter(same).collect();
    }
    let candidates = match op {
        Op::Unary(_) | Op::Clip { .. } | Op::CumSum { .. } | Op::ScaleShift { .. } => 0..1,
        // Of more strips, one may hold rows that come elsewhere.
        Op::Normalise { .. } if inputs.len() == 2 => 1..2,
        Op::Moments | Op::FoldPlaces(_) => 1..2,
        Op::PutRows(_) => 1..2,
        Op::AttendKeys(_) => 4..5,
        Op::RoundToFloat8 { .. } => 0..1,
        Op::Softmax { .. } | Op::LpNorm { .. } | Op::BatchNorm { .. } => 0..1,
        Op::BatchNormTraining { .. } => 0..1,
        Op::LayerNorm { .. } | Op::RmsNorm { .. } => 0..1,
        Op::InstanceNorm { .. } | Op::GroupNorm { .. } => 0..1,
        Op::ScatterElements { .. } | Op::ScatterNd { .. } | Op::Trilu { .. } => 0..1,
        Op::Update(_) | Op::UpdatePart { .. } | Op::Dropout { .. } => 0..1,
        Op::Binary(_) => 0..2,
        Op::Gradient(Gradient::Unary { .. } | Gradient::Clip { .. } | Gradient::Softmax { .. }) => {
            0..2
        }
        Op::Gradient(Gradient::Lstm(_) | Gradient::Gru { .. } | Gradient::Rnn(_)) => 0..1,
        Op::Where => 1..3,
        Op::PanelConv(_) | Op::PanelDepthwise(_) | Op::PanelLinear(_) => 1..2,
        _ => 0..0,
    };
    candidates.filter(same).collect()
}

/// Widest response normalisation of blocked tensors.
const LRN_BLOCKED: usize = 33;

/// Whether the operator can give output 0 channel-blocked, and which layout each input must then
/// have.
pub fn blocked_inputs(
    op: &Op,
    inputs: &[Option<&TensorType>],
    outputs: &[Option<&TensorType>],
) -> Option<Vec<Layout>> {
    let y = outputs.iter().copied().flatten().next()?;
    let takes_steps = op.is_in_integers()
        || matches!(
            op,
            Op::Quantize { .. } | Op::Dequantize { .. } | Op::Rows(_)
        )
        || matches!(op, Op::Bands(chain) if chain.is_in_integers())
        || matches!(op, Op::Pool { kind, .. } if matches!(kind, neap_ir::op::Pool::Max { .. }));
    let blockable = |ty: &TensorType| {
        let fits = ty.dtype == DType::F32 || ty.dtype == DType::U8 && takes_steps;
        (3..=4).contains(&ty.shape.len()) && fits
    };
    if !blockable(y) {
        return None;
    }
    let shape = |index: usize| inputs.get(index).copied().flatten().map(|ty| &ty.shape[..]);
    let blocked = |ty: Option<&&TensorType>| ty.is_some_and(|ty| blockable(ty));
    let all_blocked = || inputs.iter().flatten().all(|ty| blockable(ty));
    match op {
        Op::Unary(_) | Op::Clip { .. } => all_blocked().then(|| vec![Layout::Blocked]),
        Op::Binary(binary) => {
            let pair = vector::blocked_operands(*binary, shape(0)?, shape(1)?, &y.shape)?;
            Some(pair.iter().map(|operand| operand.layout()).collect())
        }
        Op::PanelConv(_) | Op::PanelDepthwise(_) => {
            let x = match op {
                Op::PanelConv(panel) if panel.form == ConvForm::FirstLayer => Layout::Plain,
                _ => Layout::Blocked,
            };
            let mut layouts = residual_layouts(x, inputs.len());
            // Scale and zero point.
            layouts.iter_mut().skip(2).for_each(|l| *l = Layout::Plain);
            Some(layouts)
        }
        Op::Quantize { .. } | Op::Dequantize { .. } => {
            let one = inputs[1..].iter().flatten().all(|ty| ty.elements() == 1);
            let mut layouts = vec![Layout::Plain; inputs.len()];
            layouts[0] = Layout::Blocked;
            (one && blocked(inputs.first()?.as_ref())).then_some(layouts)
        }
        Op::Bands(chain) => {
            let mut layouts = vec![Layout::Plain; inputs.len()];
            if !bands::is_plain(chain) {
                *layouts.first_mut()? = Layout::Blocked;
            }
            if let Some(residual) = chain.residual_input() {
                *layouts.get_mut(residual)? = Layout::Blocked;
            }
            Some(layouts)
        }
        Op::Pool { kind, .. } | Op::GlobalPool(kind) => {
            let fits = pool::blocks(*kind, outputs.iter().flatten().count());
            (fits && all_blocked()).then(|| vec![Layout::Blocked])
        }
        Op::Lrn { size, .. } if *size <= LRN_BLOCKED => {
            all_blocked().then(|| vec![Layout::Blocked])
        }
        Op::BatchNorm { .. } | Op::InstanceNorm { .. } | Op::GroupNorm { .. } => {
            if matches!(
                op,
                Op::GroupNorm {
                    per_group: true,
                    ..
                }
            ) {
                return None;
            }
            let mut layouts = vec![Layout::Plain; inputs.len()];
            layouts[0] = Layout::Blocked;
            blocked(inputs.first()?.as_ref()).then_some(layouts)
        }
        Op::Resize(attrs) => {
            let fits = all_blocked() && resize::blocks(attrs, None, shape(0)?);
            fits.then(|| vec![Layout::Blocked])
        }
        Op::ResizeStrip(of) => {
            let fits = all_blocked() && resize::blocks(&of.attrs, Some(of), shape(0)?);
            fits.then(|| vec![Layout::Blocked])
        }
        Op::Rows(rows) => {
            let fits = rows.axis == 2 && all_blocked();
            fits.then(|| vec![Layout::Blocked; inputs.len()])
        }
        Op::Normalise { rows, .. } => {
            let mut layouts = vec![Layout::Blocked; inputs.len()];
            *layouts.first_mut()? = Layout::Plain;
            let fits = rows.axis == 2 && inputs[1..].iter().all(|x| blocked(x.as_ref()));
            fits.then_some(layouts)
        }
        Op::PoolPlaces(_) => Some(vec![Layout::Plain]),
        Op::ScaleShift { .. } => blocked(inputs.first()?.as_ref())
            .then(|| vec![Layout::Blocked, Layout::Plain, Layout::Plain]),
        Op::Concat { axis: 1 } => {
            // All parts but the last must end with a channel block.
            let (_, starts) = inputs.split_last()?;
            let whole =
                |ty: &Option<&TensorType>| ty.is_some_and(|ty| ty.shape[1].is_multiple_of(LANES));
            (starts.iter().all(whole) && all_blocked()).then(|| vec![Layout::Blocked; inputs.len()])
        }
        Op::Split { axis: 1, sizes } => {
            let (_, starts) = sizes.split_last()?;
            let whole = starts.iter().all(|size| size.is_multiple_of(LANES));
            (whole && all_blocked()).then(|| vec![Layout::Blocked])
        }
        Op::Slice { ranges } => {
            let x = inputs.first().copied().flatten()?;
            channel_slice(ranges, &x.shape)?;
            all_blocked().then(|| vec![Layout::Blocked])
        }
        _ => None,
    }
}

fn residual_layouts(x: Layout, inputs: usize) -> Vec<Layout> {
    let mut layouts = vec![Layout::Blocked; inputs];
    layouts[0] = x;
    layouts
}

/// Floating-point operations, about; a multiply-add counts as two.
pub fn flops(op: &Op, inputs: &[OperandForm], outputs: &[OperandForm]) -> u64 {
    let shape = |operands: &[OperandForm], index: usize| -> Vec<u64> {
        let operand = operands.get(index).copied().flatten();
        operand.map_or(vec![], |(ty, _)| {
            ty.shape.iter().map(|&d| d as u64).collect()
        })
    };
    let input = |index: usize| shape(inputs, index);
    let (x, y) = (product(&input(0)), product(&shape(outputs, 0)));
    let times = |a: u64, b: u64| a.saturating_mul(b);
    let twice = |a: u64, b: u64| times(2, times(a, b));
    match op {
        Op::Conv(..) => twice(y, product(input(1).get(1..).unwrap_or(&[]))),
        Op::ConvTranspose { .. } => twice(x, product(input(1).get(1..).unwrap_or(&[]))),
        Op::PanelConv(conv) => twice(y, conv.k() as u64),
        Op::PanelDepthwise(depthwise) => twice(y, depthwise.k() as u64),
        Op::PanelLinear(linear) => twice(y, linear.k as u64),
        Op::Bands(chain) => {
            let x = inputs.first().copied().flatten();
            x.map_or(0, |(ty, _)| bands::flops(chain, &ty.shape, Kernel::Direct))
        }
        Op::Late(of) => match &of.op {
            LateOp::Over(op) => flops(op, of.operands(inputs), outputs),
            // Each score is compared, and each box with those chosen.
            LateOp::NonMaxSuppression { .. } => times(64, product(&input(1))),
            LateOp::Unique { .. } => times(64, x),
            LateOp::Repeat(of) => late::loop_flops(of),
            of => match late::of_the_bound(of) {
                Some(op) => flops(&op, inputs, outputs),
                None => times(2, x),
            },
        },
        Op::MatMul => twice(y, input(0).last().copied().unwrap_or(1)),
        Op::Gemm { trans_a, .. } => {
            let k = input(0).get(usize::from(!trans_a)).copied();
            twice(y, k.unwrap_or(1))
        }
        Op::Einsum { equation } => {
            let shapes = inputs.iter().flatten().map(|(ty, _)| ty.shape.as_slice());
            let shapes: Vec<&[usize]> = shapes.collect();
            Einsum::parse(equation, &shapes).map_or(y, |einsum| {
                let summed = einsum.summed();
                let terms: Vec<u64> = summed.iter().map(|&l| einsum.sizes[l] as u64).collect();
                times(y, times(product(&terms), shapes.len() as u64))
            })
        }
        Op::Gradient(Gradient::ConvWeight { .. }) => twice(
            product(&input(1)),
            product(shape(outputs, 0).get(1..).unwrap_or(&[])),
        ),
        Op::Gradient(Gradient::Lstm(_) | Gradient::Gru { .. } | Gradient::Rnn(_)) => {
            // Each weight twice: for the gates, and for the derivative of the state.
            let steps = input(0).iter().take(2).fold(1, |n, &d| times(n, d));
            times(2, twice(steps, product(&input(1))))
        }
        Op::Gradient(Gradient::Attention(attrs)) => {
            // Scores again, and four products with them.
            times(3, flops(&Op::Attention(attrs.clone()), inputs, outputs))
        }
        Op::Gradient(_) | Op::BatchNormTraining { .. } => times(8, x),
        Op::Pool { window, .. } => {
            let taps: Vec<u64> = window.kernel.iter().map(|&k| k as u64).collect();
            times(y, product(&taps))
        }
        Op::Attention(attrs) => attention_flops(attrs, inputs),
        Op::AttendKeys(of) => attention_flops(&of.attrs, inputs),
        Op::Lstm(_) | Op::Gru { .. } | Op::Rnn(_) => {
            let steps = input(0).iter().take(2).fold(1, |n, &d| times(n, d));
            let places = Recurrent::PANELS.as_flattened().iter();
            let given = places.filter(|at| inputs.get(**at).is_some_and(Option::is_some));
            let each = given.map(|at| product(&input(*at)));
            twice(steps, each.fold(0, u64::saturating_add))
        }
        Op::Det => times(x, input(0).last().copied().unwrap_or(1)),
        Op::Inverse => times(x, input(0).last().map_or(1, |&size| size.saturating_mul(4))),
        Op::Dft(dft) => times(y, spectrum::flops_per_element(dft.length)),
        Op::Stft(stft) => times(y, spectrum::flops_per_element(stft.frame)),
        Op::Sampling(of) => {
            let x = inputs.first().copied().flatten();
            x.map_or(0, |(ty, _)| twice(y, sampling::taps(of, ty)))
        }
        Op::Trees(of) => {
            let rows = input(0).first().copied().unwrap_or(1);
            times(times(rows, 16), of.roots.len() as u64)
        }
        Op::UpdatePart { .. } => product(&input(1)),
        Op::Softmax { .. } | Op::GroupNorm { .. } | Op::Lrn { .. } => times(8, y),
        Op::Moments | Op::FoldPlaces(_) => times(4, x),
        Op::Normalise { .. } => times(4, y),
        Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::InstanceNorm { .. } => times(6, y),
        Op::Reduce { .. } | Op::ArgReduce { .. } | Op::GlobalPool(_) => x,
        Op::CoveringSteps => times(2, x),
        Op::Concat { .. } | Op::Split { .. } | Op::Slice { .. } | Op::Reshape { .. } => 0,
        Op::Rows(_) | Op::PutRows(_) => 0,
        Op::Reorder | Op::Transpose { .. } | Op::Expand { .. } | Op::Gather { .. } => 0,
        _ => y,
    }
}

fn attention_flops(attrs: &AttentionAttrs, inputs: &[OperandForm]) -> u64 {
    let dims = |i: usize| -> &[usize] {
        let operand = inputs.get(i).copied().flatten();
        operand.map_or(&[], |(ty, _)| &ty.shape)
    };
    AttentionDims::of(attrs, dims(0), dims(1), dims(2)).map_or(0, |d| {
        let each = 2 * (d.depth + d.value_depth + 4);
        product(&[d.batch, d.heads, d.queries, d.keys, each].map(|d| d as u64))
    })
}

/// Bytes of tensors inside the operator, as often as they are written and read; 0 but for chains in row bands and loops.
pub fn inner_bytes(op: &Op, inputs: &[OperandForm]) -> u64 {
    if let Op::Late(of) = op {
        return match &of.op {
            LateOp::Repeat(of) => late::loop_bytes(of),
            _ => 0,
        };
    }
    match (op, inputs.first().copied().flatten()) {
        (Op::Bands(chain), Some((x, _))) => bands::inner_bytes(chain, &x.shape),
        _ => 0,
    }
}

/// Bytes of operands that the operator does not touch, where it runs in place.
pub fn untouched_bytes(op: &Op, inputs: &[OperandForm]) -> u64 {
    match (op, inputs) {
        (Op::UpdatePart { .. }, [Some((w, _)), Some((g, _)), ..]) => {
            2 * w.len_bytes().saturating_sub(g.len_bytes()) as u64
        }
        (Op::PutRows(of), [Some((strip, _)), before @ ..]) => {
            let rows = strip.shape[of.axis].max(1);
            let rest = (strip.len_bytes() / rows).saturating_mul(of.len.saturating_sub(rows));
            let times = 1 + before.iter().flatten().count();
            rest.saturating_mul(times) as u64
        }
        _ => 0,
    }
}

fn product(dims: &[u64]) -> u64 {
    dims.iter().fold(1, |n, &d| n.saturating_mul(d))
}
