//! Where constants end up: small ones inline, large ones as raw extents of the packed file.

use crate::RewriteError;
use crate::recipes::Recipes;
use neap_ir::panel::{PanelFormat, panel_bytes, panel_count};
use neap_ir::recipe::{INLINE_LIMIT_BYTES, Packed, PackedForm, Recipe};
use neap_ir::{Const, Graph, Literal, ValueId};

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

/// Size and form of the extent that a recipe makes.
pub fn describe(source: &Graph, recipe: &Recipe) -> Packed {
    let panels = |value: ValueId, c_out: usize, k: usize| {
        let (panels, panel_bytes) = (panel_count(c_out), panel_bytes(k));
        Packed {
            name: source.value(value).name.clone(),
            offset: 0,
            bytes: (panels * panel_bytes) as u64,
            form: PackedForm::Panels {
                panels: panels as u32,
                panel_bytes: panel_bytes as u64,
                format: PanelFormat::default(),
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
        Recipe::Raw { constant, .. } => Packed {
            name: source.value(*constant).name.clone(),
            offset: 0,
            bytes: source.ty(*constant).len_bytes() as u64,
            form: PackedForm::Raw,
        },
    }
}
