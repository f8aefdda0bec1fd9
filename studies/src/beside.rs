//! Reads beside runs: what perfect overlap takes, with nothing waiting for anything.
//!
//! ```text
//!   session   ├──────── run, all resident ────────┤
//!   thread    ├─ read ──┤├─ read ──┤├─ read ──┤            as many bytes as a budget makes a run load
//!                                                 ^ done
//! ```
//! Reading takes processor time, memory bandwidth and interrupts from computing; how much no plan can
//! change. So this is what a plan's latency can be compared with, beside either of the two alone.

use anyhow::{Context, Result};
use neap_store::{BandwidthReader, DirectFile, UringConfig, UringSource};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Requests at once: as many bytes as the engine hands over in a group.
const REQUESTS: usize = 8;

pub struct Beside {
    begin: Sender<()>,
    done: Receiver<Result<()>>,
}

/// A read that goes on.
pub struct Reading<'a>(&'a Receiver<Result<()>>);

impl Reading<'_> {
    pub fn wait(self) -> Result<()> {
        self.0.recv().context("the reader ended")?
    }
}

impl Beside {
    /// Will read `bytes` of `packed` each time.
    pub fn start(packed: &Path, bytes: u64) -> Result<Beside> {
        let mut reader = Reader::new(packed)?;
        let (begin, asked) = channel();
        let (answer, done) = channel();
        std::thread::spawn(move || {
            while asked.recv().is_ok() && answer.send(reader.read(bytes)).is_ok() {}
        });
        Ok(Beside { begin, done })
    }

    pub fn read(&mut self) -> Result<Reading<'_>> {
        self.begin.send(()).context("the reader ended")?;
        Ok(Reading(&self.done))
    }
}

struct Reader {
    source: UringSource,
    memory: Option<BandwidthReader>,
}

impl Reader {
    fn new(packed: &Path) -> Result<Reader> {
        let file = Arc::new(DirectFile::open(packed)?);
        let config = UringConfig::default();
        let file_bytes = file.len_bytes();
        let request_bytes = config.piece_bytes.min((file_bytes / 4096 * 4096) as usize);
        let memory = BandwidthReader::new(file_bytes, request_bytes, REQUESTS)?;
        Ok(Reader {
            source: UringSource::new(file, config)?,
            memory: Some(memory),
        })
    }

    fn read(&mut self, bytes: u64) -> Result<()> {
        let memory = self.memory.take().context("a read failed before")?;
        // A run that loads less than a request loads next to nothing.
        let bytes = bytes.max(UringConfig::default().piece_bytes as u64);
        let (memory, _) = memory.read(&mut self.source, bytes)?;
        self.memory = Some(memory);
        Ok(())
    }
}
