//! One file per command, and what all of them begin with: opening a model.

pub mod bench;
pub mod cache;
pub mod chat;
pub mod completions;
pub mod demo;
pub mod doctor;
pub mod generate;
mod gguf;
pub mod imagine;
pub mod import;
pub mod inspect;
pub mod layout;
pub mod pack;
pub mod plan;
pub mod profile;
mod rounding;
pub mod run;
#[cfg(feature = "serve")]
pub mod serve;
pub mod tasks;
pub mod train;
pub mod zoo;

use crate::advice;
use crate::failure::Outcome;
use crate::interrupt;
use crate::progress::{Progress, detail, note};
use neaptide::{Model, OpenOptions, Work};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Opens a model, packing it with progress where need be.
pub fn open(path: &Path, options: &OpenOptions, quiet: bool) -> Outcome<Model> {
    Ok(open_or_pack(path, options, quiet)?.0)
}

/// One of several models that a file names.
pub fn open_member(path: &Path, options: &OpenOptions, quiet: bool) -> Outcome<Model> {
    Ok(open_here(path, options, quiet)
        .map_err(advice::for_a_file_of_models)??
        .0)
}

/// The same, and whether it had to be packed.
pub fn open_or_pack(path: &Path, options: &OpenOptions, quiet: bool) -> Outcome<(Model, bool)> {
    open_here(path, options, quiet)?
}

fn open_here(
    path: &Path,
    options: &OpenOptions,
    quiet: bool,
) -> neaptide::Result<Outcome<(Model, bool)>> {
    let _deferred = interrupt::defer();
    let mut progress = Progress::new(format!("packing {}", file_name(path)), quiet);
    let mut was_packed = false;
    detail(|| format!("opening {}", path.display()));
    let model = Model::open(path, options, &mut |p| {
        was_packed |= p.work == Work::Packing;
        follow(&mut progress, p);
    })?;
    progress.finish();
    if let Err(interrupted) = interrupt::check() {
        return Ok(Err(interrupted));
    }
    note_remarks(&model);
    detail(|| opened_text(&model, was_packed));
    Ok(Ok((model, was_packed)))
}

fn opened_text(model: &Model, was_packed: bool) -> String {
    let steps = model.program().steps.len();
    let digest = model.digest();
    match model.packed_path() {
        Some(path) => format!(
            "{steps} steps, weights in {}, {}; digest {digest}",
            path.display(),
            if was_packed {
                "packed now"
            } else {
                "packed before"
            }
        ),
        None => format!("{steps} steps, no weights; digest {digest}"),
    }
}

/// Opens a model about which everything has been said, by the process that started this one.
pub fn open_again(path: &Path, options: &OpenOptions) -> Outcome<Model> {
    let _deferred = interrupt::defer();
    let model = Model::open(path, options, &mut |_| interrupt::unwind_if_asked())?;
    interrupt::check()?;
    Ok(model)
}

/// Marks a process that has begun anew, as it had packed its model; the value says nothing.
const HAS_PACKED: &str = "NEAPTIDE_HAS_PACKED";

fn note_remarks(model: &Model) {
    // A run that has begun anew said them before.
    if std::env::var_os(HAS_PACKED).is_none() {
        model.remarks().iter().for_each(|remark| note_once(remark));
    }
}

/// A line on standard error that is said once, however often there is a reason to.
fn note_once(remark: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.insert(remark.to_string()) {
        note(remark);
    }
}

/// Shows how far packing is. Hashing takes a fraction of that, and is shown as nothing.
fn follow(progress: &mut Progress, at: neaptide::Progress) {
    match at.work {
        Work::Packing => progress.at(at.done_bytes, at.total_bytes),
        Work::Hashing => interrupt::unwind_if_asked(),
    }
}

/// A line where the packed model lies in memory.
pub fn note_memory(model: &Model) {
    if let Some(path) = model.packed_path().filter(|_| model.is_packed_in_memory()) {
        note(&format!(
            "{} lies in memory (tmpfs), which the budget does not count",
            path.display()
        ));
    }
}

/// Short enough for a line with a progress bar.
fn file_name(path: &Path) -> std::path::Display<'_> {
    Path::new(path.file_name().unwrap_or(path.as_os_str())).display()
}
