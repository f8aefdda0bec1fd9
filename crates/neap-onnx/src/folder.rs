//! Where a model's files lie: in the folder of the path that is given. A hub's cache has links there, to blobs that lie
//! elsewhere under other names.
//!
//! ```text
//!   snapshots/1/model.onnx      ─► blobs/5f2c…      looked for in the folder of the path, then of what it links to
//!   snapshots/1/model.onnx_data ─► blobs/a017…
//! ```

use std::io;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// The folders of a model.
#[derive(Debug, Clone)]
pub struct ModelFolder {
    model: PathBuf,
    /// Resolved: of the path that is given, then of each path that it links to.
    folders: Vec<PathBuf>,
}

impl ModelFolder {
    /// # Errors
    /// There is no such file.
    pub fn of(model: &Path) -> io::Result<ModelFolder> {
        let mut path = with_folder_resolved(model)?;
        let model = path.clone();
        let mut folders = Vec::new();
        for _ in 0..MOST_LINKS {
            let folder = path.parent().unwrap_or(Path::new("/")).to_path_buf();
            if !folders.contains(&folder) {
                folders.push(folder);
            }
            let Ok(target) = std::fs::read_link(&path) else {
                break;
            };
            path.set_file_name("");
            path = with_folder_resolved(&path.join(target))?;
        }
        model.metadata()?;
        Ok(ModelFolder { model, folders })
    }

    /// The path that was given, in its resolved folder. Other links to the same file are other models, as other data
    /// may lie beside them.
    pub fn model(&self) -> &Path {
        &self.model
    }

    /// Of the path that was given.
    pub fn path(&self) -> &Path {
        &self.folders[0]
    }

    /// The file of a model's external data. Where the model itself is a link, that file may be one to anywhere, too;
    /// else it lies inside the folder.
    ///
    /// # Errors
    /// Why there is none, as the end of a sentence.
    pub fn find(&self, location: &Path) -> Result<PathBuf, String> {
        let leaves = || "the path leaves the model's folder".to_string();
        let location = inside(location).ok_or_else(leaves)?;
        let mut missing = None;
        for folder in &self.folders {
            let path = folder.join(&location);
            let resolved = match path.canonicalize() {
                Ok(resolved) => resolved,
                Err(error) => {
                    missing.get_or_insert(error);
                    continue;
                }
            };
            if self.folders.len() == 1 && !resolved.starts_with(folder) {
                return Err(leaves());
            }
            if !resolved.is_file() {
                return Err("it is not a regular file".into());
            }
            return Ok(path);
        }
        let missing = missing.unwrap_or_else(|| io::ErrorKind::NotFound.into());
        Err(format!("the file cannot be opened: {missing}"))
    }

    /// Where in its folder a file lies that was found.
    pub fn location<'p>(&self, found: &'p Path) -> Option<&'p Path> {
        let mut folders = self.folders.iter();
        folders.find_map(|folder| found.strip_prefix(folder).ok())
    }
}

fn with_folder_resolved(path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return path.canonicalize();
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    Ok(folder.canonicalize()?.join(name))
}

/// The path without its dots; `None` for one that leaves the folder by its text.
fn inside(location: &Path) -> Option<PathBuf> {
    let mut inside = PathBuf::new();
    for component in location.components() {
        match component {
            Component::Normal(name) => inside.push(name),
            Component::CurDir => {}
            Component::ParentDir if inside.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!inside.as_os_str().is_empty()).then_some(inside)
}
