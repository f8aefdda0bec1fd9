//! Writing a packed model: recipes are followed one after another, a few megabytes at a time.

use crate::error::{Error, Result};
use crate::host::Host;
use crate::identity::Provenance;
use crate::lowering::{finished, lower};
use crate::package::{self, Binding, Cached, Contents, SkeletonSource, Table, Weight};
use crate::source_weights::SourceFiles;
use neap_compile::{Programs, StepOrder};
use neap_ir::graph::LANES;
use neap_ir::panel::{ConvForm, PanelElement, PanelFormat, PanelScales, panel_bytes, panel_count};
use neap_ir::recipe::{Affine, Recipe};
use neap_ir::{ByteRange, Const, DType, Graph, SourceFile, ValueId};
use neap_kernels::error::KernelError;
use neap_kernels::panel::{self, KOrder};
use neap_rewrite::Lowered;
use neap_store::{BLOCK, PackWriter};
use std::ops::Range;
use std::path::Path;

mod blocks;
mod formats;

pub use formats::WeightFormats;

/// Source bytes held at once while packing: three buffers of this size fit into the smallest budgets
/// under which models run.
const CHUNK_BYTES: usize = 512 << 10;

/// What opening a model can take time for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Reading the source, to know whether it is what was packed.
    Hashing,
    /// Writing weights in the form in which they are streamed.
    Packing,
}

/// How far one kind of work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub work: Work,
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// Whether the graph's constants were ever written.
pub(crate) fn has_weights(graph: &Graph) -> bool {
    !graph.files.contains(&SourceFile::Absent)
}

/// What there is to say to whoever wants the weights of a model that has none.
pub(crate) fn no_weights(model: &dyn std::fmt::Display) -> Error {
    Error::BadInput(format!(
        "{model} has shapes and no weights: it can be planned and inspected, not packed or run"
    ))
}

/// How programs are packed.
pub(crate) struct Packing<'a> {
    pub order: StepOrder,
    pub weights: WeightFormats,
    /// Gives back what lowering took, before weights are read.
    pub host: &'a dyn Host,
}

/// What is packed: a graph, the files that it was read from, and for a model that can be bound otherwise what its
/// skeleton is made of.
pub(crate) struct Source {
    pub graph: Graph,
    pub files: SourceFiles,
    pub skeleton: Option<SkeletonSource>,
    pub binding: Binding,
}

impl Source {
    /// A graph with static shapes, and nothing else.
    ///
    /// # Errors
    /// A file that the graph names cannot be opened.
    pub fn of_graph(graph: Graph) -> Result<Source> {
        let inputs = graph.inputs.iter().map(|&id| graph.value(id));
        let shapes = inputs.map(|input| (input.name.clone(), input.ty.shape.clone()));
        Ok(Source {
            binding: Binding {
                shapes: shapes.collect(),
                ..Binding::default()
            },
            files: SourceFiles::open(&graph)?,
            graph,
            skeleton: None,
        })
    }
}

/// Lowers a model and writes it to `target`, with what `provenance` says of its source.
///
/// # Errors
/// [`Error::BadInput`] for what cannot be packed, read or written, and when the source changes meanwhile.
pub(crate) fn write(
    source: Source,
    provenance: Option<&Provenance>,
    target: &Path,
    packing: &Packing,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let Source {
        graph,
        mut files,
        skeleton,
        binding,
    } = source;
    let Lowered {
        mut program,
        recipes,
        mut source,
    } = lower(graph, &mut files)?;
    packing.host.trim();

    let read = match &skeleton {
        Some(skeleton) => skeleton.read.iter().copied().chain(files.take_read()),
        None => [].iter().copied().chain(Vec::new()),
    };
    let read = neap_onnx::merged(read.collect());
    let mut extents = extents(skeleton.as_ref(), &mut source, &recipes, &read);
    formats::choose(packing.weights, &source, &files, &mut extents)?;
    let total_bytes = extents.iter().map(|(_, weight)| weight.packed.bytes).sum();
    let mut done_bytes = 0;
    let mut packer = Packer {
        source: &source,
        files: &files,
        writer: PackWriter::create(target)?,
        raw: Vec::new(),
        floats: Vec::new(),
        panels: Vec::new(),
        narrowed: Vec::new(),
    };
    progress(Progress {
        work: Work::Packing,
        done_bytes,
        total_bytes,
    });
    let mut weights = Vec::with_capacity(extents.len());
    for (recipe, mut weight) in extents {
        weight.packed.offset = packer.writer.align(BLOCK as u64)?;
        packer.follow(&recipe, weight.panel_format(), &mut |bytes| {
            done_bytes += bytes;
            progress(Progress {
                work: Work::Packing,
                done_bytes,
                total_bytes,
            });
        })?;
        weights.push(weight);
    }
    // Without the buffers, which would come on top of both programs.
    let mut writer = packer.into_writer();
    let table = Table::new(weights);
    for (recipe, packed) in recipes.iter().zip(&mut program.packed) {
        let found = table.find(&source, recipe);
        *packed = found.ok_or_else(|| Error::Defect("a weight was not packed".into()))?;
    }
    drop((recipes, source));
    let skeleton = skeleton.map(|s| package::write_skeleton(s, read, &files, &mut writer));
    let contents = Contents {
        skeleton: skeleton.transpose()?,
        weights: table.into_weights(),
    };
    let sealed = match provenance {
        Some(provenance) => Some(provenance.seal(&files.present(), progress)?),
        None => None,
    };
    let cached = Cached {
        programs: finished(program, packing.order)?,
        binding,
        order: packing.order,
    };
    let mut toc = package::encode(&contents, &cached)?;
    if let Some((origin, stamp)) = sealed {
        toc = origin.append_to(toc)?;
        writer.set_stamp(stamp);
    }
    files.check_unchanged()?;
    writer.finish(&toc)?;
    Ok(())
}

/// The extents to write, in order: those of the recipes, and what other bindings may need beside them. Recipes that make
/// part of such an extent make none of their own.
fn extents(
    skeleton: Option<&SkeletonSource>,
    source: &mut Graph,
    recipes: &[Recipe],
    read: &[ByteRange],
) -> Vec<(Recipe, Weight)> {
    let stored = skeleton.map_or(&[][..], |s| &s.stored);
    let whole: Vec<(Recipe, Weight)> = package::uncovered(stored, source, recipes, read)
        .into_iter()
        .map(|constant| {
            let to = constant.ty.dtype;
            let data = Const::Stored {
                range: constant.range,
                stored_dtype: constant.stored_dtype,
            };
            let value = source.add_const(constant.name, constant.ty, data);
            let recipe = Recipe::Raw {
                constant: value,
                to,
            };
            let weight = Weight::new(source, &recipe);
            (recipe, weight)
        })
        .collect();
    let later = Table::new(whole.iter().map(|(_, weight)| weight.clone()).collect());
    let own = recipes
        .iter()
        .filter(|recipe| later.find(source, recipe).is_none());
    let own = own.map(|recipe| (recipe.clone(), Weight::new(source, recipe)));
    own.collect::<Vec<_>>().into_iter().chain(whole).collect()
}

/// The programs that packing `graph` would give, with weights where they would lie; nothing is written.
pub(crate) fn plan_only(
    graph: Graph,
    mut files: SourceFiles,
    packing: &Packing,
) -> Result<Programs> {
    let mut program = lower(graph, &mut files)?.program;
    packing.host.trim();
    let mut end = Some(BLOCK as u64);
    for packed in &mut program.packed {
        let offset = end.and_then(|end| end.checked_next_multiple_of(BLOCK as u64));
        end = offset.and_then(|offset| offset.checked_add(packed.bytes));
        packed.offset = offset.unwrap_or(u64::MAX);
    }
    if end.is_none() {
        return Err(Error::BadInput("its weights are impossibly large".into()));
    }
    finished(program, packing.order)
}

/// Packs a range of panels from their rows.
type PackRows<'p> = dyn Fn(Range<usize>, &[f32], panel::Affine, &mut [f32]) -> std::result::Result<(), KernelError>
    + 'p;

struct Packer<'a> {
    source: &'a Graph,
    files: &'a SourceFiles,
    writer: PackWriter,
    /// Reused between chunks: stored bytes, widened source rows, finished panels.
    raw: Vec<u8>,
    floats: Vec<f32>,
    panels: Vec<f32>,
    /// Those in another format.
    narrowed: Vec<u8>,
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
    fn into_writer(self) -> PackWriter {
        self.writer
    }

    fn follow(
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

    /// Writes the panels of a piece in their format, little-endian.
    fn flush(
        &mut self,
        weight: ValueId,
        piece: &Piece,
        advance: &mut dyn FnMut(u64),
    ) -> Result<()> {
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

    /// What is taken from stored weights: panels hold signed bytes.
    fn shift(&self, weight: ValueId) -> f32 {
        match SourceFiles::stored_dtype(self.source, weight) {
            DType::U8 => 128.0,
            _ => 0.0,
        }
    }

    fn broken(&self, constant: ValueId, reason: &str) -> Error {
        Error::BadInput(format!(
            "weights '{}': {reason}",
            self.source.value(constant).name
        ))
    }
}
