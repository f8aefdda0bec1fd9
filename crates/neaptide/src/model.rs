//! Opening a model: an `.onnx` is packed on first use into a cache, a `.neap` is opened as it is.

use crate::error::{Error, Result};
use crate::host::{Embedded, Host, OwnProcess};
use crate::pack::{self, Progress};
use neap_compile::{BandCount, PROGRAM_VERSION, Programs, StepOrder, count_bands};
use neap_ir::{DType, Graph, Literal, Program, TensorType};
use neap_store::PackedFile;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to read a model.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Shapes for inputs with dynamic dimensions, by input name.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Shapes of the data at hand, by input name: believed where `shapes` leaves dimensions open.
    pub shape_hints: BTreeMap<String, Vec<usize>>,
    /// Inputs whose values are known now, such as those that determine shapes; they become constants.
    pub bindings: BTreeMap<String, Literal>,
    pub step_order: StepOrder,
    pub cache: Cache,
    /// The process that the model is opened in; sessions of the model ask and tell it, too.
    pub host: Arc<dyn Host>,
}

impl Default for OpenOptions {
    /// For a process with other work too ([`Embedded`]).
    fn default() -> OpenOptions {
        OpenOptions {
            shapes: BTreeMap::new(),
            shape_hints: BTreeMap::new(),
            bindings: BTreeMap::new(),
            step_order: StepOrder::default(),
            cache: Cache::default(),
            host: Arc::new(Embedded),
        }
    }
}

impl OpenOptions {
    /// For a process that exists to run models ([`OwnProcess`]).
    pub fn of_own_process() -> OpenOptions {
        OpenOptions {
            host: Arc::new(OwnProcess::default()),
            ..OpenOptions::default()
        }
    }
}

/// Where the packed form of an `.onnx` is kept.
#[derive(Debug, Clone, Default)]
pub enum Cache {
    /// Beside the model, or under the user's cache directory when that cannot be written.
    #[default]
    Auto,
    /// In this folder.
    Folder(PathBuf),
}

impl Cache {
    /// The folder for what belongs to no model; `None` without a home directory.
    pub fn folder(&self) -> Option<PathBuf> {
        match self {
            Cache::Auto => user_cache(),
            Cache::Folder(folder) => Some(folder.clone()),
        }
    }
}

/// An opened model. Its weights are still on storage, or were never written: then it can be planned and
/// simulated, and not run.
pub struct Model {
    pub(crate) programs: Programs,
    /// The packed file; the `.onnx` where there are no weights to pack.
    path: PathBuf,
    /// The open packed file.
    file: Option<PackedFile>,
    /// Where what is learnt of the machine is kept.
    pub(crate) cache: Cache,
    pub(crate) host: Arc<dyn Host>,
}

/// An input or output of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub ty: TensorType,
}

impl Model {
    /// Opens `path`; packs an `.onnx` first when no packed form of it is cached. Reads no weights
    /// otherwise. `progress` hears about packing.
    ///
    /// An `.onnx` whose metadata says that its weights are absent ([`neap_onnx::WEIGHTS_KEY`]) is not
    /// packed.
    ///
    /// # Errors
    /// [`Error::BadInput`] for anything wrong with the file, its shapes or its operators.
    pub fn open(
        path: impl AsRef<Path>,
        options: &OpenOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model> {
        // What ran before is not charged together with what reading takes.
        options.host.trim_program();
        let path = path.as_ref();
        if is_packed(path)? {
            let model = open_packed(path, options)?;
            return check_shapes(model, options);
        }
        // Hints matter only when shapes are open: most models have one packed form, whatever the hints.
        let hinted = (!options.shape_hints.is_empty()).then(|| options.with_hints());
        for options in std::iter::once(options).chain(&hinted) {
            if let Ok(model) = open_packed(&cached_path(path, options)?, options) {
                return Ok(model);
            }
        }
        let (graph, options) = match (neap_onnx::open(path, &onnx_options(options)), &hinted) {
            (Err(neap_onnx::OnnxError::DynamicInput { .. }), Some(hinted)) => {
                (neap_onnx::open(path, &onnx_options(hinted))?, hinted)
            }
            (graph, _) => (graph?, options),
        };
        if !pack::has_weights(&graph) {
            return open_bare(graph, path, options);
        }
        let target = cached_path(path, options)?;
        pack_in_order(graph, &target, options, progress)?;
        open_packed(&target, options)
    }

    /// The plain program, without row bands.
    pub fn program(&self) -> &Arc<Program> {
        &self.programs.plain
    }

    /// The program with row bands over the same weights, where that needs less memory.
    pub fn banded(&self) -> Option<&Arc<Program>> {
        self.programs.banded.as_ref()
    }

    /// Row bands that the model could run with.
    pub fn bands(&self) -> BandCount {
        self.banded()
            .map_or(BandCount::default(), |b| count_bands(b))
    }

    /// The packed file in use; `None` without weights.
    pub fn packed_path(&self) -> Option<&Path> {
        self.file.as_ref().map(|_| self.path.as_path())
    }

    /// The packed file.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a model without weights.
    pub(crate) fn packed(&self) -> Result<(&Path, &PackedFile)> {
        match &self.file {
            Some(file) => Ok((&self.path, file)),
            None => Err(pack::no_weights(&self.path.display())),
        }
    }

    /// Takes the packed file away, as [`Model::packed`].
    pub(crate) fn take_packed(&mut self) -> Result<PackedFile> {
        let file = self.file.take();
        file.ok_or_else(|| pack::no_weights(&self.path.display()))
    }

    /// Tells early that the model cannot run for want of weights.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a model without weights.
    pub fn check_weights(&self) -> Result<()> {
        self.packed().map(|_| ())
    }

    /// On the file system that weights are on, or would be.
    pub(crate) fn place(&self) -> &Path {
        &self.path
    }

    pub fn name(&self) -> &str {
        &self.program().graph.name
    }

    /// Names the graph and its bound shapes; equal digests mean interchangeable plans.
    pub fn digest(&self) -> &str {
        &self.program().digest
    }

    pub fn inputs(&self) -> Vec<TensorInfo> {
        infos(&self.program().graph, &self.program().graph.inputs)
    }

    pub fn outputs(&self) -> Vec<TensorInfo> {
        infos(&self.program().graph, &self.program().graph.outputs)
    }

    /// Bytes of all packed weights.
    pub fn weight_bytes(&self) -> u64 {
        self.program().packed.iter().map(|p| p.bytes).sum()
    }

    /// Checks every byte of the packed file against its checksums.
    ///
    /// # Errors
    /// [`Error`] names the first block that is damaged or cannot be read.
    pub fn verify(&self) -> Result<()> {
        Ok(self.packed()?.1.verify_all()?)
    }
}

/// Reads `model`, lowers it and writes the packed form to `target`, holding at most one layer's
/// weights. Nothing is left under `target` when it fails.
///
/// # Errors
/// [`Error::BadInput`] for anything wrong with the model; [`Error`] where the packed file cannot be written.
pub fn pack(
    model: &Path,
    target: &Path,
    options: &OpenOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    options.host.trim_program();
    let graph = neap_onnx::open(model, &onnx_options(options))?;
    if !pack::has_weights(&graph) {
        return Err(pack::no_weights(&model.display()));
    }
    pack_in_order(graph, target, options, progress)
}

/// As [`pack`], of a graph that was built in memory or by another reader. Its shapes are bound, its
/// constants lie in the graph or in the files it names.
///
/// # Errors
/// As [`pack`].
pub fn pack_graph(graph: Graph, target: &Path, progress: &mut dyn FnMut(Progress)) -> Result<()> {
    if !pack::has_weights(&graph) {
        return Err(pack::no_weights(&graph.name));
    }
    pack_in_order(graph, target, &OpenOptions::default(), progress)
}

fn pack_in_order(
    graph: Graph,
    target: &Path,
    options: &OpenOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    options.host.trim();
    pack::write(graph, target, options, progress)?;
    options.host.trim();
    Ok(())
}

impl TensorInfo {
    pub fn new(name: impl Into<String>, dtype: DType, shape: &[usize]) -> TensorInfo {
        TensorInfo {
            name: name.into(),
            ty: TensorType::new(dtype, shape),
        }
    }

    pub fn len_bytes(&self) -> usize {
        self.ty.len_bytes()
    }
}

impl OpenOptions {
    /// Hints taken as shapes.
    fn with_hints(&self) -> OpenOptions {
        let mut shapes = self.shape_hints.clone();
        shapes.extend(self.shapes.clone());
        OpenOptions {
            shapes,
            shape_hints: BTreeMap::new(),
            ..self.clone()
        }
    }
}

fn onnx_options(options: &OpenOptions) -> neap_onnx::OpenOptions {
    neap_onnx::OpenOptions {
        shapes: options.shapes.clone(),
        bindings: options.bindings.clone(),
        ..Default::default()
    }
}

fn infos(graph: &Graph, ids: &[neap_ir::ValueId]) -> Vec<TensorInfo> {
    ids.iter()
        .map(|&id| {
            let value = graph.value(id);
            TensorInfo {
                name: value.name.clone(),
                ty: value.ty.clone(),
            }
        })
        .collect()
}

/// The same model once more.
pub(crate) fn reopen(model: &Model) -> Result<Model> {
    let options = OpenOptions {
        cache: model.cache.clone(),
        host: model.host.clone(),
        ..OpenOptions::default()
    };
    open_packed(model.packed()?.0, &options)
}

fn open_packed(path: &Path, options: &OpenOptions) -> Result<Model> {
    let mut file = PackedFile::open(path)?;
    let programs = Programs::decode(file.toc(), file.data_range())
        .map_err(|reason| Error::BadInput(format!("{}: {reason}", path.display())))?;
    file.drop_toc()?;
    options.host.trim();
    Ok(Model {
        programs,
        path: path.to_path_buf(),
        file: Some(file),
        cache: options.cache.clone(),
        host: options.host.clone(),
    })
}

/// A model that has shapes and no weights: lowered as it would be packed, and nothing written.
fn open_bare(graph: Graph, path: &Path, options: &OpenOptions) -> Result<Model> {
    options.host.trim();
    let programs = pack::plan_only(graph, options)?;
    options.host.trim();
    Ok(Model {
        programs,
        path: path.to_path_buf(),
        file: None,
        cache: options.cache.clone(),
        host: options.host.clone(),
    })
}

/// A packed model has its shapes; asking for others is a mistake worth a word.
fn check_shapes(model: Model, options: &OpenOptions) -> Result<Model> {
    let inputs = model.inputs();
    for (name, shape) in &options.shapes {
        match inputs.iter().find(|i| i.name == *name) {
            None => return Err(Error::BadInput(format!("the model has no input '{name}'"))),
            Some(input) if input.ty.shape != *shape => {
                return Err(Error::BadInput(format!(
                    "{} was packed for input '{name}' of shape {}, not {}: pack the .onnx again with that shape",
                    model.path.display(),
                    shape_text(&input.ty.shape),
                    shape_text(shape)
                )));
            }
            Some(_) => {}
        }
    }
    Ok(model)
}

/// `1x3x224x224`; `scalar` for rank 0.
pub fn shape_text(shape: &[usize]) -> String {
    if shape.is_empty() {
        return "scalar".into();
    }
    shape
        .iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join("x")
}

fn is_packed(path: &Path) -> Result<bool> {
    if path
        .extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("neap"))
    {
        return Ok(true);
    }
    let mut magic = [0u8; 8];
    let read = fs::File::open(path)
        .and_then(|mut f| std::io::Read::read(&mut f, &mut magic))
        .map_err(|e| Error::BadInput(format!("cannot open {}: {e}", path.display())))?;
    Ok(read == 8 && magic == neap_store::MAGIC)
}

/// The key covers what the packed form depends on: the file's identity, the bound shapes, this build.
fn cached_path(model: &Path, options: &OpenOptions) -> Result<PathBuf> {
    let cannot =
        |e: std::io::Error| Error::BadInput(format!("cannot open {}: {e}", model.display()));
    let canonical = fs::canonicalize(model).map_err(cannot)?;
    let meta = fs::metadata(&canonical).map_err(cannot)?;
    if !meta.is_file() {
        return Err(Error::BadInput(format!(
            "{} is not a file",
            model.display()
        )));
    }
    let modified = meta
        .modified()
        .ok()
        .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |d| d.as_nanos());
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{}\0{}\0{modified}\0", PROGRAM_VERSION, meta.len()).as_bytes());
    let (shapes, bindings, order) = (&options.shapes, &options.bindings, options.step_order);
    hasher.update(format!("{shapes:?}\0{bindings:?}\0{order:?}").as_bytes());
    let key = &hasher.finalize().to_hex()[..12];
    let stem = canonical
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let name = format!("{stem}.{key}.neap");

    let folder = match &options.cache {
        Cache::Folder(folder) => {
            fs::create_dir_all(folder).map_err(|e| {
                Error::BadInput(format!(
                    "cannot create the cache folder {}: {e}",
                    folder.display()
                ))
            })?;
            folder.clone()
        }
        Cache::Auto => {
            let beside = canonical.parent().unwrap_or(Path::new(".")).to_path_buf();
            if beside.join(&name).exists() || writable(&beside) {
                beside
            } else {
                // Two folders may hold models of one name and size.
                let folder = user_cache().ok_or_else(|| {
                    Error::BadInput(format!(
                        "{} cannot be written and there is no home directory: give --cache-dir",
                        beside.display()
                    ))
                })?;
                let place = blake3::hash(canonical.as_os_str().as_encoded_bytes()).to_hex();
                let folder = folder.join(&place[..12]);
                fs::create_dir_all(&folder).map_err(|e| {
                    Error::BadInput(format!("cannot create {}: {e}", folder.display()))
                })?;
                folder
            }
        }
    };
    Ok(folder.join(name))
}

fn writable(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}

fn user_cache() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(base.join("neaptide"))
}
