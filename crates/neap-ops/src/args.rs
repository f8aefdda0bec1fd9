//! Operands of one call, looked up with errors instead of panics; and scratch memory.

use crate::{OpError, TensorMut, TensorRef};

/// The operands of one call.
#[derive(Clone, Copy)]
pub(crate) struct Args<'c, 'a> {
    pub op: &'static str,
    pub inputs: &'c [Option<TensorRef<'a>>],
    pub outputs: &'c [Option<TensorMut<'a>>],
}

impl<'a> Args<'_, 'a> {
    pub fn input(&self, index: usize) -> Result<TensorRef<'a>, OpError> {
        self.opt_input(index)
            .ok_or_else(|| OpError::operand(self.op, format!("input {index} is missing")))
    }

    pub fn opt_input(&self, index: usize) -> Option<TensorRef<'a>> {
        self.inputs.get(index).copied().flatten()
    }

    pub fn output(&self, index: usize) -> Result<TensorMut<'a>, OpError> {
        self.opt_output(index)
            .ok_or_else(|| OpError::operand(self.op, format!("output {index} is missing")))
    }

    pub fn opt_output(&self, index: usize) -> Option<TensorMut<'a>> {
        self.outputs.get(index).copied().flatten()
    }

    pub fn fail<T>(&self, what: impl Into<String>) -> Result<T, OpError> {
        Err(OpError::operand(self.op, what))
    }

    pub fn require(&self, condition: bool, what: &str) -> Result<(), OpError> {
        if condition { Ok(()) } else { self.fail(what) }
    }
}

/// Plain data that any bytes are valid for.
pub(crate) trait Pod: Copy {}
impl Pod for f32 {}
impl Pod for f64 {}
impl Pod for [f64; 2] {}
impl Pod for u8 {}
impl Pod for u32 {}
impl Pod for i32 {}
impl Pod for u64 {}
impl Pod for i64 {}
impl Pod for usize {}

/// Hands out pieces of the workspace, each aligned to a cache line.
pub(crate) struct Scratch<'a> {
    op: &'static str,
    rest: &'a mut [u8],
}

/// Alignment of every piece.
const LINE: usize = 64;

impl<'a> Scratch<'a> {
    pub fn new(op: &'static str, workspace: &'a mut [u8]) -> Scratch<'a> {
        Scratch {
            op,
            rest: workspace,
        }
    }

    /// `count` elements with unspecified contents.
    pub fn take<T: Pod>(&mut self, count: usize) -> Result<&'a mut [T], OpError> {
        let rest = std::mem::take(&mut self.rest);
        let skip = rest.as_ptr().align_offset(LINE);
        let bytes = count * size_of::<T>();
        if rest.len() < skip || rest.len() - skip < bytes {
            return Err(OpError::operand(self.op, "workspace is too small"));
        }
        let (piece, rest) = rest[skip..].split_at_mut(bytes);
        self.rest = rest;
        // SAFETY: the piece is aligned to 64 bytes, long enough, borrowed uniquely, and any bytes
        // are a valid `T`.
        Ok(unsafe { std::slice::from_raw_parts_mut(piece.as_mut_ptr().cast(), count) })
    }

    /// All that is left.
    pub fn rest(self) -> &'a mut [u8] {
        self.rest
    }

    /// As [`Scratch::take`], but the piece is free again afterwards.
    pub fn lend<T: Pod, R>(
        &mut self,
        count: usize,
        body: impl FnOnce(&mut [T]) -> Result<R, OpError>,
    ) -> Result<R, OpError> {
        let mut inner = Scratch {
            op: self.op,
            rest: &mut *self.rest,
        };
        body(inner.take(count)?)
    }
}

/// Workspace bytes that [`Scratch::take`] may use for `count` elements. Impossibly many are cut to
/// a size that no memory has, so that sums of sizes do not overflow.
pub(crate) fn scratch_bytes<T: Pod>(count: usize) -> usize {
    count.saturating_mul(size_of::<T>()).min(usize::MAX / 64) + LINE
}
