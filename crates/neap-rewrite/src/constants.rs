//! Where constants end up: small ones inline, large ones as raw extents of the packed file.

use crate::RewriteError;
use crate::recipes::Recipes;
use neap_ir::panel::{PanelElement, PanelFormat, PanelScales, panel_count};
use neap_ir::recipe::{INLINE_LIMIT_BYTES, Packed, PackedForm, Recipe};
use neap_ir::{Const, DType, Graph, Literal, ValueId};
use neap_kernels::depthwise::NARROW_TAPS;

/// Reads a constant whole, widened to its value's dtype. Only small constants are asked for.
pub trait ConstReader {
    /// # Errors
    /// Why it cannot be read, in words.
    fn read(&mut self, graph: &Graph, value: ValueId) -> Result<Literal, String>;

    /// Whether there is or will be an extent that the recipe makes. A constant that has none is kept in memory.
    fn has_extent(&mut self, _graph: &Graph, _recipe: &Recipe) -> bool {
        true
    }
}

/// A constant's data, read if need be.
pub(crate) fn fetch(
    graph: &Graph,
    value: ValueId,
    reader: &mut dyn ConstReader,
) -> Result<Literal, RewriteError> {
    if let Some(literal) = graph.literal(value) {
        return Ok(literal.clone());
    }
    reader
        .read(graph, value)
        .map_err(|reason| RewriteError::Constant {
            name: graph.value(value).name.clone(),
            reason,
        })
}

/// Decides for every constant that a node still reads; the rest lose their data.
pub(crate) fn place(
    graph: &mut Graph,
    recipes: &mut Recipes,
    reader: &mut dyn ConstReader,
) -> Result<(), RewriteError> {
    let uses = graph.use_counts();
    let mut consts = Vec::new();
    for index in 0..graph.values.len() {
        let value = ValueId(index as u32);
        if graph.value(value).constant.is_none() {
            continue;
        }
        if uses[index] == 0 {
            graph.values[index].constant = None;
            continue;
        }
        if let Some(&Const::Packed(id)) = graph.constant(value) {
            // Panels that a layer reads as an operand.
            graph.values[index].constant = Some(neap_ir::ConstId(consts.len() as u32));
            consts.push(Const::Packed(id));
            continue;
        }
        let recipe = Recipe::Raw {
            constant: value,
            to: graph.ty(value).dtype,
        };
        let is_small = graph.ty(value).len_bytes() <= INLINE_LIMIT_BYTES;
        let placed = if is_small || !reader.has_extent(graph, &recipe) {
            Const::Inline(fetch(graph, value, reader)?)
        } else {
            Const::Packed(recipes.add(recipe))
        };
        graph.values[index].constant = Some(neap_ir::ConstId(consts.len() as u32));
        consts.push(placed);
    }
    graph.consts = consts;
    graph.files.clear();
    Ok(())
}

/// The type in which a constant is stored.
pub(crate) fn stored_type(graph: &Graph, constant: ValueId) -> DType {
    match graph.constant(constant) {
        Some(Const::Stored { stored_dtype, .. }) => *stored_dtype,
        _ => graph.ty(constant).dtype,
    }
}

/// The format of the panels that a recipe makes, from what the constant is stored as; `None` for a raw extent.
pub fn stored_format(source: &Graph, recipe: &Recipe) -> Option<PanelFormat> {
    let (weight, affine, taps) = match recipe {
        Recipe::Conv { weight, affine, .. } | Recipe::Matrix { weight, affine, .. } => {
            (*weight, affine, 0)
        }
        Recipe::Depthwise {
            weight,
            affine,
            kernel,
            ..
        } => (*weight, affine, kernel[0] * kernel[1]),
        &Recipe::Blocks {
            weight,
            scale,
            block,
            ..
        } => {
            return Some(PanelFormat {
                element: if weight.has_four_bits {
                    PanelElement::I4
                } else {
                    PanelElement::I8
                },
                scales: PanelScales::Blocks {
                    len: block as u16,
                    half: stored_type(source, scale) == DType::F16,
                },
            });
        }
        Recipe::Raw { .. } => return None,
    };
    let element = match stored_type(source, weight) {
        // The depthwise kernel widens as many taps at once.
        _ if taps > NARROW_TAPS => PanelElement::F32,
        DType::F16 => PanelElement::F16,
        DType::BF16 => PanelElement::BF16,
        DType::I8 | DType::U8 => PanelElement::I8,
        _ => PanelElement::F32,
    };
    Some(PanelFormat {
        element,
        scales: match (element, &affine.scale) {
            (PanelElement::I8, _) => PanelScales::PerChannelWithZero,
            (PanelElement::F32, _) | (_, None) => PanelScales::None,
            _ => PanelScales::PerChannel,
        },
    })
}

/// Size and form of the extent that a recipe makes. Panels are in the format in which the constant is stored.
pub fn describe(source: &Graph, recipe: &Recipe) -> Packed {
    describe_as(
        source,
        recipe,
        stored_format(source, recipe).unwrap_or_default(),
    )
}

/// Size and form of the extent that a recipe makes with panels of a format.
pub fn describe_as(source: &Graph, recipe: &Recipe, format: PanelFormat) -> Packed {
    let panels = |value: ValueId, c_out: usize, k: usize| {
        let panels = panel_count(c_out);
        let panel_bytes = format.panel_bytes(k as u128).unwrap_or(u64::MAX);
        Packed {
            name: source.value(value).name.clone(),
            offset: 0,
            bytes: (panels as u64).saturating_mul(panel_bytes),
            form: PackedForm::Panels {
                panels: panels as u32,
                panel_bytes,
                format,
            },
        }
    };
    match recipe {
        Recipe::Conv {
            weight,
            c_out,
            c_in_per_group,
            kernel,
            ..
        } => panels(*weight, *c_out, c_in_per_group * kernel[0] * kernel[1]),
        Recipe::Depthwise {
            weight,
            channels,
            kernel,
            ..
        } => panels(*weight, *channels, kernel[0] * kernel[1]),
        Recipe::Matrix { weight, k, n, .. } => panels(*weight, *n, *k),
        Recipe::Blocks { weight, k, n, .. } => panels(weight.constant, *n, *k),
        Recipe::Raw { constant, to } => Packed {
            name: source.value(*constant).name.clone(),
            offset: 0,
            bytes: (source.ty(*constant).elements() * to.size_bytes()) as u64,
            form: PackedForm::Raw,
        },
    }
}
