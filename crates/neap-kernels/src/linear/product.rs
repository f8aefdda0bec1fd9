//! Products of two activations: the right-hand matrix becomes panels first, where it has more than a few rows to be multiplied with.

use super::few::{self, Few};
use super::{LinearShape, RawLinear, matrix_elements};
use crate::epilogue::Activation;
use crate::error::{KernelError, check_len, checked_product};
use crate::panel::{Format, panel_floats};
use crate::parallel::{Parallel, Serial};
use crate::reorder::transpose_tile;
use crate::simd::{Isa, LANES};
use std::ops::Range;

/// Floats of panels that a product has in its scratch at a time, if not every worker needs more: 16 MiB.
const GROUP_FLOATS: usize = 4 << 20;

/// Sizes of a batch of products `out[i] = alpha * a[i] * b[i]`, all row-major, in elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatMulShape {
    pub batch: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    /// `b` is `[n][k]` rather than `[k][n]`.
    pub b_transposed: bool,
    /// From row to row.
    pub a_stride: usize,
    pub b_stride: usize,
    pub out_stride: usize,
    /// From product to product; 0 for an operand that all share.
    pub a_batch_stride: usize,
    pub b_batch_stride: usize,
    pub out_batch_stride: usize,
    pub alpha: f32,
}

impl MatMulShape {
    /// Matrices and rows that follow each other without gaps, alpha 1.
    #[must_use]
    pub fn dense(batch: usize, m: usize, k: usize, n: usize) -> Self {
        MatMulShape {
            batch,
            m,
            k,
            n,
            b_transposed: false,
            a_stride: k,
            b_stride: n,
            out_stride: n,
            a_batch_stride: m * k,
            b_batch_stride: k * n,
            out_batch_stride: m * n,
            alpha: 1.0,
        }
    }

    fn panels(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// Panels that are packed at a time where the tasks share a product: all of them, unless they are many bytes.
    fn group(&self, workers: usize) -> usize {
        let most = GROUP_FLOATS / panel_floats(self.k).max(1);
        most.max(workers).max(1).min(self.panels())
    }

    /// True where each task does a whole product, packing into its worker's scratch.
    fn by_batch(&self, workers: usize) -> bool {
        self.batch >= 2 * workers && self.b_batch_stride != 0
    }
}

/// Bytes of scratch that [`matmul`] needs for so many workers.
#[must_use]
pub fn matmul_scratch_bytes(shape: &MatMulShape, workers: usize) -> usize {
    scratch_floats(shape, workers)
        .and_then(|floats| floats.checked_mul(4))
        .unwrap_or(usize::MAX)
}

fn scratch_floats(shape: &MatMulShape, workers: usize) -> Option<usize> {
    if few::takes(shape) {
        return Some(0);
    }
    let panels = match shape.by_batch(workers) {
        true => shape.panels().checked_mul(workers)?,
        false => shape.group(workers),
    };
    checked_product(&[shape.k.checked_add(1)?, LANES, panels])
}

/// `out[i] = alpha * a[i] * b[i]` for every product of the batch.
///
/// * `a`: `[batch][m][k]`; `b`: `[batch][k][n]` or `[batch][n][k]`; `out`: `[batch][m][n]`,
///   with the strides of the shape
/// * `scratch`: [`matmul_scratch_bytes`] bytes, as floats
///
/// # Errors
/// Sizes that contradict each other or exceed the buffers.
pub fn matmul(
    isa: Isa,
    parallel: &dyn Parallel,
    shape: &MatMulShape,
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), KernelError> {
    let s = *shape;
    let linear = LinearShape {
        m: s.m,
        k: s.k,
        n: s.n,
        a_stride: s.a_stride,
        out_stride: s.out_stride,
    };
    linear.check()?;
    let whole = |matrix: Option<usize>, batch_stride: usize| {
        if s.batch == 0 || matrix? == 0 {
            return Some(0);
        }
        (s.batch - 1)
            .checked_mul(batch_stride)?
            .checked_add(matrix?)
    };
    check_len(
        "a",
        a.len(),
        whole(matrix_elements(s.m, s.k, s.a_stride), s.a_batch_stride),
    )?;
    let (b_rows, b_columns) = if s.b_transposed {
        (s.n, s.k)
    } else {
        (s.k, s.n)
    };
    let b_elements = matrix_elements(b_rows, b_columns, s.b_stride);
    check_len("b", b.len(), whole(b_elements, s.b_batch_stride))?;
    let out_elements = matrix_elements(s.m, s.n, s.out_stride);
    check_len("out", out.len(), whole(out_elements, s.out_batch_stride))?;
    if s.batch > 1 && s.m > 0 && Some(s.out_batch_stride) < out_elements {
        return Err(KernelError::Invalid("products overlap"));
    }
    check_len(
        "scratch",
        scratch.len(),
        scratch_floats(shape, parallel.workers()),
    )?;
    if s.batch == 0 || s.m == 0 || s.n == 0 {
        return Ok(());
    }

    if few::takes(&s) {
        let few = Few {
            shape: s,
            a: a.as_ptr(),
            b: b.as_ptr(),
            out: out.as_mut_ptr(),
        };
        // SAFETY: lengths were checked; `out` is borrowed exclusively, and products do not overlap.
        unsafe { few.run(isa, parallel) };
        return Ok(());
    }
    let call = Call {
        shape: s,
        linear,
        a: a.as_ptr(),
        b: b.as_ptr(),
        out: out.as_mut_ptr(),
        scratch: scratch.as_mut_ptr(),
        packed_floats: panel_floats(s.k) * s.panels(),
    };
    if s.by_batch(parallel.workers()) {
        parallel.run(s.batch, &|item, worker| {
            // SAFETY: tasks differ in product and have their worker's own scratch; lengths were checked.
            unsafe {
                let start = worker * call.packed_floats;
                for panel in 0..s.panels() {
                    call.pack(isa, item, panel, start + panel * panel_floats(s.k));
                }
                call.multiply(item, 0..s.panels(), start, isa, &Serial);
            }
        });
        return Ok(());
    }
    let group = s.group(parallel.workers()).max(1);
    for item in 0..s.batch {
        for first in (0..s.panels()).step_by(group) {
            let panels = first..(first + group).min(s.panels());
            if item == 0 || s.b_batch_stride != 0 || group < s.panels() {
                // SAFETY: tasks differ in panel; lengths were checked.
                parallel.run(panels.len(), &|at, _| unsafe {
                    call.pack(isa, item, first + at, at * panel_floats(s.k));
                });
            }
            // SAFETY: the panels are packed; lengths were checked.
            unsafe { call.multiply(item, panels, 0, isa, parallel) };
        }
    }
    Ok(())
}

/// What the tasks share.
struct Call {
    shape: MatMulShape,
    linear: LinearShape,
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    scratch: *mut f32,
    packed_floats: usize,
}

// SAFETY: tasks read shared memory and write disjoint scratch and outputs.
unsafe impl Sync for Call {}

impl Call {
    /// Packs one panel of one right-hand matrix into the scratch from float `start` on, times alpha.
    ///
    /// # Safety
    /// The buffers were checked, and no one else uses this part of the scratch meanwhile.
    unsafe fn pack(&self, isa: Isa, item: usize, panel: usize, start: usize) {
        let s = &self.shape;
        let floats = panel_floats(s.k);
        let lanes = (s.n - panel * LANES).min(LANES);
        // SAFETY: inside the scratch, which holds all panels that are packed at a time.
        let to = unsafe { std::slice::from_raw_parts_mut(self.scratch.add(start), floats) };
        let b = self.b.wrapping_add(item * s.b_batch_stride);
        to[..LANES].fill(0.0);
        let to = &mut to[LANES..];
        if lanes < LANES {
            to.fill(0.0);
        }
        if s.b_transposed {
            let rows = b.wrapping_add(panel * LANES * s.b_stride);
            for k in (0..s.k).step_by(LANES) {
                let tile = &mut to[k * LANES..];
                let columns = (s.k - k).min(LANES);
                // SAFETY: `lanes` rows and `columns` columns of the checked matrix; the panel has
                // `columns` more steps of k.
                unsafe {
                    let from = rows.add(k);
                    transpose_tile(
                        isa,
                        from,
                        s.b_stride,
                        tile.as_mut_ptr(),
                        LANES,
                        lanes,
                        columns,
                    );
                }
            }
        } else {
            let rows = b.wrapping_add(panel * LANES);
            for (k, to) in to.chunks_exact_mut(LANES).enumerate() {
                // SAFETY: row `k`, columns up to `n` of the checked matrix.
                let from = unsafe { std::slice::from_raw_parts(rows.add(k * s.b_stride), lanes) };
                match from.first_chunk::<LANES>() {
                    Some(from) => to.copy_from_slice(from),
                    None => to[..lanes].copy_from_slice(from),
                }
            }
        }
        if s.alpha != 1.0 {
            to.iter_mut().for_each(|w| *w *= s.alpha);
        }
    }

    /// Computes the columns of these panels, which lie in the scratch from float `start` on.
    ///
    /// # Safety
    /// The buffers were checked, the panels are packed, and no one else writes this product.
    unsafe fn multiply(
        &self,
        item: usize,
        panels: Range<usize>,
        start: usize,
        isa: Isa,
        parallel: &dyn Parallel,
    ) {
        let s = &self.shape;
        let column = panels.start * LANES;
        let call = RawLinear {
            shape: self.linear,
            panels,
            weights: self.scratch.wrapping_add(start).cast_const().cast(),
            format: Format::F32,
            a: self.a.wrapping_add(item * s.a_batch_stride),
            out: self.out.wrapping_add(item * s.out_batch_stride + column),
            residual: std::ptr::null(),
            activation: Activation::None,
            pairs_of: None,
        };
        // SAFETY: the caller's promise.
        unsafe { call.run(isa, parallel) };
    }
}
