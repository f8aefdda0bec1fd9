//! Progress on standard error: a bar on a terminal, a line before and after elsewhere; with `-v` what is done besides.

use crate::interrupt;
use crate::names;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use neaptide::Bytes;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Instant;

/// One long piece of work over a number of bytes.
pub struct Progress {
    what: String,
    quiet: bool,
    state: Option<State>,
}

struct State {
    started: Instant,
    total_bytes: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Nothing is shown until the first [`Progress::at`].
    pub fn new(what: impl Into<String>, quiet: bool) -> Progress {
        Progress {
            what: what.into(),
            quiet,
            state: None,
        }
    }

    /// The work has come so far. Ends the work when a signal was noted.
    pub fn at(&mut self, done_bytes: u64, total_bytes: u64) {
        interrupt::unwind_if_asked();
        if self.quiet {
            return;
        }
        let state = self
            .state
            .get_or_insert_with(|| State::start(&self.what, total_bytes));
        if let Some(bar) = &state.bar {
            bar.set_position(done_bytes);
        }
    }

    pub fn finish(self) {
        let Some(state) = self.state else { return };
        if let Some(bar) = &state.bar {
            bar.finish_and_clear();
        }
        let seconds = state.started.elapsed().as_secs_f64();
        note(&format!(
            "{}: {} in {seconds:.1} s",
            self.what,
            Bytes(state.total_bytes)
        ));
    }
}

impl State {
    fn start(what: &str, total_bytes: u64) -> State {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(
                Some(total_bytes),
                ProgressDrawTarget::stderr_with_hz(10),
            );
            let template = "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar.set_message(what.to_string());
            bar
        });
        if bar.is_none() {
            note(&format!("{what}: {}", Bytes(total_bytes)));
        }
        State {
            started: Instant::now(),
            total_bytes,
            bar,
        }
    }
}

/// When the command began, where details are to be told.
static BEGAN: OnceLock<Instant> = OnceLock::new();

/// Has [`detail`] tell from now on.
pub fn tell_details() {
    let _ = BEGAN.set(Instant::now());
}

pub fn tells_details() -> bool {
    BEGAN.get().is_some()
}

/// What the command does now, with the time since it began: a line on standard error, with `-v`.
pub fn detail(text: impl FnOnce() -> String) {
    if let Some(began) = BEGAN.get() {
        note(&format!(
            "{:9.3} s  {}",
            began.elapsed().as_secs_f64(),
            text()
        ));
    }
}

/// A line on standard error.
pub fn note(text: &str) {
    // Where standard error is closed there is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "{}", names::shown(text));
}
