//! The program's side of the talk with the scheduler: a thread that reads, and a thread that does what it is told.
//!
//! ```text
//!   calls of the program ─ enter ─► want ─► (wait) ─► go
//!   reader   granted, denied, go: to those who wait;  out, in, yield: to the worker
//!   worker   yield: close the gate, wait for the card, say done;  out, in: move memory
//! ```
//! When the scheduler is gone, the program waits for another for a while; then it goes on alone or ends, as it was told
//! when it came.

use crate::real::{OUT_OF_MEMORY, SYSTEM_NOT_READY, Status};
use crate::settings::{self, warn};
use crate::{card, gate, memory};
use neap_card::{Hello, Order, Say, VERSION};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Without work for so long, a program gives its turn back.
const IDLE: Duration = Duration::from_millis(5);

/// So long a program waits for a new scheduler.
const PATIENCE: Duration = Duration::from_secs(3);

/// How things stand between the program and the scheduler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Governed,
    /// There is no scheduler any more, and the program goes on.
    Alone,
    /// Calls fail from now on.
    Ended(Status),
}

struct Shared {
    standing: Standing,
    /// The card was asked for.
    wanted: bool,
    /// The turn is being given back: nobody asks for the next one before that is said.
    closing: bool,
    answer: Option<bool>,
    /// Counts schedulers: what was asked of an earlier one is asked again.
    generation: u64,
    went: Instant,
    memory_bytes: u64,
    stop: bool,
}

pub struct Agent {
    socket: Mutex<UnixStream>,
    shared: Mutex<Shared>,
    changed: Condvar,
    /// One at a time closes the gate.
    closing: Mutex<()>,
    /// Held while memory and what the scheduler knows of it change together.
    exchange: Mutex<()>,
    has_deadline: bool,
    /// Jobs that the program has begun itself and not ended.
    explicit: AtomicU32,
    /// The program says itself where its jobs begin and end.
    is_explicit: AtomicBool,
}

/// The process ends, and the driver with it: nothing moves any more, and nobody waits.
static ENDING: AtomicBool = AtomicBool::new(false);

extern "C" fn ending() {
    if let Some(agent) = connected() {
        // What moves now comes to its end; nothing begins after it.
        std::mem::forget(agent.exchange());
        ENDING.store(true, Release);
        gate::open();
        agent.changed.notify_all();
    }
}

static AGENT: AtomicPtr<Agent> = AtomicPtr::new(null_mut());
static CONNECTING: Mutex<()> = Mutex::new(());

/// The agent, which connects when it is first asked for; `None` where the hook stands aside.
pub fn get() -> Option<&'static Agent> {
    let agent = AGENT.load(Acquire);
    // SAFETY: it was leaked, and is never freed.
    if let Some(agent) = unsafe { agent.as_ref() } {
        return Some(agent);
    }
    let settings = settings::get()?;
    let _one = lock(&CONNECTING);
    // SAFETY: as above.
    if let Some(agent) = unsafe { AGENT.load(Acquire).as_ref() } {
        return Some(agent);
    }
    let agent = Box::leak(Box::new(Agent::connect(settings)));
    AGENT.store(agent, Release);
    Some(agent)
}

/// The agent if it has connected.
pub fn connected() -> Option<&'static Agent> {
    // SAFETY: it was leaked, and is never freed.
    unsafe { AGENT.load(Acquire).as_ref() }
}

/// In a child after a fork: the parent's agent is not ours. Its memory is left as it is.
pub fn forget() {
    AGENT.store(null_mut(), Release);
    gate::reset();
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Agent {
    fn connect(settings: &'static settings::Settings) -> Agent {
        let shared = |standing| Shared {
            standing,
            wanted: false,
            closing: false,
            answer: None,
            generation: 0,
            went: Instant::now(),
            memory_bytes: 0,
            stop: false,
        };
        let (socket, shared) = match greet(settings, false) {
            Ok((socket, memory_bytes, stop)) => {
                let shared = Shared {
                    memory_bytes,
                    stop,
                    ..shared(Standing::Governed)
                };
                (socket, shared)
            }
            Err(why) => {
                warn(&format!("the card cannot be used: {why}"));
                let (unused, _) = UnixStream::pair().expect("a pair of sockets");
                (unused, shared(Standing::Ended(SYSTEM_NOT_READY)))
            }
        };
        let is_governed = shared.standing == Standing::Governed;
        let reading = socket.try_clone();
        let agent = Agent {
            socket: Mutex::new(socket),
            shared: Mutex::new(shared),
            changed: Condvar::new(),
            closing: Mutex::new(()),
            exchange: Mutex::new(()),
            has_deadline: settings.period_ns > 0,
            explicit: AtomicU32::new(0),
            is_explicit: AtomicBool::new(false),
        };
        if is_governed && let Ok(reading) = reading {
            // After the driver's own, which it set when it began, so this comes before.
            // SAFETY: the function may be called at any time.
            unsafe { libc::atexit(ending) };
            let (orders, work) = channel();
            // The threads find the agent once it is in its place.
            std::thread::spawn(move || wait_for_agent().read(reading, &orders));
            std::thread::spawn(move || wait_for_agent().work(&work));
        }
        agent
    }

    /// Passes the gate, when the program has its turn.
    ///
    /// # Errors
    /// When there is no scheduler any more and the program is to end.
    #[inline]
    pub fn enter(&self) -> Result<(), Status> {
        match gate::try_enter() {
            true => Ok(()),
            // A capture that has begun goes on to its end, and the gate's closing waits for it.
            false if memory::CAPTURES.load(Relaxed) > 0 && gate::try_enter_beside() => Ok(()),
            false => self.wait_for_turn(false),
        }
    }

    #[cold]
    fn wait_for_turn(&self, is_job: bool) -> Result<(), Status> {
        let mut shared = lock(&self.shared);
        loop {
            if let Standing::Ended(status) = shared.standing {
                return Err(status);
            }
            if gate::try_enter() {
                return Ok(());
            }
            if !shared.wanted && !shared.closing && shared.standing == Standing::Governed {
                shared.wanted = true;
                self.say(&Say::Want { is_job });
            }
            shared = self.wait(shared);
        }
    }

    fn wait<'a>(&self, shared: MutexGuard<'a, Shared>) -> MutexGuard<'a, Shared> {
        let waited = self.changed.wait(shared);
        waited.unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Asks for memory on the card. The caller has passed the gate.
    pub fn need(&self, bytes: u64, fixed: bool) -> bool {
        let mut shared = lock(&self.shared);
        let mut asked = None;
        loop {
            match shared.standing {
                Standing::Alone => return true,
                Standing::Ended(_) => return false,
                Standing::Governed => {}
            }
            if asked != Some(shared.generation) {
                asked = Some(shared.generation);
                shared.answer = None;
                self.say(&Say::Need { bytes, fixed });
            }
            if let Some(answer) = shared.answer.take() {
                return answer;
            }
            shared = self.wait(shared);
        }
    }

    /// Tells the scheduler something, if there is one.
    pub fn say(&self, said: &Say) {
        // A broken connection is noticed by the reader.
        let _ = lock(&self.socket).write_all(format!("{said}\n").as_bytes());
    }

    /// Memory and what the scheduler knows of it change together while this is held.
    pub fn exchange(&self) -> MutexGuard<'_, ()> {
        lock(&self.exchange)
    }

    /// The memory that the program may think the card has; 0 for all there is.
    pub fn memory_bytes(&self) -> u64 {
        lock(&self.shared).memory_bytes
    }

    /// Whether memory on the host is to be pinned before it is needed.
    pub fn pins_early(&self) -> bool {
        self.has_deadline
    }

    /// The program waited until its work was done: where jobs are inferred, one ends here.
    pub fn after_wait(&self) {
        if self.has_deadline && !self.is_explicit.load(Relaxed) && gate::is_open() {
            self.give_turn_back(false);
        }
    }

    /// A job begins, as the program says. What it did before is not part of it.
    pub fn job_begin(&self) -> Status {
        if self.explicit.load(Relaxed) == 0 {
            self.give_turn_back(false);
        }
        self.is_explicit.store(true, Relaxed);
        match self.wait_for_turn(true) {
            Ok(()) => {
                self.explicit.fetch_add(1, Relaxed);
                gate::leave();
                0
            }
            Err(status) => status,
        }
    }

    /// A job ends, as the program says.
    pub fn job_end(&self) -> Status {
        let counted = |count: u32| count.checked_sub(1);
        if self.explicit.fetch_update(Relaxed, Relaxed, counted) == Ok(1) {
            self.give_turn_back(false);
        }
        0
    }

    /// Closes the gate, waits for the card, and says so. A program that is busy keeps its turn unless it must go.
    fn give_turn_back(&self, must: bool) {
        let _one = lock(&self.closing);
        let mut shared = lock(&self.shared);
        if ENDING.load(Acquire) || !gate::is_open() || shared.standing != Standing::Governed {
            return;
        }
        gate::close();
        if !must && !gate::is_empty() {
            gate::open();
            drop(shared);
            return self.changed.notify_all();
        }
        shared.closing = true;
        drop(shared);
        while !gate::is_empty() {
            std::thread::sleep(Duration::from_micros(20));
        }
        memory::wait_for_card();
        let _both = self.exchange();
        let mut shared = lock(&self.shared);
        let ran_ns = shared.went.elapsed().as_nanos() as u64;
        self.say(&Say::Done { ran_ns });
        shared.closing = false;
        drop(shared);
        self.changed.notify_all();
    }

    fn go(&self) {
        let mut shared = lock(&self.shared);
        shared.wanted = false;
        shared.went = Instant::now();
        gate::was_busy();
        gate::open();
        drop(shared);
        self.changed.notify_all();
    }

    fn answer(&self, answer: bool) {
        lock(&self.shared).answer = Some(answer);
        self.changed.notify_all();
    }

    fn read(&self, first: UnixStream, orders: &Sender<Order>) {
        let mut socket = first;
        loop {
            for line in BufReader::new(&socket).lines().map_while(Result::ok) {
                match line.parse() {
                    Ok(Order::Granted) => self.answer(true),
                    Ok(Order::Denied) => self.answer(false),
                    Ok(Order::Go) => self.go(),
                    Ok(order @ (Order::Out { .. } | Order::In | Order::Yield)) => {
                        // The worker lives as long as this thread.
                        let _ = orders.send(order);
                    }
                    Ok(Order::Welcome { .. } | Order::Refused { .. }) => {}
                    Err(unknown) => warn(&format!("from the scheduler: {unknown}")),
                }
            }
            match self.reconnect() {
                Some(next) => socket = next,
                None => return self.end_of_schedule(),
            }
        }
    }

    /// Another scheduler, told of what the program holds.
    fn reconnect(&self) -> Option<UnixStream> {
        let settings = settings::get()?;
        let _still = self.exchange();
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
            let holds = gate::is_open() || lock(&self.shared).closing;
            let Ok((socket, memory_bytes, stop)) = greet(settings, holds) else {
                continue;
            };
            let Ok(reading) = socket.try_clone() else {
                continue;
            };
            *lock(&self.socket) = socket;
            let mut shared = lock(&self.shared);
            (shared.memory_bytes, shared.stop) = (memory_bytes, stop);
            shared.generation += 1;
            if shared.wanted {
                self.say(&Say::Want { is_job: false });
            }
            drop(shared);
            self.changed.notify_all();
            return Some(reading);
        }
        None
    }

    fn end_of_schedule(&self) {
        if lock(&self.shared).stop {
            warn("the scheduler is gone: the card cannot be used any more");
            gate::close();
            lock(&self.shared).standing = Standing::Ended(SYSTEM_NOT_READY);
            self.changed.notify_all();
            return;
        }
        warn("the scheduler is gone: going on without");
        lock(&self.shared).standing = Standing::Alone;
        // Who waits for memory must not wait for the scheduler.
        self.changed.notify_all();
        // Others may still hold the card's memory.
        while !gate::is_open() {
            match memory::swap_in(&mut 0) {
                0 => gate::open(),
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        self.changed.notify_all();
    }

    fn work(&self, orders: &Receiver<Order>) {
        let mut idle = false;
        card::relax_captures();
        loop {
            let order = match gate::is_open() {
                true => orders.recv_timeout(IDLE),
                // Time passes slowly for those who wait.
                false => orders.recv_timeout(20 * IDLE),
            };
            match order {
                Ok(Order::Yield) if self.explicit.load(Relaxed) == 0 => self.give_turn_back(true),
                Ok(Order::Out { bytes }) => self.swap_out(bytes),
                Ok(Order::In) => self.swap_in(),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let rests = gate::is_open() && !gate::was_busy();
                    if rests && idle && self.explicit.load(Relaxed) == 0 {
                        self.give_turn_back(false);
                    }
                    idle = rests;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn swap_out(&self, bytes: u64) {
        let _both = self.exchange();
        let moved = memory::swap_out(bytes);
        self.say(&Say::Gone {
            bytes: moved.bytes,
            saved: moved.copied,
            ns: moved.ns,
        });
    }

    fn swap_in(&self) {
        let _both = self.exchange();
        let started = Instant::now();
        let mut bytes = 0;
        // Who left the card a moment ago may still be releasing.
        let status = loop {
            match memory::swap_in(&mut bytes) {
                OUT_OF_MEMORY if started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                status => break status,
            }
        };
        if status == 0 {
            let ns = started.elapsed().as_nanos() as u64;
            return self.say(&Say::Here { bytes, ns });
        }
        warn(&format!(
            "memory cannot come back to the card: error {status} of the driver"
        ));
        lock(&self.shared).standing = Standing::Ended(status);
        // The scheduler frees what it counted.
        let _ = lock(&self.socket).shutdown(std::net::Shutdown::Both);
        self.changed.notify_all();
    }
}

/// The agent, once it is in its place.
fn wait_for_agent() -> &'static Agent {
    loop {
        match connected() {
            Some(agent) => return agent,
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// Connects and says hello. What the program may think the card has, and whether it is to end without scheduler.
fn greet(settings: &settings::Settings, holds: bool) -> Result<(UnixStream, u64, bool), String> {
    let path = settings.socket.display();
    let mut socket = UnixStream::connect(&settings.socket)
        .map_err(|error| format!("no scheduler answers at {path}: {error}"))?;
    let held = memory::held();
    let hello = Say::Hello(Hello {
        version: VERSION,
        name: program(),
        card_bytes: memory::card_bytes(),
        chunk_bytes: settings.chunk_bytes,
        quota_bytes: settings.quota_bytes,
        period_ns: settings.period_ns,
        deadline_ns: settings.deadline_ns,
        wcet_ns: settings.wcet_ns,
        resident_bytes: held.resident,
        away_bytes: held.away,
        fixed_bytes: held.fixed,
        holds: u64::from(holds),
    });
    let failed =
        |error: std::io::Error| format!("the scheduler at {path} does not answer: {error}");
    writeln!(socket, "{hello}").map_err(failed)?;
    // Read to the end of the line and no further: what follows is the reader's.
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < neap_card::LONGEST_LINE {
        std::io::Read::read_exact(&mut socket, &mut byte).map_err(failed)?;
        match byte[0] {
            b'\n' => break,
            other => line.push(other),
        }
    }
    match String::from_utf8_lossy(&line).parse() {
        Ok(Order::Welcome { memory_bytes, stop }) => Ok((socket, memory_bytes, stop)),
        Ok(Order::Refused { why }) => Err(why),
        _ => Err("the scheduler is of another version".into()),
    }
}

/// The program's command line, shortened.
fn program() -> String {
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let words = line.split(|&byte| byte == 0).map(String::from_utf8_lossy);
    let mut name = words.collect::<Vec<_>>().join(" ").trim().to_owned();
    name.truncate(
        (0..=80.min(name.len()))
            .rev()
            .find(|&n| name.is_char_boundary(n))
            .unwrap_or(0),
    );
    name
}
