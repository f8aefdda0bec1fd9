//! The packed form of an `.onnx`, kept beside it or in a cache folder, and trusted only for the same content.
//!
//! ```text
//!   packed file ── readable, this user's, of this build? ── no ──────────────────────► pack
//!        │ yes
//!   identity of the source as stamped? ── yes ── open
//!        │ no
//!   hash the source: digest as recorded? ── yes ── stamp anew, open
//!        │ no
//!        └───────────────────────────────────────────────────────────────────────────► pack
//! ```

use crate::error::{Error, Result, packed_error};
use crate::identity::{self, Content, Home, Origin, Provenance};
use crate::model::{self, Cache, Model, OpenOptions, PackReport, Packed};
use crate::pack::{self, Progress, WeightError, WeightFormats};
use crate::package::{self, Binding, SkeletonSource};
use crate::shapes::shape_text;
use crate::source_weights::SourceFiles;
use neap_onnx::{Bound, Need, OnnxError};
use neap_store::{PackedFile, StoreError};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Opens the packed form of the model at `path`, packing it where there is none that can be trusted. One packed form
/// serves all shapes.
pub(crate) fn open(
    path: &Path,
    options: &OpenOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Model> {
    let mut lookup = Lookup {
        home: Home::of(path)?,
        content: None,
        remarks: Vec::new(),
    };
    for candidate in lookup.candidates(options) {
        if let Some(model) = lookup.find(&candidate, options, progress)? {
            return Ok(lookup.told(model));
        }
    }
    let Found {
        source,
        believed,
        remarks,
    } = source(path, options)?;
    if believed.bindings.len() > options.bindings.len() {
        for candidate in lookup.candidates(&believed) {
            if let Some(model) = lookup.find(&candidate, &believed, progress)? {
                return Ok(lookup.told(model));
            }
        }
    }
    let options = &believed;
    if !pack::has_weights(&source.graph) {
        return model::open_bare(source, path, options, remarks);
    }
    let target = lookup.target(options)?;
    let provenance = Provenance {
        home: lookup.home.clone(),
        content: lookup.content.take(),
        used: source.used.clone(),
    };
    write(source, provenance, &target, options, progress)?;
    let mut model = model::open_packed(&target, true, options)?;
    // Another process may have packed it meanwhile, for other shapes first.
    model.bind_as(options, false)?;
    Ok(lookup.told(model))
}

/// Packs the model at `path` into a file that the user names.
pub(crate) fn pack_to(
    path: &Path,
    target: &Path,
    options: &OpenOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<PackReport> {
    let Found {
        source,
        believed,
        remarks,
    } = source(path, options)?;
    if !pack::has_weights(&source.graph) {
        return Err(pack::no_weights(&path.display()));
    }
    let provenance = Provenance {
        home: Home::of(path)?,
        content: None,
        used: source.used.clone(),
    };
    let errors = write(source, provenance, target, &believed, progress)?;
    Ok(PackReport { errors, remarks })
}

/// Of the user's cache directory.
pub(crate) fn user_folder() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(base.join("neaptide"))
}

/// A model's structure, with its files open.
struct Found {
    source: pack::Source,
    /// With the hints that had to be believed: shapes where dimensions are open, values where shapes depend on them.
    believed: OpenOptions,
    /// What the user should hear of it.
    remarks: Vec<String>,
}

fn source(path: &Path, options: &OpenOptions) -> Result<Found> {
    let mut believed = options.clone();
    // What the options and the data say comes first.
    let mut batch = None;
    let mut believes_data = false;
    let mut unbounded: Option<OnnxError> = None;
    loop {
        let error = match source_bound(path, &believed, batch) {
            Ok((source, unsaid_batches)) => {
                let remark = model::unsaid_text(&unsaid_batches, batch);
                return Ok(Found {
                    source,
                    believed,
                    remarks: remark.into_iter().collect(),
                });
            }
            Err(error) => error,
        };
        let has_more = match &error {
            OnnxError::DynamicInput { .. } if !believed.shape_hints.is_empty() => {
                believed = believed.with_shape_hints();
                believes_data = true;
                true
            }
            OnnxError::DynamicInput { .. } if batch != believed.open_batch => {
                batch = believed.open_batch;
                true
            }
            OnnxError::DynamicInput { input, .. } => {
                return Err(with_example(path, &believed, input, error.to_string()));
            }
            OnnxError::DynamicShape { inputs, .. } | OnnxError::Unbounded { inputs, .. } => {
                believe(&mut believed, inputs)
            }
            OnnxError::BadNode { .. } | OnnxError::Graph(_)
                if believes_data && unbounded.is_none() =>
            {
                return Err(of_these_data(path, options, error));
            }
            _ => false,
        };
        // Where values do not help, a bound does.
        if !has_more {
            return Err(unbounded.unwrap_or(error).into());
        }
        if matches!(error, OnnxError::Unbounded { .. }) {
            unbounded.get_or_insert(error);
        }
    }
}

/// Entries of a model's metadata, some of which are new or replaced.
fn with(mut metadata: Vec<(String, String)>, new: &[(String, String)]) -> Vec<(String, String)> {
    metadata.retain(|(key, _)| new.iter().all(|(other, _)| other != key));
    metadata.extend_from_slice(new);
    metadata
}

/// Binds the values of these inputs that are at hand, and says whether there are any.
fn believe(options: &mut OpenOptions, inputs: &[String]) -> bool {
    let known = options.bindings.len();
    for name in inputs {
        if let Some(value) = options.value_hints.remove(name) {
            options.bindings.entry(name.clone()).or_insert(value);
        }
    }
    options.bindings.len() > known
}

/// An error of a model in the shapes of the data at hand, with a shape for the first input of them that would do.
fn of_these_data(path: &Path, options: &OpenOptions, error: OnnxError) -> Error {
    let onnx = model::onnx_options(options);
    let mut hinted = options.shape_hints.keys();
    let found = hinted.find_map(|input| {
        let example = neap_onnx::example(path, &onnx, input)?;
        (options.shape_hints[input] != example).then(|| (input.clone(), example))
    });
    let Some((input, example)) = found else {
        return error.into();
    };
    let shape = shape_text(&options.shape_hints[&input]);
    Error::Unbound {
        text: format!("with input '{input}' of shape {shape}: {error}"),
        need: Need::Shape {
            input,
            example: Some(example),
        },
    }
}

/// The question for an input's shape, with one that would do.
fn with_example(path: &Path, options: &OpenOptions, input: &str, text: String) -> Error {
    let example = neap_onnx::example(path, &model::onnx_options(options), input);
    let input = input.to_string();
    Error::Unbound {
        text,
        need: Need::Shape { input, example },
    }
}

/// The structure, and the inputs for which a batch was taken.
fn source_bound(
    path: &Path,
    options: &OpenOptions,
    batch: Option<usize>,
) -> std::result::Result<(pack::Source, Vec<String>), OnnxError> {
    let onnx = neap_onnx::OpenOptions {
        leave_weights: true,
        unsaid: package::unsaid(batch),
        ..model::onnx_options(options)
    };
    let bind = || {
        let skeleton = neap_onnx::Skeleton::open(path)?;
        let inputs = skeleton.inputs().clone();
        let metadata = skeleton.metadata().to_vec();
        let mut onnx = onnx.clone();
        for (name, shape) in inputs.scalars_given(&options.shape_hints) {
            if !onnx.bindings.contains_key(&name) {
                onnx.shapes.entry(name).or_insert(shape);
            }
        }
        let shapes = inputs.shapes(&onnx)?;
        Ok((skeleton.bind(&onnx)?, inputs, metadata, shapes))
    };
    let (bound, inputs, metadata, shapes) =
        identity::settled(bind, |(bound, ..): &(Bound, _, _, _)| {
            identity::fresh(bound.open.iter().flatten())
        })?;
    let unsaid_batches = inputs.unsaid_batches(&onnx)?;
    let source = pack::Source {
        graph: bound.graph,
        files: SourceFiles::of(bound.open),
        skeleton: Some(SkeletonSource {
            inputs,
            metadata: with(metadata, &options.metadata),
            files: bound.files,
            read: bound.read,
            stored: bound.stored,
        }),
        binding: Binding {
            shapes,
            values: onnx.bindings,
            size_bounds: onnx.size_bounds,
        },
        used: bound.external,
    };
    Ok((source, unsaid_batches))
}

fn write(
    source: pack::Source,
    provenance: Provenance,
    target: &Path,
    options: &OpenOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<WeightError>> {
    options.host.trim();
    let packing = options.packing();
    let errors = pack::write(source, Some(&provenance), target, &packing, progress)?;
    options.host.trim();
    Ok(errors)
}

/// A search for a packed form of one model.
struct Lookup {
    home: Home,
    /// The source is read at most once.
    content: Option<Content>,
    /// What the user should hear.
    remarks: Vec<String>,
}

impl Lookup {
    /// Where packed forms may lie, the preferred first.
    fn candidates(&self, options: &OpenOptions) -> Vec<PathBuf> {
        match &options.cache {
            Cache::Folder(folder) => vec![folder.join(self.name(options, true))],
            Cache::Auto => {
                let user = user_folder().map(|folder| folder.join(self.name(options, true)));
                let beside = self.home.folder().join(self.name(options, false));
                std::iter::once(beside).chain(user).collect()
            }
        }
    }

    /// Where the packed form is to be written.
    fn target(&self, options: &OpenOptions) -> Result<PathBuf> {
        let make = |folder: &Path| {
            fs::create_dir_all(folder)?;
            Ok::<_, std::io::Error>(folder.join(self.name(options, true)))
        };
        let folder = match &options.cache {
            Cache::Folder(folder) => {
                return make(folder).map_err(|e| {
                    let folder = folder.display();
                    Error::BadInput(format!("cannot create the cache folder {folder}: {e}"))
                });
            }
            Cache::Auto if is_writable(self.home.folder()) => {
                return Ok(self.home.folder().join(self.name(options, false)));
            }
            Cache::Auto => user_folder(),
        };
        let beside = self.home.folder().display();
        let Some(folder) = folder else {
            return Err(Error::BadInput(format!(
                "{beside} cannot be written and there is no home directory: give --cache-dir"
            )));
        };
        make(&folder).map_err(|e| {
            let folder = folder.display();
            Error::BadInput(format!(
                "{beside} cannot be written and {folder} cannot be made ({e}): give --cache-dir"
            ))
        })
    }

    /// A folder of its own holds one model of a name, other folders hold those of many paths. Rounded weights are another
    /// file.
    fn name(&self, options: &OpenOptions, is_shared: bool) -> OsString {
        let mut name = short(self.home.model().file_name().unwrap_or_default());
        if options.weights != WeightFormats::Exact {
            name.push(format!(".{}", options.weights));
        }
        match is_shared {
            false => name.push(".cached.neap"),
            true => name.push(format!(".{}.neap", digits(self.home.model().as_os_str()))),
        }
        name
    }

    /// Opens `path` if it is a packed form of the model as it is now.
    fn find(
        &mut self,
        path: &Path,
        options: &OpenOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<Model>> {
        let mut file = match PackedFile::open_own(path) {
            Ok(file) => file,
            Err(StoreError::Version { .. }) => return Ok(None),
            Err(StoreError::File { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                return Ok(None);
            }
            Err(error @ StoreError::Memory { .. }) => return Err(error.into()),
            Err(error) => return Ok(self.again(packed_error(path, &error))),
        };
        if !package::is_of_this_build(file.toc()) {
            return Ok(None);
        }
        let Some(origin) = Origin::read(file.toc()) else {
            return Ok(self.again(format!("{} does not say its origin", path.display())));
        };
        if !self.is_current(&mut file, &origin, progress) {
            return Ok(None);
        }
        let packed = Packed {
            path: path.to_path_buf(),
            is_cached: true,
        };
        match Model::of(packed, file, options) {
            // Shapes that it does not take, or needs more for, are a matter of the source.
            Ok(mut model) => Ok(model.bind_as(options, false).is_ok().then_some(model)),
            Err(Error::BadInput(reason)) => Ok(self.again(reason)),
            Err(error) => Err(error),
        }
    }

    /// Whether a packed file with this origin is of the source as it is now. One that is, under another identity,
    /// is stamped with that.
    fn is_current(
        &mut self,
        file: &mut PackedFile,
        origin: &Origin,
        progress: &mut dyn FnMut(Progress),
    ) -> bool {
        if identity::is_trusted(file.stamp(), self.home.stamp(&origin.external)) {
            return true;
        }
        if self
            .content
            .as_ref()
            .is_none_or(|c| c.external != origin.external)
        {
            // Where the source cannot be read, packing says why.
            self.content = self.home.content(&origin.external, progress).ok().flatten();
        }
        let Some(content) = self.content.as_ref().filter(|c| c.digest == origin.digest) else {
            return false;
        };
        if file.stamp() != Some(content.stamp)
            && let Err(error) = file.restamp(content.stamp)
        {
            self.remarks.push(format!(
                "{error}: the model is hashed each time that it is opened; --cache-dir avoids that"
            ));
        }
        true
    }

    fn again(&mut self, reason: String) -> Option<Model> {
        self.remarks
            .push(format!("{reason}: packing the model again"));
        None
    }

    fn told(&mut self, mut model: Model) -> Model {
        model.remarks.append(&mut self.remarks);
        model
    }
}

/// File systems allow 255 bytes. A packed model's name has an ending after this, and while it is written one more.
const MOST_NAME_BYTES: usize = 180;
const DIGEST_DIGITS: usize = 16;

/// A long name ends with a digest of the whole. It is longer than any that is kept, so it is no other model's name.
fn short(name: &OsStr) -> OsString {
    let bytes = name.as_bytes();
    if bytes.len() <= MOST_NAME_BYTES {
        return name.into();
    }
    let is_within_character = |at: usize| bytes[at] & 0xc0 == 0x80;
    // Longer also where it is cut at the beginning of a character of four bytes.
    let least = MOST_NAME_BYTES - DIGEST_DIGITS;
    let end = (least..least + 4).find(|&at| !is_within_character(at));
    let mut short = OsStr::from_bytes(&bytes[..end.unwrap_or(least)]).to_os_string();
    short.push(format!(".{}", digits(name)));
    short
}

fn digits(of: &OsStr) -> String {
    blake3::hash(of.as_bytes()).to_hex()[..DIGEST_DIGITS].into()
}

fn is_writable(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_become_short_and_nobody_elses() {
        let kept = "a".repeat(MOST_NAME_BYTES);
        assert_eq!(short(OsStr::new(&kept)), OsStr::new(&kept));
        let not_utf8 = OsStr::from_bytes(b"m\xff.onnx");
        assert_eq!(short(not_utf8), not_utf8);
        for character in ["a", "é", "€", "𝄞"] {
            for before in ["", "x", "xx", "xxx"] {
                let name = format!("{before}{}", character.repeat(250 / character.len()));
                let (one, other) = (format!("{name}1"), format!("{name}2"));
                let made = [one, other].map(|name| short(OsStr::new(&name)));
                assert_ne!(made[0], made[1]);
                let text = made[0].to_str().expect("whole characters");
                assert!(text.len() > MOST_NAME_BYTES && text.len() < MOST_NAME_BYTES + 5);
            }
        }
    }
}
