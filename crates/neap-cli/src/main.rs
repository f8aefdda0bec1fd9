//! The `neap` command: runs neural networks inside an enforced memory budget.

mod admit;
mod args;
mod atomic;
mod budgets;
mod carried;
mod cgroup;
mod child;
mod cli;
mod commands;
mod device;
mod failure;
mod input;
mod interrupt;
mod meaning;
mod output;
mod progress;
mod report;
mod startup;
mod stdout;
mod task;
mod training;

use std::process::ExitCode;

fn main() -> ExitCode {
    startup::prepare();
    startup::guarded(cli::dispatch)
}
