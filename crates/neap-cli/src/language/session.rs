//! `--save-session FILE`: the text and its cache are in a file from one command to the next.

use crate::atomic;
use crate::failure::{Outcome, bad};
use neap_chat::Runner;
use serde_json::Value;
use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::Path;

/// What the file keeps: the runner has its text, and the note of whoever saved it is given. `None` where there is no file yet.
///
/// A file that cannot be used is refused, so that nothing is written over what may be dear to somebody.
pub fn load(runner: &mut Runner, path: &Path) -> Outcome<Option<Value>> {
    let refused = |why: &dyn std::fmt::Display| {
        bad(format!(
            "--save-session {}: {why}; the file is left as it is",
            path.display()
        ))
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(&format!("cannot be opened: {error}"))),
    };
    let loaded = runner.load(&mut BufReader::new(file));
    loaded.map(Some).map_err(|error| refused(&error))
}

/// Writes the runner's last text and a note, if there is a text.
pub fn save(runner: &mut Runner, path: &Path, note: Value) -> Outcome {
    match runner.has_finished() {
        true => atomic::write(path, |file| runner.save(file, note)),
        false => Ok(()),
    }
}
