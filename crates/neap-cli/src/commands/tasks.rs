//! `neap tasks FILE.toml`: several models at once, in one total of memory.

use crate::args::{EngineArgs, OpenArgs};
use crate::failure::{Outcome, bad};
use crate::printed::{Printed, TextOrJson};
use crate::{carried, task};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args)]
pub struct TasksArgs {
    /// The models, and the memory of all together; see examples/tasks
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    /// Who gets how much [default: as the file says, or curves]
    #[arg(long, value_name = "POLICY")]
    allocate: Option<task::Policy>,
    /// All models in this process, in turns: they share the memory that runs overwrite
    #[arg(long)]
    one_process: bool,
    /// Let the kernel enforce the total, as the limit of a memory cgroup
    #[arg(long)]
    enforce: bool,
    #[command(flatten)]
    printed: Printed<TextOrJson>,
    /// The same as --format json -o FILE
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "output"])]
    json: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Options of one model, which the file says of each: as they are called here, and as they are written.
pub(crate) const OF_THE_FILE: [(&str, &str); 4] = [
    ("threads", "threads"),
    ("shapes", "shape"),
    ("bindings", "bind"),
    ("size_bounds", "bound"),
];

/// Help leaves them out.
pub fn without_those_of_the_file(arg: Arg) -> Arg {
    match OF_THE_FILE.iter().any(|(id, _)| arg.get_id() == id) {
        true => arg.hide(true),
        false => arg,
    }
}

/// `given` holds the options as they were written.
pub fn run(args: &TasksArgs, given: &ArgMatches, quiet: bool) -> Outcome {
    let is_given = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    if let Some((_, option)) = OF_THE_FILE.into_iter().find(|(id, _)| is_given(id)) {
        let file = args.file.display();
        return Err(bad(match option {
            "threads" => format!("--threads is for one model: {file} says it of each"),
            _ => format!(
                "--{option} is for one model: neap pack MODEL -o FILE.neap --{option} ..., and name FILE.neap in {file}"
            ),
        }));
    }
    task::run(&task::Settings {
        file: &args.file,
        allocate: args.allocate,
        enforce: args.enforce,
        one_process: args.one_process,
        engine: &args.engine,
        printed: &args.printed.or_json(args.json.as_deref()),
        open: &args.open,
        members: carried_to_members(given),
        keeps_activations: args.engine.keep_activations,
        quiet,
    })
}

/// What every member is told of this command line.
pub(crate) fn carried_to_members(given: &ArgMatches) -> Vec<OsString> {
    let mut words = carried::words::<OpenArgs>(given);
    words.extend(carried::words::<EngineArgs>(given));
    words
}
