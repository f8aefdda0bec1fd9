//! `cargo xtask`: see the library.

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::{
    accuracy, conformance, fuzz, nightly, regress, release, root, sbom, survive, test, tidy, wheels,
};

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
    /// Run all tests, or with `--target aarch64` those for 64-bit Arm under emulation.
    Test {
        #[arg(long)]
        target: Option<String>,
        /// Only this part of the tests.
        #[arg(long, conflicts_with = "target")]
        part: Option<String>,
    },
    /// Compare every model with onnxruntime, without a budget and at the smallest feasible one.
    Accuracy {
        /// Only models whose name begins so.
        only: Vec<String>,
    },
    /// Run the ONNX standard's node tests: `neap-conformance node-tests`, with its arguments.
    Conformance {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build the Python package for x86-64 and 64-bit Arm, and try both.
    Wheels,
    /// Run zoo models over and over at their smallest feasible budgets, enforced by the kernel.
    Survive {
        /// Only these models.
        only: Vec<String>,
        #[arg(long, default_value_t = 200)]
        runs: usize,
    },
    /// Run the tests with new seeds, and several models for long under changing budgets.
    Nightly(nightly::NightlyArgs),
    /// Look for inputs that break something, guided by coverage.
    Fuzz(fuzz::FuzzArgs),
    /// Measure this neap beside that of the last release, in turns.
    Regress(regress::RegressArgs),
    /// Say what a release of this version lacks: addresses, its part of the changelog.
    Release,
    /// Write the packages that a program is built from, as CycloneDX in JSON.
    Sbom(sbom::SbomArgs),
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Tidy => tidy::run(&root()),
        Command::Wheels => wheels::run(&root()),
        Command::Test { target, part } => test::run(&root(), target.as_deref(), part.as_deref()),
        Command::Nightly(args) => nightly::run(&root(), &args),
        Command::Fuzz(args) => fuzz::run(&root(), &args),
        Command::Regress(args) => regress::run(&root(), &args),
        Command::Release => release::run(&root()),
        Command::Sbom(args) => sbom::run(&root(), &args),
        Command::Survive { only, runs } => survive::run(&root(), &survive::Options { only, runs }),
        Command::Conformance { arguments } => conformance::node_tests(&root(), &arguments),
        Command::Accuracy { only } => accuracy::run(&root(), &only),
    }
}
