//! `neap-gpu`: the commands for a shared card alone, without the engine.

use clap::Parser;
use neap_gpud::commands::{GpuCommand, obey};
use std::process::ExitCode;

/// Unmodified CUDA programs share a graphics card beyond its memory.
#[derive(Parser)]
#[command(
    name = "neap-gpu",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: GpuCommand,
}

fn main() -> ExitCode {
    match obey(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("neap-gpu: {why}");
            ExitCode::from(2)
        }
    }
}
