//! Project automation: `cargo xtask tidy|test|conformance|bench`.

mod tidy;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[derive(Parser)]
#[command(about = "Project automation for Neaptide")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the house rules: floors, file headers, sizes, unsafe code.
    Tidy,
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Tidy => tidy::run(&root()),
    }
}

/// The repository's root folder.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
        .to_path_buf()
}
