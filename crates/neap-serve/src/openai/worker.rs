//! One thread for each language model: it takes requests between passes, and tells what happens to them.
//!
//! ```text
//!   Talk ─► worker ─► Runner::submit, Runner::step ─► (number of the answer, Event) ─► whoever asked
//! ```
//! Whoever takes no events any more, as with a connection that ends, wants no answer.

use super::fault::{Answered, Fault};
use crate::refusal::{Refusal, Why};
use neap_chat::{Event, Figures, Id, Reason, Refused, Request, Runner, Usage};
use neaptide::CancelToken;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// What happens to the answers of a [`Talk`], by their numbers.
pub type Events = UnboundedReceiver<(usize, Event)>;

/// Answers that belong together: all of them begin, or none.
struct Talk {
    requests: Vec<Request>,
    begun: oneshot::Sender<Answered<()>>,
    events: UnboundedSender<(usize, Event)>,
}

/// The thread, and the way to it.
pub struct Worker {
    talks: Mutex<Option<Sender<Talk>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    shared: Arc<Shared>,
    /// Positions that all texts have together.
    pub context: usize,
    pub trained_context: usize,
    pub has_template: bool,
}

/// What the thread tells while it works.
#[derive(Default)]
struct Shared {
    figures: Mutex<(Figures, Tokens)>,
    running: AtomicUsize,
    /// Talks that the thread did not look at yet.
    waiting: AtomicUsize,
    /// Nobody waits for anything any more.
    is_cut_off: AtomicBool,
    has_failed: AtomicBool,
    memory_bytes: Mutex<u64>,
}

/// Tokens of all answers that are over.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tokens {
    pub prompt: u64,
    pub cached: u64,
    pub answer: u64,
}

/// What a worker does now, and did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Told {
    pub figures: Figures,
    pub tokens: Tokens,
    pub running: usize,
    pub waiting: usize,
    /// Of the model, cache and all.
    pub memory_bytes: u64,
}

impl Worker {
    /// # Errors
    /// When no thread can be started.
    pub fn start(runner: Runner) -> std::io::Result<Worker> {
        let (talks, to_thread) = channel();
        let shared = Arc::<Shared>::default();
        let (context, has_template) = (runner.context(), runner.has_template());
        let trained_context = runner.model().config.trained_context;
        let mut thread = Thread {
            runner,
            talks: to_thread,
            answers: BTreeMap::new(),
            shared: shared.clone(),
            pace: Duration::from_secs(1),
        };
        thread.note();
        let thread = std::thread::Builder::new()
            .name("language".into())
            .spawn(move || thread.work())?;
        Ok(Worker {
            talks: Mutex::new(Some(talks)),
            thread: Mutex::new(Some(thread)),
            shared,
            context,
            trained_context,
            has_template,
        })
    }

    /// Begins answers together.
    ///
    /// # Errors
    /// Why none of them begins: [`Why::Busy`] where others have the memory now.
    pub async fn begin(&self, requests: Vec<Request>) -> Answered<Events> {
        let (begun, has_begun) = oneshot::channel();
        let (events, told) = unbounded_channel();
        let talk = Talk {
            requests,
            begun,
            events,
        };
        self.shared.waiting.fetch_add(1, Relaxed);
        let sent = lock(&self.talks).as_ref().map(|talks| talks.send(talk));
        let answer = match sent {
            Some(Ok(())) => has_begun.await.unwrap_or_else(|_| Err(failed())),
            Some(Err(_)) => Err(failed()),
            None => Err(Refusal::new(Why::NotReady, "the server ends").into()),
        };
        answer.map(|()| told)
    }

    /// Whether a defect ended its thread.
    pub fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Relaxed)
    }

    pub fn told(&self) -> Told {
        let (figures, tokens) = *lock(&self.shared.figures);
        Told {
            figures,
            tokens,
            running: self.shared.running.load(Relaxed),
            waiting: self.shared.waiting.load(Relaxed),
            memory_bytes: *lock(&self.shared.memory_bytes),
        }
    }

    /// Ends the thread when all answers that somebody waits for are given, or at once if `is_cut_off`.
    pub fn close(&self, is_cut_off: bool) {
        self.shared.is_cut_off.store(is_cut_off, Relaxed);
        drop(lock(&self.talks).take());
        if let Some(thread) = lock(&self.thread).take() {
            // What it panicked with was told to whoever waited.
            let _ = thread.join();
        }
    }
}

fn failed() -> Fault {
    Refusal::new(Why::Internal, "the language model ended with a defect").into()
}

/// All that the thread has.
struct Thread {
    runner: Runner,
    talks: Receiver<Talk>,
    answers: BTreeMap<Id, Answer>,
    shared: Arc<Shared>,
    /// How long an answer takes, of late.
    pace: Duration,
}

/// Who is told of an answer.
struct Answer {
    number: usize,
    events: UnboundedSender<(usize, Event)>,
    began: Instant,
}

impl Thread {
    fn work(mut self) {
        let shared = self.shared.clone();
        let cut_off = shared.clone();
        let cancel = CancelToken::new().or_when(move || cut_off.is_cut_off.load(Relaxed));
        while self.take_talks() {
            self.forget_those_gone();
            // A panic is a defect: whoever waits is told by the end of the channels.
            let stepped = catch_unwind(AssertUnwindSafe(|| self.step(&cancel)));
            if stepped.is_err() {
                shared.has_failed.store(true, Relaxed);
                shared.running.store(0, Relaxed);
                tracing::error!("a language model ended with a defect");
                return;
            }
            if cancel.is_cancelled() {
                return;
            }
            self.note();
        }
    }

    /// Begins what is asked; waits for it when there is nothing to do. `false` when nothing will ever come.
    fn take_talks(&mut self) -> bool {
        if self.runner.is_idle() {
            match self.talks.recv() {
                Ok(talk) => self.begin(talk),
                Err(_) => return false,
            }
        }
        loop {
            match self.talks.try_recv() {
                Ok(talk) => self.begin(talk),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return !self.runner.is_idle(),
            }
        }
    }

    fn begin(&mut self, talk: Talk) {
        self.shared.waiting.fetch_sub(1, Relaxed);
        let mut ids = Vec::with_capacity(talk.requests.len());
        for (number, request) in talk.requests.into_iter().enumerate() {
            match self.submit(request) {
                Ok(id) => ids.push((number, id)),
                Err(refused) => {
                    // Their last events go to nobody.
                    ids.iter().for_each(|&(_, id)| self.runner.cancel(id));
                    let refusal = self.refusal(refused);
                    let _ = talk.begun.send(Err(refusal));
                    return;
                }
            }
        }
        for (number, id) in ids {
            let answer = Answer {
                number,
                events: talk.events.clone(),
                began: Instant::now(),
            };
            self.answers.insert(id, answer);
        }
        let _ = talk.begun.send(Ok(()));
        self.note();
    }

    /// Where nothing says how long an answer may be, it has a part of the context: others are to have room, too.
    fn submit(&mut self, request: Request) -> Result<Id, Refused> {
        if request.max_tokens.is_some() {
            return self.runner.submit(request);
        }
        let part = part_of(self.runner.context());
        let with_part = Request {
            max_tokens: Some(part),
            ..request.clone()
        };
        match self.runner.submit(with_part) {
            Err(Refused::TooLong { .. }) => self.runner.submit(request),
            submitted => submitted,
        }
    }

    fn refusal(&self, refused: Refused) -> Fault {
        let text = refused.to_string();
        match refused {
            Refused::Full { .. } | Refused::Busy(_) => Refusal::busy(text, self.pace).into(),
            Refused::TooLong { .. } => {
                Fault::from(Refusal::malformed(text)).coded("context_length_exceeded")
            }
            Refused::Failed(_) => Refusal::new(Why::Machine, text).into(),
            _ => Refusal::malformed(text).into(),
        }
    }

    fn forget_those_gone(&mut self) {
        let gone = self.answers.iter().filter(|(_, a)| a.events.is_closed());
        for id in gone.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.answers.remove(&id);
            self.runner.cancel(id);
        }
    }

    fn step(&mut self, cancel: &CancelToken) {
        let (answers, pace, shared) = (&mut self.answers, &mut self.pace, &self.shared);
        let stepped = self.runner.step(cancel, &mut |id, event| {
            if let Event::Finished { usage, .. } = &event {
                count(&mut lock(&shared.figures).1, usage);
            }
            let is_over = matches!(event, Event::Finished { .. });
            let Some(answer) = answers.get(&id) else {
                return;
            };
            // Whoever is gone is found before the next pass.
            let _ = answer.events.send((answer.number, event));
            if is_over {
                *pace = (*pace + answer.began.elapsed()) / 2;
                answers.remove(&id);
            }
        });
        if let Err(error) = stepped
            && !error.is_cancelled()
        {
            tracing::error!(reason = %error, "a pass of a language model failed");
        }
    }

    fn note(&mut self) {
        lock(&self.shared.figures).0 = self.runner.figures();
        self.shared.running.store(self.answers.len(), Relaxed);
        let ledger = self.runner.ledger();
        *lock(&self.shared.memory_bytes) =
            ledger.rows_bytes + ledger.cache_bytes + ledger.weights_bytes;
    }
}

/// What an answer may have of a context where nothing is said.
pub fn part_of(context: usize) -> usize {
    (context / 4).max(1)
}

fn count(tokens: &mut Tokens, usage: &Usage) {
    tokens.prompt += usage.prompt_tokens as u64;
    tokens.cached += usage.cached_tokens as u64;
    tokens.answer += usage.completion_tokens as u64;
}

/// What an end means to whoever asked; `None` for one that is an answer.
pub fn fault_of(reason: &Reason) -> Option<Refusal> {
    match reason {
        Reason::Stop | Reason::Length => None,
        Reason::Cancelled => Some(Refusal::new(Why::NotReady, "the answer was given up")),
        Reason::Error(text) => Some(Refusal::new(Why::Machine, text.clone())),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
