//! The folder of models.
//!
//! ```text
//!   FOLDER/NAME.onnx  FOLDER/NAME.neap      a model
//!   FOLDER/NAME/1/model.onnx                the same as Triton lays it out; of several versions the highest
//!   FOLDER/NAME.toml  FOLDER/NAME/NAME.toml its settings, if any
//! ```
//! A packed `NAME.neap` is used where there is no `NAME.onnx`. What was packed on first use of another is no model. A name
//! that is there in both layouts is none either, until one of them goes.

use crate::settings::Settings;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What is packed on first use is named `NAME.onnx.cached.neap`, or the like.
const CACHED: &str = ".cached";

/// A folder that holds models.
#[derive(Debug, Clone)]
pub struct Repository {
    /// `None`: none are served.
    folder: Option<PathBuf>,
}

/// A model in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: PathBuf,
    /// `1` but for folders of versions.
    pub version: String,
    settings: PathBuf,
    /// The same name in the other layout.
    rival: Option<PathBuf>,
}

impl Repository {
    /// # Errors
    /// One line, when it is no folder.
    pub fn open(folder: Option<&Path>) -> Result<Repository, String> {
        let Some(folder) = folder else {
            return Ok(Repository { folder: None });
        };
        match folder.metadata() {
            Ok(metadata) if metadata.is_dir() => Ok(Repository {
                folder: Some(folder.to_path_buf()),
            }),
            Ok(_) => Err(format!("{} is no folder of models", folder.display())),
            Err(error) => Err(format!("cannot open {}: {error}", folder.display())),
        }
    }

    /// Every model, by name, as the folder is now.
    ///
    /// # Errors
    /// One line, when the folder cannot be read.
    pub fn entries(&self) -> Result<BTreeMap<String, Entry>, String> {
        let mut found: BTreeMap<String, Entry> = BTreeMap::new();
        let Some(folder) = &self.folder else {
            return Ok(found);
        };
        let cannot = |error| format!("cannot read {}: {error}", folder.display());
        for file in std::fs::read_dir(folder).map_err(cannot)? {
            let path = file.map_err(cannot)?.path();
            let Some((name, entry)) = entry(folder, &path) else {
                continue;
            };
            match found.remove(&name) {
                None => found.insert(name, entry),
                Some(known) => found.insert(name, known.beside(entry)),
            };
        }
        Ok(found)
    }
}

impl Entry {
    pub fn settings_path(&self) -> &Path {
        &self.settings
    }

    /// # Errors
    /// As [`Settings::read`]; one line for a name that two models have.
    pub fn settings(&self) -> Result<Settings, String> {
        match &self.rival {
            None => Settings::read(&self.settings),
            Some(rival) => Err(format!(
                "two models have this name, {} and {}: remove one of them",
                self.path.display(),
                rival.display()
            )),
        }
    }

    /// Of two with the same name the one that is used: the `.onnx` of two files. Two layouts are rivals.
    fn beside(self, other: Entry) -> Entry {
        let (mut first, mut second) = match self.path <= other.path {
            true => (self, other),
            false => (other, self),
        };
        let rivals = [first.rival.take(), second.rival.take()];
        let is_beside = first.path.parent() == second.path.parent();
        let is_source = |entry: &Entry| entry.path.extension().is_some_and(|e| e == "onnx");
        let (mut used, left) = match is_source(&first) || !is_beside {
            true => (first, second),
            false => (second, first),
        };
        used.rival = match is_beside {
            true => rivals.into_iter().flatten().next(),
            false => Some(left.path),
        };
        used
    }
}

/// The model at `path`, if it is one with a name that can be asked for.
fn entry(folder: &Path, path: &Path) -> Option<(String, Entry)> {
    if path.is_dir() {
        let name = path.file_name()?.to_str().filter(|n| is_name(n))?;
        let (version, path_of_model) = newest(path)?;
        let entry = Entry {
            path: path_of_model,
            version: version.to_string(),
            settings: path.join(format!("{name}.toml")),
            rival: None,
        };
        return Some((name.to_string(), entry));
    }
    let extension = path.extension()?.to_str()?;
    if !["onnx", "neap"].contains(&extension) || !path.is_file() {
        return None;
    }
    let name = path.file_stem()?.to_str().filter(|n| is_name(n))?;
    if name.ends_with(CACHED) {
        return None;
    }
    let entry = Entry {
        path: path.to_path_buf(),
        version: "1".into(),
        settings: folder.join(format!("{name}.toml")),
        rival: None,
    };
    Some((name.to_string(), entry))
}

/// The highest version with a model in it.
fn newest(folder: &Path) -> Option<(u64, PathBuf)> {
    let versions = std::fs::read_dir(folder).ok()?.flatten();
    let versions = versions.filter_map(|e| e.file_name().to_str()?.parse::<u64>().ok());
    let models = versions.filter_map(|version| {
        let at = folder.join(version.to_string());
        let names = ["model.onnx", "model.neap"];
        let path = names.iter().map(|n| at.join(n)).find(|p| p.is_file())?;
        Some((version, path))
    });
    models.max()
}

/// Letters, digits, `_`, `-` and `.`, not first.
fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    name.len() <= 128 && !name.starts_with('.') && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn both_layouts_are_found_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in [
            "a.onnx",
            "a.neap",
            "a.onnx.cached.neap",
            "b.neap",
            "c.txt",
            ".hidden.onnx",
            "white space.onnx",
            "d/1/model.onnx",
            "d/2/model.onnx",
            "d/10/other.onnx",
            "e/model.onnx",
            "f.onnx.1",
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        fs::write(root.join("d/d.toml"), "urgency = 3.0").unwrap();
        let entries = Repository::open(Some(root)).unwrap().entries().unwrap();
        let names: Vec<&str> = entries.keys().map(String::as_str).collect();
        assert_eq!(names, ["a", "b", "d"]);
        assert_eq!(entries["a"].path, root.join("a.onnx"));
        assert_eq!(entries["d"].path, root.join("d/2/model.onnx"));
        assert_eq!(entries["d"].version, "2");
        assert_eq!(entries["d"].settings().unwrap().urgency, 3.0);
        assert_eq!(entries["a"].settings(), Ok(Settings::default()));
        // Whichever is found first.
        fs::create_dir_all(root.join("a/1")).unwrap();
        fs::write(root.join("a/1/model.onnx"), "").unwrap();
        fs::write(root.join("d.neap"), "").unwrap();
        let entries = Repository::open(Some(root)).unwrap().entries().unwrap();
        for (name, paths) in [
            ("a", ["a.onnx", "a/1/model"]),
            ("d", ["d.neap", "d/2/model"]),
        ] {
            let reason = entries[name].settings().unwrap_err();
            assert!(paths.iter().all(|path| reason.contains(path)), "{reason}");
        }
        assert!(entries["b"].settings().is_ok());
        assert!(Repository::open(Some(&root.join("a.onnx"))).is_err());
        assert!(Repository::open(Some(&root.join("nothing"))).is_err());
    }
}
