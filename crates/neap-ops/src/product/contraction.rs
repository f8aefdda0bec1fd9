//! f32 Einsum of two operands as a batched matrix product.
//!
//! ```text
//! letters in both operands and the output   batch
//! in the first operand and the output       rows
//! in the second operand and the output      columns
//! summed                                    inner
//! ```
//! An operand whose axes lie in another order is copied into the workspace first, and the result
//! is copied out of it when the output's axes do.

use super::einsum::{Loops, MAX_LABELS};
use crate::args::{Args, Scratch, scratch_bytes};
use crate::copy::copy_strided;
use crate::error::Named;
use crate::nd::{Nd, Strides};
use crate::{Context, OpError};
use neap_kernels::linear::{MatMulShape, matmul, matmul_scratch_bytes};

const WIDTH: usize = size_of::<f32>();

/// Letters in some order.
#[derive(Clone, Copy, Default)]
struct Order {
    labels: [usize; MAX_LABELS],
    count: usize,
}

impl Order {
    fn push(&mut self, label: usize) {
        self.labels[self.count] = label;
        self.count += 1;
    }

    fn of(parts: &[&Order]) -> Order {
        let mut joined = Order::default();
        for part in parts {
            part.iter().for_each(|label| joined.push(label));
        }
        joined
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.labels[..self.count].iter().copied()
    }
}

/// An operand's axes in the order of some letters.
struct View {
    dims: [usize; MAX_LABELS],
    rank: usize,
    strides: Strides,
}

impl View {
    fn of(loops: &Loops, order: &Order, step: impl Fn(usize) -> usize) -> View {
        let mut view = View {
            dims: [1; MAX_LABELS],
            rank: order.count,
            strides: Strides::empty(),
        };
        for (axis, label) in order.iter().enumerate() {
            view.dims[axis] = loops.sizes[label];
            view.strides.push((step(label) * WIDTH) as isize);
        }
        view
    }

    fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// Whether elements follow each other in this order already.
    fn in_order(&self) -> bool {
        let nd = Nd::new(self.dims(), [&self.strides]);
        let steps_along = nd.inner()[0] == WIDTH as isize || nd.dims[nd.rank - 1] == 1;
        nd.rank == 1 && steps_along
    }
}

struct Plan {
    a: View,
    b: View,
    y: View,
    shape: MatMulShape,
}

impl Plan {
    fn of(loops: &Loops) -> Plan {
        let (mut batch, mut rows) = (Order::default(), Order::default());
        let (mut columns, mut inner) = (Order::default(), Order::default());
        for label in 0..loops.count {
            let in_operand = |i: usize| loops.steps[i][label] != 0;
            match (label < loops.outer, in_operand(0), in_operand(1)) {
                (false, ..) => inner.push(label),
                (true, true, true) => batch.push(label),
                (true, false, true) => columns.push(label),
                (true, ..) => rows.push(label),
            }
        }
        let size = |order: &Order| order.iter().map(|l| loops.sizes[l]).product::<usize>();
        let [n_batch, m, n, k] = [&batch, &rows, &columns, &inner].map(size);
        let mut shape = MatMulShape::dense(n_batch, m, k, n);
        let second = |label: usize| loops.steps[1][label];
        let mut b = View::of(loops, &Order::of(&[&batch, &inner, &columns]), second);
        let turned = View::of(loops, &Order::of(&[&batch, &columns, &inner]), second);
        if !b.in_order() && turned.in_order() {
            b = turned;
            shape.b_transposed = true;
            shape.b_stride = k;
        }
        let a = Order::of(&[&batch, &rows, &inner]);
        let y = Order::of(&[&batch, &rows, &columns]);
        // Steps of the output: its letters are the first ones, in order.
        let own = Strides::row_major(&loops.sizes[..loops.outer], 1);
        Plan {
            a: View::of(loops, &a, |label| loops.steps[0][label]),
            b,
            y: View::of(loops, &y, |label| own[label] as usize),
            shape,
        }
    }
}

pub(crate) fn workspace_bytes(loops: &Loops, workers: usize) -> usize {
    let plan = Plan::of(loops);
    let copies: usize = [&plan.a, &plan.b, &plan.y]
        .iter()
        .filter(|view| !view.in_order())
        .map(|view| scratch_bytes::<f32>(view.elements()))
        .sum();
    copies + scratch_bytes::<f32>(matmul_scratch_bytes(&plan.shape, workers).div_ceil(4))
}

pub(super) fn contract(loops: &Loops, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let plan = Plan::of(loops);
    let (par, isa) = (ctx.par, ctx.isa);
    args.require(
        plan.y.elements() == args.output(0)?.elements(),
        "its result has another size",
    )?;
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let mut operand = |index: usize, view: &View| {
        let tensor = args.input(index)?;
        if view.in_order() {
            return Ok::<&[f32], OpError>(tensor.f32s());
        }
        let copy = scratch.take::<f32>(view.elements())?;
        let to = Strides::row_major(view.dims(), WIDTH);
        // SAFETY: the view stays inside the operand, the copy holds all its elements.
        unsafe {
            let out = copy.as_mut_ptr().cast();
            let (from, steps) = (tensor.as_ptr(), &view.strides);
            copy_strided(par, WIDTH, view.dims(), from, steps, out, &to);
        }
        Ok(copy)
    };
    let a = operand(0, &plan.a)?;
    let b = operand(1, &plan.b)?;
    let floats = matmul_scratch_bytes(&plan.shape, par.workers()).div_ceil(4);
    let packed = scratch.take::<f32>(floats)?;
    let y = args.output(0)?;
    if plan.y.in_order() {
        // SAFETY: the output overlaps no input.
        let out = unsafe { y.f32s_mut() };
        return matmul(isa, par, &plan.shape, a, b, out, packed).named(args.op);
    }
    let result = scratch.take::<f32>(plan.y.elements())?;
    matmul(isa, par, &plan.shape, a, b, result, packed).named(args.op)?;
    let from = Strides::row_major(plan.y.dims(), WIDTH);
    // SAFETY: the view covers the output exactly.
    unsafe {
        let source = result.as_ptr().cast();
        let (dims, steps) = (plan.y.dims(), &plan.y.strides);
        copy_strided(par, WIDTH, dims, source, &from, y.as_ptr(), steps);
    }
    Ok(())
}
