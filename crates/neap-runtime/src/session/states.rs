//! States: buffers of the plan that survive runs, such as a key-value cache.
//!
//! ```text
//!   run │ run │ rest or another plan        │ run │
//!   ────┴─────┤ save ├─ state file ─┤ load ├┴─────      memory is the plan's: it is given back meanwhile
//! ```
//! A state that streams is in the spill file between runs, and in memory while steps use it; each run loads and stores it.
//!
//! They are zero until they are set. After a run that failed nobody knows what is in them, so they must be set anew.

use super::Session;
use crate::RuntimeError;
use crate::clock::Clock;
use crate::load_lane::{LoadLane, address_in};
use neap_plan::{BLOCK_BYTES, ExecutionPlan, Place, Workload};
use neap_store::{LoadTag, RangeRead, Spill};

/// A buffer that survives runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateInfo {
    pub name: String,
    pub bytes: u64,
    place: Place,
    home: Place,
    /// Its home is in the spill file.
    streams: bool,
}

/// Where the bytes of all states are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Held {
    /// Nothing has been written: they are zero.
    #[default]
    Zero,
    Memory,
    File,
    /// A run failed, or they could not be moved.
    Lost,
}

#[derive(Default)]
pub(super) struct States {
    list: Vec<StateInfo>,
    file: Option<Box<dyn Spill>>,
    held: Held,
    /// The spill file may hold something of those that stream.
    is_written: bool,
}

impl States {
    /// Of a valid plan.
    pub fn of(workload: &Workload, plan: &ExecutionPlan) -> States {
        let list = plan.states.iter().map(|state| {
            let buffer = &workload.buffers[state.buffer.index()];
            StateInfo {
                name: buffer.name.clone(),
                bytes: buffer.bytes,
                place: plan.buffers[state.buffer.index()],
                home: state.home,
                streams: plan.streaming_home(state.buffer).is_some(),
            }
        });
        States {
            list: list.collect(),
            ..States::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether those of another plan are the same, in the same homes, wherever they lie in memory.
    fn fit(&self, next: &States) -> bool {
        let what = |s: &StateInfo| (s.name.clone(), s.bytes, s.home);
        self.list.iter().map(what).eq(next.list.iter().map(what))
    }

    /// Before another plan comes into force: its states must be these, and their bytes go to the file.
    pub fn leave(&mut self, next: &States, lane: &LoadLane) -> Result<(), RuntimeError> {
        if self.list.iter().chain(&next.list).any(|s| s.streams) {
            return Err(mismatch(
                "new plan",
                "some states are in the spill file, which belongs to one plan",
            ));
        }
        if !self.fit(next) {
            return Err(mismatch(
                "new plan",
                "its states differ from those of the old one",
            ));
        }
        self.save(lane)
    }

    /// Another plan is in force.
    pub fn succeed(&mut self, next: States) {
        self.list = next.list;
    }

    /// Their bytes go to the file; memory may be given back.
    pub fn save(&mut self, lane: &LoadLane) -> Result<(), RuntimeError> {
        if self.held != Held::Memory || self.is_empty() {
            return Ok(());
        }
        for (tag, state) in (0..).zip(self.list.iter().filter(|s| !s.streams)) {
            let file = self.file.as_mut().ok_or_else(no_file)?;
            let src = address_in(&lane.map(), state.place, state.bytes)?;
            // SAFETY: the range lies in the arena. The plan is valid: loads in flight lie elsewhere, and between runs
            // nothing computes. The loop below, or draining, ends the write.
            let sent = unsafe {
                file.submit_write(LoadTag(tag), state.home.offset, src, state.bytes as usize)
            };
            let written = sent.and_then(|()| {
                file.flush();
                while file.in_flight() > 0 {
                    file.poll(true, &mut |_| {})?;
                }
                Ok(())
            });
            if let Err(e) = written {
                // Memory still holds them; a file that cannot be drained is not used any more.
                if file.drain().is_err() {
                    self.file = None;
                }
                return Err(e.into());
            }
        }
        self.held = Held::File;
        Ok(())
    }

    /// A run begins.
    pub fn begin_run(&mut self) {
        self.is_written = true;
    }

    /// Memory that holds them is given back without having been saved.
    pub fn lose(&mut self) {
        if self.held == Held::Memory {
            self.held = Held::Lost;
        }
    }

    /// Before a run: they are in memory, which is ready, or where runs load them from.
    fn bring(&mut self, lane: &mut LoadLane) -> Result<(), RuntimeError> {
        if self.is_empty() || self.held == Held::Memory {
            return Ok(());
        }
        let must_clear = self.held == Held::Zero && self.is_written;
        for state in self.list.iter().filter(|s| s.streams && must_clear) {
            lane.write_spilled(state.home, state.bytes, &mut |_, piece| piece.fill(0))?;
        }
        let map = lane.map();
        for state in &self.list {
            if state.streams && self.held != Held::Lost {
                continue;
            }
            let dst = address_in(&map, state.place, state.bytes)?;
            let len_bytes = state.bytes as usize;
            match self.held {
                // SAFETY: the range lies in the arena; the plan is valid, so that nothing else uses it.
                Held::Zero => unsafe { dst.write_bytes(0, len_bytes) },
                Held::File => {
                    let read = RangeRead {
                        file_offset: state.home.offset,
                        dst,
                        len_bytes,
                    };
                    let file = self.file.as_mut().ok_or_else(no_file)?;
                    // SAFETY: as above; the call returns when the read is complete, or the file is broken, and then
                    // it is dropped before the arena.
                    unsafe { file.read_ranges(&[read]) }?;
                }
                Held::Lost => {
                    return Err(mismatch(
                        "session",
                        "its states were lost, and must be set anew",
                    ));
                }
                Held::Memory => {}
            }
        }
        self.held = Held::Memory;
        Ok(())
    }
}

impl<C: Clock> Session<C> {
    /// The buffers that survive runs, in the order of the plan.
    pub fn states(&self) -> &[StateInfo] {
        &self.states.list
    }

    /// The file that states are in while their memory is given back: at least
    /// [`ExecutionPlan::state_bytes`] large, and nobody else's. Without one, a session cannot go over to
    /// another plan, and loses its states when it rests.
    ///
    /// # Errors
    /// [`RuntimeError::Mismatch`] when the file is too small, or states are in another one.
    pub fn keep_states_in(&mut self, file: Box<dyn Spill>) -> Result<(), RuntimeError> {
        let resident = self.states.list.iter().filter(|s| !s.streams);
        let ends = resident.map(|s| s.home.offset.saturating_add(s.bytes));
        let bytes = ends.max().unwrap_or(0);
        if file.len_bytes() < bytes {
            let reason = format!(
                "its states take {bytes} bytes, the file has {}",
                file.len_bytes()
            );
            return Err(mismatch("session", &reason));
        }
        if self.states.held == Held::File {
            return Err(mismatch("session", "its states are in another file"));
        }
        self.states.file = Some(file);
        Ok(())
    }

    /// Sets all states to zero, whatever became of them.
    pub fn clear_states(&mut self) {
        self.states.held = Held::Zero;
    }

    /// Hands the bytes of a state to `visit`, as the last run left them.
    ///
    /// # Errors
    /// [`RuntimeError::Mismatch`] when there is no such state, or it was lost; [`RuntimeError::Store`] when it cannot be
    /// read from the file.
    pub fn read_state(
        &mut self,
        index: usize,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RuntimeError> {
        if let Some((home, bytes)) = self.streaming(index)? {
            return self.lane.read_kept(home, bytes, visit);
        }
        let (start, len) = self.state_at(index)?;
        // SAFETY: the range lies in the arena, whose bytes are initialised. Between runs nothing writes there.
        visit(unsafe { std::slice::from_raw_parts(start, len) });
        Ok(())
    }

    /// Sets a state for the next run: its first bytes, and the others to zero.
    ///
    /// # Errors
    /// As [`Session::read_state`], and when there are more bytes than the state has.
    pub fn write_state(&mut self, index: usize, bytes: &[u8]) -> Result<(), RuntimeError> {
        if let Some((_, len)) = self.streaming(index)?
            && bytes.len() as u64 <= len
        {
            self.stream_to(index, 0, &vec![0; len as usize])?;
            return self.stream_to(index, 0, bytes);
        }
        let (start, len) = self.state_at(index)?;
        if bytes.len() > len {
            let reason = format!("state {index} has {len} bytes, not {}", bytes.len());
            return Err(mismatch("session", &reason));
        }
        // SAFETY: as above, and nothing else uses it.
        let state = unsafe { std::slice::from_raw_parts_mut(start, len) };
        state[..bytes.len()].copy_from_slice(bytes);
        state[bytes.len()..].fill(0);
        Ok(())
    }

    /// Sets some bytes of a state for the next run, from `offset` on.
    ///
    /// # Errors
    /// As [`Session::write_state`].
    pub fn write_state_at(
        &mut self,
        index: usize,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), RuntimeError> {
        if let Some((_, len)) = self.streaming(index)?
            && offset
                .checked_add(bytes.len() as u64)
                .is_some_and(|end| end <= len)
        {
            return self.stream_to(index, offset, bytes);
        }
        let (start, len) = self.state_at(index)?;
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        if begin.checked_add(bytes.len()).is_none_or(|end| end > len) {
            let reason = format!("state {index} has {len} bytes");
            return Err(mismatch("session", &reason));
        }
        // SAFETY: as above; the range lies in the state.
        unsafe { std::slice::from_raw_parts_mut(start.add(begin), bytes.len()) }
            .copy_from_slice(bytes);
        Ok(())
    }

    /// Home and bytes of a state that streams; `None` for one that stays in memory.
    fn streaming(&mut self, index: usize) -> Result<Option<(Place, u64)>, RuntimeError> {
        self.bring_states()?;
        let state = self.states.list.get(index);
        Ok(state.filter(|s| s.streams).map(|s| (s.home, s.bytes)))
    }

    /// Writes bytes of a state that streams, which has so many.
    fn stream_to(&mut self, index: usize, offset: u64, bytes: &[u8]) -> Result<(), RuntimeError> {
        let home = self.states.list[index].home;
        let begin = offset / BLOCK_BYTES * BLOCK_BYTES;
        let skip = (offset - begin) as usize;
        let first = Place::new(home.space, home.offset + begin);
        self.states.is_written = true;
        let len = skip as u64 + bytes.len() as u64;
        let written = self.lane.write_spilled(first, len, &mut |at, piece| {
            // `bytes` begin `skip` bytes behind the first piece's first byte.
            let at = at as usize;
            let from = skip.max(at);
            let until = (skip + bytes.len()).min(at + piece.len());
            if from < until {
                piece[from - at..until - at].copy_from_slice(&bytes[from - skip..until - skip]);
            }
        });
        self.recorder.lane_restarted();
        written
    }

    fn state_at(&mut self, index: usize) -> Result<(*mut u8, usize), RuntimeError> {
        self.bring_states()?;
        let state = self.states.list.get(index);
        let Some(state) = state else {
            return Err(mismatch("session", &format!("there is no state {index}")));
        };
        let start = address_in(&self.lane.map(), state.place, state.bytes)?;
        Ok((start, state.bytes as usize))
    }

    /// They are in memory now.
    pub(super) fn bring_states(&mut self) -> Result<(), RuntimeError> {
        if self.states.is_empty() {
            return Ok(());
        }
        if self.lane.is_broken() {
            return Err(RuntimeError::Unusable);
        }
        let restarts = self.states.held == Held::Zero && self.states.is_written;
        self.lane.prepare();
        let brought = self.states.bring(&mut self.lane);
        if restarts {
            self.recorder.lane_restarted();
        }
        brought
    }
}

fn no_file() -> RuntimeError {
    mismatch("session", "it has states, and no file to keep them in")
}

fn mismatch(what: &'static str, reason: &str) -> RuntimeError {
    RuntimeError::Mismatch {
        what,
        reason: reason.into(),
    }
}
