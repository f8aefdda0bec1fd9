//! The server under load: batches that share one reading of the weights, and a proof that nothing is lost, wrong or late.
//!
//! `--write` writes docs/serving-load.md, and the plot beside it.

mod batching;
mod client;
mod load;

use crate::models;
use anyhow::Result;
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct ServeArgs {
    /// How long mixed requests come
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Hard limit of the server under mixed requests, in MiB
    #[arg(long, default_value_t = 128)]
    budget: u64,
    /// Period and deadline of the model that is promised one, in milliseconds
    #[arg(long, default_value_t = 1000)]
    period: u64,
    /// Largest batch
    #[arg(long, default_value_t = 8)]
    most_rows: usize,
    /// Two models come and go without a pause, and the budget goes down and up all the time
    #[arg(long)]
    storm: bool,
    /// Leave the batches out
    #[arg(long)]
    no_batches: bool,
    /// Write docs/serving-load.md and its plot
    #[arg(long)]
    write: bool,
}

/// What both parts need.
struct Place {
    neap: PathBuf,
    cache: PathBuf,
    folder: PathBuf,
}

pub fn run(root: &Path, args: &ServeArgs) -> Result<()> {
    let place = Place {
        neap: models::neap(root)?,
        cache: root.join("target/models/packed"),
        folder: root.join("target/serve"),
    };
    let mut page = format!(
        "# The server under load\n\nMade by `cargo study serve --write`. {}. Times, and so deadlines, depend on what else the machine and its \
         drive do; other counts do not.\n",
        crate::setting::setting()?
    );
    if !args.no_batches {
        let (text, plot) = batching::run(root, &place, args.most_rows)?;
        page += &text;
        if args.write {
            std::fs::write(root.join("docs/serving-batches.svg"), plot)?;
        }
    }
    page += &load::run(root, &place, args)?;
    println!("{page}");
    if args.write {
        std::fs::write(root.join("docs/serving-load.md"), page)?;
    }
    Ok(())
}

impl Place {
    /// An empty folder of models.
    fn models(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

/// A model of the folder, by a link.
fn link(folder: &Path, name: &str, model: &Path, settings: &str) -> Result<()> {
    std::os::unix::fs::symlink(model, folder.join(format!("{name}.onnx")))?;
    std::fs::write(folder.join(format!("{name}.toml")), settings)?;
    Ok(())
}

/// An image of seeded numbers.
fn image(seed: u64, elements: usize) -> Vec<u8> {
    let value = |i: usize| {
        let mixed = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ (seed << 17));
        (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..elements).flat_map(|i| value(i).to_le_bytes()).collect()
}
