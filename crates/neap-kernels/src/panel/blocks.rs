//! Panels of integers in blocks.

use super::to_f16;
use crate::error::{KernelError, check_len};
use crate::panel::format::{Bits, BlockFormat, Format};
use crate::simd::LANES;

/// What a panel in blocks is made of; lanes past the layer's last output channel hold anything that fits.
#[derive(Debug, Clone, Copy)]
pub struct BlockSteps<'a> {
    /// One for each lane.
    pub bias: &'a [f32; LANES],
    /// `[block][16]`
    pub scales: &'a [[f32; LANES]],
    /// `[block][16]`
    pub zeros: &'a [[i8; LANES]],
    /// `[k][16]`: 0 to 15 in four bits, signed in eight.
    pub steps: &'a [[i8; LANES]],
}

/// Writes one panel. A weight is `(step - zero) * scale` with the scale and zero point of its block.
///
/// # Errors
/// Not one scale and zero point for each block, `out` too short, or a scale or integer that the format does not hold.
pub fn pack_block_panel(
    format: BlockFormat,
    panel: BlockSteps<'_>,
    out: &mut [u8],
) -> Result<(), KernelError> {
    let k = panel.steps.len();
    if format.len == 0 {
        return Err(KernelError::Invalid("blocks of no weights"));
    }
    let blocks = k.div_ceil(format.len);
    check_len("scales", panel.scales.len(), Some(blocks))?;
    check_len("zero points", panel.zeros.len(), Some(blocks))?;
    check_len("panel", out.len(), Format::Blocks(format).panel_bytes(k))?;
    let (head, mut rest) = out.split_at_mut(LANES * size_of::<f32>());
    for (to, bias) in head.as_chunks_mut::<4>().0.iter_mut().zip(panel.bias) {
        *to = bias.to_le_bytes();
    }
    let parts = panel.scales.iter().zip(panel.zeros);
    for (steps, (scales, zeros)) in panel.steps.chunks(format.len).zip(parts) {
        let (block, after) =
            rest.split_at_mut(format.head_bytes() + steps.len() * format.step_bytes());
        rest = after;
        let (head, to) = block.split_at_mut(format.head_bytes());
        let (scale_bytes, zero_bytes) = head.split_at_mut(format.head_bytes() - LANES);
        write_scales(format, scales, scale_bytes)?;
        for (to, zero) in zero_bytes.iter_mut().zip(zeros) {
            *to = *zero as u8;
        }
        for (to, step) in to.chunks_exact_mut(format.step_bytes()).zip(steps) {
            write_step(format.bits, step, to)?;
        }
    }
    Ok(())
}

fn write_scales(
    format: BlockFormat,
    scales: &[f32; LANES],
    to: &mut [u8],
) -> Result<(), KernelError> {
    if !format.has_half_scales {
        for (to, scale) in to.as_chunks_mut::<4>().0.iter_mut().zip(scales) {
            *to = scale.to_le_bytes();
        }
        return Ok(());
    }
    for (to, &scale) in to.as_chunks_mut::<2>().0.iter_mut().zip(scales) {
        let half = to_f16(scale).ok_or(KernelError::Unsupported(
            "scales that half floats do not hold exactly",
        ))?;
        *to = half.to_le_bytes();
    }
    Ok(())
}

fn write_step(bits: Bits, step: &[i8; LANES], to: &mut [u8]) -> Result<(), KernelError> {
    if bits == Bits::Eight {
        for (to, &step) in to.iter_mut().zip(step) {
            *to = step as u8;
        }
        return Ok(());
    }
    if step.iter().any(|step| !(0..16).contains(step)) {
        return Err(KernelError::Unsupported("integers of more than four bits"));
    }
    let (low, high) = step.split_at(LANES / 2);
    for (to, (&low, &high)) in to.iter_mut().zip(low.iter().zip(high)) {
        *to = low as u8 | (high as u8) << 4;
    }
    Ok(())
}
