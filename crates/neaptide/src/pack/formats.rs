//! In which format the panels of a layer are packed: that of the stored weights, or one in fewer bits that holds them
//! exactly.

use super::rounding::wanted_format;
use crate::error::{Error, Result};
use crate::package::Weight;
use crate::source_weights::SourceFiles;
use neap_ir::panel::{PanelElement, PanelFormat, PanelScales};
use neap_ir::recipe::{Affine, PackedForm, Recipe};
use neap_ir::{DType, Graph, ValueId};
use neap_kernels::depthwise::NARROW_TAPS;
use neap_kernels::panel::{Bits, BlockFormat, Format, holds};
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

/// Layers with fewer bytes of weights stay as they are: there is nothing to gain.
const LEAST_BYTES: u64 = 64 << 10;

/// Elements that are looked at first: most weights are not what is looked for, and the first few tell.
const PROBE: usize = 1 << 10;

/// Elements that are looked at together.
const CHUNK: usize = 128 << 10;

/// In which formats weights are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightFormats {
    /// As they are stored, or in fewer bits that hold them exactly.
    #[default]
    Exact,
    /// As `Exact`, and `f32` in 28 bits where few weights have rare exponents: the same results from fewer bytes.
    Lossless,
    /// All that are not computed in integers as `f32`, which takes more memory and gives the same results; for comparison.
    Widened,
    /// Floats as half floats, the nearest.
    F16,
    Bf16,
    /// Floats as 8-bit integers with a scale for each output channel.
    Int8,
    /// Floats of matrices as 4-bit integers in blocks of 32, others as `Int8`.
    Int4,
}

/// Their names.
const NAMES: [(&str, WeightFormats); 7] = [
    ("exact", WeightFormats::Exact),
    ("lossless", WeightFormats::Lossless),
    ("widened", WeightFormats::Widened),
    ("f16", WeightFormats::F16),
    ("bf16", WeightFormats::Bf16),
    ("int8", WeightFormats::Int8),
    ("int4", WeightFormats::Int4),
];

impl fmt::Display for WeightFormats {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let name = NAMES.iter().find(|(_, formats)| formats == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl FromStr for WeightFormats {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<WeightFormats, String> {
        let named = NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, formats)| *formats).ok_or_else(|| {
            format!(
                "'{text}' is no form of weights: write exact, lossless, f16, bf16, int8 or int4"
            )
        })
    }
}

/// As the kernels' packer names a format; `None` for `f32`.
pub(super) fn narrow_format(format: PanelFormat) -> Option<Format> {
    let scaled = format.scales == PanelScales::PerChannel;
    if let PanelScales::Blocks { len, half } = format.scales {
        return Some(Format::Blocks(BlockFormat {
            bits: match format.element {
                PanelElement::I4 => Bits::Four,
                _ => Bits::Eight,
            },
            has_half_scales: half,
            len: len.into(),
        }));
    }
    match format.element {
        PanelElement::F32 => None,
        PanelElement::Coded { others } => Some(Format::Coded { others }),
        PanelElement::F16 if scaled => Some(Format::F16Scaled),
        PanelElement::F16 => Some(Format::F16),
        PanelElement::BF16 if scaled => Some(Format::Bf16Scaled),
        PanelElement::BF16 => Some(Format::Bf16),
        PanelElement::I8 => Some(Format::I8),
        PanelElement::I4 => None,
    }
}

/// Gives the extents of layers their formats. Those that are made of `kept` keep theirs.
pub(super) fn choose(
    formats: WeightFormats,
    source: &Graph,
    files: &SourceFiles,
    extents: &mut [(Recipe, Weight)],
    kept: &HashSet<ValueId>,
) -> Result<()> {
    match formats {
        WeightFormats::Exact | WeightFormats::Lossless => return narrow(source, files, extents),
        WeightFormats::Widened => {
            for (recipe, weight) in extents {
                if kept.contains(&recipe.constant()) {
                    continue;
                }
                weight.packed = neap_rewrite::describe_as(source, recipe, PanelFormat::default());
            }
            return Ok(());
        }
        _ => {}
    }
    for (recipe, weight) in extents.iter_mut() {
        if weight.packed.bytes < LEAST_BYTES {
            continue;
        }
        if let Some(format) = wanted_format(formats, source, recipe, &weight.packed.form) {
            weight.packed = neap_rewrite::describe_as(source, recipe, format);
        }
    }
    Ok(())
}

/// Gives layers whose `f32` weights are all half floats of one kind the panels of that kind: the same results from half
/// the bytes.
fn narrow(source: &Graph, files: &SourceFiles, extents: &mut [(Recipe, Weight)]) -> Result<()> {
    for (recipe, weight) in extents {
        let PackedForm::Panels { format, .. } = weight.packed.form else {
            continue;
        };
        let stored = SourceFiles::stored_dtype(source, recipe.constant());
        let is_wide = format == PanelFormat::default() && stored == DType::F32;
        if !is_wide || weight.packed.bytes < LEAST_BYTES {
            continue;
        }
        let Some(affine) = narrowable(recipe) else {
            continue;
        };
        if let Some(element) = exact_element(source, files, recipe)? {
            let scales = match affine.scale {
                Some(_) => PanelScales::PerChannel,
                None => PanelScales::None,
            };
            let format = PanelFormat { element, scales };
            weight.packed = neap_rewrite::describe_as(source, recipe, format);
        }
    }
    Ok(())
}

/// Whether a layer's panels may be `f32` in 28 bits.
pub(super) fn may_be_coded(recipe: &Recipe, weight: &Weight) -> bool {
    matches!(weight.packed.form, PackedForm::Panels { .. })
        && weight.panel_format() == PanelFormat::default()
        && weight.packed.bytes >= LEAST_BYTES
        && narrowable(recipe).is_some()
}

/// What weights are multiplied with, if kernels take the layer's panels in other formats.
pub(super) fn narrowable(recipe: &Recipe) -> Option<&Affine> {
    match recipe {
        Recipe::Conv { affine, .. } | Recipe::Matrix { affine, .. } => Some(affine),
        Recipe::Depthwise { affine, kernel, .. } => {
            (kernel[0] * kernel[1] <= NARROW_TAPS).then_some(affine)
        }
        Recipe::Blocks { .. } | Recipe::Raw { .. } => None,
    }
}

/// The kind of half floats that all weights are.
fn exact_element(
    source: &Graph,
    files: &SourceFiles,
    recipe: &Recipe,
) -> Result<Option<PanelElement>> {
    let constant = recipe.constant();
    let elements = source.ty(constant).elements();
    let mut kinds = vec![
        (PanelElement::BF16, Format::Bf16),
        (PanelElement::F16, Format::F16),
    ];
    let (mut raw, mut floats, mut at) = (Vec::new(), Vec::new(), 0);
    while at < elements {
        let most = if at == 0 { PROBE } else { CHUNK };
        floats.resize(most.min(elements - at), 0.0);
        files
            .read_f32(source, constant, at, &mut raw, &mut floats)
            .map_err(|e| {
                let name = &source.value(constant).name;
                Error::BadInput(format!("weights '{name}': {e}"))
            })?;
        kinds.retain(|&(_, format)| holds(format, &floats));
        if kinds.is_empty() {
            return Ok(None);
        }
        at += floats.len();
    }
    Ok(kinds.first().map(|&(element, _)| element))
}
