//! `neap cache`: what packed models and models of bytes take, and how to be rid of them.

use crate::failure::{Outcome, bad};
use crate::names;
use crate::printed::{Printed, TextOrJson};
use crate::stdout;
use clap::{Args, Subcommand};
use neaptide::{Bytes, Cache, CachedFile};
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct CacheArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// List the cache's files: packed models, and models that programs gave as bytes
    List(ListArgs),
    /// Remove them. Models are packed again when they are opened; what is open goes on
    Clear(FoldersArgs),
}

#[derive(Args)]
struct ListArgs {
    #[command(flatten)]
    folders: FoldersArgs,
    #[command(flatten)]
    printed: Printed<TextOrJson>,
}

#[derive(Args)]
struct FoldersArgs {
    /// Folders with models, beside which their packed forms lie, or folders of --cache-dir [default: the user's cache folder]
    folders: Vec<PathBuf>,
}

/// What is done with a folder; gives the files that it found.
type Work = fn(&Path) -> neaptide::Result<Vec<CachedFile>>;

pub fn run(args: &CacheArgs) -> Outcome {
    let (folders, work, done, printed) = match &args.what {
        What::List(list) => {
            let folders = &list.folders.folders;
            (
                folders,
                neaptide::cached as Work,
                "in all",
                Some(&list.printed),
            )
        }
        What::Clear(args) => (
            &args.folders,
            neaptide::clear_cached as Work,
            "removed",
            None,
        ),
    };
    let folders = match &folders[..] {
        [] => vec![Cache::Auto.folder().ok_or_else(|| {
            bad("there is no home directory, and so no cache folder: name a folder")
        })?],
        given => given.to_vec(),
    };
    if let Some(file) = folders.iter().find(|f| f.exists() && !f.is_dir()) {
        return Err(bad(format!("{} is not a folder", file.display())));
    }
    let mut files = Vec::new();
    for folder in &folders {
        files.extend(work(folder)?);
    }
    if let Some(printed) = printed.filter(|printed| printed.form() == TextOrJson::Json) {
        let object = |file: &CachedFile| json!({"path": file.path, "bytes": file.bytes});
        return printed.print_json(&files.iter().map(object).collect::<Vec<_>>());
    }
    let mut text = String::new();
    let total_bytes = files.iter().map(|file| file.bytes).sum();
    for file in &files {
        let path = names::shown(&file.path.display().to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:>10}  {path}", Bytes(file.bytes).to_string());
    }
    let _ = writeln!(text, "{:>10}  {done}", Bytes(total_bytes).to_string());
    match printed {
        Some(printed) => printed.print(&text),
        None => stdout::print(&text),
    }
}
