//! `--trace FILE`: every run as a line of CSV or an element of a JSON array, written as it happens so
//! that a long trace takes no memory.

use super::sample::Sample;
use crate::atomic::Growing;
use crate::failure::{Outcome, bad};
use crate::interrupt::{self, Deferred};
use std::io::{self, Write};
use std::path::Path;

/// While it lives, signals wait: a run that is stopped keeps what was written so far.
pub struct Trace {
    file: Growing,
    _deferred: Deferred,
    json: bool,
    empty: bool,
}

impl Trace {
    /// Whether the name says how to write.
    pub fn check_name(path: &Path) -> Outcome<()> {
        is_json(path).map(drop)
    }

    pub fn create(path: &Path) -> Outcome<Trace> {
        let json = is_json(path)?;
        let deferred = interrupt::defer();
        let mut trace = Trace {
            file: Growing::create(path)?,
            _deferred: deferred,
            json,
            empty: true,
        };
        let head = if json {
            "["
        } else {
            "time_s,run,latency_ms,stall_ms,budget_bytes,memory_bytes,adaptation_ms\n"
        };
        trace.file.write(|f| f.write_all(head.as_bytes()))?;
        Ok(trace)
    }

    pub fn add(&mut self, sample: &Sample) -> Outcome {
        let (json, first) = (self.json, std::mem::replace(&mut self.empty, false));
        self.file.write(|f| {
            if json {
                f.write_all(if first { b"\n" } else { b",\n" })?;
                return serde_json::to_writer(f, sample).map_err(io::Error::from);
            }
            let Sample {
                time_s,
                run,
                latency_ms,
                stall_ms,
                memory_bytes,
                adaptation_ms,
                ..
            } = sample;
            write!(f, "{time_s:.6},{run},{latency_ms:.3},{stall_ms:.3},")?;
            if let Some(bytes) = sample.budget_bytes {
                write!(f, "{bytes}")?;
            }
            writeln!(f, ",{memory_bytes},{adaptation_ms:.3}")
        })
    }

    pub fn finish(mut self) -> Outcome {
        if self.json {
            self.file.write(|f| f.write_all(b"\n]\n"))?;
        }
        self.file.finish()
    }
}

fn is_json(path: &Path) -> Outcome<bool> {
    let ending = path.extension().map(|e| e.to_ascii_lowercase());
    match ending.as_ref().and_then(|e| e.to_str()) {
        Some("json") => Ok(true),
        Some("csv") => Ok(false),
        _ => {
            let path = path.display();
            Err(bad(format!("--trace {path} must end in .csv or .json")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn both_forms() {
        let folder = tempfile::tempdir().unwrap();
        let sample = Sample {
            time_s: 0.5,
            run: 3,
            latency_ms: 1.25,
            budget_bytes: Some(7),
            memory_bytes: 6,
            ..Sample::default()
        };
        let free = Sample {
            budget_bytes: None,
            ..sample
        };
        for name in ["t.csv", "t.JSON"] {
            let path = folder.path().join(name);
            let mut trace = Trace::create(&path).unwrap();
            trace.add(&sample).unwrap();
            trace.add(&free).unwrap();
            assert!(!path.exists(), "half a trace has no name");
            trace.finish().unwrap();
        }
        let csv = fs::read_to_string(folder.path().join("t.csv")).unwrap();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[1], "0.500000,3,1.250,0.000,7,6,0.000");
        assert_eq!(lines[2], "0.500000,3,1.250,0.000,,6,0.000");
        let json = fs::read_to_string(folder.path().join("t.JSON")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json[0]["budget_bytes"], 7);
        assert_eq!(json[1]["budget_bytes"], serde_json::Value::Null);
        drop(Trace::create(&folder.path().join("u.csv")).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert!(Trace::create(&folder.path().join("t.txt")).is_err());
    }
}
