//! `--live`: memory, budget and latency over time on standard error, redrawn in place on a terminal,
//! a line a second elsewhere.
//!
//! ```text
//!   memory    58.9 MiB of 60 MiB                     100 MiB
//!   ╌╌╌╌╌╌╌╌╌╌╌╌
//!   ████████████▇
//!   █████████████╌╌╌╌╌╌╌╌╌
//!   ██████████████████████
//!   latency   21.4 ms                                30 ms
//!               ▅▆▅▆▅▅▆▅▆▅
//!   ▃▃▃▃▃▃▃▃▃▃▃▃██████████
//! ```

use super::sample::Sample;
use neaptide::Bytes;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};

/// Time that one column stands for.
const COLUMN_S: f64 = 0.25;

/// Time between two pictures, and between two lines.
const REDRAW_S: f64 = 0.1;
const LINE_S: f64 = 1.0;

const MEMORY_ROWS: usize = 8;
const LATENCY_ROWS: usize = 5;
const MOST_COLUMNS: usize = 240;

/// The largest value in a column's time.
#[derive(Clone, Copy, Default)]
struct Column {
    number: u64,
    memory_bytes: f64,
    budget_bytes: Option<f64>,
    latency_ms: f64,
}

pub struct Live {
    terminal: bool,
    columns: VecDeque<Column>,
    shown_s: f64,
    /// Lines of the picture that is on the screen.
    lines: usize,
    last: Sample,
}

impl Live {
    pub fn new() -> Live {
        Live {
            terminal: std::io::stderr().is_terminal(),
            columns: VecDeque::with_capacity(MOST_COLUMNS + 1),
            shown_s: f64::NEG_INFINITY,
            lines: 0,
            last: Sample::default(),
        }
    }

    pub fn add(&mut self, sample: &Sample) {
        self.last = *sample;
        self.note(sample);
        let pause_s = if self.terminal { REDRAW_S } else { LINE_S };
        if sample.time_s - self.shown_s >= pause_s || sample.adaptation_ms > 0.0 {
            self.show();
        }
    }

    pub fn finish(mut self) {
        if self.last.time_s > self.shown_s {
            self.show();
        }
    }

    fn note(&mut self, sample: &Sample) {
        let number = (sample.time_s / COLUMN_S) as u64;
        let (memory, budget) = (sample.memory_bytes as f64, sample.budget_bytes);
        let budget = budget.map(|bytes| bytes as f64);
        // A run longer than a column fills all that it took.
        let before = self.columns.back().map_or(number, |c| c.number + 1);
        for number in before.max(number.saturating_sub(MOST_COLUMNS as u64))..=number {
            self.columns.push_back(Column {
                number,
                ..Column::default()
            });
            if self.columns.len() > MOST_COLUMNS {
                self.columns.pop_front();
            }
        }
        let began = ((sample.time_s - sample.latency_ms / 1e3).max(0.0) / COLUMN_S) as u64;
        for column in self.columns.iter_mut().rev() {
            if column.number < began {
                break;
            }
            column.memory_bytes = column.memory_bytes.max(memory);
            column.latency_ms = column.latency_ms.max(sample.latency_ms);
            column.budget_bytes = budget;
        }
    }

    fn show(&mut self) {
        self.shown_s = self.last.time_s;
        let text = if self.terminal {
            let (width, height) = terminal_size();
            let rows_fit = height > MEMORY_ROWS + LATENCY_ROWS + 3;
            let picture = if rows_fit {
                self.picture(width)
            } else {
                line(&self.last) + "\n"
            };
            let mut text = String::new();
            if self.lines > 0 {
                // Writing to a string cannot fail.
                let _ = write!(text, "\x1b[{}A", self.lines);
            }
            self.lines = picture.lines().count();
            for line in picture.lines() {
                let _ = write!(text, "\r{line}\x1b[K\n");
            }
            text
        } else {
            line(&self.last) + "\n"
        };
        // Where standard error is closed there is nobody to show it to.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }

    fn picture(&self, width: usize) -> String {
        let shown = width.saturating_sub(1).clamp(10, MOST_COLUMNS);
        let columns: Vec<Column> = {
            let skip = self.columns.len().saturating_sub(shown);
            self.columns.iter().skip(skip).copied().collect()
        };
        let most = |of: &dyn Fn(&Column) -> f64| columns.iter().map(of).fold(1e-9, f64::max);
        let memory = most(&|c| c.memory_bytes.max(c.budget_bytes.unwrap_or(0.0)));
        let latency = most(&|c| c.latency_ms);
        let budget = match self.last.budget_bytes {
            None => String::new(),
            Some(bytes) => format!(" of {}", Bytes(bytes)),
        };
        let mut text = String::new();
        let head = format!("memory   {}{budget}", Bytes(self.last.memory_bytes));
        header(&mut text, &head, &Bytes(memory as u64).to_string(), shown);
        let bars = columns.iter().map(|c| (c.memory_bytes, c.budget_bytes));
        chart(&mut text, bars, memory, MEMORY_ROWS);
        let head = format!("latency  {:.2} ms", self.last.latency_ms);
        header(&mut text, &head, &format!("{latency:.2} ms"), shown);
        let bars = columns.iter().map(|c| (c.latency_ms, None));
        chart(&mut text, bars, latency, LATENCY_ROWS);
        text
    }
}

/// Text on the left, the chart's largest value on the right.
fn header(text: &mut String, left: &str, right: &str, width: usize) {
    let gap = width.saturating_sub(left.chars().count() + right.chars().count());
    let _ = if gap > 0 {
        writeln!(text, "{left}{:gap$}{right}", "")
    } else {
        let left: String = left.chars().take(width).collect();
        writeln!(text, "{left}")
    };
}

/// Columns as bars of eighths of a row, and a dashed mark above them where there is one.
fn chart(
    text: &mut String,
    bars: impl Iterator<Item = (f64, Option<f64>)> + Clone,
    most: f64,
    rows: usize,
) {
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let eighths = |value: f64| (value / most * (rows * 8) as f64).round() as usize;
    for row in (0..rows).rev() {
        for (value, mark) in bars.clone() {
            let filled = eighths(value).saturating_sub(row * 8).min(8);
            let marked = mark.is_some_and(|m| eighths(m).clamp(1, rows * 8).div_ceil(8) == row + 1);
            text.push(if filled == 0 && marked {
                '╌'
            } else {
                EIGHTHS[filled]
            });
        }
        text.push('\n');
    }
}

fn line(sample: &Sample) -> String {
    let mut text = format!("{:8.2} s  ", sample.time_s);
    // Writing to a string cannot fail.
    let _ = match sample.budget_bytes {
        None => write!(text, "no budget"),
        Some(bytes) => write!(text, "budget {}", Bytes(bytes)),
    };
    let memory = Bytes(sample.memory_bytes);
    let _ = write!(
        text,
        "  memory {memory}  latency {:.2} ms",
        sample.latency_ms
    );
    if sample.adaptation_ms > 0.0 {
        let _ = write!(text, "  adapted in {:.2} ms", sample.adaptation_ms);
    }
    text
}

/// Columns and rows of standard error's terminal.
fn terminal_size() -> (usize, usize) {
    // SAFETY: the call fills in a structure that it is given, of the kernel's layout.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &mut size) == 0).then_some(size)
    };
    match size {
        Some(size) if size.ws_col > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(samples: usize) -> Live {
        let mut live = Live::new();
        live.terminal = true;
        live.shown_s = f64::INFINITY;
        for i in 0..samples {
            let small = i >= samples / 2;
            live.last = Sample {
                time_s: i as f64 * 0.1,
                run: i as u64,
                latency_ms: if small { 80.0 } else { 20.0 },
                budget_bytes: Some(if small { 50 << 20 } else { 100 << 20 }),
                memory_bytes: if small { 49 << 20 } else { 90 << 20 },
                ..Sample::default()
            };
            let last = live.last;
            live.note(&last);
        }
        live
    }

    #[test]
    fn a_picture_shows_the_change() {
        let picture = live(100).picture(60);
        let lines: Vec<&str> = picture.lines().collect();
        assert_eq!(lines.len(), MEMORY_ROWS + LATENCY_ROWS + 2);
        assert!(
            lines[0].starts_with("memory   49 MiB of 50 MiB"),
            "{picture}"
        );
        assert!(lines[0].ends_with("100 MiB"), "{picture}");
        assert!(lines[1].starts_with('▂'), "{picture}");
        assert!(lines[1].ends_with(' '), "{picture}");
        assert!(lines[MEMORY_ROWS].ends_with('█') && lines[MEMORY_ROWS].starts_with('█'));
        assert!(lines[MEMORY_ROWS + 1].ends_with("80.00 ms"), "{picture}");
        assert!(lines.last().unwrap().ends_with('█'));
        assert!(lines.iter().all(|l| l.chars().count() < 60), "{picture}");
        assert!(live(0).picture(5).lines().count() > 5);
    }

    #[test]
    fn memory_is_bounded() {
        let mut live = live(20_000);
        assert_eq!(live.columns.len(), MOST_COLUMNS);
        // A very long run.
        let long = Sample {
            time_s: 1e9,
            latency_ms: 1e12,
            ..Sample::default()
        };
        live.note(&long);
        assert!(live.columns.len() <= MOST_COLUMNS);
        assert!(live.picture(200).lines().count() > 10);
    }

    #[test]
    fn lines_for_files() {
        let sample = Sample {
            time_s: 1.5,
            latency_ms: 2.0,
            memory_bytes: 3 << 20,
            adaptation_ms: 4.0,
            ..Sample::default()
        };
        assert_eq!(
            line(&sample),
            "    1.50 s  no budget  memory 3 MiB  latency 2.00 ms  adapted in 4.00 ms"
        );
    }
}
