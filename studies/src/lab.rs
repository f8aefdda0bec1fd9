//! This program as `neap`: the same command line, with baselines among its strategies.

use anyhow::Result;
use std::process::{Command, ExitCode};

/// Set for such a process, and for those that it starts.
const AS_NEAP: &str = "NEAP_STUDY_AS_NEAP";

/// Does what the command line of `neap` says, if that is what this process is for.
pub fn run() -> Option<ExitCode> {
    std::env::var_os(AS_NEAP).map(|_| neap_cli::run_with(&baselines::ALL))
}

/// Such a process, which is not started yet.
pub fn neap() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(AS_NEAP, "1");
    Ok(command)
}
