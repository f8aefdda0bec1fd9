//! Products of two activations: the right-hand matrix becomes panels first.

use super::{LinearShape, RawLinear, matrix_elements};
use crate::epilogue::Activation;
use crate::error::{KernelError, check_len, checked_product};
use crate::panel::{Format, panel_floats};
use crate::parallel::{Parallel, Serial};
use crate::reorder::transpose_tile;
use crate::simd::{Isa, LANES};

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

    fn packed_floats(&self) -> Option<usize> {
        checked_product(&[self.k.checked_add(1)?, LANES, self.panels()])
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
    let copies = if shape.by_batch(workers) { workers } else { 1 };
    shape.packed_floats()?.checked_mul(copies)
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
                for panel in 0..s.panels() {
                    call.pack(isa, item, panel, worker);
                }
                call.multiply(item, worker, isa, &Serial);
            }
        });
        return Ok(());
    }
    for item in 0..s.batch {
        if item == 0 || s.b_batch_stride != 0 {
            // SAFETY: tasks differ in panel; lengths were checked.
            parallel.run(s.panels(), &|panel, _| unsafe {
                call.pack(isa, item, panel, 0)
            });
        }
        // SAFETY: the panels are packed; lengths were checked.
        unsafe { call.multiply(item, 0, isa, parallel) };
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
    /// Packs one panel of one right-hand matrix into the scratch of `slot`, times alpha.
    ///
    /// # Safety
    /// The buffers were checked, and no one else uses this panel of this slot meanwhile.
    unsafe fn pack(&self, isa: Isa, item: usize, panel: usize, slot: usize) {
        let s = &self.shape;
        let floats = panel_floats(s.k);
        let lanes = (s.n - panel * LANES).min(LANES);
        // SAFETY: inside the scratch, which holds all panels of every slot.
        let to = unsafe {
            let start = self.scratch.add(slot * self.packed_floats + panel * floats);
            std::slice::from_raw_parts_mut(start, floats)
        };
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

    /// Multiplies with the panels in the scratch of `slot`.
    ///
    /// # Safety
    /// The buffers were checked, the panels are packed, and no one else writes this product.
    unsafe fn multiply(&self, item: usize, slot: usize, isa: Isa, parallel: &dyn Parallel) {
        let s = &self.shape;
        let call = RawLinear {
            shape: self.linear,
            panels: 0..s.panels(),
            weights: self
                .scratch
                .wrapping_add(slot * self.packed_floats)
                .cast_const()
                .cast(),
            format: Format::F32,
            a: self.a.wrapping_add(item * s.a_batch_stride),
            out: self.out.wrapping_add(item * s.out_batch_stride),
            residual: std::ptr::null(),
            activation: Activation::None,
        };
        // SAFETY: the caller's promise.
        unsafe { call.run(isa, parallel) };
    }
}
