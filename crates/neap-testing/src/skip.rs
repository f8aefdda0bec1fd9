//! A test that cannot do its work says so here. A runner that hides a passing test's output cannot hide it.

use std::fmt::Display;
use std::io::Write;

/// Set to anything but `0` or nothing, a missing capability fails the test.
const REQUIRE_ALL: &str = "NEAP_REQUIRE_ALL";
/// Names the file that collects skips, one a line.
const COLLECTED_IN: &str = "NEAP_SKIPS";

/// Says that this machine lacks a capability: io_uring, a right, a tool.
///
/// # Panics
/// Where every capability is required, as in continuous integration.
#[track_caller]
pub fn skip(reason: impl Display) {
    assert!(
        !all_required(),
        "{reason}; {REQUIRE_ALL} is set, so nothing may be skipped"
    );
    tell(&reason);
}

/// Says that files are absent that lie outside of the repository, or instructions that not every processor has. A clone, or a
/// machine, does not have them, so that is never a failure.
pub fn absent(reason: impl Display) {
    tell(&reason);
}

fn all_required() -> bool {
    std::env::var_os(REQUIRE_ALL).is_some_and(|value| !value.is_empty() && value != "0")
}

fn tell(reason: &dyn Display) {
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a test"));
    eprint!("SKIPPED {line}");
    if let Some(path) = std::env::var_os(COLLECTED_IN) {
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path);
        // One write, so that lines of several processes do not mix.
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the file that collects skips can be written");
    }
}
