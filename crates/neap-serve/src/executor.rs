//! One thread that runs models, one after the other.
//!
//! ```text
//!   requests ─► queue ─► executor ─► answers, each through a channel of its own
//!   load, unload ─► the engine, on a thread of their own
//! ```
//! A run that nobody waits for any more ends at the boundary of a compute. So does one in a gap when a
//! request comes whose deadline is promised, unless there is time for both ([`crate::way`]); it runs again.

mod pace;
mod promising;
mod taking_over;

pub use promising::Candidate;

use crate::admission::{Admission, Released, Told};
use crate::buffer::{Buffer, Tensor};
use crate::fleet::{Asked, Fleet, Opened, served_name, with_rows};
use crate::pool::{Held, Pool};
use crate::queue::{Next, Outlook, Queue, Waiting};
use crate::refusal::{Refusal, Why};
use crate::way::InGap;
use neaptide::{CancelToken, EngineLedger, TensorInfo, TensorType};
use pace::Pace;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A request that is ready to run.
pub struct Job {
    /// The key of its model.
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
    /// Set when nobody waits for the answer any more.
    pub gone: Arc<AtomicBool>,
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

#[derive(Default)]
struct State {
    is_closing: bool,
    /// The model that runs.
    running: Option<Arc<str>>,
}

struct Shared {
    fleet: Fleet,
    state: Mutex<(State, Queue<Job>)>,
    changed: Condvar,
    began: Instant,
    /// How long a run takes, of late.
    run_ns: AtomicU64,
    /// Nobody waits for anything any more.
    is_cut_off: Arc<AtomicBool>,
    admission: Admission,
    /// For how long runs without a promise may keep others waiting; `u64::MAX` when nothing is promised.
    room_ns: Arc<AtomicU64>,
    pace: Pace,
    /// When the next promised request that waits is to run.
    promised_ns: Arc<AtomicU64>,
    /// Runs that made way for a promised request.
    made_way: AtomicU64,
    /// For what is measured.
    pool: Arc<Pool>,
}

/// The thread, and the way to it.
pub struct Executor {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Executor {
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        fleet: Fleet,
        capacity: usize,
        margin: f64,
        pool: Arc<Pool>,
    ) -> std::io::Result<Executor> {
        let shared = Arc::new(Shared {
            fleet,
            state: Mutex::new((State::default(), Queue::new(capacity))),
            changed: Condvar::new(),
            began: Instant::now(),
            run_ns: AtomicU64::new(0),
            is_cut_off: Arc::default(),
            admission: Admission::new(margin),
            room_ns: Arc::new(AtomicU64::new(u64::MAX)),
            pace: Pace::default(),
            promised_ns: Arc::new(AtomicU64::new(u64::MAX)),
            made_way: AtomicU64::new(0),
            pool,
        });
        let its = shared.clone();
        let thread = std::thread::Builder::new()
            .name("models".into())
            .spawn(move || its.work())?;
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
        self.shared.note_promised(&state);
        drop(state);
        self.shared.changed.notify_all();
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

    /// Where the models' memory goes.
    pub fn ledger(&self) -> EngineLedger {
        self.shared.fleet.ledger()
    }

    /// Of the models' memory, what none of them has; `None` without a limit.
    pub fn free_bytes(&self) -> Option<u64> {
        let ledger = self.ledger();
        let budget = ledger.budget_bytes?;
        Some(budget.saturating_sub(ledger.parts.total_bytes()))
    }

    /// The time of a moment, as the queue counts it.
    pub fn time_ns(&self, moment: Instant) -> u64 {
        self.shared.time_ns(moment)
    }

    /// Takes a model in, beside the runs of others.
    ///
    /// # Errors
    /// As [`Fleet::add`].
    pub async fn add(&self, name: &str, opened: Opened) -> neaptide::Result<()> {
        let (shared, name) = (self.shared.clone(), name.to_string());
        elsewhere(move || shared.add(&name, opened)).await
    }

    /// Measures models where that is needed, and makes their promises as far as they can be kept. Those that cannot be
    /// served beside promises are let go: their names, and why.
    pub async fn promise(&self, models: Vec<Candidate>) -> Vec<(String, String)> {
        let shared = self.shared.clone();
        let asked: Vec<String> = models.iter().map(|m| m.name.clone()).collect();
        let promised = tokio::task::spawn_blocking(move || shared.promise(models)).await;
        promised.unwrap_or_else(|_| {
            let reason = "measuring ended with a panic".to_string();
            asked
                .into_iter()
                .map(|name| (name, reason.clone()))
                .collect()
        })
    }

    /// When a request of a model counts as come, if its deadline is promised.
    ///
    /// # Errors
    /// [`Why::TooOften`].
    pub fn release(&self, model: &str, arrived: Instant) -> Result<Option<Released>, Refusal> {
        match self.shared.admission.release(model, self.time_ns(arrived)) {
            None => Ok(None),
            Some(Ok(released)) => Ok(Some(released)),
            Some(Err(retry_after)) => Err(Refusal::new(
                Why::TooOften { retry_after },
                format!(
                    "requests of '{}' come more often than its period allows",
                    served_name(model)
                ),
            )),
        }
    }

    /// Whether it is known how long a model's runs are, or nobody needs to know.
    pub fn is_known(&self, model: &str) -> bool {
        let share = self.shared.fleet.shares().get(model).copied();
        let known = share.and_then(|share| self.shared.admission.known(model, share));
        known.is_some() || !self.shared.admission.promises()
    }

    /// Whether a model has that key.
    pub fn is_there(&self, key: &str) -> bool {
        self.shared.fleet.has(key)
    }

    /// Whether any deadline is promised.
    pub fn promises(&self) -> bool {
        self.shared.admission.promises()
    }

    pub fn is_promised(&self, model: &str) -> bool {
        self.shared.admission.is_promised(model)
    }

    /// Every promise, by name.
    pub fn told_promises(&self) -> BTreeMap<String, Told> {
        let told = self.shared.admission.told().into_iter();
        let named = told.map(|(key, told)| (served_name(&key).to_string(), told));
        named.collect()
    }

    /// Runs that made way for a promised request.
    pub fn made_way(&self) -> u64 {
        self.shared.made_way.load(Relaxed)
    }

    /// Gives the models more or less memory, beside their runs.
    ///
    /// # Errors
    /// As [`Fleet::set_budget`].
    pub async fn set_budget(&self, bytes: u64) -> neaptide::Result<()> {
        let shared = self.shared.clone();
        elsewhere(move || shared.change(|fleet| fleet.set_budget(bytes))).await
    }

    /// Ends the thread when everything that somebody waits for has run, or at once if `is_cut_off`.
    pub fn close(&self, is_cut_off: bool) {
        self.shared.is_cut_off.store(is_cut_off, Relaxed);
        lock(&self.shared.state).0.is_closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            // What it panicked with was told to whoever waited.
            let _ = thread.join();
        }
    }
}

async fn elsewhere(
    change: impl FnOnce() -> neaptide::Result<()> + Send + 'static,
) -> neaptide::Result<()> {
    let changed = tokio::task::spawn_blocking(change).await;
    changed.unwrap_or_else(|_| {
        let text = "a change of the models ended with a panic".to_string();
        Err(neaptide::Error::Defect(text))
    })
}

impl Shared {
    fn time_ns(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.began).as_nanos() as u64
    }

    fn work(&self) {
        while let Some(requests) = self.next() {
            self.run(requests);
            lock(&self.state).0.running = None;
            self.changed.notify_all();
        }
    }

    /// Waits for something to run; `None` at the end.
    fn next(&self) -> Option<Vec<Waiting<Job>>> {
        let mut state = lock(&self.state);
        loop {
            let now_ns = self.time_ns(Instant::now());
            let wait = match state.1.next(now_ns, |job| self.outlook(job)) {
                Next::Run(requests) => {
                    state.0.running = requests.first().map(|r| r.job.model.clone());
                    self.note_promised(&state);
                    return Some(requests);
                }
                Next::Wait(until_ns) => Duration::from_nanos(until_ns - now_ns),
                Next::Empty if state.0.is_closing => return None,
                Next::Empty => Duration::from_secs(60),
            };
            state = self.wait(state, wait);
        }
    }

    fn note_promised(&self, state: &Locked) {
        self.promised_ns.store(state.1.promised_ns(), Relaxed);
    }

    fn wait<'a>(&self, state: Locked<'a>, at_most: Duration) -> Locked<'a> {
        let waited = self.changed.wait_timeout(state, at_most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn outlook(&self, job: &Job) -> Outlook {
        let room_ns = self.room_ns.load(Relaxed);
        Outlook {
            run_ns: self.pace.of(&job.model),
            may_be_early: self.admission.may_be_early(&job.model, room_ns),
        }
    }

    /// A request to end the run early: when all that wait for these answers are gone, and when it is to make way.
    fn cancel_of(&self, requests: &[Waiting<Job>], in_gap: Option<InGap>) -> CancelToken {
        let gone = requests.iter().map(|r| r.job.gone.clone());
        let gone: Vec<Arc<AtomicBool>> = gone.collect();
        let is_cut_off = self.is_cut_off.clone();
        let (promised_ns, room_ns) = (self.promised_ns.clone(), self.room_ns.clone());
        let began = self.began;
        CancelToken::new().or_when(move || {
            let makes_way = |run: InGap| {
                let now_ns = began.elapsed().as_nanos() as u64;
                run.makes_way(now_ns, promised_ns.load(Relaxed), room_ns.load(Relaxed))
            };
            is_cut_off.load(Relaxed)
                || gone.iter().all(|gone| gone.load(Relaxed))
                || in_gap.is_some_and(makes_way)
        })
    }

    /// A run of these is one in a gap, unless it is promised and released.
    fn in_gap(&self, first: &Waiting<Job>) -> Option<InGap> {
        let began_ns = self.time_ns(Instant::now());
        let is_due = first.released_ns.is_some_and(|at| at <= began_ns);
        (!is_due).then(|| InGap {
            began_ns,
            bound_ns: self.admission.bound_of_run_ns(&first.job.model),
            released_ns: first.released_ns,
        })
    }

    /// Puts requests back whose run made way.
    fn put_back(&self, requests: Vec<Waiting<Job>>) {
        self.made_way.fetch_add(1, Relaxed);
        let mut state = lock(&self.state);
        let now_ns = self.time_ns(Instant::now());
        state.1.put_back(requests, now_ns);
        self.note_promised(&state);
    }

    /// Its turn is over. Where it was promised and not released yet, it was none of those that are promised.
    fn note_end(&self, first: &Waiting<Job>) {
        if let Some(at_ns) = first.released_ns
            && self.time_ns(Instant::now()) < at_ns
        {
            self.admission.done_early(&first.job.model, at_ns);
        }
    }

    /// Runs requests together, and answers them.
    fn run(&self, mut requests: Vec<Waiting<Job>>) {
        // Nobody waits for those.
        requests.retain(|r| !r.job.gone.load(Relaxed) && !self.is_cut_off.load(Relaxed));
        let Some(first) = requests.first() else {
            return;
        };
        let in_gap = self.in_gap(first);
        let cancel = self.cancel_of(&requests, in_gap);
        let first = &first.job;
        if !self.fleet.has(&first.model) {
            let message = format!("the model '{}' is not loaded", served_name(&first.model));
            let refusal = Refusal::new(Why::NotReady, message);
            return answer_all(requests, &refusal);
        }
        let began = Instant::now();
        let rows: usize = requests.iter().map(|r| r.job.rows).sum();
        let (shapes, infos) = match first.takes_rows {
            true => (
                with_rows(&first.shapes, rows),
                with_rows(&first.outputs, rows),
            ),
            false => (first.shapes.to_vec(), first.outputs.to_vec()),
        };
        let inputs = together(&requests, shapes.len());
        let mut outputs: Vec<Buffer> = infos
            .iter()
            .map(|info| Buffer::zeroed(info.len_bytes()))
            .collect();
        let mut places: Vec<&mut [u8]> = outputs.iter_mut().map(Buffer::bytes_mut).collect();
        let asked = Asked {
            model: &first.model,
            shapes: &shapes,
            tensors: &inputs,
            rank: 0,
            cancel,
        };
        let result = guarded(|| self.fleet.run(&asked, &mut places));
        let ran = began.elapsed();
        let ran_ns = ran.as_nanos() as u64;
        self.pace.note(&first.model, ran_ns, result.is_ok());
        if result.is_ok() {
            self.run_ns.store(ran_ns, Relaxed);
        }
        if !matches!(result, Err(neaptide::Error::Cancelled)) {
            self.note_end(&requests[0]);
        }
        let outputs: Vec<Arc<Buffer>> = outputs.into_iter().map(Arc::new).collect();
        match result {
            Ok(report) => {
                let mut row = 0;
                for Waiting { job, .. } in requests {
                    let parts = match report.outputs.is_empty() {
                        true => job_outputs(&job, row, rows, &outputs),
                        false => decided_outputs(&job, &report.outputs, &outputs),
                    };
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
            // Those that are gone are left out then.
            Err(neaptide::Error::Cancelled) if in_gap.is_some() => self.put_back(requests),
            // One of them may be at fault: each alone.
            Err(_) if requests.len() > 1 => requests.into_iter().for_each(|r| self.run(vec![r])),
            Err(error) => answer_all(requests, &Refusal::of_run(error)),
        }
    }
}

fn answer_all(requests: Vec<Waiting<Job>>, refusal: &Refusal) {
    for Waiting { job, .. } in requests {
        let _ = job.reply.send(Err(refusal.clone()));
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
fn together(requests: &[Waiting<Job>], inputs: usize) -> Vec<Tensor> {
    if let [only] = requests {
        return only.job.inputs.clone();
    }
    let join = |index: usize| {
        let parts = requests.iter().map(|r| r.job.inputs[index].bytes());
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

/// The outputs of a request that runs alone, whose sizes the data decided: the beginning of each place.
fn decided_outputs(
    job: &Job,
    types: &[TensorType],
    outputs: &[Arc<Buffer>],
) -> Vec<(TensorInfo, Tensor)> {
    let all = job.outputs.iter().zip(types).zip(outputs);
    let parts = all.map(|((info, ty), buffer)| {
        let info = TensorInfo {
            name: info.name.clone(),
            ty: ty.clone(),
        };
        let range = 0..info.len_bytes();
        (info, Tensor::within(buffer, range))
    });
    parts.collect()
}

type Locked<'a> = MutexGuard<'a, (State, Queue<Job>)>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
