//! `--format` and `-o` of commands whose result is what they print.
//!
//! ```text
//!   --format F          that form, to standard output
//!   -o FILE             into the file, in the form that its ending names
//!   --format F -o FILE  that form, into the file
//! ```

use crate::failure::Outcome;
use crate::{atomic, names, stdout};
use clap::builder::EnumValueParser;
use clap::{Args, ValueEnum};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The forms that a command knows; the first is printed where nothing is said.
pub trait Form: ValueEnum + Clone + Send + Sync + 'static {}

impl<F: ValueEnum + Clone + Send + Sync + 'static> Form for F {}

#[derive(Args, Clone, Debug)]
pub struct Printed<F: Form> {
    /// The form of what is printed [default: what FILE ends in, or text]
    #[arg(long, value_name = "FORMAT", value_parser = EnumValueParser::<F>::new())]
    format: Option<F>,
    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Forms that most commands know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TextOrJson {
    Text,
    Json,
}

impl<F: Form> Printed<F> {
    /// The form that is asked for.
    pub fn form(&self) -> F {
        let ending = || {
            let ending = self.output.as_deref()?.extension()?.to_str()?;
            F::from_str(ending, true).ok()
        };
        let given = self.format.clone().or_else(ending);
        given.unwrap_or_else(|| F::value_variants()[0].clone())
    }

    /// Writes text where it is to go.
    pub fn print(&self, text: &str) -> Outcome {
        put(self.output.as_deref(), text)
    }

    /// The same of pretty-printed JSON, with a line end.
    pub fn print_json(&self, value: &impl serde::Serialize) -> Outcome {
        put_json(self.output.as_deref(), value)
    }

    pub fn file(&self) -> Option<&Path> {
        self.output.as_deref().filter(|file| !is_stdout(file))
    }
}

impl Printed<TextOrJson> {
    /// The same where `--json FILE` is another way to write it.
    pub fn or_json(&self, file: Option<&Path>) -> Printed<TextOrJson> {
        match file {
            None => self.clone(),
            Some(file) => Printed {
                format: Some(TextOrJson::Json),
                output: Some(file.into()),
            },
        }
    }

    /// A report as JSON, or what people read of it.
    pub fn report(&self, report: &impl serde::Serialize, text: impl FnOnce() -> String) -> Outcome {
        match self.form() {
            TextOrJson::Json => self.print_json(report),
            TextOrJson::Text => self.print(&text()),
        }
    }
}

/// Text to a file, or to standard output: without a file, or where that is '-'.
pub fn put(file: Option<&Path>, text: &str) -> Outcome {
    match file.filter(|file| !is_stdout(file)) {
        None => stdout::print(text),
        Some(file) => {
            let text = names::printable(text);
            atomic::write(file, |out| out.write_all(text.as_bytes()))
        }
    }
}

/// The same of JSON.
pub fn put_json(file: Option<&Path>, value: &impl serde::Serialize) -> Outcome {
    put(file, &(stdout::json(value)? + "\n"))
}

fn is_stdout(file: &Path) -> bool {
    file.as_os_str() == "-"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_named_or_what_the_file_ends_in() {
        let form = |format, output: Option<&str>| {
            Printed {
                format,
                output: output.map(PathBuf::from),
            }
            .form()
        };
        assert_eq!(form(None, None), TextOrJson::Text);
        assert_eq!(form(None, Some("a/b.JSON")), TextOrJson::Json);
        assert_eq!(form(None, Some("json")), TextOrJson::Text);
        assert_eq!(form(None, Some("-")), TextOrJson::Text);
        assert_eq!(
            form(Some(TextOrJson::Text), Some("b.json")),
            TextOrJson::Text
        );
    }
}
