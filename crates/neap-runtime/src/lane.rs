//! The load lane: starts the plan's loads as soon as they may start, notes which have arrived.
//!
//! Loads of all runs form one sequence; load `i` of run `r` is number `r * loads + i`.
//!
//! ```text
//!            arrived (prefix)        submitted
//!                  v                     v
//!   ───────────────┬──────────┬──────────┬───────────────►  number
//!     all arrived  │ in flight│, some    │ wait for their
//!                  │ arrived out of order│ dependency
//! ```
//! Everything is driven by the one thread that also computes; nothing here blocks, except
//! [`LoadLane::wait_for`] and [`LoadLane::stop`].

use crate::RuntimeError;
use crate::arena::{Arena, ArenaMap};
use crate::clock::Clock;
use crate::placement::Placement;
use crate::ranges::bytes_of;
use crate::recorder::Recorder;
use neap_plan::{ByteRange, Load};
use neap_store::{LoadTag, RangeRead, Source, StoreError, Verifier};

/// Drops the source first: that waits until the kernel writes no more to the arena.
pub(crate) struct LoadLane {
    source: Box<dyn Source>,
    arena: Arena,
    verifier: Verifier,
    loads: Box<[Load]>,
    computes: u64,
    /// Computes of all runs done so far, outputs taken.
    done_computes: u64,
    submitted: u64,
    prefix: u64,
    arrived: Arrived,
    /// Tags reported by one poll; its capacity covers all loads that can be in flight.
    reported: Vec<LoadTag>,
    loaded_bytes: u64,
    /// The source failed as a whole; the arena must outlive it as it is.
    broken: bool,
    /// All resident weights are in memory.
    ready: bool,
}

/// Which loads past the prefix have arrived, one bit per number modulo a power of two.
struct Arrived {
    bits: Box<[u64]>,
    mask: u64,
}

impl LoadLane {
    pub(crate) fn new(
        source: Box<dyn Source>,
        verifier: Verifier,
        arena: Arena,
        loads: Vec<Load>,
        computes: usize,
    ) -> LoadLane {
        let window = window_of(&loads);
        LoadLane {
            source,
            arena,
            verifier,
            computes: computes as u64,
            done_computes: 0,
            submitted: 0,
            prefix: 0,
            arrived: Arrived::new(window),
            reported: Vec::with_capacity(window),
            loads: loads.into_boxed_slice(),
            loaded_bytes: 0,
            broken: false,
            ready: false,
        }
    }

    /// Goes over to another plan's loads and arena, with nothing in flight. Resident weights of both
    /// plans stay in memory; what else is resident must be read by [`LoadLane::load_resident`].
    /// Says how many bytes of resident weights went. After an error all is as it was, but for
    /// resident weights that may have to be read again.
    pub(crate) fn replace(
        &mut self,
        placement: Placement,
        loads: Vec<Load>,
        computes: usize,
    ) -> Result<u64, RuntimeError> {
        self.stop();
        if self.broken {
            return Err(RuntimeError::Unusable);
        }
        self.ready = false;
        let bytes = placement.bytes();
        // SAFETY: nothing is in flight, and nothing computes while this is borrowed.
        let released_bytes = unsafe { self.arena.reshape(placement) }
            .map_err(|source| RuntimeError::Arena { bytes, source })?;
        let window = window_of(&loads);
        self.arrived = Arrived::new(window);
        self.reported = Vec::with_capacity(window);
        self.loads = loads.into_boxed_slice();
        self.computes = computes as u64;
        Ok(released_bytes)
    }

    /// Gives the memory of everything but resident weights back to the kernel, until it is touched.
    /// Nothing is in flight any more.
    pub(crate) fn rest(&mut self) {
        self.stop();
        if !self.broken {
            // SAFETY: nothing is in flight, and nothing computes while this is borrowed. Where the
            // kernel refuses, the memory stays, which the plan allows for.
            let _ = unsafe { self.arena.discard_work() };
        }
    }

    /// Reads what is to stay in memory and is not there yet, waits for it, and says how many bytes
    /// that were. After an error what has arrived stays, and the rest can be tried again.
    pub(crate) fn load_resident(&mut self) -> Result<u64, RuntimeError> {
        if self.broken {
            return Err(RuntimeError::Unusable);
        }
        let missing = self.arena.residents().missing();
        let pieces: Vec<ByteRange> = missing.iter().flat_map(|&range| pieces_of(range)).collect();
        let mut arrived = vec![false; pieces.len()];
        let result = self.read_resident(&pieces, &mut arrived);
        if result.is_err() {
            self.stop();
        }
        let arrived = pieces.iter().zip(&arrived).filter(|(_, here)| **here);
        self.arena.hold(arrived.map(|(&piece, _)| piece));
        self.ready = result.is_ok();
        result.map(|()| bytes_of(&missing))
    }

    fn read_resident(
        &mut self,
        pieces: &[ByteRange],
        arrived: &mut [bool],
    ) -> Result<(), RuntimeError> {
        let (mut next, mut done) = (0, 0);
        while done < pieces.len() {
            while let Some(piece) = pieces.get(next) {
                let dst = address(&self.arena, place_of(&self.arena, *piece)?, piece.len())?;
                // SAFETY: the range is for this weight alone. Nothing reads it before it is
                // reported below. The arena is unmapped after the source is dropped.
                let submitted = unsafe {
                    self.source
                        .submit(LoadTag(next as u64), piece.begin, dst, piece.len() as usize)
                };
                match submitted {
                    Ok(()) => next += 1,
                    Err(StoreError::TooManyLoads { .. }) if self.source.in_flight() > 0 => break,
                    Err(e) => return Err(e.into()),
                }
                if self.reported.capacity() - self.source.in_flight() == 0 {
                    break;
                }
            }
            let Self {
                source, reported, ..
            } = self;
            reported.clear();
            let result = source.poll(true, &mut |tag| reported.push(tag));
            for &LoadTag(index) in reported.iter() {
                let piece = pieces[index as usize];
                // SAFETY: the load has been reported and nothing overwrites resident weights.
                let bytes =
                    unsafe { loaded(&self.arena, place_of(&self.arena, piece)?, piece.len())? };
                self.verifier.verify(piece.begin, bytes)?;
                arrived[index as usize] = true;
            }
            result?;
            done += reported.len();
        }
        Ok(())
    }

    /// Where the arena is.
    pub(crate) fn map(&self) -> ArenaMap {
        self.arena.map()
    }

    /// Whether [`LoadLane::pump`] would start a load.
    pub(crate) fn may_start(&self) -> bool {
        let count = self.loads.len() as u64;
        count != 0
            && self.submitted - self.prefix <= self.arrived.mask
            && self.loads[(self.submitted % count) as usize]
                .after
                .time(self.submitted / count, self.computes)
                <= self.done_computes
    }

    pub(crate) fn arena_bytes(&self) -> u64 {
        self.arena.len_bytes()
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.arena.residents().held_bytes()
    }

    pub(crate) fn loads_per_run(&self) -> u64 {
        self.loads.len() as u64
    }

    /// Most loads that can be in flight or arrived out of order.
    pub(crate) fn window(&self) -> usize {
        self.arrived.mask as usize + 1
    }

    /// Bytes that have arrived for computes since the session opened.
    pub(crate) fn loaded_bytes(&self) -> u64 {
        self.loaded_bytes
    }

    pub(crate) fn source_name(&self) -> &'static str {
        self.source.name()
    }

    pub(crate) fn verifier_bytes(&self) -> usize {
        self.verifier.memory_bytes()
    }

    /// Whether runs are possible: resident weights are in memory, storage has not failed for good.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready && !self.broken
    }

    /// The run that computes are being done for, counted from the last (re)start.
    pub(crate) fn run(&self) -> u64 {
        self.done_computes / self.computes.max(1)
    }

    pub(crate) fn compute_done(&mut self) {
        self.done_computes += 1;
    }

    /// Starts every load that may start, in order.
    pub(crate) fn pump(
        &mut self,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        let count = self.loads.len() as u64;
        if count == 0 {
            return Ok(());
        }
        while self.submitted - self.prefix <= self.arrived.mask {
            let load = &self.loads[(self.submitted % count) as usize];
            let run = self.submitted / count;
            if load.after.time(run, self.computes) > self.done_computes {
                return Ok(());
            }
            let dst = address(&self.arena, load.offset, load.bytes)?;
            // SAFETY: the range lies in the arena. The plan is valid: from the moment that `after`
            // holds until the load's last compute, nothing else uses the range; before the load is
            // reported no compute runs that needs it. The arena outlives the source.
            let submitted = unsafe {
                self.source.submit(
                    LoadTag(self.submitted),
                    load.file_offset,
                    dst,
                    load.bytes as usize,
                )
            };
            match submitted {
                Ok(()) => {
                    recorder.load_submitted(self.submitted, clock);
                    self.submitted += 1;
                }
                // It has all it can take; the rest follows when some have arrived.
                Err(StoreError::TooManyLoads { .. }) if self.source.in_flight() > 0 => {
                    return Ok(());
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Notes what has arrived, and checks it against its checksums when it comes for the first time.
    pub(crate) fn poll(
        &mut self,
        wait: bool,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        if !wait && self.submitted == self.prefix {
            return Ok(());
        }
        let count = self.loads.len() as u64;
        let Self {
            source, reported, ..
        } = self;
        reported.clear();
        let result = source.poll(wait, &mut |tag| reported.push(tag));
        for &LoadTag(number) in reported.iter() {
            let load = &self.loads[(number % count) as usize];
            // SAFETY: the load has been reported, and until the computes that need it are done
            // nothing else writes its range.
            let bytes = unsafe { loaded(&self.arena, load.offset, load.bytes)? };
            self.verifier.verify(load.file_offset, bytes)?;
            self.arrived.set(number);
            self.loaded_bytes += load.bytes;
            recorder.load_arrived(number, count, clock);
        }
        while self.prefix < self.submitted && self.arrived.take(self.prefix) {
            self.prefix += 1;
        }
        Ok(result?)
    }

    /// Whether the first `needs` loads of the current run have arrived.
    pub(crate) fn has(&self, needs: u32) -> bool {
        self.prefix >= self.run() * self.loads.len() as u64 + u64::from(needs)
    }

    /// Waits for the first `needs` loads of the current run, starting others as they become possible.
    pub(crate) fn wait_for(
        &mut self,
        needs: u32,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        while !self.has(needs) {
            // With nothing in flight this fails instead of waiting for ever.
            self.poll(true, clock, recorder)?;
            self.pump(clock, recorder)?;
        }
        Ok(())
    }

    /// Reads and checks a batch of ranges at once, while loads go on.
    ///
    /// # Safety
    /// The destinations lie in the arena, and are used by nothing else.
    pub(crate) unsafe fn read_now(&mut self, windows: &[RangeRead]) -> Result<(), RuntimeError> {
        // SAFETY: destinations are the caller's to vouch for; the call returns when all reads are
        // complete, or the source is broken and is dropped before the arena.
        let result = unsafe { self.source.read_ranges(windows) };
        if matches!(result, Err(StoreError::Broken { .. })) {
            self.broken = true;
        }
        result?;
        for window in windows {
            // SAFETY: the read is complete; the destination is the caller's.
            let bytes = unsafe { std::slice::from_raw_parts(window.dst, window.len_bytes) };
            self.verifier.verify(window.file_offset, bytes)?;
            self.loaded_bytes += window.len_bytes as u64;
        }
        Ok(())
    }

    /// After an error: waits for all that is in flight and forgets it, so that the next run starts
    /// like the first.
    pub(crate) fn stop(&mut self) {
        if self.source.drain().is_err() {
            self.broken = true;
        }
        self.done_computes = 0;
        self.submitted = 0;
        self.prefix = 0;
        self.arrived.bits.fill(0);
    }
}

/// Resident weights are read in pieces, so that some are checked while others arrive.
fn pieces_of(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    const PIECE_BYTES: u64 = 1 << 20;
    let begins = (range.begin..range.end).step_by(PIECE_BYTES as usize);
    begins.map(move |begin| ByteRange::new(begin, range.end.min(begin + PIECE_BYTES)))
}

/// Where a resident weight lies.
fn place_of(arena: &Arena, file: ByteRange) -> Result<u64, RuntimeError> {
    let place = arena.offset_of(file.begin);
    place.ok_or_else(|| RuntimeError::Mismatch {
        what: "plan",
        reason: format!("byte {} of the file is not resident", file.begin),
    })
}

/// As many loads as can be in flight: those of a run and of the two after it, of which the last can
/// start at the boundary of runs.
fn window_of(loads: &[Load]) -> usize {
    (loads.len() * 3).next_power_of_two().max(64)
}

impl Arrived {
    fn new(window: usize) -> Arrived {
        Arrived {
            bits: vec![0; window / 64].into_boxed_slice(),
            mask: window as u64 - 1,
        }
    }

    fn set(&mut self, number: u64) {
        let at = number & self.mask;
        self.bits[(at / 64) as usize] |= 1 << (at % 64);
    }

    /// Whether the bit was set; clears it.
    fn take(&mut self, number: u64) -> bool {
        let at = number & self.mask;
        let word = &mut self.bits[(at / 64) as usize];
        let bit = 1 << (at % 64);
        let was_set = *word & bit != 0;
        *word &= !bit;
        was_set
    }
}

fn address(arena: &Arena, offset: u64, bytes: u64) -> Result<*mut u8, RuntimeError> {
    address_in(arena.map(), offset, bytes)
}

/// The plan was checked to stay in the arena, so this does not fail; it guards against a defect.
pub(crate) fn address_in(map: ArenaMap, offset: u64, bytes: u64) -> Result<*mut u8, RuntimeError> {
    map.at(offset, bytes).ok_or_else(|| RuntimeError::Mismatch {
        what: "plan",
        reason: format!("{bytes} bytes at offset {offset} are outside of the arena"),
    })
}

/// # Safety
/// Nothing writes the range while the slice is in use.
unsafe fn loaded(arena: &Arena, offset: u64, bytes: u64) -> Result<&[u8], RuntimeError> {
    let start = address(arena, offset, bytes)?;
    // SAFETY: the range lies in the arena, whose bytes are always initialised; the caller says that
    // nothing writes it.
    Ok(unsafe { std::slice::from_raw_parts(start, bytes as usize) })
}
