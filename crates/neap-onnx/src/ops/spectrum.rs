//! Fourier transforms and what is computed around them; determinants.

use super::generate::literal_of;
use super::slicing::{part, whole};
use crate::error::OnnxError;
use crate::late::Axis;
use crate::node::{Ctx, Outputs, one};
use neap_ir::late::LateOp;
use neap_ir::op::{Binary, PadMode, SliceRange};
use neap_ir::spectrum::{Dft, Stft, onesided_length};
use neap_ir::{Op, ValueId};

/// Numbers that are made while reading; more than any real filter bank has.
const MAX_MADE: usize = 1 << 22;

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "DFT" => one(dft(c)),
        "STFT" => one(stft(c)),
        "MelWeightMatrix" => one(mel_weight_matrix(c)),
        "Det" => one(c.input(0).and_then(|x| c.emit(Op::Det, &[x]))),
        _ => return None,
    })
}

fn dft(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let shape = c.shape_of_rank(x, 2)?;
    let axis = if c.version < 20 {
        c.int("axis", 1)?
    } else {
        c.known_scalar(2, "its axis")?.unwrap_or(-2)
    };
    let axis = c.axis(axis, shape.len())?;
    let length = match c.known_scalar(1, "its dft_length")? {
        Some(length) => Some(c.checked_size("dft_length", length)?),
        None => None,
    };
    let (inverse, onesided) = (c.flag("inverse", false)?, c.flag("onesided", false)?);
    if inverse && onesided {
        return real_numbers(c, x, axis, length);
    }
    let dft = Dft {
        axis,
        length: length.unwrap_or(shape[axis]),
        inverse,
        onesided,
    };
    c.emit(Op::Dft(dft), &[x])
}

/// From the first half of the frequencies. The rest are conjugates of these, the last one first.
fn real_numbers(
    c: &mut Ctx,
    x: ValueId,
    axis: usize,
    length: Option<usize>,
) -> Result<ValueId, OnnxError> {
    let shape = c.shape(x);
    let parts = shape[shape.len() - 1];
    if axis + 1 == shape.len() || parts != 2 {
        return Err(c.bad("half of the frequencies are not given as complex numbers"));
    }
    let length = length.unwrap_or(2 * shape[axis].saturating_sub(1));
    if length == 0 {
        return Err(c.bad("its result has no length"));
    }
    let own = onesided_length(length);
    let mut half = x;
    if shape[axis] != own {
        let mut pads = vec![(0, 0); shape.len()];
        pads[axis] = (0, own as isize - shape[axis] as isize);
        let mode = PadMode::Constant;
        half = c.emit(Op::Pad { mode, pads }, &[x])?;
    }
    let mut all = vec![half];
    if length > own {
        let mut ranges: Vec<SliceRange> = c.shape(half).iter().map(|&d| whole(d)).collect();
        ranges[axis] = SliceRange {
            start: length - own,
            step: -1,
            len: length - own,
        };
        let rest = c.emit(Op::Slice { ranges }, &[half])?;
        let signs = literal_of(c.dtype(x), &[2], [1.0, -1.0].into_iter());
        let signs = c.constant(signs);
        all.push(c.binary(Binary::Mul, rest, signs)?);
    }
    let spectrum = match all[..] {
        [only] => only,
        _ => c.emit(Op::Concat { axis }, &all)?,
    };
    let dft = Dft {
        axis,
        length,
        inverse: true,
        onesided: false,
    };
    let complex = c.emit(Op::Dft(dft), &[spectrum])?;
    part(c, complex, shape.len() - 1, 0, 1)
}

fn stft(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, window) = (c.input(0)?, c.optional(2));
    let shape = c.shape_of_rank(x, 2)?;
    // The axis of complex numbers may be left out.
    let is_late = c.builder.axes(x)[1..].iter().any(|a| a.symbol.is_some());
    let x = match shape[..] {
        [..] if shape.len() != 2 => x,
        [batch, length] if !c.builder.is_late(x) => c.reshape(x, &[batch, length, 1])?,
        _ => {
            let mut axes = c.builder.axes(x);
            axes.push(Axis::known(1));
            let (op, dtype) = (LateOp::Unsqueeze { axes: vec![2] }, c.dtype(x));
            c.emit_late(op, &[Some(x)], dtype, axes)?
        }
    };
    let step = c
        .known_scalar(1, "its frame_step")?
        .ok_or_else(|| c.bad("its frame_step is missing"))?;
    let frame = match (c.known_scalar(3, "its frame_length")?, window) {
        (Some(frame), _) => c.checked_size("frame_length", frame)?,
        (None, Some(window)) => c.ty(window).elements(),
        (None, None) if is_late => {
            return Err(c.unsupported("a frame of a size that is known only when running"));
        }
        (None, None) => shape[1],
    };
    let stft = Stft {
        frame,
        step: c.checked_size("frame_step", step)?,
        onesided: c.flag("onesided", true)?,
    };
    let inputs = [Some(x), window];
    let given = 1 + usize::from(window.is_some());
    c.emit_optional(Op::Stft(stft), &inputs[..given])
}

/// Triangles that are equally wide in mel, over the frequencies of a transform.
fn mel_weight_matrix(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let whole = |c: &mut Ctx, index: usize, what: &str| {
        let value = c.known_scalar(index, what)?;
        let value = value.ok_or_else(|| c.bad(format!("{what} is missing")))?;
        c.checked_size(what, value)
    };
    let bins = whole(c, 0, "its num_mel_bins")?;
    let length = whole(c, 1, "its dft_length")?;
    let rate = whole(c, 2, "its sample_rate")?;
    let edge = |c: &mut Ctx, index: usize, what: &str| {
        let value = c.input(index)?;
        match c.known_f32(value, what)?[..] {
            [hertz] if hertz >= 0.0 && hertz.is_finite() => Ok(f64::from(hertz)),
            _ => Err(c.bad(format!("{what} is no frequency"))),
        }
    };
    let low = edge(c, 3, "its lower_edge_hertz")?;
    let high = edge(c, 4, "its upper_edge_hertz")?;
    let rows = onesided_length(length);
    if rows.saturating_mul(bins) > MAX_MADE {
        return Err(c.unsupported("a matrix this large"));
    }
    if rate == 0 {
        return Err(c.bad("its sample_rate is zero"));
    }
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(high) - mel(low)) / (bins + 2) as f64;
    let places: Vec<i64> = (0..bins + 2)
        .map(|i| {
            let hertz = 700.0 * (10f64.powf((i as f64 * step + mel(low)) / 2595.0) - 1.0);
            ((length + 1) as f64 * hertz / rate as f64).floor() as i64
        })
        .collect();
    if places
        .iter()
        .any(|&place| place < 0 || place >= rows as i64)
    {
        return Err(c.bad("its edges are beyond the frequencies of the transform"));
    }
    let mut matrix = vec![0.0; rows * bins];
    for (bin, corners) in places.windows(3).enumerate() {
        let [left, centre, right] = [corners[0], corners[1], corners[2]];
        for place in left..=centre {
            matrix[place as usize * bins + bin] = match centre - left {
                0 => 1.0,
                width => (place - left) as f64 / width as f64,
            };
        }
        for place in centre..right {
            matrix[place as usize * bins + bin] = (right - place) as f64 / (right - centre) as f64;
        }
    }
    let dtype = c.element_type(c.int("output_datatype", 1)?)?;
    let literal = literal_of(dtype, &[rows, bins], matrix.into_iter());
    Ok(c.constant(literal))
}
