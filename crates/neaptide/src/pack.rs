//! Writing a packed model: recipes are followed one after another, a few megabytes at a time.

use crate::error::{Error, Result};
use crate::host::Host;
use crate::identity::Provenance;
use crate::ledger;
use crate::package::{self, Binding, Cached, Contents, SkeletonSource, Table, Weight};
use crate::source_weights::SourceFiles;
use neap_compile::{Programs, StepOrder, finished, lower};
use neap_ir::op::{Op, Recurrent};
use neap_ir::recipe::Recipe;
use neap_ir::{Const, FileRange, Graph, Node, SourceFile, ValueId};
use neap_rewrite::Lowered;
use neap_store::{BLOCK, PackWriter};
use packer::Packer;
use rounding::Change;
use std::collections::HashSet;
use std::path::Path;

mod blocks;
mod formats;
mod packer;
mod rounding;

pub use formats::WeightFormats;
pub use rounding::WeightError;

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
    /// Of files beside the model, all that it uses, whatever it is bound to.
    pub used: Vec<FileRange>,
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
            used: Vec::new(),
        })
    }
}

/// Lowers a model and writes it to `target`, with what `provenance` says of its source. The result is what rounding did
/// to layers, where weights are rounded.
///
/// # Errors
/// [`Error::BadInput`] for what cannot be packed, read or written, and when the source changes meanwhile.
pub(crate) fn write(
    source: Source,
    provenance: Option<&Provenance>,
    target: &Path,
    packing: &Packing,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<WeightError>> {
    let Source {
        graph,
        mut files,
        skeleton,
        binding,
        used: _,
    } = source;
    let opening_bytes = ledger::opening_bytes(&graph);
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
    let kept = kept_as_stored(&program.graph, &recipes);
    formats::choose(packing.weights, &source, &files, &mut extents, &kept)?;
    let mut total_bytes: u64 = extents.iter().map(|(_, weight)| weight.packed.bytes).sum();
    let mut done_bytes = 0;
    let mut packer = Packer {
        source: &source,
        files: &files,
        writer: PackWriter::create(target)?,
        raw: Vec::new(),
        floats: Vec::new(),
        panels: Vec::new(),
        narrowed: Vec::new(),
        wanted: packing.weights,
        look: None,
        change: Change::default(),
    };
    progress(Progress {
        work: Work::Packing,
        done_bytes,
        total_bytes,
    });
    let mut weights = Vec::with_capacity(extents.len());
    let mut errors = Vec::new();
    for (recipe, mut weight) in extents {
        total_bytes -= packer.code(&recipe, &mut weight)?;
        weight.packed.offset = packer.writer.align(BLOCK as u64)?;
        packer.follow(&recipe, weight.panel_format(), &mut |bytes| {
            done_bytes += bytes;
            progress(Progress {
                work: Work::Packing,
                done_bytes,
                total_bytes,
            });
        })?;
        errors.extend(packer.take_error(&weight));
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
        opening_bytes,
    };
    let mut toc = package::encode(&contents, &cached)?;
    if let Some((origin, stamp)) = sealed {
        toc = origin.append_to(toc)?;
        writer.set_stamp(stamp);
    }
    files.check_unchanged()?;
    writer.finish(&toc)?;
    Ok(errors)
}

/// The extents to write, in order: those of the recipes, and what other bindings may need beside them. Recipes that make
/// part of such an extent make none of their own.
fn extents(
    skeleton: Option<&SkeletonSource>,
    source: &mut Graph,
    recipes: &[Recipe],
    read: &[FileRange],
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
    Ok(finished(program, packing.order)?)
}

/// Constants whose layers take no other form of them: those in integers, and recurrent ones with panels.
fn kept_as_stored(graph: &Graph, recipes: &[Recipe]) -> HashSet<ValueId> {
    let of_node = |node: &Node| {
        let own = node.panels.filter(|_| node.op.is_in_integers());
        let recurrent = match &node.op {
            Op::Lstm(of) | Op::Gru { recurrent: of, .. } | Op::Rnn(of) if of.in_panels => {
                Recurrent::PANELS.as_flattened()
            }
            _ => &[],
        };
        let given = recurrent.iter().filter_map(|&at| node.input(at));
        let given = given.filter_map(|value| match graph.constant(value) {
            Some(&Const::Packed(id)) => Some(id),
            _ => None,
        });
        own.into_iter().chain(given).collect::<Vec<_>>()
    };
    let ids = graph.nodes.iter().flat_map(of_node);
    let made = ids.filter_map(|id| recipes.get(id.index()));
    made.map(Recipe::constant).collect()
}
