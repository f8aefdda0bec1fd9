//! The `neap` command, as a library: what makes manual pages reads the same definitions.

mod admit;
mod advice;
mod args;
mod atomic;
mod budgets;
mod carried;
mod cgroup;
mod child;
mod cli;
mod commands;
mod compute;
mod destination;
mod device;
mod failure;
mod help;
mod input;
mod interrupt;
mod language;
mod meaning;
mod meter;
mod moved;
mod names;
mod numbers;
mod output;
mod printed;
mod progress;
mod report;
mod startup;
mod stdout;
mod strategies;
mod task;
mod training;

use std::process::ExitCode;

/// Reads the command line of this process and does what it says.
pub fn run() -> ExitCode {
    startup::prepare();
    startup::guarded(cli::dispatch)
}

/// As [`run`], with strategies of planning that are compared with the engine's own.
pub fn run_with(strategies: &'static [neaptide::Strategy]) -> ExitCode {
    strategies::add(strategies);
    run()
}

/// The definitions of the command line.
pub fn command() -> clap::Command {
    cli::definitions()
}

/// The same without what is hidden from users.
pub fn visible_command() -> clap::Command {
    cli::visible()
}

pub use commands::completions::script as completions;
