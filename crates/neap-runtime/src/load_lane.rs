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
//! [`LoadLane::wait_for`], [`LoadLane::settle`], [`LoadLane::finish_stores`] and [`LoadLane::stop`]. The store
//! lane goes along: what one starts or notes, so does the other. So do resident weights that are yet to come.

mod intake;
mod reads;
mod resident;
mod waits;

use crate::RuntimeError;
use crate::arena::{Arena, ArenaMap, Needs};
use crate::arrived::Arrived;
use crate::clock::Clock;
use crate::device::MemoryRange;
use crate::gates::GatedLoads;
use crate::incoming::{Incoming, MOST_PIECES, is_resident};
use crate::mapping::Addresses;
use crate::moves::Moves;
use crate::recorder::Recorder;
use crate::spill::SpillLane;
pub(crate) use intake::Intake;
use neap_plan::{Held, Keep, Load, Place, SpaceKind};
use neap_store::{LoadTag, Spill, StoreError, Verifier};

/// Drops the source and the spill file first: that waits until the kernel leaves the arena alone.
pub(crate) struct LoadLane {
    source: Intake,
    spill: SpillLane,
    arena: Arena,
    verifier: Verifier,
    kinds: Box<[SpaceKind]>,
    loads: Box<[Load]>,
    /// See [`ExecutionPlan::group_bytes`](neap_plan::ExecutionPlan::group_bytes).
    group_bytes: u64,
    computes: u64,
    /// Computes of all runs done so far, outputs taken.
    done_computes: u64,
    submitted: u64,
    prefix: u64,
    /// Of those that were submitted, how many are still on their way; with resident weights.
    in_flight: u64,
    arrived: Arrived,
    incoming: Incoming,
    gated: GatedLoads,
    /// Tags reported by one poll; its capacity covers all loads that can be in flight.
    reported: Vec<LoadTag>,
    loaded_bytes: u64,
    /// The source failed as a whole; the arena must outlive it as it is.
    broken: bool,
}

impl LoadLane {
    pub(crate) fn new(
        source: Intake,
        verifier: Verifier,
        spill: Option<Box<dyn Spill>>,
        arena: Arena,
        moves: Moves,
    ) -> LoadLane {
        let window = window_of(&moves.loads);
        let reads = moves.reads_spill();
        LoadLane {
            spill: SpillLane::new(spill, moves.stores, window, reads, !source.checks()),
            source,
            arena,
            verifier,
            kinds: moves.kinds,
            group_bytes: moves.group_bytes,
            computes: moves.computes,
            done_computes: 0,
            submitted: 0,
            prefix: 0,
            in_flight: 0,
            arrived: Arrived::new(window),
            incoming: Incoming::default(),
            gated: GatedLoads::default(),
            reported: Vec::with_capacity(window + MOST_PIECES),
            loads: moves.loads,
            loaded_bytes: 0,
            broken: false,
        }
    }

    /// After [`LoadLane::new`] or [`LoadLane::replace`]: loads that need not begin in every run.
    pub(crate) fn gate(&mut self, gated: GatedLoads) {
        self.gated = gated;
    }

    /// Steps behind this gate are not computed in that run.
    pub(crate) fn shut(&mut self, gate: u32, run: u64) {
        self.gated.shut(gate, run);
    }

    /// What another plan may go on with. Waits for what is in flight.
    pub(crate) fn held(&mut self) -> Result<Held, RuntimeError> {
        self.stop();
        if self.broken {
            return Err(RuntimeError::Unusable);
        }
        self.hold_residents();
        Ok(self.arena.held())
    }

    /// Goes over to another plan's loads and arena, with nothing in flight since [`LoadLane::held`]. `keeps` are of a
    /// transition that is valid for that; what else is resident is to be announced by [`LoadLane::expect`].
    /// Says how many bytes of resident weights went. After an error all is as it was, or nothing works any
    /// more.
    pub(crate) fn replace(
        &mut self,
        needs: Needs,
        keeps: &[Keep],
        spill: Option<Box<dyn Spill>>,
        moves: Moves,
    ) -> Result<u64, RuntimeError> {
        let bytes = needs.memory_bytes;
        // SAFETY: nothing is in flight, and nothing computes while this is borrowed.
        let reshaped = unsafe { self.arena.reshape(needs, keeps) };
        self.broken = !self.arena.is_whole();
        let released_bytes = reshaped.map_err(|source| RuntimeError::Arena { bytes, source })?;
        let window = window_of(&moves.loads);
        let reads = moves.reads_spill();
        let sums = !self.source.checks();
        self.spill
            .succeed(SpillLane::new(spill, moves.stores, window, reads, sums));
        self.arrived = Arrived::new(window);
        self.reported = Vec::with_capacity(window + MOST_PIECES);
        self.kinds = moves.kinds;
        self.loads = moves.loads;
        self.group_bytes = moves.group_bytes;
        self.computes = moves.computes;
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

    /// Makes the arena ready if it is new or has rested: before anything is started, and before a run.
    pub(crate) fn prepare(&mut self) {
        let begun = self.in_flight + self.submitted + self.done_computes;
        if !self.arena.is_ready() && begun == 0 {
            let held_bytes = self.held_bytes();
            // SAFETY: nothing has been started since the arena was new or rested, and nothing computes
            // while this is borrowed.
            unsafe { self.arena.prepare(held_bytes) };
        }
    }

    /// Bytes of work memory that are to be lent for each run, see [`LoadLane::enter`]; `None` if there are some of its own.
    pub(crate) fn borrowed_bytes(&self) -> Option<u64> {
        self.arena.borrowed_bytes()
    }

    /// Work memory is lent for a run.
    pub(crate) fn enter(&mut self, work: Addresses) {
        self.arena.lend(Some(work));
    }

    /// Work memory goes back: nothing is in flight there unless storage has failed for good. Whether the next run starts
    /// like the first.
    pub(crate) fn leave(&mut self) -> bool {
        // Loads of the next run, had any been started, would be lost; those of this one have all arrived.
        let is_ahead = self.submitted > self.run() * self.loads.len() as u64;
        if is_ahead {
            self.stop();
        }
        self.arena.lend(None);
        is_ahead
    }

    /// Whether the memory is a device's own.
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self.source, Intake::Staged(_))
    }

    /// Copies from the arena while nothing is computed and nothing loaded there.
    ///
    /// # Safety
    /// `from` is so many bytes of the arena, which nothing writes.
    pub(crate) unsafe fn fetch(
        &mut self,
        from: *const u8,
        to: &mut [u8],
    ) -> Result<(), RuntimeError> {
        match &mut self.source {
            Intake::Straight(_) => {
                // SAFETY: the range is as the caller says, and its bytes are always initialised.
                to.copy_from_slice(unsafe { std::slice::from_raw_parts(from, to.len()) });
                Ok(())
            }
            Intake::Staged(staged) => {
                // SAFETY: passed on.
                let fetched = unsafe { staged.fetch(from, to) };
                self.broken |= fetched.is_err();
                Ok(fetched?)
            }
        }
    }

    /// Where the arena is.
    pub(crate) fn map(&self) -> ArenaMap {
        self.arena.map().clone()
    }

    /// Whether [`LoadLane::pump`] would start a load.
    pub(crate) fn may_start(&self) -> bool {
        self.spill.may_start(self.progress())
            || self.may_begin_group() && (self.may_load() || !self.incoming.is_over())
    }

    /// Whether there may be reason to look while a compute goes on: the next group follows the one before,
    /// and so do resident weights; and of what goes to a spill file and comes back, the kernel takes a part at a time.
    pub(crate) fn looks(&self) -> bool {
        self.group_bytes > 0 && !self.loads.is_empty()
            || !self.incoming.is_over()
            || self.spill.is_used()
    }

    /// Starts what may start while a compute goes on, looking first what has arrived.
    pub(crate) fn proceed(
        &mut self,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        if self.in_flight > 0 && self.looks() || self.spill.is_used() {
            self.poll(clock, recorder)?;
        }
        self.pump(clock, recorder)
    }

    fn may_begin_group(&self) -> bool {
        self.group_bytes == 0 || self.in_flight == 0
    }

    /// The memory that runs touch.
    pub(crate) fn memory(&self) -> Vec<MemoryRange> {
        self.arena.touched()
    }

    pub(crate) fn arena_bytes(&self) -> u64 {
        self.arena.memory_bytes()
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.arena.held_bytes() + self.incoming.here_bytes()
    }

    pub(crate) fn residents_bytes(&self) -> u64 {
        let told = self.arena.residents_bytes();
        told.unwrap_or_else(|| self.held_bytes())
    }

    pub(crate) fn loads_per_run(&self) -> u64 {
        self.loads.len() as u64
    }

    /// Most loads that can be in flight or arrived out of order.
    pub(crate) fn window(&self) -> usize {
        self.arrived.window() as usize
    }

    /// Bytes that have arrived from storage for computes since the session opened.
    pub(crate) fn loaded_bytes(&self) -> u64 {
        self.loaded_bytes.saturating_sub(self.copied_bytes())
    }

    /// The same from copies in the host's memory.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.source.copied_bytes()
    }

    /// Bytes written to the spill file since the session opened.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.spill.stored_bytes()
    }

    /// Size of the spill file; 0 without one.
    pub(crate) fn spill_room_bytes(&self) -> u64 {
        self.spill.room_bytes()
    }

    pub(crate) fn stores_per_run(&self) -> u64 {
        self.spill.per_run()
    }

    pub(crate) fn source_name(&self) -> &'static str {
        self.source.name()
    }

    pub(crate) fn verifier_bytes(&self) -> usize {
        self.verifier.memory_bytes()
    }

    /// Something may go on in the arena that nobody can wait for.
    pub(crate) fn give_up(&mut self) {
        self.broken = true;
    }

    /// Whether storage has failed for good.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// The run that computes are being done for, counted from the last (re)start.
    pub(crate) fn run(&self) -> u64 {
        self.done_computes / self.computes.max(1)
    }

    pub(crate) fn compute_done(&mut self) {
        self.done_computes += 1;
    }

    /// Starts every store and load that may start, each in order, and resident weights as they are needed.
    pub(crate) fn pump(
        &mut self,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        let progress = self.progress();
        self.spill.pump(&self.arena, progress, clock, recorder)?;
        let started = self.start_loads(clock, recorder);
        // One call for all of them, of both files.
        self.source.flush();
        self.spill.flush();
        started
    }

    /// Submits loads; does not begin them.
    fn start_loads(
        &mut self,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        if !self.may_begin_group() {
            return Ok(());
        }
        let count = self.loads.len() as u64;
        let mut room = match self.group_bytes {
            0 => u64::MAX,
            bytes => bytes,
        };
        loop {
            let may_load = self.may_load();
            let number = self.submitted;
            let load = may_load.then(|| (number / count, (number % count) as usize));
            if self.incoming.precedes(load, self.computes) {
                if !self.submit_resident(&mut room)? {
                    return Ok(());
                }
                continue;
            }
            let Some((run, index)) = load else {
                return Ok(());
            };
            if self.gated.is_idle(index, run) {
                self.submitted += 1;
                self.arrived.set(number);
                self.advance();
                continue;
            }
            let load = self.loads[index];
            if self.group_bytes > 0 && self.in_flight > 0 && load.bytes > room {
                return Ok(());
            }
            room = room.saturating_sub(load.bytes);
            let dst = address_in(self.arena.map(), load.to, load.bytes)?;
            // SAFETY: the range lies in the arena. The plan is valid: from the moment that `after`
            // holds until the load's last compute, nothing else uses the range; before the load is
            // reported no compute runs that needs it. The arena outlives the source.
            if !unsafe { self.submit(&load, dst) }? {
                // It has all it can take; the rest follows when some have arrived.
                return Ok(());
            }
            recorder.load_submitted(self.submitted, clock);
            self.submitted += 1;
            self.in_flight += 1;
        }
    }

    /// Whether a place is in the spill file.
    fn is_spill(&self, at: Place) -> bool {
        self.kinds.get(at.space.index()) == Some(&SpaceKind::Spill)
    }

    /// Whether the source has taken a read; if not, it has all it can take just now.
    fn has_taken(&self, submitted: Result<(), StoreError>) -> Result<bool, RuntimeError> {
        match submitted {
            Ok(()) => Ok(true),
            Err(StoreError::TooManyLoads { .. }) if self.source.in_flight() > 0 => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Starts the next load; false when its file can take no more just now.
    ///
    /// # Safety
    /// As for [`neap_store::Source::submit`].
    unsafe fn submit(&mut self, load: &Load, dst: *mut u8) -> Result<bool, RuntimeError> {
        let tag = LoadTag(self.submitted);
        if self.is_spill(load.from) {
            // SAFETY: the caller's to vouch for.
            return unsafe { self.spill.submit_load(tag, load, dst) };
        }
        // SAFETY: the caller's to vouch for.
        let submitted = unsafe {
            self.source
                .submit(tag, load.from.offset, dst, load.bytes as usize)
        };
        self.has_taken(submitted)
    }

    /// Notes what has arrived and what is stored.
    pub(crate) fn poll(
        &mut self,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        self.poll_spill(false, clock, recorder)?;
        self.poll_source(false, clock, recorder)
    }

    fn poll_spill(
        &mut self,
        wait: bool,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        let count = self.loads.len() as u64;
        let Self {
            spill,
            arena,
            arrived,
            in_flight,
            loads,
            loaded_bytes,
            ..
        } = self;
        let from = (&*arena, &loads[..]);
        let result = spill.poll(wait, clock, recorder, from, &mut |number, recorder| {
            arrived.set(number);
            *in_flight -= 1;
            *loaded_bytes += loads[(number % count) as usize].bytes;
            recorder.load_arrived(number, count, clock);
        });
        self.advance();
        result
    }

    /// Notes which loads have arrived without a gap.
    fn advance(&mut self) {
        while self.prefix < self.submitted && self.arrived.take(self.prefix) {
            self.prefix += 1;
        }
    }

    /// Notes which weights have arrived, and checks them against their checksums when they come for the first time.
    fn poll_source(
        &mut self,
        wait: bool,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        if !wait && self.source.in_flight() == 0 {
            return Ok(());
        }
        let count = self.loads.len() as u64;
        let Self {
            source,
            reported,
            verifier,
            ..
        } = self;
        reported.clear();
        let result = source.poll(wait, verifier, &mut |tag| reported.push(tag));
        let is_checked = source.checks();
        for &tag in reported.iter() {
            if is_resident(tag) {
                if !is_checked {
                    resident::check(&self.arena, verifier, &self.incoming, tag)?;
                }
                self.incoming.arrived(tag);
                self.in_flight -= 1;
                continue;
            }
            let LoadTag(number) = tag;
            let load = &self.loads[(number % count) as usize];
            if !is_checked {
                // SAFETY: the load has been reported, and until the computes that need it are done
                // nothing else writes its range.
                let bytes = unsafe { loaded(&self.arena, load.to, load.bytes)? };
                verifier.verify(load.from.offset, bytes)?;
            }
            self.arrived.set(number);
            self.in_flight -= 1;
            self.loaded_bytes += load.bytes;
            recorder.load_arrived(number, count, clock);
        }
        self.advance();
        Ok(result?)
    }

    /// After an error: waits for all that is in flight and forgets it, so that the next run starts
    /// like the first.
    pub(crate) fn stop(&mut self) {
        let drained = self.source.drain().is_ok();
        if !self.spill.stop() || !drained {
            self.broken = true;
        }
        self.done_computes = 0;
        self.submitted = 0;
        self.prefix = 0;
        self.in_flight = 0;
        self.arrived.clear();
        self.incoming.restart();
        self.gated.restart();
    }
}

/// As many loads as can be in flight: those of a run and of the two after it, of which the last can
/// start at the boundary of runs.
fn window_of(loads: &[Load]) -> usize {
    (loads.len() * 3).next_power_of_two().max(64)
}

/// The plan was checked to stay in the arena, so this does not fail; it guards against a defect.
pub(crate) fn address_in(map: &ArenaMap, at: Place, bytes: u64) -> Result<*mut u8, RuntimeError> {
    map.at(at, bytes).ok_or_else(|| RuntimeError::Mismatch {
        what: "plan",
        reason: format!("{bytes} bytes at {at} are outside of the arena"),
    })
}

/// # Safety
/// Nothing writes the range while the slice is in use.
pub(crate) unsafe fn loaded(arena: &Arena, at: Place, bytes: u64) -> Result<&[u8], RuntimeError> {
    let start = address_in(arena.map(), at, bytes)?;
    // SAFETY: the range lies in the arena, whose bytes are always initialised; the caller says that
    // nothing writes it.
    Ok(unsafe { std::slice::from_raw_parts(start, bytes as usize) })
}
