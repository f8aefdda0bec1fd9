//! A source in memory under a virtual clock, with a device's speed and a device's faults.
//!
//! Tests run the real executor on it: time passes only when the test or a wait says so, every
//! run is the same, and destinations are filled with a pattern until their load completes, so
//! that weights used too early give wrong results for certain.

use crate::queue::{LoadQueue, Piece};
use crate::source::check_read;
use crate::{LoadTag, RangeRead, Source, Spill, StoreError};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What destinations hold between submission and completion.
const NOT_YET_LOADED: u8 = 0xA5;

/// Time that moves only when told to. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    pub fn new() -> VirtualClock {
        VirtualClock::default()
    }

    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Lets `ns` pass.
    pub fn advance_ns(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }

    /// Lets time pass until `ns`; does nothing when that is past.
    pub fn advance_to_ns(&self, ns: u64) {
        self.0.fetch_max(ns, Ordering::Relaxed);
    }
}

/// The device that a [`MemorySource`] plays.
#[derive(Clone, Copy, Debug)]
pub struct MemoryModel {
    pub bytes_per_second: u64,
    /// From the start of a read to its first byte.
    pub latency_ns: u64,
    /// Reads under way at once; they share the bandwidth, their latencies overlap.
    pub depth: usize,
    /// Loads are cut into reads of so many bytes, a multiple of [`BLOCK`](crate::BLOCK).
    pub piece_bytes: usize,
    /// Loads that may be submitted and not yet reported.
    pub max_loads: usize,
}

impl Default for MemoryModel {
    fn default() -> MemoryModel {
        MemoryModel {
            bytes_per_second: 1_000_000_000,
            latency_ns: 100_000,
            depth: 8,
            piece_bytes: 512 << 10,
            max_loads: 1024,
        }
    }
}

/// Something that goes wrong with one read of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Only so many bytes arrive, zero meaning the end of the file.
    Short { bytes: usize },
    /// The read fails with this error number; `EINTR` and `EAGAIN` lead to another try.
    Error { errno: i32 },
    /// The read takes longer.
    Delay { ns: u64 },
    /// One bit of one byte arrives wrong.
    Corrupt { at_byte: usize },
}

/// Random faults, the same ones for the same seed. Chances are in thousandths of reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomFaults {
    pub seed: u64,
    pub short_per_mille: u64,
    pub error_per_mille: u64,
    pub retry_per_mille: u64,
    pub delay_per_mille: u64,
    pub max_delay_ns: u64,
    pub corrupt_per_mille: u64,
}

/// Which reads fail, and how. Reads are counted from zero in the order of their start.
#[derive(Clone, Debug, Default)]
pub struct FaultScript {
    pub scripted: BTreeMap<u64, Fault>,
    pub random: RandomFaults,
}

impl FaultScript {
    /// Exactly these faults.
    pub fn at(faults: impl IntoIterator<Item = (u64, Fault)>) -> FaultScript {
        FaultScript {
            scripted: faults.into_iter().collect(),
            random: RandomFaults::default(),
        }
    }

    pub fn random(random: RandomFaults) -> FaultScript {
        FaultScript {
            scripted: BTreeMap::new(),
            random,
        }
    }

    fn of_read(&self, number: u64, len_bytes: usize) -> Option<Fault> {
        if let Some(&fault) = self.scripted.get(&number) {
            return Some(fault);
        }
        let r = &self.random;
        let draw = |salt: u64| mix(r.seed ^ mix(number.wrapping_mul(8).wrapping_add(salt)));
        let chance = draw(0) % 1000;
        // Each kind has its own stretch of the thousand.
        let mut end = 0;
        let mut hit = |per_mille: u64| {
            let begin = end;
            end += per_mille;
            (begin..end).contains(&chance)
        };
        if hit(r.short_per_mille) {
            let bytes = 1 + (draw(1) % len_bytes.max(1) as u64) as usize;
            Some(Fault::Short { bytes })
        } else if hit(r.error_per_mille) {
            Some(Fault::Error { errno: libc::EIO })
        } else if hit(r.retry_per_mille) {
            let errno = [libc::EINTR, libc::EAGAIN][(draw(1) % 2) as usize];
            Some(Fault::Error { errno })
        } else if hit(r.delay_per_mille) {
            let ns = draw(1) % r.max_delay_ns.max(1);
            Some(Fault::Delay { ns })
        } else if hit(r.corrupt_per_mille) {
            let at_byte = (draw(1) % len_bytes.max(1) as u64) as usize;
            Some(Fault::Corrupt { at_byte })
        } else {
            None
        }
    }
}

/// A well-mixed function of a number (the finaliser of SplitMix64).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A [`Source`] over bytes in memory.
pub struct MemorySource {
    data: Data,
    model: MemoryModel,
    clock: VirtualClock,
    faults: FaultScript,
    queue: LoadQueue,
    /// Reads under way.
    device: Vec<DeviceRead>,
    /// When the channel has moved the last byte asked of it so far.
    channel_free_ns: u64,
    reads_started: u64,
}

/// What the device holds.
enum Data {
    /// For reading only.
    Shared(Arc<[u8]>),
    /// The space of a spill file.
    Own(Vec<u8>),
}

impl Data {
    fn bytes(&self) -> &[u8] {
        match self {
            Data::Shared(data) => data,
            Data::Own(data) => data,
        }
    }
}

struct DeviceRead {
    piece: Piece,
    done_ns: u64,
    fault: Option<Fault>,
}

impl MemorySource {
    /// A device that holds `data`, which is read from offset zero on, under `clock`.
    ///
    /// # Errors
    /// [`StoreError::InvalidUse`] where the model of the device makes no sense.
    pub fn new(
        data: impl Into<Arc<[u8]>>,
        model: MemoryModel,
        clock: VirtualClock,
        faults: FaultScript,
    ) -> Result<MemorySource, StoreError> {
        MemorySource::holding(Data::Shared(data.into()), model, clock, faults)
    }

    /// A device with room for `len_bytes` bytes, to be written and read back. Reads and writes share
    /// its bandwidth, and count together for `faults`.
    ///
    /// # Errors
    /// As [`MemorySource::new`].
    pub fn spill(
        len_bytes: usize,
        model: MemoryModel,
        clock: VirtualClock,
        faults: FaultScript,
    ) -> Result<MemorySource, StoreError> {
        MemorySource::holding(Data::Own(vec![0; len_bytes]), model, clock, faults)
    }

    fn holding(
        data: Data,
        model: MemoryModel,
        clock: VirtualClock,
        faults: FaultScript,
    ) -> Result<MemorySource, StoreError> {
        if model.bytes_per_second == 0 || model.depth == 0 {
            return Err(StoreError::InvalidUse {
                what: "a device needs a bandwidth and a depth",
            });
        }
        Ok(MemorySource {
            data,
            queue: LoadQueue::new(model.max_loads, model.piece_bytes)?,
            device: Vec::with_capacity(model.depth),
            model,
            clock,
            faults,
            channel_free_ns: 0,
            reads_started: 0,
        })
    }

    /// A device that holds a copy of the file at `path`.
    ///
    /// # Errors
    /// As [`MemorySource::new`], and where the file cannot be read.
    pub fn from_file(
        path: &Path,
        model: MemoryModel,
        clock: VirtualClock,
        faults: FaultScript,
    ) -> Result<MemorySource, StoreError> {
        let data = std::fs::read(path).map_err(|e| StoreError::file("read", path, e))?;
        MemorySource::new(data, model, clock, faults)
    }

    /// Reads that the device has begun, those after short reads and errors included.
    pub fn reads_started(&self) -> u64 {
        self.reads_started
    }

    /// Begins reads at `now_ns` while the device takes more.
    fn start_reads(&mut self, now_ns: u64) {
        while self.device.len() < self.model.depth {
            let next = self.queue.next_batch_piece();
            let Some(piece) = next.or_else(|| self.queue.next_piece()) else {
                return;
            };
            self.start(piece, now_ns);
        }
    }

    fn start(&mut self, piece: Piece, now_ns: u64) {
        let len_bytes = piece.read.len_bytes;
        let fault = self.faults.of_read(self.reads_started, len_bytes);
        self.reads_started += 1;
        let moved = match fault {
            Some(Fault::Short { bytes }) => bytes.min(len_bytes),
            _ => len_bytes,
        };
        let transfer_ns = moved as u128 * 1_000_000_000 / u128::from(self.model.bytes_per_second);
        let first_byte_ns = now_ns.saturating_add(self.model.latency_ns);
        self.channel_free_ns = self
            .channel_free_ns
            .max(first_byte_ns)
            .saturating_add(u64::try_from(transfer_ns).unwrap_or(u64::MAX));
        let delay_ns = match fault {
            Some(Fault::Delay { ns }) => ns,
            _ => 0,
        };
        self.device.push(DeviceRead {
            piece,
            done_ns: self.channel_free_ns.saturating_add(delay_ns),
            fault,
        });
    }

    /// The earliest completion to come.
    fn next_done(&self) -> Option<usize> {
        let at = |i: &usize| self.device[*i].done_ns;
        (0..self.device.len()).min_by_key(at)
    }

    /// Plays the device up to the clock's time.
    fn catch_up(&mut self) {
        let now_ns = self.clock.now_ns();
        while let Some(index) = self.next_done() {
            if self.device[index].done_ns > now_ns {
                return;
            }
            let read = self.device.swap_remove(index);
            let result = self.transfer(&read);
            if let Some(again) = self.queue.complete(read.piece, result) {
                self.start(again, read.done_ns);
            }
            // The device had the backlog all the time, and went on at once.
            self.start_reads(read.done_ns);
        }
    }

    fn transfer(&mut self, read: &DeviceRead) -> Result<usize, Errno> {
        let RangeRead {
            file_offset,
            dst,
            len_bytes,
        } = read.piece.read;
        let bytes = match read.fault {
            Some(Fault::Error { errno }) => return Err(Errno::from_raw_os_error(errno)),
            Some(Fault::Short { bytes }) => bytes.min(len_bytes),
            _ => len_bytes,
        };
        let start = file_offset as usize;
        if read.piece.is_write {
            return self.write(start, dst, bytes, read.fault);
        }
        let from = &self.data.bytes()[start..start + bytes];
        // SAFETY: the contract of `Source` makes the destination valid until the read is
        // reported; it cannot overlap our own data, which is never handed out.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), dst, bytes) };
        match read.fault {
            // SAFETY: within the destination, by the condition.
            Some(Fault::Corrupt { at_byte }) if at_byte < bytes => unsafe {
                *dst.add(at_byte) ^= 0x10;
            },
            _ => {}
        }
        Ok(bytes)
    }

    /// A write takes the bytes that are there when it completes, so that memory reused too early gives
    /// wrong results for certain.
    fn write(
        &mut self,
        start: usize,
        src: *const u8,
        bytes: usize,
        fault: Option<Fault>,
    ) -> Result<usize, Errno> {
        let Data::Own(data) = &mut self.data else {
            return Err(Errno::BADF);
        };
        let to = &mut data[start..start + bytes];
        // SAFETY: the contract of `Spill` makes the source valid until the write is reported; it cannot
        // overlap our own data, which is never handed out.
        unsafe { std::ptr::copy_nonoverlapping(src, to.as_mut_ptr(), bytes) };
        if let Some(Fault::Corrupt { at_byte }) = fault
            && let Some(byte) = to.get_mut(at_byte)
        {
            *byte ^= 0x10;
        }
        Ok(bytes)
    }

    fn wait_once(&mut self) -> Result<(), StoreError> {
        let index = self.next_done().ok_or(StoreError::NothingInFlight)?;
        self.clock.advance_to_ns(self.device[index].done_ns);
        self.catch_up();
        Ok(())
    }
}

impl Source for MemorySource {
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
        check_read(&read, self.data.bytes().len() as u64)?;
        self.catch_up();
        self.queue.push(tag, read)?;
        // SAFETY: the destination is the source's from here on, by the contract.
        unsafe { std::ptr::write_bytes(dst, NOT_YET_LOADED, len_bytes) };
        self.start_reads(self.clock.now_ns());
        Ok(())
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(LoadTag)) -> Result<(), StoreError> {
        if wait && self.queue.in_flight() == 0 {
            return Err(StoreError::NothingInFlight);
        }
        self.catch_up();
        while wait && !self.queue.has_finished() {
            self.wait_once()?;
        }
        self.queue.report(done)
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        for read in reads {
            check_read(read, self.data.bytes().len() as u64)?;
        }
        self.catch_up();
        // SAFETY: `reads` outlives this call, which returns only when the batch has ended or
        // was cancelled.
        unsafe { self.queue.begin_batch(reads) };
        self.start_reads(self.clock.now_ns());
        loop {
            if let Some(result) = self.queue.end_batch() {
                return result;
            }
            if let Err(e) = self.wait_once() {
                self.queue.cancel_batch();
                return Err(e);
            }
        }
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}

impl Spill for MemorySource {
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
        check_read(&write, Spill::len_bytes(self))?;
        self.catch_up();
        self.queue.push_write(tag, write)?;
        self.start_reads(self.clock.now_ns());
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.data.bytes().len() as u64
    }
}

// SAFETY: the pointers within are destinations, see `LoadQueue`.
unsafe impl Send for MemorySource {}
