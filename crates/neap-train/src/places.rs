//! Where a training writes: looked at before the first step, so that nothing is lost after the last.

use crate::error::{Result, bad};
use crate::options::TrainOptions;
use std::path::Path;

/// # Errors
/// The first place where nothing can be written.
pub fn check(options: &TrainOptions) -> Result<()> {
    let weights = options.output.with_extension("safetensors");
    let always = [&options.output, &weights, &options.checkpoint];
    let asked = [&options.log, &options.page].into_iter().flatten();
    for path in always.into_iter().chain(asked) {
        let failed =
            |why: &dyn std::fmt::Display| bad(format!("cannot write {}: {why}", path.display()));
        if path.is_dir() {
            return Err(failed(&"it is a folder"));
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if !folder.is_dir() {
            return Err(failed(&format_args!(
                "there is no folder {}",
                folder.display()
            )));
        }
        // It has no name, and is gone at once.
        tempfile::tempfile_in(folder).map_err(|e| failed(&e))?;
    }
    Ok(())
}
