//! What `-h` shows: the options that most people need. `--help` shows all of them, under headings.

use clap::Command;

/// Commands with more options than a screen has room for, with those that `-h` shows.
const PLAIN: [(&str, &str); 16] = [
    (
        "run",
        "memory_budget slower enforce inputs output_dir format output",
    ),
    ("tasks", "allocate one_process enforce format output"),
    ("generate", "prompt file chat tokens memory_budget enforce"),
    ("chat", "system save_session memory_budget enforce context"),
    ("imagine", "prompt output steps seed memory_budget enforce"),
    ("train", "data output demo epochs lr memory_budget enforce"),
    ("serve", "memory_budget enforce http grpc token_file"),
    ("pack", "output weights"),
    ("plan", "memory_budget slower machine format output"),
    ("admit", "output format"),
    ("bench", "memory_budget enforce iterations format output"),
    ("inspect", "graph format output"),
    ("profile", "threads format output"),
    ("doctor", "format output"),
    ("demo", "dir keep device"),
    ("gpud", "memory quota slice users"),
];

/// The command, of which `-h` shows the plain options only.
pub fn short(command: Command) -> Command {
    match PLAIN.iter().find(|(name, _)| *name == command.get_name()) {
        None => command,
        Some((_, plain)) => command.mut_args(|arg| {
            let is_plain = plain.split(' ').any(|id| arg.get_id() == id);
            match is_plain || arg.is_positional() {
                true => arg,
                false => arg.hide_short_help(true),
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn plain_options_are_options() {
        let definitions = cli::definitions();
        for (name, plain) in PLAIN {
            let Some(command) = definitions.find_subcommand(name) else {
                assert!(name == "serve" && !cfg!(feature = "serve"), "{name}");
                continue;
            };
            for option in plain.split(' ') {
                let is_there = command.get_arguments().any(|a| a.get_id() == option);
                assert!(is_there, "{name} has no {option}");
            }
        }
    }
}
