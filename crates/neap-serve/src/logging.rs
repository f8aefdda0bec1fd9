//! What the server tells its operator, a line each, on standard error.
//!
//! ```text
//!   events ─► lines of text or JSON ─► a bounded queue ─► one thread ─► standard error
//! ```
//! Nobody who reads standard error slowly keeps a request waiting: lines that find no room are counted, and the number is
//! told when there is room again.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, fmt as lines};

/// The target of all events here.
const OWN: &str = env!("CARGO_CRATE_NAME");

/// The target of a line for each request, where they are wished for.
pub(crate) const ACCESS: &str = "access";

/// The target of lines that are told whatever the level.
const TOLD: &str = "told";

/// Lines that wait to be written.
const WAITING: usize = 512;

/// For the last lines, when the server ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    #[default]
    Text,
    /// An object each.
    Json,
}

/// Which events are told: a level, or levels by target (`neap_serve=debug,h2=info`).
#[derive(Debug, Clone, PartialEq)]
pub struct LogFilter(Targets);

impl LogFilter {
    /// Events of this program from `level` on, and warnings of its libraries.
    fn of(level: LevelFilter) -> LogFilter {
        let others = level.min(LevelFilter::WARN);
        let own = [OWN, ACCESS].map(|target| (target, level));
        LogFilter::also_told(Targets::new().with_default(others).with_targets(own))
    }

    fn also_told(targets: Targets) -> LogFilter {
        LogFilter(targets.with_target(TOLD, LevelFilter::INFO))
    }

    /// What may need somebody.
    pub fn quiet() -> LogFilter {
        LogFilter::of(LevelFilter::WARN)
    }
}

/// A line of the program around the server, where all lines are JSON.
pub fn tell(text: &str) {
    tracing::info!(target: TOLD, "{text}");
}

impl Default for LogFilter {
    fn default() -> LogFilter {
        LogFilter::of(LevelFilter::INFO)
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFilter, String> {
        let is_word = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic());
        if let Some(level) = text.parse::<LevelFilter>().ok().filter(|_| is_word) {
            return Ok(LogFilter::of(level));
        }
        let targets = text.parse::<Targets>().ok();
        // A word alone would be the name of a target.
        let targets = targets.filter(|_| text.contains('='));
        targets.map(LogFilter::also_told).ok_or_else(|| {
            format!(
                "expected off, error, warn, info, debug, trace, or TARGET=LEVEL, got '{}'",
                text.escape_debug()
            )
        })
    }
}

/// While this lives, events become lines; the last of them are written when it is dropped.
pub struct Logging {
    end: SyncSender<Message>,
    written: Receiver<()>,
}

enum Message {
    Line(Box<[u8]>),
    End,
}

impl Logging {
    /// From now on for the whole process.
    ///
    /// # Errors
    /// When events go elsewhere already, or no thread can be started.
    pub fn start(filter: LogFilter, format: LogFormat) -> Result<Logging, LoggingError> {
        Logging::to(io::stderr(), filter, format)
    }

    fn to(
        place: impl Write + Send + 'static,
        filter: LogFilter,
        format: LogFormat,
    ) -> Result<Logging, LoggingError> {
        let (logging, queue) = Logging::queue(place, format)?;
        layer(queue, filter, format).try_init()?;
        Ok(logging)
    }

    /// The thread that writes, and the way to it.
    fn queue(
        place: impl Write + Send + 'static,
        format: LogFormat,
    ) -> io::Result<(Logging, Queue)> {
        let (end, lines) = sync_channel(WAITING);
        let (all_written, written) = sync_channel(1);
        let lost = Arc::new(AtomicU64::new(0));
        let queue = Queue {
            lines: end.clone(),
            lost: lost.clone(),
        };
        let work = move || {
            write(place, format, &lines, &lost);
            // Nobody may wait for it any more.
            let _ = all_written.send(());
        };
        std::thread::Builder::new()
            .name("log".into())
            .stack_size(128 << 10)
            .spawn(work)?;
        Ok((Logging { end, written }, queue))
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        // Where nobody reads standard error, the end does not wait for it.
        let mut message = Message::End;
        for _ in 0..10 {
            match self.end.try_send(message) {
                Ok(()) => break,
                Err(error) => {
                    let (std::sync::mpsc::TrySendError::Full(back)
                    | std::sync::mpsc::TrySendError::Disconnected(back)) = error;
                    message = back;
                    std::thread::sleep(PATIENCE / 10);
                }
            }
        }
        match self.written.recv_timeout(PATIENCE) {
            Ok(()) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
}

/// Why events do not become lines.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error("the log goes elsewhere already: {0}")]
    Elsewhere(#[from] TryInitError),
    #[error("no thread can be started for the log: {0}")]
    Thread(#[from] io::Error),
}

/// What turns events into lines.
fn layer(
    queue: Queue,
    filter: LogFilter,
    format: LogFormat,
) -> impl tracing::Subscriber + Send + Sync + 'static {
    let text = lines::layer()
        .with_writer(queue)
        .with_ansi(false)
        .with_target(false);
    let layer = match format {
        LogFormat::Text => text.boxed(),
        LogFormat::Json => text
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter.0))
}

fn write(mut place: impl Write, format: LogFormat, lines: &Receiver<Message>, lost: &AtomicU64) {
    while let Ok(Message::Line(line)) = lines.recv() {
        // Where standard error is closed there is nobody to tell.
        let _ = place.write_all(&line);
        let lost = lost.swap(0, Relaxed);
        if lost > 0 {
            let _ = match format {
                LogFormat::Text => writeln!(place, "{lost} lines were lost here"),
                LogFormat::Json => {
                    let level = r#""level":"WARN","message":"lines were lost here""#;
                    writeln!(place, "{{{level},\"lost\":{lost}}}")
                }
            };
        }
    }
    let _ = place.flush();
}

/// Where lines wait.
#[derive(Clone)]
struct Queue {
    lines: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Queue")
    }
}

impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Message::Line(line.into())).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = &'a Queue;

    fn make_writer(&'a self) -> &'a Queue {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// A place that says what was written to it, and may take nothing for a while.
    #[derive(Clone, Default)]
    struct Place(Arc<Mutex<Vec<u8>>>);

    impl Write for Place {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn told(filter: &str, format: LogFormat) -> String {
        let place = Place::default();
        let (logging, queue) = Logging::queue(place.clone(), format).unwrap();
        let subscriber = layer(queue, filter.parse().unwrap(), format);
        tracing::subscriber::with_default(subscriber, || {
            let request = tracing::error_span!("request", id = "seven");
            let _inside = request.enter();
            tracing::info!(model = "a", "loaded");
            tracing::debug!("a detail");
            tracing::info!(target: "h2", "of a library");
        });
        drop(logging);
        let written = place.0.lock().unwrap().clone();
        String::from_utf8(written).unwrap()
    }

    #[test]
    fn events_become_lines_with_their_request() {
        let text = told("info", LogFormat::Text);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains("INFO request{id=\"seven\"}: loaded model=\"a\""),
            "{text}"
        );
        let json = told("info", LogFormat::Json);
        let line: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
        assert_eq!(line["message"], "loaded");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["model"], "a");
        assert_eq!(line["span"]["id"], "seven");
    }

    #[test]
    fn the_filter_decides_what_is_told() {
        for (filter, lines) in [
            ("off", 0),
            ("warn", 0),
            ("debug", 2),
            ("DEBUG", 2),
            ("h2=info", 1),
        ] {
            assert_eq!(
                told(filter, LogFormat::Text).lines().count(),
                lines,
                "{filter}"
            );
        }
        for wrong in ["loud", "", "h2=loud", "a b"] {
            let error = wrong.parse::<LogFilter>().unwrap_err();
            assert!(error.contains("expected off, error"), "{error}");
        }
    }

    #[test]
    fn nobody_waits_for_a_place_that_takes_nothing() {
        struct Stuck(Receiver<()>);
        impl Write for Stuck {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let _ = self.0.recv();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (release, stuck) = sync_channel(1);
        let (logging, queue) = Logging::queue(Stuck(stuck), LogFormat::Text).unwrap();
        for _ in 0..4 * WAITING {
            (&queue).write_all(b"line\n").unwrap();
        }
        assert!(queue.lost.load(Relaxed) >= 2 * WAITING as u64);
        drop(release);
        drop(logging);
    }
}
