//! Loads and stores by io_uring: many in the kernel's hands at once, submitted without waiting.

use crate::queue::{LoadQueue, Piece};
use crate::source::check_read;
use crate::{DirectFile, LoadTag, RangeRead, Source, Spill, StoreError};
use io_uring::{IoUring, Probe, opcode, types};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Largest piece that one entry reads or writes.
const MAX_ENTRY_BYTES: usize = 1 << 30;

/// How long to wait when the kernel is short of resources, and how often before giving up.
const REFUSAL_PAUSE: Duration = Duration::from_micros(200);
const MAX_REFUSALS: u32 = 25_000;

/// Settings of a [`UringSource`].
#[derive(Clone, Copy, Debug)]
pub struct UringConfig {
    /// Reads of loads in the kernel at once. They must keep the device busy through the longest
    /// compute step, since new ones are handed over only when the source is called.
    pub depth: usize,
    /// Loads are cut into reads of so many bytes, a multiple of [`BLOCK`](crate::BLOCK).
    pub piece_bytes: usize,
    /// Loads that may be submitted and not yet reported.
    pub max_loads: usize,
    /// Reads of a batch in the kernel at once, beside those of loads.
    pub batch_depth: usize,
}

impl Default for UringConfig {
    fn default() -> UringConfig {
        UringConfig {
            depth: 64,
            piece_bytes: 512 << 10,
            max_loads: 1024,
            batch_depth: 64,
        }
    }
}

/// A [`Source`] over io_uring.
pub struct UringSource {
    ring: IoUring,
    file: Arc<DirectFile>,
    target: Target,
    queue: LoadQueue,
    /// What the kernel reads, by the number that comes back with the completion.
    slots: Box<[Option<Piece>]>,
    free_load_slots: Vec<u32>,
    free_batch_slots: Vec<u32>,
    /// The first slot of batches.
    first_batch_slot: u32,
    /// Times in a row that the kernel had no resources to take entries or wait.
    refusals: u32,
    broken: Option<Errno>,
}

/// How entries name the file.
#[derive(Clone, Copy)]
enum Target {
    Registered,
    Descriptor(i32),
}

impl UringSource {
    /// # Errors
    /// [`StoreError`] where the settings make no sense or the kernel gives no ring with reads and writes.
    pub fn new(file: Arc<DirectFile>, config: UringConfig) -> Result<UringSource, StoreError> {
        let slots = config.depth.saturating_add(config.batch_depth);
        if config.depth == 0 || config.batch_depth == 0 || slots > 4096 {
            return Err(StoreError::InvalidUse {
                what: "io_uring depths must be at least 1 and together at most 4096",
            });
        }
        let fail = |source: io::Error| StoreError::File {
            action: "open io_uring for",
            path: file.path().to_path_buf(),
            source,
        };
        let queue = LoadQueue::new(config.max_loads, config.piece_bytes)?.ending_at(file.end());
        // Every slot has room in the submission queue, and twice that for completions.
        let ring = IoUring::new(slots as u32).map_err(fail)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(fail)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(fail(io::ErrorKind::Unsupported.into()));
        }
        let descriptor = file.fd().as_raw_fd();
        let target = match ring.submitter().register_files(&[descriptor]) {
            Ok(()) => Target::Registered,
            Err(_) => Target::Descriptor(descriptor),
        };
        Ok(UringSource {
            ring,
            file,
            target,
            queue,
            slots: vec![None; slots].into_boxed_slice(),
            free_load_slots: (0..config.depth as u32).rev().collect(),
            free_batch_slots: (config.depth as u32..slots as u32).rev().collect(),
            first_batch_slot: config.depth as u32,
            refusals: 0,
            broken: None,
        })
    }

    /// Puts waiting reads into the submission queue while there are slots.
    fn fill(&mut self) {
        while !self.free_batch_slots.is_empty() {
            let Some(piece) = self.queue.next_batch_piece() else {
                break;
            };
            if let Some(slot) = self.free_batch_slots.pop() {
                self.enqueue(slot, piece);
            }
        }
        while !self.free_load_slots.is_empty() {
            let Some(piece) = self.queue.next_piece() else {
                break;
            };
            if let Some(slot) = self.free_load_slots.pop() {
                self.enqueue(slot, piece);
            }
        }
    }

    fn enqueue(&mut self, slot: u32, piece: Piece) {
        let RangeRead {
            file_offset,
            dst,
            len_bytes,
        } = piece.read;
        let len = len_bytes.min(MAX_ENTRY_BYTES) as u32;
        let entry = match (piece.is_write, self.target) {
            (true, Target::Registered) => opcode::Write::new(types::Fixed(0), dst, len)
                .offset(file_offset)
                .build(),
            (true, Target::Descriptor(fd)) => opcode::Write::new(types::Fd(fd), dst, len)
                .offset(file_offset)
                .build(),
            (false, Target::Registered) => opcode::Read::new(types::Fixed(0), dst, len)
                .offset(file_offset)
                .build(),
            (false, Target::Descriptor(fd)) => opcode::Read::new(types::Fd(fd), dst, len)
                .offset(file_offset)
                .build(),
        };
        self.slots[slot as usize] = Some(piece);
        // SAFETY: the memory stays valid until its load or store is reported, which happens after
        // the kernel is done with it; `drop` waits for the kernel too. The queue has room for
        // one entry of every slot.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(slot.into())) };
        debug_assert!(pushed.is_ok(), "the queue has an entry for every slot");
        if pushed.is_err() {
            // Not reachable; if it were, the read would be reported as failed, not lost.
            self.finish_slot(slot, Err(Errno::NOBUFS));
        }
    }

    /// Takes completions, and queues again what was short.
    fn reap(&mut self) {
        loop {
            // One at a time: queuing again needs the whole ring.
            let entry = self.ring.completion().next();
            let Some(entry) = entry else { return };
            let result = match entry.result() {
                bytes @ 0.. => Ok(bytes as usize),
                error => Err(Errno::from_raw_os_error(-error)),
            };
            self.finish_slot(entry.user_data() as u32, result);
        }
    }

    fn finish_slot(&mut self, slot: u32, result: Result<usize, Errno>) {
        let Some(piece) = self.slots.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        if let Ok(bytes) = result {
            self.file.drop_cached(piece.read.file_offset, bytes);
        }
        match self.queue.complete(piece, result) {
            Some(again) if self.broken.is_none() => self.enqueue(slot, again),
            _ => {
                if slot < self.first_batch_slot {
                    self.free_load_slots.push(slot);
                } else {
                    self.free_batch_slots.push(slot);
                }
            }
        }
    }

    /// Hands queued entries to the kernel, and waits for a completion if asked to.
    fn enter(&mut self, wait: bool) -> Result<(), StoreError> {
        if !wait && self.ring.submission().is_empty() {
            return Ok(());
        }
        let want = usize::from(wait);
        loop {
            let Err(error) = self.ring.submitter().submit_and_wait(want) else {
                self.refusals = 0;
                return Ok(());
            };
            match Errno::from_io_error(&error) {
                Some(Errno::INTR) if wait => {}
                Some(Errno::INTR) => return Ok(()),
                // Short of memory or completions to be taken first: entries stay queued.
                Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) if self.refusals < MAX_REFUSALS => {
                    if wait && self.ring.completion().is_empty() {
                        self.refusals += 1;
                        std::thread::sleep(REFUSAL_PAUSE);
                    }
                    return Ok(());
                }
                errno => {
                    self.broken = Some(errno.unwrap_or(Errno::IO));
                    return self.check_usable();
                }
            }
        }
    }

    /// One round: completions in, new reads out; with `wait`, until `ready` or a completion.
    fn turn(&mut self, wait: bool, ready: fn(&LoadQueue) -> bool) -> Result<(), StoreError> {
        self.reap();
        self.fill();
        // What was just reaped may be all there is to wait for.
        self.enter(wait && !ready(&self.queue))?;
        self.reap();
        Ok(())
    }

    fn check_usable(&self) -> Result<(), StoreError> {
        match self.broken {
            None => Ok(()),
            Some(errno) => Err(StoreError::Broken {
                source: errno.into(),
            }),
        }
    }
}

impl Source for UringSource {
    unsafe fn submit(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        self.check_usable()?;
        let read = RangeRead {
            file_offset,
            dst,
            len_bytes,
        };
        check_read(&read, self.file.len_bytes())?;
        self.queue.push(tag, read)
    }

    fn flush(&mut self) {
        if self.check_usable().is_ok() {
            // A failure of the ring is reported when the loads are polled for.
            let _ = self.turn(false, LoadQueue::has_finished);
        }
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        self.check_usable()?;
        if wait && self.queue.in_flight() == 0 {
            return Err(StoreError::NothingInFlight);
        }
        self.turn(false, LoadQueue::has_finished)?;
        while wait && !self.queue.has_finished() {
            self.turn(true, LoadQueue::has_finished)?;
        }
        self.queue.report(done)
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        self.check_usable()?;
        for read in reads {
            check_read(read, self.file.len_bytes())?;
        }
        // SAFETY: `reads` outlives this call, which returns only when the batch has ended or
        // was cancelled.
        unsafe { self.queue.begin_batch(reads) };
        let mut wait = false;
        loop {
            if let Err(e) = self.turn(wait, LoadQueue::batch_complete) {
                self.queue.cancel_batch();
                return Err(e);
            }
            if let Some(result) = self.queue.end_batch() {
                return result;
            }
            wait = true;
        }
    }

    fn name(&self) -> &'static str {
        "uring"
    }
}

impl Spill for UringSource {
    unsafe fn submit_write(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        src: *const u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        self.check_usable()?;
        let write = RangeRead {
            file_offset,
            dst: src.cast_mut(),
            len_bytes,
        };
        check_read(&write, self.file.len_bytes())?;
        self.queue.push_write(tag, write)
    }

    fn len_bytes(&self) -> u64 {
        self.file.len_bytes()
    }
}

impl Drop for UringSource {
    /// Waits for the kernel: destinations may be freed after this.
    fn drop(&mut self) {
        // From now on nothing is queued again.
        self.broken.get_or_insert(Errno::CANCELED);
        loop {
            self.reap();
            let queued = self.ring.submission().len();
            let held = self.slots.iter().flatten().count();
            // Entries that were never handed over need no waiting for.
            if held <= queued {
                return;
            }
            if self.ring.submitter().submit_and_wait(1).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

// SAFETY: the ring is used through `&mut self` only, by one thread at a time; it was not set
// up for a single issuer. The pointers within are destinations, see `LoadQueue`.
unsafe impl Send for UringSource {}
