//! Packing of matrices whose integers are in blocks.

use super::{CHUNK_BYTES, Packer};
use crate::error::{Error, Result};
use neap_ir::ValueId;
use neap_ir::graph::LANES;
use neap_ir::panel::{PanelFormat, panel_count};
use neap_ir::recipe::{Recipe, Steps};
use neap_kernels::panel::{BlockSteps, Format, pack_block_panel};
use std::ops::Range;

/// A layer to pack, as its recipe says.
struct Blocks<'r> {
    weight: Steps,
    scale: ValueId,
    zero: Option<Steps>,
    k: usize,
    block: usize,
    transposed: bool,
    bias: Option<&'r [f32]>,
}

/// How scales and zero points are stored.
#[derive(Clone, Copy, PartialEq)]
enum Spread {
    One,
    PerChannel,
    /// In the order of the weights.
    PerBlock,
}

/// Some output channels as stored; lanes past the last channel are zero.
struct Strip {
    channels: Range<usize>,
    /// `[channel][k]` if transposed, else `[k][channel]`.
    steps: Vec<i16>,
    /// `[block][channel]`
    scales: Vec<f32>,
    zeros: Vec<i16>,
}

impl Packer<'_> {
    /// Packs a matrix in blocks, some panels at a time.
    pub(super) fn blocks(
        &mut self,
        recipe: &Recipe,
        format: PanelFormat,
        advance: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let &Recipe::Blocks {
            weight,
            scale,
            zero,
            k,
            n,
            block,
            transposed,
            ref bias,
        } = recipe
        else {
            return Ok(());
        };
        let layer = Blocks {
            weight,
            scale,
            zero,
            k,
            block,
            transposed,
            bias: bias.bias.as_deref(),
        };
        let too_large = || Error::BadInput("its weights are too large".into());
        let panel_bytes = format.panel_bytes(k as u128).ok_or_else(too_large)? as usize;
        let each_bytes = (k.max(1) * LANES).saturating_mul(size_of::<i16>());
        let per_chunk = (CHUNK_BYTES / each_bytes).max(1);
        let count = panel_count(n);
        for first in (0..count).step_by(per_chunk) {
            let panels = first..count.min(first + per_chunk);
            let strip = self.strip(&layer, panels.start * LANES..n.min(panels.end * LANES))?;
            let mut bytes = vec![0; panels.len() * panel_bytes];
            for (at, out) in bytes.chunks_exact_mut(panel_bytes).enumerate() {
                layer
                    .panel(&strip, at * LANES, format, out)
                    .map_err(|reason| self.broken(weight.constant, &reason))?;
            }
            self.writer.append(&bytes)?;
            advance(bytes.len() as u64);
        }
        Ok(())
    }

    /// Reads what some output channels are made of.
    fn strip(&mut self, layer: &Blocks, channels: Range<usize>) -> Result<Strip> {
        let &Blocks { weight, k, .. } = layer;
        let blocks = k.div_ceil(layer.block);
        let count = channels.len();
        let (rows, columns) = match layer.transposed {
            true => (channels.clone(), 0..k),
            false => (0..k, channels.clone()),
        };
        let steps = self.integers(weight, rows, columns)?;
        // Of a row of scales or zero points, and then as [block][channel].
        let place = |transposed: bool| match transposed {
            true => (channels.clone(), 0..blocks),
            false => (0..blocks, channels.clone()),
        };
        let turned = |values: Vec<f32>, spread: Spread| -> Vec<f32> {
            let at = |block: usize, channel: usize| match spread {
                Spread::One => 0,
                Spread::PerChannel => channel,
                Spread::PerBlock if layer.transposed => channel * blocks + block,
                Spread::PerBlock => block * count + channel,
            };
            let all = (0..blocks).flat_map(|b| (0..count).map(move |c| (b, c)));
            all.map(|(b, c)| values[at(b, c)]).collect()
        };

        let shape = self.source.ty(layer.scale).shape.clone();
        let spread = match shape[..] {
            _ if shape.iter().product::<usize>() == 1 => Spread::One,
            [_] => Spread::PerChannel,
            _ => Spread::PerBlock,
        };
        let row = shape.last().copied().unwrap_or(1);
        let (rows, columns) = match spread {
            Spread::One => (0..1, 0..1),
            Spread::PerChannel => (0..1, channels.clone()),
            Spread::PerBlock => place(layer.transposed),
        };
        let mut scales = vec![0.0; rows.len() * columns.len()];
        for (at, piece) in rows.zip(scales.chunks_exact_mut(columns.len().max(1))) {
            let from = at * row + columns.start;
            self.files
                .read_f32(self.source, layer.scale, from, &mut self.raw, piece)
                .map_err(|e| self.broken(layer.scale, &e))?;
        }
        let scales = turned(scales, spread);

        let zeros = match layer.zero {
            None => vec![0.0],
            Some(zero) => {
                let one = zero.row == 1 && self.source.ty(zero.constant).elements() == 1;
                let (rows, columns) = match spread {
                    _ if one => (0..1, 0..1),
                    Spread::One => (0..1, 0..1),
                    Spread::PerChannel => (0..1, channels.clone()),
                    Spread::PerBlock => place(layer.transposed),
                };
                let steps = self.integers(zero, rows, columns)?;
                steps.into_iter().map(f32::from).collect()
            }
        };
        let spread = if zeros.len() == 1 {
            Spread::One
        } else {
            spread
        };
        let zeros = turned(zeros, spread).into_iter().map(|zero| zero as i16);
        Ok(Strip {
            channels,
            steps,
            scales,
            zeros: zeros.collect(),
        })
    }

    /// Integers of some rows and columns, row by row. Columns of four bits begin at a byte.
    fn integers(
        &mut self,
        steps: Steps,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Result<Vec<i16>> {
        let dtype = self.source.ty(steps.constant).dtype;
        let per_byte = if steps.has_four_bits { 2 } else { 1 };
        let mut values = Vec::with_capacity(rows.len() * columns.len());
        let mut bytes = Vec::new();
        for row in rows {
            let first = row * steps.row + columns.start;
            if !first.is_multiple_of(per_byte) {
                return Err(self.broken(steps.constant, "a row begins within a byte"));
            }
            let count = columns.len().div_ceil(per_byte);
            self.files
                .read_bytes(
                    self.source,
                    steps.constant,
                    first / per_byte,
                    count,
                    dtype,
                    &mut self.raw,
                    &mut bytes,
                )
                .map_err(|e| self.broken(steps.constant, &e))?;
            let value = |i: usize| match (steps.has_four_bits, steps.is_signed) {
                (false, false) => i16::from(bytes[i]),
                (false, true) => i16::from(bytes[i] as i8),
                (true, is_signed) => {
                    let nibble = i16::from(bytes[i / 2] >> (4 * (i % 2)) & 15);
                    if is_signed && nibble >= 8 {
                        nibble - 16
                    } else {
                        nibble
                    }
                }
            };
            values.extend((0..columns.len()).map(value));
        }
        Ok(values)
    }
}

impl Blocks<'_> {
    /// One panel, whose first channel is number `first` of the strip.
    fn panel(
        &self,
        strip: &Strip,
        first: usize,
        format: PanelFormat,
        out: &mut [u8],
    ) -> std::result::Result<(), String> {
        let count = strip.channels.len();
        let lanes = (count - first).min(LANES);
        let blocks = self.k.div_ceil(self.block);
        let step = |lane: usize, k: usize| {
            let channel = first + lane;
            strip.steps[match self.transposed {
                true => channel * self.k + k,
                false => k * count + channel,
            }]
        };
        let mut bias = [0.0; LANES];
        if let Some(values) = self.bias {
            bias[..lanes].copy_from_slice(&values[strip.channels.start + first..][..lanes]);
        }
        if !format.has_blocks() {
            let (head, to) = out.as_chunks_mut::<4>().0.split_at_mut(LANES);
            for (to, bias) in head.iter_mut().zip(bias) {
                *to = bias.to_le_bytes();
            }
            for (k, to) in to.chunks_exact_mut(LANES).enumerate() {
                for (lane, to) in to[..lanes].iter_mut().enumerate() {
                    let at = k / self.block * count + first + lane;
                    let centred = step(lane, k) - strip.zeros[at];
                    *to = (f32::from(centred) * strip.scales[at]).to_le_bytes();
                }
            }
            return Ok(());
        }
        // As panels hold them: 0 to 15, or signed bytes.
        let shift = match (self.weight.has_four_bits, self.weight.is_signed) {
            (true, true) => 8,
            (true, false) | (false, true) => 0,
            (false, false) => -128,
        };
        let held =
            |value: i16| i8::try_from(value + shift).map_err(|_| "a zero point does not fit");
        let (mut scales, mut zeros) = (vec![[0.0; LANES]; blocks], vec![[0; LANES]; blocks]);
        for block in 0..blocks {
            for lane in 0..lanes {
                let at = block * count + first + lane;
                scales[block][lane] = strip.scales[at];
                zeros[block][lane] = held(strip.zeros[at])?;
            }
        }
        let mut steps = vec![[0; LANES]; self.k];
        for (k, to) in steps.iter_mut().enumerate() {
            for (lane, to) in to[..lanes].iter_mut().enumerate() {
                *to = held(step(lane, k))?;
            }
        }
        let Some(Format::Blocks(format)) = super::formats::narrow_format(format) else {
            return Err("its format has no blocks".into());
        };
        let panel = BlockSteps {
            bias: &bias,
            scales: &scales,
            zeros: &zeros,
            steps: &steps,
        };
        pack_block_panel(format, panel, out).map_err(|e| e.to_string())
    }
}
