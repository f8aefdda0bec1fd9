//! One file per command, and what all of them begin with: opening a model.

pub mod bench;
pub mod demo;
pub mod inspect;
pub mod layout;
pub mod pack;
pub mod plan;
pub mod profile;
pub mod run;
pub mod zoo;

use crate::failure::Outcome;
use crate::interrupt;
use crate::progress::Progress;
use neaptide::{Model, OpenOptions};
use std::path::Path;

/// Opens a model, packing it with progress where need be.
pub fn open(path: &Path, options: &OpenOptions, quiet: bool) -> Outcome<Model> {
    let _deferred = interrupt::defer();
    let mut progress = Progress::new(format!("packing {}", file_name(path)), quiet);
    let model = Model::open(path, options, &mut |p| {
        progress.at(p.done_bytes, p.total_bytes)
    })?;
    progress.finish();
    interrupt::check()?;
    Ok(model)
}

/// Short enough for a line with a progress bar.
fn file_name(path: &Path) -> std::path::Display<'_> {
    Path::new(path.file_name().unwrap_or(path.as_os_str())).display()
}
