//! Worker processes of benchmarks: each holds one engine and waits while another one runs.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Before every turn.
pub const REST: Duration = Duration::from_millis(100);

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A process that answers `run N` and `stats` with a line of JSON each.
pub struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// The first line it said.
    pub ready: Value,
}

impl Peer {
    pub fn start(command: &mut Command) -> Result<Peer> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().context("stdin")?;
        let stdout = BufReader::new(child.stdout.take().context("stdout")?);
        let mut peer = Peer {
            child,
            stdin,
            stdout,
            ready: Value::Null,
        };
        peer.ready = peer.answer()?;
        Ok(peer)
    }

    pub fn ask(&mut self, question: &str) -> Result<Value> {
        writeln!(self.stdin, "{question}")?;
        self.stdin.flush()?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            bail!("a worker ended: {}", self.child.wait()?);
        }
        let value: Value = serde_json::from_str(&line)?;
        match value["error"].as_str() {
            Some(error) => bail!("{error}"),
            None => Ok(value),
        }
    }

    pub fn run(&mut self, times: usize) -> Result<Vec<f64>> {
        let value = self.ask(&format!("run {times}"))?;
        Ok(value["latency_ms"]
            .as_array()
            .context("latency_ms")?
            .iter()
            .filter_map(Value::as_f64)
            .collect())
    }

    /// One turn of an interleaved benchmark: rest, one run that is not counted, `times` that are. Threads of
    /// the engine before may still spin, waiting for work; they sleep after the rest. The first run finds
    /// loaded what the rest left time for, which no run in a row does.
    pub fn turn(&mut self, times: usize) -> Result<Vec<f64>> {
        std::thread::sleep(REST);
        let mut latency = self.run(times + 1)?;
        latency.remove(0);
        Ok(latency)
    }

    pub fn peak_bytes(&mut self) -> Result<u64> {
        let stats = self.ask("stats")?;
        stats["peak_memory_bytes"]
            .as_u64()
            .context("peak_memory_bytes")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
