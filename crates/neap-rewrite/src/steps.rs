//! Products whose activations are unsigned bytes when they are multiplied: their own steps are read.
//!
//! ```text
//!   DynamicQuantizeLinear -> MatMulInteger -> * (scale * scale of w) -> + bias -> Gelu      one PanelLinear in integers
//!   DynamicQuantizeLinear -> ConvInteger   -> the same                                      one PanelConv in integers
//! ```

use crate::RewriteError;
use crate::constants::ConstReader;
use crate::edit::{Editor, is_const_f32, output};
use crate::fuse::{operands, other};
use crate::stored::{StoredWeight, floats};
use neap_ir::op::{Binary, Op};
use neap_ir::recipe::Affine;
use neap_ir::{DType, Literal, ValueId};
use neap_kernels::integer::MOST_K;

/// Steps, their scale and their zero point.
#[derive(Clone, Copy)]
pub(crate) struct StepsSource {
    pub x: ValueId,
    pub scale: ValueId,
    pub zero: ValueId,
}

/// The steps that `x` is dequantised from, where a product with these weights is computed in integers.
pub(crate) fn steps_before(
    editor: &mut Editor,
    x: ValueId,
    stored: &StoredWeight,
    k: usize,
) -> Option<StepsSource> {
    let node = editor.node(editor.producer(x)?);
    let one = |editor: &Editor, value: ValueId| editor.ty(value).elements() == 1;
    let (&Op::Dequantize { .. }, Some(steps), Some(scale)) =
        (&node.op, node.input(0), node.input(1))
    else {
        return None;
    };
    let zero = node.input(2);
    let fits = editor.ty(steps).dtype == DType::U8
        && !editor.is_const(steps)
        && one(editor, scale)
        && zero.is_none_or(|zero| one(editor, zero))
        && is_in_bytes(editor, stored)
        && k <= MOST_K;
    if !fits {
        return None;
    }
    let zero = match zero {
        Some(zero) => zero,
        None => editor.graph.add_literal("zero", byte(0)),
    };
    Some(StepsSource {
        x: steps,
        scale,
        zero,
    })
}

pub(crate) fn byte(zero: u8) -> Literal {
    Literal::from_bytes(DType::U8, &[], &[zero]).unwrap_or_else(|| Literal::from_f32(&[], &[0.0]))
}

fn is_in_bytes(editor: &Editor, stored: &StoredWeight) -> bool {
    matches!(editor.ty(stored.constant).dtype, DType::I8 | DType::U8)
}

/// Whether a constant of this shape has one number for each of `n` channels, behind which there are `inner` axes.
pub(crate) fn is_of_channels(shape: &[usize], n: usize, inner: usize) -> bool {
    let channels = shape.len().checked_sub(inner + 1);
    channels.is_some_and(|at| shape[at] == n) && shape.iter().product::<usize>() == n
}

/// A multiplication with one number, or with one for each column (of a convolution, for each channel before `inner` axes), that
/// follows a product of steps: the last node of the product then.
pub(crate) fn absorb_scale(
    editor: &Editor,
    at: usize,
    n: usize,
    inner: usize,
    affine: &mut Affine,
    source: &mut StepsSource,
    reader: &mut dyn ConstReader,
) -> Result<usize, RewriteError> {
    let product = output(editor, at);
    let found = (|| {
        let mul = editor.sole_user(product)?;
        let factor = other(operands(editor, mul, Binary::Mul)?, product)?;
        let same = editor.ty(output(editor, mul)) == editor.ty(product);
        same.then_some((mul, factor))
    })();
    let Some((mul, factor)) = found else {
        return Ok(at);
    };
    let own_is_one = editor.scalar(source.scale) == Some(1.0);
    let one = |value: ValueId| editor.ty(value).elements() == 1;
    let row = |value: ValueId| {
        let ty = editor.ty(value);
        is_const_f32(editor, value) && (one(value) || is_of_channels(&ty.shape, n, inner))
    };
    let mut constant = None;
    if row(factor) {
        constant = Some(factor);
    } else if own_is_one && one(factor) {
        source.scale = factor;
    } else {
        let parts = (|| operands(editor, editor.producer(factor)?, Binary::Mul))();
        match parts {
            Some([a, b]) if own_is_one && one(a) && row(b) => {
                (source.scale, constant) = (a, Some(b));
            }
            Some([a, b]) if own_is_one && one(b) && row(a) => {
                (source.scale, constant) = (b, Some(a));
            }
            _ => return Ok(at),
        }
    }
    if let Some(constant) = constant {
        let factors = floats(editor, constant, reader)?;
        let scale = affine.scale.get_or_insert_with(|| vec![1.0; n]);
        for (i, scale) in scale.iter_mut().enumerate() {
            *scale *= factors[i % factors.len()];
        }
    }
    Ok(mul)
}
