//! From the skeleton in a packed file and a binding to programs over its weights.

use super::binding::Binding;
use super::weights::Table;
use super::{contents, skeleton};
use crate::error::{Error, Result};
use crate::source_weights;
use neap_compile::{Programs, StepOrder};
use neap_ir::recipe::{Packed, Recipe};
use neap_ir::{Const, FileRange, Graph, Literal, ValueId};
use neap_onnx::{Elsewhere, Extract, Skeleton};
use neap_rewrite::{ConstReader, Lowered};
use neap_store::{DataReader, PackedFile};
use std::sync::Arc;

/// Constants in memory beyond those that every program has inline, of one binding.
const MOST_HELD_BYTES: usize = 16 << 20;

/// Lowers the model in `file` for a binding. Nothing is packed, and only the structure and small constants are read.
///
/// # Errors
/// [`Error::BadInput`] for shapes that the model does not take, or for which the file lacks something, and for a
/// damaged file; it names the file.
pub(crate) fn bind(file: &PackedFile, wanted: &Binding, order: StepOrder) -> Result<Programs> {
    let named = |reason: String| Error::BadInput(format!("{}: {reason}", file.path().display()));
    let data = file.data_range();
    let toc = file.read_toc()?;
    let (contents, _) = contents::decode_contents(&toc, &data).map_err(named)?;
    drop(toc);
    let reader = file.data_reader()?;
    let Some(at) = contents.skeleton else {
        return Err(named("its shapes are fixed".into()));
    };
    let extract = Arc::new(skeleton::read(&at, &reader).map_err(named)?);
    let kept = Arc::new(Kept {
        extract: extract.clone(),
        table: Table::new(contents.weights),
        reader,
    });
    let options = neap_onnx::OpenOptions {
        shapes: wanted.shapes.clone(),
        bindings: wanted.values.clone(),
        size_bounds: wanted.size_bounds.clone(),
        leave_weights: true,
        ..Default::default()
    };
    let model = Skeleton::from_extract(extract, Box::new(Pieces(kept.clone())));
    let bound = model.and_then(|model| model.bind(&options));
    let bound = bound.map_err(|e| named(e.to_string()))?;
    let mut constants = Constants {
        kept,
        held_bytes: 0,
    };
    let Lowered {
        mut program,
        recipes,
        source,
    } = neap_compile::lower(bound.graph, &mut constants)?;
    for (recipe, packed) in recipes.iter().zip(&mut program.packed) {
        let found = constants.kept.table.find(&source, recipe);
        *packed = found.ok_or_else(|| missing(&named, packed))?;
    }
    drop((recipes, source, constants));
    // Where weights lie was checked with the table.
    Ok(neap_compile::finished(program, order)?)
}

fn missing(named: &impl Fn(String) -> Error, packed: &Packed) -> Error {
    named(format!(
        "these shapes need the weights '{}' in a form that was not packed: pack the model again with these shapes",
        packed.name
    ))
}

/// What the packed file holds of the model's constants.
struct Kept {
    extract: Arc<Extract>,
    table: Table,
    reader: DataReader,
}

impl Kept {
    /// Bytes of the model's files; whether they are there.
    fn read(&self, range: FileRange, out: &mut [u8]) -> std::io::Result<bool> {
        if self.extract.read(range, out) {
            return Ok(true);
        }
        let Some(offset) = self.table.place_of(range) else {
            return Ok(false);
        };
        self.reader
            .read(offset, out)
            .map_err(std::io::Error::other)?;
        Ok(true)
    }
}

/// For the reader of the model.
struct Pieces(Arc<Kept>);

impl Elsewhere for Pieces {
    fn read(&mut self, range: FileRange, out: &mut [u8]) -> std::io::Result<bool> {
        self.0.read(range, out)
    }
}

/// For the rewriter.
struct Constants {
    kept: Arc<Kept>,
    held_bytes: usize,
}

impl ConstReader for Constants {
    fn read(&mut self, graph: &Graph, value: ValueId) -> std::result::Result<Literal, String> {
        let ty = graph.ty(value);
        let &Const::Stored {
            range,
            stored_dtype,
        } = graph.constant(value).ok_or("has no data")?
        else {
            return Err("has no data".into());
        };
        let raw_bytes = ty.elements().saturating_mul(stored_dtype.size_bytes());
        if raw_bytes > MOST_HELD_BYTES {
            return Err("is too large to be in memory".into());
        }
        let mut raw = vec![0; raw_bytes];
        match self.kept.read(range, &mut raw) {
            Ok(true) => source_weights::literal(stored_dtype, &raw, ty),
            Ok(false) => Err(
                "these shapes need it in a form that was not packed: pack the model again with them"
                    .into(),
            ),
            Err(e) => Err(e.to_string()),
        }
    }

    fn has_extent(&mut self, graph: &Graph, recipe: &Recipe) -> bool {
        if self.kept.table.find(graph, recipe).is_some() {
            return true;
        }
        let bytes = graph.ty(recipe.constant()).len_bytes();
        // Beyond that packing again is better, and lowering says so.
        if self.held_bytes + bytes > MOST_HELD_BYTES {
            return true;
        }
        self.held_bytes += bytes;
        false
    }
}
