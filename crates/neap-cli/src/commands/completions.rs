//! `neap completions`: a script with which a shell completes the commands and options of `neap`.

use crate::cli;
use crate::failure::Outcome;
use crate::stdout;
use clap::Args;
use clap_complete::Shell;

#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell that is to complete them
    shell: Shell,
}

pub fn run(args: &CompletionsArgs) -> Outcome {
    stdout::print(&script(args.shell))
}

/// The script for a shell.
pub fn script(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut cli::visible(), "neap", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}
