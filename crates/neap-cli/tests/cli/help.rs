//! Help: what every command says of itself, and scripts that complete it.
//!
//! `tests/help.txt` has all of it as it is at 100 columns. After a change: `NEAP_WRITE_HELP=1 cargo test -p neap-cli --test cli help`,
//! and look at the difference.

use super::support::Bench;
use clap::Command;
use std::fs;
use std::path::Path;

/// The help of a command goes into one screen.
const SCREEN: usize = 24;
/// That of `neap` itself has a line for each command.
const SCREEN_OF_ALL: usize = 40;

/// Name, `-h` and `--help` of each command that users see, and of those below it.
fn texts(command: &mut Command, name: &str, found: &mut Vec<[String; 3]>) {
    let short = command.render_help().to_string();
    found.push([name.into(), short, command.render_long_help().to_string()]);
    for below in command.get_subcommands_mut() {
        if below.get_name() != "help" && !below.is_hide_set() {
            let name = format!("{name} {}", below.get_name());
            texts(below, &name, found);
        }
    }
}

fn all() -> Vec<[String; 3]> {
    let mut command = neap_cli::command().term_width(100);
    command.build();
    let mut found = Vec::new();
    texts(&mut command, "neap", &mut found);
    found
}

#[test]
fn help_is_as_it_was() {
    if !cfg!(feature = "serve") {
        return;
    }
    let mut text = String::new();
    for [name, short, long] in all() {
        text += &format!("===== {name} -h\n{short}\n");
        if long != short {
            text += &format!("===== {name} --help\n{long}\n");
        }
    }
    let text: Vec<&str> = text.lines().map(str::trim_end).collect();
    let text = text.join("\n") + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
    if std::env::var_os("NEAP_WRITE_HELP").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let different = text.lines().zip(expected.lines()).find(|(a, b)| a != b);
    assert!(
        text == expected,
        "the help differs from tests/help.txt, first at {different:?}: NEAP_WRITE_HELP=1 writes it anew"
    );
}

#[test]
fn short_help_fits_on_a_screen() {
    for [name, short, _] in all() {
        let most = if name == "neap" {
            SCREEN_OF_ALL
        } else {
            SCREEN
        };
        let lines = short.lines().count();
        assert!(lines <= most, "{name} -h has {lines} lines:\n{short}");
    }
}

#[test]
fn short_help_leaves_out_what_long_help_has() {
    let bench = Bench::new();
    let [short, long] = ["-h", "--help"].map(|help| bench.neap(&format!("run {help}")).ok().stdout);
    for option in ["--memory-budget", "--slower", "--enforce", "--input"] {
        assert!(short.contains(option) && long.contains(option), "{option}");
    }
    for option in [
        "--bands",
        "--search-time",
        "--follow",
        "Planning and computing:",
    ] {
        assert!(!short.contains(option) && long.contains(option), "{option}");
    }
}

#[test]
fn completions_name_every_command() {
    let bench = Bench::new();
    let command = neap_cli::visible_command();
    for shell in ["bash", "zsh", "fish"] {
        let script = bench.neap(&format!("completions {shell}")).ok().stdout;
        for command in command.get_subcommands() {
            assert!(
                script.contains(command.get_name()),
                "{shell}: {}",
                command.get_name()
            );
        }
        assert!(script.contains("memory-budget"), "{shell}");
        assert!(!script.contains("member"), "{shell} has what is hidden");
    }
    let ran = bench.neap("completions csh");
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("csh") && ran.stderr.trim_end().lines().count() == 1);
}
