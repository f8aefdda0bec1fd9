//! The store lane: writes activations to the spill file as soon as the plan allows, notes what is complete.
//!
//! Like loads, stores of all runs form one sequence, store `i` of run `r` being number `r * stores + i`, of
//! which a prefix is complete. Loads that read the spill file go through here too, for the file is one.
//! Everything is driven by the thread that computes.

use crate::RuntimeError;
use crate::arena::Arena;
use crate::arrived::Arrived;
use crate::clock::Clock;
use crate::load_lane::{address_in, loaded};
use crate::moves::Progress;
use crate::recorder::Recorder;
use neap_plan::{Load, Store};
use neap_store::{LoadTag, RangeRead, Spill, StoreError, StoredSums};

/// Tags of stores have this bit, those of loads have not.
const STORE: u64 = 1 << 63;

#[derive(Default)]
pub(crate) struct SpillLane {
    io: Option<Box<dyn Spill>>,
    stores: Box<[Store]>,
    /// Of what is stored from memory that the processor reads.
    sums: StoredSums,
    submitted: u64,
    /// So many stores are complete, counted from the last (re)start.
    prefix: u64,
    arrived: Option<Arrived>,
    /// What one poll reported; its capacity covers all that can be in flight.
    reported: Vec<LoadTag>,
    stored_bytes: u64,
}

impl SpillLane {
    /// For a valid plan's stores, which fit in the file. `loads` is the most loads in flight at once; `reads`: some are
    /// from the file; `sums`: the processor reads what is stored.
    pub(crate) fn new(
        io: Option<Box<dyn Spill>>,
        stores: Vec<Store>,
        loads: usize,
        reads: bool,
        sums: bool,
    ) -> SpillLane {
        // Of a run only: the next one's begin when all of these are complete.
        let window = stores.len().next_power_of_two().max(64);
        let any = reads || !stores.is_empty();
        SpillLane {
            io: io.filter(|_| any),
            sums: StoredSums::new(stores.iter().filter(|_| sums).map(|store| store.to.offset)),
            submitted: 0,
            prefix: 0,
            arrived: any.then(|| Arrived::new(window)),
            reported: Vec::with_capacity(if any { window + loads } else { 0 }),
            stores: stores.into_boxed_slice(),
            stored_bytes: 0,
        }
    }

    /// Another plan's lane over the same file, unless it brings its own.
    pub(crate) fn succeed(&mut self, mut next: SpillLane) {
        if next.arrived.is_some() {
            next.io = next.io.or_else(|| self.io.take());
        }
        next.stored_bytes = self.stored_bytes;
        *self = next;
    }

    /// Size of the file; 0 without one.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.io.as_ref().map_or(0, |io| io.len_bytes())
    }

    pub(crate) fn per_run(&self) -> u64 {
        self.stores.len() as u64
    }

    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Whether the first `stores` stores of a run, and so all of the runs before, are complete.
    pub(crate) fn has(&self, run: u64, stores: u32) -> bool {
        self.prefix >= run * self.per_run() + u64::from(stores)
    }

    /// Whether the plan goes to the file.
    pub(crate) fn is_used(&self) -> bool {
        self.io.is_some()
    }

    /// Whether [`SpillLane::pump`] would start a store.
    pub(crate) fn may_start(&self, progress: Progress) -> bool {
        self.next(progress).is_some()
    }

    /// The next store, if what it waits for holds.
    fn next(&self, progress: Progress) -> Option<Store> {
        let count = self.per_run();
        let store = self
            .stores
            .get(self.submitted.checked_rem(count)? as usize)?;
        let run = self.submitted / count;
        let mut waits = store.turn.waits();
        waits
            .all(|wait| progress.holds(wait, run))
            .then_some(*store)
    }

    /// Starts every store that may start, in order.
    pub(crate) fn pump(
        &mut self,
        arena: &Arena,
        progress: Progress,
        clock: &impl Clock,
        recorder: &mut Recorder,
    ) -> Result<(), RuntimeError> {
        while let Some(store) = self.next(progress) {
            let src = address_in(arena.map(), store.from, store.bytes)?;
            let Some(io) = &mut self.io else {
                return Err(no_file());
            };
            // SAFETY: the range lies in the arena, which outlives the file. The plan is valid: from the
            // moment that `after` holds until the store is complete, nothing writes there.
            let submitted = unsafe {
                io.submit_write(
                    LoadTag(STORE | self.submitted),
                    store.to.offset,
                    src,
                    store.bytes as usize,
                )
            };
            match submitted {
                Ok(()) => {
                    if self.sums.has(store.to.offset) {
                        // SAFETY: as above.
                        let bytes = unsafe { loaded(arena, store.from, store.bytes)? };
                        self.sums.store(store.to.offset, bytes);
                    }
                    recorder.store_submitted(self.submitted, clock);
                    self.submitted += 1;
                }
                // It has all it can take; the rest follows when some are complete.
                Err(StoreError::TooManyLoads { .. }) if io.in_flight() > 0 => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Begins what was submitted.
    pub(crate) fn flush(&mut self) {
        if let Some(io) = &mut self.io {
            io.flush();
        }
    }

    /// Submits a load that reads back what was stored; false when the file can take no more just now.
    ///
    /// # Safety
    /// As for [`neap_store::Source::submit`].
    pub(crate) unsafe fn submit_load(
        &mut self,
        tag: LoadTag,
        load: &Load,
        dst: *mut u8,
    ) -> Result<bool, RuntimeError> {
        let Some(io) = &mut self.io else {
            return Err(no_file());
        };
        // SAFETY: the caller's to vouch for.
        match unsafe { io.submit(tag, load.from.offset, dst, load.bytes as usize) } {
            Ok(()) => Ok(true),
            Err(StoreError::TooManyLoads { .. }) if io.in_flight() > 0 => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Notes what is complete, and tells the loads among it to `load_arrived`, which are compared with what was stored. With `wait`,
    /// blocks until there is something.
    pub(crate) fn poll(
        &mut self,
        wait: bool,
        clock: &impl Clock,
        recorder: &mut Recorder,
        (arena, loads): (&Arena, &[Load]),
        load_arrived: &mut dyn FnMut(u64, &mut Recorder),
    ) -> Result<(), RuntimeError> {
        let Some(io) = &mut self.io else {
            // With nothing in flight this fails instead of waiting for ever.
            return if wait {
                Err(StoreError::NothingInFlight.into())
            } else {
                Ok(())
            };
        };
        if !wait && io.in_flight() == 0 {
            return Ok(());
        }
        self.reported.clear();
        let reported = &mut self.reported;
        let result = io.poll(wait, &mut |tag| reported.push(tag));
        let count = self.stores.len() as u64;
        for &LoadTag(tag) in self.reported.iter() {
            if tag & STORE == 0 {
                let load = &loads[(tag % loads.len() as u64) as usize];
                if self.sums.has(load.from.offset) {
                    // SAFETY: the load has been reported, and until the computes that need it are done nothing else writes its range.
                    let bytes = unsafe { loaded(arena, load.to, load.bytes)? };
                    self.sums.verify(load.from.offset, bytes)?;
                }
                load_arrived(tag, recorder);
                continue;
            }
            let number = tag & !STORE;
            self.stored_bytes += self.stores[(number % count) as usize].bytes;
            recorder.stored(number, count, clock);
            if let Some(arrived) = &mut self.arrived {
                arrived.set(number);
            }
        }
        if let Some(arrived) = &mut self.arrived {
            while self.prefix < self.submitted && arrived.take(self.prefix) {
                self.prefix += 1;
            }
        }
        Ok(result?)
    }

    /// Reads stored bytes at once; nothing else is in flight.
    ///
    /// # Safety
    /// As for [`neap_store::Source::read_ranges`].
    pub(crate) unsafe fn read(&mut self, read: RangeRead) -> Result<(), RuntimeError> {
        let Some(io) = &mut self.io else {
            return Err(no_file());
        };
        // SAFETY: the caller's to vouch for.
        Ok(unsafe { io.read_ranges(&[read]) }?)
    }

    /// Writes at once; nothing else is in flight.
    ///
    /// # Safety
    /// As for [`Spill::submit_write`], until this returns; after [`StoreError::Broken`], until the file is dropped.
    pub(crate) unsafe fn write(
        &mut self,
        file_offset: u64,
        src: *const u8,
        len_bytes: usize,
    ) -> Result<(), RuntimeError> {
        let Some(io) = &mut self.io else {
            return Err(no_file());
        };
        self.sums.forget(file_offset, len_bytes as u64);
        // SAFETY: the caller's to vouch for.
        unsafe { io.submit_write(LoadTag(STORE), file_offset, src, len_bytes) }?;
        io.flush();
        while io.in_flight() > 0 {
            io.poll(true, &mut |_| {})?;
        }
        Ok(())
    }

    /// Waits for all that is in flight and forgets it; false if the file failed for good.
    pub(crate) fn stop(&mut self) -> bool {
        self.submitted = 0;
        self.prefix = 0;
        if let Some(arrived) = &mut self.arrived {
            arrived.clear();
        }
        self.io.as_mut().is_none_or(|io| io.drain().is_ok())
    }
}

fn no_file() -> RuntimeError {
    RuntimeError::Mismatch {
        what: "plan",
        reason: "it stores activations, and there is no spill file".into(),
    }
}
