//! How long a model's runs take, and for how long one cannot be ended.
//!
//! ```text
//!   run   │ step │ step │   step   │ step │         ended here ─► what is in flight is waited for
//!         └──────┴──────┴──────────┴──────┴ moments at which it can be ended
//! ```

use crate::admission::Measured;
use crate::buffer::{Buffer, Tensor};
use crate::fleet::{Asked, Fleet, with_rows};
use neaptide::{CancelToken, Error, Result, TensorInfo};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Runs of each number of rows, from their beginning to their end.
const WHOLE_RUNS: usize = 6;

/// Runs that are ended early, at different steps.
const ENDED_RUNS: u64 = 4;

/// Names, shapes and the like of one request.
const NAMES_BYTES: u64 = 16 << 10;

/// A run that has to make way for so long is not measured.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often one that makes way looks whether it may go on.
const LOOK: Duration = Duration::from_millis(1);

/// The model that is measured.
pub struct Subject<'a> {
    pub name: &'a str,
    pub inputs: &'a [TensorInfo],
    pub outputs: &'a [TensorInfo],
    /// Rows of one run, at most.
    pub most_rows: usize,
}

impl Subject<'_> {
    /// What inputs and outputs take.
    pub fn bytes(&self) -> u64 {
        let tensors = self.inputs.iter().chain(self.outputs);
        let one: u64 = tensors.map(|t| t.len_bytes() as u64).sum();
        one * self.most_rows as u64
    }

    /// What a request whose tensors are bytes takes at most, over HTTP or gRPC, to its answer.
    pub fn request_bytes(&self) -> u64 {
        // A message is copied to where its tensors are aligned, and an answer is made of its tensors.
        2 * (self.bytes() + NAMES_BYTES)
    }

    /// Runs the model on zeros. Whenever `makes_way` says so, a run ends and is tried again.
    ///
    /// # Errors
    /// Those of a run; [`Error::Run`] when it has to make way for too long.
    pub fn measure(
        &self,
        fleet: &Fleet,
        makes_way: &Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<Measured> {
        fleet.settle(self.name)?;
        let mut measured = Measured::default();
        let mut sizes = vec![1, self.most_rows];
        sizes.dedup();
        for rows in sizes {
            let mut steps = 0;
            for _ in 0..WHOLE_RUNS {
                let whole = self.run(fleet, rows, u64::MAX, makes_way)?;
                measured.run_ns = measured.run_ns.max(whole.ran_ns);
                measured.step_ns = measured.step_ns.max(whole.step_ns);
                steps = whole.steps;
            }
            let step_ns = measured.step_ns;
            for at in 1..=ENDED_RUNS {
                let ended = self.run(fleet, rows, steps * at / (ENDED_RUNS + 1), makes_way)?;
                measured.step_ns = measured.step_ns.max(step_ns + ended.last_ns);
            }
        }
        Ok(measured)
    }

    /// A run that ends at its step `until`, or at its end.
    fn run(
        &self,
        fleet: &Fleet,
        rows: usize,
        until: u64,
        makes_way: &Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<Observed> {
        let (inputs, outputs) = match self.most_rows {
            1 => (self.inputs.to_vec(), self.outputs.to_vec()),
            _ => (with_rows(self.inputs, rows), with_rows(self.outputs, rows)),
        };
        let zeros = |info: &TensorInfo| Buffer::zeroed(info.len_bytes());
        let tensors: Vec<Tensor> = inputs.iter().map(|i| Tensor::new(zeros(i))).collect();
        let mut buffers: Vec<Buffer> = outputs.iter().map(zeros).collect();
        let first = Instant::now();
        while first.elapsed() < PATIENCE {
            if makes_way() {
                std::thread::sleep(LOOK);
                continue;
            }
            let watch = Arc::new(Watch::new(until));
            let (its, makes_way) = (watch.clone(), makes_way.clone());
            let asked = Asked {
                model: self.name,
                shapes: &inputs,
                tensors: &tensors,
                rank: u64::MAX,
                cancel: CancelToken::new().or_when(move || its.is_over() || makes_way()),
            };
            let mut places: Vec<&mut [u8]> = buffers.iter_mut().map(Buffer::bytes_mut).collect();
            match fleet.run(&asked, &mut places) {
                Ok(report) => return Ok(watch.ended(Some(report.ran_ns))),
                Err(Error::Cancelled) if watch.was_over.load(Relaxed) => {
                    return Ok(watch.ended(None));
                }
                // Somebody else's deadline.
                Err(Error::Cancelled) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Run(format!(
            "'{}' cannot be measured beside the requests that come",
            self.name
        )))
    }
}

/// What was seen of one run.
struct Observed {
    ran_ns: u64,
    /// How often it could have been ended.
    steps: u64,
    /// The longest time between two such moments.
    step_ns: u64,
    /// From the last of them to the end.
    last_ns: u64,
}

/// Looks on as a run asks whether it is to end.
struct Watch {
    began: Instant,
    until: u64,
    steps: AtomicU64,
    first_ns: AtomicU64,
    last_ns: AtomicU64,
    longest_ns: AtomicU64,
    was_over: AtomicBool,
}

impl Watch {
    fn new(until: u64) -> Watch {
        Watch {
            began: Instant::now(),
            until,
            steps: AtomicU64::new(0),
            first_ns: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
            was_over: AtomicBool::new(false),
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// One thread asks at a time: while the run waits for its turn, and then before each of its computes.
    fn is_over(&self) -> bool {
        let now_ns = self.now_ns();
        match self.steps.fetch_add(1, Relaxed) {
            0 => self.first_ns.store(now_ns, Relaxed),
            _ => {
                let since_ns = now_ns - self.last_ns.load(Relaxed);
                self.longest_ns.fetch_max(since_ns, Relaxed);
            }
        }
        self.last_ns.store(now_ns, Relaxed);
        let is_over = self.steps.load(Relaxed) > self.until;
        self.was_over.fetch_or(is_over, Relaxed);
        is_over
    }

    /// `ran_ns` of one that ran to its end.
    fn ended(&self, ran_ns: Option<u64>) -> Observed {
        let end_ns = self.now_ns();
        let last_ns = end_ns.saturating_sub(self.last_ns.load(Relaxed));
        let longest_ns = self.longest_ns.load(Relaxed);
        // Before its first step it goes over to other shapes, maybe.
        let start_ns = ran_ns.map_or(end_ns, |ran_ns| end_ns.saturating_sub(ran_ns));
        let before_ns = self.first_ns.load(Relaxed).saturating_sub(start_ns);
        Observed {
            ran_ns: ran_ns.unwrap_or(0),
            steps: self.steps.load(Relaxed),
            step_ns: longest_ns.max(last_ns).max(before_ns),
            last_ns,
        }
    }
}
