//! From `f32` panels to panels of another [`Format`], where that loses nothing.

use super::{Format, channels_of, coded, panel_floats};
use crate::error::{KernelError, check_len};
use crate::simd::LANES;
use std::ops::Range;

/// What stored weights are made into: `(weight - zero) * scale`, a value for each of the *layer's* output channels,
/// whatever the range. `None` is 1 and 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scales<'a> {
    pub scale: Option<&'a [f32]>,
    pub zero: Option<&'a [f32]>,
}

/// The half float that is exactly `x`.
#[must_use]
pub fn to_f16(x: f32) -> Option<u16> {
    let bits = x.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Of the significand, with its leading one, `dropped` low bits have no place.
    let exponent = (magnitude >> 23) as i32 - 127;
    let (base, significand, dropped) = match exponent {
        _ if magnitude == 0 => (0, 0, 0),
        128 => (0x7c00, magnitude & 0x007f_ffff, 13),
        -14..=15 => ((exponent + 15) as u16 * 0x400, magnitude & 0x007f_ffff, 13),
        -24..=-15 => (0, (magnitude & 0x007f_ffff) | 0x0080_0000, -exponent - 1),
        _ => return None,
    };
    let kept = significand >> dropped;
    (kept << dropped == significand).then_some(sign | (base + kept as u16))
}

/// The bfloat16 that is exactly `x`.
#[must_use]
pub fn to_bf16(x: f32) -> Option<u16> {
    let bits = x.to_bits();
    (bits & 0xffff == 0).then_some((bits >> 16) as u16)
}

/// The signed byte that is exactly `x`, which is not a negative zero.
#[must_use]
pub fn to_i8(x: f32) -> Option<i8> {
    let byte = x as i8;
    (f32::from(byte).to_bits() == x.to_bits()).then_some(byte)
}

/// Whether a format holds all these weights exactly.
#[must_use]
pub fn holds(format: Format, weights: &[f32]) -> bool {
    match format {
        Format::F32 | Format::Coded { .. } => true,
        Format::F16 | Format::F16Scaled => weights.iter().all(|&w| to_f16(w).is_some()),
        Format::Bf16 | Format::Bf16Scaled => weights.iter().all(|&w| to_bf16(w).is_some()),
        Format::I8 => weights.iter().all(|&w| to_i8(w).is_some()),
        Format::Blocks(_) => false,
    }
}

/// Writes panels with `k` inner steps of a layer with `c_out` output channels in another format.
///
/// * `from`: the `f32` panels of the range, whose weights are those to be stored, without scales
/// * `out`: as many panels of the format
///
/// # Errors
/// A range outside the layer, buffers too short, or a weight that the format does not hold exactly.
pub fn narrow(
    format: Format,
    c_out: usize,
    k: usize,
    panels: Range<usize>,
    from: &[f32],
    scales: Scales<'_>,
    out: &mut [u8],
) -> Result<(), KernelError> {
    if panels.start > panels.end || panels.end > super::panel_count(c_out) {
        return Err(KernelError::Invalid("panel range outside the layer"));
    }
    let bytes = format.panel_bytes(k);
    let needed = bytes.and_then(|bytes| bytes.checked_mul(panels.len()));
    check_len("panels", out.len(), needed)?;
    check_len(
        "f32 panels",
        from.len(),
        Some(panel_floats(k) * panels.len()),
    )?;
    for values in [scales.scale, scales.zero].into_iter().flatten() {
        check_len("scale or zero point", values.len(), Some(c_out))?;
    }
    let pieces = from.chunks_exact(panel_floats(k));
    let outs = out.chunks_exact_mut(bytes.unwrap_or(1));
    for ((panel, from), to) in panels.zip(pieces).zip(outs) {
        let (bias, weights) = from.split_at(LANES);
        if let Format::Coded { .. } = format {
            coded::pack(from, to)?;
            continue;
        }
        let (head, to) = to.split_at_mut(format.head_bytes());
        let channels = channels_of(&(panel..panel + 1), c_out);
        let values = |given: Option<&[f32]>, otherwise: f32| {
            let mut vector = [0.0; LANES];
            vector[..channels.len()].fill(otherwise);
            if let Some(given) = given {
                vector[..channels.len()].copy_from_slice(&given[channels.clone()]);
            }
            vector
        };
        let vectors = [values(scales.scale, 1.0), values(scales.zero, 0.0)];
        let floats = bias.iter().chain(vectors.as_flattened());
        for (to, value) in head.chunks_exact_mut(size_of::<f32>()).zip(floats) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        if !store(format, weights, to) {
            return Err(KernelError::Unsupported(
                "weights that their format does not hold exactly",
            ));
        }
    }
    Ok(())
}

/// Whether all weights could be stored.
fn store(format: Format, weights: &[f32], to: &mut [u8]) -> bool {
    fn each<const N: usize>(
        weights: &[f32],
        to: &mut [u8],
        bytes_of: impl Fn(f32) -> Option<[u8; N]>,
    ) -> bool {
        weights.iter().zip(to.chunks_exact_mut(N)).all(|(&w, to)| {
            let bytes = bytes_of(w);
            to.copy_from_slice(&bytes.unwrap_or([0; N]));
            bytes.is_some()
        })
    }
    match format {
        Format::F32 | Format::Coded { .. } => each(weights, to, |w| Some(w.to_le_bytes())),
        Format::F16 | Format::F16Scaled => each(weights, to, |w| to_f16(w).map(u16::to_le_bytes)),
        Format::Bf16 | Format::Bf16Scaled => {
            each(weights, to, |w| to_bf16(w).map(u16::to_le_bytes))
        }
        Format::I8 => each(weights, to, |w| to_i8(w).map(i8::to_le_bytes)),
        // `super::pack_block_panel` makes those.
        Format::Blocks(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::f16_to_f32;

    #[test]
    fn every_half_float_is_found_again() {
        for half in 0..=u16::MAX {
            assert_eq!(to_f16(f16_to_f32(half)), Some(half), "{half:#x}");
            assert_eq!(to_bf16(f32::from_bits(u32::from(half) << 16)), Some(half));
        }
        for byte in i8::MIN..=i8::MAX {
            assert_eq!(to_i8(f32::from(byte)), Some(byte));
        }
    }

    #[test]
    fn what_would_be_rounded_is_refused() {
        let between = [
            1.0 + f32::EPSILON,
            65520.0,
            1e-8,
            2f32.powi(-25),
            3.0f32.powi(-14),
            f32::MIN_POSITIVE,
        ];
        for x in between {
            assert_eq!((to_f16(x), to_f16(-x)), (None, None), "{x}");
        }
        assert_eq!(to_bf16(1.0 + f32::EPSILON), None);
        for x in [0.5, 128.0, -129.0, -0.0, f32::NAN, f32::INFINITY] {
            assert_eq!(to_i8(x), None, "{x}");
        }
        let mut out = vec![0; Format::F16.panel_bytes(1).unwrap()];
        let mut panel = vec![0.25; panel_floats(1)];
        let narrowed = |panel: &[f32], out: &mut [u8]| {
            narrow(Format::F16, 16, 1, 0..1, panel, Scales::default(), out)
        };
        assert!(narrowed(&panel, &mut out).is_ok());
        panel[20] = 0.1;
        assert!(narrowed(&panel, &mut out).is_err());
        panel[20] = 0.5;
        assert!(narrowed(&panel, &mut out[1..]).is_err());
        assert!(narrowed(&panel[1..], &mut out).is_err());
        assert!(
            narrow(
                Format::F16,
                16,
                1,
                1..2,
                &panel,
                Scales::default(),
                &mut out
            )
            .is_err()
        );
    }
}
