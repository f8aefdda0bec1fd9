//! How far the steps are, and the time that is left, on standard error.

use crate::progress::note;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Where there is no terminal, lines are so far apart.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

pub struct Steps {
    total: u64,
    done: u64,
    began: Instant,
    said: Instant,
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Steps {
    pub fn new(total: u64, quiet: bool) -> Steps {
        let on_terminal = std::io::stderr().is_terminal() && !quiet;
        let bar = on_terminal.then(|| {
            let target = ProgressDrawTarget::stderr_with_hz(10);
            let bar = ProgressBar::with_draw_target(Some(total), target);
            let template = "imagining {wide_bar} step {pos} of {len}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar
        });
        Steps {
            total,
            done: 0,
            began: Instant::now(),
            said: Instant::now(),
            bar,
            quiet,
        }
    }

    /// One more is done.
    pub fn step(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        } else if !self.quiet && self.said.elapsed() > BETWEEN_LINES {
            self.said = Instant::now();
            let each = self.began.elapsed().as_secs_f64() / self.done as f64;
            note(&format!(
                "step {} of {}, {:.0} s left",
                self.done,
                self.total,
                each * (self.total - self.done) as f64
            ));
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
