//! Einsum: two f32 operands become a matrix product; otherwise loops over the output's letters, and inside over the summed ones.
//!
//! The equation is parsed when the operator runs, into fixed-size tables, since that needs no
//! allocation and takes microseconds.

use super::contraction;
use crate::args::Args;
use crate::nd::{GRAIN, Ptr, split};
use crate::reduce::fold::Accumulator;
use crate::scalar::{Num, Scalar, with_numeric};
use crate::{Context, OpError};
use neap_ir::DType;

/// Most letters of an equation, and most inputs.
pub(crate) const MAX_LABELS: usize = 16;
pub(crate) const MAX_INPUTS: usize = 4;

/// Loop sizes and each operand's step for every letter.
pub(crate) struct Loops {
    letters: [u8; MAX_LABELS],
    pub sizes: [usize; MAX_LABELS],
    pub steps: [[usize; MAX_LABELS]; MAX_INPUTS],
    /// Letters `0..outer` are the output's, in order; the rest are summed.
    pub outer: usize,
    pub count: usize,
}

/// Stands for one of the axes of `...`: these letters cannot occur in an equation.
const ELLIPSIS: u8 = 128;

impl Loops {
    /// `None` when the equation is wrong or has too many letters.
    pub fn of(equation: &str, shapes: &[&[usize]]) -> Option<Loops> {
        let mut loops = Loops {
            letters: [0; MAX_LABELS],
            sizes: [1; MAX_LABELS],
            steps: [[0; MAX_LABELS]; MAX_INPUTS],
            outer: 0,
            count: 0,
        };
        if shapes.len() > MAX_INPUTS {
            return None;
        }
        let (left, right) = match equation.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (equation, None),
        };
        let mut ellipsis = 0;
        for (term, shape) in left.split(',').zip(shapes) {
            if term.contains("...") {
                ellipsis = ellipsis.max(shape.len().checked_sub(letters(term).count())?);
            }
        }
        match right {
            Some(right) => {
                for label in expand(right, ellipsis, ellipsis) {
                    loops.add(label)?;
                }
            }
            None => {
                for i in 0..ellipsis {
                    loops.add(ELLIPSIS + i as u8)?;
                }
                for letter in (b'A'..=b'Z').chain(b'a'..=b'z') {
                    if left.bytes().filter(|&b| b == letter).count() == 1 {
                        loops.add(letter)?;
                    }
                }
            }
        }
        loops.outer = loops.count;
        for (operand, (term, shape)) in left.split(',').zip(shapes).enumerate() {
            let extra = shape.len().checked_sub(letters(term).count())?;
            // An empty axis keeps the steps of those before it: they say in which operands a letter is.
            let mut step: usize = shape.iter().map(|&dim| dim.max(1)).product();
            for (label, &dim) in expand(term, extra, ellipsis).zip(shape.iter()) {
                step /= dim.max(1);
                let at = loops.add(label)?;
                if dim != 1 {
                    loops.sizes[at] = dim;
                    loops.steps[operand][at] += step;
                }
            }
        }
        Some(loops)
    }

    fn add(&mut self, letter: u8) -> Option<usize> {
        if let Some(at) = self.letters[..self.count].iter().position(|&l| l == letter) {
            return Some(at);
        }
        if self.count == MAX_LABELS {
            return None;
        }
        self.letters[self.count] = letter;
        self.count += 1;
        Some(self.count - 1)
    }
}

fn letters(term: &str) -> impl Iterator<Item = u8> + '_ {
    term.bytes().filter(u8::is_ascii_alphabetic)
}

/// Labels of a term whose `...` stands for the last `extra` of `ellipsis` broadcast axes.
fn expand(term: &str, extra: usize, ellipsis: usize) -> impl Iterator<Item = u8> + '_ {
    let (before, after, extra) = match term.split_once("...") {
        Some((before, after)) => (before, after, extra),
        None => (term, "", 0),
    };
    letters(before)
        .chain((ellipsis - extra.min(ellipsis)..ellipsis).map(|i| ELLIPSIS + i as u8))
        .chain(letters(after))
}

pub(crate) fn einsum(equation: &str, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let mut shapes: [&[usize]; MAX_INPUTS] = [&[]; MAX_INPUTS];
    args.require(args.inputs.len() <= MAX_INPUTS, "has too many inputs")?;
    for (i, shape) in shapes[..args.inputs.len()].iter_mut().enumerate() {
        *shape = args.input(i)?.shape();
    }
    let Some(loops) = Loops::of(equation, &shapes[..args.inputs.len()]) else {
        return args.fail("has too many letters");
    };
    let dtype = args.output(0)?.dtype();
    if as_product(args.inputs.len(), dtype) {
        return contraction::contract(&loops, args, ctx);
    }
    with_numeric!(args.op, dtype, T => {
        if T::FLOAT {
            contract::<T, f64>(&loops, args, ctx, T::from_f64)
        } else {
            contract::<T, i64>(&loops, args, ctx, T::from_i64)
        }
    })
}

/// Whether the matrix product serves.
pub(crate) fn as_product(inputs: usize, dtype: DType) -> bool {
    inputs == 2 && dtype == DType::F32
}

fn contract<T: Num, S: Accumulator + Num>(
    loops: &Loops,
    args: &Args,
    ctx: &mut Context,
    finish: impl Fn(S) -> T + Sync,
) -> Result<(), OpError> {
    let inputs = args.inputs.len();
    let mut data = [Ptr::<T>(std::ptr::null_mut()); MAX_INPUTS];
    for (i, ptr) in data[..inputs].iter_mut().enumerate() {
        *ptr = Ptr::of(args.input(i)?.as_ptr());
    }
    let y = args.output(0)?;
    let dst = Ptr::<T>(y.as_ptr().cast());
    let summed = loops.outer..loops.count;
    let terms: usize = loops.sizes[summed.clone()].iter().product();
    split(ctx.par, y.elements(), GRAIN / terms.max(1), &|range, _| {
        for result in range {
            let mut at = [0usize; MAX_INPUTS];
            let mut rest = result;
            for label in (0..loops.outer).rev() {
                let index = rest % loops.sizes[label];
                rest /= loops.sizes[label];
                for i in 0..inputs {
                    at[i] += index * loops.steps[i][label];
                }
            }
            let mut index = [0usize; MAX_LABELS];
            let mut sum = S::ZERO;
            for _ in 0..terms {
                let mut product = S::ONE;
                for i in 0..inputs {
                    // SAFETY: every letter's index is below its size, so offsets are inside.
                    product = product.mul(S::of(unsafe { data[i].read(at[i]) }));
                }
                sum = sum.add(product);
                for label in summed.clone().rev() {
                    index[label] += 1;
                    for i in 0..inputs {
                        at[i] += loops.steps[i][label];
                    }
                    if index[label] < loops.sizes[label] {
                        break;
                    }
                    index[label] = 0;
                    for i in 0..inputs {
                        at[i] -= loops.sizes[label] * loops.steps[i][label];
                    }
                }
            }
            // SAFETY: each result belongs to one task.
            unsafe { dst.write(result, finish(sum)) };
        }
    });
    Ok(())
}
