//! The command line: what can be asked for, and who does it.

use crate::admit;
use crate::cgroup::supervise;
use crate::commands;
use crate::failure::{Failure, Outcome, bad, one_line};
use crate::help;
use crate::moved;
use crate::progress;
use crate::task;
use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  neap demo                                        see it work on a network made on the spot
  neap zoo resnet50 -o resnet50.onnx               write a test network
  neap run resnet50.onnx --memory-budget 40MiB     run it within 40 MiB
  neap run m.onnx --input cat.jpg --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 \\
           --memory-budget 32M --enforce --output-dir out --json report.json
  neap tasks drive.toml --enforce                  several models at once, one total of memory
  neap chat m.gguf --memory-budget 64MiB --enforce talk to a language model
  neap generate m.gguf -p 'Once upon a time' -n 100
  neap import my-model.safetensors --settings sd15-diffusers -o mine
  neap imagine sd15 -p 'A house by the sea' --memory-budget 300MiB -o house.png
  neap serve models --memory-budget 256MiB --enforce
  neap admit tasks.toml -o gantt.svg               do models with periods meet their deadlines?
  neap train m.onnx --data DIR --epochs 5 --memory-budget 300MiB -o trained.onnx
  neap plan m.onnx --memory-budget 25% -o plan.html
  neap bench m.onnx --memory-budget none,64MiB,25% --format md
  neap inspect m.onnx
  neap doctor                                      what does this machine give?
  neap profile m.onnx                              measure once; later plans know this machine
  neap layout buffers.csv --capacity 1048576 --output offsets.csv
  neap gpu run --memory 4GiB -- python app.py      a CUDA program on a card that others share: see docs/cuda-hook.md

Exit codes:
  0   success
  2   something given is wrong: an option, a model, an input, a file that cannot be read or written
  3   the memory budget cannot be met; the message names the smallest one that can. Of layout: no layout
      within the capacity; the message says whether that is proven. Of admit: a deadline could be missed
  70  internal error
  129, 130, 143  ended by SIGHUP, SIGINT or SIGTERM: 128 and the signal's number";

const MORE: &str = "neap COMMAND -h tells of a command, neap COMMAND --help of all its options; \
neap --help has examples and exit codes";

/// Runs and trains neural networks within a memory budget for the whole process.
#[derive(Parser)]
#[command(name = "neap", version, after_help = MORE, after_long_help = EXAMPLES, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Say nothing about progress on standard error
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Say on standard error what is done, and when
    #[arg(long, short, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a model within a memory budget
    Run(Box<commands::run::RunArgs>),
    /// Run several models at once, in one total of memory
    Tasks(Box<commands::tasks::TasksArgs>),
    /// Continue a text with a language model in GGUF
    Generate(Box<commands::generate::GenerateArgs>),
    /// Talk to a language model in GGUF
    Chat(Box<commands::chat::ChatArgs>),
    /// Make pictures of a text with Stable Diffusion
    Imagine(Box<commands::imagine::ImagineArgs>),
    /// Write a checkpoint of Stable Diffusion as the networks that imagine takes
    Import(commands::import::ImportArgs),
    /// Train a model on data, within a memory budget
    Train(Box<commands::train::TrainArgs>),
    /// Serve models over the network, within one memory budget
    #[cfg(feature = "serve")]
    Serve(Box<commands::serve::ServeArgs>),
    /// Pack a model into a .neap file, from which weights are streamed
    Pack(commands::pack::PackArgs),
    /// Show how a model would run within a memory budget
    Plan(commands::plan::PlanArgs),
    /// Say whether models that run again and again meet their deadlines
    Admit(Box<admit::AdmitArgs>),
    /// Measure models under several memory budgets, each run in its own process
    Bench(commands::bench::BenchArgs),
    /// Show what is in a model and how much memory it needs
    Inspect(commands::inspect::InspectArgs),
    /// Write a network of the built-in zoo as ONNX, with seeded weights
    Zoo(commands::zoo::ZooArgs),
    /// Find offsets for buffers with fixed live ranges, from a CSV file
    Layout(commands::layout::LayoutArgs),
    /// List or remove packed models that are kept in caches
    Cache(commands::cache::CacheArgs),
    /// Measure this machine, so that later plans are right about it
    Profile(commands::profile::ProfileArgs),
    /// Write a script with which a shell completes commands and options
    Completions(commands::completions::CompletionsArgs),
    /// Say what this machine gives, what is missing, and what a model needs of it
    Doctor(commands::doctor::DoctorArgs),
    /// Make ResNet-152, run it with 40 MiB of memory, compare with unlimited memory
    Demo(commands::demo::DemoArgs),
    #[command(flatten)]
    SharedCard(neap_gpud::commands::GpuCommand),
    /// One model of a task; of an option that is given twice, the later holds
    #[command(hide = true, args_override_self = true)]
    Member(Box<task::MemberArgs>),
}

/// What can be asked for.
pub fn definitions() -> clap::Command {
    Cli::command().mut_subcommands(|command| {
        let command = match command.get_name() {
            "tasks" => command.mut_args(commands::tasks::without_those_of_the_file),
            _ => command,
        };
        help::short(command.mut_args(with_negative_numbers))
    })
}

/// The same without what is hidden from users.
pub fn visible() -> clap::Command {
    let command = definitions();
    let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
    let mut made = clap::Command::new("neap")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(shown.cloned())
        .args(command.get_arguments().cloned())
        .after_long_help(EXAMPLES);
    if let Some(about) = command.get_about() {
        made = made.about(about.clone());
    }
    made
}

/// A number below zero is an option's value, which says what is wrong with it, and no option of its own.
fn with_negative_numbers(arg: clap::Arg) -> clap::Arg {
    let is_option = arg.get_long().is_some() && arg.get_action().takes_values();
    match is_option && !arg.is_allow_hyphen_values_set() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    }
}

/// Reads the command line and does what it says.
pub fn dispatch() -> Outcome {
    let (words, remarks) = moved::renamed(std::env::args_os().collect());
    let parsed = definitions()
        .try_get_matches_from(words)
        .and_then(|matches| {
            let cli = Cli::from_arg_matches(&matches);
            cli.map_err(|error| error.format(&mut Cli::command()))
                .map(|cli| (cli, matches))
        });
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return explain(error),
    };
    let given = matches.subcommand().map_or(&matches, |(_, given)| given);
    if cli.verbose {
        progress::tell_details();
    }
    // A process that this one starts again with the same words has nothing new to say of them.
    if !cli.quiet && supervise::own_limit_bytes().is_none() {
        remarks.iter().for_each(|remark| progress::note(remark));
    }
    obey(cli, given)
}

/// `given` holds the command's options as they were written.
fn obey(cli: Cli, given: &ArgMatches) -> Outcome {
    match cli.command {
        Command::Run(args) => commands::run::run(&args, cli.quiet),
        Command::Tasks(args) => commands::tasks::run(&args, given, cli.quiet),
        Command::Generate(args) => commands::generate::run(&args, cli.quiet),
        Command::Chat(args) => commands::chat::run(&args, cli.quiet),
        Command::Imagine(args) => commands::imagine::run(&args, cli.quiet),
        Command::Train(args) => commands::train::run(&args, cli.quiet),
        #[cfg(feature = "serve")]
        Command::Serve(args) => commands::serve::run(&args, cli.quiet),
        Command::Pack(args) => commands::pack::run(&args, cli.quiet),
        Command::Plan(args) => commands::plan::run(&args, cli.quiet),
        Command::Admit(args) => admit::run(&args, cli.quiet),
        Command::Bench(args) => commands::bench::run(&args, given, cli.quiet),
        Command::Inspect(args) => commands::inspect::run(&args, cli.quiet),
        Command::Import(args) => commands::import::run(&args, cli.quiet),
        Command::Zoo(args) => commands::zoo::run(&args, cli.quiet),
        Command::Cache(args) => commands::cache::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Layout(args) => commands::layout::run(&args),
        Command::Profile(args) => commands::profile::run(&args, cli.quiet),
        Command::Doctor(args) => commands::doctor::run(&args, cli.quiet),
        Command::Demo(args) => commands::demo::run(&args, given, cli.quiet),
        Command::SharedCard(command) => neap_gpud::commands::obey(&command).map_err(bad),
        Command::Member(args) => task::member(&args),
    }
}

/// The command that a wrong line was meant for: `neap run`, or `neap` where there is none.
fn command_asked_for() -> String {
    let known = definitions();
    let (words, _) = moved::renamed(std::env::args_os().collect());
    let mut commands = words
        .into_iter()
        .skip(1)
        .filter_map(|word| known.find_subcommand(word).map(|c| c.get_name()));
    (commands.next()).map_or("neap".into(), |name| format!("neap {name}"))
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
                .filter(|p| {
                    let skipped = ["For more information", "tip: to pass"];
                    !p.is_empty() && !skipped.iter().any(|s| p.starts_with(s))
                })
                .collect::<Vec<_>>()
                .join("; ");
            Err(bad(format!("{text} (see {} --help)", command_asked_for())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
