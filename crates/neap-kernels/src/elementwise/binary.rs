//! Functions of two elements, with the broadcasts that networks use, and `a*x + b`.

use std::ops::Range;

use super::{TASK_ELEMENTS, unary_run};
use crate::epilogue::Activation;
use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::share::{Chunks, Dst, Src};
use crate::simd::{Isa, LANES, Simd, simd_kernel};

/// A function of two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// NaN where either is NaN.
    Min,
    /// NaN where either is NaN.
    Max,
    /// `a` to the power `b`.
    Pow,
    /// `a` where not negative, `a * b` elsewhere.
    Prelu,
}

/// Where an operand's value for element (row, col) of the destination comes from.
///
/// The destination is seen as `[rows][cols]`: any contiguous tensor, flattened so that the
/// broadcast fits. Per-channel values against a blocked tensor are [`Operand::Lanes`] with
/// `rows` = batch × blocks and `cols` = H·W·16.
#[derive(Debug, Clone, Copy)]
pub enum Operand<'a> {
    /// What the destination holds now.
    InPlace,
    /// `[rows][cols]`, as the destination.
    Full(&'a [f32]),
    /// One value.
    Scalar(f32),
    /// `[cols]`, the same for every row.
    Row(&'a [f32]),
    /// One value per row: `[period]`, row `r` takes element `r % period`. For a plain
    /// `[N][C][H·W]` tensor and `[C]` values, `rows` is N·C and the period C.
    Column(&'a [f32]),
    /// 16 values per row: `[period][16]`, row `r` and column `c` take element `(r % period, c % 16)`.
    Lanes(&'a [f32]),
}

/// `dst = activation(op(a, b))` over `[rows][cols]`.
///
/// # Errors
/// When a slice is too short, or `cols` is no multiple of 16 with [`Operand::Lanes`].
pub fn binary(
    isa: Isa,
    par: &dyn Parallel,
    op: Binary,
    rows: usize,
    cols: usize,
    a: Operand<'_>,
    b: Operand<'_>,
    dst: &mut [f32],
    activation: Activation,
) -> Result<(), KernelError> {
    let function = match (op, b) {
        // Powers that are products; gelu as older exporters write it has x^3.
        (Binary::Pow, Operand::Scalar(2.0)) => Function::Square,
        (Binary::Pow, Operand::Scalar(3.0)) => Function::Cube,
        _ => Function::Plain(op),
    };
    run(
        isa,
        par,
        function,
        rows,
        cols,
        [a, b, Operand::Scalar(0.0)],
        dst,
        activation,
    )
}

/// `dst = activation(x * scale + shift)` over `[rows][cols]`: batch normalisation at inference.
///
/// # Errors
/// As [`binary`].
pub fn affine(
    isa: Isa,
    par: &dyn Parallel,
    rows: usize,
    cols: usize,
    x: Operand<'_>,
    scale: Operand<'_>,
    shift: Operand<'_>,
    dst: &mut [f32],
    activation: Activation,
) -> Result<(), KernelError> {
    run(
        isa,
        par,
        Function::Affine,
        rows,
        cols,
        [x, scale, shift],
        dst,
        activation,
    )
}

#[derive(Debug, Clone, Copy)]
enum Function {
    Plain(Binary),
    Square,
    Cube,
    Affine,
}

/// An operand as tasks see it.
#[derive(Clone, Copy)]
enum View {
    Full(Src),
    Scalar(f32),
    Row(Src),
    Column(Src, usize),
    Lanes(Src, usize),
}

fn run(
    isa: Isa,
    par: &dyn Parallel,
    function: Function,
    rows: usize,
    cols: usize,
    operands: [Operand<'_>; 3],
    dst: &mut [f32],
    activation: Activation,
) -> Result<(), KernelError> {
    check_len(
        "elementwise destination",
        dst.len(),
        checked_product(&[rows, cols]),
    )?;
    let len = rows * cols;
    if len == 0 {
        return Ok(());
    }
    let dst = Dst::new(dst);
    let mut views = [View::Scalar(0.0); 3];
    for (view, operand) in views.iter_mut().zip(operands) {
        *view = match operand {
            Operand::InPlace => View::Full(dst.as_src()),
            Operand::Scalar(value) => View::Scalar(value),
            Operand::Full(slice) => {
                check_len("elementwise operand", slice.len(), Some(len))?;
                View::Full(Src::new(slice))
            }
            Operand::Row(slice) => {
                check_len("elementwise row operand", slice.len(), Some(cols))?;
                View::Row(Src::new(slice))
            }
            Operand::Column(slice) => {
                check_len("elementwise column operand", slice.len(), Some(1))?;
                View::Column(Src::new(slice), slice.len())
            }
            Operand::Lanes(slice) => {
                check_len("elementwise lane operand", slice.len(), Some(LANES))?;
                if !cols.is_multiple_of(LANES) {
                    return Err(KernelError::Invalid(
                        "lane operands need columns in multiples of 16",
                    ));
                }
                View::Lanes(Src::new(slice), slice.len() / LANES)
            }
        };
    }
    // Without broadcasts along rows the shape does not matter: one long row.
    let flat = views
        .iter()
        .all(|view| matches!(view, View::Full(_) | View::Scalar(_)));
    let cols = if flat { len } else { cols };
    let chunks = Chunks::new(len.div_ceil(LANES), TASK_ELEMENTS / LANES);
    par.run(chunks.count(), &|piece, _| {
        let range = chunks.range(piece);
        let elements = range.start * LANES..(range.end * LANES).min(len);
        // SAFETY: operands were checked against the sizes; pieces are disjoint, and an operand in
        // place is only read where this piece writes.
        unsafe { elements_run(isa, function, cols, &views, dst, elements, activation) };
    });
    Ok(())
}

/// Elements of one task: row by row, in blocks that are still in the nearest cache when the
/// activation passes over them.
///
/// # Safety
/// The operands cover the elements as their kinds say; nobody else writes them.
unsafe fn elements_run(
    isa: Isa,
    function: Function,
    cols: usize,
    views: &[View; 3],
    dst: Dst,
    elements: Range<usize>,
    activation: Activation,
) {
    const BLOCK: usize = 4096;
    for start in elements.clone().step_by(BLOCK) {
        let end = (start + BLOCK).min(elements.end);
        // SAFETY: the caller vouches for the elements.
        unsafe {
            rows_run(isa, function, cols, views, dst, start, end);
            if activation != Activation::None {
                let at = dst.at(start);
                unary_run(isa, activation.into(), at, at, end - start);
            }
        }
    }
}

simd_kernel! {
    /// Elements `start..end`.
    ///
    /// # Safety
    /// As [`elements_run`].
    unsafe fn rows_run(
        function: Function,
        cols: usize,
        views: &[View; 3],
        dst: Dst,
        start: usize,
        end: usize,
    ) = rows_generic;
}

/// Applies a vector expression to a stretch of one row; constant operands have step 0.
macro_rules! each {
    ($s:ident, $at:ident, $step:ident, $dst:ident, $len:ident, |$a:ident, $b:ident, $c:ident| $result:expr) => {{
        let ([mut pa, mut pb, mut pc], mut pd, mut left) = ($at, $dst, $len);
        while left > 0 {
            // SAFETY: a vector (the last one partial) of each operand that `rows_generic` set up.
            unsafe {
                if left >= LANES {
                    let ($a, $b, $c) = ($s.load(pa), $s.load(pb), $s.load(pc));
                    $s.store(pd, $result);
                } else {
                    let ($a, $b, $c) = (
                        $s.load_partial(pa, left),
                        $s.load_partial(pb, left),
                        $s.load_partial(pc, left),
                    );
                    $s.store_partial(pd, left, $result);
                }
            }
            pa = pa.wrapping_add($step[0]);
            pb = pb.wrapping_add($step[1]);
            pc = pc.wrapping_add($step[2]);
            pd = pd.wrapping_add(LANES);
            left = left.saturating_sub(LANES);
        }
    }};
}

#[inline(always)]
unsafe fn rows_generic<S: Simd>(
    s: S,
    function: Function,
    cols: usize,
    views: &[View; 3],
    dst: Dst,
    start: usize,
    end: usize,
) {
    let mut at = start;
    while at < end {
        let (row, col) = (at / cols, at % cols);
        let len = (cols - col).min(end - at);
        // Values that are constant along the row stand in these, and are read with step 0.
        let mut constants = [[0.0f32; LANES]; 3];
        let mut from = [std::ptr::null::<f32>(); 3];
        let mut step = [0usize; 3];
        for (i, view) in views.iter().enumerate() {
            // SAFETY: the caller says the operands cover row `row` and columns `col..col + len`.
            unsafe {
                match *view {
                    View::Full(src) => (from[i], step[i]) = (src.at(at), LANES),
                    View::Row(src) => (from[i], step[i]) = (src.at(col), LANES),
                    View::Lanes(src, period) => from[i] = src.at(row % period * LANES),
                    View::Column(src, period) => {
                        constants[i] = [*src.at(row % period); LANES];
                        from[i] = constants[i].as_ptr();
                    }
                    View::Scalar(value) => {
                        constants[i] = [value; LANES];
                        from[i] = constants[i].as_ptr();
                    }
                }
            }
        }
        // SAFETY: `at` lies inside the destination.
        let to = unsafe { dst.at(at) };
        let zero = s.zero();
        match function {
            Function::Plain(Binary::Add) => each!(s, from, step, to, len, |a, b, _c| s.add(a, b)),
            Function::Plain(Binary::Sub) => each!(s, from, step, to, len, |a, b, _c| s.sub(a, b)),
            Function::Plain(Binary::Mul) => each!(s, from, step, to, len, |a, b, _c| s.mul(a, b)),
            Function::Plain(Binary::Div) => each!(s, from, step, to, len, |a, b, _c| s.div(a, b)),
            // The hardware's min and max return their second argument when either is NaN.
            Function::Plain(Binary::Min) => {
                each!(s, from, step, to, len, |a, b, _c| s.select(
                    s.eq(a, a),
                    s.min(a, b),
                    a
                ));
            }
            Function::Plain(Binary::Max) => {
                each!(s, from, step, to, len, |a, b, _c| s.select(
                    s.eq(a, a),
                    s.max(a, b),
                    a
                ));
            }
            Function::Plain(Binary::Prelu) => {
                each!(s, from, step, to, len, |a, b, _c| s.select(
                    s.lt(a, zero),
                    s.mul(a, b),
                    a
                ));
            }
            Function::Plain(Binary::Pow) => {
                each!(s, from, step, to, len, |a, b, _c| {
                    let (a, b) = (s.to_array(a), s.to_array(b));
                    s.from_array(powers(&a, &b))
                });
            }
            Function::Square => each!(s, from, step, to, len, |a, _b, _c| s.mul(a, a)),
            Function::Cube => each!(s, from, step, to, len, |a, _b, _c| s.mul(a, s.mul(a, a))),
            Function::Affine => each!(s, from, step, to, len, |a, b, c| s.fma(a, b, c)),
        }
        at += len;
    }
}

fn powers(a: &[f32; LANES], b: &[f32; LANES]) -> [f32; LANES] {
    std::array::from_fn(|i| a[i].powf(b[i]))
}
