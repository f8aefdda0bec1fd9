//! Types of Fourier transforms, and of determinants.

use super::{Inferred, Operands};
use crate::TensorType;
use crate::spectrum::{Dft, Stft, onesided_length};

pub(super) fn dft(dft: &Dft, o: &Operands) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require_float(x)?;
    let rank = x.shape.len();
    o.require(
        rank >= 2 && dft.axis < rank - 1,
        "takes an axis before that of complex numbers",
    )?;
    let parts = x.shape[rank - 1];
    o.require(parts == 1 || parts == 2, "takes real or complex numbers")?;
    o.require(dft.length > 0, "takes a length of one or more")?;
    o.require(
        !dft.onesided || (parts == 1 && !dft.inverse),
        "gives half of the result for real numbers only",
    )?;
    let mut shape = x.shape.clone();
    shape[dft.axis] = match dft.onesided {
        true => onesided_length(dft.length),
        false => dft.length,
    };
    shape[rank - 1] = 2;
    Ok(vec![TensorType::new(x.dtype, &shape)])
}

pub(super) fn stft(stft: &Stft, o: &Operands) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require_float(x)?;
    let &[batch, length, parts] = &x.shape[..] else {
        return o.fail("takes a batch of signals with an axis for complex numbers");
    };
    o.require(parts == 1 || parts == 2, "takes real or complex numbers")?;
    o.require(
        !stft.onesided || parts == 1,
        "gives half of the result for real numbers only",
    )?;
    o.require(
        stft.step > 0 && stft.frame > 0 && stft.frame <= length,
        "has frames that do not fit the signal",
    )?;
    o.require_like(1, &[stft.frame])?;
    let frames = (length - stft.frame) / stft.step + 1;
    let frequencies = match stft.onesided {
        true => onesided_length(stft.frame),
        false => stft.frame,
    };
    Ok(vec![TensorType::new(
        x.dtype,
        &[batch, frames, frequencies, 2],
    )])
}

pub(super) fn det(o: &Operands) -> Inferred<Vec<TensorType>> {
    let x = square(o)?;
    let lead = &x.shape[..x.shape.len() - 2];
    Ok(vec![TensorType::new(x.dtype, lead)])
}

pub(super) fn inverse(o: &Operands) -> Inferred<Vec<TensorType>> {
    Ok(vec![square(o)?.clone()])
}

/// Square matrices.
fn square<'a>(o: &Operands<'a>) -> Inferred<&'a TensorType> {
    let x = o.get(0)?;
    o.require_float(x)?;
    let [.., rows, columns] = &x.shape[..] else {
        return o.fail("takes matrices");
    };
    o.require(rows == columns, "takes square matrices")?;
    Ok(x)
}
