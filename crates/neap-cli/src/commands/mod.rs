//! One file per command.

pub mod bench;
pub mod demo;
pub mod inspect;
pub mod layout;
pub mod pack;
pub mod plan;
pub mod profile;
pub mod run;
pub mod zoo;

use crate::args::{Cli, Command};
use crate::failure::{Failure, Outcome, bad, one_line};
use crate::interrupt;
use crate::progress::Progress;
use crate::task;
use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use neaptide::{Model, OpenOptions};
use std::path::Path;

/// Reads the command line and does what it says.
pub fn dispatch() -> Outcome {
    let parsed = Cli::command().try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches);
        cli.map_err(|error| error.format(&mut Cli::command()))
            .map(|cli| (cli, matches))
    });
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return explain(error),
    };
    let given = matches.subcommand().map_or(&matches, |(_, given)| given);
    obey(cli, given)
}

/// `given` holds the command's options as they were written.
fn obey(cli: Cli, given: &ArgMatches) -> Outcome {
    match cli.command {
        Command::Run(args) => run::run(&args, given, cli.quiet),
        Command::Pack(args) => pack::run(&args, cli.quiet),
        Command::Plan(args) => plan::run(&args, cli.quiet),
        Command::Bench(args) => bench::run(&args, given, cli.quiet),
        Command::Inspect(args) => inspect::run(&args, cli.quiet),
        Command::Zoo(args) => zoo::run(&args, cli.quiet),
        Command::Layout(args) => layout::run(&args),
        Command::Profile(args) => profile::run(&args, cli.quiet),
        Command::Demo(args) => demo::run(&args, given, cli.quiet),
        Command::Member(args) => task::member(&args),
    }
}

/// Opens a model, packing it with progress where need be.
pub fn open(path: &Path, options: &OpenOptions, quiet: bool) -> Outcome<Model> {
    let _deferred = interrupt::defer();
    let mut progress = Progress::new(format!("packing {}", file_name(path)), quiet);
    let model = Model::open(path, options, &mut |p| {
        progress.at(p.done_bytes, p.total_bytes)
    })?;
    progress.finish();
    interrupt::check()?;
    Ok(model)
}

/// Short enough for a line with a progress bar.
fn file_name(path: &Path) -> std::path::Display<'_> {
    Path::new(path.file_name().unwrap_or(path.as_os_str())).display()
}

/// Help goes to standard output; a wrong command line becomes one line.
fn explain(error: clap::Error) -> Outcome {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            crate::stdout::print(&error.render().to_string())
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{}", error.render());
            Err(Failure::Reported(2))
        }
        _ => {
            let text = error.render().to_string();
            let paragraphs = text.split("\n\n").take_while(|p| !p.starts_with("Usage"));
            let text = paragraphs
                .map(|p| one_line(p.trim_start_matches("error: ")))
                .filter(|p| !p.is_empty() && !p.starts_with("For more information"))
                .collect::<Vec<_>>()
                .join("; ");
            Err(bad(format!("{text} (see neap --help)")))
        }
    }
}
