//! Whether a plan or a program fits the session that is to go over to it.

use crate::RuntimeError;
use neap_ir::{DType, Program, ValueId};
use neap_plan::Verdict;

/// Whether the spill file has room for what the plan stores.
///
/// # Errors
/// [`RuntimeError::Mismatch`].
pub(crate) fn check_spill_room(verdict: &Verdict, room_bytes: u64) -> Result<(), RuntimeError> {
    let bytes = verdict.spill_bytes;
    if bytes <= room_bytes {
        return Ok(());
    }
    Err(RuntimeError::Mismatch {
        what: "plan",
        reason: format!("it stores activations in {bytes} bytes, the spill file has {room_bytes}"),
    })
}

/// Whether both are of one model, whatever shapes it is bound to: the same tensors of the same types.
///
/// # Errors
/// [`RuntimeError::Mismatch`].
pub(crate) fn check_same_model(old: &Program, new: &Program) -> Result<(), RuntimeError> {
    type Tensors<'p> = Vec<(&'p str, DType)>;
    fn tensors<'p>(program: &'p Program, ids: &[ValueId]) -> Tensors<'p> {
        let values = ids.iter().map(|&id| program.graph.value(id));
        values.map(|v| (v.name.as_str(), v.ty.dtype)).collect()
    }
    fn borders(program: &Program) -> (Tensors<'_>, Tensors<'_>) {
        let graph = &program.graph;
        (
            tensors(program, &graph.inputs),
            tensors(program, &graph.outputs),
        )
    }
    if borders(old) == borders(new) {
        return Ok(());
    }
    Err(RuntimeError::Mismatch {
        what: "new program",
        reason: "its inputs or outputs differ from those of the old one".into(),
    })
}
