//! Binary operators with numpy's broadcasting.

use super::vector;
use crate::args::Args;
use crate::nd::{GRAIN, Nd, Ptr, Strides, split};
use crate::scalar::{Bool, Float, Int, Num, Scalar, with_any, with_float, with_int, with_numeric};
use crate::{Context, OpError, TensorRef};
use neap_ir::op::Binary;
use neap_ir::{DType, Layout};
use std::sync::atomic::{AtomicBool, Ordering};

/// Computes `count` results; steps are in elements.
type Run = unsafe fn(count: usize, out: *mut u8, a: (*const u8, isize), b: (*const u8, isize));

pub(crate) fn binary(binary: Binary, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (a, b, y) = (args.input(0)?, args.input(1)?, args.output(0)?);
    if y.layout == Layout::Blocked {
        return vector::blocked(binary, args, ctx);
    }
    if let Some(result) = vector::plain(binary, args, ctx) {
        return result;
    }
    refuse_bad_data(binary, &b, args, ctx)?;
    let run = choose(binary, args.op, a.dtype(), b.dtype())?;
    let nd = Nd::new(
        y.shape(),
        [
            &Strides::row_major(y.shape(), y.dtype().size_bytes()),
            &Strides::broadcast(a.shape(), y.shape(), a.dtype().size_bytes()),
            &Strides::broadcast(b.shape(), y.shape(), b.dtype().size_bytes()),
        ],
    );
    let (pa, pb, py) = (
        Ptr::<u8>::of(a.as_ptr()),
        Ptr::<u8>::of(b.as_ptr()),
        Ptr(y.as_ptr()),
    );
    let [_, sa, sb] = nd.inner();
    let (sa, sb) = (
        sa / a.dtype().size_bytes() as isize,
        sb / b.dtype().size_bytes() as isize,
    );
    nd.runs(ctx.par, &|[oy, oa, ob], n| {
        // SAFETY: the loop nest stays inside the operands, whose shapes were checked.
        unsafe {
            run(
                n,
                py.get().offset(oy),
                (pa.get().offset(oa), sa),
                (pb.get().offset(ob), sb),
            );
        }
    });
    Ok(())
}

/// Integer division by zero has no result.
fn refuse_bad_data(
    binary: Binary,
    b: &TensorRef,
    args: &Args,
    ctx: &Context,
) -> Result<(), OpError> {
    let divides = matches!(binary, Binary::Div | Binary::Mod { .. });
    if !divides || b.dtype().is_float() || b.dtype() == DType::Bool {
        return Ok(());
    }
    let found = AtomicBool::new(false);
    with_int!(args.op, b.dtype(), T => {
        let data = Ptr::<T>::of(b.as_ptr());
        split(ctx.par, b.elements(), GRAIN, &|range, _| {
            // SAFETY: ranges are inside the tensor.
            let part = unsafe { data.slice(range.start, range.len()) };
            if part.contains(&T::ZERO) {
                found.store(true, Ordering::Relaxed);
            }
        });
        Ok(())
    })?;
    if found.into_inner() {
        return Err(OpError::data(args.op, "divides an integer by zero"));
    }
    Ok(())
}

/// The loop for these types; an error where there is none.
pub(crate) fn choose(binary: Binary, op: &'static str, a: DType, b: DType) -> Result<Run, OpError> {
    match binary {
        Binary::Add => with_numeric!(op, a, T => Ok(entry::<T, Add>())),
        Binary::Sub => with_numeric!(op, a, T => Ok(entry::<T, Sub>())),
        Binary::Mul => with_numeric!(op, a, T => Ok(entry::<T, Mul>())),
        Binary::Div => with_numeric!(op, a, T => Ok(entry::<T, Div>())),
        Binary::Min => with_numeric!(op, a, T => Ok(entry::<T, Min>())),
        Binary::Max => with_numeric!(op, a, T => Ok(entry::<T, Max>())),
        Binary::Mod { fmod: true } => with_numeric!(op, a, T => Ok(entry::<T, ModTrunc>())),
        Binary::Mod { fmod: false } => with_numeric!(op, a, T => Ok(entry::<T, ModFloor>())),
        Binary::PRelu => with_numeric!(op, a, T => Ok(entry::<T, PRelu>())),
        Binary::Less => with_numeric!(op, a, T => Ok(entry::<T, Less>())),
        Binary::LessOrEqual => with_numeric!(op, a, T => Ok(entry::<T, LessOrEqual>())),
        Binary::Greater => with_numeric!(op, a, T => Ok(entry::<T, Greater>())),
        Binary::GreaterOrEqual => with_numeric!(op, a, T => Ok(entry::<T, GreaterOrEqual>())),
        Binary::Equal => Ok(with_any!(a, T => entry::<T, Equal>())),
        Binary::And => bool_only(op, a, entry::<Bool, And>()),
        Binary::Or => bool_only(op, a, entry::<Bool, Or>()),
        Binary::Xor => bool_only(op, a, entry::<Bool, Xor>()),
        Binary::BitAnd => with_int!(op, a, T => Ok(entry::<T, BitAnd>())),
        Binary::BitOr => with_int!(op, a, T => Ok(entry::<T, BitOr>())),
        Binary::BitXor => with_int!(op, a, T => Ok(entry::<T, BitXor>())),
        Binary::ShiftLeft => with_int!(op, a, T => Ok(entry::<T, ShiftLeft>())),
        Binary::ShiftRight => with_int!(op, a, T => Ok(entry::<T, ShiftRight>())),
        Binary::Pow if a.is_float() => {
            with_float!(op, a, A => with_numeric!(op, b, B => Ok(float_pow::<A, B> as Run)))
        }
        Binary::Pow if b.is_float() => {
            with_int!(op, a, A => with_float!(op, b, B => Ok(mixed_pow::<A, B> as Run)))
        }
        Binary::Pow => with_int!(op, a, A => with_int!(op, b, B => Ok(int_pow::<A, B> as Run))),
    }
}

fn bool_only(op: &'static str, dtype: DType, run: Run) -> Result<Run, OpError> {
    if dtype == DType::Bool {
        Ok(run)
    } else {
        Err(OpError::unsupported(op, format!("for {dtype}")))
    }
}

trait Apply<T> {
    type Out: Copy;
    fn apply(a: T, b: T) -> Self::Out;
}

macro_rules! apply {
    ($($name:ident: $bound:ident => $out:ty, |$a:ident, $b:ident| $body:expr;)*) => {$(
        struct $name;
        impl<T: $bound> Apply<T> for $name {
            type Out = $out;
            #[inline(always)]
            fn apply($a: T, $b: T) -> $out { $body }
        }
    )*};
}

apply! {
    Add: Num => T, |a, b| a.add(b);
    Sub: Num => T, |a, b| a.sub(b);
    Mul: Num => T, |a, b| a.mul(b);
    Div: Num => T, |a, b| a.div(b);
    Min: Num => T, |a, b| a.min_nan(b);
    Max: Num => T, |a, b| a.max_nan(b);
    ModTrunc: Num => T, |a, b| a.rem_trunc(b);
    ModFloor: Num => T, |a, b| a.rem_floor(b);
    PRelu: Num => T, |a, b| if a < T::ZERO { a.mul(b) } else { a };
    Less: Scalar => Bool, |a, b| Bool::of(a < b);
    LessOrEqual: Scalar => Bool, |a, b| Bool::of(a <= b);
    Greater: Scalar => Bool, |a, b| Bool::of(a > b);
    GreaterOrEqual: Scalar => Bool, |a, b| Bool::of(a >= b);
    Equal: Scalar => Bool, |a, b| Bool::of(a == b);
    BitAnd: Int => T, |a, b| a.and(b);
    BitOr: Int => T, |a, b| a.or(b);
    BitXor: Int => T, |a, b| a.xor(b);
    ShiftLeft: Int => T, |a, b| a.shl(b);
    ShiftRight: Int => T, |a, b| a.shr(b);
}

macro_rules! logic {
    ($($name:ident |$a:ident, $b:ident| $body:expr;)*) => {$(
        struct $name;
        impl Apply<Bool> for $name {
            type Out = Bool;
            #[inline(always)]
            fn apply($a: Bool, $b: Bool) -> Bool { Bool($body) }
        }
    )*};
}

logic! {
    And |a, b| a.0 & b.0;
    Or |a, b| a.0 | b.0;
    Xor |a, b| a.0 ^ b.0;
}

fn entry<T: Copy, F: Apply<T>>() -> Run {
    run::<T, F>
}

/// # Safety
/// Pointers hold `count` elements at their steps; `out` may be exactly `a` or `b`.
unsafe fn run<T: Copy, F: Apply<T>>(
    count: usize,
    out: *mut u8,
    a: (*const u8, isize),
    b: (*const u8, isize),
) {
    // SAFETY: as the caller vouches.
    unsafe { each::<T, T, F::Out>(count, out, a, b, F::apply) }
}

unsafe fn float_pow<A: Float, B: Scalar>(
    count: usize,
    out: *mut u8,
    a: (*const u8, isize),
    b: (*const u8, isize),
) {
    // SAFETY: as the caller vouches.
    unsafe {
        each::<A, B, A>(count, out, a, b, |a, b| {
            A::from_f64(a.to_f64().powf(b.to_f64()))
        });
    }
}

unsafe fn mixed_pow<A: Int, B: Float>(
    count: usize,
    out: *mut u8,
    a: (*const u8, isize),
    b: (*const u8, isize),
) {
    // SAFETY: as the caller vouches.
    unsafe {
        each::<A, B, A>(count, out, a, b, |a, b| {
            A::from_f64(a.to_f64().powf(b.to_f64()))
        });
    }
}

unsafe fn int_pow<A: Int, B: Int>(
    count: usize,
    out: *mut u8,
    a: (*const u8, isize),
    b: (*const u8, isize),
) {
    // SAFETY: as the caller vouches.
    unsafe {
        each::<A, B, A>(count, out, a, b, |a, b| {
            if b < B::ZERO {
                A::from_f64(a.to_f64().powf(b.to_f64()))
            } else {
                a.pow_int(b.to_i64() as u64)
            }
        });
    }
}

/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn each<A: Copy, B: Copy, O: Copy>(
    count: usize,
    out: *mut u8,
    (a, step_a): (*const u8, isize),
    (b, step_b): (*const u8, isize),
    f: impl Fn(A, B) -> O,
) {
    let (out, a, b) = (out.cast::<O>(), a.cast::<A>(), b.cast::<B>());
    // SAFETY: indices stay below `count`; an element is read before its place is written.
    unsafe {
        match (step_a, step_b) {
            (1, 1) => {
                for i in 0..count {
                    *out.add(i) = f(*a.add(i), *b.add(i));
                }
            }
            (1, 0) => {
                let b = *b;
                for i in 0..count {
                    *out.add(i) = f(*a.add(i), b);
                }
            }
            (0, 1) => {
                let a = *a;
                for i in 0..count {
                    *out.add(i) = f(a, *b.add(i));
                }
            }
            _ => {
                for i in 0..count {
                    let (at_a, at_b) = (i as isize * step_a, i as isize * step_b);
                    *out.add(i) = f(*a.offset(at_a), *b.offset(at_b));
                }
            }
        }
    }
}
