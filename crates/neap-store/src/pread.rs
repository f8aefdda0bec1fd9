//! Loads by `pread`, and stores by `pwrite`, on a few threads, for kernels and sandboxes without io_uring.

use crate::queue::{LoadQueue, Piece};
use crate::source::check_read;
use crate::{DirectFile, LoadTag, RangeRead, Source, Spill, StoreError};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Stack of a thread that does nothing but read.
const STACK_BYTES: usize = 64 << 10;

/// Settings of a [`PreadSource`].
#[derive(Clone, Copy, Debug)]
pub struct PreadConfig {
    /// Threads, each with one read in the kernel at a time.
    pub workers: usize,
    /// Loads are cut into reads of so many bytes, a multiple of [`BLOCK`](crate::BLOCK).
    pub piece_bytes: usize,
    /// Loads that may be submitted and not yet reported.
    pub max_loads: usize,
}

impl Default for PreadConfig {
    fn default() -> PreadConfig {
        PreadConfig {
            workers: 4,
            piece_bytes: 512 << 10,
            max_loads: 1024,
        }
    }
}

/// A [`Source`] over threads that call `pread`.
pub struct PreadSource {
    shared: Arc<Shared>,
    file_len_bytes: u64,
    piece_bytes: usize,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    file: Arc<DirectFile>,
    state: Mutex<State>,
    /// There is something to read, or it is time to stop.
    work: Condvar,
    /// A load or a batch finished.
    progress: Condvar,
}

struct State {
    queue: LoadQueue,
    /// Workers that wait for work. Waking costs a system call, so nobody is woken for nothing.
    idle_workers: usize,
    /// Workers that have begun to work, and will allocate no more.
    started_workers: usize,
    stopping: bool,
}

impl PreadSource {
    /// # Errors
    /// [`StoreError`] where the settings make no sense or threads cannot be had.
    pub fn new(file: Arc<DirectFile>, config: PreadConfig) -> Result<PreadSource, StoreError> {
        if config.workers == 0 || config.workers > 256 {
            return Err(StoreError::InvalidUse {
                what: "a pread source needs 1 to 256 threads",
            });
        }
        let (file_len_bytes, end) = (file.len_bytes(), file.end());
        let shared = Arc::new(Shared {
            file,
            state: Mutex::new(State {
                queue: LoadQueue::new(config.max_loads, config.piece_bytes)?.ending_at(end),
                idle_workers: 0,
                started_workers: 0,
                stopping: false,
            }),
            work: Condvar::new(),
            progress: Condvar::new(),
        });
        let mut source = PreadSource {
            shared,
            file_len_bytes,
            piece_bytes: config.piece_bytes,
            workers: Vec::with_capacity(config.workers),
        };
        for _ in 0..config.workers {
            let shared = source.shared.clone();
            let spawned = std::thread::Builder::new()
                .name("neap-pread".into())
                .stack_size(STACK_BYTES)
                .spawn(move || shared.work());
            match spawned {
                Ok(worker) => source.workers.push(worker),
                // Fewer threads read just as well, only slower.
                Err(_) if !source.workers.is_empty() => break,
                Err(e) => {
                    let path = source.shared.file.path();
                    return Err(StoreError::file("start a thread to read", path, e));
                }
            }
        }
        source.shared.wait_until_started(source.workers.len());
        Ok(source)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and the state is whole at every step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until_started(&self, count: usize) {
        let mut state = self.lock();
        while state.started_workers < count {
            state = self
                .progress
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The life of a worker.
    fn work(&self) {
        let mut state = self.lock();
        state.started_workers += 1;
        self.progress.notify_one();
        loop {
            if state.stopping {
                return;
            }
            let next = state.queue.next_batch_piece();
            let Some(mut piece) = next.or_else(|| state.queue.next_piece()) else {
                state.idle_workers += 1;
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle_workers -= 1;
                continue;
            };
            loop {
                drop(state);
                let result = self.perform(&piece);
                state = self.lock();
                match state.queue.complete(piece, result) {
                    Some(again) if !state.stopping => piece = again,
                    _ => break,
                }
            }
            if state.queue.has_finished() || state.queue.batch_complete() {
                self.progress.notify_one();
            }
        }
    }

    /// Wakes workers for new work of so many reads.
    fn wake(&self, state: &State, reads: usize) {
        if reads >= state.idle_workers {
            if state.idle_workers > 0 {
                self.work.notify_all();
            }
        } else {
            for _ in 0..reads {
                self.work.notify_one();
            }
        }
    }

    fn perform(&self, piece: &Piece) -> Result<usize, Errno> {
        let RangeRead {
            file_offset,
            dst,
            len_bytes,
        } = piece.read;
        if piece.is_write {
            // SAFETY: the contract of `Spill` makes the source valid, and nothing writes it, until the
            // store is reported, which is after this.
            let src = unsafe { std::slice::from_raw_parts(dst.cast_const(), len_bytes) };
            return self.file.write_at(file_offset, src);
        }
        // SAFETY: the contract of `Source` makes the destination valid and unaliased until the
        // read is reported, which is after this; uninitialised bytes are fine.
        let dst =
            unsafe { std::slice::from_raw_parts_mut(dst.cast::<MaybeUninit<u8>>(), len_bytes) };
        self.file.read_at(file_offset, dst)
    }
}

impl Source for PreadSource {
    unsafe fn submit(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        let read = RangeRead {
            file_offset,
            dst,
            len_bytes,
        };
        check_read(&read, self.file_len_bytes)?;
        let mut state = self.shared.lock();
        state.queue.push(tag, read)?;
        self.shared
            .wake(&state, len_bytes.div_ceil(self.piece_bytes));
        Ok(())
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        let mut state = self.shared.lock();
        if wait && state.queue.in_flight() == 0 {
            return Err(StoreError::NothingInFlight);
        }
        while wait && !state.queue.has_finished() {
            state = self
                .shared
                .progress
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.queue.report(done)
    }

    fn in_flight(&self) -> usize {
        self.shared.lock().queue.in_flight()
    }

    unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        for read in reads {
            check_read(read, self.file_len_bytes)?;
        }
        let mut state = self.shared.lock();
        // SAFETY: `reads` outlives this call, which returns only when the batch has ended.
        unsafe { state.queue.begin_batch(reads) };
        self.shared.wake(&state, reads.len());
        loop {
            if let Some(result) = state.queue.end_batch() {
                return result;
            }
            state = self
                .shared
                .progress
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn name(&self) -> &'static str {
        "pread"
    }
}

impl Spill for PreadSource {
    unsafe fn submit_write(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        src: *const u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        let write = RangeRead {
            file_offset,
            dst: src.cast_mut(),
            len_bytes,
        };
        check_read(&write, self.file_len_bytes)?;
        let mut state = self.shared.lock();
        state.queue.push_write(tag, write)?;
        self.shared
            .wake(&state, len_bytes.div_ceil(self.piece_bytes));
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.file_len_bytes
    }
}

impl Drop for PreadSource {
    /// Waits for reads in the kernel: destinations may be freed after this.
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}
