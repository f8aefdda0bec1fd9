//! Products of row-major matrices: rows of activations times panel weights, or times another matrix.
//!
//! [`linear`] serves fully connected layers and MatMul with constant weights: it takes one
//! panel range and writes only its columns, with the same bits however the layer is cut.
//! [`matmul`] serves products of two activations: it packs the right-hand matrix into panels in the
//! caller's scratch ([`matmul_scratch_bytes`]) and runs the same micro-kernels.
//! [`dots`] takes few rows times a matrix as it is stored, [`few_by_panels`] few rows times panels of 8 bits.

mod dots;
mod few;
mod pairs;
mod product;
mod steps;

pub use dots::{DotsShape, dots, dots_run};
pub use pairs::{linear_in_pairs, linear_pairs_scratch_bytes};
pub use product::{MatMulShape, matmul, matmul_scratch_bytes};
pub use steps::{FewByPanels, few_by_panels, few_by_panels_run};

use crate::epilogue::{Epilogue, Residual};
use crate::error::{KernelError, check_len};
use crate::panel::{Format, Panels};
use crate::parallel::Parallel;
use crate::simd::{Isa, LANES};
use crate::tile::{Destination, Form, Inputs, Product, Reduction, TapWriter, run};
use std::ops::Range;

/// k that the micro-kernel runs through before it looks at its pointers again.
const RUN: usize = 128;

/// The same of weights that may be widened, in chunks of whole runs: three of these are as many k as fit there.
const NARROW_RUN: usize = 64;

/// Sizes of a linear layer: `[m][k] * [k][n]`, rows `a_stride` and `out_stride` floats apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a_stride: usize,
    pub out_stride: usize,
}

impl LinearShape {
    /// Rows that follow each other without gaps.
    #[must_use]
    pub fn dense(m: usize, k: usize, n: usize) -> Self {
        LinearShape {
            m,
            k,
            n,
            a_stride: k,
            out_stride: n,
        }
    }

    /// Panels of the whole layer.
    #[must_use]
    pub fn panels(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    pub(crate) fn check(&self) -> Result<(), KernelError> {
        if self.m > 1 && (self.a_stride < self.k || self.out_stride < self.n) {
            return Err(KernelError::Invalid("rows overlap"));
        }
        Ok(())
    }
}

/// Elements from the first to the last of a row-major matrix.
pub(crate) fn matrix_elements(rows: usize, columns: usize, stride: usize) -> Option<usize> {
    if rows == 0 || columns == 0 {
        return Some(0);
    }
    (rows - 1).checked_mul(stride)?.checked_add(columns)
}

/// `out[:, columns of the range] = activation(a * weights + bias + residual)`.
///
/// * `weights`: the panels of the range, contiguous, each `[bias 16][k][16]` or in another [`Format`]
/// * `a`: `[m][k]`, rows `a_stride` apart
/// * `out`, residual: `[m][n]`, rows `out_stride` apart; only columns
///   `16 * panels.start .. min(n, 16 * panels.end)` are touched
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers.
pub fn linear<'a>(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &LinearShape,
    panels: Range<usize>,
    weights: impl Into<Panels<'a>>,
    a: &[f32],
    out: &mut [f32],
    epilogue: Epilogue<'_>,
) -> Result<(), KernelError> {
    let call = raw(shape, panels, weights.into(), a, out, epilogue)?;
    // SAFETY: lengths were checked; `out` is borrowed exclusively.
    unsafe { call.run(isa, parallel) };
    Ok(())
}

/// A linear layer whose lengths are checked.
fn raw(
    shape: &LinearShape,
    panels: Range<usize>,
    weights: Panels<'_>,
    a: &[f32],
    out: &mut [f32],
    epilogue: Epilogue<'_>,
) -> Result<RawLinear, KernelError> {
    shape.check()?;
    if panels.start > panels.end || panels.end > shape.panels() {
        return Err(KernelError::Invalid("panel range outside the layer"));
    }
    weights.check_any(Some(shape.k), panels.len())?;
    check_len(
        "a",
        a.len(),
        matrix_elements(shape.m, shape.k, shape.a_stride),
    )?;
    let out_elements = matrix_elements(shape.m, shape.n, shape.out_stride);
    check_len("out", out.len(), out_elements)?;
    let column = panels.start * LANES;
    let first = out.as_mut_ptr().wrapping_add(column);
    let residual = match epilogue.residual {
        Residual::None => std::ptr::null(),
        Residual::Separate(r) => {
            check_len("residual", r.len(), out_elements)?;
            r.as_ptr().wrapping_add(column)
        }
        Residual::InPlace => first.cast_const(),
    };
    Ok(RawLinear {
        shape: *shape,
        panels,
        weights: weights.as_ptr(),
        format: weights.format(),
        a: a.as_ptr(),
        out: first,
        residual,
        activation: epilogue.activation,
        pairs_of: None,
    })
}

/// A linear layer in raw parts, already checked.
pub(crate) struct RawLinear {
    pub shape: LinearShape,
    pub panels: Range<usize>,
    /// First panel of the range.
    pub weights: *const u8,
    pub format: Format,
    pub a: *const f32,
    /// First column of the range.
    pub out: *mut f32,
    /// Null, or as `out`.
    pub residual: *const f32,
    pub activation: crate::epilogue::Activation,
    /// As in [`Product`]: k and the strides of rows count pairs.
    pub pairs_of: Option<usize>,
}

impl RawLinear {
    /// # Safety
    /// The pointers reach all that the shape says, and no one else uses the range's columns of `out`.
    pub(crate) unsafe fn run(&self, isa: Isa, parallel: &dyn Parallel) {
        let s = &self.shape;
        let run_len = match self.format {
            Format::Blocks(blocks) => blocks.len,
            Format::F32 => RUN,
            _ => NARROW_RUN,
        };
        let product = Product {
            form: Form::Dense,
            weights: self.weights,
            format: self.format,
            panels: self.panels.len(),
            ends_layer: self.panels.end == s.panels(),
            images: 1,
            positions: s.m,
            reduction: Reduction {
                taps: 1,
                channels: s.k,
                block_len: run_len,
                block_step_bytes: run_len * size_of::<f32>(),
            },
            destination: Destination {
                output: self.out,
                residual: self.residual,
                image_floats: 0,
                row_floats: s.out_stride,
                column_floats: LANES,
                last_lanes: s.n - (s.panels().max(1) - 1) * LANES,
            },
            activation: self.activation,
            pairs_of: self.pairs_of,
        };
        let inputs = Rows {
            a: self.a,
            stride: s.a_stride,
        };
        // SAFETY: the caller's pointers reach all rows and columns.
        unsafe { run(isa, parallel, &product, &inputs) };
    }
}

/// Finds rows.
struct Rows {
    a: *const f32,
    stride: usize,
}

// SAFETY: only read, and only addresses are computed here.
unsafe impl Sync for Rows {}

impl Inputs for Rows {
    #[inline]
    fn fill(&self, _image: usize, position: usize, taps: Range<usize>, writer: &mut TapWriter<'_>) {
        let first = self.a.wrapping_add(position * self.stride);
        for row in 0..writer.rows() {
            writer.corner(row, first.wrapping_add(row * self.stride));
        }
        for tap in taps {
            writer.tap(tap, 0, writer.all());
        }
    }
}
