//! MatMul and Gemm.
//!
//! f32 goes to the packed-panel kernel; other types take the plain loops here, floats summing in
//! f64 and integers in 64 bits.

use super::packed;
use crate::args::Args;
use crate::nd::{GRAIN, MAX_RANK, Nd, Ptr, Strides, offset_of, split};
use crate::reduce::fold::Accumulator;
use crate::scalar::{Num, Scalar, with_numeric};
use crate::{Context, OpError};
use neap_ir::DType;

/// A batch of `m × k` by `k × n` products; steps are in elements.
pub(crate) struct Product {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    /// Row and column steps.
    pub a: [usize; 2],
    pub b: [usize; 2],
    pub batch: Batch,
}

/// Leading axes, broadcast.
pub(crate) struct Batch {
    pub count: usize,
    rank: usize,
    dims: [usize; MAX_RANK],
    a: Strides,
    b: Strides,
}

impl Batch {
    pub fn one() -> Batch {
        Batch {
            count: 1,
            rank: 0,
            dims: [1; MAX_RANK],
            a: Strides::empty(),
            b: Strides::empty(),
        }
    }

    fn of(a: &[usize], b: &[usize], a_matrix: usize, b_matrix: usize) -> Batch {
        let rank = a.len().max(b.len());
        let mut dims = [1; MAX_RANK];
        for (i, dim) in dims[..rank].iter_mut().enumerate() {
            let at = |shape: &[usize]| (i + shape.len()).checked_sub(rank).map(|j| shape[j]);
            *dim = match (at(a), at(b)) {
                (Some(1) | None, Some(y)) => y,
                (Some(x), _) => x,
                (None, None) => 1,
            };
        }
        Batch {
            count: dims[..rank].iter().product(),
            rank,
            a: Strides::broadcast(a, &dims[..rank], a_matrix),
            b: Strides::broadcast(b, &dims[..rank], b_matrix),
            dims,
        }
    }

    /// The same as joined loops.
    pub fn loops(&self) -> Nd<2> {
        Nd::new(&self.dims[..self.rank], [&self.a, &self.b])
    }

    /// Element offsets of both matrices.
    pub fn offsets(&self, index: usize) -> (usize, usize) {
        let dims = &self.dims[..self.rank];
        (
            offset_of(index, dims, self.a.as_slice()) as usize,
            offset_of(index, dims, self.b.as_slice()) as usize,
        )
    }
}

impl Product {
    /// numpy's matmul.
    pub fn of(a: &[usize], b: &[usize]) -> Option<Product> {
        let (a_lead, m, k) = match a {
            [] => return None,
            [k] => (&[][..], 1, *k),
            [lead @ .., m, k] => (lead, *m, *k),
        };
        let (b_lead, n) = match b {
            [] => return None,
            [_] => (&[][..], 1),
            [lead @ .., _, n] => (lead, *n),
        };
        let fits = a_lead.len().max(b_lead.len()) <= MAX_RANK;
        fits.then(|| Product {
            m,
            k,
            n,
            a: [k, 1],
            b: [n, 1],
            batch: Batch::of(a_lead, b_lead, m * k, k * n),
        })
    }

    pub fn gemm(a: &[usize], b: &[usize], trans_a: bool, trans_b: bool) -> Option<Product> {
        let (&[a0, a1], &[b0, b1]) = (a, b) else {
            return None;
        };
        let (m, k) = if trans_a { (a1, a0) } else { (a0, a1) };
        let n = if trans_b { b0 } else { b1 };
        Some(Product {
            m,
            k,
            n,
            a: if trans_a { [1, a1] } else { [a1, 1] },
            b: if trans_b { [1, b1] } else { [b1, 1] },
            batch: Batch::one(),
        })
    }
}

pub(crate) fn matmul(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (a, b) = (args.input(0)?, args.input(1)?);
    let Some(product) = Product::of(a.shape(), b.shape()) else {
        return args.fail("takes no scalars");
    };
    compute(&product, 1.0, None, args, ctx)
}

pub(crate) fn gemm(
    alpha: f32,
    beta: f32,
    trans: [bool; 2],
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (a, b) = (args.input(0)?, args.input(1)?);
    let Some(product) = Product::gemm(a.shape(), b.shape(), trans[0], trans[1]) else {
        return args.fail("takes matrices");
    };
    let c = args.opt_input(2).filter(|_| beta != 0.0).map(|c| Addend {
        data: c.as_ptr(),
        steps: Strides::broadcast(c.shape(), &[product.m, product.n], 1),
        beta,
    });
    compute(&product, alpha, c, args, ctx)
}

/// Gemm's third operand.
pub(super) struct Addend {
    pub data: *const u8,
    pub steps: Strides,
    pub beta: f32,
}

// SAFETY: only reads memory that nobody writes during the call.
unsafe impl Sync for Addend {}

fn compute(
    product: &Product,
    alpha: f32,
    c: Option<Addend>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    if args.output(0)?.dtype() == DType::F32 {
        return packed::compute(product, alpha, c, args, ctx);
    }
    with_numeric!(args.op, args.output(0)?.dtype(), T => {
        if T::FLOAT {
            naive::<T, f64>(product, alpha, c, args, ctx)
        } else {
            naive::<T, i64>(product, alpha, c, args, ctx)
        }
    })
}

/// 64-bit sums of products.
trait Sum: Accumulator + Num {
    /// `alpha * self + beta * c`
    fn finish<T: Num>(self, alpha: f32, beta: f32, c: Option<T>) -> T;
}

impl Sum for f64 {
    fn finish<T: Num>(self, alpha: f32, beta: f32, c: Option<T>) -> T {
        let c = c.map_or(0.0, |c| f64::from(beta) * c.to_f64());
        T::from_f64(f64::from(alpha) * self + c)
    }
}

impl Sum for i64 {
    fn finish<T: Num>(self, alpha: f32, beta: f32, c: Option<T>) -> T {
        if alpha == 1.0 && (beta == 1.0 || c.is_none()) {
            return T::from_i64(self.wrapping_add(c.map_or(0, Scalar::to_i64)));
        }
        let c = c.map_or(0.0, |c| f64::from(beta) * c.to_f64());
        T::from_f64(f64::from(alpha) * self as f64 + c)
    }
}

/// Columns computed together.
const COLUMNS: usize = 8;

fn naive<T: Num, S: Sum>(
    product: &Product,
    alpha: f32,
    c: Option<Addend>,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let &Product {
        m, k, n, ref batch, ..
    } = product;
    let a = Ptr::<T>::of(args.input(0)?.as_ptr());
    let b = Ptr::<T>::of(args.input(1)?.as_ptr());
    let y = Ptr::<T>(args.output(0)?.as_ptr().cast());
    let strips = n.div_ceil(COLUMNS);
    let per_task = GRAIN / (k.max(1) * COLUMNS);
    let c = c.as_ref();
    split(ctx.par, batch.count * m * strips, per_task, &|range, _| {
        for unit in range {
            let (row, strip) = (unit / strips, unit % strips * COLUMNS);
            let (index, i) = (row / m, row % m);
            let (a_at, b_at) = batch.offsets(index);
            let width = COLUMNS.min(n - strip);
            let mut sums = [S::ZERO; COLUMNS];
            for p in 0..k {
                // SAFETY: `i < m`, `p < k` and columns below `n` are inside both operands.
                unsafe {
                    let v = S::of(a.read(a_at + i * product.a[0] + p * product.a[1]));
                    let line = b_at + p * product.b[0];
                    for (j, sum) in sums[..width].iter_mut().enumerate() {
                        let w = S::of(b.read(line + (strip + j) * product.b[1]));
                        *sum = sum.add(v.mul(w));
                    }
                }
            }
            for (j, sum) in sums[..width].iter().enumerate() {
                let col = strip + j;
                // SAFETY: results belong to one task; C broadcasts to `[m, n]`.
                unsafe {
                    let addend = c.map(|c| {
                        let at = i as isize * c.steps[0] + col as isize * c.steps[1];
                        *c.data.cast::<T>().offset(at)
                    });
                    let beta = c.map_or(0.0, |c| c.beta);
                    y.write(row * n + col, sum.finish(alpha, beta, addend));
                }
            }
        }
    });
    Ok(())
}
