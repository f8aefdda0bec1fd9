//! QuantizeLinear and DequantizeLinear, and four-bit integers.

use crate::args::Args;
use crate::nd::{GRAIN, Ptr, split};
use crate::{Context, OpError, TensorRef};
use neap_ir::DType;
use neap_kernels::elementwise::quantize as kernels;

/// Scale and zero point of each place along an axis, which repeat.
struct Steps<'a> {
    scales: &'a [f32],
    zero: Option<TensorRef<'a>>,
    /// Elements for which they stay the same.
    run: usize,
}

impl<'a> Steps<'a> {
    fn of(axis: usize, shape: &[usize], args: &Args<'_, 'a>) -> Result<Steps<'a>, OpError> {
        let scales = args.input(1)?.f32s();
        Ok(Steps {
            scales,
            zero: args.opt_input(2),
            run: match scales.len() {
                1 => shape.iter().product(),
                _ => shape[axis + 1..].iter().product(),
            },
        })
    }

    fn zero(&self, at: usize) -> i64 {
        // SAFETY: the zero point has as many elements as there are scales.
        self.zero.map_or(0, |zero| unsafe { step(&zero, at) })
    }

    /// Calls `body` with pieces of `elements` elements that have one scale: first element, elements, scale and zero
    /// point.
    fn each(&self, elements: usize, ctx: &Context, body: &(dyn Fn(usize, usize, f32, i64) + Sync)) {
        if self.run == 0 {
            return;
        }
        split(ctx.par, elements, GRAIN, &|range, _| {
            let mut at = range.start;
            while at < range.end {
                let place = at / self.run;
                let end = ((place + 1) * self.run).min(range.end);
                let index = place % self.scales.len();
                body(at, end - at, self.scales[index], self.zero(index));
                at = end;
            }
        });
    }
}

pub(crate) fn quantize(axis: usize, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let steps = Steps::of(axis, x.shape(), args)?;
    let (from, to, isa) = (x.f32s(), y.as_ptr(), ctx.isa);
    macro_rules! run {
        ($t:ident, $kernel:ident) => {{
            let to = Ptr::<$t>(to.cast());
            steps.each(y.layout_elements(), ctx, &|at, count, scale, zero| {
                // SAFETY: pieces do not overlap and lie in the output, which overlaps no input.
                let out = unsafe { to.slice_mut(at, count) };
                kernels::$kernel(isa, &from[at..at + count], scale, zero as f32, out);
            });
        }};
    }
    match y.dtype() {
        DType::I8 => run!(i8, quantize_i8),
        DType::U8 => run!(u8, quantize_u8),
        DType::I16 => run!(i16, quantize_i16),
        DType::U16 => run!(u16, quantize_u16),
        other => return args.fail(format!("cannot give {other}")),
    }
    Ok(())
}

pub(crate) fn dequantize(axis: usize, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let steps = Steps::of(axis, x.shape(), args)?;
    let isa = ctx.isa;
    let to = Ptr::<f32>(y.as_ptr().cast());
    macro_rules! run {
        ($t:ident, |$from:ident, $scale:ident, $zero:ident, $out:ident| $body:expr) => {{
            let from = Ptr::<$t>::of(x.as_ptr());
            steps.each(y.layout_elements(), ctx, &|at, count, $scale, $zero| {
                // SAFETY: pieces do not overlap and lie in both tensors, which do not overlap each other.
                let ($from, $out) = unsafe {
                    (
                        std::slice::from_raw_parts(from.get().add(at), count),
                        to.slice_mut(at, count),
                    )
                };
                $body
            });
        }};
    }
    match x.dtype() {
        DType::I8 => {
            run!(i8, |from, scale, zero, out| kernels::dequantize_i8(
                isa,
                from,
                scale,
                zero as f32,
                out
            ))
        }
        DType::U8 => {
            run!(u8, |from, scale, zero, out| kernels::dequantize_u8(
                isa,
                from,
                scale,
                zero as f32,
                out
            ))
        }
        DType::I16 => {
            run!(i16, |from, scale, zero, out| kernels::dequantize_i16(
                isa,
                from,
                scale,
                zero as f32,
                out
            ))
        }
        DType::U16 => {
            run!(u16, |from, scale, zero, out| kernels::dequantize_u16(
                isa,
                from,
                scale,
                zero as f32,
                out
            ))
        }
        // The difference is taken before it is rounded.
        DType::I32 => run!(i32, |from, scale, zero, out| {
            for (out, &x) in out.iter_mut().zip(from) {
                *out = i64::from(x).wrapping_sub(zero) as i32 as f32 * scale;
            }
        }),
        other => return args.fail(format!("cannot take {other}")),
    }
    Ok(())
}

/// The integer at `at`, as a number.
///
/// # Safety
/// The tensor has such an element.
unsafe fn step(x: &TensorRef, at: usize) -> i64 {
    let from = x.as_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        match x.dtype() {
            DType::I8 => i64::from(*from.cast::<i8>().add(at)),
            DType::U8 => i64::from(*from.add(at)),
            DType::I16 => i64::from(from.cast::<i16>().add(at).read_unaligned()),
            DType::U16 => i64::from(from.cast::<u16>().add(at).read_unaligned()),
            _ => i64::from(from.cast::<i32>().add(at).read_unaligned()),
        }
    }
}

pub(crate) fn dequantize_blocks(
    axis: usize,
    block: usize,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (scales, zero) = (args.input(1)?.f32s(), args.opt_input(2));
    let (along, inner) = (
        x.shape()[axis],
        x.shape()[axis + 1..].iter().product::<usize>(),
    );
    let blocks = along.div_ceil(block.max(1));
    let to = Ptr::<f32>(y.as_ptr().cast());
    split(ctx.par, y.elements(), GRAIN, &|range, _| {
        for at in range {
            let (outer, place, within) = (at / inner / along, at / inner % along, at % inner);
            let index = (outer * blocks + place / block) * inner + within;
            // SAFETY: pieces do not overlap; the zero point has one element, or as many as there are scales.
            unsafe {
                let zero = zero.as_ref().map_or(0, |zero| {
                    step(zero, if zero.elements() == 1 { 0 } else { index })
                });
                // The difference is taken before it is rounded.
                let centred = step(&x, at) - zero;
                to.slice_mut(at, 1)[0] = centred as f32 * scales[index];
            }
        }
    });
    Ok(())
}

pub(crate) fn nibbles(signed: bool, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (from, to) = (Ptr::<u8>::of(x.as_ptr()), Ptr::<u8>(y.as_ptr().cast()));
    split(ctx.par, y.elements(), GRAIN, &|range, _| {
        for at in range {
            // SAFETY: pieces do not overlap; there is a byte for each two elements.
            unsafe {
                let nibble = *from.get().add(at / 2) >> (4 * (at % 2)) & 15;
                let negative = signed && nibble >= 8;
                to.slice_mut(at, 1)[0] = if negative { nibble | 0xf0 } else { nibble };
            }
        }
    });
    Ok(())
}
