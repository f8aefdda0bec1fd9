//! Figures that long benchmarks leave, so that they can be measured part by part and put on one page.

use crate::bench;
use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A folder of figures, each in a file of its name.
pub struct Kept {
    folder: PathBuf,
    /// Figures of another one are not for this page.
    machine: String,
}

#[derive(Serialize, Deserialize)]
struct Entry<T> {
    machine: String,
    figures: T,
}

impl Kept {
    /// Those of a benchmark, below `target`.
    pub fn of(root: &Path, benchmark: &str) -> Result<Kept> {
        Kept::within(root.join("target").join(benchmark), bench::machine()?)
    }

    fn within(folder: PathBuf, machine: String) -> Result<Kept> {
        std::fs::create_dir_all(&folder)?;
        Ok(Kept { folder, machine })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Figures by their name; `None` where they were not measured on this machine.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.path(name);
        if !path.exists() {
            return Ok(None);
        }
        let entry: Entry<T> = serde_json::from_slice(&std::fs::read(&path)?)
            .with_context(|| format!("{} is not readable: remove it", path.display()))?;
        Ok((entry.machine == self.machine).then_some(entry.figures))
    }

    pub fn write<T: Serialize>(&self, name: &str, figures: T) -> Result<()> {
        let entry = Entry {
            machine: self.machine.clone(),
            figures,
        };
        let text = serde_json::to_vec_pretty(&entry)?;
        Ok(std::fs::write(self.path(name), text)?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_one_machine() {
        let folder = tempfile::tempdir().unwrap();
        let kept = |machine: &str| Kept::within(folder.path().into(), machine.into()).unwrap();
        kept("this").write("part", [1.5, 2.0]).unwrap();
        let read = |machine: &str, name: &str| kept(machine).read::<[f64; 2]>(name).unwrap();
        assert_eq!(read("this", "part"), Some([1.5, 2.0]));
        assert_eq!(read("this", "other"), None);
        assert_eq!(read("that", "part"), None);
        assert!(kept("this").read::<String>("part").is_err());
    }
}
