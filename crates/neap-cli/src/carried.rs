//! Options of one command line, as given, for the command line of another process.
//!
//! The list of options is clap's own, so an option that is added to a group travels without a word here.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use std::ffi::{OsStr, OsString};

/// The options of group `A` that were given, as words of a command line; defaults are left out.
pub fn words<A: Args>(given: &ArgMatches) -> Vec<OsString> {
    let group = A::augment_args(Command::new("group"));
    let options = group
        .get_arguments()
        .filter(|option| is_given(option, given));
    options.flat_map(|option| words_of(option, given)).collect()
}

/// Whether an option was given on the command line.
fn is_given(option: &Arg, given: &ArgMatches) -> bool {
    given.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine)
}

fn words_of(option: &Arg, given: &ArgMatches) -> Vec<OsString> {
    let Some(name) = option.get_long() else {
        return Vec::new();
    };
    if matches!(option.get_action(), ArgAction::SetTrue) {
        return vec![format!("--{name}").into()];
    }
    let with = |value: &OsStr| {
        let mut word = OsString::from(format!("--{name}="));
        word.push(value);
        word
    };
    let values = given.get_raw(option.get_id().as_str());
    let values: Vec<&OsStr> = values.into_iter().flatten().collect();
    match option.get_value_delimiter() {
        Some(delimiter) => vec![with(
            &values.join(OsStr::new(delimiter.encode_utf8(&mut [0; 4]))),
        )],
        None => values.into_iter().map(with).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use crate::commands::tasks::{self, OF_THE_FILE};
    use clap::CommandFactory;

    /// What `tasks` itself reads.
    const OF_THE_TASKS: [&str; 6] = [
        "allocate",
        "one_process",
        "enforce",
        "format",
        "output",
        "json",
    ];

    /// Values that some option takes, tried in turn.
    const VALUES: [&str; 12] = [
        "portable", "7", "5s", "0s:64MiB", "x=1x2", "64MiB", "m.npy", "rgb", "0.5,1,2", "x=7",
        "vulkan", "10%",
    ];

    fn parse(words: &[OsString]) -> Result<ArgMatches, clap::Error> {
        let matches = Cli::command().try_get_matches_from(words)?;
        let (_, given) = matches.subcommand().unwrap();
        Ok(given.clone())
    }

    /// The option as it may be written, with a value that is not the default.
    fn written(option: &Arg) -> Vec<OsString> {
        let name = option.get_long().unwrap();
        if matches!(option.get_action(), ArgAction::SetTrue) {
            return vec![format!("--{name}").into()];
        }
        let possible = option.get_possible_values();
        let named = possible.last().map(|value| value.get_name().to_owned());
        let values = named.into_iter().chain(VALUES.map(String::from));
        values
            .map(|value| format!("--{name}={value}").into())
            .collect()
    }

    fn line(first: &[&str], more: &[OsString]) -> Vec<OsString> {
        let first = first.iter().map(OsString::from);
        first.chain(more.iter().cloned()).collect()
    }

    /// Every option of `tasks`, by clap's own list, is the file's, read by the command, or reaches its members with the
    /// value that was given.
    #[test]
    fn no_option_of_tasks_is_lost_on_the_way_to_a_member() {
        let command = Cli::command();
        let of_tasks = command.find_subcommand("tasks").unwrap();
        let mut carried = Vec::new();
        for option in of_tasks.get_arguments().filter(|a| a.get_long().is_some()) {
            let id = option.get_id().as_str();
            let is_of_the_file = OF_THE_FILE
                .iter()
                .any(|(of_the_file, _)| *of_the_file == id);
            if matches!(id, "help" | "quiet" | "verbose")
                || OF_THE_TASKS.contains(&id)
                || is_of_the_file
            {
                continue;
            }
            let tried = written(option).into_iter();
            let mut given =
                tried.flat_map(|word| parse(&line(&["neap", "tasks", "t.toml"], &[word])));
            let given = given.next();
            let given = given.unwrap_or_else(|| panic!("no value is known that --{id} takes"));
            let words = tasks::carried_to_members(&given);
            let member = parse(&line(&["neap", "member", "m.onnx"], &words)).unwrap();
            let raw = |of: &ArgMatches| -> Vec<OsString> {
                let values = of.try_get_raw(id).ok().flatten().into_iter().flatten();
                values.map(OsStr::to_owned).collect()
            };
            assert!(is_given(option, &member), "{id} is not carried: {words:?}");
            assert_eq!(raw(&member), raw(&given), "{id}");
            carried.push(id.to_owned());
        }
        for known in [
            "no_spill",
            "spill_dir",
            "keep_activations",
            "search_time",
            "search_seed",
        ] {
            assert!(
                carried.iter().any(|id| id == known),
                "{known} is not in {carried:?}"
            );
        }
    }

    #[test]
    fn values_travel_as_they_were_written() {
        use std::os::unix::ffi::OsStrExt;
        let folder = OsStr::from_bytes(b"--cache-dir=caf\xe9 noir");
        let more = [
            folder.to_owned(),
            "--no-spill".into(),
            "--search-time=.5".into(),
        ];
        let given = parse(&line(&["neap", "tasks", "t.toml"], &more)).unwrap();
        let mut words = tasks::carried_to_members(&given);
        words.sort();
        assert_eq!(words, more);
    }

    /// A task's file says it last.
    #[test]
    fn a_member_believes_the_last_word() {
        let words = line(
            &[
                "neap",
                "member",
                "m.onnx",
                "--strategy=search",
                "--strategy=resident",
            ],
            &[],
        );
        let given = parse(&words).unwrap();
        let mut values = given.get_raw("strategy").unwrap();
        assert_eq!(values.next_back(), Some(OsStr::new("resident")));
    }
}
