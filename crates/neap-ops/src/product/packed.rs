//! f32 products of two activations through the packed-panel kernel.

use super::matmul::{Addend, Product};
use crate::args::{Args, Scratch, scratch_bytes};
use crate::error::Named;
use crate::nd::{GRAIN, Nd, Ptr, offset_of, split};
use crate::{Context, OpError};
use neap_kernels::linear::{MatMulShape, matmul, matmul_scratch_bytes};
use neap_kernels::reorder::transpose;

/// Products that the kernel takes in one call, and how often it is called.
struct Calls {
    shape: MatMulShape,
    /// Loops around the call: element offsets of both matrices.
    around: Nd<2>,
    count: usize,
}

impl Calls {
    fn of(product: &Product, alpha: f32) -> Calls {
        let &Product { m, k, n, .. } = product;
        let mut around = product.batch.loops();
        let last = around.rank - 1;
        let [a_step, b_step] = around.inner();
        let batch = std::mem::replace(&mut around.dims[last], 1);
        let mut shape = MatMulShape {
            b_transposed: product.b[0] == 1 && product.b[1] != 1,
            b_stride: product.b[0].max(product.b[1]),
            a_batch_stride: a_step as usize,
            b_batch_stride: b_step as usize,
            alpha,
            ..MatMulShape::dense(batch, m, k, n)
        };
        if product.b == [1, 1] {
            // One column or row: either reading is right, and the strides of one element agree.
            shape.b_transposed = n > 1;
            shape.b_stride = if n > 1 { k } else { n };
        }
        if b_step == 0 && a_step == (m * k) as isize && batch > 0 {
            // All share the right-hand matrix: one tall product.
            shape = MatMulShape {
                batch: 1,
                m: batch * m,
                a_batch_stride: 0,
                b_batch_stride: 0,
                out_batch_stride: 0,
                ..shape
            };
        }
        let count = around.dims[..around.rank].iter().product();
        Calls {
            shape,
            around,
            count,
        }
    }
}

/// Whether the left-hand matrix must be transposed first.
fn turned(product: &Product) -> bool {
    product.a[1] != 1 && product.k != 1
}

pub(crate) fn workspace_bytes(product: &Product, workers: usize) -> usize {
    let packed = matmul_scratch_bytes(&Calls::of(product, 1.0).shape, workers);
    let turned = if turned(product) {
        scratch_bytes::<f32>(product.m * product.k)
    } else {
        0
    };
    scratch_bytes::<f32>(packed.div_ceil(4)) + turned
}

pub(super) fn compute(
    product: &Product,
    alpha: f32,
    c: Option<Addend>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (a, b, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    let calls = Calls::of(product, alpha);
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let floats = matmul_scratch_bytes(&calls.shape, ctx.par.workers()).div_ceil(4);
    let packed = scratch.take::<f32>(floats)?;
    let mut left = a.f32s();
    if turned(product) {
        let (rows, cols) = (product.k, product.m);
        let copy = scratch.take::<f32>(rows * cols)?;
        transpose(ctx.isa, ctx.par, 1, rows, cols, left, copy).named(args.op)?;
        left = copy;
    }
    let right = b.f32s();
    // SAFETY: the output overlaps no input.
    let out = unsafe { y.f32s_mut() };
    let per_call = calls.shape.batch * calls.shape.m * calls.shape.n;
    for call in 0..calls.count {
        let dims = &calls.around.dims[..calls.around.rank];
        let at = |k: usize| offset_of(call, dims, &calls.around.strides[k][..dims.len()]) as usize;
        let (Some(left), Some(right)) = (left.get(at(0)..), right.get(at(1)..)) else {
            return args.fail("operands are too short");
        };
        let out = &mut out[call * per_call..][..per_call];
        matmul(ctx.isa, ctx.par, &calls.shape, left, right, out, packed).named(args.op)?;
    }
    if let Some(c) = c {
        add(product, &c, args, ctx)?;
    }
    Ok(())
}

/// `y += beta * c`
fn add(product: &Product, c: &Addend, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let n = product.n;
    let y = Ptr::<f32>(args.output(0)?.as_ptr().cast());
    split(ctx.par, product.m, GRAIN / n.max(1), &|rows, _| {
        for row in rows {
            // SAFETY: rows are disjoint; C broadcasts to `[m, n]`.
            unsafe {
                let line = y.slice_mut(row * n, n);
                let from = c.data.cast::<f32>().offset(row as isize * c.steps[0]);
                for (col, out) in line.iter_mut().enumerate() {
                    *out += c.beta * *from.offset(col as isize * c.steps[1]);
                }
            }
        }
    });
    Ok(())
}
