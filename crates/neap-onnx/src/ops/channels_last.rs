//! Tensors whose channels come last, as some of onnxruntime's operators want them.

use crate::error::OnnxError;
use crate::node::Ctx;
use neap_ir::{Op, ValueId};

/// What onnxruntime makes of a model for one machine: weights are in blocks whose size the file does not say.
pub(super) const BLOCKED_DOMAIN: &str = "com.microsoft.nchwc";

/// A node of [`BLOCKED_DOMAIN`].
pub(super) fn refused(c: &Ctx) -> OnnxError {
    c.unsupported(
        "com.microsoft.nchwc: onnxruntime optimised the model for one machine; save it with \
         ORT_ENABLE_EXTENDED instead of ORT_ENABLE_ALL, or use the original model; this form",
    )
}

/// `[N, spatial.., C]` as `[N, C, spatial..]`.
pub(super) fn channels_first(c: &mut Ctx, x: ValueId) -> Result<ValueId, OnnxError> {
    let rank = c.shape_of_rank(x, 3)?.len();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm[1..].rotate_right(1);
    c.emit(Op::Transpose { perm }, &[x])
}

/// `[N, C, spatial..]` as `[N, spatial.., C]`.
pub(super) fn channels_last(c: &mut Ctx, y: ValueId) -> Result<ValueId, OnnxError> {
    let rank = c.shape_of_rank(y, 3)?.len();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm[1..].rotate_left(1);
    c.emit(Op::Transpose { perm }, &[y])
}
