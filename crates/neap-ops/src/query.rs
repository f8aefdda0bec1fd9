//! What planning asks about operators before they run.

use crate::OpError;
use neap_ir::{Layout, Op, TensorType};
use neap_kernels::simd::Isa;

/// An operand's type and layout; `None` where an optional one is left out.
pub type Operand<'a> = Option<(&'a TensorType, Layout)>;

/// Bytes of scratch that [`crate::execute`] needs for these operands with that many workers.
pub fn workspace_bytes(
    op: &Op,
    inputs: &[Operand],
    outputs: &[Operand],
    workers: usize,
    isa: Isa,
) -> usize {
    let _ = (op, inputs, outputs, workers, isa);
    0
}

/// Whether [`crate::execute`] can compute this; an error says what it cannot.
pub fn supported(op: &Op, inputs: &[Operand], outputs: &[Operand]) -> Result<(), OpError> {
    let _ = (inputs, outputs);
    Err(OpError::unsupported(op.name(), "yet"))
}

/// Inputs whose memory output 0 may take over, by position.
pub fn may_overwrite(op: &Op, inputs: &[Operand], outputs: &[Operand]) -> Vec<usize> {
    let _ = (op, inputs, outputs);
    Vec::new()
}

/// Whether the operator can give output 0 channel-blocked, and which layout each input must then
/// have.
pub fn blocked_inputs(
    op: &Op,
    inputs: &[Option<&TensorType>],
    outputs: &[Option<&TensorType>],
) -> Option<Vec<Layout>> {
    let _ = (op, inputs, outputs);
    None
}

/// Floating-point operations, about; a multiply-add counts as two.
pub fn flops(op: &Op, inputs: &[Operand], outputs: &[Operand]) -> u64 {
    let _ = (op, inputs, outputs);
    0
}
