//! DFT and STFT: lines are gathered into complex numbers of f64, transformed, and written back.

mod transform;

use crate::args::{Args, Scratch};
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Scalar, with_float};
use crate::{Context, OpError};
use neap_ir::spectrum::{Dft, Stft};
use transform::{Complex, Transform, Way};

/// Longer ones would take more memory than a process has, in tables.
pub(crate) const MAX_LENGTH: usize = 1 << 32;

pub(crate) fn workspace_bytes(length: usize, workers: usize) -> usize {
    Way::of(length).workspace_bytes(workers)
}

/// Operations for each element of a line.
pub(crate) fn flops_per_element(length: usize) -> u64 {
    8 * u64::from(length.max(2).ilog2())
}

/// Transforms all lines. `load` gives an element of a line, `store` takes the results.
fn each_line(
    args: &Args,
    ctx: &mut Context,
    length: usize,
    lines: usize,
    load: &(dyn Fn(usize, usize) -> Complex + Sync),
    store: &(dyn Fn(usize, &[Complex]) + Sync),
) -> Result<(), OpError> {
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let transform = Transform::new(Way::of(length), &mut scratch)?;
    let size = transform.line();
    let buffers = scratch.take::<Complex>(size * ctx.par.workers())?;
    let buffers = Ptr(buffers.as_mut_ptr());
    split(ctx.par, lines, GRAIN / (4 * length), &|range, worker| {
        // SAFETY: every worker has its own part of the scratch.
        let buffer = unsafe { buffers.slice_mut(worker * size, size) };
        for line in range {
            for (i, value) in buffer[..length].iter_mut().enumerate() {
                *value = load(line, i);
            }
            let done = transform.run(buffer);
            store(line, &done[..length]);
        }
    });
    Ok(())
}

pub(crate) fn dft(dft: &Dft, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    if y.elements() == 0 {
        return Ok(());
    }
    let shape = x.shape();
    let rank = shape.len();
    let (given, parts) = (shape[dft.axis], shape[rank - 1]);
    let inner: usize = shape[dft.axis + 1..rank - 1].iter().product();
    let outer: usize = shape[..dft.axis].iter().product();
    let made = y.shape()[dft.axis];
    let scale = if dft.inverse {
        1.0 / dft.length as f64
    } else {
        1.0
    };
    with_float!(args.op, x.dtype(), T => {
        let (from, to) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        let load = |line: usize, i: usize| {
            if i >= given {
                return [0.0; 2];
            }
            let at = (((line / inner) * given + i) * inner + line % inner) * parts;
            // SAFETY: the element is within the line, and has that many parts.
            let part = |p: usize| unsafe { from.read(at + p) }.to_f64();
            let [re, im] = [part(0), if parts == 2 { part(1) } else { 0.0 }];
            // The inverse is the transform with the parts exchanged, before and after.
            if dft.inverse { [im, re] } else { [re, im] }
        };
        let store = |line: usize, values: &[Complex]| {
            for (i, &[a, b]) in values[..made].iter().enumerate() {
                let at = (((line / inner) * made + i) * inner + line % inner) * 2;
                let [re, im] = if dft.inverse { [b, a] } else { [a, b] };
                // SAFETY: lines do not overlap.
                unsafe {
                    to.write(at, T::from_f64(re * scale));
                    to.write(at + 1, T::from_f64(im * scale));
                }
            }
        };
        each_line(args, ctx, dft.length, outer * inner, &load, &store)
    })
}

pub(crate) fn stft(stft: &Stft, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, window, y) = (args.input(0)?, args.opt_input(1), args.output(0)?);
    let &[batch, length, parts] = x.shape() else {
        return args.fail("takes a batch of signals");
    };
    let (frames, made) = (y.shape()[1], y.shape()[2]);
    with_float!(args.op, x.dtype(), T => {
        let (from, to) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        let window = window.map(|w| Ptr::<T>::of(w.as_ptr()));
        let load = |line: usize, i: usize| {
            let at = (line / frames * length + line % frames * stft.step + i) * parts;
            // SAFETY: the window has an element for each of a frame.
            let weight = window.map_or(1.0, |w| unsafe { w.read(i) }.to_f64());
            // SAFETY: frames are within the signal, whose elements have that many parts.
            let part = |p: usize| weight * unsafe { from.read(at + p) }.to_f64();
            [part(0), if parts == 2 { part(1) } else { 0.0 }]
        };
        let store = |line: usize, values: &[Complex]| {
            for (i, &[re, im]) in values[..made].iter().enumerate() {
                let at = (line * made + i) * 2;
                // SAFETY: lines do not overlap.
                unsafe {
                    to.write(at, T::from_f64(re));
                    to.write(at + 1, T::from_f64(im));
                }
            }
        };
        each_line(args, ctx, stft.frame, batch * frames, &load, &store)
    })
}
