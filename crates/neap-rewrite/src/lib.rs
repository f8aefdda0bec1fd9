//! IR to IR: fusion, layout assignment, aliasing, packing recipes.
//!
//! ```text
//! Graph from the reader
//!   | simplify   drop identities, fold transposes together, name activations
//!   | quantized  weights behind casts and scales, steps between layers
//!   | fuse       gelu, silu, layer norm, attention
//!   | weights    conv + bn + residual + activation, linear + bias + ..., embeddings -> Panel* ops
//!   | gathers    those of activations at constant positions are slices
//!   | integers 8-bit layers between roundings to steps compute in integers
//!   | layout     channel-blocked where kernels want it, Reorder in between
//!   | place      which values share memory; nodes that only rename memory become no steps
//!   v
//! Lowered { program, recipes }
//!   | bands      a second program over the same weights, with row bands
//!   | order      steps of either in the order that needs least memory
//!   | strips     where less memory than either needs is asked for: large images in strips of rows
//! ```
//! No pass reads a weight's bytes; small constants (biases, BatchNorm statistics) come through
//! [`ConstReader`].

#![forbid(unsafe_code)]

mod attention;
mod bands;
mod batch_norm;
mod block_weights;
mod constants;
mod content;
mod edit;
mod fuse;
mod gathers;
mod group_norm;
mod integers;
mod keys;
mod layout;
mod members;
mod needs;
mod norm;
mod order;
mod place;
mod plainly;
mod quantized;
mod recipes;
mod recurrent;
mod simplify;
mod steps;
mod stored;
mod strips;
mod tail;
mod weights;

pub use bands::{BandLimits, with_bands};
pub use constants::{ConstReader, describe, describe_as, stored_format};
pub use keys::weight_key;
pub use needs::{live_bytes, step_bytes};
pub use order::{OrderLimits, reordered, with_less_memory, with_steps_in_order};
pub use plainly::lower_plainly;
pub use strips::with_strips;

use edit::Editor;
use neap_ir::recipe::Recipe;
use neap_ir::{Graph, GraphError, Program};
use thiserror::Error;

/// What packing needs: the program without extent offsets, and how to make each extent.
pub struct Lowered {
    /// `program.packed` is in recipe order with offsets and sizes still zero.
    pub program: Program,
    pub recipes: Vec<Recipe>,
    /// The graph whose constants the recipes name.
    pub source: Graph,
}

#[derive(Debug, Error)]
pub enum RewriteError {
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("constant '{name}': {reason}")]
    Constant { name: String, reason: String },
    #[error("'{name}' cannot be updated where it lies")]
    State { name: String },
}

/// Lowers a graph. `digest` identifies the source model and its bound shapes.
///
/// # Errors
/// [`RewriteError`] where the graph is malformed or a constant cannot be read.
pub fn lower(
    graph: Graph,
    digest: String,
    reader: &mut dyn ConstReader,
) -> Result<Lowered, RewriteError> {
    let mut editor = Editor::new(graph);
    simplify::run(&mut editor);
    quantized::run(&mut editor);
    fuse::run(&mut editor);
    norm::run(&mut editor);
    group_norm::run(&mut editor, reader)?;
    attention::run(&mut editor);
    let mut recipes = weights::run(&mut editor, reader)?;
    // Tables in few bits are rows of tables by now, and weights in few bits are layers'.
    editor.each(stored::widen_small);
    gathers::run(&mut editor);
    editor.remove_dead();
    integers::run(&mut editor, &recipes);
    editor.remove_dead();
    layout::run(&mut editor);
    let source = editor.graph.clone();
    constants::place(&mut editor.graph, &mut recipes, reader)?;
    let recipes = recipes.into_list();
    let mut program = place::run(editor.graph, digest);
    program.packed = recipes
        .iter()
        .map(|r| constants::describe(&source, r))
        .collect();
    Ok(Lowered {
        program,
        recipes,
        source,
    })
}
