//! `neap cache`: what packed models and models of bytes take, and how to be rid of them.

use crate::failure::{Outcome, bad};
use crate::names;
use crate::stdout;
use clap::{Args, Subcommand};
use neaptide::{Bytes, Cache, CachedFile};
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
    List(FoldersArgs),
    /// Remove them. Models are packed again when they are opened; what is open goes on
    Clear(FoldersArgs),
}

#[derive(Args)]
struct FoldersArgs {
    /// Folders with models, beside which their packed forms lie, or folders of --cache-dir [default: the user's cache folder]
    folders: Vec<PathBuf>,
}

/// What is done with a folder; gives the files that it found.
type Work = fn(&Path) -> neaptide::Result<Vec<CachedFile>>;

pub fn run(args: &CacheArgs) -> Outcome {
    let (folders, work, done) = match &args.what {
        What::List(args) => (&args.folders, neaptide::cached as Work, "in all"),
        What::Clear(args) => (&args.folders, neaptide::clear_cached as Work, "removed"),
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
    let mut text = String::new();
    let mut total_bytes = 0;
    for folder in &folders {
        for file in work(folder)? {
            total_bytes += file.bytes;
            let path = names::shown(&file.path.display().to_string());
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:>10}  {path}", Bytes(file.bytes).to_string());
        }
    }
    let _ = writeln!(text, "{:>10}  {done}", Bytes(total_bytes).to_string());
    stdout::print(&text)
}
