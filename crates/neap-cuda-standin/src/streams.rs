//! Streams: each does its work in order, on a thread of its own. The default stream waits for all others, and works at once.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// Work that may be done more than once: a graph repeats it.
pub type Work = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Progress {
    given: u64,
    done: u64,
}

pub struct Stream {
    work: Sender<Work>,
    progress: Arc<(Mutex<Progress>, Condvar)>,
}

#[derive(Default)]
pub struct Event {
    /// The stream and how much of its work must be done.
    mark: Mutex<Option<(Arc<Stream>, u64)>>,
    at: Arc<Mutex<Option<Instant>>>,
}

#[derive(Default)]
struct All {
    streams: BTreeMap<usize, Arc<Stream>>,
    captures: BTreeMap<usize, Vec<Work>>,
    next: usize,
}

static ALL: Mutex<Option<All>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|p| p.into_inner())
}

fn with<T>(act: impl FnOnce(&mut All) -> T) -> T {
    act(lock(&ALL).get_or_insert_default())
}

/// The first handle; smaller ones are default streams.
const FIRST: usize = 0x1000;

pub fn create() -> usize {
    let (work, todo) = channel::<Work>();
    let progress = Arc::new((Mutex::new(Progress::default()), Condvar::new()));
    let shared = Arc::clone(&progress);
    std::thread::spawn(move || {
        for work in todo {
            work();
            lock(&shared.0).done += 1;
            shared.1.notify_all();
        }
    });
    with(|all| {
        all.next += 16;
        let handle = FIRST + all.next;
        all.streams
            .insert(handle, Arc::new(Stream { work, progress }));
        handle
    })
}

pub fn destroy(handle: usize) -> bool {
    with(|all| all.streams.remove(&handle)).is_some()
}

fn find(handle: usize) -> Option<Arc<Stream>> {
    with(|all| all.streams.get(&handle).cloned())
}

impl Stream {
    fn give(&self, work: Work) {
        lock(&self.progress.0).given += 1;
        let _ = self.work.send(work);
    }

    fn given(&self) -> u64 {
        lock(&self.progress.0).given
    }

    fn is_done(&self, count: u64) -> bool {
        lock(&self.progress.0).done >= count
    }

    fn wait(&self, count: u64) {
        let mut progress = lock(&self.progress.0);
        while progress.done < count {
            progress = self
                .progress
                .1
                .wait(progress)
                .unwrap_or_else(|p| p.into_inner());
        }
    }
}

/// Gives a stream work; a stream that is captured notes it.
pub fn give(handle: usize, work: Work) -> bool {
    let captured = with(|all| match all.captures.get_mut(&handle) {
        Some(graph) => {
            graph.push(Arc::clone(&work));
            true
        }
        None => false,
    });
    if captured {
        return true;
    }
    if handle < FIRST {
        wait_for_all();
        work();
        return true;
    }
    let stream = find(handle);
    stream.map(|stream| stream.give(work)).is_some()
}

/// Waits until a stream has done all it was given. False where there is no such stream.
pub fn wait(handle: usize) -> bool {
    if handle < FIRST {
        wait_for_all();
        return true;
    }
    let stream = find(handle);
    stream.map(|stream| stream.wait(stream.given())).is_some()
}

pub fn is_idle(handle: usize) -> bool {
    find(handle).is_none_or(|stream| stream.is_done(stream.given()))
}

pub fn wait_for_all() {
    for stream in with(|all| all.streams.values().cloned().collect::<Vec<_>>()) {
        stream.wait(stream.given());
    }
}

pub fn begin_capture(handle: usize) {
    with(|all| all.captures.insert(handle, Vec::new()));
}

pub fn end_capture(handle: usize) -> Option<Vec<Work>> {
    with(|all| all.captures.remove(&handle))
}

pub fn is_captured(handle: usize) -> bool {
    with(|all| all.captures.contains_key(&handle))
}

impl Event {
    pub fn record(&self, handle: usize) {
        let at = Arc::clone(&self.at);
        *lock(&at) = None;
        let note = Arc::clone(&at);
        give(
            handle,
            Arc::new(move || *lock(&note) = Some(Instant::now())),
        );
        *lock(&self.mark) = find(handle).map(|stream| {
            let given = stream.given();
            (stream, given)
        });
    }

    pub fn is_done(&self) -> bool {
        let mark = lock(&self.mark);
        mark.as_ref()
            .is_none_or(|(stream, count)| stream.is_done(*count))
    }

    pub fn wait(&self) {
        let mark = lock(&self.mark).clone();
        if let Some((stream, count)) = mark {
            stream.wait(count);
        }
    }

    pub fn at(&self) -> Option<Instant> {
        *lock(&self.at)
    }
}
