//! Output types of every operator, with checks on ranks, dtypes and attributes.
//!
//! Models may be hostile: arithmetic is checked, and whatever passes here has shapes whose sizes
//! in bytes fit `isize` with room to spare.

mod attention;
mod bands;
mod compute;
mod einsum;
mod gradient;
mod late;
mod learned;
mod movement;
mod repeat;
mod sampling;
mod spectrum;
mod strips;
mod update;
mod window;

pub use attention::AttentionDims;
pub use einsum::Einsum;
pub use window::{
    AutoPad, Pads, conv_output_size, conv_transpose_output_size, pool_output_size, resolve_pads,
    resolve_transposed_pads,
};

use crate::op::{Binary, Unary};
use crate::{DType, Op, TensorType};
use thiserror::Error;

/// Why an operator's outputs have no type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{op}: {reason}")]
pub struct InferError {
    pub op: &'static str,
    pub reason: String,
}

type Inferred<T> = Result<T, InferError>;

/// Types of `outputs` results of `op`. Trailing optional results are given when asked for.
///
/// # Errors
/// [`InferError`] where operands, attributes or sizes are not what the operator takes.
pub fn output_types(
    op: &Op,
    inputs: &[Option<TensorType>],
    outputs: usize,
) -> Result<Vec<TensorType>, InferError> {
    let operands = Operands {
        op: op.name(),
        inputs,
        outputs,
    };
    let types = infer(op, &operands)?;
    if types.len() != outputs {
        return operands.fail(format!(
            "gives {} outputs where the node has {outputs}",
            types.len()
        ));
    }
    for ty in &types {
        operands.check_size(&ty.shape)?;
    }
    Ok(types)
}

/// numpy's broadcast of two shapes; `None` where they do not fit.
pub fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let dim = |shape: &[usize], i: usize| match (i + shape.len()).checked_sub(rank) {
        Some(at) => shape[at],
        None => 1,
    };
    (0..rank)
        .map(|i| match (dim(a, i), dim(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

/// Whether `from` broadcasts to exactly `to`.
pub fn broadcasts_to(from: &[usize], to: &[usize]) -> bool {
    broadcast(from, to).is_some_and(|shape| shape == to)
}

fn infer(op: &Op, o: &Operands) -> Inferred<Vec<TensorType>> {
    let one = |ty: TensorType| Ok(vec![ty]);
    match op {
        Op::Unary(unary) => one(unary_type(*unary, o)?),
        Op::Binary(binary) => one(binary_type(*binary, o)?),
        Op::Clip { .. } => {
            let x = o.get(0)?;
            o.require(is_numeric(x.dtype), "takes numbers")?;
            one(x.clone())
        }
        Op::Where => {
            let (condition, a, b) = (o.get(0)?, o.get(1)?, o.get(2)?);
            o.require(condition.dtype == DType::Bool, "takes a boolean condition")?;
            o.same_dtype(a, b)?;
            let shape = o.broadcast(&o.broadcast(&condition.shape, &a.shape)?, &b.shape)?;
            one(TensorType {
                dtype: a.dtype,
                shape,
            })
        }
        Op::Cast { to } => one(TensorType::new(*to, &o.get(0)?.shape)),
        Op::BitCast { to } => {
            let x = o.get(0)?;
            // A byte that is neither 0 nor 1 is no bool.
            let fits = to.size_bytes() == x.dtype.size_bytes()
                && (*to != DType::Bool || x.dtype == DType::Bool);
            o.require(fits, "takes elements of as many bytes as it gives")?;
            one(TensorType::new(*to, &x.shape))
        }
        Op::Quantize { axis, to } => {
            o.require(o.get(0)?.dtype == DType::F32, "takes float32")?;
            one(quantized_type(o, *axis, *to, *to)?)
        }
        Op::Dequantize { axis } => one(quantized_type(o, *axis, o.get(0)?.dtype, DType::F32)?),
        Op::DequantizeBlocks { axis, block, .. } => one(in_blocks(o, *axis, *block)?),
        Op::Nibbles { shape, signed } => {
            let bytes = o.get(0)?;
            let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
            let fits = elements.is_some_and(|n| n.div_ceil(2) == bytes.elements());
            o.require(
                bytes.dtype == DType::U8 && fits,
                "takes a byte for each two integers",
            )?;
            let to = if *signed { DType::I8 } else { DType::U8 };
            one(TensorType::new(to, shape))
        }
        Op::Float8s { .. } => {
            let bytes = o.get(0)?;
            o.require(bytes.dtype == DType::U8, "takes bytes")?;
            one(TensorType::new(DType::F32, &bytes.shape))
        }
        Op::RoundToFloat8 { .. } => {
            o.require(o.get(0)?.dtype == DType::F32, "takes float32")?;
            one(o.get(0)?.clone())
        }
        Op::CoveringSteps => {
            o.require(o.get(0)?.dtype == DType::F32, "takes float32")?;
            Ok([DType::F32, DType::U8]
                .map(|one| TensorType::new(one, &[]))
                .to_vec())
        }
        Op::Det => spectrum::det(o),
        Op::Inverse => spectrum::inverse(o),
        Op::Dft(dft) => spectrum::dft(dft, o),
        Op::Stft(stft) => spectrum::stft(stft, o),
        Op::Sampling(of) => sampling::infer(of, o),
        Op::TfIdf(of) => learned::tf_idf(of, o),
        Op::Trees(of) => learned::trees(of, o),
        Op::Conv(..)
        | Op::ConvTranspose { .. }
        | Op::Pool { .. }
        | Op::GlobalPool(_)
        | Op::PanelConv(_)
        | Op::PanelDepthwise(_) => window::infer(op, o),
        Op::Bands(bands) => match bands.layer_types(o.inputs) {
            Ok(mut types) => Ok(types.drain(types.len() - 1..).collect()),
            Err(reason) => o.fail(reason),
        },
        Op::MatMul
        | Op::Gemm { .. }
        | Op::Einsum { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::TopK { .. }
        | Op::CumSum { .. }
        | Op::Softmax { .. }
        | Op::BatchNorm { .. }
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::InstanceNorm { .. }
        | Op::GroupNorm { .. }
        | Op::LpNorm { .. }
        | Op::Lrn { .. }
        | Op::Lstm(_)
        | Op::Gru { .. }
        | Op::Rnn(_)
        | Op::PanelLinear(_)
        | Op::ScaleShift { .. } => compute::infer(op, o),
        Op::BatchNormTraining { .. } => compute::batch_norm_training(o),
        Op::Dropout { ratio, .. } => update::dropout(*ratio, o),
        Op::Update(of) => update::update(*of, o),
        Op::UpdatePart { update, start } => update::update_part(*update, *start, o),
        Op::Gradient(gradient) => gradient::infer(gradient, o),
        Op::Late(of) => late::infer(of, o),
        Op::Rows(of) => one(strips::rows(of, o)?),
        Op::PutRows(of) => one(strips::put(of, o)?),
        Op::Moments => one(strips::moments(o)?),
        Op::NormFactors(of) => one(strips::factors(of, o)?),
        Op::Normalise { rows, .. } => one(strips::normalise(rows, o)?),
        Op::FoldPlaces(_) => one(strips::fold(o)?),
        Op::PoolPlaces(of) => one(strips::pool(of, o)?),
        Op::ResizeStrip(of) => one(strips::resize(of, o)?),
        Op::AttendKeys(of) => attention::over_keys(of, o),
        Op::Attention(attrs) => one(attention::infer(attrs, o)?),
        Op::Concat { .. }
        | Op::Split { .. }
        | Op::Slice { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Expand { .. }
        | Op::Tile { .. }
        | Op::Pad { .. }
        | Op::Gather { .. }
        | Op::GatherElements { .. }
        | Op::GatherNd { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. }
        | Op::DepthToSpace { .. }
        | Op::SpaceToDepth { .. }
        | Op::Resize(_)
        | Op::OneHot { .. }
        | Op::Trilu { .. }
        | Op::ReverseSequence { .. }
        | Op::EyeLike { .. }
        | Op::Reorder
        | Op::GatherRows { .. } => movement::infer(op, o),
    }
}

/// Of a quantised tensor of type `stored`, or what is made of it.
fn quantized_type(o: &Operands, axis: usize, stored: DType, to: DType) -> Inferred<TensorType> {
    let (x, scale) = (o.get(0)?, o.get(1)?);
    o.require(scale.dtype == DType::F32, "takes a float32 scale")?;
    let is_known = matches!(
        stored,
        DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32
    );
    o.require(is_known, "takes integers of 8, 16 or 32 bits")?;
    let along = |ty: &TensorType| {
        ty.shape.len() <= 1 && (ty.elements() == 1 || Some(&ty.elements()) == x.shape.get(axis))
    };
    o.require(along(scale), "has a scale of another shape")?;
    if let Some(Some(zero)) = o.inputs.get(2) {
        o.require(
            zero.dtype == stored && zero.elements() == scale.elements() && along(zero),
            "has a zero point of another type or shape",
        )?;
    }
    Ok(TensorType::new(to, &x.shape))
}

/// Of a tensor quantised in blocks, when it is dequantised.
fn in_blocks(o: &Operands, axis: usize, block: usize) -> Inferred<TensorType> {
    let (x, scale) = (o.get(0)?, o.get(1)?);
    let is_known = matches!(
        x.dtype,
        DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32
    );
    o.require(is_known, "takes integers of 8, 16 or 32 bits")?;
    o.require(scale.dtype == DType::F32, "takes a float32 scale")?;
    o.require(
        block > 0 && axis < x.shape.len(),
        "has blocks along no axis",
    )?;
    let mut blocks = x.shape.clone();
    blocks[axis] = blocks[axis].div_ceil(block);
    o.require(scale.shape == blocks, "has a scale of another shape")?;
    if let Some(Some(zero)) = o.inputs.get(2) {
        o.require(
            zero.dtype == x.dtype && (zero.shape == blocks || zero.shape.is_empty()),
            "has a zero point of another type or shape",
        )?;
    }
    Ok(TensorType::new(DType::F32, &x.shape))
}

fn unary_type(unary: Unary, o: &Operands) -> Inferred<TensorType> {
    let x = o.get(0)?;
    let (fits, takes) = match unary {
        Unary::Identity => (true, ""),
        Unary::Not => (x.dtype == DType::Bool, "takes booleans"),
        Unary::BitwiseNot => (is_int(x.dtype), "takes integers"),
        Unary::Abs | Unary::Sign => (is_numeric(x.dtype), "takes numbers"),
        Unary::Neg => (
            x.dtype.is_float() || x.dtype.is_signed_int(),
            "takes signed numbers",
        ),
        Unary::Activation(crate::op::Activation::None) => (true, ""),
        Unary::Activation(crate::op::Activation::Relu | crate::op::Activation::Clip { .. }) => {
            (is_numeric(x.dtype), "takes numbers")
        }
        _ => (x.dtype.is_float(), "takes floating-point numbers"),
    };
    o.require(fits, takes)?;
    let dtype = match unary {
        Unary::IsNan | Unary::IsInf { .. } => DType::Bool,
        _ => x.dtype,
    };
    Ok(TensorType::new(dtype, &x.shape))
}

fn binary_type(binary: Binary, o: &Operands) -> Inferred<TensorType> {
    let (a, b) = (o.get(0)?, o.get(1)?);
    if binary != Binary::Pow {
        o.same_dtype(a, b)?;
    }
    let (fits, takes) = match binary {
        Binary::And | Binary::Or | Binary::Xor => (a.dtype == DType::Bool, "takes booleans"),
        Binary::BitAnd | Binary::BitOr | Binary::BitXor => (is_int(a.dtype), "takes integers"),
        Binary::ShiftLeft | Binary::ShiftRight => (
            is_int(a.dtype) && !a.dtype.is_signed_int(),
            "takes unsigned integers",
        ),
        Binary::Equal => (true, ""),
        _ => (is_numeric(a.dtype) && is_numeric(b.dtype), "takes numbers"),
    };
    o.require(fits, takes)?;
    let shape = o.broadcast(&a.shape, &b.shape)?;
    if binary == Binary::PRelu {
        o.require(shape == a.shape, "slope does not broadcast to the input")?;
    }
    let dtype = if binary.gives_bool() {
        DType::Bool
    } else {
        a.dtype
    };
    Ok(TensorType { dtype, shape })
}

pub(crate) fn is_int(dtype: DType) -> bool {
    !dtype.is_float() && dtype != DType::Bool
}

fn is_numeric(dtype: DType) -> bool {
    dtype != DType::Bool
}

/// The operands of one node, with checks that name its operator.
struct Operands<'a> {
    op: &'static str,
    inputs: &'a [Option<TensorType>],
    outputs: usize,
}

impl<'a> Operands<'a> {
    fn get(&self, index: usize) -> Inferred<&'a TensorType> {
        match self.opt(index) {
            Some(ty) => Ok(ty),
            None => self.fail(format!("input {index} is missing")),
        }
    }

    fn opt(&self, index: usize) -> Option<&'a TensorType> {
        self.inputs.get(index).and_then(Option::as_ref)
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Inferred<T> {
        Err(InferError {
            op: self.op,
            reason: reason.into(),
        })
    }

    fn require(&self, condition: bool, reason: &str) -> Inferred<()> {
        if condition { Ok(()) } else { self.fail(reason) }
    }

    fn require_float(&self, ty: &TensorType) -> Inferred<()> {
        if ty.dtype.is_float() {
            Ok(())
        } else {
            self.fail(format!("takes floating-point numbers, not {}", ty.dtype))
        }
    }

    fn require_axis(&self, axis: usize, rank: usize) -> Inferred<()> {
        if axis < rank {
            Ok(())
        } else {
            self.fail(format!("axis {axis} is out of range for rank {rank}"))
        }
    }

    fn require_shape(&self, index: usize, shape: &[usize]) -> Inferred<()> {
        match self.opt(index) {
            Some(ty) if ty.shape != shape => self.fail(format!(
                "input {index} has shape {:?} where {shape:?} is needed",
                ty.shape
            )),
            _ => Ok(()),
        }
    }

    /// A per-channel parameter of the same type as input 0.
    fn require_like(&self, index: usize, shape: &[usize]) -> Inferred<()> {
        self.require_shape(index, shape)?;
        match self.opt(index) {
            Some(ty) => self.same_dtype(self.get(0)?, ty),
            None => Ok(()),
        }
    }

    fn same_dtype(&self, a: &TensorType, b: &TensorType) -> Inferred<()> {
        if a.dtype == b.dtype {
            Ok(())
        } else {
            self.fail(format!("cannot mix {} and {}", a.dtype, b.dtype))
        }
    }

    fn broadcast(&self, a: &[usize], b: &[usize]) -> Inferred<Vec<usize>> {
        match broadcast(a, b) {
            Some(shape) => Ok(shape),
            None => self.fail(format!("shapes {a:?} and {b:?} do not broadcast")),
        }
    }

    fn mul(&self, a: usize, b: usize) -> Inferred<usize> {
        match a.checked_mul(b) {
            Some(product) => Ok(product),
            None => self.fail("sizes overflow"),
        }
    }

    fn product(&self, dims: &[usize]) -> Inferred<usize> {
        dims.iter().try_fold(1, |n, &d| self.mul(n, d))
    }

    /// As [`crate::Graph::check`]: sizes in bytes, padded to blocks, must fit with room to spare.
    fn check_size(&self, shape: &[usize]) -> Inferred<()> {
        let elements = self.product(shape)?;
        let fits = elements
            .checked_mul(16)
            .is_some_and(|n| n <= isize::MAX as usize / 16);
        self.require(fits, "the result is impossibly large")
    }
}

#[cfg(test)]
mod tests;
