//! How a session is opened, as the Python half says it.

use crate::failure::{Stage, invalid, of_engine};
use neaptide::{Budget, Cache, CachedFile, OpenOptions, RunOptions};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Opening a model, and planning for it.
pub struct Options {
    pub open: OpenOptions,
    pub run: RunOptions,
}

/// `budget` as text or a number of bytes, `threads` 0 for all processors.
pub fn options(
    py: Python<'_>,
    budget: Option<&str>,
    threads: usize,
    cache_dir: Option<PathBuf>,
    exact: bool,
    shapes: BTreeMap<String, Vec<usize>>,
    bounds: BTreeMap<String, usize>,
    weights: Option<&str>,
) -> PyResult<Options> {
    let weights = weights.map(str::parse).transpose();
    let weights = weights.map_err(|e: String| invalid(py, format!("weights: {e}")))?;
    let mut run = RunOptions {
        budget: parsed(py, budget)?,
        exact,
        ..RunOptions::default()
    };
    if threads > 0 {
        run.threads = threads;
    }
    Ok(Options {
        open: OpenOptions {
            shapes,
            size_bounds: bounds,
            weights: weights.unwrap_or_default(),
            cache: cache_dir.map_or(Cache::Auto, Cache::Folder),
            ..OpenOptions::default()
        },
        run,
    })
}

/// `None` is no limit.
pub fn parsed(py: Python<'_>, budget: Option<&str>) -> PyResult<Budget> {
    let Some(text) = budget else {
        return Ok(Budget::Unlimited);
    };
    text.parse()
        .map_err(|e| invalid(py, format!("memory_budget: {e}")))
}

/// Whether a budget is one, for who passes it on as text.
#[pyfunction]
pub fn check_budget(py: Python<'_>, text: &str) -> PyResult<()> {
    parsed(py, Some(text)).map(drop)
}

/// Bounds for sizes that only the data say, from text such as `frames=500,boxes=9`.
#[pyfunction]
pub fn parse_bounds(py: Python<'_>, text: &str) -> PyResult<BTreeMap<String, usize>> {
    neaptide::parse_bounds(text).map_err(|e| invalid(py, e.to_string()))
}

/// Of bounds that are meant for several models those that this one has results for.
#[pyfunction]
pub fn known_bounds(
    py: Python<'_>,
    path: PathBuf,
    bounds: BTreeMap<String, usize>,
) -> PyResult<BTreeMap<String, usize>> {
    py.detach(|| neaptide::known_bounds(&path, bounds))
        .map_err(|e| of_engine(py, e, Stage::Opening))
}

/// A file of a cache: its path, and its bytes.
type Listed = (PathBuf, u64);

/// The files of the cache in a folder, by default the user's.
#[pyfunction]
#[pyo3(signature = (folder=None))]
pub fn cache_list(py: Python<'_>, folder: Option<PathBuf>) -> PyResult<Vec<Listed>> {
    in_folder(py, folder, neaptide::cached)
}

/// Removes them, and gives what was removed.
#[pyfunction]
#[pyo3(signature = (folder=None))]
pub fn cache_clear(py: Python<'_>, folder: Option<PathBuf>) -> PyResult<Vec<Listed>> {
    in_folder(py, folder, neaptide::clear_cached)
}

fn in_folder(
    py: Python<'_>,
    folder: Option<PathBuf>,
    work: fn(&Path) -> neaptide::Result<Vec<CachedFile>>,
) -> PyResult<Vec<Listed>> {
    let Some(folder) = folder.or_else(|| Cache::Auto.folder()) else {
        return Ok(Vec::new());
    };
    let files = py.detach(|| work(&folder));
    let files = files.map_err(|e| of_engine(py, e, Stage::Opening))?;
    Ok(files.into_iter().map(|f| (f.path, f.bytes)).collect())
}

/// Holds a model that was kept, so that no other program forgets it.
#[pyclass(frozen, module = "neaptide._neaptide")]
pub struct HeldModel {
    _file: Option<File>,
}

#[pymethods]
impl HeldModel {
    #[new]
    fn new(path: PathBuf) -> HeldModel {
        HeldModel {
            _file: neaptide::held_model(&path),
        }
    }
}

/// Removes a model that was kept, unless somebody holds it.
#[pyfunction]
pub fn forget_model(path: PathBuf) {
    neaptide::forget_model(&path);
}

/// Keeps a model that is in memory as a file in the cache folder, and gives its path. The same bytes are the same file.
#[pyfunction]
#[pyo3(signature = (model, cache_dir=None))]
pub fn kept_model(py: Python<'_>, model: &[u8], cache_dir: Option<PathBuf>) -> PyResult<PathBuf> {
    let cache = cache_dir.map_or(Cache::Auto, Cache::Folder);
    py.detach(|| neaptide::kept_model(model, &cache))
        .map_err(|e| of_engine(py, e, Stage::Opening))
}
