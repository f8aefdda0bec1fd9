//! Follows recipes: reads a layer's weights, brings them into panels and writes those, a piece at a time.

use super::formats;
use super::rounding::{Change, FloatMatrix, Rounding, WeightError};
use super::{CHUNK_BYTES, WeightFormats};
use crate::error::{Error, Result};
use crate::package::Weight;
use crate::source_weights::SourceFiles;
use neap_ir::graph::LANES;
use neap_ir::panel::{ConvForm, PanelElement, PanelFormat, PanelScales, panel_bytes, panel_count};
use neap_ir::recipe::{Affine, Recipe};
use neap_ir::{DType, Graph, ValueId};
use neap_kernels::error::KernelError;
use neap_kernels::panel::{self, KOrder};
use neap_store::PackWriter;
use std::ops::Range;

/// Packs a range of panels from their rows.
type PackRows<'p> = dyn Fn(Range<usize>, &[f32], panel::Affine, &mut [f32]) -> std::result::Result<(), KernelError>
    + 'p;

pub(super) struct Packer<'a> {
    pub source: &'a Graph,
    pub files: &'a SourceFiles,
    pub writer: PackWriter,
    /// Reused between chunks: stored bytes, widened source rows, finished panels.
    pub raw: Vec<u8>,
    pub floats: Vec<f32>,
    pub panels: Vec<f32>,
    /// Those in another format.
    pub narrowed: Vec<u8>,
    pub wanted: WeightFormats,
    pub look: Option<Look>,
    /// What rounding did to the layer at hand.
    pub change: Change,
}

/// What is found while panels are looked at and not written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// Most weights of rare exponents in a panel, 16 as one; `None` where there are more than can be.
    others: Option<u16>,
}

/// How the panels of a layer are made, whatever the order of its weights.
#[derive(Clone, Copy)]
struct Layer<'r> {
    weight: ValueId,
    c_out: usize,
    k: usize,
    affine: &'r Affine,
    format: PanelFormat,
}

/// Packs a range of panels: finished ones if they are `f32`, unscaled ones otherwise.
struct Piece<'p> {
    range: Range<usize>,
    c_out: usize,
    k: usize,
    format: PanelFormat,
    affine: panel::Affine<'p>,
    /// Of 8-bit weights as panels hold them.
    zero: Option<&'p [f32]>,
}

/// A layer's scales and zero points when the weights of channels from `first` on have become steps.
fn steps_of_layer(affine: &Affine, c_out: usize, first: usize, steps: &[f32]) -> Affine {
    let mut scale = affine.scale.clone().unwrap_or_else(|| vec![1.0; c_out]);
    for (scale, step) in scale[first..].iter_mut().zip(steps) {
        *scale *= step;
    }
    Affine {
        scale: Some(scale),
        zero: Some(vec![0.0; c_out]),
        bias: affine.bias.clone(),
    }
}

/// Zero points of weights from which `shift` was taken.
fn shifted(zero: &[f32], shift: f32) -> Vec<f32> {
    zero.iter().map(|zero| zero - shift).collect()
}

impl<'p> Piece<'p> {
    /// What the `f32` panels are made with.
    fn first_affine(&self) -> panel::Affine<'p> {
        panel::Affine {
            scale: match self.format.scales {
                PanelScales::None => self.affine.scale,
                _ => None,
            },
            ..self.affine
        }
    }
}

impl Packer<'_> {
    pub(super) fn into_writer(self) -> PackWriter {
        self.writer
    }

    pub(super) fn follow(
        &mut self,
        recipe: &Recipe,
        format: PanelFormat,
        advance: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let layer = |weight: &ValueId, c_out: &usize, k: usize, affine| Layer {
            weight: *weight,
            c_out: *c_out,
            k,
            affine,
            format,
        };
        match recipe {
            Recipe::Conv {
                weight,
                form,
                c_out,
                c_in_per_group,
                kernel,
                affine,
                ..
            } => {
                let k = c_in_per_group * kernel[0] * kernel[1];
                let order = match form {
                    ConvForm::Blocked => KOrder::Blocked,
                    ConvForm::FirstLayer | ConvForm::NarrowGroups => KOrder::Taps,
                };
                self.by_rows(
                    layer(weight, c_out, k, affine),
                    advance,
                    &|range, rows, affine, out| {
                        panel::pack_conv(
                            order,
                            *c_out,
                            *c_in_per_group,
                            *kernel,
                            range,
                            rows,
                            affine,
                            out,
                        )
                    },
                )
            }
            Recipe::Depthwise {
                weight,
                channels,
                kernel,
                affine,
            } => {
                let taps = kernel[0] * kernel[1];
                self.by_rows(
                    layer(weight, channels, taps, affine),
                    advance,
                    &|range, rows, affine, out| {
                        panel::pack_depthwise(*channels, *kernel, range, rows, affine, out)
                    },
                )
            }
            &Recipe::Matrix {
                weight,
                k,
                n,
                transposed,
                ref affine,
            } if format.has_blocks() => {
                let matrix = FloatMatrix {
                    k,
                    n,
                    transposed,
                    affine,
                };
                self.float_blocks(weight, &matrix, format, advance)
            }
            Recipe::Matrix {
                weight,
                k,
                n,
                transposed: true,
                affine,
            } => self.by_rows(
                layer(weight, n, *k, affine),
                advance,
                &|range, rows, affine, out| panel::pack_rows(*n, *k, range, rows, affine, out),
            ),
            Recipe::Matrix {
                weight,
                k,
                n,
                transposed: false,
                affine,
            } => self.by_columns(layer(weight, n, *k, affine), advance),
            Recipe::Blocks { .. } => self.blocks(recipe, format, advance),
            Recipe::Raw { constant, to } => self.raw(*constant, *to, advance),
        }
    }

    /// Sources whose rows are output channels: a panel's source is 16 consecutive rows.
    fn by_rows(
        &mut self,
        layer: Layer,
        advance: &mut dyn FnMut(u64),
        pack: &PackRows,
    ) -> Result<()> {
        let Layer {
            weight,
            c_out,
            k,
            affine,
            format,
        } = layer;
        let per_chunk = (CHUNK_BYTES / panel_bytes(k)).max(1);
        let count = panel_count(c_out);
        for first in (0..count).step_by(per_chunk) {
            let range = first..count.min(first + per_chunk);
            let rows = range.start * LANES..c_out.min(range.end * LANES);
            self.floats.resize(rows.len() * k, 0.0);
            self.files
                .read_f32(
                    self.source,
                    weight,
                    rows.start * k,
                    &mut self.raw,
                    &mut self.floats,
                )
                .map_err(|e| self.broken(weight, &e))?;
            self.panels.resize(range.len() * panel_bytes(k) / 4, 0.0);
            let (first_row, count) = (rows.start, rows.len());
            let rounded = self.rounding(weight, format).map(|rounding| {
                let channel = |i: usize| i / k.max(1);
                rounding.round(&mut self.floats, count, channel, &mut self.change)
            });
            let rounded = rounded
                .transpose()
                .map_err(|e| self.broken(weight, &e))?
                .flatten();
            let own = rounded.map(|steps| steps_of_layer(affine, c_out, first_row, &steps));
            let affine = own.as_ref().unwrap_or(affine);
            let shift = self.shift(weight);
            self.floats.iter_mut().for_each(|w| *w -= shift);
            let zero: Option<Vec<f32>> = affine.zero.as_ref().map(|zero| shifted(zero, shift));
            if let (PanelElement::F32, Some(zero)) = (format.element, &zero) {
                for (row, zero) in self
                    .floats
                    .chunks_exact_mut(k.max(1))
                    .zip(&zero[rows.clone()])
                {
                    row.iter_mut().for_each(|w| *w -= zero);
                }
            }
            let piece = Piece {
                range,
                c_out,
                k,
                format,
                affine: panel::Affine {
                    scale: affine.scale.as_deref(),
                    bias: affine.bias.as_deref(),
                },
                zero: zero.as_deref(),
            };
            let range = piece.range.clone();
            pack(range, &self.floats, piece.first_affine(), &mut self.panels)
                .map_err(|e| self.broken(weight, &e.to_string()))?;
            self.flush(weight, &piece, advance)?;
        }
        Ok(())
    }

    /// `[k][n]` sources: a panel's source is 16 columns, gathered row by row.
    fn by_columns(&mut self, layer: Layer, advance: &mut dyn FnMut(u64)) -> Result<()> {
        let Layer {
            weight,
            c_out: n,
            k,
            affine,
            format,
        } = layer;
        fn part<'v>(values: &'v Option<Vec<f32>>, columns: &Range<usize>) -> Option<&'v [f32]> {
            values.as_deref().map(|v| &v[columns.clone()])
        }
        let count = panel_count(n);
        let per_chunk = (CHUNK_BYTES / panel_bytes(k)).max(1);
        let mut strip = Vec::new();
        for first in (0..count).step_by(per_chunk) {
            let range = first..count.min(first + per_chunk);
            let columns = range.start * LANES..n.min(range.end * LANES);
            strip.resize(k * columns.len(), 0.0);
            if columns.len() == n {
                self.files
                    .read_f32(self.source, weight, 0, &mut self.raw, &mut strip)
                    .map_err(|e| self.broken(weight, &e))?;
            } else {
                for (row, piece) in strip.chunks_exact_mut(columns.len()).enumerate() {
                    self.files
                        .read_f32(
                            self.source,
                            weight,
                            row * n + columns.start,
                            &mut self.raw,
                            piece,
                        )
                        .map_err(|e| self.broken(weight, &e))?;
                }
            }
            let rounded = self.rounding(weight, format).map(|rounding| {
                let channel = |i: usize| i % columns.len();
                rounding.round(&mut strip, columns.len(), channel, &mut self.change)
            });
            let rounded = rounded
                .transpose()
                .map_err(|e| self.broken(weight, &e))?
                .flatten();
            let own = rounded.map(|steps| steps_of_layer(affine, n, columns.start, &steps));
            let affine = own.as_ref().unwrap_or(affine);
            let shift = self.shift(weight);
            strip.iter_mut().for_each(|w| *w -= shift);
            let zero = part(&affine.zero, &columns).map(|zero| shifted(zero, shift));
            if let (PanelElement::F32, Some(zero)) = (format.element, &zero) {
                for row in strip.chunks_exact_mut(columns.len()) {
                    row.iter_mut().zip(zero).for_each(|(w, zero)| *w -= zero);
                }
            }
            self.panels.resize(range.len() * panel_bytes(k) / 4, 0.0);
            // The strip is a matrix of its own, with its own part of scale and bias.
            let piece = Piece {
                range: 0..range.len(),
                c_out: columns.len(),
                k,
                format,
                affine: panel::Affine {
                    scale: part(&affine.scale, &columns),
                    bias: part(&affine.bias, &columns),
                },
                zero: zero.as_deref(),
            };
            panel::pack_band(
                columns.len(),
                k,
                0..range.len(),
                0..k,
                &strip,
                piece.first_affine(),
                &mut self.panels,
            )
            .map_err(|e| self.broken(weight, &e.to_string()))?;
            self.flush(weight, &piece, advance)?;
        }
        Ok(())
    }

    fn raw(&mut self, constant: ValueId, to: DType, advance: &mut dyn FnMut(u64)) -> Result<()> {
        let ty = self.source.ty(constant);
        let per_chunk = CHUNK_BYTES / to.size_bytes();
        let mut bytes = Vec::new();
        for first in (0..ty.elements()).step_by(per_chunk) {
            let elements = per_chunk.min(ty.elements() - first);
            self.files
                .read_bytes(
                    self.source,
                    constant,
                    first,
                    elements,
                    to,
                    &mut self.raw,
                    &mut bytes,
                )
                .map_err(|e| self.broken(constant, &e))?;
            self.writer.append(&bytes)?;
            advance(bytes.len() as u64);
        }
        Ok(())
    }

    /// Gives a layer of `f32` panels of 28 bits, if those are smaller. The result is by how many bytes.
    pub(super) fn code(&mut self, recipe: &Recipe, weight: &mut Weight) -> Result<u64> {
        if self.wanted != WeightFormats::Lossless || !formats::may_be_coded(recipe, weight) {
            return Ok(0);
        }
        self.look = Some(Look { others: Some(0) });
        self.follow(recipe, weight.panel_format(), &mut |_| {})?;
        let Some(others) = self.look.take().and_then(|look| look.others) else {
            return Ok(0);
        };
        let format = PanelFormat {
            element: PanelElement::Coded { others },
            scales: PanelScales::None,
        };
        let packed = neap_rewrite::describe_as(self.source, recipe, format);
        let bytes = weight.packed.bytes;
        if packed.bytes >= bytes / 16 * 15 {
            return Ok(0);
        }
        weight.packed = packed;
        Ok(bytes - weight.packed.bytes)
    }

    /// Writes the panels of a piece in their format, little-endian.
    fn flush(
        &mut self,
        weight: ValueId,
        piece: &Piece,
        advance: &mut dyn FnMut(u64),
    ) -> Result<()> {
        if let Some(look) = &mut self.look {
            let most = panel::others_of(piece.k, &self.panels);
            look.others = look.others.zip(most).map(|(a, b)| a.max(b));
            return Ok(());
        }
        let mut bytes: &[u8] = bytemuck::cast_slice(&self.panels);
        if let Some(format) = formats::narrow_format(piece.format) {
            let panel_bytes = piece.format.panel_bytes(piece.k as u128);
            let panel_bytes = panel_bytes.and_then(|b| usize::try_from(b).ok());
            let len = panel_bytes.and_then(|b| b.checked_mul(piece.range.len()));
            let len = len.ok_or_else(|| Error::BadInput("its weights are too large".into()))?;
            self.narrowed.resize(len, 0);
            let scales = panel::Scales {
                scale: piece.affine.scale,
                zero: piece.zero,
            };
            let range = piece.range.clone();
            let (from, to) = (&self.panels, &mut self.narrowed);
            panel::narrow(format, piece.c_out, piece.k, range, from, scales, to)
                .map_err(|e| self.broken(weight, &e.to_string()))?;
            bytes = &self.narrowed;
        }
        self.writer.append(bytes)?;
        advance(bytes.len() as u64);
        Ok(())
    }

    /// How weights are rounded before they become panels of a format.
    fn rounding(&self, weight: ValueId, format: PanelFormat) -> Option<Rounding> {
        let stored = SourceFiles::stored_dtype(self.source, weight);
        Rounding::of(self.wanted, format, stored)
    }

    /// What rounding did to the layer just packed.
    pub(super) fn take_error(&mut self, weight: &Weight) -> Option<WeightError> {
        let change = std::mem::take(&mut self.change);
        change.is_any().then(|| WeightError {
            name: weight.packed.name.clone(),
            stored: weight.panel_format().element.name(),
            relative: change.relative(),
        })
    }

    /// What is taken from stored weights: panels hold signed bytes.
    fn shift(&self, weight: ValueId) -> f32 {
        match SourceFiles::stored_dtype(self.source, weight) {
            DType::U8 => 128.0,
            _ => 0.0,
        }
    }

    pub(super) fn broken(&self, constant: ValueId, reason: &str) -> Error {
        Error::BadInput(format!(
            "weights '{}': {reason}",
            self.source.value(constant).name
        ))
    }
}
