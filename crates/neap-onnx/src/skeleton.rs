//! A model before its dimensions are bound.

use crate::builder::Stored;
use crate::error::OnnxError;
use crate::extract::{Elsewhere, Extract, KeptFile};
use crate::files::Files;
use crate::inputs::Inputs;
use crate::open_file::OpenFile;
use crate::proto::ModelProto;
use crate::{OpenOptions, cleanup, decode, external, import, other_formats};
use neap_ir::{FileRange, Graph};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// The structure of a model: nodes, names, symbolic dimensions, and where its constants lie.
pub struct Skeleton {
    proto: ModelProto,
    files: Files,
    inputs: Inputs,
}

/// A graph with static shapes, and what binding it looked at.
pub struct Bound {
    pub graph: Graph,
    /// Constants that are left in the files, each once and whole, also those that the graph takes apart.
    pub stored: Vec<Stored>,
    /// In the order of `FileId`, as an [`Extract`] names them.
    pub files: Vec<KeptFile>,
    /// The files themselves, in the same order; `None` for one that was never written, and for all of an extract.
    /// Whoever reads constants through these reads the very files that the structure is from, whatever their paths
    /// name by then.
    pub open: Vec<Option<Arc<OpenFile>>>,
    /// In order: what an [`Extract`] needs, so that the model can be bound again.
    pub read: Vec<FileRange>,
    /// What tensors of the model are in files of external data, in order: all that their content is to it, for any
    /// binding.
    pub external: Vec<FileRange>,
}

impl Skeleton {
    /// Reads the structure of a model file.
    ///
    /// # Errors
    /// The file cannot be read or is malformed.
    pub fn open(path: &Path) -> Result<Skeleton, OnnxError> {
        Skeleton::decode(Files::open(path)?)
    }

    /// Reads it from what was kept of the model's files. Constants that are not part of it are asked of
    /// `elsewhere`.
    ///
    /// # Errors
    /// The extract is no model's, or lacks parts of its structure.
    pub fn from_extract(
        extract: Arc<Extract>,
        elsewhere: Box<dyn Elsewhere>,
    ) -> Result<Skeleton, OnnxError> {
        Skeleton::decode(Files::of_extract(extract, elsewhere))
    }

    fn decode(mut files: Files) -> Result<Skeleton, OnnxError> {
        let proto = decode::model(files.model())
            .map_err(|error| other_formats::named(files.model(), error))?;
        files.set_bare(proto.is_bare);
        let graph = proto.graph.as_ref();
        let inputs = graph.map(import::real_inputs).unwrap_or_default();
        let inputs = Inputs::new(inputs);
        Ok(Skeleton {
            proto,
            files,
            inputs,
        })
    }

    /// With their symbolic dimensions.
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// Of these names those that no node has as a result, and that can have no bound ([`OpenOptions::size_bounds`]).
    pub fn unknown_results<'a>(&self, names: impl Iterator<Item = &'a str>) -> HashSet<&'a str> {
        import::bounds::unknown(&self.proto, names.collect())
    }

    /// What its maker wrote into it beside the graph; very long entries are left out.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.proto.metadata
    }

    /// Binds dimensions and folds what follows from them.
    ///
    /// # Errors
    /// As [`crate::open`], for all but the structure itself.
    pub fn bind(self, options: &OpenOptions) -> Result<Bound, OnnxError> {
        let Skeleton { proto, files, .. } = self;
        let (graph, files, stored) = import::bind(&proto, files, options)?;
        let external = external::used(&proto, &files);
        // As large as the graph, where nodes are many.
        drop(proto);
        let graph = cleanup::run(graph);
        graph.check()?;
        Ok(Bound {
            graph,
            stored,
            files: files.kept_files(),
            open: files.open_files(),
            read: files.touched(),
            external,
        })
    }
}
