//! What needs the engine in the testing process: the ONNX standard's node tests, and each instruction set of this processor.

#![forbid(unsafe_code)]

mod instruction_sets;
mod node_tests;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use xtask::{accuracy, models, python, root};

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the ONNX standard's node tests.
    NodeTests(node_tests::ConformanceArgs),
    /// Compare some networks with onnxruntime, with every instruction set but the best.
    InstructionSets,
    #[command(hide = true)]
    Worker {
        folder: PathBuf,
        scratch: PathBuf,
        #[arg(long)]
        vulkan: bool,
    },
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::NodeTests(args) => node_tests::run(&root(), &args),
        Command::InstructionSets => instruction_sets::run(&root()),
        Command::Worker {
            folder,
            scratch,
            vulkan,
        } => node_tests::serve(&folder, &scratch, vulkan),
    }
}
