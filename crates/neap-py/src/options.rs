//! How a session is opened, as the Python half says it.

use crate::failure::{Stage, invalid, of_engine};
use neaptide::{Budget, Cache, OpenOptions, RunOptions};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;

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

/// Keeps a model that is in memory as a file in the cache folder, and gives its path. The same bytes are the same file.
#[pyfunction]
#[pyo3(signature = (model, cache_dir=None))]
pub fn kept_model(py: Python<'_>, model: &[u8], cache_dir: Option<PathBuf>) -> PyResult<PathBuf> {
    let cache = cache_dir.map_or(Cache::Auto, Cache::Folder);
    py.detach(|| neaptide::kept_model(model, &cache))
        .map_err(|e| of_engine(py, e, Stage::Opening))
}
