//! The model's constants, read piece by piece into the states that begin as they are.

use crate::error::{Error, Result};
use crate::source_weights::SourceFiles;
use crate::train::step::StepState;
use neap_ir::Graph;

/// Elements that are read at once.
const PIECE: usize = 1 << 18;

/// Hands `visit` a state's first bytes in pieces, each with the offset of its first byte; nothing for a state that begins
/// as zeros. `model` is the graph before it was made into a step.
pub(super) fn first_bytes(
    model: &Graph,
    files: &SourceFiles,
    state: &StepState,
    visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let Some(value) = state.begins_as else {
        return Ok(());
    };
    let dtype = state.ty.dtype;
    let (mut raw, mut bytes) = (Vec::new(), Vec::new());
    let elements = state.ty.elements();
    for start in (0..elements).step_by(PIECE) {
        let count = PIECE.min(elements - start);
        files
            .read_bytes(model, value, start, count, dtype, &mut raw, &mut bytes)
            .map_err(|reason| Error::BadInput(format!("constant '{}': {reason}", state.name)))?;
        visit((start * dtype.size_bytes()) as u64, &bytes)?;
    }
    Ok(())
}
