//! What the files of `--input` and `--bind` say before the model is opened: shapes of inputs, and values of small
//! ones. They matter where the model leaves dimensions open or lets values decide shapes.

use super::{has_extension, name_and_file, npy, npz, open_file};
use crate::failure::{Outcome, bad};
use neaptide::Literal;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::BufReader;
use std::path::Path;

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

/// Hints from the files that `--input` names. What cannot be read is left to [`super::load`], which says why.
pub fn hints(given: &[OsString]) -> Hints {
    let mut hints = Hints::default();
    for text in given {
        let (name, path) = match name_and_file(text) {
            Some((name, path)) => (Some(name), path),
            None => (None, Path::new(text)),
        };
        if has_extension(path, &["npz"]) {
            let arrays = npz::glance(path, MAX_VALUE_BYTES).unwrap_or_default();
            for (member, array) in arrays {
                // A named input takes the member of its name.
                if name.is_none_or(|name| name == member) {
                    hints.add(member, array);
                }
            }
        } else if let (Some(name), true) = (name, has_extension(path, &["npy"]))
            && let Ok(file) = open_file(path)
            && let Ok(array) = npy::glance(&mut BufReader::new(file), MAX_VALUE_BYTES)
        {
            hints.add(name.to_string(), array);
        }
    }
    hints
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
pub fn bindings(given: &[(String, std::path::PathBuf)]) -> Outcome<BTreeMap<String, Literal>> {
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
