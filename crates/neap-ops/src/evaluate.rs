//! Runs an operator on literals: constant folding and tests.

use crate::{Context, OpError, TensorMut, TensorRef, execute, execute_late, query};
use neap_ir::{Layout, Literal, Op, TensorType, infer};
use neap_kernels::parallel::Serial;
use neap_kernels::simd::Isa;

/// Infers, allocates and executes serially. Gives `outputs` results (most operators have one).
///
/// # Errors
/// [`OpError`] where types do not fit, or the operator cannot be computed.
pub fn evaluate(op: &Op, inputs: &[Option<&Literal>]) -> Result<Vec<Literal>, OpError> {
    evaluate_outputs(op, inputs, default_outputs(op))
}

/// [`evaluate`] with the number of results said: for optional trailing outputs.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_outputs(
    op: &Op,
    inputs: &[Option<&Literal>],
    outputs: usize,
) -> Result<Vec<Literal>, OpError> {
    let results = evaluate_wanted(op, inputs, &vec![true; outputs])?;
    Ok(results.into_iter().flatten().collect())
}

/// [`evaluate`] of the results that are wanted; the others are left out as a graph's node may.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_wanted(
    op: &Op,
    inputs: &[Option<&Literal>],
    wanted: &[bool],
) -> Result<Vec<Option<Literal>>, OpError> {
    let types: Vec<Option<TensorType>> = inputs.iter().map(|l| l.map(Literal::ty)).collect();
    // Of late results these are the most that there can be.
    let mut out_types = infer::output_types(op, &types, wanted.len())?;

    let in_operands: Vec<query::OperandForm> = types
        .iter()
        .map(|t| t.as_ref().map(|t| (t, Layout::Plain)))
        .collect();
    let out_operands: Vec<query::OperandForm> = out_types
        .iter()
        .zip(wanted)
        .map(|(t, &wanted)| wanted.then_some((t, Layout::Plain)))
        .collect();
    query::supported(op, &in_operands, &out_operands)?;
    let isa = Isa::detect();
    let bytes = query::workspace_bytes(op, &in_operands, &out_operands, 1, isa);

    let mut results: Vec<Option<Literal>> = out_types
        .iter()
        .zip(wanted)
        .map(|(t, &wanted)| wanted.then(|| Literal::zeros(t.dtype, &t.shape)))
        .collect();
    let refs: Vec<Option<TensorRef>> = inputs
        .iter()
        .zip(&types)
        .map(|(l, t)| {
            l.zip(t.as_ref())
                .and_then(|(l, t)| TensorRef::from_bytes(t, l.bytes()))
        })
        .collect();
    let bounds = out_types.clone();
    let muts: Vec<Option<TensorMut>> = results
        .iter_mut()
        .zip(&bounds)
        .map(|(l, t)| {
            l.as_mut()
                .and_then(|l| TensorMut::from_bytes(t, l.bytes_mut()))
        })
        .collect();
    let mut workspace = vec![0u64; bytes.div_ceil(8)];
    let mut ctx = Context {
        par: &Serial,
        isa,
        workspace: bytemuck::cast_slice_mut(&mut workspace),
    };
    match op {
        Op::Late(of) => execute_late(of, &refs, &muts, &mut out_types, &mut ctx)?,
        _ => execute(op, &refs, None, &muts, &mut ctx)?,
    }
    let actual = results.into_iter().zip(&out_types);
    Ok(actual
        .map(|(literal, ty)| literal.and_then(|l| of_type(l, ty)))
        .collect())
}

/// The beginning of a result whose actual type is known.
fn of_type(literal: Literal, ty: &TensorType) -> Option<Literal> {
    if literal.shape() == ty.shape {
        return Some(literal);
    }
    let bytes = literal.bytes().get(..ty.len_bytes())?;
    Literal::from_bytes(ty.dtype, &ty.shape, bytes)
}

/// Outputs that are always there.
fn default_outputs(op: &Op) -> usize {
    match op {
        Op::TopK { .. } | Op::CoveringSteps => 2,
        Op::Split { sizes, .. } => sizes.len(),
        _ => 1,
    }
}
