//! What the files of `--input` and `--bind` say before the model is opened: shapes of inputs, and values of small
//! ones. They matter where the model leaves dimensions open or lets values decide shapes.

use super::{ImageOptions, has_extension, name_and_file, npy, npz, open_file, photo, photos, wav};
use crate::failure::{Outcome, bad};
use neap_picture::{ENDINGS, Recipe};
use neaptide::{Declared, Literal};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::BufReader;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What decides shapes is small. Larger arrays are not read here.
const MAX_VALUE_BYTES: usize = 64 * 1024;

/// An array in a file: its shape and, when it is small, its value.
pub(super) struct Glance {
    pub shape: Vec<usize>,
    pub value: Option<Literal>,
}

/// By input.
#[derive(Default)]
pub struct Hints {
    pub shapes: BTreeMap<String, Vec<usize>>,
    pub values: BTreeMap<String, Literal>,
}

/// Hints from the files that `--input` names, for the inputs of `model` that `bound` does not name. What cannot be read is
/// left to [`super::load`], which says why.
pub fn hints(
    model: &Path,
    bound: &[(String, PathBuf)],
    given: &[OsString],
    image: &ImageOptions,
) -> Hints {
    let declared = declared(model, given);
    let is_bound = |input: &Declared| bound.iter().any(|(name, _)| *name == input.name);
    let free: Vec<&Declared> = declared.iter().filter(|input| !is_bound(input)).collect();
    let mut hints = Hints::default();
    for text in given {
        let (name, path) = named(text, &declared);
        // A file that says no name is for the only input.
        let only = match &free[..] {
            [only] => Some(only.name.as_str()),
            _ => None,
        };
        if has_extension(path, &["npz"]) {
            let arrays = npz::glance(path, MAX_VALUE_BYTES).unwrap_or_default();
            for (member, array) in arrays {
                // A named input takes the member of its name.
                if name.is_none_or(|name| name == member) {
                    hints.add(member, array);
                }
            }
        } else if let (Some(name), true) = (name.or(only), has_extension(path, &["npy"]))
            && let Ok(file) = open_file(path)
            && let Ok(array) = npy::glance(&mut BufReader::new(file), MAX_VALUE_BYTES)
        {
            hints.add(name.to_string(), array);
        } else if let (Some(name), true) = (name.or(only), has_extension(path, &["wav"]))
            && let Ok(file) = open_file(path)
            && let Some(input) = declared.iter().find(|input| input.name == name)
            && let Some(shape) = wav::shape(BufReader::new(file), input)
        {
            hints.shapes.insert(name.to_string(), shape);
        } else if let (Some(name), Some(photo)) = (name.or(only), photo_at(path))
            && let Some(input) = declared.iter().find(|input| input.name == name)
            && let Some(shape) = photo::shape(&photo, input, image.layout, size_of(model))
        {
            hints.shapes.insert(name.to_string(), shape);
        }
    }
    hints
}

/// A photo, or the first one of a folder.
fn photo_at(path: &Path) -> Option<PathBuf> {
    match path.is_dir() {
        true => photos::in_folder(path).ok()?.into_iter().next(),
        false => has_extension(path, ENDINGS).then(|| path.into()),
    }
}

fn path_of(text: &OsStr) -> &Path {
    name_and_file(text).map_or(Path::new(text), |(_, path)| path)
}

/// The size of pictures that the model says it was trained with.
fn size_of(model: &Path) -> Option<[usize; 2]> {
    let about = neaptide::signature(model).ok()?.about;
    Recipe::of_metadata(&about.metadata).ok()??.size
}

/// The model's inputs, where files say too little without.
fn declared(model: &Path, given: &[OsString]) -> Vec<Declared> {
    let says_all = |text: &OsString| {
        let whole = Path::new(text);
        let marks = text.as_bytes().iter().filter(|&&byte| byte == b'=');
        let is_named = marks.count() == 1 && !whole.exists();
        let is_array = !has_extension(path_of(text), &["wav"]) && photo_at(path_of(text)).is_none();
        has_extension(whole, &["npz"]) || is_named && is_array
    };
    match given.iter().all(says_all) {
        true => Vec::new(),
        // What is wrong with the model is said when it is opened.
        false => neaptide::declared_inputs(model).unwrap_or_default(),
    }
}

/// Which input a file is for, where it says so. A name may contain '=', a path too: the longest known name wins.
fn named<'a>(text: &'a OsStr, declared: &'a [Declared]) -> (Option<&'a str>, &'a Path) {
    let whole = Path::new(text);
    let known = declared.iter().filter_map(|input| {
        let path = (text.as_bytes()).strip_prefix(input.name.as_bytes())?;
        let path = OsStr::from_bytes(path.strip_prefix(b"=")?);
        Some((input.name.as_str(), Path::new(path)))
    });
    match known.max_by_key(|(name, _)| name.len()) {
        Some((name, path)) => (Some(name), path),
        None if whole.exists() => (None, whole),
        None => match name_and_file(text) {
            Some((name, path)) => (Some(name), path),
            None => (None, whole),
        },
    }
}

impl Hints {
    fn add(&mut self, name: String, array: Glance) {
        if let Some(value) = array.value {
            self.values.insert(name.clone(), value);
        }
        self.shapes.insert(name, array.shape);
    }
}

/// The values that `--bind NAME=FILE.npy` gives.
pub fn bindings(given: &[(String, PathBuf)]) -> Outcome<BTreeMap<String, Literal>> {
    let mut bindings = BTreeMap::new();
    for (name, path) in given {
        let fails = |e: String| bad(format!("--bind {name}: {}: {e}", path.display()));
        let file = open_file(path).map_err(fails)?;
        let array = npy::glance(&mut BufReader::new(file), MAX_VALUE_BYTES).map_err(fails)?;
        let value = array.value.ok_or_else(|| {
            fails(format!(
                "has more than the {MAX_VALUE_BYTES} bytes that can be bound"
            ))
        })?;
        if bindings.insert(name.clone(), value).is_some() {
            return Err(bad(format!("--bind is given twice for input '{name}'")));
        }
    }
    Ok(bindings)
}
