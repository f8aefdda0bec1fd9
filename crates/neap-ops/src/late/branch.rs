//! Branches and passes that the data decide: whether an operator is due, and which result is taken.

use super::Call;
use crate::args::Args;
use crate::{OpError, TensorRef};
use neap_ir::late::Late;
use neap_ir::{DType, TensorType};

/// Whether the guard of a node holds, if it has one.
pub(super) fn is_due(late: &Late, inputs: &[Option<TensorRef>]) -> Result<bool, OpError> {
    let args = Args {
        op: late.op.name(),
        inputs,
        outputs: &[],
    };
    match late.guard(inputs) {
        Some(guard) => holds(*guard, &args),
        None => Ok(true),
    }
}

pub(super) fn holds(flag: Option<TensorRef>, args: &Args) -> Result<bool, OpError> {
    match flag.map(|flag| (flag.dtype(), flag.bytes())) {
        Some((DType::Bool, &[byte])) => Ok(byte != 0),
        _ => args.fail("takes a condition of one bool"),
    }
}

pub(super) fn gate(not: bool, call: &mut Call) -> Result<(), OpError> {
    // Where what is around it does not hold, the condition was not computed.
    let around = match call.args.opt_input(1) {
        Some(around) => holds(Some(around), &call.args)?,
        None => true,
    };
    let both = around && holds(call.args.opt_input(0), &call.args)? != not;
    let ty = TensorType::new(DType::Bool, &[]);
    if let Some(place) = call.admit(0, &ty)? {
        // SAFETY: the place holds one bool.
        unsafe { place.as_ptr().write(both.into()) };
    }
    Ok(())
}

pub(super) fn select(call: &mut Call) -> Result<(), OpError> {
    let is_first = holds(call.args.opt_input(0), &call.args)?;
    let taken = call.args.input(if is_first { 1 } else { 2 })?;
    copy(taken, call)
}

pub(super) fn count(call: &mut Call) -> Result<(), OpError> {
    let mut count = 0;
    for &flag in call.args.inputs {
        count += i64::from(holds(flag, &call.args)?);
    }
    call.indices(0, &[1], std::iter::once(count))
}

pub(super) fn ended(passes: usize, call: &mut Call) -> Result<(), OpError> {
    if holds(call.args.opt_input(0), &call.args)? {
        return Err(too_long(passes as u64, &call.args));
    }
    let x = call.args.input(1)?;
    copy(x, call)
}

/// The error of a loop that would take one pass more.
pub(super) fn too_long(passes: u64, args: &Args) -> OpError {
    let what = format!("it goes on after {passes} passes, and memory is planned for no more");
    OpError::data(args.op, what)
}

fn copy(x: TensorRef, call: &mut Call) -> Result<(), OpError> {
    let Some(place) = call.admit(0, x.ty)? else {
        return Ok(());
    };
    let bytes = x.bytes();
    // SAFETY: the place holds the bound, which admits the type; results are apart from operands.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len()) };
    Ok(())
}
