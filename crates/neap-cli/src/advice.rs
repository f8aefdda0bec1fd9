//! How to give, on a command line, what a model cannot be opened without.

use neaptide::{Error, Need, shape_text};

/// As an option.
fn option(need: &Need) -> String {
    match need {
        Need::Shape { input, example } => {
            let shape = example.as_deref().map_or("SIZES".into(), shape_text);
            format!("--shape {input}={shape}")
        }
        Need::Values { inputs } => match &inputs[..] {
            [one] => format!("--bind {one}=FILE.npy"),
            _ => "--bind NAME=FILE.npy for each".into(),
        },
        Need::Bound { name } => format!("--bound {name}=N"),
    }
}

/// The text of an error about a model that the command itself opens.
pub fn with_option(text: &str, need: &Need) -> String {
    format!("{text} ({})", option(need))
}

/// The error about a model that a file names: there no option can be for one of them.
pub fn for_a_file_of_models(error: Error) -> Error {
    match error {
        Error::Unbound { text, need } => Error::BadInput(format!(
            "{text}: neap pack MODEL -o FILE.neap {}, and name FILE.neap",
            option(&need)
        )),
        other => other,
    }
}
