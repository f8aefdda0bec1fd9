//! Weights in fewer bits than they are stored in, because the user asked for that.
//!
//! | wanted | layers become |
//! |---|---|
//! | f16, bf16 | the nearest half float |
//! | int8 | 8-bit integers with a scale for each output channel: the largest weight is 127 steps |
//! | int4 | of matrices, 4-bit integers in blocks of 32 with a scale (a half float) and a zero point each; others int8 |

use super::Packer;
use super::formats::{WeightFormats, narrow_format};
use crate::error::Result;
use half::{bf16, f16};
use neap_ir::graph::LANES;
use neap_ir::panel::{PanelElement, PanelFormat, PanelScales, panel_count};
use neap_ir::recipe::{Affine, PackedForm, Recipe};
use neap_ir::{DType, Graph};
use neap_kernels::panel::{BlockSteps, Format, pack_block_panel};

/// Steps of k in a block of 4-bit integers.
const INT4_BLOCK: u16 = 32;

/// The largest step of 8-bit integers.
const INT8_MOST: f32 = 127.0;

/// The largest 4-bit integer.
const INT4_MOST: f32 = 15.0;

/// What rounding did to the weights of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightError {
    /// Of the weights in the model.
    pub name: String,
    /// In which type they are stored now.
    pub stored: &'static str,
    /// Root mean square of the change, relative to that of the weights.
    pub relative: f64,
}

/// Sums over the weights of a layer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Change {
    squares: f64,
    changes: f64,
}

impl Change {
    pub fn add(&mut self, before: f32, after: f32) {
        let off = f64::from(after) - f64::from(before);
        self.squares += f64::from(before) * f64::from(before);
        self.changes += off * off;
    }

    /// Whether any weights were looked at.
    pub fn is_any(self) -> bool {
        self.squares > 0.0
    }

    pub fn relative(self) -> f64 {
        match self.squares {
            0.0 => 0.0,
            squares => (self.changes / squares).sqrt(),
        }
    }
}

/// How the weights of a layer are rounded before they are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    F16,
    Bf16,
    Int8,
}

impl Rounding {
    /// For panels of a format, of weights stored as `stored`; `None` where nothing is rounded.
    pub fn of(wanted: WeightFormats, format: PanelFormat, stored: DType) -> Option<Rounding> {
        if !is_float(stored) {
            return None;
        }
        match (wanted, format.element) {
            (WeightFormats::F16, PanelElement::F16) => Some(Rounding::F16),
            (WeightFormats::Bf16, PanelElement::BF16) => Some(Rounding::Bf16),
            (WeightFormats::Int8 | WeightFormats::Int4, PanelElement::I8) => Some(Rounding::Int8),
            _ => None,
        }
    }

    /// Rounds weights in place. Channel `channel(i)` of `count` is that of weight `i`. For integers the weights become
    /// steps, and the result is what they are multiplied with, for each channel.
    ///
    /// # Errors
    /// Weights that are too large or not finite.
    pub fn round(
        self,
        weights: &mut [f32],
        count: usize,
        channel: impl Fn(usize) -> usize,
        change: &mut Change,
    ) -> std::result::Result<Option<Vec<f32>>, String> {
        let too_large = || Err(format!("they are too large, or not finite, for {self:?}"));
        if self != Rounding::Int8 {
            for w in weights {
                let rounded = match self {
                    Rounding::F16 => f16::from_f32(*w).to_f32(),
                    _ => bf16::from_f32(*w).to_f32(),
                };
                if !rounded.is_finite() {
                    return too_large();
                }
                change.add(*w, rounded);
                *w = rounded;
            }
            return Ok(None);
        }
        let mut scales = vec![0f32; count];
        for (i, w) in weights.iter().enumerate() {
            let scale = &mut scales[channel(i)];
            *scale = scale.max(w.abs() / INT8_MOST);
        }
        // The largest of some numbers and NaN is a number.
        if !weights.iter().all(|w| w.is_finite()) {
            return too_large();
        }
        for (i, w) in weights.iter_mut().enumerate() {
            let scale = scales[channel(i)];
            // Adding zero makes a negative zero positive, which is all that bytes have.
            let step = if scale > 0.0 {
                (*w / scale).round_ties_even().clamp(-INT8_MOST, INT8_MOST) + 0.0
            } else {
                0.0
            };
            change.add(*w, step * scale);
            *w = step;
        }
        Ok(Some(scales))
    }
}

fn is_float(stored: DType) -> bool {
    matches!(stored, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
}

/// The format that a layer of floats gets when the user asks for fewer bits; `None` where it keeps its own.
pub(super) fn wanted_format(
    wanted: WeightFormats,
    source: &Graph,
    recipe: &Recipe,
    own: &PackedForm,
) -> Option<PanelFormat> {
    let PackedForm::Panels { format: own, .. } = own else {
        return None;
    };
    let affine = super::formats::narrowable(recipe)?;
    let stored = super::SourceFiles::stored_dtype(source, recipe.constant());
    let scales = match affine.scale {
        Some(_) => PanelScales::PerChannel,
        None => PanelScales::None,
    };
    let half = |element| Some(PanelFormat { element, scales });
    let int8 = PanelFormat {
        element: PanelElement::I8,
        scales: PanelScales::PerChannelWithZero,
    };
    let is_wider = match own.element {
        PanelElement::F32 | PanelElement::Coded { .. } => true,
        PanelElement::F16 | PanelElement::BF16 => {
            matches!(wanted, WeightFormats::Int8 | WeightFormats::Int4)
        }
        PanelElement::I8 | PanelElement::I4 => false,
    };
    if !is_wider || !is_float(stored) {
        return None;
    }
    match wanted {
        WeightFormats::Exact | WeightFormats::Lossless | WeightFormats::Widened => None,
        WeightFormats::F16 => half(PanelElement::F16),
        WeightFormats::Bf16 => half(PanelElement::BF16),
        WeightFormats::Int8 => Some(int8),
        WeightFormats::Int4 => Some(match recipe {
            Recipe::Matrix { .. } => PanelFormat {
                element: PanelElement::I4,
                scales: PanelScales::Blocks {
                    len: INT4_BLOCK,
                    half: true,
                },
            },
            _ => int8,
        }),
    }
}

/// A matrix of floats that becomes blocks.
pub(super) struct FloatMatrix<'r> {
    pub k: usize,
    pub n: usize,
    pub transposed: bool,
    pub affine: &'r Affine,
}

impl Packer<'_> {
    /// Packs a matrix of floats as 4-bit integers in blocks.
    pub(super) fn float_blocks(
        &mut self,
        constant: neap_ir::ValueId,
        matrix: &FloatMatrix,
        format: PanelFormat,
        advance: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let &FloatMatrix {
            k,
            n,
            transposed,
            affine,
        } = matrix;
        let broken = |packer: &Self, reason: &str| packer.broken(constant, reason);
        let panel_bytes = format.panel_bytes(k as u128).unwrap_or(u64::MAX) as usize;
        let mut weights = vec![[0.0; LANES]; k];
        let mut row = vec![0.0; if transposed { k } else { LANES }];
        let mut bytes = vec![0; panel_bytes];
        for panel in 0..panel_count(n) {
            let channels = panel * LANES..n.min((panel + 1) * LANES);
            let lanes = channels.len();
            weights.fill([0.0; LANES]);
            for at in 0..if transposed { lanes } else { k } {
                let (from, part) = match transposed {
                    true => ((channels.start + at) * k, &mut row[..]),
                    false => (at * n + channels.start, &mut row[..lanes]),
                };
                self.files
                    .read_f32(self.source, constant, from, &mut self.raw, part)
                    .map_err(|e| broken(self, &e))?;
                if transposed {
                    for (to, &w) in weights.iter_mut().zip(&row) {
                        to[at] = w;
                    }
                } else {
                    weights[at][..lanes].copy_from_slice(&row[..lanes]);
                }
            }
            if let Some(scale) = &affine.scale {
                for to in &mut weights {
                    for (w, scale) in to.iter_mut().zip(&scale[channels.clone()]) {
                        *w *= scale;
                    }
                }
            }
            let mut bias = [0.0; LANES];
            if let Some(values) = &affine.bias {
                bias[..lanes].copy_from_slice(&values[channels]);
            }
            self.block_panel(&bias, &weights, format, &mut bytes)
                .map_err(|reason| broken(self, &reason))?;
            self.writer.append(&bytes)?;
            advance(bytes.len() as u64);
        }
        Ok(())
    }

    fn block_panel(
        &mut self,
        bias: &[f32; LANES],
        weights: &[[f32; LANES]],
        format: PanelFormat,
        out: &mut [u8],
    ) -> std::result::Result<(), String> {
        let Some(Format::Blocks(blocks)) = narrow_format(format) else {
            return Err("its format has no blocks".into());
        };
        let (mut scales, mut zeros, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for block in weights.chunks(blocks.len) {
            let (mut scale_of, mut zero_of) = ([0.0; LANES], [0i8; LANES]);
            for lane in 0..LANES {
                let values = block.iter().map(|w| w[lane]);
                let (low, high) =
                    values.fold((0f32, 0f32), |(low, high), w| (low.min(w), high.max(w)));
                let scale = f16::from_f32((high - low) / INT4_MOST).to_f32();
                if !scale.is_finite() {
                    return Err("they are too large, or not finite, for 4 bits".into());
                }
                scale_of[lane] = scale;
                if scale > 0.0 {
                    zero_of[lane] = (-low / scale).round_ties_even().clamp(0.0, INT4_MOST) as i8;
                }
            }
            for weights in block {
                let mut step_of = [0i8; LANES];
                for lane in 0..LANES {
                    let (scale, zero) = (scale_of[lane], f32::from(zero_of[lane]));
                    let step = match scale {
                        0.0 => zero,
                        _ => {
                            ((weights[lane] / scale).round_ties_even() + zero).clamp(0.0, INT4_MOST)
                        }
                    };
                    self.change.add(weights[lane], (step - zero) * scale);
                    step_of[lane] = step as i8;
                }
                steps.push(step_of);
            }
            scales.push(scale_of);
            zeros.push(zero_of);
        }
        let panel = BlockSteps {
            bias,
            scales: &scales,
            zeros: &zeros,
            steps: &steps,
        };
        pack_block_panel(blocks, panel, out).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_at_most_half_a_step_off() {
        let mut weights: Vec<f32> = (0..60)
            .map(|i| ((i * 37 % 61) as f32 - 30.0) / 7.0)
            .collect();
        weights[0] = -0.0;
        // A channel of zeros.
        weights[40..].fill(0.0);
        let before = weights.clone();
        let mut change = Change::default();
        let scales = Rounding::Int8.round(&mut weights, 3, |i| i / 20, &mut change);
        let scales = scales.expect("finite").expect("there");
        assert_eq!(scales[2], 0.0);
        for (i, (before, step)) in before.iter().zip(&weights).enumerate() {
            let scale = scales[i / 20];
            assert_eq!(
                (step.round().to_bits(), step.abs() <= 127.0),
                (step.to_bits(), true)
            );
            assert!(
                (before - step * scale).abs() <= scale * 0.5001,
                "{before} {step}"
            );
        }
        assert!(change.relative() > 0.0 && change.relative() < 0.01);
    }

    #[test]
    fn halves_are_the_nearest() {
        for (rounding, most) in [(Rounding::F16, 1.0 / 2048.0), (Rounding::Bf16, 1.0 / 256.0)] {
            let mut weights = vec![1.0, 1.0 + 1.0 / 4096.0, -3.3, 0.1];
            let before = weights.clone();
            let mut change = Change::default();
            let scales = rounding.round(&mut weights, 1, |_| 0, &mut change);
            assert_eq!(scales, Ok(None));
            for (before, after) in before.iter().zip(&weights) {
                assert!((before - after).abs() <= most * before.abs());
            }
            assert!(change.relative() <= most.into());
        }
        let mut large = [1e6];
        let round = |rounding: Rounding, weights: &mut [f32]| {
            rounding
                .round(weights, 1, |_| 0, &mut Change::default())
                .is_ok()
        };
        assert!(!round(Rounding::F16, &mut large));
        assert!(round(Rounding::Bf16, &mut large) && round(Rounding::Int8, &mut large));
        assert!(!round(Rounding::Int8, &mut [f32::NAN]));
    }
}
