//! `NAME.toml` beside a model: what the model file does not say.
//!
//! ```toml
//! urgency = 2.0                 # how much its latency matters when memory is divided
//! deadline = "50ms"             # an answer later than this after the request is counted as missed
//! period = "100ms"              # requests come at most so often: their deadlines are promised [deadline: the period]
//!
//! [shapes]                      # of inputs with dynamic dimensions
//! image = [1, 3, 224, 224]
//!
//! [values]                      # of inputs that decide shapes or branches: they are no inputs any more
//! sr = 16000
//!
//! [bounds]                      # of sizes that the data decide, where the model says no bound: by its message
//! boxes = 100
//!
//! [batch]                       # requests that wait together run together
//! most = 8                      # rows of one run
//! wait = "2ms"                  # for how long a request waits for others [default: not at all]
//! ```

use crate::admission::Promise;
use neaptide::{DType, Literal, parse_duration};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub urgency: f64,
    pub deadline: Option<Duration>,
    /// Of a model whose deadlines are promised.
    pub period: Option<Duration>,
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// See [`neaptide::OpenOptions::bindings`].
    pub values: BTreeMap<String, Literal>,
    /// See [`neaptide::OpenOptions::size_bounds`].
    pub bounds: BTreeMap<String, usize>,
    pub batch: Option<Batch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    pub most_rows: usize,
    pub wait: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            urgency: 1.0,
            deadline: None,
            period: None,
            shapes: BTreeMap::new(),
            values: BTreeMap::new(),
            bounds: BTreeMap::new(),
            batch: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    urgency: Option<f64>,
    deadline: Option<String>,
    period: Option<String>,
    #[serde(default)]
    shapes: BTreeMap<String, Vec<usize>>,
    #[serde(default)]
    values: BTreeMap<String, RawValue>,
    #[serde(default)]
    bounds: BTreeMap<String, usize>,
    batch: Option<RawBatch>,
}

/// A number, or a list of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "write a number, true, false, or a list of them")]
enum RawValue {
    Flag(bool),
    Integer(i64),
    Float(f32),
    Flags(Vec<bool>),
    Integers(Vec<i64>),
    Floats(Vec<f32>),
}

impl RawValue {
    fn literal(self) -> Literal {
        let flags = |shape: &[usize], flags: &[bool]| {
            let mut literal = Literal::zeros(DType::Bool, shape);
            let bytes = literal.bytes_mut().iter_mut().zip(flags);
            bytes.for_each(|(byte, &flag)| *byte = flag.into());
            literal
        };
        match self {
            RawValue::Flag(value) => flags(&[], &[value]),
            RawValue::Integer(value) => Literal::from_i64(&[], &[value]),
            RawValue::Float(value) => Literal::from_f32(&[], &[value]),
            RawValue::Flags(values) => flags(&[values.len()], &values),
            RawValue::Integers(values) => Literal::from_i64(&[values.len()], &values),
            RawValue::Floats(values) => Literal::from_f32(&[values.len()], &values),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBatch {
    most: usize,
    wait: Option<String>,
}

/// More rows than this are no batch for a machine with little memory.
const MOST_ROWS: usize = 1024;

/// Larger settings are a mistake.
const MOST_FILE_BYTES: u64 = 64 << 10;

impl Settings {
    /// What is promised to the model's requests, if anything.
    pub fn promise(&self) -> Option<Promise> {
        let (period, deadline) = self.period.zip(self.deadline)?;
        Some(Promise { period, deadline })
    }

    /// Of a file, or the defaults where there is none.
    ///
    /// # Errors
    /// One line that names the file, and the line in it.
    pub fn read(path: &Path) -> Result<Settings, String> {
        let bytes = match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Settings::default());
            }
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
            // A pipe would be waited for.
            Ok(metadata) if !metadata.is_file() => {
                return Err(format!("{} is not a file", path.display()));
            }
            Ok(metadata) => metadata.len(),
        };
        if bytes > MOST_FILE_BYTES {
            return Err(format!("{} is too large for settings", path.display()));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        Settings::parse(&text).map_err(|reason| format!("{}: {reason}", path.display()))
    }

    fn parse(text: &str) -> Result<Settings, String> {
        let raw: Raw = toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .map(|span| 1 + text[..span.start].matches('\n').count());
            let place = line.map_or(String::new(), |line| format!("line {line}: "));
            format!("{place}{}", error.message())
        })?;
        let time = |key: &str, text: Option<String>| match text {
            None => Ok(None),
            Some(text) => parse_duration(&text)
                .map(Some)
                .map_err(|reason| format!("{key}: {reason}")),
        };
        let urgency = raw.urgency.unwrap_or(1.0);
        if !(urgency > 0.0 && urgency.is_finite()) {
            return Err(format!("urgency: {urgency} is not above zero"));
        }
        let batch = match raw.batch {
            None => None,
            Some(batch) if !(1..=MOST_ROWS).contains(&batch.most) => {
                return Err(format!("batch.most: write from 1 to {MOST_ROWS}"));
            }
            Some(batch) => Some(Batch {
                most_rows: batch.most,
                wait: time("batch.wait", batch.wait)?.unwrap_or_default(),
            }),
        };
        let deadline = time("deadline", raw.deadline)?;
        if deadline == Some(Duration::ZERO) {
            return Err("deadline: nothing is done in no time".into());
        }
        let period = time("period", raw.period)?;
        if period == Some(Duration::ZERO) {
            return Err("period: nothing comes so often".into());
        }
        if period.is_some() && batch.is_some() {
            return Err(
                "period: requests with a promised deadline run alone, without [batch]".into(),
            );
        }
        let values = raw.values.into_iter();
        let values = values.map(|(name, value)| (name, value.literal()));
        Ok(Settings {
            values: values.collect(),
            urgency,
            deadline: deadline.or(period),
            period,
            shapes: raw.shapes,
            bounds: raw.bounds,
            batch,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys() {
        let text = "urgency = 2.5\ndeadline = '1.5s'\n[shapes]\nx = [1, 3]\n[values]\nsr = 9\nk = [0.5]\non = true\n[bounds]\nboxes = 9\n[batch]\nmost = 8\nwait = '500us'\n";
        let expected = Settings {
            urgency: 2.5,
            deadline: Some(Duration::from_millis(1500)),
            period: None,
            shapes: [("x".to_string(), vec![1, 3])].into(),
            values: [
                ("k", Literal::from_f32(&[1], &[0.5])),
                ("on", RawValue::Flag(true).literal()),
                ("sr", Literal::from_i64(&[], &[9])),
            ]
            .map(|(name, value)| (name.to_string(), value))
            .into(),
            bounds: [("boxes".to_string(), 9)].into(),
            batch: Some(Batch {
                most_rows: 8,
                wait: Duration::from_micros(500),
            }),
        };
        assert_eq!(Settings::parse(text), Ok(expected));
        assert_eq!(Settings::parse(""), Ok(Settings::default()));
        let often = Settings::parse("period = '20ms'").unwrap();
        let time = Duration::from_millis(20);
        let promise = Promise {
            period: time,
            deadline: time,
        };
        assert_eq!(often.promise(), Some(promise));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("urgency = 0", "urgency"),
            ("urgency = nan", "urgency"),
            ("deadline = '5'", "deadline"),
            ("deadline = '0s'", "deadline"),
            ("deadline = '2days'", "deadline"),
            ("period = '0s'", "period"),
            ("period = '1s'\n[batch]\nmost = 2", "[batch]"),
            ("\n[batch]\nmost = 0", "batch.most"),
            ("[batch]\nwait = '1s'", "most"),
            ("\nspeed = 1", "line 2"),
            ("[shapes]\nx = [-1]", "line 2"),
            ("[values]\nx = 'many'", "line 2"),
        ] {
            let error = Settings::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let folder = Settings::read(Path::new("/tmp"));
        assert!(folder.unwrap_err().contains("not a file"));
        let missing = Settings::read(Path::new("/nowhere/at/all.toml"));
        assert_eq!(missing, Ok(Settings::default()));
    }
}
