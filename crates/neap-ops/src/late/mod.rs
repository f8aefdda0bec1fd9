//! Operators over sizes that are known only when running: each is resolved to one over actual sizes, which then runs.
//!
//! ```text
//!   operands of actual types ─► sizes: the operator with its attributes ─► inference ─► within bounds? ─► execute
//!                               find:  what the data decide                            types of the results
//! ```
//! One whose guard does not hold is passed over: its late sizes are none.
//! A loop by its body runs the operators of that one after the other (`repeat`).
//! Types of a step's operands are copied while it is resolved: a few hundred bytes, given back before it ends.

mod branch;
mod find;
mod range;
mod repeat;
mod sizes;
mod unique;

use crate::args::Args;
use crate::window::conv;
use crate::{Context, OpError, TensorMut, TensorRef, execute, query};
use neap_ir::late::{Bound, Late, LateOp};
use neap_ir::{Layout, Op, TensorType, infer};
use neap_kernels::simd::Isa;
use query::OperandForm;
pub(crate) use repeat::{flops as loop_flops, inner_bytes as loop_bytes};

/// Computes `outputs`, whose places are as large as the operator's bounds, from `inputs` of actual types.
/// `actual` has an entry for each output of the node, and becomes what the results are: they lie at the beginning of their places.
///
/// # Errors
/// [`OpError`] where operands do not fit together, a result exceeds its bound (nothing is written then), or the
/// operator cannot be computed.
pub fn execute_late(
    late: &Late,
    inputs: &[Option<TensorRef>],
    outputs: &[Option<TensorMut>],
    actual: &mut [TensorType],
    ctx: &mut Context,
) -> Result<(), OpError> {
    let mut call = Call {
        args: Args {
            op: late.op.name(),
            inputs: late.operands(inputs),
            outputs,
        },
        bounds: &late.bounds,
        actual,
    };
    if !branch::is_due(late, inputs)? {
        call.pass_over();
        return Ok(());
    }
    let inputs = call.args.inputs;
    match &late.op {
        LateOp::Over(op) => call.run(op, inputs, ctx),
        LateOp::NonZero => find::non_zero(&mut call),
        LateOp::Compress { axis } => find::compress(*axis, &mut call),
        LateOp::Unique { axis, sorted } => unique::unique(*axis, *sorted, &mut call, ctx),
        LateOp::NonMaxSuppression { center_point_box } => {
            find::non_max_suppression(*center_point_box, &mut call, ctx)
        }
        LateOp::Shape { start, end } => {
            let x = call.args.input(0)?;
            let sizes = x.shape().get(*start..*end).unwrap_or_default();
            call.indices(0, &[sizes.len()], sizes.iter().map(|&d| d as i64))
        }
        LateOp::Size => {
            let elements = call.args.input(0)?.elements() as i64;
            call.indices(0, &[], std::iter::once(elements))
        }
        LateOp::Range => range::range(&mut call),
        LateOp::Gate { not } => branch::gate(*not, &mut call),
        LateOp::Select => branch::select(&mut call),
        LateOp::Count => branch::count(&mut call),
        LateOp::Ended { passes } => branch::ended(*passes, &mut call),
        LateOp::Repeat(of) => repeat::repeat(of, &mut call, ctx),
        of => {
            let resolved = sizes::resolve(of, &call.args)?;
            call.run(&resolved.op, &resolved.inputs, ctx)
        }
    }
}

/// One execution.
pub(super) struct Call<'c, 'a> {
    pub args: Args<'c, 'a>,
    bounds: &'c [Bound],
    actual: &'c mut [TensorType],
}

impl<'a> Call<'_, 'a> {
    /// An operator whose attributes are known by now.
    fn run(
        &mut self,
        op: &Op,
        inputs: &[Option<TensorRef>],
        ctx: &mut Context,
    ) -> Result<(), OpError> {
        let types: Vec<Option<TensorType>> =
            inputs.iter().map(|t| t.map(|t| t.ty.clone())).collect();
        let results = infer::output_types(op, &types, self.args.outputs.len())?;
        let mut places = Vec::with_capacity(results.len());
        for (index, ty) in results.iter().enumerate() {
            let place = self.admit(index, ty)?;
            // SAFETY: the place holds the bound, which admits the type.
            places.push(place.map(|p| unsafe { TensorMut::new(ty, Layout::Plain, p.as_ptr()) }));
        }
        let operands: Vec<OperandForm> = types.iter().map(|t| t.as_ref().map(plain)).collect();
        let wanted = results.iter().zip(&places);
        let wanted: Vec<OperandForm> = wanted.map(|(t, p)| p.map(|_| plain(t))).collect();
        query::supported(op, &operands, &wanted)?;
        execute(op, inputs, None, &places, ctx)
    }

    /// Notes the actual type of a result, whose place is given; `None` where it is not wanted.
    pub fn admit(
        &mut self,
        index: usize,
        ty: &TensorType,
    ) -> Result<Option<TensorMut<'a>>, OpError> {
        let fits = self.bounds.get(index).is_some_and(|bound| bound.admits(ty));
        if !fits {
            let most = self.bounds.get(index).map(|bound| &bound.ty.shape);
            return Err(OpError::data(
                self.args.op,
                format!(
                    "result {index} has shape {:?}, but memory is planned for {:?} at most",
                    ty.shape,
                    most.unwrap_or(&Vec::new())
                ),
            ));
        }
        let Some(actual) = self.actual.get_mut(index) else {
            return self.args.fail("has no room for the types of its results");
        };
        actual.dtype = ty.dtype;
        actual.shape.clear();
        actual.shape.extend_from_slice(&ty.shape);
        Ok(self.args.opt_output(index))
    }

    /// Nobody reads the results: those of late sizes are empty.
    fn pass_over(&mut self) {
        for (bound, actual) in self.bounds.iter().zip(&mut *self.actual) {
            actual.dtype = bound.ty.dtype;
            actual.shape.clear();
            let sizes = bound.ty.shape.iter().zip(&bound.late);
            let sizes = sizes.map(|(&most, &late)| if late { 0 } else { most });
            actual.shape.extend(sizes);
        }
    }

    /// A result of int64, if it is wanted.
    pub fn indices(
        &mut self,
        index: usize,
        shape: &[usize],
        values: impl Iterator<Item = i64>,
    ) -> Result<(), OpError> {
        let ty = TensorType::new(neap_ir::DType::I64, shape);
        let Some(place) = self.admit(index, &ty)? else {
            return Ok(());
        };
        let to = place.as_ptr().cast::<i64>();
        for (i, value) in values.take(ty.elements()).enumerate() {
            // SAFETY: the place holds the type, aligned to its elements.
            unsafe { to.add(i).write(value) };
        }
        Ok(())
    }
}

fn plain(ty: &TensorType) -> (&TensorType, Layout) {
    (ty, Layout::Plain)
}

/// Scratch that any actual sizes need, from the operands' bounds.
pub(crate) fn workspace_bytes(
    late: &Late,
    inputs: &[OperandForm],
    outputs: &[OperandForm],
    workers: usize,
    isa: Isa,
) -> usize {
    let inputs = late.operands(inputs);
    let shape = |index: usize| -> &[usize] {
        let operand = inputs.get(index).copied().flatten();
        operand.map_or(&[], |(ty, _)| &ty.shape)
    };
    match &late.op {
        LateOp::Over(Op::Conv(window, groups)) => of_windows(inputs, outputs, &|x, y| {
            conv::most_workspace_bytes(window, *groups, false, x, y, workers)
        }),
        LateOp::ConvTranspose { window, groups, .. } => of_windows(inputs, outputs, &|x, y| {
            conv::most_workspace_bytes(window, *groups, true, x, y, workers)
        }),
        LateOp::Over(op) => {
            let bytes = query::workspace_bytes(op, inputs, outputs, workers, isa);
            match op {
                // Smaller products may be divided among workers otherwise, each with a copy of its own.
                Op::MatMul | Op::Gemm { .. } | Op::Einsum { .. } => bytes.saturating_mul(workers),
                _ => bytes,
            }
        }
        LateOp::Unique { .. } => unique::workspace_bytes(shape(0)),
        LateOp::NonMaxSuppression { .. } => find::workspace_bytes(shape(0)),
        LateOp::TopK { axis, .. } => {
            crate::reduce::topk::workspace_bytes(shape(0).get(*axis).copied().unwrap_or(0), workers)
        }
        LateOp::Repeat(of) => repeat::workspace_bytes(of, workers, isa),
        of => match of_the_bound(of) {
            Some(op) => query::workspace_bytes(&op, inputs, outputs, workers, isa),
            None => 0,
        },
    }
}

/// Of an operator's first operand and result.
fn of_windows(
    inputs: &[OperandForm],
    outputs: &[OperandForm],
    bytes: &dyn Fn(&TensorType, &TensorType) -> usize,
) -> usize {
    match (inputs.first(), outputs.first()) {
        (Some(Some((x, _))), Some(Some((y, _)))) => bytes(x, y),
        _ => 0,
    }
}

/// An operator whose attributes hold sizes, with those of the bound.
pub(crate) fn of_the_bound(of: &LateOp) -> Option<Op> {
    Some(match of {
        LateOp::Resize(attrs) => Op::Resize(attrs.clone()),
        LateOp::ConvTranspose {
            window,
            groups,
            output_spatial,
            ..
        } => Op::ConvTranspose {
            window: window.clone(),
            groups: *groups,
            output_spatial: output_spatial.clone(),
        },
        _ => return None,
    })
}

/// Whether it can be computed, as far as bounds tell. Each run asks again for its actual sizes.
pub(crate) fn supported(
    late: &Late,
    inputs: &[OperandForm],
    outputs: &[OperandForm],
) -> Result<(), OpError> {
    let operands = || inputs.iter().chain(outputs).flatten();
    if operands().any(|(_, layout)| *layout != Layout::Plain) {
        return Err(OpError::unsupported(
            late.op.name(),
            "in blocks of channels",
        ));
    }
    match &late.op {
        LateOp::Over(op) => query::supported(op, late.operands(inputs), outputs),
        LateOp::Repeat(of) => repeat::supported(of),
        of => match of_the_bound(of) {
            Some(op) => query::supported(&op, late.operands(inputs), outputs),
            None => Ok(()),
        },
    }
}
