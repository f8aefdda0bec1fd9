//! One thread that runs models, one after the other.
//!
//! ```text
//!   requests ─► queue ─┐
//!                      ├─► executor ─► answers, each through a channel of its own
//!   load, unload ──────┘
//! ```
//! A model is loaded or unloaded between two runs.

use crate::buffer::{Buffer, Tensor};
use crate::fleet::{Fleet, Opened, with_rows};
use crate::pool::Held;
use crate::queue::{Next, Queue, Waiting};
use crate::refusal::{Refusal, Why};
use neaptide::{Ledger, TensorInfo};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A request that is ready to run.
pub struct Job {
    pub model: Arc<str>,
    pub inputs: Vec<Tensor>,
    pub rows: usize,
    /// Of the inputs of one request, with its rows.
    pub shapes: Arc<[TensorInfo]>,
    /// Of the outputs of one row, or of the only shapes the model has.
    pub outputs: Arc<[TensorInfo]>,
    /// Rows can be put together.
    pub takes_rows: bool,
    pub arrived: Instant,
    pub reply: oneshot::Sender<Result<Done, Refusal>>,
    /// The memory of inputs and outputs.
    pub held: Held,
}

/// What a run gave.
#[derive(Debug)]
pub struct Done {
    pub outputs: Vec<(TensorInfo, Tensor)>,
    pub waited: Duration,
    pub ran: Duration,
    /// Rows that ran together.
    pub rows: usize,
    pub held: Held,
}

/// What is done between runs.
enum Order {
    Add(String, Box<Opened>, oneshot::Sender<neaptide::Result<()>>),
    Remove(String, oneshot::Sender<neaptide::Result<()>>),
}

#[derive(Default)]
struct State {
    orders: VecDeque<Order>,
    is_closing: bool,
}

struct Shared {
    state: Mutex<(State, Queue<Job>)>,
    changed: Condvar,
    began: Instant,
    /// How long a run takes, of late.
    run_ns: AtomicU64,
    ledgers: Mutex<BTreeMap<String, Ledger>>,
}

/// The thread, and the way to it.
pub struct Executor {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Executor {
    /// # Errors
    /// When no thread can be started.
    pub fn start(fleet: Fleet, capacity: usize) -> std::io::Result<Executor> {
        let shared = Arc::new(Shared {
            state: Mutex::new((State::default(), Queue::new(capacity))),
            changed: Condvar::new(),
            began: Instant::now(),
            run_ns: AtomicU64::new(0),
            ledgers: Mutex::new(BTreeMap::new()),
        });
        let its = shared.clone();
        let thread = std::thread::Builder::new()
            .name("models".into())
            .spawn(move || its.work(fleet))?;
        Ok(Executor {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// [`Why::Busy`] when as many wait as may, [`Why::NotReady`] when the server ends.
    pub fn submit(&self, request: Waiting<Job>) -> Result<(), Refusal> {
        let mut state = lock(&self.shared.state);
        if state.0.is_closing {
            return Err(Refusal::new(Why::NotReady, "the server ends"));
        }
        let waiting = state.1.len();
        state.1.push(request).map_err(|_| {
            let message = format!("{waiting} requests wait already");
            Refusal::busy(message, self.retry_after(waiting))
        })?;
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// When it may be worth asking again.
    pub fn retry_after(&self, waiting: usize) -> Duration {
        let run_ns = self.shared.run_ns.load(Relaxed);
        Duration::from_nanos(run_ns.saturating_mul(waiting as u64)).max(Duration::from_secs(1))
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        lock(&self.shared.state).1.len()
    }

    /// Where each model's memory goes.
    pub fn ledgers(&self) -> BTreeMap<String, Ledger> {
        lock(&self.shared.ledgers).clone()
    }

    /// The time of a moment, as the queue counts it.
    pub fn time_ns(&self, moment: Instant) -> u64 {
        self.shared.time_ns(moment)
    }

    /// Takes a model in.
    ///
    /// # Errors
    /// As [`Fleet::add`].
    pub async fn add(&self, name: &str, opened: Opened) -> neaptide::Result<()> {
        let (reply, answer) = oneshot::channel();
        self.order(Order::Add(name.into(), Box::new(opened), reply));
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Lets a model go when the requests for it that wait have run.
    ///
    /// # Errors
    /// As [`Fleet::remove`].
    pub async fn remove(&self, name: &str) -> neaptide::Result<()> {
        let (reply, answer) = oneshot::channel();
        self.order(Order::Remove(name.into(), reply));
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    fn order(&self, order: Order) {
        lock(&self.shared.state).0.orders.push_back(order);
        self.shared.changed.notify_one();
    }

    /// Ends the thread when everything that waits has run.
    pub fn close(&self) {
        lock(&self.shared.state).0.is_closing = true;
        self.shared.changed.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // What it panicked with was told to whoever waited.
            let _ = thread.join();
        }
    }
}

fn ended() -> neaptide::Error {
    neaptide::Error::Defect("the thread that runs models has ended".into())
}

enum Work {
    Run(Vec<Job>),
    Obey(Order),
}

impl Shared {
    fn time_ns(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.began).as_nanos() as u64
    }

    fn work(&self, mut fleet: Fleet) {
        while let Some(work) = self.next() {
            match work {
                Work::Run(jobs) => self.run(&mut fleet, jobs),
                Work::Obey(Order::Add(name, opened, reply)) => {
                    let added = guarded(|| fleet.add(&name, *opened));
                    *lock(&self.ledgers) = fleet.ledgers();
                    let _ = reply.send(added);
                }
                Work::Obey(Order::Remove(name, reply)) => {
                    let last = lock(&self.state).1.take_all(|job| *job.model == *name);
                    last.into_iter()
                        .for_each(|job| self.run(&mut fleet, vec![job]));
                    let removed = guarded(|| fleet.remove(&name));
                    *lock(&self.ledgers) = fleet.ledgers();
                    let _ = reply.send(removed);
                }
            }
        }
    }

    /// Waits for something to do; `None` at the end.
    fn next(&self) -> Option<Work> {
        let mut state = lock(&self.state);
        loop {
            if let Some(order) = state.0.orders.pop_front() {
                return Some(Work::Obey(order));
            }
            let now_ns = self.time_ns(Instant::now());
            let wait = match state.1.next(now_ns) {
                Next::Run(jobs) => return Some(Work::Run(jobs)),
                Next::Wait(until_ns) => Duration::from_nanos(until_ns - now_ns),
                Next::Empty if state.0.is_closing => return None,
                Next::Empty => Duration::from_secs(60),
            };
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Runs requests together, and answers them.
    fn run(&self, fleet: &mut Fleet, mut jobs: Vec<Job>) {
        // Nobody waits for those.
        jobs.retain(|job| !job.reply.is_closed());
        let Some(first) = jobs.first() else {
            return;
        };
        let began = Instant::now();
        let rows: usize = jobs.iter().map(|job| job.rows).sum();
        let (shapes, infos) = match first.takes_rows {
            true => (
                with_rows(&first.shapes, rows),
                with_rows(&first.outputs, rows),
            ),
            false => (first.shapes.to_vec(), first.outputs.to_vec()),
        };
        let inputs = together(&jobs, shapes.len());
        let mut outputs: Vec<Buffer> = infos
            .iter()
            .map(|info| Buffer::zeroed(info.len_bytes()))
            .collect();
        let mut places: Vec<&mut [u8]> = outputs.iter_mut().map(Buffer::bytes_mut).collect();
        let result = guarded(|| fleet.run(&first.model, &shapes, &inputs, &mut places));
        let ran = began.elapsed();
        self.run_ns.store(ran.as_nanos() as u64, Relaxed);
        let outputs: Vec<Arc<Buffer>> = outputs.into_iter().map(Arc::new).collect();
        match result {
            Ok(()) => {
                let mut row = 0;
                for job in jobs {
                    let parts = job_outputs(&job, row, rows, &outputs);
                    row += job.rows;
                    let done = Done {
                        outputs: parts,
                        waited: began.saturating_duration_since(job.arrived),
                        ran,
                        rows,
                        held: job.held,
                    };
                    let _ = job.reply.send(Ok(done));
                }
            }
            // One of them may be at fault: each alone.
            Err(_) if jobs.len() > 1 => {
                jobs.into_iter().for_each(|job| self.run(fleet, vec![job]));
            }
            Err(error) => {
                let refusal = Refusal::of_run(error);
                for job in jobs {
                    let _ = job.reply.send(Err(refusal.clone()));
                }
            }
        }
    }
}

/// A panic is an error like others: the thread goes on.
fn guarded<T>(work: impl FnOnce() -> neaptide::Result<T>) -> neaptide::Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let text = "the engine panicked".to_string();
        Err(neaptide::Error::Defect(text))
    })
}

/// Inputs of all requests, one behind the other.
fn together(jobs: &[Job], inputs: usize) -> Vec<Tensor> {
    if let [job] = jobs {
        return job.inputs.clone();
    }
    let join = |index: usize| {
        let parts = jobs.iter().map(|job| job.inputs[index].bytes());
        let mut buffer = Buffer::zeroed(parts.clone().map(<[u8]>::len).sum());
        let mut rest = buffer.bytes_mut();
        for part in parts {
            let (place, behind) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = behind;
        }
        Tensor::new(buffer)
    };
    (0..inputs).map(join).collect()
}

/// The outputs of one request: its rows, from `row` on, of `rows`.
fn job_outputs(
    job: &Job,
    row: usize,
    rows: usize,
    outputs: &[Arc<Buffer>],
) -> Vec<(TensorInfo, Tensor)> {
    let infos = match job.takes_rows {
        true => with_rows(&job.outputs, job.rows),
        false => job.outputs.to_vec(),
    };
    let parts = infos.into_iter().zip(outputs).map(|(info, buffer)| {
        let row_bytes = buffer.bytes().len() / rows;
        let range = match job.takes_rows {
            true => row * row_bytes..(row + job.rows) * row_bytes,
            false => 0..buffer.bytes().len(),
        };
        (info, Tensor::within(buffer, range))
    });
    parts.collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
