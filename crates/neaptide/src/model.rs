//! Opening a model: an `.onnx` is packed on first use into a cache, a `.neap` is opened as it is.

use crate::cache;
use crate::error::{Error, Result, packed_error};
use crate::host::{Embedded, Host, OwnProcess};
use crate::pack::{self, Packing, Progress, WeightError, WeightFormats};
use crate::package::{self, Asked, Package};
use neap_compile::{BandCount, Programs, StepOrder, count_bands};
use neap_ir::{BoundInput, DType, Graph, Literal, Op, Program, TensorType};
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
    /// What an open dimension is that stands first in an input, where nothing else says it: a batch of so many. The model's
    /// remarks say so ([`Model::remarks`]). Without it the dimension is asked for, as all other open ones are.
    pub open_batch: Option<usize>,
    /// Inputs whose values are known now, such as those that decide shapes; they become constants.
    pub bindings: BTreeMap<String, Literal>,
    /// Values of the data at hand, by input name: bound where shapes depend on them, and only there. Which were
    /// bound is known from [`Model::bound`].
    pub value_hints: BTreeMap<String, Literal>,
    /// The most that a size can be that is known only when the model runs, where nothing in the model says it: by the
    /// name of the first output of the node that makes it.
    pub size_bounds: BTreeMap<String, usize>,
    /// What a packed file says of the model beside what its metadata say, or in their place. A cached file has the model's
    /// own: give this with [`pack`] only.
    pub metadata: Vec<(String, String)>,
    pub step_order: StepOrder,
    /// In how many bits weights are packed. A cache has a file for each form; what is packed already stays as it is.
    pub weights: WeightFormats,
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
            open_batch: Some(1),
            bindings: BTreeMap::new(),
            value_hints: BTreeMap::new(),
            size_bounds: BTreeMap::new(),
            metadata: Vec::new(),
            step_order: StepOrder::default(),
            weights: WeightFormats::default(),
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
            Cache::Auto => cache::user_folder(),
            Cache::Folder(folder) => Some(folder.clone()),
        }
    }
}

/// An opened model. Its weights are still on storage, or were never written: then it can be planned and
/// simulated, and not run.
pub struct Model {
    pub(crate) programs: Programs,
    /// `None` without weights.
    pub(crate) package: Option<Package>,
    /// The packed file; the `.onnx` where there are no weights to pack.
    packed: Packed,
    /// The open packed file.
    file: Option<PackedFile>,
    /// Where what is learnt of the machine is kept.
    pub(crate) cache: Cache,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) remarks: Vec<String>,
}

/// A packed file.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    pub path: PathBuf,
    /// It was packed into a cache, from which it can be removed: the source is at hand.
    pub is_cached: bool,
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
            let mut model = open_packed(path, false, options)?;
            model.bind_as(options, true)?;
            return Ok(model);
        }
        cache::open(path, options, progress)
    }

    /// Of an open packed file.
    ///
    /// # Errors
    /// [`Error::BadInput`], naming the file, when its table of contents is damaged.
    pub(crate) fn of(packed: Packed, mut file: PackedFile, options: &OpenOptions) -> Result<Model> {
        let (package, programs) = package::decode(file.toc(), file.data_range())
            .map_err(|reason| Error::BadInput(format!("{}: {reason}", packed.path.display())))?;
        file.drop_toc()?;
        let mut remarks = Vec::new();
        let programs = match programs {
            Some(programs) => programs,
            None => {
                remarks.push(format!(
                    "{}: packed by another version of neaptide, so its programs are made anew whenever it is opened: pack it again to avoid that",
                    packed.path.display()
                ));
                package::bind(&file, &package.binding, package.order)?
            }
        };
        options.host.trim();
        Ok(Model {
            programs,
            package: Some(package),
            packed,
            file: Some(file),
            cache: options.cache.clone(),
            host: options.host.clone(),
            remarks,
        })
    }

    /// What the user should hear about opening the model, such as that its packed form was damaged.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Whether the packed file lies in memory (tmpfs), which no budget counts.
    pub fn is_packed_in_memory(&self) -> bool {
        self.file.as_ref().is_some_and(PackedFile::is_in_memory)
    }

    /// Whether it was packed into a cache.
    pub(crate) fn is_cached(&self) -> bool {
        self.packed.is_cached
    }

    /// Binds the model to other shapes: of the inputs that are named, and of those that share dimensions with them;
    /// the rest stay. Nothing is packed. The model is as it was when this fails.
    ///
    /// # Errors
    /// [`Error::BadInput`] for shapes that the model does not take, and when the packed file is damaged or lacks
    /// something that they need.
    pub fn bind(&mut self, shapes: &BTreeMap<String, Vec<usize>>) -> Result<()> {
        let options = OpenOptions {
            shapes: shapes.clone(),
            ..OpenOptions::default()
        };
        self.bind_as(&options, true)
    }

    /// Goes over to the programs of the binding that is asked for.
    pub(crate) fn bind_as(&mut self, options: &OpenOptions, is_named: bool) -> Result<()> {
        let (Some(package), Some(file)) = (&mut self.package, &self.file) else {
            return Err(pack::no_weights(&self.packed.path.display()));
        };
        let asked = Asked {
            shapes: &options.shapes,
            hints: &options.shape_hints,
            values: &options.bindings,
            size_bounds: &options.size_bounds,
            batch: options.open_batch,
        };
        let wanted = package
            .wanted(&asked, is_named)
            .map_err(|e| Error::BadInput(format!("{}: {e}", self.packed.path.display())))?;
        let unsaid = unsaid_text(&wanted.unsaid_batches, options.open_batch);
        self.remarks.extend(unsaid);
        let wanted = wanted.binding;
        let order = match is_named {
            true => package.order,
            false => options.step_order,
        };
        if wanted == package.binding && order == package.order {
            return Ok(());
        }
        self.programs = package::bind(file, &wanted, order)?;
        package.binding = wanted;
        package.order = order;
        self.host.trim();
        Ok(())
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
        self.file.as_ref().map(|_| self.packed.path.as_path())
    }

    /// The packed file.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a model without weights.
    pub(crate) fn packed(&self) -> Result<(&Path, &PackedFile)> {
        match &self.file {
            Some(file) => Ok((&self.packed.path, file)),
            None => Err(pack::no_weights(&self.packed.path.display())),
        }
    }

    /// Takes the packed file away, as [`Model::packed`].
    pub(crate) fn take_packed(&mut self) -> Result<(Packed, PackedFile, Package)> {
        match self.file.take().zip(self.package.take()) {
            Some((file, package)) => Ok((self.packed.clone(), file, package)),
            None => Err(pack::no_weights(&self.packed.path.display())),
        }
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
        &self.packed.path
    }

    /// What the model calls itself, which may be nothing.
    pub fn name(&self) -> &str {
        &self.program().graph.name
    }

    /// What the model's maker wrote into it beside the graph: keys and values. Very long entries are left out.
    pub fn metadata(&self) -> &[(String, String)] {
        let skeleton = self.package.as_ref().and_then(|p| p.skeleton.as_ref());
        skeleton.map_or(&[], |skeleton| &skeleton.metadata)
    }

    /// Names the graph and its bound shapes; equal digests mean interchangeable plans.
    pub fn digest(&self) -> &str {
        &self.program().digest
    }

    /// In the model's order, with the shapes that it is opened for. Those that are bound to values ([`Model::bound`]) are not
    /// among them.
    pub fn inputs(&self) -> Vec<TensorInfo> {
        infos(&self.program().graph, &self.program().graph.inputs)
    }

    /// In the model's order. A size that the data decide is the most that it can be.
    pub fn outputs(&self) -> Vec<TensorInfo> {
        infos(&self.program().graph, &self.program().graph.outputs)
    }

    /// Of each output the axes whose sizes are known only when the model runs: [`Model::outputs`] has the most that they can
    /// be, and [`Session::output_type`](crate::Session::output_type) what they were.
    pub fn late_axes(&self) -> Vec<Vec<bool>> {
        let graph = &self.program().graph;
        let late = graph.late_values();
        let axes = graph.outputs.iter().map(|id| match late.get(id) {
            Some(bound) => bound.late.clone(),
            None => vec![false; graph.ty(*id).shape.len()],
        });
        axes.collect()
    }

    /// Whether sizes, branches or loops depend on what a run is given. How long runs take then does, too.
    pub fn is_decided_by_data(&self) -> bool {
        let mut nodes = self.program().graph.nodes.iter();
        nodes.any(|node| matches!(node.op, Op::Late(_)))
    }

    /// Inputs that were bound to a value when the model was opened or packed, and are none of
    /// [`Model::inputs`]. For another value the model must be opened again.
    pub fn bound(&self) -> &[BoundInput] {
        &self.program().graph.bound
    }

    /// Bytes of all packed weights.
    pub fn weight_bytes(&self) -> u64 {
        self.program().packed.iter().map(|p| p.bytes).sum()
    }

    /// Checks every byte of the packed file against its checksums.
    ///
    /// # Errors
    /// [`Error::BadInput`] names the file and the first block that is damaged or cannot be read.
    pub fn verify(&self) -> Result<()> {
        let (path, file) = self.packed()?;
        file.verify_all()
            .map_err(|e| Error::BadInput(packed_error(path, &e)))
    }
}

/// What packing a model has to say.
#[derive(Debug, Clone, Default)]
pub struct PackReport {
    /// What rounding did to each layer, where weights are rounded.
    pub errors: Vec<WeightError>,
    /// What the user should hear, as of [`Model::remarks`].
    pub remarks: Vec<String>,
}

/// Reads `model`, lowers it and writes the packed form to `target`, holding at most one layer's
/// weights. Nothing is left under `target` when it fails.
///
/// # Errors
/// [`Error::BadInput`] for anything wrong with the model, or for weights that cannot be rounded as
/// [`OpenOptions::weights`] says; [`Error`] where the packed file cannot be written.
pub fn pack(
    model: &Path,
    target: &Path,
    options: &OpenOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<PackReport> {
    options.host.trim_program();
    cache::pack_to(model, target, options, progress)
}

/// As [`pack`], of a graph that was built in memory or by another reader. Its shapes are bound, its
/// constants lie in the graph or in the files it names. Of `options`, the order of steps, the formats of weights and the
/// host count.
///
/// # Errors
/// As [`pack`].
pub fn pack_graph(
    graph: Graph,
    target: &Path,
    options: &OpenOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<WeightError>> {
    if !pack::has_weights(&graph) {
        return Err(pack::no_weights(&graph.name));
    }
    let source = pack::Source::of_graph(graph)?;
    pack::write(source, None, target, &options.packing(), progress)
}

impl TensorInfo {
    pub fn new(name: impl Into<String>, dtype: DType, shape: &[usize]) -> TensorInfo {
        TensorInfo {
            name: name.into(),
            ty: TensorType::new(dtype, shape),
        }
    }

    /// Of its elements, row-major and without gaps.
    pub fn len_bytes(&self) -> usize {
        self.ty.len_bytes()
    }
}

impl OpenOptions {
    pub(crate) fn packing(&self) -> Packing<'_> {
        Packing {
            order: self.step_order,
            weights: self.weights,
            host: &*self.host,
        }
    }

    /// Hints taken as shapes.
    pub(crate) fn with_shape_hints(&self) -> OpenOptions {
        let mut shapes = self.shape_hints.clone();
        shapes.extend(self.shapes.clone());
        OpenOptions {
            shapes,
            shape_hints: BTreeMap::new(),
            ..self.clone()
        }
    }
}

/// What is said of a batch that was taken for inputs of these names.
pub(crate) fn unsaid_text(inputs: &[String], batch: Option<usize>) -> Option<String> {
    let batch = batch?;
    match inputs {
        [] => None,
        [one] => Some(format!(
            "input '{one}': its first dimension is open, and taken as {batch}"
        )),
        all => Some(format!(
            "inputs '{}': their first dimensions are open, and taken as {batch}",
            all.join("', '")
        )),
    }
}

pub(crate) fn onnx_options(options: &OpenOptions) -> neap_onnx::OpenOptions {
    neap_onnx::OpenOptions {
        shapes: options.shapes.clone(),
        bindings: options.bindings.clone(),
        size_bounds: options.size_bounds.clone(),
        ..Default::default()
    }
}

pub(crate) fn infos(graph: &Graph, ids: &[neap_ir::ValueId]) -> Vec<TensorInfo> {
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
    let (path, _) = model.packed()?;
    let mut again = open_packed(path, model.packed.is_cached, &options)?;
    again.programs = model.programs.clone();
    again.package.clone_from(&model.package);
    Ok(again)
}

pub(crate) fn open_packed(path: &Path, is_cached: bool, options: &OpenOptions) -> Result<Model> {
    let file = PackedFile::open(path).map_err(|e| Error::BadInput(packed_error(path, &e)))?;
    let path = path.to_path_buf();
    Model::of(Packed { path, is_cached }, file, options)
}

/// A model that has shapes and no weights: lowered as it would be packed, and nothing written.
pub(crate) fn open_bare(
    source: pack::Source,
    path: &Path,
    options: &OpenOptions,
    remarks: Vec<String>,
) -> Result<Model> {
    options.host.trim();
    let programs = pack::plan_only(source.graph, source.files, &options.packing())?;
    options.host.trim();
    Ok(Model {
        programs,
        package: None,
        packed: Packed {
            path: path.to_path_buf(),
            is_cached: false,
        },
        file: None,
        cache: options.cache.clone(),
        host: options.host.clone(),
        remarks,
    })
}

pub(crate) fn is_packed(path: &Path) -> Result<bool> {
    // Opening a pipe would wait for somebody who writes to it.
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        let path = path.display();
        return Err(Error::BadInput(format!(
            "cannot open {path}: not a regular file"
        )));
    }
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
