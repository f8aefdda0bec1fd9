//! From `--input` options to tensors: which file feeds which input, and what is made up.
//!
//! ```text
//!   .npy          one array            .jpg .png .webp .bmp   decoded, resized, normalised: neap_picture
//!   .npz          arrays by name       .bin                   the tensor's bytes as they are
//!   16000         a number             .wav                   samples from -1 to 1
//!                                      (none)                 seeded random
//! ```
//! Several photos, or a folder of them, are one batch after another.

mod convert;
mod hints;
mod image;
mod literal;
mod npy;
mod npz;
mod photo;
mod photos;
mod random;
mod wav;

pub use hints::{bindings, hints};
pub use image::ImageOptions;
pub use photos::{Photos, labels};

use crate::failure::{Failure, Outcome, bad};
use neap_picture::{ENDINGS, Recipe};
use neaptide::{BoundInput, Bytes, Model, TensorInfo, shape_text};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Everything that decides what goes into a model.
pub struct Settings<'a> {
    /// `NAME=FILE`, or `FILE` alone where that is enough.
    pub given: &'a [OsString],
    pub image: &'a ImageOptions,
    /// Of random inputs.
    pub seed: u64,
    /// The most memory that decoding an image may take.
    pub decode_limit_bytes: Option<u64>,
}

/// A model's inputs in its order, as row-major little-endian bytes; and remarks for the user.
pub struct Inputs {
    pub tensors: Vec<Vec<u8>>,
    pub remarks: Vec<String>,
    /// Names of those that got random values.
    pub made_up: Vec<String>,
    /// Where one input is for more photos than it takes at once, or fewer.
    pub photos: Option<Photos>,
}

/// What is wrong with a file.
#[derive(Debug)]
pub enum Trouble {
    Bad(String),
    /// Reading it takes more memory than the budget leaves.
    TooLarge(String),
}

impl<T: Into<String>> std::convert::From<T> for Trouble {
    fn from(text: T) -> Trouble {
        Trouble::Bad(text.into())
    }
}

impl Trouble {
    /// The same, and where it is.
    fn at(self, place: impl std::fmt::Display) -> Trouble {
        match self {
            Trouble::Bad(text) => Trouble::Bad(format!("{place}: {text}")),
            Trouble::TooLarge(text) => Trouble::TooLarge(format!("{place}: {text}")),
        }
    }
}

impl std::convert::From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        match trouble {
            Trouble::Bad(text) => bad(text),
            Trouble::TooLarge(text) => Failure::Infeasible(text),
        }
    }
}

/// Where one input comes from.
enum From {
    File(PathBuf),
    /// Of one batch after another.
    Photos(Vec<PathBuf>),
    /// Numbers as they were written.
    Literal(String),
    /// A member of an `.npz`.
    Member(PathBuf, String),
}

/// The inputs of `model`. Files may be given for bound ones, too, and must then hold the value in force.
pub fn load(model: &Model, settings: &Settings) -> Outcome<Inputs> {
    let mut infos = model.inputs();
    let free = infos.len();
    infos.extend(model.bound().iter().map(bound_info));
    let mut sources: Vec<Option<From>> = infos.iter().map(|_| None).collect();
    for text in settings.given {
        assign(text, &infos, free, &mut sources)?;
    }
    let recipe = settings.image.of_model(model.metadata())?;
    for (bound, source) in model.bound().iter().zip(sources.drain(free..)) {
        if let Some(source) = source {
            check_bound(bound, &source, settings, &recipe)?;
        }
    }
    infos.truncate(free);
    let made_up = infos.iter().zip(&sources).filter(|(_, s)| s.is_none());
    let made_up: Vec<String> = made_up.map(|(i, _)| i.name.clone()).collect();
    // Outputs of some real inputs and some random ones look real, and are not.
    if let (false, [missing, ..]) = (settings.given.is_empty(), made_up.as_slice()) {
        return Err(bad(format!(
            "no values for {}: give --input {missing}=FILE, too, or no --input at all for random values",
            made_up.join(", ")
        )));
    }
    let mut inputs = Inputs {
        tensors: Vec::with_capacity(infos.len()),
        remarks: Vec::new(),
        made_up,
        photos: None,
    };
    for (index, (info, source)) in infos.iter().zip(&sources).enumerate() {
        let tensor = match source {
            None => random::tensor(info, settings.seed, index).map_err(Trouble::Bad),
            Some(From::Photos(files)) => {
                let photos = Photos::open(index, info, files, &recipe, settings)?;
                let first = photos.batch(0);
                inputs.photos = Some(photos);
                first
            }
            Some(source) => read(source, info, settings, &recipe, &mut inputs.remarks),
        };
        let tensor = tensor.map_err(|e| e.at(format_args!("input '{}'", info.name)))?;
        inputs.tensors.push(tensor);
    }
    if !inputs.made_up.is_empty() {
        let names = inputs.made_up.join(", ");
        let seed = settings.seed;
        inputs
            .remarks
            .push(format!("random values with seed {seed} for {names}"));
    }
    Ok(inputs)
}

/// Of `NAME=FILE`, where nothing is known of the model's names yet. Names are UTF-8; files need not be.
pub fn name_and_file(given: &OsStr) -> Option<(&str, &Path)> {
    let bytes = given.as_bytes();
    let end = bytes.iter().rposition(|&b| b == b'=')?;
    let name = std::str::from_utf8(&bytes[..end]).ok()?;
    Some((name, Path::new(OsStr::from_bytes(&bytes[end + 1..]))))
}

fn bound_info(bound: &BoundInput) -> TensorInfo {
    TensorInfo {
        name: bound.name.clone(),
        ty: bound.value.ty(),
    }
}

/// Whether a file holds the value that an input is bound to.
fn check_bound(bound: &BoundInput, source: &From, settings: &Settings, recipe: &Recipe) -> Outcome {
    let name = &bound.name;
    let found = read(
        source,
        &bound_info(bound),
        settings,
        recipe,
        &mut Vec::new(),
    );
    let found = found.map_err(|e| e.at(format_args!("input '{name}', which is bound")))?;
    if found != bound.value.bytes() {
        return Err(bad(format!(
            "input '{name}' was bound to another value when the model was packed: run the .onnx, or pack it \
             again with --bind"
        )));
    }
    Ok(())
}

/// Gives the file of one option to the input (or inputs) that it is for. The first `free` are not bound.
fn assign(
    text: &OsStr,
    infos: &[TensorInfo],
    free: usize,
    sources: &mut [Option<From>],
) -> Outcome {
    // A name may contain '=', a path too: the longest known name wins.
    let named = infos
        .iter()
        .enumerate()
        .filter_map(|(i, info)| {
            let path = text.as_bytes().strip_prefix(info.name.as_bytes())?;
            Some((i, OsStr::from_bytes(path.strip_prefix(b"=")?)))
        })
        .max_by_key(|(i, _)| infos[*i].name.len());
    let mut set = |index: usize, source: From| {
        let is_twice = match (&mut sources[index], source) {
            // Another photo is another sample.
            (Some(From::Photos(all)), From::Photos(more)) => {
                all.extend(more);
                false
            }
            (place, source) => place.replace(source).is_some(),
        };
        match is_twice {
            true => Err(bad(format!("input '{}' is given twice", infos[index].name))),
            false => Ok(()),
        }
    };
    if let Some((index, path)) = named {
        let path = PathBuf::from(path);
        if has_extension(&path, &["npz"]) {
            let name = infos[index].name.clone();
            let member = npz::member_for(&path, &name)
                .map_err(|e| bad(format!("input '{name}': {}: {e}", path.display())))?;
            return set(index, From::Member(path, member));
        }
        return set(index, source_of(path, &infos[index])?);
    }
    let path = PathBuf::from(text);
    if !path.exists()
        && let Some(end) = text.as_bytes().iter().position(|&b| b == b'=')
    {
        return Err(bad(format!(
            "the model has no input '{}'; it has {}",
            OsStr::from_bytes(&text.as_bytes()[..end]).display(),
            names(infos)
        )));
    }
    if has_extension(&path, &["npz"]) {
        let members = npz::members(&path).map_err(|e| bad(format!("{}: {e}", path.display())))?;
        for member in members {
            let index = infos.iter().position(|i| i.name == member).ok_or_else(|| {
                bad(format!(
                    "{} has an array '{member}', the model has no such input; it has {}",
                    path.display(),
                    names(infos)
                ))
            })?;
            set(index, From::Member(path.clone(), member))?;
        }
        return Ok(());
    }
    if free != 1 {
        let text = text.display();
        return Err(bad(format!(
            "--input {text} does not say for which input it is: write NAME={text}; the model has {}",
            names(infos)
        )));
    }
    set(0, source_of(path, &infos[0])?)
}

/// A file, photos, or a number.
fn source_of(path: PathBuf, info: &TensorInfo) -> Outcome<From> {
    if path.is_dir() {
        let found = photos::in_folder(&path);
        return Ok(From::Photos(found.map_err(|e| {
            bad(format!("input '{}': {}: {e}", info.name, path.display()))
        })?));
    }
    if has_extension(&path, ENDINGS) {
        return Ok(From::Photos(vec![path]));
    }
    let text = path.to_str().filter(|text| literal::is_one(text));
    match text.filter(|_| !path.exists()) {
        Some(text) => Ok(From::Literal(text.into())),
        None => Ok(From::File(path)),
    }
}

/// Refuses names that the model has not, before anything is packed. What cannot be known yet is left to [`load`].
pub fn check_names(given: &[OsString], model: &Path) -> Outcome {
    let Ok(signature) = neaptide::signature(model) else {
        return Ok(());
    };
    let known: Vec<&str> = signature.inputs.iter().map(|i| i.name.as_str()).collect();
    let starts = |text: &OsStr, name: &str| {
        let rest = text.as_bytes().strip_prefix(name.as_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&b'='))
    };
    for text in given {
        let is_named = text.as_bytes().contains(&b'=') && !Path::new(text).exists();
        if is_named && !known.iter().any(|name| starts(text, name)) {
            let known: Vec<String> = known.iter().map(|name| format!("'{name}'")).collect();
            let end = text.as_bytes().iter().position(|&b| b == b'=');
            let name = OsStr::from_bytes(&text.as_bytes()[..end.unwrap_or(0)]);
            return Err(bad(format!(
                "the model has no input '{}'; it has {}",
                name.display(),
                if known.is_empty() {
                    "none".into()
                } else {
                    known.join(", ")
                }
            )));
        }
    }
    Ok(())
}

fn read(
    source: &From,
    info: &TensorInfo,
    settings: &Settings,
    recipe: &Recipe,
    remarks: &mut Vec<String>,
) -> Result<Vec<u8>, Trouble> {
    let (path, member) = match source {
        From::File(path) => (path, None),
        From::Member(path, member) => (path, Some(member.as_str())),
        From::Literal(text) => return Ok(literal::tensor(text, info)?),
        From::Photos(files) => match &files[..] {
            [one] => (one, None),
            _ => return Err("is given twice".into()),
        },
    };
    let read = read_file(path, member, info, settings, recipe, remarks);
    read.map_err(|e| e.at(path.display()))
}

fn read_file(
    path: &Path,
    member: Option<&str>,
    info: &TensorInfo,
    settings: &Settings,
    recipe: &Recipe,
    remarks: &mut Vec<String>,
) -> Result<Vec<u8>, Trouble> {
    let file = open_file(path)?;
    let _cache = DropCache(file.as_raw_fd());
    let (tensor, remark) = if let Some(member) = member {
        npz::read(&file, member, info)?
    } else if has_extension(path, &["npy"]) {
        npy::read(&mut BufReader::new(&file), info)?
    } else if has_extension(path, &["bin", "raw"]) {
        (raw(&file, info)?, None)
    } else if has_extension(path, ENDINGS) {
        let limit = settings.decode_limit_bytes;
        (image::read(&file, info, recipe, limit)?, None)
    } else if has_extension(path, &["wav"]) {
        wav::read(BufReader::new(&file), info)?
    } else {
        let photos = ENDINGS.join(", .");
        return Err(format!("has no known ending: .npy, .npz, .bin, .wav, .{photos}").into());
    };
    remarks.extend(remark.map(|r| format!("input '{}': {r}", info.name)));
    Ok(tensor)
}

/// A regular file: opening a pipe would wait for somebody who writes to it, and it can be read only once.
fn open_file(path: &Path) -> Result<File, String> {
    let found = std::fs::metadata(path).map_err(|e| e.to_string())?;
    match (found.is_file(), found.is_dir()) {
        (_, true) => Err("is a folder".into()),
        (false, _) => Err("is not a regular file".into()),
        (true, _) => File::open(path).map_err(|e| e.to_string()),
    }
}

/// Room for a tensor of so many bytes, nothing of it touched.
fn room(bytes: usize) -> Result<Vec<u8>, String> {
    let mut tensor = Vec::new();
    tensor
        .try_reserve_exact(bytes)
        .map_err(|_| format!("there is no memory for its {}", Bytes(bytes as u64)))?;
    Ok(tensor)
}

/// A tensor for an output.
pub fn zeros(info: &TensorInfo) -> Result<Vec<u8>, String> {
    let failed = |e: String| format!("output '{}': {e}", info.name);
    let mut tensor = room(info.len_bytes()).map_err(failed)?;
    tensor.resize(info.len_bytes(), 0);
    Ok(tensor)
}

fn raw(file: &File, info: &TensorInfo) -> Result<Vec<u8>, String> {
    let found = file.metadata().map_err(|e| e.to_string())?.len();
    let wanted = info.len_bytes();
    if found != wanted as u64 {
        return Err(format!(
            "has {found} bytes, {} {} has {wanted}",
            info.ty.dtype,
            shape_text(&info.ty.shape)
        ));
    }
    let mut tensor = room(wanted)?;
    tensor.resize(wanted, 0);
    let mut file = file;
    file.read_exact(&mut tensor).map_err(|e| e.to_string())?;
    Ok(tensor)
}

/// Pages of the file that were read are charged to the budget; this gives them back.
struct DropCache(i32);

impl Drop for DropCache {
    fn drop(&mut self) {
        // SAFETY: advice about a descriptor; it is open, since the file outlives this guard.
        unsafe { libc::posix_fadvise(self.0, 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
}

fn has_extension(path: &Path, known: &[&str]) -> bool {
    path.extension()
        .is_some_and(|e| known.iter().any(|k| e.eq_ignore_ascii_case(k)))
}

fn names(infos: &[TensorInfo]) -> String {
    if infos.is_empty() {
        return "none".into();
    }
    let names: Vec<_> = infos.iter().map(|i| format!("'{}'", i.name)).collect();
    names.join(", ")
}
