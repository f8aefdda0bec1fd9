//! Results go to standard output through here: a reader that has gone away is no error.

use crate::failure::{Failure, Outcome, bad};
use crate::names;
use std::io::{ErrorKind, Write};

/// Writes all of `text` now. Names out of files may be part of it, and terminals obey characters of control.
pub fn print(text: &str) -> Outcome {
    print_raw(&names::printable(text))
}

/// The same of text that may steer a terminal.
pub fn print_raw(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::ClosedPipe),
        Err(error) => Err(bad(format!("cannot write to standard output: {error}"))),
    }
}

/// Pretty-printed JSON.
pub fn json(value: &impl serde::Serialize) -> Outcome<String> {
    serde_json::to_string_pretty(value)
        .map_err(|e| Failure::Internal(format!("cannot write JSON: {e}")))
}
