//! Runs an operator: picks the implementation for its operands.

use crate::{Context, OpError, PanelSlice, TensorMut, TensorRef};
use neap_ir::Op;

/// Computes `outputs` from `inputs`. `panels` is given for `Panel*` operators and selects the
/// output channels that this call writes.
pub fn execute(
    op: &Op,
    inputs: &[Option<TensorRef>],
    panels: Option<PanelSlice>,
    outputs: &[Option<TensorMut>],
    ctx: &mut Context,
) -> Result<(), OpError> {
    let _ = (inputs, panels, outputs, ctx);
    Err(OpError::unsupported(op.name(), "yet"))
}
