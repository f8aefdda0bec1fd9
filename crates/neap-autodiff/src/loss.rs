//! Losses, spelled out in forward operators; each is the mean over what counts.

use crate::emit::{Emit, Made};
use crate::error::AutodiffError;
use neap_ir::op::{Binary, Reduce, Softmax, Unary};
use neap_ir::{DType, Graph, Op, TensorType, ValueId};

/// What a model's result is compared with, and how. Definitions and defaults are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// Scores, with classes along `class_axis`, against int64 class numbers of the other axes' shape. The mean over
    /// positions of `-log softmax(scores)[class]`; `label_smoothing` of the weight is spread evenly over all classes. A
    /// position whose class is `ignore_index` counts for nothing; if all are ignored the loss is NaN.
    CrossEntropy {
        class_axis: usize,
        label_smoothing: f32,
        ignore_index: Option<i64>,
    },
    /// Mean square of the difference to a target of the same type.
    MeanSquare,
    /// Mean magnitude of the difference to a target of the same type.
    MeanAbsolute,
    /// Scores against probabilities of the same type: the mean of `-z log σ(x) - (1 - z) log(1 - σ(x))`.
    BinaryCrossEntropy,
}

impl Loss {
    /// The type of the target for such a result.
    ///
    /// # Errors
    /// The result has no axis of classes.
    pub fn target(&self, result: &TensorType) -> Result<TensorType, AutodiffError> {
        let Loss::CrossEntropy { class_axis, .. } = *self else {
            return Ok(result.clone());
        };
        if class_axis >= result.shape.len() {
            return Err(AutodiffError::Request(format!(
                "the loss's classes are along axis {class_axis}, the result is {:?}",
                result.shape
            )));
        }
        let mut shape = result.shape.clone();
        shape.remove(class_axis);
        Ok(TensorType::new(DType::I64, &shape))
    }
}

/// Appends a loss of `result` against `target`: a value without axes.
///
/// # Errors
/// [`AutodiffError`] where the target has not the type of [`Loss::target`], or the result is no floating-point tensor.
pub fn add_loss(
    graph: Graph,
    loss: Loss,
    result: ValueId,
    target: ValueId,
) -> Result<(Graph, ValueId), AutodiffError> {
    let mut emit = Emit {
        graph,
        prefix: "loss".into(),
    };
    let expected = loss.target(emit.ty(result))?;
    if *emit.ty(target) != expected {
        let ty = emit.ty(target);
        return Err(AutodiffError::Request(format!(
            "the target is {}{:?}, the loss takes {}{:?}",
            ty.dtype, ty.shape, expected.dtype, expected.shape
        )));
    }
    let e = &mut emit;
    let value = match loss {
        Loss::CrossEntropy {
            class_axis,
            label_smoothing,
            ignore_index,
        } => cross_entropy(e, result, target, class_axis, label_smoothing, ignore_index)?,
        Loss::MeanSquare => {
            let difference = e.binary(Binary::Sub, result, target)?;
            let square = e.mul(difference, difference)?;
            mean(e, square)?
        }
        Loss::MeanAbsolute => {
            let difference = e.binary(Binary::Sub, result, target)?;
            let magnitude = e.unary(Unary::Abs, difference)?;
            mean(e, magnitude)?
        }
        Loss::BinaryCrossEntropy => {
            // log(1 + e^x) - x z
            let soft = e.unary(Unary::Softplus, result)?;
            let product = e.mul(result, target)?;
            let each = e.binary(Binary::Sub, soft, product)?;
            mean(e, each)?
        }
    };
    Ok((emit.graph, value))
}

fn mean(e: &mut Emit, x: ValueId) -> Made {
    let axes: Vec<usize> = (0..e.shape(x).len()).collect();
    e.reduce(Reduce::Mean, x, &axes, false)
}

fn sum(e: &mut Emit, x: ValueId) -> Made {
    let axes: Vec<usize> = (0..e.shape(x).len()).collect();
    e.reduce(Reduce::Sum, x, &axes, false)
}

fn cross_entropy(
    e: &mut Emit,
    scores: ValueId,
    classes: ValueId,
    axis: usize,
    smoothing: f32,
    ignore_index: Option<i64>,
) -> Made {
    if !(0.0..=1.0).contains(&smoothing) {
        return Err(AutodiffError::Request(format!(
            "label smoothing {smoothing} is not between 0 and 1"
        )));
    }
    let dtype = e.dtype(scores);
    let count = e.shape(scores)[axis];
    let positions = e.shape(classes);
    let kind = Softmax::LogSoftmax;
    let log = e.op(Op::Softmax { axis, kind }, &[scores])?;
    let ignored = match ignore_index {
        Some(index) => {
            let index = e.indices(&[], &[index]);
            Some(e.binary(Binary::Equal, classes, index)?)
        }
        None => None,
    };
    // Ignored classes may be out of range: any other will do.
    let looked_up = match ignored {
        Some(ignored) => {
            let anywhere = e.indices(&[], &[0]);
            e.op(Op::Where, &[ignored, anywhere, classes])?
        }
        None => classes,
    };
    let mut column = positions.clone();
    column.insert(axis, 1);
    let looked_up = e.reshape(looked_up, &column)?;
    let picked = e.op(Op::GatherElements { axis }, &[log, looked_up])?;
    let picked = e.reshape(picked, &positions)?;
    let smoothing = f64::from(smoothing);
    let mut each = e.scale(picked, smoothing - 1.0)?;
    if smoothing > 0.0 {
        let all = e.reduce(Reduce::Sum, log, &[axis], false)?;
        let share = e.scale(all, smoothing / count as f64)?;
        each = e.binary(Binary::Sub, each, share)?;
    }
    let Some(ignored) = ignored else {
        return mean(e, each);
    };
    let zero = e.scalar(dtype, 0.0)?;
    let one = e.scalar(dtype, 1.0)?;
    let each = e.op(Op::Where, &[ignored, zero, each])?;
    let counted = e.op(Op::Where, &[ignored, zero, one])?;
    let (total, counted) = (sum(e, each)?, sum(e, counted)?);
    e.binary(Binary::Div, total, counted)
}
