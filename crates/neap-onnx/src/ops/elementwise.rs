//! Element-wise operators: arithmetic, comparison, logic, activations, casts.

use super::cast;
use crate::error::OnnxError;
use crate::narrow::Narrow;
use crate::node::{Ctx, Outputs, one, scalar, to_f64_vec};
use crate::tensor;
use neap_ir::op::{Activation, Binary, Generator, Unary};
use neap_ir::{DType, Literal, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "Add" => binary(c, Binary::Add),
        "Sub" => binary(c, Binary::Sub),
        "Mul" => binary(c, Binary::Mul),
        "Div" => binary(c, Binary::Div),
        "Pow" => one(pow(c)),
        "Mod" => one(modulo(c)),
        "Equal" => binary(c, Binary::Equal),
        "Less" => binary(c, Binary::Less),
        "LessOrEqual" => binary(c, Binary::LessOrEqual),
        "Greater" => binary(c, Binary::Greater),
        "GreaterOrEqual" => binary(c, Binary::GreaterOrEqual),
        "And" => binary(c, Binary::And),
        "Or" => binary(c, Binary::Or),
        "Xor" => binary(c, Binary::Xor),
        "BitwiseAnd" => binary(c, Binary::BitAnd),
        "BitwiseOr" => binary(c, Binary::BitOr),
        "BitwiseXor" => binary(c, Binary::BitXor),
        "BitShift" => one(bit_shift(c)),
        "PRelu" => one(prelu(c)),
        "Swish" => one(c.input(0).and_then(|x| swish(c, x))),
        "SwiGLU" => one(swiglu(c)),
        "Min" => one(variadic(c, Binary::Min)),
        "Max" => one(variadic(c, Binary::Max)),
        "Sum" => one(variadic(c, Binary::Add)),
        "Mean" => one(mean(c)),
        "Clip" => one(clip(c)),
        "Where" => one(where_(c)),
        "Cast" => one(cast_to(c)),
        "CastLike" => one(cast_like(c)),
        "BitCast" => one(bit_cast(c)),
        "Identity" => one(c.input(0)),
        "Dropout" => dropout(c),
        _ => {
            let unary = match unary_operator(c, op)? {
                Ok(unary) => unary,
                Err(e) => return Some(Err(e)),
            };
            one(c.input(0).and_then(|x| c.unary(unary, x)))
        }
    })
}

/// The operators that are one function of one input.
fn unary_operator(c: &Ctx, op: &str) -> Option<Result<Unary, OnnxError>> {
    let act = |a: Activation| Ok(Unary::Activation(a));
    Some(match op {
        "Abs" => Ok(Unary::Abs),
        "Neg" => Ok(Unary::Neg),
        "Floor" => Ok(Unary::Floor),
        "Ceil" => Ok(Unary::Ceil),
        "Round" => Ok(Unary::Round),
        "Sign" => Ok(Unary::Sign),
        "Sqrt" => Ok(Unary::Sqrt),
        "Reciprocal" => Ok(Unary::Reciprocal),
        "Exp" => Ok(Unary::Exp),
        "Log" => Ok(Unary::Log),
        "Sin" => Ok(Unary::Sin),
        "Cos" => Ok(Unary::Cos),
        "Tan" => Ok(Unary::Tan),
        "Asin" => Ok(Unary::Asin),
        "Acos" => Ok(Unary::Acos),
        "Atan" => Ok(Unary::Atan),
        "Sinh" => Ok(Unary::Sinh),
        "Cosh" => Ok(Unary::Cosh),
        "Asinh" => Ok(Unary::Asinh),
        "Acosh" => Ok(Unary::Acosh),
        "Atanh" => Ok(Unary::Atanh),
        "Erf" => Ok(Unary::Erf),
        "Softplus" => Ok(Unary::Softplus),
        "Softsign" => Ok(Unary::Softsign),
        "Mish" => Ok(Unary::Mish),
        "Not" => Ok(Unary::Not),
        "BitwiseNot" => Ok(Unary::BitwiseNot),
        "IsNaN" => Ok(Unary::IsNan),
        "IsInf" => is_inf(c),
        "Elu" => c.float("alpha", 1.0).map(|alpha| Unary::Elu { alpha }),
        "Celu" => c.float("alpha", 1.0).map(|alpha| Unary::Celu { alpha }),
        "Selu" => selu(c),
        "Shrink" => shrink(c),
        "ThresholdedRelu" => c
            .float("alpha", 1.0)
            .map(|alpha| Unary::ThresholdedRelu { alpha }),
        "Relu" => act(Activation::Relu),
        "Sigmoid" => act(Activation::Sigmoid),
        "Tanh" => act(Activation::Tanh),
        "HardSwish" => act(Activation::HardSwish),
        "LeakyRelu" => c
            .float("alpha", 0.01)
            .and_then(|alpha| act(Activation::LeakyRelu { alpha })),
        "HardSigmoid" => hard_sigmoid(c),
        "Gelu" => gelu(c),
        _ => return None,
    })
}

fn is_inf(c: &Ctx) -> Result<Unary, OnnxError> {
    Ok(Unary::IsInf {
        positive: c.flag("detect_positive", true)?,
        negative: c.flag("detect_negative", true)?,
    })
}

fn selu(c: &Ctx) -> Result<Unary, OnnxError> {
    Ok(Unary::Selu {
        alpha: c.float("alpha", 1.673_263_2)?,
        gamma: c.float("gamma", 1.050_701)?,
    })
}

fn shrink(c: &Ctx) -> Result<Unary, OnnxError> {
    Ok(Unary::Shrink {
        lambda: c.float("lambd", 0.5)?,
        bias: c.float("bias", 0.0)?,
    })
}

fn hard_sigmoid(c: &Ctx) -> Result<Unary, OnnxError> {
    Ok(Unary::Activation(Activation::HardSigmoid {
        alpha: c.float("alpha", 0.2)?,
        beta: c.float("beta", 0.5)?,
    }))
}

fn gelu(c: &Ctx) -> Result<Unary, OnnxError> {
    match c.string("approximate", "none")? {
        "none" => Ok(Unary::Activation(Activation::Gelu)),
        "tanh" => Ok(Unary::Activation(Activation::GeluTanh)),
        _ => Err(c.bad("attribute 'approximate' is neither none nor tanh")),
    }
}

fn binary(c: &mut Ctx, op: Binary) -> Outputs {
    let (a, b) = (c.input(0)?, c.input(1)?);
    one(c.binary(op, a, b))
}

/// Base and exponent may have different types; the result has the base's.
fn pow(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (base, exponent) = (c.input(0)?, c.input(1)?);
    let (dtype, exponent_dtype) = (c.dtype(base), c.dtype(exponent));
    if dtype == exponent_dtype {
        return c.binary(Binary::Pow, base, exponent);
    }
    if !dtype.is_float() && exponent_dtype.is_float() {
        let wide = c.cast(base, exponent_dtype)?;
        let power = c.binary(Binary::Pow, wide, exponent)?;
        return c.cast(power, dtype);
    }
    let exponent = c.cast(exponent, dtype)?;
    c.binary(Binary::Pow, base, exponent)
}

fn modulo(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (a, b) = (c.input(0)?, c.input(1)?);
    let fmod = c.flag("fmod", false)?;
    c.binary(Binary::Mod { fmod }, a, b)
}

/// Signed integers are shifted as unsigned ones of their bits. Since opset 28.
fn bit_shift(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (a, b) = (c.input(0)?, c.input(1)?);
    let op = match c.string("direction", "")? {
        "LEFT" => Binary::ShiftLeft,
        "RIGHT" => Binary::ShiftRight,
        _ => return Err(c.bad("attribute 'direction' is neither LEFT nor RIGHT")),
    };
    let dtype = c.dtype(a);
    let unsigned = match dtype {
        DType::I8 => DType::U8,
        DType::I16 => DType::U16,
        DType::I32 => DType::U32,
        DType::I64 => DType::U64,
        _ => return c.binary(op, a, b),
    };
    if c.version < 28 || c.dtype(b) != dtype {
        return Err(c.bad("it takes unsigned integers before opset 28, and two of one type"));
    }
    // A negative number of places is more than there are bits.
    let (bits, places) = (c.cast(a, unsigned)?, c.cast(b, unsigned)?);
    if op == Binary::ShiftLeft {
        let shifted = c.binary(op, bits, places)?;
        return c.cast(shifted, dtype);
    }
    // Ones move into negative numbers: they are zeros of the complement.
    let zero = c.scalar(dtype, 0.0)?;
    let is_negative = c.binary(Binary::Less, a, zero)?;
    let complement = c.unary(Unary::BitwiseNot, bits)?;
    let bits = c.emit(Op::Where, &[is_negative, complement, bits])?;
    let shifted = c.binary(op, bits, places)?;
    let complement = c.unary(Unary::BitwiseNot, shifted)?;
    let shifted = c.emit(Op::Where, &[is_negative, complement, shifted])?;
    c.cast(shifted, dtype)
}

/// `x * sigmoid(alpha * x)`
fn swish(c: &mut Ctx, x: ValueId) -> Result<ValueId, OnnxError> {
    let alpha = c.float("alpha", 1.0)?;
    if alpha == 1.0 {
        return c.unary(Unary::Activation(Activation::Silu), x);
    }
    let alpha = c.scalar(c.dtype(x), alpha.into())?;
    let scaled = c.binary(Binary::Mul, x, alpha)?;
    let gate = c.unary(Unary::Activation(Activation::Sigmoid), scaled)?;
    c.binary(Binary::Mul, x, gate)
}

/// The second operand through a gate that the first one opens.
fn swiglu(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (gate, x) = (c.input(0)?, c.input(1)?);
    if c.ty(gate) != c.ty(x) {
        return Err(c.bad("its operands differ in shape or element type"));
    }
    let gate = swish(c, gate)?;
    c.binary(Binary::Mul, gate, x)
}

/// The slope broadcasts to x, but may also be `[C]` as exporters write it.
fn prelu(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, slope) = (c.input(0)?, c.input(1)?);
    let (shape, slope_shape) = (c.shape(x), c.shape(slope));
    let per_channel = slope_shape.len() == 1
        && shape.len() > 2
        && slope_shape[0] == shape[1]
        && slope_shape[0] != 1
        && shape[shape.len() - 1] != slope_shape[0];
    let slope = if per_channel {
        let mut aligned = vec![1; shape.len() - 1];
        aligned[0] = slope_shape[0];
        c.reshape(slope, &aligned)?
    } else {
        slope
    };
    // Both broadcast, though the standard says that the slope does.
    let (shape, slope_shape) = (c.shape(x), c.shape(slope));
    let rank = shape.len().max(slope_shape.len());
    let size = |of: &[usize], axis: usize| match (axis + of.len()).checked_sub(rank) {
        Some(own) => of[own],
        None => 1,
    };
    let both = (0..rank).map(|axis| match size(&shape, axis) {
        1 => size(&slope_shape, axis),
        own => own,
    });
    let both: Vec<usize> = both.collect();
    let x = match c.builder.is_late(x) {
        false if both != shape => c.expand(x, &both)?,
        _ => x,
    };
    c.binary(Binary::PRelu, x, slope)
}

fn variadic(c: &mut Ctx, op: Binary) -> Result<ValueId, OnnxError> {
    let inputs = c.variadic()?;
    let mut result = inputs[0];
    for &next in &inputs[1..] {
        result = c.binary(op, result, next)?;
    }
    Ok(result)
}

fn mean(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let sum = variadic(c, Binary::Add)?;
    let count = c.inputs.len();
    if count == 1 {
        return Ok(sum);
    }
    let count = c.scalar(c.dtype(sum), count as f64)?;
    c.binary(Binary::Div, sum, count)
}

fn clip(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let (low, high) = if c.version < 11 {
        let low = c.float("min", f32::MIN)?;
        let high = c.float("max", f32::MAX)?;
        let limit = |v: f32, none: f32| (v != none).then_some(f64::from(v));
        return clip_known(c, x, limit(low, f32::MIN), limit(high, f32::MAX));
    } else {
        (c.optional(1), c.optional(2))
    };
    let mut limits = [None, None];
    for (limit, bound) in limits.iter_mut().zip([low, high]) {
        if let Some(bound) = bound {
            match exact_limit(c, bound)? {
                Some(value) => *limit = Some(value),
                // Not known, or not a f64: the two comparisons that Clip is short for.
                None => return clip_computed(c, x, low, high),
            }
        }
    }
    clip_known(c, x, limits[0], limits[1])
}

fn clip_known(
    c: &mut Ctx,
    x: ValueId,
    low: Option<f64>,
    high: Option<f64>,
) -> Result<ValueId, OnnxError> {
    // Limits that limit nothing.
    let low = low.filter(|&v| v != f64::NEG_INFINITY);
    let high = high.filter(|&v| v != f64::INFINITY);
    c.emit(Op::Clip { low, high }, &[x])
}

fn clip_computed(
    c: &mut Ctx,
    x: ValueId,
    low: Option<ValueId>,
    high: Option<ValueId>,
) -> Result<ValueId, OnnxError> {
    let mut result = x;
    for (op, limit) in [(Binary::Max, low), (Binary::Min, high)] {
        if let Some(limit) = limit {
            if c.ty(limit).elements() != 1 {
                return Err(c.bad("a limit must have one element"));
            }
            let limit = c.reshape(limit, &[])?;
            result = c.binary(op, result, limit)?;
        }
    }
    Ok(result)
}

fn exact_limit(c: &mut Ctx, limit: ValueId) -> Result<Option<f64>, OnnxError> {
    const EXACT: f64 = (1u64 << 53) as f64;
    let Some(literal) = c.builder.known(limit)? else {
        return Ok(None);
    };
    let value = match to_f64_vec(&literal).as_deref() {
        Some(&[value]) => value,
        _ => return Err(c.bad("a limit must have one element")),
    };
    let exact = literal.dtype().is_float() || value.abs() < EXACT;
    Ok((exact && !value.is_nan()).then_some(value))
}

fn where_(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = [c.input(0)?, c.input(1)?, c.input(2)?];
    c.emit(Op::Where, &inputs)
}

fn cast_to(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let to = c
        .optional_int("to")?
        .ok_or_else(|| c.bad("attribute 'to' is missing"))?;
    cast::cast(c, x, to)
}

/// Half floats are carried by wider types here, and have other bytes.
fn bit_cast(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let number = c
        .optional_int("to")?
        .ok_or_else(|| c.bad("attribute 'to' is missing"))?;
    let few_bits = Narrow::of(number).is_some() || c.builder.narrow(x).is_some();
    let to = Some(number).filter(|_| !few_bits);
    let to = to.map(|number| c.element_type(number)).transpose()?;
    let to = to.filter(|to| tensor::dtype(number).ok() == Some(*to));
    let to = to.ok_or_else(|| c.unsupported("half floats and types of fewer bits"))?;
    c.emit(Op::BitCast { to }, &[x])
}

fn cast_like(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, like) = (c.input(0)?, c.input(1)?);
    cast::cast_like(c, x, like)
}

/// Inference: the input, and a mask that keeps everything.
fn dropout(c: &mut Ctx) -> Outputs {
    let x = c.input(0)?;
    let training = c.version >= 12 && c.known_scalar(2, "training_mode")?.unwrap_or(0) != 0;
    if training {
        let ratio = match c.optional(1) {
            Some(ratio) => c.known_f32(ratio, "its ratio")?,
            None => vec![0.5],
        };
        match ratio[..] {
            [0.0] => {}
            [ratio] if 0.0 < ratio && ratio < 1.0 => return drop_some(c, x, ratio),
            _ => return Err(c.bad("its ratio must be one number from 0 to below 1")),
        }
    }
    let mask = if c.wants(1) {
        // Its value was not defined before opset 12: it is what onnxruntime gives.
        let mask = match c.version {
            ..10 => scalar(c.dtype(x), 0.0),
            10 | 11 => scalar(DType::Bool, 0.0),
            _ => scalar(DType::Bool, 1.0),
        };
        let shape = c.shape(x);
        Some(c.filled(mask, &shape)?)
    } else {
        None
    };
    Ok(vec![Some(x), mask])
}

/// Training: every run draws the same, by the node's seed as the standard's reference does. A node without a seed draws by
/// its place in the graph.
fn drop_some(c: &mut Ctx, x: ValueId, ratio: f32) -> Outputs {
    let seed = c.optional_int("seed")?;
    let stream = c.builder.graph.values.len() as u64;
    let generator = match seed {
        Some(_) => Generator::Twister,
        None => Generator::Counter { stream },
    };
    let seed = seed.unwrap_or(0);
    if u32::try_from(seed).is_err() {
        return Err(c.unsupported(format!("the seed {seed}: it is not from 0 to 2^32 - 1")));
    }
    let seed = c.constant(Literal::from_i64(&[], &[seed]));
    c.emit_outputs(Op::Dropout { ratio, generator }, &[Some(x), Some(seed)])
}
